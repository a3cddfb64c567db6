use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::args::Args;

fn context() -> Context {
    let args = Args::try_parse_from(["mesh", "jobs"]).unwrap();
    Context::new(args.globals).unwrap()
}

fn job(more: Value) -> Job {
    let mut job = json!({
        "id": "1a2b3c4d".repeat(4), "name": "hello", "state": "running", "submitted_at": "2026-11-16T12:00:00Z",
        "tasks": [{ "number": 0, "node": "beta", "state": "running", "attempt": 1 }],
    });
    let (fields, more) = (job.as_object_mut().unwrap(), more.as_object().cloned().unwrap());
    fields.extend(more);
    serde_json::from_value(job).unwrap()
}

fn tasks(states: &[(&str, Option<&str>)]) -> Value {
    let mut tasks = Vec::new();
    for (number, (state, node)) in states.iter().enumerate() {
        tasks.push(json!({ "number": number, "state": state, "node": node, "attempt": 1 }));
    }
    Value::Array(tasks)
}

#[test]
fn a_job_is_told_in_a_few_words_while_it_goes_on() {
    let again = json!([{ "number": 0, "node": "beta", "state": "running", "attempt": 2 }]);
    let four = [("running", Some("a")), ("running", Some("b")), ("placed", Some("c"))];
    let many = [("running", Some("a")), ("running", Some("b")), ("x", Some("c")), ("x", Some("d"))];
    for (more, said) in [
        (json!({}), "running on beta"),
        (json!({ "tasks": again }), "running on beta (attempt 2)"),
        (json!({ "state": "waiting", "tasks": tasks(&[("waiting", None)]) }), ""),
        (json!({ "state": "waiting", "reason": "after 7f\u{1b}[2J" }), "waiting: after 7f[2J"),
        (json!({ "state": "placed" }), "placed on beta"),
        (json!({ "state": "fetching" }), "fetching on beta"),
        (
            json!({ "state": "stopping", "reason": "somebody stopped it" }),
            "stopping: somebody stopped it",
        ),
        (json!({ "tasks": tasks(&four) }), "running: 3 tasks on a, b, c"),
        (json!({ "tasks": tasks(&many) }), "running: 4 tasks on 4 nodes"),
        (json!({ "state": "placed", "tasks": [] }), "placed"),
    ] {
        assert_eq!(words::progress(&job(more.clone())), said, "{more}");
    }
}

#[test]
fn a_job_that_is_done_says_where_for_how_long_and_what_it_made() {
    let done = job(json!({
        "state": "done", "started_at": "2026-11-16T12:00:00.25Z", "ended_at": "2026-11-16T12:00:02Z",
        "outputs": [
            { "task": 0, "name": "model", "version": "ab".repeat(16), "ref": "model@3" },
            { "task": 0, "name": "notes", "version": "cd".repeat(16), "ref": null },
        ],
    }));
    assert_eq!(words::done(&done), "hello (1a2b3c4d) is done: exit code 0 on beta in 2s");
    assert_eq!(words::outputs(&done), ["model is model@3", "notes is version cdcdcdcd"]);
    assert_eq!(words::failure(&context(), &done), None);
    let sweep = job(json!({
        "state": "done", "started_at": "2026-11-16T12:00:30Z", "ended_at": "2026-11-16T12:01:30Z",
        "tasks": tasks(&[("done", Some("a")), ("done", Some("b"))]),
        "outputs": [{ "task": 1, "name": "model", "version": "", "ref": "model@4" }],
    }));
    assert_eq!(words::done(&sweep), "hello (1a2b3c4d) is done: 2 tasks on a, b in 1m, after 30s");
    assert_eq!(words::outputs(&sweep), ["model of task 1 is model@4"]);
}

#[test]
fn a_job_that_is_not_done_says_why_and_what_to_do() {
    let failed = json!({
        "state": "failed", "reason": "exit code 7",
        "tasks": [{ "number": 0, "node": "beta", "state": "failed", "exit_code": 7,
                    "started_at": "2026-11-16T12:00:00Z", "ended_at": "2026-11-16T12:00:12Z" }],
    });
    let report = words::failure(&context(), &job(failed)).unwrap();
    assert_eq!((report.code, report.message.as_str()), (Code::Failed, "hello (1a2b3c4d) failed"));
    assert_eq!(report.cause, "exit code 7, on beta, after 12s");
    assert_eq!(
        report.hint,
        "mesh logs 1a2b3c4d shows what it printed; mesh job retry 1a2b3c4d runs it again"
    );
    let gang = json!({
        "state": "failed", "reason": "task 1: killed: memory",
        "tasks": tasks(&[("stopped", Some("a")), ("failed", Some("b")), ("stopped", Some("c"))]),
    });
    let report = words::failure(&context(), &job(gang)).unwrap();
    assert_eq!(report.cause, "task 1: killed: memory, on b");
    assert!(report.hint.starts_with("mesh logs 1a2b3c4d --task 1 shows"), "{}", report.hint);
    for (state, message) in
        [("stopped", "hello (1a2b3c4d) was stopped"), ("lost", "hello (1a2b3c4d) is lost")]
    {
        let report = words::failure(&context(), &job(json!({ "state": state, "tasks": [] })));
        let report = report.unwrap();
        assert_eq!(
            (report.message.as_str(), report.cause.as_str()),
            (message, "no reason is known")
        );
        assert_eq!(report.hint, "mesh job retry 1a2b3c4d runs it again");
    }
}

#[test]
fn a_job_that_is_waited_for_in_vain_says_how_it_goes_and_that_it_goes_on() {
    let late = words::late(&context(), &job(json!({})), "5m");
    assert_eq!((late.code, late.cause.as_str()), (Code::Timeout, "running on beta"));
    assert!(late.hint.contains("goes on") && late.hint.contains("mesh stop 1a2b3c4d"));
}

#[test]
fn a_log_that_is_asked_for_again_begins_with_the_line_that_was_shown_first() {
    let wish = LogWish { follow: true, task: Some(3), ..LogWish::default() };
    assert_eq!(wish.path("ab", None), "/v1/jobs/ab/logs?task=3&follow=true");
    assert_eq!(wish.path("ab", Some(7)), "/v1/jobs/ab/logs?task=3&follow=true");
    let wish = LogWish { attempt: Some(2), ..LogWish::default() };
    assert_eq!(wish.path("ab", None), "/v1/jobs/ab/logs?attempt=2");
    let wish = LogWish { lines: Some(10), ..LogWish::default() };
    assert_eq!(wish.path("ab", None), "/v1/jobs/ab/logs?lines=10");
    assert_eq!(wish.path("ab", Some(7)), "/v1/jobs/ab/logs?since_ms=7");
    let wish = LogWish { since_ms: Some(9), lines: Some(10), ..wish };
    assert_eq!(wish.path("ab", Some(7)), "/v1/jobs/ab/logs?since_ms=9");
    assert_eq!(LogWish::default().path("ab", None), "/v1/jobs/ab/logs");
}
