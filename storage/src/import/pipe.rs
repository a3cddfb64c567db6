//! Threads that hash chunks and write them, fed through a bounded queue.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use mesh_consensus::id::Hash;

use super::locked;
use crate::chunk::{Chunk, MAX_CHUNK};
use crate::store::StoreError;
use crate::store::files::Files;

/// What is read at once.
pub(super) const BLOCK: usize = 4 * MAX_CHUNK as usize;

/// How many threads read, and how many hash.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |count| count.get()).clamp(2, 8)
}

/// Chunks that wait for a thread, for each thread.
const WAITING: usize = 2;

/// Where readers hand in their chunks.
#[derive(Clone)]
pub(super) struct Feed<'a> {
    files: &'a Files,
    /// Without a queue the reader does the work itself.
    queue: Option<SyncSender<Job>>,
}

/// Bytes that were read. The memory is used again after the last chunk in it is done.
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    home: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A file that is being written.
pub(super) struct Target {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

/// Something for the threads to do.
pub(super) enum Job {
    /// Finds the cuts of a block: where in its file it is, and how long.
    Guess(Arc<Block>, u64, usize, Arc<Guess>),
    /// Hashes a chunk.
    Hash(Work),
    /// Brings to disk what was written so far, so that less is left for the end.
    Sync(Arc<Target>, Arc<Sums>),
}

/// Parts of blocks.
pub(super) type Pieces = Vec<(Arc<Block>, Range<usize>)>;

/// A chunk to hash, and to write if there is a target.
pub(super) struct Work {
    /// One after another they are the chunk: it may lie across two blocks.
    pub(super) pieces: Pieces,
    pub(super) target: Option<Arc<Target>>,
    pub(super) offset: u64,
    pub(super) sums: Arc<Sums>,
    pub(super) at: usize,
}

/// The cuts of a block, once they are known.
#[derive(Default)]
pub(super) struct Guess {
    cuts: Mutex<Option<Vec<usize>>>,
    done: Condvar,
}

/// The chunks of one object as their hashes become known.
#[derive(Default)]
pub(super) struct Sums {
    state: Mutex<SumsState>,
    done: Condvar,
}

#[derive(Default)]
struct SumsState {
    chunks: Vec<Option<Chunk>>,
    pending: usize,
    failed: Option<StoreError>,
}

/// A queue for so many threads as there are, each of which should call [`work_off`].
pub(super) fn queue() -> (SyncSender<Job>, Mutex<Receiver<Job>>) {
    let (queue, work) = sync_channel(WAITING * threads());
    (queue, Mutex::new(work))
}

/// Does what is in the queue until nobody feeds it any more.
pub(super) fn work_off(files: &Files, queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = locked(queue).recv();
        let Ok(job) = job else { return };
        job.run(files);
    }
}

impl<'a> Feed<'a> {
    pub(super) fn new(files: &'a Files, queue: Option<SyncSender<Job>>) -> Self {
        Self { files, queue }
    }

    /// Hands in something to do. If the queue is full, the caller helps.
    pub(super) fn give(&self, job: Job) {
        match &job {
            Job::Hash(work) => work.sums.expect_chunk(work.at),
            Job::Sync(_, sums) => sums.expect(),
            Job::Guess(..) => {}
        }
        let job = match &self.queue {
            Some(queue) => match queue.try_send(job) {
                Ok(()) => return,
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job,
            },
            None => job,
        };
        job.run(self.files);
    }
}

impl Job {
    fn run(self, files: &Files) {
        match self {
            Job::Guess(block, start, len, guess) => guess.find(start, &block.bytes[..len]),
            Job::Hash(work) => work.run(files),
            Job::Sync(target, sums) => {
                let synced = files.sync(&target.file, &target.path);
                drop(target);
                sums.on_done(synced);
            }
        }
    }
}

impl Work {
    fn run(self, files: &Files) {
        let mut hasher = blake3::Hasher::new();
        let (mut offset, mut written) = (self.offset, Ok(()));
        for (block, range) in &self.pieces {
            let bytes = &block.bytes[range.clone()];
            hasher.update(bytes);
            if let (Some(target), true) = (&self.target, written.is_ok()) {
                written = files.write_at(&target.file, &target.path, bytes, offset);
            }
            offset += bytes.len() as u64;
        }
        let bytes = (offset - self.offset) as u32;
        let chunk = Chunk { id: Hash(*hasher.finalize().as_bytes()), bytes };
        // The blocks go home first, so that they are free once the object is done.
        let Work { sums, at, pieces, target, .. } = self;
        drop((pieces, target));
        sums.on_hashed(at, chunk);
        sums.on_done(written);
    }
}

impl Guess {
    fn find(&self, start: u64, bytes: &[u8]) {
        let found = super::cuts::guess(start, bytes);
        *locked(&self.cuts) = Some(found);
        self.done.notify_all();
    }

    /// Waits until somebody has found them.
    pub(super) fn wait(&self) -> Vec<usize> {
        let mut cuts = locked(&self.cuts);
        loop {
            if let Some(found) = cuts.take() {
                return found;
            }
            cuts = self.done.wait(cuts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Sums {
    fn expect(&self) {
        locked(&self.state).pending += 1;
    }

    fn expect_chunk(&self, at: usize) {
        let mut state = locked(&self.state);
        let len = state.chunks.len().max(at + 1);
        state.chunks.resize(len, None);
        state.pending += 1;
    }

    fn on_hashed(&self, at: usize, chunk: Chunk) {
        locked(&self.state).chunks[at] = Some(chunk);
    }

    fn on_done(&self, outcome: Result<(), StoreError>) {
        let mut state = locked(&self.state);
        state.pending -= 1;
        if let Err(error) = outcome {
            state.failed.get_or_insert(error);
        }
        if state.pending == 0 {
            self.done.notify_all();
        }
    }

    /// Waits for all chunks that were handed in.
    pub(super) fn wait(&self) -> Result<Vec<Chunk>, StoreError> {
        let mut state = locked(&self.state);
        while state.pending > 0 {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.failed.take() {
            Some(error) => Err(error),
            None => Ok(state.chunks.drain(..).flatten().collect()),
        }
    }
}

/// Memory for blocks, used again and again.
#[derive(Clone, Default)]
pub(super) struct Pool {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Pool {
    /// A block of [`BLOCK`] bytes with anything in it.
    pub(super) fn block(&self) -> Block {
        let bytes = locked(&self.free).pop().unwrap_or_else(|| vec![0; BLOCK]);
        Block { bytes, home: self.free.clone() }
    }

    /// A block of one's own bytes, which does not come back.
    pub(super) fn foreign(&self, bytes: Vec<u8>) -> Block {
        Block { bytes, home: Arc::default() }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        locked(&self.home).push(std::mem::take(&mut self.bytes));
    }
}
