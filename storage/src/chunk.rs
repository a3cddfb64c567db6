//! Where content is cut, and how the pieces are named.
//!
//! Content is cut by FastCDC: an inserted line moves the cuts around it and no others, so a new
//! version shares all but a few chunks with the one before. A chunk is named by BLAKE3 of its bytes. A
//! file, or a pack of small files, is an **object**: a list of chunks, named by the hash of that list.
//! So whoever has the list can tell whether it is the right one, and whether each chunk is.
//!
//! Many formats begin with a header that counts what follows, and changes with every record that is
//! added. So the first chunk of an object is a short **head**: a new count costs four kilobytes.
//!
//! Where the cuts fall is part of the format. [`Scheme`] says which way they were found, and is
//! recorded in every manifest; a test pins the cut points of the crate that finds them.

use mesh_consensus::id::{Hash, ObjectId};
use serde::{Deserialize, Serialize};

/// The first chunk of an object that is longer than [`MIN_CHUNK`].
pub const HEAD_CHUNK: u32 = 4 << 10;
/// No chunk is shorter but the first and the last of its object.
pub const MIN_CHUNK: u32 = 256 << 10;
/// What most chunks are near.
pub const AVERAGE_CHUNK: u32 = 1 << 20;
/// No chunk is longer, whoever cut it.
pub const MAX_CHUNK: u32 = 4 << 20;

/// How content was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Scheme {
    /// A head of [`HEAD_CHUNK`], then FastCDC as of 2020 with [`MIN_CHUNK`], [`AVERAGE_CHUNK`] and [`MAX_CHUNK`].
    #[default]
    FastCdc2020,
}

/// A piece of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// BLAKE3 of its bytes.
    pub id: Hash,
    /// How many they are: never zero.
    pub bytes: u32,
}

/// The name of the object that consists of these chunks.
pub fn object_id(chunks: &[Chunk]) -> ObjectId {
    let mut hasher = blake3::Hasher::new_derive_key("mesh 2026 object: a list of chunks");
    for Chunk { id, bytes } in chunks {
        hasher.update(&id.0);
        hasher.update(&bytes.to_le_bytes());
    }
    ObjectId(*hasher.finalize().as_bytes())
}

/// How long the chunk is that begins at `offset` of an object, where `content` begins, too.
///
/// `content` must go on for [`MAX_CHUNK`] bytes, or end where its object ends: then the answer does not
/// depend on how it was read. Zero only if it is empty.
pub fn cut(offset: u64, content: &[u8]) -> usize {
    if offset == 0 && content.len() > MIN_CHUNK as usize {
        return HEAD_CHUNK as usize;
    }
    let window = &content[..content.len().min(MAX_CHUNK as usize)];
    let sizes = (MIN_CHUNK as usize, AVERAGE_CHUNK as usize, MAX_CHUNK as usize);
    let cdc = fastcdc::v2020::FastCDC::new(window, sizes.0, sizes.1, sizes.2);
    cdc.cut(0, window.len()).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize, seed: u64) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        fastrand::Rng::with_seed(seed).fill(&mut noise);
        noise
    }

    fn cuts(content: &[u8]) -> Vec<usize> {
        let (mut cuts, mut at) = (Vec::new(), 0);
        while at < content.len() {
            cuts.push(cut(at as u64, &content[at..]));
            at += cuts[cuts.len() - 1];
        }
        cuts
    }

    /// How many chunks of `after` are not among those of `before`, and how many bytes they have.
    fn news(before: &[u8], after: &[u8]) -> (usize, usize) {
        let chunks = |content: &[u8]| -> std::collections::BTreeMap<Hash, usize> {
            let mut at = 0;
            let ends = cuts(content).into_iter().map(|bytes| {
                at += bytes;
                (Hash::of(&content[at - bytes..at]), bytes)
            });
            ends.collect()
        };
        let (before, after) = (chunks(before), chunks(after));
        let new = after.iter().filter(|(id, _)| !before.contains_key(id));
        new.fold((0, 0), |(count, sum), (_, bytes)| (count + 1, sum + bytes))
    }

    #[test]
    fn the_cuts_are_where_they_always_were() {
        // If this fails, an upgrade of the crate has changed our format: give it a scheme of its own.
        let want =
            [4096, 1046209, 1164022, 1274605, 956091, 1257507, 1821012, 1177202, 1109251, 675765];
        assert_eq!(cuts(&noise(10 << 20, 1)), want);
        assert_eq!(cuts(&vec![0; 9 << 20]), [4 << 10, 4 << 20, 4 << 20, (1 << 20) - (4 << 10)]);
        assert_eq!(cuts(b"short"), [5]);
        assert_eq!(cuts(&noise(256 << 10, 1)), [256 << 10]);
        assert_eq!(cuts(&noise((256 << 10) + 1, 1)), [4 << 10, (252 << 10) + 1]);
        assert_eq!(cut(0, b""), 0);
    }

    #[test]
    fn an_insertion_moves_few_cuts() {
        let before = noise(32 << 20, 2);
        let mut after = before.clone();
        after.splice((16 << 20)..(16 << 20), *b"a line that was not there\n");
        assert!(news(&before, &after).0 <= 2);
    }

    #[test]
    fn a_new_count_in_the_header_costs_the_head_alone() {
        let before = noise(8 << 20, 3);
        let mut after = before.clone();
        after[4] ^= 1;
        assert_eq!(news(&before, &after), (1, HEAD_CHUNK as usize));
    }

    #[test]
    fn an_object_is_named_by_its_chunks_and_their_order() {
        let chunk = |n: u8| Chunk { id: Hash([n; 32]), bytes: 7 };
        let name = object_id(&[chunk(1), chunk(2)]);
        assert_ne!(name, object_id(&[chunk(2), chunk(1)]));
        assert_ne!(name, object_id(&[chunk(1)]));
        assert_ne!(name, object_id(&[Chunk { bytes: 8, ..chunk(1) }, chunk(2)]));
    }
}
