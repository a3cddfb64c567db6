//! A version while others pull it from this node: who they are, and whose turn it is.
//!
//! `mesh_storage::swarm::Serve` decides; this hands its decisions to the tasks that serve one puller each. A chunk
//! is sent by one of them at a time per slot, and when it is over the next turn is given. Whoever serves or pulls holds
//! a guard: however its task ends, its place and its turn are free afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mesh_consensus::id::{Hash, NodeId, VersionId};
use mesh_consensus::time::Time;
use mesh_storage::bitmap::Bitmap;
use mesh_storage::store::{Loaded, Store};
use mesh_storage::swarm::{self, Reply, Serve, ServeSettings};
use tokio::sync::mpsc;

use super::{Data, lock};
use crate::clock;

/// Turns that wait for one puller's task: one chunk, and refusals.
pub(super) const MAX_TURNS: usize = 256;

/// A version that is served. See the module.
pub(super) struct Sharing {
    pub(super) version: VersionId,
    pub(super) loaded: Arc<Loaded>,
    store: Store,
    begun: std::time::Instant,
    /// Whether a pull brings more of it.
    is_pulled: AtomicBool,
    /// Bytes of it that have left since it is served.
    sent: AtomicU64,
    state: Mutex<State>,
}

struct State {
    serve: Serve,
    /// What is here: everything, or what a pull has brought so far.
    have: Bitmap,
    /// Each with the number of its stream.
    pullers: BTreeMap<NodeId, (u64, mpsc::Sender<Reply>)>,
    streams: u64,
}

impl Sharing {
    fn new(version: VersionId, store: Store, loaded: Arc<Loaded>, have: Bitmap) -> Self {
        let settings = ServeSettings::default();
        let lengths: Vec<u32> = loaded.manifest().chunks().map(|chunk| chunk.bytes).collect();
        let serve = Serve::new(&lengths, fastrand::u64(..), settings);
        let state = Mutex::new(State { serve, have, pullers: BTreeMap::new(), streams: 0 });
        let (is_pulled, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { version, loaded, store, begun: clock::steady(), is_pulled, sent, state }
    }

    fn now(&self) -> Time {
        let since = clock::steady().saturating_duration_since(self.begun);
        Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// So many bytes have left.
    pub(super) fn on_bytes(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        lock(&self.state).serve.on_bytes(self.now(), bytes as u64);
    }

    /// How many chunks the version has.
    pub(super) fn chunks(&self) -> usize {
        self.loaded.chunk_count()
    }

    /// What is here.
    pub(super) fn have(&self) -> Bitmap {
        lock(&self.state).have.clone()
    }

    /// A puller has come on a stream, which gets a number; its turns come out of the receiver. `None` if there
    /// are too many.
    fn arrive(&self, node: NodeId) -> Option<(u64, mpsc::Receiver<Reply>)> {
        let mut state = lock(&self.state);
        if !state.serve.on_peer(node, Bitmap::new(self.chunks())) {
            return None;
        }
        let (sender, turns) = mpsc::channel(MAX_TURNS);
        state.streams += 1;
        let stream = state.streams;
        // One that comes again takes the place of its older stream, which then ends.
        state.pullers.insert(node, (stream, sender));
        Some((stream, turns))
    }

    /// The stream of a puller has ended.
    fn leave(&self, node: NodeId, stream: u64) {
        let mut state = lock(&self.state);
        if state.pullers.get(&node).is_some_and(|(current, _)| *current == stream) {
            state.pullers.remove(&node);
            state.serve.on_gone(node);
        }
        state.advance(self.now());
    }

    /// A puller asks for something.
    pub(super) fn on_ask(&self, node: NodeId, ask: swarm::Ask) {
        let mut state = lock(&self.state);
        if let Some(reply) = state.serve.on_ask(node, ask) {
            state.tell(reply);
        }
        state.advance(self.now());
    }

    pub(super) fn on_cancel(&self, node: NodeId, chunk: u32) {
        lock(&self.state).serve.on_cancel(node, chunk);
    }

    /// A puller has these now. Whether they exist.
    pub(super) fn on_have(&self, node: NodeId, chunks: &[u32]) -> bool {
        lock(&self.state).serve.on_have(node, chunks)
    }

    /// What was being sent to a puller is sent, or never will be.
    pub(super) fn on_sent(&self, node: NodeId) {
        let mut state = lock(&self.state);
        state.serve.on_sent(node);
        state.advance(self.now());
    }

    /// Time has gone by.
    pub(super) fn on_tick(&self) {
        lock(&self.state).advance(self.now());
    }

    /// These have come to this node.
    pub(super) fn on_here(&self, chunks: &[u32]) {
        let mut state = lock(&self.state);
        for chunk in chunks {
            state.have.set(*chunk as usize);
        }
        state.advance(self.now());
    }

    /// Who else pulls.
    pub(super) fn others(&self, node: NodeId) -> Vec<NodeId> {
        lock(&self.state).serve.others(node)
    }

    fn is_idle(&self) -> bool {
        !self.is_pulled.load(Ordering::Relaxed) && lock(&self.state).pullers.is_empty()
    }

    /// The bytes of a chunk, verified; `None` if they are not here any more.
    pub(super) async fn read(&self, chunk: u32) -> Option<Vec<u8>> {
        let (store, loaded) = (self.store.clone(), self.loaded.clone());
        let read = move || store.read_chunk(&loaded, chunk as usize, clock::now());
        match tokio::task::spawn_blocking(read).await.ok()? {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::warn!(version = %self.version, chunk, %error, "a chunk cannot be served");
                None
            }
        }
    }
}

impl State {
    /// Gives turns for as long as there are slots and asks.
    fn advance(&mut self, now: Time) {
        while let Some(reply) = self.serve.next(now, &self.have) {
            self.tell(reply);
        }
    }

    fn tell(&mut self, reply: Reply) {
        let (Reply::Chunk(node, _) | Reply::Refused(node, _) | Reply::Nothing(node)) = reply;
        let told =
            self.pullers.get(&node).is_some_and(|(_, sender)| sender.try_send(reply).is_ok());
        if !told {
            // It does not even take its turns: its task ends when it finds the channel closed.
            self.pullers.remove(&node);
            self.serve.on_gone(node);
        }
    }
}

impl Data {
    /// The sharing of a version of which this node has all, or of which a pull runs here.
    pub(super) async fn sharing(&self, version: VersionId, manifest: Hash) -> Option<Arc<Sharing>> {
        if let Some(sharing) = lock(&self.sharings).get(&version) {
            return Some(sharing.clone());
        }
        let store = self.store.clone();
        let load =
            move || if store.has(manifest)? { store.load(manifest).map(Some) } else { Ok(None) };
        let loaded = super::blocking(load).await.ok()??;
        let have = Bitmap::full(loaded.chunk_count());
        let sharing = Arc::new(Sharing::new(version, self.store.clone(), loaded, have));
        Some(lock(&self.sharings).entry(version).or_insert(sharing).clone())
    }

    /// How many bytes of a version have left since somebody pulls it; `None` if nobody does.
    pub(super) fn sent_of(&self, version: VersionId) -> Option<u64> {
        lock(&self.sharings).get(&version).map(|sharing| sharing.sent.load(Ordering::Relaxed))
    }

    /// A puller of a version has come. `None` if there are too many.
    pub(super) fn welcome(
        &self,
        sharing: &Arc<Sharing>,
        node: NodeId,
    ) -> Option<(Place, mpsc::Receiver<Reply>)> {
        let (stream, turns) = sharing.arrive(node)?;
        let (data, sharing) = (self.clone(), sharing.clone());
        Some((Place { data, sharing, node, stream }, turns))
    }

    /// Lets others have what a pull brings, while it does.
    pub(super) fn share_partly(
        &self,
        version: VersionId,
        loaded: Arc<Loaded>,
        have: Bitmap,
    ) -> Partly {
        let sharing = Arc::new(Sharing::new(version, self.store.clone(), loaded, have));
        sharing.is_pulled.store(true, Ordering::Relaxed);
        lock(&self.sharings).insert(version, sharing.clone());
        Partly { data: self.clone(), sharing }
    }

    /// Takes a sharing out of the table if it is the one that is there, and `when` says so.
    fn forget_sharing(&self, sharing: &Arc<Sharing>, when: impl FnOnce() -> bool) {
        let mut sharings = lock(&self.sharings);
        let is_there =
            sharings.get(&sharing.version).is_some_and(|held| Arc::ptr_eq(held, sharing));
        if is_there && when() {
            sharings.remove(&sharing.version);
        }
    }
}

/// The place of one puller on one stream.
pub(super) struct Place {
    data: Data,
    sharing: Arc<Sharing>,
    node: NodeId,
    stream: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sharing.leave(self.node, self.stream);
        self.data.forget_sharing(&self.sharing, || self.sharing.is_idle());
    }
}

/// What a pull has brought so far, for others, while it runs.
pub(super) struct Partly {
    data: Data,
    pub(super) sharing: Arc<Sharing>,
}

impl Drop for Partly {
    fn drop(&mut self) {
        self.sharing.is_pulled.store(false, Ordering::Relaxed);
        // What was not brought to its end cannot be read any more.
        let is_partial = !self.sharing.have().is_full();
        self.data.forget_sharing(&self.sharing, || is_partial || self.sharing.is_idle());
    }
}
