//! What was given to this node: fetched, started, watched, ended, told.
//!
//! ```text
//!  state: given to me ─► agent.rs ─► attempt.rs   one task of the runtime for each attempt
//!                                      room?      others that must make room have ended
//!                                      fetch.rs   code, data, image, the last checkpoint
//!                                      gang?      a port is told, and those of the others awaited
//!                                      executor   runs it; mesh may die meanwhile
//!                                      desk.rs    where it meets this node: training/socket.rs, training/participant.rs
//!                                      outputs    stored, copied, then told together with the end
//! ```
//!
//! An attempt has a directory of its own, named after job, task and fence; whatever is needed to find it again
//! after a restart is in there. Nothing that an attempt does counts by itself: the state decides by the fence. A
//! node that learns that an attempt is not its own any more kills it and says nothing.
//!
//! ```text
//! DIR/work/JOB-TASK-FENCE/   0700: files of the executor, see [`crate::executor::launch`]
//!                   log/     what it printed
//!                   about.json   which attempt it was, and in which image: see [`about`]
//!                   metrics.jsonl   what it measured: see [`crate::training::metrics`]
//!                   desk     where it meets this node: see `desk.rs`
//!                   task/    home/ and data/, which the task sees as /work and /data
//! ```

pub mod about;
pub mod agent;
mod attempt;
mod desk;
mod disk;
pub mod environment;
mod fetch;
pub mod image;
mod meeting;
mod outputs;
mod sdk;
pub mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_consensus::id::{JobId, NodeId};
use tokio::sync::Notify;

use crate::executor::{self, Attempt};
use crate::job::Allotment;
use crate::training::metrics::{self, Metrics, Sample};

/// Which attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Of which job.
    pub job: JobId,
    /// Which task of it.
    pub task: u32,
    /// Its fence.
    pub fence: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.job, self.task, self.fence)
    }
}

impl FromStr for Key {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(());
        let job = next()?.parse().map_err(drop)?;
        let task = next()?.parse().map_err(drop)?;
        let fence = next()?.parse().map_err(drop)?;
        let key = Self { job, task, fence };
        // Numbers have other spellings, too, and one directory has one name.
        if key.to_string() == text { Ok(key) } else { Err(()) }
    }
}

/// The attempts of this node, as the rest of the process sees them. Cheap to clone.
#[derive(Clone)]
pub struct Work(Arc<Inner>);

/// What a [`Work`] reaches.
pub struct Inner {
    /// Where attempts have their directories.
    pub root: PathBuf,
    here: Mutex<BTreeMap<Key, Here>>,
    /// Somebody has ended: there may be room.
    pub(crate) ended: Notify,
}

/// An attempt that is here.
#[derive(Clone)]
pub struct Here {
    /// What it was given.
    pub allotment: Allotment,
    /// Whether it has begun to use that.
    pub runs: bool,
    /// What runs it, once it does.
    pub attempt: Option<Attempt>,
    /// What it waits for, or is about, in words.
    pub note: String,
    /// What it measured, once it can tell: the last values and how they went.
    pub metrics: Option<Arc<Metrics>>,
}

impl std::ops::Deref for Work {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Work {
    /// Nothing is here yet.
    pub fn new(dir: &Path) -> Self {
        let root = dir.join("work");
        Self(Arc::new(Inner { root, here: Mutex::default(), ended: Notify::new() }))
    }

    /// The directory of an attempt.
    pub fn dir(&self, key: Key) -> PathBuf {
        self.root.join(key.to_string())
    }

    /// The attempts that are here.
    pub fn here(&self) -> BTreeMap<Key, Here> {
        lock(&self.0.here).clone()
    }

    /// One of them.
    pub fn get(&self, key: Key) -> Option<Here> {
        lock(&self.0.here).get(&key).cloned()
    }

    /// What an attempt measured, in order: also of one that is over. Touches the disk.
    pub fn measured(&self, key: Key) -> Vec<Sample> {
        match self.get(key).and_then(|here| here.metrics) {
            Some(metrics) => metrics.series(),
            None => metrics::read_all(&self.dir(key)),
        }
    }

    /// The latest attempt at a task that left anything here, whether it still runs or not.
    pub fn latest(&self, job: JobId, task: u32) -> Option<Key> {
        self.on_disk().into_iter().filter(|key| key.job == job && key.task == task).max()
    }

    /// All attempts that have a directory.
    pub fn on_disk(&self) -> Vec<Key> {
        let Ok(entries) = std::fs::read_dir(&self.0.root) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.parse().ok()).collect()
    }

    fn enter(&self, key: Key, allotment: Allotment) {
        let note = String::new();
        let here = Here { allotment, runs: false, attempt: None, note, metrics: None };
        lock(&self.0.here).insert(key, here);
    }

    fn update(&self, key: Key, change: impl FnOnce(&mut Here)) {
        if let Some(here) = lock(&self.0.here).get_mut(&key) {
            change(here);
        }
    }

    /// It does not use any more what it was given.
    fn let_go(&self, key: Key) {
        self.update(key, |here| here.runs = false);
        self.0.ended.notify_waiters();
    }

    fn leave(&self, key: Key) {
        lock(&self.0.here).remove(&key);
        self.0.ended.notify_waiters();
    }

    /// Lets an attempt begin to use what it was given, unless others that must end still use it.
    fn take_room(&self, key: Key, whole: &Allotment) -> bool {
        let mut all = lock(&self.0.here);
        let Some(own) = all.get(&key).map(|here| here.allotment.clone()) else { return false };
        let mut used = own.clone();
        for (_, other) in all.iter().filter(|(other, here)| **other != key && here.runs) {
            used.cpu_milli = used.cpu_milli.saturating_add(other.allotment.cpu_milli);
            used.memory_bytes = used.memory_bytes.saturating_add(other.allotment.memory_bytes);
            if own.gpus.iter().any(|gpu| other.allotment.gpus.contains(gpu)) {
                return false;
            }
        }
        // An attempt alone is never held up: the planner may know the machine better than this does.
        let alone = !all.iter().any(|(other, here)| *other != key && here.runs);
        let fits = used.cpu_milli <= whole.cpu_milli && used.memory_bytes <= whole.memory_bytes;
        if (fits || alone)
            && let Some(here) = all.get_mut(&key)
        {
            here.runs = true;
        }
        fits || alone
    }
}

/// A gang, as one of its tasks sees it: where each is, by number, once that is known.
pub(crate) type Gang = Vec<(NodeId, Option<std::net::SocketAddr>)>;

/// Ends what the node of a directory has left running, and drops what its tasks had: for whoever removes that directory. The node
/// itself must be gone. While what is returned is held, nothing of it begins again.
pub async fn end_left(dir: &Path) -> Vec<File> {
    let work = Work::new(dir);
    let mut held = Vec::new();
    for key in work.on_disk() {
        let dir = work.dir(key);
        let own = dir.clone();
        let ended = tokio::task::spawn_blocking(move || executor::end_left(&own)).await;
        held.extend(ended.ok().flatten());
        attempt::clear(&dir).await;
    }
    held
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        Key { job: JobId([n; 16]), task: 1, fence: 7 }
    }

    #[test]
    fn a_key_has_one_spelling() {
        let text = key(1).to_string();
        assert_eq!(text.parse(), Ok(key(1)));
        for bad in ["", "x", &text.replace("-1-", "-01-"), &format!("{text}-"), "../..-1-2"] {
            assert!(bad.parse::<Key>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_used_is_not_given_twice() {
        let work = Work::new(Path::new("unused"));
        let whole = Allotment { cpu_milli: 2000, memory_bytes: 100, ..Allotment::default() };
        let part = |cpu_milli, gpus: &[u8]| Allotment {
            cpu_milli,
            gpus: gpus.iter().map(|n| [*n; 16]).collect(),
            ..Allotment::default()
        };
        work.enter(key(1), part(1500, &[1]));
        work.enter(key(2), part(1000, &[]));
        work.enter(key(3), part(100, &[1]));
        assert!(work.take_room(key(1), &whole));
        assert!(!work.take_room(key(2), &whole), "too few cores");
        assert!(!work.take_room(key(3), &whole), "the same GPU");
        work.leave(key(1));
        assert!(work.take_room(key(3), &whole) && work.take_room(key(2), &whole));
    }
}
