//! Time, nodes and the planner.
//!
//! The planner is mesh's, and so is the board that it looks at. What is played here is the rest: when jobs come, that nodes
//! start what fits beside what still runs there, and that whoever was asked to end takes its grace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use fastrand::Rng;
use mesh_consensus::id::{JobId, NodeId, PartyId};
use mesh_consensus::time::Time;
use mesh_node::job::{Allotment, Class, GpuAsk, Group, JobSpec, Place, Range, Resources, Retry};
use mesh_node::scheduler::{Board, Gpu, Offer, Settings as Planner, View, Waiting};
use mesh_node::state::name::Name;

use crate::load::Job;
use crate::settings::Settings;

const GB: u64 = 1_000_000_000;
const PARTY: PartyId = PartyId([1; 32]);

/// Who has to make room, if anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Policy {
    /// Nobody: all stand in one line.
    Fifo,
    /// Whoever has the longest to run.
    Longest,
    /// Anybody.
    Random,
    /// mesh's own choice, in a strict line.
    FitGpp,
    /// mesh as it ships.
    Mesh,
}

pub(crate) const POLICIES: [Policy; 5] =
    [Policy::Fifo, Policy::Longest, Policy::Random, Policy::FitGpp, Policy::Mesh];

impl Policy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::Fifo => "FIFO",
            Policy::Longest => "LRTP",
            Policy::Random => "RAND",
            Policy::FitGpp => "FitGpp",
            Policy::Mesh => "mesh",
        }
    }
}

/// When jobs come.
pub(crate) enum Arrivals<'a> {
    /// Whenever the load is below what it is held at.
    Held,
    /// At these times.
    At(&'a [u64]),
}

/// What became of the jobs.
pub(crate) struct Outcome {
    /// When each came.
    pub(crate) arrivals: Vec<u64>,
    /// When each was done.
    pub(crate) ends: Vec<u64>,
    /// How often each was preempted.
    pub(crate) preempted: Vec<u16>,
    /// From the end of a grace until the job ran again, in ms.
    pub(crate) again: Vec<u64>,
    /// Jobs that came in a ms.
    pub(crate) rate: f64,
}

pub(crate) fn simulate(
    settings: &Settings,
    jobs: &[Job],
    arrivals: Arrivals<'_>,
    policy: Policy,
    seed: u64,
) -> Outcome {
    let mut simulation = Simulation::new(settings, jobs, policy, seed);
    simulation.run(&arrivals);
    let Simulation { came, ends, preempted, again, .. } = simulation;
    let last = came.last().copied().unwrap_or(0).max(1);
    Outcome { rate: jobs.len() as f64 / last as f64, arrivals: came, ends, preempted, again }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// What is left to run, in ms.
    left: u64,
    /// Since when it has run; only while it does.
    since: u64,
    /// Goes up whenever it is asked to end, so that the end it would have had is not one.
    turn: u32,
    node: u8,
    gpus: u8,
    /// When its last grace was over.
    out: Option<u64>,
}

/// What runs on a node, in fact: also what was asked to end, and not what waits for that.
#[derive(Debug, Clone, Default)]
struct Node {
    cpus: u64,
    memory_gb: u64,
    gpus: u8,
    /// Placed, but not started.
    pending: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A job is done, if it is still its turn.
    Done(u32, u32),
    /// A grace is over.
    Out(u32),
}

struct Simulation<'a> {
    settings: &'a Settings,
    jobs: &'a [Job],
    policy: Policy,
    random: Rng,
    board: Board,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    states: Vec<State>,
    nodes: Vec<Node>,
    names: [Name; 2],
    came: Vec<u64>,
    ends: Vec<u64>,
    preempted: Vec<u16>,
    again: Vec<u64>,
    /// What all jobs ask for that are not done: CPUs, GB, GPUs.
    asked: [u64; 3],
    /// Trial jobs without a place, for rivals.
    trials: BTreeSet<u32>,
    /// Best-effort jobs that run, by when they will be done; and in any order.
    by_end: BTreeSet<(u64, u32)>,
    any: Vec<u32>,
    place_in_any: BTreeMap<u32, usize>,
}

impl<'a> Simulation<'a> {
    fn new(settings: &'a Settings, jobs: &'a [Job], policy: Policy, seed: u64) -> Self {
        let paper = &settings.paper;
        let strict = Planner {
            backfill: false,
            max_preemptions: if policy == Policy::FitGpp { paper.max_preemptions } else { 0 },
            grace_weight: paper.grace_weight,
            ..Planner::default()
        };
        let view = View {
            now: Time(0),
            settings: if policy == Policy::Mesh { Planner::default() } else { strict },
            offers: (0..paper.nodes).map(|n| offer(settings, n)).collect(),
            waiting: Vec::new(),
            running: Vec::new(),
            parties: Vec::new(),
        };
        Self {
            settings,
            jobs,
            policy,
            random: Rng::with_seed(seed),
            board: Board::of(&view),
            now: 0,
            events: BinaryHeap::new(),
            states: jobs.iter().map(|job| State { left: job.run_ms, ..State::default() }).collect(),
            nodes: vec![Node::default(); paper.nodes.into()],
            names: ["job", "worker"].map(|name| name.parse().expect("it is one")),
            came: Vec::with_capacity(jobs.len()),
            ends: vec![0; jobs.len()],
            preempted: vec![0; jobs.len()],
            again: Vec::new(),
            asked: [0; 3],
            trials: BTreeSet::new(),
            by_end: BTreeSet::new(),
            any: Vec::new(),
            place_in_any: BTreeMap::new(),
        }
    }

    fn run(&mut self, arrivals: &Arrivals<'_>) {
        loop {
            self.arrive(arrivals);
            self.plan();
            let next = self.events.peek().map(|Reverse((time, _))| *time);
            let arrival = match arrivals {
                Arrivals::Held => None,
                Arrivals::At(times) => times.get(self.came.len()).copied(),
            };
            let Some(next) = next.into_iter().chain(arrival).min() else { return };
            self.now = next;
            while let Some(Reverse((time, event))) = self.events.peek().copied()
                && time == self.now
            {
                self.events.pop();
                match event {
                    Event::Done(job, turn) => self.on_done(job, turn),
                    Event::Out(job) => self.on_out(job),
                }
            }
        }
    }

    fn arrive(&mut self, arrivals: &Arrivals<'_>) {
        while let Some(job) = self.jobs.get(self.came.len()) {
            let comes = match arrivals {
                Arrivals::Held => self.load() < self.settings.paper.load,
                Arrivals::At(times) => times[self.came.len()] <= self.now,
            };
            if !comes {
                return;
            }
            let number = self.came.len() as u32;
            self.came.push(self.now);
            for (sum, part) in self.asked.iter_mut().zip([job.cpus, job.memory_gb, job.gpus]) {
                *sum += part;
            }
            self.wait(number, false);
        }
    }

    fn load(&self) -> f64 {
        let paper = &self.settings.paper;
        let nodes = u64::from(paper.nodes);
        let have = [paper.node_cpus, paper.node_memory_gb, paper.node_gpus.into()];
        let shares =
            self.asked.iter().zip(have).map(|(asked, has)| *asked as f64 / (has * nodes) as f64);
        shares.fold(0.0, f64::max)
    }

    fn wait(&mut self, number: u32, interrupted: bool) {
        let job = &self.jobs[number as usize];
        let class = match job.trial && self.policy != Policy::Fifo {
            true => Class::Trial,
            false => Class::BestEffort,
        };
        if class == Class::Trial {
            self.trials.insert(number);
        }
        self.board.wait(Waiting {
            job: id(number),
            spec: Arc::new(spec(job, class, &self.names)),
            party: PARTY,
            confined: None,
            index: number.into(),
            submitted: Time(self.came[number as usize]),
            tasks: vec![0],
            not_before: Time(0),
            failures: BTreeMap::new(),
            preemptions: self.preempted[number as usize].into(),
            interrupted,
            others: Vec::new(),
        });
    }

    /// Asks the planner until it has nothing more to say.
    fn plan(&mut self) {
        loop {
            let plan = self.board.plan(Time(self.now));
            for victim in &plan.victims {
                self.ask_to_end(number(victim.job));
            }
            for place in &plan.places {
                let (job, node) = (number(place.job), place.node.0[0]);
                self.trials.remove(&job);
                let state = &mut self.states[job as usize];
                (state.node, state.gpus) = (node, bits(&place.allotment));
                self.nodes[usize::from(node)].pending.push(job);
                self.start_pending(node);
            }
            if !plan.more && !self.preempt_as_rivals_do() {
                return;
            }
        }
    }

    /// Asks one more to end if a trial has no place. Whether it did.
    fn preempt_as_rivals_do(&mut self) -> bool {
        if self.trials.is_empty() {
            return false;
        }
        let victim = match self.policy {
            Policy::Longest => self.by_end.last().map(|(_, job)| *job),
            Policy::Random if !self.any.is_empty() => {
                Some(self.any[self.random.usize(..self.any.len())])
            }
            _ => None,
        };
        let Some(victim) = victim else { return false };
        self.ask_to_end(victim);
        let until = Time(self.now + self.jobs[victim as usize].grace_ms);
        self.board.stop(id(victim), 0, until);
        true
    }

    fn ask_to_end(&mut self, job: u32) {
        self.forget_running(job);
        let state = &mut self.states[job as usize];
        state.left -= self.now - state.since;
        state.turn += 1;
        self.preempted[job as usize] += 1;
        let out = self.now + self.jobs[job as usize].grace_ms;
        self.events.push(Reverse((out, Event::Out(job))));
    }

    fn on_done(&mut self, job: u32, turn: u32) {
        if self.states[job as usize].turn != turn {
            return;
        }
        self.forget_running(job);
        self.ends[job as usize] = self.now;
        let Job { cpus, memory_gb, gpus, .. } = self.jobs[job as usize];
        for (sum, part) in self.asked.iter_mut().zip([cpus, memory_gb, gpus]) {
            *sum -= part;
        }
        self.leave(job);
    }

    fn on_out(&mut self, job: u32) {
        self.states[job as usize].out = Some(self.now);
        self.leave(job);
        self.wait(job, true);
    }

    fn leave(&mut self, job: u32) {
        self.board.end(id(job), 0, Time(self.now));
        let (asks, state) = (&self.jobs[job as usize], &self.states[job as usize]);
        let node = &mut self.nodes[usize::from(state.node)];
        node.cpus -= asks.cpus;
        node.memory_gb -= asks.memory_gb;
        node.gpus &= !state.gpus;
        let at = state.node;
        self.start_pending(at);
    }

    /// Starts what fits beside what runs there.
    fn start_pending(&mut self, at: u8) {
        let paper = &self.settings.paper;
        let mut n = 0;
        while let Some(&job) = self.nodes[usize::from(at)].pending.get(n) {
            let (asks, state) = (&self.jobs[job as usize], &mut self.states[job as usize]);
            let node = &mut self.nodes[usize::from(at)];
            let fits = node.cpus + asks.cpus <= paper.node_cpus
                && node.memory_gb + asks.memory_gb <= paper.node_memory_gb
                && node.gpus & state.gpus == 0;
            if !fits {
                n += 1;
                continue;
            }
            node.pending.remove(n);
            node.cpus += asks.cpus;
            node.memory_gb += asks.memory_gb;
            node.gpus |= state.gpus;
            state.since = self.now;
            let end = self.now + state.left;
            self.again.extend(state.out.take().map(|out| self.now - out));
            self.events.push(Reverse((end, Event::Done(job, state.turn))));
            if !asks.trial && matches!(self.policy, Policy::Longest | Policy::Random) {
                self.by_end.insert((end, job));
                self.place_in_any.insert(job, self.any.len());
                self.any.push(job);
            }
        }
    }

    /// A best-effort job does not run any more.
    fn forget_running(&mut self, job: u32) {
        if self.jobs[job as usize].trial {
            return;
        }
        let state = &self.states[job as usize];
        self.by_end.remove(&(state.since + state.left, job));
        if let Some(place) = self.place_in_any.remove(&job) {
            self.any.swap_remove(place);
            if let Some(moved) = self.any.get(place) {
                self.place_in_any.insert(*moved, place);
            }
        }
    }
}

fn id(number: u32) -> JobId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    JobId(id)
}

fn number(id: JobId) -> u32 {
    let [a, b, c, d, ..] = id.0;
    u32::from_be_bytes([a, b, c, d])
}

fn bits(allotment: &Allotment) -> u8 {
    allotment.gpus.iter().fold(0, |mask, uuid| mask | 1 << uuid[15])
}

fn offer(settings: &Settings, n: u8) -> Offer {
    let paper = &settings.paper;
    let gpu = |gpu: u8| {
        let mut uuid = [n; 16];
        uuid[15] = gpu;
        Gpu {
            uuid,
            model: "p100".into(),
            memory_mib: 16 << 10,
            mig: None,
            healthy: true,
            free: true,
        }
    };
    Offer {
        node: NodeId([n; 32]),
        name: format!("n{n}").parse().expect("it is a name"),
        party: PARTY,
        domain: None,
        arch: "x86_64".into(),
        labels: BTreeMap::new(),
        cpu_milli: paper.node_cpus * 1000,
        memory_bytes: paper.node_memory_gb * GB,
        disk_bytes: 0,
        gpus: (0..paper.node_gpus).map(gpu).collect(),
        drained: false,
        away: None,
        docker: false,
        versions: BTreeSet::new(),
        images: BTreeSet::new(),
        takes_others: true,
        trains_for: BTreeSet::new(),
    }
}

fn spec(job: &Job, class: Class, [name, worker]: &[Name; 2]) -> JobSpec {
    let ask = GpuAsk {
        count: Range::just(job.gpus),
        min_memory_mib: 0,
        max_memory_mib: None,
        models: Vec::new(),
        mig: None,
    };
    let resources = Resources {
        cpu_milli: Some(Range::just(job.cpus * 1000)),
        memory_bytes: Some(Range::just(job.memory_gb * GB)),
        gpus: (job.gpus > 0).then_some(ask),
        ..Resources::default()
    };
    let group = Group {
        name: worker.clone(),
        count: 1,
        argv: Vec::new(),
        image: None,
        resources,
        ports: BTreeMap::new(),
        party: None,
    };
    JobSpec {
        name: name.clone(),
        class,
        priority: 50,
        after: Vec::new(),
        groups: vec![group],
        gang: false,
        data: BTreeMap::new(),
        outputs: BTreeMap::new(),
        code: None,
        checkpoint: None,
        grace_ms: job.grace_ms,
        retry: Retry::default(),
        time_limit_ms: None,
        place: Place::default(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        params: BTreeMap::new(),
        user: String::new(),
        training: None,
    }
}
