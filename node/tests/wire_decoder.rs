//! What nodes say to one another, under hostile bytes: a decoder refuses, and holds no more than four times
//! what it was given (and a little).
//!
//! `corpus/wire/` holds inputs that were once interesting. A name says which decoder gets the bytes and what must become
//! of them: `note-good-…` is a note, `feed-bad-…` is no frame of a feed. `cargo test -p mesh-node --test
//! wire_decoder -- --ignored` writes it anew.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "../../transport/tests/common/fuzz.rs"]
mod fuzz;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;

use ed25519_dalek::SigningKey;
use mesh_consensus::admission::Admission;
use mesh_consensus::bookmark::Bookmark;
use mesh_consensus::id::{Hash, MeshId, NodeId, PartyId, RaftId, TicketId, VersionId};
use mesh_consensus::log::{Config, ConfigChange, Entry, Payload, Seat, Snapshot};
use mesh_consensus::message::{Body, Message};
use mesh_consensus::time::Time;
use mesh_node::awareness::signed::Stamp;
use mesh_node::awareness::view::{Known, Relayed};
use mesh_node::data::wire::{Ask, Give};
use mesh_node::state::founding::Founding;
use mesh_node::state::party::SignatureBytes;
use mesh_node::wire::{Feed, Header, Hello, JoinReply, JoinRequest, Note, Reply, Request, Welcome};
use mesh_transport::codec::{decode, encode};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, which also counts what this thread holds.
struct Counting;

fn count(bytes: isize) {
    // A thread that is ending has nothing left to count in.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: everything is left to the system's allocator; counting changes no pointer.
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: std::alloc::Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { std::alloc::System.dealloc(pointer, layout) }
    }
}

/// Besides four times the input: the first elements of lists, and the text of an error.
const A_LITTLE: usize = 8 << 10;

/// Decodes, checks what it cost, and that what was understood can be said again.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let before = HELD.get();
    MOST.set(before);
    let result = decode::<T>(bytes);
    let held = usize::try_from(MOST.get() - before).unwrap_or(0);
    assert!(held <= 4 * bytes.len() + A_LITTLE, "{held} bytes for {}", bytes.len());
    if let Ok(value) = &result {
        assert!(decode::<T>(&encode(value).unwrap()).as_ref() == Ok(value), "{value:?}");
    }
    result.is_ok()
}

/// Whether some bytes are read as one kind of thing.
type Reads = fn(&[u8]) -> bool;

/// Everything that a peer's bytes are ever taken for.
const KINDS: [(&str, Reads); 10] = [
    ("hello", check::<Hello>),
    ("note", check::<Note>),
    ("request", check::<Request>),
    ("reply", check::<Reply>),
    ("header", check::<Header>),
    ("feed", check::<Feed>),
    ("join", check::<JoinRequest>),
    ("joined", check::<JoinReply>),
    ("ask", check::<Ask>),
    ("give", check::<Give>),
];

const MESH: MeshId = MeshId([7; 32]);
const NODE: NodeId = NodeId([8; 32]);
const VERSION: VersionId = VersionId([9; 16]);

fn key() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

fn config() -> Config {
    let seats = |n: u64| (1..=n).map(RaftId).collect::<BTreeSet<_>>();
    Config { voters: seats(3), outgoing: seats(0), learners: seats(1), learners_next: seats(0) }
}

fn entries() -> Vec<Entry> {
    let change = ConfigChange::Seats(vec![Seat::Voter(RaftId(4)), Seat::Gone(RaftId(2))]);
    let payloads = [
        Payload::Empty,
        Payload::Batch { time: Time(5), bytes: vec![1; 40] },
        Payload::Config(change),
    ];
    (9..).zip(payloads).map(|(index, payload)| Entry { term: 2, index, payload }).collect()
}

fn chain() -> Vec<Admission> {
    vec![Admission::sign(&key(), MESH, 0, NODE, RaftId(6)); 2]
}

fn mark() -> Bookmark {
    Bookmark::sign(&key(), MESH, 0, 9, Hash([1; 32]), Some((4, Hash([2; 32]))), 1)
}

/// One of each, as honest nodes say it: the decoder's name, a name, and the bytes.
fn honest() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    fn said<T: Serialize>(value: &T) -> Vec<u8> {
        encode(value).unwrap()
    }
    let raft = |body| {
        let message =
            Message { mesh: MESH, epoch: 0, from: RaftId(1), to: RaftId(2), term: 3, body };
        said(&Note::Raft(message))
    };
    let snapshot = Snapshot { index: 4, term: 2, config: config(), data: vec![5; 300] };
    let known = Known { node: NODE, stamp: Stamp { incarnation: 1, sequence: 2 } };
    let relayed = Relayed { age_ms: 5, bytes: vec![4; 90] };
    let signature = SignatureBytes([6; 64]);
    let founding = Founding {
        party: "clinic".parse().unwrap(),
        signing: PartyId([1; 32]),
        sealing: [2; 32],
        founder: NODE,
        node: "n0".parse().unwrap(),
        time: Time(1),
        level: 1,
        salt: [3; 32],
    };
    let welcome = Welcome {
        epoch: 0,
        seat: RaftId(6),
        party: PartyId([1; 32]),
        worker: false,
        founding,
        chain: chain(),
        introduced: vec![(NODE, RaftId(1)); 3],
        voters: vec![NODE; 3],
        records: vec![relayed.clone(); 3],
        here: vec!["127.0.0.1:6374".parse().unwrap(), "[::1]:6374".parse().unwrap()],
        secret: Some([9; 32]),
    };
    let join = JoinRequest::Join {
        ticket: TicketId([1; 32]),
        name: "n1".parse().unwrap(),
        proof: signature,
        consent: signature,
        clock: Time(7),
    };
    let found = JoinRequest::Found {
        invite: TicketId([1; 32]),
        name: "lab".parse().unwrap(),
        signing: PartyId([2; 32]),
        sealing: [3; 32],
        ticket: TicketId([4; 32]),
        proof: signature,
        consent: signature,
    };
    let append = Body::Append { prev_index: 8, prev_term: 2, commit: 7, entries: entries() };
    let head = Feed::Snapshot { index: 4, term: 2, config: config(), bytes: 300 };
    vec![
        ("hello", "usual", said(&Hello { mesh: MESH, epoch: 1, chain: chain() })),
        ("note", "append", raft(append)),
        ("note", "snapshot", raft(Body::Snapshot(snapshot))),
        ("note", "timeout-now", raft(Body::TimeoutNow)),
        ("note", "bookmark", said(&Note::Bookmark(mark()))),
        ("request", "submit", said(&Request::Submit(vec![1; 200]))),
        ("request", "records", said(&Request::Records { known: vec![known; 3], mine: Vec::new() })),
        ("request", "log", said(&Request::Log { lines: u32::MAX })),
        ("request", "ping", said(&Request::Ping)),
        ("reply", "records", said(&Reply::Records(vec![relayed; 2]))),
        ("reply", "log", said(&Reply::Log("one line\n".into()))),
        ("header", "watch", said(&Header::Watch { index: u64::MAX })),
        ("header", "manifest", said(&Header::Manifest { version: VERSION })),
        ("header", "strip", said(&Header::Strip { link: 7, number: 1 })),
        ("header", "swarm", said(&Header::Swarm { version: VERSION, link: 7 })),
        ("ask", "chunk", said(&Ask::Chunk(u32::MAX))),
        ("ask", "any", said(&Ask::Any(2))),
        ("ask", "cancel", said(&Ask::Cancel(17))),
        ("ask", "have", said(&Ask::Have((0..40).collect()))),
        ("give", "map", said(&Give::Map(vec![0b1010_1010; 60]))),
        ("give", "have", said(&Give::Have((7..50).collect()))),
        ("give", "chunk", said(&Give::Chunk { number: 17, bytes: 1 << 20, parts: 1 })),
        ("give", "refused", said(&Give::Refused(17))),
        ("give", "nothing", said(&Give::Nothing)),
        ("give", "others", said(&Give::Others(vec![NODE; 5]))),
        ("feed", "head", said(&head)),
        ("feed", "part", said(&Feed::Part(vec![1; 300]))),
        ("feed", "entries", said(&Feed::Entries(entries()))),
        ("feed", "bookmark", said(&Feed::Bookmark { mark: mark(), age_ms: 7 })),
        ("feed", "leader", said(&Feed::Leader { term: 3, leader: Some(NODE) })),
        ("join", "join", said(&join)),
        ("join", "found", said(&found)),
        ("join", "rejoin", said(&JoinRequest::Rejoin { batch: vec![2; 100] })),
        ("join", "where", said(&JoinRequest::Where)),
        ("joined", "welcome", said(&JoinReply::Welcome(Box::new(welcome)))),
        ("joined", "refused", said(&JoinReply::Refused { code: Some(3), why: "no".into() })),
    ]
}

fn decoder(kind: &str) -> fn(&[u8]) -> bool {
    KINDS.iter().find(|(name, _)| *name == kind).unwrap().1
}

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/wire")
}

#[test]
fn the_kept_corpus_is_judged_as_its_names_say() {
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(dir()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        let (kind, rest) = name.split_once('-').unwrap();
        assert_eq!(decoder(kind)(&bytes), rest.starts_with("good-"), "{name}");
        // Whatever it is, nobody is harmed who takes it for something else.
        for (_, decode) in KINDS {
            decode(&bytes);
        }
        seen.insert((kind.to_owned(), rest.starts_with("good-")));
    }
    assert_eq!(seen.len(), 2 * KINDS.len(), "each has good ones and bad ones: {seen:?}");
}

#[test]
fn a_length_that_lies_costs_nothing() {
    // Wherever a length may stand, it is claimed to be huge, or just more than there is.
    for (kind, _, bytes) in honest() {
        for at in 0..bytes.len() {
            let rest = (bytes.len() - at) as u64;
            for lie in [u64::MAX, u64::from(u32::MAX), 1 << 20, rest, rest / 2] {
                let mut bytes = bytes.clone();
                put(&mut bytes, at, &lie.to_le_bytes());
                decoder(kind)(&bytes);
            }
        }
    }
}

proptest! {
    #[test]
    fn rubbish_is_refused_cheaply(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2000),
        version in prop_oneof![8 => Just(1_u8), 1 => any::<u8>()],
        variant in 0..12_u32,
        length in prop_oneof![0..64_u64, 0..3000_u64, any::<u64>()],
        lengths in prop::collection::vec((0..2000_usize, 0..200_u64), 0..6),
    ) {
        // A tag has four bytes and a length eight, here and there one that makes sense.
        for (at, length) in lengths {
            put(&mut bytes, at, &length.to_le_bytes());
        }
        put(&mut bytes, 0, &[version]);
        put(&mut bytes, 1, &variant.to_le_bytes());
        put(&mut bytes, 5, &length.to_le_bytes());
        for (_, decode) in KINDS {
            decode(&bytes);
        }
    }

    #[test]
    fn a_mangled_word_is_understood_cheaply_or_not_at_all(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let all = honest();
        let (kind, _, bytes) = &all[which.index(all.len())];
        let mut bytes = bytes.clone();
        for (at, with) in changes {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        decoder(kind)(&bytes);
        decoder(kind)(&bytes[..cut.index(bytes.len())]);
    }
}

#[test]
fn changed_words_are_understood_cheaply_or_not_at_all() {
    let mut kept: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    kept.sort();
    let decoders: Vec<Reads> =
        kept.iter().map(|(name, _)| decoder(name.split_once('-').unwrap().0)).collect();
    let inputs: Vec<Vec<u8>> = kept.into_iter().map(|(_, bytes)| bytes).collect();
    let mut understood = 0;
    fuzz::run(4, 30_000, &inputs, |which, bytes| {
        understood += usize::from(decoders[which](bytes));
    });
    assert!(understood > 300, "{understood}: changes that nothing survives test little");
}

fn put(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(with) {
        *place = *byte;
    }
}

/// Writes the corpus anew, for when the words change.
#[test]
#[ignore = "writes into the source tree"]
fn write_the_corpus() {
    std::fs::create_dir_all(dir()).unwrap();
    let keep = |name: String, bytes: &[u8]| std::fs::write(dir().join(name), bytes).unwrap();
    for (kind, name, bytes) in honest() {
        assert!(decoder(kind)(&bytes), "{kind} {name}");
        keep(format!("{kind}-good-{name}"), &bytes);
        keep(format!("{kind}-bad-{name}-and-more"), &[&bytes[..], &[0]].concat());
        keep(format!("{kind}-bad-{name}-cut"), &bytes[..bytes.len() - 1]);
    }
    for (kind, _) in KINDS {
        keep(format!("{kind}-bad-nothing"), b"");
        keep(format!("{kind}-bad-version"), &[0xff; 40]);
        keep(format!("{kind}-bad-variant"), &[1, 200, 0, 0, 0]);
    }
    // Lists of which nothing comes: entries, a batch, what somebody knows, chunks, a map, nodes. (The tag has four
    // bytes, the length eight.)
    let lists = [("feed", 2_u32), ("request", 0), ("request", 2), ("reply", 2)];
    let of_data = [("ask", 3), ("give", 0), ("give", 1), ("give", 5)];
    for (name, tag) in lists.into_iter().chain(of_data) {
        for (claim, length) in [("huge", u64::MAX), ("long", u64::from(u32::MAX)), ("short", 1)] {
            let bytes = [&[1][..], &tag.to_le_bytes(), &length.to_le_bytes()].concat();
            keep(format!("{name}-bad-{claim}-list-{tag}"), &bytes);
        }
    }
}
