//! `mesh logs`: what a job's tasks printed.

use std::process::ExitCode;
use std::time::Duration;

use crate::answers::Job;
use crate::context::{Context, note};
use crate::follow::{self, LogWish, Logged, words};
use crate::report::{Code, Outcome, Report};
use crate::value;
use crate::view::clean;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh logs mnist-cnn                     all that is kept
  mesh logs -f 1a2b                       and what comes, until the job is over
  mesh logs 1a2b -n 100                   the last lines of each task
  mesh logs 1a2b --since 10m --timestamps
  mesh logs 1a2b --task 3                 one task of several
  mesh logs 1a2b --attempt 1              the first attempt of several, if its node still has it
  mesh logs 1a2b --json | jq -r 'select(.stream == \"err\") | .text'

What a task printed to standard error goes to standard error here, too. If there are several tasks,
each line begins with task N |. Exits with 0 whatever became of the job (see mesh wait), with 3 if
no node that has the output answers, and with 1 if only a part of it could be read.";

/// What `logs` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// Which job
    #[arg(value_parser = value::job)]
    job: String,
    /// Go on until the job is over
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Nothing older than this
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    // So that -1h is a time that does not fit, not an option that nobody knows.
    #[arg(allow_hyphen_values = true)]
    since: Option<Duration>,
    /// Only this task, from 0
    #[arg(long, value_name = "N")]
    task: Option<u64>,
    /// This attempt, from 1 [default: the last]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    attempt: Option<u64>,
    /// So many lines from the end of each task's
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "since")]
    lines: Option<u64>,
    /// Say of each line when it was printed
    #[arg(long)]
    timestamps: bool,
}

pub(crate) async fn run(logs: &Logs, context: &Context) -> Outcome {
    let api = context.api()?;
    // By its id from here on: a later job may take the name.
    let job: Job = api.get(&format!("/v1/jobs/{}", logs.job)).await?.item()?;
    let wish = LogWish {
        task: logs.task,
        attempt: logs.attempt,
        follow: logs.follow,
        since_ms: logs.since.map(|since| {
            let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            mesh_node::clock::now().0.saturating_sub(since_ms)
        }),
        lines: logs.lines,
        times: logs.timestamps,
    };
    if let Some(said) = shown(&job, logs.task, logs.attempt).filter(|_| !context.json) {
        note(&clean(&said));
    }
    let Logged { lines, missed } = follow::logs(&api, context, &job, &wish).await?;
    if let Some(report) = unread(&context.command("nodes"), &job, lines, &missed, logs.follow) {
        return Err(report);
    }
    if lines == 0 && !context.json && !logs.follow {
        let how = match words::progress(&job) {
            said if said.is_empty() => job.state.clone(),
            said => said,
        };
        note(&clean(&format!("{} has printed nothing: it is {how}", job.called())));
    }
    Ok(ExitCode::SUCCESS)
}

/// Which attempt is shown, if there were several.
fn shown(job: &Job, task: Option<u64>, attempt: Option<u64>) -> Option<String> {
    let tasks = job.tasks.iter().filter(|one| task.is_none_or(|task| task == one.number));
    let attempts: Vec<u64> = tasks.filter_map(|task| task.attempt).collect();
    let most = attempts.iter().copied().max().filter(|most| *most > 1)?;
    Some(match (attempt, attempts.as_slice()) {
        (Some(attempt), [_]) => format!("attempt {attempt} of {most}"),
        (Some(attempt), _) => format!("attempt {attempt} of each task that had so many"),
        (None, [_]) => format!("attempt {most} of {most}; --attempt N shows an earlier one"),
        (None, _) => {
            format!("the last attempt at each task, of up to {most}; --attempt N shows others")
        }
    })
}

/// What could not be read. Whoever follows a job is told as it goes, and goes on with the next attempt.
fn unread(nodes: &str, job: &Job, lines: u64, missed: &[String], follow: bool) -> Option<Report> {
    if missed.is_empty() || (follow && lines > 0) {
        return None;
    }
    let (code, what) = match lines {
        0 => (Code::Unavailable, "cannot be read now"),
        _ => (Code::Failed, "could only be read in part"),
    };
    Some(Report::new(
        code,
        format!("what {} printed {what}", job.called()),
        missed.join("; "),
        format!("{nodes} shows which nodes are there; then the same again"),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(attempts: &[u64]) -> Job {
        let tasks = attempts.iter().enumerate();
        let tasks = tasks.map(|(n, attempt)| json!({ "number": n, "attempt": attempt }));
        let tasks: Vec<_> = tasks.collect();
        serde_json::from_value(json!({ "id": "1a2b3c4d", "name": "x", "tasks": tasks })).unwrap()
    }

    #[test]
    fn it_is_said_which_attempt_is_shown_if_there_were_several() {
        assert_eq!(shown(&job(&[1]), None, None), None);
        let said = |attempts: &[u64], task, attempt| shown(&job(attempts), task, attempt).unwrap();
        assert!(said(&[3], None, None).starts_with("attempt 3 of 3;"));
        assert_eq!(said(&[3], None, Some(1)), "attempt 1 of 3");
        assert!(said(&[1, 2], None, None).contains("of up to 2"));
        assert!(said(&[1, 2], Some(1), None).starts_with("attempt 2 of 2;"));
        assert_eq!(shown(&job(&[1, 2]), Some(0), None), None);
    }

    #[test]
    fn a_log_that_cannot_be_read_is_a_failure_and_half_of_one_is_too() {
        let missed = ["beta does not answer: it is gone".to_owned()];
        let code = |lines, missed: &[String], follow| {
            unread("mesh nodes", &job(&[1]), lines, missed, follow).map(|report| report.code)
        };
        assert_eq!(code(0, &[], false), None);
        assert_eq!(code(0, &missed, false), Some(Code::Unavailable));
        assert_eq!(code(0, &missed, true), Some(Code::Unavailable));
        assert_eq!(code(7, &missed, false), Some(Code::Failed));
        assert_eq!(code(7, &missed, true), None, "it went on");
    }
}
