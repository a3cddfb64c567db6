//! Every rule of data, and somebody who tries to break it.

use std::collections::BTreeSet;

use mesh_consensus::id::{Hash, NodeId, PartyId, VersionId};
use mesh_consensus::machine::{Halt, StateMachine};

use super::super::command::{Leave, MAX_ACT_BYTES, Rejoin, Suspect};
use super::super::level::LEVEL;
use super::super::refusal::Refusal;
use super::super::testing::{Scene, id, name, node, party, party_id};
use super::super::{Facts, State};
use super::content::{MAX_READERS, SEALED_BYTES};
use super::*;

fn version(n: u8) -> VersionId {
    VersionId([n; 16])
}

fn everyone(label: &str, number: u32) -> Body {
    plain(label, number, Readers::Everyone)
}

fn shared(label: &str, number: u32, with: &[u8]) -> Body {
    plain(label, number, Readers::Parties(with.iter().map(|n| party_id(*n)).collect()))
}

fn plain(label: &str, number: u32, readers: Readers) -> Body {
    let (name, manifest, lineage) = (name(label), Hash([8; 32]), Lineage::default());
    Body::Plain(Plain { name, number, manifest, bytes: 1 << 30, files: 3, readers, lineage })
}

fn sealed(fill: u8) -> Body {
    Body::Sealed(Sealed { record: vec![fill; 512].try_into().unwrap(), listing: None })
}

fn listed(label: &str, number: u32) -> Body {
    let note = "age u8, scan u16[512,512]".parse().unwrap();
    let listing = Listing { name: name(label), number, bytes: 5, files: 1, note };
    Body::Sealed(Sealed { record: vec![1; 512].try_into().unwrap(), listing: Some(listing) })
}

/// Three parties with a node each, a second node, 4, of the first, and its worker, 5.
fn scene() -> Scene {
    let mut scene = Scene::of_parties(3);
    scene.join(1, 4).unwrap();
    scene.join_as_worker(1, 5).unwrap();
    scene.raise_to(LEVEL);
    scene
}

/// Version `n` of party `of`, made by the party's first node, which holds it.
fn new(scene: &Scene, n: u8, of: u8, body: Body) -> VersionNew {
    let revision = body.is_sealed().then(|| scene.state.sealed_revision(party_id(of)));
    let holders = BTreeSet::from([id(of)]);
    VersionNew { party: party_id(of), id: version(n), revision, copies: 2, holders, body }
}

fn make(scene: &mut Scene, n: u8, of: u8, body: Body) {
    let act = new(scene, n, of, body);
    scene.act(&node(of), act).unwrap();
}

/// From what it is now.
fn change(scene: &Scene, n: u8, body: Body) -> VersionBody {
    let version = scene.state.version(super::tests::version(n)).unwrap();
    let is_sealed = version.body.is_sealed() || body.is_sealed();
    let revision = is_sealed.then(|| scene.state.sealed_revision(version.party));
    VersionBody { id: super::tests::version(n), expect: version.body.hash(), revision, body }
}

fn tag(label: &str, tag: &str, expect: Option<u32>, to: Option<u32>) -> TagSet {
    TagSet { party: party_id(1), name: name(label), tag: name(tag), expect, to }
}

fn hold(n: u8, claim: Claim) -> Hold {
    Hold { id: version(n), claim }
}

fn holders(scene: &Scene, n: u8) -> Vec<NodeId> {
    scene.state.version(version(n)).unwrap().holders.iter().copied().collect()
}

fn has_holders(scene: &Scene, n: u8, nodes: &[u8]) -> bool {
    holders(scene, n)
        == nodes.iter().map(|n| id(*n)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
}

/// Something of everything, for the tests of the state as a whole.
pub(in crate::state) fn fill(scene: &mut Scene) {
    make(scene, 1, 1, everyone("mnist", 1));
    make(scene, 2, 1, sealed(7));
    make(scene, 3, 1, listed("xray", 1));
    make(scene, 4, 2, shared("ct", 2, &[1]));
    scene.act(&node(2), hold(1, Claim::Kept)).unwrap();
    scene.act(&node(1), tag("mnist", "clean", None, Some(1))).unwrap();
}

/// The state can be read back, is weighed right, and does not weigh less than it is.
fn check(scene: &Scene) {
    let mut restored = State::blank(LEVEL);
    restored.restore(&scene.state.snapshot()).unwrap();
    assert_eq!(restored, scene.state);
    assert_eq!(restored.facts.data.loads, scene.state.facts.data.loads);
    let data = postcard::to_stdvec(&scene.state.facts.data).unwrap().len() as u64;
    let revisions = 64 * scene.state.parties().len() as u64;
    assert!(data <= scene.state.facts.data.weight() + revisions, "{data}");
}

#[test]
fn a_version_is_made_by_any_node_of_its_party_a_worker_too() {
    let mut scene = scene();
    for (n, by) in [(1, 1), (2, 4), (3, 5)] {
        let body = everyone("mnist", u32::from(n));
        let act = new(&scene, n, 1, body.clone());
        assert_eq!(scene.act(&node(by), act), Ok(()));
        let made = scene.state.version(version(n)).unwrap();
        assert_eq!(
            (made.party, made.author, made.created.index),
            (party_id(1), id(by), scene.index)
        );
        assert_eq!((&made.body, made.copies), (&body, 2));
    }
    let numbers = scene.state.data_name(party_id(1), &name("mnist")).unwrap();
    assert_eq!((numbers.next, numbers.versions.len()), (4, 3));
    check(&scene);
}

#[test]
fn nobody_makes_changes_tags_or_drops_another_partys_data() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    make(&mut scene, 2, 1, sealed(1));
    let acts: [super::super::command::Act; 6] = [
        new(&scene, 3, 1, everyone("mnist", 2)).into(),
        new(&scene, 3, 1, sealed(2)).into(),
        change(&scene, 1, shared("mnist", 1, &[2])).into(),
        tag("mnist", "clean", None, Some(1)).into(),
        VersionDrop { id: version(1) }.into(),
        VersionDrop { id: version(2) }.into(),
    ];
    for act in acts {
        assert_eq!(scene.act(&node(2), act.clone()), Err(Refusal::WrongParty));
        // Nor with the party's signature: it would have to vouch for the node.
        assert_eq!(scene.signed(&node(2), &party(1), act.clone()), Err(Refusal::WrongParty));
        assert_eq!(scene.act(&node(9), act), Err(Refusal::NotMember));
    }
}

#[test]
fn who_is_leaving_has_no_say_on_data() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    scene.seat_voters(&[1, 4]);
    scene.act(&node(4), Leave { node: id(4) }).unwrap();
    assert_eq!(scene.act(&node(4), hold(1, Claim::Kept)), Err(Refusal::NotMember));
    let drop = VersionDrop { id: version(1) };
    assert_eq!(scene.act(&node(4), drop), Err(Refusal::NotMember));
    let held = VersionNew { holders: [id(4)].into(), ..new(&scene, 2, 1, everyone("mnist", 2)) };
    assert_eq!(scene.act(&node(1), held), Err(Refusal::NoSuchMember));
}

#[test]
fn of_two_that_take_one_number_the_second_is_told() {
    let mut scene = scene();
    let first = new(&scene, 1, 1, everyone("mnist", 1));
    let second = new(&scene, 2, 1, everyone("mnist", 1));
    assert_eq!(scene.act(&node(1), first), Ok(()));
    assert_eq!(scene.act(&node(4), second), Err(Refusal::NumberTaken));
    // A listed one counts in the same row, and another party in its own.
    let late = new(&scene, 2, 1, listed("mnist", 1));
    assert_eq!(scene.act(&node(1), late), Err(Refusal::NumberTaken));
    make(&mut scene, 3, 1, listed("mnist", 2));
    make(&mut scene, 4, 2, everyone("mnist", 1));
}

#[test]
fn a_number_is_never_given_twice() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    scene.act(&node(1), VersionDrop { id: version(1) }).unwrap();
    assert_eq!(scene.state.next_number(party_id(1), &name("mnist")), 2);
    assert_eq!(scene.state.resolve_data(party_id(1), &name("mnist"), &Pick::Latest), None);
    for number in [0, 1, u32::MAX] {
        let again = new(&scene, 2, 1, everyone("mnist", number));
        assert_eq!(scene.act(&node(1), again), Err(Refusal::NumberTaken), "{number}");
    }
    // Numbers may be passed over (there may be private ones), and are then gone.
    make(&mut scene, 2, 1, everyone("mnist", 5));
    let before = new(&scene, 3, 1, everyone("mnist", 4));
    assert_eq!(scene.act(&node(1), before), Err(Refusal::NumberTaken));
    check(&scene);
}

#[test]
fn an_id_is_taken_once_whoever_has_it() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    let own = new(&scene, 1, 1, everyone("mnist", 2));
    assert_eq!(scene.act(&node(1), own), Err(Refusal::VersionTaken));
    let theirs = new(&scene, 1, 2, sealed(1));
    assert_eq!(scene.act(&node(2), theirs), Err(Refusal::VersionTaken));
}

#[test]
fn of_two_that_change_sealed_records_at_once_the_second_is_told() {
    let mut scene = scene();
    let (first, second) = (new(&scene, 1, 1, sealed(1)), new(&scene, 2, 1, sealed(2)));
    assert_eq!(scene.act(&node(1), first), Ok(()));
    assert_eq!(scene.act(&node(5), second), Err(Refusal::SealedChanged));
    let silent = VersionNew { revision: None, ..new(&scene, 2, 1, sealed(2)) };
    assert_eq!(scene.act(&node(1), silent), Err(Refusal::SealedChanged));
    let ahead = VersionNew { revision: Some(2), ..new(&scene, 2, 1, sealed(2)) };
    assert_eq!(scene.act(&node(1), ahead), Err(Refusal::SealedChanged));
    make(&mut scene, 2, 1, sealed(2));
    // Each change counts: a drop, a new body, a listed one.
    let mut seen = vec![scene.state.sealed_revision(party_id(1))];
    let act = change(&scene, 2, sealed(3));
    scene.act(&node(4), act).unwrap();
    seen.push(scene.state.sealed_revision(party_id(1)));
    scene.act(&node(1), VersionDrop { id: version(2) }).unwrap();
    seen.push(scene.state.sealed_revision(party_id(1)));
    make(&mut scene, 3, 1, listed("xray", 1));
    seen.push(scene.state.sealed_revision(party_id(1)));
    let act = change(&scene, 3, everyone("xray", 1));
    scene.act(&node(1), act).unwrap();
    seen.push(scene.state.sealed_revision(party_id(1)));
    assert_eq!(seen, [2, 3, 4, 5, 6]);
    // What is plain does not, and who speaks of the revision there is mistaken.
    let odd = VersionNew { revision: Some(6), ..new(&scene, 4, 1, everyone("xray", 2)) };
    assert_eq!(scene.act(&node(1), odd), Err(Refusal::SealedChanged));
    make(&mut scene, 4, 1, everyone("xray", 2));
    assert_eq!(scene.state.sealed_revision(party_id(1)), 6);
    assert_eq!(scene.state.sealed_revision(party_id(2)), 0);
    check(&scene);
}

#[test]
fn a_mere_record_has_no_copies_and_nothing_to_see() {
    let mut scene = scene();
    let bare = |scene: &Scene, body| VersionNew {
        copies: 0,
        holders: BTreeSet::new(),
        ..new(scene, 1, 1, body)
    };
    for body in [listed("xray", 1), everyone("xray", 1)] {
        let act = bare(&scene, body);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadCopies));
    }
    let held = VersionNew { copies: 0, ..new(&scene, 1, 1, sealed(1)) };
    assert_eq!(scene.act(&node(1), held), Err(Refusal::BadCopies));
    let act = bare(&scene, sealed(1));
    assert_eq!(scene.act(&node(1), act), Ok(()));
    assert_eq!(scene.act(&node(1), hold(1, Claim::Kept)), Err(Refusal::MayNotHold));
    assert!(!scene.state.may_read(version(1), party_id(1)));
    for body in [listed("xray", 1), everyone("xray", 1)] {
        let act = change(&scene, 1, body);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadCopies));
    }
    let act = change(&scene, 1, sealed(2));
    assert_eq!(scene.act(&node(4), act), Ok(()));
    assert_eq!(scene.state.short_of_copies().count(), 0);
    check(&scene);
}

#[test]
fn copies_and_first_holders_have_bounds() {
    let mut scene = scene();
    let with = |scene: &Scene, copies, holders: &[u8]| VersionNew {
        copies,
        holders: holders.iter().map(|n| id(*n)).collect(),
        ..new(scene, 1, 1, everyone("mnist", 1))
    };
    for (copies, nodes) in [(0, vec![1]), (17, vec![1]), (255, vec![1]), (3, vec![])] {
        let act = with(&scene, copies, &nodes);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadCopies), "{copies}");
    }
    let many: Vec<u8> = (10..27).collect();
    let act = with(&scene, 3, &many);
    assert_eq!(scene.act(&node(1), act), Err(Refusal::BadCopies));
    let act = with(&scene, 3, &[1, 9]);
    assert_eq!(scene.act(&node(1), act), Err(Refusal::NoSuchMember));
    let act = with(&scene, 16, &[1, 2]);
    assert_eq!(scene.act(&node(1), act), Ok(()));
}

#[test]
fn a_version_begins_only_where_it_may_be() {
    let mut scene = scene();
    let at = |scene: &Scene, body, nodes: &[u8]| VersionNew {
        holders: nodes.iter().map(|n| id(*n)).collect(),
        ..new(scene, 1, 1, body)
    };
    for body in [sealed(1), listed("xray", 1), shared("xray", 1, &[3])] {
        let act = at(&scene, body, &[1, 2]);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::MayNotHold));
    }
    let act = at(&scene, shared("xray", 1, &[2]), &[1, 2, 5]);
    assert_eq!(scene.act(&node(1), act), Ok(()));
    assert!(has_holders(&scene, 1, &[1, 2, 5]));
}

#[test]
fn readers_are_other_parties_of_the_mesh() {
    let mut scene = scene();
    let many: Vec<u8> = (2..=255).take(MAX_READERS + 1).collect();
    for with in [vec![], vec![1], vec![1, 2], vec![9], vec![2, 9], many] {
        let act = new(&scene, 1, 1, shared("xray", 1, &with));
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadReaders), "{with:?}");
    }
    make(&mut scene, 1, 1, everyone("xray", 1));
    let act = change(&scene, 1, shared("xray", 1, &[]));
    assert_eq!(scene.act(&node(1), act), Err(Refusal::BadReaders));
}

#[test]
fn what_is_private_is_for_its_party_what_is_shared_for_those_named_what_is_open_for_all() {
    let mut scene = scene();
    make(&mut scene, 1, 1, sealed(1));
    make(&mut scene, 2, 1, listed("xray", 1));
    make(&mut scene, 3, 1, shared("ct", 1, &[2]));
    make(&mut scene, 4, 1, everyone("mnist", 1));
    let readers = |n| {
        let may = |party: &u8| scene.state.may_read(version(n), party_id(*party));
        (1..=3).filter(may).collect::<Vec<u8>>()
    };
    assert_eq!(readers(1), [1]);
    assert_eq!(readers(2), [1]);
    assert_eq!(readers(3), [1, 2]);
    assert_eq!(readers(4), [1, 2, 3]);
    assert_eq!(readers(9), [0; 0]);
    let count = |party| scene.state.readable_by(party_id(party)).count();
    assert_eq!((count(1), count(2), count(3)), (4, 2, 1));
    // Who may read may hold, and nobody else.
    for (n, may) in [(1, [false; 2]), (2, [false; 2]), (3, [true, false]), (4, [true; 2])] {
        for (by, may) in [2, 3].into_iter().zip(may) {
            let want = if may { Ok(()) } else { Err(Refusal::MayNotHold) };
            assert_eq!(scene.act(&node(by), hold(n, Claim::Kept)), want, "{n} by {by}");
        }
        assert_eq!(scene.act(&node(5), hold(n, Claim::Kept)), Ok(()));
    }
    assert_eq!(scene.act(&node(9), hold(4, Claim::Kept)), Err(Refusal::NotMember));
    assert_eq!(scene.act(&node(1), hold(9, Claim::Kept)), Err(Refusal::NoSuchVersion));
    check(&scene);
}

#[test]
fn a_version_changes_only_from_what_it_is() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    let (share, seal) = (change(&scene, 1, shared("mnist", 1, &[2])), change(&scene, 1, sealed(1)));
    assert_eq!(scene.act(&node(1), share.clone()), Ok(()));
    assert_eq!(scene.act(&node(4), seal), Err(Refusal::BodyChanged));
    assert_eq!(scene.act(&node(4), share), Err(Refusal::BodyChanged));
    let absent = VersionBody { id: version(9), ..change(&scene, 1, sealed(1)) };
    assert_eq!(scene.act(&node(1), absent), Err(Refusal::NoSuchVersion));
}

#[test]
fn a_version_keeps_the_name_and_number_that_were_seen() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    for body in [everyone("mnist", 2), everyone("other", 1), listed("mnist", 2), listed("o", 1)] {
        let act = change(&scene, 1, body);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::PlaceChanged));
    }
    // Shared, sealed but listed, and open again.
    for body in [shared("mnist", 1, &[3]), listed("mnist", 1), everyone("mnist", 1)] {
        let act = change(&scene, 1, body);
        assert_eq!(scene.act(&node(1), act), Ok(()));
        let found = scene.state.resolve_data(party_id(1), &name("mnist"), &Pick::Number(1));
        assert_eq!(found, Some(version(1)));
        check(&scene);
    }
}

#[test]
fn what_is_sealed_again_leaves_its_number_and_tags_and_takes_a_new_one_when_published() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    scene.act(&node(1), tag("mnist", "clean", None, Some(1))).unwrap();
    let act = change(&scene, 1, sealed(1));
    assert_eq!(scene.act(&node(1), act), Ok(()));
    let numbers = scene.state.data_name(party_id(1), &name("mnist")).unwrap();
    assert_eq!(*numbers, Numbers { next: 2, ..Numbers::default() });
    check(&scene);
    let act = change(&scene, 1, everyone("mnist", 1));
    assert_eq!(scene.act(&node(1), act), Err(Refusal::NumberTaken));
    let act = change(&scene, 1, everyone("mnist", 2));
    assert_eq!(scene.act(&node(1), act), Ok(()));
    let latest = scene.state.resolve_data(party_id(1), &name("mnist"), &Pick::Latest);
    assert_eq!(latest, Some(version(1)));
    check(&scene);
}

#[test]
fn who_may_no_longer_read_no_longer_holds() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    for by in [2, 3, 4] {
        scene.act(&node(by), hold(1, Claim::Kept)).unwrap();
    }
    let act = change(&scene, 1, shared("mnist", 1, &[3]));
    assert_eq!(scene.act(&node(1), act), Ok(()));
    assert!(has_holders(&scene, 1, &[1, 3, 4]));
    assert!(!scene.state.may_read(version(1), party_id(2)));
    let act = change(&scene, 1, sealed(1));
    assert_eq!(scene.act(&node(1), act), Ok(()));
    assert!(has_holders(&scene, 1, &[1, 4]));
    check(&scene);
}

#[test]
fn a_version_is_not_closed_to_the_only_ones_who_have_it() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    scene.act(&node(2), hold(1, Claim::Kept)).unwrap();
    scene.act(&node(1), hold(1, Claim::Lost)).unwrap();
    for body in [sealed(1), shared("mnist", 1, &[3])] {
        let act = change(&scene, 1, body);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::LastCopy));
    }
    scene.act(&node(4), hold(1, Claim::Kept)).unwrap();
    let act = change(&scene, 1, sealed(1));
    assert_eq!(scene.act(&node(1), act), Ok(()));
}

#[test]
fn a_dropped_version_is_gone_with_its_tags() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    make(&mut scene, 2, 1, everyone("mnist", 2));
    scene.act(&node(1), tag("mnist", "clean", None, Some(1))).unwrap();
    scene.act(&node(1), tag("mnist", "best", None, Some(2))).unwrap();
    assert_eq!(scene.act(&node(5), VersionDrop { id: version(1) }), Ok(()));
    assert_eq!(scene.act(&node(1), VersionDrop { id: version(1) }), Err(Refusal::NoSuchVersion));
    let numbers = scene.state.data_name(party_id(1), &name("mnist")).unwrap();
    assert_eq!(numbers.tags.keys().collect::<Vec<_>>(), [&name("best")]);
    assert!(!scene.state.may_read(version(1), party_id(1)));
    assert_eq!(scene.act(&node(1), hold(1, Claim::Lost)), Err(Refusal::NoSuchVersion));
    check(&scene);
}

#[test]
fn a_tag_changes_only_from_what_it_stands_for_and_to_what_is_there() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    make(&mut scene, 2, 1, listed("mnist", 2));
    let clean = |expect, to| tag("mnist", "clean", expect, to);
    assert_eq!(scene.act(&node(1), clean(None, Some(3))), Err(Refusal::NoSuchVersion));
    assert_eq!(scene.act(&node(1), clean(Some(1), Some(1))), Err(Refusal::TagChanged));
    assert_eq!(scene.act(&node(1), clean(None, Some(1))), Ok(()));
    assert_eq!(scene.act(&node(5), clean(None, Some(2))), Err(Refusal::TagChanged));
    assert_eq!(scene.act(&node(5), clean(Some(1), Some(2))), Ok(()));
    let found = scene.state.resolve_data(party_id(1), &name("mnist"), &Pick::Tag(name("clean")));
    assert_eq!(found, Some(version(2)));
    assert_eq!(scene.act(&node(1), clean(Some(1), None)), Err(Refusal::TagChanged));
    assert_eq!(scene.act(&node(1), clean(Some(2), None)), Ok(()));
    assert_eq!(scene.act(&node(1), clean(None, None)), Ok(()));
    let absent = tag("other", "clean", None, None);
    assert_eq!(scene.act(&node(1), absent), Err(Refusal::NoSuchVersion));
    check(&scene);
}

#[test]
fn a_copy_is_released_only_if_enough_others_remain() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1)); // Two copies are wanted.
    assert_eq!(scene.act(&node(1), hold(1, Claim::Released)), Err(Refusal::StillNeeded));
    scene.act(&node(2), hold(1, Claim::Kept)).unwrap();
    assert_eq!(scene.act(&node(1), hold(1, Claim::Released)), Err(Refusal::StillNeeded));
    scene.act(&node(3), hold(1, Claim::Kept)).unwrap();
    // Of two who want to go at once, one may.
    assert_eq!(scene.act(&node(1), hold(1, Claim::Released)), Ok(()));
    assert_eq!(scene.act(&node(2), hold(1, Claim::Released)), Err(Refusal::StillNeeded));
    assert!(has_holders(&scene, 1, &[2, 3]));
    // Who has none may say so.
    assert_eq!(scene.act(&node(1), hold(1, Claim::Released)), Ok(()));
    assert_eq!(scene.act(&node(2), hold(1, Claim::Kept)), Ok(()));
    check(&scene);
}

#[test]
fn copies_of_those_who_are_down_or_leaving_are_not_counted_on() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    for by in [2, 3, 4] {
        scene.act(&node(by), hold(1, Claim::Kept)).unwrap();
    }
    assert_eq!(scene.state.live_copies(scene.state.version(version(1)).unwrap()), 4);
    scene.seat_voters(&[1, 3, 4]);
    scene.act(&node(4), Leave { node: id(4) }).unwrap();
    for by in [1, 2] {
        scene.act(&node(by), Suspect { node: id(3), down: true }).unwrap();
    }
    assert_eq!(scene.state.live_copies(scene.state.version(version(1)).unwrap()), 2);
    assert_eq!(scene.act(&node(1), hold(1, Claim::Released)), Err(Refusal::StillNeeded));
    assert!(has_holders(&scene, 1, &[1, 2, 3, 4]));
    scene.act(&node(1), Suspect { node: id(3), down: false }).unwrap();
    assert_eq!(scene.act(&node(1), hold(1, Claim::Released)), Ok(()));
}

#[test]
fn a_lost_copy_is_always_noted() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    assert_eq!(scene.state.short_of_copies().map(|(_, _, live)| live).collect::<Vec<_>>(), [1]);
    assert_eq!(scene.act(&node(1), hold(1, Claim::Lost)), Ok(()));
    assert!(has_holders(&scene, 1, &[]));
    assert_eq!(scene.act(&node(2), hold(1, Claim::Lost)), Ok(()));
    assert_eq!(scene.state.short_of_copies().map(|(_, _, live)| live).collect::<Vec<_>>(), [0]);
    check(&scene);
}

#[test]
fn who_goes_or_comes_back_empty_holds_nothing() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    for by in [2, 4, 5] {
        scene.act(&node(by), hold(1, Claim::Kept)).unwrap();
    }
    assert_eq!(scene.state.held_by(id(4)).count(), 1);
    scene.leave(4).unwrap();
    assert!(has_holders(&scene, 1, &[1, 2, 5]));
    assert_eq!(scene.state.held_by(id(4)).count(), 0);
    check(&scene);
    scene.act(&node(2), Rejoin {}).unwrap();
    assert!(has_holders(&scene, 1, &[1, 5]));
    assert_eq!(scene.act(&node(2), hold(1, Claim::Kept)), Ok(()));
    // One that raft still counts is a holder until it is gone.
    scene.seat_voters(&[1, 5]);
    scene.leave(5).unwrap();
    assert!(has_holders(&scene, 1, &[1, 2, 5]));
    scene.seat_voters(&[1]);
    assert!(has_holders(&scene, 1, &[1, 2]));
    check(&scene);
}

#[test]
fn a_version_has_a_bounded_number_of_holders() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    let like = scene.member(4).clone();
    for n in 1..32u8 {
        let (node, label) = (NodeId([n; 32]), name(&format!("m{n}")));
        let member = super::super::member::Member { seat: None, name: label, ..like.clone() };
        scene.state.facts.members.insert(node, member);
        scene.state.facts.data.versions.get_mut(&version(1)).unwrap().holders.insert(node);
    }
    scene.state.facts.data.weigh();
    assert_eq!(scene.act(&node(2), hold(1, Claim::Kept)), Err(Refusal::TooManyHolders));
    scene.act(&node(1), hold(1, Claim::Lost)).unwrap();
    assert_eq!(scene.act(&node(2), hold(1, Claim::Kept)), Ok(()));
}

/// Gives a party as many versions like version 1 as there is room for by number.
fn crowd(scene: &mut Scene, count: usize) {
    let like = scene.state.version(version(1)).unwrap().clone();
    for n in 1..count {
        let mut key = [9; 16];
        key[..8].copy_from_slice(&(n as u64).to_le_bytes());
        scene.state.facts.data.versions.insert(VersionId(key), like.clone());
    }
    scene.state.facts.data.weigh();
}

#[test]
fn a_party_has_a_bounded_number_of_versions() {
    // One party alone has the largest share; its versions here have no holders.
    let mut scene = Scene::at_top();
    make(&mut scene, 1, 1, sealed(1));
    scene.act(&node(1), hold(1, Claim::Lost)).unwrap();
    let like = scene.state.facts.data.versions.get_mut(&version(1)).unwrap();
    like.body = sealed(1);
    crowd(&mut scene, MAX_VERSIONS);
    let load = scene.state.facts.data.loads[&party_id(1)];
    assert_eq!(load.versions, MAX_VERSIONS);
    // They would fit by weight, or this would show nothing.
    scene.state.facts.data.loads.get_mut(&party_id(1)).unwrap().bytes = 0;
    let more = new(&scene, 2, 1, sealed(2));
    let at = scene.at(&node(1));
    let code = super::super::command::Act::from(more).command();
    let refused = mesh_consensus::machine::Outcome::Refused(Refusal::TooManyVersions.code());
    assert_eq!(scene.state.apply(&at, &code), Ok(refused));
}

#[test]
fn a_party_has_a_bounded_share_of_the_state() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    make(&mut scene, 2, 1, sealed(1));
    let share = MAX_DATA_BYTES / 3;
    assert!(share < MAX_PARTY_BYTES);
    let set = |scene: &mut Scene, of: u8, bytes| {
        scene.state.facts.data.loads.entry(party_id(of)).or_default().bytes = bytes;
    };
    set(&mut scene, 1, share);
    let refused = Err(Refusal::TooMuchData);
    let plain = new(&scene, 3, 1, everyone("mnist", 2));
    assert_eq!(scene.act(&node(1), plain), refused);
    let private = new(&scene, 3, 1, sealed(1));
    assert_eq!(scene.act(&node(1), private), refused);
    assert_eq!(scene.act(&node(1), tag("mnist", "clean", None, Some(1))), refused);
    let larger = Body::Sealed(Sealed { record: vec![1; 4096].try_into().unwrap(), listing: None });
    let larger = change(&scene, 2, larger);
    assert_eq!(scene.act(&node(1), larger), refused);
    // The same size is fine, so are copies, and another party has its own share.
    let same = change(&scene, 2, sealed(2));
    assert_eq!(scene.act(&node(1), same), Ok(()));
    assert_eq!(scene.act(&node(2), hold(1, Claim::Kept)), Ok(()));
    make(&mut scene, 4, 2, everyone("mnist", 1));
    // Room comes back with what goes.
    scene.act(&node(1), VersionDrop { id: version(2) }).unwrap();
    assert_eq!(scene.act(&node(1), tag("mnist", "clean", None, Some(1))), Ok(()));
    // All together have a bound, too, and copies a later one.
    let others = scene.state.facts.data.weight();
    set(&mut scene, 3, MAX_DATA_BYTES - others);
    let more = new(&scene, 5, 2, everyone("mnist", 2));
    assert_eq!(scene.act(&node(2), more), refused);
    assert_eq!(scene.act(&node(2), hold(4, Claim::Released)), Err(Refusal::StillNeeded));
    assert_eq!(scene.act(&node(1), hold(4, Claim::Kept)), Ok(()));
    set(&mut scene, 3, MAX_DATA_BYTES + ROOM_FOR_HOLDERS - others - 32);
    assert_eq!(scene.act(&node(3), hold(4, Claim::Kept)), refused);
}

#[test]
fn a_full_state_still_travels() {
    let limit = mesh_consensus::admit::MAX_SNAPSHOT_BYTES as u64;
    // What else there is: members, tickets, authors. See `StateMachine::weight`.
    let rest = 64 << 20;
    assert!(MAX_DATA_BYTES + ROOM_FOR_HOLDERS + rest < limit);
}

#[test]
fn the_largest_body_fits_its_bound() {
    let scene = scene();
    let note = "n".repeat(240).parse().unwrap();
    let label = "x".repeat(63);
    let (number, bytes) = (u32::MAX, u64::MAX);
    let listing = Listing { name: name(&label), number, bytes, files: bytes, note };
    let record = vec![1; *SEALED_BYTES.last().unwrap()].try_into().unwrap();
    let body = Body::Sealed(Sealed { record, listing: Some(listing) });
    let holders = (0..16).map(|n| NodeId([n; 32])).collect();
    let revision = Some(u64::MAX);
    let act = VersionNew { revision, holders, ..new(&scene, 1, 1, body) };
    let act = super::super::command::Act::from(act);
    let slot = super::super::party::Slot::of(&Scene::new().at(&node(1)));
    assert!(act.signed(&party(1), &slot).body.len() <= MAX_ACT_BYTES);
}

#[test]
fn names_are_found_as_people_write_them() {
    let mut scene = scene();
    make(&mut scene, 1, 1, everyone("mnist", 1));
    make(&mut scene, 2, 1, everyone("mnist", 3));
    make(&mut scene, 3, 2, everyone("mnist", 1));
    scene.act(&node(1), tag("mnist", "clean", None, Some(1))).unwrap();
    let find = |own: u8, text: &str| {
        let found = scene.state.resolve_ref(party_id(own), &text.parse().unwrap());
        found.map(|id| id.0[0])
    };
    assert_eq!(find(1, "mnist"), Some(2));
    assert_eq!(find(2, "mnist"), Some(3));
    assert_eq!(find(2, "p1/mnist"), Some(2));
    assert_eq!(find(2, "p1/mnist@1"), Some(1));
    assert_eq!(find(2, "p1/mnist@2"), None);
    assert_eq!(find(3, "p1/mnist:clean"), Some(1));
    assert_eq!(find(3, "p2/mnist:clean"), None);
    assert_eq!(find(3, "mnist"), None);
    assert_eq!(find(3, "p9/mnist"), None);
}

#[test]
fn private_names_are_read_from_the_state_by_their_party_alone() {
    use crate::party::PartySecret;
    use crate::seal::{PrivateVersion, PrivateView, Record, Spot, seal};

    let mut scene = scene();
    let (secret, other) = (PartySecret::new([1; 32]), PartySecret::new([2; 32]));
    let put = |scene: &mut Scene, n: u8, copies: u8, record: Record, secret: &PartySecret| {
        let spot = Spot { mesh: scene.mesh, party: party_id(1), id: version(n) };
        let record = seal(&record, &secret.sealing_secret(), &spot);
        let body = Body::Sealed(Sealed { record, listing: None });
        let holders = (copies > 0).then(|| id(5)).into_iter().collect();
        let act = VersionNew { copies, holders, ..new(scene, n, 1, body) };
        scene.act(&node(5), act).unwrap();
    };
    let private = |number| {
        let (manifest, lineage, note) = (Hash([3; 32]), Lineage::default(), Note::default());
        let name = name("xray");
        Record::Version(PrivateVersion {
            name,
            number,
            manifest,
            bytes: 1,
            files: 1,
            lineage,
            note,
        })
    };
    put(&mut scene, 1, 2, private(1), &secret);
    put(&mut scene, 2, 2, private(2), &secret);
    let tag = Record::Tag { name: name("xray"), tag: name("clean"), number: 1 };
    put(&mut scene, 3, 0, tag, &secret);
    // A node that writes nonsense harms nobody else's reading.
    put(&mut scene, 4, 2, private(9), &other);
    make(&mut scene, 5, 1, everyone("xray", 3));

    let view = PrivateView::of(&scene.state, party_id(1), &secret.sealing_secret());
    assert_eq!((view.revision(), view.unopened()), (4, 1));
    let find = |pick| view.resolve_own(&scene.state, party_id(1), &name("xray"), &pick);
    assert_eq!(find(Pick::Latest), Some(version(5)));
    assert_eq!(find(Pick::Number(2)), Some(version(2)));
    assert_eq!(find(Pick::Tag(name("clean"))), Some(version(1)));
    assert_eq!(view.next_number(&scene.state, party_id(1), &name("xray")), 4);
    let theirs = PrivateView::of(&scene.state, party_id(1), &other.sealing_secret());
    assert_eq!(theirs.unopened(), 3);
    // A whole record under another id or another party says nothing.
    let foreign = scene.state.version(version(1)).unwrap().body.clone();
    make(&mut scene, 6, 2, foreign);
    let moved = PrivateView::of(&scene.state, party_id(2), &secret.sealing_secret());
    assert_eq!((moved.unopened(), moved.versions().len()), (1, 0));
}

#[test]
fn a_snapshot_whose_data_breaks_a_rule_is_damaged() {
    let mut scene = scene();
    fill(&mut scene);
    fn at(facts: &mut Facts, n: u8) -> &mut Version {
        facts.data.versions.get_mut(&version(n)).unwrap()
    }
    fn mnist(facts: &mut Facts) -> &mut Numbers {
        let names = facts.data.names.get_mut(&party_id(1)).unwrap();
        names.get_mut(&name("mnist")).unwrap()
    }
    let unknown = "data has an unknown party, or a party with data has none";
    let names = "names are not those of the versions";
    let numbers = "a number was given that was not, or a tag stands for nothing";
    let odd = "a version has an odd number of copies";
    let readers = "a version is shared with nobody, or with a stranger";
    let held = "somebody holds what it may not";
    type Damage = fn(&mut Facts);
    let damage: [(Damage, &str); 23] = [
        (|f| at(f, 1).party = party_id(9), unknown),
        (|f| drop(f.data.names.insert(party_id(3), Default::default())), unknown),
        (|f| drop(f.data.names.insert(party_id(9), Default::default())), unknown),
        (
            |f| {
                f.data.revisions.insert(party_id(3), 0);
            },
            unknown,
        ),
        (
            |f| {
                f.data.revisions.insert(PartyId([0; 32]), 4);
            },
            unknown,
        ),
        (|f| at(f, 1).copies = 17, odd),
        (|f| at(f, 1).copies = 0, odd),
        (|f| at(f, 4).body = shared("ct", 2, &[]), readers),
        (|f| at(f, 4).body = shared("ct", 2, &[2]), readers),
        (|f| at(f, 4).body = shared("ct", 2, &[9]), readers),
        (
            |f| {
                at(f, 2).holders.insert(id(2));
            },
            held,
        ),
        (
            |f| {
                at(f, 1).holders.insert(id(9));
            },
            held,
        ),
        (|f| at(f, 2).copies = 0, held),
        (
            |f| {
                f.data.revisions.remove(&party_id(1));
            },
            "sealed records came without a change",
        ),
        (|f| at(f, 1).body = everyone("mnist", 2), names),
        (|f| at(f, 3).body = sealed(1), names),
        (|f| drop(f.data.versions.remove(&version(1))), names),
        (
            |f| {
                mnist(f).versions.insert(2, version(1));
            },
            names,
        ),
        (
            |f| {
                mnist(f).versions.insert(2, version(4));
            },
            names,
        ),
        (|f| mnist(f).next = 1, numbers),
        (
            |f| {
                mnist(f).tags.insert(name("x"), 2);
            },
            numbers,
        ),
        (
            |f| {
                let numbers = Numbers::default();
                f.data.names.get_mut(&party_id(1)).unwrap().insert(name("none"), numbers);
            },
            numbers,
        ),
        (
            |f| {
                at(f, 1).body = everyone("mnist", 0);
                mnist(f).versions = [(0, version(1))].into();
                mnist(f).tags.clear();
            },
            numbers,
        ),
    ];
    for (place, (break_rule, flaw)) in damage.into_iter().enumerate() {
        let mut broken = scene.state.clone();
        assert_eq!(broken.facts.flaw(), None);
        break_rule(&mut broken.facts);
        let halt = State::blank(LEVEL).restore(&broken.snapshot()).unwrap_err();
        assert_eq!(halt, Halt::Damaged(flaw.into()), "{place}");
    }
}

#[test]
fn a_snapshot_with_more_data_than_there_may_be_is_damaged() {
    let mut scene = Scene::at_top();
    make(&mut scene, 1, 1, sealed(1));
    scene.act(&node(1), hold(1, Claim::Lost)).unwrap();
    crowd(&mut scene, MAX_VERSIONS + 1);
    let halt = State::blank(LEVEL).restore(&scene.state.snapshot()).unwrap_err();
    assert_eq!(halt, Halt::Damaged("there is more data than there may be".into()));
}
