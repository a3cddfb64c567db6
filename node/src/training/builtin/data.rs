//! Examples out of a directory of files that nobody vouches for.
//!
//! | files | are |
//! |---|---|
//! | `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` | MNIST and its like; also with `.gz` |
//! | `x.npy`, `y.npy` | arrays of numpy: `f4`, `f8`, `u1`, `i8` |
//! | `train.csv`, or the only `.csv` | a line an example; its label is in the column `label`, or in the last |
//!
//! Bytes become numbers from 0 to 1; other numbers stay as they are. What is held back for measuring is `t10k-…`, `x-test.npy`
//! and `y-test.npy`, or `test.csv`; where there is none, every tenth example.
//!
//! A file `slowdown` beside them holds a number from 1 to 1000: whoever trains on this data takes so many times as long. So one
//! party of several can be slow, to try out what becomes of it.
//!
//! A length in a file is compared with the bytes that are there before anything is allocated for it.

mod csv;
mod idx;
mod inflate;
mod npy;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use inflate::gunzip;

use super::shape::{Input, MAX_CLASSES};

/// The largest file that is read, also after it was unpacked.
pub const MAX_FILE_BYTES: u64 = 1 << 30;
/// The most values of all examples of a file.
pub const MAX_VALUES: usize = 1 << 28;
/// The most names in a directory that are looked at.
const MAX_NAMES: usize = 10_000;
/// How slow whoever trains on the data is to be: the file's name, and the most bytes of it.
const SLOWDOWN: (&str, u64) = ("slowdown", 64);
/// MNIST and its like have ten classes, whatever of them one party has.
const IDX_CLASSES: usize = 10;

/// Examples with their labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Examples {
    /// All values, example after example: `labels.len()` times [`Examples::width`].
    pub inputs: Vec<f32>,
    /// What one example is.
    pub shape: Input,
    /// Which class each belongs to: below `classes`.
    pub labels: Vec<u8>,
    /// How many classes there are.
    pub classes: usize,
}

impl Examples {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// How many values each has.
    pub fn width(&self) -> usize {
        self.shape.values().unwrap_or(0)
    }

    /// The first so many of them.
    pub fn first(mut self, most: usize) -> Self {
        let kept = most.min(self.len());
        self.inputs.truncate(kept * self.width());
        self.labels.truncate(kept);
        self
    }

    /// Those for which `holds` says so, by their number.
    pub fn only(&self, holds: impl Fn(usize) -> bool) -> Self {
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        let width = self.width();
        for (n, label) in self.labels.iter().enumerate().filter(|(n, _)| holds(*n)) {
            inputs.extend_from_slice(&self.inputs[n * width..(n + 1) * width]);
            labels.push(*label);
        }
        Self { inputs, labels, shape: self.shape, classes: self.classes }
    }
}

/// What a directory holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Sets {
    /// To train on. Never empty.
    pub train: Examples,
    /// To measure with; may be empty.
    pub held: Examples,
}

/// How a directory is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Where nothing else is held back, every example whose number is divided by this one is; 0 for none.
    pub holdout: usize,
    /// What numbers that are no bytes are divided by.
    pub scale: f32,
}

impl Default for Reading {
    fn default() -> Self {
        Self { holdout: 10, scale: 1.0 }
    }
}

/// Why there are no examples.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The directory has no files of a kind that is known.
    #[error("{} holds no data that can be read", dir.display())]
    Nothing {
        /// Which directory.
        dir: PathBuf,
    },
    /// It has several that could be meant.
    #[error("{} holds several CSV files, and none is called train.csv", dir.display())]
    Several {
        /// Which directory.
        dir: PathBuf,
    },
    /// A file or the directory cannot be read.
    #[error("{} could not be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what its name says.
    #[error("{} is not what its name says", path.display())]
    Flaw {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Flaw,
    },
    /// What is held back differs from what is trained on.
    #[error("an example to train on is {train} values, one that is held back {held}")]
    Differ {
        /// The one.
        train: Input,
        /// The other.
        held: Input,
    },
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// It is too large.
    #[error("it has more than {MAX_FILE_BYTES} bytes or {MAX_VALUES} values")]
    Large,
    /// It does not begin as such a file does.
    #[error("its first bytes are not those of {0}")]
    Begin(&'static str),
    /// It has fewer or more bytes than it says.
    #[error("it says that it has {said} bytes, and has {found}")]
    Length {
        /// What its first bytes say.
        said: u64,
        /// What is there.
        found: u64,
    },
    /// It cannot be unpacked.
    #[error("it cannot be unpacked: {0}")]
    Packed(&'static str),
    /// Its header says something that is not understood.
    #[error("{0}")]
    Header(&'static str),
    /// A line does not fit.
    #[error("line {line}: {why}")]
    Line {
        /// Which, from 1 on.
        line: usize,
        /// Why.
        why: &'static str,
    },
    /// Not every example has a label, or there are labels without one.
    #[error("it has {labels} labels for {examples} examples")]
    Labels {
        /// How many labels.
        labels: usize,
        /// How many examples.
        examples: usize,
    },
    /// A label is no class.
    #[error("a label is no whole number from 0 to 255")]
    Label,
    /// A value is no number, or has no end.
    #[error("a value is not a finite number")]
    Value,
    /// There is nothing in it.
    #[error("it has no examples")]
    Empty,
}

/// Reads what a directory holds.
pub fn read(dir: &Path, reading: Reading) -> Result<Sets, DataError> {
    let (mut train, held) = find(dir, reading.scale)?;
    let mut held = match held {
        Some(held) if held.shape != train.shape => {
            return Err(DataError::Differ { train: train.shape, held: held.shape });
        }
        Some(held) => held,
        None => {
            let is_held = |n: usize| reading.holdout > 1 && n.is_multiple_of(reading.holdout);
            let held = train.only(is_held);
            // Those who ask for so much that nothing would be left get nothing held back.
            if !held.is_empty() && held.len() < train.len() {
                train = train.only(|n| !is_held(n));
                held
            } else {
                train.only(|_| false)
            }
        }
    };
    let classes = train.classes.max(held.classes);
    (train.classes, held.classes) = (classes, classes);
    Ok(Sets { train, held })
}

/// How many times as long training takes on this data as it could: 1, if nobody has said otherwise.
pub fn slowdown(dir: &Path) -> Result<f64, DataError> {
    let (name, most) = SLOWDOWN;
    let path = dir.join(name);
    let mut text = String::new();
    match File::open(&path).and_then(|file| file.take(most).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(1.0),
        Err(source) => return Err(DataError::Read { path, source }),
    }
    let factor: Option<f64> = text.trim().parse().ok();
    let factor = factor.filter(|factor| (1.0..=1000.0).contains(factor));
    let flaw = Flaw::Header("it holds no number from 1 to 1000");
    factor.ok_or(DataError::Flaw { path, source: flaw })
}

/// What is there to train on, and what was held back by whoever made it.
fn find(dir: &Path, scale: f32) -> Result<(Examples, Option<Examples>), DataError> {
    if let Some(train) = idx(dir, "train")? {
        return Ok((train, idx(dir, "t10k")?));
    }
    if let Some(train) = npy(dir, "x.npy", "y.npy", scale)? {
        return Ok((train, npy(dir, "x-test.npy", "y-test.npy", scale)?));
    }
    let Some(name) = csv_name(dir)? else {
        return Err(DataError::Nothing { dir: dir.to_owned() });
    };
    let read = |path: PathBuf| match bytes(&path)? {
        Some(bytes) => csv::parse(&bytes, scale).map(Some).map_err(at(path)),
        None => Ok(None),
    };
    match read(dir.join(&name))? {
        Some(train) if name == "test.csv" => Ok((train, None)),
        Some(train) => Ok((train, read(dir.join("test.csv"))?)),
        None => Err(DataError::Nothing { dir: dir.to_owned() }),
    }
}

fn idx(dir: &Path, which: &str) -> Result<Option<Examples>, DataError> {
    let images = unpacked(dir, &format!("{which}-images-idx3-ubyte"))?;
    let labels = unpacked(dir, &format!("{which}-labels-idx1-ubyte"))?;
    let (Some((path, images)), Some((labels_path, labels))) = (images, labels) else {
        return Ok(None);
    };
    let labels = idx::labels(&labels).map_err(at(labels_path))?;
    idx::images(&images, labels, IDX_CLASSES).map(Some).map_err(at(path))
}

fn npy(dir: &Path, x: &str, y: &str, scale: f32) -> Result<Option<Examples>, DataError> {
    let (x, y) = (dir.join(x), dir.join(y));
    let (Some(inputs), Some(labels)) = (bytes(&x)?, bytes(&y)?) else { return Ok(None) };
    let labels = npy::labels(&labels).map_err(at(y))?;
    npy::examples(&inputs, labels, scale).map(Some).map_err(at(x))
}

/// The CSV file that is meant.
fn csv_name(dir: &Path) -> Result<Option<String>, DataError> {
    let failed = |source| DataError::Read { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)?.take(MAX_NAMES) {
        let name = entry.map_err(failed)?.file_name();
        names.extend(name.into_string().ok().filter(|name| name.ends_with(".csv")));
    }
    if names.iter().any(|name| name == "train.csv") {
        return Ok(Some("train.csv".into()));
    }
    match names.len() {
        0 | 1 => Ok(names.pop()),
        _ => Err(DataError::Several { dir: dir.to_owned() }),
    }
}

/// A file, or the same with `.gz`, which is then unpacked.
fn unpacked(dir: &Path, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>, DataError> {
    let path = dir.join(name);
    if let Some(bytes) = bytes(&path)? {
        return Ok(Some((path, bytes)));
    }
    let path = dir.join(format!("{name}.gz"));
    let Some(packed) = bytes(&path)? else { return Ok(None) };
    let most = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
    match inflate::gunzip(&packed, most) {
        Ok(bytes) => Ok(Some((path, bytes))),
        Err(flaw) => Err(at(path)(flaw)),
    }
}

/// The bytes of a file; `None` if it is not there.
fn bytes(path: &Path) -> Result<Option<Vec<u8>>, DataError> {
    let failed = |source| DataError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::new();
    if length <= MAX_FILE_BYTES {
        // One more, so that a file which grows meanwhile is found out.
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if length > MAX_FILE_BYTES || bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(at(path.to_owned())(Flaw::Large));
    }
    Ok(Some(bytes))
}

fn at(path: PathBuf) -> impl FnOnce(Flaw) -> DataError {
    move |source| DataError::Flaw { path, source }
}

/// Puts examples together, after a last look at them.
fn examples(
    inputs: Vec<f32>,
    shape: Input,
    labels: Vec<u8>,
    least_classes: usize,
) -> Result<Examples, Flaw> {
    let Some(largest) = labels.iter().max() else { return Err(Flaw::Empty) };
    if shape.values().and_then(|width| width.checked_mul(labels.len())) != Some(inputs.len()) {
        return Err(Flaw::Header("its sizes do not go together"));
    }
    if inputs.is_empty() {
        return Err(Flaw::Empty);
    }
    if !inputs.iter().all(|value| value.is_finite()) {
        return Err(Flaw::Value);
    }
    let classes = (usize::from(*largest) + 1).max(least_classes).min(MAX_CLASSES);
    Ok(Examples { inputs, shape, labels, classes })
}

/// A label as a number of any sort.
fn label(number: f64) -> Result<u8, Flaw> {
    let is_whole = number.fract() == 0.0 && (0.0..=255.0).contains(&number);
    if is_whole { Ok(number as u8) } else { Err(Flaw::Label) }
}

#[cfg(test)]
mod tests;
