//! The jobs of a seed, and when they come.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::settings::Settings;

const MINUTE_MS: f64 = 60_000.0;

/// A job, before anything has happened to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) trial: bool,
    pub(crate) cpus: u64,
    pub(crate) memory_gb: u64,
    pub(crate) gpus: u64,
    pub(crate) run_ms: u64,
    pub(crate) grace_ms: u64,
}

pub(crate) fn jobs(settings: &Settings, seed: u64) -> Vec<Job> {
    let (paper, open) = (&settings.paper, &settings.open);
    let mut random = Rng::with_seed(seed);
    let normal = |random: &mut Rng, mean: f64, min: f64, max: f64| {
        (truncated(random, mean, mean * open.sigma_over_mean, min, max) * MINUTE_MS) as u64
    };
    let job = |_| {
        let random = &mut random;
        let trial = random.f64() < paper.trial_share;
        let gpus = pick(random, if trial { &open.trial_gpus } else { &open.best_effort_gpus });
        let between =
            |random: &mut Rng, [low, high]: [u64; 2]| random.u64(low..=high) * gpus.max(1);
        let (mean, max) = match trial {
            true => (paper.trial_mean, paper.trial_max),
            false => (paper.best_effort_mean, paper.best_effort_max),
        };
        Job {
            trial,
            cpus: between(random, open.cpus_per_gpu),
            memory_gb: between(random, open.memory_gb_per_gpu),
            gpus,
            run_ms: normal(random, mean, open.run_min, max).max(1),
            grace_ms: normal(random, paper.grace_mean, open.grace_min, paper.grace_max),
        }
    };
    (0..paper.jobs).map(job).collect()
}

/// A normal distribution that is cut at both ends: what falls outside is drawn again.
fn truncated(random: &mut Rng, mean: f64, sigma: f64, min: f64, max: f64) -> f64 {
    loop {
        // Box and Muller's way.
        let (a, b) = (1.0 - random.f64(), random.f64());
        let value = mean + sigma * (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        if (min..=max).contains(&value) {
            return value;
        }
    }
}

fn pick(random: &mut Rng, chances: &BTreeMap<String, f64>) -> u64 {
    let mut left = random.f64() * chances.values().sum::<f64>();
    for (count, chance) in chances {
        left -= chance;
        if left < 0.0 {
            return count.parse().expect("the settings name numbers of GPUs");
        }
    }
    0
}

/// Times in ms at which jobs come, `rate` of them in a ms.
pub(crate) fn poisson(rate: f64, count: usize, seed: u64) -> Vec<u64> {
    let mut random = Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15);
    let mut time = 0.0;
    let next = |_| {
        time -= (1.0 - random.f64()).ln() / rate;
        time as u64
    };
    (0..count).map(next).collect()
}
