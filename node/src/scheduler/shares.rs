//! Fair shares: what parties have used, what they may use, and whose turn it is.
//!
//! Use is counted in **points**: a thousandth of a core for a second is one. Memory counts as the cores that it
//! could have fed, if that is more, and a GPU as sixteen cores ([`rate`]). What was used is forgotten by half in a
//! week, so that a party that was quiet for long comes first, and yet is not owed years.
//!
//! Of two parties, the one that has used less for its weight has the next turn. What a task has used so far counts
//! while it still runs, and every placement costs a minute in advance ([`entrance`]): otherwise a party that
//! submits a thousand jobs at once would have them all placed before its first second of use is counted.
//!
//! [`Usage`] stands in the replicated state, so it is computed with integers alone, and alike on every node.

use std::cmp::Ordering;
use std::time::Duration;

use mesh_consensus::id::PartyId;
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use crate::job::Allotment;
use crate::state::name::Name;

/// After so long half of what was used is forgotten.
pub const HALF_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Use is forgotten in steps of this length, so that it does not matter how often it is looked at.
const STEP_MS: u64 = 3_600_000;

/// So many steps are a half-life.
const STEPS: u64 = 168;

/// What is left after one step: 2^(-1/168), of 2^32.
const KEPT: u128 = 4_277_283_299;

/// A GPU counts as so many thousandths of a core: a GPU server has eight of them and 128 cores, or so.
const GPU_POINTS: u64 = 16_000;

/// So much memory counts as one thousandth of a core: 4 GiB for a core.
const POINT_BYTES: u64 = (4 << 30) / 1000;

/// So many seconds of use are counted when a task is placed.
const ENTRANCE_S: u64 = 60;

/// What a party has used, in points, as of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    points: u64,
    /// Up to when it was forgotten.
    at: Time,
}

impl Usage {
    /// What is left of it now.
    pub fn points(mut self, now: Time) -> u64 {
        self.forget(now);
        self.points
    }

    /// Adds what has just been used.
    pub fn add(&mut self, now: Time, points: u64) {
        self.forget(now);
        self.points = self.points.saturating_add(points);
    }

    fn forget(&mut self, now: Time) {
        let steps = now.0.saturating_sub(self.at.0) / STEP_MS;
        // Only whole steps: what is left of the time counts the next time.
        self.at = Time(self.at.0 + steps * STEP_MS);
        let halves = u32::try_from(steps / STEPS).unwrap_or(u32::MAX);
        self.points = self.points.checked_shr(halves).unwrap_or(0);
        for _ in 0..steps % STEPS {
            let kept = (u128::from(self.points) * KEPT) >> 32;
            self.points = u64::try_from(kept).unwrap_or(u64::MAX);
        }
    }
}

/// How many points an allotment uses in a second.
pub fn rate(allotment: &Allotment) -> u64 {
    let memory = allotment.memory_bytes / POINT_BYTES;
    let gpus = GPU_POINTS.saturating_mul(allotment.gpus.len() as u64);
    allotment.cpu_milli.max(memory).saturating_add(gpus)
}

/// How many points an allotment uses in so long.
pub fn points(allotment: &Allotment, time: Duration) -> u64 {
    let points = u128::from(rate(allotment)) * time.as_millis() / 1000;
    u64::try_from(points).unwrap_or(u64::MAX)
}

/// What is counted in advance when a task is placed.
pub fn entrance(allotment: &Allotment) -> u64 {
    rate(allotment).saturating_mul(ENTRANCE_S)
}

/// How a party stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Which one.
    pub party: PartyId,
    /// What it is called: jobs name a party so.
    pub name: Name,
    /// How much of the whole it is to have, beside the others. At least 1.
    pub weight: u32,
    /// The most that it may have at once, if there is such.
    pub quota: Option<Quota>,
    /// What it has used: placements so far with their [`entrance`], and ended attempts. The planner adds what
    /// running ones have used since they were placed.
    pub usage: Usage,
}

/// The most that a party may have at once. `None` for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// In thousandths of a core.
    pub cpu_milli: Option<u64>,
    /// GPUs and parts of GPUs.
    pub gpus: Option<u64>,
}

impl Quota {
    /// Whether so much is within it.
    pub fn covers(&self, cpu_milli: u64, gpus: u64) -> bool {
        self.cpu_milli.is_none_or(|most| cpu_milli <= most)
            && self.gpus.is_none_or(|most| gpus <= most)
    }
}

/// A party as the planner keeps it.
#[derive(Debug, Clone)]
pub(super) struct Account {
    weight: u32,
    pub(super) quota: Option<Quota>,
    usage: Usage,
    /// What its attempts have that were not asked to end.
    cpu_milli: u64,
    gpus: u64,
    /// The points per second of all its attempts together.
    rate: u128,
    /// The same, each times the milliseconds of its placement: what they have used follows from the two at any time.
    since: u128,
}

impl Account {
    pub(super) fn of(standing: Option<&Standing>) -> Self {
        Self {
            weight: standing.map_or(1, |party| party.weight.max(1)),
            quota: standing.and_then(|party| party.quota),
            usage: standing.map_or(Usage::default(), |party| party.usage),
            cpu_milli: 0,
            gpus: 0,
            rate: 0,
            since: 0,
        }
    }

    /// An attempt runs.
    pub(super) fn begin(&mut self, allotment: &Allotment, since: Time) {
        let rate = u128::from(rate(allotment));
        // Figures that no machine has may wrap here, and come back when the attempt ends.
        self.rate = self.rate.wrapping_add(rate);
        self.since = self.since.wrapping_add(rate * u128::from(since.0));
    }

    /// It does no more.
    pub(super) fn end(&mut self, allotment: &Allotment, since: Time) {
        let rate = u128::from(rate(allotment));
        self.rate = self.rate.wrapping_sub(rate);
        self.since = self.since.wrapping_sub(rate * u128::from(since.0));
    }

    /// So much counts against the quota.
    pub(super) fn hold(&mut self, cpu_milli: u64, gpus: u32) {
        self.cpu_milli = self.cpu_milli.saturating_add(cpu_milli);
        self.gpus = self.gpus.saturating_add(gpus.into());
    }

    /// So much does no more.
    pub(super) fn let_go(&mut self, cpu_milli: u64, gpus: u32) {
        self.cpu_milli = self.cpu_milli.saturating_sub(cpu_milli);
        self.gpus = self.gpus.saturating_sub(gpus.into());
    }

    /// Whether so much more is within the quota.
    pub(super) fn may_have(&self, cpu_milli: u64, gpus: u64) -> bool {
        let (cpu_milli, gpus) =
            (self.cpu_milli.saturating_add(cpu_milli), self.gpus.saturating_add(gpus));
        self.quota.is_none_or(|quota| quota.covers(cpu_milli, gpus))
    }

    /// Use up to now is settled, so that comparing is quick.
    pub(super) fn settle(&mut self, now: Time) {
        self.usage.add(now, 0);
    }

    /// What has been used counts from now on.
    pub(super) fn charge(&mut self, now: Time, points: u64) {
        self.usage.add(now, points);
    }

    /// What it has used for its weight, in a form that [`Account::compare`] takes.
    pub(super) fn used(&self, now: Time) -> u128 {
        let running = self.rate.saturating_mul(u128::from(now.0)).saturating_sub(self.since) / 1000;
        u128::from(self.usage.points(now)).saturating_add(running)
    }

    /// Who has used less for its weight.
    pub(super) fn compare(&self, other: &Self, now: Time) -> Ordering {
        let own = self.used(now).saturating_mul(u128::from(other.weight));
        own.cmp(&other.used(now).saturating_mul(u128::from(self.weight)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = STEP_MS;
    const WEEK: u64 = STEPS * HOUR;

    fn used(points: u64, at: u64) -> Usage {
        let mut usage = Usage::default();
        usage.add(Time(at), points);
        usage
    }

    #[test]
    fn half_is_forgotten_in_a_week() {
        let usage = used(1_000_000, 5 * HOUR);
        assert_eq!(usage.points(Time(5 * HOUR)), 1_000_000);
        assert_eq!(usage.points(Time(5 * HOUR + WEEK)), 500_000);
        assert_eq!(usage.points(Time(5 * HOUR + 3 * WEEK)), 125_000);
        let half = usage.points(Time(5 * HOUR + WEEK / 2));
        assert!((707_000..707_200).contains(&half), "{half}");
        assert_eq!(usage.points(Time(u64::MAX)), 0);
        assert!(used(u64::MAX, 0).points(Time(HOUR)) < u64::MAX, "and nothing overflows");
    }

    #[test]
    fn it_does_not_matter_how_often_use_is_looked_at() {
        let mut often = used(1 << 40, 0);
        for minute in 0..5000 {
            often.add(Time(minute * 60_000), 0);
        }
        let end = Time(5000 * 60_000);
        assert_eq!(often.points(end), used(1 << 40, 0).points(end));
    }

    #[test]
    fn time_that_goes_back_changes_nothing() {
        let mut usage = used(1000, 10 * HOUR);
        usage.add(Time(HOUR), 1);
        assert_eq!(usage.points(Time(10 * HOUR)), 1001);
    }

    #[test]
    fn a_gpu_weighs_as_much_as_sixteen_cores_and_memory_as_cores() {
        let bare = Allotment { cpu_milli: 2000, ..Allotment::default() };
        assert_eq!(rate(&bare), 2000);
        assert_eq!(rate(&Allotment { memory_bytes: 40 << 30, ..bare.clone() }), 10_000);
        assert_eq!(rate(&Allotment { gpus: vec![[1; 16], [2; 16]], ..bare.clone() }), 34_000);
        assert_eq!(points(&bare, Duration::from_millis(1500)), 3000);
        assert_eq!(entrance(&bare), 120_000);
    }

    #[test]
    fn what_runs_counts_up_to_now_and_by_weight() {
        let hog = Allotment { cpu_milli: 1000, ..Allotment::default() };
        let mut one = Account::of(None);
        one.begin(&hog, Time(1_000));
        assert_eq!(one.used(Time(11_000)), 10_000);
        let name: Name = "b".parse().unwrap();
        let party = PartyId([2; 32]);
        let standing = Standing { party, name, weight: 2, quota: None, usage: used(15_000, 0) };
        let two = Account::of(Some(&standing));
        assert_eq!(two.compare(&one, Time(11_000)), Ordering::Less, "7,500 for a weight of 1");
        one.end(&hog, Time(1_000));
        assert_eq!(two.compare(&one, Time(11_000)), Ordering::Greater);
    }

    #[test]
    fn a_quota_names_what_it_names() {
        let quota = Quota { cpu_milli: None, gpus: Some(4) };
        assert!(quota.covers(1 << 40, 4));
        assert!(!quota.covers(0, 5));
    }
}
