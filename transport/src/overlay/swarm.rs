//! The transports put together, the connections, and the task that runs them.
//!
//! Who dialled a connection owns it: it closes it when it no longer keeps that peer, and the other side leaves it
//! alone as long as the peer is allowed. So a peer that we keep stays, although it may not keep us. A peer that opens
//! no gossip stream is idle, and goes after [`IDLE`]; a dead one is noticed by QUIC's keep-alive, or over TCP, which
//! has none, by an identify request without an answer.
//!
//! Gossipsub tells a peer what it subscribes to once: over whichever connection comes first. A peer that misses it never
//! sends us a message, so a second connection needs care:
//!
//! - Two nodes dial each other at once: the one with the higher id closes its own, [`SETTLED`] later, when all has
//!   been said over both.
//! - A peer dials whose connection has stood for longer than dials [cross](CROSSING): it has started anew, or lost that
//!   connection, and would be told nothing over the new one. All connections to it are closed, and the next begins from
//!   nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use libp2p::allow_block_list::{self, AllowedPeers};
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::identity::Keypair;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, NetworkBehaviour, StreamUpgradeError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, SwarmBuilder, gossipsub, identify, mdns, tcp, tls, yamux};
use mesh_consensus::id::{MeshId, NodeId};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, trace, warn};

use super::gossip::{self, Gossip};
use super::keep::{KEPT, Keep};
use super::listen::{quic_address, socket_address, tcp_address};
use super::sources::Sources;
use super::{Heard, Judge, MAX_ADDRESSES, OverlayError, Wanted, node_id, peer_id, setup};

/// How long a connection without a stream may stay.
const IDLE: Duration = Duration::from_secs(30);
/// Silence after which QUIC gives a peer up, and how often it breaks the silence: two may be lost.
const SILENCE: Duration = Duration::from_secs(30);
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How often each connection is asked who it is: what finds a dead peer over TCP.
const IDENTIFY: Duration = Duration::from_secs(120);
/// Streams that a peer may open on one connection: gossip, identify, and room.
const MAX_STREAMS: u32 = 16;
/// What a peer may send ahead over QUIC, per stream and in all. Messages are of 1 KiB.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// What a connection needs to carry what is said on meeting, over slow and lossy wires, too.
const SETTLED: Duration = Duration::from_secs(5);
/// Two connections that are this far apart were not dialled at once.
const CROSSING: Duration = Duration::from_secs(1);
/// Two, for both may dial at once.
const MAX_PER_PEER: u32 = 2;
/// Eight are expected, twenty are rare: room for many nodes that find few others.
const MAX_INBOUND: u32 = 128;
const MAX_OUTBOUND: u32 = 4 * KEPT as u32;
/// Handshakes under way. Strangers can use these up; they are given up after [`HANDSHAKE`].
const MAX_PENDING: u32 = 128;
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Nodes that are remembered because multicast told of them. Of more, only those that are allowed.
const MAX_FOUND: usize = 1024;

/// What the swarm does. The order matters: a connection is refused before others hear of it.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    allowed: allow_block_list::Behaviour<AllowedPeers>,
    limits: connection_limits::Behaviour,
    sources: Sources,
    gossip: Gossip,
    identify: identify::Behaviour,
    mdns: Toggle<mdns::tokio::Behaviour>,
}

/// Puts the transports and behaviours together. Nothing is bound yet.
pub(super) fn build(
    key: Keypair,
    mesh: MeshId,
    mdns: bool,
) -> Result<Swarm<Behaviour>, OverlayError> {
    let limits = ConnectionLimits::default()
        .with_max_pending_incoming(Some(MAX_PENDING))
        .with_max_pending_outgoing(Some(MAX_OUTBOUND))
        .with_max_established_incoming(Some(MAX_INBOUND))
        .with_max_established_outgoing(Some(MAX_OUTBOUND))
        .with_max_established_per_peer(Some(MAX_PER_PEER));
    // Addresses travel in records that their node has signed; identify need not repeat them.
    let identify = identify::Config::new("mesh/1".to_owned(), key.public())
        .with_agent_version(format!("mesh/{}", env!("CARGO_PKG_VERSION")))
        .with_interval(IDENTIFY)
        .with_cache_size(0)
        .with_hide_listen_addrs(true);
    let behaviour = Behaviour {
        allowed: allow_block_list::Behaviour::default(),
        limits: connection_limits::Behaviour::new(limits),
        sources: Sources::default(),
        gossip: gossip::behaviour(mesh)?,
        identify: identify::Behaviour::new(identify),
        mdns: mdns.then(|| multicast(key.public().to_peer_id())).flatten().into(),
    };
    let yamux = || {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(MAX_STREAMS as usize);
        config
    };
    let swarm = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_tcp(tcp::Config::default(), tls::Config::new, yamux)
        .map_err(setup)?
        .with_quic_config(|mut config| {
            config.handshake_timeout = HANDSHAKE;
            config.max_idle_timeout = SILENCE.as_millis() as u32;
            config.keep_alive_interval = KEEP_ALIVE;
            config.max_concurrent_stream_limit = MAX_STREAMS;
            config.max_stream_data = STREAM_WINDOW;
            config.max_connection_data = CONNECTION_WINDOW;
            config
        })
        .with_behaviour(|_| behaviour)
        .map_err(setup)?
        // QUIC first, TCP a moment later: a network that drops UDP costs a quarter of a second.
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE).with_smart_dial())
        .with_connection_timeout(HANDSHAKE)
        .build();
    Ok(swarm)
}

/// Finding members by multicast is a convenience: a network without it is not a reason to stop.
fn multicast(own: PeerId) -> Option<mdns::tokio::Behaviour> {
    mdns::tokio::Behaviour::new(mdns::Config::default(), own)
        .inspect_err(|error| warn!(%error, "no discovery by multicast"))
        .ok()
}

/// The swarm, and what is known of its peers.
pub(super) struct Task {
    own: NodeId,
    mesh: MeshId,
    swarm: Swarm<Behaviour>,
    judge: Judge,
    heard: mpsc::Sender<Heard>,
    peers: Arc<AtomicUsize>,
    keep: Keep,
    /// Who was wanted when that was last read, without this node itself and whatever is not a key.
    allowed: BTreeMap<NodeId, PeerId>,
    learned: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// Found by multicast, strangers among them: used for allowed nodes of which nothing was learned.
    found: BTreeMap<NodeId, BTreeSet<SocketAddr>>,
    /// Open connections. No inner map is empty.
    open: BTreeMap<NodeId, BTreeMap<ConnectionId, Open>>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    /// Whether we dialled.
    dialled: bool,
    since: Instant,
}

impl Task {
    pub(super) fn new(
        own: NodeId,
        mesh: MeshId,
        swarm: Swarm<Behaviour>,
        judge: Judge,
        heard: mpsc::Sender<Heard>,
        peers: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            own,
            mesh,
            swarm,
            judge,
            heard,
            peers,
            keep: Keep::new(own, fastrand::u64(..)),
            allowed: BTreeMap::new(),
            learned: BTreeMap::new(),
            found: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    /// Runs until it is stopped, or nobody holds a handle. Without traffic it sleeps.
    pub(super) async fn run(
        mut self,
        mut wanted: watch::Receiver<Wanted>,
        mut publish: mpsc::Receiver<Vec<u8>>,
        stop: CancellationToken,
    ) {
        let mut wake_at = None;
        loop {
            let tend = tokio::select! {
                () = stop.cancelled() => break,
                changed = wanted.changed() => match changed {
                    Ok(()) => {
                        self.on_wanted(&wanted.borrow_and_update());
                        true
                    }
                    Err(_) => break,
                },
                Some(bytes) = publish.recv() => {
                    gossip::publish(&mut self.swarm.behaviour_mut().gossip, self.mesh, bytes);
                    false
                }
                event = self.swarm.select_next_some() => self.on_event(event),
                () = sleep_until(wake_at) => true,
            };
            if tend {
                wake_at = self.tend();
            }
        }
        self.peers.store(0, Ordering::Relaxed);
        debug!("stopped");
    }

    /// Takes over what the caller wants now.
    fn on_wanted(&mut self, wanted: &Wanted) {
        let list = &mut self.swarm.behaviour_mut().allowed;
        self.allowed.retain(|node, peer| {
            let stays = wanted.allowed.contains(node);
            if !stays {
                list.disallow_peer(*peer);
                debug!(peer = %node.short(), "no longer allowed");
            }
            stays
        });
        for node in wanted.allowed.iter().filter(|node| **node != self.own) {
            if !self.allowed.contains_key(node)
                && let Some(peer) = peer_id(*node)
            {
                list.allow_peer(peer);
                self.allowed.insert(*node, peer);
                self.keep.on_news(*node);
            }
        }
        for (node, addresses) in &wanted.addresses {
            if self.learned.get(node) != Some(addresses) {
                self.keep.on_news(*node);
            }
        }
        self.learned.clone_from(&wanted.addresses);
        self.set_candidates();
    }

    fn set_candidates(&mut self) {
        let known =
            |node: &&NodeId| self.learned.contains_key(node) || self.found.contains_key(node);
        self.keep.set_candidates(self.allowed.keys().filter(known).copied());
    }

    /// Returns whether connections may need tending.
    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) -> bool {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_opened(&peer_id, connection_id, endpoint.is_dialer());
                true
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, cause, .. } => {
                self.on_closed(&peer_id, connection_id, cause.as_ref());
                true
            }
            SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => {
                debug!(%peer, %error, "could not connect");
                if let Some(node) = node_id(&peer) {
                    self.keep.on_failed(Instant::now(), node);
                }
                true
            }
            SwarmEvent::IncomingConnectionError { peer_id, send_back_addr, error, .. } => {
                debug!(?peer_id, from = %send_back_addr, %error, "refused a connection");
                false
            }
            SwarmEvent::ListenerError { error, .. } => {
                warn!(%error, "trouble with a listening socket");
                false
            }
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                warn!(?addresses, ?reason, "no longer listening");
                false
            }
            _ => false,
        }
    }

    fn on_behaviour(&mut self, event: BehaviourEvent) -> bool {
        match event {
            BehaviourEvent::Gossip(gossipsub::Event::Message {
                propagation_source,
                message_id,
                message,
            }) => {
                let gossip = &mut self.swarm.behaviour_mut().gossip;
                let heard =
                    gossip::judge(gossip, &self.judge, &message_id, &propagation_source, message);
                if let Some(heard) = heard
                    && let Err(TrySendError::Full(_)) = self.heard.try_send(heard)
                {
                    debug!("a message was not delivered: the queue is full");
                }
                false
            }
            BehaviourEvent::Identify(identify::Event::Error {
                peer_id,
                connection_id,
                // A peer that does not speak identify says so: it lives.
                error: error @ (StreamUpgradeError::Timeout | StreamUpgradeError::Io(_)),
            }) => {
                debug!(peer = %peer_id, %error, "no answer: closing the connection");
                self.swarm.close_connection(connection_id);
                false
            }
            BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => {
                self.on_found(found);
                true
            }
            BehaviourEvent::Mdns(mdns::Event::Expired(lost)) => {
                self.on_lost(&lost);
                true
            }
            _ => false,
        }
    }

    fn on_found(&mut self, found: Vec<(PeerId, Multiaddr)>) {
        for (peer, address) in found {
            let (Some(node), Some(address)) = (node_id(&peer), socket_address(&address)) else {
                continue;
            };
            // Those who are not allowed yet are kept, too: multicast tells of a node once, and it may be
            // admitted after that.
            let has_room = self.found.len() < MAX_FOUND || self.allowed.contains_key(&node);
            if !has_room && !self.found.contains_key(&node) {
                continue;
            }
            let addresses = self.found.entry(node).or_default();
            if addresses.len() < MAX_ADDRESSES && addresses.insert(address) {
                trace!(peer = %node.short(), %address, "found by multicast");
                self.keep.on_news(node);
            }
        }
        self.set_candidates();
    }

    /// Nobody says any more that these nodes are there. A connection that stands is not touched.
    fn on_lost(&mut self, lost: &[(PeerId, Multiaddr)]) {
        for (peer, address) in lost {
            let (Some(node), Some(address)) = (node_id(peer), socket_address(address)) else {
                continue;
            };
            if let Some(addresses) = self.found.get_mut(&node) {
                addresses.remove(&address);
                if addresses.is_empty() {
                    self.found.remove(&node);
                }
            }
        }
        self.set_candidates();
    }

    fn on_opened(&mut self, peer: &PeerId, connection: ConnectionId, dialled: bool) {
        let Some(node) = node_id(peer) else {
            self.swarm.close_connection(connection);
            return;
        };
        let now = Instant::now();
        let open = self.open.entry(node).or_default();
        let starts_anew = open.values().any(|open| now.duration_since(open.since) >= CROSSING);
        open.insert(connection, Open { dialled, since: now });
        self.keep.on_up(now, node);
        debug!(peer = %node.short(), dialled, starts_anew, "connected");
        if starts_anew {
            for id in open.keys() {
                self.swarm.close_connection(*id);
            }
        }
        self.count();
    }

    fn on_closed(
        &mut self,
        peer: &PeerId,
        connection: ConnectionId,
        cause: Option<&libp2p::swarm::ConnectionError>,
    ) {
        let Some(node) = node_id(peer) else { return };
        let Some(open) = self.open.get_mut(&node) else { return };
        open.remove(&connection);
        if open.is_empty() {
            self.open.remove(&node);
            self.keep.on_down(Instant::now(), node);
            debug!(peer = %node.short(), ?cause, "disconnected");
        }
        self.count();
    }

    fn count(&self) {
        self.peers.store(self.open.len(), Ordering::Relaxed);
    }

    /// Makes the connections as they should be. Returns when to look again.
    fn tend(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let plan = self.keep.plan(now);
        for node in plan.dial {
            self.dial(node);
        }
        let mut wake_at = plan.wake_at;
        for (node, open) in &self.open {
            let reason = if !plan.kept.contains(node) {
                "others are nearer"
            } else if self.own > *node && open.values().any(|open| !open.dialled) {
                "both dialled, and theirs is enough"
            } else {
                continue;
            };
            // Theirs may be the younger one.
            let settled = open.values().map(|open| open.since + SETTLED).max();
            let ours = open.iter().filter(|(_, open)| open.dialled).map(|(id, _)| *id);
            for id in ours {
                match settled {
                    Some(at) if at > now => {
                        wake_at = Some(wake_at.map_or(at, |sooner: Instant| sooner.min(at)));
                    }
                    _ => {
                        if self.swarm.close_connection(id) {
                            debug!(peer = %node.short(), reason, "closing");
                        }
                    }
                }
            }
        }
        wake_at
    }

    fn dial(&mut self, node: NodeId) {
        let learned = self.learned.get(&node).into_iter().flatten();
        let found = self.found.get(&node).into_iter().flatten();
        let addresses: Vec<Multiaddr> = learned
            .chain(found)
            .take(MAX_ADDRESSES)
            .flat_map(|address| [quic_address(*address), tcp_address(*address)])
            .collect();
        let Some(peer) = self.allowed.get(&node) else {
            self.keep.on_failed(Instant::now(), node);
            return;
        };
        let dial = DialOpts::peer_id(*peer).addresses(addresses).build();
        // What libp2p refuses on the spot is not reported by an event.
        if let Err(error) = self.swarm.dial(dial) {
            debug!(peer = %node.short(), %error, "could not dial");
            self.keep.on_failed(Instant::now(), node);
        }
    }
}

/// Waits for `moment`; without one, for ever.
async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
