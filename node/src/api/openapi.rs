//! `/openapi.json`: the table of routes, for programs.

use axum::Json;
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::guard::PROBES;
use super::route::{Field, Form, Route};
use super::routes as all;
use crate::work::stream::frame::PROTOCOL;

pub(super) fn routes() -> Vec<Route> {
    vec![Route::get("/openapi.json", "This description.", show).form(Form::Json)]
}

async fn show() -> Answer {
    Ok(Json(describe(&all())).into_response())
}

/// The description of these routes.
fn describe(routes: &[Route]) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "mesh",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "One node of a mesh. On its Unix socket, or on TCP with the node's token.",
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Item": envelope("item"), "Items": envelope("items"), "Error": error() },
        },
    })
}

fn operation(route: &Route) -> Value {
    let in_path = names_in(route.path).map(|name| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let in_query = route.query.iter().map(|field| {
        let Field { name, kind, means } = field;
        json!({ "name": name, "in": "query", "description": means, "schema": { "type": kind } })
    });
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    let content = match route.form {
        Form::Item => json!({ "application/json": { "schema": reference("Item") } }),
        Form::Items => json!({ "application/json": { "schema": reference("Items") } }),
        Form::Json => json!({ "application/json": {} }),
        Form::Lines => json!({ "application/x-ndjson": {} }),
        Form::Text => json!({ "text/plain": {} }),
        Form::Stream => json!({}),
    };
    let done = match route.form {
        Form::Stream => {
            let upgraded = format!("Frames of {PROTOCOL} in both directions.");
            json!({ "101": { "description": upgraded } })
        }
        _ => json!({ "200": { "description": "Done.", "content": content } }),
    };
    let problem = json!({
        "description": "Refused, failed or not now.",
        "content": { "application/json": { "schema": reference("Error") } },
    });
    let mut operation = json!({
        "summary": route.does,
        "parameters": parameters,
        "responses": done,
    });
    operation["responses"]["default"] = problem;
    if !route.body.is_empty() {
        let fields = route.body.iter().map(|field| {
            let means = json!({ "type": field.kind, "description": field.means });
            (field.name.to_owned(), means)
        });
        let schema = json!({
            "type": "object",
            "properties": fields.collect::<Map<_, _>>(),
            "additionalProperties": false,
        });
        operation["requestBody"] =
            json!({ "content": { "application/json": { "schema": schema } } });
    }
    if PROBES.contains(&route.path) {
        // With the token, or with nothing.
        operation["security"] = json!([{ "token": [] }, {}]);
    }
    operation
}

/// The variables of a path.
fn names_in(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn envelope(name: &str) -> Value {
    let content = match name {
        "items" => json!({ "type": "array", "items": { "type": "object" } }),
        _ => json!({ "type": "object" }),
    };
    json!({
        "type": "object",
        "required": ["schema", "index", "age_ms", "mesh_time", name],
        "properties": {
            "schema": { "const": super::answer::SCHEMA },
            "index": { "type": "integer", "description": "The last index applied here." },
            "age_ms": {
                "type": ["integer", "null"],
                "description": "How long ago this node last knew itself up to date; null if never.",
            },
            "mesh_time": {
                "type": ["string", "null"],
                "description": "When the last of what is applied here was agreed on; null if nothing is.",
            },
            name: content,
        },
    })
}

fn error() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "required": ["schema", "error"],
        "properties": {
            "schema": { "const": super::answer::SCHEMA },
            "error": {
                "type": "object",
                "required": ["code", "message", "cause", "try"],
                "properties": {
                    "code": { "enum": ["failed", "refused", "not_found", "no_leader", "unavailable", "timeout"] },
                    "message": text, "cause": text, "try": text,
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The routes that others rely on. One that goes breaks them.
    const PROMISED: &[&str] = &[
        "get /v1/jobs",
        "post /v1/jobs",
        "get /v1/jobs/{job}",
        "delete /v1/jobs/{job}",
        "get /v1/jobs/{job}/watch",
        "get /v1/jobs/{job}/logs",
        "get /v1/jobs/{job}/explain",
        "get /v1/jobs/{job}/course",
        "get /v1/models",
        "post /v1/jobs/{job}/stop",
        "post /v1/jobs/{job}/retry",
        "get /v1/status",
        "get /v1/nodes",
        "get /v1/nodes/{node}",
        "delete /v1/nodes/{node}",
        "post /v1/nodes/{node}/drain",
        "post /v1/nodes/{node}/labels",
        "get /v1/nodes/{node}/logs",
        "get /v1/tickets",
        "post /v1/tickets",
        "delete /v1/tickets/{ticket}",
        "get /v1/parties",
        "post /v1/parties/{party}/share",
        "post /v1/party/key",
        "get /v1/requests",
        "get /v1/requests/{request}",
        "post /v1/requests/{request}/grant",
        "post /v1/requests/{request}/deny",
        "post /v1/requests/{request}/withdraw",
        "get /v1/names/{party}",
        "get /v1/names/{party}/{name}",
        "put /v1/names/{party}/{name}",
        "delete /v1/names/{party}/{name}",
        "get /v1/data",
        "get /v1/data/show",
        "get /v1/data/log",
        "get /v1/data/diff",
        "get /v1/data/du",
        "post /v1/data/tag",
        "post /v1/data/share",
        "post /v1/data/unshare",
        "post /v1/data/pin",
        "post /v1/data/rm",
        "post /v1/data/push",
        "post /v1/data/pull",
        "post /v1/data/verify",
        "get /v1/jobs/{job}/exec",
        "get /v1/jobs/{job}/cp",
        "get /v1/jobs/{job}/port",
        "get /v1/images",
        "post /v1/images/push",
        "post /v1/images/rm",
        "post /v1/leave",
        "post /v1/stop",
        "get /v1/links",
        "get /v1/reach",
        "get /v1/events",
        "get /v1/config",
        "get /metrics",
        "get /healthz",
        "get /readyz",
        "get /openapi.json",
    ];

    #[test]
    fn every_route_is_described_and_every_description_is_a_route() {
        let description = describe(&all());
        let paths = description["paths"].as_object().unwrap();
        let described: BTreeSet<String> = paths
            .iter()
            .flat_map(|(path, verbs)| {
                let verbs = verbs.as_object().unwrap().keys();
                verbs.map(move |verb| format!("{verb} {path}"))
            })
            .collect();
        let routed: BTreeSet<String> =
            all().iter().map(|route| format!("{} {}", route.verb, route.path)).collect();
        let promised: BTreeSet<String> = PROMISED.iter().map(|one| (*one).to_owned()).collect();
        assert_eq!(described, routed);
        assert_eq!(routed, promised);
    }

    #[test]
    fn what_needs_no_token_is_a_route_that_reads() {
        let open = all().into_iter().filter(|route| PROBES.contains(&route.path));
        let open: Vec<&str> = open.map(|route| route.verb).collect();
        assert_eq!(open, ["get"; PROBES.len()]);
    }

    #[test]
    fn every_variable_of_a_path_is_described() {
        for route in all() {
            let described = operation(&route);
            for name in names_in(route.path) {
                let found = described["parameters"].as_array().unwrap().iter();
                assert!(found.into_iter().any(|one| one["name"] == name), "{}", route.path);
            }
            assert!(route.does.ends_with('.'), "{}", route.path);
        }
    }
}
