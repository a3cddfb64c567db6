//! Whom to dial and whom to keep. Decides; never touches a socket, and is told the time.
//!
//! Every node ranks the others by a hash of (itself, the other) and stays connected to the first
//! [`KEPT`] that answer. Each node's choice is thus as good as random and independent of the others',
//! so the edges form a random graph in which every node picks k others. Such a graph is connected with high
//! probability from k = 2 on (Fenner and Frieze, 1982); for it to fall apart with k = 8, nine or more
//! nodes must pick all their peers among themselves, which for 50 nodes has a probability below 10⁻⁴⁰. The
//! hash must depend on the direction: ranked by the unordered pair, choices would be mutual and form clusters.
//!
//! A rank is fixed, so a node that comes or goes changes only the choices it is itself part of. One that
//! does not answer is skipped, the next in rank takes its place, and it is tried again ever more rarely:
//! what counts is eight peers that live, not eight names.
//!
//! ```text
//!            dial                 up
//!   Idle ───────────► Dialling ───────► Up
//!    ▲  after a while    │               │
//!    └───────────────────┴───────────────┘
//!          failed: wait longer     down: wait longer, unless it was up for long
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::NodeId;
use tokio::time::Instant;

/// Peers to stay connected to. As many choose us, so that a node has about twice that.
pub(super) const KEPT: usize = 8;

/// The first wait after a failure. It doubles up to [`LAST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait: a node that was switched off for a day is found again within it.
const LAST_WAIT: Duration = Duration::from_secs(30);
/// A connection that lasted this long clears the failures before it. A refusal looks like a connection
/// to the one who dials (TLS 1.3 clients finish first), but does not last.
const PROVEN: Duration = Duration::from_secs(10);

/// What this node knows of its way to the others.
#[derive(Debug)]
pub(super) struct Keep {
    own: NodeId,
    /// Who may be dialled, best first.
    ranked: Vec<NodeId>,
    /// Nobody here means: idle, and free to be dialled.
    links: BTreeMap<NodeId, Link>,
    jitter: fastrand::Rng,
}

#[derive(Debug, Clone, Copy)]
enum Link {
    Idle { failures: u32, not_before: Instant },
    Dialling { failures: u32 },
    Up { failures: u32, since: Instant },
}

/// What should be so now.
#[must_use]
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// To be dialled now. They count as being dialled already.
    pub(super) dial: Vec<NodeId>,
    /// Connected peers that are to stay. A connection that this node dialled to any other may go.
    pub(super) kept: BTreeSet<NodeId>,
    /// When to ask again, if nothing happens before.
    pub(super) wake_at: Option<Instant>,
}

impl Keep {
    pub(super) fn new(own: NodeId, seed: u64) -> Self {
        Self {
            own,
            ranked: Vec::new(),
            links: BTreeMap::new(),
            jitter: fastrand::Rng::with_seed(seed),
        }
    }

    /// Sets who may be dialled: allowed, and with an address.
    pub(super) fn set_candidates(&mut self, candidates: impl IntoIterator<Item = NodeId>) {
        let own = self.own;
        self.ranked = candidates.into_iter().filter(|node| *node != own).collect();
        self.ranked.sort_by_cached_key(|node| (rank(own, *node), *node));
        // Up and Dialling end by events; only what waits can be forgotten here.
        let known: BTreeSet<NodeId> = self.ranked.iter().copied().collect();
        self.links.retain(|node, link| known.contains(node) || !matches!(link, Link::Idle { .. }));
    }

    /// Something new is known about the way to `node`: try it soon.
    pub(super) fn on_news(&mut self, node: NodeId) {
        if matches!(self.links.get(&node), Some(Link::Idle { .. })) {
            self.links.remove(&node);
        }
    }

    pub(super) fn on_up(&mut self, now: Instant, node: NodeId) {
        let failures = self.failures(node);
        if !matches!(self.links.get(&node), Some(Link::Up { .. })) {
            self.links.insert(node, Link::Up { failures, since: now });
        }
    }

    /// The last connection to `node` is gone.
    pub(super) fn on_down(&mut self, now: Instant, node: NodeId) {
        let failures = match self.links.get(&node) {
            Some(Link::Up { since, .. }) if now.duration_since(*since) >= PROVEN => 0,
            _ => self.failures(node),
        };
        self.wait(now, node, failures);
    }

    /// Dialling `node` failed. It may be connected all the same, by its own doing.
    pub(super) fn on_failed(&mut self, now: Instant, node: NodeId) {
        if let Some(Link::Dialling { failures }) = self.links.get(&node).copied() {
            self.wait(now, node, failures);
        }
    }

    /// Decides what should be so at `now`.
    pub(super) fn plan(&mut self, now: Instant) -> Plan {
        let mut plan = Plan::default();
        for node in &self.ranked {
            // While a better peer is being tried again, the one in its place stays: only who is
            // connected counts here.
            if plan.kept.len() < KEPT && matches!(self.links.get(node), Some(Link::Up { .. })) {
                plan.kept.insert(*node);
            }
        }
        let mut chosen = 0;
        for node in &self.ranked {
            if chosen == KEPT {
                break;
            }
            let failures = match self.links.get(node) {
                Some(Link::Up { .. } | Link::Dialling { .. }) => {
                    chosen += 1;
                    continue;
                }
                Some(Link::Idle { not_before, .. }) if *not_before > now => {
                    let sooner = plan.wake_at.map_or(*not_before, |at| at.min(*not_before));
                    plan.wake_at = Some(sooner);
                    continue;
                }
                Some(Link::Idle { failures, .. }) => *failures,
                None => 0,
            };
            self.links.insert(*node, Link::Dialling { failures });
            plan.dial.push(*node);
            chosen += 1;
        }
        plan
    }

    fn failures(&self, node: NodeId) -> u32 {
        match self.links.get(&node) {
            Some(
                Link::Idle { failures, .. }
                | Link::Dialling { failures }
                | Link::Up { failures, .. },
            ) => *failures,
            None => 0,
        }
    }

    /// Waits between half and the whole of a time that doubles with each failure, so that nodes that lost
    /// the same peer do not come back to it in step.
    fn wait(&mut self, now: Instant, node: NodeId, failures: u32) {
        let whole = FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(LAST_WAIT);
        let wait = whole.mul_f64(0.5 + 0.5 * self.jitter.f64());
        let failures = failures.saturating_add(1);
        self.links.insert(node, Link::Idle { failures, not_before: now + wait });
    }
}

/// Lower is better.
fn rank(own: NodeId, other: NodeId) -> u64 {
    let mut hash = blake3::Hasher::new_derive_key("mesh overlay 1: whom a node keeps");
    hash.update(&own.0).update(&other.0);
    let mut first = [0; 8];
    hash.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u8) -> Vec<NodeId> {
        (0..count).map(|n| NodeId([n; 32])).collect()
    }

    fn keep(all: &[NodeId], own: NodeId) -> Keep {
        let mut keep = Keep::new(own, 1);
        keep.set_candidates(all.iter().copied());
        keep
    }

    /// Everybody answers: the peers that `own` ends up with.
    fn choice(all: &[NodeId], own: NodeId) -> BTreeSet<NodeId> {
        let now = Instant::now();
        let mut keep = keep(all, own);
        for node in keep.plan(now).dial {
            keep.on_up(now, node);
        }
        keep.plan(now).kept
    }

    #[test]
    fn the_choices_of_all_nodes_connect_them() {
        for count in [2, 3, 9, 50, 200] {
            let all = nodes(count);
            let mut edges: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
            for own in &all {
                for other in choice(&all, *own) {
                    edges.entry(*own).or_default().insert(other);
                    edges.entry(other).or_default().insert(*own);
                }
            }
            let mut reached = BTreeSet::from([all[0]]);
            let mut next = vec![all[0]];
            while let Some(node) = next.pop() {
                next.extend(edges[&node].iter().copied().filter(|other| reached.insert(*other)));
            }
            assert_eq!(reached.len(), all.len());
            let most = edges.values().map(BTreeSet::len).max().unwrap();
            assert!(most <= 4 * KEPT, "{most} peers of {count} at one node");
        }
    }

    #[test]
    fn a_newcomer_changes_at_most_one_choice_of_each_node() {
        let before = nodes(50);
        let after = nodes(51);
        for own in &before {
            let (old, new) = (choice(&before, *own), choice(&after, *own));
            assert!(old.difference(&new).count() <= 1);
        }
    }

    #[test]
    fn who_does_not_answer_is_replaced_and_tried_again_without_losing_the_replacement() {
        let now = Instant::now();
        let mut keep = keep(&nodes(20), NodeId([0; 32]));
        let first = keep.plan(now).dial;
        assert_eq!(first.len(), KEPT);
        keep.on_failed(now, first[0]);
        for node in &first[1..] {
            keep.on_up(now, *node);
        }
        let second = keep.plan(now);
        assert_eq!(second.dial.len(), 1, "the next in rank");
        let again = second.wake_at.unwrap();
        assert!(again > now && again <= now + FIRST_WAIT);
        keep.on_up(now, second.dial[0]);

        let third = keep.plan(again);
        assert_eq!(third.dial, vec![first[0]]);
        assert!(third.kept.contains(&second.dial[0]));
        keep.on_up(again, first[0]);
        let kept = keep.plan(again).kept;
        assert!(kept.contains(&first[0]) && !kept.contains(&second.dial[0]));
    }

    #[test]
    fn who_hangs_up_at_once_is_asked_ever_more_rarely_and_a_long_connection_clears_it() {
        let mut now = Instant::now();
        let other = NodeId([1; 32]);
        let mut keep = keep(&nodes(2), NodeId([0; 32]));
        let mut waited = Duration::ZERO;
        for _ in 0..12 {
            assert_eq!(keep.plan(now).dial, vec![other]);
            keep.on_up(now, other);
            keep.on_down(now, other);
            let again = keep.plan(now).wake_at.unwrap();
            waited = again - now;
            now = again;
        }
        assert!(waited >= LAST_WAIT / 2 && waited <= LAST_WAIT);

        assert_eq!(keep.plan(now).dial, vec![other]);
        keep.on_up(now, other);
        keep.on_down(now + PROVEN, other);
        let again = keep.plan(now + PROVEN).wake_at.unwrap();
        assert!(again <= now + PROVEN + FIRST_WAIT);
    }

    #[test]
    fn news_of_a_node_cuts_its_wait_short() {
        let now = Instant::now();
        let other = NodeId([1; 32]);
        let mut keep = keep(&nodes(2), NodeId([0; 32]));
        assert_eq!(keep.plan(now).dial, vec![other]);
        keep.on_failed(now, other);
        assert!(keep.plan(now).dial.is_empty());
        keep.on_news(other);
        assert_eq!(keep.plan(now).dial, vec![other]);
    }
}
