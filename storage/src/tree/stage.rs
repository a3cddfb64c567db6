//! Where copied files wait for their bytes to be safe, before they get their names.
//!
//! A directory in the destination, of a name that the manifest does not use. It is there only while it is
//! needed, and what an interrupted run left in it is of no use to anybody.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::beneath::{Directory, Root, has_directory};
use super::{TreeError, taken, write_error};
use crate::manifest::Manifest;

/// Up to so many files are synced one by one: the rest of the file system may be busy with something else.
const FEW: usize = 4;

/// Copied files without names.
pub(super) struct Stage {
    name: String,
    directory: Option<OwnedFd>,
    /// The entry of each file. Its name here is its place in this list.
    waiting: Vec<usize>,
    bytes: u64,
}

impl Stage {
    pub(super) fn new(manifest: &Manifest) -> Self {
        let uses = |name: &String| {
            has_directory(manifest, name)
                || manifest.entries.binary_search_by(|entry| entry.path.cmp(name)).is_ok()
        };
        let mut names = (0_u64..).map(|at| format!(".mesh-partial-{at}"));
        let name = names.find(|name| !uses(name)).unwrap_or_default();
        Self { name, directory: None, waiting: Vec::new(), bytes: 0 }
    }

    /// The name of its directory.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How many files wait.
    pub(super) fn files(&self) -> usize {
        self.waiting.len()
    }

    /// How many bytes they have.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A new file, which the next [`Stage::push`] is about.
    pub(super) fn file(&mut self, root: &Root) -> Result<File, Errno> {
        let directory = match &self.directory {
            Some(directory) => directory,
            None => {
                rustix::fs::mkdirat(root, self.name.as_str(), Mode::RWXU)?;
                self.directory.insert(open(root, &self.name)?)
            }
        };
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let name = self.waiting.len().to_string();
        let file = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(file))
    }

    /// The last file is complete, and belongs to this entry.
    pub(super) fn push(&mut self, entry: usize, bytes: u64) {
        self.waiting.push(entry);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns once the bytes of all waiting files are on stable storage.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        let Some(directory) = &self.directory else { return Ok(()) };
        if self.waiting.len() > FEW {
            return rustix::fs::syncfs(directory);
        }
        for place in 0..self.waiting.len() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, place.to_string(), flags, Mode::empty())?;
            rustix::fs::fsync(file)?;
        }
        Ok(())
    }

    /// The entries of all waiting files, each to be published by its place.
    pub(super) fn take(&mut self) -> Vec<usize> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Gives the file at `place` its name, if nothing has it.
    pub(super) fn publish(&self, place: usize, to: &Directory, name: &str) -> Result<(), Errno> {
        let Some(directory) = &self.directory else { return Err(Errno::NOENT) };
        let (from, to) = (directory.as_fd(), to.as_fd());
        let place = place.to_string();
        let renamed =
            rustix::fs::renameat_with(from, place.as_str(), to, name, RenameFlags::NOREPLACE);
        if !matches!(renamed, Err(Errno::INVAL | Errno::NOSYS)) {
            return renamed;
        }
        // A file system that cannot rename so. A link does not replace anything, either.
        rustix::fs::linkat(from, place.as_str(), to, name, AtFlags::empty())?;
        rustix::fs::unlinkat(from, place.as_str(), AtFlags::empty())
    }

    /// Removes the directory, which holds nothing any more.
    pub(super) fn remove(&mut self, root: &Root) -> Result<(), TreeError> {
        if self.directory.take().is_some() {
            rustix::fs::unlinkat(root, self.name.as_str(), AtFlags::REMOVEDIR)
                .map_err(|error| write_error(&self.name, error))?;
        }
        Ok(())
    }

    /// Removes the directory and the files in it.
    pub(super) fn clear(&self, root: &Root) -> Result<(), TreeError> {
        let error = |error| write_error(&self.name, error);
        let directory = match open(root, &self.name) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(taken(&self.name, error)),
        };
        let mut names = Dir::read_from(&directory).map_err(error)?;
        while let Some(name) = names.read() {
            let name = name.map_err(error)?;
            if !matches!(name.file_name().to_bytes(), b"." | b"..") {
                rustix::fs::unlinkat(&directory, name.file_name(), AtFlags::empty())
                    .map_err(error)?;
            }
        }
        rustix::fs::unlinkat(root, self.name.as_str(), AtFlags::REMOVEDIR).map_err(error)
    }
}

fn open(root: &Root, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, name, flags, Mode::empty(), resolve)
}
