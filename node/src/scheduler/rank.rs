//! Which of the nodes that fit is the best.
//!
//! In this order, and the lower id where all are alike:
//!
//! 1. one on which the job has not failed twice;
//! 2. where tasks are to be spread: one where fewest of the job are; where they are to be packed: one that has some;
//! 3. the fewest bytes to fetch, then the fewest versions and images: what is there already starts at once;
//! 4. for a job without GPUs: no GPU node, or else one whose GPUs are busy;
//! 5. **the fullest**: the fewest free GPUs, then the least that is free of the rest. So whole nodes stay whole for
//!    the job that needs one (NSML calls it defragmentation).

use super::board::Node;
use super::view::Offer;
use crate::job::{Group, Image, JobSpec, Mount};

/// Data is compared in steps of this size: for less nobody should break into a node that is whole.
const STEP_BYTES: u64 = 16 << 20;

/// A node that may run a task, and how far the data is from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) node: u32,
    /// In steps of [`STEP_BYTES`].
    fetch: u32,
    /// Versions and images that are not there, whatever their size.
    missing: u16,
}

/// What a node would have to fetch for a task, as far as sizes are for all to see.
pub fn bytes_to_fetch(spec: &JobSpec, offer: &Offer) -> u64 {
    let missing = spec.data.values().filter(|mount| is_missing(mount, offer));
    missing.fold(0, |sum, mount| sum.saturating_add(mount.bytes))
}

/// What is each party's own lies with that party, wherever there: nobody outside can tell.
fn is_missing(mount: &Mount, offer: &Offer) -> bool {
    mount.version().is_some_and(|version| !offer.versions.contains(&version))
}

pub(super) fn candidate(at: usize, spec: &JobSpec, group: &Group, offer: &Offer) -> Candidate {
    let fetch = bytes_to_fetch(spec, offer).div_ceil(STEP_BYTES);
    let mut missing = spec.data.values().filter(|mount| is_missing(mount, offer)).count();
    let has_image = match &group.image {
        None => true,
        Some(Image::Named(name)) => offer.images.contains(name),
        Some(Image::Pushed { name, version }) => {
            offer.images.contains(name) || offer.versions.contains(version)
        }
    };
    missing += usize::from(!has_image);
    Candidate {
        node: u32::try_from(at).unwrap_or(u32::MAX),
        fetch: u32::try_from(fetch).unwrap_or(u32::MAX),
        missing: u16::try_from(missing).unwrap_or(u16::MAX),
    }
}

/// What decides before the nodes themselves: rules 1 and 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Wanted {
    pub(super) failing: bool,
    pub(super) order: u32,
}

/// The rank of a node for a task; less is better.
pub(super) type Rank = (Wanted, u32, u16, u32, u64, u32);

/// The rank of a node that fits. `room` is what it has free, now or soon.
#[inline]
pub(super) fn rank(wanted: Wanted, candidate: &Candidate, gpus: bool, node: &Node) -> Rank {
    let free = node.now.gpus.count_ones();
    // For a job without GPUs, a node without them comes before one with none free.
    let gpus = if gpus || node.gpus.is_empty() { free } else { 1 + free };
    (wanted, candidate.fetch, candidate.missing, gpus, slack(node), candidate.node)
}

/// How much of the CPUs and the memory is free, each of 2^16, together.
#[inline]
fn slack(node: &Node) -> u64 {
    // Whole numbers that fit: a node has less than 2^48 bytes and thousandths of cores.
    let share = |free: u64, total: u64| (free.min(1 << 48) << 15) / (total.clamp(1, 1 << 48));
    share(node.now.cpu, node.total.cpu) + share(node.now.memory, node.total.memory)
}
