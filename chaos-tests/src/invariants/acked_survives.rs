//! What was acknowledged stands in the common history where its receipt says, and every healed node
//! has it in the end.

use std::collections::BTreeMap;

use mesh_consensus::id::NodeId;
use mesh_consensus::replica::{Fact, Receipt, Replica, WINDOW};
use mesh_node::state::State;

use super::Seen;

#[derive(Default)]
pub(super) struct AckedSurvives {
    /// Batches that have counted on some node, and where.
    counted: BTreeMap<(NodeId, u64), Receipt>,
    acked: BTreeMap<(NodeId, u64), Receipt>,
}

impl AckedSurvives {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        for applied in &seen.turn.applied {
            if let Fact::Batch { author, sequence, verdict } = &applied.fact
                && let Some(receipt) = verdict.receipt()
            {
                self.counted.entry((*author, *sequence)).or_insert_with(|| receipt.clone());
            }
        }
        for answer in &seen.turn.answers {
            let Ok(receipt) = &answer.result else { continue };
            let key = (answer.author, answer.sequence);
            // A snapshot brings receipts along without showing their entries.
            let known = match self.counted.get(&key) {
                Some(known) => Some(known),
                None => seen.replica.receipt(answer.author, answer.sequence),
            };
            if known != Some(receipt) {
                return Err(format!(
                    "host {} acknowledged {}#{} as {receipt:?}; the history says {known:?}",
                    seen.host,
                    answer.author.short(),
                    answer.sequence
                ));
            }
            self.acked.insert(key, receipt.clone());
        }
        Ok(())
    }

    pub(super) fn at_rest(&self, host: usize, replica: &Replica<State>) -> Result<(), String> {
        for ((author, sequence), receipt) in &self.acked {
            let found = replica.receipt(*author, *sequence);
            let forgotten = *sequence + WINDOW <= replica.top(*author);
            if found != Some(receipt) && !forgotten {
                return Err(format!(
                    "host {host} has lost {}#{sequence}: acknowledged as {receipt:?}, found {found:?}",
                    author.short()
                ));
            }
        }
        Ok(())
    }
}
