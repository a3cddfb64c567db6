//! Small promises of the driver and the replica, each on its own.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use mesh_chaos_tests::genesis::{BEGINNING, Genesis, grown, node_id, node_key};
use mesh_consensus::command::{Batch, Command};
use mesh_consensus::core::Role;
use mesh_consensus::driver::{Driver, Event, MAX_WAITING, Outbox, Settings, Turn, WAITING_TICKS};
use mesh_consensus::id::NodeId;
use mesh_consensus::log::{ConfigChange, Entry, Identity, Payload, Seat};
use mesh_consensus::message::Message;
use mesh_consensus::replica::{Fact, Rejected, Replica, Verdict};
use mesh_node::state::State;
use mesh_node::state::level::LEVEL;
use mesh_storage::log::{LogSettings, RedbLog};
use mesh_storage::mem::MemDisk;

struct Nobody;

impl Outbox for Nobody {
    fn send(&mut self, _: NodeId, _: Message) {}
}

struct Alone {
    driver: Driver<RedbLog, State>,
    genesis: Genesis,
}

/// A mesh of one, before it has elected itself.
fn alone() -> Alone {
    let genesis = grown(1, 1, 1, 0, LEVEL);
    let disk = MemDisk::new(fastrand::Rng::with_seed(1));
    let identity = Identity {
        mesh: genesis.mesh,
        epoch: 0,
        node: node_id(&node_key(0)),
        raft_id: genesis.seats[0],
    };
    let settings = LogSettings::default();
    let log = RedbLog::create(&disk, "log", identity, Some(&genesis.snapshot), settings).unwrap();
    let driver = Driver::open(log, State::blank(LEVEL), Settings::new(1)).unwrap();
    Alone { driver, genesis }
}

impl Alone {
    fn batch(&self, epoch: u32, sequence: u64) -> Batch {
        let nothing = [Command { kind: u16::MAX, body: Vec::new() }];
        Batch::sign(&node_key(0), self.genesis.mesh, epoch, sequence, &nothing).unwrap()
    }

    fn turn(&mut self, events: Vec<Event>) -> Turn {
        self.driver.turn(BEGINNING, events, &mut Nobody).unwrap()
    }

    fn tick(&mut self, ticks: u64) -> Vec<Turn> {
        (0..ticks).map(|_| self.turn(vec![Event::Tick { passed: 1 }])).collect()
    }
}

#[test]
fn batches_that_wait_can_be_submitted_again_when_no_more_are_taken() {
    let mut node = alone();
    let batches: Vec<Batch> = (0..MAX_WAITING as u64).map(|n| node.batch(0, 100 + n)).collect();
    for batch in &batches {
        assert_eq!(node.turn(vec![Event::Submit(batch.clone())]).busy, []);
    }
    let one_more = node.batch(0, 99_999);
    let turn = node.turn(vec![Event::Submit(one_more.clone())]);
    assert_eq!(turn.busy, [(one_more.author(), 99_999)]);
    let _ = node.tick(20);
    for batch in batches.iter().take(10) {
        let turn = node.turn(vec![Event::Submit(batch.clone())]);
        assert_eq!((turn.busy.len(), turn.answers.len()), (0, 1));
    }
    let turn = node.turn(vec![Event::Submit(one_more)]);
    assert_eq!((turn.busy.len(), turn.answers.len()), (0, 1));
}

#[test]
fn a_batch_that_nobody_asks_for_again_is_forgotten() {
    let mut node = alone();
    for n in 0..MAX_WAITING as u64 {
        let batch = node.batch(0, 100 + n);
        let _ = node.turn(vec![Event::Submit(batch)]);
    }
    let _ = node.tick(WAITING_TICKS + 1);
    let batch = node.batch(0, 99_999);
    assert_eq!(node.turn(vec![Event::Submit(batch)]).answers.len(), 1);
}

#[test]
fn a_batch_that_can_never_count_is_answered_at_once() {
    let mut node = alone();
    let _ = node.tick(20);
    let batch = node.batch(7, 100);
    let turn = node.turn(vec![Event::Submit(batch)]);
    assert!(matches!(turn.answers[0].result, Err(Rejected::Batch(_))));
    assert_eq!(turn.applied, []);
    let zero = node.batch(0, 0);
    let turn = node.turn(vec![Event::Submit(zero)]);
    assert!(matches!(turn.answers[0].result, Err(Rejected::TooOld { .. })));
}

#[test]
fn a_change_that_the_state_does_not_allow_is_void() {
    // Three parties, and the first has two nodes: a1 b1 c1 a2.
    let genesis = grown(4, 3, 3, 1, LEVEL);
    let blank = State::blank(LEVEL);
    let mut replica = Replica::restore(genesis.mesh, 0, &genesis.snapshot, blank).unwrap();
    let before = replica.config().clone();
    let seats = vec![Seat::Voter(genesis.seats[3]), Seat::Gone(genesis.seats[1])];
    let payload = Payload::Config(ConfigChange::Seats(seats));
    let entry = Entry { term: 1, index: replica.index() + 1, payload };
    assert_eq!(replica.apply(&entry).unwrap().fact, Fact::Config(None));
    assert_eq!(*replica.config(), before);
}

#[test]
fn a_signature_that_was_checked_is_good_for_exactly_those_bytes() {
    let node = alone();
    let genesis = &node.genesis;
    let mut replica =
        Replica::restore(genesis.mesh, 0, &genesis.snapshot, State::blank(LEVEL)).unwrap();
    let batch = node.batch(0, 100);
    replica.verify(&batch).unwrap();
    let mut forged = batch.as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    for (bytes, counts) in [(forged, false), (batch.as_bytes().to_vec(), true)] {
        let index = replica.index() + 1;
        let payload = Payload::Batch { time: BEGINNING, bytes };
        let applied = replica.apply(&Entry { term: 1, index, payload }).unwrap();
        let counted = matches!(applied.fact, Fact::Batch { verdict: Verdict::Counted(_), .. });
        assert_eq!(counted, counts, "{applied:?}");
    }
}

/// Messages that were sent and not delivered.
#[derive(Default)]
struct Post(Vec<(NodeId, Message)>);

impl Outbox for Post {
    fn send(&mut self, to: NodeId, message: Message) {
        self.0.push((to, message));
    }
}

/// Three voters, and the messages between them.
struct Trio {
    drivers: Vec<Driver<RedbLog, State>>,
    genesis: Genesis,
}

impl Trio {
    /// With a leader, and everyone at rest. Gives the leader, too.
    fn led() -> (Self, usize) {
        let genesis = grown(3, 1, 3, 0, LEVEL);
        let open = |host: usize| {
            let disk = MemDisk::new(fastrand::Rng::with_seed(host as u64));
            let (node, raft_id) = (node_id(&node_key(host)), genesis.seats[host]);
            let identity = Identity { mesh: genesis.mesh, epoch: 0, node, raft_id };
            let settings = LogSettings::default();
            let log = RedbLog::create(&disk, "log", identity, Some(&genesis.snapshot), settings);
            Driver::open(log.unwrap(), State::blank(LEVEL), Settings::new(host as u64)).unwrap()
        };
        let drivers = (0..3).map(open).collect();
        let mut trio = Self { drivers, genesis };
        for _ in 0..100 {
            for host in 0..3 {
                trio.turn(host, vec![Event::Tick { passed: 1 }]);
            }
        }
        let leads = |driver: &Driver<_, _>| driver.status().role == Role::Leader;
        let leader = trio.drivers.iter().position(leads).expect("somebody was elected");
        (trio, leader)
    }

    /// One turn of one node, and all that follows from its messages. What the first turn answered, and
    /// what later ones of the same node did; how many messages were sent in all.
    fn turn(&mut self, host: usize, events: Vec<Event>) -> (usize, usize) {
        let mut due = vec![(host, events)];
        let (mut answers, mut messages) = (0, 0);
        while let Some((at, events)) = due.pop() {
            let mut post = Post::default();
            let turn = self.drivers[at].turn(BEGINNING, events, &mut post).unwrap();
            answers += turn.answers.len();
            messages += post.0.len();
            let from = node_id(&node_key(at));
            for (to, message) in post.0 {
                let to = (0..3).find(|host| node_id(&node_key(*host)) == to).unwrap();
                due.insert(0, (to, vec![Event::Received { from, message }]));
            }
        }
        (answers, messages)
    }

    fn submit(&mut self, host: usize, sequence: u64) -> (usize, usize) {
        let nothing = [Command { kind: u16::MAX, body: Vec::new() }];
        let batch = Batch::sign(&node_key(host), self.genesis.mesh, 0, sequence, &nothing).unwrap();
        self.turn(host, vec![Event::Submit(batch)])
    }

    fn indexes(&self) -> Vec<u64> {
        self.drivers.iter().map(|driver| driver.replica().index()).collect()
    }
}

#[test]
fn what_is_committed_is_told_with_the_next_entry_or_when_asked_and_once() {
    let (mut trio, leader) = Trio::led();
    let follower = (leader + 1) % 3;
    let before = trio.indexes()[leader];
    assert_eq!(trio.indexes(), [before; 3]);
    // To each follower an entry, and its answer: no word of the commit, and nobody waits for one.
    assert_eq!(trio.submit(leader, 1000), (1, 4));
    assert!(trio.drivers[leader].has_news());
    assert_eq!((trio.indexes()[leader], trio.indexes()[follower]), (before + 1, before));
    // The next entry carries the news.
    assert_eq!(trio.submit(leader, 1001), (1, 4));
    assert_eq!((trio.indexes()[leader], trio.indexes()[follower]), (before + 2, before + 1));
    // And where none follows, it is told when there is nothing else to do.
    let _ = trio.turn(leader, vec![Event::Tell]);
    assert_eq!(trio.indexes(), [before + 2; 3]);
    assert!(!trio.drivers[leader].has_news());
    assert_eq!(trio.turn(leader, vec![Event::Tell]), (0, 0), "nothing is told twice");
}

#[test]
fn whoever_waits_for_a_commit_elsewhere_is_told_at_once() {
    let (mut trio, leader) = Trio::led();
    let follower = (leader + 1) % 3;
    let (answers, _) = trio.submit(follower, 1000);
    assert_eq!(answers, 1, "a follower's batch is answered without any tick");
    // A read at a follower waits for what the leader alone knows to be committed.
    let _ = trio.submit(leader, 1000);
    let committed = trio.indexes()[leader];
    assert!(trio.indexes()[follower] < committed);
    let _ = trio.turn(follower, vec![Event::Read { token: 7 }]);
    assert_eq!(trio.indexes()[follower], committed);
}
