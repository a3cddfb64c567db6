//! What a job that trains a model says about it: `[federated]`, `[privacy]`, `[server]`.
//!
//! A federated job has one group for each participant, called after its party: each has one task, which runs on a
//! node of that party, on that party's own data. What comes of it stands in [`crate::state::course`].
//!
//! A job with a parameter server has one group of workers, all of the submitting party. Where its shards are stands in
//! [`crate::state::server`].

use mesh_consensus::id::VersionId;
use serde::{Deserialize, Deserializer, Serialize};

use crate::state::course::MAX_SHARDS;
use crate::state::name::Name;

/// The most rounds of a job.
pub const MAX_ROUNDS: u32 = 100_000;
/// The most parties of a round, and so the most groups of a federated job.
pub const MAX_PARTICIPANTS: usize = 64;
/// The most workers of a parameter server.
pub const MAX_WORKERS: u32 = 256;
/// The most steps, or batches, of a parameter server.
pub const MAX_STEPS: u32 = 1_000_000_000;
/// The largest `delay`.
pub const MAX_DELAY: u32 = 10_000;

/// How a job trains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Training {
    /// Each party trains on its own data, and the updates are brought together round by round.
    Federated(Federated),
    /// Workers pull a model from shards on several nodes, and push gradients to them, step by step.
    Server(Server),
}

impl Training {
    /// How many rounds, or steps, there will be.
    pub fn rounds(&self) -> u32 {
        match self {
            Training::Federated(asked) => asked.rounds,
            Training::Server(asked) => asked.steps,
        }
    }
}

/// `[server]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// How many steps each worker makes; of batches that are handed out, how many there are in all.
    pub steps: u32,
    /// Who waits for whom.
    pub mode: Mode,
    /// Whether a worker is given the next batch when it is done with one, instead of steps of its own.
    pub dynamic: bool,
    /// What the server does with gradients.
    pub optimiser: Rule,
    /// Into how many ranges the model is cut, at most.
    pub shards: u32,
    /// How gradients travel.
    pub wire: Wire,
    /// So many steps lie between two checkpoints.
    pub checkpoint: u32,
    /// The model to start from; `None` for what the first worker begins with.
    pub start: Option<VersionId>,
    /// What the model is called, as a version of the submitting party.
    pub model: Name,
}

/// Who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// A step is the mean of all workers' gradients, and the next begins when it is done.
    Bulk,
    /// No worker is more than so many steps ahead of the slowest.
    Bounded {
        /// How many.
        delay: u32,
    },
    /// Nobody for anybody.
    Async,
}

/// What the server does with gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// Plain steps, or with momentum.
    Sgd {
        /// How far a step goes.
        rate: Real,
        /// How much of the last step goes on; 0 for none.
        momentum: Real,
    },
    /// Adagrad.
    Adagrad {
        /// How far a step goes.
        rate: Real,
        /// What is added to the root.
        epsilon: Real,
    },
    /// Adam.
    Adam {
        /// How far a step goes.
        rate: Real,
        /// Of the mean of gradients.
        beta1: Real,
        /// Of the mean of their squares.
        beta2: Real,
        /// What is added to the root.
        epsilon: Real,
    },
}

impl Server {
    /// What is wrong with it, for whoever wrote it by other means than a job.toml.
    pub fn flaw(&self, workers: u32) -> Option<&'static str> {
        let positive = |real: &Real| real.get() > 0.0;
        let below_one = |real: &Real| (0.0..1.0).contains(&real.get());
        let rule_is_sound = match &self.optimiser {
            Rule::Sgd { rate, momentum } => positive(rate) && below_one(momentum),
            Rule::Adagrad { rate, epsilon } => positive(rate) && positive(epsilon),
            Rule::Adam { rate, beta1, beta2, epsilon } => {
                positive(rate) && below_one(beta1) && below_one(beta2) && positive(epsilon)
            }
        };
        let delay = match self.mode {
            Mode::Bounded { delay } => delay,
            Mode::Bulk | Mode::Async => 0,
        };
        let flaws = [
            (self.steps == 0 || self.steps > MAX_STEPS, "it has no or too many steps"),
            (workers == 0 || workers > MAX_WORKERS, "it has no or too many workers"),
            (self.shards == 0 || self.shards as usize > MAX_SHARDS, "it has no or too many shards"),
            (self.checkpoint == 0, "there is nothing between two of its checkpoints"),
            (delay > MAX_DELAY, "its delay is too long"),
            (self.dynamic && self.mode == Mode::Bulk, "batches that are handed out know no steps"),
            (!rule_is_sound, "a setting of its optimiser is out of range"),
        ];
        flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text))
    }
}

/// `[federated]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Federated {
    /// How many rounds, after the one that makes the first model.
    pub rounds: u32,
    /// How updates become the next model.
    pub strategy: Strategy,
    /// With fewer updates no round counts.
    pub min_parties: u32,
    /// How long a round waits once it has enough; `None` for what the times of the participants suggest.
    pub deadline_ms: Option<u64>,
    /// The parties whose nodes may sum updates, and so see single ones: one at least.
    pub aggregators: Vec<Name>,
    /// How updates travel.
    pub wire: Wire,
    /// Who takes part in a round.
    pub select: Select,
    /// What keeps single examples from being read out of the model.
    pub privacy: Option<Privacy>,
    /// The model to start from; `None` for what the first participant begins with.
    pub start: Option<VersionId>,
    /// What the model is called, as a version of the submitting party.
    pub model: Name,
}

/// How updates become the next model. An *update* is a difference from the model that a round began with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// The mean, by examples, times `rate`.
    FedAvg {
        /// 1 for the mean itself.
        rate: Real,
    },
    /// The mean; participants are told to stay near the model they began with.
    FedProx {
        /// How near.
        mu: Real,
    },
    /// Adam on the server, the mean as its gradient.
    FedAdam(Adaptive),
    /// Yogi on the server.
    FedYogi(Adaptive),
    /// Adagrad on the server; `beta2` is not used.
    FedAdagrad(Adaptive),
    /// Whoever is ready contributes, and every `buffer` updates make a model.
    FedBuff {
        /// How many updates make a model.
        buffer: u32,
        /// The server's rate.
        rate: Real,
        /// An update that began so many models ago is refused.
        max_staleness: u32,
    },
    /// Many local steps, then Nesterov on the server.
    DiLoCo {
        /// The outer rate.
        rate: Real,
        /// The outer momentum.
        momentum: Real,
    },
    /// The median of each value. Examples do not count.
    Median,
    /// The mean of each value without its extremes. Examples do not count.
    TrimmedMean {
        /// Which share is left out at each end: below 1/2.
        trim: Real,
    },
}

/// Settings of the adaptive strategies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adaptive {
    /// The server's rate.
    pub rate: Real,
    /// Of the mean of gradients.
    pub beta1: Real,
    /// Of the mean of their squares.
    pub beta2: Real,
    /// What is added to the root.
    pub tau: Real,
}

/// How updates travel. What is summed is f32, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Wire {
    /// Four bytes a value.
    #[default]
    F32,
    /// Two bytes, IEEE half.
    F16,
    /// Two bytes, the upper half of an f32.
    Bf16,
    /// One byte, and a scale for every block.
    Int8,
}

/// Who takes part in a round.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Select {
    /// Everybody who is there.
    #[default]
    All,
    /// So many, drawn at random, and three in ten more than are waited for.
    Random {
        /// How many are waited for.
        count: u32,
    },
    /// So many of one tier at a time: those who are about as fast as one another.
    Tiers {
        /// How many are waited for.
        count: u32,
        /// How many tiers.
        tiers: u32,
    },
}

/// `[privacy]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Privacy {
    /// What may be spent in all.
    pub epsilon: Real,
    /// The chance that more was.
    pub delta: Real,
    /// The noise, in multiples of `clip`.
    pub noise: Real,
    /// The largest norm of an update; larger ones are scaled down.
    pub clip: Real,
    /// Who adds the noise.
    pub at: NoiseAt,
}

/// Who adds noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoiseAt {
    /// Every party, to its own update: the aggregator sees nothing without.
    Party,
    /// The aggregator, to the sum.
    Aggregator,
}

/// A number with a fraction, and finite: so that what holds it can be compared.
#[derive(Debug, Clone, Copy, Default, PartialOrd, Serialize)]
pub struct Real(f64);

impl Real {
    /// `None` for what is no number, or none that has an end.
    pub fn new(number: f64) -> Option<Self> {
        // Zero has one spelling.
        number.is_finite().then_some(Self(number + 0.0))
    }

    /// As a number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        let real = Real::new(number).filter(|real| real.0.to_bits() == number.to_bits());
        real.ok_or_else(|| serde::de::Error::custom("not a finite number"))
    }
}

impl Federated {
    /// What is wrong with it, for whoever wrote it by other means than a job.toml.
    pub fn flaw(&self, participants: usize) -> Option<&'static str> {
        let positive = |real: &Real| real.get() > 0.0;
        let below_one = |real: &Real| (0.0..1.0).contains(&real.get());
        let strategy_is_sound = match &self.strategy {
            Strategy::FedAvg { rate } => positive(rate),
            Strategy::FedProx { mu } => mu.get() >= 0.0,
            Strategy::FedAdam(set) | Strategy::FedYogi(set) | Strategy::FedAdagrad(set) => {
                positive(&set.rate)
                    && positive(&set.tau)
                    && below_one(&set.beta1)
                    && below_one(&set.beta2)
            }
            Strategy::FedBuff { buffer, rate, .. } => {
                *buffer > 0 && *buffer as usize <= MAX_PARTICIPANTS && positive(rate)
            }
            Strategy::DiLoCo { rate, momentum } => positive(rate) && below_one(momentum),
            Strategy::Median => true,
            Strategy::TrimmedMean { trim } => (0.0..0.5).contains(&trim.get()),
        };
        let privacy_is_sound = self.privacy.as_ref().is_none_or(|privacy| {
            positive(&privacy.epsilon)
                && positive(&privacy.delta)
                && below_one(&privacy.delta)
                && positive(&privacy.noise)
                && positive(&privacy.clip)
        });
        let select_is_sound = match self.select {
            Select::All => true,
            Select::Random { count } => count > 0,
            Select::Tiers { count, tiers } => count > 0 && (1..=16).contains(&tiers),
        };
        let flaws = [
            (self.rounds == 0 || self.rounds > MAX_ROUNDS, "it has no or too many rounds"),
            (participants == 0 || participants > MAX_PARTICIPANTS, "it has no or too many parties"),
            (
                self.min_parties == 0 || self.min_parties as usize > participants,
                "it asks for more parties than it has",
            ),
            (
                self.aggregators.is_empty() || self.aggregators.len() > MAX_PARTICIPANTS,
                "nobody may sum its updates",
            ),
            (!strategy_is_sound, "a setting of its strategy is out of range"),
            (!privacy_is_sound, "a setting of its privacy is out of range"),
            (!select_is_sound, "it selects nobody"),
        ];
        flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text))
    }
}
