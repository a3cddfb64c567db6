//! Datasets on real nodes: pushed on one, pulled on the others, kept when nodes are killed, disks fill
//! up and bits flip.
//!
//! What counts is what a person sees: the commands, their `--json`, and the bytes in the directories.
//! Nothing is measured here. `MESH_LONG=1` makes the data larger and the trials more.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan, SETTLE};
use mesh_chaos_tests::hosts::ns::Lab;
use mesh_chaos_tests::hosts::process::{Host, Said};
use mesh_chaos_tests::hosts::wire::Link;
use mesh_chaos_tests::hosts::{need, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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
    holders.map(|holder| holder["name"].as_str().unwrap_or_default().to_owned()).collect()
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

#[test]
fn mnist_is_everywhere_and_a_new_version_moves_only_what_is_new() {
    let fleet = Plan::loopback(5).found().unwrap();
    let (first, others) = fleet.hosts.split_first().unwrap();
    let mnist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/mnist");
    let pushed = data(first, &["push", text(&mnist), "--copies", "1"]);
    let bytes = pushed["bytes"].as_u64().unwrap();
    assert_eq!((pushed["version"].as_u64(), pushed["files"].as_u64()), (Some(1), Some(4)));
    let fetched = pull_everywhere(others, "mnist", &mnist, "mnist");
    println!("mnist, {bytes} bytes: fetched {fetched:?}");
    for host in &fleet.hosts {
        let listed = data(host, &["ls"]);
        let row = &listed[0];
        assert_eq!(row["name"], "mnist", "{listed}");
        for field in [
            "version",
            "manifest",
            "party",
            "visibility",
            "bytes",
            "files",
            "copies",
            "copies_wanted",
        ] {
            assert_eq!(row[field], pushed[field], "{field} on {}", host.name);
        }
        assert!(row["created_at"].is_string(), "{row}");
    }

    // As a training script has it: unpacked. Then with a hundred images more in the middle.
    let dir = aside(first, "unpacked");
    fs::create_dir(&dir).unwrap();
    let images = dir.join("train-images-idx3-ubyte");
    let packed = mnist.join("train-images-idx3-ubyte.gz");
    let mut body = Command::new("gzip").arg("-dc").arg(packed).output().unwrap().stdout;
    let (head, image) = (16, 28 * 28);
    assert_eq!(body.len(), head + 60_000 * image);
    fs::write(&images, &body).unwrap();
    data(first, &["push", text(&dir), "--copies", "1"]);
    pull_everywhere(others, "unpacked", &dir, "unpacked-1");
    let middle = head + 30_000 * image;
    let more: Vec<u8> = body[head..head + 100 * image].iter().map(|byte| 255 - byte).collect();
    body.splice(middle..middle, more);
    body[4..8].copy_from_slice(&60_100_u32.to_be_bytes());
    fs::write(&images, &body).unwrap();
    let pushed = data(first, &["push", text(&dir), "--copies", "1"]);
    assert_eq!(pushed["version"], 2);
    let new = data(first, &["diff", "unpacked@1", "unpacked@2"])["new_bytes"].as_u64();
    println!("100 images inserted: {new:?} of {} bytes are in new chunks", body.len());
    let most = body.len() as u64 / 20;
    // One after the other: what two peers send twice is another matter.
    for host in others {
        let fetched =
            pull_everywhere(std::slice::from_ref(host), "unpacked@2", &dir, "unpacked-2")[0];
        assert!(fetched > 0 && fetched < most, "{fetched} of {} bytes", body.len());
    }
    calm(&fleet);
}

#[test]
fn a_line_inserted_into_a_long_table_moves_little() {
    let fleet = Plan::loopback(2).found().unwrap();
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let dir = aside(first, "table");
    fs::create_dir(&dir).unwrap();
    let size = if long() { 1024 * MIB } else { 64 * MIB };
    let mut random = fastrand::Rng::with_seed(1);
    let mut body = String::with_capacity(usize::try_from(size).unwrap() + 100);
    while (body.len() as u64) < size {
        use std::fmt::Write;
        writeln!(body, "{},{},{}", body.len(), random.u64(..), random.u64(..)).unwrap();
    }
    fs::write(dir.join("table.csv"), &body).unwrap();
    data(first, &["push", text(&dir), "--copies", "1"]);
    let all = pull_everywhere(std::slice::from_ref(second), "table", &dir, "table-1");
    assert!(all[0] >= size, "the first version comes whole: {all:?}");
    let middle = body.len() / 2;
    let middle = middle + body[middle..].find('\n').unwrap() + 1;
    body.insert_str(middle, "a line,that was,not there\n");
    fs::write(dir.join("table.csv"), &body).unwrap();
    data(first, &["push", text(&dir), "--copies", "1"]);
    let fetched = pull_everywhere(std::slice::from_ref(second), "table@2", &dir, "table-2");
    println!("a line inserted: fetched {fetched:?} of {}", body.len());
    assert!(fetched[0] > 0 && fetched[0] < 8 * MIB, "{fetched:?}");
    calm(&fleet);
}

#[test]
fn what_was_acknowledged_outlives_the_one_who_pushed_it() {
    let (key, value) = SHORT_WAITS;
    let mut fleet = Plan::loopback(4).setting(key, value).found().unwrap();
    let dir = aside(&fleet.hosts[1], "tree");
    random_tree(&dir, 2, 24 * MIB);
    let pushed = data(&fleet.hosts[1], &["push", text(&dir)]);
    fleet.hosts[1].kill().unwrap();
    assert_eq!(pushed["copies_wanted"], 3);
    assert!(pushed["copies"].as_u64().unwrap() >= 2, "acknowledged with too few: {pushed}");
    assert_eq!(pushed["acknowledged"], true);
    assert!(pushed["shortfall"].is_null(), "{pushed}");
    // The others may have to elect a leader first.
    fleet.leader_but(1).unwrap();
    for host in [0, 2, 3] {
        let host = &fleet.hosts[host];
        knows(host, "tree");
        data(host, &["pull", "tree", text(&aside(host, "pulled"))]);
        assert!(content(&aside(host, "pulled")) == content(&dir), "{}", host.name);
    }

    // What only a node that is down could hold is waited for in vain. The version is there all the same.
    let more = aside(&fleet.hosts[0], "more");
    random_tree(&more, 10, MIB);
    let said = try_data(&fleet.hosts[0], &["push", text(&more), "--copies", "6"]);
    assert_eq!(said.status.and_then(|status| status.code()), Some(124), "{said:?}");
    assert!(said.is_report() && said.stderr.contains("mesh data show more@1"), "{said:?}");
    let pushed: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(pushed["item"]["timed_out"], true, "{pushed}");

    // Nobody will see it again.
    let name = fleet.hosts[1].name.clone();
    fleet.hosts[0].mesh(&["node", "rm", &name, "--yes"]).unwrap();
    let mut holders = Vec::new();
    until(PATIENCE, || {
        holders = until_copies(&fleet.hosts[0], "tree", 3);
        holders.sort();
        (holders == ["n0", "n2", "n3"]).then_some(())
    })
    .unwrap_or_else(|| panic!("it is not repaired on those who are left: {holders:?}"));
    for host in [0, 2, 3] {
        let verified = data(&fleet.hosts[host], &["verify", "tree"]);
        assert_eq!(verified["damaged"].as_array().unwrap().len(), 0, "{verified}");
        assert!(verified["checked_bytes"].as_u64().unwrap() >= 24 * MIB, "{verified}");
    }
    calm(&fleet);
}

#[test]
fn a_holder_that_comes_back_leaves_no_copy_too_many() {
    let (key, value) = SHORT_WAITS;
    let mut fleet = Plan::loopback(4).setting(key, value).found().unwrap();
    let dir = aside(&fleet.hosts[0], "tree");
    random_tree(&dir, 11, 8 * MIB);
    data(&fleet.hosts[0], &["push", text(&dir)]);
    // A busy machine may take somebody for lost: then there were four for a while.
    let exactly = |fleet: &Fleet, copies: usize| -> Vec<String> {
        let mut holders = Vec::new();
        let found = until(PATIENCE, || {
            holders = until_copies(&fleet.hosts[0], "tree", 3);
            (holders.len() == copies).then_some(())
        });
        assert!(found.is_some(), "not {copies} copies: {holders:?}");
        holders.sort();
        holders
    };
    let holders = exactly(&fleet, 3);
    let holds = |host: &Host| holders.contains(&host.name);
    let lost = fleet.hosts.iter().rposition(holds).unwrap();
    let fourth = fleet.hosts.iter().position(|host| !holds(host)).unwrap();
    let fourth = fleet.hosts[fourth].name.clone();
    assert_ne!(lost, 0, "n0 is asked");
    fleet.hosts[lost].kill().unwrap();
    fleet.leader_but(lost).unwrap();
    let repaired = exactly(&fleet, 4);
    assert!(repaired.contains(&fourth), "{repaired:?}");

    up(&mut fleet.hosts[lost]);
    fleet.settle().unwrap();
    let left = exactly(&fleet, 3);
    println!("held by {holders:?}, then by {repaired:?}, in the end by {left:?}");
    // And it stays so.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(exactly(&fleet, 3), left, "copies come and go");
    for host in &fleet.hosts {
        reads_back(host, "tree", &dir);
    }
    calm(&fleet);
}

/// Names that were acknowledged, and where their bytes came from.
type Acknowledged = Vec<(String, PathBuf)>;

/// Kills a host at a random moment of what is under way on it, and lets it come back.
fn kill_within(fleet: &mut Fleet, host: usize, random: &mut fastrand::Rng, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(random.u64(..most_ms)));
    fleet.hosts[host].kill().unwrap();
    up(&mut fleet.hosts[host]);
    fleet.settle().unwrap();
}

/// A version reads back as what was pushed, on this host.
fn reads_back(host: &Host, name: &str, source: &Path) {
    knows(host, name);
    let into = aside(host, &format!("check-{name}"));
    data(host, &["pull", name, text(&into)]);
    assert!(content(&into) == content(source), "{name} differs on {}", host.name);
    let verified = data(host, &["verify", name]);
    assert_eq!(verified["damaged"].as_array().map(Vec::len), Some(0), "{}: {verified}", host.name);
    fs::remove_dir_all(into).unwrap();
}

#[test]
fn a_node_that_is_killed_at_any_moment_loses_nothing_that_was_acknowledged() {
    const KEPT: usize = 6;
    let (key, value) = SHORT_WAITS;
    let mut fleet = Plan::loopback(3).setting(key, value).found().unwrap();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut acknowledged: Acknowledged = Vec::new();
    for trial in 0..if long() { 500 } else { 8 } {
        let (victim, other) = (trial % 3, (trial + 1) % 3);
        let name = format!("trial-{trial}");
        let dir = aside(&fleet.hosts[0], &name);
        random_tree(&dir, random.u64(..), 8 * MIB);
        let path = text(&dir);
        let log = format!("{name}-killed");
        match trial % 4 {
            // While it pushes.
            0 => {
                let words = ["push", path];
                let mut child = begin(&fleet.hosts[victim], &words, &log);
                kill_within(&mut fleet, victim, &mut random, 800);
                if child.wait().unwrap().success() {
                    println!("{name}: it was acknowledged before the kill");
                    reads_back(&fleet.hosts[other], &name, &dir);
                }
                data(&fleet.hosts[victim], &words);
            }
            // While it pulls.
            1 => {
                data(&fleet.hosts[other], &["push", path, "--copies", "1"]);
                let into = aside(&fleet.hosts[victim], &format!("{name}-into"));
                let words = ["pull", &name, text(&into)];
                knows(&fleet.hosts[victim], &name);
                let mut child = begin(&fleet.hosts[victim], &words, &log);
                kill_within(&mut fleet, victim, &mut random, 600);
                child.wait().unwrap();
                data(&fleet.hosts[victim], &words);
                assert!(content(&into) == content(&dir), "{name} differs");
                fs::remove_dir_all(&into).unwrap();
            }
            // While it makes a copy of its own accord.
            2 => {
                data(&fleet.hosts[other], &["push", path, "--no-wait"]);
                kill_within(&mut fleet, victim, &mut random, 600);
                until_copies(&fleet.hosts[victim], &name, 3);
            }
            // While it repairs what is damaged.
            _ => {
                let before = objects(&fleet.hosts[victim]);
                data(&fleet.hosts[other], &["push", path]);
                until_copies(&fleet.hosts[other], &name, 3);
                let new = objects(&fleet.hosts[victim]).into_iter().filter(|o| !before.contains(o));
                let large = new.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
                flip(&large, random.u64(..MIB));
                let mut child = begin(&fleet.hosts[victim], &["verify", &name], &log);
                kill_within(&mut fleet, victim, &mut random, 300);
                child.wait().unwrap();
                // It is repaired now, or was found gone and is fetched because it is missing.
                let found = until(PATIENCE, || {
                    let said = try_data(&fleet.hosts[victim], &["verify", &name]);
                    said.ok().then_some(())
                });
                found.unwrap_or_else(|| panic!("{name} is never repaired"));
            }
        }
        acknowledged.push((name, dir));
        for (name, dir) in acknowledged.iter().rev().take(2) {
            for host in [victim, other] {
                reads_back(&fleet.hosts[host], name, dir);
            }
        }
        // The long run must not fill the disk.
        if acknowledged.len() > KEPT {
            let (name, dir) = acknowledged.remove(0);
            for host in &fleet.hosts {
                reads_back(host, &name, &dir);
            }
            data(&fleet.hosts[0], &["rm", &name, "--all", "--yes"]);
            fs::remove_dir_all(dir).unwrap();
        }
    }
    calm(&fleet);
}

#[test]
fn a_flipped_bit_is_never_handed_out() {
    let (key, value) = SHORT_WAITS;
    let fleet = Plan::loopback(3).setting(key, value).found().unwrap();
    let host = |name: &str| fleet.hosts.iter().find(|host| host.name == name).unwrap();
    let dir = aside(&fleet.hosts[0], "tree");
    random_tree(&dir, 4, 8 * MIB);
    let largest = |host: &Host| {
        let objects = objects(host).into_iter();
        objects.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
    };

    // One of two holders has a bad object, and the third node asks both.
    data(&fleet.hosts[0], &["push", text(&dir), "--copies", "2"]);
    let holders = until_copies(&fleet.hosts[0], "tree", 2);
    let bad = host(holders.iter().find(|name| *name != "n0").unwrap());
    let third = fleet.hosts.iter().find(|host| !holders.contains(&host.name)).unwrap();
    flip(&largest(bad), 3 * MIB);
    knows(third, "tree");
    data(third, &["pull", "tree", text(&aside(third, "pulled"))]);
    assert!(content(&aside(third, "pulled")) == content(&dir), "the bit was handed to another");

    // And it does not hand it to its own people either.
    let whole = |host: &Host| {
        until(PATIENCE, || try_data(host, &["verify", "tree"]).ok().then_some(()))
            .unwrap_or_else(|| panic!("{} is never repaired", host.name));
    };
    whole(bad);
    flip(&largest(bad), 2 * MIB);
    let pulled = data(bad, &["pull", "tree", text(&aside(bad, "laid-out"))]);
    // None, if it was found and mended while nobody had asked for it yet.
    assert!(pulled["mended_objects"].as_u64().is_some_and(|mended| mended <= 1), "{pulled}");
    assert!(content(&aside(bad, "laid-out")) == content(&dir), "the bit was laid out");
    whole(bad);
    let verified = data(bad, &["verify", "tree"]);
    assert_eq!(verified["damaged"].as_array().unwrap().len(), 0, "{verified}");
    until_copies(&fleet.hosts[0], "tree", 2);

    // verify tells what is damaged, and repairs it.
    flip(&largest(bad), MIB);
    let verified = data(bad, &["verify", "tree"]);
    assert_eq!(verified["damaged"].as_array().unwrap().len(), 1, "{verified}");
    assert_eq!(verified["damaged"][0]["path"], "large", "{verified}");
    assert_eq!(verified["repaired"], true, "{verified}");
    // Also what somebody has deleted; and a push does not take it for what is there.
    let lost = largest(bad);
    fs::remove_file(&lost).unwrap();
    let verified = data(bad, &["verify", "tree"]);
    assert!(verified["repaired"] == true && lost.exists(), "{verified}");
    fs::remove_file(&lost).unwrap();
    data(bad, &["push", text(&dir), "--name", "again", "--copies", "1"]);
    assert!(lost.exists(), "a push relied on a file that is gone");

    // Where nobody has the right bytes, nobody gets wrong ones.
    let alone = aside(&fleet.hosts[0], "alone");
    random_tree(&alone, 5, 16 * MIB);
    data(&fleet.hosts[0], &["push", text(&alone), "--copies", "1"]);
    flip(&largest(&fleet.hosts[0]), MIB);
    for (host, into) in [(&fleet.hosts[1], "lost"), (&fleet.hosts[0], "lost-too")] {
        let into = aside(host, into);
        knows(host, "alone");
        // It may wait for somebody who has it; we do not.
        let words = ["data", "pull", "alone", text(&into), "--wait", "1s"];
        let said = host.run(binary().unwrap(), &words, Duration::from_secs(4)).unwrap();
        assert!(!said.ok(), "{}: {said:?}", host.name);
        assert!(!into.join("large").exists(), "{}: a file with a wrong bit", host.name);
    }
    calm(&fleet);
}

#[test]
fn who_has_pulled_it_once_helps_when_the_only_holder_is_gone() {
    let (key, value) = SHORT_WAITS;
    let mut fleet = Plan::loopback(3).setting(key, value).found().unwrap();
    let dir = aside(&fleet.hosts[0], "tree");
    random_tree(&dir, 6, 8 * MIB);
    data(&fleet.hosts[0], &["push", text(&dir), "--copies", "1"]);
    let pull = |host: &Host| {
        knows(host, "tree");
        let into = aside(host, "pulled");
        data(host, &["pull", "tree", text(&into)]);
        assert!(content(&into) == content(&dir), "{}", host.name);
    };
    pull(&fleet.hosts[1]);
    // Nobody counts on the second node, and it is the only one that is left.
    fleet.hosts[0].kill().unwrap();
    pull(&fleet.hosts[2]);

    // Nor does it help the holder if it has lost what it held; the others do.
    up(&mut fleet.hosts[0]);
    for object in objects(&fleet.hosts[0]) {
        fs::remove_file(object).unwrap();
    }
    let verified = data(&fleet.hosts[0], &["verify", "tree"]);
    assert_eq!(verified["repaired"], true, "{verified}");
    calm(&fleet);
}

#[test]
fn a_pull_onto_a_full_disk_says_so_and_goes_on_once_there_is_room() {
    if !mesh_chaos_tests::hosts::need(&["namespaces"]) {
        return;
    }
    let fleet = Plan::loopback(3).first_disk(128 * MIB).found().unwrap();
    let (small, source) = (&fleet.hosts[0], &fleet.hosts[1]);
    let dir = aside(source, "tree");
    random_tree(&dir, 6, 64 * MIB);
    data(source, &["push", text(&dir), "--copies", "1"]);
    let (filler, into) = (small.data().join("filler"), aside(small, "pulled"));
    let fill = |left: u64| {
        let stat = nix::sys::statvfs::statvfs(&small.data()).unwrap();
        let free = stat.blocks_available() * stat.fragment_size();
        fs::write(&filler, vec![0; usize::try_from(free.saturating_sub(left)).unwrap()]).unwrap();
    };
    let words = ["data", "pull", "tree", text(&into)];
    let pull = || small.run(binary().unwrap(), &words, PATIENCE).unwrap();
    let refused = |said: &Said| {
        assert!(!said.ok(), "it has no room: {said:?}");
        assert!(said.is_report() && said.stderr.contains("disk is full"), "{said:?}");
    };
    knows(small, "tree");

    // What cannot fit is not begun.
    fill(32 * MIB);
    let said = pull();
    refused(&said);
    assert!(said.stderr.contains("there is room for"), "{said:?}");
    assert_eq!(partial_bytes(small), 0, "something was written");
    fs::remove_file(&filler).unwrap();

    // What could have fitted, but the disk fills on the way: the source holds its breath for that long.
    let said = std::thread::scope(|scope| {
        let pulling = scope.spawn(pull);
        while partial_bytes(small) < 16 * MIB && !pulling.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        source.pause();
        // What is on the wire arrives.
        std::thread::sleep(Duration::from_millis(300));
        fill(4 * MIB);
        source.resume();
        pulling.join().unwrap()
    });
    refused(&said);
    assert!(small.runs() && small.client().status().is_ok(), "the node has ended");
    let listed = data(small, &["ls"]);
    assert_eq!(listed[0]["name"], "tree", "it answers as before");

    fs::remove_file(&filler).unwrap();
    let pulled = data(small, &["pull", "tree", text(&into)]);
    assert!(content(&into) == content(&dir), "what came differs");
    let fetched = pulled["fetched_bytes"].as_u64().unwrap();
    println!("after there was room: fetched {fetched} of {}", 64 * MIB);
    assert!(fetched < 56 * MIB, "{fetched}: what had come before comes again");
    fleet.settle().unwrap();
    calm(&fleet);
}

#[test]
fn a_disk_that_fills_up_gives_up_what_it_is_not_counted_on_for() {
    if !mesh_chaos_tests::hosts::need(&["namespaces"]) {
        return;
    }
    let (key, value) = SHORT_WAITS;
    let fleet = Plan::loopback(3).first_disk(128 * MIB).setting(key, value).found().unwrap();
    let (small, source) = (&fleet.hosts[0], &fleet.hosts[1]);
    let tree = |name: &str, seed: u64| {
        let dir = aside(source, name);
        random_tree(&dir, seed, 16 * MIB);
        dir
    };
    // The only durable copy is on the small disk, and it is what was not used for the longest time.
    let own = tree("own", 20);
    data(small, &["push", text(&own), "--copies", "1"]);
    let names = || -> Vec<String> {
        let du = data(small, &["du"]);
        let items = du["items"].as_array().unwrap();
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    // With these it is fuller than it may be, but not full.
    for seed in 21..27 {
        let name = format!("tree-{seed}");
        data(source, &["push", text(&tree(&name, seed)), "--copies", "1"]);
        knows(small, &name);
        data(small, &["pull", &name, "--store-only"]);
    }
    let evicted = until(PATIENCE, || Some(names()).filter(|names| names.len() <= 5));
    let left = evicted.unwrap_or_else(|| panic!("nothing was evicted: {:?}", names()));
    assert!(left.contains(&"own".to_owned()), "{left:?}");
    let verified = data(small, &["verify", "own"]);
    assert_eq!(verified["damaged"].as_array().map(Vec::len), Some(0), "{verified}");
    // What is gone here can be had again, and the copy that stayed can be had by others.
    data(small, &["pull", "tree-21", "--store-only"]);
    pull_everywhere(std::slice::from_ref(source), "own", &own, "own-again");
    calm(&fleet);
}

#[test]
fn a_pull_that_was_interrupted_goes_on_where_it_was() {
    let fleet = Plan::loopback(2).found().unwrap();
    let [source, host] = &fleet.hosts[..] else { panic!("two hosts") };
    // A machine may be so fast that it is done before the signal comes. Then once more with more.
    for (attempt, size) in [96 * MIB, 192 * MIB, 384 * MIB].into_iter().enumerate() {
        let name = format!("tree-{attempt}");
        let dir = aside(source, &name);
        random_tree(&dir, 7 + attempt as u64, size);
        data(source, &["push", text(&dir), "--copies", "1"]);
        let into = aside(host, &name);
        knows(host, &name);
        let words = ["pull", &name, text(&into)];
        let mut child = begin(host, &words, &format!("{name}-interrupted"));
        let ended = loop {
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            if partial_bytes(host) > 16 * MIB {
                kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
                break child.wait().unwrap();
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        if ended.success() {
            println!("{name}: done before it could be interrupted");
            continue;
        }
        assert_eq!(ended.code(), Some(130), "as every program that heeds Ctrl-C");
        let pulled = data(host, &words);
        assert!(content(&into) == content(&dir), "what came differs");
        let fetched = pulled["fetched_bytes"].as_u64().unwrap();
        println!("{name}: the second time fetched {fetched} of {size}");
        assert!(fetched < size, "it began anew");
        calm(&fleet);
        return;
    }
    panic!("every pull was over before it could be interrupted");
}

#[test]
fn a_slow_pull_that_is_killed_goes_on_from_what_came_seconds_before() {
    // Less than what is made durable because it is much.
    const SIZE: u64 = 56 * MIB;
    let mut fleet = Plan::loopback(2).found().unwrap();
    // A machine may be so fast that all has come before it can be slowed down. Then once more.
    for attempt in 0..5u64 {
        let name = format!("slow-{attempt}");
        let dir = aside(&fleet.hosts[0], &name);
        random_tree(&dir, 30 + attempt, SIZE);
        data(&fleet.hosts[0], &["push", text(&dir), "--copies", "1"]);
        let into = aside(&fleet.hosts[1], &name);
        knows(&fleet.hosts[1], &name);
        let words = ["pull", &name, text(&into)];
        let mut child = begin(&fleet.hosts[1], &words, &format!("{name}-killed"));
        while child.try_wait().unwrap().is_none() && partial_bytes(&fleet.hosts[1]) < 8 * MIB {
            std::thread::sleep(Duration::from_millis(1));
        }
        // From here on it is as slow as can be.
        fleet.hosts[0].pause();
        std::thread::sleep(Duration::from_secs(5));
        let is_over = child.try_wait().unwrap().is_some();
        if !is_over {
            fleet.hosts[1].kill().unwrap();
            child.wait().unwrap();
        }
        fleet.hosts[0].resume();
        if is_over {
            println!("{name}: done before it could be slowed down");
            fleet.settle().unwrap();
            continue;
        }
        up(&mut fleet.hosts[1]);
        fleet.settle().unwrap();
        let pulled = data(&fleet.hosts[1], &words);
        assert!(content(&into) == content(&dir), "what came differs");
        let fetched = pulled["fetched_bytes"].as_u64().unwrap();
        println!("{name}: after the kill fetched {fetched} of {SIZE}");
        assert!(fetched < SIZE - 4 * MIB, "what had come before comes again: {fetched}");
        calm(&fleet);
        return;
    }
    panic!("every pull was over before it could be slowed down");
}

/// Every field is there, and not null.
fn has(item: &Value, fields: &[&str]) {
    for field in fields {
        assert!(!item[*field].is_null(), "there is no {field} in {item}");
    }
}

#[test]
fn on_a_long_wire_a_pull_takes_several_connections() {
    if !need(&["namespaces", "ip", "/dev/net/tun"]) {
        return;
    }
    let fleet = Plan::lab(Lab::wired(2, 9).unwrap(), 2).found().unwrap();
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let dir = aside(first, "far");
    random_tree(&dir, 9, 24 * MIB);
    data(first, &["push", text(&dir), "--copies", "1"]);
    until_copies(second, "far@1", 1);
    let link = || -> Value {
        let answer = second.client().ask("GET", "/v1/links", None, PATIENCE).unwrap();
        answer.body["items"][0].clone()
    };
    let far = Link { delay: Duration::from_millis(40), loss: 0.002, ..Link::default() };
    fleet.lab().shape(far).unwrap();
    let felt = until(SETTLE, || (link()["rtt_ms"].as_f64()? > 60.0).then_some(()));
    felt.expect("the wire is known to be long");
    let began = mesh_node::clock::steady();
    let mut pull = begin(second, &["pull", "far", text(&aside(second, "far"))], "far");
    let coming = until(SETTLE, || {
        let shown = data(second, &["show", "far"]);
        let is_mine = |holder: &Value| holder["name"] == second.name.as_str();
        let mine = shown["holders"].as_array()?.iter().find(|holder| is_mine(holder))?;
        (mine["holds"] == "pulling" && mine["bytes"].is_u64()).then_some(())
    });
    coming.expect("whoever asks the node sees how far it is");
    let several = until(PATIENCE, || (link()["connections"].as_u64()? > 2).then_some(()));
    several.expect("one connection is not all that there is");
    assert!(pull.wait().unwrap().success());
    println!("24 MiB over a wire of 80 ms that loses 0.2 %: {:?}", began.elapsed());
    assert!(content(&aside(second, "far")) == content(&dir));
    calm(&fleet);
}

#[test]
fn versions_are_named_compared_shared_and_removed() {
    let (key, value) = SHORT_WAITS;
    let fleet = Plan::loopback(2).setting(key, value).found().unwrap();
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    const ROW: &[&str] = &[
        "name",
        "version",
        "manifest",
        "party",
        "visibility",
        "bytes",
        "files",
        "copies",
        "copies_wanted",
        "created_at",
    ];
    let dir = aside(first, "tree");
    random_tree(&dir, 8, 2 * MIB);
    let pushed = data(first, &["push", text(&dir), "--copies", "2", "--tag", "clean"]);
    has(&pushed, ROW);
    has(&pushed, &["new_bytes", "read_bytes", "elapsed_ms", "acknowledged", "holders"]);
    let again = data(first, &["push", text(&dir), "--copies", "2"]);
    assert_eq!((&again["version"], &again["unchanged"]), (&Value::from(1), &Value::from(true)));
    assert_eq!(again["new_bytes"], 0, "{again}");
    let old = content(&dir);
    fs::write(dir.join("added"), "new").unwrap();
    fs::write(dir.join("below/small-3"), "changed").unwrap();
    fs::remove_file(dir.join("below/small-4")).unwrap();
    assert_eq!(data(first, &["push", text(&dir), "--copies", "2"])["version"], 2);

    // On the other node, which has to learn of it.
    until_copies(second, "tree@2", 2);
    let log = data(second, &["log", "tree"]);
    assert_eq!(log.as_array().unwrap().len(), 2, "{log}");
    assert_eq!((&log[0]["version"], &log[1]["version"]), (&Value::from(2), &Value::from(1)));
    has(&log[0], ROW);
    assert_eq!(log[1]["tags"], serde_json::json!(["clean"]));
    let listed = data(second, &["ls"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    has(&listed[0], ROW);
    assert_eq!(data(second, &["ls", "--all"]).as_array().unwrap().len(), 2);

    let diff = data(second, &["diff", "tree:clean", "tree"]);
    let count = |what: &str| diff[what].as_u64().unwrap();
    assert_eq!((count("added"), count("removed"), count("changed")), (1, 1, 1), "{diff}");
    let changes = diff["changes"].as_array().unwrap();
    let change = |path: &str| changes.iter().find(|change| change["path"] == path).unwrap();
    assert_eq!(change("added")["change"], "added");
    assert_eq!(change("below/small-3")["change"], "changed");
    assert_eq!(change("below/small-4")["change"], "removed");

    // A tag moves only from where it is believed to stand.
    data(second, &["tag", "tree@2", "good", "--expect", "none"]);
    let said = try_data(first, &["tag", "tree@1", "good", "--expect", "1"]);
    assert!(!said.ok(), "{said:?}");
    assert_eq!(data(first, &["tag", "tree@1", "good", "--expect", "2"])["version"], 1);
    let shown = until(SETTLE, || {
        let shown = data(second, &["show", "tree:good"]);
        (shown["version"] == 1).then_some(shown)
    });
    let shown = shown.expect("another node hears of it");
    has(&shown, ROW);
    has(&shown, &["holders", "chunks", "objects"]);
    data(second, &["tag", "tree", "good", "--rm"]);
    assert!(!try_data(second, &["show", "tree:good"]).ok());
    data(second, &["pull", "tree:clean", text(&aside(second, "old"))]);
    assert!(content(&aside(second, "old")) == old);

    assert_eq!(data(second, &["pin", "tree@2"])["pinned"], true);
    let du = data(second, &["du"]);
    has(&du, &["store_bytes", "quarantine_bytes", "free_bytes", "items"]);
    let items = du["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{du}");
    has(&items[0], &["name", "version", "bytes", "pinned", "durable"]);
    assert_eq!(data(second, &["pin", "tree@2", "--off"])["pinned"], false);

    assert_eq!(pushed["visibility"], "open", "a mesh of one party");
    assert_eq!(data(first, &["share", "tree@2", "--listed"])["visibility"], "listed");
    assert_eq!(data(first, &["share", "tree@2", "--open"])["visibility"], "open");
    assert_eq!(data(first, &["unshare", "tree@2"])["visibility"], "private");
    let private = until(SETTLE, || {
        let listed = data(second, &["ls"]);
        (listed[0]["visibility"] == "private").then_some(listed)
    });
    let private = private.expect("another node of the party hears of it");
    assert_eq!(private[0]["name"], "tree", "and reads it still: {private}");
    data(second, &["pull", "tree@2", text(&aside(second, "private"))]);
    assert!(content(&aside(second, "private")) == content(&dir));
    // What was taken back can be given again. Others get to see a number once: it takes the next one.
    let shared = data(first, &["share", "tree@2", "--open"]);
    assert_eq!((&shared["visibility"], &shared["version"]), (&"open".into(), &Value::from(3)));
    let open = until(SETTLE, || {
        let listed = data(second, &["ls"]);
        (listed[0]["visibility"] == "open").then_some(listed)
    });
    has(&open.expect("another node hears of it")[0], ROW);
    data(second, &["pull", "tree@3", text(&aside(second, "open"))]);
    assert!(content(&aside(second, "open")) == content(&dir));

    let removed = data(first, &["rm", "tree@1", "--yes"]);
    assert_eq!(removed["removed"][0]["version"], 1, "{removed}");
    let gone = until(SETTLE, || (!try_data(second, &["show", "tree@1"]).ok()).then_some(()));
    gone.expect("another node hears of it");
    data(second, &["pull", "tree@3", text(&aside(second, "newest"))]);
    data(first, &["rm", "tree", "--all", "--yes"]);
    assert_eq!(data(first, &["ls"]).as_array().unwrap().len(), 0);
    let freed =
        until(PATIENCE, || fleet.hosts.iter().all(|host| objects(host).is_empty()).then_some(()));
    freed.expect("what was removed takes no room on any node");
    calm(&fleet);
}
