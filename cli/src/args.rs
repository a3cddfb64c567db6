//! What can be typed, and what to say where something else was.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    Ending, completions, config, data, demo, doctor, down, explain, init, job, jobs, join, leave,
    logs, model, node, nodes, party, plot, recover, request, service, status, stop, stragglers,
    submit, ticket, up, wait,
};
use crate::commands::{cp, exec, image, port, run, train};
use crate::report::{Code, Report};
use crate::value;

/// This binary's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The highest level of the replicated state that this binary knows.
pub(crate) use mesh_node::state::level::LEVEL;

const EXAMPLES: &str = "\
Examples:
  mesh demo                       three parties train on this machine; half way their leader dies
  mesh init                       the first machine of a mesh; prints a ticket
  mesh join mesh1-…               every other machine
  mesh nodes -w                   who is there, live
  mesh data push ./mnist          a dataset that every machine can pull
  mesh submit job.toml            run something, wherever there is room for it
  mesh doctor                     what is wrong, and what to do about it
  mesh help ticket                more about one command
  mesh help job.toml              everything that can stand in a job.toml

A mistake is explained in three lines (error, cause, try) on standard error, or with --json as one
object on standard output. Exit codes: 0 done, 1 refused or failed, 2 not a command, 3 no node or
leader to ask, 4 no node can run it, 5 other parties have not agreed, 124 out of time, 130 Ctrl-C.

The node's directory is --dir, or MESH_DIR, or /var/lib/mesh for root, or ~/.local/state/mesh.";

/// What `mesh help` knows beside commands.
const JOB_TOML: &str = "job.toml";

/// Turns machines into one training fleet with no master.
#[derive(Debug, Parser)]
#[command(name = "mesh", bin_name = "mesh", version, after_help = EXAMPLES)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    /// What holds for any command.
    #[command(flatten)]
    pub(crate) globals: Globals,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Options that stand before or after any command.
#[derive(Debug, clap::Args)]
pub(crate) struct Globals {
    /// The node's directory
    #[arg(long, global = true, value_name = "DIR", help_heading = "Any command")]
    pub(crate) dir: Option<PathBuf>,

    /// Answer with JSON, one object a line
    #[arg(long, global = true, help_heading = "Any command")]
    pub(crate) json: bool,

    /// Ask a node elsewhere: http://HOST[:PORT]; MESH_TOKEN_FILE holds its token
    #[arg(long, global = true, value_name = "URL", help_heading = "Any command")]
    pub(crate) api: Option<String>,

    /// Do not ask before what cannot be undone
    #[arg(long, short = 'y', global = true, help_heading = "Any command")]
    pub(crate) yes: bool,
}

/// One variant per command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make this machine the first of a new mesh, and start it
    #[command(after_help = init::EXAMPLES)]
    Init(init::Init),
    /// Join a mesh with a ticket, and start this node
    #[command(after_help = join::EXAMPLES)]
    Join(join::Join),
    /// Run this node in the foreground
    #[command(after_help = up::EXAMPLES)]
    Up(up::Up),
    /// Stop this node; it stays a member
    #[command(after_help = down::EXAMPLES)]
    Down,
    /// Take this node out of the mesh for good
    #[command(after_help = leave::EXAMPLES)]
    Leave(leave::Leave),
    /// What this node is and does
    #[command(after_help = status::EXAMPLES)]
    Status,
    /// Every node of the mesh
    #[command(after_help = nodes::EXAMPLES)]
    Nodes(nodes::Nodes),
    /// One node: show, rm, drain, label, logs
    #[command(subcommand, after_help = node::EXAMPLES)]
    Node(node::Verb),
    /// Datasets: push, pull, ls, show, log, diff, tag, share, unshare, pin, rm, verify, du
    #[command(subcommand, after_help = data::EXAMPLES)]
    Data(data::Verb),
    /// Run a job: submit it, and see it to its end
    #[command(after_help = submit::EXAMPLES)]
    Submit(submit::Submit),
    /// What would come of a job, without submitting it
    #[command(after_help = submit::PLAN_EXAMPLES)]
    Plan(submit::Plan),
    /// What waits and runs
    #[command(after_help = jobs::EXAMPLES)]
    Jobs(jobs::Jobs),
    /// One job: show, rm, retry; and new, a job.toml to start from
    #[command(subcommand, after_help = job::EXAMPLES)]
    Job(job::Verb),
    /// What a job's tasks printed
    #[command(after_help = logs::EXAMPLES)]
    Logs(logs::Logs),
    /// Ask for the end of jobs
    #[command(after_help = stop::EXAMPLES)]
    Stop(stop::Stop),
    /// Wait until jobs are over
    #[command(after_help = wait::EXAMPLES)]
    Wait(wait::Wait),
    /// Why a job is where it is, or nowhere
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::Explain),
    /// Who of a training is slow, late, dropped or refused, and where its time goes
    #[command(after_help = stragglers::EXAMPLES)]
    Stragglers(stragglers::Stragglers),
    /// How trainings go, as curves
    #[command(after_help = plot::EXAMPLES)]
    Plot(plot::Plot),
    /// What trainings have made: ls, show, pull
    #[command(subcommand, after_help = model::EXAMPLES)]
    Model(model::Verb),
    /// Tickets that let machines join: new, ls, revoke
    #[command(subcommand, after_help = ticket::EXAMPLES)]
    Ticket(ticket::Verb),
    /// The parties of the mesh, and this party's key: ls, key
    #[command(subcommand, after_help = party::EXAMPLES)]
    Party(party::Verb),
    /// What waits for the consent of other parties: ls, show, withdraw
    #[command(subcommand, after_help = request::EXAMPLES)]
    Request(request::Verb),
    /// Say yes to a request, for this node's party
    #[command(after_help = request::GRANT_EXAMPLES)]
    Grant {
        /// Which one: see mesh request ls
        #[arg(value_parser = value::request)]
        id: String,
    },
    /// Say no to a request, for this node's party
    #[command(after_help = request::DENY_EXAMPLES)]
    Deny {
        /// Which one: see mesh request ls
        #[arg(value_parser = value::request)]
        id: String,
    },
    /// Check this machine and the mesh, and say what to do
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Doctor),
    /// Every setting, and where its value came from
    #[command(after_help = config::EXAMPLES)]
    Config,
    /// After a majority of the voters is gone for good: survey, choose, sign, apply
    #[command(subcommand, after_help = recover::EXAMPLES)]
    Recover(recover::Verb),
    /// Start this node with the machine: install
    #[command(subcommand, after_help = service::EXAMPLES)]
    Service(service::Verb),
    /// See three parties on this machine train a model, lose their leader and go on
    #[command(after_help = demo::EXAMPLES)]
    Demo,
    /// Run a further command in a task
    #[command(after_help = exec::EXAMPLES)]
    Exec(exec::Exec),
    /// Copy files out of a task, or into it
    #[command(after_help = cp::EXAMPLES)]
    Cp(cp::Cp),
    /// Reach a port of a task from this machine
    #[command(after_help = port::EXAMPLES)]
    Port(port::Port),
    /// A shell or a command somewhere in the mesh, for as long as somebody looks
    #[command(after_help = run::EXAMPLES)]
    Run(run::Run),
    /// Container images in the mesh: push, ls, rm
    #[command(subcommand, after_help = image::EXAMPLES)]
    Image(image::Verb),
    /// The built-in trainer: what a job that trains runs as its task
    #[command(hide = true, after_help = train::EXAMPLES)]
    Train(train::Train),
    /// Print a script that lets your shell complete mesh's commands
    #[command(after_help = completions::EXAMPLES)]
    Completions {
        /// The shell that will read it
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// What it means if somebody stops it.
    pub(crate) fn ending(&self) -> Ending {
        match self {
            Self::Nodes(nodes) if nodes.watch => Ending::Followed,
            Self::Node(node::Verb::Logs(logs)) if logs.follow => Ending::Followed,
            Self::Data(verb) if verb.moves_data() => Ending::Resumes,
            Self::Submit(_) | Self::Job(job::Verb::Retry { .. }) => Ending::Own,
            // The job goes on whether somebody looks or not.
            Self::Jobs(jobs) if jobs.watch => Ending::Followed,
            Self::Logs(logs) if logs.follow => Ending::Followed,
            Self::Stop(stop) if stop.wait => Ending::Followed,
            Self::Wait(_) => Ending::Followed,
            Self::Image(verb) if verb.moves_data() => Ending::Resumes,
            Self::Model(verb) if verb.moves_data() => Ending::Resumes,
            Self::Port(_) => Ending::Followed,
            Self::Exec(_) | Self::Run(_) => Ending::Own,
            _ => Ending::Broken,
        }
    }
}

/// Whether the line asks for JSON, parsed or not. What follows `--` is somebody else's.
pub(crate) fn wants_json(words: &[OsString]) -> bool {
    words.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Whether the line is `mesh help job.toml`, which is no command that clap could know.
pub(crate) fn asks_about_job_toml(words: &[OsString]) -> bool {
    typed(words).filter(|word| !word.starts_with('-')).eq(["help", JOB_TOML])
}

/// Says what is wrong with a line that is not a command.
pub(crate) fn explain(error: &clap::Error, words: &[OsString]) -> Report {
    let said = |kind| error.get(kind).map(ToString::to_string).filter(|text| !text.is_empty());
    let usage = said(ContextKind::Usage)
        .map(|text| text.replacen("Usage:", "usage:", 1).trim().replace('\n', " "));
    // Clap shows no usage where a value does not fit: then the command is the one that was typed.
    let (path, known) = match &usage {
        Some(usage) => beneath(usage.split_whitespace().skip_while(|word| *word != "mesh").skip(1)),
        None => beneath(typed(words)),
    };
    let usage = usage.unwrap_or_else(|| format!("{path} --help lists what can be typed"));
    let argument = said(ContextKind::InvalidArg).unwrap_or_default();
    // "--ttl <TTL>" is called by its option alone.
    let argument = match argument.split_once(' ') {
        Some((option, _)) if option.starts_with("--") => option.to_owned(),
        _ => argument,
    };
    let (message, cause, hint) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            // Of several, the last one is the nearest.
            let near = said(ContextKind::SuggestedSubcommand);
            let near = near.and_then(|near| near.rsplit(", ").next().map(str::to_owned));
            let hint = near.map(|near| format!("{path} {near}"));
            let cause = match path.as_str() {
                "mesh" => format!("mesh {VERSION} has these: {}", known.join(", ")),
                path => format!("{path} takes one of {}", known.join(", ")),
            };
            (format!("there is no command {word:?}"), cause, hint)
        }
        ErrorKind::UnknownArgument => {
            let kind = if argument.starts_with('-') { "there is no option" } else { "unexpected" };
            (format!("{kind} {argument:?}"), usage, said(ContextKind::SuggestedArg))
        }
        ErrorKind::InvalidValue => {
            let value = said(ContextKind::InvalidValue).unwrap_or_default();
            let choices = match said(ContextKind::ValidValue) {
                Some(choices) => format!("it is one of {choices}"),
                // Clap refuses it where a path is wanted.
                None if value.is_empty() => {
                    "the name of a file or directory is wanted, and this one is empty".to_owned()
                }
                None => usage,
            };
            let hint = said(ContextKind::SuggestedValue);
            (format!("{value:?} does not fit {argument}"), choices, hint)
        }
        ErrorKind::ValueValidation => {
            let value = brief(said(ContextKind::InvalidValue).unwrap_or_default());
            let cause = std::error::Error::source(error).map_or(usage, ToString::to_string);
            (format!("{value:?} does not fit {argument}"), cause, None)
        }
        ErrorKind::ArgumentConflict => {
            let prior = said(ContextKind::PriorArg).unwrap_or_default();
            (format!("{argument} does not go with {prior}"), usage, None)
        }
        ErrorKind::MissingSubcommand => ("what to do is missing".into(), usage, None),
        ErrorKind::MissingRequiredArgument => (format!("{argument} is missing"), usage, None),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            (first.trim_start_matches("error: ").to_owned(), usage, None)
        }
    };
    let hint = hint.unwrap_or_else(|| format!("{path} --help"));
    Report::new(Code::Usage, message, cause, hint)
}

/// The beginning of a long value: it may be a ticket, and so a secret.
fn brief(value: String) -> String {
    const LONGEST: usize = 32;
    match value.char_indices().nth(LONGEST) {
        Some(_) => value.chars().take(8).chain(['…']).collect(),
        None => value,
    }
}

/// How to get help on the command that was typed, as far as it is one.
pub(crate) fn help_on(words: &[OsString]) -> String {
    format!("{} --help", beneath(typed(words)).0)
}

/// What was typed after `mesh`, up to `--`.
fn typed(words: &[OsString]) -> impl Iterator<Item = &str> {
    words.iter().skip(1).map_while(|word| word.to_str()).take_while(|word| *word != "--")
}

/// The command that these words name (`mesh node`), and what it takes next.
fn beneath<'a>(mut words: impl Iterator<Item = &'a str>) -> (String, Vec<String>) {
    let mut command = Args::command();
    command.build();
    let (mut path, mut at) = ("mesh".to_owned(), &command);
    while let Some(word) = words.next() {
        if word.starts_with('-') {
            // The value of an option, unless it hangs on it (--dir=DIR), is no command.
            let is_it = |long: &str| word.strip_prefix("--") == Some(long);
            let mut options = at.get_arguments().filter(|one| one.get_long().is_some_and(is_it));
            if options.any(|option| option.get_action().takes_values()) {
                words.next();
            }
            continue;
        }
        let Some(next) = at.find_subcommand(word) else { break };
        path = format!("{path} {}", next.get_name());
        at = next;
    }
    let shown = at.get_subcommands().filter(|sub| !sub.is_hide_set());
    (path, shown.map(|sub| sub.get_name().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Args::command().debug_assert();
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn help_is_on_the_command_that_was_typed_wherever_its_options_stand() {
        for (line, help) in [
            ("mesh ticket revoke x", "mesh ticket revoke --help"),
            ("mesh --json ticket --yes new --ttl 5", "mesh ticket new --help"),
            // The directory is called like a command.
            ("mesh --dir data ticket ls", "mesh ticket ls --help"),
            ("mesh --dir=data ticket ls", "mesh ticket ls --help"),
            ("mesh data --dir ls push", "mesh data push --help"),
            ("mesh exec gpu-1 -- ticket", "mesh exec --help"),
            ("mesh -- ticket", "mesh --help"),
            ("mesh", "mesh --help"),
        ] {
            assert_eq!(help_on(&words(line)), help, "{line}");
        }
    }

    #[test]
    fn help_on_the_file_is_not_help_on_a_command() {
        assert!(asks_about_job_toml(&words("mesh help job.toml")));
        assert!(asks_about_job_toml(&words("mesh --json help job.toml")));
        for line in ["mesh help", "mesh help job", "mesh job.toml", "mesh help job.toml x", "mesh"]
        {
            assert!(!asks_about_job_toml(&words(line)), "{line}");
        }
    }

    #[test]
    fn what_follows_two_dashes_does_not_ask_us_for_json() {
        assert!(wants_json(&words("mesh nodes --json")));
        assert!(!wants_json(&words("mesh exec gpu-1 -- docker ps --json")));
    }
}
