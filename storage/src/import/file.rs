//! A file that is an object of its own: read once, cut, hashed and written at the same time.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mesh_consensus::id::{Hash, ObjectId};

use super::cuts::Cutter;
use super::pipe::{BLOCK, Feed, Guess, Job, Sums, Target, Work};
use super::walk::Source;
use super::{Import, ImportError, locked, unreadable};
use crate::chunk::{Chunk, HEAD_CHUNK, MAX_CHUNK, MIN_CHUNK, cut, object_id};
use crate::store::files::Stamp;
use crate::store::index::Segment;
use crate::store::{Content, Finished, StoreError};

/// So much is written before it is brought to disk, beside the reading of more.
const SYNC_BYTES: u64 = 128 << 20;
/// How many objects with the same chunk are looked at.
const LOOKALIKES: usize = 16;

impl Import<'_> {
    /// Imports a file as an object of its own, for the entry at `entry`.
    pub(super) fn whole_file(
        &self,
        feed: &Feed<'_>,
        entry: usize,
        source: &Source,
    ) -> Result<(), ImportError> {
        let (id, chunks) = self.store_file(feed, source)?;
        self.on_file(0);
        locked(&self.registry).add_file(entry, id, chunks);
        Ok(())
    }

    fn store_file(
        &self,
        feed: &Feed<'_>,
        source: &Source,
    ) -> Result<(ObjectId, Vec<Chunk>), ImportError> {
        self.check_cancel()?;
        let path = &source.file;
        let file = File::open(path).map_err(unreadable(path))?;
        self.check_same(&file, source)?;
        if self.options.in_place {
            let chunks = self.read(feed, &file, source, None)?;
            self.check_same(&file, source)?;
            self.drop_bad_copy(object_id(&chunks), &chunks)?;
            let content = Content::InPlace(vec![(0, segment(source))]);
            return self.finish_object(chunks, content);
        }
        if self.seems_known(&file, source)? {
            let chunks = self.read(feed, &file, source, None)?;
            let id = object_id(&chunks);
            if self.is_kept(id, &chunks)? {
                self.check_same(&file, source)?;
                return Ok((id, chunks));
            }
            self.bytes.fetch_sub(source.stamp.bytes, Ordering::Relaxed);
        }
        let files = &self.store.inner().files;
        let path = files.temporary();
        let target = Arc::new(Target { file: files.create(&path)?, path: path.clone() });
        let stored = self.copy(feed, &file, source, &target).and_then(|chunks| {
            self.check_same(&file, source)?;
            let staged = target.file.try_clone().map_err(unreadable(&path))?;
            Ok((chunks, Content::Staged(Some(staged), path.clone())))
        });
        match stored {
            Ok((chunks, content)) => self.finish_object(chunks, content),
            Err(error) => {
                _ = files.remove(&path);
                Err(error)
            }
        }
    }

    /// Whether the store has a good copy of an object, which is held from here on, so that nobody removes it before the
    /// manifest is there. What was read just now may be the only good one: the one that is here is looked at before it is
    /// relied on.
    pub(super) fn is_kept(&self, id: ObjectId, chunks: &[Chunk]) -> Result<bool, ImportError> {
        Ok(self.store.hold(self.token, id)? && self.is_sound(id, chunks)?)
    }

    /// A copy of our own goes before the user's files, and so must be good.
    pub(super) fn drop_bad_copy(&self, id: ObjectId, chunks: &[Chunk]) -> Result<(), ImportError> {
        if self.store.inner().index.holds(id).map_err(StoreError::from)? == Some(false) {
            self.is_sound(id, chunks)?;
        }
        Ok(())
    }

    /// Whether the store's copy of an object is good. If not, it is out of the way, and what was read just now will take
    /// its place.
    fn is_sound(&self, id: ObjectId, chunks: &[Chunk]) -> Result<bool, ImportError> {
        let is_sound = self.store.is_sound(id, chunks, self.now)?;
        if !is_sound {
            locked(&self.mended).insert(id);
        }
        Ok(is_sound)
    }

    fn finish_object(
        &self,
        chunks: Vec<Chunk>,
        content: Content,
    ) -> Result<(ObjectId, Vec<Chunk>), ImportError> {
        let id = object_id(&chunks);
        self.finish(Finished { id, chunks: chunks.clone(), content })?;
        Ok((id, chunks))
    }

    /// Brings the content into the target, by sharing its blocks if the file system can.
    fn copy(
        &self,
        feed: &Feed<'_>,
        file: &File,
        source: &Source,
        target: &Arc<Target>,
    ) -> Result<Vec<Chunk>, ImportError> {
        if self.can_clone.load(Ordering::Relaxed) {
            if rustix::fs::ioctl_ficlone(&target.file, file).is_ok() {
                // Nobody can change the clone, so what is hashed is what is kept.
                return self.read(feed, &target.file, source, None);
            }
            self.can_clone.store(false, Ordering::Relaxed);
        }
        self.read(feed, file, source, Some(target))
    }

    /// Reads a file to its end, and hands its chunks on to be hashed and, with a target, written.
    fn read(
        &self,
        feed: &Feed<'_>,
        file: &File,
        source: &Source,
        target: Option<&Arc<Target>>,
    ) -> Result<Vec<Chunk>, ImportError> {
        let sums = Arc::new(Sums::default());
        let read = self.feed(feed, file, source, target, &sums);
        // Whatever happened, the target is not to be touched while chunks are on their way.
        let chunks = sums.wait();
        read?;
        Ok(chunks?)
    }

    fn feed(
        &self,
        feed: &Feed<'_>,
        file: &File,
        source: &Source,
        target: Option<&Arc<Target>>,
        sums: &Arc<Sums>,
    ) -> Result<(), ImportError> {
        let path = &source.file;
        let size = source.stamp.bytes;
        let (mut cutter, mut ahead) = (Cutter::default(), VecDeque::new());
        let (mut read, mut is_end, mut at, mut unsynced) = (0u64, false, 0, 0);
        loop {
            // Some blocks are searched for cuts while the one before them is hashed.
            while !is_end && ahead.len() < self.read_ahead {
                self.check_cancel()?;
                let mut block = self.pool.block();
                let start = read;
                let held = read_full(file, &mut block.bytes, start).map_err(unreadable(path))?;
                read += held as u64;
                is_end = held < BLOCK || read >= size;
                if is_end && read != size {
                    return Err(changed(path));
                }
                let (block, guess) = (Arc::new(block), Arc::new(Guess::default()));
                feed.give(Job::Guess(block.clone(), start, held, guess.clone()));
                ahead.push_back((block, held, guess, is_end));
            }
            let Some((block, held, guess, is_last)) = ahead.pop_front() else { return Ok(()) };
            cutter.add(block, held, guess.wait(), is_last);
            while let Some((offset, pieces)) = cutter.next_chunk() {
                let bytes: usize = pieces.iter().map(|(_, range)| range.len()).sum();
                let (target, sums) = (target.cloned(), sums.clone());
                feed.give(Job::Hash(Work { pieces, target, offset, sums, at }));
                at += 1;
                unsynced += bytes as u64;
                self.on_bytes(bytes as u64);
            }
            if let (Some(target), SYNC_BYTES..) = (target, unsynced) {
                unsynced = 0;
                feed.give(Job::Sync(target.clone(), sums.clone()));
            }
        }
    }

    /// Whether an object of this length and with the same chunk after its head is here: then it is worth a look
    /// before anything is written.
    fn seems_known(&self, file: &File, source: &Source) -> Result<bool, ImportError> {
        let skipped =
            if source.stamp.bytes > u64::from(MIN_CHUNK) { u64::from(HEAD_CHUNK) } else { 0 };
        let len = (source.stamp.bytes - skipped).min(u64::from(MAX_CHUNK)) as usize;
        let mut block = self.pool.block();
        let start = &mut block.bytes[..len];
        if file.read_exact_at(start, skipped).is_err() {
            return Ok(false); // It is found again where the file is read.
        }
        let first = Hash::of(&start[..cut(skipped, start)]);
        let index = &self.store.inner().index;
        let found = index.locations(first, LOOKALIKES).map_err(StoreError::from)?;
        for (id, offset) in found {
            let outline = index.outline(id).map_err(StoreError::from)?;
            if offset == skipped && outline == Some((source.stamp.bytes, false)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the file is as it was when the tree was walked.
    pub(super) fn check_same(&self, file: &File, source: &Source) -> Result<(), ImportError> {
        let now = Stamp::of(&file.metadata().map_err(unreadable(&source.file))?);
        let was = source.stamp;
        if (now.bytes, now.mtime, now.inode) == (was.bytes, was.mtime, was.inode) {
            Ok(())
        } else {
            Err(changed(&source.file))
        }
    }
}

/// Fills `bytes` from `offset` on, as far as the file goes.
fn read_full(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut held = 0;
    while held < bytes.len() {
        match file.read_at(&mut bytes[held..], offset + held as u64) {
            Ok(0) => break,
            Ok(read) => held += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}

fn changed(path: &Path) -> ImportError {
    ImportError::Changed { path: path.to_path_buf() }
}

/// How the index remembers a file of the user.
pub(super) fn segment(source: &Source) -> Segment {
    Segment { path: source.file.as_os_str().as_bytes().to_vec(), stamp: source.stamp }
}
