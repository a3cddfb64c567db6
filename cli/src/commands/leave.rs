//! `mesh leave`: takes this node out of the mesh for good.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::down::is_gone_by;
use crate::answers::Status;
use crate::client::{Answer, Api};
use crate::context::{Context, note, print, print_item, print_json};
use crate::report::{Code, Outcome, Report};
use crate::value;
use crate::view::span;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh leave                     asks first, and waits until the mesh can do without this node
  mesh leave --yes               does not ask
  mesh leave --timeout 10m       waits for so long; the node goes on leaving in any case
  mesh node rm gpu-7             from another node, if this one is gone already

The node runs on, and votes, until the others have agreed and can do without it. Only then can its
directory be deleted: a vote that is missing too early may stop the whole mesh.

A party's last node takes its say along: make a ticket to come back with, and keep its key.";

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// The node's answer takes a moment: it is to wait for so much less than we do.
const ANSWER: Duration = Duration::from_millis(100);
/// Whoever does not want to wait still wants to be heard.
const LEAST: Duration = Duration::from_millis(250);

/// What `leave` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Leave {
    /// How long to wait in all; then it exits with 124
    #[arg(long, default_value = "2m", value_parser = value::duration)]
    // So that -1h is a time that does not fit, not an option that nobody knows.
    #[arg(allow_hyphen_values = true)]
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
    let (began, whole) = (Instant::now(), leave.timeout.max(LEAST));
    let asked = timeout_at(began + whole, api.get("/v1/status")).await;
    let asked = asked.unwrap_or_else(|_| {
        let cause = format!("it has said nothing for {}", span(millis(whole)));
        let message = "the node was not asked to leave";
        Err(Report::new(Code::Timeout, message, cause, context.place.command("doctor")))
    });
    let status: Status = match asked {
        Ok(answer) => answer.item()?,
        // Gone is gone.
        Err(report) if report.code == Code::NoNode && super::doctor::has_left(context) => {
            return gone_before(context);
        }
        Err(report) => return Err(report),
    };
    if let Some(lost) = with_the_mesh(&status).or_else(|| with_the_party(&status)) {
        note(&lost);
    }
    let back = if is_the_last(&status) {
        "There is no way back."
    } else {
        "Coming back takes a new ticket."
    };
    // Whoever is asked may think for as long as they like.
    let rest = whole.saturating_sub(began.elapsed());
    context.confirm(&format!("Take {} out of the mesh for good? {back}", status.name))?;
    let deadline = Instant::now() + rest;
    let answer = until_left(&api, deadline, context, &status.name).await?;
    if !is_gone_by(deadline, &api, status.pid, context).await {
        return Err(still_runs(&status, context));
    }
    if context.json {
        return print_json(&answer);
    }
    let dir = context.place.dir.display();
    let delete =
        if context.is_remote() { String::new() } else { format!(" {dir} can be deleted.") };
    print(&format!("{} has left the mesh and stopped.{delete}\n", status.name))
}

/// What there is to say where nothing is left to do.
fn gone_before(context: &Context) -> Outcome {
    if context.json {
        return print_item(&json!({ "left": true }));
    }
    let dir = context.place.dir.display();
    print(&format!("This node has left its mesh already. {dir} can be deleted.\n"))
}

/// Whether nobody stays. One that is leaving already is not counted: the one that is counted is another.
fn is_the_last(status: &Status) -> bool {
    status.members == 1 && !status.leaving
}

/// What goes with the last node of all. Said also to those who do not want to be asked.
fn with_the_mesh(status: &Status) -> Option<String> {
    is_the_last(status).then(|| {
        format!(
            "{} is the last node: the mesh ends with it. What was agreed and the datasets that it holds are in no \
             other place, and no ticket lets anyone in any more.",
            status.name
        )
    })
}

/// What goes with the last node of a party, where others stay. Said also to those who do not want to be asked.
fn with_the_party(status: &Status) -> Option<String> {
    let Status { name, party, party_nodes, members, .. } = status;
    (*party_nodes == 1 && *members > 1).then(|| {
        format!(
            "{name} is the last node of party {}. Without it the party can sign nothing and has no say in requests, \
             and no copy of its private datasets is left. It comes back only with a ticket that is made before this \
             (mesh ticket new), and signs again only with its key (mesh party key --out FILE).",
            party.shown()
        )
    })
}

/// Asks until the node is out, and tells what it waits for.
async fn until_left(
    api: &Api,
    deadline: Instant,
    context: &Context,
    name: &str,
) -> Result<Value, Report> {
    let mut cause = "it has not said yet what it waits for".to_owned();
    let mut before: Option<Answer> = None;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let wait_ms = millis(rest.saturating_sub(ANSWER));
        let asked =
            timeout_at(deadline, api.post("/v1/leave", json!({ "wait_ms": wait_ms }))).await;
        let Ok(asked) = asked else { return Err(still_leaving(name, cause, context)) };
        match asked {
            Ok(answer) => {
                let progress: Progress = answer.item()?;
                if progress.left {
                    return Ok(answer.json().clone());
                }
                before = Some(answer);
                let waits = progress.waits_for;
                let waits = waits.unwrap_or_else(|| "the mesh still counts on it".into());
                if waits != cause {
                    note(&format!("Still leaving: {waits} …"));
                    cause = waits;
                }
            }
            Err(report) => match before.take() {
                // It may have gone between two questions. Its directory knows.
                Some(before) if super::doctor::has_left(context) => {
                    return Ok(before.around("item", json!({ "left": true, "seen_off": true })));
                }
                _ => return Err(report),
            },
        }
        let next = Instant::now() + LOOK;
        if next >= deadline {
            return Err(still_leaving(name, cause, context));
        }
        sleep_until(next).await;
    }
}

/// The time is over before the node is out. What is left to do, it does by itself.
fn still_leaving(name: &str, cause: String, context: &Context) -> Report {
    let message = format!("{name} is still leaving, and its directory is still needed");
    let hint = format!(
        "let it run: it goes on leaving by itself, also after a restart; {} waits again",
        context.place.command("leave")
    );
    Report::new(Code::Timeout, message, cause, hint)
}

/// The time is over, and the node is out and has not ended.
fn still_runs(status: &Status, context: &Context) -> Report {
    let Status { name, pid, .. } = status;
    let message = format!("{name} has left the mesh, and has not stopped yet");
    let (cause, hint) = if context.is_remote() {
        ("it still answers".to_owned(), "nothing: it stops by itself".to_owned())
    } else {
        let dir = context.place.dir.display();
        let hint = format!("nothing: it stops by itself; once it has, {dir} can be deleted");
        (format!("process {pid} still runs"), hint)
    };
    Report::new(Code::Timeout, message, cause, hint)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
