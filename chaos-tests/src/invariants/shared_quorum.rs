//! Of two consecutive configurations, every quorum of one shares a seat with every quorum of the
//! other: no two groups can decide without each other.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::RaftId;
use mesh_consensus::log::Config;
use mesh_consensus::replica::Fact;

use super::Seen;

#[derive(Default)]
pub(super) struct SharedQuorum {
    /// The configuration that each index brought about.
    configs: BTreeMap<u64, Config>,
}

impl SharedQuorum {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        for applied in &seen.turn.applied {
            let Fact::Config(Some(config)) = &applied.fact else { continue };
            if self.configs.contains_key(&applied.index) {
                continue;
            }
            let before = self.configs.range(..applied.index).next_back();
            if let Some((index, before)) = before
                && let Some(quorum) = apart(before, config)
            {
                return Err(format!(
                    "{quorum:?} decides in {before:?} of entry {index}, and the others decide in \
                     {config:?} of entry {}",
                    applied.index
                ));
            }
            self.configs.insert(applied.index, config.clone());
        }
        Ok(())
    }
}

/// A quorum of `one` whose complement is a quorum of `other`.
fn apart(one: &Config, other: &Config) -> Option<BTreeSet<RaftId>> {
    let everyone: BTreeSet<RaftId> = [one, other]
        .iter()
        .flat_map(|config| config.voters.union(&config.outgoing).copied())
        .collect();
    let everyone: Vec<RaftId> = everyone.into_iter().collect();
    (0u32..1 << everyone.len()).find_map(|bits| {
        let (mut inside, mut outside) = (BTreeSet::new(), BTreeSet::new());
        for (place, seat) in everyone.iter().enumerate() {
            let side = if bits >> place & 1 == 1 { &mut inside } else { &mut outside };
            side.insert(*seat);
        }
        (is_quorum(one, &inside) && is_quorum(other, &outside)).then_some(inside)
    })
}

/// Whether `seats` can decide in `config`.
pub(crate) fn is_quorum(config: &Config, seats: &BTreeSet<RaftId>) -> bool {
    let majority =
        |of: &BTreeSet<RaftId>| of.is_empty() || 2 * of.intersection(seats).count() > of.len();
    majority(&config.voters) && majority(&config.outgoing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(voters: &[u64], outgoing: &[u64]) -> Config {
        let seats = |ids: &[u64]| ids.iter().map(|id| RaftId(*id)).collect();
        Config { voters: seats(voters), outgoing: seats(outgoing), ..Config::default() }
    }

    #[test]
    fn a_jump_from_three_voters_to_five_is_caught_and_a_joint_step_is_not() {
        let (three, five) = (config(&[1, 2, 3], &[]), config(&[1, 2, 3, 4, 5], &[]));
        assert!(apart(&three, &five).is_some());
        let joint = config(&[1, 2, 3, 4, 5], &[1, 2, 3]);
        assert_eq!(apart(&three, &joint), None);
        assert_eq!(apart(&joint, &five), None);
    }
}
