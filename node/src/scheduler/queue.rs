//! The line: who is considered before whom.
//!
//! ```text
//! trial before best-effort
//!   higher priority before lower
//!     first those that were interrupted, by their submission
//!     then the parties take turns: whoever has used less for its weight
//!       by their submission
//! ```
//!
//! Whoever was interrupted (preempted, or its node was lost) had its turn already and lost its place by no fault of its
//! own. If it had to go by its party's use like the others, then a gang that ran for a week and lost a node would
//! find everybody before it who has run nothing yet (volcano#5805).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use mesh_consensus::id::{JobId, PartyId};
use mesh_consensus::time::Time;

use super::board::Slab;
use super::shares::Account;
use super::view::Waiting;
use crate::job::Class;

/// Class and priority.
pub(super) type Band = (Class, Reverse<u8>);

/// A place among those of one party, or among the interrupted ones.
type Spot = (u64, JobId);

/// A job in the line.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) waiting: Waiting,
    /// Of its groups, in order.
    pub(super) shapes: Vec<usize>,
}

impl Job {
    fn band(&self) -> Band {
        (self.waiting.spec.class, Reverse(self.waiting.spec.priority))
    }

    fn spot(&self) -> Spot {
        (self.waiting.index, self.waiting.job)
    }

    /// The shape of a task.
    pub(super) fn shape(&self, task: u32) -> Option<usize> {
        if self.waiting.spec.place.each {
            return self.shapes.first().copied();
        }
        let mut left = task;
        for (group, shape) in self.waiting.spec.groups.iter().zip(&self.shapes) {
            if left < group.count {
                return Some(*shape);
            }
            left -= group.count;
        }
        None
    }

    /// The group of a task.
    pub(super) fn group(&self, task: u32) -> Option<&crate::job::Group> {
        let spec = &self.waiting.spec;
        if spec.place.each {
            spec.groups.first()
        } else {
            spec.group_of(task).map(|(group, _)| group)
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    bands: BTreeMap<Band, Lanes>,
    jobs: Slab<Option<Job>>,
    by_job: BTreeMap<JobId, usize>,
}

#[derive(Debug, Default)]
struct Lanes {
    interrupted: BTreeMap<Spot, usize>,
    parties: BTreeMap<PartyId, BTreeMap<Spot, usize>>,
}

impl Queue {
    pub(super) fn insert(&mut self, waiting: Waiting, shapes: Vec<usize>) {
        let job = Job { waiting, shapes };
        let (id, band, spot) = (job.waiting.job, job.band(), job.spot());
        let (party, interrupted) = (job.waiting.party, job.waiting.interrupted);
        let slot = self.jobs.insert(Some(job));
        self.by_job.insert(id, slot);
        let lanes = self.bands.entry(band).or_default();
        if interrupted {
            lanes.interrupted.insert(spot, slot);
        } else {
            lanes.parties.entry(party).or_default().insert(spot, slot);
        }
    }

    pub(super) fn find(&self, job: JobId) -> Option<usize> {
        self.by_job.get(&job).copied()
    }

    pub(super) fn remove(&mut self, job: JobId) -> Option<Job> {
        let slot = self.find(job)?;
        let job = self.lift(slot)?;
        self.strike(slot, &job);
        Some(job)
    }

    /// Takes a job out, for as long as it is looked at: its place in the line stays.
    pub(super) fn lift(&mut self, slot: usize) -> Option<Job> {
        self.jobs[slot].take()
    }

    pub(super) fn put_back(&mut self, slot: usize, job: Job) {
        self.jobs[slot] = Some(job);
    }

    /// Takes away the place in the line of a job that was lifted.
    pub(super) fn strike(&mut self, slot: usize, job: &Job) {
        self.jobs.remove(slot);
        self.by_job.remove(&job.waiting.job);
        let (band, spot) = (job.band(), job.spot());
        let Some(lanes) = self.bands.get_mut(&band) else { return };
        if job.waiting.interrupted {
            lanes.interrupted.remove(&spot);
        } else if let Some(lane) = lanes.parties.get_mut(&job.waiting.party) {
            lane.remove(&spot);
            if lane.is_empty() {
                lanes.parties.remove(&job.waiting.party);
            }
        }
        if lanes.interrupted.is_empty() && lanes.parties.is_empty() {
            self.bands.remove(&band);
        }
    }
}

impl std::ops::Index<usize> for Queue {
    type Output = Job;

    fn index(&self, slot: usize) -> &Job {
        self.jobs[slot].as_ref().expect("who is looked at is put back")
    }
}

/// How far one has gone through the line. What is placed on the way counts for whose turn it is next.
#[derive(Debug, Default)]
pub(super) struct Walk {
    band: Option<Band>,
    /// Those that were interrupted come first; `None` once they have all been seen.
    interrupted: Option<Option<Spot>>,
    lanes: Vec<(PartyId, Option<Spot>)>,
}

impl Walk {
    /// The next job.
    pub(super) fn next(
        &mut self,
        queue: &Queue,
        accounts: &BTreeMap<PartyId, Account>,
        now: Time,
    ) -> Option<usize> {
        loop {
            if let Some(slot) = self.next_in_band(queue, accounts, now) {
                return Some(slot);
            }
            let bands = &queue.bands;
            let next = match self.band {
                None => bands.iter().next(),
                Some(band) => bands.range((Excluded(band), Unbounded)).next(),
            };
            let (band, lanes) = next?;
            self.band = Some(*band);
            self.interrupted = Some(None);
            self.lanes.clear();
            self.lanes.extend(lanes.parties.keys().map(|party| (*party, None)));
        }
    }

    fn next_in_band(
        &mut self,
        queue: &Queue,
        accounts: &BTreeMap<PartyId, Account>,
        now: Time,
    ) -> Option<usize> {
        let lanes = queue.bands.get(&self.band?)?;
        if let Some(seen) = &mut self.interrupted {
            if let Some((spot, slot)) = after(&lanes.interrupted, *seen) {
                *seen = Some(spot);
                return Some(slot);
            }
            self.interrupted = None;
        }
        let heads = self.lanes.iter().enumerate().filter_map(|(at, (party, seen))| {
            let (spot, slot) = after(lanes.parties.get(party)?, *seen)?;
            Some((at, *party, spot, slot))
        });
        // Of two that have used the same, whoever came first.
        let (at, _, spot, slot) = heads.min_by(|(_, a, first, _), (_, b, second, _)| {
            let turn = match (accounts.get(a), accounts.get(b)) {
                (Some(a), Some(b)) => a.compare(b, now),
                _ => std::cmp::Ordering::Equal,
            };
            turn.then(first.cmp(second))
        })?;
        self.lanes[at].1 = Some(spot);
        Some(slot)
    }
}

fn after(lane: &BTreeMap<Spot, usize>, seen: Option<Spot>) -> Option<(Spot, usize)> {
    let next = match seen {
        None => lane.iter().next(),
        Some(spot) => lane.range((Excluded(spot), Unbounded)).next(),
    };
    next.map(|(spot, slot)| (*spot, *slot))
}
