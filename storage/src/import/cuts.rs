//! Cuts of a long file, found on several threads.
//!
//! A cut depends on the one before it, so blocks cannot be cut by themselves. But cuts are found again soon after any
//! change: each block is cut on the **guess** that a cut is at its start. From the true cut before the block the cuts
//! are then found one by one, until one of them is among the guessed: those that follow it are true, too.

use std::ops::Range;
use std::sync::Arc;

use super::pipe::{Block, Pieces};
use crate::chunk::{MAX_CHUNK, cut};

const MAX: usize = MAX_CHUNK as usize;

/// Places in a block, which is at `start` of its file, of which each is a cut if the one before it is. The first is 0.
pub(super) fn guess(start: u64, bytes: &[u8]) -> Vec<usize> {
    let (mut cuts, mut at) = (vec![0], 0);
    while bytes.len() - at >= MAX {
        at += cut(start + at as u64, &bytes[at..]);
        cuts.push(at);
    }
    cuts
}

/// Puts chunks together from blocks that come one after another.
#[derive(Default)]
pub(super) struct Cutter {
    /// The last two blocks: a chunk lies in one of them or across both.
    before: Option<Piece>,
    now: Option<Piece>,
    guessed: Vec<usize>,
    is_last: bool,
    /// Where the next chunk begins: a true cut.
    at: u64,
}

#[derive(Clone)]
struct Piece {
    block: Arc<Block>,
    /// Where in the file it begins, and how long it is.
    start: u64,
    len: usize,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// What of it lies between two places of the file.
    fn range(&self, from: u64, to: u64) -> Range<usize> {
        let inside = |at: u64| (at.clamp(self.start, self.end()) - self.start) as usize;
        inside(from)..inside(to)
    }
}

impl Cutter {
    /// Takes the next `len` bytes. All chunks that were complete must have been taken.
    pub(super) fn add(
        &mut self,
        block: Arc<Block>,
        len: usize,
        guessed: Vec<usize>,
        is_last: bool,
    ) {
        let start = self.now.as_ref().map_or(0, Piece::end);
        self.before = self.now.take();
        self.now = Some(Piece { block, start, len });
        (self.guessed, self.is_last) = (guessed, is_last);
    }

    /// The next chunk: where in the file it begins, and its bytes. None if it goes on in the next block.
    pub(super) fn next_chunk(&mut self) -> Option<(u64, Pieces)> {
        let start = self.at;
        self.at += self.next_length()? as u64;
        let held = [&self.before, &self.now].into_iter().flatten();
        let pieces = held.map(|piece| (piece.block.clone(), piece.range(start, self.at)));
        Some((start, pieces.filter(|(_, range)| !range.is_empty()).collect()))
    }

    fn next_length(&self) -> Option<usize> {
        let now = self.now.as_ref()?;
        if self.at < now.start {
            // It begins in the block before, which had too little of it.
            let before = self.before.as_ref()?;
            let tail = &before.block.bytes[before.range(self.at, before.end())];
            let more = MAX.saturating_sub(tail.len()).min(now.len);
            return Some(cut(self.at, &[tail, &now.block.bytes[..more]].concat()));
        }
        let from = (self.at - now.start) as usize;
        if let Ok(at) = self.guessed.binary_search(&from)
            && let Some(next) = self.guessed.get(at + 1)
        {
            return Some(next - from);
        }
        let rest = &now.block.bytes[from..now.len];
        let is_enough = rest.len() >= MAX || (self.is_last && !rest.is_empty());
        is_enough.then(|| cut(self.at, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::super::pipe::{BLOCK, Pool};
    use super::*;
    use crate::store::tests::noise;

    fn one_by_one(content: &[u8]) -> Vec<usize> {
        let (mut lengths, mut at) = (Vec::new(), 0);
        while at < content.len() {
            lengths.push(cut(at as u64, &content[at..]));
            at += lengths[lengths.len() - 1];
        }
        lengths
    }

    fn in_blocks(content: &[u8], block: usize) -> Vec<usize> {
        let (pool, mut cutter, mut lengths) = (Pool::default(), Cutter::default(), Vec::new());
        let mut copy: Vec<u8> = Vec::new();
        let count = content.len().div_ceil(block);
        for (at, bytes) in content.chunks(block).enumerate() {
            let held = Arc::new(pool.foreign(bytes.to_vec()));
            let guessed = guess((at * block) as u64, bytes);
            cutter.add(held, bytes.len(), guessed, at + 1 == count);
            while let Some((start, pieces)) = cutter.next_chunk() {
                assert_eq!(start as usize, copy.len());
                pieces.iter().for_each(|(block, range)| copy.extend(&block.bytes[range.clone()]));
                lengths.push(copy.len() - start as usize);
            }
        }
        assert!(copy == content);
        lengths
    }

    #[test]
    fn blocks_are_cut_as_the_whole_would_be() {
        let mut content = noise(2 * BLOCK + 1_234_567, 1);
        content[BLOCK - 3_000_000..BLOCK + 6_000_000].fill(7);
        for len in [
            content.len(),
            2 * BLOCK,
            2 * BLOCK + 1,
            BLOCK,
            BLOCK - 1,
            MAX + 5000,
            MAX + 1,
            MAX,
            300_000,
            5,
            1,
        ] {
            let content = &content[..len];
            let want = one_by_one(content);
            for block in [BLOCK, MAX, 5 << 20] {
                assert!(in_blocks(content, block) == want, "{len} bytes in blocks of {block}");
            }
        }
    }
}
