//! Whom a trial job may preempt: FitGpp.
//!
//! When a trial finds no room, of the best-effort tasks that would leave enough on their node the one goes that
//! minimises
//!
//! ```text
//! |D| / max |D|  +  s · GP / max GP
//! ```
//!
//! D is what the task has, relative to its node, and GP the grace that its author gave it; the maxima are over all
//! best-effort tasks that run. So small tasks with a short grace go first: the trial starts soon, and what it
//! interrupted finds a new place soon. The length |D| is Euclid's, over CPU, memory and GPUs.
//!
//! What the paper leaves open is decided so:
//!
//! - What ends anyway is used before anybody is asked to end: room that a stopping task leaves and that nobody was
//!   promised. Where there is some, there is no victim.
//! - Where no single victim is enough, several on one node go: cheapest first until it fits, less those that are not
//!   needed after all. The node with the smallest sum is taken.
//! - Tasks of a gang go together, and cost what they have together. A gang that *wants* several nodes may need several
//!   victims; all of them are found before any is asked.
//! - On its own nodes a party's work is not preempted by others: they are guests.
//! - A node of which something is kept for a job that has waited longer is left alone.

use std::collections::BTreeSet;

use mesh_consensus::id::JobId;
use mesh_consensus::time::Time;

use super::board::{Board, Room, Task};
use super::choose::{self, Wish};
use super::queue::Job;
use super::rank::Wanted;
use crate::job::Class;

/// Scores are counted in parts of this.
const ONE: u64 = 1 << 20;

/// What goes together: a task, or all of a gang.
#[derive(Debug, Clone, Copy)]
struct Unit {
    /// The attempt, or the first of the gang's.
    slot: usize,
    gang: Option<JobId>,
    score: u64,
}

/// Who could go, as of one job that wants room.
struct Field {
    units: Vec<Unit>,
    /// The unit of each attempt, if it may be preempted.
    unit_of: Vec<Option<u32>>,
}

/// What came of it: attempts that were placed, and attempts that were asked to end for them.
pub(super) struct Made {
    pub(super) placed: Vec<usize>,
    pub(super) victims: Vec<usize>,
}

/// Why no room was made.
pub(super) enum NoRoom {
    /// There is none to be had.
    Anywhere,
    /// There is, but not in this plan.
    InPlan,
}

/// Places all of the tasks, on what is free or becomes so, asking others to end where it must; or changes nothing.
/// Together they are at most `most` changes.
pub(super) fn make_room(
    board: &mut Board,
    job: &Job,
    tasks: &[(u32, usize)],
    wish: &Wish,
    now: Time,
    most: usize,
) -> Result<Made, NoRoom> {
    let mut maker = Maker {
        board,
        job,
        tasks,
        now,
        wish: wish.clone(),
        field: None,
        placed: Vec::new(),
        chosen: Vec::new(),
    };
    if !tasks.iter().all(|(task, shape)| maker.place(*task, *shape)) {
        maker.undo();
        return Err(NoRoom::Anywhere);
    }
    maker.spare();
    let victims = maker.victims();
    if maker.placed.len() + victims.len() > most {
        maker.undo();
        return Err(NoRoom::InPlan);
    }
    Ok(Made { placed: maker.placed, victims })
}

struct Maker<'a> {
    board: &'a mut Board,
    job: &'a Job,
    /// What is to be placed.
    tasks: &'a [(u32, usize)],
    now: Time,
    wish: Wish,
    field: Option<Field>,
    /// The attempts, in the order of `tasks`.
    placed: Vec<usize>,
    /// Units that were asked to end, in order.
    chosen: Vec<Unit>,
}

impl Maker<'_> {
    fn place(&mut self, task: u32, shape: usize) -> bool {
        let node = choose::find(self.board, shape, &self.wish)
            .or_else(|| self.find_soon(shape))
            .or_else(|| self.ask_one(shape))
            .or_else(|| self.ask_several(shape));
        let Some(node) = node else { return false };
        self.placed.push(choose::put(self.board, self.job, task, shape, node, self.now));
        self.wish.placed(node);
        true
    }

    /// The node that will have room first, without anybody being asked.
    fn find_soon(&self, id: usize) -> Option<usize> {
        let board = &*self.board;
        let shape = &board.shapes[id];
        let nodes = self
            .open_nodes(id)
            .filter(|&(at, _)| board.nodes[at].soon.fits(&shape.need, board.kind(shape, at)));
        let when = |at: usize| {
            board.nodes[at].tasks.iter().filter_map(|slot| board.tasks[*slot].stopping).max()
        };
        nodes.map(|(at, wanted)| (wanted, when(at), at)).min().map(|(.., at)| at)
    }

    /// Asks the one whose end makes enough room at the least cost.
    fn ask_one(&mut self, id: usize) -> Option<usize> {
        if self.board.settings.max_preemptions == 0 {
            return None;
        }
        self.look_around();
        let board = &*self.board;
        let field = self.field.as_ref()?;
        let shape = &board.shapes[id];
        let mut best = None;
        for (at, wanted) in self.open_nodes(id) {
            let node = &board.nodes[at];
            let kind = board.kind(shape, at);
            for &slot in &node.tasks {
                let Some(unit) = field.unit_of.get(slot).copied().flatten() else { continue };
                let key = (wanted, field.units[unit as usize].score, at, self.name(unit));
                if best.is_some_and(|(best, _)| best <= key) {
                    continue;
                }
                let freed = self.freed(&field.units[unit as usize], at);
                if node.soon.plus(&freed).fits(&shape.need, kind) {
                    best = Some((key, unit));
                }
            }
        }
        let ((_, _, at, _), unit) = best?;
        self.ask(unit);
        Some(at)
    }

    /// Asks several on one node, where one is not enough.
    fn ask_several(&mut self, id: usize) -> Option<usize> {
        let board = &*self.board;
        let field = self.field.as_ref()?;
        let shape = &board.shapes[id];
        type Cost = (Wanted, u64, usize, usize);
        let mut best: Option<(Cost, Vec<u32>)> = None;
        for (at, wanted) in self.open_nodes(id) {
            let node = &board.nodes[at];
            let kind = board.kind(shape, at);
            let units =
                node.tasks.iter().filter_map(|slot| field.unit_of.get(*slot).copied().flatten());
            let mut units: Vec<u32> = units.collect();
            units.sort_by_key(|unit| (field.units[*unit as usize].score, self.name(*unit)));
            units.dedup();
            let mut room = node.soon;
            let mut asked = Vec::new();
            for unit in units {
                room = room.plus(&self.freed(&field.units[unit as usize], at));
                asked.push(unit);
                if room.fits(&shape.need, kind) {
                    break;
                }
            }
            if !room.fits(&shape.need, kind) {
                continue;
            }
            // The dearest that can stay, stay.
            for n in (0..asked.len()).rev() {
                let rest = asked.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, unit)| unit);
                let room = rest.fold(node.soon, |room, unit| {
                    room.plus(&self.freed(&field.units[*unit as usize], at))
                });
                if room.fits(&shape.need, kind) {
                    asked.remove(n);
                }
            }
            let cost = asked.iter().map(|unit| field.units[*unit as usize].score).sum();
            let key = (wanted, cost, asked.len(), at);
            if best.as_ref().is_none_or(|(best, _)| key < *best) {
                best = Some((key, asked));
            }
        }
        let ((.., at), units) = best?;
        units.into_iter().for_each(|unit| self.ask(unit));
        Some(at)
    }

    /// The nodes on which something may be promised, and how they are wanted.
    fn open_nodes(&self, id: usize) -> impl Iterator<Item = (usize, Wanted)> {
        let board = &*self.board;
        let shape = &board.shapes[id];
        let candidates = board.sites[shape.site].candidates.iter().map(|each| each.node as usize);
        let open = candidates.filter(move |at| {
            let node = &board.nodes[*at];
            node.held_for.is_none()
                && node.has_ports(&shape.ports)
                && !self.wish.shunned.contains(at)
        });
        open.map(move |at| (at, self.wish.wanted(at, || 1)))
    }

    /// What tells two units apart that cost the same.
    fn name(&self, unit: u32) -> Option<(JobId, u32)> {
        let unit = &self.field.as_ref()?.units[unit as usize];
        let task = &self.board.tasks[unit.slot];
        Some((task.job, task.task))
    }

    /// What a unit would leave on a node.
    fn freed(&self, unit: &Unit, at: usize) -> Room {
        let Some(job) = unit.gang else { return self.board.tasks[unit.slot].room };
        let tasks = self.board.attempts_of(job).map(|slot| &self.board.tasks[slot]);
        let there = tasks.filter(|task| task.node == at && task.stopping.is_none());
        there.fold(Room::default(), |room, task| room.plus(&task.room))
    }

    fn slots(&self, unit: &Unit) -> Vec<usize> {
        match unit.gang {
            Some(job) => self.board.attempts_of(job).collect(),
            None => vec![unit.slot],
        }
    }

    fn ask(&mut self, unit: u32) {
        let Some(field) = &self.field else { return };
        let unit = field.units[unit as usize];
        let slots = self.slots(&unit);
        if let Some(field) = &mut self.field {
            slots.iter().for_each(|slot| field.unit_of[*slot] = None);
        }
        self.ask_all(&slots);
        self.chosen.push(unit);
    }

    fn ask_all(&mut self, slots: &[usize]) {
        for &slot in slots {
            let until = self.board.tasks[slot].end_by(self.now);
            self.board.ask_to_end(slot, until);
        }
    }

    /// Whoever was asked for an earlier task and is not needed any more goes on, the dearest first.
    fn spare(&mut self) {
        if self.placed.len() == 1 {
            return;
        }
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.sort_by_key(|unit| (unit.score, self.board.tasks[unit.slot].job));
        for unit in chosen.into_iter().rev() {
            if !self.does_without(&unit) {
                self.chosen.push(unit);
            }
        }
        self.chosen.reverse();
    }

    /// Whether a unit can go on after all, if what was placed where it runs moves to what others leave.
    fn does_without(&mut self, unit: &Unit) -> bool {
        let slots = self.slots(unit);
        let there: BTreeSet<usize> =
            slots.iter().map(|slot| self.board.tasks[*slot].node).collect();
        let placed = self.placed.iter().enumerate();
        let moves: Vec<usize> = placed
            .filter(|(_, slot)| there.contains(&self.board.tasks[**slot].node))
            .map(|(n, _)| n)
            .collect();
        let moved: Vec<Task> = moves.iter().map(|n| self.board.release(self.placed[*n])).collect();
        let stays = self.board.let_all_go_on(&slots, self.now);
        let mut again = Vec::new();
        let done = stays
            && moves.iter().all(|n| {
                let (task, shape) = self.tasks[*n];
                let node =
                    choose::find(self.board, shape, &self.wish).or_else(|| self.find_soon(shape));
                again.extend(
                    node.map(|at| choose::put(self.board, self.job, task, shape, at, self.now)),
                );
                node.is_some()
            });
        if done {
            moves.iter().zip(again).for_each(|(n, slot)| self.placed[*n] = slot);
            return true;
        }
        choose::take_back(self.board, &again);
        if stays {
            self.ask_all(&slots);
        }
        // All as it was, with the same GPUs.
        for (n, task) in moves.into_iter().zip(moved) {
            self.placed[n] = self.board.claim(task);
        }
        false
    }

    fn victims(&self) -> Vec<usize> {
        self.chosen.iter().flat_map(|unit| self.slots(unit)).collect()
    }

    fn undo(&mut self) {
        choose::take_back(self.board, &std::mem::take(&mut self.placed));
        for slot in self.victims() {
            self.board.let_go_on(slot);
        }
    }

    /// Finds out who could go, and at what cost.
    fn look_around(&mut self) {
        if self.field.is_none() {
            self.field = Some(Field::new(self.board, self.job));
        }
    }
}

impl Field {
    fn new(board: &Board, job: &Job) -> Self {
        let mut field = Field { units: Vec::new(), unit_of: vec![None; board.tasks.bound()] };
        let (mut longest, mut largest) = (1, 1);
        let mut sizes: Vec<(u64, u64)> = Vec::new();
        for node in &board.nodes {
            for &slot in &node.tasks {
                let task = &board.tasks[slot];
                if task.class != Class::BestEffort || task.stopping.is_some() {
                    continue;
                }
                let gang = task.gang.then_some(task.job);
                if gang.is_some() && board.attempts_of(task.job).next() != Some(slot) {
                    continue;
                }
                let unit = Unit { slot, gang, score: 0 };
                let (size, grace) = field.weigh(board, &unit);
                (largest, longest) = (largest.max(size), longest.max(grace));
                if field.may_go(board, job, &unit) {
                    field.units.push(unit);
                    sizes.push((size, grace));
                }
            }
        }
        let weight = u64::from(board.settings.grace_weight);
        for (unit, (size, grace)) in field.units.iter_mut().zip(sizes) {
            let part = |part: u64, whole: u64| {
                (u128::from(part) * u128::from(ONE) / u128::from(whole)) as u64
            };
            unit.score =
                part(size, largest).saturating_add(part(grace, longest).saturating_mul(weight));
        }
        for (number, unit) in field.units.iter().enumerate() {
            let number = u32::try_from(number).ok();
            match unit.gang {
                None => field.unit_of[unit.slot] = number,
                Some(job) => board.attempts_of(job).for_each(|slot| field.unit_of[slot] = number),
            }
        }
        field
    }

    /// Its size, and its grace.
    fn weigh(&self, board: &Board, unit: &Unit) -> (u64, u64) {
        let length = |[a, b, c]: [u64; 3]| (a * a + b * b + c * c).isqrt();
        let first = &board.tasks[unit.slot];
        let Some(job) = unit.gang else { return (length(first.shares), first.grace_ms) };
        let all = board.attempts_of(job).map(|slot| board.tasks[slot].shares);
        let sum = all.fold([0; 3], |sum: [u64; 3], each| {
            std::array::from_fn(|n| sum[n].saturating_add(each[n]).min(1 << 31))
        });
        (length(sum), first.grace_ms)
    }

    /// Whether it may be preempted for this job.
    fn may_go(&self, board: &Board, job: &Job, unit: &Unit) -> bool {
        let may = |slot: usize| {
            let task = &board.tasks[slot];
            let owner = board.nodes[task.node].offer.party;
            let at_home = task.party == owner && job.waiting.party != owner;
            task.preemptions < board.settings.max_preemptions
                && task.stopping.is_none()
                && task.class == Class::BestEffort
                && !at_home
        };
        match unit.gang {
            None => may(unit.slot),
            Some(job) => board.attempts_of(job).all(may),
        }
    }
}
