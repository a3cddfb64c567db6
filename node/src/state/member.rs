//! Members: who they are, where they sit, how they come and go.
//!
//! ```text
//!            Admit               Leave, RemoveNode          a configuration
//! stranger ─────────► member ──────────────────────► leaving ───────────────► removed
//!                     │    ▲  │                             without its seat   for ever
//!                     └────┘  └────────────────────────────────────────────►
//!                     Rejoin         its seat is in no configuration
//! ```
//!
//! A leaving member has lost every right, but raft still counts its seat, so its seat must still
//! lead to its key. A removed key may never come back: the list of them grows by 32 bytes a
//! removal and is never cut, as forgetting one would let a stolen machine in again.

use std::collections::BTreeSet;

use mesh_consensus::id::{Epoch, NodeId, PartyId, RaftId};
use mesh_consensus::log::Config;
use mesh_consensus::machine::At;
use serde::{Deserialize, Serialize};

use super::command::{Admit, Leave, Report, Suspect};
use super::decided::Decision;
use super::name::Name;
use super::party::check_key;
use super::refusal::Refusal;
use super::request::JointAct;
use super::ticket::Ticket;
use super::{Facts, Moment, Recovered};

/// A party has at most this many nodes, leaving ones included.
pub const MAX_MEMBERS: usize = 4096;

/// A voter whose disk takes longer to sync than this holds the others up. The autopilot has the
/// same limit and may change it; this one is part of a rule that all nodes must judge alike, so
/// another value needs another level.
pub const MAX_FSYNC_US: u32 = 50_000;

/// A node that belongs to the mesh. Its key in the state is its public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Where it sits: the index of the entry that admitted its data directory. `None` after a
    /// recovery, until it rejoins. No two members share one.
    pub seat: Option<RaftId>,
    /// What it is called. No other member is called so.
    pub name: Name,
    /// Whose it is. Always a party of the state.
    pub party: PartyId,
    /// Whether it goes without the party's signing key.
    pub worker: bool,
    /// When it became a member. A rejoin does not change this.
    pub admitted: Moment,
    /// Whether it is on its way out. Its seat is then in the current configuration.
    pub leaving: bool,
    /// What it said about itself last.
    pub report: Report,
    /// The parties in whose eyes it is down. All of them are present.
    pub down_by: BTreeSet<PartyId>,
}

impl Member {
    /// Whether more than half of the parties hold it to be down, if `parties` of them are present.
    pub fn is_down(&self, parties: usize) -> bool {
        2 * self.down_by.len() > parties
    }

    /// Whether it could take a vote now and do well, if `parties` parties are present.
    pub fn is_fit_to_vote(&self, parties: usize) -> bool {
        self.may_vote()
            && self.report.fsync_p99_us.is_some_and(|p99| p99 <= MAX_FSYNC_US)
            && self.report.direct
            && !self.is_down(parties)
    }

    /// Whether it may be given a vote.
    pub fn may_vote(&self) -> bool {
        !self.leaving && self.seat.is_some() && self.report.votes
    }
}

impl Facts {
    /// The member, unless it is leaving: who is leaving has no say.
    pub(super) fn staying(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node).filter(|member| !member.leaving)
    }

    fn staying_mut(&mut self, node: NodeId) -> Option<&mut Member> {
        self.members.get_mut(&node).filter(|member| !member.leaving)
    }

    /// Whether the node would be let in here and now, and by which ticket.
    pub(super) fn check_admit(&self, at: &At, act: &Admit) -> Result<Ticket, Refusal> {
        if self.members.contains_key(&act.node) {
            return Err(Refusal::AlreadyMember);
        }
        if self.removed.contains(&act.node) {
            return Err(Refusal::Removed);
        }
        if self.members.values().any(|member| member.name == act.name) {
            return Err(Refusal::NameTaken);
        }
        check_key(&act.node.0)?;
        let ticket = self.check_ticket(at, act)?;
        let siblings = self.members.values().filter(|member| member.party == ticket.party);
        if siblings.count() >= MAX_MEMBERS {
            return Err(Refusal::TooManyMembers);
        }
        Ok(ticket)
    }

    pub(super) fn admit(&mut self, at: &At, act: Admit) -> Result<(), Refusal> {
        let ticket = self.check_admit(at, &act)?;
        let seat = self.take_seat(at)?;
        self.use_ticket(act.ticket);
        let member = Member {
            seat: Some(seat),
            name: act.name,
            party: ticket.party,
            worker: ticket.worker,
            admitted: Moment::of(at),
            leaving: false,
            report: Report::assumed(self.level.number),
            down_by: BTreeSet::new(),
        };
        self.members.insert(act.node, member);
        Ok(())
    }

    pub(super) fn rejoin(&mut self, at: &At) -> Result<(), Refusal> {
        if self.staying(at.author).is_none() {
            return Err(Refusal::NotMember);
        }
        let seat = self.take_seat(at)?;
        // The old seat leads to nobody from here on: whatever that directory promised, the node
        // no longer knows of it.
        if let Some(member) = self.staying_mut(at.author) {
            member.seat = Some(seat);
        }
        // Nor may anyone count on the copies of data that it had; it will say which are still there.
        self.data.forget(at.author);
        self.forget_tasks_of(at.author);
        Ok(())
    }

    /// The entry's index as a seat, once per entry: a seat is one data directory.
    fn take_seat(&mut self, at: &At) -> Result<RaftId, Refusal> {
        if at.index <= self.last_admission {
            return Err(Refusal::OneAdmissionPerEntry);
        }
        self.last_admission = at.index;
        Ok(RaftId(at.index))
    }

    pub(super) fn leave(
        &mut self,
        at: &At,
        act: &Leave,
        by: Option<PartyId>,
    ) -> Result<(), Refusal> {
        let member = self.staying(act.node).ok_or(Refusal::NoSuchMember)?;
        match by {
            Some(party) if party != member.party => return Err(Refusal::WrongParty),
            None if at.author != act.node => return Err(Refusal::NotYours),
            _ => {}
        }
        self.check_removal(act.node)?;
        self.remove(at, act.node);
        self.settle_others(at);
        Ok(())
    }

    /// Whether the mesh can go on without this member.
    pub(super) fn check_removal(&self, node: NodeId) -> Result<(), Refusal> {
        if self.staying(node).is_none() {
            return Err(Refusal::NoSuchMember);
        }
        let others = self.members.iter().filter(|(other, _)| **other != node);
        if others.filter(|(_, member)| member.may_vote()).count() == 0 {
            return Err(Refusal::LastMember);
        }
        Ok(())
    }

    /// Takes a member's rights away, and the member itself as soon as raft no longer counts it. Its
    /// party may have had no other: whoever calls this settles the requests that are open.
    pub(super) fn remove(&mut self, at: &At, node: NodeId) {
        let Some(member) = self.members.get_mut(&node) else { return };
        member.leaving = true;
        let party = member.party;
        self.close(at, Decision::Void, |request| request.act == JointAct::RemoveNode { node });
        self.drop_unseated();
        if !self.is_present(party) {
            self.forget_words(party);
        }
    }

    /// Drops those who are leaving and sit in the current configuration no more.
    fn drop_unseated(&mut self) {
        let config = &self.config;
        let gone: Vec<NodeId> = self
            .members
            .iter()
            .filter(|(_, m)| m.leaving && !m.seat.is_some_and(|seat| config.contains(seat)))
            .map(|(node, _)| *node)
            .collect();
        for node in gone {
            self.members.remove(&node);
            self.extras.forget(node);
            self.data.forget(node);
            self.forget_tasks_of(node);
            self.removed.insert(node);
        }
    }

    pub(super) fn on_config(&mut self, index: u64, config: &Config) {
        self.note_handover(index, config);
        self.config = config.clone();
        self.drop_unseated();
    }

    pub(super) fn on_recovery(&mut self, index: u64, epoch: Epoch, survivor: RaftId) {
        // Every other directory is of an epoch that has ended.
        for member in self.members.values_mut() {
            member.seat = member.seat.filter(|seat| *seat == survivor);
        }
        // They were answers to a mesh that is no more; parties can ask again. Nor is it kept that they
        // ended so: no mesh time says when.
        self.requests.clear();
        self.extras.firsts.clear();
        self.recovered = Some(Recovered { epoch, index });
        self.on_config(index, &Config { voters: BTreeSet::from([survivor]), ..Config::default() });
        // Nobody could sign that change, and what was signed before it was for another epoch.
        self.extras.handovers.clear();
    }

    pub(super) fn report(&mut self, at: &At, act: Report) -> Result<(), Refusal> {
        let member = self.staying_mut(at.author).ok_or(Refusal::NotMember)?;
        member.report = act;
        // Whoever can get a report into the log is not down.
        member.down_by.clear();
        Ok(())
    }

    pub(super) fn suspect(&mut self, at: &At, act: &Suspect) -> Result<(), Refusal> {
        let party = self.staying(at.author).ok_or(Refusal::NotMember)?.party;
        if act.node == at.author {
            return Err(Refusal::AboutItself);
        }
        let member = self.staying_mut(act.node).ok_or(Refusal::NoSuchMember)?;
        if act.down {
            member.down_by.insert(party);
        } else {
            member.down_by.remove(&party);
        }
        Ok(())
    }

    pub(super) fn node_at(&self, seat: RaftId) -> Option<NodeId> {
        self.members.iter().find(|(_, m)| m.seat == Some(seat)).map(|(node, _)| *node)
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::machine::{Outcome, StateMachine};

    use super::super::State;
    use super::super::command::{Act, Rejoin};
    use super::super::testing::{Scene, id, name, node, party, party_id};
    use super::*;

    #[test]
    fn a_newcomer_sits_at_the_index_that_admitted_it_and_belongs_to_the_tickets_party() {
        let mut scene = Scene::two_parties();
        scene.make_ticket(1, 1, 1);
        let act = scene.admit(1, 5);
        // Any member may let it in, also one of another party.
        assert_eq!(scene.act(&node(2), act), Ok(()));
        let seat = RaftId(scene.index);
        assert_eq!(scene.state.seat_of(id(5)), Some(seat));
        assert_eq!(scene.state.node_at(seat), Some(id(5)));
        assert_eq!(scene.member(5).party, party_id(1));
        assert!(scene.state.may_write(id(5)));
        assert_eq!(scene.state.last_admission(), seat.0);
    }

    #[test]
    fn a_stranger_admits_nobody_not_even_itself() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 1);
        let act = scene.admit(1, 5);
        assert!(!scene.state.may_write(id(5)));
        assert_eq!(scene.act(&node(5), act), Err(Refusal::NotMember));
    }

    #[test]
    fn a_member_is_not_admitted_twice_and_no_two_share_a_name() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let act = scene.admit(1, 2);
        scene.act(&node(1), act.clone()).unwrap();
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::AlreadyMember));
        let namesake = Admit { name: act.name, ..scene.admit(1, 3) };
        assert_eq!(scene.act(&node(1), namesake), Err(Refusal::NameTaken));
    }

    #[test]
    fn one_entry_admits_one_node() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let first = scene.at(&node(1));
        let second = At { position: 1, ..first };
        let (a, b) = (Act::from(scene.admit(1, 2)), Act::from(scene.admit(1, 3)));
        assert_eq!(scene.state.apply(&first, &a.command()), Ok(Outcome::Done));
        let refused = Ok(Outcome::Refused(Refusal::OneAdmissionPerEntry.code()));
        assert_eq!(scene.state.apply(&second, &b.command()), refused);
        let rejoin = Act::from(Rejoin {}).command();
        assert_eq!(scene.state.apply(&second, &rejoin), refused);
        assert_eq!(scene.act(&node(1), scene.admit(1, 3)), Ok(()));
    }

    #[test]
    fn a_node_key_that_cannot_sign_is_not_admitted() {
        let mut scene = Scene::new();
        scene.make_ticket(1, 1, 5);
        let mut act = scene.admit(1, 2);
        act.node = NodeId([2; 32]);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadKey));
    }

    #[test]
    fn a_party_has_a_bounded_number_of_nodes() {
        let mut scene = Scene::two_parties();
        let like = scene.member(1).clone();
        for n in 1..MAX_MEMBERS {
            let mut key = [7; 32];
            key[..8].copy_from_slice(&u64::try_from(n).unwrap().to_le_bytes());
            let member = Member { seat: None, name: name(&format!("m{n}")), ..like.clone() };
            scene.state.facts.members.insert(NodeId(key), member);
        }
        assert_eq!(scene.join(1, 5), Err(Refusal::TooManyMembers));
        assert_eq!(scene.join(2, 6), Ok(()));
    }

    #[test]
    fn who_rejoins_has_a_new_seat_and_the_old_one_leads_to_nobody() {
        let mut scene = Scene::new();
        scene.join_as_worker(1, 2).unwrap();
        let old = scene.state.seat_of(id(2)).unwrap();
        let before = scene.member(2).clone();
        assert_eq!(scene.act(&node(2), Rejoin {}), Ok(()));
        let new = RaftId(scene.index);
        assert_eq!(scene.state.seat_of(id(2)), Some(new));
        assert_eq!(scene.state.node_at(old), None);
        // Nothing else has changed: a worker stays a worker.
        assert_eq!(*scene.member(2), Member { seat: Some(new), ..before });
    }

    #[test]
    fn a_stranger_or_a_leaving_node_does_not_rejoin() {
        let mut scene = Scene::two_parties();
        assert_eq!(scene.act(&node(9), Rejoin {}), Err(Refusal::NotMember));
        scene.seat_voters(&[1, 2]);
        scene.leave(2).unwrap();
        assert_eq!(scene.act(&node(2), Rejoin {}), Err(Refusal::NotMember));
    }

    #[test]
    fn a_node_leaves_by_its_own_will_or_its_partys() {
        let mut scene = Scene::two_parties();
        scene.join(1, 3).unwrap();
        scene.join(1, 4).unwrap();
        let leave = |n| Leave { node: id(n) };
        // Not by a sister, not by another party, not by a stranger.
        assert_eq!(scene.act(&node(1), leave(3)), Err(Refusal::NotYours));
        assert_eq!(scene.signed(&node(2), &party(2), leave(3)), Err(Refusal::WrongParty));
        assert_eq!(scene.signed(&node(2), &party(9), leave(3)), Err(Refusal::NoSuchParty));
        assert_eq!(scene.act(&node(9), leave(9)), Err(Refusal::NotMember));
        assert_eq!(scene.act(&node(3), leave(3)), Ok(()));
        assert_eq!(scene.signed(&node(2), &party(1), leave(4)), Ok(()));
        assert_eq!(scene.act(&node(1), leave(4)), Err(Refusal::NoSuchMember));
        assert!(scene.state.is_removed(id(3)) && scene.state.is_removed(id(4)));
    }

    #[test]
    fn a_leaving_voter_keeps_its_seat_and_nothing_else_until_raft_lets_it_go() {
        let mut scene = Scene::two_parties();
        scene.seat_voters(&[1, 2]);
        let seat = scene.state.seat_of(id(2)).unwrap();
        scene.leave(2).unwrap();
        assert!(scene.member(2).leaving);
        assert!(!scene.state.may_write(id(2)));
        assert!(!scene.state.is_removed(id(2)));
        assert_eq!(scene.state.node_at(seat), Some(id(2)));
        assert_eq!(scene.state.seat_of(id(2)), Some(seat));
        assert_eq!(scene.leave(2), Err(Refusal::NotMember));
        scene.seat_voters(&[1]);
        assert!(scene.state.is_removed(id(2)));
        assert_eq!(scene.state.node_at(seat), None);
        assert_eq!(scene.state.seat_of(id(2)), None);
    }

    #[test]
    fn a_leaving_member_stays_while_a_joint_configuration_still_counts_it() {
        let mut scene = Scene::two_parties();
        scene.seat_voters(&[1, 2]);
        scene.leave(2).unwrap();
        let [first, second] = [1, 2].map(|n| scene.state.seat_of(id(n)).unwrap());
        let joint = Config {
            voters: [first].into(),
            outgoing: [first, second].into(),
            ..Config::default()
        };
        scene.state.on_config(90, &joint);
        assert_eq!(scene.state.node_at(second), Some(id(2)));
        scene.seat_voters(&[1]);
        assert!(scene.state.is_removed(id(2)));
    }

    #[test]
    fn a_removed_key_never_comes_back() {
        let mut scene = Scene::new();
        scene.join(1, 2).unwrap();
        scene.leave(2).unwrap();
        assert_eq!(scene.join(1, 2), Err(Refusal::Removed));
        // Its name may.
        scene.make_ticket(90, 1, 1);
        let act = Admit { name: name("n2"), ..scene.admit(90, 3) };
        assert_eq!(scene.act(&node(1), act), Ok(()));
    }

    #[test]
    fn what_follows_a_leave_in_the_same_batch_does_not_count() {
        let mut scene = Scene::new();
        scene.join(1, 2).unwrap();
        let first = scene.at(&node(2));
        let leave = Act::from(Leave { node: id(2) }).command();
        assert_eq!(scene.state.apply(&first, &leave), Ok(Outcome::Done));
        let report = Act::from(Report::assumed(1)).command();
        let refused = Ok(Outcome::Refused(Refusal::NotMember.code()));
        assert_eq!(scene.state.apply(&At { position: 1, ..first }, &report), refused);
    }

    #[test]
    fn the_last_member_cannot_leave() {
        let mut scene = Scene::new();
        assert_eq!(scene.leave(1), Err(Refusal::LastMember));
        let act = Leave { node: id(1) };
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::LastMember));
        scene.join(1, 2).unwrap();
        scene.seat_voters(&[1, 2]);
        scene.leave(1).unwrap();
        // The one that is leaving does not count.
        assert_eq!(scene.leave(2), Err(Refusal::LastMember));
    }

    #[test]
    fn the_last_member_that_would_vote_cannot_leave() {
        let mut scene = Scene::new();
        scene.join(1, 2).unwrap();
        scene.report(2, |report| report.votes = false);
        assert_eq!(scene.leave(1), Err(Refusal::LastMember));
        assert_eq!(scene.leave(2), Ok(()));
    }

    #[test]
    fn a_node_reports_about_itself_and_is_then_not_down() {
        let mut scene = Scene::two_parties();
        scene.act(&node(2), Suspect { node: id(1), down: true }).unwrap();
        assert_eq!(scene.member(1).down_by, BTreeSet::from([party_id(2)]));
        let two = scene.member(2).clone();
        scene.report(1, |report| report.fsync_p99_us = Some(77));
        assert_eq!(scene.member(1).report.fsync_p99_us, Some(77));
        assert!(scene.member(1).down_by.is_empty());
        assert_eq!(*scene.member(2), two);
        assert_eq!(scene.act(&node(9), Report::assumed(1)), Err(Refusal::NotMember));
    }

    #[test]
    fn a_suspicion_is_the_authors_partys_and_about_another() {
        let mut scene = Scene::two_parties();
        scene.join(1, 3).unwrap();
        let suspect = |n, down| Suspect { node: id(n), down };
        assert_eq!(scene.act(&node(9), suspect(1, true)), Err(Refusal::NotMember));
        assert_eq!(scene.act(&node(2), suspect(2, true)), Err(Refusal::AboutItself));
        assert_eq!(scene.act(&node(2), suspect(9, true)), Err(Refusal::NoSuchMember));
        // Two nodes of one party have one voice.
        scene.act(&node(1), suspect(2, true)).unwrap();
        scene.act(&node(3), suspect(2, true)).unwrap();
        assert_eq!(scene.member(2).down_by.len(), 1);
        assert!(!scene.state.is_down(id(2)));
        // One party cannot take another's voice back.
        scene.join(2, 4).unwrap();
        scene.act(&node(4), suspect(2, true)).unwrap();
        assert!(scene.state.is_down(id(2)));
        scene.act(&node(4), suspect(2, false)).unwrap();
        assert_eq!(scene.member(2).down_by, BTreeSet::from([party_id(1)]));
    }

    #[test]
    fn a_member_is_down_when_more_than_half_of_the_parties_say_so() {
        let mut member = Scene::new().member(1).clone();
        for (voices, parties, down) in
            [(0, 1, false), (1, 1, true), (1, 2, false), (2, 2, true), (1, 3, false), (2, 3, true)]
        {
            member.down_by = (0..voices).map(|n| PartyId([n; 32])).collect();
            assert_eq!(member.is_down(parties), down, "{voices} of {parties}");
        }
    }

    #[test]
    fn a_party_without_a_node_has_no_voice_on_who_is_down() {
        let mut scene = Scene::of_parties(4);
        for by in [2, 3] {
            scene.act(&node(by), Suspect { node: id(1), down: true }).unwrap();
        }
        assert!(!scene.state.is_down(id(1)), "two of four");
        scene.leave(4).unwrap();
        assert!(scene.state.is_down(id(1)), "two of three");
        scene.leave(3).unwrap();
        assert_eq!(scene.member(1).down_by, BTreeSet::from([party_id(2)]));
        assert!(!scene.state.is_down(id(1)), "one of two");
    }

    #[test]
    fn after_a_recovery_only_the_survivor_sits_and_the_others_rejoin() {
        let mut scene = Scene::two_parties();
        scene.join(1, 3).unwrap();
        scene.seat_voters(&[1, 2, 3]);
        scene.leave(3).unwrap();
        scene.open_removal(1, 2);
        let survivor = scene.state.seat_of(id(1)).unwrap();
        scene.state.on_recovery(50, 1, survivor);
        assert_eq!(scene.state.recovered(), Some(Recovered { epoch: 1, index: 50 }));
        assert_eq!(scene.state.seat_of(id(1)), Some(survivor));
        assert_eq!(scene.state.seat_of(id(2)), None);
        assert!(scene.state.may_write(id(2)));
        assert!(scene.state.is_removed(id(3)));
        assert!(scene.state.requests().is_empty());
        assert_eq!(scene.state.config().voters, BTreeSet::from([survivor]));
        // While nobody else sits, the survivor cannot go.
        scene.index = 50;
        assert_eq!(scene.leave(1), Err(Refusal::LastMember));
        assert_eq!(scene.act(&node(2), Rejoin {}), Ok(()));
        assert_eq!(scene.state.seat_of(id(2)), Some(RaftId(scene.index)));
        assert_eq!(scene.leave(1), Ok(()));
    }

    #[test]
    fn a_recovered_state_survives_a_snapshot() {
        let mut scene = Scene::two_parties();
        scene.state.on_recovery(50, 1, RaftId(1));
        let mut other = State::blank(scene.state.supports());
        other.restore(&scene.state.snapshot()).unwrap();
        assert_eq!(other, scene.state);
    }
}
