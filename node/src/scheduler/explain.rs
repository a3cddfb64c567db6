//! Why a job waits: the same decision once more, with its reasons.
//!
//! Nothing is recorded when a plan is made. A plan follows from its view, so whoever asks gets it made again, for
//! the view of now, and sees what the planner sees: per node why not, who is ahead, and what would help.

use std::fmt;

use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::time::Time;

use super::board::Board;
use super::choose::{self, Wish};
use super::feasible::{self, Ask, Reason, What, counted};
use super::queue::Job;
use super::shape::{Need, Shape};
use super::view::{View, Waiting};
use super::{Placement, Victim, Why};
use crate::job::training::Training;
use crate::job::{Class, Group};
use crate::state::name::Name;

/// Why a job waits, or where it is about to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Which one.
    pub job: JobId,
    /// Where its tasks would be placed now.
    pub places: Vec<Placement>,
    /// Who would be asked to end for it.
    pub victims: Vec<Victim>,
    /// Why it is left, or a part of it; `None` if all of it would be placed.
    pub why: Option<Why>,
    /// Whether no member could ever run it, whatever ends and whoever returns.
    pub impossible: bool,
    /// What each member says to the task that needs most.
    pub nodes: Vec<NodeNote>,
    /// The jobs that were considered before it, in order.
    pub ahead: Vec<JobId>,
    /// If it is impossible: the member that comes closest.
    pub closest: Option<Closest>,
    /// What would help.
    pub help: Vec<Help>,
}

/// What a member says to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNote {
    /// Which one.
    pub node: NodeId,
    /// What it is called.
    pub name: Name,
    /// Why not; `None` if it has room.
    pub why: Option<Reason>,
}

/// The member that comes closest to running a job that none can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closest {
    /// Which one.
    pub node: NodeId,
    /// What it is called.
    pub name: Name,
    /// Everything that is missing.
    pub lacks: Vec<Reason>,
}

/// What would help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Help {
    /// That this node takes work again.
    Undrain(Name),
    /// That this node comes back.
    Return(Name),
    /// That this job ends.
    Stop(JobId),
    /// A node that has what it takes, in words.
    Add(String),
    /// That this node trains for this party.
    Train(Name, Name),
    /// That its party may have more, or has less.
    Quota,
    /// Time: it is not tried before.
    Wait(Time),
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Help::Undrain(name) => write!(f, "that {name} is no longer drained"),
            Help::Return(name) => write!(f, "that {name} comes back"),
            Help::Stop(job) => write!(f, "that job {} ends", job.short()),
            Help::Add(what) => write!(f, "a node with {what}"),
            Help::Train(node, party) => {
                write!(f, "that {node} trains for it: mesh node label {node} trains={party}")
            }
            Help::Quota => f.write_str("that its party has less, or a larger quota"),
            Help::Wait(time) => write!(f, "time: it is tried again at {time}"),
        }
    }
}

/// Why a job waits; `None` if it does not.
pub fn explain(view: &View, job: JobId) -> Option<Explanation> {
    let waiting = view.waiting.iter().find(|waiting| waiting.job == job)?;
    let mut board = Board::of(view);
    board.tells = true;
    let plan = board.plan(view.now);
    let not_seen = if plan.more { Why::NextPlan } else { Why::Behind };
    let why = plan.left.iter().find(|left| left.job == job).map(|left| left.why);
    let why = why.or_else(|| board.is_waiting(job).then_some(not_seen));
    let ahead = board.seen.iter().copied().take_while(|seen| *seen != job).collect();
    // Whoever is placed whole is told what there is now; whoever waits, what those ahead of it leave.
    let mut board = if why.is_some() { board } else { Board::of(view) };
    let of_job =
        |places: Vec<Placement>| places.into_iter().filter(|place| place.job == job).collect();
    let impossible = is_impossible_for(view, waiting);
    let mut explanation = Explanation {
        job,
        places: of_job(plan.places),
        victims: plan.victims.into_iter().filter(|victim| victim.for_job == job).collect(),
        why,
        impossible,
        nodes: Vec::new(),
        ahead,
        closest: None,
        help: Vec::new(),
    };
    let Some(slot) = board.queue.find(job) else { return Some(explanation) };
    let Some(lifted) = board.queue.lift(slot) else { return Some(explanation) };
    if let Some(task) = Asking::new(&mut board, &lifted) {
        explanation.nodes = task.notes(&board);
        explanation.closest = impossible.then(|| task.closest(&board)).flatten();
        explanation.help = task.help(&board, &explanation, view.now);
    }
    Some(explanation)
}

/// Whether no member could ever run a job that waits, whatever ends and whoever returns.
pub fn is_impossible(view: &View, job: JobId) -> bool {
    view.waiting
        .iter()
        .find(|waiting| waiting.job == job)
        .is_some_and(|job| is_impossible_for(view, job))
}

fn is_impossible_for(view: &View, waiting: &Waiting) -> bool {
    // The same mesh with everybody there, well, and idle.
    let mut offers = view.offers.clone();
    for offer in &mut offers {
        (offer.away, offer.drained) = (None, false);
        offer.gpus.iter_mut().for_each(|gpu| (gpu.healthy, gpu.free) = (true, true));
    }
    let whole = Waiting { failures: Default::default(), ..waiting.clone() };
    let idle = View {
        now: view.now,
        settings: view.settings,
        offers,
        waiting: vec![whole],
        running: Vec::new(),
        parties: view.parties.clone(),
    };
    let mut board = Board::of(&idle);
    let Some(slot) = board.queue.find(waiting.job) else { return false };
    let Some(job) = board.queue.lift(slot) else { return false };
    let tasks = choose::by_need(&board, &job);
    let needs = tasks.iter().map(|(_, shape)| board.shapes[*shape].need);
    let (cpu, gpus) = if waiting.spec.gang {
        needs.fold((0u64, 0u64), |(cpu, gpus), need| {
            (cpu.saturating_add(need.cpu), gpus.saturating_add(need.gpus.into()))
        })
    } else {
        needs.min().map_or((0, 0), |need| (need.cpu, need.gpus.into()))
    };
    let quota = board.accounts.get(&waiting.party).and_then(|account| account.quota);
    let could_run = match &waiting.spec.training {
        // Workers of a parameter server come and go: one that fits is enough.
        None | Some(Training::Server(_)) => choose::could_run(&mut board, &job, &[]),
        // With fewer parties than it asks for it gets nowhere; those that do not wait have, or had, a place.
        Some(Training::Federated(federated)) => {
            let placed = (waiting.spec.tasks() as usize).saturating_sub(waiting.tasks.len());
            let fit = tasks.iter().filter(|(_, shape)| board.is_possible(*shape)).count();
            placed + fit >= federated.min_parties as usize
        }
    };
    quota.is_some_and(|quota| !quota.covers(cpu, gpus)) || !could_run
}

/// The task of a job that needs most, as it asks each node.
struct Asking<'a> {
    job: &'a Job,
    shape: Shape,
    shunned: Vec<usize>,
    group: &'a Group,
}

impl<'a> Asking<'a> {
    fn new(board: &mut Board, job: &'a Job) -> Option<Self> {
        let tasks = choose::by_need(board, job);
        // Each task of a job that trains has nodes of its own: one that has none is what there is to tell of.
        let is_stuck = |(_, shape): &&(u32, usize)| !board.is_possible(*shape);
        let trains = job.waiting.spec.training.is_some();
        let stuck = if trains { tasks.iter().find(is_stuck) } else { None };
        let task = stuck.or(tasks.first()).map_or(0, |(task, _)| *task);
        let group = job.group(task)?;
        let shape = board.shapes[job.shape(task)?].clone();
        let shunned = Wish::new(board, job).shunned;
        Some(Self { job, shape, shunned, group })
    }

    /// What lasts, what passes, and what is with others: the first that there is.
    fn reason(&self, board: &Board, at: usize) -> Option<Reason> {
        self.bars(board, at)
            .or_else(|| {
                feasible::too_small(&self.shape.need, self.kind(board, at), &board.nodes[at])
            })
            .or_else(|| feasible::absent(&board.nodes[at].offer))
            .or_else(|| self.failing(board, at))
            .or_else(|| {
                let node = &board.nodes[at];
                let lacks = feasible::lacks(&self.shape, self.kind(board, at), node)?;
                Some(self.held(board, at).unwrap_or(lacks))
            })
    }

    fn bars(&self, board: &Board, at: usize) -> Option<Reason> {
        self.bars_group(board, at, self.group)
    }

    fn bars_group(&self, board: &Board, at: usize, group: &Group) -> Option<Reason> {
        let waiting = &self.job.waiting;
        let spec = &*waiting.spec;
        let ask = Ask { spec, group, party: waiting.party, confined: waiting.confined };
        feasible::bars(&ask, &board.nodes[at].offer, &board.names)
    }

    /// For each task that waits, the first node that would have to train for the job's party.
    fn trainers(&self, board: &Board) -> Vec<Help> {
        let waiting = &self.job.waiting;
        let mut help = Vec::new();
        if waiting.spec.training.is_none() {
            return help;
        }
        for group in waiting.tasks.iter().filter_map(|task| self.job.group(*task)) {
            let mut reasons =
                (0..board.nodes.len()).filter_map(|at| self.bars_group(board, at, group));
            help.extend(reasons.find_map(|reason| match reason {
                Reason::NotTraining { node, party: Some(party) } => Some(Help::Train(node, party)),
                _ => None,
            }));
        }
        help
    }

    fn kind(&self, board: &Board, at: usize) -> u128 {
        board.kind(&self.shape, at)
    }

    fn failing(&self, board: &Board, at: usize) -> Option<Reason> {
        let times = self.job.waiting.failures.get(&board.nodes[at].offer.node).copied()?;
        self.shunned.contains(&at).then_some(Reason::Failing(times))
    }

    /// Whether it would have room if nothing were kept there for somebody else.
    fn held(&self, board: &Board, at: usize) -> Option<Reason> {
        let node = &board.nodes[at];
        let other = node.held_for.filter(|other| *other != self.job.waiting.job)?;
        let fits = node.unheld().fits(&self.shape.need, self.kind(board, at));
        fits.then_some(Reason::HeldFor(other))
    }

    fn notes(&self, board: &Board) -> Vec<NodeNote> {
        let nodes = board.nodes.iter().enumerate();
        let note = nodes.map(|(at, node)| NodeNote {
            node: node.offer.node,
            name: node.offer.name.clone(),
            why: self.reason(board, at),
        });
        note.collect()
    }

    /// The node with the least that is missing.
    fn closest(&self, board: &Board) -> Option<Closest> {
        let Need { gpus, cpu, memory, disk } = self.shape.need;
        let short = |has: u64, wants: u64| {
            (wants.saturating_sub(has) as u128 * 1000).checked_div(wants.into())
        };
        let missing = |at: usize| {
            let (total, kind) = (&board.nodes[at].total, self.kind(board, at));
            let parts = [
                short(kind.count_ones().into(), gpus.into()),
                short(total.cpu, cpu),
                short(total.memory, memory),
                short(total.disk, disk),
            ];
            let barred = match self.bars(board, at) {
                None => 0,
                // A word of its party is all that is missing.
                Some(Reason::NotTraining { .. }) => 1,
                Some(_) => 2,
            };
            (barred, parts.into_iter().flatten().max())
        };
        let at = (0..board.nodes.len()).min_by_key(|at| (missing(*at), *at))?;
        let node = &board.nodes[at];
        let mut lacks: Vec<Reason> = self.bars(board, at).into_iter().collect();
        lacks.extend(feasible::all_too_small(&self.shape.need, self.kind(board, at), node));
        Some(Closest { node: node.offer.node, name: node.offer.name.clone(), lacks })
    }

    fn help(&self, board: &Board, explanation: &Explanation, now: Time) -> Vec<Help> {
        let mut help = Vec::new();
        match explanation.why {
            None | Some(Why::NextPlan) => return help,
            Some(Why::NotBefore(time)) if time > now => return vec![Help::Wait(time)],
            Some(Why::Quota) => help.push(Help::Quota),
            Some(_) => {}
        }
        let trainers = self.trainers(board);
        if explanation.impossible && trainers.is_empty() {
            help.push(Help::Add(self.wants()));
        }
        help.extend(trainers);
        if explanation.impossible {
            return help;
        }
        for (at, note) in explanation.nodes.iter().enumerate() {
            let fits =
                feasible::lacks(&self.shape, self.kind(board, at), &board.nodes[at]).is_none();
            match &note.why {
                Some(Reason::Drained) if fits => help.push(Help::Undrain(note.name.clone())),
                Some(Reason::Away(_)) if fits => help.push(Help::Return(note.name.clone())),
                _ => {}
            }
        }
        help.extend(self.smallest_in_the_way(board).map(Help::Stop));
        help
    }

    /// The job that has least of those whose end would make room.
    fn smallest_in_the_way(&self, board: &Board) -> Option<JobId> {
        let mut best = None;
        for (at, node) in board.nodes.iter().enumerate() {
            if !node.is_present() || self.bars(board, at).is_some() {
                continue;
            }
            for &slot in &node.tasks {
                let task = &board.tasks[slot];
                let room = node.soon.plus(&task.room);
                // What was only placed in this plan is not in the way yet.
                let began = task.fence > 0 && task.stopping.is_none();
                if began && room.fits(&self.shape.need, self.kind(board, at)) {
                    let size: u64 = task.shares.iter().sum();
                    let key = (task.class != Class::BestEffort, size, task.job);
                    best = best.into_iter().chain([key]).min();
                }
            }
        }
        best.map(|(.., job)| job)
    }

    /// What a node would have to have.
    fn wants(&self) -> String {
        let Need { gpus, cpu, memory, .. } = self.shape.need;
        let mut words = Vec::new();
        if let Some(ask) = &self.group.resources.gpus {
            let mut text = counted(&gpus.to_string(), "GPUs");
            if !ask.models.is_empty() {
                text += &format!(" ({})", ask.models.join(" or "));
            }
            if ask.min_memory_mib > 0 {
                let bytes = u64::from(ask.min_memory_mib) << 20;
                text += &format!(" of {}", What::Memory.figure(bytes));
            }
            words.push(text);
        }
        words.push(counted(&What::Cpus.figure(cpu), "CPUs"));
        words.push(format!("{} of memory", What::Memory.figure(memory)));
        let place = &self.job.waiting.spec.place;
        words.extend(place.arch.clone());
        words.extend(place.labels.iter().map(|(key, value)| format!("the label {key}={value}")));
        words.join(", ")
    }
}
