//! Small promises of the driver and the replica, each on its own.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use mesh_chaos_tests::genesis::{BEGINNING, Genesis, grown, node_id, node_key};
use mesh_consensus::command::{Batch, Command};
use mesh_consensus::driver::{Driver, Event, MAX_WAITING, Outbox, Settings, Turn, WAITING_TICKS};
use mesh_consensus::id::NodeId;
use mesh_consensus::log::{ConfigChange, Entry, Identity, Payload, Seat};
use mesh_consensus::message::Message;
use mesh_consensus::replica::{Fact, Rejected, Replica};
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
