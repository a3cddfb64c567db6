//! `/v1/parties`, their shares, and `/v1/party/key`: the owners of nodes and data, and this party's key.

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use mesh_consensus::id::PartyId;
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::Api;
use super::answer::{Answer, Param, Problem, body, date, has_state, item, items, unwritten};
use super::guard::OverSocket;
use super::route::{Form, Route, field};
use crate::dir::DirError;
use crate::handle::WriteError;
use crate::party::PartySecret;
use crate::state::party::Party;
use crate::state::request::JointAct;
use crate::state::share::{self, Share, WEIGHTS};

/// In the node's directory: the party's key is kept elsewhere, and this node does not ask for it again.
const OFFLINE: &str = "offline";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/parties", "The parties of the mesh.", list).form(Form::Items),
        Route::post(
            "/v1/parties/{party}/share",
            "Says what a party is to have of what all share, by a request to all parties.",
            allow,
        )
        .body([
            field("weight", "integer", "From 1 to 1000; what is left out stays as it is."),
            field("cpus", "number", "The most cores that its jobs may have at once; null for any."),
            field("gpus", "integer", "The most GPUs; null for any."),
        ]),
        Route::post(
            "/v1/party/key",
            "Hands out the secret of this node's party, or takes it back, over the socket alone.",
            key,
        )
        .body([
            field("remove", "boolean", "Whether this node is to forget it."),
            field("secret", "string", "The secret, for a node that is to hold it again."),
        ]),
    ]
}

async fn list(State(api): State<Api>) -> Answer {
    has_state(&api)?;
    let parties = api.look(|see| {
        let state = see.replica.machine();
        let told = |(id, one): (&PartyId, &Party)| {
            (*id, one.name.to_string(), one.founded.time, state.share(*id))
        };
        state.parties().iter().map(told).collect::<Vec<_>>()
    });
    let parties = parties.await?;
    let roster = api.roster();
    let own = roster.party_of(api.whoami.node);
    let row = |(id, name, founded, share): &(PartyId, String, _, Share)| -> Value {
        let nodes = roster.members.iter().filter(|(_, place)| place.party == *id && !place.leaving);
        let voters = roster.voters.iter().filter(|node| roster.party_of(**node) == Some(*id));
        json!({
            "id": id,
            "name": name,
            "nodes": nodes.count(),
            "voters": voters.count(),
            "own": own == Some(*id),
            "founded_at": date(*founded),
            "weight": share.weight,
            "quota_cpus": share.quota.cpu_milli.map(|milli| milli as f64 / 1000.0),
            "quota_gpus": share.quota.gpus,
        })
    };
    Ok(items(&api, parties.iter().map(row).collect()))
}

/// What a share takes. What is left out stays as it is; `null` lifts a limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsShare {
    weight: Option<u32>,
    cpus: Value,
    gpus: Value,
}

async fn allow(State(api): State<Api>, Param(wanted): Param<String>, bytes: Bytes) -> Answer {
    let given: serde_json::Map<String, Value> = body(&bytes)?;
    let WantsShare { weight, cpus, gpus } = body(&bytes)?;
    let party = super::data::find_party(&api, &wanted)?;
    let (level, before) = api
        .look(move |see| {
            let state = see.replica.machine();
            (state.level().number, state.share(party))
        })
        .await?;
    if level < share::SINCE {
        return Err(Problem::refused(
            "the mesh cannot keep shares of parties yet",
            "some of its nodes run an older version of mesh",
            "mesh nodes tells which; install the newest version there",
        ));
    }
    let mut share = before;
    share.weight = weight.unwrap_or(share.weight);
    if !WEIGHTS.contains(&share.weight) {
        let cause = format!("{} is not from 1 to {}", share.weight, WEIGHTS.end());
        return Err(Problem::bad(
            "the weight is not one",
            cause,
            "mesh party allow PARTY --weight 2",
        ));
    }
    if given.contains_key("cpus") {
        share.quota.cpu_milli = limit(&cpus, 1000.0)?;
    }
    if given.contains_key("gpus") {
        share.quota.gpus = limit(&gpus, 1.0)?;
    }
    let request = match share == before {
        true => None,
        false => super::requests::open(&api, JointAct::Allow { party, share }).await?,
    };
    let row = json!({
        "id": party,
        "weight": share.weight,
        "quota_cpus": share.quota.cpu_milli.map(|milli| milli as f64 / 1000.0),
        "quota_gpus": share.quota.gpus,
        "allowed": request.is_none(),
        "request": request.map(|id| id.0),
    });
    Ok(item(&api, row))
}

/// A limit in so small units: a number, or `null` for none.
fn limit(told: &Value, units: f64) -> Result<Option<u64>, Problem> {
    const MOST: f64 = 1e12;
    let number = match told {
        Value::Null => return Ok(None),
        told => told.as_f64().map(|number| number * units),
    };
    let number = number.filter(|number| (0.0..=MOST).contains(number) && number.fract() == 0.0);
    number.map(|number| Some(number as u64)).ok_or_else(|| {
        let cause = format!("{told} is not a number that can be given");
        Problem::bad("the limit is not one", cause, "mesh party allow PARTY --cpus 64 --gpus 8")
    })
}

/// What `key` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsKey {
    remove: bool,
    secret: Option<String>,
}

async fn key(
    State(api): State<Api>,
    Extension(door): Extension<OverSocket>,
    bytes: Bytes,
) -> Answer {
    let WantsKey { remove, secret } = body(&bytes)?;
    if door != OverSocket(true) {
        return Err(Problem::forbidden(
            StatusCode::FORBIDDEN,
            "the party's secret is not handed out over TCP",
            "whoever holds it can act for the party, and this connection is not sealed",
            "mesh party key on the machine itself",
        ));
    }
    if let Some(secret) = secret {
        return bring(&api, &secret).await;
    }
    let mut held = api.secret.write().await;
    let Some(secret) = held.as_ref() else {
        return Err(unwritten(&api, WriteError::NoPartyKey));
    };
    let text = Zeroizing::new(HEXLOWER.encode(secret.bytes()));
    let party = secret.id();
    if remove {
        // First the mark: a crash in between leaves the key, and the next try takes it.
        mark_offline(&api).map_err(|error| Problem::disk(&error))?;
        // Private data stays readable: only the key that signs is taken away.
        let sealing = secret.sealing_secret();
        api.dir.keep_sealing_secret(&sealing).map_err(|error| Problem::disk(&error))?;
        api.dir.forget_party_secret().map_err(|error| Problem::disk(&error))?;
        *api.sealing.write().await = Some(sealing);
        *held = None;
    }
    drop(held);
    let roster = api.roster();
    let others = roster.members.iter().filter(|(node, place)| {
        **node != api.whoami.node && place.party == party && !place.worker && !place.leaving
    });
    let others: Vec<&str> = others.map(|(_, place)| place.name.as_str()).collect();
    Ok(item(
        &api,
        json!({ "party_id": party, "secret": *text, "removed": remove, "held_by": others }),
    ))
}

/// Takes the party's secret back.
async fn bring(api: &Api, text: &str) -> Answer {
    let refused = |cause: &str| {
        Problem::refused("this key is not taken", cause, "the file that mesh party key --out wrote")
    };
    let bytes = HEXLOWER.decode(text.as_bytes()).map(Zeroizing::new).ok();
    let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes.as_slice()).ok());
    let secret = bytes.map(PartySecret::new).ok_or_else(|| refused("it is no party's key"))?;
    let membership = api.dir.membership().map_err(|error| Problem::disk(&error))?;
    let own = membership.ok_or_else(|| refused("this node is no member"))?;
    if own.party != secret.id() {
        return Err(refused("it is the key of another party than this node's"));
    }
    if own.worker {
        return Err(refused(
            "this node was admitted to work without it (mesh ticket new --worker)",
        ));
    }
    let mut held = api.secret.write().await;
    api.dir.keep_party_secret(&secret).map_err(|error| Problem::disk(&error))?;
    // Last the mark: a crash in between leaves the key, which is what was asked for.
    api.dir.forget_cached(OFFLINE).map_err(|error| Problem::disk(&error))?;
    *held = Some(secret);
    Ok(item(api, json!({ "party_id": own.party, "held": true })))
}

fn mark_offline(api: &Api) -> Result<(), DirError> {
    let path = api.dir.file(OFFLINE);
    let made = std::fs::File::create(&path).and_then(|file| file.sync_all());
    made.map_err(|source| DirError::Io { doing: "write", path, source })
}
