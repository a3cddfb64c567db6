//! The end: the model that stands becomes a version of the job's party, with its curve beside it.
//!
//! ```text
//!  model.safetensors               as workers read it
//!  metrics.json                    the curve
//!  events.out.tfevents.…           the same, for TensorBoard
//! ```
//!
//! All of it can be done again: the version is known by its name and by the job in its lineage.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::rounds::{Coordinator, Stop};
use super::view::Seen;
use crate::clock;
use crate::data::chain;
use crate::data::push::{COPIES, Cancel, Progress, Wish};
use crate::handle::Handle;
use crate::state::course::{Model, Point, Verdict};
use crate::state::data::{Lineage, Note};
use crate::state::name::Name;
use crate::training::board::{self, Board};
use crate::training::pieces;
use crate::training::tensors::{self, Layout};

/// After a failure that may pass.
const AGAIN: Duration = Duration::from_secs(5);

impl Coordinator<'_> {
    /// Ends a training of which only that is missing.
    pub(super) async fn finish(&mut self, seen: &Seen) -> Result<(), Stop> {
        if !seen.own.contains(&self.handle.whoami.node) {
            return Err(Stop::LetGo);
        }
        let Some(model) = &seen.course.model else { return Err(Stop::Lost) };
        let making = Making {
            handle: self.handle,
            job: self.job,
            party: seen.party,
            name: &seen.asked.model,
            inputs: seen.asked.start.into_iter().chain(seen.code).collect(),
        };
        let made = match making.version(model).await {
            Ok(made) => made,
            Err(why) => {
                tracing::warn!(why, "the model could not be made a version, and is tried again");
                sleep(AGAIN).await;
                return Err(Stop::Later(why));
            }
        };
        let verdict = match seen.is_complete() {
            true => Verdict::Done { model: made },
            false => Verdict::Spent { model: made },
        };
        self.end(verdict).await
    }
}

/// The last model of a training on its way to a version.
pub(in crate::training) struct Making<'a> {
    pub(in crate::training) handle: &'a Handle,
    pub(in crate::training) job: JobId,
    /// Whose it will be.
    pub(in crate::training) party: PartyId,
    /// What it will be called.
    pub(in crate::training) name: &'a Name,
    /// What it was made from.
    pub(in crate::training) inputs: Vec<VersionId>,
}

impl Making<'_> {
    /// The version that the model is, made if it is not there yet.
    pub(in crate::training) async fn version(&self, model: &Model) -> Result<VersionId, String> {
        if let Some(made) = self.made_before().await? {
            return Ok(made);
        }
        let dir = self.handle.dir.path().join("models").join(self.job.to_string());
        // Left by an earlier try.
        let _ = tokio::fs::remove_dir_all(&dir).await;
        let pushed = async {
            self.lay_out(model, &dir).await?;
            self.push(&dir).await
        };
        let pushed = pushed.await;
        let _ = tokio::fs::remove_dir_all(&dir).await;
        pushed
    }

    /// A coordinator before this one may have come so far; then only copies may be missing.
    async fn made_before(&self) -> Result<Option<VersionId>, String> {
        let data = &self.handle.data;
        let all = data.catalogue().await.ok_or("this node does not know the mesh yet")?;
        let made = all.into_iter().find(|known| {
            known.party == self.party
                && known.name == *self.name
                && known.lineage.job() == Some(self.job)
        });
        let Some(known) = made else { return Ok(None) };
        let (progress, _) = watch::channel(Progress::default());
        data.wait_for_copies(&known, &progress).await;
        Ok(Some(known.id))
    }

    /// Writes the files.
    async fn lay_out(&self, model: &Model, dir: &Path) -> Result<(), String> {
        let job = self.job;
        let look = self
            .handle
            .look(move |see| see.replica.machine().course(job).map(|course| course.curve.clone()));
        let curve = look.await.map_err(|error| error.to_string())?.unwrap_or_default();
        let holders: Vec<NodeId> = model.holders.iter().copied().collect();
        let fetch = |piece| pieces::fetch(self.handle, job, piece, &holders);
        let header = fetch(model.layout).await.map_err(|error| chain(&error))?;
        let layout = Layout::parse(&header).map_err(|error| chain(&error))?;
        let mut values = Vec::new();
        for piece in &model.weights {
            let bytes = fetch(*piece).await.map_err(|error| chain(&error))?;
            let shard = tensors::values_of(&bytes).ok_or("a shard of the model is cut off")?;
            values.extend(shard);
        }
        let (dir, name) = (dir.to_path_buf(), self.name.clone());
        let write = move || write(&dir, &layout, &values, &curve, job, &name);
        let written = spawn_blocking(write).await.map_err(|error| error.to_string())?;
        written.map_err(|error| error.to_string())
    }

    /// Makes a version of the files, and waits for its copies.
    async fn push(&self, dir: &Path) -> Result<VersionId, String> {
        let wish = Wish {
            path: dir.to_path_buf(),
            name: self.name.clone(),
            visibility: None,
            copies: COPIES,
            in_place: false,
            follow: false,
            // It lies in the node's own directory itself.
            apart: None,
            no_wait: false,
            lineage: Lineage::new(self.inputs.clone(), Some(self.job)).unwrap_or_default(),
            note: Note::default(),
        };
        let cancel = Arc::new(AtomicBool::new(false));
        let _cancel = Cancel(cancel.clone());
        let (progress, _) = watch::channel(Progress::default());
        let pushed = self.handle.data.push(wish, &progress, cancel).await;
        pushed.map(|pushed| pushed.known.id).map_err(|error| chain(&error))
    }
}

/// Writes a model and its curve into a directory, which is made.
fn write(
    dir: &Path,
    layout: &Layout,
    values: &[f32],
    curve: &[Point],
    job: JobId,
    name: &Name,
) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    tensors::write(&dir.join("model.safetensors"), layout, values)?;
    let points = curve.iter().map(|point| {
        let metrics = point.metrics.iter().map(|(name, value)| (name.to_string(), value.get()));
        let metrics: std::collections::BTreeMap<String, f64> = metrics.collect();
        json!({ "round": point.round, "at": clock::date(point.at), "metrics": metrics })
    });
    let points: Vec<serde_json::Value> = points.collect();
    let curve_json = json!({ "schema": 1, "job": job.to_string(), "curve": points });
    std::fs::write(dir.join("metrics.json"), format!("{curve_json:#}\n"))?;
    let (path, bytes) = events(dir, curve, name);
    std::fs::write(path, bytes)
}

/// The curve as TensorBoard reads it.
fn events(dir: &Path, curve: &[Point], name: &Name) -> (PathBuf, Vec<u8>) {
    let seconds = |point: &Point| point.at.0 as f64 / 1000.0;
    let begun = curve.first();
    let mut board = Board::new(begun.map_or(0.0, seconds));
    for point in curve {
        let values = point.metrics.iter().map(|(name, value)| (name.to_string(), value.get()));
        let values: Vec<(String, f32)> = values.map(|(name, value)| (name, value as f32)).collect();
        board.push(seconds(point), i64::from(point.round), &values);
    }
    let file = board::file_name(begun.map_or(0, |point| point.at.0 / 1000), name);
    (dir.join(file), board.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mesh_consensus::time::Time;

    use super::*;
    use crate::job::training::Real;
    use crate::training::tensors::{Kind, MAX_VALUES, Tensor};

    #[test]
    fn a_model_its_curve_and_its_events_are_written() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("out");
        let tensor = Tensor { name: "bias".into(), kind: Kind::F32, shape: vec![2] };
        let layout = Layout { tensors: vec![tensor] };
        let metrics = BTreeMap::from([("loss".parse().unwrap(), Real::new(0.5).unwrap())]);
        let curve = [Point { round: 3, at: Time(90_500), metrics }];
        let name = "digits".parse().unwrap();
        write(&dir, &layout, &[1.0, -2.0], &curve, JobId([1; 16]), &name).unwrap();
        let read = tensors::read(&dir.join("model.safetensors"), MAX_VALUES).unwrap();
        assert_eq!(read, (layout, vec![1.0, -2.0]));
        let text = std::fs::read_to_string(dir.join("metrics.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["curve"][0]["round"], 3);
        assert_eq!(json["curve"][0]["metrics"]["loss"], 0.5);
        let events = std::fs::read(dir.join(board::file_name(90, &name))).unwrap();
        let mut wanted = board::header_record(90.5);
        wanted.extend(board::scalar_record(90.5, 3, &[("loss".to_owned(), 0.5)]));
        assert_eq!(events, wanted);
    }
}
