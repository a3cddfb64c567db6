//! Nodes that are killed while they coordinate, lead or train, and come back.

use std::fs;
use std::path::PathBuf;

use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::ground::{PATIENCE, long, up};
use mesh_chaos_tests::hosts::until;
use serde_json::Value;

use crate::{Field, MODULES, PARTIES, Script, count, has_python, is_whole, last_round};

const ROUNDS: u64 = 8;
/// From this round on workers wait until they are told to go on.
const HELD: u64 = 7;
/// In the long run.
const TRIALS: usize = 200;

/// Who is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// Whoever holds the lease of the training.
    Coordinator,
    /// Whoever leads the mesh.
    Leader,
    /// Somebody who is neither.
    Participant,
}

const VICTIMS: [Victim; 3] = [Victim::Coordinator, Victim::Leader, Victim::Participant];

/// One kill.
#[derive(Debug)]
struct Trial {
    /// The job's name.
    name: String,
    victim: Victim,
    /// After this round.
    after: u64,
    /// All that runs on the host, and not the node alone.
    whole: bool,
}

/// The host of the victim, by now.
fn find(field: &Field, id: &str, victim: Victim) -> usize {
    let lead = || until(SETTLE, || field.leader()).expect("somebody leads");
    let coordinator = || {
        let course =
            field.until_course(0, id, "coordinated", |course| field.coordinator(course).is_some());
        field.coordinator(&course).unwrap()
    };
    match victim {
        Victim::Coordinator => coordinator(),
        Victim::Leader => lead(),
        Victim::Participant => {
            let others = [coordinator(), lead()];
            (0..PARTIES.len()).find(|host| !others.contains(host)).unwrap()
        }
    }
}

/// Whether the pieces of a job's model are on some node but this one.
fn is_held_without(field: &Field, id: &str, but: usize) -> bool {
    let hosts = field.hosts.iter().enumerate().filter(|(number, _)| *number != but);
    let pieces = |dir: PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with("new-")).count()
    };
    // Names and shapes, and the values.
    hosts.map(|(_, host)| pieces(host.data().join("training").join(id))).any(|count| count >= 2)
}

/// Lets a task go on that is held, whichever attempt it is at.
fn lets_on(field: &Field, job: &Value, task: usize) {
    if job["tasks"][task]["state"] == "running" {
        // It may have ended since.
        let _ = fs::write(field.home(job, task).join("on"), "");
    }
}

/// The node of a victim is killed and comes back: the others go on without it, it takes part again, and every round counts once.
fn survives(field: &mut Field, trial: &Trial) {
    println!("{trial:?}");
    let Trial { name, victim, after, whole } = trial;
    let job = Script {
        name: name.as_str(),
        rounds: ROUNDS,
        params: &format!("nap = 0.1\nhold = {HELD}"),
        more: &format!("min_parties = 2\ndeadline = \"2s\"\naggregators = {PARTIES:?}"),
    };
    let job = job.toml();
    let id = field.submit(0, &job);
    field.begin(0, &id, &[0, 1, 2]);
    field.until_course(0, &id, "far enough", |course| last_round(course) >= *after);
    let who = find(field, &id, *victim);
    let ask = (who + 1) % PARTIES.len();
    if *whole {
        field.hosts[who].kill().unwrap();
    } else {
        field.hosts[who].kill_node().unwrap();
    }
    let course = field.until_course(ask, &id, "known", |_| true);
    let before = last_round(&course);
    assert!(is_held_without(field, &id, who), "the model was on n{who} alone: {course}");

    // One more may have been committed by it, and not be known here yet; the next one is the others'.
    let next = (before + 2).min(HELD - 1);
    let course = field.until_course(ask, &id, "further", |course| last_round(course) >= next);
    if before + 2 < HELD {
        assert_ne!(field.coordinator(&course), Some(who), "it is dead: {course}");
    }
    up(&mut field.hosts[who]);
    let field: &Field = field;
    field.until_course(ask, &id, "held", |course| last_round(course) >= HELD - 1);

    // It goes on first, so that the others do not end without it.
    let file = format!("sent-{HELD}");
    let sent = until(PATIENCE, || {
        let job = field.job(ask, &id)?;
        lets_on(field, &job, who);
        let running = job["tasks"][who]["state"] == "running";
        (running && field.home(&job, who).join(&file).exists()).then_some(())
    });
    assert!(sent.is_some(), "n{who} trains no more: {:?}", field.job(ask, &id));
    let held = field.course(ask, &id).unwrap();
    let over = until(PATIENCE, || {
        let job = field.job(ask, &id)?;
        (0..PARTIES.len()).for_each(|task| lets_on(field, &job, task));
        (job["is_final"] == true).then_some(job)
    });
    let over = over.unwrap_or_else(|| panic!("it never ends: {:?}", field.course(ask, &id)));
    assert_eq!(over["state"], "done", "{over}");

    let course = field.course(ask, &id).unwrap();
    is_whole(&course, ROUNDS);
    let taken = |course: &Value| count(course, PARTIES[who], "taken");
    assert!(taken(&course) > taken(&held), "what n{who} made since counts: {course}");
    // Each round adds one to every value, less if somebody was late, and never more: nothing is added twice.
    let most = ROUNDS as f32 + 1.0;
    let model = field.model(name);
    assert!(!model.is_empty(), "{course}");
    assert!(model.iter().all(|value| (1.5..=most + 0.001).contains(value)), "{model:?}");
    field.settle().unwrap();
}

#[test]
fn training_outlives_its_coordinator_the_leader_and_any_participant() {
    if !has_python(MODULES) {
        return;
    }
    let mut field = Field::willing(Plan::loopback(1).short_waits());
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..if long() { TRIALS } else { VICTIMS.len() } {
        let (victim, after) = match long() {
            true => (VICTIMS[random.usize(..VICTIMS.len())], random.u64(..HELD - 2)),
            false => (VICTIMS[number % VICTIMS.len()], 2),
        };
        let whole = random.bool();
        survives(&mut field, &Trial { name: format!("trial-{number}"), victim, after, whole });
    }
    field.calm();
}
