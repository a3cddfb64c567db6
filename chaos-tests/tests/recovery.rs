//! The majority is gone for good: who goes on, from what, and what counts no more.
//!
//! Real drivers on real logs, on disks in memory, with a small network between them whose links can
//! be cut one by one. Most stories begin with the same [`disaster`]:
//!
//! ```text
//!  0  leads, twice             lost
//!  1  follows                  lost
//!  2  follows                  lost
//!  3  drove its own term up in elections that it lost, then was cut off     survives
//!  4  has everything, and a tail that nobody knows to be committed          survives
//! ```

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::collections::{BTreeSet, VecDeque};

use ed25519_dalek::SigningKey;
use mesh_chaos_tests::genesis::{BEGINNING, grown, name, node_id, node_key, party_id, party_key};
use mesh_chaos_tests::host::FILE;
use mesh_consensus::admission::{Admission, NotAdmitted};
use mesh_consensus::admit::Refused;
use mesh_consensus::command::{Batch, BatchError};
use mesh_consensus::core::Role;
use mesh_consensus::driver::{Driver, Event, Outbox, Settings, Status, Turn};
use mesh_consensus::id::{Epoch, Hash, MeshId, NodeId, RaftId};
use mesh_consensus::log::{
    Config, ConfigChange, Entry, HardState, Identity, Log, Payload, Seat, Snapshot,
};
use mesh_consensus::machine::StateMachine;
use mesh_consensus::message::{Body, Message};
use mesh_consensus::recover::{FENCE_GAP, Order, RecoverError, Survey, choose, recover};
use mesh_consensus::replica::{Fact, Rejected, Replica, Verdict};
use mesh_consensus::time::Time;
use mesh_node::state::command::{Act, Leave, NameSet, Rejoin};
use mesh_node::state::level::LEVEL;
use mesh_node::state::{Recovered, State};
use mesh_storage::disk::Disk;
use mesh_storage::log::{CreateError, LogSettings, RedbLog};
use mesh_storage::mem::MemDisk;

/// Where a log of an epoch that has ended is kept.
const ASIDE: &str = "state.redb.old";
/// More messages than this without a pause would be a storm.
const STORM: usize = 20_000;

struct Node {
    key: SigningKey,
    id: NodeId,
    disk: MemDisk,
    /// `None` while it is switched off.
    driver: Option<Driver<RedbLog, State>>,
    starts: u64,
}

/// Nodes, and the links between them. A message arrives at once or never.
struct Net {
    mesh: MeshId,
    nodes: Vec<Node>,
    parties: usize,
    sequence: u64,
    /// Links, from and to, that lose everything.
    cut: BTreeSet<(usize, usize)>,
    /// Votes are lost; the question whether there would be votes is not.
    lose_votes: bool,
    in_flight: VecDeque<(usize, NodeId, Message)>,
    /// Every frame that was sent: from whom, to whom.
    frames: Vec<(NodeId, NodeId, Message)>,
    /// What was refused: by whom, from whom.
    refused: Vec<(usize, NodeId, Refused)>,
    /// What entries meant, where they were applied.
    facts: Vec<(usize, Fact)>,
}

struct Sent(Vec<(NodeId, Message)>);

impl Outbox for Sent {
    fn send(&mut self, to: NodeId, message: Message) {
        self.0.push((to, message));
    }
}

impl Net {
    /// A mesh of `hosts` voters, running.
    fn new(hosts: usize, parties: usize) -> Self {
        let genesis = grown(hosts, parties, hosts, 0, LEVEL);
        let nodes = (0..hosts).map(|n| {
            let key = node_key(n);
            let id = node_id(&key);
            let disk = MemDisk::new(fastrand::Rng::with_seed(n as u64));
            let raft_id = genesis.seats[n];
            let identity = Identity { mesh: genesis.mesh, epoch: 0, node: id, raft_id };
            create(&disk, identity, Some(&genesis.snapshot)).unwrap();
            Node { key, id, disk, driver: None, starts: 0 }
        });
        let mut net = Self {
            mesh: genesis.mesh,
            nodes: nodes.collect(),
            parties,
            sequence: 1000,
            cut: BTreeSet::new(),
            lose_votes: false,
            in_flight: VecDeque::new(),
            frames: Vec::new(),
            refused: Vec::new(),
            facts: Vec::new(),
        };
        for n in 0..hosts {
            net.start(n, Vec::new());
        }
        net
    }

    fn start(&mut self, n: usize, introduced: Vec<(NodeId, RaftId)>) {
        let log = self.log(n);
        let node = &mut self.nodes[n];
        node.starts += 1;
        let settings = Settings { introduced, ..Settings::new((n as u64) << 8 | node.starts) };
        node.driver = Some(Driver::open(log, State::blank(LEVEL), settings).unwrap());
        drop(self.turn(n, []));
    }

    fn stop(&mut self, n: usize) {
        self.nodes[n].driver = None;
    }

    /// The log of a node that is switched off.
    fn log(&self, n: usize) -> RedbLog {
        RedbLog::open(&self.nodes[n].disk, FILE, LogSettings::default()).unwrap()
    }

    fn driver(&self, n: usize) -> &Driver<RedbLog, State> {
        self.nodes[n].driver.as_ref().expect("the test has switched it on")
    }

    fn status(&self, n: usize) -> Status {
        self.driver(n).status()
    }

    fn state(&self, n: usize) -> &State {
        self.driver(n).replica().machine()
    }

    fn seat(&self, n: usize) -> RaftId {
        self.driver(n).log().identity().raft_id
    }

    fn epoch(&self, n: usize) -> Epoch {
        self.driver(n).log().identity().epoch
    }

    /// Whether `n` knows what [`Net::write`] wrote under this name, in whosever name.
    fn knows(&self, n: usize, label: &str) -> bool {
        knows(self.state(n), label)
    }

    /// One turn, and whatever follows from it.
    fn turn(&mut self, n: usize, events: impl IntoIterator<Item = Event>) -> Turn {
        let turn = self.lone_turn(n, events);
        let mut count = 0;
        while let Some((from, to, message)) = self.in_flight.pop_front() {
            count += 1;
            assert!(count < STORM, "the network does not come to rest");
            let Some(to) = self.nodes.iter().position(|node| node.id == to) else { continue };
            let is_vote = matches!(message.body, Body::Vote { pre: false, .. });
            let lost = self.cut.contains(&(from, to)) || self.lose_votes && is_vote;
            if !lost && self.nodes[to].driver.is_some() {
                let from = self.nodes[from].id;
                drop(self.lone_turn(to, [Event::Received { from, message }]));
            }
        }
        turn
    }

    /// One turn; what it sends is on its way.
    fn lone_turn(&mut self, n: usize, events: impl IntoIterator<Item = Event>) -> Turn {
        let Node { id, driver, .. } = &mut self.nodes[n];
        let driver = driver.as_mut().expect("the test has switched it on");
        let mut sent = Sent(Vec::new());
        let now = Time(BEGINNING.0 + self.sequence);
        let turn = driver.turn(now, events, &mut sent).unwrap();
        for (to, message) in sent.0 {
            self.frames.push((*id, to, message.clone()));
            self.in_flight.push_back((n, to, message));
        }
        self.refused.extend(turn.refused.iter().map(|(from, why)| (n, *from, *why)));
        self.facts.extend(turn.applied.iter().map(|applied| (n, applied.fact.clone())));
        turn
    }

    fn tick(&mut self, who: &[usize], times: usize) {
        for _ in 0..times {
            for n in who {
                drop(self.turn(*n, [Event::Tick { passed: 1 }]));
            }
        }
    }

    /// Lets `n` alone grow impatient, until it leads.
    fn elect(&mut self, n: usize) {
        for _ in 0..200 {
            if self.status(n).role == Role::Leader {
                return;
            }
            self.tick(&[n], 1);
        }
        panic!("{n} was not elected");
    }

    /// Cuts both directions between `n` and everyone else.
    fn isolate(&mut self, n: usize) {
        for other in 0..self.nodes.len() {
            self.cut.extend([(n, other), (other, n)]);
        }
    }

    fn batch(&mut self, author: usize, epoch: Epoch, acts: &[Act]) -> Batch {
        self.sequence += 1;
        let commands: Vec<_> = acts.iter().map(Act::command).collect();
        let key = &self.nodes[author].key;
        Batch::sign(key, self.mesh, epoch, self.sequence, &commands).unwrap()
    }

    fn naming(&self, author: usize, label: &str) -> Act {
        let party = party_id(&party_key(author % self.parties));
        let to = Hash::of(label.as_bytes());
        NameSet { party, name: name(label), expect: None, to }.into()
    }

    /// Hands `at` a batch of its own that sets a name.
    fn write(&mut self, at: usize, label: &str) {
        let act = self.naming(at, label);
        let epoch = self.epoch(at);
        let batch = self.batch(at, epoch, &[act]);
        drop(self.turn(at, [Event::Submit(batch)]));
    }

    /// Surveys a node that is switched off.
    fn survey(&self, n: usize) -> Survey {
        Survey::of(&self.nodes[n].key, &self.log(n)).unwrap()
    }

    /// An order to go on from `n`, signed by these parties.
    fn order(&self, n: usize, parties: &[usize]) -> Order {
        let mut order = Order::new(&self.survey(n));
        for party in parties {
            order.sign(&party_key(*party));
        }
        order
    }

    /// Recovers from the log of `n`, which is switched off, and starts it.
    fn recover(&mut self, n: usize, parties: &[usize]) {
        let order = self.order(n, parties);
        let (identity, snapshot) = begin(&self.log(n), &order).unwrap();
        let disk = &self.nodes[n].disk;
        disk.rename(FILE, ASIDE).unwrap();
        create(disk, identity, Some(&snapshot)).unwrap();
        self.start(n, Vec::new());
        self.elect(n);
    }

    /// `n` comes back with an empty log: its leader admits it to a new seat.
    fn rejoin(&mut self, n: usize, leader: usize) -> RaftId {
        let epoch = self.epoch(leader);
        let batch = self.batch(n, epoch, &[Rejoin {}.into()]);
        drop(self.turn(leader, [Event::Submit(batch)]));
        let id = self.nodes[n].id;
        let raft_id = self.state(leader).seat_of(id).expect("the rejoin took effect");
        self.stop(n);
        let disk = &self.nodes[n].disk;
        disk.rename(FILE, ASIDE).unwrap();
        create(disk, Identity { mesh: self.mesh, epoch, node: id, raft_id }, None).unwrap();
        self.start(n, vec![(self.nodes[leader].id, self.seat(leader))]);
        raft_id
    }

    /// The leader changes who votes; all others in `who` learn of it.
    fn change(&mut self, leader: usize, change: ConfigChange, who: &[usize]) {
        let next = self.driver(leader).replica().config().after(&change).unwrap();
        drop(self.turn(leader, [Event::Change(change)]));
        self.tick(who, 10);
        for n in who {
            assert_eq!(*self.driver(*n).replica().config(), next, "at {n}");
        }
    }

    /// Everything about a running node that a message could change.
    fn everything(&self, n: usize) -> (Status, HardState, u64, Snapshot) {
        let driver = self.driver(n);
        let log = driver.log();
        (driver.status(), log.hard_state(), log.last_index(), driver.replica().snapshot())
    }
}

fn create(
    disk: &MemDisk,
    identity: Identity,
    first: Option<&Snapshot>,
) -> Result<RedbLog, CreateError> {
    RedbLog::create(disk, FILE, identity, first, LogSettings::default())
}

fn begin(log: &RedbLog, order: &Order) -> Result<(Identity, Snapshot), RecoverError> {
    recover(log, State::blank(LEVEL), order, State::present_parties)
}

fn knows(state: &State, label: &str) -> bool {
    let wanted = Some(Hash::of(label.as_bytes()));
    state.parties().keys().any(|party| state.name(*party, &name(label)) == wanted)
}

fn only(voter: RaftId) -> Config {
    Config { voters: [voter].into(), ..Config::default() }
}

fn gone(seat: RaftId) -> ConfigChange {
    ConfigChange::Seats(vec![Seat::Gone(seat)])
}

/// What 4 has that nobody knows to be committed: a write, `change`, and another write.
fn disaster(parties: usize, change: impl FnOnce(&Net) -> ConfigChange) -> Net {
    let mut net = Net::new(5, parties);
    net.elect(0);
    for label in ["a", "b", "c"] {
        net.write(0, label);
    }
    net.tick(&[0], 4);
    for n in 0..5 {
        assert!(net.knows(n, "c"));
    }
    // The power fails everywhere. Nobody remembers a leader, so 3 may stand, again and again.
    for n in 0..5 {
        net.stop(n);
    }
    for n in 0..5 {
        net.start(n, Vec::new());
    }
    net.lose_votes = true;
    for _ in 0..200 {
        if net.status(3).term < 9 {
            net.tick(&[3], 1);
        }
    }
    net.lose_votes = false;
    net.isolate(3);
    net.elect(0);
    net.write(0, "d");
    net.write(0, "e");
    net.tick(&[0], 4);
    assert!(net.knows(4, "e") && !net.knows(3, "d"));
    // 4 still hears the leader; nobody hears 4, and the leader reaches nobody else.
    net.cut.extend([(4, 0), (0, 1), (0, 2)]);
    net.write(0, "tail-1");
    let change = change(&net);
    drop(net.turn(0, [Event::Change(change)]));
    net.write(0, "tail-2");
    for n in [0, 1, 2] {
        net.stop(n);
    }
    net.cut.clear();
    net
}

/// The most harmful thing that could be in flight: the survivor's own removal.
fn without_4(net: &Net) -> ConfigChange {
    gone(net.seat(4))
}

#[test]
fn the_newest_last_entry_is_chosen_and_not_the_highest_term() {
    let mut net = disaster(1, without_4);
    let (three, four) = (net.status(3), net.status(4));
    assert!(three.term > four.term + 3, "3 lost no elections: {three:?}, {four:?}");
    assert!(four.last_index > four.commit, "4 has no tail: {four:?}");
    // Two of five elect nobody, however long they try.
    net.tick(&[3, 4], 100);
    assert!([3, 4].iter().all(|n| net.status(*n).role != Role::Leader));
    net.stop(3);
    net.stop(4);
    let surveys = [net.survey(3), net.survey(4)];
    assert!(surveys[0].last_term < surveys[1].last_term);
    assert_eq!(surveys[1].last_index, four.last_index);
    assert_eq!(choose(&surveys).unwrap(), &surveys[1]);
    assert_eq!(choose(&[surveys[1].clone(), surveys[0].clone()]).unwrap(), &surveys[1]);
    assert_eq!(choose(&surveys[..1]).unwrap(), &surveys[0]);
    // Were 3 the only one left, its new epoch would begin above every term that it has seen.
    let order = Order::new(&surveys[0]);
    let (_, snapshot) = begin(&net.log(3), &order).unwrap();
    assert!(snapshot.term > three.term && three.term > order.last_term);
}

#[test]
fn a_later_term_outranks_the_long_tail_of_a_deposed_leader() {
    let mut net = Net::new(5, 1);
    net.elect(0);
    net.write(0, "a");
    net.tick(&[0], 4);
    net.isolate(0);
    for n in 0..20 {
        net.write(0, &format!("unheard-{n}"));
    }
    for _ in 0..200 {
        if (1..5).all(|n| net.status(n).role != Role::Leader) {
            net.tick(&[1, 2, 3, 4], 1);
        }
    }
    let leader = (1..5).find(|n| net.status(*n).role == Role::Leader).expect("four of five");
    net.write(leader, "acknowledged");
    net.tick(&[leader], 4);
    let heir = if leader == 4 { 3 } else { 4 };
    assert!(net.knows(heir, "acknowledged"));
    for n in 0..5 {
        net.stop(n);
    }
    let surveys = [net.survey(0), net.survey(heir)];
    assert!(surveys[0].last_index > surveys[1].last_index);
    assert_eq!(choose(&surveys).unwrap().node, net.nodes[heir].id);
}

#[test]
fn forged_and_foreign_surveys_are_refused() {
    let mut net = disaster(1, without_4);
    net.stop(3);
    net.stop(4);
    let (three, four) = (net.survey(3), net.survey(4));
    assert!(matches!(choose(&[]), Err(RecoverError::Nobody)));
    let lies: [fn(&mut Survey); 3] =
        [|s| s.last_index += 1000, |s| s.last_term += 1, |s| s.epoch += 1];
    for lie in lies {
        let mut forged = three.clone();
        lie(&mut forged);
        let error = choose(&[four.clone(), forged]).unwrap_err();
        assert!(matches!(error, RecoverError::Forged(node) if node == three.node), "{error}");
    }
    // Nor may somebody else speak for it.
    let by_another = Survey::of(&net.nodes[3].key, &net.log(4)).unwrap();
    let error = choose(&[three.clone(), by_another]).unwrap_err();
    assert!(matches!(error, RecoverError::Forged(node) if node == four.node), "{error}");
    // A mesh that was founded otherwise is another mesh.
    let elsewhere = grown(1, 1, 1, 0, LEVEL - 1);
    assert_ne!(elsewhere.mesh, net.mesh);
    let disk = MemDisk::new(fastrand::Rng::with_seed(9));
    let node = node_id(&node_key(0));
    let raft_id = elsewhere.seats[0];
    let identity = Identity { mesh: elsewhere.mesh, epoch: 0, node, raft_id };
    let log = create(&disk, identity, Some(&elsewhere.snapshot)).unwrap();
    let foreign = Survey::of(&node_key(0), &log).unwrap();
    let error = choose(&[four, foreign]).unwrap_err();
    assert!(matches!(error, RecoverError::OtherMesh(found) if found == node), "{error}");
}

#[test]
fn the_whole_log_survives_and_changes_in_flight_are_not_made() {
    let changes: [fn(&Net) -> ConfigChange; 3] = [
        without_4,
        // Through a joint configuration.
        |net| ConfigChange::Seats(vec![Seat::Gone(net.seat(3)), Seat::Gone(net.seat(4))]),
        |net| ConfigChange::Seats(vec![Seat::Learner(net.seat(4))]),
    ];
    for change in changes {
        let mut net = disaster(1, change);
        let (seat, id) = (net.seat(4), net.nodes[4].id);
        let voters = net.driver(4).replica().config().voters.clone();
        let time = net.driver(4).replica().time();
        net.stop(4);
        let order = net.order(4, &[]);
        let log = net.log(4);
        let HardState { term, commit, .. } = log.hard_state();
        let tail = log.entries(commit + 1, log.last_index() + 1, u64::MAX).unwrap();
        let kinds: Vec<bool> =
            tail.iter().map(|entry| matches!(entry.payload, Payload::Config(_))).collect();
        assert_eq!(kinds, [false, true, false], "a write, the change, a write");

        let (identity, snapshot) = begin(&log, &order).unwrap();
        let old = log.identity();
        assert_eq!(identity, Identity { epoch: 1, ..old });
        assert_eq!(snapshot.config, only(seat));
        assert!(snapshot.index >= log.last_index() + FENCE_GAP);
        assert!(snapshot.term > term);
        let replica = Replica::restore(net.mesh, 1, &snapshot, State::blank(LEVEL)).unwrap();
        let state = replica.machine();
        for label in ["a", "b", "c", "d", "e", "tail-1", "tail-2"] {
            assert!(knows(state, label), "{label} is lost");
        }
        assert!(replica.time() >= time);
        assert_eq!(*state.config(), only(seat));
        assert_eq!(state.recovered(), Some(Recovered { epoch: 1, index: snapshot.index }));
        // All are members still, but only the survivor sits.
        assert_eq!(state.members().len(), voters.len());
        assert_eq!(state.seat_of(id), Some(seat));
        assert_eq!(state.members().values().filter(|m| m.seat.is_some()).count(), 1);
    }
}

#[test]
fn the_mesh_goes_on_in_a_new_epoch_and_an_old_member_comes_back() {
    let mut net = disaster(1, without_4);
    net.stop(3);
    net.stop(4);
    net.recover(4, &[]);
    net.write(4, "first");
    assert!(net.knows(4, "first") && net.knows(4, "tail-2"));

    // What was signed in the old epoch does not count any more, whoever brings it.
    let act = net.naming(4, "late");
    let late = net.batch(4, 0, &[act]);
    let turn = net.turn(4, [Event::Submit(late.clone())]);
    let why = Rejected::Batch(BatchError::OtherEpoch { found: 0, want: 1 });
    assert_eq!(turn.answers[0].result, Err(why.clone()));
    // Nor does it when a leader that should have known better puts it into the log; and neither
    // does a batch of this epoch whose signature is not its author's.
    let act = net.naming(4, "forged");
    let mut forged = net.batch(4, 1, &[act]).as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let author = net.nodes[4].id;
    let bad = Rejected::Batch(BatchError::BadSignature { author });
    for (bytes, why) in [(late.as_bytes().to_vec(), why), (forged, bad)] {
        let mut replica = net.driver(4).replica().clone();
        let payload = Payload::Batch { time: BEGINNING, bytes };
        let entry = Entry { term: replica.term(), index: replica.index() + 1, payload };
        let fact = replica.apply(&entry).unwrap().fact;
        let rejected = matches!(&fact, Fact::Batch { verdict: Verdict::Rejected(found), .. }
            if *found == why);
        assert!(rejected, "{fact:?}");
    }
    assert!(!net.knows(4, "late"));

    // A member without a directory asks for a new seat in its own name.
    let before = net.driver(4).replica().index();
    let seat = net.rejoin(3, 4);
    assert!(seat.0 > before && seat.0 > FENCE_GAP);
    assert_eq!(net.driver(3).replica().index(), 0);
    net.change(4, ConfigChange::Seats(vec![Seat::Learner(seat)]), &[4, 3]);
    assert!(net.knows(3, "tail-2") && net.knows(3, "first"));
    net.change(4, ConfigChange::Seats(vec![Seat::Voter(seat)]), &[4, 3]);

    // Now both are needed, and both can be asked.
    net.write(3, "through-three");
    net.write(4, "through-four");
    net.tick(&[4, 3], 4);
    assert!(net.knows(3, "through-four") && net.knows(4, "through-three"));
    let from = net.nodes[3].id;
    let (mesh, to) = (net.mesh, net.seat(4));
    let body = Body::Forward { batch: late.as_bytes().to_vec() };
    let message = Message { mesh, epoch: 1, from: seat, to, term: 0, body };
    let turn = net.turn(4, [Event::Received { from, message }]);
    assert_eq!(turn.refused, [(from, Refused::Batch)]);

    // A restart changes nothing about it, and the newcomer may lead.
    for n in [3, 4] {
        net.stop(n);
        net.start(n, Vec::new());
    }
    net.elect(3);
    net.write(4, "after-restart");
    net.tick(&[3], 4);
    let [three, four] = [3, 4].map(|n| net.driver(n).replica());
    assert!(net.knows(4, "after-restart"));
    assert_eq!(three.history(), four.history());
    assert_eq!(three.snapshot(), four.snapshot());
}

#[test]
fn nothing_of_the_old_epoch_is_heard_in_the_new_one() {
    let mut net = disaster(1, without_4);
    let old_frames = std::mem::take(&mut net.frames);
    let old_seats: Vec<(NodeId, RaftId)> = (net.state(4).members().iter())
        .filter_map(|(node, member)| Some((*node, member.seat?)))
        .collect();
    net.stop(4);
    net.recover(4, &[]);
    // 2 has lost its disk and comes back; nobody has told 3, which is still where it was.
    let seat = net.rejoin(2, 4);
    net.change(4, ConfigChange::Seats(vec![Seat::Learner(seat)]), &[4, 2]);
    net.change(4, ConfigChange::Seats(vec![Seat::Voter(seat)]), &[4, 2]);
    net.write(4, "new");
    net.tick(&[4, 2], 4);

    // Every frame that was ever sent, whoever it was for.
    assert!(old_frames.iter().map(|(.., message)| message.body.name()).any(|n| n == "append"));
    for n in [2, 4] {
        let before = net.everything(n);
        for (from, _, message) in old_frames.clone() {
            let turn = net.lone_turn(n, [Event::Received { from, message }]);
            assert_eq!(turn.refused, [(from, Refused::OtherEpoch)]);
        }
        assert_eq!(net.everything(n), before);
        assert!(net.in_flight.is_empty());
    }
    // And the other way round.
    let before = net.everything(3);
    for (from, _, message) in net.frames.clone() {
        let turn = net.lone_turn(3, [Event::Received { from, message }]);
        assert_eq!(turn.refused, [(from, Refused::OtherEpoch)]);
    }
    assert_eq!(net.everything(3), before);

    // The voter that was never told stands for election again and again, and changes nothing.
    net.refused.clear();
    let (term, last) = (net.status(4).term, net.status(3).last_index);
    net.tick(&[2, 3, 4], 100);
    assert_eq!((net.status(3).role, net.status(3).last_index), (Role::PreCandidate, last));
    assert_eq!((net.status(4).role, net.status(4).term), (Role::Leader, term));
    assert!(!net.knows(3, "new"));
    let three = net.nodes[3].id;
    let at = |n: usize| net.refused.iter().filter(|(by, ..)| *by == n).count();
    assert!(at(4) > 10, "3 never spoke to 4");
    let all =
        |(_, from, why): &(usize, NodeId, Refused)| *from == three && *why == Refused::OtherEpoch;
    assert!(net.refused.iter().all(all), "{:?}", net.refused);

    // Old proofs of membership prove nothing, not even under the survivor's own signature.
    let key = net.nodes[4].key.clone();
    for (node, seat) in old_seats {
        let link = |epoch| Admission::sign(&key, net.mesh, epoch, node, seat);
        let (old, new) = (link(0), link(1));
        let by = net.nodes[4].id;
        let turn = net.lone_turn(4, [Event::Introduced(vec![old])]);
        assert_eq!(turn.not_admitted, [NotAdmitted::BadSignature { by, node }]);
        let turn = net.lone_turn(2, [Event::Introduced(vec![new])]);
        assert_eq!(turn.not_admitted, []);
    }
}

#[test]
fn a_recovery_is_done_once_and_to_the_log_that_it_was_ordered_for() {
    let mut net = disaster(1, without_4);
    net.stop(3);
    net.stop(4);
    let order = net.order(4, &[]);
    let refuses = |log: &RedbLog, order: &Order| {
        let error = begin(log, order).unwrap_err();
        let named = matches!(&error, RecoverError::OtherLog { node, index, term }
            if (*node, *index, *term) == (order.survivor, order.last_index, order.last_term));
        assert!(named, "{error}");
    };
    // Another node, another end, another mesh, another epoch.
    refuses(&net.log(3), &order);
    let changes: [fn(&mut Order); 5] = [
        |o| o.last_index += 1,
        |o| o.last_index -= 1,
        |o| o.last_term += 1,
        |o| o.mesh = MeshId([1; 32]),
        |o| o.epoch += 1,
    ];
    for change in changes {
        let mut other = order.clone();
        change(&mut other);
        refuses(&net.log(4), &other);
    }
    // Looking at a log leaves it as it is: the same order gives the same beginning.
    let first = begin(&net.log(4), &order).unwrap();
    assert_eq!(begin(&net.log(4), &order).unwrap(), first);
    // But where there is a log, no other is put in its place.
    let error = create(&net.nodes[4].disk, first.0, Some(&first.1)).unwrap_err();
    assert!(matches!(error, CreateError::Exists { .. }), "{error}");

    net.recover(4, &[]);
    net.write(4, "new");
    net.stop(4);
    refuses(&net.log(4), &order);
    // A survivor of the new epoch is worth more than any of the old one.
    let surveys = [net.survey(3), net.survey(4)];
    assert_eq!(choose(&surveys).unwrap(), &surveys[1]);
}

#[test]
fn a_mesh_can_be_lost_and_recovered_again() {
    let mut net = disaster(1, without_4);
    net.stop(3);
    net.stop(4);
    net.recover(4, &[]);
    let seat = net.rejoin(3, 4);
    for place in [Seat::Learner(seat), Seat::Voter(seat)] {
        net.change(4, ConfigChange::Seats(vec![place]), &[4, 3]);
    }
    net.write(4, "first");
    net.tick(&[4, 3], 4);
    // This time it is the survivor that burns.
    net.stop(3);
    net.stop(4);
    net.nodes[3].disk.remove(ASIDE).unwrap();
    net.recover(3, &[]);
    net.write(3, "second");
    assert_eq!(net.epoch(3), 2);
    assert_eq!(*net.driver(3).replica().config(), only(seat));
    for label in ["a", "tail-2", "first", "second"] {
        assert!(net.knows(3, label), "{label} is lost");
    }
}

#[test]
fn among_three_parties_two_must_sign() {
    let mut net = disaster(3, without_4);
    net.stop(4);
    let log = || net.log(4);
    let too_few = |order: &Order, valid: usize| {
        let error = begin(&log(), order).unwrap_err();
        let counted = matches!(error, RecoverError::TooFew { have, parties: 3, need: 2 }
            if have == valid);
        assert!(counted, "{error}");
    };
    too_few(&net.order(4, &[]), 0);
    for party in 0..3 {
        too_few(&net.order(4, &[party]), 1);
        // Saying it twice does not make it two.
        too_few(&net.order(4, &[party, party, party]), 1);
        // A stranger has no say, nor has a node.
        let mut order = net.order(4, &[party, 7]);
        order.sign(&net.nodes[4].key);
        too_few(&order, 1);
        // Nobody signs for another.
        let other = party_id(&party_key((party + 1) % 3));
        let stolen = order.signatures[0].1.clone();
        order.signatures.push((other, stolen));
        order.signatures.push((other, vec![0; 64]));
        order.signatures.push((other, Vec::new()));
        too_few(&order, 1);
    }
    // What was signed is this order: made to fit another log, it is signed by nobody.
    let signed = net.order(4, &[0, 1, 2]);
    net.stop(3);
    let mut other = net.order(3, &[]);
    other.signatures = signed.signatures.clone();
    let error = begin(&net.log(3), &other).unwrap_err();
    assert!(matches!(error, RecoverError::TooFew { have: 0, .. }), "{error}");

    for pair in [[0, 1], [1, 2], [2, 0]] {
        let order = net.order(4, &pair);
        begin(&net.log(4), &order).unwrap();
    }
    net.recover(4, &[2, 1]);
    net.write(4, "new");
    assert!(net.knows(4, "new") && net.knows(4, "tail-2"));
}

#[test]
fn a_party_whose_last_node_has_left_need_not_sign_and_cannot() {
    let mut net = Net::new(5, 3);
    net.elect(0);
    // The only node of the third party.
    let node = net.nodes[2].id;
    let leave = net.batch(2, 0, &[Leave { node }.into()]);
    drop(net.turn(0, [Event::Submit(leave)]));
    net.tick(&[0], 4);
    assert_eq!(net.state(1).present_parties().len(), 2);
    for n in 0..5 {
        net.stop(n);
    }
    let order = net.order(1, &[0, 2]);
    let error = begin(&net.log(1), &order).unwrap_err();
    let counted = matches!(error, RecoverError::TooFew { have: 1, parties: 2, need: 2 });
    assert!(counted, "{error}");
    net.recover(1, &[0, 1]);
    net.write(1, "new");
    assert!(net.knows(1, "new"));
}

#[test]
fn a_party_that_is_alone_need_not_sign() {
    let mut net = disaster(1, without_4);
    net.stop(4);
    let (unsigned, signed) = (net.order(4, &[]), net.order(4, &[0]));
    let first = begin(&net.log(4), &unsigned).unwrap();
    assert_eq!(begin(&net.log(4), &signed).unwrap(), first);
}

#[test]
fn a_survivor_that_was_about_to_leave_leads_the_others_back_first() {
    let mut net = Net::new(3, 1);
    net.elect(0);
    net.write(0, "a");
    let id = net.nodes[2].id;
    let leave = net.batch(2, 0, &[Leave { node: id }.into()]);
    drop(net.turn(0, [Event::Submit(leave)]));
    net.tick(&[0], 4);
    assert!(net.state(2).members()[&id].leaving);
    // Its seat would be taken next; that this was decided, it never learns.
    net.cut.extend([(2, 0), (0, 1)]);
    let seat = net.seat(2);
    drop(net.turn(0, [Event::Change(gone(seat))]));
    assert!(net.status(2).last_index > net.status(2).commit);
    for n in 0..3 {
        net.stop(n);
    }
    net.cut.clear();
    net.recover(2, &[]);
    assert_eq!(net.state(2).seat_of(id), Some(seat));
    assert!(!net.state(2).is_removed(id));

    let seat = net.rejoin(1, 2);
    for place in [Seat::Learner(seat), Seat::Voter(seat)] {
        net.change(2, ConfigChange::Seats(vec![place]), &[2, 1]);
    }
    net.write(1, "b");
    assert!(net.knows(1, "a") && net.knows(1, "b"));
    // It hands over, and then it may go.
    drop(net.turn(2, [Event::Transfer(seat)]));
    net.elect(1);
    let old = net.seat(2);
    drop(net.turn(1, [Event::Change(gone(old))]));
    net.tick(&[1], 4);
    assert!(net.state(1).is_removed(id));
    assert_eq!(*net.driver(1).replica().config(), only(seat));
}

#[test]
fn a_node_that_has_left_is_no_survivor() {
    let mut net = Net::new(3, 1);
    net.elect(0);
    let (id, seat) = (net.nodes[0].id, net.seat(0));
    let leave = net.batch(0, 0, &[Leave { node: id }.into()]);
    drop(net.turn(0, [Event::Submit(leave), Event::Change(gone(seat))]));
    net.tick(&[0], 4);
    assert!(net.state(0).is_removed(id));
    for n in 0..3 {
        net.stop(n);
    }
    // Whoever took its snapshot would know that it was removed, and never hear it again.
    let order = net.order(0, &[]);
    let error = begin(&net.log(0), &order).unwrap_err();
    assert!(matches!(error, RecoverError::Left(node) if node == id), "{error}");
    // The others can go on, and then it is gone there too.
    net.recover(1, &[]);
    net.write(1, "new");
    assert!(net.state(1).is_removed(id));
}
