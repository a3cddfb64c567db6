//! Looks what the state gives to this node, and sees to it that just that runs here.
//!
//! On a start, nothing that ran before is touched until this node knows that it is up to date: a watcher's state on
//! disk may be a minute old, and what was given to it since is not in there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Gang, Key, attempt};
use crate::handle::Handle;
use crate::job::{Allotment, JobSpec};
use crate::state::State;
use crate::state::jobs::{Ending, Task};

/// How often a node looks, when nothing changes.
const LOOK: Duration = Duration::from_secs(10);
/// Who is up to date to within this may end what is nobody's.
const FRESH: Duration = Duration::from_secs(2);
/// How often the directories of attempts that nobody asks for any more are looked for.
const TIDY: Duration = Duration::from_secs(60);

/// What was given to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mine {
    pub(crate) key: Key,
    pub(crate) spec: Arc<JobSpec>,
    pub(crate) party: PartyId,
    /// How many tasks the job has.
    pub(crate) tasks: u32,
    /// Which attempt, from 1 on.
    pub(crate) attempt: u32,
    pub(crate) allotment: Allotment,
    pub(crate) checkpoint: Option<VersionId>,
    pub(crate) told: Told,
}

/// What of it may change while it is here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Told {
    /// It is not this node's any more.
    pub(crate) gone: bool,
    /// It shall end.
    pub(crate) ending: Option<Ending>,
    /// Where the tasks of its gang are. Empty if it is none.
    pub(crate) gang: Gang,
}

/// Runs for as long as the node does.
pub async fn run(handle: Handle) {
    while handle.barrier().await.is_err() {
        tokio::select! {
            () = handle.stop.cancelled() => return,
            () = tokio::time::sleep(FRESH) => {}
        }
    }
    let mut changed = handle.shown.jobs.clone();
    let mut orders: BTreeMap<Key, watch::Sender<Told>> = BTreeMap::new();
    let mut attempts: JoinSet<Key> = JoinSet::new();
    let mut tidied = tokio::time::Instant::now();
    let mut first = true;
    loop {
        changed.borrow_and_update();
        let me = handle.whoami.node;
        if let Ok(mine) = handle.look(move |see| given_to(see.replica.machine(), me)).await {
            let keys: BTreeSet<Key> = mine.iter().map(|one| one.key).collect();
            for one in mine {
                match orders.get(&one.key) {
                    Some(sender) => {
                        sender.send_if_modified(|told| {
                            let news = *told != one.told;
                            told.clone_from(&one.told);
                            news
                        });
                    }
                    None => {
                        let (sender, told) = watch::channel(one.told.clone());
                        let key = one.key;
                        orders.insert(key, sender);
                        let handle = handle.clone();
                        attempts.spawn(async move {
                            attempt::run(&handle, one, told).await;
                            key
                        });
                    }
                }
            }
            for (key, sender) in &orders {
                if !keys.contains(key) {
                    sender.send_if_modified(|told| !std::mem::replace(&mut told.gone, true));
                }
            }
            if (first || tidied.elapsed() > TIDY) && handle.shown.is_fresh(FRESH) {
                (first, tidied) = (false, tokio::time::Instant::now());
                tidy(&handle, &orders).await;
            }
        }
        tokio::select! {
            () = handle.stop.cancelled() => break,
            Some(ended) = attempts.join_next() => {
                if let Ok(key) = ended {
                    orders.remove(&key);
                }
            }
            _ = changed.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    // What runs goes on without this process; whoever comes next finds it again.
    attempts.abort_all();
}

/// What the state gives to a node.
fn given_to(state: &State, me: NodeId) -> Vec<Mine> {
    let given = state.given_to(me);
    given
        .filter_map(|(id, number, given)| {
            let job = state.job(id)?;
            let task = job.tasks.get(number as usize)?;
            // One that is done already was ready once, and this one may just be about to see it.
            let place = |task: &Task| match (task.given(), task.end()) {
                (Some(given), _) => Some((given.node, given.endpoint)),
                (None, Some(end)) => Some((end.node?, end.endpoint)),
                (None, None) => None,
            };
            let gang = match job.spec.gang && job.tasks.len() > 1 {
                // If one of them has no place, the gang is about to start again.
                true => job.tasks.iter().map(place).collect::<Option<Gang>>().unwrap_or_default(),
                false => Gang::new(),
            };
            Some(Mine {
                key: Key { job: id, task: number, fence: given.at.index },
                spec: job.spec.clone(),
                party: job.party,
                tasks: job.tasks.len() as u32,
                attempt: task.attempts,
                allotment: given.allotment.clone(),
                checkpoint: task.checkpoint,
                told: Told { gone: false, ending: given.ending, gang },
            })
        })
        .collect()
}

/// Ends what runs here and is nobody's, and drops what was left by jobs that are not kept any more.
async fn tidy(handle: &Handle, orders: &BTreeMap<Key, watch::Sender<Told>>) {
    let left: Vec<Key> =
        handle.work.on_disk().into_iter().filter(|key| !orders.contains_key(key)).collect();
    if left.is_empty() {
        return;
    }
    let jobs: BTreeSet<JobId> = left.iter().map(|key| key.job).collect();
    let known = handle.look(move |see| {
        let state = see.replica.machine();
        jobs.into_iter().filter(|job| state.job(*job).is_some()).collect::<BTreeSet<JobId>>()
    });
    let Ok(known) = known.await else { return };
    for key in left {
        let dir = handle.work.dir(key);
        match handle.executor.attach(&dir).await {
            Ok(Some(attempt)) if attempt.ended().is_none() => {
                tracing::info!(%key, "an attempt that is not this node's any more is killed");
                let _ = attempt.kill().await;
                attempt.wait().await;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%key, %error, "an old attempt could not be looked at"),
        }
        attempt::clear(&dir).await;
        if !known.contains(&key.job) {
            let _ = tokio::fs::remove_dir_all(&dir).await;
        }
    }
}
