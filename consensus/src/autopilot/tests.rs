//! A table of situations for each rule, then random ones.

use super::*;

const SECOND: u64 = 1000;

fn ids(seats: &[u64]) -> BTreeSet<RaftId> {
    seats.iter().map(|&seat| RaftId(seat)).collect()
}

fn seats(seats: &[Seat]) -> Vec<Change> {
    vec![Change::Config(ConfigChange::Seats(seats.to_vec()))]
}

fn voter(seat: u64) -> Seat {
    Seat::Voter(RaftId(seat))
}

fn learner(seat: u64) -> Seat {
    Seat::Learner(RaftId(seat))
}

fn gone(seat: u64) -> Seat {
    Seat::Gone(RaftId(seat))
}

/// A calm mesh led by seat 1: everybody is well, and nothing has happened for a long time.
/// Members 1..=n in one party, each in a domain of its own.
fn calm(members: u64, voters: &[u64], learners: &[u64]) -> View<'static> {
    let now = Time(10_000 * SECOND);
    let config = Config { voters: ids(voters), learners: ids(learners), ..Config::default() };
    let member = |seat| {
        let part = config.contains(RaftId(seat));
        Candidate {
            seat: RaftId(seat),
            party: PartyId([0; 32]),
            domain: format!("rack {seat}"),
            leaving: false,
            eligible: true,
            contact: part.then_some(now),
            matched: if part { 1000 } else { 0 },
            alive: true,
            healthy_since: part.then_some(Time(0)),
        }
    };
    View {
        now,
        me: RaftId(1),
        change_pending: false,
        last_change: Some(Time(0)),
        quorum_since: Some(Time(0)),
        last_index: 1000,
        members: (1..=members).map(member).collect(),
        waits: Waits::default(),
        rule: Rule(&|_| true),
        planted: Planted::default(),
        config,
    }
}

impl View<'_> {
    fn with(mut self, seat: u64, change: impl Fn(&mut Candidate)) -> Self {
        let seat = RaftId(seat);
        self.members.iter_mut().filter(|c| c.seat == seat).for_each(change);
        self
    }

    fn silent_for(self, seat: u64, seconds: u64) -> Self {
        let at = Time(self.now.0 - seconds * SECOND);
        self.with(seat, |c| {
            c.contact = Some(at);
            c.healthy_since = None;
        })
    }

    fn leaving(self, seat: u64) -> Self {
        self.with(seat, |c| c.leaving = true)
    }

    fn removed(mut self, seat: u64) -> Self {
        self.members.retain(|c| c.seat != RaftId(seat));
        self
    }

    /// The first letter is the party of seat 1, and so on.
    fn parties(mut self, letters: &str) -> Self {
        for (c, letter) in self.members.iter_mut().zip(letters.bytes()) {
            c.party = PartyId([letter; 32]);
        }
        self
    }

    fn changed(mut self, seconds_ago: u64) -> Self {
        self.last_change = Some(Time(self.now.0 - seconds_ago * SECOND));
        self
    }
}

#[test]
fn an_eligible_node_offers_has_a_fast_disk_and_a_direct_path() {
    let ms = |ms| Some(Duration::from_millis(ms));
    assert!(eligible(true, ms(50), true));
    assert!(!eligible(false, ms(5), true));
    assert!(!eligible(true, ms(51), true));
    assert!(!eligible(true, ms(5), false));
    assert!(!eligible(true, None, true), "an unmeasured disk may be a slow one");
}

#[test]
fn the_target_is_odd_and_grows_with_the_members() {
    let targets: Vec<usize> = (0..=8).map(target).collect();
    assert_eq!(targets, [1, 1, 1, 3, 3, 5, 5, 5, 5]);
}

#[test]
fn no_party_fills_more_than_its_share_of_the_seats() {
    for (size, parties, filled) in [
        (5, &[4, 1, 1][..], 3),
        (5, &[4, 2, 1], 5),
        (5, &[2, 2, 1], 5),
        (5, &[2, 1, 1, 1], 5),
        (3, &[4, 1, 1], 3),
        // Of one or two parties nothing is asked.
        (5, &[5, 1], 5),
        (5, &[6], 5),
        (1, &[], 1),
    ] {
        assert_eq!(fair(size, parties), filled, "{size} {parties:?}");
    }
}

#[test]
fn a_mesh_in_its_target_configuration_is_left_alone() {
    assert_eq!(decide(&calm(1, &[1], &[])), []);
    assert_eq!(decide(&calm(2, &[1], &[2])), []);
    assert_eq!(decide(&calm(3, &[1, 2, 3], &[])), []);
    assert_eq!(decide(&calm(9, &[1, 2, 3, 4, 5], &[6, 7])), []);
}

#[test]
fn nothing_is_proposed_while_a_change_is_pending() {
    let view = View { change_pending: true, ..calm(5, &[1], &[2, 3, 4, 5]) };
    assert_eq!(decide(&view), []);
    // Not even a hand-over: the change would be orphaned half way.
    assert_eq!(decide(&View { change_pending: true, ..calm(3, &[1, 2, 3], &[]).leaving(1) }), []);
}

#[test]
fn a_joint_configuration_is_left_by_whoever_leads() {
    let mut view = calm(3, &[1, 2, 3], &[]);
    view.config.outgoing = ids(&[1]);
    assert_eq!(decide(&view), [Change::Config(ConfigChange::Leave)]);
    assert_eq!(decide(&View { change_pending: true, ..view }), []);
}

#[test]
fn nothing_is_proposed_without_a_healthy_quorum() {
    let view = calm(9, &[1, 2, 3], &[4, 5, 6, 7]).silent_for(2, 3).silent_for(3, 3);
    assert_eq!(decide(&view), []);
    // Neither is it with a quorum that is in contact but behind.
    let mut view = calm(9, &[1, 2, 3], &[4, 5, 6, 7]);
    view = view.with(2, |c| c.matched = 749).with(3, |c| c.matched = 749);
    assert_eq!(decide(&view), []);
}

#[test]
fn a_newcomer_is_a_learner_first() {
    assert_eq!(decide(&calm(2, &[1], &[])), seats(&[learner(2)]));
    // More than two, if they are to become voters.
    let view = calm(9, &[1, 2, 3], &[4, 5]).silent_for(4, 5).silent_for(5, 5);
    assert_eq!(decide(&view), seats(&[learner(6)]));
    assert_eq!(decide(&calm(9, &[1, 2, 3, 4, 5], &[6])), seats(&[learner(7)]));
}

#[test]
fn only_the_living_and_eligible_become_learners() {
    let view = calm(4, &[1], &[]);
    let view = view.with(2, |c| c.alive = false).with(3, |c| c.eligible = false);
    assert_eq!(decide(&view), seats(&[learner(4)]));
    assert_eq!(decide(&calm(2, &[1], &[]).leaving(2)), []);
}

#[test]
fn growth_takes_both_seats_at_once_and_does_not_wait() {
    let view = calm(3, &[1], &[2, 3]).changed(0);
    assert_eq!(decide(&View { quorum_since: None, ..view }), seats(&[voter(2), voter(3)]));
    let view = calm(9, &[1, 2, 3], &[4, 5, 6, 7]).changed(0);
    assert_eq!(decide(&view), seats(&[voter(4), voter(5)]));
    let view = calm(5, &[1], &[2, 3, 4, 5]);
    assert_eq!(decide(&view), seats(&[voter(2), voter(3), voter(4), voter(5)]));
    let view = calm(5, &[1], &[2, 3, 4, 5]).silent_for(2, 5);
    assert_eq!(decide(&view), seats(&[voter(3), voter(4)]), "three now, five when 2 is back");
}

#[test]
fn growth_never_stops_at_an_even_size() {
    assert_eq!(decide(&calm(3, &[1], &[2, 3]).silent_for(3, 5)), []);
    assert_eq!(decide(&calm(5, &[1, 2, 3], &[4, 5]).silent_for(5, 5)), []);
    // From one it goes on.
    assert_eq!(decide(&calm(3, &[1, 2], &[3])), seats(&[voter(3)]));
    assert_eq!(decide(&calm(5, &[1, 2, 3, 4], &[5])), seats(&[voter(5)]));
}

#[test]
fn one_newcomer_may_be_nearly_caught_up_but_not_the_one_the_quorum_needs() {
    let behind = |view: View<'static>, seat, matched| view.with(seat, move |c| c.matched = matched);
    let view = || View { last_index: 100_000, ..calm(3, &[1], &[2, 3]) };
    let both = seats(&[voter(2), voter(3)]);
    assert_eq!(decide(&behind(behind(view(), 2, 99_750), 3, 90_000)), both);
    assert_eq!(decide(&behind(behind(view(), 2, 99_750), 3, 89_999)), []);
    assert_eq!(decide(&behind(behind(view(), 2, 99_749), 3, 99_749)), []);
}

#[test]
fn growth_prefers_other_parties_and_then_other_domains() {
    let view = calm(6, &[1], &[2, 3, 4, 5]).parties("aaabaa");
    let view = view.with(6, |c| c.alive = false).with(2, |c| c.domain = "rack 1".into());
    // Of four seats, the other party's is the first; 2 shares a rack with the leader.
    let view = view.removed(6).removed(5);
    assert_eq!(decide(&view), seats(&[voter(3), voter(4)]));
}

#[test]
fn a_lost_voter_is_swapped_for_a_stable_learner_in_one_step() {
    let swap = seats(&[voter(6), gone(2)]);
    let view = || calm(9, &[1, 2, 3, 4, 5], &[6, 7]);
    assert_eq!(decide(&view().silent_for(2, 60)), swap);
    assert_eq!(decide(&view().silent_for(2, 59)), [], "it may come back");
    assert_eq!(decide(&view().silent_for(2, 600).changed(59)), [], "too soon after the last");
    let young = Time(view().now.0 - 59 * SECOND);
    let fresh = view().silent_for(2, 60).with(6, |c| c.healthy_since = Some(young));
    assert_eq!(decide(&fresh), seats(&[voter(7), gone(2)]));
    assert_eq!(decide(&fresh.with(7, |c| c.healthy_since = Some(young))), []);
    let awake = Some(Time(view().now.0 - 4 * SECOND));
    let paused = View { quorum_since: awake, ..view().silent_for(2, 600) };
    assert_eq!(decide(&paused), [], "the leader itself may have slept");
}

#[test]
fn a_voter_never_heard_is_lost_once_the_quorum_has_stood_for_long() {
    let view = calm(9, &[1, 2, 3, 4, 5], &[6, 7]).with(2, |c| c.contact = None);
    assert_eq!(decide(&view), seats(&[voter(6), gone(2)]));
    let elected = Some(Time(view.now.0 - 59 * SECOND));
    assert_eq!(decide(&View { quorum_since: elected, ..view }), []);
}

#[test]
fn gossip_alone_evicts_nobody() {
    let view = calm(9, &[1, 2, 3, 4, 5], &[6, 7]);
    let view = (2..=7).fold(view, |view, seat| view.with(seat, |c| c.alive = false));
    assert_eq!(decide(&view), []);
    // And it cannot keep anybody in either.
    let view = calm(9, &[1, 2, 3, 4, 5], &[6, 7]).silent_for(2, 60);
    assert_eq!(decide(&view.with(2, |c| c.alive = true)), seats(&[voter(6), gone(2)]));
}

#[test]
fn a_lost_voter_without_a_replacement_keeps_its_seat() {
    assert_eq!(decide(&calm(3, &[1, 2, 3], &[]).silent_for(2, 900)), []);
    assert_eq!(decide(&calm(5, &[1, 2, 3, 4, 5], &[]).silent_for(2, 900).silent_for(3, 900)), []);
}

#[test]
fn a_swap_needs_a_healthy_quorum_before_and_after() {
    // Before: 1 and 3 of three. After: 1 and 4 of {1, 3, 4}, although 3 is behind.
    let view = calm(4, &[1, 2, 3], &[4]).silent_for(2, 60);
    assert_eq!(decide(&view), seats(&[voter(4), gone(2)]));
    assert_eq!(decide(&view.with(3, |c| c.matched = 0)), []);
}

#[test]
fn a_leaving_voter_is_replaced_without_the_long_waits() {
    let view = || calm(10, &[1, 2, 3, 4, 5], &[6, 7]).changed(1).leaving(3);
    let new = Time(view().now.0 - SECOND);
    assert_eq!(
        decide(&view().with(6, |c| c.healthy_since = Some(new))),
        seats(&[voter(6), gone(3)])
    );
    assert_eq!(decide(&View { change_pending: true, ..view() }), []);
}

#[test]
fn a_leaving_voter_waits_for_its_replacement_but_not_for_ever() {
    let view = calm(6, &[1, 2, 3, 4, 5], &[6]).leaving(3);
    let view = view.with(6, |c| c.matched = 0);
    assert_eq!(decide(&view.clone().changed(59)), []);
    assert_eq!(decide(&view.changed(60)), seats(&[gone(3)]));
    // The one to wait for need not be a learner yet.
    let view = calm(6, &[1, 2, 3, 4, 5], &[]).leaving(3).changed(1);
    assert_eq!(decide(&view), seats(&[learner(6)]));
    let nobody = view.with(6, |c| c.eligible = false);
    assert_eq!(decide(&nobody), seats(&[gone(3)]));
}

#[test]
fn an_orphan_is_replaced_and_two_go_at_once() {
    let view = calm(9, &[1, 2, 3, 4, 5], &[6, 7]).changed(0);
    assert_eq!(decide(&view.clone().removed(5)), seats(&[voter(6), gone(5)]));
    let both = view.removed(5).removed(4);
    assert_eq!(decide(&both), seats(&[voter(6), voter(7), gone(4), gone(5)]));
    // With one ready, the orphan goes before the leaver, who can still vote.
    let one = calm(9, &[1, 2, 3, 4, 5], &[6]).leaving(4).removed(5);
    assert_eq!(decide(&one), seats(&[voter(6), gone(5)]));
}

#[test]
fn a_voter_that_must_go_stays_while_the_rest_would_be_no_healthy_quorum() {
    let view = calm(4, &[1, 2, 3], &[]).with(4, |c| c.eligible = false).leaving(2);
    assert_eq!(decide(&view), seats(&[gone(2)]));
    assert_eq!(decide(&view.silent_for(3, 5)), []);
}

#[test]
fn a_departure_that_lowers_the_target_takes_the_surplus_with_it() {
    let view = calm(3, &[1, 2, 3], &[]).leaving(2).changed(0);
    assert_eq!(decide(&view), seats(&[gone(2), learner(3)]));
    let view = calm(5, &[1, 2, 3, 4, 5], &[]).removed(2).changed(0);
    assert_eq!(decide(&view), seats(&[gone(2), learner(5)]));
}

#[test]
fn shrinking_keeps_its_distance_and_the_best_voters() {
    let view = || calm(4, &[1, 2, 3, 4], &[]);
    assert_eq!(decide(&view()), seats(&[learner(4)]));
    assert_eq!(decide(&view().changed(59)), []);
    assert_eq!(decide(&view().silent_for(2, 60)), seats(&[gone(2)]));
    assert_eq!(decide(&view().silent_for(2, 30)), seats(&[learner(2)]));
    assert_eq!(decide(&view().parties("aabc")), seats(&[learner(2)]));
}

#[test]
fn the_dead_count_as_members() {
    let view = calm(5, &[1, 2, 3, 4, 5], &[]);
    let view = view.silent_for(4, 900).silent_for(5, 900);
    assert_eq!(decide(&view.with(4, |c| c.alive = false).with(5, |c| c.alive = false)), []);
}

#[test]
fn a_leaving_leader_hands_over_to_the_most_caught_up_voter() {
    let view = calm(4, &[1, 2, 3], &[4]).leaving(1).changed(0);
    assert_eq!(decide(&view), [Change::Transfer(RaftId(2))]);
    let behind = view.clone().with(2, |c| c.matched = 999);
    assert_eq!(decide(&behind), [Change::Transfer(RaftId(3))]);
    let slow = view.clone().with(2, |c| c.eligible = false);
    assert_eq!(decide(&slow), [Change::Transfer(RaftId(3))]);
    assert_eq!(decide(&view.leaving(2)), [Change::Transfer(RaftId(3))]);
    assert_eq!(decide(&calm(3, &[1, 2, 3], &[]).removed(1)), [Change::Transfer(RaftId(2))]);
    // It may even lead without a vote, if its removal was committed under it.
    assert_eq!(decide(&calm(3, &[2, 3], &[])), [Change::Transfer(RaftId(2))]);
}

#[test]
fn a_sole_voter_that_leaves_first_makes_a_second() {
    let view = calm(2, &[1], &[2]).leaving(1).changed(0);
    assert_eq!(decide(&view), seats(&[voter(2)]));
    let two = calm(2, &[1, 2], &[]).leaving(1).changed(0);
    assert_eq!(decide(&two), [Change::Transfer(RaftId(2))]);
    let next = View { me: RaftId(2), ..calm(2, &[1, 2], &[]).leaving(1).changed(0) };
    assert_eq!(decide(&next), seats(&[gone(1)]));
    assert_eq!(decide(&calm(1, &[1], &[]).leaving(1)), [], "there is nobody to go to");
    let odd = calm(4, &[1], &[2, 3]).leaving(1);
    assert_eq!(decide(&odd), seats(&[voter(2), voter(3)]), "three if it can be had");
}

#[test]
fn an_ineligible_leader_hands_over_only_to_one_that_is_eligible_and_stable() {
    let slow = |view: View<'static>, seat| view.with(seat, |c| c.eligible = false);
    let view = slow(calm(3, &[1, 2, 3], &[]), 1);
    assert_eq!(decide(&view), [Change::Transfer(RaftId(2))]);
    assert_eq!(decide(&slow(slow(view.clone(), 2), 3)), []);
    let young = Some(Time(view.now.0 - SECOND));
    let calls = view.with(2, |c| c.healthy_since = young).with(3, |c| c.healthy_since = young);
    assert_eq!(decide(&calls), []);
    let alone = slow(calm(2, &[1], &[2]), 1);
    assert_eq!(decide(&alone), seats(&[voter(2)]));
    assert_eq!(decide(&alone.changed(10)), []);
}

#[test]
fn an_ineligible_voter_is_replaced_like_a_lost_one() {
    let view = calm(9, &[1, 2, 3, 4, 5], &[6, 7]).with(3, |c| c.eligible = false);
    assert_eq!(decide(&view), seats(&[voter(6), gone(3)]));
    assert_eq!(decide(&view.changed(59)), []);
    let no_better = calm(3, &[1, 2, 3], &[]).with(3, |c| c.eligible = false);
    assert_eq!(decide(&no_better), []);
}

#[test]
#[cfg(feature = "planted")]
fn the_planted_bug_removes_the_leader() {
    let planted = Planted::bug(Bug::LeaderRemovesItself);
    let view = View { planted, ..calm(4, &[1, 2, 3], &[4]).leaving(1) };
    assert_eq!(decide(&view), seats(&[gone(1)]));
    let alone = View { planted, ..calm(2, &[1], &[2]).leaving(1) };
    assert_eq!(decide(&alone), seats(&[voter(2)]), "there must be somebody left");
}

#[test]
fn with_three_parties_none_gets_a_seat_too_many() {
    // Two of three for a: its other voter makes room, never the leader.
    let view = calm(4, &[1, 2, 3], &[4]).parties("aabc");
    assert_eq!(decide(&view), seats(&[voter(4), learner(2)]));
    assert_eq!(decide(&view.clone().changed(59)), []);
    let young = Some(Time(view.now.0 - SECOND));
    assert_eq!(decide(&view.with(4, |c| c.healthy_since = young)), []);
    // Five voters with three of a, and nobody else to take a seat: three voters.
    let view = calm(7, &[1, 2, 3, 4, 5], &[6, 7]).parties("aaabcaa");
    assert_eq!(decide(&view), seats(&[learner(2), learner(3)]));
    // From there it does not grow again.
    assert_eq!(decide(&calm(7, &[1, 4, 5], &[2, 3]).parties("aaabcaa")), []);
}

#[test]
fn a_replacement_gives_no_party_a_seat_too_many() {
    let view = calm(7, &[1, 2, 3, 4, 5], &[6, 7]).silent_for(3, 60);
    assert_eq!(decide(&view.clone().parties("aabbcaa")), []);
    assert_eq!(decide(&view.clone().parties("aabbcac")), seats(&[voter(7), gone(3)]));
    // With the last of the third party lost, two parties share as they can.
    assert_eq!(decide(&view.parties("aacbbaa")), seats(&[voter(6), gone(3)]));
}

#[test]
fn two_parties_are_spread_as_wide_as_can_be() {
    let view = calm(7, &[1, 2, 3, 4, 5], &[6, 7]).parties("aaaabba");
    assert_eq!(decide(&view), seats(&[voter(6), learner(4)]));
    assert_eq!(decide(&calm(7, &[1, 2, 3, 4, 5], &[6, 7]).parties("aaabbba")), []);
}

#[test]
fn learners_are_chosen_from_other_parties_and_then_from_other_domains() {
    let view = calm(6, &[1, 2, 3, 4, 5], &[]).parties("aaaaab");
    assert_eq!(decide(&view), seats(&[learner(6)]));
    let racks = ["x", "x", "x", "y", "y", "x", "y", "z"];
    let mut view = calm(8, &[1, 2, 3, 4, 5], &[]);
    for (c, rack) in view.members.iter_mut().zip(racks) {
        c.domain = rack.into();
    }
    assert_eq!(best_learners(&view, 2), ids(&[7, 8]));
}

#[test]
fn a_better_learner_is_added_before_the_worse_one_goes() {
    let view = calm(8, &[1, 2, 3, 4, 5], &[6, 7]).with(7, |c| c.domain = "rack 1".into());
    assert_eq!(decide(&view.clone().changed(59)), []);
    assert_eq!(decide(&view), seats(&[learner(8)]));
    let both = calm(8, &[1, 2, 3, 4, 5], &[6, 7, 8]).with(7, |c| c.domain = "rack 1".into());
    assert_eq!(decide(&both), seats(&[gone(7)]));
    assert_eq!(decide(&both.with(8, |c| c.matched = 0)), [], "8 is not warm yet");
}

#[test]
fn a_learner_too_many_makes_room_for_one_of_a_party_without_a_seat() {
    // One of them voted until the only node of b took its place; the only node of c watches.
    let view = calm(9, &[1, 2, 3, 4, 8], &[5, 6, 7]).parties("aaaaaaabc");
    let mut mesh = Mesh { view, dead: BTreeSet::new(), changes: 0 };
    for _ in 0..1000 {
        mesh.step();
    }
    let view = &mesh.view;
    let votes = seats_by(view, &view.config.voters, |member| member.party.0[0]);
    assert_eq!(votes, BTreeMap::from([(b'a', 1), (b'b', 1), (b'c', 1)]));
}

#[test]
fn a_learner_goes_when_it_leaves_or_when_nobody_hears_it() {
    let view = || calm(7, &[1, 2, 3, 4, 5], &[6, 7]);
    assert_eq!(decide(&view().leaving(6).changed(0)), seats(&[gone(6)]));
    assert_eq!(decide(&view().removed(6).changed(0)), seats(&[gone(6)]));
    assert_eq!(decide(&view().silent_for(6, 60)), [], "gossip still hears it");
    assert_eq!(decide(&view().with(6, |c| c.alive = false)), [], "the leader still hears it");
    let dead = view().silent_for(6, 60).with(6, |c| c.alive = false);
    assert_eq!(decide(&dead), seats(&[gone(6)]));
}

/// Applies seats the way raft does: one is simple, more go through a joint configuration.
fn apply(config: &mut Config, change: &ConfigChange) {
    let ConfigChange::Seats(seats) = change else {
        assert!(config.is_joint(), "left a configuration that is not joint");
        config.outgoing.clear();
        let next = std::mem::take(&mut config.learners_next);
        config.learners.extend(next);
        return;
    };
    assert!(!config.is_joint() && !seats.is_empty() && seats.len() <= MAX_SEATS);
    let before = config.voters.clone();
    if seats.len() > 1 {
        config.outgoing = before.clone();
    }
    for &seat in seats {
        let (Seat::Voter(id) | Seat::Learner(id) | Seat::Gone(id)) = seat;
        config.voters.remove(&id);
        config.learners.remove(&id);
        match seat {
            Seat::Voter(id) => drop(config.voters.insert(id)),
            Seat::Learner(id) if config.outgoing.contains(&id) => {
                config.learners_next.insert(id);
            }
            Seat::Learner(id) => drop(config.learners.insert(id)),
            Seat::Gone(_) => {}
        }
    }
    assert!(!config.voters.is_empty(), "no voters are left");
    let moved = before.symmetric_difference(&config.voters).count();
    assert!(config.is_joint() || moved <= 1, "too much for a simple change");
}

/// A view in which anything may be true at once.
fn random_view(rng: &mut fastrand::Rng) -> View<'static> {
    let now = Time(rng.u64(0..400) * SECOND);
    let ago = |rng: &mut fastrand::Rng| {
        let seconds = *rng.choice(&[0, 0, 0, 1, 4, 30, 61, 100]).unwrap();
        Time(now.0.saturating_sub(seconds * SECOND))
    };
    let maybe_ago = |rng: &mut fastrand::Rng| (rng.u8(0..8) > 0).then(|| ago(rng));
    let parties = rng.u8(1..=4);
    let calm = rng.u8(1..=30);
    let odd = |rng: &mut fastrand::Rng| rng.u8(0..calm) == 0;
    let last_index = *rng.choice(&[0, 10, 1000, 1_000_000]).unwrap();
    let count = rng.u64(1..=10);
    let mut members = Vec::new();
    let mut config = Config::default();
    for seat in 1..=count {
        match rng.u8(0..4) {
            0 | 1 => drop(config.voters.insert(RaftId(seat))),
            2 => drop(config.learners.insert(RaftId(seat))),
            _ => {}
        }
        if odd(rng) {
            continue;
        }
        members.push(Candidate {
            seat: RaftId(seat),
            party: PartyId([rng.u8(0..parties); 32]),
            domain: rng.u8(0..4).to_string(),
            leaving: odd(rng),
            eligible: !odd(rng),
            contact: if odd(rng) { maybe_ago(rng) } else { Some(now) },
            matched: if odd(rng) { rng.u64(0..=last_index) } else { last_index },
            alive: !odd(rng),
            healthy_since: maybe_ago(rng),
        });
    }
    if config.voters.is_empty() {
        config.learners.remove(&RaftId(1));
        config.voters.insert(RaftId(1));
    }
    if rng.u8(0..20) == 0 {
        config.outgoing = ids(&[1]);
    }
    let voters: Vec<RaftId> = config.voters.iter().copied().collect();
    View {
        now,
        me: *rng.choice(&voters).unwrap(),
        config,
        change_pending: rng.u8(0..20) == 0,
        last_change: maybe_ago(rng),
        quorum_since: maybe_ago(rng),
        last_index,
        members,
        waits: Waits::default(),
        rule: Rule(&|_| true),
        planted: Planted::default(),
    }
}

/// Counted here once more, in other words than those of the code under test.
fn quorum_is_well(view: &View, voters: &BTreeSet<RaftId>) -> bool {
    let well = voters.iter().filter(|&&seat| {
        let of = view.members.iter().find(|c| c.seat == seat);
        seat == view.me
            || of.is_some_and(|c| {
                c.contact.is_some_and(|at| view.now.0 - at.0 <= 2000)
                    && view.last_index - c.matched.min(view.last_index) <= 250
            })
    });
    2 * well.count() > voters.len()
}

#[test]
fn whatever_the_view_no_change_harms() {
    let mut proposed = 0;
    for seed in 0..100_000 {
        let view = random_view(&mut fastrand::Rng::with_seed(seed));
        let changes = decide(&view);
        assert_eq!(changes, decide(&view), "seed {seed}: not deterministic");
        assert!(changes.len() <= 1, "seed {seed}: more than one change");
        let Some(change) = changes.first() else {
            continue;
        };
        assert!(!view.change_pending, "seed {seed}: a second change in flight");
        let at = format!("seed {seed}: {change:?} in {view:#?}");
        let change = match change {
            Change::Transfer(to) => {
                assert!(*to != view.me && view.config.voters.contains(to), "{at}");
                assert!(is_healthy(&view, *to), "{at}");
                continue;
            }
            Change::Config(ConfigChange::Leave) => {
                assert!(view.config.is_joint(), "{at}");
                continue;
            }
            Change::Config(change) => change,
        };
        proposed += 1;
        let old = view.config.voters.clone();
        let mut config = view.config.clone();
        apply(&mut config, change);
        if config.is_joint() {
            apply(&mut config, &ConfigChange::Leave);
        }
        assert!(quorum_is_well(&view, &old) && quorum_is_well(&view, &config.voters), "{at}");
        assert!(config.voters.contains(&view.me), "{at}");

        let count = view.members.iter().filter(|c| !c.leaving).count();
        let me = view.members.iter().find(|c| c.seat == view.me);
        let hands_over = old.len() == 1 && me.is_none_or(|c| c.leaving || !c.eligible);
        if config.voters.len() > old.len() && !hands_over {
            assert!(config.voters.len() <= target(count), "{at}");
            assert!(config.voters.len() % 2 == 1, "{at}");
        }
        for seat in config.voters.difference(&old) {
            assert!(view.config.learners.contains(seat), "never a learner: {at}");
            assert!(view.members.iter().any(|c| c.seat == *seat && c.eligible && !c.leaving));
        }
        let shrinks = config.voters.len() < old.len();
        let levels = crowding(&view, &config.voters).0 < crowding(&view, &old).0;
        for seat in old.difference(&config.voters) {
            let Some(c) = view.members.iter().find(|c| c.seat == *seat) else {
                continue;
            };
            let silent = match c.contact {
                Some(at) => view.now.0 - at.0 >= 60_000,
                None => true,
            };
            assert!(silent || c.leaving || !c.eligible || shrinks || levels, "{at}");
        }
        let asked =
            |seat: &RaftId| view.members.iter().find(|c| c.seat == *seat).is_none_or(|c| c.leaving);
        if shrinks && !old.difference(&config.voters).any(asked) {
            assert!(old.len() > target(count) || excess(&view, &old) > 0, "{at}");
        }
    }
    assert!(proposed > 10_000, "the views are too strange: {proposed}");
}

/// A mesh in which everybody who lives is heard and keeps up, stepped by the second.
struct Mesh {
    view: View<'static>,
    dead: BTreeSet<RaftId>,
    changes: u32,
}

impl Mesh {
    fn new(parties: &str) -> Self {
        let mut view = calm(parties.len() as u64, &[1], &[]).parties(parties);
        for (i, c) in view.members.iter_mut().enumerate() {
            c.domain = (i % 4).to_string();
        }
        Self { view, dead: BTreeSet::new(), changes: 0 }
    }

    fn step(&mut self) -> bool {
        let view = &mut self.view;
        view.now = Time(view.now.0 + SECOND);
        for c in &mut view.members {
            let up = !self.dead.contains(&c.seat);
            let part = view.config.contains(c.seat);
            c.alive = up;
            if part && up {
                c.contact = Some(view.now);
                c.matched = view.last_index;
                c.healthy_since = c.healthy_since.or(Some(view.now));
            } else {
                c.healthy_since = None;
                c.contact = c.contact.filter(|_| part);
            }
        }
        let Some(change) = decide(view).pop() else {
            return false;
        };
        self.changes += 1;
        match change {
            Change::Transfer(to) => self.lead(to),
            Change::Config(change) => {
                apply(&mut view.config, &change);
                view.last_change = Some(view.now);
            }
        }
        true
    }

    /// What only the former leader knew is forgotten.
    fn lead(&mut self, seat: RaftId) {
        self.view.me = seat;
        self.view.quorum_since = Some(self.view.now);
        self.view.last_change = None;
        for c in &mut self.view.members {
            c.contact = None;
            c.healthy_since = None;
        }
    }

    fn kill(&mut self, seat: RaftId) {
        self.dead.insert(seat);
        if self.view.me == seat {
            let heir = self.view.config.voters.difference(&self.dead).next().copied();
            self.lead(heir.expect("a quorum survives"));
        }
    }

    /// Its disk is lost, and it comes back under another seat.
    fn wipe(&mut self, seat: RaftId) {
        self.kill(seat);
        self.view.last_index += 1;
        let new = RaftId(self.view.last_index);
        self.change(seat, |c| {
            c.seat = new;
            c.contact = None;
            c.healthy_since = None;
        });
        self.dead.remove(&seat);
    }

    fn change(&mut self, seat: RaftId, change: impl Fn(&mut Candidate)) {
        let members = &mut self.view.members;
        members.iter_mut().filter(|c| c.seat == seat).for_each(change);
    }

    /// Whether a majority of the voters lives on without this one.
    fn survives_without(&self, seat: RaftId) -> bool {
        let voters = &self.view.config.voters;
        let dead = voters.iter().filter(|v| **v == seat || self.dead.contains(v));
        !voters.contains(&seat) || 2 * dead.count() < voters.len()
    }

    /// Whether the mesh could do without this seat: somebody could take it, or those that stay
    /// are a living majority among themselves.
    fn can_spare(&self, seat: RaftId) -> bool {
        let others = without(&self.view.config.voters, seat);
        let up = |v: &&RaftId| !self.dead.contains(v);
        let heirs =
            self.view.members.iter().filter(|c| {
                !c.leaving && c.eligible && !self.dead.contains(&c.seat) && c.seat != seat
            });
        let majority = 2 * others.iter().filter(up).count() > others.len();
        (majority && !others.is_empty()) || heirs.count() > others.iter().filter(up).count()
    }

    /// Runs until nothing has happened for longer than anything waits.
    fn settle(&mut self) {
        let mut quiet = 0;
        self.changes = 0;
        while quiet < 200 {
            quiet = if self.step() { 0 } else { quiet + 1 };
            assert!(self.changes < 100, "it never comes to rest: {:#?}", self.view);
        }
    }

    fn check(&self, what: &str) {
        let view = &self.view;
        let at = || format!("{what}: {:?} of {:#?}", view.config, view.members);
        let stay: Vec<&Candidate> = view.members.iter().filter(|c| !c.leaving).collect();
        let up: Vec<_> =
            stay.iter().filter(|c| c.eligible && !self.dead.contains(&c.seat)).collect();
        let mut by_party: BTreeMap<PartyId, usize> = BTreeMap::new();
        up.iter().for_each(|c| *by_party.entry(c.party).or_default() += 1);

        let full = target(stay.len());
        let fits = |n: usize| match by_party.len() {
            0..=2 => up.len() >= n,
            _ => by_party.values().map(|&m| m.min((n - 1) / 2)).sum::<usize>() >= n,
        };
        let voters = &view.config.voters;
        assert!(!view.config.is_joint(), "{}", at());
        assert!(voters.len() <= full, "{}", at());
        if fits(full) {
            assert_eq!(voters.len(), full, "{}", at());
            assert!(voters.iter().all(|v| up.iter().any(|c| c.seat == *v)), "{}", at());
        }
        let mut most: BTreeMap<PartyId, usize> = BTreeMap::new();
        for seat in voters {
            let c = stay.iter().find(|c| c.seat == *seat).expect("only members vote");
            *most.entry(c.party).or_default() += 1;
        }
        if by_party.len() >= 3 && voters.len() >= 3 {
            assert!(most.values().all(|&m| m <= (voters.len() - 1) / 2), "{}", at());
        }
        let rest = up.iter().filter(|c| !voters.contains(&c.seat)).count();
        assert_eq!(view.config.learners.len(), rest.min(WARM_LEARNERS), "{}", at());
        assert!(view.config.learners.is_disjoint(&self.dead), "{}", at());
    }
}

const LAYOUTS: [&str; 7] =
    ["aaaaaaaaa", "abababababa", "abcabcabc", "aaaaaaabc", "abbbbbccc", "aaaabbbbb", "abcdeabcd"];

#[test]
fn a_mesh_of_any_size_and_layout_comes_to_rest_in_its_target() {
    for layout in LAYOUTS {
        for count in 1..=9 {
            let mut mesh = Mesh::new(&layout[..count]);
            mesh.settle();
            mesh.check(&layout[..count]);
        }
    }
}

#[test]
fn a_mesh_comes_to_rest_after_any_departures_and_deaths() {
    for seed in 0..600 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let layout = LAYOUTS[rng.usize(..LAYOUTS.len())];
        let mut mesh = Mesh::new(&layout[..rng.usize(1..=9)]);
        mesh.settle();
        for round in 0..5 {
            let seat = mesh.view.members[rng.usize(..mesh.view.members.len())].seat;
            let may_fail = mesh.survives_without(seat) && !mesh.dead.contains(&seat);
            match rng.u8(0..5) {
                0 if may_fail => mesh.kill(seat),
                1 => drop(mesh.dead.remove(&seat)),
                2 if may_fail => mesh.wipe(seat),
                3 => mesh.change(seat, |c| c.leaving = true),
                4 => mesh.change(seat, |c| c.eligible = !c.eligible),
                _ => continue,
            }
            mesh.settle();
            let at = format!("seed {seed}, round {round}");
            // Who leaves is let go, unless nobody could carry on.
            let leaver = mesh.view.members.iter().find(|c| c.leaving);
            if let Some(seat) = leaver.map(|c| c.seat) {
                if mesh.view.config.contains(seat) {
                    assert!(!mesh.can_spare(seat), "{at}: {seat} of {:#?}", mesh.view);
                    break;
                }
                mesh.view.members.retain(|c| !c.leaving);
            }
            mesh.check(&at);
        }
    }
}
