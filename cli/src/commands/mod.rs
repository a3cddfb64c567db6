//! One file per command. Each parses nothing and decides nothing: it asks, shows and says what is next.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

use crate::args::Command;
use crate::context::Context;
use crate::report::{Code, Outcome, Report};

pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod data;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod logs;
pub(crate) mod model;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod party;
pub(crate) mod plot;
pub(crate) mod port;
pub(crate) mod recover;
pub(crate) mod request;
pub(crate) mod run;
pub(crate) mod service;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod stragglers;
pub(crate) mod submit;
pub(crate) mod ticket;
pub(crate) mod train;
pub(crate) mod up;
pub(crate) mod wait;

/// Does what was asked.
pub(crate) fn run(command: Command, context: &Context) -> Outcome {
    match command {
        Command::Completions { shell } => completions::run(shell, context),
        Command::Service(verb) => service::run(&verb, context),
        Command::Recover(verb) => recover::run(&verb, context),
        Command::Train(train) => train::run(&train, context),
        // A node hears signals itself.
        Command::Up(up) => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(worker_threads());
            runtime(builder)?.block_on(up::run(&up, context))
        }
        command => {
            let runtime = runtime(tokio::runtime::Builder::new_current_thread())?;
            let ending = command.ending();
            runtime.block_on(attended(ask(command, context), ending))
        }
    }
}

async fn ask(command: Command, context: &Context) -> Outcome {
    match command {
        Command::Init(init) => init::run(&init, context).await,
        Command::Join(join) => join::run(&join, context).await,
        Command::Down => down::run(context).await,
        Command::Leave(leave) => leave::run(&leave, context).await,
        Command::Status => status::run(context).await,
        Command::Nodes(nodes) => nodes::run(&nodes, context).await,
        Command::Node(verb) => node::run(&verb, context).await,
        Command::Data(verb) => data::run(&verb, context).await,
        Command::Submit(submit) => submit::run(&submit, context).await,
        Command::Plan(plan) => submit::plan(&plan, context).await,
        Command::Jobs(jobs) => jobs::run(&jobs, context).await,
        Command::Job(verb) => job::run(&verb, context).await,
        Command::Logs(logs) => logs::run(&logs, context).await,
        Command::Stop(stop) => stop::run(&stop, context).await,
        Command::Wait(wait) => wait::run(&wait, context).await,
        Command::Explain(explain) => explain::run(&explain, context).await,
        Command::Stragglers(stragglers) => stragglers::run(&stragglers, context).await,
        Command::Plot(plot) => plot::run(&plot, context).await,
        Command::Model(verb) => model::run(&verb, context).await,
        Command::Ticket(verb) => ticket::run(&verb, context).await,
        Command::Party(verb) => party::run(&verb, context).await,
        Command::Request(verb) => request::run(&verb, context).await,
        Command::Grant { id } => request::answer(&id, true, context).await,
        Command::Deny { id } => request::answer(&id, false, context).await,
        Command::Doctor(doctor) => doctor::run(&doctor, context).await,
        Command::Config => config::run(context).await,
        Command::Demo => demo::run(context).await,
        Command::Exec(exec) => exec::run(&exec, context).await,
        Command::Cp(cp) => cp::run(&cp, context).await,
        Command::Port(port) => port::run(&port, context).await,
        Command::Run(wanted) => run::run(&wanted, context).await,
        Command::Image(verb) => image::run(&verb, context).await,
        Command::Up(_)
        | Command::Completions { .. }
        | Command::Service(_)
        | Command::Train(_)
        | Command::Recover(_) => {
            unreachable!("run() has dealt with it")
        }
    }
}

/// Threads that move messages and data. A node is a guest on a machine that trains, and a message that wakes one
/// thread costs less than one that wakes two: half of the cores, and no more than four.
fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4))
}

fn runtime(mut builder: tokio::runtime::Builder) -> Result<tokio::runtime::Runtime, Report> {
    builder.enable_all().build().map_err(|error| {
        let message = "the machine does not let mesh start";
        Report::new(Code::Failed, message, error.to_string(), "check ulimit -n and ulimit -u")
    })
}

/// Runs a command until it is done or somebody stops it. A command that is stopped is dropped, and what it
/// holds (a node that is starting, a live screen) is put away as it goes.
async fn attended(work: impl Future<Output = Outcome>, ending: Ending) -> Outcome {
    if ending == Ending::Own {
        return work.await;
    }
    tokio::select! {
        outcome = work => outcome,
        () = stopped() => interrupted(ending),
    }
}

/// Ctrl-C, or a polite kill. A hang-up is left as it is, for the sake of nohup.
pub(crate) async fn stopped() {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// What it means if a command is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It goes on until somebody stops it: Ctrl-C is how it ends, not a failure to explain.
    Followed,
    /// The same command goes on where this one stopped.
    Resumes,
    /// It may be half done.
    Broken,
    /// It hears of it itself, because there is something to say.
    Own,
}

/// How a command that was stopped ends.
pub(crate) fn interrupted(ending: Ending) -> Outcome {
    let (cause, hint) = match ending {
        Ending::Followed => return Ok(Code::Interrupted.exit()),
        Ending::Resumes => (
            "the connection to the node was closed, and the node stops with it",
            "the same command again: it resumes; what came, and files stored whole, are kept",
        ),
        Ending::Broken | Ending::Own => (
            "it was asked to stop before it was done",
            "mesh status shows how far it came; then the same again",
        ),
    };
    Err(Report::new(Code::Interrupted, "interrupted", cause, hint))
}
