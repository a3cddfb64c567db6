use super::*;
use crate::party::PartySecret;

const SPOT: Spot = Spot { mesh: MeshId([1; 32]), party: PartyId([2; 32]), id: VersionId([3; 16]) };

fn secret(n: u8) -> SealingSecret {
    PartySecret::new([n; 32]).sealing_secret()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn version(label: &str, number: u32) -> Record {
    Record::Version(PrivateVersion {
        name: name(label),
        number,
        manifest: Hash([9; 32]),
        bytes: 1 << 40,
        files: 12,
        lineage: Lineage::default(),
        note: Note::default(),
    })
}

fn largest() -> Record {
    Record::Version(PrivateVersion {
        name: name(&"x".repeat(63)),
        number: u32::MAX,
        manifest: Hash([9; 32]),
        bytes: u64::MAX,
        files: u64::MAX,
        lineage: Lineage::new(
            vec![VersionId([255; 16]); 32],
            Some(mesh_consensus::id::JobId([255; 16])),
        )
        .unwrap(),
        note: "n".repeat(240).parse().unwrap(),
    })
}

fn tag(label: &str, tag: &str, number: u32) -> Record {
    Record::Tag { name: name(label), tag: name(tag), number }
}

#[test]
fn what_is_sealed_opens_with_the_partys_secret() {
    let next = Record::Next { name: name("xray"), next: 7 };
    for record in [version("xray", 1), tag("xray", "clean", 1), next, largest()] {
        let sealed = seal(&record, &secret(1), &SPOT);
        assert_eq!(open(&sealed, &secret(1), &SPOT), Ok(record));
    }
}

#[test]
fn another_partys_secret_opens_nothing() {
    let sealed = seal(&version("xray", 1), &secret(1), &SPOT);
    assert_eq!(open(&sealed, &secret(2), &SPOT), Err(OpenError::NotOurs));
    // The secret itself is not the key, nor is what all can see of it.
    let public = SealingSecret::new(secret(1).public());
    assert_eq!(open(&sealed, &public, &SPOT), Err(OpenError::NotOurs));
    let whole = SealingSecret::new([1; 32]);
    assert_eq!(open(&sealed, &whole, &SPOT), Err(OpenError::NotOurs));
}

#[test]
fn a_record_that_is_moved_does_not_open() {
    let sealed = seal(&version("xray", 1), &secret(1), &SPOT);
    let others = [
        Spot { mesh: MeshId([7; 32]), ..SPOT },
        Spot { party: PartyId([7; 32]), ..SPOT },
        Spot { id: VersionId([7; 16]), ..SPOT },
    ];
    for spot in others {
        assert_eq!(open(&sealed, &secret(1), &spot), Err(OpenError::NotOurs));
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let sealed = seal(&version("xray", 1), &secret(1), &SPOT);
    for place in 0..sealed.as_bytes().len() {
        let mut changed = sealed.as_bytes().to_vec();
        changed[place] ^= 1 << (place % 8);
        let changed = SealedBytes::try_from(changed).unwrap();
        assert_eq!(open(&changed, &secret(1), &SPOT), Err(OpenError::NotOurs), "byte {place}");
    }
}

#[test]
fn records_of_different_kinds_and_lengths_have_one_length() {
    let short = seal(&tag("a", "b", 1), &secret(1), &SPOT);
    let long = seal(&version(&"x".repeat(63), u32::MAX), &secret(1), &SPOT);
    let next = seal(&Record::Next { name: name("a"), next: 2 }, &secret(1), &SPOT);
    for sealed in [&short, &long, &next] {
        assert_eq!(sealed.as_bytes().len(), SEALED_BYTES[0]);
    }
    assert_eq!(seal(&largest(), &secret(1), &SPOT).as_bytes().len(), SEALED_BYTES[1]);
}

#[test]
fn two_seals_of_one_record_look_unrelated() {
    let (one, two) = (
        seal(&version("xray", 1), &secret(1), &SPOT),
        seal(&version("xray", 1), &secret(1), &SPOT),
    );
    let pairs = one.as_bytes().iter().zip(two.as_bytes());
    // Two of 512 random bytes are the same at some two places; thirty would be no chance.
    assert!(pairs.filter(|(a, b)| a == b).count() < 30);
    let zeros = one.as_bytes().iter().filter(|byte| **byte == 0).count();
    assert!(zeros < 30, "the padding shows");
}

#[test]
fn what_the_party_sealed_and_is_no_record_is_told_apart() {
    let seal_raw = |plain: &[u8]| {
        let nonce = [5; NONCE_BYTES];
        let payload = Payload { msg: plain, aad: &SPOT.bound() };
        let sealed = cipher(&secret(1)).encrypt(&XNonce::from(nonce), payload).unwrap();
        SealedBytes::try_from([nonce.as_slice(), &sealed].concat()).unwrap()
    };
    let mut plain = vec![0; LENGTH_BYTES + room(512)];
    for (length, first) in [(0u16, 0), (u16::MAX, 0), (3, 200), (471, 0), (470, 0)] {
        plain[..2].copy_from_slice(&length.to_le_bytes());
        plain[2] = first;
        assert_eq!(open(&seal_raw(&plain), &secret(1), &SPOT), Err(OpenError::Unknown), "{length}");
    }
}

#[test]
fn sealed_bytes_have_one_of_few_sizes() {
    for size in [0, 1, 511, 513, 4095, 4097, 1 << 20] {
        assert!(SealedBytes::try_from(vec![0; size]).is_err(), "{size}");
        let encoded = postcard::to_stdvec(&vec![0u8; size]).unwrap();
        assert!(postcard::from_bytes::<SealedBytes>(&encoded).is_err(), "{size}");
    }
    for size in SEALED_BYTES {
        let encoded = postcard::to_stdvec(&vec![7u8; size]).unwrap();
        let read: SealedBytes = postcard::from_bytes(&encoded).unwrap();
        assert_eq!(postcard::to_stdvec(&read).unwrap(), encoded);
    }
}

fn id(n: u8) -> VersionId {
    VersionId([n; 16])
}

fn view(records: &[(u8, Record)]) -> PrivateView {
    PrivateView::of_records(4, records.iter().map(|(n, record)| (id(*n), Some(record.clone()))))
}

use crate::state::data::Pick;

#[test]
fn a_private_name_has_numbers_tags_and_a_latest() {
    let view = view(&[
        (1, version("xray", 1)),
        (2, version("xray", 3)),
        (3, version("ct", 1)),
        (4, tag("xray", "clean", 1)),
        (5, tag("xray", "gone", 2)),
    ]);
    let find = |label: &str, pick| view.resolve(&name(label), &pick);
    assert_eq!(find("xray", Pick::Latest), Some(id(2)));
    assert_eq!(find("xray", Pick::Number(1)), Some(id(1)));
    assert_eq!(find("xray", Pick::Number(2)), None);
    assert_eq!(find("xray", Pick::Tag(name("clean"))), Some(id(1)));
    assert_eq!(find("xray", Pick::Tag(name("gone"))), None);
    assert_eq!(find("ct", Pick::Latest), Some(id(3)));
    assert_eq!(find("mri", Pick::Latest), None);
    assert_eq!(view.names()[&name("xray")].next, 4);
    assert_eq!(view.names()[&name("xray")].tags[&name("clean")], (id(4), 1));
    assert_eq!((view.revision(), view.unopened(), view.clashes()), (4, 0, 0));
}

#[test]
fn records_that_do_not_open_are_passed_over_and_counted() {
    let records = [(id(1), None), (id(2), Some(version("xray", 1))), (id(3), None)];
    let view = PrivateView::of_records(1, records);
    assert_eq!(view.unopened(), 2);
    assert_eq!(view.resolve(&name("xray"), &Pick::Latest), Some(id(2)));
}

#[test]
fn of_two_that_claim_one_number_or_tag_the_earlier_counts() {
    let records = [
        (9, version("xray", 1)),
        (1, version("xray", 1)),
        (3, tag("xray", "clean", 1)),
        (2, tag("xray", "clean", 7)),
    ];
    let view = view(&records);
    assert_eq!(view.resolve(&name("xray"), &Pick::Number(1)), Some(id(9)));
    assert_eq!(view.resolve(&name("xray"), &Pick::Tag(name("clean"))), Some(id(9)));
    assert_eq!(view.clashes(), 2);
    // The other is still there to be dropped.
    assert!(view.versions().contains_key(&id(1)));
}

#[test]
fn a_tag_that_was_taken_away_leaves_its_record_for_the_next() {
    let view = view(&[
        (1, version("xray", 1)),
        (2, tag("xray", "old", NOTHING)),
        (3, tag("xray", "clean", 1)),
        (4, tag("xray", "old", NOTHING)),
    ]);
    assert_eq!(view.free(), [id(2), id(4)]);
    assert_eq!(view.resolve(&name("xray"), &Pick::Tag(name("old"))), None);
    assert_eq!(view.names()[&name("xray")].tags.len(), 1);
    assert_eq!(view.clashes(), 0);
}

#[test]
fn the_number_of_a_dropped_version_is_remembered() {
    let mut records = vec![(1, version("xray", 1)), (2, version("xray", 2))];
    // While a later one is there, nothing needs to be said.
    assert_eq!(view(&records).before_drop(id(1)), None);
    let next = |next| Record::Next { name: name("xray"), next };
    assert_eq!(view(&records).before_drop(id(2)), Some((None, next(3))));
    records.pop();
    records.push((3, next(3)));
    assert_eq!(view(&records).names()[&name("xray")].next, 3);
    assert_eq!(view(&records).before_drop(id(1)), None);
    // The next one takes the place of the record that is there.
    records.push((4, version("xray", 3)));
    assert_eq!(view(&records).before_drop(id(4)), Some((Some(id(3)), next(4))));
    assert_eq!(view(&records).before_drop(id(9)), None);
}

#[test]
fn a_number_at_the_end_of_all_numbers_does_no_harm() {
    let view = view(&[(1, version("xray", u32::MAX)), (2, version("xray", 0))]);
    assert_eq!(view.names()[&name("xray")].next, u32::MAX);
    assert_eq!(view.before_drop(id(1)), None);
}
