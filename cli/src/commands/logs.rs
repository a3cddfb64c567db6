//! `mesh logs`: what a job's tasks printed.

use std::process::ExitCode;
use std::time::Duration;

use crate::answers::Job;
use crate::context::{Context, note};
use crate::follow::{self, LogWish, words};
use crate::report::Outcome;
use crate::value;
use crate::view::clean;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh logs mnist-cnn                     all that is kept
  mesh logs -f 1a2b                       and what comes, until the job is over
  mesh logs 1a2b -n 100                   the last lines of each task
  mesh logs 1a2b --since 10m --timestamps
  mesh logs 1a2b --task 3                 one task of several
  mesh logs 1a2b --json | jq -r 'select(.stream == \"err\") | .text'

What a task printed to standard error goes to standard error here, too. If there are several tasks,
each line begins with task N |. Exits with 0 whatever became of the job: see mesh wait.";

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
        follow: logs.follow,
        since_ms: logs.since.map(|since| {
            let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            mesh_node::clock::now().0.saturating_sub(since_ms)
        }),
        lines: logs.lines,
        times: logs.timestamps,
    };
    let lines = follow::logs(&api, context, &job, &wish).await?;
    if lines == 0 && !context.json && !logs.follow {
        let how = match words::progress(&job) {
            said if said.is_empty() => job.state.clone(),
            said => said,
        };
        note(&clean(&format!("{} has printed nothing: it is {how}", job.called())));
    }
    Ok(ExitCode::SUCCESS)
}
