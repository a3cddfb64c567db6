//! Whole commands on real nodes of this machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use mesh_consensus::id::{MeshId, PartyId};
use mesh_consensus::time::Time;
use mesh_transport::identity::NodeKey;
use mesh_transport::ticket::{Kind, Meet, Ticket};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

#[path = "real/envelope.rs"]
mod envelope;

/// `mesh WORDS` on a directory, as somebody who has set nothing.
fn command(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh"));
    for name in ["MESH_API", "MESH_TOKEN_FILE", "MESH_LOG", "MESH_LISTEN", "MESH_NVML_LIB"] {
        command.env_remove(name);
    }
    command.args(words).env("MESH_DIR", dir).stdin(Stdio::null());
    command
}

/// Runs it to its end.
fn mesh(dir: &Path, words: &[&str]) -> Output {
    command(dir, words).output().expect("mesh starts")
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

    fn join(ticket: &str, name: &str) -> Self {
        let node = Self(tempfile::tempdir().expect("a temporary directory"));
        let joined = node.mesh(&["join", ticket, "--listen", "127.0.0.1:0", "--name", name]);
        assert!(joined.status.success(), "{joined:?}");
        node
    }

    fn mesh(&self, words: &[&str]) -> Output {
        mesh(self.0.path(), words)
    }

    /// What it says of itself; null if nobody answers.
    fn status(&self) -> Value {
        let said = lines(&self.mesh(&["status", "--json"]));
        said.first().map_or(Value::Null, |answer| answer["item"].clone())
    }

    /// Waits until something is so of it.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        for _ in 0..600 {
            if is_so(&self.status()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("never: {what}: {}", self.status());
    }

    /// Kills it without a word, and nothing of it is left.
    fn destroy(self) {
        let pid = self.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        kill(Pid::from_raw(pid.expect("it runs")), Signal::SIGKILL).expect("it is ours");
    }

    /// What it answers on its socket, as another program asks it: the head, too.
    fn get(&self, path: &str) -> String {
        let socket = self.0.path().join("run/mesh.sock");
        let mut stream = UnixStream::connect(socket).expect("the node listens");
        let asks = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(asks.as_bytes()).expect("it takes a question");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
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
    // All forty take too long without optimisation, and nothing is asked of the accuracy of fewer.
    let mut demo = command(dir.path(), &["demo", "--json"]);
    let output = demo.env("MESH_DEMO_ROUNDS", "6").env("TMPDIR", dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = lines(&output);
    assert!(lines.iter().all(|line| line["schema"] == 1), "{lines:?}");
    let events = [
        "founding",
        "joining",
        "consent",
        "agreed",
        "pushed",
        "submitted",
        "coordinator",
        "round",
        "killed",
        "failover",
        "resumed",
        "restarting",
        "returned",
        "trained",
    ];
    for event in events {
        assert!(lines.iter().any(|line| line["event"] == event), "{event}: {lines:?}");
    }
    let figures = &lines.last().unwrap()["item"];
    assert_eq!((&figures["nodes"], &figures["rounds"]), (&json!(3), &json!(6)));
    assert_eq!(figures["leader_kills"], 1);
    // Whoever guesses is right once in ten times; a party that is away takes five digits with it.
    let accuracy = figures["accuracy"].as_f64().unwrap();
    assert!((0.3..=1.0).contains(&accuracy), "{figures}");
    assert!(figures["seconds"].is_f64(), "{figures}");
    for figure in ["election_ms", "failover_ms", "resume_ms", "return_ms", "took_ms"] {
        assert!(figures[figure].is_u64(), "{figures}");
    }
    assert_eq!(figures["parties"].as_array().map(Vec::len), Some(3), "{figures}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
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
fn a_taken_udp_port_names_its_holder_and_nothing_of_a_node_is_left_behind() {
    let thief = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = thief.local_addr().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let refused = mesh(&dir, &["init", "--listen", &at.to_string()]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = text(&refused.stderr);
    let taken = format!("error: port {} is in use on 127.0.0.1\n", at.port());
    assert!(said.starts_with(&taken), "{said}");
    assert!(said.contains(&format!("(process {}) holds it\n", std::process::id())), "{said}");

    assert!(!dir.exists(), "{:?}", files(&dir));
    // A directory that was there before stays, with what was in it.
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), "mdns = false\n").unwrap();
    let refused = mesh(&dir, &["init", "--listen", &at.to_string()]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(files(&dir), ["config.toml"]);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "no directory was added to it");
    drop(thief);
    let made = mesh(&dir, &["init", "--listen", "127.0.0.1:0"]);
    assert!(made.status.success(), "{made:?}");
    assert!(mesh(&dir, &["down"]).status.success());
}

#[test]
fn the_gpus_of_a_machine_are_in_the_list_of_nodes_and_in_the_metrics() {
    let temp = tempfile::tempdir().unwrap();
    let library = temp.path().join("libnvidia-ml.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../node/tests/fake_nvml.c");
    let mut cc = Command::new("cc");
    let built = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status().unwrap();
    assert!(built.success());
    let node = Node(tempfile::tempdir().unwrap());
    let mut init = command(node.0.path(), &["init", "--listen", "127.0.0.1:0"]);
    let made = init.env("MESH_NVML_LIB", &library).output().unwrap();
    assert!(made.status.success(), "{made:?}");

    // A driver is asked by a thread of its own, and the answer is taken up every few seconds.
    let seen = (0..600).find_map(|_| {
        let answer = lines(&node.mesh(&["nodes", "--json"])).first()?["items"][0].clone();
        let gpus = answer["gpus"].as_array().filter(|gpus| !gpus.is_empty()).cloned();
        if gpus.is_none() {
            std::thread::sleep(Duration::from_millis(100));
        }
        gpus
    });
    let gpus = seen.expect("its GPUs are seen within a minute");
    assert_eq!(gpus.len(), 2, "{gpus:?}");
    assert_eq!(gpus[0]["name"], "NVIDIA A100-SXM4-80GB");
    assert_eq!((&gpus[0]["health"], &gpus[0]["mig"]), (&json!("good"), &json!(2)));
    let busy = &gpus[1];
    for (field, want) in [
        ("name", json!("NVIDIA H100 80GB HBM3")),
        ("uuid", json!("GPU-ffeeddcc-bbaa-9988-7766-554433221100")),
        ("memory_bytes", json!(80u64 << 30)),
        ("memory_used_bytes", json!(3u64 << 30)),
        ("utilisation_ratio", json!(0.87)),
        ("temperature_c", json!(91)),
        ("power_w", json!(699)),
        ("processes", json!(1)),
        ("health", json!("ecc, repair pending, hot, xid")),
    ] {
        assert_eq!(busy[field], want, "{field}: {busy}");
    }

    let metrics = node.get("/metrics");
    for (name, value) in [
        ("mesh_gpu_memory_bytes", "85899345920"),
        ("mesh_gpu_memory_used_bytes", "3221225472"),
        ("mesh_gpu_utilisation_ratio", "0.87"),
        ("mesh_gpu_temperature_celsius", "91"),
        ("mesh_gpu_power_watts", "699"),
        ("mesh_gpu_healthy", "0"),
    ] {
        let line = format!("{name}{{gpu=\"1\",model=\"NVIDIA H100 80GB HBM3\"}} {value}");
        assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
    }
    let quiet = "mesh_gpu_healthy{gpu=\"0\",model=\"NVIDIA A100-SXM4-80GB\"} 1";
    assert!(metrics.lines().any(|line| line == quiet), "{metrics}");
    // The driver does not say how busy a GPU is that is split.
    assert!(!metrics.contains("mesh_gpu_utilisation_ratio{gpu=\"0\""), "{metrics}");
}

/// Every file beneath a directory, by its path from there.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("it can be read").flatten() {
        let name = entry.file_name().into_string().expect("mesh writes UTF-8");
        if entry.path().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|file| format!("{name}/{file}")));
        } else {
            found.push(name);
        }
    }
    found
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

#[test]
fn a_failed_join_names_each_address_that_it_tried_and_how_that_failed() {
    // Both are held at once, so that they differ, and then given back: nothing listens there.
    let held = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let dead: [SocketAddr; 2] = held.map(|socket| socket.local_addr().unwrap());
    let ticket = Ticket {
        mesh: MeshId([1; 32]),
        party: PartyId([2; 32]),
        kind: Kind::Member,
        expires: Time(u64::from(u32::MAX) * 1000),
        uses: 1,
        seed: [3; 32],
        meet: vec![Meet { node: NodeKey::generate().id(), addresses: dead.to_vec() }],
    };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let lost = mesh(&dir, &["join", &ticket.to_string(), "--listen", "127.0.0.1:0"]);
    assert_eq!(lost.status.code(), Some(3), "{lost:?}");
    let said = text(&lost.stderr);
    let cause = said.lines().find_map(|line| line.strip_prefix("cause: ")).unwrap();
    let tried: Vec<&str> = cause.split("; ").collect();
    assert_eq!(tried.len(), 2, "{said}");
    for address in dead {
        let start = format!("{address}: ");
        let how = tried.iter().find_map(|one| one.strip_prefix(start.as_str()));
        assert!(how.is_some_and(|how| !how.is_empty()), "{address}: {said}");
    }
    assert!(!dir.exists(), "nothing was begun");
}

#[test]
fn the_ticket_of_a_new_mesh_is_good_for_25_machines_and_a_day() {
    let (node, made) = Node::init(&[]);
    let made = lines(&made)[0]["item"].clone();
    let listed = lines(&node.mesh(&["ticket", "ls", "--json"]))[0]["items"].clone();
    let [ticket] = listed.as_array().unwrap().as_slice() else { panic!("one ticket: {listed}") };
    assert_eq!((&ticket["id"], &ticket["state"]), (&made["ticket_id"], &json!("good")));
    assert_eq!((&ticket["uses_left"], &ticket["kind"]), (&json!(25), &json!("member")));
    let format = &time::format_description::well_known::Rfc3339;
    let expires = ticket["expires_at"].as_str().unwrap();
    let expires = time::OffsetDateTime::parse(expires, format).unwrap().unix_timestamp();
    let now = i64::try_from(mesh_node::clock::now().0 / 1000).unwrap();
    // A day, give or take what a busy machine takes to get here.
    assert!((86_400 - 600..=86_400 + 60).contains(&(expires - now)), "{expires} at {now}");
}

/// As `mesh help recover` says it.
#[test]
fn the_last_of_three_voters_recovers_the_mesh_leads_it_and_takes_a_write() {
    let (node, made) = Node::init(&["--name", "a"]);
    let ticket = lines(&made)[0]["item"]["ticket"].as_str().unwrap().to_owned();
    let others = ["b", "c"].map(|name| Node::join(&ticket, name));
    node.until("all three vote", |status| status["voters"] == 3);
    let labelled = node.mesh(&["node", "label", "a", "zone=ber"]);
    assert!(labelled.status.success(), "{labelled:?}");
    let labels = || {
        let shown = lines(&node.mesh(&["node", "show", "a", "--json"]));
        shown[0]["item"]["labels"].clone()
    };
    assert_eq!(labels(), json!({ "zone": "ber" }));
    for lost in others {
        lost.destroy();
    }

    let papers = tempfile::tempdir().unwrap();
    let [survey, order] = ["a.survey", "order"].map(|name| papers.path().join(name));
    let (survey, order) = (survey.to_str().unwrap(), order.to_str().unwrap());
    let too_early = node.mesh(&["recover", "survey", "--out", survey]);
    assert_eq!(too_early.status.code(), Some(1), "{too_early:?}");
    assert!(text(&too_early.stderr).contains("try:   mesh down"), "{too_early:?}");
    assert!(node.mesh(&["down"]).status.success());

    let step = |words: &[&str]| {
        let done = node.mesh(&[&["recover", "--json"], words].concat());
        assert!(done.status.success(), "{words:?}: {done:?}");
        lines(&done)[0]["item"].clone()
    };
    let surveyed = step(&["survey", "--out", survey]);
    let chosen = step(&["choose", survey, survey, "--out", order]);
    assert_eq!(chosen["survivor"], surveyed["node"]);
    assert_eq!(chosen["surveyed"], 1, "twice the same is one survey");
    assert_eq!(step(&["sign", order])["signatures"], 1);
    // The one step that cannot be undone is not done in passing.
    let unsure = node.mesh(&["recover", "apply", order]);
    assert_eq!(unsure.status.code(), Some(2), "{unsure:?}");
    let begun = step(&["apply", order, "--yes"]);
    assert_eq!((&begun["epoch"], &begun["node"]), (&json!(1), &surveyed["node"]));
    assert!(Path::new(begun["kept"].as_str().unwrap()).exists(), "the old log is kept");

    let mut up = command(node.0.path(), &["up"]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    node.until("it leads alone", |status| {
        status["is_leader"] == true && status["epoch"] == 1 && status["voters"] == 1
    });
    let written = node.mesh(&["node", "label", "a", "rack=7"]);
    assert!(written.status.success(), "{written:?}");
    assert_eq!(labels(), json!({ "zone": "ber", "rack": "7" }), "and nothing was forgotten");
    for lost in ["b", "c"] {
        let removed = node.mesh(&["node", "rm", lost, "--yes"]);
        assert!(removed.status.success(), "{removed:?}");
    }
    node.until("the lost ones are gone", |status| status["members"] == 1);
    assert!(node.mesh(&["down"]).status.success());
    up.wait().unwrap();
}
