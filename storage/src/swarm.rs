//! Which chunk to ask of whom, and whom to send one: the planner of a pull, and of serving it.
//!
//! A [`Swarm`] plans the pull of one version by one node. A [`Serve`] plans what one node sends of
//! one version to those who pull it. A node in a swarm has both. Neither acts: events and the time go in,
//! and what should be said to whom comes out. Sockets, hashing, disks and clocks are for the caller.
//!
//! ```text
//!            on_peer  on_have  on_chunk  on_gone …
//!   network ───────────────────────────────────────► Swarm ── poll ──► Plan: asks, cancels, links
//!            on_peer  on_ask   on_sent   on_gone …
//!   network ───────────────────────────────────────► Serve ── next ──► Reply: chunk, nothing, refused
//! ```
//!
//! How one copy at the source becomes N at the pullers in little more than the time of one copy:
//!
//! - The source hands out chunks that nobody has yet ([`Ask::Any`]), each to one puller, a few at a time: whoever has
//!   a whole chunk can pass it on, and halves help nobody.
//! - Pullers ask one another for what they have, the rarest first, ties in an order of their own, so
//!   that they hold different chunks and have something to trade. Never in the order of the content.
//! - Little is asked ahead of each peer, and what waits at a busy one moves to one that is idle.
//! - An uplink is shared by as few uploads as fill it. Where downlinks are the limit, that takes many.
//!
//! Whatever peers say is data: numbers that do not exist cost the peer its link, and everything kept
//! per peer is bounded. See `swarm/sim.rs` for a simulated network that measures all this.

mod choose;
mod links;
mod peer;
mod serve;

#[cfg(test)]
mod figures;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::{NodeId, VersionId};
use mesh_consensus::time::Time;

pub use self::serve::{Reply, Serve, ServeSettings};

use self::choose::Window;
use self::links::Links;
use self::peer::{Durations, Peer};
use crate::bitmap::Bitmap;

/// What a puller asks of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// This chunk.
    Chunk(u32),
    /// So many chunks of the peer's choice: what nobody has yet. Asked of complete peers only.
    Any(u32),
}

/// What the caller should do now. Each part is said once.
#[must_use]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Whom to ask for what, in this order.
    pub asks: Vec<(NodeId, Ask)>,
    /// What is no longer wanted of whom.
    pub cancels: Vec<(NodeId, u32)>,
    /// Whom to open a stream to. Answer with `on_peer`, or with `on_gone` if it fails.
    pub link: Vec<NodeId>,
    /// Whose stream to close. They are forgotten already: no `on_gone` is needed.
    pub drop: Vec<NodeId>,
    /// Whether every chunk is here.
    pub done: bool,
    /// When to poll again if nothing happens before.
    pub wake_at: Option<Time>,
}

/// How a pull behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Links to peers that are not complete. In a swarm of 16, half as many cost a twentieth of the speed.
    pub links: usize,
    /// Links to complete peers, on top.
    pub sources: usize,
    /// The least that may be asked of a peer ahead, in chunks.
    pub min_credits: usize,
    /// The most that may be asked of a peer ahead, in chunks.
    pub max_credits: usize,
    /// No chunk is given up before.
    pub least_timeout: Duration,
    /// Who refused or stalled is left alone for so long; twice as long each further time.
    pub rest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            links: 16,
            sources: 2,
            min_credits: 3,
            max_credits: 16,
            least_timeout: Duration::from_secs(2),
            rest: Duration::from_millis(500),
        }
    }
}

/// How far a pull has come, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Chunks that are here.
    pub chunks: usize,
    /// Of so many.
    pub of: usize,
    /// Peers with an open stream.
    pub peers: usize,
    /// Chunks that came although they were here.
    pub duplicates: u64,
    /// Chunks that did not come in time.
    pub timeouts: u64,
}

/// The pull of one version. See the module.
#[derive(Debug)]
pub struct Swarm {
    settings: Settings,
    lengths: Vec<u32>,
    /// In bytes, at least one.
    mean_chunk: f64,
    have: Bitmap,
    /// Decides ties, so that no two nodes want chunks in the same order.
    salt: u64,
    peers: BTreeMap<NodeId, Peer>,
    links: Links,
    /// Chunks that were asked for by number, and of whom: one peer, or two in the endgame.
    asked: BTreeMap<u32, Vec<NodeId>>,
    window: Window,
    /// How long chunks took from ask to arrival.
    durations: Durations,
    /// To be said at the next poll.
    cancels: Vec<(NodeId, u32)>,
    drops: BTreeSet<NodeId>,
    duplicates: u64,
    timeouts: u64,
}

impl Swarm {
    /// The pull of `version` by the node `own`: chunks of these lengths, of which it has some.
    ///
    /// A bitmap of another length than `lengths` counts as empty.
    pub fn new(
        own: NodeId,
        version: VersionId,
        lengths: &[u32],
        have: Bitmap,
        seed: u64,
        settings: Settings,
    ) -> Self {
        let have = if have.len() == lengths.len() { have } else { Bitmap::new(lengths.len()) };
        let total: f64 = lengths.iter().map(|bytes| f64::from(*bytes)).sum();
        let salt = links::pair(version, own, own) ^ seed;
        Self {
            window: Window::new(&have, salt),
            links: Links::new(own, version),
            settings,
            mean_chunk: (total / lengths.len().max(1) as f64).max(1.0),
            lengths: lengths.to_vec(),
            have,
            salt,
            peers: BTreeMap::new(),
            asked: BTreeMap::new(),
            durations: Durations::default(),
            cancels: Vec::new(),
            drops: BTreeSet::new(),
            duplicates: 0,
            timeouts: 0,
        }
    }

    /// What is here.
    pub fn have(&self) -> &Bitmap {
        &self.have
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress {
            chunks: self.have.count(),
            of: self.have.len(),
            peers: self.peers.len(),
            duplicates: self.duplicates,
            timeouts: self.timeouts,
        }
    }

    /// These nodes are said to be complete (owners, or the one that made the version): they are linked first.
    pub fn on_sources(&mut self, nodes: &[NodeId]) {
        self.links.add(nodes, true);
    }

    /// These nodes are said to pull the version, too, or to have some of it.
    pub fn on_others(&mut self, nodes: &[NodeId]) {
        self.links.add(nodes, false);
    }

    /// A stream to `node` is open, and this is what it has. A bitmap of a wrong length is a lie.
    pub fn on_peer(&mut self, now: Time, node: NodeId, has: Bitmap) {
        if has.len() != self.have.len() {
            return self.blame(node);
        }
        self.release(node);
        let room = self.settings.links + self.settings.sources;
        if self.links.is_blamed(node) || self.peers.len() >= room {
            self.drops.insert(node);
            return self.links.failed(now, node);
        }
        self.links.opened(node);
        self.peers.insert(node, Peer::new(now, has));
    }

    /// How long a byte takes to `node` and back.
    pub fn on_rtt(&mut self, node: NodeId, rtt: Duration) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.rtt = rtt.min(Duration::from_secs(2));
        }
    }

    /// `node` has got these, too.
    pub fn on_have(&mut self, node: NodeId, chunks: &[u32]) {
        let count = self.have.len();
        if chunks.iter().any(|chunk| *chunk as usize >= count) {
            return self.blame(node);
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        for chunk in chunks {
            if peer.has.set(*chunk as usize) && !self.have.get(*chunk as usize) {
                self.window.hint(*chunk);
            }
        }
    }

    /// Bytes of a chunk come from `node`. To be called at the first, and again every second or so while they come:
    /// what is coming is not asked of others, unless it takes far too long.
    pub fn on_began(&mut self, now: Time, node: NodeId, chunk: u32) {
        let Some(bytes) = self.lengths.get(chunk as usize).copied() else { return };
        let has = self.have.get(chunk as usize);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if !peer.on_began(now, chunk, bytes) {
            return;
        }
        if has {
            peer.forget(chunk);
            return;
        }
        // The peer has chosen it: nobody else needs to send it.
        for other in self.asked.insert(chunk, vec![node]).unwrap_or_default() {
            if self.peers.get_mut(&other).is_some_and(|peer| peer.forget(chunk)) {
                self.cancels.push((other, chunk));
            }
        }
    }

    /// A chunk came from `node`, whole. `ok` says whether its bytes hash to its name: if not, the
    /// peer is dropped and never linked again, and all that it was asked for is asked of others.
    pub fn on_chunk(&mut self, now: Time, node: NodeId, chunk: u32, ok: bool) {
        let Some(bytes) = self.lengths.get(chunk as usize).copied().filter(|_| ok) else {
            return self.blame(node);
        };
        if let Some(peer) = self.peers.get_mut(&node) {
            if let Some(took) = peer.on_chunk(now, chunk, bytes) {
                self.durations.add(took);
            }
            self.links.worked(node);
        }
        for other in self.asked.remove(&chunk).unwrap_or_default() {
            if other != node && self.peers.get_mut(&other).is_some_and(|peer| peer.forget(chunk)) {
                self.cancels.push((other, chunk));
            }
        }
        if !self.have.set(chunk as usize) {
            self.duplicates += 1;
        }
    }

    /// A chunk is here without having come from a peer under this number: it is the same as another one.
    pub fn on_here(&mut self, chunk: u32) {
        if chunk as usize >= self.lengths.len() || !self.have.set(chunk as usize) {
            return;
        }
        for node in self.asked.remove(&chunk).unwrap_or_default() {
            if self.peers.get_mut(&node).is_some_and(|peer| peer.forget(chunk)) {
                self.cancels.push((node, chunk));
            }
        }
    }

    /// `node` will not send this chunk.
    pub fn on_refused(&mut self, now: Time, node: NodeId, chunk: u32) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.forget(chunk) {
            // It may have lost the chunk, or be too busy. Either way it is left alone for a while.
            peer.rest(now, self.settings.rest);
            peer.refuse(chunk);
            self.unask(node, chunk);
        }
    }

    /// `node` has no chunk to choose: every one is at some puller already.
    pub fn on_nothing(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.on_nothing();
        }
    }

    /// The stream to `node` is closed, or could not be opened.
    pub fn on_gone(&mut self, now: Time, node: NodeId) {
        self.release(node);
        self.links.failed(now, node);
    }

    /// Whoever lies, lies once.
    fn blame(&mut self, node: NodeId) {
        self.release(node);
        self.links.blame(node);
        self.drops.insert(node);
    }

    /// Forgets a peer. What it was asked for is free to be asked of others.
    fn release(&mut self, node: NodeId) {
        let Some(peer) = self.peers.remove(&node) else { return };
        for ask in peer.asked {
            self.unask(node, ask.chunk);
        }
    }

    fn unask(&mut self, node: NodeId, chunk: u32) {
        let Some(nodes) = self.asked.get_mut(&chunk) else { return };
        nodes.retain(|asked| *asked != node);
        if nodes.is_empty() {
            self.asked.remove(&chunk);
            self.window.hint(chunk);
        }
    }
}
