//! What goes wrong, and how much of it: a seed's [`Plan`], drawn from its [`Story`].
//!
//! There is a budget. Synced data is destroyed (a wiped or rotten disk) only where the voters that
//! remain still hold everything: one lost seat at a time, and the next one only after the first has
//! been replaced. Beyond that no algorithm could keep what was acknowledged.

use mesh_consensus::core::Role;
use mesh_consensus::driver::Event;
use mesh_consensus::id::{MeshId, NodeId, RaftId};
use mesh_consensus::log::{Entry, Payload};
use mesh_consensus::message::{Body, Message};
use mesh_consensus::planted::Bug;
use mesh_node::state::level::LEVEL;

use crate::host::{Crash, Power, Weakness};
use crate::invariants::Broken;
use crate::world::{Happening, World};

/// What a seed is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Story {
    /// A bit of everything.
    Mixed,
    /// Power cuts between any two effects.
    Crashes,
    /// Partitions, one-way cuts, bridges, loss, delay.
    Network,
    /// Failing, full, rotting and wiped disks.
    Disks,
    /// Nodes join and leave all the time.
    Membership,
    /// One voter, one learner.
    Pair,
    /// A voter sleeps while the group around it changes.
    Sleeper,
    /// Old and new versions side by side.
    Levels,
    /// Pauses and clocks that run fast, slow and wrong.
    Clocks,
    /// Many reads on followers that lag, and answers that come late and twice.
    Reads,
}

impl Story {
    /// All of them.
    pub const ALL: [Story; 10] = [
        Story::Mixed,
        Story::Crashes,
        Story::Network,
        Story::Disks,
        Story::Membership,
        Story::Pair,
        Story::Sleeper,
        Story::Levels,
        Story::Clocks,
        Story::Reads,
    ];
}

/// How a seed's world is set up.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What it is about.
    pub story: Story,
    /// Hosts that are members from the start.
    pub hosts: usize,
    /// Hosts that may join.
    pub spares: usize,
    /// How many of the hosts vote at the start.
    pub voters: usize,
    /// How many listen.
    pub learners: usize,
    /// Parties, dealt out to the hosts in turn.
    pub parties: usize,
    /// The level at the start.
    pub level: u16,
    /// The level that the binaries support.
    pub supports: u16,
    /// A host whose binary is older.
    pub old_host: Option<usize>,
    /// How long things go wrong, in microseconds.
    pub span: u64,
    /// Clients.
    pub clients: usize,
    /// Names that they write.
    pub keys: usize,
    /// How long a client waits between two calls.
    pub think: u64,
    /// Calls that write, in hundredths.
    pub writes: u32,
    /// Messages lost, in thousandths.
    pub loss: u32,
    /// Messages delivered twice, in thousandths.
    pub duplicates: u32,
    /// The longest delay of a message.
    pub delay: u64,
    /// Old frames are kept and replayed.
    pub old_frames: bool,
    /// The time between two faults.
    pub pause: u64,
    /// Which faults, and how often.
    pub weights: Vec<(Fault, u32)>,
    /// The longest that a host waits for more before it takes a turn.
    pub batch: u64,
    /// Entries between two snapshots.
    pub snapshot_every: u64,
    /// Entries kept behind one.
    pub keep: u64,
}

/// What can go wrong, or be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The power fails, between any two effects.
    Crash,
    /// The power fails twice, the second time at a weak moment after the first.
    CrashAgain,
    /// Every host loses power.
    Blackout,
    /// A process stands still.
    Pause,
    /// Two groups cannot hear each other.
    Split,
    /// One direction of one link is cut.
    OneWay,
    /// Two groups hear each other only through one host.
    Bridge,
    /// Much is lost and late for a while.
    Storm,
    /// A clock runs at another speed, and shows another time.
    Clock,
    /// A sync fails.
    SyncError,
    /// A disk is full.
    Full,
    /// A bit on a disk flips.
    Rot,
    /// A disk is wiped.
    Wipe,
    /// A new node joins.
    Join,
    /// A node leaves.
    Leave,
    /// The leader leaves.
    LeaderLeaves,
    /// The leader hands over.
    Transfer,
    /// An old frame arrives again, perhaps from another epoch.
    OldFrame,
    /// A stranger speaks.
    Forgery,
    /// A node tells what it supports.
    Report,
    /// Somebody asks for the next level.
    Raise,
    /// A node comes back with another version.
    Version,
}

impl Plan {
    /// Draws a plan.
    pub fn new(rng: &mut fastrand::Rng, story: Option<Story>) -> Self {
        let drawn = Story::ALL[rng.usize(0..Story::ALL.len())];
        let story = story.unwrap_or(drawn);
        let hosts = rng.usize(3..=5);
        let mut plan = Self {
            story,
            hosts,
            spares: rng.usize(0..=7 - hosts),
            voters: if hosts >= 5 { 5 } else { 3 },
            learners: usize::from(hosts == 4),
            parties: 1,
            level: LEVEL,
            supports: LEVEL,
            old_host: None,
            span: rng.u64(4_000_000..8_000_000),
            clients: 3,
            keys: 3,
            think: 60_000,
            writes: 60,
            loss: [0, 0, 10, 50][rng.usize(0..4)],
            duplicates: [0, 10, 50][rng.usize(0..3)],
            delay: [1_000, 3_000, 20_000][rng.usize(0..3)],
            old_frames: true,
            pause: 400_000,
            weights: Vec::new(),
            batch: [150, 150, 2_000][rng.usize(0..3)],
            snapshot_every: [8, 16, 64][rng.usize(0..3)],
            keep: [0, 4, 16][rng.usize(0..3)],
        };
        plan.tell(rng);
        plan
    }

    fn tell(&mut self, rng: &mut fastrand::Rng) {
        use Fault::*;
        self.weights = match self.story {
            Story::Mixed => {
                self.parties = rng.usize(1..=3);
                vec![
                    (Crash, 10),
                    (Pause, 4),
                    (Split, 4),
                    (OneWay, 4),
                    (Bridge, 2),
                    (Storm, 3),
                    (Clock, 3),
                    (SyncError, 2),
                    (Full, 1),
                    (Rot, 1),
                    (Wipe, 2),
                    (Join, 4),
                    (Leave, 2),
                    (Transfer, 2),
                    (OldFrame, 6),
                    (Forgery, 4),
                ]
            }
            Story::Crashes => {
                self.pause = 350_000;
                vec![
                    (Crash, 16),
                    (CrashAgain, 4),
                    (Blackout, 1),
                    (Storm, 1),
                    (SyncError, 2),
                    (OldFrame, 2),
                ]
            }
            Story::Network => {
                self.pause = 250_000;
                vec![
                    (Split, 6),
                    (OneWay, 8),
                    (Bridge, 4),
                    (Storm, 6),
                    (Transfer, 2),
                    (Crash, 2),
                    (OldFrame, 8),
                    (Forgery, 6),
                ]
            }
            Story::Disks => {
                self.pause = 300_000;
                vec![(SyncError, 6), (Full, 3), (Rot, 4), (Wipe, 4), (Crash, 8)]
            }
            Story::Membership => {
                self.parties = rng.usize(1..=3);
                self.hosts = rng.usize(1..=4);
                self.spares = 7 - self.hosts;
                self.pause = 250_000;
                vec![
                    (Join, 12),
                    (Leave, 5),
                    (LeaderLeaves, 4),
                    (Wipe, 3),
                    (Crash, 6),
                    (Split, 2),
                    (OneWay, 2),
                    (Transfer, 2),
                    (Storm, 2),
                ]
            }
            Story::Pair => {
                self.hosts = 2;
                self.spares = 0;
                self.pause = 600_000;
                self.loss = 0;
                self.batch = 20_000;
                self.think = 15_000;
                vec![(Crash, 10), (CrashAgain, 10), (OneWay, 2), (Pause, 1)]
            }
            Story::Sleeper => {
                self.hosts = 3;
                self.spares = rng.usize(2..=4);
                self.span = rng.u64(6_000_000..9_000_000);
                self.pause = 250_000;
                vec![(Join, 12), (Storm, 1), (Transfer, 1)]
            }
            Story::Levels => {
                self.level = LEVEL - 1;
                self.old_host = Some(rng.usize(0..self.hosts));
                self.pause = 200_000;
                vec![
                    (Report, 16),
                    (Raise, 6),
                    (Version, 4),
                    (Crash, 4),
                    (Split, 1),
                    (Join, 2),
                    (Wipe, 1),
                ]
            }
            Story::Clocks => {
                self.pause = 200_000;
                vec![(Pause, 8), (Clock, 8), (Crash, 3), (Transfer, 3), (Split, 2)]
            }
            Story::Reads => {
                self.keys = 1;
                self.think = 10_000;
                self.writes = 25;
                self.duplicates = 200;
                self.loss = 100;
                self.pause = 300_000;
                vec![(OneWay, 6), (Split, 2), (Transfer, 4), (Storm, 2), (OldFrame, 4)]
            }
        };
        (self.voters, self.learners) = match self.hosts {
            1 => (1, 0),
            2 => (1, 1),
            3 => (3, 0),
            4 => (3, 1),
            _ => (5, 0),
        };
    }

    /// The highest level that any binary here supports.
    pub fn top_level(&self) -> u16 {
        self.supports
    }
}

impl World {
    pub(crate) fn on_fault(&mut self) -> Result<(), Broken> {
        if self.healed {
            return Ok(());
        }
        self.faults += 1;
        if self.plan.story == Story::Sleeper {
            self.sleeper_act();
        }
        let total: u32 = self.plan.weights.iter().map(|(_, weight)| weight).sum();
        let mut draw = self.rng.u32(0..total);
        for index in 0..self.plan.weights.len() {
            let (fault, weight) = self.plan.weights[index];
            if draw < weight {
                self.strike(fault);
                break;
            }
            draw -= weight;
        }
        let pause = self.rng.u64(self.plan.pause / 4..2 * self.plan.pause);
        self.later(pause, Happening::Fault);
        Ok(())
    }

    fn strike(&mut self, fault: Fault) {
        let running: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].power == Power::On).collect();
        if running.is_empty() {
            return;
        }
        let host = running[self.rng.usize(0..running.len())];
        match fault {
            Fault::Crash => self.arm_crash(host),
            Fault::CrashAgain => {
                self.power_cut(host);
                let weakness = [Weakness::Election, Weakness::CatchUp][self.rng.usize(0..2)];
                self.hosts[host].crash_at = Some(weakness);
            }
            Fault::Blackout => running.iter().for_each(|host| self.power_cut(*host)),
            Fault::Pause => self.pause(host),
            Fault::Split => self.split(None),
            Fault::Bridge => self.split(Some(host)),
            Fault::OneWay => {
                let other = self.rng.usize(0..self.hosts.len());
                let fault = self.faults;
                self.cuts.insert((host, other), fault);
                self.uncut_later();
            }
            Fault::Storm => {
                self.loss = self.rng.u32(50..300);
                self.delay = self.rng.u64(20_000..300_000);
                let pause = self.rng.u64(200_000..1_500_000);
                self.later(pause, Happening::Calm);
            }
            Fault::Clock => {
                self.hosts[host].rate = self.rng.u64(500..=2000);
                self.hosts[host].skew = self.rng.i64(-3_600_000..3_600_000);
            }
            Fault::SyncError => {
                self.hosts[host].disk.fail_next_sync();
                self.hosts[host].disk_fault = true;
                // Believing a retried sync shows only once the power fails, too.
                if self.bug == Some(Bug::RetrySync) || self.rng.bool() {
                    self.arm_crash(host);
                }
            }
            Fault::Full => {
                self.hosts[host].disk.set_full(true);
                self.hosts[host].disk_fault = true;
            }
            Fault::Rot => self.rot(host),
            Fault::Wipe => {
                if self.can_lose(host) {
                    self.wipe(host);
                }
            }
            Fault::Join => {
                let spare = (0..self.hosts.len()).find(|host| {
                    self.hosts[*host].power == Power::Blank
                        && self.hosts[*host].starts == 0
                        && !self.is_coming(*host)
                });
                if let Some(spare) = spare {
                    self.begin_join(spare);
                }
            }
            Fault::Leave => self.leave(host),
            Fault::LeaderLeaves => {
                if let Some(leader) = self.leader() {
                    self.leave(leader);
                }
            }
            Fault::Transfer => self.transfer(),
            Fault::OldFrame => self.old_frame(),
            Fault::Forgery => self.forge(host),
            Fault::Report => self.begin_report(host),
            Fault::Raise => self.begin_raise(self.plan.supports),
            Fault::Version => {
                self.hosts[host].supports = self.rng.u16(self.plan.level..=self.plan.supports);
                self.power_cut(host);
            }
        }
    }

    fn arm_crash(&mut self, host: usize) {
        self.hosts[host].crash_after = Some(match self.rng.bool() {
            true => Crash::Sends(self.rng.u32(0..5)),
            false => Crash::DiskOps(self.rng.u64(1..24)),
        });
    }

    fn pause(&mut self, host: usize) {
        let pause = self.rng.u64(50_000..2_500_000);
        self.hosts[host].paused_until = self.now + pause;
        self.later(pause, Happening::Wake(host));
    }

    fn split(&mut self, bridge: Option<usize>) {
        let left: Vec<bool> = self.hosts.iter().map(|_| self.rng.bool()).collect();
        let fault = self.faults;
        for a in 0..left.len() {
            for b in 0..left.len() {
                if left[a] != left[b] && bridge != Some(a) && bridge != Some(b) {
                    self.cuts.insert((a, b), fault);
                }
            }
        }
        self.uncut_later();
    }

    fn uncut_later(&mut self) {
        let pause = self.rng.u64(100_000..2_500_000);
        let fault = self.faults;
        self.later(pause, Happening::Uncut(fault));
    }

    /// Whether the data of `host` may be destroyed: everyone else in the configuration must still
    /// have theirs, and no change may be under way.
    fn can_lose(&self, host: usize) -> bool {
        let running = self.hosts.iter().filter_map(|host| host.driver.as_ref());
        let Some(newest) = running.max_by_key(|driver| driver.replica().index()) else {
            return false;
        };
        let config = newest.replica().config();
        let holds = |seat: &RaftId| {
            self.hosts.iter().any(|other| {
                other.index != host
                    && !other.rotten
                    && matches!(other.power, Power::On | Power::Off)
                    && other.identity.is_some_and(|identity| identity.raft_id == *seat)
            })
        };
        let mine = self.hosts[host].identity.map(|identity| identity.raft_id);
        // Nobody may know of a change that is not settled, or have one in flight.
        let settled = self.hosts.iter().all(|host| match &host.driver {
            Some(driver) => {
                let status = driver.status();
                driver.replica().index() < newest.replica().index()
                    || (status.last_index == driver.replica().index() && !status.change_pending)
            }
            None => host.power != Power::Off,
        });
        let others = || config.voters.iter().filter(|seat| Some(**seat) != mine);
        settled
            && !config.is_joint()
            && config.voters.len() >= 3
            && others().all(holds)
            && newest.replica().machine().is_member(self.hosts[host].id)
    }

    fn rot(&mut self, host: usize) {
        if self.can_lose(host) {
            self.hosts[host].lose_power();
            let mut rng = self.rng.fork();
            self.hosts[host].disk.rot(&mut rng);
            self.hosts[host].rotten = true;
            self.trace.note(self.now, || format!("the disk of host {host} rots"));
            self.later(200_000, Happening::Start(host));
        }
    }

    fn leave(&mut self, host: usize) {
        let members = self
            .newest()
            .map_or(0, |state| state.members().values().filter(|member| !member.leaving).count());
        // The mesh should not end with the story.
        if members > 1 {
            self.begin_leave(host);
        }
    }

    fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| {
            host.driver.as_ref().is_some_and(|driver| driver.status().role == Role::Leader)
        })
    }

    fn transfer(&mut self) {
        let Some(leader) = self.leader() else { return };
        let Some(driver) = &self.hosts[leader].driver else { return };
        let voters: Vec<RaftId> = driver.replica().config().voters.iter().copied().collect();
        if !voters.is_empty() {
            let to = voters[self.rng.usize(0..voters.len())];
            self.hosts[leader].take(Event::Transfer(to));
            self.schedule(leader);
        }
    }

    fn old_frame(&mut self) {
        if self.old_frames.is_empty() {
            return;
        }
        let (to, from, mut message) =
            self.old_frames[self.rng.usize(0..self.old_frames.len())].clone();
        if self.rng.bool() {
            message.epoch = message.epoch.wrapping_sub(1);
            // Of an epoch in which terms went further, say.
            message.term += self.rng.u64(0..50);
        }
        let message = Box::new(message);
        self.later(10, Happening::Deliver { to, from, message });
    }

    /// A stranger, or a member in another's name, speaks to `host`.
    fn forge(&mut self, host: usize) {
        let Some(driver) = &self.hosts[host].driver else { return };
        let Some(identity) = self.hosts[host].identity else { return };
        let status = driver.status();
        let (term, index) = (status.term + self.rng.u64(0..3), status.last_index);
        let seats: Vec<RaftId> = driver.replica().config().voters.iter().copied().collect();
        if seats.is_empty() {
            return;
        }
        let body = match self.rng.u32(0..6) {
            0 => Body::Heartbeat { commit: index + 5, read: None },
            1 => Body::Append {
                prev_index: index,
                prev_term: driver.replica().term(),
                commit: index + 1,
                entries: vec![Entry { term, index: index + 1, payload: Payload::Empty }],
            },
            2 => Body::TimeoutNow,
            3 => Body::VoteReply { pre: false, granted: true, commit: 0, commit_term: 0 },
            4 => Body::AppendReply { index, commit: index, reject: None },
            _ => Body::HeartbeatReply { commit: 0, read: None },
        };
        let stranger = NodeId([0xee; 32]);
        let other = self.rng.usize(0..self.hosts.len());
        let from = if self.rng.bool() { stranger } else { self.hosts[other].id };
        let claimed = seats[self.rng.usize(0..seats.len())];
        let mesh = if self.rng.u32(0..4) == 0 { MeshId([3; 32]) } else { identity.mesh };
        let is_honest = self.hosts[other].identity.is_some_and(|i| i.raft_id == claimed);
        if from != stranger && is_honest && mesh == identity.mesh {
            // That would be a member lying in its own name, which raft does not survive.
            return;
        }
        let message = Message {
            mesh,
            epoch: identity.epoch,
            from: claimed,
            to: identity.raft_id,
            term,
            body,
        };
        let message = Box::new(message);
        self.later(10, Happening::Deliver { to: host, from, message });
    }

    /// One of three voters is cut off; the group grows to five; two of the old ones die; it returns.
    fn sleeper_act(&mut self) {
        let voters = self.newest().map_or(0, |state| state.config().voters.len());
        let sleeper = 2;
        let everyone = 0..self.hosts.len();
        if self.faults == 1 {
            for other in everyone.clone() {
                self.cuts.insert((sleeper, other), u64::MAX);
                self.cuts.insert((other, sleeper), u64::MAX);
            }
        }
        let settled = self.newest().is_some_and(|state| !state.config().is_joint());
        let leader_settled = self.leader().and_then(|leader| self.hosts[leader].driver.as_ref());
        let calm = leader_settled.is_some_and(|driver| !driver.status().change_pending);
        if voters == 5 && settled && calm && self.cuts.values().any(|by| *by == u64::MAX) {
            self.cuts.retain(|_, by| *by != u64::MAX);
            self.weights_after_sleep();
            for old in [0, 1] {
                let now = self.now;
                self.trace.note(now, || format!("host {old} sleeps in turn"));
                for other in everyone.clone() {
                    self.cuts.insert((old, other), u64::MAX - 1);
                    self.cuts.insert((other, old), u64::MAX - 1);
                }
            }
        }
    }

    /// From here on only writes happen, and the sleeper must be good for a quorum.
    fn weights_after_sleep(&mut self) {
        self.plan.weights = vec![(Fault::OldFrame, 1)];
    }
}
