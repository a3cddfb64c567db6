//! Jobs in Docker, in an image that is made here of busybox: there is no registry.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use mesh_chaos_tests::hosts::fleet::SETTLE;
use mesh_chaos_tests::hosts::{need, until};

use crate::{Ground, aside, code, submitted, text};

const BUSYBOX: &str = "/bin/busybox";
/// What busybox is in the image.
const PROGRAMS: [&str; 9] = ["sh", "cat", "dd", "echo", "id", "ls", "mkdir", "sleep", "touch"];

/// Runs a program to its end; what it printed, if it ended well.
fn run(program: &str, words: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(words).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An image, and what comes of it in this machine's Docker. Nothing of that outlives it; it is made before the nodes,
/// and so goes after them.
struct Docker {
    image: String,
    nodes: RefCell<Vec<String>>,
    jobs: RefCell<Vec<String>>,
}

impl Docker {
    /// `None` if this machine cannot do that.
    fn here() -> Option<Self> {
        if !need(&["docker", "tar", "ldd", BUSYBOX]) {
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
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let image = format!("mesh-test-{}-{number}:1", std::process::id());
        let docker = Self { image, nodes: RefCell::default(), jobs: RefCell::default() };
        docker.make();
        Some(docker)
    }

    fn make(&self) {
        let dir = tempfile::tempdir().unwrap();
        let (root, tar) = (dir.path().join("root"), dir.path().join("image.tar"));
        let bin = root.join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy(BUSYBOX, bin.join("busybox")).unwrap();
        for name in PROGRAMS {
            symlink("busybox", bin.join(name)).unwrap();
        }
        // Whoever runs in there is not the one who made it.
        for dir in [&root, &bin] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        }
        run("tar", &["-C", text(&root), "-cf", text(&tar), "."]).expect("tar packs a directory");
        run("docker", &["import", text(&tar), &self.image]).expect("docker takes an image");
    }

    /// A mesh of one node.
    fn ground(&self) -> Ground {
        let ground = Ground::new(1);
        self.nodes.borrow_mut().extend(ground.nodes.clone());
        ground
    }

    /// Submits a job; its id. A node says that it has Docker a moment after it has started.
    fn submit(&self, ground: &Ground, job: &str) -> String {
        let file = ground.file(0, job);
        let said = until(SETTLE, || {
            let said = ground.mesh(0, &["submit", text(&file), "-d", "--json"]);
            (code(&said) != Some(4)).then_some(said)
        });
        let id = submitted(&said.expect("the node has Docker"));
        self.jobs.borrow_mut().push(id.clone());
        id
    }

    /// A job that runs this in the image, with more of its file below.
    fn job(&self, name: &str, command: &str, more: &str) -> String {
        let image = &self.image;
        format!(
            r#"
name = "{name}"
[run]
image = "{image}"
command = '''{command}'''
[resources]
cpus = 0.5
memory = "32MiB"
{more}
"#
        )
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        for node in self.nodes.borrow().iter() {
            let label = format!("label=mesh.node={node}");
            let left = run("docker", &["ps", "-aq", "--filter", &label]).unwrap_or_default();
            for container in left.split_whitespace() {
                run("docker", &["rm", "-f", container]);
            }
        }
        for job in self.jobs.borrow().iter() {
            run("docker", &["network", "rm", &format!("mesh-mesh-{}", &job[..8])]);
        }
        run("docker", &["rmi", "-f", &self.image]);
    }
}

#[test]
fn a_container_reads_its_data_is_not_root_and_leaves_an_output() {
    let Some(docker) = Docker::here() else { return };
    let ground = docker.ground();
    let data = aside(&ground.hosts[0], "train");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("greeting"), "good morning\n").unwrap();
    ground.data(0, &["push", text(&data)]);
    let command = r#"
echo "user $(id -u)"
cat /data/train/greeting
if touch /data/train/new; then echo "new OK"; else echo "new DENIED"; fi
if touch /data/train/greeting; then echo "old OK"; else echo "old DENIED"; fi
if [ -e /var/run/docker.sock ]; then echo "socket OK"; else echo "socket DENIED"; fi
echo "in $(pwd), task $MESH_TASK_INDEX"
mkdir out
echo made > out/file
"#;
    let more = "[data]\ntrain = \"train\"\n[output]\nmade = \"out\"\n";
    let id = docker.submit(&ground, &docker.job("reads", command, more));
    ground.done(0, &id);
    let printed = ground.printed(0, &id);
    let lines: Vec<&str> = printed.lines().collect();
    let expected =
        ["good morning", "new DENIED", "old DENIED", "socket DENIED", "in /work, task 0"];
    assert_eq!(lines[1..], expected, "{printed}");
    assert!(lines[0].starts_with("user ") && lines[0] != "user 0", "{printed}");
    let made = ground.only_version(0, "made");
    assert_eq!(fs::read_to_string(made.join("file")).unwrap(), "made\n");
    assert_eq!(fs::read_to_string(data.join("greeting")).unwrap(), "good morning\n");

    let id = docker.submit(&ground, &docker.job("seven", "echo so far; exit 7", ""));
    let job = ground.until_state(0, &id, "failed");
    assert_eq!(job["reason"], "exit code 7", "{job}");
    assert_eq!(ground.printed(0, &id), "so far\n");
    ground.calm();
}

#[test]
fn a_container_that_takes_too_much_memory_is_killed_and_a_missing_image_fails_its_job() {
    let Some(docker) = Docker::here() else { return };
    let ground = docker.ground();
    let greedy = "echo begins; dd if=/dev/zero of=/dev/null bs=300M count=1";
    let id = docker.submit(&ground, &docker.job("greedy", greedy, ""));
    let job = ground.until_state(0, &id, "failed");
    assert_eq!(job["reason"], "killed: memory", "{job}");
    assert_eq!(ground.printed(0, &id), "begins\n");

    // Nobody listens there, so that nobody has to be waited for.
    let absent = "name = \"absent\"\n[run]\nimage = \"127.0.0.1:1/absent:1\"\ncommand = \"true\"\n";
    let absent = docker.submit(&ground, absent);
    let next = docker.submit(&ground, &docker.job("next", "echo next", ""));
    let job = ground.until_state(0, &absent, "failed");
    assert!(job["reason"].as_str().unwrap().contains("no image 127.0.0.1:1/absent:1"), "{job}");
    ground.done(0, &next);
    assert_eq!(ground.printed(0, &next), "next\n");

    // A program that the image does not have is named by the job's reason, or by what it printed.
    let wrong = docker.job("wrong", "x", "").replace("'''x'''", "[\"no-such-program\"]");
    let id = docker.submit(&ground, &wrong);
    let job = ground.until_state(0, &id, "failed");
    let said = ground.mesh(0, &["logs", &id]);
    let told = format!("{} {}", job["reason"], said.stderr);
    assert!(told.contains("no-such-program"), "{told}");
    ground.calm();
}

#[test]
fn a_container_goes_on_without_its_node_and_is_stopped_by_the_next() {
    let Some(docker) = Docker::here() else { return };
    let mut ground = docker.ground();
    let command = "trap 'echo caught; exit 0' TERM; echo ready; while true; do sleep 1; done";
    let id = docker.submit(&ground, &docker.job("stays", command, ""));
    ground.until_line(0, &id, 0, "ready");
    let before = ground.until_state(0, &id, "running");
    let label = format!("label=mesh.node={}", ground.nodes[0]);
    let containers = || run("docker", &["ps", "-q", "--filter", &label]).unwrap();
    let running = containers();
    assert_eq!(running.lines().count(), 1, "{running}");
    ground.hosts[0].kill_node().unwrap();
    assert_eq!(containers(), running);
    crate::up(&mut ground.hosts[0]);
    ground.settle().unwrap();
    let after = ground.until_state(0, &id, "running");
    assert_eq!(after["tasks"][0]["fence"], before["tasks"][0]["fence"], "{after}");
    assert_eq!(containers(), running);
    assert!(ground.mesh(0, &["stop", &id, "--wait"]).ok());
    ground.until_state(0, &id, "stopped");
    assert_eq!(ground.printed(0, &id), "ready\ncaught\n");
    let gone = until(SETTLE, || containers().is_empty().then_some(()));
    assert!(gone.is_some(), "it is left behind: {}", containers());
    ground.calm();
}
