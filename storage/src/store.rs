//! The object store: content by its hash, on one directory of the file system.
//!
//! ```text
//!  VERSION  lock  meta.redb
//!  objects/ab/<object id>      complete, 0444, never rewritten: its chunks hash to its name
//!  manifests/<hash>            complete, 0444, BLAKE3 of its bytes is its name
//!  manifests/<hash>.places     where its objects are, if they are files of the user
//!  partial/<object id>.data    some chunks of an object, and
//!  partial/<object id>.bits    which of them were on stable storage when this was written
//!  quarantine/  tmp/           what did not hash to its name, for a while; what nobody waits for after a start
//! ```
//!
//! Bytes are on stable storage before a name says so, names before the index does, and the objects of a manifest
//! before the manifest. The index (`meta.redb`) is a cache: without it the store reads its files again.
//! What only the index knows are pins and the order of use.
//!
//! Everything here blocks: the node calls it from threads that may. A [`Store`] is a handle, cheap to clone.
//! Which manifests should be here, and who may read them, is for others to decide.

mod claim;
mod fetch;
pub(crate) mod files;
pub(crate) mod index;
mod keep;
mod loaded;
mod objects;
pub(crate) mod open;
mod partial;
mod read;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use mesh_consensus::id::{Hash, ObjectId};

pub(crate) use self::claim::{Content, Finished};
pub use self::fetch::{Fetch, Wrote};
use self::files::Files;
use self::index::Index;
pub use self::keep::{Evicted, Held, Lease, Usage};
pub use self::loaded::{Loaded, Place};
pub use self::objects::Objects;
use self::partial::Partial;
pub use self::read::{Damage, Scrubbed, Verified};
use self::read::{Marks, Trust};
use crate::manifest::ManifestError;

/// A store of objects.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) files: Files,
    pub(crate) index: Index,
    /// Shared by those who give names to objects, from the rename to the commit; alone for those who
    /// take names away, from the commit to the last removal.
    names: RwLock<()>,
    /// One flush at a time, as two fetches may share an object.
    flush: Mutex<()>,
    /// Objects that are being fetched.
    partials: Mutex<BTreeMap<ObjectId, Weak<Partial>>>,
    trust: Mutex<Trust>,
    marks: Mutex<Marks>,
    /// Manifests that were used lately.
    loaded: Mutex<BTreeMap<Hash, Arc<Loaded>>>,
    next_lease: AtomicU64,
    /// See [`Store::losses`].
    losses: AtomicU64,
    /// Locked while the store is open.
    lock: Mutex<Option<File>>,
}

/// Why the store cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error("the store at {} is in use by another process", path.display())]
    Busy {
        /// Where it is.
        path: PathBuf,
    },
    /// A newer mesh wrote it.
    #[error(
        "the store is of format {found}; this version of mesh knows {known} and older: use the newer mesh"
    )]
    Newer {
        /// What stands in `VERSION`.
        found: String,
        /// What we know.
        known: u32,
    },
    /// The disk is full. Whatever was written stays, and can be gone on from.
    #[error("no room left on the disk for {}", path.display())]
    NoSpace {
        /// What was being written.
        path: PathBuf,
        /// As the system says it.
        source: io::Error,
    },
    /// The file system refused.
    #[error("could not use {}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// As the system says it.
        source: io::Error,
    },
    /// The index failed.
    #[error("the index of the store failed")]
    Index(#[source] Box<redb::Error>),
    /// Not a manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifest is another than the one that was asked for.
    #[error("the manifest hashes to {found}, not to {want}")]
    WrongManifest {
        /// Asked for.
        want: Hash,
        /// Got.
        found: Hash,
    },
    /// The bytes are not those of the chunk.
    #[error("the bytes are not those of chunk {number}: they hash to {found}, not to {want}")]
    WrongChunk {
        /// Which chunk.
        number: usize,
        /// Its name.
        want: Hash,
        /// The name of what came.
        found: Hash,
    },
    /// There is no such chunk in the manifest.
    #[error("there is no chunk {number} among {count}")]
    NoSuchChunk {
        /// Asked for.
        number: usize,
        /// So many there are.
        count: usize,
    },
    /// Not claimed here.
    #[error("manifest {0} is not here")]
    NoManifest(Hash),
    /// Not all of it is here.
    #[error("object {0} is not here, or not that part of it")]
    Missing(ObjectId),
    /// What was found under the name is something else. It is gone from here.
    #[error("{what} was damaged on disk, and is no longer served")]
    Damaged {
        /// Which object or manifest.
        what: String,
    },
    /// Chunks are missing still.
    #[error("{missing} chunks are missing still")]
    Incomplete {
        /// So many.
        missing: usize,
    },
    /// Somebody uses it.
    #[error("manifest {0} is pinned or in use")]
    InUse(Hash),
}

impl StoreError {
    /// Says which file it was about, and tells a full disk from other troubles.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let path = path.to_path_buf();
            if is_full(&source) {
                Self::NoSpace { path, source }
            } else {
                Self::Io { path, source }
            }
        }
    }
}

impl From<Box<redb::Error>> for StoreError {
    fn from(error: Box<redb::Error>) -> Self {
        match *error {
            redb::Error::Io(source) if is_full(&source) => {
                Self::NoSpace { path: "meta.redb".into(), source }
            }
            redb::Error::DatabaseAlreadyOpen => Self::Busy { path: "meta.redb".into() },
            _ => Self::Index(error),
        }
    }
}

impl Store {
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("root", &self.inner.files.root()).finish()
    }
}

/// A lock that another thread's panic does not spoil: what it guards is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
