//! Streams to tasks on real nodes: commands, files and ports from any node of a job's party, and from no other; and
//! images that any node loads without a registry.
//!
//! What counts is what a person sees: the commands, what they print and how they exit.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

#[path = "security/attacker.rs"]
#[allow(dead_code, reason = "it can do more than is needed here")]
mod attacker;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan, SETTLE};
use mesh_chaos_tests::hosts::leftovers::{MARK, TASK_MARK, mark};
use mesh_chaos_tests::hosts::process::{Host, Said};
use mesh_chaos_tests::hosts::{need, until};
use mesh_node::wire::Header;
use mesh_node::work::stream::{Ask, PortRef};
use serde_json::{Value, json};

use crate::attacker::{Attacker, runtime};

/// How long a command may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Debian's own: what else is on the path may not be for everybody to run.
const PYTHON: &str = "/usr/bin/python3";
const BUSYBOX: &str = "/bin/busybox";

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What a node says of itself, all of it.
fn status(host: &Host) -> Value {
    let answer = host.client().ask("GET", "/v1/status", None, secs(5)).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["item"].clone()
}

fn mesh(host: &Host, words: &[&str]) -> Said {
    host.run(binary().unwrap(), words, PATIENCE).unwrap()
}

fn code(said: &Said) -> Option<i32> {
    said.status.and_then(|status| status.code())
}

/// Runs a command that must end well.
fn done(host: &Host, words: &[&str]) -> String {
    let said = mesh(host, words);
    assert!(said.ok(), "{}: mesh {words:?}: {said:?}", host.name);
    said.stdout
}

/// Runs a command that must not, and says so in its three lines.
fn refused(host: &Host, words: &[&str], why: &str) {
    let said = mesh(host, words);
    assert_eq!(code(&said), Some(1), "{}: mesh {words:?}: {said:?}", host.name);
    assert!(said.is_report() && said.stderr.contains(why), "{why}: {said:?}");
}

/// Runs a command with something to read, and answers with every byte of what it wrote.
fn piped(host: &Host, words: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new("timeout")
        .arg("120")
        .arg(binary().unwrap())
        .args(words)
        .env("MESH_DIR", host.data())
        .env(MARK, mark())
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may end before it has read everything.
    let writes = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writes.join().unwrap();
    output
}

/// A path on a host that is not in its data directory.
fn aside(host: &Host, name: &str) -> PathBuf {
    host.data().parent().unwrap().join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Every file below a directory.
fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(&at).unwrap_or_else(|error| panic!("{at:?}: {error}")).flatten() {
            let path = entry.path();
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(path),
                false => {
                    let body = fs::read(&path).unwrap();
                    found.insert(path.strip_prefix(dir).unwrap().to_path_buf(), body);
                }
            }
        }
    }
    found
}

fn random_bytes(seed: u64, bytes: usize) -> Vec<u8> {
    let mut body = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut body);
    body
}

/// Submits a job through a host; its id. A node says what it has a moment after it has started.
fn submit(host: &Host, file: &str) -> String {
    // So that it goes with this test, however that ends.
    let file = format!("{file}[env]\n{TASK_MARK} = \"{}\"\n", mark());
    let body = json!({ "file": file });
    let mut last = None;
    let id = until(SETTLE, || {
        let answer = host.client().ask("POST", "/v1/jobs", Some(&body), secs(20)).ok()?;
        let id = answer.body["item"]["id"].as_str().map(str::to_owned);
        last = Some(answer.body);
        id
    });
    id.unwrap_or_else(|| panic!("it was not taken: {last:?}"))
}

fn job(host: &Host, id: &str) -> Option<Value> {
    let answer = host.client().ask("GET", &format!("/v1/jobs/{id}"), None, secs(5)).ok()?;
    (answer.status == 200).then(|| answer.body["item"].clone())
}

/// Waits until a host sees a job in this state.
fn until_state(host: &Host, id: &str, state: &str) -> Value {
    let mut last = None;
    let found = until(PATIENCE, || {
        last = job(host, id);
        let over = last.as_ref().is_some_and(|job| job["is_final"] == true);
        last.clone().filter(|job| job["state"] == state || over)
    });
    let found = found.unwrap_or_else(|| panic!("{id} was never {state}: {last:?}"));
    assert_eq!(found["state"], state, "{found}");
    found
}

/// Asks for the end of a job, and waits for it.
fn stop(host: &Host, id: &str) {
    let path = format!("/v1/jobs/{id}/stop");
    let answer = host.client().ask("POST", &path, Some(&json!({})), secs(20)).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_state(host, id, "stopped");
}

/// A node of another party joins.
fn join_another_party(fleet: &mut Fleet) {
    let host = fleet.host(2).unwrap();
    let said = fleet.hosts[0].mesh(&["ticket", "new", "--new-party"]).unwrap();
    let ticket = said.lines().last().unwrap().trim().to_owned();
    let words = ["join", &ticket, "--listen", "127.0.0.1:0", "--name", "n2", "--party", "others"];
    host.mesh(&words).unwrap();
    fleet.hosts.push(host);
    until(SETTLE, || (status(&fleet.hosts[2])["role"] == "voter").then_some(())).expect("it votes");
}

/// The status of an answer to somebody who asks for a stream, by hand.
fn asked_by_hand(host: &Host, path: &str, upgrade: &str) -> (u16, String) {
    let mut socket = UnixStream::connect(host.data().join("run/mesh.sock")).unwrap();
    socket.set_read_timeout(Some(secs(40))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(socket);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let status = first.split(' ').nth(1).unwrap().parse().unwrap();
    let mut rest = String::new();
    if status != 101 {
        let mut bytes = vec![0; 4096];
        let read = reader.read(&mut bytes).unwrap();
        rest = String::from_utf8_lossy(&bytes[..read]).into_owned();
    }
    (status, rest)
}

/// Nobody panicked, and nobody ended who was not asked to.
fn calm(fleet: &Fleet) {
    for host in &fleet.hosts {
        let fell = host.fell();
        assert!(fell.is_none(), "a node fell: {fell:?}");
    }
}

#[test]
fn a_task_is_reached_from_every_node_of_its_party_and_from_no_other() {
    let mut fleet = Plan::loopback(2).found().unwrap();
    join_another_party(&mut fleet);
    let serves = need(&[PYTHON]);
    let then = match serves {
        true => format!("exec {PYTHON} -m http.server --bind 127.0.0.1 $MESH_PORT_HTTP"),
        false => "exec sleep 600".to_owned(),
    };
    let file = format!(
        r#"
name = "web"
run = "echo begun > begun; {then}"
[resources]
cpus = 0.2
memory = "256MiB"
[ports]
http = "auto"
[preempt]
grace = "2s"
[place]
nodes = ["n1"]
"#
    );
    let id = submit(&fleet.hosts[0], &file);
    let running = until_state(&fleet.hosts[0], &id, "running");
    assert_eq!(running["tasks"][0]["node"], "n1", "{running}");
    for host in &fleet.hosts {
        until_state(host, &id, "running");
    }
    let (near, far) = (&fleet.hosts[1], &fleet.hosts[0]);

    commands(far);
    commands(near);
    files(far, near);
    if serves {
        ports(far);
    }
    refused(far, &["port", "web", "ssh", "0"], "http");
    strangers(&fleet);
    by_hand(&mut fleet, &id, running["tasks"][0]["fence"].as_u64().unwrap());

    stop(&fleet.hosts[0], &id);
    refused(&fleet.hosts[0], &["exec", &id, "--", "true"], "does not run");
    fleet.hosts.truncate(2);
    calm(&fleet);
}

/// What a command prints, how it exits, and what it reads.
fn commands(host: &Host) {
    until(SETTLE, || mesh(host, &["exec", "web", "--", "cat", "begun"]).ok().then_some(()))
        .expect("the task has begun");
    let script = "echo out; echo err >&2; cat begun; exit 7";
    for words in [
        &["exec", "web", "--", "sh", "-c", script][..],
        &["exec", "web.0", "--", "sh", "-c", script],
        &["exec", "web", "--task", "0", "--", "sh", "-c", script],
    ] {
        let said = mesh(host, words);
        assert_eq!(code(&said), Some(7), "{}: {said:?}", host.name);
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out\nbegun\n", "err\n"));
    }
    let killed = mesh(host, &["exec", "web", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code(&killed), Some(137), "{killed:?}");
    // One that others have the output of is over when it is over.
    done(host, &["exec", "web", "--", "sh", "-c", "sleep 30 & echo on its own"]);

    let input = random_bytes(7, 300_000);
    let echoed = piped(host, &["exec", "-i", "web", "--", "cat"], &input);
    assert!(echoed.status.success() && echoed.stdout == input, "{:?}", echoed.status);
    let counted =
        piped(host, &["exec", "-i", "web", "--", "sh", "-c", "head -c 10 | wc -c"], &input);
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), "10");
    // Without -i nothing is passed on, and its input is at its end.
    let silent = piped(host, &["exec", "web", "--", "cat"], b"not for you");
    assert!(silent.status.success() && silent.stdout.is_empty(), "{silent:?}");

    let terminal =
        done(host, &["exec", "-t", "web", "--", "sh", "-c", "test -t 0 && test -t 1 && echo yes"]);
    assert_eq!(terminal.trim(), "yes");
    refused(host, &["exec", "web.9", "--", "true"], "no task 9");
    refused(host, &["exec", "never-was", "--", "true"], "never-was");
}

/// Files and directories in and out, byte for byte.
fn files(far: &Host, near: &Host) {
    let source = aside(far, "in");
    fs::create_dir_all(source.join("be low")).unwrap();
    fs::create_dir(source.join("empty")).unwrap();
    fs::write(source.join("large"), random_bytes(1, 3_000_001)).unwrap();
    fs::write(source.join("be low/ümlaut & co"), random_bytes(2, 70_000)).unwrap();
    fs::write(source.join("nothing"), "").unwrap();
    fs::write(source.join("run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(source.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();

    let told: Value =
        serde_json::from_str(&done(far, &["cp", text(&source), "web:", "--json"])).unwrap();
    assert_eq!(
        (&told["item"]["files"], &told["item"]["left_out"]),
        (&json!(4), &json!(0)),
        "{told}"
    );
    // The task can do with it what it likes.
    assert_eq!(done(near, &["exec", "web", "--", "./in/run.sh"]), "ran\n");
    let read = piped(near, &["exec", "web", "--", "cat", "in/large"], b"");
    assert!(read.stdout == fs::read(source.join("large")).unwrap());

    for (host, task) in [(near, "web:in"), (far, "web.0:/work/in/")] {
        let back = aside(host, "back");
        done(host, &["cp", task, text(&back)]);
        assert!(content(&back) == content(&source), "{} {task}", host.name);
        assert!(back.join("empty").is_dir());
        let mode = fs::metadata(back.join("run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o100, 0o100);
    }
    // A file alone: into a directory, and under a name of its own.
    let dir = aside(far, "dir");
    fs::create_dir(&dir).unwrap();
    done(far, &["cp", "web:in/large", text(&dir)]);
    done(far, &["cp", "web:in/large", text(&dir.join("other"))]);
    for name in ["large", "other"] {
        assert!(fs::read(dir.join(name)).unwrap() == fs::read(source.join("large")).unwrap());
    }
    done(far, &["cp", text(&source.join("run.sh")), "web:new/place.sh"]);
    assert_eq!(done(far, &["exec", "web", "--", "new/place.sh"]), "ran\n");

    // Nothing leads out of the task's directory, and a link least of all.
    let away = aside(far, "away");
    done(
        far,
        &[
            "exec",
            "web",
            "--",
            "sh",
            "-c",
            "ln -s /etc out && ln -s ../.. up && ln -s in/large near",
        ],
    );
    for path in ["../../launch", "/etc/passwd", "out/passwd", "up", "up/launch", "in/../../x"] {
        refused(far, &["cp", &format!("web:{path}"), text(&away)], "");
        refused(far, &["cp", text(&source.join("run.sh")), &format!("web:{path}")], "");
    }
    refused(far, &["cp", "web:never", text(&away)], "never");
    assert!(!away.exists());
    done(far, &["cp", "web:near", text(&away)]);
    assert!(fs::read(&away).unwrap() == fs::read(source.join("large")).unwrap());
    assert_eq!(code(&mesh(far, &["cp", text(&source), text(&dir)])), Some(2));
}

/// A port of the task, as if it were here.
fn ports(far: &Host) {
    let page = aside(far, "page.txt");
    fs::write(&page, random_bytes(3, 500_000)).unwrap();
    done(far, &["cp", text(&page), "web:"]);
    let mut forward = Forward::start(far, &["port", "web", "http", "0", "--json"]);
    for _ in 0..3 {
        let body = until(SETTLE, || http(&forward.address, "/page.txt"));
        assert!(body.expect("the server answers") == fs::read(&page).unwrap());
    }
    // Several at a time.
    let bodies: Vec<Option<Vec<u8>>> = std::thread::scope(|scope| {
        let asks: Vec<_> =
            (0..8).map(|_| scope.spawn(|| http(&forward.address, "/page.txt"))).collect();
        asks.into_iter().map(|ask| ask.join().unwrap()).collect()
    });
    assert!(bodies.iter().all(|body| body.as_deref().is_some_and(|body| body.len() == 500_000)));
    assert!(forward.child.try_wait().unwrap().is_none(), "it goes on");
}

/// A `mesh port` that runs.
struct Forward {
    child: Child,
    address: String,
}

impl Forward {
    fn start(host: &Host, words: &[&str]) -> Self {
        let child = host.spawn(binary().unwrap(), words, "forward").unwrap();
        let said = aside(host, "forward.out");
        let address = until(SETTLE, || {
            let line: Value = serde_json::from_str(&fs::read_to_string(&said).ok()?).ok()?;
            Some(line["item"]["address"].as_str()?.to_owned())
        });
        Self { child, address: address.expect("it says where it listens") }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of an answer.
fn http(address: &str, path: &str) -> Option<Vec<u8>> {
    let mut connection = TcpStream::connect(address).ok()?;
    connection.set_read_timeout(Some(secs(20))).ok()?;
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).ok()?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    answer.starts_with(b"HTTP/1.0 200").then(|| answer.split_off(head + 4))
}

/// What the node of another party is told by its own node.
fn strangers(fleet: &Fleet) {
    let other = &fleet.hosts[2];
    let file = aside(other, "file");
    fs::write(&file, "x").unwrap();
    refused(other, &["exec", "web", "--", "true"], "own party");
    refused(other, &["cp", "web:begun", text(&aside(other, "got"))], "own party");
    refused(other, &["cp", text(&file), "web:planted"], "own party");
    let upgrade = "Connection: upgrade\r\nUpgrade: mesh-stream/1\r\n";
    for path in
        ["exec?command=%5B%22true%22%5D", "cp?path=begun", "cp?path=x&put=y", "port?port=http"]
    {
        let path = format!("/v1/jobs/web/{path}");
        let (status, rest) = asked_by_hand(other, &path, upgrade);
        assert_eq!(status, 403, "{path}: {rest}");
        // One of its own party may, and one who does not ask for a stream is told to.
        assert_eq!(asked_by_hand(&fleet.hosts[0], &path, "").0, 426, "{path}");
    }
    let exec = "/v1/jobs/web/exec?command=%5B%22true%22%5D";
    assert_eq!(asked_by_hand(&fleet.hosts[0], exec, upgrade).0, 101);
}

/// What the node of another party is told by the node that has the task, if it speaks by hand.
fn by_hand(fleet: &mut Fleet, id: &str, fence: u64) {
    fleet.hosts[2].kill().unwrap();
    let runtime = runtime();
    let spy = Attacker::takes_over(&runtime, &fleet.hosts[2], "127.0.0.1:0".parse().unwrap());
    let at = spy.meets(&fleet.hosts[1]);
    until(SETTLE, || spy.is_heard(at).then_some(())).expect("it is a member");
    let asks = [
        Ask::Logs { from: Default::default(), follow: false },
        Ask::Exec { argv: vec!["true".into()], tty: None },
        Ask::Get { path: "begun".into() },
        Ask::Put { path: "planted".into(), name: "x".into() },
        Ask::Port { port: PortRef::Name("http".into()) },
    ];
    for ask in asks {
        let header = Header::Task { job: id.parse().unwrap(), task: 0, fence, ask };
        let Ok(mut stream) = spy.wants(at, &header) else { continue };
        let said =
            spy.waits(secs(20), stream.recv_frame(1 << 20)).expect("it neither speaks nor ends");
        assert!(!matches!(said, Ok(Some(_))), "{header:?}: {said:?}");
    }
    spy.stop();
    refused(
        &fleet.hosts[0],
        &["cp", "web:planted", text(&aside(&fleet.hosts[0], "no"))],
        "planted",
    );
}

/// What comes of an image in this machine's Docker. Nothing of that outlives it; it is made before the nodes, and so goes
/// after them.
struct Docker {
    image: String,
    jobs: Vec<String>,
}

/// Runs a program to its end; what it printed, if it ended well.
fn run(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Docker {
    /// `None` if this machine cannot do that.
    fn here() -> Option<Self> {
        if !need(&["docker", "tar", BUSYBOX]) {
            return None;
        }
        if run("docker", &["info"]).is_none() {
            println!("SKIPPED: no Docker answers here");
            return None;
        }
        if run("ldd", &[BUSYBOX]).is_some() {
            println!("SKIPPED: busybox is not static here");
            return None;
        }
        let docker =
            Self { image: format!("mesh-streams-{}:1", std::process::id()), jobs: Vec::new() };
        docker.make();
        Some(docker)
    }

    fn make(&self) {
        let dir = tempfile::tempdir().unwrap();
        let (root, tar) = (dir.path().join("root"), dir.path().join("image.tar"));
        let bin = root.join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy(BUSYBOX, bin.join("busybox")).unwrap();
        for name in ["sh", "cat", "echo", "sleep", "test", "wc"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
        // Whoever runs in there is not the one who made it.
        for dir in [&root, &bin] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        }
        run("tar", &["-C", text(&root), "-cf", text(&tar), "."]).expect("tar packs a directory");
        run("docker", &["import", text(&tar), &self.image]).expect("docker takes an image");
    }

    fn knows_image(&self) -> bool {
        run("docker", &["image", "inspect", &self.image]).is_some()
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let mut ids: Vec<String> = Vec::new();
        for job in &self.jobs {
            let name = format!("name={job}");
            let left = run("docker", &["ps", "-aq", "--filter", &name]).unwrap_or_default();
            for container in left.split_whitespace() {
                let image = run("docker", &["inspect", "-f", "{{.Image}}", container]);
                ids.extend(image.map(|id| id.trim().to_owned()));
                run("docker", &["rm", "-f", container]);
            }
            run("docker", &["network", "rm", &format!("mesh-mesh-{}", &job[..8])]);
        }
        run("docker", &["image", "rm", "-f", &self.image]);
        for id in ids {
            run("docker", &["image", "rm", "-f", &id]);
        }
    }
}

#[test]
fn an_image_that_was_pushed_needs_no_registry() {
    let Some(mut docker) = Docker::here() else { return };
    let fleet = Plan::loopback(2).found().unwrap();
    let (first, second) = (&fleet.hosts[0], &fleet.hosts[1]);
    refused(first, &["image", "push", "mesh-never-was:1"], "mesh-never-was:1");
    let image = docker.image.clone();
    let pushed = until(SETTLE, || {
        let said = mesh(first, &["image", "push", &image, "--json"]);
        // Docker may not have been asked yet.
        said.ok().then_some(said)
    });
    let pushed: Value = serde_json::from_str(&pushed.expect("it is pushed").stdout).unwrap();
    assert_eq!((&pushed["item"]["image"], &pushed["item"]["version"]), (&json!(image), &json!(1)));
    let listed = until(SETTLE, || {
        let listed: Value =
            serde_json::from_str(&done(second, &["image", "ls", "--json"])).unwrap();
        (listed["items"][0]["image"] == image.as_str()).then_some(())
    });
    listed.expect("the other node knows it");

    assert!(docker.knows_image());
    run("docker", &["image", "rm", "-f", &image]).expect("docker lets go of it");
    assert!(!docker.knows_image());
    let file = format!(
        r#"
name = "boxed"
[run]
image = "{image}"
command = ["/bin/sh", "-c", "echo begun > begun; sleep 600"]
[resources]
cpus = 0.2
memory = "64MiB"
[preempt]
grace = "1s"
[place]
nodes = ["n1"]
"#
    );
    let id = submit(first, &file);
    docker.jobs.push(id.clone());
    let running = until_state(first, &id, "running");
    assert_eq!(running["groups"][0]["image"], image.as_str(), "{running}");

    // Containers are reached as processes are.
    until(SETTLE, || mesh(first, &["exec", "boxed", "--", "cat", "begun"]).ok().then_some(()))
        .expect("the task has begun");
    let said = mesh(first, &["exec", "boxed", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(code(&said), Some(7), "{said:?}");
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out\n", "err\n"));
    let input = random_bytes(7, 100_000);
    let echoed = piped(first, &["exec", "-i", "boxed", "--", "cat"], &input);
    assert!(echoed.status.success() && echoed.stdout == input, "{:?}", echoed.status);
    let (there, back) = (aside(first, "there"), aside(first, "back"));
    fs::write(&there, &input).unwrap();
    done(first, &["cp", text(&there), "boxed:sent"]);
    let counted = done(first, &["exec", "boxed", "--", "sh", "-c", "cat sent | wc -c"]);
    assert_eq!(counted.trim(), "100000");
    done(first, &["cp", "boxed:sent", text(&back)]);
    assert!(fs::read(&back).unwrap() == input);

    stop(first, &id);
    done(first, &["image", "rm", &image, "--yes"]);
    let left: Value = serde_json::from_str(&done(first, &["image", "ls", "--json"])).unwrap();
    assert_eq!(left["items"], json!([]), "{left}");
    calm(&fleet);
}

#[test]
fn a_shell_for_a_moment_is_a_job_that_ends_with_it() {
    let fleet = Plan::loopback(2).found().unwrap();
    let host = &fleet.hosts[0];
    let ran = until(SETTLE, || {
        let said =
            mesh(host, &["run", "--cpus", "0.1", "--", "sh", "-c", "echo $MESH_JOB_NAME; exit 3"]);
        (code(&said) == Some(3)).then_some(said)
    });
    assert_eq!(ran.expect("it runs").stdout, "run\n");
    let typed = piped(host, &["run", "-i", "--cpus", "0.1"], b"echo typed\nexit 5\n");
    assert_eq!(typed.status.code(), Some(5), "{typed:?}");
    assert_eq!(String::from_utf8_lossy(&typed.stdout), "typed\n");
    let ended = until(SETTLE, || {
        let answer = host.client().ask("GET", "/v1/jobs", None, secs(5)).ok()?;
        (answer.body["items"] == json!([])).then_some(())
    });
    ended.expect("no job is left");
    calm(&fleet);
}
