//! `mesh data …` against a server that plays a node's answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;

use super::*;

fn version() -> Value {
    json!({
        "name": "mnist", "version": 3, "manifest": "ab".repeat(32), "party": "lab", "visibility": "private",
        "bytes": 11_639_193u64, "files": 70, "copies": 2, "copies_wanted": 3, "mine": true, "here": "whole",
        "created_at": "2026-11-16T11:55:00Z", "id": "cd".repeat(16), "tags": ["clean"], "readers": [],
    })
}

fn with(more: Value) -> Value {
    let mut item = version();
    let (fields, more) = (item.as_object_mut(), more.as_object().cloned());
    fields.expect("an object").extend(more.expect("an object"));
    item
}

const PROGRESS: &str = r#"{"schema":1,"kind":"progress","phase":"reading","bytes":5,"total_bytes":9,"files":1,"total_files":2,"peers":0,"copies":0,"copies_wanted":3}"#;

/// Some progress, then this line.
fn lines(last: &Value) -> Value {
    Value::String(format!("{PROGRESS}\n{PROGRESS}\n{last}\n"))
}

fn done(item: Value) -> Value {
    json!({ "schema": 1, "kind": "done", "index": 7, "age_ms": 0, "item": item })
}

#[test]
fn a_push_says_what_was_made_and_shows_no_bar_without_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("mnist");
    std::fs::create_dir(&data).unwrap();
    let made = with(
        json!({ "new_bytes": 1331, "read_bytes": 11_639_193u64, "elapsed_ms": 2100, "shortfall": "the party has 2 nodes" }),
    );
    let home = dir.path().join("node");
    let heard = node(&home, &[("POST /v1/data/push", 200, lines(&done(made.clone())))]);
    let output = mesh(&home, &format!("data push {}", data.display()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text(&output.stdout),
        "mnist@3: 70 files, 11.1 MiB; 1.3 KiB of it new (read 11.1 MiB in 2s).\n\
         2 of 3 copies: the party has 2 nodes.\n"
    );
    assert_eq!(text(&output.stderr), "");
    let all =
        "--name m --share a --share b --copies 2 --in-place --follow --tag t --no-wait --json";
    let output = mesh(&home, &format!("data push {}/ {all}", data.display()));
    assert_eq!(json_of(&output), item(made), "the envelope of every other answer");
    assert_eq!(text(&output.stderr), "");
    let heard = heard.lock().unwrap();
    assert_eq!(
        heard[0].body,
        json!({ "path": data, "share": [], "open": false, "listed": false, "in_place": false, "follow": false, "no_wait": false })
    );
    assert_eq!(
        heard[1].body,
        json!({ "path": format!("{}/", data.display()), "name": "m", "share": ["a", "b"], "open": false, "listed": false, "copies": 2,
                "in_place": true, "follow": true, "tag": "t", "no_wait": true })
    );
}

#[test]
fn a_push_that_waited_in_vain_for_copies_exits_124_and_still_says_what_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let why =
        "1 more should stand before a node is lost, and 1 node that could have one does not answer";
    let made = with(json!({
        "copies": 1, "acknowledged": false, "shortfall": why, "timed_out": true, "new_bytes": 0,
    }));
    let (home, data) = (dir.path().join("node"), dir.path().join("mnist"));
    std::fs::create_dir(&data).unwrap();
    node(&home, &[("POST /v1/data/push", 200, lines(&done(made.clone())))]);
    let line = format!("data push {}", data.display());
    let output = mesh(&home, &line);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(text(&output.stdout).starts_with("mnist@3: 70 files"), "{output:?}");
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.starts_with("error: mnist@3 is made, but not acknowledged yet\n"), "{said}");
    assert!(said.contains(why) && said.contains("mesh data show mnist@3"), "{said}");
    let output = mesh(&home, &format!("{line} --json"));
    assert_eq!((output.status.code(), json_of(&output)), (Some(124), item(made)));
    assert_eq!(text(&output.stderr).lines().count(), 3, "{output:?}");
}

#[test]
fn what_is_not_there_is_not_pushed() {
    let dir = tempfile::tempdir().unwrap();
    let heard = node(dir.path(), &[]);
    let output = mesh(dir.path(), "data push /nonexistent/x");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr).lines().count(), 3);
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn a_pull_goes_where_it_was_told_and_else_beside_the_person() {
    let dir = tempfile::tempdir().unwrap();
    let got = with(
        json!({ "fetched_bytes": 1024, "local_bytes": 0, "elapsed_ms": 1, "dir": "/x", "linked": 70, "copied": 0 }),
    );
    let heard = node(dir.path(), &[("POST /v1/data/pull", 200, lines(&done(got)))]);
    let output = mesh(dir.path(), "data pull lab/mnist:clean");
    assert_eq!(
        text(&output.stdout),
        "mnist@3 is in mnist: 70 files, 11.1 MiB; 1.0 KiB fetched (in 1ms).\n"
    );
    assert!(mesh(dir.path(), "data pull mnist@3 /scratch/m --writable --wait 5s").status.success());
    assert!(mesh(dir.path(), "data pull mnist --store-only").status.success());
    let here = std::env::current_dir().unwrap().join("mnist");
    let bodies: Vec<Value> = heard.lock().unwrap().iter().map(|asked| asked.body.clone()).collect();
    assert_eq!(
        bodies,
        [
            json!({ "ref": "lab/mnist:clean", "dir": here, "writable": false, "wait_ms": 60_000 }),
            json!({ "ref": "mnist@3", "dir": "/scratch/m", "writable": true, "wait_ms": 5000 }),
            json!({ "ref": "mnist", "writable": false, "wait_ms": 60_000 }),
        ]
    );
}

#[test]
fn an_error_in_the_last_line_is_an_error_like_any_other() {
    for (code, exit) in [
        ("refused", 1),
        ("not_found", 1),
        ("failed", 1),
        ("of_a_later_version", 1),
        ("no_leader", 3),
        ("consent", 5),
        ("timeout", 124),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let error = json!({ "code": code, "message": "m", "cause": "c", "try": "t" });
        let line = json!({ "schema": 1, "kind": "error", "error": error });
        node(dir.path(), &[("POST /v1/data/pull", 200, lines(&line))]);
        let output = mesh(dir.path(), "data pull mnist --store-only");
        assert_eq!(output.status.code(), Some(exit), "{code}");
        assert_eq!(text(&output.stderr), "error: m\ncause: c\ntry:   t\n");
        assert!(output.stdout.is_empty());
        let output = mesh(dir.path(), "data pull mnist --store-only --json");
        assert_eq!(output.status.code(), Some(exit), "{code}");
        let answer = json_of(&output);
        assert_eq!((&answer["schema"], &answer["error"]["message"]), (&json!(1), &json!("m")));
    }
}

#[test]
fn a_refusal_before_the_first_line_is_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let error = json!({ "code": "not_found", "message": "m", "cause": "c", "try": "t" });
    let error = json!({ "schema": 1, "error": error });
    node(dir.path(), &[("POST /v1/data/verify", 404, error)]);
    let output = mesh(dir.path(), "data verify mnist");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "error: m\ncause: c\ntry:   t\n");
}

#[test]
fn an_answer_that_ends_early_is_no_success_and_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), &[("POST /v1/data/pull", 200, Value::String(format!("{PROGRESS}\n")))]);
    let output = mesh(dir.path(), "data pull mnist --store-only");
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("it resumes"), "{}", text(&output.stderr));
}

#[test]
fn files_of_this_machine_are_not_named_to_a_node_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let got = done(with(json!({ "fetched_bytes": 0 })));
    let (address, heard) = remote(&[("POST /v1/data/pull", 200, lines(&got))]);
    for line in ["data push /tmp", "data pull mnist", "data pull mnist /tmp/x"] {
        let output = mesh(dir.path(), &format!("{line} --api http://{address}"));
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(text(&output.stderr).contains("files of its own machine"), "{line}");
    }
    assert!(heard.lock().unwrap().is_empty());
    // Without a path there is nothing to mistake.
    let output = mesh(dir.path(), &format!("data pull mnist --store-only --api http://{address}"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn verify_fails_if_damage_stays() {
    for (repaired, exit) in [(1, 0), (0, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let found = json!({
            "name": "mnist", "version": 3, "checked_bytes": 11_639_193u64,
            "damaged": [{ "path": "train/7.png" }], "repaired": repaired,
        });
        node(dir.path(), &[("POST /v1/data/verify", 200, lines(&done(found.clone())))]);
        let output = mesh(dir.path(), "data verify mnist");
        assert_eq!(output.status.code(), Some(exit));
        assert!(text(&output.stdout).starts_with("mnist@3 had 1 damaged file; 11.1 MiB checked:"));
        assert!(text(&output.stdout).contains("\n  train/7.png\n"));
        let output = mesh(dir.path(), "data verify mnist --json");
        assert_eq!((output.status.code(), json_of(&output)), (Some(exit), item(found)));
    }
}

#[test]
fn questions_are_asked_as_agreed_and_their_answers_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let (list, one) = (items(json!([version()])), item(version()));
    let diff = item(
        json!({ "from": "mnist@1", "to": "mnist@3", "added": 0, "removed": 0, "changed": 0, "unchanged": 70, "new_bytes": 0, "changes": [], "truncated": false }),
    );
    let du = item(json!({ "store_bytes": 1024, "items": [] }));
    node(
        dir.path(),
        &[
            ("GET /v1/data", 200, list.clone()),
            ("GET /v1/data?all=true&party=lab", 200, list.clone()),
            ("GET /v1/data/show?ref=lab/mnist:clean", 200, one.clone()),
            ("GET /v1/data/log?ref=mnist", 200, list.clone()),
            ("GET /v1/data/diff?from=mnist@1&to=mnist", 200, diff.clone()),
            ("GET /v1/data/du", 200, du.clone()),
        ],
    );
    for (line, answer, said) in [
        ("data ls", &list, "mnist"),
        ("data ls --all --party lab", &list, "2/3"),
        ("data show lab/mnist:clean", &one, "2 of 3 copies: no further node keeps it yet"),
        ("data log mnist", &list, "VERSION"),
        ("data diff mnist@1 mnist", &diff, "mnist@1 and mnist@3 hold the same."),
        ("data du", &du, "1.0 KiB"),
    ] {
        let output = mesh(dir.path(), line);
        assert!(output.status.success(), "{line}: {output:?}");
        assert!(text(&output.stdout).contains(said), "{line}: {}", text(&output.stdout));
        assert_eq!(&json_of(&mesh(dir.path(), &format!("{line} --json"))), answer, "{line}");
    }
}

#[test]
fn an_empty_list_is_said_to_be_empty_beside_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), &[("GET /v1/data", 200, items(json!([])))]);
    let output = mesh(dir.path(), "data ls");
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(text(&output.stderr).contains("mesh data push"));
}

#[test]
fn changes_are_sent_as_agreed() {
    let dir = tempfile::tempdir().unwrap();
    let shared = item(with(json!({ "visibility": "shared", "readers": ["a", "b"] })));
    let heard = node(
        dir.path(),
        &[
            ("POST /v1/data/tag", 200, item(json!({ "name": "mnist", "tag": "t", "version": 3 }))),
            ("POST /v1/data/share", 200, shared),
            ("POST /v1/data/unshare", 200, item(version())),
            ("POST /v1/data/pin", 200, item(with(json!({ "pinned": true })))),
        ],
    );
    for (line, said, body) in [
        (
            "tag mnist@3 t",
            "mnist:t is mnist@3 now.\n",
            json!({ "ref": "mnist@3", "tag": "t", "remove": false }),
        ),
        (
            "tag mnist@3 t --expect 2",
            "mnist:t is mnist@3 now.\n",
            json!({ "ref": "mnist@3", "tag": "t", "remove": false, "expect": 2 }),
        ),
        (
            "tag mnist@3 t --expect none",
            "mnist:t is mnist@3 now.\n",
            json!({ "ref": "mnist@3", "tag": "t", "remove": false, "expect": null }),
        ),
        (
            "tag mnist t --rm",
            "There is no mnist:t any more.\n",
            json!({ "ref": "mnist", "tag": "t", "remove": true }),
        ),
        (
            "share mnist@3 a b",
            "mnist@3 is shared with a, b.\n",
            json!({ "ref": "mnist@3", "with": ["a", "b"], "open": false, "listed": false }),
        ),
        (
            "unshare mnist@3",
            "mnist@3 is private to its party.\n",
            json!({ "ref": "mnist@3", "from": [] }),
        ),
        (
            "pin mnist@3",
            "mnist@3 stays on this node until mesh data pin --off.\n",
            json!({ "ref": "mnist@3", "on": true }),
        ),
        ("pin mnist@3 --off", "mnist@3 may go again.\n", json!({ "ref": "mnist@3", "on": false })),
    ] {
        let output = mesh(dir.path(), &format!("data {line}"));
        assert_eq!(text(&output.stdout), said, "{line}: {output:?}");
        assert_eq!(heard.lock().unwrap().last().unwrap().body, body, "{line}");
    }
}

#[test]
fn nothing_is_removed_unless_it_was_confirmed_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let gone = item(json!({ "removed": [{ "name": "mnist", "version": 3 }] }));
    let heard = node(
        dir.path(),
        &[
            ("GET /v1/data/show?ref=lab/mnist:clean", 200, item(version())),
            ("GET /v1/data/log?ref=mnist", 200, items(json!([version(), version()]))),
            ("POST /v1/data/rm", 200, gone.clone()),
        ],
    );
    let asked_to_remove =
        || heard.lock().unwrap().iter().filter(|asked| asked.what.contains("rm")).count();
    for line in ["data rm mnist", "data rm mnist --yes", "data rm mnist@3 --all --yes"] {
        assert_eq!(mesh(dir.path(), line).status.code(), Some(2), "{line}");
    }
    // There is no terminal to ask on.
    let output = mesh(dir.path(), "data rm lab/mnist:clean");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("Remove lab/mnist@3 for good: 11.1 MiB, tagged clean?"), "{said}");
    let output = mesh(dir.path(), "data rm mnist --all");
    assert!(text(&output.stderr).contains("2 versions, 22.2 MiB"), "{output:?}");
    assert_eq!(asked_to_remove(), 0);
    // What goes is what the tag meant when it was looked at.
    let output = mesh(dir.path(), "data rm lab/mnist:clean --yes");
    assert_eq!(text(&output.stdout), "Removed: mnist@3.\n");
    assert_eq!(
        heard.lock().unwrap().last().unwrap().body,
        json!({ "ref": "lab/mnist@3", "all": false })
    );
    assert_eq!(json_of(&mesh(dir.path(), "data rm mnist --all --yes --json")), gone);
    assert_eq!(heard.lock().unwrap().last().unwrap().body, json!({ "ref": "mnist", "all": true }));
}

#[test]
fn ctrl_c_closes_the_connection_and_says_that_the_same_command_resumes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("run")).unwrap();
    let listener = UnixListener::bind(dir.path().join("run/mesh.sock")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_mesh"))
        .args(["data", "pull", "mnist", "--store-only", "--dir"])
        .arg(dir.path())
        .env_remove("MESH_API")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    listener.set_nonblocking(true).unwrap();
    let stream = loop {
        if let Ok((stream, _)) = listener.accept() {
            break stream;
        }
        assert_eq!(child.try_wait().unwrap(), None, "it goes without asking");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let mut from = BufReader::new(stream.try_clone().unwrap());
    let mut length = 0;
    loop {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    from.read_exact(&mut vec![0; length]).unwrap();
    let mut to = &stream;
    let head = "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n";
    let line = format!("{PROGRESS}\n");
    to.write_all(format!("{head}{:x}\r\n{line}\r\n", line.len()).as_bytes()).unwrap();
    // It has asked, so it hears signals: they are waited for together with the answer.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(from.read(&mut [0; 1]).unwrap(), 0, "the node sees that nobody listens any more");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = text(&output.stderr);
    assert!(said.starts_with("error: interrupted\n") && said.contains("it resumes"), "{said}");
}
