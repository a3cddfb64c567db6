//! Forged records: gossip is advice, and each may give it about itself only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::until;
use mesh_consensus::id::NodeId;
use mesh_node::awareness::bounded::Text;
use mesh_node::awareness::record::{Facts, Load, Record};
use mesh_node::awareness::signed::{Said, Signed, Stamp};
use mesh_node::awareness::view::Relayed;
use mesh_node::clock::steady;
use mesh_node::wire::{Reply, Request};
use mesh_transport::overlay::{Judged, MAX_GOSSIP, Overlay};

use crate::attacker::{Attacker, addresses, id, runtime};
use crate::removal::overlay;
use crate::{nobody_fell, resident_kib, restart, secs, status, warm_up};

/// What a member may say of itself, true or not.
fn record(of: &Attacker, sequence: u64) -> Signed {
    let record = Record {
        data: vec!["127.0.0.1:1".parse().unwrap()],
        overlay: vec!["127.0.0.1:2".parse().unwrap()],
        name: Text::new(&format!("liar {sequence}")),
        version: Text::new("0.0.0"),
        facts: Facts::default(),
        load: Load::default(),
    };
    let stamp = Stamp { incarnation: u64::MAX - 1, sequence };
    record.sign(of.key.signing(), of.mesh, stamp).unwrap()
}

#[test]
fn a_record_about_somebody_else_or_of_yesterday_changes_nothing() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let runtime = runtime();
    let insider = Attacker::insider(&runtime, &fleet.hosts[0].ticket().unwrap(), "insider");
    let nodes: Vec<NodeId> = fleet.hosts.iter().map(|host| insider.meets(host)).collect();
    let victim = nodes[1];
    // Shows a node these records; what it has heard, then.
    let shows = |to: NodeId, mine: Vec<Relayed>| {
        let request = Request::Records { known: Vec::new(), mine };
        match insider.ask(to, &request) {
            Ok(Reply::Records(all)) => Some(all),
            _ => None,
        }
    };
    // The newest that one node has heard of another.
    let newest = |at: NodeId, of: NodeId| {
        let all = shows(at, Vec::new())?.into_iter();
        let all = all.map(|relayed| Signed::parse(&relayed.bytes).unwrap());
        all.filter(|signed| signed.node() == of).max_by_key(Signed::stamp)
    };
    let old = until(SETTLE, || newest(nodes[0], victim)).expect("a member is told what others say");
    // With the victim's next start, that is of yesterday.
    restart(&mut fleet.hosts[1..2]);
    insider.meets(&fleet.hosts[1]);
    let is_over =
        |at: &NodeId| newest(*at, victim).is_some_and(|signed| signed.stamp() > old.stamp());
    until(SETTLE, || nodes.iter().all(is_over).then_some(())).expect("all hear that it is back");
    let gossip = overlay(&runtime, &insider, &fleet.hosts);
    until(SETTLE, || (gossip.peers() == 3).then_some(())).expect("a member gossips");
    // What the same hand says of itself arrives everywhere: so will what it forges.
    let mut sequence = 0;
    until(SETTLE, || {
        sequence += 1;
        gossip.publish(record(&insider, sequence).as_bytes().to_vec()).unwrap();
        std::thread::sleep(secs(1));
        nodes.iter().all(|at| newest(*at, insider.id()).is_some()).then_some(())
    })
    .expect("an honest record arrives");

    // In the victim's name: its id where the liar's stands.
    let own = record(&insider, 1).as_bytes().to_vec();
    let at = own.windows(32).position(|bytes| bytes == insider.id().0).unwrap();
    let mut forged = own;
    forged[at..at + 32].copy_from_slice(&victim.0);
    // Older than what is known, and the same with a byte changed.
    let yesterday = old.as_bytes().to_vec();
    let mut changed = yesterday.clone();
    let last = changed.len() - 70;
    changed[last] ^= 1;
    let relayed = |bytes: &[u8]| vec![Relayed { age_ms: 0, bytes: bytes.to_vec() }];
    for bytes in [&forged, &yesterday, &changed] {
        for _ in 0..20 {
            gossip.publish(bytes.clone()).unwrap();
        }
        for to in &nodes {
            shows(*to, relayed(bytes)).expect("whoever is shown it answers");
        }
    }
    assert!(gossip.publish(vec![0; MAX_GOSSIP + 1]).is_err());
    // By the second way, too, what is true arrives.
    let honest = record(&insider, sequence + 1);
    for to in &nodes {
        shows(*to, relayed(honest.as_bytes())).expect("whoever is shown it answers");
        let known = newest(*to, insider.id()).unwrap();
        assert_eq!(known.stamp(), honest.stamp(), "an honest record does not arrive");
    }
    std::thread::sleep(secs(3));
    let wanted = addresses(&fleet.hosts[1], "data_addresses");
    for at in &nodes {
        assert!(is_over(at), "what was of yesterday counts again");
        for relayed in shows(*at, Vec::new()).unwrap() {
            let signed = Signed::parse(&relayed.bytes).unwrap();
            signed.verify(insider.mesh).unwrap();
            if signed.node() == victim
                && let Said::Whole(record) = signed.said()
            {
                assert!(wanted.iter().all(|address| record.data.contains(address)), "{record:?}");
            }
        }
    }
    let all = fleet.hosts[2].client().nodes().unwrap();
    let seen = all.iter().find(|member| member.id == victim.to_string()).unwrap();
    assert_eq!(seen.state, "up");
    gossip.stop();
    nobody_fell(&fleet.hosts);
}

#[test]
fn a_flood_of_gossip_is_not_passed_on() {
    const FLOOD: u64 = 5_000;
    let fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(51);
    warm_up(&load);
    let runtime = runtime();
    let ticket = fleet.hosts[0].client().ticket(2).unwrap();
    let liar = Attacker::insider(&runtime, &ticket, "liar");
    let ear = Attacker::insider(&runtime, &ticket, "ear");
    fleet.until_members("both are members", |all| all.len() == 5).unwrap();
    // One talks to the first node only, the other hears the last node only.
    let gossip = overlay(&runtime, &liar, &fleet.hosts[..1]);
    let (heard, seen) = (Arc::new(AtomicUsize::new(0)), liar.id());
    let count = heard.clone();
    let judge = Arc::new(move |bytes: &[u8]| {
        if Signed::parse(bytes).is_ok_and(|signed| signed.node() == seen) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Judged::Good
    });
    let any: [SocketAddr; 1] = ["127.0.0.1:0".parse().unwrap()];
    let listening = Overlay::start(ear.key.seed(), ear.mesh, &any, false, judge);
    let (listening, mut rest) = runtime.block_on(listening).unwrap();
    runtime.spawn(async move { while rest.recv().await.is_some() {} });
    listening.allow([id(&fleet.hosts[2])].into());
    listening.learn(id(&fleet.hosts[2]), addresses(&fleet.hosts[2], "overlay_addresses"));
    until(SETTLE, || (gossip.peers() == 1 && listening.peers() == 1).then_some(())).unwrap();
    // The topic's tree takes a beat or two; a first word shows that the way is open.
    let mut sequence = 1;
    until(SETTLE, || {
        gossip.publish(record(&liar, sequence).as_bytes().to_vec()).unwrap();
        sequence += 1;
        std::thread::sleep(secs(1));
        (heard.load(Ordering::Relaxed) > 0).then_some(())
    })
    .expect("an honest amount is passed on");

    let pids: Vec<_> = fleet.hosts.iter().map(|host| status(host)["pid"].clone()).collect();
    let before: Vec<u64> = pids.iter().map(resident_kib).collect();
    let (begun, at, first) = (steady(), load.now(), heard.load(Ordering::Relaxed));
    for n in 0..FLOOD {
        gossip.publish(record(&liar, sequence + n).as_bytes().to_vec()).unwrap();
        // And nonsense between, of which nothing may be passed on.
        if n % 5 == 0 {
            gossip.publish(n.to_le_bytes().repeat(100)).unwrap();
        }
        if n % 10 == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    std::thread::sleep(secs(2));
    let passed = heard.load(Ordering::Relaxed) - first;
    let (took, until) = (begun.elapsed().as_secs(), load.now());
    println!("{FLOOD} records in {took} s: {passed} were passed on");
    // What one node may say: some at once, a few each second.
    assert!(passed as u64 <= 16 + 2 * (took + 2) + 10, "{passed} were passed on");
    for (pid, before) in pids.iter().zip(before) {
        let now = resident_kib(pid);
        assert!(now < before + (128 << 10), "{before} KiB became {now} KiB");
    }
    gossip.stop();
    listening.stop();
    let history = fleet.finish(load).unwrap();
    let gap = history.longest_gap(at, until);
    assert!(gap < secs(4), "writes stood still for {gap:?}");
}
