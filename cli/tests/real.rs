//! Whole commands on real nodes of this machine.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// `mesh WORDS` on a directory, as somebody who has set nothing.
fn mesh(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh"));
    for name in ["MESH_API", "MESH_TOKEN_FILE", "MESH_LOG", "MESH_LISTEN"] {
        command.env_remove(name);
    }
    command.args(words).env("MESH_DIR", dir).stdin(Stdio::null()).output().expect("mesh starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("mesh writes UTF-8")
}

fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A node in the background, which goes with its test.
struct Node(tempfile::TempDir);

impl Node {
    fn init(words: &[&str]) -> (Self, Output) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let words = [&["init", "--json", "--listen", "127.0.0.1:0"], words].concat();
        let output = mesh(dir.path(), &words);
        (Self(dir), output)
    }

    fn mesh(&self, words: &[&str]) -> Output {
        mesh(self.0.path(), words)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.mesh(&["down"]);
    }
}

#[test]
fn the_demo_comes_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let output = mesh(dir.path(), &["demo", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let lines = lines(&output);
    assert!(lines.iter().all(|line| line["schema"] == 1), "{lines:?}");
    for event in ["founding", "joining", "agreed", "killed", "failover", "restarting", "returned"] {
        assert!(lines.iter().any(|line| line["event"] == event), "{event}: {lines:?}");
    }
    let figures = &lines.last().unwrap()["item"];
    assert_eq!(figures["nodes"], 3);
    for figure in ["election_ms", "failover_ms", "return_ms", "took_ms"] {
        assert!(figures[figure].is_u64(), "{figures}");
    }
}

#[test]
fn the_doctor_finds_a_new_node_well_and_names_its_ports() {
    let (node, made) = Node::init(&["--api-listen", "127.0.0.1"]);
    assert!(made.status.success(), "{made:?}");
    let made = lines(&made)[0]["item"].clone();
    let port = |address: &Value| -> u16 {
        address.as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
    };
    let (data, api) = (port(&made["data_addresses"][0]), port(&made["api_address"]));
    assert_eq!(api, data + 2, "the API has the third port");

    let output = node.mesh(&["doctor", "--json", "--free", "1MiB"]);
    let found = lines(&output)[0]["items"].as_array().unwrap().clone();
    let is = |check: &str, state: &str, words: &str| {
        found.iter().any(|one| {
            one["check"] == check
                && one["state"] == state
                && one["message"].as_str().unwrap().contains(words)
        })
    };
    assert!(is("node", "ok", "runs as voter"), "{found:?}");
    assert!(is("members", "ok", "alone"), "{found:?}");
    for words in [format!("{data}/udp"), format!("{}/tcp", data + 1), format!("{api}/tcp")] {
        assert!(is("port", "ok", &words), "{words}: {found:?}");
    }

    // Over TCP, by a name.
    let token = node.0.path().join("token.auditor");
    let asked = Command::new(env!("CARGO_BIN_EXE_mesh"))
        .args(["status", "--json", "--api", &format!("http://localhost:{api}")])
        .env("MESH_TOKEN_FILE", token)
        .output()
        .unwrap();
    assert_eq!(lines(&asked)[0]["item"]["id"], made["id"], "{asked:?}");

    // A key that was taken off comes back.
    let key = node.0.path().join("copy.key");
    let key = key.to_str().unwrap();
    assert!(node.mesh(&["party", "key", "--out", key, "--remove", "--yes"]).status.success());
    assert!(!node.mesh(&["ticket", "new"]).status.success(), "there is no key to sign with");
    let back = node.mesh(&["party", "key", "--in", key]);
    assert!(back.status.success(), "{back:?}");
    assert!(node.mesh(&["ticket", "new"]).status.success());

    // Stopped, it misses the port that another program took.
    assert!(node.mesh(&["down"]).status.success());
    let _thief = std::net::TcpListener::bind(("127.0.0.1", api)).unwrap();
    let output = node.mesh(&["doctor", "--json"]);
    assert!(text(&output.stdout).contains("needs it"), "{output:?}");
    let up = node.mesh(&["up"]);
    let said = text(&up.stderr);
    assert!(!up.status.success() && said.contains(&format!("port {api} is in use")), "{said}");
    assert!(said.contains(&format!("(process {})", std::process::id())), "{said}");
}

#[test]
fn a_port_that_is_taken_leaves_no_node_behind() {
    let thief = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = thief.local_addr().unwrap().to_string();
    let (node, refused) = Node::init(&["--api-listen", &at]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    drop(thief);
    let made = node.mesh(&["init", "--listen", "127.0.0.1:0", "--api-listen", &at]);
    assert!(made.status.success(), "{made:?}");
    let said = text(&made.stdout);
    assert!(said.contains(&format!("http://{at}; token in ")), "{said}");
    let config = node.mesh(&["init"]);
    assert!(text(&config.stderr).contains("already holds a node"), "{config:?}");
}

#[test]
fn a_ticket_that_leads_nowhere_exits_3_and_one_of_another_mesh_says_so() {
    let (one, _) = Node::init(&[]);
    let (other, _) = Node::init(&[]);
    let ticket = other.mesh(&["ticket", "new"]);
    let ticket = text(&ticket.stdout).trim().to_owned();
    let refused = one.mesh(&["join", &ticket]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains("a node of another mesh"), "{refused:?}");

    assert!(other.mesh(&["down"]).status.success());
    let empty = tempfile::tempdir().unwrap();
    let lost = mesh(empty.path(), &["join", &ticket, "--listen", "127.0.0.1:0"]);
    assert_eq!(lost.status.code(), Some(3), "{lost:?}");
}
