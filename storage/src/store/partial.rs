//! An object that is being fetched: which chunks are there, and which of them a power cut cannot take.
//!
//! `.data` has the length of the object from the start. `.bits` is a header and records, each with the numbers
//! of some chunks and a checksum; a record is written only after the chunks in it are on stable storage. What follows
//! the last record that fits was being written when the power went, or is empty: its room is taken before the first
//! chunk is written, so that a disk that fills up cannot keep us from recording what it holds.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;

use super::files::{Files, Stamp, read_exact_at};
use super::{StoreError, lock};
use crate::bitmap::Bitmap;
use crate::chunk::Chunk;

const MAGIC: &[u8] = b"mesh bits 1\n";
/// What was written this lately, and is read again, comes from memory.
const LATELY: Duration = Duration::from_secs(10);
/// Bytes of the checksum of a record.
const CHECK: usize = 16;

/// An object of which some chunks are here.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) id: ObjectId,
    pub(super) chunks: Vec<Chunk>,
    bytes: u64,
    pub(super) data: PathBuf,
    bits: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Chunks that were verified and written.
    have: Bitmap,
    /// Chunks that somebody is writing.
    writing: Bitmap,
    /// Of those we have, the ones that are in no record yet.
    fresh: Vec<u32>,
    /// Those of the last record.
    last: Vec<u32>,
    /// Open while there is something to sync.
    file: Option<Arc<File>>,
    /// Where the next record goes.
    bits_end: u64,
    /// Whether it is an object now.
    is_whole: bool,
}

/// Chunks that are written and not yet synced.
pub(super) struct Unsynced {
    pub(super) file: Arc<File>,
    chunks: Vec<u32>,
}

impl Partial {
    /// Goes on from what is on disk, if anything usable is.
    pub(super) fn open(
        files: &Files,
        id: ObjectId,
        chunks: Vec<Chunk>,
    ) -> Result<Self, StoreError> {
        let bytes = chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
        let (data, bits) = (files.partial(id, "data"), files.partial(id, "bits"));
        let count = chunks.len();
        let is_usable = fs::metadata(&data).is_ok_and(|meta| meta.len() == bytes);
        let recorded = if is_usable { fs::read(&bits).unwrap_or_default() } else { Vec::new() };
        let (have, bits_end) = read_bits(id, count, &recorded);
        if bits_end == 0 {
            files.remove(&bits)?;
        }
        let state = State {
            have,
            writing: Bitmap::new(count),
            fresh: Vec::new(),
            last: Vec::new(),
            file: None,
            bits_end,
            is_whole: false,
        };
        Ok(Self { id, chunks, bytes, data, bits, state: Mutex::new(state) })
    }

    /// The chunks that are there: all, once it is an object.
    pub(super) fn have(&self) -> Bitmap {
        lock(&self.state).have.clone()
    }

    pub(super) fn is_whole(&self) -> bool {
        lock(&self.state).is_whole
    }

    pub(super) fn has(&self, chunk: usize) -> bool {
        lock(&self.state).have.get(chunk)
    }

    /// Writes a chunk that was verified. False if it is there, or somebody else is at it.
    pub(super) fn write(
        &self,
        files: &Files,
        chunk: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, StoreError> {
        let file = {
            let mut state = lock(&self.state);
            if state.is_whole || state.have.get(chunk) || state.writing.get(chunk) {
                return Ok(false);
            }
            let file = self.file(files, &mut state)?;
            state.writing.set(chunk);
            file
        };
        let written = files.write_at(&file, &self.data, bytes, offset);
        let mut state = lock(&self.state);
        state.writing.clear(chunk);
        written?;
        state.have.set(chunk);
        state.fresh.push(u32::try_from(chunk).unwrap_or(u32::MAX));
        Ok(true)
    }

    fn file(&self, files: &Files, state: &mut State) -> Result<Arc<File>, StoreError> {
        if let Some(file) = &state.file {
            return Ok(file.clone());
        }
        let file = files.create(&self.data)?;
        file.set_len(self.bytes).map_err(StoreError::io(&self.data))?;
        let bits = files.create(&self.bits)?;
        // What stands behind the records that count must never count: it may be of another `.data`.
        bits.set_len(state.bits_end).map_err(StoreError::io(&self.bits))?;
        let records = self.chunks.len() * (4 + 4 + CHECK);
        let room = MAGIC.len() + self.id.0.len() + records;
        files.reserve(&bits, &self.bits, room as u64)?;
        let file = Arc::new(file);
        state.file = Some(file.clone());
        Ok(file)
    }

    /// Reads a chunk that is there. The caller compares its hash, unless it [is in memory](Self::is_in_memory).
    pub(super) fn read(
        &self,
        offset: u64,
        len: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<Stamp, StoreError> {
        let read = File::open(&self.data).and_then(|file| {
            read_exact_at(&file, offset, len, bytes)?;
            file.metadata()
        });
        read.map(|meta| Stamp::of(&meta)).map_err(StoreError::io(&self.data))
    }

    /// Whether a chunk was verified and written so lately that the disk has had no part in it: it is among those that
    /// are not synced yet, or were last, and more is being written.
    pub(super) fn is_in_memory(&self, chunk: usize, stamp: Stamp, now: Time) -> bool {
        let changed = Time((stamp.mtime.0.max(0) as u64).saturating_mul(1000));
        if now < changed || now.since(changed) > LATELY {
            return false;
        }
        let state = lock(&self.state);
        let is_it = |number: &u32| *number as usize == chunk;
        state.fresh.iter().any(is_it) || state.last.iter().any(is_it)
    }

    /// Forgets a chunk that turned out to be something else.
    pub(super) fn forget(&self, files: &Files, chunk: usize) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if state.have.clear(chunk) {
            // The record of it is on disk: begin anew with what is left.
            files.remove(&self.bits)?;
            state.bits_end = 0;
            state.fresh = state.have.present().map(|at| at as u32).collect();
        }
        Ok(())
    }

    /// Takes what is to be synced: the caller syncs the file, then says so. One caller at a time.
    pub(super) fn start_sync(&self, files: &Files) -> Result<Option<Unsynced>, StoreError> {
        let mut state = lock(&self.state);
        let is_complete = state.have.is_full() && !state.is_whole;
        if state.fresh.is_empty() && !is_complete {
            return Ok(None);
        }
        let file = self.file(files, &mut state)?;
        Ok(Some(Unsynced { file, chunks: std::mem::take(&mut state.fresh) }))
    }

    /// The sync failed: nobody knows which of the chunks are on disk.
    pub(super) fn on_sync_failed(&self, unsynced: Unsynced) {
        let mut state = lock(&self.state);
        for chunk in unsynced.chunks {
            state.have.clear(chunk as usize);
        }
        state.file = None;
    }

    /// There was no sync: they are to be taken once more.
    pub(super) fn on_sync_put_off(&self, unsynced: Unsynced) {
        lock(&self.state).fresh.extend(unsynced.chunks);
    }

    /// The sync is done. Whether all is there, and can be claimed; if not, the record that is to be synced.
    pub(super) fn on_synced(
        &self,
        files: &Files,
        unsynced: Unsynced,
    ) -> Result<Option<(File, PathBuf)>, StoreError> {
        let mut state = lock(&self.state);
        if state.have.is_full() && state.fresh.is_empty() {
            return Ok(None);
        }
        if state.fresh.is_empty() && state.writing.count() == 0 {
            state.file = None;
        }
        let recorded = self.record(files, &mut state, &unsynced.chunks);
        match recorded {
            Ok(_) => state.last = unsynced.chunks,
            // They are on disk, and can be recorded next time.
            Err(_) => state.fresh.extend(unsynced.chunks),
        }
        recorded.map(|file| Some((file, self.bits.clone())))
    }

    fn record(&self, files: &Files, state: &mut State, fresh: &[u32]) -> Result<File, StoreError> {
        let mut bytes = Vec::new();
        if state.bits_end == 0 {
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(&self.id.0);
        }
        bytes.extend(encode_record(self.id, fresh));
        let file = files.create(&self.bits)?;
        files.write_at(&file, &self.bits, &bytes, state.bits_end)?;
        state.bits_end += bytes.len() as u64;
        Ok(file)
    }

    /// It was claimed, and is an object now.
    pub(super) fn on_claimed(&self, files: &Files) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        state.is_whole = true;
        state.file = None;
        files.remove(&self.bits)
    }
}

fn check(id: ObjectId, record: &[u8]) -> [u8; CHECK] {
    let mut check = [0; CHECK];
    check.copy_from_slice(&Hash::of(&[&id.0, record].concat()).0[..CHECK]);
    check
}

fn encode_record(id: ObjectId, chunks: &[u32]) -> Vec<u8> {
    let mut record = u32::try_from(chunks.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    record.extend(chunks.iter().flat_map(|chunk| chunk.to_le_bytes()));
    record.extend(check(id, &record));
    record
}

/// The chunks in all records that fit, and where the last of these ends.
fn read_bits(id: ObjectId, count: usize, bytes: &[u8]) -> (Bitmap, u64) {
    let mut have = Bitmap::new(count);
    let header = [MAGIC, &id.0].concat();
    let Some(mut rest) = bytes.strip_prefix(&header[..]) else { return (have, 0) };
    while let Some((len, _)) = rest.split_first_chunk::<4>() {
        let Some(end) = (u32::from_le_bytes(*len) as usize).checked_mul(4).map(|len| len + 4)
        else {
            break;
        };
        let Some((record, tail)) = rest.split_at_checked(end) else { break };
        let Some((found, tail)) = tail.split_first_chunk::<CHECK>() else { break };
        if *found != check(id, record) {
            break;
        }
        for number in record[4..].chunks_exact(4) {
            let number = number.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX);
            have.set(number as usize);
        }
        rest = tail;
    }
    (have, (bytes.len() - rest.len()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_believed_up_to_the_first_record_that_does_not_fit() {
        let id = ObjectId([7; 32]);
        let header = [MAGIC, &id.0].concat();
        let (first, second) = (encode_record(id, &[0, 5]), encode_record(id, &[2]));
        let whole = [&header[..], &first, &second].concat();
        let read = |bytes: &[u8]| {
            let (have, end) = read_bits(id, 6, bytes);
            (have.present().collect::<Vec<_>>(), end as usize)
        };
        assert_eq!(read(&whole), (vec![0, 2, 5], whole.len()));
        for end in 0..whole.len() {
            let (have, at) = read(&whole[..end]);
            assert!(at <= end);
            let want: &[usize] = if end >= header.len() + first.len() { &[0, 5] } else { &[] };
            assert_eq!(have, want, "cut at {end}");
        }
        for at in 0..whole.len() {
            let mut torn = whole.clone();
            torn[at] ^= 4;
            assert_ne!(read(&torn).0, vec![0, 2, 5], "flipped at {at}");
        }
        // Nor those of another object.
        assert_eq!(read_bits(ObjectId([8; 32]), 6, &whole).0.count(), 0);
    }
}
