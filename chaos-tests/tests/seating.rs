//! Between a seat and the watchers' bench: a node that voted, was removed, watched, and sits again.
//!
//! Real drivers on real logs, on disks in memory; a message arrives at once.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::collections::VecDeque;

use mesh_chaos_tests::genesis::{BEGINNING, Genesis, grown, node_id, node_key};
use mesh_consensus::command::{Batch, Command};
use mesh_consensus::core::{Pace, Role};
use mesh_consensus::driver::{Driver, Event, Outbox, Settings};
use mesh_consensus::follow::{SeatError, seat};
use mesh_consensus::id::{NodeId, RaftId};
use mesh_consensus::log::{
    ConfigChange, Entry, HardState, Identity, Log, Payload, Seat, Snapshot, Write,
};
use mesh_consensus::message::{Body, Message};
use mesh_consensus::replica::Replica;
use mesh_node::state::State;
use mesh_node::state::level::LEVEL;
use mesh_storage::log::{LogSettings, RedbLog};
use mesh_storage::mem::MemDisk;

/// More than any answer here has.
const PLENTY: u64 = 1 << 20;
/// Who is removed and comes back.
const W: usize = 2;

struct Sent(Vec<(NodeId, Message)>);

impl Outbox for Sent {
    fn send(&mut self, to: NodeId, message: Message) {
        self.0.push((to, message));
    }
}

/// Three voters.
struct Net {
    genesis: Genesis,
    /// `None` while it watches.
    drivers: Vec<Option<Driver<RedbLog, State>>>,
    sequence: u64,
}

fn new_log(genesis: &Genesis, n: usize) -> RedbLog {
    let disk = MemDisk::new(fastrand::Rng::with_seed(n as u64));
    let (node, raft_id) = (node_id(&node_key(n)), genesis.seats[n]);
    let identity = Identity { mesh: genesis.mesh, epoch: 0, node, raft_id };
    RedbLog::create(&disk, "log", identity, Some(&genesis.snapshot), LogSettings::default())
        .unwrap()
}

fn open(log: RedbLog, seed: u64) -> Driver<RedbLog, State> {
    let pace = Pace { snapshot_every: 16, keep: 8, ..Pace::default() };
    Driver::open(log, State::blank(LEVEL), Settings { pace, ..Settings::new(seed) }).unwrap()
}

impl Net {
    fn new() -> Self {
        let genesis = grown(3, 1, 3, 0, LEVEL);
        let drivers = (0..3).map(|n| Some(open(new_log(&genesis, n), n as u64))).collect();
        let sequence = 1000;
        let mut net = Self { genesis, drivers, sequence };
        net.elect(0);
        net
    }

    fn driver(&self, n: usize) -> &Driver<RedbLog, State> {
        self.drivers[n].as_ref().unwrap()
    }

    fn turn(&mut self, n: usize, event: Event) {
        let mut in_flight = VecDeque::from([(n, event)]);
        while let Some((n, event)) = in_flight.pop_front() {
            let Some(driver) = self.drivers[n].as_mut() else { continue };
            let mut sent = Sent(Vec::new());
            let turn = driver.turn(BEGINNING, [event], &mut sent).unwrap();
            assert_eq!(turn.refused, []);
            let from = node_id(&node_key(n));
            for (to, message) in sent.0 {
                let to = (0..3).find(|n| node_id(&node_key(*n)) == to).unwrap();
                in_flight.push_back((to, Event::Received { from, message }));
            }
        }
    }

    fn tick(&mut self, who: &[usize], times: usize) {
        for _ in 0..times {
            for n in who {
                self.turn(*n, Event::Tick { passed: 1 });
            }
        }
    }

    /// Lets `n` alone grow impatient, until it leads.
    fn elect(&mut self, n: usize) {
        let others: Vec<usize> = (0..3).filter(|other| *other != n).collect();
        for _ in 0..200 {
            self.tick(&[n], 1);
            if self.driver(n).status().role == Role::Leader {
                return;
            }
            if self.driver(others[0]).status().role == Role::Leader {
                self.turn(others[0], Event::Transfer(self.genesis.seats[n]));
            }
        }
        panic!("{n} was not elected");
    }

    fn change(&mut self, seats: Vec<Seat>) {
        let before = self.driver(0).replica().config().clone();
        self.turn(0, Event::Change(ConfigChange::Seats(seats)));
        self.tick(&[0], 4);
        assert_ne!(*self.driver(0).replica().config(), before);
    }

    fn write(&mut self, times: u64) {
        for _ in 0..times {
            self.sequence += 1;
            let nothing = [Command { kind: u16::MAX, body: Vec::new() }];
            let mesh = self.genesis.mesh;
            let batch = Batch::sign(&node_key(0), mesh, 0, self.sequence, &nothing).unwrap();
            self.turn(0, Event::Submit(batch));
        }
        self.tick(&[0], 2);
    }

    /// W loses its seat, and takes its log and its replica with it.
    fn unseat(&mut self) -> (RedbLog, Replica<State>) {
        self.change(vec![Seat::Gone(self.genesis.seats[W])]);
        self.drivers[W].take().unwrap().into_parts()
    }

    /// W follows node 0 until it has what that one has.
    fn watch(&self, replica: &mut Replica<State>) {
        let server = self.driver(0);
        while replica.index() < server.replica().index() {
            let Some(entries) = server.entries_after(replica.index(), PLENTY).unwrap() else {
                let (blank, snapshot) = (State::blank(LEVEL), server.replica().snapshot());
                *replica = Replica::restore(self.genesis.mesh, 0, &snapshot, blank).unwrap();
                continue;
            };
            for entry in entries {
                let _ = replica.apply(&entry).unwrap();
            }
        }
        assert_eq!(replica.history(), server.replica().history());
    }
}

#[test]
fn a_voter_that_was_removed_and_watched_is_seated_again_and_gets_on_with_the_leader() {
    for writes in [1, 5, 60] {
        let mut net = Net::new();
        let (mut log, mut replica) = net.unseat();
        net.watch(&mut replica);
        for _ in 0..writes {
            net.write(1);
            net.watch(&mut replica);
        }
        net.change(vec![Seat::Learner(net.genesis.seats[W])]);
        net.watch(&mut replica);
        seat(&mut log, &replica.snapshot()).unwrap();
        net.drivers[W] = Some(open(log, 7));
        net.tick(&[0], 4);
        net.change(vec![Seat::Voter(net.genesis.seats[W])]);
        net.write(3);
        let (there, here) = (net.driver(0).replica(), net.driver(W).replica());
        assert_eq!((here.index(), here.history()), (there.index(), there.history()));
        // It counts again: with node 1 silent, its acknowledgement makes the majority.
        net.drivers[1] = None;
        let before = net.driver(0).status().commit;
        net.write(1);
        assert_eq!(net.driver(0).status().commit, before + 1);
        assert_eq!(net.driver(W).replica().index(), before + 1);
    }
}

#[test]
fn a_former_voter_does_not_vote_twice_in_a_term() {
    let mut net = Net::new();
    let (mut log, mut replica) = net.unseat();
    let promised = log.hard_state();
    assert_eq!(promised.vote, Some(net.genesis.seats[0]));
    net.write(40);
    net.change(vec![Seat::Learner(net.genesis.seats[W])]);
    net.watch(&mut replica);
    seat(&mut log, &replica.snapshot()).unwrap();
    let HardState { term, vote, commit } = log.hard_state();
    assert_eq!((term, vote, commit), (promised.term, promised.vote, replica.index()));
    // In the same term node 1 asks, with a log that is as good as any.
    let mut driver = open(log, 7);
    let ask = |term| Message {
        mesh: net.genesis.mesh,
        epoch: 0,
        from: net.genesis.seats[1],
        to: net.genesis.seats[W],
        term,
        body: Body::Vote {
            pre: false,
            last_index: replica.index() + 100,
            last_term: promised.term,
            commit: 0,
            commit_term: 0,
            transfer: true,
        },
    };
    let mut answer = |term| {
        let (from, message) = (node_id(&node_key(1)), ask(term));
        let mut sent = Sent(Vec::new());
        let _ = driver.turn(BEGINNING, [Event::Received { from, message }], &mut sent).unwrap();
        sent.0.iter().find_map(|(_, message)| match message.body {
            Body::VoteReply { pre: false, granted, .. } => Some(granted),
            _ => None,
        })
    };
    assert_ne!(answer(promised.term), Some(true));
    // It is able to: in another term it does.
    assert_eq!(answer(promised.term + 1), Some(true));
}

#[test]
fn only_what_is_applied_and_still_there_is_served() {
    let mut net = Net::new();
    net.write(40);
    let driver = net.driver(0);
    let applied = driver.replica().index();
    assert_eq!(driver.entries_after(applied, PLENTY).unwrap(), Some(vec![]));
    assert_eq!(driver.entries_after(u64::MAX, PLENTY).unwrap(), Some(vec![]));
    let last = driver.entries_after(applied - 3, PLENTY).unwrap().unwrap();
    let indexes: Vec<u64> = last.iter().map(|entry| entry.index).collect();
    assert_eq!(indexes, [applied - 2, applied - 1, applied]);
    assert_eq!(driver.entries_after(applied - 3, 1).unwrap().unwrap().len(), 1);
    let first = driver.log().first_index();
    assert!(first > 2, "nothing was compacted");
    assert!(driver.entries_after(first - 1, PLENTY).unwrap().is_some());
    assert_eq!(driver.entries_after(first - 2, PLENTY).unwrap(), None);
    assert_eq!(driver.entries_after(0, PLENTY).unwrap(), None);
    // What is not committed is not served: the others are gone, the log grows, the answer does not.
    net.drivers[1] = None;
    net.drivers[W] = None;
    net.write(2);
    assert!(net.driver(0).status().last_index > applied);
    assert_eq!(net.driver(0).entries_after(applied, PLENTY).unwrap(), Some(vec![]));
}

/// A log after its genesis, with empty entries of these terms; the first `committed` count.
fn log_of(terms: &[u64], committed: u64) -> (RedbLog, u64) {
    let genesis = grown(3, 1, 3, 0, LEVEL);
    let mut log = new_log(&genesis, W);
    let base = genesis.snapshot.index;
    let entries: Vec<Entry> = (base + 1..)
        .zip(terms)
        .map(|(index, term)| Entry { term: *term, index, payload: Payload::Empty })
        .collect();
    let hard_state = HardState { term: 5, vote: Some(RaftId(1)), commit: base + committed };
    log.write(&Write { entries: &entries, hard_state, ..Write::default() }).unwrap();
    (log, base)
}

/// What a watcher has that saw entries of these terms after the same genesis.
fn snapshot_of(terms: &[u64]) -> Snapshot {
    let genesis = grown(3, 1, 3, 0, LEVEL);
    let blank = State::blank(LEVEL);
    let mut replica = Replica::restore(genesis.mesh, 0, &genesis.snapshot, blank).unwrap();
    for term in terms {
        let index = replica.index() + 1;
        let _ = replica.apply(&Entry { term: *term, index, payload: Payload::Empty }).unwrap();
    }
    replica.snapshot()
}

#[test]
fn a_log_keeps_what_follows_a_snapshot_that_it_has_and_gives_up_what_contradicts_it() {
    // The log and what of it is committed; the snapshot; where the log begins and ends, by entries
    // after the genesis; term and vote.
    let kept = Some(RaftId(1));
    type Row<'a> = (&'a [u64], u64, &'a [u64], u64, u64, (u64, Option<RaftId>));
    let table: [Row<'_>; 8] = [
        // It ends before: replaced.
        (&[2, 2], 1, &[2, 2, 3, 3], 4, 4, (5, kept)),
        (&[], 0, &[2], 1, 1, (5, kept)),
        // It has more: another voter's majority may rest on it.
        (&[2, 2, 3, 3], 1, &[2, 2], 0, 4, (5, kept)),
        (&[2, 2, 3, 3], 2, &[2, 2], 0, 4, (5, kept)),
        (&[2, 2], 0, &[2, 2], 0, 2, (5, kept)),
        // It has another entry there: what follows that one is on a dead branch.
        (&[2, 3, 3, 3], 1, &[2, 4], 2, 2, (5, kept)),
        (&[2, 3, 3, 3], 1, &[2, 2], 2, 2, (5, kept)),
        // In a later term it has voted for nobody.
        (&[2], 1, &[2, 9], 2, 2, (9, None)),
    ];
    for (place, (terms, committed, seen, first, last, (term, vote))) in table.iter().enumerate() {
        let (mut log, base) = log_of(terms, *committed);
        let snapshot = snapshot_of(seen);
        for _ in 0..2 {
            seat(&mut log, &snapshot).unwrap();
            assert_eq!(log.first_index(), base + first + 1, "row {place}");
            assert_eq!(log.last_index(), base + last, "row {place}");
            let want = HardState { term: *term, vote: *vote, commit: snapshot.index };
            assert_eq!(log.hard_state(), want, "row {place}");
        }
        let mut driver = open(log, 1);
        let _ = driver.turn(BEGINNING, [], &mut Sent(Vec::new())).unwrap();
        assert_eq!(driver.replica().snapshot(), snapshot, "row {place}");
    }
}

#[test]
fn a_log_does_not_go_back_nor_against_what_it_knows_to_be_committed() {
    let (mut log, base) = log_of(&[2, 2, 3], 2);
    let before = (log.hard_state(), log.first_index(), log.last_index());
    let behind = seat(&mut log, &snapshot_of(&[2])).unwrap_err();
    assert!(matches!(behind, SeatError::Behind { snapshot, commit }
        if (snapshot, commit) == (base + 1, base + 2)));
    let forked = seat(&mut log, &snapshot_of(&[2, 3])).unwrap_err();
    assert!(matches!(forked, SeatError::Forked { index, ours: 2, theirs: 3 } if index == base + 2));
    assert_eq!((log.hard_state(), log.first_index(), log.last_index()), before);
    // Nor has it failed.
    seat(&mut log, &snapshot_of(&[2, 2])).unwrap();
}
