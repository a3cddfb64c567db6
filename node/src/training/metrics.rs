//! What an attempt tells of itself in numbers: the last values, how they went, and how far it is.
//!
//! ```text
//! DIR/work/KEY/metrics.jsonl   a line for each time that it told something: {"step":100,"at_ms":…,"metrics":{"loss":0.5}}
//! ```
//!
//! In memory there are at most [`MAX_POINTS`] of them: when there are more, every second one goes, and from then on only every
//! second one is kept. A file that has grown too long is written anew with what is in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::job::training::Real;
use crate::state::course::{MAX_METRICS, MAX_POINTS};
use crate::state::name::Name;

/// In the attempt's directory.
const FILE: &str = "metrics.jsonl";
/// The longest file, in bytes. What is in memory takes less than half of it.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Different names of which the last value is known. Further ones are left out.
const MAX_NAMES: usize = 64;

/// What was told at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The worker's own count: a step, or a round.
    pub step: u64,
    /// When, by the node's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    pub metrics: BTreeMap<Name, Real>,
}

/// How far a worker is with a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Which round.
    pub round: u32,
    /// How much of it: 0 to 1.
    pub part: Real,
    /// When it said so, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The numbers of an attempt.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    series: Series,
    progress: Option<Progress>,
    /// The file, once there is something to write, and how long it is.
    file: Option<(File, u64)>,
}

/// Points, no more than can be shown.
#[derive(Debug, Default)]
struct Series {
    points: Vec<Sample>,
    /// Every so many-th point is kept: two to the power of this.
    sparse: u32,
    seen: u64,
    latest: BTreeMap<Name, Real>,
}

impl Metrics {
    /// Those of an attempt, with what is known of it from an earlier life of the node. Touches the disk.
    pub fn open(dir: &Path) -> Self {
        let path = dir.join(FILE);
        let mut series = Series::default();
        for sample in read(&path) {
            series.add(sample);
        }
        Self { path, inner: Mutex::new(Inner { series, ..Inner::default() }) }
    }

    /// One more. Writes to the disk; a disk that fails does not keep a worker from training.
    pub fn add(&self, sample: Sample) {
        let mut inner = self.inner();
        if let Err(error) = inner.write(&self.path, &sample) {
            tracing::debug!(%error, path = %self.path.display(), "metrics could not be written");
            inner.file = None;
        }
        inner.series.add(sample);
    }

    /// The worker is so far.
    pub fn set_progress(&self, progress: Progress) {
        self.inner().progress = Some(progress);
    }

    /// How far the worker is, if it said so.
    pub fn progress(&self) -> Option<Progress> {
        self.inner().progress
    }

    /// The last value of each.
    pub fn latest(&self) -> BTreeMap<Name, Real> {
        self.inner().series.latest.clone()
    }

    /// How they went.
    pub fn series(&self) -> Vec<Sample> {
        self.inner().series.points.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn write(&mut self, path: &Path, sample: &Sample) -> io::Result<()> {
        let line = line(sample)?;
        let (mut file, mut bytes) = match self.file.take() {
            Some(open) => open,
            None => {
                let mut options = File::options();
                let file = options.append(true).create(true).mode(0o600).open(path)?;
                let bytes = file.metadata()?.len();
                (file, bytes)
            }
        };
        if bytes.saturating_add(line.len() as u64) > MAX_FILE_BYTES {
            let kept: io::Result<Vec<Vec<u8>>> =
                self.series.points.iter().map(self::line).collect();
            let kept = kept?.concat();
            file.set_len(0)?;
            file.write_all(&kept)?;
            bytes = kept.len() as u64;
        }
        file.write_all(&line)?;
        self.file = Some((file, bytes + line.len() as u64));
        Ok(())
    }
}

impl Series {
    fn add(&mut self, sample: Sample) {
        for (name, value) in &sample.metrics {
            if self.latest.len() < MAX_NAMES || self.latest.contains_key(name) {
                self.latest.insert(name.clone(), *value);
            }
        }
        let is_kept = self.seen.trailing_zeros() >= self.sparse;
        self.seen += 1;
        if is_kept {
            self.points.push(sample);
        }
        if self.points.len() > MAX_POINTS {
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.sparse += 1;
        }
    }
}

fn line(sample: &Sample) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(sample)?;
    line.push(b'\n');
    Ok(line)
}

/// What an attempt told, as far as it was kept: also of one that is over.
pub fn read_all(dir: &Path) -> Vec<Sample> {
    read(&dir.join(FILE))
}

fn read(path: &Path) -> Vec<Sample> {
    // Nobody writes a longer one.
    let is_sound = fs::metadata(path).is_ok_and(|about| about.len() <= 2 * MAX_FILE_BYTES);
    let text = if is_sound { fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    // A line that was cut by a crash is left out.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Numbers as they come from outside; the error says what is wrong with them.
pub fn check(numbers: BTreeMap<String, f64>) -> Result<BTreeMap<Name, Real>, String> {
    if numbers.len() > MAX_METRICS {
        return Err(format!("{} metrics, and {MAX_METRICS} are taken", numbers.len()));
    }
    let mut checked = BTreeMap::new();
    for (name, number) in numbers {
        let name = name.parse::<Name>().map_err(|error| error.to_string())?;
        let value =
            Real::new(number).ok_or_else(|| format!("the metric {name} is no finite number"))?;
        checked.insert(name, value);
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(step: u64) -> Sample {
        let value = Real::new(step as f64 / 2.0).unwrap();
        Sample { step, at_ms: step, metrics: BTreeMap::from([("loss".parse().unwrap(), value)]) }
    }

    #[test]
    fn a_long_series_is_thinned_evenly_and_the_last_value_is_known() {
        let mut series = Series::default();
        for step in 0..10_000 {
            series.add(sample(step));
            assert!(series.points.len() <= MAX_POINTS);
        }
        let steps: Vec<u64> = series.points.iter().map(|sample| sample.step).collect();
        let gap = steps[1] - steps[0];
        assert!(steps.windows(2).all(|pair| pair[1] - pair[0] == gap), "{steps:?}");
        assert!(steps.len() > MAX_POINTS / 4 && steps[0] == 0);
        assert!(10_000 - steps[steps.len() - 1] <= gap);
        let loss: Name = "loss".parse().unwrap();
        assert_eq!(series.latest[&loss], Real::new(9999.0 / 2.0).unwrap());
    }

    #[test]
    fn what_was_told_is_known_after_a_restart_and_the_file_stays_small() {
        let temp = tempfile::tempdir().unwrap();
        let metrics = Metrics::open(temp.path());
        assert_eq!(metrics.latest(), BTreeMap::new());
        let long: BTreeMap<Name, Real> = (0..MAX_METRICS)
            .map(|n| (format!("{n}{}", "x".repeat(60)).parse().unwrap(), Real::default()))
            .collect();
        for step in 0..2000 {
            metrics.add(Sample { step, at_ms: 0, metrics: long.clone() });
        }
        metrics.add(sample(2000));
        let bytes = fs::metadata(temp.path().join(FILE)).unwrap().len();
        assert!(bytes <= MAX_FILE_BYTES, "{bytes}");
        // As after a crash in the middle of a line.
        let mut file = File::options().append(true).open(temp.path().join(FILE)).unwrap();
        file.write_all(b"{\"step\":1").unwrap();
        let again = Metrics::open(temp.path());
        assert_eq!(again.latest(), metrics.latest());
        assert_eq!(again.latest().len(), MAX_METRICS + 1);
        assert_eq!(read_all(temp.path()).last(), Some(&sample(2000)));
    }

    #[test]
    fn names_and_numbers_are_checked() {
        let one = |name: &str, number| check(BTreeMap::from([(name.to_owned(), number)]));
        assert!(one("train-loss", 0.5).is_ok());
        for bad in ["", "Loss", "-x", "a b", &"x".repeat(64)] {
            assert!(one(bad, 0.5).is_err(), "{bad}");
        }
        for bad in [f64::NAN, f64::INFINITY] {
            assert!(one("loss", bad).unwrap_err().contains("loss"));
        }
        let many = |count: usize| check((0..count).map(|n| (format!("m{n}"), 0.0)).collect());
        assert!(many(MAX_METRICS).is_ok() && many(MAX_METRICS + 1).is_err());
    }
}
