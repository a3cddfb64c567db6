//! What a participant does about what the state says. Pure: the state, what this attempt has done, and the time are arguments.
//!
//! ```text
//!   wanted   the round for which the worker should train now: its model is fetched
//!   next     what the worker is told
//!   judge    what becomes of an update that the worker hands in
//!   deed     what becomes of an update that is kept: sent, sent again, dropped
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::time::Time;
use tokio::time::Instant;

use crate::job::training::{Federated, Strategy};
use crate::state::State;
use crate::state::course::{Model, Open};

/// An update that began so many models ago, and more, is not sent any more. FedBuff says itself how many.
pub(super) const MAX_LATE: u32 = 8;
/// After a no for now, the same node is asked again after this time, unless the state changes before.
pub(super) const PAUSE: Duration = Duration::from_millis(300);
/// A node that has an update is asked again after this time whether it still does: it may have been started anew since.
pub(super) const STILL: Duration = Duration::from_secs(15);

/// What the state says of a training, as far as one participant is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct View {
    /// The round that is open.
    pub(super) open: Option<Open>,
    /// Whether it waits for this participant.
    pub(super) is_selected: bool,
    /// The model that stands.
    pub(super) model: Option<Model>,
    /// The last update of this participant that was counted: the attempt's fence, and the serial.
    pub(super) last: Option<(u64, u64)>,
    /// So many rounds were charged to its budget.
    pub(super) charged: u32,
    /// So many updates of it were taken or refused.
    pub(super) counted: u32,
    /// That it is over, and why.
    pub(super) over: Option<Over>,
}

/// Why there is nothing more to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// There is a verdict.
    Trained,
    /// Somebody asked for the end of the job, or it is gone.
    Stopping,
}

/// What an attempt has done so far, and what it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// Its fence.
    pub(super) fence: u64,
    /// The last round for which this life of the node has an update, or had one.
    pub(super) submitted: Option<u32>,
    /// Whether a round for which an earlier life of the node had an update may be trained once more. Not where noise is
    /// added here: it would be drawn twice, and was charged once.
    pub(super) may_repeat: bool,
    /// How many models ago an update may have begun.
    pub(super) most_late: u32,
}

/// What a worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Train.
    Round {
        /// For which round.
        round: u32,
        /// From which model; `None` to make the first one.
        base: Option<u32>,
    },
    /// Nothing to do yet.
    Wait,
    /// Nothing to do any more.
    Done,
}

/// What becomes of an update that a worker hands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    /// It is taken.
    Fresh,
    /// There is one for this round already.
    Again,
    /// It comes too late, and why.
    Late(String),
    /// The round has not begun.
    Early,
}

/// What should be done about an update that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Deed {
    /// It is not needed any more, and why.
    Drop(&'static str),
    /// Nothing, for now.
    Wait,
    /// These shards go to those who sum them.
    Send(Vec<(usize, Target)>),
}

/// Where a shard goes, and in which round. A round that is opened again is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// The round that is open.
    pub(super) round: u32,
    /// Since when.
    pub(super) since: Time,
    /// How many shards there are.
    pub(super) shards: usize,
    /// Who sums this one.
    pub(super) to: NodeId,
}

/// How far a shard of an update has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shard {
    /// Who has it, and since when.
    pub(super) there: Option<(Target, Instant)>,
    /// Who did not take it, and when.
    pub(super) not_there: Option<(Target, Instant)>,
    /// Whether it is on its way.
    pub(super) flies: bool,
}

impl View {
    /// As the state has it.
    pub(super) fn of(state: &State, job: JobId, task: u32) -> Self {
        let found = state.job(job).filter(|job| job.over.is_none());
        let Some((found, course)) = found.zip(state.course(job)) else {
            return Self { over: Some(Over::Stopping), ..Self::default() };
        };
        let record = course.records.get(&task);
        let over = match (&course.verdict, &found.stopping) {
            (Some(_), _) => Some(Over::Trained),
            (None, Some(_)) => Some(Over::Stopping),
            (None, None) => None,
        };
        Self {
            is_selected: course.open.as_ref().is_some_and(|open| open.selected.contains(&task)),
            open: course.open.clone(),
            model: course.model.clone(),
            last: record.and_then(|record| record.last),
            charged: course.charged.get(&task).copied().unwrap_or(0),
            counted: record.map_or(0, |record| record.taken.saturating_add(record.refused)),
            over,
        }
    }

    fn model_round(&self) -> Option<u32> {
        self.model.as_ref().map(|model| model.round)
    }

    /// Those who may have the model that stands.
    pub(super) fn holders(&self) -> Vec<NodeId> {
        let holders = self.model.iter().flat_map(|model| &model.holders);
        let aggregators = self.open.iter().flat_map(|open| &open.aggregators);
        let all: BTreeSet<NodeId> = holders.chain(aggregators).copied().collect();
        all.into_iter().collect()
    }

    /// In how many shards an update goes now.
    fn shards(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.aggregators.len()).filter(|count| *count > 0)
    }
}

/// An update's number. Rounds of an attempt follow one another, and there is one update for each.
pub(super) fn serial(round: u32) -> u64 {
    u64::from(round) + 1
}

/// How many models ago an update may have begun.
pub(super) fn most_late(federated: &Federated) -> u32 {
    match &federated.strategy {
        Strategy::FedBuff { max_staleness, .. } => *max_staleness,
        _ => MAX_LATE,
    }
}

/// The round for which the worker should train now.
pub(super) fn wanted(view: &View, own: &Own) -> Option<u32> {
    let round = view.open.as_ref().filter(|_| view.is_selected && view.over.is_none())?.round;
    let is_next = match view.model_round() {
        None => round == 0,
        Some(model) => model.checked_add(1) == Some(round),
    };
    let is_done = own.submitted.is_some_and(|submitted| submitted >= round)
        || view.last >= Some((own.fence, serial(round)));
    (is_next && !is_done).then_some(round)
}

/// What a worker is told that says to have submitted `after`. `has` says whether the model of a round is at hand.
pub(super) fn next(view: &View, own: &Own, after: Option<u32>, has: impl Fn(u32) -> bool) -> Next {
    if view.over.is_some() {
        return Next::Done;
    }
    let Some(round) = wanted(view, own) else { return Next::Wait };
    // An earlier life of this node had an update for it, and the worker has gone on.
    let was_done = after.is_some_and(|after| after > round || (after == round && !own.may_repeat));
    let base = round.checked_sub(1);
    match base {
        _ if was_done => Next::Wait,
        Some(base) if !has(base) => Next::Wait,
        base => Next::Round { round, base },
    }
}

/// What becomes of an update for `round`.
pub(super) fn judge(view: &View, own: &Own, round: u32) -> Judged {
    let is_there = own.submitted.is_some_and(|submitted| submitted >= round)
        || view.last >= Some((own.fence, serial(round)));
    let open = view.open.as_ref().map(|open| open.round);
    let newest = open.max(view.model_round().map(|model| model.saturating_add(1)));
    if is_there {
        Judged::Again
    } else if view.over.is_some() {
        Judged::Late("training is over".into())
    } else if newest.is_none_or(|newest| round > newest) {
        Judged::Early
    } else if is_too_old(view, own, round.checked_sub(1)) {
        Judged::Late(format!("round {round} is over"))
    } else {
        Judged::Fresh
    }
}

/// Whether an update that began from `base` cannot go into a model any more. The first model is made once.
fn is_too_old(view: &View, own: &Own, base: Option<u32>) -> bool {
    match (base, view.model_round()) {
        (None, model) => model.is_some(),
        (Some(base), Some(model)) => model.saturating_sub(base) > own.most_late,
        (Some(_), None) => false,
    }
}

/// Whether noise may be drawn for one more update: never for more of them than were charged.
pub(super) fn may_release(view: &View, released: u32) -> bool {
    view.charged > released.max(view.counted)
}

/// What should be done about the update of `round`, of which the shards are so far.
pub(super) fn deed(view: &View, own: &Own, round: u32, shards: &[Shard], now: Instant) -> Deed {
    if view.last >= Some((own.fence, serial(round))) {
        return Deed::Drop("it is counted");
    }
    if view.over.is_some() {
        return Deed::Drop("training is over");
    }
    if is_too_old(view, own, round.checked_sub(1)) {
        return Deed::Drop("it is too old");
    }
    let Some(open) = view.open.as_ref() else { return Deed::Wait };
    let count = open.aggregators.len();
    let targets = open.aggregators.iter().enumerate().map(|(shard, to)| {
        (shard, Target { round: open.round, since: open.since, shards: count, to: *to })
    });
    let due = |(shard, target): &(usize, Target)| {
        // One that is cut anew begins anew.
        shards.get(*shard).copied().unwrap_or_default().is_due(*target, now)
    };
    let send: Vec<(usize, Target)> = targets.filter(due).collect();
    if send.is_empty() { Deed::Wait } else { Deed::Send(send) }
}

/// Whether a shard that is on its way to `target` is still wanted there. A round may end meanwhile: then it is late, and wanted all the same.
pub(super) fn is_wanted(view: &View, own: &Own, round: u32, shard: usize, target: Target) -> bool {
    let is_there = view.last >= Some((own.fence, serial(round)));
    let to = view.open.as_ref().and_then(|open| open.aggregators.get(shard));
    // While nobody knows who sums next, whoever does now may.
    let is_right =
        to.is_none_or(|to| *to == target.to) && view.shards().is_none_or(|n| n == target.shards);
    !is_there && view.over.is_none() && !is_too_old(view, own, round.checked_sub(1)) && is_right
}

impl Shard {
    fn is_due(&self, target: Target, now: Instant) -> bool {
        let rests = |told: Option<(Target, Instant)>, time: Duration| {
            told.is_some_and(|(told, at)| {
                told == target && now.saturating_duration_since(at) < time
            })
        };
        !self.flies && !rests(self.there, STILL) && !rests(self.not_there, PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::course::Piece;
    use mesh_consensus::id::Hash;

    const FENCE: u64 = 40;

    fn own() -> Own {
        Own { fence: FENCE, submitted: None, may_repeat: true, most_late: MAX_LATE }
    }

    fn node(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    fn model(round: u32) -> Model {
        Model {
            round,
            layout: Piece { hash: Hash([1; 32]), bytes: 8 },
            weights: Vec::new(),
            optimiser: Vec::new(),
            holders: BTreeSet::from([node(7)]),
        }
    }

    fn open(round: u32) -> Open {
        Open {
            round,
            selected: BTreeSet::from([0]),
            aggregators: vec![node(1), node(2)],
            since: Time(100),
            deadline_ms: None,
        }
    }

    /// Round `round` is open, the model before it stands, and this participant is selected.
    fn view(round: u32) -> View {
        View {
            open: Some(open(round)),
            is_selected: true,
            model: round.checked_sub(1).map(model),
            ..View::default()
        }
    }

    #[test]
    fn a_worker_trains_when_it_is_selected_and_the_model_is_here() {
        let told = |view: &View| next(view, &own(), None, |_| true);
        assert_eq!(told(&view(0)), Next::Round { round: 0, base: None });
        assert_eq!(told(&view(3)), Next::Round { round: 3, base: Some(2) });
        assert_eq!(next(&view(3), &own(), None, |_| false), Next::Wait, "the model is on its way");
        assert_eq!(told(&View::default()), Next::Wait, "nothing is open");
        assert_eq!(told(&View { is_selected: false, ..view(3) }), Next::Wait);
        let behind = View { model: Some(model(1)), ..view(3) };
        assert_eq!(told(&behind), Next::Wait, "the model before it does not stand");
        assert_eq!(told(&View { model: Some(model(0)), ..view(0) }), Next::Wait);
        for over in [Over::Trained, Over::Stopping] {
            assert_eq!(told(&View { over: Some(over), ..view(3) }), Next::Done);
        }
    }

    #[test]
    fn what_was_submitted_is_not_asked_for_again() {
        let submitted = Own { submitted: Some(3), ..own() };
        assert_eq!(next(&view(3), &submitted, Some(3), |_| true), Next::Wait);
        assert_eq!(wanted(&view(4), &submitted), Some(4));
        let counted = View { last: Some((FENCE, serial(3))), ..view(3) };
        assert_eq!(wanted(&counted, &own()), None);
        let by_another = View { last: Some((FENCE - 1, serial(9))), ..view(3) };
        assert_eq!(
            wanted(&by_another, &own()),
            Some(3),
            "an earlier attempt's does not count here"
        );
    }

    #[test]
    fn an_update_that_a_restart_lost_is_made_again_but_not_with_fresh_noise() {
        let again = next(&view(3), &own(), Some(3), |_| true);
        assert_eq!(again, Next::Round { round: 3, base: Some(2) });
        let noisy = Own { may_repeat: false, ..own() };
        assert_eq!(next(&view(3), &noisy, Some(3), |_| true), Next::Wait);
        assert_eq!(next(&view(4), &noisy, Some(3), |_| true).round(), Some(4));
        assert_eq!(next(&view(3), &own(), Some(4), |_| true), Next::Wait);
    }

    impl Next {
        fn round(self) -> Option<u32> {
            match self {
                Next::Round { round, .. } => Some(round),
                Next::Wait | Next::Done => None,
            }
        }
    }

    #[test]
    fn an_update_is_taken_late_but_not_too_late() {
        let judged = |view: &View, round| judge(view, &own(), round);
        assert_eq!(judged(&view(3), 3), Judged::Fresh);
        assert_eq!(judged(&view(3), 4), Judged::Early);
        assert_eq!(judged(&View::default(), 0), Judged::Early);
        assert_eq!(judged(&view(3 + MAX_LATE), 3), Judged::Fresh, "late, and welcome");
        assert!(matches!(judged(&view(4 + MAX_LATE), 3), Judged::Late(_)));
        assert_eq!(judged(&view(0), 0), Judged::Fresh);
        assert!(matches!(judged(&view(1), 0), Judged::Late(_)), "the first model is made once");
        let over = View { over: Some(Over::Trained), ..view(3) };
        assert!(matches!(judged(&over, 3), Judged::Late(_)));
        let twice = Own { submitted: Some(3), ..own() };
        assert_eq!(judge(&view(3), &twice, 3), Judged::Again);
        let counted = View { last: Some((FENCE, serial(3))), ..view(4) };
        assert_eq!(judged(&counted, 3), Judged::Again);
        // Between two coordinators nothing is open.
        assert_eq!(judged(&View { open: None, ..view(3) }, 3), Judged::Fresh);
    }

    fn sent(view: &View, shards: &[Shard], now: Instant) -> Vec<usize> {
        match deed(view, &own(), 3, shards, now) {
            Deed::Send(send) => send.into_iter().map(|(shard, _)| shard).collect(),
            _ => Vec::new(),
        }
    }

    fn target(view: &View, shard: usize) -> Target {
        let open = view.open.as_ref().unwrap();
        let (round, since, shards) = (open.round, open.since, open.aggregators.len());
        Target { round, since, shards, to: open.aggregators[shard] }
    }

    #[tokio::test]
    async fn an_update_is_sent_until_every_shard_is_there() {
        let now = Instant::now();
        let at = view(3);
        let mut shards = vec![Shard::default(); 2];
        assert_eq!(sent(&at, &shards, now), [0, 1]);
        shards[0].there = Some((target(&at, 0), now));
        shards[1].flies = true;
        assert_eq!(deed(&at, &own(), 3, &shards, now), Deed::Wait);
        shards[1] = Shard { not_there: Some((target(&at, 1), now)), ..Shard::default() };
        assert_eq!(sent(&at, &shards, now), [0usize; 0], "not at once");
        assert_eq!(sent(&at, &shards, now + PAUSE), [1]);
        assert_eq!(sent(&at, &shards, now + STILL), [0, 1], "whether it still has it");
    }

    #[tokio::test]
    async fn an_update_is_sent_again_when_the_round_or_who_sums_it_changes() {
        let now = Instant::now();
        let at = view(3);
        let there = |n| Shard { there: Some((target(&at, n), now)), ..Shard::default() };
        let shards = [there(0), there(1)];
        assert_eq!(sent(&at, &shards, now), [0usize; 0]);
        assert_eq!(sent(&view(4), &shards, now), [0, 1], "late, with its base");
        let mut other = at.clone();
        other.open.as_mut().unwrap().aggregators[1] = node(9);
        assert_eq!(sent(&other, &shards, now), [1], "another one sums the second shard");
        let mut anew = at.clone();
        anew.open.as_mut().unwrap().since = Time(200);
        assert_eq!(sent(&anew, &shards, now), [0, 1], "the round was opened again");
        let mut one = at.clone();
        one.open.as_mut().unwrap().aggregators.truncate(1);
        assert_eq!(sent(&one, &shards, now), [0], "it is cut into other shards");
        assert_eq!(deed(&View { open: None, ..at }, &own(), 3, &shards, now), Deed::Wait);
    }

    #[tokio::test]
    async fn an_update_is_dropped_when_it_is_counted_or_too_old_or_all_is_over() {
        let now = Instant::now();
        let shards = [Shard::default(); 2];
        let is_dropped = |view: &View| matches!(deed(view, &own(), 3, &shards, now), Deed::Drop(_));
        assert!(!is_dropped(&view(3)));
        assert!(is_dropped(&View { last: Some((FENCE, serial(3))), ..view(3) }));
        assert!(is_dropped(&View { last: Some((FENCE + 1, serial(0))), ..view(3) }));
        assert!(!is_dropped(&View { last: Some((FENCE, serial(2))), ..view(3) }));
        assert!(!is_dropped(&view(3 + MAX_LATE)));
        assert!(is_dropped(&view(4 + MAX_LATE)));
        assert!(is_dropped(&View { over: Some(Over::Stopping), ..view(3) }));
    }

    #[test]
    fn a_slow_upload_goes_on_when_its_round_is_over() {
        let to = target(&view(3), 1);
        let wanted = |view: &View| is_wanted(view, &own(), 3, 1, to);
        assert!(wanted(&view(3)) && wanted(&view(4)));
        assert!(wanted(&View { open: None, ..view(3) }));
        let mut other = view(4);
        other.open.as_mut().unwrap().aggregators[1] = node(9);
        assert!(!wanted(&other), "somebody else sums it now");
        let mut more = view(4);
        more.open.as_mut().unwrap().aggregators.push(node(3));
        assert!(!wanted(&more), "it is cut into other shards");
        assert!(!wanted(&view(4 + MAX_LATE)));
        assert!(!wanted(&View { last: Some((FENCE, serial(3))), ..view(4) }));
    }

    #[test]
    fn noise_is_drawn_no_more_often_than_it_was_charged() {
        let charged = |charged, counted| View { charged, counted, ..view(3) };
        assert!(!may_release(&charged(0, 0), 0));
        assert!(may_release(&charged(1, 0), 0));
        assert!(!may_release(&charged(1, 0), 1), "it was drawn already");
        assert!(!may_release(&charged(4, 4), 0), "by an earlier attempt");
        assert!(may_release(&charged(5, 4), 4));
    }
}
