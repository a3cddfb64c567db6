//! Datasets at this node: pushed, pulled, served and kept.
//!
//! ```text
//!  push.rs   a directory ─► store (chunks, manifest) ─► VersionNew, held by this node
//!                                                          │ every node sees it in the state
//!  keep.rs   short of copies, and it is this node's turn? ─┴─► pull ─► Hold     (the push waits for these)
//!            a copy too many, and it is this node's? ─────► Hold, released
//!  room.rs   does it fit there? who else could have one?
//!  pull.rs   who holds it, who pulls it too ─► a link to each ─► chunks ─► store ─► a directory
//!  tidy.rs   reads the store again bit by bit, mends it, drops what nobody needs
//!  serve.rs  may that party read this version? ─► manifest, bitmap, chunks
//! ```
//!
//! A new version is replicated by the same hands that repair an old one: it is in the state from the start,
//! short of copies, and the nodes whose turn it is fetch it. A push is acknowledged once a majority of
//! the wanted copies is durable. Which node's turn it is follows from the state and from who is alive
//! (`mesh_storage::placement`), so nobody keeps a table.
//!
//! Peers speak of chunk 17 of a version, never of a hash. Whoever serves looks up, for every request, whether
//! the asking node's party may read that version; if not, the answer is that of a version that does not exist.
//!
//! Bytes on disk, and what survives a crash, are `mesh_storage::store`'s; whom to ask for what is
//! `mesh_storage::swarm`'s. Who may read is the state's (`crate::state::data`).

pub mod catalogue;
pub mod keep;
mod laying;
mod link;
pub mod pull;
pub mod push;
mod room;
mod serve;
mod sharing;
pub mod tidy;
pub mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mesh_consensus::id::{Hash, NodeId, VersionId};
use mesh_storage::store::{Loaded, Store, StoreError};
use mesh_storage::tree::{self, Materialised, TreeError};
use mesh_transport::net::Net;
use tokio::sync::{RwLock, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::awareness::hub::Hub;
use crate::clock;
use crate::engine::{Orders, Shown};
use crate::handle::{Whoami, Writer, look_at};
use crate::party::SealingSecret;
use crate::seal::PrivateView;
use crate::state::State;
use laying::Laying;
use link::Pace;
use pull::{Hope, How, Phase, Progress, PullError};
use serve::Strip;
use sharing::Sharing;

/// Nodes that nobody counts on and that are asked all the same, at a time.
const MAX_ASKED: usize = 16;
/// That somebody does not wait for a directory any more is noticed within this time.
const NOTICED: Duration = Duration::from_secs(2);
/// How often a directory is tried that somebody has.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The datasets of this node. Cheap to clone.
#[derive(Clone)]
pub struct Data(Arc<Inner>);

/// What a [`Data`] reaches.
pub struct Inner {
    /// Whose node it is.
    pub whoami: Whoami,
    /// Bytes on disk.
    pub store: Store,
    pub(crate) shown: Shown,
    pub(crate) orders: Orders,
    pub(crate) writer: Writer,
    pub(crate) hub: Arc<Hub>,
    pub(crate) sealing: Arc<RwLock<Option<SealingSecret>>>,
    /// A holder that is silent for this long is replaced.
    lost: Duration,
    net: OnceLock<Net>,
    /// Versions that somebody pulls from this node, or that this node pulls.
    sharings: Mutex<BTreeMap<VersionId, Arc<Sharing>>>,
    /// Where strips of the links that are served go: see [`wire`].
    strips: Mutex<BTreeMap<(NodeId, u64), mpsc::Sender<Strip>>>,
    /// Pulls under way.
    pulls: Mutex<BTreeMap<VersionId, Pulling>>,
    /// Directories that versions are laid out in.
    laying: Laying,
    /// The party's private names, as they were last opened.
    private: Mutex<Option<Arc<PrivateView>>>,
    /// Bytes of chunks that were sent to others, and that came from them.
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
}

/// How far a pull is, and how fast it may go.
type Pulling = (watch::Sender<Progress>, Arc<Pace>);

/// A version, as far as is needed to fetch or to serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub version: VersionId,
    /// Its manifest.
    pub manifest: Hash,
    /// Who says to have a durable copy.
    pub holders: Vec<NodeId>,
    /// The entry of the log after which this was so.
    pub index: u64,
}

impl std::ops::Deref for Data {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Why a version could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum LayOutError {
    /// The directory.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The bytes.
    #[error(transparent)]
    Pull(#[from] PullError),
}

/// What a node's datasets are made of.
pub struct Parts {
    /// Whose node it is.
    pub whoami: Whoami,
    /// Where bytes are kept.
    pub store: Store,
    /// What the engine shows.
    pub shown: Shown,
    /// Where orders go.
    pub orders: Orders,
    /// Writes.
    pub writer: Writer,
    /// What members say about themselves.
    pub hub: Arc<Hub>,
    /// The party's sealing secret, if this node has it.
    pub sealing: Arc<RwLock<Option<SealingSecret>>>,
}

impl Data {
    /// Ties the parts together. The way to the others comes later: see [`Data::connect`].
    pub fn new(parts: Parts) -> Self {
        let Parts { whoami, store, shown, orders, writer, hub, sealing } = parts;
        Self(Arc::new(Inner {
            whoami,
            store,
            shown,
            orders,
            writer,
            hub,
            sealing,
            lost: keep::lost(),
            net: OnceLock::new(),
            sharings: Mutex::default(),
            strips: Mutex::default(),
            pulls: Mutex::default(),
            laying: Laying::default(),
            private: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
        }))
    }

    /// The way to the others is there.
    pub fn connect(&self, net: Net) {
        // A node has one.
        let _ = self.net.set(net);
    }

    /// Looks at the state, on the engine's thread. `None` while the node stops or is too busy.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&State) -> T + Send + 'static,
    ) -> Option<T> {
        look_at(&self.orders, move |see| look(see.replica.machine())).await.ok()
    }

    /// What this node has applied.
    fn index(&self) -> u64 {
        self.shown.pulse.borrow().index
    }

    /// The version, if nodes of this one's party may read it.
    pub async fn find(&self, version: VersionId) -> Option<Found> {
        self.readable(self.whoami.node, version).await
    }

    /// The version, if `node`'s party may read it and this node can tell what it is.
    pub(crate) async fn readable(&self, node: NodeId, version: VersionId) -> Option<Found> {
        let index = self.index();
        let party = self.shown.roster.borrow().party_of(node)?;
        let secret = self.sealing_secret().await;
        let mesh = self.whoami.mesh;
        let look = self.look(move |state| {
            let found = state.version(version).filter(|_| state.may_read(version, party))?;
            let manifest = catalogue::manifest_of(mesh, version, found, secret.as_ref())?;
            Some(Found {
                version,
                manifest,
                holders: found.holders.iter().copied().collect(),
                index,
            })
        });
        look.await.flatten()
    }

    /// Who may be asked for it: those who say to hold it, the ones that are awake first, and never this node.
    fn holders(&self, found: &Found) -> Vec<NodeId> {
        let others = found.holders.iter().copied().filter(|node| *node != self.whoami.node);
        let (mut awake, asleep): (Vec<NodeId>, Vec<NodeId>) =
            others.partition(|node| self.hub.is_alive(*node));
        fastrand::shuffle(&mut awake);
        awake.extend(asleep);
        awake
    }

    /// Who may have it although nobody counts on them: they have pulled it once. Some of those that are awake; only nodes
    /// that may hold it are asked, for to be asked tells that it is wanted.
    async fn may_have(&self, id: VersionId) -> Vec<NodeId> {
        let me = self.whoami.node;
        let able = self.look(move |state| {
            let version = state.version(id)?;
            let able = keep::may_hold(state, version);
            Some(able.filter(|n| *n != me && !version.holders.contains(n)).collect::<Vec<_>>())
        });
        let mut able = able.await.flatten().unwrap_or_default();
        able.retain(|node| self.hub.is_alive(*node));
        fastrand::shuffle(&mut able);
        able.truncate(MAX_ASKED);
        able
    }

    /// Brings a version here, or waits for the one who does. What came before the wait began is not counted.
    pub async fn bring(
        &self,
        found: &Found,
        how: How,
        shown: impl Fn(&Progress),
    ) -> Result<Progress, PullError> {
        let mut progress = self.begin(found, how);
        let (fetched, wasted, signs) = {
            let begun = progress.borrow();
            (begun.fetched, begun.wasted, begun.signs)
        };
        let mut hope = Hope::new(how.wait, signs, clock::steady());
        loop {
            let mut now = progress.borrow_and_update().clone();
            now.fetched = now.fetched.saturating_sub(fetched);
            now.wasted = now.wasted.saturating_sub(wasted);
            shown(&now);
            let (left, missing) = (hope.left(&now, clock::steady()), now.missing);
            match now.phase {
                Phase::Done => return Ok(now),
                Phase::Failed(error) => return Err(error),
                _ => {}
            }
            let changed = match left {
                Some(left) if left.is_zero() => return Err(PullError::Nobody { missing }),
                Some(left) => match timeout(left, progress.changed()).await {
                    Ok(changed) => changed,
                    // There may have been a sign in the last moment.
                    Err(_) => continue,
                },
                None => progress.changed().await,
            };
            if changed.is_err() {
                return Err(PullError::Stopping);
            }
        }
    }

    /// Starts a pull unless one of the same version runs. It goes on for as long as somebody waits for it.
    fn begin(&self, found: &Found, how: How) -> watch::Receiver<Progress> {
        let mut pulls = lock(&self.pulls);
        if let Some((running, pace)) = pulls.get(&found.version) {
            pace.lift(how.limit);
            return running.subscribe();
        }
        let (sender, receiver) = watch::channel(Progress::default());
        let pace = Arc::new(Pace::new(how.limit));
        pulls.insert(found.version, (sender.clone(), pace.clone()));
        drop(pulls);
        let (data, found) = (self.clone(), found.clone());
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = data.run_pull(&found, &sender, &pace) => ended,
                () = data.deserted(found.version, &sender) => Err(PullError::Stopping),
            };
            {
                let mut pulls = lock(&data.pulls);
                // A pull that was deserted has gone from the table, and another may be there.
                if pulls.get(&found.version).is_some_and(|(held, _)| held.same_channel(&sender)) {
                    pulls.remove(&found.version);
                }
            }
            let phase = match ended {
                Ok(()) => Phase::Done,
                Err(error) => Phase::Failed(error),
            };
            sender.send_modify(|progress| progress.phase = phase);
        });
        receiver
    }

    /// Returns once nobody waits for a pull, which then is no longer in the table.
    async fn deserted(&self, version: VersionId, sender: &watch::Sender<Progress>) {
        loop {
            sender.closed().await;
            let mut pulls = lock(&self.pulls);
            // Somebody may have come back since.
            if sender.receiver_count() == 0 {
                pulls.remove(&version);
                return;
            }
        }
    }

    /// What opens the party's sealed records, if this node has it.
    pub(crate) async fn sealing_secret(&self) -> Option<SealingSecret> {
        self.sealing.read().await.clone()
    }

    /// Whether all of it is here.
    pub async fn is_here(&self, found: &Found) -> bool {
        let (store, manifest) = (self.store.clone(), found.manifest);
        blocking(move || store.is_whole(manifest)).await.unwrap_or(false)
    }

    /// How many objects of a version that was whole here are damaged or gone, as far as is known.
    pub(crate) async fn lost_objects(&self, found: &Found) -> usize {
        let (store, manifest) = (self.store.clone(), found.manifest);
        let count = move || if store.has(manifest)? { store.lost_objects(manifest) } else { Ok(0) };
        blocking(count).await.unwrap_or(0)
    }

    /// Files of this machine that a version was made of in place, and that have changed since, as far as is known.
    pub(crate) async fn changed_files(&self, manifest: Hash) -> Vec<PathBuf> {
        let store = self.store.clone();
        blocking(move || store.changed_files(manifest)).await.unwrap_or_default()
    }

    /// How much of a version is here: `whole`, `partial` or `none`. In a list `closely` would take too long: every object is
    /// looked at.
    pub(crate) async fn here(&self, known: &catalogue::Known, closely: bool) -> &'static str {
        let Some(manifest) = known.manifest else { return "none" };
        let store = self.store.clone();
        let look = move || match store.has(manifest)? {
            true if closely => store.is_whole(manifest).map(Some),
            true => Ok(Some(true)),
            false => Ok(None),
        };
        match blocking(look).await {
            Ok(Some(true)) => "whole",
            Ok(Some(false)) => "partial",
            _ if lock(&self.pulls).contains_key(&known.id) => "partial",
            _ => "none",
        }
    }

    /// Bytes of a version that are here while it is being pulled; `None` if it is not.
    pub(crate) fn pulled_bytes(&self, version: VersionId) -> Option<u64> {
        lock(&self.pulls).get(&version).map(|(progress, _)| progress.borrow().bytes)
    }

    /// The manifest of a version, from here or from one who has it. It does not stay here for that.
    pub(crate) async fn loaded(&self, found: &Found) -> Result<Arc<Loaded>, PullError> {
        let (store, hash) = (self.store.clone(), found.manifest);
        if self.is_here(found).await {
            return blocking(move || store.load(hash)).await;
        }
        let bytes = self.manifest(found, &|| {}).await?;
        let bytes = bytes.ok_or(PullError::Nobody { missing: 0 })?;
        let decode = move || {
            let manifest = mesh_storage::manifest::Manifest::decode(&bytes)?;
            Ok(Arc::new(Loaded::new(hash, manifest)))
        };
        blocking(decode).await
    }

    /// How many objects and chunks a version that is here has.
    pub(crate) async fn counts(&self, manifest: Hash) -> Option<(usize, usize)> {
        let store = self.store.clone();
        let load =
            move || if store.has(manifest)? { store.load(manifest).map(Some) } else { Ok(None) };
        let loaded = blocking(load).await.ok()??;
        Some((loaded.objects().len(), loaded.chunk_count()))
    }

    /// Lays a version that is here out as a directory. What is damaged on disk is fetched anew first, as `how` says: also
    /// says how many objects that were.
    pub async fn lay_out(
        &self,
        found: &Found,
        dir: PathBuf,
        writable: bool,
        how: How,
        cancel: Arc<AtomicBool>,
        show: impl Fn(u64) + Clone + Send + 'static,
    ) -> Result<(Materialised, usize), LayOutError> {
        const TRIES: usize = 3;
        let mut mended = 0;
        for _ in 1..TRIES {
            match self
                .lay_out_in_turn(found, dir.clone(), writable, cancel.clone(), show.clone())
                .await
            {
                Err(LayOutError::Tree(TreeError::Object { .. })) => {
                    let lost = self.lost_objects(found).await;
                    self.bring(found, how, |_| {}).await?;
                    mended += lost;
                }
                done => return done.map(|laid| (laid, mended)),
            }
        }
        let done = self.lay_out_in_turn(found, dir, writable, cancel, show).await;
        done.map(|laid| (laid, mended))
    }

    /// Waits for an earlier run into the same directory if nobody else does: it ends as soon as it can.
    async fn lay_out_in_turn(
        &self,
        found: &Found,
        dir: PathBuf,
        writable: bool,
        cancel: Arc<AtomicBool>,
        show: impl Fn(u64) + Clone + Send + 'static,
    ) -> Result<Materialised, LayOutError> {
        let begun = clock::steady();
        loop {
            let done =
                self.lay_out_once(found, dir.clone(), writable, cancel.clone(), show.clone()).await;
            let is_busy = matches!(done, Err(LayOutError::Tree(TreeError::Busy { .. })));
            let is_late = begun.elapsed() > NOTICED && !self.laying.is_forsaken(&dir);
            if !is_busy || is_late {
                return done;
            }
            sleep(TRY_AGAIN).await;
        }
    }

    async fn lay_out_once(
        &self,
        found: &Found,
        dir: PathBuf,
        writable: bool,
        cancel: Arc<AtomicBool>,
        show: impl Fn(u64) + Send + 'static,
    ) -> Result<Materialised, LayOutError> {
        let (store, hash, laying) = (self.store.clone(), found.manifest, self.laying.clone());
        let work = move || {
            let _run = laying.enter(&dir, &cancel);
            let now = clock::now();
            let loaded = store.load(hash).map_err(|error| PullError::of(&error))?;
            let _lease = store.lease(hash, now).map_err(|error| PullError::of(&error))?;
            let progress = |now: tree::Progress| show(now.bytes);
            let options = tree::Options {
                writable,
                sealed: false,
                progress: Some(&progress),
                cancel: Some(&cancel),
            };
            let source = store.objects(&loaded, now).until(cancel.clone());
            Ok(tree::materialise(loaded.manifest(), &dir, &source, options)?)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(_) => Err(PullError::Stopping.into()),
        }
    }

    /// Bytes of the disk that the store is on: all, and those that can still be written.
    pub(crate) fn disk(&self) -> Option<(u64, u64)> {
        let stat = nix::sys::statvfs::statvfs(self.store.root()).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        Some((bytes(stat.blocks()), bytes(stat.blocks_available())))
    }

    fn net(&self) -> Result<Net, PullError> {
        self.net.get().cloned().ok_or(PullError::Stopping)
    }
}

/// A lock that another thread's panic does not spoil: what it guards is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what blocks on a thread that may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, PullError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(PullError::of(&error)),
        Err(_) => Err(PullError::Stopping),
    }
}

/// An error and what it came from, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}
