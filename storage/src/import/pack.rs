//! Small files, one after another in packs.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use mesh_consensus::id::Hash;

use super::build::Member;
use super::file::segment;
use super::pipe::{self, Feed, Job, Sums, Work};
use super::walk::Source;
use super::{Import, ImportError, locked, unreadable};
use crate::chunk::{Chunk, cut, object_id};
use crate::store::{Content, Finished};

/// A pack may end from here on.
pub(super) const MIN_PACK: u64 = 16 << 20;
/// No pack is longer.
pub(super) const MAX_PACK: u64 = 64 << 20;
/// What is read before the next files are put into packs.
const ROUND: u64 = 8 << 20;
/// Files that one thread reads in a row.
const STRIDE: usize = 32;

/// A small file: its entry, and what is to be read.
type Small<'a> = (usize, &'a Source);

/// The bytes of a small file, and their hash.
type Hashed = (Vec<u8>, Hash);

/// Some small files, whole.
#[derive(Default)]
struct Pack<'a> {
    bytes: Vec<u8>,
    /// Each with the hash of its content.
    members: Vec<(Small<'a>, Hash)>,
}

/// Whether a pack ends after a file with this hash. The chance grows with the file's length, so that packs
/// are about [`MIN_PACK`] longer than they must be, whatever they consist of.
fn ends_pack(hash: Hash, bytes: u64) -> bool {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    let draw = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    draw < (u64::MAX / MIN_PACK).saturating_mul(bytes)
}

impl Import<'_> {
    /// Imports small files, which are in the order of their paths.
    pub(super) fn pack_files(
        &self,
        feed: &Feed<'_>,
        files: &[Small<'_>],
        has_failed: &AtomicBool,
    ) -> Result<(), ImportError> {
        if files.is_empty() {
            return Ok(());
        }
        std::thread::scope(|scope| {
            // One pack is stored while the next is filled.
            let (full, packs) = sync_channel::<Pack<'_>>(0);
            let storing = scope.spawn(move || self.store_packs(feed, &packs));
            let filled = self.fill_packs(files, has_failed, |pack| full.send(pack).is_ok());
            drop(full);
            let stored = storing.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
            stored.and(filled)
        })
    }

    fn fill_packs<'a>(
        &self,
        mut files: &[Small<'a>],
        has_failed: &AtomicBool,
        mut on_full: impl FnMut(Pack<'a>) -> bool,
    ) -> Result<(), ImportError> {
        let mut pack = Pack::default();
        while !files.is_empty() && !has_failed.load(Ordering::Relaxed) {
            self.check_cancel()?;
            let (mut sum, mut count) = (0, 0);
            while count < files.len() && sum < ROUND {
                sum += files[count].1.stamp.bytes;
                count += 1;
            }
            let (round, rest) = files.split_at(count);
            files = rest;
            for ((entry, source), (bytes, hash)) in round.iter().zip(self.read_round(round)?) {
                if (pack.bytes.len() + bytes.len()) as u64 > MAX_PACK
                    && !on_full(std::mem::take(&mut pack))
                {
                    return Ok(());
                }
                pack.bytes.extend_from_slice(&bytes);
                pack.members.push(((*entry, source), hash));
                let is_long = pack.bytes.len() as u64 >= MIN_PACK;
                if is_long
                    && ends_pack(hash, bytes.len() as u64)
                    && !on_full(std::mem::take(&mut pack))
                {
                    return Ok(());
                }
            }
        }
        if !pack.members.is_empty() {
            on_full(pack);
        }
        Ok(())
    }

    /// Reads some files, on several threads.
    fn read_round(&self, files: &[Small<'_>]) -> Result<Vec<Hashed>, ImportError> {
        let next = AtomicUsize::new(0);
        let strides: Vec<&[Small<'_>]> = files.chunks(STRIDE).collect();
        let read = || -> Result<Vec<(usize, Vec<Hashed>)>, ImportError> {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(stride) = strides.get(at) else { return Ok(done) };
                let stride = stride.iter().map(|(_, source)| self.read_small(source));
                done.push((at, stride.collect::<Result<_, _>>()?));
            }
        };
        let mut done = std::thread::scope(|scope| {
            let others: Vec<_> =
                (1..pipe::threads().min(strides.len()).max(1)).map(|_| scope.spawn(read)).collect();
            let mut done = read()?;
            for other in others {
                done.extend(other.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))?);
            }
            Ok::<_, ImportError>(done)
        })?;
        done.sort_unstable_by_key(|(at, _)| *at);
        Ok(done.into_iter().flat_map(|(_, stride)| stride).collect())
    }

    fn read_small(&self, source: &Source) -> Result<(Vec<u8>, Hash), ImportError> {
        let path = &source.file;
        let file = File::open(path).map_err(unreadable(path))?;
        // One more than there should be, to see whether there is more.
        let mut bytes = vec![0; source.stamp.bytes as usize + 1];
        let mut held = 0;
        while held < bytes.len() {
            match file.read_at(&mut bytes[held..], held as u64).map_err(unreadable(path))? {
                0 => break,
                read => held += read,
            }
        }
        bytes.truncate(held);
        if held as u64 != source.stamp.bytes {
            return Err(ImportError::Changed { path: path.clone() });
        }
        self.check_same(&file, source)?;
        let hash = Hash::of(&bytes);
        Ok((bytes, hash))
    }

    fn store_packs(&self, feed: &Feed<'_>, packs: &Receiver<Pack<'_>>) -> Result<(), ImportError> {
        packs.iter().try_for_each(|pack| self.store_pack(feed, pack))
    }

    fn store_pack(&self, feed: &Feed<'_>, pack: Pack<'_>) -> Result<(), ImportError> {
        self.check_cancel()?;
        let Pack { bytes, members } = pack;
        let block = Arc::new(self.pool.foreign(bytes));
        let chunks = cut_block(feed, &block)?;
        let id = object_id(&chunks);
        let mut segments = Vec::with_capacity(members.len());
        let mut offset = 0;
        for ((_, source), _) in &members {
            segments.push((offset, *source));
            offset += source.stamp.bytes;
        }
        if self.options.in_place {
            self.drop_bad_copy(id, &chunks)?;
            let segments: Vec<_> =
                segments.iter().map(|(offset, source)| (*offset, segment(source))).collect();
            let content = Content::InPlace(segments);
            self.finish(Finished { id, chunks: chunks.clone(), content })?;
        } else if !self.is_kept(id, &chunks)? {
            let files = &self.store.inner().files;
            let path = files.temporary();
            let file = files.create(&path)?;
            if let Err(error) = files.write_at(&file, &path, &block.bytes, 0) {
                _ = files.remove(&path);
                return Err(error.into());
            }
            let content = Content::Staged(Some(file), path);
            self.finish(Finished { id, chunks: chunks.clone(), content })?;
        }
        members.iter().for_each(|((_, source), _)| self.on_file(source.stamp.bytes));
        let member = |((entry, source), hash): &(Small<'_>, Hash)| Member {
            entry: *entry,
            bytes: source.stamp.bytes,
            content: *hash,
        };
        locked(&self.registry).add_pack(id, chunks, members.iter().map(member).collect());
        Ok(())
    }
}

fn cut_block(feed: &Feed<'_>, block: &Arc<pipe::Block>) -> Result<Vec<Chunk>, ImportError> {
    let sums = Arc::new(Sums::default());
    let (mut done, mut at) = (0, 0);
    while done < block.bytes.len() {
        let bytes = cut(done as u64, &block.bytes[done..]);
        let range = done..done + bytes;
        let (pieces, sums) = (vec![(block.clone(), range)], sums.clone());
        feed.give(Job::Hash(Work { pieces, target: None, offset: done as u64, sums, at }));
        at += 1;
        done += bytes;
    }
    Ok(sums.wait()?)
}
