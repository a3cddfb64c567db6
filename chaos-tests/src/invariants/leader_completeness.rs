//! Whoever leads holds everything that was committed before its term.

use mesh_consensus::core::Role;
use mesh_consensus::log::Log;

use super::Seen;

/// The last entry that anyone has applied.
#[derive(Default)]
pub(super) struct LeaderCompleteness {
    index: u64,
    term: u64,
}

impl LeaderCompleteness {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let began = seen.after.role == Role::Leader
            && seen.before.is_none_or(|b| b.role != Role::Leader || b.term != seen.after.term);
        // A deposed leader may win a term that is already over; it is one of that term's voters.
        if began && self.index > 0 && self.term < seen.after.term {
            let held = seen.log.term(self.index).ok().flatten();
            let covered = seen.log.first_index() > self.index + 1;
            if held != Some(self.term) && !covered {
                return Err(format!(
                    "seat {} leads term {} without entry {} of term {}",
                    seen.seat, seen.after.term, self.index, self.term
                ));
            }
        }
        if let Some(last) = seen.turn.applied.last().filter(|last| last.index > self.index) {
            (self.index, self.term) = (last.index, last.term);
        }
        Ok(())
    }
}
