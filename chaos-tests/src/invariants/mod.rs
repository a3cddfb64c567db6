//! One promise per file. [`World`](crate::world::World) shows each of them every turn of every host.
//!
//! An invariant keeps what it needs to remember, and answers with a sentence when the promise is
//! broken.

use mesh_consensus::driver::{Status, Turn};
use mesh_consensus::id::{NodeId, RaftId};
use mesh_consensus::message::Message;
use mesh_consensus::replica::Replica;
use mesh_node::state::State;
use mesh_storage::log::RedbLog;

mod acked_survives;
mod equal_hashes;
mod exactly_once;
mod leader_completeness;
mod linearizable;
mod listens_first;
mod log_matching;
mod monotonic;
mod one_leader;
mod shared_quorum;

pub use linearizable::History;
pub(crate) use shared_quorum::is_quorum;

/// One turn of one host, after everything that it did is durable.
pub struct Seen<'a> {
    /// Which host.
    pub host: usize,
    /// Its node.
    pub node: NodeId,
    /// The seat of its data directory.
    pub seat: RaftId,
    /// What it was doing before; `None` in the first turn after a start.
    pub before: Option<&'a Status>,
    /// What it is doing now.
    pub after: &'a Status,
    /// The leader asked it to campaign.
    pub was_asked: bool,
    /// What came of the turn.
    pub turn: &'a Turn,
    /// Its log.
    pub log: &'a RedbLog,
    /// Its state.
    pub replica: &'a Replica<State>,
}

/// Everything that must hold.
#[derive(Default)]
pub struct Invariants {
    one_leader: one_leader::OneLeader,
    log_matching: log_matching::LogMatching,
    equal_hashes: equal_hashes::EqualHashes,
    leader_completeness: leader_completeness::LeaderCompleteness,
    acked_survives: acked_survives::AckedSurvives,
    exactly_once: exactly_once::ExactlyOnce,
    shared_quorum: shared_quorum::SharedQuorum,
    monotonic: monotonic::Monotonic,
    listens_first: listens_first::ListensFirst,
    /// Reads and writes of the clients.
    pub history: History,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Which one.
    pub promise: &'static str,
    /// How.
    pub how: String,
}

impl Invariants {
    /// Looks at one turn.
    pub fn observe(&mut self, seen: &Seen<'_>) -> Result<(), Broken> {
        named("one leader per term", self.one_leader.observe(seen))?;
        named("log matching", self.log_matching.observe(seen))?;
        named("equal hashes at equal index", self.equal_hashes.observe(seen))?;
        named("leader completeness", self.leader_completeness.observe(seen))?;
        named("exactly once", self.exactly_once.observe(seen))?;
        named("acknowledged means it survives", self.acked_survives.observe(seen))?;
        named("configurations share a quorum", self.shared_quorum.observe(seen))?;
        named("time, fences and promises only grow", self.monotonic.observe(seen))?;
        named("a waking node listens first", self.listens_first.observe(seen))
    }

    /// A message of a host got out, perhaps the last thing it did.
    pub fn spoke(&mut self, host: usize, message: &Message) {
        self.monotonic.spoke(host, message);
    }

    /// A host came up from its disk, before its first turn.
    pub fn opened(&mut self, host: usize, seat: RaftId, log: &RedbLog) -> Result<(), Broken> {
        named("time, fences and promises only grow", self.monotonic.opened(host, seat, log))?;
        self.log_matching.opened(host);
        Ok(())
    }

    /// Looks at a host when all is quiet and healed.
    pub fn at_rest(&self, host: usize, replica: &Replica<State>) -> Result<(), Broken> {
        let survives = self.acked_survives.at_rest(host, replica);
        named("acknowledged means it survives", survives)
    }

    /// Looks at the clients' history, at the end.
    pub fn at_end(&self) -> Result<(), Broken> {
        named("linearizable reads and writes", self.history.check())
    }

    /// The highest index that anyone has applied.
    pub fn top(&self) -> u64 {
        self.equal_hashes.top()
    }
}

fn named(promise: &'static str, result: Result<(), String>) -> Result<(), Broken> {
    result.map_err(|how| Broken { promise, how })
}
