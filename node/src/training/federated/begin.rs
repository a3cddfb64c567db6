//! The first model, where the job brings one along: read from a version, cut, held by two, committed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mesh_consensus::id::VersionId;
use mesh_consensus::time::Time;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::model::Lying;
use super::rounds::{Coordinator, Done, Stop};
use super::view::Seen;
use crate::data::pull::How;
use crate::data::push::Cancel;
use crate::data::{Found, chain};
use crate::handle::Handle;
use crate::state::course::{CourseRound, Model, Open, Verdict};
use crate::state::jobs::note;
use crate::training::shards;
use crate::training::tensors::{self, Layout, MAX_VALUES, TensorError};

/// Without anything that comes for this long, the version is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(120);
/// After a failure that may pass.
const AGAIN: Duration = Duration::from_secs(5);
/// How deep the model's file may lie in its version.
const DEPTH: usize = 8;

/// What a model's file is called.
const SUFFIX: &str = "safetensors";

/// Why no model was read.
#[derive(Debug, thiserror::Error)]
pub(in crate::training) enum ReadError {
    #[error("there is no file *.{SUFFIX} in it")]
    None,
    #[error("there is more than one file *.{SUFFIX} in it")]
    Many,
    #[error("the directory could not be read")]
    Dir(#[source] io::Error),
    #[error("{file} is no model")]
    Tensors { file: String, source: TensorError },
}

impl Coordinator<'_> {
    /// Makes the first model of a version.
    pub(super) async fn begin(&mut self, seen: &Seen, start: VersionId) -> Result<(), Stop> {
        let Some(found) = self.handle.data.find(start).await else {
            return self.not_found(seen, start).await;
        };
        let dir = self.handle.dir.path().join("models").join(format!("{}-start", self.job));
        let read = read_start(self.handle, &found, &dir).await;
        let _ = tokio::fs::remove_dir_all(&dir).await;
        let (layout, values) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                let text = format!("the model that it starts from: {}", chain(&error));
                return self.end(Verdict::Failed(note(&text))).await;
            }
            Err(why) => {
                tracing::warn!(why, "the model to start from could not be brought here");
                sleep(AGAIN).await;
                return Err(Stop::Later(why));
            }
        };
        let (_, awake) = self.there(seen);
        let count = shards::count_for(values.len() as u64, awake.len());
        let header = [layout.header()].into_iter();
        let cut = (0..count).map(move |shard| {
            let range = shards::range(values.len() as u64, count, shard);
            tensors::bytes_of(values.get(range).unwrap_or_default())
        });
        let lying = self.put(header.chain(cut)).await?;
        let holders = self.hold(seen, &lying).await?;
        let Some((layout, weights)) = lying.split_first() else {
            return Err(Stop::Later("a model was not kept".into()));
        };
        let piece = |lying: &Lying| lying.0;
        let model = Model {
            round: 0,
            layout: piece(layout),
            weights: weights.iter().map(piece).collect(),
            optimiser: Vec::new(),
            holders,
        };
        self.commit_first(model).await
    }

    /// Commits a first model that nobody has trained. The round that makes it is opened by the same entry: nobody ever sees it.
    async fn commit_first(&mut self, model: Model) -> Result<(), Stop> {
        let seen = self.look().await?;
        let mut acts = Vec::new();
        if seen.course.open.is_none() {
            let first = Open {
                round: 0,
                selected: seen.present(),
                aggregators: vec![self.handle.whoami.node],
                since: Time(0),
                deadline_ms: None,
            };
            let round = CourseRound {
                job: self.job,
                epoch: self.epoch,
                model: None,
                counted: Vec::new(),
                metrics: Default::default(),
                open: Some(first),
            };
            acts.push(round.into());
        }
        let next = self.next(&seen, Some(&model), &[]);
        let done = Done { model: Some(model), ..Done::default() };
        acts.extend(self.go_on(&seen, done, next));
        self.write(acts).await
    }

    /// This node may not see the version yet; or never will.
    async fn not_found(&mut self, seen: &Seen, start: VersionId) -> Result<(), Stop> {
        let me = self.handle.whoami.node;
        let own = self.handle.roster().party_of(me);
        let look = self.handle.look(move |see| {
            let state = see.replica.machine();
            own.is_some_and(|own| state.may_read(start, own))
        });
        let may_read = look.await.map_err(|error| Stop::Later(error.to_string()))?;
        // Another node may be of its party.
        let is_elsewhere = !seen.own.contains(&me) && !seen.own.is_disjoint(&seen.summers);
        match (may_read, is_elsewhere) {
            (true, _) => {
                sleep(AGAIN).await;
                Err(Stop::Later("the model to start from cannot be read here yet".into()))
            }
            (false, true) => Err(Stop::LetGo),
            (false, false) => {
                let text = "the model that it starts from is gone, or not for those who sum";
                self.end(Verdict::Failed(note(text))).await
            }
        }
    }
}

/// Brings a version here and reads the model in it. The outer error may pass.
pub(in crate::training) async fn read_start(
    handle: &Handle,
    found: &Found,
    dir: &Path,
) -> Result<Result<(Layout, Vec<f32>), ReadError>, String> {
    let how = How { wait: PATIENCE, ..How::default() };
    let data = &handle.data;
    if !data.is_here(found).await {
        data.bring(found, how, |_| {}).await.map_err(|error| chain(&error))?;
    }
    // Left by an earlier try.
    let _ = tokio::fs::remove_dir_all(dir).await;
    if let Some(parent) = dir.parent() {
        tokio::fs::create_dir_all(parent).await.map_err(|error| chain(&error))?;
    }
    let cancel = Arc::new(AtomicBool::new(false));
    let _cancel = Cancel(cancel.clone());
    let laid = data.lay_out(found, dir.to_path_buf(), false, how, cancel, |_| {}).await;
    laid.map_err(|error| chain(&error))?;
    let dir = dir.to_path_buf();
    spawn_blocking(move || read(&dir)).await.map_err(|error| error.to_string())
}

/// Reads the one model in a directory.
fn read(dir: &Path) -> Result<(Layout, Vec<f32>), ReadError> {
    let mut files = Vec::new();
    find(dir, DEPTH, &mut files).map_err(ReadError::Dir)?;
    match &files[..] {
        [] => Err(ReadError::None),
        [file] => tensors::read(file, MAX_VALUES).map_err(|source| {
            let file = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            ReadError::Tensors { file, source }
        }),
        _ => Err(ReadError::Many),
    }
}

/// The models beneath a directory; no more than two are looked for.
fn find(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if files.len() > 1 {
            break;
        }
        if kind.is_dir() && depth > 0 {
            find(&path, depth - 1, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|suffix| suffix == SUFFIX) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_model_in_a_directory_is_found_and_of_two_none() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"no model").unwrap();
        };
        put("README.md");
        put("runs/metrics.json");
        assert!(matches!(read(dir.path()), Err(ReadError::None)));
        put("runs/last/model.safetensors");
        let error = read(dir.path()).unwrap_err();
        assert_eq!(error.to_string(), "model.safetensors is no model");
        put("model.safetensors");
        assert!(matches!(read(dir.path()), Err(ReadError::Many)));
    }
}
