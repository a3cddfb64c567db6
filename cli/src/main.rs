//! `mesh`: what a person types and sees.
//!
//! Parses, dispatches, and turns the outcome into an exit code. It decides nothing: the rules live
//! in the crates below, and most commands are a question to a running node.
//!
//! | read | for |
//! |---|---|
//! | [`args`], [`value`], [`task`] | what can be typed |
//! | [`context`] | which node is meant, how to answer, whether to ask |
//! | [`client`], [`answers`] | asking a node, and what it says |
//! | [`background`] | starting a node behind a command, and stopping it |
//! | [`commands`] | one file per command |
//! | [`follow`] | a job, from its submission to its end |
//! | [`course`], [`plot`] | a training in words; curves |
//! | [`report`], [`view`] | errors as three lines; tables |
//! | [`live`], [`screen`] | what is shown again and again; the terminal's second page |

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use serde_json::json;

use crate::args::Args;
use crate::context::{Context, print, print_item, written};
use crate::report::{Code, Outcome, Report};

mod answers;
mod args;
mod background;
mod client;
mod commands;
mod context;
mod course;
mod follow;
mod live;
mod making;
mod plot;
mod report;
mod screen;
mod task;
mod value;
mod view;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // Not a command for people, and before anything else is done: it stands between a task and its first line.
    if let [_, word, rest @ ..] = &words[..]
        && word == "shim"
    {
        return mesh_node::executor::shim::main(rest);
    }
    // Asked before parsing, so that a line which cannot be parsed still gets its error as JSON.
    let json = args::wants_json(&words);
    match run(&words, json) {
        Ok(code) => code,
        Err(report) => report.show(json),
    }
}

fn run(words: &[OsString], json: bool) -> Outcome {
    if args::asks_about_job_toml(words) {
        return commands::job::help(json);
    }
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(answer) => return on_no_command(&answer, words, json),
    };
    let Some(command) = args.command else {
        let cause = "options alone do nothing";
        return Err(Report::new(Code::Usage, "no command was given", cause, "mesh --help"));
    };
    commands::run(command, &Context::new(args.globals)?)
}

/// Clap reports help and version the way it reports mistakes. Here they part.
fn on_no_command(answer: &clap::Error, words: &[OsString], json: bool) -> Outcome {
    match answer.kind() {
        ErrorKind::DisplayVersion => {
            let (version, level) = (args::VERSION, args::LEVEL);
            if json {
                return print_item(&json!({ "version": version, "level": level }));
            }
            print(&format!("mesh {version} (level {level})\n"))
        }
        // Clap itself asks the terminal and NO_COLOR whether to use colour.
        ErrorKind::DisplayHelp => written(answer.print()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if json => {
            let cause = "this command takes another after it";
            let hint = args::help_on(words);
            Err(Report::new(Code::Usage, "what to do is missing", cause, hint))
        }
        // The bare `mesh`: help on standard error, because nothing that was asked for was done.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            written(answer.print())?;
            Ok(Code::Usage.exit())
        }
        _ => Err(args::explain(answer, words)),
    }
}
