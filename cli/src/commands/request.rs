//! `mesh request …`, `mesh grant`, `mesh deny`: what waits for the consent of other parties.

use serde_json::json;

use crate::answers::{Request, plain};
use crate::context::{Context, note, print, print_json};
use crate::report::Outcome;
use crate::value;
use crate::view::{Column, Paint, Table, clean, facts, when, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh request ls                what waits
  mesh request ls --all          and what came of the latest
  mesh request show 2048         what exactly is asked for
  mesh request withdraw 2048     take back what this party has asked for
  mesh grant 2048                say yes, for this node's party
  mesh deny 2048                 say no";
pub(crate) const GRANT_EXAMPLES: &str = "\
Examples:
  mesh request show 2048         look first
  mesh grant 2048";
pub(crate) const DENY_EXAMPLES: &str = "\
Examples:
  mesh request show 2048         look first
  mesh deny 2048";

/// What can be done with requests.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// What waits for an answer
    #[command(after_help = "Examples:\n  mesh request ls\n  mesh request ls --all\n  \
            mesh request ls --json | jq '.items[].id'\n\n\
            The latest 64 that were decided are kept: granted, denied, expired, withdrawn, or void if\n\
            the node went or a party came with the same name or key.")]
    Ls {
        /// The latest that were decided or have expired, too
        #[arg(long)]
        all: bool,
    },
    /// What exactly is asked for, who has answered, and what came of it
    #[command(after_help = "Examples:\n  mesh request show 2048")]
    Show {
        /// Which one
        #[arg(value_parser = value::request)]
        id: String,
    },
    /// Take back a request that this node's party has opened
    #[command(after_help = "Examples:\n  mesh request withdraw 2048")]
    Withdraw {
        /// Which one: see mesh request ls
        #[arg(value_parser = value::request)]
        id: String,
    },
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Ls { all } => ls(*all, context).await,
        Verb::Show { id } => show(id, context).await,
        Verb::Withdraw { id } => withdraw(id, context).await,
    }
}

/// `mesh grant` and `mesh deny`.
pub(crate) async fn answer(id: &str, yes: bool, context: &Context) -> Outcome {
    let word = if yes { "grant" } else { "deny" };
    let answer = context.api()?.post(&format!("/v1/requests/{id}/{word}"), json!({})).await?;
    if context.json {
        return print_json(answer.json());
    }
    let said = format!("This party says {} to request {id}", if yes { "yes" } else { "no" });
    // An older node does not tell.
    match answer.json()["item"]["decision"].as_str() {
        Some(decision) => print(&format!("{said}: it is {}.\n", clean(decision))),
        None => print(&format!("{said}.\n")),
    }
}

async fn withdraw(id: &str, context: &Context) -> Outcome {
    let answer = context.api()?.post(&format!("/v1/requests/{id}/withdraw"), json!({})).await?;
    if context.json {
        return print_json(answer.json());
    }
    print(&format!("Request {id} is withdrawn.\n"))
}

async fn ls(all: bool, context: &Context) -> Outcome {
    let path = if all { "/v1/requests?all=true" } else { "/v1/requests" };
    let answer = context.api()?.get(path).await?;
    if context.json {
        return print_json(answer.json());
    }
    let requests: Vec<Request> = answer.items()?;
    if requests.is_empty() {
        note(if all { "No request is known." } else { "Nothing waits for an answer." });
        return Ok(std::process::ExitCode::SUCCESS);
    }
    let now = mesh_node::clock::now().0;
    let mut table = Table::new(&[
        Column::new("ID"),
        Column::new("BY").least(8),
        Column::new("WHAT").least(12),
        Column::new("STATE").worth(4),
        Column::new("YES").right(),
        Column::new("EXPIRES").worth(1),
    ]);
    for request in &requests {
        table.row([
            plain(&request.id).into(),
            request.by.shown().into(),
            what(request).into(),
            request.state.as_deref().unwrap_or("open").into(),
            yes(request).into(),
            expires(request, now).into(),
        ]);
    }
    print(&table.render(width(), Paint::stdout()))
}

async fn show(id: &str, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/requests/{id}")).await?;
    if context.json {
        return print_json(answer.json());
    }
    let request: Request = answer.item()?;
    let now = mesh_node::clock::now().0;
    let names = |who: &[serde_json::Value]| who.iter().map(party).collect::<Vec<_>>().join(" ");
    let lines = [
        ("request", plain(&request.id)),
        ("what", what(&request)),
        ("state", request.state.clone().unwrap_or_default()),
        ("by", request.by.shown().to_owned()),
        ("yes", format!("{}  {}", yes(&request), names(&request.granted)).trim().to_owned()),
        ("no", names(&request.denied)),
        ("opened", request.opened_at.as_deref().map(|time| when(time, now)).unwrap_or_default()),
        ("expires", expires(&request, now)),
        ("decided", request.decided_at.as_deref().map(|time| when(time, now)).unwrap_or_default()),
    ];
    print(&facts(&lines, Paint::stdout()))
}

fn what(request: &Request) -> String {
    request.text.clone().unwrap_or_else(|| request.kind.replace('_', " "))
}

fn yes(request: &Request) -> String {
    match request.needed {
        Some(needed) => format!("{}/{needed}", request.granted.len()),
        None => request.granted.len().to_string(),
    }
}

/// Nothing for one that is over: it will not.
fn expires(request: &Request, now: u64) -> String {
    if request.decided_at.is_some() {
        return String::new();
    }
    request.expires_at.as_deref().map(|time| when(time, now)).unwrap_or_default()
}

fn party(value: &serde_json::Value) -> String {
    plain(if value["name"].is_string() { &value["name"] } else { value })
}
