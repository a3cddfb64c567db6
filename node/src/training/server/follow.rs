//! Follows the state: which shards are this node's, and what it says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId};
use tokio::time::sleep;
use tracing::Instrument as _;

use super::held::Seen;
use super::primary;
use super::shard::Settings;
use crate::handle::Handle;
use crate::job::training::Training as Asked;
use crate::state::State;
use crate::state::jobs::Job;
use crate::training::service::lock;

/// How often a node looks, when nothing changes.
const LOOK: Duration = Duration::from_secs(5);

/// What the state says of one shard.
pub(super) struct Mine {
    pub(super) laid: u64,
    pub(super) settings: Settings,
    pub(super) seen: Seen,
    /// How long its values are.
    pub(super) bytes: u64,
}

impl Mine {
    /// As it is now. `None` if there is none.
    pub(super) fn of(state: &State, id: JobId, shard: u32) -> Option<Self> {
        let job = state.job(id)?;
        let Some(Asked::Server(asked)) = &job.spec.training else { return None };
        let laid = state.laid(id)?;
        let model = job.course.as_ref()?.model.as_ref()?;
        let record = *laid.shards.get(shard as usize)?;
        let workers = u32::try_from(job.tasks.len()).unwrap_or(u32::MAX);
        Some(Self {
            laid: laid.at,
            settings: Settings::of(asked, workers),
            bytes: model.weights.get(shard as usize)?.bytes,
            seen: Seen {
                record,
                model: Arc::new(model.clone()),
                attempts: Arc::new(attempts(job)),
                ended: Arc::new(ended(job)),
            },
        })
    }
}

/// Attempts that count and are to go on.
fn attempts(job: &Job) -> BTreeMap<u32, (u64, NodeId)> {
    let tasks = (0..).zip(&job.tasks);
    let given = tasks.filter_map(|(number, task)| {
        let given = task.given().filter(|given| given.ending.is_none())?;
        Some((number, (task.fence, given.node)))
    });
    given.collect()
}

/// Tasks that ended for good.
fn ended(job: &Job) -> BTreeSet<u32> {
    let tasks = (0..).zip(&job.tasks).filter(|(_, task)| task.end().is_some());
    tasks.map(|(number, _)| number).collect()
}

/// Runs for as long as the node does.
pub async fn run(handle: Handle) {
    let me = handle.whoami.node;
    let mut changed = handle.shown.jobs.clone();
    loop {
        changed.borrow_and_update();
        let look = handle.look(move |see| {
            let state = see.replica.machine();
            let mut mine = Vec::new();
            for (id, _) in state.live_jobs() {
                let Some(laid) = state.laid(id) else { continue };
                for (number, shard) in (0..).zip(&laid.shards) {
                    if shard.primary == me || shard.backup == Some(me) {
                        mine.extend(Mine::of(state, id, number).map(|mine| ((id, number), mine)));
                    }
                }
            }
            (mine, see.replica.index())
        });
        if let Ok((mine, index)) = look.await {
            let keys = mine.iter().map(|(key, _)| *key).collect();
            handle.training.servers.retain(&keys, index);
            for ((job, shard), Mine { laid, settings, seen, .. }) in mine {
                let held = handle.training.servers.obtain(job, shard, laid, settings, seen.clone());
                if held.laid != laid {
                    continue;
                }
                held.seen.send_if_modified(|known| {
                    let is_news = known.record != seen.record
                        || known.attempts != seen.attempts
                        || known.ended != seen.ended
                        || known.model.round != seen.model.round;
                    if is_news && known.record.epoch <= seen.record.epoch {
                        *known = seen;
                        return true;
                    }
                    false
                });
                let mut acting = lock(&held.acting);
                if acting.is_none() {
                    let span = tracing::info_span!("shard", job = %job.short(), shard);
                    let act = primary::act(handle.training.clone(), held.clone());
                    *acting = Some(tokio::spawn(act.instrument(span)).abort_handle());
                }
            }
        }
        tokio::select! {
            () = handle.stop.cancelled() => return,
            changed = changed.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep(LOOK) => {}
        }
    }
}
