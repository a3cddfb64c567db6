//! A wire in user space: frames are held until they are due.
//!
//! The kernels that tests run on need not have `netem`. Here one thread reads the TAP device of every
//! host, decides for each frame and receiver whether it is lost and when it arrives, and writes it to
//! the receiver's TAP then. Jitter larger than the gap between two frames reorders them. Meant for
//! latency and loss, not for bulk speed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use mesh_node::clock::steady;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Frames on their way; a further one is lost, as in a router whose buffer is full.
const MAX_HELD: usize = 16_384;
/// Frames taken from one host before the others get their turn.
const BURST: usize = 64;
/// Larger than any frame of an interface with the usual MTU.
const FRAME: usize = 2048;
/// The wire looks at least so often whether it should stop.
const NAP: Duration = Duration::from_millis(50);

/// How frames travel from one host to another. The default is at once and for certain.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Link {
    /// How long they take.
    pub delay: Duration,
    /// By how much that varies, to either side, evenly.
    pub jitter: Duration,
    /// Which part of them is lost, from 0 to 1.
    pub loss: f64,
}

/// A running wire. It is cut off everywhere when dropped.
pub struct Wire {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    ways: Mutex<Ways>,
}

/// Directed pairs of hosts.
#[derive(Default)]
struct Ways {
    links: BTreeMap<(usize, usize), Link>,
    cuts: BTreeSet<(usize, usize)>,
}

/// The hardware address of a host: its number, so that no one has to learn it.
pub fn mac(host: usize) -> [u8; 6] {
    let [_, _, high, low] = (host as u32).to_be_bytes();
    [0x02, 0, 0, 0, high, low]
}

impl Wire {
    /// Connects the hosts whose devices these are; `seed` is for loss and jitter.
    pub fn new(taps: Vec<File>, seed: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("wire".into()).spawn(move || {
            let mut frames =
                Frames { rng: Rng::with_seed(seed), held: BinaryHeap::new(), sequence: 0 };
            frames.run(taps, &theirs);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// From now on frames from one host to the other travel so. Those on their way keep their time.
    pub fn set(&self, from: usize, to: usize, link: Link) {
        self.ways().links.insert((from, to), link);
    }

    /// Nothing arrives from one host at the other, or everything does again.
    pub fn cut(&self, from: usize, to: usize, cut: bool) {
        let mut ways = self.ways();
        let _ = if cut { ways.cuts.insert((from, to)) } else { ways.cuts.remove(&(from, to)) };
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.shared.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A frame on its way. Of two that are due at once, the first to leave arrives first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    due: Instant,
    sequence: u64,
    to: usize,
    frame: Vec<u8>,
}

struct Frames {
    rng: Rng,
    held: BinaryHeap<Reverse<Held>>,
    sequence: u64,
}

impl Frames {
    fn run(&mut self, mut taps: Vec<File>, shared: &Shared) {
        let mut buffer = [0; FRAME];
        while !shared.stop.load(Ordering::Relaxed) {
            self.deliver(&mut taps);
            let mut fds: Vec<PollFd<'_>> =
                taps.iter().map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN)).collect();
            if poll(&mut fds, self.nap()).is_err() {
                continue;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
            for from in (0..taps.len()).filter(|&host| ready[host]) {
                for _ in 0..BURST {
                    // An interface that is down cannot be read. That is a fault like any other.
                    let Ok(size) = taps[from].read(&mut buffer) else { break };
                    let ways = shared.ways.lock().unwrap_or_else(PoisonError::into_inner);
                    self.take(from, taps.len(), &buffer[..size], &ways);
                }
            }
        }
    }

    /// Writes what is due.
    fn deliver(&mut self, taps: &mut [File]) {
        let now = steady();
        while self.held.peek().is_some_and(|Reverse(next)| next.due <= now) {
            let Some(Reverse(next)) = self.held.pop() else { return };
            let _ = taps[next.to].write(&next.frame);
        }
    }

    /// Until the next frame is due, in whole milliseconds, rounded up.
    fn nap(&self) -> PollTimeout {
        let due = self.held.peek().map(|Reverse(next)| next.due);
        let nap = due.map_or(NAP, |due| due.saturating_duration_since(steady()).min(NAP));
        PollTimeout::try_from(nap.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::ZERO)
    }

    /// Decides what becomes of a frame, for each of its receivers.
    fn take(&mut self, from: usize, hosts: usize, frame: &[u8], ways: &Ways) {
        let Some(target) = frame.first_chunk::<6>() else { return };
        // The lowest bit of the first byte: for many.
        let many = target[0] & 1 == 1;
        let receivers = (0..hosts).filter(|&to| to != from && (many || mac(to) == *target));
        for to in receivers {
            let link = ways.links.get(&(from, to)).copied().unwrap_or_default();
            let lost = ways.cuts.contains(&(from, to)) || self.rng.f64() < link.loss;
            if lost || self.held.len() >= MAX_HELD {
                continue;
            }
            self.sequence += 1;
            let due = steady() + travel(link, self.rng.f64());
            let held = Held { due, sequence: self.sequence, to, frame: frame.to_vec() };
            self.held.push(Reverse(held));
        }
    }
}

/// How long a frame takes; `chance` is from 0 to 1.
fn travel(link: Link, chance: f64) -> Duration {
    (link.delay + link.jitter.mul_f64(2.0 * chance)).saturating_sub(link.jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_travels_for_its_delay_give_or_take_the_jitter() {
        let ms = Duration::from_millis;
        let link = Link { delay: ms(200), jitter: ms(100), loss: 0.0 };
        assert_eq!(travel(link, 0.0), ms(100));
        assert_eq!(travel(link, 0.5), ms(200));
        assert_eq!(travel(link, 1.0), ms(300));
        let wild = Link { delay: ms(10), jitter: ms(50), loss: 0.0 };
        assert_eq!(travel(wild, 0.0), ms(0), "not before it was sent");
    }
}
