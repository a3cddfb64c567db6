//! Killed at any moment: what was claimed is there, and to do it again completes the rest.
//!
//! The test runs itself as a child, and kills it.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::*;

const ROLE: &str = "MESH_STORE_CRASH_ROLE";

/// Large enough for some flushes, small enough for many trials.
fn dataset(root: &Path) {
    plant(root, &[("one", noise(3 << 20, 1)), ("two", noise(2 << 20, 2))]);
    for at in 0..24 {
        plant(root, &[(&format!("small/{at:03}"), noise(20_000, at))]);
        plant(root, &[(&format!("medium/{at:03}"), noise(270_000, 500 + at))]);
    }
}

/// What the child does until it is killed. Does nothing in a normal run.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = |name| std::path::PathBuf::from(std::env::var_os(name).unwrap());
    let store = Store::open(dir("MESH_STORE_HOME")).unwrap();
    let say = |word: &str| {
        let mut out = std::io::stdout();
        writeln!(out, "{word}").unwrap();
        out.flush().unwrap();
    };
    say("READY");
    if role == "import" {
        let imported = take(&store, &dir("MESH_STORE_TREE"));
        say(&format!("CLAIMED {}", imported.hash));
        std::thread::sleep(Duration::from_secs(20));
    } else if role == "evict" {
        loop {
            let evicted = store.evict(1, |_| true).unwrap().manifests;
            evicted.iter().for_each(|hash| say(&format!("EVICTED {hash}")));
            if evicted.is_empty() {
                break std::thread::sleep(Duration::from_secs(20));
            }
        }
    } else {
        let from = Store::open(dir("MESH_STORE_FROM")).unwrap();
        let hash = from.list().unwrap()[0].hash;
        let loaded = from.load(hash).unwrap();
        let fetch = store.fetch(from.manifest_bytes(hash).unwrap(), hash, NOW).unwrap();
        let mut missing: Vec<usize> = fetch.missing().present().collect();
        fastrand::shuffle(&mut missing);
        for (at, number) in missing.into_iter().enumerate() {
            fetch.write(number, &from.read_chunk(&loaded, number, NOW).unwrap()).unwrap();
            if at % 5 == 4 {
                fetch.flush().unwrap();
                say("FLUSHED");
            }
        }
        fetch.finish(NOW).unwrap();
        say(&format!("CLAIMED {hash}"));
        std::thread::sleep(Duration::from_secs(20));
    }
}

/// Starts the child, kills it after a while, and returns what it said.
fn killed(role: &str, after: Duration, dirs: &[(&str, &Path)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "store::tests::crash::child", "--nocapture"]).env(ROLE, role);
    command.envs(dirs.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut said, mut part) = (Vec::new(), [0; 256]);
    // Starting up is not what is tested.
    while !String::from_utf8_lossy(&said).contains("READY") {
        match out.read(&mut part).unwrap() {
            0 => break,
            read => said.extend_from_slice(&part[..read]),
        }
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    out.read_to_end(&mut said).unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

fn trials() -> u64 {
    if std::env::var_os("MESH_LONG").is_some() { 260 } else { 30 }
}

/// All that is claimed verifies, and a manifest that was said to be claimed is.
fn check_claims(store: &Store, said: &str) {
    for held in store.list().unwrap() {
        let verified = store.verify(held.hash, NOW, |_| ()).unwrap();
        assert_eq!(verified.damaged, [], "after {said}");
    }
    if let Some((_, hash)) = said.split_once("CLAIMED ") {
        let hash: Hash = hash.lines().next().unwrap().trim().parse().unwrap();
        assert!(store.has(hash).unwrap());
    }
    let scrubbed = store.scrub(u64::MAX, NOW).unwrap();
    assert_eq!(scrubbed.damaged, []);
}

#[test]
fn an_import_killed_at_any_moment_claims_all_or_nothing() {
    let tree = TempDir::new().unwrap();
    dataset(tree.path());
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut claims, mut unclaimed, mut home) = (0, 0, TempDir::new().unwrap());
    for trial in 0..trials() {
        let after = Duration::from_micros(rng.u64(0..120_000));
        let dirs = [("MESH_STORE_HOME", home.path()), ("MESH_STORE_TREE", tree.path())];
        let said = killed("import", after, &dirs);
        assert!(said.contains("READY"), "{said}");
        let store = Store::open(home.path()).unwrap();
        check_claims(&store, &said);
        assert_eq!(planted(&home.path().join("store/tmp")).len(), 0);
        let is_claimed = !store.list().unwrap().is_empty();
        (claims, unclaimed) = (claims + u64::from(is_claimed), unclaimed + u64::from(!is_claimed));
        // Now and then once more on top of what was left behind.
        if is_claimed || trial % 4 == 3 {
            let imported = take(&store, tree.path());
            assert!(store.verify(imported.hash, NOW, |_| ()).unwrap().damaged.is_empty());
            if trial % 8 == 7 {
                assert_eq!(contents(&store, imported.hash), planted(tree.path()));
            }
            drop(imported);
            drop(store);
            home = TempDir::new().unwrap();
        }
    }
    assert!(unclaimed > 0, "{claims} trials were all too late");
}

#[test]
fn a_fetch_killed_at_any_moment_goes_on_where_it_was() {
    let (tree, away) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    dataset(tree.path());
    let from = Store::open(away.path()).unwrap();
    let hash = take(&from, tree.path()).hash;
    let bytes = from.manifest_bytes(hash).unwrap();
    let loaded = from.load(hash).unwrap();
    let chunks: Vec<Vec<u8>> = (0..loaded.chunk_count())
        .map(|number| from.read_chunk(&loaded, number, NOW).unwrap())
        .collect();
    drop(from);
    let mut rng = fastrand::Rng::with_seed(2);
    let (mut home, mut resumed, mut unclaimed) = (TempDir::new().unwrap(), 0, 0);
    for trial in 0..trials() {
        let after = Duration::from_micros(rng.u64(0..160_000));
        let dirs = [("MESH_STORE_HOME", home.path()), ("MESH_STORE_FROM", away.path())];
        let said = killed("fetch", after, &dirs);
        assert!(said.contains("READY"), "{said}");
        let store = Store::open(home.path()).unwrap();
        check_claims(&store, &said);
        let is_claimed = store.has(hash).unwrap();
        unclaimed += u64::from(!is_claimed);
        let fetch = store.fetch(bytes.clone(), hash, NOW).unwrap();
        let have = fetch.have();
        let flushed = said.matches("FLUSHED").count();
        assert!(have.count() >= 5 * flushed, "{} of {flushed} flushes", have.count());
        resumed += u64::from(!is_claimed && have.count() > 0);
        for number in have.present() {
            assert!(store.read_chunk(&loaded, number, NOW).unwrap() == chunks[number]);
        }
        if is_claimed || trial % 4 == 3 {
            for number in fetch.missing().present() {
                fetch.write(number, &chunks[number]).unwrap();
            }
            fetch.finish(NOW).unwrap();
            assert!(store.verify(hash, NOW, |_| ()).unwrap().damaged.is_empty());
            drop(fetch);
            drop(store);
            home = TempDir::new().unwrap();
        }
    }
    assert!(resumed > 0 && unclaimed > 0, "{resumed} resumed, {unclaimed} were killed in time");
}

#[test]
fn an_eviction_killed_at_any_moment_takes_nothing_that_is_needed() {
    // Sixteen versions that share a file; two of them are counted on.
    let trees: Vec<TempDir> = (0..16).map(|_| TempDir::new().unwrap()).collect();
    for (at, tree) in trees.iter().enumerate() {
        let own = noise(300_000, 100 + at as u64);
        plant(tree.path(), &[("shared", noise(600_000, 1)), ("own", own)]);
        plant(tree.path(), &[("small", noise(5_000, at as u64))]);
    }
    let home = TempDir::new().unwrap();
    let (mut rng, mut partly) = (fastrand::Rng::with_seed(3), 0);
    let fill = |store: &Store| -> Vec<Hash> {
        trees.iter().map(|tree| take(store, tree.path()).hash).collect()
    };
    let hashes = fill(&Store::open(home.path()).unwrap());
    for _ in 0..trials() {
        let store = Store::open(home.path()).unwrap();
        assert_eq!(fill(&store), hashes);
        let needed = [rng.usize(..hashes.len()), rng.usize(..hashes.len())];
        needed.iter().for_each(|at| store.pin(hashes[*at], "needed").unwrap());
        drop(store);
        let after = Duration::from_micros(rng.u64(0..60_000));
        let said = killed("evict", after, &[("MESH_STORE_HOME", home.path())]);
        assert!(said.contains("READY"), "{said}");
        let store = Store::open(home.path()).unwrap();
        check_claims(&store, &said);
        for at in needed {
            assert!(contents(&store, hashes[at]) == planted(trees[at].path()), "after {said}");
            store.unpin(hashes[at], "needed").unwrap();
        }
        let held: Vec<Hash> = store.list().unwrap().iter().map(|held| held.hash).collect();
        for hash in &hashes {
            let is_gone = said.contains(&format!("EVICTED {hash}"));
            assert!(!(is_gone && held.contains(hash)), "{hash} is back after {said}");
        }
        partly += u64::from((3..16).contains(&held.len()));
    }
    assert!(partly > 0, "no trial was killed in between");
}
