//! The updates of one shard that have come, and are in no model yet.
//!
//! Of each task the latest stays, and what is in a sum beside it until that is committed. An update goes when a commit has counted
//! it, when its attempt was superseded, or when it has become too old. So there are never more than [`MAX_PARTICIPANTS`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::check::Now;
use crate::job::training::{MAX_PARTICIPANTS, Real};
use crate::state::jobs::note;
use crate::training::wire::{Answer, Arrival, Part, Taken, UpdateHead};

/// What the coordinator wants summed, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) parts: Vec<Part>,
    pub(super) divisor: Real,
    pub(super) noise: Option<Real>,
}

/// An update, whole and measured.
#[derive(Debug, Clone)]
pub(super) struct Update {
    /// Its times have the upload in them.
    pub(super) head: UpdateHead,
    pub(super) bytes: Bytes,
    /// See [`Arrival::norm2`].
    pub(super) norm2: Option<Real>,
}

#[derive(Debug, Default)]
pub(super) struct Spool {
    /// The latest round that was heard of.
    round: u32,
    /// By task, fence and serial.
    updates: BTreeMap<(u32, u64, u64), Update>,
    /// What was made in this round, and of what: asked again, the same comes.
    made: Option<(Wish, Answer)>,
}

fn key(head: &UpdateHead) -> (u32, u64, u64) {
    (head.task, head.fence, head.serial)
}

impl Spool {
    /// Takes in what the state says. `false` if this is about an earlier round.
    pub(super) fn catch_up(&mut self, now: &Now) -> bool {
        if now.round < self.round {
            return false;
        }
        if now.round > self.round {
            self.round = now.round;
            self.made = None;
        }
        self.updates.retain(|_, update| now.still_wants(&update.head));
        true
    }

    /// Whether there is a use and a place for this update.
    pub(super) fn offer(&self, head: &UpdateHead) -> Result<(), Taken> {
        let key = key(head);
        if self.updates.contains_key(&key) {
            return Err(Taken::Again);
        }
        let mut own = self.updates.iter().filter(|(other, _)| other.0 == head.task);
        if own.clone().any(|(other, _)| *other > key) {
            return Err(Taken::Refused(note("a later update of this task is here")));
        }
        if own.clone().any(|(_, other)| other.head.base > head.base) {
            return Err(Taken::Refused(note("one that begins from a later model is here")));
        }
        let replaces_one = own.any(|(other, _)| !self.is_summed(other));
        if !replaces_one && self.updates.len() >= MAX_PARTICIPANTS {
            return Err(Taken::Full);
        }
        Ok(())
    }

    /// Keeps an update, in the place of an earlier one of the same task that is in no sum.
    pub(super) fn keep(&mut self, update: Update) -> Result<(), Taken> {
        self.offer(&update.head)?;
        let own = self.updates.keys().filter(|key| key.0 == update.head.task);
        let replaced: Vec<_> = own.copied().filter(|key| !self.is_summed(key)).collect();
        for key in replaced {
            self.updates.remove(&key);
        }
        self.updates.insert(key(&update.head), update);
        Ok(())
    }

    fn is_summed(&self, key: &(u32, u64, u64)) -> bool {
        let parts = self.made.iter().flat_map(|(wish, _)| &wish.parts);
        parts.map(|part| (part.task, part.fence, part.serial)).any(|part| part == *key)
    }

    /// What has come.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        let arrival = |Update { head, norm2, .. }: &Update| Arrival {
            task: head.task,
            fence: head.fence,
            serial: head.serial,
            base: head.base,
            update: head.update,
            values: head.values,
            examples: head.examples,
            metrics: head.metrics.clone(),
            evaluated: head.evaluated.clone(),
            times: head.times,
            norm2: *norm2,
        };
        self.updates.values().map(arrival).collect()
    }

    /// What was made by the same wish.
    pub(super) fn made(&self, wish: &Wish) -> Option<Answer> {
        let (made, answer) = self.made.as_ref()?;
        (made == wish).then(|| answer.clone())
    }

    /// Remembers what was made.
    pub(super) fn on_made(&mut self, round: u32, wish: Wish, answer: Answer) {
        if round == self.round {
            self.made = Some((wish, answer));
        }
    }

    /// The updates that are to be summed, each with its weight; or what is wrong with the wish.
    pub(super) fn parts(&self, wish: &Wish) -> Result<Vec<(Update, f32)>, String> {
        if wish.parts.is_empty() || wish.parts.len() > MAX_PARTICIPANTS {
            return Err("a sum is of one update at least, and of one of each participant".into());
        }
        let mut tasks = BTreeSet::new();
        let part = |part: &Part| {
            let Part { task, fence, serial, weight } = *part;
            if !tasks.insert((task, fence, serial)) {
                return Err(format!("update {serial} of task {task} is named twice"));
            }
            let Some(update) = self.updates.get(&(task, fence, serial)) else {
                return Err(format!("update {serial} of task {task} is not here"));
            };
            if update.norm2.is_none() {
                return Err(format!("update {serial} of task {task} holds what is no number"));
            }
            let weight = weight.get() as f32;
            if !weight.is_finite() {
                return Err(format!("update {serial} of task {task} weighs too much"));
            }
            Ok((update.clone(), weight))
        };
        wish.parts.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::course::{Course, Record};
    use crate::training::aggregate::check::{Asker, may_ask};
    use crate::training::aggregate::testing::{course, head, job, node};

    fn update(task: u32, serial: u64) -> Update {
        Update { head: head(task, serial), bytes: Bytes::new(), norm2: Real::new(1.0) }
    }

    fn now(course: &Course) -> Now {
        let round = course.open.as_ref().unwrap().round;
        let asker = Asker { node: node(4), epoch: 50, round, shard: 1 };
        may_ask(&job(), course, asker, node(3)).unwrap().unwrap()
    }

    fn wish(parts: &[(u32, u64)]) -> Wish {
        let real = |number| Real::new(number).unwrap();
        let part = |(task, serial): &(u32, u64)| {
            let UpdateHead { task, fence, serial, .. } = head(*task, *serial);
            Part { task, fence, serial, weight: real(2.0) }
        };
        let parts = parts.iter().map(part).collect();
        Wish { parts, divisor: real(4.0), noise: None }
    }

    fn held(spool: &Spool) -> Vec<(u32, u64)> {
        spool.arrivals().iter().map(|one| (one.task, one.serial)).collect()
    }

    #[test]
    fn of_each_task_the_latest_stays() {
        let mut spool = Spool::default();
        assert!(spool.catch_up(&now(&course(5))));
        for one in [update(0, 1), update(1, 1), update(0, 2)] {
            spool.keep(one).unwrap();
        }
        assert_eq!(held(&spool), [(0, 2), (1, 1)]);
        assert_eq!(spool.keep(update(0, 2)).unwrap_err(), Taken::Again);
        assert!(matches!(spool.keep(update(0, 1)), Err(Taken::Refused(_))), "an earlier one");
        let mut older = update(0, 3);
        older.head.base = Some(4);
        assert!(matches!(spool.keep(older), Err(Taken::Refused(_))), "from an older model");
        assert_eq!(held(&spool), [(0, 2), (1, 1)]);
    }

    #[test]
    fn what_is_in_a_sum_stays_beside_what_comes_later() {
        let mut spool = Spool::default();
        spool.catch_up(&now(&course(5)));
        spool.keep(update(0, 1)).unwrap();
        spool.on_made(6, wish(&[(0, 1)]), Answer::Kept);
        spool.keep(update(0, 2)).unwrap();
        spool.keep(update(0, 3)).unwrap();
        assert_eq!(held(&spool), [(0, 1), (0, 3)]);
        // The commit counts the first; the other began from the model before, and is late.
        let mut next = course(6);
        let last = Some((head(0, 1).fence, 1));
        next.records.insert(0, Record { last, ..Record::default() });
        assert!(spool.catch_up(&now(&next)));
        assert_eq!(held(&spool), [(0, 3)]);
    }

    #[test]
    fn the_same_wish_has_the_same_answer_until_the_round_is_over() {
        let mut spool = Spool::default();
        spool.catch_up(&now(&course(5)));
        spool.on_made(6, wish(&[(0, 1)]), Answer::Kept);
        assert_eq!(spool.made(&wish(&[(0, 1)])), Some(Answer::Kept));
        assert_eq!(spool.made(&wish(&[(1, 1)])), None);
        spool.on_made(5, wish(&[(1, 1)]), Answer::Kept);
        assert_eq!(spool.made(&wish(&[(1, 1)])), None, "of a round that is over");
        spool.catch_up(&now(&course(6)));
        assert_eq!(spool.made(&wish(&[(0, 1)])), None);
        assert!(!spool.catch_up(&now(&course(5))), "the state does not go back");
    }

    #[test]
    fn updates_outlive_a_round_that_is_opened_again_but_not_another_cut() {
        let mut spool = Spool::default();
        spool.catch_up(&now(&course(5)));
        spool.keep(update(0, 1)).unwrap();
        let mut again = course(5);
        again.open.as_mut().unwrap().selected = [1].into();
        spool.catch_up(&now(&again));
        assert_eq!(held(&spool), [(0, 1)]);
        again.open.as_mut().unwrap().aggregators.push(node(3));
        spool.catch_up(&now(&again));
        assert!(held(&spool).is_empty());
    }

    #[test]
    fn a_sum_is_of_what_is_here_and_of_numbers() {
        let mut spool = Spool::default();
        spool.catch_up(&now(&course(5)));
        spool.keep(update(0, 1)).unwrap();
        spool.keep(Update { norm2: None, ..update(1, 1) }).unwrap();
        assert_eq!(spool.parts(&wish(&[(0, 1)])).unwrap().len(), 1);
        for bad in [&[][..], &[(0, 2)], &[(0, 1), (0, 1)], &[(1, 1)]] {
            assert!(spool.parts(&wish(bad)).is_err(), "{bad:?}");
        }
    }
}
