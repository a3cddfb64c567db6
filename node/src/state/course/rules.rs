//! Who may ask what about a training. Everything is checked before anything changes: what is refused leaves no trace.

use std::collections::BTreeSet;

use mesh_consensus::id::{JobId, NodeId, PartyId};
use mesh_consensus::machine::At;

use super::super::jobs::{Job, Jobs};
use super::super::name::Name;
use super::super::refusal::Refusal;
use super::super::{Facts, Moment};
use super::change::end_of;
use super::{
    Counted, CountedAs, Course, CourseCharge, CourseClaim, CourseEnd, CourseRound, Lease,
    MAX_BUDGETS, MAX_LEASE_MS, MAX_METRICS, MAX_TALLY, Model, Open, Tally, Verdict,
};
use crate::job::training::{Federated, MAX_PARTICIPANTS, Training};
use crate::job::{JobSpec, Source};

/// A training that goes on.
struct Live<'a> {
    job: &'a Job,
    asked: &'a Federated,
    course: &'a Course,
}

impl Facts {
    pub(in crate::state) fn course_claim(
        &mut self,
        at: &At,
        act: &CourseClaim,
    ) -> Result<(), Refusal> {
        let (job, course) = self.live_any(act.job)?;
        if job.stopping.is_some() {
            return Err(Refusal::NoCourse);
        }
        // Whoever coordinates sees no update; and the model is the job's own party's to write down.
        let own = self.staying(at.author).is_some_and(|member| member.party == job.party);
        let may_sum = match &job.spec.training {
            Some(Training::Federated(asked)) => self.may_sum(at.author, asked),
            _ => false,
        };
        if !own && !may_sum {
            return Err(Refusal::NotAggregator);
        }
        if !(1..=MAX_LEASE_MS).contains(&act.ms) {
            return Err(Refusal::BadLease);
        }
        let epoch = match course.lease {
            // Nobody else has had it in between, so whatever it still has on its way is meant.
            Some(lease) if lease.node == at.author => lease.epoch,
            Some(lease) if at.time < lease.until => return Err(Refusal::LeaseTaken),
            _ => at.index,
        };

        let until = end_of(at.time, act.ms);
        self.change_course(at, act.job, |course| {
            course.lease = Some(Lease { node: at.author, epoch, ms: act.ms, until });
        });
        Ok(())
    }

    pub(in crate::state) fn course_round(
        &mut self,
        at: &At,
        act: CourseRound,
    ) -> Result<(), Refusal> {
        let live = self.leased_course(at, act.job, act.epoch)?;
        self.check_round(&live, &act)?;

        self.change_course(at, act.job, |course| course.go_on(at.time, act));
        Ok(())
    }

    pub(in crate::state) fn course_charge(
        &mut self,
        at: &At,
        act: &CourseCharge,
    ) -> Result<(), Refusal> {
        let Live { job, asked, course } = self.leased_course(at, act.job, act.epoch)?;
        let is_open = course.open.as_ref().is_some_and(|open| open.round == act.round);
        if !is_open || !are_tasks(&act.tasks, job.tasks.len()) {
            return Err(Refusal::BadCharge);
        }
        let privacy = asked.privacy.as_ref().ok_or(Refusal::BadCharge)?;
        let noise = privacy.noise.get().to_bits();
        let lines = self.lines(&job.spec, &act.tasks);
        if !self.jobs.has_room_for(&lines, noise) {
            return Err(Refusal::TooManyBudgets);
        }

        for line in lines {
            let rounds = self.jobs.budgets.entry(line).or_default().entry(noise).or_default();
            *rounds = rounds.saturating_add(1);
        }
        self.change_course(at, act.job, |course| course.charge(at.time, &act.tasks));
        Ok(())
    }

    pub(in crate::state) fn course_end(&mut self, at: &At, act: CourseEnd) -> Result<(), Refusal> {
        let (job, course) = self.leased_any(at, act.job, act.epoch)?;
        self.check_verdict(job, course, &act.verdict)?;

        let id = act.job;
        self.change_course(at, id, |course| course.close(at.time, act.verdict));
        self.leave_out_waiting(id);
        Ok(())
    }

    /// A job and its course, if it trains and that goes on.
    fn live_any(&self, id: JobId) -> Result<(&Job, &Course), Refusal> {
        let job = self.jobs.all.get(&id).ok_or(Refusal::NoSuchJob)?;
        match &job.course {
            Some(course) if job.over.is_none() && course.verdict.is_none() => Ok((job, course)),
            _ => Err(Refusal::NoCourse),
        }
    }

    /// The same, if the author coordinates it. A lease that ran out counts until another node has it.
    pub(in crate::state) fn leased_any(
        &self,
        at: &At,
        id: JobId,
        epoch: u64,
    ) -> Result<(&Job, &Course), Refusal> {
        let (job, course) = self.live_any(id)?;
        let lease = course.lease.filter(|lease| lease.node == at.author);
        match lease {
            Some(lease) if lease.epoch == epoch => Ok((job, course)),
            _ => Err(Refusal::StaleEpoch),
        }
    }

    /// The same of a federated job.
    fn leased_course(&self, at: &At, id: JobId, epoch: u64) -> Result<Live<'_>, Refusal> {
        let (job, course) = self.leased_any(at, id, epoch)?;
        match &job.spec.training {
            Some(Training::Federated(asked)) => Ok(Live { job, asked, course }),
            _ => Err(Refusal::NoCourse),
        }
    }

    /// Changes a course that was found to be there.
    pub(in crate::state) fn change_course(
        &mut self,
        at: &At,
        id: JobId,
        change: impl FnOnce(&mut Course),
    ) {
        self.jobs.now = Moment::of(at);
        let course = self.jobs.all.get_mut(&id).and_then(|job| job.course.as_mut());
        if let Some(course) = course {
            change(course);
        }
    }

    /// Whether a node may see and sum single updates.
    fn may_sum(&self, node: NodeId, asked: &Federated) -> bool {
        let party = self.staying(node).and_then(|member| self.parties.get(&member.party));
        party.is_some_and(|party| asked.aggregators.contains(&party.name))
    }

    fn check_round(&self, live: &Live<'_>, act: &CourseRound) -> Result<(), Refusal> {
        let CourseRound { model, counted, metrics, open, .. } = act;
        match model {
            Some(model) => {
                if !self.comes_next(live, model) || metrics.len() > MAX_METRICS {
                    return Err(Refusal::BadRound);
                }
                check_counted(live, model.round, counted)?;
            }
            // A round that is opened, or once more: nothing has come of it yet.
            None if open.is_some() && counted.is_empty() && metrics.is_empty() => {}
            None => return Err(Refusal::BadRound),
        }
        let stands = model.as_ref().or(live.course.model.as_ref());
        let opens = open.as_ref().is_none_or(|open| self.may_open(live, stands, open));
        if opens { Ok(()) } else { Err(Refusal::BadRound) }
    }

    /// Whether a model is that of the open round, is held by enough, and looks like the one before.
    fn comes_next(&self, live: &Live<'_>, model: &Model) -> bool {
        let Course { model: stands, open, .. } = live.course;
        open.as_ref().is_some_and(|open| open.round == model.round)
            && self.is_held(model)
            && stands.as_ref().is_none_or(|stands| model.is_shaped_like(stands))
    }

    /// Whether a model is one, and two members hold it, where there are two.
    fn is_held(&self, model: &Model) -> bool {
        let members = self.members.values().filter(|member| !member.leaving).count();
        model.is_sound()
            && model.holders.len() >= members.min(2)
            && model.holders.iter().all(|node| self.staying(*node).is_some())
    }

    /// Whether a round follows the model that stands, and is summed by those who may.
    fn may_open(&self, live: &Live<'_>, stands: Option<&Model>, open: &Open) -> bool {
        open.round == stands.map_or(0, |model| model.round.saturating_add(1))
            && open.round <= live.asked.rounds
            && open.is_sound(live.job.tasks.len())
            && open.aggregators.iter().all(|node| self.may_sum(*node, live.asked))
    }

    /// The model that it names is a version of the job's party; all rounds are in it if it is done.
    fn check_verdict(&self, job: &Job, course: &Course, verdict: &Verdict) -> Result<(), Refusal> {
        let round = course.model.as_ref().map(|model| model.round);
        let rounds = job.spec.training.as_ref().map(Training::rounds);
        let (model, fits) = match verdict {
            Verdict::Done { model } => (model, round.is_some() && round == rounds),
            Verdict::Spent { model } => (model, round.is_some()),
            Verdict::Failed(_) => return Ok(()),
        };
        let version = self.data.versions.get(model).ok_or(Refusal::NoSuchVersion)?;
        if fits && version.party == job.party { Ok(()) } else { Err(Refusal::BadVerdict) }
    }

    /// Which budgets a round of these tasks is charged to. A group is called after its party.
    pub(super) fn lines(&self, spec: &JobSpec, tasks: &BTreeSet<u32>) -> Vec<(PartyId, Name)> {
        let names = data_names(spec);
        let groups = tasks.iter().filter_map(|task| spec.group_of(*task));
        let parties = groups.filter_map(|(group, _)| {
            let mut parties = self.parties.iter();
            parties.find(|(_, party)| party.name == group.name).map(|(id, _)| *id)
        });
        parties.flat_map(|party| names.iter().map(move |name| (party, name.clone()))).collect()
    }
}

impl Jobs {
    /// Whether one more round with this noise can be charged to each.
    fn has_room_for(&self, lines: &[(PartyId, Name)], noise: u64) -> bool {
        let new: BTreeSet<&(PartyId, Name)> =
            lines.iter().filter(|line| !self.budgets.contains_key(*line)).collect();
        let fits = |tally: &Tally| tally.contains_key(&noise) || tally.len() < MAX_TALLY;
        self.budgets.len() + new.len() <= MAX_BUDGETS
            && lines.iter().filter_map(|line| self.budgets.get(line)).all(fits)
    }
}

/// The data whose budgets a job spends: what it names `each/NAME`, whichever version. Other data is not a party's own.
fn data_names(spec: &JobSpec) -> Vec<Name> {
    let name = |source: &Source| match source {
        Source::Each(text) => text.split(['@', ':']).next()?.parse().ok(),
        Source::Version(_) => None,
    };
    let names: BTreeSet<Name> = spec.data.values().filter_map(|mount| name(&mount.what)).collect();
    names.into_iter().collect()
}

/// Whether there are some, not too many, and all are tasks of a job that has so many.
pub(super) fn are_tasks(numbers: &BTreeSet<u32>, tasks: usize) -> bool {
    (1..=MAX_PARTICIPANTS).contains(&numbers.len())
        && numbers.iter().all(|number| (*number as usize) < tasks)
}

/// What came of whom: each task once, each update once, and enough of them.
fn check_counted(live: &Live<'_>, round: u32, counted: &[Counted]) -> Result<(), Refusal> {
    let Live { job, asked, course } = live;
    if counted.len() > MAX_PARTICIPANTS {
        return Err(Refusal::BadRound);
    }
    let (mut seen, mut taken) = (BTreeSet::new(), 0u32);
    for Counted { task: number, how, .. } in counted {
        let task = job.tasks.get(*number as usize).ok_or(Refusal::BadRound)?;
        if !seen.insert(*number) {
            return Err(Refusal::BadRound);
        }
        // An earlier attempt may have made what a later one was not needed for.
        let had = |fence: u64| (1..=task.fence).contains(&fence);
        match how {
            CountedAs::Taken { fence, serial, base, .. } => {
                // The first model begins from nothing.
                if !had(*fence) || (round > 0 && *base >= round) {
                    return Err(Refusal::BadRound);
                }
                let last = course.records.get(number).and_then(|record| record.last);
                if last >= Some((*fence, *serial)) {
                    return Err(Refusal::CountedTwice);
                }
                taken += 1;
            }
            CountedAs::Refused { fence, .. } if !had(*fence) => return Err(Refusal::BadRound),
            CountedAs::Refused { .. } | CountedAs::Missed => {}
        }
    }
    let enough = match round {
        // One makes the first model; nobody does where the job brings it along.
        0 => taken == 1 || (taken == 0 && asked.start.is_some()),
        _ => taken >= asked.min_parties,
    };
    if enough { Ok(()) } else { Err(Refusal::BadRound) }
}
