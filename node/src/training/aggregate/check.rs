//! What may come, and who may ask: decided by the state alone.
//!
//! Each answer is `None` where the one who speaks has seen more of the log than this node: then it is asked again when there is more.

use std::collections::BTreeMap;

use mesh_consensus::id::NodeId;

use crate::job::training::{Federated, Strategy, Training, Wire};
use crate::state::course::{Course, Lease, MAX_METRICS, MAX_MODEL_BYTES, Model, Open, Record};
use crate::state::data::Note;
use crate::state::jobs::{Given, Job, note};
use crate::training::wire::{Taken, UpdateHead};
use crate::training::{pack, shards};

/// An update that began more models ago than this is refused, unless the strategy says otherwise.
pub(super) const MAX_STALENESS: u32 = 8;
/// The largest shard of an update, as it travels. Until a model stands, its sender alone says how large it is.
pub(super) const MAX_SHARD_BYTES: u64 = 4 << 30;

/// What the state says of a shard that this node sums: as much as one who sums has to know.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Now {
    /// The round that is open.
    pub(super) round: u32,
    /// Which shard.
    pub(super) shard: u32,
    /// Of how many.
    pub(super) shards: u32,
    pub(super) strategy: Strategy,
    pub(super) wire: Wire,
    /// The model that stands.
    pub(super) model: Option<Model>,
    /// The last update of each task that was counted: fence and serial.
    counted: BTreeMap<u32, (u64, u64)>,
    /// The last fence of each task.
    fences: Vec<u64>,
}

impl Now {
    fn of(federated: &Federated, job: &Job, course: &Course, open: &Open, shard: u32) -> Self {
        let last = |(task, record): (&u32, &Record)| record.last.map(|last| (*task, last));
        Self {
            round: open.round,
            shard,
            shards: open.aggregators.len() as u32,
            strategy: federated.strategy.clone(),
            wire: federated.wire,
            model: course.model.clone(),
            counted: course.records.iter().filter_map(last).collect(),
            fences: job.tasks.iter().map(|task| task.fence).collect(),
        }
    }

    fn is_counted(&self, head: &UpdateHead) -> bool {
        let last = self.counted.get(&head.task);
        last.is_some_and(|last| (head.fence, head.serial) <= *last)
    }

    /// Whether an update that came before still counts for something.
    pub(super) fn still_wants(&self, head: &UpdateHead) -> bool {
        let is_last_attempt = self.fences.get(head.task as usize) == Some(&head.fence);
        let fits = match (&self.model, head.base) {
            (None, None) => true,
            (Some(model), Some(base)) => {
                let age = model.round.checked_sub(base);
                age.is_some_and(|age| age <= staleness(&self.strategy))
                    && values_of(model) == head.values
            }
            _ => false,
        };
        head.shards == self.shards && is_last_attempt && fits && !self.is_counted(head)
    }
}

/// What a job says of its training, if it is of this kind.
pub(super) fn federated(job: &Job) -> Option<&Federated> {
    if let Some(Training::Federated(federated)) = &job.spec.training {
        return Some(federated);
    }
    None
}

/// How many values a model has.
pub(super) fn values_of(model: &Model) -> u64 {
    model.weights.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.bytes)) / 4
}

fn staleness(strategy: &Strategy) -> u32 {
    match strategy {
        Strategy::FedBuff { max_staleness, .. } => *max_staleness,
        _ => MAX_STALENESS,
    }
}

/// Whether a shard of an update may come to `me` from `from`. Nothing of it was read yet but its head.
pub(crate) fn may_come(
    job: &Job,
    course: &Course,
    head: &UpdateHead,
    from: NodeId,
    me: NodeId,
) -> Option<Result<Now, Taken>> {
    let refused = |why: &str| Some(Err(Taken::Refused(note(why))));
    let Some(federated) = federated(job) else { return refused("the job trains no model") };
    if course.verdict.is_some() || job.over.is_some() {
        return refused("the training is over");
    }
    let open = course.open.as_ref()?;
    if head.round > open.round {
        return None;
    }
    let is_mine = open.aggregators.get(head.shard as usize) == Some(&me);
    if !is_mine || head.shards as usize != open.aggregators.len() {
        return Some(Err(Taken::Elsewhere));
    }
    let Some(task) = job.tasks.get(head.task as usize) else {
        return refused("the job has no such task");
    };
    if head.fence > task.fence {
        return None;
    }
    let is_senders = |given: &Given| given.node == from && given.at.index == head.fence;
    if !task.given().is_some_and(is_senders) {
        return refused("it is not of the attempt that counts");
    }
    let now = Now::of(federated, job, course, open, head.shard);
    if now.is_counted(head) {
        return Some(Err(Taken::Again));
    }
    match (&now.model, head.base) {
        (None, None) if !open.selected.contains(&head.task) => {
            return refused("another one makes the first model");
        }
        (None, None) => {}
        (None, Some(_)) => return None,
        (Some(_), None) => return refused("the first model stands already"),
        (Some(model), Some(base)) if base > model.round => return None,
        (Some(model), Some(base)) if model.round - base > staleness(&now.strategy) => {
            return refused("it begins from too old a model");
        }
        (Some(_), Some(_)) => {}
    }
    match flaw(&now, head) {
        Some(why) => refused(why),
        None => Some(Ok(now)),
    }
}

/// What is wrong with the head of an update, whoever sends it.
fn flaw(now: &Now, head: &UpdateHead) -> Option<&'static str> {
    let fits = match &now.model {
        Some(model) => head.values == values_of(model),
        None => (1..=MAX_MODEL_BYTES / 4).contains(&head.values),
    };
    if !fits {
        return Some("it has another number of values than the model");
    }
    let range = shards::range(head.values, now.shards as usize, now.shard as usize);
    let evaluated = head.evaluated.as_ref().map_or(0, |(_, metrics)| metrics.len());
    let flaws = [
        (
            head.piece.bytes != pack::packed_bytes(range.len(), now.wire),
            "its shard is of another length",
        ),
        (head.piece.bytes > MAX_SHARD_BYTES, "its shard is too large"),
        (head.metrics.len().max(evaluated) > MAX_METRICS, "it has too many metrics"),
    ];
    flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text))
}

/// Who asks about a shard, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asker {
    /// Who.
    pub(super) node: NodeId,
    /// The epoch of its lease.
    pub(super) epoch: u64,
    /// The round that is open, as it says.
    pub(super) round: u32,
    /// Which shard.
    pub(super) shard: u32,
}

/// Whether one who says that it coordinates may ask `me` about a shard.
pub(crate) fn may_ask(
    job: &Job,
    course: &Course,
    asker: Asker,
    me: NodeId,
) -> Option<Result<Now, Note>> {
    let no = |why: &str| Some(Err(note(why)));
    let Some(federated) = federated(job) else { return no("the job trains no model") };
    let Lease { node, epoch, .. } = course.lease.as_ref()?;
    if *epoch < asker.epoch {
        return None;
    }
    if (*epoch, *node) != (asker.epoch, asker.node) {
        return no("another node coordinates");
    }
    let open = course.open.as_ref()?;
    if open.round > asker.round {
        return no("that round is over");
    }
    // It may have been opened again, with others.
    if open.round < asker.round || open.aggregators.get(asker.shard as usize) != Some(&me) {
        return None;
    }
    Some(Ok(Now::of(federated, job, course, open, asker.shard)))
}

/// Whether `from` may have this node hold pieces: it coordinates. `None` if it may do so by now.
pub(crate) fn may_have_kept(course: &Course, from: NodeId) -> Option<()> {
    let lease = course.lease.as_ref()?;
    (lease.node == from).then_some(())
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::Hash;
    use mesh_consensus::time::Time;

    use super::*;
    use crate::job::training::Real;
    use crate::state::Moment;
    use crate::state::course::{Piece, Verdict};
    use crate::training::aggregate::testing::{course, head, job, node, values};

    const ME: u8 = 3;

    fn come(job: &Job, course: &Course, head: &UpdateHead) -> Option<Result<Now, Taken>> {
        may_come(job, course, head, node(1), node(ME))
    }

    fn is_refused(answer: &Option<Result<Now, Taken>>) -> bool {
        matches!(answer, Some(Err(Taken::Refused(_))))
    }

    #[test]
    fn an_update_of_the_attempt_that_counts_may_come() {
        let now = come(&job(), &course(5), &head(0, 1)).unwrap().unwrap();
        assert_eq!((now.round, now.shard, now.shards), (6, 1, 2));
        // One that began a few models ago counts, too; then with its weight.
        let late = UpdateHead { base: Some(5 - 3), round: 3, ..head(0, 1) };
        assert!(matches!(come(&job(), &course(5), &late), Some(Ok(_))));
    }

    #[test]
    fn whoever_is_not_asked_sends_elsewhere() {
        let other = |change: fn(&mut UpdateHead)| {
            let mut head = head(0, 1);
            change(&mut head);
            come(&job(), &course(5), &head)
        };
        let changes: [fn(&mut UpdateHead); 3] =
            [|head| head.shard = 0, |head| head.shard = 2, |head| head.shards = 3];
        for change in changes {
            assert_eq!(other(change), Some(Err(Taken::Elsewhere)));
        }
    }

    #[test]
    fn a_node_that_is_behind_does_not_refuse() {
        let changes: [fn(&mut UpdateHead); 3] =
            [|head| head.round = 7, |head| head.base = Some(6), |head| head.fence = 1000];
        for change in changes {
            let mut head = head(0, 1);
            change(&mut head);
            assert_eq!(come(&job(), &course(5), &head), None);
        }
        assert_eq!(come(&job(), &Course::default(), &head(0, 1)), None);
    }

    #[test]
    fn what_cannot_be_summed_is_refused_by_its_head() {
        let changes: [fn(&mut UpdateHead); 8] = [
            |head| head.task = 9,
            |head| head.fence = 1,
            |head| head.base = None,
            |head| head.values += 1,
            |head| head.values = u64::MAX,
            |head| head.piece.bytes += 1,
            |head| head.piece.bytes = u64::MAX,
            |head| {
                let many = (0..=MAX_METRICS).map(|n| (format!("m{n}").parse().unwrap(), n as f64));
                head.metrics = many.map(|(name, n)| (name, Real::new(n).unwrap())).collect();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut head = head(0, 1);
            change(&mut head);
            let answer = come(&job(), &course(5), &head);
            assert!(is_refused(&answer), "{number}: {answer:?}");
        }
        let answer = may_come(&job(), &course(5), &head(0, 1), node(2), node(ME));
        assert!(is_refused(&answer), "it is another node's task");
        let old = UpdateHead { base: Some(20 - MAX_STALENESS - 1), ..head(0, 1) };
        assert!(is_refused(&come(&job(), &course(20), &old)));
        let ended = Course { verdict: Some(Verdict::Failed(note("so"))), ..course(5) };
        assert!(is_refused(&come(&job(), &ended, &head(0, 1))));
        let mut over = job();
        over.over = Some(Moment { index: 1, time: Time(1) });
        assert!(is_refused(&come(&over, &course(5), &head(0, 1))));
    }

    #[test]
    fn the_strategy_may_say_how_old_an_update_is_at_most() {
        let old = UpdateHead { base: Some(5 - 2), ..head(0, 1) };
        let mut job = job();
        let Some(Training::Federated(federated)) =
            &mut std::sync::Arc::make_mut(&mut job.spec).training
        else {
            panic!()
        };
        let rate = Real::new(1.0).unwrap();
        federated.strategy = Strategy::FedBuff { buffer: 2, rate, max_staleness: 1 };
        assert!(is_refused(&come(&job, &course(5), &old)));
    }

    #[test]
    fn what_was_counted_is_not_taken_again() {
        let mut course = course(5);
        let last = Some((head(0, 1).fence, head(0, 1).serial));
        course.records.insert(0, Record { last, ..Record::default() });
        assert_eq!(come(&job(), &course, &head(0, 1)), Some(Err(Taken::Again)));
        let next = UpdateHead { serial: head(0, 1).serial + 1, ..head(0, 1) };
        assert!(matches!(come(&job(), &course, &next), Some(Ok(_))));
    }

    #[test]
    fn the_first_model_comes_from_the_one_who_was_selected() {
        let mut course = course(0);
        course.model = None;
        let first = UpdateHead { base: None, round: 0, ..head(0, 1) };
        let open = course.open.as_mut().unwrap();
        (open.round, open.selected) = (0, [0].into());
        assert!(matches!(come(&job(), &course, &first), Some(Ok(_))));
        let based = UpdateHead { base: Some(0), ..first.clone() };
        assert_eq!(come(&job(), &course, &based), None, "a model that is not known here");
        // How large a first model is, its sender says: within bounds.
        let wire = Wire::F32;
        let large = |values: u64| {
            let range = shards::range(values, 2, 1);
            let bytes = pack::packed_bytes(range.len(), wire);
            let piece = Piece { hash: Hash([1; 32]), bytes };
            come(&job(), &course, &UpdateHead { values, piece, ..first.clone() })
        };
        assert!(matches!(large(10 * values()), Some(Ok(_))));
        for values in [0, MAX_SHARD_BYTES, MAX_MODEL_BYTES] {
            assert!(is_refused(&large(values)), "{values}");
        }
        course.open.as_mut().unwrap().selected = [1].into();
        assert!(is_refused(&come(&job(), &course, &first)));
    }

    #[test]
    fn only_the_holder_of_the_lease_may_ask() {
        let (job, course) = (job(), course(5));
        let right = Asker { node: node(4), epoch: 50, round: 6, shard: 1 };
        let ask = |asker: Asker| may_ask(&job, &course, asker, node(ME));
        assert!(matches!(ask(right), Some(Ok(_))));
        assert!(matches!(ask(Asker { node: node(1), ..right }), Some(Err(_))));
        assert!(matches!(ask(Asker { epoch: 49, ..right }), Some(Err(_))));
        assert!(matches!(ask(Asker { round: 5, ..right }), Some(Err(_))));
        // What this node has not heard of yet.
        for behind in [
            Asker { epoch: 51, ..right },
            Asker { round: 7, ..right },
            Asker { shard: 0, ..right },
            Asker { shard: 9, ..right },
        ] {
            assert_eq!(ask(behind), None, "{behind:?}");
        }
        assert_eq!(may_have_kept(&course, node(4)), Some(()));
        assert_eq!(may_have_kept(&course, node(1)), None);
    }
}
