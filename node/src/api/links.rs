//! `/v1/links`: the connections of the data plane.

use axum::extract::State;
use mesh_transport::net::Link;
use serde_json::{Value, json};

use super::Api;
use super::answer::{Answer, items, millis};
use super::route::{Form, Route};

pub(super) fn routes() -> Vec<Route> {
    vec![Route::get("/v1/links", "This node's connections to others.", list).form(Form::Items)]
}

async fn list(State(api): State<Api>) -> Answer {
    let roster = api.roster();
    let row = |link: &Link| -> Value {
        let name = roster.members.get(&link.node).map(|place| place.name.as_str());
        json!({
            "node": { "id": link.node, "name": name.unwrap_or_default() },
            "address": link.address.to_string(),
            "dialled": link.dialled,
            "rtt_ms": link.rtt.as_secs_f64() * 1000.0,
            "sent_bytes": link.sent_bytes,
            "received_bytes": link.received_bytes,
            "lost_packets": link.lost_packets,
            "mtu_bytes": link.mtu,
            "path": link.path,
            "age_ms": millis(link.age),
            "connections": link.connections,
        })
    };
    Ok(items(&api, api.net.links().iter().map(row).collect()))
}
