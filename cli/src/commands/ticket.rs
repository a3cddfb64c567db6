//! `mesh ticket …`: what lets machines join.

use std::time::Duration;

use mesh_node::state::ticket::{MAX_TTL, MAX_USES};
use serde_json::{Value, json};

use crate::answers::{Dataset, Ticket};
use crate::context::{Context, note, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::value::{self, Address};
use crate::view::{Column, Paint, Table, clean, count, short_ids, span, when, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh ticket new                          one machine, within 24 h; prints the ticket alone
  mesh ticket new --uses 50 --ttl 2h       a whole rack
  mesh ticket new --worker                 machines that must not hold the party's signing key
  mesh ticket ls                           which tickets are good
  mesh ticket revoke 3fa9                  make one worthless";

const NEW: &str = "\
Examples:
  ssh gpu-7 mesh join $(mesh ticket new)
  mesh ticket new --uses 50 --ttl 2h
  mesh ticket new --new-party                       for another hospital, bank or lab
  mesh ticket new --advertise 203.0.113.7:6374      where newcomers find this node

Whoever holds a ticket can join: treat it like a password.

A --worker node cannot sign for the party: it makes no tickets, removes no other node and answers no
requests. Within the party it may do what any node may: change its datasets and names, and label and
drain its nodes.

What is open, every party can read, and so can a new one: --new-party says what that is.";

/// Open versions that a warning names.
const MAX_NAMED: usize = 5;

/// What can be done with tickets.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Make a ticket
    #[command(after_help = NEW)]
    New(New),
    /// Tickets that are still good
    #[command(
        after_help = "Examples:\n  mesh ticket ls\n  mesh ticket ls --all\n  mesh ticket ls --json | jq '.items[].id'\n\n\
            One that is used up or expired is known until its party makes the next; one that was\n\
            revoked is gone at once."
    )]
    Ls {
        /// Those of all parties, too, and those used up or expired that are still known
        #[arg(long)]
        all: bool,
    },
    /// Make a ticket worthless; who has joined with it stays
    #[command(after_help = "Examples:\n  mesh ticket revoke 3fa9")]
    Revoke {
        /// Which one: see mesh ticket ls
        #[arg(value_parser = value::ticket_id)]
        id: String,
    },
}

/// What `new` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// How long it is good: 30m, 24h, 7d
    #[arg(long, default_value = "24h", value_parser = value::duration)]
    // So that -1h is a time that does not fit, not an option that nobody knows.
    #[arg(allow_hyphen_values = true)]
    ttl: Duration,
    /// How many machines it admits
    #[arg(long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_USES)))]
    uses: u32,
    /// Admit them without the party's signing key
    #[arg(long)]
    worker: bool,
    /// Admit the first machine of a further party, once the parties agree
    #[arg(long, conflicts_with = "worker")]
    new_party: bool,
    /// Where newcomers find this node, if elsewhere; may be repeated
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = value::reachable)]
    advertise: Vec<Address>,
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::New(new) => make(new, context).await,
        Verb::Ls { all } => ls(*all, context).await,
        Verb::Revoke { id } => {
            let answer = context.api()?.delete(&format!("/v1/tickets/{id}")).await?;
            if context.json {
                return print_json(answer.json());
            }
            print(&format!("Ticket {id} is worthless now.\n"))
        }
    }
}

async fn make(new: &New, context: &Context) -> Outcome {
    let New { ttl, uses, worker, new_party, advertise } = new;
    let advertise: Vec<String> = advertise.iter().map(ToString::to_string).collect();
    let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let ttl_ms = millis(*ttl);
    if ttl.is_zero() || *ttl > MAX_TTL {
        let message = format!("no ticket is good for {}", span(ttl_ms));
        let cause = format!("--ttl takes 1ms to {}", span(millis(MAX_TTL)));
        return Err(Report::new(Code::Usage, message, cause, "mesh ticket new --ttl 24h"));
    }
    let body = json!({
        "ttl_ms": ttl_ms, "uses": uses, "worker": worker, "new_party": new_party,
        "advertise": advertise,
    });
    let answer = context.api()?.post("/v1/tickets", body).await?;
    let open = if *new_party { open_data(context).await } else { None };
    if context.json {
        let mut said = answer.json().clone();
        let item = said.get_mut("item").and_then(Value::as_object_mut);
        if let (Some(open), Some(item)) = (&open, item) {
            item.insert("open_datasets".into(), open.len().into());
        }
        return print_json(&said);
    }
    let made: Ticket = answer.item()?;
    let times = if made.uses == 1 { "once".into() } else { format!("{} times", made.uses) };
    let expires = when(&made.expires_at, mesh_node::clock::now().0);
    // Beside the answer, so that `mesh join $(mesh ticket new)` works.
    note(&format!("Good {times}; expires {expires}. On the other machine: mesh join TICKET"));
    if let Some(warning) = open.and_then(|open| warning(&open)) {
        note(&warning);
    }
    print(&format!("{}\n", made.ticket.unwrap_or_default()))
}

/// The party's versions that a new party will be able to read; `None` if the node does not say. The ticket is made, and
/// worth more than this.
async fn open_data(context: &Context) -> Option<Vec<String>> {
    // Each version has readers of its own: an older one may be open where the newest is not.
    let answer = context.api().ok()?.get("/v1/data?all=true").await.ok()?;
    let found: Vec<Dataset> = answer.items().ok()?;
    let open = found.iter().filter(|data| data.mine && data.visibility == "open");
    Some(open.map(Dataset::reference).collect())
}

fn warning(open: &[String]) -> Option<String> {
    let is = match open.len() {
        0 => return None,
        1 => "is open: a new party can read it",
        _ => "are open: a new party can read them",
    };
    let mut names: Vec<String> = open.iter().take(MAX_NAMED).map(|name| clean(name)).collect();
    if open.len() > MAX_NAMED {
        names.push("…".into());
    }
    Some(format!(
        "{} {is} ({}); mesh data unshare NAME@N keeps one to this party",
        count(open.len(), "dataset version"),
        names.join(", ")
    ))
}

async fn ls(all: bool, context: &Context) -> Outcome {
    let path = if all { "/v1/tickets?all=true" } else { "/v1/tickets" };
    let answer = context.api()?.get(path).await?;
    if context.json {
        return print_json(answer.json());
    }
    let tickets: Vec<Ticket> = answer.items()?;
    if tickets.is_empty() {
        note("There is no such ticket now. mesh ticket new makes one.");
        return Ok(std::process::ExitCode::SUCCESS);
    }
    let now = mesh_node::clock::now().0;
    let ids = short_ids(&tickets.iter().map(|ticket| ticket.id.as_str()).collect::<Vec<_>>());
    let mut table = Table::new(&[
        Column::new("ID"),
        Column::new("PARTY").least(8),
        Column::new("ADMITS").least(6),
        Column::new("LEFT").right(),
        Column::new("STATE").worth(4),
        Column::new("EXPIRES"),
    ]);
    for (ticket, id) in tickets.iter().zip(ids) {
        let kind = ticket.kind.as_deref().unwrap_or_default().replace('_', " ");
        table.row([
            id.into(),
            ticket.party.shown().into(),
            kind.into(),
            ticket.uses_left.to_string().into(),
            ticket.state.as_deref().unwrap_or("good").into(),
            when(&ticket.expires_at, now).into(),
        ]);
    }
    print(&table.render(width(), Paint::stdout()))
}
