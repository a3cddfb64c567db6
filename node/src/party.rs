//! A party's secret, and the keys that come from it.
//!
//! A party is one secret. Its nodes receive it when they are admitted, from a node of the party that has
//! it, so no machine is special. From it come the key that signs for the party and the secret under which
//! its records are sealed. A worker has the latter alone: it works with private data, and cannot act for
//! the party. Likewise for the nodes of a party whose secret was taken offline.

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

    /// What is left of it where nothing may be signed for the party.
    pub fn sealing_secret(&self) -> SealingSecret {
        SealingSecret::new(blake3::derive_key("mesh 2026 party sealing key", &*self.0))
    }

    /// The public key (X25519) of [`PartySecret::sealing_secret`], as it stands in the state.
    pub fn sealing(&self) -> [u8; 32] {
        self.sealing_secret().public()
    }
}

impl fmt::Debug for PartySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartySecret({})", self.id().short())
    }
}

/// The part of a party's secret with which its records are sealed and opened. It cannot sign, and the
/// party's secret does not follow from it. Not shown, and wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SealingSecret(Zeroizing<[u8; 32]>);

impl SealingSecret {
    /// Takes the bytes as they are.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes, to be kept or handed to a node of the same party.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The public key (X25519) that belongs to it. The state has each party's, so whoever is handed a
    /// secret can tell whether it is the right one.
    pub fn public(&self) -> [u8; 32] {
        SigningKey::from_bytes(&self.0).verifying_key().to_montgomery().to_bytes()
    }

    /// The key for the party's sealed records.
    pub(crate) fn record_key(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(blake3::derive_key("mesh 2026 sealed record key", &*self.0))
    }
}

impl fmt::Debug for SealingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealingSecret({:02x?})", &self.public()[..4])
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

    #[test]
    fn the_keys_of_a_party_stay_what_they_are() {
        // Both stand in the states of running meshes.
        let secret = PartySecret::new([7; 32]);
        let text = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        assert_eq!(
            text(&secret.id().0),
            "bf81c62aa7a3fe5e1be313791255009da21b0516c925fdfb60315e8bb6a32982"
        );
        assert_eq!(
            text(&secret.sealing()),
            "fb939761cf9f7755101c7160615ef5360ecb96ce841d177d76de5eecdfd10936"
        );
    }

    #[test]
    fn a_sealing_secret_belongs_to_its_public_key_and_is_not_the_signing_key() {
        let secret = PartySecret::new([7; 32]);
        let sealing = secret.sealing_secret();
        assert_eq!(sealing.public(), secret.sealing());
        assert_ne!(sealing.public(), PartySecret::new([8; 32]).sealing());
        assert_ne!(sealing.bytes(), secret.bytes());
        assert_ne!(*sealing.bytes(), secret.signing().to_bytes());
        assert_ne!(*sealing.record_key(), *sealing.bytes());
        let shown = format!("{sealing:?}");
        assert!(!shown.contains(&format!("{:02x?}", &sealing.bytes()[..4])), "{shown}");
    }
}
