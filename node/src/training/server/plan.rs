//! What a coordinator does about a shard, from what it has heard of it. Decides, and does not act.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{Hash, JobId, NodeId};

use super::wire::Status;
use crate::state::server::{Shard, Stage};

/// What a coordinator knows beside what the state says.
pub(super) struct Known<'a> {
    /// What each primary last said, by shard; not there if it does not answer.
    pub(super) primaries: &'a BTreeMap<u32, Status>,
    /// What each backup last said.
    pub(super) backups: &'a BTreeMap<u32, Status>,
    /// Nodes that do not answer.
    pub(super) away: &'a BTreeSet<NodeId>,
    /// Nodes that may have shards and answer.
    pub(super) awake: &'a [NodeId],
    /// Shards whose primary cannot be waited for any longer.
    pub(super) given_up: &'a BTreeSet<u32>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Deed {
    /// All shards go back to the checkpoint.
    Lay,
    /// A shard has another primary or backup.
    Shard { shard: u32, expect: u64, primary: NodeId, backup: Option<NodeId> },
    /// A shard and its backup have their values.
    Ready { shard: u32, expect: u64 },
}

/// Nodes in the order in which they are given shards of a job: each job has its own.
pub(super) fn in_order(job: JobId, nodes: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = nodes.collect();
    nodes.sort_by_cached_key(|node| Hash::of(&[&job.0[..], &node.0[..]].concat()));
    nodes
}

/// Primary and backup of each of so many shards, spread over all nodes.
pub(super) fn lay(count: usize, awake: &[NodeId]) -> Vec<(NodeId, Option<NodeId>)> {
    let at = |number: usize| awake.get(number % awake.len().max(1)).copied();
    let pair = |shard: usize| {
        let primary = at(shard)?;
        Some((primary, at(shard + 1).filter(|backup| *backup != primary)))
    };
    (0..count).filter_map(pair).collect()
}

/// What to do about all shards.
pub(super) fn decide(shards: &[Shard], known: &Known<'_>) -> Vec<Deed> {
    let mut deeds = Vec::new();
    for (number, shard) in (0..).zip(shards) {
        match one(number, shard, shards, known) {
            Some(Deed::Lay) => return vec![Deed::Lay],
            deed => deeds.extend(deed),
        }
    }
    deeds
}

fn one(number: u32, shard: &Shard, all: &[Shard], known: &Known<'_>) -> Option<Deed> {
    let Shard { epoch: expect, primary, backup, stage } = *shard;
    let status = known.primaries.get(&number);
    // A primary that answers and has no values was started again.
    let is_empty = status.is_some_and(|status| !status.has_values) && stage != Stage::Fresh;
    let is_away = known.away.contains(&primary);
    if is_empty || is_away {
        let heir = backup.filter(|backup| {
            let has_copy = known.backups.get(&number).is_some_and(|status| status.has_values);
            stage == Stage::Ready && !known.away.contains(backup) && has_copy
        });
        return match heir {
            Some(heir) => {
                let backup = pick(heir, all, known, &[primary]);
                Some(Deed::Shard { shard: number, expect, primary: heir, backup })
            }
            // Nothing was acknowledged yet, or there is nothing to wait for.
            None if stage == Stage::Fresh || is_empty => Some(Deed::Lay),
            None => known.given_up.contains(&number).then_some(Deed::Lay),
        };
    }
    let status = status?;
    let lacks_backup = match backup {
        None => stage == Stage::Ready && known.awake.iter().any(|node| *node != primary),
        Some(backup) => known.away.contains(&backup) || status.lost_backup,
    };
    if lacks_backup {
        let lost: Vec<NodeId> =
            backup.into_iter().filter(|node| known.away.contains(node)).collect();
        let next = pick(primary, all, known, &lost);
        // The same one again is told by the same epoch; it takes a new copy by itself.
        let is_same = next == backup && stage != Stage::Ready;
        return (!is_same).then_some(Deed::Shard { shard: number, expect, primary, backup: next });
    }
    let has_all = status.has_values && (backup.is_none() || status.in_sync);
    (stage != Stage::Ready && has_all).then_some(Deed::Ready { shard: number, expect })
}

/// A backup for a shard of this primary: whoever has the fewest shards by now.
fn pick(primary: NodeId, all: &[Shard], known: &Known<'_>, but: &[NodeId]) -> Option<NodeId> {
    let load = |node: &NodeId| {
        let has = |shard: &&Shard| shard.primary == *node || shard.backup == Some(*node);
        all.iter().filter(has).count()
    };
    let fit = known.awake.iter().filter(|node| **node != primary && !but.contains(node));
    fit.copied().min_by_key(load)
}

/// The latest checkpoint that every shard has, after this step.
pub(super) fn common(primaries: &BTreeMap<u32, Status>, count: usize, after: u32) -> Option<u32> {
    let first = primaries.get(&0)?;
    let all = |step: &&u32| {
        let has = |status: &Status| status.checkpoints.contains_key(*step);
        primaries.len() == count && primaries.values().all(has)
    };
    first.checkpoints.keys().rev().filter(|step| **step > after).find(all).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    fn shard(primary: u8, backup: Option<u8>, stage: Stage) -> Shard {
        Shard { epoch: 9, primary: node(primary), backup: backup.map(node), stage }
    }

    fn well() -> Status {
        Status { has_values: true, in_sync: true, ..Status::default() }
    }

    /// What is done about one shard, of nodes 1 to 3 of which these are away.
    fn deed(shard: Shard, primary: Option<Status>, away: &[u8], given_up: bool) -> Option<Deed> {
        let primaries = primary.map(|status| (0, status)).into_iter().collect();
        let backups = BTreeMap::from([(0, well())]);
        let away: BTreeSet<NodeId> = away.iter().map(|n| node(*n)).collect();
        let awake: Vec<NodeId> = (1..=3).map(node).filter(|node| !away.contains(node)).collect();
        let given_up = if given_up { BTreeSet::from([0]) } else { BTreeSet::new() };
        let known = Known {
            primaries: &primaries,
            backups: &backups,
            away: &away,
            awake: &awake,
            given_up: &given_up,
        };
        decide(&[shard], &known).pop()
    }

    fn becomes(primary: u8, backup: Option<u8>) -> Option<Deed> {
        let (primary, backup) = (node(primary), backup.map(node));
        Some(Deed::Shard { shard: 0, expect: 9, primary, backup })
    }

    #[test]
    fn a_backup_takes_over_only_if_it_has_everything() {
        let ready = shard(1, Some(2), Stage::Ready);
        assert_eq!(deed(ready, Some(well()), &[], false), None);
        assert_eq!(deed(ready, None, &[1], false), becomes(2, Some(3)));
        // One that was started again has forgotten its values.
        assert_eq!(deed(ready, Some(Status::default()), &[], false), becomes(2, Some(3)));
        let copying = shard(1, Some(2), Stage::Copying);
        assert_eq!(deed(copying, None, &[1], false), None, "it may come back");
        assert_eq!(deed(copying, None, &[1], true), Some(Deed::Lay));
        assert_eq!(deed(ready, None, &[1, 2], false), None);
        assert_eq!(deed(ready, None, &[1, 2], true), Some(Deed::Lay));
        let fresh = shard(1, Some(2), Stage::Fresh);
        assert_eq!(deed(fresh, None, &[1], false), Some(Deed::Lay));
        assert_eq!(deed(fresh, Some(Status::default()), &[], false), None, "it still reads");
    }

    #[test]
    fn a_shard_without_a_backup_gets_one_and_is_then_ready() {
        let alone = shard(1, None, Stage::Ready);
        assert_eq!(deed(alone, Some(well()), &[], false), becomes(1, Some(2)));
        assert_eq!(deed(alone, Some(well()), &[2, 3], false), None);
        let ready = shard(1, Some(2), Stage::Ready);
        assert_eq!(deed(ready, Some(well()), &[2], false), becomes(1, Some(3)));
        assert_eq!(deed(ready, Some(well()), &[2, 3], false), becomes(1, None));
        let copying = shard(1, Some(2), Stage::Copying);
        let not_yet = Status { in_sync: false, ..well() };
        assert_eq!(deed(copying, Some(not_yet), &[], false), None);
        let ready = Some(Deed::Ready { shard: 0, expect: 9 });
        assert_eq!(deed(copying, Some(well()), &[], false), ready);
        assert_eq!(deed(shard(1, None, Stage::Fresh), Some(well()), &[2, 3], false), ready);
    }

    #[test]
    fn shards_are_spread_and_no_node_is_its_own_backup() {
        assert_eq!(lay(2, &[node(1)]), [(node(1), None), (node(1), None)]);
        let three = lay(4, &[node(1), node(2), node(3)]);
        assert_eq!(three[0], (node(1), Some(node(2))));
        assert_eq!(three[2], (node(3), Some(node(1))));
        assert!(lay(3, &[]).is_empty());
    }

    #[test]
    fn the_latest_checkpoint_is_one_that_all_shards_have() {
        let piece = crate::state::course::Piece { hash: Hash([1; 32]), bytes: 4 };
        let with = |steps: &[u32]| Status {
            checkpoints: steps.iter().map(|step| (*step, (piece, piece))).collect(),
            ..well()
        };
        let all = BTreeMap::from([(0, with(&[10, 20, 30])), (1, with(&[10, 20]))]);
        assert_eq!(common(&all, 2, 0), Some(20));
        assert_eq!(common(&all, 2, 20), None);
        assert_eq!(common(&all, 3, 0), None, "one does not answer");
    }
}
