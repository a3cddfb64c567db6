//! Training on real nodes: three parties with a node each, whose data stays where it is, and a model that all of them make.
//!
//! What counts is what a person sees: what the commands print, their exit codes, `GET /v1/jobs/{id}/course`, and the bytes in the
//! directories. Nothing is measured here. `MESH_LONG=1` makes the trials more, and adds a story for which PyTorch has to be there.
//!
//! - `plain.rs`: it works, with several strategies, within a budget; and data stays.
//! - `loss.rs`: nodes that are killed and come back.
//! - `odd.rs`: parties that do not want to, lie, sleep or are slow; and a training that somebody stops.
//! - `sdk.rs`: workers in Python with numpy, and with PyTorch.
//! - `server.rs`: a parameter server, in every mode, and nodes that are killed under it.
//!
//! Where a story has to know when a worker goes on, that worker is `worker.py`, and waits for files.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

mod loss;
mod odd;
mod plain;
mod sdk;
mod server;

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;

use mesh_chaos_tests::hosts::client;
use mesh_chaos_tests::hosts::fleet::Plan;
use mesh_chaos_tests::hosts::ground::{Ground, PATIENCE, aside, text};
use mesh_chaos_tests::hosts::{need, until};
use serde_json::Value;

/// The parties, each with one node that is called like it. The first one submits.
const PARTIES: [&str; 3] = ["n0", "n1", "n2"];
/// The party that is different. Its task has the highest number, so the others go first.
const ODD: usize = 2;
/// The system's own, which has the system's numpy: another one may come first on the path.
const PYTHON: &str = "/usr/bin/python3";
/// What the worker wants of it.
const MODULES: &str = "http.client, json, socket, struct";
/// The worker that trains nothing and does as it is told.
const WORKER: &str = include_str!("worker.py");
/// Where it lies, beside the job.toml.
const CODE: &str = "worker";

/// Three parties.
struct Field {
    ground: Ground,
}

impl Deref for Field {
    type Target = Ground;

    fn deref(&self) -> &Ground {
        &self.ground
    }
}

impl DerefMut for Field {
    fn deref_mut(&mut self) -> &mut Ground {
        &mut self.ground
    }
}

/// A job of `worker.py`.
struct Script<'a> {
    name: &'a str,
    rounds: u64,
    /// Lines of `[params]`.
    params: &'a str,
    /// Lines of `[federated]`, and sections after it.
    more: &'a str,
}

impl Script<'_> {
    /// Its job.toml.
    fn toml(&self) -> String {
        let Self { name, rounds, params, more } = self;
        format!(
            r#"
name = "{name}"
kind = "federated"
[run]
command = ["{PYTHON}", "worker.py"]
code = "{CODE}"
[params]
{params}
[resources]
cpus = 1
memory = "128MiB"
[preempt]
grace = "1s"
[federated]
parties = {PARTIES:?}
rounds = {rounds}
{more}
"#
        )
    }
}

impl Field {
    /// Nodes train for nobody but their own party yet.
    fn new(plan: Plan) -> Self {
        let mut fleet = plan.found().unwrap();
        for _ in 1..PARTIES.len() {
            fleet.grow_by_party().unwrap();
        }
        fleet.settle().unwrap();
        let field = Self { ground: Ground::on(fleet) };
        let parties = field.hosts.iter().map(|host| host.client().party().unwrap());
        assert_eq!(parties.collect::<Vec<String>>(), PARTIES);
        let code = aside(&field.hosts[0], CODE);
        fs::create_dir_all(&code).unwrap();
        fs::write(code.join("worker.py"), WORKER).unwrap();
        field
    }

    /// All nodes train for the first party.
    fn willing(plan: Plan) -> Self {
        let field = Self::new(plan);
        (1..PARTIES.len()).for_each(|host| field.agrees(host));
        field
    }

    /// A party agrees to train for the first one.
    fn agrees(&self, host: usize) {
        let label = format!("trains={}", PARTIES[0]);
        let said = self.mesh(host, &["node", "label", PARTIES[host], &label]);
        assert!(said.ok(), "{said:?}");
    }

    /// A party pushes a directory as its own.
    fn push(&self, host: usize, dir: &Path, name: &str) {
        self.data(host, &["push", text(dir), "--name", name, "--copies", "1"]);
    }

    /// Lets a job's first attempts go once all these tasks run.
    fn begin(&self, host: usize, id: &str, tasks: &[usize]) {
        let runs = |job: &Value, task: usize| job["tasks"][task]["state"] == "running";
        let job = self.until_job(host, id, "running", |job| {
            job["is_final"] == true || tasks.iter().all(|task| runs(job, *task))
        });
        assert!(job["is_final"] != true, "{job}");
        tasks.iter().for_each(|task| self.let_go(&job, *task));
    }

    /// How the training of a job goes, as a host sees it; `None` if it does not answer.
    fn course(&self, host: usize, id: &str) -> Option<Value> {
        let path = format!("/v1/jobs/{id}/course");
        let answer = self.hosts[host].client().ask("GET", &path, None, client::PATIENCE).ok()?;
        (answer.status == 200).then(|| answer.body["item"].clone())
    }

    /// Waits until this is true of the course of a job, as a host sees it.
    fn until_course(
        &self,
        host: usize,
        id: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let found = until(PATIENCE, || {
            last = self.course(host, id).or(last.take());
            last.clone().filter(|course| is(course))
        });
        found.unwrap_or_else(|| panic!("{id} is never {what}: {last:?} {:?}", self.job(host, id)))
    }

    /// Waits until a job is done; it, and its course.
    fn trained(&self, host: usize, id: &str) -> (Value, Value) {
        let job = self.done(host, id);
        (job, self.course(host, id).unwrap())
    }

    /// The host that coordinates a training.
    fn coordinator(&self, course: &Value) -> Option<usize> {
        let told = &course["coordinator"];
        let name = told.as_str().or(told["name"].as_str())?;
        self.hosts.iter().position(|host| host.name == name)
    }

    /// The values of the only model that there is of this name, pulled on the host of the first party.
    fn model(&self, name: &str) -> Vec<f32> {
        weights(&self.only_version(0, name))
    }
}

/// What came of a party.
fn participant(course: &Value, party: &str) -> Value {
    let all = course["participants"].as_array().unwrap();
    let found = all.iter().find(|one| one["party"] == party);
    found.unwrap_or_else(|| panic!("{party} takes no part: {course}")).clone()
}

/// A number of what came of a party.
fn count(course: &Value, party: &str, key: &str) -> u64 {
    let one = participant(course, party);
    one[key].as_u64().unwrap_or_else(|| panic!("{key} is no number: {one}"))
}

/// The rounds that are committed. Round 0 makes the first model, and is not counted here.
fn rounds_of(course: &Value) -> Vec<u64> {
    let curve = course["curve"].as_array().unwrap();
    let rounds: Vec<u64> = curve.iter().map(|point| point["round"].as_u64().unwrap()).collect();
    assert!(rounds.windows(2).all(|two| two[0] < two[1]), "a round is committed twice: {course}");
    rounds.into_iter().filter(|round| *round > 0).collect()
}

/// The last round that is committed; 0 if none is.
fn last_round(course: &Value) -> u64 {
    rounds_of(course).last().copied().unwrap_or(0)
}

/// All rounds are there, each once, and the training is done.
fn is_whole(course: &Value, rounds: u64) {
    assert_eq!(course["verdict"]["state"], "done", "{course}");
    assert_eq!(course["rounds"], rounds, "{course}");
    assert_eq!(rounds_of(course), (1..=rounds).collect::<Vec<u64>>(), "{course}");
}

/// The values in a model that was pulled: what follows the header of its file.
fn weights(dir: &Path) -> Vec<f32> {
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    let (values, _) = rest[length..].as_chunks::<4>();
    values.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// Whether the system's Python is here and has these modules; where it does not, prints the line that `./test` counts.
fn has_python(modules: &str) -> bool {
    if !need(&[PYTHON]) {
        return false;
    }
    let tried = Command::new(PYTHON).args(["-c", &format!("import {modules}")]).output();
    let has = tried.is_ok_and(|output| output.status.success());
    if !has {
        println!("SKIPPED: {PYTHON} cannot import {modules}");
    }
    has
}

/// Writes images of three classes that nobody can take for one another, as MNIST's files: of class 0 the upper third is bright, of
/// class 1 the middle, of class 2 the lower. `which` is `train` or `t10k`. The last image begins with the mark.
fn write_images(dir: &Path, which: &str, side: usize, images: usize, mark: &[u8]) {
    let mut random = fastrand::Rng::with_seed(images as u64);
    let mut pixels: Vec<u8> = Vec::new();
    let mut labels: Vec<u8> = Vec::new();
    for image in 0..images {
        let class = image % 3;
        labels.push(class as u8);
        for row in 0..side {
            let is_bright = row * 3 / side == class;
            let pixel = |_| random.u8(if is_bright { 200..=255 } else { 0..=40 });
            pixels.extend((0..side).map(pixel));
        }
    }
    let last = (images - 1) * side * side;
    pixels[last..last + mark.len()].copy_from_slice(mark);
    let file = |magic: u32, sides: &[usize], body: &[u8]| -> Vec<u8> {
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(sides.iter().flat_map(|side| (*side as u32).to_be_bytes()));
        bytes.extend(body);
        bytes
    };
    fs::create_dir_all(dir).unwrap();
    let images_file = file(0x0803, &[images, side, side], &pixels);
    fs::write(dir.join(format!("{which}-images-idx3-ubyte")), images_file).unwrap();
    let labels_file = file(0x0801, &[images], &labels);
    fs::write(dir.join(format!("{which}-labels-idx1-ubyte")), labels_file).unwrap();
}
