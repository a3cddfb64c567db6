//! Commands about trainings for those who try everything.

use super::*;

/// A training in which every party may sum.
pub(crate) fn any_spec(random: &mut fastrand::Rng) -> JobSpec {
    let mut spec = spec(&["p1", "n1"], random.u32(1..4));
    let asked = asked(&mut spec);
    asked.min_parties = random.u32(1..3);
    asked.aggregators.extend((0..8).map(|n| name(&format!("n{n}"))));
    asked.privacy = Some(privacy());
    let mount = Mount { what: crate::job::Source::Each("xray".into()), shown: None, bytes: 1 };
    spec.data.insert(name("xray"), mount);
    spec
}

/// Any command about a training.
pub(crate) fn any_act(random: &mut fastrand::Rng, job: JobId) -> Act {
    let epoch = random.u64(0..300);
    let some = |random: &mut fastrand::Rng| BTreeSet::from([random.u32(0..3)]);
    match random.u8(0..4) {
        0 => CourseClaim { job, ms: random.u32(0..200) }.into(),
        1 => {
            let model = Model { holders: BTreeSet::new(), ..model(random.u32(0..3)) };
            let counted = Counted { task: random.u32(0..3), how: CountedAs::Missed, times: None };
            let next =
                Open { selected: some(random), aggregators: vec![], ..open(random.u32(0..3)) };
            CourseRound {
                job,
                epoch,
                model: random.bool().then_some(model),
                counted: vec![counted; random.usize(0..3)],
                metrics: BTreeMap::new(),
                open: random.bool().then_some(next),
            }
            .into()
        }
        2 => CourseCharge { job, epoch, round: random.u32(0..3), tasks: some(random) }.into(),
        _ => {
            let model = VersionId([random.u8(0..6); 16]);
            let verdict = match random.u8(0..3) {
                0 => Verdict::Done { model },
                1 => Verdict::Spent { model },
                _ => Verdict::Failed(note("no progress")),
            };
            CourseEnd { job, epoch, verdict }.into()
        }
    }
}

/// Turns such a command to a training that goes on, and to one of the author's if it takes a lease.
pub(in crate::state) fn make_likely(
    act: &mut Act,
    at: &At,
    guide: &State,
    random: &mut fastrand::Rng,
) {
    let live = guide.live_jobs().filter_map(|(id, job)| Some((id, job, job.course.as_ref()?)));
    let live: Vec<(JobId, &Job, &Course)> =
        live.filter(|(_, _, course)| course.verdict.is_none()).collect();
    if let Act::CourseClaim(act) = act {
        if let Some((id, _, _)) = random.choice(&live) {
            (act.job, act.ms) = (*id, act.ms.max(1));
        }
        return;
    }
    let is_mine = |course: &Course| course.lease.is_some_and(|lease| lease.node == at.author);
    let mine: Vec<_> = live.into_iter().filter(|(_, _, course)| is_mine(course)).collect();
    let Some((id, job, course)) = random.choice(mine) else { return };
    let epoch = course.lease.map_or(0, |lease| lease.epoch);
    match act {
        Act::CourseRound(act) => {
            (act.job, act.epoch) = (id, epoch);
            make_round_likely(act, at, guide, job, course);
        }
        Act::CourseCharge(act) => {
            let round = course.open.as_ref().map_or(0, |open| open.round);
            (act.job, act.epoch, act.round) = (id, epoch, round);
            act.tasks = BTreeSet::from([0]);
        }
        Act::CourseEnd(act) => {
            (act.job, act.epoch) = (id, epoch);
            let versions: Vec<_> = guide.versions_of(job.party).map(|(id, _)| id).collect();
            if let (Verdict::Spent { model }, Some(version)) =
                (&mut act.verdict, random.choice(versions))
            {
                *model = version;
            }
        }
        _ => {}
    }
}

/// Commits the round that is open, if a model came with it and any task ever had a place; and opens the next.
fn make_round_likely(act: &mut CourseRound, at: &At, guide: &State, job: &Job, course: &Course) {
    let placed = job.tasks.iter().enumerate().filter(|(_, task)| task.fence > 0);
    let placed: Vec<(u32, u64)> = placed.map(|(n, task)| (n as u32, task.fence)).collect();
    act.counted.clear();
    if placed.is_empty() || course.open.is_none() {
        act.model = None;
    }
    if let (Some(model), Some(open)) = (&mut act.model, &course.open) {
        let members = guide.members().keys().filter(|node| guide.is_member(**node));
        *model = Model { holders: members.take(2).copied().collect(), ..super::model(0) };
        model.round = open.round;
        let wanted = if open.round == 0 { 1 } else { placed.len() };
        let counted = placed.into_iter().take(wanted).map(|(task, fence)| {
            let last = course.records.get(&task).and_then(|record| record.last);
            let serial = last.map_or(0, |(_, serial)| serial + 1);
            let (base, update) = (open.round.saturating_sub(1), Hash([3; 32]));
            let how = CountedAs::Taken { fence, serial, base, examples: 10, update };
            Counted { task, how, times: None }
        });
        act.counted = counted.collect();
    }
    let stands = act.model.as_ref().or(course.model.as_ref());
    let next = stands.map_or(0, |model| model.round + 1);
    let rounds = match &job.spec.training {
        Some(Training::Federated(asked)) => asked.rounds,
        _ => 0,
    };
    let (selected, aggregators) = (BTreeSet::from([0]), vec![at.author]);
    act.open = (next <= rounds).then_some(Open { selected, aggregators, ..open(next) });
}
