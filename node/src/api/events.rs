//! `/v1/events`: what happens from now on, one JSON object a line.
//!
//! A blank line every so often tells a reader that the node is still there, and the node that the reader is. A
//! reader that is too slow is told how much it missed, and goes on with the next.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use mesh_consensus::time::Time;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast};

use super::answer::{Answer, Problem, SCHEMA, date};
use super::route::{Form, Route};
use super::{Api, MAX_STREAMS};
use crate::handle::Happened;

/// A reader hears something at least this often.
const HEARTBEAT: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Vec<Route> {
    vec![Route::get("/v1/events", "What happens from now on.", events).form(Form::Lines)]
}

/// Room for one more stream.
pub(super) fn stream_permit(api: &Api) -> Result<OwnedSemaphorePermit, Problem> {
    api.streams.clone().try_acquire_owned().map_err(|_| {
        Problem::unavailable(
            "too many streams are open",
            format!("a node serves {MAX_STREAMS} at a time"),
            "close one",
        )
    })
}

async fn events(State(api): State<Api>) -> Answer {
    let permit = stream_permit(&api)?;
    let heard = api.happenings();
    let stream = futures::stream::unfold((heard, api, permit), |(mut heard, api, permit)| async {
        let line = tokio::select! {
            () = api.stop.cancelled() => return None,
            line = next(&mut heard, &api) => line?,
        };
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (heard, api, permit)))
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response())
}

/// The next line; `None` when there will be no more.
async fn next(heard: &mut broadcast::Receiver<Arc<Happened>>, api: &Api) -> Option<String> {
    match tokio::time::timeout(HEARTBEAT, heard.recv()).await {
        Ok(Ok(happened)) => Some(line(&happened)),
        Ok(Err(RecvError::Lagged(missed))) => {
            let pulse = api.pulse();
            let text = format!("this reader is too slow and missed {missed}");
            let lagged = json!({
                "schema": SCHEMA, "index": pulse.index, "time": date(pulse.time), "kind": "lagged",
                "about": null, "text": text, "missed": missed,
            });
            Some(format!("{lagged}\n"))
        }
        Ok(Err(RecvError::Closed)) => None,
        Err(_) => Some("\n".into()),
    }
}

fn line(happened: &Happened) -> String {
    let Happened { index, time_ms, kind, about, text } = happened;
    let time = date(Time(*time_ms));
    let line = json!({
        "schema": SCHEMA, "index": index, "time": time, "kind": kind, "about": about, "text": text,
    });
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let text = line(&Happened {
            index: 7,
            time_ms: 0,
            kind: "member_joined",
            about: Some("ab".into()),
            text: "two\nlines".into(),
        });
        assert_eq!(text.matches('\n').count(), 1);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["schema"], &read["index"]), (&json!(1), &json!(7)));
        assert_eq!(read["time"], "1970-01-01T00:00:00Z");
    }
}
