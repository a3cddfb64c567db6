//! What two nodes say to each other about a version, on a stream that one of them opened for it.
//!
//! ```text
//!  puller                                             server
//!    │ Header::Manifest { version } ───────────────────► │    then the bytes, then the end
//!    │
//!    │ Header::Swarm { version, link } ────────────────► │
//!    │ ◄──────────────────────────────── Give::Map       │    what it has, once
//!    │ Ask::Chunk 17, Ask::Any, Ask::Have … ───────────► │
//!    │ ◄───── Give::Have, Give::Others, Give::Nothing …  │
//!    │ ◄─────────────── Give::Chunk { 17, n } ‖ n bytes  │    in the order of the asks
//! ```
//!
//! A server that has no such version, or none for this peer, ends the stream without a word. Every frame is
//! small but the map; the bytes of a chunk follow their frame bare, so that they are copied once.
//!
//! On a long wire one connection is rarely enough: what it may have under way is bounded, and each loss halves its rate. There the puller
//! opens *strips*: further streams on connections of their own (`Header::Strip { link, number }`). From when the server has
//! the first ones, a chunk is cut into as many equal parts as there are streams, and `Give::Chunk` says so.

use mesh_consensus::id::NodeId;
use serde::{Deserialize, Serialize};

/// Chunks that one frame may name.
pub const MAX_NAMED: usize = 4096;
/// Nodes that one frame may name.
pub const MAX_OTHERS: usize = 64;
/// A frame from a puller: it names chunks at most.
pub const MAX_ASK_BYTES: usize = 64 << 10;
/// A frame from a server: a bitmap of the largest manifest, at most.
pub const MAX_GIVE_BYTES: usize = 1 << 20;

/// Strips of one link.
pub const MAX_STRIPS: usize = 3;

/// Cuts a chunk into parts: how long each is. All are alike but the last, which may be shorter or empty.
pub fn cut(bytes: usize, parts: usize) -> impl Iterator<Item = usize> {
    let each = bytes.div_ceil(parts.max(1));
    (0..parts).map(move |part| bytes.saturating_sub(part * each).min(each))
}

/// From the one who pulls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// This chunk.
    Chunk(u32),
    /// A chunk of the server's choice that the puller lacks, so many times.
    Any(u32),
    /// This one no longer, if it is not on its way yet.
    Cancel(u32),
    /// The puller has these now.
    Have(Vec<u32>),
}

/// From the one who serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Give {
    /// What it has: a bit for each chunk.
    Map(Vec<u8>),
    /// And has now, too.
    Have(Vec<u32>),
    /// A chunk: so many bytes follow the frame.
    Chunk {
        /// Which.
        number: u32,
        /// How many bytes.
        bytes: u32,
        /// In how many parts: the first follows here, the others come on the strips in their order.
        parts: u8,
    },
    /// It cannot give this chunk.
    Refused(u32),
    /// It has nothing to choose: every chunk is at some puller.
    Nothing,
    /// Who else pulls this version from it.
    Others(Vec<NodeId>),
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn the_parts_of_a_chunk_are_the_chunk() {
        for bytes in [0, 1, 2, 3, 4, 5, 1 << 20, (1 << 20) + 1, (4 << 20) - 1] {
            for parts in 1..=5 {
                let lengths: Vec<usize> = cut(bytes, parts).collect();
                assert_eq!((lengths.len(), lengths.iter().sum::<usize>()), (parts, bytes));
            }
        }
        assert_eq!(cut(10, 4).collect::<Vec<_>>(), [3, 3, 3, 1]);
    }
}
