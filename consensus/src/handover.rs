//! Changes of voters, signed by those who voted before: so that whoever slept knows whom to believe now.
//!
//! A watcher believes a majority of the voters that it knows (see [`crate::bookmark`]). While it sleeps, they
//! may all be replaced; dead machines sign nothing any more. So each change leaves a **hand-over**: a
//! majority of those who voted before it has signed who votes after it. From the voters that it knew, a
//! sleeper follows the hand-overs, one after the other, to the voters of today.
//!
//! ```text
//!  known: {a b c} ──signed by a, b──► {a b d} ──signed by b, d──► {b d e}: whom to believe
//! ```
//!
//! A change counts from the moment its first half is applied: from then on it can only be completed.

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::{Signer, SigningKey};
use serde::{Deserialize, Serialize};

use crate::bookmark::majority;
use crate::command::verify;
use crate::id::{Epoch, MeshId, NodeId};

const DOMAIN: &[u8] = b"mesh/handover/1\0";

/// That the voters have changed, and which of those before have signed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// The entry that changed them.
    pub index: u64,
    /// Who voted before it.
    pub from: BTreeSet<NodeId>,
    /// Who votes after it.
    pub to: BTreeSet<NodeId>,
    /// Signatures by some of `from`.
    pub signed: BTreeMap<NodeId, Vec<u8>>,
}

impl Handover {
    /// One that nobody has signed yet.
    pub fn new(index: u64, from: BTreeSet<NodeId>, to: BTreeSet<NodeId>) -> Self {
        Self { index, from, to, signed: BTreeMap::new() }
    }

    /// A voter's signature under it.
    pub fn sign(&self, key: &SigningKey, mesh: MeshId, epoch: Epoch) -> [u8; 64] {
        key.sign(&self.signed_bytes(mesh, epoch)).to_bytes()
    }

    /// Whether `node` voted before, and this is its signature.
    pub fn is_signed(&self, node: NodeId, signature: &[u8], mesh: MeshId, epoch: Epoch) -> bool {
        let bytes = || self.signed_bytes(mesh, epoch);
        self.from.contains(&node) && verify(&node.0, &bytes(), signature)
    }

    /// Whether enough have signed. The signatures themselves are for [`Handover::is_proven`].
    pub fn is_complete(&self) -> bool {
        self.signed.len() >= majority(&self.from)
    }

    /// Whether a majority of those before has signed, each for itself.
    pub fn is_proven(&self, mesh: MeshId, epoch: Epoch) -> bool {
        let good = |(node, signature): &(&NodeId, &Vec<u8>)| {
            self.is_signed(**node, signature, mesh, epoch)
        };
        self.is_complete() && self.signed.iter().filter(good).count() >= majority(&self.from)
    }

    /// Counts go before lists, so no two changes are signed by the same bytes.
    fn signed_bytes(&self, mesh: MeshId, epoch: Epoch) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        bytes.extend_from_slice(&mesh.0);
        bytes.extend_from_slice(&epoch.to_le_bytes());
        bytes.extend_from_slice(&self.index.to_le_bytes());
        for voters in [&self.from, &self.to] {
            bytes.extend_from_slice(&(voters.len() as u64).to_le_bytes());
            voters.iter().for_each(|node| bytes.extend_from_slice(&node.0));
        }
        bytes
    }
}

/// Who is to be believed now, by one who knew that these voted. `handovers` are proven, in order.
pub fn voters_after<'a>(
    known: &BTreeSet<NodeId>,
    handovers: impl IntoIterator<Item = &'a Handover>,
) -> BTreeSet<NodeId> {
    let mut voters = known;
    for handover in handovers {
        if handover.from == *voters {
            voters = &handover.to;
        }
    }
    voters.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESH: MeshId = MeshId([1; 32]);

    fn key(n: u8) -> SigningKey {
        SigningKey::from_bytes(&[n; 32])
    }

    fn id(n: u8) -> NodeId {
        NodeId(key(n).verifying_key().to_bytes())
    }

    fn voters(all: &[u8]) -> BTreeSet<NodeId> {
        all.iter().map(|n| id(*n)).collect()
    }

    fn handover(index: u64, from: &[u8], to: &[u8], by: &[u8]) -> Handover {
        let mut handover = Handover::new(index, voters(from), voters(to));
        for n in by {
            let signature = handover.sign(&key(*n), MESH, 0).to_vec();
            handover.signed.insert(id(*n), signature);
        }
        handover
    }

    #[test]
    fn a_majority_of_those_before_proves_a_change() {
        assert!(handover(5, &[1, 2, 3], &[1, 2, 4], &[1, 2]).is_proven(MESH, 0));
        assert!(handover(5, &[1], &[1, 2, 3], &[1]).is_proven(MESH, 0));
        // Too few, or those after it.
        assert!(!handover(5, &[1, 2, 3], &[1, 2, 4], &[1]).is_proven(MESH, 0));
        assert!(!handover(5, &[1, 2, 3], &[4, 5, 6], &[4, 5, 6]).is_proven(MESH, 0));
        assert!(!handover(5, &[1, 2, 3, 4], &[1], &[1, 2]).is_proven(MESH, 0));
    }

    #[test]
    fn a_signature_is_for_one_change_of_one_mesh_in_one_epoch() {
        let right = handover(5, &[1, 2, 3], &[1, 2, 4], &[1, 2]);
        assert!(!right.is_proven(MeshId([2; 32]), 0));
        assert!(!right.is_proven(MESH, 1));
        let changes: [fn(&mut Handover); 4] = [
            |h| h.index += 1,
            |h| h.to = voters(&[1, 2, 5]),
            |h| h.from = voters(&[1, 2, 5]),
            |h| h.signed.values_mut().for_each(|signature| signature[0] ^= 1),
        ];
        for (place, change) in changes.iter().enumerate() {
            let mut changed = right.clone();
            change(&mut changed);
            assert!(!changed.is_proven(MESH, 0), "change {place}");
        }
    }

    #[test]
    fn a_sleeper_follows_every_change_and_no_other() {
        let chain = [
            handover(5, &[1, 2, 3], &[1, 2, 4], &[]),
            handover(7, &[7, 8, 9], &[9], &[]),
            handover(9, &[1, 2, 4], &[2, 4, 5], &[]),
        ];
        assert_eq!(voters_after(&voters(&[1, 2, 3]), &chain), voters(&[2, 4, 5]));
        assert_eq!(voters_after(&voters(&[1, 2, 4]), &chain), voters(&[2, 4, 5]));
        assert_eq!(voters_after(&voters(&[2, 4, 5]), &chain), voters(&[2, 4, 5]));
        // Where a link is missing, nothing follows.
        assert_eq!(voters_after(&voters(&[1, 2, 3]), &chain[1..]), voters(&[1, 2, 3]));
    }
}
