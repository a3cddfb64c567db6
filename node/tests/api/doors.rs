//! Who may ask: files, tokens, hosts and origins.

use std::os::unix::fs::PermissionsExt;

use super::host::Node;

const VERBS: [&str; 7] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"];

fn mode(path: impl AsRef<std::path::Path>) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_socket_and_the_token_are_the_owners_alone() {
    let node = Node::start();
    assert_eq!(mode(node.socket()), 0o600);
    assert_eq!(mode(node.dir.file("run")), 0o700);
    assert_eq!(mode(node.dir.file("token")), 0o600);
    assert_eq!(node.token().len(), 64);
}

#[test]
fn tcp_opens_to_the_token_and_to_nothing_else() {
    let node = Node::start();
    assert_eq!(node.say_tcp("GET", "/v1/status", &node.good(), "").status, 200);
    let host = format!("Host: {}\r\n", node.tcp());
    let wrong = ["", &"0".repeat(64), &node.token()[..63], &format!("{}0", node.token())]
        .map(|token| format!("{host}Authorization: Bearer {token}\r\n"));
    let basic = format!("{host}Authorization: Basic {}\r\n", node.token());
    for headers in wrong.iter().chain([&host, &basic]) {
        for verb in VERBS {
            for path in ["/v1/status", "/healthz", "/metrics", "/v1/stop", "/nothing"] {
                if path == "/healthz" && headers == &host && ["GET", "HEAD"].contains(&verb) {
                    continue;
                }
                let reply = node.say_tcp(verb, path, headers, "");
                assert_eq!(reply.status, 401, "{verb} {path} {headers}");
                assert!(reply.head.contains("www-authenticate: bearer"), "{reply:?}");
            }
        }
    }
    // Twice is an attempt to be read in two ways.
    let twice = format!("{}Authorization: Bearer x\r\n", node.good());
    assert_eq!(node.say_tcp("GET", "/v1/status", &twice, "").status, 400);
    node.is_up();
}

#[test]
fn with_any_port_the_status_says_at_each_start_which_one_it_is() {
    let node = Node::start().stop().start();
    let status = node.get("/v1/status").item();
    assert_eq!(status["api_address"], node.tcp().to_string());
    assert_eq!(node.say_tcp("GET", "/v1/status", &node.good(), "").status, 200);
}

#[test]
fn without_a_token_tcp_says_whether_the_node_is_well_and_nothing_else() {
    let node = Node::start();
    let host = format!("Host: {}\r\n", node.tcp());
    // Nobody waits for a body that nobody wants.
    let waits = format!("{host}Content-Length: 999999\r\n");
    for path in ["/healthz", "/readyz", "/readyz?verbose=1"] {
        for headers in [&host, &waits] {
            let said = node.say_tcp("GET", path, headers, "");
            assert_eq!((said.status, said.text.as_str()), (200, r#"{"ok":true}"#), "{path}");
        }
        assert_eq!(node.say_tcp("HEAD", path, &host, "").status, 200, "{path}");
        // To its owner it says more, and to pages and by other names nothing.
        assert!(node.say_tcp("GET", path, &node.good(), "").json()["index"].is_u64(), "{path}");
        assert_eq!(node.say_tcp("GET", path, "Host: evil.example\r\n", "").status, 421, "{path}");
        let page = format!("{host}Origin: http://evil.example\r\n");
        assert_eq!(node.say_tcp("GET", path, &page, "").status, 403, "{path}");
    }
    for path in ["/healthz/", "//healthz", "/healthz/../v1/status", "/%68ealthz", "/HEALTHZ"] {
        assert_eq!(node.say_tcp("GET", path, &host, "").status, 401, "{path}");
    }
}

#[test]
fn an_auditors_token_reads_and_changes_nothing() {
    let node = Node::start();
    assert_eq!(mode(node.dir.file("token.auditor")), 0o600);
    let token = std::fs::read_to_string(node.dir.file("token.auditor")).unwrap();
    let host = format!("Host: {}\r\nAuthorization: Bearer {}\r\n", node.tcp(), token.trim());
    for path in ["/v1/status", "/v1/nodes", "/metrics"] {
        assert_eq!(node.say_tcp("GET", path, &host, "").status, 200, "{path}");
    }
    let json = format!("{host}Content-Type: application/json\r\n");
    for (verb, path) in [
        ("POST", "/v1/stop"),
        ("POST", "/v1/tickets"),
        ("DELETE", "/v1/nodes/first"),
        ("PUT", "/v1/names/lab/x"),
    ] {
        let reply = node.say_tcp(verb, path, &json, "{}");
        assert_eq!(reply.status, 403, "{verb} {path}");
        assert!(reply.text.contains("only read"), "{reply:?}");
    }
    // A command in a task is asked for with GET, and changes what it likes.
    let upgrade = "Connection: upgrade\r\nUpgrade: mesh-stream/1\r\n";
    let owner = format!("Host: {}\r\nAuthorization: Bearer {}\r\n", node.tcp(), node.token());
    for path in ["/v1/jobs/x/exec?command=[]", "/v1/jobs/x/cp?path=a", "/v1/jobs/x/port?port=a"] {
        let reply = node.say_tcp("GET", path, &format!("{host}{upgrade}"), "");
        assert_eq!(reply.status, 403, "{path}");
        assert!(reply.text.contains("only read"), "{reply:?}");
        // There is no such job; and without an upgrade there is no stream.
        let status = |headers: &str| node.say_tcp("GET", path, headers, "").status;
        assert_eq!(status(&format!("{owner}{upgrade}")), 404, "{path}");
        assert_eq!((status(&owner), status(&host)), (426, 426), "{path}");
    }
    node.is_up();
}

#[test]
fn a_host_that_the_owner_listed_is_taken_exactly_and_its_pages_alone() {
    let node = Node::start_with("api_hosts = [\"gpu-1.example:6376\", \"127.0.0.1:9000\"]");
    let bearer = format!("Authorization: Bearer {}\r\n", node.token());
    let ask = |host: &str, more: &str| {
        let headers = format!("Host: {host}\r\n{bearer}{more}");
        node.say_tcp("GET", "/v1/status", &headers, "").status
    };
    assert_eq!(ask("gpu-1.example:6376", ""), 200);
    assert_eq!(ask("127.0.0.1:9000", ""), 200);
    assert_eq!(ask("gpu-1.example:6376", "Origin: http://gpu-1.example:6376\r\n"), 200);
    for host in ["gpu-1.example", "gpu-1.example:6377", "x.gpu-1.example:6376", "127.0.0.1:9001"] {
        assert_eq!(ask(host, ""), 421, "{host}");
    }
    for origin in ["http://gpu-1.example", "https://gpu-1.example:6376", "http://127.0.0.1:9000"] {
        assert_eq!(ask("gpu-1.example:6376", &format!("Origin: {origin}\r\n")), 403, "{origin}");
    }
    let refused = node.say_tcp("GET", "/", &format!("Host: other.example\r\n{bearer}"), "");
    assert!(refused.json()["error"]["try"].as_str().unwrap().contains("api_hosts"), "{refused:?}");
}

#[test]
fn a_page_of_another_site_is_refused_on_every_verb_and_through_every_door() {
    let node = Node::start();
    let foreign =
        ["https://evil.example", "null", "http://127.0.0.1", "http://localhost", "https://x:1"];
    for verb in VERBS {
        for origin in foreign {
            for path in ["/v1/status", "/v1/stop", "/v1/nodes/first"] {
                let headers = format!("{}Origin: {origin}\r\n", node.good());
                let reply = node.say_tcp(verb, path, &headers, "");
                assert_eq!(reply.status, 403, "{verb} {path} {origin}");
                assert!(!reply.head.contains("access-control"), "{reply:?}");
                let reply =
                    node.say(verb, path, &format!("Host: localhost\r\nOrigin: {origin}\r\n"), "");
                assert_eq!(reply.status, 403, "{verb} {path} {origin}");
            }
        }
        let headers = format!("{}Sec-Fetch-Site: cross-site\r\n", node.good());
        assert_eq!(node.say_tcp(verb, "/v1/status", &headers, "").status, 403);
    }
    let own = format!("{}Origin: http://{}\r\n", node.good(), node.tcp());
    assert_eq!(node.say_tcp("GET", "/v1/status", &own, "").status, 200);
    node.is_up();
}

#[test]
fn a_name_that_was_made_to_lead_here_is_refused() {
    let node = Node::start();
    let (port, token) = (node.tcp().port(), node.token());
    let hosts = [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        format!("0.0.0.0:{port}"),
        "127.0.0.1".to_owned(),
        "127.0.0.1:1".to_owned(),
        String::new(),
    ];
    for host in &hosts {
        for verb in VERBS {
            let headers = format!("Host: {host}\r\nAuthorization: Bearer {token}\r\n");
            assert_eq!(node.say_tcp(verb, "/v1/status", &headers, "").status, 421, "{verb} {host}");
        }
    }
    let authorization = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(node.say_tcp("GET", "/v1/status", &authorization, "").status, 421);
    let twice = format!("{}Host: evil.example\r\n", node.good());
    assert_eq!(node.say_tcp("GET", "/v1/status", &twice, "").status, 400);
    assert_eq!(node.say_tcp("GET", "http://evil.example/v1/status", &node.good(), "").status, 421);
    assert_eq!(node.say("GET", "/v1/status", "Host: evil.example\r\n", "").status, 421);
    let local = format!("Host: localhost:{port}\r\n{authorization}");
    assert_eq!(node.say_tcp("GET", "/v1/status", &local, "").status, 200);
}

#[test]
fn what_a_form_can_send_is_not_taken() {
    let node = Node::start();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"] {
        for body in ["", r#"{"uses":1}"#] {
            let headers = format!("Host: localhost\r\nContent-Type: {kind}\r\n");
            let reply = node.say("POST", "/v1/tickets", &headers, body);
            assert_eq!(reply.status, 415, "{kind}");
            reply.code();
        }
    }
    assert_eq!(node.say("POST", "/v1/tickets", "Host: localhost\r\n", "{}").status, 415);
    let headers = "Host: localhost\r\nContent-Type: application/json; charset=utf-8\r\n";
    assert_eq!(node.say("POST", "/v1/nodes/first/drain", headers, "{}").status, 200);
}

#[test]
fn answers_are_not_kept_and_not_guessed_at() {
    let node = Node::start();
    for path in ["/v1/status", "/metrics", "/nothing"] {
        let head = node.get(path).head;
        assert!(head.contains("cache-control: no-store"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(!head.contains("access-control"), "{head}");
    }
}
