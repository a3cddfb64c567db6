//! How an attempt's worker and this node come together: before it starts, when it is found again, and what its end means.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;

use super::agent::Mine;
use super::desk::{Desk, Wanted};
use super::sdk;
use crate::handle::Handle;
use crate::job::training::Training;
use crate::state::jobs::{Exit, note};
use crate::training::metrics::Metrics;
use crate::training::participant::{Over, Participant};
use crate::training::server::worker::ServerWorker;
use crate::training::socket::{About, Part, Worker};

/// Makes the place where they meet, and lays out what the task is given of mesh itself. `in_place` if the task sees the host's
/// paths.
pub(super) async fn prepare(
    handle: &Handle,
    mine: &Mine,
    dir: &Path,
    in_place: bool,
) -> Result<(Desk, PathBuf), Exit> {
    let job = mine.key.job;
    let size = handle.look(move |see| {
        let model = see.replica.machine().course(job)?.model.as_ref()?;
        Some(model.weights.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.bytes)))
    });
    let wanted = Wanted {
        key: mine.key,
        dir: dir.to_path_buf(),
        root: handle.dir.path().to_path_buf(),
        trains: mine.spec.training.is_some(),
        model_bytes: size.await.ok().flatten().unwrap_or(0),
        in_place,
    };
    let made = tokio::task::spawn_blocking(move || {
        let python = sdk::lay(&wanted.root)?;
        Ok::<_, io::Error>((Desk::make(&wanted)?, python))
    });
    let made = made.await.map_err(|error| Exit::Unable(note(&error.to_string())))?;
    made.map_err(|error| {
        Exit::Unable(note(&format!("there is no place for it to meet this node: {error}")))
    })
}

/// Opens the socket of an attempt that was found again. Without it, the attempt goes on all the same.
pub(super) fn again(mine: &Mine, dir: &Path) -> Option<(Desk, UnixListener)> {
    let desk = Desk::find(dir)?;
    match desk.bind() {
        Ok(listener) => Some((desk, listener)),
        Err(error) => {
            let key = mine.key;
            tracing::warn!(%key, %error, "the socket of an attempt could not be opened again");
            None
        }
    }
}

/// What the worker of an attempt reaches.
pub(super) async fn worker(handle: &Handle, mine: &Mine, dir: &Path, desk: &Desk) -> Arc<Worker> {
    let path = dir.to_path_buf();
    let opened = tokio::task::spawn_blocking(move || Metrics::open(&path)).await;
    let metrics = Arc::new(opened.unwrap_or_else(|_| Metrics::open(dir)));
    handle.work.update(mine.key, |here| here.metrics = Some(metrics.clone()));
    let stage = desk.stage();
    let part = match (&mine.spec.training, desk.tensors()) {
        (Some(Training::Federated(federated)), Some(tensors)) => {
            let participant = Participant::new(mine.key, federated.clone(), tensors, stage);
            Some(Part::Rounds(Arc::new(participant)))
        }
        (Some(Training::Server(asked)), Some(tensors)) => {
            let (handle, asked) = (handle.clone(), asked.clone());
            let worker = ServerWorker::new(handle, mine.key, asked, tensors, stage);
            Some(Part::Steps(Arc::new(worker)))
        }
        _ => None,
    };
    let roster = handle.roster();
    let party = roster.party_of(handle.whoami.node).and_then(|party| roster.parties.get(&party));
    let about = About {
        key: mine.key,
        spec: &mine.spec,
        attempt: mine.attempt,
        party: party.map(|name| name.as_str()).unwrap_or_default(),
    };
    Arc::new(Worker::new(&about, metrics, part))
}

/// What the end of a worker means where the job trains. Once there is a verdict, it does not matter how it ended; before
/// that, one that just goes has not done what it should, however well it says it is, and is started again.
pub(super) fn trained(exit: Exit, is_asked: bool, over: Option<Over>) -> Result<(), Exit> {
    match (over, exit) {
        (Some(Over::Trained), _) => Ok(()),
        (Some(Over::Stopping), Exit::Code(0)) => Err(Exit::Stopped),
        (None, Exit::Code(0)) if !is_asked => {
            Err(Exit::Unable(note("its worker ended before training did")))
        }
        (_, exit) => Err(exit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_done_when_training_is_and_not_before() {
        let over = Some(Over::Trained);
        assert_eq!(trained(Exit::Code(0), false, over), Ok(()));
        assert_eq!(trained(Exit::Stopped, false, over), Ok(()), "it lingered");
        assert_eq!(trained(Exit::Code(1), false, over), Ok(()), "the model is there");
        assert!(matches!(trained(Exit::Code(0), false, None), Err(Exit::Unable(_))));
        assert_eq!(trained(Exit::Code(3), false, None), Err(Exit::Code(3)));
        assert_eq!(trained(Exit::Stopped, true, None), Err(Exit::Stopped), "it made room");
        let stopping = Some(Over::Stopping);
        assert_eq!(trained(Exit::Code(0), false, stopping), Err(Exit::Stopped));
        assert_eq!(trained(Exit::Stopped, true, stopping), Err(Exit::Stopped));
    }
}
