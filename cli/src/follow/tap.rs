//! A stream of lines that is opened again when it breaks.
//!
//! ```text
//!   Opening ──► Open ──► Closed ──again()──► Opening
//!      └──────────────────▲
//! ```

use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client::{Api, Lines};
use crate::report::{Code, Report};

/// How long a node that does not answer any more is tried: long enough for it to be started again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How soon it is tried.
const AGAIN: Duration = Duration::from_millis(250);

/// What comes of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The next line.
    Line(String),
    /// The node has nothing more to say; or it stops.
    End,
    /// It broke, or could not be opened, and is worth another try.
    Broke,
}

/// A stream of lines. Nothing is lost if [`Tap::next`] is not waited for to the end.
pub(crate) struct Tap {
    api: Api,
    state: State,
    /// Until when it is left alone before it is opened again.
    rests_until: Option<Instant>,
    /// Since when it cannot be opened.
    gone: Option<Instant>,
}

enum State {
    Opening(Pin<Box<dyn Future<Output = Result<Lines, Report>>>>),
    Open(Box<Lines>),
    Closed,
}

impl Tap {
    /// Opens it as soon as somebody listens.
    pub(crate) fn new(api: &Api, path: &str) -> Self {
        let state = State::Opening(opening(api, path, Duration::ZERO));
        Self { api: api.clone(), state, rests_until: None, gone: None }
    }

    /// Opens it again, in a moment.
    pub(crate) fn again(&mut self, path: &str) {
        self.state = State::Opening(opening(&self.api, path, AGAIN));
        self.rests_until = Some(Instant::now() + AGAIN);
    }

    /// Whether somebody may speak at the other end.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether it is about to be opened again, and was not yet.
    pub(crate) fn is_resting(&self) -> bool {
        let rests = self.rests_until.is_some_and(|until| Instant::now() < until);
        rests && matches!(self.state, State::Opening(_))
    }

    /// Nothing more is wanted.
    pub(crate) fn close(&mut self) {
        self.state = State::Closed;
    }

    /// Whether nothing comes until it is opened again.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// What comes next. After an end or a break it is closed, and what is closed says nothing. An error is final.
    pub(crate) async fn next(&mut self) -> Result<Heard, Report> {
        loop {
            let line = match &mut self.state {
                State::Closed => return pending().await,
                State::Open(lines) => lines.next().await,
                State::Opening(opening) => {
                    let opened = opening.await;
                    match opened {
                        Ok(lines) => {
                            self.gone = None;
                            self.state = State::Open(Box::new(lines));
                            continue;
                        }
                        Err(report) => Err(report),
                    }
                }
            };
            match line {
                // A blank line says that somebody is there, and nothing more.
                Ok(Some(line)) if line.trim().is_empty() => {}
                Ok(Some(line)) => return Ok(Heard::Line(line)),
                Ok(None) => {
                    self.state = State::Closed;
                    return Ok(Heard::End);
                }
                Err(report) => {
                    self.state = State::Closed;
                    return self.worth_another_try(report);
                }
            }
        }
    }

    fn worth_another_try(&mut self, report: Report) -> Result<Heard, Report> {
        let since = *self.gone.get_or_insert_with(Instant::now);
        match report.code {
            Code::NoNode | Code::NoLeader | Code::Unavailable | Code::Timeout
                if since.elapsed() < PATIENCE =>
            {
                Ok(Heard::Broke)
            }
            _ => Err(report),
        }
    }
}

fn opening(
    api: &Api,
    path: &str,
    after: Duration,
) -> Pin<Box<dyn Future<Output = Result<Lines, Report>>>> {
    let (api, path) = (api.clone(), path.to_owned());
    Box::pin(async move {
        if !after.is_zero() {
            sleep(after).await;
        }
        api.lines(&path).await
    })
}
