//! Tickets: how a node that nobody knows becomes a member.
//!
//! A ticket is an Ed25519 seed that its party hands out; the state keeps the public key alone. A
//! newcomer signs its own key with the seed, for this mesh:
//!
//! ```text
//! signed = DOMAIN ‖ mesh (32) ‖ node (32)
//! ```
//!
//! Whoever sees the join can therefore not use it for another key or in another mesh. Using a
//! ticket up is a command like any other, so of two that race for its last use one is refused.

use ed25519_dalek::{Signer, SigningKey};
use mesh_consensus::command::verify;
use mesh_consensus::id::{MeshId, NodeId, PartyId, TicketId};
use mesh_consensus::machine::At;
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use super::Facts;
use super::command::{Admit, TicketNew, TicketRevoke};
use super::party::{SignatureBytes, check_key};
use super::refusal::Refusal;

/// A ticket lets in at most this many nodes.
pub const MAX_USES: u32 = 10_000;

/// A party has at most this many tickets that can still be used.
pub const MAX_TICKETS: usize = 1024;

const DOMAIN: &[u8] = b"mesh/join/1\0";

/// A ticket that was made and not taken back. Its key in the state is its public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Whose nodes it lets in.
    pub party: PartyId,
    /// The first moment, in mesh time, at which it no longer counts.
    pub expires: Time,
    /// How many more nodes it lets in. At zero it stays until the party makes the next ticket, so
    /// that whoever comes late is told what happened.
    pub uses_left: u32,
    /// Whether those nodes go without the party's signing key.
    pub worker: bool,
}

impl Ticket {
    /// Whether it would let a node in at `now`.
    pub fn is_live(&self, now: Time) -> bool {
        self.expires > now && self.uses_left > 0
    }
}

/// Signs, with a ticket's seed, that `node` may join `mesh`.
pub fn sign_join(seed: &SigningKey, mesh: MeshId, node: NodeId) -> SignatureBytes {
    SignatureBytes(seed.sign(&signed_bytes(mesh, node)).to_bytes())
}

fn signed_bytes(mesh: MeshId, node: NodeId) -> Vec<u8> {
    [DOMAIN, &mesh.0, &node.0].concat()
}

impl Facts {
    pub(super) fn ticket_new(
        &mut self,
        at: &At,
        act: TicketNew,
        by: PartyId,
    ) -> Result<(), Refusal> {
        let TicketNew { ticket, party, expires, uses, worker } = act;
        if by != party {
            return Err(Refusal::WrongParty);
        }
        if expires <= at.time {
            return Err(Refusal::BadExpiry);
        }
        if !(1..=MAX_USES).contains(&uses) {
            return Err(Refusal::BadUses);
        }
        check_key(&ticket.0)?;
        if self.tickets.contains_key(&ticket) {
            return Err(Refusal::TicketTaken);
        }
        let own = self.tickets.values().filter(|ticket| ticket.party == party);
        if own.filter(|ticket| ticket.is_live(at.time)).count() >= MAX_TICKETS {
            return Err(Refusal::TooManyTickets);
        }
        // Here and nowhere else: a party's dead tickets are then never more than its live ones
        // once were.
        self.tickets.retain(|_, ticket| ticket.party != party || ticket.is_live(at.time));
        self.tickets.insert(ticket, Ticket { party, expires, uses_left: uses, worker });
        Ok(())
    }

    pub(super) fn ticket_revoke(&mut self, act: &TicketRevoke, by: PartyId) -> Result<(), Refusal> {
        let ticket = self.tickets.get(&act.ticket).ok_or(Refusal::NoSuchTicket)?;
        if ticket.party != by {
            return Err(Refusal::WrongParty);
        }
        self.tickets.remove(&act.ticket);
        Ok(())
    }

    /// The ticket, if it lets this node in here and now. Nothing is used up yet.
    pub(super) fn check_ticket(&self, at: &At, act: &Admit) -> Result<Ticket, Refusal> {
        let ticket = self.tickets.get(&act.ticket).ok_or(Refusal::NoSuchTicket)?;
        if ticket.expires <= at.time {
            return Err(Refusal::TicketExpired);
        }
        if ticket.uses_left == 0 {
            return Err(Refusal::TicketUsedUp);
        }
        if !verify(&act.ticket.0, &signed_bytes(at.mesh, act.node), &act.proof.0) {
            return Err(Refusal::BadProof);
        }
        Ok(ticket.clone())
    }

    pub(super) fn use_ticket(&mut self, ticket: TicketId) {
        if let Some(ticket) = self.tickets.get_mut(&ticket) {
            ticket.uses_left = ticket.uses_left.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{Scene, id, name, node, party, party_id, seed, ticket};
    use super::*;

    #[test]
    fn a_ticket_is_made_by_its_own_party_only() {
        let mut scene = Scene::two_parties();
        let act = scene.ticket_new(1, 1, 1);
        assert_eq!(scene.signed(&node(2), &party(2), act.clone()), Err(Refusal::WrongParty));
        // The author may be anyone's node.
        assert_eq!(scene.signed(&node(2), &party(1), act), Ok(()));
        assert_eq!(scene.state.tickets()[&ticket(1)].party, party_id(1));
    }

    #[test]
    fn a_ticket_with_odd_terms_is_refused() {
        let mut scene = Scene::new();
        for uses in [0, MAX_USES + 1, u32::MAX] {
            let act = scene.ticket_new(1, 1, uses);
            assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::BadUses));
        }
        let mut act = scene.ticket_new(1, 1, MAX_USES);
        act.expires = scene.time;
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::BadExpiry));
        let mut act = scene.ticket_new(1, 1, 1);
        act.ticket = TicketId([2; 32]);
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::BadKey));
    }

    #[test]
    fn a_tickets_key_is_taken_while_the_ticket_stands() {
        let mut scene = Scene::two_parties();
        scene.make_ticket(1, 1, 1);
        let again = scene.ticket_new(1, 1, 7);
        assert_eq!(scene.signed(&node(1), &party(1), again), Err(Refusal::TicketTaken));
        let theirs = scene.ticket_new(1, 2, 7);
        assert_eq!(scene.signed(&node(2), &party(2), theirs), Err(Refusal::TicketTaken));
    }

    #[test]
    fn a_ticket_is_revoked_by_its_own_party_only() {
        let mut scene = Scene::two_parties();
        scene.make_ticket(1, 1, 1);
        let act = TicketRevoke { ticket: ticket(1) };
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(2), &party(2), act.clone()), Err(Refusal::WrongParty));
        assert_eq!(scene.signed(&node(2), &party(1), act.clone()), Ok(()));
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::NoSuchTicket));
        let late = scene.admit(1, 5);
        assert_eq!(scene.act(&node(1), late), Err(Refusal::NoSuchTicket));
    }

    #[test]
    fn a_race_for_the_last_use_admits_one() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 1);
        let (first, second) = (scene.admit(1, 2), scene.admit(1, 3));
        assert_eq!(scene.act(&node(1), first), Ok(()));
        assert_eq!(scene.act(&node(1), second), Err(Refusal::TicketUsedUp));
        assert!(scene.state.is_member(id(2)));
        assert!(!scene.state.is_member(id(3)));
    }

    #[test]
    fn a_join_that_was_seen_cannot_be_replayed_for_another_key() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let seen = scene.admit(1, 2);
        let stolen = Admit { node: id(3), ..seen };
        assert_eq!(scene.act(&node(1), stolen), Err(Refusal::BadProof));
    }

    #[test]
    fn a_join_that_was_seen_cannot_be_replayed_in_another_mesh() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let mut act = scene.admit(1, 2);
        act.proof = sign_join(&seed(1), MeshId([9; 32]), id(2));
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadProof));
    }

    #[test]
    fn a_join_is_proved_by_the_tickets_own_key() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        for key in [seed(2), node(1), node(2), party(1)] {
            let mut act = scene.admit(1, 2);
            act.proof = sign_join(&key, scene.mesh, id(2));
            assert_eq!(scene.act(&node(1), act), Err(Refusal::BadProof));
        }
        let mut act = scene.admit(1, 2);
        act.ticket = ticket(2);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::NoSuchTicket));
    }

    #[test]
    fn a_ticket_expires_by_mesh_time() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let expires = scene.state.tickets()[&ticket(1)].expires;
        scene.time = Time(expires.0 - 1);
        let act = scene.admit(1, 2);
        assert_eq!(scene.act(&node(1), act), Ok(()));
        scene.time = expires;
        let act = scene.admit(1, 3);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::TicketExpired));
    }

    #[test]
    fn a_party_has_a_bounded_number_of_live_tickets_and_dead_ones_go() {
        let mut scene = Scene::two_parties();
        let expires = scene.time.after(Duration::from_secs(60));
        for n in 0..MAX_TICKETS {
            // Only the map is looked at, so these need not be keys.
            let mut bytes = [7; 32];
            bytes[..8].copy_from_slice(&u64::try_from(n).unwrap().to_le_bytes());
            let full = Ticket { party: party_id(1), expires, uses_left: 1, worker: false };
            scene.state.facts.tickets.insert(TicketId(bytes), full);
        }
        let act = scene.ticket_new(1, 1, 1);
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::TooManyTickets));
        // Another party has its own room.
        scene.make_ticket(2, 2, 1);
        scene.time = expires;
        scene.make_ticket(1, 1, 1);
        assert!(scene.state.tickets().values().all(|ticket| ticket.is_live(scene.time)));
    }

    #[test]
    fn a_used_up_ticket_is_cleared_away_when_the_party_makes_the_next() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 1);
        let act = scene.admit(1, 2);
        scene.act(&node(1), act).unwrap();
        scene.make_ticket(2, 1, 1);
        let act = Admit { name: name("late"), ..scene.admit(1, 3) };
        assert_eq!(scene.act(&node(1), act), Err(Refusal::NoSuchTicket));
    }
}
