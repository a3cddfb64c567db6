//! What the planner looks at: the members, what waits, what runs, and how the parties stand.
//!
//! All of it is plain data that somebody else gathers: members, jobs and parties from the replicated state, the
//! rest from what nodes tell about themselves. Nothing here says how much of a node is *free*. That follows from
//! what runs there, and only the planner works it out: see the board in `board.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::time::Time;

use super::shares::Standing;
use crate::job::{Allotment, Class, JobSpec};
use crate::state::label::LabelValue;
use crate::state::name::Name;

/// Everything that a plan follows from. The order within the lists does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Mesh time.
    pub now: Time,
    /// How to plan.
    pub settings: Settings,
    /// The members, each once: also those of which nothing has been heard, as [`away`](Offer::away).
    pub offers: Vec<Offer>,
    /// Jobs with tasks that wait for a place, each once. Jobs that wait for other jobs are not among them.
    pub waiting: Vec<Waiting>,
    /// Attempts that count, from the entry that placed them until they have ended.
    pub running: Vec<Running>,
    /// The parties, each once. One that is missing has weight 1, no quota, and has used nothing.
    pub parties: Vec<Standing>,
}

/// How to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// FitGpp's P: a task that was preempted so often is not preempted again. With 0 nobody ever is.
    pub max_preemptions: u32,
    /// FitGpp's s: how much a victim's grace weighs beside its size.
    pub grace_weight: u32,
    /// A task counts as lost when its node has been away for so long.
    pub lost_after: Duration,
    /// Whether a job may start before one that has waited longer and does not fit. If not, whoever could run on the
    /// nodes at hand and has no room holds up everybody behind it.
    pub backfill: bool,
    /// How long a job may be overtaken. From then on, nobody behind it gets what it waits for.
    pub patience: Duration,
    /// For so many jobs at once that have waited too long, places are kept.
    pub reservations: usize,
    /// The most ends and places of one plan together.
    pub max_changes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Both as in the paper: one interruption is bearable, and a short grace is worth a larger victim.
            max_preemptions: 1,
            grace_weight: 4,
            // A reboot takes less, and what ran there could go on. Longer, and the waiting costs more than it saves.
            lost_after: Duration::from_secs(60),
            backfill: true,
            // Long enough for short jobs to fill the holes, short against the hours that large ones run.
            patience: Duration::from_secs(300),
            // Each keeps a part of one or more nodes idle. A few, so that one odd job does not make all others wait.
            reservations: 8,
            max_changes: crate::state::jobs::MAX_PLACES,
        }
    }
}

/// A node: what it is, and what it has to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Which one.
    pub node: NodeId,
    /// What it is called.
    pub name: Name,
    /// Whose it is.
    pub party: PartyId,
    /// What it shares its fate with.
    pub domain: Option<Name>,
    /// Its processor, as it reports it: `x86_64`.
    pub arch: String,
    /// What its party says about it.
    pub labels: BTreeMap<Name, LabelValue>,
    /// All that mesh may give away, in thousandths of a core. What programs that are not mesh's use is taken off;
    /// what tasks have is not.
    pub cpu_milli: u64,
    /// Likewise, in bytes.
    pub memory_bytes: u64,
    /// Likewise, in bytes: what is free on the disk, and what tasks were given of it.
    pub disk_bytes: u64,
    /// Its GPUs, each once. Those after the first [`MAX_GPUS`] are not given away.
    pub gpus: Vec<Gpu>,
    /// Whether it is to be given no new work.
    pub drained: bool,
    /// For how long it has not been heard of, if that is longer than it should be.
    pub away: Option<Duration>,
    /// Whether it can run containers.
    pub docker: bool,
    /// The versions that it holds.
    pub versions: BTreeSet<VersionId>,
    /// The images that its Docker has, by name.
    pub images: BTreeSet<String>,
    /// Whether it takes the work of other parties.
    pub takes_others: bool,
    /// The other parties for whose jobs it trains.
    pub trains_for: BTreeSet<PartyId>,
}

/// The most GPUs of a node that are given away, parts of them counted one by one.
pub const MAX_GPUS: usize = 128;

/// A GPU, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The name by which it is given to a task.
    pub uuid: [u8; 16],
    /// In lower case.
    pub model: String,
    /// How much memory it has.
    pub memory_mib: u32,
    /// The MIG profile, such as `1g.5gb`, if it is a part.
    pub mig: Option<String>,
    /// Whether nothing is wrong with it.
    pub healthy: bool,
    /// Whether no program computes on it that is not mesh's. What mesh's own tasks have says [`Running`].
    pub free: bool,
}

/// A job that has tasks without a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Which one.
    pub job: JobId,
    /// What is to be run.
    pub spec: Arc<JobSpec>,
    /// Whose it is.
    pub party: PartyId,
    /// The party on whose nodes alone it may run because of its secrets or its data; `None` for any.
    pub confined: Option<PartyId>,
    /// The index of its submission: its place in the line.
    pub index: u64,
    /// When it was submitted.
    pub submitted: Time,
    /// The numbers of the tasks that wait. Of a gang all, or it is left alone. Empty for an `each` job that was
    /// never placed.
    pub tasks: Vec<u32>,
    /// It is not to be placed before.
    pub not_before: Time,
    /// How often its tasks failed, by node.
    pub failures: BTreeMap<NodeId, u32>,
    /// How often it had to make room, the most of any task that waits.
    pub preemptions: u32,
    /// Whether it had a place and lost it by no fault of its own: preempted, or its node is gone. It then goes
    /// before all others of its class and priority.
    pub interrupted: bool,
    /// Where its other tasks are.
    pub others: Vec<NodeId>,
}

/// An attempt that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// Its fence.
    pub fence: u64,
    /// Where.
    pub node: NodeId,
    /// With what.
    pub allotment: Allotment,
    /// Ports of its node that it asked for by number. A container has none: its ports are its own.
    pub ports: Vec<u16>,
    /// Whose it is.
    pub party: PartyId,
    /// Whether somebody waits for it.
    pub class: Class,
    /// How long it may take to end once it was asked to.
    pub grace_ms: u64,
    /// How often the task had to make room.
    pub preemptions: u32,
    /// Whether all tasks of its job start and end together.
    pub gang: bool,
    /// If it was asked to end: when its grace is over.
    pub stopping: Option<Time>,
    /// When it was placed.
    pub since: Time,
}
