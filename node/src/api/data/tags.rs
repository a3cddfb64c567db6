//! Tags: for all to see, or private like the version that they stand for. When a version becomes the one or the other,
//! its tags go along.

use std::collections::BTreeMap;

use axum::extract::State;
use bytes::Bytes;
use mesh_consensus::id::VersionId;
use serde::Deserialize;
use serde_json::json;

use super::super::answer::{Answer, Problem, body, item, unwritten};
use super::super::route::{Route, field};
use super::change::check_own;
use super::sealed::Changes;
use super::{Api, not_now, resolve_one};
use crate::data::catalogue::{Known, LATEST, Visibility};
use crate::handle::WriteError;
use crate::seal::{NOTHING, Record};
use crate::state::data::{Body, DataRef, Pick, TagSet};
use crate::state::name::Name;
use crate::state::refusal::Refusal;

/// Tries to change a tag while others of the party change their sealed records, too.
const TRIES: usize = 5;
/// Tags that go along with one version: they have to fit into a batch.
const MAX_ALONG: usize = 256;

pub(super) fn routes() -> Vec<Route> {
    vec![Route::post("/v1/data/tag", "Sets a tag, or takes it away.", tag).body([
        field("ref", "string", "[party/]name[@N|:tag]"),
        field("tag", "string", "The tag."),
        field("expect", "integer", "The version that it stands for now, if that matters."),
        field("remove", "boolean", "Whether it goes."),
    ])]
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

/// The tags of a version's name that all can see, and what each of them stands for.
async fn seen_by_all(api: &Api, known: &Known) -> Result<BTreeMap<Name, u32>, Problem> {
    let (party, name) = (known.party, known.name.clone());
    let tags = api.data.look(move |state| {
        state.data_name(party, &name).map(|numbers| numbers.tags.clone()).unwrap_or_default()
    });
    tags.await.ok_or_else(not_now)
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
        let mut changes = Changes::begin(api, known.party).await?;
        let now = stands(api, known, tag).await;
        check_expected(tag, expect, now)?;
        let seen = seen_by_all(api, known).await?.get(tag).copied();
        let moved = Moved { known, tag, now, seen };
        match remove {
            true => moved.dropped(&mut changes).await?,
            false if now == Some(known.number) => return Ok(()),
            false => moved.set(&mut changes).await?,
        }
        tries += 1;
        match changes.write().await {
            Err(WriteError::Refused {
                refusal: Refusal::SealedChanged | Refusal::BodyChanged | Refusal::TagChanged,
                ..
            }) if tries < TRIES => {}
            done => return done.map_err(|error| unwritten(api, error)),
        }
    }
}

/// A tag that is to stand for a version, or for nothing.
struct Moved<'a> {
    known: &'a Known,
    tag: &'a Name,
    /// What it stands for now, to its party …
    now: Option<u32>,
    /// … and to all others.
    seen: Option<u32>,
}

impl Moved<'_> {
    /// Makes it stand for the version.
    async fn set(&self, changes: &mut Changes<'_>) -> Result<(), Problem> {
        let names = changes.private.names().get(&self.known.name);
        let held = names.and_then(|names| names.tags.get(self.tag)).map(|(id, _)| *id);
        if self.known.visibility != Visibility::Private {
            changes.push(self.for_all(Some(self.known.number)));
            // One that is private would go before it.
            return match held {
                Some(id) => changes.reseal(id, &self.record(NOTHING)).await,
                None => Ok(()),
            };
        }
        let record = self.record(self.known.number);
        match held {
            Some(id) => changes.reseal(id, &record).await,
            None => changes.add(&record).await,
        }
    }

    /// Takes it away.
    async fn dropped(&self, changes: &mut Changes<'_>) -> Result<(), Problem> {
        if self.now.is_none() {
            return Err(Problem::not_found(
                format!("{} has no tag {}", self.known.name, self.tag),
                "it was never set, or was taken away",
                "mesh data log NAME shows the tags",
            ));
        }
        // A private one goes before one that all can see, as it does where it is looked for.
        let held = changes.private.names().get(&self.known.name).and_then(|names| {
            let (id, number) = names.tags.get(self.tag)?;
            names.versions.contains_key(number).then_some(*id)
        });
        match held {
            Some(id) => changes.reseal(id, &self.record(NOTHING)).await,
            None => {
                changes.push(self.for_all(None));
                Ok(())
            }
        }
    }

    /// As a record that only its party can read.
    fn record(&self, number: u32) -> Record {
        Record::Tag { name: self.known.name.clone(), tag: self.tag.clone(), number }
    }

    /// As a change that all can see.
    fn for_all(&self, to: Option<u32>) -> TagSet {
        let (party, name) = (self.known.party, self.known.name.clone());
        TagSet { party, name, tag: self.tag.clone(), expect: self.seen, to }
    }
}

/// Lets the tags of a version go along when it becomes `body`. They are private if nobody else can see its number, and
/// for all to see once it is not sealed.
pub(super) async fn take_along(
    api: &Api,
    known: &Known,
    body: &Body,
    changes: &mut Changes<'_>,
) -> Result<(), Problem> {
    let (party, name, old) = (known.party, &known.name, known.number);
    let private = changes.private.clone();
    let names = private.names().get(name);
    let held = |tag: &Name| names.and_then(|names| names.tags.get(tag)).copied();
    let seen = seen_by_all(api, known).await?;
    let record = |tag: &Name, number| Record::Tag { name: name.clone(), tag: tag.clone(), number };
    let Some((_, number)) = body.place() else {
        let tags = seen.iter().filter(|(_, stands)| **stands == old).map(|(tag, _)| tag);
        let tags: Vec<&Name> = tags.take(MAX_ALONG).collect();
        for tag in tags {
            match held(tag) {
                // It is private already, or stands for another version to its party.
                Some((_, stands)) if names.is_some_and(|n| n.versions.contains_key(&stands)) => {}
                Some((id, _)) => changes.reseal(id, &record(tag, old)).await?,
                None => changes.add(&record(tag, old)).await?,
            }
        }
        return Ok(());
    };
    let own: Vec<(Name, VersionId)> = names
        .into_iter()
        .flat_map(|names| &names.tags)
        .filter(|(_, (_, stands))| *stands == old)
        .map(|(tag, (id, _))| (tag.clone(), *id))
        .take(MAX_ALONG)
        .collect();
    for (tag, id) in own {
        if body.is_sealed() {
            // Only the party's own nodes speak of it by this tag, as before.
            if number != old {
                changes.reseal(id, &record(&tag, number)).await?;
            }
            continue;
        }
        let (nothing, expect) = (record(&tag, NOTHING), seen.get(&tag).copied());
        changes.push(TagSet { party, name: name.clone(), tag, expect, to: Some(number) });
        changes.reseal(id, &nothing).await?;
    }
    Ok(())
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
