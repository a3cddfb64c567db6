//! What the store does to its directory: every change of a file goes through here.
//!
//! One place, so that a test can write down the order of the steps, or let the disk be full.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_consensus::id::{Hash, ObjectId};
use serde::{Deserialize, Serialize};

use rustix::io::Errno;

use super::StoreError;

/// From here on one sync of the file system is cheaper than one for each file.
const MANY_FILES: usize = 32;

/// The directory of a store.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    next: AtomicU64,
    #[cfg(test)]
    pub(crate) watch: Watch,
}

/// A step that was taken, for tests of the order.
#[cfg(test)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Write(PathBuf),
    Sync(PathBuf),
    SyncAll,
    Rename(PathBuf, PathBuf),
    SyncDirectory(PathBuf),
    /// The index tells of these from now on.
    Commit(Vec<PathBuf>),
}

#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) steps: std::sync::Mutex<Option<Vec<Step>>>,
    /// How many bytes there is room for, if that is limited.
    pub(crate) room: std::sync::Mutex<Option<u64>>,
}

/// What tells that a file was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) bytes: u64,
    pub(crate) mtime: (i64, i64),
    pub(crate) ctime: (i64, i64),
    pub(crate) inode: (u64, u64),
}

impl Stamp {
    pub(crate) fn of(meta: &fs::Metadata) -> Self {
        Self {
            bytes: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
            inode: (meta.dev(), meta.ino()),
        }
    }
}

impl Files {
    pub(crate) fn new(root: PathBuf) -> Self {
        let next = AtomicU64::new(0);
        Self {
            root,
            next,
            #[cfg(test)]
            watch: Watch::default(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn object(&self, id: ObjectId) -> PathBuf {
        let name = id.to_string();
        self.root.join("objects").join(&name[..2]).join(name)
    }

    pub(crate) fn manifest(&self, hash: Hash) -> PathBuf {
        self.root.join("manifests").join(hash.to_string())
    }

    /// Where the objects of a manifest are, if they are the user's own files.
    pub(crate) fn places(&self, hash: Hash) -> PathBuf {
        self.root.join("manifests").join(format!("{hash}.places"))
    }

    pub(crate) fn partial(&self, id: ObjectId, what: &str) -> PathBuf {
        self.root.join("partial").join(format!("{id}.{what}"))
    }

    pub(crate) fn quarantine(&self, name: &str) -> PathBuf {
        self.root.join("quarantine").join(name)
    }

    /// A name that nobody has used since the store was opened.
    pub(crate) fn temporary(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.root.join("tmp").join(number.to_string())
    }

    pub(crate) fn create(&self, path: &Path) -> Result<File, StoreError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(path).map_err(StoreError::io(path))
    }

    pub(crate) fn write_at(
        &self,
        file: &File,
        path: &Path,
        bytes: &[u8],
        offset: u64,
    ) -> Result<(), StoreError> {
        #[cfg(test)]
        self.watch.write(path, bytes.len()).map_err(StoreError::io(path))?;
        file.write_all_at(bytes, offset).map_err(StoreError::io(path))
    }

    /// Takes room on the disk for the first `bytes` of a file, where the file system can: to write there does not fail
    /// for lack of it later.
    pub(crate) fn reserve(&self, file: &File, path: &Path, bytes: u64) -> Result<(), StoreError> {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            reserved => reserved.map_err(io::Error::from).map_err(StoreError::io(path)),
        }
    }

    /// Makes the bytes durable. After an error nobody knows which of them are.
    pub(crate) fn sync(&self, file: &File, path: &Path) -> Result<(), StoreError> {
        file.sync_data().map_err(StoreError::io(path))?;
        #[cfg(test)]
        self.watch.note(|| Step::Sync(path.into()));
        Ok(())
    }

    /// As [`Files::sync`] for each of them.
    pub(crate) fn sync_each<'a>(
        &self,
        files: impl ExactSizeIterator<Item = (&'a File, &'a Path)>,
    ) -> Result<(), StoreError> {
        if files.len() < MANY_FILES {
            return files.into_iter().try_for_each(|(file, path)| self.sync(file, path));
        }
        // A file that could not be written out tells so at its own handle, too.
        let root = File::open(&self.root).map_err(StoreError::io(&self.root))?;
        let synced = rustix::fs::syncfs(&root).map_err(io::Error::from);
        synced.map_err(StoreError::io(&self.root))?;
        #[cfg(test)]
        self.watch.note(|| Step::SyncAll);
        Ok(())
    }

    pub(crate) fn sync_directory(&self, path: &Path) -> Result<(), StoreError> {
        let synced = File::open(path).and_then(|directory| directory.sync_all());
        synced.map_err(StoreError::io(path))?;
        #[cfg(test)]
        self.watch.note(|| Step::SyncDirectory(path.into()));
        Ok(())
    }

    pub(crate) fn seal(&self, path: &Path) -> Result<(), StoreError> {
        let mode = fs::Permissions::from_mode(0o444);
        fs::set_permissions(path, mode).map_err(StoreError::io(path))
    }

    /// The caller syncs the directory.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        fs::rename(from, to).map_err(StoreError::io(to))?;
        #[cfg(test)]
        self.watch.note(|| Step::Rename(from.into(), to.into()));
        Ok(())
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), StoreError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Puts a file into quarantine, if it is there.
    pub(crate) fn set_aside(&self, path: &Path, name: &str) -> Result<(), StoreError> {
        let aside = self.quarantine(name);
        match fs::rename(path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(StoreError::io(path))?,
        }
        self.sync_directory(aside.parent().unwrap_or(&self.root))?;
        self.sync_directory(path.parent().unwrap_or(&self.root))
    }

    /// Writes a small file durably under its name, all or nothing.
    pub(crate) fn put(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let temporary = self.temporary();
        let file = self.create(&temporary)?;
        self.write_at(&file, &temporary, bytes, 0)?;
        self.sync(&file, &temporary)?;
        self.seal(&temporary)?;
        self.rename(&temporary, path)?;
        self.sync_directory(path.parent().unwrap_or(&self.root))
    }

    /// The names in one of the directories.
    pub(crate) fn names(&self, directory: &Path) -> Result<Vec<String>, StoreError> {
        let names = fs::read_dir(directory).and_then(|entries| {
            let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name());
            entries.map(name).collect::<io::Result<Vec<_>>>()
        });
        let names = names.map_err(StoreError::io(directory))?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }
}

/// Appends so many bytes of a file to `bytes`, into memory that was not zeroed for it.
pub(super) fn read_exact_at(
    file: &File,
    offset: u64,
    len: usize,
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    let start = bytes.len();
    bytes.reserve_exact(len);
    while bytes.len() - start < len {
        let at = offset + (bytes.len() - start) as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(bytes), at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // There may have been more room than was asked for.
    bytes.truncate(start + len);
    Ok(())
}

#[cfg(test)]
impl Watch {
    pub(crate) fn note(&self, step: impl FnOnce() -> Step) {
        if let Some(steps) = self.steps.lock().unwrap().as_mut() {
            steps.push(step());
        }
    }

    fn write(&self, path: &Path, bytes: usize) -> io::Result<()> {
        // The room of records was reserved.
        let is_reserved = path.extension().is_some_and(|end| end == "bits");
        if let (Some(room), false) = (self.room.lock().unwrap().as_mut(), is_reserved) {
            *room = room.checked_sub(bytes as u64).ok_or(io::ErrorKind::StorageFull)?;
        }
        self.note(|| Step::Write(path.into()));
        Ok(())
    }
}
