//! What must survive a crash, and the trait of whoever keeps it.
//!
//! `storage` implements [`Log`] on redb. `core.rs` adapts it to raft-rs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::id::{Epoch, Hash, MeshId, NodeId, RaftId};

/// Whose log this is. Fixed when the data directory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The mesh it belongs to.
    pub mesh: MeshId,
    /// The epoch it belongs to. A log of another epoch is not continued: its node joins afresh.
    pub epoch: Epoch,
    /// The node that keeps it.
    pub node: NodeId,
    /// The seat that this directory was admitted to.
    pub raft_id: RaftId,
}

/// What a voter must not forget besides its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HardState {
    /// The latest term it has seen.
    pub term: u64,
    /// Whom it voted for in that term.
    pub vote: Option<RaftId>,
    /// What it knows to be committed. May lag behind: a restart then learns it again.
    pub commit: u64,
}

/// Who votes and who listens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Config {
    /// Whose majority decides.
    pub voters: BTreeSet<RaftId>,
    /// While joint, the former voters, whose majority is needed too. Otherwise empty.
    pub outgoing: BTreeSet<RaftId>,
    /// Receive the log without a vote.
    pub learners: BTreeSet<RaftId>,
    /// Former voters that become learners when the joint configuration is left.
    pub learners_next: BTreeSet<RaftId>,
}

impl Config {
    /// Whether two majorities are needed.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether `id` takes part in any way.
    pub fn contains(&self, id: RaftId) -> bool {
        [&self.voters, &self.outgoing, &self.learners, &self.learners_next]
            .iter()
            .any(|set| set.contains(&id))
    }

    /// Whether raft can work with it: somebody votes, and nobody both votes and listens.
    pub fn is_sound(&self) -> bool {
        let Self { voters, outgoing, learners, learners_next } = self;
        let ids = voters.len() + outgoing.len() + learners.len() + learners_next.len();
        !voters.is_empty()
            && ids <= MAX_CONFIG
            && !voters.contains(&RaftId(0))
            && !outgoing.contains(&RaftId(0))
            && !learners.contains(&RaftId(0))
            && learners.is_disjoint(voters)
            && learners.is_disjoint(outgoing)
            && learners_next.is_subset(outgoing)
            && learners_next.is_disjoint(voters)
    }

    /// The configuration that `change` leads to, or `None` where it cannot be made from this one.
    ///
    /// The same steps as raft-rs takes; `driver.rs` compares the two results, and those who follow
    /// the log without raft rely on this one.
    pub fn after(&self, change: &ConfigChange) -> Option<Self> {
        let mut next = self.clone();
        match change {
            ConfigChange::Leave => {
                if !self.is_joint() {
                    return None;
                }
                next.learners.append(&mut next.learners_next);
                next.outgoing.clear();
            }
            ConfigChange::Seats(seats) => {
                if self.is_joint() || !change.is_sound() {
                    return None;
                }
                if seats.len() > 1 {
                    next.outgoing = self.voters.clone();
                }
                for seat in seats {
                    next.place(*seat);
                }
            }
        }
        next.is_sound().then_some(next)
    }

    fn place(&mut self, seat: Seat) {
        let id = seat.id();
        let known = self.contains(id);
        let listens = self.learners.contains(&id);
        if matches!(seat, Seat::Learner(_)) && listens {
            return;
        }
        self.voters.remove(&id);
        self.learners.remove(&id);
        self.learners_next.remove(&id);
        match seat {
            Seat::Voter(_) => {
                self.voters.insert(id);
            }
            Seat::Learner(_) if known && self.outgoing.contains(&id) => {
                self.learners_next.insert(id);
            }
            Seat::Learner(_) => {
                self.learners.insert(id);
            }
            Seat::Gone(_) => {}
        }
    }
}

/// A configuration of more seats than this is refused.
pub const MAX_CONFIG: usize = 64;

/// A change of who votes, as one atomic step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigChange {
    /// Leaves a joint configuration.
    Leave,
    /// Changes seats. More than one at a time goes through a joint configuration.
    Seats(Vec<Seat>),
}

impl ConfigChange {
    /// Whether it names some seats, not too many, none twice, and no zero.
    pub fn is_sound(&self) -> bool {
        match self {
            ConfigChange::Leave => true,
            ConfigChange::Seats(seats) => {
                let ids: BTreeSet<RaftId> = seats.iter().map(|seat| seat.id()).collect();
                (1..=MAX_SEATS).contains(&seats.len())
                    && ids.len() == seats.len()
                    && !ids.contains(&RaftId(0))
            }
        }
    }
}

impl Seat {
    /// Whose seat.
    pub fn id(self) -> RaftId {
        match self {
            Seat::Voter(id) | Seat::Learner(id) | Seat::Gone(id) => id,
        }
    }
}

/// What becomes of one seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Seat {
    /// It votes.
    Voter(RaftId),
    /// It listens.
    Learner(RaftId),
    /// It is gone.
    Gone(RaftId),
}

/// A configuration change names at most this many seats.
pub const MAX_SEATS: usize = 16;

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Nothing: a new leader's first entry.
    Empty,
    /// A batch, and the leader's time when it was proposed. The bytes are as their author sent them.
    Batch {
        /// The leader's clock, in milliseconds since the Unix epoch.
        time: crate::time::Time,
        /// See [`crate::command::Batch`].
        bytes: Vec<u8>,
    },
    /// A change of who votes.
    Config(ConfigChange),
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The term of the leader that made it.
    pub term: u64,
    /// Its place.
    pub index: u64,
    /// What it says.
    pub payload: Payload,
}

/// The whole replicated state at one index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The last index that it includes.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// Who voted at that index.
    pub config: Config,
    /// The replica at that index: see [`crate::replica::Replica::snapshot`].
    pub data: Vec<u8>,
}

impl Snapshot {
    /// The digest of its content: equal on all nodes that agree at this index.
    pub fn digest(&self) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.index.to_le_bytes());
        hasher.update(&self.term.to_le_bytes());
        let config = postcard::to_stdvec(&self.config).expect("a Config always encodes");
        hasher.update(&(config.len() as u64).to_le_bytes());
        hasher.update(&config);
        hasher.update(&self.data);
        Hash(*hasher.finalize().as_bytes())
    }
}

/// One atomic, durable step. All of it is on disk when [`Log::write`] returns, or none of it.
#[derive(Debug, Default)]
pub struct Write<'a> {
    /// A leader's snapshot that replaces the log and everything before it.
    pub install: Option<&'a Snapshot>,
    /// Entries to append, contiguous. What stood at their indexes and above is dropped first.
    pub entries: &'a [Entry],
    /// The hard state from now on.
    pub hard_state: HardState,
    /// Our own snapshot, and the first index that stays in the log.
    pub compact: Option<(&'a Snapshot, u64)>,
}

/// The log could not be read or written. Final: the node stops rather than promise what it may
/// have forgotten, and a failed sync is never tried again (the kernel may have dropped the pages).
#[derive(Debug, thiserror::Error)]
#[error("the log failed while it was {doing}")]
pub struct LogError {
    /// What was being done.
    pub doing: &'static str,
    /// What went wrong.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Keeps entries, hard state and the latest snapshot.
///
/// The entries held are `first_index()..=last_index()`; the term of `first_index() - 1` is kept
/// too. An empty log of a newcomer has `first_index() == 1`, `last_index() == 0` and no snapshot.
pub trait Log {
    /// Whose log this is.
    fn identity(&self) -> Identity;
    /// As last written.
    fn hard_state(&self) -> HardState;
    /// The latest snapshot, its own or a leader's. `None` in a newcomer's empty log.
    fn snapshot(&self) -> Result<Option<Snapshot>, LogError>;
    /// The first index that can be read.
    fn first_index(&self) -> u64;
    /// The last index that can be read.
    fn last_index(&self) -> u64;
    /// The term of an entry in `first_index() - 1 ..= last_index()`; `None` elsewhere.
    fn term(&self, index: u64) -> Result<Option<u64>, LogError>;
    /// Entries `low..high`, which must be held; as many as fit into `max_bytes`, at least one.
    fn entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, LogError>;
    /// Writes one step, atomically and durably.
    fn write(&mut self, write: &Write<'_>) -> Result<(), LogError>;
}
