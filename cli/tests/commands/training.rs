//! What people see of a training, against a server that plays a node's answers.

use super::*;

fn id() -> String {
    "1a2b3c4d".repeat(4)
}

fn participant(party: &str, standing: &str, compute_ms: u64, share: f64) -> Value {
    json!({
        "party": party, "task": 0, "node": "alpha", "state": "running", "standing": standing, "why": null,
        "taken": 2, "late": 0, "refused": 0, "missed": 0, "missed_in_a_row": 0, "examples": 200, "share": share,
        "tier": null, "fetch_ms": 100, "compute_ms": compute_ms, "upload_ms": 100, "charged_rounds": 0,
    })
}

/// Two rounds of two, after which the model is a version.
fn course() -> Value {
    let point = |round: u64, accuracy: f64| json!({ "round": round, "at": "2026-11-16T12:00:01Z", "metrics": { "accuracy": accuracy } });
    json!({
        "id": id(), "name": "mnist", "state": "done", "is_final": true, "reason": null, "coordinator": "alpha",
        "round": 2, "rounds": 2, "min_parties": 2, "model": { "round": 2, "bytes": 1000, "holders": ["alpha"] },
        "open": null, "budget": null,
        "participants": [participant("lab", "good", 800, 0.5), participant("clinic", "slow", 9800, 0.5)],
        "curve": [
            { "round": 0, "at": "2026-11-16T12:00:00Z", "metrics": {} }, point(1, 0.5), point(2, 0.925),
        ],
        "verdict": { "state": "done", "model": "mnist@1", "version": "ab".repeat(16), "why": null },
    })
}

fn job(state: &str, round: Value) -> Value {
    let task = |n: u64| json!({ "number": n, "group": "lab", "index": 0, "node": "alpha", "attempt": 1, "state": state });
    json!({
        "id": id(), "name": "mnist", "kind": "federated", "class": "trial", "state": state,
        "is_final": state == "done", "reason": null, "party": "lab", "user": "ada",
        "submitted_at": "2026-11-16T12:00:00Z", "started_at": "2026-11-16T12:00:00.25Z",
        "ended_at": null, "round": round, "rounds": 2, "gang": false, "outputs": [],
        "tasks": [task(0), task(1)],
    })
}

#[test]
fn a_training_is_told_round_by_round_and_ends_with_who_did_what() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let [watch, logs, how] =
        ["watch", "logs?follow=true", "course"].map(|end| format!("GET /v1/jobs/{}/{end}", id()));
    let states = [("running", json!(0)), ("running", json!(1)), ("done", json!(2))];
    let lines = states.map(|(state, round)| format!("{}\n", item(job(state, round))));
    let heard = node(
        &home,
        &[
            ("POST /v1/jobs", 200, item(job("waiting", Value::Null))),
            (watch.as_str(), 200, Value::String(lines.concat())),
            (logs.as_str(), 200, Value::String(String::new())),
            (how.as_str(), 200, item(course())),
        ],
    );
    let file = dir.path().join("job.toml");
    std::fs::write(&file, "name = \"mnist\"\nrun = \"true\"\n").unwrap();
    let output = mesh(&home, &format!("submit {}", file.display()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stderr);
    for part in [
        "round 0/2  the first model stands\n",
        "round 1/2  accuracy 0.5\n",
        "round 2/2  accuracy 0.925\n",
        "mnist (1a2b3c4d) is done: 2 tasks on alpha",
        "the model is mnist@1: round 2/2, accuracy 0.925\n",
        "contributed: lab 50 %, clinic 50 %\n",
        "clinic is slow: 10s a round, where 6s is usual\n",
        "next: mesh stragglers 1a2b3c4d; mesh plot 1a2b3c4d; mesh model pull mnist@1\n",
    ] {
        assert_eq!(said.matches(part).count(), 1, "{part:?} is not once in {said}");
    }
    assert!(heard.lock().unwrap().iter().any(|asked| asked.what == how));
    // For scripts it is the job as it changes, and nothing beside it.
    let output = mesh(&home, &format!("submit {} --json", file.display()));
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn stragglers_are_a_table_and_a_timeline_for_people_and_the_answer_for_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let error =
        json!({ "code": "refused", "message": "hello trains nothing", "cause": "c", "try": "t" });
    node(
        dir.path(),
        &[
            ("GET /v1/jobs/mnist/course", 200, item(course())),
            ("GET /v1/jobs/hello/course", 409, json!({ "schema": 1, "error": error })),
        ],
    );
    let output = mesh(dir.path(), "stragglers mnist");
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.starts_with("mnist (1a2b3c4d) is done: round 2/2\n\nPARTY"), "{said}");
    assert!(said.contains("clinic  alpha  slow") && said.contains("upload\n"), "{said}");
    assert!(said.ends_with("clinic is slow: 10s a round, where 6s is usual\n"), "{said}");
    assert_eq!(json_of(&mesh(dir.path(), "stragglers mnist --json")), item(course()));
    for line in ["stragglers hello", "plot hello", "stragglers nobody"] {
        assert_eq!(mesh(dir.path(), line).status.code(), Some(1), "{line}");
    }
}

#[test]
fn a_plot_is_a_picture_for_people_and_points_for_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = course();
    (other["id"], other["name"]) = (json!("77b0".repeat(8)), json!("other"));
    node(
        dir.path(),
        &[
            ("GET /v1/jobs/mnist/course", 200, item(course())),
            ("GET /v1/jobs/other/course", 200, item(other)),
        ],
    );
    let output = mesh(dir.path(), "plot mnist other mnist");
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.starts_with("accuracy\n0.925 "), "{said}");
    assert!(said.ends_with(
        "\n* mnist (1a2b3c4d)  0.925 at round 2\no other (77b077b0)  0.925 at round 2\n"
    ));
    let answer = json_of(&mesh(dir.path(), "plot mnist --metric accuracy --json"));
    assert_eq!((&answer["schema"], &answer["index"]), (&json!(1), &json!(7)));
    let points = answer["items"][0]["points"].as_array().unwrap();
    assert_eq!(
        (points.len(), &points[1]["value"], &points[1]["round"]),
        (2, &json!(0.925), &json!(2))
    );
    let wrong = mesh(dir.path(), "plot mnist --metric loss");
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(text(&wrong.stderr).contains("try:   --metric accuracy\n"), "{wrong:?}");
    assert_eq!(mesh(dir.path(), "plot").status.code(), Some(2));
}

#[test]
fn models_are_listed_shown_and_pulled() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = json!({
        "id": "ab".repeat(16), "name": "mnist", "version": 1, "manifest": "cd".repeat(32), "party": "lab",
        "visibility": "open", "bytes": 1000, "files": 2, "copies": 3, "copies_wanted": 3,
        "created_at": "2026-11-16T12:00:02Z", "author": "alpha", "tags": [], "mine": true, "here": "whole",
        "job": id(), "job_name": "mnist", "round": 2, "metrics": { "accuracy": 0.925 },
    });
    let listed = items(json!([model]));
    model["lineage"] = json!({ "job": id(), "inputs": [] });
    let how = format!("GET /v1/jobs/{}/course", id());
    let end = json!({ "schema": 1, "kind": "done", "item": model });
    let heard = node(
        dir.path(),
        &[
            ("GET /v1/models", 200, listed.clone()),
            ("GET /v1/models?all=true", 200, items(json!([]))),
            ("GET /v1/data/show?ref=mnist", 200, item(model)),
            (how.as_str(), 200, item(course())),
            ("POST /v1/data/pull", 200, Value::String(format!("{end}\n"))),
        ],
    );
    let output = mesh(dir.path(), "model ls");
    assert!(text(&output.stdout).contains("mnist        1      2  accuracy 0.925"), "{output:?}");
    assert_eq!(json_of(&mesh(dir.path(), "model ls --json")), listed);
    let none = mesh(dir.path(), "model ls --all");
    assert!(none.status.success() && text(&none.stderr).contains("job new federated"), "{none:?}");
    let output = mesh(dir.path(), "model show mnist");
    let said = text(&output.stdout);
    assert!(
        said.contains("mnist@1\n") && said.contains("\ntrained by   mnist (1a2b3c4d)\n"),
        "{said}"
    );
    assert!(said.contains("clinic on alpha: slow, 50 % of the examples, 10s a round\n"), "{said}");
    let answer = json_of(&mesh(dir.path(), "model show mnist --json"));
    assert_eq!(answer["item"]["course"], course());
    assert_eq!((&answer["item"]["name"], &answer["index"]), (&json!("mnist"), &json!(7)));
    let output = mesh(dir.path(), "model pull mnist@1 /scratch/m");
    assert!(text(&output.stdout).starts_with("mnist@1 is in /scratch/m: 2 files"), "{output:?}");
    let heard = heard.lock().unwrap();
    let asked = heard.iter().find(|asked| asked.what == "POST /v1/data/pull").unwrap();
    assert_eq!(asked.body["ref"], "mnist@1");
}
