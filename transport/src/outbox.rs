//! What waits to be sent to one peer: bounded, and forgetful when it is full.
//!
//! Small messages keep their order and go out on one stream, as many at a time as have come together.
//! Large ones go one by one, each on a stream of its own, so that a snapshot holds up no heartbeat.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;

use crate::frame;
use crate::live::{Live, MAX_MESSAGE, SMALL_MESSAGE};

/// Small messages that wait while the connection is busy. When full, the oldest is dropped: raft
/// says everything again, and the newest says the most.
const QUEUED: usize = 4096;
/// And so many bytes of them.
const QUEUED_BYTES: usize = 16 << 20;
/// The same while there is no connection: what is older would only be news of yesterday.
const QUEUED_APART: usize = 64;
/// Large messages that wait (one, while there is no connection). When full, the newest is dropped.
const QUEUED_LARGE: usize = 16;
/// A large message that has waited for longer is dropped: raft has said it again, or something newer.
const LARGE_AGE: Duration = Duration::from_secs(30);
/// What goes into one write.
const COALESCE: usize = 64 << 10;

/// Messages for one peer.
#[derive(Default)]
pub(crate) struct Outbox {
    queues: Mutex<Queues>,
    /// Something was put in.
    small: Notify,
    large: Notify,
}

#[derive(Default)]
struct Queues {
    small: VecDeque<Vec<u8>>,
    small_bytes: usize,
    large: VecDeque<(Instant, Vec<u8>)>,
    /// Of those that wait and of the one under way.
    large_bytes: usize,
}

/// A large message under way. It takes room until it is dropped.
struct UnderWay<'a> {
    outbox: &'a Outbox,
    message: Vec<u8>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut queues = self.outbox.queues();
        // All may have been cleared meanwhile.
        queues.large_bytes = queues.large_bytes.saturating_sub(self.message.len());
    }
}

impl Outbox {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("never poisoned: nothing panics under this lock")
    }

    /// Puts a message in; another may be dropped for it, or it itself.
    pub(crate) fn put(&self, message: Vec<u8>, connected: bool) {
        let length = message.len();
        let now = Instant::now();
        let mut queues = self.queues();
        queues.forget_old(now);
        if length <= SMALL_MESSAGE {
            queues.small_bytes += length;
            queues.small.push_back(message);
            queues.trim(if connected { QUEUED } else { QUEUED_APART });
            drop(queues);
            self.small.notify_one();
        } else if queues.large.len() < (if connected { QUEUED_LARGE } else { 1 })
            && queues.large_bytes + length <= MAX_MESSAGE
        {
            queues.large_bytes += length;
            queues.large.push_back((now, message));
            drop(queues);
            self.large.notify_one();
        } else {
            debug!(bytes = length, "dropping a large message");
        }
    }

    /// Forgets what has waited for too long.
    pub(crate) fn forget_old(&self, now: Instant) {
        self.queues().forget_old(now);
    }

    /// The next large message, if there is one.
    fn take_large(&self) -> Option<UnderWay<'_>> {
        let mut queues = self.queues();
        queues.forget_old(Instant::now());
        let (_, message) = queues.large.pop_front()?;
        Some(UnderWay { outbox: self, message })
    }

    pub(crate) fn clear(&self) {
        *self.queues() = Queues::default();
    }

    /// Sends what there is and what comes, for as long as it is polled.
    pub(crate) async fn pump(&self, live: &Live) {
        tokio::join!(self.pump_small(live), self.pump_large(live));
    }

    async fn pump_small(&self, live: &Live) {
        let mut stream = None;
        loop {
            let batch = self.queues().take_small();
            let Some(batch) = batch else {
                self.small.notified().await;
                continue;
            };
            live.touch();
            if stream.is_none() {
                stream = live.open_messages().await.ok();
            }
            let Some(sender) = &mut stream else { return };
            // Messages may be lost; the peer refuses this stream only if something is wrong.
            if sender.write_all(&batch).await.is_err() {
                return;
            }
        }
    }

    async fn pump_large(&self, live: &Live) {
        loop {
            let Some(next) = self.take_large() else {
                self.large.notified().await;
                continue;
            };
            live.touch();
            if let Err(error) = live.send_large(&next.message).await {
                debug!(%error, "a large message was not sent");
            }
        }
    }
}

impl Queues {
    fn trim(&mut self, most: usize) {
        while self.small.len() > most || self.small_bytes > QUEUED_BYTES {
            let Some(oldest) = self.small.pop_front() else { return };
            self.small_bytes -= oldest.len();
        }
    }

    /// As many frames as go into one write.
    fn take_small(&mut self) -> Option<Vec<u8>> {
        let mut batch = Vec::new();
        while let Some(next) = self.small.front() {
            if !batch.is_empty() && batch.len() + next.len() > COALESCE {
                break;
            }
            let message = self.small.pop_front()?;
            self.small_bytes -= message.len();
            let header = frame::header(message.len()).ok()?;
            batch.extend_from_slice(&header);
            batch.extend_from_slice(&message);
        }
        (!batch.is_empty()).then_some(batch)
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some((since, message)) = self.large.front()
            && now.duration_since(*since) > LARGE_AGE
        {
            debug!(bytes = message.len(), "a large message has waited for too long");
            self.large_bytes = self.large_bytes.saturating_sub(message.len());
            self.large.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_outbox_forgets_the_oldest() {
        let outbox = Outbox::default();
        for n in 0..=QUEUED_APART {
            outbox.put(vec![u8::try_from(n).unwrap()], false);
        }
        let batch = outbox.queues().take_small().unwrap();
        assert_eq!(batch.len(), QUEUED_APART * 5);
        assert_eq!(&batch[..5], &[1, 0, 0, 0, 1], "the message 0 is gone");
        assert!(outbox.queues().take_small().is_none());
    }

    #[test]
    fn what_is_queued_goes_out_in_few_writes() {
        let outbox = Outbox::default();
        for _ in 0..60 {
            outbox.put(vec![0; 10_000], true);
        }
        let mut writes = 0;
        while let Some(batch) = outbox.queues().take_small() {
            assert!(batch.len() <= COALESCE + SMALL_MESSAGE);
            writes += 1;
        }
        assert_eq!(writes, 10);
    }

    #[test]
    fn large_messages_take_room_until_they_are_sent_and_are_forgotten_when_old() {
        let outbox = Outbox::default();
        let half = MAX_MESSAGE / 2 + 1;
        outbox.put(vec![1; half], true);
        let first = outbox.take_large().unwrap();
        outbox.put(vec![2; half], true);
        assert!(outbox.take_large().is_none(), "the first is still under way");
        drop(first);
        outbox.put(vec![3; half], true);
        assert_eq!(outbox.take_large().unwrap().message[0], 3);

        outbox.put(vec![4; SMALL_MESSAGE + 1], false);
        outbox.put(vec![5; SMALL_MESSAGE + 1], false);
        assert_eq!(outbox.queues().large.len(), 1, "one, while there is no connection");
        outbox.forget_old(Instant::now() + LARGE_AGE / 2);
        assert_eq!(outbox.queues().large.len(), 1);
        outbox.forget_old(Instant::now() + 2 * LARGE_AGE);
        let queues = outbox.queues();
        assert_eq!((queues.large.len(), queues.large_bytes), (0, 0));
    }
}
