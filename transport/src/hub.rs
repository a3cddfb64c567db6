//! Ties the parts of the data plane together.
//!
//! `door.rs` guards, `hello.rs` greets, `live.rs` talks, `peer.rs` stays in touch; this file owns the
//! tasks that run them. Leaves to `net.rs` what callers see.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mesh_consensus::id::NodeId;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, info_span};

use crate::door::{Door, Entry, Verdict};
use crate::frame::FrameError;
use crate::hello::{Greeter, NOT_A_MEMBER};
use crate::live::{Limits, Live, Room};
use crate::net::{CallError, MAX_JOIN_REQUEST, Service, Welcome};
use crate::path::{Close, Path};
use crate::peer::{DialError, MAX_BESIDE, Peer, TakenUp, eyeballs};
use crate::quic::{Failure, Quic, reason};
use crate::tls::{ALPN_BESIDE, ALPN_JOIN, ALPN_MESH, speaker};

/// How long a newcomer may take to ask.
pub(crate) const ASK_PATIENCE: Duration = Duration::from_secs(5);
/// How long the answer may take: it may need an election.
pub(crate) const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// A connection that nobody keeps is closed after so long without use.
const UNUSED: Duration = Duration::from_secs(60);
/// One beside another sooner: whoever needs it again dials it again.
const UNUSED_BESIDE: Duration = Duration::from_secs(10);
/// How often to look for those.
const SWEEP: Duration = Duration::from_secs(15);

/// One node's connections, and what keeps them.
pub(crate) struct Hub {
    pub(crate) id: NodeId,
    pub(crate) quic: Quic,
    service: Arc<dyn Service>,
    incarnation: u64,
    limits: Limits,
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
    door: Door,
    stopping: CancellationToken,
    tasks: TaskTracker,
    /// Where tasks run: whoever sends need not be one of them.
    runtime: Handle,
}

impl Hub {
    pub(crate) fn start(id: NodeId, quic: Quic, service: Arc<dyn Service>) -> Arc<Self> {
        let limits = Limits { tuning: quic.tuning().clone(), room: Room::new() };
        let hub = Arc::new(Self {
            id,
            quic,
            limits,
            service,
            incarnation: fastrand::u64(..),
            peers: Mutex::default(),
            door: Door::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
        });
        for endpoint in hub.quic.endpoints() {
            hub.spawn(hub.clone().accept(endpoint));
        }
        hub.spawn(hub.clone().sweep());
        hub
    }

    pub(crate) async fn stop(&self) {
        /// Then whoever has not heard the goodbye must do without.
        const FAREWELL: Duration = Duration::from_secs(2);
        self.stopping.cancel();
        let endpoints = self.quic.endpoints();
        self.quic.let_go();
        for endpoint in &endpoints {
            endpoint.close(quinn::VarInt::from_u32(Close::Stopping as u32), b"the node stops");
        }
        self.tasks.close();
        let all = async {
            self.tasks.wait().await;
            for endpoint in &endpoints {
                endpoint.wait_idle().await;
            }
        };
        if timeout(FAREWELL, all).await.is_err() {
            debug!("some connections did not end in time");
        }
        // A connection that somebody holds, ended or not, holds its socket.
        self.peers().clear();
    }

    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Arc<Peer>>> {
        self.peers.lock().expect("never poisoned: nothing panics under this lock")
    }

    pub(crate) fn peer(&self, node: NodeId) -> Arc<Peer> {
        self.peers().entry(node).or_insert_with(|| Arc::new(Peer::new(node))).clone()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.peers().values().cloned().collect()
    }

    /// Tells the door where members are.
    pub(crate) fn mind_door(&self) {
        let all = self.all();
        let told = all.iter().flat_map(|peer| peer.addresses()).map(|address| address.ip());
        // Behind a NAT, a member comes from where nobody dials it.
        let seen = all.iter().filter_map(|peer| peer.current()?.path.source());
        self.door.know(told.chain(seen));
    }

    /// Runs until the node stops.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let work = self.stopping.clone().run_until_cancelled_owned(work);
        self.tasks.spawn_on(work, &self.runtime);
    }

    fn greeter(&self) -> Greeter<'_> {
        Greeter {
            service: &*self.service,
            incarnation: self.incarnation,
            patience: self.quic.tuning().patience,
            limits: &self.limits,
        }
    }

    pub(crate) fn dial_if(self: &Arc<Self>, peer: &Arc<Peer>, wanted: bool) {
        if peer.should_dial(wanted) {
            let span = info_span!("dial", peer = %peer.id.short());
            self.spawn(self.clone().dial(peer.clone()).instrument(span));
        }
    }

    async fn dial(self: Arc<Self>, peer: Arc<Peer>) {
        let net = &self;
        let id = peer.id;
        let reach = |addresses: Vec<SocketAddr>| async move { net.reach(id, &addresses).await };
        peer.dial(reach, |live| net.up(live)).await;
    }

    async fn reach(
        &self,
        id: NodeId,
        addresses: &[SocketAddr],
    ) -> Result<Live, Vec<(SocketAddr, Failure)>> {
        let connect = |address| self.quic.connect(id, address, ALPN_MESH);
        let (address, connection) = eyeballs(addresses, connect).await?;
        // The hello only on the first that works, so that the peer takes up only that one.
        let greeted = self.greeter().dialled(id, Path::Direct(connection)).await;
        greeted.map_err(|failure| vec![(address, failure)])
    }

    /// The connection with `node`, once there is one.
    pub(crate) async fn connected(self: &Arc<Self>, node: NodeId) -> Result<Arc<Live>, CallError> {
        if node == self.id {
            return Err(CallError::NoAddress(node));
        }
        let peer = self.peer(node);
        let (mut live, mut failed) = (peer.live.subscribe(), peer.failed.subscribe());
        let before = failed.borrow_and_update().0;
        let stands = |live: &Arc<Live>| live.path.why_closed().is_none();
        if let Some(live) = live.borrow_and_update().clone().filter(stands) {
            return Ok(live);
        }
        if peer.addresses().is_empty() {
            return Err(CallError::NoAddress(node));
        }
        self.dial_if(&peer, true);
        peer.hurry.notify_one();
        tokio::select! {
            found = live.wait_for(|live| live.as_ref().is_some_and(stands)) => match found.as_deref() {
                Ok(Some(live)) => Ok(live.clone()),
                _ => Err(CallError::NoAddress(node)),
            },
            found = failed.wait_for(|failed| failed.0 > before) => match found.as_deref() {
                Ok((_, Some(error))) => Err(CallError::Unreachable(error.clone())),
                _ => Err(CallError::NoAddress(node)),
            },
            () = self.stopping.cancelled() => Err(CallError::Stopping),
        }
    }

    /// The connection of this number beside the one in use, from zero on; dials it if need be.
    pub(crate) async fn beside(
        self: &Arc<Self>,
        node: NodeId,
        number: usize,
    ) -> Result<Arc<Live>, CallError> {
        let first = self.connected(node).await?;
        let peer = self.peer(node);
        if let Some(live) = peer.beside(number) {
            return Ok(live);
        }
        let failed = |address, failure| {
            CallError::Unreachable(DialError { node, tries: vec![(address, failure)] })
        };
        // The same way that the first one took.
        let address = first.path.whereabouts().address().filter(|_| number < MAX_BESIDE);
        let address = address.ok_or(CallError::NoAddress(node))?;
        let dialled = self.quic.connect(node, address, ALPN_BESIDE).await;
        let path = Path::Direct(dialled.map_err(|failure| failed(address, failure))?);
        let greeted = self.greeter().dialled(node, path).await;
        let live = Arc::new(greeted.map_err(|failure| failed(address, failure))?);
        match self.run_beside(&peer, Some(number), &live) {
            true => Ok(live),
            false => Err(CallError::Refused(node)),
        }
    }

    /// Takes up a connection beside the one in use. Whether it may be.
    fn run_beside(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        number: Option<usize>,
        live: &Arc<Live>,
    ) -> bool {
        if !peer.put_beside(number, live) || self.service.still(live.peer) == Welcome::No {
            live.path
                .close(Close::Busy, "too many connections, or one that is not welcome any more");
            return false;
        }
        let (service, stopping) = (self.service.clone(), self.stopping.clone());
        let (peer, live) = (peer.clone(), live.clone());
        let serve = live.clone().serve(service, self.tasks.clone(), stopping);
        self.spawn(async move {
            serve.await;
            peer.lost_beside(&live);
        });
        true
    }

    /// Takes up a connection whose hello is done.
    fn up(self: &Arc<Self>, live: Live) {
        let live = Arc::new(live);
        let peer = self.peer(live.peer);
        let telling = peer.telling.lock().expect("never poisoned");
        match peer.take_up(self.id, &live) {
            TakenUp::Refused => return live.path.close(Close::Refused, "removed"),
            TakenUp::Spare => self.spawn(peer.retiring(&live)),
            TakenUp::InUse { instead_of: Some(old) } => self.spawn(peer.retiring(&old)),
            TakenUp::InUse { instead_of: None } => {
                let address = live.path.whereabouts();
                let version = live.greeting.version;
                info!(peer = %live.peer.short(), %address, dialled = live.dialled, version, "connected");
                self.service.on_up(live.peer);
            }
        }
        drop(telling);
        self.mind_door();
        if self.service.still(live.peer) == Welcome::No {
            // Removed between the hello and now.
            live.path.close(Close::Refused, NOT_A_MEMBER);
        }
        let span = info_span!("peer", id = %live.peer.short());
        self.spawn(self.clone().run(peer, live).instrument(span));
    }

    /// Lives as long as the connection.
    async fn run(self: Arc<Self>, peer: Arc<Peer>, live: Arc<Live>) {
        let (service, stopping) = (self.service.clone(), self.stopping.clone());
        let serve = live.clone().serve(service, self.tasks.clone(), stopping);
        tokio::join!(serve, peer.pump(&live));
        {
            let _telling = peer.telling.lock().expect("never poisoned");
            if peer.lost(&live) {
                let why = live.path.why_closed().map(|why| reason(&why)).unwrap_or_default();
                info!(peer = %live.peer.short(), why, "disconnected");
                self.service.on_down(live.peer);
            }
        }
        self.dial_if(&peer, false);
    }

    async fn accept(self: Arc<Self>, endpoint: quinn::Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            let address = incoming.remote_address();
            match self.door.knock(address.ip(), incoming.remote_address_validated()) {
                // Both fail only where they make no sense, and then it is not answered.
                Verdict::Prove => drop(incoming.retry()),
                Verdict::Refuse => incoming.refuse(),
                Verdict::Enter(entry) => {
                    if let Ok(connecting) = incoming.accept_with(self.quic.server_for(address)) {
                        self.spawn(self.clone().enter(connecting, entry));
                    }
                }
            }
        }
    }

    async fn enter(self: Arc<Self>, connecting: quinn::Connecting, entry: Entry) {
        let patience = self.quic.tuning().patience;
        let Ok(Ok(connection)) = timeout(patience, connecting).await else { return };
        let Some((from, alpn)) = speaker(&connection) else { return };
        let path = Path::Direct(connection);
        if alpn == ALPN_JOIN {
            return self.newcomer(from, path, entry).await;
        }
        if from == self.id {
            return path.close(Close::Refused, "you are me");
        }
        match self.greeter().accepted(from, path).await {
            Ok(live) if alpn == ALPN_BESIDE => {
                let (peer, live) = (self.peer(from), Arc::new(live));
                if peer.current().is_some() {
                    self.run_beside(&peer, None, &live);
                } else {
                    live.path.close(Close::Protocol, "there is none that it is beside");
                }
            }
            Ok(live) => self.up(live),
            Err(error) => debug!(peer = %from.short(), %error, "turned away"),
        }
    }

    async fn newcomer(&self, from: NodeId, path: Path, entry: Entry) {
        let hearing = path.source().and_then(|source| self.door.hear(source, Instant::now()));
        let Some(_hearing) = hearing else {
            return path.close(Close::Busy, "too many newcomers at a time; try again");
        };
        path.allow(0, 1);
        let ask = async {
            let (send, mut receive) = path.accept_bi().await?;
            let request = receive.recv_frame(MAX_JOIN_REQUEST).await?;
            Ok::<_, FrameError>((send, request.ok_or(FrameError::CutShort)?))
        };
        let Ok(Ok((mut send, request))) = timeout(ASK_PATIENCE, ask).await else {
            return path.close(Close::Protocol, "no proper request in time");
        };
        // It is no half-open connection any more; `_hearing` counts it.
        drop(entry);
        let answer = async {
            let reply = self.service.on_join(from, request).await;
            send.send_frame(&reply).await?;
            send.finish();
            send.stopped().await;
            Ok::<_, FrameError>(())
        };
        tokio::select! {
            result = timeout(JOIN_PATIENCE, answer) => match result {
                Ok(_) => path.close(Close::Done, "welcome"),
                Err(_) => path.close(Close::Busy, "no answer in time; try again"),
            },
            _ = path.closed() => {}
        }
    }

    /// Closes what nobody uses. Only who dialled does: the other side may have reasons of its own
    /// to keep the connection, and would dial again at once.
    async fn sweep(self: Arc<Self>) {
        loop {
            sleep(SWEEP).await;
            for peer in self.all() {
                peer.forget_old();
                if let Some(live) = peer.current()
                    && live.dialled
                    && !peer.is_kept()
                    && live.idle_for() > UNUSED
                {
                    live.path.close(Close::Idle, "unused");
                }
                for live in peer.all_beside() {
                    if live.idle_for() > UNUSED_BESIDE {
                        live.path.close(Close::Idle, "unused");
                    }
                }
            }
        }
    }
}
