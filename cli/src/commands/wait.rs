//! `mesh wait`: until jobs are over.

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::answers::Job;
use crate::client::{Answer, Api};
use crate::context::{Context, print, print_json};
use crate::follow::{self, words};
use crate::report::{Outcome, Report};
use crate::value;
use crate::view::span;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh wait mnist-cnn                     until it is over
  mesh wait 1a2b 7f3a --timeout 2h        until both are; 124 if they are not by then
  mesh submit job.toml -d | xargs mesh wait
  mesh wait 1a2b --json | jq -r .item.state

Exits with 0 only if every one of them is done, with 1 if one failed, was stopped or is lost.";

/// What `wait` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    /// Which jobs
    #[arg(required = true, value_name = "JOB", value_parser = value::job)]
    jobs: Vec<String>,
    /// How long to wait in all; then it exits with 124
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    // So that -1h is a time that does not fit, not an option that nobody knows.
    #[arg(allow_hyphen_values = true)]
    timeout: Option<Duration>,
}

pub(crate) async fn run(wait: &Wait, context: &Context) -> Outcome {
    let api = context.api()?;
    let deadline = wait.timeout.map(|limit| (Instant::now() + limit, limit));
    // Each is known by its id before the first is waited for: a name may mean another job later.
    let mut begun = Vec::new();
    for job in &wait.jobs {
        begun.push(api.get(&format!("/v1/jobs/{job}")).await?);
    }
    let mut code = ExitCode::SUCCESS;
    for answer in begun {
        let ended = until_over(&api, context, answer, deadline).await?;
        let job: Job = ended.item()?;
        let one = match words::failure(context, &job) {
            _ if context.json => {
                print_json(ended.json())?;
                follow::exit(&job)
            }
            Some(report) => report.show(false),
            None => print(&format!("{}\n", words::done(&job)))?,
        };
        if !job.is_done() {
            code = one;
        }
    }
    Ok(code)
}

async fn until_over(
    api: &Api,
    context: &Context,
    begun: Answer,
    deadline: Option<(Instant, Duration)>,
) -> Result<Answer, Report> {
    let Some((at, limit)) = deadline else { return follow::wait(api, begun).await };
    let job: Job = begun.item()?;
    timeout_at(at, follow::wait(api, begun)).await.unwrap_or_else(|_| {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Err(words::late(context, &job, &span(limit_ms)))
    })
}
