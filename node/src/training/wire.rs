//! What nodes say to one another about a training.
//!
//! ```text
//!  participant ── Header::Update ‖ bytes of one shard ─────► aggregator of that shard      ─► Taken
//!  coordinator ── Request::Training(Ask::Arrived / Sum) ───► aggregator                    ─► Answer
//!  coordinator ── Request::Training(Ask::Keep) ────────────► another holder                ─► Answer::Kept
//!  whoever needs a piece ── Header::Piece { job, piece } ──► a holder                      ─► its bytes
//! ```
//!
//! The coordinator may be an aggregator itself: then it answers its own questions, by the same function.

use std::collections::BTreeMap;

use mesh_consensus::id::{Hash, JobId, NodeId};
use serde::{Deserialize, Serialize};

use crate::job::training::Real;
use crate::state::course::{Piece, Times};
use crate::state::data::Note;
use crate::state::name::Name;
use crate::training::server::wire::{ServerAnswer, ServerAsk};

/// What stands before the bytes of one shard of an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateHead {
    /// Of which job.
    pub job: JobId,
    /// By which task of it.
    pub task: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// Grows with every update of an attempt.
    pub serial: u64,
    /// The round that is open, as the sender knows it.
    pub round: u32,
    /// The model from which it began; `None` for the values themselves, which make the first model.
    pub base: Option<u32>,
    /// Which shard this is.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
    /// How many values the whole model has.
    pub values: u64,
    /// Names, shapes and kinds of the tensors, with the first model: the header of a safetensors file. One that is too long for a
    /// head is left out of it; to whoever sums the first shard it goes as a frame, before the bytes.
    pub layout: Option<Vec<u8>>,
    /// The bytes that follow: this shard, packed as the job's `wire` says.
    pub piece: Piece,
    /// The hash of the hashes of all shards: the update's name.
    pub update: Hash,
    /// Examples that it was trained on.
    pub examples: u64,
    /// What its author measured while it trained, weighted by `examples`.
    pub metrics: BTreeMap<Name, Real>,
    /// What its author measured of the model that the round began with, on data held back: how many examples, and what.
    pub evaluated: Option<(u64, BTreeMap<Name, Real>)>,
    /// How long it took to get the model and to train. The aggregator knows how long the upload took.
    pub times: Times,
}

/// What the sender of an update hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Taken {
    /// It is here, whole. It counts once a commit lists it; until then it is kept by its sender.
    Here,
    /// It is here already.
    Again,
    /// This node does not sum that shard, or not yet: look at the state and try again.
    Elsewhere,
    /// There is no room for it right now: try again.
    Full,
    /// It is refused, for good.
    Refused(Note),
}

/// What is asked of an aggregator or holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Which updates have come? Answered when there are more than `seen`, or after a moment.
    Arrived {
        /// Of which job.
        job: JobId,
        /// The epoch of the coordinator's lease.
        epoch: u64,
        /// Which round is open.
        round: u32,
        /// Which shard.
        shard: u32,
        /// So many the coordinator knows.
        seen: u32,
    },
    /// Make the next model's shard of these.
    Sum {
        /// Of which job.
        job: JobId,
        /// The epoch of the coordinator's lease.
        epoch: u64,
        /// Which round is open.
        round: u32,
        /// Which shard.
        shard: u32,
        /// What goes in.
        parts: Vec<Part>,
        /// What the weighted sum is divided by.
        divisor: Real,
        /// The deviation of the noise to be added to the sum before it is divided, drawn from the system's randomness.
        noise: Option<Real>,
    },
    /// Hold these, and fetch what you lack from one of those nodes.
    Keep {
        /// Of which job.
        job: JobId,
        /// What.
        pieces: Vec<Piece>,
        /// From whom, for each piece.
        from: Vec<NodeId>,
    },
    /// About a parameter server.
    Server(Box<ServerAsk>),
}

/// An update that goes into a sum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// By which task.
    pub task: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// Its number.
    pub serial: u64,
    /// Its weight: examples, or 1, times what clipping and staleness leave of it.
    pub weight: Real,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// What has come so far.
    Arrived(Vec<Arrival>),
    /// The new shard is here.
    Summed {
        /// Its values.
        weights: Piece,
        /// What the optimiser keeps for it.
        optimiser: Option<Piece>,
        /// The header of the safetensors file, with the first model.
        layout: Option<Piece>,
    },
    /// All pieces are here.
    Kept,
    /// Not now, and why.
    No(Note),
    /// To [`Ask::Server`].
    Server(Box<ServerAnswer>),
}

/// An update of which a shard has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// By which task.
    pub task: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// Its number.
    pub serial: u64,
    /// The model from which it began.
    pub base: Option<u32>,
    /// Its name.
    pub update: Hash,
    /// How many values the whole model has, as it says.
    pub values: u64,
    /// Examples.
    pub examples: u64,
    /// See [`UpdateHead::metrics`].
    pub metrics: BTreeMap<Name, Real>,
    /// See [`UpdateHead::evaluated`].
    pub evaluated: Option<(u64, BTreeMap<Name, Real>)>,
    /// With the upload.
    pub times: Times,
    /// The sum of the squares of this shard's values; `None` if one of them is no number.
    pub norm2: Option<Real>,
}
