//! One party does not want to, lies, sleeps or is slow. The others are not held up by it, and everybody is told.

use std::fs;
use std::time::Duration;

use mesh_chaos_tests::hosts::fleet::Plan;
use mesh_chaos_tests::hosts::ground::{PATIENCE, submitted, text};
use mesh_chaos_tests::hosts::{leftovers, until};
use mesh_node::clock::steady;
use serde_json::Value;

use crate::{
    Field, MODULES, ODD, PARTIES, Script, count, has_python, is_whole, last_round, participant,
    rounds_of,
};

/// What `worker.py` ends with if its node refuses an update.
const REFUSED: &str = "exit code 3";

/// A round of the others, if nobody is missing.
const QUORUM: &str = "min_parties = 2";

/// What the odd party is told to do.
fn params(how: &str) -> String {
    format!("odd = \"{}\"\nhow = \"{how}\"", PARTIES[ODD])
}

/// The reason of a job says this of the odd party.
fn says(job: &Value, what: &str) -> bool {
    job["reason"]
        .as_str()
        .is_some_and(|reason| reason.contains(PARTIES[ODD]) && reason.contains(what))
}

/// Every value of a model to which each round added one.
fn is_exact(field: &Field, name: &str, rounds: u64) {
    let model = field.model(name);
    assert!(!model.is_empty());
    assert!(model.iter().all(|value| *value == rounds as f32 + 1.0), "{model:?}");
}

/// A node takes part only if its own party says so. Whoever submits is told.
fn does_not_want_to(field: &Field) {
    let rounds = 3;
    let params = format!("hold = {rounds}");
    let job = Script { name: "unwilling", rounds, params: &params, more: QUORUM };
    let file = field.file(0, &job.toml());
    let said = field.mesh(0, &["submit", text(&file), "-d", "--json"]);
    let help = format!("trains={}", PARTIES[0]);
    if !said.ok() {
        assert!(said.stdout.contains(&help), "{said:?}");
        return;
    }
    let id = submitted(&said);
    field.begin(0, &id, &[0, 1]);
    field.until_course(0, &id, "held", |course| last_round(course) >= rounds - 1);
    let said = field.mesh(0, &["explain", &id, "--json"]);
    assert!(said.ok() && said.stdout.contains(&help), "{said:?}");
    let held = field.job(0, &id).unwrap();
    assert_eq!(held["tasks"][ODD]["attempt"], 0, "{held}");
    for task in [0, 1] {
        fs::write(field.home(&held, task).join("on"), "").unwrap();
    }
    let (job, course) = field.trained(0, &id);
    is_whole(&course, rounds);
    assert!(says(&job, "left out"), "{job}");
    assert!(
        (0..PARTIES.len()).filter(|n| *n != ODD).all(|n| count(&course, PARTIES[n], "taken") > 0)
    );
    is_exact(field, "unwilling", rounds);
}

/// What is no update never reaches the model, and its author is named.
fn lies(field: &Field, how: &str) {
    let rounds = 4;
    let more = format!("{QUORUM}\ndeadline = \"2s\"\n[retry]\nattempts = 1");
    let job = Script { name: how, rounds, params: &params(how), more: &more };
    let id = field.submit(0, &job.toml());
    field.begin(0, &id, &[0, 1, 2]);
    let (job, course) = field.trained(0, &id);
    is_whole(&course, rounds);
    let odd = participant(&course, PARTIES[ODD]);
    // It may have made the first model, which everybody begins with.
    assert!(count(&course, PARTIES[ODD], "taken") <= 1, "{odd}");
    match how {
        // One value alone says nothing of it: that is for whoever sums to see.
        "huge" => {
            assert!(count(&course, PARTIES[ODD], "refused") > 0, "{odd}");
            assert!(odd["why"].as_str().is_some_and(|why| why.contains("norm")), "{odd}");
            assert!(says(&job, "refused"), "{job}");
        }
        // Its own node tells its worker, which gives up.
        _ => assert!(says(&job, REFUSED) || says(&job, "refused"), "{job} {odd}"),
    }
    is_exact(field, how, rounds);
}

/// Whoever never answers is waited for a few times, and then no more.
fn sleeps(field: &Field) {
    // If it cost its deadline in every round, that would be a minute.
    let (rounds, limit) = (20, Duration::from_secs(45));
    let more = format!("{QUORUM}\ndeadline = \"3s\"");
    let job = Script { name: "asleep", rounds, params: &params("silent"), more: &more };
    let id = field.submit(0, &job.toml());
    field.begin(0, &id, &[0, 1, 2]);
    let begun = steady();
    let (job, course) = field.trained(0, &id);
    let took = begun.elapsed();
    assert!(took < limit, "{took:?}: {course}");
    is_whole(&course, rounds);
    let odd = participant(&course, PARTIES[ODD]);
    // It may have made the first model, which everybody begins with.
    assert!(count(&course, PARTIES[ODD], "taken") <= 1, "{odd}");
    assert!(count(&course, PARTIES[ODD], "missed") > 0, "{odd}");
    assert_eq!(odd["standing"], "dropped", "{odd}");
    assert!(says(&job, "missed") || says(&job, "dropped"), "{job}");
    is_exact(field, "asleep", rounds);
}

/// What comes late counts, for less.
fn is_slow(field: &Field) {
    let rounds = 10;
    let params = params("slow") + "\nnap = 0.5";
    let more = format!("{QUORUM}\ndeadline = \"2s\"");
    let job = Script { name: "slow", rounds, params: &params, more: &more };
    let id = field.submit(0, &job.toml());
    field.begin(0, &id, &[0, 1, 2]);
    let (_, course) = field.trained(0, &id);
    is_whole(&course, rounds);
    let odd = participant(&course, PARTIES[ODD]);
    assert!(count(&course, PARTIES[ODD], "missed") > 0, "{odd}");
    assert!(count(&course, PARTIES[ODD], "late") > 0, "{odd}");
    assert!(count(&course, PARTIES[ODD], "taken") >= count(&course, PARTIES[ODD], "late"), "{odd}");
    // Less than one whole step was added in a round with a late one.
    let (model, most) = (field.model("slow"), rounds as f32 + 1.0);
    assert!(model.iter().all(|value| (2.0..most).contains(value)), "{model:?}");
}

/// Somebody stops a training: nothing of it goes on.
fn is_stopped(field: &Field) {
    let job = Script { name: "endless", rounds: 100_000, params: "nap = 0.1", more: QUORUM };
    let id = field.submit(0, &job.toml());
    field.begin(0, &id, &[0, 1, 2]);
    field.until_course(0, &id, "under way", |course| last_round(course) >= 2);
    let said = field.mesh(0, &["stop", &id, "--wait"]);
    assert!(said.ok(), "{said:?}");
    for host in 0..PARTIES.len() {
        field.until_state(host, &id, "stopped");
    }
    let course = field.course(0, &id).unwrap();
    assert!(course["verdict"].is_null(), "{course}");
    let mark = format!("MESH_JOB={id}");
    let gone = until(PATIENCE, || leftovers::processes(&mark).is_empty().then_some(()));
    assert!(gone.is_some(), "{:?} still run", leftovers::processes(&mark));
    let later = field.course(0, &id).unwrap();
    assert_eq!(rounds_of(&later), rounds_of(&course), "rounds go on");
}

#[test]
fn whoever_does_not_want_to_lies_or_sleeps_holds_nobody_up() {
    if !has_python(MODULES) {
        return;
    }
    let field = Field::new(Plan::loopback(1));
    field.agrees(1);
    does_not_want_to(&field);
    field.agrees(ODD);
    ["nan", "shape", "huge"].into_iter().for_each(|how| lies(&field, how));
    sleeps(&field);
    is_slow(&field);
    is_stopped(&field);
    field.calm();
}
