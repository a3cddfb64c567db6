//! The parameter server on real nodes: it trains in every mode, and outlives its nodes.
//!
//! Workers are `steps.py`: with plain SGD of rate 1 each value of the model counts the pushes that were applied to it. So a push that was
//! lost or applied twice can be seen: of workers that stay, one push of every step counts, no more and no less; of batches that are handed
//! out, every one; and a bulk-synchronous step adds one, whoever is there.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use mesh_chaos_tests::hosts::client;
use mesh_chaos_tests::hosts::fleet::SETTLE;
use mesh_chaos_tests::hosts::ground::{Ground, PATIENCE, aside, long, text, up};
use mesh_chaos_tests::hosts::until;
use serde_json::Value;

use crate::{MODULES, PYTHON, has_python, weights, write_images};

/// Nodes of one party.
const HOSTS: usize = 4;
const WORKERS: u64 = 3;
const STEPS: u64 = 150;
/// In the long run.
const TRIALS: usize = 200;
/// The worker that counts.
const STEPS_PY: &str = include_str!("steps.py");
const CODE: &str = "steps";

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// The primary of the first shard.
    Primary,
    /// Its backup.
    Backup,
    /// Both at once.
    Both,
    /// Whoever holds the lease of the training.
    Coordinator,
    /// Whoever leads the mesh.
    Leader,
    /// The host of a worker.
    Worker,
}

const VICTIMS: [Victim; 6] = [
    Victim::Primary,
    Victim::Backup,
    Victim::Both,
    Victim::Coordinator,
    Victim::Leader,
    Victim::Worker,
];

/// How the workers go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Bulk,
    Async,
    Dynamic,
}

/// One kill.
#[derive(Debug)]
struct Trial {
    name: String,
    victim: Victim,
    way: Way,
    /// All that runs on the host, and not the node alone.
    whole: bool,
}

/// A job of `steps.py`, with more in its `[server]`.
fn counting(name: &str, steps: u64, nap: f64, more: &str) -> String {
    format!(
        r#"
name = "{name}"
kind = "parameter-server"
[run]
command = ["{PYTHON}", "steps.py"]
code = "{CODE}"
[params]
nap = {nap}
[resources]
cpus = 1
memory = "128MiB"
[preempt]
grace = "1s"
[retry]
attempts = 20
backoff = "200ms"
[server]
workers = {WORKERS}
steps = {steps}
shards = 4
checkpoint = 20
{more}
[server.sgd]
rate = 1
"#
    )
}

fn ground() -> Ground {
    let ground = Ground::new(HOSTS);
    let code = aside(&ground.hosts[0], CODE);
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("steps.py"), STEPS_PY).unwrap();
    ground
}

fn course(ground: &Ground, host: usize, id: &str) -> Option<Value> {
    let path = format!("/v1/jobs/{id}/course");
    let answer = ground.hosts[host].client().ask("GET", &path, None, client::PATIENCE).ok()?;
    (answer.status == 200).then(|| answer.body["item"].clone())
}

/// Waits until this is true of the course of a job.
fn until_course(
    ground: &Ground,
    host: usize,
    id: &str,
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = None;
    let found = until(PATIENCE, || {
        last = course(ground, host, id).or(last.take());
        last.clone().filter(|course| is(course))
    });
    found.unwrap_or_else(|| panic!("{id} is never {what}: {last:?} {:?}", ground.job(host, id)))
}

fn host_named(ground: &Ground, name: &Value) -> Option<usize> {
    ground.hosts.iter().position(|host| Some(host.name.as_str()) == name.as_str())
}

/// Every value of the only model of this name.
fn values(ground: &Ground, host: usize, name: &str) -> Vec<f32> {
    weights(&ground.only_version(host, name))
}

/// Waits until a job is over, and demands that it is done.
fn ends(ground: &Ground, host: usize, id: &str) -> Value {
    ground.done(host, id);
    let course = until_course(ground, host, id, "judged", |course| !course["verdict"].is_null());
    assert_eq!(course["verdict"]["state"], "done", "{course}");
    assert_eq!(course["round"], course["rounds"], "{course}");
    course
}

/// The hosts to kill, by now.
fn find(ground: &Ground, id: &str, victim: Victim) -> Vec<usize> {
    let all_ready = |course: &Value| {
        let shards = course["shards"].as_array();
        shards.is_some_and(|shards| shards.iter().all(|shard| shard["stage"] == "ready"))
    };
    let course = until_course(ground, 0, id, "ready", all_ready);
    let shard = &course["shards"][0];
    let named = |name: &Value| host_named(ground, name);
    let found = match victim {
        Victim::Primary => vec![named(&shard["primary"])],
        Victim::Backup => vec![named(&shard["backup"])],
        Victim::Both => vec![named(&shard["primary"]), named(&shard["backup"])],
        Victim::Coordinator => vec![named(&course["coordinator"])],
        Victim::Leader => vec![until(SETTLE, || ground.leader())],
        Victim::Worker => {
            let job = ground.job(0, id).unwrap();
            vec![Some(ground.node_of(&job, 0))]
        }
    };
    found.into_iter().map(|host| host.unwrap_or_else(|| panic!("nobody: {course}"))).collect()
}

/// Nodes are killed and come back; what was acknowledged is there, and nothing twice.
fn survives(ground: &mut Ground, trial: &Trial) {
    println!("{trial:?}");
    let Trial { name, victim, way, whole } = trial;
    let (steps, more) = match way {
        Way::Bulk => (STEPS, "mode = \"bulk\""),
        Way::Async => (STEPS, "mode = \"async\""),
        Way::Dynamic => (WORKERS * STEPS, "mode = \"async\"\nbatches = \"dynamic\""),
    };
    let id = ground.submit(0, &counting(name, steps, 0.05, more));
    let begun = |course: &Value| course["round"].as_u64().is_some_and(|round| round >= 20);
    until_course(ground, 0, &id, "under way", begun);
    let who = find(ground, &id, *victim);
    for host in &who {
        match whole {
            true => ground.hosts[*host].kill().unwrap(),
            false => ground.hosts[*host].kill_node().unwrap(),
        }
    }
    // Long enough for others to take over.
    sleep(Duration::from_secs(6));
    for host in &who {
        up(&mut ground.hosts[*host]);
    }
    let course = ends(ground, 0, &id);
    let found = values(ground, 0, name);
    let pushes = (STEPS * WORKERS) as f32;
    let wanted = match (way, victim) {
        (Way::Bulk, _) => STEPS as f32..=STEPS as f32,
        (Way::Dynamic, _) => pushes..=pushes,
        // Workers that died, and shards that went back, leave out what was on its way.
        (Way::Async, Victim::Both) => 1.0..=pushes,
        (Way::Async, _) if *whole => pushes - 3.0..=pushes,
        (Way::Async, _) => pushes..=pushes,
    };
    let (least, most) = found
        .iter()
        .fold((f32::MAX, f32::MIN), |(least, most), value| (least.min(*value), most.max(*value)));
    assert!(
        wanted.contains(&least) && wanted.contains(&most),
        "{trial:?}: {least} to {most} instead of {wanted:?}: {course}"
    );
    ground.settle().unwrap();
}

#[test]
fn a_parameter_server_trains_in_every_mode_and_people_see_how() {
    let ground = Ground::new(3);
    let dir = aside(&ground.hosts[0], "digits");
    write_images(&dir, "train", 8, 600, &[]);
    write_images(&dir, "t10k", 8, 90, &[]);
    ground.data(0, &["push", text(&dir), "--name", "digits"]);
    for (name, more) in [
        ("bulk", "mode = \"bulk\"\nshards = 2"),
        ("bounded", "mode = \"bounded\"\ndelay = 2\nwire = \"f16\"\noptimiser = \"adam\""),
        ("async", "mode = \"async\"\nwire = \"int8\"\noptimiser = \"adagrad\""),
        ("dynamic", "mode = \"async\"\nbatches = \"dynamic\"\nwire = \"bf16\""),
    ] {
        let job = format!(
            r#"
name = "{name}"
kind = "parameter-server"
[run]
trainer = "mlp"
[params]
hidden = 32
batch = 32
[data]
train = "digits"
[resources]
cpus = 1
memory = "256MiB"
[server]
workers = 2
steps = 120
checkpoint = 20
{more}
"#
        );
        let said = ground.follow(0, &job);
        assert!(said.ok(), "{said:?}");
        let id = ground.job(0, name).unwrap()["id"].as_str().unwrap().to_owned();
        let course = ends(&ground, 0, &id);
        let curve = course["curve"].as_array().unwrap();
        let accuracy = curve.iter().rev().find_map(|point| point["metrics"]["accuracy"].as_f64());
        assert!(accuracy.is_some_and(|accuracy| accuracy > 0.85), "{name}: {course}");
        assert!(values(&ground, 0, name).iter().all(|value| value.is_finite()));
        for words in [&["job", "show"][..], &["stragglers"], &["plot"]] {
            let words: Vec<&str> = words.iter().copied().chain([id.as_str()]).collect();
            let said = ground.mesh(0, &words);
            assert!(said.ok(), "{words:?}: {said:?}");
        }
    }
    let listed = ground.mesh(0, &["model", "ls"]);
    assert!(listed.ok() && listed.stdout.contains("bounded"), "{listed:?}");
    ground.calm();
}

#[test]
fn no_acknowledged_push_is_lost_or_applied_twice() {
    if !has_python(MODULES) {
        return;
    }
    let mut ground = ground();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let short = [
        (Victim::Primary, Way::Async, false),
        (Victim::Backup, Way::Async, false),
        (Victim::Coordinator, Way::Async, false),
        (Victim::Leader, Way::Bulk, false),
        (Victim::Worker, Way::Dynamic, true),
        (Victim::Both, Way::Bulk, false),
    ];
    for number in 0..if long() { TRIALS } else { short.len() } {
        let (victim, way, whole) = match long() {
            true => {
                let ways = [Way::Bulk, Way::Async, Way::Dynamic];
                let victim = VICTIMS[random.usize(..VICTIMS.len())];
                (victim, ways[random.usize(..ways.len())], random.bool())
            }
            false => short[number % short.len()],
        };
        survives(&mut ground, &Trial { name: format!("trial-{number}"), victim, way, whole });
    }
    ground.calm();
}
