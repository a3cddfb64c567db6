//! Requests that are over: what was asked for, and what came of it.
//!
//! A request goes from the state's list of open ones with the command that ends it. Whoever asked, or
//! was away, wants to know how it ended; so the latest ones are kept, and the oldest of them goes when
//! there are too many. Nothing is decided by them.
//!
//! They came with level 5. In a snapshot they follow everything else, from that level on; below it none
//! are kept. A recovery ends what is open without a trace here: it has no mesh time.

use std::collections::VecDeque;

use mesh_consensus::id::PartyId;
use mesh_consensus::machine::At;
use serde::{Deserialize, Serialize};

use super::name::Name;
use super::request::{JointAct, Request, RequestId};
use super::{Facts, Moment};

/// The level from which on they are kept.
pub(super) const SINCE: u16 = 5;

/// So many are kept, of all parties together: they are a courtesy, and stand in nobody's way.
pub const MAX_DECIDED: usize = 64;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// A majority said yes, and it was done.
    Granted,
    /// Half or more said no.
    Denied,
    /// Too few had answered in time.
    Expired,
    /// The party that had opened it took it back.
    Withdrawn,
    /// It lost its point: the node went, or a party came with the same name or key.
    Void,
}

impl Decision {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
            Self::Void => "void",
        }
    }
}

/// A request that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Which one it was.
    pub id: RequestId,
    /// What it was, with the answers that had come by then.
    pub request: Request,
    /// How it ended.
    pub decision: Decision,
    /// What the node that it was about was called, and whose it was: the mesh may not know it any more.
    pub subject: Option<(Name, PartyId)>,
    /// The entry with which it went, and when it ended.
    pub closed: Moment,
}

impl Facts {
    /// Ends the open requests of which this is so.
    pub(super) fn close(
        &mut self,
        at: &At,
        decision: Decision,
        is_over: impl Fn(&Request) -> bool,
    ) {
        let over = self.requests.iter().filter(|(_, request)| is_over(request));
        let over: Vec<RequestId> = over.map(|(id, _)| *id).collect();
        for id in over {
            if let Some(request) = self.requests.remove(&id) {
                self.remember(at, id, request, decision);
            }
        }
    }

    /// Keeps a request that is over. What it is about must still be as it was.
    pub(super) fn remember(
        &mut self,
        at: &At,
        id: RequestId,
        request: Request,
        decision: Decision,
    ) {
        if self.level.number < SINCE {
            return;
        }
        let subject = match &request.act {
            JointAct::FoundParty { .. } | JointAct::Allow { .. } => None,
            JointAct::RemoveNode { node } => {
                self.members.get(node).map(|member| (member.name.clone(), member.party))
            }
        };
        // One whose time had passed before was not ended by whatever cleared it away.
        let (decision, time) = if request.expires <= at.time {
            (Decision::Expired, request.expires)
        } else {
            (decision, at.time)
        };
        let closed = Moment { index: at.index, time };
        if self.decided.len() >= MAX_DECIDED {
            self.decided.pop_front();
        }
        self.decided.push_back(Decided { id, request, decision, subject, closed });
    }

    /// Whether what is kept can be what was kept.
    pub(super) fn is_decided_sound(&self) -> bool {
        let known = |party: &PartyId| self.parties.contains_key(party);
        let sound = |one: &Decided| {
            let Decided { request, subject, .. } = one;
            known(&request.opener)
                && request.answers.keys().all(known)
                && subject.iter().all(|(_, party)| known(party))
        };
        let decided: &VecDeque<Decided> = &self.decided;
        let is_kept = decided.is_empty() || self.level.number >= SINCE;
        is_kept && decided.len() <= MAX_DECIDED && decided.iter().all(sound)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::command::{RequestOpen, RequestSign, RequestWithdraw};
    use super::super::refusal::Refusal;
    use super::super::testing::{Scene, id, name, node, party, party_id};
    use super::*;

    /// So many parties, each with a node of its own number, at the level at which this came.
    fn scene(parties: u8) -> Scene {
        let mut scene = Scene::of_parties(parties);
        scene.raise_to(SINCE);
        scene
    }

    /// Party 1 asks to take in party `n`.
    fn open_founding(scene: &mut Scene, label: &str, n: u8) -> RequestId {
        let act =
            JointAct::FoundParty { name: name(label), signing: party_id(n), sealing: [n; 32] };
        let expires = scene.time.after(Duration::from_secs(60));
        scene.signed(&node(1), &party(1), RequestOpen { act, expires }).unwrap();
        RequestId::at(scene.index, 0)
    }

    fn answer(scene: &mut Scene, by: u8, request: RequestId, yes: bool) {
        scene.signed(&node(1), &party(by), RequestSign { request, yes }).unwrap();
    }

    /// How the requests ended, the oldest first.
    fn decisions(scene: &Scene) -> Vec<(RequestId, Decision)> {
        scene.state.decided().iter().map(|one| (one.id, one.decision)).collect()
    }

    #[test]
    fn a_request_that_was_granted_or_denied_can_be_looked_up_with_its_answers() {
        let mut scene = scene(3);
        let granted = open_founding(&mut scene, "delta", 4);
        answer(&mut scene, 2, granted, true);
        let denied = open_founding(&mut scene, "echo", 5);
        answer(&mut scene, 2, denied, false);
        answer(&mut scene, 3, denied, false);
        assert!(scene.state.requests().is_empty());
        let want = [(granted, Decision::Granted), (denied, Decision::Denied)];
        assert_eq!(decisions(&scene), want);
        let last = scene.state.decided().back().unwrap();
        assert_eq!(last.request.answers.values().filter(|yes| **yes).count(), 1);
        assert_eq!(last.request.answers.len(), 3);
        assert_eq!(last.closed, Moment { index: scene.index, time: scene.time });
    }

    #[test]
    fn a_node_that_was_removed_is_still_known_by_its_name() {
        let mut scene = scene(3);
        scene.open_removal(1, 3);
        let request = RequestId::at(scene.index, 0);
        answer(&mut scene, 2, request, true);
        assert!(!scene.state.members().contains_key(&id(3)));
        let last = scene.state.decided().back().unwrap();
        assert_eq!(last.subject, Some((name("n3"), party_id(3))));
        assert_eq!(last.decision, Decision::Granted);
    }

    #[test]
    fn a_request_that_lost_its_point_is_void() {
        let mut scene = scene(4);
        scene.open_removal(1, 4);
        let removal = RequestId::at(scene.index, 0);
        scene.leave(4).unwrap();
        assert_eq!(decisions(&scene), [(removal, Decision::Void)]);
        let (one, other) =
            (open_founding(&mut scene, "echo", 5), open_founding(&mut scene, "echo", 6));
        answer(&mut scene, 2, one, true);
        let want = [(removal, Decision::Void), (one, Decision::Granted), (other, Decision::Void)];
        assert_eq!(decisions(&scene), want);
    }

    #[test]
    fn a_request_that_nobody_answered_is_known_to_have_expired_and_when() {
        let mut scene = scene(2);
        let first = open_founding(&mut scene, "gamma", 3);
        let expires = scene.state.requests()[&first].expires;
        scene.time = expires.after(Duration::from_secs(5));
        // It goes when the next is opened.
        open_founding(&mut scene, "delta", 4);
        assert_eq!(decisions(&scene), [(first, Decision::Expired)]);
        assert_eq!(scene.state.decided()[0].closed, Moment { index: scene.index, time: expires });
    }

    #[test]
    fn who_opened_a_request_may_withdraw_it_and_nobody_else() {
        let mut scene = scene(3);
        let request = open_founding(&mut scene, "delta", 4);
        let act = RequestWithdraw { request };
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(2), &party(2), act.clone()), Err(Refusal::WrongParty));
        assert!(scene.state.requests().contains_key(&request));
        // Any member may carry it.
        assert_eq!(scene.signed(&node(2), &party(1), act.clone()), Ok(()));
        assert!(scene.state.requests().is_empty());
        assert_eq!(decisions(&scene), [(request, Decision::Withdrawn)]);
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::NoSuchRequest));
        let late = RequestSign { request, yes: true };
        assert_eq!(scene.signed(&node(2), &party(2), late), Err(Refusal::NoSuchRequest));
        assert!(!scene.state.parties().contains_key(&party_id(4)));
    }

    #[test]
    fn a_withdrawn_invite_leaves_its_first_ticket_free() {
        let mut scene = scene(2);
        scene.make_invite(1, 1, 5);
        let act = scene.found_with(1, 3);
        scene.act(&node(1), act.clone()).unwrap();
        let request = RequestId::at(scene.index, 0);
        scene.signed(&node(1), &party(1), RequestWithdraw { request }).unwrap();
        assert!(scene.state.facts.extras.firsts.is_empty());
        assert_eq!(scene.act(&node(1), act), Ok(()), "it may ask again");
    }

    #[test]
    fn what_has_expired_is_not_withdrawn() {
        let mut scene = scene(2);
        let request = open_founding(&mut scene, "gamma", 3);
        scene.time = scene.state.requests()[&request].expires;
        let act = RequestWithdraw { request };
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::RequestExpired));
    }

    #[test]
    fn only_the_latest_are_kept() {
        let mut scene = scene(2);
        let mut last = RequestId(0);
        for _ in 0..MAX_DECIDED + 3 {
            last = open_founding(&mut scene, "gamma", 3);
            scene.signed(&node(1), &party(1), RequestWithdraw { request: last }).unwrap();
        }
        assert_eq!(scene.state.decided().len(), MAX_DECIDED);
        assert_eq!(scene.state.decided().back().unwrap().id, last);
    }

    #[test]
    fn below_their_level_none_are_kept_and_none_is_withdrawn() {
        let mut scene = Scene::of_parties(2);
        scene.raise_to(SINCE - 1);
        let request = open_founding(&mut scene, "gamma", 3);
        let act = RequestWithdraw { request };
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::UnknownKind));
        answer(&mut scene, 2, request, true);
        assert!(scene.state.decided().is_empty());
    }
}
