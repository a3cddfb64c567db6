//! Reading what the state says of jobs.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::id::{JobId, NodeId, PartyId};

use super::super::course::Verdict;
use super::super::name::Name;
use super::super::{Facts, State};
use super::{Given, How, Job, Phase, Stage, Task, TaskState};
use crate::job::JobSpec;
use crate::scheduler::shares::Usage;

/// The label with which a node's owner says whose work it takes: `all`, or its own party's if there is none.
pub const TAKES: &str = "takes";

/// The label with which a node's owner says for whose jobs it trains: `all`, or a party's name. It is another one because a
/// task that trains is let at the party's own data, which other work is not.
pub const TRAINS: &str = "trains";

/// The value of [`TAKES`] and [`TRAINS`] that means every party.
const ALL: &str = "all";

impl State {
    /// Every job that is kept.
    pub fn jobs(&self) -> &BTreeMap<JobId, Job> {
        &self.facts.jobs.all
    }

    /// One of them.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.facts.jobs.all.get(&id)
    }

    /// Those that are not over, by id.
    pub fn live_jobs(&self) -> impl Iterator<Item = (JobId, &Job)> {
        let jobs = &self.facts.jobs;
        jobs.derived.live.iter().filter_map(|id| Some((*id, jobs.all.get(id)?)))
    }

    /// How many plans have counted: what the next one must say.
    pub fn plans(&self) -> u64 {
        self.facts.jobs.plans
    }

    /// What a party has used.
    pub fn usage(&self, party: PartyId) -> Usage {
        self.facts.jobs.usage.get(&party).copied().unwrap_or_default()
    }

    /// Whether the jobs before it are done.
    pub fn may_start(&self, job: &Job) -> bool {
        self.facts.jobs.may_start(job)
    }

    /// The attempts that a node has: job, number of the task, and the attempt.
    pub fn given_to(&self, node: NodeId) -> impl Iterator<Item = (JobId, u32, &Given)> {
        self.live_jobs().flat_map(move |(id, job)| {
            let tasks = job.tasks.iter().enumerate();
            tasks.filter_map(move |(number, task)| {
                let given = task.given().filter(|given| given.node == node)?;
                Some((id, number as u32, given))
            })
        })
    }

    /// Whether `node` takes work of `party`.
    pub fn takes_work_of(&self, node: NodeId, party: PartyId) -> bool {
        let own = self.party_of(node);
        own.is_some_and(|own| self.facts.takes_work_of(node, own, party))
    }

    /// Whether `node` takes everybody's work.
    pub fn takes_all(&self, node: NodeId) -> bool {
        self.facts.takes_all(node)
    }

    /// Whether `node`, which is of the party `own`, trains for the jobs of `party`.
    pub fn may_train_for(&self, node: NodeId, own: PartyId, party: PartyId) -> bool {
        self.facts.may_train_for(node, own, party)
    }

    /// The other parties for whose jobs `node` trains.
    pub fn trains_for(&self, node: NodeId) -> BTreeSet<PartyId> {
        let own = self.party_of(node);
        // Most nodes have no such label, and need not be asked about every party.
        let Some(own) = own.filter(|_| self.facts.label_of(node, TRAINS).is_some()) else {
            return BTreeSet::new();
        };
        let others = self.parties().keys().copied().filter(|party| *party != own);
        others.filter(|party| self.may_train_for(node, own, *party)).collect()
    }

    /// Whether `node` takes this task of a job of `party`.
    pub fn takes_task(&self, node: NodeId, party: PartyId, spec: &JobSpec, task: u32) -> bool {
        let own = self.party_of(node);
        own.is_some_and(|own| self.facts.takes_task(node, own, party, spec, task))
    }

    /// Grows whenever anything about jobs may have changed. Like [`State::revision`], it is this process's own.
    pub fn jobs_revision(&self) -> u64 {
        self.jobs_revision
    }
}

impl Facts {
    pub(super) fn takes_work_of(&self, node: NodeId, own: PartyId, party: PartyId) -> bool {
        own == party || self.takes_all(node)
    }

    fn takes_all(&self, node: NodeId) -> bool {
        self.label_of(node, TAKES) == Some(ALL)
    }

    fn may_train_for(&self, node: NodeId, own: PartyId, party: PartyId) -> bool {
        let named = |label: &str| {
            label == ALL
                || self.parties.get(&party).is_some_and(|party| party.name.as_str() == label)
        };
        own == party || self.label_of(node, TRAINS).is_some_and(named)
    }

    /// Whether a node of the party `own` takes this task of a job of `party`: it is welcome there, and wants to be there.
    pub(super) fn takes_task(
        &self,
        node: NodeId,
        own: PartyId,
        party: PartyId,
        spec: &JobSpec,
        task: u32,
    ) -> bool {
        let welcome = match spec.training {
            Some(_) => self.may_train_for(node, own, party),
            None => self.takes_work_of(node, own, party),
        };
        let wanted = spec.group_of(task).and_then(|(group, _)| group.party.as_ref());
        let is_wanted =
            |name: &Name| self.parties.get(&own).is_some_and(|party| party.name == *name);
        welcome && wanted.is_none_or(is_wanted)
    }

    fn label_of(&self, node: NodeId, key: &str) -> Option<&str> {
        let labels = self.extras.labels.get(&node)?;
        labels.iter().find(|(known, _)| known.as_str() == key).map(|(_, value)| value.as_str())
    }
}

impl Job {
    /// Where it stands as a whole.
    pub fn stage(&self) -> Stage {
        if self.over.is_some() {
            return self.final_stage();
        }
        if self.stopping.is_some() {
            return Stage::Stopping;
        }
        // The task that is farthest tells of a job that has begun; a gang begins together.
        let live = self.tasks.iter().filter(|task| task.end().is_none());
        live.map(Task::stage).max().unwrap_or(Stage::Waiting)
    }

    fn final_stage(&self) -> Stage {
        match self.verdict() {
            Some(Verdict::Done { .. } | Verdict::Spent { .. }) => return Stage::Done,
            Some(Verdict::Failed(_)) => return Stage::Failed,
            None => {}
        }
        let ends = || self.tasks.iter().filter_map(Task::end);
        let is = |wanted: fn(&How) -> bool| ends().any(|end| wanted(&end.how));
        if is(|how| matches!(how, How::Failed(_) | How::WithGang | How::Before(_))) {
            Stage::Failed
        } else if self.tasks.is_empty() || is(|how| matches!(how, How::Stopped)) {
            Stage::Stopped
        } else if is(|how| matches!(how, How::Lost)) {
            Stage::Lost
        } else {
            Stage::Done
        }
    }

    /// Why it ended as it did, in words; or what holds it up.
    pub fn reason(&self) -> Option<String> {
        if let Some(text) = self.course_reason() {
            return Some(text);
        }
        let mut ends = self.tasks.iter().enumerate().filter_map(|(n, task)| Some((n, task.end()?)));
        let many = self.tasks.len() > 1;
        let of = |n: usize, text: String| if many { format!("task {n}: {text}") } else { text };
        let (mut stopped, mut lost) = (0, 0);
        let mut first = None;
        for (n, end) in ends.by_ref() {
            match &end.how {
                How::Failed(exit) => return Some(of(n, exit.text())),
                How::Before(id) => first = Some(format!("job {} was not done", id.short())),
                How::Stopped => stopped += 1,
                How::Lost => lost += 1,
                How::Done | How::WithGang | How::LeftOut => {}
            }
        }
        if first.is_some() {
            return first;
        }
        match self.stage() {
            Stage::Stopped | Stage::Stopping => Some("somebody stopped it".into()),
            Stage::Lost => Some(format!("{lost} of its nodes are gone")),
            _ if stopped > 0 => Some("somebody stopped it".into()),
            Stage::Waiting => {
                let failed = self.tasks.iter().find(|task| task.not_before.is_some())?;
                failed.last.as_ref().map(|exit| format!("to be tried again after {}", exit.text()))
            }
            _ => None,
        }
    }
}

impl Task {
    /// Where it stands.
    pub fn stage(&self) -> Stage {
        match &self.state {
            TaskState::Waiting => Stage::Waiting,
            TaskState::Given(given) if given.ending.is_some() => Stage::Stopping,
            TaskState::Given(given) => match given.phase {
                Phase::Placed => Stage::Placed,
                Phase::Fetching | Phase::Ready => Stage::Fetching,
                Phase::Running => Stage::Running,
            },
            TaskState::Ended(end) => match end.how {
                How::Done => Stage::Done,
                How::Failed(_) | How::WithGang | How::Before(_) => Stage::Failed,
                How::Stopped | How::LeftOut => Stage::Stopped,
                How::Lost => Stage::Lost,
            },
        }
    }
}
