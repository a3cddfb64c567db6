//! The loop around the raft core, and the one safe order.
//!
//! ```text
//!  events ─► admit ─► raft ─► ready?
//!                              │ 1  a leader's messages leave, if its vote is already on disk
//!                              │ 2  entries, snapshot and hard state are written: one sync
//!                              │ 3  votes, acknowledgements and all other messages leave
//!                              │ 4  committed entries are applied
//!                              │ 5  answers and reads are given out
//!                              └─► again, until raft has nothing more
//! ```
//!
//! All events given to one [`Driver::turn`] share one sync: that is the group commit. An error is
//! final: the node stops rather than promise what it may forget, and starts again from its disk.
//!
//! The state lives in memory. The log keeps a snapshot of it now and then; a restart loads that and
//! applies the entries behind it again. So whatever a node does because of an entry must be
//! harmless when done twice.

use std::collections::BTreeMap;

use crate::admission::{Admission, NotAdmitted, vouch};
use crate::admit::{Ground, Refused, admit};
use crate::command::Batch;
use crate::core::{Core, Effects, Pace, Role};
use crate::id::{Hash, NodeId, RaftId};
use crate::log::{Config, ConfigChange, Entry, Log, LogError, Payload, Snapshot, Write};
use crate::machine::{Halt, StateMachine};
use crate::message::{Body, Message};
use crate::planted::{Bug, Planted};
use crate::replica::{Applied, Fact, Receipt, Rejected, Replica, Verdict};
use crate::time::Time;

mod reads;

use reads::{Asker, PendingRead};

/// Batches that may wait at once; more are turned away.
pub const MAX_WAITING: usize = 4096;
/// Ticks after which a batch that nobody submitted again is forgotten: a minute at the usual pace.
pub const WAITING_TICKS: u64 = 1200;
/// Reads that may wait at once; more are refused.
pub const MAX_READS: usize = 4096;
/// At most so many entries lie between two checkpoints of a small state.
pub const CHECKPOINT_ENTRIES: u64 = 256;
/// A checkpoint encodes the whole state. For every so many bytes of it they lie further apart, so that a write
/// does not cost more the more was written before …
const CHECKPOINT_BYTES: u64 = 1 << 20;
/// … and at most so many times as far as those of a small state: newcomers need the entries behind one, and
/// the log keeps no more than [`Pace::keep`].
const CHECKPOINTS_APART: u64 = 16;
/// Peers that are remembered from their admission alone; past this, all are forgotten.
pub const MAX_INTRODUCED: usize = 1024;

/// What happens to a node.
#[derive(Debug)]
pub enum Event {
    /// Ticks of raft's clock have passed. However many were missed, raft sees one.
    Tick {
        /// How many.
        passed: u32,
    },
    /// A message arrived over a connection that proved to be `from`'s.
    Received {
        /// Who sent it.
        from: NodeId,
        /// What it says.
        message: Message,
    },
    /// A batch to be agreed on: this node's own, or that of one who cannot speak for itself yet.
    /// Submitting it again is harmless, and is how it gets through when a leader was lost with it.
    Submit(Batch),
    /// A linearizable read: answered once this node has applied what was committed before now.
    Read {
        /// The caller's own name for it.
        token: u64,
    },
    /// The leader should change who votes.
    Change(ConfigChange),
    /// The leader should hand over.
    Transfer(RaftId),
    /// Nothing else is to be done: the others may hear what is committed. See [`Driver::has_news`].
    Tell,
    /// A peer shows that it belongs.
    Introduced(Vec<Admission>),
}

/// Where messages go. What is handed over is already safe to send.
pub trait Outbox {
    /// Sends `message`, or loses it.
    fn send(&mut self, to: NodeId, message: Message);
}

/// What became of a batch that was submitted here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Who wrote it.
    pub author: NodeId,
    /// The batch's number.
    pub sequence: u64,
    /// Its receipt, or why it does not count.
    pub result: Result<Receipt, Rejected>,
}

/// What came of a turn, besides messages. All of it is durable.
#[derive(Debug, Default)]
#[must_use]
pub struct Turn {
    /// Entries applied, in order.
    pub applied: Vec<Applied>,
    /// Batches submitted here that have an answer.
    pub answers: Vec<Answer>,
    /// Batches that were turned away, because too many wait: author and number.
    pub busy: Vec<(NodeId, u64)>,
    /// Reads that may be answered from the replica as it is now.
    pub reads: Vec<u64>,
    /// Reads that nobody answered in time: ask again, under a new token.
    pub lost_reads: Vec<u64>,
    /// A leader's snapshot was installed at this index.
    pub installed: Option<u64>,
    /// This node took a snapshot: index and digest.
    pub snapshots: Vec<(u64, Hash)>,
    /// The latest checkpoint that was applied: see [`Settings::checkpoints`].
    pub checkpoint: Option<Snapshot>,
    /// Messages that were not heard.
    pub refused: Vec<(NodeId, Refused)>,
    /// Introductions that proved nothing.
    pub not_admitted: Vec<NotAdmitted>,
    /// A snapshot that this version cannot read: what to install.
    pub too_old: Option<Halt>,
}

/// Why a node stopped.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Its log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// It must not go on.
    #[error(transparent)]
    Halt(#[from] Halt),
}

/// How a driver is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How raft is paced.
    pub pace: Pace,
    /// Where election timeouts and read numbers come from. Must differ from start to start, except
    /// in a simulation.
    pub seed: u64,
    /// Members that a newcomer was told of when it was admitted, until it has the state.
    pub introduced: Vec<(NodeId, RaftId)>,
    /// Hands out the state at the first batch of each second of mesh time, at each leader's first
    /// entry, and every so many entries ([`CHECKPOINT_ENTRIES`]: mesh time can stand still, while a
    /// clock that was ahead is waited for); less often the larger it is. All of that is the same on every
    /// node, so are these states, and voters can sign what newcomers may begin with.
    pub checkpoints: bool,
    /// A bug to plant.
    pub planted: Planted,
}

impl Settings {
    /// The usual pace.
    pub fn new(seed: u64) -> Self {
        let (pace, planted) = (Pace::default(), Planted::default());
        Self { pace, seed, introduced: Vec::new(), checkpoints: false, planted }
    }
}

/// How far a seat is, as the leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Whose.
    pub seat: RaftId,
    /// What it is known to have on disk.
    pub matched: u64,
    /// The tick at which it was last heard.
    pub contact: Option<u64>,
}

/// What a node is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// The leader that it knows of.
    pub leader: Option<RaftId>,
    /// What it has committed.
    pub commit: u64,
    /// The end of its log.
    pub last_index: u64,
    /// Ticks that it has lived.
    pub ticks: u64,
    /// A configuration change is in flight.
    pub change_pending: bool,
    /// Ticks since it last heard a leader, and how many make it stand for election.
    pub patience: (u64, u64),
}

/// One member's part in the agreement.
pub struct Driver<L: Log, S> {
    core: Core<L>,
    replica: Replica<S>,
    blank: S,
    settings: Settings,
    introduced: BTreeMap<NodeId, RaftId>,
    /// The replica that an admitted snapshot holds, until raft has taken it.
    incoming: Option<Replica<S>>,
    ticks: u64,
    /// When each seat last answered, in the term in which this node leads or last led.
    contact: BTreeMap<RaftId, u64>,
    contact_term: u64,
    /// Batches that wait for their answer, by author and number, and the tick at which they are
    /// forgotten: whoever still wants an answer submits again.
    waiting: BTreeMap<(NodeId, u64), u64>,
    reads: BTreeMap<u64, PendingRead>,
    next_read: u64,
    /// The latest commit index that a leader's messages have carried.
    told: u64,
    /// Somebody elsewhere waits for an answer until it knows that this index is committed.
    awaited: u64,
    /// When each snapshot on its way counts as lost.
    snapshots_out: BTreeMap<RaftId, u64>,
    fresh_until: u64,
    /// Our own snapshot, taken while applying and not written yet.
    unwritten: Option<Snapshot>,
    config_at_start: Config,
}

impl<L: Log, S: StateMachine + Clone> Driver<L, S> {
    /// Starts from a log. `blank` is an empty state machine.
    ///
    /// Everything that the log knows to be committed is applied in the first turn.
    pub fn open(log: L, blank: S, settings: Settings) -> Result<Self, Stop> {
        let identity = log.identity();
        let mut replica = match log.snapshot()? {
            Some(snapshot) => {
                Replica::restore(identity.mesh, identity.epoch, &snapshot, blank.clone())?
            }
            None => Replica::blank(identity.mesh, identity.epoch, blank.clone()),
        };
        replica.plant(settings.planted);
        let config = replica.config().clone();
        let applied = match settings.planted.has(Bug::DoubleApply) {
            true => (log.first_index() - 1).min(replica.index()),
            false => replica.index(),
        };
        let (pace, seed, planted) = (settings.pace.clone(), settings.seed, settings.planted);
        let core = Core::open(log, &config, applied, pace, seed, planted)?;
        let introduced = settings.introduced.iter().copied().collect();
        Ok(Self {
            core,
            replica,
            blank,
            introduced,
            incoming: None,
            ticks: 0,
            contact: BTreeMap::new(),
            contact_term: 0,
            waiting: BTreeMap::new(),
            reads: BTreeMap::new(),
            // The upper half tells this start from others, so a late answer finds no namesake.
            next_read: settings.seed << 32,
            told: 0,
            awaited: 0,
            snapshots_out: BTreeMap::new(),
            fresh_until: 0,
            unwritten: None,
            config_at_start: config,
            settings,
        })
    }

    /// Takes events in, makes what follows from them durable, and lets it out.
    ///
    /// `now` is the wall clock: if this node leads, it dates the entries. After an error the driver
    /// must not be used again.
    pub fn turn(
        &mut self,
        now: Time,
        events: impl IntoIterator<Item = Event>,
        out: &mut impl Outbox,
    ) -> Result<Turn, Stop> {
        let mut turn = Turn::default();
        for event in events {
            match event {
                Event::Tick { passed } => self.on_tick(passed, &mut turn),
                Event::Received { from, message } => {
                    self.on_message(now, from, message, out, &mut turn);
                }
                Event::Submit(batch) => self.on_submit(now, &batch, out, &mut turn),
                Event::Read { token } => self.on_read(token, out, &mut turn),
                Event::Change(change) => {
                    self.core.propose_change(&change);
                }
                Event::Transfer(to) => self.core.transfer(to),
                Event::Tell => self.tell(),
                Event::Introduced(chain) => self.on_introduced(&chain, &mut turn),
            }
            self.core.check()?;
        }
        while self.core.has_ready() {
            self.pump(out, &mut turn)?;
        }
        self.answer_reads(&mut turn, out);
        if self.has_news() && self.told < self.awaited {
            self.tell();
            while self.core.has_ready() {
                self.pump(out, &mut turn)?;
            }
        }
        self.compact()?;
        Ok(turn)
    }

    /// Whether this node leads and has committed what it has told nobody yet.
    ///
    /// The next entries carry the news, which saves a message and its answer for every batch of a busy mesh.
    /// If none follow at once, the caller gives an [`Event::Tell`]; a heartbeat would say it, too, but later.
    pub fn has_news(&self) -> bool {
        self.core.role() == Role::Leader && self.core.hard_state().commit > self.told
    }

    fn tell(&mut self) {
        if self.has_news() {
            self.core.tell_commit();
            // Also where there is nobody to hear it. Whoever misses it learns it from a heartbeat.
            self.told = self.core.hard_state().commit;
        }
    }

    /// One round of the safe order.
    fn pump(&mut self, out: &mut impl Outbox, turn: &mut Turn) -> Result<(), Stop> {
        let mut effects = self.core.ready();
        self.core.check()?;
        if self.tells_of_change(&effects.committed) {
            (effects.write, effects.early) = (true, false);
        }
        if self.settings.planted.has(Bug::TickInsideReady) {
            self.core.tick();
        }
        if effects.early {
            self.send(std::mem::take(&mut effects.send), out);
        }
        if self.settings.planted.has(Bug::AckBeforeSync) {
            self.send(std::mem::take(&mut effects.send_after), out);
        }
        self.write(&effects)?;
        self.send(std::mem::take(&mut effects.send), out);
        self.send(std::mem::take(&mut effects.send_after), out);
        if effects.install.is_some() {
            self.install(turn)?;
        }
        for (context, index) in effects.reads.drain(..) {
            if let Some(read) = self.reads.get_mut(&context) {
                read.index = Some(index);
            }
        }
        let committed = std::mem::take(&mut effects.committed);
        let late = self.core.persisted(effects);
        self.core.check()?;
        if self.tells_of_change(&late.committed) {
            let hard_state = self.core.hard_state();
            self.core.log_mut().write(&Write { hard_state, ..Write::default() })?;
        }
        self.send(late.send, out);
        let drop_late = self.settings.planted.has(Bug::DropLightReady);
        let late_committed = if drop_late { Vec::new() } else { late.committed };
        for entry in committed.iter().chain(&late_committed) {
            self.apply(entry, turn)?;
        }
        self.core.applied(self.replica.index());
        self.core.check()?;
        if self.core.wants_snapshot() {
            self.core.offer_snapshot(Some(self.replica.snapshot()));
            self.fresh_until = self.ticks + self.settings.pace.snapshot_patience;
        }
        Ok(())
    }

    /// Makes the effects durable, in one step.
    ///
    /// A commit index need not be on disk: a restart learns it again. Two things about
    /// configurations rely on it all the same, because raft-rs acts on a change when it is applied:
    ///
    /// - Every write carries the commit index as it is now. So a log that holds a change also says
    ///   that the change before it is committed, and its node applies that one before it can
    ///   campaign: otherwise two configurations without a common quorum could elect.
    /// - That a change is committed is on disk before anyone hears of it. A seat that it removes may
    ///   go once a majority of the others knows; if they could forget, they would wait for its vote
    ///   for ever.
    fn write(&mut self, effects: &Effects) -> Result<(), LogError> {
        if !effects.write {
            return Ok(());
        }
        self.core.log_mut().write(&Write {
            install: effects.install.as_ref(),
            entries: &effects.entries,
            hard_state: effects.hard_state,
            compact: None,
        })
    }

    /// Whether a change of voters is among what was committed, and so must be on disk first.
    fn tells_of_change(&self, committed: &[Entry]) -> bool {
        committed.iter().any(|entry| matches!(entry.payload, Payload::Config(_)))
            && !self.settings.planted.has(Bug::ForgetChange)
    }

    fn install(&mut self, turn: &mut Turn) -> Result<(), Stop> {
        let Some(mut replica) = self.incoming.take() else {
            let message = "raft installed a snapshot that was never admitted".to_owned();
            return Err(Halt::Damaged(message).into());
        };
        replica.plant(self.settings.planted);
        self.replica = replica;
        self.unwritten = None;
        turn.installed = Some(self.replica.index());
        let waiting: Vec<(NodeId, u64)> = self.waiting.keys().copied().collect();
        for (author, sequence) in waiting {
            self.answer_from_window(author, sequence, turn);
        }
        Ok(())
    }

    fn apply(&mut self, entry: &Entry, turn: &mut Turn) -> Result<(), Stop> {
        let before = self.replica.time();
        let applied = self.replica.apply(entry)?;
        if self.settings.checkpoints && is_checkpoint(before, &applied, self.replica.weight()) {
            turn.checkpoint = Some(self.replica.snapshot());
        }
        match (&entry.payload, &applied.fact) {
            (Payload::Config(change), Fact::Config(Some(config))) => {
                let raft = self.core.apply_change(change);
                if raft.as_ref() != Some(config) {
                    let message = format!("raft made {raft:?} of a change to {config:?}");
                    return Err(Halt::Damaged(message).into());
                }
            }
            (_, Fact::Batch { author, sequence, verdict }) => {
                self.on_verdict(*author, *sequence, verdict, turn);
            }
            _ => {}
        }
        if applied.index.is_multiple_of(self.settings.pace.snapshot_every) {
            let mut snapshot = self.replica.snapshot();
            turn.snapshots.push((snapshot.index, snapshot.digest()));
            if self.settings.planted.has(Bug::StaleConfig) {
                snapshot.config = self.config_at_start.clone();
            }
            self.unwritten = Some(snapshot);
        }
        turn.applied.push(applied);
        Ok(())
    }

    fn on_verdict(&mut self, author: NodeId, sequence: u64, verdict: &Verdict, turn: &mut Turn) {
        // A batch that somebody made up in the author's name says nothing about the real one.
        if matches!(verdict, Verdict::Rejected(Rejected::Batch(_))) {
            return;
        }
        let waits = match self.settings.planted.has(Bug::FifoAnswers) {
            true => self.waiting.pop_first(),
            false => self.waiting.remove_entry(&(author, sequence)),
        };
        if let Some(((author, sequence), _)) = waits {
            let result = match verdict {
                Verdict::Counted(receipt) | Verdict::Repeated(receipt) => Ok(receipt.clone()),
                Verdict::Rejected(rejected) => Err(rejected.clone()),
            };
            turn.answers.push(Answer { author, sequence, result });
        }
    }

    /// Writes the snapshot that was taken while applying, and drops what it makes needless.
    fn compact(&mut self) -> Result<(), Stop> {
        let Some(snapshot) = self.unwritten.take() else {
            return Ok(());
        };
        let first = (snapshot.index + 1).saturating_sub(self.settings.pace.keep);
        let first = first.max(self.core.log().first_index());
        let hard_state = self.core.hard_state();
        self.core.log_mut().write(&Write {
            hard_state,
            compact: Some((&snapshot, first)),
            ..Write::default()
        })?;
        Ok(())
    }

    fn on_tick(&mut self, passed: u32, turn: &mut Turn) {
        self.ticks += 1;
        // After a pause, made-up ticks would be an instant election: silence that nobody kept.
        let times = if self.settings.planted.has(Bug::BurstTicks) { passed } else { 1 };
        for _ in 0..times {
            self.core.tick();
        }
        self.drop_late_reads(turn);
        self.waiting.retain(|_, forgotten| *forgotten > self.ticks);
        if self.ticks >= self.fresh_until {
            self.core.offer_snapshot(None);
        }
        self.expire_snapshots();
    }

    /// raft sends nothing more to a seat that it sent a snapshot to, until it hears what became of
    /// it. A lost one is reported here.
    fn expire_snapshots(&mut self) {
        if self.core.role() != Role::Leader || self.settings.planted.has(Bug::NoSnapshotReport) {
            self.snapshots_out.clear();
            return;
        }
        let deadline = self.ticks + self.settings.pace.snapshot_patience;
        for (seat, _, waits) in self.core.progress() {
            if !waits {
                self.snapshots_out.remove(&seat);
            } else if *self.snapshots_out.entry(seat).or_insert(deadline) <= self.ticks {
                self.snapshots_out.remove(&seat);
                self.core.report_snapshot(seat, false);
            }
        }
    }

    fn on_message(
        &mut self,
        now: Time,
        from: NodeId,
        message: Message,
        out: &mut impl Outbox,
        turn: &mut Turn,
    ) {
        if let Err(refused) = self.hear(now, from, &message, out, turn) {
            turn.refused.push((from, refused));
        }
    }

    fn hear(
        &mut self,
        now: Time,
        from: NodeId,
        message: &Message,
        out: &mut impl Outbox,
        turn: &mut Turn,
    ) -> Result<(), Refused> {
        let hard_state = self.core.hard_state();
        let ground = Ground {
            identity: self.core.log().identity(),
            term: hard_state.term,
            last_index: self.core.last_index(),
            commit: hard_state.commit,
            commit_term: self.core.commit_term(),
            leader: self.core.leader(),
            config: self.replica.config(),
            seat: self.seat_of(from, message.from),
            planted: self.settings.planted,
        };
        admit(&ground, message)?;
        self.note_contact(message, hard_state.term);
        match &message.body {
            Body::Forward { batch } => self.on_forward(now, batch),
            Body::Read { context } => {
                let asker = Asker::Peer { seat: message.from, context: *context };
                self.ask(asker, out).map(drop)
            }
            Body::ReadReply { context, index } => {
                self.on_read_reply(message.from, *context, *index)
            }
            Body::Snapshot(snapshot) => {
                let replica = self.try_snapshot(snapshot, turn)?;
                self.core.step(message);
                // raft has no use for one of an earlier term, or for one that its log matches: what
                // such a snapshot holds must not take the place of one that raft did take this turn.
                if self.core.is_installing(snapshot) {
                    self.incoming = replica.or(self.incoming.take());
                }
                Ok(())
            }
            // raft-rs panics if it comes to lead before its log is on disk. Only a liar can bring
            // that about: an honest answer to our candidacy follows the write before it.
            Body::TimeoutNow | Body::VoteReply { .. } if self.core.has_unwritten() => {
                Err(Refused::Busy)
            }
            _ => {
                self.core.step(message);
                Ok(())
            }
        }
    }

    /// A follower is in contact while it answers this leader. Whatever else it says shows that it can
    /// speak, not that it hears.
    fn note_contact(&mut self, message: &Message, term: u64) {
        let answers =
            matches!(message.body, Body::AppendReply { .. } | Body::HeartbeatReply { .. });
        if answers && message.term == term && self.core.role() == Role::Leader {
            if self.contact_term != term {
                self.contact.clear();
                self.contact_term = term;
            }
            self.contact.insert(message.from, self.ticks);
        }
    }

    /// Reads a snapshot before raft may have it: nothing is persisted that a restart cannot read.
    /// `None` for one that is old news.
    fn try_snapshot(
        &self,
        snapshot: &Snapshot,
        turn: &mut Turn,
    ) -> Result<Option<Replica<S>>, Refused> {
        if snapshot.index <= self.core.hard_state().commit {
            return Ok(None);
        }
        let (mesh, epoch) = (self.replica.mesh(), self.replica.epoch());
        match Replica::restore(mesh, epoch, snapshot, self.blank.clone()) {
            Ok(replica) => Ok(Some(replica)),
            Err(halt) => {
                if matches!(halt, Halt::TooOld { .. }) {
                    turn.too_old = Some(halt);
                }
                Err(Refused::Snapshot)
            }
        }
    }

    fn on_submit(&mut self, now: Time, batch: &Batch, out: &mut impl Outbox, turn: &mut Turn) {
        let (author, sequence) = (batch.author(), batch.sequence());
        let key = (author, sequence);
        if self.waiting.len() >= MAX_WAITING && !self.waiting.contains_key(&key) {
            turn.busy.push(key);
            return;
        }
        // What can never count is answered here, and costs nobody a place in the log.
        if let Err(error) = self.replica.verify(batch) {
            self.waiting.remove(&key);
            turn.answers.push(Answer { author, sequence, result: Err(error.into()) });
            return;
        }
        self.waiting.insert(key, self.ticks + WAITING_TICKS);
        if self.answer_from_window(author, sequence, turn) {
            return;
        }
        if self.core.role() == Role::Leader {
            let taken = self.core.propose(now, batch.as_bytes());
            if taken && self.settings.planted.has(Bug::BelieveOk) {
                let receipt = Receipt { index: self.core.last_index(), refused: Vec::new() };
                self.waiting.remove(&(author, sequence));
                turn.answers.push(Answer { author, sequence, result: Ok(receipt) });
            }
        } else if let Some(leader) = self.core.leader() {
            self.say(leader, Body::Forward { batch: batch.as_bytes().to_vec() }, out);
        }
    }

    /// Answers a batch that has counted already.
    fn answer_from_window(&mut self, author: NodeId, sequence: u64, turn: &mut Turn) -> bool {
        let Some(receipt) = self.replica.receipt(author, sequence) else { return false };
        let result = Ok(receipt.clone());
        if self.waiting.remove(&(author, sequence)).is_some() {
            turn.answers.push(Answer { author, sequence, result });
        }
        true
    }

    /// A peer's batch. Checked before it costs everybody a place in the log.
    fn on_forward(&mut self, now: Time, bytes: &[u8]) -> Result<(), Refused> {
        if self.core.role() != Role::Leader {
            return Err(Refused::NotLeader);
        }
        let batch = Batch::parse(bytes).map_err(|_| Refused::Batch)?;
        if !self.replica.machine().may_write(batch.author()) {
            return Err(Refused::Batch);
        }
        self.replica.verify(&batch).map_err(|_| Refused::Batch)?;
        if !self.core.propose(now, bytes) {
            return Err(Refused::Busy);
        }
        self.awaited = self.core.last_index();
        Ok(())
    }

    fn on_introduced(&mut self, chain: &[Admission], turn: &mut Turn) {
        let machine = self.replica.machine();
        let is_member = |id| machine.seat_of(id).is_some() || self.introduced.contains_key(&id);
        let is_removed = |id| machine.is_removed(id);
        let (mesh, epoch) = (self.replica.mesh(), self.replica.epoch());
        match vouch(mesh, epoch, chain, is_member, is_removed) {
            Ok((node, seat)) => {
                if self.introduced.len() >= MAX_INTRODUCED {
                    // Whoever is still needed will show its admission again.
                    self.introduced.clear();
                }
                let known = self.introduced.entry(node).or_insert(seat);
                *known = seat.max(*known);
            }
            Err(error) => turn.not_admitted.push(error),
        }
    }

    fn say(&mut self, to: RaftId, body: Body, out: &mut impl Outbox) {
        let identity = self.core.log().identity();
        let (mesh, epoch, from) = (identity.mesh, identity.epoch, identity.raft_id);
        // Not raft's: it promises nothing, so it need not wait for the term to be on disk.
        self.send(vec![Message { mesh, epoch, from, to, term: 0, body }], out);
    }

    fn send(&mut self, messages: Vec<Message>, out: &mut impl Outbox) {
        for message in messages {
            if let Body::Append { commit, .. } = message.body {
                self.told = self.told.max(commit);
            }
            if let Some(node) = self.node_at(message.to) {
                out.send(node, message);
            }
        }
    }

    /// The seat that a sender holds, which should be the one it speaks for.
    ///
    /// An admission may be newer than what we know of a member. But its signer may lie: it can
    /// neither silence a member by moving it, nor give away the seat of another.
    fn seat_of(&self, node: NodeId, speaks_for: RaftId) -> Option<RaftId> {
        let machine = self.replica.machine();
        if machine.is_removed(node) {
            return None;
        }
        let known = machine.seat_of(node);
        let shown = self.introduced.get(&node).copied();
        let shown = shown.filter(|seat| machine.node_at(*seat).is_none_or(|holder| holder == node));
        if known == Some(speaks_for) { known } else { known.max(shown) }
    }

    fn node_at(&self, seat: RaftId) -> Option<NodeId> {
        let introduced =
            || (self.introduced.iter()).find(|(_, at)| **at == seat).map(|(id, _)| *id);
        self.replica.machine().node_at(seat).or_else(introduced)
    }

    /// Everything up to `index` is known to be committed: this node had applied it before its log was opened again. (How far
    /// that was is not on disk.) To be called before the first turn.
    pub fn know_committed(&mut self, index: u64) {
        self.core.know_committed(index);
    }

    /// The replicated state as applied here.
    pub fn replica(&self) -> &Replica<S> {
        &self.replica
    }

    /// The log underneath.
    pub fn log(&self) -> &L {
        self.core.log()
    }

    /// Entries after `index` that this node has applied, for those who only watch: as many as fit
    /// into `max_bytes`, at least one if there is one. `None` if they are no longer in the log.
    pub fn entries_after(
        &self,
        index: u64,
        max_bytes: u64,
    ) -> Result<Option<Vec<Entry>>, LogError> {
        let (log, applied) = (self.core.log(), self.replica.index());
        if index >= applied {
            return Ok(Some(Vec::new()));
        }
        if index + 1 < log.first_index() {
            return Ok(None);
        }
        // What is applied is on disk: raft hands nothing out before.
        log.entries(index + 1, applied + 1, max_bytes).map(Some)
    }

    /// Ends this node's part in the agreement, and hands back its log and its replica.
    ///
    /// A node that has lost its seat becomes a watcher: it goes on from the replica, with committed
    /// entries from those who still have one. It must not be stopped earlier than that: a voter
    /// that falls silent is missing. The log stays as it is, with what this node promised in it;
    /// should the node get a seat again, [`crate::follow::seat`] brings it up to date.
    ///
    /// Between turns everything that was promised is on disk. What waits for an answer gets none.
    pub fn into_parts(self) -> (L, Replica<S>) {
        (self.core.into_log(), self.replica)
    }

    /// What this node is doing.
    pub fn status(&self) -> Status {
        let hard_state = self.core.hard_state();
        Status {
            role: self.core.role(),
            term: hard_state.term,
            leader: self.core.leader(),
            commit: hard_state.commit,
            last_index: self.core.last_index(),
            ticks: self.ticks,
            change_pending: self.core.change_pending(),
            patience: self.core.patience(),
        }
    }

    /// How far the others are. Empty unless this node leads.
    pub fn progress(&self) -> Vec<Progress> {
        if self.core.role() != Role::Leader {
            return Vec::new();
        }
        let me = self.core.log().identity().raft_id;
        let is_current = self.contact_term == self.core.hard_state().term;
        (self.core.progress().into_iter())
            .map(|(seat, matched, _)| Progress {
                seat,
                matched,
                contact: match seat == me {
                    true => Some(self.ticks),
                    false => self.contact.get(&seat).copied().filter(|_| is_current),
                },
            })
            .collect()
    }
}

/// Whether the state after an entry is a checkpoint: see [`Settings::checkpoints`].
fn is_checkpoint(before: Time, applied: &Applied, weight: u64) -> bool {
    let apart = (weight / CHECKPOINT_BYTES).next_power_of_two().min(CHECKPOINTS_APART);
    let period = |time: Time| time.0 / (1000 * apart);
    period(applied.time) != period(before)
        || applied.fact == Fact::Empty
        || applied.index.is_multiple_of(CHECKPOINT_ENTRIES * apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64, time: u64, fact: Fact) -> Applied {
        Applied { index, term: 1, history: Hash([0; 32]), time: Time(time), fact }
    }

    #[test]
    fn checkpoints_of_a_large_state_lie_further_apart_but_within_the_log() {
        let batch = || Fact::Config(None);
        // A new second, and so many entries.
        assert!(is_checkpoint(Time(1999), &at(7, 2000, batch()), 0));
        assert!(!is_checkpoint(Time(2000), &at(7, 2999, batch()), 0));
        assert!(is_checkpoint(Time(2000), &at(CHECKPOINT_ENTRIES, 2000, batch()), 0));
        // Three MiB count as four.
        let large = 3 * CHECKPOINT_BYTES;
        assert!(!is_checkpoint(Time(1999), &at(7, 2000, batch()), large));
        assert!(is_checkpoint(Time(3999), &at(7, 4000, batch()), large));
        assert!(!is_checkpoint(Time(0), &at(CHECKPOINT_ENTRIES, 0, batch()), large));
        assert!(is_checkpoint(Time(0), &at(4 * CHECKPOINT_ENTRIES, 0, batch()), large));
        // However large, a newcomer finds the entries behind one in the log; and a new leader begins with one.
        let furthest = CHECKPOINTS_APART * CHECKPOINT_ENTRIES;
        assert!(furthest <= Pace::default().keep);
        assert!(is_checkpoint(Time(0), &at(furthest, 0, batch()), u64::MAX / 2));
        assert!(is_checkpoint(Time(0), &at(7, 0, Fact::Empty), u64::MAX / 2));
    }
}
