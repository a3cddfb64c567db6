//! Brings a version here: its manifest, then its chunks from everybody who has some.
//!
//! ```text
//!  state: holders ─┐                      ┌─► link to a peer ─► asks ─► chunks ─┐
//!  peers: others ──┴─► swarm (the planner)┤                                     ├─► store: verified, written
//!                          ▲              └─► link to a peer …                 ─┘        │
//!                          └──────────── what came, what is wrong, who is gone ◄─────────┘
//! ```
//!
//! One pull of a version runs at a time, whoever wants it; the others watch the same progress. It does not give up: whoever
//! waits for it does, by its own time, and with the last of these it ends. Dropped or
//! killed, it goes on later from the chunks that are on disk. A peer whose bytes do not hash to their name is
//! left for good, and nothing of it was written.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use mesh_consensus::id::{Hash, NodeId};
use mesh_consensus::time::Time;
use mesh_storage::manifest::MAX_MANIFEST_BYTES;
use mesh_storage::store::{Fetch, Store, StoreError, Wrote};
use mesh_storage::swarm::{self, Swarm};
use mesh_transport::codec::encode;
use mesh_transport::frame::read_frame;
use mesh_transport::net::{Lane, Net, ReceiveHalf};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, sleep, timeout};

use super::link::{Event, Link, MAX_WRITES, Pace, Shared, link_to};
use super::room::reserve;
use super::sharing::Sharing;
use super::wire::{Ask, MAX_NAMED};
use super::{Data, Found, blocking};
use crate::clock;
use crate::wire::Header;

const MIB: u64 = 1 << 20;
/// What links tell and the planner has not looked at yet; then they wait.
const MAX_EVENTS: usize = 256;
/// What one link is to ask and has not asked yet.
const MAX_ASKS: usize = 256;
/// How often others are told what has come.
const LOOK: Duration = Duration::from_millis(150);
/// How often it is looked who holds it now.
const HOLDERS: Duration = Duration::from_secs(2);
/// What has come is made durable this long after the last time, however little it is: a slow pull that is killed then goes
/// on from there.
const FLUSH: Duration = Duration::from_secs(2);
/// If nobody has the manifest, all are asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long one peer may take with a manifest.
const MANIFEST_PATIENCE: Duration = Duration::from_secs(120);
/// If nothing of a manifest comes for so long, the next peer is asked as well.
const NEXT_PEER: Duration = Duration::from_millis(500);

/// How a pull goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// Bytes a second that it may take, if not all.
    pub limit: Option<u64>,
    /// Without a sign of anybody who has what is missing for this long, it is not waited for any more.
    pub wait: Duration,
}

impl Default for How {
    fn default() -> Self {
        Self { limit: None, wait: Duration::from_secs(30) }
    }
}

/// How far a pull is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// What it is about.
    pub phase: Phase,
    /// Bytes of chunks that are here.
    pub bytes: u64,
    /// Bytes of all chunks, once the manifest is here.
    pub total: Option<u64>,
    /// Bytes that came from peers.
    pub fetched: u64,
    /// Bytes that came and were not needed: wrong, or there already.
    pub wasted: u64,
    /// Peers that give.
    pub peers: usize,
    /// Chunks that are missing, once the manifest is here.
    pub missing: usize,
    /// Changes with every sign that somebody has what is missing: something comes, or there is somebody to ask.
    pub signs: u64,
}

/// For how long a pull is still waited for.
pub(super) struct Hope {
    wait: Duration,
    /// The last sign, and when it was seen.
    signs: u64,
    since: Instant,
}

impl Hope {
    pub(super) fn new(wait: Duration, signs: u64, now: Instant) -> Self {
        Self { wait, signs, since: now }
    }

    /// How long the next sign may take, and nothing if it is too late. `None` while no peer is waited for.
    pub(super) fn left(&mut self, progress: &Progress, now: Instant) -> Option<Duration> {
        let needs_peers = matches!(progress.phase, Phase::Manifest | Phase::Chunks);
        if !needs_peers || progress.signs != self.signs {
            (self.signs, self.since) = (progress.signs, now);
        }
        let silent = now.saturating_duration_since(self.since);
        needs_peers.then(|| self.wait.saturating_sub(silent))
    }
}

/// What a pull is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Phase {
    /// The manifest is on its way.
    #[default]
    Manifest,
    /// What is here already is being copied.
    Reusing,
    /// Chunks are.
    Chunks,
    /// Everything is here and is being claimed.
    Finishing,
    /// It is here.
    Done,
    /// It is not, and why.
    Failed(PullError),
}

/// Why a version could not be brought here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// Nobody who answers has it, or all of it.
    #[error("nobody who answers has {}", if *.missing == 0 { "the manifest".to_owned() } else { format!("{missing} of its chunks") })]
    Nobody {
        /// Chunks that nobody has; zero while the manifest is wanted.
        missing: usize,
    },
    /// No room.
    #[error("the disk is full")]
    Full,
    /// There would be no room for all of it. Nothing was written.
    #[error("the disk is full: {} are missing here, and there is room for {}", amount(needed.div_ceil(MIB)), amount(free / MIB))]
    NoRoom {
        /// Bytes that would have to be written.
        needed: u64,
        /// Bytes that may be.
        free: u64,
    },
    /// The store.
    #[error("the store failed: {0}")]
    Store(String),
    /// This node stops.
    #[error("this node is stopping")]
    Stopping,
}

/// However a pull ends, what has come is made durable: the next one goes on from there, even after a restart.
struct Kept(Arc<Fetch>);

impl Drop for Kept {
    fn drop(&mut self) {
        // Without a runtime the process ends, and what was not synced is fetched again.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let fetch = self.0.clone();
        runtime.spawn_blocking(move || {
            if let Err(error) = fetch.flush() {
                tracing::debug!(error = %super::chain(&error), "a part of a version could not be made durable");
            }
        });
    }
}

impl Data {
    /// Brings a version here. Returns once it is whole and claimed, however long that takes.
    pub(super) async fn run_pull(
        &self,
        found: &Found,
        progress: &watch::Sender<Progress>,
        pace: &Arc<Pace>,
    ) -> Result<(), PullError> {
        let on_sign = || progress.send_modify(|progress| progress.signs += 1);
        let bytes = loop {
            match self.manifest(found, &on_sign).await? {
                Some(bytes) => break bytes,
                None => sleep(ASK_AGAIN).await,
            }
        };
        progress.send_modify(|progress| {
            progress.phase = Phase::Reusing;
            progress.signs += 1;
        });
        let (store, hash) = (self.store.clone(), found.manifest);
        let begun = blocking(move || store.begin_fetch(bytes, hash, clock::now())).await?;
        self.check_room(begun.missing_bytes()).await?;
        let copied = move || begun.reuse(clock::now()).map(|()| begun);
        let fetch = Arc::new(blocking(copied).await?);
        let _kept = Kept(fetch.clone());
        let partly = self.share_partly(found.version, fetch.loaded().clone(), fetch.have());
        let mut run = Run::new(self, found, &fetch, &partly.sharing, progress, pace)?;
        run.fetch_all().await?;
        run.show(Phase::Finishing);
        // What came last must be known before the links end: nobody else may have it yet.
        run.tell_news();
        run.links.clear();
        // A chunk that came twice at once counts as here while the other one is still being written.
        let _written = run.shared.writes.acquire_many(MAX_WRITES as u32).await;
        blocking(move || fetch.finish(clock::now())).await
    }

    /// Refuses to begin what would end on a full disk. What could be evicted meanwhile counts as room.
    async fn check_room(&self, needed: u64) -> Result<(), PullError> {
        let Some((total, free)) = self.disk() else { return Ok(()) };
        let free = free.saturating_sub(reserve(total));
        if needed <= free {
            return Ok(());
        }
        let store = self.store.clone();
        let free = free.saturating_add(blocking(move || may_go(&store)).await?);
        if needed <= free { Ok(()) } else { Err(PullError::NoRoom { needed, free }) }
    }

    /// The bytes of the manifest: from here, or from the first peer whose bytes have the right hash; `None` if nobody who
    /// answers has it. Says `on_sign` whenever some of it comes.
    pub(super) async fn manifest(
        &self,
        found: &Found,
        on_sign: &(dyn Fn() + Sync),
    ) -> Result<Option<Vec<u8>>, PullError> {
        let (store, hash) = (self.store.clone(), found.manifest);
        let here =
            move || if store.has(hash)? { store.manifest_bytes(hash).map(Some) } else { Ok(None) };
        if let Some(bytes) = blocking(here).await? {
            return Ok(Some(bytes));
        }
        let net = self.net()?;
        // Some may have come since, and others may have gone.
        let now = self.find(found.version).await;
        let mut asked = self.holders(now.as_ref().unwrap_or(found));
        asked.extend(self.may_have(found.version).await);
        let mut asked = asked.into_iter();
        let came = AtomicU64::new(0);
        let on_bytes = || {
            came.fetch_add(1, Ordering::Relaxed);
            on_sign();
        };
        let mut asking = FuturesUnordered::new();
        let mut is_due = true;
        loop {
            if is_due {
                match asked.next() {
                    Some(node) => {
                        let ask = ask_manifest(&net, node, found, &on_bytes);
                        asking.push(timeout(MANIFEST_PATIENCE, ask));
                    }
                    None if asking.is_empty() => return Ok(None),
                    None => {}
                }
            }
            let seen = came.load(Ordering::Relaxed);
            tokio::select! {
                answer = asking.next() => {
                    if let Some(Ok(Some(bytes))) = answer {
                        return Ok(Some(bytes));
                    }
                    is_due = true;
                }
                // One that is silent must not keep us from one that is not.
                () = sleep(NEXT_PEER) => is_due = came.load(Ordering::Relaxed) == seen,
            }
        }
    }
}

/// Bytes that the store could give up, at most: what nobody has pinned or uses, and what was fetched in part.
fn may_go(store: &Store) -> Result<u64, StoreError> {
    let usage = store.usage()?;
    let held = store.list()?;
    let loose =
        held.iter().filter(|held| held.pins.is_empty() && held.leases == 0 && !held.in_place);
    let bytes: u64 = loose.filter_map(|held| usage.manifests.get(&held.hash)).sum();
    Ok(bytes.saturating_add(usage.partial))
}

/// So many MiB, in words.
fn amount(mib: u64) -> String {
    if mib < 10 * 1024 { format!("{mib} MiB") } else { format!("{} GiB", mib / 1024) }
}

async fn ask_manifest(
    net: &Net,
    node: NodeId,
    found: &Found,
    on_bytes: &(dyn Fn() + Sync),
) -> Option<Vec<u8>> {
    let header = encode(&Header::Manifest { version: found.version }).ok()?;
    let _bulk = net.bulk(node);
    let stream = net.open(node, header, Lane::Bulk).await.ok()?;
    let (_send, receive) = stream.split();
    let mut receive = Felt { receive, on_bytes };
    let bytes = read_frame(&mut receive, MAX_MANIFEST_BYTES).await.ok()??;
    (Hash::of(&bytes) == found.manifest).then_some(bytes)
}

/// A stream that says whenever something comes.
struct Felt<'a> {
    receive: ReceiveHalf,
    on_bytes: &'a (dyn Fn() + Sync),
}

impl AsyncRead for Felt<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = bytes.filled().len();
        let read = Pin::new(&mut self.receive).poll_read(context, bytes);
        if bytes.filled().len() > before {
            (self.on_bytes)();
        }
        read
    }
}

/// A pull while it runs.
struct Run<'a> {
    data: &'a Data,
    found: &'a Found,
    sharing: &'a Sharing,
    swarm: Swarm,
    links: BTreeMap<NodeId, Link>,
    /// How many links there were.
    linked: u64,
    shared: Shared,
    events: mpsc::Receiver<Event>,
    /// Ends every link when the pull does.
    tasks: JoinSet<()>,
    /// What the linked peers are yet to be told that we have.
    news: Vec<u32>,
    fetched: u64,
    wasted: u64,
    progress: &'a watch::Sender<Progress>,
    begun: Instant,
    /// See [`Progress`].
    signs: u64,
    /// When what has come was last made durable in time, and who does so now.
    flushed: Instant,
    flushing: Option<JoinHandle<()>>,
}

impl<'a> Run<'a> {
    fn new(
        data: &'a Data,
        found: &'a Found,
        fetch: &Arc<Fetch>,
        sharing: &'a Sharing,
        progress: &'a watch::Sender<Progress>,
        pace: &Arc<Pace>,
    ) -> Result<Self, PullError> {
        let lengths: Arc<[u32]> =
            sharing.loaded.manifest().chunks().map(|chunk| chunk.bytes).collect();
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let (me, version, have) = (data.whoami.node, found.version, sharing.have());
        let swarm =
            Swarm::new(me, version, &lengths, have, fastrand::u64(..), swarm::Settings::default());
        let now = clock::steady();
        let shared = Shared {
            net: data.net()?,
            version,
            lengths,
            fetch: fetch.clone(),
            events: sender,
            writes: Arc::new(Semaphore::new(MAX_WRITES)),
            bodies: Arc::default(),
            pace: pace.clone(),
        };
        Ok(Self {
            data,
            found,
            sharing,
            swarm,
            links: BTreeMap::new(),
            linked: 0,
            shared,
            events,
            tasks: JoinSet::new(),
            news: Vec::new(),
            fetched: 0,
            wasted: 0,
            progress,
            begun: now,
            signs: progress.borrow().signs,
            flushed: now,
            flushing: None,
        })
    }

    fn now(&self) -> Time {
        let since = clock::steady().saturating_duration_since(self.begun);
        Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    async fn fetch_all(&mut self) -> Result<(), PullError> {
        let mut looks = interval(LOOK);
        let mut holders = interval(HOLDERS);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let plan = self.swarm.poll(self.now());
            if plan.done {
                return Ok(());
            }
            let wake_at = plan.wake_at;
            self.carry_out(plan);
            let wait =
                wake_at.map_or(LOOK, |at| Duration::from_millis(at.0.saturating_sub(self.now().0)));
            tokio::select! {
                event = self.events.recv() => {
                    // `shared` holds a sender.
                    let Some(event) = event else { return Err(PullError::Stopping) };
                    self.on_event(event)?;
                    // What came meanwhile is planned for together.
                    while let Ok(event) = self.events.try_recv() {
                        self.on_event(event)?;
                    }
                }
                () = sleep(wait) => {}
                _ = looks.tick() => self.look(),
                _ = holders.tick() => {
                    // Some may have come since, and others may have gone.
                    if let Some(found) = self.data.find(self.found.version).await {
                        self.swarm.on_sources(&self.data.holders(&found));
                    }
                    if self.swarm.progress().peers == 0 {
                        self.swarm.on_others(&self.data.may_have(self.found.version).await);
                    }
                }
            }
        }
    }

    fn carry_out(&mut self, plan: swarm::Plan) {
        let swarm::Plan { asks, cancels, link, drop, done: _, wake_at: _ } = plan;
        for node in drop {
            self.links.remove(&node);
        }
        for node in link {
            let (sender, asks) = mpsc::channel(MAX_ASKS);
            self.linked += 1;
            self.links.insert(node, Link { number: self.linked, asks: sender });
            self.tasks.spawn(link_to(self.shared.clone(), node, self.linked, asks));
        }
        for (node, number) in cancels {
            self.say(node, Ask::Cancel(number));
        }
        for (node, ask) in asks {
            self.say(
                node,
                match ask {
                    swarm::Ask::Chunk(number) => Ask::Chunk(number),
                    swarm::Ask::Any(count) => Ask::Any(count),
                },
            );
        }
    }

    /// A link that does not even take what is to be asked is as good as gone.
    fn say(&mut self, node: NodeId, ask: Ask) {
        let full = self.links.get(&node).is_some_and(|link| link.asks.try_send(ask).is_err());
        if full && self.links.remove(&node).is_some() {
            self.swarm.on_gone(self.now(), node);
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), PullError> {
        let now = self.now();
        match event {
            // Of one that was dropped meanwhile nothing counts any more.
            Event::Map(node, map) if self.links.contains_key(&node) => {
                self.signs += 1;
                self.swarm.on_peer(now, node, map);
                let have: Vec<u32> = self.swarm.have().present().map(|n| n as u32).collect();
                for part in have.chunks(MAX_NAMED) {
                    self.say(node, Ask::Have(part.to_vec()));
                }
            }
            Event::Map(..) => {}
            Event::Have(node, chunks) => self.swarm.on_have(node, &chunks),
            Event::Written { node, number, bytes, result } => {
                self.on_written(now, node, number, u64::from(bytes), result)?;
            }
            Event::Refused(node, number) => self.swarm.on_refused(now, node, number),
            Event::Began(node, number) => {
                // However slowly, something comes.
                self.signs += 1;
                self.swarm.on_began(now, node, number);
            }
            Event::Nothing(node) => self.swarm.on_nothing(node),
            Event::Others(nodes) => self.swarm.on_others(&nodes),
            Event::Gone(node, number) => {
                if self.links.get(&node).is_some_and(|link| link.number == number) {
                    self.links.remove(&node);
                    self.swarm.on_gone(now, node);
                }
            }
            Event::Unsafe(error) => return Err(PullError::of(&error)),
        }
        Ok(())
    }

    fn on_written(
        &mut self,
        now: Time,
        node: NodeId,
        number: u32,
        bytes: u64,
        result: Result<Wrote, StoreError>,
    ) -> Result<(), PullError> {
        self.fetched += bytes;
        self.data.fetched_bytes.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        // Whoever joins this pull counts from here; the rest of the picture follows soon.
        self.progress.send_if_modified(|progress| {
            progress.fetched = self.fetched;
            false
        });
        match result {
            Ok(Wrote::New(places)) => {
                self.signs += 1;
                self.swarm.on_chunk(now, node, number, true);
                self.came(number);
                if places > 1 {
                    // The same bytes stand in other places, too.
                    for also in self.shared.fetch.same_as(number as usize) {
                        self.swarm.on_here(also);
                        self.came(also);
                    }
                }
                Ok(())
            }
            Ok(Wrote::Had) => {
                self.wasted += bytes;
                self.swarm.on_chunk(now, node, number, true);
                Ok(())
            }
            Err(StoreError::WrongChunk { .. }) => {
                tracing::warn!(peer = %node.short(), chunk = number, "a peer sent wrong bytes: it is left");
                self.wasted += bytes;
                self.links.remove(&node);
                self.swarm.on_chunk(now, node, number, false);
                Ok(())
            }
            Err(error) => Err(PullError::of(&error)),
        }
    }

    /// A chunk is here: others may have it, and should know.
    fn came(&mut self, number: u32) {
        self.sharing.on_here(&[number]);
        self.news.push(number);
    }

    /// Tells the others what came, and those who wait how far it is.
    fn look(&mut self) {
        self.flush_in_time();
        self.tell_news();
        for link in
            self.shared.net.links().iter().filter(|link| self.links.contains_key(&link.node))
        {
            self.swarm.on_rtt(link.node, link.rtt);
        }
        self.show(Phase::Chunks);
    }

    /// Makes durable what has come, if that was not done for a while; beside the pull, and one at a time.
    fn flush_in_time(&mut self) {
        let now = clock::steady();
        if self.flushing.as_ref().is_some_and(|task| !task.is_finished()) {
            // A disk that is slow is left alone for as long after it is done.
            self.flushed = now;
            return;
        }
        let is_due = now.saturating_duration_since(self.flushed) >= FLUSH;
        if !is_due || !self.shared.fetch.is_dirty() {
            return;
        }
        self.flushed = now;
        let (fetch, events) = (self.shared.fetch.clone(), self.shared.events.clone());
        self.flushing = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = fetch.flush() {
                // A pull that has ended does not look any more.
                let _ = events.blocking_send(Event::Unsafe(error));
            }
        }));
    }

    /// Says what has come to those who are linked.
    fn tell_news(&mut self) {
        let news = std::mem::take(&mut self.news);
        let nodes: Vec<NodeId> = self.links.keys().copied().collect();
        for part in news.chunks(MAX_NAMED) {
            for node in &nodes {
                self.say(*node, Ask::Have(part.to_vec()));
            }
        }
    }

    fn show(&self, phase: Phase) {
        let here = self.swarm.have().present();
        let bytes =
            here.filter_map(|n| self.shared.lengths.get(n)).map(|bytes| u64::from(*bytes)).sum();
        let total = self.shared.lengths.iter().map(|bytes| u64::from(*bytes)).sum();
        let (peers, missing) = (self.swarm.progress().peers, self.swarm.have().missing().count());
        let (fetched, wasted, signs) = (self.fetched, self.wasted, self.signs);
        self.progress.send_replace(Progress {
            phase,
            bytes,
            total: Some(total),
            fetched,
            wasted,
            peers,
            missing,
            signs,
        });
    }
}

impl PullError {
    pub(super) fn of(error: &StoreError) -> Self {
        match error {
            StoreError::NoSpace { .. } => PullError::Full,
            error => PullError::Store(crate::data::chain(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_waited_for_as_long_as_there_are_signs_and_no_longer() {
        let begun = clock::steady();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let secs = |seconds: u64| Some(Duration::from_secs(seconds));
        let mut hope = Hope::new(Duration::from_secs(5), 7, begun);
        let mut progress = Progress { signs: 7, ..Progress::default() };
        assert_eq!(hope.left(&progress, at(4)), secs(1), "whatever is being tried");
        progress.signs += 1;
        assert_eq!(hope.left(&progress, at(4)), secs(5));
        // What is done here takes as long as it takes.
        for phase in [Phase::Reusing, Phase::Finishing] {
            progress.phase = phase;
            assert_eq!(hope.left(&progress, at(1000)), None);
        }
        progress.phase = Phase::Chunks;
        assert_eq!(hope.left(&progress, at(1002)), secs(3));
        // That more is known of it is no sign.
        progress.peers += 1;
        assert_eq!(hope.left(&progress, at(1006)), secs(0));
    }

    #[test]
    fn a_little_of_every_disk_is_left_free() {
        assert_eq!(reserve(100 * MIB), MIB);
        assert_eq!(reserve(u64::MAX), 256 * MIB);
    }

    #[test]
    fn who_has_no_room_is_told_how_much_is_missing() {
        let told = PullError::NoRoom { needed: 64 * MIB + 1, free: 31 * MIB + 7 }.to_string();
        assert!(told.contains("65 MiB") && told.contains("31 MiB"), "{told}");
        let told = PullError::NoRoom { needed: 20_480 * MIB, free: 0 }.to_string();
        assert!(told.contains("20 GiB") && told.contains("0 MiB"), "{told}");
    }
}
