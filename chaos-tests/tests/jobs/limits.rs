//! What a job is held to, and what it can see of others: on nodes that are root, and have cgroups.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mesh_chaos_tests::hosts::fleet::Plan;
use serde_json::Value;

use crate::{Ground, WAIT, aside, code, text};

/// Whether nodes can keep tasks apart and limit them here.
fn has_limits() -> bool {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: a node that is not root cannot keep tasks apart");
        return false;
    }
    let either = ["/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/cgroup.controllers"];
    if !either.iter().any(|path| Path::new(path).exists()) {
        println!("SKIPPED: this machine has no cgroups that limit memory");
        return false;
    }
    true
}

#[test]
fn a_process_that_takes_too_much_memory_is_killed_and_its_neighbour_goes_on() {
    if !has_limits() {
        return;
    }
    let ground = Ground::new(1);
    let needs = "[resources]\ncpus = 0.5\nmemory = \"64MiB\"\n";
    let neighbour = format!("name = \"neighbour\"\nrun = \"echo one; {WAIT}; echo two\"\n{needs}");
    let neighbour = ground.submit(0, &neighbour);
    ground.until_line(0, &neighbour, 0, "one");
    let before = ground.until_state(0, &neighbour, "running");

    // All of its buffer is written to: more than it may have, and no more than any machine has.
    let greedy = "dd if=/dev/zero of=/dev/null bs=400M count=1";
    // In itself, and in a process that it has started and left.
    for run in [greedy.to_owned(), format!("({greedy}) & wait $!")] {
        let said = ground.follow(0, &format!("name = \"greedy\"\nrun = \"{run}\"\n{needs}"));
        assert_eq!(code(&said), Some(1), "{said:?}");
        assert!(said.stderr.contains("killed: memory"), "{said:?}");
        let job = ground.job(0, "greedy").unwrap();
        assert_eq!(job["state"], "failed", "{job}");
        assert_eq!(job["reason"], "killed: memory", "{job}");
        assert_eq!(job["tasks"][0]["exit_code"], 137, "{job}");
    }
    let after = ground.until_state(0, &neighbour, "running");
    assert_eq!(after["tasks"], before["tasks"], "its neighbour was disturbed");
    ground.let_go(&after, 0);
    ground.done(0, &neighbour);
    assert_eq!(ground.printed(0, &neighbour), "one\ntwo\n");
    ground.calm();
}

#[test]
fn a_process_that_writes_more_than_its_disk_is_ended_once() {
    let ground = Ground::new(1);
    let run = format!("dd if=/dev/zero of=large bs=1M count=8 2>/dev/null; {WAIT}");
    let needs = "[resources]\ncpus = 0.5\ndisk = \"4MiB\"\n";
    let said = ground.follow(0, &format!("name = \"writes\"\nrun = \"{run}\"\n{needs}"));
    assert_eq!(code(&said), Some(1), "{said:?}");
    let job = ground.job(0, "writes").unwrap();
    assert_eq!(job["state"], "failed", "{job}");
    assert_eq!(job["tasks"][0]["attempt"], 1, "{job}");
    assert!(job["reason"].as_str().unwrap().starts_with("killed: disk"), "{job}");
    ground.calm();
}

/// A job with a secret, data, and files that everybody may read who gets there.
const VICTIM: &str = r#"
name = "victim"
run = '''
umask 022
echo private > mine
echo private > /tmp/left-by-other
echo private > /run/lock/left-by-other
echo "user $(id -u)"
echo "pid $$"
while [ ! -e go ]; do sleep 0.1; done
'''
[resources]
cpus = 0.5
[data]
train = "train"
[secrets]
TOKEN = "file:token.txt"
"#;

/// The job that looks around.
const PROBE: &str = r#"
name = "probe"
[run]
command = ["sh", "probe.sh"]
code = "."
[resources]
cpus = 0.5
"#;

/// Says of each try whether it worked. What it is tried on is put before it.
const PROBES: &str = r#"
try() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "$name OK"; else echo "$name DENIED"; fi
}
echo "user $(id -u)"
try control-own-environment cat /proc/self/environ
try control-own-file sh -c 'echo x > mine && cat mine'
try control-own-tmp sh -c 'echo x > /tmp/mine && cat /tmp/mine'
try control-own-lock sh -c 'echo x > /run/lock/mine && cat /run/lock/mine'

try node-key cat "$dir/node.key"
try party-key cat "$dir/party.key"
try token cat "$dir/token"
try state cat "$dir/state.redb"
try store ls "$dir/store"
try socket test -w "$dir/run/mesh.sock"
try node-environment cat "/proc/$node/environ"
try node-root ls "/proc/$node/root/"
try node-directory ls "/proc/$node/root/$dir"

try other-attempts ls "$dir/work"
try other-file cat "$attempt/task/home/mine"
try other-data cat "$attempt/task/data/train/sample"
try other-log ls "$attempt/log"
try other-launch cat "$attempt/launch"
try other-environment cat "/proc/$pid/environ"
try other-working-directory cat "/proc/$pid/cwd/mine"
try other-root cat "/proc/$pid/root/work/mine"
try other-signal kill -0 "$pid"
try any-environment sh -c 'grep -aq "$1" /proc/[0-9]*/environ' sh "$secret"
try any-tmp cat /tmp/left-by-other
try any-lock cat /run/lock/left-by-other

try supervisor ls "/proc/$PPID/cwd/"
try docker test -w /var/run/docker.sock
try docker-too test -w /run/docker.sock
try root sh -c 'test "$(id -u)" = 0'
try host-file sh -c 'echo x > /etc/mesh-was-here'
"#;

#[test]
fn a_job_cannot_reach_the_node_or_another_job() {
    if !has_limits() {
        return;
    }
    // With a port that wants a token, so that there is one to read.
    let ground = Ground::of(Plan::loopback(1).setting("MESH_API_LISTEN", "127.0.0.1:0"));
    let host = &ground.hosts[0];
    let data = aside(host, "train");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("sample"), "of the other").unwrap();
    ground.data(0, &["push", text(&data)]);
    let secret: String = (0..32).map(|_| fastrand::lowercase()).collect();
    fs::write(aside(host, "token.txt"), &secret).unwrap();
    let victim = ground.submit(0, VICTIM);
    let pid = ground.until_line(0, &victim, 0, "pid ");
    let user = ground.until_line(0, &victim, 0, "user ");
    let job = ground.job(0, &victim).unwrap();
    let home = ground.home(&job, 0);
    let attempt = home.ancestors().nth(2).unwrap();
    let dir = host.data();

    // All of it is there, or a denial would mean nothing.
    for name in ["node.key", "party.key", "token", "state.redb", "run/mesh.sock"] {
        assert!(dir.join(name).exists(), "there is no {name}");
    }
    for name in ["task/home/mine", "task/data/train/sample", "log", "launch"] {
        assert!(attempt.join(name).exists(), "there is no {name}");
    }
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(String::from_utf8_lossy(&environ).contains(&secret), "it has no secret to steal");

    let project = aside(host, "project");
    fs::create_dir_all(&project).unwrap();
    let node = host.client().status().unwrap().pid;
    let (dir, attempt) = (dir.display(), attempt.display());
    let places = format!("dir={dir}\nattempt={attempt}\npid={pid}\nnode={node}\nsecret={secret}\n");
    fs::write(project.join("probe.sh"), format!("{places}{PROBES}")).unwrap();
    let file = project.join("job.toml");
    fs::write(&file, ground.marked(PROBE)).unwrap();
    let said = ground.mesh(0, &["submit", text(&file)]);
    assert!(said.ok(), "{said:?}");

    let told: BTreeMap<&str, &str> =
        said.stdout.lines().filter_map(|line| line.split_once(' ')).collect();
    let tries = PROBES.lines().filter_map(|line| line.strip_prefix("try ")?.split(' ').next());
    let mut count = 0;
    for name in tries {
        let expected = if name.starts_with("control-") { "OK" } else { "DENIED" };
        assert_eq!(told.get(name), Some(&expected), "{name}: {said:?}");
        count += 1;
    }
    assert!(count > 20, "{count} tries");
    assert_ne!(told["user"], user, "two jobs have one user");
    assert!(!["0", ""].contains(&told["user"]) && user != "0", "{said:?}");
    // Whoever was looked at never noticed.
    let after = ground.until_state(0, &victim, "running");
    ground.let_go(&after, 0);
    ground.done(0, &victim);
    ground.calm();
}

#[test]
fn a_party_has_at_once_what_it_is_allowed_and_no_more() {
    let ground = Ground::new(1);
    let parties = || -> Value {
        let said = ground.mesh(0, &["party", "ls", "--json"]);
        serde_json::from_str(&said.stdout).unwrap()
    };
    let party = parties()["items"][0]["name"].as_str().unwrap().to_owned();
    let allow = |limit: &str| {
        let said = ground.mesh(0, &["party", "allow", &party, "--weight", "3", "--cpus", limit]);
        assert!(said.ok(), "{said:?}");
    };
    allow("0.5");
    let shown = parties();
    assert_eq!(shown["items"][0]["weight"], 3, "{shown}");
    assert_eq!(shown["items"][0]["quota_cpus"], 0.5, "{shown}");

    let job =
        |name: &str| format!("name = \"{name}\"\nrun = \"{WAIT}\"\n[resources]\ncpus = 0.3\n");
    let first = ground.submit(0, &job("first"));
    let running = ground.until_state(0, &first, "running");
    let second = ground.submit(0, &job("second"));
    ground.until_state(0, &second, "waiting");
    let said = ground.mesh(0, &["explain", &second]);
    for part in ["its party has what it may have", "quota", "has room"] {
        assert!(said.stdout.contains(part), "{part} is not in {said:?}");
    }
    allow("any");
    let other = ground.until_state(0, &second, "running");
    for job in [running, other] {
        ground.let_go(&job, 0);
        ground.done(0, job["id"].as_str().unwrap());
    }
    for wrong in [["--weight", "0"], ["--cpus", "-1"], ["--gpus", "0.5"]] {
        let said = ground.mesh(0, &[&["party", "allow", &party], &wrong[..]].concat());
        assert!(!said.ok() && said.is_report(), "{said:?}");
    }
    ground.calm();
}
