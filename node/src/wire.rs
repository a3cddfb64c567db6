//! What nodes say to one another over the data plane.
//!
//! All of it is encoded by `transport`'s codec, with its version and its limits. A **note** is one-way
//! and may be lost. A **request** is answered. A **header** opens a stream.

use std::net::SocketAddr;

use mesh_consensus::admission::Admission;
use mesh_consensus::bookmark::Bookmark;
use mesh_consensus::handover::Handover;
use mesh_consensus::id::{Epoch, JobId, MeshId, NodeId, PartyId, RaftId, TicketId, VersionId};
use mesh_consensus::log::{Config, Entry};
use mesh_consensus::message::Message;
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use crate::awareness::view::{Known, Relayed};
use crate::state::course::Piece;
use crate::state::founding::Founding;
use crate::state::name::Name;
use crate::state::party::SignatureBytes;
use crate::training::server::wire::{PullHead, PushHead, ReplicaHead};
use crate::training::wire::UpdateHead;

/// What is said first on every connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The mesh that the speaker belongs to.
    pub mesh: MeshId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The proof of its admission, for one who does not know it yet.
    pub chain: Vec<Admission>,
}

/// One-way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// Raft's, and what a node asks of its leader.
    Raft(Message),
    /// A voter's word on the history.
    Bookmark(Bookmark),
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A batch of one who has no seat, to be passed on to the leader.
    Submit(Vec<u8>),
    /// Up to which index must one apply before a linearizable read?
    ReadIndex,
    /// Records newer than these; and here is mine.
    Records {
        /// How far the asker's knowledge goes.
        known: Vec<Known>,
        /// The asker's own.
        mine: Vec<Relayed>,
    },
    /// The party's secret, for another node of the party.
    PartySecret,
    /// The last lines of the node's log, for its own party.
    Log {
        /// How many lines.
        lines: u32,
    },
    /// The party's sealing secret, for another node of the party, a worker too.
    SealingSecret,
    /// Are you there? One that does not know this question says no, and that is an answer as well.
    Ping,
    /// About a training, of one who sums or holds: see [`crate::training::wire`].
    Training(crate::training::wire::Ask),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It was taken, and may be lost all the same.
    Taken,
    /// Answer to [`Request::ReadIndex`].
    Index(u64),
    /// Signed records.
    Records(Vec<Relayed>),
    /// Answer to [`Request::PartySecret`].
    Secret([u8; 32]),
    /// Lines of text.
    Log(String),
    /// Not now: no leader is known, or too much waits.
    NotNow,
    /// No.
    Refused,
    /// Answer to [`Request::SealingSecret`].
    SealingSecret([u8; 32]),
    /// Answer to [`Request::Training`].
    Training(crate::training::wire::Answer),
}

/// What a stream is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Header {
    /// The committed log from `index` on.
    Watch {
        /// The last index that the watcher has; zero for none.
        index: u64,
    },
    /// The manifest of a version of a dataset.
    Manifest {
        /// Which version.
        version: VersionId,
    },
    /// Chunks of a version: see [`crate::data::wire`].
    Swarm {
        /// Which version.
        version: VersionId,
        /// Drawn by whoever pulls: its strips are known by it.
        link: u64,
    },
    /// A further stream for the bytes of such a link, on a connection of its own.
    Strip {
        /// Which link of the same peer.
        link: u64,
        /// Which of its strips, from one on.
        number: u8,
    },
    /// Something about an attempt at a task, for the party of its job.
    Task {
        /// Of which job.
        job: JobId,
        /// Which task of it.
        task: u32,
        /// The fence of the attempt.
        fence: u64,
        /// What.
        ask: crate::work::stream::Ask,
    },
    /// One shard of an update, for whoever sums it. A [`crate::training::wire::Taken`] comes back.
    Update(Box<UpdateHead>),
    /// A piece of a model, from one who holds it.
    Piece {
        /// Of which job.
        job: JobId,
        /// Which one: its bytes come back, bare.
        piece: Piece,
    },
    /// Gradients, for the primary of a shard. A [`crate::training::server::wire::Pushed`] comes back.
    Push(Box<PushHead>),
    /// Values of a shard, from its primary: a [`crate::training::server::wire::Pulled`], and they.
    Pull(Box<PullHead>),
    /// A copy of a shard, for its backup, and then what is done to it.
    Replica(ReplicaHead),
}

/// What a watcher is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Feed {
    /// A snapshot begins. Its bytes follow in parts, and then entries from its index on.
    Snapshot {
        /// The last index that it includes.
        index: u64,
        /// The term of that entry.
        term: u64,
        /// Who voted.
        config: Config,
        /// How many bytes follow.
        bytes: u64,
    },
    /// Some of the snapshot's bytes.
    Part(Vec<u8>),
    /// The next entries.
    Entries(Vec<Entry>),
    /// A voter's word.
    Bookmark {
        /// The word.
        mark: Bookmark,
        /// How long ago it was said, at least.
        age_ms: u64,
    },
    /// Who leads, as far as the server knows: to be shown, and not to be relied on.
    Leader {
        /// In which term.
        term: u64,
        /// Who.
        leader: Option<NodeId>,
    },
    /// The server has nothing to begin with: try another.
    Elsewhere,
    /// A change of voters, signed by those before it.
    Handover(Handover),
}

/// A newcomer's question, over a connection that proved to be its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinRequest {
    /// Let me in.
    Join {
        /// The ticket.
        ticket: TicketId,
        /// What I want to be called.
        name: Name,
        /// By the ticket's key.
        proof: SignatureBytes,
        /// By the newcomer's key.
        consent: SignatureBytes,
        /// The newcomer's clock.
        clock: Time,
    },
    /// Found my party, by an invitation.
    Found {
        /// The invitation.
        invite: TicketId,
        /// What the party wants to be called.
        name: Name,
        /// Its signing key.
        signing: PartyId,
        /// Its sealing key.
        sealing: [u8; 32],
        /// The ticket with which its first node will join.
        ticket: TicketId,
        /// By the invitation's key.
        proof: SignatureBytes,
        /// By the party's key.
        consent: SignatureBytes,
    },
    /// What has become of the request to found my party?
    Decided {
        /// The request.
        request: u64,
        /// The party's signing key.
        signing: PartyId,
    },
    /// I was a member and lost my log: a batch of mine that asks for a new seat.
    Rejoin {
        /// A signed batch with one `Rejoin` in it.
        batch: Vec<u8>,
    },
    /// Which epoch is it, and which batch number of mine is free? For one who lost everything but its key.
    Where,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinReply {
    /// Welcome.
    Welcome(Box<Welcome>),
    /// The party is founded: join with its first ticket.
    Founded,
    /// Others have to agree first: the request that waits.
    Waits {
        /// Its number.
        request: u64,
    },
    /// Answer to [`JoinRequest::Where`].
    Here {
        /// The epoch.
        epoch: Epoch,
        /// The highest number that has counted.
        top: u64,
    },
    /// No, and why.
    Refused {
        /// The state's code for it, if the state refused.
        code: Option<u16>,
        /// In words.
        why: String,
    },
    /// There is no leader right now.
    NoLeader,
}

/// What a newcomer needs to begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The epoch.
    pub epoch: Epoch,
    /// The seat.
    pub seat: RaftId,
    /// The party.
    pub party: PartyId,
    /// Whether the node goes without the party's signing key.
    pub worker: bool,
    /// How the mesh began: hashes to its name.
    pub founding: Founding,
    /// The proof of admission.
    pub chain: Vec<Admission>,
    /// Members and their seats.
    pub introduced: Vec<(NodeId, RaftId)>,
    /// Who votes.
    pub voters: Vec<NodeId>,
    /// Where members can be reached: signed records.
    pub records: Vec<Relayed>,
    /// Where the answering node can be reached.
    pub here: Vec<SocketAddr>,
    /// The party's secret, if the newcomer may have it and this node does.
    pub secret: Option<[u8; 32]>,
}
