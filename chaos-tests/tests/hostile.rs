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

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ed25519_dalek::SigningKey;
use mesh_chaos_tests::genesis::{self, BEGINNING, Genesis, name, node_id, node_key};
use mesh_chaos_tests::host::FILE;
use mesh_consensus::admission::Admission;
use mesh_consensus::admit::{CEILING, MAX_LEAP, Refused};
use mesh_consensus::command::{Batch, Command};
use mesh_consensus::core::{Pace, Role};
use mesh_consensus::driver::{Driver, Event, Outbox, Settings, Status, Turn};
use mesh_consensus::id::{Hash, MeshId, NodeId, RaftId};
use mesh_consensus::log::{
    Config, ConfigChange, Entry, HardState, Identity, Log, Payload, Seat, Snapshot,
};
use mesh_consensus::message::{Body, Message, Reject};
use mesh_consensus::planted::Planted;
use mesh_consensus::time::Time;
use mesh_node::state::State;
use mesh_node::state::command::{Act, NameSet};
use mesh_node::state::level::{LEVEL, Level};
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
/// What liars throw at one mesh before they get a fresh one.
const LIES_PER_TRIAL: u64 = 80;
/// How often somebody's power fails, in messages thrown.
const RESTART_EVERY: u64 = 20;
/// Messages of one beat that are delivered; a mesh that lies to itself may have more to say.
const DELIVERIES: usize = 400;

#[test]
fn strangers_and_impostors_change_nothing_and_the_mesh_goes_on() {
    let grown = Grown::new(1);
    for (trial, cases) in trials(cases() / 2, 1000) {
        let mut mesh = grown.mesh(trial);
        for case in 1..=cases {
            match mesh.rng.u8(..10) {
                0 => mesh.throw_forged_batch(),
                1 => mesh.throw_worthless_chain(),
                _ => mesh.throw_as_nobody(),
            }
            if case % 5 == 0 {
                mesh.submit();
                mesh.beat();
            }
            if case % (5 * RESTART_EVERY) == 0 {
                let victim = mesh.rng.usize(..RUNNING);
                mesh.restart(victim);
            }
        }
        mesh.settle();
        for victim in 0..RUNNING {
            mesh.restart(victim);
        }
        mesh.settle();
    }
}

#[test]
fn a_lying_member_neither_stops_a_node_nor_keeps_it_from_starting() {
    let meshes = [Grown::new(2), Grown::new(3)];
    for (trial, cases) in trials(cases() / 2, LIES_PER_TRIAL) {
        lie(&meshes[(trial % 2) as usize], trial, cases);
    }
}

#[test]
fn bytes_of_any_kind_are_a_message_or_are_not() {
    let grown = Grown::new(4);
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..cases() {
        let bytes = match rng.bool() {
            true => (0..rng.usize(..200)).map(|_| rng.u8(..)).collect(),
            false => {
                let (_, _, message) = rng.choice(&grown.recorded).unwrap();
                mutated_bytes(&mut rng, &postcard::to_stdvec(message).unwrap())
            }
        };
        let read = catch_unwind(|| postcard::from_bytes::<Message>(&bytes).is_ok());
        assert!(read.is_ok(), "{bytes:?}");
    }
}

#[test]
fn a_leader_whom_a_liar_has_voted_out_steps_down() {
    let grown = Grown::new(6);
    for seed in 0..20 {
        let mut mesh = grown.mesh(seed);
        let old = mesh.leader().unwrap();
        let (at, liar) = ((old + 1) % VOTERS, (old + 2) % VOTERS);
        let out = ConfigChange::Seats(vec![Seat::Gone(mesh.nodes[at].seat)]);
        let Status { term, last_index, commit, .. } = mesh.driver(at).status();
        let prev_term = mesh.term_at(at, last_index).unwrap();
        let (term, index) = (term + 1, last_index + 1);
        let entries = vec![Entry { term, index, payload: Payload::Config(out) }];
        let body = Body::Append { prev_index: last_index, prev_term, commit, entries };
        mesh.tell(liar, at, term, body);
        mesh.tell(liar, at, term, Body::TimeoutNow);
        // It wins, and has an entry under way when it learns that it was removed.
        while mesh.driver(old).status().last_index < index {
            mesh.deliver_one();
        }
        let batch = mesh.sign(at, mesh.sequences[at] + 1, &[]);
        mesh.turn(at, vec![Happening::Submitted(batch)]);
        mesh.until(|mesh| mesh.leader().is_some_and(|new| new != at));
        assert!(!mesh.driver(old).replica().config().contains(mesh.nodes[at].seat));
    }
}

#[test]
fn a_snapshot_that_raft_ignores_is_not_installed_instead_of_one_that_it_took() {
    let mut mesh = Grown::new(7).mesh(0);
    let leader = mesh.leader().unwrap();
    let at = (leader + 1) % VOTERS;
    let Status { term, last_index, .. } = mesh.driver(at).status();
    let real = mesh.driver(leader).replica().snapshot();
    let of = |index| Body::Snapshot(Snapshot { index, term, ..real.clone() });
    let lies = [(term + 1, last_index + 1), (term, last_index + 9)];
    let lies = lies.map(|(term, index)| {
        Happening::Heard(mesh.nodes[leader].id, mesh.message(leader, at, term, of(index)))
    });
    let (turn, _) = mesh.take_turn(at, lies.into());
    assert_eq!(turn.installed, Some(last_index + 1));
    mesh.restart(at);
}

#[test]
fn nobody_comes_to_lead_before_its_log_is_on_disk() {
    let mut mesh = Grown::new(8).mesh(0);
    let liar = mesh.leader().unwrap();
    let at = (liar + 1) % VOTERS;
    let Status { term, last_index, commit, .. } = mesh.driver(at).status();
    let prev_term = mesh.term_at(at, last_index).unwrap();
    let entries = vec![Entry { term, index: last_index + 1, payload: Payload::Empty }];
    let yes = Body::VoteReply { pre: false, granted: true, commit: 0, commit_term: 0 };
    let lies = [
        (term, Body::Append { prev_index: last_index, prev_term, commit, entries }),
        (term, Body::TimeoutNow),
        (term + 1, yes),
    ];
    let lies = lies.map(|(term, body)| {
        Happening::Heard(mesh.nodes[liar].id, mesh.message(liar, at, term, body))
    });
    let (turn, _) = mesh.take_turn(at, lies.into());
    assert_eq!(turn.refused, [(mesh.nodes[liar].id, Refused::Busy); 2]);
    assert_eq!(mesh.driver(at).log().last_index(), last_index + 1);
}

#[test]
fn a_lying_sponsor_neither_moves_a_member_nor_gives_its_seat_away() {
    let mut mesh = Grown::new(9).mesh(0);
    let leader = mesh.leader().unwrap();
    let (at, liar) = ((leader + 1) % VOTERS, (leader + 2) % VOTERS);
    let (id, seat) = (mesh.nodes[leader].id, mesh.nodes[leader].seat);
    let stranger = node_id(&stranger(&mut mesh.rng));
    let says = |node, seat| {
        let key = &mesh.keys[liar];
        Happening::Shown(vec![Admission::sign(key, mesh.genesis.mesh, 0, node, seat)])
    };
    let lies = [says(id, RaftId(u64::MAX)), says(stranger, seat)];
    mesh.turn(at, lies.into());
    let Status { term, .. } = mesh.driver(at).status();
    let beat = mesh.message(leader, at, term, Body::Heartbeat { commit: 0, read: None });
    let (turn, _) = mesh.take_turn(at, vec![Happening::Heard(id, beat.clone())]);
    assert_eq!(turn.refused, []);
    let turn = mesh.in_vain(at, Happening::Heard(stranger, beat));
    assert_eq!(turn.refused, [(stranger, Refused::Stranger)]);
    mesh.settle();
}

#[test]
fn a_snapshot_that_promises_more_kinds_of_command_than_exist_is_not_installed() {
    let mut mesh = Grown::new(11).mesh(0);
    let leader = mesh.leader().unwrap();
    let at = (leader + 1) % VOTERS;
    let Status { term, last_index, .. } = mesh.driver(at).status();
    let mut snapshot = mesh.driver(leader).replica().snapshot();
    let level = postcard::to_stdvec(&mesh.driver(at).replica().machine().level()).unwrap();
    let place = snapshot.data.windows(level.len()).position(|bytes| bytes == level).unwrap();
    snapshot.data[place + 1] += 1;
    (snapshot.index, snapshot.term) = (last_index + 1, term);
    let kind = Level::known(LEVEL).unwrap().kinds;
    let batch = mesh.sign(4, mesh.sequences[4] + 1, &[Command { kind, body: Vec::new() }]);
    let payload = Payload::Batch { time: BEGINNING, bytes: batch.as_bytes().to_vec() };
    let entries = vec![Entry { term, index: last_index + 2, payload }];
    mesh.tell(leader, at, term, Body::Snapshot(snapshot));
    let (prev_index, prev_term, commit) = (last_index + 1, term, last_index + 2);
    mesh.tell(leader, at, term, Body::Append { prev_index, prev_term, commit, entries });
    mesh.restart(at);
}

#[test]
fn nobody_votes_for_nobody() {
    let mut mesh = Grown::new(10).mesh(0);
    let at = mesh.leader().unwrap();
    let ghost = node_key(100);
    let chain =
        vec![Admission::sign(&mesh.keys[4], mesh.genesis.mesh, 0, node_id(&ghost), RaftId(0))];
    mesh.turn(at, vec![Happening::Shown(chain)]);
    let Status { term, last_index, .. } = mesh.driver(at).status();
    let (last_index, last_term) = (last_index + 9, term);
    let (commit, commit_term, transfer) = (0, 0, true);
    let ask = Body::Vote { pre: false, last_index, last_term, commit, commit_term, transfer };
    let ask = Message { from: RaftId(0), ..mesh.message(4, at, term + 1, ask) };
    let turn = mesh.in_vain(at, Happening::Heard(node_id(&ghost), ask));
    assert_eq!(turn.refused, [(node_id(&ghost), Refused::WrongSeat)]);
}

/// Trials of `each` cases that make `cases` together: their seeds, and how many cases they have.
fn trials(cases: u64, each: u64) -> impl Iterator<Item = (u64, u64)> {
    let only = std::env::var("HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..cases.div_ceil(each), |seed: u64| seed..seed + 1);
    seeds.map(move |seed| (seed, cases.min(each)))
}

fn cases() -> u64 {
    std::env::var("HOSTILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000)
}

/// One member lies to all others, in its own name, until the mesh is replaced.
fn lie(grown: &Grown, seed: u64, cases: u64) {
    let mut mesh = grown.mesh(seed);
    let liar = mesh.rng.usize(..MEMBERS);
    let mut thrown = 0;
    while thrown < cases {
        let at = mesh.rng.usize(..RUNNING);
        if at == liar {
            continue;
        }
        // What arrives together is handled before anything of it is on disk.
        let together: Vec<Happening> = match mesh.rng.u8(..8) {
            0..4 => vec![mesh.lie(liar, at)],
            4..6 => (0..mesh.rng.u64(2..=4)).map(|_| mesh.lie(liar, at)).collect(),
            _ => mesh.ruse(liar, at),
        };
        thrown += together.len() as u64;
        if mesh.rng.u8(..4) > 0 {
            mesh.turn(at, together);
        } else {
            together.into_iter().for_each(|one| mesh.turn(at, vec![one]));
        }
        if mesh.rng.u8(..4) == 0 {
            mesh.submit();
            mesh.beat();
        }
        if mesh.rng.u64(..RESTART_EVERY) == 0 {
            mesh.restart(at);
        }
    }
    for victim in 0..RUNNING {
        mesh.restart(victim);
    }
    mesh.beat();
}

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

    /// A message from a stranger, in another's seat, or of another mesh, epoch or place.
    fn throw_as_nobody(&mut self) {
        let at = self.rng.usize(..RUNNING);
        let member = self.rng.usize(..MEMBERS);
        let mut message = self.any_message(member, at);
        let (mesh, me) = (self.genesis.mesh, self.nodes[at].seat);
        (message.mesh, message.epoch, message.to) = (mesh, 0, me);
        let mut sender = node_id(&self.keys[member]);
        let seat = self.genesis.seats[member];
        message.from = seat;
        let wrongs = self.rng.u8(1..32);
        if wrongs & 1 != 0 {
            sender = node_id(&stranger(&mut self.rng));
        }
        if wrongs & 2 != 0 || sender == self.nodes[at].id {
            let other = self.any_seat();
            message.from = if other == seat { me } else { other };
        }
        if wrongs & 4 != 0 && self.rng.bool() {
            message.to = match self.any_seat() {
                to if to == me => RaftId(me.0 + 1),
                to => to,
            };
        }
        if wrongs & 8 != 0 && self.rng.bool() {
            message.epoch = self.rng.u32(1..);
        }
        if wrongs & 16 != 0 && self.rng.bool() {
            message.mesh = MeshId([self.rng.u8(..); 32]);
        }
        let is_member = wrongs & 1 == 0;
        let expected = if message.mesh != mesh {
            Refused::OtherMesh
        } else if message.epoch != 0 {
            Refused::OtherEpoch
        } else if message.to != me {
            Refused::NotForUs
        } else if !is_member {
            Refused::Stranger
        } else if message.from != seat || seat == me {
            Refused::WrongSeat
        } else {
            // Nothing is wrong with it.
            return;
        };
        let turn = self.in_vain(at, Happening::Heard(sender, message));
        assert_eq!(turn.refused, [(sender, expected)], "seed {}", self.seed);
    }

    /// A batch that must not count, forwarded by a member in its own name.
    fn throw_forged_batch(&mut self) {
        let at = self.leader().filter(|_| self.rng.u8(..4) > 0);
        let at = at.unwrap_or_else(|| self.rng.usize(..RUNNING));
        let from = (at + self.rng.usize(1..RUNNING)) % RUNNING;
        if self.rng.u8(..8) == 0 {
            self.replay_batch(from, at);
            return;
        }
        let batch = self.forged_batch();
        if let Ok(read) = Batch::parse(&batch)
            && !self.batches.iter().any(|batch| batch.sequence() == read.sequence())
        {
            self.forged.push((read.author(), read.sequence()));
        }
        let is_leader = self.driver(at).status().role == Role::Leader;
        let expected = if is_leader { Refused::Batch } else { Refused::NotLeader };
        let message = self.message(from, at, 0, Body::Forward { batch });
        let sender = self.nodes[from].id;
        let turn = self.in_vain(at, Happening::Heard(sender, message));
        assert_eq!(turn.refused, [(sender, expected)], "seed {}", self.seed);
    }

    /// A member's own batch, once more: it keeps the receipt that it has.
    fn replay_batch(&mut self, from: usize, at: usize) {
        let Some(batch) = self.rng.choice(&self.batches).cloned() else { return };
        let (author, sequence) = (batch.author(), batch.sequence());
        let receipt = |mesh: &Self| mesh.driver(at).replica().receipt(author, sequence).cloned();
        let before = receipt(self);
        let body = Body::Forward { batch: batch.as_bytes().to_vec() };
        let message = self.message(from, at, 0, body);
        self.turn(at, vec![Happening::Heard(self.nodes[from].id, message)]);
        self.deliver();
        // Those that fell out of the window may not come back either.
        let after = receipt(self);
        let is_open = self.open.iter().any(|(_, open)| *open == batch);
        assert!(is_open || before == after, "seed {}: {batch:?} counted twice", self.seed);
    }

    /// A chain of admissions that no member vouches for.
    fn throw_worthless_chain(&mut self) {
        let at = self.rng.usize(..RUNNING);
        let strangers = [100, 130, 160].map(|first| node_key(first + self.rng.usize(..30)));
        let mesh = self.genesis.mesh;
        let member = self.rng.usize(..MEMBERS);
        let seat = self.any_seat();
        let node = node_id(&strangers[0]);
        let real = || Admission::sign(&self.keys[member], mesh, 0, node, seat);
        let by = |key: &SigningKey, of| Admission::sign(key, mesh, 0, of, seat);
        let chain = match self.rng.u8(..8) {
            0 => Vec::new(),
            1 => vec![by(&strangers[0], node)],
            2 => vec![by(&strangers[1], node), by(&strangers[2], node_id(&strangers[1]))],
            3 => vec![Admission::sign(&self.keys[member], MeshId([7; 32]), 0, node, seat)],
            4 => vec![Admission::sign(&self.keys[member], mesh, 1, node, seat)],
            5 => {
                let mut stolen = real();
                stolen.node = node_id(&strangers[1]);
                vec![stolen]
            }
            6 => {
                let mut moved = real();
                moved.seat = RaftId(seat.0 ^ 1);
                vec![moved]
            }
            // The member's own word about another, behind a stranger's about this one.
            _ => vec![by(&strangers[1], node), real()],
        };
        let turn = self.in_vain(at, Happening::Shown(chain));
        assert_eq!(turn.not_admitted.len(), 1, "seed {}", self.seed);
        let body = Body::Heartbeat { commit: 0, read: None };
        let term = self.driver(at).status().term;
        let message = Message { from: seat, ..self.message(member, at, term, body) };
        let turn = self.in_vain(at, Happening::Heard(node, message));
        assert_eq!(turn.refused, [(node, Refused::Stranger)], "seed {}", self.seed);
    }

    /// Something that `liar` might say to `at` in its own name.
    fn lie(&mut self, liar: usize, at: usize) -> Happening {
        let id = node_id(&self.keys[liar]);
        match self.rng.u8(..20) {
            0 => Happening::Tick,
            1 => Happening::Shown(self.any_chain(liar)),
            2 => {
                let bytes = postcard::to_stdvec(&self.any_message(liar, at))
                    .expect("a message always encodes");
                let bytes = mutated_bytes(&mut self.rng, &bytes);
                match postcard::from_bytes::<Message>(&bytes) {
                    Ok(message) => Happening::Heard(id, message),
                    Err(_) => Happening::Tick,
                }
            }
            _ => Happening::Heard(id, self.any_message(liar, at)),
        }
    }

    /// Lies that build on one another: it takes the lead, and misuses it in some order.
    fn ruse(&mut self, liar: usize, at: usize) -> Vec<Happening> {
        let id = node_id(&self.keys[liar]);
        let Status { term, last_index, commit, .. } = self.driver(at).status();
        let last_term = self.term_at(at, last_index).unwrap_or(0);
        let mut term = term + self.rng.u64(..2);
        let (mut last_index, mut last_term) = (last_index, last_term);
        let mut lies = Vec::new();
        for _ in 0..self.rng.u64(2..6) {
            let body = match self.rng.u8(..10) {
                0..3 => {
                    let entries = self.any_entries(last_index, last_term, term);
                    let (prev_index, prev_term) = (last_index, last_term);
                    if let Some(last) = entries.last() {
                        (last_index, last_term) = (last.index, last.term);
                    }
                    let commit = if self.rng.bool() { last_index } else { commit };
                    Body::Append { prev_index, prev_term, commit, entries }
                }
                3 | 4 => {
                    let mut snapshot = self.any_snapshot(at, term);
                    if self.rng.bool() {
                        snapshot.config.voters = [self.nodes[at].seat].into();
                    }
                    (last_index, last_term) = (snapshot.index, snapshot.term);
                    Body::Snapshot(snapshot)
                }
                5 | 6 => Body::TimeoutNow,
                7 | 8 => {
                    // The listener may just have stood for election, and be a term further.
                    term += self.rng.u64(..2);
                    let pre = self.rng.u8(..4) == 0;
                    Body::VoteReply { pre, granted: true, commit: 0, commit_term: 0 }
                }
                _ => Body::AppendReply { index: last_index, commit: last_index, reject: None },
            };
            let term = if self.rng.u8(..8) == 0 { term.saturating_sub(1) } else { term };
            lies.push(Happening::Heard(id, self.message(liar, at, term, body)));
        }
        lies
    }

    fn any_chain(&mut self, liar: usize) -> Vec<Admission> {
        let key = self.keys[liar].clone();
        let stranger = stranger(&mut self.rng);
        let links = self.rng.usize(..20);
        (0..links)
            .map(|_| {
                let of = match self.rng.u8(..4) {
                    0 => node_id(&stranger),
                    _ => node_id(&self.keys[self.rng.usize(..MEMBERS)]),
                };
                let by = if self.rng.u8(..4) == 0 { &stranger } else { &key };
                Admission::sign(by, self.genesis.mesh, 0, of, self.any_seat())
            })
            .collect()
    }

    fn message(&self, from: usize, to: usize, term: u64, body: Body) -> Message {
        let (from, to) = (self.genesis.seats[from], self.nodes[to].seat);
        Message { mesh: self.genesis.mesh, epoch: 0, from, to, term, body }
    }

    /// A message to `at` in the name of `from`: made up, or a mutated one that was really sent.
    fn any_message(&mut self, from: usize, at: usize) -> Message {
        let status = self.driver(at).status();
        let term = match self.rng.u8(..10) {
            0..5 => status.term,
            5..8 => status.term + 1,
            8 => status.term.saturating_sub(1),
            _ => self.any_number(at),
        };
        if self.rng.u8(..3) > 0 {
            let body = self.any_body(at, term);
            return self.message(from, at, term, body);
        }
        let (_, _, real) = self.rng.choice(&self.recorded).cloned().expect("much was said");
        let mut message = self.message(from, at, real.term, real.body);
        if self.rng.bool() {
            message.term = term;
        }
        if self.rng.u8(..8) > 0 {
            self.mutate(&mut message.body, at, term);
        }
        message
    }

    fn any_number(&mut self, at: usize) -> u64 {
        let Status { term, commit, last_index, .. } = self.driver(at).status();
        let base = *self
            .rng
            .choice(&[0, 1, term, commit, last_index, CEILING, term + MAX_LEAP, u64::MAX])
            .expect("not empty");
        match self.rng.u8(..8) {
            0 => self.rng.u64(..),
            1 => self.rng.u64(..200),
            2 => base.wrapping_add(1),
            3 => base.wrapping_sub(1),
            4 => base.saturating_add(self.rng.u64(..40)),
            _ => base,
        }
    }

    fn any_seat(&mut self) -> RaftId {
        match self.rng.u8(..8) {
            0 => RaftId(self.rng.u64(..)),
            1 => RaftId(0),
            2 => RaftId(self.rng.u64(..60)),
            _ => *self.rng.choice(&self.genesis.seats).expect("there are seats"),
        }
    }

    /// A place in the log of `at`, mostly a true one.
    fn any_place(&mut self, at: usize) -> (u64, u64) {
        let Status { commit, last_index, .. } = self.driver(at).status();
        let index = match self.rng.u8(..8) {
            0 => self.any_number(at),
            1 => self.rng.u64(..=last_index),
            2 => commit,
            3 => self.rng.u64(commit..=last_index),
            _ => last_index,
        };
        let term = match self.rng.u8(..8) {
            0 => self.any_number(at),
            _ => self.term_at(at, index).unwrap_or(1),
        };
        (index, term)
    }

    fn any_body(&mut self, at: usize, term: u64) -> Body {
        let (index, index_term) = self.any_place(at);
        let (other, other_term) = self.any_place(at);
        let number = self.any_number(at);
        let any = |rng: &mut fastrand::Rng| if rng.bool() { other } else { number };
        match self.rng.u8(..16) {
            0..5 => {
                let entries = self.any_entries(index, index_term, term);
                let commit = match self.rng.u8(..3) {
                    0 => any(&mut self.rng),
                    _ => index.saturating_add(entries.len() as u64),
                };
                Body::Append { prev_index: index, prev_term: index_term, commit, entries }
            }
            5 => {
                let hint = Reject { hint_index: other, hint_term: other_term };
                let reject = self.rng.bool().then_some(hint);
                Body::AppendReply { index, commit: any(&mut self.rng), reject }
            }
            6 => Body::Vote {
                pre: self.rng.bool(),
                last_index: index,
                last_term: index_term,
                commit: other,
                commit_term: other_term,
                transfer: self.rng.bool(),
            },
            7 | 8 => {
                let (pre, granted) = (self.rng.bool(), self.rng.bool());
                Body::VoteReply { pre, granted, commit: other, commit_term: other_term }
            }
            9 => {
                let commit = if self.rng.bool() { index } else { number };
                Body::Heartbeat { commit, read: self.rng.bool().then_some(number) }
            }
            10 => Body::HeartbeatReply { commit: index, read: self.rng.bool().then_some(number) },
            11 | 12 => Body::Snapshot(self.any_snapshot(at, term)),
            13 => Body::TimeoutNow,
            14 => Body::Forward { batch: self.any_batch() },
            _ if self.rng.bool() => Body::Read { context: number },
            _ => Body::ReadReply { context: number, index },
        }
    }

    fn any_entries(&mut self, prev: u64, prev_term: u64, term: u64) -> Vec<Entry> {
        let count = if self.rng.u8(..8) == 0 { self.rng.u64(..40) } else { self.rng.u64(..4) };
        let mut last_term = prev_term;
        (1..=count)
            .map(|step| {
                let index = prev.wrapping_add(step);
                if self.rng.bool() {
                    last_term = last_term.max(term);
                }
                let mut entry = Entry { term: last_term, index, payload: self.any_payload() };
                match self.rng.u8(..40) {
                    0 => entry.term = self.any_number(0),
                    1 => entry.index = self.any_number(0),
                    _ => {}
                }
                entry
            })
            .collect()
    }

    fn any_payload(&mut self) -> Payload {
        match self.rng.u8(..8) {
            0 => Payload::Empty,
            1..4 => {
                let time = match self.rng.u8(..4) {
                    0 => Time(u64::MAX),
                    1 => Time(0),
                    _ => Time(BEGINNING.0 + self.time),
                };
                Payload::Batch { time, bytes: self.any_batch() }
            }
            _ => Payload::Config(self.any_change()),
        }
    }

    fn any_change(&mut self) -> ConfigChange {
        let seats = self.genesis.seats.clone();
        let running = &seats[..RUNNING];
        match self.rng.u8(..8) {
            0 => ConfigChange::Leave,
            1 => ConfigChange::Seats(running.iter().map(|seat| Seat::Gone(*seat)).collect()),
            2 => {
                let count = self.rng.usize(..20);
                let seats = (0..count).map(|_| {
                    let seat = self.any_seat();
                    any_role(&mut self.rng, seat)
                });
                ConfigChange::Seats(seats.collect())
            }
            3 => {
                let many = (1..=self.rng.u64(15..19)).map(|id| Seat::Learner(RaftId(id)));
                ConfigChange::Seats(many.collect())
            }
            _ => {
                // What a leader might really propose: some of those that are there.
                let count = self.rng.usize(1..=RUNNING);
                let mut chosen = self.rng.choose_multiple(running, count);
                self.rng.shuffle(&mut chosen);
                let seats = chosen.into_iter().map(|seat| any_role(&mut self.rng, *seat));
                ConfigChange::Seats(seats.collect())
            }
        }
    }

    fn any_config(&mut self) -> Config {
        let mut set = |percent: u8| {
            let seats = self.genesis.seats.clone();
            seats.into_iter().filter(|_| self.rng.u8(..100) < percent).collect()
        };
        let mut config = Config { voters: set(60), ..Config::default() };
        match self.rng.u8(..4) {
            0 => config.learners = [self.any_seat()].into(),
            1 => {
                config.outgoing = self.genesis.seats.iter().copied().take(VOTERS).collect();
                config.learners_next =
                    config.outgoing.difference(&config.voters).copied().collect();
            }
            2 => {
                config.outgoing.insert(self.any_seat());
                config.learners.insert(self.any_seat());
                config.learners_next.insert(self.any_seat());
            }
            _ => {}
        }
        config
    }

    fn any_snapshot(&mut self, at: usize, term: u64) -> Snapshot {
        let source = self.rng.usize(..RUNNING);
        let mut snapshot = match self.rng.u8(..8) {
            0 => self.elsewhere.clone(),
            1 => self.genesis.snapshot.clone(),
            _ => self.driver(source).replica().snapshot(),
        };
        let Status { commit, last_index, .. } = self.driver(at).status();
        snapshot.index = match self.rng.u8(..4) {
            0 => snapshot.index,
            1 => self.any_number(at),
            _ => self.rng.u64(commit..=last_index.saturating_add(20)),
        };
        snapshot.term = match self.rng.u8(..4) {
            0 => snapshot.term,
            1 => self.any_place(at).1,
            _ => term,
        };
        if self.rng.bool() {
            snapshot.config = self.any_config();
        }
        if self.rng.bool() {
            snapshot.data = mutated_bytes(&mut self.rng, &snapshot.data);
        }
        snapshot
    }

    /// Bytes of a batch that somebody might send: a real one, a liar's own or a forged one.
    fn any_batch(&mut self) -> Vec<u8> {
        match self.rng.u8(..4) {
            0 => self.rng.choice(&self.batches).expect("some counted").as_bytes().to_vec(),
            1 => {
                // A member's own word, with nonsense in it.
                let who = self.rng.usize(..MEMBERS);
                let sequence = self.any_number(0);
                let commands: Vec<Command> = (0..self.rng.usize(..4))
                    .map(|_| Command {
                        kind: self.rng.u16(..14),
                        body: (0..self.rng.usize(..80)).map(|_| self.rng.u8(..)).collect(),
                    })
                    .collect();
                self.sign(who, sequence, &commands).as_bytes().to_vec()
            }
            _ => self.forged_batch(),
        }
    }

    /// A batch that never counts.
    fn forged_batch(&mut self) -> Vec<u8> {
        let mesh = self.genesis.mesh;
        let act = NameSet {
            party: self.genesis.parties[0],
            name: name("forged"),
            expect: None,
            to: Hash([6; 32]),
        };
        let commands = [Act::NameSet(act).command()];
        let sequence = self.rng.u64(1 << 20..1 << 21);
        let member = self.keys[self.rng.usize(..MEMBERS)].clone();
        let stranger = stranger(&mut self.rng);
        let sign = |key, mesh, epoch| {
            let batch = Batch::sign(key, mesh, epoch, sequence, &commands);
            batch.expect("the batch is small").as_bytes().to_vec()
        };
        match self.rng.u8(..6) {
            0 => sign(&stranger, mesh, 0),
            1 => {
                // Signed by a stranger in a member's name: the author follows mesh and epoch.
                let mut bytes = sign(&stranger, mesh, 0);
                bytes[33..65].copy_from_slice(&node_id(&member).0);
                bytes
            }
            2 => sign(&member, mesh, self.rng.u32(1..100)),
            3 => sign(&member, MeshId([3; 32]), 0),
            4 => {
                let mut bytes = sign(&member, mesh, 0);
                let at = self.rng.usize(..bytes.len());
                bytes[at] ^= 1 << self.rng.u8(..8);
                bytes
            }
            _ => (0..self.rng.usize(..200)).map(|_| self.rng.u8(..)).collect(),
        }
    }

    /// Changes one thing about a message that was really sent.
    fn mutate(&mut self, body: &mut Body, at: usize, term: u64) {
        let number = self.any_number(at);
        let pick = self.rng.u8(..4);
        match body {
            Body::Append { prev_index, prev_term, commit, entries } => match self.rng.u8(..9) {
                0 => *prev_index = number,
                1 => *prev_term = number,
                2 => *commit = number,
                3 if !entries.is_empty() => drop(entries.remove(self.rng.usize(..entries.len()))),
                4 if !entries.is_empty() => {
                    let again = entries[self.rng.usize(..entries.len())].clone();
                    entries.insert(self.rng.usize(..=entries.len()), again);
                }
                5 => self.rng.shuffle(entries),
                6 => entries.iter_mut().for_each(|entry| entry.term = term),
                7 if !entries.is_empty() => {
                    let place = self.rng.usize(..entries.len());
                    entries[place].payload = self.any_payload();
                }
                _ => {
                    // The same, moved to the end of the listener's log.
                    let (index, index_term) = self.any_place(at);
                    for (step, entry) in (1..).zip(entries.iter_mut()) {
                        (entry.index, entry.term) = (index.wrapping_add(step), term);
                    }
                    *commit = index.saturating_add(entries.len() as u64);
                    (*prev_index, *prev_term) = (index, index_term);
                }
            },
            Body::AppendReply { index, commit, reject } => match pick {
                0 => *index = number,
                1 => *commit = number,
                2 => *reject = Some(Reject { hint_index: number, hint_term: term }),
                _ => *reject = Some(Reject { hint_index: *index, hint_term: number }),
            },
            Body::Vote { pre, last_index, last_term, commit, commit_term, transfer } => {
                match self.rng.u8(..6) {
                    0 => *pre = !*pre,
                    1 => *last_index = number,
                    2 => *last_term = number,
                    3 => *commit = number,
                    4 => *commit_term = number,
                    _ => *transfer = true,
                }
            }
            Body::VoteReply { pre, granted, commit, commit_term } => match pick {
                0 => *pre = !*pre,
                1 => *granted = true,
                2 => *commit = number,
                _ => *commit_term = number,
            },
            Body::Heartbeat { commit, read } | Body::HeartbeatReply { commit, read } => {
                match pick {
                    0 => *read = Some(number),
                    _ => *commit = number,
                }
            }
            Body::Snapshot(snapshot) => match self.rng.u8(..5) {
                0 => snapshot.index = number,
                1 => snapshot.term = number,
                2 => snapshot.config = self.any_config(),
                3 => snapshot.index = self.any_place(at).0.saturating_add(1),
                _ => snapshot.data = mutated_bytes(&mut self.rng, &snapshot.data),
            },
            Body::Forward { batch } => *batch = mutated_bytes(&mut self.rng, batch),
            Body::Read { context } => *context = number,
            Body::ReadReply { context, index } => match pick {
                0 => *context = number,
                _ => *index = number,
            },
            Body::TimeoutNow => {}
        }
    }
}

fn any_role(rng: &mut fastrand::Rng, seat: RaftId) -> Seat {
    match rng.u8(..3) {
        0 => Seat::Voter(seat),
        1 => Seat::Learner(seat),
        _ => Seat::Gone(seat),
    }
}

/// A key that was never a member's.
fn stranger(rng: &mut fastrand::Rng) -> SigningKey {
    node_key(rng.usize(100..200))
}

/// `bytes` with some bits flipped, cut short, or continued.
fn mutated_bytes(rng: &mut fastrand::Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match rng.u8(..8) {
        0 => bytes.truncate(rng.usize(..=bytes.len())),
        1 => bytes.push(rng.u8(..)),
        _ => {
            for _ in 0..rng.usize(1..4) {
                if !bytes.is_empty() {
                    let at = rng.usize(..bytes.len());
                    bytes[at] ^= 1 << rng.u8(..8);
                }
            }
        }
    }
    bytes
}
