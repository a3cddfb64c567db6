//! What answers look like: the envelope around every item, and the three lines of every error.
//!
//! ```text
//! {"schema":1,"index":N,"age_ms":N,"mesh_time":T,"item":{…}}      or "items":[…]
//! {"schema":1,"error":{"code","message","cause","try"}}           with a status of 400 and above
//! ```
//!
//! `index` is what this node has applied; `age_ms` is how long ago it last knew itself to be up to date, and
//! `null` if it never did since it was started: for how long it was down, no steady clock can tell. `mesh_time` is when the
//! last of what it has applied was agreed on, by the leader's clock, and `null` before it has any state.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use mesh_consensus::replica::Rejected;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(super) use crate::clock::date;
use crate::handle::{Handle, Part, Pulse, ReadError, WriteError};
use crate::state::refusal::Refusal;

/// The version of the form of answers. Fields are added, never renamed.
pub(super) const SCHEMA: u32 = 1;
/// As much of what somebody sent is repeated in an error.
const MAX_QUOTED: usize = 80;

/// What a route comes to.
pub(super) type Answer = Result<Response, Problem>;

/// Why there is no answer: becomes the three lines of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The HTTP status.
    pub(super) status: StatusCode,
    /// What scripts look at.
    pub(super) code: &'static str,
    /// What went wrong.
    pub(super) message: String,
    /// Why.
    pub(super) cause: String,
    /// What can be done.
    pub(super) hint: String,
}

impl Problem {
    fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { status, code, message: message.into(), cause: cause.into(), hint: hint.into() }
    }

    /// The question itself is wrong.
    pub(super) fn bad(
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "failed", message, cause, hint)
    }

    /// There is no such thing.
    pub(super) fn not_found(
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message, cause, hint)
    }

    /// The mesh or the node says no.
    pub(super) fn refused(
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::CONFLICT, "refused", message, cause, hint)
    }

    /// Whoever asks may not ask, or not so.
    pub(super) fn forbidden(
        status: StatusCode,
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(status, "refused", message, cause, hint)
    }

    /// The node cannot answer now.
    pub(super) fn unavailable(
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message, cause, hint)
    }

    /// No node can ever do it.
    pub(super) fn unplaceable(
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::CONFLICT, "unplaceable", message, cause, hint)
    }

    /// This node is no member any more.
    pub(super) fn removed() -> Self {
        // Not the conflict that a refusal is elsewhere: what was asked may well be right.
        Self::new(
            StatusCode::GONE,
            "refused",
            "this node was removed from its mesh",
            "the members take nothing from it any more, and its key stays out",
            "mesh down, then join from a new directory: mesh join TICKET --dir DIR",
        )
    }

    fn no_leader(cause: impl Into<String>) -> Self {
        let message = "the mesh has no leader that this node knows of";
        let hint = "wait for a few seconds; then mesh nodes shows which voters are missing";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_leader", message, cause, hint)
    }

    /// It took too long.
    pub(super) fn timeout(
        message: impl Into<String>,
        cause: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message, cause, hint)
    }

    /// The node's own disk failed it.
    pub(super) fn disk(error: &crate::dir::DirError) -> Self {
        let status = StatusCode::INSUFFICIENT_STORAGE;
        let cause = chain(error);
        Self::new(
            status,
            "failed",
            "the node could not write to its directory",
            cause,
            error.hint(),
        )
    }

    /// The error as it is sent, without its status.
    pub(super) fn json(&self) -> Value {
        let Self { status: _, code, message, cause, hint } = self;
        let error = json!({ "code": code, "message": message, "cause": cause, "try": hint });
        json!({ "schema": SCHEMA, "error": error })
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(self.json())).into_response()
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NoAnswer(_) => Self::no_leader(error.to_string()),
            ReadError::Busy => busy(error.to_string()),
            ReadError::Removed => Self::removed(),
            ReadError::Stopping => stopping(),
        }
    }
}

/// What a failed write means to whoever asked for it. What may still take effect is never called refused.
pub(super) fn unwritten(handle: &Handle, error: WriteError) -> Problem {
    let again = "look whether it took effect, then try again";
    match error {
        WriteError::Refused { refusal, .. } => told_no(refusal),
        WriteError::Unknown(_) => Problem::refused(
            "the mesh refused",
            error.to_string(),
            "install the newest version of mesh",
        ),
        WriteError::Rejected(Rejected::TooOld { .. }) => {
            Problem::timeout("it is not known whether this took effect", error.to_string(), again)
        }
        WriteError::Removed { sent: false } => Problem::removed(),
        WriteError::Removed { sent: true } => Problem::timeout(
            "it is not known whether this took effect",
            "this node was removed from its mesh meanwhile",
            "look on another node; mesh join TICKET --dir DIR joins again, from a new directory",
        ),
        WriteError::Rejected(Rejected::NotMember(_))
            if !handle.departure.step().borrow().is_leaving() =>
        {
            Problem::removed()
        }
        WriteError::Rejected(_) => Problem::refused(
            "the mesh does not take anything from this node",
            error.to_string(),
            "mesh status; a node that has left joins again with a new directory",
        ),
        WriteError::NoAnswer(_) if handle.pulse().leader.is_none() => Problem::no_leader(
            "no leader has confirmed it; it may still take effect when there is one",
        ),
        WriteError::NoAnswer(_) => {
            let cause = format!("{error}; it may still take effect");
            Problem::timeout("no answer came in time", cause, again)
        }
        WriteError::Busy => busy(error.to_string()),
        WriteError::Disk(why) => Problem::refused(
            "this node cannot write to its disk",
            why,
            "make room in its directory (mesh doctor), or ask another node",
        ),
        WriteError::NoPartyKey => {
            let own = handle.roster().members.get(&handle.whoami.node).map(|place| place.worker);
            let hint = match own {
                // It is not given the key back.
                Some(true) => "ask a node of the party that has the key (no --worker node)",
                _ => {
                    "mesh party key --in FILE brings it back; or ask a node of the party that has it"
                }
            };
            Problem::refused("this needs the signature of the party", error.to_string(), hint)
        }
        WriteError::Stopping => stopping(),
    }
}

/// The state's no, and what to do about it.
fn told_no(refusal: Refusal) -> Problem {
    let hint = match refusal {
        Refusal::UnknownKind => "bring every node to the newest version; mesh nodes shows them",
        Refusal::WrongParty | Refusal::NotYours => "ask a node of the party that it belongs to",
        Refusal::TooManyTickets => "mesh ticket ls, then mesh ticket revoke ID",
        Refusal::PartyAbsent => "let a node of that party join first",
        Refusal::LastMember => "let another node that can vote join first",
        Refusal::NameChanged => "read the name again, then decide again",
        Refusal::SealedChanged | Refusal::BodyChanged | Refusal::TagChanged => {
            "look again, then decide again"
        }
        Refusal::NameTaken => "choose another name",
        Refusal::AlreadySigned => "nothing: mesh request show ID tells who has answered",
        Refusal::NoSuchRequest | Refusal::RequestExpired => {
            "mesh request ls --all shows what is open and what was decided"
        }
        Refusal::NoSuchTicket => "mesh ticket ls shows what is good",
        Refusal::NoSuchJob => "mesh jobs --all shows what there is",
        Refusal::JobLives => "mesh stop JOB first",
        Refusal::TooManyJobs => "mesh job rm JOB drops what is over",
        Refusal::NotMember | Refusal::NoSuchMember => "mesh nodes shows who belongs",
        _ => "mesh status",
    };
    let (message, cause) = ("the mesh refused", refusal.to_string());
    match refusal {
        Refusal::NoSuchTicket | Refusal::NoSuchRequest | Refusal::NoSuchJob => {
            Problem::not_found(message, cause, hint)
        }
        _ => Problem::refused(message, cause, hint),
    }
}

fn busy(cause: String) -> Problem {
    Problem::unavailable("the node has too much to do", cause, "try again in a moment")
}

fn stopping() -> Problem {
    Problem::unavailable("the node is stopping", "somebody asked it to", "mesh up starts it again")
}

/// One thing, in its envelope.
pub(super) fn item(handle: &Handle, item: Value) -> Response {
    envelope(handle, "item", item)
}

/// Several things, in their envelope.
pub(super) fn items(handle: &Handle, items: Vec<Value>) -> Response {
    envelope(handle, "items", Value::Array(items))
}

fn envelope(handle: &Handle, name: &str, content: Value) -> Response {
    Json(framed(&handle.pulse(), name, content)).into_response()
}

/// What was answered, and how fresh it is.
pub(super) fn framed(pulse: &Pulse, name: &str, content: Value) -> Value {
    let age_ms = age(pulse).map(millis);
    let mesh_time = (pulse.index > 0).then(|| date(pulse.time));
    json!({
        "schema": SCHEMA, "index": pulse.index, "age_ms": age_ms, "mesh_time": mesh_time,
        name: content,
    })
}

/// How long ago this node last knew itself up to date.
pub(super) fn age(pulse: &Pulse) -> Option<Duration> {
    pulse.fresh.map(|at| crate::clock::steady().saturating_duration_since(at))
}

/// Whether this node has a state at all: a newcomer gets it a moment after it was admitted.
pub(super) fn has_state(handle: &Handle) -> Result<(), Problem> {
    match handle.pulse().part {
        Part::Joining => Err(Problem::unavailable(
            "this node does not know the mesh yet",
            "it was admitted and waits for the state from another member",
            "try again in a moment; mesh status shows when it is there",
        )),
        Part::Voter | Part::Learner | Part::Watcher => Ok(()),
    }
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What somebody sent, short enough to be repeated and harmless on a terminal.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(MAX_QUOTED).collect();
    format!("{short:?}")
}

/// An error and what it came from, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

/// Reads a body; an empty one is the default.
pub(super) fn body<T: DeserializeOwned + Default>(bytes: &Bytes) -> Result<T, Problem> {
    if bytes.is_empty() {
        return Ok(T::default());
    }
    let wrong = |cause: &str| {
        let cause: String = cause.chars().take(4 * MAX_QUOTED).collect();
        let hint = "GET /openapi.json describes it";
        Problem::bad("the body is not what this route takes", cause, hint)
    };
    // Fields have names: a list of them in the right order would be read as well.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(wrong("it is no JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| wrong(&error.to_string()))
}

/// Reads the part after the question mark.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    Query::try_from_uri(uri).map(|Query(query)| query).map_err(|error: QueryRejection| {
        let cause: String = error.body_text().chars().take(4 * MAX_QUOTED).collect();
        let hint = "GET /openapi.json describes it";
        Problem::bad("the query is not what this route takes", cause, hint)
    })
}

/// The variable parts of a path, as text.
pub(super) struct Param<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Param<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value)).map_err(|error: PathRejection| {
            let cause: String = error.body_text().chars().take(4 * MAX_QUOTED).collect();
            Problem::bad("the path cannot be read", cause, "write names and ids in plain ASCII")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_short_and_cannot_move_a_cursor() {
        let text = quoted(&format!("\u{1b}[2J{}", "x".repeat(1000)));
        assert!(text.len() < 2 * MAX_QUOTED && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn every_refusal_says_what_to_try() {
        for refusal in Refusal::ALL {
            let problem = told_no(*refusal);
            assert!(problem.status.is_client_error(), "{problem:?}");
            assert!(!problem.cause.is_empty() && !problem.hint.is_empty(), "{problem:?}");
        }
    }

    #[test]
    fn an_empty_body_is_the_default_and_a_wrong_one_says_where() {
        type Fields = std::collections::BTreeMap<String, u8>;
        assert!(body::<Fields>(&Bytes::new()).unwrap().is_empty());
        let problem = body::<Fields>(&Bytes::from_static(b" {\"a\":\"x\"}")).unwrap_err();
        assert_eq!(problem.status, StatusCode::BAD_REQUEST);
        assert!(problem.cause.contains("line 1"), "{problem:?}");
        assert!(body::<Vec<u8>>(&Bytes::from_static(b"[1]")).is_err());
    }
}
