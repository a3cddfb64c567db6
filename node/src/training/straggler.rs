//! Who is slow, how long a round waits, and who takes part in it.
//!
//! Pure, over what stands in the state: a coordinator that takes over knows what the one before it knew, and decides the same.
//!
//! - *How long*: the median of the participants' times and some spread ([`deadline_ms`]).
//! - *For whom*: for those who were not missed the last time ([`is_dropped`]). Others may still send, and are waited for again
//!   once they did, unless it is known that they take longer than that ([`is_awaited`]).
//! - *Who*: everybody, some, or some of a tier ([`choose`]): as many as are waited for and three in ten more.
//! - *What comes late* counts less, not nothing ([`staleness_weight`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::job::training::Select;
use crate::state::course::{Record, Times};

/// A deadline is the median and so many times the median distance from it. Where times are spread normally that distance is
/// two thirds of a deviation, so this is 3.4 deviations: one in 2,700 that is alive is cut off. With 3 it would be one in 46:
/// somebody in every round of a mesh of that size. With more, the dead cost longer for nothing.
const SPREADS: u64 = 5;
/// The spread is at least the median divided by this: participants that are alike may still take half as long again.
const LEAST_SPREAD: u64 = 10;
/// With fewer times than this, nobody knows yet what is usual: the deadline is doubled.
const KNOWN: usize = 3;
const LEAST_DEADLINE_MS: u64 = 1_000;
const MOST_DEADLINE_MS: u64 = 60 * 60 * 1_000;

/// After so many misses in a row a participant is not waited for any more.
const MISSES: u32 = 1;

/// A participant that was away counts as at most so many turns behind. Otherwise its tier would have every turn until it had
/// caught up, and the model would lean towards that tier.
const MOST_BEHIND: u64 = 2;

/// Who takes part in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Whose updates are welcome: tasks.
    pub selected: BTreeSet<u32>,
    /// How many updates the round waits for; those of dropped participants are not among them. At least 1.
    pub wanted: usize,
}

/// What there is to say about a participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Good,
    /// It takes more than twice as long as the median.
    Slow,
    /// A quarter or more of what was taken of it came late.
    Late,
    /// It is not waited for any more.
    Dropped,
    /// The last that it sent was refused.
    Refused,
}

impl Standing {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Standing::Good => "good",
            Standing::Slow => "slow",
            Standing::Late => "late",
            Standing::Dropped => "dropped",
            Standing::Refused => "refused",
        }
    }
}

/// From the opening of a round to the arrival of an update; 0 if nothing has come yet.
pub fn whole_ms(times: &Times) -> u64 {
    u64::from(times.fetch_ms) + u64::from(times.compute_ms) + u64::from(times.upload_ms)
}

/// How long a round waits for those who are selected. `None` if none of them has ever sent anything.
pub fn deadline_ms(records: &BTreeMap<u32, Record>, selected: &BTreeSet<u32>) -> Option<u64> {
    let times = selected.iter().filter_map(|task| seen_ms(records.get(task)?));
    let times: Vec<u64> = times.collect();
    let middle = median(times.clone())?;
    let spread = median(times.iter().map(|ms| ms.abs_diff(middle)).collect())?;
    let usual = middle + SPREADS * spread.max(middle / LEAST_SPREAD);
    let deadline = if times.len() < KNOWN { 2 * usual } else { usual };
    Some(deadline.clamp(LEAST_DEADLINE_MS, MOST_DEADLINE_MS))
}

/// What is left of an update that began from the model `base` while `round` is open, which begins from the model before it.
pub fn staleness_weight(base: u32, round: u32) -> f64 {
    let behind = round.saturating_sub(1).saturating_sub(base);
    1.0 / (1.0 + f64::from(behind)).sqrt()
}

/// Whether a round no longer waits for it, until it sends something again: a dead site costs its deadline twice, not every
/// round.
pub fn is_dropped(record: &Record) -> bool {
    record.missed_in_a_row >= MISSES
}

/// Whether a round that waits for so long waits for it: not for one that was dropped, nor for one that was missed before and is
/// known to take longer. That one would come too late in any case, and its updates, which do come, would else hold up a
/// round to its deadline each time that one of them is in. Once it is faster, it is waited for again.
pub fn is_awaited(record: &Record, deadline_ms: Option<u64>) -> bool {
    let comes_too_late = deadline_ms.is_some_and(|deadline| whole_ms(&record.times) > deadline);
    !(is_dropped(record) || (record.missed > 0 && comes_too_late))
}

/// Who takes part in a round, of those who are there. `draw(n)` gives a number below `n`.
///
/// Round 0 is one participant's: it makes the first model. Whoever was dropped is selected in any other round, so that it may
/// return, but not waited for.
pub fn choose(
    select: &Select,
    present: &BTreeSet<u32>,
    records: &BTreeMap<u32, Record>,
    round: u32,
    draw: &mut dyn FnMut(usize) -> usize,
) -> Choice {
    if round == 0 {
        // After a miss it is the next one's turn.
        let missed = |task: &u32| records.get(task).map_or(0, |record| record.missed_in_a_row);
        let first = present.iter().copied().min_by_key(|task| (missed(task), *task));
        return Choice { selected: first.into_iter().collect(), wanted: 1 };
    }
    let (dropped, live): (BTreeSet<u32>, BTreeSet<u32>) =
        present.iter().copied().partition(|task| records.get(task).is_some_and(is_dropped));
    let (mut selected, wanted) = match select {
        Select::All => {
            let wanted = live.len();
            (live, wanted)
        }
        Select::Random { count } => {
            let wanted = live.len().min(*count as usize);
            (drawn(live, *count, |_| 0, draw), wanted)
        }
        Select::Tiers { count, tiers } => {
            let tier = next_tier(&live, records, *tiers);
            let wanted = tier.len().min(*count as usize);
            (drawn(tier, *count, |task| turns(task, records), draw), wanted)
        }
    };
    selected.extend(dropped);
    Choice { selected, wanted: wanted.max(1) }
}

/// Which tier a participant is in, 0 for the fastest. `None` for one that is dropped or not known.
pub fn tier_of(task: u32, records: &BTreeMap<u32, Record>, tiers: u32) -> Option<u32> {
    let tiers = split(&known(records), records, tiers);
    tiers.iter().position(|tier| tier.contains(&task)).and_then(|at| u32::try_from(at).ok())
}

/// What there is to say about a participant: the worst of it.
pub fn standing(task: u32, records: &BTreeMap<u32, Record>) -> Standing {
    let Some(record) = records.get(&task) else {
        return Standing::Good;
    };
    let middle = median(records.values().filter_map(seen_ms).collect());
    let is_slow = middle.is_some_and(|middle| whole_ms(&record.times) > 2 * middle);
    let is_late = record.taken > 0 && u64::from(record.late) * 4 >= u64::from(record.taken);
    // The reason of a refusal goes once something is taken again.
    if record.refused > 0 && record.why.is_some() {
        Standing::Refused
    } else if is_dropped(record) {
        Standing::Dropped
    } else if is_late {
        Standing::Late
    } else if is_slow {
        Standing::Slow
    } else {
        Standing::Good
    }
}

/// How much each contributed: its part of all examples that were taken.
pub fn shares(records: &BTreeMap<u32, Record>) -> BTreeMap<u32, f64> {
    // As numbers with a fraction: the counts are the participants' own, and their sum may be too large.
    let all: f64 = records.values().map(|record| record.examples as f64).sum();
    let share = |record: &Record| if all > 0.0 { record.examples as f64 / all } else { 0.0 };
    records.iter().map(|(task, record)| (*task, share(record))).collect()
}

/// Its time, if it has ever sent anything.
fn seen_ms(record: &Record) -> Option<u64> {
    Some(whole_ms(&record.times)).filter(|ms| *ms > 0)
}

fn median(mut numbers: Vec<u64>) -> Option<u64> {
    numbers.sort_unstable();
    let above = *numbers.get(numbers.len() / 2)?;
    let below = numbers[(numbers.len() - 1) / 2];
    Some((below + above) / 2)
}

/// How often it had its turn. What was missed does not count: who misses often is dropped, and who returns was not used.
fn turns(task: u32, records: &BTreeMap<u32, Record>) -> u64 {
    records.get(&task).map_or(0, |record| u64::from(record.taken) + u64::from(record.refused))
}

/// Those who are not dropped.
fn known(records: &BTreeMap<u32, Record>) -> BTreeSet<u32> {
    let known = records.iter().filter(|(_, record)| !is_dropped(record));
    known.map(|(task, _)| *task).collect()
}

/// Tasks by tier, the fastest first, of about the same size. Who has not been seen yet is among the slowest. There is always
/// one tier, and none is empty but for want of tasks.
fn split(tasks: &BTreeSet<u32>, records: &BTreeMap<u32, Record>, tiers: u32) -> Vec<BTreeSet<u32>> {
    let time = |task: &u32| records.get(task).and_then(seen_ms);
    let (mut seen, unseen): (Vec<u32>, Vec<u32>) =
        tasks.iter().copied().partition(|task| time(task).is_some());
    seen.sort_by_key(|task| (time(task), *task));
    let count = seen.len().min(tiers as usize).max(1);
    let mut split = vec![BTreeSet::new(); count];
    for (at, task) in seen.iter().enumerate() {
        split[at * count / seen.len()].insert(*task);
    }
    split[count - 1].extend(unseen);
    split
}

/// The live of the tier whose members had their turn least often, so that the data of every participant are used; of several
/// the fastest.
fn next_tier(live: &BTreeSet<u32>, records: &BTreeMap<u32, Record>, tiers: u32) -> BTreeSet<u32> {
    // Who is away for the moment keeps its place, so that nobody changes tiers by it.
    let everybody: BTreeSet<u32> = known(records).union(live).copied().collect();
    let most = live.iter().map(|task| turns(*task, records)).max().unwrap_or(0);
    let least = most.saturating_sub(MOST_BEHIND);
    let mut best: Option<(f64, BTreeSet<u32>)> = None;
    for tier in split(&everybody, records, tiers) {
        let tier: BTreeSet<u32> = tier.intersection(live).copied().collect();
        if tier.is_empty() {
            continue;
        }
        let sum: u64 = tier.iter().map(|task| turns(*task, records).max(least)).sum();
        let mean = sum as f64 / tier.len() as f64;
        if best.as_ref().is_none_or(|(lowest, _)| mean < *lowest) {
            best = Some((mean, tier));
        }
    }
    best.map(|(_, tier)| tier).unwrap_or_default()
}

/// As many as are waited for and three in ten more, those with the fewest turns first.
fn drawn(
    mut of: BTreeSet<u32>,
    count: u32,
    turns: impl Fn(u32) -> u64,
    draw: &mut dyn FnMut(usize) -> usize,
) -> BTreeSet<u32> {
    let size = (u64::from(count) * 13).div_ceil(10);
    let mut drawn = BTreeSet::new();
    while (drawn.len() as u64) < size {
        let Some(fewest) = of.iter().map(|task| turns(*task)).min() else {
            break;
        };
        let next: Vec<u32> = of.iter().copied().filter(|task| turns(*task) == fewest).collect();
        let task = next[draw(next.len()).min(next.len() - 1)];
        of.remove(&task);
        drawn.insert(task);
    }
    drawn
}

#[cfg(test)]
mod tests;
