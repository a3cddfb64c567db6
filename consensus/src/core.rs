//! The raft core: nothing outside this module names raft-rs.
//!
//! [`Core`] hands out [`Effects`]; `driver.rs` carries them out in the one safe order. `convert.rs`
//! turns our types into raft-rs's and back. Configuration changes travel in our own encoding: the bytes that
//! raft-rs parses as protobuf when it proposes one are made here and never come from a peer.
//!
//! A log that cannot be read must not reach raft-rs as an error, because it would panic. The
//! adapter answers something harmless, remembers the error, and [`Core::check`] reports it before
//! anything leaves the node.

use std::cell::{Cell, RefCell};

use raft::eraftpb;
use raft::{GetEntriesContext, RawNode, ReadOnlyOption, SnapshotStatus, StateRole, Storage};

use crate::id::RaftId;
use crate::log::{Config, ConfigChange, Entry, HardState, Identity, Log, LogError, Snapshot};
use crate::message::Message;
use crate::planted::{Bug, Planted};
use crate::time::Time;

mod convert;

use convert::{
    batch_data, conf_change, conf_state, from_conf_state, from_entries, from_entry, from_raft,
    from_snapshot, to_entry, to_raft, to_snapshot,
};

/// What a node is in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It follows, or listens.
    Follower,
    /// It asks whether it would be elected.
    PreCandidate,
    /// It asks to be elected.
    Candidate,
    /// It leads.
    Leader,
}

/// How raft is paced.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Ticks between heartbeats.
    pub heartbeat: usize,
    /// Ticks without a leader before an election, at least; at most one less than twice as many.
    pub election: usize,
    /// Entries after which the node takes a snapshot: at the same indexes on every node, so that
    /// their digests can be compared.
    pub snapshot_every: u64,
    /// Entries that stay in the log behind a snapshot, for followers that are a little late.
    pub keep: u64,
    /// Ticks after which a snapshot that was sent, and not answered, counts as lost.
    pub snapshot_patience: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            // With ticks of 50 ms: a beat every 100 ms costs the leader of five 0.6 % of a core.
            heartbeat: 2,
            // 200 ms: a dead leader is replaced within about 300 ms.
            election: 4,
            // Replaying as many takes a fifth of a second, most of it spent on signatures.
            snapshot_every: 4096,
            keep: 4096,
            // 10 s: enough for a large state over a slow link, and not for ever.
            snapshot_patience: 200,
        }
    }
}

/// What raft wants done. Stays inside this crate: only `Driver` sees it.
#[must_use]
pub(crate) struct Effects {
    ready: raft::Ready,
    /// Leaves at once if `early`, else after the write.
    pub(crate) send: Vec<Message>,
    /// The write does not change what this node promised in an election, so a leader's messages
    /// may overtake it.
    pub(crate) early: bool,
    /// Leaves after the write: votes and acknowledgements.
    pub(crate) send_after: Vec<Message>,
    /// Must be on disk before anything else happens.
    pub(crate) write: bool,
    pub(crate) install: Option<Snapshot>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) hard_state: HardState,
    pub(crate) committed: Vec<Entry>,
    /// Reads that a majority has confirmed: context and index.
    pub(crate) reads: Vec<(u64, u64)>,
}

/// What raft wants done once the write is durable.
#[must_use]
pub(crate) struct Late {
    pub(crate) send: Vec<Message>,
    pub(crate) committed: Vec<Entry>,
}

pub(crate) struct Core<L: Log> {
    raw: RawNode<Store<L>>,
    identity: Identity,
    pace: Pace,
    seed: u64,
    /// How often this node has stood for election, so that each try waits differently.
    campaigns: u64,
    planted: Planted,
}

impl<L: Log> Core<L> {
    pub(crate) fn open(
        log: L,
        config: &Config,
        applied: u64,
        pace: Pace,
        seed: u64,
        planted: Planted,
    ) -> Result<Self, LogError> {
        let identity = log.identity();
        let settings = raft::Config {
            id: identity.raft_id.0,
            election_tick: pace.election,
            heartbeat_tick: pace.heartbeat,
            applied,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            max_uncommitted_size: 64 << 20,
            max_committed_size_per_ready: 4 << 20,
            // The next entries carry the news; where there are none, the driver has it told.
            skip_bcast_commit: true,
            ..raft::Config::default()
        };
        let last_index = log.last_index();
        let last_term = log.term(last_index)?.unwrap_or(0);
        let store = Store {
            log,
            config: conf_state(config),
            last: Cell::new((last_index, last_term)),
            fresh: None,
            wanted: Cell::new(false),
            failed: RefCell::new(None),
            planted,
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&settings, store, &logger)
            .map_err(|error| LogError { doing: "handed to raft", source: Box::new(error) })?;
        let mut core = Self { raw, identity, pace, seed, campaigns: 0, planted };
        core.pin();
        core.check()?;
        Ok(core)
    }

    /// The log's own error, if raft ran into one. Nothing may leave the node after that.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        match self.raw.store().failed.borrow_mut().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// raft-rs draws election timeouts from the thread's own randomness. We draw them from the seed
    /// instead, so that a simulated run can be repeated.
    fn pin(&mut self) {
        let base = self.pace.election as u64;
        let draw = mix(self.seed
            ^ mix(self.identity.raft_id.0 ^ mix(self.raw.raft.term))
            ^ self.campaigns);
        let timeout = base + draw % base;
        self.raw.raft.set_randomized_election_timeout(timeout as usize);
    }

    pub(crate) fn tick(&mut self) {
        let before = self.role();
        self.raw.tick();
        if self.role() != before {
            self.campaigns += 1;
        }
        self.pin();
    }

    /// Hands raft a message that has been admitted.
    pub(crate) fn step(&mut self, message: &Message) {
        let Some(message) = to_raft(message) else {
            return;
        };
        // raft-rs refuses what it has no use for; there is nothing to do about it.
        let _ = self.raw.step(message);
        self.pin();
    }

    /// Appends a batch. `false` if this node does not lead or raft is not taking any now.
    pub(crate) fn propose(&mut self, time: Time, batch: &[u8]) -> bool {
        if self.role() != Role::Leader {
            return false;
        }
        self.raw.propose(Vec::new(), batch_data(time, batch)).is_ok()
    }

    /// Appends a change of who votes. `false` if this node does not lead or one is in flight.
    pub(crate) fn propose_change(&mut self, change: &ConfigChange) -> bool {
        if self.role() != Role::Leader || self.change_pending() {
            return false;
        }
        let context = postcard::to_stdvec(change).expect("a change always encodes");
        self.raw.propose_conf_change(context, conf_change(change)).is_ok()
    }

    /// As much of the log as there is up to `index` is committed.
    pub(crate) fn know_committed(&mut self, index: u64) {
        let log = &mut self.raw.raft.raft_log;
        let last = log.last_index();
        log.commit_to(index.min(last));
    }

    pub(crate) fn transfer(&mut self, to: RaftId) {
        if self.role() == Role::Leader {
            self.raw.transfer_leader(to.0);
        }
    }

    /// Tells everyone what is committed, with whatever they still lack.
    pub(crate) fn tell_commit(&mut self) {
        if self.role() == Role::Leader {
            self.raw.raft.bcast_append();
        }
    }

    pub(crate) fn read(&mut self, context: u64) {
        self.raw.read_index(context.to_le_bytes().to_vec());
    }

    pub(crate) fn report_snapshot(&mut self, to: RaftId, ok: bool) {
        let status = if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to.0, status);
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.raw.has_ready()
    }

    pub(crate) fn ready(&mut self) -> Effects {
        let before = self.log().hard_state();
        let mut ready = self.raw.ready();
        let hard_state = self.hard_state();
        let promised = before.term == hard_state.term && before.vote == hard_state.vote;
        let install = (!ready.snapshot().is_empty()).then(|| from_snapshot(ready.snapshot()));
        let skip = self.planted.has(Bug::SkipEmptyConfig);
        let reads = (ready.take_read_states().iter())
            .filter_map(|read| {
                let context = <[u8; 8]>::try_from(read.request_ctx.as_slice()).ok()?;
                Some((u64::from_le_bytes(context), read.index))
            })
            .collect();
        Effects {
            send: self.outgoing(ready.take_messages()),
            early: promised || self.planted.has(Bug::EarlyLeader),
            send_after: self.outgoing(ready.take_persisted_messages()),
            write: ready.must_sync(),
            install,
            entries: ready.entries().iter().map(|entry| from_entry(entry, skip)).collect(),
            hard_state,
            committed: from_entries(ready.take_committed_entries(), skip),
            reads,
            ready,
        }
    }

    /// Everything in `effects` is on disk.
    pub(crate) fn persisted(&mut self, effects: Effects) -> Late {
        if let Some(snapshot) = &effects.install {
            self.raw.mut_store().last.set((snapshot.index, snapshot.term));
        }
        if let Some(last) = effects.entries.last() {
            self.raw.mut_store().last.set((last.index, last.term));
        }
        let mut late = self.raw.advance_append(effects.ready);
        let messages = late.take_messages();
        let entries = late.take_committed_entries();
        let skip = self.planted.has(Bug::SkipEmptyConfig);
        Late { send: self.outgoing(messages), committed: from_entries(entries, skip) }
    }

    /// Everything up to `index` has been applied.
    pub(crate) fn applied(&mut self, index: u64) {
        self.raw.advance_apply_to(index);
        self.pin();
    }

    /// Lets raft know of a configuration change that was applied. `None` if raft cannot make it.
    pub(crate) fn apply_change(&mut self, change: &ConfigChange) -> Option<Config> {
        let state = self.raw.apply_conf_change(&conf_change(change)).ok()?;
        let config = from_conf_state(&state);
        let me = self.identity.raft_id;
        let votes = config.voters.contains(&me) || config.outgoing.contains(&me);
        // A leader that may no longer vote would go on leading, take nothing more, and panic at the
        // next acknowledgement. The autopilot hands over first, but who is elected may find its own
        // removal in its log.
        if !votes && self.role() == Role::Leader && !self.planted.has(Bug::LeaderRemovesItself) {
            self.raw.raft.become_follower(self.raw.raft.term, raft::INVALID_ID);
        }
        Some(config)
    }

    pub(crate) fn log(&self) -> &L {
        &self.raw.store().log
    }

    pub(crate) fn into_log(self) -> L {
        self.raw.raft.r.raft_log.store.log
    }

    pub(crate) fn log_mut(&mut self) -> &mut L {
        &mut self.raw.mut_store().log
    }

    /// Whether raft asked for a snapshot that is newer than what we have at hand.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.raw.store().wanted.replace(false)
    }

    pub(crate) fn offer_snapshot(&mut self, snapshot: Option<Snapshot>) {
        self.raw.mut_store().fresh = snapshot;
    }

    pub(crate) fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::PreCandidate => Role::PreCandidate,
            StateRole::Candidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        }
    }

    pub(crate) fn leader(&self) -> Option<RaftId> {
        seat(self.raw.raft.leader_id)
    }

    pub(crate) fn hard_state(&self) -> HardState {
        let raft = &self.raw.raft;
        HardState { term: raft.term, vote: seat(raft.vote), commit: raft.raft_log.committed }
    }

    pub(crate) fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    pub(crate) fn commit_term(&self) -> u64 {
        self.raw.raft.raft_log.term(self.raw.raft.raft_log.committed).unwrap_or(0)
    }

    pub(crate) fn change_pending(&self) -> bool {
        self.raw.raft.has_pending_conf()
    }

    /// Ticks since this node last heard from a leader, and how many make it stand for election.
    pub(crate) fn patience(&self) -> (u64, u64) {
        let raft = &self.raw.raft;
        (raft.election_elapsed as u64, raft.randomized_election_timeout() as u64)
    }

    /// Whether the end of the log is not on disk yet.
    pub(crate) fn has_unwritten(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        log.persisted != log.last_index()
    }

    /// Whether raft has taken `snapshot`, and waits for it to be on disk.
    pub(crate) fn is_installing(&self, snapshot: &Snapshot) -> bool {
        self.raw.raft.snap().is_some_and(|taken| {
            let meta = taken.get_metadata();
            (meta.index, meta.term) == (snapshot.index, snapshot.term)
        })
    }

    /// How far each seat is, as the leader sees it: seat, matched index, waits for a snapshot.
    pub(crate) fn progress(&self) -> Vec<(RaftId, u64, bool)> {
        let mut all: Vec<_> = (self.raw.raft.prs().iter())
            .map(|(id, one)| {
                let waits = one.state == raft::ProgressState::Snapshot;
                (RaftId(*id), one.matched, waits)
            })
            .collect();
        all.sort_unstable();
        all
    }

    fn outgoing(&self, messages: Vec<eraftpb::Message>) -> Vec<Message> {
        // raft-rs walks hash maps: sort, so that a run depends on its seed alone. The order per
        // receiver stays.
        let skip = self.planted.has(Bug::SkipEmptyConfig);
        let mut ours: Vec<Message> = (messages.into_iter())
            .filter_map(|message| from_raft(self.identity, message, skip))
            .collect();
        ours.sort_by_key(|message| message.to);
        ours
    }
}

/// Adapts a [`Log`] to raft-rs.
struct Store<L> {
    log: L,
    /// As of the snapshot: raft learns later changes by applying them again.
    config: eraftpb::ConfState,
    /// The last index and its term, so that raft can always have it.
    last: Cell<(u64, u64)>,
    /// A snapshot made for a follower.
    fresh: Option<Snapshot>,
    wanted: Cell<bool>,
    failed: RefCell<Option<LogError>>,
    planted: Planted,
}

impl<L: Log> Storage for Store<L> {
    fn initial_state(&self) -> raft::Result<raft::RaftState> {
        let ours = self.log.hard_state();
        let hard_state = eraftpb::HardState {
            term: ours.term,
            vote: ours.vote.map_or(0, |seat| seat.0),
            commit: ours.commit,
            ..eraftpb::HardState::default()
        };
        Ok(raft::RaftState { hard_state, conf_state: self.config.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low < self.log.first_index() {
            return Err(raft::Error::Store(raft::StorageError::Compacted));
        }
        match self.log.entries(low, high, max_size.into().unwrap_or(u64::MAX)) {
            Ok(entries) => Ok(entries.iter().map(to_entry).collect()),
            Err(error) => {
                self.failed.borrow_mut().get_or_insert(error);
                Ok(Vec::new())
            }
        }
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let (last_index, last_term) = self.last.get();
        if index == last_index {
            return Ok(last_term);
        }
        match self.log.term(index) {
            Ok(Some(term)) => Ok(term),
            Ok(None) if index < self.log.first_index() => {
                Err(raft::Error::Store(raft::StorageError::Compacted))
            }
            Ok(None) => Err(raft::Error::Store(raft::StorageError::Unavailable)),
            Err(error) => {
                self.failed.borrow_mut().get_or_insert(error);
                Ok(0)
            }
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.log.first_index())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.log.last_index())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        if self.planted.has(Bug::StaleSnapshot)
            && let Ok(Some(stored)) = self.log.snapshot()
        {
            return Ok(to_snapshot(&stored));
        }
        let floor = request_index.max(self.log.first_index() - 1);
        match &self.fresh {
            // One from before the receiver was in the configuration would silently be ignored.
            Some(fresh) if fresh.index >= floor && fresh.config.contains(RaftId(to)) => {
                Ok(to_snapshot(fresh))
            }
            _ => {
                self.wanted.set(true);
                Err(raft::Error::Store(raft::StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}

fn seat(id: u64) -> Option<RaftId> {
    (id != 0).then_some(RaftId(id))
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
