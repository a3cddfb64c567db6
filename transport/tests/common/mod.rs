//! A node for tests: a real endpoint on loopback whose service notes what it hears.
#![expect(clippy::unwrap_used, reason = "a test helper: a failure here fails the test")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mesh_consensus::id::NodeId;
use mesh_transport::identity::NodeKey;
use mesh_transport::net::{Net, Service, Stream, Tuning, Welcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

/// Long enough for a machine that is busy with other things.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) known: Mutex<BTreeMap<NodeId, Welcome>>,
    pub(crate) messages: Mutex<Vec<(NodeId, Vec<u8>)>>,
    pub(crate) calls: Mutex<Vec<(NodeId, Vec<u8>)>>,
    pub(crate) joins: Mutex<Vec<(NodeId, Vec<u8>)>>,
    pub(crate) hellos: Mutex<Vec<(NodeId, Vec<u8>)>>,
    pub(crate) up: Mutex<BTreeSet<NodeId>>,
    pub(crate) streams: Mutex<usize>,
    /// The longest message that is read, if it is set.
    pub(crate) brief: Mutex<Option<usize>>,
    /// Takes its time for each message.
    pub(crate) slow: AtomicBool,
    /// What was read on streams that swallow.
    pub(crate) swallowed: AtomicUsize,
    /// Greets members and then hears none of them.
    pub(crate) fickle: Mutex<bool>,
}

impl Service for Heard {
    fn hello(&self) -> Vec<u8> {
        b"hello of the service".to_vec()
    }

    fn welcome(&self, from: NodeId, hello: &[u8]) -> Welcome {
        let welcome = self.known.lock().unwrap().get(&from).copied().unwrap_or(Welcome::No);
        if welcome != Welcome::No {
            self.hellos.lock().unwrap().push((from, hello.to_vec()));
        }
        welcome
    }

    fn still(&self, from: NodeId) -> Welcome {
        if *self.fickle.lock().unwrap() {
            return Welcome::No;
        }
        self.known.lock().unwrap().get(&from).copied().unwrap_or(Welcome::No)
    }

    fn on_message(&self, from: NodeId, message: Vec<u8>) {
        if self.slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
        self.messages.lock().unwrap().push((from, message));
    }

    fn largest_message(&self, _: NodeId) -> usize {
        self.brief.lock().unwrap().unwrap_or(usize::MAX)
    }

    /// Answers with the request backwards; "sleep" never.
    fn on_call(&self, from: NodeId, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        async move {
            self.calls.lock().unwrap().push((from, request.clone()));
            if request == b"sleep" {
                std::future::pending::<()>().await;
            }
            request.into_iter().rev().collect()
        }
        .boxed()
    }

    /// Does as the header says; otherwise sends the header back, then every frame, then finishes.
    fn on_stream(&self, _: NodeId, header: Vec<u8>, mut stream: Stream) -> BoxFuture<'_, ()> {
        async move {
            *self.streams.lock().unwrap() += 1;
            match &header[..] {
                b"hold" => return std::future::pending().await,
                b"flood" => {
                    while stream.write_all(&[0; 65_536]).await.is_ok() {}
                    return;
                }
                b"swallow" => {
                    let mut buffer = vec![0; 256 << 10];
                    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                        self.swallowed.fetch_add(n, Ordering::Relaxed);
                    }
                    return;
                }
                b"whole" | b"cancelled" => {
                    stream.write_all(b"all of it, or not").await.unwrap();
                    if header == b"whole" {
                        stream.finish();
                    }
                    return;
                }
                b"mirror" => {
                    stream.send_frame(b"ready").await.unwrap();
                    let whole = stream.read_to_end(&mut Vec::new()).await.is_ok();
                    let word: &[u8] = if whole { b"whole" } else { b"broken off" };
                    stream.write_all(word).await.unwrap();
                    return stream.finish();
                }
                b"deaf after a while" => return sleep(Duration::from_secs(1)).await,
                _ => {}
            }
            stream.send_frame(&header).await.ok();
            while let Ok(Some(frame)) = stream.recv_frame(1 << 20).await {
                if stream.send_frame(&frame).await.is_err() {
                    break;
                }
            }
            stream.finish();
        }
        .boxed()
    }

    fn on_join(&self, from: NodeId, request: Vec<u8>) -> BoxFuture<'_, Vec<u8>> {
        async move {
            self.joins.lock().unwrap().push((from, request.clone()));
            [b"joined: ".to_vec(), request].concat()
        }
        .boxed()
    }

    fn on_up(&self, peer: NodeId) {
        self.up.lock().unwrap().insert(peer);
    }

    fn on_down(&self, peer: NodeId) {
        self.up.lock().unwrap().remove(&peer);
    }
}

pub(crate) struct Node {
    pub(crate) key: NodeKey,
    pub(crate) net: Net,
    pub(crate) heard: Arc<Heard>,
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::with(NodeKey::generate(), "127.0.0.1:0".parse().unwrap())
    }

    pub(crate) fn with(key: NodeKey, listen: SocketAddr) -> Self {
        let heard = Arc::new(Heard::default());
        let net = Net::bind(&key, &[listen], Tuning::default(), heard.clone()).unwrap();
        Self { key, net, heard }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.key.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.net.addresses()[0]
    }

    /// It will hear `other`, and not yet knows where it is.
    pub(crate) fn know(&self, other: &Node, welcome: Welcome) {
        self.heard.known.lock().unwrap().insert(other.id(), welcome);
    }

    pub(crate) fn forget(&self, other: &Node) {
        self.heard.known.lock().unwrap().remove(&other.id());
    }

    pub(crate) fn learn(&self, other: &Node) {
        self.net.learn(other.id(), vec![other.address()]);
    }

    pub(crate) async fn ask(&self, other: &Node, request: &[u8]) -> Result<Vec<u8>, String> {
        let answer = self.net.call(other.id(), request.to_vec(), PATIENCE).await;
        answer.map_err(|error| error.to_string())
    }

    pub(crate) fn messages(&self) -> Vec<Vec<u8>> {
        self.heard.messages.lock().unwrap().iter().map(|(_, message)| message.clone()).collect()
    }

    pub(crate) fn is_up(&self, other: &Node) -> bool {
        self.heard.up.lock().unwrap().contains(&other.id())
    }
}

/// Two nodes that know each other.
pub(crate) fn pair() -> (Node, Node) {
    let (a, b) = (Node::start(), Node::start());
    introduce(&a, &b);
    (a, b)
}

pub(crate) fn introduce(a: &Node, b: &Node) {
    a.know(b, Welcome::Full);
    b.know(a, Welcome::Full);
    a.learn(b);
    b.learn(a);
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !so() {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}
