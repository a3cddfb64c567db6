//! The index: what is where. A cache of what the files say, but for pins and the order of use.
//!
//! ```text
//!  objects    object            → its length, whose file it is, its chunks
//!  chunks     chunk ‖ object    → where in the object
//!  segments   object ‖ offset   → a file of the user that holds this part of the object
//!  manifests  manifest          → what it amounts to
//!  holders    object ‖ manifest → the object stays while the manifest is here or leased
//!  pins       manifest ‖ reason
//!  leases     number            → manifest
//!  used       manifest          → when it was last asked for
//!  state      whether the index knows all that the files say
//! ```

use std::io;
use std::path::Path;

use std::sync::{PoisonError, RwLock};

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;
use redb::{
    Builder, Database, Durability, ReadTransaction, ReadableDatabase as _, ReadableTable as _,
    TableDefinition, WriteTransaction,
};
use serde::{Deserialize, Serialize};

use super::files::Stamp;
use crate::chunk::Chunk;

type Table<K, V> = TableDefinition<'static, K, V>;
pub(crate) const OBJECTS: Table<&[u8; 32], &[u8]> = Table::new("objects");
pub(crate) const CHUNKS: Table<&[u8; 64], (u64, u32)> = Table::new("chunks");
pub(crate) const SEGMENTS: Table<(&[u8; 32], u64), &[u8]> = Table::new("segments");
pub(crate) const MANIFESTS: Table<&[u8; 32], &[u8]> = Table::new("manifests");
pub(crate) const HOLDERS: Table<&[u8; 64], ()> = Table::new("holders");
pub(crate) const PINS: Table<(&[u8; 32], &str), ()> = Table::new("pins");
pub(crate) const LEASES: Table<u64, &[u8; 32]> = Table::new("leases");
pub(crate) const USED: Table<&[u8; 32], u64> = Table::new("used");

pub(crate) const STATE: Table<&str, ()> = Table::new("state");

/// Stands in `state` once all that the files say is in the index.
const SETTLED: &str = "settled";
/// What redb keeps in memory.
const CACHE_BYTES: usize = 32 << 20;

/// An error of the index. Boxed by redb's size.
pub(crate) type Failure = Box<redb::Error>;
type Result<T> = std::result::Result<T, Failure>;

/// Turns any of redb's errors into one.
pub(crate) fn failure(error: impl Into<redb::Error>) -> Failure {
    Box::new(error.into())
}

/// The open index.
pub(crate) struct Index {
    /// `None` once it was closed.
    db: RwLock<Option<Database>>,
}

/// What stands in the index for an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRow {
    pub(crate) bytes: u64,
    /// Whether its bytes are in files of the user.
    pub(crate) in_place: bool,
    pub(crate) chunks: Vec<Chunk>,
}

/// A part of an object that is in a file of the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    /// Absolute; bytes, as paths need not be text.
    pub(crate) path: Vec<u8>,
    pub(crate) stamp: Stamp,
}

/// What stands in the index for a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestRow {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
    pub(crate) in_place: bool,
}

/// How the name begins by which an import holds its objects until it has a manifest. No manifest's does.
const IMPORT: [u8; 8] = *b"imported";

/// A name for an import, that nothing else has.
pub(crate) fn import_name() -> Hash {
    let mut name: [u8; 32] = std::array::from_fn(|_| fastrand::u8(..));
    name[..IMPORT.len()].copy_from_slice(&IMPORT);
    Hash(name)
}

/// Whether it is the name of an import.
pub(crate) fn is_import(name: Hash) -> bool {
    name.0.starts_with(&IMPORT)
}

/// Two ids after one another.
pub(crate) fn pair(left: &[u8; 32], right: &[u8; 32]) -> [u8; 64] {
    let mut key = [0; 64];
    key[..32].copy_from_slice(left);
    key[32..].copy_from_slice(right);
    key
}

/// The left half of a pair.
pub(crate) fn left(key: &[u8; 64]) -> [u8; 32] {
    let mut id = [0; 32];
    id.copy_from_slice(&key[..32]);
    id
}

/// The right half of a pair.
pub(crate) fn right(key: &[u8; 64]) -> [u8; 32] {
    let mut id = [0; 32];
    id.copy_from_slice(&key[32..]);
    id
}

/// All pairs with this left half.
pub(crate) fn pairs(left: &[u8; 32]) -> ([u8; 64], [u8; 64]) {
    (pair(left, &[0; 32]), pair(left, &[255; 32]))
}

pub(crate) fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    postcard::to_stdvec(row).expect("rows hold nothing that postcard cannot encode")
}

pub(crate) fn decode<T: for<'de> Deserialize<'de>>(row: &[u8]) -> Result<T> {
    let damaged = |_| failure(redb::StorageError::Corrupted("a row that is none".into()));
    postcard::take_from_bytes(row).map(|(row, _)| row).map_err(damaged)
}

/// Length and whether it is in place, without the list of chunks.
pub(crate) fn outline(row: &[u8]) -> Result<(u64, bool)> {
    decode(row)
}

impl Index {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut db = Builder::new().set_cache_size(CACHE_BYTES).create(path).map_err(failure)?;
        // What redb can repair by itself was repaired above: a finding now is damage.
        if !db.check_integrity().map_err(failure)? {
            return Err(failure(redb::StorageError::Corrupted("found by its check".into())));
        }
        let index = Self { db: RwLock::new(Some(db)) };
        index.write::<_, Failure>(|tx| {
            tx.open_table(OBJECTS).map_err(failure)?;
            tx.open_table(CHUNKS).map_err(failure)?;
            tx.open_table(SEGMENTS).map_err(failure)?;
            tx.open_table(MANIFESTS).map_err(failure)?;
            tx.open_table(HOLDERS).map_err(failure)?;
            tx.open_table(PINS).map_err(failure)?;
            tx.open_table(USED).map_err(failure)?;
            tx.open_table(STATE).map_err(failure)?;
            // Whoever had leased something is gone.
            tx.delete_table(LEASES).map_err(failure)?;
            tx.open_table(LEASES).map_err(failure)?;
            Ok(())
        })?;
        Ok(index)
    }

    /// Whether the index ever knew all that the files say: else it was made anew.
    pub(crate) fn is_settled(&self) -> Result<bool> {
        let table = self.read()?.open_table(STATE).map_err(failure)?;
        Ok(table.get(SETTLED).map_err(failure)?.is_some())
    }

    pub(crate) fn settle(&self) -> Result<()> {
        self.write(|tx| {
            let mut table = tx.open_table(STATE).map_err(failure)?;
            table.insert(SETTLED, ()).map_err(failure)?;
            Ok(())
        })
    }

    pub(crate) fn read(&self) -> Result<ReadTransaction> {
        self.with(|db| db.begin_read().map_err(failure))
    }

    /// From now on everything fails, and another may open it.
    pub(crate) fn close(&self) {
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn with<T>(&self, ask: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        match &*self.db.read().unwrap_or_else(PoisonError::into_inner) {
            Some(db) => ask(db),
            None => Err(failure(redb::StorageError::Io(io::Error::other("the store is closed")))),
        }
    }

    /// One durable transaction: all of it or, on any error, nothing.
    pub(crate) fn write<T, E: From<Failure>>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let tx = self.with(|db| db.begin_write().map_err(failure))?;
        let answer = change(&tx)?;
        tx.commit().map_err(failure)?;
        Ok(answer)
    }

    /// A transaction that may be forgotten by a crash, and costs no sync.
    pub(crate) fn write_lightly<T>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<T>,
    ) -> Result<T> {
        let mut tx = self.with(|db| db.begin_write().map_err(failure))?;
        tx.set_durability(Durability::None).map_err(failure)?;
        let answer = change(&tx)?;
        tx.commit().map_err(failure)?;
        Ok(answer)
    }

    /// How long an object is and whether it is in place, if it is here.
    pub(crate) fn outline(&self, id: ObjectId) -> Result<Option<(u64, bool)>> {
        let table = self.read()?.open_table(OBJECTS).map_err(failure)?;
        let row = table.get(&id.0).map_err(failure)?;
        row.map(|row| outline(row.value())).transpose()
    }

    /// Whether the object is here, and if so whether it is in place.
    pub(crate) fn holds(&self, id: ObjectId) -> Result<Option<bool>> {
        Ok(self.outline(id)?.map(|(_, in_place)| in_place))
    }

    pub(crate) fn manifest(&self, hash: Hash) -> Result<Option<ManifestRow>> {
        let table = self.read()?.open_table(MANIFESTS).map_err(failure)?;
        let row = table.get(&hash.0).map_err(failure)?;
        row.map(|row| decode(row.value())).transpose()
    }

    /// Who wants to hold an object.
    pub(crate) fn holders(&self, id: ObjectId) -> Result<Vec<Hash>> {
        let table = self.read()?.open_table(HOLDERS).map_err(failure)?;
        let mut found = Vec::new();
        let (from, to) = pairs(&id.0);
        for row in table.range::<&[u8; 64]>(&from..=&to).map_err(failure)? {
            found.push(Hash(right(row.map_err(failure)?.0.value())));
        }
        Ok(found)
    }

    /// The objects that hold a chunk, and where.
    pub(crate) fn locations(&self, chunk: Hash, most: usize) -> Result<Vec<(ObjectId, u64)>> {
        let table = self.read()?.open_table(CHUNKS).map_err(failure)?;
        let mut found = Vec::new();
        let (from, to) = pairs(&chunk.0);
        for row in table.range::<&[u8; 64]>(&from..=&to).map_err(failure)?.take(most) {
            let (key, value) = row.map_err(failure)?;
            found.push((ObjectId(right(key.value())), value.value().0));
        }
        Ok(found)
    }

    /// The user's files that hold `bytes` of an object from `offset` on, each with its own offset.
    pub(crate) fn segments(
        &self,
        id: ObjectId,
        offset: u64,
        bytes: u64,
    ) -> Result<Vec<(u64, Segment)>> {
        let table = self.read()?.open_table(SEGMENTS).map_err(failure)?;
        let first = table.range((&id.0, 0)..=(&id.0, offset)).map_err(failure)?.next_back();
        let Some(first) = first else { return Ok(Vec::new()) };
        let start = first.map_err(failure)?.0.value().1;
        let mut found = Vec::new();
        for row in table.range((&id.0, start)..(&id.0, offset + bytes)).map_err(failure)? {
            let (key, value) = row.map_err(failure)?;
            found.push((key.value().1, decode(value.value())?));
        }
        Ok(found)
    }
}

/// Adds an object, and says how many bytes of it are in chunks that no object held before.
pub(crate) fn add_object(
    tx: &WriteTransaction,
    id: ObjectId,
    chunks: &[Chunk],
    segments: Option<&[(u64, Segment)]>,
) -> Result<u64> {
    let bytes = chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
    let row = ObjectRow { bytes, in_place: segments.is_some(), chunks: chunks.to_vec() };
    tx.open_table(OBJECTS).map_err(failure)?.insert(&id.0, &*encode(&row)).map_err(failure)?;
    let mut table = tx.open_table(SEGMENTS).map_err(failure)?;
    table.retain_in((&id.0, 0)..=(&id.0, u64::MAX), |_, _| false).map_err(failure)?;
    for (offset, segment) in segments.unwrap_or_default() {
        table.insert((&id.0, *offset), &*encode(segment)).map_err(failure)?;
    }
    let mut table = tx.open_table(CHUNKS).map_err(failure)?;
    let (mut offset, mut new_bytes) = (0u64, 0);
    for chunk in chunks {
        let (from, to) = pairs(&chunk.id.0);
        if table.range::<&[u8; 64]>(&from..=&to).map_err(failure)?.next().is_none() {
            new_bytes += u64::from(chunk.bytes);
        }
        let key = pair(&chunk.id.0, &id.0);
        // The first place of a chunk that an object holds twice, so that the index does not depend on its history.
        if table.get(&key).map_err(failure)?.is_none_or(|old| old.value().0 > offset) {
            table.insert(&key, (offset, chunk.bytes)).map_err(failure)?;
        }
        offset += u64::from(chunk.bytes);
    }
    Ok(new_bytes)
}

/// Takes an object out, but not who wants to hold it. How long it was, and whether it was in place.
pub(crate) fn drop_object(tx: &WriteTransaction, id: ObjectId) -> Result<Option<(u64, bool)>> {
    let mut objects = tx.open_table(OBJECTS).map_err(failure)?;
    let Some(row) = objects.remove(&id.0).map_err(failure)? else { return Ok(None) };
    let row: ObjectRow = decode(row.value())?;
    let mut table = tx.open_table(CHUNKS).map_err(failure)?;
    for chunk in &row.chunks {
        table.remove(&pair(&chunk.id.0, &id.0)).map_err(failure)?;
    }
    let mut table = tx.open_table(SEGMENTS).map_err(failure)?;
    table.retain_in((&id.0, 0)..=(&id.0, u64::MAX), |_, _| false).map_err(failure)?;
    Ok(Some((row.bytes, row.in_place)))
}

/// Notes that `holder` wants these objects.
pub(crate) fn hold(tx: &WriteTransaction, holder: Hash, objects: &[ObjectId]) -> Result<()> {
    let mut table = tx.open_table(HOLDERS).map_err(failure)?;
    for id in objects {
        table.insert(&pair(&id.0, &holder.0), ()).map_err(failure)?;
    }
    Ok(())
}

/// Notes that somebody asked for a manifest.
pub(crate) fn touch(tx: &WriteTransaction, hash: Hash, now: Time) -> Result<()> {
    let mut table = tx.open_table(USED).map_err(failure)?;
    table.insert(&hash.0, now.0).map_err(failure)?;
    Ok(())
}

/// Notes a lease.
pub(crate) fn add_lease(tx: &WriteTransaction, number: u64, hash: Hash) -> Result<()> {
    let mut table = tx.open_table(LEASES).map_err(failure)?;
    table.insert(number, &hash.0).map_err(failure)?;
    Ok(())
}
