//! `/v1/models`: the versions that trainings have made. Each is data like any other: `/v1/data/show` and `/v1/data/pull`
//! take its name.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::Uri;
use mesh_consensus::id::{JobId, VersionId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Api;
use super::answer::{Answer, items, query};
use super::data::{catalogue, latest, row};
use super::jobs::metrics;
use super::route::{Form, Route, field};
use crate::data::catalogue::Known;
use crate::state;
use crate::state::course::Verdict;
use crate::state::jobs::Job;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/models", "Models: the last version of each that a training made.", list)
            .query([field("all", "boolean", "Whether all versions are wanted.")])
            .form(Form::Items),
    ]
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsList {
    all: bool,
}

async fn list(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsList { all } = query(&uri)?;
    let known = catalogue(&api).await?;
    let (known, made) = api
        .look(move |see| {
            let made = made(see.replica.machine(), &known);
            (known, made)
        })
        .await?;
    let mut models: Vec<Known> =
        known.into_iter().filter(|one| made.contains_key(&one.id)).collect();
    if !all {
        models = latest(models);
    }
    let mut rows = Vec::with_capacity(models.len());
    for one in &models {
        let mut shown = row(&api, one).await;
        if let Some(Value::Object(more)) = made.get(&one.id) {
            for (key, value) in more {
                shown[key.as_str()] = value.clone();
            }
        }
        rows.push(shown);
    }
    Ok(items(&api, rows))
}

/// Which of these versions a training made, and what there is to say about that.
///
/// A version whose job was dropped is among them: what that job was nobody knows any more, and a model must not be lost
/// from sight because its job was.
fn made(state: &state::State, known: &[Known]) -> BTreeMap<VersionId, Value> {
    let named: BTreeMap<VersionId, (JobId, &Job)> = state
        .jobs()
        .iter()
        .filter_map(|(id, job)| match job.verdict()? {
            Verdict::Done { model } | Verdict::Spent { model } => Some((*model, (*id, job))),
            Verdict::Failed(_) => None,
        })
        .collect();
    let mut made = BTreeMap::new();
    for one in known {
        let told = match (named.get(&one.id), one.lineage.job()) {
            (Some((id, job)), _) => last_of(*id, job),
            (None, Some(id)) => match state.job(id) {
                Some(job) if job.spec.training.is_none() => continue,
                job => json!({ "job": id, "job_name": job.map(|job| job.spec.name.as_str()) }),
            },
            (None, None) => continue,
        };
        made.insert(one.id, told);
    }
    made
}

/// What is known of the model that a training ended with.
fn last_of(id: JobId, job: &Job) -> Value {
    let course = job.course.as_ref();
    let round = course.and_then(|course| course.model.as_ref()).map(|model| model.round);
    let last = course.and_then(|course| course.curve.last());
    json!({
        "job": id,
        "job_name": job.spec.name.as_str(),
        "round": round,
        "metrics": last.map(metrics),
    })
}
