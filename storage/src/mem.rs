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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, File, check_name, held};

const PAGE: usize = 4096;
/// What real disks write whole or not at all.
const SECTOR: u64 = 512;
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

#[derive(Clone)]
enum Op {
    Write { offset: u64, data: Vec<u8> },
    SetLen(u64),
}

#[derive(Clone, Default)]
struct Image {
    len: u64,
    /// As many as `len` needs. `None` is a page of zeros; bytes beyond `len` are zeros.
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
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

    /// Whether the power that [`MemDisk::crash_after`] was to cut has been cut.
    pub fn has_crashed(&self) -> bool {
        self.lock().until_crash == Some(0)
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
            Some(0) => Err(io::Error::other(CRASHED)),
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

impl Image {
    fn read(&self, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !out.is_empty() {
            let start = offset as usize % PAGE;
            let (now, later) = out.split_at_mut(out.len().min(PAGE - start));
            match &self.pages[page(offset)] {
                Some(bytes) => now.copy_from_slice(&bytes[start..start + now.len()]),
                None => now.fill(0),
            }
            offset += now.len() as u64;
            out = later;
        }
        Ok(())
    }

    fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        self.set_len(self.len.max(offset + data.len() as u64));
        while !data.is_empty() {
            let start = offset as usize % PAGE;
            let (now, later) = data.split_at(data.len().min(PAGE - start));
            let slot = &mut self.pages[page(offset)];
            if let Ok(whole) = <&[u8; PAGE]>::try_from(now) {
                *slot = Some(Arc::new(*whole));
            } else {
                let bytes = slot.get_or_insert_with(|| Arc::new([0; PAGE]));
                Arc::make_mut(bytes)[start..start + now.len()].copy_from_slice(now);
            }
            offset += now.len() as u64;
            data = later;
        }
    }

    fn set_len(&mut self, len: u64) {
        self.pages.resize((len as usize).div_ceil(PAGE), None);
        let tail = len as usize % PAGE;
        if len < self.len
            && tail > 0
            && let Some(Some(last)) = self.pages.last_mut()
        {
            Arc::make_mut(last)[tail..].fill(0);
        }
        self.len = len;
    }

    fn apply_torn(&mut self, op: Op, rng: &mut fastrand::Rng) {
        match op {
            Op::SetLen(len) => self.set_len(len),
            Op::Write { offset, data } => {
                let end = offset + data.len() as u64;
                // The boundaries inside the write: a write within one sector cannot tear.
                let (first, last) = (offset / SECTOR + 1, (end - 1) / SECTOR);
                if first > last || rng.u8(..4) > 0 {
                    return self.write(offset, &data);
                }
                let cut = (rng.u64(first..=last) * SECTOR - offset) as usize;
                if rng.bool() {
                    self.write(offset, &data[..cut]);
                } else {
                    self.write(offset + cut as u64, &data[cut..]);
                }
            }
        }
    }

    fn flip(&mut self, byte: u64, bit: u8) -> bool {
        if byte >= self.len {
            return false;
        }
        let bytes = self.pages[page(byte)].get_or_insert_with(|| Arc::new([0; PAGE]));
        Arc::make_mut(bytes)[byte as usize % PAGE] ^= 1 << (bit % 8);
        true
    }
}

fn page(offset: u64) -> usize {
    offset as usize / PAGE
}

fn pages_of(offset: u64, len: usize) -> std::ops::Range<usize> {
    page(offset)..(offset as usize + len).div_ceil(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(seed: u64) -> MemDisk {
        MemDisk::new(fastrand::Rng::with_seed(seed))
    }

    fn bytes(disk: &MemDisk) -> Vec<u8> {
        disk.contents("f").unwrap()
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_any_part_of_the_rest() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let disk = disk(seed);
            let file = disk.open("f").unwrap();
            file.write_at(0, &[1; 8192]).unwrap();
            file.sync().unwrap();
            file.write_at(0, &[2; 4096]).unwrap();
            disk.crash();
            let after = bytes(&disk);
            assert!(after[4096..].iter().all(|b| *b == 1));
            let new = after.iter().filter(|b| **b == 2).count();
            assert_eq!(new % 512, 0);
            match new {
                0 => lost += 1,
                4096 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 50 && kept > 50 && torn > 10, "{lost} {kept} {torn}");
    }

    #[test]
    fn the_same_seed_crashes_the_same_way() {
        let run = || {
            let disk = disk(7);
            let file = disk.open("f").unwrap();
            for i in 0..50_u8 {
                file.write_at(u64::from(i) * 700, &[i; 3000]).unwrap();
            }
            disk.crash();
            bytes(&disk)
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn a_handle_from_before_the_crash_is_dead() {
        let disk = disk(1);
        let file = disk.open("f").unwrap();
        disk.crash();
        assert!(is_simulated_crash(&file.write_at(0, b"x").unwrap_err()));
        assert!(is_simulated_crash(&file.sync().unwrap_err()));
        let again = disk.open("f").unwrap();
        drop(file);
        // The dead handle does not release what the new one holds.
        assert!(disk.open("f").is_err());
        drop(again);
    }

    #[test]
    fn losing_what_is_unsynced_loses_all_of_it() {
        let disk = disk(1);
        let file = disk.open("f").unwrap();
        file.write_at(0, b"old").unwrap();
        file.sync().unwrap();
        file.write_at(0, b"newer").unwrap();
        assert_eq!(bytes(&disk), b"newer");
        disk.lose_unsynced();
        assert_eq!(bytes(&disk), b"old");
    }

    #[test]
    fn a_failed_sync_forgets_while_readers_still_see() {
        let disk = disk(1);
        let file = disk.open("f").unwrap();
        file.set_len(8192).unwrap();
        file.sync().unwrap();
        file.write_at(0, b"lost").unwrap();
        disk.fail_next_sync();
        assert!(file.sync().is_err());
        file.write_at(4096, b"kept").unwrap();
        file.sync().unwrap();
        assert_eq!(&bytes(&disk)[..4], b"lost");
        disk.crash();
        assert_eq!(&bytes(&disk)[..4], b"\0\0\0\0");
        assert_eq!(&bytes(&disk)[4096..4100], b"kept");
    }

    #[test]
    fn a_full_disk_refuses_until_there_is_room() {
        let disk = disk(1);
        let file = disk.open("f").unwrap();
        disk.set_full(true);
        assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.set_len(9).unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.set_full(false);
        file.write_at(0, b"x").unwrap();
    }

    #[test]
    fn the_power_goes_at_the_effect_that_was_asked_for() {
        let disk = disk(1);
        let file = disk.open("f").unwrap();
        disk.crash_after(3);
        file.write_at(0, b"a").unwrap();
        file.sync().unwrap();
        assert!(!disk.has_crashed() || bytes(&disk) == b"a");
        assert!(is_simulated_crash(&file.write_at(0, b"b").unwrap_err()));
        assert!(is_simulated_crash(&disk.rename("f", "g").unwrap_err()));
        assert!(disk.has_crashed());
        disk.crash();
        assert_eq!(bytes(&disk), b"a");
        disk.rename("f", "g").unwrap();
    }

    #[test]
    fn rot_changes_one_bit_and_says_which() {
        let disk = disk(1);
        disk.put("f", &[0; 10_000]);
        let (name, byte, bit) = disk.rot(&mut fastrand::Rng::with_seed(3)).unwrap();
        assert_eq!(name, "f");
        let mut want = vec![0; 10_000];
        want[byte as usize] = 1 << bit;
        assert_eq!(bytes(&disk), want);
        let fork = disk.fork(fastrand::Rng::with_seed(0));
        fork.crash();
        assert_eq!(bytes(&fork), want);
        disk.wipe();
        assert!(!disk.exists("f").unwrap());
        assert!(disk.rot(&mut fastrand::Rng::with_seed(3)).is_none());
        assert_eq!(bytes(&fork), want);
    }
}
