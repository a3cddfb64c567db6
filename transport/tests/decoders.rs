//! What comes from a peer or a person is data: no bytes whatever make a decoder panic, or take more
//! memory than four times their length (and a little).
//!
//! `corpus/` holds bytes that once mattered, replayed each time. `cargo test -p mesh-transport --test
//! decoders -- --ignored` writes the honest part of it anew.
#![allow(unsafe_code, reason = "counting what is allocated needs an allocator of our own")]
#![expect(clippy::unwrap_used, reason = "a test: a failure here fails it")]

#[path = "common/fuzz.rs"]
mod fuzz;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use mesh_consensus::id::{MeshId, NodeId, PartyId, RaftId};
use mesh_consensus::log::{Config, ConfigChange, Entry, Payload, Seat, Snapshot};
use mesh_consensus::message::{Body, Message, Reject};
use mesh_consensus::time::Time;
use mesh_transport::codec::{decode, encode};
use mesh_transport::frame::{FrameError, MAX_FRAME, read_frame};
use mesh_transport::ticket::{Kind, Meet, Ticket};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

/// What this thread holds, and the most that it has held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has nothing left to count in.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as promised by our caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as promised by our caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: as promised by our caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` held at most, beyond what was held before.
fn most_held<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    (result, usize::try_from(MOST.get() - before).unwrap_or(0))
}

/// Besides four times the input: the first elements of lists, and the text of an error.
const A_LITTLE: usize = 8 << 10;
/// What an announced length costs in a frame before anything of it has come.
const FIRST_STEP: usize = 4 << 10;

/// Decodes as a message, and says whether it was one.
fn check_message(bytes: &[u8]) -> bool {
    let (result, held) = most_held(|| decode::<Message>(bytes));
    assert!(held <= 4 * bytes.len() + A_LITTLE, "{held} bytes for {}", bytes.len());
    if let Ok(message) = &result {
        let again = decode::<Message>(&encode(message).unwrap());
        assert!(again.as_ref() == Ok(message), "what was understood can be said again");
    }
    result.is_ok()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn check_frame(bytes: &[u8]) {
    let mut reader = bytes;
    let read = async { while let Ok(Some(_)) = read_frame(&mut reader, MAX_FRAME).await {} };
    let runtime = runtime();
    let ((), held) = most_held(|| runtime.block_on(read));
    assert!(held <= 4 * bytes.len() + FIRST_STEP, "{held} bytes for {}", bytes.len());
}

fn check_ticket(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (result, held) = most_held(|| text.parse::<Ticket>());
    assert!(held <= 4 * text.len() + (16 << 10), "{held} bytes for {}", text.len());
    if let Ok(ticket) = &result {
        assert_eq!(ticket.to_string().parse(), Ok(ticket.clone()));
    }
    result.is_ok()
}

fn seats() -> impl Strategy<Value = BTreeSet<RaftId>> {
    btree_set(any::<u64>().prop_map(RaftId), 0..6)
}

fn payload() -> impl Strategy<Value = Payload> {
    let seat = prop_oneof![
        any::<u64>().prop_map(|id| Seat::Voter(RaftId(id))),
        any::<u64>().prop_map(|id| Seat::Learner(RaftId(id))),
        any::<u64>().prop_map(|id| Seat::Gone(RaftId(id))),
    ];
    prop_oneof![
        Just(Payload::Empty),
        (any::<u64>(), vec(any::<u8>(), 0..200))
            .prop_map(|(time, bytes)| Payload::Batch { time: Time(time), bytes }),
        Just(Payload::Config(ConfigChange::Leave)),
        vec(seat, 0..5).prop_map(|seats| Payload::Config(ConfigChange::Seats(seats))),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    (any::<u64>(), any::<u64>(), payload()).prop_map(|(term, index, payload)| Entry {
        term,
        index,
        payload,
    })
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let config = (seats(), seats(), seats(), seats()).prop_map(
        |(voters, outgoing, learners, learners_next)| Config {
            voters,
            outgoing,
            learners,
            learners_next,
        },
    );
    (any::<u64>(), any::<u64>(), config, vec(any::<u8>(), 0..2000))
        .prop_map(|(index, term, config, data)| Snapshot { index, term, config, data })
}

fn body() -> impl Strategy<Value = Body> {
    let reject = (any::<u64>(), any::<u64>())
        .prop_map(|(hint_index, hint_term)| Reject { hint_index, hint_term });
    prop_oneof![
        (any::<u64>(), any::<u64>(), any::<u64>(), vec(entry(), 0..40)).prop_map(
            |(prev_index, prev_term, commit, entries)| Body::Append {
                prev_index,
                prev_term,
                commit,
                entries
            }
        ),
        (any::<u64>(), any::<u64>(), proptest::option::of(reject))
            .prop_map(|(index, commit, reject)| Body::AppendReply { index, commit, reject }),
        (any::<[bool; 2]>(), any::<[u64; 4]>()).prop_map(|([pre, transfer], n)| Body::Vote {
            pre,
            last_index: n[0],
            last_term: n[1],
            commit: n[2],
            commit_term: n[3],
            transfer
        }),
        (any::<u64>(), any::<Option<u64>>())
            .prop_map(|(commit, read)| Body::Heartbeat { commit, read }),
        (any::<u64>(), any::<Option<u64>>())
            .prop_map(|(commit, read)| Body::HeartbeatReply { commit, read }),
        snapshot().prop_map(Body::Snapshot),
        Just(Body::TimeoutNow),
        vec(any::<u8>(), 0..2000).prop_map(|batch| Body::Forward { batch }),
        any::<u64>().prop_map(|context| Body::Read { context }),
        any::<[u64; 2]>().prop_map(|[context, index]| Body::ReadReply { context, index }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    (any::<[u8; 32]>(), any::<u32>(), any::<[u64; 3]>(), body()).prop_map(
        |(mesh, epoch, [from, to, term], body)| Message {
            mesh: MeshId(mesh),
            epoch,
            from: RaftId(from),
            to: RaftId(to),
            term,
            body,
        },
    )
}

fn ticket() -> impl Strategy<Value = Ticket> {
    let kind = prop_oneof![Just(Kind::Member), Just(Kind::Worker), Just(Kind::NewParty)];
    // Addresses as the wire has them: without scope or flow.
    let address = (any::<std::net::IpAddr>(), any::<u16>()).prop_map(Into::into);
    let meet = (any::<[u8; 32]>(), vec(address, 0..=16))
        .prop_map(|(node, addresses)| Meet { node: NodeId(node), addresses });
    (any::<[[u8; 32]; 3]>(), kind, any::<u64>(), any::<u32>(), vec(meet, 0..=16)).prop_map(
        |([mesh, party, seed], kind, expires, uses, meet)| Ticket {
            mesh: MeshId(mesh),
            party: PartyId(party),
            kind,
            expires: Time(expires),
            uses,
            seed,
            meet,
        },
    )
}

/// Where the tag of a message's body stands: after the form, the mesh, the epoch, two seats and the term.
const TAG: usize = 1 + 32 + 4 + 8 + 8 + 8;

fn put(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(with) {
        *place = *byte;
    }
}

/// Some bytes changed, some cut off, some put in.
fn mutate(mut bytes: Vec<u8>, changes: &[(u16, u8, u8)]) -> Vec<u8> {
    for &(at, how, value) in changes {
        if bytes.is_empty() {
            break;
        }
        let at = usize::from(at) % bytes.len();
        match how % 5 {
            0 => bytes[at] = value,
            1 => bytes[at] ^= 1 << (value % 8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, value),
            // A length that claims a lot.
            _ => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = value),
        }
    }
    bytes
}

fn changes() -> impl Strategy<Value = Vec<(u16, u8, u8)>> {
    vec(any::<(u16, u8, u8)>(), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_message_decodes_to_what_was_encoded(message in message()) {
        let bytes = encode(&message).unwrap();
        prop_assert!(check_message(&bytes));
        prop_assert_eq!(decode::<Message>(&bytes).unwrap(), message);
    }

    #[test]
    fn a_changed_message_is_another_or_none(message in message(), changes in changes()) {
        check_message(&mutate(encode(&message).unwrap(), &changes));
    }

    #[test]
    fn any_bytes_are_a_message_or_not(
        mut bytes in vec(any::<u8>(), 0..4000),
        tag in 0..12u32,
        lengths in vec((any::<u16>(), 0..400u64), 0..6),
        honest: bool,
    ) {
        if honest {
            // The form, and a number or a length here and there that makes sense.
            if let Some(form) = bytes.first_mut() {
                *form = 1;
            }
            for (at, length) in lengths {
                put(&mut bytes, usize::from(at) % 4000, &length.to_le_bytes());
            }
            // Mesh, epoch, from, to and term; then which body it is, and its first numbers.
            put(&mut bytes, TAG, &tag.to_le_bytes());
            for field in 0..4 {
                put(&mut bytes, TAG + 4 + 8 * field, &(field as u64 * 3).to_le_bytes());
            }
        }
        check_message(&bytes);
        check_frame(&bytes);
        // Lists within lists, where a little input could stand for much.
        let (_, held) = most_held(|| decode::<Vec<Vec<Vec<u64>>>>(&bytes));
        prop_assert!(held <= 4 * bytes.len() + A_LITTLE);
        let (_, held) = most_held(|| decode::<Vec<(String, Option<Vec<u8>>)>>(&bytes));
        prop_assert!(held <= 4 * bytes.len() + A_LITTLE);
    }

    #[test]
    fn lists_of_empty_lists_stay_small(lengths in vec(0u64..3, 0..2000)) {
        let value: Vec<Vec<u64>> = lengths.iter().map(|n| (0..*n).collect()).collect();
        let bytes = encode(&value).unwrap();
        let (result, held) = most_held(|| decode::<Vec<Vec<u64>>>(&bytes));
        prop_assert!(held <= 4 * bytes.len() + A_LITTLE, "{} for {}", held, bytes.len());
        prop_assert_eq!(result, Ok(value));
    }

    #[test]
    fn a_ticket_parses_to_what_was_printed(ticket in ticket()) {
        let text = ticket.to_string();
        prop_assert!(check_ticket(text.as_bytes()));
        prop_assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
    }

    #[test]
    fn a_changed_ticket_is_refused_or_the_same(ticket in ticket(), changes in changes()) {
        let text = mutate(ticket.to_string().into_bytes(), &changes);
        check_ticket(&text);
    }

    #[test]
    fn any_text_is_a_ticket_or_not(text in "\\PC*", parts in "mesh1-[a-z2-7]{0,80}-[a-z2-7]{0,80}-[a-z2-7]{0,80}") {
        check_ticket(text.as_bytes());
        check_ticket(parts.as_bytes());
    }
}

#[test]
fn a_long_run_of_empty_entries_can_be_sent() {
    let entries = (0..15_000).map(|n| Entry { term: n, index: n, payload: Payload::Empty });
    let body = Body::Append { prev_index: 0, prev_term: 0, commit: 0, entries: entries.collect() };
    assert!(check_message(&encode(&sample(body)).unwrap()));
}

#[test]
fn a_large_snapshot_can_be_sent() {
    let config = Config { voters: BTreeSet::from([RaftId(1)]), ..Config::default() };
    let snapshot = Snapshot { index: 1, term: 1, config, data: vec![7; 20 << 20] };
    assert!(check_message(&encode(&sample(Body::Snapshot(snapshot))).unwrap()));
}

fn sample(body: Body) -> Message {
    Message { mesh: MeshId([1; 32]), epoch: 0, from: RaftId(1), to: RaftId(2), term: 3, body }
}

fn corpus(of: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(of)
}

fn kept(of: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(corpus(of)).unwrap().map(|file| file.unwrap()).collect();
    files.sort_by_key(|file| file.file_name());
    assert!(!files.is_empty(), "the corpus is not there");
    files
        .into_iter()
        .map(|f| (f.file_name().into_string().unwrap(), fs::read(f.path()).unwrap()))
        .collect()
}

#[test]
fn kept_frames_are_read_as_ever() {
    for (name, bytes) in kept("frame") {
        check_frame(&bytes);
        assert_eq!(check_message(&bytes), name.starts_with("good"), "{name}");
    }
}

#[test]
fn kept_tickets_are_read_as_ever() {
    for (name, bytes) in kept("ticket") {
        assert_eq!(check_ticket(&bytes), name.starts_with("good"), "{name}");
    }
}

#[test]
fn the_tag_stands_where_the_tests_put_it() {
    let bytes = encode(&sample(Body::TimeoutNow)).unwrap();
    assert_eq!(bytes.len(), TAG + 4);
}

#[test]
fn changed_frames_messages_and_tickets_are_read_or_refused() {
    let frames: Vec<Vec<u8>> = kept("frame").into_iter().map(|(_, bytes)| bytes).collect();
    let mut understood = 0;
    fuzz::run(1, 20_000, &frames, |_, bytes| {
        understood += usize::from(check_message(bytes));
    });
    assert!(understood > 200, "{understood}: changes that nothing survives test little");
    // The same as bodies of frames, of which some lengths lie.
    let framed = |body: &Vec<u8>| {
        let length = u32::try_from(body.len()).unwrap();
        [&length.to_le_bytes()[..], body].concat()
    };
    let framed: Vec<Vec<u8>> = frames.iter().map(framed).collect();
    fuzz::run(2, 5_000, &framed, |_, bytes| check_frame(bytes));
    let tickets: Vec<Vec<u8>> = kept("ticket").into_iter().map(|(_, bytes)| bytes).collect();
    fuzz::run(3, 10_000, &tickets, |_, bytes| {
        check_ticket(bytes);
    });
}

#[test]
fn an_announced_length_reserves_little() {
    let mut bytes = u32::try_from(MAX_FRAME).unwrap().to_le_bytes().to_vec();
    bytes.push(1);
    let read = async { read_frame(&mut &bytes[..], MAX_FRAME).await };
    let runtime = runtime();
    let (result, held) = most_held(|| runtime.block_on(read));
    assert!(matches!(result, Err(FrameError::CutShort)), "{result:?}");
    assert!(held <= 4 * bytes.len() + FIRST_STEP, "{held}");
}

#[test]
#[ignore = "writes the corpus"]
fn write_the_corpus() {
    let config = Config {
        voters: BTreeSet::from([RaftId(1), RaftId(2)]),
        learners: BTreeSet::from([RaftId(3)]),
        ..Config::default()
    };
    let batch = Payload::Batch { time: Time(5), bytes: vec![1, 2, 3] };
    let change = Payload::Config(ConfigChange::Seats(vec![Seat::Voter(RaftId(4))]));
    let entries = [Payload::Empty, batch, change, Payload::Config(ConfigChange::Leave)];
    let entries = entries.map(|payload| Entry { term: 1, index: 1, payload }).to_vec();
    let reject = Some(Reject { hint_index: 1, hint_term: 2 });
    let bodies = [
        Body::Append { prev_index: 1, prev_term: 1, commit: 1, entries },
        Body::AppendReply { index: 4, commit: 2, reject },
        Body::Heartbeat { commit: 9, read: Some(1) },
        Body::Snapshot(Snapshot { index: 1, term: 1, config, data: vec![9; 64] }),
        Body::TimeoutNow,
        Body::Forward { batch: vec![1; 16] },
    ];
    fs::create_dir_all(corpus("frame")).unwrap();
    for body in bodies {
        let name = format!("good-{}", body.name());
        let bytes = encode(&sample(body)).unwrap();
        fs::write(corpus("frame").join(name), bytes).unwrap();
    }
    // The length of the entries, and of the batch, are lies.
    let append = Body::Append { prev_index: 1, prev_term: 1, commit: 1, entries: Vec::new() };
    let mut huge = encode(&sample(append)).unwrap();
    let end = huge.len();
    huge[end - 8..].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(corpus("frame").join("bad-endless-entries"), &huge).unwrap();
    huge[end - 8..].copy_from_slice(&20u64.to_le_bytes());
    fs::write(corpus("frame").join("bad-missing-entries"), &huge).unwrap();
    let mut forward = encode(&sample(Body::Forward { batch: vec![] })).unwrap();
    let end = forward.len();
    forward[end - 8..].copy_from_slice(&(1u64 << 40).to_le_bytes());
    fs::write(corpus("frame").join("bad-endless-batch"), &forward).unwrap();
    let mut unknown = encode(&sample(Body::TimeoutNow)).unwrap();
    let end = unknown.len();
    unknown[end - 4..].copy_from_slice(&99u32.to_le_bytes());
    fs::write(corpus("frame").join("bad-unknown-body"), &unknown).unwrap();
    fs::write(corpus("frame").join("bad-empty"), []).unwrap();
    fs::write(corpus("frame").join("bad-other-form"), [2, 0, 0]).unwrap();
    fs::write(corpus("frame").join("bad-announced-4-gib"), [0xff; 12]).unwrap();

    let meet = Meet {
        node: NodeId([4; 32]),
        addresses: vec!["10.0.0.1:6374".parse().unwrap(), "[fd00::1]:6374".parse().unwrap()],
    };
    let ticket = Ticket {
        mesh: MeshId([1; 32]),
        party: PartyId([2; 32]),
        kind: Kind::Member,
        expires: Time(1_800_000_000_000),
        uses: 1,
        seed: [3; 32],
        meet: vec![meet],
    };
    let text = ticket.to_string();
    fs::create_dir_all(corpus("ticket")).unwrap();
    fs::write(corpus("ticket").join("good-plain"), &text).unwrap();
    fs::write(corpus("ticket").join("good-upper-case"), format!(" {}\n", text.to_uppercase()))
        .unwrap();
    fs::write(corpus("ticket").join("bad-cut-off"), &text[..text.len() - 9]).unwrap();
    fs::write(corpus("ticket").join("bad-two-parts"), text.rsplit_once('-').unwrap().0).unwrap();
    fs::write(corpus("ticket").join("bad-newer"), text.replace("mesh1", "mesh2")).unwrap();
    fs::write(corpus("ticket").join("bad-empty"), "").unwrap();
    fs::write(corpus("ticket").join("bad-dashes"), "-".repeat(1000)).unwrap();
}
