//! What was acknowledged outlives its nodes, in as many copies as are wanted.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_chaos_tests::hosts::fleet::{Fleet, Plan};
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;
use serde_json::Value;

use crate::{
    MIB, PATIENCE, SHORT_WAITS, aside, begin, calm, content, data, flip, knows, long, objects,
    random_tree, text, try_data, until_copies, up,
};

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
    let is_short = pushed["copies"].as_u64() < pushed["copies_wanted"].as_u64();
    assert_eq!(pushed["shortfall"].is_string(), is_short, "{pushed}");
    assert_eq!(pushed["no_room"], false, "{pushed}");
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
