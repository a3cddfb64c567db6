//! A party's secret, and the keys that come from it.
//!
//! A party is one secret. Its nodes receive it when they are admitted, from a node of the party that has
//! it, so no machine is special. From it come the key that signs for the party and the key to which
//! records are sealed.

use std::fmt;

use ed25519_dalek::SigningKey;
use mesh_consensus::id::PartyId;
use zeroize::Zeroizing;

/// The secret of a party. Not shown, and wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct PartySecret(Zeroizing<[u8; 32]>);

impl PartySecret {
    /// Takes the bytes as they are.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Makes a new party.
    pub fn generate() -> Self {
        Self::new(crate::random())
    }

    /// The bytes, to be kept or handed to a node of the same party.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key that signs for the party.
    pub fn signing(&self) -> SigningKey {
        SigningKey::from_bytes(&blake3::derive_key("mesh 2026 party signing key", &*self.0))
    }

    /// The party's name in the state.
    pub fn id(&self) -> PartyId {
        PartyId(self.signing().verifying_key().to_bytes())
    }

    /// The public key (X25519) to which records for the party are sealed.
    pub fn sealing(&self) -> [u8; 32] {
        let seed = blake3::derive_key("mesh 2026 party sealing key", &*self.0);
        SigningKey::from_bytes(&seed).verifying_key().to_montgomery().to_bytes()
    }
}

impl fmt::Debug for PartySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartySecret({})", self.id().short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_secret_gives_the_same_keys_again_and_two_give_others() {
        let secret = PartySecret::new([7; 32]);
        assert_eq!(secret.id(), PartySecret::new([7; 32]).id());
        assert_eq!(secret.sealing(), PartySecret::new([7; 32]).sealing());
        assert_ne!(secret.id(), PartySecret::generate().id());
        assert_ne!(secret.id().0, secret.sealing());
        assert!(!format!("{secret:?}").contains("0707"));
    }
}
