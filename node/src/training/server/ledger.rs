//! What a shard has taken, of whom: so that nothing counts twice, and nobody waits for one who is gone.
//!
//! A worker is a task, and goes by its number. Its steps follow one another; of two attempts the one with the higher fence counts.
//! Batches that are handed out have numbers of their own, and count once, whoever pushes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::training::{MAX_WORKERS, Mode};

/// See the module. It goes into checkpoints and to the backup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Bulk-synchronous: so many steps are done.
    pub(super) floor: u32,
    /// The last step that each worker has pushed. Only ever grows.
    pub(super) clocks: BTreeMap<u32, u32>,
    /// Those who are waited for.
    pub(super) live: BTreeMap<u32, Live>,
    /// Batches that are in: the first and the last of each stretch. Two stretches never touch.
    pub(super) batches: BTreeMap<u32, u32>,
    /// The last step of which there was a checkpoint.
    pub(super) kept: u32,
}

/// A worker that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Its attempt.
    pub(super) fence: u64,
    /// The first step that it takes part in.
    pub(super) start: u32,
}

impl Ledger {
    /// The last step of a worker.
    pub(super) fn clock(&self, worker: u32) -> u32 {
        self.clocks.get(&worker).copied().unwrap_or(0)
    }

    /// How far a worker that is waited for has come.
    fn reached(&self, worker: u32, live: &Live) -> u32 {
        self.clock(worker).max(live.start.saturating_sub(1))
    }

    /// How far the slowest is that is waited for, but for this one; `None` if there is no other.
    pub(super) fn slowest_but(&self, worker: u32) -> Option<u32> {
        let others = self.live.iter().filter(|(other, _)| **other != worker);
        others.map(|(other, live)| self.reached(*other, live)).min()
    }

    /// Whether a worker may begin a step.
    pub(super) fn may_begin(&self, mode: Mode, worker: u32, step: u32) -> bool {
        match mode {
            Mode::Bulk => self.floor.saturating_add(1) >= step,
            Mode::Bounded { delay } => self
                .slowest_but(worker)
                .is_none_or(|slowest| slowest.saturating_add(delay).saturating_add(1) >= step),
            Mode::Async => true,
        }
    }

    /// Whether a batch is in.
    pub(super) fn has_batch(&self, batch: u32) -> bool {
        let before = self.batches.range(..=batch).next_back();
        before.is_some_and(|(_, last)| batch <= *last)
    }

    /// A batch is in, which was not.
    pub(super) fn add_batch(&mut self, batch: u32) {
        let mut stretch = (batch, batch);
        if let Some(next) = batch.checked_add(1)
            && let Some(last) = self.batches.remove(&next)
        {
            stretch.1 = last;
        }
        let before = self.batches.range(..batch).next_back().map(|(first, last)| (*first, *last));
        if let Some((first, last)) = before
            && last.checked_add(1) == Some(batch)
        {
            stretch.0 = first;
        }
        self.batches.insert(stretch.0, stretch.1);
    }

    /// All batches up to this one are in.
    pub(super) fn batches_whole(&self) -> u32 {
        self.batches.get(&1).copied().unwrap_or(0)
    }

    /// How many batches are in.
    pub(super) fn batches_in(&self) -> u32 {
        let counts = self.batches.iter().map(|(first, last)| last - first + 1);
        counts.fold(0, u32::saturating_add)
    }

    /// Whether it can have come about, with so many workers and steps.
    pub(super) fn is_sound(&self, workers: u32, steps: u32) -> bool {
        let known = |worker: &u32| *worker < workers.min(MAX_WORKERS);
        let mut after = 0u32;
        let stretches = self.batches.iter().all(|(first, last)| {
            let fits = *first > after && first <= last && *last <= steps;
            // They do not touch.
            after = last.saturating_add(1);
            fits
        });
        self.clocks.keys().chain(self.live.keys()).all(known)
            && self.clocks.values().chain([&self.floor, &self.kept]).all(|step| *step <= steps)
            && stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_kept_as_stretches_however_they_come() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..50 {
            let mut order: Vec<u32> = (1..=40).collect();
            random.shuffle(&mut order);
            let mut ledger = Ledger::default();
            for (count, batch) in (1..).zip(&order) {
                assert!(!ledger.has_batch(*batch));
                ledger.add_batch(*batch);
                assert!(ledger.has_batch(*batch) && ledger.is_sound(4, 40), "{ledger:?}");
                assert_eq!(ledger.batches_in(), count);
                let mut whole = order[..count as usize].to_vec();
                whole.sort_unstable();
                let whole = whole.iter().zip(1..).take_while(|(batch, n)| **batch == *n).count();
                assert_eq!(ledger.batches_whole() as usize, whole);
            }
            assert_eq!(ledger.batches, BTreeMap::from([(1, 40)]));
        }
    }

    #[test]
    fn nobody_is_more_than_the_delay_ahead_of_the_slowest() {
        let mut ledger = Ledger::default();
        let bounded = Mode::Bounded { delay: 2 };
        assert!(ledger.may_begin(bounded, 0, 100), "there is nobody else");
        ledger.live.insert(1, Live { fence: 1, start: 1 });
        assert!(ledger.may_begin(bounded, 0, 3) && !ledger.may_begin(bounded, 0, 4));
        ledger.clocks.insert(1, 1);
        assert!(ledger.may_begin(bounded, 0, 4) && !ledger.may_begin(bounded, 0, 5));
        assert!(ledger.may_begin(bounded, 1, 50), "nobody waits for itself");
        // One that came later is waited for from its own beginning on.
        ledger.live.insert(1, Live { fence: 2, start: 9 });
        assert!(ledger.may_begin(bounded, 0, 11) && !ledger.may_begin(bounded, 0, 12));
        assert!(ledger.may_begin(Mode::Bulk, 0, 1) && !ledger.may_begin(Mode::Bulk, 0, 2));
    }

    #[test]
    fn what_cannot_have_come_about_is_not_taken() {
        let with = |change: &dyn Fn(&mut Ledger)| {
            let mut ledger = Ledger::default();
            change(&mut ledger);
            ledger.is_sound(2, 10)
        };
        assert!(with(&|_| {}));
        assert!(!with(&|ledger| ledger.floor = 11));
        assert!(!with(&|ledger| {
            ledger.clocks.insert(2, 1);
        }));
        assert!(!with(&|ledger| {
            ledger.batches.insert(0, 1);
        }));
        assert!(!with(&|ledger| ledger.batches = BTreeMap::from([(1, 2), (3, 4)])));
        assert!(!with(&|ledger| ledger.batches = BTreeMap::from([(4, 2)])));
    }
}
