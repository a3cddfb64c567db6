//! Who should vote: a pure function that the leader asks now and then.
//!
//! [`decide`] looks at one [`View`] and answers with the next step towards the configuration that
//! the mesh should have, or with nothing. It owns no state and remembers nothing: whatever must be
//! waited for is a time in the view. The leader makes the view, proposes the change, and asks again
//! when it has been applied.
//!
//! The goal: 1, 3 or 5 voters by the number of members ([`target`]), spread over parties and then
//! over failure domains; two warm learners as far away from the voters as can be had; nobody else.
//!
//! ```text
//!            add            caught up: growth, or the other half of a swap
//!  watcher ───────► learner ─────────────────────────────────────────────► voter
//!     ▲                │ ▲                                                   │
//!     └────────────────┘ └───────────────────────────────────────────────────┤
//!       not needed, lost            surplus, or its party has too many seats │
//!     ▲                                                                      │
//!     └──────────────────────────────────────────────────────────────────────┘
//!                    leaving, wiped, lost, or no longer eligible
//! ```
//!
//! The rules, in the order in which they are asked. The first that has an answer gives it.
//!
//! 1. Nothing while a change is pending. A joint configuration is left: a leader that steps down
//!    in the middle never does it itself, so whoever comes next must.
//! 2. Nothing without a healthy quorum: such a change could not be committed.
//! 3. A leader that must go hands over. It never removes itself: raft-rs would let it go on leading.
//! 4. Voters that are leaving or whose disk is gone are replaced, else removed. No long waits.
//! 5. Too few voters: promote. No waits.
//! 6. Too many voters: demote. From here on, changes keep their distance in time.
//! 7. A voter that the leader has not heard for long, or that is no longer eligible, is swapped
//!    for a learner that has long been healthy. Nobody leaves without a replacement.
//! 8. A voter of a party with too many seats is swapped for one of a party with too few.
//! 9. The learners are put in order.
//!
//! **Odd sizes.** Growth goes from 1 to 3 to 5 in joint steps and waits until both newcomers are
//! there. Two voters survive the loss of neither, where one survives the loss of the other, and
//! four survive one loss like three, with one more machine that can fail. So an even size is never
//! a goal; it happens only on the way out of something worse (a leader that must go and has nobody
//! to hand over to, a voter that leaves and cannot be replaced), and from there one more is enough.
//!
//! **Gossip.** `alive` helps to choose whom to try as a learner. It never costs a voter its seat:
//! only the leader's own silence towards it does, so a forged "X is dead" evicts nobody.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{PartyId, RaftId};
use crate::log::{Config, ConfigChange, MAX_SEATS, Seat};
use crate::planted::{Bug, Planted};
use crate::time::Time;

/// Learners beyond the voters that are kept up to date. Two, so that after the loss of two of five
/// voters both seats are filled without copying a snapshot first.
pub const WARM_LEARNERS: usize = 2;

/// A slower disk does not vote. Every commit waits for the syncs of a majority, and a leader's
/// heartbeats, 100 ms apart, wait behind its own.
pub const FSYNC_LIMIT: Duration = Duration::from_millis(50);

/// How much of the log a newcomer must hold before it may fill an empty seat (etcd asks the same).
/// The quorum never depends on such a one: see [`Waits::lag`].
pub const CAUGHT_UP_PERCENT: u64 = 90;

/// How long to wait before what. A simulator shortens them; nobody else should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Heard within this: in contact.
    pub recent: Duration,
    /// A voter unheard by the leader for this long is lost, and may be replaced.
    pub lost: Duration,
    /// A replacement must have been healthy for this long.
    pub stable: Duration,
    /// The least time between two changes that are not growth.
    pub apart: Duration,
    /// How long the leader must have had a quorum before it judges anyone by silence.
    pub quorum: Duration,
    /// How long a voter that is leaving waits for its replacement to catch up.
    pub patience: Duration,
    /// This many entries behind the leader still counts as caught up.
    pub lag: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            // Twenty heartbeats: losing them all by chance needs a link that cannot carry raft.
            recent: Duration::from_secs(2),
            // A reboot takes less. Replacing a voter that is about to return costs more (a
            // snapshot, two entries, a colder learner) than a minute with one voter less.
            lost: Duration::from_secs(60),
            // As long as `lost`: whoever flaps faster than that never gets a seat by replacement.
            stable: Duration::from_secs(60),
            // One at a time, and time to see whether the last one made things better or worse.
            apart: Duration::from_secs(60),
            // A leader that was paused wakes up with everyone silent for long; within a few round
            // trips it knows better.
            quorum: Duration::from_secs(5),
            // A small state is copied in seconds. Whoever asked to leave is not held up for ever.
            patience: Duration::from_secs(60),
            // What a busy leader has in flight to a healthy follower (Nomad's figure).
            lag: 250,
        }
    }
}

/// What the leader knows when it asks.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// The leader's clock.
    pub now: Time,
    /// The leader.
    pub me: RaftId,
    /// The configuration as applied.
    pub config: Config,
    /// A configuration entry is proposed but not applied.
    pub change_pending: bool,
    /// When this leader last saw a change applied; `None` if it never has.
    pub last_change: Option<Time>,
    /// Since when the leader has had a healthy quorum without a break.
    pub quorum_since: Option<Time>,
    /// The last index of the leader's log.
    pub last_index: u64,
    /// All members of the mesh, each seat once. Seats of the configuration that are not among them
    /// are orphans: removed, or wiped and back under another seat.
    pub members: Vec<Candidate>,
    /// Which configurations count. A change to another would be void, so none is proposed.
    pub rule: Rule<'a>,
    /// See [`Waits`].
    pub waits: Waits,
    /// See [`crate::planted`].
    pub planted: Planted,
}

/// The replicated state's own judgement of a configuration: see
/// [`StateMachine::allows`](crate::machine::StateMachine::allows).
#[derive(Clone, Copy)]
pub struct Rule<'a>(pub &'a dyn Fn(&Config) -> bool);

impl std::fmt::Debug for Rule<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rule")
    }
}

/// A member, as the leader sees it. Of the leader itself only the first five fields are looked at.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its seat.
    pub seat: RaftId,
    /// Whose it is.
    pub party: PartyId,
    /// What fails together with it.
    pub domain: String,
    /// It has asked to go, and no longer counts as a member.
    pub leaving: bool,
    /// See [`eligible`].
    pub eligible: bool,
    /// When the leader last heard raft from it.
    pub contact: Option<Time>,
    /// Up to where its log is known to equal the leader's.
    pub matched: u64,
    /// Gossip says that it is alive. Advice only.
    pub alive: bool,
    /// Since when it has been in contact and caught up without a break.
    pub healthy_since: Option<Time>,
}

/// What the leader should do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Propose this.
    Config(ConfigChange),
    /// Hand the leadership to this voter.
    Transfer(RaftId),
}

/// Whether a node may be given a vote: it offers to (`votes`), its disk is fast, and the voters
/// reach it directly. A disk that has not been measured does not count as fast.
pub fn eligible(votes: bool, fsync_p99: Option<Duration>, direct_path: bool) -> bool {
    votes && direct_path && fsync_p99.is_some_and(|p99| p99 <= FSYNC_LIMIT)
}

/// How many should vote among so many members.
///
/// Members, not live nodes: otherwise each outage would lower the majority that the next one has to
/// leave standing. More than five would slow every commit, and the learners stand by for a third
/// loss.
pub fn target(members: usize) -> usize {
    match members {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// How many of `size` seats are filled if each of these numbers is what one party could fill, and
/// none of them may have more than its share. Below three parties there are no shares.
pub fn fair(mut size: usize, parties: &[usize]) -> usize {
    if parties.len() >= 3 {
        while size > 3 && parties.iter().map(|&n| n.min(share(size))).sum::<usize>() < size {
            size -= 2;
        }
    }
    size
}

/// The next step, if one is due; never more than one.
///
/// Nothing here is random and ties go to the lower seat: the same view gives the same answer.
pub fn decide(view: &View<'_>) -> Vec<Change> {
    next(view).into_iter().collect()
}

fn next(view: &View<'_>) -> Option<Change> {
    if view.change_pending {
        return None;
    }
    if view.config.is_joint() {
        return Some(Change::Config(ConfigChange::Leave));
    }
    // Every change is committed by the voters of today, whatever it makes of them.
    if !has_quorum(view, &view.config.voters) {
        return None;
    }
    hand_over(view)
        .or_else(|| retire(view))
        .or_else(|| grow(view))
        .or_else(|| shrink(view))
        .or_else(|| replace(view))
        .or_else(|| rebalance(view))
        .or_else(|| arrange_learners(view))
}

/// Rule 3: a leader that is leaving, whose seat is not a member's, or that is no longer eligible.
///
/// Its seat is never the surplus one: the rules that make room always take another.
fn hand_over(view: &View<'_>) -> Option<Change> {
    let voters = &view.config.voters;
    let going = !voters.contains(&view.me) || is_gone(view, view.me);
    let unfit = view.member(view.me).is_some_and(|me| !me.eligible);
    if !going && !unfit {
        return None;
    }

    // A slow leader is better than one that comes and goes, so when eligibility is the only reason,
    // the successor must be eligible and have been healthy for long. A new leader starts to count
    // anew, so the leadership moves for this reason once in `Waits::stable` at most.
    let successor = voters
        .iter()
        .filter_map(|&seat| view.member(seat))
        .filter(|c| c.seat != view.me && !c.leaving && is_healthy(view, c.seat))
        .filter(|c| going || (c.eligible && is_stable(view, c)))
        .min_by_key(|c| (!c.eligible, Reverse(c.matched), c.seat));
    if let Some(successor) = successor {
        if !going && !quorum_lasts(view) {
            return None;
        }
        if view.planted.has(Bug::LeaderRemovesItself) && voters.contains(&view.me) {
            let rest = without(voters, view.me);
            let gone = ConfigChange::Seats(vec![Seat::Gone(view.me)]);
            return has_quorum(view, &rest).then_some(Change::Config(gone));
        }
        return Some(Change::Transfer(successor.seat));
    }

    // Alone, it needs somebody to hand over to: two voters for a moment. The next leader ends it.
    if voters.len() != 1 || !voters.contains(&view.me) || (!going && !is_settled(view)) {
        return None;
    }
    if let Some(growth) = grow(view) {
        return Some(growth);
    }
    let heirs = learners(view, |c| is_ready(view, c) && (going || is_stable(view, c)));
    let heir = spread(view, voters, &heirs, 1);
    propose(view, &(voters | &heir))
}

/// Rule 4: voters that are leaving, and seats that no member holds.
fn retire(view: &View<'_>) -> Option<Change> {
    let voters = &view.config.voters;
    let (gone, stay): (BTreeSet<RaftId>, BTreeSet<RaftId>) =
        voters.iter().partition(|&&seat| seat != view.me && is_gone(view, seat));
    if gone.is_empty() {
        return None;
    }
    let size = members_target(view);
    if stay.len() >= size {
        // If the target has come down with it, the surplus goes in the same step: to stop at an
        // even size and wait would be the worst of the three.
        return propose(view, &keep(view, &stay, size));
    }

    let ready = learners(view, |c| is_ready(view, c));
    let filled = &stay | &spread(view, &stay, &ready, size - stay.len());
    if filled.len() == size
        && excess(view, &filled) <= excess(view, voters)
        && let Some(change) = propose(view, &filled)
    {
        return Some(change);
    }
    // An orphan before a leaver: the one cannot vote any more, the other still does.
    let first = gone.iter().min_by_key(|&&seat| (view.member(seat).is_some(), seat));
    if let Some(change) = first.and_then(|&seat| swap(view, seat, &ready)) {
        return Some(change);
    }
    let somebody_comes = learner_pool(view).iter().any(|(rank, _)| *rank == 0);
    let waiting_since = view.last_change.max(view.quorum_since);
    let patient = waiting_since.is_some_and(|since| view.now.since(since) < view.waits.patience);
    if somebody_comes && patient {
        return None;
    }
    propose(view, &stay)
}

/// Rule 5: fewer voters than the members ask for.
fn grow(view: &View<'_>) -> Option<Change> {
    let voters = &view.config.voters;
    // Those that have nearly caught up may come along, but if they would take the quorum's place,
    // only those that have fully caught up come.
    let nearly = learners(view, |c| is_nearly_ready(view, c));
    let ready = learners(view, |c| is_ready(view, c));
    let mut size = members_target(view);
    while size > voters.len() {
        for pool in [&nearly, &ready] {
            let grown = voters | &spread(view, voters, pool, size - voters.len());
            // How many voters more may fail at this moment must not become less.
            if grown.len() == size
                && excess(view, &grown) == 0
                && spare(view, &grown) >= spare(view, voters)
                && let Some(change) = propose(view, &grown)
            {
                return Some(change);
            }
        }
        size = size.saturating_sub(2);
    }
    None
}

/// Rule 6: more voters than the members ask for, or than the parties can fill without one of them
/// having too many.
fn shrink(view: &View<'_>) -> Option<Change> {
    let voters = &view.config.voters;
    // The second case: five voters of which one party has three, and nobody else to take a seat.
    // Three voters of three parties are fewer, but a majority of one party would be void.
    let size = match excess(view, voters) {
        0 => members_target(view),
        _ => parties_target(view),
    };
    if voters.len() <= size || !is_settled(view) {
        return None;
    }
    propose(view, &keep(view, voters, size))
}

/// Rule 7: one voter that is lost or no longer eligible, for one that has long been healthy.
fn replace(view: &View<'_>) -> Option<Change> {
    if !is_settled(view) {
        return None;
    }
    let stable = learners(view, |c| is_stable(view, c));
    let mut bad: Vec<(bool, RaftId)> = view
        .config
        .voters
        .iter()
        .filter(|&&seat| seat != view.me)
        .map(|&seat| (!is_lost(view, seat), seat))
        .filter(|&(heard, seat)| !heard || !is_fit(view, seat))
        .collect();
    bad.sort();
    bad.into_iter().find_map(|(_, seat)| swap(view, seat, &stable))
}

/// Rule 8: one voter of a party with too many seats, for one of a party with too few.
fn rebalance(view: &View<'_>) -> Option<Change> {
    if !is_settled(view) {
        return None;
    }
    let voters = &view.config.voters;
    let now = crowding(view, voters);
    let stable = learners(view, |c| is_stable(view, c));
    let mut best = None;
    for &out in voters.iter().filter(|&&seat| seat != view.me) {
        for c in &stable {
            let mut swapped = without(voters, out);
            swapped.insert(c.seat);
            let then = crowding(view, &swapped);
            // Only the parties are worth a change. The domains have their say in who is chosen.
            if then.0 < now.0 {
                // The lower seat comes in and the higher one goes.
                best = best.max(Some((Reverse(then), Reverse(c.seat), out, swapped)));
            }
        }
    }
    best.and_then(|(_, _, _, swapped)| propose(view, &swapped))
}

/// Rule 9: the voters to come and the warm ones are learners, and nobody else is.
fn arrange_learners(view: &View<'_>) -> Option<Change> {
    let current = &view.config.learners;
    let seat = |seat| Some(Change::Config(ConfigChange::Seats(vec![seat])));
    if let Some(&gone) = current.iter().find(|&&learner| is_gone(view, learner)) {
        return seat(Seat::Gone(gone));
    }

    let voters = &view.config.voters;
    let growth = parties_target(view).saturating_sub(voters.len());
    let wanted = best_learners(view, growth + WARM_LEARNERS);

    // A better one is added before the worse one goes, so that there is always a warm one; it is
    // one more at a time, or a mesh in motion would collect them.
    let room = current.len() < wanted.len() || (current.len() == wanted.len() && is_settled(view));
    if let Some(&missing) = wanted.difference(current).next()
        && room
    {
        return seat(Seat::Learner(missing));
    }

    // Of those that are wanted and sit: one that has no seat yet waits for this one's.
    let all_warm = wanted.intersection(current).all(|&learner| is_healthy(view, learner));
    let unwanted = current
        .difference(&wanted)
        .map(|&learner| (is_healthy(view, learner) && is_fit(view, learner), learner))
        // Those of use go last, and of two that are alike the higher seat goes.
        .min_by_key(|&(useful, learner)| (useful, Reverse(learner)));
    match unwanted {
        Some((useful, learner)) if is_settled(view) && (all_warm || !useful) => {
            seat(Seat::Gone(learner))
        }
        _ => None,
    }
}

/// The members that can be learners, with a rank: 0, or 1 for those that gossip calls alive and
/// the leader does not hear. Who is silent to both is not among them.
fn learner_pool<'a>(view: &'a View<'_>) -> Vec<(u8, &'a Candidate)> {
    view.members
        .iter()
        .filter(|c| !c.leaving && c.eligible && !view.config.voters.contains(&c.seat))
        .filter_map(|c| match (view.config.learners.contains(&c.seat), is_lost(view, c.seat)) {
            (true, false) => Some((0, c)),
            (true, true) => c.alive.then_some((1, c)),
            (false, _) => c.alive.then_some((0, c)),
        })
        .collect()
}

/// The `count` learners that lie farthest from the voters and from one another. A learner of today
/// stays where it is as good as any.
fn best_learners(view: &View<'_>, count: usize) -> BTreeSet<RaftId> {
    let pool = learner_pool(view)
        .into_iter()
        .map(|(rank, c)| (rank, !view.config.learners.contains(&c.seat), c))
        .collect();
    pick(view, &view.config.voters, pool, count)
}

/// `size` of these voters: the leader if it is among them, then those that are heard and eligible,
/// as far apart as can be had.
fn keep(view: &View<'_>, voters: &BTreeSet<RaftId>, size: usize) -> BTreeSet<RaftId> {
    // One change has room for so many seats only. No configuration of ours is that large.
    let size = size.max(voters.len().saturating_sub(MAX_SEATS));
    let kept: BTreeSet<RaftId> = voters.iter().copied().filter(|&v| v == view.me).collect();
    let pool = voters
        .iter()
        .filter_map(|&seat| view.member(seat))
        .filter(|c| c.seat != view.me)
        .map(|c| {
            let rank = match (is_lost(view, c.seat), is_fit(view, c.seat)) {
                (true, _) => 3,
                (false, false) => 2,
                (false, true) => u8::from(!is_healthy(view, c.seat)),
            };
            (rank, false, c)
        })
        .collect();
    let others = pick(view, &kept, pool, size.saturating_sub(kept.len()));
    &kept | &others
}

/// `count` of `pool` that lie farthest from `base` and from one another.
fn spread(
    view: &View<'_>,
    base: &BTreeSet<RaftId>,
    pool: &[&Candidate],
    count: usize,
) -> BTreeSet<RaftId> {
    pick(view, base, pool.iter().map(|c| (0, false, *c)).collect(), count)
}

/// Takes one after the other the best by (rank, seats of its party, seats in its domain, tie, seat),
/// where the seats are those of `base` and of the ones taken so far.
fn pick(
    view: &View<'_>,
    base: &BTreeSet<RaftId>,
    mut pool: Vec<(u8, bool, &Candidate)>,
    count: usize,
) -> BTreeSet<RaftId> {
    let mut parties: BTreeMap<PartyId, usize> = BTreeMap::new();
    let mut domains: BTreeMap<&str, usize> = BTreeMap::new();
    for c in base.iter().filter_map(|&seat| view.member(seat)) {
        *parties.entry(c.party).or_default() += 1;
        *domains.entry(&c.domain).or_default() += 1;
    }
    let mut picked = BTreeSet::new();
    while picked.len() < count {
        let best = (0..pool.len()).min_by_key(|&i| {
            let (rank, tie, c) = pool[i];
            let of_party = parties.get(&c.party).copied().unwrap_or(0);
            let in_domain = domains.get(c.domain.as_str()).copied().unwrap_or(0);
            (rank, of_party, in_domain, tie, c.seat)
        });
        let Some(best) = best else { break };
        let (_, _, c) = pool.swap_remove(best);
        *parties.entry(c.party).or_default() += 1;
        *domains.entry(&c.domain).or_default() += 1;
        picked.insert(c.seat);
    }
    picked
}

/// One atomic step: the best of `pool` votes in the place of `out`.
fn swap(view: &View<'_>, out: RaftId, pool: &[&Candidate]) -> Option<Change> {
    let voters = &view.config.voters;
    let rest = without(voters, out);
    let swapped = &rest | &spread(view, &rest, pool, 1);
    if swapped.len() != voters.len() || excess(view, &swapped) > excess(view, voters) {
        return None;
    }
    propose(view, &swapped)
}

/// The change that makes `voters` vote, unless it would be void or could get stuck: while joint both
/// majorities are needed, and afterwards the new one, so both must be healthy now.
fn propose(view: &View<'_>, voters: &BTreeSet<RaftId>) -> Option<Change> {
    let old = &view.config.voters;
    let drops_leader = old.contains(&view.me) && !voters.contains(&view.me);
    if old == voters || drops_leader || !has_quorum(view, old) || !has_quorum(view, voters) {
        return None;
    }
    let mut seats: Vec<Seat> = voters.difference(old).map(|&seat| Seat::Voter(seat)).collect();
    seats.extend(old.difference(voters).map(|&seat| {
        // Who could still serve is kept warm; rule 9 decides later whether it is needed.
        match is_fit(view, seat) && !is_lost(view, seat) {
            true => Seat::Learner(seat),
            false => Seat::Gone(seat),
        }
    }));
    let change = ConfigChange::Seats(seats);
    let counts = view.config.after(&change).is_some_and(|next| view.rule.0(&next));
    counts.then_some(Change::Config(change))
}

impl View<'_> {
    fn member(&self, seat: RaftId) -> Option<&Candidate> {
        self.members.iter().find(|c| c.seat == seat)
    }
}

/// The learners of today that `suits` accepts.
fn learners<'a>(view: &'a View<'_>, suits: impl Fn(&Candidate) -> bool) -> Vec<&'a Candidate> {
    let learners = view.config.learners.iter().filter_map(|&seat| view.member(seat));
    learners.filter(|c| suits(c)).collect()
}

fn without(seats: &BTreeSet<RaftId>, seat: RaftId) -> BTreeSet<RaftId> {
    seats.iter().copied().filter(|&s| s != seat).collect()
}

/// Leaving, or no member at all.
fn is_gone(view: &View<'_>, seat: RaftId) -> bool {
    view.member(seat).is_none_or(|c| c.leaving)
}

/// A member that may vote.
fn is_fit(view: &View<'_>, seat: RaftId) -> bool {
    view.member(seat).is_some_and(|c| !c.leaving && c.eligible)
}

fn in_contact(view: &View<'_>, c: &Candidate) -> bool {
    c.contact.is_some_and(|at| view.now.since(at) <= view.waits.recent)
}

/// In contact and caught up.
fn is_healthy(view: &View<'_>, seat: RaftId) -> bool {
    seat == view.me
        || view.member(seat).is_some_and(|c| {
            let caught_up = c.matched.saturating_add(view.waits.lag) >= view.last_index;
            // In a short log everybody is within the lag, also who has nothing at all.
            in_contact(view, c) && caught_up && c.matched > 0
        })
}

/// Unheard by the leader for long. Whoever it has never heard had its chance since the quorum
/// stands, and since the change that may have brought it in.
fn is_lost(view: &View<'_>, seat: RaftId) -> bool {
    let long_ago = |at: Time| view.now.since(at) >= view.waits.lost;
    seat != view.me
        && view.member(seat).is_none_or(|c| match c.contact {
            Some(at) => long_ago(at),
            None => {
                view.quorum_since.is_some_and(long_ago) && view.last_change.is_none_or(long_ago)
            }
        })
}

/// May take a seat that somebody is waiting to leave.
fn is_ready(view: &View<'_>, c: &Candidate) -> bool {
    is_fit(view, c.seat) && is_healthy(view, c.seat)
}

/// May take an empty seat.
fn is_nearly_ready(view: &View<'_>, c: &Candidate) -> bool {
    let enough = u128::from(view.last_index) * u128::from(CAUGHT_UP_PERCENT);
    let nearly = u128::from(c.matched) * 100 >= enough;
    is_ready(view, c) || (is_fit(view, c.seat) && in_contact(view, c) && nearly)
}

/// May take the seat of somebody who did not ask to go.
fn is_stable(view: &View<'_>, c: &Candidate) -> bool {
    let long = |since| view.now.since(since) >= view.waits.stable;
    is_ready(view, c) && c.healthy_since.is_some_and(long)
}

fn quorum_lasts(view: &View<'_>) -> bool {
    view.quorum_since.is_some_and(|since| view.now.since(since) >= view.waits.quorum)
}

/// Whether it is time for a change that is not growth.
fn is_settled(view: &View<'_>) -> bool {
    let apart = |at| view.now.since(at) >= view.waits.apart;
    quorum_lasts(view) && view.last_change.is_none_or(apart)
}

fn healthy(view: &View<'_>, voters: &BTreeSet<RaftId>) -> usize {
    voters.iter().filter(|&&seat| is_healthy(view, seat)).count()
}

fn has_quorum(view: &View<'_>, voters: &BTreeSet<RaftId>) -> bool {
    healthy(view, voters) > voters.len() / 2
}

/// How many healthy voters there are beyond a majority.
fn spare(view: &View<'_>, voters: &BTreeSet<RaftId>) -> Option<usize> {
    healthy(view, voters).checked_sub(voters.len() / 2 + 1)
}

/// The target by the number of members. Those that are down count: only a removal lowers it.
fn members_target(view: &View<'_>) -> usize {
    target(view.members.iter().filter(|c| !c.leaving).count())
}

/// As [`members_target`], and so many that the parties which could take part can fill the seats
/// without any of them having more than its share.
fn parties_target(view: &View<'_>) -> usize {
    let voters = view.config.voters.iter().filter_map(|&seat| view.member(seat));
    let usable = voters.filter(|c| is_fit(view, c.seat) && !is_lost(view, c.seat));
    let mut parties: BTreeMap<PartyId, usize> = BTreeMap::new();
    for c in usable.chain(learner_pool(view).into_iter().map(|(_, c)| c)) {
        *parties.entry(c.party).or_default() += 1;
    }
    fair(members_target(view), &parties.into_values().collect::<Vec<_>>())
}

/// The most seats of `size` with which a party can neither commit nor block alone. Below three
/// seats there is no such number.
fn share(size: usize) -> usize {
    if size < 3 { size } else { (size - 1) / 2 }
}

/// By how many seats the largest party has more than its share. There are shares only once three
/// parties have somebody who votes or could: with two, one of them can always block.
fn excess(view: &View<'_>, voters: &BTreeSet<RaftId>) -> usize {
    // A party with a vote is present until its voters are lost, so that a hiccup moves nobody; one
    // without is present once its learner could take a seat.
    let present: BTreeSet<PartyId> = view
        .members
        .iter()
        .filter(|c| is_fit(view, c.seat))
        .filter(|c| {
            let votes = view.config.voters.contains(&c.seat) && !is_lost(view, c.seat);
            votes || (view.config.learners.contains(&c.seat) && is_healthy(view, c.seat))
        })
        .map(|c| c.party)
        .collect();
    if present.len() < 3 {
        return 0;
    }
    let largest = seats_by(view, voters, |c| c.party).into_values().max().unwrap_or(0);
    largest.saturating_sub(share(voters.len()))
}

/// How unevenly the seats are spread over parties and over domains; less is wider. The sum of
/// squares falls with every seat that moves from a larger group to a smaller one.
fn crowding(view: &View<'_>, voters: &BTreeSet<RaftId>) -> (usize, usize) {
    fn squares<K>(groups: BTreeMap<K, usize>) -> usize {
        groups.values().map(|n| n * n).sum()
    }
    let parties = seats_by(view, voters, |c| c.party);
    let domains = seats_by(view, voters, |c| c.domain.as_str());
    (squares(parties), squares(domains))
}

fn seats_by<'a, K: Ord>(
    view: &'a View,
    voters: &BTreeSet<RaftId>,
    group: impl Fn(&'a Candidate) -> K,
) -> BTreeMap<K, usize> {
    let mut groups = BTreeMap::new();
    for c in voters.iter().filter_map(|&seat| view.member(seat)) {
        *groups.entry(group(c)).or_default() += 1;
    }
    groups
}

#[cfg(test)]
mod tests;
