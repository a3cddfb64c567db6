//! Follows a long command on a node to its end: a line for each bit of progress, then how it went.
//!
//! Owns the bar on standard error, which is there only if somebody looks. Dropping the future closes the
//! connection, and with it the node stops.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::client::{Answer, Api, broken, refusal};
use crate::context::Context;
use crate::report::{Code, Report};
use crate::view::{clean, count, is_utf8};

/// A node says several times a second how far it is. One that is silent for so long does not get anywhere.
const SILENCE: Duration = Duration::from_secs(120);

/// A rate over less than this is an accident.
const RATED_AFTER: Duration = Duration::from_millis(200);

/// How far the node is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Progress {
    /// `reading`, `copies`, `manifest`, `fetching`, `writing`, `checking`.
    pub(in crate::commands) phase: String,
    pub(in crate::commands) bytes: u64,
    pub(in crate::commands) total_bytes: Option<u64>,
    pub(in crate::commands) files: Option<u64>,
    pub(in crate::commands) total_files: Option<u64>,
    pub(in crate::commands) peers: Option<u64>,
    pub(in crate::commands) copies: Option<u64>,
    pub(in crate::commands) copies_wanted: Option<u64>,
}

impl Progress {
    /// What the node does now.
    pub(in crate::commands) fn doing(&self) -> Cow<'static, str> {
        match self.phase.as_str() {
            "reading" => "reading".into(),
            "copies" => "copying".into(),
            "manifest" => "looking it up".into(),
            "fetching" => "fetching".into(),
            "writing" => "writing".into(),
            "checking" => "checking".into(),
            // Of a later version.
            other => clean(other).chars().take(16).collect::<String>().into(),
        }
    }

    /// What there is to say beside bytes, rate and time.
    pub(in crate::commands) fn beside(&self) -> String {
        let mut parts = Vec::new();
        match (self.files, self.total_files) {
            (Some(files), Some(all)) => parts.push(format!("{files}/{all} files")),
            (Some(files), None) => parts.push(format!("{files} files")),
            _ => {}
        }
        let wanted = self.copies_wanted.filter(|wanted| *wanted > 0 && self.phase == "copies");
        if let Some(wanted) = wanted {
            parts.push(format!("{}/{wanted} copies", self.copies.unwrap_or(0)));
        }
        if let Some(peers @ 1..) = self.peers {
            parts.push(count(usize::try_from(peers).unwrap_or(usize::MAX), "peer"));
        }
        parts.join(", ")
    }
}

/// A line, as far as it is understood.
#[derive(Debug)]
pub(in crate::commands) enum Line {
    Progress(Progress),
    Done(Answer),
    /// Of a later version.
    Other,
}

/// Reads a line. The node's own error is the error.
pub(in crate::commands) fn read(line: &str) -> Result<Line, Report> {
    let Ok(mut line) = serde_json::from_str::<Value>(line) else {
        return Err(broken("a line of it is not JSON"));
    };
    match line["kind"].as_str() {
        Some("progress") => {
            // A bar is worth no failure.
            Ok(Progress::deserialize(&line).map_or(Line::Other, Line::Progress))
        }
        Some("error") => Err(refusal(&line["error"], Code::Failed)),
        Some("done") => {
            // Without the word that made it the last line, it is an answer like any other.
            if let Some(fields) = line.as_object_mut() {
                fields.remove("kind");
            }
            Ok(Line::Done(Answer::new(line)))
        }
        _ => Ok(Line::Other),
    }
}

/// Does something on a node that takes its time, and answers with what came of it.
pub(in crate::commands) async fn follow(
    api: &Api,
    path: &str,
    body: Value,
    context: &Context,
) -> Result<Answer, Report> {
    let mut bar = Bar::new(is_wanted(context.json, std::io::stderr().is_terminal()));
    let mut lines = api.post_lines(path, body).await?;
    loop {
        let next = timeout(SILENCE, lines.next()).await.unwrap_or_else(|_| {
            let cause = format!("the node has said nothing for {} s", SILENCE.as_secs());
            let hint = "mesh doctor; then the same command again: it resumes";
            Err(Report::new(Code::Timeout, "the node does not get on with it", cause, hint))
        });
        let Some(line) = next? else {
            return Err(Report {
                hint: "the same command again: it resumes; then mesh doctor".into(),
                ..broken("it ended before the node said how it went")
            });
        };
        match read(&line)? {
            Line::Progress(progress) => bar.show(&progress),
            Line::Done(answer) => return Ok(answer),
            Line::Other => {}
        }
    }
}

/// Whether somebody looks at the bar.
pub(in crate::commands) fn is_wanted(json: bool, terminal: bool) -> bool {
    terminal && !json
}

/// A bar on standard error. It is wiped away when dropped.
pub(in crate::commands) struct Bar {
    bar: ProgressBar,
    /// The phase that is shown, and whether its end is known.
    at: Option<(String, bool)>,
}

impl Bar {
    pub(in crate::commands) fn new(wanted: bool) -> Self {
        let target =
            if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target).with_style(style(false));
        if wanted {
            bar.set_prefix("asking");
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self { bar, at: None }
    }

    pub(in crate::commands) fn show(&mut self, progress: &Progress) {
        let at = (progress.phase.clone(), progress.total_bytes.is_some());
        let turned = self.at.as_ref() != Some(&at);
        if turned {
            // Another phase has another rate.
            self.bar.reset();
        }
        if let Some(total) = progress.total_bytes {
            self.bar.set_length(total);
        }
        self.bar.set_position(progress.bytes);
        self.bar.set_message(progress.beside());
        if turned {
            self.bar.set_style(style(at.1));
            self.bar.set_prefix(progress.doing());
            self.at = Some(at);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `7.23 MiB/s`; nothing while it is too early to tell.
pub(in crate::commands) fn rate(elapsed: Duration, per_sec: f64) -> String {
    if elapsed < RATED_AFTER {
        return String::new();
    }
    format!("{}/s", BinaryBytes(per_sec as u64))
}

fn style(has_end: bool) -> ProgressStyle {
    let template = if has_end {
        "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes}  {rate}  {eta} left  {msg}"
    } else {
        "{spinner} {prefix} {binary_bytes}  {rate}  {msg}"
    };
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("rate", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            // Without a place to write there is nobody who looks.
            let _ = to.write_str(&rate(state.elapsed(), state.per_sec()));
        });
    let utf8 = is_utf8(|name| std::env::var(name).ok());
    if utf8 {
        style.progress_chars("█▉▊▋▌▍▎▏ ")
    } else {
        style.progress_chars("#> ").tick_chars("|/-\\ ")
    }
}
