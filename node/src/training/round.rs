//! What a coordinator does about what it has heard: it waits, has a sum made, or gives up. Pure.
//!
//! ```text
//!  answers of the aggregators ─► whole? ─► one of each task ─► flaws? ─► good, refused
//!                                                                          │ enough? all? too late?
//!                                                                          ▼
//!                                                              Wait  │  Sum  │  GiveUp
//! ```
//!
//! An update is **whole** when every shard has come. Of each task one counts in a round, and none that was counted before.
//! What is wrong with an update is said of the whole of it: it is in the sum or it is not.
//!
//! Nobody is waited for longer than it takes: once a round has the updates that it needs, those whose attempt does not run
//! are left out after a moment, and those who run but are slow at the deadline. Without a deadline it waits for all who run.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::wire::{Arrival, Part};
use super::{privacy, straggler};
use crate::job::training::{Federated, NoiseAt, Real, Select, Strategy};
use crate::state::course::{Counted, CountedAs, Course, MAX_METRICS, Model, Open, Record, Times};
use crate::state::data::Note;
use crate::state::jobs::note;
use crate::state::name::Name;

/// Who does not run is waited for until then, in milliseconds from the opening of a round.
pub const GRACE_MS: u64 = 5_000;
/// The same in a round without a deadline.
pub const LONG_GRACE_MS: u64 = 10_000;
/// An update with a larger norm is refused.
pub const MAX_NORM: f64 = 1e12;
/// An update with a norm so many times larger than the one in the middle is refused.
pub const MAX_NORM_OF_MEDIAN: f64 = 1e6;
/// An update of more examples is refused.
pub const MAX_EXAMPLES: u64 = 1 << 40;
/// An update that began more models ago is refused, where the strategy names no other number.
pub const MAX_STALENESS: u32 = 8;

/// What aggregators have told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heard {
    /// The updates that have come, for each shard.
    pub arrivals: Vec<Vec<Arrival>>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Nothing yet.
    Wait {
        /// So long after the opening of the round there may be something, whether or not anything new is heard.
        until_ms: Option<u64>,
    },
    /// The round closes with these.
    Sum(Sum),
    /// It cannot go on.
    GiveUp(Note),
}

/// What a round closes with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// What goes in.
    pub parts: Vec<Part>,
    /// What the weighted sum is divided by.
    pub divisor: Real,
    /// The deviation of the noise that is added to the sum.
    pub noise: Option<Real>,
    /// What came of whom.
    pub counted: Vec<Counted>,
    /// Means over the participants.
    pub metrics: BTreeMap<Name, Real>,
}

/// Decides. `present` are the tasks that have not ended for good, `active` those whose attempt runs right now; `wanted` of the
/// selected ones are waited for. `elapsed_ms` counts from the opening of the round.
pub fn decide(
    spec: &Federated,
    course: &Course,
    present: &BTreeSet<u32>,
    active: &BTreeSet<u32>,
    heard: &Heard,
    wanted: usize,
    elapsed_ms: u64,
) -> Move {
    let Some(open) = &course.open else { return Move::Wait { until_ms: None } };
    let needed = spec.min_parties as usize;
    if present.len() < needed {
        let left = present.len();
        let text = format!("{left} of its participants are left, and a round needs {needed}");
        return Move::GiveUp(note(&text));
    }
    let judged = Judged::of(spec, course, open, heard);
    let needed = needed_in(spec, open);
    if judged.hope(present) < needed {
        return Move::GiveUp(judged.refusals(open.round, needed));
    }
    let enough = judged.good.len() >= needed;
    if !enough {
        return Move::Wait { until_ms: None };
    }
    if open.round == 0 {
        return judged.first();
    }
    let pool = if buffer(spec).is_some() { present } else { &open.selected };
    let answered = pool.iter().filter(|task| judged.is_here(task)).count();
    let awaited =
        pool.iter().filter(|task| !judged.is_here(task) && active.contains(*task)).count();
    // One that is not waited for fills nobody's place: else the round would close without those who are.
    let live: Vec<&u32> = pool.iter().filter(|task| is_awaited(course, open, task)).collect();
    let wanted = wanted.min(pool.len());
    let is_full = match buffer(spec) {
        Some(buffer) => judged.good.len() >= buffer || answered == pool.len(),
        None if live.is_empty() => answered >= wanted,
        None => live.iter().filter(|task| judged.is_here(task)).count() >= wanted.min(live.len()),
    };
    let grace = if open.deadline_ms.is_some() { GRACE_MS } else { LONG_GRACE_MS };
    let times = [open.deadline_ms, (awaited == 0).then_some(grace)];
    if is_full || times.iter().flatten().any(|time| elapsed_ms >= *time) {
        // Who did not run and was not needed has missed nothing.
        let missed = |task: &&u32| {
            let is_late = active.contains(*task) || answered < wanted;
            !judged.is_here(task) && is_late
        };
        let missed: Vec<u32> = match buffer(spec) {
            Some(_) => Vec::new(),
            None => open.selected.iter().filter(missed).copied().collect(),
        };
        return judged.sum(spec, open, &missed);
    }
    Move::Wait { until_ms: times.into_iter().flatten().min() }
}

/// Whether the round waits for more than those whom it has selected can give: others that run should be selected as well.
pub fn is_short(spec: &Federated, course: &Course, active: &BTreeSet<u32>, heard: &Heard) -> bool {
    let Some(open) = &course.open else { return false };
    let judged = Judged::of(spec, course, open, heard);
    let coming =
        open.selected.iter().filter(|task| !judged.is_here(task) && active.contains(*task));
    judged.good.len() + coming.count() < needed_in(spec, open)
}

/// How many of the selected ones a round waits for: not for those who were dropped, or would come too late. Whoever opened it
/// knows; whoever takes it over finds it by this.
pub fn wanted(spec: &Federated, course: &Course, open: &Open) -> usize {
    let live = open.selected.iter().filter(|task| is_awaited(course, open, task)).count();
    let wanted = match spec.select {
        _ if open.round == 0 => 1,
        Select::All => live,
        Select::Random { count } | Select::Tiers { count, .. } => live.min(count as usize),
    };
    wanted.max(1)
}

/// Whether the open round waits for a task.
fn is_awaited(course: &Course, open: &Open, task: &u32) -> bool {
    let record = course.records.get(task);
    record.is_none_or(|record| straggler::is_awaited(record, open.deadline_ms))
}

/// How many values a model has.
pub fn values(model: &Model) -> u64 {
    model.weights.iter().map(|piece| piece.bytes / 4).fold(0, u64::saturating_add)
}

/// What the records will be once this is committed: the next round is opened by the same entry, and whom it selects depends
/// on them.
pub fn after(
    records: &BTreeMap<u32, Record>,
    counted: &[Counted],
    round: u32,
) -> BTreeMap<u32, Record> {
    let mut records = records.clone();
    for one in counted {
        records.entry(one.task).or_default().count(round, one);
    }
    records
}

/// An update of which every shard has come.
#[derive(Debug, Clone, Copy)]
struct Whole<'a> {
    /// As the first shard tells it.
    arrival: &'a Arrival,
    /// `None` if one of its values is no number.
    norm: Option<f64>,
    /// The longest that any of its shards took.
    times: Times,
}

/// Updates, one of each task at most.
struct Judged<'a> {
    good: BTreeMap<u32, Whole<'a>>,
    refused: BTreeMap<u32, (Whole<'a>, Note)>,
}

impl<'a> Judged<'a> {
    fn of(spec: &Federated, course: &Course, open: &Open, heard: &'a Heard) -> Self {
        let candidates = candidates(spec, course, open.round, heard);
        let median = median(candidates.values().filter_map(|one| one.norm).collect());
        let mut judged = Self { good: BTreeMap::new(), refused: BTreeMap::new() };
        for (task, one) in candidates {
            match flaw(spec, course, open.round, &one, median) {
                Some(text) => {
                    judged.refused.insert(task, (one, note(&text)));
                }
                None => {
                    judged.good.insert(task, one);
                }
            }
        }
        judged
    }

    /// Whether it is known what comes of a task.
    fn is_here(&self, task: &u32) -> bool {
        self.good.contains_key(task) || self.refused.contains_key(task)
    }

    /// How many good ones there can be in this round.
    fn hope(&self, present: &BTreeSet<u32>) -> usize {
        let coming = present.iter().filter(|task| !self.is_here(task)).count();
        self.good.len() + coming
    }

    fn refusals(&self, round: u32, needed: usize) -> Note {
        let mut text = format!("round {round} needs {needed} updates, and these are refused:");
        for (task, (_, why)) in &self.refused {
            text += &format!(" task {task}: {why};");
        }
        note(text.trim_end_matches(';'))
    }

    fn refused(&self) -> impl Iterator<Item = Counted> {
        self.refused.iter().map(|(task, (one, why))| Counted {
            task: *task,
            how: CountedAs::Refused {
                fence: one.arrival.fence,
                serial: one.arrival.serial,
                why: why.clone(),
            },
            times: Some(one.times),
        })
    }

    /// The first model is one participant's; what the others have made is left alone.
    fn first(&self) -> Move {
        let Some((task, one)) = self.good.first_key_value() else {
            return Move::Wait { until_ms: None };
        };
        let mut counted: Vec<Counted> = self.refused().chain([taken(*task, one)]).collect();
        counted.sort_by_key(|counted| counted.task);
        let parts = vec![part(*task, one, real(1.0))];
        let metrics = metrics([one]);
        Move::Sum(Sum { parts, divisor: real(1.0), noise: None, counted, metrics })
    }

    fn sum(&self, spec: &Federated, open: &Open, missed: &[u32]) -> Move {
        let robust = matches!(spec.strategy, Strategy::Median | Strategy::TrimmedMean { .. });
        let by_examples = spec.privacy.is_none() && !robust;
        // Who adds the noise itself clips before that: with the noise in it, a norm says nothing.
        let private = spec.privacy.as_ref().filter(|privacy| privacy.at == NoiseAt::Aggregator);
        let (mut parts, mut divisor) = (Vec::new(), 0.0);
        for (task, one) in &self.good {
            let counts = if by_examples { one.arrival.examples as f64 } else { 1.0 };
            let base = one.arrival.base.unwrap_or_default();
            let stale = match base.saturating_add(1) < open.round {
                true => straggler::staleness_weight(base, open.round),
                false => 1.0,
            };
            let clip = match (private, one.norm) {
                (Some(privacy), Some(norm)) => privacy::clip_factor(norm, privacy.clip.get()),
                _ => 1.0,
            };
            divisor += counts;
            parts.push(part(*task, one, real(counts * stale * clip)));
        }
        if spec.privacy.is_some() {
            // Fixed before anybody has answered: else the divisor would tell who did.
            divisor = buffer(spec).unwrap_or(open.selected.len()) as f64;
        }
        let missed =
            missed.iter().map(|task| Counted { task: *task, how: CountedAs::Missed, times: None });
        let taken = self.good.iter().map(|(task, one)| taken(*task, one));
        let mut counted: Vec<Counted> = taken.chain(self.refused()).chain(missed).collect();
        counted.sort_by_key(|counted| counted.task);
        Move::Sum(Sum {
            parts,
            divisor: real(divisor.max(1.0)),
            noise: private.map(|privacy| real(privacy.noise.get() * privacy.clip.get())),
            counted,
            metrics: metrics(self.good.values()),
        })
    }
}

/// How many updates a round cannot do without.
fn needed_in(spec: &Federated, open: &Open) -> usize {
    if open.round == 0 { 1 } else { spec.min_parties as usize }
}

/// How many updates make a model, where that is what closes a round.
fn buffer(spec: &Federated) -> Option<usize> {
    match spec.strategy {
        Strategy::FedBuff { buffer, .. } => Some(buffer as usize),
        _ => None,
    }
}

/// The updates that are whole and were not counted yet: one of each task.
fn candidates<'a>(
    spec: &Federated,
    course: &Course,
    round: u32,
    heard: &'a Heard,
) -> BTreeMap<u32, Whole<'a>> {
    let mut found = BTreeMap::<u32, Whole<'a>>::new();
    for one in whole(heard) {
        let Arrival { task, fence, serial, base, .. } = one.arrival;
        let last = course.records.get(task).and_then(|record| record.last);
        let is_old = last.is_some_and(|last| (*fence, *serial) <= last);
        // The first round takes values themselves, all others differences.
        if is_old || base.is_none() != (round == 0) {
            continue;
        }
        let is_better = found.get(task).is_none_or(|held| {
            let (old, new) = ((held.arrival.fence, held.arrival.serial), (*fence, *serial));
            // Where updates queue up, the one that has waited longest goes first.
            match buffer(spec).is_some() && old.0 == new.0 {
                true => new < old,
                false => new > old,
            }
        });
        if is_better {
            found.insert(*task, one);
        }
    }
    found
}

/// The updates of which every shard has come, and says the same.
fn whole(heard: &Heard) -> Vec<Whole<'_>> {
    let mut shards = heard.arrivals.iter().map(|arrivals| by_name(arrivals));
    let Some(first) = shards.next() else { return Vec::new() };
    let others: Vec<_> = shards.collect();
    let whole = first.into_iter().filter_map(|(name, arrival)| {
        let mut norm2 = arrival.norm2.map(Real::get);
        let mut times = arrival.times;
        for shard in &others {
            let other = *shard.get(&name)?;
            if !is_same(arrival, other) {
                return None;
            }
            norm2 = norm2.zip(other.norm2).map(|(sum, more)| sum + more.get());
            times = longest(times, other.times);
        }
        let norm = norm2.map(f64::sqrt).filter(|norm| !norm.is_nan());
        Some(Whole { arrival, norm, times })
    });
    whole.collect()
}

/// By task, fence and serial. Whatever says to be the same twice counts once.
fn by_name(arrivals: &[Arrival]) -> BTreeMap<(u32, u64, u64), &Arrival> {
    let mut named = BTreeMap::<(u32, u64, u64), &Arrival>::new();
    for arrival in arrivals {
        let held = named.entry((arrival.task, arrival.fence, arrival.serial)).or_insert(arrival);
        if arrival.update < held.update {
            *held = arrival;
        }
    }
    named
}

fn is_same(one: &Arrival, other: &Arrival) -> bool {
    one.update == other.update
        && one.values == other.values
        && one.base == other.base
        && one.examples == other.examples
}

fn longest(one: Times, other: Times) -> Times {
    Times {
        fetch_ms: one.fetch_ms.max(other.fetch_ms),
        compute_ms: one.compute_ms.max(other.compute_ms),
        upload_ms: one.upload_ms.max(other.upload_ms),
    }
}

/// The one in the middle; of two, the smaller.
fn median(mut norms: Vec<f64>) -> Option<f64> {
    norms.sort_by(f64::total_cmp);
    norms.get(norms.len().saturating_sub(1) / 2).copied()
}

/// Why an update is refused, if it is.
fn flaw(
    spec: &Federated,
    course: &Course,
    round: u32,
    one: &Whole<'_>,
    median: Option<f64>,
) -> Option<String> {
    let arrival = one.arrival;
    let Some(norm) = one.norm else { return Some("it has values that are not numbers".into()) };
    if norm > MAX_NORM {
        return Some(format!("its norm is {norm:.3e}"));
    }
    // The first model has no base that it could be too far from, and nothing to be compared with.
    let base = arrival.base?;
    if median.is_some_and(|median| median > 0.0 && norm > MAX_NORM_OF_MEDIAN * median) {
        return Some(format!("its norm is {norm:.3e}"));
    }
    if arrival.examples == 0 || arrival.examples > MAX_EXAMPLES {
        return Some(format!("it says that it was trained on {} examples", arrival.examples));
    }
    let values = course.model.as_ref().map_or(0, values);
    if arrival.values != values {
        return Some(format!("it has {} values, and the model has {values}", arrival.values));
    }
    if base >= round {
        return Some(format!("it began from model {base}, which does not stand"));
    }
    let limit = match spec.strategy {
        Strategy::FedBuff { max_staleness, .. } => max_staleness,
        _ => MAX_STALENESS,
    };
    let staleness = round - 1 - base;
    (staleness > limit).then(|| format!("it began {staleness} models ago"))
}

fn taken(task: u32, one: &Whole<'_>) -> Counted {
    let Arrival { fence, serial, base, examples, update, .. } = one.arrival;
    let how = CountedAs::Taken {
        fence: *fence,
        serial: *serial,
        base: base.unwrap_or_default(),
        examples: *examples,
        update: *update,
    };
    Counted { task, how, times: Some(one.times) }
}

fn part(task: u32, one: &Whole<'_>, weight: Real) -> Part {
    Part { task, fence: one.arrival.fence, serial: one.arrival.serial, weight }
}

/// Only for what is finite by its making.
fn real(number: f64) -> Real {
    Real::new(number).unwrap_or_default()
}

/// What was measured on data that was held back, and beside it what was measured in training: means, by examples.
fn metrics<'a>(good: impl IntoIterator<Item = &'a Whole<'a>>) -> BTreeMap<Name, Real> {
    let (mut held_back, mut trained) = (Means::default(), Means::default());
    for one in good {
        if let Some((examples, metrics)) = &one.arrival.evaluated {
            held_back.add(*examples, metrics);
        }
        trained.add(one.arrival.examples, &one.arrival.metrics);
    }
    let mut means = BTreeMap::new();
    for (name, mean) in held_back.means().chain(trained.means()) {
        if means.len() < MAX_METRICS {
            means.entry(name).or_insert(mean);
        }
    }
    means
}

/// Sums of metrics, with their weights.
#[derive(Default)]
struct Means(BTreeMap<Name, (f64, f64)>);

impl Means {
    fn add(&mut self, examples: u64, metrics: &BTreeMap<Name, Real>) {
        let weight = examples.min(MAX_EXAMPLES) as f64;
        for (name, metric) in metrics.iter().take(MAX_METRICS) {
            let (sum, weights) = self.0.entry(name.clone()).or_default();
            *sum += weight * metric.get();
            *weights += weight;
        }
    }

    fn means(self) -> impl Iterator<Item = (Name, Real)> {
        let means = self.0.into_iter().filter(|(_, (_, weights))| *weights > 0.0);
        means.filter_map(|(name, (sum, weights))| Some((name, Real::new(sum / weights)?)))
    }
}
