//! The shards that this node has, as primary or as backup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mesh_consensus::id::{JobId, NodeId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::batches::Batches;
use super::shard::{Op, Outcome, Settings, Shard};
use super::wire::{Where, Who};
use crate::job::training::Real;
use crate::state::course::{Model, Piece, Times};
use crate::state::name::Name;
use crate::state::server::Shard as Record;
use crate::training::service::lock;

/// Operations that wait for a primary to take them up. Whoever brings more waits with its bytes.
pub(super) const QUEUE: usize = 32;
/// Checkpoints that are remembered; the coordinator keeps one of them, the others are let go.
const CHECKPOINTS: usize = 4;

/// All of them, by job and number.
#[derive(Default)]
pub(crate) struct Servers {
    all: Mutex<BTreeMap<(JobId, u32), Arc<Held>>>,
    /// First models that workers have told this node of, which coordinates.
    pub(super) firsts: Mutex<BTreeMap<JobId, First>>,
}

/// A first model.
#[derive(Debug, Clone)]
pub(super) struct First {
    pub(super) from: NodeId,
    pub(super) layout: Piece,
    pub(super) weights: Vec<Piece>,
}

/// One of them.
pub(super) struct Held {
    pub(super) job: JobId,
    pub(super) shard: u32,
    /// The index of the entry that laid out the shards of its job. What is here is of no use after the next.
    pub(super) laid: u64,
    pub(super) settings: Settings,
    pub(super) core: Mutex<Core>,
    /// What the state says, as far as this node follows it.
    pub(super) seen: watch::Sender<Seen>,
    /// Grows with whatever changes the shard.
    pub(super) changes: watch::Sender<u64>,
    pub(super) orders: mpsc::Sender<Order>,
    /// Taken by whoever acts for the primary.
    pub(super) inbox: Mutex<Option<mpsc::Receiver<Order>>>,
    pub(super) acting: Mutex<Option<AbortHandle>>,
    pub(super) talk: Mutex<Talk>,
}

/// The shard itself, and under which epoch it may change.
#[derive(Default)]
pub(super) struct Core {
    pub(super) epoch: u64,
    pub(super) shard: Option<Shard>,
}

/// What the state says of a shard that is here.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) record: Record,
    /// The checkpoint that it begins from.
    pub(super) model: Arc<Model>,
    /// Attempts that count, by task: their fences, and where they are.
    pub(super) attempts: Arc<BTreeMap<u32, (u64, NodeId)>>,
    /// Tasks that ended for good.
    pub(super) ended: Arc<BTreeSet<u32>>,
}

/// What need not survive: it is made anew by whoever takes over.
#[derive(Default)]
pub(super) struct Talk {
    /// Under which epoch the backup has a copy.
    pub(super) synced: Option<u64>,
    /// Since when the backup does not answer.
    pub(super) lost: Option<Instant>,
    /// When each worker was last heard.
    pub(super) heard: BTreeMap<u32, Instant>,
    /// What each worker measured last, and how long it took.
    pub(super) told: BTreeMap<u32, (BTreeMap<Name, Real>, Times)>,
    pub(super) batches: Batches,
    pub(super) checkpoints: BTreeMap<u32, (Piece, Piece)>,
}

/// Something that a primary is to do.
pub(super) struct Order {
    pub(super) op: Op,
    pub(super) bytes: Bytes,
    /// `None` for what it told itself to do.
    pub(super) reply: Option<oneshot::Sender<Outcome>>,
}

impl Servers {
    /// The one that is here.
    pub(super) fn find(&self, job: JobId, shard: u32) -> Option<Arc<Held>> {
        lock(&self.all).get(&(job, shard)).cloned()
    }

    /// The one that is here for this layout; made if it is not, in place of an older one.
    pub(super) fn obtain(
        &self,
        job: JobId,
        shard: u32,
        laid: u64,
        settings: Settings,
        seen: Seen,
    ) -> Arc<Held> {
        let mut all = lock(&self.all);
        if let Some(held) = all.get(&(job, shard)).filter(|held| held.laid >= laid) {
            return held.clone();
        }
        let (orders, inbox) = mpsc::channel(QUEUE);
        let held = Arc::new(Held {
            job,
            shard,
            laid,
            settings,
            core: Mutex::default(),
            seen: watch::Sender::new(seen),
            changes: watch::Sender::new(0),
            orders,
            inbox: Mutex::new(Some(inbox)),
            acting: Mutex::default(),
            talk: Mutex::default(),
        });
        if let Some(old) = all.insert((job, shard), held.clone()) {
            old.stop();
        }
        held
    }

    /// Lets go of all but these, as the state had it at an index; and of nothing that came later.
    pub(super) fn retain(&self, mine: &BTreeSet<(JobId, u32)>, index: u64) {
        lock(&self.all).retain(|key, held| {
            let is_later = held.record().epoch > index || lock(&held.core).epoch > index;
            let stays = mine.contains(key) || is_later;
            if !stays {
                held.stop();
            }
            stays
        });
    }
}

impl Held {
    fn stop(&self) {
        if let Some(acting) = lock(&self.acting).take() {
            acting.abort();
        }
    }

    pub(super) fn record(&self) -> Record {
        self.seen.borrow().record
    }

    /// Whether this node answers for it, as that asker knows it.
    pub(super) fn answers(&self, at: &Where, me: NodeId) -> bool {
        let record = self.record();
        record.epoch == at.epoch && record.primary == me && lock(&self.core).epoch == at.epoch
    }

    /// Whether this attempt counts, and is on that node.
    pub(super) fn counts(&self, who: &Who, from: NodeId) -> bool {
        self.seen.borrow().attempts.get(&who.worker) == Some(&(who.fence, from))
    }

    /// A worker is there.
    pub(super) fn hear(&self, worker: u32) {
        lock(&self.talk).heard.insert(worker, Instant::now());
    }

    /// Something is different.
    pub(super) fn touch(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Remembers a checkpoint.
    pub(super) fn keep(&self, step: u32, weights: Piece, rest: Piece) {
        let mut talk = lock(&self.talk);
        talk.checkpoints.insert(step, (weights, rest));
        while talk.checkpoints.len() > CHECKPOINTS {
            talk.checkpoints.pop_first();
        }
    }
}
