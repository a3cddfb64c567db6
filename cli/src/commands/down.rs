//! `mesh down`: stops the node.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use crate::answers::Status;
use crate::background::has_ended;
use crate::client::{Answer, Api};
use crate::context::{Context, note, print, print_item, print_json};
use crate::report::{Code, Outcome, Report};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh down                      stop this node; mesh up or mesh service starts it again
  mesh down && mesh up           start it anew
  mesh leave                     instead, to take it out of the mesh for good";

/// A node has this long to finish what it is writing.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(context: &Context) -> Outcome {
    let api = context.api()?;
    let status = match api.get("/v1/status").await {
        Ok(answer) => answer.item::<Status>()?,
        // Stopped is stopped.
        Err(report)
            if report.code == Code::NoNode && !context.is_remote() && context.place.is_made() =>
        {
            note(&report.message);
            return done(context, None);
        }
        Err(report) => return Err(report),
    };
    let last = api.post("/v1/stop", json!({})).await?;
    if !is_gone_by(Instant::now() + PATIENCE, &api, status.pid, context).await {
        let pid = status.pid;
        return Err(Report::new(
            Code::Timeout,
            format!("the node has not stopped after {} s", PATIENCE.as_secs()),
            format!("process {pid} took the order and still runs"),
            format!("kill -9 {pid}; no acknowledged write is lost"),
        ));
    }
    done(context, Some((&status, last)))
}

/// Waits until the process has ended, or from another machine until it no longer answers. Whether it has in time.
pub(crate) async fn is_gone_by(deadline: Instant, api: &Api, pid: u32, context: &Context) -> bool {
    loop {
        let gone = if context.is_remote() || pid == 0 {
            // A node that says nothing must not hold us for longer than there is time.
            let asked = timeout_at(deadline, api.get("/v1/status")).await;
            matches!(asked, Ok(Err(report)) if report.code == Code::NoNode)
        } else {
            has_ended(pid)
        };
        if gone || Instant::now() >= deadline {
            return gone;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// `was` is what ran, and the last that it said.
fn done(context: &Context, was: Option<(&Status, Answer)>) -> Outcome {
    match was {
        Some((status, last)) if context.json => {
            let Status { pid, removed, .. } = status;
            let item = json!({ "stopped": true, "pid": pid, "removed": removed });
            print_json(&last.around("item", item))
        }
        Some((status, _)) => print(&format!("Stopped. {}\n", standing(status))),
        None if context.json => print_item(&json!({ "stopped": false, "pid": null })),
        None => Ok(std::process::ExitCode::SUCCESS),
    }
}

/// What the node is to the mesh, now that it does not run.
fn standing(status: &Status) -> &'static str {
    if status.removed {
        "It was removed from its mesh; mesh join TICKET --dir DIR joins again, from a new directory."
    } else if status.leaving {
        "It is on its way out of the mesh; mesh up lets it go on."
    } else {
        "It is still a member."
    }
}
