//! Who coordinates: decided by each node for itself, from what the state says, so that one claims and the others need not.

use std::time::Duration;

use mesh_consensus::id::{Hash, JobId, NodeId};
use mesh_consensus::time::Time;

use super::view::Seen;

/// How much longer the next one in the order waits: long enough to see that the one before it has claimed.
pub(super) const STEP: Duration = Duration::from_millis(700);

/// What a node does about a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It coordinates.
    Coordinate {
        /// Under this lease.
        epoch: u64,
    },
    /// It claims, at this moment of mesh time.
    Claim {
        /// When.
        at: Time,
    },
    /// Nothing.
    Rest,
}

/// What `me` does. A lease that ran out counts until another node has it, so its holder goes on.
pub(super) fn turn(seen: &Seen, me: NodeId, is_alive: impl Fn(NodeId) -> bool) -> Turn {
    if !seen.is_due() {
        return Turn::Rest;
    }
    let lease = seen.course.lease;
    if let Some(lease) = lease.filter(|lease| lease.node == me) {
        return Turn::Coordinate { epoch: lease.epoch };
    }
    let order = order(seen);
    if !order.contains(&me) {
        return Turn::Rest;
    }
    let before = order.iter().take_while(|node| **node != me);
    let rank = before.filter(|node| is_alive(**node)).count();
    let from = lease.map_or(seen.submitted, |lease| lease.until);
    Turn::Claim { at: from.after(STEP * u32::try_from(rank).unwrap_or(u32::MAX)) }
}

/// Those who may claim it, the first in line first.
fn order(seen: &Seen) -> Vec<NodeId> {
    // The model becomes a version of the job's party, and only its own nodes can make one.
    let pool = if seen.is_at_end() { &seen.own } else { &seen.summers };
    let begins = seen.course.model.is_none() && seen.asked.start.is_some();
    let mut order: Vec<NodeId> = pool.iter().copied().collect();
    order.sort_by_cached_key(|node| {
        // Had it been there, it would have kept the lease.
        let lost_it = seen.course.lease.is_some_and(|lease| lease.node == *node);
        // The model to start from may be for its own party's eyes only.
        let is_strange = begins && !seen.own.contains(node);
        (lost_it, is_strange, draw(seen.job, *node))
    });
    order
}

/// Each node draws a number for each job.
fn draw(job: JobId, node: NodeId) -> Hash {
    let mut bytes = job.0.to_vec();
    bytes.extend(node.0);
    Hash::of(&bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::view::tests::{model, node, seen};
    use super::*;
    use crate::state::course::Lease;

    fn lease(n: u8) -> Lease {
        Lease { node: node(n), epoch: 40, ms: 6000, until: Time(9000) }
    }

    fn at(turn: Turn) -> u64 {
        match turn {
            Turn::Claim { at } => at.0,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn whoever_has_the_lease_coordinates_and_strangers_rest() {
        let mut seen = seen();
        seen.course.lease = Some(lease(1));
        assert_eq!(turn(&seen, node(1), |_| true), Turn::Coordinate { epoch: 40 });
        assert_eq!(turn(&seen, node(3), |_| true), Turn::Rest);
        seen.seats.iter_mut().for_each(|seat| seat.node = None);
        assert_eq!(turn(&seen, node(1), |_| true), Turn::Rest, "nobody has a place");
    }

    #[test]
    fn those_who_may_claim_wait_for_one_another() {
        let mut seen = seen();
        seen.summers = (1..=5).map(node).collect();
        let times = |seen: &Seen, alive: &dyn Fn(NodeId) -> bool| -> Vec<u64> {
            let nodes = (1..=5).map(node).filter(|node| alive(*node));
            let mut times: Vec<u64> = nodes.map(|node| at(turn(seen, node, alive))).collect();
            times.sort_unstable();
            times
        };
        assert_eq!(times(&seen, &|_: NodeId| true), [1000, 1700, 2400, 3100, 3800]);
        assert_eq!(times(&seen, &|one: NodeId| one != node(2)), [1000, 1700, 2400, 3100]);
        // Another job, another order.
        let first = |n: u8| order(&Seen { job: JobId([n; 16]), ..seen.clone() })[0];
        assert!((0..32).map(first).collect::<BTreeSet<_>>().len() > 2);
    }

    #[test]
    fn whoever_let_a_lease_run_out_comes_last() {
        let mut seen = seen();
        seen.course.lease = Some(lease(1));
        assert_eq!(at(turn(&seen, node(2), |_| true)), 9000);
        assert_eq!(order(&seen), [node(2), node(1)]);
        seen.course.lease = Some(lease(2));
        assert_eq!(order(&seen), [node(1), node(2)]);
    }

    #[test]
    fn the_end_is_for_nodes_of_the_jobs_party() {
        let mut seen = seen();
        seen.own = BTreeSet::from([node(2), node(4)]);
        seen.course.model = Some(model(10, 1));
        assert_eq!(turn(&seen, node(1), |_| true), Turn::Rest);
        let both = [node(2), node(4)].map(|node| at(turn(&seen, node, |_| true)));
        assert_eq!(BTreeSet::from(both), BTreeSet::from([1000, 1700]));
    }

    #[test]
    fn the_beginning_is_rather_for_nodes_of_the_jobs_party() {
        let mut seen = seen();
        seen.asked.start = Some(mesh_consensus::id::VersionId([1; 16]));
        for own in [1, 2] {
            seen.own = BTreeSet::from([node(own)]);
            assert_eq!(order(&seen)[0], node(own));
        }
        assert_eq!(order(&seen).len(), 2);
    }
}
