//! The last entries, kept in memory.
//!
//! A leader sends what it has just written, and a follower is asked for the terms at the end of its
//! log: neither needs to go to redb for it.

use std::collections::VecDeque;

use mesh_consensus::log::Entry;

/// As many as a leader may have in flight to a follower, and no more memory than one message of
/// raft takes.
const MAX_ENTRIES: usize = 1024;
const MAX_BYTES: u64 = 1 << 20;

/// Entries up to the last one, without gaps. The oldest are forgotten first.
#[derive(Debug, Default)]
pub(super) struct Tail {
    entries: VecDeque<(Entry, u64)>,
    /// The sum of what is in `entries`.
    bytes: u64,
}

impl Tail {
    /// Adds the entry that follows the last one; `bytes` is its size on disk.
    pub(super) fn push(&mut self, entry: Entry, bytes: u64) {
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
        while self.entries.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
            self.pop_front();
        }
    }

    /// Forgets `index` and all after it.
    pub(super) fn truncate(&mut self, index: u64) {
        while self.entries.back().is_some_and(|(entry, _)| entry.index >= index) {
            let (_, bytes) = self.entries.pop_back().expect("there is a last one");
            self.bytes -= bytes;
        }
    }

    /// Forgets all before `index`.
    pub(super) fn forget(&mut self, index: u64) {
        while self.entries.front().is_some_and(|(entry, _)| entry.index < index) {
            self.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The entry and its size on disk.
    pub(super) fn get(&self, index: u64) -> Option<&(Entry, u64)> {
        let first = self.entries.front()?.0.index;
        self.entries.get(usize::try_from(index.checked_sub(first)?).ok()?)
    }

    fn pop_front(&mut self) {
        if let Some((_, bytes)) = self.entries.pop_front() {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::log::Payload;

    use super::*;

    fn entry(index: u64) -> Entry {
        Entry { term: 1, index, payload: Payload::Empty }
    }

    #[test]
    fn a_tail_holds_the_last_entries_within_its_bounds() {
        let mut tail = Tail::default();
        for index in 1..=3000 {
            tail.push(entry(index), 10);
        }
        assert!(tail.get(3000 - 1024).is_none());
        assert_eq!(tail.get(3000 - 1023).unwrap().0.index, 3000 - 1023);
        tail.truncate(2999);
        assert!(tail.get(2999).is_none());
        tail.push(entry(2999), MAX_BYTES - 5);
        assert!(tail.get(2998).is_none());
        assert_eq!(tail.get(2999).unwrap().1, MAX_BYTES - 5);
        tail.push(entry(3000), MAX_BYTES + 1);
        assert!(tail.get(3000).is_none(), "one that is too large is not kept");
        tail.push(entry(3001), 1);
        tail.forget(3001);
        assert!(tail.get(3001).is_some());
        tail.forget(3002);
        assert!(tail.get(3001).is_none());
        assert_eq!(tail.bytes, 0);
    }
}
