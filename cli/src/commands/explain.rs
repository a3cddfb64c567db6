//! `mesh explain`: why a job is where it is, or nowhere.

use super::jobs::tint;
use super::status::warn_of_age;
use crate::answers::{Explained, called};
use crate::context::{Context, print, print_json};
use crate::report::Outcome;
use crate::value;
use crate::view::{Cell, Column, Paint, Table, Tint, clean, when, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh explain mnist-cnn                  why it waits: node by node, who is ahead, what would help
  mesh explain 1a2b --json | jq -r '.item.nodes[] | .node + \": \" + (.why // \"has room\")'
  mesh jobs --waiting                     which jobs wait";

/// What `explain` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// Which job
    #[arg(value_parser = value::job)]
    job: String,
}

pub(crate) async fn run(explain: &Explain, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/jobs/{}/explain", explain.job)).await?;
    if context.json {
        return print_json(answer.json());
    }
    let explained: Explained = answer.item()?;
    warn_of_age(&answer);
    print(&text(&explained, width(), Paint::stdout(), mesh_node::clock::now().0))
}

fn text(explained: &Explained, width: Option<usize>, paint: Paint, now_ms: u64) -> String {
    let Explained { id, name, state, reason, .. } = explained;
    let job = called(id, name);
    let said = match (state.as_str(), reason) {
        ("", None) => format!("nothing more is known of {job}"),
        ("", Some(reason)) => format!("{job}: {reason}"),
        (state, None) => format!("{job} is {state}"),
        (state, Some(reason)) => format!("{job} is {state}: {reason}"),
    };
    let mut said = clean(&said) + "\n";
    if !explained.placed.is_empty() {
        let mut table = Table::new(&[
            Column::new("TASK").right(),
            Column::new("NODE").least(8),
            Column::new("STATE").worth(2),
            Column::new("SINCE").worth(1),
        ]);
        for place in &explained.placed {
            let since = place.since.as_deref().map(|time| when(time, now_ms));
            table.row([
                place.task.to_string().into(),
                place.node.shown().into(),
                Cell::new(&place.state, tint(&place.state)),
                since.unwrap_or_default().into(),
            ]);
        }
        said += &format!("\n{}", table.render(width, paint));
    }
    if !explained.nodes.is_empty() {
        let mut table =
            Table::new(&[Column::new("NODE").least(8), Column::new("WHY NOT").least(12)]);
        for node in &explained.nodes {
            let why = match &node.why {
                Some(why) => Cell::new(why, Tint::Plain),
                None => Cell::new("has room", Tint::Good),
            };
            table.row([node.node.shown().into(), why]);
        }
        said += &format!("\n{}", table.render(width, paint));
    }
    let ahead: Vec<String> = explained.ahead.iter().map(|who| called(&who.id, &who.name)).collect();
    if !ahead.is_empty() {
        said += &format!("\nahead of it: {}\n", clean(&ahead.join(", ")));
    }
    if !explained.help.is_empty() {
        said += "\nwhat would help:\n";
        for help in &explained.help {
            said += &format!("  {}\n", clean(help));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(explained: Value) -> String {
        let now = crate::view::millis("2026-11-16T12:00:00Z").unwrap();
        text(&serde_json::from_value(explained).unwrap(), None, Paint(false), now)
    }

    #[test]
    fn a_job_that_waits_is_explained_node_by_node() {
        let explained = json!({
            "id": "1a2b3c4d".repeat(4), "name": "train", "state": "waiting", "reason": "no node has room",
            "nodes": [
                { "node": "alpha", "why": "2 of 4 CPUs are free" },
                { "node": "beta\u{1b}[2J", "why": null },
            ],
            "ahead": [{ "id": "77b0".repeat(8), "name": "sweep" }],
            "help": ["that job 77b077b0 ends", "a node with 8 GPUs"], "placed": [],
        });
        assert_eq!(
            shown(explained),
            "train (1a2b3c4d) is waiting: no node has room\n\
             \n\
             NODE     WHY NOT\n\
             alpha    2 of 4 CPUs are free\n\
             beta[2J  has room\n\
             \n\
             ahead of it: sweep (77b077b0)\n\
             \n\
             what would help:\n\
             \x20 that job 77b077b0 ends\n\
             \x20 a node with 8 GPUs\n"
        );
    }

    #[test]
    fn a_job_that_has_a_place_says_where_and_since_when() {
        let placed = json!({
            "id": "1a2b3c4d".repeat(4), "name": "train", "state": "running", "reason": null,
            "placed": [{ "task": 0, "node": "alpha", "state": "running", "since": "2026-11-16T11:55:00Z" }],
        });
        let want = "train (1a2b3c4d) is running\n\n\
                    TASK  NODE   STATE    SINCE\n   0  alpha  running  5m ago\n";
        assert_eq!(shown(placed), want);
        assert_eq!(shown(json!({ "id": "1a2b3c4d" })), "nothing more is known of job 1a2b3c4d\n");
    }
}
