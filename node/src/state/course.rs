//! The course of a training: who coordinates it, which model stands, which round is open, what came of each participant.
//!
//! ```text
//!              CourseClaim                CourseRound { open }
//!   nobody ───────────────► a lease ───────────────────────────► round 0 is open: one participant makes the first model
//!                             ▲                                     │ CourseRound { model, counted, open }
//!        it ran out; another  │                                     ▼
//!        node claims it       └──────────────────────────────  model 0 stands, round 1 is open … CourseEnd
//! ```
//!
//! A **model** stands once its pieces are on two nodes (where there are two), and the entry that says so also says which
//! updates are in it and opens the next round: a round costs one entry. Whoever holds the lease may say so, nobody else: the
//! lease has an *epoch*, the index of the entry that granted it, and what an earlier holder still sends is refused. So of two
//! that both think they coordinate, one commits, and a round commits once.
//!
//! An update is known by its task, the fence of the attempt that made it, and a serial number that grows; what was counted once is
//! refused afterwards. Values themselves never stand here: hashes do.
//!
//! What is charged to a participant's budget is kept twice: with the job, and for good with the party and its data, as other
//! jobs spend from the same budget.
//!
//! | file | holds |
//! |---|---|
//! | `rules.rs` | who may ask what |
//! | `change.rs` | what comes of it |
//! | `look.rs` | reading, and what to tell people |
//! | `sound.rs` | what must hold in a snapshot, and how much of it there can be |

mod change;
mod look;
mod rules;
mod sound;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{Hash, JobId, NodeId, VersionId};
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use super::data::Note;
use super::name::Name;
use crate::job::training::Real;

/// The most pieces that a model's weights are cut into.
pub const MAX_SHARDS: usize = 64;
/// The most metrics of a round.
pub const MAX_METRICS: usize = 16;
/// Points of a curve that are kept: when there are more, every second one goes.
pub const MAX_POINTS: usize = 256;
/// The longest lease.
pub const MAX_LEASE_MS: u32 = 60_000;
/// The largest model, in bytes.
pub const MAX_MODEL_BYTES: u64 = 1 << 40;
/// The most holders of a model.
pub const MAX_HOLDERS: usize = 64;
/// The most budgets, of all parties and all data.
pub const MAX_BUDGETS: usize = 4096;
/// The most kinds of noise of one budget.
pub const MAX_TALLY: usize = 64;

/// What was charged to one party's data: so many rounds (the value) with so much noise (the key: the bits of it as an f64).
pub type Tally = BTreeMap<u64, u32>;

/// See the module. A job that trains has one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Course {
    /// Who coordinates.
    pub lease: Option<Lease>,
    /// The model that stands.
    pub model: Option<Model>,
    /// The round that is open.
    pub open: Option<Open>,
    /// What came of each participant, by its task.
    pub records: BTreeMap<u32, Record>,
    /// How the metrics went.
    pub curve: Vec<Point>,
    /// How it ended. Then participants are told to end, and the job is over with them.
    pub verdict: Option<Verdict>,
    /// What was charged to a participant's budget: so many rounds.
    pub charged: BTreeMap<u32, u32>,
}

/// The right to coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who has it.
    pub node: NodeId,
    /// The index of the entry that granted it.
    pub epoch: u64,
    /// For how long at a time.
    pub ms: u32,
    /// From this moment on another node may claim it.
    pub until: Time,
}

/// Bytes with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// Their BLAKE3.
    pub hash: Hash,
    /// How many.
    pub bytes: u64,
}

/// A model that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// How many rounds are in it; 0 for the first.
    pub round: u32,
    /// Names, shapes and kinds of its tensors: the header of a safetensors file.
    pub layout: Piece,
    /// Its values, all tensors one after the other, f32 in little-endian, cut into shards.
    pub weights: Vec<Piece>,
    /// What the server's optimiser keeps for each shard; empty where the strategy has none.
    pub optimiser: Vec<Piece>,
    /// Who holds all of it.
    pub holders: BTreeSet<NodeId>,
}

/// A round that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Which: the model that it makes.
    pub round: u32,
    /// Whose updates it waits for: tasks.
    pub selected: BTreeSet<u32>,
    /// Who sums which shard.
    pub aggregators: Vec<NodeId>,
    /// When it was opened. Whatever its author wrote, the state sets it.
    pub since: Time,
    /// So long it waits once it has enough.
    pub deadline_ms: Option<u64>,
}

/// What came of a participant so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// Updates that are in a model.
    pub taken: u32,
    /// Of these, how many began from an earlier model than the last.
    pub late: u32,
    /// Updates that were refused.
    pub refused: u32,
    /// Rounds that did not wait for it any longer.
    pub missed: u32,
    /// Rounds missed one after the other, until now.
    pub missed_in_a_row: u32,
    /// Examples that went into what was taken.
    pub examples: u64,
    /// Its last times.
    pub times: Times,
    /// The last update that was counted: the attempt's fence, and the serial.
    pub last: Option<(u64, u64)>,
    /// Why the last refusal, or what else there is to say.
    pub why: Option<Note>,
}

/// How long a participant took, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Times {
    /// To get the model.
    pub fetch_ms: u32,
    /// To train.
    pub compute_ms: u32,
    /// To send its update.
    pub upload_ms: u32,
}

/// A point of a curve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Of which round.
    pub round: u32,
    /// When it was committed.
    pub at: Time,
    /// Means over the participants, by examples.
    pub metrics: BTreeMap<Name, Real>,
}

/// How a training ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// All rounds are done, and the model is a version.
    Done {
        /// Which.
        model: VersionId,
    },
    /// The budget is spent before all rounds were done; what there is is a version.
    Spent {
        /// Which.
        model: VersionId,
    },
    /// It could not go on.
    Failed(Note),
}

/// Takes, or keeps, the right to coordinate. By a node of a party that may sum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseClaim {
    /// Of which job.
    pub job: JobId,
    /// For how long at a time.
    pub ms: u32,
}

/// Commits a model, or opens a round, or both. By the holder of the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseRound {
    /// Of which job.
    pub job: JobId,
    /// The epoch of the author's lease.
    pub epoch: u64,
    /// The model of the round that is open.
    pub model: Option<Model>,
    /// What came of whom in that round.
    pub counted: Vec<Counted>,
    /// Its metrics.
    pub metrics: BTreeMap<Name, Real>,
    /// The next round; or the same one again, with others.
    pub open: Option<Open>,
}

/// What came of a participant in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Its task.
    pub task: u32,
    /// How.
    pub how: CountedAs,
    /// How long it took, if that is known.
    pub times: Option<Times>,
}

/// How a participant counted in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CountedAs {
    /// Its update is in the model.
    Taken {
        /// The fence of the attempt that made it.
        fence: u64,
        /// The update's number.
        serial: u64,
        /// The model from which it began.
        base: u32,
        /// Examples.
        examples: u64,
        /// The update, whole, by its hash.
        update: Hash,
    },
    /// Its update was refused.
    Refused {
        /// The fence of the attempt that made it.
        fence: u64,
        /// The update's number.
        serial: u64,
        /// Why.
        why: Note,
    },
    /// Nothing came in time.
    Missed,
}

/// Charges a round to the budgets of participants, before any noise is drawn for it. By the holder of the lease. A round that is
/// repeated is charged again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseCharge {
    /// Of which job.
    pub job: JobId,
    /// The epoch of the author's lease.
    pub epoch: u64,
    /// Which round.
    pub round: u32,
    /// Whose: tasks.
    pub tasks: BTreeSet<u32>,
}

/// Says how the training ended. By the holder of the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseEnd {
    /// Of which job.
    pub job: JobId,
    /// The epoch of the author's lease.
    pub epoch: u64,
    /// How.
    pub verdict: Verdict,
}
