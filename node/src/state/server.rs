//! Where the shards of a parameter server are: who holds which range of the model, who stands by, and since when.
//!
//! ```text
//!              ServerLay                     ServerReady
//!   nothing ─────────────► Fresh ──────────────────────────────► Ready ◄──────────┐
//!      ▲                     ▲   the values of a checkpoint are     │              │ ServerReady
//!      │                     │   with the primary and its backup    │ ServerShard  │
//!      │                     │                                      ▼              │
//!      │                     └── both lost: ServerLay, all ◄──── Copying ──────────┘
//!   the job is over              go back to one checkpoint           the backup gets a copy
//! ```
//!
//! A shard's **epoch** is the index of the entry that last said who has it. It fences: a primary of an earlier epoch gets no
//! acknowledgement from the backup, and is told no by whoever knows better. A backup becomes the primary only from *Ready*: then,
//! and only then, it has everything that was acknowledged. Values never stand here.
//!
//! In a snapshot all this follows everything else, from level 7 on.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::machine::At;
use serde::{Deserialize, Serialize};

use super::Facts;
use super::State;
use super::course::{Course, MAX_METRICS, MAX_SHARDS, Model, Point, Times};
use super::jobs::Job;
use super::name::Name;
use super::refusal::Refusal;
use crate::job::training::{MAX_WORKERS, Real, Server, Training};

/// The level from which on there are parameter servers.
pub(super) const SINCE: u16 = 7;

/// No less than what stands here takes for one job.
pub(super) const WEIGHT: u64 = 8 << 10;

/// The shards of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Laid {
    /// The index of the entry that laid them out. What was held for an earlier one is of no use.
    pub at: u64,
    /// The step of the checkpoint from which they began.
    pub step: u32,
    /// In the order of the model's values.
    pub shards: Vec<Shard>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The index of the entry that said so.
    pub epoch: u64,
    /// Who answers.
    pub primary: NodeId,
    /// Who takes over. `None` where nobody else can.
    pub backup: Option<NodeId>,
    /// How far that is.
    pub stage: Stage,
}

/// How far a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Its values are those of the checkpoint, and nothing was acknowledged yet.
    Fresh,
    /// The backup has no copy yet: nothing is acknowledged.
    Copying,
    /// The backup has all that is acknowledged.
    Ready,
}

/// Lays out all shards, from the model that stands. By whoever coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLay {
    /// Of which job.
    pub job: JobId,
    /// The epoch of the author's lease.
    pub epoch: u64,
    /// Primary and backup of each.
    pub shards: Vec<(NodeId, Option<NodeId>)>,
}

/// Gives a shard another backup, or makes the backup its primary. By whoever coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerShard {
    /// Of which job.
    pub job: JobId,
    /// The epoch of the author's lease.
    pub epoch: u64,
    /// Which shard.
    pub shard: u32,
    /// The shard's epoch, as the author knows it.
    pub expect: u64,
    /// Who answers from now on.
    pub primary: NodeId,
    /// Who stands by.
    pub backup: Option<NodeId>,
}

/// Says that the primary has its values, and the backup a copy. By whoever coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerReady {
    /// Of which job.
    pub job: JobId,
    /// The epoch of the author's lease.
    pub epoch: u64,
    /// Which shard.
    pub shard: u32,
    /// The shard's epoch, as the author knows it.
    pub expect: u64,
}

/// Keeps a checkpoint: all shards at one step, on two nodes. By whoever coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerKeep {
    /// Of which job.
    pub job: JobId,
    /// The epoch of the author's lease.
    pub epoch: u64,
    /// The model; its `round` is the step. What `optimiser` names is all that a shard keeps beside its values.
    pub model: Model,
    /// What workers measured last.
    pub metrics: BTreeMap<Name, Real>,
    /// How far each worker is, by its task.
    pub workers: BTreeMap<u32, Far>,
}

/// How far a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Far {
    /// Steps, or batches, that it has pushed.
    pub steps: u32,
    /// How long the last one took.
    pub times: Times,
}

/// A parameter server that goes on.
struct Live<'a> {
    job: &'a Job,
    asked: &'a Server,
    course: &'a Course,
}

impl State {
    /// Where the shards of a job are. `None` before they are laid out, and once the job is over.
    pub fn laid(&self, job: JobId) -> Option<&Laid> {
        self.facts.jobs.servers.get(&job)
    }
}

impl Facts {
    pub(in crate::state) fn server_lay(&mut self, at: &At, act: ServerLay) -> Result<(), Refusal> {
        let Live { job, course, .. } = self.leased_server(at, act.job, act.epoch)?;
        let model = course.model.as_ref().ok_or(Refusal::BadShard)?;
        let pairs = act.shards.iter();
        let fits = act.shards.len() == model.weights.len()
            && pairs.clone().all(|(primary, backup)| self.may_serve(job, *primary, *backup));
        if !fits {
            return Err(Refusal::BadShard);
        }

        let shard = |(primary, backup): &(NodeId, Option<NodeId>)| Shard {
            epoch: at.index,
            primary: *primary,
            backup: *backup,
            stage: Stage::Fresh,
        };
        let laid = Laid { at: at.index, step: model.round, shards: pairs.map(shard).collect() };
        self.jobs.servers.insert(act.job, laid);
        self.change_course(at, act.job, |course| course.renew(at.time));
        Ok(())
    }

    pub(in crate::state) fn server_shard(
        &mut self,
        at: &At,
        act: &ServerShard,
    ) -> Result<(), Refusal> {
        let Live { job, .. } = self.leased_server(at, act.job, act.epoch)?;
        let before = self.jobs.shard(act.job, act.shard).ok_or(Refusal::BadShard)?;
        if before.epoch != act.expect {
            return Err(Refusal::StaleShard);
        }
        let stays = act.primary == before.primary;
        let takes_over = before.backup == Some(act.primary) && before.stage == Stage::Ready;
        if !(stays || takes_over) || !self.may_serve(job, act.primary, act.backup) {
            return Err(Refusal::BadShard);
        }

        let stage = match (before.stage, act.backup) {
            (Stage::Fresh, _) => Stage::Fresh,
            (_, None) => Stage::Ready,
            (_, Some(_)) => Stage::Copying,
        };
        let ServerShard { primary, backup, .. } = *act;
        let after = Shard { epoch: at.index, primary, backup, stage };
        self.jobs.set_shard(act.job, act.shard, after);
        self.change_course(at, act.job, |course| course.renew(at.time));
        Ok(())
    }

    pub(in crate::state) fn server_ready(
        &mut self,
        at: &At,
        act: &ServerReady,
    ) -> Result<(), Refusal> {
        self.leased_server(at, act.job, act.epoch)?;
        let before = self.jobs.shard(act.job, act.shard).ok_or(Refusal::BadShard)?;
        if before.epoch != act.expect {
            return Err(Refusal::StaleShard);
        }

        self.jobs.set_shard(act.job, act.shard, Shard { stage: Stage::Ready, ..before });
        self.change_course(at, act.job, |course| course.renew(at.time));
        Ok(())
    }

    pub(in crate::state) fn server_keep(
        &mut self,
        at: &At,
        act: ServerKeep,
    ) -> Result<(), Refusal> {
        let Live { job, asked, course } = self.leased_server(at, act.job, act.epoch)?;
        let ServerKeep { model, metrics, workers, .. } = &act;
        let follows = match &course.model {
            None => model.round == 0 && model.weights.len() <= asked.shards as usize,
            Some(stands) => model.round > stands.round && model.is_shaped_like(stands),
        };
        let is_task = |task: &u32| (*task as usize) < job.tasks.len();
        let fits = follows
            && model.round <= asked.steps
            && self.is_held_by(job, model)
            && metrics.len() <= MAX_METRICS
            && workers.len() <= MAX_WORKERS as usize
            && workers.keys().all(is_task);
        if !fits {
            return Err(Refusal::BadRound);
        }

        let ServerKeep { job, model, metrics, workers, .. } = act;
        self.change_course(at, job, |course| {
            course.renew(at.time);
            for (task, far) in workers {
                let record = course.records.entry(task).or_default();
                record.taken = record.taken.max(far.steps);
                record.examples = record.examples.max(u64::from(far.steps));
                record.times = far.times;
            }
            course.point(Point { round: model.round, at: at.time, metrics });
            course.model = Some(model);
        });
        Ok(())
    }

    /// A parameter server that the author coordinates.
    fn leased_server(&self, at: &At, id: JobId, epoch: u64) -> Result<Live<'_>, Refusal> {
        let (job, course) = self.leased_any(at, id, epoch)?;
        match &job.spec.training {
            Some(Training::Server(asked)) => Ok(Live { job, asked, course }),
            _ => Err(Refusal::NoCourse),
        }
    }

    /// Whether these nodes can have a shard: two that stay, of the job's own party.
    fn may_serve(&self, job: &Job, primary: NodeId, backup: Option<NodeId>) -> bool {
        let own = |node: NodeId| self.staying(node).is_some_and(|one| one.party == job.party);
        own(primary) && backup.is_none_or(|backup| backup != primary && own(backup))
    }

    /// Whether a model is one, and two nodes of the job's party hold it, where there are two: for others it is not.
    fn is_held_by(&self, job: &Job, model: &Model) -> bool {
        let own = |node: NodeId| self.staying(node).is_some_and(|one| one.party == job.party);
        let there = self.members.keys().filter(|node| own(**node)).count();
        model.is_sound()
            && model.holders.len() >= there.min(2)
            && model.holders.iter().all(|node| own(*node))
    }

    /// Whether shards are only of jobs that have them, and as many as their model has.
    pub(in crate::state) fn are_servers_sound(&self) -> bool {
        self.jobs.servers.iter().all(|(id, laid)| {
            let Some(job) = self.jobs.all.get(id).filter(|job| job.over.is_none()) else {
                return false;
            };
            let model = job.course.as_ref().and_then(|course| course.model.as_ref());
            let sound = |shard: &Shard| {
                (laid.at..).contains(&shard.epoch) && shard.backup != Some(shard.primary)
            };
            matches!(job.spec.training, Some(Training::Server(_)))
                && model.is_some_and(|model| model.weights.len() == laid.shards.len())
                && (1..=MAX_SHARDS).contains(&laid.shards.len())
                && laid.at > 0
                && laid.shards.iter().all(sound)
        })
    }
}

impl super::jobs::Jobs {
    fn shard(&self, job: JobId, shard: u32) -> Option<Shard> {
        self.servers.get(&job)?.shards.get(shard as usize).copied()
    }

    fn set_shard(&mut self, job: JobId, shard: u32, to: Shard) {
        let laid = self.servers.get_mut(&job);
        if let Some(held) = laid.and_then(|laid| laid.shards.get_mut(shard as usize)) {
            *held = to;
        }
    }
}
