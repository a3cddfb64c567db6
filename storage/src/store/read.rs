//! Reading: nothing is handed out that does not hash to its name.
//!
//! A chunk is hashed when it is read, unless this process has done so lately and the file was not touched since, or has
//! fetched it so lately that the disk has had no part in it.
//! What is found damaged goes to quarantine, and its object is no longer here. A file of the user that has changed
//! stays where it is; only the index forgets it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;

use super::files::{Stamp, read_exact_at};
use super::index::{self, MANIFESTS, OBJECTS, ObjectRow, failure};
use super::partial::Partial;
use super::{Loaded, Place, Store, StoreError, lock};
use crate::bitmap::Bitmap;
use crate::chunk::Chunk;

/// How long a hash is believed of a file that nobody touched.
const TRUST_FOR: Duration = Duration::from_secs(24 * 3600);
/// A file that was touched a moment ago may be touched again without its times telling.
const SETTLED: Duration = Duration::from_secs(2);
/// So many objects are remembered as verified.
const TRUSTED_OBJECTS: usize = 65_536;

/// Stands for the number of a chunk in an object where only its offset is known.
const SOMEWHERE: usize = usize::MAX;

/// Which chunks this process has verified.
#[derive(Debug, Default)]
pub(super) struct Trust {
    objects: BTreeMap<ObjectId, Trusted>,
}

#[derive(Debug)]
struct Trusted {
    stamp: Stamp,
    /// When the first of the chunks was verified.
    since: Time,
    chunks: Bitmap,
}

/// Where the scrub is: the object that comes next, and the chunk in it.
#[derive(Debug, Default)]
pub(super) struct Marks {
    object: [u8; 32],
    chunk: usize,
}

/// An object that was not what its name says, or is not here at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// Which one.
    pub object: ObjectId,
    /// Whether it was here and is in quarantine now; otherwise it was missing.
    pub is_quarantined: bool,
}

/// What [`Store::verify`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Bytes that are as they should be.
    pub bytes: u64,
    /// What is not.
    pub damaged: Vec<Damage>,
}

/// What a step of [`Store::scrub`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes that were read.
    pub bytes: u64,
    /// Objects that are in quarantine now.
    pub damaged: Vec<ObjectId>,
    /// Whether the last object was reached: the next step begins anew.
    pub is_round_done: bool,
}

/// Where bytes came from.
enum Source {
    Stored(Stamp),
    /// With a stamp if it was one file.
    InPlace(Option<Stamp>),
    Partial(Arc<Partial>, Stamp),
}

impl Store {
    /// The bytes of a chunk, verified. Also of objects that are still being fetched.
    pub fn read_chunk(
        &self,
        loaded: &Loaded,
        number: usize,
        now: Time,
    ) -> Result<Vec<u8>, StoreError> {
        self.read_place(loaded.place(number)?, now, true)
    }

    fn read_place(&self, place: Place, now: Time, may_trust: bool) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::with_capacity(place.what.bytes as usize);
        let source = self.read_raw(&place, &mut bytes)?;
        let Some((source, is_short)) = source else {
            self.forget_gone(place.id)?;
            return Err(StoreError::Missing(place.id));
        };
        let stamp = match &source {
            Source::Stored(stamp) | Source::InPlace(Some(stamp)) => Some(*stamp),
            Source::InPlace(None) | Source::Partial(..) => None,
        };
        let is_trusted = match &source {
            Source::Partial(partial, stamp) => partial.is_in_memory(place.chunk, *stamp, now),
            _ => stamp.is_some_and(|stamp| self.trusts(&place, stamp, now)),
        };
        if may_trust && !is_short && is_trusted {
            return Ok(bytes);
        }
        if !is_short && Hash::of(&bytes) == place.what.id {
            if let Some(stamp) = stamp {
                self.trust(&place, stamp, now);
            }
            return Ok(bytes);
        }
        match source {
            Source::Stored(stamp) => self.quarantine(place.id, Some(stamp))?,
            Source::InPlace(_) => self.forget(place.id)?,
            Source::Partial(partial, _) => partial.forget(&self.inner.files, place.chunk)?,
        }
        Err(StoreError::Damaged { what: format!("object {}", place.id) })
    }

    /// Reads without any check. True beside the source if there were too few bytes.
    fn read_raw(
        &self,
        place: &Place,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<(Source, bool)>, StoreError> {
        let Place { id, offset, .. } = *place;
        let len = place.what.bytes as usize;
        // An object may be claimed between two looks: then the second round finds it.
        for _ in 0..2 {
            let path = self.inner.files.object(id);
            match File::open(&path) {
                Ok(file) => {
                    let stamp = Stamp::of(&file.metadata().map_err(StoreError::io(&path))?);
                    let is_short = is_short(&path, read_exact_at(&file, offset, len, bytes))?;
                    return Ok(Some((Source::Stored(stamp), is_short)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io(&path)(error)),
            }
            if self.inner.index.holds(id)? == Some(true) {
                return self.read_in_place(id, offset, len, bytes).map(Some);
            }
            let Some(partial) = self.live_partial(id) else { return Ok(None) };
            if !partial.has(place.chunk) {
                return Ok(None);
            }
            if let Ok(stamp) = partial.read(offset, len, bytes) {
                return Ok(Some((Source::Partial(partial, stamp), false)));
            }
            bytes.clear();
        }
        Ok(None)
    }

    fn read_in_place(
        &self,
        id: ObjectId,
        offset: u64,
        len: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(Source, bool), StoreError> {
        let segments = self.inner.index.segments(id, offset, len as u64)?;
        let mut stamps = Vec::new();
        for (start, segment) in &segments {
            let path = Path::new(std::ffi::OsStr::from_bytes(&segment.path));
            let done = bytes.len();
            let at = (offset + done as u64).saturating_sub(*start);
            let part = (segment.stamp.bytes.saturating_sub(at)).min((len - done) as u64) as usize;
            // Whatever is wrong with a file of the user, for us it only means that it is gone.
            let read = File::open(path).and_then(|file| {
                stamps.push(Stamp::of(&file.metadata()?));
                read_exact_at(&file, at, part, bytes)
            });
            if read.is_err() {
                return Ok((Source::InPlace(None), true));
            }
        }
        let stamp = if let [stamp] = stamps[..] { Some(stamp) } else { None };
        Ok((Source::InPlace(stamp), bytes.len() < len))
    }

    /// A chunk from wherever it is here, or nothing. For fetches.
    pub(super) fn salvage(&self, place: Place, now: Time) -> Result<Option<Vec<u8>>, StoreError> {
        const TRIES: usize = 4;
        for (id, offset) in self.inner.index.locations(place.what.id, TRIES)? {
            match self.read_place(Place { id, chunk: SOMEWHERE, offset, ..place }, now, false) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(StoreError::Damaged { .. } | StoreError::Missing(_)) => {}
                Err(error) => return Err(error),
            }
        }
        // What is in quarantine is mostly whole.
        let path = self.inner.files.quarantine(&place.id.to_string());
        let Ok(file) = File::open(&path) else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = read_exact_at(&file, place.offset, place.what.bytes as usize, &mut bytes);
        Ok((read.is_ok() && Hash::of(&bytes) == place.what.id).then_some(bytes))
    }

    /// Reads all of a manifest that is claimed here, whatever was verified before. `progress` gets the bytes so far.
    pub fn verify(
        &self,
        hash: Hash,
        now: Time,
        mut progress: impl FnMut(u64),
    ) -> Result<Verified, StoreError> {
        let loaded = self.load(hash)?;
        let mut verified = Verified::default();
        for (object, id) in loaded.objects().iter().enumerate() {
            for number in loaded.numbers(object) {
                match self.read_place(loaded.place(number)?, now, false) {
                    Ok(bytes) => verified.bytes += bytes.len() as u64,
                    Err(error @ (StoreError::Damaged { .. } | StoreError::Missing(_))) => {
                        let is_quarantined = matches!(error, StoreError::Damaged { .. });
                        verified.damaged.push(Damage { object: *id, is_quarantined });
                        break;
                    }
                    Err(error) => return Err(error),
                }
                progress(verified.bytes);
            }
        }
        Ok(verified)
    }

    /// Reads on through all objects, about `bytes` of them, and takes out what is damaged. The caller sets the pace.
    pub fn scrub(&self, bytes: u64, now: Time) -> Result<Scrubbed, StoreError> {
        let mut marks = lock(&self.inner.marks);
        let mut scrubbed = Scrubbed::default();
        while scrubbed.bytes < bytes {
            let Some((id, row)) = self.object_from(&marks.object)? else {
                *marks = Marks::default();
                scrubbed.is_round_done = true;
                return Ok(scrubbed);
            };
            if id.0 != marks.object {
                *marks = Marks { object: id.0, chunk: 0 };
            }
            let lengths = row.chunks.iter().map(|chunk| u64::from(chunk.bytes));
            let mut offset = lengths.take(marks.chunk).sum();
            let mut is_damaged = false;
            while let (Some(what), true) = (row.chunks.get(marks.chunk), scrubbed.bytes < bytes) {
                let place = Place { object: 0, id, chunk: marks.chunk, offset, what: *what };
                scrubbed.bytes += u64::from(what.bytes);
                match self.read_place(place, now, false) {
                    Ok(_) => {}
                    Err(StoreError::Damaged { .. }) => is_damaged = true,
                    // It was removed meanwhile, or by somebody who should not have.
                    Err(StoreError::Missing(_)) => {}
                    Err(error) => return Err(error),
                }
                offset += u64::from(what.bytes);
                marks.chunk = if is_damaged { row.chunks.len() } else { marks.chunk + 1 };
            }
            scrubbed.damaged.extend(is_damaged.then_some(id));
            if marks.chunk >= row.chunks.len() {
                *marks = Marks { object: next(id.0), chunk: 0 };
                if marks.object == [0; 32] {
                    scrubbed.is_round_done = true;
                    return Ok(scrubbed);
                }
            }
        }
        Ok(scrubbed)
    }

    fn object_from(&self, from: &[u8; 32]) -> Result<Option<(ObjectId, ObjectRow)>, StoreError> {
        let table = self.inner.index.read()?.open_table(OBJECTS).map_err(failure)?;
        let Some(row) = table.range::<&[u8; 32]>(from..).map_err(failure)?.next() else {
            return Ok(None);
        };
        let (key, row) = row.map_err(failure)?;
        Ok(Some((ObjectId(*key.value()), index::decode(row.value())?)))
    }

    /// Takes an object out and puts its file aside, unless the file is another than the one that was read.
    fn quarantine(&self, id: ObjectId, seen: Option<Stamp>) -> Result<(), StoreError> {
        let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
        let path = self.inner.files.object(id);
        let now = std::fs::metadata(&path).ok().map(|meta| Stamp::of(&meta));
        if seen.is_some() && now.map(|now| now.inode) != seen.map(|seen| seen.inode) {
            return Ok(());
        }
        self.inner.index.write(|tx| index::drop_object(tx, id))?;
        self.inner.losses.fetch_add(1, Ordering::Relaxed);
        lock(&self.inner.trust).objects.remove(&id);
        self.inner.files.set_aside(&path, &id.to_string())
    }

    /// Takes an object out of the index if its file is gone: somebody removed it who should not have.
    fn forget_gone(&self, id: ObjectId) -> Result<(), StoreError> {
        let is_gone = |store: &Self| -> Result<bool, StoreError> {
            let is_stored = store.inner.index.holds(id)? == Some(false);
            Ok(is_stored && !store.inner.files.object(id).exists())
        };
        if is_gone(self)? {
            let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
            // It may have come back before nobody could name files any more.
            if is_gone(self)? {
                self.drop_from_index(id)?;
            }
        }
        Ok(())
    }

    /// Whether a stored object is still what it should be. If not, it is out of the way afterwards.
    pub(crate) fn is_sound(
        &self,
        id: ObjectId,
        chunks: &[Chunk],
        now: Time,
    ) -> Result<bool, StoreError> {
        let mut offset = 0;
        for (chunk, what) in chunks.iter().enumerate() {
            let place = Place { object: 0, id, chunk, offset, what: *what };
            match self.read_place(place, now, true) {
                Ok(_) => {}
                Err(StoreError::Damaged { .. } | StoreError::Missing(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
            offset += u64::from(what.bytes);
        }
        Ok(true)
    }

    /// Takes an object out of the index only.
    fn forget(&self, id: ObjectId) -> Result<(), StoreError> {
        let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
        self.drop_from_index(id)
    }

    /// To be called while nobody names files.
    fn drop_from_index(&self, id: ObjectId) -> Result<(), StoreError> {
        self.inner.index.write(|tx| index::drop_object(tx, id))?;
        self.inner.losses.fetch_add(1, Ordering::Relaxed);
        lock(&self.inner.trust).objects.remove(&id);
        Ok(())
    }

    /// Takes out a manifest whose file is not what its name says.
    pub(super) fn discard_manifest(&self, hash: Hash) -> Result<(), StoreError> {
        let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
        self.inner.index.write(|tx| {
            let mut table = tx.open_table(MANIFESTS).map_err(failure)?;
            table.remove(&hash.0).map_err(failure)?;
            Ok::<_, StoreError>(())
        })?;
        self.inner.files.set_aside(&self.inner.files.manifest(hash), &hash.to_string())
    }

    pub(super) fn trusts(&self, place: &Place, stamp: Stamp, now: Time) -> bool {
        let trust = lock(&self.inner.trust);
        trust.objects.get(&place.id).is_some_and(|trusted| {
            trusted.stamp == stamp
                && now >= trusted.since
                && now.since(trusted.since) < TRUST_FOR
                && trusted.chunks.get(place.chunk)
        })
    }

    fn trust(&self, place: &Place, stamp: Stamp, now: Time) {
        let changed = stamp.ctime.max(stamp.mtime).0.max(0) as u64;
        let is_fresh = now.since(Time(changed.saturating_mul(1000))) < SETTLED;
        if is_fresh || place.chunk == SOMEWHERE {
            return;
        }
        let mut trust = lock(&self.inner.trust);
        if trust.objects.len() >= TRUSTED_OBJECTS && !trust.objects.contains_key(&place.id) {
            trust.objects.pop_first();
        }
        let fresh = || Trusted { stamp, since: now, chunks: Bitmap::default() };
        let trusted = trust.objects.entry(place.id).or_insert_with(fresh);
        let is_old = now < trusted.since || now.since(trusted.since) >= TRUST_FOR;
        if trusted.stamp != stamp || is_old {
            *trusted = fresh();
        }
        trusted.chunks.grow(place.chunk + 1);
        trusted.chunks.set(place.chunk);
    }
}

/// Whether a read ended too early. Other errors are errors.
fn is_short(path: &Path, read: io::Result<()>) -> Result<bool, StoreError> {
    match read {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        Err(error) => Err(StoreError::io(path)(error)),
    }
}

/// The id that follows; all zeros after the last.
fn next(mut id: [u8; 32]) -> [u8; 32] {
    for byte in id.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    id
}
