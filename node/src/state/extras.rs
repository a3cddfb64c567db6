//! What came to the state with level 3: raft's tick, labels, drains, invites, the first tickets of
//! parties to come, and hand-overs.
//!
//! In a snapshot it follows everything else, from level 3 on; below that it is empty and leaves no
//! trace. So a state that is raised to level 3 begins with none of it, and snapshots of the older
//! levels stay what they were.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use mesh_consensus::handover::Handover;
use mesh_consensus::id::{NodeId, TicketId};
use mesh_consensus::machine::At;
use serde::{Deserialize, Serialize};

use super::command::Pace;
use super::handover::{MAX_HANDOVERS, is_sound};
use super::invite::Invitation;
use super::label::{LabelValue, MAX_LABELS};
use super::name::Name;
use super::refusal::Refusal;
use super::request::{JointAct, RequestId};
use super::{Facts, distinct};

/// The level from which on a snapshot holds them.
pub(super) const SINCE: u16 = 3;

/// Raft's tick until it is set: a heartbeat every 100 ms and a new leader within 300 suit machines
/// in one place.
pub const DEFAULT_TICK: Duration = Duration::from_millis(50);

/// What a tick may last, in milliseconds. A shorter one costs more than it gains; with a longer one
/// a dead leader would be missed for half a minute.
pub const TICKS_MS: RangeInclusive<u32> = 20..=2000;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Extras {
    /// The length of raft's tick, once it is set.
    pub(super) tick_ms: Option<u32>,
    /// Of members alone. A node without labels is not listed.
    pub(super) labels: BTreeMap<NodeId, BTreeMap<Name, LabelValue>>,
    /// Members alone.
    pub(super) drained: BTreeSet<NodeId>,
    /// No key is a ticket's, too.
    pub(super) invites: BTreeMap<TicketId, Invitation>,
    /// The first ticket of each party that is asked for by an open request. None is a ticket or an
    /// invite, and no two are the same.
    pub(super) firsts: BTreeMap<RequestId, TicketId>,
    /// The latest changes of voters, by index: see [`super::handover`].
    pub(super) handovers: BTreeMap<u64, Handover>,
}

impl Extras {
    /// A member is gone, and what was said about it with it.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.labels.remove(&node);
        self.drained.remove(&node);
    }

    pub(super) fn tick(&self) -> Duration {
        self.tick_ms.map_or(DEFAULT_TICK, |ms| Duration::from_millis(u64::from(ms)))
    }
}

impl Facts {
    /// Sets the length of raft's tick. Who votes measures what it must bear, so who votes says so.
    pub(super) fn pace(&mut self, at: &At, act: &Pace) -> Result<(), Refusal> {
        let member = self.staying(at.author).ok_or(Refusal::NotMember)?;
        if !member.seat.is_some_and(|seat| self.config.voters.contains(&seat)) {
            return Err(Refusal::NotVoter);
        }
        if !TICKS_MS.contains(&act.tick_ms) {
            return Err(Refusal::BadTick);
        }
        self.extras.tick_ms = Some(act.tick_ms);
        Ok(())
    }

    /// What does not hold in the extras although it always should.
    pub(super) fn flaw_in_extras(&self) -> Option<&'static str> {
        let Extras { tick_ms, labels, drained, invites, firsts, handovers } = &self.extras;
        let is_member = |node: &NodeId| self.members.contains_key(node);
        let rules = [
            (tick_ms.is_none_or(|ms| TICKS_MS.contains(&ms)), "a tick has an odd length"),
            (labels.keys().chain(drained).all(is_member), "a stranger is labelled or drained"),
            (
                labels.values().all(|labels| (1..=MAX_LABELS).contains(&labels.len())),
                "a node has no labels, or too many",
            ),
            (
                invites.values().all(|invite| self.parties.contains_key(&invite.party)),
                "an invite has an unknown party",
            ),
            (
                distinct(invites.keys().chain(self.tickets.keys()).chain(firsts.values())),
                "a ticket is an invite or another's first, too",
            ),
            (
                firsts.keys().all(|id| {
                    let request = self.requests.get(id).map(|request| &request.act);
                    matches!(request, Some(JointAct::FoundParty { .. }))
                }),
                "a first ticket is of no party to come",
            ),
            (
                handovers.len() <= MAX_HANDOVERS && handovers.iter().all(is_sound),
                "a change of voters is not what it says",
            ),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, flaw)| flaw)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scene, node, party};
    use super::*;

    fn pace(tick_ms: u32) -> Pace {
        Pace { tick_ms }
    }

    #[test]
    fn a_tick_lasts_fifty_milliseconds_until_a_voter_says_otherwise() {
        let mut scene = Scene::at_top();
        assert_eq!(scene.state.tick(), Duration::from_millis(50));
        assert_eq!(scene.act(&node(1), pace(120)), Ok(()));
        assert_eq!(scene.state.tick(), Duration::from_millis(120));
    }

    #[test]
    fn only_a_member_that_votes_sets_the_tick() {
        let mut scene = Scene::at_top();
        scene.join(1, 2).unwrap();
        scene.join(1, 3).unwrap();
        scene.seat_voters(&[1, 2]);
        assert_eq!(scene.act(&node(9), pace(100)), Err(Refusal::NotMember));
        assert_eq!(scene.act(&node(3), pace(100)), Err(Refusal::NotVoter));
        // Its party's signature does not make a voter of it.
        assert_eq!(scene.signed(&node(3), &party(1), pace(100)), Err(Refusal::NotVoter));
        assert_eq!(scene.act(&node(2), pace(100)), Ok(()));
        scene.leave(2).unwrap();
        assert_eq!(scene.act(&node(2), pace(200)), Err(Refusal::NotMember));
    }

    #[test]
    fn who_has_lost_its_seat_sets_no_tick() {
        let mut scene = Scene::at_top();
        scene.join(1, 2).unwrap();
        scene.seat_voters(&[1, 2]);
        scene.act(&node(2), super::super::command::Rejoin {}).unwrap();
        assert_eq!(scene.act(&node(2), pace(100)), Err(Refusal::NotVoter));
    }

    #[test]
    fn a_tick_has_bounds() {
        let mut scene = Scene::at_top();
        for odd in [0, 19, 2001, u32::MAX] {
            assert_eq!(scene.act(&node(1), pace(odd)), Err(Refusal::BadTick), "{odd}");
        }
        for fine in [20, 2000] {
            assert_eq!(scene.act(&node(1), pace(fine)), Ok(()), "{fine}");
        }
    }
}
