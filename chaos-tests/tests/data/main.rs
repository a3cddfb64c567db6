//! Datasets on real nodes: pushed on one, pulled on the others, kept when nodes are killed, disks fill
//! up and bits flip.
//!
//! What counts is what a person sees: the commands, their `--json`, and the bytes in the directories.
//! Nothing is measured here. `MESH_LONG=1` makes the data larger and the trials more.
//!
//! - `spread.rs`: versions on the wire. `copies.rs`: what was acknowledged outlives its nodes.
//! - `damage.rs`: what a disk has spoilt. `room.rs`: disks that are full. `interrupted.rs`: pulls that go on.
//! - `versions.rs`: what the commands say of versions.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

mod copies;
mod damage;
mod interrupted;
mod room;
mod spread;
mod versions;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Fleet, SETTLE};
use mesh_chaos_tests::hosts::process::{Host, Said};
use mesh_chaos_tests::hosts::until;
use serde_json::Value;

/// A holder that is lost is replaced after seconds instead of minutes.
const SHORT_WAITS: (&str, &str) = ("MESH_TEST_WAITS", "short");
/// How long a command may take that moves much on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;

fn long() -> bool {
    std::env::var_os("MESH_LONG").is_some_and(|value| value == "1")
}

/// Runs `mesh data …` to its end, however it ends.
fn try_data(host: &Host, words: &[&str]) -> Said {
    let words: Vec<&str> = ["data"].iter().chain(words).chain(&["--json"]).copied().collect();
    host.run(binary().unwrap(), &words, PATIENCE).unwrap()
}

/// Runs `mesh data …`, which must end well; the `item` of its answer, or the whole of one with `items`.
fn data(host: &Host, words: &[&str]) -> Value {
    let said = try_data(host, words);
    assert!(said.ok(), "{}: mesh data {words:?}: {said:?}", host.name);
    let answer: Value = serde_json::from_str(&said.stdout).unwrap();
    if answer["item"].is_null() { answer["items"].clone() } else { answer["item"].clone() }
}

/// Starts `mesh data …` and does not wait for it.
fn begin(host: &Host, words: &[&str], log: &str) -> Child {
    let words: Vec<&str> = ["data"].iter().chain(words).chain(&["--json"]).copied().collect();
    host.spawn(binary().unwrap(), &words, log).unwrap()
}

/// A path on a host that is not in its data directory.
fn aside(host: &Host, name: &str) -> PathBuf {
    host.data().parent().unwrap().join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Every file below a directory with a hash of its bytes.
fn content(dir: &Path) -> BTreeMap<PathBuf, blake3::Hash> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(&at).unwrap_or_else(|error| panic!("{at:?}: {error}")).flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            } else {
                let hash = blake3::hash(&fs::read(&path).unwrap());
                found.insert(path.strip_prefix(dir).unwrap().to_path_buf(), hash);
            }
        }
    }
    found
}

/// A directory with a large file, one in a directory below, and many small ones. Of a seed.
fn random_tree(dir: &Path, seed: u64, bytes: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    fs::create_dir_all(dir.join("below")).unwrap();
    let mut write = |name: &str, bytes: u64| {
        let mut body = vec![0; usize::try_from(bytes).unwrap()];
        random.fill(&mut body);
        fs::write(dir.join(name), body).unwrap();
    };
    write("large", bytes * 3 / 4);
    write("below/other", bytes / 4);
    for number in 0..20 {
        write(&format!("below/small-{number}"), 100 + number * 37);
    }
}

/// What a file has in a store: the objects of a host's node.
fn objects(host: &Host) -> Vec<PathBuf> {
    let objects = host.data().join("store/objects");
    content(&objects).into_keys().map(|path| objects.join(path)).collect()
}

/// Bytes of objects that are being fetched.
fn partial_bytes(host: &Host) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(host.data().join("store/partial")).into_iter().flatten().flatten();
    // The file may have gone meanwhile.
    entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum()
}

fn flip(path: &Path, at: u64) {
    let mode = fs::metadata(path).unwrap().permissions();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.sync_all().unwrap();
    fs::set_permissions(path, mode).unwrap();
}

/// Brings a host up and demands that it stays so.
fn up(host: &mut Host) {
    // One that was killed in the middle of much writing holds its lock for a moment more.
    let ended = until(SETTLE, || match host.try_up(SETTLE).unwrap() {
        Some(said) if said.stderr.contains("is running") => None,
        ended => Some(ended),
    });
    assert!(matches!(ended, Some(None)), "{} does not come up: {ended:?}", host.name);
}

/// Waits until a version has so many durable copies, as a host sees it; the names of those who hold it.
fn until_copies(host: &Host, version: &str, copies: u64) -> Vec<String> {
    let mut last = None;
    let found = until(PATIENCE, || {
        let said = try_data(host, &["show", version]);
        let answer: Value = serde_json::from_str(&said.stdout).ok()?;
        last = Some(answer["item"].clone());
        (answer["item"]["copies"].as_u64()? >= copies).then(|| answer["item"].clone())
    });
    let found = found.unwrap_or_else(|| panic!("{version} never had {copies} copies: {last:?}"));
    let holders = found["holders"].as_array().unwrap().iter();
    // The host itself is shown also if it is not counted on.
    let durable = holders.filter(|holder| holder["holds"] == "durable");
    durable.map(|holder| holder["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until a host has heard of a version.
fn knows(host: &Host, version: &str) {
    until(SETTLE, || try_data(host, &["show", version]).ok().then_some(()))
        .unwrap_or_else(|| panic!("{} never hears of {version}", host.name));
}

/// Nobody panicked, and nobody ended who was not asked to.
fn calm(fleet: &Fleet) {
    for host in &fleet.hosts {
        let fell = host.fell();
        assert!(fell.is_none(), "a node fell: {fell:?}");
    }
}

/// Pulls on several hosts at the same time, and compares all files. Bytes that each of them fetched.
fn pull_everywhere(hosts: &[Host], version: &str, source: &Path, into: &str) -> Vec<u64> {
    for host in hosts {
        knows(host, version);
    }
    let pulled = std::thread::scope(|scope| {
        let pulls: Vec<_> = hosts
            .iter()
            .map(|host| {
                scope.spawn(move || data(host, &["pull", version, text(&aside(host, into))]))
            })
            .collect();
        pulls.into_iter().map(|pull| pull.join().unwrap()).collect::<Vec<_>>()
    });
    let expected = content(source);
    for host in hosts {
        assert!(content(&aside(host, into)) == expected, "{version} differs on {}", host.name);
    }
    pulled.iter().map(|item| item["fetched_bytes"].as_u64().unwrap()).collect()
}
