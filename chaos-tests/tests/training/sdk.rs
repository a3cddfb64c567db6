//! Workers in Python, with numpy and the package that every task finds.
//!
//! The example in examples/federated/numpy is run as it is, where it is there.

use std::fs;
use std::path::{Path, PathBuf};

use mesh_chaos_tests::hosts::fleet::Plan;
use mesh_chaos_tests::hosts::ground::{aside, text};

use crate::{Field, PARTIES, PYTHON, count, has_python, is_whole, write_images};

const TRAIN: &str = include_str!("train.py");
const ROUNDS: u64 = 4;

/// A job of the code in a directory, on the parties' data of this name.
fn job(name: &str, code: &Path, data: &str) -> String {
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
memory = "512MiB"
[federated]
parties = {PARTIES:?}
rounds = {ROUNDS}
min_parties = 3
"#,
        text(code)
    )
}

/// The parties train with this code, and the model learns.
fn learns(field: &Field, name: &str, code: &Path, data: &str) {
    let id = field.submit(0, &job(name, code, data));
    let (_, course) = field.trained(0, &id);
    is_whole(&course, ROUNDS);
    assert!(PARTIES.iter().all(|party| count(&course, party, "taken") >= ROUNDS), "{course}");
    let last = course["curve"].as_array().unwrap().last().unwrap();
    assert!(last["metrics"]["accuracy"].as_f64().is_some_and(|right| right > 0.9), "{course}");
    assert!(!field.model(name).is_empty());
}

/// The example that people begin with.
fn example() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/federated/numpy");
    dir.canonicalize().ok().filter(|dir| dir.join("train.py").exists())
}

#[test]
fn a_worker_with_numpy_trains_through_the_package() {
    if !has_python("numpy") {
        return;
    }
    let field = Field::willing(Plan::loopback(1));
    for (host, at) in field.hosts.iter().enumerate() {
        let (small, large) = (aside(at, "small"), aside(at, "large"));
        write_images(&small, "train", 8, 300, &[]);
        // As large as MNIST's, for what expects these.
        write_images(&large, "train", 28, 300, &[]);
        write_images(&large, "t10k", 28, 60, &[]);
        field.push(host, &small, "small");
        field.push(host, &large, "large");
    }
    let code = field.fresh(0, "code");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("train.py"), TRAIN).unwrap();
    learns(&field, "by-hand", &code, "small");
    if let Some(example) = example() {
        learns(&field, "example", &example, "large");
    }
    field.calm();
}
