//! What `mesh doctor` says of a network that is really broken.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::ns::Lab;
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::{need, until};
use serde_json::Value;

/// A connection is given up after a quarter of a minute; the rest is for a busy machine.
const NOTICED: Duration = Duration::from_secs(120);

/// What the doctor on a host says of another by its name.
fn finding(on: &Host, about: &Host) -> Option<Value> {
    let said = on.run(binary().unwrap(), &["doctor", "--json"], SETTLE).unwrap();
    let answer: Value = serde_json::from_str(&said.stdout).unwrap();
    let begins = format!("{} ", about.name);
    let mut items = answer["items"].as_array().unwrap().iter();
    items.find(|one| one["message"].as_str().unwrap().starts_with(&begins)).cloned()
}

/// Waits until the doctor on a host says this of another.
fn until_found(on: &Host, about: &Host, check: &str, state: &str) -> Value {
    let mut last = None;
    let found = until(NOTICED, || {
        last = finding(on, about);
        last.clone().filter(|one| one["check"] == check && one["state"] == state)
    });
    found.unwrap_or_else(|| panic!("{} never finds {check} {state}: {last:?}", on.name))
}

#[test]
fn the_doctor_names_the_member_whom_udp_does_not_reach() {
    if !need(&["namespaces", "ip", "iptables-restore"]) {
        return;
    }
    let fleet = Plan::lab(Lab::bridged(3).unwrap(), 3).found().unwrap();
    let leader = fleet.leader().unwrap();
    // Between the two who follow: the one who leads goes on to hear both.
    let (here, there) = ((leader + 1) % 3, (leader + 2) % 3);
    let (host, other) = (&fleet.hosts[here], &fleet.hosts[there]);
    until_found(host, other, "member", "ok");

    fleet.lab().block_udp(here, there).unwrap();
    let found = until_found(host, other, "udp", "wrong");
    let (message, hint) = (found["message"].as_str().unwrap(), found["try"].as_str().unwrap());
    assert!(message.contains("cannot be reached") && message.contains("UDP"), "{found}");
    assert!(hint.contains(&other.address().to_string()), "{found}");
    // Nobody else is accused.
    until_found(host, &fleet.hosts[leader], "member", "ok");

    fleet.lab().heal().unwrap();
    until_found(host, other, "member", "ok");
}

#[test]
fn the_doctor_says_at_once_of_a_dead_member_that_it_gives_no_answer() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let leader = fleet.leader().unwrap();
    let (here, there) = ((leader + 1) % 3, (leader + 2) % 3);
    until_found(&fleet.hosts[here], &fleet.hosts[there], "member", "ok");

    fleet.hosts[there].kill().unwrap();
    let (host, other) = (&fleet.hosts[here], &fleet.hosts[there]);
    // The connection with it still stands.
    let first = finding(host, other).unwrap();
    assert_ne!(first["state"], "ok", "{first}");
    let found = until_found(host, other, "member", "look");
    let message = found["message"].as_str().unwrap();
    assert!(message.contains("gives no answer, neither by UDP nor by TCP"), "{found}");
    assert!(!message.contains("UDP to it is blocked"), "{found}");
}
