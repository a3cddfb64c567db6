//! One shard of a parameter server, as a primary and its backup both have it. Decides, and does not act.
//!
//! ```text
//!   Op ──judge──► Again      it is in already: acknowledged once more
//!             ├─► Late       its step was done without it
//!             ├─► Wait       others have not come so far
//!             ├─► Refused    it cannot be taken at all
//!             └─► Done  ──apply──► values, what the optimiser keeps, the ledger
//! ```
//!
//! The same operations in the same order make the same shard, to the bit. So the backup is sent operations, and what it
//! holds when the primary acknowledges is what the primary holds.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ledger::{Ledger, Live};
use super::optimiser::Optimiser;
use crate::job::training::{Mode, Rule, Server, Wire};
use crate::training::pack;
use crate::training::tensors::{bytes_of, values_of};

/// The most stretches of values that one push has.
pub const MAX_PARTS: usize = 1024;

/// What a job says, as far as a shard has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Steps, or batches.
    pub steps: u32,
    /// Who waits for whom.
    pub mode: Mode,
    /// Whether batches are handed out.
    pub dynamic: bool,
    /// How a step is made.
    pub rule: Rule,
    /// How gradients are packed.
    pub wire: Wire,
    /// Steps between two checkpoints.
    pub checkpoint: u32,
    /// How many workers there are.
    pub workers: u32,
}

impl Settings {
    /// Of a job with so many workers.
    pub fn of(asked: &Server, workers: u32) -> Self {
        Self {
            steps: asked.steps,
            mode: asked.mode,
            dynamic: asked.dynamic,
            rule: asked.optimiser,
            wire: asked.wire,
            checkpoint: asked.checkpoint.max(1),
            workers: workers.max(1),
        }
    }
}

/// Some values of a shard that follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The first, counted from the beginning of the shard.
    pub at: u64,
    /// How many.
    pub count: u64,
}

/// What changes a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A worker takes part from this step on.
    Enter {
        /// Its task.
        worker: u32,
        /// Its attempt.
        fence: u64,
        /// The first step that waits for it.
        start: u32,
    },
    /// A worker is not waited for any more.
    Leave {
        /// Its task.
        worker: u32,
        /// Its attempt.
        fence: u64,
    },
    /// Gradients, whose packed bytes come beside it: part after part.
    Push {
        /// Its task.
        worker: u32,
        /// Its attempt.
        fence: u64,
        /// Which step, or batch.
        step: u32,
        /// Which values. In order, and none twice.
        parts: Vec<Part>,
    },
}

/// What becomes of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is in.
    Done,
    /// It was in before.
    Again,
    /// Its step was done without it.
    Late,
    /// Others have not come so far: later.
    Wait,
    /// Another attempt has this task.
    Superseded,
    /// It is not one.
    Bad,
}

/// How a worker stands with a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Standing {
    /// The last step that it has pushed here.
    pub clock: u32,
    /// So far others have come without it: it goes on after this.
    pub floor: u32,
    /// Whether it is waited for.
    pub is_live: bool,
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    settings: Settings,
    values: Vec<f32>,
    optimiser: Optimiser,
    ledger: Ledger,
    /// Bulk-synchronous: what has come of the step that is not done.
    pending: Option<Pending>,
}

/// A step of which some gradients are there.
#[derive(Debug, Clone, PartialEq)]
struct Pending {
    sum: Vec<f32>,
    from: BTreeSet<u32>,
}

/// A shard as it is kept, without its values.
#[derive(Serialize, Deserialize)]
struct Kept {
    ledger: Ledger,
    powers: [f64; 2],
    pending: Option<BTreeSet<u32>>,
}

impl Shard {
    /// A shard that nobody has pushed to.
    pub fn new(settings: Settings, values: Vec<f32>) -> Self {
        let optimiser = Optimiser::new(settings.rule, values.len());
        Self { settings, values, optimiser, ledger: Ledger::default(), pending: None }
    }

    /// Its values.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// What it was made for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it has taken.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How a worker stands.
    pub fn standing(&self, worker: u32) -> Standing {
        let floor = match self.settings.mode {
            _ if self.settings.dynamic => 0,
            Mode::Bulk => self.ledger.floor,
            Mode::Bounded { .. } => self.ledger.slowest_but(worker).unwrap_or(0),
            Mode::Async => 0,
        };
        let is_live = self.ledger.live.contains_key(&worker);
        Standing { clock: self.ledger.clock(worker), floor, is_live }
    }

    /// Whether a worker may begin a step.
    pub fn may_begin(&self, worker: u32, step: u32) -> bool {
        self.settings.dynamic || self.ledger.may_begin(self.settings.mode, worker, step)
    }

    /// How far all of it is: a step, up to which a checkpoint can be said to be.
    pub fn progress(&self) -> u32 {
        let Settings { steps, mode, dynamic, workers, .. } = self.settings;
        let done = match mode {
            _ if dynamic => self.ledger.batches_in(),
            Mode::Bulk => self.ledger.floor,
            Mode::Bounded { .. } | Mode::Async => {
                let sum: u64 = self.ledger.clocks.values().map(|step| u64::from(*step)).sum();
                u32::try_from(sum / u64::from(workers)).unwrap_or(u32::MAX)
            }
        };
        done.min(steps)
    }

    /// Whether there is nothing more to come, if those who ended for good bring nothing more.
    pub fn is_done(&self, ended: &BTreeSet<u32>) -> bool {
        let Settings { steps, mode, dynamic, workers, .. } = self.settings;
        match mode {
            _ if dynamic => self.ledger.batches_in() >= steps,
            Mode::Bulk => self.ledger.floor >= steps,
            Mode::Bounded { .. } | Mode::Async => (0..workers)
                .all(|worker| ended.contains(&worker) || self.ledger.clock(worker) >= steps),
        }
    }

    /// What would become of an operation now.
    pub fn judge(&self, op: &Op, bytes: &[u8]) -> Outcome {
        let (worker, fence) = match op {
            Op::Enter { worker, fence, .. }
            | Op::Leave { worker, fence }
            | Op::Push { worker, fence, .. } => (*worker, *fence),
        };
        if worker >= self.settings.workers {
            return Outcome::Bad;
        }
        if self.ledger.live.get(&worker).is_some_and(|live| live.fence > fence) {
            return Outcome::Superseded;
        }
        match op {
            Op::Enter { .. } | Op::Leave { .. } => Outcome::Done,
            Op::Push { step, parts, .. } => {
                if *step == 0 || *step > self.settings.steps || !self.fits(parts, bytes) {
                    return Outcome::Bad;
                }
                self.judge_step(worker, *step)
            }
        }
    }

    fn judge_step(&self, worker: u32, step: u32) -> Outcome {
        if self.settings.dynamic {
            return if self.ledger.has_batch(step) { Outcome::Again } else { Outcome::Done };
        }
        let is_bulk = self.settings.mode == Mode::Bulk;
        if step <= self.ledger.clock(worker) {
            Outcome::Again
        } else if is_bulk && step <= self.ledger.floor {
            Outcome::Late
        } else if !self.may_begin(worker, step) {
            Outcome::Wait
        } else {
            Outcome::Done
        }
    }

    /// Whether the parts are in order, within the shard, and as long as their bytes.
    fn fits(&self, parts: &[Part], bytes: &[u8]) -> bool {
        let mut end = 0u64;
        let mut length = 0u64;
        let in_order = parts.iter().all(|part| {
            let fits = part.at >= end && part.count > 0;
            end = part.at.saturating_add(part.count);
            let count = usize::try_from(part.count).unwrap_or(usize::MAX);
            length = length.saturating_add(pack::packed_bytes(count, self.settings.wire));
            fits
        });
        parts.len() <= MAX_PARTS
            && in_order
            && end <= self.values.len() as u64
            && length == bytes.len() as u64
    }

    /// Does it, if it is to be done. Says at which step there is a checkpoint now, if this brought it about.
    pub fn apply(&mut self, op: &Op, bytes: &[u8]) -> (Outcome, Option<u32>) {
        let outcome = self.judge(op, bytes);
        if outcome != Outcome::Done {
            return (outcome, None);
        }
        match op {
            Op::Enter { worker, fence, start } => {
                self.ledger.live.insert(*worker, Live { fence: *fence, start: *start });
            }
            Op::Leave { worker, .. } => drop(self.ledger.live.remove(worker)),
            Op::Push { worker, fence, step, parts } => {
                self.take(*worker, *fence, *step, parts, bytes);
            }
        }
        self.complete();
        (outcome, self.checkpoint_due())
    }

    fn take(&mut self, worker: u32, fence: u64, step: u32, parts: &[Part], bytes: &[u8]) {
        let Settings { mode, dynamic, wire, .. } = self.settings;
        let live = self.ledger.live.entry(worker).or_insert(Live { fence, start: step });
        live.fence = fence;
        if dynamic {
            self.ledger.add_batch(step);
            let clock = self.ledger.clocks.entry(worker).or_default();
            // How many it has brought; batches have no order.
            *clock = clock.saturating_add(1).min(self.settings.steps);
        } else {
            self.ledger.clocks.insert(worker, step);
        }
        let sums = mode == Mode::Bulk && !dynamic;
        let count = self.values.len();
        if sums {
            let pending = self
                .pending
                .get_or_insert_with(|| Pending { sum: vec![0.0; count], from: BTreeSet::new() });
            pending.from.insert(worker);
        } else {
            self.optimiser.begin();
        }
        let mut rest = bytes;
        for part in parts {
            // They fit: judged before.
            let (at, count) = (part.at as usize, part.count as usize);
            let (own, others) = rest.split_at(pack::packed_bytes(count, wire) as usize);
            rest = others;
            if let Some(pending) = &mut self.pending {
                // Lengths are right, and that is all that can be wrong.
                let _ = pack::add(own, wire, 1.0, &mut pending.sum[at..at + count]);
            } else if let Ok(gradient) = pack::unpack(own, wire, count) {
                self.optimiser.step(&mut self.values[at..at + count], &gradient, at);
            }
        }
    }

    /// Bulk-synchronous: does the step of which everybody's gradients are there.
    fn complete(&mut self) {
        let next = self.ledger.floor.saturating_add(1);
        let Some(pending) = &self.pending else { return };
        let mut live = self.ledger.live.iter();
        let is_there =
            |worker: &u32, live: &Live| live.start > next || pending.from.contains(worker);
        if self.ledger.live.is_empty() || !live.all(|(worker, live)| is_there(worker, live)) {
            return;
        }
        let Some(Pending { mut sum, from }) = self.pending.take() else { return };
        let count = from.len().max(1) as f32;
        sum.iter_mut().for_each(|value| *value /= count);
        self.optimiser.begin();
        self.optimiser.step(&mut self.values, &sum, 0);
        self.ledger.floor = next;
    }

    /// The step of the checkpoint that is due, once.
    fn checkpoint_due(&mut self) -> Option<u32> {
        let Settings { steps, checkpoint, .. } = self.settings;
        let progress = self.progress();
        let due = if progress >= steps { steps } else { progress - progress % checkpoint };
        if due <= self.ledger.kept {
            return None;
        }
        self.ledger.kept = due;
        Some(due)
    }

    /// Its values as bytes, and everything else.
    pub fn to_bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let (powers, first, second) = self.optimiser.kept();
        let kept = Kept {
            ledger: self.ledger.clone(),
            powers,
            pending: self.pending.as_ref().map(|pending| pending.from.clone()),
        };
        let kept = postcard::to_stdvec(&kept).unwrap_or_default();
        let mut bytes = (kept.len() as u64).to_le_bytes().to_vec();
        bytes.extend(kept);
        bytes.extend(bytes_of(first));
        bytes.extend(bytes_of(second));
        if let Some(pending) = &self.pending {
            bytes.extend(bytes_of(&pending.sum));
        }
        (bytes_of(&self.values), bytes)
    }

    /// A shard as it was kept; `None` if these are not the bytes of one.
    pub fn from_bytes(settings: Settings, values: &[u8], rest: &[u8]) -> Option<Self> {
        let values = values_of(values)?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (kept, rest) = rest.split_at_checked(length)?;
        let Kept { ledger, powers, pending } = postcard::from_bytes(kept).ok()?;
        if !ledger.is_sound(settings.workers, settings.steps) {
            return None;
        }
        let row = values.len().checked_mul(4)?;
        let (has_first, has_second) = Optimiser::rows_of(settings.rule);
        let (first, rest) = rest.split_at_checked(if has_first { row } else { 0 })?;
        let (second, rest) = rest.split_at_checked(if has_second { row } else { 0 })?;
        let (sum, rest) = rest.split_at_checked(if pending.is_some() { row } else { 0 })?;
        if !rest.is_empty() || pending.as_ref().is_some_and(|from| from.len() > 1 << 10) {
            return None;
        }
        let (first, second) = (values_of(first)?, values_of(second)?);
        let optimiser = Optimiser::resume(settings.rule, values.len(), powers, first, second)?;
        let sum = values_of(sum)?;
        let pending = pending.map(|from| Pending { sum, from });
        Some(Self { settings, values, optimiser, ledger, pending })
    }

    /// Nobody is waited for: those who are there enter again.
    pub fn forget_workers(&mut self) {
        self.ledger.live.clear();
    }
}

#[cfg(test)]
mod tests;
