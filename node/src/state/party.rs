//! Parties, and what only they can say.
//!
//! A party is an owner of nodes and data, and the unit of trust. Some things only a party may do:
//! they carry its signature, and any member may author them, so the key can stay off the machines
//! that are members. The signature holds for one place in the history of one mesh:
//!
//! ```text
//! signed = DOMAIN ‖ mesh (32) ‖ epoch (4) ‖ author (32) ‖ sequence (8) ‖ position (4)
//!                 ‖ kind (2) ‖ the kind's struct              (numbers little-endian)
//! ```
//!
//! So it cannot be used again in another batch, by another author, for another command of the same
//! batch, after a recovery or in another mesh.
//!
//! A party is *present* while it has a node that is a member and not leaving. Only such a party has a
//! say where parties are counted: in requests, about who is down, and in a recovery. Its tickets
//! count also while it is absent, as they are how it comes, or comes back.

use std::collections::BTreeSet;
use std::fmt;

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use mesh_consensus::command::verify;
use mesh_consensus::id::{Epoch, MeshId, NodeId, PartyId};
use mesh_consensus::machine::At;
use serde::{Deserialize, Serialize};

use super::command::Act;
use super::name::Name;
use super::refusal::Refusal;
use super::{Facts, Moment};

/// A mesh has at most this many parties. Each is founded by the consent of a majority.
pub const MAX_PARTIES: usize = 256;

/// Not a party's name: `each/xray` means "at every participant, its own".
pub const RESERVED_NAME: &str = "each";

const DOMAIN: &[u8] = b"mesh/party-act/1\0";

/// An owner of nodes and data. Its key in the state is its signing key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// What it is called. No other party is called so.
    pub name: Name,
    /// The public key under which records for it are sealed.
    pub sealing: [u8; 32],
    /// When it came.
    pub founded: Moment,
}

/// An Ed25519 signature, in 64 bare bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SignatureBytes(pub [u8; 64]);

/// A party's word on the command that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartySignature {
    /// Whose.
    pub party: PartyId,
    /// By the party's signing key: see the module.
    pub signature: SignatureBytes,
}

/// The place in the common history that a party's signature is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The mesh.
    pub mesh: MeshId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Who will sign the batch.
    pub author: NodeId,
    /// The batch's number among its author's.
    pub sequence: u64,
    /// The command's place in the batch.
    pub position: u32,
}

impl Slot {
    /// The place where a command stands.
    pub fn of(at: &At) -> Self {
        let At { mesh, epoch, author, sequence, position, .. } = *at;
        Self { mesh, epoch, author, sequence, position }
    }

    fn signed_bytes(&self, act: &Act) -> Vec<u8> {
        let body = act.body();
        let mut bytes = Vec::with_capacity(DOMAIN.len() + 82 + body.len());
        bytes.extend_from_slice(DOMAIN);
        bytes.extend_from_slice(&self.mesh.0);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.author.0);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.position.to_le_bytes());
        bytes.extend_from_slice(&act.kind().to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }
}

/// Signs `act` with the party's `key`, for one place.
pub fn sign_party_act(key: &SigningKey, slot: &Slot, act: &Act) -> PartySignature {
    let party = PartyId(key.verifying_key().to_bytes());
    let signature = SignatureBytes(key.sign(&slot.signed_bytes(act)).to_bytes());
    PartySignature { party, signature }
}

/// Refuses keys for which no signature, or any, would count.
pub(super) fn check_key(key: &[u8; 32]) -> Result<(), Refusal> {
    match VerifyingKey::from_bytes(key) {
        Ok(key) if !key.is_weak() => Ok(()),
        _ => Err(Refusal::BadKey),
    }
}

impl Facts {
    /// The party that signed `act` where it stands.
    pub(super) fn check_signature(
        &self,
        at: &At,
        act: &Act,
        by: &PartySignature,
    ) -> Result<PartyId, Refusal> {
        if !self.parties.contains_key(&by.party) {
            return Err(Refusal::NoSuchParty);
        }
        let signed = Slot::of(at).signed_bytes(act);
        if verify(&by.party.0, &signed, &by.signature.0) {
            Ok(by.party)
        } else {
            Err(Refusal::BadPartySignature)
        }
    }

    /// The parties that have a say.
    pub(super) fn present_parties(&self) -> BTreeSet<PartyId> {
        self.members.values().filter(|member| !member.leaving).map(|member| member.party).collect()
    }

    pub(super) fn is_present(&self, party: PartyId) -> bool {
        self.members.values().any(|member| member.party == party && !member.leaving)
    }

    pub(super) fn check_present(&self, party: PartyId) -> Result<(), Refusal> {
        if self.is_present(party) { Ok(()) } else { Err(Refusal::PartyAbsent) }
    }

    /// Whether a party of this name and key could come now.
    pub(super) fn check_new_party(&self, name: &Name, signing: PartyId) -> Result<(), Refusal> {
        if name.as_str() == RESERVED_NAME {
            return Err(Refusal::NameReserved);
        }
        check_key(&signing.0)?;
        if self.parties.contains_key(&signing) {
            return Err(Refusal::PartyTaken);
        }
        if self.parties.values().any(|party| party.name == *name) {
            return Err(Refusal::NameTaken);
        }
        if self.parties.len() >= MAX_PARTIES {
            return Err(Refusal::TooManyParties);
        }
        Ok(())
    }
}

impl fmt::Debug for SignatureBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignatureBytes({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// serde knows arrays of up to 32; two of them, without a length, are the same 64 bytes.
impl Serialize for SignatureBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut r, mut s) = ([0; 32], [0; 32]);
        r.copy_from_slice(&self.0[..32]);
        s.copy_from_slice(&self.0[32..]);
        (r, s).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SignatureBytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (r, s) = <([u8; 32], [u8; 32])>::deserialize(deserializer)?;
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&r);
        bytes[32..].copy_from_slice(&s);
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::machine::{Outcome, StateMachine};

    use super::super::testing::{Scene, node, party, party_id, seed, ticket};
    use super::*;

    fn refused(refusal: Refusal) -> Outcome {
        Outcome::Refused(refusal.code())
    }

    #[test]
    fn a_signature_is_sixty_four_bare_bytes() {
        let signature = SignatureBytes(std::array::from_fn(|n| u8::try_from(n).unwrap()));
        let bytes = postcard::to_stdvec(&signature).unwrap();
        assert_eq!(bytes, signature.0);
        assert_eq!(postcard::from_bytes::<SignatureBytes>(&bytes).unwrap(), signature);
    }

    #[test]
    fn a_party_act_needs_the_signature_of_a_party() {
        let mut scene = Scene::new();
        let act = scene.ticket_new(1, 1, 1);
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(1), &party(9), act.clone()), Err(Refusal::NoSuchParty));
        assert_eq!(scene.signed(&node(1), &party(1), act), Ok(()));
    }

    #[test]
    fn a_party_signature_counts_for_its_own_kind_of_act_only() {
        use super::super::command::{Leave, TicketRevoke};
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 1);
        let at = scene.at(&node(1));
        // Both bodies are the same thirty-two bytes.
        let leave = Act::from(Leave { node: mesh_consensus::id::NodeId(ticket(1).0) });
        let revoke = Act::from(TicketRevoke { ticket: ticket(1) });
        assert_eq!(leave.body(), revoke.body());
        let signature = sign_party_act(&party(1), &Slot::of(&at), &leave);
        let outcome = scene.state.apply(&at, &revoke.with(Some(&signature))).unwrap();
        assert_eq!(outcome, refused(Refusal::BadPartySignature));
    }

    #[test]
    fn a_party_signature_counts_at_its_own_place_only() {
        let mut scene = Scene::two_parties();
        let act = Act::from(scene.ticket_new(1, 1, 1));
        let at = scene.at(&node(1));
        let command = act.signed(&party(1), &Slot::of(&at));
        let elsewhere = [
            At { sequence: at.sequence + 1, ..at },
            At { position: at.position + 1, ..at },
            At { author: super::super::testing::id(2), ..at },
            At { epoch: at.epoch + 1, ..at },
            At { mesh: MeshId([9; 32]), ..at },
        ];
        for other in elsewhere {
            let outcome = scene.state.apply(&other, &command);
            assert_eq!(outcome, Ok(refused(Refusal::BadPartySignature)), "{other:?}");
        }
        // Where the entry ends up is the leader's business, not the signer's.
        let later = At { index: at.index + 5, ..at };
        assert_eq!(scene.state.apply(&later, &command), Ok(Outcome::Done));
    }

    #[test]
    fn a_party_signature_does_not_cover_another_act() {
        let mut scene = Scene::new();
        let at = scene.at(&node(1));
        let signature =
            sign_party_act(&party(1), &Slot::of(&at), &scene.ticket_new(1, 1, 1).into());
        let more = Act::from(scene.ticket_new(1, 1, 2)).with(Some(&signature));
        assert_eq!(scene.state.apply(&at, &more), Ok(refused(Refusal::BadPartySignature)));
    }

    #[test]
    fn a_signature_that_names_another_party_is_not_believed() {
        let mut scene = Scene::two_parties();
        let at = scene.at(&node(2));
        let act = Act::from(scene.ticket_new(1, 1, 1));
        let mut signature = sign_party_act(&party(2), &Slot::of(&at), &act);
        signature.party = party_id(1);
        let outcome = scene.state.apply(&at, &act.with(Some(&signature)));
        assert_eq!(outcome, Ok(refused(Refusal::BadPartySignature)));
    }

    #[test]
    fn a_worker_has_no_signing_key_and_makes_no_tickets() {
        let mut scene = Scene::new();
        scene.join_as_worker(1, 2).unwrap();
        assert!(scene.member(2).worker);
        let act = Act::from(scene.ticket_new(5, 1, 1));
        assert_eq!(scene.act(&node(2), act.clone()), Err(Refusal::Unsigned));
        // All it has is its own key, whatever name it puts to it.
        assert_eq!(scene.signed(&node(2), &node(2), act.clone()), Err(Refusal::NoSuchParty));
        let at = scene.at(&node(2));
        let mut signature = sign_party_act(&node(2), &Slot::of(&at), &act);
        signature.party = party_id(1);
        let outcome = scene.state.apply(&at, &act.with(Some(&signature)));
        assert_eq!(outcome, Ok(refused(Refusal::BadPartySignature)));
        // It may carry what the party has signed elsewhere.
        assert_eq!(scene.signed(&node(2), &party(1), act), Ok(()));
        assert!(scene.state.tickets().contains_key(&ticket(5)));
    }

    #[test]
    fn a_stranger_cannot_act_even_with_a_partys_signature() {
        let mut scene = Scene::new();
        let act = scene.ticket_new(1, 1, 1);
        assert_eq!(scene.signed(&node(9), &party(1), act), Err(Refusal::NotMember));
    }

    #[test]
    fn weak_and_broken_keys_are_no_keys() {
        assert_eq!(check_key(&seed(1).verifying_key().to_bytes()), Ok(()));
        // The neutral element: any signature of a certain form would count for it.
        let mut weak = [0; 32];
        weak[0] = 1;
        assert_eq!(check_key(&weak), Err(Refusal::BadKey));
        assert_eq!(check_key(&[2; 32]), Err(Refusal::BadKey));
    }
}
