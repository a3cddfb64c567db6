//! One simulated machine: a disk, a clock, power, and on it the production driver, state and log.

use std::collections::BTreeSet;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use mesh_consensus::admission::Admission;
use mesh_consensus::autopilot::Waits;
use mesh_consensus::core::Pace;
use mesh_consensus::driver::{Driver, Event, Outbox, Settings};
use mesh_consensus::id::{NodeId, RaftId};
use mesh_consensus::log::{Identity, Snapshot};
use mesh_consensus::message::Message;
use mesh_consensus::planted::Planted;
use mesh_node::state::State;
use mesh_node::voters::Voters;
use mesh_storage::log::{LogSettings, OpenError, RedbLog};
use mesh_storage::mem::MemDisk;

/// The length of a tick, in simulated microseconds.
pub const TICK: u64 = 50_000;
/// The log's file on every simulated disk.
pub const FILE: &str = "state.redb";
/// Messages that a host holds while it is paused; more are lost.
const INBOX: usize = 512;

/// Whether a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// It runs.
    On,
    /// It will be started again.
    Off,
    /// It has no data directory: not admitted yet, or wiped and not back.
    Blank,
    /// It was removed, and never returns.
    Gone,
}

/// One simulated machine.
pub struct Host {
    /// Its place in the world.
    pub index: usize,
    /// Its key.
    pub key: SigningKey,
    /// Who it is.
    pub id: NodeId,
    /// Whose it is.
    pub party: usize,
    /// Its disk.
    pub disk: MemDisk,
    /// Whether it runs.
    pub power: Power,
    /// The production code, while it runs.
    pub driver: Option<Driver<RedbLog, State>>,
    /// The leader's memory.
    pub voters: Voters,
    /// The level that its binary supports.
    pub supports: u16,
    /// Whose log is on its disk.
    pub identity: Option<Identity>,
    /// What it was told when it was admitted.
    pub introduced: Vec<(NodeId, RaftId)>,
    /// How it proves that it was.
    pub chain: Vec<Admission>,
    /// Peers that have shown theirs since it started.
    pub met: BTreeSet<(NodeId, RaftId)>,
    /// What has arrived.
    pub inbox: Vec<Event>,
    /// A turn is due.
    pub is_scheduled: bool,
    /// It stands still until then.
    pub paused_until: u64,
    /// Ticks that it missed meanwhile.
    pub missed: u32,
    /// How fast its clock runs, in thousandths.
    pub rate: u64,
    /// How far its wall clock is off, in milliseconds.
    pub skew: i64,
    /// The last number that it signed with.
    pub sequence: u64,
    /// How often it was started.
    pub starts: u64,
    /// Effects after which the power fails.
    pub crash_after: Option<Crash>,
    /// The power fails at its next moment of that kind.
    pub crash_at: Option<Weakness>,
    /// Its disk was made to fail, so a stop is no surprise.
    pub disk_fault: bool,
    /// Its disk was made to rot, so a refusal to open is no surprise.
    pub rotten: bool,
}

/// A moment at which much is at stake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakness {
    /// It stands for election.
    Election,
    /// It receives entries that are already committed.
    CatchUp,
}

/// When the power fails.
#[derive(Debug, Clone, Copy)]
pub enum Crash {
    /// After so many messages were sent.
    Sends(u32),
    /// After so many operations on the disk.
    DiskOps(u64),
}

/// Everything that all hosts of a world share.
#[derive(Debug, Clone)]
pub struct Common {
    /// How raft is paced.
    pub pace: Pace,
    /// How patient the leader is.
    pub waits: Waits,
    /// The bug that is planted.
    pub planted: Planted,
    /// The seed.
    pub seed: u64,
}

impl Host {
    /// A machine without power.
    pub fn new(
        index: usize,
        key: SigningKey,
        party: usize,
        supports: u16,
        common: &Common,
    ) -> Self {
        let id = crate::genesis::node_id(&key);
        let disk = MemDisk::new(fastrand::Rng::with_seed(common.seed ^ (index as u64) << 40));
        Self {
            index,
            key,
            id,
            party,
            disk,
            power: Power::Blank,
            driver: None,
            voters: voters(common),
            supports,
            identity: None,
            introduced: Vec::new(),
            chain: Vec::new(),
            met: BTreeSet::new(),
            inbox: Vec::new(),
            is_scheduled: false,
            paused_until: 0,
            missed: 0,
            rate: 1000,
            skew: 0,
            sequence: 0,
            starts: 0,
            crash_after: None,
            crash_at: None,
            disk_fault: false,
            rotten: false,
        }
    }

    /// Makes its data directory, for a seat that it was admitted to.
    pub fn create(&mut self, identity: Identity, genesis: Option<&Snapshot>, common: &Common) {
        self.disk.wipe();
        let settings = log_settings(common);
        let log = RedbLog::create(&self.disk, FILE, identity, genesis, settings);
        drop(log.expect("nothing fails on a fresh disk"));
        self.identity = Some(identity);
        self.power = Power::Off;
        self.rotten = false;
    }

    /// Opens its log, as a start does.
    pub fn open(&self, common: &Common) -> Result<RedbLog, OpenError> {
        RedbLog::open(&self.disk, FILE, log_settings(common))
    }

    /// How its driver is set up for this start.
    pub fn settings(&self, common: &Common) -> Settings {
        Settings {
            pace: common.pace.clone(),
            seed: common.seed ^ (self.index as u64) << 24 ^ self.starts << 8,
            introduced: self.introduced.clone(),
            checkpoints: false,
            planted: common.planted,
        }
    }

    /// Puts the running driver in.
    pub fn started(&mut self, driver: Driver<RedbLog, State>, common: &Common) {
        self.driver = Some(driver);
        self.voters = voters(common);
        self.starts += 1;
        self.power = Power::On;
        self.inbox.clear();
        self.met.clear();
        self.missed = 0;
    }

    /// The power fails: what was not synced may be lost or torn.
    pub fn lose_power(&mut self) {
        // First the power, then the process: a log that is dropped while the disk works says
        // farewell properly.
        self.disk.crash();
        self.driver = None;
        self.disk.set_full(false);
        self.inbox.clear();
        self.crash_after = None;
        self.disk_fault = false;
        if self.power == Power::On {
            self.power = Power::Off;
        }
    }

    /// Whether it runs and is not paused.
    pub fn is_awake(&self, now: u64) -> bool {
        self.power == Power::On && self.paused_until <= now
    }

    /// Something arrives. A full inbox loses it.
    pub fn take(&mut self, event: Event) {
        if self.inbox.len() < INBOX {
            self.inbox.push(event);
        }
    }
}

fn voters(common: &Common) -> Voters {
    Voters::new(common.waits, Duration::from_micros(TICK), common.planted)
}

fn log_settings(common: &Common) -> LogSettings {
    LogSettings { planted: common.planted, ..LogSettings::default() }
}

/// Collects what a turn sends, until the power fails.
pub struct Sent<'a> {
    /// What got out.
    pub messages: Vec<(NodeId, Message)>,
    /// Messages that may still get out.
    pub left: Option<u32>,
    /// Fails with the power.
    pub disk: &'a MemDisk,
    /// The power has failed.
    pub is_dead: bool,
}

impl Outbox for Sent<'_> {
    fn send(&mut self, to: NodeId, message: Message) {
        if self.left == Some(0) {
            self.is_dead = true;
            self.disk.crash_after(0);
        }
        if self.is_dead || self.disk.has_crashed() {
            return;
        }
        self.left = self.left.map(|left| left - 1);
        self.messages.push((to, message));
    }
}
