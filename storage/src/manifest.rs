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
//!
//! What decoding costs is bounded by what came: at its peak it holds no more than 32 times the input and
//! a little, and counts are refused before anything is made for them. The factor is for the worst that can be
//! sent, entries of three bytes; a usual manifest costs three to six times its bytes.

mod paths;
mod read;
#[cfg(test)]
mod tests;

use mesh_consensus::id::{Hash, ObjectId};
use serde::Serialize;

pub use self::paths::check_path;

use crate::chunk::{Chunk, HEAD_CHUNK, MAX_CHUNK, MIN_CHUNK, Scheme, object_id};

/// The first bytes of every manifest.
const MAGIC: &[u8] = b"mesh manifest 1\n";
/// No manifest is longer. At 36 bytes a chunk this is enough for some terabytes.
pub const MAX_MANIFEST_BYTES: usize = 256 << 20;
/// Paths in one manifest.
pub const MAX_ENTRIES: usize = 4_000_000;
/// Chunks in one manifest.
pub const MAX_CHUNKS: usize = 6_000_000;
/// Bytes of a path. The kernel takes no longer ones in one call.
pub const MAX_PATH: usize = 4095;
/// Bytes of a file that shares its object with others. A longer file is an object of its own, so two files of the same
/// length are either both of one chunk at most, or both lists of chunks: that is how `diff` tells equal ones.
pub const MAX_PACKED: u64 = MIN_CHUNK as u64;

/// What a version consists of. See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Manifest {
    /// How the objects were cut.
    pub scheme: Scheme,
    /// Files and packs. No two are equal, and each is used by an entry.
    pub objects: Vec<Object>,
    /// In the order of their paths (by their bytes); no path twice, nor two that some file system takes for one.
    pub entries: Vec<Entry>,
}

/// A file or a pack of small ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Object {
    /// At least one.
    pub chunks: Vec<Chunk>,
}

/// A path, and what is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Relative, of plain parts, with `/` between them.
    pub path: String,
    /// What is there.
    pub kind: Kind,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
        /// How many bytes it has: at least one, and at most [`MAX_PACKED`] if it is not all of its object.
        bytes: u64,
        /// BLAKE3 of its bytes, if it is not all of its object; else none, since the chunks say it.
        content: Option<Hash>,
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
        postcard::to_extend(self, MAGIC.to_vec())
            .expect("a manifest holds nothing that postcard cannot encode")
    }

    /// Reads one and checks everything in it. The name is for the caller to compare: [`Hash::of`] the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        check_count("bytes", bytes.len(), MAX_MANIFEST_BYTES)?;
        let body = bytes.strip_prefix(MAGIC).ok_or(ManifestError::Unreadable)?;
        let manifest = read::manifest(body)?;
        manifest.check_parts()?;
        Ok(manifest)
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

    /// Whether everything in it fits together, and is not too long to be read again. Import asks this of what it made.
    pub fn check(&self) -> Result<(), ManifestError> {
        let body = postcard::experimental::serialized_size(self)
            .expect("a manifest holds nothing that postcard cannot encode");
        check_count("bytes", MAGIC.len() + body, MAX_MANIFEST_BYTES)?;
        self.check_parts()
    }

    fn check_parts(&self) -> Result<(), ManifestError> {
        check_count("entries", self.entries.len(), MAX_ENTRIES)?;
        check_count("chunks", self.chunk_count(), MAX_CHUNKS)?;
        self.check_objects()?;
        self.check_places()?;
        paths::check_paths(&self.entries)
    }

    fn check_objects(&self) -> Result<(), ManifestError> {
        let mut ids = Vec::with_capacity(self.objects.len());
        for object in &self.objects {
            let Some((last, rest)) = object.chunks.split_last() else {
                return Err(ManifestError::Contradiction("an object without chunks"));
            };
            let fits = |chunk: &Chunk| (MIN_CHUNK..=MAX_CHUNK).contains(&chunk.bytes);
            let body = match rest.split_first() {
                Some((head, body)) if head.bytes == HEAD_CHUNK => body,
                _ => rest,
            };
            if !body.iter().all(fits) || !(1..=MAX_CHUNK).contains(&last.bytes) {
                return Err(ManifestError::Contradiction("a chunk of a length that no cut gives"));
            }
            ids.push(object.id());
        }
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(ManifestError::Contradiction("an object twice"));
        }
        drop(ids);
        let mut chunks: Vec<&Chunk> =
            self.objects.iter().flat_map(|object| &object.chunks).collect();
        chunks.sort_unstable_by_key(|chunk| chunk.id);
        let lie = |pair: &[&Chunk]| pair[0].id == pair[1].id && pair[0].bytes != pair[1].bytes;
        if chunks.windows(2).any(lie) {
            return Err(ManifestError::Contradiction("a chunk of two lengths"));
        }
        Ok(())
    }

    /// Every file lies inside its object, and a pack is filled by its members: without holes, and
    /// none of them overlaps another unless they are the same bytes.
    fn check_places(&self) -> Result<(), ManifestError> {
        let mut files: Vec<&Kind> = Vec::with_capacity(self.entries.len());
        files.extend(self.entries.iter().map(|entry| &entry.kind).filter(|kind| kind.is_file()));
        files.sort_unstable_by_key(|kind| kind.place());
        let mut at = 0;
        for (number, object) in (0u32..).zip(&self.objects) {
            let (whole, mut end) = (object.bytes(), 0);
            let mut before = None;
            while let Some(&&kind) = files.get(at)
                && let Kind::File { object, offset, bytes, content, .. } = kind
                && object == number
            {
                at += 1;
                if before == Some((offset, bytes, content)) {
                    continue;
                }
                before = Some((offset, bytes, content));
                if offset != end || bytes == 0 {
                    return Err(ManifestError::Contradiction(
                        "files that overlap, or bytes of none",
                    ));
                }
                end = offset.checked_add(bytes).ok_or(ManifestError::Contradiction("lengths"))?;
                if content.is_some() == (bytes == whole) {
                    return Err(ManifestError::Contradiction(
                        "a hash of content for all of an object, or none for a part",
                    ));
                }
                if content.is_some() && bytes > MAX_PACKED {
                    return Err(ManifestError::Contradiction("a file in a pack that is too long"));
                }
            }
            if end != whole {
                return Err(ManifestError::Contradiction(
                    "an object of another length than its files",
                ));
            }
        }
        if at < files.len() {
            return Err(ManifestError::Contradiction("a file of no object"));
        }
        Ok(())
    }
}

impl Kind {
    fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// What files are sorted by to find what lies beside what: two at the same place are neighbours.
    fn place(&self) -> (u32, u64, u64, Option<Hash>) {
        match *self {
            Self::EmptyDirectory | Self::EmptyFile => (0, 0, 0, None),
            Self::File { object, offset, bytes, content, .. } => (object, offset, bytes, content),
        }
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
