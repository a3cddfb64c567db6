//! Invites: how somebody whom no party knows founds a party of its own.
//!
//! An invite is a ticket for a new party. Like a ticket it is an Ed25519 seed of which the state
//! keeps the public key; it is made by a party, with that party's signature, and lets in no node.
//! Whoever has it names a party, and both the invite and the new party's own key sign for it:
//!
//! ```text
//! proof   = by the invite's key     ┐ FOUND ‖ mesh (32) ‖ length of the name (1) ‖ the name
//! consent = by the new party's key  ┘       ‖ signing key (32) ‖ sealing key (32) ‖ first ticket (32)
//! ```
//!
//! The proof says that the invite is meant for this party; the consent, that nobody registers a key
//! that is somebody else's. [`Found`] then opens the request to take that party in, with the
//! inviting party's yes: it signed the invite. Whatever majority a further party needs, it still
//! needs. While the inviting party is absent, its invites open nothing.
//!
//! A party without a node has nobody to carry its words to the mesh, so it could make no ticket for
//! its first. It therefore names that ticket's key beforehand; the request keeps it, and when the
//! party is founded the ticket begins to count. All further nodes come by tickets that it signs.
//!
//! Neither signature names the epoch, for the reason given in `ticket.rs`. Used again, they say the
//! same again: a party that is there is not founded twice, and one that was turned away costs the
//! inviter another use.

use std::time::Duration;

use ed25519_dalek::{Signer, SigningKey};
use mesh_consensus::command::verify;
use mesh_consensus::id::{MeshId, PartyId, TicketId};
use mesh_consensus::machine::At;
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use super::Facts;
use super::command::{Found, Invite};
use super::name::Name;
use super::party::{SignatureBytes, check_key};
use super::refusal::Refusal;
use super::request::JointAct;
use super::ticket::Ticket;

/// How long a new party's first node may take to join, from the moment when the party is founded.
pub const FIRST_TICKET: Duration = Duration::from_secs(24 * 3600);

const FOUND: &[u8] = b"mesh/found/1\0";

/// An invite that was made and not taken back. Its key in the state is its public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Who invites.
    pub party: PartyId,
    /// The first moment, in mesh time, at which it no longer counts. Nor does a request that it
    /// opened.
    pub expires: Time,
    /// How many more parties may ask to be taken in. At zero it stays, like a ticket, until its
    /// party makes the next.
    pub uses_left: u32,
}

impl Invitation {
    /// Whether it would open a request at `now`.
    pub fn is_live(&self, now: Time) -> bool {
        self.expires > now && self.uses_left > 0
    }
}

/// Signs, with an invite's seed, that the party of this name and these keys may be founded.
pub fn sign_found(
    seed: &SigningKey,
    mesh: MeshId,
    name: &Name,
    signing: PartyId,
    sealing: &[u8; 32],
    ticket: TicketId,
) -> SignatureBytes {
    SignatureBytes(seed.sign(&found_bytes(mesh, name, signing, sealing, ticket)).to_bytes())
}

/// Signs, with a new party's own key, that it wants to be founded under this name.
pub fn sign_found_consent(
    party: &SigningKey,
    mesh: MeshId,
    name: &Name,
    sealing: &[u8; 32],
    ticket: TicketId,
) -> SignatureBytes {
    let signing = PartyId(party.verifying_key().to_bytes());
    SignatureBytes(party.sign(&found_bytes(mesh, name, signing, sealing, ticket)).to_bytes())
}

fn found_bytes(
    mesh: MeshId,
    name: &Name,
    signing: PartyId,
    sealing: &[u8; 32],
    ticket: TicketId,
) -> Vec<u8> {
    let name = name.as_str().as_bytes();
    let length = u8::try_from(name.len()).expect("a name has at most 63 bytes");
    [FOUND, &mesh.0, &[length], name, &signing.0, sealing, &ticket.0].concat()
}

impl Facts {
    pub(super) fn invite(&mut self, at: &At, act: Invite, by: PartyId) -> Result<(), Refusal> {
        let Invite { ticket, party, expires, uses } = act;
        self.check_terms(at, ticket, party, expires, uses, by)?;
        self.clear_tickets(party, at.time);
        self.extras.invites.insert(ticket, Invitation { party, expires, uses_left: uses });
        Ok(())
    }

    /// Who invited this party, and until when it may ask; if it was invited and wants to come.
    pub(super) fn check_found(&self, at: &At, act: &Found) -> Result<(PartyId, Time), Refusal> {
        let Found { invite, name, signing, sealing, ticket, proof, consent } = act;
        let invitation = self.extras.invites.get(invite).ok_or(Refusal::NoSuchTicket)?;
        if invitation.expires <= at.time {
            return Err(Refusal::TicketExpired);
        }
        if invitation.uses_left == 0 {
            return Err(Refusal::TicketUsedUp);
        }
        let (opener, expires) = (invitation.party, invitation.expires);
        self.check_present(opener)?;
        let words = found_bytes(at.mesh, name, *signing, sealing, *ticket);
        let act = JointAct::FoundParty { name: name.clone(), signing: *signing, sealing: *sealing };
        if self.requests.values().any(|request| request.act == act && request.expires > at.time) {
            return Err(Refusal::AlreadyAsked);
        }
        if !verify(&invite.0, &words, &proof.0) {
            return Err(Refusal::NotInvited);
        }
        if !verify(&signing.0, &words, &consent.0) {
            return Err(Refusal::NotWilling);
        }
        self.check_first(at, *ticket)?;
        Ok((opener, expires))
    }

    pub(super) fn found(&mut self, at: &At, act: Found) -> Result<(), Refusal> {
        let (opener, expires) = self.check_found(at, &act)?;
        let Found { invite, name, signing, sealing, ticket, .. } = act;
        let act = JointAct::FoundParty { name, signing, sealing };
        self.open_request(at, act, expires, opener, Some(ticket))?;
        if let Some(invitation) = self.extras.invites.get_mut(&invite) {
            invitation.uses_left = invitation.uses_left.saturating_sub(1);
        }
        Ok(())
    }

    /// Whether a party may come with a first ticket of this key. One that waits with a request which
    /// has expired no longer counts: it goes when the next request is opened.
    fn check_first(&self, at: &At, ticket: TicketId) -> Result<(), Refusal> {
        check_key(&ticket.0)?;
        let waits = self.extras.firsts.iter().any(|(id, first)| {
            *first == ticket && self.requests.get(id).is_some_and(|one| one.expires > at.time)
        });
        let is_known =
            self.tickets.contains_key(&ticket) || self.extras.invites.contains_key(&ticket);
        if waits || is_known { Err(Refusal::TicketTaken) } else { Ok(()) }
    }

    /// `party` has been founded: the ticket for its first node begins to count.
    pub(super) fn begin_first(&mut self, at: &At, party: PartyId, ticket: TicketId) {
        let expires = at.time.after(FIRST_TICKET);
        self.tickets.insert(ticket, Ticket { party, expires, uses_left: 1, worker: false });
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::machine::StateMachine;

    use super::super::command::{Act, RequestOpen, RequestSign, TicketRevoke};
    use super::super::request::{MAX_REQUESTS, RequestId};
    use super::super::testing::{
        FIRST, Scene, first, id, name, node, party, party_id, seed, ticket,
    };
    use super::super::ticket::{MAX_TICKETS, MAX_USES};
    use super::*;

    fn uses_left(scene: &Scene, n: u8) -> u32 {
        scene.state.invites()[&ticket(n)].uses_left
    }

    #[test]
    fn a_party_alone_invites_the_second_which_is_founded_at_once() {
        let mut scene = Scene::at_top();
        scene.make_invite(1, 1, 1);
        let act = scene.found_with(1, 2);
        // No party signs this: the first one signed the invite.
        assert_eq!(scene.act(&node(1), act), Ok(()));
        assert_eq!(scene.state.parties()[&party_id(2)].name, name("p2"));
        assert!(scene.state.requests().is_empty());
        assert_eq!(uses_left(&scene, 1), 0);
        // Its first node comes by the ticket that it named.
        let begun = scene.state.tickets()[&first(2)].clone();
        assert_eq!((begun.party, begun.uses_left, begun.worker), (party_id(2), 1, false));
        assert_eq!(begun.expires, scene.time.after(FIRST_TICKET));
        let admit = scene.admit(FIRST + 2, 7);
        assert_eq!(scene.act(&node(1), admit), Ok(()));
        assert_eq!(scene.member(7).party, party_id(2));
        let second = scene.admit(FIRST + 2, 8);
        assert_eq!(scene.act(&node(1), second), Err(Refusal::TicketUsedUp));
        // And all further ones by tickets that it makes.
        assert_eq!(scene.join(2, 8), Ok(()));
    }

    #[test]
    fn a_first_ticket_begins_to_count_when_its_party_is_founded_and_goes_with_a_no() {
        for yes in [true, false] {
            let mut scene = Scene::two_at_top();
            scene.make_invite(1, 1, 5);
            let act = scene.found_with(1, 3);
            scene.act(&node(1), act).unwrap();
            let early = scene.admit(FIRST + 3, 7);
            assert_eq!(scene.act(&node(1), early), Err(Refusal::NoSuchTicket));
            let request = RequestId::at(scene.index - 1, 0);
            let answer = RequestSign { request, yes };
            scene.signed(&node(2), &party(2), answer).unwrap();
            assert!(scene.state.facts.extras.firsts.is_empty());
            assert_eq!(scene.state.tickets().contains_key(&first(3)), yes);
        }
    }

    #[test]
    fn a_first_ticket_has_a_key_of_its_own() {
        let mut scene = Scene::two_at_top();
        scene.make_invite(1, 1, 9);
        scene.make_ticket(2, 1, 1);
        let with = |scene: &Scene, n: u8, first: TicketId| {
            let Found { name, signing, sealing, .. } = scene.found_with(1, n);
            let proof = sign_found(&seed(1), scene.mesh, &name, signing, &sealing, first);
            let consent = sign_found_consent(&party(n), scene.mesh, &name, &sealing, first);
            Found { invite: ticket(1), name, signing, sealing, ticket: first, proof, consent }
        };
        for taken in [ticket(1), ticket(2)] {
            let act = with(&scene, 3, taken);
            assert_eq!(scene.act(&node(1), act), Err(Refusal::TicketTaken));
        }
        let weak = with(&scene, 3, TicketId([2; 32]));
        assert_eq!(scene.act(&node(1), weak), Err(Refusal::BadKey));
        // While it waits, nobody else has it: not another party to come, nor one that is there.
        let act = scene.found_with(1, 3);
        scene.act(&node(1), act).unwrap();
        let other = with(&scene, 4, first(3));
        assert_eq!(scene.act(&node(1), other.clone()), Err(Refusal::TicketTaken));
        let theirs = scene.ticket_new(FIRST + 3, 2, 1);
        assert_eq!(scene.signed(&node(2), &party(2), theirs), Err(Refusal::TicketTaken));
        // Once the request has expired it is free, and the snapshot can still be read.
        scene.time = scene.state.invites()[&ticket(1)].expires;
        scene.make_invite(3, 1, 1);
        let proof =
            sign_found(&seed(3), scene.mesh, &other.name, other.signing, &other.sealing, first(3));
        let other = Found { invite: ticket(3), proof, ..other };
        assert_eq!(scene.act(&node(1), other), Ok(()));
        let mut read = super::super::State::blank(super::super::level::LEVEL);
        read.restore(&scene.state.snapshot()).unwrap();
        assert_eq!(read, scene.state);
    }

    #[test]
    fn among_several_parties_a_majority_must_still_say_yes() {
        let mut scene = Scene::of_parties(3);
        scene.raise_to(3);
        scene.make_invite(1, 2, 5);
        let act = scene.found_with(1, 4);
        // Any member may carry it, also one of a party that has no part in it.
        assert_eq!(scene.act(&node(3), act.clone()), Ok(()));
        let request = RequestId::at(scene.index, 0);
        let open = &scene.state.requests()[&request];
        assert_eq!((open.opener, open.answers.len()), (party_id(2), 1));
        assert_eq!(open.expires, scene.state.invites()[&ticket(1)].expires);
        assert!(!scene.state.parties().contains_key(&party_id(4)));
        // The inviter has said yes already; asking again is told apart, and costs nothing.
        let yes = RequestSign { request, yes: true };
        assert_eq!(scene.signed(&node(1), &party(2), yes.clone()), Err(Refusal::AlreadySigned));
        assert_eq!(scene.act(&node(3), act), Err(Refusal::AlreadyAsked));
        assert_eq!(uses_left(&scene, 1), 4);
        assert_eq!(scene.signed(&node(1), &party(3), yes), Ok(()));
        assert!(scene.state.parties().contains_key(&party_id(4)));
    }

    #[test]
    fn an_invite_is_made_and_taken_back_by_its_own_party_only() {
        let mut scene = Scene::two_at_top();
        let act = scene.invite(1, 1, 1);
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(2), &party(2), act.clone()), Err(Refusal::WrongParty));
        assert_eq!(scene.signed(&node(9), &party(1), act.clone()), Err(Refusal::NotMember));
        assert_eq!(scene.signed(&node(2), &party(1), act), Ok(()));
        let revoke = TicketRevoke { ticket: ticket(1) };
        assert_eq!(scene.act(&node(1), revoke.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(2), &party(2), revoke.clone()), Err(Refusal::WrongParty));
        assert_eq!(scene.signed(&node(2), &party(1), revoke.clone()), Ok(()));
        assert_eq!(scene.signed(&node(2), &party(1), revoke), Err(Refusal::NoSuchTicket));
        let late = scene.found_with(1, 3);
        assert_eq!(scene.act(&node(1), late), Err(Refusal::NoSuchTicket));
    }

    #[test]
    fn an_invite_with_odd_terms_is_refused() {
        let mut scene = Scene::at_top();
        for uses in [0, MAX_USES + 1, u32::MAX] {
            let act = scene.invite(1, 1, uses);
            assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::BadUses));
        }
        let act = Invite { expires: scene.time, ..scene.invite(1, 1, 1) };
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::BadExpiry));
        let act = Invite { ticket: TicketId([2; 32]), ..scene.invite(1, 1, 1) };
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::BadKey));
    }

    #[test]
    fn a_key_is_not_both_a_ticket_and_an_invite() {
        let mut scene = Scene::two_at_top();
        scene.make_ticket(1, 1, 1);
        scene.make_invite(2, 1, 1);
        for of in [1, 2] {
            let invite = scene.invite(1, of, 1);
            assert_eq!(scene.signed(&node(1), &party(of), invite), Err(Refusal::TicketTaken));
            let again = scene.invite(2, of, 1);
            assert_eq!(scene.signed(&node(1), &party(of), again), Err(Refusal::TicketTaken));
            let ticket = scene.ticket_new(2, of, 1);
            assert_eq!(scene.signed(&node(1), &party(of), ticket), Err(Refusal::TicketTaken));
        }
    }

    #[test]
    fn an_invite_admits_no_node_and_a_ticket_founds_no_party() {
        let mut scene = Scene::at_top();
        scene.make_ticket(1, 1, 1);
        scene.make_invite(2, 1, 1);
        let admit = scene.admit(2, 5);
        assert_eq!(scene.act(&node(1), admit), Err(Refusal::NoSuchTicket));
        let found = scene.found_with(1, 2);
        assert_eq!(scene.act(&node(1), found), Err(Refusal::NoSuchTicket));
        assert!(!scene.state.is_member(id(5)));
    }

    #[test]
    fn the_invites_key_signs_for_one_party_as_it_is() {
        let mut scene = Scene::at_top();
        scene.make_invite(1, 1, 5);
        let right = scene.found_with(1, 2);
        let Found { name: label, signing, sealing, .. } = right.clone();
        // By another key; in another mesh; for other words.
        for key in [seed(2), party(1), party(2), node(1)] {
            let proof = sign_found(&key, scene.mesh, &label, signing, &sealing, first(2));
            let act = Found { proof, ..right.clone() };
            assert_eq!(scene.act(&node(1), act), Err(Refusal::NotInvited));
        }
        let proof = sign_found(&seed(1), MeshId([9; 32]), &label, signing, &sealing, first(2));
        let elsewhere = Found { proof, ..right.clone() };
        assert_eq!(scene.act(&node(1), elsewhere), Err(Refusal::NotInvited));
        let changes: [fn(&mut Found); 4] = [
            |act| act.name = name("other"),
            |act| act.signing = party_id(3),
            |act| act.sealing[0] ^= 1,
            |act| act.ticket = first(3),
        ];
        for change in changes {
            let mut act = right.clone();
            change(&mut act);
            assert_eq!(scene.act(&node(1), act), Err(Refusal::NotInvited));
        }
        assert_eq!(uses_left(&scene, 1), 5);
        assert_eq!(scene.act(&node(1), right), Ok(()));
    }

    #[test]
    fn nobody_registers_a_key_that_is_somebody_elses() {
        let mut scene = Scene::at_top();
        scene.make_invite(1, 1, 5);
        let right = scene.found_with(1, 2);
        for key in [seed(1), party(1), party(3), node(1)] {
            let consent =
                sign_found_consent(&key, scene.mesh, &right.name, &right.sealing, right.ticket);
            let act = Found { consent, ..right.clone() };
            assert_eq!(scene.act(&node(1), act), Err(Refusal::NotWilling));
        }
        let act = Found { consent: right.proof, ..right.clone() };
        assert_eq!(scene.act(&node(1), act), Err(Refusal::NotWilling));
        assert_eq!(scene.act(&node(9), right), Err(Refusal::NotMember));
    }

    #[test]
    fn an_invite_expires_and_is_used_up_like_a_ticket() {
        let mut scene = Scene::at_top();
        scene.make_invite(1, 1, 1);
        scene.make_invite(2, 1, 1);
        let (first, second) = (scene.found_with(1, 2), scene.found_with(1, 3));
        assert_eq!(scene.act(&node(1), first), Ok(()));
        assert_eq!(scene.act(&node(1), second), Err(Refusal::TicketUsedUp));
        scene.time = scene.state.invites()[&ticket(2)].expires;
        let late = scene.found_with(2, 3);
        assert_eq!(scene.act(&node(1), late), Err(Refusal::TicketExpired));
        // The next ticket clears both away.
        scene.make_ticket(3, 1, 1);
        assert!(scene.state.invites().is_empty());
    }

    #[test]
    fn what_cannot_be_founded_costs_no_use() {
        let mut scene = Scene::two_at_top();
        scene.make_invite(1, 1, 5);
        let taken = scene.found_with(1, 2);
        assert_eq!(scene.act(&node(1), taken), Err(Refusal::PartyTaken));
        let namesake = scene.found_as(1, 3, "p2");
        assert_eq!(scene.act(&node(1), namesake), Err(Refusal::NameTaken));
        let reserved = scene.found_as(1, 3, "each");
        assert_eq!(scene.act(&node(1), reserved), Err(Refusal::NameReserved));
        for n in 0..MAX_REQUESTS {
            let expires = scene.time.after(Duration::from_secs(60));
            let act = JointAct::FoundParty {
                name: name(&format!("q{n}")),
                signing: party_id(50),
                sealing: [0; 32],
            };
            scene.signed(&node(1), &party(1), RequestOpen { act, expires }).unwrap();
        }
        let many = scene.found_with(1, 3);
        assert_eq!(scene.act(&node(1), many), Err(Refusal::TooManyRequests));
        assert_eq!(uses_left(&scene, 1), 5);
    }

    #[test]
    fn who_was_turned_away_may_ask_again_for_another_use() {
        let mut scene = Scene::two_at_top();
        scene.make_invite(1, 1, 2);
        let act = Act::from(scene.found_with(1, 3));
        scene.act(&node(1), act.clone()).unwrap();
        let no = RequestSign { request: RequestId::at(scene.index, 0), yes: false };
        scene.signed(&node(2), &party(2), no).unwrap();
        assert!(scene.state.requests().is_empty());
        assert_eq!(scene.act(&node(1), act.clone()), Ok(()));
        let no = RequestSign { request: RequestId::at(scene.index, 0), yes: false };
        scene.signed(&node(2), &party(2), no).unwrap();
        assert_eq!(scene.act(&node(1), act), Err(Refusal::TicketUsedUp));
    }

    #[test]
    fn an_invite_of_a_party_that_has_gone_opens_nothing() {
        let mut scene = Scene::two_at_top();
        scene.make_invite(1, 2, 2);
        scene.leave(2).unwrap();
        let act = Act::from(scene.found_with(1, 3));
        let at = scene.at(&node(1));
        assert_eq!(scene.state.foresee(&at, &act), Err(Refusal::PartyAbsent));
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::PartyAbsent));
        assert_eq!(uses_left(&scene, 1), 2);
        scene.join(2, 7).unwrap();
        assert_eq!(scene.act(&node(1), act), Ok(()));
    }

    #[test]
    fn a_first_ticket_begins_to_count_also_if_the_last_who_was_asked_goes() {
        let mut scene = Scene::two_at_top();
        scene.make_invite(1, 1, 1);
        let act = scene.found_with(1, 3);
        scene.act(&node(1), act).unwrap();
        scene.leave(2).unwrap();
        assert!(scene.state.tickets().contains_key(&first(3)));
        assert!(scene.state.facts.extras.firsts.is_empty());
    }

    #[test]
    fn tickets_and_invites_share_one_bound() {
        let mut scene = Scene::two_at_top();
        let expires = scene.time.after(Duration::from_secs(60));
        for n in 0..MAX_TICKETS - 1 {
            // Only the map is looked at, so these need not be keys.
            let mut bytes = [7; 32];
            bytes[..8].copy_from_slice(&u64::try_from(n).unwrap().to_le_bytes());
            let full = Invitation { party: party_id(1), expires, uses_left: 1 };
            scene.state.facts.extras.invites.insert(TicketId(bytes), full);
        }
        scene.make_ticket(1, 1, 1);
        let ticket = scene.ticket_new(2, 1, 1);
        assert_eq!(scene.signed(&node(1), &party(1), ticket), Err(Refusal::TooManyTickets));
        let invite = scene.invite(2, 1, 1);
        assert_eq!(scene.signed(&node(1), &party(1), invite), Err(Refusal::TooManyTickets));
        scene.make_invite(2, 2, 1);
        scene.time = expires;
        scene.make_invite(3, 1, 1);
        assert_eq!(scene.state.invites().len(), 2);
    }
}
