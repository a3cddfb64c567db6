//! Who is removed is cut off everywhere, soon, and stays out.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan, SETTLE};
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;
use mesh_consensus::id::{NodeId, RaftId};
use mesh_node::clock::steady;
use mesh_node::state::refusal::Refusal;
use mesh_node::wire::{JoinReply, JoinRequest};
use mesh_transport::overlay::{Judged, Overlay};
use tokio::runtime::Runtime;

use crate::attacker::{Attacker, addresses, id, runtime};
use crate::{SOON, nobody_fell, restart, secs, status, warm_up};

/// A member's overlay, which hears everything and judges nothing.
pub(crate) fn overlay(runtime: &Runtime, of: &Attacker, hosts: &[Host]) -> Overlay {
    let any: [SocketAddr; 1] = ["127.0.0.1:0".parse().unwrap()];
    let judge = Arc::new(|_: &[u8]| Judged::Good);
    let started = Overlay::start(of.key.seed(), of.mesh, &any, false, judge);
    let (overlay, mut heard) = runtime.block_on(started).unwrap();
    runtime.spawn(async move { while heard.recv().await.is_some() {} });
    overlay.allow(hosts.iter().map(id).collect());
    for host in hosts {
        overlay.learn(id(host), addresses(host, "overlay_addresses"));
    }
    overlay
}

/// The nodes that a host is connected with.
fn links(host: &Host) -> BTreeSet<NodeId> {
    let answer = host.client().ask("GET", "/v1/links", None, secs(5)).unwrap();
    let items = answer.body["items"].as_array().unwrap().clone();
    items.iter().map(|link| link["node"]["id"].as_str().unwrap().parse().unwrap()).collect()
}

/// One more joins, which may not vote; its number.
fn add_watcher(fleet: &mut Fleet) -> usize {
    let number = fleet.hosts.len();
    let watcher = fleet.host(number).unwrap().with_setting("MESH_VOTES", "false");
    watcher.join(&fleet.hosts[0].ticket().unwrap()).unwrap();
    fleet.hosts.push(watcher);
    until(SETTLE, || (status(&fleet.hosts[number])["role"] == "watcher").then_some(()))
        .expect("one that does not want to vote watches");
    number
}

fn took(begun: Instant, what: &str) {
    println!("{what} {:.2} s after the removal", begun.elapsed().as_secs_f64());
    assert!(begun.elapsed() < SOON, "{what} only after {:?}", begun.elapsed());
}

/// Nobody hears it, whatever it shows and through whomever.
fn is_out(runtime: &Arc<Runtime>, fleet: &Fleet, spy: &Attacker, sybil: &Attacker) {
    let members: Vec<&Host> = fleet.hosts.iter().filter(|host| host.runs()).collect();
    for host in &members {
        let (node, other) = (spy.meets(host), sybil.meets(host));
        assert!(!spy.is_heard(node), "{} hears it again", host.name);
        assert!(spy.watch(node, 0).is_err() || spy.links().is_empty(), "{} feeds it", host.name);
        sybil.say(other, vec![0; 10]);
        // Its key is out for good, whatever ticket it has by now.
        let ticket = host.ticket().unwrap().parse().unwrap();
        let join = join_request(spy, &ticket);
        let JoinReply::Refused { code, .. } = spy.asks_in(host, &join) else {
            panic!("{} lets it in again", host.name)
        };
        assert_eq!(code, Some(Refusal::Removed.code()), "{}", host.name);
    }
    std::thread::sleep(secs(1));
    assert!(spy.links().is_empty() && sybil.links().is_empty(), "it is connected");
    let again = overlay(runtime, spy, &fleet.hosts);
    std::thread::sleep(secs(2));
    assert_eq!(again.peers(), 0, "the overlay hears it");
    again.stop();
}

fn join_request(of: &Attacker, ticket: &mesh_transport::ticket::Ticket) -> JoinRequest {
    use mesh_node::state::ticket::{sign_consent, sign_join};
    let seed = ed25519_dalek::SigningKey::from_bytes(&ticket.seed);
    let id = mesh_consensus::id::TicketId(seed.verifying_key().to_bytes());
    JoinRequest::Join {
        ticket: id,
        name: "again".parse().unwrap(),
        proof: sign_join(&seed, of.mesh, of.id()),
        consent: sign_consent(of.key.signing(), of.mesh, id, ticket.party),
        clock: mesh_node::clock::now(),
    }
}

#[test]
fn a_removed_member_is_cut_off_at_once_and_stays_out() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(21);
    warm_up(&load);
    let watcher = add_watcher(&mut fleet);
    let runtime = runtime();
    let spy = Attacker::insider(&runtime, &fleet.hosts[0].ticket().unwrap(), "spy");
    fleet.until_members("the spy is a member", |all| all.len() == 5).unwrap();
    let index = status(&fleet.hosts[0])["index"].as_u64().unwrap();
    // It has everything that a member has: connections, feeds, gossip, and a friend.
    let mut feeds = Vec::new();
    for host in &fleet.hosts {
        let node = spy.meets(host);
        until(SETTLE, || spy.is_heard(node).then_some(())).expect("a member is heard");
        if host.name == fleet.hosts[watcher].name {
            // It has no log to feed others from, and sends them elsewhere.
            continue;
        }
        let mut feed = spy.watch(node, index).unwrap();
        assert!(spy.next(&mut feed, secs(10)).is_some(), "a member is fed");
        feeds.push(feed);
    }
    let sybil = spy.sybil(RaftId(1 << 40));
    let friend = sybil.meets(&fleet.hosts[0]);
    until(SETTLE, || {
        sybil.say(friend, vec![0; 10]);
        sybil.links().contains_key(&friend).then_some(())
    })
    .expect("one who is vouched for is heard as a raft peer");
    let gossip = overlay(&runtime, &spy, &fleet.hosts);
    until(SETTLE, || (gossip.peers() == 4).then_some(())).expect("a member gossips");
    for host in &fleet.hosts {
        // A word now and then: a watcher has no other reason to keep the connection.
        let node = id(host);
        let is_linked = || spy.is_heard(node) && links(host).contains(&spy.id());
        let listed = until(SETTLE, || is_linked().then_some(()));
        listed.unwrap_or_else(|| panic!("{} does not list the link to a member", host.name));
    }

    let begun = steady();
    fleet.hosts[1].mesh(&["node", "rm", "spy", "--yes"]).unwrap();
    for mut feed in feeds {
        while begun.elapsed() < SOON && spy.next(&mut feed, secs(5)).is_some() {}
        took(begun, "a feed ended");
    }
    until(SOON, || (gossip.peers() == 0).then_some(())).expect("its gossip is cut off");
    took(begun, "gossip ended");
    until(SOON, || sybil.links().is_empty().then_some(())).expect("its friend is cut off");
    took(begun, "the friend was cut off");
    for host in &fleet.hosts {
        until(SOON, || (!links(host).contains(&spy.id())).then_some(())).expect("its link is cut");
    }
    took(begun, "links were gone");
    gossip.stop();

    is_out(&runtime, &fleet, &spy, &sybil);
    restart(&mut fleet.hosts);
    fleet.settle().unwrap();
    is_out(&runtime, &fleet, &spy, &sybil);
    fleet.until_members("four are left", |all| all.len() == 4).unwrap();
    fleet.finish(load).unwrap();
}

#[test]
fn a_removed_node_cannot_write_and_does_not_come_back_with_its_old_directory() {
    let mut fleet = Plan::loopback(4).setting("MESH_TEST_WAITS", "short").found().unwrap();
    let load = fleet.load(22);
    warm_up(&load);
    fleet
        .until_members("three vote", |all| {
            all.iter().filter(|member| member.role == "voter").count() == 3
        })
        .unwrap();
    let watcher = add_watcher(&mut fleet);
    // A voter, and not the one that leads or is asked.
    let leader = fleet.leader().unwrap();
    let votes = |host: &Host| status(host)["role"] == "voter";
    let out = (1..4).find(|&n| n != leader && votes(&fleet.hosts[n])).unwrap();
    let (name, node) = (fleet.hosts[out].name.clone(), id(&fleet.hosts[out]));
    let others: Vec<usize> = (0..fleet.hosts.len()).filter(|&n| n != out).collect();
    // Whoever watches may have followed somebody else.
    for &n in others.iter().filter(|&&n| n != watcher) {
        let listed = until(SETTLE, || links(&fleet.hosts[n]).contains(&node).then_some(()));
        listed.unwrap_or_else(|| panic!("n{n} does not list the link to a voter"));
    }
    let begun = steady();
    fleet.hosts[0].mesh(&["node", "rm", &name, "--yes"]).unwrap();
    for &n in &others {
        let gone = || {
            let cut = !links(&fleet.hosts[n]).contains(&node);
            let all = fleet.hosts[n].client().nodes().ok()?;
            (cut && all.iter().all(|member| member.name != name)).then_some(())
        };
        until(SOON, gone).unwrap_or_else(|| panic!("n{n} still has it after {SOON:?}"));
    }
    took(begun, "a voter was gone everywhere");
    until(SETTLE, || (status(&fleet.hosts[out])["removed"] == true).then_some(()))
        .expect("it knows that it was removed");
    let put = fleet.hosts[out].client().put(&fleet.party, "by-the-removed", None, 1);
    assert_ne!(put, mesh_chaos_tests::hosts::client::Put::Done, "it writes");

    // With its old directory and key, while the others run and after all have restarted.
    let mut host = fleet.hosts.remove(out);
    for round in 0..2 {
        let _ = host.kill();
        let ended = host.try_up(secs(20));
        let words = ["up", "--rejoin"];
        let _ = host.kill();
        let said = host.run(binary().unwrap(), &words, secs(10)).unwrap();
        assert!(!said.ok(), "it took a new seat: {said:?}, {ended:?}");
        let _ = host.kill();
        host.up().unwrap();
        // Nobody talks to it: it may give up.
        host.may_end();
        std::thread::sleep(secs(2));
        for other in &fleet.hosts {
            assert!(!links(other).contains(&node), "{} is connected with it", other.name);
            let all = other.client().nodes().unwrap();
            assert!(all.iter().all(|member| member.name != name), "{} lists it", other.name);
        }
        if round == 0 {
            restart(&mut fleet.hosts);
            fleet.settle().unwrap();
        }
    }
    nobody_fell(std::slice::from_ref(&host));
    fleet.finish(load).unwrap();
}
