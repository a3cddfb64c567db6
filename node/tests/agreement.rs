//! Nodes that found, join, agree and follow, over real sockets and disks. That a whole mesh comes back after a
//! restart is shown with real processes, in chaos-tests/tests/faults.rs.

mod common;

use common::{Lab, until};
use mesh_consensus::id::Hash;
use mesh_node::dir::LOG;
use mesh_node::handle::{Ask, Part, ReadError, WriteError};
use mesh_node::run::{RunError, run};
use mesh_node::state::command::{Act, Leave, NameSet};
use mesh_storage::disk::RealDisk;
use mesh_storage::log::{LogSettings, RedbLog};
use tokio_util::sync::CancellationToken;

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
    until("it has noted it down", || watcher.dir.was_removed()).await;
    let late = watcher.set_name(party, "late", Hash([8; 32])).await;
    assert_eq!(late, Err(WriteError::Removed { sent: false }));
    assert_eq!(watcher.handle.barrier().await, Err(ReadError::Removed));
    assert!(nodes.iter().filter(|node| node.handle.is_removed()).count() == 1, "nobody else was");
    assert!(nodes.iter().filter(|node| node.dir.was_removed()).count() == 1, "nobody else was");
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_own_state_says_that_it_was_removed_does_not_start() {
    let lab = Lab::new();
    let first = lab.found("n0").await;
    until("the founder leads", || first.handle.pulse().is_leader()).await;
    let second = lab.join("n1", &first).await;
    until("it has the state", || second.handle.pulse().part == Part::Learner).await;
    let (node, dir) = (second.handle.whoami.node, second.stop().await);
    let act = Act::Leave(Leave { node });
    first.handle.write(vec![Ask { act, signed: true }]).await.unwrap();
    until("it is removed", || first.handle.roster().removed.contains(&node)).await;

    // As if it had seen that before it was stopped.
    let snapshot = first.handle.look(|see| see.replica.snapshot()).await.unwrap();
    let identity = dir.membership().unwrap().unwrap().identity;
    std::fs::remove_file(dir.file(LOG)).unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let settings = LogSettings::default();
    drop(RedbLog::create(&disk, LOG, identity, Some(&snapshot), settings).unwrap());
    let ended = run(dir.clone(), &toml::Table::new(), CancellationToken::new(), |_| {}).await;
    assert!(matches!(ended, Err(RunError::Removed)), "{ended:?}");
    assert!(dir.was_removed() && !dir.membership().unwrap().unwrap().left);
    first.stop().await;
}
