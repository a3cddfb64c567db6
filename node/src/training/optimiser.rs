//! What the server does with updates: brings them together, and steps the model.
//!
//! ```text
//!   updates, packed ──combine──► their mean, or median ──Optimiser::apply──► the next model
//! ```
//!
//! An update is *new − base*: it points where the model should go, and a gradient points the other way. Each value stands
//! for itself. So shards can be worked on apart, and what comes out does not depend on how many threads there are.

use std::num::NonZero;
use std::thread;

use super::pack::{self, PackError};
use super::shards::BLOCK;
use super::tensors::{bytes_of, values_of};
use crate::job::training::{Adaptive, Strategy, Wire};

/// With more values than this, a second thread is worth its start.
const MANY: usize = 1 << 20;
/// Memory is the limit: more threads would wait for it.
const MAX_THREADS: usize = 4;
/// So many values are summed at a time, a multiple of [`BLOCK`]: 64 KiB, which stay in the second cache while each update
/// is added.
const STRETCH: usize = 16 * BLOCK;

/// What one shard of a training keeps between rounds, and how it steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimiser {
    rule: Rule,
    /// As many as the shard has, or none: the running mean of updates.
    first: Vec<f32>,
    /// As many as the shard has, or none: what stands for the size of updates.
    second: Vec<f32>,
}

/// How a value steps.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    Add { rate: f32 },
    Adaptive { size: Size, rate: f32, beta1: f32, beta2: f32, tau: f32 },
    Nesterov { rate: f32, momentum: f32 },
}

/// How the size of updates is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Adam,
    Yogi,
    Adagrad,
}

impl Optimiser {
    /// Before the first round.
    pub fn new(strategy: &Strategy, values: usize) -> Self {
        let rule = rule_of(strategy);
        let (first, second) = match rule {
            Rule::Add { .. } => (Vec::new(), Vec::new()),
            // No smaller than this, as Reddi et al. ask.
            Rule::Adaptive { tau, .. } => (vec![0.0; values], vec![tau * tau; values]),
            Rule::Nesterov { .. } => (vec![0.0; values], Vec::new()),
        };
        Self { rule, first, second }
    }

    /// Steps the model. `mean` is what [`combine`] made of the updates; both have as many values as the shard.
    pub fn apply(&mut self, model: &mut [f32], mean: &[f32]) {
        assert_eq!(model.len(), mean.len(), "a model and its updates are of one shard");
        let kept = self.first.len();
        assert!(kept == 0 || kept == model.len(), "an optimiser is of one shard");
        let rule = self.rule;
        let (first, second) = (&mut self.first[..], &mut self.second[..]);
        let share = share_of(model.len());
        if share >= model.len() {
            return rule.step(model, mean, first, second);
        }
        // Of what is not kept, every part is empty.
        let (mut firsts, mut seconds) = (first.chunks_mut(share), second.chunks_mut(share));
        let parts = model.chunks_mut(share).zip(mean.chunks(share));
        thread::scope(|scope| {
            for (model, mean) in parts {
                let first = firsts.next().unwrap_or_default();
                let second = seconds.next().unwrap_or_default();
                scope.spawn(move || rule.step(model, mean, first, second));
            }
        });
    }

    /// What is kept between rounds; empty where the strategy keeps nothing.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = bytes_of(&self.first);
        bytes.append(&mut bytes_of(&self.second));
        bytes
    }

    /// Goes on from what was kept; `None` if that is not of this strategy and so many values.
    pub fn from_bytes(strategy: &Strategy, values: usize, bytes: &[u8]) -> Option<Self> {
        let rule = rule_of(strategy);
        let rows: usize = match rule {
            Rule::Add { .. } => 0,
            Rule::Adaptive { .. } => 2,
            Rule::Nesterov { .. } => 1,
        };
        let row = values.checked_mul(4)?;
        if bytes.len() != row.checked_mul(rows)? {
            return None;
        }
        let (first, second) = bytes.split_at(row.min(bytes.len()));
        Some(Self { rule, first: values_of(first)?, second: values_of(second)? })
    }
}

fn rule_of(strategy: &Strategy) -> Rule {
    let adaptive = |size, set: &Adaptive| Rule::Adaptive {
        size,
        rate: set.rate.get() as f32,
        beta1: set.beta1.get() as f32,
        beta2: set.beta2.get() as f32,
        tau: set.tau.get() as f32,
    };
    match strategy {
        Strategy::FedAvg { rate } | Strategy::FedBuff { rate, .. } => {
            Rule::Add { rate: rate.get() as f32 }
        }
        Strategy::FedProx { .. } | Strategy::Median | Strategy::TrimmedMean { .. } => {
            Rule::Add { rate: 1.0 }
        }
        Strategy::FedAdam(set) => adaptive(Size::Adam, set),
        Strategy::FedYogi(set) => adaptive(Size::Yogi, set),
        Strategy::FedAdagrad(set) => adaptive(Size::Adagrad, set),
        Strategy::DiLoCo { rate, momentum } => {
            Rule::Nesterov { rate: rate.get() as f32, momentum: momentum.get() as f32 }
        }
    }
}

impl Rule {
    /// One pass over all values.
    fn step(self, model: &mut [f32], mean: &[f32], first: &mut [f32], second: &mut [f32]) {
        match self {
            Rule::Add { rate } => {
                for (value, mean) in model.iter_mut().zip(mean) {
                    *value += rate * mean;
                }
            }
            Rule::Adaptive { size, rate, beta1, beta2, tau } => {
                let grow = |second: f32, square: f32| match size {
                    Size::Adam => beta2 * second + (1.0 - beta2) * square,
                    Size::Yogi if second > square => second - (1.0 - beta2) * square,
                    Size::Yogi if second < square => second + (1.0 - beta2) * square,
                    Size::Yogi => second,
                    Size::Adagrad => second + square,
                };
                let kept = first.iter_mut().zip(second);
                for ((value, mean), (first, second)) in model.iter_mut().zip(mean).zip(kept) {
                    *first = beta1 * *first + (1.0 - beta1) * mean;
                    *second = grow(*second, mean * mean);
                    *value += rate * *first / (second.sqrt() + tau);
                }
            }
            Rule::Nesterov { rate, momentum } => {
                // As torch.optim.SGD(nesterov=True), with all signs turned: from zero, its first step is the same.
                for ((value, mean), first) in model.iter_mut().zip(mean).zip(first) {
                    *first = momentum * *first + mean;
                    *value += rate * (mean + momentum * *first);
                }
            }
        }
    }
}

/// Whether each value is picked from among the updates: then examples do not count, and all updates are needed at once.
pub fn is_robust(strategy: &Strategy) -> bool {
    matches!(strategy, Strategy::Median | Strategy::TrimmedMean { .. })
}

/// Brings updates together, each with its weight.
///
/// The weighted sum, divided by `divisor`; or, for a strategy that [`is_robust`], what is left of each value's updates when
/// they are sorted and the extremes left out, once each is scaled by its weight. Then `divisor` does not count. Of no
/// updates nothing comes: zeros.
pub fn combine(
    strategy: &Strategy,
    updates: &[(&[u8], f32)],
    wire: Wire,
    values: usize,
    divisor: f64,
) -> Result<Vec<f32>, PackError> {
    for (bytes, _) in updates {
        pack::check(bytes, values, wire)?;
    }
    if let Some(left_out) = left_out(strategy, updates.len()) {
        let network = network(updates.len());
        let part = |at: usize, out: &mut [f32]| {
            pick(updates, wire, left_out, &network, at, out);
        };
        return Ok(in_parts(values, part));
    }
    if !divisor.is_finite() || divisor <= 0.0 {
        return Err(PackError::Divisor);
    }
    // Weights may be as large as examples are many. Both sides are brought near 1 first, by a power of two, which rounds
    // nothing: so no sum overflows that is not itself too large.
    let power = 2f64.powi(-divisor.log2().clamp(-1000.0, 1000.0) as i32);
    let scaled: Vec<(&[u8], f32)> = updates
        .iter()
        .map(|(bytes, weight)| (*bytes, (f64::from(*weight) * power) as f32))
        .collect();
    let divisor = (divisor * power) as f32;
    Ok(in_parts(values, |at: usize, out: &mut [f32]| sum(&scaled, wire, divisor, at, out)))
}

/// How many of the lowest do not count, and as many of the highest; `None` for a strategy that sums.
fn left_out(strategy: &Strategy, updates: usize) -> Option<usize> {
    // All but one, or all but two of an even number, of which the median is the mean.
    let most = updates.saturating_sub(1) / 2;
    match strategy {
        Strategy::Median => Some(most),
        // A share such as 0.29 of 100 is a little less than 29 in floats.
        Strategy::TrimmedMean { trim } => {
            Some(((trim.get() * updates as f64 + 1e-9) as usize).min(most))
        }
        _ => None,
    }
}

/// How many values each thread gets.
fn share_of(values: usize) -> usize {
    if values <= MANY {
        return values.max(1);
    }
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    values.div_ceil(cores.min(MAX_THREADS)).next_multiple_of(STRETCH)
}

/// Makes so many values, a part at a time: `part` is told where its part begins, and gets zeros.
fn in_parts(values: usize, part: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut out = vec![0.0f32; values];
    let share = share_of(values);
    if share >= values {
        part(0, &mut out);
        return out;
    }
    let part = &part;
    thread::scope(|scope| {
        for (index, out) in out.chunks_mut(share).enumerate() {
            scope.spawn(move || part(index * share, out));
        }
    });
    out
}

/// Sums the values from `at` on, and divides.
fn sum(updates: &[(&[u8], f32)], wire: Wire, divisor: f32, at: usize, out: &mut [f32]) {
    for (index, out) in out.chunks_mut(STRETCH).enumerate() {
        let begin = at + index * STRETCH;
        for (bytes, weight) in updates {
            // It is there: lengths were checked.
            let part = pack::part(bytes, wire, begin..begin + out.len()).unwrap_or_default();
            pack::add_checked(part, wire, *weight, out);
        }
        for value in out.iter_mut() {
            *value /= divisor;
        }
    }
}

/// Sorts the updates of each value from `at` on, and takes the mean of what is not left out.
///
/// A row holds one update's values of a block. Rows are sorted by comparing whole rows with one another: the same steps
/// for every value, without a branch, many values at once.
fn pick(
    updates: &[(&[u8], f32)],
    wire: Wire,
    left_out: usize,
    network: &[(usize, usize)],
    at: usize,
    out: &mut [f32],
) {
    let mut rows = vec![0.0f32; updates.len() * BLOCK];
    let kept = left_out..updates.len() - left_out.min(updates.len());
    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
        let begin = at + index * BLOCK;
        for ((bytes, weight), row) in updates.iter().zip(rows.chunks_mut(BLOCK)) {
            let row = &mut row[..out.len()];
            // It is there: lengths were checked.
            let part = pack::part(bytes, wire, begin..begin + row.len()).unwrap_or_default();
            pack::unpack_checked(part, wire, row);
            for value in row {
                *value *= weight;
            }
        }
        for (low, high) in network {
            let (front, back) = rows.split_at_mut(high * BLOCK);
            exchange(&mut front[low * BLOCK..][..out.len()], &mut back[..out.len()]);
        }
        for row in rows.chunks(BLOCK).take(kept.end).skip(kept.start) {
            for (out, value) in out.iter_mut().zip(row) {
                *out += value;
            }
        }
        let count = kept.len().max(1) as f32;
        for value in out.iter_mut() {
            *value /= count;
        }
    }
}

/// The smaller of each pair to `lows`, the larger to `highs`.
fn exchange(lows: &mut [f32], highs: &mut [f32]) {
    for (low, high) in lows.iter_mut().zip(highs) {
        let (one, other) = (*low, *high);
        *low = if other < one { other } else { one };
        *high = if other < one { one } else { other };
    }
}

/// Which rows to compare, in order, until `rows` of them are sorted: Batcher's merge exchange.
fn network(rows: usize) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut sorted = 1;
    while sorted < rows {
        let mut apart = sorted;
        while apart > 0 {
            for start in (apart % sorted..rows.saturating_sub(apart)).step_by(2 * apart) {
                for low in start..(start + apart).min(rows - apart) {
                    // Only within what becomes one sorted run.
                    if low / (2 * sorted) == (low + apart) / (2 * sorted) {
                        pairs.push((low, low + apart));
                    }
                }
            }
            apart /= 2;
        }
        sorted *= 2;
    }
    pairs
}

#[cfg(test)]
mod tests;
