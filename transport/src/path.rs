//! A way to a peer, and the streams on it.
//!
//! Today there is one way: a QUIC connection. Later ones (TCP, a relay) become further variants of
//! [`Path`], [`SendHalf`] and [`ReceiveHalf`]; whoever uses a [`Stream`] does not notice.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use quinn::VarInt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::credit::{Allowance, Credits, Meter};
use crate::frame::{FrameError, read_frame, write_frame};

/// What is more urgent goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Chunks, tensors, logs.
    Bulk,
    /// Requests and their answers.
    Control,
    /// What elections depend on.
    Raft,
}

impl Lane {
    fn priority(self) -> i32 {
        match self {
            Lane::Raft => 2,
            Lane::Control => 1,
            Lane::Bulk => 0,
        }
    }
}

/// Why a connection is closed. The number travels, and words for a person beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// The node stops.
    Stopping = 0,
    /// The peer does not belong here, or no longer.
    Refused = 1,
    /// There is another connection between the two.
    Duplicate = 2,
    /// No version in common.
    Version = 3,
    /// It did what no honest peer does.
    Protocol = 4,
    /// Too much at a time.
    Busy = 5,
    /// Nobody used it.
    Idle = 6,
    /// All is said.
    Done = 7,
}

/// Where the other end of a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Whereabouts {
    /// At an address of its own.
    Direct(SocketAddr),
}

impl Whereabouts {
    /// Its address, if it is reached at one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Whereabouts::Direct(address) => Some(*address),
        }
    }
}

impl std::fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Whereabouts::Direct(address) => address.fmt(f),
        }
    }
}

/// A way to a peer.
#[derive(Debug, Clone)]
pub(crate) enum Path {
    Direct(quinn::Connection),
}

/// What a path has measured.
pub(crate) struct Measured {
    pub(crate) rtt: Duration,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) lost_packets: u64,
    pub(crate) mtu: u16,
}

impl Path {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Path::Direct(_) => "direct",
        }
    }

    pub(crate) fn whereabouts(&self) -> Whereabouts {
        match self {
            Path::Direct(connection) => Whereabouts::Direct(connection.remote_address()),
        }
    }

    /// Who answers for what comes this way, if that can be told: the host that sends the packets.
    pub(crate) fn source(&self) -> Option<IpAddr> {
        match self {
            Path::Direct(connection) => Some(connection.remote_address().ip()),
        }
    }

    pub(crate) fn rtt(&self) -> Duration {
        match self {
            Path::Direct(connection) => connection.rtt(),
        }
    }

    pub(crate) fn measured(&self) -> Measured {
        match self {
            Path::Direct(connection) => {
                let stats = connection.stats();
                Measured {
                    rtt: stats.path.rtt,
                    sent_bytes: stats.udp_tx.bytes,
                    received_bytes: stats.udp_rx.bytes,
                    lost_packets: stats.path.lost_packets,
                    mtu: stats.path.current_mtu,
                }
            }
        }
    }

    /// From now on the peer may have this many streams open at a time.
    pub(crate) fn allow(&self, uni: u32, bi: u32) {
        match self {
            Path::Direct(connection) => {
                connection.set_max_concurrent_uni_streams(VarInt::from_u32(uni));
                connection.set_max_concurrent_bi_streams(VarInt::from_u32(bi));
            }
        }
    }

    /// How much the peer may have under way, unread.
    pub(crate) fn set_window(&self, bytes: u32) {
        match self {
            Path::Direct(connection) => connection.set_receive_window(VarInt::from_u32(bytes)),
        }
    }

    pub(crate) async fn open_uni(&self, lane: Lane) -> io::Result<SendHalf> {
        match self {
            Path::Direct(connection) => Ok(SendHalf::direct(connection.open_uni().await?, lane)),
        }
    }

    pub(crate) async fn open_bi(&self, lane: Lane) -> io::Result<(SendHalf, ReceiveHalf)> {
        match self {
            Path::Direct(connection) => {
                let (send, receive) = connection.open_bi().await?;
                Ok((SendHalf::direct(send, lane), ReceiveHalf::direct(receive)))
            }
        }
    }

    pub(crate) async fn accept_uni(&self) -> io::Result<ReceiveHalf> {
        match self {
            Path::Direct(connection) => Ok(ReceiveHalf::direct(connection.accept_uni().await?)),
        }
    }

    pub(crate) async fn accept_bi(&self) -> io::Result<(SendHalf, ReceiveHalf)> {
        match self {
            Path::Direct(connection) => {
                let (send, receive) = connection.accept_bi().await?;
                Ok((SendHalf::direct(send, Lane::Control), ReceiveHalf::direct(receive)))
            }
        }
    }

    pub(crate) fn close(&self, code: Close, why: &str) {
        match self {
            Path::Direct(connection) => {
                connection.close(VarInt::from_u32(code as u32), why.as_bytes());
            }
        }
    }

    /// Returns when the path is gone, and says why.
    pub(crate) async fn closed(&self) -> quinn::ConnectionError {
        match self {
            Path::Direct(connection) => connection.closed().await,
        }
    }

    /// Whether the peer has closed it, and said `code`.
    pub(crate) fn closed_with(&self, code: Close) -> bool {
        match self.why_closed() {
            Some(quinn::ConnectionError::ApplicationClosed(close)) => {
                close.error_code == VarInt::from_u32(code as u32)
            }
            _ => false,
        }
    }

    /// Whether it is gone because we closed it, or because the peer found it unused.
    pub(crate) fn ended_by_rule(&self) -> bool {
        matches!(self.why_closed(), Some(quinn::ConnectionError::LocallyClosed))
            || self.closed_with(Close::Idle)
    }

    /// Why it is gone, if it is.
    pub(crate) fn why_closed(&self) -> Option<quinn::ConnectionError> {
        match self {
            Path::Direct(connection) => connection.close_reason(),
        }
    }
}

/// Bytes and frames in both directions, as reliable as the connection below.
#[derive(Debug)]
pub struct Stream {
    send: SendHalf,
    receive: ReceiveHalf,
    /// Tells the connection that somebody uses it.
    in_use: Arc<()>,
}

impl Stream {
    pub(crate) fn new(send: SendHalf, receive: ReceiveHalf, in_use: Arc<()>) -> Self {
        Self { send, receive, in_use }
    }

    /// Sends one frame; waits while the peer does not keep up.
    pub async fn send_frame(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        self.send.send_frame(bytes).await
    }

    /// The next frame of at most `max` bytes. `None` once the peer has finished.
    pub async fn recv_frame(&mut self, max: usize) -> Result<Option<Vec<u8>>, FrameError> {
        self.receive.recv_frame(max).await
    }

    /// Says that nothing more will be sent, and that it is whole. A stream that is dropped before says that
    /// it is not.
    pub fn finish(&mut self) {
        self.send.finish();
    }

    /// Says that what was sent so far is not whole, and must not be taken for it.
    pub fn abort(&mut self) {
        self.send.abort();
    }

    /// Returns when the peer wants no more of it, or the connection is gone.
    pub async fn stopped(&self) {
        self.send.stopped().await;
    }

    /// Changes how urgent our direction of it is.
    pub fn set_lane(&self, lane: Lane) {
        self.send.set_lane(lane);
    }

    /// Both directions, each on its own. The connection counts as used while either lives.
    pub fn split(self) -> (SendHalf, ReceiveHalf) {
        let Self { mut send, mut receive, in_use } = self;
        send.in_use = Some(in_use.clone());
        receive.in_use = Some(in_use);
        (send, receive)
    }
}

/// Where bytes go out. Dropped before it is finished, it tells the reader that what came is not whole.
pub struct SendHalf {
    send: Send,
    /// What the reader lets us send, if it says so.
    allowed: Option<Allowance>,
    /// While nothing may be sent: resolves once the reader, or the connection, is gone.
    gone: Option<Gone>,
    /// It was finished or aborted, or may end anywhere.
    ended: bool,
    in_use: Option<Arc<()>>,
}

enum Send {
    Direct(quinn::SendStream),
}

type Gone = Pin<Box<dyn Future<Output = ()> + std::marker::Send + Sync>>;

impl SendHalf {
    fn direct(stream: quinn::SendStream, lane: Lane) -> Self {
        let send = Send::Direct(stream);
        let half = Self { send, allowed: None, gone: None, ended: false, in_use: None };
        half.set_lane(lane);
        half
    }

    /// From now on sends only what the reader grants.
    pub(crate) fn under(mut self, credits: &Arc<Credits>) -> Self {
        let Send::Direct(stream) = &self.send;
        self.allowed = Some(credits.sender(VarInt::from(stream.id()).into_inner()));
        self
    }

    /// It may end anywhere: its frames say where they do.
    pub(crate) fn may_end_anywhere(&mut self) {
        self.ended = true;
    }

    /// Changes how urgent it is.
    pub fn set_lane(&self, lane: Lane) {
        match &self.send {
            // Fails only on a stream that is over, where it no longer matters.
            Send::Direct(stream) => drop(stream.set_priority(lane.priority())),
        }
    }

    /// Sends one frame; waits while the peer does not keep up.
    pub async fn send_frame(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        write_frame(self, bytes).await
    }

    /// Sends at most `most` bytes from the start of `bytes`, at least one, without copying them; what is left stays there.
    /// How many were taken: zero only if there are none.
    pub async fn send_some(&mut self, bytes: &mut Bytes, most: usize) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let allowed = std::future::poll_fn(|context| self.poll_allowed(context)).await;
        let mut piece = [bytes.slice(..bytes.len().min(most).min(allowed))];
        let Send::Direct(stream) = &mut self.send;
        let written = stream.write_chunks(&mut piece).await?.bytes;
        if let Some(allowed) = &mut self.allowed {
            allowed.on_sent(written);
        }
        bytes.advance(written);
        Ok(written)
    }

    /// Says that nothing more will be sent, and that it is whole.
    pub fn finish(&mut self) {
        self.ended = true;
        match &mut self.send {
            Send::Direct(stream) => drop(stream.finish()),
        }
    }

    /// Says that what was sent so far is not whole.
    pub fn abort(&mut self) {
        self.ended = true;
        match &mut self.send {
            Send::Direct(stream) => drop(stream.reset(VarInt::from_u32(Close::Done as u32))),
        }
    }

    /// Returns when the peer has all of a finished stream, wants no more, or is gone.
    pub async fn stopped(&self) {
        self.gone().await;
    }

    fn gone(&self) -> Gone {
        match &self.send {
            Send::Direct(stream) => {
                let stopped = stream.stopped();
                Box::pin(async move { drop(stopped.await) })
            }
        }
    }

    /// How much may be written now: everything once the reader is gone, so that writing says so.
    fn poll_allowed(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        let Some(allowed) = &self.allowed else { return Poll::Ready(usize::MAX) };
        if let Poll::Ready(bytes) = allowed.poll(context) {
            self.gone = None;
            return Poll::Ready(bytes);
        }
        let mut gone = self.gone.take().unwrap_or_else(|| self.gone());
        let is_gone = gone.as_mut().poll(context);
        self.gone = Some(gone);
        is_gone.map(|()| usize::MAX)
    }
}

impl std::fmt::Debug for SendHalf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Send::Direct(stream) = &self.send;
        f.debug_tuple("SendHalf").field(stream).finish()
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        // quinn would finish it, and a sender that was cancelled half-way would look like one that was done.
        if !self.ended {
            self.abort();
        }
    }
}

/// Where bytes come in.
pub struct ReceiveHalf {
    receive: Receive,
    /// Lets the peer send more as we read, if it waits for that.
    meter: Option<Meter>,
    in_use: Option<Arc<()>>,
}

enum Receive {
    Direct(quinn::RecvStream),
}

impl ReceiveHalf {
    fn direct(stream: quinn::RecvStream) -> Self {
        Self { receive: Receive::Direct(stream), meter: None, in_use: None }
    }

    /// From now on tells the peer how much it may send.
    pub(crate) fn under(mut self, credits: &Arc<Credits>) -> Self {
        let Receive::Direct(stream) = &self.receive;
        self.meter = Some(credits.reader(VarInt::from(stream.id()).into_inner()));
        self
    }

    /// What it carries is known now.
    pub(crate) fn set_lane(&mut self, lane: Lane) {
        if let Some(meter) = &mut self.meter {
            meter.set_lane(lane);
        }
    }

    /// The next frame of at most `max` bytes. `None` once the peer has finished.
    pub async fn recv_frame(&mut self, max: usize) -> Result<Option<Vec<u8>>, FrameError> {
        read_frame(self, max).await
    }
}

impl std::fmt::Debug for ReceiveHalf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Receive::Direct(stream) = &self.receive;
        f.debug_tuple("ReceiveHalf").field(stream).finish()
    }
}

impl AsyncWrite for SendHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let half = self.get_mut();
        let most = ready!(half.poll_allowed(context)).min(bytes.len());
        let Send::Direct(stream) = &mut half.send;
        let written = ready!(AsyncWrite::poll_write(Pin::new(stream), context, &bytes[..most]))?;
        if let Some(allowed) = &mut half.allowed {
            allowed.on_sent(written);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Send::Direct(stream) = &mut self.get_mut().send;
        Pin::new(stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let half = self.get_mut();
        half.ended = true;
        let Send::Direct(stream) = &mut half.send;
        Pin::new(stream).poll_shutdown(context)
    }
}

impl AsyncRead for ReceiveHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let half = self.get_mut();
        let before = buffer.filled().len();
        let Receive::Direct(stream) = &mut half.receive;
        ready!(AsyncRead::poll_read(Pin::new(stream), context, buffer))?;
        if let Some(meter) = &mut half.meter {
            meter.on_read(buffer.filled().len() - before);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().send).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().send).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().send).poll_shutdown(context)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().receive).poll_read(context, buffer)
    }
}
