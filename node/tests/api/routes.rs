//! What each route answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use mesh_node::run::RunError;
use mesh_transport::ticket::{Kind, Ticket};
use serde_json::{Value, json};

use super::host::{Node, PATIENCE};

#[test]
fn every_route_that_is_described_answers() {
    let node = Node::start();
    let description = node.get("/openapi.json").json();
    let mut asked = 0;
    for (path, verbs) in description["paths"].as_object().unwrap() {
        for verb in verbs.as_object().unwrap().keys() {
            // These two end the node, and this one does not end.
            if ["/v1/stop", "/v1/leave", "/v1/events"].contains(&path.as_str()) {
                continue;
            }
            let path: Vec<&str> = path
                .split('/')
                .map(|part| if part.starts_with('{') { "0" } else { part })
                .collect();
            let reply = node.ask(&verb.to_uppercase(), &path.join("/"), "");
            assert_ne!(reply.status, 405, "{verb} {path:?}");
            assert!(!reply.text.contains("no route of this version"), "{verb} {path:?} {reply:?}");
            if reply.status >= 400 {
                reply.code();
            }
            asked += 1;
        }
    }
    assert!(asked >= 25, "{asked}");
    assert_eq!(node.get("/v1/nothing").status, 404);
    assert_eq!(node.get("/v1/nothing").code(), "not_found");
    assert_eq!(node.ask("PUT", "/v1/status", "").status, 405);
    node.ask("PUT", "/v1/status", "").code();
}

#[test]
fn the_status_and_the_list_of_nodes_say_what_this_node_is() {
    let node = Node::start();
    let reply = node.get("/v1/status").json();
    assert_eq!(reply["schema"], 1);
    assert!(reply["index"].is_u64() && reply["age_ms"].is_u64(), "{reply}");
    let status = &reply["item"];
    for (key, want) in [
        ("name", json!("first")),
        ("role", json!("voter")),
        ("members", json!(1)),
        ("party_nodes", json!(1)),
        ("voters", json!(1)),
        ("learners", json!(0)),
        ("worker", json!(false)),
        ("drained", json!(false)),
        ("pid", json!(std::process::id())),
        ("api_address", json!(node.tcp().to_string())),
    ] {
        assert_eq!(status[key], want, "{key}");
    }
    assert_eq!(status["party"], "lab");
    assert_eq!(status["party_id"].as_str().unwrap().len(), 64);
    assert_eq!(status["leader"]["name"], "first");
    for key in ["mesh", "epoch", "version", "level", "term", "commit_index", "mesh_time", "tick_ms"]
    {
        assert!(!status[key].is_null(), "{key}: {status}");
    }
    assert!(!status["data_addresses"].as_array().unwrap().is_empty());

    let all = node.get("/v1/nodes").items();
    assert_eq!(all.len(), 1);
    let one = &all[0];
    assert_eq!(
        (&one["id"], &one["state"], &one["role"]),
        (&status["id"], &json!("up"), &json!("voter"))
    );
    assert_eq!(
        (&one["party"], &one["is_leader"], &one["seen_age_ms"]),
        (&json!("lab"), &json!(true), &json!(0))
    );
    let id = status["id"].as_str().unwrap();
    for wanted in ["first", id, &id[..6], &id[..4]] {
        assert_eq!(node.get(&format!("/v1/nodes/{wanted}")).item()["id"], id);
    }
    // A slip of the finger removes nobody.
    for wanted in [&id[..1], &id[..3]] {
        let refused = node.ask("DELETE", &format!("/v1/nodes/{wanted}"), "");
        assert_eq!(refused.code(), "not_found");
        assert!(refused.text.contains("4 characters"), "{refused:?}");
    }
    assert_eq!(node.get("/v1/nodes/second").code(), "not_found");
    assert!(node.get("/v1/links").items().is_empty());
    let settings = node.get("/v1/config").items();
    let api = settings.iter().find(|one| one["key"] == "api_listen").unwrap();
    assert_eq!((&api["value"], &api["from"]), (&json!("127.0.0.1:0"), &json!("config.toml")));
}

#[test]
fn a_node_can_be_labelled_and_drained() {
    let node = Node::start();
    let body = json!({ "set": { "site": "north", "gpu": "H100" } }).to_string();
    let item = node.ask("POST", "/v1/nodes/first/labels", &body).item();
    assert_eq!(item["labels"], json!({ "site": "north", "gpu": "H100" }));
    node.ask("POST", "/v1/nodes/first/labels", r#"{"unset":["gpu"]}"#).item();
    assert_eq!(node.ask("POST", "/v1/nodes/first/labels", r#"{"set":{"Site":"x"}}"#).status, 400);
    assert_eq!(node.ask("POST", "/v1/nodes/first/labels", "{}").status, 400);
    node.ask("POST", "/v1/nodes/first/drain", r#"{"on":true}"#).item();
    let one = node.get("/v1/nodes/first").item();
    assert_eq!((&one["labels"], &one["state"]), (&json!({ "site": "north" }), &json!("draining")));
    assert_eq!(node.get("/v1/status").item()["drained"], true);
    node.ask("POST", "/v1/nodes/first/drain", r#"{"on":false}"#).item();
    assert_eq!(node.get("/v1/nodes/first").item()["state"], "up");
    assert_eq!(node.ask("POST", "/v1/nodes/first/drain", r#"{"off":true}"#).status, 400);
}

#[test]
fn a_ticket_is_handed_out_once_listed_and_taken_back() {
    let node = Node::start();
    let made =
        node.ask("POST", "/v1/tickets", r#"{"ttl_ms":60000,"uses":3,"advertise":["10.1.2.3"]}"#);
    let made = made.item();
    let ticket: Ticket = made["ticket"].as_str().unwrap().parse().unwrap();
    assert_eq!((ticket.kind, ticket.uses), (Kind::Member, 3));
    assert_eq!(ticket.meet[0].node, node.handle.whoami.node);
    let port = node.handle.net.addresses()[0].port();
    assert_eq!(ticket.meet[0].addresses, [format!("10.1.2.3:{port}").parse().unwrap()]);
    let listed = node.get("/v1/tickets");
    assert!(!listed.text.contains("mesh1-"), "the text is shown once");
    let listed = listed.items();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["id"], &listed[0]["uses_left"]), (&made["id"], &json!(3)));
    assert_eq!((&made["uses"], listed[0].get("uses")), (&json!(3), None));

    let invite =
        node.ask("POST", "/v1/tickets", r#"{"new_party":true,"advertise":["10.1.2.3"]}"#).item();
    assert_eq!(invite["kind"], "new_party");
    assert_eq!(node.get("/v1/tickets").items().len(), 2);
    for made in [&made, &invite] {
        let id = &made["id"].as_str().unwrap()[..12];
        node.ask("DELETE", &format!("/v1/tickets/{id}"), "").item();
    }
    assert!(node.get("/v1/tickets").items().is_empty());
    assert_eq!(node.ask("DELETE", "/v1/tickets/00", "").status, 404);
    for bad in [
        r#"{"uses":0}"#,
        r#"{"ttl_ms":0}"#,
        r#"{"usess":1}"#,
        "[]",
        "nonsense",
        r#"{"uses":-1}"#,
        r#"{"ttl_ms":9999999999999}"#,
    ] {
        let reply = node.ask("POST", "/v1/tickets", bad);
        assert_eq!((reply.status, reply.code().as_str()), (400, "failed"), "{bad}");
    }
}

#[test]
fn a_ticket_that_expires_is_said_to_be_expired_while_nobody_writes() {
    let node = Node::start();
    let made = node.ask("POST", "/v1/tickets", r#"{"ttl_ms":1500}"#).item();
    let all = || node.get("/v1/tickets?all=true").items();
    node.until("it is no longer good", |node| node.get("/v1/tickets").items().is_empty());
    let [one]: [Value; 1] = all().try_into().expect("it is still known");
    assert_eq!((&one["id"], &one["state"]), (&made["id"], &json!("expired")));
    assert_eq!(one["uses_left"], 1);
    // The next one clears it away, and one that is taken back is gone at once.
    let next = node.ask("POST", "/v1/tickets", "{}").item();
    let [one]: [Value; 1] = all().try_into().expect("the next one is alone");
    assert_eq!((&one["id"], &one["state"]), (&next["id"], &json!("good")));
    let id = next["id"].as_str().unwrap();
    node.ask("DELETE", &format!("/v1/tickets/{id}"), "").item();
    assert!(all().is_empty());
}

#[test]
fn a_name_is_set_only_by_who_knows_what_it_stands_for() {
    let node = Node::start();
    let (one, two) = ("1".repeat(64), "2".repeat(64));
    let put = |expect: Value, to: &str| {
        node.ask("PUT", "/v1/names/lab/xray", &json!({ "expect": expect, "to": to }).to_string())
    };
    assert_eq!(node.get("/v1/names/lab/xray").status, 404);
    assert_eq!(put(Value::Null, &one).item()["to"], one);
    let again = put(Value::Null, &two);
    assert_eq!((again.status, again.code().as_str()), (409, "refused"));
    assert_eq!(put(json!(one), &two).status, 200);
    for query in ["", "?stale=true"] {
        assert_eq!(node.get(&format!("/v1/names/lab/xray{query}")).item()["to"], two);
    }
    assert_eq!(node.get("/v1/names/lab").items().len(), 1);
    let drop = |expect: &str| {
        node.ask("DELETE", "/v1/names/lab/xray", &json!({ "expect": expect }).to_string())
    };
    assert_eq!(drop(&one).status, 409);
    assert_eq!(drop(&two).status, 200);
    assert_eq!(node.get("/v1/names/lab/xray").status, 404);
    assert_eq!(node.get("/v1/names/nobody/xray").code(), "not_found");
    assert_eq!(put(Value::Null, "zz").status, 400);
    assert_eq!(node.ask("PUT", "/v1/names/lab/xray", "{}").status, 400);
    assert_eq!(
        node.ask("PUT", "/v1/names/lab/X%20Y", &json!({ "to": one }).to_string()).status,
        400
    );
    assert_eq!(node.get("/v1/names/lab/%ff").status, 400);
    assert_eq!(node.get("/v1/names/lab/xray?stale=perhaps").status, 400);
}

#[test]
fn parties_requests_and_the_partys_key_can_be_had() {
    let node = Node::start();
    let parties = node.get("/v1/parties").items();
    assert_eq!((&parties[0]["name"], &parties[0]["own"]), (&json!("lab"), &json!(true)));
    assert!(node.get("/v1/requests").items().is_empty());
    assert_eq!(node.get("/v1/requests/7").code(), "not_found");
    assert_eq!(node.get("/v1/requests/x").status, 400);
    assert_eq!(node.ask("POST", "/v1/requests/7/grant", "").code(), "not_found");

    let headers = format!("{}Content-Type: application/json\r\n", node.good());
    assert_eq!(node.say_tcp("POST", "/v1/party/key", &headers, "{}").status, 403);
    let secret = node.ask("POST", "/v1/party/key", r#"{"remove":false}"#).item();
    assert_eq!(secret["secret"].as_str().unwrap().len(), 64);
    let removed = node.ask("POST", "/v1/party/key", r#"{"remove":true}"#).item();
    assert_eq!(removed["secret"], secret["secret"]);
    assert!(!node.dir.file("party.key").exists());
    // What seals private data stays.
    assert!(node.dir.file("sealing.key").exists());
    assert_eq!(node.ask("POST", "/v1/party/key", "{}").status, 409);
    let refused = node.ask("POST", "/v1/tickets", r#"{"advertise":["10.1.2.3"]}"#);
    assert_eq!((refused.status, refused.code().as_str()), (409, "refused"));
    let hint = refused.json()["error"]["try"].clone();
    assert!(hint.as_str().unwrap().contains("mesh party key --in FILE"), "{hint}");
}

#[test]
fn prometheus_and_those_who_restart_things_are_answered() {
    let node = Node::start();
    assert_eq!(node.get("/healthz").status, 200);
    assert_eq!(node.get("/readyz").status, 200);
    let page = node.get("/metrics");
    assert!(page.head.contains("text/plain; version=0.0.4"), "{}", page.head);
    for line in ["mesh_is_leader 1", "mesh_members 1", "mesh_voters 1", "mesh_data_links 0"] {
        assert!(page.text.lines().any(|one| one == line), "{line}: {}", page.text);
    }
    for name in [
        "mesh_build_info{",
        "mesh_index ",
        "mesh_commit_index ",
        "mesh_term ",
        "mesh_state_age_seconds ",
        "mesh_overlay_peers ",
        "mesh_process_resident_memory_bytes ",
        "mesh_process_cpu_seconds_total ",
    ] {
        assert!(page.text.lines().any(|one| one.starts_with(name)), "{name}: {}", page.text);
    }
}

#[test]
fn the_end_of_the_log_can_be_read() {
    let node = Node::start();
    std::fs::write(node.dir.log_file(), "one\ntwo\nthree\n").unwrap();
    assert_eq!(node.get("/v1/nodes/first/logs?lines=2").text, "two\nthree\n");
    assert_eq!(node.get("/v1/nodes/first/logs?lines=x").status, 400);
    assert_eq!(node.get("/v1/nodes/nobody/logs").status, 404);
}

#[test]
fn events_are_streamed_until_the_node_stops_and_stopping_is_answered() {
    let mut node = Node::start();
    let mut stream = UnixStream::connect(node.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/x-ndjson\r\n"), "{head}");

    // It heard the head before this happened, so it hears of it.
    let second = Node::join("second", &node);
    let joined = event(&mut stream, "member_joined");
    assert_eq!((&joined["schema"], &joined["text"]), (&json!(1), &json!("second has joined")));
    assert_eq!(joined["about"], second.handle.whoami.node.to_string());
    assert!(joined["index"].is_u64() && joined["time"].is_string(), "{joined}");

    assert_eq!(node.ask("POST", "/v1/stop", "{}").item()["stopping"], true);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    node.ended().unwrap();
    assert!(!node.socket().exists());
}

/// The first event of a kind. Between events stand the lengths of HTTP's chunks.
fn event(stream: &mut impl BufRead, kind: &str) -> Value {
    let mut seen = Vec::new();
    for _ in 0..60 {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "it ended after {seen:?}");
        if line.starts_with('{') {
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["kind"] == kind {
                return event;
            }
            seen.push(event);
        }
    }
    panic!("no {kind} among {seen:?}");
}

#[test]
fn with_the_last_member_the_mesh_ends() {
    let mut node = Node::start();
    assert_eq!(node.ask("POST", "/v1/leave", "{}").item()["left"], true);
    node.ended().unwrap();
    assert!(node.dir.membership().unwrap().unwrap().left);
    let (flags, stop) = (toml::Table::new(), tokio_util::sync::CancellationToken::new());
    let again = mesh_node::run::run(node.dir.clone(), &flags, stop, |_| {});
    let ended = tokio::runtime::Runtime::new().unwrap().block_on(again);
    assert!(matches!(ended, Err(RunError::Left)), "{ended:?}");
}
