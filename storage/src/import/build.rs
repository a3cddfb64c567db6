//! From the objects to the manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use mesh_consensus::id::{Hash, ObjectId};
use mesh_consensus::time::Time;

use super::pipe::Feed;
use super::walk;
use super::{Import, ImportError, Imported, locked};
use crate::chunk::{Chunk, Scheme};
use crate::manifest::{Entry, Kind, Manifest, Object};
use crate::store::open::{Places, encode_places};
use crate::store::{Loaded, StoreError};

/// What has become of the files, in the order in which it was done.
#[derive(Default)]
pub(super) struct Registry {
    chunks: BTreeMap<ObjectId, Vec<Chunk>>,
    /// Files that are objects, by their entries.
    files: BTreeMap<usize, ObjectId>,
    /// Packs by their first entries.
    packs: BTreeMap<usize, (ObjectId, Vec<Member>)>,
}

/// A file in a pack.
pub(super) struct Member {
    pub(super) entry: usize,
    pub(super) bytes: u64,
    /// BLAKE3 of its bytes.
    pub(super) content: Hash,
}

/// Where the bytes of a file are.
struct Home {
    object: ObjectId,
    offset: u64,
    /// Of a file that is not all of its object.
    content: Option<Hash>,
}

impl Registry {
    pub(super) fn add_file(&mut self, entry: usize, id: ObjectId, chunks: Vec<Chunk>) {
        self.chunks.insert(id, chunks);
        self.files.insert(entry, id);
    }

    pub(super) fn add_pack(&mut self, id: ObjectId, chunks: Vec<Chunk>, members: Vec<Member>) {
        self.chunks.insert(id, chunks);
        if let Some(first) = members.first() {
            self.packs.insert(first.entry, (id, members));
        }
    }

    /// Takes out the packs whose bytes are an object already that is divided in another way: a file of the
    /// same content, say. No manifest may have both. The entries of these packs.
    fn take_clashes(&mut self) -> Vec<usize> {
        let whole: BTreeSet<ObjectId> = self.files.values().copied().collect();
        let mut divided: BTreeMap<ObjectId, Vec<u64>> = BTreeMap::new();
        let mut clashes = Vec::new();
        self.packs.retain(|_, (id, members)| {
            let lengths: Vec<u64> = members.iter().map(|member| member.bytes).collect();
            let is_file = whole.contains(id) && lengths.len() > 1;
            let stays =
                !is_file && *divided.entry(*id).or_insert_with(|| lengths.clone()) == lengths;
            if !stays {
                clashes.extend(members.iter().map(|member| member.entry));
            }
            stays
        });
        clashes
    }

    /// Where each file is that has any bytes.
    fn homes(&self) -> BTreeMap<usize, Home> {
        let whole = |object: ObjectId| Home { object, offset: 0, content: None };
        let mut homes: BTreeMap<usize, Home> =
            self.files.iter().map(|(entry, id)| (*entry, whole(*id))).collect();
        for (id, members) in self.packs.values() {
            let mut offset = 0;
            for Member { entry, bytes, content } in members {
                let content = (members.len() > 1).then_some(*content);
                homes.insert(*entry, Home { object: *id, offset, content });
                offset += bytes;
            }
        }
        homes
    }
}

/// Makes the manifest and claims it.
pub(super) fn build(
    import: &Import<'_>,
    tree: &[walk::Entry],
    now: Time,
) -> Result<Imported, ImportError> {
    split_clashes(import, tree)?;
    let registry = locked(&import.registry);
    let homes = registry.homes();
    let mut numbers: BTreeMap<ObjectId, u32> = BTreeMap::new();
    let mut manifest = Manifest { scheme: Scheme::FastCdc2020, ..Manifest::default() };
    for (at, entry) in tree.iter().enumerate() {
        let kind = match (&entry.source, homes.get(&at)) {
            (None, _) => Kind::EmptyDirectory,
            (Some(_), None) => Kind::EmptyFile,
            (Some(source), Some(home)) => {
                let object = *numbers.entry(home.object).or_insert_with(|| {
                    let chunks = registry.chunks.get(&home.object).cloned().unwrap_or_default();
                    manifest.objects.push(Object { chunks });
                    manifest.objects.len() as u32 - 1
                });
                let (executable, bytes) = (source.executable, source.stamp.bytes);
                let (offset, content) = (home.offset, home.content);
                Kind::File { executable, object, offset, bytes, content }
            }
        };
        manifest.entries.push(Entry { path: entry.path.clone(), kind });
    }
    manifest.check()?;
    let bytes = manifest.encode();
    let hash = Hash::of(&bytes);
    let loaded = Loaded::new(hash, manifest);
    drop(registry);
    let places = places(import, &loaded)?;
    let lease = import.store.lease_for(hash, loaded.objects(), now)?;
    import.store.claim_manifest(&loaded, &bytes, places.as_deref(), import.token, now)?;
    let manifest = loaded.into_manifest();
    Ok(Imported {
        hash,
        bytes: manifest.bytes(),
        files: manifest.files(),
        new_bytes: import.new_bytes.load(Ordering::Relaxed),
        mended: locked(&import.mended).len(),
        manifest,
        lease,
    })
}

/// Where the objects are that are files of the user, as the index has it.
fn places(import: &Import<'_>, loaded: &Loaded) -> Result<Option<Vec<u8>>, StoreError> {
    if !import.options.in_place {
        return Ok(None);
    }
    let mut places = Places::new();
    for (id, object) in loaded.objects().iter().zip(&loaded.manifest().objects) {
        let segments = import.store.inner().index.segments(*id, 0, object.bytes())?;
        if !segments.is_empty() {
            places.push((*id, segments));
        }
    }
    Ok(Some(encode_places(&places)))
}

/// Makes each file of a clashing pack an object of its own.
fn split_clashes(import: &Import<'_>, tree: &[walk::Entry]) -> Result<(), ImportError> {
    let feed = Feed::new(&import.store.inner().files, None);
    loop {
        let clashes = locked(&import.registry).take_clashes();
        if clashes.is_empty() {
            return import.claim_pending();
        }
        for entry in clashes {
            if let Some(source) = &tree[entry].source {
                import.whole_file(&feed, entry, source)?;
            }
        }
    }
}
