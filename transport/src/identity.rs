//! Who a node is: one Ed25519 key, and its name in our world and in libp2p's.
//!
//! Owns the private key while the process runs. Leaves to others where it is kept (`node`) and what
//! is proved with it (`tls.rs`, the overlay, signed commands).

use std::fmt;

use ed25519_dalek::SigningKey;
use libp2p::PeerId;
use libp2p::identity::{Keypair, PublicKey, ed25519};
use mesh_consensus::id::NodeId;

/// A node's private key. Wiped from memory when dropped; printing it shows the id only.
#[derive(Clone)]
pub struct NodeKey {
    signing: SigningKey,
}

impl NodeKey {
    /// A new key, from the system's randomness.
    ///
    /// # Panics
    ///
    /// If the system has no randomness to give: a node without a secret must not start.
    pub fn generate() -> Self {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).expect("the system gives randomness");
        Self::from_seed(&seed)
    }

    /// The key that this seed stands for.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self { signing: SigningKey::from_bytes(seed) }
    }

    /// What to keep on disk.
    pub fn seed(&self) -> &[u8; 32] {
        self.signing.as_bytes()
    }

    /// The node's name: its public key.
    pub fn id(&self) -> NodeId {
        NodeId(self.signing.verifying_key().to_bytes())
    }

    /// For signing commands and records.
    pub fn signing(&self) -> &SigningKey {
        &self.signing
    }

    /// The same key as libp2p wants it.
    pub fn keypair(&self) -> Keypair {
        Keypair::ed25519_from_bytes(*self.seed()).expect("32 bytes are an Ed25519 seed")
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeKey").field(&self.id()).finish()
    }
}

/// The node's name in libp2p. `None` if the id is no point on the curve.
pub fn peer_id(node: NodeId) -> Option<PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(&node.0).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

/// The node behind a libp2p name. `None` if that is not an Ed25519 key written out in full.
pub fn node_id(peer: &PeerId) -> Option<NodeId> {
    /// Multihash "identity" of 36 bytes, then a protobuf of key type 1 (Ed25519) and 32 bytes.
    const PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
    let bytes = peer.to_bytes();
    let key = bytes.strip_prefix(&PREFIX)?;
    Some(NodeId(key.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_name_in_both_worlds() {
        let key = NodeKey::generate();
        let peer = peer_id(key.id()).unwrap();
        assert_eq!(peer, key.keypair().public().to_peer_id());
        assert_eq!(node_id(&peer), Some(key.id()));
    }

    #[test]
    fn a_key_comes_back_from_its_seed() {
        let key = NodeKey::generate();
        assert_eq!(NodeKey::from_seed(key.seed()).id(), key.id());
    }

    #[test]
    fn a_name_that_is_no_ed25519_key_is_not_a_node() {
        let hashed = PeerId::from_multihash(
            libp2p::multihash::Multihash::wrap(0x12, &[7; 32]).expect("32 bytes fit"),
        )
        .unwrap();
        assert_eq!(node_id(&hashed), None);
    }

    #[test]
    fn printing_a_key_does_not_show_it() {
        let key = NodeKey::from_seed(&[9; 32]);
        let shown = format!("{key:?}");
        assert!(shown.contains(&key.id().short()));
        assert!(!shown.contains("0909"), "{shown}");
        assert!(!shown.contains("9, 9"), "{shown}");
    }
}
