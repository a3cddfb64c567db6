//! `mesh`: what a person types and sees.
//!
//! Parses, dispatches, and turns the outcome into an exit code. It decides nothing: the rules live
//! in the crates below.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use serde_json::json;

use crate::args::{Args, Command};
use crate::report::{Code, Report};

mod args;
mod report;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // Asked before parsing, so that a line which cannot be parsed still gets its error as JSON.
    let json = args::wants_json(&words);
    match run(&words, json) {
        Ok(code) => code,
        Err(report) => report.show(json),
    }
}

fn run(words: &[OsString], json: bool) -> Result<ExitCode, Report> {
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(answer) => return on_no_command(&answer, json),
    };
    match args.command {
        Some(Command::Completions { shell }) => completions(shell, json),
        None => Err(Report {
            code: Code::Usage,
            message: "no command was given".into(),
            cause: "options alone do nothing".into(),
            hint: "mesh --help".into(),
        }),
    }
}

/// Clap reports help and version the way it reports mistakes. Here they part.
fn on_no_command(answer: &clap::Error, json: bool) -> Result<ExitCode, Report> {
    match answer.kind() {
        ErrorKind::DisplayVersion => {
            let (version, level) = (args::VERSION, args::LEVEL);
            if json {
                let item = json!({ "version": version, "level": level });
                return print(&line(&json!({ "schema": 1, "item": item })));
            }
            print(format!("mesh {version} (level {level})\n").as_bytes())
        }
        // Clap itself asks the terminal and NO_COLOR whether to use colour.
        ErrorKind::DisplayHelp => written(answer.print()),
        // The bare `mesh`: help on standard error, because nothing that was asked for was done.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            written(answer.print())?;
            Ok(Code::Usage.exit())
        }
        _ => Err(args::explain(answer)),
    }
}

fn completions(shell: clap_complete::Shell, json: bool) -> Result<ExitCode, Report> {
    // Into memory first: the generator panics where a write fails.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "mesh", &mut script);
    if json {
        let script = String::from_utf8_lossy(&script);
        let item = json!({ "shell": shell.to_string(), "script": script });
        return print(&line(&json!({ "schema": 1, "item": item })));
    }
    print(&script)
}

fn line(value: &serde_json::Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

fn print(bytes: &[u8]) -> Result<ExitCode, Report> {
    written(io::stdout().write_all(bytes))
}

/// Whoever closed the pipe has read enough (`mesh --help | head -1`): that is no failure.
fn written(result: io::Result<()>) -> Result<ExitCode, Report> {
    match result.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error)
            .context("the answer could not be written")
            .map_err(|error| Report::failed(&error, "send the output to a file or a terminal")),
        _ => Ok(ExitCode::SUCCESS),
    }
}
