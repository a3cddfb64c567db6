//! `mesh join`: every other machine.

use std::cell::RefCell;
use std::io::Read;

use serde_json::json;

use super::init::{Setup, empty, next, spinner, started, started_text};
use crate::answers::Status;
use crate::context::{Context, Place, note, print, print_json};
use crate::making;
use crate::report::{Code, Outcome, Report};
use crate::value;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh join mesh1-…                           the ticket that mesh init or mesh ticket new printed
  mesh join - < ticket                        without leaving it in the shell's history
  mesh join mesh1-… --name gpu-7 --domain rack-2
  mesh join mesh1-… --party clinic-b          with a ticket made by: mesh ticket new --new-party

Exits with 5 if the other parties have not agreed to a new one in time; the same again goes on.";

/// The longest ticket that is read: 16 nodes with 16 addresses each fit.
const MAX_TICKET: u64 = 64 << 10;

/// What `join` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Join {
    /// What mesh init or mesh ticket new printed; - reads it from standard input
    #[arg(value_parser = value::ticket)]
    pub(crate) ticket: String,
    /// The party to found with a ticket for a new party
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) party: Option<String>,
    #[command(flatten)]
    pub(crate) setup: Setup,
}

pub(crate) async fn run(join: &Join, context: &Context) -> Outcome {
    context.only_here("join")?;
    let place = &context.place;
    let ticket = if join.ticket == "-" { typed()? } else { join.ticket.clone() };
    making::same_mesh(place, &ticket)?;
    empty(place)?;
    let progress = spinner("showing the ticket");
    let told = RefCell::new(String::new());
    let tell = |text: &str| {
        // Without a terminal there is no spinner, and each message is said once.
        if progress.is_hidden() && *told.borrow() != text {
            note(text);
            text.clone_into(&mut told.borrow_mut());
        }
        progress.set_message(text.to_owned());
    };
    admitted(place, &ticket, join, tell).await?;
    let (node, answer) = started(place, &join.setup, &progress).await?;
    let status: Status = answer.item()?;
    progress.finish_and_clear();
    node.release();
    if context.json {
        let item = json!({
            "id": status.id, "name": status.name, "party": status.party.name, "mesh": status.mesh,
            "pid": status.pid, "role": status.role, "dir": place.dir,
            "data_addresses": status.data_addresses, "api_address": status.api_address,
        });
        return print_json(&answer.around("item", item));
    }
    let mut text = format!("This machine has joined. {}", started_text(place, &status));
    text +=
        &next(&[(place.command("nodes"), "who is there"), (place.command("status"), "this node")]);
    print(&text)
}

/// Shows the ticket to a member and is admitted: makes the directory and its keys. Starts nothing.
pub(crate) async fn admitted(
    place: &Place,
    ticket: &str,
    join: &Join,
    tell: impl Fn(&str),
) -> Result<(), Report> {
    making::admitted(place, ticket, join.party.as_deref(), &join.setup, tell).await
}

fn typed() -> Result<String, Report> {
    let mut text = String::new();
    let hint = "mesh join - < FILE";
    let unread =
        |cause: String| Report::new(Code::Usage, "no ticket came on standard input", cause, hint);
    std::io::stdin()
        .take(MAX_TICKET)
        .read_to_string(&mut text)
        .map_err(|error| unread(error.to_string()))?;
    match value::ticket(&text) {
        Ok(ticket) if ticket != "-" => Ok(ticket),
        Ok(_) => Err(unread("it is a single dash".into())),
        Err(error) => Err(unread(error.to_string())),
    }
}
