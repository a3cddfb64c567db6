//! Readers, pins, and removal.
//!
//! What a party keeps to itself is changed inside sealed records; for the rest there are commands of the state.
//! Both are compare-and-set: whoever was slower is told so, and nothing is lost.

use axum::extract::State;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::answer::{Answer, Problem, body, item, unwritten};
use super::super::route::{Route, field};
use super::sealed::Changes;
use super::{Api, find_readers, not_now, resolve, resolve_one, tags, title, whole};
use crate::data::catalogue::{Known, Visibility};
use crate::data::keep::PINNED;
use crate::handle::WriteError;
use crate::seal::{PrivateVersion, Record};
use crate::state::data::{Body, Listing, Pick, Plain, Readers, VersionDrop};

pub(super) fn routes() -> Vec<Route> {
    let reference = field("ref", "string", "[party/]name[@N|:tag]");
    vec![
        Route::post("/v1/data/share", "Lets others read a version, too.", share).body([
            reference,
            field("with", "array", "The parties."),
            field("open", "boolean", "Every member."),
            field("listed", "boolean", "Nobody, but all see its name and size."),
        ]),
        Route::post(
            "/v1/data/unshare",
            "Takes that back. Their nodes delete what is in their stores, and nothing else.",
            unshare,
        )
        .body([reference, field("from", "array", "The parties; all if it is empty.")]),
        Route::post("/v1/data/pin", "Keeps a version on this node, or no longer.", pin)
            .body([reference, field("on", "boolean", "Whether it is kept.")]),
        Route::post("/v1/data/rm", "Takes a version out of the mesh.", remove)
            .body([reference, field("all", "boolean", "All versions of the name.")]),
    ]
}

/// What `share` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsShare {
    r#ref: String,
    with: Vec<String>,
    open: bool,
    listed: bool,
}

async fn share(State(api): State<Api>, bytes: Bytes) -> Answer {
    let WantsShare { r#ref, with, open, listed } = body(&bytes)?;
    let known = resolve_one(&api, &r#ref).await?;
    let with = find_readers(&api, &with, known.party)?;
    let visibility = match (open, listed, with.is_empty()) {
        (true, false, true) => Visibility::Open,
        (false, true, true) => Visibility::Listed,
        (false, false, false) => {
            let mut some = match &known.visibility {
                Visibility::Shared(some) => some.clone(),
                _ => Vec::new(),
            };
            some.extend(with);
            some.sort_unstable();
            some.dedup();
            Visibility::Shared(some)
        }
        _ => {
            let hint = "mesh data share REF PARTY, or --open, or --listed";
            return Err(Problem::bad(
                "with whom is not clear",
                "name parties, or one of the two",
                hint,
            ));
        }
    };
    let already = known.visibility == Visibility::Open && !open && !listed;
    if !already {
        publish(&api, &known, visibility).await?;
    }
    Ok(item(&api, changed(&api, &known).await))
}

/// What `unshare` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsUnshare {
    r#ref: String,
    from: Vec<String>,
}

async fn unshare(State(api): State<Api>, bytes: Bytes) -> Answer {
    let WantsUnshare { r#ref, from } = body(&bytes)?;
    let known = resolve_one(&api, &r#ref).await?;
    let from = find_readers(&api, &from, known.party)?;
    let left = match &known.visibility {
        _ if from.is_empty() => Vec::new(),
        Visibility::Shared(some) => {
            some.iter().copied().filter(|party| !from.contains(party)).collect()
        }
        Visibility::Open => {
            let others = api
                .roster()
                .parties
                .keys()
                .copied()
                .filter(|party| *party != known.party)
                .collect::<Vec<_>>();
            others.into_iter().filter(|party| !from.contains(party)).collect()
        }
        Visibility::Private | Visibility::Listed => Vec::new(),
    };
    let visibility = if left.is_empty() { Visibility::Private } else { Visibility::Shared(left) };
    publish(&api, &known, visibility).await?;
    Ok(item(&api, changed(&api, &known).await))
}

/// A version whose readers were changed, and what has changed with them.
async fn changed(api: &Api, before: &Known) -> Value {
    let now = api.data.known(before.id).await.unwrap_or_else(|| before.clone());
    let gone = before.tags.iter().filter(|tag| !now.tags.contains(tag));
    let gone: Vec<&str> = gone.map(|tag| tag.as_str()).collect();
    let mut row = whole(api, &now).await;
    row["old_version"] = json!((now.number != before.number).then_some(before.number));
    row["dropped_tags"] = json!(gone);
    row
}

/// Changes who may read a version.
async fn publish(api: &Api, known: &Known, visibility: Visibility) -> Result<(), Problem> {
    check_own(api, known)?;
    if known.visibility == visibility {
        return Ok(());
    }
    let manifest = known.manifest.ok_or_else(not_now)?;
    let mut changes = Changes::begin(api, known.party).await?;
    let number = number_for(api, known, &visibility, &changes).await?;
    let Known { id, name, bytes, files, lineage, note, .. } = known.clone();
    let was_sealed = matches!(known.visibility, Visibility::Private | Visibility::Listed);
    let note = note.parse().unwrap_or_default();
    let version = PrivateVersion {
        name: name.clone(),
        number,
        manifest,
        bytes,
        files,
        lineage: lineage.clone(),
        note,
    };
    let listing =
        || Listing { name: name.clone(), number, bytes, files, note: version.note.clone() };
    let plain = |readers| {
        Body::Plain(Plain { name: name.clone(), number, manifest, bytes, files, readers, lineage })
    };
    let body = match visibility {
        Visibility::Open => plain(Readers::Everyone),
        Visibility::Shared(some) => plain(Readers::Parties(some.into_iter().collect())),
        Visibility::Listed => {
            changes.seal(id, &Record::Version(version.clone()), Some(listing())).await?
        }
        Visibility::Private => changes.seal(id, &Record::Version(version.clone()), None).await?,
    };
    if was_sealed && !body.is_sealed() {
        changes.remember_number(id).await?;
    }
    let (is_sealed, at) = (was_sealed || body.is_sealed(), changes.count());
    changes.change(known, body.clone(), is_sealed);
    if is_sealed {
        tags::take_along(api, known, &body, &mut changes).await?;
    }
    match changes.write().await {
        // The version has changed, and a tag could not go along: whoever asked is told which.
        Err(WriteError::Refused { position, .. }) if position as usize > at => Ok(()),
        done => done.map_err(|error| unwritten(api, error)),
    }
}

/// The number that a version has, or takes when others get to see it: one is given once, and a later one may have
/// been since. The state does not know what had a number that has gone, so not even the same version gets it again.
async fn number_for(
    api: &Api,
    known: &Known,
    to: &Visibility,
    changes: &Changes<'_>,
) -> Result<u32, Problem> {
    if known.visibility != Visibility::Private || *to == Visibility::Private {
        return Ok(known.number);
    }
    let private = changes.private.clone();
    let (party, name, number) = (known.party, known.name.clone(), known.number);
    let chosen = api.data.look(move |state| match state.next_number(party, &name) {
        next if number >= next => number,
        _ => private.next_number(state, party, &name),
    });
    chosen.await.ok_or_else(not_now)
}

/// What `pin` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsPin {
    r#ref: String,
    on: bool,
}

async fn pin(State(api): State<Api>, bytes: Bytes) -> Answer {
    let WantsPin { r#ref, on } = body(&bytes)?;
    let known = resolve(&api, &r#ref).await?;
    let found = api.data.find(known.id).await.ok_or_else(|| super::not_for_us(&r#ref))?;
    let (store, manifest) = (api.data.store.clone(), found.manifest);
    let done = tokio::task::spawn_blocking(move || match on {
        true => store.pin(manifest, PINNED),
        false => store.unpin(manifest, PINNED).map(drop),
    });
    done.await.map_err(|_| not_now())?.map_err(|error| match error {
        mesh_storage::store::StoreError::NoManifest(_) => Problem::refused(
            format!("{} is not on this node", title(&api.roster(), &known)),
            "only what is here can be kept here",
            "mesh data pull REF --store-only brings it here",
        ),
        error => super::failed(&error),
    })?;
    let mut item_ = whole(&api, &known).await;
    item_["pinned"] = json!(on);
    Ok(item(&api, item_))
}

/// What `rm` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsRemove {
    r#ref: String,
    all: bool,
}

async fn remove(State(api): State<Api>, bytes: Bytes) -> Answer {
    let WantsRemove { r#ref, all } = body(&bytes)?;
    let wanted = super::parse(&r#ref)?;
    let known = resolve_one(&api, &r#ref).await?;
    check_own(&api, &known)?;
    if wanted.pick == Pick::Latest && !all {
        return Err(Problem::bad(
            "which version goes is not clear",
            format!("{} has versions up to {}", known.name, known.number),
            format!("{}@{} for the last one, or --all", known.name, known.number),
        ));
    }
    let mut going = vec![known.clone()];
    if all {
        going = super::catalogue(&api).await?;
        going.retain(|one| one.party == known.party && one.name == known.name);
    }
    let gone = drop_versions(&api, &going).await?;
    Ok(item(&api, json!({ "removed": gone })))
}

/// Takes these versions out of the mesh; what they were called.
pub(in crate::api) async fn drop_versions(
    api: &Api,
    going: &[Known],
) -> Result<Vec<Value>, Problem> {
    let mut gone: Vec<Value> = Vec::new();
    for one in going {
        let mut changes = Changes::begin(api, one.party).await?;
        changes.remember_number(one.id).await?;
        changes.push(VersionDrop { id: one.id });
        changes.write().await.map_err(|error| unwritten(api, error))?;
        gone.push(json!({ "name": one.name.as_str(), "version": one.number }));
    }
    Ok(gone)
}

/// A party changes its own data alone. The state says so as well; this says it better.
pub(in crate::api) fn check_own(api: &Api, known: &Known) -> Result<(), Problem> {
    let roster = api.roster();
    if roster.party_of(api.whoami.node) == Some(known.party) {
        return Ok(());
    }
    Err(Problem::refused(
        format!("{} is not this node's to change", title(&roster, known)),
        "data is changed by nodes of the party that owns it",
        "ask a node of that party",
    ))
}
