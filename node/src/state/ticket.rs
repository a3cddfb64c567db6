//! Tickets: how a node that nobody knows becomes a member.
//!
//! A ticket is an Ed25519 seed that its party hands out; the state keeps the public key alone. A
//! newcomer signs twice, with the seed and with its own key:
//!
//! ```text
//! proof   = by the ticket's key: JOIN    ‖ mesh (32) ‖ node (32)
//! consent = by the node's key:   CONSENT ‖ mesh (32) ‖ ticket (32) ‖ party (32)
//! ```
//!
//! The proof says that the ticket lets this node in: whoever sees a join cannot use it for another
//! key or in another mesh. The consent says that the node wants this party: nobody who has a ticket
//! can draw somebody else's key into a party. A ticket's key is free again once the ticket has been
//! cleared away, and any party may then register it, so the consent names the party too: an old
//! join does not become one to whoever came later.
//!
//! Neither names the epoch. A newcomer has no way to know it but from the member that it meets, and
//! a recovery leaves mesh, tickets and parties as they were: what was agreed to is still what
//! happens. It happens once, as neither a member nor a removed key is admitted.
//!
//! Using a ticket up is a command like any other, so of two that race for its last use one is
//! refused.

use std::time::Duration;

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

/// No node makes a ticket that is good for longer: a hundred years, which any calendar can still write down. The
/// state itself takes any expiry.
pub const MAX_TTL: Duration = Duration::from_secs(36_500 * 24 * 3600);

/// A party has at most this many tickets, invites among them, that can still be used.
pub const MAX_TICKETS: usize = 1024;

const JOIN: &[u8] = b"mesh/join/1\0";
const CONSENT: &[u8] = b"mesh/join-consent/1\0";

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
    SignatureBytes(seed.sign(&join_bytes(mesh, node)).to_bytes())
}

/// Signs, with a newcomer's own key, that it wants to join `party` in `mesh` with `ticket`.
///
/// All three must come from the ticket as it was handed over, not from the member that lets the
/// newcomer in: that one could name a party of its own.
pub fn sign_consent(
    node: &SigningKey,
    mesh: MeshId,
    ticket: TicketId,
    party: PartyId,
) -> SignatureBytes {
    SignatureBytes(node.sign(&consent_bytes(mesh, ticket, party)).to_bytes())
}

fn join_bytes(mesh: MeshId, node: NodeId) -> Vec<u8> {
    [JOIN, &mesh.0, &node.0].concat()
}

fn consent_bytes(mesh: MeshId, ticket: TicketId, party: PartyId) -> Vec<u8> {
    [CONSENT, &mesh.0, &ticket.0, &party.0].concat()
}

impl Facts {
    pub(super) fn ticket_new(
        &mut self,
        at: &At,
        act: TicketNew,
        by: PartyId,
    ) -> Result<(), Refusal> {
        let TicketNew { ticket, party, expires, uses, worker } = act;
        self.check_terms(at, ticket, party, expires, uses, by)?;
        self.clear_tickets(party, at.time);
        self.tickets.insert(ticket, Ticket { party, expires, uses_left: uses, worker });
        Ok(())
    }

    /// Whether `party` may make a ticket or an invite of this key, on these terms, now.
    pub(super) fn check_terms(
        &self,
        at: &At,
        ticket: TicketId,
        party: PartyId,
        expires: Time,
        uses: u32,
        by: PartyId,
    ) -> Result<(), Refusal> {
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
        let invites = &self.extras.invites;
        let is_first = self.extras.firsts.values().any(|first| *first == ticket);
        if self.tickets.contains_key(&ticket) || invites.contains_key(&ticket) || is_first {
            return Err(Refusal::TicketTaken);
        }
        let tickets =
            self.tickets.values().filter(|one| one.party == party && one.is_live(at.time));
        let invites = invites.values().filter(|one| one.party == party && one.is_live(at.time));
        if tickets.count() + invites.count() >= MAX_TICKETS {
            return Err(Refusal::TooManyTickets);
        }
        Ok(())
    }

    /// Drops the dead tickets and invites of `party`, whenever it makes another and at no other
    /// time: they are then never more than its live ones once were.
    pub(super) fn clear_tickets(&mut self, party: PartyId, now: Time) {
        self.tickets.retain(|_, one| one.party != party || one.is_live(now));
        self.extras.invites.retain(|_, one| one.party != party || one.is_live(now));
    }

    pub(super) fn ticket_revoke(&mut self, act: &TicketRevoke, by: PartyId) -> Result<(), Refusal> {
        let ticket = self.tickets.get(&act.ticket).map(|ticket| ticket.party);
        let invite = || self.extras.invites.get(&act.ticket).map(|invite| invite.party);
        if ticket.or_else(invite).ok_or(Refusal::NoSuchTicket)? != by {
            return Err(Refusal::WrongParty);
        }
        self.tickets.remove(&act.ticket);
        self.extras.invites.remove(&act.ticket);
        Ok(())
    }

    /// The ticket, if it lets this node in here and now and the node agrees. Nothing is used up yet.
    pub(super) fn check_ticket(&self, at: &At, act: &Admit) -> Result<Ticket, Refusal> {
        let ticket = self.tickets.get(&act.ticket).ok_or(Refusal::NoSuchTicket)?;
        if ticket.expires <= at.time {
            return Err(Refusal::TicketExpired);
        }
        if ticket.uses_left == 0 {
            return Err(Refusal::TicketUsedUp);
        }
        if !verify(&act.ticket.0, &join_bytes(at.mesh, act.node), &act.proof.0) {
            return Err(Refusal::BadProof);
        }
        // The party is the one that has the ticket now, whoever had it when the node signed.
        let agreed = consent_bytes(at.mesh, act.ticket, ticket.party);
        if !verify(&act.node.0, &agreed, &act.consent.0) {
            return Err(Refusal::BadConsent);
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
    use mesh_consensus::machine::{Outcome, StateMachine};

    use super::super::FOUNDERS_SEAT;
    use super::super::command::Act;
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
    fn nobody_joins_by_the_consent_of_another_key() {
        let mut scene = Scene::two_parties();
        // Party 2 has a ticket of its own and proves with it whatever it likes.
        scene.make_ticket(2, 2, 5);
        let right = scene.admit(2, 5);
        for key in [node(1), node(2), node(6), party(1), party(2), seed(2)] {
            let consent = sign_consent(&key, scene.mesh, ticket(2), party_id(2));
            let drawn_in = Admit { consent, ..right.clone() };
            assert_eq!(scene.act(&node(2), drawn_in), Err(Refusal::BadConsent));
        }
        let unsigned = Admit { consent: SignatureBytes([0; 64]), ..right.clone() };
        assert_eq!(scene.act(&node(2), unsigned), Err(Refusal::BadConsent));
        assert_eq!(scene.act(&node(2), right), Ok(()));
    }

    #[test]
    fn what_a_node_signs_for_another_purpose_is_no_consent() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let right = scene.admit(1, 5);
        let proof = sign_join(&node(5), scene.mesh, id(5));
        let same_words = [scene.mesh.0, ticket(1).0, party_id(1).0].concat();
        let bare = SignatureBytes(node(5).sign(&same_words).to_bytes());
        for consent in [proof, bare, right.proof] {
            let act = Admit { consent, ..right.clone() };
            assert_eq!(scene.act(&node(1), act), Err(Refusal::BadConsent));
        }
        // Nor is a consent a proof, were it by the ticket's own key.
        let proof = sign_consent(&seed(1), scene.mesh, ticket(1), party_id(1));
        let act = Admit { proof, ..right };
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadProof));
    }

    #[test]
    fn a_consent_to_one_ticket_is_none_to_another_of_the_same_party() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        scene.make_ticket(2, 1, 5);
        let seen = scene.admit(1, 5);
        let moved = Admit { consent: seen.consent, ..scene.admit(2, 5) };
        assert_eq!(scene.act(&node(1), moved), Err(Refusal::BadConsent));
        assert_eq!(scene.act(&node(1), seen), Ok(()));
    }

    #[test]
    fn a_consent_to_one_party_is_none_to_another() {
        let mut scene = Scene::two_parties();
        scene.make_ticket(1, 1, 5);
        scene.make_ticket(2, 2, 5);
        // A node on its way to party 1 is seen by party 2, which wants it for itself.
        let seen = scene.admit(1, 5);
        let stolen = Admit { consent: seen.consent, ..scene.admit(2, 5) };
        assert_eq!(scene.act(&node(2), stolen), Err(Refusal::BadConsent));
        // The ticket is right, and the node was told that it is party 2's.
        let consent = sign_consent(&node(5), scene.mesh, ticket(1), party_id(2));
        let misled = Admit { consent, ..seen.clone() };
        assert_eq!(scene.act(&node(2), misled), Err(Refusal::BadConsent));
        assert_eq!(scene.act(&node(2), seen), Ok(()));
        assert_eq!(scene.member(5).party, party_id(1));
    }

    #[test]
    fn a_consent_given_in_one_mesh_is_none_in_another() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let consent = sign_consent(&node(5), MeshId([9; 32]), ticket(1), party_id(1));
        let act = Admit { consent, ..scene.admit(1, 5) };
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadConsent));
    }

    #[test]
    fn an_old_join_is_not_replayed_by_a_party_that_registers_the_tickets_key_later() {
        let revoke = |scene: &mut Scene| {
            let act = TicketRevoke { ticket: ticket(1) };
            scene.signed(&node(1), &party(1), act).unwrap();
        };
        let use_up_and_clear = |scene: &mut Scene| {
            let act = scene.admit(1, 6);
            scene.act(&node(1), act).unwrap();
            scene.make_ticket(3, 1, 1);
        };
        let expire_and_clear = |scene: &mut Scene| {
            scene.time = scene.state.tickets()[&ticket(1)].expires;
            scene.make_ticket(3, 1, 1);
        };
        let ways: [fn(&mut Scene); 3] = [revoke, use_up_and_clear, expire_and_clear];
        for clear in ways {
            let mut scene = Scene::two_parties();
            scene.make_ticket(1, 1, 1);
            // Node 5 came too late, but its join was seen.
            let old = scene.admit(1, 5);
            clear(&mut scene);
            assert_eq!(scene.act(&node(2), old.clone()), Err(Refusal::NoSuchTicket));

            // Party 2 does not have the seed; to register the public key it does not need it.
            scene.make_ticket(1, 2, 5);
            assert_eq!(scene.act(&node(2), old.clone()), Err(Refusal::BadConsent));
            assert!(!scene.state.is_member(id(5)));
            assert_eq!(scene.state.tickets()[&ticket(1)].uses_left, 5);

            // Should the node itself want to, it may.
            let consent = sign_consent(&node(5), scene.mesh, ticket(1), party_id(2));
            assert_eq!(scene.act(&node(2), Admit { consent, ..old }), Ok(()));
        }
    }

    #[test]
    fn a_join_that_was_used_is_not_replayed_for_a_node_that_has_left() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let act = scene.admit(1, 5);
        assert_eq!(scene.act(&node(1), act.clone()), Ok(()));
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::AlreadyMember));
        scene.leave(5).unwrap();
        assert_eq!(scene.act(&node(1), act), Err(Refusal::Removed));
    }

    #[test]
    fn what_would_be_refused_is_foreseen_and_nothing_is_used_up_by_looking() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 1);
        let good = scene.admit(1, 5);
        let bad = SignatureBytes([0; 64]);
        let (unproven, unwilling) =
            (Admit { proof: bad, ..good.clone() }, Admit { consent: bad, ..good.clone() });
        for act in
            [scene.admit(2, 5), unproven, unwilling, good.clone(), good.clone(), scene.admit(1, 6)]
        {
            let at = scene.at(&node(1));
            let before = scene.state.clone();
            let foreseen = scene.state.foresee(&at, &Act::from(act.clone()));
            assert_eq!(scene.state, before);
            assert_eq!(scene.act(&node(1), act), foreseen);
        }
    }

    #[test]
    fn a_recovery_does_not_undo_what_a_newcomer_agreed_to() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let act = Act::from(scene.admit(1, 5)).command();
        scene.state.on_recovery(scene.index + 100, 1, FOUNDERS_SEAT);
        scene.index += 100;
        let at = At { epoch: 1, ..scene.at(&node(1)) };
        assert_eq!(scene.state.apply(&at, &act), Ok(Outcome::Done));
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
