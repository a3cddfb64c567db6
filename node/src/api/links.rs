//! `/v1/links`: the connections of the data plane. `/v1/reach`: who answers over it now.
//!
//! A connection outlives whoever is at its other end by a while, and its round trip is that of the last packets. Whoever
//! wants to know whether somebody is there has to ask.

use std::time::Duration;

use axum::extract::State;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::encode;
use mesh_transport::net::{CallError, Link};
use serde_json::{Value, json};

use super::Api;
use super::answer::{Answer, chain, items, millis};
use super::route::{Form, Route};
use crate::clock;
use crate::engine::Roster;
use crate::removal::is_turned_away;
use crate::wire::Request;

/// Whoever says nothing for this long is not there.
const REACH: Duration = Duration::from_secs(2);
/// So many members are asked at once, those with a seat first.
const MAX_ASKED: usize = 256;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/links", "This node's connections to others.", list).form(Form::Items),
        Route::get(
            "/v1/reach",
            "Asks the other members whether they are there, all at once, and says who has answered within two seconds.",
            reach,
        )
        .form(Form::Items),
    ]
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

async fn reach(State(api): State<Api>) -> Answer {
    // However many want to know, the others are asked once at a time.
    let _turn = api.reaching.lock().await;
    let roster = api.roster();
    let me = api.whoami.node;
    let mut others: Vec<NodeId> =
        roster.members.keys().copied().filter(|node| *node != me).collect();
    others.sort_by_key(|node| !roster.seated.contains(node));
    others.truncate(MAX_ASKED);
    let asked = others.iter().map(|node| ask(&api, &roster, *node));
    let rows = futures::future::join_all(asked).await;
    Ok(items(&api, rows))
}

async fn ask(api: &Api, roster: &Roster, node: NodeId) -> Value {
    let name = roster.members.get(&node).map(|place| place.name.as_str());
    // One that does not understand it says no, and is there.
    let ping = encode(&Request::Ping).unwrap_or_default();
    let begun = clock::steady();
    let answered = api.net.call(node, ping, REACH).await;
    let took_ms = begun.elapsed().as_secs_f64() * 1000.0;
    let why = answered.err().filter(|error| !is_an_answer(error)).map(|error| chain(&error));
    json!({
        "node": { "id": node, "name": name.unwrap_or_default() },
        "answers": why.is_none(),
        "took_ms": took_ms,
        "why": why,
    })
}

/// Whether it says something, if not what was asked for.
fn is_an_answer(error: &CallError) -> bool {
    matches!(error, CallError::Refused(_)) || is_turned_away(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_no_is_an_answer_and_silence_is_none() {
        let node = NodeId([1; 32]);
        let broken = |why: &str| CallError::Broken { node, why: why.into() };
        assert!(is_an_answer(&CallError::Refused(node)));
        assert!(is_an_answer(&broken("you are not a member here")));
        assert!(!is_an_answer(&CallError::TimedOut { node, patience: REACH }));
        assert!(!is_an_answer(&CallError::NoAddress(node)));
        assert!(!is_an_answer(&broken("timed out")));
    }
}
