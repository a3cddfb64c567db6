//! What stands in `settings.toml`.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) paper: Paper,
    pub(crate) open: Open,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paper {
    pub(crate) nodes: u8,
    pub(crate) node_cpus: u64,
    pub(crate) node_memory_gb: u64,
    pub(crate) node_gpus: u8,
    pub(crate) jobs: usize,
    pub(crate) trial_share: f64,
    pub(crate) trial_mean: f64,
    pub(crate) trial_max: f64,
    pub(crate) best_effort_mean: f64,
    pub(crate) best_effort_max: f64,
    pub(crate) grace_mean: f64,
    pub(crate) grace_max: f64,
    pub(crate) load: f64,
    pub(crate) max_preemptions: u32,
    pub(crate) grace_weight: u32,
    pub(crate) te_p95: f64,
    pub(crate) be_median: f64,
    pub(crate) be_p95: f64,
    pub(crate) preempted_vs_rivals: f64,
    pub(crate) rescheduling_p95_vs_lrtp: f64,
    pub(crate) rescheduling_p95_vs_rand: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Open {
    pub(crate) seeds: Vec<u64>,
    pub(crate) sigma_over_mean: f64,
    pub(crate) run_min: f64,
    pub(crate) grace_min: f64,
    /// By the number of GPUs, as text: the keys of a table are.
    pub(crate) trial_gpus: BTreeMap<String, f64>,
    pub(crate) best_effort_gpus: BTreeMap<String, f64>,
    pub(crate) cpus_per_gpu: [u64; 2],
    pub(crate) memory_gb_per_gpu: [u64; 2],
    pub(crate) steady_rate: f64,
}

impl Settings {
    pub(crate) fn read(file: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(toml::from_str(&std::fs::read_to_string(file)?)?)
    }
}
