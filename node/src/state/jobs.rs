//! Jobs: which there are, where their tasks are, and what has become of them.
//!
//! ```text
//!                 Assign.places                    TaskNews
//!   Waiting ───────────────────────► Given ───────────────────────► Ended
//!      ▲                               │  placed, fetching, ready, running
//!      └───────────────────────────────┘
//!        lost, preempted, failed with a retry left, or its gang starts again
//! ```
//!
//! A job that trains has a course as well ([`super::course`]). Once that has a verdict, no task waits any more: what is
//! not with a node is left out.
//!
//! Each assignment has a **fence**, the index of its entry. What a node says of a task counts only with the fence
//! that holds, so that of all attempts at a task one at most can write: its news, its outputs and its checkpoints
//! are refused once it was superseded, wherever that attempt still runs.
//!
//! The leader's planner proposes [`acts::Assign`]: what ends and what is placed, in one entry. It says how many such
//! entries it has seen, so that of two plans made from the same view one counts: no two leaders give away the same
//! GPU.
//!
//! | file | holds |
//! |---|---|
//! | `acts.rs` | what members can ask |
//! | `rules.rs` | who may ask what |
//! | `change.rs` | what comes of a task's end, for the task, its gang, its job, and the jobs after it |
//! | `look.rs` | reading |
//! | `sound.rs` | what must hold in a snapshot |
//!
//! In a snapshot all this follows everything else, from level 6 on.

pub mod acts;
mod change;
mod look;
mod rules;
mod sound;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::time::Time;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use acts::{
    Assign, Exit, JobForget, JobStop, JobSubmit, Kept, MAX_PLACES, News, Placed, TaskDone,
    TaskKeep, TaskNews, Undone, Why,
};

pub use look::{TAKES, TRAINS};

use super::Moment;
use super::course::{Course, Tally};
use super::data::Note;
use super::name::Name;
use super::server::Laid;
use crate::job::{Allotment, JobSpec};
use crate::scheduler::shares::Usage;

/// The level from which on a snapshot holds all this.
pub(super) const SINCE: u16 = 6;

/// So many jobs of a party that are over are kept; the oldest goes.
pub const MAX_OVER: usize = 1000;

/// Of so many nodes it is known that a task failed there.
pub const MAX_FAILED_ON: usize = 16;

/// What a party's jobs may weigh at most; less where there are many parties.
pub const MAX_PARTY_BYTES: u64 = 32 << 20;

/// What all jobs together may weigh.
pub const MAX_JOBS_BYTES: u64 = 64 << 20;

/// A job. Its key in the state is its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Whose it is.
    pub party: PartyId,
    /// The node that submitted it.
    pub author: NodeId,
    /// When it came. The index is its place in the queue.
    pub submitted: Moment,
    /// What is to be run.
    #[serde(with = "shared")]
    pub spec: Arc<JobSpec>,
    /// By number. With `each` there are none until it is placed.
    pub tasks: Vec<Task>,
    /// When somebody asked for its end.
    pub stopping: Option<Moment>,
    /// When it was over. Set if and only if every task has ended, and there is one, or it never will have any.
    pub over: Option<Moment>,
    /// What it left behind: by task and by the name of the output.
    pub outputs: BTreeMap<(u32, Name), VersionId>,
    /// How its training goes: there if and only if it trains.
    pub course: Option<Course>,
}

/// A task of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Where it stands.
    pub state: TaskState,
    /// Attempts that were begun.
    pub attempts: u32,
    /// The last fence that it had; 0 if none yet.
    pub fence: u64,
    /// Attempts that failed, and count.
    pub failures: u32,
    /// How often it had to make room.
    pub preemptions: u32,
    /// Where attempts have failed, and how often.
    pub failed_on: BTreeMap<NodeId, u32>,
    /// It is not placed before, after a failure.
    pub not_before: Option<Time>,
    /// What the next attempt starts from.
    pub checkpoint: Option<VersionId>,
    /// A later one that waits for its copies.
    pub staged: Option<VersionId>,
    /// Outputs that wait for their copies.
    pub drafts: BTreeMap<Name, VersionId>,
    /// What the last attempt that is over came to, for people.
    pub last: Option<Exit>,
}

/// Where a task stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// For a place.
    Waiting,
    /// A node has it.
    Given(Given),
    /// It is over.
    Ended(End),
}

/// An attempt that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Where.
    pub node: NodeId,
    /// Since when. The index is its fence.
    pub at: Moment,
    /// With what.
    pub allotment: Allotment,
    /// How far it is.
    pub phase: Phase,
    /// Where other tasks of its gang find it, once it is ready.
    pub endpoint: Option<SocketAddr>,
    /// When it began to run.
    pub running: Option<Time>,
    /// That it shall end, and why.
    pub ending: Option<Ending>,
}

/// How far an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Its node may not know yet, or waits until others have made room.
    Placed,
    /// Code, data and image are on their way.
    Fetching,
    /// It waits for the rest of its gang.
    Ready,
    /// It runs.
    Running,
}

/// That an attempt shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Why.
    pub why: Why,
    /// Since when: its grace counts from here.
    pub since: Time,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// In what way.
    pub how: How,
    /// When.
    pub at: Time,
    /// Where it ran last, if it ever did.
    pub node: Option<NodeId>,
    /// When its last attempt began to run.
    pub running: Option<Time>,
    /// Where others of its gang found it: one of them may still be about to start.
    pub endpoint: Option<SocketAddr>,
}

/// In what way a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// It did what it should.
    Done,
    /// It did not.
    Failed(Exit),
    /// Somebody asked for its end.
    Stopped,
    /// Its node is gone, and it can run on no other.
    Lost,
    /// Another task of its gang failed.
    WithGang,
    /// A job that should have been done before it was not.
    Before(JobId),
    /// The training ended without it.
    LeftOut,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Jobs {
    pub(super) all: BTreeMap<JobId, Job>,
    /// How many plans have counted.
    pub(super) plans: u64,
    /// What each party has used. A party that never used anything is not listed.
    pub(super) usage: BTreeMap<PartyId, Usage>,
    /// The latest mesh time at which anything happened here: a node's removal comes without one.
    pub(super) now: Moment,
    /// What was charged to the data of parties, by all trainings ever: by party and by the data's name.
    pub(super) budgets: BTreeMap<(PartyId, Name), Tally>,
    /// Follows from the rest.
    #[serde(skip)]
    pub(super) derived: Derived,
    /// Where the shards of parameter servers are, of jobs that are not over. Encoded by itself, from level 7 on.
    #[serde(skip)]
    pub(super) servers: BTreeMap<JobId, Laid>,
}

/// What follows from the jobs, kept so that nothing has to walk through all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Derived {
    /// Jobs that are not over.
    pub(super) live: BTreeSet<JobId>,
    /// Jobs that are over, by party and in the order of their end.
    pub(super) over: BTreeMap<PartyId, BTreeSet<(u64, JobId)>>,
    /// Live jobs that wait for others.
    pub(super) later: BTreeSet<JobId>,
    /// Jobs that are over since the change began, or dropped: what they kept goes. Empty between two commands.
    pub(super) ended: Vec<JobId>,
    /// Versions that nobody needs any more. Likewise.
    pub(super) loose: Vec<VersionId>,
    /// What each party's jobs weigh. A party without jobs is not listed.
    pub(super) bytes: BTreeMap<PartyId, u64>,
}

/// Specs are shared between clones of the state: they never change.
mod shared {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        spec: &Arc<JobSpec>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        JobSpec::serialize(spec, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<JobSpec>, D::Error> {
        JobSpec::deserialize(deserializer).map(Arc::new)
    }
}

impl Task {
    pub(super) fn new() -> Self {
        Self {
            state: TaskState::Waiting,
            attempts: 0,
            fence: 0,
            failures: 0,
            preemptions: 0,
            failed_on: BTreeMap::new(),
            not_before: None,
            checkpoint: None,
            staged: None,
            drafts: BTreeMap::new(),
            last: None,
        }
    }

    /// Its attempt that counts, if it has one.
    pub fn given(&self) -> Option<&Given> {
        match &self.state {
            TaskState::Given(given) => Some(given),
            _ => None,
        }
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<&End> {
        match &self.state {
            TaskState::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Whether it waits for a place.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, TaskState::Waiting)
    }
}

/// What people call the state of a job or of a task: the word, and whether it is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// For a place, for jobs before it, or for the end of a pause after a failure.
    Waiting,
    /// It has a place.
    Placed,
    /// Code, data and image are on their way.
    Fetching,
    /// It runs.
    Running,
    /// It was asked to end.
    Stopping,
    /// Final: it did what it should.
    Done,
    /// Final: it did not.
    Failed,
    /// Final: somebody asked for its end.
    Stopped,
    /// Final: where it ran is gone, and it can run nowhere else.
    Lost,
}

impl Stage {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Waiting => "waiting",
            Stage::Placed => "placed",
            Stage::Fetching => "fetching",
            Stage::Running => "running",
            Stage::Stopping => "stopping",
            Stage::Done => "done",
            Stage::Failed => "failed",
            Stage::Stopped => "stopped",
            Stage::Lost => "lost",
        }
    }

    /// Whether nothing comes after it.
    pub fn is_final(self) -> bool {
        self >= Stage::Done
    }
}

/// A line about why something could not start: cut to what a [`Note`] takes.
pub fn note(text: &str) -> Note {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(super::data::content::MAX_NOTE_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line.parse().unwrap_or_default()
}
