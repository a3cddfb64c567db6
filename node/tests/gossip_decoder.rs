//! The decoder of gossip under hostile bytes: it refuses, and spends no memory on lies.
//!
//! `corpus/gossip/` holds inputs that were once interesting. A name says what must become of the
//! bytes: `good-…` parse, `bad-…` do not.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "../../transport/tests/common/fuzz.rs"]
mod fuzz;

use std::cell::Cell;
use std::path::PathBuf;

use ed25519_dalek::SigningKey;
use mesh_consensus::id::MeshId;
use mesh_node::awareness::bounded::{MAX_ADDRESSES, Ratio, Text};
use mesh_node::awareness::record::{
    Facts, GpuFacts, GpuLoad, Health, Interface, Load, MAX_GPUS, MAX_INTERFACES, Record,
};
use mesh_node::awareness::signed::{MAX_RECORD_BYTES, Signed, Stamp};
use proptest::prelude::*;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which also counts what this thread holds.
struct Counting;

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: everything is left to the system's allocator; counting changes no pointer.
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        let held = HELD.get().wrapping_add(layout.size());
        HELD.set(held);
        MOST.set(MOST.get().max(held));
        // SAFETY: the caller's promises are passed on.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: std::alloc::Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { std::alloc::System.dealloc(pointer, layout) }
    }
}

/// The most that `work` held at any one time.
fn most_held<T>(work: impl FnOnce() -> T) -> (T, usize) {
    HELD.set(0);
    MOST.set(0);
    let result = work();
    (result, MOST.get())
}

/// Decodes, and checks what it cost.
fn decode(bytes: &[u8]) -> bool {
    let (parsed, held) = most_held(|| Signed::parse(bytes).is_ok());
    assert!(held <= 4 * bytes.len(), "{} bytes made the decoder hold {held}", bytes.len());
    parsed
}

const MESH: MeshId = MeshId([7; 32]);

fn stamp() -> Stamp {
    Stamp { incarnation: 1, sequence: 2 }
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

/// The cheapest record with so many things in it: the worst ratio of memory to bytes.
fn cheapest(addresses: usize, interfaces: usize, gpus: usize) -> Vec<u8> {
    let record = Record {
        data: vec!["192.0.2.1:1".parse().unwrap(); addresses],
        overlay: vec!["192.0.2.1:1".parse().unwrap(); addresses],
        name: Text::default(),
        version: Text::default(),
        facts: Facts {
            interfaces: vec![Interface::default(); interfaces],
            gpus: vec![GpuFacts::default(); gpus],
            ..Facts::default()
        },
        load: Load { gpus: vec![GpuLoad::default(); gpus], ..Load::default() },
    };
    record.sign(&key(), MESH, stamp()).unwrap().as_bytes().to_vec()
}

fn usual() -> Vec<u8> {
    let gpu = GpuFacts { name: Text::new("H100"), uuid: [5; 16], memory_mib: 81_559, mig: Some(2) };
    let mut health = Health::default();
    health.note(Health::HOT, true);
    let busy = GpuLoad { utilisation: Some(Ratio::new(0.5)), health, ..GpuLoad::default() };
    let record = Record {
        data: vec!["192.0.2.1:6374".parse().unwrap(), "[2001:db8::1]:6374".parse().unwrap()],
        overlay: vec!["192.0.2.1:6375".parse().unwrap()],
        name: Text::new("node-1"),
        version: Text::new("0.1.0"),
        facts: Facts {
            cpus: 64,
            interfaces: vec![Interface { name: Text::new("eth0"), speed_mbps: 10_000 }],
            gpus: vec![gpu; 2],
            ..Facts::default()
        },
        load: Load { time_ms: 1_763_000_000_000, gpus: vec![busy; 2], ..Load::default() },
    };
    record.sign(&key(), MESH, stamp()).unwrap().as_bytes().to_vec()
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/gossip");
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn the_kept_corpus_is_judged_as_its_names_say() {
    let files = corpus();
    assert!(files.len() >= 10, "{} files", files.len());
    for (name, bytes) in files {
        assert_eq!(decode(&bytes), name.starts_with("good-"), "{name}");
    }
}

#[test]
fn the_emptiest_lists_cost_no_more_than_four_times_their_bytes() {
    for addresses in [0, 1, MAX_ADDRESSES] {
        for interfaces in 0..=MAX_INTERFACES {
            for gpus in [0, 1, 5, MAX_GPUS] {
                assert!(decode(&cheapest(addresses, interfaces, gpus)));
            }
        }
    }
}

#[test]
fn a_list_that_claims_to_be_long_costs_nothing() {
    // Wherever a length may stand, it is claimed to be huge, and to be the most that is allowed.
    let bytes = cheapest(1, 1, 1);
    for at in 0..bytes.len() - 64 {
        for lie in [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &[MAX_GPUS as u8], &[MAX_INTERFACES as u8]]
        {
            decode(&[&bytes[..at], lie, &bytes[at + 1..]].concat());
        }
    }
}

proptest! {
    #[test]
    fn rubbish_is_refused_cheaply(bytes in prop::collection::vec(any::<u8>(), 0..3000), format in 0..3_u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = format;
        }
        prop_assert!(!decode(&bytes) || bytes.len() <= MAX_RECORD_BYTES);
    }

    #[test]
    fn a_mangled_record_is_decoded_cheaply_or_not_at_all(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        from in 0..3_usize,
    ) {
        let mut bytes = match from {
            0 => usual(),
            1 => cheapest(3, 5, 2),
            _ => cheapest(0, MAX_INTERFACES, 0),
        };
        for (at, with) in changes {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        decode(&bytes);
        decode(&bytes[..cut.index(bytes.len())]);
    }
}

#[test]
fn changed_records_are_decoded_cheaply_or_not_at_all() {
    let kept: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
    let mut parsed = 0;
    fuzz::run(5, 20_000, &kept, |_, bytes| {
        if decode(bytes) {
            parsed += 1;
            // A record is kept as it came: nothing is made of it that could differ.
            let again = Signed::parse(bytes).unwrap();
            assert_eq!(again.as_bytes(), bytes);
            assert!(Signed::parse(again.as_bytes()).unwrap() == again);
        }
    });
    assert!(parsed > 200, "{parsed}: changes that nothing survives test little");
}

/// Writes the corpus anew, for when the format changes: `cargo test -- --ignored write_the_corpus`.
#[test]
#[ignore = "writes into the source tree"]
fn write_the_corpus() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/gossip");
    std::fs::create_dir_all(&dir).unwrap();
    let keep = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).unwrap();
    let whole = usual();
    let update = Load::default().sign(&key(), MESH, stamp(), 1).unwrap().as_bytes().to_vec();
    // Format, mesh and node come first; then the incarnation, the sequence and the form.
    let stamped = 1 + 32 + 32;
    let spliced =
        |bytes: &[u8], at: usize, with: &[u8]| [&bytes[..at], with, &bytes[at + 1..]].concat();
    keep("good-whole", &whole);
    keep("good-update", &update);
    keep("good-most-lists-cheapest", &cheapest(MAX_ADDRESSES, MAX_INTERFACES, MAX_GPUS));
    keep("good-empty-lists", &cheapest(0, 0, 0));
    keep("bad-nothing", b"");
    keep("bad-signature-only", &update[update.len() - 64..]);
    keep("bad-later-format", &spliced(&whole, 0, &[2]));
    keep("bad-unknown-form", &spliced(&update, stamped + 2, &[2]));
    keep("bad-varint-too-long", &spliced(&update, stamped, &[0x81, 0x00]));
    keep("bad-varint-endless", &spliced(&update, stamped, &[0xff; 12]));
    keep("bad-update-of-itself", &spliced(&update, stamped + 3, &[2]));
    keep("bad-huge-address-list", &spliced(&whole, stamped + 3, &[0xff, 0xff, 0xff, 0xff, 0x0f]));
    keep("bad-seventeen-addresses", &spliced(&whole, stamped + 3, &[17]));
    keep("bad-cut", &whole[..whole.len() - 65]);
    keep("bad-trailing-byte", &[whole.as_slice(), &[0]].concat());
    keep("bad-too-large", &vec![1; MAX_RECORD_BYTES + 1]);
    keep("bad-port-zero", &spliced(&cheapest(1, 0, 0), stamped + 4 + 16, &[0]));
    let name = whole.windows(6).position(|window| window == b"node-1").unwrap();
    keep("bad-escape-in-a-name", &spliced(&whole, name, &[0x1b]));
    keep("bad-not-utf8", &spliced(&whole, name, &[0xff]));
}
