//! What an earlier run of the same manifest has done already.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use mesh_consensus::id::Hash;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::ways::BUFFER;
use super::{Run, TreeError, split, taken, write_error};
use crate::manifest::{Entry, Kind};

impl Run<'_> {
    /// Whether an earlier run has made the file of this entry. A file that is there and is not right is an error.
    pub(super) fn is_right(&mut self, entry: &Entry) -> Result<bool, TreeError> {
        let (parent, name) = split(&entry.path);
        let directory = self.enter(parent)?;
        let stat = match directory.stat(name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(write_error(&entry.path, error)),
        };
        let wrong = |what| Err(TreeError::InTheWay { path: entry.path.clone(), what });
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return wrong("it is no file");
        }
        if u64::try_from(stat.st_size) != Ok(entry.bytes()) {
            return wrong("it is a file of another length");
        }
        if stat.st_mode & 0o7777 != self.mode(entry).bits() {
            return wrong("it is a file of another mode");
        }
        if self.is_linked(entry, &stat) {
            return Ok(true);
        }
        let file = directory.open_file(name).map_err(|error| taken(&entry.path, error))?;
        let same = self.holds(entry, &File::from(file))?;
        if same { Ok(true) } else { wrong("it is a file of other content") }
    }

    /// Whether this file is the object of its entry.
    fn is_linked(&mut self, entry: &Entry, stat: &Stat) -> bool {
        let Kind::File { object, content: None, .. } = entry.kind else { return false };
        // An object that is gone says nothing about the file.
        let Ok(opened) = self.open(entry, object) else { return false };
        (opened.device, opened.inode) == (stat.st_dev, stat.st_ino)
    }

    /// Whether a file holds what its entry says, by the hashes in the manifest.
    fn holds(&mut self, entry: &Entry, file: &File) -> Result<bool, TreeError> {
        let Kind::File { object, bytes, content, .. } = entry.kind else { return Ok(true) };
        let parts: Vec<(Hash, u64)> = match (content, self.manifest.objects.get(object as usize)) {
            (Some(content), _) => vec![(content, bytes)],
            (None, Some(object)) => {
                object.chunks.iter().map(|chunk| (chunk.id, chunk.bytes.into())).collect()
            }
            (None, None) => return Ok(false),
        };
        let mut at = 0;
        for (hash, bytes) in parts {
            let mut hasher = blake3::Hasher::new();
            let end = at + bytes;
            while at < end {
                self.go_on()?;
                let step = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
                match file.read_exact_at(&mut self.buffer[..step], at) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                    read => read.map_err(|error| write_error(&entry.path, error))?,
                }
                hasher.update(&self.buffer[..step]);
                at += step as u64;
            }
            if *hasher.finalize().as_bytes() != hash.0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
