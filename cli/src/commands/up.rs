//! `mesh up`: runs the node in the foreground.

use crate::background::open_log;
use crate::context::Context;
use crate::making;
use crate::report::{Code, Outcome, Report};
use crate::value::Address;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh up                        until Ctrl-C; mesh init and mesh join do this in the background
  MESH_LOG=debug mesh up         with more to read
  mesh up --api-listen 127.0.0.1 and the HTTP API on TCP, this time
  mesh up --rejoin               after the mesh was recovered without this node
  mesh service install           let systemd do it, at every start of the machine";

/// What `up` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Up {
    /// Join the recovered mesh again, under a new seat; forget the log
    #[arg(long)]
    pub(crate) rejoin: bool,
    /// Also the HTTP API on TCP, with tokens, this time; port 0 is any
    #[arg(long, value_name = "ADDR[:PORT]")]
    api_listen: Option<Address>,
    /// Leave the session of whoever started it
    #[arg(long, hide = true)]
    detached: bool,
    /// Die with whoever started it
    #[arg(long, hide = true, conflicts_with = "detached")]
    leashed: bool,
}

pub(crate) async fn run(up: &Up, context: &Context) -> Outcome {
    context.only_here("up")?;
    let place = &context.place;
    if place.is_joining() {
        return Err(Report::new(
            Code::NoNode,
            format!("the node in {} is not a member of a mesh yet", place.dir.display()),
            "the join that was begun there waits for the other parties",
            "mesh join with the same ticket goes on with it",
        ));
    }
    if !place.is_made() {
        let message = format!("there is no node in {}", place.dir.display());
        let hint = format!("{}, or {}", place.command("init"), place.command("join TICKET"));
        return Err(Report::new(Code::NoNode, message, "no mesh was founded or joined here", hint));
    }
    let tied = if up.detached {
        // Refused only to the leader of a process group, which has nothing to leave.
        nix::unistd::setsid().map(drop).or(Ok(()))
    } else if up.leashed {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
    } else {
        Ok(())
    };
    tied.map_err(|error| {
        let message = "the node could not be tied to its starter";
        Report::new(Code::Failed, message, error.to_string(), place.command("up"))
    })?;
    // Whoever started it in the background has given it its log as standard error.
    let log = if up.detached || up.leashed { None } else { open_log(place).ok() };
    let mut flags = toml::Table::new();
    if let Some(api) = &up.api_listen {
        flags.insert("api_listen".into(), making::written(api).into());
    }
    making::run_node(place, up.rejoin, &flags, log).await
}
