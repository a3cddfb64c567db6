//! Disks that are full, or fill up.

use std::fs;
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::process::{Host, Said};
use mesh_chaos_tests::hosts::{need, until};
use serde_json::Value;

use crate::{
    MIB, PATIENCE, SHORT_WAITS, aside, calm, content, data, knows, partial_bytes, pull_everywhere,
    random_tree, text, try_data, until_copies,
};

#[test]
fn a_pull_onto_a_full_disk_says_so_and_goes_on_once_there_is_room() {
    if !need(&["namespaces"]) {
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
        // The node can answer, and refuses.
        assert_eq!(said.status.and_then(|status| status.code()), Some(1), "{said:?}");
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
fn what_has_no_room_on_one_node_is_copied_to_the_next() {
    if !need(&["namespaces"]) {
        return;
    }
    let (key, value) = SHORT_WAITS;
    let mut fleet = Plan::loopback(2).first_disk(128 * MIB).setting(key, value).found().unwrap();
    let (small, source) = (&fleet.hosts[0], &fleet.hosts[1]);
    let dir = aside(source, "tree");
    random_tree(&dir, 30, 24 * MIB);
    let stat = nix::sys::statvfs::statvfs(&small.data()).unwrap();
    let free = stat.blocks_available() * stat.fragment_size();
    let filler = vec![0; usize::try_from(free.saturating_sub(12 * MIB)).unwrap()];
    fs::write(small.data().join("filler"), filler).unwrap();
    until(SETTLE, || (said_free(source, &small.name)? < 24 * MIB).then_some(()))
        .unwrap_or_else(|| panic!("{} never says that its disk is full", small.name));

    // There is nobody but the one whose disk is full. The push does not wait for it, and says why.
    let said = try_data(source, &["push", text(&dir), "--copies", "2"]);
    assert_eq!(said.status.and_then(|status| status.code()), Some(1), "{said:?}");
    let why = format!("no room on {}", small.name);
    assert!(said.is_report() && said.stderr.contains(&why), "{said:?}");
    let pushed: Value = serde_json::from_str(&said.stdout).unwrap();
    let pushed = &pushed["item"];
    assert_eq!((&pushed["no_room"], &pushed["timed_out"]), (&true.into(), &false.into()));
    assert!(pushed["shortfall"].as_str().unwrap().contains(&why), "{pushed}");
    assert_eq!(pushed["copies"], 1, "{pushed}");

    // One with room takes the copy, whatever placement thinks of the two.
    let next = fleet.grow().unwrap();
    let mut holders = until_copies(&fleet.hosts[1], "tree", 2);
    holders.sort();
    assert_eq!(holders, [fleet.hosts[1].name.clone(), fleet.hosts[next].name.clone()]);
    let shown = data(&fleet.hosts[1], &["show", "tree"]);
    assert!(shown["shortfall"].is_null(), "{shown}");
    // However often it was tried, it was said once in each log.
    for (path, log) in fleet.hosts[0].logs() {
        let told = log.matches("a copy does not fit on this node").count();
        assert!(told <= 1, "it was said {told} times in {path:?}");
    }
    calm(&fleet);
}

/// What a host has heard another say of the room on its disk.
fn said_free(host: &Host, name: &str) -> Option<u64> {
    let nodes: Value = serde_json::from_str(&host.mesh(&["nodes", "--json"]).ok()?).ok()?;
    let node = nodes["items"].as_array()?.iter().find(|node| node["name"] == name)?;
    node["disk_free_bytes"].as_u64()
}

#[test]
fn a_disk_that_fills_up_gives_up_what_it_is_not_counted_on_for() {
    if !need(&["namespaces"]) {
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
