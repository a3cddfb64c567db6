//! What voters say to one another.
//!
//! These are our own types, so that no byte of a peer ever reaches a protobuf parser: `transport`
//! encodes them with its codec, and `core.rs` turns them into raft-rs's structs after
//! [`crate::admit`] has looked at them. Three bodies are not raft's: [`Body::Forward`],
//! [`Body::Read`] and [`Body::ReadReply`] are how a node that does not lead asks the one that does.

use serde::{Deserialize, Serialize};

use crate::id::{Epoch, MeshId, RaftId};
use crate::log::{Entry, Snapshot};

/// A message from one seat to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The mesh it belongs to.
    pub mesh: MeshId,
    /// The epoch it belongs to: a frame of an old epoch is refused, however late it arrives.
    pub epoch: Epoch,
    /// Who speaks.
    pub from: RaftId,
    /// To whom.
    pub to: RaftId,
    /// The speaker's term; for a pre-vote and its answer, the term of the campaign in question; zero
    /// in what is not raft's.
    pub term: u64,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Entries that follow `prev_index`, from the leader.
    Append {
        /// The index before the first entry.
        prev_index: u64,
        /// The term of the entry there.
        prev_term: u64,
        /// What the leader has committed.
        commit: u64,
        /// Contiguous, from `prev_index + 1` on.
        entries: Vec<Entry>,
    },
    /// The answer to an append or a snapshot.
    AppendReply {
        /// The last index that now matches, or the `prev_index` that did not.
        index: u64,
        /// What the speaker has committed.
        commit: u64,
        /// Where to try instead.
        reject: Option<Reject>,
    },
    /// A candidate asks for a vote.
    Vote {
        /// Only asks whether it would get one.
        pre: bool,
        /// The candidate's last index.
        last_index: u64,
        /// The term of its last entry.
        last_term: u64,
        /// What it has committed.
        commit: u64,
        /// The term of the entry there.
        commit_term: u64,
        /// The leader asked it to take over.
        transfer: bool,
    },
    /// The answer to that.
    VoteReply {
        /// As in the question.
        pre: bool,
        /// Yes.
        granted: bool,
        /// What the speaker has committed, if it said no.
        commit: u64,
        /// The term of the entry there.
        commit_term: u64,
    },
    /// The leader is alive.
    Heartbeat {
        /// What it has committed, as far as the listener is known to have it.
        commit: u64,
        /// A read that waits for this beat to be answered.
        read: Option<u64>,
    },
    /// So is the follower.
    HeartbeatReply {
        /// What it has committed.
        commit: u64,
        /// As in the beat.
        read: Option<u64>,
    },
    /// The whole state, for one who is too far behind for entries.
    Snapshot(Snapshot),
    /// The leader hands over: campaign at once.
    TimeoutNow,
    /// A signed batch, for the leader to propose.
    Forward {
        /// See [`crate::command::Batch`].
        batch: Vec<u8>,
    },
    /// Asks the leader up to which index to apply before reading.
    Read {
        /// Unique to this question, also across restarts of the asker.
        context: u64,
    },
    /// The answer to that.
    ReadReply {
        /// As in the question.
        context: u64,
        /// Whoever has applied up to here may read.
        index: u64,
    },
}

/// Where a follower's log may meet the leader's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// The largest index that may match.
    pub hint_index: u64,
    /// The term of the entry there.
    pub hint_term: u64,
}

impl Body {
    /// A short name, for logs and traces.
    pub fn name(&self) -> &'static str {
        match self {
            Body::Append { .. } => "append",
            Body::AppendReply { .. } => "append-reply",
            Body::Vote { pre: true, .. } => "pre-vote",
            Body::Vote { .. } => "vote",
            Body::VoteReply { pre: true, .. } => "pre-vote-reply",
            Body::VoteReply { .. } => "vote-reply",
            Body::Heartbeat { .. } => "heartbeat",
            Body::HeartbeatReply { .. } => "heartbeat-reply",
            Body::Snapshot(_) => "snapshot",
            Body::TimeoutNow => "timeout-now",
            Body::Forward { .. } => "forward",
            Body::Read { .. } => "read",
            Body::ReadReply { .. } => "read-reply",
        }
    }
}
