//! What members can ask of the state about jobs. See [`super`] for the rules.

use std::net::SocketAddr;

use mesh_consensus::id::{JobId, NodeId, PartyId};
use serde::{Deserialize, Serialize};

use super::super::data::{Note, VersionNew};
use super::super::name::Name;
use crate::job::{Allotment, JobSpec};

/// The most ends and places of one plan together.
pub const MAX_PLACES: usize = 1024;

/// Submits a job of the author's party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSubmit {
    /// Random, and the same if it is submitted again because no answer came.
    pub job: JobId,
    /// The author's party.
    pub party: PartyId,
    /// What is to be run.
    pub spec: Box<JobSpec>,
}

/// Asks for the end of a job of the author's party. One that is over stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStop {
    /// Which one.
    pub job: JobId,
}

/// Drops a job of the author's party that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobForget {
    /// Which one.
    pub job: JobId,
}

/// Says what ends and what is placed, at once. By a member that votes: the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assign {
    /// How many plans had counted when this one was made.
    pub plans: u64,
    /// What ends.
    pub ends: Vec<Undone>,
    /// What is placed.
    pub places: Vec<Placed>,
}

/// An attempt that ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// The fence of the attempt that is meant.
    pub fence: u64,
    /// Why: [`Why::Preempted`] or [`Why::Lost`].
    pub why: Why,
}

/// Why an attempt ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Somebody asked for the end of the job.
    Stop,
    /// It makes room for another job, and will be placed again.
    Preempted,
    /// Nothing was heard of its node for too long. It counts no more, wherever it runs.
    Lost,
    /// Another task of its gang is gone, and all start again.
    Gang,
    /// Another task of its gang failed for good.
    GangFailed,
}

/// A task that gets a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// Where.
    pub node: NodeId,
    /// With what.
    pub allotment: Allotment,
}

/// A node tells how far an attempt is that was given to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskNews {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// What is new.
    pub news: News,
}

/// What is new of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// Code, data and image are on their way.
    Fetching,
    /// It waits for the rest of its gang.
    Ready {
        /// Where they find it.
        endpoint: SocketAddr,
    },
    /// It runs.
    Running,
    /// It is over, and was not good: [`TaskDone`] tells of those that were.
    Ended(Exit),
}

/// What an attempt came to, if it was not good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It ended by itself. With 0 as well, if it was asked to end.
    Code(u8),
    /// It ended by a signal that mesh did not send.
    Signal(u8),
    /// It was killed because it took more memory than it may have.
    Memory,
    /// It was ended because its time was up.
    Time,
    /// It was ended because it was asked to end.
    Stopped,
    /// It could not be started, which no other attempt would change.
    Cannot(Note),
    /// Its node could not run it; another one might.
    Unable(Note),
}

/// A task did what it should. What it leaves behind counts in the same entry, or not at all: of the attempts at a task
/// only one is ever done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDone {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// Its outputs, by their names in the job.
    pub outputs: Vec<(Name, VersionNew)>,
}

/// Keeps what a task has come to so far. The version of the same kind before it is dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskKeep {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// What for.
    pub what: Kept,
    /// The version.
    pub new: VersionNew,
}

/// What a version is kept for while its task is not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// The next attempt starts from it. What was staged for it goes.
    Checkpoint,
    /// A checkpoint that waits for its copies: the one before it stands until then.
    Staged,
    /// An output, so that it has copies before the task is said to be done. It goes when the real one is made.
    Draft(Name),
}

impl Exit {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Exit::Code(code) => format!("exit code {code}"),
            Exit::Signal(signal) => format!("killed: signal {signal}"),
            Exit::Memory => "killed: memory".into(),
            Exit::Time => "killed: time limit".into(),
            Exit::Stopped => "stopped".into(),
            Exit::Cannot(note) | Exit::Unable(note) => note.to_string(),
        }
    }
}
