//! Errors as a person reads them: what went wrong, why, and what to try.
//!
//! ```text
//! error: job llama-7b cannot be placed
//! cause: it wants 8 workers; 5 of 12 nodes have 80 GiB free
//! try:   mesh explain llama-7b
//! ```
//!
//! With `--json` the same stands on standard output as `{"error":{code,message,cause,try}}`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

/// What kind of failure it was: decides the exit code. Scripts rely on both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// It was refused, or it failed.
    Failed,
    /// What was typed is not a command.
    Usage,
}

impl Code {
    /// The name that `--json` shows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
        }
    }

    /// The exit code that goes with it.
    pub(crate) fn exit(self) -> ExitCode {
        match self {
            Self::Failed => ExitCode::from(1),
            Self::Usage => ExitCode::from(2),
        }
    }
}

/// A failure, ready to be shown. Each text is one line without a final stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// What kind.
    pub(crate) code: Code,
    /// What went wrong.
    pub(crate) message: String,
    /// Why.
    pub(crate) cause: String,
    /// What to do about it: a command where there is one.
    pub(crate) hint: String,
}

impl Report {
    /// A failed operation: the outermost error is the message, what lies beneath it the cause.
    pub(crate) fn failed(error: &anyhow::Error, hint: &str) -> Self {
        let beneath: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
        let cause = if beneath.is_empty() {
            "no further reason is known".into()
        } else {
            beneath.join(": ")
        };
        Self { code: Code::Failed, message: error.to_string(), cause, hint: hint.into() }
    }

    /// Shows it where it belongs, and says how to exit.
    pub(crate) fn show(&self, json: bool) -> ExitCode {
        // Nobody is left to tell if this cannot be written; the exit code still does.
        let _ = if json {
            writeln!(io::stdout(), "{}", self.json())
        } else {
            write!(io::stderr(), "{}", self.text())
        };
        self.code.exit()
    }

    fn text(&self) -> String {
        let Self { code: _, message, cause, hint } = self;
        format!("error: {message}\ncause: {cause}\ntry:   {hint}\n")
    }

    fn json(&self) -> Value {
        let Self { code, message, cause, hint } = self;
        json!({ "error": {
            "code": code.name(), "message": message, "cause": cause, "try": hint,
        } })
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_chain_of_errors_becomes_three_lines() {
        let error = anyhow!("disk full").context("could not sync").context("nothing was saved");
        let report = Report::failed(&error, "free some room");
        assert_eq!(
            report.text(),
            "error: nothing was saved\ncause: could not sync: disk full\ntry:   free some room\n"
        );
    }

    #[test]
    fn an_error_without_a_source_still_has_three_lines() {
        let report = Report::failed(&anyhow!("refused"), "mesh --help");
        assert_eq!(report.text().lines().count(), 3);
        assert_eq!(report.json()["error"]["code"], "failed");
    }
}
