//! `/v1/requests`: what waits for the consent of a majority of the parties, and what came of the latest.

use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use mesh_consensus::id::PartyId;
use mesh_consensus::time::Time;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Api;
use super::answer::{
    Answer, Param, Problem, date, has_state, item, items, query, quoted, unwritten,
};
use super::route::{Form, Route, field};
use crate::clock;
use crate::engine::Roster;
use crate::handle::{Ask, See, WriteError};
use crate::scheduler::Quota;
use crate::state::command::{Act, RequestOpen, RequestSign, RequestWithdraw};
use crate::state::decided::Decided;
use crate::state::name::Name;
use crate::state::refusal::Refusal;
use crate::state::request::{JointAct, Request, RequestId};
use crate::state::share::Share;

/// How long the other parties have to answer a request.
const REQUEST_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/requests", "Requests that wait for answers.", list)
            .query([field("all", "boolean", "The latest that were decided or have expired, too.")])
            .form(Form::Items),
        Route::get(
            "/v1/requests/{request}",
            "One request: open, or one of the latest that were decided.",
            show,
        ),
        Route::post("/v1/requests/{request}/grant", "Says yes for this node's party.", grant),
        Route::post("/v1/requests/{request}/deny", "Says no for this node's party.", deny),
        Route::post(
            "/v1/requests/{request}/withdraw",
            "Takes back a request that this node's party has opened.",
            withdraw,
        ),
    ]
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsList {
    all: bool,
}

async fn list(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsList { all } = query(&uri)?;
    has_state(&api)?;
    let seen = api.look(|see| {
        let state = see.replica.machine();
        (state.requests().clone(), state.decided().clone(), see.replica.time())
    });
    let (requests, decided, now) = seen.await?;
    let roster = api.roster();
    // One that has expired stays in the state until the next is opened.
    let open = requests.iter().filter(|(_, request)| all || request.expires > now);
    let mut rows: Vec<Value> = open.map(|(id, request)| row(*id, request, &roster, now)).collect();
    if all {
        rows.extend(decided.iter().rev().map(|one| decided_row(one, &roster)));
    }
    Ok(items(&api, rows))
}

async fn show(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    let id = number(&wanted)?;
    has_state(&api)?;
    let seen = api.look(move |see| {
        let open = see.replica.machine().requests().get(&id).cloned();
        (open, decided(see, id), see.replica.time())
    });
    let seen = seen.await?;
    let roster = api.roster();
    match seen {
        (Some(request), _, now) => Ok(item(&api, row(id, &request, &roster, now))),
        (None, Some(one), _) => Ok(item(&api, decided_row(&one, &roster))),
        (None, None, _) => Err(absent(&wanted)),
    }
}

/// What came of a request, if it is one of the latest.
fn decided(see: &See<'_>, id: RequestId) -> Option<Decided> {
    see.replica.machine().decided().iter().find(|one| one.id == id).cloned()
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
    if let Err(error) = api.write(vec![ask]).await {
        if matches!(error, WriteError::Refused { refusal: Refusal::NoSuchRequest, .. }) {
            check_open(&api, request, &wanted).await?;
        }
        return Err(unwritten(&api, error));
    }
    let seen = api.look(move |see| {
        let open = see.replica.machine().requests().contains_key(&request);
        (open, decided(see, request))
    });
    let (open, decided) = seen.await?;
    let state = if open { "open" } else { "decided" };
    let decision = decided.map(|one| one.decision.name());
    Ok(item(
        &api,
        json!({
            "id": request.0,
            "answer": if yes { "yes" } else { "no" },
            "state": state,
            "decision": decision,
        }),
    ))
}

async fn withdraw(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    let request = number(&wanted)?;
    has_state(&api)?;
    let opener = api.look(move |see| {
        let open = see.replica.machine().requests().get(&request);
        open.map(|open| open.opener)
    });
    let opener = opener.await?;
    if opener.is_none() {
        check_open(&api, request, &wanted).await?;
    }
    let opener = opener.ok_or_else(|| absent(&wanted))?;
    let roster = api.roster();
    // The state refuses it as well; here there are names to say it with.
    if roster.party_of(api.whoami.node) != Some(opener) {
        return Err(Problem::refused(
            format!("request {request} is not this party's to withdraw"),
            format!("party {} has opened it", party(&opener, &roster)),
            format!("mesh deny {request} says no to it"),
        ));
    }
    let ask = Ask { act: Act::RequestWithdraw(RequestWithdraw { request }), signed: true };
    api.write(vec![ask]).await.map_err(|error| unwritten(&api, error))?;
    Ok(item(&api, json!({ "id": request.0, "state": "withdrawn" })))
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
        "it was never made, or it was decided and many others since",
        "mesh request ls --all shows what is open and what was decided",
    )
}

/// Says of a request that it is over, if it is: then there is nothing left to answer or to withdraw.
async fn check_open(api: &Api, id: RequestId, wanted: &str) -> Result<(), Problem> {
    let seen = api.look(move |see| {
        let is_open = see.replica.machine().requests().contains_key(&id);
        (is_open, decided(see, id))
    });
    match seen.await? {
        (true, _) => Ok(()),
        (false, Some(one)) => Err(Problem::refused(
            format!("request {id} is no longer open"),
            format!("it is {}", one.decision.name()),
            format!("mesh request show {id}"),
        )),
        (false, None) => Err(absent(wanted)),
    }
}

/// Asks the other parties for it, in the name of this node's own. The request that waits for them; `None` if it is done. One
/// that waits already is not opened twice: it would count against what the party may have open.
pub(super) async fn open(api: &Api, act: JointAct) -> Result<Option<RequestId>, Problem> {
    let own = api.roster().party_of(api.whoami.node);
    let now = api.pulse().time.max(clock::now());
    let wanted = act.clone();
    let waits = api.look(move |see| {
        let mut open = see.replica.machine().requests().iter();
        let same = |request: &Request| {
            Some(request.opener) == own && request.act == wanted && request.expires > now
        };
        open.find(|(_, request)| same(request)).map(|(id, _)| *id)
    });
    if let Some(id) = waits.await? {
        return Ok(Some(id));
    }
    let act = RequestOpen { act, expires: now.after(REQUEST_TTL) };
    let ask = Ask { act: Act::RequestOpen(act), signed: true };
    let written = api.write(vec![ask]).await.map_err(|error| unwritten(api, error))?;
    let id = RequestId::at(written.index, written.first);
    let waits = api.look(move |see| see.replica.machine().requests().contains_key(&id)).await?;
    Ok(waits.then_some(id))
}

/// What a party is to have, as people say it.
fn in_words(share: &Share) -> String {
    let Share { weight, quota: Quota { cpu_milli, gpus } } = share;
    let cpus = cpu_milli.map(|milli| format!("at most {} cores", milli as f64 / 1000.0));
    let gpus = gpus.map(|gpus| format!("at most {gpus} GPUs"));
    let parts = [Some(format!("weight {weight}")), cpus, gpus];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn party(id: &PartyId, roster: &Roster) -> String {
    roster.parties.get(id).map_or_else(|| id.short(), ToString::to_string)
}

/// One that is open, or has expired and is not cleared away yet.
fn row(id: RequestId, request: &Request, roster: &Roster, now: Time) -> Value {
    let node = match &request.act {
        JointAct::RemoveNode { node } => roster.members.get(node),
        JointAct::FoundParty { .. } | JointAct::Allow { .. } => None,
    };
    let subject = node.map(|place| (&place.name, place.party));
    let mut row = told(id, request, subject, roster);
    row["state"] = json!(if request.expires > now { "open" } else { "expired" });
    row["needed"] = json!(roster.present_parties().len() / 2 + 1);
    row
}

fn decided_row(one: &Decided, roster: &Roster) -> Value {
    let Decided { id, request, decision, subject, closed } = one;
    let subject = subject.as_ref().map(|(name, party)| (name, *party));
    let mut row = told(*id, request, subject, roster);
    row["state"] = json!(decision.name());
    row["decided_at"] = json!(date(closed.time));
    row["decided_index"] = json!(closed.index);
    row
}

/// What is told of every request. `subject` is the node that it is about and its party, as far as they are known.
fn told(
    id: RequestId,
    request: &Request,
    subject: Option<(&Name, PartyId)>,
    roster: &Roster,
) -> Value {
    let said = |wanted: bool| -> Vec<String> {
        let answers = request.answers.iter().filter(|(_, yes)| **yes == wanted);
        answers.map(|(id, _)| party(id, roster)).collect()
    };
    let (kind, about, text) = match &request.act {
        JointAct::FoundParty { name, signing, .. } => {
            ("found_party", signing.to_string(), format!("take in party {name}"))
        }
        JointAct::RemoveNode { node } => {
            let text = match subject {
                Some((name, of)) => format!("remove node {name} of party {}", party(&of, roster)),
                None => format!("remove node {}", node.short()),
            };
            ("remove_node", node.to_string(), text)
        }
        JointAct::Allow { party: of, share } => {
            let text = format!("let party {} have {}", party(of, roster), in_words(share));
            ("allow", of.to_string(), text)
        }
    };
    json!({
        "id": id.0,
        "kind": kind,
        "about": about,
        "text": text,
        "state": null,
        "by": party(&request.opener, roster),
        "by_id": request.opener,
        "granted": said(true),
        "denied": said(false),
        "needed": null,
        "opened_at": date(request.opened.time),
        "expires_at": date(request.expires),
        "decided_at": null,
        "decided_index": null,
    })
}
