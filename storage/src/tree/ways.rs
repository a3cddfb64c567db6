//! How the bytes of an object become a file: by a link, a reflink or a copy.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::rc::Rc;

use mesh_consensus::id::{Hash, ObjectId};
use rustix::fs::{AtFlags, CWD, Mode};
use rustix::io::Errno;

use super::{ObjectFile, Run, TreeError, damaged, split, taken, write_error};
use crate::manifest::{Entry, ManifestError};

/// Objects that are kept open. Neighbours in a tree are mostly neighbours in one pack.
const OPEN_OBJECTS: usize = 8;
/// Bytes that are read at once.
pub(super) const BUFFER: usize = 256 << 10;
/// Bytes that the kernel copies before somebody looks whether to go on.
const STEP: usize = 16 << 20;

/// An object that is open, and what is known of its file.
pub(super) struct Opened {
    pub(super) id: ObjectId,
    object: ObjectFile,
    pub(super) device: u64,
    pub(super) inode: u64,
    mode: u32,
}

/// What the file systems of an object and of the destination can do together.
#[derive(Clone, Copy)]
pub(super) struct Able {
    link: bool,
    reflink: bool,
    copy_range: bool,
}

impl Run<'_> {
    pub(super) fn open(&mut self, entry: &Entry, number: u32) -> Result<Rc<Opened>, TreeError> {
        if let Some(at) = self.opened.iter().position(|(known, _)| *known == number) {
            let last = self.opened.len() - 1;
            self.opened[at..].rotate_left(1);
            return Ok(Rc::clone(&self.opened[last].1));
        }
        let Some(&(id, bytes)) = self.objects.get(number as usize) else {
            return Err(ManifestError::Contradiction("a file of no object").into());
        };
        let error = |source| TreeError::Object { path: entry.path.clone(), object: id, source };
        let object = match self.source.object(id) {
            Ok(object) => object,
            Err(source) => {
                // That it was not read to its end says nothing about it.
                self.go_on()?;
                return Err(error(source));
            }
        };
        let meta = object.file.metadata().map_err(error)?;
        if !meta.is_file() || meta.len() != bytes {
            return Err(damaged(entry, id));
        }
        let (device, inode, mode) = (meta.dev(), meta.ino(), meta.mode() & 0o7777);
        let opened = Rc::new(Opened { id, object, device, inode, mode });
        if self.opened.len() == OPEN_OBJECTS {
            self.opened.remove(0);
        }
        self.opened.push((number, Rc::clone(&opened)));
        Ok(opened)
    }

    fn able(&mut self, opened: &Opened) -> &mut Able {
        let all = Able { link: true, reflink: true, copy_range: true };
        self.able.entry(opened.device).or_insert(all)
    }

    pub(super) fn link(
        &mut self,
        entry: &Entry,
        opened: &Opened,
        mode: Mode,
    ) -> Result<bool, TreeError> {
        // A link has the mode of its object.
        let right = !self.options.writable && opened.mode == mode.bits();
        if !opened.object.may_link || !right || !self.able(opened).link {
            return Ok(false);
        }
        let (parent, name) = split(&entry.path);
        let directory = self.enter(parent)?;
        // By its handle, so that it is the file that was opened; by its path where there is no /proc.
        let handle = format!("/proc/self/fd/{}", opened.object.file.as_raw_fd());
        let follow = AtFlags::SYMLINK_FOLLOW;
        let mut linked = rustix::fs::linkat(CWD, handle, directory.as_fd(), name, follow);
        if linked == Err(Errno::NOENT) {
            let (path, none) = (&opened.object.path, AtFlags::empty());
            linked = rustix::fs::linkat(CWD, path, directory.as_fd(), name, none);
        }
        match linked {
            Ok(()) => Ok(true),
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.able(opened).link = false;
                Ok(false)
            }
            // Too many links to this one, or it belongs to somebody else.
            Err(Errno::MLINK | Errno::PERM | Errno::ACCESS | Errno::NOENT) => Ok(false),
            Err(error) => Err(taken(&entry.path, error)),
        }
    }

    pub(super) fn reflink(&mut self, opened: &Opened, file: &File) -> bool {
        if !self.able(opened).reflink {
            return false;
        }
        match rustix::fs::ioctl_ficlone(file, &opened.object.file) {
            Ok(()) => true,
            Err(error) => {
                if matches!(error, Errno::XDEV | Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) {
                    self.able(opened).reflink = false;
                }
                false
            }
        }
    }

    pub(super) fn copy(
        &mut self,
        entry: &Entry,
        opened: &Opened,
        bytes: u64,
        file: &File,
    ) -> Result<(), TreeError> {
        let mut at = 0;
        while at < bytes && self.able(opened).copy_range {
            self.go_on()?;
            let step = usize::try_from(bytes - at).unwrap_or(STEP).min(STEP);
            let (mut from, mut to) = (at, at);
            let source = &opened.object.file;
            match rustix::fs::copy_file_range(source, Some(&mut from), file, Some(&mut to), step) {
                Ok(copied) if copied > 0 => {
                    at += copied as u64;
                    self.advance(copied);
                }
                // Whatever it is, reading and writing finds it too, or does not mind.
                _ => self.able(opened).copy_range = false,
            }
        }
        while at < bytes {
            let step = self.read(entry, opened, at, bytes - at)?;
            file.write_all_at(&self.buffer[..step], at)
                .map_err(|error| write_error(&entry.path, error))?;
            at += step as u64;
        }
        Ok(())
    }

    /// Reads a copy again if its source is a file of the user, who may have changed it since it was verified.
    pub(super) fn check_copy(
        &mut self,
        entry: &Entry,
        opened: &Opened,
        number: u32,
        file: &File,
    ) -> Result<(), TreeError> {
        if opened.object.may_link {
            return Ok(());
        }
        let manifest = self.manifest;
        let mut at = 0;
        for chunk in &manifest.objects[number as usize].chunks {
            let mut hasher = blake3::Hasher::new();
            let end = at + u64::from(chunk.bytes);
            while at < end {
                self.go_on()?;
                let step = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
                file.read_exact_at(&mut self.buffer[..step], at)
                    .map_err(|error| write_error(&entry.path, error))?;
                hasher.update(&self.buffer[..step]);
                at += step as u64;
            }
            if hasher.finalize() != blake3::Hash::from_bytes(chunk.id.0) {
                return Err(damaged(entry, opened.id));
            }
        }
        Ok(())
    }

    pub(super) fn copy_member(
        &mut self,
        entry: &Entry,
        opened: &Opened,
        (offset, bytes, content): (u64, u64, Hash),
        file: &File,
    ) -> Result<(), TreeError> {
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < bytes {
            let from = offset.checked_add(at).ok_or_else(|| damaged(entry, opened.id))?;
            let step = self.read(entry, opened, from, bytes - at)?;
            hasher.update(&self.buffer[..step]);
            file.write_all_at(&self.buffer[..step], at)
                .map_err(|error| write_error(&entry.path, error))?;
            at += step as u64;
        }
        if *hasher.finalize().as_bytes() == content.0 {
            Ok(())
        } else {
            Err(damaged(entry, opened.id))
        }
    }

    /// Fills the buffer with the next bytes of an object, at most `rest` of them.
    fn read(
        &mut self,
        entry: &Entry,
        opened: &Opened,
        at: u64,
        rest: u64,
    ) -> Result<usize, TreeError> {
        self.go_on()?;
        let step = usize::try_from(rest).unwrap_or(BUFFER).min(BUFFER);
        opened.object.file.read_exact_at(&mut self.buffer[..step], at).map_err(|source| {
            TreeError::Object { path: entry.path.clone(), object: opened.id, source }
        })?;
        self.advance(step);
        Ok(step)
    }
}
