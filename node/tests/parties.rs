//! Parties that come one after the other, each with one command, over real sockets and disks.
#![expect(clippy::unwrap_used, reason = "a helper of tests: what fails here fails the test")]

mod common;

use std::collections::BTreeMap;

use common::{Lab, Running, choices, start, until};
use mesh_consensus::id::{Hash, PartyId};
use mesh_node::dir::Dir;
use mesh_node::handle::{Ask, WriteError};
use mesh_node::join::{Choices, JoinError, Joined, join};
use mesh_node::state::command::{Act, RequestSign};
use mesh_node::state::refusal::Refusal;
use mesh_node::state::request::RequestId;
use mesh_transport::ticket::{Kind, Ticket};
use tokio::task::JoinHandle;

fn as_party(node: &str, party: &str) -> Choices {
    Choices { party: Some(party.parse().unwrap()), ..choices(node) }
}

/// Starts `mesh join TICKET --party NAME`.
fn come(dir: &Dir, ticket: &Ticket, choices: Choices) -> JoinHandle<Result<Joined, JoinError>> {
    let (dir, ticket) = (dir.clone(), ticket.clone());
    tokio::spawn(async move { join(&dir, &ticket, &choices, |_| {}).await })
}

/// Founds a mesh of `one`, which `two` has joined.
async fn two_parties(lab: &Lab) -> [Running; 2] {
    let first = lab.found("one").await;
    until("the founder leads", || first.handle.pulse().is_leader()).await;
    let invite = first.ticket(Kind::NewParty, 1).await;
    let dir = lab.dir("two");
    let joined = join(&dir, &invite, &as_party("two", "clinic-b"), |_| {}).await.unwrap();
    let second = start(dir).await;
    until("the second party's node is a member", || {
        second.handle.roster().party_of(joined.node) == Some(joined.party)
    })
    .await;
    [first, second]
}

/// The request that waits, once there is one that `node` knows of.
async fn request(node: &Running) -> RequestId {
    until("a request waits", || !node.handle.roster().requests.is_empty()).await;
    RequestId(*node.handle.roster().requests.first().unwrap())
}

async fn answer(node: &Running, request: RequestId, yes: bool) {
    let act = Act::RequestSign(RequestSign { request, yes });
    node.handle.write(vec![Ask { act, signed: true }]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_party_joins_at_once_and_holds_its_own_secret_and_names() {
    let lab = Lab::new();
    let [first, second] = two_parties(&lab).await;
    assert_ne!(first.party(), second.party());
    let parties = second.handle.roster().parties.clone();
    assert_eq!(parties[&second.party()].as_str(), "clinic-b");
    let secret = second.dir.party_secret().unwrap().unwrap();
    assert_eq!(secret.id(), second.party());
    assert!(!second.dir.file("pending").exists());
    // It lets in its further nodes by itself; one of another party would not do.
    let third = lab.join("three", &second).await;
    until("the third node is a member", || !third.handle.roster().members.is_empty()).await;
    assert_eq!(third.party(), second.party());
    // A name of a party is set by that party's nodes and by nobody else's.
    let hash = Hash([7; 32]);
    third.set_name(second.party(), "xray", hash).await.unwrap();
    let refused = first.set_name(second.party(), "ct", hash).await;
    let theirs = Refusal::WrongParty;
    assert_eq!(refused, Err(WriteError::Refused { position: 0, refusal: theirs }));
    assert_eq!(first.name(second.party(), "xray").await, Some(hash));
    assert_eq!(first.name(second.party(), "ct").await, None);
    for node in [third, second, first] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_third_party_waits_until_the_second_agrees_and_then_none_has_a_majority_of_seats() {
    let lab = Lab::new();
    let [first, second] = two_parties(&lab).await;
    let invite = first.ticket(Kind::NewParty, 1).await;
    let dir = lab.dir("three");
    let comes = come(&dir, &invite, as_party("three", "clinic-c"));
    let waits = request(&second).await;
    // Whoever waits may be interrupted: the same command goes on where it was.
    until("the newcomer knows what it waits for", || dir.file("pending").exists()).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    comes.abort();
    let secret = dir.party_secret().unwrap().unwrap();
    let comes = come(&dir, &invite, as_party("three", "clinic-c"));
    answer(&second, waits, true).await;
    let joined = comes.await.unwrap().unwrap();
    assert_eq!(joined.party, secret.id());
    let third = start(dir).await;
    let nodes = [first, second, third];
    until("all three vote, and everyone knows it", || {
        nodes.iter().all(|node| node.handle.roster().voters.len() == 3)
    })
    .await;
    let roster = nodes[0].handle.roster();
    let mut seats: BTreeMap<PartyId, usize> = BTreeMap::new();
    for voter in &roster.voters {
        *seats.entry(roster.party_of(*voter).unwrap()).or_default() += 1;
    }
    assert_eq!(seats.len(), 3, "each party has one seat: {seats:?}");
    // More nodes of one party change nothing about that.
    let fourth = lab.join("four", &nodes[0]).await;
    let fifth = lab.join("five", &nodes[0]).await;
    until("five are members", || nodes[2].handle.roster().members.len() == 5).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let roster = nodes[2].handle.roster();
    let of = |node: &Running| {
        roster.voters.iter().filter(|voter| roster.party_of(**voter) == Some(node.party())).count()
    };
    for node in &nodes {
        assert!(2 * of(node) < roster.voters.len(), "{} of {}", of(node), roster.voters.len());
    }
    for node in nodes.into_iter().chain([fourth, fifth]) {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_receives_what_seals_its_partys_records_and_not_what_signs() {
    let lab = Lab::new();
    let [first, second] = two_parties(&lab).await;
    let ticket = first.ticket(Kind::Worker, 1).await;
    let dir = lab.dir("worker");
    join(&dir, &ticket, &choices("worker"), |_| {}).await.unwrap();
    let worker = start(dir.clone()).await;
    until("the worker can open its party's records", || dir.file("sealing.key").exists()).await;
    let own = first.handle.secret.read().await.clone().unwrap().sealing_secret();
    until("it uses it", || worker.handle.sealing.try_read().is_ok_and(|held| held.is_some())).await;
    assert_eq!(*worker.handle.sealing.read().await, Some(own.clone()));
    assert_eq!(*worker.handle.secret.read().await, None);
    assert!(!dir.file("party.key").exists());
    assert_ne!(*second.handle.sealing.read().await, Some(own.clone()));
    // It is there after a restart, before anybody is asked.
    worker.stop().await;
    assert_eq!(dir.sealing_secret().unwrap(), Some(own));
    for node in [second, first] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_party_that_is_turned_away_is_told_and_leaves_nothing_behind() {
    let lab = Lab::new();
    let [first, second] = two_parties(&lab).await;
    // A name that is taken is told before anybody is asked.
    let invite = first.ticket(Kind::NewParty, 2).await;
    let dir = lab.dir("three");
    let taken = come(&dir, &invite, as_party("three", "clinic-b")).await.unwrap();
    assert!(matches!(taken, Err(JoinError::PartyName(_))), "{taken:?}");
    let comes = come(&dir, &invite, as_party("three", "clinic-c"));
    let waits = request(&second).await;
    answer(&second, waits, false).await;
    let refused = comes.await.unwrap();
    assert!(matches!(refused, Err(JoinError::Refused { .. })), "{refused:?}");
    assert!(!dir.file("party.key").exists() && !dir.file("pending").exists());
    assert_eq!(first.handle.roster().parties.len(), 2);
    for node in [second, first] {
        node.stop().await;
    }
}

/// After a restart nobody has heard of anybody: whoever does not come back was silent from the beginning.
#[tokio::test(flavor = "multi_thread")]
async fn a_voter_of_another_party_that_does_not_come_back_after_a_restart_is_suspected() {
    let lab = Lab::new();
    let [first, second] = two_parties(&lab).await;
    let third = lab.join("three", &first).await;
    let (own, lost) = (first.party(), second.handle.whoami.node);
    let nodes = [first, third, second];
    until("all three vote, and everyone knows it", || {
        nodes.iter().all(|node| node.handle.roster().voters.len() == 3)
    })
    .await;
    until("all know where the others are", || {
        nodes.iter().all(|node| node.handle.hub.peers().len() == 2)
    })
    .await;
    let mut dirs = Vec::new();
    for node in nodes {
        dirs.push(node.stop().await);
    }
    let first = start(dirs[0].clone()).await;
    let third = start(dirs[1].clone()).await;
    let is_suspected = || async {
        let seen = first.handle.look(move |see| {
            see.replica.machine().members().get(&lost).is_some_and(|one| one.down_by.contains(&own))
        });
        seen.await.unwrap_or(false)
    };
    assert!(!is_suspected().await);
    // A minute, and much more than that on a busy machine.
    for _ in 0..240 {
        if is_suspected().await {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert!(is_suspected().await, "nobody has noticed");
    for node in [third, first] {
        node.stop().await;
    }
}
