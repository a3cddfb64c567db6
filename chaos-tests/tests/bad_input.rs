//! What a node finds in its directory and cannot use: it says what that is and what to do about it,
//! and leaves the file as it was.
//!
//! A log of a newer *format* needs somebody who can write one: see `storage/src/log/tests/damage.rs`.
//! What a newer mesh writes into a log of today's format is here.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::fs;
use std::path::{Path, PathBuf};

use mesh_chaos_tests::genesis::{BEGINNING, Genesis, grown, node_id, node_key};
use mesh_consensus::command::Batch;
use mesh_consensus::driver::{Driver, Outbox, Settings, Stop};
use mesh_consensus::id::{MeshId, NodeId};
use mesh_consensus::log::{Entry, HardState, Identity, Log, Payload, Snapshot, Write};
use mesh_consensus::machine::Halt;
use mesh_consensus::message::Message;
use mesh_consensus::replica::Replica;
use mesh_node::state::State;
use mesh_node::state::command::{Act, RaiseLevel, Report};
use mesh_node::state::level::LEVEL;
use mesh_storage::disk::RealDisk;
use mesh_storage::log::{LogSettings, OpenError, RedbLog};

const FILE: &str = "state.redb";
const ENTRIES: u64 = 30;
/// In every batch of [`sound`], so that it can be found in the file.
const NEEDLE: &[u8] = b"needle in the haystack";

const JOIN_AGAIN: &str =
    "check the disk, move the directory aside and join again: the mesh has the rest";
const NOT_OURS: &str = "check the directory; if the file was a node's log and is damaged, mesh up --rejoin takes a new seat";

/// A directory of the real disk, removed at the end.
struct Dir {
    root: PathBuf,
    disk: RealDisk,
}

impl Dir {
    fn new(test: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("mesh-bad-input-{}-{test}", std::process::id()));
        // Left over from a process that had the same number and was killed.
        let _ = fs::remove_dir_all(&root);
        let disk = RealDisk::open(&root).unwrap();
        Self { root, disk }
    }

    fn file(&self) -> PathBuf {
        self.root.join(FILE)
    }

    fn open(&self) -> Result<RedbLog, OpenError> {
        RedbLog::open(&self.disk, FILE, LogSettings::default())
    }

    /// Opening the log is refused, and everything in the directory is as it was.
    fn refuses(&self) -> OpenError {
        let before = listing(&self.root);
        let error = match self.open() {
            Err(error) => error,
            Ok(log) => panic!("it was taken for a log: {log:?}"),
        };
        assert!(listing(&self.root) == before, "after {error}, the file is not as it was");
        error
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// All files and their bytes.
fn listing(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = (fs::read_dir(root).unwrap())
        .map(|file| file.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

fn me() -> NodeId {
    node_id(&node_key(0))
}

fn identity(mesh: MeshId, epoch: u32, genesis: &Genesis) -> Identity {
    Identity { mesh, epoch, node: me(), raft_id: genesis.seats[0] }
}

fn make(dir: &Dir, identity: Identity, snapshot: &Snapshot) -> RedbLog {
    RedbLog::create(&dir.disk, FILE, identity, Some(snapshot), LogSettings::default()).unwrap()
}

/// Makes a log in which nothing is wrong, and closes it.
fn sound(dir: &Dir) -> Genesis {
    let genesis = grown(3, 1, 3, 0, LEVEL);
    let mut log = make(dir, identity(genesis.mesh, 0, &genesis), &genesis.snapshot);
    let first = log.last_index() + 1;
    for index in first..first + ENTRIES {
        let payload = Payload::Batch { time: BEGINNING, bytes: NEEDLE.to_vec() };
        let entries = [Entry { term: 1, index, payload }];
        let hard_state = HardState { commit: index, ..log.hard_state() };
        log.write(&Write { entries: &entries, hard_state, ..Write::default() }).unwrap();
    }
    genesis
}

/// Flips a bit in every copy of `needle`, and says how many there were.
fn flip(bytes: &mut [u8], needle: &[u8]) -> usize {
    let starts: Vec<usize> = (0..bytes.len().saturating_sub(needle.len()))
        .filter(|at| bytes[*at..].starts_with(needle))
        .collect();
    for start in &starts {
        bytes[start + needle.len() / 2] ^= 4;
    }
    starts.len()
}

fn is_damaged(error: &OpenError) -> bool {
    error.to_string().starts_with("log state.redb is damaged: ") && error.hint() == JOIN_AGAIN
}

#[test]
fn a_changed_bit_is_found_wherever_it_matters() {
    let dir = Dir::new("bit");
    let genesis = sound(&dir);
    let whole = fs::read(dir.file()).unwrap();
    let in_snapshot = &genesis.snapshot.data[100..132];
    for needle in [NEEDLE, &genesis.mesh.0, &me().0, in_snapshot, b"identity", b"redb\x1A"] {
        let mut bytes = whole.clone();
        assert!(flip(&mut bytes, needle) > 0, "{needle:?} is not in the file");
        fs::write(dir.file(), &bytes).unwrap();
        let error = dir.refuses();
        let foreign = error.to_string() == "state.redb is not a log of mesh";
        assert!(
            is_damaged(&error) || foreign && error.hint() == NOT_OURS,
            "{needle:?}: {error}: {}",
            error.hint()
        );
    }
    // Put back as it was, it is as good as before.
    fs::write(dir.file(), &whole).unwrap();
    assert_eq!(dir.open().unwrap().last_index(), genesis.snapshot.index + ENTRIES);
}

#[test]
fn a_truncated_log_is_refused() {
    let dir = Dir::new("cut");
    sound(&dir);
    let whole = fs::read(dir.file()).unwrap();
    for len in [100, 4096, 4097, 8192, 20_000, whole.len() / 2, whole.len() - 4096, whole.len() - 1]
    {
        fs::write(dir.file(), &whole[..len]).unwrap();
        let error = dir.refuses();
        assert!(is_damaged(&error), "cut to {len}: {error}");
    }
}

#[test]
fn a_file_of_something_else_is_refused() {
    let dir = Dir::new("foreign");
    sound(&dir);
    let whole = fs::read(dir.file()).unwrap();
    for bytes in [&[][..], b"#!/bin/sh\n", &[0; 10_000], &whole[..5], &whole[1..]] {
        fs::write(dir.file(), bytes).unwrap();
        let error = dir.refuses();
        assert_eq!(error.to_string(), "state.redb is not a log of mesh");
        assert_eq!(error.hint(), NOT_OURS);
    }
}

#[test]
fn a_log_that_is_missing_or_held_is_neither_made_nor_touched() {
    let dir = Dir::new("held");
    let error = dir.refuses();
    assert_eq!(error.to_string(), "there is no log state.redb");
    assert!(error.hint().contains("mesh join"), "{}", error.hint());
    assert!(listing(&dir.root).is_empty());
    sound(&dir);
    let log = dir.open().unwrap();
    let error = dir.refuses();
    assert_eq!(error.to_string(), "log state.redb is held by another process");
    assert!(error.hint().contains("mesh down"), "{}", error.hint());
    drop(log);
    dir.open().unwrap();
}

struct Nobody;

impl Outbox for Nobody {
    fn send(&mut self, _: NodeId, _: Message) {}
}

/// Everything that a log holds.
fn contents(dir: &Dir) -> (Identity, HardState, Option<Snapshot>, Vec<Entry>) {
    let log = dir.open().unwrap();
    let entries = log.entries(log.first_index(), log.last_index() + 1, u64::MAX).unwrap();
    (log.identity(), log.hard_state(), log.snapshot().unwrap(), entries)
}

/// A node that supports levels up to `supports` opens the log, and refuses its snapshot: with what
/// it found and what to do, and with the file as it was.
fn refuses_snapshot(dir: &Dir, supports: u16) -> Halt {
    let before = listing(&dir.root);
    let usable = |identity: &Identity, snapshot: &Snapshot| {
        Replica::check(identity, snapshot, State::blank(supports))
    };
    let opened = RedbLog::open_for(&dir.disk, FILE, LogSettings::default(), usable);
    let error = match opened {
        Err(error) => error,
        Ok(log) => panic!("it was taken for a log of ours: {log:?}"),
    };
    assert!(listing(&dir.root) == before, "after {error}, the file is not as it was");
    let hint = error.hint();
    let OpenError::Unusable { source, .. } = error else { panic!("{error}") };
    assert_eq!(hint, source.hint());
    assert_eq!(source, refuses_to_run(dir, supports));
    source
}

/// Starts a node that supports levels up to `supports`; it must not get through its first turn.
///
/// The log as such is sound, so it was opened, of which redb keeps notes in the file. What it holds
/// is as it was.
fn refuses_to_run(dir: &Dir, supports: u16) -> Halt {
    let before = contents(dir);
    let started = Driver::open(dir.open().unwrap(), State::blank(supports), Settings::new(1));
    let stop = match started {
        Err(stop) => stop,
        Ok(mut driver) => driver.turn(BEGINNING, [], &mut Nobody).unwrap_err(),
    };
    let Stop::Halt(halt) = stop else { panic!("{stop}") };
    assert!(contents(dir) == before, "after {halt}, the log is not as it was");
    let files: Vec<PathBuf> = listing(&dir.root).into_iter().map(|(path, _)| path).collect();
    assert_eq!(files, [dir.file()]);
    halt
}

#[test]
fn a_snapshot_of_another_mesh_or_epoch_is_refused() {
    let ours = grown(3, 1, 3, 0, LEVEL);
    let theirs = grown(3, 1, 3, 0, LEVEL - 1);
    assert_ne!(ours.mesh, theirs.mesh);

    let dir = Dir::new("mesh");
    drop(make(&dir, identity(ours.mesh, 0, &ours), &theirs.snapshot));
    let halt = refuses_snapshot(&dir, LEVEL);
    let wanted = format!("the snapshot is of mesh {}", theirs.mesh.short());
    assert_eq!(halt.to_string(), format!("the stored state is damaged: {wanted}"));

    let dir = Dir::new("epoch");
    drop(make(&dir, identity(ours.mesh, 3, &ours), &ours.snapshot));
    let halt = refuses_snapshot(&dir, LEVEL);
    assert_eq!(halt.to_string(), "the stored state is damaged: the snapshot is of epoch 0");
}

const UNREADABLE: &str = "the stored state is damaged: the snapshot cannot be decoded";

#[test]
fn a_snapshot_that_cannot_be_read_is_refused() {
    let genesis = grown(3, 1, 3, 0, LEVEL);
    let data = &genesis.snapshot.data;
    let mut newer = data.clone();
    assert_eq!(newer[0], 1, "a snapshot begins with its format");
    newer[0] = 2;
    let longer = [data.as_slice(), &[0]].concat();
    let cases = [
        (newer, "the snapshot has format 2, and this version knows 1"),
        (data[..data.len() / 2].to_vec(), UNREADABLE),
        (longer, UNREADABLE),
        (Vec::new(), UNREADABLE),
    ];
    for (case, (data, wanted)) in cases.into_iter().enumerate() {
        let dir = Dir::new(&format!("snapshot-{case}"));
        let snapshot = Snapshot { data, ..genesis.snapshot.clone() };
        drop(make(&dir, identity(genesis.mesh, 0, &genesis), &snapshot));
        let halt = refuses_snapshot(&dir, LEVEL);
        assert_eq!(halt.to_string(), wanted);
    }
}

/// The mesh is at level 2, and the version to install is named.
fn assert_too_old(halt: &Halt) {
    let wanted = "the mesh is at level 2, and this version knows levels up to 1: \
                  mesh 0.1.0 or later is needed";
    assert_eq!(halt.to_string(), wanted);
    let Halt::TooOld { install, .. } = halt else { panic!("{halt}") };
    assert_eq!(install, "0.1.0");
}

#[test]
fn a_snapshot_of_a_newer_mesh_names_the_version_to_install() {
    let genesis = grown(3, 1, 3, 0, 2);
    let dir = Dir::new("level");
    drop(make(&dir, identity(genesis.mesh, 0, &genesis), &genesis.snapshot));
    assert_too_old(&refuses_snapshot(&dir, 1));
    // The version that is named can go on from there.
    Driver::open(dir.open().unwrap(), State::blank(2), Settings::new(1)).unwrap();
}

#[test]
fn entries_of_a_newer_mesh_name_the_version_to_install() {
    // One that is alone, so that it can raise the level by itself.
    let genesis = grown(1, 1, 1, 0, 1);
    let dir = Dir::new("raise");
    let mut log = make(&dir, identity(genesis.mesh, 0, &genesis), &genesis.snapshot);
    let acts = [Act::from(Report::assumed(2)), Act::from(RaiseLevel::to(2).unwrap())];
    let commands = acts.map(|act| act.command());
    let batch = Batch::sign(&node_key(0), genesis.mesh, 0, 1000, &commands).unwrap();
    let payload = Payload::Batch { time: BEGINNING, bytes: batch.as_bytes().to_vec() };
    let index = log.last_index() + 1;
    let entries = [Entry { term: 1, index, payload }];
    let hard_state = HardState { commit: index, ..log.hard_state() };
    log.write(&Write { entries: &entries, hard_state, ..Write::default() }).unwrap();
    drop(log);
    assert_too_old(&refuses_to_run(&dir, 1));
    let log = dir.open().unwrap();
    let mut driver = Driver::open(log, State::blank(2), Settings::new(1)).unwrap();
    driver.turn(BEGINNING, [], &mut Nobody).map(drop).unwrap();
    assert_eq!(driver.replica().machine().level().number, 2);
}
