//! The edge between mesh and the file system.
//!
//! A [`Disk`] is one directory of named files. It has a real form, [`RealDisk`], and one in memory,
//! [`MemDisk`](crate::mem::MemDisk), which can crash, tear, rot and fill up. Both run the same test
//! suite, at the foot of this file.
//!
//! What a caller may count on, and nothing else:
//!
//! - A write survives a crash once a later [`File::sync`] of the same file has returned `Ok`. Until
//!   then it may survive in part, in any order among its neighbours.
//! - Creating, removing and renaming a file survive as soon as the call returns.
//! - After an error from a write or a sync nobody knows what is on disk: the kernel may have marked
//!   the pages clean without writing them. The handle is of no more use for writing.

use std::fmt::Debug;
use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// One directory of files.
pub trait Disk: Debug + Send + Sync {
    /// Opens the file, or creates it empty. Nobody else can open it while the handle lives: they
    /// get an error of kind [`io::ErrorKind::ResourceBusy`].
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// Whether there is such a file.
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Removes the file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives the file another name, atomically. A file that had that name is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
}

/// An open file, for its holder alone.
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait File: Debug + Send + Sync {
    /// How many bytes it has.
    fn len(&self) -> io::Result<u64>;
    /// Fills `out` from `offset` on. Beyond the end it is [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes all of `data` at `offset`, past the end if need be.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Cuts or extends the file. What is new reads as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns once every write so far is on stable storage.
    fn sync(&self) -> io::Result<()>;
}

/// A file that grows is filled with real zeros up to this many bytes.
///
/// A write into a hole, or into blocks that were only reserved, makes the file system change its
/// own records, so that the next sync has to wait for its journal too. More than this would
/// make the growing write slow, while such large steps are rare.
const FILLED: u64 = 64 << 20;

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// Opens the directory, and creates it with its parents, durably, if it is missing.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let missing: Vec<PathBuf> =
            root.ancestors().take_while(|path| !path.exists()).map(Path::to_path_buf).collect();
        fs::create_dir_all(&root)?;
        for path in missing {
            match path.parent() {
                Some(parent) if parent != Path::new("") => sync_directory(parent)?,
                _ => sync_directory(Path::new("."))?,
            }
        }
        Ok(Self { root })
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        Ok(self.root.join(name))
    }

    /// Makes names durable: a new, renamed or removed file is a write to its directory.
    fn sync_root(&self) -> io::Result<()> {
        sync_directory(&self.root)
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        let path = self.path(name)?;
        let is_new = !path.try_exists()?;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(name)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if is_new {
            self.sync_root()?;
        }
        Ok(Box::new(RealFile { file, failed: AtomicBool::new(false) }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.path(name)?.try_exists()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name)?)?;
        self.sync_root()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from)?, self.path(to)?)?;
        self.sync_root()
    }
}

#[derive(Debug)]
struct RealFile {
    file: fs::File,
    /// Set by the first failed write or sync, and never cleared: a second sync would answer "all is
    /// well" for pages that the first one dropped.
    failed: AtomicBool,
}

impl RealFile {
    fn unless_failed(&self, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier write or sync of this file failed"));
        }
        act().inspect_err(|_| self.failed.store(true, Ordering::Release))
    }
}

impl File for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.unless_failed(|| self.file.write_all_at(data, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.unless_failed(|| {
            let old = self.file.metadata()?.len();
            // The length first, in one step: a crash between the zeros must not leave a length
            // that nobody asked for.
            self.file.set_len(len)?;
            if (old..old + FILLED + 1).contains(&len) {
                write_zeros(&self.file, old, len)?;
            }
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        // The length counts as data here: fdatasync writes whatever a later read needs.
        self.unless_failed(|| self.file.sync_data())
    }
}

fn write_zeros(file: &fs::File, mut from: u64, to: u64) -> io::Result<()> {
    let zeros = [0; 64 << 10];
    while from < to {
        let step = (to - from).min(zeros.len() as u64);
        file.write_all_at(&zeros[..step as usize], from)?;
        from += step;
    }
    Ok(())
}

/// A name is one plain component of a path, so that no file lies outside its directory.
pub(crate) fn check_name(name: &str) -> io::Result<()> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is not the name of a file in a directory"),
        )),
    }
}

pub(crate) fn held(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, format!("another process holds {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemDisk;

    /// What every disk promises.
    fn suite(disk: &dyn Disk) {
        what_is_written_can_be_read(disk);
        a_file_grows_with_zeros_and_forgets_what_is_cut_off(disk);
        an_open_file_is_held(disk);
        a_renamed_file_keeps_its_bytes(disk);
        a_name_stays_inside_the_directory(disk);
    }

    fn what_is_written_can_be_read(disk: &dyn Disk) {
        assert!(!disk.exists("a").unwrap());
        let file = disk.open("a").unwrap();
        assert!(disk.exists("a").unwrap());
        assert_eq!(file.len().unwrap(), 0);
        file.write_at(4094, b"hello").unwrap();
        file.write_at(4095, b"E").unwrap();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 4099);
        let mut out = [1; 7];
        file.read_at(4092, &mut out).unwrap();
        assert_eq!(&out, b"\0\0hEllo");
        let error = file.read_at(4095, &mut out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(file);
        let file = disk.open("a").unwrap();
        file.read_at(4092, &mut out).unwrap();
        assert_eq!(&out, b"\0\0hEllo");
        drop(file);
        disk.remove("a").unwrap();
        assert!(!disk.exists("a").unwrap());
        assert_eq!(disk.remove("a").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    fn a_file_grows_with_zeros_and_forgets_what_is_cut_off(disk: &dyn Disk) {
        let file = disk.open("b").unwrap();
        file.write_at(0, &[7; 10_000]).unwrap();
        file.set_len(5000).unwrap();
        file.set_len(200_000).unwrap();
        assert_eq!(file.len().unwrap(), 200_000);
        let mut out = vec![1; 200_000];
        file.read_at(0, &mut out).unwrap();
        assert!(out[..5000].iter().all(|b| *b == 7));
        assert!(out[5000..].iter().all(|b| *b == 0));
        drop(file);
        disk.remove("b").unwrap();
    }

    fn an_open_file_is_held(disk: &dyn Disk) {
        let file = disk.open("c").unwrap();
        let error = disk.open("c").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(error.to_string(), "another process holds c");
        drop(file);
        drop(disk.open("c").unwrap());
        disk.remove("c").unwrap();
    }

    fn a_renamed_file_keeps_its_bytes(disk: &dyn Disk) {
        let file = disk.open("d").unwrap();
        file.write_at(0, b"new").unwrap();
        file.sync().unwrap();
        let old = disk.open("e").unwrap();
        old.write_at(0, b"old").unwrap();
        drop(old);
        disk.rename("d", "e").unwrap();
        assert!(!disk.exists("d").unwrap());
        // The handle follows the file to its new name.
        assert_eq!(disk.open("e").unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        file.write_at(3, b"er").unwrap();
        drop(file);
        let mut out = [0; 5];
        disk.open("e").unwrap().read_at(0, &mut out).unwrap();
        assert_eq!(&out, b"newer");
        disk.remove("e").unwrap();
    }

    fn a_name_stays_inside_the_directory(disk: &dyn Disk) {
        for name in ["", ".", "..", "/etc/passwd", "a/b", "../a", "a/", "./a"] {
            assert_eq!(disk.open(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
            assert!(disk.exists(name).is_err());
            assert!(disk.remove(name).is_err());
            assert!(disk.rename(name, "a").is_err());
        }
    }

    #[test]
    fn a_real_disk_keeps_its_promises() {
        let dir = tempfile::tempdir().unwrap();
        suite(&RealDisk::open(dir.path().join("deep/down")).unwrap());
    }

    #[test]
    fn a_disk_in_memory_keeps_its_promises() {
        suite(&MemDisk::new(fastrand::Rng::with_seed(1)));
    }

    #[test]
    fn after_one_failure_a_real_file_takes_no_more_writes() {
        // Writing to /dev/full fails as on a full disk.
        let file = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        let file = RealFile { file, failed: AtomicBool::new(false) };
        let error = file.write_at(0, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let error = file.sync().unwrap_err();
        assert_eq!(error.to_string(), "an earlier write or sync of this file failed");
        assert!(file.set_len(0).is_err());
    }
}
