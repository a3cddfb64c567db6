//! `[server]`: how a job with a parameter server trains.

use mesh_consensus::id::VersionId;
use toml::Spanned;

use super::super::training::{MAX_DELAY, MAX_STEPS, MAX_WORKERS, Mode, Real, Rule, Server, Wire};
use super::error::Mistakes;
use super::section::{Section, unknown};
use super::strategy::{is_below_one, is_positive};
use super::training::{Kind, SERVER, model, start, wire};
use crate::state::course::MAX_SHARDS;
use crate::state::data::DataRef;
use crate::state::name::Name;

/// The optimisers that can be chosen.
const OPTIMISERS: [&str; 3] = ["sgd", "adagrad", "adam"];
const DEFAULT_DELAY: u32 = 3;
const DEFAULT_SHARDS: u32 = 2;
const DEFAULT_CHECKPOINT: u32 = 100;

/// `[server]` as written.
#[derive(Debug, Clone)]
pub(super) struct ServerFile {
    pub(super) workers: u32,
    steps: u32,
    mode: Mode,
    dynamic: bool,
    optimiser: Rule,
    shards: u32,
    wire: Wire,
    checkpoint: u32,
    pub(super) start: Option<Spanned<DataRef>>,
    model: Name,
}

/// Reads it, and says what cannot stand beside it. `None` if the job has none, or if something is wrong.
pub(super) fn server(
    top: &Section<'_>,
    kind: Kind,
    job: Option<&Name>,
    mistakes: &mut Mistakes,
) -> Option<ServerFile> {
    match kind {
        Kind::Server => only_workers(top, mistakes),
        Kind::Plain | Kind::Federated => {
            if top.get("server").is_some() {
                let message = format!("[server] is for jobs of `kind = \"{SERVER}\"`");
                let fix = format!("write `kind = \"{SERVER}\"` above the first [section]");
                mistakes.add(top.at("server"), message, fix);
            }
            return None;
        }
        Kind::Unclear => return None,
    }
    if top.get("server").is_none() {
        let message = "a job with a parameter server has a section [server]";
        mistakes.add(top.at("kind"), message, "add `[server]`, with `workers` and `steps`");
    }
    let section = top.section("server", "server", mistakes)?;
    for key in ["workers", "steps"] {
        section.need(key, mistakes);
    }
    let workers = section.whole("workers", 1, MAX_WORKERS, mistakes);
    let steps = section.whole("steps", 1, MAX_STEPS, mistakes);
    let mode = mode(&section, mistakes);
    let dynamic = section.read("batches", mistakes, |word| match word {
        "fixed" => Ok(false),
        "dynamic" => Ok(true),
        _ => Err(unknown(word, "a way to give out batches", &["fixed", "dynamic"])),
    });
    if mode == Some(Mode::Bulk) && dynamic.as_ref().is_some_and(|dynamic| *dynamic.get_ref()) {
        let message =
            "batches that are handed out go with `mode = \"async\"` or `mode = \"bounded\"`";
        let fix = "in bulk-synchronous steps everybody has one batch: leave it out";
        mistakes.add(section.at("batches"), message, fix);
    }
    let optimiser = optimiser(&section, mistakes);
    let shards = section.whole("shards", 1, MAX_SHARDS as u32, mistakes);
    let wire = section.read("wire", mistakes, wire);
    let checkpoint = section.whole("checkpoint", 1, MAX_STEPS, mistakes);
    let start = section.read("start", mistakes, start);
    let model = model(top, &section, job, mistakes)?;
    Some(ServerFile {
        workers: workers?.into_inner(),
        steps: steps?.into_inner(),
        mode: mode?,
        dynamic: dynamic.is_some_and(Spanned::into_inner),
        optimiser: optimiser?,
        shards: shards.map_or(DEFAULT_SHARDS, Spanned::into_inner),
        wire: wire.map(Spanned::into_inner).unwrap_or_default(),
        checkpoint: checkpoint.map_or(DEFAULT_CHECKPOINT, Spanned::into_inner),
        start,
        model,
    })
}

/// Says what cannot stand in a job whose tasks are workers of one kind.
fn only_workers(top: &Section<'_>, mistakes: &mut Mistakes) {
    let tasks = "`workers` in [server] says how many tasks there are, all of one kind";
    let others = [
        ("array", tasks, "leave `array` out"),
        ("gang", tasks, "leave [gang] out"),
        ("task", tasks, "leave [[task]] out, and write `run`"),
        (
            "output",
            "what a job with a parameter server leaves behind is its model",
            "leave it out: `model` in [server] says what that is called",
        ),
        (
            "checkpoint",
            "the server keeps checkpoints, and workers have nothing to keep",
            "leave [checkpoint] out: `checkpoint` in [server] says how often",
        ),
    ];
    for (key, message, fix) in others {
        if top.get(key).is_some() {
            mistakes.add(top.at(key), message, fix);
        }
    }
    let place = top.get("place").and_then(|place| place.get_ref().as_table());
    if let Some((at, _)) = place.and_then(|place| place.get_key_value("each")) {
        mistakes.add(at.span(), tasks, "leave it out");
    }
}

/// Who waits for whom.
fn mode(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Mode> {
    let delay = section.whole("delay", 0, MAX_DELAY, mistakes);
    let read = |word: &str| match word {
        "bulk" => Ok(Mode::Bulk),
        "bounded" => Ok(Mode::Bounded { delay: DEFAULT_DELAY }),
        "async" => Ok(Mode::Async),
        _ => Err(unknown(word, "a mode", &["bulk", "bounded", "async"])),
    };
    let mode = match section.get("mode") {
        Some(_) => section.read("mode", mistakes, read)?.into_inner(),
        None => Mode::Bulk,
    };
    match (mode, delay) {
        (Mode::Bounded { .. }, Some(delay)) => Some(Mode::Bounded { delay: delay.into_inner() }),
        (mode, Some(_)) => {
            let message = "`delay` goes with `mode = \"bounded\"`";
            mistakes.add(section.at("delay"), message, "write that, or leave it out");
            Some(mode)
        }
        (mode, None) => Some(mode),
    }
}

/// What the server does with gradients, and its settings.
fn optimiser(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Rule> {
    let read = |word: &str| {
        let known = OPTIMISERS.into_iter().find(|known| *known == word);
        known.ok_or_else(|| unknown(word, "an optimiser", &OPTIMISERS))
    };
    let chosen = match section.get("optimiser") {
        Some(_) => section.read("optimiser", mistakes, read)?.into_inner(),
        None => OPTIMISERS[0],
    };
    for other in OPTIMISERS.into_iter().filter(|key| *key != chosen && section.get(key).is_some()) {
        let message = format!("these are settings of `{other}`, and the optimiser is `{chosen}`");
        let fix = format!("write `optimiser = \"{other}\"`, or leave them out");
        mistakes.add(section.at(other), message, fix);
    }
    let own = section.section(chosen, &format!("server.{chosen}"), mistakes);
    let mut real = |key: &str, default: f64, fits: fn(f64) -> bool| {
        let read = own.as_ref().and_then(|own| own.real(key, fits, mistakes));
        read.or(Real::new(default)).unwrap_or_default()
    };
    Some(match chosen {
        "adagrad" => Rule::Adagrad {
            rate: real("rate", 0.01, is_positive),
            epsilon: real("epsilon", 1e-8, is_positive),
        },
        "adam" => Rule::Adam {
            rate: real("rate", 0.001, is_positive),
            beta1: real("beta1", 0.9, is_below_one),
            beta2: real("beta2", 0.999, is_below_one),
            epsilon: real("epsilon", 1e-8, is_positive),
        },
        _ => Rule::Sgd {
            rate: real("rate", 0.1, is_positive),
            momentum: real("momentum", 0.0, is_below_one),
        },
    })
}

impl ServerFile {
    /// As it stands in the log.
    pub(super) fn settle(&self, start: Option<VersionId>) -> Server {
        Server {
            steps: self.steps,
            mode: self.mode,
            dynamic: self.dynamic,
            optimiser: self.optimiser,
            shards: self.shards,
            wire: self.wire,
            checkpoint: self.checkpoint,
            start,
            model: self.model.clone(),
        }
    }
}
