//! Proof that a stranger belongs: how a voter that slept learns whom to hear.
//!
//! Three voters, one of them cut off. The group grows to five; two of the old voters die; the third
//! returns. Three of five are alive, yet it knows none of the new ones, and raft will not elect
//! without it. So a peer that we do not know may show its **admission**: a member's signature under
//! "this key was admitted to this seat". The signer may itself be unknown, then its own admission
//! follows, and so on until a member that we do know. Such a peer is heard as a raft peer and for
//! nothing else.

use ed25519_dalek::{Signer, SigningKey};
use serde::{Deserialize, Serialize};

use crate::command::verify;
use crate::id::{Epoch, MeshId, NodeId, RaftId};

/// A chain longer than this is refused: each link costs a signature check.
pub const MAX_CHAIN: usize = 16;

const DOMAIN: &[u8] = b"mesh/admission/1\0";

/// A member's word that `node` was admitted to `seat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Who was admitted.
    pub node: NodeId,
    /// To which seat.
    pub seat: RaftId,
    /// Who says so.
    pub by: NodeId,
    signature: Vec<u8>,
}

/// Why a chain of admissions proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Nothing in it, or too much.
    #[error("a chain has 1 to {MAX_CHAIN} links; this one has {0}")]
    Length(usize),
    /// A link that its signer did not sign.
    #[error("{} did not sign the admission of {}", by.short(), node.short())]
    BadSignature {
        /// The supposed signer.
        by: NodeId,
        /// Whom it is about.
        node: NodeId,
    },
    /// A link that does not continue the one before.
    #[error("the chain is broken at {}", .0.short())]
    Broken(NodeId),
    /// Somebody in it was removed.
    #[error("{} was removed", .0.short())]
    Removed(NodeId),
    /// It ends at somebody that we do not know either.
    #[error("the chain ends at {}, who is no member that we know", .0.short())]
    Unknown(NodeId),
}

impl Admission {
    /// Signs that `node` sits at `seat`. The signer has applied the entry that says so.
    pub fn sign(key: &SigningKey, mesh: MeshId, epoch: Epoch, node: NodeId, seat: RaftId) -> Self {
        let by = NodeId(key.verifying_key().to_bytes());
        let signature = key.sign(&signed_bytes(mesh, epoch, node, seat)).to_bytes().to_vec();
        Self { node, seat, by, signature }
    }
}

/// Whom the chain introduces: its first node, if each link is signed by the next node and one of
/// them by a member. What lies behind that member proves nothing more and is not looked at.
///
/// A signer that was removed counts for nothing, and need not: who knows of its removal knows of
/// everyone that it admitted before.
pub fn vouch(
    mesh: MeshId,
    epoch: Epoch,
    chain: &[Admission],
    is_member: impl Fn(NodeId) -> bool,
    is_removed: impl Fn(NodeId) -> bool,
) -> Result<(NodeId, RaftId), NotAdmitted> {
    let first = chain.first().ok_or(NotAdmitted::Length(0))?;
    if chain.len() > MAX_CHAIN {
        return Err(NotAdmitted::Length(chain.len()));
    }
    let mut subject = first.node;
    for Admission { node, seat, by, signature } in chain {
        if *node != subject {
            return Err(NotAdmitted::Broken(subject));
        }
        if let Some(removed) = [*node, *by].into_iter().find(|id| is_removed(*id)) {
            return Err(NotAdmitted::Removed(removed));
        }
        if !verify(&by.0, &signed_bytes(mesh, epoch, *node, *seat), signature) {
            return Err(NotAdmitted::BadSignature { by: *by, node: *node });
        }
        if is_member(*by) {
            return Ok((first.node, first.seat));
        }
        subject = *by;
    }
    Err(NotAdmitted::Unknown(subject))
}

fn signed_bytes(mesh: MeshId, epoch: Epoch, node: NodeId, seat: RaftId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DOMAIN.len() + 76);
    bytes.extend_from_slice(DOMAIN);
    bytes.extend_from_slice(&mesh.0);
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(&node.0);
    bytes.extend_from_slice(&seat.0.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESH: MeshId = MeshId([1; 32]);

    fn key(n: u8) -> SigningKey {
        SigningKey::from_bytes(&[n; 32])
    }

    fn node(n: u8) -> NodeId {
        NodeId(key(n).verifying_key().to_bytes())
    }

    fn link(of: u8, by: u8) -> Admission {
        Admission::sign(&key(by), MESH, 0, node(of), RaftId(u64::from(of)))
    }

    fn judge(chain: &[Admission], member: u8) -> Result<(NodeId, RaftId), NotAdmitted> {
        vouch(MESH, 0, chain, |id| id == node(member), |id| id == node(9))
    }

    #[test]
    fn a_chain_that_ends_at_a_member_introduces_its_first_node() {
        assert_eq!(judge(&[link(3, 1)], 1), Ok((node(3), RaftId(3))));
        assert_eq!(judge(&[link(4, 3), link(3, 1)], 1), Ok((node(4), RaftId(4))));
        // Behind a member that we know, even one that was removed does no harm.
        assert_eq!(judge(&[link(3, 1), link(1, 9)], 1), Ok((node(3), RaftId(3))));
    }

    #[test]
    fn nothing_else_does() {
        assert_eq!(judge(&[], 1), Err(NotAdmitted::Length(0)));
        assert_eq!(judge(&vec![link(3, 3); 17], 3), Err(NotAdmitted::Length(17)));
        assert_eq!(judge(&[link(3, 2)], 1), Err(NotAdmitted::Unknown(node(2))));
        let broken = judge(&[link(4, 2), link(3, 1)], 1);
        assert_eq!(broken, Err(NotAdmitted::Broken(node(2))));
        assert_eq!(judge(&[link(9, 1)], 1), Err(NotAdmitted::Removed(node(9))));
        let mut forged = link(3, 1);
        forged.seat = RaftId(4);
        let bad = NotAdmitted::BadSignature { by: node(1), node: node(3) };
        assert_eq!(judge(&[forged], 1), Err(bad.clone()));
        let elsewhere = vouch(MeshId([2; 32]), 0, &[link(3, 1)], |_| true, |_| false);
        assert_eq!(elsewhere, Err(bad.clone()));
        let later = vouch(MESH, 1, &[link(3, 1)], |_| true, |_| false);
        assert_eq!(later, Err(bad));
    }
}
