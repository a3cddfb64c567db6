//! The world: a handful of hosts, the network between them, and time, all stepped from one seed.
//!
//! A run has three phases. First **safety**: clients write and read, and faults of the seed's
//! [`Story`] happen to hosts, disks, clocks, links and the membership, while every turn of every
//! host is shown to the [`Invariants`]. Then **healing**: all faults end. Then **liveness**: within
//! a deadline there must be one leader, everybody must have caught up, the configuration must be
//! what the autopilot wants, and every member must get a write through.
//!
//! Nothing here reads a clock or draws from anything but the seed: the same seed gives the same
//! trace, byte for byte.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::panic::catch_unwind;
use std::time::Duration;

use mesh_consensus::autopilot::Waits;
use mesh_consensus::core::Pace;
use mesh_consensus::driver::{Driver, Event, Status};
use mesh_consensus::id::{MeshId, NodeId, PartyId};
use mesh_consensus::log::Identity;
use mesh_consensus::machine::StateMachine;
use mesh_consensus::message::Message;
use mesh_consensus::planted::{Bug, Planted};
use mesh_consensus::time::Time;

use crate::clients::Clients;
use crate::faults::{Plan, Story};
use crate::genesis::{self, BEGINNING, Genesis};
use crate::host::{Common, Host, Power, TICK};
use crate::invariants::{Broken, Invariants};
use crate::trace::Trace;

mod life;
mod rest;

/// Ticks without a leader before an election, at least.
pub const ELECTION_TICKS: u64 = 4;
/// How long a healed world may take to be well.
const PATIENCE: u64 = 60_000_000;
/// Frames kept for replaying.
const OLD_FRAMES: usize = 64;

/// What to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Which story; by default the seed chooses.
    pub story: Option<Story>,
    /// A bug to plant.
    pub bug: Option<Bug>,
    /// Keep the whole trace, not only its hash.
    pub keep_trace: bool,
}

/// What a run without a violation did.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Which story it was.
    pub story: Story,
    /// Turns taken by all hosts.
    pub turns: u64,
    /// The last index.
    pub index: u64,
    /// Writes that were acknowledged.
    pub acked: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Terms that had a leader.
    pub term: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Simulated microseconds.
    pub time: u64,
    /// The hash of the trace.
    pub trace: u64,
    /// The trace itself, if asked for.
    pub lines: Vec<String>,
}

/// A promise that a seed broke.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// What else was asked for.
    pub options: Options,
    /// The story that it told.
    pub story: Story,
    /// Simulated microseconds.
    pub at: u64,
    /// What was broken, and how.
    pub broken: Broken,
    /// The end of the trace.
    pub lines: Vec<String>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, story, at, broken: Broken { promise, how }, .. } = self;
        writeln!(f, "seed {seed} ({story:?}) broke a promise after {} ms:", at / 1000)?;
        writeln!(f, "  promise: {promise}")?;
        writeln!(f, "  broken:  {how}")?;
        write!(f, "  replay:  cargo run --release -p mesh-chaos-tests -- replay {seed}")?;
        if let Some(story) = self.options.story {
            write!(f, " --story {}", format!("{story:?}").to_lowercase())?;
        }
        if let Some(bug) = self.options.bug {
            write!(f, " --bug {bug:?}")?;
        }
        Ok(())
    }
}

/// Runs a seed. A panic of the simulator itself is a violation, too: of its own promises.
pub fn run(seed: u64, options: Options) -> Result<Summary, Box<Violation>> {
    let result = catch_unwind(|| World::new(seed, options).run());
    result.unwrap_or_else(|panic| {
        let broken = Broken { promise: "the simulator works", how: panic_text(&*panic) };
        let story = options.story.unwrap_or(Story::Mixed);
        Err(Box::new(Violation { seed, options, story, at: 0, broken, lines: Vec::new() }))
    })
}

/// What happens next.
#[derive(Debug)]
pub(crate) enum Happening {
    Tick(usize),
    Run(usize),
    Deliver { to: usize, from: NodeId, message: Box<Message> },
    Client(usize),
    Retry(usize),
    Look,
    Fault,
    Start(usize),
    Wake(usize),
    Uncut(u64),
    Calm,
}

struct Queued {
    at: u64,
    order: u64,
    what: Happening,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Hosts, time and links.
pub struct World {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) rng: fastrand::Rng,
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    order: u64,
    pub(crate) common: Common,
    pub(crate) options: Options,
    pub(crate) mesh: MeshId,
    pub(crate) parties: Vec<PartyId>,
    pub(crate) hosts: Vec<Host>,
    /// One-way cuts, and which fault made them.
    pub(crate) cuts: BTreeMap<(usize, usize), u64>,
    pub(crate) loss: u32,
    pub(crate) duplicates: u32,
    /// The longest delay of a message, in microseconds.
    pub(crate) delay: u64,
    pub(crate) old_frames: Vec<(usize, NodeId, Message)>,
    pub(crate) invariants: Invariants,
    pub(crate) clients: Clients,
    pub(crate) faults: u64,
    pub(crate) healed: bool,
    turns: u64,
    pub(crate) trace: Trace,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, options: Options) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = Plan::new(&mut rng, options.story);
        let planted = options.bug.map_or(Planted::default(), Planted::bug);
        let common = Common { pace: pace(&plan), waits: waits(), planted, seed };
        let genesis =
            genesis::grown(plan.hosts, plan.parties, plan.voters, plan.learners, plan.level);
        let mut hosts: Vec<Host> = (0..plan.hosts + plan.spares)
            .map(|index| {
                let key = genesis::node_key(index);
                Host::new(index, key, index % plan.parties, plan.supports, &common)
            })
            .collect();
        for (host, seat) in hosts.iter_mut().zip(&genesis.seats) {
            let identity = Identity { mesh: genesis.mesh, epoch: 0, node: host.id, raft_id: *seat };
            host.create(identity, Some(&genesis.snapshot), &common);
        }
        for (host, sequence) in hosts.iter_mut().zip(&genesis.sequences) {
            host.sequence = *sequence;
        }
        if let Some(old) = plan.old_host {
            hosts[old].supports = plan.level;
        }
        let Genesis { mesh, parties, .. } = genesis;
        let clients = Clients::new(plan.clients, plan.keys);
        let mut world = Self {
            seed,
            rng,
            now: 0,
            queue: BinaryHeap::new(),
            order: 0,
            common,
            options,
            mesh,
            parties,
            hosts,
            cuts: BTreeMap::new(),
            loss: plan.loss,
            duplicates: plan.duplicates,
            delay: plan.delay,
            old_frames: Vec::new(),
            invariants: Invariants::default(),
            clients,
            faults: 0,
            healed: false,
            turns: 0,
            trace: Trace::new(options.keep_trace),
            plan,
        };
        for host in 0..world.hosts.len() {
            world.later(0, Happening::Start(host));
            let phase = world.rng.u64(0..TICK);
            world.later(phase, Happening::Tick(host));
        }
        for client in 0..world.plan.clients {
            world.later(400_000 + 1000 * client as u64, Happening::Client(client));
        }
        world.later(300_000, Happening::Look);
        world.later(500_000, Happening::Fault);
        world
    }

    /// Runs the seed to its end.
    pub fn run(mut self) -> Result<Summary, Box<Violation>> {
        match self.play() {
            Ok(()) => Ok(Summary {
                story: self.plan.story,
                turns: self.turns,
                index: self.invariants.top(),
                acked: self.clients.acked,
                reads: self.clients.reads,
                term: self.hosts.iter().filter_map(status).map(|s| s.term).max().unwrap_or(0),
                faults: self.faults,
                time: self.now,
                trace: self.trace.hash(),
                lines: self.trace.into_lines(),
            }),
            Err(broken) => Err(Box::new(Violation {
                seed: self.seed,
                options: self.options,
                story: self.plan.story,
                at: self.now,
                broken,
                lines: self.trace.into_lines(),
            })),
        }
    }

    fn play(&mut self) -> Result<(), Broken> {
        let end = self.plan.span;
        while self.now < end {
            self.step()?;
        }
        self.heal();
        let deadline = self.now + PATIENCE;
        let mut look_at = self.now;
        loop {
            self.step()?;
            if self.now < look_at {
                continue;
            }
            look_at = self.now + 100_000;
            match self.is_well() {
                Ok(()) => break,
                Err(how) if self.now > deadline => {
                    return Err(Broken { promise: "a healed mesh is well again", how });
                }
                Err(_) => {}
            }
        }
        for host in &self.hosts {
            // One that was removed is told nothing more, and may not even know that it was.
            if let Some(driver) = host.driver.as_ref().filter(|_| self.is_fed(host.index)) {
                self.invariants.at_rest(host.index, driver.replica())?;
            }
        }
        self.clients.close(&mut self.invariants.history);
        self.invariants.at_end()
    }

    pub(crate) fn later(&mut self, after: u64, what: Happening) {
        self.order += 1;
        self.queue.push(Reverse(Queued { at: self.now + after, order: self.order, what }));
    }

    fn step(&mut self) -> Result<(), Broken> {
        let Some(Reverse(Queued { at, what, .. })) = self.queue.pop() else {
            return Err(Broken { promise: "time goes on", how: "nothing happens".to_owned() });
        };
        self.now = at;
        match what {
            Happening::Tick(host) => self.on_tick(host),
            Happening::Run(host) => self.on_run(host)?,
            Happening::Deliver { to, from, message } => self.on_deliver(to, from, *message),
            Happening::Client(client) => self.on_client(client),
            Happening::Retry(op) => self.on_retry(op),
            Happening::Look => self.on_look(),
            Happening::Fault => self.on_fault(),
            Happening::Start(host) => self.start(host)?,
            Happening::Wake(host) => self.on_wake(host),
            Happening::Uncut(fault) => self.cuts.retain(|_, by| *by != fault),
            Happening::Calm => (self.loss, self.delay) = (self.plan.loss, self.plan.delay),
        }
        Ok(())
    }

    fn on_tick(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let period = TICK * 1000 / host.rate;
        if host.is_awake(self.now) {
            host.take(Event::Tick { passed: 1 });
            self.schedule(index);
        } else {
            host.missed += 1;
        }
        if self.hosts[index].power != Power::Gone {
            self.later(period, Happening::Tick(index));
        }
    }

    fn on_wake(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if host.is_awake(self.now) {
            let passed = std::mem::take(&mut host.missed).max(1);
            // The tick comes first: whoever makes up for missed ones judges before it listens.
            host.inbox.insert(0, Event::Tick { passed });
            self.schedule(index);
        }
    }

    /// A turn soon; what arrives until then shares it.
    pub(crate) fn schedule(&mut self, index: usize) {
        if !std::mem::replace(&mut self.hosts[index].is_scheduled, true) {
            let pause = self.rng.u64(10..self.plan.batch);
            self.later(pause, Happening::Run(index));
        }
    }

    fn on_deliver(&mut self, to: usize, from: NodeId, message: Message) {
        let host = &mut self.hosts[to];
        if host.power != Power::On {
            return;
        }
        // A connection begins with the peer's admission, if it has one to show.
        let seat = message.from;
        let Some(driver) = &host.driver else { return };
        let known = driver.replica().machine().seat_of(from) == Some(seat);
        if !known && host.met.insert((from, seat)) {
            let chain = self.hosts.iter().find(|host| host.id == from).map(|h| h.chain.clone());
            if let Some(chain) = chain.filter(|chain| !chain.is_empty()) {
                self.hosts[to].take(Event::Introduced(chain));
            }
        }
        self.hosts[to].take(Event::Received { from, message });
        if self.hosts[to].is_awake(self.now) {
            self.schedule(to);
        }
    }

    fn on_look(&mut self) {
        for index in 0..self.hosts.len() {
            let awake: BTreeSet<NodeId> =
                self.hosts.iter().filter(|h| h.power == Power::On).map(|h| h.id).collect();
            let now = self.now;
            let host = &mut self.hosts[index];
            if !host.is_awake(now) {
                continue;
            }
            let Some(driver) = &host.driver else { continue };
            let events = host.voters.look(driver, |node| awake.contains(&node));
            if !events.is_empty() {
                self.trace.note(now, || format!("host {index} wants {events:?}"));
                self.hosts[index].inbox.extend(events);
                self.schedule(index);
            }
        }
        let next = self.rng.u64(150_000..250_000);
        self.later(next, Happening::Look);
    }

    /// The wall clock of a host.
    pub(crate) fn wall(&self, index: usize) -> Time {
        let millis = BEGINNING.0 + self.now / 1000;
        Time(millis.saturating_add_signed(self.hosts[index].skew))
    }

    /// All faults end.
    fn heal(&mut self) {
        self.trace.note(self.now, || "all faults end".to_owned());
        self.healed = true;
        self.cuts.clear();
        (self.loss, self.duplicates, self.delay) = (0, 0, 2_000);
        (self.plan.loss, self.plan.delay) = (0, 2_000);
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            host.rate = 1000;
            host.crash_after = None;
            if host.power == Power::On && host.disk_fault {
                // Whatever was armed goes off now, and not later.
                self.power_cut(index);
            }
            let host = &mut self.hosts[index];
            host.disk.set_full(false);
            if host.paused_until > self.now {
                host.paused_until = self.now;
                self.later(0, Happening::Wake(index));
            }
            if self.hosts[index].power == Power::Off {
                self.later(100_000, Happening::Start(index));
            }
        }
        self.last_words();
    }
}

fn status(host: &Host) -> Option<Status> {
    host.driver.as_ref().map(Driver::status)
}

fn pace(plan: &Plan) -> Pace {
    Pace {
        election: ELECTION_TICKS as usize,
        snapshot_every: plan.snapshot_every,
        keep: plan.keep,
        snapshot_patience: 20,
        ..Pace::default()
    }
}

/// The waits of production, shortened to fit into a few simulated seconds.
fn waits() -> Waits {
    Waits {
        recent: Duration::from_millis(500),
        lost: Duration::from_secs(3),
        stable: Duration::from_secs(1),
        apart: Duration::from_secs(1),
        quorum: Duration::from_millis(500),
        patience: Duration::from_secs(2),
        lag: 8,
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}
