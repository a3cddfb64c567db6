//! What stays and what goes: pins, leases, eviction, quarantine.
//!
//! A manifest that is pinned or leased stays. What is to go is decided in the same transaction of the index that
//! forgets it, and leases are rows of the index: so nobody can lease what is being removed.
//! An object stays while any manifest that is here or leased has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;
use redb::{ReadableTable as _, WriteTransaction};

use super::index::{
    self, Failure, HOLDERS, LEASES, MANIFESTS, ManifestRow, OBJECTS, PINS, USED, failure, left,
    outline, pairs, right,
};
use super::{Store, StoreError, lock};
use crate::manifest::Manifest;

/// A promise that a manifest stays. Ends when it is dropped.
#[derive(Debug)]
pub struct Lease {
    store: Store,
    number: u64,
    hash: Hash,
}

/// A manifest that is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its name.
    pub hash: Hash,
    /// Bytes of its files.
    pub bytes: u64,
    /// How many files.
    pub files: u64,
    /// Whether some of them are the user's own.
    pub in_place: bool,
    /// When it was last asked for.
    pub used: Time,
    /// Why it must stay.
    pub pins: Vec<String>,
    /// How many use it now.
    pub leases: usize,
}

/// How much room is taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the objects that the store has files for.
    pub objects: u64,
    /// Bytes of objects that are files of the user.
    pub in_place: u64,
    /// Bytes of what was fetched in part.
    pub partial: u64,
    /// Bytes of each manifest's objects. What two share is counted for both.
    pub manifests: BTreeMap<Hash, u64>,
}

/// What [`Store::evict`] has removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evicted {
    /// How many bytes are free now.
    pub bytes: u64,
    /// The manifests that are no longer here.
    pub manifests: Vec<Hash>,
}

impl Lease {
    pub(super) fn new(store: Store, number: u64, hash: Hash) -> Self {
        Self { store, number, hash }
    }

    /// What is leased.
    pub fn manifest(&self) -> Hash {
        self.hash
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If this fails so does everything else, and leases do not outlive the process.
        _ = self.store.inner.index.write_lightly(|tx| {
            let mut table = tx.open_table(LEASES).map_err(failure)?;
            table.remove(self.number).map_err(failure)?;
            Ok(())
        });
        self.store.forget_partials();
    }
}

impl Store {
    /// Keeps a manifest that is here until it is unpinned for the same reason.
    pub fn pin(&self, hash: Hash, reason: &str) -> Result<(), StoreError> {
        self.inner.index.write(|tx| {
            self.check_here(tx, hash)?;
            let mut table = tx.open_table(PINS).map_err(failure)?;
            table.insert((&hash.0, reason), ()).map_err(failure)?;
            Ok(())
        })
    }

    /// Takes a pin away. Whether there was one.
    pub fn unpin(&self, hash: Hash, reason: &str) -> Result<bool, StoreError> {
        self.inner.index.write(|tx| {
            let mut table = tx.open_table(PINS).map_err(failure)?;
            Ok(table.remove((&hash.0, reason)).map_err(failure)?.is_some())
        })
    }

    /// Keeps a manifest that is here while the lease lives, and notes that it is in use.
    pub fn lease(&self, hash: Hash, now: Time) -> Result<Lease, StoreError> {
        let number = self.next_lease();
        self.inner
            .index
            .write_lightly(|tx| {
                let is_here = tx
                    .open_table(MANIFESTS)
                    .map_err(failure)?
                    .get(&hash.0)
                    .map_err(failure)?
                    .is_some();
                if is_here {
                    index::add_lease(tx, number, hash)?;
                    index::touch(tx, hash, now)?;
                }
                Ok(is_here)
            })?
            .then(|| Lease::new(self.clone(), number, hash))
            .ok_or(StoreError::NoManifest(hash))
    }

    pub(super) fn next_lease(&self) -> u64 {
        self.inner.next_lease.fetch_add(1, Ordering::Relaxed)
    }

    fn check_here(&self, tx: &WriteTransaction, hash: Hash) -> Result<(), StoreError> {
        let table = tx.open_table(MANIFESTS).map_err(failure)?;
        let row = table.get(&hash.0).map_err(failure)?;
        row.map(|_| ()).ok_or(StoreError::NoManifest(hash))
    }

    /// Whether a manifest is claimed here.
    pub fn has(&self, hash: Hash) -> Result<bool, StoreError> {
        Ok(self.inner.index.manifest(hash)?.is_some())
    }

    /// The manifests that are here.
    pub fn list(&self) -> Result<Vec<Held>, StoreError> {
        let tx = self.inner.index.read()?;
        let used = tx.open_table(USED).map_err(failure)?;
        let pins = tx.open_table(PINS).map_err(failure)?;
        let mut leases: BTreeMap<[u8; 32], usize> = BTreeMap::new();
        for row in tx.open_table(LEASES).map_err(failure)?.iter().map_err(failure)? {
            *leases.entry(*row.map_err(failure)?.1.value()).or_default() += 1;
        }
        let mut list = Vec::new();
        for row in tx.open_table(MANIFESTS).map_err(failure)?.iter().map_err(failure)? {
            let (key, row) = row.map_err(failure)?;
            let ManifestRow { bytes, files, in_place } = index::decode(row.value())?;
            let hash = Hash(*key.value());
            let at = used.get(&hash.0).map_err(failure)?;
            let mut reasons = Vec::new();
            for pin in pins.range((&hash.0, "")..).map_err(failure)? {
                let pin = pin.map_err(failure)?.0;
                let (pinned, reason) = pin.value();
                if *pinned != hash.0 {
                    break;
                }
                reasons.push(reason.to_owned());
            }
            list.push(Held {
                hash,
                bytes,
                files,
                in_place,
                used: Time(at.map_or(0, |at| at.value())),
                pins: reasons,
                leases: leases.get(&hash.0).copied().unwrap_or_default(),
            });
        }
        Ok(list)
    }

    /// How much room is taken, and by what.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        let tx = self.inner.index.read()?;
        let holders = tx.open_table(HOLDERS).map_err(failure)?;
        let manifests = tx.open_table(MANIFESTS).map_err(failure)?;
        for row in manifests.iter().map_err(failure)? {
            usage.manifests.insert(Hash(*row.map_err(failure)?.0.value()), 0);
        }
        for row in tx.open_table(OBJECTS).map_err(failure)?.iter().map_err(failure)? {
            let (key, row) = row.map_err(failure)?;
            let (bytes, in_place) = outline(row.value())?;
            *(if in_place { &mut usage.in_place } else { &mut usage.objects }) += bytes;
            let (from, to) = pairs(key.value());
            for holder in holders.range::<&[u8; 64]>(&from..=&to).map_err(failure)? {
                let holder = Hash(right(holder.map_err(failure)?.0.value()));
                if let Some(held) = usage.manifests.get_mut(&holder) {
                    *held += bytes;
                }
            }
        }
        for (_, path) in self.partial_files()? {
            usage.partial += allocated(&path);
        }
        Ok(usage)
    }

    /// Removes a manifest, and what only it had.
    pub fn remove(&self, hash: Hash) -> Result<u64, StoreError> {
        let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
        let (freed, objects) = self.inner.index.write(|tx| {
            self.check_here(tx, hash)?;
            if in_use(tx)?.contains(&hash) {
                return Err(StoreError::InUse(hash));
            }
            Ok(drop_manifest(tx, hash, self.objects_of(hash))?)
        })?;
        self.unlink(&[hash], &objects)?;
        Ok(freed)
    }

    /// Frees `wanted` bytes, if that can be: first what no manifest has, then the manifests that were
    /// not asked for in the longest time.
    ///
    /// Pinned and leased ones stay, and those that `may_drop` refuses: it is asked last, and must not use the store.
    pub fn evict(
        &self,
        wanted: u64,
        may_drop: impl Fn(Hash) -> bool,
    ) -> Result<Evicted, StoreError> {
        let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
        let mut evicted = Evicted { bytes: self.drop_partials(wanted)?, manifests: Vec::new() };
        let mut objects = Vec::new();
        self.inner.index.write(|tx| {
            let (freed, orphans) = drop_orphans(tx, None)?;
            evicted.bytes += freed;
            objects.extend(orphans);
            let used = in_use(tx)?;
            for (hash, row) in by_use(tx)? {
                if evicted.bytes >= wanted {
                    break;
                }
                // To forget the user's own files frees nothing.
                if row.in_place || used.contains(&hash) || !may_drop(hash) {
                    continue;
                }
                let (freed, dropped) = drop_manifest(tx, hash, self.objects_of(hash))?;
                evicted.bytes += freed;
                evicted.manifests.push(hash);
                objects.extend(dropped);
            }
            Ok::<_, StoreError>(())
        })?;
        self.unlink(&evicted.manifests, &objects)?;
        Ok(evicted)
    }

    /// Removes what was put into quarantine longer ago than `older_than`. How many bytes are free now.
    pub fn empty_quarantine(&self, older_than: Duration, now: Time) -> Result<u64, StoreError> {
        self.drop_quarantined(|_, since| Ok(now.since(since) > older_than))
    }

    /// Removes from quarantine what is here again, whatever its age: it was of use to mend that, and has no other. How many
    /// bytes are free now.
    pub fn drop_mended(&self) -> Result<u64, StoreError> {
        let index = &self.inner.index;
        self.drop_quarantined(|name, _| match name.parse::<Hash>() {
            Ok(hash) => {
                Ok(index.holds(ObjectId(hash.0))?.is_some() || index.manifest(hash)?.is_some())
            }
            Err(_) => Ok(false),
        })
    }

    /// Removes the files of which `goes` says so, by their name and by when they were put into quarantine.
    fn drop_quarantined(
        &self,
        goes: impl Fn(&str, Time) -> Result<bool, StoreError>,
    ) -> Result<u64, StoreError> {
        use std::os::unix::fs::MetadataExt as _;
        // Nobody puts another there meanwhile.
        let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
        let files = &self.inner.files;
        let mut freed = 0;
        for name in files.names(&files.root().join("quarantine"))? {
            let path = files.quarantine(&name);
            let meta = fs::symlink_metadata(&path).ok();
            // Whatever else somebody has left in our directories is not for us to delete.
            let Some(meta) = meta.filter(fs::Metadata::is_file) else { continue };
            // A rename changes this time, and leaves that of the content.
            let since = u64::try_from(meta.ctime()).unwrap_or_default();
            if goes(&name, Time(since.saturating_mul(1000)))? {
                files.remove(&path)?;
                freed += meta.blocks() * 512;
            }
        }
        Ok(freed)
    }

    /// The objects of a manifest that is here, if it can be read.
    fn objects_of(&self, hash: Hash) -> Option<Vec<ObjectId>> {
        if let Some(loaded) = lock(&self.inner.loaded).get(&hash) {
            return Some(loaded.objects().to_vec());
        }
        let bytes = fs::read(self.inner.files.manifest(hash)).ok()?;
        let manifest = (Hash::of(&bytes) == hash).then(|| Manifest::decode(&bytes).ok())??;
        Some(manifest.objects.iter().map(|object| object.id()).collect())
    }

    /// Removes the files of what the index has forgotten: manifests first, so that none is there without its objects.
    fn unlink(&self, manifests: &[Hash], objects: &[ObjectId]) -> Result<(), StoreError> {
        let files = &self.inner.files;
        for hash in manifests {
            lock(&self.inner.loaded).remove(hash);
            files.remove(&files.manifest(*hash))?;
            files.remove(&files.places(*hash))?;
        }
        if !manifests.is_empty() {
            files.sync_directory(&files.root().join("manifests"))?;
        }
        for id in objects {
            files.remove(&files.object(*id))?;
            files.remove(&files.quarantine(&id.to_string()))?;
        }
        Ok(())
    }

    /// Removes what was fetched in part and nobody goes on with.
    fn drop_partials(&self, wanted: u64) -> Result<u64, StoreError> {
        let mut freed = 0;
        for (id, path) in self.partial_files()? {
            if freed >= wanted {
                break;
            }
            freed += self.drop_partial(id, &path)?;
        }
        Ok(freed)
    }

    /// Removes what is here of an object, unless somebody fetches it. How many bytes are free now.
    fn drop_partial(&self, id: ObjectId, path: &Path) -> Result<u64, StoreError> {
        // Nobody begins meanwhile.
        let partials = lock(&self.inner.partials);
        if partials.get(&id).is_some_and(|partial| partial.strong_count() > 0) {
            return Ok(0);
        }
        let freed = allocated(path);
        self.inner.files.remove(&self.inner.files.partial(id, "bits"))?;
        self.inner.files.remove(path)?;
        Ok(freed)
    }

    /// Removes what fetches have left that did not come to their end, if none of the manifests that they were for
    /// `is_needed`: partial objects, and objects that no manifest here has. How many bytes are free now.
    ///
    /// After a crash it may be unknown what a partial object was for. It goes if nobody touched it for `older_than`. What an
    /// import has left stays for the next one.
    pub fn drop_leftovers(
        &self,
        is_needed: impl Fn(Hash) -> bool,
        older_than: Duration,
        now: Time,
    ) -> Result<u64, StoreError> {
        let suspects = self.seem_left_over(&is_needed)?;
        let _named = self.inner.names.write().unwrap_or_else(PoisonError::into_inner);
        let mut freed = 0;
        for (id, path) in self.partial_files()? {
            let wanted_by = self.inner.index.holders(id)?;
            let goes = match wanted_by.is_empty() {
                true => age(&path, now) > older_than,
                false => !wanted_by.into_iter().any(&is_needed),
            };
            if goes {
                freed += self.drop_partial(id, &path)?;
            }
        }
        if suspects.is_empty() {
            return Ok(freed);
        }
        let mut objects = Vec::new();
        self.inner.index.write(|tx| {
            let leased = leased(tx)?;
            for id in suspects {
                if is_left_over(tx, &id.0, &leased, &is_needed)?
                    && let Some((bytes, false)) = index::drop_object(tx, id)?
                {
                    freed += bytes;
                    objects.push(id);
                }
            }
            Ok::<_, StoreError>(())
        })?;
        self.unlink(&[], &objects)?;
        Ok(freed)
    }

    /// Objects that may be left over, by a look that stands in nobody's way.
    fn seem_left_over(
        &self,
        is_needed: impl Fn(Hash) -> bool,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let tx = self.inner.index.read()?;
        let mut here = BTreeSet::new();
        for row in tx.open_table(MANIFESTS).map_err(failure)?.iter().map_err(failure)? {
            here.insert(Hash(*row.map_err(failure)?.0.value()));
        }
        let stays = |name| here.contains(&name) || index::is_import(name) || is_needed(name);
        let unwanted = |one: Option<(ObjectId, bool)>| one.filter(|(_, is)| !is).map(|(id, _)| id);
        // The rows of one object follow one another.
        let (mut suspects, mut last) = (Vec::new(), None::<(ObjectId, bool)>);
        for row in tx.open_table(HOLDERS).map_err(failure)?.iter().map_err(failure)? {
            let key = *row.map_err(failure)?.0.value();
            let (id, is_wanted) = (ObjectId(left(&key)), stays(Hash(right(&key))));
            last = match last {
                Some((same, before)) if same == id => Some((id, before || is_wanted)),
                other => {
                    suspects.extend(unwanted(other));
                    Some((id, is_wanted))
                }
            };
        }
        suspects.extend(unwanted(last));
        let objects = tx.open_table(OBJECTS).map_err(failure)?;
        let mut found = Vec::new();
        for id in suspects {
            if objects.get(&id.0).map_err(failure)?.is_some() {
                found.push(id);
            }
        }
        Ok(found)
    }

    fn partial_files(&self) -> Result<Vec<(ObjectId, PathBuf)>, StoreError> {
        let directory = self.inner.files.root().join("partial");
        let names = self.inner.files.names(&directory)?;
        let data = names.iter().filter_map(|name| name.strip_suffix(".data"));
        let id =
            |name: &str| name.parse().ok().map(|id| (id, self.inner.files.partial(id, "data")));
        Ok(data.filter_map(id).collect())
    }
}

/// The room that a file takes, which is less than its length if it has holes.
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).map_or(0, |meta| meta.blocks() * 512)
}

/// How long ago a file was last written; not at all if it cannot be told.
fn age(path: &Path, now: Time) -> Duration {
    use std::os::unix::fs::MetadataExt as _;
    let written = fs::metadata(path).map_or(0, |meta| meta.mtime());
    match u64::try_from(written) {
        Ok(0) | Err(_) => Duration::ZERO,
        Ok(seconds) => now.since(Time(seconds.saturating_mul(1000))),
    }
}

/// What is pinned or leased.
fn in_use(tx: &WriteTransaction) -> Result<BTreeSet<Hash>, Failure> {
    let mut used = leased(tx)?;
    for row in tx.open_table(PINS).map_err(failure)?.iter().map_err(failure)? {
        used.insert(Hash(*row.map_err(failure)?.0.value().0));
    }
    Ok(used)
}

fn leased(tx: &WriteTransaction) -> Result<BTreeSet<Hash>, Failure> {
    let mut leased = BTreeSet::new();
    for row in tx.open_table(LEASES).map_err(failure)?.iter().map_err(failure)? {
        leased.insert(Hash(*row.map_err(failure)?.1.value()));
    }
    Ok(leased)
}

/// Manifests, the one that was not asked for in the longest time first.
fn by_use(tx: &WriteTransaction) -> Result<Vec<(Hash, ManifestRow)>, Failure> {
    let used = tx.open_table(USED).map_err(failure)?;
    let mut order = Vec::new();
    for row in tx.open_table(MANIFESTS).map_err(failure)?.iter().map_err(failure)? {
        let (key, row) = row.map_err(failure)?;
        let at = used.get(key.value()).map_err(failure)?.map_or(0, |at| at.value());
        order.push((at, Hash(*key.value()), index::decode(row.value())?));
    }
    order.sort_unstable_by_key(|(at, hash, _)| (*at, *hash));
    Ok(order.into_iter().map(|(_, hash, row)| (hash, row)).collect())
}

/// Whether a manifest that is here or leased has the object. Other rows are forgotten on the way.
fn is_held(tx: &WriteTransaction, id: &[u8; 32], leased: &BTreeSet<Hash>) -> Result<bool, Failure> {
    let manifests = tx.open_table(MANIFESTS).map_err(failure)?;
    let mut table = tx.open_table(HOLDERS).map_err(failure)?;
    let (from, to) = pairs(id);
    let mut stale = Vec::new();
    for row in table.range::<&[u8; 64]>(&from..=&to).map_err(failure)? {
        let key = *row.map_err(failure)?.0.value();
        let holder = right(&key);
        if leased.contains(&Hash(holder)) || manifests.get(&holder).map_err(failure)?.is_some() {
            return Ok(true);
        }
        stale.push(key);
    }
    for key in stale {
        table.remove(&key).map_err(failure)?;
    }
    Ok(false)
}

/// Whether manifests wanted the object of which none is here, leased or needed.
fn is_left_over(
    tx: &WriteTransaction,
    id: &[u8; 32],
    leased: &BTreeSet<Hash>,
    is_needed: impl Fn(Hash) -> bool,
) -> Result<bool, Failure> {
    let manifests = tx.open_table(MANIFESTS).map_err(failure)?;
    let holders = tx.open_table(HOLDERS).map_err(failure)?;
    let (from, to) = pairs(id);
    let mut was_wanted = false;
    for row in holders.range::<&[u8; 64]>(&from..=&to).map_err(failure)? {
        let holder = Hash(right(row.map_err(failure)?.0.value()));
        let is_here = manifests.get(&holder.0).map_err(failure)?.is_some();
        if is_here || leased.contains(&holder) || index::is_import(holder) || is_needed(holder) {
            return Ok(false);
        }
        was_wanted = true;
    }
    Ok(was_wanted)
}

/// Forgets a manifest and what only it had: bytes that come free, and the objects to remove.
fn drop_manifest(
    tx: &WriteTransaction,
    hash: Hash,
    objects: Option<Vec<ObjectId>>,
) -> Result<(u64, Vec<ObjectId>), Failure> {
    tx.open_table(MANIFESTS).map_err(failure)?.remove(&hash.0).map_err(failure)?;
    tx.open_table(USED).map_err(failure)?.remove(&hash.0).map_err(failure)?;
    let mut holders = tx.open_table(HOLDERS).map_err(failure)?;
    for id in objects.iter().flatten() {
        holders.remove(&index::pair(&id.0, &hash.0)).map_err(failure)?;
    }
    drop(holders);
    drop_orphans(tx, objects)
}

/// Forgets those of the given objects, or of all, that no manifest has.
fn drop_orphans(
    tx: &WriteTransaction,
    among: Option<Vec<ObjectId>>,
) -> Result<(u64, Vec<ObjectId>), Failure> {
    let leased = leased(tx)?;
    let ids = match among {
        Some(ids) => ids,
        None => {
            let table = tx.open_table(OBJECTS).map_err(failure)?;
            let mut ids = Vec::new();
            for row in table.iter().map_err(failure)? {
                ids.push(ObjectId(*row.map_err(failure)?.0.value()));
            }
            ids
        }
    };
    let (mut freed, mut orphans) = (0, Vec::new());
    for id in ids {
        if is_held(tx, &id.0, &leased)? {
            continue;
        }
        if let Some((bytes, false)) = index::drop_object(tx, id)? {
            freed += bytes;
            orphans.push(id);
        }
    }
    Ok((freed, orphans))
}
