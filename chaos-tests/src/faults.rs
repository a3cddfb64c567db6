//! What goes wrong, and how much of it: a seed's [`Plan`], drawn from its [`Story`].
//!
//! There is a budget. Synced data is destroyed (a wiped or rotten disk) only where the voters that
//! remain still hold everything: one lost seat at a time, and the next one only after the first has
//! been replaced. Beyond that no algorithm could keep what was acknowledged.

use mesh_node::state::level::LEVEL;

mod strike;

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
