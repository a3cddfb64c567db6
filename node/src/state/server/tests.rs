//! Every rule about shards, and commands about them for those who try everything.

use std::collections::BTreeSet;

use mesh_consensus::id::{Hash, VersionId};

use super::super::command::Act;
use super::super::course::{CourseClaim, CourseEnd, Piece, Verdict};
use super::super::jobs::tests as jobs_tests;
use super::super::jobs::{Assign, JobStop, JobSubmit, Placed};
use super::super::level::LEVEL;
use super::super::testing::{Scene, id, name, node, party_id};
use super::*;
use crate::job::training::{Mode, Rule, Wire};
use crate::job::{Allotment, JobSpec};

const JOB: JobId = JobId([7; 16]);

fn real(number: f64) -> Real {
    Real::new(number).unwrap()
}

fn spec(workers: u32, steps: u32) -> JobSpec {
    let mut spec = jobs_tests::spec("serve", workers);
    spec.training = Some(Training::Server(Server {
        steps,
        mode: Mode::Bulk,
        dynamic: false,
        optimiser: Rule::Sgd { rate: real(0.1), momentum: real(0.0) },
        shards: 2,
        wire: Wire::F32,
        checkpoint: 10,
        start: None,
        model: name("model"),
    }));
    spec
}

/// A job of two workers in a mesh of one party with nodes 1 to 3 and another with node 4, which node 1 coordinates.
fn begun() -> Scene {
    let mut scene = Scene::two_parties();
    scene.join(1, 3).unwrap();
    scene.join(1, 4).unwrap();
    scene.raise_to(LEVEL);
    scene.seat_voters(&[1]);
    let new = JobSubmit { job: JOB, party: party_id(1), spec: Box::new(spec(2, 100)) };
    scene.act(&node(1), new).unwrap();
    let place = |task| Placed { job: JOB, task, node: id(1), allotment: Allotment::default() };
    let (plans, places) = (scene.state.plans(), vec![place(0), place(1)]);
    scene.act(&node(1), Assign { plans, ends: vec![], places }).unwrap();
    scene.act(&node(1), CourseClaim { job: JOB, ms: 5000 }).unwrap();
    scene
}

fn lease(scene: &Scene) -> u64 {
    scene.state.course(JOB).unwrap().lease.unwrap().epoch
}

fn model(step: u32) -> Model {
    let piece = |n: u8| Piece { hash: Hash([n; 32]), bytes: 4096 };
    Model {
        round: step,
        layout: piece(9),
        weights: vec![piece(step as u8), piece(2)],
        optimiser: if step > 0 { vec![piece(3), piece(4)] } else { Vec::new() },
        holders: BTreeSet::from([id(1), id(3)]),
    }
}

fn keep(scene: &mut Scene, model: Model) -> Result<(), Refusal> {
    let epoch = lease(scene);
    let workers = BTreeMap::from([(1, Far { steps: model.round, ..Far::default() })]);
    let act = ServerKeep { job: JOB, epoch, model, metrics: BTreeMap::new(), workers };
    scene.act(&node(1), act)
}

fn lay(scene: &mut Scene, shards: &[(u8, Option<u8>)]) -> Result<(), Refusal> {
    let epoch = lease(scene);
    let shards = shards.iter().map(|(primary, backup)| (id(*primary), backup.map(id))).collect();
    scene.act(&node(1), ServerLay { job: JOB, epoch, shards })
}

fn change(scene: &mut Scene, expect: u64, primary: u8, backup: Option<u8>) -> Result<(), Refusal> {
    let (epoch, primary, backup) = (lease(scene), id(primary), backup.map(id));
    scene.act(&node(1), ServerShard { job: JOB, epoch, shard: 0, expect, primary, backup })
}

fn ready(scene: &mut Scene, expect: u64) -> Result<(), Refusal> {
    let epoch = lease(scene);
    scene.act(&node(1), ServerReady { job: JOB, epoch, shard: 0, expect })
}

fn first(scene: &Scene) -> Shard {
    scene.state.laid(JOB).unwrap().shards[0]
}

#[test]
fn shards_are_laid_out_from_a_model_over_nodes_of_the_jobs_party() {
    let mut scene = begun();
    assert_eq!(lay(&mut scene, &[(1, Some(3)), (3, Some(1))]), Err(Refusal::BadShard));
    assert_eq!(keep(&mut scene, model(5)), Err(Refusal::BadRound), "the first model comes first");
    assert_eq!(keep(&mut scene, model(0)), Ok(()));
    for bad in [
        &[(1, Some(3))][..],
        &[(1, Some(1)), (3, Some(1))],
        &[(1, Some(2)), (3, Some(1))],
        &[(2, Some(3)), (3, Some(1))],
    ] {
        assert_eq!(lay(&mut scene, bad), Err(Refusal::BadShard), "{bad:?}");
    }
    assert_eq!(lay(&mut scene, &[(1, Some(3)), (3, None)]), Ok(()));
    let laid = scene.state.laid(JOB).unwrap();
    assert!(laid.shards.iter().all(|shard| shard.epoch == laid.at && shard.stage == Stage::Fresh));
    // Only under the lease.
    let (epoch, shards) = (lease(&scene), vec![(id(1), None); 2]);
    let act = ServerLay { job: JOB, epoch, shards };
    assert_eq!(scene.act(&node(3), act.clone()), Err(Refusal::StaleEpoch));
    let old = ServerLay { epoch: epoch - 1, ..act };
    assert_eq!(scene.act(&node(1), old), Err(Refusal::StaleEpoch));
}

#[test]
fn a_backup_becomes_the_primary_only_when_it_has_everything() {
    let mut scene = begun();
    keep(&mut scene, model(0)).unwrap();
    lay(&mut scene, &[(1, Some(3)), (3, Some(1))]).unwrap();
    let laid = first(&scene).epoch;
    assert_eq!(change(&mut scene, laid, 3, Some(1)), Err(Refusal::BadShard), "it has no copy yet");
    assert_eq!(ready(&mut scene, laid + 1), Err(Refusal::StaleShard));
    assert_eq!(ready(&mut scene, laid), Ok(()));
    assert_eq!(change(&mut scene, laid, 4, None), Err(Refusal::BadShard), "it never had anything");
    assert_eq!(change(&mut scene, laid, 3, Some(4)), Ok(()));
    let now = first(&scene);
    assert_eq!((now.primary, now.backup, now.stage), (id(3), Some(id(4)), Stage::Copying));
    assert!(now.epoch > laid);
    // What was decided from the older epoch does not count.
    assert_eq!(change(&mut scene, laid, 3, None), Err(Refusal::StaleShard));
    assert_eq!(change(&mut scene, now.epoch, 4, Some(3)), Err(Refusal::BadShard));
    assert_eq!(change(&mut scene, now.epoch, 3, None), Ok(()));
    assert_eq!(first(&scene).stage, Stage::Ready, "it is alone, and has everything");
}

#[test]
fn checkpoints_follow_one_another_and_all_shards_can_go_back_to_the_last() {
    let mut scene = begun();
    keep(&mut scene, model(0)).unwrap();
    lay(&mut scene, &[(1, Some(3)), (3, Some(1))]).unwrap();
    let before = scene.state.laid(JOB).unwrap().at;
    assert_eq!(keep(&mut scene, model(0)), Err(Refusal::BadRound));
    let alone = Model { holders: BTreeSet::from([id(1)]), ..model(10) };
    assert_eq!(keep(&mut scene, alone), Err(Refusal::BadRound));
    let foreign = Model { holders: BTreeSet::from([id(1), id(2)]), ..model(10) };
    assert_eq!(keep(&mut scene, foreign), Err(Refusal::BadRound));
    let other = Model { weights: model(0).weights[..1].to_vec(), ..model(10) };
    assert_eq!(keep(&mut scene, other), Err(Refusal::BadRound));
    assert_eq!(keep(&mut scene, model(101)), Err(Refusal::BadRound));
    assert_eq!(keep(&mut scene, model(10)), Ok(()));
    let course = scene.state.course(JOB).unwrap();
    assert_eq!((course.curve.len(), course.records[&1].taken), (2, 10));
    assert_eq!(lay(&mut scene, &[(4, Some(3)), (3, Some(4))]), Ok(()));
    let laid = scene.state.laid(JOB).unwrap();
    assert_eq!((laid.step, laid.shards[0].stage), (10, Stage::Fresh));
    assert!(laid.at > before);
}

#[test]
fn it_ends_with_its_last_step_and_leaves_no_shards() {
    let mut scene = begun();
    keep(&mut scene, model(0)).unwrap();
    lay(&mut scene, &[(1, Some(3)), (3, Some(1))]).unwrap();
    let verdict = Verdict::Done { model: VersionId([1; 16]) };
    let end = CourseEnd { job: JOB, epoch: lease(&scene), verdict };
    assert_eq!(scene.act(&node(1), end), Err(Refusal::NoSuchVersion));
    scene.act(&node(1), JobStop { job: JOB }).unwrap();
    let fences: Vec<u64> = scene.state.job(JOB).unwrap().tasks.iter().map(|t| t.fence).collect();
    for (task, fence) in (0..).zip(fences) {
        let news = super::super::jobs::News::Ended(super::super::jobs::Exit::Stopped);
        let act = super::super::jobs::TaskNews { job: JOB, task, fence, news };
        scene.act(&node(1), act).unwrap();
    }
    assert!(scene.state.job(JOB).unwrap().over.is_some());
    assert_eq!(scene.state.laid(JOB), None);
}

#[test]
fn no_such_job_comes_before_every_member_knows_what_it_is() {
    let mut scene = Scene::new();
    scene.raise_to(SINCE - 1);
    let new = JobSubmit { job: JOB, party: party_id(1), spec: Box::new(spec(1, 10)) };
    assert_eq!(scene.act(&node(1), new.clone()), Err(Refusal::TooEarly));
    scene.raise_to(SINCE);
    assert_eq!(scene.act(&node(1), new), Ok(()));
}

/// A job with a parameter server.
pub(crate) fn any_spec(random: &mut fastrand::Rng) -> JobSpec {
    spec(random.u32(1..3), random.u32(1..4))
}

/// Any command about shards.
pub(crate) fn any_act(random: &mut fastrand::Rng, job: JobId) -> Act {
    let (epoch, shard, expect) = (random.u64(0..300), random.u32(0..3), random.u64(0..300));
    let any = |random: &mut fastrand::Rng| id(random.u8(1..9));
    let (primary, backup) = (any(random), random.bool().then(|| any(random)));
    match random.u8(0..4) {
        0 => ServerLay { job, epoch, shards: vec![(primary, backup); random.usize(0..3)] }.into(),
        1 => ServerShard { job, epoch, shard, expect, primary, backup }.into(),
        2 => ServerReady { job, epoch, shard, expect }.into(),
        _ => {
            let model = Model { holders: BTreeSet::new(), ..model(random.u32(0..3)) };
            let (metrics, workers) = (BTreeMap::new(), BTreeMap::new());
            ServerKeep { job, epoch, model, metrics, workers }.into()
        }
    }
}

/// Turns such a command to a job that the author coordinates.
pub(in crate::state) fn make_likely(
    act: &mut Act,
    at: &At,
    guide: &State,
    random: &mut fastrand::Rng,
) {
    let mine = guide.live_jobs().filter_map(|(found, job)| {
        let course = job.course.as_ref()?;
        let lease = course.lease.filter(|lease| lease.node == at.author)?;
        let is_server = matches!(job.spec.training, Some(Training::Server(_)));
        is_server.then_some((found, lease.epoch, job, course))
    });
    let Some((found, lease, job, course)) = random.choice(mine.collect::<Vec<_>>()) else { return };
    let own = guide.members().iter().filter(|(_, member)| member.party == job.party);
    let own: Vec<NodeId> =
        own.map(|(node, _)| *node).filter(|node| guide.is_member(*node)).collect();
    let pair = (at.author, own.iter().copied().find(|node| *node != at.author));
    let shards = guide.laid(found).map(|laid| laid.shards.clone()).unwrap_or_default();
    match act {
        Act::ServerLay(act) => {
            (act.job, act.epoch) = (found, lease);
            act.shards = vec![pair; course.model.as_ref().map_or(0, |model| model.weights.len())];
        }
        Act::ServerShard(act) => {
            (act.job, act.epoch, act.shard) = (found, lease, 0);
            if let Some(shard) = shards.first() {
                (act.expect, act.primary, act.backup) = (shard.epoch, shard.primary, shard.backup);
                if random.bool() {
                    act.primary = shard.backup.unwrap_or(shard.primary);
                    act.backup = None;
                }
            }
        }
        Act::ServerReady(act) => {
            (act.job, act.epoch, act.shard) = (found, lease, 0);
            act.expect = shards.first().map_or(act.expect, |shard| shard.epoch);
        }
        Act::ServerKeep(act) => {
            (act.job, act.epoch) = (found, lease);
            act.model.round = course.model.as_ref().map_or(0, |model| model.round + 1);
            act.model.holders = own.into_iter().take(2).collect();
        }
        _ => {}
    }
}
