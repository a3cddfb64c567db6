//! GPUs through the real path: a library is loaded and asked, only it is not NVIDIA's.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use mesh_node::awareness::gpu::{GpuProcess, Gpus, Sample, Watch};
use mesh_node::awareness::record::{GpuFacts, GpuLoad, Health};
use mesh_node::clock;

/// Builds the fake library. It goes when the directory does.
fn library(defines: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libnvidia-ml.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&path)
        .args(defines)
        .arg(source)
        .status()
        .unwrap();
    assert!(built.success());
    (dir, path)
}

fn open(defines: &[&str]) -> Gpus {
    let (_dir, path) = library(defines);
    Gpus::open(Some(path.as_os_str())).unwrap()
}

#[test]
fn what_the_driver_tells_is_what_the_node_says() {
    let mut gpus = open(&[]);
    let Sample { facts, load } = gpus.sample();
    let [split, troubled] = facts.as_slice() else { panic!("two GPUs: {facts:?}") };
    assert_eq!(split.name.as_str(), "NVIDIA A100-SXM4-80GB");
    assert_eq!(split.uuid_text().unwrap(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    assert_eq!((split.memory_bytes(), split.mig), (80 << 30, Some(2)));
    assert_eq!((troubled.name.as_str(), troubled.mig), ("NVIDIA H100 80GB HBM3", None));

    let [quiet, busy] = load.as_slice() else { panic!("two GPUs: {load:?}") };
    assert_eq!((quiet.utilisation, quiet.processes, quiet.xid), (None, Some(0), None));
    assert_eq!((quiet.temperature_c, quiet.power_w), (Some(33), Some(61)));
    assert!(quiet.health.is_good(), "{}", quiet.health.words());
    assert_eq!(busy.utilisation.unwrap().get(), 0.87);
    assert_eq!(busy.memory_used_bytes(), Some(3 << 30));
    assert_eq!((busy.temperature_c, busy.power_w), (Some(91), Some(699)));
    assert_eq!(busy.processes, Some(1));
    assert_eq!(busy.health.words(), "ecc, repair pending, hot, xid");
    // The last report was a program's own fault, the one before was not.
    assert_eq!(busy.xid, Some(31));

    let process = GpuProcess { gpu: 1, pid: 4242, memory_bytes: Some(1 << 30) };
    assert_eq!(gpus.processes(), [process]);
    // Nothing is forgotten because it was told once.
    assert_eq!(gpus.sample(), Sample { facts, load });
}

#[test]
fn a_driver_that_fails_at_every_question_still_has_gpus() {
    let mut gpus = open(&["-DBROKEN"]);
    let sample = gpus.sample();
    assert_eq!(sample.facts, vec![GpuFacts::default(); 2]);
    assert_eq!(sample.load, vec![GpuLoad::default(); 2]);
    assert!(gpus.processes().is_empty());
}

#[test]
fn a_gpu_that_falls_off_the_bus_keeps_its_name_and_says_so() {
    let mut gpus = open(&["-DLOST"]);
    let before = gpus.sample();
    assert!(!before.load[1].health.has(Health::LOST));
    let after = gpus.sample();
    assert_eq!(after.facts, before.facts);
    assert!(after.load[1].health.has(Health::LOST));
    assert_eq!((after.load[1].temperature_c, after.load[0].temperature_c), (None, Some(33)));
}

#[test]
fn without_a_driver_there_are_no_gpus_and_no_fuss() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("libnvidia-ml.so.1");
    assert!(Gpus::open(Some(missing.as_os_str())).is_none());

    let text = dir.path().join("not-a-library.so");
    std::fs::write(&text, "hello").unwrap();
    assert!(Gpus::open(Some(text.as_os_str())).is_none());

    // A library, but of something else.
    let source = dir.path().join("other.c");
    let other = dir.path().join("other.so");
    std::fs::write(&source, "int answer(void) { return 42; }").unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&other).arg(&source).status();
    assert!(built.unwrap().success());
    assert!(Gpus::open(Some(other.as_os_str())).is_none());

    let watch = Watch::start(Some(missing.into()), Duration::from_millis(1));
    assert_eq!(watch.latest(clock::steady()), Sample::default());
}

#[test]
fn a_driver_that_hangs_leaves_its_last_answer_and_a_warning() {
    let (_dir, path) = library(&["-DHANGS"]);
    let watch = Watch::start(Some(path.into()), Duration::from_millis(1));
    let deadline = clock::steady() + Duration::from_secs(30);
    while watch.latest(clock::steady()).facts.is_empty() {
        assert!(clock::steady() < deadline, "the first answer never came");
        std::thread::sleep(Duration::from_millis(5));
    }
    let soon = watch.latest(clock::steady());
    assert!(!soon.load[0].health.has(Health::MUTE));
    let later = watch.latest(clock::steady() + Duration::from_secs(60));
    assert_eq!(later.facts, soon.facts);
    assert_eq!(later.load[0].health.words(), "driver mute");
}

#[test]
fn a_driver_that_is_loaded_later_is_found() {
    let (built, path) = library(&[]);
    let late = built.path().join("late.so");
    let watch = Watch::start(Some(late.clone().into()), Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(watch.latest(clock::steady()), Sample::default());
    std::fs::rename(path, late).unwrap();
    let deadline = clock::steady() + Duration::from_secs(30);
    while watch.latest(clock::steady()).facts.is_empty() {
        assert!(clock::steady() < deadline, "nobody looked for it again");
        std::thread::sleep(Duration::from_millis(5));
    }
}
