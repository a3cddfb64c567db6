//! Claiming: from bytes in a file to an object that is here for good.
//!
//! ```text
//!  sync the data → make it read-only → rename into objects/ → sync the directories → commit the index
//! ```
//!
//! Many objects go through each step together. A manifest comes last.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::PoisonError;

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;
use redb::ReadableTable as _;

use super::index::{self, HOLDERS, MANIFESTS, ManifestRow, OBJECTS, Segment, failure, outline};
use super::{Loaded, Store, StoreError};
use crate::chunk::Chunk;

/// An object whose bytes are all there, but not yet claimed.
pub(crate) struct Finished {
    pub(crate) id: ObjectId,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) content: Content,
}

/// Where the bytes of a finished object are.
pub(crate) enum Content {
    /// In a file of the store's: open if it is still to be synced.
    Staged(Option<File>, PathBuf),
    /// In files of the user: what begins where.
    InPlace(Vec<(u64, Segment)>),
}

impl Store {
    /// Claims objects, and holds them for `holder`. How many bytes are in chunks that were not here.
    ///
    /// What is staged takes the place of what is here already: it was hashed just now, and nobody knows when the other was.
    pub(crate) fn claim(&self, objects: &[Finished], holder: Hash) -> Result<u64, StoreError> {
        let files = &self.inner.files;
        let (mut staged, mut unsynced) = (Vec::new(), Vec::new());
        for object in objects {
            if let Content::Staged(file, path) = &object.content {
                unsynced.extend(file.as_ref().map(|file| (file, path.as_path())));
                staged.push((object.id, path));
            }
        }
        files.sync_each(unsynced.into_iter())?;
        let _named = self.inner.names.read().unwrap_or_else(PoisonError::into_inner);
        let (mut directories, mut named) = (BTreeSet::new(), BTreeSet::new());
        for (id, path) in staged {
            if !named.insert(id) {
                files.remove(path)?;
                continue;
            }
            let home = files.object(id);
            // It has its name already if the index could not be written the last time.
            if path.exists() || !home.exists() {
                files.seal(path)?;
                files.rename(path, &home)?;
            }
            directories.extend(home.parent().map(PathBuf::from));
        }
        for directory in directories {
            files.sync_directory(&directory)?;
        }
        let new_bytes = self.inner.index.write(|tx| {
            let mut new_bytes = 0;
            for Finished { id, chunks, content } in objects {
                let stored = {
                    let table = tx.open_table(OBJECTS).map_err(failure)?;
                    let row = table.get(&id.0).map_err(failure)?;
                    row.map(|row| outline(row.value())).transpose()?.map(|(_, in_place)| !in_place)
                };
                let segments = match content {
                    Content::InPlace(segments) => Some(segments.as_slice()),
                    Content::Staged(..) => None,
                };
                // A copy of our own is better than the user's file; a newer look at a file than an older one.
                if stored != Some(true) {
                    new_bytes += index::add_object(tx, *id, chunks, segments)?;
                }
            }
            let ids: Vec<ObjectId> = objects.iter().map(|object| object.id).collect();
            index::hold(tx, holder, &ids)?;
            Ok::<_, StoreError>(new_bytes)
        })?;
        #[cfg(test)]
        files.watch.note(|| {
            let is_staged = |object: &&Finished| matches!(object.content, Content::Staged(..));
            let staged = objects.iter().filter(is_staged);
            super::files::Step::Commit(staged.map(|object| files.object(object.id)).collect())
        });
        Ok(new_bytes)
    }

    /// Holds an object for `holder`, if the store has a file of it. Whether it has.
    pub(crate) fn hold(&self, holder: Hash, id: ObjectId) -> Result<bool, StoreError> {
        Ok(self.inner.index.write_lightly(|tx| {
            let stored = {
                let table = tx.open_table(OBJECTS).map_err(failure)?;
                let row = table.get(&id.0).map_err(failure)?;
                row.map(|row| outline(row.value())).transpose()?.is_some_and(|row| !row.1)
            };
            if stored {
                index::hold(tx, holder, &[id])?;
            }
            Ok(stored)
        })?)
    }

    /// Claims a manifest whose objects are all here. `holder` held them until now.
    pub(crate) fn claim_manifest(
        &self,
        loaded: &Loaded,
        bytes: &[u8],
        places: Option<&[u8]>,
        holder: Hash,
        now: Time,
    ) -> Result<(), StoreError> {
        let (files, hash) = (&self.inner.files, loaded.hash());
        let _named = self.inner.names.read().unwrap_or_else(PoisonError::into_inner);
        // The index would refuse below, too: but a name should not appear for nothing.
        for id in loaded.objects() {
            self.inner.index.holds(*id)?.ok_or(StoreError::Missing(*id))?;
        }
        if let Some(places) = places {
            files.put(&files.places(hash), places)?;
        }
        files.put(&files.manifest(hash), bytes)?;
        let manifest = loaded.manifest();
        self.inner.index.write(|tx| {
            let mut in_place = false;
            let objects = tx.open_table(OBJECTS).map_err(failure)?;
            for id in loaded.objects() {
                let row = objects.get(&id.0).map_err(failure)?.ok_or(StoreError::Missing(*id))?;
                in_place |= outline(row.value())?.1;
            }
            let row = ManifestRow { bytes: manifest.bytes(), files: manifest.files(), in_place };
            let mut manifests = tx.open_table(MANIFESTS).map_err(failure)?;
            manifests.insert(&hash.0, &*index::encode(&row)).map_err(failure)?;
            index::touch(tx, hash, now)?;
            index::hold(tx, hash, loaded.objects())?;
            if holder != hash {
                let mut holders = tx.open_table(HOLDERS).map_err(failure)?;
                for id in loaded.objects() {
                    holders.remove(&index::pair(&id.0, &holder.0)).map_err(failure)?;
                }
            }
            Ok::<_, StoreError>(())
        })?;
        #[cfg(test)]
        files.watch.note(|| super::files::Step::Commit(vec![files.manifest(hash)]));
        Ok(())
    }
}
