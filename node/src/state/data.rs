//! Data: which versions of datasets there are, who may read them, and which nodes hold copies.
//!
//! A **version** has a random id, a party that owns it, how many copies are wanted, who holds one,
//! and a body:
//!
//! ```text
//! plain    name, number, manifest, size, lineage and readers, for all to see
//! sealed   a padded record that only the party's nodes can open      see crate::seal
//!          + perhaps a listing: name, number, size and a note, for all to see
//! ```
//!
//! Whatever else a party keeps for itself, such as the tags of private names, is a sealed record of
//! which no copies are wanted. So there is one mechanism: the others can count a party's records, see
//! when each came and which of the party's own nodes hold copies, and nothing else. As nobody else can
//! check what is inside, the party's nodes agree among themselves: every change of a sealed record
//! raises the party's **sealed revision**, and who makes one says which revision it has seen.
//!
//! Names and numbers that can be seen are kept by the state: a number of a name is given once, ever.
//!
//! | file | holds |
//! |---|---|
//! | `content.rs` | bodies, and the bounds of what is in them |
//! | `acts.rs` | what members can ask |
//! | `rules.rs` | who may ask what, and what comes of it |
//! | `sound.rs` | what must hold in a snapshot |
//! | `look.rs` | reading: who may read, what a name stands for, what lacks copies |
//! | `reference.rs` | `[party/]name[@N|:tag]` |
//!
//! In a snapshot all this follows everything else, from level 4 on.

pub mod acts;
pub mod content;
mod look;
pub mod reference;
mod rules;
mod sound;

#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{NodeId, PartyId, VersionId};
use serde::{Deserialize, Serialize};

pub use acts::{Claim, Hold, TagSet, VersionBody, VersionDrop, VersionNew};
pub use content::{Body, Lineage, Listing, Note, Plain, Readers, Sealed, SealedBytes};
pub use reference::{DataRef, Pick};

use super::Moment;
use super::name::Name;

/// The level from which on a snapshot holds all this.
pub(super) const SINCE: u16 = 4;

/// The most copies that can be wanted, and the most holders that a version can begin with.
pub const MAX_COPIES: u8 = 16;

/// How many copies are wanted where nobody says otherwise.
pub const DEFAULT_COPIES: u8 = 3;

/// A version has at most this many holders. More than copies can be wanted, as some may be down.
pub const MAX_HOLDERS: usize = 32;

/// A party has at most this many versions and other sealed records.
pub const MAX_VERSIONS: usize = 100_000;

/// What all of it may weigh: with it, and with what else there is, a snapshot stays below the 256 MiB
/// that travel ([`mesh_consensus::admit::MAX_SNAPSHOT_BYTES`]).
pub const MAX_DATA_BYTES: u64 = 160 << 20;

/// What a party's part of it may weigh at most; less where there are many parties.
pub const MAX_PARTY_BYTES: u64 = 64 << 20;

/// Room that is kept for holders: a full state must not stand in the way of repair.
const ROOM_FOR_HOLDERS: u64 = 16 << 20;

/// A version of a dataset, or another sealed record of a party. Its key in the state is its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Whose it is.
    pub party: PartyId,
    /// When it came.
    pub created: Moment,
    /// The node that made it.
    pub author: NodeId,
    /// How many copies there should be. Zero, and no holders ever, for a record without content.
    pub copies: u8,
    /// Who has a durable copy, by its own word or at first the author's. Members that may.
    pub holders: BTreeSet<NodeId>,
    /// What it is.
    pub body: Body,
}

impl Version {
    /// Whether nodes of `party` may read it and hold copies.
    pub fn is_for(&self, party: PartyId) -> bool {
        self.party == party || self.body.is_open_to(party)
    }

    /// No fewer bytes than it takes in a snapshot.
    fn weight(&self) -> usize {
        160 + 32 * self.holders.len() + self.body.weight()
    }
}

/// The numbers of one name that can be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// The first number that was never given. A new version may take this one or a later one (its
    /// party may have private versions in between); so of two who take the same, one is refused.
    pub next: u32,
    /// Those that are there.
    pub versions: BTreeMap<u32, VersionId>,
    /// Each stands for a number that is there.
    pub tags: BTreeMap<Name, u32>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { next: 1, versions: BTreeMap::new(), tags: BTreeMap::new() }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Data {
    pub(super) versions: BTreeMap<VersionId, Version>,
    /// What is plain or listed is here, and nothing else. A name stays when its versions have gone,
    /// as its numbers may not be given again. A party without names is not listed.
    pub(super) names: BTreeMap<PartyId, BTreeMap<Name, Numbers>>,
    /// How often a party's sealed records have changed. Not listed if never.
    pub(super) revisions: BTreeMap<PartyId, u64>,
    /// Follows from the rest. A party without anything is not listed.
    #[serde(skip)]
    loads: BTreeMap<PartyId, Load>,
}

/// How much a party has in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Load {
    versions: usize,
    bytes: u64,
}

impl Data {
    /// About how many bytes all of it takes in a snapshot; not fewer.
    pub(super) fn weight(&self) -> u64 {
        self.loads.values().map(|load| load.bytes).sum()
    }

    /// A member is gone, or has lost its disk: it holds nothing any more.
    pub(super) fn forget(&mut self, node: NodeId) {
        for version in self.versions.values_mut() {
            if version.holders.remove(&node)
                && let Some(load) = self.loads.get_mut(&version.party)
            {
                load.bytes -= 32;
            }
        }
    }

    /// Puts in what follows from the rest, once that has been read.
    pub(super) fn weigh(&mut self) {
        let mut loads = BTreeMap::<PartyId, Load>::new();
        for version in self.versions.values() {
            let load = loads.entry(version.party).or_default();
            load.versions += 1;
            load.bytes += version.weight() as u64;
        }
        for (party, names) in &self.names {
            let load = loads.entry(*party).or_default();
            for (name, numbers) in names {
                let tags = numbers.tags.keys().map(weight_of_tag).sum::<u64>();
                load.bytes += weight_of_name(name) + tags;
            }
        }
        self.loads = loads;
    }
}

/// A line among a party's names, and the party's own line.
fn weight_of_name(name: &Name) -> u64 {
    64 + name.as_str().len() as u64
}

fn weight_of_tag(tag: &Name) -> u64 {
    8 + tag.as_str().len() as u64
}
