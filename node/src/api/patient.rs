//! A connection that gives up on a peer which does not take what is written to it.
//!
//! Reading has its own bounds (a header and a body must come in time). Without one on writing, whoever asks and
//! never reads would keep its place for good. A connection that became a stream of another kind goes without: what a
//! command writes waits for whoever looks at it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Lifts the bound from one connection. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Leisure(Arc<AtomicBool>);

impl Leisure {
    /// From now on a write may wait for as long as it takes.
    pub(super) fn grant(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_granted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// `io`, with a bound on how long a write may make no progress.
pub(super) struct Patient<I> {
    io: I,
    patience: Duration,
    leisure: Leisure,
    /// Runs while a write waits.
    until: Pin<Box<Sleep>>,
    waits: bool,
}

impl<I> Patient<I> {
    /// Gives up on a write after `patience`, unless it has `leisure`.
    pub(super) fn new(io: I, patience: Duration, leisure: Leisure) -> Self {
        Self { io, patience, leisure, until: Box::pin(sleep(patience)), waits: false }
    }

    /// Passes an outcome on, or gives up if it has been waited for too long.
    fn bound<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() || self.leisure.is_granted() {
            self.waits = false;
            return outcome;
        }
        if !self.waits {
            self.waits = true;
            self.until.as_mut().reset(Instant::now() + self.patience);
        }
        ready!(self.until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(context, bytes);
        self.bound(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.bound(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(context);
        self.bound(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_shutdown(context);
        self.bound(context, outcome)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_given_up_and_a_slow_one_is_not() {
        let (ours, mut theirs) = duplex(8);
        let leisure = Leisure::default();
        let mut ours = Patient::new(ours, Duration::from_millis(200), leisure.clone());
        let slow = async {
            let mut byte = [0];
            // Longer than the patience in all, but never without progress for so long.
            for _ in 0..40 {
                theirs.read_exact(&mut byte).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            theirs
        };
        let (written, _theirs) = tokio::join!(ours.write_all(&[0; 48]), slow);
        written.unwrap();
        let error = ours.write_all(&[0; 48]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        leisure.grant();
        let much = [0; 48];
        let waits = tokio::time::timeout(Duration::from_millis(600), ours.write_all(&much));
        assert!(waits.await.is_err(), "it was given up");
    }
}
