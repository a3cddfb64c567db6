//! Which nodes keep a version: a plain function of who is there.
//!
//! Weighted rendezvous hashing. Each node draws a number for each version, and the best draws win, so a
//! node that leaves moves only what it kept, and one that joins takes only what it wins. Nobody keeps
//! a table: whoever knows the members knows the owners. For that all machines must come to the same
//! answer, so nothing here is a float: the classic score `−w / ln(h)` is compared as the fraction
//! `−log2(h) / w`, in whole numbers (see [`surprise`]).
//!
//! What is done with the answer (copying, counting, repair) is for others.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use mesh_consensus::id::{NodeId, VersionId};

/// A node that could keep a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate<'a> {
    /// Who.
    pub node: NodeId,
    /// What it shares its fate with: a rack, a site, a power supply. A node that does not say is
    /// taken to share it with nobody.
    pub domain: Option<&'a str>,
    /// How much it takes in comparison with others. One with 0 takes nothing.
    pub weight: u32,
}

/// Who keeps `version`: at most `copies` nodes, the first choice first.
///
/// The best node of each failure domain comes first. If there are fewer domains than copies, the best of
/// the others follow. The order of `candidates` does not matter; of a node that is in it more than
/// once, the largest entry counts.
pub fn owners(version: VersionId, candidates: &[Candidate<'_>], copies: usize) -> Vec<NodeId> {
    let mut candidates: Vec<Candidate<'_>> =
        candidates.iter().copied().filter(|candidate| candidate.weight > 0).collect();
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    candidates.dedup_by_key(|candidate| candidate.node);
    let mut draws: Vec<Draw<'_>> =
        candidates.iter().map(|candidate| Draw::new(version, *candidate)).collect();
    draws.sort_unstable_by(Draw::order);

    let mut taken = BTreeSet::new();
    let (first, rest): (Vec<_>, Vec<_>) = draws
        .into_iter()
        .map(|draw| draw.candidate)
        .partition(|candidate| candidate.domain.is_none_or(|domain| taken.insert(domain)));
    first.into_iter().chain(rest).take(copies).map(|candidate| candidate.node).collect()
}

/// What a candidate drew for a version: the smaller `surprise / weight`, the better.
struct Draw<'a> {
    surprise: u64,
    candidate: Candidate<'a>,
}

impl<'a> Draw<'a> {
    fn new(version: VersionId, candidate: Candidate<'a>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("mesh 2026 placement: who keeps a version");
        hasher.update(&version.0);
        hasher.update(&candidate.node.0);
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        Self { surprise: surprise(u64::from_le_bytes(bytes)), candidate }
    }

    /// By the fraction, without dividing; ties go to the lower id.
    fn order(&self, other: &Self) -> Ordering {
        let ours = u128::from(self.surprise) * u128::from(other.candidate.weight);
        let theirs = u128::from(other.surprise) * u128::from(self.candidate.weight);
        ours.cmp(&theirs).then(self.candidate.node.cmp(&other.candidate.node))
    }
}

/// Bits behind the point of a [`surprise`].
const FRACTION: u32 = 56;

/// `−log2((draw + 1) / 2^64)` with [`FRACTION`] bits behind the point: from 0 to 64.
///
/// If draws are uniform, this is exponentially distributed, and of several such numbers divided by
/// weights the smallest belongs to each with the probability of its weight's share. The logarithm is found bit
/// by bit: squaring the mantissa doubles it, and whatever passes 2 is the next bit.
fn surprise(draw: u64) -> u64 {
    let value = u128::from(draw) + 1;
    let whole = value.ilog2();
    // In [1, 2), with 63 bits behind the point.
    let mut mantissa = if whole > 63 { value >> (whole - 63) } else { value << (63 - whole) };
    let mut log = u128::from(whole);
    for _ in 0..FRACTION {
        mantissa = (mantissa * mantissa) >> 63;
        log <<= 1;
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            log |= 1;
        }
    }
    let surprise = (64u128 << FRACTION) - log;
    u64::try_from(surprise).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DOMAINS: [&str; 5] = ["a", "b", "c", "d", "e"];

    fn node(number: usize) -> NodeId {
        NodeId(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    fn version(number: usize) -> VersionId {
        let mut id = [0; 16];
        id.copy_from_slice(&blake3::hash(&number.to_be_bytes()).as_bytes()[..16]);
        VersionId(id)
    }

    fn fleet(nodes: usize) -> Vec<Candidate<'static>> {
        (0..nodes).map(|n| Candidate { node: node(n), domain: None, weight: 1 }).collect()
    }

    #[test]
    fn the_owners_are_who_they_always_were() {
        // If this fails, an upgrade would move every copy of everything.
        let mut fleet = fleet(7);
        fleet[3].weight = 5;
        fleet[1].domain = Some("a");
        fleet[6].domain = Some("a");
        let found: Vec<Vec<usize>> = (0..6)
            .map(|v| owners(version(v), &fleet, 3))
            .map(|owners| {
                owners.iter().map(|owner| (0..7).find(|n| node(*n) == *owner).unwrap()).collect()
            })
            .collect();
        let want = [[0, 3, 5], [4, 3, 2], [3, 4, 1], [3, 4, 2], [2, 3, 4], [4, 3, 6]];
        assert_eq!(found, want);
    }

    #[test]
    fn the_logarithm_is_that_of_the_library() {
        for draw in [0, 1, 2, 3, 1 << 20, (1 << 63) - 1, u64::MAX / 3, u64::MAX - 1, u64::MAX] {
            let want = 64.0 - (draw as f64 + 1.0).log2();
            let found = surprise(draw) as f64 / (1u64 << FRACTION) as f64;
            assert!((want - found).abs() < 1e-9, "{draw}: {found} instead of {want}");
        }
        // The float cannot tell these two apart: we can.
        assert!(surprise(u64::MAX / 2) > surprise(u64::MAX / 2 + 1000));
    }

    #[test]
    fn a_joining_node_takes_its_share_and_moves_nothing_else() {
        const VERSIONS: usize = 3000;
        let (before, after) = (fleet(9), fleet(10));
        let mut moved = 0;
        for v in 0..VERSIONS {
            let old = owners(version(v), &before, 3);
            let new = owners(version(v), &after, 3);
            let came: Vec<_> = new.iter().filter(|owner| !old.contains(owner)).collect();
            assert!(came.iter().all(|owner| **owner == node(9)));
            moved += came.len();
        }
        // Its fair share is a tenth of the copies.
        let share = moved as f64 / (3 * VERSIONS) as f64;
        assert!((0.09..0.11).contains(&share), "{share}");
    }

    #[test]
    fn copies_are_spread_by_weight() {
        const VERSIONS: usize = 8000;
        let mut fleet = fleet(8);
        fleet[2].weight = 3;
        fleet[5].weight = 0;
        let mut first = [0usize; 8];
        let mut any = [0usize; 8];
        for v in 0..VERSIONS {
            let owners = owners(version(v), &fleet, 3);
            for (place, owner) in owners.iter().enumerate() {
                let n = (0..8).find(|n| node(*n) == *owner).unwrap();
                any[n] += 1;
                first[n] += usize::from(place == 0);
            }
        }
        for n in 0..8 {
            // First choices go exactly by weight: 9 in all.
            let want = f64::from(fleet[n].weight) / 9.0 * VERSIONS as f64;
            let spread = 5.0 * want.sqrt() + 1.0;
            assert!((first[n] as f64 - want).abs() < spread, "{n}: {} of {want}", first[n]);
        }
        assert_eq!(any[5], 0);
        let equals: Vec<usize> = [0, 1, 3, 4, 6, 7].map(|n| any[n]).to_vec();
        let (least, most) = (equals.iter().min().unwrap(), equals.iter().max().unwrap());
        assert!(*most as f64 / (*least as f64) < 1.08, "{equals:?}");
    }

    fn any_fleet() -> impl Strategy<Value = Vec<Candidate<'static>>> {
        let candidate = (0usize..40, prop::option::of(0usize..5), 0u32..5).prop_map(|(n, d, w)| {
            Candidate { node: node(n), domain: d.map(|d| DOMAINS[d]), weight: w }
        });
        prop::collection::vec(candidate, 0..30)
    }

    fn domain_of(fleet: &[Candidate<'static>], owner: NodeId) -> Option<&'static str> {
        fleet.iter().filter(|c| c.node == owner && c.weight > 0).max().unwrap().domain
    }

    proptest! {
        #[test]
        fn the_order_of_the_candidates_does_not_matter(
            fleet in any_fleet(), v in 0usize..1000, copies in 0usize..8, seed: u64,
        ) {
            let mut shuffled = fleet.clone();
            fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
            let found = owners(version(v), &fleet, copies);
            prop_assert_eq!(&found, &owners(version(v), &shuffled, copies));
            let distinct: BTreeSet<_> = found.iter().collect();
            prop_assert_eq!(distinct.len(), found.len());
            // Fewer copies are the first of more.
            let more = owners(version(v), &fleet, copies + 1);
            prop_assert_eq!(&found[..], &more[..copies.min(more.len())]);
        }

        #[test]
        fn failure_domains_are_distinct_as_long_as_there_are_more(
            fleet in any_fleet(), v in 0usize..1000, copies in 0usize..8,
        ) {
            let nodes: BTreeSet<_> =
                fleet.iter().filter(|c| c.weight > 0).map(|c| c.node).collect();
            let named: BTreeSet<_> =
                nodes.iter().filter_map(|owner| domain_of(&fleet, *owner)).collect();
            let alone = nodes.iter().filter(|owner| domain_of(&fleet, **owner).is_none()).count();
            let found = owners(version(v), &fleet, copies);
            prop_assert_eq!(found.len(), copies.min(nodes.len()));
            let spread: BTreeSet<_> =
                found.iter().filter_map(|owner| domain_of(&fleet, *owner)).collect();
            let lone = found.iter().filter(|o| domain_of(&fleet, **o).is_none()).count();
            prop_assert_eq!(spread.len() + lone, copies.min(named.len() + alone));
        }

        #[test]
        fn a_leaving_node_moves_only_its_own(
            nodes in 2usize..20, gone in 0usize..20, v in 0usize..1000, domains in 0usize..5,
        ) {
            let mut fleet = fleet(nodes);
            for (n, candidate) in fleet.iter_mut().enumerate().filter(|_| domains > 0) {
                candidate.domain = Some(DOMAINS[n % domains]);
            }
            let before = owners(version(v), &fleet, 3);
            let gone = fleet.remove(gone % nodes).node;
            let after = owners(version(v), &fleet, 3);
            prop_assert!(before.iter().all(|owner| *owner == gone || after.contains(owner)));
            if !before.contains(&gone) {
                prop_assert_eq!(before, after);
            }
        }
    }
}
