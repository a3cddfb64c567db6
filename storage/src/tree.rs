//! Lays a version out as a directory: the tree that a task reads, or that a person asked for.
//!
//! A file that is a whole object becomes a hard link to it, or a reflink, or a copy, whichever the file systems
//! allow, tried in this order and remembered; members of packs are copied out, and their content is compared with the
//! manifest on the way. A link shares its inode with the store, so files are read-only, and whoever wants to write
//! asks for reflinks or copies ([`Options::writable`]).
//!
//! ```text
//!   object ──link──────────────────────────────► dest/a/b
//!          ──reflink or copy─► dest/.mesh-partial-0/17 ──sync, rename──► dest/a/c
//! ```
//!
//! What holds whatever the manifest says, and whatever others do in the destination meanwhile:
//!
//! - Everything happens beneath one directory handle. No symbolic link is followed, none is replaced.
//! - Nothing that is there is overwritten. The destination is absent, empty, or holds an earlier run of the same
//!   manifest, which then goes on: what is right is kept, what is not is named and refused.
//! - A name appears when its bytes are on stable storage, so after a crash no file is there by half. What was copied but
//!   not yet named is in a directory of our own, and is thrown away by the next run.
//!
//! Which objects are whole is for the [`Source`] to know.

mod beneath;
mod earlier;
mod stage;
#[cfg(test)]
mod tests;
mod ways;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use mesh_consensus::id::ObjectId;
use rustix::fs::Mode;
use rustix::io::Errno;

use self::beneath::{Directory, Root};
use self::stage::Stage;
use self::ways::{Able, BUFFER, Opened};
use crate::manifest::{Entry, Kind, Manifest, ManifestError, check_path};

/// Copied files that wait for one sync. A sync costs about as much for many as for one.
const BATCH_FILES: usize = 16_384;
/// Copied bytes that wait for one sync.
const BATCH_BYTES: u64 = 1 << 30;
/// Where objects come from.
pub trait Source {
    /// Opens an object that is whole and verified.
    fn object(&self, id: ObjectId) -> io::Result<ObjectFile>;
}

/// An object in a file of its own.
#[derive(Debug)]
pub struct ObjectFile {
    /// Open for reading.
    pub file: File,
    /// Where it is.
    pub path: PathBuf,
    /// Whether others may share its inode. Never so for a file that somebody else may write.
    pub may_link: bool,
}

/// How a tree should be laid out.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Whether files may be written: then none is shared with the store, and modes are 0644 and 0755. Otherwise
    /// they are 0444 and 0555.
    pub writable: bool,
    /// Whether directories are 0555 in the end, not 0755.
    pub sealed: bool,
    /// Told after every file, and now and then within a long one.
    pub progress: Option<&'a dyn Fn(Progress)>,
    /// Stops the run as soon as it is true. A later run goes on.
    pub cancel: Option<&'a AtomicBool>,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Files that are done, kept ones too.
    pub files: u64,
    /// Their bytes, and those of the file that is being copied.
    pub bytes: u64,
}

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Materialised {
    /// Files that share the inode of their object.
    pub linked: u64,
    /// Files that share its blocks.
    pub reflinked: u64,
    /// Files with bytes of their own, and files without bytes.
    pub copied: u64,
    /// Files that an earlier run had made.
    pub kept: u64,
    /// Bytes of those that were copied.
    pub bytes_copied: u64,
}

/// Why a tree could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The destination itself.
    #[error("cannot use {path:?} as the destination")]
    Destination {
        /// Where it should be.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another run has the destination.
    #[error("{path:?} is being written by another run")]
    Busy {
        /// The destination.
        path: PathBuf,
    },
    /// Something is there that this manifest did not put there. It is left as it is.
    #[error("{path:?} is in the way: {what}")]
    InTheWay {
        /// Within the destination.
        path: String,
        /// What was found.
        what: &'static str,
    },
    /// A path that leads out, or no path at all.
    #[error("the manifest cannot be laid out")]
    Manifest(#[from] ManifestError),
    /// An object that should be there cannot be read.
    #[error("cannot read the object {object} for {path:?}")]
    Object {
        /// The file that needs it.
        path: String,
        /// The object.
        object: ObjectId,
        /// What the system says.
        source: io::Error,
    },
    /// An object does not hold what the manifest says.
    #[error("the object {object} does not hold what the manifest says of {path:?}")]
    Damaged {
        /// The file that needs it.
        path: String,
        /// The object.
        object: ObjectId,
    },
    /// A file or directory cannot be made.
    #[error("cannot write {path:?}")]
    Write {
        /// Within the destination.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The caller wanted it to end.
    #[error("the tree was not finished: the run was cancelled")]
    Cancelled,
}

/// Lays `manifest` out in `dest`. The parent of `dest` must be there. See the module.
///
/// When it returns `Ok`, the tree is on stable storage.
pub fn materialise(
    manifest: &Manifest,
    dest: &Path,
    source: &dyn Source,
    options: Options<'_>,
) -> Result<Materialised, TreeError> {
    materialise_in_batches(manifest, dest, source, options, BATCH_FILES)
}

fn materialise_in_batches(
    manifest: &Manifest,
    dest: &Path,
    source: &dyn Source,
    options: Options<'_>,
    batch: usize,
) -> Result<Materialised, TreeError> {
    let root = Root::open(dest)?;
    let stage = Stage::new(manifest);
    let found = root.survey(manifest, stage.name())?;
    if found.stage {
        stage.clear(&root)?;
    }
    let mut run = Run {
        manifest,
        source,
        options,
        batch,
        empty: !found.entries,
        objects: manifest.objects.iter().map(|object| (object.id(), object.bytes())).collect(),
        root,
        stage,
        here: None,
        opened: Vec::new(),
        able: BTreeMap::new(),
        done: Materialised::default(),
        progress: Progress::default(),
        buffer: vec![0; BUFFER],
    };
    let result = run.all();
    if result.is_err() {
        // The error is what matters; what is left here is cleared by the next run.
        let _ = run.stage.clear(&run.root);
    }
    result.map(|()| run.done)
}

struct Run<'a> {
    manifest: &'a Manifest,
    source: &'a dyn Source,
    options: Options<'a>,
    batch: usize,
    /// Whether the destination held nothing: then whatever is in it is of this run.
    empty: bool,
    /// The name and the length of each object.
    objects: Vec<(ObjectId, u64)>,
    root: Root,
    stage: Stage,
    /// The directory of the last entry.
    here: Option<(String, Rc<Directory>)>,
    /// The last used one comes last. A few at most.
    opened: Vec<(u32, Rc<Opened>)>,
    /// What has been learnt, by the device of the object.
    able: BTreeMap<u64, Able>,
    done: Materialised,
    progress: Progress,
    buffer: Vec<u8>,
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), TreeError> {
        let manifest = self.manifest;
        for (number, entry) in manifest.entries.iter().enumerate() {
            self.go_on()?;
            check_path(&entry.path)?;
            if entry.kind == Kind::EmptyDirectory {
                self.enter(&entry.path)?;
                continue;
            }
            let before = self.progress.bytes;
            if !self.empty && self.is_right(entry)? {
                self.done.kept += 1;
            } else {
                self.make(number, entry)?;
            }
            self.progress.files += 1;
            self.progress.bytes = before.saturating_add(entry.bytes());
            self.tell();
        }
        self.publish()?;
        self.stage.remove(&self.root)?;
        if self.options.sealed {
            self.seal()?;
        }
        let Materialised { linked, reflinked, copied, .. } = self.done;
        if linked + reflinked + copied > 0 {
            self.root.sync().map_err(|error| write_error("", error))?;
        }
        Ok(())
    }

    /// Makes the file of this entry, or has it wait on the stage.
    fn make(&mut self, number: usize, entry: &Entry) -> Result<(), TreeError> {
        let mode = self.mode(entry);
        let Kind::File { object, offset, bytes, content, .. } = entry.kind else {
            self.staged(number, entry, |_, _| Ok(()))?;
            self.done.copied += 1;
            return Ok(());
        };
        let opened = self.open(entry, object)?;
        let whole = offset == 0 && self.objects[object as usize].1 == bytes;
        if let Some(content) = content.filter(|_| !whole) {
            let member = |run: &mut Self, file: &File| {
                run.copy_member(entry, &opened, (offset, bytes, content), file)
            };
            self.staged(number, entry, member)?;
        } else if !whole {
            return Err(damaged(entry, opened.id));
        } else if self.link(entry, &opened, mode)? {
            self.done.linked += 1;
            return Ok(());
        } else {
            let mut shared = false;
            self.staged(number, entry, |run, file| {
                shared = run.reflink(&opened, file);
                if !shared {
                    run.copy(entry, &opened, bytes, file)?;
                }
                run.check_copy(entry, &opened, object, file)
            })?;
            if shared {
                self.done.reflinked += 1;
                return Ok(());
            }
        }
        self.done.copied += 1;
        self.done.bytes_copied += bytes;
        Ok(())
    }

    /// Has `fill` write a file on the stage, and publishes it there and then if the stage is full.
    fn staged(
        &mut self,
        number: usize,
        entry: &Entry,
        fill: impl FnOnce(&mut Self, &File) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let write = |error| write_error(&entry.path, error);
        let file = self.stage.file(&self.root).map_err(write)?;
        fill(self, &file)?;
        rustix::fs::fchmod(&file, self.mode(entry)).map_err(write)?;
        self.stage.push(number, entry.bytes());
        if self.stage.files() >= self.batch || self.stage.bytes() >= BATCH_BYTES {
            self.publish()?;
        }
        Ok(())
    }

    /// Gives the files on the stage their names, once their bytes are safe.
    fn publish(&mut self) -> Result<(), TreeError> {
        // To sync much takes long, and whoever comes next waits for it.
        self.go_on()?;
        self.stage.sync().map_err(|error| write_error("", error))?;
        let manifest = self.manifest;
        for (place, number) in self.stage.take().into_iter().enumerate() {
            let path = manifest.entries[number].path.as_str();
            let (parent, name) = split(path);
            let directory = self.enter(parent)?;
            self.stage.publish(place, &directory, name).map_err(|error| taken(path, error))?;
        }
        Ok(())
    }

    /// The directory with this path, made if it is not there.
    fn enter(&mut self, path: &str) -> Result<Rc<Directory>, TreeError> {
        if let Some((here, directory)) = &self.here
            && here == path
        {
            return Ok(Rc::clone(directory));
        }
        let directory = Rc::new(self.root.enter(path)?);
        self.here = Some((path.to_owned(), Rc::clone(&directory)));
        Ok(directory)
    }

    /// Takes the right to write from all directories.
    fn seal(&self) -> Result<(), TreeError> {
        let mut before = "";
        for entry in &self.manifest.entries {
            let path = entry.path.as_str();
            let ends = path.match_indices('/').map(|(end, _)| end);
            let itself = (entry.kind == Kind::EmptyDirectory).then_some(path.len());
            for end in ends.chain(itself) {
                // What lies in one directory stands together, so one that the entry before was in is done.
                let known =
                    before.starts_with(&path[..end]) && before.as_bytes().get(end) == Some(&b'/');
                if !known {
                    self.root.seal(&path[..end])?;
                }
            }
            before = path;
        }
        self.root.seal("")
    }

    fn mode(&self, entry: &Entry) -> Mode {
        let executable = matches!(entry.kind, Kind::File { executable: true, .. });
        Mode::from_raw_mode(match (self.options.writable, executable) {
            (false, false) => 0o444,
            (false, true) => 0o555,
            (true, false) => 0o644,
            (true, true) => 0o755,
        })
    }

    fn go_on(&self) -> Result<(), TreeError> {
        match self.options.cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => Err(TreeError::Cancelled),
            _ => Ok(()),
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.progress.bytes = self.progress.bytes.saturating_add(bytes as u64);
        self.tell();
    }

    fn tell(&self) {
        if let Some(tell) = self.options.progress {
            tell(self.progress);
        }
    }
}

/// The directory of a path, and the name in it.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn damaged(entry: &Entry, object: ObjectId) -> TreeError {
    TreeError::Damaged { path: entry.path.clone(), object }
}

fn write_error(path: &str, error: impl Into<io::Error>) -> TreeError {
    TreeError::Write { path: path.to_owned(), source: error.into() }
}

/// What the system says of a name that should have been free, or of a directory that should have been one.
fn taken(path: &str, error: Errno) -> TreeError {
    let what = match error {
        Errno::EXIST => "something has come there meanwhile",
        Errno::LOOP => "it is a symbolic link, or beyond one",
        Errno::NOTDIR => "it is no directory",
        Errno::XDEV => "it is on another file system, or leads out",
        error => return write_error(path, error),
    };
    TreeError::InTheWay { path: path.to_owned(), what }
}
