//! One live connection with a peer that was welcome: what is said and heard on it.
//!
//! The first byte of a stream says what it is. Each message, call and stream asks again whether the
//! peer is welcome: it may be removed while it speaks. Leaves to others how a connection begins
//! (`hello.rs`) and whom to connect to (`peer.rs`).

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{Either, select};
use mesh_consensus::id::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::credit::{Credits, GRANT_BYTES};
use crate::frame::{FrameError, header, read_body};
use crate::hello::NOT_A_MEMBER;
use crate::net::{Service, Welcome};
use crate::path::{Close, Lane, Path, ReceiveHalf, SendHalf, Stream};
use crate::quic::Tuning;

/// A message up to this size goes the ordered way; a larger one gets a stream of its own.
pub(crate) const SMALL_MESSAGE: usize = 64 << 10;
/// No message is larger: a snapshot of the whole state must fit.
pub(crate) const MAX_MESSAGE: usize = 300 << 20;
/// A request is no larger.
pub(crate) const MAX_REQUEST: usize = 2 << 20;
/// Nor is an answer.
pub(crate) const MAX_REPLY: usize = 8 << 20;
/// Nor is the header of a stream.
pub(crate) const MAX_HEADER: usize = 64 << 10;

/// One for small messages, one for a large one, one for grants, and some that are just ending.
const UNI_STREAMS: u32 = 8;
/// Calls and long-lived streams that one peer has opened. More wait on the peer's side.
const BI_STREAMS: u32 = 128;
/// Calls of one peer that are read or answered at a time. More wait.
const CALLS: usize = 32;
/// How long a peer may take to say what it wants, once it has opened a stream for it.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing may come of a large message, or go of an answer.
const STALL: Duration = Duration::from_secs(10);
/// How slowly a large message may come, in bytes a second: while it comes, it takes room from others.
const SLOWEST: u64 = 256 << 10;
/// How long a large message may wait until others have gone. Then it is dropped.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);

/// What a stream is: its first byte.
mod kind {
    pub(super) const MESSAGES: u8 = 1;
    pub(super) const LARGE: u8 = 2;
    pub(super) const CALL: u8 = 3;
    pub(super) const STREAM: u8 = 4;
    pub(super) const GRANTS: u8 = 5;
}

/// How a call went: the first byte of the answer.
mod status {
    pub(super) const ANSWERED: u8 = 0;
    pub(super) const REFUSED: u8 = 1;
}

/// What all peers together may have under way in large messages.
#[derive(Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Room {
    /// One of the largest, and as much besides.
    const BYTES: usize = 2 * MAX_MESSAGE;
    /// What is counted at a time.
    const UNIT: usize = 1 << 10;

    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::BYTES / Self::UNIT)))
    }

    /// Waits for so much room, and holds it.
    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(Self::UNIT)).ok()?;
        timeout(ROOM_PATIENCE, self.0.clone().acquire_many_owned(units)).await.ok()?.ok()
    }
}

/// What every connection of a node is held to.
pub(crate) struct Limits {
    pub(crate) tuning: Tuning,
    pub(crate) room: Room,
}

/// What two nodes found out about each other in their hellos.
pub(crate) struct Greeting {
    /// The best version of the protocol that both speak.
    pub(crate) version: u16,
    /// The peer's: drawn when its process started.
    pub(crate) incarnation: u64,
}

/// A connection with a peer that was welcome when it began.
pub(crate) struct Live {
    pub(crate) peer: NodeId,
    pub(crate) path: Path,
    /// By us.
    pub(crate) dialled: bool,
    pub(crate) greeting: Greeting,
    pub(crate) since: Instant,
    /// When something was last asked or said by either side.
    used: Mutex<Instant>,
    /// Each open stream holds one more reference.
    pub(crate) in_use: Arc<()>,
    /// Set when another connection takes over: nothing new goes out here.
    pub(crate) retired: CancellationToken,
    /// How much each stream may have under way.
    pub(crate) credits: Arc<Credits>,
    calls: Semaphore,
    /// Large messages are read one at a time.
    large: Semaphore,
    room: Room,
}

/// How a call on a live connection failed.
pub(crate) enum Unanswered {
    Refused,
    Failed(FrameError),
}

impl<E: Into<FrameError>> From<E> for Unanswered {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Live {
    pub(crate) fn new(
        peer: NodeId,
        path: Path,
        dialled: bool,
        greeting: Greeting,
        limits: &Limits,
    ) -> Self {
        let now = Instant::now();
        Self {
            peer,
            credits: Credits::new(path.clone(), &limits.tuning, 2 * BI_STREAMS + UNI_STREAMS),
            path,
            dialled,
            greeting,
            since: now,
            used: Mutex::new(now),
            in_use: Arc::default(),
            retired: CancellationToken::new(),
            calls: Semaphore::new(CALLS),
            large: Semaphore::new(1),
            room: limits.room.clone(),
        }
    }

    /// The hello is done: the peer may speak.
    pub(crate) fn allow_streams(&self) {
        self.credits.open();
        self.path.allow(UNI_STREAMS, BI_STREAMS);
    }

    /// Notes that it is of use.
    pub(crate) fn touch(&self) {
        *self.used.lock().expect("never poisoned") = Instant::now();
    }

    /// For how long nobody has used it.
    pub(crate) fn idle_for(&self) -> Duration {
        if Arc::strong_count(&self.in_use) > 1 {
            return Duration::ZERO;
        }
        self.used.lock().expect("never poisoned").elapsed()
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn call(&self, request: &[u8]) -> Result<Vec<u8>, Unanswered> {
        let _in_use = self.in_use.clone();
        self.touch();
        let (mut send, mut receive) = self.open_bi(Lane::Control).await?;
        send.write_u8(kind::CALL).await?;
        send.send_frame(request).await?;
        send.finish();
        match receive.read_u8().await? {
            status::ANSWERED => {
                let reply = receive.recv_frame(MAX_REPLY).await?;
                reply.ok_or(Unanswered::Failed(FrameError::CutShort))
            }
            _ => Err(Unanswered::Refused),
        }
    }

    /// Opens a stream that begins with `header`.
    pub(crate) async fn open(&self, header: &[u8], lane: Lane) -> Result<Stream, FrameError> {
        self.touch();
        let (mut send, receive) = self.open_bi(lane).await?;
        send.write_all(&[kind::STREAM, lane as u8]).await?;
        send.send_frame(header).await?;
        Ok(Stream::new(send, receive, self.in_use.clone()))
    }

    async fn open_bi(&self, lane: Lane) -> io::Result<(SendHalf, ReceiveHalf)> {
        let (send, receive) = self.path.open_bi(lane).await?;
        let mut receive = receive.under(&self.credits);
        receive.set_lane(lane);
        Ok((send.under(&self.credits), receive))
    }

    /// The stream on which small messages go.
    pub(crate) async fn open_messages(&self) -> io::Result<SendHalf> {
        let mut send = self.path.open_uni(Lane::Raft).await?;
        send.may_end_anywhere();
        send.write_u8(kind::MESSAGES).await?;
        Ok(send)
    }

    /// Sends one large message, and returns when the peer has it.
    pub(crate) async fn send_large(&self, message: &[u8]) -> Result<(), FrameError> {
        let _in_use = self.in_use.clone();
        // Behind the small ones: a heartbeat must not wait for a snapshot.
        let mut send = self.path.open_uni(Lane::Control).await?.under(&self.credits);
        send.write_u8(kind::LARGE).await?;
        send.send_frame(message).await?;
        send.finish();
        send.stopped().await;
        Ok(())
    }

    /// Hears the peer until the connection is gone. What it asked for is dropped when the node stops:
    /// whoever serves a stream may not notice by itself for a while.
    pub(crate) async fn serve(
        self: Arc<Self>,
        service: Arc<dyn Service>,
        tasks: TaskTracker,
        stopping: CancellationToken,
    ) {
        let messages = async {
            while let Ok(receive) = self.path.accept_uni().await {
                let work = self.clone().on_uni(service.clone(), receive);
                tasks.spawn(stopping.clone().run_until_cancelled_owned(work));
            }
        };
        let requests = async {
            while let Ok((send, receive)) = self.path.accept_bi().await {
                let work = self.clone().on_bi(service.clone(), send, receive);
                tasks.spawn(stopping.clone().run_until_cancelled_owned(work));
            }
        };
        let grants = async {
            tokio::select! {
                _ = self.tell_grants() => {}
                _ = self.path.closed() => {}
            }
        };
        tokio::join!(messages, requests, grants);
    }

    /// Tells the peer how much it may send, for as long as it listens.
    async fn tell_grants(&self) -> io::Result<()> {
        let mut grants = self.credits.grants_to_tell().await;
        let mut send = self.path.open_uni(Lane::Raft).await?;
        send.write_u8(kind::GRANTS).await?;
        loop {
            send.write_all(&grants).await?;
            grants = self.credits.grants_to_tell().await;
        }
    }

    async fn on_uni(self: Arc<Self>, service: Arc<dyn Service>, mut receive: ReceiveHalf) {
        let Ok(Ok(kind)) = timeout(REQUEST_PATIENCE, receive.read_u8()).await else { return };
        let result = match kind {
            kind::MESSAGES => self.on_messages(&*service, &mut receive).await,
            kind::LARGE => self.on_large(&*service, receive.under(&self.credits)).await,
            kind::GRANTS => self.on_grants(&mut receive).await,
            // Perhaps of a later version: dropping the stream says that we do not want it.
            _ => Ok(()),
        };
        self.after(result);
    }

    async fn on_messages(
        &self,
        service: &dyn Service,
        receive: &mut ReceiveHalf,
    ) -> Result<(), FrameError> {
        while let Some(message) = receive.recv_frame(SMALL_MESSAGE).await? {
            if !self.still(service) {
                break;
            }
            service.on_message(self.peer, message);
        }
        Ok(())
    }

    async fn on_grants(&self, receive: &mut ReceiveHalf) -> Result<(), FrameError> {
        let mut grant = [0; GRANT_BYTES];
        loop {
            receive.read_exact(&mut grant).await?;
            self.credits.on_grant(grant);
        }
    }

    async fn on_large(
        &self,
        service: &dyn Service,
        mut receive: ReceiveHalf,
    ) -> Result<(), FrameError> {
        // An honest peer sends one at a time, and the next as soon as it knows that this one has arrived: which may be
        // before we have read it.
        let Ok(turn) = self.large.acquire().await else { return Ok(()) };
        if !self.still(service) {
            return Ok(());
        }
        let length = timeout(REQUEST_PATIENCE, receive.read_u32_le()).await;
        let length = length.map_err(|_| FrameError::Stalled)??;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE {
            return Err(FrameError::TooLong { length, max: MAX_MESSAGE });
        }
        if length > service.largest_message(self.peer) {
            // Perhaps it has not heard yet that it may not: only the message is lost.
            debug!(bytes = length, "a message is longer than is read from this peer now");
            return Ok(());
        }
        let Some(_room) = self.room.take(length).await else {
            debug!(bytes = length, "no room for a large message");
            return Ok(());
        };
        receive.set_lane(Lane::Control);
        let patience = STALL + Duration::from_secs(length as u64 / SLOWEST);
        let reading = timeout(patience, read_body(&mut receive, length, Some(STALL)));
        let message = reading.await.map_err(|_| FrameError::Stalled)??;
        drop(turn);
        if self.still(service) {
            service.on_message(self.peer, message);
        }
        Ok(())
    }

    async fn on_bi(
        self: Arc<Self>,
        service: Arc<dyn Service>,
        send: SendHalf,
        receive: ReceiveHalf,
    ) {
        let (send, mut receive) = (send.under(&self.credits), receive.under(&self.credits));
        let Ok(Ok(kind)) = timeout(REQUEST_PATIENCE, receive.read_u8()).await else { return };
        let result = match kind {
            kind::CALL => self.on_call(&*service, send, receive).await,
            kind::STREAM => self.on_stream(&*service, send, receive).await,
            _ => Ok(()),
        };
        self.after(result);
    }

    async fn on_call(
        &self,
        service: &dyn Service,
        mut send: SendHalf,
        mut receive: ReceiveHalf,
    ) -> Result<(), FrameError> {
        let Ok(_permit) = self.calls.acquire().await else { return Ok(()) };
        receive.set_lane(Lane::Control);
        let request = timeout(REQUEST_PATIENCE, receive.recv_frame(MAX_REQUEST)).await;
        let Some(request) = request.map_err(|_| FrameError::Stalled)?? else { return Ok(()) };
        match service.still(self.peer) {
            Welcome::Full => {}
            Welcome::RaftOnly => {
                send.write_u8(status::REFUSED).await?;
                send.finish();
                return Ok(());
            }
            Welcome::No => return self.cut(),
        }
        let _in_use = self.in_use.clone();
        self.touch();
        let reply = {
            let gone = std::pin::pin!(send.stopped());
            match select(service.on_call(self.peer, request), gone).await {
                Either::Left((reply, _)) => reply,
                // Nobody waits for the answer any more.
                Either::Right(_) => return Ok(()),
            }
        };
        if reply.len() > MAX_REPLY {
            debug!(bytes = reply.len(), "an answer is too long to be sent");
            send.abort();
            return Ok(());
        }
        self.answer(send, &reply).await
    }

    /// Sends an answer, for as long as somebody takes it.
    async fn answer(&self, mut send: SendHalf, reply: &[u8]) -> Result<(), FrameError> {
        const PIECE: usize = 64 << 10;
        let head = [&[status::ANSWERED][..], &header(reply.len())?].concat();
        for piece in std::iter::once(&head[..]).chain(reply.chunks(PIECE)) {
            let written = timeout(STALL, send.write_all(piece)).await;
            written.map_err(|_| FrameError::Stalled)??;
        }
        send.finish();
        Ok(())
    }

    async fn on_stream(
        &self,
        service: &dyn Service,
        send: SendHalf,
        mut receive: ReceiveHalf,
    ) -> Result<(), FrameError> {
        let opening = async {
            let lane = receive.read_u8().await?;
            Ok::<_, FrameError>((lane, receive.recv_frame(MAX_HEADER).await?))
        };
        let opening = timeout(REQUEST_PATIENCE, opening).await;
        let (lane, Some(header)) = opening.map_err(|_| FrameError::Stalled)?? else {
            return Ok(());
        };
        match service.still(self.peer) {
            Welcome::Full => {}
            // Dropping both halves tells the peer.
            Welcome::RaftOnly => return Ok(()),
            Welcome::No => return self.cut(),
        }
        // The most urgent lane is raft's own.
        let lane = if lane == Lane::Bulk as u8 { Lane::Bulk } else { Lane::Control };
        send.set_lane(lane);
        receive.set_lane(lane);
        self.touch();
        let stream = Stream::new(send, receive, self.in_use.clone());
        tokio::select! {
            () = service.on_stream(self.peer, header, stream) => {}
            _ = self.path.closed() => {}
        }
        Ok(())
    }

    /// Whether the peer may still send messages. If not, that was its last word.
    fn still(&self, service: &dyn Service) -> bool {
        let still = service.still(self.peer) != Welcome::No;
        if still {
            self.touch();
        } else {
            self.path.close(Close::Refused, NOT_A_MEMBER);
        }
        still
    }

    fn cut(&self) -> Result<(), FrameError> {
        self.path.close(Close::Refused, NOT_A_MEMBER);
        Ok(())
    }

    /// A slow stream is only dropped; a peer that breaks the rules loses its connection.
    fn after(&self, result: Result<(), FrameError>) {
        match result {
            Err(error @ FrameError::TooLong { .. }) => {
                debug!(%error, "closing the connection");
                self.path.close(Close::Protocol, "a frame is too long");
            }
            Err(error) => debug!(%error, "a stream ended early"),
            Ok(()) => {}
        }
    }
}
