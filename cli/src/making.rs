//! Making a node and running it: the calls into the node crate, and its errors as a person reads them.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;

use mesh_node::dir::{Dir, DirError, Made};
use mesh_node::engine::{EngineError, OpenError};
use mesh_node::join::{self, Choices, JoinError};
use mesh_node::run::{RunError, run};
use mesh_node::state::founding::FoundingError;
use mesh_node::state::name::Name;
use mesh_node::state::refusal::Refusal;
use mesh_transport::net::BindError;
use mesh_transport::overlay::OverlayError;
use mesh_transport::ticket::{Kind, Ticket};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use toml::{Table, Value};

use crate::commands::init::Setup;
use crate::context::Place;
use crate::report::{Code, Outcome, Report};
use crate::value::Address;

/// What libp2p would write session secrets to.
const KEY_LOG: &str = "SSLKEYLOGFILE";

/// Founds a mesh in the directory. Starts nothing.
pub(crate) fn found(place: &Place, party: Option<&str>, setup: &Setup) -> Result<Made, Report> {
    let dir = Dir::at(&place.dir);
    join::found(&dir, &choices(party, setup)?).map_err(|error| explain(place, error))
}

/// Takes a mesh back that was founded a moment ago and of which nobody else knows.
pub(crate) fn unfound(place: &Place, made: &Made) -> Result<(), Report> {
    join::unfound(&Dir::at(&place.dir), made).map_err(|error| explain(place, error))
}

/// Refuses a ticket for another mesh than that of the directory.
pub(crate) fn same_mesh(place: &Place, ticket: &str) -> Result<(), Report> {
    let dir = Dir::at(&place.dir);
    let (Ok(ticket), Ok(Some(holds))) = (ticket.parse::<Ticket>(), dir.membership()) else {
        return Ok(());
    };
    let (path, holds) = (place.dir.clone(), holds.identity.mesh);
    if holds == ticket.mesh {
        return Ok(());
    }
    Err(explain(place, JoinError::OtherMesh { path, holds, ticket: ticket.mesh }))
}

/// Says of a directory that holds a node whether that has lost its key; if it has, then what to do.
pub(crate) fn lost_key(place: &Place) -> Option<Report> {
    match Dir::at(&place.dir).node_key() {
        Err(error @ DirError::KeyGone(_)) => Some(dir_report(place, &error)),
        _ => None,
    }
}

/// Whether a process runs the node of a directory.
pub(crate) fn is_running(place: &Place) -> bool {
    matches!(Dir::at(&place.dir).lock(), Err(DirError::Running(_)))
}

/// Shows the ticket to a member, and makes the directory once it is admitted. Starts nothing.
pub(crate) async fn admitted(
    place: &Place,
    ticket: &str,
    party: Option<&str>,
    setup: &Setup,
    tell: impl Fn(&str),
) -> Result<(), Report> {
    let ticket: Ticket = ticket.parse().map_err(|error: mesh_transport::ticket::TicketError| {
        let error = anyhow::Error::from(error);
        let cause = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
        let hint = "copy the ticket once more, all of it, or make another: mesh ticket new";
        Report::new(Code::Usage, "the ticket cannot be read", cause, hint)
    })?;
    if let (Some(party), Kind::Member | Kind::Worker) = (party, ticket.kind) {
        let message = format!("this ticket founds no party, so none can be called {party}");
        let cause = "it admits a node to the party that made it";
        let hint = "join without --party, or ask for: mesh ticket new --new-party";
        return Err(Report::new(Code::Usage, message, cause, hint));
    }
    let dir = Dir::at(&place.dir);
    let choices = choices(party, setup)?;
    join::join(&dir, &ticket, &choices, tell).await.map(drop).map_err(|error| explain(place, error))
}

/// Chooses other ports for a node that could not start because somebody took its own. Whether it did.
pub(crate) fn choose_ports_again(place: &Place, setup: &Setup) -> Result<bool, Report> {
    let dir = Dir::at(&place.dir);
    join::choose_ports_again(&dir, &choices(None, setup)?).map_err(|error| explain(place, error))
}

/// Runs the node of a directory until it is told to stop, by a signal or over its API. What it has to say goes
/// to standard error, and to `log` where that is another file. `flags` are settings that were typed.
pub(crate) async fn run_node(
    place: &Place,
    rejoin: bool,
    flags: &Table,
    log: Option<File>,
) -> Outcome {
    if std::env::var_os(KEY_LOG).is_some() {
        // The only way to be without a variable that is safe while threads run: start over.
        let words = std::env::args_os().skip(1);
        let program = std::env::current_exe().map_err(|error| {
            Report::new(
                Code::Failed,
                "mesh cannot find itself",
                error.to_string(),
                "unset SSLKEYLOGFILE",
            )
        })?;
        let error = std::process::Command::new(program).args(words).env_remove(KEY_LOG).exec();
        let message = "mesh cannot start without SSLKEYLOGFILE";
        return Err(Report::new(Code::Failed, message, error.to_string(), "unset SSLKEYLOGFILE"));
    }
    start_log(log);
    let dir = Dir::at(&place.dir);
    if rejoin {
        let rejoined = join::rejoin(&dir, |text| tracing::info!("{text}")).await;
        rejoined.map_err(|error| explain(place, error))?;
    }
    let stop = CancellationToken::new();
    tokio::spawn(heed_signals(stop.clone()));
    let ready = |handle: &mesh_node::handle::Handle| {
        tracing::info!(
            node = %handle.whoami.node.short(),
            mesh = %handle.whoami.mesh.short(),
            data = ?handle.net.addresses(),
            "the node runs"
        );
    };
    tokio::spawn(crate::background::mind_log(place.clone()));
    match run(dir, flags, stop, ready).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            let report = ended(place, error);
            tracing::error!(cause = %report.cause, "{}", report.message);
            Err(report)
        }
    }
}

async fn heed_signals(stop: CancellationToken) {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else { return };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    tracing::info!("asked to stop by a signal");
    stop.cancel();
}

fn start_log(log: Option<File>) {
    use std::io::IsTerminal;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::prelude::*;
    let usual = || "info,libp2p=warn,quinn=warn".parse().expect("this is a filter");
    let (filter, unread) = match std::env::var("MESH_LOG").map(|text| text.parse::<Targets>()) {
        Ok(Ok(filter)) => (filter, None),
        Ok(Err(error)) => (usual(), Some(error)),
        Err(_) => (usual(), None),
    };
    let also = log.map(|file| {
        let layer = tracing_subscriber::fmt::layer().with_ansi(false);
        layer.with_writer(std::sync::Mutex::new(file)).with_filter(filter.clone())
    });
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_writer(std::io::stderr)
        .with_filter(filter);
    // A second one in one process would be a mistake, and no reason to stop.
    let _ = tracing_subscriber::registry().with(layer).with(also).try_init();
    if let Some(error) = unread {
        tracing::warn!(%error, "MESH_LOG cannot be read, so the usual is logged: try MESH_LOG=debug");
    }
}

fn choices(party: Option<&str>, setup: &Setup) -> Result<Choices, Report> {
    let name = |text: &Option<String>| -> Result<Option<Name>, Report> {
        let parsed = text.as_deref().map(str::parse).transpose();
        parsed.map_err(|error: mesh_node::state::name::ParseNameError| {
            Report::new(Code::Usage, "this is no name", error.to_string(), "mesh init --help")
        })
    };
    let ports: std::collections::BTreeSet<u16> =
        setup.listen.iter().filter_map(|at| at.port).collect();
    if ports.len() > 1 {
        return Err(Report::new(
            Code::Usage,
            "a node has one port for all its addresses",
            format!(
                "--listen names {}",
                setup.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            ),
            "give the same port to each, or to one of them",
        ));
    }
    let mut settings = Table::new();
    if !setup.advertise.is_empty() {
        let each = setup.advertise.iter().map(|at| Value::from(written(at)));
        settings.insert("advertise".into(), Value::Array(each.collect()));
    }
    if let Some(api) = &setup.api_listen {
        settings.insert("api_listen".into(), Value::from(written(api)));
    }
    if setup.mdns {
        settings.insert("mdns".into(), Value::Boolean(true));
    }
    if setup.no_vote {
        settings.insert("votes".into(), Value::Boolean(false));
    }
    if let Some(domain) = &setup.domain {
        settings.insert("domain".into(), Value::from(domain.as_str()));
    }
    Ok(Choices {
        party: name(&party.map(str::to_owned))?,
        name: name(&setup.name)?,
        listen: setup.listen.iter().map(|at| (at.ip, at.port)).collect(),
        settings,
    })
}

/// As in a config.toml.
pub(crate) fn written(at: &Address) -> String {
    match at.port {
        Some(port) => std::net::SocketAddr::new(at.ip, port).to_string(),
        None => at.ip.to_string(),
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

/// What went wrong while a node was made.
fn explain(place: &Place, error: JoinError) -> Report {
    let dir = place.dir.display();
    match error {
        JoinError::Dir(error) => dir_report(place, &error),
        JoinError::OtherMesh { holds, ticket, .. } => Report::new(
            Code::Refused,
            format!("{dir} already holds a node of another mesh"),
            format!("it belongs to mesh {}, the ticket to mesh {}", holds.short(), ticket.short()),
            "name another directory with --dir",
        ),
        JoinError::Unreachable(tried) => {
            let each: Vec<String> = tried.iter().map(|one| one.how.clone()).collect();
            let cause =
                if each.is_empty() { "no address is known".into() } else { each.join("; ") };
            let hint =
                "check that a node of the ticket runs and that UDP gets through: mesh doctor";
            Report::new(Code::NoNode, "no node of the mesh could be reached", cause, hint)
        }
        JoinError::Refused { code, why } => {
            let hint = match code.and_then(Refusal::from_code) {
                Some(
                    Refusal::NoSuchTicket
                    | Refusal::TicketExpired
                    | Refusal::TicketUsedUp
                    | Refusal::BadProof
                    | Refusal::BadConsent,
                ) => "ask for another ticket: mesh ticket new",
                Some(Refusal::NameTaken) => "choose another name with --name",
                Some(Refusal::NameReserved) => "choose another with --party NAME",
                Some(Refusal::Removed) => "join from a new directory: a removed key stays out",
                _ if why.contains("clock") => {
                    "set the clock (timedatectl set-ntp true), then join again"
                }
                _ => "mesh doctor",
            };
            Report::new(Code::Refused, "the mesh did not let this node in", why, hint)
        }
        JoinError::NoLeader => Report::new(
            Code::NoLeader,
            "the mesh has no leader",
            "a majority of its voters cannot be reached, so nobody can be admitted",
            "mesh nodes on a member, then try again",
        ),
        JoinError::Founding(FoundingError::Party(Refusal::NameReserved)) => Report::new(
            Code::Refused,
            "no party can be called so",
            "the name has a meaning of its own: each/NAME is every party's own data",
            "choose another with --party NAME",
        ),
        JoinError::PartyName(name) => Report::new(
            Code::Refused,
            format!("there is a party {name} already"),
            "two parties cannot have one name",
            "choose another with --party NAME",
        ),
        JoinError::Waits { request } => Report::new(
            Code::Consent,
            "the other parties have not agreed yet",
            format!("request {request} waits for a majority of them"),
            format!("let them run: mesh grant {request}; then join again with the same ticket"),
        ),
        JoinError::NotOurs(ip) => Report::new(
            Code::Usage,
            format!("this machine has no address {ip}"),
            "--listen takes an address of this machine",
            "ip address; and --advertise for one under which others reach it",
        ),
        JoinError::PortTaken { address, protocol } => taken(address, protocol, LISTEN),
        JoinError::Config(error) => {
            Report::new(Code::Usage, "the settings cannot be used", chain(&error), "mesh config")
        }
        // It may have been admitted by then: the ticket lets the same directory in again.
        log @ JoinError::Log(_) => Report::new(
            Code::Failed,
            "the node could not be made",
            chain(&log),
            "make room there, or mend what the cause names, then the same command again",
        ),
        other => {
            Report::new(Code::Failed, "the node could not be made", chain(&other), "mesh doctor")
        }
    }
}

fn dir_report(place: &Place, error: &DirError) -> Report {
    let code = match error {
        DirError::Absent(_) => Code::NoNode,
        DirError::Taken(_)
        | DirError::Foreign { .. }
        | DirError::Running(_)
        | DirError::Joining(_) => Code::Refused,
        _ => Code::Failed,
    };
    let message = error.to_string();
    let cause = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => match error {
            DirError::Taken(_) => "one directory is one node".into(),
            DirError::Foreign { found, .. } => {
                format!("it holds {found:?}, and a node wants a directory of its own")
            }
            DirError::Running(_) => "one directory is run by one process".into(),
            DirError::Damaged(_) => "its checksum does not fit its bytes".into(),
            DirError::KeyGone(_) => {
                "there is no node.key, and without it this node cannot prove who it is".into()
            }
            DirError::Joining(_) => "the keys of the party that it founds are here only".into(),
            _ => format!("looked in {}", place.dir.display()),
        },
    };
    Report::new(code, message, cause, error.hint())
}

const LISTEN: &str = "--listen ADDR:PORT or --api-listen of init and join; later in config.toml: data_port, overlay_port, api_listen";

/// Names the program that holds a port. `protocol` is `udp` or `tcp`, whichever of the two could not be had.
fn taken(address: std::net::SocketAddr, protocol: &str, flag: &str) -> Report {
    let holder = crate::commands::doctor::ports::holder_of(protocol, address.port());
    let cause = holder.unwrap_or_else(|| "another program holds it".into());
    let message = format!("port {} is in use on {}", address.port(), address.ip());
    let hint = format!("stop it, or choose another port with {flag}");
    Report::new(Code::Failed, message, cause, hint)
}

/// What ended a node.
fn ended(place: &Place, error: RunError) -> Report {
    match error {
        RunError::Dir(error) => dir_report(place, &error),
        RunError::Config(error) => {
            let hint = format!("correct {}", file(place, "config.toml"));
            Report::new(Code::Usage, "the settings cannot be used", chain(&error), hint)
        }
        RunError::Left => Report::new(
            Code::Refused,
            "this node has left its mesh",
            "a key that left may not come back",
            "join from a new directory: mesh join TICKET --dir DIR",
        ),
        RunError::Removed => Report::new(
            Code::Refused,
            "this node was removed from its mesh",
            "its own state says so, and a key that was removed stays out",
            "join from a new directory: mesh join TICKET --dir DIR",
        ),
        RunError::Bind(BindError::InUse { address }) => taken(address, "udp", LISTEN),
        RunError::Overlay(OverlayError::InUse { address, protocol }) => {
            taken(address, protocol, LISTEN)
        }
        RunError::ApiInUse(address) => taken(address, "tcp", "--api-listen ADDR:PORT"),
        RunError::Engine(error) => {
            let hint = match &error {
                EngineError::LostData
                | EngineError::Open(
                    OpenError::Damaged { .. }
                    | OpenError::Inconsistent { .. }
                    | OpenError::Missing { .. },
                ) => {
                    format!(
                        "{} moves the log aside and takes a new seat",
                        place.command("up --rejoin")
                    )
                }
                other => other.hint().to_owned(),
            };
            Report::new(Code::Failed, "the node cannot go on", chain(&error), hint)
        }
        other => {
            let cause = std::error::Error::source(&other).map_or_else(String::new, chain);
            Report::new(Code::Failed, other.to_string(), cause, "mesh doctor")
        }
    }
}

fn file(place: &Place, name: &str) -> String {
    Path::new(&place.dir).join(name).display().to_string()
}
