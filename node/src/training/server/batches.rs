//! Which batch goes to whom, where batches are handed out.
//!
//! Only the primary of the first shard hands out, and what it knows of that is not kept: if it is lost, batches that were out go out
//! again, and whichever push comes first counts. The batch of a worker that is gone goes to the next who asks. When none are left, one
//! that is out for long goes out a second time, so that the last of a slow worker holds up nobody.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::Ledger;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batches {
    /// Who has which, in the order of the batches: one, or two.
    out: BTreeMap<u32, BTreeSet<u32>>,
    /// None beyond this was handed out.
    last: u32,
}

/// What a worker is told that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// This one is its own.
    Batch(u32),
    /// None right now.
    Wait,
}

impl Batches {
    /// The next batch for a worker. `ahead` says how far beyond those that are all in one may be.
    pub fn give(&mut self, worker: u32, ledger: &Ledger, steps: u32, ahead: Option<u32>) -> Given {
        self.out.retain(|batch, _| !ledger.has_batch(*batch));
        let own = self.out.iter().find(|(_, who)| who.contains(&worker));
        if let Some((batch, _)) = own {
            // Its answer was lost.
            return Given::Batch(*batch);
        }
        let most = ahead.map_or(steps, |ahead| ledger.batches_whole().saturating_add(ahead));
        let is_free = |batch: &u32| !ledger.has_batch(*batch) && !self.out.contains_key(batch);
        let first = ledger.batches_whole().saturating_add(1);
        // Nothing before the last that was handed out is skipped for long: those are few.
        let next = (first..=self.last.max(first)).find(is_free);
        let next =
            next.or_else(|| self.last.checked_add(1)).filter(|batch| *batch <= steps.min(most));
        if let Some(batch) = next.filter(|batch| is_free(batch)) {
            self.last = self.last.max(batch);
            self.out.insert(batch, BTreeSet::from([worker]));
            return Given::Batch(batch);
        }
        let all_out = self.last >= steps;
        let second = self.out.iter_mut().find(|(_, who)| all_out && who.len() == 1);
        match second {
            Some((batch, who)) => {
                who.insert(worker);
                Given::Batch(*batch)
            }
            None => Given::Wait,
        }
    }

    /// A worker is gone.
    pub fn forget(&mut self, worker: u32) {
        self.out.retain(|_, who| {
            who.remove(&worker);
            !who.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_goes_out_and_that_of_one_who_is_gone_once_more() {
        let (mut batches, mut ledger) = (Batches::default(), Ledger::default());
        let give =
            |batches: &mut Batches, ledger: &Ledger, worker| batches.give(worker, ledger, 5, None);
        assert_eq!(give(&mut batches, &ledger, 0), Given::Batch(1));
        assert_eq!(give(&mut batches, &ledger, 0), Given::Batch(1), "asked again");
        assert_eq!(give(&mut batches, &ledger, 1), Given::Batch(2));
        ledger.add_batch(2);
        assert_eq!(give(&mut batches, &ledger, 1), Given::Batch(3));
        batches.forget(0);
        ledger.add_batch(3);
        assert_eq!(give(&mut batches, &ledger, 1), Given::Batch(1));
        assert_eq!(give(&mut batches, &ledger, 2), Given::Batch(4));
        assert_eq!(give(&mut batches, &ledger, 3), Given::Batch(5));
        // None are left: the oldest goes out a second time, and no third.
        assert_eq!(give(&mut batches, &ledger, 4), Given::Batch(1));
        assert_eq!(give(&mut batches, &ledger, 5), Given::Batch(4));
        assert_eq!(give(&mut batches, &ledger, 6), Given::Batch(5));
        assert_eq!(give(&mut batches, &ledger, 7), Given::Wait);
        for batch in [1, 4, 5] {
            ledger.add_batch(batch);
        }
        assert_eq!(give(&mut batches, &ledger, 7), Given::Wait);
    }

    #[test]
    fn no_batch_goes_out_that_is_too_far_ahead() {
        let (mut batches, mut ledger) = (Batches::default(), Ledger::default());
        assert_eq!(batches.give(0, &ledger, 100, Some(2)), Given::Batch(1));
        assert_eq!(batches.give(1, &ledger, 100, Some(2)), Given::Batch(2));
        ledger.add_batch(2);
        assert_eq!(batches.give(1, &ledger, 100, Some(2)), Given::Wait);
        ledger.add_batch(1);
        assert_eq!(batches.give(1, &ledger, 100, Some(2)), Given::Batch(3));
    }
}
