//! What must hold in a snapshot's jobs, whoever wrote it.

use super::super::Facts;
use super::change::MAX_EACH;
use super::{Job, MAX_FAILED_ON, MAX_JOBS_BYTES, Task, TaskState};

impl Facts {
    /// What does not hold in the jobs although it always should.
    pub(in crate::state) fn flaw_in_jobs(&self) -> Option<&'static str> {
        let jobs = &self.jobs;
        let mut all = jobs.all.values();
        let counts = |job: &Job| {
            let count = job.tasks.len();
            if job.spec.place.each { count <= MAX_EACH } else { count == job.spec.tasks() as usize }
        };
        let sound = |task: &Task| {
            let given = match &task.state {
                TaskState::Given(given) => {
                    self.members.contains_key(&given.node)
                        && given.allotment.is_sound()
                        && given.at.index == task.fence
                }
                _ => true,
            };
            given && task.failed_on.len() <= MAX_FAILED_ON
        };
        let is_over = |job: &Job| job.tasks.iter().all(|task| task.end().is_some());
        let rules = [
            (
                all.clone().all(|job| self.parties.contains_key(&job.party)),
                "a job has an unknown party",
            ),
            (all.clone().all(|job| job.spec.flaw().is_none() && counts(job)), "a job is not one"),
            (all.clone().flat_map(|job| &job.tasks).all(sound), "a task is where it cannot be"),
            (all.clone().all(|job| self.is_course_sound(job)), "a training is not one"),
            (self.are_servers_sound(), "a shard is not one"),
            (self.are_budgets_sound(), "a budget is not one, or there are too many"),
            (all.all(|job| job.over.is_none() || is_over(job)), "a job is over that is not"),
            (jobs.weight() <= MAX_JOBS_BYTES, "there are more jobs than there may be"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, flaw)| flaw)
    }
}
