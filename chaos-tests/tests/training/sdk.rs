//! Workers in Python, with numpy or PyTorch, and the package that every task finds.
//!
//! The examples in examples/federated are run as they are, where they are there. Torch is a gigabyte that few machines have: its
//! story is told with `MESH_LONG=1`, and wants Debian's python3-torch (and libopenblas0-pthread, which makes it five times as fast).

use std::fs;
use std::path::{Path, PathBuf};

use mesh_chaos_tests::hosts::fleet::Plan;
use mesh_chaos_tests::hosts::ground::{aside, long, text};

use crate::{Field, PARTIES, PYTHON, count, has_python, is_whole, write_images};

const TRAIN: &str = include_str!("train.py");
const ROUNDS: u64 = 4;

/// A job of the code in a directory, on the parties' data of this name.
fn job(name: &str, code: &Path, data: &str, memory: &str) -> String {
    format!(
        r#"
name = "{name}"
kind = "federated"
[run]
command = ["{PYTHON}", "train.py"]
code = "{}"
[params]
lr = 0.02
images = 200
[data]
train = "each/{data}"
[resources]
cpus = 1
memory = "{memory}"
[federated]
parties = {PARTIES:?}
rounds = {ROUNDS}
min_parties = 3
"#,
        text(code)
    )
}

/// The parties train with this code, and the model learns.
fn learns(field: &Field, name: &str, code: &Path, data: &str, memory: &str) {
    let id = field.submit(0, &job(name, code, data, memory));
    let (_, course) = field.trained(0, &id);
    is_whole(&course, ROUNDS);
    assert!(PARTIES.iter().all(|party| count(&course, party, "taken") >= ROUNDS), "{course}");
    let last = course["curve"].as_array().unwrap().last().unwrap();
    assert!(last["metrics"]["accuracy"].as_f64().is_some_and(|right| right > 0.9), "{course}");
    assert!(!field.model(name).is_empty());
}

/// An example that people begin with.
fn example(name: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/federated").join(name);
    dir.canonicalize().ok().filter(|dir| dir.join("train.py").exists())
}

/// Every party pushes images as large as MNIST's, for what expects these.
fn push_large(field: &Field) {
    for (host, at) in field.hosts.iter().enumerate() {
        let large = aside(at, "large");
        write_images(&large, "train", 28, 300, &[]);
        write_images(&large, "t10k", 28, 60, &[]);
        field.push(host, &large, "large");
    }
}

#[test]
fn a_worker_with_numpy_trains_through_the_package() {
    if !has_python("numpy") {
        return;
    }
    let field = Field::willing(Plan::loopback(1));
    for (host, at) in field.hosts.iter().enumerate() {
        let small = aside(at, "small");
        write_images(&small, "train", 8, 300, &[]);
        field.push(host, &small, "small");
    }
    push_large(&field);
    let code = field.fresh(0, "code");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("train.py"), TRAIN).unwrap();
    learns(&field, "by-hand", &code, "small", "512MiB");
    if let Some(example) = example("numpy") {
        learns(&field, "example", &example, "large", "512MiB");
    }
    field.calm();
}

#[test]
fn a_worker_with_torch_trains_through_the_package() {
    if !long() || !has_python("torch, numpy") {
        return;
    }
    let Some(example) = example("torch") else { return };
    let field = Field::willing(Plan::loopback(1));
    push_large(&field);
    learns(&field, "with-torch", &example, "large", "2GiB");
    field.calm();
}
