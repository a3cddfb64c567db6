//! Which configurations the mesh allows: who may sit, and how the parties share the votes.
//!
//! **Who may sit.** Every seat in a new configuration belongs to a member that is not leaving, and
//! one that votes to a member that is willing to. A seat that is there already may stay as it is:
//! otherwise one stale seat would stand in the way of removing another.
//!
//! **How the votes are shared.** No party may hold a majority of the votes in a mesh where it could
//! be otherwise. In words:
//!
//! 1. A change that leaves the voters as they are is not judged. (Adding a learner, or leaving a
//!    joint configuration, must work also in a mesh that is badly spread.)
//! 2. While fewer than three parties have a member that is fit to vote, nothing is asked: of two
//!    parties one has half the votes or more, whatever is done. The autopilot still spreads them.
//! 3. Otherwise a change is void if, after it, more than half of the voters belong to one party,
//! 4. except where that party had a larger share before. (So a bad state can be mended in steps:
//!    from three of three to three of five to three of seven.)
//!
//! A member is fit to vote if it has a seat, is not leaving, is willing, syncs its disk within
//! 50 ms, can be reached directly and is not held to be down by more than half of the parties that
//! are present. A stale seat belongs to nobody; it counts among the voters and for no party.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{PartyId, RaftId};
use mesh_consensus::log::Config;

use super::Facts;
use super::member::Member;

/// From this many parties on, none may have a majority of the votes.
pub const SPREAD_FROM: usize = 3;

impl Facts {
    pub(super) fn allows(&self, next: &Config) -> bool {
        let seated: BTreeMap<RaftId, &Member> =
            self.members.values().filter_map(|m| m.seat.map(|seat| (seat, m))).collect();
        !next.voters.is_empty() && self.may_sit(&seated, next) && self.is_spread(&seated, next)
    }

    fn may_sit(&self, seated: &BTreeMap<RaftId, &Member>, next: &Config) -> bool {
        let listens = |id: &RaftId| seated.get(id).is_some_and(|m| !m.leaving);
        let votes = |id: &RaftId| seated.get(id).is_some_and(|m| m.may_vote());
        // A learner that is to vote is not "there already": it is judged as a voter.
        next.voters.iter().all(|id| self.config.voters.contains(id) || votes(id))
            && next
                .learners
                .union(&next.learners_next)
                .all(|id| self.config.contains(*id) || listens(id))
    }

    fn is_spread(&self, seated: &BTreeMap<RaftId, &Member>, next: &Config) -> bool {
        if next.voters == self.config.voters {
            return true;
        }
        let parties = self.present_parties().len();
        let fit: BTreeSet<PartyId> = seated
            .values()
            .filter(|member| member.is_fit_to_vote(parties))
            .map(|member| member.party)
            .collect();
        if fit.len() < SPREAD_FROM {
            return true;
        }
        let votes = |party: PartyId, voters: &BTreeSet<RaftId>| {
            voters.iter().filter(|id| seated.get(id).is_some_and(|m| m.party == party)).count()
        };
        // All of them: one whose last node is leaving may still have votes.
        self.parties.keys().all(|party| {
            let (before, after) = (votes(*party, &self.config.voters), votes(*party, &next.voters));
            let has_majority = 2 * after > next.voters.len();
            // after / next < before / current, without the fractions.
            let had_more = after * self.config.voters.len() < before * next.voters.len();
            !has_majority || had_more
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::command::{Leave, Report};
    use super::super::level::LEVEL;
    use super::super::testing::{Scene, id, name, node, party_id};
    use super::super::{Moment, party::Party};
    use super::*;
    use mesh_consensus::id::NodeId;
    use mesh_consensus::machine::StateMachine;

    /// The seat of the member that is called `label`: `b2` is the second of party `b`.
    fn seat(label: &str) -> RaftId {
        let bytes = label.as_bytes();
        RaftId(u64::from(bytes[0] - b'a' + 1) * 10 + u64::from(bytes[1] - b'0'))
    }

    fn seats(labels: &str) -> BTreeSet<RaftId> {
        labels.split_whitespace().map(seat).collect()
    }

    fn voters(labels: &str) -> Config {
        Config { voters: seats(labels), ..Config::default() }
    }

    /// A state with these members, of which `current` vote.
    fn state(members: &str, current: &str) -> State {
        let mut state = State::blank(LEVEL);
        for label in members.split_whitespace() {
            let party = PartyId([label.as_bytes()[0]; 32]);
            let moment = Moment::default();
            state.facts.parties.entry(party).or_insert_with(|| Party {
                name: name(&label[..1]),
                sealing: [0; 32],
                founded: moment,
            });
            let member = Member {
                seat: Some(seat(label)),
                name: name(label),
                party,
                worker: false,
                admitted: moment,
                leaving: false,
                report: Report { fsync_p99_us: Some(1000), ..Report::assumed(1) },
                down_by: BTreeSet::new(),
            };
            state.facts.members.insert(key(label), member);
        }
        state.on_config(1, &voters(current));
        state
    }

    fn key(label: &str) -> NodeId {
        let mut key = [0; 32];
        key[..2].copy_from_slice(label.as_bytes());
        NodeId(key)
    }

    fn member<'a>(state: &'a mut State, label: &str) -> &'a mut Member {
        state.facts.members.get_mut(&key(label)).unwrap()
    }

    const THREE: &str = "a1 a2 a3 a4 b1 b2 c1 c2";

    #[test]
    fn with_three_fit_parties_none_may_take_a_majority() {
        let table = [
            // Growing from one voter: one each, at once or in steps.
            ("a1", "a1 b1 c1", true),
            ("a1", "a1 b1", true),
            ("a1 b1", "a1 b1 c1", true),
            ("a1", "a1 a2", false),
            // Two of three is less than one of one: a step, though not the best.
            ("a1", "a1 a2 b1", true),
            ("a1 b1", "a1 a2 b1", false),
            ("a1 b1 c1", "a1 a2 b1", false),
            ("a1 b1 c1", "a1 a2 b1 c1", true),
            ("a1 b1 c1", "a1 a2 a3 b1 c1", false),
            ("a1 b1 c1", "a1 a2 b1 b2 c1", true),
            ("a1 b1 c1", "a1", false),
            ("a1 b1 c1", "b2", false),
            // The same number under another name is no better.
            ("a1 a2 b1", "a1 a3 b1", false),
        ];
        for (current, next, allowed) in table {
            assert_eq!(state(THREE, current).allows(&voters(next)), allowed, "{current} -> {next}");
        }
    }

    #[test]
    fn a_bad_state_can_be_mended_in_steps() {
        let table = [
            ("a1 a2 a3", "a1 a2 a3 b1", true),
            ("a1 a2 a3", "a1 a2 a3 b1 c1", true),
            ("a1 a2 a3 b1 c1", "a1 a2 b1 c1", true),
            ("a1 a2 a3 b1 c1", "a1 a2 b1 b2 c1", true),
            ("a1 a2 a3", "a1 a2", false),
            ("a1 a2 a3 b1 c1", "a1 a2 a3 b1", false),
            ("a1 a2 a3 b1 c1", "a1 a2 a3 a4 b1 b2 c1", true),
            // From one party's majority to another's: nothing is mended.
            ("a1 a2 b1", "a1 b1 b2", false),
        ];
        for (current, next, allowed) in table {
            assert_eq!(state(THREE, current).allows(&voters(next)), allowed, "{current} -> {next}");
        }
    }

    #[test]
    fn with_fewer_than_three_parties_nothing_is_asked() {
        assert!(state("a1 a2 a3", "a1").allows(&voters("a1 a2 a3")));
        assert!(state("a1 a2 b1", "a1").allows(&voters("a1 a2 b1")));
        assert!(state("a1 a2 b1", "a1 a2 b1").allows(&voters("a1 a2")));
    }

    #[test]
    fn a_party_whose_nodes_are_unfit_does_not_count() {
        let void = voters("a1 a2 b1");
        let unfit: [fn(&mut Member); 7] = [
            |m| m.report.votes = false,
            |m| m.report.fsync_p99_us = Some(50_001),
            |m| m.report.fsync_p99_us = None,
            |m| m.report.direct = false,
            |m| m.down_by = ["a", "b"].map(|p| PartyId([p.as_bytes()[0]; 32])).into(),
            |m| m.seat = None,
            |m| m.leaving = true,
        ];
        for spoil in unfit {
            let mut state = state("a1 a2 b1 c1", "a1 b1");
            assert!(!state.allows(&void));
            spoil(member(&mut state, "c1"));
            assert!(state.allows(&void));
        }
        let fit: [fn(&mut Member); 2] = [
            |m| m.report.fsync_p99_us = Some(50_000),
            |m| m.down_by = [PartyId([b'a'; 32])].into(),
        ];
        for keep in fit {
            let mut state = state("a1 a2 b1 c1", "a1 b1");
            keep(member(&mut state, "c1"));
            assert!(!state.allows(&void));
        }
    }

    #[test]
    fn a_party_without_a_node_keeps_nobody_up_who_is_down() {
        let mut state = state("a1 a2 b1 c1", "a1 b1");
        let like = state.facts.parties[&PartyId([b'a'; 32])].clone();
        for label in ["d", "e"] {
            let party = Party { name: name(label), ..like.clone() };
            state.facts.parties.insert(PartyId([label.as_bytes()[0]; 32]), party);
        }
        assert!(!state.allows(&voters("a1 a2 b1")));
        // Two of the three parties that have a node, of five.
        member(&mut state, "c1").down_by = [b'a', b'b'].map(|p| PartyId([p; 32])).into();
        assert!(state.allows(&voters("a1 a2 b1")));
    }

    #[test]
    fn a_change_that_leaves_the_voters_alone_is_not_judged_by_share() {
        let mut state = state(THREE, "a1 a2 a3");
        let learner = Config { learners: seats("b1"), ..voters("a1 a2 a3") };
        assert!(state.allows(&learner));
        // Into a joint configuration that mends a little, and out of it again.
        let joint = Config { outgoing: seats("a1 a2 a3"), ..voters("a1 a2 a3 b1 c1") };
        assert!(state.allows(&joint));
        state.on_config(2, &joint);
        assert!(state.allows(&voters("a1 a2 a3 b1 c1")));
    }

    #[test]
    fn only_members_sit_and_only_the_willing_vote() {
        let mut state = state("a1 a2 a3", "a1");
        assert!(!state.allows(&voters("a1 b1")));
        let learns = |label| Config { learners: seats(label), ..voters("a1") };
        let will_learn = |label| Config { learners_next: seats(label), ..voters("a1") };
        assert!(!state.allows(&learns("b1")) && !state.allows(&will_learn("b1")));
        member(&mut state, "a2").report.votes = false;
        assert!(!state.allows(&voters("a1 a2")));
        assert!(state.allows(&learns("a2")) && state.allows(&will_learn("a2")));
        member(&mut state, "a3").leaving = true;
        assert!(!state.allows(&voters("a1 a3")));
        assert!(!state.allows(&learns("a3")) && !state.allows(&will_learn("a3")));
        assert!(!state.allows(&Config::default()), "somebody must vote");
    }

    #[test]
    fn who_sits_already_may_stay_so_that_others_can_go() {
        let mut state = state("a1 a2 a3", "a1 a2 a3");
        member(&mut state, "a1").leaving = true;
        member(&mut state, "a2").report.votes = false;
        member(&mut state, "a3").seat = Some(RaftId(99));
        // The stale seat goes, though a leaving and an unwilling one are still there.
        assert!(state.allows(&voters("a1 a2")));
        assert!(state.allows(&voters("a1 a2 a3")));
        let demoted = Config { learners: seats("a1"), ..voters("a2") };
        assert!(state.allows(&demoted));
    }

    #[test]
    fn a_learner_is_judged_when_it_is_to_vote() {
        let mut state = state("a1 a2", "a1");
        state.on_config(2, &Config { learners: seats("a2"), ..voters("a1") });
        member(&mut state, "a2").leaving = true;
        assert!(state.allows(&Config { learners: seats("a2"), ..voters("a1") }));
        assert!(!state.allows(&voters("a1 a2")));
    }

    #[test]
    fn a_stale_seat_counts_for_nobody() {
        // a3's directory is gone: of the votes of a1, a2, a3, b1 its party has two.
        let mut state = state(THREE, "a1 a2 a3 b1");
        member(&mut state, "a3").seat = Some(RaftId(99));
        assert!(state.allows(&voters("a1 a2 a3 b2")));
        assert!(!state.allows(&voters("a1 a2 b1")));
        assert!(state.allows(&voters("a1 a2 b1 c1")));
    }

    #[test]
    fn the_rule_holds_in_a_mesh_that_grew_by_commands() {
        let mut scene = Scene::of_parties(3);
        scene.join(1, 4).unwrap();
        for n in 1..=4 {
            scene.report(n, |report| report.fsync_p99_us = Some(1000));
        }
        scene.seat_voters(&[1, 2]);
        let config = |scene: &Scene, nodes: &[u8]| Config {
            voters: nodes.iter().map(|n| scene.state.seat_of(id(*n)).unwrap()).collect(),
            ..Config::default()
        };
        assert!(!scene.state.allows(&config(&scene, &[1, 2, 4])));
        assert!(scene.state.allows(&config(&scene, &[1, 2, 3])));
        let next = config(&scene, &[1, 2, 4]);
        scene.act(&node(3), Leave { node: id(3) }).unwrap();
        assert!(scene.state.allows(&next), "the third party has no node any more");
        assert_eq!(scene.state.party_of(id(4)), Some(party_id(1)));
    }
}
