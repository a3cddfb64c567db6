//! A manifest: what a version of a dataset consists of.
//!
//! It lists **objects** (each a list of chunks) and **entries** (paths, and where in the objects their
//! bytes are). A file is a whole object, or a part of a pack. A manifest is named by BLAKE3 of its bytes, and
//! it comes from other people: [`Manifest::decode`] takes nothing that this mesh would not have written.
//!
//! ```text
//! "mesh manifest 1\n" ‖ postcard(Manifest)
//! ```
//!
//! Chunks are numbered through all objects in order: peers speak of chunk 17 of a version, never of a hash,
//! so that knowing a hash opens nothing.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{Hash, ObjectId};
use serde::{Deserialize, Serialize};

use crate::chunk::{Chunk, MAX_CHUNK, MIN_CHUNK, Scheme, object_id};

/// The first bytes of every manifest.
const MAGIC: &[u8] = b"mesh manifest 1\n";
/// No manifest is longer. At 36 bytes a chunk this is enough for some terabytes.
pub const MAX_MANIFEST_BYTES: usize = 256 << 20;
/// Paths in one manifest.
pub const MAX_ENTRIES: usize = 4_000_000;
/// Chunks in one manifest.
pub const MAX_CHUNKS: usize = 6_000_000;
/// Bytes of a path.
pub const MAX_PATH: usize = 4096;
/// Bytes of one part of it.
const MAX_NAME: usize = 255;

/// What a version consists of. See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// How the objects were cut.
    pub scheme: Scheme,
    /// Files and packs. No two are equal, and each is used by an entry.
    pub objects: Vec<Object>,
    /// In the order of their paths; no path twice, nor two that differ by case only.
    pub entries: Vec<Entry>,
}

/// A file or a pack of small ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// At least one.
    pub chunks: Vec<Chunk>,
}

/// A path, and what is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative, of plain parts, with `/` between them.
    pub path: String,
    /// What is there.
    pub kind: Kind,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory that holds nothing: others follow from the paths.
    EmptyDirectory,
    /// A file without bytes.
    EmptyFile,
    /// A file.
    File {
        /// Whether it may be run.
        executable: bool,
        /// The place of its object in [`Manifest::objects`].
        object: u32,
        /// Where in the object it begins: zero if it is all of it.
        offset: u64,
        /// How many bytes it has: at least one.
        bytes: u64,
    },
}

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not one at all, or not one that this version can read.
    #[error("these bytes are no manifest that this version of mesh can read")]
    Unreadable,
    /// More than anybody should send.
    #[error("the manifest has {found} {what}; at most {limit} are taken")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// So many.
        found: usize,
        /// Of so many.
        limit: usize,
    },
    /// A path that leads out, or that some file system takes for another.
    #[error("path {path:?}: {why}")]
    Path {
        /// As much of it as can be shown.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Objects or places that cannot be.
    #[error("the manifest contradicts itself: {0}")]
    Contradiction(&'static str),
}

impl Object {
    /// Its name.
    pub fn id(&self) -> ObjectId {
        object_id(&self.chunks)
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }
}

impl Manifest {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let body = postcard::to_stdvec(self);
        bytes.extend(body.expect("a manifest holds nothing that postcard cannot encode"));
        bytes
    }

    /// Reads one and checks everything in it. The name is for the caller to compare: [`Hash::of`] the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            let (found, limit) = (bytes.len(), MAX_MANIFEST_BYTES);
            return Err(ManifestError::TooMany { what: "bytes", found, limit });
        }
        let body = bytes.strip_prefix(MAGIC).ok_or(ManifestError::Unreadable)?;
        let (manifest, rest): (Self, _) =
            postcard::take_from_bytes(body).map_err(|_| ManifestError::Unreadable)?;
        if !rest.is_empty() {
            return Err(ManifestError::Unreadable);
        }
        manifest.check()?;
        // There is one encoding: a number that was written the long way is refused.
        if manifest.encode() == bytes { Ok(manifest) } else { Err(ManifestError::Unreadable) }
    }

    /// The name of the manifest: BLAKE3 of its bytes.
    pub fn hash(&self) -> Hash {
        Hash::of(&self.encode())
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes()).sum()
    }

    /// How many files there are.
    pub fn files(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.kind != Kind::EmptyDirectory).count() as u64
    }

    /// All chunks in order: the first is number 0.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> {
        self.objects.iter().flat_map(|object| object.chunks.iter().copied())
    }

    /// How many chunks there are.
    pub fn chunk_count(&self) -> usize {
        self.objects.iter().map(|object| object.chunks.len()).sum()
    }

    /// Whether everything in it fits together. What [`Manifest::decode`] relies on, and import too.
    pub fn check(&self) -> Result<(), ManifestError> {
        check_count("entries", self.entries.len(), MAX_ENTRIES)?;
        check_count("chunks", self.chunk_count(), MAX_CHUNKS)?;
        self.check_objects()?;
        self.check_places()?;
        check_paths(&self.entries)
    }

    fn check_objects(&self) -> Result<(), ManifestError> {
        let mut seen = BTreeSet::new();
        for object in &self.objects {
            let Some((last, rest)) = object.chunks.split_last() else {
                return Err(ManifestError::Contradiction("an object without chunks"));
            };
            let fits = |chunk: &Chunk| (MIN_CHUNK..=MAX_CHUNK).contains(&chunk.bytes);
            if !rest.iter().all(fits) || !(1..=MAX_CHUNK).contains(&last.bytes) {
                return Err(ManifestError::Contradiction("a chunk of a length that no cut gives"));
            }
            if !seen.insert(object.id()) {
                return Err(ManifestError::Contradiction("an object twice"));
            }
        }
        Ok(())
    }

    /// Every file lies inside its object, and a pack is filled by its members: without holes, and
    /// none of them overlaps another unless they are the same bytes.
    fn check_places(&self) -> Result<(), ManifestError> {
        let mut places: Vec<BTreeMap<u64, u64>> = vec![BTreeMap::new(); self.objects.len()];
        for entry in &self.entries {
            let Kind::File { object, offset, bytes, .. } = entry.kind else { continue };
            let held = places.get_mut(object as usize);
            let held = held.ok_or(ManifestError::Contradiction("a file of no object"))?;
            if *held.entry(offset).or_insert(bytes) != bytes || bytes == 0 {
                return Err(ManifestError::Contradiction("files that overlap"));
            }
        }
        for (object, places) in self.objects.iter().zip(places) {
            let mut end = 0u64;
            for (offset, bytes) in places {
                if offset != end {
                    return Err(ManifestError::Contradiction(
                        "files that overlap, or bytes of none",
                    ));
                }
                end = offset.checked_add(bytes).ok_or(ManifestError::Contradiction("lengths"))?;
            }
            if end != object.bytes() {
                return Err(ManifestError::Contradiction(
                    "an object of another length than its files",
                ));
            }
        }
        Ok(())
    }
}

impl Entry {
    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        match self.kind {
            Kind::EmptyDirectory | Kind::EmptyFile => 0,
            Kind::File { bytes, .. } => bytes,
        }
    }
}

fn check_count(what: &'static str, found: usize, limit: usize) -> Result<(), ManifestError> {
    if found > limit { Err(ManifestError::TooMany { what, found, limit }) } else { Ok(()) }
}

/// Whether a path can stand in a manifest.
pub fn check_path(path: &str) -> Result<(), ManifestError> {
    let refuse = |why| {
        let path = path.chars().take(80).collect();
        Err(ManifestError::Path { path, why })
    };
    if path.is_empty() || path.len() > MAX_PATH {
        return refuse("it is empty or too long");
    }
    if path.chars().any(|c| c.is_control()) {
        return refuse("it holds a control character");
    }
    if path.contains('\\') {
        return refuse("it holds a backslash, which other systems take for a separator");
    }
    for part in path.split('/') {
        match part {
            "" => return refuse("it is absolute or has an empty part"),
            "." | ".." => return refuse("it leads out of its directory"),
            _ if part.len() > MAX_NAME => return refuse("a part of it is too long"),
            _ => {}
        }
    }
    Ok(())
}

/// In order, none twice, none that differ by case only, and no file where another entry needs a directory.
fn check_paths(entries: &[Entry]) -> Result<(), ManifestError> {
    let refuse = |path: &str, why| {
        let path = path.chars().take(80).collect();
        Err(ManifestError::Path { path, why })
    };
    for pair in entries.windows(2) {
        if pair[0].path >= pair[1].path {
            return refuse(&pair[1].path, "it is out of order, or there twice");
        }
    }
    let mut folded: Vec<(String, bool)> = Vec::with_capacity(entries.len());
    for entry in entries {
        check_path(&entry.path)?;
        folded.push((entry.path.to_lowercase(), true));
    }
    folded.sort_unstable();
    for pair in folded.windows(2) {
        if pair[0].0 == pair[1].0 {
            return refuse(&pair[1].0, "it differs from another by case only");
        }
    }
    // A file "a" beside "a/b": no tree has both. Nor may "A/x" and "a/y" meet in one directory.
    let mut directories: BTreeMap<String, &str> = BTreeMap::new();
    for entry in entries {
        for (at, _) in entry.path.match_indices('/') {
            let directory = &entry.path[..at];
            let lower = directory.to_lowercase();
            if folded.binary_search(&(lower.clone(), true)).is_ok() {
                return refuse(directory, "it is a directory for one entry and none for another");
            }
            if *directories.entry(lower).or_insert(directory) != directory {
                return refuse(directory, "it differs from another by case only");
            }
        }
    }
    Ok(())
}
