//! Attacks on real nodes, from outside and from within. Each story founds a mesh of real processes, lets an
//! attacker of this process speak to it by hand, and looks whether honest writes go on, nobody panics and
//! nobody gets in or stays in who should not.
//!
//! - `attacker.rs`: one who speaks the protocol by hand: a stranger, a member, a node taken over.
//! - `joining.rs`: who gets in. `removal.rs`: who stays out.
//! - `raft.rs`: forged messages of voters. `watching.rs`: forged words to those who watch. `gossip.rs`: forged
//!   records.
//! - `data.rs`: what other parties learn of private data. `data/lies.rs`: false bytes and nonsense among pullers.
//! - `floods.rs`: noise and half-open connections. `http.rs`: pages, names and tokens.
//!
//! What each crate can show by itself is in its own tests (`transport/tests/hostile.rs`, `node/tests/api/`).

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

mod attacker;
mod data;
mod floods;
mod gossip;
mod http;
mod joining;
mod raft;
mod removal;
mod watching;

use std::time::Duration;

use mesh_chaos_tests::hosts::fleet::SETTLE;
use mesh_chaos_tests::hosts::load::Load;
use mesh_chaos_tests::hosts::process::Host;
use serde_json::Value;

/// Removal and the like must take hold within this time.
const SOON: Duration = Duration::from_secs(5);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Some work on a healthy mesh, so that there is something to disturb.
fn warm_up(load: &Load) {
    load.progress(10, SETTLE).expect("a healthy mesh acknowledges writes");
}

/// Starts a node again. Its ports may have been taken meanwhile by whoever was given them by the kernel, which on
/// a host of its own nobody would be; then it is tried again.
fn again(host: &mut Host) {
    let begun = mesh_node::clock::steady();
    while let Some(said) = host.try_up(SETTLE).unwrap() {
        assert!(said.is_report() && begun.elapsed() < SETTLE, "{}: {said:?}", host.name);
        assert!(said.stderr.contains("taken") || said.stderr.contains("in use"), "{said:?}");
        std::thread::sleep(secs(1));
    }
}

/// All of them are stopped, and then started again.
fn restart(hosts: &mut [Host]) {
    for host in &mut *hosts {
        host.term().unwrap();
    }
    hosts.iter_mut().for_each(again);
}

/// What a node says of itself, all of it.
fn status(host: &Host) -> Value {
    let answer = host.client().ask("GET", "/v1/status", None, secs(5)).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["item"].clone()
}

/// The memory that a process holds, in KiB.
fn resident_kib(pid: &Value) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// No log of these hosts speaks of a panic, and none of their nodes ended by itself.
fn nobody_fell(hosts: &[Host]) {
    for host in hosts {
        assert!(host.fell().is_none(), "{:?}", host.fell());
    }
}
