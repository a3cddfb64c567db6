//! What takes long: push, pull, verify. One line of JSON after another, the last one says how it ended.
//!
//! Whoever closes the connection stops it; what was stored stays, and the same again goes on from there.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use mesh_storage::import::{Apart, ImportError};
use mesh_storage::tree;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::interval;

use super::super::answer::{Answer, Problem, SCHEMA, body, chain, framed, millis, unwritten};
use super::super::events::stream_permit;
use super::super::guard::OverSocket;
use super::super::route::{Form, Route, field};
use super::{Api, find_readers, not_now, resolve, whole};
use crate::clock;
use crate::data::catalogue::{EACH, LATEST, Visibility};
use crate::data::pull::{self, How, PullError};
use crate::data::push::{self, COPIES, Cancel, PushError, Pushed, Wish};
use crate::data::{Found, LayOutError};
use crate::state::data::Lineage;
use crate::state::name::Name;

/// How often a reader hears how far it is.
const TELL: Duration = Duration::from_millis(200);
/// The longest that a pull waits for somebody who has what is missing.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Whoever is there gives a sign within this time.
const LEAST_WAIT: Duration = Duration::from_secs(1);
/// Lines that a slow reader is behind; then it is waited for.
const MAX_LINES: usize = 16;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/data/push", "Makes a directory of this machine a version.", push)
            .body([
                field("path", "string", "The directory or file, from the root."),
                field("name", "string", "What to call it; the last part of the path if left out."),
                field("share", "array", "Parties that may read it, too."),
                field("open", "boolean", "Whether every member may."),
                field("listed", "boolean", "Private, but for its name and size."),
                field("note", "string", "What else is said of it, such as a schema."),
                field("copies", "integer", "How many copies there should be: 3 if left out."),
                field("in_place", "boolean", "Serve the files from where they are."),
                field("follow", "boolean", "Follow links that lead out of the directory."),
                field("no_wait", "boolean", "Return before there are copies elsewhere."),
                field("tag", "string", "A tag for the new version."),
            ])
            .form(Form::Lines),
        Route::post(
            "/v1/data/pull",
            "Brings a version here, and lays it out as a directory.",
            pull,
        )
        .body([
            field("ref", "string", "[party/]name[@N|:tag]"),
            field("dir", "string", "Where to, from the root; into the store alone if left out."),
            field("writable", "boolean", "Files that may be changed: copies, not links."),
            field("wait_ms", "integer", "How long to wait for one who has what is missing."),
        ])
        .form(Form::Lines),
        Route::post("/v1/data/verify", "Reads a version again, byte for byte.", verify)
            .body([field("ref", "string", "[party/]name[@N|:tag]")])
            .form(Form::Lines),
    ]
}

/// What `push` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsPush {
    path: PathBuf,
    name: Option<String>,
    share: Vec<String>,
    open: bool,
    listed: bool,
    note: String,
    copies: Option<u8>,
    in_place: bool,
    follow: bool,
    no_wait: bool,
    tag: Option<String>,
}

async fn push(
    State(api): State<Api>,
    Extension(local): Extension<OverSocket>,
    bytes: Bytes,
) -> Answer {
    let wants: WantsPush = body(&bytes)?;
    check_local(local)?;
    check_path("path", &wants.path)?;
    check_apart(&api, &wants.path, true)?;
    if api.is_removed() {
        // Before anything is read.
        return Err(Problem::removed());
    }
    let wish = wish(&api, &wants)?;
    if wish.visibility.is_none() {
        // What is the default depends on how many parties there are: a node that lags must not guess.
        api.barrier().await?;
    }
    let tag = wants.tag.as_deref().map(super::tags::parse_tag).transpose()?;
    let permit = stream_permit(&api)?;
    let (sender, progress) = watch::channel(push::Progress::default());
    let work = {
        let api = api.clone();
        async move {
            let begun = clock::steady();
            let cancel = Cancel(Arc::new(AtomicBool::new(false)));
            let pushed = api.data.push(wish, &sender, cancel.0.clone()).await;
            let pushed = pushed.map_err(|error| unpushed(&api, error))?;
            if let Some(tag) = tag {
                super::tags::change_tag(&api, &pushed.known, &tag, None, false).await?;
            }
            let Pushed { known, unchanged, new_bytes, mended, shortfall } = pushed;
            let known = api.data.known(known.id).await.unwrap_or(known);
            let mut item = whole(&api, &known).await;
            item["unchanged"] = json!(unchanged);
            item["new_bytes"] = json!(new_bytes);
            item["read_bytes"] = json!(known.bytes);
            item["mended_objects"] = json!(mended);
            item["timed_out"] = json!(shortfall.as_ref().is_some_and(|short| short.timed_out));
            item["no_room"] = json!(shortfall.as_ref().is_some_and(|short| short.no_room));
            // Where a majority stands, the version itself tells what else is missing.
            if let Some(short) = shortfall {
                item["shortfall"] = json!(short.why);
            }
            item["elapsed_ms"] = json!(millis(begun.elapsed()));
            Ok(item)
        }
    };
    let line = |now: &push::Progress| {
        let phase = if now.waits { "copies" } else { "reading" };
        json!({
            "phase": phase, "bytes": now.bytes, "total_bytes": now.total_bytes, "files": now.files,
            "total_files": null, "peers": 0, "copies": now.copies, "copies_wanted": now.copies_wanted,
        })
    };
    Ok(lines(api, permit, progress, line, work))
}

fn wish(api: &Api, wants: &WantsPush) -> Result<Wish, Problem> {
    let last =
        || wants.path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    let name = wants.name.clone().unwrap_or_else(last);
    let name: Name = name.parse().map_err(|error: crate::state::name::ParseNameError| {
        let hint = "give it one: mesh data push PATH --name NAME";
        Problem::bad("this cannot be the name of data", error.to_string(), hint)
    })?;
    // What has such a name already can be read and removed, but gets no new version.
    if matches!(name.as_str(), EACH | LATEST) {
        let cause = "it has a meaning of its own where data is named: each/NAME, NAME:latest";
        let hint = "give it another: mesh data push PATH --name NAME";
        return Err(Problem::bad(format!("{name} cannot be the name of data"), cause, hint));
    }
    let own = api.roster().party_of(api.whoami.node).ok_or_else(not_now)?;
    let mut share = find_readers(api, &wants.share, own)?;
    let visibility = match (wants.open, wants.listed, share.is_empty()) {
        (true, false, true) => Some(Visibility::Open),
        (false, true, true) => Some(Visibility::Listed),
        (false, false, false) => {
            share.sort_unstable();
            share.dedup();
            Some(Visibility::Shared(share))
        }
        (false, false, true) => None,
        _ => {
            let cause = "share, open and listed exclude one another";
            return Err(Problem::bad("who may read it is not clear", cause, "choose one of them"));
        }
    };
    let copies = wants.copies.unwrap_or(COPIES);
    if !(1..=16).contains(&copies) {
        let cause = format!("{copies} copies are wanted");
        return Err(Problem::bad("so many copies cannot be kept", cause, "1 to 16; 3 is usual"));
    }
    let note =
        wants.note.parse().map_err(|error: crate::state::data::content::ParseNoteError| {
            Problem::bad("this cannot be a note", error.to_string(), "make it shorter")
        })?;
    let WantsPush { path, in_place, follow, no_wait, .. } = wants;
    let apart = Some(own_apart(api)?);
    let (path, lineage) = (path.clone(), Lineage::default());
    let (in_place, follow, no_wait) = (*in_place, *follow, *no_wait);
    Ok(Wish { path, name, visibility, copies, in_place, follow, apart, no_wait, lineage, note })
}

/// The node's own directory, which is never pushed.
pub(in crate::api) fn own_apart(api: &Api) -> Result<Apart, Problem> {
    Apart::of(api.dir.path()).map_err(|error| {
        let cause = format!("it cannot be told what is in the node's own directory: {error}");
        Problem::refused("nothing can be pushed now", cause, "mesh doctor")
    })
}

/// What `pull` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsPull {
    r#ref: String,
    dir: Option<PathBuf>,
    writable: bool,
    wait_ms: Option<u64>,
}

impl WantsPull {
    fn how(&self) -> How {
        let wait = self.wait_ms.map(|ms| Duration::from_millis(ms).clamp(LEAST_WAIT, MAX_WAIT));
        How { wait: wait.unwrap_or(How::default().wait), limit: None }
    }
}

async fn pull(
    State(api): State<Api>,
    Extension(local): Extension<OverSocket>,
    bytes: Bytes,
) -> Answer {
    let wants: WantsPull = body(&bytes)?;
    if let Some(dir) = &wants.dir {
        check_local(local)?;
        check_path("dir", dir)?;
        check_apart(&api, dir, false)?;
    }
    let known = resolve(&api, &wants.r#ref).await?;
    let found = api.data.find(known.id).await.ok_or_else(|| super::not_for_us(&wants.r#ref))?;
    let permit = stream_permit(&api)?;
    let (sender, progress) = watch::channel((false, pull::Progress::default()));
    let work = {
        let api = api.clone();
        async move {
            let begun = clock::steady();
            let show = |now: &pull::Progress| drop(sender.send_replace((false, now.clone())));
            let here = api.data.is_here(&found).await;
            let mut mended = if here { 0 } else { api.data.lost_objects(&found).await };
            let brought = match here {
                true => pull::Progress::default(),
                false => match api.data.bring(&found, wants.how(), show).await {
                    Ok(brought) => brought,
                    Err(error) => return Err(unpulled_here(&api, &found, &error).await),
                },
            };
            let mut item = whole(&api, &known).await;
            if let Some(dir) = &wants.dir {
                let (laid, more) = lay_out(&api, &found, dir, &wants, &sender).await?;
                mended += more;
                item["dir"] = json!(dir);
                item["linked"] = json!(laid.linked + laid.reflinked);
                item["copied"] = json!(laid.copied);
                item["copied_bytes"] = json!(laid.bytes_copied);
            }
            item["fetched_bytes"] = json!(brought.fetched);
            item["local_bytes"] = json!(known.bytes.saturating_sub(brought.fetched));
            item["mended_objects"] = json!(mended);
            item["elapsed_ms"] = json!(millis(begun.elapsed()));
            Ok(item)
        }
    };
    let line = |(writes, now): &(bool, pull::Progress)| {
        let phase = match &now.phase {
            _ if *writes => "writing",
            pull::Phase::Manifest => "manifest",
            _ => "fetching",
        };
        json!({
            "phase": phase, "bytes": now.bytes, "total_bytes": now.total, "files": null,
            "total_files": null, "peers": now.peers, "fetched_bytes": now.fetched,
        })
    };
    Ok(lines(api, permit, progress, line, work))
}

/// Lays a version that is here out as a directory. Also says how many damaged objects had to be fetched anew.
async fn lay_out(
    api: &Api,
    found: &Found,
    dir: &Path,
    wants: &WantsPull,
    sender: &watch::Sender<(bool, pull::Progress)>,
) -> Result<(tree::Materialised, usize), Problem> {
    let total: u64 =
        api.data.loaded(found).await.map_err(|error| unpulled(&error))?.manifest().bytes();
    let sender = sender.clone();
    let show = move |bytes: u64| {
        let total = Some(total);
        let now = pull::Progress { bytes, total, ..pull::Progress::default() };
        sender.send_replace((true, now));
    };
    let cancel = Cancel(Arc::new(AtomicBool::new(false)));
    let (into, writable, how) = (dir.to_path_buf(), wants.writable, wants.how());
    let laid = api.data.lay_out(found, into, writable, how, cancel.0.clone(), show).await;
    match laid {
        Ok(laid) => Ok(laid),
        Err(LayOutError::Tree(error)) => Err(Problem::refused(
            format!("it cannot be laid out in {}", dir.display()),
            chain(&error),
            unlaid_hint(tree_trouble(&error), dir),
        )),
        Err(LayOutError::Pull(error)) => Err(unpulled_here(api, found, &error).await),
    }
}

/// What to do if the system would not let a directory be made or written.
fn unlaid_hint(trouble: Option<io::ErrorKind>, dir: &Path) -> String {
    let above = dir.parent().filter(|above| !above.exists());
    match (trouble, above) {
        (Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded), _) => {
            "make room there, or name a directory on another disk".to_owned()
        }
        (Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem), _) => {
            "name a directory in which the user of this node may write".to_owned()
        }
        (_, Some(above)) => {
            format!("make the directory above it first: mkdir -p {}", above.display())
        }
        _ => "name a directory that does not exist yet, or is empty".to_owned(),
    }
}

/// What the system said, if it was the system that would not lay it out.
fn tree_trouble(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

/// What `verify` takes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WantsVerify {
    r#ref: String,
}

async fn verify(State(api): State<Api>, bytes: Bytes) -> Answer {
    let WantsVerify { r#ref } = body(&bytes)?;
    let known = resolve(&api, &r#ref).await?;
    let found = api.data.find(known.id).await.ok_or_else(|| super::not_for_us(&r#ref))?;
    let permit = stream_permit(&api)?;
    let (sender, progress) = watch::channel(0u64);
    let total = known.bytes;
    let work = {
        let api = api.clone();
        async move {
            let store = api.data.store.clone();
            let check = move || {
                let show = |bytes: u64| {
                    sender.send_replace(bytes);
                };
                store.verify(found.manifest, clock::now(), show)
            };
            let checked = tokio::task::spawn_blocking(check).await.map_err(|_| not_now())?;
            let checked = checked.map_err(|error| match error {
                mesh_storage::store::StoreError::NoManifest(_) => Problem::not_found(
                    format!("{} is not on this node", known.name),
                    "only what is here can be read again",
                    "mesh data show tells who holds it; mesh data pull brings it here",
                ),
                error => super::failed(&error),
            })?;
            let loaded = api.data.loaded(&found).await.map_err(|error| unpulled(&error))?;
            let damaged: Vec<Value> = checked
                .damaged
                .iter()
                .flat_map(|damage| {
                    paths(&loaded, damage.object)
                        .into_iter()
                        .map(|path| json!({ "path": path, "object": damage.object }))
                })
                .collect();
            let mut repaired = false;
            if !checked.damaged.is_empty() {
                // What was bad is out of the way: the others have it.
                repaired = api.data.bring(&found, How::default(), |_| {}).await.is_ok()
                    && api.data.is_here(&found).await;
                if !repaired {
                    api.data.say_lost(found.version).await;
                }
            }
            Ok(json!({
                "name": known.name.as_str(), "version": known.number,
                "checked_bytes": checked.bytes, "damaged": damaged, "repaired": repaired,
            }))
        }
    };
    let line = move |bytes: &u64| json!({ "phase": "checking", "bytes": bytes, "total_bytes": total, "peers": 0 });
    Ok(lines(api, permit, progress, line, work))
}

/// The files that lie in an object, or the first few of them.
fn paths(
    loaded: &mesh_storage::store::Loaded,
    object: mesh_consensus::id::ObjectId,
) -> Vec<String> {
    const MOST: usize = 20;
    let place = loaded.objects().iter().position(|id| *id == object);
    let lies = |entry: &&mesh_storage::manifest::Entry| match entry.kind {
        mesh_storage::manifest::Kind::File { object, .. } => Some(object as usize) == place,
        _ => false,
    };
    loaded
        .manifest()
        .entries
        .iter()
        .filter(lies)
        .take(MOST)
        .map(|entry| entry.path.clone())
        .collect()
}

/// Runs `work`, and tells how far it is until it is over. Dropped with the connection.
pub(in crate::api) fn lines<P: Clone + Send + Sync + 'static>(
    api: Api,
    permit: tokio::sync::OwnedSemaphorePermit,
    progress: watch::Receiver<P>,
    line: impl Fn(&P) -> Value + Send + 'static,
    work: impl Future<Output = Result<Value, Problem>> + Send + 'static,
) -> Response {
    let (sender, receiver) = mpsc::channel::<Bytes>(MAX_LINES);
    tokio::spawn(async move {
        let _permit = permit;
        let mut work = std::pin::pin!(work);
        let mut ticks = interval(TELL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let last = loop {
            tokio::select! {
                done = &mut work => break done,
                () = api.stop.cancelled() => break Err(not_now()),
                () = sender.closed() => return,
                _ = ticks.tick() => {
                    let mut now = line(&progress.borrow().clone());
                    now["schema"] = json!(SCHEMA);
                    now["kind"] = json!("progress");
                    if sender.send(text(&now)).await.is_err() {
                        return;
                    }
                }
            }
        };
        let last = match last {
            Ok(item) => {
                let mut done = framed(&api.pulse(), "item", item);
                done["kind"] = json!("done");
                done
            }
            Err(problem) => {
                let mut error = problem.json();
                error["kind"] = json!("error");
                error
            }
        };
        // Whoever reads may have gone.
        let _ = sender.send(text(&last)).await;
    });
    let stream = futures::stream::unfold(receiver, |mut receiver| async {
        let line = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(line), receiver))
    });
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response()
}

fn text(line: &Value) -> Bytes {
    Bytes::from(format!("{line}\n"))
}

/// A path means something on this machine alone.
pub(in crate::api) fn check_local(local: OverSocket) -> Result<(), Problem> {
    match local {
        OverSocket(true) => Ok(()),
        OverSocket(false) => Err(Problem::forbidden(
            StatusCode::FORBIDDEN,
            "files of the node's machine are not read or written for somebody elsewhere",
            "a path was given over TCP",
            "run mesh data on the node's own machine",
        )),
    }
}

pub(in crate::api) fn check_path(what: &str, path: &Path) -> Result<(), Problem> {
    if path.is_absolute() {
        return Ok(());
    }
    let cause = format!("{what} has to begin with /");
    Err(Problem::bad(
        "the node does not know from where this path goes",
        cause,
        "give the whole path",
    ))
}

/// Refuses the node's own directory, and what is in it: its keys are nobody's data, and its store nobody's to write. Links
/// that lead there from within what is pushed are found on the way: see [`Apart`].
pub(in crate::api) fn check_apart(api: &Api, path: &Path, pushes: bool) -> Result<(), Problem> {
    let leads = if pushes { path.canonicalize().ok() } else { leads_to(path) };
    let cause = match (api.dir.path().canonicalize(), leads) {
        (Ok(own), Some(real)) if real == own => {
            "it is the node's own directory, with its keys and its store"
        }
        (Ok(own), Some(real)) if real.starts_with(&own) => {
            "it is in the node's own directory, with its keys and its store"
        }
        (Ok(own), Some(real)) if pushes && own.starts_with(&real) => {
            "the node's own directory is in it, with its keys and its store"
        }
        (Ok(_), Some(_)) => return Ok(()),
        // Whoever reads it says that it is not there.
        (Ok(_), None) if pushes => return Ok(()),
        _ => "it cannot be told whether it is in the node's own directory",
    };
    let done = if pushes { "pushed" } else { "pulled into" };
    let hint = format!("name a directory apart from {}", api.dir.path().display());
    Err(Problem::refused(format!("{} cannot be {done}", path.display()), cause, hint))
}

/// Where a path leads that need not be there yet: where the last part of it is that is there. `None` if it goes back
/// after that, since nobody knows from where.
fn leads_to(path: &Path) -> Option<PathBuf> {
    let (there, real) =
        path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)))?;
    let mut rest = path.strip_prefix(there).ok()?.components();
    rest.all(|part| part != Component::ParentDir).then_some(real)
}

pub(in crate::api) fn unpushed(api: &Api, error: PushError) -> Problem {
    match error {
        PushError::Write(error) => unwritten(api, error),
        PushError::NotNow | PushError::Interrupted => not_now(),
        PushError::NoSecret => Problem::unavailable(
            "nothing can be kept private here yet",
            error.to_string(),
            "wait until another node of the party is there to hand it over",
        ),
        PushError::Race(_) => {
            Problem::refused("the version was not made", error.to_string(), "the same again")
        }
        PushError::Import(ImportError::Apart { path }) => Problem::refused(
            format!("{} cannot be pushed", path.display()),
            "it is, or leads to, what is in the node's own directory, with its keys and its store",
            "take it out of what is pushed",
        ),
        PushError::Import(error) => Problem::refused(
            "it was not pushed",
            chain(&error),
            "mend what the cause says, then the same again: what was stored stays",
        ),
    }
}

/// As [`unpulled`]. If nobody has it since files of this node have changed that it was served from, it says so.
async fn unpulled_here(api: &Api, found: &Found, error: &PullError) -> Problem {
    let changed = match error {
        PullError::Nobody { .. } => api.data.changed_files(found.manifest).await,
        _ => Vec::new(),
    };
    let Some(changed) = changed_words(&changed) else { return unpulled(error) };
    let hint = "put it back as it was; or push again what is there now, as a new version";
    Problem::timeout("it could not be brought here", format!("{changed}, and {error}"), hint)
}

/// `/nas/a.bin changed since it was pushed in place`; `None` if nothing did.
fn changed_words(changed: &[PathBuf]) -> Option<String> {
    let first = changed.first()?.display();
    Some(match changed.len() - 1 {
        0 => format!("{first} changed since it was pushed in place"),
        1 => format!("{first} and 1 other file changed since they were pushed in place"),
        more => format!("{first} and {more} other files changed since they were pushed in place"),
    })
}

fn unpulled(error: &PullError) -> Problem {
    let hint = match error {
        PullError::Full => {
            "make room (mesh data du shows what is here), then the same again goes on"
        }
        PullError::NoRoom { .. } => {
            "free some: mesh data du, mesh data rm; or run a node whose --dir is on a larger disk"
        }
        PullError::Nobody { .. } => {
            "mesh data show tells who holds it; start those nodes, then the same again"
        }
        PullError::Store(_) => "mesh doctor",
        PullError::Stopping => "the same again",
    };
    let (message, cause) = ("it could not be brought here", error.to_string());
    match error {
        // Nobody gave a sign for as long as was to be waited.
        PullError::Nobody { .. } => Problem::timeout(message, cause, hint),
        // The same again comes to the same, until somebody has done something about it.
        PullError::Full | PullError::NoRoom { .. } | PullError::Store(_) => {
            Problem::refused(message, cause, hint)
        }
        PullError::Stopping => Problem::unavailable(message, cause, hint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_refuses_a_pull_and_a_node_that_stops_cannot_answer() {
        let code = |error: PullError| unpulled(&error).json()["error"]["code"].clone();
        assert_eq!(code(PullError::Full), "refused");
        assert_eq!(code(PullError::NoRoom { needed: 2, free: 1 }), "refused");
        assert_eq!(code(PullError::Store("it is damaged".into())), "refused");
        assert_eq!(code(PullError::Nobody { missing: 1 }), "timeout");
        assert_eq!(code(PullError::Stopping), "unavailable");
    }

    #[test]
    fn what_to_do_about_a_directory_depends_on_what_is_wrong_with_it() {
        let hint = |trouble, dir: &str| unlaid_hint(trouble, Path::new(dir));
        let missing = hint(Some(io::ErrorKind::NotFound), "/no/such/place");
        assert!(missing.ends_with("mkdir -p /no/such"), "{missing}");
        assert!(hint(None, "/tmp").contains("is empty"));
        assert!(hint(Some(io::ErrorKind::StorageFull), "/no/such/place").contains("make room"));
    }

    #[test]
    fn a_file_that_changed_at_the_source_is_named() {
        let told = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            changed_words(&paths)
        };
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["/a"]).as_deref(), Some("/a changed since it was pushed in place"));
        let some = told(&["/a", "/b", "/c"]);
        let want = "/a and 2 other files changed since they were pushed in place";
        assert_eq!(some.as_deref(), Some(want));
    }
}
