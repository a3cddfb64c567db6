//! Chooses nodes for the tasks of a job out of what is free.
//!
//! Tasks are placed one after the other, each on the best node as things stand then ([`super::rank`]). Those of a gang are
//! all placed or none is: what was tried is taken back. Tasks that need most come first, so that small ones do not
//! stand in their way.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use mesh_consensus::time::Time;

use super::board::{Board, Node, Room, Task, first_bits};
use super::queue::Job;
use super::rank::{self, Candidate, Rank, Wanted};
use super::shape::{Need, Shape};
use crate::job::Class;

/// After so many failures of a job on a node, the node is the last choice.
const WARY_AFTER: u32 = 2;

/// After so many, it is none, as long as the job could run without it.
const SHUN_AFTER: u32 = 3;

/// What a job wishes of its nodes beside room.
#[derive(Debug, Clone, Default)]
pub(super) struct Wish {
    /// The nodes on which it has failed too often.
    wary: Vec<usize>,
    /// Those on which it is not to be tried again.
    pub(super) shunned: Vec<usize>,
    spread: Option<Spread>,
    pack: Option<Pack>,
}

#[derive(Debug, Clone)]
struct Spread {
    /// The value of each node, by number.
    value: Vec<usize>,
    /// How many tasks of the job there are for each value.
    count: Vec<u32>,
}

#[derive(Debug, Clone)]
struct Pack {
    /// Where tasks of the job are.
    hosts: Vec<usize>,
    /// How many are still to be placed.
    left: u32,
}

impl Wish {
    pub(super) fn new(board: &mut Board, job: &Job) -> Self {
        let waiting = &job.waiting;
        let place = &waiting.spec.place;
        if waiting.failures.is_empty() && place.spread.is_none() && !place.pack {
            return Self::default();
        }
        let failed = |board: &Board, times: u32| -> Vec<usize> {
            let nodes = board.nodes.iter().enumerate().filter(|(_, node)| {
                waiting.failures.get(&node.offer.node).is_some_and(|count| *count >= times)
            });
            nodes.map(|(at, _)| at).collect()
        };
        let wary = failed(board, WARY_AFTER);
        let mut shunned = failed(board, SHUN_AFTER);
        if !shunned.is_empty() && !could_run(board, job, &shunned) {
            shunned.clear();
        }
        let mut wish = Self { wary, shunned, spread: None, pack: None };
        if place.spread.is_some() {
            wish.spread = Some(Spread::new(board, job));
        } else if place.pack {
            let left = u32::try_from(waiting.tasks.len()).unwrap_or(u32::MAX);
            wish.pack = Some(Pack { hosts: Vec::new(), left });
        }
        for other in &waiting.others {
            if let Ok(at) = board.nodes.binary_search_by_key(other, |node| node.offer.node) {
                wish.count(at, false);
            }
        }
        wish
    }

    /// A task of the job was placed there.
    pub(super) fn placed(&mut self, node: usize) {
        self.count(node, true);
    }

    fn count(&mut self, node: usize, new: bool) {
        if let Some(spread) = &mut self.spread {
            spread.count[spread.value[node]] += 1;
        }
        if let Some(pack) = &mut self.pack {
            pack.hosts.push(node);
            pack.left -= u32::from(new && pack.left > 0);
        }
    }

    #[inline]
    pub(super) fn wanted(&self, at: usize, many: impl FnOnce() -> u32) -> Wanted {
        let failing = !self.wary.is_empty() && self.wary.contains(&at);
        let order = match (&self.spread, &self.pack) {
            (Some(spread), _) => spread.count[spread.value[at]],
            (None, Some(pack)) if pack.hosts.contains(&at) => 0,
            // One that has room for many of them, but not one with room for more than there are.
            (None, Some(pack)) => 1 + pack.left - many().min(pack.left),
            (None, None) => 0,
        };
        Wanted { failing, order }
    }
}

impl Spread {
    fn new(board: &Board, job: &Job) -> Self {
        let over = job.waiting.spec.place.spread.as_ref();
        let over = over.map_or("node", |name| name.as_str());
        let mut values = BTreeMap::new();
        let value = board.nodes.iter().enumerate().map(|(at, node)| {
            let offer = &node.offer;
            let label = || offer.labels.iter().find(|(key, _)| key.as_str() == over);
            // Nodes without a value share one, as if they might fail together.
            let text = match over {
                "node" => at.to_string(),
                "domain" => offer.domain.as_ref().map_or(String::new(), |name| name.to_string()),
                _ => label().map_or(String::new(), |(_, value)| value.to_string()),
            };
            let next = values.len();
            *values.entry(text).or_insert(next)
        });
        let value: Vec<usize> = value.collect();
        Self { count: vec![0; values.len()], value }
    }
}

/// The best node that has room for a task now.
pub(super) fn find(board: &mut Board, id: usize, wish: &Wish) -> Option<usize> {
    let shape = &board.shapes[id];
    let site = &board.sites[shape.site];
    let found = match shape.failed {
        Some(epoch) if epoch == board.epoch => None,
        // Since then there is more room on a few nodes only.
        Some(epoch) if epoch >= board.forgotten => {
            let freed = board.freed.iter().rev().take_while(|(at, _)| *at > epoch);
            best(board, shape, wish, freed.filter_map(|(_, node)| site.find(*node)))
        }
        _ => best(board, shape, wish, site.candidates.iter()),
    };
    if found.is_none() && wish.shunned.is_empty() {
        board.shapes[id].failed = Some(board.epoch);
    }
    found
}

fn best<'a>(
    board: &Board,
    shape: &Shape,
    wish: &Wish,
    among: impl Iterator<Item = &'a Candidate>,
) -> Option<usize> {
    let mut best: Option<Rank> = None;
    for candidate in among {
        let at = candidate.node as usize;
        let node = &board.nodes[at];
        if node.now.cpu < shape.need.cpu || node.now.memory < shape.need.memory {
            continue;
        }
        let kind = board.kind(shape, at);
        if !node.now.fits(&shape.need, kind)
            || !node.has_ports(&shape.ports)
            || wish.shunned.contains(&at)
        {
            continue;
        }
        let wanted = wish.wanted(at, || how_many(&node.now, &shape.need, kind));
        let rank = rank::rank(wanted, candidate, shape.need.gpus > 0, node);
        if best.is_none_or(|best| rank < best) {
            best = Some(rank);
        }
    }
    best.map(|(.., node)| node as usize)
}

/// How many of them a room takes.
fn how_many(room: &Room, need: &Need, kind: u128) -> u32 {
    let times = |has: u64, wants: u64| has.checked_div(wants).unwrap_or(u64::MAX);
    let gpus = times((room.gpus & kind).count_ones().into(), need.gpus.into());
    let many = times(room.cpu, need.cpu).min(times(room.memory, need.memory));
    u32::try_from(many.min(times(room.disk, need.disk)).min(gpus)).unwrap_or(u32::MAX)
}

/// Puts a task on a node that has room for it, now or soon, and returns the attempt.
pub(super) fn put(
    board: &mut Board,
    job: &Job,
    task: u32,
    id: usize,
    at: usize,
    now: Time,
) -> usize {
    let shape = &board.shapes[id];
    let node = &board.nodes[at];
    let room = node.carve(&shape.need, board.kind(shape, at));
    let waiting = &job.waiting;
    let task = Task {
        job: waiting.job,
        task,
        fence: 0,
        node: at,
        room,
        ports: shape.ports.clone(),
        party: waiting.party,
        class: waiting.spec.class,
        grace_ms: waiting.spec.grace_ms,
        preemptions: waiting.preemptions,
        gang: waiting.spec.gang,
        stopping: None,
        since: now,
        allotment: node.allotment(&room),
        shares: node.shares(&room),
    };
    board.claim(task)
}

/// The tasks that wait, those that need most first.
pub(super) fn by_need(board: &Board, job: &Job) -> Vec<(u32, usize)> {
    let tasks = job.waiting.tasks.iter();
    let mut tasks: Vec<(u32, usize)> =
        tasks.filter_map(|task| Some((*task, job.shape(*task)?))).collect();
    if job.shapes.len() > 1 {
        tasks.sort_by_key(|(task, shape)| (Reverse(board.shapes[*shape].need), *task));
    }
    tasks
}

/// All of them now, or none.
pub(super) fn put_all(
    board: &mut Board,
    job: &Job,
    tasks: &[(u32, usize)],
    wish: &Wish,
    now: Time,
) -> Option<Vec<usize>> {
    let mut wish = wish.clone();
    let mut placed = Vec::with_capacity(tasks.len());
    for &(task, shape) in tasks {
        let Some(node) = find(board, shape, &wish) else {
            take_back(board, &placed);
            return None;
        };
        placed.push(put(board, job, task, shape, node, now));
        wish.placed(node);
    }
    Some(placed)
}

/// Undoes [`put`].
pub(super) fn take_back(board: &mut Board, placed: &[usize]) {
    for slot in placed.iter().rev() {
        board.release(*slot);
    }
}

/// Whether a job could run on the nodes at hand if nothing else did: all of a gang, any task of others. Not counting
/// those that are `without`; then all tasks must find a node among the rest.
pub(super) fn could_run(board: &mut Board, job: &Job, without: &[usize]) -> bool {
    let waiting = &job.waiting;
    if waiting.tasks.is_empty() {
        return job.shapes.first().is_some_and(|id| board.is_possible(*id));
    }
    let mut shapes = waiting.tasks.iter().filter_map(|task| job.shape(*task));
    if !waiting.spec.gang && without.is_empty() {
        return shapes.any(|id| board.is_possible(id));
    }
    let tasks = by_need(board, job);
    let mut rooms: Vec<Room> = board.nodes.iter().map(Node::have).collect();
    for &at in without {
        rooms[at] = Room::default();
    }
    if waiting.spec.gang {
        return fit_all(board, &tasks, &mut rooms).is_some();
    }
    let mut shapes: Vec<usize> = shapes.collect();
    shapes.dedup();
    shapes.into_iter().all(|id| fit_all(board, &[(0, id)], &mut rooms.clone()).is_some())
}

/// Takes room for all of the tasks, first come first served, and tells on which nodes; `None` if it is too little.
/// For tasks of one shape, there is no other way if this finds none.
pub(super) fn fit_all(
    board: &Board,
    tasks: &[(u32, usize)],
    rooms: &mut [Room],
) -> Option<Vec<usize>> {
    let mut nodes = Vec::with_capacity(tasks.len());
    let mut from = (usize::MAX, 0);
    for &(_, id) in tasks {
        let shape = &board.shapes[id];
        let candidates = &board.sites[shape.site].candidates;
        // Where the last one of this shape found none, this one finds none.
        let mut at = if from.0 == id { from.1 } else { 0 };
        let node = loop {
            let node = candidates.get(at)?.node as usize;
            let kind = board.kind(shape, node);
            // A port is free once on each node.
            let port = !shape.ports.is_empty() && nodes.contains(&node);
            if rooms[node].fits(&shape.need, kind) && !port {
                let gpus = rooms[node].gpus & kind;
                // GPUs that somebody has now, before those that others could use meanwhile.
                let busy = first_bits(gpus & !board.nodes[node].now.gpus, shape.need.gpus);
                let idle = first_bits(gpus & !busy, shape.need.gpus - busy.count_ones());
                let Need { cpu, memory, disk, .. } = shape.need;
                rooms[node] = rooms[node].minus(&Room { cpu, memory, disk, gpus: busy | idle });
                break node;
            }
            at += 1;
        };
        from = (id, at);
        nodes.push(node);
    }
    Some(nodes)
}

/// A task that was placed and could use more than it got.
#[derive(Debug)]
pub(super) struct Growing {
    pub(super) slot: usize,
    most: Need,
    kind: u128,
    group: (bool, usize),
}

impl Growing {
    /// The attempt, if it could use more.
    pub(super) fn new(board: &Board, slot: usize, id: usize) -> Option<Self> {
        let (shape, task) = (&board.shapes[id], &board.tasks[slot]);
        let kind = board.kind(shape, task.node);
        let grows = shape.most != shape.need;
        grows.then_some(Self { slot, most: shape.most, kind, group: (task.gang, id) })
    }
}

/// Gives those that can use more what nobody else waits for: `wanted` says of which nodes somebody does.
///
/// Tasks of a gang get as many GPUs each as all of them can have: who trains in step gains nothing from one
/// that is faster.
pub(super) fn grow(board: &mut Board, growing: &[Growing], wanted: &[bool]) {
    let mut at = 0;
    while at < growing.len() {
        let first = &growing[at];
        let job = board.tasks[first.slot].job;
        let same = |other: &Growing| {
            first.group.0 && other.group == first.group && board.tasks[other.slot].job == job
        };
        let alike = 1 + growing[at + 1..].iter().take_while(|other| same(other)).count();
        let together = &growing[at..at + alike];
        while widen(board, together, wanted) {}
        for each in together {
            fill(board, each, wanted);
        }
        at += alike;
    }
}

/// One more GPU for each of them, if there are so many.
fn widen(board: &mut Board, together: &[Growing], wanted: &[bool]) -> bool {
    let mut given = Vec::new();
    for each in together {
        let task = &board.tasks[each.slot];
        let node = &board.nodes[task.node];
        let more = first_bits(node.now.gpus & each.kind, 1);
        if wanted[task.node] || more == 0 || task.room.gpus.count_ones() >= each.most.gpus {
            for (slot, bit) in given {
                board.give(slot, Room { gpus: bit, ..Room::default() }, true);
            }
            return false;
        }
        board.give(each.slot, Room { gpus: more, ..Room::default() }, false);
        given.push((each.slot, more));
    }
    true
}

/// As much of the rest as it can use.
fn fill(board: &mut Board, each: &Growing, wanted: &[bool]) {
    let task = &board.tasks[each.slot];
    if wanted[task.node] {
        return;
    }
    let node = &board.nodes[task.node];
    let more = |free: u64, has: u64, most: u64| most.saturating_sub(has).min(free);
    let cpu = more(node.now.cpu, task.room.cpu, each.most.cpu);
    let memory = more(node.now.memory, task.room.memory, each.most.memory);
    board.give(each.slot, Room { cpu, memory, ..Room::default() }, false);
}

/// Whether somebody waits for this job.
pub(super) fn is_trial(job: &Job) -> bool {
    job.waiting.spec.class == Class::Trial
}
