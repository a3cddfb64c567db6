//! Brings what an attempt needs, and lays it out in its directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mesh_consensus::id::VersionId;

use super::Key;
use super::agent::Mine;
use crate::data::catalogue::ResolveError;
use crate::data::pull::{How, PullError};
use crate::data::{Found, LayOutError};
use crate::executor::docker::image::Pulled;
use crate::handle::Handle;
use crate::job::{Image, Source};
use crate::state::data::DataRef;
use crate::state::jobs::{Exit, note};

/// Without anything that comes for this long, the node gives up: another one may have better luck.
const PATIENCE: Duration = Duration::from_secs(120);

/// The part of an attempt's directory that the task sees.
#[derive(Debug, Clone)]
pub(super) struct Rooms {
    /// Where it starts.
    pub(super) home: PathBuf,
    /// Its data, one directory for each.
    pub(super) data: PathBuf,
    /// For what nobody needs.
    pub(super) tmp: PathBuf,
}

impl Rooms {
    pub(super) fn of(dir: &Path) -> Self {
        let task = dir.join("task");
        Self { home: task.join("home"), data: task.join("data"), tmp: dir.join("tmp") }
    }
}

/// Whether there is anything to bring: most small jobs need nothing, and should not wait for word of it.
pub(super) fn is_needed(mine: &Mine) -> bool {
    let spec = &mine.spec;
    let image = spec.group_of(mine.key.task).and_then(|(group, _)| group.image.as_ref());
    spec.code.is_some() || !spec.data.is_empty() || mine.checkpoint.is_some() || image.is_some()
}

/// Makes the directories, and fills them.
pub(super) async fn fetch(handle: &Handle, mine: &Mine, rooms: &Rooms) -> Result<(), Exit> {
    for dir in [&rooms.home, &rooms.data, &rooms.tmp] {
        tokio::fs::create_dir_all(dir).await.map_err(|error| unable("its directory", &error))?;
    }
    let say = |text: String| handle.work.update(mine.key, |here| here.note = text);
    if let Some(code) = mine.spec.code {
        say("fetching its code".into());
        lay_out(handle, code, &rooms.home, true).await.map_err(|why| why.of("its code"))?;
    }
    for (name, mount) in &mine.spec.data {
        let what = mount.shown.clone().unwrap_or_else(|| format!("its data {name}"));
        say(format!("fetching {what}"));
        let to = rooms.data.join(name.as_str());
        let version = match &mount.what {
            Source::Version(version) => *version,
            Source::Each(text) => own(handle, text).await?,
        };
        lay_out(handle, version, &to, false).await.map_err(|why| why.of(&what))?;
    }
    if let (Some(kept), Some(checkpoint)) = (mine.checkpoint, &mine.spec.checkpoint) {
        say("fetching its checkpoint".into());
        let to = rooms.home.join(&checkpoint.path);
        // What the code has there gives way to what the last attempt came to.
        let _ = tokio::fs::remove_dir_all(&to).await;
        lay_out(handle, kept, &to, true).await.map_err(|why| why.of("its checkpoint"))?;
    }
    say(String::new());
    Ok(())
}

/// The version that this node's party calls so. If there is none, it may be pushed yet.
async fn own(handle: &Handle, text: &str) -> Result<VersionId, Exit> {
    let wanted = text.parse::<DataRef>().ok().filter(|wanted| wanted.party.is_none());
    let wanted = wanted.ok_or_else(|| {
        Exit::Cannot(note(&format!("{text} is no name of each party's own data")))
    })?;
    let mut found = handle.data.resolve(&wanted).await;
    if matches!(found, Err(ResolveError::NoData(_))) && handle.barrier().await.is_ok() {
        // It may have been pushed elsewhere a moment ago.
        found = handle.data.resolve(&wanted).await;
    }
    found.map(|known| known.id).map_err(|error| {
        Exit::Unable(note(&match error {
            ResolveError::NoData(wanted) => format!("the party of this node has no data {wanted}"),
            error => error.to_string(),
        }))
    })
}

/// The image under the name by which this node's Docker knows it, brought here if it was pushed into the mesh.
pub(super) async fn image(handle: &Handle, key: Key, image: &Image) -> Result<String, Exit> {
    let docker = handle
        .executor
        .docker()
        .await
        .ok_or_else(|| Exit::Unable(note("this node has no Docker that it may use")))?;
    match image {
        Image::Named(name) => {
            if matches!(docker.image(name).await, Ok(Some(_))) {
                return Ok(name.clone());
            }
            let say = |pulled: Pulled| {
                let text = format!("fetching the image {name}: {} MiB", pulled.bytes >> 20);
                handle.work.update(key, |here| here.note = text);
            };
            docker.pull(name, say).await.map_err(|error| {
                Exit::Cannot(note(&format!("no image {name}: {}", crate::data::chain(&error))))
            })?;
            Ok(name.clone())
        }
        Image::Pushed { name, version } => {
            super::image::load(handle, &docker, name, *version).await
        }
    }
}

/// Why something could not be brought.
pub(super) enum Missing {
    /// It is not there any more, or not for this node's party.
    Gone,
    /// Not now, or not here.
    Pull(PullError),
    /// The disk.
    Tree(String),
}

impl Missing {
    pub(super) fn of(self, what: &str) -> Exit {
        match self {
            Missing::Gone => Exit::Cannot(note(&format!("{what} is not in the mesh any more"))),
            Missing::Pull(error) => Exit::Unable(note(&format!("{what}: {error}"))),
            Missing::Tree(error) => Exit::Unable(note(&format!("{what}: {error}"))),
        }
    }
}

/// Brings a version here.
pub(super) async fn bring(handle: &Handle, version: VersionId) -> Result<Found, Missing> {
    let found = handle.data.find(version).await.ok_or(Missing::Gone)?;
    if !handle.data.is_here(&found).await {
        let how = How { wait: PATIENCE, ..How::default() };
        handle.data.bring(&found, how, |_| {}).await.map_err(Missing::Pull)?;
    }
    Ok(found)
}

/// Brings a version here and makes a directory of it: of links that nobody can write through, or of copies.
pub(super) async fn lay_out(
    handle: &Handle,
    version: VersionId,
    to: &Path,
    writable: bool,
) -> Result<(), Missing> {
    let found = bring(handle, version).await?;
    let cancel = Arc::new(AtomicBool::new(false));
    let _cancel = crate::data::push::Cancel(cancel.clone());
    let how = How { wait: PATIENCE, ..How::default() };
    let laid = handle.data.lay_out(&found, to.to_path_buf(), writable, how, cancel, |_| {}).await;
    match laid {
        Ok(_) => Ok(()),
        Err(LayOutError::Pull(error)) => Err(Missing::Pull(error)),
        Err(LayOutError::Tree(error)) => Err(Missing::Tree(error.to_string())),
    }
}

fn unable(what: &str, error: &dyn std::error::Error) -> Exit {
    Exit::Unable(note(&format!("{what}: {error}")))
}
