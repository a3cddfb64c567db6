//! Nodes that die, sleep, are restarted or drained while tasks run on them.

use std::fs;

use mesh_chaos_tests::hosts::client;
use nix::unistd::Pid;
use serde_json::Value;

use crate::{Ground, WAIT, running, until_gone, up};

/// Counts the seconds, from where the last attempt was, until it is let go. Its output says which attempt made it.
const COUNTS: &str = r#"
mkdir -p ckpt out
n=$(cat ckpt/count 2>/dev/null || echo 0)
echo "begins at $n"
while [ ! -e go ]; do
    n=$((n + 1))
    echo $n > next
    mv next ckpt/count
    sleep 1
done
echo $MESH_FENCE > out/fence
"#;

/// A job that counts on one of these nodes. Its output has its name.
fn counting(name: &str, nodes: &[String]) -> String {
    format!(
        r#"
name = "{name}"
run = '''{COUNTS}'''
[checkpoint]
dir = "ckpt"
every = "1s"
[output]
{name} = "out"
[retry]
backoff = "100ms"
[place]
nodes = {nodes:?}
"#
    )
}

/// The names of all hosts but this one.
fn all_but(ground: &Ground, but: usize) -> Vec<String> {
    let hosts = ground.hosts.iter().enumerate().filter(|(number, _)| *number != but);
    hosts.map(|(_, host)| host.name.clone()).collect()
}

fn drain(ground: &Ground, node: &str, words: &[&str]) {
    let words: Vec<&str> = ["node", "drain", node].iter().chain(words).copied().collect();
    let said = ground.mesh(0, &words);
    assert!(said.ok(), "{said:?}");
}

fn fence(job: &Value, task: usize) -> Value {
    job["tasks"][task]["fence"].clone()
}

/// Waits until a job runs with another fence than this one.
fn until_elsewhere(ground: &Ground, ask: usize, id: &str, old: &Value) -> Value {
    ground.until_job(ask, id, "running again", |job| {
        job["state"] == "running" && job["tasks"][0]["fence"] != *old
    })
}

/// There is one version of a name, and this attempt has made it.
fn is_made_by(ground: &Ground, host: usize, name: &str, fence: &Value) {
    let made = ground.only_version(host, name);
    let by = fs::read_to_string(made.join("fence")).unwrap();
    assert_eq!(by.trim(), fence.to_string(), "another attempt has made {name}");
}

/// The node of a job that counts is killed, and nothing else on its host: the task goes on there without counting.
/// It counts elsewhere, from its checkpoint; and the node ends what is not its own when it is back.
fn loses_its_node(ground: &mut Ground, id: &str, name: &str) {
    let first = ground.until_job(0, id, "running with a checkpoint", |job| {
        job["state"] == "running" && !job["tasks"][0]["checkpoint"].is_null()
    });
    let (victim, old) = (ground.node_of(&first, 0), fence(&first, 0));
    let ask = (victim + 1) % ground.hosts.len();
    ground.hosts[victim].kill_node().unwrap();
    assert!(!running(id, &old).is_empty(), "it died with its node");
    let second = until_elsewhere(ground, ask, id, &old);
    assert_ne!(ground.node_of(&second, 0), victim, "{second}");
    let begun: u64 = ground.until_line(ask, id, 0, "begins at ").parse().unwrap();
    assert!(begun > 0, "it begins anew");
    assert!(!running(id, &old).is_empty(), "nobody was there to end it");
    let done = ground.release(ask, id);
    assert_eq!(done["state"], "done", "{done}");
    assert!(done["tasks"][0]["attempt"].as_u64() >= Some(2), "{done}");
    assert_eq!(done["tasks"][0]["failures"], 0, "the loss of a node is no failure: {done}");
    is_made_by(ground, ask, name, &fence(&done, 0));

    up(&mut ground.hosts[victim]);
    until_gone(id, &old);
    ground.settle().unwrap();
    let still = ground.done(victim, id);
    assert_eq!(fence(&still, 0), fence(&done, 0), "{still}");
    is_made_by(ground, victim, name, &fence(&done, 0));
}

#[test]
fn a_task_whose_node_is_killed_goes_on_elsewhere_from_its_checkpoint() {
    let mut ground = Ground::short(3);
    let leader = ground.leader().unwrap();
    let nodes = all_but(&ground, leader);
    let id = ground.submit(0, &counting("of-a-follower", &nodes));
    loses_its_node(&mut ground, &id, "of-a-follower");

    // And of the one who leads, which is where it goes if the others are given nothing.
    let leader = ground.leader().unwrap();
    let others = all_but(&ground, leader);
    others.iter().for_each(|node| drain(&ground, node, &[]));
    let nodes: Vec<String> = ground.hosts.iter().map(|host| host.name.clone()).collect();
    let id = ground.submit(0, &counting("of-the-leader", &nodes));
    let job = ground.until_state(0, &id, "running");
    assert_eq!(ground.node_of(&job, 0), leader, "{job}");
    others.iter().for_each(|node| drain(&ground, node, &["--off"]));
    loses_its_node(&mut ground, &id, "of-the-leader");
    ground.calm();
}

#[test]
fn what_an_attempt_of_a_node_that_slept_has_made_does_not_count() {
    let ground = Ground::short(3);
    let leader = ground.leader().unwrap();
    let id = ground.submit(leader, &counting("made", &all_but(&ground, leader)));
    let first = ground.until_state(leader, &id, "running");
    ground.until_line(leader, &id, 0, "begins at ");
    let (sleeper, old) = (ground.node_of(&first, 0), fence(&first, 0));
    ground.hosts[sleeper].pause();
    // The task itself is awake. It ends well, and leaves an output that only its node could tell of.
    ground.let_go(&first, 0);
    let second = until_elsewhere(&ground, leader, &id, &old);
    assert_ne!(ground.node_of(&second, 0), sleeper, "{second}");
    assert!(ground.home(&first, 0).join("out/fence").exists(), "the first had not ended");
    // It wakes in the belief that the attempt is its own.
    ground.hosts[sleeper].resume();
    ground.settle().unwrap();
    until_gone(&id, &old);
    let done = ground.release(leader, &id);
    assert_eq!(done["state"], "done", "{done}");
    assert_ne!(fence(&done, 0), old);
    for host in 0..3 {
        ground.done(host, &id);
        is_made_by(&ground, host, "made", &fence(&done, 0));
    }
    ground.calm();
}

#[test]
fn a_node_that_is_killed_and_started_again_finds_its_tasks_as_they_are() {
    let mut ground = Ground::new(3);
    let job = |name: &str, end: &str| {
        format!(
            r#"
name = "{name}"
run = '''echo pid $$; {WAIT}; echo later; mkdir out; echo {name} > out/name; {end}'''
[resources]
cpus = 0.25
[output]
{name} = "out"
[place]
nodes = ["n1"]
"#
        )
    };
    let names = ["well", "badly", "alone"];
    let ids = names.map(|name| {
        let end = if name == "badly" { "exit 7" } else { "true" };
        ground.submit(0, &job(name, end))
    });
    let before = ids.each_ref().map(|id| {
        let job = ground.until_state(0, id, "running");
        let pid = Pid::from_raw(ground.until_line(0, id, 0, "pid ").parse().unwrap());
        (job, pid)
    });
    ground.hosts[1].kill_node().unwrap();
    // One of them ends while its node is away.
    let [well, badly, alone] = &ids;
    let [first, second, third] = &before;
    ground.let_go(&third.0, 0);
    until_gone(alone, &fence(&third.0, 0));
    up(&mut ground.hosts[1]);
    ground.settle().unwrap();
    for (id, (job, pid)) in [(well, first), (badly, second)] {
        let now = ground.until_state(1, id, "running");
        assert_eq!(fence(&now, 0), fence(job, 0), "it was begun anew: {now}");
        assert!(running(id, &fence(job, 0)).contains(pid), "it is not the same process");
        ground.let_go(job, 0);
    }
    for id in [well, alone] {
        let job = ground.done(0, id);
        assert_eq!(job["tasks"][0]["exit_code"], 0, "{job}");
    }
    let job = ground.until_state(0, badly, "failed");
    assert_eq!(job["reason"], "exit code 7", "{job}");
    assert_eq!(job["tasks"][0]["exit_code"], 7, "{job}");
    for (id, (_, pid)) in ids.iter().zip(&before) {
        let job = ground.job(0, id).unwrap();
        assert_eq!(job["tasks"][0]["attempt"], 1, "{job}");
        assert_eq!(ground.printed(2, id), format!("pid {pid}\nlater\n"));
    }
    for name in ["well", "alone"] {
        let made = ground.only_version(0, name);
        assert_eq!(fs::read_to_string(made.join("name")).unwrap(), format!("{name}\n"));
    }
    ground.calm();
}

#[test]
fn a_gang_that_loses_one_starts_again_together() {
    const WORKERS: usize = 3;
    let mut ground = Ground::short(4);
    let leader = ground.leader().unwrap();
    let nodes = all_but(&ground, leader);
    let job = format!(
        r#"
name = "gang"
run = '''echo "rank $RANK of $WORLD_SIZE"; echo "spec $PET_RDZV_ID $MESH_HOSTS"; {WAIT}'''
[gang]
workers = {WORKERS}
[resources]
cpus = 0.5
[preempt]
grace = "2s"
[retry]
backoff = "100ms"
[place]
spread = "node"
nodes = {nodes:?}
"#
    );
    let id = ground.submit(leader, &job);
    // All of them run, and have one fence, because one entry has placed them.
    let together = |job: &Value| {
        let tasks = job["tasks"].as_array().unwrap();
        let alike = |task: &Value| task["state"] == "running" && task["fence"] == tasks[0]["fence"];
        tasks.len() == WORKERS && tasks.iter().all(alike)
    };
    let specs = |ground: &Ground| -> Vec<String> {
        (0..WORKERS)
            .map(|task| {
                let rank = ground.until_line(leader, &id, task, "rank ");
                assert_eq!(rank, format!("{task} of {WORKERS}"));
                ground.until_line(leader, &id, task, "spec ")
            })
            .collect()
    };
    let first = ground.until_job(leader, &id, "running together", together);
    let old = fence(&first, 0);
    let before = specs(&ground);
    assert!(before.iter().all(|spec| *spec == before[0]), "they do not agree: {before:?}");
    let victim = ground.node_of(&first, 1);
    ground.hosts[victim].kill_node().unwrap();
    let second = ground.until_job(leader, &id, "running together again", |job| {
        together(job) && fence(job, 0) != old
    });
    assert!((0..WORKERS).all(|task| ground.node_of(&second, task) != victim), "{second}");
    let after = specs(&ground);
    assert!(after.iter().all(|spec| *spec == after[0]), "they do not agree: {after:?}");
    assert_ne!(before[0], after[0], "they would look for the one that is gone");
    up(&mut ground.hosts[victim]);
    until_gone(&id, &old);
    let done = ground.release(leader, &id);
    assert_eq!(done["state"], "done", "{done}");
    let tasks = done["tasks"].as_array().unwrap();
    assert!(tasks.iter().all(|task| task["attempt"].as_u64() >= Some(2)), "{done}");
    ground.calm();
}

#[test]
fn a_drained_node_keeps_what_it_has_and_gets_nothing_new() {
    let ground = Ground::new(3);
    let stays = format!("name = \"stays\"\nrun = \"{WAIT}\"\n[place]\nnodes = [\"n1\"]\n");
    let stays = ground.submit(0, &stays);
    let before = ground.until_state(0, &stays, "running");
    drain(&ground, "n1", &[]);
    let parts = r#"
name = "parts"
array = 6
run = "echo $MESH_NODE"
[resources]
cpus = 0.25
[place]
nodes = ["n1", "n2"]
"#;
    let parts = ground.submit(0, parts);
    let waits = "name = \"waits\"\nrun = \"true\"\n[place]\nnodes = [\"n1\"]\n";
    let waits = ground.submit(2, waits);
    let done = ground.done(0, &parts);
    assert!((0..6).all(|task| ground.node_of(&done, task) == 2), "{done}");
    assert_eq!(ground.job(2, &waits).unwrap()["state"], "waiting");
    let path = format!("/v1/jobs/{waits}/explain");
    let answer = ground.hosts[2].client().ask("GET", &path, None, client::PATIENCE).unwrap();
    let nodes = answer.body["item"]["nodes"].as_array().unwrap();
    let about = nodes.iter().find(|about| about["node"] == "n1").unwrap();
    assert_eq!(about["why"], "is drained", "{}", answer.body);

    ground.let_go(&before, 0);
    let after = ground.done(0, &stays);
    assert_eq!(fence(&after, 0), fence(&before, 0), "{after}");
    drain(&ground, "n1", &["--off"]);
    let job = ground.done(0, &waits);
    assert_eq!(ground.node_of(&job, 0), 1, "{job}");
    ground.calm();
}
