//! Two logs that hold an entry of the same index and term hold the same entry there, and the same
//! entries before it.
//!
//! Every entry that any log ever held is remembered by (index, term), with the term of the one
//! before it: by induction that is the whole promise.

use std::collections::BTreeMap;

use mesh_consensus::id::Hash;
use mesh_consensus::log::Log;

use super::Seen;

#[derive(Default)]
pub(super) struct LogMatching {
    entries: BTreeMap<(u64, u64), (Hash, u64)>,
    /// The end of each host's log when it was last looked at.
    ends: BTreeMap<usize, (u64, u64)>,
}

impl LogMatching {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let log = seen.log;
        let last = log.last_index();
        let term = |index| log.term(index).ok().flatten().unwrap_or(0);
        let end = (last, term(last));
        if self.ends.insert(seen.host, end) == Some(end) {
            return Ok(());
        }
        let mut index = last;
        while index >= log.first_index() {
            let Ok(entries) = log.entries(index, index + 1, u64::MAX) else { break };
            let Some(entry) = entries.first() else { break };
            let bytes = postcard::to_stdvec(&entry.payload).unwrap_or_default();
            let found = (Hash::of(&bytes), term(index - 1));
            let known = *self.entries.entry((index, entry.term)).or_insert(found);
            if known != found {
                return Err(format!(
                    "seat {} holds another entry {index} of term {} than was seen before",
                    seen.seat, entry.term
                ));
            }
            if known == found && self.is_settled(index, found.1) {
                break;
            }
            index -= 1;
        }
        Ok(())
    }

    /// Whether the entry before `index` has been seen, so that all before it have been, too.
    fn is_settled(&self, index: u64, term_before: u64) -> bool {
        self.entries.contains_key(&(index - 1, term_before))
    }

    pub(super) fn opened(&mut self, host: usize) {
        self.ends.remove(&host);
    }
}
