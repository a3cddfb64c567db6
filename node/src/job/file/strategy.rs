//! `strategy` in `[federated]`, and the settings of the one that was chosen.

use toml::Spanned;

use super::super::training::{Adaptive, MAX_PARTICIPANTS, Real, Strategy};
use super::error::Mistakes;
use super::section::{Section, unknown};

/// The strategies that can be chosen.
const STRATEGIES: [&str; 9] = [
    "fedavg",
    "fedprox",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedbuff",
    "diloco",
    "median",
    "trimmed-mean",
];
/// The one without settings.
const MEDIAN: &str = "median";
/// FedBuff's buffer, as its authors have it.
pub(super) const DEFAULT_BUFFER: u32 = 10;
/// The highest number of models that an update may be late by.
const MAX_STALENESS: u32 = 1000;

/// The strategy, and FedBuff's buffer where it was written.
pub(super) fn strategy(
    section: &Section<'_>,
    mistakes: &mut Mistakes,
) -> Option<(Strategy, Option<Spanned<u32>>)> {
    let read = |word: &str| {
        let known = STRATEGIES.into_iter().find(|known| *known == word);
        known.ok_or_else(|| unknown(word, "a strategy", &STRATEGIES))
    };
    let chosen = match section.get("strategy") {
        Some(_) => section.read("strategy", mistakes, read)?.into_inner(),
        None => STRATEGIES[0],
    };
    let with_settings = STRATEGIES.into_iter().filter(|key| *key != MEDIAN);
    for other in with_settings.filter(|key| *key != chosen && section.get(key).is_some()) {
        let message = format!("these are settings of `{other}`, and the strategy is `{chosen}`");
        let fix = format!("write `strategy = \"{other}\"`, or leave them out");
        mistakes.add(section.at(other), message, fix);
    }
    let own = match chosen {
        MEDIAN => None,
        _ => section.section(chosen, &format!("federated.{chosen}"), mistakes),
    };
    let mut settings = Settings { section: own, mistakes };
    let mut buffer = None;
    let strategy = match chosen {
        "fedprox" => Strategy::FedProx { mu: settings.real("mu", 0.01, |n| n >= 0.0) },
        "fedadam" => Strategy::FedAdam(settings.adaptive(true)),
        "fedyogi" => Strategy::FedYogi(settings.adaptive(true)),
        "fedadagrad" => Strategy::FedAdagrad(settings.adaptive(false)),
        "fedbuff" => {
            buffer = settings.whole("buffer", 1, MAX_PARTICIPANTS as u32);
            let stale = settings.whole("max_staleness", 0, MAX_STALENESS);
            Strategy::FedBuff {
                buffer: DEFAULT_BUFFER,
                rate: settings.real("rate", 1.0, is_positive),
                max_staleness: stale.map_or(8, Spanned::into_inner),
            }
        }
        "diloco" => Strategy::DiLoCo {
            rate: settings.real("rate", 0.7, is_positive),
            momentum: settings.real("momentum", 0.9, is_below_one),
        },
        MEDIAN => Strategy::Median,
        "trimmed-mean" => {
            Strategy::TrimmedMean { trim: settings.real("trim", 0.2, |n| (0.0..0.5).contains(&n)) }
        }
        _ => Strategy::FedAvg { rate: settings.real("rate", 1.0, is_positive) },
    };
    Some((strategy, buffer))
}

/// The settings of the strategy that was chosen, with their defaults.
struct Settings<'s, 't> {
    section: Option<Section<'t>>,
    mistakes: &'s mut Mistakes,
}

impl Settings<'_, '_> {
    fn real(&mut self, key: &str, default: f64, fits: fn(f64) -> bool) -> Real {
        let section = self.section.as_ref();
        let read = section.and_then(|section| section.real(key, fits, self.mistakes));
        read.or(Real::new(default)).unwrap_or_default()
    }

    fn whole(&mut self, key: &str, least: u32, most: u32) -> Option<Spanned<u32>> {
        self.section.as_ref()?.whole(key, least, most, self.mistakes)
    }

    /// Those of Adam and its like. Not all of them have a second beta.
    fn adaptive(&mut self, has_beta2: bool) -> Adaptive {
        let beta2 = 0.99;
        Adaptive {
            rate: self.real("rate", 0.01, is_positive),
            beta1: self.real("beta1", 0.9, is_below_one),
            beta2: match has_beta2 {
                true => self.real("beta2", beta2, is_below_one),
                false => Real::new(beta2).unwrap_or_default(),
            },
            tau: self.real("tau", 0.001, is_positive),
        }
    }
}

pub(super) fn is_positive(number: f64) -> bool {
    number > 0.0
}

pub(super) fn is_below_one(number: f64) -> bool {
    (0.0..1.0).contains(&number)
}
