//! `job.toml`: what a person writes to have something run.
//!
//! ```text
//! text ──parse──► JobFile ──settle──► JobSpec
//!        │                  │
//!        │                  └─ asks a Lookup: versions of data, jobs, images; seals secrets; fills in parameters
//!        └─ all that can be told from the text alone: keys, values, contradictions
//! ```
//!
//! Whoever wrote a wrong file is shown the line, a caret and the fix ([`FileError`]), for all mistakes that one
//! look can tell. What keys there are is said in [`super::help`], once for this and for `mesh help job.toml`.
//!
//! | file | holds |
//! |---|---|
//! | `error.rs` | mistakes, and how they are shown |
//! | `nesting.rs` | a file too deep for the stack |
//! | `section.rs` | one section of the file: known keys, values with their places |
//! | `value.rs`, `gpus.rs`, `secret.rs` | words that stand for something |
//! | `parts.rs`, `groups.rs` | the sections, one reader each; `run` and `[[task]]` |
//! | `training.rs`, `strategy.rs` | `kind`, `[federated]` and `[privacy]` |
//! | `server.rs` | `[server]` |
//! | `fill.rs` | `{lr}` |
//! | `settle.rs` | from the file to the spec |
//!
//! A file can hold secrets: no error, and no `Debug` of what is here, shows one.

use std::collections::BTreeMap;
use std::fmt;

use toml::Spanned;
use toml::de::DeTable;
use zeroize::Zeroizing;

use super::spec::{Class, DEFAULT_PRIORITY, MAX_PRIORITY, Place, Retry};
use crate::state::data::DataRef;
use crate::state::name::Name;

mod error;
mod fill;
mod gpus;
mod groups;
mod nesting;
mod parts;
mod secret;
mod section;
mod server;
mod settle;
mod strategy;
#[cfg(test)]
mod tests;
mod training;
mod value;

pub use error::{FileError, MAX_MISTAKES, Mistake};
pub use secret::{MAX_SECRET_BYTES, SecretFrom, SecretValue};
pub use settle::{Given, Lookup, NotFound, SettleError};

use error::Mistakes;
use groups::GroupFile;
use parts::Kept;
use secret::Secret;
use section::Section;
use server::ServerFile;
use training::FederatedFile;

/// The largest file. What comes of it is at most [`super::spec::MAX_SPEC_BYTES`], but comments are free.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// A file that is right in itself. Whether what it names exists is for [`JobFile::settle`] to ask.
#[derive(Debug, Clone)]
pub struct JobFile {
    source: Source,
    name: Name,
    class: Class,
    priority: u8,
    after: Vec<Spanned<String>>,
    groups: Vec<GroupFile>,
    is_gang: bool,
    data: BTreeMap<Name, Spanned<DataRef>>,
    /// Paths, as all text here without parameters filled in.
    outputs: BTreeMap<Name, Spanned<String>>,
    code: Option<Spanned<String>>,
    checkpoint: Option<Kept>,
    grace_ms: u64,
    retry: Retry,
    time_limit_ms: Option<u64>,
    place: Place,
    env: BTreeMap<String, Spanned<String>>,
    secrets: BTreeMap<String, Spanned<Secret>>,
    params: BTreeMap<Name, String>,
    federated: Option<FederatedFile>,
    server: Option<ServerFile>,
}

/// The text, kept to point into. It can hold secrets.
#[derive(Clone)]
struct Source(Zeroizing<String>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} bytes)", self.0.len())
    }
}

impl JobFile {
    /// Reads a file, and says all that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let mut mistakes = Mistakes::default();
        let file = Self::read(text, &mut mistakes);
        mistakes.check(text)?;
        Ok(file.expect("a file that cannot be read has a mistake"))
    }

    /// `None` only if there is a mistake.
    fn read(text: &str, mistakes: &mut Mistakes) -> Option<Self> {
        if text.len() > MAX_FILE_BYTES {
            mistakes.add(0..0, "job.toml is larger than 1 MiB", "is this the right file?");
            return None;
        }
        if nesting::openings(text) > nesting::MAX_OPENINGS {
            let fix = "is this the right file?";
            mistakes.add(0..0, "job.toml has more brackets and dots than any job needs", fix);
            return None;
        }
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let (message, fix) = syntax(error.message());
                mistakes.add(error.span().unwrap_or_default(), message, fix);
                return None;
            }
        };
        let top = Section::top(table.get_ref(), mistakes);
        top.need("name", mistakes);
        let name = top.read("name", mistakes, section::name);
        let priority = top.whole("priority", 0, u32::from(MAX_PRIORITY), mistakes);
        let priority = priority.and_then(|priority| u8::try_from(priority.into_inner()).ok());
        let part = |key, mistakes: &mut Mistakes| top.section(key, key, mistakes);
        let place = parts::place(part("place", mistakes).as_ref(), mistakes);
        let kind = training::kind(&top, mistakes);
        let federated =
            training::federated(&top, kind, name.as_ref().map(Spanned::get_ref), mistakes);
        let server = server::server(&top, kind, name.as_ref().map(Spanned::get_ref), mistakes);
        let mut work = groups::work(&top, place.each, kind, mistakes);
        if let (Some(server), Some(group)) = (&server, work.groups.first_mut()) {
            group.count = server.workers;
        }
        let before = mistakes.count();
        let params = parts::params(part("params", mistakes).as_ref(), mistakes);
        let has_params = mistakes.count() == before;
        let env = parts::env(part("env", mistakes).as_ref(), mistakes);
        let secrets = parts::secrets(part("secrets", mistakes).as_ref(), &env, mistakes);
        let file = Self {
            source: Source(Zeroizing::new(text.to_owned())),
            class: parts::class(&top, mistakes),
            priority: priority.unwrap_or(DEFAULT_PRIORITY),
            after: parts::after(&top, mistakes),
            groups: work.groups,
            is_gang: work.is_gang,
            data: parts::data(part("data", mistakes).as_ref(), kind.is_federated(), mistakes),
            outputs: parts::outputs(part("output", mistakes).as_ref(), mistakes),
            code: work.code,
            checkpoint: parts::checkpoint(part("checkpoint", mistakes).as_ref(), mistakes),
            grace_ms: parts::grace_ms(part("preempt", mistakes).as_ref(), mistakes),
            retry: parts::retry(part("retry", mistakes).as_ref(), kind, mistakes),
            time_limit_ms: parts::time_limit_ms(part("limits", mistakes).as_ref(), mistakes),
            place,
            env,
            secrets,
            params,
            federated,
            server,
            name: name?.into_inner(),
        };
        if has_params {
            // With the values that the file gives: `--set` may break things yet, and is checked again.
            file.fill(&file.params, mistakes);
        }
        Some(file)
    }

    /// What the job is called.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The directory with its code, as written: beside the file where it is relative.
    pub fn code(&self) -> Option<&str> {
        self.code.as_ref().map(|code| code.get_ref().as_str())
    }

    /// The parameters, with the values that the file gives.
    pub fn params(&self) -> &BTreeMap<Name, String> {
        &self.params
    }

    /// Those of `known`, the parties that have a node, who take part in a federated job: none in any other.
    pub fn participants(&self, known: &[Name]) -> Result<Vec<Name>, FileError> {
        let Some(federated) = &self.federated else { return Ok(Vec::new()) };
        let mut mistakes = Mistakes::default();
        let named = federated.participants(known, &mut mistakes);
        mistakes.check(&self.source.0)?;
        Ok(named)
    }

    /// Whether it trains, and so runs on the nodes of several parties.
    pub fn is_federated(&self) -> bool {
        self.federated.is_some()
    }

    /// Secrets whose values are not in the file, by variable: whoever submits it finds them and hands them to
    /// [`JobFile::settle`]. Of a file, the newline at its end is no part of the secret.
    pub fn secrets_wanted(&self) -> impl Iterator<Item = (&str, &SecretFrom)> {
        self.secrets.iter().filter_map(|(variable, secret)| match secret.get_ref() {
            Secret::From(from) => Some((variable.as_str(), from)),
            Secret::Literal(_) => None,
        })
    }
}

/// What to say where the text is not even TOML. `message` is the parser's, and quotes nothing of the file.
fn syntax(message: &str) -> (String, &'static str) {
    let is = |word: &str| message.contains(word);
    if is("duplicate key") {
        return ("this key stands twice".into(), "remove one of them");
    }
    if is("recurs") {
        return ("this is nested too deeply".into(), "no job needs that");
    }
    let fix = if is("must be quoted") { "put the value in quotes" } else { "" };
    (format!("job.toml is not TOML: {message}"), fix)
}
