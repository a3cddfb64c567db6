//! Swarms in the simulated network, and how near they come to what is possible.
//!
//! The floors asserted here are generous. To see the figures themselves:
//! `cargo test -p mesh-storage figures -- --ignored --nocapture`.

use std::time::Duration;

use super::sim::{Host, MIB, Outcome, World, cuts, host, run};
use super::{ServeSettings, Settings};

fn world(mib: f64, hosts: Vec<Host>, seed: u64) -> World {
    World {
        hosts,
        lengths: cuts(mib * MIB, seed),
        rtt: Duration::from_millis(2),
        tell: Duration::from_millis(100),
        pull: Settings::default(),
        serve: ServeSettings::default(),
        seed,
    }
}

/// A source, and peers like it: so many megabits a second both ways.
fn fleet(rate: f64, peers: usize) -> Vec<Host> {
    let mut hosts = vec![host(rate); peers + 1];
    hosts[0].is_source = true;
    hosts
}

fn mixed() -> Vec<Host> {
    let mut hosts = fleet(100.0, 12);
    for (number, host) in hosts.iter_mut().enumerate().skip(1) {
        host.up *= [0.2, 0.5, 1.0, 2.0][number % 4];
        host.down *= [1.0, 2.0, 4.0][number % 3];
    }
    hosts
}

fn one_slow() -> Vec<Host> {
    let mut hosts = fleet(100.0, 8);
    (hosts[3].up, hosts[3].down) = (hosts[3].up / 10.0, hosts[3].down / 2.0);
    hosts
}

fn one_liar() -> Vec<Host> {
    let mut hosts = fleet(100.0, 8);
    hosts[3].is_liar = true;
    hosts
}

fn one_dies() -> Vec<Host> {
    let mut hosts = fleet(100.0, 8);
    hosts[3].dies_at = Some(10_000_000);
    hosts
}

fn source_dies() -> Vec<Host> {
    let mut hosts = fleet(100.0, 8);
    hosts[0].dies_served = true;
    hosts
}

fn two_sources() -> Vec<Host> {
    let mut hosts = fleet(100.0, 8);
    hosts[1].is_source = true;
    hosts
}

fn show(name: &str, outcome: &Outcome) {
    println!(
        "{name:28} efficiency {:.3} ({:6.2} s, bound {:6.2}, first {:6.2}) source {:.3} F duplicates {:.2} % timeouts {} done {}",
        outcome.efficiency,
        outcome.seconds,
        outcome.bound,
        outcome.first,
        outcome.source_copies,
        100.0 * outcome.duplicates,
        outcome.timeouts,
        outcome.finished,
    );
}

#[test]
#[ignore = "prints figures, and takes minutes"]
fn figures() {
    let cases: Vec<(&str, f64, Vec<Host>, u64)> = vec![
        ("1-4 1 GiB 300", 1024.0, fleet(300.0, 4), 2),
        ("1-16 256 MiB 100", 256.0, fleet(100.0, 16), 2),
        ("1-16 256 MiB 100 rtt 40", 256.0, fleet(100.0, 16), 40),
        ("1-16 1 GiB 100", 1024.0, fleet(100.0, 16), 2),
        ("1-32 256 MiB 100", 256.0, fleet(100.0, 32), 2),
        ("1-12 mixed 256 MiB", 256.0, mixed(), 2),
        ("1-8 one slow 256 MiB", 256.0, one_slow(), 2),
        ("1-8 one liar 256 MiB", 256.0, one_liar(), 2),
        ("1-8 one dies 256 MiB", 256.0, one_dies(), 2),
        ("1-8 source dies 256 MiB", 256.0, source_dies(), 2),
        ("2-7 256 MiB", 256.0, two_sources(), 2),
        ("1-16 pieces of a quarter", 256.0, fleet(100.0, 16), 0),
    ];
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, mib, hosts, rtt) in cases.into_iter().filter(|case| case.0.contains(&only)) {
        for seed in 1..=2 {
            let mut world = world(mib, hosts.clone(), seed);
            world.rtt = Duration::from_millis(rtt.max(2));
            if rtt == 0 {
                let quarter =
                    |bytes: &u32| [bytes / 4, bytes / 4, bytes / 4, bytes - 3 * (bytes / 4)];
                world.lengths = world.lengths.iter().flat_map(quarter).collect();
            }
            show(name, &run(&world));
        }
    }
}

fn check(name: &str, mib: f64, hosts: Vec<Host>, floor: f64, copies: f64) -> Outcome {
    let pullers =
        hosts.iter().filter(|h| !h.is_source && !h.is_liar && h.dies_at.is_none()).count();
    let outcome = run(&world(mib, hosts, 1));
    show(name, &outcome);
    assert!(outcome.finished >= pullers, "{name}: {outcome:?}");
    assert!(outcome.efficiency > floor, "{name}: {outcome:?}");
    assert!(outcome.source_copies < copies, "{name}: {outcome:?}");
    assert!(outcome.duplicates < 0.02, "{name}: {outcome:?}");
    outcome
}

#[test]
fn four_peers_take_little_longer_than_one_copy() {
    check("1-4", 256.0, fleet(300.0, 4), 0.93, 1.1);
}

#[test]
fn sixteen_peers_take_little_longer_than_one_copy() {
    check("1-16", 256.0, fleet(100.0, 16), 0.86, 1.12);
}

#[test]
fn uneven_links_are_used_as_they_are() {
    check("mixed", 128.0, mixed(), 0.75, 2.0);
}

#[test]
fn a_slow_peer_holds_up_nobody_else() {
    let outcome = check("one slow", 128.0, one_slow(), 0.85, 1.3);
    // The bound is that of the slow one: all others are done in little more than half of it.
    assert!(outcome.first < 0.62 * outcome.bound);
}

#[test]
fn a_liar_costs_little() {
    check("one liar", 128.0, one_liar(), 0.75, 1.3);
}

#[test]
fn the_death_of_a_peer_costs_little() {
    check("one dies", 256.0, one_dies(), 0.8, 1.4);
}

#[test]
fn a_source_may_die_once_each_chunk_is_elsewhere() {
    check("source dies", 128.0, source_dies(), 0.7, 1.2);
}
