//! Every rule of a training's course, and somebody who tries to break it.

mod any;
mod ends;
mod kept;
mod rounds;

use std::time::Duration;

use mesh_consensus::machine::{At, Halt, StateMachine};

use super::super::command::{Act, Label, Leave, Rejoin};
use super::super::data::{Body, Lineage, Plain, Readers, VersionNew};
use super::super::jobs::tests as jobs_tests;
use super::super::jobs::{
    Assign, Exit, How, Job, JobForget, JobStop, JobSubmit, News, Placed, Stage, TaskDone, TaskNews,
    TaskState, Undone, Why, note,
};
use super::super::level::LEVEL;
use super::super::refusal::Refusal;
use super::super::testing::{Scene, id, name, node, party_id};
use super::super::tests::survives_no_damage;
use super::super::{Facts, State};
use super::*;
use crate::job::training::{
    Federated, MAX_PARTICIPANTS, NoiseAt, Privacy, Select, Strategy, Training, Wire,
};
use crate::job::{Allotment, Group, JobSpec, Mount, Retry};

pub(in crate::state) use any::make_likely;
pub(crate) use any::{any_act, any_spec};

const JOB: JobId = JobId([7; 16]);
const LEASE_MS: u32 = 5000;

fn real(number: f64) -> Real {
    Real::new(number).unwrap()
}

/// A job of these participants.
fn spec(participants: &[&str], rounds: u32) -> JobSpec {
    let mut spec = jobs_tests::spec("train", 1);
    let group = spec.groups[0].clone();
    let named =
        |label: &&str| Group { name: name(label), party: Some(name(label)), ..group.clone() };
    spec.groups = participants.iter().map(named).collect();
    spec.training = Some(Training::Federated(Federated {
        rounds,
        strategy: Strategy::FedAvg { rate: real(1.0) },
        min_parties: 2,
        deadline_ms: None,
        aggregators: vec![name("p1")],
        wire: Wire::F32,
        select: Select::All,
        privacy: None,
        start: None,
        model: name("model"),
    }));
    spec
}

fn asked(spec: &mut JobSpec) -> &mut Federated {
    match &mut spec.training {
        Some(Training::Federated(asked)) => asked,
        _ => panic!("it trains nothing"),
    }
}

fn privacy() -> Privacy {
    let (epsilon, delta) = (real(8.0), real(0.001));
    Privacy { epsilon, delta, noise: real(1.5), clip: real(1.0), at: NoiseAt::Party }
}

/// Three parties with a node each, of which node 1 votes; a second node, 4, of the first party. All take others' work.
fn scene() -> Scene {
    let mut scene = Scene::of_parties(3);
    scene.join(1, 4).unwrap();
    scene.raise_to(LEVEL);
    scene.seat_voters(&[1]);
    for n in 1..=4 {
        for key in ["takes", "trains"] {
            let value = Some("all".parse().unwrap());
            scene.act(&node(n), Label { node: id(n), key: name(key), value }).unwrap();
        }
    }
    scene
}

fn submit(scene: &mut Scene, spec: JobSpec) {
    let new = JobSubmit { job: JOB, party: party_id(1), spec: Box::new(spec) };
    scene.act(&node(1), new).unwrap();
}

/// Places task 0 on node 1, task 1 on node 2, and so on.
fn place(scene: &mut Scene, tasks: std::ops::Range<u32>) {
    let place = |task: u32| Placed {
        job: JOB,
        task,
        node: id(task as u8 + 1),
        allotment: Allotment::default(),
    };
    let (plans, places) = (scene.state.plans(), tasks.map(place).collect());
    scene.act(&node(1), Assign { plans, ends: vec![], places }).unwrap();
}

/// A training of three parties and `rounds` rounds, placed, which node 1 coordinates.
fn begun(rounds: u32) -> Scene {
    let mut scene = scene();
    submit(&mut scene, spec(&["p1", "p2", "p3"], rounds));
    place(&mut scene, 0..3);
    claim(&mut scene, 1).unwrap();
    scene
}

/// The same with model 0, and round 1 open.
fn under_way(rounds: u32) -> Scene {
    let mut scene = begun(rounds);
    commit(&mut scene, 1, None, vec![], Some(open(0))).unwrap();
    let first = vec![taken(&scene, 0, 1, 0)];
    commit(&mut scene, 1, Some(model(0)), first, Some(open(1))).unwrap();
    scene
}

fn claim(scene: &mut Scene, by: u8) -> Result<(), Refusal> {
    scene.act(&node(by), CourseClaim { job: JOB, ms: LEASE_MS })
}

fn job(scene: &Scene) -> &Job {
    scene.state.job(JOB).unwrap()
}

fn course(scene: &Scene) -> &Course {
    scene.state.course(JOB).unwrap()
}

fn record(scene: &Scene, task: u32) -> Record {
    course(scene).records[&task].clone()
}

/// The epoch that holds; 0 if none does.
fn epoch(scene: &Scene) -> u64 {
    course(scene).lease.map_or(0, |lease| lease.epoch)
}

fn wait(scene: &mut Scene, ms: u32) {
    scene.time = scene.time.after(Duration::from_millis(u64::from(ms)));
}

fn piece(n: u8) -> Piece {
    Piece { hash: Hash([n; 32]), bytes: 4 }
}

/// Of two shards, on nodes 1 and 4.
fn model(round: u32) -> Model {
    let n = (round % 100) as u8;
    Model {
        round,
        layout: piece(200),
        weights: vec![piece(n), piece(n + 100)],
        optimiser: vec![],
        holders: BTreeSet::from([id(1), id(4)]),
    }
}

/// For three tasks, summed by nodes 1 and 4.
fn open(round: u32) -> Open {
    Open {
        round,
        selected: BTreeSet::from([0, 1, 2]),
        aggregators: vec![id(1), id(4)],
        since: Time(0),
        deadline_ms: None,
    }
}

/// An update of the attempt that counts.
fn taken(scene: &Scene, task: u32, serial: u64, base: u32) -> Counted {
    let (fence, update) = (job(scene).tasks[task as usize].fence, Hash([3; 32]));
    let times = Some(Times { fetch_ms: 1, compute_ms: serial as u32, upload_ms: 3 });
    Counted { task, how: CountedAs::Taken { fence, serial, base, examples: 10, update }, times }
}

fn missed(task: u32) -> Counted {
    Counted { task, how: CountedAs::Missed, times: None }
}

fn round(
    scene: &Scene,
    model: Option<Model>,
    counted: Vec<Counted>,
    open: Option<Open>,
) -> CourseRound {
    let metrics =
        if model.is_some() { BTreeMap::from([(name("loss"), real(0.5))]) } else { BTreeMap::new() };
    CourseRound { job: JOB, epoch: epoch(scene), model, counted, metrics, open }
}

fn commit(
    scene: &mut Scene,
    by: u8,
    model: Option<Model>,
    counted: Vec<Counted>,
    open: Option<Open>,
) -> Result<(), Refusal> {
    let act = round(scene, model, counted, open);
    scene.act(&node(by), act)
}

/// Round `n` with updates of tasks 0 and 1, numbered as the round; then the next one, if there is one.
fn full_round(scene: &mut Scene, n: u32, rounds: u32) {
    let counted = [0, 1].map(|task| taken(scene, task, u64::from(n) + 1, n - 1)).to_vec();
    let next = (n < rounds).then(|| open(n + 1));
    commit(scene, 1, Some(model(n)), counted, next).unwrap();
}

fn end(scene: &mut Scene, by: u8, verdict: Verdict) -> Result<(), Refusal> {
    let epoch = epoch(scene);
    scene.act(&node(by), CourseEnd { job: JOB, epoch, verdict })
}

/// Makes version `n` of party `of`.
fn make_version(scene: &mut Scene, n: u8, of: u8) -> VersionId {
    let plain = Plain {
        name: name("model"),
        number: u32::from(n),
        manifest: Hash([n; 32]),
        bytes: 1,
        files: 1,
        readers: Readers::Everyone,
        lineage: Lineage::default(),
    };
    let new = VersionNew {
        party: party_id(of),
        id: VersionId([n; 16]),
        revision: None,
        copies: 1,
        holders: BTreeSet::from([id(of)]),
        body: Body::Plain(plain),
    };
    scene.act(&node(of), new).unwrap();
    VersionId([n; 16])
}

fn fence(scene: &Scene, task: usize) -> u64 {
    job(scene).tasks[task].fence
}

/// A task ends well, on the node where [`place`] has put it.
fn done(scene: &mut Scene, task: u32) {
    let fence = fence(scene, task as usize);
    let act = TaskDone { job: JOB, task, fence, outputs: vec![] };
    scene.act(&node(task as u8 + 1), act).unwrap();
}

fn fail(scene: &mut Scene, task: u32, code: u8) {
    let (fence, news) = (fence(scene, task as usize), News::Ended(Exit::Code(code)));
    scene.act(&node(task as u8 + 1), TaskNews { job: JOB, task, fence, news }).unwrap();
}

fn undo(scene: &mut Scene, task: u32, why: Why) {
    let undone = Undone { job: JOB, task, fence: fence(scene, task as usize), why };
    let plans = scene.state.plans();
    scene.act(&node(1), Assign { plans, ends: vec![undone], places: vec![] }).unwrap();
}

fn how(scene: &Scene, task: usize) -> Option<How> {
    job(scene).tasks[task].end().map(|end| end.how.clone())
}

fn reason(scene: &Scene) -> String {
    job(scene).reason().unwrap_or_default()
}

#[test]
fn a_training_goes_from_its_first_model_to_its_last_round() {
    let mut scene = begun(3);
    assert_eq!(course(&scene).lease.unwrap().node, id(1));
    commit(&mut scene, 1, None, vec![], Some(open(0))).unwrap();
    wait(&mut scene, 100);
    let first = vec![taken(&scene, 2, 5, 0)];
    commit(&mut scene, 1, Some(model(0)), first, Some(open(1))).unwrap();
    assert_eq!(course(&scene).open.as_ref().unwrap().since, scene.time);
    for n in 1..=3 {
        wait(&mut scene, LEASE_MS - 1);
        let mut counted = vec![taken(&scene, 0, u64::from(n), n - 1), missed(2)];
        // The second begins from the first model every time.
        counted.push(taken(&scene, 1, u64::from(n), 0));
        let next = (n < 3).then(|| open(n + 1));
        commit(&mut scene, 1, Some(model(n)), counted, next).unwrap();
    }
    let until = course(&scene).lease.unwrap().until;
    assert_eq!(until, scene.time.after(Duration::from_millis(u64::from(LEASE_MS))));
    assert_eq!(course(&scene).open, None);
    assert_eq!(course(&scene).curve.len(), 4);
    assert_eq!(course(&scene).curve[3].metrics[&name("loss")], real(0.5));
    let (one, two, three) = (record(&scene, 0), record(&scene, 1), record(&scene, 2));
    assert_eq!((one.taken, one.late, one.examples, one.times.compute_ms), (3, 0, 30, 3));
    assert_eq!((two.taken, two.late), (3, 2));
    assert_eq!(
        (three.taken, three.missed, three.missed_in_a_row),
        (0, 3, 3),
        "it made the first model"
    );
    assert_eq!(one.last, Some((fence(&scene, 0), 3)));

    let version = make_version(&mut scene, 1, 1);
    end(&mut scene, 1, Verdict::Done { model: version }).unwrap();
    assert_eq!(end(&mut scene, 1, Verdict::Failed(note("no"))), Err(Refusal::NoCourse));
    for task in 0..3 {
        assert!(!job(&scene).stage().is_final());
        done(&mut scene, task);
    }
    assert_eq!(job(&scene).stage(), Stage::Done);
    assert_eq!(reason(&scene), "p3 missed the last 3 rounds");
    assert_eq!(claim(&mut scene, 1), Err(Refusal::NoCourse));
}

#[test]
fn a_job_that_trains_nothing_has_no_course() {
    let mut scene = scene();
    assert_eq!(claim(&mut scene, 1), Err(Refusal::NoSuchJob));
    submit(&mut scene, jobs_tests::spec("plain", 1));
    assert_eq!(scene.state.course(JOB), None);
    assert_eq!(claim(&mut scene, 1), Err(Refusal::NoCourse));
}

#[test]
fn only_a_node_of_a_party_that_may_sum_coordinates() {
    let mut scene = scene();
    submit(&mut scene, spec(&["p1", "p2", "p3"], 1));
    assert_eq!(claim(&mut scene, 2), Err(Refusal::NotAggregator));
    for ms in [0, MAX_LEASE_MS + 1] {
        let act = CourseClaim { job: JOB, ms };
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadLease));
    }
    claim(&mut scene, 4).unwrap();
    let lease = course(&scene).lease.unwrap();
    assert_eq!((lease.node, lease.epoch, lease.ms), (id(4), scene.index, LEASE_MS));
    scene.act(&node(1), JobStop { job: JOB }).unwrap();
    assert_eq!(claim(&mut scene, 4), Err(Refusal::NoCourse));
}

#[test]
fn a_lease_is_taken_by_another_only_after_it_ran_out() {
    let mut scene = begun(1);
    let first = epoch(&scene);
    wait(&mut scene, LEASE_MS - 1);
    assert_eq!(claim(&mut scene, 4), Err(Refusal::LeaseTaken));
    // The holder's own word moves its end, and nothing else.
    claim(&mut scene, 1).unwrap();
    assert_eq!(epoch(&scene), first);
    wait(&mut scene, LEASE_MS - 1);
    assert_eq!(claim(&mut scene, 4), Err(Refusal::LeaseTaken));
    wait(&mut scene, 1);
    claim(&mut scene, 4).unwrap();
    assert_eq!(epoch(&scene), scene.index);
    assert_eq!(claim(&mut scene, 1), Err(Refusal::LeaseTaken));
}

#[test]
fn of_two_that_coordinate_the_earlier_one_is_refused() {
    let mut scene = under_way(3);
    let old = epoch(&scene);
    let counted = vec![taken(&scene, 0, 2, 0), taken(&scene, 1, 2, 0)];
    let late = round(&scene, Some(model(1)), counted, Some(open(2)));
    wait(&mut scene, LEASE_MS);
    claim(&mut scene, 4).unwrap();
    assert_eq!(scene.act(&node(1), late.clone()), Err(Refusal::StaleEpoch));
    // Nor with the other's epoch, nor the other with the old one.
    let stolen = CourseRound { epoch: epoch(&scene), ..late.clone() };
    assert_eq!(scene.act(&node(1), stolen.clone()), Err(Refusal::StaleEpoch));
    assert_eq!(scene.act(&node(4), late), Err(Refusal::StaleEpoch));
    let verdict = Verdict::Failed(note("no"));
    let gone = CourseEnd { job: JOB, epoch: old, verdict };
    assert_eq!(scene.act(&node(1), gone), Err(Refusal::StaleEpoch));
    let charge = CourseCharge { job: JOB, epoch: old, round: 1, tasks: BTreeSet::from([0]) };
    assert_eq!(scene.act(&node(1), charge), Err(Refusal::StaleEpoch));
    scene.act(&node(4), stolen.clone()).unwrap();
    // And a round commits once.
    assert_eq!(scene.act(&node(4), stolen), Err(Refusal::BadRound));
    assert_eq!(course(&scene).model.as_ref().unwrap().round, 1);
}

#[test]
fn a_lease_that_ran_out_counts_until_another_has_it() {
    let mut scene = under_way(3);
    wait(&mut scene, 10 * LEASE_MS);
    full_round(&mut scene, 1, 3);
    assert_eq!(claim(&mut scene, 4), Err(Refusal::LeaseTaken));
}

#[test]
fn an_update_counts_once() {
    let mut scene = under_way(3);
    full_round(&mut scene, 1, 3);
    let fresh = || taken(&scene, 1, 3, 1);
    let mut again = vec![vec![taken(&scene, 0, 2, 1), fresh()]];
    // Nor does an earlier one of the same attempt, nor one of an attempt that was superseded.
    again.push(vec![taken(&scene, 0, 1, 1), fresh()]);
    let mut older = taken(&scene, 0, 9, 1);
    if let CountedAs::Taken { fence, .. } = &mut older.how {
        *fence -= 1;
    }
    again.push(vec![older, fresh()]);
    let good = vec![taken(&scene, 0, 3, 1), fresh()];
    for counted in again {
        let act = commit(&mut scene, 1, Some(model(2)), counted, Some(open(3)));
        assert_eq!(act, Err(Refusal::CountedTwice));
    }
    commit(&mut scene, 1, Some(model(2)), good, Some(open(3))).unwrap();
    assert_eq!(record(&scene, 0).taken, 2);
}

#[test]
fn what_was_refused_is_not_taken_afterwards() {
    let mut scene = under_way(3);
    let refused = |scene: &Scene| {
        let (fence, why) = (fence(scene, 2), note("not a number"));
        Counted { task: 2, how: CountedAs::Refused { fence, serial: 4, why }, times: None }
    };
    let counted = vec![taken(&scene, 0, 2, 0), taken(&scene, 1, 2, 0), refused(&scene)];
    commit(&mut scene, 1, Some(model(1)), counted, Some(open(2))).unwrap();
    let third = record(&scene, 2);
    assert_eq!((third.refused, third.taken), (1, 0));
    assert_eq!(third.why, Some(note("not a number")));
    assert_eq!(reason(&scene), "an update of p3 was refused: not a number");
    let counted = vec![taken(&scene, 0, 3, 1), taken(&scene, 2, 4, 1)];
    let act = commit(&mut scene, 1, Some(model(2)), counted, Some(open(3)));
    assert_eq!(act, Err(Refusal::CountedTwice));
    let counted = vec![taken(&scene, 0, 3, 1), taken(&scene, 2, 5, 1)];
    commit(&mut scene, 1, Some(model(2)), counted, Some(open(3))).unwrap();
}

#[test]
fn a_task_that_was_given_elsewhere_goes_on_from_there() {
    let mut scene = under_way(3);
    let before = fence(&scene, 1);
    undo(&mut scene, 1, Why::Lost);
    place(&mut scene, 1..2);
    assert!(fence(&scene, 1) > before);
    // What the attempt before had sent is as good as ever.
    let mut old = taken(&scene, 1, 7, 0);
    if let CountedAs::Taken { fence, .. } = &mut old.how {
        *fence = before;
    }
    let counted = vec![taken(&scene, 0, 2, 0), old];
    commit(&mut scene, 1, Some(model(1)), counted, Some(open(2))).unwrap();
    // Numbers begin anew with an attempt.
    let counted = vec![taken(&scene, 0, 3, 1), taken(&scene, 1, 1, 1)];
    commit(&mut scene, 1, Some(model(2)), counted, Some(open(3))).unwrap();
    assert_eq!(record(&scene, 1).last, Some((fence(&scene, 1), 1)));
}
