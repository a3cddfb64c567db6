//! `kind`, `[federated]` and `[privacy]`: how a job trains.
//!
//! Who takes part is known when the file is settled; what follows from how many they are is checked then, and before
//! that if the file names them one by one.

use mesh_consensus::id::VersionId;
use toml::Spanned;

use super::super::training::{
    Federated, MAX_PARTICIPANTS, MAX_ROUNDS, NoiseAt, Privacy, Real, Select, Strategy, Wire,
};
use super::error::{Mistakes, Wrong, quoted};
use super::section::{Section, name, nearest, unknown};
use super::strategy::{DEFAULT_BUFFER, is_positive, strategy};
use super::value::duration_within;
use crate::data::catalogue::{EACH, LATEST};
use crate::state::data::DataRef;
use crate::state::name::Name;

/// The word for it in `kind`.
const FEDERATED: &str = "federated";
/// The same.
pub(super) const SERVER: &str = "parameter-server";
/// TiFL's number of tiers.
const DEFAULT_TIERS: u32 = 5;
/// More are no use, and the log takes no more.
const MAX_TIERS: u32 = 16;
const SECOND: (u64, &str) = (1000, "1s");
const DAY: (u64, &str) = (24 * 3600 * 1000, "1d");

/// What `kind` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing: the job does not train.
    Plain,
    Federated,
    /// With a parameter server: see [`super::server`].
    Server,
    /// Something that is wrong. Then nothing more is said of what might belong to it.
    Unclear,
}

impl Kind {
    /// Whether it is, or may be meant to be.
    pub(super) fn is_federated(self) -> bool {
        matches!(self, Kind::Federated | Kind::Unclear)
    }
}

/// `[federated]` and `[privacy]` as written.
#[derive(Debug, Clone)]
pub(super) struct FederatedFile {
    parties: Spanned<Parties>,
    rounds: u32,
    strategy: Strategy,
    /// FedBuff's, where it was written.
    buffer: Option<Spanned<u32>>,
    min_parties: Option<Spanned<u32>>,
    deadline_ms: Option<u64>,
    aggregators: Vec<Spanned<Name>>,
    wire: Wire,
    select: How,
    select_count: Option<Spanned<u32>>,
    tiers: Option<u32>,
    privacy: Option<Privacy>,
    start: Option<Spanned<DataRef>>,
    model: Name,
}

/// Who takes part.
#[derive(Debug, Clone)]
enum Parties {
    /// Every party that has a node.
    Each,
    Named(Vec<Spanned<Name>>),
}

/// How a round's participants are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    All,
    Random,
    Tiers,
}

/// What kind of job it is.
pub(super) fn kind(top: &Section<'_>, mistakes: &mut Mistakes) -> Kind {
    if top.get("kind").is_none() {
        return Kind::Plain;
    }
    let read = |word: &str| match word {
        FEDERATED => Ok(Kind::Federated),
        SERVER => Ok(Kind::Server),
        _ => Err(unknown(word, "a kind of job", &[FEDERATED, SERVER])),
    };
    top.read("kind", mistakes, read).map_or(Kind::Unclear, Spanned::into_inner)
}

/// Reads how a job trains, and says what cannot stand beside it. `None` if it does not, or if something is wrong.
pub(super) fn federated(
    top: &Section<'_>,
    kind: Kind,
    job: Option<&Name>,
    mistakes: &mut Mistakes,
) -> Option<FederatedFile> {
    match kind {
        Kind::Federated => only_parties(top, mistakes),
        Kind::Plain | Kind::Server => {
            for key in ["federated", "privacy"].into_iter().filter(|key| top.get(key).is_some()) {
                let message = format!("[{key}] is for jobs of `kind = \"{FEDERATED}\"`");
                let fix = format!("write `kind = \"{FEDERATED}\"` above the first [section]");
                mistakes.add(top.at(key), message, fix);
            }
            return None;
        }
        Kind::Unclear => return None,
    }
    if top.get("federated").is_none() {
        let message = "a federated job has a section [federated]";
        let fix = "add `[federated]`, with `parties` and `rounds`";
        mistakes.add(top.at("kind"), message, fix);
    }
    let section = top.section("federated", "federated", mistakes);
    let privacy = top.section("privacy", "privacy", mistakes);
    let privacy = privacy.and_then(|section| read_privacy(&section, mistakes));
    let section = section?;
    for key in ["parties", "rounds"] {
        section.need(key, mistakes);
    }
    let parties = parties(&section, mistakes);
    let rounds = section.whole("rounds", 1, MAX_ROUNDS, mistakes);
    let (strategy, buffer) = strategy(&section, mistakes).unzip();
    let most = u32::try_from(MAX_PARTICIPANTS).unwrap_or(u32::MAX);
    let min_parties = section.whole("min_parties", 1, most, mistakes);
    let deadline = section.read("deadline", mistakes, deadline);
    let mut aggregators = Vec::new();
    names(&section, "aggregators", &mut aggregators, mistakes);
    let wire = section.read("wire", mistakes, wire);
    let (select, select_count, tiers) = select(&section, most, mistakes);
    let start = section.read("start", mistakes, start);
    let model = model(top, &section, job, mistakes)?;
    let file = FederatedFile {
        parties: parties?,
        rounds: rounds?.into_inner(),
        strategy: strategy?,
        buffer: buffer.flatten(),
        min_parties,
        deadline_ms: deadline.and_then(Spanned::into_inner),
        aggregators,
        wire: wire.map(Spanned::into_inner).unwrap_or_default(),
        select,
        select_count,
        tiers,
        privacy,
        start,
        model,
    };
    if let Parties::Named(named) = file.parties.get_ref() {
        file.check_counts(named.len(), mistakes);
    }
    Some(file)
}

/// What the model is called: as the job, unless it says otherwise.
pub(super) fn model(
    top: &Section<'_>,
    section: &Section<'_>,
    job: Option<&Name>,
    mistakes: &mut Mistakes,
) -> Option<Name> {
    let model = section.read("model", mistakes, name);
    let model = model.or_else(|| Some(Spanned::new(top.at("name"), job?.clone())))?;
    if matches!(model.get_ref().as_str(), EACH | LATEST) {
        let message = format!("{} cannot be the name of a model", quoted(model.get_ref().as_str()));
        let fix = "it has a meaning of its own where data is named: write another `model`";
        mistakes.add(model.span(), message, fix);
    }
    Some(model.into_inner())
}

/// Says what cannot stand in a job that has one task for each party.
fn only_parties(top: &Section<'_>, mistakes: &mut Mistakes) {
    let tasks = "a federated job has one task for each party";
    let others = [
        ("array", tasks, "leave `array` out"),
        ("gang", tasks, "leave [gang] out"),
        ("task", tasks, "leave [[task]] out, and write `run`"),
        (
            "output",
            "what a federated job leaves behind is its model",
            "leave it out: `model` in [federated] says what that is called",
        ),
        (
            "checkpoint",
            "the model of every round is kept already, and a worker that starts again gets it",
            "leave [checkpoint] out",
        ),
        (
            "secrets",
            "secrets are for your party's nodes, and a federated job runs on those of others",
            "leave [secrets] out",
        ),
    ];
    for (key, message, fix) in others {
        if top.get(key).is_some() {
            mistakes.add(top.at(key), message, fix);
        }
    }
    let place = top.get("place").and_then(|place| place.get_ref().as_table());
    for key in ["each", "party"] {
        if let Some((at, _)) = place.and_then(|place| place.get_key_value(key)) {
            let fix = "leave it out: `parties` in [federated] says which";
            mistakes.add(at.span(), tasks, fix);
        }
    }
}

fn parties(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Spanned<Parties>> {
    let value = section.get("parties")?;
    if value.get_ref().as_str() == Some(EACH) {
        return Some(Spanned::new(value.span(), Parties::Each));
    }
    let before = mistakes.count();
    let mut named = Vec::new();
    names(section, "parties", &mut named, mistakes);
    if mistakes.count() > before {
        return None;
    }
    if named.is_empty() {
        let fix = "name them, or write `parties = \"each\"` for all that have a node";
        mistakes.add(value.span(), "there is nobody who could train", fix);
        return None;
    }
    if let Some(each) = named.iter().find(|party| party.get_ref().as_str() == EACH) {
        let message = "`each` is not the name of a party";
        mistakes.add(each.span(), message, "write `parties = \"each\"` for all that have a node");
        return None;
    }
    Some(Spanned::new(value.span(), Parties::Named(named)))
}

/// Names of parties, each once.
fn names(
    section: &Section<'_>,
    key: &str,
    names: &mut Vec<Spanned<Name>>,
    mistakes: &mut Mistakes,
) {
    for word in section.list(key, mistakes) {
        let Some(party) = mistakes.take(word.span(), name(word.get_ref())) else { continue };
        if names.iter().any(|before| before.get_ref() == party.get_ref()) {
            let message = format!("{} stands here twice", quoted(party.get_ref().as_str()));
            mistakes.add(party.span(), message, "remove one");
        }
        names.push(party);
    }
}

/// `auto`, or a duration.
fn deadline(word: &str) -> Result<Option<u64>, Wrong> {
    match word {
        "auto" => Ok(None),
        _ => duration_within(word, SECOND, DAY).map(Some),
    }
}

pub(super) fn wire(word: &str) -> Result<Wire, Wrong> {
    match word {
        "f32" => Ok(Wire::F32),
        "f16" => Ok(Wire::F16),
        "bf16" => Ok(Wire::Bf16),
        "int8" => Ok(Wire::Int8),
        _ => Err(unknown(word, "how updates travel", &["f32", "f16", "bf16", "int8"])),
    }
}

pub(super) fn start(word: &str) -> Result<DataRef, Wrong> {
    let wrong = |fix: &str| Wrong::new(format!("{} does not name a model", quoted(word)), fix);
    let model: DataRef = word
        .parse()
        .map_err(|_| wrong("as in `mnist-mlp@3`, `mnist-mlp:best` or `lab/mnist-mlp`"))?;
    match &model.party {
        Some(party) if party.as_str() == EACH => Err(wrong("all parties start from one model")),
        _ => Ok(model),
    }
}

/// Who takes part in a round, how many, and in how many tiers.
fn select(
    section: &Section<'_>,
    most: u32,
    mistakes: &mut Mistakes,
) -> (How, Option<Spanned<u32>>, Option<u32>) {
    let read = |word: &str| match word {
        "all" => Ok(How::All),
        "random" => Ok(How::Random),
        "tiers" => Ok(How::Tiers),
        _ => Err(unknown(word, "a way to select", &["all", "random", "tiers"])),
    };
    let how = match section.get("select") {
        None => Some(How::All),
        Some(_) => section.read("select", mistakes, read).map(Spanned::into_inner),
    };
    let count = section.whole("select_count", 1, most, mistakes);
    let tiers = section.whole("tiers", 1, MAX_TIERS, mistakes);
    let idle = |key: &str, mistakes: &mut Mistakes, choices: &str| {
        if section.get(key).is_some() {
            let message = format!("`{key}` goes with {choices}");
            mistakes.add(section.at(key), message, "write that, or leave it out");
        }
    };
    match how {
        Some(How::All) => {
            let choices = "`select = \"random\"` or `select = \"tiers\"`";
            idle("select_count", mistakes, choices);
            idle("tiers", mistakes, "`select = \"tiers\"`");
        }
        Some(How::Random) => {
            section.need("select_count", mistakes);
            idle("tiers", mistakes, "`select = \"tiers\"`");
        }
        Some(How::Tiers) => section.need("select_count", mistakes),
        None => {}
    }
    (how.unwrap_or(How::All), count, tiers.map(Spanned::into_inner))
}

fn read_privacy(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Privacy> {
    section.need("epsilon", mistakes);
    let at = section.read("where", mistakes, |word| match word {
        "party" => Ok(NoiseAt::Party),
        "aggregator" => Ok(NoiseAt::Aggregator),
        _ => Err(unknown(word, "a place to add noise", &["party", "aggregator"])),
    });
    let epsilon = section.real("epsilon", is_positive, mistakes);
    let mut or = |key: &str, default: f64, fits: fn(f64) -> bool| {
        section.real(key, fits, mistakes).or(Real::new(default)).unwrap_or_default()
    };
    let delta = or("delta", 1e-5, |n| n > 0.0 && n < 1.0);
    let noise = or("noise", 1.0, is_positive);
    let clip = or("clip", 1.0, is_positive);
    // Unless somebody trusts the aggregator, nobody has to.
    let at = at.map_or(NoiseAt::Party, Spanned::into_inner);
    Some(Privacy { epsilon: epsilon?, delta, noise, clip, at })
}

impl FederatedFile {
    /// Says what does not go together with so many parties.
    fn check_counts(&self, parties: usize, mistakes: &mut Mistakes) {
        let all = match parties {
            1 => "there is 1 party".to_owned(),
            _ => format!("there are {parties} parties"),
        };
        let counts = [
            ("min_parties", &self.min_parties, "waits for"),
            ("select_count", &self.select_count, "selects"),
            ("buffer", &self.buffer, "collects updates of"),
        ];
        for (key, written, does) in counts {
            if let Some(count) = written
                && *count.get_ref() as usize > parties
            {
                let message = format!("`{key}` {does} {}, and {all}", count.get_ref());
                mistakes.add(count.span(), message, format!("at most {parties}"));
            }
        }
        if let (Some(least), Some(count)) = (&self.min_parties, &self.select_count)
            && least.get_ref() > count.get_ref()
        {
            let message = "`min_parties` is more than `select_count`: no round would count";
            mistakes.add(least.span(), message, format!("at most {}", count.get_ref()));
        }
    }

    /// Those of `known` who take part, in the order of the file. Says which names are nobody's.
    pub(super) fn participants(&self, known: &[Name], mistakes: &mut Mistakes) -> Vec<Name> {
        let named: Vec<Name> = match self.parties.get_ref() {
            Parties::Each if known.len() > MAX_PARTICIPANTS => {
                let message = format!("the mesh has {} parties, too many for one job", known.len());
                let fix = format!("name those who take part: at most {MAX_PARTICIPANTS}");
                mistakes.add(self.parties.span(), message, fix);
                return Vec::new();
            }
            Parties::Each => known.to_vec(),
            Parties::Named(named) => {
                named.iter().for_each(|party| check_party(party, known, mistakes));
                named.iter().map(|party| party.get_ref().clone()).collect()
            }
        };
        for party in &self.aggregators {
            check_party(party, known, mistakes);
        }
        if matches!(self.parties.get_ref(), Parties::Each) {
            self.check_counts(named.len(), mistakes);
        }
        named
    }

    /// The model to start from, as written.
    pub(super) fn start(&self) -> Option<&Spanned<DataRef>> {
        self.start.as_ref()
    }

    /// As it stands in the log, for so many parties. `own` is the party that submits it.
    pub(super) fn settle(
        &self,
        parties: usize,
        own: Option<Name>,
        start: Option<VersionId>,
    ) -> Federated {
        let parties = u32::try_from(parties).unwrap_or(u32::MAX);
        let count = self.select_count.as_ref().map_or(parties, |count| *count.get_ref());
        let mut strategy = self.strategy.clone();
        if let Strategy::FedBuff { buffer, .. } = &mut strategy {
            let written = self.buffer.as_ref().map(|buffer| *buffer.get_ref());
            *buffer = written.unwrap_or_else(|| DEFAULT_BUFFER.min(parties.max(1)));
        }
        let least = self.min_parties.as_ref().map(|least| *least.get_ref());
        let aggregators: Vec<Name> =
            self.aggregators.iter().map(|party| party.get_ref().clone()).collect();
        Federated {
            rounds: self.rounds,
            strategy,
            min_parties: least.unwrap_or_else(|| parties.div_ceil(2).min(count)),
            deadline_ms: self.deadline_ms,
            aggregators: match aggregators.is_empty() {
                true => own.into_iter().collect(),
                false => aggregators,
            },
            wire: self.wire,
            select: match self.select {
                How::All => Select::All,
                How::Random => Select::Random { count },
                How::Tiers => {
                    let tiers = self.tiers.unwrap_or_else(|| DEFAULT_TIERS.min(parties.max(1)));
                    Select::Tiers { count, tiers }
                }
            },
            privacy: self.privacy.clone(),
            start,
            model: self.model.clone(),
        }
    }
}

fn check_party(party: &Spanned<Name>, known: &[Name], mistakes: &mut Mistakes) {
    if known.contains(party.get_ref()) {
        return;
    }
    let fix = match nearest(party.get_ref().as_str(), known.iter().map(Name::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "mesh party ls shows them all".to_owned(),
    };
    let message = format!("there is no party `{}` with a node", party.get_ref());
    mistakes.add(party.span(), message, fix);
}
