//! Who gets in: nobody without a good ticket, by no trick, and nobody twice.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ed25519_dalek::SigningKey;
use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan};
use mesh_chaos_tests::hosts::process::{Host, Said};
use mesh_chaos_tests::hosts::{need, until};
use mesh_consensus::command::Batch;
use mesh_consensus::id::{MeshId, NodeId, PartyId, TicketId};
use mesh_consensus::time::Time;
use mesh_node::clock;
use mesh_node::state::command::{Act, Rejoin};
use mesh_node::state::refusal::Refusal;
use mesh_node::state::ticket::{sign_consent, sign_join};
use mesh_node::wire::{JoinReply, JoinRequest};
use mesh_transport::codec::encode;
use mesh_transport::ticket::Ticket;

use crate::attacker::{Attacker, id, runtime};
use crate::{again, nobody_fell, secs, status};

/// Tries to join; what was said.
fn try_join(host: &Host, ticket: &str) -> Said {
    let words = ["join", ticket, "--listen", "127.0.0.1:0", "--name", &host.name];
    host.run(binary().unwrap(), &words, secs(60)).unwrap()
}

/// It was refused in three lines, with these words among them, and nothing is left behind.
fn is_refused(host: &Host, said: &Said, word: &str) {
    assert!(!said.ok() && said.is_report(), "{said:?}");
    assert!(said.stderr.contains(word), "no {word:?} in {}", said.stderr);
    assert!(!host.runs(), "something runs");
    for name in ["member", "state.redb", "node.key", "party.key"] {
        assert!(!host.data().join(name).exists(), "{name} was left behind");
    }
}

/// Every file of a node's directory with its bytes, but for what says that it runs and its log.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_file() {
            all.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    all
}

fn members(fleet: &Fleet) -> usize {
    fleet.members().unwrap().len()
}

/// A join as a newcomer asks for it.
struct Asks {
    seed: SigningKey,
    mesh: MeshId,
    party: PartyId,
}

impl Asks {
    fn with(ticket: &str) -> Self {
        let ticket: Ticket = ticket.parse().unwrap();
        let seed = SigningKey::from_bytes(&ticket.seed);
        Self { seed, mesh: ticket.mesh, party: ticket.party }
    }

    /// What `by` asks, as if it were `node`.
    fn for_node(&self, by: &Attacker, node: NodeId, name: &str) -> JoinRequest {
        let ticket = TicketId(self.seed.verifying_key().to_bytes());
        JoinRequest::Join {
            ticket,
            name: name.parse().unwrap(),
            proof: sign_join(&self.seed, self.mesh, node),
            consent: sign_consent(by.key.signing(), self.mesh, ticket, self.party),
            clock: clock::now(),
        }
    }
}

fn refusal(reply: &JoinReply) -> Option<Refusal> {
    match reply {
        JoinReply::Refused { code, .. } => code.and_then(Refusal::from_code),
        _ => None,
    }
}

#[test]
fn without_a_ticket_nobody_gets_in_and_nothing_is_written() {
    let fleet = Plan::loopback(1).found().unwrap();
    let host = &fleet.hosts[0];
    let runtime = runtime();
    let stranger = Attacker::stranger(&runtime, host);
    // The node has said of itself what it has to say, so the log is at rest.
    let mut last = status(host)["index"].clone();
    until(secs(30), || {
        std::thread::sleep(secs(2));
        let now = status(host)["index"].clone();
        (std::mem::replace(&mut last, now.clone()) == now).then_some(())
    })
    .expect("the log comes to rest");
    let garbage: [&[u8]; 5] = [b"", b"\0", b"let me in", &[0xff; 8000], &[1; 8192]];
    for bytes in garbage {
        let reply = stranger.knock(host, bytes);
        assert!(!matches!(reply, Ok(JoinReply::Welcome(_))), "{reply:?}");
    }
    // A ticket of its own making, right in every word, and a batch of its own.
    let mesh = stranger.mesh;
    let party = PartyId(SigningKey::from_bytes(&[3; 32]).verifying_key().to_bytes());
    let made_up = Asks { seed: SigningKey::from_bytes(&[9; 32]), mesh, party };
    for n in 0..5 {
        let asks = made_up.for_node(&stranger, stranger.id(), &format!("stranger-{n}"));
        let reply = stranger.asks_in(host, &asks);
        assert_eq!(refusal(&reply), Some(Refusal::NoSuchTicket), "{reply:?}");
    }
    let command = Act::Rejoin(Rejoin {}).command();
    let batch = Batch::sign(stranger.key.signing(), mesh, 0, 1, &[command]).unwrap();
    let reply = stranger.asks_in(host, &JoinRequest::Rejoin { batch: batch.as_bytes().to_vec() });
    assert!(matches!(reply, JoinReply::Refused { .. }), "{reply:?}");
    assert_eq!(status(host)["index"], last, "strangers wrote into the log");
    assert_eq!(members(&fleet), 1);
    nobody_fell(&fleet.hosts);
}

#[test]
fn a_ticket_that_is_not_good_lets_nobody_in() {
    let fleet = Plan::loopback(1).found().unwrap();
    let founder = &fleet.hosts[0];
    let new = |words: &[&str]| {
        let all = [&["ticket", "new"], words].concat();
        founder.mesh(&all).unwrap().lines().last().unwrap().trim().to_owned()
    };
    let mut number = 1;
    let mut refused = |ticket: &str, word: &str| {
        let host = fleet.host(number).unwrap();
        number += 1;
        is_refused(&host, &try_join(&host, ticket), word);
    };

    let expired = new(&["--ttl", "1s"]);
    std::thread::sleep(secs(2));
    refused(&expired, &Refusal::TicketExpired.to_string());

    let revoked = new(&[]);
    let list = founder.mesh(&["ticket", "ls", "--json"]).unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    for item in list["items"].as_array().unwrap() {
        founder.mesh(&["ticket", "revoke", item["id"].as_str().unwrap()]).unwrap();
    }
    refused(&revoked, &Refusal::NoSuchTicket.to_string());

    // Each part has its own check, so a person learns which one to look at.
    let good = new(&[]);
    let parts: Vec<&str> = good.split('-').collect();
    for (part, word) in [(1, "first"), (2, "second"), (3, "third")] {
        let old = parts[part];
        let middle = old.len() / 2;
        let other = if &old[middle..=middle] == "a" { "b" } else { "a" };
        let mistyped = format!("{}{other}{}", &old[..middle], &old[middle + 1..]);
        let mut all = parts.clone();
        all[part] = &mistyped;
        refused(&all.join("-"), word);
    }

    // Of another mesh, and with the way to this one: it is a member here who says no.
    let other = Plan::loopback(1).found().unwrap();
    let elsewhere: Ticket = other.hosts[0].ticket().unwrap().parse().unwrap();
    let here: Ticket = good.parse().unwrap();
    let misled = Ticket { meet: here.meet.clone(), ..elsewhere };
    refused(&misled.to_string(), &Refusal::NoSuchTicket.to_string());
    assert_eq!(members(&other), 1);

    // After all of that the good one is still good, once.
    let host = fleet.host(100).unwrap();
    assert!(try_join(&host, &good).ok());
    refused(&good, &Refusal::TicketUsedUp.to_string());
    assert_eq!(members(&fleet), 2);
    nobody_fell(&fleet.hosts);
}

#[test]
fn a_race_for_the_last_use_of_a_ticket_admits_one() {
    let fleet = Plan::loopback(3).found().unwrap();
    let ticket = fleet.hosts[0].ticket().unwrap();
    let racers: Vec<Host> = (3..9).map(|number| fleet.host(number).unwrap()).collect();
    let said: Vec<Said> = std::thread::scope(|scope| {
        let ticket = &ticket;
        let all: Vec<_> =
            racers.iter().map(|host| scope.spawn(move || try_join(host, ticket))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let winners = said.iter().filter(|said| said.ok()).count();
    assert_eq!(winners, 1, "{said:?}");
    for (host, said) in racers.iter().zip(&said).filter(|(_, said)| !said.ok()) {
        is_refused(host, said, &Refusal::TicketUsedUp.to_string());
    }
    fleet.until_members("one more is a member", |members| members.len() == 4).unwrap();
    nobody_fell(&fleet.hosts);
    nobody_fell(&racers);
}

#[test]
fn a_join_that_was_seen_is_of_no_use_to_anybody_else() {
    let fleet = Plan::loopback(1).found().unwrap();
    let host = &fleet.hosts[0];
    let runtime = runtime();
    let asks = Asks::with(&host.client().ticket(5).unwrap());
    let (honest, thief) = (Attacker::stranger(&runtime, host), Attacker::stranger(&runtime, host));
    let seen = asks.for_node(&honest, honest.id(), "honest");

    // As it was, over another's connection: the key that counts is the connection's.
    assert_eq!(refusal(&thief.asks_in(host, &seen)), Some(Refusal::BadProof));
    // With a consent of the thief's own: the proof is for another key.
    let mixed = asks.for_node(&thief, honest.id(), "thief");
    assert_eq!(refusal(&thief.asks_in(host, &mixed)), Some(Refusal::BadProof));
    // Whoever has the ticket proves what it likes, and still cannot consent for somebody else.
    let drawn_in = asks.for_node(&honest, thief.id(), "thief");
    assert_eq!(refusal(&thief.asks_in(host, &drawn_in)), Some(Refusal::BadConsent));
    // Of another mesh.
    let elsewhere = Asks { mesh: MeshId([7; 32]), ..Asks::with(&host.ticket().unwrap()) };
    let moved = elsewhere.for_node(&thief, thief.id(), "thief");
    assert_eq!(refusal(&thief.asks_in(host, &moved)), Some(Refusal::BadProof));
    // A consent to another party than the ticket's.
    let party = PartyId(SigningKey::from_bytes(&[3; 32]).verifying_key().to_bytes());
    let other = Asks { party, ..Asks::with(&host.ticket().unwrap()) };
    let moved = other.for_node(&thief, thief.id(), "thief");
    assert_eq!(refusal(&thief.asks_in(host, &moved)), Some(Refusal::BadConsent));
    assert_eq!(members(&fleet), 1);

    // The honest one gets in, asks again because it lost the answer, and is one member.
    let JoinReply::Welcome(first) = honest.asks_in(host, &seen) else { panic!("not let in") };
    let JoinReply::Welcome(again) = honest.asks_in(host, &seen) else { panic!("not let in") };
    assert_eq!(first.seat, again.seat);
    assert_eq!(members(&fleet), 2);
    // Its own join is worth nothing to others even now, and after its removal not to itself either.
    assert_eq!(refusal(&thief.asks_in(host, &seen)), Some(Refusal::NameTaken));
    host.mesh(&["node", "rm", "honest", "--yes"]).unwrap();
    assert_eq!(refusal(&honest.asks_in(host, &seen)), Some(Refusal::Removed));
    assert_eq!(members(&fleet), 1);
    nobody_fell(&fleet.hosts);
}

#[test]
fn a_worker_does_not_get_the_partys_secret() {
    let fleet = Plan::loopback(1).found().unwrap();
    let host = &fleet.hosts[0];
    let runtime = runtime();
    let ticket = host.mesh(&["ticket", "new", "--worker"]).unwrap();
    let ticket = ticket.lines().last().unwrap().trim();
    let asks = Asks::with(ticket);
    let worker = Attacker::stranger(&runtime, host);
    let join = asks.for_node(&worker, worker.id(), "worker");
    let JoinReply::Welcome(welcome) = worker.asks_in(host, &join) else { panic!("not let in") };
    assert!(welcome.worker && welcome.secret.is_none(), "a worker was handed the secret");
    let JoinReply::Welcome(again) = worker.asks_in(host, &join) else { panic!("not let in") };
    assert!(again.secret.is_none(), "asking twice helped");
    let node = worker.meets(host);
    let reply = worker.ask(node, &mesh_node::wire::Request::PartySecret).unwrap();
    assert_eq!(reply, mesh_node::wire::Reply::Refused);
    nobody_fell(&fleet.hosts);
}

#[test]
fn a_newcomer_whose_clock_is_a_day_off_is_told_so() {
    if !need(&["cc"]) {
        return;
    }
    let fleet = Plan::loopback(1).found().unwrap();
    let founder = &fleet.hosts[0];
    for (number, wrong_by) in [(1, 86_400), (2, -86_400)] {
        let host = fleet.host(number).unwrap().with_clock().unwrap();
        host.set_clock(wrong_by).unwrap();
        let said = try_join(&host, &founder.ticket().unwrap());
        is_refused(&host, &said, "clock");
    }
    // On the wire a clock is whatever the newcomer says: none of it does harm.
    let runtime = runtime();
    let stranger = Attacker::stranger(&runtime, founder);
    let asks = Asks::with(&founder.ticket().unwrap());
    for lie in [0, 1, u64::MAX - 1, u64::MAX] {
        let mut request = asks.for_node(&stranger, stranger.id(), "liar");
        if let JoinRequest::Join { clock, .. } = &mut request {
            *clock = Time(lie);
        }
        let reply = stranger.knock(founder, &encode(&request).unwrap()).unwrap();
        assert!(matches!(reply, JoinReply::Refused { code: None, .. }), "{reply:?}");
    }
    assert_eq!(members(&fleet), 1);
    nobody_fell(&fleet.hosts);
}

#[test]
fn a_directory_that_holds_a_node_is_not_joined_over() {
    let mut fleet = Plan::loopback(2).found().unwrap();
    let other = Plan::loopback(1).found().unwrap();
    let tickets = [fleet.hosts[0].ticket().unwrap(), other.hosts[0].ticket().unwrap()];
    // It runs; then it does not.
    for ticket in &tickets {
        let said = try_join(&fleet.hosts[1], ticket);
        assert!(!said.ok() && said.is_report(), "{said:?}");
        assert!(said.stderr.contains("already holds a node"), "{}", said.stderr);
    }
    let node = id(&fleet.hosts[1]);
    fleet.hosts[1].down().unwrap();
    let before = files(&fleet.hosts[1].data());
    assert!(before.contains_key("node.key") && before.contains_key("state.redb"), "{before:?}");
    for ticket in &tickets {
        assert!(!try_join(&fleet.hosts[1], ticket).ok());
        // Nor when part of it is gone.
        for name in ["member", "state.redb"] {
            let (path, aside) =
                (fleet.hosts[1].data().join(name), fleet.hosts[1].data().join("aside"));
            fs::rename(&path, &aside).unwrap();
            assert!(!try_join(&fleet.hosts[1], ticket).ok(), "joined over a node without {name}");
            fs::rename(&aside, &path).unwrap();
        }
    }
    let said =
        fleet.hosts[1].run(binary().unwrap(), &["init", "--listen", "127.0.0.1:0"], secs(30));
    assert!(!said.unwrap().ok(), "founded a mesh over a node");
    assert!(files(&fleet.hosts[1].data()) == before, "something was written over");
    assert_eq!((members(&fleet), members(&other)), (2, 1));
    again(&mut fleet.hosts[1]);
    assert_eq!(id(&fleet.hosts[1]), node);
    // None of the tickets was used up.
    let host = other.host(1).unwrap();
    assert!(try_join(&host, &tickets[1]).ok());
    nobody_fell(&fleet.hosts);
}
