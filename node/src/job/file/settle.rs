//! From a file to what stands in the log: parameters filled in, names looked up, secrets sealed.

use std::collections::BTreeMap;

use mesh_consensus::id::{JobId, VersionId};
use toml::Spanned;

use super::super::spec::{
    self, Checkpoint, Group, Image, JobSpec, MAX_SPEC_BYTES, Mount, Output, SealedSecret,
    is_beneath,
};
use super::super::training::Training;
use super::error::{FileError, Mistakes, quoted};
use super::fill::{Filler, Unfilled};
use super::groups::GroupFile;
use super::secret::{Secret, SecretValue};
use super::section::nearest;
use super::{JobFile, Source};
use crate::data::catalogue::EACH;
use crate::state::data::DataRef;
use crate::state::name::Name;

const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// What is asked while a file is settled. A node answers from its state.
pub trait Lookup {
    /// The version that is meant, if whoever submits may read it.
    fn version(&self, data: &DataRef) -> Result<Mount, NotFound>;
    /// The job that is meant by a name or an id: of several, the latest.
    fn job(&self, job: &str) -> Result<JobId, NotFound>;
    /// The image that is meant: one that was pushed into the mesh, or else one that Docker may know.
    fn image(&self, image: &str) -> Image;
    /// Seals a secret's value for the party's nodes. The error is for people, and says nothing of the value.
    fn seal(&self, variable: &str, value: &[u8]) -> Result<SealedSecret, String>;
    /// The parties that have a node, by name.
    fn parties(&self) -> Vec<Name>;
    /// What the party is called that submits.
    fn own_party(&self) -> Option<Name>;
}

/// What a file names is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFound {
    /// Said in one line: "there is no dataset `mnits`".
    pub message: String,
    /// What would be right; empty if nobody knows.
    pub fix: String,
}

/// What comes with a file when it is submitted.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Values of parameters: `--set lr=0.1`.
    pub set: BTreeMap<String, String>,
    /// Values of the secrets that [`JobFile::secrets_wanted`] names, by variable.
    pub secrets: BTreeMap<String, SecretValue>,
    /// The code, once it was pushed.
    pub code: Option<VersionId>,
    /// Who submits it.
    pub user: String,
}

/// Why a file does not become a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// Something in the file, with its place.
    #[error(transparent)]
    File(#[from] FileError),
    /// A parameter was given that the file does not have.
    #[error("job.toml has no parameter {shown}")]
    Parameter {
        /// It, in backquotes.
        shown: String,
        /// What would be right.
        fix: String,
    },
    /// A parameter was given a value that it cannot have.
    #[error("the parameter `{name}` cannot have this value")]
    Value {
        /// Which.
        name: String,
    },
    /// A secret's value is missing, or cannot be used. The value is not told.
    #[error("the secret `{variable}` cannot be used: {flaw}")]
    Secret {
        /// Which.
        variable: String,
        /// Why not.
        flaw: String,
    },
    /// The file has code, and it was not pushed.
    #[error("the code of the job was not pushed")]
    Code,
    /// It does not fit into the log.
    #[error("the job takes {} KiB, and {} KiB is the most", bytes.div_ceil(1024), MAX_SPEC_BYTES >> 10)]
    TooLarge {
        /// How much it takes.
        bytes: usize,
    },
    /// Something else that no job may have.
    #[error("this cannot be a job: {flaw}")]
    Flaw {
        /// What.
        flaw: &'static str,
    },
}

impl SettleError {
    /// What would be right, in one line; empty if nobody knows. A [`FileError`] says it beside each mistake.
    pub fn fix(&self) -> &str {
        match self {
            Self::File(_) | Self::Flaw { .. } => "",
            Self::Parameter { fix, .. } => fix,
            Self::Value { .. } => "16 KiB at most, and no NUL",
            Self::Secret { .. } => "see [secrets] in mesh help job.toml",
            Self::Code => "push the directory that `code` names, and submit again",
            Self::TooLarge { .. } => {
                "put long text into a file beside the code, and leave it out of job.toml"
            }
        }
    }
}

/// The texts of a file once its parameters are filled in.
pub(super) struct Filled {
    commands: Vec<Vec<String>>,
    env: BTreeMap<String, String>,
    outputs: BTreeMap<Name, Output>,
    checkpoint: Option<Checkpoint>,
}

impl JobFile {
    /// Makes it a job.
    pub fn settle(self, given: &Given, lookup: &impl Lookup) -> Result<JobSpec, SettleError> {
        let mut mistakes = Mistakes::default();
        let params = self.with(&given.set)?;
        let filled = self.fill(&params, &mut mistakes);
        let parties = self.federated.as_ref().map(|federated| {
            let known = lookup.parties();
            federated.participants(&known, &mut mistakes)
        });
        let parties = parties.unwrap_or_default();
        let own = lookup.own_party();
        let takes_part = own.as_ref().is_some_and(|own| parties.contains(own));
        let data = self.mounts(takes_part, lookup, &mut mistakes);
        let training = self.trains(parties.len(), own, lookup, &mut mistakes);
        let after = self.jobs(lookup, &mut mistakes);
        let Source(text) = &self.source;
        mistakes.check(text)?;
        let secrets = self.sealed(&given.secrets, lookup)?;
        if self.code.is_some() && given.code.is_none() {
            return Err(SettleError::Code);
        }
        let groups = self.groups.into_iter().zip(filled.commands);
        let groups = groups.map(|(group, argv)| group.settle(argv, lookup)).collect();
        let groups = match &training {
            Some(Training::Federated(_)) => for_each(&parties, groups),
            _ => groups,
        };
        let spec = JobSpec {
            name: self.name,
            class: self.class,
            priority: self.priority,
            after,
            groups,
            gang: self.is_gang,
            data,
            outputs: filled.outputs,
            code: self.code.and(given.code),
            checkpoint: filled.checkpoint,
            grace_ms: self.grace_ms,
            retry: self.retry,
            time_limit_ms: self.time_limit_ms,
            place: self.place,
            env: filled.env,
            secrets,
            params,
            user: given.user.clone(),
            training,
        };
        let bytes = postcard::to_stdvec(&spec).map_or(usize::MAX, |bytes| bytes.len());
        if bytes > MAX_SPEC_BYTES {
            return Err(SettleError::TooLarge { bytes });
        }
        match spec.flaw() {
            Some(flaw) => Err(SettleError::Flaw { flaw }),
            None => Ok(spec),
        }
    }

    /// The parameters, with what was given instead.
    fn with(&self, set: &BTreeMap<String, String>) -> Result<BTreeMap<Name, String>, SettleError> {
        let mut params = self.params.clone();
        for (name, value) in set {
            let known = match name.parse::<Name>() {
                Ok(name) => params.get_mut(&name),
                Err(_) => None,
            };
            let Some(known) = known else { return Err(self.no_parameter(name)) };
            if value.len() > MAX_SPEC_BYTES || value.contains('\0') {
                return Err(SettleError::Value { name: name.clone() });
            }
            known.clone_from(value);
        }
        Ok(params)
    }

    fn no_parameter(&self, name: &str) -> SettleError {
        let names: Vec<&str> = self.params.keys().map(Name::as_str).collect();
        let fix = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => "write it into [params] first".to_owned(),
            None => format!("there are {}", names.join(", ")),
        };
        SettleError::Parameter { shown: quoted(name), fix }
    }

    /// Fills in parameters, and checks what comes of it.
    pub(super) fn fill(&self, params: &BTreeMap<Name, String>, mistakes: &mut Mistakes) -> Filled {
        let mut filling = Filling {
            text: &self.source.0,
            params,
            filler: Filler::new(params, MAX_SPEC_BYTES),
            is_too_long: false,
            mistakes,
        };
        let mut commands = Vec::new();
        for group in &self.groups {
            let shell = SHELL.into_iter().filter(|_| group.command.is_shell).map(str::to_owned);
            let mut argv: Vec<String> = shell.collect();
            argv.extend(group.command.words.iter().map(|word| filling.text(word)));
            let first = if group.command.is_shell { argv.last() } else { argv.first() };
            if first.is_none_or(|first| first.trim().is_empty()) {
                let place = group.command.words.first().map_or(0..0, Spanned::span);
                let fix = "a command begins with a program";
                filling.mistakes.add(place, "there is nothing to run", fix);
            }
            commands.push(argv);
        }
        let mut env = BTreeMap::new();
        for (variable, value) in &self.env {
            let text = filling.text(value);
            if text.contains('\0') {
                let message = "a variable's value cannot have a NUL in it";
                filling.mistakes.add(value.span(), message, "take it out");
            }
            env.insert(variable.clone(), text);
        }
        let mut outputs: BTreeMap<Name, Output> = BTreeMap::new();
        for (name, value) in &self.outputs {
            let path = filling.path(value, "an output");
            let other = outputs.iter().find(|(_, other)| overlap(&other.path, &path));
            if let Some((other, _)) = other {
                let message = format!("the outputs `{other}` and `{name}` have the same files");
                filling.mistakes.add(value.span(), message, "each has a path of its own");
            }
            outputs.insert(name.clone(), Output { path });
        }
        let checkpoint = self.checkpoint.as_ref().map(|kept| Checkpoint {
            path: filling.path(&kept.dir, "a checkpoint"),
            every_ms: kept.every_ms,
        });
        Filled { commands, env, outputs, checkpoint }
    }

    /// Data. `takes_part` says whether the party that submits trains itself.
    fn mounts(
        &self,
        takes_part: bool,
        lookup: &impl Lookup,
        mistakes: &mut Mistakes,
    ) -> BTreeMap<Name, Mount> {
        let mut mounts = BTreeMap::new();
        for (name, data) in &self.data {
            let found = match &data.get_ref().party {
                Some(party) if party.as_str() == EACH => {
                    each_own(data.get_ref(), takes_part, lookup)
                }
                _ => lookup.version(data.get_ref()),
            };
            match found {
                Ok(mount) => drop(mounts.insert(name.clone(), mount)),
                Err(NotFound { message, fix }) => mistakes.add(data.span(), message, fix),
            }
        }
        mounts
    }

    /// How it trains, with so many parties.
    fn trains(
        &self,
        parties: usize,
        own: Option<Name>,
        lookup: &impl Lookup,
        mistakes: &mut Mistakes,
    ) -> Option<Training> {
        let written = match (&self.federated, &self.server) {
            (Some(federated), _) => federated.start(),
            (None, Some(server)) => server.start.as_ref(),
            (None, None) => return None,
        };
        let start = written.and_then(|start| match lookup.version(start.get_ref()) {
            Ok(mount) => mount.version(),
            Err(NotFound { message, fix }) => {
                mistakes.add(start.span(), message, fix);
                None
            }
        });
        match (&self.federated, &self.server) {
            (Some(federated), _) => {
                Some(Training::Federated(federated.settle(parties, own, start)))
            }
            (None, Some(server)) => Some(Training::Server(server.settle(start))),
            (None, None) => None,
        }
    }

    fn jobs(&self, lookup: &impl Lookup, mistakes: &mut Mistakes) -> Vec<JobId> {
        let mut jobs = Vec::new();
        for job in &self.after {
            match lookup.job(job.get_ref()) {
                // By name and by id it may be the same.
                Ok(id) if jobs.contains(&id) => {}
                Ok(id) => jobs.push(id),
                Err(NotFound { message, fix }) => mistakes.add(job.span(), message, fix),
            }
        }
        jobs
    }

    fn sealed(
        &self,
        given: &BTreeMap<String, SecretValue>,
        lookup: &impl Lookup,
    ) -> Result<BTreeMap<String, SealedSecret>, SettleError> {
        let mut sealed = BTreeMap::new();
        for (variable, secret) in &self.secrets {
            let wrong = |flaw: &str| SettleError::Secret {
                variable: variable.clone(),
                flaw: flaw.to_owned(),
            };
            let value = match secret.get_ref() {
                Secret::Literal(value) => value,
                Secret::From(_) => given.get(variable).ok_or_else(|| wrong("it was not given"))?,
            };
            if let Some(flaw) = value.flaw() {
                return Err(wrong(flaw));
            }
            let closed = lookup.seal(variable, value.bytes()).map_err(|flaw| wrong(&flaw))?;
            sealed.insert(variable.clone(), closed);
        }
        Ok(sealed)
    }
}

impl GroupFile {
    fn settle(self, argv: Vec<String>, lookup: &impl Lookup) -> Group {
        let ports = self.ports.into_iter().map(|(name, port)| (name, port.into_inner()));
        Group {
            name: self.name,
            count: self.count,
            argv,
            image: self.image.map(|image| lookup.image(image.get_ref())),
            resources: self.resources,
            ports: ports.collect(),
            party: None,
        }
    }
}

/// Every party's own data. Whether the others have it is for their nodes to say; whether the own party has is known.
fn each_own(data: &DataRef, takes_part: bool, lookup: &impl Lookup) -> Result<Mount, NotFound> {
    let own = DataRef { party: None, ..data.clone() };
    if takes_part {
        lookup.version(&own)?;
    }
    let what = spec::Source::Each(own.to_string());
    Ok(Mount { what, shown: Some(data.to_string()), bytes: 0 })
}

/// One group for each party, all of them like the one that the file has.
fn for_each(parties: &[Name], groups: Vec<Group>) -> Vec<Group> {
    let Some(group) = groups.into_iter().next() else { return Vec::new() };
    let of = |party: &Name| Group {
        name: party.clone(),
        count: 1,
        party: Some(party.clone()),
        ..group.clone()
    };
    parties.iter().map(of).collect()
}

/// Parameters on their way into one file's texts.
struct Filling<'a> {
    text: &'a str,
    params: &'a BTreeMap<Name, String>,
    filler: Filler<'a>,
    /// Once it is too long it stays so: this is said once.
    is_too_long: bool,
    mistakes: &'a mut Mistakes,
}

impl Filling<'_> {
    /// A text with its parameters; empty if it cannot be had.
    fn text(&mut self, value: &Spanned<String>) -> String {
        match self.filler.fill(value.get_ref()) {
            Ok(text) => return text,
            Err(Unfilled::TooLong) if self.is_too_long => {}
            Err(Unfilled::TooLong) => {
                self.is_too_long = true;
                let message = "the job's texts come to more than 16 KiB with this one";
                let fix = "put long text into a file beside the code";
                self.mistakes.add(value.span(), message, fix);
            }
            Err(Unfilled::Unknown(name)) => self.unknown(value, &name),
        }
        // Not empty, so that nothing else is said of it.
        String::from("…")
    }

    fn unknown(&mut self, value: &Spanned<String>, name: &str) {
        let span = value.span();
        if self.mistakes.is_full() {
            return self.mistakes.add(span, "", "");
        }
        let hole = format!("{{{name}}}");
        // Where it stands within the text; if it is spelt with escapes, the whole text will do.
        let raw = self.text.get(span.clone()).unwrap_or_default();
        let place = match raw.find(&hole) {
            Some(offset) => span.start + offset..span.start + offset + hole.len(),
            None => span,
        };
        let fix = match nearest(name, self.params.keys().map(Name::as_str)) {
            _ if name == "index" => "the number of a task is in MESH_TASK_INDEX".to_owned(),
            Some(near) => format!("did you mean `{{{near}}}`?"),
            None => format!("write it into [params], or `{{{hole}}}` for the braces themselves"),
        };
        self.mistakes.add(place, format!("there is no parameter {}", quoted(name)), fix);
    }

    /// A path with its parameters. `what` is to have something of its own there.
    fn path(&mut self, value: &Spanned<String>, what: &str) -> String {
        let path = self.text(value);
        if !is_beneath(&path) {
            let message = format!("{} is not a path in the task's directory", quoted(&path));
            let fix = "a relative path without `..`, as in `out/`";
            self.mistakes.add(value.span(), message, fix);
        } else if parts(&path).next().is_none() {
            let message = format!("{what} cannot be the whole directory: the code is there, too");
            self.mistakes.add(value.span(), message, "a path of its own, as in `out/`");
        }
        path
    }
}

/// The names in a path, without what means nothing.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !matches!(*part, "" | "."))
}

/// Whether one path leads to, or into, the other.
fn overlap(a: &str, b: &str) -> bool {
    parts(a).zip(parts(b)).all(|(a, b)| a == b)
}
