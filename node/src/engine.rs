//! The thread around the consensus driver.
//!
//! One thread owns the log and the replica. Everybody else sends it [`Order`]s and never touches either.
//! While it waits for a disk, orders pile up; the next turn takes them all, and so they share one sync.
//!
//! ```text
//!             a configuration has our seat            a configuration has it no more,
//!           ┌──────────────────────────────┐          or the others went on without us
//!  start ─► watching ─────────────────► seated ─────────────────────────────► watching
//!           follow.rs feeds confirmed     raft feeds the driver
//!           entries; ≤ 1 sync a minute          │ the log failed
//!                                               ▼
//!                                            broken: opened again after a while
//! ```
//!
//! A node that must not go on (a log that cannot be what it wrote, a level that it does not know) ends
//! the thread with the reason.

mod mode;
mod outcome;
mod roster;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mesh_consensus::admission::Admission;
use mesh_consensus::autopilot::Waits;
use mesh_consensus::bookmark::{Bookmark, Forked, Tally};
use mesh_consensus::command::Batch;
use mesh_consensus::driver::{Event, Outbox, Stop};
use mesh_consensus::id::{Hash, NodeId};
use mesh_consensus::log::{Entry, Identity, LogError, Snapshot};
use mesh_consensus::machine::Halt;
use mesh_consensus::message::Message;
use mesh_consensus::planted::Planted;
use mesh_consensus::replica::{Receipt, Rejected};
use mesh_consensus::time::Time;
pub use mesh_storage::log::OpenError;
use mesh_transport::identity::NodeKey;
use mesh_transport::net::Net;
use tokio::sync::{broadcast, oneshot, watch};

use crate::clock;
use crate::dir::{Dir, LOG};
use crate::handle::{Happened, Pulse, See};
use crate::pace::Floor;
use crate::voters::Voters;
use crate::wire::Note;
use mode::Mode;
pub use roster::{Place, Roster, Told};

/// Orders that may wait; more are refused, and messages of raft are lost.
pub const MAX_ORDERS: usize = 8192;
/// Orders that one turn takes: they share its sync.
const MAX_TURN: usize = 512;
/// Histories that are remembered, to compare bookmarks with.
const MAX_HISTORY: usize = 8192;
/// At most one bookmark in this time.
const BOOKMARK_EVERY: Duration = Duration::from_millis(100);
/// A bookmark is repeated after this time, so that watchers know that they are up to date.
const BOOKMARK_AGAIN: Duration = Duration::from_secs(5);
/// How often the leader looks at its voters.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A watcher waits this long before it writes to its disk again.
const PERSIST_EVERY: Duration = Duration::from_secs(60);
/// What is committed is told to the others after this time if no entry has carried the news by then.
const TELL_AFTER: Duration = Duration::from_micros(500);
/// How often a node without a seat looks up.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// A watcher that heard no majority for this long knows of no leader; bookmarks come every five seconds.
pub const LEADER_UNHEARD: Duration = Duration::from_secs(12);
/// A seat that heard no leader for so many ticks knows of none. (A learner never asks for votes, and
/// would name a dead one for ever.)
const LEADER_UNHEARD_TICKS: u32 = 40;
/// How far ahead of the voters' clocks a leader may date its entries. Bookmarks come every five seconds; beyond
/// that, its clock is wrong, and would end every ticket before its time.
const CLOCK_AHEAD: Duration = Duration::from_secs(60);
/// A watcher that heard a majority within this time knows who sits.
const SEEN_LATELY: Duration = Duration::from_secs(2);
/// So often must the leader show us that we have lost what we once acknowledged …
const LOST_DATA: u32 = 20;
/// … and at most once in this time: a burst proves no more than one message.
const LOST_DATA_EVERY: Duration = Duration::from_millis(100);

/// What became of a batch.
pub type Answered = Result<Receipt, Rejected>;

/// A look at the replica, taken on the engine's thread.
pub type Look = Box<dyn FnOnce(&See<'_>) + Send>;

/// Something that the engine is asked to do.
pub enum Order {
    /// A message of raft arrived.
    Raft {
        /// From whom.
        from: NodeId,
        /// What it says.
        message: Message,
    },
    /// A peer shows that it belongs.
    Introduced(Vec<Admission>),
    /// A batch to be agreed on.
    Submit {
        /// The batch.
        batch: Batch,
        /// Where its answer goes.
        reply: Option<oneshot::Sender<Answered>>,
    },
    /// Tells the answer to a batch that goes to the leader another way.
    Await {
        /// The batch's number; its author is this node.
        sequence: u64,
        /// Where its answer goes.
        reply: oneshot::Sender<Answered>,
    },
    /// A linearizable read: the index up to which it is good, or `None` if nobody answered.
    Read(oneshot::Sender<Option<u64>>),
    /// Looks at the replica.
    Look(Look),
    /// Applied entries after an index; `None` if they are gone or this node has no log of them.
    After {
        /// The index.
        index: u64,
        /// Where they go.
        reply: oneshot::Sender<Option<Vec<Entry>>>,
    },
    /// A confirmed snapshot, for a watcher.
    Restore(Box<Snapshot>),
    /// Confirmed entries, for a watcher.
    Confirmed(Vec<Entry>),
    /// A majority of the voters has given a new sign of life, and this node has all that they have.
    Fresh(Instant),
    /// Who is said to lead, for a watcher to show.
    Led {
        /// In which term.
        term: u64,
        /// Who.
        leader: Option<NodeId>,
    },
    /// The others have gone on, confirmed, while this seat hears no leader.
    Overtaken,
    /// Ends the thread.
    Stop,
}

/// The engine does not take orders any more, or not now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many wait.
    #[error("too many orders wait")]
    Busy,
    /// It has ended.
    #[error("the node is stopping")]
    Stopped,
}

/// Sends orders. Cheap to clone.
#[derive(Clone)]
pub struct Orders {
    sender: SyncSender<Order>,
}

impl Orders {
    /// Hands over an order without waiting.
    pub fn give(&self, order: Order) -> Result<(), Refused> {
        self.sender.try_send(order).map_err(|error| match error {
            TrySendError::Full(_) => Refused::Busy,
            TrySendError::Disconnected(_) => Refused::Stopped,
        })
    }
}

/// Why the engine ended.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log is not that of the membership: something stopped half-way.
    #[error("{LOG} holds epoch {}, seat {}, and the file `member` says epoch {}, seat {}", log.epoch, log.raft_id.0, member.epoch, member.raft_id.0)]
    OtherLog {
        /// Whose log it is.
        log: Box<Identity>,
        /// Whose it should be.
        member: Box<Identity>,
    },
    /// The log failed while the node was started.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The node must not go on.
    #[error(transparent)]
    Halt(#[from] Halt),
    /// The leader shows that this disk has forgotten what it acknowledged.
    #[error("this node's disk has lost entries that it acknowledged")]
    LostData,
    /// Another history than a majority's.
    #[error(transparent)]
    Forked(Forked),
}

impl EngineError {
    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            EngineError::Open(error) => error.hint(),
            EngineError::OtherLog { .. } => {
                "after a recovery, mesh recover apply ORDER once more; else mesh up --rejoin"
            }
            EngineError::Log(_) => "check the disk, and start the node again",
            EngineError::Halt(halt) => halt.hint(),
            EngineError::LostData => "check the disk, then mesh up --rejoin takes a new seat",
            EngineError::Forked(_) => "keep the directory for inspection and join with a new one",
        }
    }
}

impl From<Stop> for EngineError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Log(error) => EngineError::Log(error),
            Stop::Halt(halt) => EngineError::Halt(halt),
        }
    }
}

/// A bookmark as it was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posted {
    /// The bookmark.
    pub mark: Bookmark,
    /// When it was signed, at the latest. Bookmarks go from hand to hand, and a dead voter's last one may come as
    /// news long after.
    pub made: Instant,
}

/// The newest bookmark of each voter, for those who serve watchers.
pub type Board = watch::Sender<Arc<BTreeMap<NodeId, Posted>>>;

/// A snapshot from which newcomers begin, and its digest, which takes as long to compute as the state is large.
pub struct Checkpoint {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// [`Snapshot::digest`] of it.
    pub digest: Hash,
}

impl Checkpoint {
    fn of(snapshot: Snapshot) -> Arc<Self> {
        let digest = snapshot.digest();
        Arc::new(Self { snapshot, digest })
    }
}

/// What the engine shows to the rest of the process.
#[derive(Clone)]
pub struct Shown {
    /// What it is doing.
    pub pulse: watch::Receiver<Pulse>,
    /// Who belongs.
    pub roster: watch::Receiver<Arc<Roster>>,
    /// Changes whenever anything about jobs may have: see [`crate::state::State::jobs_revision`].
    pub jobs: watch::Receiver<u64>,
    /// What happens.
    pub happened: broadcast::Sender<Arc<Happened>>,
    /// Bookmarks, our own among them.
    pub board: Arc<Board>,
    /// What newcomers begin with.
    pub checkpoint: Arc<Mutex<Option<Arc<Checkpoint>>>>,
    /// Peers that have shown their admission and are not known otherwise, and who vouched for each.
    pub vouched: Arc<Mutex<BTreeMap<NodeId, Vec<NodeId>>>>,
}

impl Shown {
    /// Keeps a voter's bookmark, whose signature was checked.
    pub fn post(&self, mark: Bookmark, made: Instant) {
        self.board.send_modify(|board| {
            let mut next = BTreeMap::clone(board);
            let roster = self.roster.borrow();
            let signers = roster.signers();
            next.retain(|node, _| signers.contains(node));
            if next.get(&mark.by).is_none_or(|held| mark.is_newer_than(&held.mark)) {
                next.insert(mark.by, Posted { mark, made });
            }
            *board = Arc::new(next);
        });
    }

    /// What the clocks of the voters say, as of their last bookmarks: the middle one. `None` without any.
    pub fn clock(&self) -> Option<Time> {
        self.middle(|held| Time(held.mark.beat))
    }

    /// What the clocks of the voters say by now: each has gone on since its last bookmark.
    pub fn clock_by_now(&self) -> Option<Time> {
        let now = clock::steady();
        self.middle(|held| Time(held.mark.beat).after(now.saturating_duration_since(held.made)))
    }

    fn middle(&self, says: impl Fn(&Posted) -> Time) -> Option<Time> {
        let mut clocks: Vec<u64> = self.board.borrow().values().map(|held| says(held).0).collect();
        clocks.sort_unstable();
        clocks.get(clocks.len() / 2).copied().map(Time)
    }

    /// Whether this node knows itself to be up to date, give or take `limit`.
    pub fn is_fresh(&self, limit: Duration) -> bool {
        self.pulse.borrow().fresh.is_some_and(|at| at.elapsed() <= limit)
    }
}

/// What an engine is made of.
pub struct Parts {
    /// The directory.
    pub dir: Dir,
    /// The node's key.
    pub key: NodeKey,
    /// Whose log it is.
    pub identity: Identity,
    /// What the node was told at admission.
    pub told: Told,
    /// How patient the autopilot is.
    pub waits: Waits,
    /// Gossip's opinion on who is alive.
    pub is_alive: Box<dyn Fn(NodeId) -> bool + Send>,
}

/// The engine, before its thread runs.
pub struct Engine {
    parts: Parts,
    mode: Mode,
    net: Option<Net>,
    receiver: Receiver<Order>,
    pulse: watch::Sender<Pulse>,
    roster: watch::Sender<Arc<Roster>>,
    jobs: watch::Sender<u64>,
    shown: Shown,
    /// Who waits for which batch of this node.
    waiting: BTreeMap<(NodeId, u64), Vec<oneshot::Sender<Answered>>>,
    reads: BTreeMap<u64, oneshot::Sender<Option<u64>>>,
    next_read: u64,
    /// Index and history of what was applied last, oldest first, without gaps.
    history: VecDeque<(u64, Hash)>,
    /// The board, to be looked at when it changes.
    marks: watch::Receiver<Arc<BTreeMap<NodeId, Posted>>>,
    /// What the voters have signed of late.
    tally: Tally,
    voters: Voters,
    /// When the leader looked at its voters last.
    looked: Instant,
    /// The shortest tick that this node's connections allow.
    floor: Floor,
    tick: Duration,
    next_tick: Instant,
    fresh: Option<Instant>,
    /// When it last led, or followed a leader of its own configuration; at first, when it started.
    settled: Instant,
    /// The last bookmark: when, and of which index.
    marked: Option<(Instant, u64)>,
    /// The beat of our last bookmark.
    beat: u64,
    /// Who says that our disk has forgotten something, how often, and when last.
    lost_data: Option<(NodeId, u32, Instant)>,
    /// Who leads, as a watcher was told.
    led: Option<(u64, Option<NodeId>)>,
}

/// Carries a turn's messages to the network.
struct Wires<'a>(Option<&'a Net>);

impl Outbox for Wires<'_> {
    fn send(&mut self, to: NodeId, message: Message) {
        if let Some(net) = self.0
            && let Ok(bytes) = mesh_transport::codec::encode(&Note::Raft(message))
        {
            net.send(to, bytes);
        }
    }
}

impl Engine {
    /// Opens the directory's log. Nothing runs yet.
    pub fn open(parts: Parts) -> Result<(Self, Orders, Shown), EngineError> {
        let (mode, checkpoint) = Mode::open(&parts, 0)?;
        let (sender, receiver) = sync_channel(MAX_ORDERS);
        let now = clock::steady();
        let first = mode.roster(&parts.told);
        let (pulse, pulse_seen) = watch::channel(mode.pulse(None, now));
        let (roster, roster_seen) = watch::channel(Arc::new(first));
        let (jobs, jobs_seen) = watch::channel(0);
        let (happened, _) = broadcast::channel(1024);
        let shown = Shown {
            pulse: pulse_seen,
            roster: roster_seen,
            jobs: jobs_seen,
            happened,
            board: Arc::new(watch::channel(Arc::default()).0),
            checkpoint: Arc::new(Mutex::new(checkpoint.map(Checkpoint::of))),
            vouched: Arc::default(),
        };
        let tick = mode.replica().machine().tick();
        let tally = Tally::new(parts.identity.mesh, parts.identity.epoch);
        let mut engine = Self {
            voters: Voters::new(parts.waits, tick, Planted::default()),
            parts,
            mode,
            net: None,
            receiver,
            pulse,
            roster,
            jobs,
            shown: shown.clone(),
            waiting: BTreeMap::new(),
            reads: BTreeMap::new(),
            next_read: 0,
            history: VecDeque::new(),
            marks: shown.board.subscribe(),
            tally,
            looked: now,
            floor: Floor::default(),
            tick,
            next_tick: now + tick,
            fresh: None,
            settled: now,
            marked: None,
            beat: 0,
            lost_data: None,
            led: None,
        };
        engine.remember_start();
        Ok((engine, Orders { sender }, shown))
    }

    /// Runs until it is stopped or must not go on.
    pub fn run(mut self, net: Net) -> Result<(), EngineError> {
        self.net = Some(net);
        let mut orders = Vec::with_capacity(MAX_TURN);
        loop {
            let news = self.mode.has_news();
            let until_tick = self.next_tick.saturating_duration_since(clock::steady());
            let wait = if news { until_tick.min(TELL_AFTER) } else { until_tick };
            let mut idle = false;
            match self.receiver.recv_timeout(wait) {
                Ok(order) => orders.push(order),
                Err(RecvTimeoutError::Timeout) => idle = news,
                Err(RecvTimeoutError::Disconnected) => return self.close(),
            }
            while orders.len() < MAX_TURN {
                match self.receiver.try_recv() {
                    Ok(order) => orders.push(order),
                    Err(_) => break,
                }
            }
            if self.take(&mut orders, idle)? {
                return self.close();
            }
        }
    }

    /// One turn over what has come in, or over nothing while there is news to tell. `true` if it is to stop.
    fn take(&mut self, orders: &mut Vec<Order>, idle: bool) -> Result<bool, EngineError> {
        let mut events = Vec::new();
        if idle {
            events.push(Event::Tell);
        }
        let mut looks: Vec<Look> = Vec::new();
        let mut after = Vec::new();
        let mut stop = false;
        if let Some(tick) = self.due() {
            events.push(tick);
        }
        for order in orders.drain(..) {
            match order {
                Order::Raft { from, message } => events.push(Event::Received { from, message }),
                Order::Introduced(chain) => events.push(Event::Introduced(chain)),
                Order::Submit { batch, reply } => {
                    self.wait_for((batch.author(), batch.sequence()), reply);
                    events.push(Event::Submit(batch));
                }
                Order::Await { sequence, reply } => {
                    self.wait_for((self.parts.identity.node, sequence), Some(reply));
                }
                Order::Read(reply) => {
                    self.next_read += 1;
                    self.reads.insert(self.next_read, reply);
                    events.push(Event::Read { token: self.next_read });
                }
                Order::Look(look) => looks.push(look),
                Order::After { index, reply } => after.push((index, reply)),
                Order::Restore(snapshot) => self.restore(&snapshot)?,
                Order::Confirmed(entries) => self.confirmed(&entries)?,
                Order::Fresh(at) => self.fresh = self.fresh.max(Some(at)),
                Order::Led { term, leader } => self.led = Some((term, leader)),
                Order::Overtaken => self.give_up_seat(),
                Order::Stop => stop = true,
            }
        }
        self.turn(events)?;
        self.publish();
        for look in looks {
            look(&See { replica: self.mode.replica(), pulse: &self.shown.pulse.borrow() });
        }
        for (index, reply) in after {
            // Whoever asked may have gone.
            let _ = reply.send(self.mode.entries_after(index));
        }
        Ok(stop)
    }

    fn wait_for(&mut self, key: (NodeId, u64), reply: Option<oneshot::Sender<Answered>>) {
        let Some(reply) = reply else { return };
        // Those who have given up are forgotten here.
        self.waiting.retain(|_, replies| {
            replies.retain(|reply| !reply.is_closed());
            !replies.is_empty()
        });
        self.waiting.entry(key).or_default().push(reply);
    }

    /// The tick, if it is due. However many were missed, raft sees one.
    fn due(&mut self) -> Option<Event> {
        let now = clock::steady();
        if now < self.next_tick {
            return None;
        }
        // Without a seat there is no election to be in time for.
        let tick = if matches!(self.mode, Mode::Seated(_)) { self.tick } else { IDLE_TICK };
        let late = now.duration_since(self.next_tick).as_micros() / tick.as_micros().max(1);
        self.next_tick = now + tick;
        Some(Event::Tick { passed: 1 + u32::try_from(late).unwrap_or(u32::MAX - 1) })
    }

    /// A clean end: a watcher keeps what it has seen.
    fn close(mut self) -> Result<(), EngineError> {
        self.mode.persist(true)?;
        Ok(())
    }
}
