//! `/v1/config`: the settings, and where each came from.

use axum::extract::State;
use serde_json::{Value, json};

use super::Api;
use super::answer::{Answer, items};
use super::route::{Form, Route};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/config", "The settings, and where each came from.", list).form(Form::Items),
    ]
}

async fn list(State(api): State<Api>) -> Answer {
    let row = |(key, (value, origin)): (&String, &(toml::Value, crate::config::Origin))| -> Value {
        let value = serde_json::to_value(value).unwrap_or_default();
        json!({ "key": key, "value": value, "from": origin.text() })
    };
    Ok(items(&api, api.config.origins.iter().map(row).collect()))
}
