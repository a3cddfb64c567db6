//! The durable [`Log`], on redb.
//!
//! A log is one file. [`Log::write`] is one transaction of redb and one sync: after a crash all of
//! it is there or none of it, and all of it if `write` had returned. Errors are final: after one,
//! the log takes no more writes.
//!
//! ```text
//!  table "recent"    n-9 … n    the newest entries         one page, so that a small write
//!                    2⁶⁴ − 1    the head: hard state,      touches no other of ours
//!                               first, last, snapshot at
//!  table "entries"   1 … n-10   what "recent" had no room for: moved in one go, in the same
//!                               transaction as the write that needed the room
//!  table "meta"      format · identity · snapshot          written rarely
//!  byte 512          the number of the last synced write   not redb's: see backend.rs
//! ```
//!
//! redb copies every page on the way from a change to its root, and each costs the sync some 15 µs
//! where the whole sync takes 100: so the everyday write stays away from the large tree.

mod backend;
mod head;
mod open;
mod recent;
mod tail;
#[cfg(test)]
mod tests;

use std::fmt;

use mesh_consensus::log::{Entry, HardState, Identity, Log, LogError, Snapshot, Write};
use mesh_consensus::machine::Halt;
use mesh_consensus::planted::{Bug, Planted};
use redb::{Database, ReadableDatabase as _, TableDefinition};

use self::backend::Backend;
use self::head::{Head, Place, decode, encode};
pub use self::open::{CreateError, OpenError};
use self::recent::Recent;
use self::tail::Tail;
use crate::disk::Disk;

const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const RECENT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("recent");
/// Where the head stands, after all recent entries.
const HEAD: u64 = u64::MAX;
const FORMAT: &str = "format";
const IDENTITY: &str = "identity";
const SNAPSHOT: &str = "snapshot";
/// Goes up when an older mesh would misread what a newer one writes.
const KNOWN_FORMAT: u32 = 1;

/// How a log is kept.
#[derive(Debug, Clone, Copy)]
pub struct LogSettings {
    /// How much of the file redb keeps in memory.
    pub cache_bytes: usize,
    /// A mistake to make on purpose: none, outside of chaos-tests.
    pub planted: Planted,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            // Writes touch the end of the log, which fits many times over; redb's default is 1 GiB.
            cache_bytes: 8 << 20,
            planted: Planted::default(),
        }
    }
}

/// A log in one file.
pub struct RedbLog {
    // Dropped first: redb says farewell to the file while it is still open and locked.
    db: Database,
    backend: Backend,
    identity: Identity,
    /// As on disk.
    head: Head,
    /// The last of what is on disk.
    tail: Tail,
    recent: Recent,
    /// Whether a write has failed. What is on disk is then anybody's guess.
    failed: bool,
    planted: Planted,
}

impl RedbLog {
    /// Makes a log in a new file, durably.
    ///
    /// A founder passes the mesh's first snapshot, at index 1 or above, which counts as committed.
    /// Whoever joins passes none, and waits for the leader's.
    pub fn create(
        disk: &dyn Disk,
        name: &str,
        identity: Identity,
        genesis: Option<&Snapshot>,
        settings: LogSettings,
    ) -> Result<Self, CreateError> {
        open::create(disk, name, identity, genesis, settings)
    }

    /// Opens a log that was made before, after a crash too.
    ///
    /// All of it is read and checked first. A log that is refused is left as it was, byte for byte.
    pub fn open(disk: &dyn Disk, name: &str, settings: LogSettings) -> Result<Self, OpenError> {
        open::open(disk, name, settings, |_, _| Ok(()))
    }

    /// As [`RedbLog::open`], for one who goes on from its snapshot: a log whose snapshot is not
    /// `usable` (of another mesh, say, or of a later version) is refused and left as it was, too.
    pub fn open_for(
        disk: &dyn Disk,
        name: &str,
        settings: LogSettings,
        usable: impl FnOnce(&Identity, &Snapshot) -> Result<(), Halt>,
    ) -> Result<Self, OpenError> {
        open::open(disk, name, settings, usable)
    }

    fn new(
        db: Database,
        backend: Backend,
        identity: Identity,
        head: Head,
        tail: Tail,
        recent: Recent,
        planted: Planted,
    ) -> Self {
        Self { db, backend, identity, head, tail, recent, failed: false, planted }
    }

    /// The head as it will be after `write`, or why there can be no such write.
    fn plan(&self, write: &Write<'_>) -> Result<Head, Failure> {
        let Write { install, entries, hard_state, compact } = *write;
        let committed = self.head.hard_state.commit;
        let mut next = Head { seq: self.head.seq + 1, hard_state, ..self.head };
        if let Some(snapshot) = install {
            let at = Place::of(snapshot);
            refuse_if(at.index < committed, || {
                format!("snapshot {} would forget entry {committed}, which is committed", at.index)
            })?;
            next = Head { floor: at, last: at, snapshot: Some(at), ..next };
        }
        if let Some(first) = entries.first() {
            let start = if install.is_some() { next.floor.index } else { committed };
            refuse_if(!(start + 1..=next.last.index + 1).contains(&first.index), || {
                format!(
                    "entry {} belongs into {} to {}",
                    first.index,
                    start + 1,
                    next.last.index + 1
                )
            })?;
            next.last = self.place_before(first.index, &next)?;
            for entry in entries {
                refuse_if(
                    entry.index != next.last.index + 1 || entry.term < next.last.term,
                    || {
                        format!(
                            "entry {} of term {} cannot follow entry {} of term {}",
                            entry.index, entry.term, next.last.index, next.last.term
                        )
                    },
                )?;
                next.last = Place { index: entry.index, term: entry.term };
            }
        }
        if let Some((snapshot, stays)) = compact {
            let at = Place::of(snapshot);
            refuse_if(next.snapshot.is_some_and(|old| at.index < old.index), || {
                format!("snapshot {} is older than the one it replaces", at.index)
            })?;
            refuse_if(!(next.floor.index + 1..=at.index + 1).contains(&stays), || {
                format!("{stays} cannot be the first to stay beside snapshot {}", at.index)
            })?;
            let held = self.planned_place(at.index, &next, entries)?;
            refuse_if(held != at, || {
                format!("snapshot {} is of term {}, its entry of {}", at.index, at.term, held.term)
            })?;
            let floor = self.planned_place(stays - 1, &next, entries)?;
            next = Head { floor, snapshot: Some(at), ..next };
        }
        next.check().map_err(Failure::Refused)?;
        Ok(next)
    }

    /// What stands before `index` in a log that ends as `next` says.
    fn place_before(&self, index: u64, next: &Head) -> Result<Place, Failure> {
        if index == next.last.index + 1 { Ok(next.last) } else { self.held_place(index - 1, next) }
    }

    /// What will stand at `index` after `entries` have been appended.
    fn planned_place(&self, index: u64, next: &Head, entries: &[Entry]) -> Result<Place, Failure> {
        match entries.iter().find(|entry| entry.index == index) {
            Some(entry) => Ok(Place { index, term: entry.term }),
            None => self.held_place(index, next),
        }
    }

    fn held_place(&self, index: u64, next: &Head) -> Result<Place, Failure> {
        if index == next.floor.index {
            return Ok(next.floor);
        }
        match self.look_up(index)? {
            Some(term) if index <= next.last.index => Ok(Place { index, term }),
            _ => Err(Failure::Refused(format!("entry {index} is not held"))),
        }
    }

    fn look_up(&self, index: u64) -> Result<Option<u64>, Failure> {
        let Head { floor, last, .. } = self.head;
        if !(floor.index..=last.index).contains(&index) {
            return Ok(None);
        }
        if let Some(place) = [floor, last].iter().find(|place| place.index == index) {
            return Ok(Some(place.term));
        }
        if let Some((entry, _)) = self.tail.get(index) {
            return Ok(Some(entry.term));
        }
        Ok(self.read_entries(index, index + 1, 0)?.first().map(|entry| entry.term))
    }

    /// Reads from redb.
    fn read_entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, Failure> {
        let txn = self.db.begin_read()?;
        let (old, recent) = (txn.open_table(ENTRIES)?, txn.open_table(RECENT)?);
        let mut entries = Vec::new();
        let mut bytes = 0;
        for (item, index) in old.range(low..high)?.chain(recent.range(low..high)?).zip(low..high) {
            let (key, value) = item?;
            bytes += value.value().len() as u64;
            if bytes > max_bytes && !entries.is_empty() {
                return Ok(entries);
            }
            let entry = decode(&key.value().to_le_bytes(), value.value())
                .filter(|entry: &Entry| key.value() == index && entry.index == index)
                .ok_or(Failure::Unreadable(index))?;
            entries.push(entry);
        }
        match high - low == entries.len() as u64 {
            true => Ok(entries),
            false => Err(Failure::Unreadable(low + entries.len() as u64)),
        }
    }

    fn commit(&mut self, write: &Write<'_>, next: Head) -> Result<(), Failure> {
        let Write { install, entries, hard_state: _, compact } = *write;
        let head = encode(&HEAD.to_le_bytes(), &next)?;
        if self.planted.has(Bug::SplitWrite) {
            // The mistake: what is committed gets ahead of what is held.
            let txn = self.db.begin_write()?;
            let first = Head { hard_state: next.hard_state, ..self.head };
            txn.open_table(RECENT)?.insert(HEAD, &*encode(&HEAD.to_le_bytes(), &first)?)?;
            txn.commit()?;
        }
        let mut new = Vec::with_capacity(entries.len());
        for entry in entries {
            new.push((entry.index, encode(&entry.index.to_le_bytes(), entry)?));
        }
        let txn = self.db.begin_write()?;
        let mut recent = self.recent;
        {
            let mut table = txn.open_table(RECENT)?;
            if install.is_some() {
                txn.delete_table(ENTRIES)?;
                // An install puts the table back, so that it always exists.
                txn.open_table(ENTRIES)?;
                table.retain_in(..HEAD, |_, _| false)?;
                recent = Recent::after(next.floor.index);
            }
            if let Some(first) = entries.first() {
                recent.replace(&txn, &mut table, first.index, &new)?;
            }
            if let Some((_, stays)) = compact {
                txn.open_table(ENTRIES)?.retain_in(..stays, |_, _| false)?;
                recent.forget(&mut table, stays)?;
            }
            table.insert(HEAD, &*head)?;
            if let Some(snapshot) = compact.map(|(own, _)| own).or(install) {
                let bytes = encode(SNAPSHOT.as_bytes(), snapshot)?;
                txn.open_table(META)?.insert(SNAPSHOT, &*bytes)?;
            }
        }
        txn.commit()?;
        self.backend.acknowledge(next.seq)?;

        self.head = next;
        self.recent = recent;
        if install.is_some() {
            self.tail.clear();
        }
        if let Some(first) = entries.first() {
            self.tail.truncate(first.index);
        }
        for (entry, (_, bytes)) in entries.iter().zip(new) {
            self.tail.push(entry.clone(), bytes.len() as u64);
        }
        self.tail.forget(next.floor.index + 1);
        Ok(())
    }
}

impl Log for RedbLog {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn hard_state(&self) -> HardState {
        self.head.hard_state
    }

    fn snapshot(&self) -> Result<Option<Snapshot>, LogError> {
        let read = || -> Result<Option<Snapshot>, Failure> {
            let table = self.db.begin_read()?.open_table(META)?;
            let Some(bytes) = table.get(SNAPSHOT)? else { return Ok(None) };
            decode(SNAPSHOT.as_bytes(), bytes.value()).ok_or(Failure::UnreadableSnapshot).map(Some)
        };
        read().map_err(while_it_was("reading its snapshot"))
    }

    fn first_index(&self) -> u64 {
        self.head.floor.index + 1
    }

    fn last_index(&self) -> u64 {
        self.head.last.index
    }

    fn term(&self, index: u64) -> Result<Option<u64>, LogError> {
        self.look_up(index).map_err(while_it_was("reading a term"))
    }

    fn entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, LogError> {
        let read = || {
            refuse_if(
                low < self.first_index() || high > self.last_index() + 1 || low > high,
                || format!("entries {low} to {high} are not all held"),
            )?;
            if low < high && self.tail.get(low).is_none() {
                return self.read_entries(low, high, max_bytes);
            }
            let mut bytes = 0;
            let fitting =
                (low..high).map_while(|index| self.tail.get(index)).take_while(|(_, size)| {
                    let is_first = bytes == 0;
                    bytes += size;
                    is_first || bytes <= max_bytes
                });
            Ok(fitting.map(|(entry, _)| entry.clone()).collect())
        };
        read().map_err(while_it_was("reading entries"))
    }

    fn write(&mut self, write: &Write<'_>) -> Result<(), LogError> {
        let result = if self.failed {
            Err(Failure::Earlier)
        } else {
            self.plan(write).and_then(|next| self.commit(write, next))
        };
        self.failed = result.is_err();
        result.map_err(while_it_was("writing"))
    }
}

impl fmt::Debug for RedbLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbLog")
            .field("identity", &self.identity)
            .field("head", &self.head)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// Why the log could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Refused(String),
    #[error("an earlier write failed, and what it left is unknown")]
    Earlier,
    #[error("entry {0} is unreadable")]
    Unreadable(u64),
    #[error("the snapshot is unreadable")]
    UnreadableSnapshot,
    #[error(transparent)]
    Database(Box<redb::Error>),
    #[error(transparent)]
    Disk(#[from] std::io::Error),
    #[error("a record cannot be spelled")]
    Encode(#[from] postcard::Error),
}

macro_rules! failure_from {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for Failure {
            fn from(error: redb::$error) -> Self {
                Failure::Database(Box::new(error.into()))
            }
        })*
    };
}
failure_from!(TransactionError, TableError, StorageError, CommitError);

fn refuse_if(refused: bool, why: impl FnOnce() -> String) -> Result<(), Failure> {
    if refused { Err(Failure::Refused(why())) } else { Ok(()) }
}

fn while_it_was(doing: &'static str) -> impl FnOnce(Failure) -> LogError {
    move |failure| LogError { doing, source: Box::new(failure) }
}
