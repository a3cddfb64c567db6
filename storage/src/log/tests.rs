//! The log against a model of it: through crashes, faults and damage.

mod asked;
mod crash;
mod damage;
#[cfg(feature = "planted")]
mod planted;

use std::collections::BTreeMap;
use std::error::Error;

use mesh_consensus::id::{MeshId, NodeId, RaftId};
use mesh_consensus::log::{Config, Payload};
use mesh_consensus::time::Time;
use redb::ReadableTable as _;

use super::*;
use crate::disk::RealDisk;
use crate::mem::MemDisk;

const NAME: &str = "log.redb";

fn identity() -> Identity {
    Identity { mesh: MeshId([1; 32]), epoch: 3, node: NodeId([2; 32]), raft_id: RaftId(9) }
}

fn snapshot(index: u64, term: u64, size: usize) -> Snapshot {
    let voters = [RaftId(1), RaftId(index)].into();
    let data = vec![index as u8; size];
    Snapshot { index, term, config: Config { voters, ..Config::default() }, data }
}

fn entry(index: u64, term: u64, size: usize) -> Entry {
    let bytes = vec![(index * 7 + term) as u8; size];
    Entry { term, index, payload: Payload::Batch { time: Time(index), bytes } }
}

fn mem(seed: u64) -> MemDisk {
    MemDisk::new(fastrand::Rng::with_seed(seed))
}

fn create(disk: &dyn Disk) -> RedbLog {
    let genesis = snapshot(1, 1, 100);
    RedbLog::create(disk, NAME, identity(), Some(&genesis), LogSettings::default()).unwrap()
}

fn open(disk: &dyn Disk) -> Result<RedbLog, OpenError> {
    RedbLog::open(disk, NAME, LogSettings::default())
}

fn append(log: &mut RedbLog, count: u64) -> Result<(), LogError> {
    let first = log.last_index() + 1;
    let term = log.hard_state().term;
    let entries: Vec<Entry> = (first..first + count).map(|i| entry(i, term, 200)).collect();
    let hard_state = HardState { commit: first - 1, ..log.hard_state() };
    log.write(&Write { entries: &entries, hard_state, ..Write::default() })
}

/// All that a log can be asked.
#[derive(Clone, PartialEq)]
struct State {
    hard_state: HardState,
    snapshot: Option<Snapshot>,
    floor: Place,
    entries: BTreeMap<u64, Entry>,
}

impl State {
    fn of(log: &RedbLog) -> Self {
        let (first, last) = (log.first_index(), log.last_index());
        assert_eq!(log.identity(), identity());
        let entries = log.entries(first, last + 1, u64::MAX).unwrap();
        assert_eq!(entries.len() as u64, last + 1 - first);
        for entry in &entries {
            assert_eq!(log.term(entry.index).unwrap(), Some(entry.term));
        }
        assert_eq!(log.term(last + 1).unwrap(), None);
        if first > 1 {
            assert_eq!(log.term(first - 2).unwrap(), None);
        }
        Self {
            hard_state: log.hard_state(),
            snapshot: log.snapshot().unwrap(),
            floor: Place { index: first - 1, term: log.term(first - 1).unwrap().unwrap() },
            entries: entries.into_iter().map(|entry| (entry.index, entry)).collect(),
        }
    }

    fn last(&self) -> Place {
        let last = self.entries.last_key_value();
        last.map_or(self.floor, |(index, entry)| Place { index: *index, term: entry.term })
    }

    fn place(&self, index: u64) -> Place {
        self.entries.get(&index).map_or(self.floor, |entry| Place { index, term: entry.term })
    }

    fn after(&self, step: &Step) -> Self {
        let mut next = self.clone();
        if let Some(snapshot) = &step.install {
            next.entries.clear();
            next.floor = Place::of(snapshot);
            next.snapshot = Some(snapshot.clone());
        }
        if let Some(first) = step.entries.first() {
            next.entries.split_off(&first.index);
        }
        next.entries.extend(step.entries.iter().map(|entry| (entry.index, entry.clone())));
        if let Some((snapshot, stays)) = &step.compact {
            next.floor = next.place(stays - 1);
            next.entries = next.entries.split_off(stays);
            next.snapshot = Some(snapshot.clone());
        }
        next.hard_state = step.hard_state;
        next
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hard_state, snapshot, floor, entries } = self;
        let at = snapshot.as_ref().map(Place::of);
        let terms: Vec<u64> = entries.values().map(|entry| entry.term).collect();
        write!(f, "{hard_state:?}, snapshot at {at:?}, after {floor:?} the terms {terms:?}")
    }
}

/// A [`Write`] that owns what it writes.
#[derive(Debug, Default)]
struct Step {
    install: Option<Snapshot>,
    entries: Vec<Entry>,
    hard_state: HardState,
    compact: Option<(Snapshot, u64)>,
}

impl Step {
    /// What a voter might do next.
    fn random(state: &State, rng: &mut fastrand::Rng) -> Self {
        let mut step = Step { hard_state: state.hard_state, ..Step::default() };
        if rng.u8(..4) == 0 {
            step.hard_state.term += 1;
            step.hard_state.vote = rng.bool().then(|| RaftId(rng.u64(1..5)));
        }
        let mut from = state.clone();
        if rng.u8(..12) == 0 {
            let index = state.last().index.max(state.hard_state.commit) + rng.u64(1..20);
            let installed = snapshot(index, step.hard_state.term, size(rng, 20_000));
            step.hard_state.commit = index;
            step.install = Some(installed);
            from = state.after(&step);
        }
        if rng.u8(..4) > 0 {
            // Now and then a new leader replaces the end of the log.
            let keep = match rng.u8(..5) {
                0 => rng.u64(from.hard_state.commit.max(from.floor.index)..=from.last().index),
                _ => from.last().index,
            };
            let mut term = from.place(keep).term;
            for index in keep + 1..=keep + rng.u64(1..8) {
                term = rng.u64(term..=step.hard_state.term);
                step.entries.push(entry(index, term, size(rng, 3000)));
            }
            from = state.after(&step);
        }
        step.hard_state.commit =
            rng.u64(step.hard_state.commit..=from.last().index.max(step.hard_state.commit));
        if rng.u8(..6) == 0 && step.hard_state.commit > from.floor.index {
            let old = from.snapshot.as_ref().map_or(1, |old| old.index);
            let at = from.place(rng.u64(old..=step.hard_state.commit));
            let stays = rng.u64(from.floor.index + 1..=at.index + 1);
            step.compact = Some((snapshot(at.index, at.term, size(rng, 5000)), stays));
        }
        step
    }

    fn write(&self, log: &mut RedbLog) -> Result<(), LogError> {
        log.write(&Write {
            install: self.install.as_ref(),
            entries: &self.entries,
            hard_state: self.hard_state,
            compact: self.compact.as_ref().map(|(snapshot, stays)| (snapshot, *stays)),
        })
    }
}

fn size(rng: &mut fastrand::Rng, most: usize) -> usize {
    // Mostly small, as entries are.
    let most = if rng.u8(..8) == 0 { most } else { 300 };
    rng.usize(..most)
}

fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error: &&dyn Error| (*error).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Random steps, with a restart now and then, give what the model gives.
fn follows_the_model(disk: &dyn Disk, rng: &mut fastrand::Rng, steps: usize) {
    let mut log = create(disk);
    let mut state = State::of(&log);
    assert_eq!(state.hard_state, HardState { term: 1, vote: None, commit: 1 });
    for i in 0..steps {
        let step = Step::random(&state, rng);
        step.write(&mut log).unwrap_or_else(|error| panic!("{}: {step:?}", chain(&error)));
        state = state.after(&step);
        assert_eq!(State::of(&log), state, "after step {i}");
        if rng.u8(..10) == 0 {
            drop(log);
            log = open(disk).unwrap();
            assert_eq!(State::of(&log), state, "reopened after step {i}");
        }
    }
}

#[test]
fn a_log_in_memory_follows_the_model() {
    for seed in 0..20 {
        follows_the_model(&mem(seed), &mut fastrand::Rng::with_seed(seed), 60);
    }
}

#[test]
fn a_log_on_a_real_disk_follows_the_model() {
    for seed in 100..102 {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        follows_the_model(&disk, &mut fastrand::Rng::with_seed(seed), 30);
    }
}
