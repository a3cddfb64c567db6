//! `/v1/data`: datasets, as this node knows them.
//!
//! | read | for |
//! |---|---|
//! | this file | what there is: list, show, log, diff, du |
//! | `change` | readers, pins, removal |
//! | `tags` | tags |
//! | `sealed` | changing what a party keeps to itself |
//! | `moving` | push, pull, verify: what takes long, one line of JSON after another |

mod change;
mod moving;
mod sealed;
mod tags;

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::Uri;
use mesh_consensus::id::{Hash, NodeId, PartyId};
use mesh_storage::diff;
use mesh_storage::store::Held;
use serde::Deserialize;
use serde_json::{Value, json};

pub(super) use change::{check_own, drop_versions};
pub(super) use moving::{check_apart, check_local, check_path, lines, own_apart, unpushed};

use super::Api;
use super::answer::{Answer, Problem, chain, date, has_state, item, items, query, quoted};
use super::route::{Form, Route, field};
use crate::data::catalogue::{EACH, Known, ResolveError, Visibility};
use crate::data::keep::PINNED;
use crate::engine::Roster;
use crate::state::data::{DataRef, Pick};

/// Paths that one answer of `diff` lists.
const MAX_CHANGES: usize = 100_000;
/// A shorter beginning of a version's id finds nothing, as with the ids of nodes.
const LEAST_OF_ID: usize = 4;
/// Files that `show` names, of those that have changed since they were pushed in place.
const MAX_CHANGED_FILES: usize = 20;
/// What of a version is null to a party that may see its name and size, and nothing else.
const UNLISTED: [&str; 12] = [
    "copies",
    "copies_wanted",
    "shortfall",
    "created_at",
    "author",
    "tags",
    "holders",
    "chunks",
    "objects",
    "lineage",
    "acknowledged",
    "changed_files",
];

pub(super) fn routes() -> Vec<Route> {
    let reference = field("ref", "string", "[party/]name[@N|:tag]");
    let mut routes = vec![
        Route::get("/v1/data", "Datasets: the last version of each name.", list)
            .query([
                field("all", "boolean", "Whether all versions are wanted."),
                field("party", "string", "Those of this party only."),
            ])
            .form(Form::Items),
        Route::get("/v1/data/show", "One version, and who holds it.", show).query([reference]),
        Route::get("/v1/data/log", "All versions of a name, the newest first.", log)
            .query([reference])
            .form(Form::Items),
        Route::get("/v1/data/diff", "What changed between two versions, by path.", compare).query(
            [
                field("from", "string", "The older one: [party/]name[@N|:tag]"),
                field("to", "string", "The newer one."),
            ],
        ),
        Route::get("/v1/data/du", "What this node's store holds.", usage),
    ];
    routes.extend(change::routes());
    routes.extend(tags::routes());
    routes.extend(moving::routes());
    routes
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsList {
    all: bool,
    party: Option<String>,
}

async fn list(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsList { all, party } = query(&uri)?;
    let party = party.map(|party| find_party(&api, &party)).transpose()?;
    let mut known = catalogue(&api).await?;
    known.retain(|one| party.is_none_or(|party| one.party == party));
    if !all {
        known = latest(known);
    }
    let mut rows = Vec::with_capacity(known.len());
    for one in &known {
        rows.push(row(&api, one).await);
    }
    Ok(items(&api, rows))
}

/// The last version of each name.
pub(super) fn latest(known: Vec<Known>) -> Vec<Known> {
    let mut last: BTreeMap<_, usize> = BTreeMap::new();
    for (place, one) in known.iter().enumerate() {
        let held = last.entry((one.party, one.name.clone())).or_insert(place);
        if known[*held].number < one.number {
            *held = place;
        }
    }
    let keep: std::collections::BTreeSet<usize> = last.into_values().collect();
    let all = known.into_iter().enumerate();
    all.filter(|(place, _)| keep.contains(place)).map(|(_, one)| one).collect()
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsOne {
    r#ref: String,
}

async fn show(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsOne { r#ref } = query(&uri)?;
    let known = resolve(&api, &r#ref).await?;
    Ok(item(&api, whole(&api, &known).await))
}

async fn log(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsOne { r#ref } = query(&uri)?;
    let wanted = parse(&r#ref)?;
    if wanted.pick != Pick::Latest {
        return Err(Problem::bad(
            "the versions of a name are listed by its name alone",
            format!("{} means one of them", quoted(&r#ref)),
            "leave out what follows @ or :",
        ));
    }
    let last = resolve(&api, &r#ref).await?;
    let mut known = catalogue(&api).await?;
    known.retain(|one| one.party == last.party && one.name == last.name);
    known.reverse();
    let mut rows = Vec::with_capacity(known.len());
    for one in &known {
        rows.push(row(&api, one).await);
    }
    Ok(items(&api, rows))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsDiff {
    from: String,
    to: String,
}

async fn compare(State(api): State<Api>, uri: Uri) -> Answer {
    let WantsDiff { from, to } = query(&uri)?;
    let (old, new) = (resolve(&api, &from).await?, resolve(&api, &to).await?);
    let (before, after) = (manifest(&api, &old).await?, manifest(&api, &new).await?);
    let compared = tokio::task::spawn_blocking(move || {
        let changes = diff::diff(before.manifest(), after.manifest());
        let new_bytes = diff::missing_bytes(before.manifest(), after.manifest());
        (changes, new_bytes, after.manifest().entries.len())
    });
    let (changes, new_bytes, entries) = compared.await.map_err(|_| not_now())?;
    let count = |kind| changes.iter().filter(|change| change.kind == kind).count();
    let (added, changed) = (count(diff::ChangeKind::Added), count(diff::ChangeKind::Changed));
    let listed: Vec<Value> = changes
        .iter()
        .take(MAX_CHANGES)
        .map(|change| {
            let word = match change.kind {
                diff::ChangeKind::Added => "added",
                diff::ChangeKind::Removed => "removed",
                diff::ChangeKind::Changed => "changed",
            };
            json!({
                "path": change.path, "change": word,
                "old_bytes": change.old_bytes, "new_bytes": change.new_bytes,
            })
        })
        .collect();
    Ok(item(
        &api,
        json!({
            "from": title(&api.roster(), &old), "to": title(&api.roster(), &new),
            "added": added, "removed": count(diff::ChangeKind::Removed), "changed": changed,
            "unchanged": entries.saturating_sub(added + changed),
            "new_bytes": new_bytes, "changes": listed, "truncated": changes.len() > MAX_CHANGES,
        }),
    ))
}

async fn usage(State(api): State<Api>) -> Answer {
    let store = api.data.store.clone();
    let used = tokio::task::spawn_blocking(move || {
        let (usage, held, aside) = (store.usage()?, store.list()?, store.quarantined()?);
        Ok::<_, mesh_storage::store::StoreError>((usage, held, aside))
    });
    let (usage, held, (quarantined, quarantine_bytes)) =
        used.await.map_err(|_| not_now())?.map_err(|error| failed(&error))?;
    let known = catalogue(&api).await?;
    let mut called: BTreeMap<Hash, Vec<&Known>> = BTreeMap::new();
    for one in &known {
        if let Some(manifest) = one.manifest {
            called.entry(manifest).or_default().push(one);
        }
    }
    let roster = api.roster();
    let row = |held: &Held, of: Option<&Known>| {
        json!({
            "name": of.map(|one| one.name.as_str()), "version": of.map(|one| one.number),
            "party": of.and_then(|one| roster.parties.get(&one.party)).map(ToString::to_string),
            "manifest": held.hash, "bytes": held.bytes, "pinned": is_pinned(held),
            "durable": of.is_some_and(|one| one.holders.contains(&api.whoami.node)),
            "last_used_at": date(held.used),
        })
    };
    // Versions of the same content share what is here, and each of them is a reason why it is.
    let mut rows: Vec<Value> = Vec::new();
    for held in &held {
        match called.get(&held.hash) {
            Some(versions) => rows.extend(versions.iter().map(|one| row(held, Some(*one)))),
            None => rows.push(row(held, None)),
        }
    }
    Ok(item(
        &api,
        json!({
            "store_bytes": usage.objects, "in_place_bytes": usage.in_place, "partial_bytes": usage.partial,
            "quarantined": quarantined, "quarantine_bytes": quarantine_bytes,
            "free_bytes": api.data.disk().map(|(_, free)| free), "items": rows,
        }),
    ))
}

/// Whether somebody asked for it to stay. The node's own reasons are no pin to a person.
fn is_pinned(held: &Held) -> bool {
    held.pins.iter().any(|reason| reason == PINNED)
}

/// Everything that this node may know of.
pub(super) async fn catalogue(api: &Api) -> Result<Vec<Known>, Problem> {
    has_state(api)?;
    api.data.catalogue().await.ok_or_else(not_now)
}

/// What a reference means to one who reads: `each/…` is the own party's, as for a task on this node.
async fn resolve(api: &Api, text: &str) -> Result<Known, Problem> {
    let mut wanted = parse(text)?;
    if wanted.party.as_ref().is_some_and(|party| party.as_str() == EACH) {
        wanted.party = None;
        return look_up(api, wanted).await;
    }
    let begin = begin_of_id(&wanted).map(str::to_owned);
    match (look_up(api, wanted).await, begin) {
        // A name goes before an id: it was chosen.
        (Err(problem), Some(begin)) => by_id(api, &begin).await?.ok_or(problem),
        (found, _) => found,
    }
}

/// What may be the beginning of a version's id, where a name stands.
fn begin_of_id(wanted: &DataRef) -> Option<&str> {
    let name = wanted.name.as_str();
    let is_hex = name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let may_be = wanted.party.is_none() && wanted.pick == Pick::Latest && is_hex;
    (may_be && name.len() >= LEAST_OF_ID).then_some(name)
}

/// The one version whose id begins so, if there is one.
async fn by_id(api: &Api, begin: &str) -> Result<Option<Known>, Problem> {
    let mut known = catalogue(api).await?;
    known.retain(|one| one.id.to_string().starts_with(begin));
    if known.len() < 2 {
        return Ok(known.pop());
    }
    let roster = api.roster();
    let named: Vec<String> = known.iter().take(8).map(|one| title(&roster, one)).collect();
    Err(Problem::bad(
        format!("{} could be any of {} versions", quoted(begin), known.len()),
        format!("their ids begin so: {}", named.join(", ")),
        "write more of the id, or the name",
    ))
}

/// What a reference means to one who changes it: `each/…` is too many.
async fn resolve_one(api: &Api, text: &str) -> Result<Known, Problem> {
    look_up(api, parse(text)?).await
}

async fn look_up(api: &Api, wanted: DataRef) -> Result<Known, Problem> {
    has_state(api)?;
    let mut found = api.data.resolve(&wanted).await;
    if matches!(found, Err(ResolveError::NoData(_))) && api.barrier().await.is_ok() {
        // It may have been pushed elsewhere a moment ago.
        found = api.data.resolve(&wanted).await;
    }
    found.map_err(|error| match error {
        ResolveError::NoParty(party) => Problem::not_found(
            format!("there is no party {party}"),
            "no party of this mesh has this name",
            "mesh party ls shows them all",
        ),
        ResolveError::NoData(wanted) => Problem::not_found(
            format!("there is no data {wanted}"),
            "it does not exist, or is not for this node's party",
            "mesh data ls shows what there is",
        ),
        ResolveError::Each(wanted) => Problem::bad(
            format!("{wanted} is not one version"),
            "each/ means every party's own",
            "name the party: PARTY/NAME",
        ),
        ResolveError::NotNow => not_now(),
    })
}

fn parse(text: &str) -> Result<DataRef, Problem> {
    text.parse().map_err(|error: crate::state::data::reference::ParseDataRefError| {
        Problem::bad(
            "this cannot name data",
            error.to_string(),
            "mnist, mnist@3, mnist:clean, clinic-a/xray",
        )
    })
}

pub(super) fn find_party(api: &Api, wanted: &str) -> Result<PartyId, Problem> {
    has_state(api)?;
    let roster = api.roster();
    let all = roster.parties.iter().map(|(id, name)| (*id, Some(name.as_str())));
    super::find::one("party", "mesh party ls", wanted, all)
}

/// The parties that may read data of `owner`, or may no longer, beside the owner itself.
fn find_readers(api: &Api, named: &[String], owner: PartyId) -> Result<Vec<PartyId>, Problem> {
    let found = named.iter().map(|party| find_party(api, party));
    let mut found = found.collect::<Result<Vec<_>, _>>()?;
    found.retain(|party| *party != owner);
    if found.is_empty() && !named.is_empty() {
        return Err(Problem::refused(
            "a party can always read its own data",
            "no other party was named",
            "name another one: mesh party ls shows them all",
        ));
    }
    Ok(found)
}

/// The manifest of a version: from here, or from one who has it.
async fn manifest(
    api: &Api,
    known: &Known,
) -> Result<std::sync::Arc<mesh_storage::store::Loaded>, Problem> {
    let found = api.data.find(known.id).await;
    let found = found.ok_or_else(|| {
        Problem::refused(
            "what it consists of is not for this node's party",
            "the data is listed, and private",
            "ask its party to share it",
        )
    })?;
    api.data.loaded(&found).await.map_err(|error| {
        Problem::unavailable("its manifest is not to be had", error.to_string(), "mesh data show")
    })
}

fn not_for_us(reference: &str) -> Problem {
    Problem::refused(
        format!("{reference} is not for this node's party"),
        "its party lists it, and keeps its content to itself",
        "ask that party to share it",
    )
}

fn not_now() -> Problem {
    Problem::unavailable(
        "this node cannot answer now",
        "it does not know the mesh yet, or is stopping",
        "try again in a moment",
    )
}

fn failed(error: &mesh_storage::store::StoreError) -> Problem {
    Problem::unavailable("the node's store failed", chain(error), "mesh doctor")
}

/// How a version is called where all can understand it.
fn title(roster: &Roster, known: &Known) -> String {
    let party = roster.parties.get(&known.party);
    format!(
        "{}/{}@{}",
        party.map(ToString::to_string).unwrap_or_default(),
        known.name,
        known.number
    )
}

/// A version in a list.
pub(super) async fn row(api: &Api, known: &Known) -> Value {
    let roster = api.roster();
    let party = |id: &PartyId| roster.parties.get(id).map(ToString::to_string);
    let readers: Option<Vec<_>> = match &known.visibility {
        Visibility::Shared(some) => Some(some.iter().map(party).collect()),
        _ => None,
    };
    let tags: Vec<&str> = known.tags.iter().map(|tag| tag.as_str()).collect();
    let mut row = json!({
        "id": known.id, "name": known.name.as_str(), "version": known.number,
        "manifest": known.manifest, "party": party(&known.party), "party_id": known.party,
        "visibility": known.visibility.name(), "readers": readers,
        "bytes": known.bytes, "files": known.files,
        "copies": known.holders.len(), "copies_wanted": known.copies,
        "created_at": date(known.created.time), "author": node_name(&roster, known.author),
        "tags": tags, "mine": roster.party_of(api.whoami.node) == Some(known.party),
        "here": api.data.here(known, false).await,
        "shortfall": api.data.shortfall(known).await,
    });
    if known.manifest.is_none() {
        unlist(&mut row);
    }
    row
}

/// Leaves out what a party is not to know of data that another one lists.
fn unlist(row: &mut Value) {
    for field in UNLISTED {
        row[field] = Value::Null;
    }
}

/// A version by itself.
pub(super) async fn whole(api: &Api, known: &Known) -> Value {
    let roster = api.roster();
    let durable = |node: &NodeId| holder(api, &roster, *node, "durable", known.bytes);
    let mut holders: Vec<Value> = known.holders.iter().map(durable).collect();
    let (me, here) = (api.whoami.node, api.data.here(known, true).await);
    let own = own_part(here, api.data.pulled_bytes(known.id), known.bytes);
    if let Some((holds, part)) = own.filter(|_| !known.holders.contains(&me)) {
        holders.push(holder(api, &roster, me, holds, part));
    }
    let inputs: Vec<String> = known.lineage.inputs().iter().map(ToString::to_string).collect();
    let mut row = row(api, known).await;
    row["here"] = here.into();
    let counts = match api.data.find(known.id).await {
        Some(found) => api.data.counts(found.manifest).await,
        None => None,
    };
    row["holders"] = holders.into();
    row["chunks"] = json!(counts.map(|(_, chunks)| chunks));
    row["objects"] = json!(counts.map(|(objects, _)| objects));
    row["note"] = json!(known.note);
    row["lineage"] = json!({ "job": known.lineage.job(), "inputs": inputs });
    row["acknowledged"] = json!(known.holders.len() > usize::from(known.copies) / 2);
    row["changed_files"] = json!(changed_files(api, known).await);
    if known.manifest.is_none() {
        unlist(&mut row);
    }
    row
}

/// What a node that nobody counts on has of a version of so many bytes, and what that is worth.
fn own_part(here: &str, pulled: Option<u64>, bytes: u64) -> Option<(&'static str, u64)> {
    match (pulled, here) {
        (Some(part), _) => Some(("pulling", part)),
        (None, "whole") => Some(("cached", bytes)),
        (None, _) => None,
    }
}

/// The first of the files that the version was made of in place on this node, and that have changed since.
async fn changed_files(api: &Api, known: &Known) -> Vec<String> {
    let Some(manifest) = known.manifest else { return Vec::new() };
    let changed = api.data.changed_files(manifest).await;
    // A path need not be text.
    changed.iter().take(MAX_CHANGED_FILES).map(|path| path.display().to_string()).collect()
}

/// A node that has so much of a version, and what that is worth.
fn holder(api: &Api, roster: &Roster, node: NodeId, holds: &str, bytes: u64) -> Value {
    let place = roster.members.get(&node);
    let state = if api.hub.is_alive(node) { "up" } else { "down" };
    json!({
        "id": node, "name": place.map(|place| place.name.as_str()),
        "party": place.and_then(|place| roster.parties.get(&place.party)).map(ToString::to_string),
        "state": state, "holds": holds, "bytes": bytes,
    })
}

fn node_name(roster: &Roster, node: NodeId) -> String {
    roster.members.get(&node).map_or_else(|| node.short(), |place| place.name.to_string())
}

#[cfg(test)]
mod tests {
    use mesh_consensus::time::Time;

    use super::*;

    #[test]
    fn only_what_somebody_pinned_is_pinned() {
        let held = |pins: &[&str]| Held {
            hash: Hash([1; 32]),
            bytes: 1,
            files: 1,
            pins: pins.iter().map(ToString::to_string).collect(),
            leases: 0,
            used: Time(0),
            in_place: false,
        };
        assert!(!is_pinned(&held(&[])));
        assert!(!is_pinned(&held(&["held", "job"])), "the node's own reasons");
        assert!(is_pinned(&held(&["held", PINNED])));
    }

    #[test]
    fn a_name_of_hex_digits_may_be_the_beginning_of_an_id() {
        let begin = |text: &str| {
            let wanted: DataRef = text.parse().unwrap();
            begin_of_id(&wanted).map(str::to_owned)
        };
        assert_eq!(begin("d672"), Some("d672".to_owned()));
        assert_eq!(begin("d67"), None, "a slip of the finger finds nothing");
        for other in ["mnist", "d672@1", "d672:clean", "lab/d672"] {
            assert_eq!(begin(other), None, "{other}");
        }
    }

    #[test]
    fn a_node_that_has_all_of_it_and_is_not_counted_on_is_shown_all_the_same() {
        assert_eq!(own_part("whole", None, 7), Some(("cached", 7)));
        assert_eq!(own_part("partial", Some(3), 7), Some(("pulling", 3)));
        assert_eq!(own_part("partial", None, 7), None);
        assert_eq!(own_part("none", None, 7), None);
    }

    #[test]
    fn of_what_is_listed_others_see_the_name_and_the_size() {
        let mut row = json!({
            "name": "xray", "version": 3, "bytes": 7, "files": 1, "copies": 2, "author": "n1",
            "created_at": "2026-11-18", "holders": [1], "lineage": {}, "acknowledged": true,
        });
        unlist(&mut row);
        for field in ["name", "version", "bytes", "files"] {
            assert!(!row[field].is_null(), "{row}");
        }
        for field in ["copies", "author", "created_at", "holders", "lineage", "acknowledged"] {
            assert!(row[field].is_null(), "{row}");
        }
    }
}
