//! The parts of a file, one reader each.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::DeValue;

use super::super::spec::{
    Class, DEFAULT_GRACE_MS, MAX_SPEC_BYTES, OWN_BINARY, Place, Range, Resources, Retry,
    is_image_name, is_variable,
};
use super::error::{Mistakes, Wrong, quoted};
use super::fill::is_parameter;
use super::gpus::gpus;
use super::secret::Secret;
use super::section::{Section, Value, name, nearest, scalar, unknown, within};
use super::training::Kind;
use super::value::{self, cores, cpus, duration_within, memory, some_size};
use crate::data::catalogue::EACH;
use crate::state::data::DataRef;
use crate::state::name::Name;

/// The default of `[checkpoint] every`: seldom enough to cost nothing, and little is lost.
const DEFAULT_CHECKPOINT_MS: u64 = 60_000;
const SECOND: (u64, &str) = (1000, "1s");
const DAY: (u64, &str) = (24 * 3600 * 1000, "1d");
const YEAR: (u64, &str) = (365 * 24 * 3600 * 1000, "365d");
const MAX_ATTEMPTS: u32 = 100;
/// The default of `[retry] attempts` in a job that trains.
const FEDERATED_ATTEMPTS: u32 = 3;
/// The models that the trainer in this program knows.
const TRAINERS: [&str; 3] = ["logistic", "mlp", "cnn"];
/// What nodes report, as Rust names it.
const ARCHES: [&str; 8] =
    ["x86_64", "aarch64", "riscv64", "arm", "x86", "powerpc64", "s390x", "loongarch64"];

/// A directory that is kept.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) dir: Spanned<String>,
    pub(super) every_ms: u64,
}

/// Ports, by name, with where each number stands.
pub(super) type Ports = BTreeMap<Name, Spanned<Option<u16>>>;

pub(super) fn class(top: &Section<'_>, mistakes: &mut Mistakes) -> Class {
    let read = |word: &str| match word {
        "trial" => Ok(Class::Trial),
        "best-effort" => Ok(Class::BestEffort),
        _ => {
            let near = nearest(word, ["trial", "best-effort"].into_iter());
            let fix = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => "there are `trial` and `best-effort`".to_owned(),
            };
            Err(Wrong::new(format!("{} is not a class", quoted(word)), fix))
        }
    };
    top.read("class", mistakes, read).map(Spanned::into_inner).unwrap_or_default()
}

/// Jobs by name or id. Whether they exist is for the state to say.
pub(super) fn after(top: &Section<'_>, mistakes: &mut Mistakes) -> Vec<Spanned<String>> {
    let mut jobs: Vec<Spanned<String>> = Vec::new();
    for word in top.list("after", mistakes) {
        let Some(job) = mistakes.take(word.span(), name(word.get_ref())) else { continue };
        let job = job.get_ref().as_str();
        if jobs.iter().any(|before| before.get_ref() == job) {
            mistakes.add(word.span(), format!("{} stands here twice", quoted(job)), "remove one");
        }
        jobs.push(Spanned::new(word.span(), job.to_owned()));
    }
    jobs
}

/// What a task needs, where `base` holds for what is left out.
pub(super) fn resources(
    section: Option<&Section<'_>>,
    base: &Resources,
    mistakes: &mut Mistakes,
) -> Resources {
    let mut needs = base.clone();
    let Some(section) = section else { return needs };
    if let Some(range) = cpu_range(section, mistakes) {
        needs.cpu_milli = Some(range);
    }
    if let Some(range) = section.read("memory", mistakes, memory) {
        needs.memory_bytes = Some(range.into_inner());
    }
    if section.get("gpus").is_some() {
        needs.gpus = gpus(section, "gpus", mistakes);
    }
    if let Some(bytes) = section.read("disk", mistakes, some_size) {
        needs.disk_bytes = bytes.into_inner();
    }
    if let Some(bytes) = section.read("shm", mistakes, some_size) {
        needs.shm_bytes = *bytes.get_ref();
        if needs.memory_bytes.is_some_and(|memory| needs.shm_bytes > memory.max) {
            let message = "`shm` is more than `memory`, and counts as a part of it";
            mistakes.add(bytes.span(), message, "ask for more memory or less shm");
        }
    }
    needs
}

fn cpu_range(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Range> {
    let value = section.get("cpus")?;
    let range = match value.get_ref() {
        DeValue::Integer(number) => {
            // What does not fit is too much, or too little.
            let is_negative = number.as_str().starts_with('-');
            let beyond = if is_negative { f64::NEG_INFINITY } else { f64::INFINITY };
            let number = within(number, 0, u32::MAX).map_or(beyond, f64::from);
            cores(number).map(Range::just)
        }
        DeValue::Float(number) => {
            cores(number.as_str().parse().unwrap_or(f64::NAN)).map(Range::just)
        }
        DeValue::String(text) => cpus(text),
        _ => {
            section.wrong_kind("cpus", value, mistakes);
            return None;
        }
    };
    mistakes.take(value.span(), range).map(Spanned::into_inner)
}

pub(super) fn ports(section: Option<&Section<'_>>, mistakes: &mut Mistakes) -> Ports {
    let mut ports = Ports::new();
    let mut taken = BTreeSet::new();
    for (name, value) in section.map_or_else(Vec::new, |section| section.named(mistakes)) {
        let port = match value.get_ref() {
            DeValue::String(text) if text == "auto" => Ok(None),
            DeValue::Integer(number) => within(number, 1, u32::from(u16::MAX))
                .and_then(|port| u16::try_from(port).ok())
                .map(Some)
                .ok_or_else(|| Wrong::new("this is not a port", "a port is from 1 to 65535")),
            _ => {
                let fix = "as in `http = 8080` or `http = \"auto\"`";
                Err(Wrong::new("this is not a port", fix))
            }
        };
        let Some(port) = mistakes.take(value.span(), port) else { continue };
        if let Some(number) = port.get_ref()
            && !taken.insert(*number)
        {
            let message = format!("port {number} has two names");
            mistakes.add(value.span(), message, "each port has a number of its own");
        }
        ports.insert(name, port);
    }
    ports
}

/// Datasets, by name. With `each`, also every party's own.
pub(super) fn data(
    section: Option<&Section<'_>>,
    each: bool,
    mistakes: &mut Mistakes,
) -> BTreeMap<Name, Spanned<DataRef>> {
    let mut data = BTreeMap::new();
    let Some(section) = section else { return data };
    for (name, value) in section.named(mistakes) {
        let Some(text) = value.get_ref().as_str() else {
            section.wrong_kind(name.as_str(), value, mistakes);
            continue;
        };
        if let Some(found) = mistakes.take(value.span(), dataset(text, each)) {
            data.insert(name, found);
        }
    }
    data
}

fn dataset(word: &str, each: bool) -> Result<DataRef, Wrong> {
    let data: DataRef = word.parse().map_err(|_| {
        let message = format!("{} does not name a dataset", quoted(word));
        let fix = if word.starts_with(['.', '/', '~']) {
            "push it first with mesh data push, and name it here".to_owned()
        } else {
            "as in `mnist`, `mnist@3`, `mnist:clean` or `clinic-a/xray`".to_owned()
        };
        Wrong::new(message, fix)
    })?;
    if !each && data.party.as_ref().is_some_and(|party| party.as_str() == EACH) {
        let message = "`each/…` is every party's own, for jobs of `kind = \"federated\"`";
        return Err(Wrong::new(message, "name one party's dataset"));
    }
    Ok(data)
}

/// Paths, by name. They are checked once parameters are filled in.
pub(super) fn outputs(
    section: Option<&Section<'_>>,
    mistakes: &mut Mistakes,
) -> BTreeMap<Name, Spanned<String>> {
    let mut outputs = BTreeMap::new();
    let Some(section) = section else { return outputs };
    for (name, value) in section.named(mistakes) {
        match value.get_ref().as_str() {
            Some(path) => drop(outputs.insert(name, Spanned::new(value.span(), path.to_owned()))),
            None => section.wrong_kind(name.as_str(), value, mistakes),
        }
    }
    outputs
}

pub(super) fn checkpoint(section: Option<&Section<'_>>, mistakes: &mut Mistakes) -> Option<Kept> {
    let section = section?;
    let read = |word: &str| duration_within(word, SECOND, DAY);
    let every = section.read("every", mistakes, read);
    let every_ms = every.map_or(DEFAULT_CHECKPOINT_MS, Spanned::into_inner);
    section.need("dir", mistakes);
    let dir = section.text("dir", mistakes)?;
    Some(Kept { dir: Spanned::new(dir.span(), (*dir.get_ref()).to_owned()), every_ms })
}

pub(super) fn grace_ms(section: Option<&Section<'_>>, mistakes: &mut Mistakes) -> u64 {
    let read = |word: &str| duration_within(word, (0, "0s"), DAY);
    let grace = section.and_then(|section| section.read("grace", mistakes, read));
    grace.map_or(DEFAULT_GRACE_MS, Spanned::into_inner)
}

pub(super) fn time_limit_ms(section: Option<&Section<'_>>, mistakes: &mut Mistakes) -> Option<u64> {
    let read = |word: &str| duration_within(word, SECOND, YEAR);
    section?.read("time", mistakes, read).map(Spanned::into_inner)
}

pub(super) fn retry(section: Option<&Section<'_>>, kind: Kind, mistakes: &mut Mistakes) -> Retry {
    let mut retry = Retry::default();
    if matches!(kind, Kind::Federated | Kind::Server) {
        // The others go on meanwhile, and one that comes back goes on with them.
        retry.attempts = FEDERATED_ATTEMPTS;
    }
    let Some(section) = section else { return retry };
    if let Some(attempts) = section.whole("attempts", 1, MAX_ATTEMPTS, mistakes) {
        retry.attempts = attempts.into_inner();
    }
    for word in section.list("on", mistakes) {
        let on = mistakes.take(word.span(), value::retry_on(word.get_ref()));
        retry.on.extend(on.map(Spanned::into_inner));
    }
    let read = |word: &str| duration_within(word, (0, "0s"), DAY);
    if let Some(backoff) = section.read("backoff", mistakes, read) {
        retry.backoff_ms = backoff.into_inner();
    }
    retry
}

pub(super) fn place(section: Option<&Section<'_>>, mistakes: &mut Mistakes) -> Place {
    let mut place = Place::default();
    let Some(section) = section else { return place };
    if let Some(labels) = section.section("labels", "place.labels", mistakes) {
        for (name, value) in labels.named(mistakes) {
            let text = scalar(value.get_ref());
            match text.as_deref().map(str::parse) {
                Some(Ok(label)) => drop(place.labels.insert(name, label)),
                Some(Err(_)) => {
                    let rule =
                        "1 to 63 letters, digits and . _ : / + -, the first a letter or digit";
                    mistakes.add(value.span(), "this is not a label's value", rule);
                }
                None => labels.wrong_kind(name.as_str(), value, mistakes),
            }
        }
    }
    for word in section.list("nodes", mistakes) {
        let node = mistakes.take(word.span(), name(word.get_ref()));
        place.nodes.extend(node.map(Spanned::into_inner));
    }
    place.arch = section.read("arch", mistakes, arch).map(Spanned::into_inner);
    place.spread = section.read("spread", mistakes, name).map(Spanned::into_inner);
    place.pack = section.flag("pack", mistakes).is_some_and(Spanned::into_inner);
    place.party = section.read("party", mistakes, name).map(Spanned::into_inner);
    place.each = section.flag("each", mistakes).is_some_and(Spanned::into_inner);
    let is_spread = place.spread.is_some();
    if place.pack && is_spread {
        let message = "`pack` and `spread` want the opposite";
        mistakes.add(section.at("pack"), message, "leave one of them out");
    }
    if place.each && (place.pack || is_spread) {
        let other = if place.pack { "pack" } else { "spread" };
        let message = format!("`each` puts one task on each node: nothing is left to `{other}`");
        mistakes.add(section.at(other), message, "leave one of them out");
    }
    place
}

fn arch(word: &str) -> Result<String, Wrong> {
    let word = match word {
        // As Docker calls them.
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        word => word,
    };
    if ARCHES.contains(&word) {
        return Ok(word.to_owned());
    }
    let fix = match nearest(word, ARCHES.into_iter()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", ARCHES.join(", ")),
    };
    Err(Wrong::new(format!("{} is not an architecture", quoted(word)), fix))
}

/// Variables, by name. Parameters are not filled in yet.
pub(super) fn env(
    section: Option<&Section<'_>>,
    mistakes: &mut Mistakes,
) -> BTreeMap<String, Spanned<String>> {
    let mut env = BTreeMap::new();
    let Some(section) = section else { return env };
    for (key, value) in section.entries(mistakes) {
        let Some(key) = mistakes.take(key.span(), variable(key.get_ref())) else { continue };
        match scalar(value.get_ref()) {
            Some(text) => drop(env.insert(key.into_inner(), Spanned::new(value.span(), text))),
            None => section.wrong_kind(key.get_ref(), value, mistakes),
        }
    }
    env
}

/// Secrets, by the name of their variable. No message here quotes a value.
pub(super) fn secrets(
    section: Option<&Section<'_>>,
    env: &BTreeMap<String, Spanned<String>>,
    mistakes: &mut Mistakes,
) -> BTreeMap<String, Spanned<Secret>> {
    let mut secrets = BTreeMap::new();
    let Some(section) = section else { return secrets };
    for (key, value) in section.entries(mistakes) {
        let Some(key) = mistakes.take(key.span(), variable(key.get_ref())) else { continue };
        if env.contains_key(key.get_ref()) {
            let message = format!("{} is in [env] and in [secrets]", quoted(key.get_ref()));
            mistakes.add(key.span(), message, "leave it out of one of them");
        }
        let Some(text) = value.get_ref().as_str() else {
            section.wrong_kind(key.get_ref(), value, mistakes);
            continue;
        };
        if let Some(secret) = mistakes.take(value.span(), Secret::read(text)) {
            secrets.insert(key.into_inner(), secret);
        }
    }
    secrets
}

fn variable(word: &str) -> Result<String, Wrong> {
    if !is_variable(word) {
        let message = format!("{} is not the name of a variable", quoted(word));
        return Err(Wrong::new(message, "letters, digits and _, and no digit first"));
    }
    if word.starts_with("MESH_") {
        let message = format!("{} is mesh's own", quoted(word));
        return Err(Wrong::new(message, "names that begin with MESH_ are set by mesh"));
    }
    Ok(word.to_owned())
}

pub(super) fn params(
    section: Option<&Section<'_>>,
    mistakes: &mut Mistakes,
) -> BTreeMap<Name, String> {
    let mut params = BTreeMap::new();
    let Some(section) = section else { return params };
    for (key, value) in section.entries(mistakes) {
        let Some(key) = mistakes.take(key.span(), parameter(key.get_ref())) else { continue };
        match scalar(value.get_ref()) {
            Some(text) if text.len() > MAX_SPEC_BYTES || text.contains('\0') => {
                let message = "this is no value for a parameter";
                mistakes.add(value.span(), message, "16 KiB at most, and no NUL");
            }
            Some(text) => drop(params.insert(key.into_inner(), text)),
            None => section.wrong_kind(key.get_ref().as_str(), value, mistakes),
        }
    }
    params
}

fn parameter(word: &str) -> Result<Name, Wrong> {
    let rule = "a parameter has a-z 0-9 _ - and begins with a letter";
    let wrong =
        |fix: String| Wrong::new(format!("{} is not the name of a parameter", quoted(word)), fix);
    let lower = word.to_ascii_lowercase();
    let likely = lower.replace(['.', ' '], "_");
    match word.parse() {
        Ok(name) if is_parameter(word) => Ok(name),
        _ if is_parameter(&likely) => Err(wrong(format!("did you mean `{likely}`?"))),
        _ => Err(wrong(rule.to_owned())),
    }
}

/// A program and its arguments, or a line for the shell. Parameters are not filled in yet.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) is_shell: bool,
    pub(super) words: Vec<Spanned<String>>,
}

pub(super) fn command(
    of: &Section<'_>,
    key: &str,
    value: &Value<'_>,
    mistakes: &mut Mistakes,
) -> Option<Command> {
    let is_shell = value.get_ref().as_str().is_some();
    let items = match value.get_ref() {
        DeValue::String(_) => std::slice::from_ref(value),
        DeValue::Array(items) => &items[..],
        _ => {
            of.wrong_kind(key, value, mistakes);
            return None;
        }
    };
    let mut words = Vec::new();
    for item in items {
        match scalar(item.get_ref()) {
            Some(text) if text.contains('\0') => {
                mistakes.add(item.span(), "a command cannot have a NUL in it", "take it out");
            }
            Some(text) => words.push(Spanned::new(item.span(), text)),
            None => of.wrong_kind(key, item, mistakes),
        }
    }
    if items.is_empty() || words.first().is_some_and(|word| word.get_ref().trim().is_empty()) {
        mistakes.add(value.span(), "there is nothing to run", "as in `python train.py`");
        return None;
    }
    (words.len() == items.len()).then_some(Command { is_shell, words })
}

/// The command that trains a model by the trainer in this program.
pub(super) fn trainer(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Command> {
    let model = section.read("trainer", mistakes, |word| match TRAINERS.contains(&word) {
        true => Ok(word.to_owned()),
        false => Err(unknown(word, "a model of the built-in trainer", &TRAINERS)),
    })?;
    let own = |word: &str| Spanned::new(model.span(), word.to_owned());
    let words = vec![own(OWN_BINARY), own("train"), own(model.get_ref())];
    Some(Command { is_shell: false, words })
}

pub(super) fn image(word: &str) -> Result<String, Wrong> {
    // The log takes any name that does no harm; two slashes make it an address.
    let is_name = |word: &str| is_image_name(word) && !word.contains("//");
    if is_name(word) {
        return Ok(word.to_owned());
    }
    let plain = word.trim().to_ascii_lowercase();
    let fix = match plain.strip_prefix("docker://").unwrap_or(&plain) {
        plain if is_name(plain) => format!("did you mean `{plain}`?"),
        _ => "as in `python:3.12` or `lab/trainer@sha256:…`".to_owned(),
    };
    Err(Wrong::new(format!("{} is not the name of an image", quoted(word)), fix))
}

pub(super) fn code(word: &str) -> Result<String, Wrong> {
    if word.trim().is_empty() || word.contains('\0') {
        return Err(Wrong::new("this is not a directory", "as in `code = \".\"`"));
    }
    Ok(word.to_owned())
}
