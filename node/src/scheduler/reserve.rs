//! Places that are kept for jobs that have waited too long.
//!
//! Small jobs may start while a large one before them waits: otherwise much would stand idle. But they must not do
//! so for ever. Once a job has waited for [`Settings::patience`](super::Settings::patience), the planner keeps for it
//! the nodes where it would fit **if attempts ended in the order in which they began**. Nobody behind it gets there
//! what it will need; they may have what it leaves.
//!
//! Nobody has to remember where a place is kept, because the choice can only get better. Call `r` the time at which
//! the youngest of those attempts began that have to end for the job to fit, on the node where `r` is least. What runs on
//! that node ends, and what others start there takes nothing of what is kept, so on that node `r` never grows; if another
//! node is chosen later, then because its `r` is less. When the first plan is made in which the job is overdue, `r`
//! is not later than that plan. So once everything that was placed by then has ended, the job fits. **Whoever is first in
//! line starts at the latest when its patience is over and, after that, the longest of the attempts that were
//! placed by then has ended**; and whoever has k others before it, after k + 1 times as long at most.

use std::collections::BTreeSet;

use mesh_consensus::time::Time;

use super::board::{Board, Room};
use super::choose;
use super::queue::Job;

/// Keeps a place for a job that has no room. Whether there is one to keep.
pub(super) fn keep(board: &mut Board, job: &Job) -> bool {
    let mut tasks = choose::by_need(board, job);
    if !job.waiting.spec.gang {
        // The others of its tasks can wait until this one has its place.
        tasks.truncate(1);
    }
    match tasks[..] {
        [] => false,
        [(_, shape)] => keep_one(board, job, shape),
        _ => keep_all(board, job, &tasks),
    }
}

fn keep_one(board: &mut Board, job: &Job, id: usize) -> bool {
    let shape = &board.shapes[id];
    let candidates = board.sites[shape.site].candidates.iter().map(|each| each.node as usize);
    let found = candidates.filter(|at| board.nodes[*at].held_for.is_none()).filter_map(|at| {
        let node = &board.nodes[at];
        let kind = board.kind(shape, at);
        let (mut room, mut when) = (node.soon, Time(0));
        let mut tasks = node.tasks.iter().map(|slot| &board.tasks[*slot]);
        while !room.fits(&shape.need, kind) {
            let task = tasks.by_ref().find(|task| task.stopping.is_none())?;
            // What is broken meanwhile is not given away again.
            room = room.plus(&task.room.common(&node.have()));
            when = task.since;
        }
        Some((when, at, room))
    });
    let Some((_, at, room)) = found.min_by_key(|(when, at, _)| (*when, *at)) else { return false };
    let mut rooms = vec![Room::default(); board.nodes.len()];
    rooms[at] = room;
    hold(board, job, &[(0, id)], &mut rooms)
}

fn keep_all(board: &mut Board, job: &Job, tasks: &[(u32, usize)]) -> bool {
    let shapes: BTreeSet<usize> = tasks.iter().map(|(_, shape)| *shape).collect();
    let sites: BTreeSet<usize> = shapes.iter().map(|shape| board.shapes[*shape].site).collect();
    let nodes = sites.iter().flat_map(|site| &board.sites[*site].candidates);
    let nodes: BTreeSet<usize> = nodes.map(|each| each.node as usize).collect();
    let open: Vec<usize> =
        nodes.into_iter().filter(|at| board.nodes[*at].held_for.is_none()).collect();

    let running = open.iter().flat_map(|at| &board.nodes[*at].tasks).copied();
    let mut running: Vec<usize> =
        running.filter(|slot| board.tasks[*slot].stopping.is_none()).collect();
    running.sort_by_key(|slot| board.tasks[*slot].age());
    let after = |ended: usize| {
        let mut rooms = vec![Room::default(); board.nodes.len()];
        for &at in &open {
            rooms[at] = board.nodes[at].soon;
        }
        for slot in &running[..ended] {
            let task = &board.tasks[*slot];
            let have = board.nodes[task.node].have();
            rooms[task.node] = rooms[task.node].plus(&task.room.common(&have));
        }
        rooms
    };
    let fits = |ended: usize| choose::fit_all(board, tasks, &mut after(ended)).is_some();
    if !fits(running.len()) {
        return false;
    }
    // The fewest that have to end.
    let (mut low, mut high) = (0, running.len());
    while low < high {
        let middle = (low + high) / 2;
        if fits(middle) { high = middle } else { low = middle + 1 }
    }
    let mut rooms = after(high);
    hold(board, job, tasks, &mut rooms)
}

/// Keeps what the tasks need of `rooms`, which are what is free and what will be when they start.
fn hold(board: &mut Board, job: &Job, tasks: &[(u32, usize)], rooms: &mut [Room]) -> bool {
    let Some(nodes) = choose::fit_all(board, tasks, rooms) else { return false };
    for at in BTreeSet::from_iter(nodes) {
        board.hold(at, &rooms[at], job.waiting.job);
    }
    true
}
