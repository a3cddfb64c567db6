//! Time, parties and rounds.
//!
//! Who takes part in a round, how long it waits and what it closes with is decided by mesh's own code (`training/straggler.rs`,
//! `training/round.rs`), sums are made by its own (`training/optimiser.rs`), and the parties train with its own trainer. What is played
//! here is the rest: that training takes its time, and that a worker asks for the next round when it has submitted one.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use mesh_consensus::id::Hash;
use mesh_consensus::time::Time;
use mesh_node::job::training::{Federated, Real, Select, Strategy, Wire};
use mesh_node::state::course::{Course, Model, Open, Piece, Record, Times};
use mesh_node::training::builtin::data::Examples;
use mesh_node::training::builtin::net::{Net, Sgd};
use mesh_node::training::builtin::shape::{Kind, Shape};
use mesh_node::training::optimiser::{Optimiser, combine};
use mesh_node::training::pack;
use mesh_node::training::round::{self, Heard, MAX_STALENESS, Move, Sum};
use mesh_node::training::straggler::{self, Choice};
use mesh_node::training::wire::Arrival;

use crate::field::Field;
use crate::settings::Settings;

/// What a job says about those who are slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Policy {
    /// No round closes without everybody.
    All,
    /// Nothing: half of the parties are enough once the deadline has passed.
    Deadline,
    /// `select = "tiers"`.
    Tiers,
    /// `strategy = "fedbuff"`.
    FedBuff,
}

pub(crate) const POLICIES: [Policy; 4] =
    [Policy::All, Policy::Deadline, Policy::Tiers, Policy::FedBuff];

impl Policy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::All => "wait for all",
            Policy::Deadline => "quorum + deadline",
            Policy::Tiers => "tiers",
            Policy::FedBuff => "FedBuff",
        }
    }

    /// The job, with the defaults of a job.toml for whatever it does not say.
    fn job(self, parties: usize) -> Federated {
        let real = |number| Real::new(number).unwrap_or_default();
        let all = parties as u32;
        let name = || "bench".parse().expect("it is a name");
        Federated {
            rounds: 1,
            strategy: match self {
                Policy::FedBuff => Strategy::FedBuff {
                    buffer: 10.min(all),
                    rate: real(1.0),
                    max_staleness: MAX_STALENESS,
                },
                _ => Strategy::FedAvg { rate: real(1.0) },
            },
            min_parties: match self {
                Policy::All => all,
                Policy::Deadline | Policy::FedBuff => all.div_ceil(2),
                Policy::Tiers => TIER_COUNT,
            },
            deadline_ms: None,
            aggregators: vec![name()],
            wire: Wire::F32,
            select: match self {
                Policy::Tiers => Select::Tiers { count: TIER_COUNT, tiers: TIERS },
                _ => Select::All,
            },
            privacy: None,
            start: None,
            model: name(),
        }
    }
}

/// Of 20 parties: four in each tier.
const TIERS: u32 = 5;
const TIER_COUNT: u32 = 4;

/// A model: when it stood, and what it was worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) at_ms: u64,
    /// On all test images.
    pub(crate) accuracy: f64,
    /// On those of the digits that only slow parties have.
    pub(crate) rare: f64,
}

/// What came of a policy.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) points: Vec<Point>,
    pub(crate) models: u32,
    pub(crate) records: BTreeMap<u32, Record>,
}

impl Outcome {
    /// When the target was reached, and what the models were worth then: the first of some in a row that all have it. Single ones
    /// differ by a point on digits that few have, so what they are worth is a mean.
    pub(crate) fn reached(&self, target: f64, in_a_row: usize) -> Option<Point> {
        let mut rows = self.points.windows(in_a_row);
        rows.find(|row| row.iter().all(|point| point.accuracy >= target)).map(mean)
    }

    /// The same of the last ones.
    pub(crate) fn end(&self, in_a_row: usize) -> Point {
        mean(&self.points[self.points.len().saturating_sub(in_a_row)..])
    }
}

/// Of models that stood one after the other.
fn mean(row: &[Point]) -> Point {
    let of =
        |figure: fn(&Point) -> f64| row.iter().map(figure).sum::<f64>() / row.len().max(1) as f64;
    let at_ms = row.first().map_or(0, |point| point.at_ms);
    Point { at_ms, accuracy: of(|point| point.accuracy), rare: of(|point| point.rare) }
}

/// What is measured with.
pub(crate) struct Tests<'a> {
    pub(crate) all: &'a Examples,
    pub(crate) rare: &'a Examples,
}

/// A training under way, or what came of it.
struct Work {
    round: u32,
    done_ms: u64,
    update: Vec<u8>,
    times: Times,
}

/// Rounds until the target is reached, or so much time has passed.
pub(crate) fn simulate(
    settings: &Settings,
    field: &Field,
    tests: &Tests<'_>,
    policy: Policy,
    seed: u64,
    most_ms: u64,
) -> Outcome {
    let mut simulation = Simulation::new(settings, field, policy, seed);
    let mut outcome = Outcome { points: Vec::new(), models: 0, records: BTreeMap::new() };
    loop {
        let next = outcome.points.last().map_or(0, |point| point.at_ms + settings.open.look_ms);
        simulation.round();
        outcome.models += 1;
        if simulation.now < next {
            continue;
        }
        let net = &simulation.net;
        let (accuracy, _) = net.evaluate(tests.all);
        let (rare, _) = net.evaluate(tests.rare);
        outcome.points.push(Point { at_ms: simulation.now, accuracy, rare });
        let is_over = outcome.reached(settings.open.target, settings.open.in_a_row).is_some()
            || simulation.now >= most_ms;
        if is_over {
            outcome.records = simulation.course.records;
            return outcome;
        }
    }
}

struct Simulation<'a> {
    settings: &'a Settings,
    field: &'a Field,
    spec: Federated,
    random: Rng,
    now: u64,
    course: Course,
    wanted: usize,
    net: Net,
    optimiser: Optimiser,
    /// By task: what it trains.
    working: BTreeMap<u32, Work>,
    /// What has come and is not in a model yet.
    arrived: Vec<(u32, Work)>,
    /// By task: the last round that it has submitted.
    submitted: BTreeMap<u32, u32>,
    everybody: BTreeSet<u32>,
}

impl<'a> Simulation<'a> {
    fn new(settings: &'a Settings, field: &'a Field, policy: Policy, seed: u64) -> Self {
        let spec = policy.job(field.parties.len());
        let kind = Kind::Mlp { hidden: vec![settings.open.hidden] };
        let shape = Shape::new(kind, field.parties[0].data.shape, 10).expect("it is a network");
        let net = Net::new(&shape, seed);
        let values = net.values().len();
        let mut simulation = Self {
            settings,
            field,
            optimiser: Optimiser::new(&spec.strategy, values),
            spec,
            random: Rng::with_seed(seed),
            now: 0,
            course: Course { model: Some(model(0, values)), ..Course::default() },
            wanted: 0,
            net,
            working: BTreeMap::new(),
            arrived: Vec::new(),
            submitted: BTreeMap::new(),
            everybody: (0..field.parties.len() as u32).collect(),
        };
        simulation.open(1);
        simulation
    }

    /// From the opening of a round to that of the next.
    fn round(&mut self) {
        loop {
            self.hand_out();
            let Some(open) = &self.course.open else { return };
            let (round, since) = (open.round, open.since.0);
            let everybody = &self.everybody;
            let decided = round::decide(
                &self.spec,
                &self.course,
                everybody,
                everybody,
                &self.heard(),
                self.wanted,
                self.now - since,
            );
            match decided {
                Move::Sum(sum) => return self.close(round, &sum),
                Move::Wait { until_ms } => {
                    let work = self.working.values().map(|work| work.done_ms).min();
                    let deadline = until_ms.map(|ms| since + ms).filter(|at| *at > self.now);
                    let next = work.into_iter().chain(deadline).min();
                    self.now = next.expect("somebody works, or the round has a deadline");
                    self.arrive();
                }
                Move::GiveUp(why) => panic!("round {round} was given up: {why}"),
            }
        }
    }

    /// Opens a round, as the coordinator does (`training/federated/plan.rs`).
    fn open(&mut self, round: u32) {
        let records = &self.course.records;
        let random = &mut self.random;
        let mut draw = |below: usize| random.usize(..below.max(1));
        let Choice { mut selected, wanted } =
            straggler::choose(&self.spec.select, &self.everybody, records, round, &mut draw);
        let needed = self.spec.min_parties as usize;
        for task in &self.everybody {
            if selected.len() >= needed {
                break;
            }
            selected.insert(*task);
        }
        self.wanted = wanted.max(needed).min(selected.len());
        if self.spec.select == Select::All {
            selected.extend(&self.everybody);
        }
        let usual = match self.spec.strategy {
            Strategy::FedBuff { .. } => None,
            _ => straggler::deadline_ms(records, &selected),
        };
        let deadline_ms = self.spec.deadline_ms.or(usual);
        let (aggregators, since) = (Vec::new(), Time(self.now));
        self.course.open = Some(Open { round, selected, aggregators, since, deadline_ms });
    }

    /// Whoever is idle, selected and has not submitted for this round begins it.
    fn hand_out(&mut self) {
        let Some(open) = &self.course.open else { return };
        let round = open.round;
        for task in open.selected.clone() {
            let is_done = self.submitted.get(&task).is_some_and(|last| *last >= round);
            if !is_done && !self.working.contains_key(&task) {
                let work = self.train(task, round);
                self.working.insert(task, work);
            }
        }
    }

    fn train(&mut self, task: u32, round: u32) -> Work {
        let open = &self.settings.open;
        let party = &self.field.parties[task as usize];
        let mut order: Vec<u32> = (0..party.data.len() as u32).collect();
        self.random.shuffle(&mut order);
        let base = self.net.values().to_vec();
        let mut net = self.net.clone();
        net.begin();
        let sgd = Sgd { lr: open.lr, momentum: open.momentum, decay: 0.0, mu: 0.0 };
        net.train_by(&party.data, &order, open.batch, sgd);
        let jitter = (open.jitter * normal(&mut self.random)).exp();
        let compute = order.len() as f64 * open.image_ms / party.speed * jitter;
        let times = Times {
            fetch_ms: open.network_ms,
            compute_ms: compute as u32,
            upload_ms: open.network_ms,
        };
        Work {
            round,
            done_ms: self.now + straggler::whole_ms(&times),
            update: pack::pack(net.values(), Some(&base), Wire::F32),
            times,
        }
    }

    /// What is done by now arrives.
    fn arrive(&mut self) {
        let now = self.now;
        for (task, work) in self.working.extract_if(.., |_, work| work.done_ms <= now) {
            self.submitted.insert(task, work.round);
            self.arrived.push((task, work));
        }
    }

    fn heard(&self) -> Heard {
        let values = self.net.values().len();
        let arrival = |(task, work): &(u32, Work)| Arrival {
            task: *task,
            fence: 1,
            serial: work.round.into(),
            base: Some(work.round - 1),
            update: Hash([0; 32]),
            values: values as u64,
            examples: self.field.parties[*task as usize].data.len() as u64,
            metrics: BTreeMap::new(),
            evaluated: None,
            times: work.times,
            norm2: pack::measure(&work.update, values, Wire::F32)
                .expect("it was packed here")
                .and_then(Real::new),
        };
        Heard { arrivals: vec![self.arrived.iter().map(arrival).collect()] }
    }

    /// The next model, and the round after it.
    fn close(&mut self, round: u32, sum: &Sum) {
        let of = |task: u32, serial: u64| {
            let mut all = self.arrived.iter();
            let found = all.find(|(of, work)| *of == task && u64::from(work.round) == serial);
            &found.expect("only what has come is summed").1.update[..]
        };
        let updates: Vec<(&[u8], f32)> = sum
            .parts
            .iter()
            .map(|part| (of(part.task, part.serial), part.weight.get() as f32))
            .collect();
        let mut values = self.net.values().to_vec();
        let divisor = sum.divisor.get();
        let mean = combine(&self.spec.strategy, &updates, Wire::F32, values.len(), divisor)
            .expect("all updates are of one model");
        self.optimiser.apply(&mut values, &mean);
        load(&mut self.net, &values);
        self.course.records = round::after(&self.course.records, &sum.counted, round);
        self.course.model = Some(model(round, values.len()));
        let records = &self.course.records;
        self.arrived.retain(|(task, work)| {
            // A participant drops what is counted, or too old ever to be.
            let last = records.get(task).and_then(|record| record.last);
            let is_new = last.is_none_or(|(_, serial)| u64::from(work.round) > serial);
            is_new && round - (work.round - 1) <= MAX_STALENESS
        });
        self.now += self.settings.open.commit_ms;
        self.arrive();
        self.open(round + 1);
    }
}

fn load(net: &mut Net, values: &[f32]) {
    let shapes: Vec<(String, Vec<u64>)> =
        net.tensors().into_iter().map(|(name, shape, _)| (name, shape)).collect();
    let mut rest = values;
    let mut tensors = Vec::new();
    for (name, shape) in &shapes {
        let (own, others) = rest.split_at(shape.iter().product::<u64>() as usize);
        rest = others;
        tensors.push((name.as_str(), &shape[..], own));
    }
    net.load(tensors).expect("it is the same network");
}

/// A model as the state knows it: so many values, and no more is asked of it here.
fn model(round: u32, values: usize) -> Model {
    let piece = |bytes| Piece { hash: Hash([0; 32]), bytes };
    Model {
        round,
        layout: piece(0),
        weights: vec![piece(4 * values as u64)],
        optimiser: Vec::new(),
        holders: BTreeSet::new(),
    }
}

/// A number from the normal distribution (Box and Muller).
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}
