//! The destination: one handle, and everything is reached from it.
//!
//! Every path is resolved by the kernel beneath the handle and through no symbolic link (`openat2`), so neither a
//! manifest nor somebody who plants links meanwhile can lead a write elsewhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{TreeError, split, taken, write_error};
use crate::manifest::{Kind, Manifest};

const OPEN: Mode = Mode::from_raw_mode(0o755);
const SEALED: Mode = Mode::from_raw_mode(0o555);

/// The destination, locked.
pub(super) struct Root {
    directory: Directory,
}

/// An open directory in it.
pub(super) struct Directory {
    fd: OwnedFd,
}

/// What the destination held at first.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Files or directories of the manifest.
    pub(super) entries: bool,
    /// What an earlier run had not yet named.
    pub(super) stage: bool,
}

impl Root {
    /// Opens the directory, or makes it, and keeps other runs out until it is dropped.
    pub(super) fn open(dest: &Path) -> Result<Self, TreeError> {
        let error =
            |error: Errno| TreeError::Destination { path: dest.to_owned(), source: error.into() };
        let made = match rustix::fs::mkdirat(CWD, dest, OPEN) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(other) => return Err(error(other)),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, dest, flags, Mode::empty()).map_err(error)?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(TreeError::Busy { path: dest.to_owned() }),
            Err(other) => return Err(error(other)),
        }
        let directory = Directory { fd };
        directory.unseal(made).map_err(error)?;
        Ok(Self { directory })
    }

    /// The directory with this path, made if it is not there, together with those above it.
    pub(super) fn enter(&self, path: &str) -> Result<Directory, TreeError> {
        match self.directory.open_directory(path) {
            Ok(directory) => {
                directory.unseal(false).map_err(|error| write_error(path, error))?;
                Ok(directory)
            }
            Err(Errno::NOENT) if !path.is_empty() => {
                let (parent, name) = split(path);
                let parent = self.enter(parent)?;
                match rustix::fs::mkdirat(&parent.fd, name, OPEN) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(taken(path, error)),
                }
                let directory = parent.open_directory(name).map_err(|error| taken(path, error))?;
                // The mask of the process may have taken something away.
                directory.unseal(true).map_err(|error| write_error(path, error))?;
                Ok(directory)
            }
            Err(error) => Err(taken(path, error)),
        }
    }

    /// Looks at everything in the destination, and refuses what the manifest would not have put there.
    pub(super) fn survey(&self, manifest: &Manifest, stage: &str) -> Result<Found, TreeError> {
        let mut found = Found::default();
        // Each is a directory of the manifest, so there are not more of them.
        let mut open = vec![String::new()];
        while let Some(path) = open.pop() {
            let directory =
                self.directory.open_directory(&path).map_err(|error| taken(&path, error))?;
            let error = |error| write_error(&path, error);
            let mut names = Dir::read_from(&directory.fd).map_err(error)?;
            while let Some(name) = names.read() {
                let name = name.map_err(error)?;
                if matches!(name.file_name().to_bytes(), b"." | b"..") {
                    continue;
                }
                let text = name.file_name().to_string_lossy();
                let at = if path.is_empty() { text.into_owned() } else { format!("{path}/{text}") };
                let kind = match name.file_type() {
                    FileType::Unknown => {
                        let stat = directory.stat(name.file_name()).map_err(error)?;
                        FileType::from_raw_mode(stat.st_mode)
                    }
                    known => known,
                };
                if at == stage && kind == FileType::Directory {
                    found.stage = true;
                    continue;
                }
                found.entries = true;
                match kind {
                    FileType::Directory if has_directory(manifest, &at) => open.push(at),
                    FileType::RegularFile if has_file(manifest, &at) => {}
                    _ => {
                        let what = match kind {
                            FileType::Directory => "it is a directory that the manifest has not",
                            FileType::Symlink => "it is a symbolic link",
                            FileType::RegularFile => "it is a file that the manifest has not",
                            _ => "it is neither file nor directory",
                        };
                        return Err(TreeError::InTheWay { path: at, what });
                    }
                }
            }
        }
        Ok(found)
    }

    /// Takes the right to write from a directory.
    pub(super) fn seal(&self, path: &str) -> Result<(), TreeError> {
        let directory = self.directory.open_directory(path).map_err(|error| taken(path, error))?;
        rustix::fs::fchmod(&directory.fd, SEALED).map_err(|error| write_error(path, error))
    }

    /// Returns once everything in the destination is on stable storage.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.directory.fd)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.fd.as_fd()
    }
}

impl Directory {
    /// Opens a directory below this one; nothing else.
    pub(super) fn open_directory(&self, path: &str) -> Result<Self, Errno> {
        let path = if path.is_empty() { "." } else { path };
        self.open(path, OFlags::DIRECTORY).map(|fd| Self { fd })
    }

    /// Opens a file in this directory for reading.
    pub(super) fn open_file(&self, name: &str) -> Result<OwnedFd, Errno> {
        // A pipe does not hold us up.
        self.open(name, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve)
    }

    /// What stands under this name, without following it.
    pub(super) fn stat(&self, name: impl rustix::path::Arg) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Undoes the seal of an earlier run, if there is one, or gives a new directory its mode.
    fn unseal(&self, new: bool) -> Result<(), Errno> {
        let sealed = || Ok(rustix::fs::fstat(&self.fd)?.st_mode & 0o7777 == SEALED.bits());
        if new || sealed()? { rustix::fs::fchmod(&self.fd, OPEN) } else { Ok(()) }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn has_file(manifest: &Manifest, path: &str) -> bool {
    let at = manifest.entries.binary_search_by(|entry| entry.path.as_str().cmp(path));
    at.is_ok_and(|at| manifest.entries[at].kind != Kind::EmptyDirectory)
}

/// Whether the manifest has this directory, as an empty one or as one that something lies in.
pub(super) fn has_directory(manifest: &Manifest, path: &str) -> bool {
    let at = manifest.entries.binary_search_by(|entry| entry.path.as_str().cmp(path));
    if let Ok(at) = at {
        return manifest.entries[at].kind == Kind::EmptyDirectory;
    }
    let prefix = format!("{path}/");
    let at = manifest.entries.partition_point(|entry| entry.path < prefix);
    manifest.entries.get(at).is_some_and(|entry| entry.path.starts_with(&prefix))
}
