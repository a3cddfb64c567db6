//! Nodes that found, join, agree and follow, over real sockets and disks. That a whole mesh comes back after a
//! restart is shown with real processes, in chaos-tests/tests/faults.rs.

mod common;

use common::{Lab, until};
use mesh_consensus::id::Hash;
use mesh_node::handle::{Ask, Part, ReadError, WriteError};
use mesh_node::state::command::{Act, Leave, NameSet};

#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_become_voters_learners_and_watchers_and_all_hold_the_state() {
    let lab = Lab::new();
    let first = lab.found("n0").await;
    until("the founder leads", || first.handle.pulse().is_leader()).await;
    let mut nodes = vec![first];
    for n in 1..9 {
        let node = lab.join(&format!("n{n}"), &nodes[0]).await;
        nodes.push(node);
    }
    until("five vote, two listen and two watch", || {
        let count = |part| nodes.iter().filter(|node| node.handle.pulse().part == part).count();
        (count(Part::Voter), count(Part::Learner), count(Part::Watcher)) == (5, 2, 2)
    })
    .await;
    until("everyone knows everyone", || {
        nodes.iter().all(|node| node.handle.roster().members.len() == 9)
    })
    .await;
    // A watcher writes, and a linearizable read on another node sees it.
    let watcher = nodes.iter().find(|node| node.handle.pulse().part == Part::Watcher).unwrap();
    let party = watcher.handle.roster().party_of(watcher.handle.whoami.node).unwrap();
    let act = Act::NameSet(NameSet {
        party,
        name: "model".parse().unwrap(),
        expect: None,
        to: Hash([7; 32]),
    });
    watcher.handle.write(vec![Ask { act, signed: false }]).await.unwrap();
    for node in &nodes {
        node.handle.barrier().await.unwrap();
        let name = "model".parse().unwrap();
        let seen = node.handle.look(move |see| see.replica.machine().name(party, &name)).await;
        assert_eq!(seen, Ok(Some(Hash([7; 32]))));
    }
    // Removed, it hears so from those who turn it away, and nobody has to wait for what cannot be.
    let act = Act::Leave(Leave { node: watcher.handle.whoami.node });
    nodes[0].handle.write(vec![Ask { act, signed: true }]).await.unwrap();
    until("the watcher knows that it was removed", || watcher.handle.is_removed()).await;
    let late = watcher.set_name(party, "late", Hash([8; 32])).await;
    assert_eq!(late, Err(WriteError::Removed { sent: false }));
    assert_eq!(watcher.handle.barrier().await, Err(ReadError::Removed));
    assert!(nodes.iter().filter(|node| node.handle.is_removed()).count() == 1, "nobody else was");
    for node in nodes {
        node.stop().await;
    }
}
