//! Who may ask what about jobs. Everything is checked before anything changes: what is refused leaves no trace.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::machine::At;

use super::super::course::Course;
use super::super::name::Name;
use super::super::refusal::Refusal;
use super::super::{Facts, Moment, server};
use super::change::{Change, MAX_EACH};
use super::{
    Assign, Given, Job, JobForget, JobStop, JobSubmit, Jobs, Kept, MAX_JOBS_BYTES, MAX_PARTY_BYTES,
    MAX_PLACES, News, Phase, Placed, Stage, Task, TaskDone, TaskKeep, TaskNews, TaskState, Undone,
    Why,
};
use crate::job::training::Training;

impl Facts {
    pub(in crate::state) fn job_submit(&mut self, at: &At, act: JobSubmit) -> Result<(), Refusal> {
        let JobSubmit { job: id, party, spec } = act;
        self.check_own_party(at.author, party)?;
        if self.jobs.all.contains_key(&id) {
            return Err(Refusal::JobTaken);
        }
        if spec.flaw().is_some() {
            return Err(Refusal::BadJob);
        }
        let is_server = matches!(spec.training, Some(Training::Server(_)));
        if is_server && self.level.number < server::SINCE {
            return Err(Refusal::TooEarly);
        }
        if !spec.after.iter().all(|before| self.jobs.all.contains_key(before)) {
            return Err(Refusal::NoSuchJob);
        }
        let tasks = if spec.place.each { 0 } else { spec.tasks() };
        let course = spec.training.is_some().then(Course::default);
        let job = Job {
            party,
            author: at.author,
            submitted: Moment::of(at),
            spec: (*spec).into(),
            tasks: vec![Task::new(); tasks as usize],
            stopping: None,
            over: None,
            outputs: BTreeMap::new(),
            course,
        };
        self.check_room_for_job(party, job.weight())?;

        self.jobs.now = Moment::of(at);
        self.jobs.insert(id, job);
        // What it waits for may have failed already.
        Change::new(&mut self.jobs).look_before(id);
        self.sweep_jobs();
        Ok(())
    }

    pub(in crate::state) fn job_stop(&mut self, at: &At, act: &JobStop) -> Result<(), Refusal> {
        let job = self.own_job(at.author, act.job)?;
        if job.over.is_none() && job.stopping.is_none() {
            self.jobs.now = Moment::of(at);
            Change::new(&mut self.jobs).stop(act.job);
            self.sweep_jobs();
        }
        Ok(())
    }

    pub(in crate::state) fn job_forget(&mut self, at: &At, act: &JobForget) -> Result<(), Refusal> {
        let job = self.own_job(at.author, act.job)?;
        if job.over.is_none() {
            return Err(Refusal::JobLives);
        }
        self.jobs.now = Moment::of(at);
        self.jobs.remove(act.job);
        self.sweep_jobs();
        Ok(())
    }

    pub(in crate::state) fn assign(&mut self, at: &At, act: Assign) -> Result<(), Refusal> {
        let Assign { plans, ends, places } = act;
        self.check_votes(at.author)?;
        if plans != self.jobs.plans {
            return Err(Refusal::StalePlan);
        }
        if ends.len() + places.len() > MAX_PLACES {
            return Err(Refusal::BadPlan);
        }
        let mut ended = BTreeSet::new();
        for Undone { job, task, fence, why } in &ends {
            let given = self.jobs.given(*job, *task, *fence).ok_or(Refusal::StalePlan)?;
            let fits = match why {
                Why::Preempted => given.ending.is_none(),
                Why::Lost => true,
                Why::Stop | Why::Gang | Why::GangFailed => false,
            };
            if !fits || !ended.insert((*job, *task)) {
                return Err(Refusal::BadPlan);
            }
        }
        self.check_places(at, &places)?;

        self.jobs.plans += 1;
        self.jobs.now = Moment::of(at);
        let mut change = Change::new(&mut self.jobs);
        for Undone { job, task, why, .. } in ends {
            change.undo(job, task, why);
        }
        for placed in places {
            change.place(placed);
        }
        self.sweep_jobs();
        Ok(())
    }

    /// Each place is on a member that stays, for a task that waits; gangs come whole.
    fn check_places(&self, at: &At, places: &[Placed]) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        let mut counts = BTreeMap::<JobId, usize>::new();
        for Placed { job: id, task, node, allotment } in places {
            let job = self.jobs.all.get(id).ok_or(Refusal::StalePlan)?;
            if job.over.is_some() || job.stopping.is_some() || !self.jobs.may_start(job) {
                return Err(Refusal::StalePlan);
            }
            let member = self.staying(*node).ok_or(Refusal::NoSuchMember)?;
            if !self.takes_task(*node, member.party, job.party, &job.spec, *task) {
                return Err(Refusal::WrongParty);
            }
            let fits = match job.tasks.get(*task as usize) {
                Some(task) => {
                    task.is_waiting()
                        && task.fence < at.index
                        && task.not_before.is_none_or(|time| time <= at.time)
                }
                // Its tasks come with their places, numbered from 0.
                None => job.spec.place.each && job.tasks.is_empty(),
            };
            if !fits {
                return Err(Refusal::StalePlan);
            }
            if !allotment.is_sound() || !seen.insert((*id, *task)) {
                return Err(Refusal::BadPlan);
            }
            *counts.entry(*id).or_default() += 1;
        }
        for (id, count) in counts {
            let job = self.jobs.all.get(&id).ok_or(Refusal::StalePlan)?;
            let whole = if job.spec.place.each && job.tasks.is_empty() {
                let numbers = seen.range((id, 0)..=(id, u32::MAX)).map(|(_, task)| *task);
                numbers.eq(0..count as u32)
            } else {
                !job.spec.gang || count == job.tasks.len()
            };
            if !whole {
                return Err(Refusal::BadPlan);
            }
        }
        Ok(())
    }

    pub(in crate::state) fn task_news(&mut self, at: &At, act: TaskNews) -> Result<(), Refusal> {
        let TaskNews { job, task, fence, news } = act;
        let given = self.check_fence(at.author, job, task, fence)?;
        let late = |phase| given.phase >= phase;
        match &news {
            News::Fetching if late(Phase::Fetching) => return Err(Refusal::StaleNews),
            News::Ready { .. } if late(Phase::Ready) => return Err(Refusal::StaleNews),
            News::Running if late(Phase::Running) => return Err(Refusal::StaleNews),
            _ => {}
        }
        self.jobs.now = Moment::of(at);
        Change::new(&mut self.jobs).hear(job, task, news);
        self.sweep_jobs();
        Ok(())
    }

    /// The outputs and the end count together. The node is of the job's party, or could not have made the versions.
    pub(in crate::state) fn task_done(&mut self, at: &At, act: TaskDone) -> Result<(), Refusal> {
        let TaskDone { job: id, task, fence, outputs } = act;
        self.check_fence(at.author, id, task, fence)?;
        let job = self.jobs.all.get(&id).ok_or(Refusal::NoSuchJob)?;
        let names: BTreeSet<&Name> = outputs.iter().map(|(name, _)| name).collect();
        let fits = names.len() == outputs.len()
            && names.iter().all(|name| job.spec.outputs.contains_key(*name))
            && outputs.iter().all(|(_, new)| new.party == job.party);
        if !fits {
            return Err(Refusal::BadProduct);
        }
        let made: Vec<(Name, VersionId)> =
            outputs.iter().map(|(name, new)| (name.clone(), new.id)).collect();
        // Of several the last may be refused when the first has been made. It is rare to have several.
        let before = (outputs.len() > 1).then(|| self.data.clone());
        for (_, new) in outputs {
            if let Err(refusal) = self.version_new(at, new) {
                if let Some(before) = before {
                    self.data = before;
                }
                return Err(refusal);
            }
        }

        self.jobs.now = Moment::of(at);
        if let Some(job) = self.jobs.all.get_mut(&id) {
            job.outputs.extend(made.into_iter().map(|(name, version)| ((task, name), version)));
        }
        Change::new(&mut self.jobs).done(id, task);
        self.sweep_jobs();
        Ok(())
    }

    pub(in crate::state) fn task_keep(&mut self, at: &At, act: TaskKeep) -> Result<(), Refusal> {
        let TaskKeep { job: id, task, fence, what, new } = act;
        self.check_fence(at.author, id, task, fence)?;
        let job = self.jobs.all.get(&id).ok_or(Refusal::NoSuchJob)?;
        let fits = match &what {
            Kept::Checkpoint | Kept::Staged => job.spec.checkpoint.is_some(),
            Kept::Draft(name) => job.spec.outputs.contains_key(name),
        };
        if !fits || new.party != job.party {
            return Err(Refusal::BadProduct);
        }
        let version = new.id;
        self.version_new(at, new)?;

        self.jobs.now = Moment::of(at);
        let task = self.jobs.all.get_mut(&id).and_then(|job| job.tasks.get_mut(task as usize));
        let Some(task) = task else { return Ok(()) };
        let old = match what {
            Kept::Checkpoint => [task.checkpoint.replace(version), task.staged.take()],
            Kept::Staged => [task.staged.replace(version), None],
            Kept::Draft(name) => [task.drafts.insert(name, version), None],
        };
        self.jobs.derived.loose.extend(old.into_iter().flatten());
        self.sweep_jobs();
        Ok(())
    }

    /// A training has its verdict: tasks that wait will not be placed.
    pub(in crate::state) fn leave_out_waiting(&mut self, job: JobId) {
        Change::new(&mut self.jobs).leave_out(job);
        self.sweep_jobs();
    }

    /// A member is gone, or has lost its disk: what it had is with nobody.
    pub(in crate::state) fn forget_tasks_of(&mut self, node: NodeId) {
        Change::new(&mut self.jobs).forget(node);
        self.sweep_jobs();
    }

    /// Drops what jobs kept that are over: drafts in any case, checkpoints if they are done. Those of one that failed
    /// stay until it is dropped: somebody may want to look.
    fn sweep_jobs(&mut self) {
        for id in std::mem::take(&mut self.jobs.derived.ended) {
            let Some(job) = self.jobs.all.get_mut(&id) else { continue };
            let is_done = job.stage() == Stage::Done;
            for task in &mut job.tasks {
                self.jobs.derived.loose.extend(std::mem::take(&mut task.drafts).into_values());
                self.jobs.derived.loose.extend(task.staged.take());
                if is_done {
                    self.jobs.derived.loose.extend(task.checkpoint.take());
                }
            }
        }
        for version in std::mem::take(&mut self.jobs.derived.loose) {
            // Its party may have dropped it by hand.
            self.drop_version(version);
        }
    }

    /// The attempt, if it counts and is the author's.
    fn check_fence(
        &self,
        author: NodeId,
        job: JobId,
        task: u32,
        fence: u64,
    ) -> Result<&Given, Refusal> {
        let given = self.jobs.given(job, task, fence).ok_or(Refusal::Fenced)?;
        if given.node == author { Ok(given) } else { Err(Refusal::Fenced) }
    }

    fn own_job(&self, author: NodeId, id: JobId) -> Result<&Job, Refusal> {
        let job = self.jobs.all.get(&id).ok_or(Refusal::NoSuchJob)?;
        self.check_own_party(author, job.party)?;
        Ok(job)
    }

    fn check_votes(&self, author: NodeId) -> Result<(), Refusal> {
        let member = self.staying(author).ok_or(Refusal::NotMember)?;
        let votes = member.seat.is_some_and(|seat| self.config.voters.contains(&seat));
        if votes { Ok(()) } else { Err(Refusal::NotVoter) }
    }

    /// Each party has its share of the whole, so that none can fill it alone once there are others.
    fn check_room_for_job(&self, party: PartyId, more: u64) -> Result<(), Refusal> {
        let share = (MAX_JOBS_BYTES / self.parties.len().max(1) as u64).min(MAX_PARTY_BYTES);
        let bytes = &self.jobs.derived.bytes;
        let own = bytes.get(&party).copied().unwrap_or(0);
        let fits = own + more <= share && self.jobs.weight() + more <= MAX_JOBS_BYTES;
        if fits { Ok(()) } else { Err(Refusal::TooManyJobs) }
    }
}

impl Jobs {
    /// The attempt with this fence, if it counts.
    pub(super) fn given(&self, job: JobId, task: u32, fence: u64) -> Option<&Given> {
        let task = self.all.get(&job)?.tasks.get(task as usize)?;
        task.given().filter(|given| given.at.index == fence)
    }

    /// Whether the jobs before it are done. One that was forgotten was over, and had been done or this one would be
    /// over as well.
    pub(super) fn may_start(&self, job: &Job) -> bool {
        let mut before = job.spec.after.iter().filter_map(|id| self.all.get(id));
        before.all(|job| job.over.is_some())
    }

    pub(super) fn insert(&mut self, id: JobId, job: Job) {
        *self.derived.bytes.entry(job.party).or_default() += job.weight();
        self.derived.live.insert(id);
        if !job.spec.after.is_empty() {
            self.derived.later.insert(id);
        }
        self.all.insert(id, job);
    }

    pub(super) fn remove(&mut self, id: JobId) {
        let Some(job) = self.all.remove(&id) else { return };
        for task in &job.tasks {
            self.derived
                .loose
                .extend(task.drafts.values().chain(&task.checkpoint).chain(&task.staged));
        }
        let Some(over) = job.over else { return };
        if let Some(list) = self.derived.over.get_mut(&job.party) {
            list.remove(&(over.index, id));
            if list.is_empty() {
                self.derived.over.remove(&job.party);
            }
        }
        if let Some(bytes) = self.derived.bytes.get_mut(&job.party) {
            *bytes -= job.weight();
            if *bytes == 0 {
                self.derived.bytes.remove(&job.party);
            }
        }
    }

    /// What a snapshot takes for it, or a little more.
    pub(in crate::state) fn weight(&self) -> u64 {
        self.derived.bytes.values().sum()
    }

    /// Puts in what follows from the rest.
    pub(in crate::state) fn weigh(&mut self) {
        let mut derived = super::Derived::default();
        for (id, job) in &self.all {
            *derived.bytes.entry(job.party).or_default() += job.weight();
            match job.over {
                Some(over) => {
                    derived.over.entry(job.party).or_default().insert((over.index, *id));
                }
                None => {
                    derived.live.insert(*id);
                    if !job.spec.after.is_empty() {
                        derived.later.insert(*id);
                    }
                }
            }
        }
        self.derived = derived;
    }
}

impl Job {
    /// No fewer bytes than it takes in a snapshot, whatever comes: it does not change while the job is there, but for
    /// its course.
    pub(super) fn weight(&self) -> u64 {
        let spec = postcard::to_stdvec(&*self.spec).map_or(0, |bytes| bytes.len());
        let task = 1024 + 192 * self.spec.outputs.len();
        (256 + spec + task * self.most_tasks()) as u64 + self.course_weight()
    }

    /// The same of its course: room for the longest while it lives, and what it takes once it is over.
    pub(super) fn course_weight(&self) -> u64 {
        let course = self.course.as_ref();
        let weight =
            course.map_or(0, |course| course.weight(self.most_tasks(), self.over.is_some()));
        match &self.spec.training {
            Some(Training::Server(_)) if self.over.is_none() => weight + server::WEIGHT,
            _ => weight,
        }
    }

    fn most_tasks(&self) -> usize {
        if self.spec.place.each { MAX_EACH } else { self.tasks.len() }
    }
}

/// A task that begins: see [`Change::place`].
pub(super) fn begun(at: Moment, placed: Placed) -> TaskState {
    let Placed { node, allotment, .. } = placed;
    TaskState::Given(Given {
        node,
        at,
        allotment,
        phase: Phase::Placed,
        endpoint: None,
        running: None,
        ending: None,
    })
}
