//! `mesh init`: the first machine of a mesh.
//!
//! The one-off part (keys, directory, founding entry) is the node crate's; here the node is then started
//! in the background, waited for, and asked for the first ticket.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::ProgressBar;
use mesh_node::dir::Made;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::answers::{Status, Ticket};
use crate::background::{Background, JOINING, Tie};
use crate::client::{Answer, Api};
use crate::context::{Context, Place, print, print_json};
use crate::making;
use crate::report::{Code, Outcome, Report};
use crate::value::{self, Address};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh init                                     name and party after this machine
  mesh init --party clinic-a --domain berlin    a named owner, and what fails together with it
  mesh init --advertise 203.0.113.7             reached from outside under another address
  mesh init --listen 127.0.0.1:0 --dir /tmp/n0  to try things out
  TICKET=$(mesh init | tail -1)                 the ticket is the last line";

/// The first ticket admits a small fleet and is worthless tomorrow.
const FIRST_TTL: Duration = Duration::from_secs(24 * 3600);
const FIRST_USES: u32 = 25;
/// A node that was just founded elects itself within a second or two.
const FIRST_LEADER: Duration = Duration::from_secs(20);

/// What `init` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// The party to found, which owns this node [default: its name]
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) party: Option<String>,
    #[command(flatten)]
    pub(crate) setup: Setup,
}

/// What a new node is told once, and keeps in its config.toml.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Setup {
    /// This node's name [default: the host's]
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) name: Option<String>,
    /// Where to listen; repeatable; port 0 is any [default: all, 6374]
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) listen: Vec<Address>,
    /// Where others reach this node, if not there; may be repeated
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = value::reachable)]
    pub(crate) advertise: Vec<Address>,
    /// Also the HTTP API on TCP, with tokens; port 0: new at each start
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) api_listen: Option<Address>,
    /// Find other nodes of this mesh on the local network by multicast
    #[arg(long)]
    pub(crate) mdns: bool,
    /// What fails together with this node: a rack, a site
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) domain: Option<String>,
    /// Never give this node a vote; the first of a mesh needs one
    #[arg(long)]
    pub(crate) no_vote: bool,
}

pub(crate) async fn run(init: &Init, context: &Context) -> Outcome {
    context.only_here("init")?;
    if init.setup.no_vote {
        return Err(Report::new(
            Code::Usage,
            "the first node of a mesh has to vote",
            "with --no-vote there would be nobody who could lead",
            "mesh init; once others vote, votes = false in its config.toml takes its vote away",
        ));
    }
    let place = &context.place;
    empty(place)?;
    let progress = spinner("founding the mesh");
    let made = found(place, init).await?;
    // Before the node: what it was made of goes after it has stopped.
    let undo = Undo { place, made: Some(made) };
    let (node, answer) = started(place, &init.setup, &progress).await.map_err(again)?;
    let status: Status = answer.item()?;
    let ticket = first_ticket(place).await?;
    progress.finish_and_clear();
    node.release();
    undo.keep();
    let made = ticket.item::<Ticket>()?;
    let secret = made.ticket.clone().unwrap_or_default();
    if context.json {
        let item = json!({
            "id": status.id, "name": status.name, "party": status.party.name, "mesh": status.mesh,
            "pid": status.pid, "dir": place.dir, "data_addresses": status.data_addresses,
            "api_address": status.api_address,
            "ticket": secret, "ticket_id": made.id, "expires_at": made.expires_at, "uses": made.uses,
        });
        return print_json(&ticket.around("item", item));
    }
    let mut text = format!("A mesh was made. {}", started_text(place, &status));
    let admits = format!("on every other machine; this ticket admits {FIRST_USES} within 24 h");
    text +=
        &next(&[("mesh join TICKET".into(), &admits), (place.command("nodes"), "who is there")]);
    text += &format!("\n{secret}\n");
    print(&text)
}

/// A mesh that was founded and does not run yet: nobody else knows of it, so if it cannot be started it goes, and
/// the same command can be tried again.
struct Undo<'a> {
    place: &'a Place,
    /// What was made for it; `None` once it is to stay.
    made: Option<Made>,
}

impl Undo<'_> {
    fn keep(mut self) {
        self.made = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(made) = &self.made {
            // Whatever stays is found, and told of, by the next try.
            let _ = making::unfound(self.place, made);
        }
    }
}

/// There is no node any more that could be started.
fn again(report: Report) -> Report {
    Report {
        hint: "the same again, once the cause is gone; nothing was left behind but the log".into(),
        ..report
    }
}

/// Founds a mesh: makes the directory, its keys and the first entry of the log. Starts nothing.
pub(crate) async fn found(place: &Place, init: &Init) -> Result<Made, Report> {
    making::found(place, init.party.as_deref(), &init.setup)
}

/// Refuses a directory that already holds a node.
pub(crate) fn empty(place: &Place) -> Result<(), Report> {
    if !place.is_made() {
        return Ok(());
    }
    let message = format!("{} already holds a node", place.dir.display());
    let (cause, hint) = match making::lost_key(place) {
        // It cannot be started, so that is not what to try.
        Some(lost) => (lost.cause, lost.hint),
        None => occupied(place),
    };
    Err(Report::new(Code::Refused, message, cause, hint))
}

/// Why no node can be made where there is one, and what to do instead. To start that one leads nowhere if it runs, or
/// may never again.
fn occupied(place: &Place) -> (String, String) {
    let runs = making::is_running(place);
    let elsewhere = "the same again with --dir DIR, a new directory";
    let out = match (place.has_left(), place.was_removed()) {
        (true, _) => Some("has left its mesh"),
        (false, true) => Some("was removed from its mesh"),
        (false, false) => None,
    };
    if let Some(out) = out {
        let first = if runs { format!("{}; then ", place.command("down")) } else { String::new() };
        let or =
            format!("or delete {}, if nobody needs it, and the same again", place.dir.display());
        return (
            format!("its node {out}, and its key stays out"),
            format!("{first}{elsewhere}; {or}"),
        );
    }
    if runs {
        let hint = format!("{} shows it; for a second node, {elsewhere}", place.command("status"));
        return ("its node runs, and one directory is one node".into(), hint);
    }
    let hint = format!("{} starts it; for a second node, {elsewhere}", place.command("up"));
    ("one directory is one node".into(), hint)
}

/// Starts the node of a new directory and waits until it is a member: with its [`Status`].
pub(crate) async fn started(
    place: &Place,
    setup: &Setup,
    progress: &ProgressBar,
) -> Result<(Background, Answer), Report> {
    /// How often other ports are tried if somebody takes those that were free a moment ago.
    const TRIES: usize = 5;
    let mut tries = 0;
    loop {
        progress.set_message("starting the node");
        let mut node = Background::start(place, Tie::Detached)?;
        progress.set_message("waiting until it is a member");
        let failed = match node.until_member(JOINING).await {
            Ok(answer) => return Ok((node, answer)),
            Err(report) => report,
        };
        drop(node);
        tries += 1;
        if tries == TRIES || !making::choose_ports_again(place, setup)? {
            return Err(failed);
        }
    }
}

/// What was started, in a few lines.
pub(crate) fn started_text(place: &Place, status: &Status) -> String {
    let Status { name, party, pid, data_addresses, api_address, .. } = status;
    let on = data_addresses.join(" ");
    let dir = place.dir.display();
    let api = api_address.as_ref().map(|at| {
        format!("  api        http://{at}; token in {}\n", place.dir.join("token").display())
    });
    format!(
        "Node {name} of party {} runs in the background.\n  directory  {dir}\n  listens    {on}\n{}  process    \
         {pid}; log in {}\n",
        party.shown(),
        api.unwrap_or_default(),
        place.log().display()
    )
}

/// What to type next, and what for.
pub(crate) fn next(steps: &[(String, &str)]) -> String {
    let wide = steps.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let lines = steps.iter().map(|(command, what)| format!("  {command:wide$}  {what}\n"));
    format!("\nNext:\n{}", lines.collect::<String>())
}

/// A sign of life on standard error, if somebody looks.
pub(crate) fn spinner(message: &'static str) -> ProgressBar {
    let progress = ProgressBar::new_spinner().with_message(message);
    if !std::io::stderr().is_terminal() {
        progress.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

async fn first_ticket(place: &Place) -> Result<Answer, Report> {
    let api = Api::local(place.clone());
    let began = Instant::now();
    loop {
        let body = json!({ "ttl_ms": FIRST_TTL.as_millis() as u64, "uses": FIRST_USES });
        match api.post("/v1/tickets", body).await {
            // It has not elected itself yet.
            Err(report) if is_early(&report) && began.elapsed() < FIRST_LEADER => {
                sleep(Duration::from_millis(50)).await;
            }
            outcome => return outcome,
        }
    }
}

fn is_early(report: &Report) -> bool {
    matches!(report.code, Code::NoLeader | Code::Unavailable | Code::Timeout)
}
