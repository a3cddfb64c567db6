//! What nodes say to one another about a parameter server.
//!
//! ```text
//!  a worker's node ── Ask::Server(Stand / Begin / Batch) ──► primary                    ─► Answer
//!                  ── Header::Push ‖ packed gradients ─────► primary                    ─► Pushed
//!                  ── Header::Pull ────────────────────────► primary                    ─► Pulled ‖ packed values
//!  primary ── Header::Replica ‖ values ‖ the rest ‖ OpHead ‖ bytes … ──► backup         ─► a number for each that is in
//!  coordinator ── Ask::Server(Status) ─────────────────────► primary, backup            ─► Status
//! ```
//!
//! Whoever speaks of a shard says under which epoch it knows it; one who knows another epoch answers `Elsewhere`.

use std::collections::BTreeMap;

use mesh_consensus::id::JobId;
use serde::{Deserialize, Serialize};

use super::shard::{Op, Outcome, Part, Standing};
use crate::job::training::Real;
use crate::state::course::{Piece, Times};
use crate::state::data::Note;
use crate::state::name::Name;
use crate::state::server::Far;

/// A shard, as somebody knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Where {
    /// Of which job.
    pub job: JobId,
    /// Which one.
    pub shard: u32,
    /// Its epoch.
    pub epoch: u64,
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// Its task.
    pub worker: u32,
    /// Its attempt.
    pub fence: u64,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerAsk {
    /// How does this worker stand? It is there. With a step, it takes part from that on.
    Stand {
        /// Which shard.
        at: Where,
        /// Who.
        who: Who,
        /// From which step on.
        enter: Option<u32>,
    },
    /// May it begin this step? Answered when it may, or after a moment.
    Begin {
        /// Which shard.
        at: Where,
        /// Who.
        who: Who,
        /// Which step.
        step: u32,
    },
    /// Which batch is next for it? Answered when there is one, or after a moment.
    Batch {
        /// Which shard: the first.
        at: Where,
        /// Who.
        who: Who,
    },
    /// How far is it? By the coordinator.
    Status {
        /// Which shard.
        at: Where,
    },
    /// A worker has made the first model; its pieces are with the one who asks. To the coordinator.
    First {
        /// Of which job.
        job: JobId,
        /// By whom.
        who: Who,
        /// Names and shapes.
        layout: Piece,
        /// The values, cut into shards.
        weights: Vec<Piece>,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerAnswer {
    /// To `Stand`.
    Standing(Standing),
    /// To `Begin`.
    May(bool),
    /// To `Batch`; `None` for not yet.
    Batch(Option<u32>),
    /// To `Status`.
    Status(Box<Status>),
    /// To `First`: it is heard, and may count.
    Heard,
    /// This node does not answer for that, or not yet: look at the state and ask again.
    Elsewhere,
    /// No, and why.
    No(Note),
}

/// How far a shard is, at its primary or backup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Status {
    /// Whether its values are here.
    pub has_values: bool,
    /// The primary: whether its backup has a copy, under this epoch. True where there is no backup.
    pub in_sync: bool,
    /// The primary: whether it cannot reach its backup.
    pub lost_backup: bool,
    /// How far it is.
    pub progress: u32,
    /// Whether nothing more will come.
    pub is_done: bool,
    /// Checkpoints that were taken lately: the values, and the rest.
    pub checkpoints: BTreeMap<u32, (Piece, Piece)>,
    /// How far each worker is.
    pub workers: BTreeMap<u32, Far>,
    /// What workers measured last: means.
    pub metrics: BTreeMap<Name, Real>,
}

/// What stands before gradients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushHead {
    /// Which shard.
    pub at: Where,
    /// Who.
    pub who: Who,
    /// Which step, or batch.
    pub step: u32,
    /// Which values of the shard.
    pub parts: Vec<Part>,
    /// How many bytes follow.
    pub bytes: u64,
    /// What the worker measured.
    pub metrics: BTreeMap<Name, Real>,
    /// How long it took.
    pub times: Times,
}

/// What becomes of gradients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pushed {
    /// This. Where it is in, the backup has it, too.
    Is(Outcome),
    /// This node does not answer for that shard, or cannot right now.
    Elsewhere,
}

/// Which values are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullHead {
    /// Which shard.
    pub at: Where,
    /// Who.
    pub who: Who,
    /// Which values of it.
    pub parts: Vec<Part>,
}

/// What stands before values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pulled {
    /// They follow.
    Here {
        /// How far the shard was.
        clock: u32,
        /// How many bytes.
        bytes: u64,
    },
    /// This node does not answer for that shard, or cannot right now.
    Elsewhere,
}

/// What a primary begins a copy with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaHead {
    /// Which shard.
    pub at: Where,
    /// How many bytes its values have.
    pub values: u64,
    /// How many everything else has.
    pub rest: u64,
}

/// An operation on its way to the backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpHead {
    /// What.
    pub op: Op,
    /// How many bytes follow.
    pub bytes: u64,
}
