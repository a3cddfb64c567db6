//! What is kept for long: budgets, weights, snapshots.

use super::*;

/// A training with a budget, on data that its tasks know as `xray`, and round 0 open.
fn charged_scene() -> Scene {
    let mut scene = scene();
    let mut it = spec(&["p1", "p2", "p3"], 1000);
    asked(&mut it).privacy = Some(privacy());
    let mount = Mount { what: crate::job::Source::Each("xray".into()), shown: None, bytes: 1 };
    it.data.insert(name("xray"), mount);
    submit(&mut scene, it);
    place(&mut scene, 0..3);
    claim(&mut scene, 1).unwrap();
    commit(&mut scene, 1, None, vec![], Some(open(0))).unwrap();
    scene
}

fn charge(scene: &mut Scene, round: u32, tasks: &[u32]) -> Result<(), Refusal> {
    let tasks = tasks.iter().copied().collect();
    let epoch = epoch(scene);
    scene.act(&node(1), CourseCharge { job: JOB, epoch, round, tasks })
}

#[test]
fn a_round_is_charged_to_the_job_and_to_the_partys_data() {
    let mut scene = charged_scene();
    wait(&mut scene, LEASE_MS - 1);
    charge(&mut scene, 0, &[0, 1]).unwrap();
    wait(&mut scene, LEASE_MS - 1);
    assert_eq!(claim(&mut scene, 4), Err(Refusal::LeaseTaken));
    // One that is repeated is charged again.
    charge(&mut scene, 0, &[1]).unwrap();
    assert_eq!(course(&scene).charged, BTreeMap::from([(0, 1), (1, 2)]));
    let budget = |n| scene.state.budget(party_id(n), &name("xray")).cloned();
    let noise = 1.5f64.to_bits();
    assert_eq!(budget(1), Some(Tally::from([(noise, 1)])));
    assert_eq!(budget(2), Some(Tally::from([(noise, 2)])));
    assert_eq!(budget(3), None);
    for (round, tasks) in [(1, vec![0]), (0, vec![]), (0, vec![3]), (0, vec![0, 3])] {
        assert_eq!(charge(&mut scene, round, &tasks), Err(Refusal::BadCharge));
    }
    // It outlives the job.
    end(&mut scene, 1, Verdict::Failed(note("no"))).unwrap();
    (0..3).for_each(|task| done(&mut scene, task));
    scene.act(&node(1), JobForget { job: JOB }).unwrap();
    assert!(scene.state.budget(party_id(2), &name("xray")).is_some());
}

#[test]
fn a_training_without_a_budget_charges_nothing() {
    let mut scene = under_way(1);
    assert_eq!(charge(&mut scene, 1, &[0]), Err(Refusal::BadCharge));
}

#[test]
fn budgets_have_a_bound_and_no_charge_is_forgotten() {
    let mut scene = charged_scene();
    let other = |n: u64| (1.0 + n as f64).to_bits();
    let full: Tally = (0..MAX_TALLY as u64).map(|n| (other(n), 1)).collect();
    scene.state.facts.jobs.budgets.insert((party_id(1), name("xray")), full);
    assert_eq!(charge(&mut scene, 0, &[0]), Err(Refusal::TooManyBudgets));
    charge(&mut scene, 0, &[1]).unwrap();
    let one = Tally::from([(other(0), 1)]);
    for n in scene.state.facts.jobs.budgets.len()..MAX_BUDGETS {
        let line = (party_id(1), name(&format!("d{n}")));
        scene.state.facts.jobs.budgets.insert(line, one.clone());
    }
    assert_eq!(charge(&mut scene, 0, &[2]), Err(Refusal::TooManyBudgets));
    charge(&mut scene, 0, &[1]).unwrap();
    assert_eq!(scene.state.facts.flaw(), None);
}

#[test]
fn a_course_is_weighed_at_its_largest_until_it_is_over() {
    let mut scene = under_way(1000);
    let live = scene.state.weight();
    full_round(&mut scene, 1, 1000);
    assert_eq!(scene.state.weight(), live);
    end(&mut scene, 1, Verdict::Failed(note("no"))).unwrap();
    (0..3).for_each(|task| done(&mut scene, task));
    let over = scene.state.weight();
    assert!(over + (200 << 10) < live, "{over} of {live}");
    assert!(over > scene.state.snapshot().len() as u64);
    let mut restored = State::blank(LEVEL);
    restored.restore(&scene.state.snapshot()).unwrap();
    assert_eq!(restored, scene.state);
    scene.act(&node(1), JobForget { job: JOB }).unwrap();
    assert_eq!(scene.state.facts.jobs.weight(), 0);
}

#[test]
fn nothing_in_a_course_is_larger_than_it_is_weighed() {
    let long = |n: usize| name(&format!("{n:x<63}"));
    let metrics = (0..MAX_METRICS).map(|n| (long(n), real(f64::MAX))).collect();
    let point = Point { round: u32::MAX, at: Time(u64::MAX), metrics };
    let whole = Piece { hash: Hash([9; 32]), bytes: u64::MAX };
    let nodes: Vec<NodeId> = (0..64).map(|n| NodeId([n; 32])).collect();
    let record = Record {
        taken: u32::MAX,
        late: u32::MAX,
        refused: u32::MAX,
        missed: u32::MAX,
        missed_in_a_row: u32::MAX,
        examples: u64::MAX,
        times: Times { fetch_ms: u32::MAX, compute_ms: u32::MAX, upload_ms: u32::MAX },
        last: Some((u64::MAX, u64::MAX)),
        why: Some(note(&"w".repeat(400))),
    };
    let tasks = MAX_PARTICIPANTS;
    let largest = Course {
        lease: Some(Lease { node: nodes[1], epoch: u64::MAX, ms: u32::MAX, until: Time(u64::MAX) }),
        model: Some(Model {
            round: u32::MAX,
            layout: whole,
            weights: vec![whole; MAX_SHARDS],
            optimiser: vec![whole; MAX_SHARDS],
            holders: nodes.iter().copied().collect(),
        }),
        open: Some(Open {
            round: u32::MAX,
            selected: (0..tasks as u32).map(|n| u32::MAX - n).collect(),
            aggregators: nodes,
            since: Time(u64::MAX),
            deadline_ms: Some(u64::MAX),
        }),
        records: (0..tasks as u32).map(|n| (u32::MAX - n, record.clone())).collect(),
        curve: vec![point; MAX_POINTS],
        verdict: Some(Verdict::Failed(note(&"v".repeat(400)))),
        charged: (0..tasks as u32).map(|n| (u32::MAX - n, u32::MAX)).collect(),
    };
    let bytes = postcard::to_stdvec(&largest).unwrap().len() as u64;
    for is_over in [false, true] {
        let weight = largest.weight(tasks, is_over);
        assert!(bytes <= weight && weight < 2 * bytes, "{bytes} of {weight}");
    }
}

/// With something of everything.
fn full_scene() -> Scene {
    let mut scene = charged_scene();
    charge(&mut scene, 0, &[0, 1]).unwrap();
    let first = vec![taken(&scene, 0, 1, 0)];
    commit(&mut scene, 1, Some(model(0)), first, Some(open(1))).unwrap();
    let why = note("too large");
    let how = CountedAs::Refused { fence: fence(&scene, 2), serial: 1, why };
    let refused = Counted { task: 2, how, times: None };
    let counted = vec![taken(&scene, 0, 2, 0), taken(&scene, 1, 2, 0), refused];
    commit(&mut scene, 1, Some(model(1)), counted, Some(open(2))).unwrap();
    scene
}

#[test]
fn a_course_survives_a_snapshot_and_its_damage_is_noticed() {
    let scene = full_scene();
    let bytes = scene.state.snapshot();
    let mut restored = State::blank(LEVEL);
    restored.restore(&bytes).unwrap();
    assert_eq!(restored, scene.state);
    assert_eq!(restored.course(JOB), scene.state.course(JOB));
    assert_eq!(restored.weight(), scene.state.weight());
    survives_no_damage(&bytes);
}

#[test]
fn a_snapshot_with_a_course_that_cannot_be_is_damaged() {
    fn course(facts: &mut Facts) -> &mut Course {
        facts.jobs.all.get_mut(&JOB).unwrap().course.as_mut().unwrap()
    }
    fn lease(facts: &mut Facts) -> &mut Lease {
        course(facts).lease.as_mut().unwrap()
    }
    fn model(facts: &mut Facts) -> &mut Model {
        course(facts).model.as_mut().unwrap()
    }
    fn open(facts: &mut Facts) -> &mut Open {
        course(facts).open.as_mut().unwrap()
    }
    fn end(facts: &mut Facts, verdict: Verdict) {
        course(facts).open = None;
        course(facts).verdict = Some(verdict);
    }
    fn budget(facts: &mut Facts, of: u8, tally: Tally) {
        facts.jobs.budgets.insert((party_id(of), name("x")), tally);
    }
    let damage: [fn(&mut Facts); 36] = [
        |f| f.jobs.all.get_mut(&JOB).unwrap().course = None,
        |f| {
            let job = f.jobs.all.get_mut(&JOB).unwrap();
            let mut spec = (*job.spec).clone();
            spec.training = None;
            job.spec = spec.into();
        },
        |f| lease(f).node = id(9),
        |f| lease(f).epoch = 0,
        |f| lease(f).ms = 0,
        |f| lease(f).ms = MAX_LEASE_MS + 1,
        |f| {
            model(f).round = 1001;
            course(f).open = None;
        },
        |f| model(f).round = u32::MAX,
        |f| model(f).weights.clear(),
        |f| model(f).weights = vec![piece(1); MAX_SHARDS + 1],
        |f| model(f).weights[0].bytes = u64::MAX,
        |f| model(f).optimiser.push(piece(1)),
        |f| model(f).holders.extend([id(9)]),
        |f| course(f).model = None,
        |f| open(f).round = 1,
        |f| open(f).selected.clear(),
        |f| open(f).selected.extend([3]),
        |f| open(f).aggregators.clear(),
        |f| open(f).aggregators = vec![id(1); MAX_SHARDS + 1],
        |f| course(f).records.extend([(3, Record::default())]),
        |f| course(f).records.get_mut(&0).unwrap().last = Some((u64::MAX, 0)),
        |f| course(f).charged.extend([(3, 1)]),
        |f| course(f).curve[0].round = 1,
        |f| course(f).curve[1].round = 2,
        |f| {
            let names = (0..=MAX_METRICS).map(|n| name(&format!("m{n}")));
            course(f).curve[0].metrics = names.map(|name| (name, Real::default())).collect();
        },
        |f| {
            model(f).round = 400;
            open(f).round = 401;
            let point = course(f).curve[0].clone();
            let points = (0..=MAX_POINTS as u32).map(|round| Point { round, ..point.clone() });
            course(f).curve = points.collect();
        },
        |f| course(f).verdict = Some(Verdict::Failed(note("no"))),
        |f| end(f, Verdict::Done { model: VersionId([1; 16]) }),
        |f| {
            end(f, Verdict::Spent { model: VersionId([1; 16]) });
            course(f).model = None;
            course(f).curve.clear();
        },
        |f| {
            end(f, Verdict::Failed(note("no")));
            f.jobs.all.get_mut(&JOB).unwrap().tasks[1].state = TaskState::Waiting;
        },
        |f| budget(f, 9, Tally::from([(0, 1)])),
        |f| budget(f, 1, Tally::new()),
        |f| budget(f, 1, Tally::from([(0, 0)])),
        |f| budget(f, 1, Tally::from([(f64::NAN.to_bits(), 1)])),
        |f| budget(f, 1, (0..=MAX_TALLY as u64).map(|n| (n, 1)).collect()),
        |f| {
            let lines = (0..=MAX_BUDGETS).map(|n| (party_id(1), name(&format!("d{n}"))));
            f.jobs.budgets.extend(lines.map(|line| (line, Tally::from([(0, 1)]))));
        },
    ];
    let scene = full_scene();
    for (place, change) in damage.iter().enumerate() {
        let mut broken = scene.state.clone();
        assert_eq!(broken.facts.flaw(), None);
        change(&mut broken.facts);
        let halt = State::blank(LEVEL).restore(&broken.snapshot()).unwrap_err();
        // What a spec cannot say makes no job.
        let flaws = [
            "a training is not one",
            "a budget is not one, or there are too many",
            "a job is not one",
        ];
        assert!(
            matches!(&halt, Halt::Damaged(flaw) if flaws.contains(&flaw.as_str())),
            "{place}: {halt}"
        );
    }
}
