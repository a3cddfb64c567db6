//! What comes of a task's end: for the task itself, its gang, its job, and the jobs that wait for it.
//!
//! Nothing here can fail: [`super::rules`] has checked what was asked.

use std::collections::BTreeMap;
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId, PartyId};
use mesh_consensus::time::Time;

use super::rules::begun;
use super::{
    End, Ending, Exit, Given, How, Job, Jobs, MAX_FAILED_ON, MAX_OVER, News, Phase, Placed, Stage,
    Task, TaskState, Why,
};
use crate::job::{Retry, RetryOn};
use crate::scheduler::shares::{self, Usage};

/// An `each` job is placed on so many nodes at most.
pub(super) const MAX_EACH: usize = 1024;

/// So often nodes may say that they cannot run a task; then it has failed.
const MAX_TRIES: u32 = 16;

/// The longest pause before a task that failed is tried again.
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// A change to the jobs, at their latest moment.
pub(super) struct Change<'a> {
    jobs: &'a mut Jobs,
}

impl<'a> Change<'a> {
    pub(super) fn new(jobs: &'a mut Jobs) -> Self {
        Self { jobs }
    }

    fn task_mut(&mut self, job: JobId, task: u32) -> Option<&mut Task> {
        self.jobs.all.get_mut(&job)?.tasks.get_mut(task as usize)
    }

    /// A task gets a place.
    pub(super) fn place(&mut self, placed: Placed) {
        let now = self.jobs.now;
        let (id, number) = (placed.job, placed.task as usize);
        let Some(job) = self.jobs.all.get_mut(&id) else { return };
        // Only an `each` job has fewer; its places come in any order.
        while job.tasks.len() <= number && job.tasks.len() < MAX_EACH {
            job.tasks.push(Task::new());
        }
        let party = job.party;
        let Some(task) = job.tasks.get_mut(number) else { return };
        task.attempts = task.attempts.saturating_add(1);
        let usage = self.jobs.usage.entry(party).or_default();
        usage.add(now.time, shares::entrance(&placed.allotment));
        task.fence = now.index;
        task.not_before = None;
        task.state = begun(now, placed);
    }

    /// A node tells how far an attempt is.
    pub(super) fn hear(&mut self, job: JobId, task: u32, news: News) {
        let now = self.jobs.now.time;
        let Some(Task { state: TaskState::Given(given), .. }) = self.task_mut(job, task) else {
            return;
        };
        match news {
            News::Fetching => given.phase = Phase::Fetching,
            News::Ready { endpoint } => {
                given.phase = Phase::Ready;
                given.endpoint = Some(endpoint);
            }
            News::Running => {
                given.phase = Phase::Running;
                given.running = Some(now);
            }
            News::Ended(exit) => self.ended(job, task, exit),
        }
    }

    /// A task did what it should.
    pub(super) fn done(&mut self, job: JobId, task: u32) {
        let now = self.jobs.now.time;
        if let Some(found) = self.jobs.all.get(&job)
            && let Some(given) = found.tasks.get(task as usize).and_then(Task::given)
        {
            count(&mut self.jobs.usage, found.party, given, now);
        }
        self.end(job, task, How::Done);
        self.settle(job);
    }

    /// An attempt is over, and did not do what it should; or was asked to end.
    fn ended(&mut self, id: JobId, number: u32, exit: Exit) {
        let now = self.jobs.now.time;
        let Some(job) = self.jobs.all.get_mut(&id) else { return };
        let (stopping, gang) = (job.stopping.is_some(), job.spec.gang);
        let retry = job.spec.retry.clone();
        let Some(task) = job.tasks.get_mut(number as usize) else { return };
        let TaskState::Given(given) = &task.state else { return };
        let (node, why) = (given.node, given.ending.map(|ending| ending.why));
        count(&mut self.jobs.usage, job.party, given, now);
        task.last = Some(exit.clone());
        match why {
            Some(Why::Preempted) if !stopping => {
                task.preemptions = task.preemptions.saturating_add(1);
                self.wait_again(id, number);
                if gang {
                    self.restart_gang(id, Why::Preempted);
                }
            }
            Some(Why::Gang) if !stopping => self.wait_again(id, number),
            Some(Why::GangFailed) => self.end(id, number, How::WithGang),
            _ if stopping => self.end(id, number, How::Stopped),
            _ => {
                task.blame(node);
                // That a node cannot run it says nothing about the task, until it has been tried often enough.
                let tries = task.failed_on.values().fold(0u32, |sum, n| sum.saturating_add(*n));
                let unable = matches!(exit, Exit::Unable(_)) && tries < MAX_TRIES;
                task.failures = task.failures.saturating_add(u32::from(!unable));
                if unable || may_retry(&retry, task.failures, &exit) {
                    task.not_before = Some(now.after(pause(&retry, tries)));
                    self.wait_again(id, number);
                    if gang {
                        self.restart_gang(id, Why::Gang);
                    }
                } else {
                    self.end(id, number, How::Failed(exit));
                    if gang {
                        self.fail_gang(id);
                    }
                }
            }
        }
        self.settle(id);
    }

    /// The leader ends an attempt before its time.
    pub(super) fn undo(&mut self, id: JobId, number: u32, why: Why) {
        let since = self.jobs.now.time;
        let Some(job) = self.jobs.all.get_mut(&id) else { return };
        let (gang, each, stopping) = (job.spec.gang, job.spec.place.each, job.stopping.is_some());
        let Some(task) = job.tasks.get_mut(number as usize) else { return };
        let TaskState::Given(given) = &mut task.state else { return };
        if why == Why::Preempted {
            given.ending = Some(Ending { why, since });
            if gang {
                self.restart_gang(id, why);
            }
            return;
        }
        let ending = given.ending.map(|ending| ending.why);
        count(&mut self.jobs.usage, job.party, given, since);
        match ending {
            _ if stopping => self.end(id, number, How::Stopped),
            Some(Why::GangFailed) => self.end(id, number, How::WithGang),
            _ if each => self.end(id, number, How::Lost),
            _ => {
                self.wait_again(id, number);
                if gang {
                    self.restart_gang(id, Why::Gang);
                }
            }
        }
        self.settle(id);
    }

    /// Somebody asks for the end of a job.
    pub(super) fn stop(&mut self, id: JobId) {
        let now = self.jobs.now;
        let Some(job) = self.jobs.all.get_mut(&id) else { return };
        job.stopping = Some(now);
        for number in 0..job.tasks.len() as u32 {
            self.end_or_ask(id, number, Why::Stop, How::Stopped);
        }
        self.settle(id);
    }

    /// A training has its verdict: what waits is left out.
    pub(super) fn leave_out(&mut self, id: JobId) {
        let count = self.jobs.all.get(&id).map_or(0, |job| job.tasks.len());
        for number in 0..count as u32 {
            if self.task_mut(id, number).is_some_and(|task| task.is_waiting()) {
                self.end(id, number, How::LeftOut);
            }
        }
        self.settle(id);
    }

    /// A member is gone, or has lost its disk: what it had is with nobody.
    pub(super) fn forget(&mut self, node: NodeId) {
        for course in self.jobs.all.values_mut().filter_map(|job| job.course.as_mut()) {
            course.forget(node);
        }
        let has = |task: &Task| task.given().is_some_and(|given| given.node == node);
        let mut lost = Vec::new();
        for id in &self.jobs.derived.live {
            let Some(job) = self.jobs.all.get(id) else { continue };
            let tasks = job.tasks.iter().enumerate().filter(|(_, task)| has(task));
            lost.extend(tasks.map(|(number, _)| (*id, number as u32)));
        }
        for (id, number) in lost {
            self.undo(id, number, Why::Lost);
        }
    }

    /// A job whose way is barred from the start ends at once.
    pub(super) fn look_before(&mut self, id: JobId) {
        let Some(job) = self.jobs.all.get(&id) else { return };
        let before = job.spec.after.iter().filter(|before| {
            let before = self.jobs.all.get(before);
            before.is_some_and(|job| job.over.is_some() && job.stage() != Stage::Done)
        });
        if let Some(bad) = before.copied().next() {
            self.bar(id, bad);
            self.settle(id);
        }
    }

    /// A task is to be placed once more; but if its training has a verdict, it is left out.
    fn wait_again(&mut self, id: JobId, number: u32) {
        if self.jobs.all.get(&id).is_some_and(|job| job.verdict().is_some()) {
            self.end(id, number, How::LeftOut);
        } else if let Some(task) = self.task_mut(id, number) {
            task.state = TaskState::Waiting;
        }
    }

    /// All other tasks of a gang end, to be placed with it again.
    fn restart_gang(&mut self, id: JobId, why: Why) {
        let since = self.jobs.now.time;
        let Some(job) = self.jobs.all.get_mut(&id) else { return };
        let goes_on = job.verdict().is_none();
        for task in &mut job.tasks {
            match &mut task.state {
                TaskState::Given(given) if given.ending.is_none() => {
                    given.ending = Some(Ending { why, since });
                }
                // One that was done goes again: it waited for nobody, and the others need it.
                TaskState::Ended(end) if end.how == How::Done && goes_on => {
                    task.state = TaskState::Waiting;
                }
                _ => {}
            }
        }
    }

    /// All other tasks of a gang end for good.
    fn fail_gang(&mut self, id: JobId) {
        let count = self.jobs.all.get(&id).map_or(0, |job| job.tasks.len());
        for number in 0..count as u32 {
            self.end_or_ask(id, number, Why::GangFailed, How::WithGang);
        }
    }

    /// Ends a task that waits, and asks one that a node has to end.
    fn end_or_ask(&mut self, id: JobId, number: u32, why: Why, how: How) {
        let since = self.jobs.now.time;
        let Some(task) = self.task_mut(id, number) else { return };
        match &mut task.state {
            TaskState::Waiting => self.end(id, number, how),
            TaskState::Given(given) => {
                // Its grace goes on from when it was asked first.
                let since = given.ending.map_or(since, |ending| ending.since);
                given.ending = Some(Ending { why, since });
            }
            TaskState::Ended(_) => {}
        }
    }

    fn end(&mut self, id: JobId, number: u32, how: How) {
        let at = self.jobs.now.time;
        let Some(task) = self.task_mut(id, number) else { return };
        let (node, running, endpoint) = match &task.state {
            TaskState::Given(given) => (Some(given.node), given.running, given.endpoint),
            _ => (None, None, None),
        };
        task.state = TaskState::Ended(End { how, at, node, running, endpoint });
    }

    /// A job all of whose tasks have ended is over, and so may be those that wait for it.
    fn settle(&mut self, id: JobId) {
        let now = self.jobs.now;
        let mut look = vec![id];
        while let Some(id) = look.pop() {
            let Some(job) = self.jobs.all.get_mut(&id) else { continue };
            if job.over.is_some() || !job.has_ended() {
                continue;
            }
            let before = job.course_weight();
            job.over = Some(now);
            let less = before.saturating_sub(job.course_weight());
            let (party, is_done) = (job.party, job.stage() == Stage::Done);
            let derived = &mut self.jobs.derived;
            derived.live.remove(&id);
            derived.later.remove(&id);
            self.jobs.servers.remove(&id);
            derived.over.entry(party).or_default().insert((now.index, id));
            derived.ended.push(id);
            if let Some(bytes) = derived.bytes.get_mut(&party) {
                *bytes = bytes.saturating_sub(less);
            }
            if !is_done {
                let all = &self.jobs.all;
                let waits =
                    |later: &&JobId| all.get(later).is_some_and(|job| job.spec.after.contains(&id));
                let barred: Vec<JobId> =
                    self.jobs.derived.later.iter().filter(waits).copied().collect();
                for later in barred {
                    self.bar(later, id);
                    look.push(later);
                }
            }
            self.forget_oldest(party, id);
        }
    }

    /// A job that cannot start any more.
    fn bar(&mut self, id: JobId, before: JobId) {
        let Some(job) = self.jobs.all.get_mut(&id) else { return };
        if job.tasks.is_empty() {
            // An `each` job has none yet, and needs one to say how it ended.
            job.tasks.push(Task::new());
        }
        for number in 0..job.tasks.len() as u32 {
            self.end(id, number, How::Before(before));
        }
    }

    fn forget_oldest(&mut self, party: PartyId, newest: JobId) {
        let over = &self.jobs.derived.over;
        let Some(list) = over.get(&party).filter(|list| list.len() > MAX_OVER) else { return };
        // A live job may wait for it.
        let is_needed = |id: &JobId| {
            let later = self.jobs.derived.later.iter().filter_map(|id| self.jobs.all.get(id));
            *id == newest || later.into_iter().any(|job| job.spec.after.contains(id))
        };
        if let Some(oldest) = list.iter().map(|(_, id)| *id).find(|id| !is_needed(id)) {
            self.jobs.remove(oldest);
        }
    }
}

impl Job {
    /// Whether nothing of it goes on or will.
    fn has_ended(&self) -> bool {
        let ended = |task: &Task| matches!(task.state, TaskState::Ended(_));
        let none = self.tasks.is_empty() && (self.stopping.is_some() || self.verdict().is_some());
        none || (!self.tasks.is_empty() && self.tasks.iter().all(ended))
    }
}

impl Task {
    /// A node on which it failed is remembered; of too many, the one that came first in order goes.
    fn blame(&mut self, node: NodeId) {
        *self.failed_on.entry(node).or_default() += 1;
        if self.failed_on.len() > MAX_FAILED_ON {
            self.failed_on.pop_first();
        }
    }
}

/// Counts what an attempt that is over has used.
fn count(usage: &mut BTreeMap<PartyId, Usage>, party: PartyId, given: &Given, now: Time) {
    let points = shares::points(&given.allotment, now.since(given.at.time));
    usage.entry(party).or_default().add(now, points);
}

fn may_retry(retry: &Retry, failures: u32, exit: &Exit) -> bool {
    let on = match exit {
        Exit::Code(code) => RetryOn::Exit(*code),
        Exit::Signal(signal) => RetryOn::Signal(*signal),
        Exit::Memory => RetryOn::Memory,
        Exit::Time => RetryOn::Time,
        // Nobody asked it to: somebody on that machine did.
        Exit::Stopped => RetryOn::Signal(15),
        Exit::Cannot(_) | Exit::Unable(_) => return false,
    };
    failures < retry.attempts && (retry.on.is_empty() || retry.on.contains(&on))
}

/// Twice as long after each failure.
fn pause(retry: &Retry, failures: u32) -> Duration {
    let factor = 1u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_millis(retry.backoff_ms.saturating_mul(factor)).min(MAX_PAUSE)
}
