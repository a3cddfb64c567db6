//! What redb stands on: one of our files, and for a while a veil over it.
//!
//! redb repairs a file as it opens it. That is right after a crash and wrong on a file that turns
//! out to be damaged, from a newer mesh, or not ours at all: such a file must stay as it was found.
//! So a log is opened *on trial*: reads see the file with all changes laid over it, while the
//! changes themselves wait in memory. Once everything has been examined they are carried out, in
//! redb's order and with redb's syncs, so that a crash in between is one that redb can repair.
//!
//! ```text
//!   Trial ── accept ──► Direct        Trial ── refused ──► dropped, the file untouched
//!     └──── accept, but the disk failed ──► Dead
//! ```
//!
//! The backend also keeps the *acknowledgement*, in a sector of the first page that redb leaves
//! alone. redb takes a damaged last commit for a torn one and quietly goes back to the one before
//! it; the acknowledgement says that the last one had been synced and promised.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_consensus::planted::{Bug, Planted};

use crate::disk::File;

/// The first bytes of every redb file.
const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";
const PAGE: u64 = 4096;
/// The second sector. redb's own header ends at byte 320 and its first page at 4096.
const ACKNOWLEDGED_AT: u64 = 512;
const ACKNOWLEDGEMENT: usize = 16;

/// A file as redb sees it. A clone is a second handle on the same one.
#[derive(Debug, Clone)]
pub(super) struct Backend {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Box<dyn File>,
    mode: Mutex<Mode>,
    planted: Planted,
}

#[derive(Debug)]
enum Mode {
    Trial(Trial),
    Direct,
    Dead,
}

/// Changes that wait for the verdict.
#[derive(Debug)]
struct Trial {
    len: u64,
    /// How much of the file still shows through. What was cut off does not come back.
    visible: u64,
    /// Whole pages, as changed.
    pages: BTreeMap<u64, Vec<u8>>,
    ops: Vec<Op>,
}

#[derive(Debug)]
enum Op {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

impl Backend {
    /// Writes straight to the file.
    pub(super) fn direct(file: Box<dyn File>, planted: Planted) -> Self {
        Self { shared: Arc::new(Shared { file, mode: Mutex::new(Mode::Direct), planted }) }
    }

    /// Writes nothing to the file until [`Backend::accept`].
    pub(super) fn on_trial(file: Box<dyn File>, planted: Planted) -> io::Result<Self> {
        let len = file.len()?;
        let trial = Trial { len, visible: len, pages: BTreeMap::new(), ops: Vec::new() };
        Ok(Self {
            shared: Arc::new(Shared { file, mode: Mutex::new(Mode::Trial(trial)), planted }),
        })
    }

    /// Whether the file begins like a redb file; an error if it ends in its first page. redb would
    /// take an empty one for new.
    pub(super) fn looks_like_redb(&self) -> io::Result<bool> {
        let mut magic = [0; MAGIC.len()];
        let len = self.shared.file.len()?;
        if len < MAGIC.len() as u64 {
            return Ok(false);
        }
        self.shared.file.read_at(0, &mut magic)?;
        if magic == MAGIC && len < PAGE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(magic == MAGIC)
    }

    /// Ends the trial: what redb has done so far is carried out.
    pub(super) fn accept(&self) -> io::Result<()> {
        let mut mode = self.shared.mode();
        // Should the disk fail halfway, redb must not write on top of it as it closes.
        let Mode::Trial(trial) = std::mem::replace(&mut *mode, Mode::Dead) else {
            return Err(io::Error::other("there is no trial to end"));
        };
        for op in trial.ops {
            match op {
                Op::Write(offset, data) => self.shared.file.write_at(offset, &data)?,
                Op::SetLen(len) => self.shared.file.set_len(len)?,
                Op::Sync => self.shared.sync()?,
            }
        }
        *mode = Mode::Direct;
        Ok(())
    }

    /// Notes that write `seq` has been synced. The note itself is not synced: the next write's
    /// sync will do. Should it be lost with the power, only the proof is gone, not the write.
    pub(super) fn acknowledge(&self, seq: u64) -> io::Result<()> {
        if self.shared.planted.has(Bug::RetrySync) {
            // Whoever makes that mistake has no such note either.
            return Ok(());
        }
        let mut note = [0; ACKNOWLEDGEMENT];
        note[..8].copy_from_slice(&seq.to_le_bytes());
        note[8..].copy_from_slice(&proof(seq));
        self.shared.file.write_at(ACKNOWLEDGED_AT, &note)
    }

    /// The last write that is known to have been synced; `None` if the note is damaged.
    pub(super) fn acknowledged(&self) -> io::Result<Option<u64>> {
        let mut note = [0; ACKNOWLEDGEMENT];
        self.shared.file.read_at(ACKNOWLEDGED_AT, &mut note)?;
        if note == [0; ACKNOWLEDGEMENT] {
            return Ok(Some(0));
        }
        let (seq, found) = note.split_at(8);
        let seq = u64::from_le_bytes(seq.try_into().expect("split at eight"));
        Ok((found == proof(seq)).then_some(seq))
    }
}

fn proof(seq: u64) -> [u8; 8] {
    let hash = blake3::derive_key("mesh log acknowledgement 1", &seq.to_le_bytes());
    hash[..8].try_into().expect("a hash has 32 bytes")
}

impl Shared {
    fn mode(&self) -> MutexGuard<'_, Mode> {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync(&self) -> io::Result<()> {
        match self.file.sync() {
            Err(_) if self.planted.has(Bug::RetrySync) => self.file.sync(),
            answer => answer,
        }
    }
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        match &*self.shared.mode() {
            Mode::Trial(trial) => Ok(trial.len),
            Mode::Direct => self.shared.file.len(),
            Mode::Dead => Err(dead()),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &*self.shared.mode() {
            Mode::Trial(trial) => trial.read(&*self.shared.file, offset, out),
            Mode::Direct => self.shared.file.read_at(offset, out),
            Mode::Dead => Err(dead()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &mut *self.shared.mode() {
            Mode::Trial(trial) => trial.set_len(len),
            Mode::Direct => self.shared.file.set_len(len)?,
            Mode::Dead => return Err(dead()),
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        match &mut *self.shared.mode() {
            Mode::Trial(trial) => trial.ops.push(Op::Sync),
            Mode::Direct => self.shared.sync()?,
            Mode::Dead => return Err(dead()),
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &mut *self.shared.mode() {
            Mode::Trial(trial) => trial.write(&*self.shared.file, offset, data),
            Mode::Direct => self.shared.file.write_at(offset, data),
            Mode::Dead => Err(dead()),
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the disk failed while the log was being opened")
}

impl Trial {
    fn read(&self, file: &dyn File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Long runs of untouched pages are read at once: a snapshot may be one large value.
        while !out.is_empty() {
            let page = offset / PAGE;
            let start = (offset % PAGE) as usize;
            let changed = self.pages.get(&page);
            let run = match changed {
                Some(bytes) => bytes.len() - start,
                None => match self.pages.range(page..).next() {
                    Some((next, _)) => (next * PAGE - offset) as usize,
                    None => out.len(),
                },
            };
            let (now, later) = out.split_at_mut(run.min(out.len()));
            match changed {
                Some(bytes) => now.copy_from_slice(&bytes[start..start + now.len()]),
                None => self.read_through(file, offset, now)?,
            }
            offset += now.len() as u64;
            out = later;
        }
        Ok(())
    }

    fn read_through(&self, file: &dyn File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let shown = self.visible.saturating_sub(offset).min(out.len() as u64) as usize;
        let (from_file, beyond) = out.split_at_mut(shown);
        beyond.fill(0);
        if from_file.is_empty() { Ok(()) } else { file.read_at(offset, from_file) }
    }

    fn write(&mut self, file: &dyn File, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        self.ops.push(Op::Write(offset, data.to_vec()));
        self.len = self.len.max(end);
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let mut bytes = match self.pages.remove(&page) {
                Some(bytes) => bytes,
                None => {
                    let mut bytes = vec![0; PAGE as usize];
                    self.read_through(file, page * PAGE, &mut bytes)?;
                    bytes
                }
            };
            let from = offset.max(page * PAGE);
            let to = end.min((page + 1) * PAGE);
            bytes[(from - page * PAGE) as usize..(to - page * PAGE) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            self.pages.insert(page, bytes);
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) {
        self.ops.push(Op::SetLen(len));
        self.visible = self.visible.min(len);
        self.pages.split_off(&len.div_ceil(PAGE));
        if let Some(last) = self.pages.get_mut(&(len / PAGE)) {
            last[(len % PAGE) as usize..].fill(0);
        }
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use redb::StorageBackend as _;

    use super::*;
    use crate::disk::Disk as _;
    use crate::mem::MemDisk;

    #[test]
    fn a_trial_reads_what_was_written_and_leaves_the_file_alone() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..50 {
            let disk = MemDisk::new(rng.fork());
            let mut model: Vec<u8> = (0..rng.usize(1..30_000)).map(|_| rng.u8(..)).collect();
            disk.put("f", &model);
            let before = model.clone();
            let backend = Backend::on_trial(disk.open("f").unwrap(), Planted::default()).unwrap();
            for _ in 0..40 {
                let at = rng.usize(..model.len());
                match rng.u8(..4) {
                    0 => {
                        let len = rng.usize(1..40_000);
                        model.resize(len, 0);
                        backend.set_len(len as u64).unwrap();
                    }
                    1 => {
                        let data = vec![rng.u8(..); rng.usize(1..9000).min(model.len() - at)];
                        model[at..at + data.len()].copy_from_slice(&data);
                        backend.write(at as u64, &data).unwrap();
                    }
                    2 => backend.sync_data().unwrap(),
                    _ => {
                        let mut out = vec![0; rng.usize(..=model.len() - at)];
                        backend.read(at as u64, &mut out).unwrap();
                        assert_eq!(out, model[at..at + out.len()]);
                    }
                }
            }
            assert_eq!(backend.len().unwrap(), model.len() as u64);
            assert!(backend.read(1, &mut vec![0; model.len()]).is_err());
            assert_eq!(disk.contents("f").unwrap(), before);
            backend.accept().unwrap();
            assert_eq!(disk.contents("f").unwrap(), model);
        }
    }
}
