//! The trait of the replicated state, as this crate needs it.
//!
//! `node/src/state` implements it. Whatever an implementation does must depend on its arguments
//! alone: the same entries give the same bytes on every node. Time and randomness reach it through
//! [`At`] and no other way.

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::id::{Epoch, MeshId, NodeId, RaftId};
use crate::log::Config;
use crate::time::Time;

/// Where in the common history a command stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The mesh.
    pub mesh: MeshId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The entry's index. It serves as the fence of whatever is assigned here.
    pub index: u64,
    /// Mesh time: never less than at any entry before.
    pub time: Time,
    /// Who signed the batch. Its signature and its place among the members have been checked.
    pub author: NodeId,
    /// The batch's number among its author's.
    pub sequence: u64,
    /// The command's place in its batch.
    pub position: u32,
}

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It took effect.
    Done,
    /// It changed nothing. The number is the state machine's own code for why.
    Refused(u16),
}

/// The node must stop: going on would mean to guess.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// The others use something that this version does not know.
    #[error(
        "the mesh is at level {level}, and this version knows levels up to {supports}: \
         mesh {install} or later is needed"
    )]
    TooOld {
        /// The mesh's level.
        level: u16,
        /// What this version supports.
        supports: u16,
        /// The first version that supports it.
        install: String,
    },
    /// A later version stored it.
    #[error("the snapshot has format {found}, and this version knows {known}")]
    Newer {
        /// Its format.
        found: u16,
        /// What this version knows.
        known: u16,
    },
    /// What is stored cannot be what this node stored.
    #[error("the stored state is damaged: {0}")]
    Damaged(String),
}

impl Halt {
    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Halt::TooOld { .. } => "install that version of mesh, and start the node again",
            Halt::Newer { .. } => "install the version of mesh that last ran here, or a later one",
            Halt::Damaged(_) => {
                "check the directory; if it is the right one, move it aside and join again"
            }
        }
    }
}

/// A replicated state. See the module for what it must never do.
pub trait StateMachine {
    /// Does what the command says, or refuses it.
    fn apply(&mut self, at: &At, command: &Command) -> Result<Outcome, Halt>;
    /// Whether batches of `author` count.
    fn may_write(&self, author: NodeId) -> bool;
    /// Everything, in one canonical encoding.
    fn snapshot(&self) -> Vec<u8>;
    /// About how many bytes [`StateMachine::snapshot`] gives, told without making one. The same on every node.
    fn weight(&self) -> u64;
    /// Replaces everything by what [`StateMachine::snapshot`] gave.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), Halt>;
    /// The member that sits at `seat` (also while it is leaving).
    fn node_at(&self, seat: RaftId) -> Option<NodeId>;
    /// The seat of a member (also while it is leaving).
    fn seat_of(&self, node: NodeId) -> Option<RaftId>;
    /// Whether `node` was a member once and may never come back.
    fn is_removed(&self, node: NodeId) -> bool;
    /// Whether the rules allow these voters and learners. A change to others is void.
    fn allows(&self, next: &Config) -> bool;
    /// The configuration that holds from `index` on.
    fn on_config(&mut self, index: u64, config: &Config);
    /// A recovery has begun `epoch` at `index`, with `survivor` as the only voter.
    fn on_recovery(&mut self, index: u64, epoch: Epoch, survivor: RaftId);
}
