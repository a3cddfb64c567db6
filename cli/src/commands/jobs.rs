//! `mesh jobs`: what was submitted, and what became of it.

use std::process::ExitCode;

use super::status::warn_of_age;
use crate::answers::Job;
use crate::client::Answer;
use crate::context::{Context, note, print, print_json};
use crate::live::{self, Drawn};
use crate::report::{Outcome, Report};
use crate::view::{Cell, Column, Table, Tint, count, millis, short_ids, span};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh jobs                                    what waits and runs
  mesh jobs --all                              and what is over, the newest first
  mesh jobs --waiting                          what has no place yet; mesh explain JOB says why
  mesh jobs -w                                 live; q leaves
  mesh jobs --json | jq -r '.items[] | select(.state == \"running\") | .id'

States: waiting, asking (for consent), placed, fetching, running, stopping; then done, failed,
stopped or lost. TASKS counts those that are done; of a training, the rounds.";

/// What `jobs` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Jobs {
    /// Those that are over, too
    #[arg(long, short)]
    all: bool,
    /// Only those that wait for a place
    #[arg(long, conflicts_with = "all")]
    waiting: bool,
    /// Go on showing it
    #[arg(long, short)]
    pub(crate) watch: bool,
}

pub(crate) async fn run(jobs: &Jobs, context: &Context) -> Outcome {
    let path = match (jobs.all, jobs.waiting) {
        (true, _) => "/v1/jobs?all=true",
        (false, true) => "/v1/jobs?waiting=true",
        (false, false) => "/v1/jobs",
    };
    let api = context.api()?;
    if jobs.watch {
        return live::watch(&api, context, path, "mesh jobs", drawn).await;
    }
    let answer = api.get(path).await?;
    if context.json {
        return print_json(answer.json());
    }
    let drawn = drawn(&answer)?;
    warn_of_age(&answer);
    if answer.items::<Job>()?.is_empty() {
        note(match (jobs.all, jobs.waiting) {
            (true, _) => "No job is known. mesh submit job.toml submits one.",
            (false, true) => "No job waits for a place.",
            (false, false) => "No job waits or runs. mesh jobs --all shows those that are over.",
        });
        return Ok(ExitCode::SUCCESS);
    }
    print(&drawn.once())
}

fn drawn(answer: &Answer) -> Result<Drawn, Report> {
    let jobs: Vec<Job> = answer.items()?;
    let now_ms = mesh_node::clock::now().0;
    Ok(Drawn { summary: summary(&jobs), table: table(&jobs, now_ms) })
}

/// `3 jobs · 1 running · 2 waiting`.
fn summary(jobs: &[Job]) -> String {
    let mut states: Vec<(&str, usize)> = Vec::new();
    for job in jobs {
        match states.iter_mut().find(|(state, _)| *state == job.state) {
            Some((_, n)) => *n += 1,
            None => states.push((&job.state, 1)),
        }
    }
    let mut parts = vec![count(jobs.len(), "job")];
    parts.extend(states.into_iter().map(|(state, n)| format!("{n} {state}")));
    parts.join(" · ")
}

fn table(jobs: &[Job], now_ms: u64) -> Table {
    let mut table = Table::new(&[
        Column::new("ID"),
        Column::new("NAME").least(10),
        Column::new("STATE"),
        Column::new("CLASS").least(5).worth(2),
        Column::new("TASKS").right().worth(4),
        Column::new("NODE").least(8).worth(5),
        Column::new("AGE").right().worth(6),
        Column::new("REASON").least(8).worth(3),
    ]);
    let ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
    for (job, id) in jobs.iter().zip(short_ids(&ids)) {
        let age = job.submitted_at.as_deref().and_then(millis);
        let age = age.map(|ms| span(now_ms.saturating_sub(ms))).unwrap_or_default();
        table.row([
            id.into(),
            job.name.as_str().into(),
            Cell::new(&job.state, tint(&job.state)),
            job.class.as_str().into(),
            job.rounds_done().unwrap_or_else(|| tasks_done(job)).into(),
            job.nodes().join(", ").into(),
            age.into(),
            Cell::new(job.reason.as_deref().unwrap_or_default(), Tint::Faint),
        ]);
    }
    table
}

/// `1/3`.
fn tasks_done(job: &Job) -> String {
    format!("{}/{}", job.tasks_done(), job.tasks.len())
}

/// The colour of a job's or a task's state.
pub(crate) fn tint(state: &str) -> Tint {
    match state {
        "running" | "done" => Tint::Good,
        "failed" | "lost" => Tint::Bad,
        "waiting" | "asking" | "stopping" => Tint::Odd,
        "stopped" => Tint::Faint,
        _ => Tint::Plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::Paint;

    fn jobs() -> Vec<Job> {
        serde_json::from_value(json!([
            { "id": "1a2b3c4d".repeat(4), "name": "mnist-cnn", "state": "running", "class": "trial",
              "submitted_at": "2026-11-16T11:55:00Z", "reason": null,
              "tasks": [
                  { "number": 0, "node": "alpha", "state": "done" },
                  { "number": 1, "node": "beta\u{1b}[2J", "state": "running" },
                  { "number": 2, "node": "alpha", "state": "running" },
              ] },
            { "id": "77b0".repeat(8), "name": "a-sweep-with-a-long-name", "state": "waiting",
              "class": "best-effort", "submitted_at": "2026-11-16T09:00:00Z", "reason": "after 1a2b3c4d",
              "tasks": [{ "number": 0, "node": null, "state": "waiting" }] },
            { "id": "91cc".repeat(8), "name": "old", "state": "failed", "class": "trial", "reason": "exit code 7" },
        ]))
        .unwrap()
    }

    #[test]
    fn a_job_is_a_row_with_where_it_is_and_why() {
        let now = millis("2026-11-16T12:00:00Z").unwrap();
        assert_eq!(
            table(&jobs(), now).render(None, Paint(false)),
            "ID        NAME                      STATE    CLASS        TASKS  NODE            AGE  REASON\n\
             1a2b3c4d  mnist-cnn                 running  trial          1/3  alpha, beta[2J   5m  -\n\
             77b077b0  a-sweep-with-a-long-name  waiting  best-effort    0/1  -                3h  after 1a2b3c4d\n\
             91cc91cc  old                       failed   trial          0/0  -                 -  exit code 7\n"
        );
        assert_eq!(summary(&jobs()), "3 jobs · 1 running · 1 waiting · 1 failed");
    }

    #[test]
    fn a_training_is_counted_in_rounds() {
        let mut all = jobs();
        (all[0].round, all[0].rounds) = (Some(3), Some(20));
        (all[1].round, all[1].rounds) = (None, Some(5));
        let text = table(&all, 0).render(None, Paint(false));
        assert!(text.contains("  round 3/20  alpha"), "{text}");
        assert!(text.contains("   round 0/5  -") && text.contains("         0/0  -"), "{text}");
    }

    #[test]
    fn the_table_fits_a_narrow_terminal_and_keeps_what_matters() {
        for width in 40..120 {
            let text = table(&jobs(), 0).render(Some(width), Paint(false));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.contains("STATE") && text.contains("77b077b0"), "{width}:\n{text}");
        }
    }
}
