//! What members can ask of the state about data. See [`super`] for the rules.

use std::collections::BTreeSet;

use mesh_consensus::id::{Hash, NodeId, PartyId, VersionId};
use serde::{Deserialize, Serialize};

use super::super::name::Name;
use super::Body;

/// Makes a version of the author's party, or another sealed record of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionNew {
    /// The author's party.
    pub party: PartyId,
    /// Random, so that it says nothing.
    pub id: VersionId,
    /// The party's sealed revision, as the author knows it, if the body is sealed; `None` if not.
    pub revision: Option<u64>,
    /// How many copies there should be: 1 to [`super::MAX_COPIES`]. Zero for a sealed record that
    /// stands for no content.
    pub copies: u8,
    /// Who has a durable copy now: 1 to [`super::MAX_COPIES`] members that may, none where no copies
    /// are wanted.
    pub holders: BTreeSet<NodeId>,
    /// What it is. A number in it must be free: see [`super::Numbers`].
    pub body: Body,
}

/// Drops a version of the author's party, or another sealed record of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionDrop {
    /// Which one.
    pub id: VersionId,
}

/// Changes what is said of a version of the author's party: shares it, seals it, lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionBody {
    /// Which one.
    pub id: VersionId,
    /// [`Body::hash`] of what it is now.
    pub expect: Hash,
    /// The party's sealed revision, as the author knows it, if the body is sealed before or after;
    /// `None` if not.
    pub revision: Option<u64>,
    /// What it will be. A name and a number that can be seen stay as they are, or go.
    pub body: Body,
}

/// Sets or drops a tag of a name of the author's party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagSet {
    /// The author's party.
    pub party: PartyId,
    /// The dataset's name.
    pub name: Name,
    /// The tag.
    pub tag: Name,
    /// The number that it stands for now; `None` if it is to be new.
    pub expect: Option<u32>,
    /// The number that it will stand for; `None` drops it.
    pub to: Option<u32>,
}

/// A node tells about its own copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Of which version.
    pub id: VersionId,
    /// What about it.
    pub claim: Claim,
}

/// What a node says of its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claim {
    /// It is whole and durable. Said after the bytes are synced.
    Kept,
    /// It is to go, if enough others have one. Said before the bytes are deleted.
    Released,
    /// It is gone or damaged, whatever that means for the others.
    Lost,
}
