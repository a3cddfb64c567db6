//! Forged messages of voters.
//!
//! Raft survives crashes, not lies: a voter that claims to lead in a later term is followed for as long as it takes
//! the others to notice. What is shown here is the rest: who has no seat is not heard at all, and one who has
//! one cannot speak for others, stop a node or break it.

use std::time::Duration;

use mesh_chaos_tests::hosts::fleet::{Fleet, Plan};
use mesh_chaos_tests::hosts::until;
use mesh_consensus::id::{MeshId, NodeId, RaftId};
use mesh_consensus::log::{Config, Entry, Payload, Snapshot};
use mesh_consensus::message::{Body, Message, Reject};
use mesh_consensus::time::Time;
use mesh_node::clock::steady;
use mesh_node::wire::Note;
use mesh_transport::codec::encode;

use crate::attacker::{Attacker, addresses, id, runtime, seat};
use crate::{again, nobody_fell, resident_kib, secs, status, warm_up};

/// What a liar says to one that is at `term` and `index`: one of each kind, and some absurd.
fn lies(term: u64, index: u64, to: RaftId) -> Vec<(u64, Body)> {
    let entry = |index, bytes: &[u8]| {
        let payload = Payload::Batch { time: Time(u64::MAX), bytes: bytes.to_vec() };
        Entry { term: term + 1, index, payload }
    };
    let voters = [to, RaftId(77)].into_iter().collect();
    let config = Config { voters, ..Config::default() };
    let later = term + 1000;
    let vote = |pre| Body::Vote {
        pre,
        last_index: 1 << 40,
        last_term: term,
        commit: index,
        commit_term: term,
        transfer: true,
    };
    let append = |prev_index, entries| Body::Append {
        prev_index,
        prev_term: term,
        commit: prev_index,
        entries,
    };
    vec![
        (later, Body::Heartbeat { commit: 1, read: None }),
        (later, Body::Heartbeat { commit: 1 << 50, read: Some(1) }),
        (term, Body::Heartbeat { commit: 1 << 50, read: None }),
        (u64::MAX, Body::Heartbeat { commit: 1, read: None }),
        (0, Body::Heartbeat { commit: u64::MAX, read: None }),
        (later, vote(false)),
        (later, vote(true)),
        (later, append(index, vec![entry(index + 1, b"not a batch")])),
        (term, append(1, vec![entry(2, b"another history")])),
        (later, append(1 << 40, Vec::new())),
        (later, append(u64::MAX, vec![entry(0, b"")])),
        (later, Body::TimeoutNow),
        (term, Body::TimeoutNow),
        (later, Body::Snapshot(Snapshot { index: index + 1, term, config, data: vec![7; 500] })),
        (term, Body::AppendReply { index: u64::MAX, commit: u64::MAX, reject: None }),
        (
            term,
            Body::AppendReply {
                index: 1 << 40,
                commit: 0,
                reject: Some(Reject { hint_index: u64::MAX, hint_term: u64::MAX }),
            },
        ),
        (later, Body::VoteReply { pre: false, granted: true, commit: 0, commit_term: 0 }),
        (term, Body::HeartbeatReply { commit: 1 << 40, read: Some(1) }),
        (term, Body::Forward { batch: vec![1; 1000] }),
        (term, Body::ReadReply { context: 1, index: u64::MAX }),
    ]
}

/// Where each node is.
fn nodes(fleet: &Fleet) -> Vec<(NodeId, RaftId)> {
    let running = fleet.hosts.iter().filter(|host| host.runs());
    running.map(|host| (id(host), seat(host))).collect()
}

/// For so long, `speak` is called with where each node is, its term and its index.
fn for_a_while(fleet: &Fleet, time: Duration, speak: impl Fn((NodeId, RaftId), u64, u64)) {
    let all = nodes(fleet);
    let begun = steady();
    while begun.elapsed() < time {
        let Some(leader) = fleet.leader() else { continue };
        let now = fleet.hosts[leader].client().status().unwrap();
        for to in &all {
            speak(*to, now.term, now.index);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_member_without_a_seat_cannot_disturb_those_who_vote() {
    let fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(31);
    warm_up(&load);
    let runtime = runtime();
    let stranger = Attacker::stranger(&runtime, &fleet.hosts[0]);
    let insider = Attacker::insider(&runtime, &fleet.hosts[0].ticket().unwrap(), "insider");
    let sybil = insider.sybil(RaftId(1 << 40));
    for host in &fleet.hosts {
        let node = insider.meets(host);
        stranger.meets(host);
        sybil.meets(host);
        until(secs(30), || insider.is_heard(node).then_some(())).expect("a member is heard");
        assert!(!stranger.is_heard(node), "a stranger is heard");
    }
    let (term, begun) = (fleet.term(), load.now());
    let seats: Vec<RaftId> = nodes(&fleet).iter().map(|(_, seat)| *seat).collect();
    for_a_while(&fleet, secs(8), |to, term, index| {
        for (term, body) in lies(term, index, to.1) {
            for who in [&insider, &sybil, &stranger] {
                who.raft(to, term, body.clone());
            }
            // In the name of everybody else, and of nobody.
            for seat in seats.iter().chain(&[RaftId(0), RaftId(u64::MAX)]) {
                insider.raft_as(*seat, to, term, body.clone());
            }
            let (mesh, epoch, from) = (MeshId([1; 32]), insider.epoch, insider.seat);
            let message = Message { mesh, epoch, from, to: to.1, term, body: body.clone() };
            insider.say(to.0, encode(&Note::Raft(message)).unwrap());
        }
        insider.say(to.0, vec![0xff; 60_000]);
    });
    let elections = fleet.elections_since(term);
    println!("8 s of forged messages: {elections} elections");
    // A busy machine may cause one.
    assert!(elections <= 1, "{elections} elections");
    assert!(fleet.term() < term + 100, "the forged term was taken up");
    let until = load.now();
    let history = fleet.finish(load).unwrap();
    let gap = history.longest_gap(begun, until);
    println!("the longest wait for a write meanwhile: {:.2} s", gap.as_secs_f64());
    assert!(gap < secs(4), "writes stood still for {gap:?}");
    assert!(stranger.heard().is_empty(), "a stranger was told something");
}

#[test]
fn a_long_message_of_one_without_a_seat_is_not_read() {
    let fleet = Plan::loopback(1).found().unwrap();
    let runtime = runtime();
    let insider = Attacker::insider(&runtime, &fleet.hosts[0].ticket().unwrap(), "insider");
    let node = insider.meets(&fleet.hosts[0]);
    until(secs(30), || insider.is_heard(node).then_some(())).unwrap();
    let pid = status(&fleet.hosts[0])["pid"].clone();
    let before = resident_kib(&pid);
    let mut most = 0;
    for _ in 0..5 {
        insider.say(node, vec![1; 200 << 20]);
        let begun = steady();
        while begun.elapsed() < secs(1) {
            most = most.max(resident_kib(&pid));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    println!("200 MiB messages: resident memory grew by {} KiB", most.saturating_sub(before));
    assert!(most < before + (64 << 10), "{before} KiB became {most} KiB");
    until(secs(30), || insider.is_heard(node).then_some(())).expect("the node goes on");
    nobody_fell(&fleet.hosts);
}

#[test]
fn a_voter_that_lies_neither_stops_others_nor_speaks_for_them() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(32);
    warm_up(&load);
    fleet.until_members("three vote", |all| all.iter().all(|m| m.role == "voter")).unwrap();
    // One of the followers is taken over: its key, its seat, its address.
    let liar = (0..3).find(|&n| Some(n) != fleet.leader()).unwrap();
    let listen = addresses(&fleet.hosts[liar], "data_addresses")[0];
    fleet.hosts[liar].kill().unwrap();
    let runtime = runtime();
    let voter = Attacker::takes_over(&runtime, &fleet.hosts[liar], listen);
    for host in fleet.hosts.iter().filter(|host| host.runs()) {
        voter.meets(host);
    }
    let term = fleet.term();
    let all = nodes(&fleet);
    for_a_while(&fleet, secs(6), |to, term, index| {
        // As if the others had lost what they acknowledged, which would make them stop.
        for _ in 0..10 {
            voter.raft(to, term, Body::Heartbeat { commit: 1 << 50, read: None });
            voter.raft(to, term + 1, Body::Heartbeat { commit: 1 << 50, read: None });
        }
        for (said, body) in lies(term, index, to.1) {
            // In its own name only what no honest voter could say: the rest is a voter's right.
            if said == 0 || said == u64::MAX || said == term {
                voter.raft(to, said, body.clone());
            }
            for (_, seat) in &all {
                voter.raft_as(*seat, to, said, body.clone());
            }
        }
    });
    assert!(fleet.term() < term + 100, "a term that nobody was elected in was taken up");
    for host in fleet.hosts.iter().filter(|host| host.name != fleet.hosts[liar].name) {
        assert!(host.runs() && host.client().status().is_ok(), "{} was stopped", host.name);
    }
    voter.stop();
    again(&mut fleet.hosts[liar]);
    fleet.finish(load).unwrap();
}
