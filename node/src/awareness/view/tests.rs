use ed25519_dalek::SigningKey;

use super::*;
use crate::awareness::bounded::{Ratio, Text};
use crate::awareness::record::{Facts, Interface};
use crate::clock;

const MESH: MeshId = MeshId([1; 32]);

fn key(n: u8) -> SigningKey {
    SigningKey::from_bytes(&[n; 32])
}

fn id(n: u8) -> NodeId {
    NodeId(key(n).verifying_key().to_bytes())
}

fn stamp(incarnation: u64, sequence: u64) -> Stamp {
    Stamp { incarnation, sequence }
}

fn whole(n: u8, incarnation: u64, sequence: u64) -> Vec<u8> {
    let record = Record {
        data: vec!["192.0.2.1:6374".parse().unwrap()],
        overlay: Vec::new(),
        name: Text::new(&format!("whole {sequence}")),
        version: Text::new("0.1.0"),
        facts: Facts::default(),
        load: Load { cpu: Ratio::new(0.1), ..Load::default() },
    };
    record.sign(&key(n), MESH, stamp(incarnation, sequence)).unwrap().as_bytes().to_vec()
}

fn update(n: u8, incarnation: u64, sequence: u64, of: u64) -> Vec<u8> {
    let load = Load { cpu: Ratio::new(0.9), ..Load::default() };
    load.sign(&key(n), MESH, stamp(incarnation, sequence), of).unwrap().as_bytes().to_vec()
}

fn anyone(_: NodeId) -> bool {
    true
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Gives `view` everything that `other` has and it has not.
fn pull(view: &mut View, other: &View, now: Instant) -> usize {
    let answer = other.newer_than(now, &view.digest());
    for relayed in &answer {
        assert_eq!(view.take_relayed(now, relayed, anyone), Judged::Good);
    }
    answer.len()
}

#[test]
fn the_newest_word_counts_whatever_the_order() {
    let now = clock::steady();
    let mut view = View::new(MESH, now);
    assert_eq!(view.take(now, &whole(1, 5, 2), anyone), Judged::Good);
    assert_eq!(view.take(now, &whole(1, 5, 2), anyone), Judged::Stale);
    assert_eq!(view.take(now, &whole(1, 5, 1), anyone), Judged::Stale);
    assert_eq!(view.take(now, &whole(1, 4, 9), anyone), Judged::Stale);
    assert_eq!(view.take(now, &update(1, 4, 9, 1), anyone), Judged::Stale);
    assert_eq!(view.take(now, &whole(1, 6, 1), anyone), Judged::Good);
    assert_eq!(view.stamp(id(1)), Some(stamp(6, 1)));
}

#[test]
fn an_update_changes_the_load_and_nothing_else() {
    let now = clock::steady();
    let mut view = View::new(MESH, now);
    view.take(now, &whole(1, 5, 1), anyone);
    assert_eq!(view.take(now, &update(1, 5, 2, 1), anyone), Judged::Good);
    let sight = view.get(id(1), now).unwrap();
    assert_eq!((sight.record.name.as_str(), sight.load.cpu.get()), ("whole 1", 0.9));
    // A later whole record brings its own load.
    view.take(now, &whole(1, 5, 3), anyone);
    assert_eq!(view.get(id(1), now).unwrap().load.cpu.get(), 0.1);
}

#[test]
fn an_update_whose_record_was_missed_waits_for_it() {
    let now = clock::steady();
    let mut view = View::new(MESH, now);
    assert_eq!(view.take(now, &update(1, 5, 4, 3), anyone), Judged::Good);
    assert_eq!(view.get(id(1), now), None);
    assert!(view.digest().is_empty());
    assert_eq!(view.take(now, &whole(1, 5, 2), anyone), Judged::Good);
    // Message 3 changed the record, so 4 is not about what we hold: the digest asks for more.
    assert_eq!(view.get(id(1), now).unwrap().load.cpu.get(), 0.1);
    assert_eq!(view.digest(), [Known { node: id(1), stamp: stamp(5, 2) }]);
    assert_eq!(view.take(now, &whole(1, 5, 3), anyone), Judged::Good);
    assert_eq!(view.get(id(1), now).unwrap().load.cpu.get(), 0.9);
    assert_eq!(view.digest(), [Known { node: id(1), stamp: stamp(5, 4) }]);
}

#[test]
fn strangers_are_not_heard_and_former_members_are_forgotten() {
    let now = clock::steady();
    let mut view = View::new(MESH, now);
    assert_eq!(view.take(now, &whole(1, 5, 1), |_| false), Judged::Stale);
    assert_eq!(view.nodes(now).count(), 0);
    view.take(now, &whole(1, 5, 1), anyone);
    view.take(now, &whole(2, 5, 1), anyone);
    view.retain(|node| node == id(2));
    let left: Vec<NodeId> = view.nodes(now).map(|sight| sight.node).collect();
    assert_eq!(left, [id(2)]);
}

#[test]
fn forged_foreign_and_mangled_messages_are_bad() {
    let now = clock::steady();
    let mut view = View::new(MeshId([2; 32]), now);
    assert_eq!(view.take(now, &whole(1, 5, 1), anyone), Judged::Bad);
    assert_eq!(view.take(now, &whole(1, 5, 1), |_| false), Judged::Bad);

    let mut view = View::new(MESH, now);
    let mut forged = whole(1, 5, 1);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(view.take(now, &forged, anyone), Judged::Bad);
    assert_eq!(view.take(now, b"\x01rubbish", anyone), Judged::Bad);
    assert_eq!(view.take(now, b"\x02of a later version", anyone), Judged::Stale);
    assert_eq!(view.nodes(now).count(), 0);
}

#[test]
fn a_pull_brings_what_is_missing_and_then_nothing() {
    let now = clock::steady();
    let (mut full, mut empty) = (View::new(MESH, now), View::new(MESH, now));
    for n in 1..=3 {
        full.take(now, &whole(n, 5, 1), anyone);
    }
    full.take(now, &update(2, 5, 2, 1), anyone);
    assert_eq!(pull(&mut empty, &full, now), 4);
    assert_eq!(empty.digest(), full.digest());
    assert_eq!(pull(&mut empty, &full, now), 0);
    // Only the update is new.
    full.take(now, &update(3, 5, 2, 1), anyone);
    assert_eq!(pull(&mut empty, &full, now), 1);
}

#[test]
fn a_pull_is_bounded_and_goes_on_where_it_stopped() {
    let now = clock::steady();
    let (mut full, mut empty) = (View::new(MESH, now), View::new(MESH, now));
    let mut keys = Vec::new();
    for n in 0..1500_u32 {
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&n.to_le_bytes());
        keys.push(SigningKey::from_bytes(&seed));
    }
    let Said::Whole(mut record) = Signed::parse(&whole(1, 1, 1)).unwrap().into_parts().1 else {
        panic!("a whole record was signed")
    };
    let long = Text::new(&"x".repeat(63));
    record.facts.kernel = long.clone();
    record.facts.hostname = long.clone();
    record.facts.interfaces = vec![Interface { name: long, speed_mbps: 1 }; 4];
    for key in &keys {
        let signed = record.sign(key, MESH, stamp(5, 1)).unwrap();
        assert_eq!(full.take(now, signed.as_bytes(), anyone), Judged::Good);
    }
    let bytes: usize = full.newer_than(now, &[]).iter().map(|relayed| relayed.bytes.len()).sum();
    assert!(bytes <= MAX_PULL_BYTES);
    let first = pull(&mut empty, &full, now);
    assert!((500..1500).contains(&first));
    assert_eq!(pull(&mut empty, &full, now), 1500 - first);
}

#[test]
fn an_old_record_does_not_look_fresh_to_whoever_has_just_started() {
    let start = clock::steady();
    let mut full = View::new(MESH, start);
    full.take(start, &whole(1, 5, 1), anyone);
    let later = start + secs(3600);
    let mut newcomer = View::new(MESH, later);
    pull(&mut newcomer, &full, later);
    let mut second = View::new(MESH, later + secs(10));
    pull(&mut second, &newcomer, later + secs(10));
    assert_eq!(second.get(id(1), later + secs(11)).unwrap().age, secs(3611));
    // It has listened for a second, so that is all the silence it has heard.
    assert_eq!(second.get(id(1), later + secs(11)).unwrap().silence, secs(1));
}

#[test]
fn a_lie_about_an_age_overflows_nothing() {
    let now = clock::steady();
    let mut view = View::new(MESH, now);
    let relayed = Relayed { age_ms: u64::MAX, bytes: whole(1, 5, 1) };
    assert_eq!(view.take_relayed(now, &relayed, anyone), Judged::Good);
    assert!(view.get(id(1), now + secs(9)).unwrap().age > secs(1 << 40));
    assert_eq!(view.newer_than(now + secs(9), &[]).len(), 1);
}

#[test]
fn whoever_was_asleep_has_heard_nobodys_silence() {
    let start = clock::steady();
    let mut view = View::new(MESH, start);
    view.take(start, &whole(1, 5, 1), anyone);
    for second in 1..=60 {
        view.on_tick(start + secs(second));
    }
    assert_eq!(view.get(id(1), start + secs(60)).unwrap().silence, secs(60));
    let awake = start + secs(600);
    view.on_tick(awake);
    let sight = view.get(id(1), awake + secs(2)).unwrap();
    assert_eq!((sight.silence, sight.age), (secs(2), secs(602)));
}

#[test]
fn who_talks_too_much_is_not_passed_on_and_nobody_else_pays_for_it() {
    let now = clock::steady();
    let mut view = View::new(MESH, now);
    let good = (1..=100).filter(|n| view.take(now, &whole(1, 5, *n), anyone) == Judged::Good);
    assert_eq!(good.count(), 16);
    assert_eq!(view.take(now, &whole(2, 5, 1), anyone), Judged::Good);
    // After a while it may speak again, and is not behind for ever.
    assert_eq!(view.take(now + secs(1), &whole(1, 5, 200), anyone), Judged::Good);

    // What others say in its name does not use up what it may say.
    let mut forged = whole(3, 5, 1);
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert!((0..100).all(|_| view.take(now, &forged, anyone) == Judged::Bad));
    assert_eq!(view.take(now, &whole(3, 5, 1), anyone), Judged::Good);
}
