//! The planner: which task goes where, and who has to make room.
//!
//! [`plan`] looks at one [`View`] and answers with one [`Plan`], which becomes one entry of the log: placements and
//! victims together, so that nobody is ever asked to end for somebody who then does not start. It is pure. Time is in
//! the view, nothing is random, ties go to the lower id, and the order of the lists does not matter: the same
//! view gives the same plan, so a decision can be explained ([`explain()`]) and replayed long after it was made.
//!
//! ```text
//!  View ──► Board ──► the line ──► for each job in turn:
//!  view.rs  board.rs  queue.rs       feasible.rs   which nodes may run it at all
//!                     shares.rs      rank.rs       which of them is best
//!                                    choose.rs     take it, gangs whole
//!                                    victims.rs    a trial without room: FitGpp
//!                                    reserve.rs    has waited too long: keep a place for it
//! ```
//!
//! The rules, each in its file; here is what they come to:
//!
//! - **Order.** Trial before best-effort, higher priority before lower. Within both, first who was interrupted; then
//!   parties take turns by what they have used for their weight, and each party's jobs go as they came. `queue.rs`
//! - **Overtaking.** A job that does not fit holds nobody up at first. When it has waited for the patience of the
//!   settings, a place is kept for it that nobody behind it gets; it starts within a bound. `reserve.rs` A job that
//!   no node at hand could run holds nobody up, ever.
//! - **Gangs** are placed whole, in one plan, or not at all. So no two of them can each hold half of what both need.
//! - **Preemption.** A trial that finds no room takes it from best-effort tasks, if then it has a place for certain.
//!   It is placed at once, on what its victims still have, and its node starts it when they have ended. `victims.rs`
//! - **Ranges.** A task gets the least that it asks for; what is left over when everybody has been considered, and that
//!   nobody waits for, goes to those that were placed and can use it. `choose.rs`
//! - **Lost nodes.** A task whose node has been away for long is lost, and waits again. A node that is away gets nothing
//!   new. Of a node that is not in the view nothing is decided.
//!
//! When nothing waits there is nothing to order and nothing to keep: one look at the nodes that fit, and it is placed.

mod board;
mod choose;
pub mod explain;
mod feasible;
mod queue;
mod rank;
mod reserve;
mod shape;
pub mod shares;
mod victims;
pub mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::time::Time;

pub use board::Board;
pub use explain::{Explanation, explain, is_impossible};
pub use feasible::{Reason, What};
pub use rank::bytes_to_fetch;
pub use shares::{Quota, Standing, Usage};
pub use view::{Gpu, Offer, Running, Settings, View, Waiting};

use crate::job::Allotment;
use choose::{Growing, Wish};
use queue::{Job, Walk};
use victims::NoRoom;

/// What is to be done: one entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct Plan {
    /// Tasks that get a place.
    pub places: Vec<Placement>,
    /// Attempts that are asked to end so that others have room. Each is for a job in `places`.
    pub victims: Vec<Victim>,
    /// Attempts whose node is gone.
    pub lost: Vec<Lost>,
    /// Jobs with tasks that did not get a place, in the order in which they were considered.
    pub left: Vec<Left>,
    /// Whether there is more to do: a plan has a bound. Ask again once this one counts.
    pub more: bool,
    /// When there may be something to do although nothing has happened.
    pub again_at: Option<Time>,
}

/// A task that gets a place. Its node starts it when it fits beside what still runs there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Of which job.
    pub job: JobId,
    /// Which task of it. For an `each` job that was never placed they are counted from 0.
    pub task: u32,
    /// Where.
    pub node: NodeId,
    /// With what.
    pub allotment: Allotment,
}

/// An attempt that makes room. Of a gang, all are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// Its fence.
    pub fence: u64,
    /// For whom.
    pub for_job: JobId,
}

/// An attempt whose node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// Its fence.
    pub fence: u64,
}

/// A job with tasks that did not get a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Which one.
    pub job: JobId,
    /// Why.
    pub why: Why,
}

/// Why a job did not get a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is not to be tried before.
    NotBefore(Time),
    /// Tasks of the gang have not ended yet since it was last placed.
    Ending,
    /// Its party has what it may have.
    Quota,
    /// There is no room for it now.
    NoRoom,
    /// There is none, and a place is kept for it.
    Reserved,
    /// No node at hand could run it.
    NoNode,
    /// The line is strict, and somebody before it has no room. Not listed in a plan: nobody looked at it.
    Behind,
    /// The plan is full; the next one will look at it.
    NextPlan,
}

impl Plan {
    fn changes(&self) -> usize {
        self.places.len() + self.victims.len() + self.lost.len()
    }

    fn look_again(&mut self, at: Time) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

/// Plans. See the module.
pub fn plan(view: &View) -> Plan {
    let mut board = Board::of(view);
    board.tells = true;
    board.plan(view.now)
}

impl Board {
    /// Plans, and leaves the board as it is when the plan has been carried out. The fences of what it places are not
    /// known here: they are 0.
    pub fn plan(&mut self, now: Time) -> Plan {
        self.drop_holds();
        self.accounts.values_mut().for_each(|account| account.settle(now));
        let mut planning = Planning {
            board: self,
            now,
            plan: Plan::default(),
            growing: Vec::new(),
            kept: 0,
            wanted: BTreeSet::new(),
            cut: false,
        };
        planning.lose();
        planning.go_through();
        planning.spare();
        planning.grow();
        planning.plan
    }
}

struct Planning<'a> {
    board: &'a mut Board,
    now: Time,
    plan: Plan,
    growing: Vec<Growing>,
    /// How many places were kept.
    kept: usize,
    /// Sites of which somebody wants room that is not there.
    wanted: BTreeSet<usize>,
    /// Whether there are jobs that were not considered.
    cut: bool,
}

impl Planning<'_> {
    /// What ran on nodes that are gone.
    fn lose(&mut self) {
        let limit = self.board.settings.lost_after;
        for at in 0..self.board.nodes.len() {
            let node = &self.board.nodes[at];
            match node.offer.away {
                Some(away) if away >= limit => {
                    for slot in node.tasks.clone() {
                        let task = self.board.release(slot);
                        let lost = Lost { job: task.job, task: task.task, fence: task.fence };
                        self.plan.lost.push(lost);
                    }
                }
                Some(away) if !node.tasks.is_empty() => {
                    self.plan.look_again(self.now.after(limit - away));
                }
                _ => {}
            }
        }
        let most = self.board.settings.max_changes;
        self.plan.lost.sort_by_key(|lost| (lost.job, lost.task));
        self.plan.more = self.plan.lost.len() > most;
        self.plan.lost.truncate(most);
    }

    fn go_through(&mut self) {
        let mut walk = Walk::default();
        while !self.plan.more
            && let Some(slot) = walk.next(&self.board.queue, &self.board.accounts, self.now)
        {
            let Some(mut job) = self.board.queue.lift(slot) else { continue };
            if self.board.tells {
                self.board.seen.push(job.waiting.job);
            }
            let why = self.consider(&mut job);
            let goes_on = why.is_none_or(|why| self.note(&job, why));
            if why.is_some() {
                self.board.queue.put_back(slot, job);
            } else {
                self.board.queue.strike(slot, &job);
                self.board.drop_shapes(&job.shapes);
            }
            if !goes_on {
                self.cut = true;
                return;
            }
        }
    }

    /// Takes note of a job that is left. Whether those behind it may be considered.
    fn note(&mut self, job: &Job, mut why: Why) -> bool {
        let mut goes_on = true;
        let waiting = &job.waiting;
        match why {
            Why::NotBefore(time) => self.plan.look_again(time),
            Why::NextPlan => self.plan.more = true,
            Why::NoRoom => {
                let settings = &self.board.settings;
                let due = waiting.submitted.after(settings.patience);
                let (backfill, places) = (settings.backfill, settings.reservations);
                if !choose::could_run(self.board, job, &[]) {
                    why = Why::NoNode;
                } else if !backfill {
                    goes_on = false;
                } else if due <= self.now || waiting.interrupted {
                    // Nothing starts at the moment when a job becomes overdue: no need to look again just then.
                    if self.kept < places && reserve::keep(self.board, job) {
                        self.kept += 1;
                        why = Why::Reserved;
                    }
                }
            }
            _ => {}
        }
        if matches!(why, Why::NoRoom | Why::Reserved) && !self.growing.is_empty() {
            self.wanted.extend(job.shapes.iter().map(|shape| self.board.shapes[*shape].site));
        }
        if self.board.tells {
            self.plan.left.push(Left { job: waiting.job, why });
        }
        goes_on
    }

    /// Places what can be placed of a job; tells why it was not all.
    fn consider(&mut self, job: &mut Job) -> Option<Why> {
        let waiting = &job.waiting;
        if waiting.not_before > self.now {
            return Some(Why::NotBefore(waiting.not_before));
        }
        let spec = &waiting.spec;
        if spec.place.each && waiting.tasks.is_empty() {
            return self.place_on_each(job);
        }
        if spec.gang && waiting.tasks.len() != spec.tasks() as usize {
            return Some(Why::Ending);
        }
        let tasks = choose::by_need(self.board, job);
        let wish = Wish::new(self.board, job);
        if spec.gang {
            self.place_gang(job, &tasks, wish)
        } else {
            self.place_tasks(job, &tasks, wish)
        }
    }

    fn place_gang(&mut self, job: &mut Job, tasks: &[(u32, usize)], wish: Wish) -> Option<Why> {
        let left = self.board.settings.max_changes - self.plan.changes();
        if tasks.len() > left {
            return Some(self.too_many());
        }
        if !self.may_have(job, tasks) {
            return Some(Why::Quota);
        }
        if let Some(placed) = choose::put_all(self.board, job, tasks, &wish, self.now) {
            self.accept(job, tasks, &placed, true);
            return None;
        }
        if !choose::is_trial(job) {
            return Some(Why::NoRoom);
        }
        let made = match victims::make_room(self.board, job, tasks, &wish, self.now, left) {
            Ok(made) => made,
            Err(NoRoom::Anywhere) => return Some(Why::NoRoom),
            Err(NoRoom::InPlan) => return Some(self.too_many()),
        };
        self.accept(job, tasks, &made.placed, false);
        self.sentence(job, &made.victims);
        None
    }

    /// What to say of a job that would make the plan too long: the next one is empty at first.
    fn too_many(&self) -> Why {
        if self.plan.changes() > 0 { Why::NextPlan } else { Why::NoNode }
    }

    fn place_tasks(
        &mut self,
        job: &mut Job,
        tasks: &[(u32, usize)],
        mut wish: Wish,
    ) -> Option<Why> {
        let mut stuck = None;
        let mut why = None;
        for each in tasks {
            // Where one of a shape found no place, the next finds none.
            if stuck == Some(each.1) {
                continue;
            }
            let left = self.board.settings.max_changes - self.plan.changes();
            if left == 0 {
                return Some(Why::NextPlan);
            }
            let ((task, shape), before) = (*each, why);
            if !self.may_have(job, &[*each]) {
                (stuck, why) = (Some(shape), Some(Why::Quota));
                continue;
            }
            if let Some(node) = choose::find(self.board, shape, &wish) {
                let slot = choose::put(self.board, job, task, shape, node, self.now);
                wish.placed(node);
                self.accept(job, &[*each], &[slot], true);
                continue;
            }
            (stuck, why) = (Some(shape), Some(Why::NoRoom));
            if !choose::is_trial(job) {
                continue;
            }
            match victims::make_room(self.board, job, &[*each], &wish, self.now, left) {
                Ok(made) => {
                    made.placed.iter().for_each(|slot| wish.placed(self.board.tasks[*slot].node));
                    self.accept(job, &[*each], &made.placed, false);
                    self.sentence(job, &made.victims);
                    (stuck, why) = (None, before);
                }
                Err(NoRoom::Anywhere) => {}
                Err(NoRoom::InPlan) => return Some(self.too_many()),
            }
        }
        why
    }

    /// One on each node that will do and has room.
    fn place_on_each(&mut self, job: &mut Job) -> Option<Why> {
        let Some(&id) = job.shapes.first() else { return Some(Why::NoNode) };
        let board = &*self.board;
        let shape = &board.shapes[id];
        let candidates = board.sites[shape.site].candidates.iter().map(|each| each.node as usize);
        let (mut takes, mut full) = (Vec::new(), 0);
        for at in candidates {
            let node = &board.nodes[at];
            let kind = board.kind(shape, at);
            if node.now.fits(&shape.need, kind) && node.has_ports(&shape.ports) {
                takes.push(at);
            } else if node.have().fits(&shape.need, kind) {
                full += 1;
            }
        }
        if takes.is_empty() || (job.waiting.spec.gang && full > 0) {
            return Some(Why::NoRoom);
        }
        let left = self.board.settings.max_changes - self.plan.changes();
        if takes.len() > left && self.plan.changes() > 0 {
            return Some(Why::NextPlan);
        }
        // More nodes than a plan can name: those with the higher ids are left out.
        takes.truncate(left);
        let tasks: Vec<(u32, usize)> = (0..).zip(&takes).map(|(task, _)| (task, id)).collect();
        if !self.may_have(job, &tasks) {
            return Some(Why::Quota);
        }
        let mut put =
            |(task, at): (u32, usize)| choose::put(self.board, job, task, id, at, self.now);
        let placed: Vec<usize> = (0..).zip(takes).map(&mut put).collect();
        self.accept(job, &tasks, &placed, true);
        None
    }

    /// Whether its party may have so much more.
    fn may_have(&self, job: &Job, tasks: &[(u32, usize)]) -> bool {
        let Some(account) = self.board.accounts.get(&job.waiting.party) else { return true };
        if account.quota.is_none() {
            return true;
        }
        let (mut cpu, mut gpus) = (0u64, 0u64);
        for (_, shape) in tasks {
            let need = &self.board.shapes[*shape].need;
            cpu = cpu.saturating_add(need.cpu);
            gpus = gpus.saturating_add(need.gpus.into());
        }
        account.may_have(cpu, gpus)
    }

    /// What was placed is part of the plan. If it starts at once, it may get more yet.
    fn accept(&mut self, job: &mut Job, tasks: &[(u32, usize)], placed: &[usize], at_once: bool) {
        for (slot, (number, shape)) in placed.iter().zip(tasks) {
            let task = &self.board.tasks[*slot];
            debug_assert_eq!(task.task, *number, "they come in the same order");
            self.plan.places.push(Placement {
                job: task.job,
                task: task.task,
                node: self.board.nodes[task.node].offer.node,
                allotment: task.allotment.clone(),
            });
            let (party, cost) = (task.party, shares::entrance(&task.allotment));
            self.board.account(party).charge(self.now, cost);
            if at_once {
                self.growing.extend(Growing::new(self.board, *slot, *shape));
            }
        }
        let placed = |task: &u32| tasks.iter().any(|(number, _)| number == task);
        job.waiting.tasks.retain(|task| !placed(task));
    }

    fn sentence(&mut self, job: &Job, victims: &[usize]) {
        for slot in victims {
            let task = &self.board.tasks[*slot];
            let for_job = job.waiting.job;
            let victim = Victim { job: task.job, task: task.task, fence: task.fence, for_job };
            self.plan.victims.push(victim);
        }
    }

    /// Whoever was asked to end for one task goes on if what somebody else leaves for another is enough for both.
    fn spare(&mut self) {
        if self.plan.victims.len() < 2 {
            return;
        }
        let (mut spared, mut gangs) = (BTreeSet::new(), BTreeSet::new());
        for victim in self.plan.victims.iter().rev() {
            let Some(slot) = self.board.attempt(victim.job, victim.task) else { continue };
            let together: Vec<usize> = match self.board.tasks[slot].gang {
                // All of a gang, once.
                true if !gangs.insert(victim.job) => continue,
                true => self.board.attempts_of(victim.job).collect(),
                false => vec![slot],
            };
            if self.board.let_all_go_on(&together, self.now) {
                let tasks = together.iter().map(|slot| &self.board.tasks[*slot]);
                spared.extend(tasks.map(|task| (task.job, task.task)));
            }
        }
        self.plan.victims.retain(|victim| !spared.contains(&(victim.job, victim.task)));
    }

    /// What nobody waits for goes to those that can use it.
    fn grow(&mut self) {
        // Whoever was not considered may want any node.
        if self.growing.is_empty() || self.plan.more || self.cut {
            return;
        }
        let mut wanted = vec![false; self.board.nodes.len()];
        for site in &self.wanted {
            for each in &self.board.sites[*site].candidates {
                wanted[each.node as usize] = true;
            }
        }
        choose::grow(self.board, &self.growing, &wanted);
        for each in &self.growing {
            let task = &self.board.tasks[each.slot];
            let is_it = |place: &&mut Placement| (place.job, place.task) == (task.job, task.task);
            let Some(place) = self.plan.places.iter_mut().find(is_it) else { continue };
            let more = shares::entrance(&task.allotment) - shares::entrance(&place.allotment);
            place.allotment = task.allotment.clone();
            let party = task.party;
            self.board.account(party).charge(self.now, more);
        }
    }
}
