//! What must hold in a snapshot's trainings, whoever wrote it; and how much of them there can be.

use mesh_consensus::id::NodeId;

use super::super::Facts;
use super::super::jobs::{Job, Jobs, Task};
use super::super::name::MAX_NAME_BYTES;
use super::rules::are_tasks;
use super::{
    Course, Lease, MAX_BUDGETS, MAX_HOLDERS, MAX_LEASE_MS, MAX_METRICS, MAX_MODEL_BYTES,
    MAX_POINTS, MAX_SHARDS, MAX_TALLY, Model, Open, Point, Record, Tally, Verdict,
};
use crate::job::training::Training;

/// No less than a lease, a model, an open round and a verdict take together: two pieces for each of 64 shards, and 64
/// nodes twice, come to some 10 KiB.
const WEIGHT: usize = 12 << 10;

/// No less than is kept of one participant: a record with the longest note, and what was charged.
const TASK_WEIGHT: usize = 384;

/// No less than a point takes beside its metrics, and a metric beside its name.
const POINT_WEIGHT: usize = 24;
const METRIC_WEIGHT: usize = 16;

impl Facts {
    /// Whether a job has a course if and only if it trains, and one that can have come about.
    pub(in crate::state) fn is_course_sound(&self, job: &Job) -> bool {
        let (rounds, course) = match (&job.spec.training, &job.course) {
            (Some(training), Some(course)) => (training.rounds(), course),
            (training, course) => return training.is_none() && course.is_none(),
        };
        let is_federated = matches!(job.spec.training, Some(Training::Federated(_)));
        let Course { lease, model, open, records, curve, verdict, charged } = course;
        let tasks = job.tasks.len();
        let is_task = |number: &u32| (*number as usize) < tasks;
        let is_member = |node: &NodeId| self.members.contains_key(node);
        let leased = |Lease { node, epoch, ms, .. }: &Lease| {
            is_member(node) && *epoch > 0 && (1..=MAX_LEASE_MS).contains(ms)
        };
        let stands = |model: &Model| {
            model.is_sound() && model.round <= rounds && model.holders.iter().all(is_member)
        };
        let next = model.as_ref().map_or(0, |model| model.round.saturating_add(1));
        let opens = |open: &Open| {
            is_federated
                && open.round == next
                && open.round <= rounds
                && open.is_sound(tasks)
                && verdict.is_none()
        };
        let counts = |(number, record): (&u32, &Record)| {
            let task = job.tasks.get(*number as usize);
            let fence = task.map_or(0, |task| task.fence);
            task.is_some() && record.last.is_none_or(|(last, _)| (1..=fence).contains(&last))
        };
        let round = model.as_ref().map(|model| model.round);
        let ends = |verdict: &Verdict| {
            let fits = match verdict {
                Verdict::Done { .. } => round == Some(rounds),
                Verdict::Spent { .. } => round.is_some(),
                Verdict::Failed(_) => true,
            };
            fits && !job.tasks.iter().any(Task::is_waiting)
        };
        lease.as_ref().is_none_or(leased)
            && model.as_ref().is_none_or(stands)
            && open.as_ref().is_none_or(opens)
            && records.iter().all(counts)
            && charged.keys().all(is_task)
            && curve.len() <= MAX_POINTS
            && curve.iter().all(|point| point.metrics.len() <= MAX_METRICS && point.round < next)
            && curve.is_sorted_by(|one, other| one.round < other.round)
            && verdict.as_ref().is_none_or(ends)
    }

    /// Whether the budgets are those of parties, and not too many.
    pub(in crate::state) fn are_budgets_sound(&self) -> bool {
        let is_finite = |noise: &u64| f64::from_bits(*noise).is_finite();
        let fits = |tally: &Tally| {
            (1..=MAX_TALLY).contains(&tally.len())
                && tally.iter().all(|(noise, rounds)| is_finite(noise) && *rounds > 0)
        };
        let budgets = &self.jobs.budgets;
        budgets.len() <= MAX_BUDGETS
            && budgets
                .iter()
                .all(|((party, _), tally)| self.parties.contains_key(party) && fits(tally))
    }
}

impl Model {
    /// Whether it has no more parts than a model can have.
    pub(in crate::state) fn is_sound(&self) -> bool {
        let Model { layout, weights, optimiser, holders, .. } = self;
        let pieces = weights.iter().chain(optimiser).chain([layout]);
        let bytes = pieces.fold(0u64, |sum, piece| sum.saturating_add(piece.bytes));
        (1..=MAX_SHARDS).contains(&weights.len())
            && (optimiser.is_empty() || optimiser.len() == weights.len())
            && holders.len() <= MAX_HOLDERS
            && bytes <= MAX_MODEL_BYTES
    }

    /// Whether it has the tensors and the shards of another one.
    pub(in crate::state) fn is_shaped_like(&self, other: &Model) -> bool {
        let sizes =
            |model: &Model| model.weights.iter().map(|piece| piece.bytes).collect::<Vec<_>>();
        self.layout == other.layout && sizes(self) == sizes(other)
    }
}

impl Open {
    /// Whether it waits for tasks of a job that has so many, and has no more shards than a model can have.
    pub(super) fn is_sound(&self, tasks: usize) -> bool {
        are_tasks(&self.selected, tasks) && (1..=MAX_SHARDS).contains(&self.aggregators.len())
    }
}

impl Course {
    /// No fewer bytes than it takes in a snapshot. While it goes on, that is room for the longest curve, so that no round is
    /// refused because there are too many jobs.
    pub(in crate::state) fn weight(&self, tasks: usize, is_over: bool) -> u64 {
        let point = |point: &Point| {
            let names = point.metrics.keys().map(|name| METRIC_WEIGHT + name.as_str().len());
            POINT_WEIGHT + names.sum::<usize>()
        };
        let curve = if is_over {
            self.curve.iter().map(point).sum()
        } else {
            MAX_POINTS * (POINT_WEIGHT + MAX_METRICS * (METRIC_WEIGHT + MAX_NAME_BYTES))
        };
        (WEIGHT + TASK_WEIGHT * tasks + curve) as u64
    }
}

impl Jobs {
    /// No fewer bytes than the budgets take in a snapshot.
    pub(in crate::state) fn budgets_weight(&self) -> u64 {
        (self.budgets.len() * (128 + 16 * MAX_TALLY)) as u64
    }
}
