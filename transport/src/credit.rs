//! How much each stream of a connection may have under way, so that none of them holds up raft.
//!
//! quinn charges a connection's window when a program writes, not when a packet leaves, and wakes whoever waits for
//! it in any order. A priority thus counts only among bytes that were accepted already: a few streams that
//! nobody reads, or one that is larger than a slow link can carry, would use the window up, and the next
//! heartbeat would wait for them. Nor can quinn change a stream's window once the connection stands. So:
//!
//! - To QUIC, a stream may have as much under way as its whole connection.
//! - What a stream really may, its reader tells. It begins with [`SHARE`]. Each time the peer has read a quarter of what was
//!   granted, it grants twice as much, up to `Tuning::stream_window`, if the connection has that much left
//!   ([`Pool`]). A stream that nobody reads holds its share and no more. Grants travel on a
//!   stream of their own, as urgent as raft.
//! - While a lot of data comes ([`crate::net::Net::bulk`]), the pool of bulk streams and the connection's window are larger,
//!   and one such stream grows to `Tuning::bulk_stream_window` as long as it reads a whole window within two round
//!   trips or [`SOON`]: a slow wire is not filled with what nobody can take back. Afterwards grants shrink as they
//!   are read, and the window with them: never below what was granted.
//! - The shares of all streams that may be open, both pools, and [`URGENT`] bytes for messages fit into seven
//!   eighths of the window (quinn announces what was read an eighth at a time). So a message always finds room.
//!
//! Nothing of this protects the one who reads: a peer that ignores its grants fills the window, which it may, and
//! is the first to suffer from it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::path::{Lane, Path};
use crate::quic::Tuning;

/// What a stream may have under way before its reader says more. Part of the protocol: who sends relies on it.
pub(crate) const SHARE: u64 = 32 << 10;
/// Left for messages, and for the grants themselves.
const URGENT: u64 = 2 << 20;
/// A window that was read in this time may be larger, however near the peer is: tasks take turns.
const SOON: Duration = Duration::from_millis(10);
/// A grant on the wire: the stream, and how many of its bytes may be sent in all.
pub(crate) const GRANT_BYTES: usize = 16;

/// The credits of one connection, in both directions.
pub(crate) struct Credits {
    path: Path,
    pools: Mutex<Pools>,
    /// Of the streams on which we send.
    limits: Mutex<BTreeMap<u64, Arc<Limit>>>,
    /// Grants that the peer is yet to be told of: of each stream the last.
    grants: Mutex<BTreeMap<u64, u64>>,
    granted: Notify,
}

/// What a stream of ours may send in all.
struct Limit {
    bytes: AtomicU64,
    waiting: AtomicWaker,
}

impl Credits {
    /// For a connection on which at most `streams` can be open, whoever opened them.
    pub(crate) fn new(path: Path, tuning: &Tuning, streams: u32) -> Arc<Self> {
        Arc::new(Self {
            path,
            pools: Mutex::new(Pools::new(tuning, streams)),
            limits: Mutex::default(),
            grants: Mutex::default(),
            granted: Notify::new(),
        })
    }

    fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().expect("never poisoned: nothing panics under this lock")
    }

    fn grants(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.grants.lock().expect("never poisoned: nothing panics under this lock")
    }

    fn limits(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Limit>>> {
        self.limits.lock().expect("never poisoned: nothing panics under this lock")
    }

    /// The peer is welcome: it may fill the window.
    pub(crate) fn open(&self) {
        self.path.set_window(self.pools().window());
    }

    /// Whether a lot of data comes.
    pub(crate) fn set_bulk(&self, on: bool) {
        self.change(|pools| pools.set_bulk(on));
    }

    /// Changes the pools, and the window if need be.
    fn change<T>(&self, how: impl FnOnce(&mut Pools) -> T) -> T {
        let mut pools = self.pools();
        let before = pools.window();
        let result = how(&mut pools);
        let after = pools.window();
        if after != before {
            // Under the lock, so that of two changes the later one counts.
            self.path.set_window(after);
        }
        result
    }

    /// Counts what we send on a stream.
    pub(crate) fn sender(self: &Arc<Self>, stream: u64) -> Allowance {
        let limit = Arc::new(Limit { bytes: AtomicU64::new(SHARE), waiting: AtomicWaker::new() });
        self.limits().insert(stream, limit.clone());
        Allowance { credits: self.clone(), stream, limit, sent: 0 }
    }

    /// Counts what is read from a stream. It gets more than its share once its lane is known.
    pub(crate) fn reader(self: &Arc<Self>, stream: u64) -> Meter {
        let credits = self.clone();
        let rtt = Duration::MAX;
        let mark = (0, Instant::now());
        Meter { credits, stream, lane: None, window: SHARE, read: 0, told: SHARE, mark, rtt }
    }

    /// The peer lets us send this much on a stream.
    pub(crate) fn on_grant(&self, grant: [u8; GRANT_BYTES]) {
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&grant[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (stream, bytes) = (number(0), number(8));
        // Of a stream that has ended since, nothing is kept.
        if let Some(limit) = self.limits().get(&stream) {
            limit.bytes.fetch_max(bytes, Ordering::AcqRel);
            limit.waiting.wake();
        }
    }

    /// What the peer must be told, once there is something.
    pub(crate) async fn grants_to_tell(&self) -> Vec<u8> {
        loop {
            let grants = std::mem::take(&mut *self.grants());
            if !grants.is_empty() {
                let words = grants.into_iter().flat_map(|(stream, bytes)| [stream, bytes]);
                return words.flat_map(u64::to_le_bytes).collect();
            }
            self.granted.notified().await;
        }
    }
}

/// What one stream may still send.
pub(crate) struct Allowance {
    credits: Arc<Credits>,
    stream: u64,
    limit: Arc<Limit>,
    sent: u64,
}

impl Allowance {
    /// How many bytes may be sent now, once that is any.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<usize> {
        let left = || self.limit.bytes.load(Ordering::Acquire).saturating_sub(self.sent);
        if left() == 0 {
            self.limit.waiting.register(context.waker());
        }
        // Looked at again: it may have come in between.
        match left() {
            0 => Poll::Pending,
            left => Poll::Ready(usize::try_from(left).unwrap_or(usize::MAX)),
        }
    }

    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.credits.limits().remove(&self.stream);
    }
}

/// Counts what is read from one stream, and lets the peer send more.
pub(crate) struct Meter {
    credits: Arc<Credits>,
    stream: u64,
    lane: Option<Lane>,
    /// What may be under way; what exceeds the share comes out of the lane's pool.
    window: u64,
    read: u64,
    /// What the peer may send in all, as it was told.
    told: u64,
    /// Since when the present window is being read, and what was read before.
    mark: (u64, Instant),
    /// The shortest round trip that was seen.
    rtt: Duration,
}

/// What is to become of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trend {
    Grow,
    Stay,
    Shrink,
}

impl Trend {
    /// After a whole window was read in this time.
    fn of(took: Duration, rtt: Duration) -> Self {
        let enough = SOON.max(rtt.saturating_mul(2));
        match took {
            took if took <= enough => Trend::Grow,
            took if took <= enough.saturating_mul(4) => Trend::Stay,
            _ => Trend::Shrink,
        }
    }
}

impl Meter {
    pub(crate) fn set_lane(&mut self, lane: Lane) {
        self.lane.get_or_insert(lane);
    }

    pub(crate) fn on_read(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.read += bytes as u64;
        let under_way = self.told.saturating_sub(self.read);
        if under_way > self.window / 4 * 3 {
            return;
        }
        if let Some(lane) = self.lane {
            let (window, trend) = (self.window, self.trend());
            self.window = self.credits.change(|pools| pools.resize(lane, window, under_way, trend));
        }
        let limit = self.read + self.window;
        if limit > self.told {
            self.told = limit;
            self.credits.grants().insert(self.stream, limit);
            self.credits.granted.notify_one();
        }
    }
}

impl Meter {
    fn trend(&mut self) -> Trend {
        let (before, since) = self.mark;
        if self.read - before < self.window {
            return Trend::Stay;
        }
        let now = Instant::now();
        self.mark = (self.read, now);
        self.rtt = self.rtt.min(self.credits.path.rtt());
        Trend::of(now - since, self.rtt)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.credits.grants().remove(&self.stream);
        if let Some(lane) = self.lane {
            let extra = self.window - SHARE;
            self.credits.change(|pools| pools.of(lane).granted -= extra);
        }
    }
}

/// What streams of a lane may have beyond their shares, all together.
struct Pool {
    size: u64,
    granted: u64,
    /// What one stream may have.
    most: u64,
    /// What every stream may have that reads, however slowly.
    easy: u64,
}

impl Pool {
    /// What a stream may have that has `window`: twice as much if there is room, half if there is too little or it
    /// is of no use. `under_way` cannot be taken back.
    fn resize(&mut self, window: u64, under_way: u64, trend: Trend) -> u64 {
        let trend = match trend {
            _ if self.granted > self.size || window > self.most => Trend::Shrink,
            _ if window < self.easy => Trend::Grow,
            Trend::Shrink if window < 2 * self.easy => Trend::Stay,
            trend => trend,
        };
        let new = match trend {
            Trend::Grow => {
                (2 * window).min(window + self.size - self.granted).min(self.most.max(window))
            }
            Trend::Stay => window,
            Trend::Shrink => (window / 2).max(under_way).max(SHARE),
        };
        self.granted = self.granted + new - window;
        new
    }
}

struct Pools {
    control: Pool,
    bulk: Pool,
    /// What is there besides: shares, and the urgent bytes.
    fixed: u64,
    sizes: [(u64, u64); 2],
}

impl Pools {
    fn new(tuning: &Tuning, streams: u32) -> Self {
        let fixed = u64::from(streams) * SHARE + URGENT;
        let usable = |window: u32| u64::from(window) / 8 * 7;
        let spare = usable(tuning.window).saturating_sub(fixed);
        let more = usable(tuning.bulk_window).saturating_sub(usable(tuning.window).max(fixed));
        let quiet = (spare / 2, u64::from(tuning.stream_window));
        let bulk = (spare / 2 + more, u64::from(tuning.bulk_stream_window));
        let easy = u64::from(tuning.stream_window);
        let pool = |(size, most): (u64, u64)| Pool { size, most, easy, granted: 0 };
        Self { control: pool(quiet), bulk: pool(quiet), fixed, sizes: [quiet, bulk] }
    }

    /// Both pools, the shares and the urgent bytes are seven eighths of it.
    fn window(&self) -> u32 {
        let bulk = self.bulk.size.max(self.bulk.granted);
        u32::try_from((self.fixed + self.control.size + bulk).div_ceil(7) * 8).unwrap_or(u32::MAX)
    }

    fn set_bulk(&mut self, on: bool) {
        (self.bulk.size, self.bulk.most) = self.sizes[usize::from(on)];
    }

    fn of(&mut self, lane: Lane) -> &mut Pool {
        match lane {
            Lane::Bulk => &mut self.bulk,
            Lane::Control | Lane::Raft => &mut self.control,
        }
    }

    fn resize(&mut self, lane: Lane, window: u64, under_way: u64, trend: Trend) -> u64 {
        self.of(lane).resize(window, under_way, trend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAMS: u32 = 264;

    fn pools() -> Pools {
        Pools::new(&Tuning::default(), STREAMS)
    }

    /// Reads a stream as fast as can be until its window does not change any more.
    fn settle(pools: &mut Pools, lane: Lane, window: u64) -> u64 {
        settle_so(pools, lane, window, Trend::Grow)
    }

    fn settle_so(pools: &mut Pools, lane: Lane, mut window: u64, trend: Trend) -> u64 {
        for _ in 0..20 {
            window = pools.resize(lane, window, window / 2, trend);
        }
        window
    }

    #[test]
    fn everything_that_may_be_granted_leaves_room_for_messages() {
        let mut pools = pools();
        let tuning = Tuning::default();
        for on in [false, true, false] {
            pools.set_bulk(on);
            let mut granted = u64::from(STREAMS) * SHARE;
            let mut held = Vec::new();
            for n in 0..STREAMS {
                let lane = if n % 2 == 0 { Lane::Bulk } else { Lane::Control };
                let window = settle(&mut pools, lane, SHARE);
                granted += window - SHARE;
                held.push((lane, window));
            }
            // An eighth may be read and not yet announced.
            let window = u64::from(pools.window());
            assert!(granted + window / 8 + URGENT <= window, "{granted} of {window}");
            assert!(window <= u64::from(if on { tuning.bulk_window } else { tuning.window }));
            for (lane, window) in held {
                pools.of(lane).granted -= window - SHARE;
            }
        }
    }

    #[test]
    fn one_bulk_stream_has_sixteen_mebibytes_while_bulk_runs_and_gives_them_back() {
        let mut pools = pools();
        let quiet = pools.window();
        assert_eq!(settle(&mut pools, Lane::Bulk, SHARE), 1 << 20);
        pools.set_bulk(true);
        assert!(pools.window() > 7 * (quiet / 2));
        let window = settle(&mut pools, Lane::Bulk, 1 << 20);
        assert_eq!(window, 16 << 20);
        assert_eq!(settle(&mut pools, Lane::Control, SHARE), 1 << 20, "the others have theirs");
        pools.set_bulk(false);
        // What is granted cannot be taken back before it is read.
        assert!(pools.window() > quiet + (10 << 20));
        assert_eq!(pools.resize(Lane::Bulk, window, window, Trend::Grow), window);
        assert_eq!(settle(&mut pools, Lane::Bulk, window), 1 << 20);
        assert_eq!(pools.window(), quiet);
    }

    #[test]
    fn a_slow_wire_is_not_filled_with_what_nobody_can_take_back() {
        let mut pools = pools();
        pools.set_bulk(true);
        // It reads, but not fast: as much as without bulk.
        assert_eq!(settle_so(&mut pools, Lane::Bulk, SHARE, Trend::Stay), 1 << 20);
        let window = settle(&mut pools, Lane::Bulk, 1 << 20);
        assert_eq!(window, 16 << 20);
        // The wire has become slower.
        assert_eq!(settle_so(&mut pools, Lane::Bulk, window, Trend::Shrink), 1 << 20);
    }

    #[test]
    fn a_window_grows_if_it_is_read_within_two_round_trips() {
        let ms = Duration::from_millis;
        assert_eq!(Trend::of(ms(250), ms(130)), Trend::Grow);
        assert_eq!(Trend::of(ms(300), ms(130)), Trend::Stay);
        assert_eq!(Trend::of(ms(1100), ms(130)), Trend::Shrink);
        assert_eq!(Trend::of(ms(9), ms(0)), Trend::Grow);
        assert_eq!(Trend::of(ms(30), ms(0)), Trend::Stay);
        assert_eq!(Trend::of(ms(1000), Duration::MAX), Trend::Grow);
    }
}
