//! What the API endures: too much, too slow, and nonsense.
//!
//! `corpus/api/` holds requests, byte for byte, that are wrong in ways which somebody thought of or which once did
//! harm. A name says what must become of one: `bad-…` is refused (4xx), `odd-…` may be answered in any way or not at all.
//! None is ever the node's own failure (5xx), and the node goes on. A request that does harm is added there.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use mesh_node::clock;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::host::{Node, PATIENCE, exchange};

#[test]
fn a_body_that_is_too_long_is_refused_before_it_is_read() {
    let node = Node::start();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let long = "x".repeat((1 << 20) + 1);
    let reply = node.say("POST", "/v1/tickets", headers, &long);
    assert_eq!(reply.status, 413, "{}", reply.head);
    // It says that terabytes follow, and waits.
    let claim = format!("{headers}Content-Length: 99999999999999\r\n");
    assert_eq!(node.say("POST", "/v1/tickets", &claim, "").status, 413);
    // Without a length: chunk after chunk.
    let mut endless =
        format!("POST /v1/tickets HTTP/1.1\r\n{headers}Transfer-Encoding: chunked\r\n\r\n");
    for _ in 0..1100 {
        endless.push_str(&format!("400\r\n{}\r\n", "x".repeat(1024)));
    }
    let stream = UnixStream::connect(node.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let reply = exchange(&stream, endless.as_bytes());
    assert!(reply.is_none_or(|reply| reply.status == 413));
    node.is_up();
}

#[test]
fn headers_without_an_end_are_cut_off() {
    let node = Node::start();
    for piece in ["X-Long: ".to_owned() + &"x".repeat(1 << 20), "X: y\r\n".repeat(10_000)] {
        let mut stream = UnixStream::connect(node.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n");
        let _ = stream.write_all(piece.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    node.is_up();
}

#[test]
fn noise_on_either_door_changes_nothing() {
    let node = Node::start();
    let mut random = fastrand::Rng::with_seed(4);
    for round in 0..60 {
        let mut noise: Vec<u8> = (0..random.usize(1..5000)).map(|_| random.u8(..)).collect();
        if round % 3 == 0 {
            noise.splice(0..0, *b"POST /v1/tickets HTTP/1.1\r\nHost: localhost\r\n");
        }
        let mut socket = UnixStream::connect(node.socket()).unwrap();
        let _ = socket.write_all(&noise);
        let _ = socket.shutdown(Shutdown::Write);
        let mut tcp = TcpStream::connect(node.tcp()).unwrap();
        let _ = tcp.write_all(&noise);
        let _ = tcp.shutdown(Shutdown::Write);
    }
    node.is_up();
    assert_eq!(node.say_tcp("GET", "/healthz", &node.good(), "").status, 200);
}

#[test]
fn those_who_hang_on_tcp_lock_out_nobody_for_long() {
    let node = Node::start();
    let hang = |_| {
        let mut stream = TcpStream::connect(node.tcp()).unwrap();
        let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost:");
        stream
    };
    // More than are served at a time.
    let hanging: Vec<TcpStream> = (0..160).map(hang).collect();
    // The owner is answered all the while.
    node.is_up();
    assert_eq!(node.say_tcp("GET", "/healthz", &node.good(), "").status, 200);
    drop(hanging);
    node.is_up();
}

/// Whether the other side has not closed it.
fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    match stream.read(&mut [0; 4096]) {
        Ok(bytes) => bytes > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn half_headers_on_every_place_make_nobody_wait() {
    let node = Node::start();
    // One that has shown its token, and listens for events.
    let mut known = TcpStream::connect(node.tcp()).unwrap();
    known.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(known, "GET /v1/events HTTP/1.1\r\n{}\r\n", node.good()).unwrap();
    let mut head = [0; 12];
    known.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");

    let hang = |_| {
        let mut stream = TcpStream::connect(node.tcp()).unwrap();
        let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost:");
        stream
    };
    // More than are served at a time.
    let mut hanging: Vec<TcpStream> = (0..200).map(hang).collect();
    let begun = clock::steady();
    assert_eq!(node.say_tcp("GET", "/v1/status", &node.good(), "").status, 200);
    let took = begun.elapsed();
    // Without a place it would have to wait until a header is given up, after ten seconds.
    assert!(took < Duration::from_secs(6), "{took:?}");
    // Those who came first made room, and the one who came before them all did not.
    assert!(!is_open(&mut hanging[0]) && is_open(&mut known));
    drop(hanging);
    node.is_up();
}

#[test]
fn a_queue_of_requests_without_a_token_gets_one_refusal() {
    let node = Node::start();
    let mut stream = TcpStream::connect(node.tcp()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let one = format!("GET /v1/status HTTP/1.1\r\nHost: {}\r\n\r\n", node.tcp());
    // Both fit what is read at once, so nothing is left unread that would reset the connection.
    stream.write_all(one.repeat(2).as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer).to_lowercase();
    assert_eq!(text.matches("http/1.1 401").count(), 1, "{text}");
    assert!(text.contains("connection: close"), "{text}");
    node.is_up();
}

#[test]
fn a_body_that_trickles_is_given_up() {
    let node = Node::start();
    let mut stream = UnixStream::connect(node.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /v1/tickets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let _ = stream.write_all(b" ");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    node.is_up();
}

#[test]
fn the_kept_corpus_is_answered_as_its_names_say_and_the_node_goes_on() {
    let node = Node::start();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/api");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert!(files.len() >= 50, "{files:?}");
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let stream = UnixStream::connect(node.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reply = exchange(&stream, &bytes);
        let status = reply.as_ref().map(|reply| reply.status);
        match name.split('-').next() {
            Some("bad") => assert!(matches!(status, Some(400..500)), "{name}: {reply:?}"),
            Some("odd") => assert!(matches!(status, None | Some(200..500)), "{name}: {reply:?}"),
            _ => panic!("{name} does not say what becomes of it"),
        }
        // What is not even HTTP is refused before our words are reached.
        if let Some(reply) = reply.filter(|reply| reply.status >= 400 && !reply.text.is_empty()) {
            reply.code();
        }
        // At the other door, too, whoever has no token.
        let stream = TcpStream::connect(node.tcp()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reply = exchange(&stream, &bytes);
        let refused = reply.as_ref().is_none_or(|reply| (400..500).contains(&reply.status));
        assert!(refused, "{name} over TCP: {reply:?}");
        node.is_up();
    }
    let status = node.get("/v1/status").item();
    assert!(status["is_leader"] == true && status["members"] == 1, "{status}");
}

/// Parts of paths, known and not.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(vec![
            "v1",
            "status",
            "nodes",
            "first",
            "drain",
            "labels",
            "logs",
            "tickets",
            "parties",
            "party",
            "key",
            "requests",
            "grant",
            "deny",
            "names",
            "lab",
            "xray",
            "links",
            "config",
            "metrics",
            "healthz",
            "readyz",
            "openapi.json",
            "7",
            "0",
            "..",
            "%00",
            "%ff",
            "%2f",
            "",
        ])
        .prop_map(str::to_owned),
        "[!-~]{0,12}".prop_map(|text| text.replace(['?', '#', ' '], "_")),
    ]
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|yes| yes.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f32>().prop_map(|number| if number.is_finite() {
            number.to_string()
        } else {
            "1e999".into()
        }),
        "[a-z0-9.:/-]{0,20}".prop_map(|text| format!("{text:?}")),
        Just(format!("{:?}", "1".repeat(64))),
        any::<String>().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let field = proptest::sample::select(vec![
            "on",
            "set",
            "unset",
            "ttl_ms",
            "uses",
            "worker",
            "new_party",
            "advertise",
            "expect",
            "to",
            "remove",
            "other",
        ]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|all| format!("[{}]", all.join(","))),
            proptest::collection::vec((field, inner), 0..4).prop_map(|all| {
                let all: Vec<String> =
                    all.into_iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
                format!("{{{}}}", all.join(","))
            }),
        ]
    })
}

#[test]
fn no_request_makes_the_node_fail() {
    let node = Node::start();
    let verb = proptest::sample::select(vec!["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"]);
    let any_path = proptest::collection::vec(part(), 0..5).prop_map(|parts| parts.join("/"));
    // Half of them are paths that exist, so that bodies are looked at.
    let real = proptest::sample::select(vec![
        "nodes/first/drain",
        "nodes/first/labels",
        "nodes/first/logs",
        "nodes/first",
        "tickets",
        "tickets/0",
        "requests/7/grant",
        "requests/7",
        "names/lab",
        "names/lab/xray",
        "party/key",
    ]);
    let path = prop_oneof![any_path, real.prop_map(str::to_owned)];
    let query = proptest::option::of("[a-z=&0-9%]{0,20}");
    let strategy = (verb, path, query, proptest::option::of(value()));
    let config = Config { cases: 1000, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&strategy, |(verb, path, query, body)| {
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        // These end the node, or do not end.
        let ends = ["stop", "leave", "events"].iter().any(|word| path.contains(word));
        let removes = verb == "DELETE" && path.contains("nodes");
        prop_assume!(!ends && !removes && !query.contains("follow"));
        let reply =
            node.ask(verb, &format!("/v1/{path}{query}"), body.as_deref().unwrap_or_default());
        prop_assert!(reply.status != 500 && reply.status != 504, "{verb} {path}{query} {reply:?}");
        if reply.status >= 400 && verb != "HEAD" && !reply.text.is_empty() {
            reply.code();
        }
        Ok(())
    });
    outcome.unwrap();
    node.is_up();
}
