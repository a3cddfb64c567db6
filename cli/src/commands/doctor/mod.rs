//! `mesh doctor`: checks this machine and the mesh, and says what to do.
//!
//! Everything here looks and changes nothing, but for a small file in the node's directory that measures
//! how fast it syncs. Works with and without a running node.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::answers::Status;
use crate::client::Answer;
use crate::context::{Context, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::value;
use crate::view::{Paint, Tint, clean};

mod copies;
mod host;
mod members;
pub(crate) mod ports;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh doctor                                        everything
  mesh doctor --free 50GiB                           and complain below 50 GiB of free disk
  mesh doctor --json | jq '.items[] | select(.state != \"ok\")'

Exit code 1 if something is wrong; what is merely worth a look does not count.";

/// What `doctor` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Complain when less of the disk is free
    #[arg(long, value_name = "SIZE", default_value = "5GiB", value_parser = value::size)]
    free: u64,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    Look,
    Wrong,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Look => "look",
            State::Wrong => "wrong",
        }
    }
}

/// One line of the diagnosis.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    check: &'static str,
    state: State,
    message: String,
    /// What to do: empty if all is well.
    hint: String,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, state: State::Ok, message: message.into(), hint: String::new() }
    }

    fn look(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, state: State::Look, message: message.into(), hint: hint.into() }
    }

    fn wrong(check: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, state: State::Wrong, message: message.into(), hint: hint.into() }
    }

    fn json(&self) -> Value {
        let Self { check, state, message, hint } = self;
        json!({ "check": check, "state": state.name(), "message": message, "try": hint })
    }

    fn text(&self, paint: Paint) -> String {
        let (sign, tint) = match self.state {
            State::Ok => ("✓", Tint::Good),
            State::Look => ("!", Tint::Odd),
            State::Wrong => ("✗", Tint::Bad),
        };
        let line =
            format!("{} {:<10} {}\n", paint.dye(sign, tint), self.check, clean(&self.message));
        if self.hint.is_empty() {
            return line;
        }
        format!(
            "{line}{:13}{}\n",
            "",
            paint.dye(&format!("try: {}", clean(&self.hint)), Tint::Faint)
        )
    }
}

pub(crate) async fn run(doctor: &Doctor, context: &Context) -> Outcome {
    let api = context.api()?;
    let (status, answer) = match api.get("/v1/status").await {
        Ok(answer) => (Ok(answer.item::<Status>()?), Some(answer)),
        Err(report) => (Err(report), None),
    };
    let mut findings = vec![running(&status, context)];
    let here = !context.is_remote();
    let known = status.as_ref().ok();
    if here {
        findings.extend(host::directory(&context.place));
        findings.extend(host::disk(&context.place, doctor.free));
        findings.extend(ports::check(known, &context.place));
        findings.push(host::buffers());
        findings.push(host::clock(known));
        findings.push(host::gpus());
        findings.push(host::docker().await);
    }
    findings.extend(known.map(work));
    // What one that was removed knows of the others is of yesterday.
    if known.is_some_and(|status| !status.removed) {
        findings.extend(members::check(&api, here).await?);
        findings.extend(copies::check(&api).await);
    }
    show(&findings, answer.as_ref(), context)
}

fn running(status: &Result<Status, Report>, context: &Context) -> Finding {
    match status {
        Ok(status) if !status.is_member() => Finding::look(
            "node",
            format!("{} runs and is still joining", status.name),
            "wait a moment; then mesh node logs",
        ),
        Ok(status) if status.removed => Finding::wrong(
            "node",
            format!("{} was removed from its mesh", status.name),
            "mesh down, and join again from a new directory",
        ),
        Ok(Status { name, later_epoch: Some(epoch), .. }) => Finding::wrong(
            "node",
            format!("the mesh was recovered without {name}, and is in epoch {epoch}"),
            "mesh down, then mesh up --rejoin",
        ),
        Ok(status) if status.leader.shown().is_empty() && !status.is_leader => Finding::wrong(
            "node",
            format!("{} runs as {} and knows no leader", status.name, status.role),
            "see that a majority of the voters is up: mesh nodes",
        ),
        Ok(status) => Finding::ok(
            "node",
            format!("{} runs as {}, process {}", status.name, status.role, status.pid),
        ),
        // A machine that is yet to join is no sick machine.
        Err(report)
            if report.code == Code::NoNode && !context.is_remote() && !context.place.is_made() =>
        {
            Finding::look("node", &report.message, &report.hint)
        }
        Err(report) if report.code == Code::NoNode && has_left(context) => Finding::look(
            "node",
            "the node in this directory has left its mesh",
            "delete the directory, or join from another",
        ),
        Err(report) => {
            Finding::wrong("node", format!("{}: {}", report.message, report.cause), &report.hint)
        }
    }
}

/// Whether tasks that run on the node are limited and kept apart.
fn work(status: &Status) -> Finding {
    if status.work_lacks.is_empty() {
        let said = "processes are limited, and kept from the host's files and each other's; the network is shared";
        return Finding::ok("work", said);
    }
    let hint = "run the node as root, or in a cgroup of its own, or use images where it matters";
    Finding::look("work", status.work_lacks.join("; "), hint)
}

/// Whether the directory on this machine says so.
pub(super) fn has_left(context: &Context) -> bool {
    !context.is_remote() && context.place.has_left()
}

/// As JSON, it is as fresh as the node's `answer`; where no node runs there is no `index` and no `age_ms`.
fn show(findings: &[Finding], answer: Option<&Answer>, context: &Context) -> Outcome {
    let bad = findings.iter().filter(|finding| finding.state == State::Wrong).count();
    let odd = findings.iter().filter(|finding| finding.state == State::Look).count();
    if context.json {
        let items: Value = findings.iter().map(Finding::json).collect();
        print_json(&match answer {
            Some(answer) => answer.around("items", items),
            None => json!({ "schema": 1, "items": items }),
        })?;
    } else {
        let paint = Paint::stdout();
        let mut text: String = findings.iter().map(|finding| finding.text(paint)).collect();
        text += &match (bad, odd) {
            (0, 0) => "\nAll is well.\n".to_owned(),
            (0, odd) => format!("\nNothing is wrong; {odd} worth a look.\n"),
            (bad, _) => format!("\n{bad} wrong, {odd} worth a look.\n"),
        };
        print(&text)?;
    }
    Ok(if bad > 0 { Code::Failed.exit() } else { ExitCode::SUCCESS })
}
