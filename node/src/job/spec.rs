//! [`JobSpec`]: what stands in the log when a job is submitted.
//!
//! Everything in it is settled: names of data are ids of versions, `{lr}` in a command is `0.1`, the code is a
//! version that was pushed, secrets are sealed. So a job that is tried again next month is the same job.
//!
//! A spec comes from the network, too: [`JobSpec::flaw`] says what is wrong with one, and the state takes none that
//! has a flaw. All of it together is at most [`MAX_SPEC_BYTES`].

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{JobId, VersionId};
use serde::{Deserialize, Serialize};

use super::training::{Server, Training};
use crate::state::data::DataRef;
use crate::state::label::LabelValue;
use crate::state::name::Name;

/// The largest spec, encoded.
pub const MAX_SPEC_BYTES: usize = 16 << 10;
/// The most tasks of a job.
pub const MAX_TASKS: u32 = 1024;
/// The most groups of a job: a federated one has one for each party.
pub const MAX_GROUPS: usize = 64;
/// The most entries of any other list in a spec.
pub const MAX_ENTRIES: usize = 64;
/// The most GPUs that one task can ask for.
pub const MAX_TASK_GPUS: u64 = 16;
/// The priority of a job that names none.
pub const DEFAULT_PRIORITY: u8 = 50;
/// The highest priority.
pub const MAX_PRIORITY: u8 = 100;
/// The grace of a job that names none.
pub const DEFAULT_GRACE_MS: u64 = 30_000;
/// What a task is counted for where it names no CPUs. It is not held to it.
pub const DEFAULT_CPU_MILLI: u64 = 1000;
/// What a task is counted for where it names no memory. It is not held to it.
pub const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;

/// What stands in a command for the node's own program, whatever that is called where it runs.
pub const OWN_BINARY: &str = "mesh:own";

/// What is to be run. See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// What people call it. Many jobs may have one name; the latest is meant.
    pub name: Name,
    /// Whether somebody waits for it.
    pub class: Class,
    /// Higher goes first, within its class: 0 to [`MAX_PRIORITY`].
    pub priority: u8,
    /// Jobs that must be done before.
    pub after: Vec<JobId>,
    /// What its tasks are: one group at least. A task's number counts through all groups, in order.
    pub groups: Vec<Group>,
    /// Whether all tasks start together or none does, and all start again when one is lost.
    pub gang: bool,
    /// Data that every task sees, by the name under which it sees it.
    pub data: BTreeMap<Name, Mount>,
    /// What a task leaves behind, by the name of the version that it becomes.
    pub outputs: BTreeMap<Name, Output>,
    /// The code, if there is any: a version whose files every task starts among.
    pub code: Option<VersionId>,
    /// A directory of the task that is kept, and from which its next attempt starts.
    pub checkpoint: Option<Checkpoint>,
    /// How long a task may take to end once it was asked to.
    pub grace_ms: u64,
    /// Whether and when a task that failed is tried again.
    pub retry: Retry,
    /// How long one attempt may run.
    pub time_limit_ms: Option<u64>,
    /// Which nodes will do.
    pub place: Place,
    /// The environment that its author wrote, parameters filled in.
    pub env: BTreeMap<String, String>,
    /// Values that only its party's nodes can read. By the name of the variable.
    pub secrets: BTreeMap<String, SealedSecret>,
    /// The parameters as given: they are filled in already, and kept for the record.
    pub params: BTreeMap<Name, String>,
    /// Who submitted it, as that node's owner is called. For people.
    pub user: String,
    /// How it trains, if it does.
    pub training: Option<Training>,
}

/// Whether somebody waits for a job.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum Class {
    /// Somebody does: it may preempt best-effort jobs.
    #[default]
    Trial,
    /// Nobody does: it may be preempted.
    BestEffort,
}

/// Tasks that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// `worker`, `ps`, `chief`, …; unique in a job.
    pub name: Name,
    /// How many tasks. With [`Place::each`], ignored: one on each node that will do.
    pub count: u32,
    /// What to run: a program and its arguments.
    pub argv: Vec<String>,
    /// In which image; `None` for a plain process.
    pub image: Option<Image>,
    /// What each needs.
    pub resources: Resources,
    /// Ports that it listens on, by name; `None` for one that mesh picks and tells it.
    pub ports: BTreeMap<Name, Option<u16>>,
    /// The party on whose nodes they run; `None` for what the job's [`Place`] says.
    pub party: Option<Name>,
}

/// Where a container's image comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Image {
    /// One that was pushed into the mesh.
    Pushed {
        /// As its author wrote it.
        name: String,
        /// The version that holds it.
        version: VersionId,
    },
    /// One that the node's Docker has, or can fetch.
    Named(String),
}

impl Image {
    /// As its author wrote it.
    pub fn name(&self) -> &str {
        match self {
            Image::Pushed { name, .. } | Image::Named(name) => name,
        }
    }
}

/// What a task needs. `None` means: counted with a default, and held to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resources {
    /// In thousandths of a core.
    pub cpu_milli: Option<Range>,
    /// In bytes. Who takes more is killed.
    pub memory_bytes: Option<Range>,
    /// Room on disk for what the task writes, in bytes.
    pub disk_bytes: u64,
    /// Shared memory, in bytes; 0 for what the host has, or Docker's default.
    pub shm_bytes: u64,
    /// `None` for no GPU.
    pub gpus: Option<GpuAsk>,
}

/// At least `min`; up to `max` if the node has it to spare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// What it cannot do without.
    pub min: u64,
    /// What it can use. No less than `min`.
    pub max: u64,
}

impl Range {
    /// Just so much.
    pub fn just(amount: u64) -> Self {
        Self { min: amount, max: amount }
    }

    /// What it gets where `free` is there; `None` if that is too little.
    pub fn from_free(self, free: u64) -> Option<u64> {
        (free >= self.min).then(|| free.min(self.max))
    }
}

/// Which GPUs a task needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAsk {
    /// How many: `1..4`.
    pub count: Range,
    /// How much memory each has at least, in MiB.
    pub min_memory_mib: u32,
    /// How much each has at most, in MiB; `None` for any.
    pub max_memory_mib: Option<u32>,
    /// Parts of model names, in lower case, any of which will do; empty for any model.
    pub models: Vec<String>,
    /// A MIG profile such as `1g.5gb`; `None` for whole GPUs.
    pub mig: Option<String>,
}

/// Data that a task sees, read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Which data.
    pub what: Source,
    /// As its author wrote it, with its number. Left out of the log where the version is private.
    pub shown: Option<String>,
    /// How much it is, where that is for all to see: the planner prefers nodes that have it.
    pub bytes: u64,
}

/// Which data a task sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The same for all.
    Version(VersionId),
    /// What the party on whose node the task runs calls so itself: `xray`, `xray@3`, `xray:clean`. Each node looks it
    /// up for its own party.
    Each(String),
}

impl Mount {
    /// The version, where it is the same for all.
    pub fn version(&self) -> Option<VersionId> {
        match self.what {
            Source::Version(version) => Some(version),
            Source::Each(_) => None,
        }
    }
}

/// What a task leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Where: a path beneath the task's directory.
    pub path: String,
}

/// A directory of a task that outlives its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Where: a path beneath the task's directory.
    pub path: String,
    /// How often it is looked at for something new.
    pub every_ms: u64,
}

/// Whether a task that failed is tried again. Losing its node and being preempted never count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// How many attempts may fail: at least 1.
    pub attempts: u32,
    /// After which failures; empty for all.
    pub on: BTreeSet<RetryOn>,
    /// How long to wait before the second attempt; twice as long before each further one.
    pub backoff_ms: u64,
}

impl Default for Retry {
    fn default() -> Self {
        // One: who wrote a wrong command wants to hear of it at once.
        Self { attempts: 1, on: BTreeSet::new(), backoff_ms: 1000 }
    }
}

/// A failure after which it makes sense to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RetryOn {
    /// It ended with this code: `exit:75`.
    Exit(u8),
    /// It ended by this signal: `signal:9`.
    Signal(u8),
    /// It was killed because it took too much memory: `memory`.
    Memory,
    /// It ran into its time limit: `time`.
    Time,
}

/// Which nodes will do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    /// Labels that a node must have.
    pub labels: BTreeMap<Name, LabelValue>,
    /// Names of nodes, any of which will do; empty for all.
    pub nodes: BTreeSet<Name>,
    /// The architecture, as nodes report it: `x86_64`, `aarch64`.
    pub arch: Option<String>,
    /// Spread tasks over the values of this label, or over `node` or `domain`.
    pub spread: Option<Name>,
    /// All tasks on as few nodes as can be.
    pub pack: bool,
    /// The party on whose nodes it runs; `None` for every node that takes this party's work.
    pub party: Option<Name>,
    /// One task on each node that will do, as of when it is placed.
    pub each: bool,
}

/// A secret, for its party's nodes to open. See [`crate::seal`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedSecret(pub Vec<u8>);

impl std::fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedSecret({})", self.0.len())
    }
}

impl Resources {
    /// What the planner counts, at least: thousandths of a core.
    pub fn least_cpu_milli(&self) -> u64 {
        self.cpu_milli.map_or(DEFAULT_CPU_MILLI, |range| range.min)
    }

    /// What the planner counts, at least: bytes of memory.
    pub fn least_memory_bytes(&self) -> u64 {
        self.memory_bytes.map_or(DEFAULT_MEMORY_BYTES, |range| range.min)
    }

    /// How many GPUs, at least.
    pub fn least_gpus(&self) -> u64 {
        self.gpus.as_ref().map_or(0, |gpus| gpus.count.min)
    }
}

impl JobSpec {
    /// How many tasks there are; with [`Place::each`] that is settled when it is placed.
    pub fn tasks(&self) -> u32 {
        self.groups.iter().fold(0, |sum, group| sum.saturating_add(group.count))
    }

    /// The group of a task, and its number in that group.
    pub fn group_of(&self, task: u32) -> Option<(&Group, u32)> {
        let mut left = task;
        for group in &self.groups {
            if left < group.count {
                return Some((group, left));
            }
            left -= group.count;
        }
        None
    }

    /// What is wrong with it, for whoever wrote it by other means than a job.toml.
    pub fn flaw(&self) -> Option<&'static str> {
        let encoded = postcard::to_stdvec(self).map_or(usize::MAX, |bytes| bytes.len());
        let sizes = [
            self.after.len(),
            self.data.len(),
            self.outputs.len(),
            self.env.len(),
            self.secrets.len(),
            self.params.len(),
            self.retry.on.len(),
            self.place.labels.len(),
            self.place.nodes.len(),
        ];
        let names: BTreeSet<&Name> = self.groups.iter().map(|group| &group.name).collect();
        let flaws = [
            (encoded > MAX_SPEC_BYTES, "it is too large"),
            (self.priority > MAX_PRIORITY, "its priority is above 100"),
            (sizes.into_iter().any(|size| size > MAX_ENTRIES), "one of its lists is too long"),
            (
                self.groups.is_empty() || self.groups.len() > MAX_GROUPS,
                "it has no or too many kinds of task",
            ),
            (names.len() != self.groups.len(), "two kinds of task have one name"),
            (self.tasks() == 0 || self.tasks() > MAX_TASKS, "it has no or too many tasks"),
            (self.place.each && self.groups.len() > 1, "`each` takes one kind of task"),
            (self.retry.attempts == 0, "it may be attempted at least once"),
            (!self.paths().all(is_beneath), "a path leads out of the task's directory"),
            (
                !self.env.keys().chain(self.secrets.keys()).all(|key| is_variable(key)),
                "a variable's name is not one",
            ),
            (
                self.env.values().any(|value| value.contains('\0')),
                "a variable's value has a NUL in it",
            ),
            (
                self.user.len() > 128 || self.user.chars().any(char::is_control),
                "its user's name is not one",
            ),
        ];
        let flaw = flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text));
        flaw.or_else(|| self.groups.iter().find_map(Group::flaw)).or_else(|| self.training_flaw())
    }

    fn training_flaw(&self) -> Option<&'static str> {
        let mut each = self.data.values().filter_map(|mount| match &mount.what {
            Source::Each(text) => Some(text),
            Source::Version(_) => None,
        });
        let federated = match &self.training {
            Some(Training::Federated(federated)) => federated,
            other => {
                let none = each.next().map(|_| "each party's own data is for federated jobs");
                let server = match other {
                    Some(Training::Server(server)) => self.server_flaw(server),
                    _ => None,
                };
                return none.or(server);
            }
        };
        let is_own = |text: &String| text.parse::<DataRef>().is_ok_and(|data| data.party.is_none());
        let alone = |group: &Group| group.count == 1 && group.party.is_some();
        let flaws = [
            (!each.all(is_own), "a name of each party's own data is not one"),
            (!self.groups.iter().all(alone), "it trains with one task for each party"),
            (!self.secrets.is_empty(), "its secrets would be read by other parties"),
            (
                !self.outputs.is_empty() || self.checkpoint.is_some(),
                "what a job that trains leaves behind is its model",
            ),
            (self.gang || self.place.each, "a job that trains is neither a gang nor for each node"),
        ];
        let flaw = flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text));
        flaw.or_else(|| federated.flaw(self.groups.len()))
    }

    fn server_flaw(&self, server: &Server) -> Option<&'static str> {
        let flaws = [
            (self.groups.len() != 1, "it trains with one kind of worker"),
            (
                !self.outputs.is_empty() || self.checkpoint.is_some(),
                "what a job that trains leaves behind is its model",
            ),
            (self.gang || self.place.each, "a job that trains is neither a gang nor for each node"),
        ];
        let flaw = flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text));
        flaw.or_else(|| server.flaw(self.groups.first().map_or(0, |group| group.count)))
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        let outputs = self.outputs.values().map(|output| output.path.as_str());
        outputs.chain(self.checkpoint.as_ref().map(|checkpoint| checkpoint.path.as_str()))
    }
}

impl Group {
    fn flaw(&self) -> Option<&'static str> {
        let Resources { cpu_milli, memory_bytes, gpus, .. } = &self.resources;
        let ranges = [*cpu_milli, *memory_bytes, gpus.as_ref().map(|gpus| gpus.count)];
        let flaws = [
            (self.count == 0, "a kind of task has no tasks"),
            (self.argv.first().is_none_or(String::is_empty), "there is nothing to run"),
            (self.argv.iter().any(|word| word.contains('\0')), "its command has a NUL in it"),
            (self.ports.len() > MAX_ENTRIES, "it has too many ports"),
            (
                ranges.into_iter().flatten().any(|range| range.min > range.max || range.max == 0),
                "a range of resources is empty",
            ),
            (
                gpus.as_ref().is_some_and(|gpus| {
                    gpus.count.min > MAX_TASK_GPUS || gpus.models.len() > MAX_ENTRIES
                }),
                "it asks for too many GPUs",
            ),
            (
                self.image.as_ref().is_some_and(|image| !is_image_name(image.name())),
                "its image's name is not one",
            ),
        ];
        flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text))
    }
}

/// Whether a path stays beneath the directory that it starts from.
pub fn is_beneath(path: &str) -> bool {
    use std::path::{Component, Path};
    let parts = Path::new(path).components();
    !path.is_empty()
        && path.len() <= 1024
        && !path.contains('\0')
        && parts.into_iter().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Whether an environment can hold a variable of this name.
pub fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= 128
}

/// Whether Docker could know an image by this name. It goes into a URL and is never an option.
pub fn is_image_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.len() <= 255
        && name.bytes().all(fine)
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::super::training::{Federated, Real, Select, Strategy, Wire};
    use super::*;

    pub(crate) fn small() -> JobSpec {
        let worker = Group {
            name: "worker".parse().unwrap(),
            count: 2,
            argv: vec!["true".into()],
            image: None,
            resources: Resources::default(),
            ports: BTreeMap::new(),
            party: None,
        };
        JobSpec {
            name: "small".parse().unwrap(),
            class: Class::Trial,
            priority: DEFAULT_PRIORITY,
            after: Vec::new(),
            groups: vec![worker],
            gang: false,
            data: BTreeMap::new(),
            outputs: BTreeMap::new(),
            code: None,
            checkpoint: None,
            grace_ms: DEFAULT_GRACE_MS,
            retry: Retry::default(),
            time_limit_ms: None,
            place: Place::default(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            params: BTreeMap::new(),
            user: String::new(),
            training: None,
        }
    }

    #[test]
    fn a_task_knows_its_group() {
        let mut spec = small();
        let mut ps = spec.groups[0].clone();
        (ps.name, ps.count) = ("ps".parse().unwrap(), 1);
        spec.groups.push(ps);
        let of = |task| spec.group_of(task).map(|(group, n)| (group.name.as_str().to_owned(), n));
        assert_eq!(of(1), Some(("worker".into(), 1)));
        assert_eq!(of(2), Some(("ps".into(), 0)));
        assert_eq!(of(3), None);
        assert_eq!(spec.flaw(), None);
    }

    #[test]
    fn what_cannot_be_run_has_a_flaw() {
        let broken: [fn(&mut JobSpec); 9] = [
            |spec| spec.groups.clear(),
            |spec| spec.groups[0].count = MAX_TASKS + 1,
            |spec| spec.groups[0].argv.clear(),
            |spec| spec.groups[0].resources.cpu_milli = Some(Range { min: 2, max: 1 }),
            |spec| spec.groups.push(spec.groups[0].clone()),
            |spec| spec.retry.attempts = 0,
            |spec| {
                let output = Output { path: "../else".into() };
                spec.outputs.insert("model".parse().unwrap(), output);
            },
            |spec| drop(spec.env.insert("A=B".into(), "x".into())),
            |spec| drop(spec.env.insert("A".into(), "x".repeat(MAX_SPEC_BYTES))),
        ];
        for (n, breaks) in broken.into_iter().enumerate() {
            let mut spec = small();
            breaks(&mut spec);
            assert!(spec.flaw().is_some(), "{n}");
        }
    }

    /// A sound job that trains, for two parties.
    fn federated() -> JobSpec {
        let one = Real::new(1.0).unwrap();
        let federated = Federated {
            rounds: 3,
            strategy: Strategy::FedAvg { rate: one },
            min_parties: 1,
            deadline_ms: None,
            aggregators: vec!["lab".parse().unwrap()],
            wire: Wire::F32,
            select: Select::All,
            privacy: None,
            start: None,
            model: "small".parse().unwrap(),
        };
        let mut spec = small();
        let worker = Group { count: 1, ..spec.groups[0].clone() };
        let group = |party: &str| {
            let name: Name = party.parse().unwrap();
            Group { name: name.clone(), party: Some(name), ..worker.clone() }
        };
        spec.groups = vec![group("lab"), group("clinic")];
        let own = Mount { what: Source::Each("xray:clean".into()), shown: None, bytes: 0 };
        spec.data.insert("train".parse().unwrap(), own);
        spec.training = Some(Training::Federated(federated));
        spec
    }

    #[test]
    fn a_job_that_trains_has_one_task_for_each_party_and_keeps_nothing_of_its_own() {
        assert_eq!(federated().flaw(), None);
        let broken: [fn(&mut JobSpec); 11] = [
            |spec| spec.training = None,
            |spec| spec.groups[1].count = 2,
            |spec| spec.groups[1].party = None,
            |spec| spec.groups.clear(),
            |spec| spec.gang = true,
            |spec| drop(spec.secrets.insert("A".into(), SealedSecret(vec![1]))),
            |spec| {
                let output = Output { path: "out".into() };
                spec.outputs.insert("model".parse().unwrap(), output);
            },
            |spec| spec.checkpoint = Some(Checkpoint { path: "ckpt".into(), every_ms: 1000 }),
            |spec| {
                let other = Mount { what: Source::Each("lab/xray".into()), shown: None, bytes: 0 };
                spec.data.insert("test".parse().unwrap(), other);
            },
            |spec| {
                if let Some(Training::Federated(federated)) = &mut spec.training {
                    federated.min_parties = 3;
                }
            },
            |spec| {
                spec.groups.truncate(1);
                spec.place.each = true;
            },
        ];
        for (n, breaks) in broken.into_iter().enumerate() {
            let mut spec = federated();
            breaks(&mut spec);
            assert!(spec.flaw().is_some(), "{n}");
        }
    }

    #[test]
    fn paths_stay_beneath() {
        for fine in ["out", "out/", "./a/b", "a..b"] {
            assert!(is_beneath(fine), "{fine}");
        }
        for bad in ["", "/etc", "..", "a/../..", "a/../b", "a\0"] {
            assert!(!is_beneath(bad), "{bad}");
        }
    }
}
