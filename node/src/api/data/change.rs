//! Tags, readers, pins, and removal.
//!
//! What a party keeps to itself is changed inside sealed records; for the rest there are commands of the state.
//! Both are compare-and-set: whoever was slower is told so, and nothing is lost.

use axum::extract::State;
use bytes::Bytes;
use mesh_consensus::id::VersionId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::answer::{Answer, Problem, body, item, unwritten};
use super::super::route::{Route, field};
use super::{Api, find_party, not_now, resolve, resolve_one, title, whole};
use crate::data::catalogue::{Known, LATEST, Visibility};
use crate::data::keep::PINNED;
use crate::handle::{Ask, WriteError};
use crate::seal::{NOTHING, PrivateVersion, PrivateView, Record, Spot, seal};
use crate::state::command::Act;
use crate::state::data::{
    Body, DataRef, Listing, Pick, Plain, Readers, Sealed, TagSet, VersionBody, VersionDrop,
    VersionNew,
};
use crate::state::name::Name;
use crate::state::refusal::Refusal;

/// Tries to change a tag while others of the party change their sealed records, too.
const TRIES: usize = 5;

pub(super) fn routes() -> Vec<Route> {
    let reference = field("ref", "string", "[party/]name[@N|:tag]");
    vec![
        Route::post("/v1/data/tag", "Sets a tag, or takes it away.", tag).body([
            reference,
            field("tag", "string", "The tag."),
            field("expect", "integer", "The version that it stands for now, if that matters."),
            field("remove", "boolean", "Whether it goes."),
        ]),
        Route::post("/v1/data/share", "Lets others read a version, too.", share).body([
            reference,
            field("with", "array", "The parties."),
            field("open", "boolean", "Every member."),
            field("listed", "boolean", "Nobody, but all see its name and size."),
        ]),
        Route::post("/v1/data/unshare", "Takes that back. What they have read they have.", unshare)
            .body([reference, field("from", "array", "The parties; all if it is empty.")]),
        Route::post("/v1/data/pin", "Keeps a version on this node, or no longer.", pin)
            .body([reference, field("on", "boolean", "Whether it is kept.")]),
        Route::post("/v1/data/rm", "Takes a version out of the mesh.", remove)
            .body([reference, field("all", "boolean", "All versions of the name.")]),
    ]
}

/// What `tag` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsTag {
    r#ref: String,
    tag: String,
    /// Left out: whatever it is. Null: nothing.
    #[serde(deserialize_with = "given")]
    expect: Option<Option<u32>>,
    remove: bool,
}

/// Tells a field that is null from one that is not there.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(from).map(Some)
}

async fn tag(State(api): State<Api>, bytes: Bytes) -> Answer {
    let WantsTag { r#ref, tag, expect, remove } = body(&bytes)?;
    let known = resolve_one(&api, &r#ref).await?;
    let tag = if remove { parse_old_tag(&tag, &known)? } else { parse_tag(&tag)? };
    change_tag(&api, &known, &tag, expect, remove).await?;
    let stands = (!remove).then_some(known.number);
    Ok(item(&api, json!({ "name": known.name.as_str(), "tag": tag.as_str(), "version": stands })))
}

/// A tag that is to be set: not one that people would take for something else.
pub(super) fn parse_tag(text: &str) -> Result<Name, Problem> {
    let tag = tag_name(text)?;
    if tag.as_str() == LATEST {
        return Err(not_latest());
    }
    if tag.as_str().bytes().all(|byte| byte.is_ascii_digit()) {
        let cause = format!("a number means a version: NAME@{tag}");
        return Err(Problem::bad("this cannot be a tag", cause, format!("a letter in it: v{tag}")));
    }
    Ok(tag)
}

/// A tag that is to go. Also one that could not be set any more, if it stands.
fn parse_old_tag(text: &str, known: &Known) -> Result<Name, Problem> {
    let tag = tag_name(text)?;
    match tag.as_str() == LATEST && !known.tags.contains(&tag) {
        true => Err(not_latest()),
        false => Ok(tag),
    }
}

fn tag_name(text: &str) -> Result<Name, Problem> {
    text.parse().map_err(|error: crate::state::name::ParseNameError| {
        Problem::bad(
            "this cannot be a tag",
            error.to_string(),
            "small letters, digits, '.', '_' and '-'",
        )
    })
}

fn not_latest() -> Problem {
    let cause = "every name has this one: it stands for the last version";
    Problem::bad("this cannot be a tag", cause, "choose another")
}

/// What a tag of the same name stands for now, as far as this node knows.
async fn stands(api: &Api, known: &Known, tag: &Name) -> Option<u32> {
    let name = known.name.clone();
    let party = (Some(known.party) != api.roster().party_of(api.whoami.node))
        .then(|| api.roster().parties.get(&known.party).cloned())
        .flatten();
    let wanted = DataRef { party, name, pick: Pick::Tag(tag.clone()) };
    api.data.resolve(&wanted).await.ok().map(|found| found.number)
}

/// Makes the tag stand for this version, or takes it away. If others change the same meanwhile, that is looked at, and
/// then it is tried again.
pub(super) async fn change_tag(
    api: &Api,
    known: &Known,
    tag: &Name,
    expect: Option<Option<u32>>,
    remove: bool,
) -> Result<(), Problem> {
    check_own(api, known)?;
    let mut tries = 0;
    loop {
        // Before anything else is looked at: whatever changes after it is noticed by its revision.
        let private = api.data.private().await.ok_or_else(not_now)?;
        let now = stands(api, known, tag).await;
        check_expected(tag, expect, now)?;
        let act = match remove {
            true => dropping(api, known, tag, now, &private).await?,
            false if now == Some(known.number) => return Ok(()),
            false => setting(api, known, tag, now, &private).await?,
        };
        tries += 1;
        match api.write(vec![Ask { act, signed: false }]).await {
            Err(WriteError::Refused {
                refusal: Refusal::SealedChanged | Refusal::BodyChanged | Refusal::TagChanged,
                ..
            }) if tries < TRIES => {}
            done => return done.map(drop).map_err(|error| unwritten(api, error)),
        }
    }
}

/// What makes the tag stand for this version.
async fn setting(
    api: &Api,
    known: &Known,
    tag: &Name,
    now: Option<u32>,
    private: &PrivateView,
) -> Result<Act, Problem> {
    let (party, name, number) = (known.party, known.name.clone(), known.number);
    let tag = tag.clone();
    if known.visibility != Visibility::Private {
        return Ok(TagSet { party, name, tag, expect: now, to: Some(number) }.into());
    }
    let own = private.names().get(&name).and_then(|names| names.tags.get(&tag)).map(|(id, _)| *id);
    let record = Record::Tag { name, tag, number };
    match own.or(private.free().first().copied()) {
        Some(id) => reseal(api, known, id, &record, private).await,
        None => {
            let id = VersionId(crate::random());
            let body = sealed(api, known, id, &record, None).await?;
            let (revision, holders) = (Some(private.revision()), std::collections::BTreeSet::new());
            Ok(VersionNew { party, id, revision, copies: 0, holders, body }.into())
        }
    }
}

/// What takes the tag away.
async fn dropping(
    api: &Api,
    known: &Known,
    tag: &Name,
    now: Option<u32>,
    private: &PrivateView,
) -> Result<Act, Problem> {
    if now.is_none() {
        return Err(Problem::not_found(
            format!("{} has no tag {tag}", known.name),
            "it was never set, or was taken away",
            "mesh data log NAME shows the tags",
        ));
    }
    let (party, name, tag) = (known.party, known.name.clone(), tag.clone());
    // A private one goes before one that all can see, as it does where it is looked for.
    let held = private.names().get(&name).and_then(|names| {
        let (id, number) = names.tags.get(&tag)?;
        names.versions.contains_key(number).then_some(*id)
    });
    match held {
        Some(id) => {
            reseal(api, known, id, &Record::Tag { name, tag, number: NOTHING }, private).await
        }
        None => Ok(TagSet { party, name, tag, expect: now, to: None }.into()),
    }
}

/// What makes a sealed record say something else.
async fn reseal(
    api: &Api,
    known: &Known,
    id: VersionId,
    record: &Record,
    private: &PrivateView,
) -> Result<Act, Problem> {
    let expect = body_of(api, id).await?;
    let body = sealed(api, known, id, record, None).await?;
    Ok(VersionBody { id, expect, revision: Some(private.revision()), body }.into())
}

fn check_expected(
    tag: &Name,
    expect: Option<Option<u32>>,
    now: Option<u32>,
) -> Result<(), Problem> {
    if expect.is_none_or(|expected| expected == now) {
        return Ok(());
    }
    let stands = now.map_or("nothing".to_owned(), |now| format!("version {now}"));
    Err(Problem::refused(
        format!("tag {tag} was not moved"),
        format!("it stands for {stands}, not for what was expected"),
        "look again, then decide again",
    ))
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
    let with = with.iter().map(|party| find_party(&api, party)).collect::<Result<Vec<_>, _>>()?;
    let visibility = match (open, listed, with.is_empty()) {
        (true, false, true) => Visibility::Open,
        (false, true, true) => Visibility::Listed,
        (false, false, false) => {
            let mut some = match &known.visibility {
                Visibility::Shared(some) => some.clone(),
                _ => Vec::new(),
            };
            some.extend(with.into_iter().filter(|party| *party != known.party));
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
    let known = api.data.known(known.id).await.unwrap_or(known);
    Ok(item(&api, whole(&api, &known).await))
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
    let from = from.iter().map(|party| find_party(&api, party)).collect::<Result<Vec<_>, _>>()?;
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
    let known = api.data.known(known.id).await.unwrap_or(known);
    Ok(item(&api, whole(&api, &known).await))
}

/// Changes who may read a version.
async fn publish(api: &Api, known: &Known, visibility: Visibility) -> Result<(), Problem> {
    check_own(api, known)?;
    if known.visibility == visibility {
        return Ok(());
    }
    let manifest = known.manifest.ok_or_else(not_now)?;
    let number = number_for(api, known, &visibility).await?;
    let Known { id, name, bytes, files, lineage, note, .. } = known.clone();
    let private = api.data.private().await.ok_or_else(not_now)?;
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
            sealed(api, known, id, &Record::Version(version.clone()), Some(listing())).await?
        }
        Visibility::Private => {
            sealed(api, known, id, &Record::Version(version.clone()), None).await?
        }
    };
    let mut revision = private.revision();
    let mut acts = Vec::new();
    if was_sealed && !body.is_sealed() {
        acts.extend(remember_number(api, known, &mut revision).await?);
    }
    let revision = (was_sealed || body.is_sealed()).then_some(revision);
    acts.push(VersionBody { id, expect: known.body, revision, body }.into());
    write(api, acts).await
}

/// The number that a version has, or takes when others get to see it: one is given once, and a later one may have
/// been since.
async fn number_for(api: &Api, known: &Known, to: &Visibility) -> Result<u32, Problem> {
    if known.visibility != Visibility::Private || *to == Visibility::Private {
        return Ok(known.number);
    }
    let private = api.data.private().await.ok_or_else(not_now)?;
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
    let mut gone: Vec<Value> = Vec::new();
    for one in going {
        let private = api.data.private().await.ok_or_else(not_now)?;
        let mut revision = private.revision();
        let mut acts = remember_number(&api, &one, &mut revision).await?;
        acts.push(VersionDrop { id: one.id }.into());
        write(&api, acts).await?;
        gone.push(json!({ "name": one.name.as_str(), "version": one.number }));
    }
    Ok(item(&api, json!({ "removed": gone })))
}

/// What must stand before a private version goes from among the private ones: that its number was given.
async fn remember_number(
    api: &Api,
    known: &Known,
    revision: &mut u64,
) -> Result<Vec<Act>, Problem> {
    let private = api.data.private().await.ok_or_else(not_now)?;
    let Some((replaces, record)) = private.before_drop(known.id) else { return Ok(Vec::new()) };
    let (party, seen) = (known.party, Some(*revision));
    let act: Act = match replaces {
        Some(id) => {
            let expect = body_of(api, id).await?;
            let body = sealed(api, known, id, &record, None).await?;
            VersionBody { id, expect, revision: seen, body }.into()
        }
        None => {
            let id = VersionId(crate::random());
            let body = sealed(api, known, id, &record, None).await?;
            let holders = std::collections::BTreeSet::new();
            VersionNew { party, id, revision: seen, copies: 0, holders, body }.into()
        }
    };
    *revision += 1;
    Ok(vec![act])
}

/// Seals a record of this node's party.
async fn sealed(
    api: &Api,
    known: &Known,
    id: VersionId,
    record: &Record,
    listing: Option<Listing>,
) -> Result<Body, Problem> {
    let secret = api.data.sealing_secret().await.ok_or_else(|| {
        Problem::unavailable(
            "nothing can be kept private here yet",
            "this node does not have its party's sealing secret",
            "wait until another node of the party is there to hand it over",
        )
    })?;
    let spot = Spot { mesh: api.whoami.mesh, party: known.party, id };
    Ok(Body::Sealed(Sealed { record: seal(record, &secret, &spot), listing }))
}

/// What is said of a record now.
async fn body_of(api: &Api, id: VersionId) -> Result<mesh_consensus::id::Hash, Problem> {
    let found = api.data.look(move |state| state.version(id).map(|version| version.body.hash()));
    found.await.flatten().ok_or_else(not_now)
}

/// A party changes its own data alone. The state says so as well; this says it better.
fn check_own(api: &Api, known: &Known) -> Result<(), Problem> {
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

async fn write(api: &Api, acts: Vec<Act>) -> Result<(), Problem> {
    let asks = acts.into_iter().map(|act| Ask { act, signed: false }).collect();
    api.write(asks).await.map(drop).map_err(|error| unwritten(api, error))
}
