//! What stands in `settings.toml`.

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
    pub(crate) cpus: Vec<f64>,
    pub(crate) parties: Vec<usize>,
    pub(crate) digits: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Open {
    pub(crate) seeds: Vec<u64>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) speed: Vec<f64>,
    pub(crate) image_ms: f64,
    pub(crate) network_ms: u32,
    pub(crate) commit_ms: u64,
    pub(crate) jitter: f64,
    pub(crate) hidden: usize,
    pub(crate) lr: f32,
    pub(crate) momentum: f32,
    pub(crate) batch: usize,
    pub(crate) target: f64,
    pub(crate) in_a_row: usize,
    pub(crate) look_ms: u64,
    pub(crate) most_ms: u64,
    pub(crate) fast_cpus: f64,
}

impl Settings {
    pub(crate) fn read(file: &Path) -> Result<Self, Box<dyn Error>> {
        Ok(toml::from_str(&std::fs::read_to_string(file)?)?)
    }
}
