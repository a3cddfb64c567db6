//! Three parties train one model, with several strategies and within a budget. Their data stays where it is.

use std::fs;
use std::path::Path;

use mesh_chaos_tests::hosts::fleet::Plan;
use mesh_chaos_tests::hosts::ground::{aside, text};
use mesh_node::training::privacy::{Spend, rounds_within};
use serde_json::Value;

use crate::{Field, PARTIES, count, is_whole, last_round, participant, rounds_of, write_images};

/// Images of each party.
const IMAGES: usize = 300;
const SIDE: usize = 8;
/// What stands in the data of one party and nowhere else. Half an image.
const MARK_BYTES: usize = 32;

/// The budget of a training that cannot do all of its rounds.
const EPSILON: f64 = 8.0;
const DELTA: f64 = 0.001;
const NOISE: f64 = 1.0;

/// A job of the built-in trainer, with more in its `[federated]`, and sections after it.
fn mlp(name: &str, rounds: u64, more: &str) -> String {
    format!(
        r#"
name = "{name}"
kind = "federated"
[run]
trainer = "mlp"
[params]
hidden = 32
epochs = 2
[data]
train = "each/digits"
[resources]
cpus = 1
memory = "256MiB"
[federated]
parties = {PARTIES:?}
rounds = {rounds}
{more}
"#
    )
}

/// What the last round says that the model was worth.
fn accuracy(course: &Value) -> f64 {
    let last = course["curve"].as_array().unwrap().last().unwrap();
    last["metrics"]["accuracy"].as_f64().unwrap_or_else(|| panic!("nobody measured: {course}"))
}

/// Whether some bytes stand in a file at or below a directory.
fn stands_below(dir: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(dir).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => stands_below(&path, bytes),
            // A file may go while we look.
            Ok(kind) if kind.is_file() => {
                let body = fs::read(&path).unwrap_or_default();
                body.windows(bytes.len()).any(|part| part[0] == bytes[0] && part == bytes)
            }
            _ => false,
        }
    })
}

/// Every party has images of its own; what marks each of them.
fn give_data(field: &Field) -> Vec<[u8; MARK_BYTES]> {
    let give = |host: usize| {
        // Not by chance in anything else.
        let mark: [u8; MARK_BYTES] = std::array::from_fn(|_| fastrand::u8(..));
        let dir = aside(&field.hosts[host], "digits");
        write_images(&dir, "train", SIDE, IMAGES, &mark);
        field.push(host, &dir, "digits");
        mark
    };
    (0..PARTIES.len()).map(give).collect()
}

/// A person submits, watches, and has a model.
fn ends_with_a_model(field: &Field) {
    let rounds = 5;
    let said = field.follow(0, &mlp("first", rounds, "min_parties = 3"));
    assert!(said.ok(), "{said:?}");
    let id = field.job(0, "first").unwrap()["id"].as_str().unwrap().to_owned();
    let (job, course) = field.trained(0, &id);
    assert!(job["reason"].is_null(), "everybody took part to the end: {job}");
    is_whole(&course, rounds);
    assert!(accuracy(&course) > 0.9, "{course}");
    for party in PARTIES {
        let one = participant(&course, party);
        assert!(count(&course, party, "taken") >= rounds, "{one}");
        assert_eq!(count(&course, party, "refused"), 0, "{one}");
        assert!(count(&course, party, "examples") > 0, "{one}");
        assert!(one["share"].as_f64().is_some_and(|share| share > 0.2), "{one}");
    }
    // Every party sees it in the same way.
    for host in 1..PARTIES.len() {
        let seen = field.until_course(host, &id, "over", |course| !course["verdict"].is_null());
        assert_eq!(rounds_of(&seen), rounds_of(&course), "as n{host} sees it");
    }

    let listed = field.mesh(0, &["model", "ls"]);
    assert!(listed.ok() && listed.stdout.contains("first"), "{listed:?}");
    let into = field.fresh(0, "model");
    let pulled = field.mesh(0, &["model", "pull", "first", text(&into)]);
    assert!(pulled.ok(), "{pulled:?}");
    let model = crate::weights(&into);
    assert!(!model.is_empty() && model.iter().all(|value| value.is_finite()));
    let shown = field.data(0, &["show", "first"]);
    assert_eq!(shown["lineage"]["job"], id.as_str(), "{shown}");
    assert_eq!(shown["party"], PARTIES[0], "{shown}");

    let table = field.mesh(0, &["stragglers", &id]);
    assert!(table.ok(), "{table:?}");
    assert!(PARTIES.iter().all(|party| table.stdout.contains(*party)), "{table:?}");
    let plot = field.mesh(0, &["plot", &id]);
    assert!(plot.ok() && plot.stdout.contains("accuracy"), "{plot:?}");
}

/// What marks the data of a party stands on its own node, and on no other.
fn stays(field: &Field, marks: &[[u8; MARK_BYTES]]) {
    for (owner, mark) in marks.iter().enumerate() {
        for (host, at) in field.hosts.iter().enumerate() {
            let is_there = stands_below(&at.data(), mark);
            assert_eq!(is_there, host == owner, "the data of n{owner}, looked for at n{host}");
        }
    }
}

/// A strategy runs to its end.
fn runs_with(field: &Field, strategy: &str) {
    let rounds = 3;
    let more = format!("strategy = \"{strategy}\"\nmin_parties = 3");
    let id = field.submit(0, &mlp(strategy, rounds, &more));
    let (_, course) = field.trained(0, &id);
    is_whole(&course, rounds);
    assert!((0.0..=1.0).contains(&accuracy(&course)), "{course}");
    assert!(!field.model(strategy).is_empty());
}

/// A training whose budget is too small for all rounds ends before, with what it has.
fn stops_when_the_budget_is_spent(field: &Field) {
    let allowed = u64::from(rounds_within(EPSILON, DELTA, NOISE, 1.0, &Spend::none()));
    let rounds = allowed + 5;
    let more = format!(
        "min_parties = 3\n[privacy]\nepsilon = {EPSILON}\ndelta = {DELTA}\nnoise = {NOISE:.1}\nclip = 1.0"
    );
    let id = field.submit(0, &mlp("private", rounds, &more));
    let (job, course) = field.trained(0, &id);
    assert_eq!(course["verdict"]["state"], "spent", "{course}");
    assert!(job["reason"].as_str().is_some_and(|why| why.contains("budget")), "{job}");
    assert!((1..=allowed).contains(&last_round(&course)), "{allowed} are allowed: {course}");
    for party in PARTIES {
        let one = participant(&course, party);
        let charged = one["charged"].as_u64().unwrap_or(last_round(&course));
        assert!((last_round(&course)..=allowed).contains(&charged), "{allowed}: {one}");
    }
    assert!(field.model("private").iter().all(|value| value.is_finite()));
    // The data is the same, and what was spent of it stays spent: nothing is trained on it any more.
    let id = field.submit(0, &mlp("again", rounds, &more));
    let (_, course) = field.trained(0, &id);
    assert_eq!(course["verdict"]["state"], "spent", "{course}");
    assert_eq!(last_round(&course), 0, "{course}");
}

#[test]
fn three_parties_train_one_model_and_their_data_stays_where_it_is() {
    let field = Field::willing(Plan::loopback(1));
    let marks = give_data(&field);
    ends_with_a_model(&field);
    runs_with(&field, "fedbuff");
    runs_with(&field, "median");
    stops_when_the_budget_is_spent(&field);
    stays(&field, &marks);
    field.calm();
}
