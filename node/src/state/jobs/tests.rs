use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::{JobId, PartyId, VersionId};
use mesh_consensus::machine::StateMachine;

use super::super::State;
use super::super::command::{Act, Label, Leave, Rejoin};
use super::super::course::tests as course_tests;
use super::super::data::{Body, Lineage, Plain, Readers, VersionNew};
use super::super::level::LEVEL;
use super::super::refusal::Refusal;
use super::super::server::tests as server_tests;
use super::super::testing::{Scene, id, name, node, party_id};
use super::*;
use crate::job::training::{Federated, Select, Strategy, Training, Wire};
use crate::job::{Checkpoint, Class, Group, Output, Place, Resources, Retry, RetryOn};

pub(crate) fn spec(label: &str, tasks: u32) -> JobSpec {
    let worker = Group {
        name: name("worker"),
        count: tasks,
        argv: vec!["true".into()],
        image: None,
        resources: Resources::default(),
        ports: BTreeMap::new(),
        party: None,
    };
    JobSpec {
        name: name(label),
        class: Class::Trial,
        priority: 50,
        after: Vec::new(),
        groups: vec![worker],
        gang: false,
        data: BTreeMap::new(),
        outputs: BTreeMap::new(),
        code: None,
        checkpoint: None,
        grace_ms: 1000,
        retry: Retry::default(),
        time_limit_ms: None,
        place: Place::default(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        params: BTreeMap::new(),
        user: "ada".into(),
        training: None,
    }
}

fn job(n: u8) -> JobId {
    JobId([n; 16])
}

fn submit(n: u8, spec: JobSpec) -> JobSubmit {
    JobSubmit { job: job(n), party: party_id(1), spec: Box::new(spec) }
}

/// One party with nodes 1, 2 and 3, of which node 1 votes.
fn scene() -> Scene {
    let mut scene = Scene::at_top();
    for n in [2, 3] {
        scene.join(1, n).unwrap();
        scene.report(n, |report| report.level = LEVEL);
    }
    scene.seat_voters(&[1]);
    scene
}

fn place(n: u8, task: u32, on: u8) -> Placed {
    Placed { job: job(n), task, node: id(on), allotment: Allotment::default() }
}

fn assign(scene: &mut Scene, ends: Vec<Undone>, places: Vec<Placed>) -> Result<(), Refusal> {
    let plans = scene.state.plans();
    scene.act(&node(1), Assign { plans, ends, places })
}

fn fence(scene: &Scene, n: u8, task: usize) -> u64 {
    scene.state.job(job(n)).unwrap().tasks[task].fence
}

fn tell(scene: &mut Scene, by: u8, n: u8, task: u32, news: News) -> Result<(), Refusal> {
    let fence = fence(scene, n, task as usize);
    scene.act(&node(by), TaskNews { job: job(n), task, fence, news })
}

fn done(scene: &mut Scene, by: u8, n: u8, task: u32) -> Result<(), Refusal> {
    let fence = fence(scene, n, task as usize);
    scene.act(&node(by), TaskDone { job: job(n), task, fence, outputs: Vec::new() })
}

fn stage(scene: &Scene, n: u8) -> Stage {
    scene.state.job(job(n)).unwrap().stage()
}

fn reason(scene: &Scene, n: u8) -> String {
    scene.state.job(job(n)).unwrap().reason().unwrap_or_default()
}

fn waits(scene: &Scene, n: u8, task: usize) -> bool {
    scene.state.job(job(n)).unwrap().tasks[task].is_waiting()
}

/// Any command about jobs, for those who try everything.
pub(crate) fn any_job_act(random: &mut fastrand::Rng, party: PartyId) -> Act {
    let (n, task, by) = (random.u8(1..4), random.u32(0..3), random.u8(1..9));
    let fence = random.u64(0..300);
    match random.u8(24..=38) {
        24 => {
            let mut spec = if random.u8(0..4) == 0 {
                server_tests::any_spec(random)
            } else if random.bool() {
                course_tests::any_spec(random)
            } else {
                let mut spec = spec("any", random.u32(1..3));
                spec.gang = random.bool();
                spec.place.each = random.u8(0..4) == 0;
                spec
            };
            spec.retry.attempts = random.u32(0..3);
            if spec.training.is_none() {
                spec.checkpoint = Some(Checkpoint { path: "ckpt".into(), every_ms: 1000 });
            }
            if random.u8(0..3) == 0 {
                spec.after.push(job(random.u8(1..4)));
            }
            JobSubmit { job: job(n), party, spec: Box::new(spec) }.into()
        }
        25 => JobStop { job: job(n) }.into(),
        26 => JobForget { job: job(n) }.into(),
        27 => {
            let ends = (0..random.u8(0..2)).map(|_| {
                let why = [Why::Lost, Why::Preempted, Why::Stop][random.usize(0..3)];
                Undone { job: job(n), task, fence, why }
            });
            let ends = ends.collect();
            let places = (0..random.u8(0..3)).map(|_| place(n, random.u32(0..3), by)).collect();
            Assign { plans: random.u64(0..20), ends, places }.into()
        }
        28 => {
            let endpoint = "10.0.0.1:29500".parse().unwrap();
            let news = [
                News::Fetching,
                News::Ready { endpoint },
                News::Running,
                News::Ended(Exit::Code(1)),
                News::Ended(Exit::Memory),
                News::Ended(Exit::Unable(note("no docker"))),
            ];
            let news = news[random.usize(0..news.len())].clone();
            TaskNews { job: job(n), task, fence, news }.into()
        }
        29 => TaskDone { job: job(n), task, fence, outputs: Vec::new() }.into(),
        31..=34 => course_tests::any_act(random, job(n)),
        35..=38 => server_tests::any_act(random, job(n)),
        _ => {
            let (what, new) = (Kept::Checkpoint, version(random.u8(..), "kept", 1));
            TaskKeep { job: job(n), task, fence, what, new }.into()
        }
    }
}

fn version(n: u8, label: &str, number: u32) -> VersionNew {
    let plain = Plain {
        name: name(label),
        number,
        manifest: mesh_consensus::id::Hash([n; 32]),
        bytes: 1,
        files: 1,
        readers: Readers::Everyone,
        lineage: Lineage::default(),
    };
    VersionNew {
        party: party_id(1),
        id: VersionId([n; 16]),
        revision: None,
        copies: 1,
        holders: BTreeSet::from([id(2)]),
        body: Body::Plain(plain),
    }
}

#[test]
fn a_job_goes_from_its_submission_to_its_end() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("hello", 1))).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Waiting);
    assign(&mut scene, vec![], vec![place(1, 0, 3)]).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Placed);
    tell(&mut scene, 3, 1, 0, News::Fetching).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Fetching);
    tell(&mut scene, 3, 1, 0, News::Running).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Running);
    done(&mut scene, 3, 1, 0).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Done);
    assert_eq!(scene.state.live_jobs().count(), 0);
    let end = scene.state.job(job(1)).unwrap().tasks[0].end().unwrap().clone();
    assert_eq!((end.node, end.running.is_some()), (Some(id(3)), true));
}

#[test]
fn the_same_submission_counts_once() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("hello", 1))).unwrap();
    assert_eq!(scene.act(&node(2), submit(1, spec("hello", 1))), Err(Refusal::JobTaken));
}

#[test]
fn a_job_is_submitted_stopped_and_dropped_by_its_own_party() {
    let mut scene = Scene::two_at_top();
    assert_eq!(scene.act(&node(2), submit(1, spec("a", 1))), Err(Refusal::WrongParty));
    scene.act(&node(1), submit(1, spec("a", 1))).unwrap();
    assert_eq!(scene.act(&node(2), JobStop { job: job(1) }), Err(Refusal::WrongParty));
    assert_eq!(scene.act(&node(1), JobForget { job: job(1) }), Err(Refusal::JobLives));
    scene.act(&node(1), JobStop { job: job(1) }).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Stopped);
    assert_eq!(scene.act(&node(2), JobForget { job: job(1) }), Err(Refusal::WrongParty));
    scene.act(&node(1), JobForget { job: job(1) }).unwrap();
    assert!(scene.state.jobs().is_empty());
}

#[test]
fn another_partys_node_gets_work_only_if_it_takes_all() {
    let mut scene = Scene::two_at_top();
    scene.act(&node(1), submit(1, spec("a", 1))).unwrap();
    let there = || vec![place(1, 0, 2)];
    assert_eq!(assign(&mut scene, vec![], there()), Err(Refusal::WrongParty));
    let value = Some("all".parse().unwrap());
    scene.act(&node(2), Label { node: id(2), key: name(TAKES), value }).unwrap();
    assert_eq!(assign(&mut scene, vec![], there()), Ok(()));
}

/// A job of party 1 that trains with these parties.
fn training(parties: &[&str]) -> JobSpec {
    let mut it = spec("train", 1);
    let worker = it.groups[0].clone();
    let of = |party: &&str| Group { name: name(party), party: Some(name(party)), ..worker.clone() };
    it.groups = parties.iter().map(of).collect();
    it.training = Some(Training::Federated(Federated {
        rounds: 1,
        strategy: Strategy::Median,
        min_parties: 1,
        deadline_ms: None,
        aggregators: vec![name("p1")],
        wire: Wire::F32,
        select: Select::All,
        privacy: None,
        start: None,
        model: name("train"),
    }));
    it
}

#[test]
fn a_node_trains_for_another_party_only_if_it_is_labelled_so() {
    let mut scene = Scene::two_at_top();
    scene.act(&node(1), submit(1, training(&["p1", "p2"]))).unwrap();
    let there = || vec![place(1, 1, 2)];
    let label = |scene: &mut Scene, key: &str, value: &str| {
        let value = Some(value.parse().unwrap());
        scene.act(&node(2), Label { node: id(2), key: name(key), value }).unwrap();
    };
    // That it takes everybody's work does not open its own data to them.
    label(&mut scene, TAKES, "all");
    assert_eq!(assign(&mut scene, vec![], there()), Err(Refusal::WrongParty));
    assert!(scene.state.trains_for(id(2)).is_empty());
    label(&mut scene, TRAINS, "p3");
    assert_eq!(assign(&mut scene, vec![], there()), Err(Refusal::WrongParty));
    for value in ["p1", "all"] {
        label(&mut scene, TRAINS, value);
        assert!(scene.state.may_train_for(id(2), party_id(2), party_id(1)), "{value}");
        assert_eq!(scene.state.trains_for(id(2)), BTreeSet::from([party_id(1)]), "{value}");
    }
    let task = |task| scene.state.takes_task(id(2), party_id(1), &training(&["p1", "p2"]), task);
    assert!(task(1) && !task(0), "the first task is party 1's own");
    assert_eq!(assign(&mut scene, vec![], there()), Ok(()));
}

#[test]
fn a_task_of_a_party_is_given_to_its_nodes_only() {
    let mut scene = Scene::two_at_top();
    let value = Some("all".parse().unwrap());
    scene.act(&node(2), Label { node: id(2), key: name(TRAINS), value }).unwrap();
    scene.act(&node(1), submit(1, training(&["p1", "p2"]))).unwrap();
    for (task, on) in [(0, 2), (1, 1)] {
        let there = vec![place(1, task, on)];
        assert_eq!(assign(&mut scene, vec![], there), Err(Refusal::WrongParty), "{task}");
    }
    assert_eq!(assign(&mut scene, vec![], vec![place(1, 0, 1), place(1, 1, 2)]), Ok(()));
}

#[test]
fn of_two_plans_from_one_view_one_counts() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("a", 2))).unwrap();
    let plans = scene.state.plans();
    let first = Assign { plans, ends: vec![], places: vec![place(1, 0, 2)] };
    let second = Assign { plans, ends: vec![], places: vec![place(1, 1, 2)] };
    scene.act(&node(1), first).unwrap();
    assert_eq!(scene.act(&node(1), second), Err(Refusal::StalePlan));
    assert!(waits(&scene, 1, 1));
}

#[test]
fn only_a_voter_plans() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("a", 1))).unwrap();
    let plan = Assign { plans: 0, ends: vec![], places: vec![place(1, 0, 2)] };
    assert_eq!(scene.act(&node(2), plan), Err(Refusal::NotVoter));
}

#[test]
fn a_superseded_attempt_is_refused_whatever_it_says() {
    let mut scene = scene();
    let mut it = spec("a", 1);
    it.outputs.insert(name("model"), Output { path: "out".into() });
    it.checkpoint = Some(Checkpoint { path: "ckpt".into(), every_ms: 1000 });
    scene.act(&node(2), submit(1, it)).unwrap();
    assign(&mut scene, vec![], vec![place(1, 0, 2)]).unwrap();
    let old = fence(&scene, 1, 0);
    let lost = Undone { job: job(1), task: 0, fence: old, why: Why::Lost };
    assign(&mut scene, vec![lost], vec![]).unwrap();
    assert!(waits(&scene, 1, 0));
    assign(&mut scene, vec![], vec![place(1, 0, 3)]).unwrap();
    let late = TaskNews { job: job(1), task: 0, fence: old, news: News::Running };
    assert_eq!(scene.act(&node(2), late), Err(Refusal::Fenced));
    let outputs = vec![(name("model"), version(1, "model", 1))];
    let late = TaskDone { job: job(1), task: 0, fence: old, outputs: outputs.clone() };
    assert_eq!(scene.act(&node(2), late), Err(Refusal::Fenced));
    let keep = TaskKeep {
        job: job(1),
        task: 0,
        fence: old,
        what: Kept::Checkpoint,
        new: version(2, "kept", 1),
    };
    assert_eq!(scene.act(&node(2), keep), Err(Refusal::Fenced));
    assert!(scene.state.versions().is_empty());
    // Nor may another node speak with the fence that holds.
    let fence = fence(&scene, 1, 0);
    let stolen = TaskDone { job: job(1), task: 0, fence, outputs: outputs.clone() };
    assert_eq!(scene.act(&node(2), stolen.clone()), Err(Refusal::Fenced));
    assert_eq!(scene.act(&node(3), stolen.clone()), Ok(()));
    assert_eq!(scene.act(&node(3), stolen), Err(Refusal::Fenced));
    assert_eq!((scene.state.versions().len(), stage(&scene, 1)), (1, Stage::Done));
}

#[test]
fn outputs_count_all_or_none() {
    let mut scene = scene();
    let mut it = spec("a", 1);
    for label in ["model", "curve"] {
        it.outputs.insert(name(label), Output { path: label.into() });
    }
    scene.act(&node(2), submit(1, it)).unwrap();
    assign(&mut scene, vec![], vec![place(1, 0, 2)]).unwrap();
    let fence = fence(&scene, 1, 0);
    let before = scene.state.snapshot();
    // The second takes an id that the first has.
    let outputs =
        vec![(name("model"), version(1, "model", 1)), (name("curve"), version(1, "curve", 1))];
    let all = TaskDone { job: job(1), task: 0, fence, outputs };
    assert_eq!(scene.act(&node(2), all), Err(Refusal::VersionTaken));
    assert_eq!(scene.state.snapshot(), before);
    let odd = vec![(name("other"), version(1, "other", 1))];
    let odd = TaskDone { job: job(1), task: 0, fence, outputs: odd };
    assert_eq!(scene.act(&node(2), odd), Err(Refusal::BadProduct));
    let outputs =
        vec![(name("model"), version(1, "model", 1)), (name("curve"), version(2, "curve", 1))];
    let all = TaskDone { job: job(1), task: 0, fence, outputs };
    assert_eq!(scene.act(&node(2), all), Ok(()));
    assert_eq!(scene.state.job(job(1)).unwrap().outputs.len(), 2);
}

#[test]
fn a_checkpoint_replaces_the_one_before_and_goes_when_the_job_is_done() {
    let mut scene = scene();
    let mut it = spec("a", 1);
    it.checkpoint = Some(Checkpoint { path: "ckpt".into(), every_ms: 1000 });
    scene.act(&node(2), submit(1, it)).unwrap();
    assign(&mut scene, vec![], vec![place(1, 0, 2)]).unwrap();
    for n in [1, 2] {
        let fence = fence(&scene, 1, 0);
        let new = version(n, "kept", u32::from(n));
        let what = Kept::Checkpoint;
        scene.act(&node(2), TaskKeep { job: job(1), task: 0, fence, what, new }).unwrap();
        let kept = scene.state.job(job(1)).unwrap().tasks[0].checkpoint;
        assert_eq!(kept, Some(VersionId([n; 16])));
        assert_eq!(scene.state.versions().len(), 1);
    }
    done(&mut scene, 2, 1, 0).unwrap();
    assert!(scene.state.versions().is_empty());
}

#[test]
fn a_draft_of_an_output_goes_however_the_job_ends() {
    let mut scene = scene();
    let mut it = spec("a", 1);
    it.outputs.insert(name("model"), Output { path: "out".into() });
    for n in [1, 2] {
        scene.act(&node(2), submit(n, it.clone())).unwrap();
        assign(&mut scene, vec![], vec![place(n, 0, 2)]).unwrap();
        let fence = fence(&scene, n, 0);
        let (what, new) = (Kept::Draft(name("model")), version(n, "draft", u32::from(n)));
        scene.act(&node(2), TaskKeep { job: job(n), task: 0, fence, what, new }).unwrap();
        assert_eq!(scene.state.versions().len(), 1);
        match n {
            1 => tell(&mut scene, 2, n, 0, News::Ended(Exit::Code(1))).unwrap(),
            _ => done(&mut scene, 2, n, 0).unwrap(),
        }
        assert!(scene.state.versions().is_empty(), "{n}");
    }
}

#[test]
fn a_failure_is_tried_again_as_often_as_was_asked_and_only_for_what_was_asked() {
    let mut scene = scene();
    let mut it = spec("a", 1);
    it.retry = Retry { attempts: 2, on: BTreeSet::from([RetryOn::Exit(75)]), backoff_ms: 500 };
    scene.act(&node(2), submit(1, it.clone())).unwrap();
    assign(&mut scene, vec![], vec![place(1, 0, 2)]).unwrap();
    tell(&mut scene, 2, 1, 0, News::Ended(Exit::Code(75))).unwrap();
    assert!(waits(&scene, 1, 0));
    let again = || vec![place(1, 0, 2)];
    assert_eq!(assign(&mut scene, vec![], again()), Err(Refusal::StalePlan));
    scene.time = scene.time.after(Duration::from_millis(500));
    assign(&mut scene, vec![], again()).unwrap();
    tell(&mut scene, 2, 1, 0, News::Ended(Exit::Code(75))).unwrap();
    assert_eq!((stage(&scene, 1), reason(&scene, 1).as_str()), (Stage::Failed, "exit code 75"));

    scene.act(&node(2), submit(2, it)).unwrap();
    assign(&mut scene, vec![], vec![place(2, 0, 2)]).unwrap();
    tell(&mut scene, 2, 2, 0, News::Ended(Exit::Memory)).unwrap();
    assert_eq!((stage(&scene, 2), reason(&scene, 2).as_str()), (Stage::Failed, "killed: memory"));
}

#[test]
fn losing_a_node_and_making_room_never_count_as_failures() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("a", 1))).unwrap();
    for why in [Why::Lost, Why::Preempted, Why::Lost] {
        assign(&mut scene, vec![], vec![place(1, 0, 2)]).unwrap();
        let fence = fence(&scene, 1, 0);
        assign(&mut scene, vec![Undone { job: job(1), task: 0, fence, why }], vec![]).unwrap();
        if why == Why::Preempted {
            assert_eq!(stage(&scene, 1), Stage::Stopping);
            tell(&mut scene, 2, 1, 0, News::Ended(Exit::Signal(15))).unwrap();
        }
        assert!(waits(&scene, 1, 0), "{why:?}");
    }
    let task = scene.state.job(job(1)).unwrap().tasks[0].clone();
    assert_eq!((task.failures, task.preemptions, task.attempts), (0, 1, 3));
}

#[test]
fn a_node_that_cannot_run_it_is_remembered_and_it_does_not_go_on_for_ever() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("a", 1))).unwrap();
    for n in 1..=16 {
        scene.time = scene.time.after(Duration::from_secs(3600));
        assign(&mut scene, vec![], vec![place(1, 0, 2)]).unwrap();
        tell(&mut scene, 2, 1, 0, News::Ended(Exit::Unable(note("no docker")))).unwrap();
        let task = &scene.state.job(job(1)).unwrap().tasks[0];
        assert_eq!(task.failed_on.get(&id(2)), Some(&n));
    }
    assert_eq!((stage(&scene, 1), reason(&scene, 1).as_str()), (Stage::Failed, "no docker"));
}

#[test]
fn a_gang_is_placed_whole_or_not_at_all() {
    let mut scene = scene();
    let mut it = spec("a", 2);
    it.gang = true;
    scene.act(&node(2), submit(1, it)).unwrap();
    let half = vec![place(1, 0, 2)];
    assert_eq!(assign(&mut scene, vec![], half), Err(Refusal::BadPlan));
    assign(&mut scene, vec![], vec![place(1, 0, 2), place(1, 1, 3)]).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Placed);
}

#[test]
fn a_gang_that_loses_a_member_starts_again_together() {
    let mut scene = scene();
    let mut it = spec("a", 2);
    it.gang = true;
    scene.act(&node(2), submit(1, it)).unwrap();
    assign(&mut scene, vec![], vec![place(1, 0, 2), place(1, 1, 3)]).unwrap();
    let fence = fence(&scene, 1, 1);
    let lost = Undone { job: job(1), task: 1, fence, why: Why::Lost };
    assign(&mut scene, vec![lost], vec![]).unwrap();
    assert!(waits(&scene, 1, 1) && !waits(&scene, 1, 0));
    let again = || vec![place(1, 0, 2), place(1, 1, 2)];
    assert_eq!(assign(&mut scene, vec![], again()), Err(Refusal::StalePlan));
    tell(&mut scene, 2, 1, 0, News::Ended(Exit::Stopped)).unwrap();
    assign(&mut scene, vec![], again()).unwrap();
    let failures: u32 = scene.state.job(job(1)).unwrap().tasks.iter().map(|t| t.failures).sum();
    assert_eq!(failures, 0);
}

#[test]
fn a_gang_whose_member_fails_for_good_fails_as_a_whole() {
    let mut scene = scene();
    let mut it = spec("a", 3);
    it.gang = true;
    scene.act(&node(2), submit(1, it)).unwrap();
    let places = vec![place(1, 0, 2), place(1, 1, 3), place(1, 2, 3)];
    assign(&mut scene, vec![], places).unwrap();
    done(&mut scene, 3, 1, 2).unwrap();
    tell(&mut scene, 3, 1, 1, News::Ended(Exit::Code(3))).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Stopping);
    tell(&mut scene, 2, 1, 0, News::Ended(Exit::Stopped)).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Failed);
    assert_eq!(reason(&scene, 1), "task 1: exit code 3");
}

#[test]
fn one_of_many_that_fails_leaves_the_others_alone() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("a", 2))).unwrap();
    assign(&mut scene, vec![], vec![place(1, 0, 2), place(1, 1, 3)]).unwrap();
    tell(&mut scene, 2, 1, 0, News::Ended(Exit::Code(1))).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Placed);
    done(&mut scene, 3, 1, 1).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Failed);
}

#[test]
fn a_job_waits_for_those_before_it_and_ends_with_them_if_they_fail() {
    let mut scene = scene();
    let after = |n| {
        let mut it = spec("later", 1);
        it.after.push(job(n));
        it
    };
    assert_eq!(scene.act(&node(2), submit(2, after(1))), Err(Refusal::NoSuchJob));
    scene.act(&node(2), submit(1, spec("a", 1))).unwrap();
    scene.act(&node(2), submit(2, after(1))).unwrap();
    scene.act(&node(2), submit(3, after(2))).unwrap();
    let early = vec![place(2, 0, 2)];
    assert_eq!(assign(&mut scene, vec![], early), Err(Refusal::StalePlan));
    assign(&mut scene, vec![], vec![place(1, 0, 2)]).unwrap();
    tell(&mut scene, 2, 1, 0, News::Ended(Exit::Code(1))).unwrap();
    assert_eq!([1, 2, 3].map(|n| stage(&scene, n)), [Stage::Failed; 3]);
    assert_eq!(reason(&scene, 2), format!("job {} was not done", job(1).short()));
    // Who comes too late hears of it at once.
    scene.act(&node(2), submit(4, after(3))).unwrap();
    assert_eq!(stage(&scene, 4), Stage::Failed);
}

#[test]
fn what_is_stopped_ends_when_its_node_says_so_or_is_gone() {
    let mut scene = scene();
    for n in [1, 2] {
        scene.act(&node(2), submit(n, spec("a", 1))).unwrap();
        assign(&mut scene, vec![], vec![place(n, 0, 3)]).unwrap();
        scene.act(&node(2), JobStop { job: job(n) }).unwrap();
        assert_eq!(stage(&scene, n), Stage::Stopping);
    }
    tell(&mut scene, 3, 1, 0, News::Ended(Exit::Stopped)).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Stopped);
    scene.act(&node(3), Leave { node: id(3) }).unwrap();
    assert_eq!(stage(&scene, 2), Stage::Stopped);
}

#[test]
fn the_tasks_of_a_member_that_goes_or_has_lost_its_disk_wait_again() {
    let mut scene = scene();
    scene.act(&node(2), submit(1, spec("a", 2))).unwrap();
    assign(&mut scene, vec![], vec![place(1, 0, 2), place(1, 1, 3)]).unwrap();
    scene.act(&node(3), Leave { node: id(3) }).unwrap();
    assert!(waits(&scene, 1, 1) && !waits(&scene, 1, 0));
    scene.act(&node(2), Rejoin {}).unwrap();
    assert!(waits(&scene, 1, 0));
    assert_eq!(scene.state.facts.flaw(), None);
}

#[test]
fn one_on_each_node_gets_its_tasks_with_their_places_and_cannot_move() {
    let mut scene = scene();
    let mut it = spec("a", 1);
    it.place.each = true;
    scene.act(&node(2), submit(1, it)).unwrap();
    assert!(scene.state.job(job(1)).unwrap().tasks.is_empty());
    let gap = vec![place(1, 0, 1), place(1, 2, 2)];
    assert_eq!(assign(&mut scene, vec![], gap), Err(Refusal::BadPlan));
    let places = (0..3).map(|task| place(1, task, task as u8 + 1)).collect();
    assign(&mut scene, vec![], places).unwrap();
    let more = vec![place(1, 3, 1)];
    assert_eq!(assign(&mut scene, vec![], more), Err(Refusal::StalePlan));
    done(&mut scene, 1, 1, 0).unwrap();
    done(&mut scene, 2, 1, 1).unwrap();
    scene.act(&node(3), Leave { node: id(3) }).unwrap();
    assert_eq!(stage(&scene, 1), Stage::Lost);
}

#[test]
fn jobs_survive_a_snapshot() {
    let mut scene = scene();
    let mut it = spec("a", 2);
    it.env.insert("LR".into(), "0.1".into());
    scene.act(&node(2), submit(1, it)).unwrap();
    assign(&mut scene, vec![], vec![place(1, 1, 3)]).unwrap();
    let bytes = scene.state.snapshot();
    let mut restored = State::blank(LEVEL);
    restored.restore(&bytes).unwrap();
    assert_eq!(restored, scene.state);
    assert_eq!(restored.live_jobs().count(), 1);
}

#[test]
fn a_party_has_a_bounded_number_of_jobs_and_old_ones_go() {
    let mut scene = scene();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..MAX_OVER + 5 {
        let id = JobId(std::array::from_fn(|_| random.u8(..)));
        let new = JobSubmit { job: id, party: party_id(1), spec: Box::new(spec("a", 1)) };
        scene.act(&node(2), new).unwrap();
        scene.act(&node(2), JobStop { job: id }).unwrap();
    }
    assert_eq!(scene.state.jobs().len(), MAX_OVER);
    let mut big = spec("a", 1);
    big.env.insert("A".into(), "x".repeat(12_000));
    let full = (0..).find(|_| {
        let id = JobId(std::array::from_fn(|_| random.u8(..)));
        let new = JobSubmit { job: id, party: party_id(1), spec: Box::new(big.clone()) };
        scene.act(&node(2), new) == Err(Refusal::TooManyJobs)
    });
    assert!(full.is_some());
    let weight = scene.state.snapshot().len() as u64;
    assert!(weight <= MAX_PARTY_BYTES + (1 << 20), "{weight}");
}

#[test]
fn a_description_with_a_flaw_is_refused() {
    let mut scene = scene();
    let mut bad = spec("a", 1);
    bad.groups.clear();
    assert_eq!(scene.act(&node(2), submit(1, bad)), Err(Refusal::BadJob));
}
