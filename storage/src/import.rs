//! Import: from a directory or a file of the user to a manifest in the store.
//!
//! Files under [`SMALL`] are put after one another, in the order of their paths, into **packs**; every other file is
//! an object of its own. A pack ends after a file whose hash says so, once it is long enough: so a file more or less
//! changes one pack and leaves the others as they were.
//!
//! ```text
//!  walk ─► files ─► read and cut ─┬─► hash and write ─► claim together ─► manifest
//!      └─► packs ─► read and fill ┘   (a bounded queue)
//! ```
//!
//! No manifest is claimed before everything is there. Objects that a cancelled import has stored whole are found by the
//! next; a file that it was in the middle of is read and written again.

mod apart;
mod build;
mod cuts;
mod file;
mod pack;
mod pipe;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;

pub use self::apart::Apart;
use self::build::Registry;
use self::pipe::{Feed, Pool};
use crate::manifest::{Entry, Kind, Manifest, ManifestError};
use crate::store::{Content, Finished, Lease, Store, StoreError, index};

/// Files below this are packed.
pub const SMALL: u64 = 256 << 10;
/// Objects that wait to be claimed together, and their bytes.
const CLAIM_OBJECTS: usize = 64;
const CLAIM_BYTES: u64 = 256 << 20;

/// How to import.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Copy nothing: the store reads the user's files, as long as they stay as they are.
    pub in_place: bool,
    /// Take what symbolic links lead to, wherever it is.
    pub follow: bool,
    /// What is not to be imported, wherever it is found.
    pub apart: Option<&'a Apart>,
    /// Is told how far it got, from several threads.
    pub progress: Option<&'a (dyn Fn(Progress) + Sync)>,
    /// Once true, the import ends.
    pub cancel: Option<&'a AtomicBool>,
}

/// How far an import got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are done.
    pub bytes: u64,
    /// Of so many.
    pub bytes_total: u64,
    /// Files that are done.
    pub files: u64,
    /// Of so many.
    pub files_total: u64,
}

/// What was imported.
#[derive(Debug)]
pub struct Imported {
    /// The manifest, claimed.
    pub manifest: Manifest,
    /// Its name.
    pub hash: Hash,
    /// Bytes of all files.
    pub bytes: u64,
    /// How many files.
    pub files: u64,
    /// Bytes in chunks that the store did not have before.
    pub new_bytes: u64,
    /// How many objects the store had that were damaged or gone, and are whole again.
    pub mended: usize,
    /// Keeps it here until somebody has pinned it.
    pub lease: Lease,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Could not be read.
    #[error("could not read {}", path.display())]
    Unreadable {
        /// Which file or directory.
        path: PathBuf,
        /// As the system says it.
        source: io::Error,
    },
    /// Not a file, nor a directory.
    #[error("{} is {what}: only files and directories can be imported", path.display())]
    Special {
        /// Where.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A symbolic link that leads where it should not.
    #[error("{} is a symbolic link that {why}", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        why: &'static str,
    },
    /// What stays apart: see [`Apart`].
    #[error("{} is, or leads to, what is in the node's own directory", path.display())]
    Apart {
        /// As it was found.
        path: PathBuf,
    },
    /// A name that no manifest can have.
    #[error("{}: {why}", path.display())]
    Name {
        /// The name.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is being written.
    #[error("{} changed while it was read", path.display())]
    Changed {
        /// Which file.
        path: PathBuf,
    },
    /// As asked.
    #[error("the import was cancelled")]
    Cancelled,
    /// The tree as a whole cannot be a manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Imports what is at `path`, and claims it.
pub fn import(
    store: &Store,
    path: &Path,
    options: Options<'_>,
    now: Time,
) -> Result<Imported, ImportError> {
    let tree = walk::walk(path, options)?;
    check_paths(&tree)?;
    // Until there is a manifest, the objects are held by a name that nothing else has.
    let token = index::import_name();
    let _lease = store.lease_for(token, &[], now)?;
    let files = || tree.iter().filter_map(|entry| entry.source.as_ref());
    let large = files().filter(|source| source.stamp.bytes >= SMALL).count();
    let import = Import {
        store,
        options,
        token,
        now,
        pool: Pool::default(),
        read_ahead: pipe::threads().div_ceil(large.max(1)) + 1,
        registry: Mutex::default(),
        pending: Mutex::default(),
        can_clone: AtomicBool::new(true),
        new_bytes: AtomicU64::new(0),
        mended: Mutex::default(),
        bytes: AtomicU64::new(0),
        files: AtomicU64::new(0),
        bytes_total: files().map(|source| source.stamp.bytes).sum(),
        files_total: files().count() as u64,
    };
    let claimed = import.run(&tree).and_then(|()| import.claim_pending());
    if let Err(error) = claimed {
        // What is whole is for the next try, if it was only that somebody did not want to wait.
        let is_kept = matches!(error, ImportError::Cancelled) && import.claim_pending().is_ok();
        if !is_kept {
            import.discard_pending();
        }
        return Err(error);
    }
    build::build(&import, &tree, now)
}

/// Whether the paths can stand in one manifest: better to know before everything is read.
fn check_paths(tree: &[walk::Entry]) -> Result<(), ImportError> {
    let kind = |entry: &walk::Entry| match entry.source {
        Some(_) => Kind::EmptyFile,
        None => Kind::EmptyDirectory,
    };
    let entries = tree.iter().map(|entry| Entry { path: entry.path.clone(), kind: kind(entry) });
    Ok(Manifest { entries: entries.collect(), ..Manifest::default() }.check()?)
}

/// An import in progress.
struct Import<'a> {
    store: &'a Store,
    options: Options<'a>,
    /// Holds the objects until the manifest does.
    token: Hash,
    now: Time,
    pool: Pool,
    /// Blocks of a file that are read before the first of them is done: fewer, the more files there are.
    read_ahead: usize,
    registry: Mutex<Registry>,
    /// Objects that are to be claimed together.
    pending: Mutex<Vec<Finished>>,
    /// Whether the file system may share blocks between files. False after the first refusal.
    can_clone: AtomicBool,
    new_bytes: AtomicU64,
    /// Objects of which the store's copy was not good.
    mended: Mutex<BTreeSet<ObjectId>>,
    bytes: AtomicU64,
    files: AtomicU64,
    bytes_total: u64,
    files_total: u64,
}

impl Import<'_> {
    /// Brings the content of all files into objects.
    fn run(&self, tree: &[walk::Entry]) -> Result<(), ImportError> {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for (at, entry) in tree.iter().enumerate() {
            match &entry.source {
                Some(source) if source.stamp.bytes >= SMALL => large.push((at, source)),
                Some(source) if source.stamp.bytes > 0 => small.push((at, source)),
                Some(_) => self.on_file(0),
                None => {}
            }
        }
        let failed = Mutex::new(None);
        let has_failed = AtomicBool::new(false);
        let note = |outcome: Result<(), ImportError>| {
            if let Err(error) = outcome {
                has_failed.store(true, Ordering::Relaxed);
                locked(&failed).get_or_insert(error);
            }
        };
        let next = AtomicU64::new(0);
        let files = &self.store.inner().files;
        let (queue, work) = pipe::queue();
        let feed = Feed::new(files, Some(queue));
        let read_large = |feed: &Feed<'_>| {
            while !has_failed.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                let Some((entry, source)) = large.get(at) else { return };
                note(self.whole_file(feed, *entry, source));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..pipe::threads() {
                scope.spawn(|| pipe::work_off(files, &work));
            }
            for _ in 0..pipe::threads().min(large.len()) {
                let feed = feed.clone();
                scope.spawn(move || read_large(&feed));
            }
            note(self.pack_files(&feed, &small, &has_failed));
            // With the last feed the queue ends, and so do its threads.
            drop(feed);
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Takes a finished object, and claims those that wait once they are many.
    fn finish(&self, object: Finished) -> Result<(), ImportError> {
        let ready = {
            let mut pending = locked(&self.pending);
            pending.push(object);
            let bytes = |object: &Finished| -> u64 {
                object.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
            };
            let is_due = pending.len() >= CLAIM_OBJECTS
                || pending.iter().map(bytes).sum::<u64>() >= CLAIM_BYTES;
            if is_due { std::mem::take(&mut *pending) } else { Vec::new() }
        };
        self.claim(&ready)
    }

    fn claim_pending(&self) -> Result<(), ImportError> {
        let ready = std::mem::take(&mut *locked(&self.pending));
        self.claim(&ready)
    }

    fn claim(&self, objects: &[Finished]) -> Result<(), ImportError> {
        if !objects.is_empty() {
            let new_bytes = self.store.claim(objects, self.token)?;
            self.new_bytes.fetch_add(new_bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn discard_pending(&self) {
        for object in locked(&self.pending).drain(..) {
            if let Content::Staged(_, path) = object.content {
                // What cannot be removed now goes when the store is next opened.
                _ = self.store.inner().files.remove(&path);
            }
        }
    }

    fn check_cancel(&self) -> Result<(), ImportError> {
        check_cancel(self.options.cancel)
    }

    fn on_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tell();
    }

    /// A file is done, of which `bytes` were not told of before.
    fn on_file(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.files.fetch_add(1, Ordering::Relaxed);
        self.tell();
    }

    fn tell(&self) {
        if let Some(progress) = self.options.progress {
            progress(Progress {
                bytes: self.bytes.load(Ordering::Relaxed),
                bytes_total: self.bytes_total,
                files: self.files.load(Ordering::Relaxed),
                files_total: self.files_total,
            });
        }
    }
}

fn check_cancel(cancel: Option<&AtomicBool>) -> Result<(), ImportError> {
    match cancel {
        Some(cancel) if cancel.load(Ordering::Relaxed) => Err(ImportError::Cancelled),
        _ => Ok(()),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> ImportError {
    move |source| ImportError::Unreadable { path: path.to_path_buf(), source }
}
