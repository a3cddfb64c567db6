//! `/v1/requests`: what waits for the consent of a majority of the parties.

use axum::extract::State;
use mesh_consensus::id::PartyId;
use serde_json::{Value, json};

use super::Api;
use super::answer::{Answer, Param, Problem, date, has_state, item, items, quoted, unwritten};
use super::route::{Form, Route};
use crate::engine::Roster;
use crate::handle::Ask;
use crate::state::command::{Act, RequestSign};
use crate::state::request::{JointAct, Request, RequestId};
use mesh_consensus::time::Time;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/requests", "Requests that wait for answers.", list).form(Form::Items),
        Route::get("/v1/requests/{request}", "One request.", show),
        Route::post("/v1/requests/{request}/grant", "Says yes for this node's party.", grant),
        Route::post("/v1/requests/{request}/deny", "Says no for this node's party.", deny),
    ]
}

async fn list(State(api): State<Api>) -> Answer {
    has_state(&api)?;
    let requests = api.look(|see| (see.replica.machine().requests().clone(), see.replica.time()));
    let (requests, now) = requests.await?;
    let roster = api.roster();
    // One that has expired stays in the state until the next is opened.
    let open = requests.iter().filter(|(_, request)| request.expires > now);
    Ok(items(&api, open.map(|(id, request)| row(*id, request, &roster, now)).collect()))
}

async fn show(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    let id = number(&wanted)?;
    has_state(&api)?;
    let found = api
        .look(move |see| (see.replica.machine().requests().get(&id).cloned(), see.replica.time()));
    match found.await? {
        (Some(request), now) => Ok(item(&api, row(id, &request, &api.roster(), now))),
        (None, _) => Err(absent(&wanted)),
    }
}

async fn grant(api: State<Api>, wanted: Param<String>) -> Answer {
    answer(api, wanted, true).await
}

async fn deny(api: State<Api>, wanted: Param<String>) -> Answer {
    answer(api, wanted, false).await
}

async fn answer(State(api): State<Api>, Param(wanted): Param<String>, yes: bool) -> Answer {
    let request = number(&wanted)?;
    has_state(&api)?;
    let ask = Ask { act: Act::RequestSign(RequestSign { request, yes }), signed: true };
    api.write(vec![ask]).await.map_err(|error| unwritten(&api, error))?;
    let open = api.look(move |see| see.replica.machine().requests().contains_key(&request)).await?;
    let state = if open { "open" } else { "decided" };
    Ok(item(
        &api,
        json!({ "id": request.0, "answer": if yes { "yes" } else { "no" }, "state": state }),
    ))
}

fn number(wanted: &str) -> Result<RequestId, Problem> {
    wanted.parse().map(RequestId).map_err(|_| {
        Problem::bad(
            format!("{} is no request", quoted(wanted)),
            "a request's id is a number",
            "mesh request ls shows them all",
        )
    })
}

fn absent(wanted: &str) -> Problem {
    Problem::not_found(
        format!("there is no request {}", quoted(wanted)),
        "it was never made, was decided, or has been cleared away",
        "mesh request ls shows what is open",
    )
}

fn row(id: RequestId, request: &Request, roster: &Roster, now: Time) -> Value {
    let party =
        |id: &PartyId| roster.parties.get(id).map_or_else(|| id.short(), ToString::to_string);
    let said = |wanted: bool| -> Vec<String> {
        let answers = request.answers.iter().filter(|(_, yes)| **yes == wanted);
        answers.map(|(id, _)| party(id)).collect()
    };
    let (kind, about, text) = match &request.act {
        JointAct::FoundParty { name, signing, .. } => {
            ("found_party", signing.to_string(), format!("take in party {name}"))
        }
        JointAct::RemoveNode { node } => {
            let place = roster.members.get(node);
            let name = place.map_or_else(|| node.short(), |place| place.name.to_string());
            let of = place.map(|place| format!(" of party {}", party(&place.party)));
            (
                "remove_node",
                node.to_string(),
                format!("remove node {name}{}", of.unwrap_or_default()),
            )
        }
    };
    json!({
        "id": id.0,
        "kind": kind,
        "about": about,
        "text": text,
        "state": if request.expires > now { "open" } else { "expired" },
        "by": party(&request.opener),
        "by_id": request.opener,
        "granted": said(true),
        "denied": said(false),
        "needed": roster.present_parties().len() / 2 + 1,
        "opened_at": date(request.opened.time),
        "expires_at": date(request.expires),
    })
}
