//! `/v1/jobs`: what was submitted, what became of it, and what it printed.

mod course;
mod logs;
mod shown;
mod streams;
mod submit;

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use mesh_consensus::id::{JobId, NodeId};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

pub(super) use course::metrics;

use super::Api;
use super::answer::{
    Answer, Param, Problem, framed, has_state, item, items, query, quoted, unwritten,
};
use super::events::stream_permit;
use super::find;
use super::route::{Form, Route, field};
use crate::handle::Ask;
use crate::state;
use crate::state::command::{JobForget, JobStop};
use crate::state::jobs::Job;
use crate::work::Key;
use crate::work::stream;

/// Of so many tasks in containers it is asked in which image they run.
const MAX_IMAGES: usize = 32;
/// Who has not said it by then is not waited for.
const AT_ONCE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Vec<Route> {
    let mut routes = vec![
        Route::get("/v1/jobs", "Jobs, the newest first.", list)
            .query([
                field("all", "boolean", "Those that are over, too."),
                field("waiting", "boolean", "Only those that wait for a place."),
            ])
            .form(Form::Items),
        Route::get("/v1/jobs/{job}", "One job: by its id, the beginning of it, or its name.", show),
        Route::get(
            "/v1/jobs/{job}/watch",
            "A job, again whenever it changes, until it is over.",
            watch,
        )
        .form(Form::Lines),
        Route::post("/v1/jobs/{job}/stop", "Asks for the end of a job.", stop),
        Route::delete("/v1/jobs/{job}", "Drops a job that is over, and what it printed.", forget),
    ];
    routes.extend(course::routes());
    routes.extend(submit::routes());
    routes.extend(logs::routes());
    routes.extend(streams::routes());
    routes
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsList {
    all: bool,
    waiting: bool,
}

async fn list(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsList { all, waiting } = query(&uri)?;
    has_state(&api)?;
    let roster = api.roster();
    let viewer = roster.party_of(api.whoami.node);
    let rows = api.look(move |see| {
        let state = see.replica.machine();
        let is_wanted = |job: &Job| match waiting {
            true => job.over.is_none() && job.tasks.iter().any(|task| task.is_waiting()),
            false => all || job.over.is_none(),
        };
        let mut jobs: Vec<(JobId, &Job)> =
            state.jobs().iter().filter(|(_, job)| is_wanted(job)).map(|(id, j)| (*id, j)).collect();
        jobs.sort_by_key(|(_, job)| std::cmp::Reverse(job.submitted.index));
        jobs.into_iter()
            .map(|(id, job)| shown::row(state, &roster, viewer, id, job))
            .collect::<Vec<Value>>()
    });
    Ok(items(&api, rows.await?))
}

async fn show(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let roster = api.roster();
    let viewer = roster.party_of(api.whoami.node);
    let found = api.look(move |see| {
        let state = see.replica.machine();
        let (id, job) = find_job(state, &wanted)?;
        let mut shown = shown::whole(state, &roster, viewer, id, job);
        let takes_part = shown::takes_part(state, viewer, job);
        let course = takes_part.then(|| course::whole(state, &roster, id, job)).flatten();
        shown["course"] = json!(course);
        let contained = if takes_part { shown::contained(id, job) } else { Vec::new() };
        Ok::<_, Problem>((shown, contained))
    });
    let (mut shown, contained) = found.await??;
    for (key, image_id) in image_ids(&api, contained).await {
        shown["tasks"][key.task as usize]["image_id"] = json!(image_id);
    }
    Ok(item(&api, shown))
}

/// In which image the last attempt at each of these tasks ran, as far as their nodes say so at once.
async fn image_ids(api: &Api, contained: Vec<(NodeId, Key)>) -> Vec<(Key, String)> {
    let asked = contained.into_iter().take(MAX_IMAGES).map(|(node, key)| async move {
        let past = timeout(AT_ONCE, stream::past(api, node, key)).await.ok()?;
        let about = past.into_iter().find(|about| about.fence == key.fence)?;
        Some((key, about.image_id?))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

async fn watch(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let id =
        api.look(move |see| find_job(see.replica.machine(), &wanted).map(|(id, _)| id)).await??;
    let permit = stream_permit(&api)?;
    let changed = api.shown.jobs.clone();
    let begun = (api, changed, permit, None::<Value>, false);
    let stream =
        futures::stream::unfold(begun, move |(api, mut changed, permit, last, over)| async move {
            if over {
                return None;
            }
            loop {
                changed.borrow_and_update();
                let roster = api.roster();
                let viewer = roster.party_of(api.whoami.node);
                let now = api.look(move |see| {
                    let state = see.replica.machine();
                    let job = state.job(id)?;
                    let shown = shown::whole(state, &roster, viewer, id, job);
                    Some((shown, job.over.is_some()))
                });
                // Who dropped it ends this, too.
                let (now, over) = now.await.ok()??;
                if last.as_ref() != Some(&now) {
                    let line = framed(&api.pulse(), "item", now.clone());
                    let line = Bytes::from(format!("{line}\n"));
                    let next = (api, changed, permit, Some(now), over);
                    return Some((Ok::<_, std::convert::Infallible>(line), next));
                }
                tokio::select! {
                    () = api.stop.cancelled() => return None,
                    _ = changed.changed() => {}
                }
            }
        });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response())
}

async fn stop(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let viewer = api.roster().party_of(api.whoami.node);
    let found = api.look(move |see| {
        let (id, job) = find_job(see.replica.machine(), &wanted)?;
        check_own(viewer, job, "stopped")?;
        Ok::<_, Problem>((id, job.over.is_some()))
    });
    let (job, over) = found.await??;
    if !over {
        let act = JobStop { job }.into();
        api.write(vec![Ask { act, signed: false }]).await.map_err(|e| unwritten(&api, e))?;
    }
    let roster = api.roster();
    let now = api.look(move |see| {
        let state = see.replica.machine();
        state.job(job).map(|found| shown::row(state, &roster, viewer, job, found))
    });
    let mut shown = now.await?.unwrap_or_else(|| json!({ "id": job }));
    shown["was_over"] = json!(over);
    Ok(item(&api, shown))
}

async fn forget(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let found = api.look(move |see| {
        find_job(see.replica.machine(), &wanted).map(|(id, job)| (id, job.over.is_some()))
    });
    let (job, over) = found.await??;
    if !over {
        return Err(Problem::refused(
            "the job is not over",
            "only what is over can be dropped",
            format!("mesh stop {}", job.short()),
        ));
    }
    let act = JobForget { job }.into();
    api.write(vec![Ask { act, signed: false }]).await.map_err(|e| unwritten(&api, e))?;
    Ok(item(&api, json!({ "id": job })))
}

/// Only a job's own party does this to it, whether it is over or not.
fn check_own(viewer: shown::Viewer, job: &Job, done: &str) -> Result<(), Problem> {
    if viewer == Some(job.party) {
        return Ok(());
    }
    Err(Problem::forbidden(
        axum::http::StatusCode::FORBIDDEN,
        format!("the job {} cannot be {done} here", job.spec.name),
        "it is another party's",
        "ask a node of that party",
    ))
}

/// The job that a person means: by its id, the beginning of it, or its name; of several with one name the latest that
/// is not over, or the latest.
pub(super) fn find_job<'a>(
    state: &'a state::State,
    wanted: &str,
) -> Result<(JobId, &'a Job), Problem> {
    let named = state.jobs().iter().filter(|(_, job)| job.spec.name.as_str() == wanted);
    let latest = named.max_by_key(|(_, job)| (job.over.is_none(), job.submitted.index));
    if let Some((id, job)) = latest {
        return Ok((*id, job));
    }
    let all = state.jobs().keys().map(|id| (*id, None));
    let id = find::one("job", "mesh jobs --all", wanted, all)?;
    let job = state.job(id).ok_or_else(|| {
        let message = format!("there is no job {}", quoted(wanted));
        Problem::not_found(message, "it was dropped meanwhile", "mesh jobs --all")
    })?;
    Ok((id, job))
}
