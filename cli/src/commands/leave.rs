//! `mesh leave`: takes this node out of the mesh for good.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::down::until_gone;
use crate::answers::Status;
use crate::client::Api;
use crate::context::{Context, note, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::value;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh leave                     asks first, and waits until the mesh can do without this node
  mesh leave --yes               does not ask
  mesh leave --timeout 10m       waits for so long; the node goes on leaving in any case
  mesh node rm gpu-7             from another node, if this one is gone already

The node runs on, and votes, until the others have agreed and can do without it. Only then can its
directory be deleted: a vote that is missing too early may stop the whole mesh.";

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// What `leave` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Leave {
    /// How long to wait
    #[arg(long, default_value = "2m", value_parser = value::duration)]
    timeout: Duration,
}

/// How far the node is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Progress {
    /// Whether it is out, and its directory no node's any more.
    left: bool,
    /// Else what has to happen.
    waits_for: Option<String>,
}

pub(crate) async fn run(leave: &Leave, context: &Context) -> Outcome {
    let api = context.api()?;
    let status: Status = api.get("/v1/status").await?.item()?;
    let last = if status.members == 1 { " It is the last one: the mesh ends with it." } else { "" };
    context.confirm(&format!(
        "Take {} out of the mesh for good?{last} Coming back takes a new ticket.",
        status.name
    ))?;
    let answer = until_left(&api, leave, context, &status.name).await?;
    until_gone(&api, status.pid, context).await?;
    if context.json {
        return print_json(&answer);
    }
    let dir = context.place.dir.display();
    let delete =
        if context.is_remote() { String::new() } else { format!(" {dir} can be deleted.") };
    print(&format!("{} has left the mesh and stopped.{delete}\n", status.name))
}

/// Asks until the node is out, and tells what it waits for.
async fn until_left(
    api: &Api,
    leave: &Leave,
    context: &Context,
    name: &str,
) -> Result<Value, Report> {
    let deadline = Instant::now() + leave.timeout;
    let mut told = String::new();
    loop {
        let cause = match api.post("/v1/leave", json!({})).await {
            Ok(answer) => {
                let progress: Progress = answer.item()?;
                if progress.left {
                    return Ok(answer.json().clone());
                }
                progress.waits_for.unwrap_or_else(|| "the mesh still counts on it".into())
            }
            // It may have gone between two questions. Its directory knows.
            Err(_) if !told.is_empty() && super::doctor::has_left(context) => {
                return Ok(json!({ "schema": 1, "item": { "left": true, "seen_off": true } }));
            }
            Err(report) => return Err(report),
        };
        if Instant::now() >= deadline {
            let hint = format!(
                "let it run: it goes on leaving by itself, also after a restart; {} waits again",
                context.place.command("leave")
            );
            let message = format!("{name} is still leaving, and its directory is still needed");
            return Err(Report::new(Code::Timeout, message, cause, hint));
        }
        if told != cause {
            note(&format!("Still leaving: {cause} …"));
            told = cause;
        }
        sleep(LOOK).await;
    }
}
