//! Requests: what needs the consent of a majority of the parties.
//!
//! ```text
//!               yes from more than half
//! RequestOpen ─┬──────────────────────► granted: done, and gone
//!  (the first  ├──────────────────────► denied: half or more have said no
//!       yes)   ├──────────────────────► withdrawn, by the party that opened it
//!              ├──────────────────────► void: what it asks for has lost its point
//!              └──────────────────────► expired, by mesh time
//! ```
//!
//! What became of the latest ones is kept: see [`super::decided`].
//!
//! "Half" is of the parties that are *present* when the answer comes: those with a node that is a
//! member and not leaving. A party whose last node has gone, or whose first has yet to come, has
//! nobody to ask, and would keep the others from ever agreeing; so it has no say. In a mesh where one
//! party is present the opening is itself a majority, and the request is carried out at once.
//!
//! What a party has answered goes with its last node. The answers of the others may then be enough,
//! so what is open is settled anew whenever a party goes. One that comes makes a majority larger and
//! decides nothing.

use std::collections::BTreeMap;
use std::fmt;

use mesh_consensus::id::{NodeId, PartyId, TicketId};
use mesh_consensus::machine::At;
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use super::command::{RequestOpen, RequestSign, RequestWithdraw};
use super::decided::Decision;
use super::name::Name;
use super::party::Party;
use super::refusal::Refusal;
use super::share::{self, Share};
use super::{Facts, Moment};

/// A party has at most this many requests open. A bound for all parties together would let one
/// fill it, and so keep the others from removing its nodes.
pub const MAX_REQUESTS: usize = 16;

/// What only a majority of the parties may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JointAct {
    /// Takes in a further party.
    FoundParty {
        /// What it will be called.
        name: Name,
        /// Its signing key, which is its id.
        signing: PartyId,
        /// Its sealing key.
        sealing: [u8; 32],
    },
    /// Removes a node, whosever it is.
    RemoveNode {
        /// Which one.
        node: NodeId,
    },
    /// Says what a party is to have of what all share. From level 7 on.
    Allow {
        /// Which one.
        party: PartyId,
        /// What.
        share: Share,
    },
}

impl JointAct {
    /// The level from which on there is such a thing.
    pub(super) fn since(&self) -> u16 {
        match self {
            JointAct::FoundParty { .. } | JointAct::RemoveNode { .. } => 1,
            JointAct::Allow { .. } => share::SINCE,
        }
    }
}

/// Names a request: the place of the command that opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The request that was opened at this place. A batch has at most 1024 commands, so ten bits
    /// hold the position.
    pub fn at(index: u64, position: u32) -> Self {
        Self((index << 10) | u64::from(position & 1023))
    }

    /// The index of the entry that opened it.
    pub fn index(self) -> u64 {
        self.0 >> 10
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request that waits for answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What is asked for. It could be done when the request was opened.
    pub act: JointAct,
    /// Who asks.
    pub opener: PartyId,
    /// When it was opened.
    pub opened: Moment,
    /// The first moment, in mesh time, at which it can no longer be answered.
    pub expires: Time,
    /// The answers so far, the opener's yes among them. Of parties that are present alone.
    pub answers: BTreeMap<PartyId, bool>,
}

impl Request {
    /// Where it stands while so many parties have a say.
    fn verdict(&self, parties: usize) -> Verdict {
        let yes = self.answers.values().filter(|yes| **yes).count();
        verdict(parties, yes, self.answers.len() - yes)
    }
}

/// Where a vote stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Open,
}

/// Where a vote of `parties` stands after so many answers.
fn verdict(parties: usize, yes: usize, no: usize) -> Verdict {
    if 2 * yes > parties {
        Verdict::Passed
    } else if 2 * no >= parties {
        // Even if all the others said yes, they would not be more than half.
        Verdict::Failed
    } else {
        Verdict::Open
    }
}

impl Facts {
    pub(super) fn request_open(
        &mut self,
        at: &At,
        act: RequestOpen,
        by: PartyId,
    ) -> Result<(), Refusal> {
        self.check_present(by)?;
        self.open_request(at, act.act, act.expires, by, None)
    }

    /// Opens a request in the name of `by`, which is present and whose yes it carries. A party to
    /// come may name the ticket for its first node.
    pub(super) fn open_request(
        &mut self,
        at: &At,
        act: JointAct,
        expires: Time,
        by: PartyId,
        first: Option<TicketId>,
    ) -> Result<(), Refusal> {
        if expires <= at.time {
            return Err(Refusal::BadExpiry);
        }
        self.check_joint(&act)?;
        let own = self.requests.values().filter(|r| r.opener == by && r.expires > at.time);
        if own.count() >= MAX_REQUESTS {
            return Err(Refusal::TooManyRequests);
        }
        self.close(at, Decision::Expired, |request| request.expires <= at.time);
        self.forget_firsts();
        let request = Request {
            act,
            opener: by,
            opened: Moment::of(at),
            expires,
            answers: BTreeMap::from([(by, true)]),
        };
        self.settle(at, RequestId::at(at.index, at.position), request, first)?;
        self.settle_others(at);
        Ok(())
    }

    pub(super) fn request_sign(
        &mut self,
        at: &At,
        act: &RequestSign,
        by: PartyId,
    ) -> Result<(), Refusal> {
        let request = self.requests.get(&act.request).ok_or(Refusal::NoSuchRequest)?;
        if request.expires <= at.time {
            return Err(Refusal::RequestExpired);
        }
        self.check_present(by)?;
        if request.answers.contains_key(&by) {
            return Err(Refusal::AlreadySigned);
        }
        let mut request = request.clone();
        request.answers.insert(by, act.yes);
        let first = self.extras.firsts.get(&act.request).copied();
        self.settle(at, act.request, request, first)?;
        self.settle_others(at);
        Ok(())
    }

    /// Takes a request back. Only who opened it may: for the others there is a no.
    pub(super) fn request_withdraw(
        &mut self,
        at: &At,
        act: &RequestWithdraw,
        by: PartyId,
    ) -> Result<(), Refusal> {
        let request = self.requests.get(&act.request).ok_or(Refusal::NoSuchRequest)?;
        if request.opener != by {
            return Err(Refusal::WrongParty);
        }
        if request.expires <= at.time {
            return Err(Refusal::RequestExpired);
        }
        let request = request.clone();
        self.requests.remove(&act.request);
        self.remember(at, act.request, request, Decision::Withdrawn);
        self.forget_firsts();
        Ok(())
    }

    /// Does, drops or keeps a request, as its answers demand. Refuses, and changes nothing, where
    /// what is asked for has become impossible.
    fn settle(
        &mut self,
        at: &At,
        id: RequestId,
        request: Request,
        first: Option<TicketId>,
    ) -> Result<(), Refusal> {
        match request.verdict(self.present_parties().len()) {
            Verdict::Passed => {
                self.check_joint(&request.act)?;
                self.requests.remove(&id);
                let act = request.act.clone();
                self.remember(at, id, request, Decision::Granted);
                self.carry_out(at, act, first);
            }
            Verdict::Failed => {
                self.requests.remove(&id);
                self.remember(at, id, request, Decision::Denied);
            }
            Verdict::Open => {
                self.requests.insert(id, request);
                self.extras.firsts.extend(first.map(|first| (id, first)));
            }
        }
        self.forget_firsts();
        Ok(())
    }

    /// Settles what the answers that are there have decided, once a party may have gone: one by one,
    /// as each may take the last node of a further party. What has become impossible stays open.
    pub(super) fn settle_others(&mut self, at: &At) {
        while let Some((id, request)) = self.decided(at) {
            let first = self.extras.firsts.get(&id).copied();
            if self.settle(at, id, request, first).is_err() {
                return;
            }
        }
    }

    /// The first request that would be done or dropped now.
    fn decided(&self, at: &At) -> Option<(RequestId, Request)> {
        let parties = self.present_parties().len();
        let is_decided = |request: &Request| match request.verdict(parties) {
            Verdict::Passed => self.check_joint(&request.act).is_ok(),
            Verdict::Failed => true,
            Verdict::Open => false,
        };
        let mut open = self.requests.iter().filter(|(_, request)| request.expires > at.time);
        let (id, request) = open.find(|(_, request)| is_decided(request))?;
        Some((*id, request.clone()))
    }

    /// A party has no say any more: nor has what it has said.
    pub(super) fn forget_words(&mut self, party: PartyId) {
        for request in self.requests.values_mut() {
            request.answers.remove(&party);
        }
        for member in self.members.values_mut() {
            member.down_by.remove(&party);
        }
    }

    /// Drops the first tickets whose requests have gone.
    fn forget_firsts(&mut self) {
        self.extras.firsts.retain(|id, _| self.requests.contains_key(id));
    }

    fn check_joint(&self, act: &JointAct) -> Result<(), Refusal> {
        match act {
            JointAct::FoundParty { name, signing, .. } => self.check_new_party(name, *signing),
            JointAct::RemoveNode { node } => self.check_removal(*node),
            JointAct::Allow { party, share } => self.check_share(*party, share),
        }
    }

    fn carry_out(&mut self, at: &At, act: JointAct, first: Option<TicketId>) {
        match act {
            JointAct::FoundParty { name, signing, sealing } => {
                // Other requests for the same name or key have lost their point.
                self.close(at, Decision::Void, |request| match &request.act {
                    JointAct::FoundParty { name: n, signing: s, .. } => *n == name || *s == signing,
                    JointAct::RemoveNode { .. } | JointAct::Allow { .. } => false,
                });
                self.parties.insert(signing, Party { name, sealing, founded: Moment::of(at) });
                if let Some(ticket) = first {
                    self.begin_first(at, signing, ticket);
                }
            }
            JointAct::RemoveNode { node } => self.remove(at, node),
            JointAct::Allow { party, share } => self.set_share(party, share),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use mesh_consensus::machine::StateMachine;

    use super::super::command::Act;
    use super::super::party::{MAX_PARTIES, RESERVED_NAME};
    use super::super::testing::{Scene, id, name, node, party, party_id};
    use super::*;

    fn found(scene: &Scene, label: &str, n: u8) -> RequestOpen {
        let act =
            JointAct::FoundParty { name: name(label), signing: party_id(n), sealing: [n; 32] };
        RequestOpen { act, expires: scene.time.after(Duration::from_secs(60)) }
    }

    #[test]
    fn a_majority_is_more_than_half_and_half_of_noes_is_the_end() {
        use Verdict::{Failed, Open, Passed};
        let table = [
            (1, 1, 0, Passed),
            (1, 0, 1, Failed),
            (2, 1, 0, Open),
            (2, 2, 0, Passed),
            (2, 1, 1, Failed),
            (3, 1, 0, Open),
            (3, 1, 1, Open),
            (3, 2, 0, Passed),
            (3, 2, 1, Passed),
            (3, 1, 2, Failed),
            (4, 2, 0, Open),
            (4, 2, 1, Open),
            (4, 3, 0, Passed),
            (4, 2, 2, Failed),
            (4, 3, 1, Passed),
        ];
        for (parties, yes, no, want) in table {
            assert_eq!(verdict(parties, yes, no), want, "{yes} yes, {no} no of {parties}");
        }
    }

    #[test]
    fn a_party_alone_founds_the_second_at_once() {
        let mut scene = Scene::new();
        let act = found(&scene, "beta", 2);
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(1), &party(2), act.clone()), Err(Refusal::NoSuchParty));
        assert_eq!(scene.signed(&node(1), &party(1), act), Ok(()));
        assert_eq!(scene.state.parties()[&party_id(2)].name, name("beta"));
        assert!(scene.state.requests().is_empty());
        // The new party lets in its first node by itself.
        assert_eq!(scene.join(2, 7), Ok(()));
        assert_eq!(scene.member(7).party, party_id(2));
    }

    #[test]
    fn of_n_parties_so_many_must_say_yes() {
        // Further parties are founded on the way: the fifth by three of four, and so on.
        for (parties, needed) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            let mut scene = Scene::of_parties(parties);
            let act = found(&scene, "another", 99);
            scene.signed(&node(1), &party(1), act).unwrap();
            let request = RequestId::at(scene.index, 0);
            for n in 2..=needed {
                assert!(!scene.state.parties().contains_key(&party_id(99)), "{n} of {parties}");
                let sign = RequestSign { request, yes: true };
                scene.signed(&node(1), &party(n), sign).unwrap();
            }
            assert!(scene.state.parties().contains_key(&party_id(99)), "{needed} of {parties}");
            assert!(scene.state.requests().is_empty());
        }
    }

    #[test]
    fn a_node_of_another_party_is_removed_by_a_majority_only() {
        let mut scene = Scene::of_parties(3);
        let act = RequestOpen {
            act: JointAct::RemoveNode { node: id(3) },
            expires: scene.time.after(Duration::from_secs(60)),
        };
        scene.signed(&node(1), &party(1), act).unwrap();
        let request = RequestId::at(scene.index, 0);
        assert!(scene.state.is_member(id(3)));
        let sign = RequestSign { request, yes: true };
        // The opener has one voice, a stranger and an unsigned word have none.
        assert_eq!(scene.act(&node(1), sign.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(1), &party(1), sign.clone()), Err(Refusal::AlreadySigned));
        assert_eq!(scene.signed(&node(1), &party(9), sign.clone()), Err(Refusal::NoSuchParty));
        assert_eq!(scene.signed(&node(9), &party(2), sign.clone()), Err(Refusal::NotMember));
        assert_eq!(scene.signed(&node(1), &party(2), sign.clone()), Ok(()));
        assert!(scene.state.is_removed(id(3)));
        assert_eq!(scene.signed(&node(1), &party(3), sign), Err(Refusal::NoSuchRequest));
    }

    #[test]
    fn a_request_that_can_no_longer_pass_is_dropped() {
        let mut scene = Scene::of_parties(3);
        let act = found(&scene, "delta", 4);
        scene.signed(&node(1), &party(1), act).unwrap();
        let no = RequestSign { request: RequestId::at(scene.index, 0), yes: false };
        scene.signed(&node(2), &party(2), no.clone()).unwrap();
        assert_eq!(scene.signed(&node(2), &party(2), no.clone()), Err(Refusal::AlreadySigned));
        assert_eq!(scene.state.requests().len(), 1);
        scene.signed(&node(3), &party(3), no).unwrap();
        assert!(scene.state.requests().is_empty());
        assert!(!scene.state.parties().contains_key(&party_id(4)));
    }

    #[test]
    fn a_request_expires_by_mesh_time() {
        let mut scene = Scene::of_parties(2);
        let mut late = found(&scene, "gamma", 3);
        late.expires = scene.time;
        assert_eq!(scene.signed(&node(1), &party(1), late), Err(Refusal::BadExpiry));
        let act = found(&scene, "gamma", 3);
        let expires = act.expires;
        scene.signed(&node(1), &party(1), act).unwrap();
        let sign = RequestSign { request: RequestId::at(scene.index, 0), yes: true };
        scene.time = expires;
        assert_eq!(scene.signed(&node(2), &party(2), sign), Err(Refusal::RequestExpired));
        // The next one to be opened clears it away.
        let act = found(&scene, "gamma", 3);
        scene.signed(&node(1), &party(1), act).unwrap();
        assert_eq!(scene.state.requests().len(), 1);
    }

    #[test]
    fn one_party_cannot_fill_the_room_of_the_others() {
        let mut scene = Scene::of_parties(3);
        for n in 0..MAX_REQUESTS {
            let act = found(&scene, &format!("q{n}"), 50);
            scene.signed(&node(1), &party(1), act).unwrap();
        }
        let act = found(&scene, "one-more", 50);
        assert_eq!(scene.signed(&node(1), &party(1), act.clone()), Err(Refusal::TooManyRequests));
        assert_eq!(scene.signed(&node(2), &party(2), act), Ok(()));
        scene.time = scene.time.after(Duration::from_secs(60));
        let act = found(&scene, "later", 50);
        assert_eq!(scene.signed(&node(1), &party(1), act), Ok(()));
        assert_eq!(scene.state.requests().len(), 1);
    }

    #[test]
    fn a_party_that_could_not_be_is_not_founded() {
        let mut scene = Scene::of_parties(2);
        let mut open = |label: &str, n| {
            let act = found(&scene, label, n);
            scene.signed(&node(1), &party(1), act)
        };
        assert_eq!(open("p2", 7), Err(Refusal::NameTaken));
        assert_eq!(open("other", 2), Err(Refusal::PartyTaken));
        assert_eq!(open(RESERVED_NAME, 7), Err(Refusal::NameReserved));
        let act = JointAct::FoundParty {
            name: name("other"),
            signing: PartyId([2; 32]),
            sealing: [0; 32],
        };
        let open = RequestOpen { act, expires: scene.time.after(Duration::from_secs(60)) };
        assert_eq!(scene.signed(&node(1), &party(1), open), Err(Refusal::BadKey));
    }

    #[test]
    fn a_mesh_has_a_bounded_number_of_parties() {
        let mut scene = Scene::new();
        let like = scene.state.parties()[&party_id(1)].clone();
        for n in 1..MAX_PARTIES {
            let key = PartyId([u8::try_from(n).unwrap(); 32]);
            let party = Party { name: name(&format!("x{n}")), ..like.clone() };
            scene.state.facts.parties.insert(key, party);
        }
        let act = found(&scene, "one-more", 200);
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::TooManyParties));
    }

    #[test]
    fn what_has_lost_its_point_is_dropped() {
        let mut scene = Scene::of_parties(3);
        scene.open_removal(1, 3);
        scene.open_removal(2, 3);
        scene.open_removal(2, 1);
        scene.leave(3).unwrap();
        assert_eq!(scene.state.requests().len(), 1);
        // Two requests for one name: the second goes when the first is granted.
        let act = found(&scene, "delta", 4);
        scene.signed(&node(1), &party(1), act).unwrap();
        let first = RequestId::at(scene.index, 0);
        let act = found(&scene, "delta", 5);
        scene.signed(&node(2), &party(2), act).unwrap();
        let sign = RequestSign { request: first, yes: true };
        scene.signed(&node(2), &party(2), sign).unwrap();
        assert!(scene.state.parties().contains_key(&party_id(4)));
        assert_eq!(scene.state.requests().len(), 1);
    }

    #[test]
    fn a_removal_that_has_become_impossible_is_refused_and_changes_nothing() {
        let mut scene = Scene::of_parties(2);
        scene.open_removal(1, 2);
        let request = RequestId::at(scene.index, 0);
        scene.report(1, |report| report.votes = false);
        let sign = Act::from(RequestSign { request, yes: true });
        assert_eq!(scene.signed(&node(2), &party(2), sign.clone()), Err(Refusal::LastMember));
        assert!(scene.state.requests().contains_key(&request));
        scene.report(1, |report| report.votes = true);
        assert_eq!(scene.signed(&node(2), &party(2), sign), Ok(()));
        let absent = RequestOpen {
            act: JointAct::RemoveNode { node: id(2) },
            expires: scene.time.after(Duration::from_secs(60)),
        };
        assert_eq!(scene.signed(&node(1), &party(1), absent), Err(Refusal::NoSuchMember));
    }

    #[test]
    fn a_node_removed_by_a_majority_leaves_when_raft_lets_it_go() {
        let mut scene = Scene::of_parties(2);
        scene.seat_voters(&[1, 2]);
        scene.open_removal(1, 2);
        let sign = RequestSign { request: RequestId::at(scene.index, 0), yes: true };
        scene.signed(&node(2), &party(2), sign).unwrap();
        assert!(scene.member(2).leaving && !scene.state.is_removed(id(2)));
        scene.seat_voters(&[1]);
        assert!(scene.state.is_removed(id(2)));
    }

    #[test]
    fn a_party_without_a_node_has_no_say_and_holds_up_nobody() {
        let mut scene = Scene::of_parties(4);
        scene.leave(4).unwrap();
        let act = found(&scene, "another", 99);
        assert_eq!(scene.signed(&node(1), &party(4), act.clone()), Err(Refusal::PartyAbsent));
        scene.signed(&node(1), &party(1), act).unwrap();
        let sign = RequestSign { request: RequestId::at(scene.index, 0), yes: true };
        assert_eq!(scene.signed(&node(1), &party(4), sign.clone()), Err(Refusal::PartyAbsent));
        // Two of four would be too few.
        assert_eq!(scene.signed(&node(2), &party(2), sign), Ok(()));
        assert!(scene.state.parties().contains_key(&party_id(99)));
        // Nor does the new party count, until its first node has come.
        scene.open_removal(1, 3);
        let sign = RequestSign { request: RequestId::at(scene.index, 0), yes: true };
        assert_eq!(scene.signed(&node(1), &party(99), sign.clone()), Err(Refusal::PartyAbsent));
        assert_eq!(scene.signed(&node(2), &party(2), sign), Ok(()));
        assert!(scene.state.is_removed(id(3)));
        let present = BTreeSet::from([party_id(1), party_id(2)]);
        assert_eq!(scene.state.present_parties(), present);
        assert_eq!(scene.state.parties().len(), 5);
    }

    #[test]
    fn a_party_whose_last_node_is_leaving_has_no_say_though_it_still_votes() {
        let mut scene = Scene::of_parties(2);
        scene.seat_voters(&[1, 2]);
        scene.leave(2).unwrap();
        assert!(scene.member(2).leaving);
        let act = found(&scene, "gamma", 3);
        assert_eq!(scene.signed(&node(1), &party(2), act.clone()), Err(Refusal::PartyAbsent));
        assert_eq!(scene.signed(&node(1), &party(1), act), Ok(()));
        assert!(scene.state.parties().contains_key(&party_id(3)));
    }

    #[test]
    fn a_party_that_comes_back_has_its_say_again() {
        let mut scene = Scene::of_parties(2);
        scene.make_ticket(5, 2, 1);
        scene.leave(2).unwrap();
        let admit = scene.admit(5, 7);
        scene.act(&node(1), admit).unwrap();
        let act = found(&scene, "gamma", 3);
        scene.signed(&node(1), &party(1), act).unwrap();
        assert!(!scene.state.parties().contains_key(&party_id(3)));
        let sign = RequestSign { request: RequestId::at(scene.index, 0), yes: true };
        assert_eq!(scene.signed(&node(7), &party(2), sign), Ok(()));
        assert!(scene.state.parties().contains_key(&party_id(3)));
    }

    #[test]
    fn what_waited_for_a_party_is_settled_when_it_goes() {
        let mut scene = Scene::of_parties(2);
        let act = found(&scene, "gamma", 3);
        scene.signed(&node(1), &party(1), act).unwrap();
        scene.leave(2).unwrap();
        assert!(scene.state.parties().contains_key(&party_id(3)));
        assert!(scene.state.requests().is_empty());

        // A no that was too little to end it is half of those who are left.
        let mut scene = Scene::of_parties(3);
        let act = found(&scene, "delta", 4);
        scene.signed(&node(1), &party(1), act).unwrap();
        let no = RequestSign { request: RequestId::at(scene.index, 0), yes: false };
        scene.signed(&node(2), &party(2), no).unwrap();
        assert_eq!(scene.state.requests().len(), 1);
        scene.leave(3).unwrap();
        assert!(scene.state.requests().is_empty());
        assert!(!scene.state.parties().contains_key(&party_id(4)));
    }

    #[test]
    fn what_has_expired_is_not_done_when_a_party_goes() {
        let mut scene = Scene::of_parties(2);
        let act = found(&scene, "gamma", 3);
        let expires = act.expires;
        scene.signed(&node(1), &party(1), act).unwrap();
        scene.time = expires;
        scene.leave(2).unwrap();
        assert!(!scene.state.parties().contains_key(&party_id(3)));
        assert_eq!(scene.state.requests().len(), 1);
    }

    #[test]
    fn the_answers_of_a_party_go_with_its_last_node() {
        let mut scene = Scene::of_parties(4);
        scene.join(4, 5).unwrap();
        let act = found(&scene, "another", 99);
        scene.signed(&node(1), &party(1), act).unwrap();
        let request = RequestId::at(scene.index, 0);
        let yes = RequestSign { request, yes: true };
        scene.signed(&node(4), &party(4), yes.clone()).unwrap();
        scene.leave(5).unwrap();
        assert_eq!(scene.state.requests()[&request].answers.len(), 2);
        scene.leave(4).unwrap();
        let answers = &scene.state.requests()[&request].answers;
        assert_eq!(answers.keys().collect::<Vec<_>>(), [&party_id(1)]);
        // With its yes it would have passed: two of three.
        let no = RequestSign { request, yes: false };
        scene.signed(&node(3), &party(3), no).unwrap();
        assert!(scene.state.requests().contains_key(&request));
        scene.signed(&node(2), &party(2), yes).unwrap();
        assert!(scene.state.parties().contains_key(&party_id(99)));
    }

    #[test]
    fn a_removal_that_takes_a_partys_last_node_settles_what_waited_for_that() {
        let mut scene = Scene::of_parties(4);
        scene.open_removal(1, 3);
        let yes = RequestSign { request: RequestId::at(scene.index, 0), yes: true };
        scene.signed(&node(2), &party(2), yes).unwrap();
        let act = found(&scene, "another", 99);
        scene.signed(&node(1), &party(1), act).unwrap();
        let no = RequestSign { request: RequestId::at(scene.index, 0), yes: false };
        scene.signed(&node(2), &party(2), no).unwrap();
        assert_eq!(scene.state.requests().len(), 2);
        // Two of three remove node 3, and of the two that are left then one has said no.
        scene.leave(4).unwrap();
        assert!(scene.state.is_removed(id(3)));
        assert!(scene.state.requests().is_empty());
        assert!(!scene.state.parties().contains_key(&party_id(99)));
    }

    #[test]
    fn requests_opened_in_one_batch_have_different_names() {
        assert_ne!(RequestId::at(7, 0), RequestId::at(7, 1));
        assert_ne!(RequestId::at(7, 1023), RequestId::at(8, 0));
        assert_eq!(RequestId::at(7, 3).to_string(), "7171");
    }
}
