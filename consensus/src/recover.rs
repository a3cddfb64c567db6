//! After the majority is gone for good.
//!
//! Offline, by hand, and only then. Each survivor signs a [`Survey`] of its log; [`choose`] names the
//! one that knows most; the parties sign an [`Order`] that names it; [`recover`] turns its log into
//! the first snapshot of a new epoch, in which it is the only voter. All others join again, under
//! new seats: frames, batches and admissions of the old epoch count no more.
//!
//! - The survivor is chosen by the term of its *last entry*, not by its current term, which failed
//!   elections may have driven up.
//! - The whole log counts as committed: that an unacknowledged write takes effect is legal, that an
//!   acknowledged one is lost is not.
//! - Changes of voters that were still in flight are not made.
//! - The new epoch begins far beyond the old log, so every fence of the old epoch is overtaken.
//! - Among several parties a majority must sign, or this would be a fork button. Those that have no
//!   node in the survivor's state are not counted: nobody could be asked for their signature.

use std::collections::BTreeSet;

use ed25519_dalek::{Signer, SigningKey};
use serde::{Deserialize, Serialize};

use crate::command::verify;
use crate::id::{Epoch, MeshId, NodeId, PartyId};
use crate::log::{Entry, Identity, Log, LogError, Payload, Snapshot};
use crate::machine::{Halt, StateMachine};
use crate::replica::Replica;

/// How far beyond the old log the new epoch begins. The lost majority may have gone on without the
/// survivors, but not by this many entries.
pub const FENCE_GAP: u64 = 1 << 20;

const SURVEY: &[u8] = b"mesh/survey/1\0";
const ORDER: &[u8] = b"mesh/recovery/1\0";

/// What a survivor has, signed by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Its mesh.
    pub mesh: MeshId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The survivor.
    pub node: NodeId,
    /// The term of its last entry.
    pub last_term: u64,
    /// Its last index.
    pub last_index: u64,
    signature: Vec<u8>,
}

/// The decision to go on from one survivor's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The mesh.
    pub mesh: MeshId,
    /// The epoch that ends.
    pub epoch: Epoch,
    /// From whose log.
    pub survivor: NodeId,
    /// The term of its last entry.
    pub last_term: u64,
    /// Its last index.
    pub last_index: u64,
    /// Parties that agree.
    pub signatures: Vec<(PartyId, Vec<u8>)>,
}

/// Why a recovery was refused. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// No survey to choose from.
    #[error("no survivor has been surveyed")]
    Nobody,
    /// A survey that its node did not sign.
    #[error("the survey of {} is not signed by it", .0.short())]
    Forged(NodeId),
    /// Surveys or orders of different meshes.
    #[error("{} belongs to another mesh", .0.short())]
    OtherMesh(NodeId),
    /// The order names another node or another state of it.
    #[error("the order is for {} at entry {index} of term {term}; this log ends otherwise", node.short())]
    OtherLog {
        /// Whom it names.
        node: NodeId,
        /// The end of that log.
        index: u64,
        /// And its term.
        term: u64,
    },
    /// The survivor's own log says that it sits in the mesh no more, so nobody would hear it.
    #[error("{} has left the mesh: go on from another survivor", .0.short())]
    Left(NodeId),
    /// Too few parties have signed.
    #[error("{have} of the {parties} parties with nodes have signed; {need} must")]
    TooFew {
        /// Valid signatures.
        have: usize,
        /// Parties in the mesh that have a say.
        parties: usize,
        /// A majority of them.
        need: usize,
    },
    /// The log could not be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log cannot be applied by this version.
    #[error(transparent)]
    Halt(#[from] Halt),
}

impl Survey {
    /// Surveys a log.
    pub fn of(key: &SigningKey, log: &impl Log) -> Result<Self, LogError> {
        let Identity { mesh, epoch, node, .. } = log.identity();
        let last_index = log.last_index();
        let last_term = log.term(last_index)?.unwrap_or(0);
        let bytes = bytes(SURVEY, mesh, epoch, node, last_term, last_index);
        let signature = key.sign(&bytes).to_bytes().to_vec();
        Ok(Self { mesh, epoch, node, last_term, last_index, signature })
    }

    fn is_signed(&self) -> bool {
        let Self { mesh, epoch, node, last_term, last_index, signature } = self;
        let bytes = bytes(SURVEY, *mesh, *epoch, *node, *last_term, *last_index);
        verify(&node.0, &bytes, signature)
    }
}

/// The survivor that knows most: by epoch, then term of the last entry, then last index.
pub fn choose(surveys: &[Survey]) -> Result<&Survey, RecoverError> {
    let first = surveys.first().ok_or(RecoverError::Nobody)?;
    for survey in surveys {
        if survey.mesh != first.mesh {
            return Err(RecoverError::OtherMesh(survey.node));
        }
        if !survey.is_signed() {
            return Err(RecoverError::Forged(survey.node));
        }
    }
    let rank = |survey: &&Survey| {
        (survey.epoch, survey.last_term, survey.last_index, std::cmp::Reverse(survey.node))
    };
    surveys.iter().max_by_key(rank).ok_or(RecoverError::Nobody)
}

impl Order {
    /// An order that nobody has signed yet, to go on from `survey`.
    pub fn new(survey: &Survey) -> Self {
        let Survey { mesh, epoch, node, last_term, last_index, .. } = *survey;
        Self { mesh, epoch, survivor: node, last_term, last_index, signatures: Vec::new() }
    }

    /// Adds a party's signature.
    pub fn sign(&mut self, party: &SigningKey) {
        let id = PartyId(party.verifying_key().to_bytes());
        let signature = party.sign(&self.signed_bytes()).to_bytes().to_vec();
        self.signatures.push((id, signature));
    }

    fn signed_bytes(&self) -> Vec<u8> {
        bytes(ORDER, self.mesh, self.epoch, self.survivor, self.last_term, self.last_index)
    }

    /// Which of `parties` have signed.
    fn signers(&self, parties: &BTreeSet<PartyId>) -> BTreeSet<PartyId> {
        let bytes = self.signed_bytes();
        (self.signatures.iter())
            .filter(|(party, signature)| {
                parties.contains(party) && verify(&party.0, &bytes, signature)
            })
            .map(|(party, _)| *party)
            .collect()
    }
}

/// The beginning of the new epoch: whose log it is, and the snapshot that it starts from.
///
/// `parties` lists the parties that have a say in a state. The old log is only read; whoever calls this writes a
/// new one and keeps the old aside. Doing it twice is refused, because the new log is of another
/// epoch than the order.
pub fn recover<S: StateMachine>(
    log: &impl Log,
    blank: S,
    order: &Order,
    parties: impl Fn(&S) -> BTreeSet<PartyId>,
) -> Result<(Identity, Snapshot), RecoverError> {
    let identity = log.identity();
    let last_index = log.last_index();
    let last_term = log.term(last_index)?.unwrap_or(0);
    let ours = (identity.mesh, identity.epoch, identity.node, last_term, last_index);
    let theirs = (order.mesh, order.epoch, order.survivor, order.last_term, order.last_index);
    let Some(snapshot) = log.snapshot()?.filter(|_| ours == theirs) else {
        return Err(RecoverError::OtherLog {
            node: order.survivor,
            index: order.last_index,
            term: order.last_term,
        });
    };
    let mut replica = Replica::restore(identity.mesh, identity.epoch, &snapshot, blank)?;
    let commit = log.hard_state().commit;
    while replica.index() < last_index {
        let next = replica.index() + 1;
        for entry in log.entries(next, last_index + 1, 4 << 20)? {
            replica.apply(&neutral(entry, commit))?;
        }
    }
    if replica.machine().seat_of(identity.node) != Some(identity.raft_id) {
        return Err(RecoverError::Left(identity.node));
    }
    let parties = parties(replica.machine());
    let have = order.signers(&parties).len();
    let need = if parties.len() > 1 { parties.len() / 2 + 1 } else { 0 };
    if have < need {
        return Err(RecoverError::TooFew { have, parties: parties.len(), need });
    }
    let epoch = identity.epoch + 1;
    let term = log.hard_state().term.max(last_term) + 1;
    replica.recover(last_index + FENCE_GAP, term, epoch, identity.raft_id);
    Ok((Identity { epoch, ..identity }, replica.snapshot()))
}

/// A change of voters that was still in flight is not made: one that removes the survivor, say,
/// would leave nobody.
fn neutral(entry: Entry, commit: u64) -> Entry {
    match entry.payload {
        Payload::Config(_) if entry.index > commit => Entry { payload: Payload::Empty, ..entry },
        _ => entry,
    }
}

fn bytes(
    domain: &[u8],
    mesh: MeshId,
    epoch: Epoch,
    node: NodeId,
    last_term: u64,
    last_index: u64,
) -> Vec<u8> {
    let mut bytes = domain.to_vec();
    bytes.extend_from_slice(&mesh.0);
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(&node.0);
    bytes.extend_from_slice(&last_term.to_le_bytes());
    bytes.extend_from_slice(&last_index.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(n: u8, epoch: Epoch, last_term: u64, last_index: u64) -> Survey {
        let key = SigningKey::from_bytes(&[n; 32]);
        let (mesh, node) = (MeshId([1; 32]), NodeId(key.verifying_key().to_bytes()));
        let bytes = bytes(SURVEY, mesh, epoch, node, last_term, last_index);
        let signature = key.sign(&bytes).to_bytes().to_vec();
        Survey { mesh, epoch, node, last_term, last_index, signature }
    }

    #[test]
    fn epoch_ranks_before_term_and_term_before_index() {
        let ranked =
            [survey(1, 0, 9, 90), survey(2, 1, 1, 900), survey(3, 1, 2, 1), survey(4, 1, 2, 2)];
        for end in 1..=ranked.len() {
            assert_eq!(choose(&ranked[..end]).unwrap(), &ranked[end - 1]);
        }
        assert!(matches!(choose(&[]), Err(RecoverError::Nobody)));
    }
}
