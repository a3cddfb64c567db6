//! What this node has heard, shared by everyone in the process who wants to know or tell.
//!
//! The hub owns the [`View`]. Whatever good comes in, by gossip, by a pull or from a cache, also tells the data
//! plane and the overlay where the node can be dialled.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use mesh_consensus::id::{MeshId, NodeId};
use mesh_transport::net::Net;
use mesh_transport::overlay::{Judged as Verdict, Overlay};
use serde::{Deserialize, Serialize};

use super::signed::{Said, Signed};
use super::view::{Judged, Known, Relayed, View};
use crate::clock;
use crate::engine::Shown;
use crate::wire::Welcome;

/// A member that was silent for this long is not thought to be alive: two refreshes and a half.
pub(crate) const SILENT: Duration = Duration::from_secs(120);

/// Where a node was last known to be. A cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Which node.
    pub node: NodeId,
    /// Its data plane.
    pub data: Vec<SocketAddr>,
    /// Its overlay.
    pub overlay: Vec<SocketAddr>,
}

/// What this node has heard.
pub struct Hub {
    node: NodeId,
    shown: Shown,
    view: Mutex<View>,
    net: OnceLock<Net>,
    overlay: OnceLock<Overlay>,
    /// Where this node can be dialled.
    here: Mutex<Vec<SocketAddr>>,
    peers: Mutex<std::collections::BTreeMap<NodeId, Peer>>,
}

impl Hub {
    /// Has heard nothing yet.
    pub fn new(mesh: MeshId, node: NodeId, shown: Shown) -> Self {
        Self {
            node,
            shown,
            view: Mutex::new(View::new(mesh, clock::steady())),
            net: OnceLock::new(),
            overlay: OnceLock::new(),
            here: Mutex::default(),
            peers: Mutex::default(),
        }
    }

    /// From here on, addresses go to the data plane and the overlay.
    pub fn connect(&self, net: Net, overlay: Overlay) {
        for peer in lock(&self.peers).values() {
            net.learn(peer.node, peer.data.clone());
            overlay.learn(peer.node, peer.overlay.clone());
        }
        let _ = self.net.set(net);
        let _ = self.overlay.set(overlay);
    }

    /// The overlay, once it runs.
    pub fn overlay(&self) -> Option<&Overlay> {
        self.overlay.get()
    }

    /// Judges a message of gossip, for the overlay.
    pub fn judge(&self, bytes: &[u8]) -> Verdict {
        match self.take(bytes) {
            Judged::Good => Verdict::Good,
            Judged::Stale => Verdict::Stale,
            Judged::Bad => Verdict::Bad,
        }
    }

    /// Takes a message that was heard now, our own among them.
    pub fn take(&self, bytes: &[u8]) -> Judged {
        let judged = lock(&self.view).take(clock::steady(), bytes, |node| self.is_known(node));
        self.note(judged, bytes);
        judged
    }

    /// Takes what another node had kept.
    pub fn take_relayed(&self, relayed: &Relayed) -> Judged {
        let now = clock::steady();
        let judged = lock(&self.view).take_relayed(now, relayed, |node| self.is_known(node));
        self.note(judged, &relayed.bytes);
        judged
    }

    fn is_known(&self, node: NodeId) -> bool {
        let roster = self.shown.roster.borrow();
        roster.members.contains_key(&node)
            || (roster.index == 0 && roster.introduced.contains(&node))
    }

    /// A good whole record says where its node is.
    fn note(&self, judged: Judged, bytes: &[u8]) {
        if judged != Judged::Good {
            return;
        }
        let Ok(signed) = Signed::parse(bytes) else { return };
        if let Said::Whole(record) = signed.said() {
            let (data, overlay) = (record.data.clone(), record.overlay.clone());
            self.place(Peer { node: signed.node(), data, overlay });
        }
    }

    /// Says where a node is.
    pub fn place(&self, peer: Peer) {
        if peer.node == self.node {
            return;
        }
        if let Some(net) = self.net.get() {
            net.learn(peer.node, peer.data.clone());
        }
        if let Some(overlay) = self.overlay.get() {
            overlay.learn(peer.node, peer.overlay.clone());
        }
        lock(&self.peers).insert(peer.node, peer);
    }

    /// Where members are, to be kept for the next start.
    pub fn peers(&self) -> Vec<Peer> {
        lock(&self.peers).values().cloned().collect()
    }

    /// Forgets who is not a member any more, and expects to hear from those who are.
    pub fn retain(&self) {
        let everyone = self.shown.roster.borrow().everyone();
        let mut view = lock(&self.view);
        view.retain(|node| everyone.contains(&node));
        view.expect(clock::steady(), everyone);
        drop(view);
        lock(&self.peers).retain(|node, _| self.is_known(*node));
    }

    /// Notices whether this node itself was asleep. To be called every second or so.
    pub fn on_tick(&self) {
        lock(&self.view).on_tick(clock::steady());
    }

    /// What is missing in a digest.
    pub fn newer_than(&self, digest: &[Known]) -> Vec<Relayed> {
        lock(&self.view).newer_than(clock::steady(), digest)
    }

    /// Everything, for a newcomer.
    pub fn all(&self) -> Vec<Relayed> {
        self.newer_than(&[])
    }

    /// This node's own words.
    pub fn own(&self) -> Vec<Relayed> {
        let others: Vec<Known> =
            self.digest().into_iter().filter(|known| known.node != self.node).collect();
        let own = |relayed: &Relayed| {
            Signed::parse(&relayed.bytes).is_ok_and(|signed| signed.node() == self.node)
        };
        self.newer_than(&others).into_iter().filter(own).collect()
    }

    /// How far this node's knowledge goes.
    pub fn digest(&self) -> Vec<Known> {
        lock(&self.view).digest()
    }

    /// Looks at the view.
    pub fn look<T>(&self, look: impl FnOnce(&View, Instant) -> T) -> T {
        look(&lock(&self.view), clock::steady())
    }

    /// Whether a member has been heard lately, or this node has not listened for long: advice, and no more.
    pub fn is_alive(&self, node: NodeId) -> bool {
        if node == self.node {
            return true;
        }
        self.look(|view, now| view.silence(node, now) < SILENT)
    }

    /// Where this node can be dialled.
    pub fn here(&self) -> Vec<SocketAddr> {
        lock(&self.here).clone()
    }

    /// Says where this node can be dialled.
    pub fn set_here(&self, here: Vec<SocketAddr>) {
        *lock(&self.here) = here;
    }
}

/// Where members are, as a sponsor tells a newcomer.
pub fn peers_in(mesh: MeshId, welcome: &Welcome) -> Vec<Peer> {
    let peer = |relayed: &Relayed| {
        let signed = Signed::parse(&relayed.bytes).ok()?;
        signed.verify(mesh).ok()?;
        match signed.said() {
            Said::Whole(record) => Some(Peer {
                node: signed.node(),
                data: record.data.clone(),
                overlay: record.overlay.clone(),
            }),
            Said::Update { .. } => None,
        }
    };
    let mut peers: Vec<Peer> = welcome.records.iter().filter_map(peer).collect();
    // The sponsor itself may not have published yet.
    if let Some(sponsor) = welcome.chain.first().map(|link| link.by)
        && !peers.iter().any(|peer| peer.node == sponsor)
    {
        peers.push(Peer { node: sponsor, data: welcome.here.clone(), overlay: Vec::new() });
    }
    peers
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}
