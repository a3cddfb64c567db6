//! The data plane: what a node offers to its peers and asks of them.
//!
//! A [`Service`] is what a node answers; a [`Net`] is how it asks. Between two nodes there is one
//! connection, on which messages, calls and streams run beside one another, the more urgent first; a few more may carry
//! bulk data where one cannot fill the wire ([`Net::open_beside`]).
//! `hub.rs` does the work, and `credit.rs` tells how much of it may be under way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mesh_consensus::id::NodeId;
use tokio::time::{Instant, timeout, timeout_at};

use crate::frame::FrameError;
use crate::hub::{ASK_PATIENCE, Hub, JOIN_PATIENCE};
use crate::identity::NodeKey;
use crate::live::{Live, MAX_HEADER, MAX_REQUEST, Unanswered};
use crate::path::{Close, Path};
pub use crate::path::{Lane, ReceiveHalf, SendHalf, Stream, Whereabouts};
pub use crate::peer::DialError;
pub use crate::peer::MAX_BESIDE;
use crate::peer::Peer;
pub use crate::quic::{BindError, Failure, Tuning};
use crate::quic::{Quic, failure, reason};
use crate::tls::ALPN_JOIN;

/// What a newcomer may ask.
pub const MAX_JOIN_REQUEST: usize = 8 << 10;
/// And be told.
pub const MAX_JOIN_REPLY: usize = 4 << 20;

/// Whether a peer may speak, and of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Welcome {
    /// A member: of everything.
    Full,
    /// Somebody who is vouched for: raft's messages, and nothing else.
    RaftOnly,
    /// Nobody we know, or somebody who was removed.
    No,
}

/// What a node answers to its peers.
///
/// `welcome` and `still` are asked often and must be cheap. A future that this hands out is dropped
/// when its caller goes away: what must be finished all the same belongs into a task of its own.
pub trait Service: Send + Sync + 'static {
    /// What we say first on every connection: at most 16 KiB.
    fn hello(&self) -> Vec<u8>;

    /// Judges who speaks and its hello. Asked after the handshake.
    fn welcome(&self, from: NodeId, hello: &[u8]) -> Welcome;

    /// Asked again before each request and message: is it still so?
    fn still(&self, from: NodeId) -> Welcome;

    /// A one-way message. Must not block.
    fn on_message(&self, from: NodeId, message: Vec<u8>);

    /// The longest message that is read from this peer now, if that is less than anybody may send.
    fn largest_message(&self, _from: NodeId) -> usize {
        usize::MAX
    }

    /// A question, and its answer of at most 8 MiB.
    fn on_call(&self, from: NodeId, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>>;

    /// A stream that a peer has opened. May live long.
    fn on_stream(&self, from: NodeId, header: Vec<u8>, stream: Stream) -> BoxFuture<'_, ()>;

    /// A stranger with a ticket: one request of at most 8 KiB, one reply of at most 4 MiB, 10 s at
    /// most. Nothing but its key is proven.
    fn on_join(&self, from: NodeId, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>>;

    /// We are connected with it. Must not block, nor does `on_down`.
    fn on_up(&self, _peer: NodeId) {}

    /// And now no longer.
    fn on_down(&self, _peer: NodeId) {}
}

/// Why a question has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// Nobody told us where it is.
    #[error("no address of {} is known", .0.short())]
    NoAddress(NodeId),
    /// None of its addresses led to it.
    #[error(transparent)]
    Unreachable(DialError),
    /// No answer in the time that was given.
    #[error("{} did not answer in {} ms", .node.short(), .patience.as_millis())]
    TimedOut {
        /// Who.
        node: NodeId,
        /// The time given.
        patience: Duration,
    },
    /// It does not answer such as us.
    #[error("{} refused", .0.short())]
    Refused(NodeId),
    /// The connection or the stream broke before the answer was whole.
    #[error("the connection with {} broke: {why}", .node.short())]
    Broken {
        /// With whom.
        node: NodeId,
        /// How.
        why: String,
    },
    /// More than a peer takes.
    #[error("{bytes} bytes are more than a peer takes at once")]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// This node is shutting down.
    #[error("this node is stopping")]
    Stopping,
}

/// Why a newcomer got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JoinError {
    /// It could not be reached.
    #[error("{address}: {how}")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// How that failed.
        how: Failure,
    },
    /// It was reached and then said nothing.
    #[error("{address} did not answer in {} s", .patience.as_secs())]
    NoAnswer {
        /// Where.
        address: SocketAddr,
        /// The time given.
        patience: Duration,
    },
    /// It closed the connection.
    #[error("{address} closed the connection: {why}")]
    Closed {
        /// Where.
        address: SocketAddr,
        /// As it said.
        why: String,
    },
    /// It closed the connection, and may not do so another time.
    #[error("{address} closed the connection: {why}")]
    Busy {
        /// Where.
        address: SocketAddr,
        /// As it said.
        why: String,
    },
    /// The request is longer than anybody takes.
    #[error("a request of {bytes} bytes where {MAX_JOIN_REQUEST} are taken")]
    TooLong {
        /// How many.
        bytes: usize,
    },
}

/// A connection, as an operator sees it.
#[derive(Debug, Clone)]
pub struct Link {
    /// With whom.
    pub node: NodeId,
    /// Where it is.
    pub address: Whereabouts,
    /// By us.
    pub dialled: bool,
    /// The time there and back.
    pub rtt: Duration,
    /// Bytes sent, with everything around them.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Packets that were lost on the way there.
    pub lost_packets: u64,
    /// The largest packet that is known to get through.
    pub mtu: u16,
    /// Which kind of way it is.
    pub path: &'static str,
    /// For how long it has stood.
    pub age: Duration,
    /// With those beside it that we dialled.
    pub connections: usize,
}

/// The data plane of one node. Cheap to clone.
#[derive(Clone)]
pub struct Net(Arc<Hub>);

impl Net {
    /// Takes the addresses and begins to answer. Wants a tokio runtime.
    pub fn bind(
        key: &NodeKey,
        listen: &[SocketAddr],
        tuning: Tuning,
        service: Arc<dyn Service>,
    ) -> Result<Self, BindError> {
        Ok(Self(Hub::start(key.id(), Quic::bind(key, listen, tuning)?, service)))
    }

    /// Where it listens, with the ports as they turned out.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.quic.addresses()
    }

    /// Tells where `node` is to be dialled; replaces what was known. At most 16 are looked at.
    pub fn learn(&self, node: NodeId, addresses: Vec<SocketAddr>) {
        if node == self.0.id {
            return;
        }
        let peer = self.0.peer(node);
        if peer.learn(addresses) {
            self.0.mind_door();
        }
        self.0.dial_if(&peer, false);
    }

    /// Sends a one-way message. Never blocks; it may be lost, above all while not connected.
    pub fn send(&self, to: NodeId, message: Vec<u8>) {
        if to == self.0.id {
            return;
        }
        let peer = self.0.peer(to);
        peer.put(message);
        self.0.dial_if(&peer, true);
    }

    /// Asks, and waits for the answer as long as `patience` lasts. Dials if need be, and gives up
    /// as soon as that fails.
    pub async fn call(
        &self,
        to: NodeId,
        request: Vec<u8>,
        patience: Duration,
    ) -> Result<Vec<u8>, CallError> {
        if request.len() > MAX_REQUEST {
            return Err(CallError::TooLong { bytes: request.len() });
        }
        let deadline = Instant::now() + patience;
        let ask = async {
            let live = self.0.connected(to).await?;
            live.call(&request).await.map_err(|error| match error {
                Unanswered::Refused => CallError::Refused(to),
                Unanswered::Failed(error) => broken(&live, &error),
            })
        };
        timeout_at(deadline, ask).await.unwrap_or(Err(CallError::TimedOut { node: to, patience }))
    }

    /// Opens a stream that begins with `header` (at most 64 KiB). Dials if need be.
    pub async fn open(&self, to: NodeId, header: Vec<u8>, lane: Lane) -> Result<Stream, CallError> {
        if header.len() > MAX_HEADER {
            return Err(CallError::TooLong { bytes: header.len() });
        }
        // A dial ends by itself; only a peer that grants no further stream could hold us for ever.
        let patience = 2 * self.0.quic.tuning().patience;
        let open = async {
            let live = self.0.connected(to).await?;
            live.open(&header, lane).await.map_err(|error| broken(&live, &error))
        };
        timeout(patience, open).await.unwrap_or(Err(CallError::TimedOut { node: to, patience }))
    }

    /// Opens a bulk stream that begins with `header` on a connection beside the one that carries everything else, the one of
    /// this number (from zero on, below [`MAX_BESIDE`]). For much data where one connection cannot fill the wire.
    pub async fn open_beside(
        &self,
        to: NodeId,
        number: usize,
        header: Vec<u8>,
    ) -> Result<Stream, CallError> {
        if header.len() > MAX_HEADER {
            return Err(CallError::TooLong { bytes: header.len() });
        }
        let patience = 3 * self.0.quic.tuning().patience;
        let open = async {
            let live = self.0.beside(to, number).await?;
            live.open(&header, Lane::Bulk).await.map_err(|error| broken(&live, &error))
        };
        timeout(patience, open).await.unwrap_or(Err(CallError::TimedOut { node: to, patience }))
    }

    /// Shows a ticket to `expected` at `address`: one request, one answer, and no trace of it here. Comes again for a few
    /// seconds if too many newcomers are there at a time.
    pub async fn join(
        &self,
        expected: NodeId,
        address: SocketAddr,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, JoinError> {
        const PAUSE: Duration = Duration::from_millis(200);
        if request.len() > MAX_JOIN_REQUEST {
            return Err(JoinError::TooLong { bytes: request.len() });
        }
        let deadline = Instant::now() + ASK_PATIENCE;
        let mut busy = None;
        loop {
            match (self.join_once(expected, address, &request).await, busy) {
                (Err(error @ JoinError::Busy { .. }), _) if Instant::now() < deadline => {
                    busy = Some(error);
                    tokio::time::sleep(PAUSE.mul_f64(1.0 + fastrand::f64())).await;
                }
                // It was there before, and may have heard us.
                (Err(JoinError::Unreachable { .. }), Some(before)) => return Err(before),
                (other, _) => return other,
            }
        }
    }

    async fn join_once(
        &self,
        expected: NodeId,
        address: SocketAddr,
        request: &[u8],
    ) -> Result<Vec<u8>, JoinError> {
        let connection = self.0.quic.connect(expected, address, ALPN_JOIN).await;
        let connection = connection.map_err(|how| JoinError::Unreachable { address, how })?;
        let path = Path::Direct(connection);
        // It has proved to be the one whom we ask.
        path.set_window(MAX_JOIN_REPLY as u32 + 1024);
        // A little more than the other side has, so that its own word arrives first.
        let patience = ASK_PATIENCE + JOIN_PATIENCE;
        let ask = async {
            let (mut send, mut receive) = path.open_bi(Lane::Control).await?;
            send.send_frame(request).await?;
            send.finish();
            receive.recv_frame(MAX_JOIN_REPLY).await?.ok_or(FrameError::CutShort)
        };
        let result = timeout(patience, ask).await;
        let (closed, busy) = (path.why_closed(), path.closed_with(Close::Busy));
        path.close(Close::Done, "thank you");
        match result {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                let why = closed.map_or(error.to_string(), |why| match failure(&why, patience) {
                    Failure::Closed { why } => why,
                    other => other.to_string(),
                });
                Err(match busy {
                    true => JoinError::Busy { address, why },
                    false => JoinError::Closed { address, why },
                })
            }
            Err(_) => Err(JoinError::NoAnswer { address, patience }),
        }
    }

    /// Cuts every connection with `node` at once and forgets where it is: it was removed.
    ///
    /// What keeps it out from then on is [`Service::welcome`] and [`Service::still`].
    pub fn close(&self, node: NodeId, why: &'static str) {
        let peer = self.0.peers().remove(&node);
        if let Some(peer) = peer {
            peer.remove(why);
            self.0.mind_door();
        }
    }

    /// Stay connected to these. A connection with anybody else is closed after a minute without use.
    pub fn keep(&self, nodes: BTreeSet<NodeId>) {
        for node in nodes.iter().filter(|node| **node != self.0.id) {
            self.0.peer(*node);
        }
        for peer in self.0.all() {
            peer.keep(nodes.contains(&peer.id));
            self.0.dial_if(&peer, false);
        }
    }

    /// Says that a lot of data comes from `node`: until the guard is dropped, on whichever connection, it may have much
    /// more of it under way on bulk streams.
    pub fn bulk(&self, node: NodeId) -> Bulk {
        let peer = self.0.peer(node);
        peer.count_bulk(true);
        Bulk(peer)
    }

    /// The connections that stand.
    pub fn links(&self) -> Vec<Link> {
        let link = |(live, beside): (Arc<Live>, Vec<Arc<Live>>)| {
            let mut measured = live.path.measured();
            for beside in &beside {
                let also = beside.path.measured();
                measured.sent_bytes += also.sent_bytes;
                measured.received_bytes += also.received_bytes;
                measured.lost_packets += also.lost_packets;
            }
            Link {
                node: live.peer,
                address: live.path.whereabouts(),
                dialled: live.dialled,
                rtt: measured.rtt,
                sent_bytes: measured.sent_bytes,
                received_bytes: measured.received_bytes,
                lost_packets: measured.lost_packets,
                mtu: measured.mtu,
                path: live.path.name(),
                age: live.since.elapsed(),
                connections: 1 + beside.len(),
            }
        };
        let all = self.0.all();
        all.iter().filter_map(|peer| Some((peer.current()?, peer.all_beside()))).map(link).collect()
    }

    /// Those whom we have tried to reach in vain since we were last connected, and how long ago the last try failed.
    pub fn unreached(&self) -> BTreeMap<NodeId, Duration> {
        let failed = |peer: &Arc<Peer>| Some((peer.id, peer.failed_ago()?));
        self.0.all().iter().filter_map(failed).collect()
    }

    /// Says goodbye to everyone and lets go of the addresses. Takes a few seconds at most.
    pub async fn shutdown(&self) {
        self.0.stop().await;
    }
}

/// While it lives, a lot of data comes from a peer: see [`Net::bulk`].
#[must_use = "dropped at once, it changes nothing"]
pub struct Bulk(Arc<Peer>);

impl Drop for Bulk {
    fn drop(&mut self) {
        self.0.count_bulk(false);
    }
}

fn broken(live: &Live, error: &FrameError) -> CallError {
    let why = match live.path.why_closed() {
        Some(why) => reason(&why),
        None => error.to_string(),
    };
    CallError::Broken { node: live.peer, why }
}
