//! `mesh submit` and the other commands about jobs, against a server that plays a node's answers.

#![expect(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

use std::path::PathBuf;
use std::time::Duration;

use super::canned::{Heard, Reply, play};
use super::*;

const HELLO: &str = "name = \"hello\"\nrun = \"echo from-the-job\"\n";

fn id() -> String {
    "1a2b3c4d".repeat(4)
}

/// A job with one task.
fn job(state: &str, more: Value) -> Value {
    let is_final = matches!(state, "done" | "failed" | "stopped" | "lost");
    let mut job = json!({
        "id": id(), "name": "hello", "kind": "batch", "class": "trial", "priority": 50, "state": state,
        "is_final": is_final, "reason": null, "party": "lab", "user": "ada", "submitted_at": "2026-11-16T12:00:00Z",
        "started_at": null, "ended_at": null, "round": null, "rounds": null, "gang": false, "outputs": [],
        "tasks": [{ "id": "1a2b3c4d.0", "number": 0, "group": "worker", "index": 0, "node": "beta", "attempt": 1,
                    "fence": 7, "state": state, "exit_code": null, "reason": null }],
    });
    let more = more.as_object().cloned().expect("an object");
    job.as_object_mut().expect("an object").extend(more);
    job
}

fn waiting() -> Value {
    let task =
        json!({ "number": 0, "group": "worker", "index": 0, "node": null, "state": "waiting" });
    job("waiting", json!({ "tasks": [task] }))
}

fn done() -> Value {
    job(
        "done",
        json!({
            "started_at": "2026-11-16T12:00:00.25Z", "ended_at": "2026-11-16T12:00:02Z",
            "outputs": [{ "task": 0, "name": "model", "version": "ab".repeat(16), "ref": "model@3" }],
        }),
    )
}

fn failed() -> Value {
    job("failed", json!({ "reason": "exit code 7" }))
}

/// Each on a line of its own, as a stream has them.
fn stream(lines: &[Value]) -> Value {
    Value::String(lines.iter().map(|line| format!("{line}\n")).collect())
}

/// The job again and again, as it is watched.
fn watched(jobs: &[Value]) -> Value {
    stream(&jobs.iter().cloned().map(item).collect::<Vec<_>>())
}

fn line(second: u32, stream: &str, text: &str, whole: bool) -> Value {
    json!({
        "schema": 1, "kind": "line", "task": 0, "fence": 7, "node": "beta", "stream": stream, "text": text,
        "time": format!("2026-11-16T12:00:{second:02}Z"), "whole": whole,
    })
}

/// What `mesh submit` asks, in this order.
fn asks() -> [String; 3] {
    let base = format!("GET /v1/jobs/{}", id());
    ["POST /v1/jobs".into(), format!("{base}/watch"), format!("{base}/logs?follow=true")]
}

/// A node that takes one job, of which this becomes that.
fn taker(dir: &Path, jobs: &[Value], lines: &[Value]) -> Heard {
    let [submit, watch, logs] = asks();
    let answers = [
        (submit.as_str(), 200, item(waiting())),
        (watch.as_str(), 200, watched(jobs)),
        (logs.as_str(), 200, stream(lines)),
    ];
    node(dir, &answers)
}

fn written(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn lines_of(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_job_is_followed_to_its_end_and_its_output_goes_where_it_printed_it() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = [waiting(), job("placed", json!({})), job("running", json!({})), done()];
    let lines = [
        line(1, "out", "from-the-job", true),
        line(1, "err", "hm", true),
        line(1, "mesh", "a word of mesh's own", true),
        line(2, "out", "no end", false),
    ];
    let heard = taker(&dir.path().join("node"), &jobs, &lines);
    let file = written(dir.path(), "job.toml", HELLO);
    let output = mesh(&dir.path().join("node"), &format!("submit {}", file.display()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout), "from-the-job\nno end");
    let said = text(&output.stderr);
    for part in [
        "hello (1a2b3c4d) is submitted: 1 task\n",
        "placed on beta\n",
        "running on beta\n",
        "hm\n",
        "a word of mesh's own\n",
        "hello (1a2b3c4d) is done: exit code 0 on beta in 2s\n",
        "model is model@3\n",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let heard = heard.lock().unwrap();
    let body = &heard[0].body;
    assert_eq!((&body["file"], &body["set"]), (&json!(HELLO), &json!({})));
    assert_eq!(body["id"].as_str().map(str::len), Some(32), "{body}");
    assert_eq!(body.get("code_dir"), None, "{body}");
    assert!(body["user"].is_string(), "{body}");
}

#[test]
fn a_job_that_fails_exits_1_and_says_why_in_three_lines() {
    let states = [("failed", "failed"), ("stopped", "was stopped"), ("lost", "is lost")];
    for (state, message) in states {
        let dir = tempfile::tempdir().unwrap();
        let end = job(state, json!({ "reason": "exit code 7" }));
        let home = dir.path().join("node");
        taker(&home, std::slice::from_ref(&end), &[]);
        let file = written(dir.path(), "job.toml", HELLO);
        let output = mesh(&home, &format!("submit {}", file.display()));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(&format!("error: hello (1a2b3c4d) {message}\n")), "{said}");
        assert!(said.contains("cause: exit code 7, on beta\ntry:   mesh "), "{said}");
        let output = mesh(&home, &format!("submit {} --json", file.display()));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(lines_of(&output).last(), Some(&item(end)));
    }
}

#[test]
fn a_wrong_file_shows_the_line_and_no_node_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let heard = node(&home, &[]);
    let wrong = "name = \"typo\"\nrun = \"true\"\n[resorces]\ncpus = 1\n";
    let file = written(dir.path(), "c.toml", wrong);
    for command in ["submit", "plan"] {
        let output = mesh(&home, &format!("{command} {}", file.display()));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.starts_with("error: ") && said.contains("resorces"), "{said}");
        let place = format!("\n --> {}:3:2\n  |\n3 | [resorces]\n  |  ^^^^^^^^ ", file.display());
        assert!(said.contains(&place) && said.contains("resources"), "{said}");
        assert!(said.ends_with("\ntry:   mesh help job.toml explains every key\n"), "{said}");
        let error = json_of(&mesh(&home, &format!("{command} {} --json", file.display())));
        assert_eq!(error["error"]["code"], "failed");
        assert!(error["error"]["cause"].as_str().unwrap().contains('^'), "{error}");
    }
    let output = mesh(&home, &format!("submit {}", dir.path().join("absent").display()));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(text(&output.stderr).lines().count(), 3, "{output:?}");
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn what_a_node_finds_wrong_with_a_file_is_shown_by_its_name_here() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let cause = "there is no dataset `mnits`\n --> job.toml:4:9\n  |\n4 | train = \"mnits\"\n  |         ^^^^^^^";
    let error = json!({ "code": "failed", "message": "there is no dataset `mnits`", "cause": cause, "try": "t" });
    node(&home, &[("POST /v1/jobs", 400, json!({ "schema": 1, "error": error }))]);
    let file = written(dir.path(), "a.toml", &format!("{HELLO}[data]\ntrain = \"mnits\"\n"));
    let output = mesh(&home, &format!("submit {}", file.display()));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = cause.replace("job.toml", &file.display().to_string());
    assert_eq!(text(&output.stderr), format!("error: {shown}\ntry:   t\n"));
}

#[test]
fn a_job_that_no_node_can_run_exits_4() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let error = json!({ "code": "unplaceable", "message": "m", "cause": "c", "try": "t" });
    node(&home, &[("POST /v1/jobs", 409, json!({ "schema": 1, "error": error }))]);
    let huge = format!("{HELLO}[resources]\ncpus = 4000\n");
    let file = written(dir.path(), "d.toml", &huge);
    for more in ["", " -d", " --json"] {
        let output = mesh(&home, &format!("submit {}{more}", file.display()));
        assert_eq!(output.status.code(), Some(4), "{output:?}");
    }
}

#[test]
fn without_a_node_a_job_is_not_submitted() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), "job.toml", HELLO);
    for command in ["submit", "plan"] {
        let line = format!("{command} {}", file.display());
        let output = mesh(Path::new("/nonexistent/mesh"), &line);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
    }
}

#[test]
fn a_job_that_is_not_followed_is_its_id_alone() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let heard = taker(&home, &[], &[]);
    let params = "name = \"hello\"\nrun = \"echo {lr}\"\n[params]\nlr = 0.1\n";
    let file = written(dir.path(), "job.toml", params);
    let output = mesh(&home, &format!("submit -d {} --set lr=0.2", file.display()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), format!("{}\n", id()));
    assert!(text(&output.stderr).contains("mesh logs -f 1a2b3c4d follows it"), "{output:?}");
    let output = mesh(&home, &format!("submit --detach --json {}", file.display()));
    assert_eq!(json_of(&output), item(waiting()));
    let output = mesh(&home, &format!("submit -d {} --set rate=1", file.display()));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 2, "nothing is followed, and what is wrong is not sent");
    assert_eq!(heard[0].body["set"], json!({ "lr": "0.2" }));
}

#[test]
fn as_json_every_line_is_an_object_and_the_job_as_it_ended_is_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let printed = line(1, "out", "from-the-job", true);
    taker(&home, &[job("running", json!({})), done()], std::slice::from_ref(&printed));
    let file = written(dir.path(), "job.toml", HELLO);
    let output = mesh(&home, &format!("submit {} --json", file.display()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    let lines = lines_of(&output);
    assert_eq!(lines.first(), Some(&item(waiting())));
    assert!(lines.contains(&printed) && lines.contains(&item(job("running", json!({})))));
    assert_eq!(lines.last(), Some(&item(done())));
    assert_eq!(lines.iter().filter(|line| **line == item(done())).count(), 1);
}

#[test]
fn the_lines_of_several_tasks_say_whose_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let of = |task: u64, text: &str, whole: bool| {
        let mut line = line(1, "out", text, whole);
        line["task"] = json!(task);
        line
    };
    let task = |n: u64| json!({ "number": n, "node": "beta", "state": "done", "attempt": 1 });
    let two = json!({ "tasks": [task(0), task(1)] });
    let lines = [of(0, "a", true), of(1, "half", false), of(0, "b", true), of(1, "rest", true)];
    taker(&home, &[job("running", two.clone()), job("done", two)], &lines);
    let file = written(dir.path(), "job.toml", HELLO);
    let output = mesh(&home, &format!("submit {}", file.display()));
    assert!(output.status.success(), "{output:?}");
    // That there are two may be known only after the first line has come.
    let said = text(&output.stdout);
    assert!(said.ends_with("task 1 | half\ntask 0 | b\ntask 1 | rest\n"), "{said}");
}

#[test]
fn code_is_packed_beside_the_file_and_the_copy_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (home, code) = (dir.path().join("node"), dir.path().join("code"));
    std::fs::create_dir(&code).unwrap();
    for (name, text) in [("train.py", "1"), ("a.ckpt", "2"), (".meshignore", "*.ckpt\n")] {
        written(&code, name, text);
    }
    let file = "name = \"hello\"\n[run]\ncommand = \"true\"\ncode = \".\"\n";
    let file = written(&code, "job.toml", file);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let names = seen.clone();
    let heard = play(&home, move |asked, _| {
        let packed = Path::new(asked.body["code_dir"].as_str().unwrap());
        let mut found = names.lock().unwrap();
        for entry in std::fs::read_dir(packed).unwrap() {
            found.push(entry.unwrap().file_name().into_string().unwrap());
        }
        Reply::Answer(200, item(waiting()))
    });
    let output = mesh(&home, &format!("submit -d {}", file.display()));
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("code: 2 files, 8 B\n"), "{output:?}");
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, [".meshignore", "train.py"]);
    let packed = heard.lock().unwrap()[0].body["code_dir"].clone();
    assert!(!Path::new(packed.as_str().unwrap()).exists());
    // A node elsewhere could not read it.
    let (address, heard) = remote(&[]);
    let output = mesh(&home, &format!("submit {} --api http://{address}", file.display()));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn if_the_answer_is_lost_the_same_job_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let heard = play(&home, |_, times| match times {
        0 => Reply::Drop,
        _ => Reply::Answer(200, item(waiting())),
    });
    let file = written(dir.path(), "job.toml", HELLO);
    let output = mesh(&home, &format!("submit -d {}", file.display()));
    assert!(output.status.success(), "{output:?}");
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 2);
    assert_eq!(heard[0].body, heard[1].body);
}

#[test]
fn a_node_that_goes_away_and_comes_back_costs_no_line_and_repeats_none() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let [submit, watch, logs] = asks();
    let (one, two) = (line(1, "out", "one", true), line(1, "out", "two", true));
    let answers = [
        (submit.as_str(), 200, item(waiting())),
        (watch.as_str(), 200, watched(&[job("running", json!({}))])),
        (watch.as_str(), 200, watched(&[job("running", json!({})), done()])),
        (logs.as_str(), 200, stream(std::slice::from_ref(&one))),
        (logs.as_str(), 200, stream(&[one, two])),
    ];
    node(&home, &answers);
    let file = written(dir.path(), "job.toml", HELLO);
    let output = mesh(&home, &format!("submit {}", file.display()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "one\ntwo\n");
    let said = text(&output.stderr);
    assert_eq!(said.matches("running on beta").count(), 1, "{said}");
}

/// Ends a command as Ctrl-C does, once the node was asked this.
fn interrupted(home: &Path, line: &str, heard: &Heard, what: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mesh"))
        .args(line.split_whitespace())
        .env("MESH_DIR", home)
        .env_remove("MESH_API")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !heard.lock().unwrap().iter().any(|asked| asked.what.ends_with(what)) {
        assert_eq!(child.try_wait().unwrap(), None, "it goes without asking {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // It has asked, so it hears signals: they are waited for together with the answer.
    std::thread::sleep(Duration::from_millis(200));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn ctrl_c_leaves_a_job_to_itself_and_says_how_to_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let heard = play(&home, |asked, _| match asked.what.as_str() {
        "POST /v1/jobs" => Reply::Answer(200, item(waiting())),
        what if what.ends_with("/watch") => {
            Reply::Hold(format!("{}\n", item(job("running", json!({})))))
        }
        what if what.contains("/logs") => {
            Reply::Hold(format!("{}\n", line(1, "out", "from-the-job", true)))
        }
        _ => Reply::Drop,
    });
    let file = written(dir.path(), "job.toml", HELLO);
    let output = interrupted(&home, &format!("submit {}", file.display()), &heard, "follow=true");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(text(&output.stdout), "from-the-job\n");
    let last = text(&output.stderr).lines().last();
    let want = "job 1a2b3c4d goes on; mesh logs -f 1a2b3c4d follows it, mesh stop 1a2b3c4d ends it";
    assert_eq!(last, Some(want), "{output:?}");
    // Whoever does not want to wait for longer is told the same.
    let output = mesh(&home, &format!("submit {} --timeout 300ms", file.display()));
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(text(&output.stderr).contains("cause: running on beta\n"), "{output:?}");
    assert!(text(&output.stderr).contains(want), "{output:?}");
}

#[test]
fn ctrl_c_before_the_answer_says_that_the_job_may_be_there_and_leaves_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (home, code) = (dir.path().join("node"), dir.path().join("code"));
    std::fs::create_dir(&code).unwrap();
    let file = "name = \"hello\"\n[run]\ncommand = \"true\"\ncode = \".\"\n";
    let file = written(&code, "job.toml", file);
    let heard = play(&home, |_, _| Reply::Hold(String::new()));
    let line = format!("submit {}", file.display());
    let output = interrupted(&home, &line, &heard, "POST /v1/jobs");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let heard = heard.lock().unwrap();
    let (id, packed) = (&heard[0].body["id"], &heard[0].body["code_dir"]);
    let short = &id.as_str().unwrap()[..8];
    assert!(text(&output.stderr).contains(&format!("try:   mesh job show {short}")), "{output:?}");
    assert!(!Path::new(packed.as_str().unwrap()).exists(), "{packed}");
}

#[test]
fn a_plan_says_where_and_exits_4_if_there_is_no_such_place() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("node");
    let place = json!({
        "task": 0, "node": "beta", "cpu_milli": 2000, "memory_bytes": 1_073_741_824u64, "gpus": 0, "fetch_bytes": 0,
    });
    let fits = json!({
        "name": "hello", "placed": true, "places": [place], "victims": [], "impossible": null, "ahead": 0, "why": null,
    });
    let never = json!({
        "name": "hello", "placed": false, "places": [], "victims": [], "ahead": 0, "why": null,
        "impossible": { "cause": "it wants 4000 CPUs; alpha has 16", "hint": "ask for less" },
    });
    let answers = [
        ("POST /v1/jobs", 200, item(fits.clone())),
        ("POST /v1/jobs", 200, item(fits.clone())),
        ("POST /v1/jobs", 200, item(never.clone())),
    ];
    let heard = node(&home, &answers);
    let line = format!("plan {}", written(dir.path(), "job.toml", HELLO).display());
    let output = mesh(&home, &line);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).starts_with("hello would start now\n\nTASK  NODE"), "{output:?}");
    assert_eq!(json_of(&mesh(&home, &format!("{line} --json"))), item(fits));
    let output = mesh(&home, &line);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let want = "cause: it wants 4000 CPUs; alpha has 16\ntry:   ask for less\n";
    assert!(text(&output.stderr).ends_with(want), "{output:?}");
    let output = mesh(&home, &format!("{line} --json"));
    assert_eq!((output.status.code(), json_of(&output)), (Some(4), item(never)));
    assert!(heard.lock().unwrap().iter().all(|asked| asked.body["plan"] == true));
}

#[test]
fn jobs_are_listed_as_they_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (some, none) = (items(json!([job("running", json!({})), failed()])), items(json!([])));
    node(
        dir.path(),
        &[
            ("GET /v1/jobs", 200, some.clone()),
            ("GET /v1/jobs?all=true", 200, some.clone()),
            ("GET /v1/jobs?waiting=true", 200, none),
        ],
    );
    for line in ["jobs", "jobs -a", "jobs --all"] {
        let output = mesh(dir.path(), line);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stdout);
        assert!(said.starts_with("ID        NAME   STATE    CLASS  TASKS  NODE"), "{said}");
        assert!(said.contains("running") && said.contains("exit code 7"), "{said}");
        assert_eq!(json_of(&mesh(dir.path(), &format!("{line} --json"))), some);
    }
    let output = mesh(dir.path(), "jobs --waiting");
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(text(&output.stderr), "No job waits for a place.\n");
    assert_eq!(mesh(dir.path(), "jobs --waiting --all").status.code(), Some(2));
}

#[test]
fn logs_are_asked_for_by_id_and_printed_as_they_came() {
    let dir = tempfile::tempdir().unwrap();
    let base = format!("GET /v1/jobs/{}", id());
    let [all, few, tail] =
        ["/logs", "/logs?task=0&lines=5", "/logs?follow=true"].map(|end| format!("{base}{end}"));
    let lines = [line(1, "out", "a", true), line(1, "err", "b", true), line(2, "out", "c", false)];
    let quiet = format!("GET /v1/jobs/{}/logs", "77b0".repeat(8));
    node(
        dir.path(),
        &[
            ("GET /v1/jobs/hello", 200, item(done())),
            (base.as_str(), 200, item(done())),
            (all.as_str(), 200, stream(&lines)),
            (few.as_str(), 200, stream(&lines)),
            (tail.as_str(), 200, stream(&lines)),
            ("GET /v1/jobs/77b0", 200, item(job("waiting", json!({ "id": "77b0".repeat(8) })))),
            (quiet.as_str(), 200, stream(&[])),
        ],
    );
    for line in ["logs hello", "logs hello --task 0 -n 5", "logs -f hello"] {
        let output = mesh(dir.path(), line);
        assert!(output.status.success(), "{line}: {output:?}");
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("a\nc", "b\n"), "{line}");
    }
    let output = mesh(dir.path(), "logs hello --timestamps");
    assert!(text(&output.stdout).starts_with("2026-11-16T12:00:01Z a\n"), "{output:?}");
    assert_eq!(lines_of(&mesh(dir.path(), "logs hello --json")), lines);
    let output = mesh(dir.path(), "logs 77b0");
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("has printed nothing: it is waiting"), "{output:?}");
    assert_eq!(mesh(dir.path(), "logs nobody").status.code(), Some(1));
}

#[test]
fn stopping_names_each_job_and_goes_on_if_one_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let base = format!("GET /v1/jobs/{}", id());
    let watch = format!("{base}/watch");
    let asked = job("stopping", json!({ "was_over": false }));
    let over = job("done", json!({ "was_over": true }));
    let stopped = job("stopped", json!({}));
    node(
        dir.path(),
        &[
            ("POST /v1/jobs/hello/stop", 200, item(asked.clone())),
            ("POST /v1/jobs/old/stop", 200, item(over)),
            (base.as_str(), 200, item(asked.clone())),
            (watch.as_str(), 200, watched(&[asked.clone(), stopped.clone()])),
        ],
    );
    let output = mesh(dir.path(), "stop hello old");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text(&output.stdout),
        "hello (1a2b3c4d) is asked to stop\nhello (1a2b3c4d) was over already: done\n"
    );
    let output = mesh(dir.path(), "stop nobody hello");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(text(&output.stdout), "hello (1a2b3c4d) is asked to stop\n");
    assert_eq!(text(&output.stderr).lines().count(), 3, "{output:?}");
    let output = mesh(dir.path(), "stop hello --wait");
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).ends_with("hello (1a2b3c4d) is stopped\n"), "{output:?}");
    let output = mesh(dir.path(), "stop hello --wait --json");
    assert_eq!(lines_of(&output), [item(asked), item(stopped)]);
}

#[test]
fn waiting_exits_as_the_jobs_ended_or_with_124() {
    let dir = tempfile::tempdir().unwrap();
    let other = |job: &Value, id: &str| {
        let mut job = job.clone();
        job["id"] = json!(id.repeat(8));
        job
    };
    let [slow, bad] = ["77b0", "91cc"].map(|id| format!("GET /v1/jobs/{}/watch", id.repeat(8)));
    let running = job("running", json!({}));
    let watch = format!("GET /v1/jobs/{}/watch", id());
    node(
        dir.path(),
        &[
            ("GET /v1/jobs/hello", 200, item(running.clone())),
            ("GET /v1/jobs/over", 200, item(done())),
            ("GET /v1/jobs/slow", 200, item(other(&running, "77b0"))),
            ("GET /v1/jobs/bad", 200, item(other(&running, "91cc"))),
            (watch.as_str(), 200, watched(&[running.clone(), done()])),
            (slow.as_str(), 200, watched(&[other(&running, "77b0")])),
            (bad.as_str(), 200, watched(&[other(&failed(), "91cc")])),
        ],
    );
    let output = mesh(dir.path(), "wait hello over");
    assert!(output.status.success(), "{output:?}");
    let want = "hello (1a2b3c4d) is done: exit code 0 on beta in 2s\n";
    assert_eq!(text(&output.stdout), want.repeat(2));
    let output = mesh(dir.path(), "wait bad over");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), want), "{output:?}");
    assert!(text(&output.stderr).starts_with("error: hello (91cc91cc) failed\n"), "{output:?}");
    let output = mesh(dir.path(), "wait bad --json");
    let ended = item(other(&failed(), "91cc"));
    assert_eq!((output.status.code(), json_of(&output)), (Some(1), ended));
    let output = mesh(dir.path(), "wait slow --timeout 600ms");
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("is not over after 600ms\ncause: running on beta\n"), "{said}");
    assert_eq!(mesh(dir.path(), "wait nobody").status.code(), Some(1));
}

#[test]
fn why_a_job_waits_is_told_node_by_node() {
    let dir = tempfile::tempdir().unwrap();
    let explained = json!({
        "id": id(), "name": "hello", "state": "waiting", "reason": "no node has room",
        "nodes": [{ "node": "alpha", "why": "2 of 4 CPUs are free" }], "ahead": [],
        "help": ["that job 77b077b0 ends"], "placed": [],
    });
    node(dir.path(), &[("GET /v1/jobs/hello/explain", 200, item(explained.clone()))]);
    let output = mesh(dir.path(), "explain hello");
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.starts_with("hello (1a2b3c4d) is waiting: no node has room\n"), "{said}");
    assert!(said.contains("alpha  2 of 4 CPUs are free\n"), "{said}");
    assert!(said.ends_with("what would help:\n  that job 77b077b0 ends\n"), "{said}");
    assert_eq!(json_of(&mesh(dir.path(), "explain hello --json")), item(explained));
    assert_eq!(mesh(dir.path(), "explain nobody").status.code(), Some(1));
}

#[test]
fn one_job_is_shown_dropped_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let [base, watch, logs] =
        ["", "/watch", "/logs?follow=true"].map(|end| format!("GET /v1/jobs/{}{end}", id()));
    let drop_it = format!("DELETE /v1/jobs/{}", id());
    let heard = node(
        dir.path(),
        &[
            ("GET /v1/jobs/hello", 200, item(done())),
            (base.as_str(), 200, item(done())),
            (drop_it.as_str(), 200, item(json!({ "id": id() }))),
            ("POST /v1/jobs/hello/retry", 200, item(waiting())),
            (watch.as_str(), 200, watched(&[done()])),
            (logs.as_str(), 200, stream(&[line(1, "out", "once more", true)])),
        ],
    );
    let output = mesh(dir.path(), "job show HELLO");
    let said = text(&output.stdout);
    assert!(said.contains("model is model@3") && said.contains("worker 0  done"), "{said}");
    assert_eq!(json_of(&mesh(dir.path(), "job show hello --json")), item(done()));
    // There is no terminal to ask on.
    let output = mesh(dir.path(), "job rm hello");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("Drop hello (1a2b3c4d), done "), "{output:?}");
    assert!(heard.lock().unwrap().iter().all(|asked| asked.what.starts_with("GET")));
    let output = mesh(dir.path(), "job rm hello hello --yes");
    assert_eq!(text(&output.stdout), "hello (1a2b3c4d) is dropped.\n");
    let output = mesh(dir.path(), "job retry hello");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "once more\n");
    let output = mesh(dir.path(), "job retry hello -d");
    assert_eq!(text(&output.stdout), format!("{}\n", id()));
}

#[test]
fn a_file_to_start_from_is_printed_or_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = Path::new("/nonexistent/mesh");
    let printed = mesh(nobody, "job new");
    assert!(printed.status.success() && text(&printed.stdout).contains("name ="), "{printed:?}");
    let gang = mesh(nobody, "job new gang --json");
    assert!(json_of(&gang)["item"]["text"].as_str().unwrap().contains("[gang]"), "{gang:?}");
    let file = dir.path().join("job.toml");
    let line = format!("job new process -o {}", file.display());
    assert!(mesh(nobody, &line).status.success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text(&printed.stdout));
    let again = mesh(nobody, &line);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(text(&again.stderr).contains("left as it is"), "{again:?}");
    let wrong = mesh(nobody, "job new gong");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(text(&wrong.stderr).contains("process, container, gang"), "{wrong:?}");
}

#[test]
fn the_file_has_a_help_of_its_own() {
    let nobody = Path::new("/nonexistent/mesh");
    let help = mesh(nobody, "help job.toml");
    assert!(help.status.success() && text(&help.stdout).contains("[resources]"), "{help:?}");
    let help = json_of(&mesh(nobody, "help job.toml --json"));
    assert!(help["item"]["text"].as_str().unwrap().contains("[resources]"), "{help}");
}
