//! Room for copies: whether a version fits on a node, as far as that node's disk is known, and who else could have one.
//!
//! What nodes say of their disks comes by gossip, and is advice. If two of them have heard different things, there may be
//! a copy too many for a while, which is released later (see `keep`), or one is made as soon as they have heard the same.

use mesh_consensus::id::{NodeId, VersionId};

use crate::seal::PrivateView;
use crate::state::data::{Body, Version};

const MIB: u64 = 1 << 20;
/// Beside the bytes of a version, its manifest and the store's index take some.
const BESIDE: u64 = 4 * MIB;
/// And this part of its bytes, since what was said of a disk is a little old.
const MARGIN: u64 = 16;
/// As many nodes are called by their names; then it is said how many more there are.
const MAX_NAMED: usize = 4;

/// What a node says of the disk that its store is on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) total: u64,
    pub(super) free: u64,
}

impl Disk {
    /// Whether so many bytes fit there with some to spare. A disk of which nothing is known may have room.
    pub(super) fn fits(self, bytes: u64) -> bool {
        let needed = bytes.saturating_add(bytes / MARGIN).saturating_add(BESIDE);
        self.total == 0 || needed <= self.free.saturating_sub(reserve(self.total))
    }
}

/// What a pull leaves free of a disk of so many bytes: others write there, too, and so does the node.
pub(super) fn reserve(total: u64) -> u64 {
    (total / 100).min(256 * MIB)
}

/// How large a version is, if this node can tell: of its own party's private ones it can.
pub(super) fn size(id: VersionId, version: &Version, private: &PrivateView) -> Option<u64> {
    match &version.body {
        Body::Plain(plain) => Some(plain.bytes),
        Body::Sealed(sealed) => {
            let listed = || sealed.listing.as_ref().map(|listing| listing.bytes);
            private.versions().get(&id).map(|found| found.bytes).or_else(listed)
        }
    }
}

/// The nodes that may have a copy of a version and have none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Others {
    /// Those that are there and have room.
    pub(super) able: Vec<NodeId>,
    /// Those that are there and have none.
    pub(super) full: Vec<NodeId>,
    /// Those that do not answer.
    pub(super) silent: Vec<NodeId>,
}

impl Others {
    /// Why so many copies are missing, in words: `no room on n2; n3 is down`.
    pub(super) fn words(&self, missing: usize, name: impl Fn(NodeId) -> String) -> String {
        let Self { able, full, silent } = self;
        let is = |nodes: &[NodeId]| if nodes.len() == 1 { "is" } else { "are" };
        let mut parts = Vec::new();
        if !full.is_empty() {
            parts.push(format!("no room on {}", named(full, &name)));
        }
        if !silent.is_empty() {
            parts.push(format!("{} {} down", named(silent, &name), is(silent)));
        }
        if !able.is_empty() {
            parts.push(format!(
                "{} can have one and {} not done yet",
                named(able, &name),
                is(able)
            ));
        }
        if able.len() + full.len() + silent.len() < missing {
            let other = if parts.is_empty() { "other" } else { "further" };
            parts.push(format!("no {other} node may hold it"));
        }
        parts.join("; ")
    }
}

/// The first few by their names, and how many more there are.
fn named(nodes: &[NodeId], name: impl Fn(NodeId) -> String) -> String {
    let names: Vec<String> = nodes.iter().take(MAX_NAMED).map(|node| name(*node)).collect();
    match nodes.len().saturating_sub(MAX_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_version_fits_where_some_is_left_after_it() {
        let fits = |bytes: u64, total: u64, free: u64| Disk { total, free }.fits(bytes);
        assert!(fits(GIB, 100 * GIB, 2 * GIB));
        assert!(!fits(GIB, 100 * GIB, GIB), "others write there, too");
        assert!(!fits(GIB, 100 * GIB, GIB + 256 * MIB), "and what was heard is a little old");
        assert!(!fits(0, GIB, 0), "a manifest takes room as well");
        assert!(fits(u64::MAX, 0, 0), "nothing is known of this disk");
        assert!(!fits(u64::MAX, GIB, GIB));
    }

    #[test]
    fn what_is_taken_for_room_is_room_to_a_pull() {
        // A pull asks for the bytes that are missing here, and leaves the reserve.
        for (bytes, total) in [(0, MIB), (64 * MIB, 128 * MIB), (GIB, 100 * GIB)] {
            let least = (0..=total / MIB).map(|mib| mib * MIB);
            for free in least.filter(|free| Disk { total, free: *free }.fits(bytes)) {
                assert!(bytes <= free - reserve(total), "{bytes} of {free}");
            }
        }
    }

    #[test]
    fn it_is_said_why_copies_are_missing() {
        let nodes = |numbers: &[u8]| numbers.iter().map(|n| NodeId([*n; 32])).collect::<Vec<_>>();
        let told = |missing: usize, able: &[u8], full: &[u8], silent: &[u8]| {
            let (able, full, silent) = (nodes(able), nodes(full), nodes(silent));
            Others { able, full, silent }.words(missing, |node| format!("n{}", node.0[0]))
        };
        assert_eq!(told(1, &[], &[2], &[]), "no room on n2");
        assert_eq!(told(2, &[], &[2], &[3]), "no room on n2; n3 is down");
        assert_eq!(told(2, &[], &[], &[3, 4]), "n3, n4 are down");
        assert_eq!(told(1, &[5], &[], &[]), "n5 can have one and is not done yet");
        assert_eq!(told(2, &[], &[], &[]), "no other node may hold it");
        assert_eq!(told(2, &[], &[2], &[]), "no room on n2; no further node may hold it");
        let many = told(3, &[], &[1, 2, 3, 4, 5, 6], &[]);
        assert_eq!(many, "no room on n1, n2, n3, n4 and 2 more");
    }
}
