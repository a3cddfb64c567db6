//! `/v1/nodes/{node}/logs`: the end of a member's log, for its own party.

use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::CallError;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::OwnedSemaphorePermit;

use super::Api;
use super::answer::{Answer, Param, Problem, query};
use super::events::stream_permit;
use super::nodes::find_node;
use super::route::{Form, Route, field};
use crate::wire::{Reply, Request};

/// Lines that are shown if nobody says how many.
const LINES: u32 = 100;
/// The most lines.
const MAX_LINES: u32 = 100_000;
/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// The most of a followed log that is sent at a time.
const MAX_PIECE: u64 = 64 << 10;
/// How long another node has to answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn routes() -> Vec<Route> {
    let logs = Route::get("/v1/nodes/{node}/logs", "The end of a member's log.", logs);
    let query = [
        field("lines", "integer", "How many lines from the end: 100 if left out."),
        field("follow", "boolean", "Whether to go on, for this node's own log."),
    ];
    vec![logs.query(query).form(Form::Text)]
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Wants {
    lines: u32,
    follow: bool,
}

impl Default for Wants {
    fn default() -> Self {
        Self { lines: LINES, follow: false }
    }
}

async fn logs(State(api): State<Api>, Param(wanted): Param<String>, uri: Uri) -> Answer {
    let Wants { lines, follow } = query(&uri)?;
    let lines = lines.min(MAX_LINES);
    let node = match wanted == api.whoami.node.to_string() {
        // It knows itself, also while it has no state.
        true => api.whoami.node,
        false => api.look(move |see| find_node(see.replica.machine(), &wanted)).await??,
    };
    if node != api.whoami.node {
        if follow {
            return Err(Problem::bad(
                "another node's log cannot be followed from here",
                "only its end is fetched",
                "mesh node logs -f on that node",
            ));
        }
        return Ok(text(Body::from(fetch(&api, node, lines).await?)));
    }
    let path = api.dir.log_file();
    // The length first: what is written in between is then shown twice rather than not at all.
    let length = tokio::fs::metadata(&path).await.map(|about| about.len()).unwrap_or(0);
    let end = crate::logs::tail(&path, lines).await;
    if !follow {
        return Ok(text(Body::from(end)));
    }
    let permit = stream_permit(&api)?;
    Ok(text(tail(api, path, end, length, permit)))
}

fn text(body: Body) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// Asks the node itself. It answers its own party.
async fn fetch(api: &Api, node: NodeId, lines: u32) -> Result<String, Problem> {
    let message = "the node's log could not be fetched";
    let there = "mesh node logs on that node";
    let broken = |cause: String| Problem::unavailable(message, cause, there);
    let request = encode(&Request::Log { lines }).map_err(|error| broken(error.to_string()))?;
    let refused = || {
        let cause = "a node shows its log to its own party";
        Problem::forbidden(axum::http::StatusCode::FORBIDDEN, message, cause, there)
    };
    match api.net.call(node, request, PATIENCE).await {
        Ok(bytes) => match decode(&bytes) {
            Ok(Reply::Log(text)) => Ok(text),
            Ok(Reply::Refused) => Err(refused()),
            _ => Err(broken("it answered another question".into())),
        },
        Err(CallError::Refused(_)) => Err(refused()),
        Err(error) => Err(broken(error.to_string())),
    }
}

/// What has come to a log, and then what comes.
fn tail(api: Api, path: PathBuf, end: String, length: u64, permit: OwnedSemaphorePermit) -> Body {
    let first = Bytes::from(end);
    let stream = futures::stream::unfold(
        (Some(first), length, api, path, permit),
        |(first, at, api, path, permit)| async move {
            if let Some(first) = first {
                return Some((Ok::<_, std::io::Error>(first), (None, at, api, path, permit)));
            }
            loop {
                tokio::select! {
                    () = api.stop.cancelled() => return None,
                    () = tokio::time::sleep(LOOK) => {}
                }
                let (piece, next) = read_from(&path, at).await;
                if !piece.is_empty() {
                    return Some((Ok(piece), (None, next, api, path, permit)));
                }
            }
        },
    );
    Body::from_stream(stream)
}

/// What the file holds after `at`, and where that ends. A file that has become shorter begins anew.
async fn read_from(path: &Path, at: u64) -> (Bytes, u64) {
    let read = async {
        let mut file = tokio::fs::File::open(path).await?;
        let length = file.metadata().await?.len();
        let from = if length < at { 0 } else { at };
        file.seek(SeekFrom::Start(from)).await?;
        let mut piece = Vec::new();
        file.take(MAX_PIECE).read_to_end(&mut piece).await?;
        let next = from + piece.len() as u64;
        Ok::<_, std::io::Error>((Bytes::from(piece), next))
    };
    // A file that is not there yet may come.
    read.await.unwrap_or((Bytes::new(), at))
}
