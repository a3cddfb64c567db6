//! How trainings end, and what becomes of their tasks.

use super::*;

#[test]
fn a_verdict_leaves_out_whoever_waits_and_the_others_end_by_themselves() {
    let mut scene = scene();
    submit(&mut scene, spec(&["p1", "p2", "p3"], 9));
    place(&mut scene, 0..2);
    claim(&mut scene, 1).unwrap();
    commit(&mut scene, 1, None, vec![], Some(open(0))).unwrap();
    let version = make_version(&mut scene, 1, 1);
    let early = Verdict::Spent { model: version };
    assert_eq!(end(&mut scene, 1, early.clone()), Err(Refusal::BadVerdict));
    let first = vec![taken(&scene, 0, 1, 0)];
    commit(&mut scene, 1, Some(model(0)), first, Some(open(1))).unwrap();
    assert_eq!(end(&mut scene, 1, Verdict::Done { model: version }), Err(Refusal::BadVerdict));
    let none = Verdict::Spent { model: VersionId([9; 16]) };
    assert_eq!(end(&mut scene, 1, none), Err(Refusal::NoSuchVersion));
    let theirs = make_version(&mut scene, 2, 2);
    let theirs = Verdict::Spent { model: theirs };
    assert_eq!(end(&mut scene, 1, theirs), Err(Refusal::BadVerdict));

    end(&mut scene, 1, early).unwrap();
    assert_eq!(how(&scene, 2), Some(How::LeftOut));
    assert_eq!((how(&scene, 0), how(&scene, 1)), (None, None));
    assert_eq!(course(&scene).open, None);
    done(&mut scene, 0);
    // How it ends itself does not matter any more.
    fail(&mut scene, 1, 3);
    assert_eq!(job(&scene).stage(), Stage::Done);
    let told =
        "the budget was spent after round 0 of 9; p2 was dropped: exit code 3; p3 was left out";
    assert_eq!(reason(&scene), told);
}

#[test]
fn a_task_that_would_wait_again_after_the_verdict_is_left_out() {
    let mut scene = scene();
    let mut it = spec(&["p1", "p2", "p3"], 9);
    it.retry = Retry { attempts: 5, ..Retry::default() };
    submit(&mut scene, it);
    place(&mut scene, 0..3);
    claim(&mut scene, 1).unwrap();
    end(&mut scene, 1, Verdict::Failed(note("no progress"))).unwrap();
    undo(&mut scene, 0, Why::Preempted);
    assert_eq!(how(&scene, 0), None);
    fail(&mut scene, 0, 15);
    assert_eq!(how(&scene, 0), Some(How::LeftOut));
    fail(&mut scene, 1, 1);
    assert_eq!(how(&scene, 1), Some(How::LeftOut));
    assert_eq!(job(&scene).stage(), Stage::Placed);
    undo(&mut scene, 2, Why::Lost);
    assert_eq!(how(&scene, 2), Some(How::LeftOut));
    assert_eq!(job(&scene).tasks[2].end().unwrap().node, Some(id(3)));
    assert_eq!(job(&scene).stage(), Stage::Failed);
    assert!(reason(&scene).starts_with("no progress; p1 was left out"), "{}", reason(&scene));
    assert_eq!(scene.state.facts.flaw(), None);
}

#[test]
fn without_a_verdict_a_lost_task_waits_and_a_failed_one_is_dropped() {
    let mut scene = under_way(3);
    let running = |task: u32, scene: &Scene| TaskNews {
        job: JOB,
        task,
        fence: fence(scene, task as usize),
        news: News::Running,
    };
    let act = running(0, &scene);
    scene.act(&node(1), act).unwrap();
    undo(&mut scene, 2, Why::Lost);
    assert!(job(&scene).tasks[2].is_waiting());
    fail(&mut scene, 1, 4);
    assert_eq!(job(&scene).stage(), Stage::Running);
    assert_eq!(reason(&scene), "p2 was dropped: exit code 4");
    // The others go on, with one who comes back.
    place(&mut scene, 2..3);
    let counted = vec![taken(&scene, 0, 2, 0), taken(&scene, 2, 1, 0)];
    commit(&mut scene, 1, Some(model(1)), counted, Some(open(2))).unwrap();
}

#[test]
fn many_who_were_left_out_are_counted() {
    let mut scene = scene();
    let labels: Vec<String> = (0..12).map(|n| format!("q{n}")).collect();
    submit(&mut scene, spec(&labels.iter().map(String::as_str).collect::<Vec<_>>(), 3));
    claim(&mut scene, 1).unwrap();
    end(&mut scene, 1, Verdict::Failed(note("nobody came"))).unwrap();
    assert_eq!(job(&scene).stage(), Stage::Failed);
    let told = reason(&scene);
    assert!(told.starts_with("nobody came; q0 was left out; q1 was left out; "), "{told}");
    assert!(told.ends_with("q7 was left out; and 4 more"), "{told}");
}

#[test]
fn a_training_that_is_stopped_is_stopped() {
    let mut scene = under_way(3);
    undo(&mut scene, 2, Why::Lost);
    scene.act(&node(1), JobStop { job: JOB }).unwrap();
    assert_eq!(how(&scene, 2), Some(How::Stopped));
    assert_eq!(job(&scene).stage(), Stage::Stopping);
    assert_eq!(reason(&scene), "somebody stopped it");
    for task in 0..2 {
        fail(&mut scene, task, 0);
    }
    assert_eq!(job(&scene).stage(), Stage::Stopped);
    assert_eq!(end(&mut scene, 1, Verdict::Failed(note("no"))), Err(Refusal::NoCourse));
    scene.act(&node(1), JobForget { job: JOB }).unwrap();
    assert_eq!(scene.state.course(JOB), None);
}

#[test]
fn a_member_that_goes_or_has_lost_its_disk_coordinates_and_holds_nothing() {
    let mut scene = under_way(3);
    wait(&mut scene, LEASE_MS);
    claim(&mut scene, 4).unwrap();
    scene.act(&node(4), Leave { node: id(4) }).unwrap();
    assert_eq!(course(&scene).lease, None);
    assert_eq!(course(&scene).model.as_ref().unwrap().holders, BTreeSet::from([id(1)]));
    // Nobody has to wait for its end.
    claim(&mut scene, 1).unwrap();
    scene.act(&node(1), Rejoin {}).unwrap();
    assert_eq!(course(&scene).lease, None);
    assert!(course(&scene).model.as_ref().unwrap().holders.is_empty());
    assert_eq!(scene.state.facts.flaw(), None);
}
