//! Errors as a person reads them: what went wrong, why, and what to try.
//!
//! ```text
//! error: job llama-7b cannot be placed
//! cause: it wants 8 workers; 5 of 12 nodes have 80 GiB free
//! try:   mesh explain llama-7b
//! ```
//!
//! Where a file has a mistake in it, the cause is the message once more with the line and a caret beneath, and is
//! shown instead of both.
//!
//! With `--json` the same stands on standard output as `{"schema":1,"error":{code,message,cause,try}}`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::view::{clean, clean_lines};

/// What a command comes to.
pub(crate) type Outcome = Result<ExitCode, Report>;

/// What kind of failure it was: decides the exit code. Scripts rely on both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// It failed.
    Failed,
    /// A node or the mesh refused it.
    Refused,
    /// What was asked about is not there.
    NotFound,
    /// What was typed is not a command.
    Usage,
    /// There is no node to ask.
    NoNode,
    /// There is a node, and it knows no leader.
    NoLeader,
    /// There is a node, and it cannot answer now.
    Unavailable,
    /// No set of nodes can take the job.
    Unplaceable,
    /// A party has not agreed.
    Consent,
    /// It took too long.
    Timeout,
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

impl Code {
    const ALL: [Self; 11] = [
        Self::Failed,
        Self::Refused,
        Self::NotFound,
        Self::Usage,
        Self::NoNode,
        Self::NoLeader,
        Self::Unavailable,
        Self::Unplaceable,
        Self::Consent,
        Self::Timeout,
        Self::Interrupted,
    ];

    /// The name that `--json` shows, here and on the HTTP API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::NotFound => "not_found",
            Self::Usage => "usage",
            Self::NoNode => "no_node",
            Self::NoLeader => "no_leader",
            Self::Unavailable => "unavailable",
            Self::Unplaceable => "unplaceable",
            Self::Consent => "consent",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
        }
    }

    /// The code of that name, as a node says it.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// The exit code that goes with it.
    pub(crate) fn exit(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn number(self) -> u8 {
        match self {
            Self::Failed | Self::Refused | Self::NotFound => 1,
            Self::Usage => 2,
            Self::NoNode | Self::NoLeader | Self::Unavailable => 3,
            Self::Unplaceable => 4,
            Self::Consent => 5,
            Self::Timeout => 124,
            Self::Interrupted => 130,
        }
    }
}

/// A failure, ready to be shown. Each text is one line without a final stop, but for a cause that shows a file.
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
    /// A failure from its three lines.
    pub(crate) fn new(
        code: Code,
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { code, message: message.into(), cause: cause.into(), hint: hint.into() }
    }

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
        // A part of it may have come from a peer or a log: it must not move the cursor.
        let [message, cause, hint] =
            [&self.message, &self.cause, &self.hint].map(|text| clean(text));
        if self.shows_a_file() {
            return format!("error: {}\ntry:   {hint}\n", clean_lines(&self.cause));
        }
        format!("error: {message}\ncause: {cause}\ntry:   {hint}\n")
    }

    /// Whether the cause is the message, with a part of a file beneath.
    fn shows_a_file(&self) -> bool {
        let beneath = self.cause.strip_prefix(&self.message);
        !self.message.is_empty() && beneath.is_some_and(|rest| rest.starts_with('\n'))
    }

    fn json(&self) -> Value {
        let Self { code, message, cause, hint } = self;
        json!({ "schema": 1, "error": {
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
        let said = report.json();
        assert_eq!((&said["schema"], &said["error"]["code"]), (&json!(1), &json!("failed")));
    }

    #[test]
    fn what_a_peer_said_cannot_break_the_lines_or_move_the_cursor() {
        let report = Report::new(Code::Refused, "a\nb", "\x1b[2Jc", "d\r");
        assert_eq!(report.text(), "error: a b\ncause: [2Jc\ntry:   d\n");
    }

    #[test]
    fn a_mistake_in_a_file_is_shown_where_it_is() {
        let cause = "no key `x`\n --> a.toml:3:2\n  |\n3 | [x]\x1b[2J\n  |  ^ did you mean `y`?";
        let report = Report::new(Code::Failed, "no key `x`", cause, "mesh help job.toml");
        assert_eq!(
            report.text(),
            "error: no key `x`\n --> a.toml:3:2\n  |\n3 | [x][2J\n  |  ^ did you mean `y`?\n\
             try:   mesh help job.toml\n"
        );
        assert_eq!(report.json()["error"]["cause"], cause);
    }

    #[test]
    fn exit_codes_are_those_of_the_conventions() {
        let numbers = Code::ALL.map(Code::number);
        assert_eq!(numbers, [1, 1, 1, 2, 3, 3, 3, 4, 5, 124, 130]);
        for code in Code::ALL {
            assert_eq!(Code::named(code.name()), Some(code));
        }
    }
}
