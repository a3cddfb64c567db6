//! In one term at most one seat leads.

use std::collections::BTreeMap;

use mesh_consensus::core::Role;
use mesh_consensus::id::RaftId;

use super::Seen;

#[derive(Default)]
pub(super) struct OneLeader {
    leaders: BTreeMap<u64, RaftId>,
}

impl OneLeader {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        if seen.after.role != Role::Leader {
            return Ok(());
        }
        let term = seen.after.term;
        let first = *self.leaders.entry(term).or_insert(seen.seat);
        if first == seen.seat {
            return Ok(());
        }
        Err(format!("seats {first} and {} both lead in term {term}", seen.seat))
    }
}
