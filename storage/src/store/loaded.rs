//! A manifest with the places of its chunks worked out.

use std::sync::Arc;

use mesh_consensus::id::{Hash, ObjectId};

use super::{Store, StoreError, lock};
use crate::chunk::Chunk;
use crate::manifest::Manifest;

/// So many manifests are kept in memory.
const KEPT: usize = 8;

/// A manifest, ready for use.
#[derive(Debug)]
pub struct Loaded {
    hash: Hash,
    manifest: Manifest,
    ids: Vec<ObjectId>,
    /// For each object the number of its first chunk, and the count of all at the end.
    starts: Vec<usize>,
    /// For each chunk where in its object it begins.
    offsets: Vec<u64>,
}

/// Where a chunk belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The place of its object in the manifest.
    pub object: usize,
    /// The object's name.
    pub id: ObjectId,
    /// The chunk's place in the object.
    pub chunk: usize,
    /// Where in the object it begins.
    pub offset: u64,
    /// Its name and length.
    pub what: Chunk,
}

impl Loaded {
    /// Works out the places. The manifest must have been checked, and `hash` be that of its bytes.
    pub fn new(hash: Hash, manifest: Manifest) -> Self {
        let ids = manifest.objects.iter().map(|object| object.id()).collect();
        let mut starts = Vec::with_capacity(manifest.objects.len() + 1);
        let mut offsets = Vec::with_capacity(manifest.chunk_count());
        for object in &manifest.objects {
            starts.push(offsets.len());
            let mut at = 0u64;
            for chunk in &object.chunks {
                offsets.push(at);
                at += u64::from(chunk.bytes);
            }
        }
        starts.push(offsets.len());
        Self { hash, manifest, ids, starts, offsets }
    }

    /// Its name.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The manifest itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn into_manifest(self) -> Manifest {
        self.manifest
    }

    /// The names of its objects, in order.
    pub fn objects(&self) -> &[ObjectId] {
        &self.ids
    }

    /// How many chunks there are.
    pub fn chunk_count(&self) -> usize {
        self.offsets.len()
    }

    /// Where a chunk belongs.
    pub fn place(&self, number: usize) -> Result<Place, StoreError> {
        let count = self.offsets.len();
        let offset = *self.offsets.get(number).ok_or(StoreError::NoSuchChunk { number, count })?;
        let object = self.starts.partition_point(|start| *start <= number) - 1;
        let chunk = number - self.starts[object];
        let what = self.manifest.objects[object].chunks[chunk];
        Ok(Place { object, id: self.ids[object], chunk, offset, what })
    }

    /// The numbers of the chunks of an object.
    pub fn numbers(&self, object: usize) -> std::ops::Range<usize> {
        self.starts[object]..self.starts[object + 1]
    }
}

impl Store {
    /// Reads a manifest that is claimed here, and checks it.
    pub fn load(&self, hash: Hash) -> Result<Arc<Loaded>, StoreError> {
        if let Some(loaded) = lock(&self.inner.loaded).get(&hash) {
            return Ok(loaded.clone());
        }
        if self.inner.index.manifest(hash)?.is_none() {
            return Err(StoreError::NoManifest(hash));
        }
        let path = self.inner.files.manifest(hash);
        let bytes = std::fs::read(&path).map_err(StoreError::io(&path))?;
        if Hash::of(&bytes) != hash {
            self.discard_manifest(hash)?;
            return Err(StoreError::Damaged { what: format!("manifest {hash}") });
        }
        let loaded = Arc::new(Loaded::new(hash, Manifest::decode(&bytes)?));
        self.remember(&loaded);
        Ok(loaded)
    }

    /// The bytes of a manifest that is claimed here, as another node would ask for them.
    pub fn manifest_bytes(&self, hash: Hash) -> Result<Vec<u8>, StoreError> {
        Ok(self.load(hash)?.manifest.encode())
    }

    pub(super) fn remember(&self, loaded: &Arc<Loaded>) {
        let mut kept = lock(&self.inner.loaded);
        if kept.len() >= KEPT {
            kept.pop_first();
        }
        kept.insert(loaded.hash, loaded.clone());
    }
}
