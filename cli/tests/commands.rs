//! Commands that ask a node, against a server that plays a node's answers.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

mod canned;
use canned::{mesh, mute, node, remote, remote_for};
#[path = "commands/data.rs"]
mod data;
#[path = "commands/jobs.rs"]
mod jobs;
#[path = "commands/training.rs"]
mod training;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("mesh writes UTF-8")
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn item(item: Value) -> Value {
    json!({ "schema": 1, "index": 7, "age_ms": 0, "item": item })
}

fn items(items: Value) -> Value {
    json!({ "schema": 1, "index": 7, "age_ms": 0, "items": items })
}

fn status(pid: u32) -> Value {
    item(json!({
        "id": "3fa9".repeat(16), "name": "alpha", "party": "lab", "party_id": "77", "mesh": "c0de".repeat(16),
        "epoch": 1, "pid": pid, "version": "0.1.0", "level": 3, "role": "voter", "is_leader": true,
        "leader": { "id": "3fa9".repeat(16), "name": "alpha" }, "term": 4, "index": 7, "members": 3, "voters": 3,
        "learners": 0, "mesh_time": "2026-11-16T12:00:00Z", "data_addresses": ["10.0.0.5:6374"], "uptime_ms": 65_000,
    }))
}

fn nodes() -> Value {
    let gpu = json!({ "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 85_899_345_920u64 });
    items(json!([
        { "id": "3fa9".repeat(16), "name": "alpha", "party": "lab", "state": "up", "role": "voter", "is_leader": true,
          "addresses": ["10.0.0.5:6374"], "cpus": 16, "load1": 1.5, "memory_bytes": 68_719_476_736u64,
          "memory_free_bytes": 51_539_607_552u64, "gpus": [gpu, gpu], "seen_age_ms": 300 },
        { "id": "77b0".repeat(16), "name": "beta", "party": "lab", "state": "down", "role": "voter",
          "seat": null, "addresses": ["10.0.0.6:6374"], "seen_age_ms": 95_000 },
        { "id": "91cc".repeat(16), "name": "gamma\u{1b}[2J", "party": "clinic-b", "state": "up", "role": "watcher",
          "addresses": ["[fd00::7]:6374"], "cpus": 4, "load1": 0.0, "memory_bytes": 8_589_934_592u64,
          "memory_free_bytes": 8_589_934_592u64, "seen_age_ms": 4000, "of_a_later_version": true },
    ]))
}

/// The directory of a node that was made and never started.
fn made_in(temp: &Path) -> mesh_node::dir::Dir {
    let dir = mesh_node::dir::Dir::at(temp.join("node"));
    let listen = vec![("127.0.0.1".parse().expect("an address"), Some(0))];
    let choices = mesh_node::join::Choices { listen, ..Default::default() };
    mesh_node::join::found(&dir, &choices).expect("a mesh of one");
    dir
}

#[test]
fn nodes_is_a_table_for_people_and_the_answer_itself_for_scripts() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), &[("GET /v1/nodes", 200, nodes())]);
    let output = mesh(dir.path(), "nodes");
    assert_eq!(
        text(&output.stdout),
        "NAME      PARTY     STATE  ROLE        CPU        MEM  GPU                ADDRESS         SEEN\n\
         alpha     lab       up     leader   1.5/16  16/64 GiB  2× A100-SXM4-80GB  10.0.0.5:6374    now\n\
         beta      lab       down   voter         -          -  -                  10.0.0.6:6374     2m\n\
         gamma[2J  clinic-b  up     watcher   0.0/4  0.0/8 GiB  -                  [fd00::7]:6374    4s\n"
    );
    assert_eq!(json_of(&mesh(dir.path(), "nodes --json")), nodes());
}

#[test]
fn watching_nodes_as_json_is_one_object_a_line() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), &[("GET /v1/nodes", 200, nodes())]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_mesh"))
        .args(["nodes", "-w", "--json", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    for line in lines.take(2) {
        assert_eq!(serde_json::from_str::<Value>(&line.unwrap()).unwrap(), nodes());
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()),
        nix::sys::signal::Signal::SIGINT,
    )
    .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn an_old_answer_is_said_to_be_old() {
    let dir = tempfile::tempdir().unwrap();
    let mut old = nodes();
    old["age_ms"] = json!(12_000);
    node(dir.path(), &[("GET /v1/nodes", 200, old)]);
    let output = mesh(dir.path(), "nodes");
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("12s old"), "{}", text(&output.stderr));
}

#[test]
fn an_answer_of_unknown_age_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let (mut all, mut own) = (nodes(), status(1));
    (all["age_ms"], own["age_ms"]) = (Value::Null, Value::Null);
    let last = "2026-10-01T08:00:00Z";
    (all["mesh_time"], own["mesh_time"]) = (json!(last), json!(last));
    node(dir.path(), &[("GET /v1/nodes", 200, all), ("GET /v1/status", 200, own)]);
    for line in ["nodes", "status"] {
        let output = mesh(dir.path(), line);
        assert!(output.status.success());
        let said = text(&output.stderr);
        assert!(said.contains("has heard no leader since it started"), "{line}: {said}");
        assert!(said.contains(last), "{line}: {said}");
    }
}

#[test]
fn without_a_node_every_question_exits_3_and_says_what_to_do() {
    let missing = Path::new("/nonexistent/mesh");
    let empty = tempfile::tempdir().unwrap();
    let stopped = tempfile::tempdir().unwrap();
    std::fs::write(stopped.path().join("member"), "1\n").unwrap();
    for line in [
        "status",
        "nodes",
        "ticket new",
        "party ls",
        "request ls",
        "grant 1",
        "node show a",
        "jobs",
        "logs a",
        "stop a",
        "wait a",
        "explain a",
        "stragglers a",
        "plot a",
        "model ls",
        "model show a",
        "job show a",
        "job retry a",
    ] {
        for (dir, hint) in [
            (missing, "mesh init, or mesh join"),
            (empty.path(), "mesh init"),
            (stopped.path(), "mesh up"),
        ] {
            let output = mesh(dir, line);
            assert_eq!(output.status.code(), Some(3), "{line}");
            let said = text(&output.stderr);
            assert!(
                said.lines().count() == 3 && said.contains(&format!("try:   {hint}")),
                "{line}: {said}"
            );
            let answer = json_of(&mesh(dir, &format!("{line} --json")));
            assert_eq!(
                (&answer["schema"], &answer["error"]["code"]),
                (&json!(1), &json!("no_node")),
                "{line}"
            );
        }
    }
}

#[test]
fn without_a_node_config_shows_what_one_would_start_with() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.toml"), "data_port = 7001\n").unwrap();
    let output = mesh(dir.path(), "config");
    assert!(output.status.success());
    assert!(text(&output.stderr).starts_with("No node runs in"));
    let of = |key: &str| {
        let line = text(&output.stdout).lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of("data_port"), ["data_port", "7001", "config.toml"]);
    assert_eq!(of("mdns"), ["mdns", "false", "default"]);
    let items = json_of(&mesh(dir.path(), "config --json"))["items"].clone();
    let port = items.as_array().unwrap().iter().find(|item| item["key"] == "data_port").unwrap();
    assert_eq!((&port["value"], &port["from"]), (&json!(7001), &json!("config.toml")));
    // A mistake in it is explained like any other.
    std::fs::write(dir.path().join("config.toml"), "data_prot = 1\n").unwrap();
    let output = mesh(dir.path(), "config");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr).lines().count(), 3);
    assert!(text(&output.stderr).contains("did you mean \"data_port\""));
}

#[test]
fn a_socket_that_nobody_serves_any_more_is_no_node() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("run")).unwrap();
    std::fs::write(dir.path().join("member"), "1\n").unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("run/mesh.sock")).unwrap());
    let output = mesh(dir.path(), "status");
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("no node is running"));
}

#[test]
fn a_refusal_is_shown_in_the_nodes_words_with_its_exit_code() {
    for (status, code, exit) in [
        (409, "refused", 1),
        (404, "not_found", 1),
        (503, "no_leader", 3),
        (503, "unavailable", 3),
        (504, "timeout", 124),
        (409, "consent", 5),
        (409, "unplaceable", 4),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let error = json!({ "code": code, "message": "m", "cause": "c", "try": "t" });
        let error = json!({ "schema": 1, "error": error });
        node(dir.path(), &[("POST /v1/tickets", status, error.clone())]);
        let output = mesh(dir.path(), "ticket new");
        assert_eq!(output.status.code(), Some(exit), "{code}");
        assert_eq!(text(&output.stderr), "error: m\ncause: c\ntry:   t\n");
        assert_eq!(json_of(&mesh(dir.path(), "ticket new --json")), error);
    }
}

#[test]
fn a_new_ticket_stands_alone_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let made = item(
        json!({ "id": "ab", "ticket": "mesh1-a-b-c", "expires_at": "2100-01-01T00:00:00Z", "uses": 3 }),
    );
    let heard = node(dir.path(), &[("POST /v1/tickets", 200, made)]);
    let output = mesh(
        dir.path(),
        "ticket new --ttl 6h --uses 3 --worker --advertise 10.0.0.5 --advertise [::1]:7",
    );
    assert_eq!(text(&output.stdout), "mesh1-a-b-c\n");
    assert!(text(&output.stderr).contains("Good 3 times"));
    assert_eq!(
        heard.lock().unwrap()[0].body,
        json!({ "ttl_ms": 21_600_000, "uses": 3, "worker": true, "new_party": false, "advertise": ["10.0.0.5", "[::1]:7"] })
    );
}

#[test]
fn a_ticket_for_a_new_party_says_what_that_party_will_be_able_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let made = json!({ "id": "ab", "ticket": "mesh1-a-b-c", "expires_at": "2100-01-01T00:00:00Z", "uses": 1 });
    let data = |name: &str, version: u32, mine: bool, visibility: &str| json!({ "name": name, "version": version, "mine": mine, "visibility": visibility });
    let open = items(json!([
        data("mnist", 1, true, "open"),
        data("mnist", 2, true, "private"),
        data("xray", 1, false, "open"),
    ]));
    let answers =
        [("POST /v1/tickets", 200, item(made.clone())), ("GET /v1/data?all=true", 200, open)];
    let heard = node(dir.path(), &answers);
    let output = mesh(dir.path(), "ticket new --new-party");
    assert_eq!(text(&output.stdout), "mesh1-a-b-c\n");
    let said = text(&output.stderr);
    assert!(
        said.contains("1 dataset version is open: a new party can read it (mnist@1);"),
        "{said}"
    );
    let output = mesh(dir.path(), "ticket new --new-party --json");
    assert_eq!(json_of(&output)["item"]["open_datasets"], json!(1));
    assert_eq!(json_of(&mesh(dir.path(), "ticket new --json")), item(made.clone()));
    assert_eq!(heard.lock().unwrap().len(), 5, "who is of this party is not asked about");
    // A node that cannot say has made the ticket nevertheless.
    let dir = tempfile::tempdir().unwrap();
    node(dir.path(), &[("POST /v1/tickets", 200, item(made.clone()))]);
    let output = mesh(dir.path(), "ticket new --new-party --json");
    assert_eq!(json_of(&output), item(made));
}

#[test]
fn tickets_parties_requests_and_settings_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    node(
        dir.path(),
        &[
            (
                "GET /v1/tickets",
                200,
                items(
                    json!([{ "id": "abcdef0123456789", "party": "lab", "kind": "new_party", "uses_left": 3, "state": "good", "expires_at": "2100-01-01T00:00:00Z" }]),
                ),
            ),
            (
                "GET /v1/parties",
                200,
                items(json!([{ "id": "77aa77aa77aa", "name": "lab", "nodes": 3, "voters": 2 }])),
            ),
            (
                "GET /v1/requests",
                200,
                items(
                    json!([{ "id": 2048, "kind": "remove_node", "by": "lab", "granted": ["lab"], "denied": [], "needed": 2 }]),
                ),
            ),
            (
                "GET /v1/requests/2048",
                200,
                item(
                    json!({ "id": 2048, "kind": "remove_node", "text": "remove gamma", "by": { "id": "1", "name": "lab" }, "granted": [{ "id": "1", "name": "lab" }], "needed": 2 }),
                ),
            ),
            (
                "GET /v1/requests?all=true",
                200,
                items(
                    json!([{ "id": 2049, "kind": "remove_node", "text": "remove node gamma of party b", "state": "denied", "by": "lab", "granted": ["lab"], "denied": ["b"], "needed": null, "expires_at": "2100-01-01T00:00:00Z", "decided_at": "2026-11-16T12:00:00Z", "decided_index": 9 }]),
                ),
            ),
            (
                "GET /v1/requests/2049",
                200,
                item(
                    json!({ "id": 2049, "kind": "remove_node", "state": "withdrawn", "by": "lab", "granted": ["lab"], "denied": [], "needed": null, "decided_at": "2026-11-16T12:00:00Z" }),
                ),
            ),
            (
                "GET /v1/config",
                200,
                items(
                    json!([{ "key": "listen", "value": "0.0.0.0:6374", "from": "config.toml" }, { "key": "mdns", "value": false, "from": "default" }]),
                ),
            ),
        ],
    );
    for (line, parts) in [
        ("ticket ls", &["abcdef01 ", "new party", "   3  good   in "][..]),
        ("party ls", &["lab", "77aa77aa "]),
        ("request ls", &["2048", "remove node", "open", "1/2"]),
        ("request ls --all", &["2049", "remove node gamma of party b", "denied", "  -\n"]),
        ("request show 2049", &["withdrawn", "decided"]),
        ("request show 2048", &["remove gamma", "1/2  lab"]),
        ("config", &["0.0.0.0:6374", "config.toml", "mdns", "false"]),
    ] {
        let output = mesh(dir.path(), line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        for part in parts {
            assert!(
                text(&output.stdout).contains(part),
                "{line}: {part:?} is not in {}",
                text(&output.stdout)
            );
        }
    }
}

#[test]
fn status_and_a_node_are_shown_fact_by_fact() {
    let dir = tempfile::tempdir().unwrap();
    let one = item(nodes()["items"][0].clone());
    node(dir.path(), &[("GET /v1/status", 200, status(1)), ("GET /v1/nodes/alpha", 200, one)]);
    let said = mesh(dir.path(), "status");
    for part in [
        "alpha (3fa93fa93fa93fa9)",
        "leader",
        "index 7 in term 4",
        "up for 1m",
        "3: 3 voters, 0 learners",
    ] {
        assert!(text(&said.stdout).contains(part), "{part:?} is not in {}", text(&said.stdout));
    }
    let said = mesh(dir.path(), "node show ALPHA");
    assert!(text(&said.stdout).contains("A100-SXM4-80GB, 80.0 GiB"), "{}", text(&said.stdout));
}

#[test]
fn labels_drain_and_answers_to_requests_reach_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let done = item(json!({}));
    let heard = node(
        dir.path(),
        &[
            ("POST /v1/nodes/gpu-7/labels", 200, done.clone()),
            ("POST /v1/nodes/gpu-7/drain", 200, done.clone()),
            ("POST /v1/requests/2048/grant", 200, done.clone()),
            ("POST /v1/requests/2048/deny", 200, done.clone()),
            ("POST /v1/requests/2048/withdraw", 200, done.clone()),
            ("DELETE /v1/tickets/ab", 200, done),
        ],
    );
    for (line, body) in [
        ("node label gpu-7 zone=ber spot-", json!({ "set": { "zone": "ber" }, "unset": ["spot"] })),
        ("node drain gpu-7", json!({ "on": true })),
        ("node drain gpu-7 --off", json!({ "on": false })),
        ("grant 2048", json!({})),
        ("deny 2048", json!({})),
        ("request withdraw 2048", json!({})),
        ("ticket revoke ab", Value::Null),
    ] {
        let output = mesh(dir.path(), line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        assert_eq!(heard.lock().unwrap().last().unwrap().body, body, "{line}");
    }
}

#[test]
fn what_cannot_be_undone_is_not_done_without_a_yes() {
    let dir = tempfile::tempdir().unwrap();
    // It has ended and is not buried yet, as a node that was stopped may be.
    let gone = Command::new("true").spawn().unwrap().id();
    let found = item(nodes()["items"][1].clone());
    let heard = node(
        dir.path(),
        &[
            ("GET /v1/status", 200, status(gone)),
            ("GET /v1/nodes/beta", 200, found),
            ("POST /v1/leave", 200, item(json!({ "left": true }))),
            ("POST /v1/party/key", 200, item(json!({ "secret": "s3cret" }))),
            (
                &format!("DELETE /v1/nodes/{}", "77b0".repeat(16)),
                200,
                item(json!({ "request": 2048 })),
            ),
        ],
    );
    let key = dir.path().join("offline.key");
    let take_key = format!("party key --remove --out {}", key.display());
    for line in ["leave", "node rm beta", &take_key] {
        let output = mesh(dir.path(), line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(text(&output.stderr).contains("--yes"), "{line}: {}", text(&output.stderr));
    }
    assert!(heard.lock().unwrap().iter().all(|asked| asked.what.starts_with("GET")));

    let output = mesh(dir.path(), "node rm beta --yes");
    assert!(text(&output.stdout).contains("request 2048"), "{output:?}");
    assert_eq!(output.status.code(), Some(5), "it waits for the other parties: {output:?}");
    let output = mesh(dir.path(), "node rm beta --yes --json");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(json_of(&output)["item"]["request"], 2048);
    let output = mesh(dir.path(), &format!("{take_key} --yes"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "s3cret\n");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let removes: Vec<Value> = heard
        .lock()
        .unwrap()
        .iter()
        .filter(|asked| asked.what == "POST /v1/party/key")
        .map(|asked| asked.body["remove"].clone())
        .collect();
    assert_eq!(removes, [false, true], "copied before it is removed");
    let output = mesh(dir.path(), &format!("party key --in {}", key.display()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(heard.lock().unwrap().last().unwrap().body, json!({ "secret": "s3cret" }));
    let output = mesh(dir.path(), "leave --yes");
    assert!(text(&output.stdout).starts_with("alpha has left"), "{output:?}");
}

#[test]
fn whoever_takes_out_the_last_node_of_a_party_is_told_what_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    // It has ended and is not buried yet, as a node that was stopped may be.
    let gone = Command::new("true").spawn().unwrap().id();
    let mut last = status(gone);
    last["item"]["party_nodes"] = json!(1);
    let left = item(json!({ "left": true }));
    let heard = node(dir.path(), &[("GET /v1/status", 200, last), ("POST /v1/leave", 200, left)]);
    let output = mesh(dir.path(), "leave");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("alpha is the last node of party lab") && said.contains("--yes"),
        "{said}"
    );
    assert!(heard.lock().unwrap().iter().all(|asked| asked.what.starts_with("GET")));
    let output = mesh(dir.path(), "leave --yes");
    assert!(text(&output.stdout).starts_with("alpha has left"), "{output:?}");
    assert!(text(&output.stderr).contains("its private datasets"), "{output:?}");
}

#[test]
fn whoever_takes_out_the_last_node_of_all_is_told_that_the_mesh_ends() {
    let dir = tempfile::tempdir().unwrap();
    // It has ended and is not buried yet, as a node that was stopped may be.
    let gone = Command::new("true").spawn().unwrap().id();
    let mut last = status(gone);
    last["item"]["party_nodes"] = json!(1);
    last["item"]["members"] = json!(1);
    let left = item(json!({ "left": true }));
    node(dir.path(), &[("GET /v1/status", 200, last), ("POST /v1/leave", 200, left)]);
    let output = mesh(dir.path(), "leave --yes");
    assert!(text(&output.stdout).starts_with("alpha has left"), "{output:?}");
    assert!(text(&output.stderr).contains("the mesh ends with it"), "{output:?}");
}

#[test]
fn a_leave_that_takes_long_says_so_and_never_that_the_directory_can_go() {
    let dir = tempfile::tempdir().unwrap();
    let waits = json!({ "left": false, "waits_for": "the mesh still counts its vote" });
    node(dir.path(), &[("GET /v1/status", 200, status(1)), ("POST /v1/leave", 200, item(waits))]);
    let output = mesh(dir.path(), "leave --yes --timeout 500ms");
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains("Still leaving: the mesh still counts its vote"), "{said}");
    assert!(said.contains("alpha is still leaving"), "{said}");
    assert!(!out.contains("deleted") && !said.contains("deleted"), "{output:?}");
}

#[test]
fn a_leave_takes_no_longer_than_it_was_given_whatever_it_waits_for() {
    let silent = tempfile::tempdir().unwrap();
    mute(silent.path(), status(1));
    // It has left and does not end: process 1 never does.
    let running = tempfile::tempdir().unwrap();
    let left = item(json!({ "left": true }));
    node(running.path(), &[("GET /v1/status", 200, status(1)), ("POST /v1/leave", 200, left)]);
    for (dir, error, hint) in [
        (silent.path(), "alpha is still leaving", "it goes on leaving by itself"),
        (running.path(), "alpha has left the mesh, and has not stopped yet", "it stops by itself"),
    ] {
        let began = tokio::time::Instant::now();
        let output = mesh(dir, "leave --yes --timeout 1s");
        let took = began.elapsed();
        assert_eq!(output.status.code(), Some(124), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(error) && said.contains(hint), "{said}");
        // Much less than the half minute for which a node is waited for otherwise.
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    }
}

#[test]
fn a_key_that_cannot_be_saved_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let heard =
        node(dir.path(), &[("POST /v1/party/key", 200, item(json!({ "secret": "s3cret" })))]);
    let output = mesh(dir.path(), "party key --remove --yes --out /nonexistent/offline.key");
    assert_eq!(output.status.code(), Some(1));
    assert!(heard.lock().unwrap().iter().all(|asked| asked.body["remove"] == false));
}

#[test]
fn down_waits_until_the_process_is_gone_and_is_content_if_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut sleeper = Command::new("sleep").arg("0.5").spawn().unwrap();
    let heard = node(
        dir.path(),
        &[("GET /v1/status", 200, status(sleeper.id())), ("POST /v1/stop", 200, item(json!({})))],
    );
    let output = mesh(dir.path(), "down --json");
    assert!(output.status.success(), "{output:?}");
    assert!(sleeper.try_wait().unwrap().is_some(), "it returned before the process ended");
    assert_eq!(json_of(&output)["item"]["stopped"], true);
    assert_eq!(heard.lock().unwrap().last().unwrap().what, "POST /v1/stop");

    let stopped = tempfile::tempdir().unwrap();
    std::fs::write(stopped.path().join("member"), "1\n").unwrap();
    assert!(mesh(stopped.path(), "down").status.success());
    assert_eq!(mesh(Path::new("/nonexistent"), "down").status.code(), Some(3));
}

#[test]
fn status_and_down_say_whether_the_node_is_a_member() {
    for (field, shown, standing) in [
        ("removed", "removed", "Stopped. It was removed from its mesh"),
        ("leaving", "leaving", "Stopped. It is on its way out"),
        ("drained", "drained", "Stopped. It is still a member."),
    ] {
        let dir = tempfile::tempdir().unwrap();
        // It has ended and is not buried yet, as a node that was stopped may be.
        let gone = Command::new("true").spawn().unwrap().id();
        let mut it = status(gone);
        it["item"][field] = json!(true);
        node(dir.path(), &[("GET /v1/status", 200, it), ("POST /v1/stop", 200, item(json!({})))]);
        let said = mesh(dir.path(), "status");
        assert!(text(&said.stdout).contains(shown), "{said:?}");
        let warned = text(&said.stderr).contains("was removed from its mesh");
        assert_eq!(warned, field == "removed", "{said:?}");
        let said = mesh(dir.path(), "down");
        assert!(text(&said.stdout).starts_with(standing), "{said:?}");
        let said = json_of(&mesh(dir.path(), "down --json"));
        assert_eq!(said["item"]["removed"], field == "removed", "{said}");
    }
}

#[test]
fn logs_are_printed_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = "GET /v1/nodes/gpu-7/logs?lines=2&follow=false";
    node(dir.path(), &[(path, 200, json!("one\ntwo"))]);
    assert_eq!(text(&mesh(dir.path(), "node logs gpu-7 -n 2").stdout), "one\ntwo\n");
    let lines = mesh(dir.path(), "node logs gpu-7 -n 2 --json");
    let lines: Vec<Value> =
        text(&lines.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[1], json!({ "schema": 1, "node": "gpu-7", "line": "two" }));
}

#[test]
fn a_node_elsewhere_is_asked_with_the_token_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "t0ken\n").unwrap();
    let (address, heard) = remote(&[("GET /v1/status", 200, status(1))]);
    let output = Command::new(env!("CARGO_BIN_EXE_mesh"))
        .args(["status", "--json", "--api", &format!("http://{address}")])
        .env("MESH_TOKEN_FILE", &file)
        .output()
        .unwrap();
    assert_eq!(json_of(&output), status(1));
    assert_eq!(heard.lock().unwrap()[0].token.as_deref(), Some("Bearer t0ken"));
    assert_eq!(heard.lock().unwrap()[0].host, address);
    // By a name, it is asked by the address that the name led to.
    let port = address.rsplit_once(':').unwrap().1;
    assert!(mesh(dir.path(), &format!("status --api http://localhost:{port}")).status.success());
    assert_eq!(heard.lock().unwrap()[1].host, address);
    let output = mesh(dir.path(), &format!("up --api http://{address}"));
    assert_eq!(output.status.code(), Some(2));
    let both = format!("status --api http://{address} --dir {}", dir.path().display());
    assert_eq!(mesh(dir.path(), &both).status.code(), Some(2));
    // A port that was just given back.
    let output = mesh(dir.path(), "status --api http://127.0.0.1:1");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_node_elsewhere_leaves_and_no_directory_here_is_spoken_of() {
    let dir = tempfile::tempdir().unwrap();
    let left = item(json!({ "left": true, "seen_off": true }));
    let answers = [("GET /v1/status", 200, status(1)), ("POST /v1/leave", 200, left)];
    let (address, _) = remote_for(2, &answers);
    let output = mesh(dir.path(), &format!("leave --yes --api http://{address}"));
    assert_eq!(text(&output.stdout), "alpha has left the mesh and stopped.\n", "{output:?}");
}

#[test]
fn a_directory_that_was_typed_goes_before_an_address_in_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let (address, _) = remote(&[("GET /v1/status", 200, status(1))]);
    let asked = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh"));
        command.args(words).env("MESH_API", format!("http://{address}")).output().unwrap()
    };
    assert!(asked(&["status"]).status.success());
    assert_eq!(asked(&["status", "--dir", dir.path().to_str().unwrap()]).status.code(), Some(3));
}

#[test]
fn the_doctor_lists_what_it_found_and_fails_if_something_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let links = items(
        json!([{ "node": { "id": "77b0".repeat(16), "name": "beta" }, "address": "10.0.0.6:6374", "rtt_ms": 0.4 }]),
    );
    let mut well = nodes();
    well["items"][1]["state"] = json!("up");
    let mut here = status(std::process::id());
    here["item"]["data_addresses"] = json!([]);
    node(
        dir.path(),
        &[
            ("GET /v1/status", 200, here.clone()),
            ("GET /v1/nodes", 200, well.clone()),
            ("GET /v1/links", 200, links.clone()),
        ],
    );
    let output = mesh(dir.path(), "doctor --json --free 1MiB");
    let answer = json_of(&output);
    let found = answer["items"].as_array().unwrap();
    assert!(output.status.success(), "{answer}");
    for check in [
        "node",
        "directory",
        "disk",
        "sync",
        "buffers",
        "clock",
        "gpu",
        "docker",
        "voters",
        "member",
    ] {
        assert!(
            found.iter().any(|finding| finding["check"] == check),
            "{check} is not in {answer}"
        );
    }

    // The same connections, and one of those at their ends does not answer any more.
    let dead = tempfile::tempdir().unwrap();
    let reach = items(json!([
        { "node": { "id": "77b0".repeat(16), "name": "beta" }, "answers": false, "took_ms": 2000.0, "why": "silence" },
        { "node": { "id": "91cc".repeat(16), "name": "gamma" }, "answers": true, "took_ms": 0.7, "why": null },
    ]));
    let mut both = links.clone();
    both["items"].as_array_mut().unwrap().push(
        json!({ "node": { "id": "91cc".repeat(16), "name": "gamma" }, "address": "[fd00::7]:6374", "rtt_ms": 0.7 }),
    );
    node(
        dead.path(),
        &[
            ("GET /v1/status", 200, here.clone()),
            ("GET /v1/reach", 200, reach),
            ("GET /v1/nodes", 200, well),
            ("GET /v1/links", 200, both),
        ],
    );
    let output = mesh(dead.path(), "doctor --free 1MiB");
    let said = text(&output.stdout);
    assert!(said.contains("beta is silent: no answer") && !said.contains("beta answers"), "{said}");

    // The same mesh, heard and not reached.
    let cut = tempfile::tempdir().unwrap();
    node(
        cut.path(),
        &[
            ("GET /v1/status", 200, here),
            ("GET /v1/nodes", 200, nodes()),
            ("GET /v1/links", 200, items(json!([]))),
        ],
    );
    let output = mesh(cut.path(), "doctor");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("✗ udp") && said.contains("try: ") && said.contains("wrong"), "{said}");
}

#[test]
fn a_machine_that_is_yet_to_join_is_not_sick() {
    let dir = tempfile::tempdir().unwrap();
    let output = mesh(&dir.path().join("new"), "doctor --free 1MiB");
    assert!(output.status.success(), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("! node"));
    assert!(!dir.path().join("new").exists(), "the doctor makes nothing");
}

#[test]
fn a_service_can_be_looked_at_before_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = mesh(dir.path(), "service install --user --dry-run");
    assert!(text(&output.stdout).contains(&format!("up --dir {}", dir.path().display())));
    let output = Command::new(env!("CARGO_BIN_EXE_mesh"))
        .args(["service", "install", "--user", "--json", "--dir"])
        .arg(dir.path())
        .env("XDG_CONFIG_HOME", dir.path())
        .output()
        .unwrap();
    let written = dir.path().join("systemd/user/mesh.service");
    assert_eq!(json_of(&output)["item"]["path"], written.to_str().unwrap());
    assert!(std::fs::read_to_string(written).unwrap().contains("[Service]"));
}

#[test]
fn a_directory_that_holds_a_node_is_not_founded_again() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("member"), "1\n").unwrap();
    for line in ["init", "join mesh1-a-b-c"] {
        let output = mesh(dir.path(), line);
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(text(&output.stderr).contains("already holds a node"), "{line}");
    }
}

#[test]
fn whoever_makes_a_node_where_there_is_one_is_told_a_way_that_leads_on() {
    let temp = tempfile::tempdir().unwrap();
    let dir = made_in(temp.path());
    let hint = |line: &str| {
        let output = mesh(dir.path(), line);
        let hint = text(&output.stderr).lines().find(|line| line.starts_with("try:"));
        hint.unwrap_or_else(|| panic!("{line}: {output:?}")).to_owned()
    };
    for line in ["init", "join mesh1-a-b-c"] {
        // It is stopped; it runs; it was removed, and runs; it was removed.
        let said = hint(line);
        assert!(said.contains("mesh up starts it") && said.contains("--dir DIR"), "{said}");
        let lock = dir.lock().unwrap();
        let said = hint(line);
        assert!(said.contains("mesh status") && said.contains("--dir DIR"), "{said}");
        assert!(!said.contains("mesh up"), "it runs: {said}");
        dir.note_removed(true).unwrap();
        let said = hint(line);
        assert!(said.contains("mesh down; then") && said.contains("--dir DIR"), "{said}");
        drop(lock);
        let said = hint(line);
        assert!(said.contains("--dir DIR") && said.contains("delete"), "{said}");
        assert!(!said.contains("mesh up") && !said.contains("mesh down"), "{said}");
        let said = hint("status");
        assert!(said.contains("--dir DIR") && !said.contains("mesh up"), "{said}");
        dir.note_removed(false).unwrap();
    }
    let mut membership = dir.membership().unwrap().unwrap();
    membership.left = true;
    dir.keep_membership(&membership).unwrap();
    for line in ["init", "join mesh1-a-b-c", "up", "status"] {
        let said = hint(line);
        assert!(said.contains("--dir DIR") && !said.contains("mesh up"), "{line}: {said}");
    }
}

#[test]
fn a_node_whose_key_is_gone_is_told_so_by_whatever_would_start_or_make_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("member"), "1\n").unwrap();
    std::fs::write(dir.path().join("VERSION"), "mesh 1\n").unwrap();
    std::fs::create_dir(dir.path().join("run")).unwrap();
    for line in ["init", "join mesh1-a-b-c", "up"] {
        let output = mesh(dir.path(), line);
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        let said = text(&output.stderr);
        let hint = said.lines().find(|line| line.starts_with("try:")).unwrap();
        assert!(said.contains("cannot prove who it is"), "{line}: {said}");
        assert!(hint.contains("backup") && hint.contains("mesh node rm NAME"), "{line}: {said}");
        assert!(!hint.contains("mesh init") && !hint.contains("mesh up"), "{line}: {said}");
    }
}

#[test]
fn an_order_that_cannot_be_applied_is_refused_before_anybody_is_asked() {
    let temp = tempfile::tempdir().unwrap();
    let dir = made_in(temp.path());
    let junk = temp.path().join("junk");
    std::fs::write(&junk, "nothing of ours\n").unwrap();
    for (file, cause) in [("junk", "is not an order"), ("absent", "there is no file")] {
        let line = format!("recover apply {}", temp.path().join(file).display());
        for line in [line.clone(), format!("{line} --yes")] {
            let output = mesh(dir.path(), &line);
            assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
            assert!(text(&output.stderr).contains(cause), "{line}: {output:?}");
        }
    }
}

#[test]
fn a_directory_with_a_very_long_name_still_has_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let short = dir.path().join("s");
    node(&short, &[("GET /v1/status", 200, status(1))]);
    let long = dir.path().join("l".repeat(120));
    std::fs::rename(&short, &long).unwrap();
    assert_eq!(json_of(&mesh(&long, "status --json")), status(1));
}

#[test]
fn every_command_has_examples() {
    let lines = [
        "init",
        "join",
        "up",
        "down",
        "leave",
        "status",
        "nodes",
        "node",
        "node show",
        "node rm",
        "node drain",
        "node label",
        "node logs",
        "data",
        "data push",
        "data pull",
        "data ls",
        "data show",
        "data log",
        "data diff",
        "data tag",
        "data share",
        "data unshare",
        "data pin",
        "data rm",
        "data verify",
        "data du",
        "submit",
        "plan",
        "jobs",
        "job",
        "job show",
        "job rm",
        "job retry",
        "job new",
        "logs",
        "stop",
        "wait",
        "explain",
        "stragglers",
        "plot",
        "model",
        "model ls",
        "model show",
        "model pull",
        "ticket",
        "ticket new",
        "ticket ls",
        "ticket revoke",
        "party",
        "party ls",
        "party allow",
        "party key",
        "request",
        "request ls",
        "request show",
        "request withdraw",
        "grant",
        "deny",
        "doctor",
        "config",
        "recover",
        "recover survey",
        "recover choose",
        "recover sign",
        "recover apply",
        "service",
        "service install",
        "demo",
        "train",
        "completions",
    ];
    for line in lines {
        let help = mesh(Path::new("/nonexistent"), &format!("{line} --help"));
        assert!(help.status.success() && text(&help.stdout).contains("Examples"), "{line}");
        for said in text(&help.stdout).lines() {
            assert!(said.chars().count() <= 100, "{line}: {said}");
        }
    }
}

#[test]
fn no_party_is_called_as_every_partys_own_data_is() {
    let dir = tempfile::tempdir().unwrap();
    let line = "init --party each --name first --listen 127.0.0.1:0";
    let output = mesh(&dir.path().join("node"), line);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("each/NAME") && said.contains("--party NAME"), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
}
