//! One who speaks the protocol by hand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;
use mesh_consensus::admission::Admission;
use mesh_consensus::id::{Epoch, MeshId, NodeId, RaftId};
use mesh_consensus::message::{Body, Message};
use mesh_node::dir::{Dir, Membership};
use mesh_node::join::{Choices, join};
use mesh_node::wire::{Header, Hello, JoinReply, JoinRequest, Note, Reply, Request};
use mesh_transport::codec::{decode, encode};
use mesh_transport::identity::NodeKey;
use mesh_transport::net::{CallError, Lane, Link, Net, Service, Stream, Tuning, Welcome};
use mesh_transport::ticket::Ticket;
use tokio::runtime::Runtime;

use crate::{secs, status};

/// How a peer that watches is served.
pub(crate) type Serve = Arc<dyn Fn(NodeId, u64, Stream) -> BoxFuture<'static, ()> + Send + Sync>;

/// How a peer that asks for data is answered.
pub(crate) type Share = Arc<dyn Fn(NodeId, Header, Stream) -> BoxFuture<'static, ()> + Send + Sync>;

/// What the attacker hears, and what it answers: nothing of use.
struct Ear {
    hello: Vec<u8>,
    heard: Mutex<Vec<(NodeId, Note)>>,
    serve: Mutex<Option<Serve>>,
    share: Mutex<Option<Share>>,
}

impl Service for Ear {
    fn hello(&self) -> Vec<u8> {
        self.hello.clone()
    }

    fn welcome(&self, _: NodeId, _: &[u8]) -> Welcome {
        Welcome::Full
    }

    fn still(&self, _: NodeId) -> Welcome {
        Welcome::Full
    }

    fn on_message(&self, from: NodeId, message: Vec<u8>) {
        if let Ok(note) = decode(&message) {
            let mut heard = self.heard.lock().unwrap();
            heard.truncate(10_000);
            heard.push((from, note));
        }
    }

    fn on_call(&self, _: NodeId, _: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        async { encode(&Reply::NotNow).unwrap() }.boxed()
    }

    fn on_stream(&self, from: NodeId, header: Vec<u8>, stream: Stream) -> BoxFuture<'_, ()> {
        let serve = self.serve.lock().unwrap().clone();
        let share = self.share.lock().unwrap().clone();
        async move {
            match (decode(&header), serve, share) {
                (Ok(Header::Watch { index }), Some(serve), _) => serve(from, index, stream).await,
                (Ok(Header::Watch { .. }) | Err(_), ..) => {}
                (Ok(header), _, Some(share)) => share(from, header, stream).await,
                (Ok(_), _, None) => {}
            }
        }
        .boxed()
    }

    fn on_join(&self, _: NodeId, _: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        async { Vec::new() }.boxed()
    }
}

/// Says and hears nothing.
pub(crate) struct Deaf;

impl Service for Deaf {
    fn hello(&self) -> Vec<u8> {
        Vec::new()
    }

    fn welcome(&self, _: NodeId, _: &[u8]) -> Welcome {
        Welcome::No
    }

    fn still(&self, _: NodeId) -> Welcome {
        Welcome::No
    }

    fn on_message(&self, _: NodeId, _: Vec<u8>) {}

    fn on_call(&self, _: NodeId, _: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        async { Vec::new() }.boxed()
    }

    fn on_stream(&self, _: NodeId, _: Vec<u8>, _: Stream) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn on_join(&self, _: NodeId, _: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        async { Vec::new() }.boxed()
    }
}

/// An attacker with a key of its own, and perhaps a seat.
pub(crate) struct Attacker {
    pub(crate) key: NodeKey,
    pub(crate) mesh: MeshId,
    pub(crate) epoch: Epoch,
    pub(crate) seat: RaftId,
    net: Net,
    ear: Arc<Ear>,
    runtime: Arc<Runtime>,
    /// Where its directory is, if it has joined.
    _dir: Option<tempfile::TempDir>,
}

/// What the attacker's connections run on.
pub(crate) fn runtime() -> Arc<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Arc::new(builder.worker_threads(2).enable_all().build().unwrap())
}

/// A node's id.
pub(crate) fn id(host: &Host) -> NodeId {
    status(host)["id"].as_str().unwrap().parse().unwrap()
}

/// A node's seat.
pub(crate) fn seat(host: &Host) -> RaftId {
    Dir::at(host.data()).membership().unwrap().unwrap().identity.raft_id
}

/// Addresses of one kind, as a node says them.
pub(crate) fn addresses(host: &Host, kind: &str) -> Vec<SocketAddr> {
    let status = status(host);
    let list = status[kind].as_array().unwrap().iter();
    list.map(|address| address.as_str().unwrap().parse().unwrap()).collect()
}

impl Attacker {
    fn bind(
        runtime: &Arc<Runtime>,
        key: NodeKey,
        listen: SocketAddr,
        membership: (MeshId, Epoch, RaftId, Vec<Admission>),
    ) -> Self {
        let (mesh, epoch, seat, chain) = membership;
        let hello = encode(&Hello { mesh, epoch, chain }).unwrap();
        let ear = Arc::new(Ear {
            hello,
            heard: Mutex::default(),
            serve: Mutex::default(),
            share: Mutex::default(),
        });
        let _inside = runtime.enter();
        // A process that was killed may hold its socket a little longer than its name.
        let mut bound = Err(None);
        until(secs(10), || {
            bound = Net::bind(&key, &[listen], Tuning::default(), ear.clone()).map_err(Some);
            bound.is_ok().then_some(())
        });
        let net = bound.unwrap();
        let runtime = runtime.clone();
        Self { key, mesh, epoch, seat, net, ear, runtime, _dir: None }
    }

    /// Somebody whom no member knows, and who says that it belongs to the mesh of `host`.
    pub(crate) fn stranger(runtime: &Arc<Runtime>, host: &Host) -> Self {
        let mesh = status(host)["mesh"].as_str().unwrap().parse().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        Self::bind(runtime, NodeKey::generate(), any, (mesh, 0, RaftId(999), Vec::new()))
    }

    /// Somebody for whom `self` vouches.
    pub(crate) fn sybil(&self, seat: RaftId) -> Self {
        let key = NodeKey::generate();
        let link = Admission::sign(self.key.signing(), self.mesh, self.epoch, key.id(), seat);
        let any = "127.0.0.1:0".parse().unwrap();
        Self::bind(&self.runtime, key, any, (self.mesh, self.epoch, seat, vec![link]))
    }

    /// Joins with a real ticket, and then speaks by hand instead of running a node.
    pub(crate) fn insider(runtime: &Arc<Runtime>, ticket: &str, name: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("mesh"));
        let ticket: Ticket = ticket.parse().unwrap();
        let choices = Choices {
            name: Some(name.parse().unwrap()),
            listen: vec![("127.0.0.1".parse().unwrap(), Some(0))],
            ..Choices::default()
        };
        runtime.block_on(join(&dir, &ticket, &choices, |_| {})).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        Self { _dir: Some(temp), ..Self::of(runtime, &dir, any) }
    }

    /// Takes over the node of a host that does not run: its key, its seat and its address.
    pub(crate) fn takes_over(runtime: &Arc<Runtime>, host: &Host, listen: SocketAddr) -> Self {
        Self::of(runtime, &Dir::at(host.data()), listen)
    }

    fn of(runtime: &Arc<Runtime>, dir: &Dir, listen: SocketAddr) -> Self {
        let Membership { identity, chain, .. } = dir.membership().unwrap().unwrap();
        let key = dir.node_key().unwrap();
        Self::bind(runtime, key, listen, (identity.mesh, identity.epoch, identity.raft_id, chain))
    }

    pub(crate) fn id(&self) -> NodeId {
        self.key.id()
    }

    /// Its end of the wire, for what it does many times at once.
    pub(crate) fn net(&self) -> Net {
        self.net.clone()
    }

    /// Learns where a node is.
    pub(crate) fn meets(&self, host: &Host) -> NodeId {
        let node = id(host);
        self.net.learn(node, addresses(host, "data_addresses"));
        node
    }

    pub(crate) fn ask(&self, to: NodeId, request: &Request) -> Result<Reply, CallError> {
        let bytes = encode(request).unwrap();
        let answer = self.runtime.block_on(self.net.call(to, bytes, secs(5)))?;
        Ok(decode(&answer).unwrap())
    }

    /// Whether it is answered as a member.
    pub(crate) fn is_heard(&self, to: NodeId) -> bool {
        matches!(
            self.ask(to, &Request::Records { known: Vec::new(), mine: Vec::new() }),
            Ok(Reply::Records(_))
        )
    }

    pub(crate) fn say(&self, to: NodeId, bytes: Vec<u8>) {
        let _inside = self.runtime.enter();
        self.net.send(to, bytes);
    }

    /// Says it as raft, in its own name.
    pub(crate) fn raft(&self, to: (NodeId, RaftId), term: u64, body: Body) {
        self.raft_as(self.seat, to, term, body);
    }

    /// Says it as raft, in the name of any seat.
    pub(crate) fn raft_as(&self, from: RaftId, to: (NodeId, RaftId), term: u64, body: Body) {
        let (mesh, epoch) = (self.mesh, self.epoch);
        let message = Message { mesh, epoch, from, to: to.1, term, body };
        self.say(to.0, encode(&Note::Raft(message)).unwrap());
    }

    /// Opens a watcher's feed.
    pub(crate) fn watch(&self, at: NodeId, index: u64) -> Result<Stream, CallError> {
        let header = encode(&Header::Watch { index }).unwrap();
        self.runtime.block_on(self.net.open(at, header, Lane::Control))
    }

    /// Asks for data.
    pub(crate) fn wants(&self, at: NodeId, header: &Header) -> Result<Stream, CallError> {
        let header = encode(header).unwrap();
        self.runtime.block_on(self.net.open(at, header, Lane::Bulk))
    }

    /// Waits for something, for `patience` at most.
    pub(crate) fn waits<T>(&self, patience: Duration, what: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(patience, what).await.ok() })
    }

    /// The next frame of a feed; `None` at its end or after `patience` of silence.
    pub(crate) fn next(&self, stream: &mut Stream, patience: Duration) -> Option<Vec<u8>> {
        let frame = async { tokio::time::timeout(patience, stream.recv_frame(4 << 20)).await };
        self.runtime.block_on(frame).ok()?.ok()?
    }

    /// Shows something to a member as a newcomer would.
    pub(crate) fn knock(&self, host: &Host, request: &[u8]) -> Result<JoinReply, String> {
        let (node, at) = (id(host), addresses(host, "data_addresses")[0]);
        let answer = self.runtime.block_on(self.net.join(node, at, request.to_vec()));
        let answer = answer.map_err(|error| error.to_string())?;
        Ok(decode(&answer).unwrap())
    }

    pub(crate) fn asks_in(&self, host: &Host, request: &JoinRequest) -> JoinReply {
        self.knock(host, &encode(request).unwrap()).unwrap()
    }

    /// With whom it is connected.
    pub(crate) fn links(&self) -> BTreeMap<NodeId, SocketAddr> {
        let place = |link: &Link| Some((link.node, link.address.address()?));
        self.net.links().iter().filter_map(place).collect()
    }

    /// From now on, whoever watches it is served so.
    pub(crate) fn serves(&self, serve: Serve) {
        *self.ear.serve.lock().unwrap() = Some(serve);
    }

    /// From now on, whoever asks it for data is answered so.
    pub(crate) fn shares(&self, share: Share) {
        *self.ear.share.lock().unwrap() = Some(share);
    }

    pub(crate) fn heard(&self) -> Vec<(NodeId, Note)> {
        self.ear.heard.lock().unwrap().clone()
    }

    /// Lets go of its addresses.
    pub(crate) fn stop(self) {
        self.runtime.block_on(self.net.shutdown());
    }
}
