//! The board: what is where, in a form from which the next decision can be made quickly.
//!
//! [`Board::of`] sets it up from a [`View`], and [`super::plan`] asks it once. A simulation keeps one and tells it what
//! happens: a plan leaves the board as it is once the plan has been carried out, so that a million events do not
//! set up a million boards. Both give the same plans, and a test holds them to it.
//!
//! **What is free.** An attempt has its allotment from the entry that places it until it has ended. One that was asked
//! to end (*stopping*) still has it, for as long as its grace lasts, and yet somebody may have been placed on its node
//! because of that. So a node's room is counted twice:
//!
//! ```text
//! now  = total − (attempts that were not asked to end) − (attempts that were)     start at once
//! soon = total − (attempts that were not asked to end)                            start when those have ended
//! ```
//!
//! Whoever is placed counts among the first kind from that moment on, whether it runs yet or waits for a victim to end.
//! Therefore what a victim leaves is promised once: a second preemptor finds `soon` smaller by what the first was
//! promised. And nothing is over-committed: attempts of the first kind never have more than the node has, and the
//! node starts one when it fits beside everything that still runs there.

use std::collections::{BTreeMap, VecDeque};

use mesh_consensus::id::{JobId, NodeId, PartyId};
use mesh_consensus::time::Time;

use super::queue::Queue;
use super::rank;
use super::shape::{Interned, Kind, Need, Shape, ShapeKey, Site};
use super::shares::{self, Account};
use super::view::{Gpu, MAX_GPUS, Offer, Running, Settings, View, Waiting};
use crate::job::{Allotment, Class};
use crate::state::name::Name;

/// So many of the places where room has appeared are remembered one by one.
const MAX_FREED: usize = 64;

/// What is where. See the module.
#[derive(Debug)]
pub struct Board {
    pub(super) settings: Settings,
    /// By id, so that of two that are alike the lower id comes first.
    pub(super) nodes: Vec<Node>,
    by_id: BTreeMap<NodeId, usize>,
    pub(super) tasks: Slab<Task>,
    by_task: BTreeMap<(JobId, u32), usize>,
    pub(super) queue: Queue,
    pub(super) shapes: Interned<ShapeKey, Shape>,
    pub(super) sites: Interned<Vec<u8>, Site>,
    pub(super) kinds: Interned<Vec<u8>, Kind>,
    pub(super) accounts: BTreeMap<PartyId, Account>,
    pub(super) names: BTreeMap<PartyId, Name>,
    /// Whether plans say why jobs were left.
    pub(super) tells: bool,
    /// If they do: the jobs that the last one considered, in order.
    pub(super) seen: Vec<JobId>,
    /// Goes up whenever there is more room somewhere than there was.
    pub(super) epoch: u64,
    /// Where that was, and at which epoch; the oldest are forgotten.
    pub(super) freed: VecDeque<(u64, usize)>,
    /// The last epoch that was forgotten.
    pub(super) forgotten: u64,
    /// Nodes of which something is held for a job.
    held: Vec<usize>,
}

/// A part of a node. GPUs are bits: their order is that of [`Node::gpus`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Room {
    pub(super) cpu: u64,
    pub(super) memory: u64,
    pub(super) disk: u64,
    pub(super) gpus: u128,
}

impl Room {
    /// Whether it has what is needed, with GPUs out of `kind`.
    #[inline]
    pub(super) fn fits(&self, need: &Need, kind: u128) -> bool {
        self.cpu >= need.cpu
            && self.memory >= need.memory
            && self.disk >= need.disk
            && (need.gpus == 0 || (self.gpus & kind).count_ones() >= need.gpus)
    }

    pub(super) fn plus(&self, more: &Room) -> Room {
        Room {
            cpu: self.cpu.saturating_add(more.cpu),
            memory: self.memory.saturating_add(more.memory),
            disk: self.disk.saturating_add(more.disk),
            gpus: self.gpus | more.gpus,
        }
    }

    pub(super) fn minus(&self, less: &Room) -> Room {
        Room {
            cpu: self.cpu.saturating_sub(less.cpu),
            memory: self.memory.saturating_sub(less.memory),
            disk: self.disk.saturating_sub(less.disk),
            gpus: self.gpus & !less.gpus,
        }
    }

    /// What both have.
    pub(super) fn common(&self, other: &Room) -> Room {
        Room {
            cpu: self.cpu.min(other.cpu),
            memory: self.memory.min(other.memory),
            disk: self.disk.min(other.disk),
            gpus: self.gpus & other.gpus,
        }
    }

    /// Whether all of `other` is in it.
    pub(super) fn holds(&self, other: &Room) -> bool {
        self.cpu >= other.cpu
            && self.memory >= other.memory
            && self.disk >= other.disk
            && self.gpus & other.gpus == other.gpus
    }
}

/// A member on the board.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) offer: Offer,
    /// Its GPUs, those with little memory first: they are given away first.
    pub(super) gpus: Vec<Gpu>,
    /// All that it has, broken GPUs included.
    pub(super) total: Room,
    /// GPUs with which nothing is wrong.
    pub(super) usable: u128,
    /// What attempts have that were not asked to end. Never more than `total`, unless the node has shrunk.
    claimed: Room,
    /// What attempts have that were.
    leaving: Room,
    /// What is kept for a job that has waited for long, while this plan is made.
    held: Room,
    /// For which one.
    pub(super) held_for: Option<JobId>,
    /// See the module. Both follow from the above.
    pub(super) now: Room,
    pub(super) soon: Room,
    /// Its attempts, the oldest first.
    pub(super) tasks: Vec<usize>,
    /// Ports that attempts have by number.
    ports: BTreeMap<u16, u32>,
}

impl Node {
    fn new(offer: Offer) -> Self {
        let mut gpus = offer.gpus.clone();
        gpus.sort_by_key(|gpu| (gpu.memory_mib, gpu.uuid));
        gpus.truncate(MAX_GPUS);
        let bits = |is: &dyn Fn(&Gpu) -> bool| {
            let bits = gpus.iter().enumerate().filter(|(_, gpu)| is(gpu));
            bits.fold(0u128, |mask, (bit, _)| mask | 1 << bit)
        };
        let total = Room {
            cpu: offer.cpu_milli,
            memory: offer.memory_bytes,
            disk: offer.disk_bytes,
            gpus: bits(&|_| true),
        };
        let usable = bits(&|gpu| gpu.healthy && gpu.free);
        let mut node = Self {
            offer,
            gpus,
            total,
            usable,
            claimed: Room::default(),
            leaving: Room::default(),
            held: Room::default(),
            held_for: None,
            now: Room::default(),
            soon: Room::default(),
            tasks: Vec::new(),
            ports: BTreeMap::new(),
        };
        node.refresh();
        node
    }

    /// What it could give away if nothing ran there.
    pub(super) fn have(&self) -> Room {
        Room { gpus: self.usable, ..self.total }
    }

    /// What would be free now if nothing were held.
    pub(super) fn unheld(&self) -> Room {
        self.soon.minus(&self.leaving)
    }

    fn refresh(&mut self) {
        self.soon = self.have().minus(&self.claimed);
        self.now = self.unheld().minus(&self.held);
    }

    /// Whether it can be given work at all.
    pub(super) fn is_present(&self) -> bool {
        self.offer.away.is_none() && !self.offer.drained
    }

    /// The GPUs by their UUIDs, as bits.
    fn bits(&self, uuids: &[[u8; 16]]) -> u128 {
        let bit = |uuid: &[u8; 16]| self.gpus.iter().position(|gpu| gpu.uuid == *uuid);
        uuids.iter().filter_map(bit).fold(0, |mask, bit| mask | 1 << bit)
    }

    /// The room as a task is given it.
    pub(super) fn allotment(&self, room: &Room) -> Allotment {
        let mut gpus = Vec::with_capacity(room.gpus.count_ones() as usize);
        let mut bits = room.gpus;
        while bits != 0 {
            gpus.push(self.gpus[bits.trailing_zeros() as usize].uuid);
            bits &= bits - 1;
        }
        gpus.sort_unstable();
        let Room { cpu: cpu_milli, memory: memory_bytes, disk: disk_bytes, .. } = *room;
        Allotment { cpu_milli, memory_bytes, disk_bytes, gpus }
    }

    /// What a task needs as a room of this node, with the GPUs that are free now before those that are not yet.
    pub(super) fn carve(&self, need: &Need, kind: u128) -> Room {
        let free = first_bits(self.now.gpus & kind, need.gpus);
        let later = first_bits(self.soon.gpus & kind & !free, need.gpus - free.count_ones());
        Room { cpu: need.cpu, memory: need.memory, disk: need.disk, gpus: free | later }
    }

    /// Whether nobody has one of these ports.
    pub(super) fn has_ports(&self, ports: &[u16]) -> bool {
        ports.iter().all(|port| !self.ports.contains_key(port))
    }

    /// How much of it is given away, of 2^16: relative to what it has, for each of CPU, memory and GPUs.
    pub(super) fn shares(&self, room: &Room) -> [u64; 3] {
        let share = |part: u64, whole: u64| {
            let share = u128::from(part) * (1 << 16) / u128::from(whole.max(1));
            u64::try_from(share).unwrap_or(u64::MAX).min(1 << 20)
        };
        [
            share(room.cpu, self.total.cpu),
            share(room.memory, self.total.memory),
            share(room.gpus.count_ones().into(), self.gpus.len() as u64),
        ]
    }
}

/// The `count` lowest bits of `mask`.
pub(super) fn first_bits(mask: u128, count: u32) -> u128 {
    let (mut left, mut taken) = (mask, 0);
    for _ in 0..count {
        let bit = left & left.wrapping_neg();
        taken |= bit;
        left ^= bit;
    }
    taken
}

/// An attempt on the board.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) job: JobId,
    pub(super) task: u32,
    pub(super) fence: u64,
    pub(super) node: usize,
    pub(super) room: Room,
    pub(super) ports: Vec<u16>,
    pub(super) party: PartyId,
    pub(super) class: Class,
    pub(super) grace_ms: u64,
    pub(super) preemptions: u32,
    pub(super) gang: bool,
    pub(super) stopping: Option<Time>,
    pub(super) since: Time,
    /// See [`shares::rate`] and [`Node::shares`].
    pub(super) allotment: Allotment,
    pub(super) shares: [u64; 3],
}

impl Task {
    /// When its grace is over if it is asked to end now.
    pub(super) fn end_by(&self, now: Time) -> Time {
        Time(now.0.saturating_add(self.grace_ms))
    }

    /// Attempts are kept in this order.
    pub(super) fn age(&self) -> (Time, JobId, u32) {
        (self.since, self.job, self.task)
    }
}

impl Board {
    /// The board that a view shows.
    pub fn of(view: &View) -> Self {
        let mut offers: Vec<&Offer> = view.offers.iter().collect();
        offers.sort_by_key(|offer| offer.node);
        offers.dedup_by_key(|offer| offer.node);
        let nodes: Vec<Node> = offers.into_iter().map(|offer| Node::new(offer.clone())).collect();
        let by_id = nodes.iter().enumerate().map(|(at, node)| (node.offer.node, at)).collect();
        let accounts = view.parties.iter().map(|party| (party.party, Account::of(Some(party))));
        let names = view.parties.iter().map(|party| (party.party, party.name.clone()));
        let mut board = Self {
            settings: view.settings,
            nodes,
            by_id,
            tasks: Slab::default(),
            by_task: BTreeMap::new(),
            queue: Queue::default(),
            shapes: Interned::default(),
            sites: Interned::default(),
            kinds: Interned::default(),
            accounts: accounts.collect(),
            names: names.collect(),
            tells: false,
            seen: Vec::new(),
            epoch: 0,
            freed: VecDeque::new(),
            forgotten: 0,
            held: Vec::new(),
        };
        let mut running: Vec<&Running> = view.running.iter().collect();
        running.sort_by_key(|attempt| (attempt.since, attempt.job, attempt.task));
        running.into_iter().for_each(|attempt| board.run(attempt));
        let mut waiting: Vec<&Waiting> = view.waiting.iter().collect();
        waiting.sort_by_key(|job| (job.index, job.job));
        waiting.into_iter().for_each(|job| board.wait(job.clone()));
        board
    }

    /// A job waits, or waits with other tasks than before.
    pub fn wait(&mut self, waiting: Waiting) {
        self.forget(waiting.job);
        // Whoever stands in line can be compared.
        self.account(waiting.party);
        let shapes = self.shapes_of(&waiting);
        self.queue.insert(waiting, shapes);
    }

    /// A job waits no more.
    pub fn forget(&mut self, job: JobId) {
        if let Some(job) = self.queue.remove(job) {
            self.drop_shapes(&job.shapes);
        }
    }

    /// An attempt has ended.
    pub fn end(&mut self, job: JobId, task: u32, now: Time) {
        let Some(&slot) = self.by_task.get(&(job, task)) else { return };
        let task = self.release(slot);
        let used = shares::points(&task.allotment, now.since(task.since));
        self.account(task.party).charge(now, used);
    }

    /// An attempt is asked to end, and will have by `until`. Plans say so of their own victims; this is for others.
    pub fn stop(&mut self, job: JobId, task: u32, until: Time) {
        if let Some(&slot) = self.by_task.get(&(job, task)) {
            self.ask_to_end(slot, until);
        }
    }

    /// What takes part in a job's line: see [`Queue`].
    pub fn is_waiting(&self, job: JobId) -> bool {
        self.queue.find(job).is_some()
    }

    fn run(&mut self, attempt: &Running) {
        let Running { job, task, fence, node, .. } = *attempt;
        // Of a node that is not in the view nothing is known, so nothing is decided: when a member is removed, the
        // state itself sees to what it had.
        let Some(&at) = self.by_id.get(&node) else { return };
        let allotment = &attempt.allotment;
        let room = Room {
            cpu: allotment.cpu_milli,
            memory: allotment.memory_bytes,
            disk: allotment.disk_bytes,
            gpus: self.nodes[at].bits(&allotment.gpus),
        };
        self.claim(Task {
            job,
            task,
            fence,
            node: at,
            room,
            ports: attempt.ports.clone(),
            party: attempt.party,
            class: attempt.class,
            grace_ms: attempt.grace_ms,
            preemptions: attempt.preemptions,
            gang: attempt.gang,
            stopping: attempt.stopping,
            since: attempt.since,
            allotment: allotment.clone(),
            shares: self.nodes[at].shares(&room),
        });
    }

    /// What a party has, and may have.
    pub(super) fn account(&mut self, party: PartyId) -> &mut Account {
        self.accounts.entry(party).or_insert_with(|| Account::of(None))
    }

    /// The attempt at a task.
    pub(super) fn attempt(&self, job: JobId, task: u32) -> Option<usize> {
        self.by_task.get(&(job, task)).copied()
    }

    /// The attempts of a job, by number.
    pub(super) fn attempts_of(&self, job: JobId) -> impl Iterator<Item = usize> {
        self.by_task.range((job, 0)..=(job, u32::MAX)).map(|(_, slot)| *slot)
    }

    /// Puts an attempt on the board.
    pub(super) fn claim(&mut self, task: Task) -> usize {
        let account = self.account(task.party);
        account.begin(&task.allotment, task.since);
        if task.stopping.is_none() {
            account.hold(task.room.cpu, task.room.gpus.count_ones());
        }
        let node = &mut self.nodes[task.node];
        let kind = if task.stopping.is_some() { &mut node.leaving } else { &mut node.claimed };
        *kind = kind.plus(&task.room);
        for port in &task.ports {
            *node.ports.entry(*port).or_default() += 1;
        }
        node.refresh();
        let key = (task.job, task.task);
        let (at, age) = (task.node, task.age());
        let slot = self.tasks.insert(task);
        let list = &mut self.nodes[at].tasks;
        let older = list.iter().rposition(|other| self.tasks[*other].age() < age);
        list.insert(older.map_or(0, |last| last + 1), slot);
        self.by_task.insert(key, slot);
        slot
    }

    /// Takes an attempt off the board.
    pub(super) fn release(&mut self, slot: usize) -> Task {
        let task = self.tasks.remove(slot);
        self.by_task.remove(&(task.job, task.task));
        let account = self.account(task.party);
        account.end(&task.allotment, task.since);
        if task.stopping.is_none() {
            account.let_go(task.room.cpu, task.room.gpus.count_ones());
        }
        let node = &mut self.nodes[task.node];
        let kind = if task.stopping.is_some() { &mut node.leaving } else { &mut node.claimed };
        *kind = kind.minus(&task.room);
        for port in &task.ports {
            if let Some(count) = node.ports.get_mut(port) {
                *count -= 1;
                if *count == 0 {
                    node.ports.remove(port);
                }
            }
        }
        node.tasks.retain(|other| *other != slot);
        node.refresh();
        self.touch(task.node);
        task
    }

    pub(super) fn ask_to_end(&mut self, slot: usize, until: Time) {
        let task = &mut self.tasks[slot];
        if task.stopping.replace(until).is_some() {
            return;
        }
        let (party, room) = (task.party, task.room);
        let node = &mut self.nodes[task.node];
        node.claimed = node.claimed.minus(&room);
        node.leaving = node.leaving.plus(&room);
        node.refresh();
        self.account(party).let_go(room.cpu, room.gpus.count_ones());
    }

    /// Undoes [`Board::ask_to_end`].
    pub(super) fn let_go_on(&mut self, slot: usize) {
        let task = &mut self.tasks[slot];
        if task.stopping.take().is_none() {
            return;
        }
        let (party, room) = (task.party, task.room);
        let node = &mut self.nodes[task.node];
        node.leaving = node.leaving.minus(&room);
        node.claimed = node.claimed.plus(&room);
        node.refresh();
        self.account(party).hold(room.cpu, room.gpus.count_ones());
    }

    /// Gives an attempt more of its node, or takes it back.
    pub(super) fn give(&mut self, slot: usize, more: Room, back: bool) {
        let mut task = self.release(slot);
        task.room = if back { task.room.minus(&more) } else { task.room.plus(&more) };
        let node = &self.nodes[task.node];
        task.allotment = node.allotment(&task.room);
        task.shares = node.shares(&task.room);
        let again = self.claim(task);
        debug_assert_eq!(again, slot, "the number that was given back last is the next");
    }

    /// Whether an attempt that was asked to end could stay: nobody has been promised what it has.
    fn could_stay(&self, slot: usize) -> bool {
        let task = &self.tasks[slot];
        self.nodes[task.node].soon.holds(&task.room)
    }

    /// Undoes [`Board::ask_to_end`] for all of them, if all can stay, or for none. Whether it did.
    pub(super) fn let_all_go_on(&mut self, slots: &[usize], now: Time) -> bool {
        for (count, &slot) in slots.iter().enumerate() {
            if self.could_stay(slot) {
                self.let_go_on(slot);
                continue;
            }
            for &slot in &slots[..count] {
                self.ask_to_end(slot, self.tasks[slot].end_by(now));
            }
            return false;
        }
        true
    }

    /// Keeps of a node what is beyond `left`, until the next plan.
    pub(super) fn hold(&mut self, at: usize, left: &Room, job: JobId) {
        let node = &mut self.nodes[at];
        node.held = node.now.minus(left);
        node.held_for = Some(job);
        node.refresh();
        self.held.push(at);
    }

    /// Everything that was held is free again.
    pub(super) fn drop_holds(&mut self) {
        for at in std::mem::take(&mut self.held) {
            let node = &mut self.nodes[at];
            node.held = Room::default();
            node.held_for = None;
            node.refresh();
            self.touch(at);
        }
    }

    /// There is more room on a node than there was.
    fn touch(&mut self, node: usize) {
        self.epoch += 1;
        self.freed.push_back((self.epoch, node));
        if self.freed.len() > MAX_FREED
            && let Some((epoch, _)) = self.freed.pop_front()
        {
            self.forgotten = epoch;
        }
    }

    /// The shapes of a job's groups, in order.
    fn shapes_of(&mut self, waiting: &Waiting) -> Vec<usize> {
        let spec = &waiting.spec;
        (0..spec.groups.len()).map(|group| self.shape_of(waiting, group)).collect()
    }

    fn shape_of(&mut self, waiting: &Waiting, group: usize) -> usize {
        let Self { nodes, names, sites, kinds, shapes, .. } = self;
        let site =
            sites.enter(Site::key(waiting, group), || Site::new(waiting, group, nodes, names));
        let group = &waiting.spec.groups[group];
        let ask = group.resources.gpus.as_ref();
        let kind = ask.map(|ask| kinds.enter(Kind::key(ask), || Kind::new(ask, nodes)));
        let (need, most) = (Need::least(&group.resources), Need::most(&group.resources));
        // A container has its ports for itself.
        let shared = group.ports.values().filter(|_| group.image.is_none());
        let ports: Vec<u16> = shared.copied().flatten().collect();
        let key = (site, kind, need, most, ports.clone());
        shapes.enter(key, || Shape { site, kind, need, most, ports, failed: None, possible: None })
    }

    pub(super) fn drop_shapes(&mut self, shapes: &[usize]) {
        for &shape in shapes {
            let Shape { site, kind, .. } = self.shapes[shape];
            // One for each that enters: the others that share it have their own.
            self.shapes.leave(shape);
            self.sites.leave(site);
            if let Some(kind) = kind {
                self.kinds.leave(kind);
            }
        }
    }

    /// Which GPUs of a node are of the kind that a shape needs.
    #[inline]
    pub(super) fn kind(&self, shape: &Shape, node: usize) -> u128 {
        shape.kind.map_or(0, |kind| self.kinds[kind].masks[node])
    }

    /// Whether there is a node at hand that could take a task of this shape if nothing else ran there.
    pub(super) fn is_possible(&mut self, id: usize) -> bool {
        if let Some(known) = self.shapes[id].possible {
            return known;
        }
        let shape = &self.shapes[id];
        let candidates = &self.sites[shape.site].candidates;
        let fits = |candidate: &rank::Candidate| {
            let at = candidate.node as usize;
            self.nodes[at].have().fits(&shape.need, self.kind(shape, at))
        };
        let possible = candidates.iter().any(fits);
        self.shapes[id].possible = Some(possible);
        possible
    }
}

/// Things by number; numbers are used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    empty: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), empty: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, thing: T) -> usize {
        match self.empty.pop() {
            Some(slot) => {
                self.slots[slot] = Some(thing);
                slot
            }
            None => {
                self.slots.push(Some(thing));
                self.slots.len() - 1
            }
        }
    }

    pub(super) fn remove(&mut self, slot: usize) -> T {
        self.empty.push(slot);
        self.slots[slot].take().expect("who has a number has not removed it")
    }

    /// No number is as large.
    pub(super) fn bound(&self) -> usize {
        self.slots.len()
    }
}

impl<T> std::ops::Index<usize> for Slab<T> {
    type Output = T;

    fn index(&self, slot: usize) -> &T {
        self.slots[slot].as_ref().expect("who has a number has not removed it")
    }
}

impl<T> std::ops::IndexMut<usize> for Slab<T> {
    fn index_mut(&mut self, slot: usize) -> &mut T {
        self.slots[slot].as_mut().expect("who has a number has not removed it")
    }
}
