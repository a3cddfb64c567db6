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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mesh_consensus::admission::Admission;
use mesh_consensus::autopilot::Waits;
use mesh_consensus::core::{Pace, Role};
use mesh_consensus::driver::{Driver, Event, Stop, Turn};
use mesh_consensus::id::{MeshId, NodeId, PartyId, RaftId};
use mesh_consensus::log::{Identity, Log};
use mesh_consensus::machine::{Halt, StateMachine};
use mesh_consensus::message::{Body, Message};
use mesh_consensus::planted::{Bug, Planted};
use mesh_consensus::time::Time;
use mesh_node::state::State;
use mesh_storage::log::OpenError;

use crate::clients::Clients;
use crate::faults::{Plan, Story};
use crate::genesis::{self, BEGINNING, Genesis};
use crate::host::{Common, Crash, Host, Power, Sent, TICK};
use crate::invariants::{Broken, Invariants, Seen, is_quorum};
use crate::trace::Trace;

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
    /// Its story.
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
        write!(f, "  replay:  cargo run --release -p mesh-chaos-tests -- replay {seed}")
    }
}

/// Runs a seed. A panic of the simulator itself is a violation, too: of its own promises.
pub fn run(seed: u64, options: Options) -> Result<Summary, Box<Violation>> {
    let result = catch_unwind(|| World::new(seed, options).run());
    result.unwrap_or_else(|panic| {
        let broken = Broken { promise: "the simulator works", how: panic_text(&*panic) };
        let story = options.story.unwrap_or(Story::Mixed);
        Err(Box::new(Violation { seed, story, at: 0, broken, lines: Vec::new() }))
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
    pub(crate) bug: Option<Bug>,
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
        hosts[0].sequence = genesis.founder_sequence;
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
            bug: options.bug,
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
            Happening::Fault => self.on_fault()?,
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

    fn on_run(&mut self, index: usize) -> Result<(), Broken> {
        self.hosts[index].is_scheduled = false;
        if !self.hosts[index].is_awake(self.now) || self.hosts[index].driver.is_none() {
            return Ok(());
        }
        self.turn(index)
    }

    fn turn(&mut self, index: usize) -> Result<(), Broken> {
        let wall = self.wall(index);
        let host = &mut self.hosts[index];
        let Some(mut driver) = host.driver.take() else { return Ok(()) };
        let events = std::mem::take(&mut host.inbox);
        let was_asked = events.iter().any(|event| {
            matches!(event, Event::Received { message: Message { body: Body::TimeoutNow, .. }, .. })
        });
        let before = driver.status();
        let (elapsed, patience) = before.patience;
        let stands = before.role != Role::Leader && elapsed + 1 >= patience;
        if stands && std::mem::take(&mut host.crash_at_election) {
            host.crash_after = Some(Crash::DiskOps(self.rng.u64(1..6)));
        }
        let crash = host.crash_after.take();
        let mut left = None;
        match crash {
            Some(Crash::Sends(sends)) => left = Some(sends),
            Some(Crash::DiskOps(ops)) => host.disk.crash_after(ops),
            None => {}
        }
        let disk = host.disk.clone();
        let mut sent = Sent { messages: Vec::new(), left, disk: &disk, is_dead: false };
        let result = catch_unwind(AssertUnwindSafe(|| driver.turn(wall, events, &mut sent)));
        let Sent { messages, is_dead, .. } = sent;
        self.turns += 1;
        let result = match result {
            Ok(result) => result,
            // A panic with the power already gone is a dying process, whatever it says.
            Err(_) if is_dead || disk.has_crashed() => {
                disk.crash();
                drop(driver);
                self.route(index, messages);
                self.power_cut(index);
                return Ok(());
            }
            Err(panic) => {
                return Err(Broken { promise: "no panic", how: panic_text(&*panic) });
            }
        };
        match result {
            Ok(turn) => {
                let after = driver.status();
                let host = &self.hosts[index];
                let seat = host.identity.map_or(RaftId(0), |identity| identity.raft_id);
                let starts_before = (before.ticks > 0).then_some(&before);
                let seen = Seen {
                    host: index,
                    node: host.id,
                    seat,
                    before: starts_before,
                    after: &after,
                    was_asked,
                    turn: &turn,
                    log: driver.log(),
                    replica: driver.replica(),
                };
                if before.role != after.role || before.term != after.term {
                    self.trace.note(self.now, || {
                        format!("host {index} is {:?} in term {}", after.role, after.term)
                    });
                }
                let observed = self.invariants.observe(&seen);
                self.trace.turn(self.now, index, &turn, &messages);
                self.hosts[index].driver = Some(driver);
                observed?;
                self.route(index, messages);
                self.after_turn(index, turn)?;
                if crash.is_some() || is_dead {
                    self.power_cut(index);
                }
                Ok(())
            }
            Err(stop) => {
                let was_cut = is_dead || disk.has_crashed();
                disk.crash();
                drop(driver);
                self.route(index, messages);
                self.on_stop(index, &stop, was_cut)
            }
        }
    }

    /// A node stopped by itself. Was it right to?
    fn on_stop(&mut self, index: usize, stop: &Stop, was_cut: bool) -> Result<(), Broken> {
        let host = &self.hosts[index];
        let expected = match stop {
            _ if was_cut => true,
            Stop::Log(_) => host.disk_fault || host.rotten,
            Stop::Halt(Halt::TooOld { .. }) => host.supports < self.plan.top_level(),
            Stop::Halt(Halt::Damaged(_)) => host.rotten,
        };
        if !expected {
            return Err(Broken { promise: "no node stops without cause", how: chain_text(stop) });
        }
        self.trace.note(self.now, || format!("host {index} stopped: {stop}"));
        self.power_cut(index);
        Ok(())
    }

    pub(crate) fn power_cut(&mut self, index: usize) {
        let now = self.now;
        self.trace.note(now, || format!("host {index} loses power"));
        self.hosts[index].lose_power();
        if self.hosts[index].power == Power::Off {
            let pause = if self.healed { 100_000 } else { self.rng.u64(20_000..2_000_000) };
            self.later(pause, Happening::Start(index));
        }
    }

    fn start(&mut self, index: usize) -> Result<(), Broken> {
        if self.hosts[index].power != Power::Off {
            return Ok(());
        }
        if self.hosts[index].supports < self.plan.top_level() && self.healed {
            // The operator reads the message and installs the version that it names.
            self.hosts[index].supports = self.plan.top_level();
        }
        let host = &self.hosts[index];
        let opened = catch_unwind(AssertUnwindSafe(|| host.open(&self.common)));
        let log = match opened {
            Ok(Ok(log)) => log,
            Ok(Err(error)) => return self.on_refusal(index, &error),
            Err(panic) => {
                return Err(Broken { promise: "no panic", how: panic_text(&*panic) });
            }
        };
        let seat = log.identity().raft_id;
        if !self.hosts[index].rotten {
            self.invariants.opened(index, seat, &log)?;
        }
        let host = &self.hosts[index];
        let (blank, settings) = (State::blank(host.supports), host.settings(&self.common));
        let driver = catch_unwind(AssertUnwindSafe(|| Driver::open(log, blank, settings)));
        match driver {
            Ok(Ok(driver)) => {
                let now = self.now;
                self.trace.note(now, || format!("host {index} starts at seat {seat}"));
                self.hosts[index].started(driver, &self.common);
                self.schedule(index);
                Ok(())
            }
            Ok(Err(stop)) => self.on_stop(index, &stop, false),
            Err(panic) => Err(Broken { promise: "no panic", how: panic_text(&*panic) }),
        }
    }

    /// A log was refused at open: right only if its disk was made to rot.
    fn on_refusal(&mut self, index: usize, error: &OpenError) -> Result<(), Broken> {
        if !self.hosts[index].rotten {
            let how = format!("host {index}: {}", chain_text(error));
            return Err(Broken { promise: "what was written can be opened", how });
        }
        self.trace.note(self.now, || format!("host {index} refuses its log: {error}"));
        self.wipe(index);
        Ok(())
    }

    /// The data directory is gone. The node keeps its key and asks for a new seat.
    pub(crate) fn wipe(&mut self, index: usize) {
        self.trace.note(self.now, || format!("host {index} is wiped"));
        self.hosts[index].lose_power();
        if self.bug == Some(Bug::ReuseRaftId) {
            if let Some(identity) = self.hosts[index].identity {
                let introduced = self.roster();
                self.hosts[index].create(identity, None, &self.common);
                self.hosts[index].introduced = introduced;
                self.later(100_000, Happening::Start(index));
            }
            return;
        }
        self.hosts[index].disk.wipe();
        self.hosts[index].power = Power::Blank;
        self.hosts[index].identity = None;
        self.begin_rejoin(index);
    }

    /// Everybody's seat, as the most advanced running host knows them.
    fn roster(&self) -> Vec<(NodeId, RaftId)> {
        let Some(state) = self.newest() else { return Vec::new() };
        let members = state.members().iter();
        members.filter_map(|(node, member)| Some((*node, member.seat?))).collect()
    }

    /// The state of the most advanced running host.
    pub(crate) fn newest(&self) -> Option<&State> {
        let drivers = self.hosts.iter().filter_map(|host| host.driver.as_ref());
        let newest = drivers.max_by_key(|driver| driver.replica().index())?;
        Some(newest.replica().machine())
    }

    /// A newcomer, or one that was wiped, has a seat: it makes its directory and starts.
    pub(crate) fn admitted(&mut self, index: usize, seat: RaftId, by: usize) {
        if self.hosts[index].power != Power::Blank {
            return;
        }
        let sponsor = &self.hosts[by];
        let Some(driver) = &sponsor.driver else { return };
        let members = driver.replica().machine().members().iter();
        let introduced: Vec<_> =
            members.filter_map(|(node, member)| Some((*node, member.seat?))).collect();
        let admission = Admission::sign(&sponsor.key, self.mesh, 0, self.hosts[index].id, seat);
        let mut chain = vec![admission];
        chain.extend(sponsor.chain.iter().cloned());
        let identity =
            Identity { mesh: self.mesh, epoch: 0, node: self.hosts[index].id, raft_id: seat };
        let now = self.now;
        self.trace.note(now, || format!("host {index} is admitted to seat {seat}"));
        let host = &mut self.hosts[index];
        host.create(identity, None, &self.common);
        host.introduced = introduced;
        host.chain = chain;
        self.later(1000, Happening::Start(index));
    }

    /// Puts messages on the wire.
    fn route(&mut self, from: usize, messages: Vec<(NodeId, Message)>) {
        let id = self.hosts[from].id;
        for (node, message) in messages {
            self.invariants.spoke(from, &message);
            let Some(to) = self.hosts.iter().position(|host| host.id == node) else { continue };
            if self.rng.u32(0..1000) < 10 && self.plan.old_frames {
                if self.old_frames.len() >= OLD_FRAMES {
                    self.old_frames.swap_remove(0);
                }
                self.old_frames.push((to, id, message.clone()));
            }
            if self.cuts.contains_key(&(from, to)) || self.rng.u32(0..1000) < self.loss {
                continue;
            }
            if self.rng.u32(0..1000) < self.duplicates {
                let delay = self.rng.u64(200..200_000);
                let message = Box::new(message.clone());
                self.later(delay, Happening::Deliver { to, from: id, message });
            }
            let delay = self.rng.u64(200..self.delay);
            let message = Box::new(message);
            self.later(delay, Happening::Deliver { to, from: id, message });
        }
    }

    /// The wall clock of a host.
    pub(crate) fn wall(&self, index: usize) -> Time {
        let millis = BEGINNING.0 + self.now / 1000;
        Time(millis.saturating_add_signed(self.hosts[index].skew))
    }

    fn after_turn(&mut self, index: usize, turn: Turn) -> Result<(), Broken> {
        if let Some(halt) = turn.too_old {
            return self.on_stop(index, &Stop::Halt(halt), false);
        }
        for answer in turn.answers {
            self.on_answer(index, &answer);
        }
        for token in turn.reads {
            self.on_read(index, token);
        }
        for token in turn.lost_reads {
            self.on_lost_read(index, token);
        }
        self.see_off();
        Ok(())
    }

    /// A removed node may go once a majority of the voters that remain knows that it was removed.
    /// Until then they may need its vote: raft acts on a change when it is applied, not before.
    fn see_off(&mut self) {
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index];
            let Some(driver) = host.driver.as_ref().filter(|_| host.power == Power::On) else {
                continue;
            };
            if !driver.replica().machine().is_removed(host.id) {
                continue;
            }
            let config = driver.replica().config();
            let knows = |other: &&Host| {
                other.driver.as_ref().is_some_and(|d| d.replica().machine().is_removed(host.id))
            };
            let seats = (self.hosts.iter().filter(knows))
                .filter_map(|other| other.identity.map(|identity| identity.raft_id))
                .collect();
            if !config.is_joint() && is_quorum(config, &seats) {
                let now = self.now;
                self.trace.note(now, || format!("host {index} has left"));
                self.hosts[index].lose_power();
                self.hosts[index].power = Power::Gone;
            }
        }
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

    /// Whether a healed world is as it should be; if not, what is wrong.
    fn is_well(&self) -> Result<(), String> {
        let running: Vec<&Host> =
            self.hosts.iter().filter(|host| host.power != Power::Gone).collect();
        let mut leader = None;
        for host in &running {
            match (&host.driver, host.power) {
                (Some(driver), Power::On) if driver.status().role == Role::Leader => {
                    if leader.is_none_or(|(_, term)| term < driver.status().term) {
                        leader = Some((*host, driver.status().term));
                    }
                }
                (_, Power::Blank) if !self.is_coming(host.index) => {}
                (_, Power::On) => {}
                _ => return Err(format!("host {} is {:?}", host.index, host.power)),
            }
        }
        let (leader, _) = leader.ok_or("there is no leader")?;
        let driver = leader.driver.as_ref().ok_or("there is no leader")?;
        let (status, replica) = (driver.status(), driver.replica());
        let config = replica.config();
        if status.change_pending || config.is_joint() {
            return Err(format!("a change is in flight: {config:?}"));
        }
        let members = replica.machine().members().values().filter(|m| !m.leaving).count();
        let wanted = mesh_consensus::autopilot::target(members);
        if config.voters.len() != wanted {
            let all = replica.machine().members().values();
            let all: Vec<_> = all.map(|m| (m.seat, m.party.short(), m.leaving)).collect();
            return Err(format!("{members} members {all:?}, {config:?}"));
        }
        for host in &running {
            let Some(driver) = &host.driver else { continue };
            if !replica.machine().is_member(host.id) {
                continue;
            }
            let seat = host.identity.map_or(RaftId(0), |identity| identity.raft_id);
            // Those outside of the configuration will follow as watchers; raft does not feed them.
            if !config.contains(seat) {
                continue;
            }
            if driver.replica().history() != replica.history() {
                return Err(format!(
                    "host {} is at {}, the leader at {}",
                    host.index,
                    driver.replica().index(),
                    replica.index()
                ));
            }
        }
        for seat in config.voters.iter().chain(&config.learners) {
            if replica.machine().node_at(*seat).is_none() {
                return Err(format!("seat {seat} is nobody's"));
            }
        }
        self.clients.is_quiet()
    }

    /// Whether `index` feeds on raft: only then can it answer clients.
    pub(crate) fn is_fed(&self, index: usize) -> bool {
        let host = &self.hosts[index];
        let Some(identity) = host.identity else { return false };
        let drivers = self.hosts.iter().filter_map(|host| host.driver.as_ref());
        let newest = drivers.max_by_key(|driver| driver.replica().index());
        newest.is_some_and(|driver| {
            driver.replica().config().contains(identity.raft_id)
                && driver.replica().machine().is_member(host.id)
        })
    }
}

fn status(host: &Host) -> Option<mesh_consensus::driver::Status> {
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
        ..Waits::default()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

fn chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
