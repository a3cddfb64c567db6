//! A disk in memory that fails the way real ones do, as often as a test asks for it.
//!
//! Of every file it keeps two images, what a reader sees and what is on the platter, and between
//! them the operations that no sync has covered yet:
//!
//! ```text
//!  write, set_len ──► view          (what read_at answers)
//!          └───────► pending ──┐
//!                       sync   │    crash: some of them, some torn, none in order
//!                              ▼
//!                           synced  (what is left after a crash)
//! ```
//!
//! Images share their pages, so an untouched page is never copied, a hole costs nothing, and a
//! [`MemDisk::fork`] is cheap: a simulator makes thousands of them. Whatever is random comes from
//! the generator given at construction.

mod image;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::image::{Image, Op, page, pages_of};
use crate::disk::{Disk, File, check_name, held};

const CRASHED: &str = "simulated crash";

/// Whether `error` comes from [`MemDisk::crash_after`], or from a handle that a crash cut off.
pub fn is_simulated_crash(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other && error.to_string() == CRASHED
}

/// What has happened to a disk since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Writes and changes of length.
    pub writes: u64,
    /// The bytes that these writes held.
    pub bytes_written: u64,
    /// Syncs, failed ones too.
    pub syncs: u64,
}

/// A disk in memory. A clone is a second handle on the same disk.
#[derive(Clone)]
pub struct MemDisk {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    rng: fastrand::Rng,
    names: BTreeMap<String, u64>,
    /// Every file that has a name or a handle.
    files: BTreeMap<u64, Content>,
    next_id: u64,
    /// Goes up with every crash. A handle of an earlier life is dead.
    life: u64,
    /// Effects that still succeed before the power goes.
    until_crash: Option<u64>,
    /// Whether one has failed because it was gone.
    has_crashed: bool,
    fail_next_sync: bool,
    is_full: bool,
    counters: Counters,
}

#[derive(Clone, Default)]
struct Content {
    view: Image,
    synced: Image,
    pending: Vec<Op>,
    /// The pages in which `view` and `synced` may differ, and which the next sync will write.
    dirty: BTreeSet<usize>,
    is_open: bool,
}

impl MemDisk {
    /// An empty disk.
    pub fn new(rng: fastrand::Rng) -> Self {
        Self::with(Inner {
            rng,
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            next_id: 0,
            life: 0,
            until_crash: None,
            has_crashed: false,
            fail_next_sync: false,
            is_full: false,
            counters: Counters::default(),
        })
    }

    /// Another disk that holds what this one shows at the moment, synced or not; nothing is
    /// pending on it and no fault is armed.
    pub fn fork(&self, rng: fastrand::Rng) -> Self {
        let inner = self.lock();
        let files = inner.names.values().map(|id| {
            let view = inner.files[id].view.clone();
            (*id, Content { synced: view.clone(), view, ..Content::default() })
        });
        Self::with(Inner {
            rng,
            names: inner.names.clone(),
            files: files.collect(),
            next_id: inner.next_id,
            life: 0,
            until_crash: None,
            has_crashed: false,
            fail_next_sync: false,
            is_full: false,
            counters: Counters::default(),
        })
    }

    /// The power goes and comes back. Of what was not synced each operation survives or not, and
    /// of a surviving write perhaps only the sectors on one side of a boundary. All handles are
    /// dead, and faults that were armed are disarmed.
    ///
    /// Crash the disk before dropping whatever writes to it: a tidy farewell is no crash.
    pub fn crash(&self) {
        self.restart(|content, rng| {
            for op in std::mem::take(&mut content.pending) {
                if rng.bool() {
                    content.synced.apply_torn(op, rng);
                }
            }
        });
    }

    /// Like [`MemDisk::crash`], but nothing survives that was not synced.
    pub fn lose_unsynced(&self) {
        self.restart(|content, _| content.pending.clear());
    }

    fn restart(&self, mut decide: impl FnMut(&mut Content, &mut fastrand::Rng)) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.life += 1;
        inner.until_crash = None;
        inner.has_crashed = false;
        inner.fail_next_sync = false;
        let named: BTreeSet<u64> = inner.names.values().copied().collect();
        inner.files.retain(|id, _| named.contains(id));
        for content in inner.files.values_mut() {
            decide(content, &mut inner.rng);
            content.view = content.synced.clone();
            content.dirty.clear();
            content.is_open = false;
        }
    }

    /// The disk is replaced by an empty one. All handles are dead.
    pub fn wipe(&self) {
        let mut inner = self.lock();
        inner.names.clear();
        drop(inner);
        self.restart(|_, _| {});
    }

    /// Cuts the power at the `n`-th effect from now: that one and all later ones fail, until
    /// [`MemDisk::crash`]. An effect is a write, a change of length, a sync, or the creation,
    /// removal or renaming of a file. `crash_after(1)` fails the next one.
    pub fn crash_after(&self, n: u64) {
        self.lock().until_crash = Some(n.saturating_sub(1));
    }

    /// Whether an effect has failed since, because [`MemDisk::crash_after`] had cut the power.
    pub fn has_crashed(&self) -> bool {
        self.lock().has_crashed
    }

    /// The next sync fails, and as on Linux it forgets what it should have written: readers still
    /// see it, later syncs succeed, and after a crash it is gone.
    pub fn fail_next_sync(&self) {
        self.lock().fail_next_sync = true;
    }

    /// While full, the disk refuses every write and every growth.
    pub fn set_full(&self, is_full: bool) {
        self.lock().is_full = is_full;
    }

    /// Flips one bit of what is on the platter, and of what a reader sees. `false` if the file
    /// has no such byte.
    pub fn flip_bit(&self, name: &str, byte: u64, bit: u8) -> bool {
        let mut inner = self.lock();
        let Some(id) = inner.names.get(name).copied() else { return false };
        let content = inner.files.get_mut(&id).expect("a name leads to a file");
        let was_synced = content.synced.flip(byte, bit);
        content.view.flip(byte, bit) | was_synced
    }

    /// Flips a random bit of what is on the platter, and says where: file, byte and bit.
    pub fn rot(&self, rng: &mut fastrand::Rng) -> Option<(String, u64, u8)> {
        let sizes: Vec<(String, u64)> = {
            let inner = self.lock();
            let size = |id| inner.files.get(id).map_or(0, |content| content.synced.len);
            inner.names.iter().map(|(name, id)| (name.clone(), size(id))).collect()
        };
        let total: u64 = sizes.iter().map(|(_, size)| size).sum();
        let mut byte = if total == 0 { return None } else { rng.u64(..total) };
        for (name, size) in sizes {
            if byte < size {
                let bit = rng.u8(..8);
                self.flip_bit(&name, byte, bit);
                return Some((name, byte, bit));
            }
            byte -= size;
        }
        None
    }

    /// What a reader sees of a file, all of it.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let inner = self.lock();
        let view = &inner.files[inner.names.get(name)?].view;
        let mut bytes = vec![0; usize::try_from(view.len).ok()?];
        view.read(0, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Puts a file in place, synced, instead of what had its name.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut image = Image::default();
        image.write(0, bytes);
        let mut inner = self.lock();
        let id = inner.new_file();
        inner.names.insert(name.to_owned(), id);
        let content = Content { view: image.clone(), synced: image, ..Content::default() };
        inner.files.insert(id, content);
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    fn with(inner: Inner) -> Self {
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere (redb panics on some damaged files) leaves nothing half done in here.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("MemDisk")
            .field("names", &inner.names)
            .field("counters", &inner.counters)
            .finish_non_exhaustive()
    }
}

impl Disk for MemDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        check_name(name)?;
        let mut inner = self.lock();
        let id = match inner.names.get(name) {
            Some(id) => *id,
            None => {
                inner.effect()?;
                let id = inner.new_file();
                inner.names.insert(name.to_owned(), id);
                inner.files.insert(id, Content::default());
                id
            }
        };
        let content = inner.files.get_mut(&id).expect("a name leads to a file");
        if std::mem::replace(&mut content.is_open, true) {
            return Err(held(name));
        }
        Ok(Box::new(MemFile { disk: self.clone(), id, life: inner.life }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        check_name(name)?;
        Ok(self.lock().names.contains_key(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let mut inner = self.lock();
        if !inner.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        inner.effect()?;
        inner.unlink(name);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut inner = self.lock();
        let Some(id) = inner.names.get(from).copied() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        inner.effect()?;
        if from != to {
            inner.unlink(to);
            inner.names.remove(from);
            inner.names.insert(to.to_owned(), id);
        }
        Ok(())
    }
}

impl Inner {
    fn new_file(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn unlink(&mut self, name: &str) {
        if let Some(id) = self.names.remove(name)
            && !self.files[&id].is_open
        {
            self.files.remove(&id);
        }
    }

    /// Counts down to the crash.
    fn effect(&mut self) -> io::Result<()> {
        match &mut self.until_crash {
            Some(0) => {
                self.has_crashed = true;
                Err(io::Error::other(CRASHED))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn room(&self) -> io::Result<()> {
        if self.is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

struct MemFile {
    disk: MemDisk,
    id: u64,
    life: u64,
}

impl fmt::Debug for MemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemFile({})", self.id)
    }
}

impl MemFile {
    fn with<T>(&self, act: impl FnOnce(&mut Inner, u64) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.disk.lock();
        if inner.life != self.life {
            return Err(io::Error::other(CRASHED));
        }
        act(&mut inner, self.id)
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        let mut inner = self.disk.lock();
        if inner.life != self.life {
            return;
        }
        if inner.names.values().any(|id| *id == self.id) {
            if let Some(content) = inner.files.get_mut(&self.id) {
                content.is_open = false;
            }
        } else {
            inner.files.remove(&self.id);
        }
    }
}

impl File for MemFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|inner, id| Ok(inner.files[&id].view.len))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|inner, id| inner.files[&id].view.read(offset, out))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|inner, id| {
            inner.effect()?;
            inner.room()?;
            inner.counters.writes += 1;
            inner.counters.bytes_written += data.len() as u64;
            let content = inner.files.get_mut(&id).expect("an open file exists");
            content.view.write(offset, data);
            content.dirty.extend(pages_of(offset, data.len()));
            content.pending.push(Op::Write { offset, data: data.to_vec() });
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|inner, id| {
            inner.effect()?;
            if len > inner.files[&id].view.len {
                inner.room()?;
            }
            inner.counters.writes += 1;
            let content = inner.files.get_mut(&id).expect("an open file exists");
            // What is cut off must not come back when the file grows again before the next sync.
            content.dirty.extend(page(len)..content.view.pages.len());
            content.view.set_len(len);
            content.pending.push(Op::SetLen(len));
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|inner, id| {
            inner.effect()?;
            inner.counters.syncs += 1;
            let content = inner.files.get_mut(&id).expect("an open file exists");
            content.pending.clear();
            let dirty = std::mem::take(&mut content.dirty);
            if std::mem::take(&mut inner.fail_next_sync) {
                return Err(io::Error::other("simulated input/output error"));
            }
            content.synced.set_len(content.view.len);
            for page in dirty {
                if let Some(source) = content.view.pages.get(page) {
                    content.synced.pages[page] = source.clone();
                }
            }
            Ok(())
        })
    }
}
