//! A simulated network in which planners pull from one another.
//!
//! Bytes flow like water: each node has an uplink and a downlink, and whoever sends shares them fairly
//! (max-min) with all others that send at that moment. On a link chunks come one after the other in the order in
//! which they were asked for. Words take half a round trip; what is had is told in batches. Nothing
//! is random but by the seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use mesh_consensus::id::{NodeId, VersionId};
use mesh_consensus::time::Time;

use super::{Ask, Plan, Reply, Serve, ServeSettings, Settings, Swarm};
use crate::bitmap::Bitmap;

pub(super) const MIB: f64 = 1048576.0;

/// Megabits a second as bytes a microsecond.
pub(super) fn mbit(rate: f64) -> f64 {
    rate / 8.0
}

/// What a node is like.
#[derive(Debug, Clone)]
pub(super) struct Host {
    pub(super) up: f64,
    pub(super) down: f64,
    pub(super) is_source: bool,
    pub(super) is_liar: bool,
    pub(super) joins_at: u64,
    pub(super) dies_at: Option<u64>,
    /// Dies once each chunk is at some other node.
    pub(super) dies_served: bool,
}

pub(super) fn host(rate: f64) -> Host {
    Host {
        up: mbit(rate),
        down: mbit(rate),
        is_source: false,
        is_liar: false,
        joins_at: 0,
        dies_at: None,
        dies_served: false,
    }
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) hosts: Vec<Host>,
    pub(super) lengths: Vec<u32>,
    pub(super) rtt: Duration,
    /// How often what is had is told.
    pub(super) tell: Duration,
    pub(super) pull: Settings,
    pub(super) serve: ServeSettings,
    pub(super) seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Seconds until the last honest living node had everything.
    pub(super) seconds: f64,
    pub(super) bound: f64,
    pub(super) efficiency: f64,
    /// Bytes that sources sent, in copies.
    pub(super) source_copies: f64,
    /// Bytes that came for nothing, of all that came.
    pub(super) duplicates: f64,
    pub(super) timeouts: u64,
    pub(super) finished: usize,
    pub(super) first: f64,
}

/// Lengths as FastCDC cuts them: at least 256 KiB, few below 700 KiB, most near the mean, a tail up to 4 MiB.
pub(super) fn cuts(bytes: f64, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut lengths = Vec::new();
    let mut left = bytes as u64;
    while left > 0 {
        // Normalised chunking: a cut every 4 MiB on average before 1 MiB, every 256 KiB after.
        let early = 256.0 * 1024.0 - 4.0 * MIB * (1.0 - rng.f64()).ln();
        let length = if early < MIB { early } else { MIB - 0.25 * MIB * (1.0 - rng.f64()).ln() };
        let length = (length.min(4.0 * MIB) as u64).clamp(1, left);
        lengths.push(length as u32);
        left -= length;
    }
    lengths
}

enum Word {
    Open,
    Welcome(Bitmap, Vec<NodeId>),
    Ask(Ask),
    Cancel(u32),
    /// To the server: what its puller has.
    PullerHas(Vec<u32>),
    /// To the puller: what its server has.
    ServerHas(Vec<u32>),
    Others(Vec<NodeId>),
    Began(u32),
    Chunk(u32, bool),
    Refused(u32),
    Nothing,
    /// The puller closes its stream.
    Close,
    /// The server is gone.
    Gone,
}

enum Event {
    Word { from: usize, to: usize, word: Word },
    Wake(usize),
    Tell(usize),
    Join(usize),
    Die(usize),
}

struct Flow {
    from: usize,
    to: usize,
    chunk: u32,
    left: f64,
    rate: f64,
}

/// What has been told over the stream of a puller to a server.
#[derive(Default)]
struct Told {
    by_server: usize,
    by_puller: usize,
}

struct Node {
    id: NodeId,
    swarm: Option<Swarm>,
    serve: Serve,
    have: Bitmap,
    /// In the order in which they came.
    log: Vec<u32>,
    is_alive: bool,
    done_at: Option<f64>,
    wake_at: Option<u64>,
    sent: f64,
}

struct Sim {
    world: World,
    nodes: Vec<Node>,
    now: u64,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    flows: Vec<Flow>,
    /// By (puller, server).
    streams: BTreeMap<(usize, usize), Told>,
    received: f64,
    wasted: f64,
    timeouts: u64,
}

pub(super) fn id(number: usize) -> NodeId {
    NodeId(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// Runs it to the end, or for ten times the bound.
pub(super) fn run(world: &World) -> Outcome {
    let total: f64 = world.lengths.iter().map(|bytes| f64::from(*bytes)).sum();
    let bound = bound(world, total);
    let mut sim = Sim::new(world.clone());
    let limit = (bound * 10e6) as u64 + 60_000_000;
    while sim.now < limit && !sim.is_over() {
        sim.step();
    }
    sim.outcome(total, bound)
}

fn bound(world: &World, total: f64) -> f64 {
    let lives = |host: &&Host| host.dies_at.is_none() && !host.is_liar;
    let up: f64 = world.hosts.iter().filter(lives).map(|host| host.up).sum();
    let sources: f64 = world.hosts.iter().filter(|h| h.is_source).map(|host| host.up).sum();
    let pullers: Vec<&Host> = world.hosts.iter().filter(|h| !h.is_source).filter(lives).collect();
    let down = pullers.iter().map(|host| host.down).fold(f64::INFINITY, f64::min);
    let all = pullers.len() as f64 * total / up;
    (total / sources).max(total / down).max(all) / 1e6
}

impl Sim {
    fn new(world: World) -> Self {
        let count = world.lengths.len();
        let version = VersionId([7; 16]);
        let mut nodes = Vec::new();
        for (number, host) in world.hosts.iter().enumerate() {
            let have = if host.is_source { Bitmap::full(count) } else { Bitmap::new(count) };
            let own = id(number + 1000 * world.seed as usize);
            let seed = world.seed ^ number as u64;
            let settings = world.pull.clone();
            let swarm = (!host.is_source)
                .then(|| Swarm::new(own, version, &world.lengths, have.clone(), seed, settings));
            nodes.push(Node {
                id: own,
                swarm,
                serve: Serve::new(&world.lengths, seed, world.serve.clone()),
                have,
                log: Vec::new(),
                is_alive: true,
                done_at: None,
                wake_at: None,
                sent: 0.0,
            });
        }
        let mut sim = Self {
            nodes,
            now: 0,
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            flows: Vec::new(),
            streams: BTreeMap::new(),
            received: 0.0,
            wasted: 0.0,
            timeouts: 0,
            world,
        };
        let mut rng = fastrand::Rng::with_seed(sim.world.seed);
        for number in 0..sim.nodes.len() {
            let tell = sim.world.tell.as_micros() as u64;
            sim.at(rng.u64(0..tell), Event::Tell(number));
            let host = sim.world.hosts[number].clone();
            if let Some(at) = host.dies_at {
                sim.at(at, Event::Die(number));
            }
            if !host.is_source {
                sim.at(host.joins_at, Event::Join(number));
            }
        }
        sim
    }

    fn at(&mut self, at: u64, event: Event) {
        self.heap.push(Reverse((at, self.next_event)));
        self.events.insert(self.next_event, event);
        self.next_event += 1;
    }

    fn say(&mut self, from: usize, to: usize, word: Word) {
        let at = self.now + self.world.rtt.as_micros() as u64 / 2;
        self.at(at, Event::Word { from, to, word });
    }

    fn number(&self, id: NodeId) -> usize {
        self.nodes.iter().position(|node| node.id == id).expect("only nodes of this world")
    }

    fn is_over(&self) -> bool {
        self.nodes.iter().zip(&self.world.hosts).all(|(node, host)| {
            !node.is_alive || host.is_liar || node.swarm.is_none() || node.done_at.is_some()
        })
    }

    /// To the next event or the end of the next chunk.
    fn step(&mut self) {
        let event_at = self.heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let ends = self.flows.iter().map(|flow| flow.left / flow.rate.max(1e-9));
        let flow_in = ends.fold(f64::INFINITY, f64::min);
        let flow_at = if flow_in.is_finite() { self.now + flow_in.ceil() as u64 } else { u64::MAX };
        let next = event_at.min(flow_at);
        let passed = (next - self.now) as f64;
        for flow in &mut self.flows {
            let moved = (flow.rate * passed).min(flow.left);
            flow.left -= moved;
            self.nodes[flow.from].sent += moved;
            let now = Time(1_000_000 + next / 1000);
            self.nodes[flow.from].serve.on_bytes(now, moved as u64);
        }
        self.now = next;
        if flow_at <= event_at {
            let (done, going): (Vec<Flow>, Vec<Flow>) =
                std::mem::take(&mut self.flows).into_iter().partition(|flow| flow.left < 1.0);
            self.flows = going;
            for Flow { from, to, chunk, .. } in done {
                let ok = !self.world.hosts[from].is_liar;
                self.say(from, to, Word::Chunk(chunk, ok));
                let id = self.nodes[to].id;
                self.nodes[from].serve.on_sent(id);
                self.pump(from);
            }
            self.share();
            return;
        }
        let Some(Reverse((_, number))) = self.heap.pop() else { return };
        let event = self.events.remove(&number).expect("each event once");
        let flows = self.flows.len();
        self.on_event(event);
        for number in 0..self.nodes.len() {
            self.pump(number);
        }
        if self.flows.len() != flows || flows == 0 {
            self.share();
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Word { from, to, word } => {
                if self.nodes[to].is_alive && self.nodes[from].is_alive {
                    self.on_word(from, to, word);
                } else if self.nodes[from].is_alive && matches!(word, Word::Open) {
                    self.say(to, from, Word::Gone);
                }
            }
            Event::Wake(number) => {
                if self.nodes[number].wake_at == Some(self.now) {
                    self.nodes[number].wake_at = None;
                    self.poll(number);
                }
            }
            Event::Tell(number) => {
                self.tell(number);
                let tell = self.world.tell.as_micros() as u64;
                self.at(self.now + tell, Event::Tell(number));
            }
            Event::Join(number) => {
                let sources: Vec<NodeId> = self
                    .nodes
                    .iter()
                    .zip(&self.world.hosts)
                    .filter(|(_, host)| host.is_source)
                    .map(|(node, _)| node.id)
                    .collect();
                self.nodes[number].swarm.as_mut().expect("a puller").on_sources(&sources);
                self.poll(number);
            }
            Event::Die(number) => self.die(number),
        }
    }

    fn die(&mut self, number: usize) {
        self.nodes[number].is_alive = false;
        self.flows.retain(|flow| flow.from != number && flow.to != number);
        let id = self.nodes[number].id;
        let streams: Vec<(usize, usize)> = self.streams.keys().copied().collect();
        for (puller, server) in streams {
            if puller == number {
                self.nodes[server].serve.on_gone(id);
                self.streams.remove(&(puller, server));
            } else if server == number {
                self.streams.remove(&(puller, server));
                let now = self.time();
                if let Some(swarm) = &mut self.nodes[puller].swarm {
                    swarm.on_gone(now, id);
                }
                self.poll(puller);
            }
        }
        for server in 0..self.nodes.len() {
            self.pump(server);
        }
    }

    fn time(&self) -> Time {
        Time(1_000_000 + self.now / 1000)
    }

    /// Tells all who are linked what is new here.
    fn tell(&mut self, number: usize) {
        if !self.nodes[number].is_alive {
            return;
        }
        let coming: Vec<(usize, u32)> =
            self.flows.iter().filter(|f| f.from == number).map(|f| (f.to, f.chunk)).collect();
        for (to, chunk) in coming {
            self.say(number, to, Word::Began(chunk));
        }
        let keys: Vec<(usize, usize)> = self.streams.keys().copied().collect();
        for (puller, server) in keys {
            let Some(told) = self.streams.get_mut(&(puller, server)) else { continue };
            let log = &self.nodes[number].log;
            if number == server {
                let news = log[told.by_server..].to_vec();
                told.by_server = log.len();
                let others = self.nodes[server].serve.others(self.nodes[puller].id);
                if !news.is_empty() {
                    self.say(server, puller, Word::ServerHas(news));
                }
                self.say(server, puller, Word::Others(others));
            } else if number == puller {
                let news = log[told.by_puller..].to_vec();
                told.by_puller = log.len();
                if !news.is_empty() {
                    self.say(puller, server, Word::PullerHas(news));
                }
            }
        }
    }

    fn on_word(&mut self, from: usize, to: usize, word: Word) {
        let (now, sender) = (self.time(), self.nodes[from].id);
        let at = &mut self.nodes[to];
        match word {
            Word::Open => {
                let has = self.nodes[from].have.clone();
                let at = &mut self.nodes[to];
                if !at.serve.on_peer(sender, has) {
                    return self.say(to, from, Word::Gone);
                }
                let told = Told { by_server: at.log.len(), by_puller: self.nodes[from].log.len() };
                let at = &self.nodes[to];
                let welcome = Word::Welcome(at.have.clone(), at.serve.others(sender));
                self.streams.insert((from, to), told);
                return self.say(to, from, welcome);
            }
            Word::Ask(ask) => {
                if let Some(reply) = at.serve.on_ask(sender, ask) {
                    self.reply(to, reply);
                }
                return self.pump(to);
            }
            Word::Cancel(chunk) => return at.serve.on_cancel(sender, chunk),
            Word::PullerHas(chunks) => {
                at.serve.on_have(sender, &chunks);
                return;
            }
            Word::Close => {
                at.serve.on_gone(sender);
                self.streams.remove(&(from, to));
                self.flows.retain(|flow| flow.from != to || flow.to != from);
                return self.pump(to);
            }
            _ => {}
        }
        let rtt = self.world.rtt;
        let Some(swarm) = &mut at.swarm else { return };
        match word {
            Word::Welcome(has, others) => {
                swarm.on_peer(now, sender, has);
                swarm.on_rtt(sender, rtt);
                swarm.on_others(&others);
            }
            Word::ServerHas(chunks) => swarm.on_have(sender, &chunks),
            Word::Others(nodes) => swarm.on_others(&nodes),
            Word::Began(chunk) => swarm.on_began(now, sender, chunk),
            Word::Refused(chunk) => swarm.on_refused(now, sender, chunk),
            Word::Nothing => swarm.on_nothing(sender),
            Word::Gone => swarm.on_gone(now, sender),
            Word::Chunk(chunk, ok) => {
                let bytes = f64::from(self.world.lengths[chunk as usize]);
                self.received += bytes;
                swarm.on_chunk(now, sender, chunk, ok);
                if !ok {
                    // A lie is waste, but no duplicate: it is counted by the test of liars.
                } else if at.have.set(chunk as usize) {
                    at.log.push(chunk);
                } else {
                    self.wasted += bytes;
                }
            }
            _ => {}
        }
        self.poll(to);
        self.die_if_served();
    }

    /// Ends a source that was to serve one copy, at the moment when each chunk is whole at some puller.
    fn die_if_served(&mut self) {
        let Some(source) = self.world.hosts.iter().position(|host| host.dies_served) else {
            return;
        };
        let pullers = || self.nodes.iter().filter(|node| node.swarm.is_some());
        let is_copied = |chunk| pullers().any(|node| node.have.get(chunk));
        if (0..self.world.lengths.len()).all(is_copied) {
            self.world.hosts[source].dies_served = false;
            assert!(pullers().any(|node| node.done_at.is_none()), "it dies before the end");
            self.die(source);
        }
    }

    fn poll(&mut self, number: usize) {
        let now = self.time();
        if !self.nodes[number].is_alive {
            return;
        }
        let Some(swarm) = &mut self.nodes[number].swarm else { return };
        let Plan { asks, cancels, link, drop, done, wake_at } = swarm.poll(now);
        for (node, ask) in asks {
            self.say(number, self.number(node), Word::Ask(ask));
        }
        for (node, chunk) in cancels {
            self.say(number, self.number(node), Word::Cancel(chunk));
        }
        for node in link {
            self.say(number, self.number(node), Word::Open);
        }
        for node in drop {
            self.say(number, self.number(node), Word::Close);
        }
        if let Some(at) = wake_at {
            let at = ((at.0 - 1_000_000) * 1000).max(self.now + 1);
            if self.nodes[number].wake_at.is_none_or(|old| old > at || old <= self.now) {
                self.nodes[number].wake_at = Some(at);
                self.at(at, Event::Wake(number));
            }
        }
        if done && self.nodes[number].done_at.is_none() {
            self.nodes[number].done_at = Some(self.now as f64 / 1e6);
            let swarm = self.nodes[number].swarm.as_ref().expect("a puller");
            self.timeouts += swarm.progress().timeouts;
            // It says what it has and stops pulling, but goes on serving.
            self.tell(number);
            let servers: Vec<usize> =
                self.streams.keys().filter(|(p, _)| *p == number).map(|(_, s)| *s).collect();
            for server in servers {
                self.say(number, server, Word::Close);
            }
        }
    }

    fn reply(&mut self, from: usize, reply: Reply) {
        match reply {
            Reply::Refused(node, chunk) => self.say(from, self.number(node), Word::Refused(chunk)),
            Reply::Nothing(node) => self.say(from, self.number(node), Word::Nothing),
            Reply::Chunk(node, chunk) => {
                let left = f64::from(self.world.lengths[chunk as usize]);
                let to = self.number(node);
                self.say(from, to, Word::Began(chunk));
                self.flows.push(Flow { from, to, chunk, left, rate: 0.0 });
            }
        }
    }

    /// Begins whatever the server wants to send now.
    fn pump(&mut self, from: usize) {
        let now = self.time();
        loop {
            let node = &mut self.nodes[from];
            let Some(reply) = node.is_alive.then(|| node.serve.next(now, &node.have)).flatten()
            else {
                return;
            };
            self.reply(from, reply);
        }
    }

    /// Max-min fair rates: the fullest link is shared out first.
    fn share(&mut self) {
        let count = self.nodes.len();
        let mut room: Vec<f64> = self.world.hosts.iter().map(|host| host.up).collect();
        room.extend(self.world.hosts.iter().map(|host| host.down));
        let mut users = vec![0usize; 2 * count];
        for flow in &self.flows {
            users[flow.from] += 1;
            users[count + flow.to] += 1;
        }
        let mut open: Vec<usize> = (0..self.flows.len()).collect();
        while !open.is_empty() {
            let shares = (0..2 * count).filter(|link| users[*link] > 0);
            let tightest = shares
                .map(|link| (room[link] / users[link] as f64, link))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((share, tight)) = tightest else { break };
            let share = share.max(0.0);
            open.retain(|at| {
                let flow = &mut self.flows[*at];
                let (up, down) = (flow.from, count + flow.to);
                if up != tight && down != tight {
                    return true;
                }
                flow.rate = share;
                for link in [up, down] {
                    room[link] -= share;
                    users[link] -= 1;
                }
                false
            });
        }
    }

    fn outcome(&self, total: f64, bound: f64) -> Outcome {
        let times: Vec<f64> = self.nodes.iter().filter_map(|node| node.done_at).collect();
        let seconds =
            if self.is_over() { times.iter().copied().fold(0.0, f64::max) } else { f64::INFINITY };
        let from_sources: f64 = self
            .nodes
            .iter()
            .zip(&self.world.hosts)
            .filter(|(_, host)| host.is_source)
            .map(|(node, _)| node.sent)
            .sum();
        Outcome {
            seconds,
            bound,
            efficiency: bound / seconds,
            source_copies: from_sources / total,
            duplicates: self.wasted / self.received,
            timeouts: self.timeouts,
            finished: times.len(),
            first: times.iter().copied().fold(f64::INFINITY, f64::min),
        }
    }
}
