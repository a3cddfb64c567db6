//! All nodes that have applied an index have the same history there, and the same digest where
//! they took a snapshot.

use std::collections::BTreeMap;

use mesh_consensus::id::Hash;

use super::Seen;

#[derive(Default)]
pub(super) struct EqualHashes {
    histories: BTreeMap<u64, Hash>,
    digests: BTreeMap<u64, Hash>,
    top: u64,
}

impl EqualHashes {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let installed = seen.turn.installed.is_some() && seen.turn.applied.is_empty();
        let now = installed.then(|| (seen.replica.index(), seen.replica.history()));
        let applied = seen.turn.applied.iter().map(|applied| (applied.index, applied.history));
        for (index, history) in applied.chain(now) {
            self.top = self.top.max(index);
            if *self.histories.entry(index).or_insert(history) != history {
                return Err(format!("host {} has another history at {index}", seen.host));
            }
        }
        for (index, digest) in &seen.turn.snapshots {
            if self.digests.entry(*index).or_insert(*digest) != digest {
                return Err(format!("host {} has another state at {index}", seen.host));
            }
        }
        Ok(())
    }

    pub(super) fn top(&self) -> u64 {
        self.top
    }
}
