//! Making a log, and deciding whether to believe one that is found.
//!
//! A log is made under another name and gets its own when it is complete, so that no crash leaves
//! half of one behind. A log that is found is examined from end to end before anything is written
//! to it: see `backend.rs`.

use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use mesh_consensus::log::{Entry, HardState, Identity, Snapshot};
use mesh_consensus::machine::Halt;
use redb::{Database, ReadableDatabase as _, TableError};

use super::backend::Backend;
use super::head::{Head, Place, decode, encode};
use super::recent::Recent;
use super::tail::Tail;
use super::{
    ENTRIES, FORMAT, HEAD, IDENTITY, KNOWN_FORMAT, LogSettings, META, RECENT, RedbLog, SNAPSHOT,
};
use crate::disk::Disk;

/// A log could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// There is one already.
    #[error("there is a log {name} already")]
    Exists {
        /// The file.
        name: String,
    },
    /// A mesh cannot begin with this snapshot.
    #[error("the first snapshot is not one to begin with: {what}")]
    Genesis {
        /// What is wrong with it.
        what: String,
    },
    /// The disk or redb failed.
    #[error("could not make log {name}")]
    Write {
        /// The file.
        name: String,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A log was found that cannot be used. Its file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error("there is no log {name}")]
    Missing {
        /// The file.
        name: String,
    },
    /// Somebody else has it open.
    #[error("log {name} is held by another process")]
    Held {
        /// The file.
        name: String,
    },
    /// The file holds something else.
    #[error("{name} is not a log of mesh")]
    Foreign {
        /// The file.
        name: String,
    },
    /// A later mesh wrote it.
    #[error("log {name} has format {found}, and this version of mesh knows {known}")]
    Newer {
        /// The file.
        name: String,
        /// Its format.
        found: u32,
        /// The latest that this version knows.
        known: u32,
    },
    /// Bytes have changed since they were written, or are gone.
    #[error("log {name} is damaged: {what}")]
    Damaged {
        /// The file.
        name: String,
        /// What was found.
        what: String,
    },
    /// Every byte is as it was written, and yet it cannot be true.
    #[error("log {name} contradicts itself: {what}")]
    Inconsistent {
        /// The file.
        name: String,
        /// What was found.
        what: String,
    },
    /// It is in order, but its owner cannot go on from it.
    #[error("log {name} cannot be used here")]
    Unusable {
        /// The file.
        name: String,
        /// Why.
        source: Halt,
    },
    /// The disk failed.
    #[error("could not read or write log {name}")]
    Io {
        /// The file.
        name: String,
        /// What went wrong.
        source: io::Error,
    },
}

impl OpenError {
    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            OpenError::Missing { .. } => {
                "check the directory, or make this machine a member with mesh init or mesh join"
            }
            OpenError::Held { .. } => "stop the other node first: mesh down",
            OpenError::Foreign { .. } => {
                "check the directory; if the file was a node's log and is damaged, mesh up --rejoin takes a new seat"
            }
            OpenError::Newer { .. } => {
                "install the version of mesh that last ran here, or a later one"
            }
            OpenError::Damaged { .. } | OpenError::Inconsistent { .. } => {
                "check the disk, move the directory aside and join again: the mesh has the rest"
            }
            OpenError::Unusable { source, .. } => source.hint(),
            OpenError::Io { .. } => "check the disk and the permissions of the directory",
        }
    }
}

/// What is wrong with a log, before its name is put to it.
#[derive(Debug)]
enum Fault {
    Foreign,
    Newer(u32),
    Damaged(String),
    Inconsistent(String),
    Io(io::Error),
}

impl Fault {
    fn of(self, name: &str) -> OpenError {
        let name = name.to_owned();
        match self {
            Fault::Foreign => OpenError::Foreign { name },
            Fault::Newer(found) => OpenError::Newer { name, found, known: KNOWN_FORMAT },
            Fault::Damaged(what) => OpenError::Damaged { name, what },
            Fault::Inconsistent(what) => OpenError::Inconsistent { name, what },
            Fault::Io(source) if source.kind() == io::ErrorKind::ResourceBusy => {
                OpenError::Held { name }
            }
            Fault::Io(source) => OpenError::Io { name, source },
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Damaged("it ends too early".into()),
            io::ErrorKind::InvalidData => Fault::Damaged(error.to_string()),
            _ => Fault::Io(error),
        }
    }
}

impl From<redb::Error> for Fault {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => error.into(),
            redb::Error::TableDoesNotExist(_) => Fault::Foreign,
            other => Fault::Damaged(other.to_string()),
        }
    }
}

macro_rules! fault_from {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for Fault {
            fn from(error: redb::$error) -> Self {
                redb::Error::from(error).into()
            }
        })*
    };
}
fault_from!(DatabaseError, TransactionError, TableError, StorageError);

/// What was found in a log that is in order.
struct Found {
    identity: Identity,
    snapshot: Option<Snapshot>,
    head: Head,
    tail: Tail,
    recent: Recent,
}

pub(super) fn create(
    disk: &dyn Disk,
    name: &str,
    identity: Identity,
    genesis: Option<&Snapshot>,
    settings: LogSettings,
) -> Result<RedbLog, CreateError> {
    let failed = |source| CreateError::Write { name: name.to_owned(), source };
    if disk.exists(name).map_err(|error| failed(error.into()))? {
        return Err(CreateError::Exists { name: name.to_owned() });
    }
    let at = genesis.map_or_else(Place::default, Place::of);
    let head = Head {
        seq: 1,
        hard_state: HardState { term: at.term, vote: None, commit: at.index },
        floor: at,
        last: at,
        snapshot: genesis.map(Place::of),
    };
    head.check().map_err(|what| CreateError::Genesis { what })?;
    fill(disk, name, identity, genesis, head, settings).map_err(failed)
}

fn fill(
    disk: &dyn Disk,
    name: &str,
    identity: Identity,
    genesis: Option<&Snapshot>,
    head: Head,
    settings: LogSettings,
) -> Result<RedbLog, Box<dyn std::error::Error + Send + Sync>> {
    let unfinished = format!("{name}.new");
    if disk.exists(&unfinished)? {
        disk.remove(&unfinished)?;
    }
    let backend = Backend::direct(disk.open(&unfinished)?, settings.planted);
    let db = Database::builder()
        .set_cache_size(settings.cache_bytes)
        .create_with_backend(backend.clone())?;
    let txn = db.begin_write()?;
    {
        let mut meta = txn.open_table(META)?;
        meta.insert(FORMAT, &*encode(FORMAT.as_bytes(), &KNOWN_FORMAT)?)?;
        meta.insert(IDENTITY, &*encode(IDENTITY.as_bytes(), &identity)?)?;
        if let Some(snapshot) = genesis {
            meta.insert(SNAPSHOT, &*encode(SNAPSHOT.as_bytes(), snapshot)?)?;
        }
        // All tables are there from the start, so that one that is missing is a damage.
        txn.open_table(ENTRIES)?;
        txn.open_table(RECENT)?.insert(HEAD, &*encode(&HEAD.to_le_bytes(), &head)?)?;
    }
    txn.commit()?;
    backend.acknowledge(head.seq)?;
    disk.rename(&unfinished, name)?;
    let recent = Recent::after(head.last.index);
    Ok(RedbLog::new(db, backend, identity, head, Tail::default(), recent, settings.planted))
}

pub(super) fn open(
    disk: &dyn Disk,
    name: &str,
    settings: LogSettings,
    usable: impl FnOnce(&Identity, &Snapshot) -> Result<(), Halt>,
) -> Result<RedbLog, OpenError> {
    let fault = |fault: Fault| fault.of(name);
    if !disk.exists(name).map_err(|error| fault(error.into()))? {
        return Err(OpenError::Missing { name: name.to_owned() });
    }
    let file = disk.open(name).map_err(|error| fault(Fault::Io(error)))?;
    let backend = Backend::on_trial(file, settings.planted).map_err(|error| fault(error.into()))?;
    // redb answers some damage with a panic. Nothing of ours is shared with what it left behind.
    let examined =
        quietly(|| panic::catch_unwind(AssertUnwindSafe(|| examine(&backend, settings))));
    let (db, found) = match examined {
        Ok(outcome) => outcome.map_err(fault)?,
        Err(cause) => return Err(fault(Fault::Damaged(said(&*cause)))),
    };
    if let Some(snapshot) = &found.snapshot {
        usable(&found.identity, snapshot)
            .map_err(|source| OpenError::Unusable { name: name.to_owned(), source })?;
    }
    backend
        .accept()
        .and_then(|()| backend.acknowledge(found.head.seq))
        .map_err(|error| fault(Fault::Io(error)))?;
    let Found { identity, head, tail, recent, .. } = found;
    Ok(RedbLog::new(db, backend, identity, head, tail, recent, settings.planted))
}

/// Lets redb open the file, and then reads all of it.
fn examine(backend: &Backend, settings: LogSettings) -> Result<(Database, Found), Fault> {
    if !backend.looks_like_redb()? {
        return Err(Fault::Foreign);
    }
    let repaired = Arc::new(AtomicBool::new(false));
    let mut builder = Database::builder();
    builder.set_cache_size(settings.cache_bytes);
    builder.set_repair_callback({
        let repaired = repaired.clone();
        move |_| repaired.store(true, Ordering::Relaxed)
    });
    let mut db = builder.create_with_backend(backend.clone())?;
    // A repair has verified every page already. A file that was closed properly has nothing to
    // repair, so there any finding is damage.
    if !repaired.load(Ordering::Relaxed) && !db.check_integrity()? {
        return Err(Fault::Damaged("redb found errors in it".into()));
    }
    let found = read_all(&db)?;
    match backend.acknowledged()? {
        None => Err(Fault::Damaged("the note of its last write is unreadable".into())),
        Some(seq) if seq > found.head.seq => Err(Fault::Damaged(format!(
            "write {seq} was acknowledged, but only {} are left",
            found.head.seq
        ))),
        Some(_) => Ok((db, found)),
    }
}

fn read_all(db: &Database) -> Result<Found, Fault> {
    let txn = db.begin_read()?;
    let meta = txn.open_table(META)?;
    let record = |key: &'static str| meta.get(key);
    let damaged = |what: &str| Fault::Damaged(format!("its {what} is unreadable"));
    let bytes = record(FORMAT)?.ok_or(Fault::Foreign)?;
    let format: u32 = decode(FORMAT.as_bytes(), bytes.value()).ok_or_else(|| damaged("format"))?;
    if format > KNOWN_FORMAT {
        return Err(Fault::Newer(format));
    }
    let bytes = record(IDENTITY)?.ok_or_else(|| damaged("identity"))?;
    let identity = decode(IDENTITY.as_bytes(), bytes.value()).ok_or_else(|| damaged("identity"))?;
    let stored = match record(SNAPSHOT)? {
        None => None,
        Some(bytes) => {
            let read = decode::<Snapshot>(SNAPSHOT.as_bytes(), bytes.value());
            Some(read.ok_or_else(|| damaged("snapshot"))?)
        }
    };
    let snapshot = stored.as_ref().map(Place::of);
    let table = |definition| match txn.open_table(definition) {
        Err(TableError::TableDoesNotExist(name)) => {
            Err(Fault::Damaged(format!("its table of {name} is gone")))
        }
        other => other.map_err(Fault::from),
    };
    let (entries, recents) = (table(ENTRIES)?, table(RECENT)?);
    let bytes = recents.get(HEAD)?.ok_or_else(|| damaged("head"))?;
    let head: Head = decode(&HEAD.to_le_bytes(), bytes.value()).ok_or_else(|| damaged("head"))?;
    head.check().map_err(Fault::Inconsistent)?;
    if snapshot != head.snapshot {
        return Err(Fault::Inconsistent("the snapshot is not the one it speaks of".into()));
    }
    let mut tail = Tail::default();
    let mut last = head.floor;
    let old = entries.range::<u64>(..)?.map(|item| (item, false));
    let new = recents.range(..HEAD)?.map(|item| (item, true));
    let mut recent = Recent::after(head.floor.index);
    for (item, is_recent) in old.chain(new) {
        let (index, bytes) = item?;
        let (index, bytes) = (index.value(), bytes.value());
        if is_recent {
            recent.found(bytes);
        } else {
            recent = Recent::after(index);
        }
        let entry: Entry = decode(&index.to_le_bytes(), bytes)
            .filter(|entry: &Entry| entry.index == index)
            .ok_or_else(|| Fault::Damaged(format!("entry {index} is unreadable")))?;
        if index != last.index + 1 || entry.term < last.term {
            return Err(Fault::Inconsistent(format!(
                "entry {index} of term {} follows entry {} of term {}",
                entry.term, last.index, last.term
            )));
        }
        last = Place { index, term: entry.term };
        if snapshot.is_some_and(|at| at.index == index && at != last) {
            return Err(Fault::Inconsistent(format!(
                "entry {index} and the snapshot there are of different terms"
            )));
        }
        tail.push(entry, bytes.len() as u64);
    }
    if last != head.last {
        return Err(Fault::Inconsistent(format!(
            "its entries end at {}, not at {}",
            last.index, head.last.index
        )));
    }
    Ok(Found { identity, snapshot: stored, head, tail, recent })
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of this thread from being printed while `act` runs: they are caught and reported
/// as an error.
fn quietly<T>(act: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let result = act();
    QUIET.set(false);
    result
}

/// The first line of what a panic said.
fn said(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().copied();
    let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    let line = text.and_then(|text| text.lines().next()).unwrap_or("no reason given");
    format!("redb gave up on it ({line})")
}
