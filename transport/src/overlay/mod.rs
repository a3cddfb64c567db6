//! The overlay: gossip among the members of one mesh, over libp2p.
//!
//! It owns a libp2p swarm on one port number (QUIC over UDP, and TCP with TLS and yamux), the list of
//! those who may speak, the choice of a few peers to stay connected to, and one gossip topic. It leaves
//! to its caller who is a member, where members live and what a message means: the caller hands in
//! [`Overlay::allow`], [`Overlay::learn`] and a [`Judge`].
//!
//! | read | for |
//! |---|---|
//! | `swarm.rs` | connections, and the task that runs them |
//! | `listen.rs` | addresses and ports |
//! | `keep.rs` | whom to dial and whom to keep: a decision without a socket |
//! | `gossip.rs` | how a message travels, and who pays for a bad one |
//!
//! # What is promised
//!
//! A message that is judged [`Judged::Good`] by every node on its way reaches most nodes soon, and none of
//! them twice within a minute. Nothing more: gossip may be lost (a full queue drops it), late or reordered, and a
//! node alone publishes to nobody. Whoever needs all of it asks a peer for what it missed.
//!
//! A node that is not on the allow-list is cut off right after the handshake has proved who it is,
//! before a byte of it is read. One that leaves the list is disconnected at once.
//!
//! # Secrets
//!
//! libp2p-tls installs a key log that obeys `SSLKEYLOGFILE`: whoever sets it could read the traffic. The
//! binary's `main` must start without that variable (and not pass it on); as long as it is set,
//! [`Overlay::start`] refuses.

mod gossip;
mod keep;
mod listen;
mod sources;
mod swarm;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libp2p::PeerId;
use libp2p::identity::{Keypair, PublicKey, ed25519};
use mesh_consensus::id::{MeshId, NodeId};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, info_span};

/// The longest message that is published or taken from others, in bytes.
pub const MAX_GOSSIP: usize = 2048;

/// Addresses remembered per node; further ones are ignored.
const MAX_ADDRESSES: usize = 16;
/// Nodes whose addresses are remembered; more than a mesh is meant to have. Further ones are ignored.
const MAX_LEARNED: usize = 4096;
/// Messages waiting to be published; a further one is dropped.
const PUBLISH_QUEUE: usize = 64;
/// Messages heard and not yet taken by the caller; a further one is dropped, but still forwarded.
const HEARD_QUEUE: usize = 256;

/// A running overlay. Cheap to clone; it stops with [`Overlay::stop`], or with its last handle.
#[derive(Debug, Clone)]
pub struct Overlay {
    /// State rather than commands: the newest counts, nothing waits in a queue, nothing is lost.
    wanted: watch::Sender<Wanted>,
    publish: mpsc::Sender<Vec<u8>>,
    addresses: Arc<[SocketAddr]>,
    peers: Arc<AtomicUsize>,
    stop: CancellationToken,
}

/// A message that was judged good. Each is heard once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// As published, at most [`MAX_GOSSIP`] long.
    pub bytes: Vec<u8>,
}

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// Deliver it and pass it on.
    Good,
    /// Do neither, and blame nobody: old news, or something that cannot be judged yet (a member that
    /// this node has not heard of, a version that it does not know).
    Stale,
    /// Do neither, and hold it against whoever sent it. Only for what no honest node passes on.
    Bad,
}

/// Judges a message, once, after duplicates have been dropped. Runs on the overlay's task: it must
/// not block, and a signature check is about as much as it should do.
pub type Judge = Arc<dyn Fn(&[u8]) -> Judged + Send + Sync>;

/// Why an overlay did not start.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// Another program has the port, or another node does.
    #[error("{address} is already in use ({protocol})")]
    InUse {
        /// The address as asked for.
        address: SocketAddr,
        /// `udp` or `tcp`.
        protocol: &'static str,
    },
    /// The address cannot be listened on.
    #[error("could not listen on {address} ({protocol})")]
    Listen {
        /// The address as asked for.
        address: SocketAddr,
        /// `udp` or `tcp`.
        protocol: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// `SSLKEYLOGFILE` is set, and libp2p-tls would write the session keys there.
    #[error("SSLKEYLOGFILE is set, so the keys of every connection would be written to a file")]
    KeyLog,
    /// libp2p refused the settings or the key.
    #[error("could not set up the overlay")]
    Setup(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A message was too long to publish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a gossip message of {length} bytes is over the limit of {MAX_GOSSIP}")]
pub struct TooLong {
    /// Its length in bytes.
    pub length: usize,
}

/// What the caller wants of the swarm, as a whole. The swarm's task compares it with what it has.
#[derive(Debug, Default)]
struct Wanted {
    /// May contain the node itself.
    allowed: BTreeSet<NodeId>,
    /// At most [`MAX_LEARNED`] nodes with at most [`MAX_ADDRESSES`] each; no list is empty.
    addresses: BTreeMap<NodeId, Vec<SocketAddr>>,
}

impl Overlay {
    /// Listens on every address of `listen`, by UDP and by TCP under the same port number, and starts the
    /// swarm's task. Port 0 takes any number that is free for both. Nobody may connect before
    /// [`Overlay::allow`]. With `mdns`, members on the local network are found by multicast, too.
    pub async fn start(
        seed: &[u8; 32],
        mesh: MeshId,
        listen: &[SocketAddr],
        mdns: bool,
        judge: Judge,
    ) -> Result<(Self, mpsc::Receiver<Heard>), OverlayError> {
        if std::env::var_os("SSLKEYLOGFILE").is_some() {
            return Err(OverlayError::KeyLog);
        }
        let key = Keypair::ed25519_from_bytes(*seed).map_err(setup)?;
        let own = node_id(&key.public().to_peer_id()).ok_or_else(|| setup("not an Ed25519 key"))?;
        let mut swarm = swarm::build(key, mesh, mdns)?;
        let addresses: Arc<[SocketAddr]> = listen::listen(&mut swarm, listen)?.into();

        let (wanted, wanted_rx) = watch::channel(Wanted::default());
        let (publish, publish_rx) = mpsc::channel(PUBLISH_QUEUE);
        let (heard_tx, heard) = mpsc::channel(HEARD_QUEUE);
        let peers = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let task = swarm::Task::new(own, mesh, swarm, judge, heard_tx, peers.clone());
        let span = info_span!("overlay", node = %own.short());
        tokio::spawn(task.run(wanted_rx, publish_rx, stop.clone()).instrument(span));
        Ok((Self { wanted, publish, addresses, peers, stop }, heard))
    }

    /// Where this node listens, by UDP and by TCP alike: as asked for, with port 0 resolved.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.to_vec()
    }

    /// Sets the whole list of those who may speak. Who is no longer on it is disconnected, and its
    /// addresses are forgotten. Whether this node itself is on the list makes no difference.
    pub fn allow(&self, members: BTreeSet<NodeId>) {
        self.wanted.send_if_modified(|wanted| {
            if wanted.allowed == members {
                return false;
            }
            for gone in wanted.allowed.difference(&members) {
                wanted.addresses.remove(gone);
            }
            wanted.allowed = members;
            true
        });
    }

    /// Says where `node` listens. Replaces what was said before; it may come before or after
    /// [`Overlay::allow`]. Both transports are tried at every address, QUIC first.
    pub fn learn(&self, node: NodeId, mut addresses: Vec<SocketAddr>) {
        addresses.truncate(MAX_ADDRESSES);
        self.wanted.send_if_modified(|wanted| {
            if addresses.is_empty() {
                return wanted.addresses.remove(&node).is_some();
            }
            if wanted.addresses.get(&node) == Some(&addresses) {
                return false;
            }
            if wanted.addresses.len() >= MAX_LEARNED && !wanted.addresses.contains_key(&node) {
                debug!(node = %node.short(), "no room for the addresses of another node");
                return false;
            }
            wanted.addresses.insert(node, addresses);
            true
        });
    }

    /// Sends `bytes` to the mesh. Having no peers is normal, and a message that finds the queue full is
    /// dropped: gossip is advice. This node does not hear its own messages, nor judge them.
    pub fn publish(&self, bytes: Vec<u8>) -> Result<(), TooLong> {
        if bytes.len() > MAX_GOSSIP {
            return Err(TooLong { length: bytes.len() });
        }
        if self.publish.try_send(bytes).is_err() {
            debug!("a message was dropped: the queue is full, or the overlay has stopped");
        }
        Ok(())
    }

    /// How many peers are connected now, whoever dialled.
    pub fn peers(&self) -> usize {
        self.peers.load(Ordering::Relaxed)
    }

    /// Closes every connection and frees the port, soon after. The receiver of [`Heard`] then ends.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

fn setup(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OverlayError {
    OverlayError::Setup(error.into())
}

/// The peer that speaks with the key `node`; `None` if that is not a key.
fn peer_id(node: NodeId) -> Option<PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(&node.0).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

/// The node behind `peer`; `None` if it does not speak with an Ed25519 key.
fn node_id(peer: &PeerId) -> Option<NodeId> {
    /// Identity multihash of 36 bytes: protobuf field 1 (type) is 1 (Ed25519), field 2 (key) has 32 bytes.
    const PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
    peer.to_bytes().strip_prefix(&PREFIX)?.try_into().ok().map(NodeId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_and_its_peer_id_name_the_same_key() {
        let key = Keypair::ed25519_from_bytes([7; 32]).unwrap();
        let node = NodeId(key.public().try_into_ed25519().unwrap().to_bytes());
        let peer = key.public().to_peer_id();
        assert_eq!(node_id(&peer), Some(node));
        assert_eq!(peer_id(node), Some(peer));
        assert_eq!(node_id(&PeerId::random()), None, "a random id is a hash, not a key");
    }
}
