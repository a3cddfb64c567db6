//! How a member without a seat follows the log, and how it is served.
//!
//! ```text
//!  watcher                                    a node with a seat
//!     │ Watch { index } ─────────────────────────► │
//!     │ ◄───────────────── bookmarks of the voters │
//!     │ ◄──────── snapshot, if entries are gone    │   from its checkpoint
//!     │ ◄──────────────────── entries, bookmarks … │   from its log
//!     ▼
//!   held back until a majority of the voters that it knows has signed the history up to there
//!     ▼
//!   engine
//! ```
//!
//! Whoever serves is not believed: entries carry their authors' signatures, their order is confirmed by
//! bookmarks, and a snapshot must match a digest that a majority has signed. An index never goes back. A
//! slow reader is not waited for: the server reads its log anew for each one, and sends a snapshot where
//! the log no longer reaches back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::admit::MAX_SNAPSHOT_BYTES;
use mesh_consensus::bookmark::{Bookmark, Tally};
use mesh_consensus::handover::{Handover, voters_after};
use mesh_consensus::id::{Hash, NodeId};
use mesh_consensus::log::{Entry, Payload, Snapshot};
use mesh_consensus::replica;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{Lane, Net, Stream};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::clock;
use crate::engine::{Checkpoint, Order, Orders, Posted, Refused, Roster, Shown};
use crate::handle::{Part, Whoami};
use crate::removal::is_turned_away;
use crate::wire::{Feed, Header};

/// Entries that a watcher holds back; then it reads no further …
const MAX_HELD: usize = 8192;
/// … nor beyond so many bytes of them.
const MAX_HELD_BYTES: usize = MAX_SNAPSHOT_BYTES;
/// Whoever is further behind is sent a snapshot instead: entries are confirmed at the end of the log only, and
/// must all be held until then.
const MAX_BEHIND: u64 = MAX_HELD as u64 / 2;
/// Changes of voters that one feed may show: more than a server keeps, as new ones come.
const MAX_HANDOVERS: usize = 256;
/// Voters of one change.
const MAX_VOTERS: usize = 32;
/// What a server must send within [`UNCONFIRMED`] while it brings somebody up to date: 70 kbit/s.
const SLOWEST_BYTES: usize = 128 << 10;
/// A watcher that does not read for this long is not served any more.
pub const UNREAD: Duration = Duration::from_secs(30);
/// Bytes of a snapshot in one frame.
const PART_BYTES: usize = 256 << 10;
/// A frame of the feed: entries are cut at a quarter of this.
const MAX_FEED_FRAME: usize = 2 << 20;
/// Silence after which another server is tried. Bookmarks come every five seconds.
const SILENCE: Duration = Duration::from_secs(12);
/// A server repeats the bookmarks after this time.
const REPEAT: Duration = Duration::from_secs(4);
/// A server that confirms nothing for this long is left for another: it may hold back what others say.
const UNCONFIRMED: Duration = Duration::from_secs(15);
/// After this time another server is asked in any case: one that repeats old words for ever is
/// told from a mesh at rest only by somebody else.
const TURN: Duration = Duration::from_secs(60);
/// A snapshot that no majority has signed after this time is asked for anew, elsewhere.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(3);
/// A server that has not been up to date for this long sends its watchers elsewhere, after what it has: it may have been
/// removed, and whoever watches must know that of everybody within five seconds.
const OUTDATED: Duration = Duration::from_secs(3);
/// How often it looks whether it is.
const LOOK: Duration = Duration::from_millis(500);
/// Members without a seat, as far as a follower knows, that it asks when no seated one answers.
const MAX_OTHERS: usize = 16;
/// A seat that hears no leader for this long looks whether the others went on.
const LOST: Duration = Duration::from_secs(5);
/// What makes two servers of one watcher differ.
const RANK: &str = "mesh 2026 which server a watcher prefers";

/// Nodes with a seat, the one that `node` prefers first. Spread by hash, so that watchers spread too.
pub fn servers(shown: &Shown, node: NodeId) -> Vec<NodeId> {
    let roster = shown.roster.borrow().clone();
    let seated = ranked(node, roster.seated.iter());
    if seated.is_empty() { ranked(node, roster.introduced.iter()) } else { seated }
}

/// The servers, and then some others: those who sat down since we last heard may be among them.
fn servers_and_others(shown: &Shown, node: NodeId) -> Vec<NodeId> {
    let mut all = servers(shown, node);
    let roster = shown.roster.borrow().clone();
    let others = roster.members.keys().filter(|one| !roster.seated.contains(*one));
    all.extend(ranked(node, others).into_iter().take(MAX_OTHERS));
    all
}

fn ranked<'a>(node: NodeId, nodes: impl Iterator<Item = &'a NodeId>) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = nodes.copied().filter(|one| *one != node).collect();
    nodes.sort_by_key(|one| {
        let mut hasher = blake3::Hasher::new_derive_key(RANK);
        hasher.update(&node.0);
        hasher.update(&one.0);
        *hasher.finalize().as_bytes()
    });
    nodes
}

/// Serves one watcher until it goes, does not read for as long as `unread`, or `may` not be served any more. Whoever was
/// let go comes again, and goes on where it is.
pub async fn serve(
    shown: Shown,
    orders: Orders,
    mut index: u64,
    mut stream: Stream,
    unread: Duration,
    may: impl Fn() -> bool,
) {
    let mut pulse = shown.pulse.clone();
    let mut board = shown.board.subscribe();
    let mut told: BTreeMap<NodeId, Posted> = BTreeMap::new();
    let mut told_all = Instant::now();
    let mut led = None;
    // The last change of voters that the watcher has applied may be half done for it.
    let mut shown_handover = (shown.roster.borrow().handovers.iter())
        .rfind(|handover| handover.index <= index)
        .map_or(0, |handover| handover.index - 1);
    while may() {
        let marks = board.borrow_and_update().clone();
        if told_all.elapsed() > REPEAT {
            // Nothing new is news, too: the voters are there.
            told.clear();
            told_all = Instant::now();
        }
        let news = marks.iter().filter(|(node, held)| told.get(node) != Some(held));
        let mut frames: Vec<Feed> = Vec::new();
        for handover in &shown.roster.borrow().handovers {
            if handover.index > shown_handover && handover.is_complete() {
                shown_handover = handover.index;
                frames.push(Feed::Handover(handover.clone()));
            }
        }
        frames.extend(news.map(|(_, Posted { mark, made })| {
            let age = clock::steady().saturating_duration_since(*made);
            let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            Feed::Bookmark { mark: mark.clone(), age_ms }
        }));
        told = BTreeMap::clone(&marks);
        let (term, leader) = {
            let pulse = pulse.borrow_and_update();
            (pulse.term, pulse.leader)
        };
        if led != Some((term, leader)) {
            led = Some((term, leader));
            frames.push(Feed::Leader { term, leader });
        }
        for frame in frames {
            if !send(&mut stream, &frame, unread).await {
                return;
            }
        }
        match next(&shown, &orders, index).await {
            None => return,
            Some(Next::Nothing) => {}
            Some(Next::Elsewhere) => {
                send(&mut stream, &Feed::Elsewhere, unread).await;
                stream.finish();
                return;
            }
            Some(Next::Entries(entries)) => {
                index = entries.last().map_or(index, |entry| entry.index);
                if !send(&mut stream, &Feed::Entries(entries), unread).await {
                    return;
                }
                continue;
            }
            Some(Next::Snapshot(held)) => {
                index = held.snapshot.index;
                if !send_snapshot(&mut stream, &held.snapshot, unread).await {
                    return;
                }
                continue;
            }
        }
        if !shown.is_fresh(OUTDATED) {
            // The voters may have gone on without this node: its word alone would look like peace.
            send(&mut stream, &Feed::Elsewhere, unread).await;
            stream.finish();
            return;
        }
        let repeat = Instant::now() + REPEAT;
        while shown.is_fresh(OUTDATED) && Instant::now() < repeat {
            tokio::select! {
                changed = pulse.changed() => if changed.is_err() { return } else { break },
                changed = board.changed() => if changed.is_err() { return } else { break },
                () = tokio::time::sleep(LOOK) => {}
                // The watcher says nothing more: what comes is its end.
                _ = stream.recv_frame(1) => return,
            }
        }
    }
}

/// Whether the watcher took it.
async fn send(stream: &mut Stream, frame: &Feed, unread: Duration) -> bool {
    let Ok(bytes) = encode(frame) else { return false };
    matches!(tokio::time::timeout(unread, stream.send_frame(&bytes)).await, Ok(Ok(())))
}

/// A part at a time: however many read a snapshot slowly, it is in memory once.
async fn send_snapshot(stream: &mut Stream, snapshot: &Snapshot, unread: Duration) -> bool {
    let Snapshot { index, term, config, data } = snapshot;
    let bytes = data.len() as u64;
    let head = Feed::Snapshot { index: *index, term: *term, config: config.clone(), bytes };
    let mut taken = send(stream, &head, unread).await;
    for part in data.chunks(PART_BYTES) {
        taken = taken && send(stream, &Feed::Part(part.to_vec()), unread).await;
    }
    taken
}

/// What a watcher is sent next.
enum Next {
    Nothing,
    Entries(Vec<Entry>),
    Snapshot(Arc<Checkpoint>),
    /// Its entries are gone, and there is no snapshot for it here.
    Elsewhere,
}

/// What one that is at `index` gets next. `None` once the engine has ended.
async fn next(shown: &Shown, orders: &Orders, index: u64) -> Option<Next> {
    let behind = shown.pulse.borrow().index.saturating_sub(index);
    if behind > MAX_BEHIND
        && let Some(held) = checkpoint(shown, index)
    {
        return Some(Next::Snapshot(held));
    }
    let (reply, answer) = oneshot::channel();
    match orders.give(Order::After { index, reply }) {
        Err(Refused::Stopped) => return None,
        Err(Refused::Busy) => return Some(Next::Nothing),
        Ok(()) => {}
    }
    Some(match answer.await.ok()? {
        Some(entries) if entries.is_empty() => Next::Nothing,
        Some(entries) => Next::Entries(entries),
        None => checkpoint(shown, index).map_or(Next::Elsewhere, Next::Snapshot),
    })
}

/// The checkpoint, if it helps one that is at `index`.
fn checkpoint(shown: &Shown, index: u64) -> Option<Arc<Checkpoint>> {
    let held = shown.checkpoint.lock().unwrap_or_else(|held| held.into_inner());
    held.clone().filter(|held| held.snapshot.index > index)
}

/// Follows the log for as long as this node has no seat, or hears no leader at its seat.
pub struct Follower {
    /// Who follows.
    pub whoami: Whoami,
    /// What the engine shows.
    pub shown: Shown,
    /// Where confirmed entries go.
    pub orders: Orders,
    /// The way to the servers.
    pub net: Net,
    /// Told whenever a server turns this node away.
    pub turned_away: Arc<Notify>,
}

/// Why a feed ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the server could not be reached")]
    Call(#[from] mesh_transport::net::CallError),
    #[error("the server closed the feed")]
    Closed,
    #[error("the server has nothing to begin with")]
    Elsewhere,
    #[error("the server was silent")]
    Silent,
    #[error("no majority signed the server's snapshot")]
    Unsigned,
    #[error("the server sent something that does not fit: {0}")]
    Nonsense(&'static str),
    #[error("the server confirmed nothing for too long")]
    Unconfirmed,
    #[error("it is another server's turn")]
    Turn,
    #[error("the engine is busy")]
    Busy,
    #[error("no feed is needed")]
    Needless,
}

impl Follower {
    /// Runs until the engine ends.
    pub async fn run(self) {
        let mut tries = 0usize;
        let mut pulse = self.shown.pulse.clone();
        loop {
            if !self.needs_feed() {
                tries = 0;
                tokio::select! {
                    changed = pulse.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
                continue;
            }
            let servers = servers_and_others(&self.shown, self.whoami.node);
            if let Some(server) = servers.get(tries % servers.len().max(1)).copied() {
                match self.follow(server).await {
                    Ended::Needless => continue,
                    Ended::Turn => {
                        tries += 1;
                        continue;
                    }
                    why => {
                        if matches!(&why, Ended::Call(error) if is_turned_away(error)) {
                            self.turned_away.notify_one();
                        }
                        tracing::debug!(server = %server.short(), %why, "a feed has ended");
                    }
                }
            }
            tries += 1;
            let wait = if tries.is_multiple_of(servers.len().max(1)) { 500 } else { 50 };
            tokio::time::sleep(Duration::from_millis(wait + fastrand::u64(0..50))).await;
            if pulse.has_changed().is_err() {
                return;
            }
        }
    }

    fn needs_feed(&self) -> bool {
        let pulse = self.shown.pulse.borrow();
        match pulse.part {
            Part::Watcher | Part::Joining => true,
            // A seat that lost its leader: have the others gone on without it?
            Part::Voter | Part::Learner => {
                !pulse.is_leader() && pulse.fresh.is_none_or(|at| at.elapsed() > LOST)
            }
        }
    }

    async fn follow(&self, server: NodeId) -> Ended {
        match self.feed(server).await {
            Err(ended) => ended,
            Ok(never) => match never {},
        }
    }

    async fn feed(&self, server: NodeId) -> Result<std::convert::Infallible, Ended> {
        let index = self.shown.pulse.borrow().index;
        let header = encode(&Header::Watch { index }).map_err(|_| Ended::Nonsense("our header"))?;
        let mut stream = self.net.open(server, header, Lane::Control).await?;
        let mut reading = Reading::new(self, index);
        let began = Instant::now();
        loop {
            let frame = tokio::time::timeout(SILENCE, stream.recv_frame(MAX_FEED_FRAME)).await;
            let bytes = match frame {
                Err(_) => return Err(Ended::Silent),
                Ok(Ok(Some(bytes))) => bytes,
                Ok(_) => return Err(Ended::Closed),
            };
            let feed: Feed = decode(&bytes).map_err(|_| Ended::Nonsense("an unknown frame"))?;
            reading.pace.note(&feed, bytes.len());
            reading.take(feed)?;
            reading.pass_on().await?;
            if !self.needs_feed() {
                return Err(Ended::Needless);
            }
            self.look_for_seat(&reading, began)?;
            self.look_at_server(began, &mut reading.pace)?;
        }
    }

    /// Nobody who serves is believed, nor may it keep us from the others. One that still sends what we lack,
    /// and not too slowly, is let go on.
    fn look_at_server(&self, began: Instant, pace: &mut Pace) -> Result<(), Ended> {
        let fresh = self.shown.is_fresh(UNCONFIRMED);
        if !fresh && pace.goes_on() {
            return Ok(());
        }
        if began.elapsed() > TURN {
            return Err(Ended::Turn);
        }
        if began.elapsed() > UNCONFIRMED && !fresh {
            return Err(Ended::Unconfirmed);
        }
        Ok(())
    }

    /// At a seat: if a majority has confirmed what raft does not bring us, the seat is worth nothing.
    fn look_for_seat(&self, reading: &Reading<'_>, began: Instant) -> Result<(), Ended> {
        let pulse = self.shown.pulse.borrow().clone();
        if matches!(pulse.part, Part::Voter | Part::Learner) {
            let ahead = reading.confirmed() > pulse.index;
            if ahead && began.elapsed() > LOST {
                let _ = self.orders.give(Order::Overtaken);
                return Err(Ended::Needless);
            }
        }
        Ok(())
    }
}

/// How much of what we lack a server sends, in turns of [`UNCONFIRMED`].
struct Pace {
    since: Instant,
    bytes: usize,
}

impl Pace {
    fn note(&mut self, feed: &Feed, bytes: usize) {
        if matches!(feed, Feed::Part(_) | Feed::Entries(_)) {
            self.bytes += bytes;
        }
    }

    fn goes_on(&mut self) -> bool {
        if self.since.elapsed() < UNCONFIRMED {
            return true;
        }
        let enough = self.bytes >= SLOWEST_BYTES;
        (self.since, self.bytes) = (Instant::now(), 0);
        enough
    }
}

/// One feed, as far as it was read.
struct Reading<'a> {
    follower: &'a Follower,
    tally: Tally,
    /// The last index in `held`, or where the engine was.
    last: u64,
    /// History at the index before `held`, if it is known.
    base: Option<(u64, Hash)>,
    /// Not confirmed yet: entry and the history up to it.
    held: VecDeque<(Entry, Hash)>,
    held_bytes: usize,
    /// Changes of voters that those before have signed, in order.
    handovers: Vec<Handover>,
    pace: Pace,
    /// A snapshot on its way.
    arriving: Option<(Snapshot, u64)>,
    /// A snapshot that waits for its digest to be confirmed, and the digest.
    whole: Option<(Snapshot, Hash)>,
    /// Since when it waits.
    whole_since: Instant,
}

impl<'a> Reading<'a> {
    fn new(follower: &'a Follower, index: u64) -> Self {
        let pulse = follower.shown.pulse.borrow();
        let base = (pulse.index == index && index > 0).then_some((index, pulse.history));
        let Whoami { mesh, epoch, .. } = follower.whoami;
        let (tally, held) = (Tally::new(mesh, epoch), VecDeque::new());
        let whole_since = Instant::now();
        Self {
            follower,
            tally,
            last: index,
            base,
            held,
            held_bytes: 0,
            handovers: Vec::new(),
            pace: Pace { since: Instant::now(), bytes: 0 },
            arriving: None,
            whole: None,
            whole_since,
        }
    }

    fn take(&mut self, feed: Feed) -> Result<(), Ended> {
        match feed {
            Feed::Bookmark { mark, age_ms } => self.on_bookmark(mark, age_ms),
            Feed::Entries(entries) => self.on_entries(entries)?,
            Feed::Snapshot { index, term, config, bytes } => {
                if bytes > MAX_SNAPSHOT_BYTES as u64 || !config.is_sound() {
                    return Err(Ended::Nonsense("a snapshot's head"));
                }
                let snapshot = Snapshot { index, term, config, data: Vec::new() };
                self.whole = None;
                self.arriving = Some((snapshot, bytes));
                self.finish_snapshot();
            }
            Feed::Part(part) => {
                let Some((snapshot, bytes)) = &mut self.arriving else {
                    return Err(Ended::Nonsense("a part of nothing"));
                };
                if (snapshot.data.len() + part.len()) as u64 > *bytes || part.is_empty() {
                    return Err(Ended::Nonsense("a snapshot that is longer than it said"));
                }
                snapshot.data.extend_from_slice(&part);
                self.finish_snapshot();
            }
            Feed::Leader { term, leader } => {
                let _ = self.follower.orders.give(Order::Led { term, leader });
            }
            Feed::Elsewhere => return Err(Ended::Elsewhere),
            Feed::Handover(handover) => self.on_handover(handover)?,
        }
        Ok(())
    }

    fn on_handover(&mut self, handover: Handover) -> Result<(), Ended> {
        let Handover { index, from, to, signed } = &handover;
        let follows = self.handovers.last().is_none_or(|last| last.index < *index);
        let few = [from.len(), to.len(), signed.len()].iter().all(|count| *count <= MAX_VOTERS);
        if !follows || !few || self.handovers.len() >= MAX_HANDOVERS {
            return Err(Ended::Nonsense("changes of voters without end"));
        }
        let Whoami { mesh, epoch, .. } = self.follower.whoami;
        if !handover.is_proven(mesh, epoch) {
            return Err(Ended::Nonsense("a change of voters that nobody signed"));
        }
        self.handovers.push(handover);
        Ok(())
    }

    fn finish_snapshot(&mut self) {
        if let Some((snapshot, bytes)) = &self.arriving
            && snapshot.data.len() as u64 == *bytes
            && let Some((snapshot, _)) = self.arriving.take()
        {
            self.last = snapshot.index;
            self.held.clear();
            self.held_bytes = 0;
            self.base = replica::history_of(&snapshot).map(|history| (snapshot.index, history));
            let digest = snapshot.digest();
            self.whole = Some((snapshot, digest));
            self.whole_since = Instant::now();
        }
    }

    /// The sets of voters that this node believes, each of which must agree: one, or two while the
    /// configuration is joint. Those it was told of, while it knows nothing else. If they have signed who came
    /// after them, those.
    fn voters(&self) -> Vec<BTreeSet<NodeId>> {
        believed(&self.follower.shown.roster.borrow(), &self.handovers)
    }

    fn on_bookmark(&mut self, mark: Bookmark, age_ms: u64) {
        let signers = self.voters().into_iter().flatten().collect();
        match self.tally.take(mark.clone(), &signers) {
            Ok(true) => {
                // One older than this process says nothing of who is there now.
                if let Some(made) = clock::steady().checked_sub(Duration::from_millis(age_ms)) {
                    // The engine compares it with what it has applied.
                    self.follower.shown.post(mark, made);
                }
            }
            Ok(false) => {}
            // A server's mistake or a lie: no harm comes of it.
            Err(error) => tracing::debug!(%error, "a bookmark does not count"),
        }
    }

    fn on_entries(&mut self, entries: Vec<Entry>) -> Result<(), Ended> {
        let Some((_, base)) = self.base else { return Err(Ended::Nonsense("entries of nothing")) };
        for entry in entries {
            self.held_bytes += bytes_of(&entry);
            let full = self.held.len() >= MAX_HELD || self.held_bytes > MAX_HELD_BYTES;
            if entry.index != self.last + 1 || full {
                return Err(Ended::Nonsense("entries that do not follow"));
            }
            let before = self.held.back().map_or(base, |(_, history)| *history);
            let history = replica::chain(before, &entry);
            self.last = entry.index;
            self.held.push_back((entry, history));
        }
        Ok(())
    }

    fn history_at(&self, index: u64) -> Option<Hash> {
        let (start, base) = self.base?;
        if index == start {
            return Some(base);
        }
        let at = usize::try_from(index.checked_sub(start + 1)?).ok()?;
        self.held.get(at).map(|(_, history)| *history)
    }

    /// What a majority of the voters that we know has signed.
    fn confirmed(&self) -> u64 {
        let sets = self.voters().into_iter();
        let confirmed = sets.map(|set| self.tally.confirmed(&set, |index| self.history_at(index)));
        confirmed.min().unwrap_or(0)
    }

    /// When a majority was last there. Old words that a server repeats change nothing.
    fn majority_lived(&self) -> Option<std::time::Instant> {
        let board = self.follower.shown.board.borrow().clone();
        let sets = self.voters().into_iter().map(|set| last_majority(&set, &board));
        sets.min().flatten()
    }

    /// Whether a majority has signed the snapshot.
    fn is_signed(&self, index: u64, digest: Hash) -> bool {
        self.voters().iter().all(|set| self.tally.have_signed((index, digest), set))
    }

    /// Hands what is confirmed to the engine, and waits until it is applied: voters may change in it.
    async fn pass_on(&mut self) -> Result<(), Ended> {
        if let Some((snapshot, digest)) = &self.whole {
            if !self.is_signed(snapshot.index, *digest) {
                // The voters may have gone on to a newer one before this feed began.
                return match self.whole_since.elapsed() > SNAPSHOT_PATIENCE {
                    true => Err(Ended::Unsigned),
                    false => Ok(()),
                };
            }
            if let Some((snapshot, _)) = self.whole.take() {
                let index = snapshot.index;
                self.give(Order::Restore(Box::new(snapshot)), index).await?;
            }
        }
        loop {
            let confirmed = self.confirmed();
            let mut ready = Vec::new();
            while let Some((entry, _)) = self.held.front()
                && entry.index <= confirmed
            {
                let Some((entry, history)) = self.held.pop_front() else { break };
                let changes = matches!(entry.payload, Payload::Config(_));
                self.base = Some((entry.index, history));
                self.held_bytes = self.held_bytes.saturating_sub(bytes_of(&entry));
                ready.push(entry);
                if changes {
                    // Who votes from here on decides what is confirmed.
                    break;
                }
            }
            let Some(last) = ready.last().map(|entry| entry.index) else {
                let up_to_date = confirmed >= self.follower.shown.pulse.borrow().index;
                if confirmed > 0
                    && up_to_date
                    && let Some(at) = self.majority_lived()
                    && self.follower.shown.pulse.borrow().fresh < Some(at)
                {
                    let _ = self.follower.orders.give(Order::Fresh(at));
                }
                return Ok(());
            };
            self.give(Order::Confirmed(ready), last).await?;
        }
    }

    /// Gives an order that brings the engine to `index`, and waits for it.
    async fn give(&self, order: Order, index: u64) -> Result<(), Ended> {
        if matches!(self.follower.shown.pulse.borrow().part, Part::Voter | Part::Learner) {
            // A seated engine takes entries from raft alone; we only look.
            return Ok(());
        }
        self.follower.orders.give(order).map_err(|_| Ended::Busy)?;
        let mut pulse = self.follower.shown.pulse.clone();
        let reached = pulse.wait_for(|pulse| {
            pulse.index >= index || matches!(pulse.part, Part::Voter | Part::Learner)
        });
        match tokio::time::timeout(SILENCE, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Ended::Busy),
        }
    }
}

fn bytes_of(entry: &Entry) -> usize {
    match &entry.payload {
        Payload::Batch { bytes, .. } => bytes.len(),
        Payload::Empty | Payload::Config(_) => 0,
    }
}

/// The latest moment after which more than half of the voters have signed something.
fn last_majority(
    voters: &BTreeSet<NodeId>,
    board: &BTreeMap<NodeId, Posted>,
) -> Option<std::time::Instant> {
    let mut made: Vec<_> = board.iter().filter(|(node, _)| voters.contains(node)).collect();
    made.sort_unstable_by_key(|(_, held)| std::cmp::Reverse(held.made));
    made.get(voters.len() / 2).map(|(_, held)| held.made)
}

/// The sets of voters that one with this roster believes, after these changes: see [`Reading::voters`].
fn believed(roster: &Roster, handovers: &[Handover]) -> Vec<BTreeSet<NodeId>> {
    // Changes that it has applied itself are behind it; the last one, only once it is complete.
    let applied = roster.handovers.last().map_or(0, |handover| handover.index);
    let ahead = |handover: &&Handover| match roster.outgoing.is_empty() {
        true => handover.index > applied,
        false => handover.index >= applied,
    };
    let second = (!roster.outgoing.is_empty()).then_some(&roster.outgoing);
    let sets = std::iter::once(&roster.voters).chain(second);
    sets.map(|set| voters_after(set, handovers.iter().filter(ahead))).collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures::future::BoxFuture;
    use mesh_consensus::id::MeshId;
    use mesh_consensus::log::Config;
    use mesh_transport::identity::NodeKey;
    use mesh_transport::net::{Service, Tuning, Welcome};
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::*;
    use crate::engine::tests::founded;
    use crate::handle::Pulse;

    fn voters(all: &[u8]) -> BTreeSet<NodeId> {
        all.iter().map(|n| NodeId([*n; 32])).collect()
    }

    fn change(index: u64, from: &[u8], to: &[u8]) -> Handover {
        Handover::new(index, voters(from), voters(to))
    }

    #[test]
    fn changes_that_were_applied_are_not_followed_again() {
        let there_and_back = [change(5, &[1], &[2]), change(9, &[2], &[1])];
        let roster = |applied: usize, now: &[u8]| Roster {
            voters: voters(now),
            handovers: there_and_back[..applied].to_vec(),
            ..Roster::default()
        };
        // It slept through both, through the second, and through none.
        assert_eq!(believed(&roster(0, &[1]), &there_and_back), [voters(&[1])]);
        assert_eq!(believed(&roster(1, &[2]), &there_and_back), [voters(&[1])]);
        assert_eq!(believed(&roster(2, &[1]), &there_and_back), [voters(&[1])]);
        // Nor does half of the way lead back to where it came from.
        assert_eq!(believed(&roster(2, &[1]), &there_and_back[..1]), [voters(&[1])]);
        assert_eq!(believed(&roster(0, &[1]), &there_and_back[..1]), [voters(&[2])]);
    }

    #[tokio::test]
    async fn whoever_has_fallen_far_behind_begins_anew_with_a_snapshot() {
        let (_temp, engine, orders, mut shown) = founded();
        // As if much had happened since the mesh was founded.
        let now = 3 * MAX_BEHIND;
        let pulse = Pulse { index: now, ..shown.pulse.borrow().clone() };
        let (_pulse, seen) = watch::channel(pulse);
        shown.pulse = seen;
        let index = now - 10;
        let snapshot = Snapshot { index, term: 1, config: Config::default(), data: Vec::new() };
        let digest = snapshot.digest();
        *shown.checkpoint.lock().unwrap() = Some(Arc::new(Checkpoint { snapshot, digest }));
        let sent = next(&shown, &orders, now - MAX_BEHIND - 1).await;
        assert!(matches!(sent, Some(Next::Snapshot(held)) if held.snapshot.index == index));
        // Whoever is nearer gets entries: the log is asked, which here is gone with the engine.
        drop(engine);
        assert!(next(&shown, &orders, now - MAX_BEHIND).await.is_none());
    }

    /// Serves a feed to whoever opens a stream, and counts those that have ended.
    struct Server {
        shown: Shown,
        orders: Orders,
        unread: Duration,
        ended: watch::Sender<usize>,
    }

    impl Service for Server {
        fn hello(&self) -> Vec<u8> {
            Vec::new()
        }

        fn welcome(&self, _: NodeId, _: &[u8]) -> Welcome {
            Welcome::Full
        }

        fn still(&self, _: NodeId) -> Welcome {
            Welcome::Full
        }

        fn on_message(&self, _: NodeId, _: Vec<u8>) {}

        fn on_call(&self, _: NodeId, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
            Box::pin(async move { request })
        }

        fn on_stream(&self, _: NodeId, _: Vec<u8>, stream: Stream) -> BoxFuture<'_, ()> {
            Box::pin(async move {
                let (shown, orders) = (self.shown.clone(), self.orders.clone());
                serve(shown, orders, 0, stream, self.unread, || true).await;
                self.ended.send_modify(|ended| *ended += 1);
            })
        }

        fn on_join(&self, _: NodeId, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
            Box::pin(async move { request })
        }
    }

    /// How many bytes of a snapshot come, until that is `all` or the feed ends.
    async fn bytes_read(stream: &mut Stream, all: usize) -> usize {
        let mut read = 0;
        while read < all
            && let Ok(Some(bytes)) = stream.recv_frame(MAX_FEED_FRAME).await
        {
            if let Ok(Feed::Part(part)) = decode::<Feed>(&bytes) {
                read += part.len();
            }
        }
        read
    }

    #[tokio::test]
    async fn a_watcher_that_does_not_read_is_let_go_and_may_come_again() {
        let (_temp, _engine, orders, mut shown) = founded();
        // More than is under way while nobody reads.
        let data = vec![7; 16 << 20];
        let all = data.len();
        let snapshot = Snapshot { index: 10, term: 1, config: Config::default(), data };
        let digest = snapshot.digest();
        *shown.checkpoint.lock().unwrap() = Some(Arc::new(Checkpoint { snapshot, digest }));
        let pulse = Pulse { index: MAX_BEHIND + 1, ..shown.pulse.borrow().clone() };
        let (_pulse, seen) = watch::channel(pulse);
        shown.pulse = seen;

        let (unread, ended) = (Duration::from_secs(2), watch::Sender::new(0));
        let mut has_ended = ended.subscribe();
        let server = Arc::new(Server { shown, orders, unread, ended });
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let bind =
            |key: &NodeKey| Net::bind(key, &[any], Tuning::default(), server.clone()).unwrap();
        let key = NodeKey::generate();
        let (theirs, ours) = (bind(&key), bind(&NodeKey::generate()));
        ours.learn(key.id(), theirs.addresses());

        let open = || ours.open(key.id(), Vec::new(), Lane::Control);
        let mut deaf = open().await.unwrap();
        let gone = timeout(UNREAD / 2, has_ended.wait_for(|ended| *ended == 1)).await;
        assert!(gone.is_ok(), "it is still served");
        drop(gone);
        assert!(bytes_read(&mut deaf, all).await < all);
        // The next time it reads.
        let mut again = open().await.unwrap();
        assert_eq!(timeout(UNREAD, bytes_read(&mut again, all)).await, Ok(all));
        assert_eq!(*has_ended.borrow(), 1);
    }

    #[test]
    fn a_majority_lived_when_its_oldest_word_was_said() {
        let start = clock::steady();
        let at = |second: u64| start + Duration::from_secs(second);
        let key = ed25519_dalek::SigningKey::from_bytes(&[1; 32]);
        let said = |second: u64| {
            let mark = Bookmark::sign(&key, MeshId([0; 32]), 0, 1, Hash([0; 32]), None, 1);
            Posted { mark, made: at(second) }
        };
        let board: BTreeMap<NodeId, Posted> =
            [(1, 9), (2, 4), (3, 2), (7, 20)].map(|(n, s)| (NodeId([n; 32]), said(s))).into();
        let lived = |all: &[u8]| last_majority(&voters(all), &board);
        assert_eq!(lived(&[1, 2, 3]), Some(at(4)));
        // The fourth and the fifth were never heard.
        assert_eq!(lived(&[1, 2, 3, 4, 5]), Some(at(2)));
        assert_eq!(lived(&[1, 4, 5]), None);
        // Not a majority, but a half.
        assert_eq!(lived(&[1, 2, 4, 5]), None);
    }

    #[test]
    fn those_who_handed_over_need_not_be_heard_any_more() {
        let joint = Roster {
            voters: voters(&[1, 2, 4]),
            outgoing: voters(&[1, 2, 3]),
            handovers: vec![change(5, &[1, 2, 3], &[1, 2, 4])],
            ..Roster::default()
        };
        assert_eq!(believed(&joint, &[]), [voters(&[1, 2, 4]), voters(&[1, 2, 3])]);
        let proven = [change(5, &[1, 2, 3], &[1, 2, 4])];
        assert_eq!(believed(&joint, &proven), [voters(&[1, 2, 4]), voters(&[1, 2, 4])]);
    }
}
