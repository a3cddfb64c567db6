//! `mesh stop`: asks for the end of jobs.

use std::process::ExitCode;

use serde_json::json;

use crate::answers::Job;
use crate::client::Api;
use crate::context::{Context, print, print_json};
use crate::follow;
use crate::report::{Outcome, Report};
use crate::value;
use crate::view::clean;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh stop mnist-cnn                     its tasks get TERM, and KILL when their grace is over
  mesh stop 1a2b 7f3a --wait              returns when both are over
  mesh jobs --json | jq -r '.items[].id' | xargs mesh stop

A job that is over already is left as it is, and that is no mistake.";

/// What `stop` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    /// Which jobs
    #[arg(required = true, value_name = "JOB", value_parser = value::job)]
    jobs: Vec<String>,
    /// Return when they are over
    #[arg(long)]
    pub(crate) wait: bool,
}

pub(crate) async fn run(stop: &Stop, context: &Context) -> Outcome {
    let api = context.api()?;
    let mut code = ExitCode::SUCCESS;
    let mut begun = Vec::new();
    for job in &stop.jobs {
        let asked = api.post(&format!("/v1/jobs/{job}/stop"), json!({})).await;
        match asked.and_then(|answer| Ok((answer.item::<Job>()?, answer))) {
            Ok((job, answer)) => {
                match context.json {
                    true => print_json(answer.json())?,
                    false => print(&format!("{}\n", clean(&told(&job))))?,
                };
                begun.push(job);
            }
            // The others are stopped nevertheless.
            Err(report) if stop.jobs.len() > 1 => code = report.show(context.json),
            Err(report) => return Err(report),
        }
    }
    if stop.wait {
        for job in begun.iter().filter(|job| !job.is_over()) {
            ended(&api, job, context).await?;
        }
    }
    Ok(code)
}

fn told(job: &Job) -> String {
    match (job.is_over(), job.was_over) {
        (true, true) => format!("{} was over already: {}", job.called(), job.state),
        (true, false) => format!("{} is {}", job.called(), job.state),
        (false, _) => format!("{} is asked to stop", job.called()),
    }
}

async fn ended(api: &Api, job: &Job, context: &Context) -> Result<(), Report> {
    let now = api.get(&format!("/v1/jobs/{}", job.id)).await?;
    let last = follow::wait(api, now).await?;
    let job: Job = last.item()?;
    match context.json {
        true => print_json(last.json())?,
        false => print(&format!("{}\n", clean(&told(&job))))?,
    };
    Ok(())
}
