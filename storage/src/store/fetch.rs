//! A pull in progress: chunks come in any order, from several threads, until all are there.
//!
//! Each chunk is compared with its name before it is written. Now and then what was written is synced, and only
//! then recorded: after a crash the fetch goes on from what was recorded. An object whose chunks are all there
//! is claimed at once; the manifest when everything is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;

use super::claim::Content;
use super::partial::Partial;
use super::{Finished, Lease, Loaded, Store, StoreError, index, lock};
use crate::bitmap::Bitmap;
use crate::manifest::Manifest;

/// So much may be lost by a crash, and is fetched again then.
const FLUSH_BYTES: u64 = 64 << 20;
/// So many files may be open with something to sync.
const FLUSH_OBJECTS: usize = 256;

/// A pull in progress. Dropped, it can be taken up again with [`Store::fetch`].
pub struct Fetch {
    store: Store,
    loaded: Arc<Loaded>,
    /// The manifest as it came.
    bytes: Vec<u8>,
    /// The numbers of all chunks, sorted by the chunks' names.
    by_name: Vec<u32>,
    /// For each object what is there, unless it was whole from the start.
    objects: Vec<Option<Arc<Partial>>>,
    /// Objects with something to sync.
    dirty: Mutex<BTreeSet<usize>>,
    dirty_bytes: AtomicU64,
    /// Keeps what is here already.
    _lease: Lease,
}

/// What became of a chunk that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrote {
    /// It was news, and is now in so many places.
    New(usize),
    /// It was there, or somebody else is writing it.
    Had,
}

impl Store {
    /// Begins or takes up the fetch of a manifest. Objects that are here are done, and chunks that
    /// any object here holds are copied.
    pub fn fetch(&self, manifest: Vec<u8>, want: Hash, now: Time) -> Result<Fetch, StoreError> {
        let fetch = self.begin_fetch(manifest, want, now)?;
        fetch.reuse(now)?;
        Ok(fetch)
    }

    /// As [`Store::fetch`], but nothing is copied yet: that is [`Fetch::reuse`], once it is clear that there is room.
    pub fn begin_fetch(
        &self,
        manifest: Vec<u8>,
        want: Hash,
        now: Time,
    ) -> Result<Fetch, StoreError> {
        let found = Hash::of(&manifest);
        if found != want {
            return Err(StoreError::WrongManifest { want, found });
        }
        let loaded = Arc::new(Loaded::new(want, Manifest::decode(&manifest)?));
        // From here on nobody removes what is here of it.
        let lease = self.lease_for(want, loaded.objects(), now)?;
        let mut objects = Vec::with_capacity(loaded.objects().len());
        for (object, id) in loaded.objects().iter().enumerate() {
            let is_here = self.inner.index.holds(*id)?.is_some();
            objects.push(if is_here { None } else { Some(self.partial(&loaded, object, *id)?) });
        }
        let chunks: Vec<Hash> = loaded.manifest().chunks().map(|chunk| chunk.id).collect();
        let mut by_name: Vec<u32> = (0..chunks.len() as u32).collect();
        by_name.sort_unstable_by_key(|number| (chunks[*number as usize], *number));
        Ok(Fetch {
            store: self.clone(),
            loaded,
            bytes: manifest,
            by_name,
            objects,
            dirty: Mutex::default(),
            dirty_bytes: AtomicU64::new(0),
            _lease: lease,
        })
    }

    /// The partial of an object: one for all who fetch it.
    fn partial(
        &self,
        loaded: &Loaded,
        object: usize,
        id: ObjectId,
    ) -> Result<Arc<Partial>, StoreError> {
        let mut partials = lock(&self.inner.partials);
        if let Some(partial) = partials.get(&id).and_then(Weak::upgrade) {
            return Ok(partial);
        }
        let chunks = loaded.manifest().objects[object].chunks.clone();
        let partial = Arc::new(Partial::open(&self.inner.files, id, chunks)?);
        partials.insert(id, Arc::downgrade(&partial));
        Ok(partial)
    }

    pub(super) fn live_partial(&self, id: ObjectId) -> Option<Arc<Partial>> {
        lock(&self.inner.partials).get(&id).and_then(Weak::upgrade)
    }
}

impl Fetch {
    /// The manifest, for [`Store::read_chunk`] while the fetch goes on.
    pub fn loaded(&self) -> &Arc<Loaded> {
        &self.loaded
    }

    /// One bit for each chunk: set if it is here.
    pub fn have(&self) -> Bitmap {
        let mut have = Bitmap::new(self.loaded.chunk_count());
        for (object, partial) in self.objects.iter().enumerate() {
            let numbers = self.loaded.numbers(object);
            match partial {
                None => numbers.for_each(|number| _ = have.set(number)),
                Some(partial) => {
                    for chunk in partial.have().present() {
                        have.set(numbers.start + chunk);
                    }
                }
            }
        }
        have
    }

    /// One bit for each chunk: set if it is missing.
    pub fn missing(&self) -> Bitmap {
        let have = self.have();
        let mut missing = Bitmap::new(have.len());
        have.missing().for_each(|number| _ = missing.set(number));
        missing
    }

    /// Bytes of the chunks that are missing: so much is yet to be written, also of what can be copied from here.
    pub fn missing_bytes(&self) -> u64 {
        let have = self.have();
        let chunks = self.loaded.manifest().chunks().enumerate();
        let missing = chunks.filter(|(number, _)| !have.get(*number));
        missing.map(|(_, chunk)| u64::from(chunk.bytes)).sum()
    }

    /// Takes a chunk, if the bytes are those of its name, and puts it wherever the manifest has it.
    ///
    /// After [`StoreError::WrongChunk`] nothing has changed; whoever sent the bytes is to blame.
    pub fn write(&self, number: usize, bytes: &[u8]) -> Result<Wrote, StoreError> {
        let want = self.loaded.place(number)?.what;
        let found = Hash::of(bytes);
        if found != want.id || bytes.len() != want.bytes as usize {
            return Err(StoreError::WrongChunk { number, want: want.id, found });
        }
        let places = self.put(want.id, bytes)?;
        Ok(if places > 0 { Wrote::New(places) } else { Wrote::Had })
    }

    /// As [`Fetch::flush`], if much has come since the last one. To be called after every write, so that not too much
    /// is lost by a crash.
    pub fn flush_if_due(&self) -> Result<(), StoreError> {
        let is_due = self.dirty_bytes.load(Ordering::Relaxed) >= FLUSH_BYTES
            || lock(&self.dirty).len() >= FLUSH_OBJECTS;
        if is_due { self.flush() } else { Ok(()) }
    }

    /// Whether something has come that a crash would take.
    pub fn is_dirty(&self) -> bool {
        !lock(&self.dirty).is_empty()
    }

    /// The other places where the manifest has the same chunk.
    pub fn same_as(&self, number: usize) -> Vec<u32> {
        let name = |number: usize| self.loaded.place(number).map(|place| place.what.id).ok();
        let Some(wanted) = name(number) else { return Vec::new() };
        let first = self.by_name.partition_point(|at| name(*at as usize) < Some(wanted));
        let same =
            self.by_name[first..].iter().take_while(|at| name(**at as usize) == Some(wanted));
        same.copied().filter(|at| *at as usize != number).collect()
    }

    /// Puts verified bytes in all their places. In how many they were missing.
    fn put(&self, name: Hash, bytes: &[u8]) -> Result<usize, StoreError> {
        let id = |number: &u32| self.loaded.place(*number as usize).map(|place| place.what.id);
        let first = self.by_name.partition_point(|number| id(number).is_ok_and(|id| id < name));
        let mut written = 0;
        for number in &self.by_name[first..] {
            let place = self.loaded.place(*number as usize)?;
            if place.what.id != name {
                break;
            }
            let Some(partial) = &self.objects[place.object] else { continue };
            if partial.write(&self.store.inner.files, place.chunk, place.offset, bytes)? {
                written += 1;
                self.dirty_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                lock(&self.dirty).insert(place.object);
            }
        }
        Ok(written)
    }

    /// Copies the chunks that some object here holds.
    pub fn reuse(&self, now: Time) -> Result<(), StoreError> {
        let store = &self.store;
        for (object, partial) in self.objects.iter().enumerate() {
            let Some(partial) = partial else { continue };
            let have = partial.have();
            for chunk in have.missing() {
                let number = self.loaded.numbers(object).start + chunk;
                let place = self.loaded.place(number)?;
                if partial.has(chunk) {
                    continue; // It was the same as one before.
                }
                if let Some(bytes) = store.salvage(place, now)? {
                    self.write(number, &bytes)?;
                    self.flush_if_due()?;
                }
            }
        }
        Ok(())
    }

    /// Makes durable what has come so far, and claims the objects that are complete.
    ///
    /// After an error the fetch can go on: what is not known to be on disk counts as missing.
    pub fn flush(&self) -> Result<(), StoreError> {
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        self.dirty_bytes.store(0, Ordering::Relaxed);
        let flushed = self.flush_objects(&dirty);
        if flushed.is_err() {
            lock(&self.dirty).extend(dirty);
        }
        flushed
    }

    fn flush_objects(&self, objects: &BTreeSet<usize>) -> Result<(), StoreError> {
        let (inner, files) = (&self.store.inner, &self.store.inner.files);
        let _one = lock(&inner.flush);
        let mut batch = Vec::new();
        for partial in objects.iter().filter_map(|object| self.objects[*object].as_ref()) {
            match partial.start_sync(files) {
                Ok(unsynced) => batch.extend(unsynced.map(|unsynced| (partial, unsynced))),
                Err(error) => {
                    batch.into_iter().for_each(|(p, unsynced)| p.on_sync_put_off(unsynced));
                    return Err(error);
                }
            }
        }
        let data = batch.iter().map(|(partial, unsynced)| (&*unsynced.file, &*partial.data));
        if let Err(error) = files.sync_each(data) {
            batch.into_iter().for_each(|(partial, unsynced)| partial.on_sync_failed(unsynced));
            return Err(error);
        }
        let (mut complete, mut records, mut failed) = (Vec::new(), Vec::new(), None);
        for (partial, unsynced) in batch {
            match partial.on_synced(files, unsynced) {
                Ok(None) => complete.push(partial),
                Ok(Some(record)) => records.push(record),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        files.sync_each(records.iter().map(|(file, path)| (file, path.as_path())))?;
        if !records.is_empty() {
            files.sync_directory(&files.root().join("partial"))?;
        }
        let finished: Vec<Finished> = complete
            .iter()
            .map(|partial| Finished {
                id: partial.id,
                chunks: partial.chunks.clone(),
                content: Content::Staged(None, partial.data.clone()),
            })
            .collect();
        if !finished.is_empty() {
            self.store.claim(&finished, self.loaded.hash())?;
        }
        for partial in complete {
            partial.on_claimed(files)?;
            lock(&inner.partials).remove(&partial.id);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Claims the manifest. Needs every chunk.
    pub fn finish(&self, now: Time) -> Result<(), StoreError> {
        let open = |partial: &Option<Arc<Partial>>| partial.as_ref().is_some_and(|p| !p.is_whole());
        let unfinished: BTreeSet<usize> =
            (0..self.objects.len()).filter(|object| open(&self.objects[*object])).collect();
        self.flush_objects(&unfinished)?;
        if self.objects.iter().any(open) {
            let missing = self.missing().count();
            return Err(StoreError::Incomplete { missing });
        }
        self.store.claim_manifest(&self.loaded, &self.bytes, None, self.loaded.hash(), now)?;
        self.store.remember(&self.loaded);
        Ok(())
    }
}

impl Store {
    /// Takes a lease on a manifest that may not be here yet, and holds those of its objects that are.
    pub(crate) fn lease_for(
        &self,
        hash: Hash,
        objects: &[ObjectId],
        now: Time,
    ) -> Result<Lease, StoreError> {
        let number = self.next_lease();
        self.inner.index.write_lightly(|tx| {
            index::add_lease(tx, number, hash)?;
            index::hold(tx, hash, objects)?;
            index::touch(tx, hash, now)
        })?;
        Ok(Lease::new(self.clone(), number, hash))
    }

    pub(super) fn forget_partials(&self) {
        let mut partials: std::sync::MutexGuard<'_, BTreeMap<_, Weak<Partial>>> =
            lock(&self.inner.partials);
        partials.retain(|_, partial| partial.strong_count() > 0);
    }
}
