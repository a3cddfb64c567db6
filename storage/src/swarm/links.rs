//! Whom to be linked with: a few nodes, other ones for each node and version.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::{NodeId, VersionId};
use mesh_consensus::time::Time;

/// Nodes remembered as possible peers: the best ranked of those heard of.
const MAX_CANDIDATES: usize = 256;
/// Nodes remembered as liars.
const MAX_BLAMED: usize = 1024;
/// An open that was not answered for so long has failed.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Who could not be linked is tried again after this; twice as long each further time.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Not linked; to be tried from then on.
    Free(Time),
    /// Asked for then.
    Opening(Time),
    Linked,
}

#[derive(Debug)]
struct Candidate {
    /// The lower, the sooner. The same on both sides, so that links tend to be mutual.
    rank: u64,
    /// Whether it was said to be complete.
    is_source: bool,
    state: State,
    failures: u32,
}

/// Possible and actual links.
#[derive(Debug)]
pub(super) struct Links {
    own: NodeId,
    version: VersionId,
    candidates: BTreeMap<NodeId, Candidate>,
    blamed: BTreeSet<NodeId>,
}

impl Links {
    pub(super) fn new(own: NodeId, version: VersionId) -> Self {
        Self { own, version, candidates: BTreeMap::new(), blamed: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, nodes: &[NodeId], is_source: bool) {
        for node in nodes {
            if *node == self.own || self.blamed.contains(node) {
                continue;
            }
            if let Some(candidate) = self.candidates.get_mut(node) {
                candidate.is_source |= is_source;
                continue;
            }
            let rank = pair(self.version, self.own, *node);
            let state = State::Free(Time(0));
            self.candidates.insert(*node, Candidate { rank, is_source, state, failures: 0 });
            self.shrink();
        }
    }

    /// Forgets the worst candidate that is not in use if there are too many.
    fn shrink(&mut self) {
        if self.candidates.len() <= MAX_CANDIDATES {
            return;
        }
        let free = self.candidates.iter().filter(|(_, c)| matches!(c.state, State::Free(_)));
        let worst = free.max_by_key(|(_, c)| (!c.is_source, c.rank)).map(|(node, _)| *node);
        if let Some(worst) = worst {
            self.candidates.remove(&worst);
        }
    }

    pub(super) fn opened(&mut self, node: NodeId) {
        self.add(&[node], false);
        if let Some(candidate) = self.candidates.get_mut(&node) {
            candidate.state = State::Linked;
        }
    }

    /// It sent something useful.
    pub(super) fn worked(&mut self, node: NodeId) {
        if let Some(candidate) = self.candidates.get_mut(&node) {
            candidate.failures = 0;
        }
    }

    pub(super) fn failed(&mut self, now: Time, node: NodeId) {
        if let Some(candidate) = self.candidates.get_mut(&node) {
            let wait = RETRY * (1 << candidate.failures.min(6));
            candidate.failures = candidate.failures.saturating_add(1);
            candidate.state = State::Free(now.after(wait));
        }
    }

    pub(super) fn blame(&mut self, node: NodeId) {
        self.candidates.remove(&node);
        self.blamed.insert(node);
        if self.blamed.len() > MAX_BLAMED {
            self.blamed.pop_first();
        }
    }

    pub(super) fn is_blamed(&self, node: NodeId) -> bool {
        self.blamed.contains(&node)
    }

    /// How many could be linked if there were room.
    pub(super) fn has_spare(&self, now: Time) -> bool {
        self.candidates.values().any(|c| matches!(c.state, State::Free(at) if at <= now))
    }

    /// Whom to open links to now, so that there are `sources` to complete nodes and `others` to the
    /// rest; room that the one kind cannot fill is the other's. And when to look again.
    pub(super) fn open(
        &mut self,
        now: Time,
        sources: usize,
        others: usize,
    ) -> (Vec<NodeId>, Option<Time>) {
        let mut wake_at: Option<Time> = None;
        let mut used = [0usize; 2];
        let mut free: [Vec<(u64, NodeId)>; 2] = Default::default();
        let mut expired = Vec::new();
        for (node, candidate) in &self.candidates {
            let kind = usize::from(candidate.is_source);
            let look = match candidate.state {
                State::Linked => {
                    used[kind] += 1;
                    continue;
                }
                State::Opening(at) if now.since(at) >= OPEN_TIMEOUT => {
                    expired.push(*node);
                    continue;
                }
                State::Opening(at) => {
                    used[kind] += 1;
                    at.after(OPEN_TIMEOUT)
                }
                State::Free(at) if at <= now => {
                    free[kind].push((candidate.rank, *node));
                    continue;
                }
                State::Free(at) => at,
            };
            wake_at = Some(wake_at.map_or(look, |at| at.min(look)));
        }
        for node in expired {
            self.failed(now, node);
            wake_at = Some(now.after(RETRY));
        }
        let mut open = Vec::new();
        let total = sources + others;
        for (kind, room) in [(1, sources), (0, total), (1, total)] {
            free[kind].sort_unstable();
            let room = if kind == 1 && room == sources {
                sources.saturating_sub(used[1])
            } else {
                total.saturating_sub(used[0] + used[1])
            };
            let taken: Vec<_> = free[kind].drain(..room.min(free[kind].len())).collect();
            used[kind] += taken.len();
            open.extend(taken.into_iter().map(|(_, node)| node));
        }
        for node in &open {
            if let Some(candidate) = self.candidates.get_mut(node) {
                candidate.state = State::Opening(now);
            }
        }
        (open, wake_at)
    }
}

/// A number that two nodes share for a version, whoever asks.
pub(super) fn pair(version: VersionId, a: NodeId, b: NodeId) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("mesh 2026 swarm: who links with whom");
    hasher.update(&version.0);
    hasher.update(&a.min(b).0);
    hasher.update(&a.max(b).0);
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Any eight bytes of an id: they are as good as random.
pub(super) fn tag(node: NodeId) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&node.0[..8]);
    u64::from_le_bytes(bytes)
}
