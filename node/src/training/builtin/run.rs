//! Rounds from `join` to `done`; training alone; measuring a model.
//!
//! ```text
//!   join ─► next ─► read the model ─► evaluated ─► train, progress … ─► write the update ─► submit ─┐
//!             ▲                                                                                     │
//!             └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use super::client::{Client, ClientError, Next};
use super::data::{self, DataError, Examples, Sets};
use super::net::{FitError, LoadError, Net, Sgd};
use super::settings::{SettingError, Settings};
use super::shape::{MAX_VALUES, Shape, ShapeError};
use super::steps;
use crate::clock::steady;
use crate::training::tensors::{self, Kind, Layout, Tensor, TensorError};

/// So often the node hears how far training has come.
const PROGRESS: Duration = Duration::from_millis(500);
/// So many batches are trained between two looks at the clock.
const BATCHES: usize = 8;

/// The kind of a job with a parameter server.
const SERVER: &str = "parameter-server";

/// Where a worker finds things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The socket of the node beside it.
    pub socket: PathBuf,
    /// Where models come and updates go.
    pub tensors: PathBuf,
    /// Its data.
    pub data: PathBuf,
}

/// What a model is worth on examples that were held back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// The share of examples that it knows: 0 to 1.
    pub accuracy: f64,
    /// The mean loss.
    pub loss: f64,
    /// On so many examples.
    pub examples: u64,
}

/// What came of a round, or of an epoch of training alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Which.
    pub round: u32,
    /// In a round: what the model that it began with is worth; alone: what came of it. `None` where nothing is held back.
    pub score: Option<Score>,
    /// It was trained on so many examples.
    pub examples: u64,
    /// The mean loss while it was trained.
    pub train_loss: f64,
    /// How long that took.
    pub seconds: f64,
    /// Why the update was not taken, if it was not.
    pub refused: Option<String>,
}

/// Why training ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A parameter is wrong.
    #[error("a parameter of the job does not fit")]
    Setting(#[from] SettingError),
    /// There is no data.
    #[error("there is nothing to train on")]
    Data(#[from] DataError),
    /// There is no such network for this data.
    #[error("there is no such model")]
    Shape(#[from] ShapeError),
    /// The data does not fit the model.
    #[error("the data does not fit the model")]
    Fit(#[from] FitError),
    /// A model file cannot be read.
    #[error("the model {} cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: TensorError,
    },
    /// A model file holds another model.
    #[error("the model {} is not one that mesh train knows", path.display())]
    Load {
        /// Which.
        path: PathBuf,
        /// Why.
        source: LoadError,
    },
    /// A file cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The node named a file that is none of the task's.
    #[error("the node named a model {name:?}, which is no plain name of a file")]
    Name {
        /// What it said.
        name: String,
    },
    /// The job has no rounds.
    #[error("the job {name:?} does not train: its kind is {kind:?}")]
    Kind {
        /// Its name.
        name: String,
        /// Its kind.
        kind: String,
    },
    /// The node cannot be asked.
    #[error("the node beside this task is no help")]
    Client(#[from] ClientError),
    /// Weights have grown beyond all bounds.
    #[error("in round {round} the weights grew beyond all bounds")]
    Diverged {
        /// When.
        round: u32,
    },
}

/// Takes part in a training, from `join` to `done`. Says what came of each round.
pub fn take_part(
    settings: &Settings,
    places: &Places,
    tell: &mut dyn FnMut(&Told),
) -> Result<(), TrainError> {
    let mut client = Client::connect(&places.socket)?;
    let joined = client.joined();
    if joined.kind == "plain" {
        let (name, kind) = (joined.name.clone(), joined.kind.clone());
        return Err(TrainError::Kind { name, kind });
    }
    let joined_kind = joined.kind.clone();
    let mu = joined.strategy.mu.unwrap_or(0.0) as f32;
    let sgd = Sgd { mu, ..settings.sgd };
    // Parties with the same data and seed would otherwise walk through it side by side.
    let seed = settings.seed.wrapping_add(u64::from(joined.task));
    let slowdown = settings.slowdown.max(data::slowdown(&places.data)?);
    let settings = &Settings { slowdown, ..settings.clone() };
    let Sets { train, held } = read(settings, &places.data)?;
    if joined_kind == SERVER {
        return steps::take_part(client, settings, places, &train, &held, tell);
    }
    let mut net = None;
    let mut after = None;
    loop {
        let (round, model) = match client.next(after)? {
            Next::Wait | Next::First | Next::Step { .. } => continue,
            Next::Done => return Ok(client.done()?),
            Next::Round { round, model } => (round, model),
        };
        let (net, score) = match model {
            None => (net.insert(first(settings, &train)?), None),
            Some(name) => {
                let path = places.tensors.join(plain(&name)?);
                let loaded = load(&path, net.take(), &train, &held)?;
                let score = score(&loaded, &held);
                if let Some(score) = &score {
                    heard(client.evaluated(round, score.examples, &score.metrics()))?;
                }
                (net.insert(loaded), score)
            }
        };
        settings.batch_fits(net.shape())?;

        let orders = Orders { examples: train.len(), settings, seed, round };
        let (train_loss, seconds) = train_round(net, &train, &orders, sgd, &mut |part| {
            heard(client.progress(round, part))
        })?;
        if !(net.is_finite() && train_loss.is_finite()) {
            return Err(TrainError::Diverged { round });
        }
        let update = format!("out-{round}.safetensors");
        let path = places.tensors.join(&update);
        write(&path, net)?;
        let examples = orders.count();
        let metrics = BTreeMap::from([("train-loss", train_loss)]);
        let submitted = client.submit(round, &update, examples, &metrics)?;
        // The node has read it. It lies in memory, so it should not stay; if it does, the next run overwrites it.
        let _ = fs::remove_file(&path);
        let refused = (!submitted.taken).then(|| submitted.why.unwrap_or_default());
        tell(&Told { round, score, examples, train_loss, seconds, refused });
        after = Some(round);
    }
}

/// Trains without a mesh, `settings.epochs` times through the data, and says what came of each.
pub fn alone(
    settings: &Settings,
    dir: &Path,
    from: Option<&Path>,
    tell: &mut dyn FnMut(&Told),
) -> Result<Net, TrainError> {
    let Sets { train, held } = read(settings, dir)?;
    let mut net = match from {
        Some(path) => load(path, None, &train, &held)?,
        None => first(settings, &train)?,
    };
    settings.batch_fits(net.shape())?;
    let once = Settings { epochs: 1, ..settings.clone() };
    for epoch in 0..u32::try_from(settings.epochs).unwrap_or(u32::MAX) {
        let orders =
            Orders { examples: train.len(), settings: &once, seed: settings.seed, round: epoch };
        let (train_loss, seconds) =
            train_round(&mut net, &train, &orders, settings.sgd, &mut |_| Ok(()))?;
        if !(net.is_finite() && train_loss.is_finite()) {
            return Err(TrainError::Diverged { round: epoch + 1 });
        }
        let (score, examples) = (score(&net, &held), orders.count());
        tell(&Told { round: epoch + 1, score, examples, train_loss, seconds, refused: None });
    }
    Ok(net)
}

/// What a model file is worth on the examples that are held back in a directory; on all of them, if none are.
pub fn evaluate(settings: &Settings, model: &Path, dir: &Path) -> Result<Score, TrainError> {
    let Sets { train, held } = read(settings, dir)?;
    let examples = if held.is_empty() { &train } else { &held };
    let net = load(model, None, examples, examples)?;
    let (accuracy, loss) = net.evaluate(examples);
    Ok(Score { accuracy, loss, examples: examples.len() as u64 })
}

/// Writes a network's tensors into a file.
pub fn write(path: &Path, net: &Net) -> Result<(), TrainError> {
    let tensors = net.tensors().into_iter();
    let tensors = tensors.map(|(name, shape, _)| Tensor { name, kind: Kind::F32, shape });
    let layout = Layout { tensors: tensors.collect() };
    tensors::write(path, &layout, net.values())
        .map_err(|source| TrainError::Write { path: path.to_owned(), source })
}

impl Score {
    /// As the node takes it: numbers that have an end.
    pub(super) fn metrics(&self) -> BTreeMap<&'static str, f64> {
        let all = [("accuracy", self.accuracy), ("loss", self.loss)];
        all.into_iter().filter(|(_, value)| value.is_finite()).collect()
    }
}

/// The data, as much of it as the settings ask for.
fn read(settings: &Settings, dir: &Path) -> Result<Sets, DataError> {
    let Sets { train, held } = data::read(dir, settings.reading)?;
    let held = if settings.evaluate > 0 { held.first(settings.evaluate) } else { held };
    Ok(Sets { train, held })
}

/// A network that nobody has trained.
pub(super) fn first(settings: &Settings, train: &Examples) -> Result<Net, TrainError> {
    let shape = settings.shape(train.shape, train.classes)?;
    let net = Net::new(&shape, settings.seed);
    net.fits(train)?;
    Ok(net)
}

/// A network as a file has it. What the file says goes before the settings: the model is what all parties share.
pub(super) fn load(
    path: &Path,
    before: Option<Net>,
    train: &Examples,
    held: &Examples,
) -> Result<Net, TrainError> {
    let (layout, values) = tensors::read(path, MAX_VALUES as u64)
        .map_err(|source| TrainError::Read { path: path.to_owned(), source })?;
    let named = layout.tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..]));
    let shape = Shape::of(named.clone(), train.shape)?;
    // The room to work in is kept from one round to the next.
    let mut net = match before {
        Some(net) if *net.shape() == shape => net,
        _ => {
            let net = Net::new(&shape, 0);
            net.fits(train)?;
            net.fits(held)?;
            net
        }
    };
    let mut rest = &values[..];
    let mut found = Vec::new();
    for (name, shape) in named {
        let count = shape.iter().fold(1u64, |all, side| all.saturating_mul(*side));
        // The file has as many values as its layout says.
        let (own, others) = rest.split_at(rest.len().min(count as usize));
        rest = others;
        found.push((name, shape, own));
    }
    net.load(found).map_err(|source| TrainError::Load { path: path.to_owned(), source })?;
    Ok(net)
}

pub(super) fn score(net: &Net, held: &Examples) -> Option<Score> {
    if held.is_empty() {
        return None;
    }
    let (accuracy, loss) = net.evaluate(held);
    Some(Score { accuracy, loss, examples: held.len() as u64 })
}

/// A node that does not want to hear of a round any longer is no reason to stop: `submit` will tell.
pub(super) fn heard(told: Result<(), ClientError>) -> Result<(), TrainError> {
    match told {
        Err(ClientError::Refused { .. }) => Ok(()),
        told => Ok(told?),
    }
}

/// A name without a way in it.
pub(super) fn plain(name: &str) -> Result<&str, TrainError> {
    let is_plain = !(name.is_empty() || name.contains('/') || name == "." || name == "..");
    is_plain.then_some(name).ok_or_else(|| TrainError::Name { name: name.to_owned() })
}

/// Trains one round; the mean loss, and how long it took. What is slow on purpose sleeps.
fn train_round(
    net: &mut Net,
    train: &Examples,
    orders: &Orders<'_>,
    sgd: Sgd,
    progress: &mut dyn FnMut(f64) -> Result<(), TrainError>,
) -> Result<(f64, f64), TrainError> {
    let settings = orders.settings;
    let sgd = Sgd { lr: sgd.lr * faded(settings.fade, orders.round), ..sgd };
    let began = steady();
    let (mut told, mut done, mut loss) = (began, 0, 0.0);
    let all = orders.count() as f64;
    for epoch in 0..settings.epochs {
        let order = orders.order(epoch);
        for part in order.chunks(settings.batch.saturating_mul(BATCHES)) {
            let before = steady();
            loss += net.train_by(train, part, settings.batch, sgd) * part.len() as f64;
            done += part.len();
            thread::sleep(idle(steady().duration_since(before), settings.slowdown));
            if steady().duration_since(told) >= PROGRESS {
                progress((done as f64 / all).min(1.0))?;
                told = steady();
            }
        }
    }
    Ok((loss / done.max(1) as f64, steady().duration_since(began).as_secs_f64()))
}

/// How long to do nothing after so much work, so that it takes `slowdown` times as long: 1 or more.
pub(super) fn idle(worked: Duration, slowdown: f64) -> Duration {
    Duration::try_from_secs_f64(worked.as_secs_f64() * (slowdown - 1.0)).unwrap_or_default()
}

/// What is left of the rate in a round.
fn faded(fade: f32, round: u32) -> f32 {
    fade.powi(i32::try_from(round).unwrap_or(i32::MAX))
}

/// Which examples a round trains on, and in which order: hangs on nothing but what stands here, so that a worker which was
/// started again goes on where it was.
struct Orders<'a> {
    /// How many there are.
    examples: usize,
    settings: &'a Settings,
    seed: u64,
    round: u32,
}

impl Orders<'_> {
    /// How many examples are trained on, all epochs together.
    fn count(&self) -> u64 {
        self.portion() as u64 * self.settings.epochs as u64
    }

    /// In one epoch.
    fn portion(&self) -> usize {
        if self.settings.images == 0 { self.examples } else { self.settings.images }
    }

    /// The shuffled data, again and again, one shuffle after the other; each round takes the next portion of it.
    fn order(&self, epoch: usize) -> Vec<u32> {
        let examples = self.examples as u64;
        let mut order = Vec::with_capacity(self.portion());
        let mut at = u64::from(self.round) * self.portion() as u64;
        while order.len() < self.portion() {
            let mut all: Vec<u32> =
                (0..self.examples).map_while(|n| u32::try_from(n).ok()).collect();
            shuffled(&mut all, self.seed, at / examples);
            let rest = &all[(at % examples) as usize..];
            let taken = rest.len().min(self.portion() - order.len());
            order.extend_from_slice(&rest[..taken]);
            at += taken as u64;
        }
        if epoch > 0 {
            let round = u64::from(self.round) << 32 | epoch as u64;
            shuffled(&mut order, !self.seed, round);
        }
        order
    }
}

pub(super) fn shuffled(order: &mut [u32], seed: u64, number: u64) {
    // Neighbouring numbers are spread far apart (the golden ratio), so that shuffles have nothing in common.
    let seed = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    fastrand::Rng::with_seed(seed).shuffle(order);
}

#[cfg(test)]
mod tests;
