//! Pulls that are interrupted or killed, and go on.

use std::time::Duration;

use mesh_chaos_tests::hosts::fleet::Plan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{MIB, aside, begin, calm, content, data, knows, partial_bytes, random_tree, text, up};

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
