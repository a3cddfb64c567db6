//! Forged words to those who watch: a minority of lying voters neither stops nor misleads a watcher.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;
use mesh_consensus::bookmark::Bookmark;
use mesh_consensus::id::{Hash, NodeId};
use mesh_consensus::log::{Entry, Payload};
use mesh_node::wire::{Feed, Note};
use mesh_transport::codec::{decode, encode};

use crate::attacker::{Attacker, Serve, addresses, id, runtime};
use crate::{again, secs, status, warm_up};

/// Which of `servers` the node `of` asks first: see `follow.rs`.
fn preferred(of: NodeId, servers: &[NodeId]) -> NodeId {
    let rank = |one: &NodeId| {
        let mut hasher = blake3::Hasher::new_derive_key("mesh 2026 which server a watcher prefers");
        hasher.update(&of.0);
        hasher.update(&one.0);
        *hasher.finalize().as_bytes()
    };
    *servers.iter().min_by_key(|one| rank(one)).unwrap()
}

/// A history that never was, and a voter's word for it, for ever.
fn another_history(voter: &Attacker) -> Serve {
    let (seed, mesh, epoch) = (*voter.key.seed(), voter.mesh, voter.epoch);
    Arc::new(move |_, index, mut stream| {
        let key = ed25519_dalek::SigningKey::from_bytes(&seed);
        async move {
            for n in 1.. {
                let at = index + n;
                let history = Hash::of(&at.to_le_bytes());
                let mark =
                    Bookmark::sign(&key, mesh, epoch, at, history, Some((at, history)), u64::MAX);
                let entry = Entry { term: 1 << 30, index: at, payload: Payload::Empty };
                let leader = Feed::Leader { term: u64::MAX, leader: Some(mark.by) };
                for feed in [Feed::Entries(vec![entry]), Feed::Bookmark { mark, age_ms: 0 }, leader]
                {
                    if stream.send_frame(&encode(&feed).unwrap()).await.is_err() {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        .boxed()
    })
}

#[test]
fn a_lying_voter_neither_stops_nor_misleads_a_watcher() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    fleet.until_members("three vote", |all| all.iter().all(|m| m.role == "voter")).unwrap();
    let watcher = fleet.host(3).unwrap().with_setting("MESH_VOTES", "false");
    watcher.join(&fleet.hosts[0].ticket().unwrap()).unwrap();
    fleet.hosts.push(watcher);
    until(SETTLE, || (status(&fleet.hosts[3])["role"] == "watcher").then_some(()))
        .expect("one that does not want to vote watches");
    until(SETTLE, || {
        let all = fleet.hosts[3].client().ask("GET", "/v1/nodes", None, secs(5)).ok()?.body;
        let heard = |node: &serde_json::Value| !node["addresses"].as_array().unwrap().is_empty();
        all["items"].as_array()?.iter().all(heard).then_some(())
    })
    .expect("the watcher hears where the others are");
    // Clients ask the voters only: whatever the watcher learns, it learns by its feed.
    let doors = fleet.hosts[..3].iter().map(Host::client).collect();
    let load = mesh_chaos_tests::hosts::load::Load::start(doors, &fleet.party, 41);
    warm_up(&load);

    // The voter that the watcher prefers is taken over, and the watcher comes back to it first.
    let voters: Vec<NodeId> = fleet.hosts[..3].iter().map(id).collect();
    let first = preferred(id(&fleet.hosts[3]), &voters);
    let liar = voters.iter().position(|node| *node == first).unwrap();
    let listen = addresses(&fleet.hosts[liar], "data_addresses")[0];
    fleet.hosts[liar].kill().unwrap();
    let runtime = runtime();
    let voter = Attacker::takes_over(&runtime, &fleet.hosts[liar], listen);
    voter.serves(another_history(&voter));
    let honest: Vec<usize> = (0..3).filter(|&n| n != liar).collect();
    // It also lies to the voters, who serve others: about itself, and in the name of others.
    for &n in &honest {
        let node = voter.meets(&fleet.hosts[n]);
        let lie = |index| {
            let (hash, key) = (Hash::of(b"never was"), voter.key.signing());
            Bookmark::sign(key, voter.mesh, voter.epoch, index, hash, Some((index, hash)), u64::MAX)
        };
        for index in [1, 1 << 20, u64::MAX] {
            voter.say(node, encode(&Note::Bookmark(lie(index))).unwrap());
            let mut stolen = lie(index);
            stolen.by = id(&fleet.hosts[honest[0]]);
            voter.say(node, encode(&Note::Bookmark(stolen)).unwrap());
        }
    }
    fleet.hosts[3].term().unwrap();
    again(&mut fleet.hosts[3]);
    let begun = load.now();
    until(SETTLE, || voter.links().contains_key(&id(&fleet.hosts[3])).then_some(()))
        .expect("the watcher asks the liar");
    let goal = status(&fleet.hosts[honest[0]])["index"].as_u64().unwrap() + 20;
    until(SETTLE, || {
        let now = fleet.hosts[3].client().status().ok()?;
        (now.index >= goal).then_some(())
    })
    .expect("the watcher goes on");
    println!("a watcher left a liar after {:.1} s", (load.now() - begun).as_secs_f64());
    voter.stop();
    again(&mut fleet.hosts[liar]);
    // One history everywhere, the watcher's among them.
    fleet.finish(load).unwrap();
}

#[test]
fn a_bookmark_of_one_who_does_not_vote_is_not_passed_on() {
    let fleet = Plan::loopback(1).found().unwrap();
    let host = &fleet.hosts[0];
    let runtime = runtime();
    let insider = Attacker::insider(&runtime, &host.ticket().unwrap(), "insider");
    let node = insider.meets(host);
    until(SETTLE, || insider.is_heard(node).then_some(())).unwrap();
    let index = status(host)["index"].as_u64().unwrap();
    let (mesh, epoch, key) = (insider.mesh, insider.epoch, insider.key.signing());
    let lie = Hash::of(b"never was");
    let own = Bookmark::sign(key, mesh, epoch, index, lie, None, u64::MAX);
    let mut stolen = own.clone();
    stolen.by = node;
    let mut feed = insider.watch(node, index).unwrap();
    for mark in [own, stolen] {
        insider.say(node, encode(&Note::Bookmark(mark)).unwrap());
    }
    let begun = mesh_node::clock::steady();
    let mut marks = 0;
    while begun.elapsed() < secs(6) {
        let Some(frame) = insider.next(&mut feed, secs(6)) else { break };
        if let Ok(Feed::Bookmark { mark, .. }) = decode(&frame) {
            assert_eq!(mark.by, node, "a bookmark of {}", mark.by.short());
            assert_ne!(mark.history, lie);
            marks += 1;
        }
    }
    assert!(marks > 0, "no bookmarks came at all");
    crate::nobody_fell(&fleet.hosts);
}
