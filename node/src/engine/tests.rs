//! What an engine does by itself, without a network.

use mesh_consensus::bookmark::Bookmark;

use super::*;
use crate::handle::Part;
use crate::join::{Choices, found};

/// The engine of a mesh that was just founded, and the directory that it stands on.
pub(crate) fn founded() -> (tempfile::TempDir, Engine, Orders, Shown) {
    let temp = tempfile::tempdir().unwrap();
    let dir = Dir::at(temp.path().join("node"));
    let listen = vec![("127.0.0.1".parse().unwrap(), Some(0))];
    found(&dir, &Choices { listen, ..Choices::default() }).unwrap();
    let membership = dir.membership().unwrap().unwrap();
    let parts = Parts {
        key: dir.node_key().unwrap(),
        dir,
        identity: membership.identity,
        told: Told::default(),
        waits: Waits::default(),
        is_alive: Box::new(|_| true),
    };
    let (engine, orders, shown) = Engine::open(parts).unwrap();
    (temp, engine, orders, shown)
}

fn mark(engine: &Engine, history: Hash) -> Bookmark {
    let Identity { mesh, epoch, .. } = engine.parts.identity;
    let index = engine.mode.replica().index();
    Bookmark::sign(engine.parts.key.signing(), mesh, epoch, index, history, None, 1)
}

#[test]
fn a_node_whose_history_a_majority_contradicts_stops() {
    let (_temp, mut engine, _orders, shown) = founded();
    let ours = engine.mode.replica().history();
    shown.post(mark(&engine, ours), clock::steady());
    assert!(matches!(engine.look_for_fork(), Ok(())));

    // The only voter has signed something else at the same entry: on another disk, say, that was restored.
    let (_temp, mut engine, _orders, shown) = founded();
    shown.post(mark(&engine, Hash([7; 32])), clock::steady());
    assert!(matches!(engine.look_for_fork(), Err(EngineError::Forked(_))));
}

#[test]
fn a_bookmark_that_no_voter_signed_stops_nobody() {
    let (_temp, mut engine, _orders, shown) = founded();
    let stranger = NodeKey::generate();
    let Identity { mesh, epoch, .. } = engine.parts.identity;
    let forged = Bookmark::sign(stranger.signing(), mesh, epoch, 1, Hash([7; 32]), None, 1);
    shown.post(forged, clock::steady());
    assert!(engine.look_for_fork().is_ok());
    let mut stolen = mark(&engine, Hash([7; 32]));
    stolen.index += 1;
    shown.post(stolen, clock::steady());
    assert!(engine.look_for_fork().is_ok(), "the signature is for another index");
}

#[test]
fn entries_that_are_applied_again_keep_their_place_in_the_history() {
    let (_temp, mut engine, _orders, shown) = founded();
    let start = engine.mode.replica().index();
    let hash = |index: u64| Hash([u8::try_from(index).unwrap(); 32]);
    let applied = |index: u64| mesh_consensus::replica::Applied {
        index,
        term: 2,
        history: hash(index),
        time: clock::now(),
        fact: mesh_consensus::replica::Fact::Empty,
    };
    // The log failed after the second of them, and knew only the first when it was opened again.
    for index in [start + 1, start + 2, start + 2, start + 3] {
        engine.remember(&applied(index));
    }
    let Identity { mesh, epoch, .. } = engine.parts.identity;
    let key = engine.parts.key.clone();
    let mark =
        |index: u64| Bookmark::sign(key.signing(), mesh, epoch, index, hash(index), None, index);
    for index in [start + 2, start + 3] {
        shown.post(mark(index), clock::steady());
        assert!(engine.look_for_fork().is_ok(), "entry {index}");
    }
}

#[test]
fn a_clock_that_was_heard_of_a_while_ago_has_gone_on_since() {
    let (_temp, engine, _orders, shown) = founded();
    let made = clock::steady().checked_sub(Duration::from_secs(5)).unwrap();
    shown.post(mark(&engine, engine.mode.replica().history()), made);
    assert_eq!(shown.clock(), Some(Time(1)));
    let by_now = shown.clock_by_now().unwrap();
    assert!((5_001..60_000).contains(&by_now.0), "{by_now:?}");
}

#[test]
fn a_leader_that_has_forgotten_for_whom_it_vouched_stops() {
    let (_temp, mut engine, _orders, shown) = founded();
    let (me, stranger, other) = (engine.parts.key.id(), NodeKey::generate(), NodeKey::generate());
    let shows = |node: &NodeKey, by: Vec<NodeId>| {
        *shown.vouched.lock().unwrap() = [(node.id(), by)].into();
    };
    shows(&stranger, vec![me]);
    assert!(engine.look_for_forgotten_words().is_ok(), "it may still find it in its log");
    for _ in 0..100 {
        if engine.mode.pulse(None, clock::steady()).leader == Some(me) {
            break;
        }
        let _ = engine.turn(vec![Event::Tick { passed: 1 }]);
    }
    assert!(matches!(engine.look_for_forgotten_words(), Err(EngineError::LostData)));
    // Also if somebody stands in between; but only this node's own word proves anything.
    shows(&stranger, vec![other.id(), me]);
    assert!(matches!(engine.look_for_forgotten_words(), Err(EngineError::LostData)));
    shows(&stranger, vec![other.id()]);
    assert!(engine.look_for_forgotten_words().is_ok());
    shows(&stranger, vec![me, me]);
    assert!(engine.look_for_forgotten_words().is_ok(), "it is a member itself");
}

#[test]
fn the_term_that_is_shown_never_goes_back() {
    let (_temp, mut engine, _orders, shown) = founded();
    for _ in 0..100 {
        if engine.mode.pulse(None, clock::steady()).is_leader() {
            break;
        }
        let _ = engine.turn(vec![Event::Tick { passed: 1 }]);
    }
    engine.publish();
    let at_the_table = shown.pulse.borrow().clone();
    assert!(at_the_table.is_leader() && at_the_table.term > 1, "{at_the_table:?}");
    // What it was told when it watched, long ago, and what it is told once it watches again.
    let (old, other) = (at_the_table.term - 1, NodeId([9; 32]));
    engine.give_up_seat();
    for (told, leader) in [(old, None), (u64::MAX, None), (old + 1, Some(other))] {
        engine.led = Some((told, Some(other)));
        engine.publish();
        let pulse = shown.pulse.borrow().clone();
        assert_eq!((pulse.part, pulse.term), (Part::Watcher, at_the_table.term), "{told}");
        assert_eq!((pulse.index, pulse.leader), (at_the_table.index, leader), "{told}");
    }
    // The next server knows of a later term, and the one after it does not.
    for told in [old + 3, old + 2] {
        engine.led = Some((told, None));
        engine.publish();
        assert_eq!(shown.pulse.borrow().term, old + 3, "{told}");
    }
}
