//! `/v1/stop` and `/v1/leave`: the end of the process, and of the membership.
//!
//! Leaving takes as long as it takes (departure.rs). Whoever asks is told how far it is, and may ask again.

use std::time::Duration;

use axum::extract::State;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::Api;
use super::answer::{Answer, Problem, body, item, unwritten};
use super::route::{Route, field};
use crate::departure::{self, Step};

/// How long whoever asks waits at most. The node goes on.
const PATIENCE: Duration = Duration::from_secs(8);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/stop", "Stops the process. The node stays a member.", stop),
        Route::post(
            "/v1/leave",
            "Takes this node out of the mesh for good, and stops it once the mesh can do without it: `left` says \
             whether that is so; else ask again.",
            leave,
        )
        .body([field(
            "wait_ms",
            "integer",
            "How long the answer may wait for that; eight seconds at most, and if left out.",
        )]),
    ]
}

async fn stop(State(api): State<Api>) -> Answer {
    tracing::info!("asked to stop");
    let answer = item(&api, json!({ "stopping": true, "pid": std::process::id() }));
    // This answer is still sent: the server lets what is under way come to its end.
    api.stop.cancel();
    Ok(answer)
}

/// What `leave` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsLeave {
    wait_ms: Option<u64>,
}

async fn leave(State(api): State<Api>, bytes: Bytes) -> Answer {
    let WantsLeave { wait_ms } = body(&bytes)?;
    let patience = wait_ms.map_or(PATIENCE, Duration::from_millis).min(PATIENCE);
    departure::wish(&api).map_err(|error| Problem::disk(&error))?;
    let mut steps = api.departure.step();
    let settled = steps.wait_for(|step| !step.is_leaving());
    tokio::select! {
        biased;
        // What it says is read below.
        _ = timeout(patience, settled) => {}
        () = api.stop.cancelled() => {}
    }
    let step = api.departure.step().borrow().clone();
    if let Step::Refused(error) = step {
        return Err(unwritten(&api, error));
    }
    let left = step == Step::Left;
    Ok(item(
        &api,
        json!({
            "id": api.whoami.node, "left": left, "seen_off": left,
            "step": step.name(), "waits_for": step.waits_for(),
        }),
    ))
}
