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
pub struct View {
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
    /// See [`Waits`].
    pub waits: Waits,
    /// See [`crate::planted`].
    pub planted: Planted,
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

/// The next step, if one is due; never more than one.
///
/// Nothing here is random and ties go to the lower seat: the same view gives the same answer.
pub fn decide(view: &View) -> Vec<Change> {
    next(view).into_iter().collect()
}

fn next(view: &View) -> Option<Change> {
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
fn hand_over(view: &View) -> Option<Change> {
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
fn retire(view: &View) -> Option<Change> {
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
fn grow(view: &View) -> Option<Change> {
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
fn shrink(view: &View) -> Option<Change> {
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
fn replace(view: &View) -> Option<Change> {
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
fn rebalance(view: &View) -> Option<Change> {
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
fn arrange_learners(view: &View) -> Option<Change> {
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

    let all_warm = wanted.iter().all(|&learner| is_healthy(view, learner));
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
fn learner_pool(view: &View) -> Vec<(u8, &Candidate)> {
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
fn best_learners(view: &View, count: usize) -> BTreeSet<RaftId> {
    let pool = learner_pool(view)
        .into_iter()
        .map(|(rank, c)| (rank, !view.config.learners.contains(&c.seat), c))
        .collect();
    pick(view, &view.config.voters, pool, count)
}

/// `size` of these voters: the leader if it is among them, then those that are heard and eligible,
/// as far apart as can be had.
fn keep(view: &View, voters: &BTreeSet<RaftId>, size: usize) -> BTreeSet<RaftId> {
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
    view: &View,
    base: &BTreeSet<RaftId>,
    pool: &[&Candidate],
    count: usize,
) -> BTreeSet<RaftId> {
    pick(view, base, pool.iter().map(|c| (0, false, *c)).collect(), count)
}

/// Takes one after the other the best by (rank, seats of its party, seats in its domain, tie, seat),
/// where the seats are those of `base` and of the ones taken so far.
fn pick(
    view: &View,
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
fn swap(view: &View, out: RaftId, pool: &[&Candidate]) -> Option<Change> {
    let voters = &view.config.voters;
    let rest = without(voters, out);
    let swapped = &rest | &spread(view, &rest, pool, 1);
    if swapped.len() != voters.len() || excess(view, &swapped) > excess(view, voters) {
        return None;
    }
    propose(view, &swapped)
}

/// The change that makes `voters` vote, unless it could get stuck: while joint both majorities are
/// needed, and afterwards the new one, so both must be healthy now.
fn propose(view: &View, voters: &BTreeSet<RaftId>) -> Option<Change> {
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
    Some(Change::Config(ConfigChange::Seats(seats)))
}

impl View {
    fn member(&self, seat: RaftId) -> Option<&Candidate> {
        self.members.iter().find(|c| c.seat == seat)
    }
}

/// The learners of today that `suits` accepts.
fn learners(view: &View, suits: impl Fn(&Candidate) -> bool) -> Vec<&Candidate> {
    let learners = view.config.learners.iter().filter_map(|&seat| view.member(seat));
    learners.filter(|c| suits(c)).collect()
}

fn without(seats: &BTreeSet<RaftId>, seat: RaftId) -> BTreeSet<RaftId> {
    seats.iter().copied().filter(|&s| s != seat).collect()
}

/// Leaving, or no member at all.
fn is_gone(view: &View, seat: RaftId) -> bool {
    view.member(seat).is_none_or(|c| c.leaving)
}

/// A member that may vote.
fn is_fit(view: &View, seat: RaftId) -> bool {
    view.member(seat).is_some_and(|c| !c.leaving && c.eligible)
}

fn in_contact(view: &View, c: &Candidate) -> bool {
    c.contact.is_some_and(|at| view.now.since(at) <= view.waits.recent)
}

/// In contact and caught up.
fn is_healthy(view: &View, seat: RaftId) -> bool {
    seat == view.me
        || view.member(seat).is_some_and(|c| {
            in_contact(view, c) && c.matched.saturating_add(view.waits.lag) >= view.last_index
        })
}

/// Unheard by the leader for long. Whoever it has never heard had its chance since the quorum
/// stands, and since the change that may have brought it in.
fn is_lost(view: &View, seat: RaftId) -> bool {
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
fn is_ready(view: &View, c: &Candidate) -> bool {
    is_fit(view, c.seat) && is_healthy(view, c.seat)
}

/// May take an empty seat.
fn is_nearly_ready(view: &View, c: &Candidate) -> bool {
    let enough = u128::from(view.last_index) * u128::from(CAUGHT_UP_PERCENT);
    let nearly = u128::from(c.matched) * 100 >= enough;
    is_ready(view, c) || (is_fit(view, c.seat) && in_contact(view, c) && nearly)
}

/// May take the seat of somebody who did not ask to go.
fn is_stable(view: &View, c: &Candidate) -> bool {
    let long = |since| view.now.since(since) >= view.waits.stable;
    is_ready(view, c) && c.healthy_since.is_some_and(long)
}

fn quorum_lasts(view: &View) -> bool {
    view.quorum_since.is_some_and(|since| view.now.since(since) >= view.waits.quorum)
}

/// Whether it is time for a change that is not growth.
fn is_settled(view: &View) -> bool {
    let apart = |at| view.now.since(at) >= view.waits.apart;
    quorum_lasts(view) && view.last_change.is_none_or(apart)
}

fn healthy(view: &View, voters: &BTreeSet<RaftId>) -> usize {
    voters.iter().filter(|&&seat| is_healthy(view, seat)).count()
}

fn has_quorum(view: &View, voters: &BTreeSet<RaftId>) -> bool {
    healthy(view, voters) > voters.len() / 2
}

/// How many healthy voters there are beyond a majority.
fn spare(view: &View, voters: &BTreeSet<RaftId>) -> Option<usize> {
    healthy(view, voters).checked_sub(voters.len() / 2 + 1)
}

/// The target by the number of members. Those that are down count: only a removal lowers it.
fn members_target(view: &View) -> usize {
    target(view.members.iter().filter(|c| !c.leaving).count())
}

/// As [`members_target`], and so many that the parties which could take part can fill the seats
/// without any of them having more than its share.
fn parties_target(view: &View) -> usize {
    let voters = view.config.voters.iter().filter_map(|&seat| view.member(seat));
    let usable = voters.filter(|c| is_fit(view, c.seat) && !is_lost(view, c.seat));
    let mut parties: BTreeMap<PartyId, usize> = BTreeMap::new();
    for c in usable.chain(learner_pool(view).into_iter().map(|(_, c)| c)) {
        *parties.entry(c.party).or_default() += 1;
    }
    let mut size = members_target(view);
    if parties.len() >= 3 {
        while size > 3 && parties.values().map(|&n| n.min(share(size))).sum::<usize>() < size {
            size -= 2;
        }
    }
    size
}

/// The most seats of `size` with which a party can neither commit nor block alone. Below three
/// seats there is no such number.
fn share(size: usize) -> usize {
    if size < 3 { size } else { (size - 1) / 2 }
}

/// By how many seats the largest party has more than its share. There are shares only once three
/// parties have somebody who votes or could: with two, one of them can always block.
fn excess(view: &View, voters: &BTreeSet<RaftId>) -> usize {
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
fn crowding(view: &View, voters: &BTreeSet<RaftId>) -> (usize, usize) {
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
mod tests {
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
    fn calm(members: u64, voters: &[u64], learners: &[u64]) -> View {
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
            planted: Planted::default(),
            config,
        }
    }

    impl View {
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
        assert_eq!(
            decide(&View { change_pending: true, ..calm(3, &[1, 2, 3], &[]).leaving(1) }),
            []
        );
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
        let behind = |view: View, seat, matched| view.with(seat, move |c| c.matched = matched);
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
        assert_eq!(
            decide(&calm(5, &[1, 2, 3, 4, 5], &[]).silent_for(2, 900).silent_for(3, 900)),
            []
        );
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
        let slow = |view: View, seat| view.with(seat, |c| c.eligible = false);
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
    fn random_view(rng: &mut fastrand::Rng) -> View {
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
            let asked = |seat: &RaftId| {
                view.members.iter().find(|c| c.seat == *seat).is_none_or(|c| c.leaving)
            };
            if shrinks && !old.difference(&config.voters).any(asked) {
                assert!(old.len() > target(count) || excess(&view, &old) > 0, "{at}");
            }
        }
        assert!(proposed > 10_000, "the views are too strange: {proposed}");
    }

    /// A mesh in which everybody who lives is heard and keeps up, stepped by the second.
    struct Mesh {
        view: View,
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
            let heirs = self.view.members.iter().filter(|c| {
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

    const LAYOUTS: [&str; 7] = [
        "aaaaaaaaa",
        "abababababa",
        "abcabcabc",
        "aaaaaaabc",
        "abbbbbccc",
        "aaaabbbbb",
        "abcdeabcd",
    ];

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
}
