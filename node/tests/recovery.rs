//! What a person does when directories are lost or damaged, on real nodes.
#![expect(clippy::unwrap_used, reason = "a helper of tests: what fails here fails the test")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use common::{Lab, Running, choices, start, until};
use mesh_consensus::id::Hash;
use mesh_consensus::recover::RecoverError;
use mesh_node::dir::{Dir, DirError, LOG};
use mesh_node::engine::{EngineError, OpenError};
use mesh_node::handle::Part;
use mesh_node::join::{Choices, found, join, rejoin};
use mesh_node::recover::{
    Chosen, KEPT, RecoveryError, apply, check, choose, key_file, key_in, sign, sign_in, survey,
};
use mesh_node::run::{RunError, run};
use mesh_transport::ticket::Kind;
use tokio_util::sync::CancellationToken;

/// A mesh of so many nodes of one party, all of which vote.
async fn voters(lab: &Lab, count: usize) -> Vec<Running> {
    let mut nodes = vec![lab.found("n0").await];
    until("the founder leads", || nodes[0].handle.pulse().is_leader()).await;
    for n in 1..count {
        nodes.push(lab.join(&format!("n{n}"), &nodes[0]).await);
    }
    until("all vote", || nodes.iter().all(|node| node.handle.pulse().part == Part::Voter)).await;
    until("all know where the others are", || {
        nodes.iter().all(|node| node.handle.hub.peers().len() == count - 1)
    })
    .await;
    nodes
}

async fn stop_all(nodes: impl IntoIterator<Item = Running>) -> Vec<Dir> {
    let mut dirs = Vec::new();
    for node in nodes {
        dirs.push(node.stop().await);
    }
    dirs
}

fn lose(dirs: impl IntoIterator<Item = Dir>) {
    for dir in dirs {
        std::fs::remove_dir_all(dir.path()).unwrap();
    }
}

/// Surveys all of `dirs` and makes the order.
fn order(dirs: &[Dir], at: &Path) -> (PathBuf, mesh_consensus::recover::Order) {
    let surveys = dirs.iter().enumerate().map(|(n, dir)| {
        let out = at.join(format!("{n}.survey"));
        survey(dir, &out).unwrap();
        out
    });
    let surveys: Vec<PathBuf> = surveys.collect();
    let out = at.join("order");
    let Chosen { order, surveyed } = choose(&surveys, &out).unwrap();
    assert_eq!(surveyed.len(), dirs.len());
    // Who was surveyed twice knows no more, and is no second survivor.
    let twice = choose(&[&surveys[..], &surveys[..]].concat(), &at.join("twice")).unwrap();
    assert_eq!((&twice.order, twice.surveyed), (&order, surveyed));
    // None is taken for another, and nothing else is overwritten.
    assert!(matches!(apply(&dirs[0], &surveys[0]), Err(RecoveryError::NotThat { .. })));
    assert!(matches!(choose(&surveys, &surveys[0]), Err(RecoveryError::Exists(_))));
    assert!(matches!(choose(&surveys, &out), Err(RecoveryError::Exists(_))));
    assert!(matches!(survey(&dirs[0], &surveys[0]), Err(RecoveryError::Exists(_))));
    let torn = at.join("torn");
    std::fs::write(&torn, &std::fs::read(&surveys[0]).unwrap()[..40]).unwrap();
    let refused = choose(std::slice::from_ref(&torn), &at.join("another"));
    assert!(matches!(refused, Err(RecoveryError::NotThat { .. })), "{refused:?}");
    (out, order)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_goes_on_alone_with_everything_that_was_acknowledged() {
    let lab = Lab::new();
    let temp = tempfile::tempdir().unwrap();
    let mut nodes = voters(&lab, 3).await;
    let party = nodes[0].party();
    for n in 0..20u8 {
        nodes[usize::from(n) % 3].set_name(party, &format!("v{n}"), Hash([n; 32])).await.unwrap();
    }
    let survivor = nodes.pop().unwrap();
    lose(stop_all(nodes).await);
    let out = temp.path().join("a.survey");
    let running = survey(&survivor.dir, &out);
    assert!(matches!(running, Err(RecoveryError::Dir(DirError::Running(_)))), "{running:?}");
    let dirs = stop_all([survivor]).await;
    let (order, _) = order(&dirs, temp.path());
    // A directory of another mesh has nothing to sign here.
    let stranger = lab.dir("stranger");
    found(&stranger, &choices("stranger")).unwrap();
    let refused = sign_in(&stranger, &order);
    assert!(matches!(refused, Err(RecoveryError::OtherMesh(_))), "{refused:?}");
    assert_eq!(sign_in(&dirs[0], &order).unwrap().signers, [party]);
    check(&dirs[0], &order).unwrap();
    assert!(!dirs[0].file(KEPT).exists(), "to look changes nothing");
    let begun = apply(&dirs[0], &order).unwrap();
    assert_eq!((begun.epoch, begun.kept), (1, dirs[0].file(KEPT)));
    assert!(dirs[0].file(KEPT).exists());
    // It is done once.
    assert!(matches!(apply(&dirs[0], &order), Err(RecoveryError::Applied { epoch: 1 })));
    assert!(matches!(check(&dirs[0], &order), Err(RecoveryError::Applied { epoch: 1 })));
    let node = start(dirs[0].clone()).await;
    until("it leads alone", || node.handle.pulse().is_leader()).await;
    assert_eq!(node.handle.whoami.epoch, 1);
    for n in 0..20u8 {
        assert_eq!(node.name(party, &format!("v{n}")).await, Some(Hash([n; 32])), "v{n}");
    }
    // It takes writes and newcomers like any other mesh.
    node.set_name(party, "after", Hash([9; 32])).await.unwrap();
    let newcomer = lab.join("n3", &node).await;
    until("a newcomer follows", || newcomer.handle.roster().members.len() == 4).await;
    assert_eq!(newcomer.name(party, "after").await, Some(Hash([9; 32])));
    stop_all([newcomer, node]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a node that was stopped in this process may still answer at its old address; passes alone"]
async fn a_survivor_that_was_not_chosen_takes_a_new_seat_in_the_new_epoch() {
    let lab = Lab::new();
    let temp = tempfile::tempdir().unwrap();
    let mut nodes = voters(&lab, 5).await;
    let party = nodes[0].party();
    nodes[1].set_name(party, "model", Hash([7; 32])).await.unwrap();
    let survivors = nodes.split_off(3);
    lose(stop_all(nodes).await);
    let dirs = stop_all(survivors).await;
    let (order, chosen) = order(&dirs, temp.path());
    let is_chosen = |dir: &&Dir| dir.node_key().unwrap().id() == chosen.survivor;
    let other = dirs.iter().find(|dir| !is_chosen(dir)).unwrap();
    let first = dirs.iter().find(is_chosen).unwrap();
    // The order is for the one that it names.
    let wrong = apply(other, &order);
    let named = matches!(wrong, Err(RecoveryError::Recover(RecoverError::OtherLog { .. })));
    assert!(named, "{wrong:?}");
    apply(first, &order).unwrap();
    let first = start(first.clone()).await;
    until("the chosen one leads", || first.handle.pulse().is_leader()).await;
    let before = other.membership().unwrap().unwrap().identity;
    rejoin(other, |_| {}).await.unwrap();
    let after = other.membership().unwrap().unwrap().identity;
    assert_eq!((after.epoch, after.node), (1, before.node));
    assert_ne!(after.raft_id, before.raft_id);
    let second = start(other.clone()).await;
    until("the other has a seat again", || {
        matches!(second.handle.pulse().part, Part::Voter | Part::Learner)
    })
    .await;
    assert_eq!(second.name(party, "model").await, Some(Hash([7; 32])));
    second.set_name(party, "after", Hash([9; 32])).await.unwrap();
    assert_eq!(first.name(party, "after").await, Some(Hash([9; 32])));
    stop_all([second, first]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_an_epoch_that_has_ended_learns_of_the_later_one() {
    let lab = Lab::new();
    let temp = tempfile::tempdir().unwrap();
    let mut dirs = stop_all(voters(&lab, 3).await).await;
    let (order, chosen) = order(&dirs, temp.path());
    let at = dirs.iter().position(|dir| dir.node_key().unwrap().id() == chosen.survivor).unwrap();
    let first = dirs.swap_remove(at);
    apply(&first, &order).unwrap();
    let first = start(first).await;
    until("the chosen one leads", || first.handle.pulse().is_leader()).await;
    // One of the others is started as if nothing had happened.
    let other = start(dirs.remove(0)).await;
    until("it knows", || other.handle.later_epoch.load(Ordering::Relaxed) == 1).await;
    assert!(!other.handle.is_removed(), "it is still a member");
    stop_all([other, first]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_sole_voter_that_comes_back_learns_that_the_mesh_went_on_without_it() {
    let lab = Lab::new();
    let temp = tempfile::tempdir().unwrap();
    let lost = lab.found("n0").await;
    until("the founder leads", || lost.handle.pulse().is_leader()).await;
    let other = lab.join("n1", &lost).await;
    until("the other has the log", || other.handle.pulse().part == Part::Learner).await;
    until("they know where they are", || {
        [&lost, &other].iter().all(|node| node.handle.hub.peers().len() == 1)
    })
    .await;
    let lost = stop_all([lost]).await.remove(0);
    let dirs = stop_all([other]).await;
    let (order, _) = order(&dirs, temp.path());
    apply(&dirs[0], &order).unwrap();
    let other = start(dirs[0].clone()).await;
    until("the survivor leads", || other.handle.pulse().is_leader()).await;
    // Nobody's vote is missing for it, so it leads; and nobody of its epoch could tell it.
    let lost = start(lost).await;
    until("it leads", || lost.handle.pulse().is_leader()).await;
    until("it knows", || lost.handle.later_epoch.load(Ordering::Relaxed) == 1).await;
    assert!(!lost.handle.is_removed(), "it is still a member");
    stop_all([lost, other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn between_parties_a_majority_must_sign_or_nothing_happens() {
    let lab = Lab::new();
    let temp = tempfile::tempdir().unwrap();
    let one = lab.found("one").await;
    until("the founder leads", || one.handle.pulse().is_leader()).await;
    let invite = one.ticket(Kind::NewParty, 1).await;
    let choices = Choices { party: Some("clinic-b".parse().unwrap()), ..choices("two") };
    join(&lab.dir("two"), &invite, &choices, |_| {}).await.unwrap();
    let two = start(lab.dir("two")).await;
    until("it has the log", || two.handle.pulse().part == Part::Learner).await;
    let party = two.party();
    two.set_name(party, "xray", Hash([7; 32])).await.unwrap();
    let secret = one.dir.party_secret().unwrap().unwrap();
    let dirs = stop_all([two]).await;
    lose(stop_all([one]).await);
    let (order, _) = order(&dirs, temp.path());
    let own = key_in(&dirs[0]).unwrap();
    assert_eq!(sign(&order, &own).unwrap().signers.len(), 1);
    assert_eq!(sign(&order, &own).unwrap().signers.len(), 1, "twice is once");
    let few = apply(&dirs[0], &order);
    let refused = RecoverError::TooFew { have: 1, parties: 2, need: 2 };
    assert_eq!(few.unwrap_err().to_string(), refused.to_string());
    // The other party has a copy of its key, as `mesh party key --out` writes it.
    let key = temp.path().join("party.key");
    let hex: String = secret.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(&key, hex + "\n").unwrap();
    assert!(matches!(key_file(&order), Err(RecoveryError::NotThat { .. })));
    assert_eq!(sign(&order, &key_file(&key).unwrap()).unwrap().signers.len(), 2);
    apply(&dirs[0], &order).unwrap();
    let two = start(dirs[0].clone()).await;
    until("it leads alone", || two.handle.pulse().is_leader()).await;
    assert_eq!(two.name(party, "xray").await, Some(Hash([7; 32])));
    stop_all([two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_log_is_damaged_refuses_to_start_and_takes_a_new_seat_when_told() {
    let lab = Lab::new();
    let nodes = voters(&lab, 3).await;
    let party = nodes[0].party();
    nodes[0].set_name(party, "model", Hash([7; 32])).await.unwrap();
    let mut nodes = nodes.into_iter();
    let (first, second, third) =
        (nodes.next().unwrap(), nodes.next().unwrap(), nodes.next().unwrap());
    let seat = third.handle.whoami.seat;
    let dir = third.stop().await;
    damage(&dir.file(LOG));
    let ended = run(dir.clone(), &toml::Table::new(), CancellationToken::new(), |_| {}).await;
    let damaged = matches!(
        ended,
        Err(RunError::Engine(EngineError::Open(
            OpenError::Damaged { .. } | OpenError::Inconsistent { .. }
        )))
    );
    assert!(damaged, "{ended:?}");
    rejoin(&dir, |_| {}).await.unwrap();
    let third = start(dir.clone()).await;
    assert_ne!(third.handle.whoami.seat, seat);
    until("it has a seat again", || {
        matches!(third.handle.pulse().part, Part::Voter | Part::Learner)
    })
    .await;
    assert_eq!(third.name(party, "model").await, Some(Hash([7; 32])));
    third.set_name(party, "after", Hash([9; 32])).await.unwrap();
    let old = std::fs::read_dir(dir.path()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str().unwrap().starts_with(&format!("{LOG}."))
    });
    assert_eq!(old.count(), 1, "the damaged log is kept for inspection");
    stop_all([third, second, first]).await;
}

/// Flips one bit in every copy of the founder's name, which every snapshot holds.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let word = b"\x02n0";
    let places: Vec<usize> = bytes
        .windows(word.len())
        .enumerate()
        .filter(|(_, w)| w == word)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + 1] ^= 1;
    }
    std::fs::write(path, bytes).unwrap();
}
