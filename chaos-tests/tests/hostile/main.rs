//! Arbitrary and mutated messages against a live mesh: nobody panics, no forgery counts, and nothing
//! is persisted that stops a restart.
//!
//! Three voters and a newcomer run the production driver, state and log. Their own traffic, with
//! elections, configuration changes and snapshots in it, is recorded, mutated and thrown back at
//! them while they go on. Who throws decides what must hold:
//!
//! - **A stranger, or a member in another's name**, is refused for the right reason, and the node
//!   is as it was before. The others never notice.
//! - **A member lying in its own name** may mislead the others, since raft is not made for liars. But
//!   it can neither make a node panic or stop, nor leave anything on its disk that it cannot start
//!   from.
//!
//! `HOSTILE_CASES` sets how many messages are thrown. A failure prints the seed of its trial.
//!
//! - `trials.rs`: many messages, one after another. `stories.rs`: lies that once did harm, or nearly.
//! - `thrown.rs`: what strangers throw. `lies.rs`: what a lying member says. `any.rs`: what both are made of.

mod any;
mod lies;
mod stories;
mod thrown;
mod trials;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ed25519_dalek::SigningKey;
use mesh_chaos_tests::genesis::{self, BEGINNING, Genesis, name, node_id, node_key};
use mesh_chaos_tests::host::FILE;
use mesh_consensus::admission::Admission;
use mesh_consensus::command::{Batch, Command};
use mesh_consensus::core::{Pace, Role};
use mesh_consensus::driver::{Driver, Event, Outbox, Settings, Status, Turn};
use mesh_consensus::id::{Hash, NodeId, RaftId};
use mesh_consensus::log::{Config, ConfigChange, HardState, Identity, Log, Seat, Snapshot};
use mesh_consensus::message::{Body, Message};
use mesh_consensus::planted::Planted;
use mesh_consensus::time::Time;
use mesh_node::state::State;
use mesh_node::state::command::{Act, NameSet};
use mesh_node::state::level::LEVEL;
use mesh_storage::log::{LogSettings, RedbLog};
use mesh_storage::mem::MemDisk;

/// Hosts that vote at first.
const VOTERS: usize = 3;
/// Hosts that run: the voters, and one that begins with an empty log.
const RUNNING: usize = 4;
/// Hosts that are members: one of them never runs, and only its key is used.
const MEMBERS: usize = 5;
/// Recorded messages to draw from.
const RECORDED: usize = 4096;
/// Messages of one beat that are delivered; a mesh that lies to itself may have more to say.
const DELIVERIES: usize = 400;

/// What happens to a node. Unlike an event it can be told again after it led to a panic.
#[derive(Debug, Clone)]
enum Happening {
    Tick,
    Heard(NodeId, Message),
    Shown(Vec<Admission>),
    Submitted(Batch),
    Change(ConfigChange),
}

impl Happening {
    fn event(self) -> Event {
        match self {
            Happening::Tick => Event::Tick { passed: 1 },
            Happening::Heard(from, message) => Event::Received { from, message },
            Happening::Shown(chain) => Event::Introduced(chain),
            Happening::Submitted(batch) => Event::Submit(batch),
            Happening::Change(change) => Event::Change(change),
        }
    }
}

/// Everything about a node that a message which is not heard must leave as it is.
#[derive(Debug, PartialEq)]
struct Sight {
    status: Status,
    on_disk: HardState,
    log: (u64, u64),
    applied: u64,
    history: Hash,
    config: Config,
    terms: Vec<Option<u64>>,
}

struct Sent(Vec<(NodeId, Message)>);

impl Outbox for Sent {
    fn send(&mut self, to: NodeId, message: Message) {
        self.0.push((to, message));
    }
}

/// A mesh that has lived for a while, to be copied.
struct Grown {
    disks: Vec<MemDisk>,
    recorded: Vec<(usize, NodeId, Message)>,
    batches: Vec<Batch>,
    sequences: Vec<u64>,
    time: u64,
}

impl Grown {
    /// Elects, commits, seats the newcomer and swaps voters, and keeps what was said meanwhile.
    fn new(seed: u64) -> Self {
        let mut mesh = Mesh::new(seed);
        mesh.until(|mesh| mesh.leader().is_some());
        let seats = mesh.genesis.seats.clone();
        mesh.change(ConfigChange::Seats(vec![Seat::Learner(seats[3])]));
        for _ in 0..30 {
            mesh.submit();
            mesh.beat();
        }
        for _ in 0..3 {
            let leader = mesh.leader().expect("nothing went wrong");
            let other = (0..VOTERS).find(|n| *n != leader).expect("there are three");
            for (up, down) in [(3, other), (other, 3)] {
                let swap = vec![Seat::Voter(seats[up]), Seat::Learner(seats[down])];
                mesh.change(ConfigChange::Seats(swap));
            }
            // Three ticks of silence from the leader alone, and somebody else leads.
            mesh.cut = Some(leader);
            mesh.until(|mesh| mesh.leader().is_some_and(|new| new != leader));
            for _ in 0..10 {
                mesh.submit();
                mesh.beat();
            }
            mesh.cut = None;
            mesh.settle();
        }
        let gone = vec![Seat::Gone(seats[3])];
        mesh.change(ConfigChange::Seats(gone));
        mesh.change(ConfigChange::Seats(vec![Seat::Learner(seats[3])]));
        mesh.settle();
        let kinds: BTreeMap<&str, usize> =
            mesh.recorded.iter().fold(BTreeMap::new(), |mut kinds, (_, _, message)| {
                *kinds.entry(message.body.name()).or_default() += 1;
                kinds
            });
        assert!(kinds.contains_key("snapshot") && kinds.contains_key("vote"), "{kinds:?}");
        let disks = mesh.nodes.iter().map(|node| node.disk.clone()).collect();
        let Mesh { recorded, batches, sequences, time, .. } = mesh;
        Self { disks, recorded, batches, sequences, time }
    }

    /// A copy of it with a leader.
    fn mesh(&self, seed: u64) -> Mesh {
        let mut mesh = Mesh::bare(seed);
        for (node, disk) in mesh.nodes.iter_mut().zip(&self.disks) {
            node.disk = disk.fork(fastrand::Rng::with_seed(seed));
        }
        mesh.recorded.clone_from(&self.recorded);
        mesh.batches.clone_from(&self.batches);
        mesh.sequences.clone_from(&self.sequences);
        mesh.time = self.time;
        // The newcomer is new in every fourth: an empty log believes more than any other.
        if seed % 4 == 3 {
            mesh.nodes[3].disk = MemDisk::new(fastrand::Rng::with_seed(seed));
            mesh.create(3, None);
        }
        for at in 0..RUNNING {
            mesh.open(at);
        }
        mesh.until(|mesh| mesh.leader().is_some());
        mesh
    }
}

struct Node {
    id: NodeId,
    seat: RaftId,
    disk: MemDisk,
    driver: Option<Driver<RedbLog, State>>,
    starts: u64,
}

/// Hosts and the network between them.
struct Mesh {
    seed: u64,
    rng: fastrand::Rng,
    genesis: Genesis,
    /// The snapshot of another mesh.
    elsewhere: Snapshot,
    keys: Vec<SigningKey>,
    nodes: Vec<Node>,
    wire: VecDeque<(usize, NodeId, Message)>,
    recorded: Vec<(usize, NodeId, Message)>,
    /// Batches of members that were submitted, and where.
    open: Vec<(usize, Batch)>,
    batches: Vec<Batch>,
    sequences: Vec<u64>,
    forged: Vec<(NodeId, u64)>,
    cut: Option<usize>,
    time: u64,
}

impl Mesh {
    /// Without logs.
    fn bare(seed: u64) -> Self {
        let genesis = genesis::grown(MEMBERS, 2, VOTERS, 0, LEVEL);
        let keys: Vec<SigningKey> = (0..MEMBERS).map(node_key).collect();
        let nodes = (0..RUNNING)
            .map(|n| Node {
                id: node_id(&keys[n]),
                seat: genesis.seats[n],
                disk: MemDisk::new(fastrand::Rng::with_seed(seed ^ n as u64)),
                driver: None,
                starts: 0,
            })
            .collect();
        let sequences = genesis.sequences.clone();
        Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            genesis,
            elsewhere: genesis::grown(MEMBERS, 2, VOTERS, 1, 1).snapshot,
            keys,
            nodes,
            wire: VecDeque::new(),
            recorded: Vec::new(),
            open: Vec::new(),
            batches: Vec::new(),
            sequences,
            forged: Vec::new(),
            cut: None,
            time: 0,
        }
    }

    fn new(seed: u64) -> Self {
        let mut mesh = Self::bare(seed);
        let snapshot = mesh.genesis.snapshot.clone();
        for at in 0..RUNNING {
            mesh.create(at, (at < VOTERS).then_some(&snapshot));
            mesh.open(at);
        }
        mesh
    }

    fn create(&mut self, at: usize, genesis: Option<&Snapshot>) {
        let Node { id, seat, ref disk, .. } = self.nodes[at];
        let identity = Identity { mesh: self.genesis.mesh, epoch: 0, node: id, raft_id: seat };
        let log = RedbLog::create(disk, FILE, identity, genesis, LogSettings::default());
        drop(log.expect("nothing fails on a fresh disk"));
    }

    /// Starts a node from its disk, and lets it take a turn.
    fn open(&mut self, at: usize) {
        let (seed, node) = (self.seed, &self.nodes[at]);
        let members = self.keys.iter().map(node_id);
        let settings = Settings {
            pace: Pace { snapshot_every: 16, keep: 6, snapshot_patience: 20, ..Pace::default() },
            seed: (seed << 16) ^ (at as u64) << 8 ^ node.starts,
            introduced: members.zip(self.genesis.seats.iter().copied()).collect(),
            checkpoints: false,
            planted: Planted::default(),
        };
        let started = catch_unwind(AssertUnwindSafe(|| {
            let log = RedbLog::open(&node.disk, FILE, LogSettings::default())
                .map_err(|error| format!("{error:?}"))?;
            Driver::open(log, State::blank(LEVEL), settings).map_err(|stop| format!("{stop:?}"))
        }));
        let driver = match started {
            Ok(Ok(driver)) => driver,
            Ok(Err(error)) => panic!("seed {seed}: node {at} does not start: {error}"),
            Err(_) => panic!("seed {seed}: node {at} panics when it starts"),
        };
        let node = &mut self.nodes[at];
        node.starts += 1;
        node.driver = Some(driver);
        self.turn(at, vec![Happening::Tick]);
    }

    /// The power fails before the process can close anything, and comes back.
    fn restart(&mut self, at: usize) {
        let before = self.driver(at).log().hard_state();
        let node = &mut self.nodes[at];
        node.disk.crash();
        node.driver = None;
        self.open(at);
        let after = self.driver(at).log().hard_state();
        assert!(after.term >= before.term && after.commit >= before.commit, "seed {}", self.seed);
    }

    fn driver(&self, at: usize) -> &Driver<RedbLog, State> {
        self.nodes[at].driver.as_ref().expect("every node runs")
    }

    fn turn(&mut self, at: usize, happenings: Vec<Happening>) {
        let _ = self.take_turn(at, happenings);
    }

    /// Takes a turn, and counts what was sent. Neither a panic nor a stop is ever right: all disks
    /// are sound.
    fn take_turn(&mut self, at: usize, happenings: Vec<Happening>) -> (Turn, usize) {
        self.time += 1;
        let now = Time(BEGINNING.0 + self.time);
        let node = &mut self.nodes[at];
        let driver = node.driver.as_mut().expect("every node runs");
        let mut out = Sent(Vec::new());
        let events: Vec<Event> = happenings.iter().cloned().map(Happening::event).collect();
        let before = driver.status();
        let turn = catch_unwind(AssertUnwindSafe(|| driver.turn(now, events, &mut out)));
        let turn = match turn {
            Ok(Ok(turn)) => turn,
            Ok(Err(stop)) => {
                panic!("seed {}: {happenings:?} stopped {before:?}: {stop:?}", self.seed)
            }
            Err(_) => panic!("seed {}: {happenings:?} panicked {before:?}", self.seed),
        };
        let sent = out.0.len();
        let from = node.id;
        for (to, message) in out.0 {
            let Some(to) = self.nodes.iter().position(|node| node.id == to) else { continue };
            let place = match self.recorded.len() < RECORDED {
                true => self.recorded.len(),
                false => self.rng.usize(..RECORDED),
            };
            self.recorded.truncate(RECORDED);
            if place == self.recorded.len() {
                self.recorded.push((to, from, message.clone()));
            } else {
                self.recorded[place] = (to, from, message.clone());
            }
            if self.cut != Some(to) && self.cut != Some(at) {
                self.wire.push_back((to, from, message));
            }
        }
        (turn, sent)
    }

    /// A tick for everybody, and delivery of what follows from it.
    fn beat(&mut self) {
        for at in 0..RUNNING {
            self.turn(at, vec![Happening::Tick]);
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        for _ in 0..DELIVERIES {
            self.deliver_one();
        }
        self.wire.clear();
    }

    /// Delivers the next message, at times together with those behind it.
    fn deliver_one(&mut self) {
        let Some((to, from, message)) = self.wire.pop_front() else { return };
        let mut together = vec![Happening::Heard(from, message)];
        while self.wire.front().is_some_and(|(next, ..)| *next == to) && self.rng.bool() {
            let (_, from, message) = self.wire.pop_front().expect("there is a front");
            together.push(Happening::Heard(from, message));
        }
        self.turn(to, together);
    }

    /// A turn with nothing but a message of `from`, in its own name.
    fn tell(&mut self, from: usize, to: usize, term: u64, body: Body) {
        let message = self.message(from, to, term, body);
        self.turn(to, vec![Happening::Heard(node_id(&self.keys[from]), message)]);
    }

    fn until(&mut self, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..400 {
            if holds(self) {
                return;
            }
            self.beat();
        }
        let seen: Vec<Status> = (0..RUNNING).map(|at| self.driver(at).status()).collect();
        panic!("seed {}: it never came about: {seen:#?}", self.seed);
    }

    fn leader(&self) -> Option<usize> {
        let leads = |at: &usize| {
            let status = self.driver(*at).status();
            status.role == Role::Leader && self.cut != Some(*at)
        };
        (0..RUNNING).filter(leads).max_by_key(|at| self.driver(*at).status().term)
    }

    /// Changes who votes, and waits until the change is complete.
    fn change(&mut self, change: ConfigChange) {
        let ConfigChange::Seats(wanted) = change.clone() else { return };
        self.until(|mesh| mesh.leader().is_some_and(|at| !mesh.driver(at).status().change_pending));
        let leader = self.leader().expect("just seen");
        self.turn(leader, vec![Happening::Change(change)]);
        self.until(|mesh| {
            (0..RUNNING).all(|at| {
                let config = mesh.driver(at).replica().config();
                let done = wanted.iter().all(|seat| match seat {
                    Seat::Voter(id) => config.voters.contains(id),
                    Seat::Learner(id) => config.learners.contains(id),
                    Seat::Gone(id) => !config.contains(*id),
                });
                // One that is gone is told nothing more.
                (done && !config.is_joint()) || wanted.contains(&Seat::Gone(mesh.nodes[at].seat))
            })
        });
    }

    /// A running member has something to say.
    fn submit(&mut self) {
        let at = self.rng.usize(..RUNNING);
        self.sequences[at] += 1;
        let act = Act::NameSet(NameSet {
            party: self.genesis.parties[at % 2],
            name: name(&format!("w{}", self.rng.u8(..20))),
            expect: None,
            to: Hash([self.rng.u8(..); 32]),
        });
        let batch = self.sign(at, self.sequences[at], &[act.command()]);
        self.batches.push(batch.clone());
        self.open.push((at, batch));
        self.resubmit();
    }

    /// Submits again what has no receipt yet: it may have been lost with a leader.
    fn resubmit(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        open.retain(|(at, batch)| {
            let replica = self.driver(*at).replica();
            replica.receipt(batch.author(), batch.sequence()).is_none()
        });
        // A mesh that liars have led astray takes nothing more.
        let hopeless = open.len().saturating_sub(64);
        for (at, batch) in open.split_off(hopeless) {
            self.turn(at, vec![Happening::Submitted(batch.clone())]);
            self.open.push((at, batch));
        }
    }

    fn sign(&self, who: usize, sequence: u64, commands: &[Command]) -> Batch {
        let batch = Batch::sign(&self.keys[who], self.genesis.mesh, 0, sequence, commands);
        batch.expect("the batch is small")
    }

    /// Waits until all batches have counted everywhere, and demands one history without forgeries.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.beat();
            self.resubmit();
            if self.open.is_empty() {
                break;
            }
        }
        assert!(self.open.is_empty(), "seed {}: {:?} never counted", self.seed, self.open);
        self.until(|mesh| {
            let history = mesh.driver(0).replica().history();
            (1..RUNNING).all(|at| mesh.driver(at).replica().history() == history)
        });
        for at in 0..RUNNING {
            let replica = self.driver(at).replica();
            for (author, sequence) in &self.forged {
                assert_eq!(replica.receipt(*author, *sequence), None, "seed {}", self.seed);
            }
            for (who, key) in self.keys.iter().enumerate() {
                assert!(replica.top(node_id(key)) <= self.sequences[who], "seed {}", self.seed);
            }
        }
    }

    fn term_at(&self, at: usize, index: u64) -> Option<u64> {
        self.driver(at).log().term(index).expect("no disk fails")
    }

    fn see(&self, at: usize) -> Sight {
        let driver = self.driver(at);
        let (log, replica) = (driver.log(), driver.replica());
        let (first, last) = (log.first_index(), log.last_index());
        Sight {
            status: driver.status(),
            on_disk: log.hard_state(),
            log: (first, last),
            applied: replica.index(),
            history: replica.history(),
            config: replica.config().clone(),
            terms: (last.saturating_sub(8)..=last).map(|index| self.term_at(at, index)).collect(),
        }
    }

    /// A turn with nothing but `happening`, which must leave the node as it is and silent.
    fn in_vain(&mut self, at: usize, happening: Happening) -> Turn {
        let before = self.see(at);
        let (turn, sent) = self.take_turn(at, vec![happening.clone()]);
        let after = self.see(at);
        assert_eq!(before, after, "seed {}: after {happening:?}", self.seed);
        assert_eq!(sent, 0, "seed {}: it answered {happening:?}", self.seed);
        assert!(turn.applied.is_empty() && turn.installed.is_none() && turn.too_old.is_none());
        turn
    }

    fn message(&self, from: usize, to: usize, term: u64, body: Body) -> Message {
        let (from, to) = (self.genesis.seats[from], self.nodes[to].seat);
        Message { mesh: self.genesis.mesh, epoch: 0, from, to, term, body }
    }
}
