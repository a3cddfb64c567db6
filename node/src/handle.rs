//! What the rest of the process asks of a running node.

use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::core::Role;
use mesh_consensus::id::{Epoch, Hash, MeshId, NodeId, RaftId};
use mesh_consensus::replica::{Rejected, Replica};
use mesh_consensus::time::Time;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::Net;
use tokio::sync::{RwLock, broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::author::{PATIENCE, Write};
use crate::awareness::hub::Hub;
use crate::config::Config;
use crate::data::Data;
use crate::departure::Departure;
use crate::dir::Dir;
use crate::engine::{Order, Orders, Refused, Roster, Shown};
use crate::executor::Executor;
use crate::favourite::Favourite;
use crate::party::{PartySecret, SealingSecret};
use crate::state::State;
use crate::state::command::Act;
use crate::state::refusal::Refusal;
use crate::training::Training;
use crate::wire::{Reply, Request};
use crate::work::Work;

/// How long a server may take to say how far to apply: a round of heartbeats. Then the next one is asked.
const TRY: Duration = Duration::from_secs(1);
/// How long a write that is on its way waits for its answer once this node knows that it was removed.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How a node takes part in the agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its vote counts.
    Voter,
    /// It receives the log from the leader.
    Learner,
    /// It follows the log from another node.
    Watcher,
    /// It was admitted, and has no state yet.
    Joining,
}

impl Part {
    /// As `--json` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Part::Voter => "voter",
            Part::Learner => "learner",
            Part::Watcher => "watcher",
            Part::Joining => "joining",
        }
    }
}

/// What a node is doing right now. Small, and refreshed at every turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// How it takes part.
    pub part: Part,
    /// Its role in raft.
    pub role: Role,
    /// The term it is in.
    pub term: u64,
    /// The leader it knows of.
    pub leader: Option<NodeId>,
    /// The last index applied here.
    pub index: u64,
    /// What it knows to be committed.
    pub commit: u64,
    /// Mesh time.
    pub time: Time,
    /// The hash chain over everything applied.
    pub history: Hash,
    /// Grows whenever members, parties or the configuration change: see [`Roster`].
    pub revision: u64,
    /// Raft's tick here: the members' own, or a longer one where the wire is slow.
    pub tick: Duration,
    /// The steady moment at which this node last knew that it was up to date (heard a leader, led with
    /// a quorum, or got a bookmark). `None` if never since it started.
    pub fresh: Option<std::time::Instant>,
    /// When it last led, or followed a leader of its own configuration; at first, when it started.
    pub settled: std::time::Instant,
}

impl Pulse {
    /// Whether this node leads.
    pub fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }
}

/// What a look at the replica sees.
pub struct See<'a> {
    /// The replica as applied here.
    pub replica: &'a Replica<State>,
    /// What the node is doing.
    pub pulse: &'a Pulse,
}

/// One thing to write, and whether the party must sign it.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What.
    pub act: Act,
    /// Whether it goes out under the party's signature.
    pub signed: bool,
}

/// Why a write was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The state refused the command at this position.
    #[error("{refusal}")]
    Refused {
        /// Which of the commands.
        position: u32,
        /// Why.
        refusal: Refusal,
    },
    /// Refused with a code that a later version gave.
    #[error("refused for a reason that this version does not know (code {0})")]
    Unknown(u16),
    /// The whole batch does not count.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// Nobody answered in time. It may still take effect.
    #[error("no answer within {} s: there may be no leader", .0.as_secs())]
    NoAnswer(Duration),
    /// Too many wait already.
    #[error("too many writes wait for an answer")]
    Busy,
    /// This node cannot write its own number down, and so has sent nothing.
    #[error("this node's disk takes nothing: {0}")]
    Disk(String),
    /// The party's signing key is not on this node.
    #[error("the signing key of this node's party is not on this node")]
    NoPartyKey,
    /// This node is no member any more, and knows it.
    #[error("this node was removed from its mesh")]
    Removed {
        /// Whether it was on its way by then: it may have taken effect before.
        sent: bool,
    },
    /// The node stops.
    #[error("the node is stopping")]
    Stopping,
}

/// Why a linearizable read was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nobody answered in time.
    #[error("no leader answered within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// Too many wait already.
    #[error("too many reads wait for an answer")]
    Busy,
    /// This node is no member any more, and knows it.
    #[error("this node was removed from its mesh")]
    Removed,
    /// The node stops.
    #[error("the node is stopping")]
    Stopping,
}

/// Something that happened, for whoever watches.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Happened {
    /// The index at which it happened, or was seen.
    pub index: u64,
    /// Mesh time.
    pub time_ms: u64,
    /// What kind: `member_joined`, `member_left`, `leader_changed`, `role_changed`, `request_opened`,
    /// `request_closed`, `party_founded`, `voters_changed`, `level_raised`.
    pub kind: &'static str,
    /// The node, party or request that it is about, if any.
    pub about: Option<String>,
    /// In words.
    pub text: String,
}

/// Whose node this is, and of which mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whoami {
    /// The mesh.
    pub mesh: MeshId,
    /// Its epoch.
    pub epoch: Epoch,
    /// This node.
    pub node: NodeId,
    /// Its seat.
    pub seat: RaftId,
}

/// Writes for this node.
#[derive(Clone)]
pub struct Writer {
    /// To the author.
    pub(crate) sender: mpsc::Sender<Write>,
    /// Whether this node was removed, as far as it knows.
    pub(crate) removed: watch::Receiver<bool>,
}

impl Writer {
    /// Writes all of `asks` in one batch, and waits until this node has applied it. Gives the index
    /// and the position of the first command: together they name what was made.
    pub async fn write(&self, asks: Vec<Ask>) -> Result<Written, WriteError> {
        let mut removed = self.removed.clone();
        // Nobody takes anything from one that was removed, so there is nothing to wait for.
        if *removed.borrow() {
            return Err(WriteError::Removed { sent: false });
        }
        let known = async {
            let known = removed.wait_for(|removed| *removed).await.is_ok();
            tokio::time::sleep(LAST_WORD).await;
            known
        };
        tokio::select! {
            biased;
            written = self.hand_in(asks) => written,
            true = known => Err(WriteError::Removed { sent: true }),
        }
    }

    async fn hand_in(&self, asks: Vec<Ask>) -> Result<Written, WriteError> {
        let (reply, answer) = oneshot::channel();
        let waits = self.sender.send_timeout(Write { asks, reply }, PATIENCE);
        waits.await.map_err(|error| match error {
            mpsc::error::SendTimeoutError::Timeout(_) => WriteError::Busy,
            mpsc::error::SendTimeoutError::Closed(_) => WriteError::Stopping,
        })?;
        let (receipt, first) = answer.await.map_err(|_| WriteError::Stopping)??;
        Ok(Written { index: receipt.index, first })
    }
}

/// Where a write took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The entry.
    pub index: u64,
    /// The place of its first command there.
    pub first: u32,
}

/// A running node, as the rest of the process sees it. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

/// What a handle reaches.
pub struct Inner {
    /// Whose node it is.
    pub whoami: Whoami,
    /// Its directory.
    pub dir: Dir,
    /// Its settings.
    pub config: Config,
    /// What the engine shows.
    pub shown: Shown,
    /// Where orders go.
    pub orders: Orders,
    /// Writes.
    pub writer: Writer,
    /// The data plane.
    pub net: Net,
    /// The seated node that answered last.
    pub favourite: Arc<Favourite>,
    /// What members say about themselves.
    pub hub: Arc<Hub>,
    /// Its datasets.
    pub data: Data,
    /// What runs here.
    pub work: Work,
    /// Its part in trainings: pieces of models, and the shards that it sums.
    pub training: Training,
    /// What runs it.
    pub executor: Executor,
    /// The party's secret, if this node has it.
    pub secret: Arc<RwLock<Option<PartySecret>>>,
    /// The party's sealing secret, if this node has it: without it, private data cannot be read.
    pub sealing: Arc<RwLock<Option<SealingSecret>>>,
    /// Whether this node was removed, as far as it knows: see [`crate::removal`].
    pub removed: watch::Sender<bool>,
    /// A later epoch than this node's, of which another member told when this one was cut off; zero if none did.
    pub later_epoch: std::sync::atomic::AtomicU32,
    /// The way out.
    pub departure: Departure,
    /// When the node was started.
    pub started: std::time::Instant,
    /// Ends the node.
    pub stop: CancellationToken,
    /// Where the HTTP API listens on TCP.
    pub api: std::sync::OnceLock<std::net::SocketAddr>,
}

impl std::ops::Deref for Handle {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl Handle {
    /// Ties the parts together.
    pub fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// What the node is doing.
    pub fn pulse(&self) -> Pulse {
        self.shown.pulse.borrow().clone()
    }

    /// Whether this node was removed from its mesh, as far as it knows.
    pub fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }

    /// Who belongs.
    pub fn roster(&self) -> Arc<Roster> {
        self.shown.roster.borrow().clone()
    }

    /// Looks at the replica, on the engine's own thread: `look` must be quick.
    pub async fn look<T, F>(&self, look: F) -> Result<T, ReadError>
    where
        T: Send + 'static,
        F: FnOnce(&See<'_>) -> T + Send + 'static,
    {
        look_at(&self.orders, look).await
    }

    /// Writes, and waits until this node has applied it.
    pub async fn write(&self, asks: Vec<Ask>) -> Result<Written, WriteError> {
        self.writer.write(asks).await
    }

    /// Returns once this node has applied everything that was committed when it was called.
    pub async fn barrier(&self) -> Result<u64, ReadError> {
        let deadline = Instant::now() + PATIENCE;
        let mut tries = 0usize;
        while Instant::now() < deadline {
            if self.is_removed() {
                return Err(ReadError::Removed);
            }
            let index = match self.pulse().part {
                Part::Voter | Part::Learner => {
                    let (reply, answer) = oneshot::channel();
                    match self.orders.give(Order::Read(reply)) {
                        Ok(()) => match tokio::time::timeout_at(deadline, answer).await {
                            Ok(answered) => answered.map_err(|_| ReadError::Stopping)?,
                            Err(_) => None,
                        },
                        Err(Refused::Stopped) => return Err(ReadError::Stopping),
                        Err(Refused::Busy) => None,
                    }
                }
                Part::Watcher | Part::Joining => self.ask_index(tries).await,
            };
            tries += 1;
            if let Some(index) = index {
                let mut pulse = self.shown.pulse.clone();
                let reached = pulse.wait_for(|pulse| pulse.index >= index);
                return match tokio::time::timeout_at(deadline, reached).await {
                    Ok(Ok(_)) => Ok(index),
                    Ok(Err(_)) => Err(ReadError::Stopping),
                    Err(_) => Err(ReadError::NoAnswer(PATIENCE)),
                };
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(ReadError::NoAnswer(PATIENCE))
    }

    /// Asks a node with a seat how far to apply first.
    async fn ask_index(&self, tries: usize) -> Option<u64> {
        let servers = crate::follow::servers(&self.shown, self.whoami.node);
        let server = self.favourite.pick(&servers, tries)?;
        let request = encode(&Request::ReadIndex).ok()?;
        let bytes = self.net.call(server, request, TRY).await.ok()?;
        match decode(&bytes).ok()? {
            Reply::Index(index) => {
                self.favourite.answered(server);
                Some(index)
            }
            _ => None,
        }
    }

    /// What happens from now on.
    pub fn happenings(&self) -> broadcast::Receiver<Arc<Happened>> {
        self.shown.happened.subscribe()
    }
}

/// Looks at the replica, on the engine's own thread.
pub async fn look_at<T, F>(orders: &Orders, look: F) -> Result<T, ReadError>
where
    T: Send + 'static,
    F: FnOnce(&See<'_>) -> T + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    let look = Box::new(move |see: &See<'_>| {
        // Whoever asked may have gone.
        let _ = reply.send(look(see));
    });
    orders.give(Order::Look(look)).map_err(|refused| match refused {
        Refused::Busy => ReadError::Busy,
        Refused::Stopped => ReadError::Stopping,
    })?;
    answer.await.map_err(|_| ReadError::Stopping)
}
