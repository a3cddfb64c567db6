//! Whether a node can run a task, and if not, why.
//!
//! Three kinds of reasons, and the difference matters to whoever waits. What *bars* a node lasts: it has the wrong
//! label, or too little memory even when nothing runs there. That a node is *absent* passes: it is drained, or has not
//! been heard of. And what it *lacks* is with somebody else at present.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use mesh_consensus::id::{JobId, PartyId};

use super::board::{Node, Room};
use super::shape::{Need, Shape};
use super::view::{Gpu, Offer};
use crate::job::{GpuAsk, Group, JobSpec};
use crate::state::label::LabelValue;
use crate::state::name::Name;

/// A task that looks for a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) group: &'a Group,
    pub(super) party: PartyId,
    pub(super) confined: Option<PartyId>,
}

/// Why a node does not run a task: the first reason of perhaps several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It takes the work of its own party alone.
    OwnWorkOnly,
    /// It trains for its own party alone, or for others than the job's.
    NotTraining {
        /// What it is called.
        node: Name,
        /// The job's party; `None` if nobody knows what it is called.
        party: Option<Name>,
    },
    /// The job wants nodes of another party.
    WantsParty(Name),
    /// Secrets or data of the job may go to the nodes of one party only, and this is none of them.
    Confined,
    /// The job names the nodes that it wants.
    NotNamed,
    /// Its processor is of another kind.
    Arch {
        /// What it is.
        has: String,
        /// What the job wants.
        wants: String,
    },
    /// It lacks a label, or has another value.
    Label {
        /// Which one.
        key: Name,
        /// What the job wants.
        wants: LabelValue,
        /// What it has.
        has: Option<LabelValue>,
    },
    /// It cannot run containers.
    NoDocker,
    /// It never has enough GPUs that will do.
    FewGpus {
        /// How many of them will do.
        has: u64,
        /// How many there are in all.
        of: u64,
        /// How many are wanted.
        wants: u64,
    },
    /// It never has enough of something else.
    Small {
        /// Of what.
        what: What,
        /// What it has in all.
        has: u64,
        /// What is wanted.
        wants: u64,
    },
    /// It has not been heard of for a while.
    Away(Duration),
    /// It is given no new work.
    Drained,
    /// The job has failed there again and again, and can run elsewhere.
    Failing(u32),
    /// Too few of its GPUs are free.
    GpusBusy {
        /// How many that will do are free.
        free: u64,
        /// How many that will do there are.
        of: u64,
        /// How many are wanted.
        wants: u64,
    },
    /// Too little of something else is free.
    Busy {
        /// Of what.
        what: What,
        /// What is free.
        free: u64,
        /// What there is in all.
        of: u64,
        /// What is wanted.
        wants: u64,
    },
    /// Another task has a port that the job wants.
    Port,
    /// What is free there is kept for a job that has waited for longer.
    HeldFor(JobId),
}

/// What there can be too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Processors, in thousandths.
    Cpus,
    /// Memory, in bytes.
    Memory,
    /// Disk, in bytes.
    Disk,
}

impl What {
    /// So much of it, as people write it.
    pub fn figure(self, amount: u64) -> String {
        match self {
            What::Cpus => decimal(amount, 1000),
            What::Memory | What::Disk if amount < 1 << 30 => {
                format!("{} MiB", decimal(amount, 1 << 20))
            }
            What::Memory | What::Disk => format!("{} GiB", decimal(amount, 1 << 30)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            What::Cpus => "CPUs",
            What::Memory => "memory",
            What::Disk => "disk",
        }
    }
}

/// `amount / unit` with one decimal place if it has any.
fn decimal(amount: u64, unit: u64) -> String {
    let tenths = u128::from(amount) * 10 / u128::from(unit);
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        rest => format!("{}.{rest}", tenths / 10),
    }
}

impl Reason {
    /// Whether it lasts, whatever ends and whoever returns.
    pub fn lasts(&self) -> bool {
        match self {
            Reason::OwnWorkOnly
            | Reason::NotTraining { .. }
            | Reason::WantsParty(_)
            | Reason::Confined
            | Reason::NotNamed
            | Reason::Arch { .. }
            | Reason::Label { .. }
            | Reason::NoDocker
            | Reason::FewGpus { .. }
            | Reason::Small { .. } => true,
            Reason::Away(_)
            | Reason::Drained
            | Reason::Failing(_)
            | Reason::GpusBusy { .. }
            | Reason::Busy { .. }
            | Reason::Port
            | Reason::HeldFor(_) => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::OwnWorkOnly => f.write_str("takes the work of its own party alone"),
            Reason::NotTraining { node, party: Some(party) } => {
                write!(f, "does not train for {party} (mesh node label {node} trains={party})")
            }
            Reason::NotTraining { party: None, .. } => {
                f.write_str("does not train for the job's party")
            }
            Reason::WantsParty(name) => write!(f, "is not a node of {name}"),
            Reason::Confined => f.write_str("is not of the party that the secrets or data are for"),
            Reason::NotNamed => f.write_str("is not among the nodes that the job names"),
            Reason::Arch { has, wants } => write!(f, "is {has}, wants {wants}"),
            Reason::Label { key, wants, has: Some(has) } => {
                write!(f, "has the label {key}={has}, wants {key}={wants}")
            }
            Reason::Label { key, wants, has: None } => write!(f, "lacks the label {key}={wants}"),
            Reason::NoDocker => f.write_str("has no Docker"),
            Reason::FewGpus { has: 0, of: 0, wants } => write!(f, "has no GPU, wants {wants}"),
            Reason::FewGpus { has, of, wants } if has == of => {
                write!(f, "has {}, wants {wants}", counted(&has.to_string(), "GPUs"))
            }
            Reason::FewGpus { has, of, wants } => {
                write!(f, "{has} of its {of} GPUs will do, wants {wants}")
            }
            Reason::Small { what, has, wants } => {
                let (has, wants, what) = (what.figure(*has), what.figure(*wants), what.name());
                write!(f, "has {}, wants {wants}", counted(&has, what))
            }
            Reason::Away(time) => write!(f, "has not been heard of for {} s", time.as_secs()),
            Reason::Drained => f.write_str("is drained"),
            Reason::Failing(times) => write!(f, "the job has failed there {times} times"),
            Reason::GpusBusy { free, of, wants } => {
                write!(f, "{free} of {} free, wants {wants}", counted(&of.to_string(), "GPUs"))
            }
            Reason::Busy { what, free, of, wants } => {
                let (free, of, wants) = (what.figure(*free), what.figure(*of), what.figure(*wants));
                let what = what.name();
                write!(f, "{free} of {} free, wants {wants}", counted(&of, what))
            }
            Reason::Port => f.write_str("another task has a port that it wants"),
            Reason::HeldFor(job) => {
                write!(f, "has room, kept for job {} that has waited longer", job.short())
            }
        }
    }
}

/// `8 CPUs` and `1 CPU`, but `8 GiB of memory`.
pub(super) fn counted(figure: &str, what: &str) -> String {
    match (figure, what) {
        ("1", "CPUs") => "1 CPU".into(),
        ("1", "GPUs") => "1 GPU".into(),
        (figure, "CPUs" | "GPUs") => format!("{figure} {what}"),
        (figure, what) => format!("{figure} of {what}"),
    }
}

/// Why a node could not run it even if it were there and empty, but for how much it has: see [`too_small`].
pub(super) fn bars(
    ask: &Ask<'_>,
    offer: &Offer,
    names: &BTreeMap<PartyId, Name>,
) -> Option<Reason> {
    let place = &ask.spec.place;
    let owner = names.get(&offer.party);
    // First: that a node would have to do something for a task that is meant for others would mislead.
    if let Some(wanted) = &ask.group.party
        && owner != Some(wanted)
    {
        return Some(Reason::WantsParty(wanted.clone()));
    }
    let is_own = offer.party == ask.party;
    if ask.spec.training.is_some() {
        if !is_own && !offer.trains_for.contains(&ask.party) {
            let (node, party) = (offer.name.clone(), names.get(&ask.party).cloned());
            return Some(Reason::NotTraining { node, party });
        }
    } else if !is_own && !offer.takes_others {
        return Some(Reason::OwnWorkOnly);
    }
    if let Some(wanted) = &place.party
        && owner != Some(wanted)
    {
        return Some(Reason::WantsParty(wanted.clone()));
    }
    if ask.confined.is_some_and(|party| party != offer.party) {
        return Some(Reason::Confined);
    }
    if !place.nodes.is_empty() && !place.nodes.contains(&offer.name) {
        return Some(Reason::NotNamed);
    }
    if let Some(arch) = &place.arch
        && *arch != offer.arch
    {
        return Some(Reason::Arch { has: offer.arch.clone(), wants: arch.clone() });
    }
    for (key, wants) in &place.labels {
        let has = offer.labels.get(key);
        if has != Some(wants) {
            let (key, wants, has) = (key.clone(), wants.clone(), has.cloned());
            return Some(Reason::Label { key, wants, has });
        }
    }
    (ask.group.image.is_some() && !offer.docker).then_some(Reason::NoDocker)
}

/// What a node does not have enough of, were it empty.
pub(super) fn too_small(need: &Need, kind: u128, node: &Node) -> Option<Reason> {
    all_too_small(need, kind, node).into_iter().next()
}

/// All of it.
pub(super) fn all_too_small(need: &Need, kind: u128, node: &Node) -> Vec<Reason> {
    let (has, of, wants) = (count(kind), node.gpus.len() as u64, u64::from(need.gpus));
    let gpus = (has < wants).then_some(Reason::FewGpus { has, of, wants });
    let small = |(what, has, wants)| (has < wants).then_some(Reason::Small { what, has, wants });
    gpus.into_iter().chain(amounts(&node.total, need).into_iter().filter_map(small)).collect()
}

/// What bars it for a while only.
pub(super) fn absent(offer: &Offer) -> Option<Reason> {
    let away = offer.away.map(Reason::Away);
    away.or_else(|| offer.drained.then_some(Reason::Drained))
}

/// What a node has too little of at present.
pub(super) fn lacks(shape: &Shape, kind: u128, node: &Node) -> Option<Reason> {
    let need = &shape.need;
    if !node.has_ports(&shape.ports) {
        return Some(Reason::Port);
    }
    let (free, of, wants) = (count(node.now.gpus & kind), count(kind), u64::from(need.gpus));
    if free < wants {
        return Some(Reason::GpusBusy { free, of, wants });
    }
    let of = amounts(&node.total, need);
    let busy = |((what, free, wants), (_, of, _))| {
        (free < wants).then_some(Reason::Busy { what, free, of, wants })
    };
    amounts(&node.now, need).into_iter().zip(of).find_map(busy)
}

fn amounts(room: &Room, need: &Need) -> [(What, u64, u64); 3] {
    [
        (What::Memory, room.memory, need.memory),
        (What::Cpus, room.cpu, need.cpu),
        (What::Disk, room.disk, need.disk),
    ]
}

fn count(mask: u128) -> u64 {
    u64::from(mask.count_ones())
}

/// The GPUs that will do, as bits.
pub(super) fn matching(ask: &GpuAsk, gpus: &[Gpu]) -> u128 {
    let will_do = |gpu: &Gpu| {
        gpu.mig == ask.mig
            && gpu.memory_mib >= ask.min_memory_mib
            && ask.max_memory_mib.is_none_or(|most| gpu.memory_mib <= most)
            && (ask.models.is_empty() || ask.models.iter().any(|part| gpu.model.contains(part)))
    };
    let bits = gpus.iter().enumerate().filter(|(_, gpu)| will_do(gpu));
    bits.fold(0, |mask, (bit, _)| mask | 1 << bit)
}
