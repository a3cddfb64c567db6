//! What can be typed, and what to say where something else was.

use std::ffi::OsString;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::report::{Code, Report};

/// This binary's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The highest level of the replicated state that this binary knows.
pub(crate) use mesh_node::state::level::LEVEL;

const EXAMPLES: &str = "\
Examples:
  mesh --version                  what this binary is
  mesh help completions           more about one command
  mesh completions fish | source  complete commands in this shell

A mistake is explained in three lines (error, cause, try) on standard error, or with --json as one
object on standard output. Exit codes: 0 done, 1 refused or failed, 2 not a command.

This version has no network yet: README.md says what works today and what comes next.";

const COMPLETIONS: &str = "\
Examples:
  mesh completions bash > ~/.local/share/bash-completion/completions/mesh
  mesh completions zsh > ~/.zfunc/_mesh        # with ~/.zfunc in $fpath
  mesh completions fish > ~/.config/fish/completions/mesh.fish";

/// Commands that the documents speak of and this version does not have. A test keeps this list
/// apart from the commands that exist.
const TO_COME: [&str; 26] = [
    "init", "join", "up", "down", "leave", "status", "nodes", "submit", "plan", "jobs", "logs",
    "stop", "wait", "explain", "exec", "cp", "port", "demo", "doctor", "config", "data", "ticket",
    "party", "service", "recover", "grant",
];

/// Turns machines into one training fleet with no master.
#[derive(Debug, Parser)]
#[command(name = "mesh", bin_name = "mesh", version, after_help = EXAMPLES)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    /// Answer with JSON, one object a line
    #[arg(long, global = true)]
    json: bool,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// One variant per command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a script that lets your shell complete mesh's commands
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell that will read it
        shell: clap_complete::Shell,
    },
}

/// Whether the line asks for JSON, parsed or not. What follows `--` is somebody else's.
pub(crate) fn wants_json(words: &[OsString]) -> bool {
    words.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Says what is wrong with a line that is not a command.
pub(crate) fn explain(error: &clap::Error) -> Report {
    let said = |kind| error.get(kind).map(ToString::to_string).filter(|text| !text.is_empty());
    let usage = said(ContextKind::Usage).map_or_else(
        || "mesh --help lists what can be typed".into(),
        |text| text.replacen("Usage:", "usage:", 1).trim().replace('\n', " "),
    );
    let argument = said(ContextKind::InvalidArg).unwrap_or_default();
    let (message, cause, hint) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            let hint = if TO_COME.contains(&word.as_str()) {
                Some(format!("mesh {VERSION} cannot do this yet; README.md says what it can do"))
            } else {
                said(ContextKind::SuggestedSubcommand).map(|near| format!("mesh {near}"))
            };
            let cause = format!("mesh {VERSION} has these: {}", commands().join(", "));
            (format!("there is no command {word:?}"), cause, hint)
        }
        ErrorKind::UnknownArgument => {
            let kind = if argument.starts_with('-') { "there is no option" } else { "unexpected" };
            (format!("{kind} {argument:?}"), usage, said(ContextKind::SuggestedArg))
        }
        ErrorKind::InvalidValue => {
            let value = said(ContextKind::InvalidValue).unwrap_or_default();
            let choices = said(ContextKind::ValidValue)
                .map_or(usage, |choices| format!("it is one of {choices}"));
            let hint = said(ContextKind::SuggestedValue);
            (format!("{value:?} does not fit {argument}"), choices, hint)
        }
        ErrorKind::MissingRequiredArgument => (format!("{argument} is missing"), usage, None),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            (first.trim_start_matches("error: ").to_owned(), usage, None)
        }
    };
    let hint = hint.unwrap_or_else(|| "mesh --help".into());
    Report { code: Code::Usage, message, cause, hint }
}

/// The commands that exist, `help` included.
fn commands() -> Vec<String> {
    let mut command = Args::command();
    command.build();
    command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn no_command_both_exists_and_is_yet_to_come() {
        for name in commands() {
            assert!(!TO_COME.contains(&name.as_str()), "{name} exists: take it off the list");
        }
    }

    #[test]
    fn what_follows_two_dashes_does_not_ask_us_for_json() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("mesh nodes --json")));
        assert!(!wants_json(&words("mesh exec gpu-1 -- docker ps --json")));
    }
}
