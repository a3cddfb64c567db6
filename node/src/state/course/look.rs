//! Reading what the state says of trainings.

use std::collections::BTreeSet;

use mesh_consensus::id::{JobId, PartyId};

use super::super::State;
use super::super::jobs::{How, Job, Task};
use super::super::name::Name;
use super::{Course, Record, Tally, Verdict};
use crate::job::training::Training;

/// So much is told of who was left out; of the rest, how much there is.
const MAX_TOLD: usize = 8;

impl State {
    /// How the training of a job goes. `None` if it trains nothing, or there is no such job.
    pub fn course(&self, job: JobId) -> Option<&Course> {
        self.job(job)?.course.as_ref()
    }

    /// What was charged to a party's data, by all trainings ever. `None` if nothing was.
    pub fn budget(&self, party: PartyId, data: &Name) -> Option<&Tally> {
        self.facts.jobs.budgets.get(&(party, data.clone()))
    }

    /// What was charged, by all trainings ever, to the budgets that a task of this job spends from.
    pub fn tallies(&self, job: &Job, task: u32) -> Vec<Tally> {
        let lines = self.facts.lines(&job.spec, &BTreeSet::from([task]));
        lines.iter().filter_map(|line| self.facts.jobs.budgets.get(line)).cloned().collect()
    }
}

impl Job {
    /// How its training ended, if it trains and that has ended.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.course.as_ref()?.verdict.as_ref()
    }

    /// How its training ended and who was left out, dropped or refused, in words. `None` if there is nothing to tell, or if
    /// somebody stopped it first.
    pub(in crate::state) fn course_reason(&self) -> Option<String> {
        let course = self.course.as_ref()?;
        if course.verdict.is_none() && self.stopping.is_some() {
            return None;
        }
        let mut told: Vec<String> = self.spent_or_failed(course).into_iter().collect();
        let tasks = self.tasks.iter().enumerate();
        let fates = tasks.flat_map(|(number, task)| self.fate(course, number as u32, task));
        let fates: Vec<String> = fates.collect();
        told.extend(fates.iter().take(MAX_TOLD).cloned());
        if fates.len() > MAX_TOLD {
            told.push(format!("and {} more", fates.len() - MAX_TOLD));
        }
        (!told.is_empty()).then(|| told.join("; "))
    }

    fn spent_or_failed(&self, course: &Course) -> Option<String> {
        match (&course.verdict, &self.spec.training) {
            (Some(Verdict::Failed(note)), _) => Some(note.to_string()),
            (Some(Verdict::Spent { .. }), Some(Training::Federated(asked))) => {
                let round = course.model.as_ref().map_or(0, |model| model.round);
                Some(format!("the budget was spent after round {round} of {}", asked.rounds))
            }
            _ => None,
        }
    }

    /// What there is to tell of a participant: nothing if all went well.
    fn fate(&self, course: &Course, number: u32, task: &Task) -> Vec<String> {
        let name = match self.spec.group_of(number) {
            Some((group, _)) => group.name.to_string(),
            None => format!("task {number}"),
        };
        let record = course.records.get(&number).cloned().unwrap_or_default();
        let Record { refused, missed_in_a_row, why, .. } = record;
        let ended = match task.end().map(|end| &end.how) {
            Some(How::Failed(exit)) => Some(format!("{name} was dropped: {}", exit.text())),
            Some(How::Lost) => Some(format!("{name} was dropped: its node is gone")),
            Some(How::LeftOut) => Some(format!("{name} was left out")),
            // While it goes on, that is no more than slow.
            _ if course.verdict.is_none() => None,
            _ => match missed_in_a_row {
                0 => None,
                1 => Some(format!("{name} missed the last round")),
                many => Some(format!("{name} missed the last {many} rounds")),
            },
        };
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let refused = match refused {
            0 => None,
            1 => Some(format!("an update of {name} was refused{why}")),
            many => Some(format!("{many} updates of {name} were refused{why}")),
        };
        ended.into_iter().chain(refused).collect()
    }
}
