//! A batch counts at one index, and none that is recent enough is turned away as too old.

use std::collections::BTreeMap;

use mesh_consensus::id::NodeId;
use mesh_consensus::replica::{Fact, Rejected, Verdict, WINDOW};

use super::Seen;

#[derive(Default)]
pub(super) struct ExactlyOnce {
    counted: BTreeMap<(NodeId, u64), u64>,
}

impl ExactlyOnce {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        for applied in &seen.turn.applied {
            let Fact::Batch { author, sequence, verdict } = &applied.fact else { continue };
            match verdict {
                Verdict::Counted(receipt) => {
                    let key = (*author, *sequence);
                    let first = *self.counted.entry(key).or_insert(receipt.index);
                    if first != receipt.index {
                        return Err(format!(
                            "{}#{sequence} counted at {first} and again at {}",
                            author.short(),
                            receipt.index
                        ));
                    }
                }
                Verdict::Rejected(Rejected::TooOld { sequence, top })
                    if sequence + WINDOW > *top =>
                {
                    return Err(format!("{}#{sequence} was lost: at {top}", author.short()));
                }
                Verdict::Repeated(_) | Verdict::Rejected(_) => {}
            }
        }
        Ok(())
    }
}
