//! What is done to a member: removed, drained, labelled.

use std::collections::BTreeMap;

use axum::extract::State;
use bytes::Bytes;
use mesh_consensus::id::NodeId;
use serde::Deserialize;
use serde_json::json;

use super::Api;
use super::answer::{Answer, Param, Problem, body, has_state, item, quoted, unwritten};
use super::nodes::find_node;
use super::requests;
use super::route::{Route, field};
use crate::handle::Ask;
use crate::state::command::{Act, Drain, Label, Leave};
use crate::state::label::LabelValue;
use crate::state::name::Name;
use crate::state::request::JointAct;

/// Labels that one request changes.
const MAX_CHANGES: usize = 64;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::delete(
            "/v1/nodes/{node}",
            "Removes a member: one of the own party at once, another party's by a request.",
            remove,
        ),
        Route::post(
            "/v1/nodes/{node}/drain",
            "Gives a member no new work, or gives it some again.",
            drain,
        )
        .body([field(
            "on",
            "boolean",
            "Whether it is drained from now on; true if left out.",
        )]),
        Route::post("/v1/nodes/{node}/labels", "Sets and drops labels of a member.", label).body([
            field("set", "object", "Labels to set: each a text."),
            field("unset", "array", "Labels to drop."),
        ]),
    ]
}

/// The member that is meant.
async fn find(api: &Api, wanted: String) -> Result<NodeId, Problem> {
    has_state(api)?;
    api.look(move |see| find_node(see.replica.machine(), &wanted)).await?
}

async fn remove(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    let node = find(&api, wanted).await?;
    let roster = api.roster();
    let (own, its) = (roster.party_of(api.whoami.node), roster.party_of(node));
    if own.is_some() && own == its {
        // A worker has no key of its party to sign with, but may always go itself.
        let signed = node != api.whoami.node;
        let ask = Ask { act: Act::Leave(Leave { node }), signed };
        api.write(vec![ask]).await.map_err(|error| unwritten(&api, error))?;
        return Ok(item(&api, json!({ "id": node, "removed": true })));
    }
    let request = requests::open(&api, JointAct::RemoveNode { node }).await?.map(|id| id.0);
    Ok(item(&api, json!({ "id": node, "removed": request.is_none(), "request": request })))
}

/// What `drain` takes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsDrain {
    on: bool,
}

impl Default for WantsDrain {
    fn default() -> Self {
        Self { on: true }
    }
}

async fn drain(State(api): State<Api>, Param(wanted): Param<String>, bytes: Bytes) -> Answer {
    let WantsDrain { on } = body(&bytes)?;
    let node = find(&api, wanted).await?;
    let ask = Ask { act: Act::Drain(Drain { node, on }), signed: false };
    api.write(vec![ask]).await.map_err(|error| unwritten(&api, error))?;
    Ok(item(&api, json!({ "id": node, "drained": on })))
}

/// What `labels` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsLabels {
    set: BTreeMap<String, String>,
    unset: Vec<String>,
}

async fn label(State(api): State<Api>, Param(wanted): Param<String>, bytes: Bytes) -> Answer {
    let WantsLabels { set, unset } = body(&bytes)?;
    let changes = changes(&set, &unset)?;
    let node = find(&api, wanted).await?;
    let ask = |(key, value)| Ask { act: Act::Label(Label { node, key, value }), signed: false };
    let asks: Vec<Ask> = changes.into_iter().map(ask).collect();
    api.write(asks).await.map_err(|error| unwritten(&api, error))?;
    let labels = api.look(move |see| {
        let labels = see.replica.machine().labels(node);
        labels.map(|(key, value)| (key.to_string(), value.to_string())).collect::<BTreeMap<_, _>>()
    });
    let labels = labels.await?;
    Ok(item(&api, json!({ "id": node, "labels": labels })))
}

fn changes(
    set: &BTreeMap<String, String>,
    unset: &[String],
) -> Result<Vec<(Name, Option<LabelValue>)>, Problem> {
    let wrong = |cause: String| {
        Problem::bad("the labels cannot be set", cause, "KEY=VALUE, or KEY- to drop one")
    };
    let count = set.len() + unset.len();
    if !(1..=MAX_CHANGES).contains(&count) {
        return Err(wrong(format!("1 to {MAX_CHANGES} labels are changed at a time, not {count}")));
    }
    if let Some(both) = unset.iter().find(|key| set.contains_key(*key)) {
        return Err(wrong(format!("{} is to be set and dropped", quoted(both))));
    }
    let key = |text: &String| text.parse::<Name>().map_err(|error| wrong(error.to_string()));
    let mut changes = Vec::with_capacity(count);
    for (word, value) in set {
        let value: LabelValue = value.parse().map_err(|error| wrong(format!("{error}")))?;
        changes.push((key(word)?, Some(value)));
    }
    for word in unset {
        changes.push((key(word)?, None));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_words_and_values_and_each_changes_once() {
        let set = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        let drop = |key: &str| vec![key.to_owned()];
        assert_eq!(changes(&set(&[("site", "north")]), &drop("rack")).unwrap().len(), 2);
        assert!(changes(&set(&[]), &[]).is_err());
        assert!(changes(&set(&[("site", "north")]), &drop("site")).is_err());
        assert!(changes(&set(&[("SITE", "north")]), &[]).is_err());
        assert!(changes(&set(&[("site", "")]), &[]).is_err());
        assert!(changes(&set(&[]), &vec!["a".to_owned(); MAX_CHANGES + 1]).is_err());
    }
}
