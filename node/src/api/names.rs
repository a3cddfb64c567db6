//! `/v1/names`: what a party's names stand for.
//!
//! Each name is a register that is read and set linearizably: a read first waits until this node has applied
//! all that was committed when it came, unless it is content with what happens to be here (`stale`).

use axum::extract::State;
use axum::http::Uri;
use bytes::Bytes;
use mesh_consensus::id::{Hash, PartyId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Api;
use super::answer::{
    Answer, Param, Problem, body, has_state, item, items, query, quoted, unwritten,
};
use super::find;
use super::route::{Form, Route, field};
use crate::handle::Ask;
use crate::state::State as Agreement;
use crate::state::command::{Act, NameDrop, NameSet};
use crate::state::name::Name;

/// Names that one answer lists.
const MAX_LISTED: usize = 10_000;

pub(super) fn routes() -> Vec<Route> {
    let stale = field("stale", "boolean", "Whether what this node happens to have is enough.");
    vec![
        Route::get("/v1/names/{party}", "The names of a party, by party name or id.", list)
            .query([
                stale,
                field("after", "string", "Begins after this name: an answer holds 10000 at most."),
            ])
            .form(Form::Items),
        Route::get("/v1/names/{party}/{name}", "What a name stands for.", read).query([stale]),
        Route::put(
            "/v1/names/{party}/{name}",
            "Sets a name, if it stands for what is expected.",
            set,
        )
        .body([
            field("expect", "string", "What it stands for now, in hex; left out if it is new."),
            field("to", "string", "What it will stand for, in hex."),
        ]),
        Route::delete(
            "/v1/names/{party}/{name}",
            "Drops a name, if it stands for what is expected.",
            drop_name,
        )
        .body([field("expect", "string", "What it stands for now, in hex.")]),
    ]
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsRead {
    stale: bool,
    after: Option<String>,
}

/// Waits until what is here is as new as the question.
async fn catch_up(api: &Api, stale: bool) -> Result<(), Problem> {
    if !stale {
        api.barrier().await?;
    }
    has_state(api)
}

fn find_party(state: &Agreement, wanted: &str) -> Result<PartyId, Problem> {
    let all = state.parties().iter().map(|(id, party)| (*id, Some(party.name.as_str())));
    find::one("party", "mesh party ls", wanted, all)
}

fn parse_name(text: &str) -> Result<Name, Problem> {
    let wrong = |error: crate::state::name::ParseNameError| {
        Problem::bad(
            "this cannot be a name",
            error.to_string(),
            "small letters, digits, '.', '_' and '-'",
        )
    };
    text.parse().map_err(wrong)
}

async fn list(State(api): State<Api>, Param(party): Param<String>, uri: Uri) -> Answer {
    let WantsRead { stale, after } = query(&uri)?;
    catch_up(&api, stale).await?;
    let names = api.look(move |see| {
        let state = see.replica.machine();
        let party = find_party(state, &party)?;
        let after = after.as_deref().unwrap_or_default();
        let names = state.names(party).filter(|(name, _)| name.as_str() > after);
        let row = |(name, to): (&Name, Hash)| json!({ "name": name.as_str(), "to": to });
        Ok::<Vec<Value>, Problem>(names.take(MAX_LISTED).map(row).collect())
    });
    Ok(items(&api, names.await??))
}

async fn read(State(api): State<Api>, Param(path): Param<(String, String)>, uri: Uri) -> Answer {
    let WantsRead { stale, .. } = query(&uri)?;
    let (party, name) = (path.0, parse_name(&path.1)?);
    catch_up(&api, stale).await?;
    let wanted = name.clone();
    let found = api.look(move |see| {
        let state = see.replica.machine();
        let party = find_party(state, &party)?;
        Ok::<_, Problem>((party, state.name(party, &wanted)))
    });
    match found.await?? {
        (party, Some(to)) => Ok(item(&api, stands(&api, party, &name, Some(to)))),
        (_, None) => Err(Problem::not_found(
            format!("the party has no name {}", quoted(name.as_str())),
            "it was never set, or was dropped",
            "GET /v1/names/PARTY lists them",
        )),
    }
}

/// What `PUT` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsSet {
    expect: Option<Hash>,
    to: Option<Hash>,
}

async fn set(State(api): State<Api>, Param(path): Param<(String, String)>, bytes: Bytes) -> Answer {
    let WantsSet { expect, to } = body(&bytes)?;
    let to = to.ok_or_else(|| missing("to"))?;
    let name = parse_name(&path.1)?;
    let party = party(&api, &path.0)?;
    let act = NameSet { party, name: name.clone(), expect, to };
    write(&api, Act::NameSet(act)).await?;
    Ok(item(&api, stands(&api, party, &name, Some(to))))
}

/// What `DELETE` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsDrop {
    expect: Option<Hash>,
}

async fn drop_name(
    State(api): State<Api>,
    Param(path): Param<(String, String)>,
    bytes: Bytes,
) -> Answer {
    let WantsDrop { expect } = body(&bytes)?;
    let expect = expect.ok_or_else(|| missing("expect"))?;
    let name = parse_name(&path.1)?;
    let party = party(&api, &path.0)?;
    write(&api, Act::NameDrop(NameDrop { party, name: name.clone(), expect })).await?;
    Ok(item(&api, stands(&api, party, &name, None)))
}

/// Whose name is to be written. A party never goes, so the engine need not be asked.
fn party(api: &Api, wanted: &str) -> Result<PartyId, Problem> {
    has_state(api)?;
    let roster = api.roster();
    let all = roster.parties.iter().map(|(id, name)| (*id, Some(name.as_str())));
    find::one("party", "mesh party ls", wanted, all)
}

async fn write(api: &Api, act: Act) -> Result<(), Problem> {
    let written = api.write(vec![Ask { act, signed: false }]).await;
    written.map(drop).map_err(|error| unwritten(api, error))
}

fn missing(field: &str) -> Problem {
    Problem::bad(
        format!("the body has no {field:?}"),
        "a name stands for a hash: 64 hexadecimal digits",
        "GET /openapi.json describes it",
    )
}

fn stands(api: &Api, party: PartyId, name: &Name, to: Option<Hash>) -> Value {
    let party_name = api.roster().parties.get(&party).map(ToString::to_string);
    json!({ "party": party_name, "party_id": party, "name": name.as_str(), "to": to })
}
