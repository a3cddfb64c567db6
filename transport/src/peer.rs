//! One peer: where it is, whether we are connected, and what waits to be sent to it.
//!
//! ```text
//!            wanted, or kept                 hello done
//!   apart ────────────────────► dialling ──────────────► connected
//!     ▲                          │    ▲ back-off            │
//!     └── no longer wanted ──────┴────┘      ◄──────────────┘ lost
//! ```
//!
//! Both sides may dial at the same time, and then keep the connection that the lower id dialled:
//! both come to that by themselves ([`supersedes`]). No task runs for a peer that nobody wants.
//!
//! *Beside* the connection in use there may be a few more, which carry bulk data where one cannot fill the wire. They
//! are dialled for one stream, end when nobody has used them for a while, and count for nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use mesh_consensus::id::NodeId;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use crate::live::Live;
use crate::outbox::Outbox;
use crate::path::Close;
use crate::quic::Failure;

/// Addresses of one peer that are dialled. More are not looked at.
pub(crate) const MAX_ADDRESSES: usize = 16;
/// The first address has this long before the second is tried, too, and so on.
const STAGGER: Duration = Duration::from_millis(200);
/// After the first failure; doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(50);
/// Where the doubling ends.
const MAX_BACK_OFF: Duration = Duration::from_secs(5);
/// However much somebody wants the peer, dials are this far apart.
const MIN_GAP: Duration = Duration::from_millis(250);
/// Connections beside the one in use, in either direction.
pub const MAX_BESIDE: usize = 4;
/// Two connections that began within this time were dialled at the same time.
const RACE: Duration = Duration::from_secs(5);

/// No address of a peer led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialError {
    /// Whom we wanted.
    pub node: NodeId,
    /// Each address that was tried, and how that failed.
    pub tries: Vec<(SocketAddr, Failure)>,
}

impl std::fmt::Display for DialError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "could not reach {}", self.node.short())?;
        for (n, (address, failure)) in self.tries.iter().enumerate() {
            let separator = if n == 0 { ':' } else { ';' };
            write!(f, "{separator} {address}: {failure}")?;
        }
        Ok(())
    }
}

impl std::error::Error for DialError {}

/// One peer.
pub(crate) struct Peer {
    pub(crate) id: NodeId,
    state: Mutex<State>,
    outbox: Outbox,
    /// The dialler should not wait any longer.
    pub(crate) hurry: Notify,
    /// The connection in use.
    pub(crate) live: watch::Sender<Option<Arc<Live>>>,
    /// Held while the service is told of a connection, so that it hears of them in order.
    pub(crate) telling: Mutex<()>,
    /// How often dialling failed, and how it failed last.
    pub(crate) failed: watch::Sender<(u64, Option<DialError>)>,
}

#[derive(Default)]
struct State {
    addresses: Vec<SocketAddr>,
    /// Stay connected.
    kept: bool,
    /// Somebody has something to say since the last dial began.
    wanted: bool,
    /// A dialler runs.
    dialling: bool,
    /// Removed: never dialled again.
    gone: bool,
    /// Dials that failed since the last connection that lasted.
    failures: u32,
    /// When the last of them did.
    failed_at: Option<Instant>,
    /// When to dial again after those.
    turn: Option<Turn>,
    /// Connections that are about to end because another is in use.
    spare: Vec<Weak<Live>>,
    /// Those beside the one in use that we dialled, by number, and those that the peer dialled.
    beside: BTreeMap<usize, Arc<Live>>,
    theirs_beside: Vec<Weak<Live>>,
    /// How many say that a lot of data comes from it now.
    bulk: usize,
}

#[derive(Clone, Copy)]
struct Turn {
    /// However much somebody wants it.
    earliest: Instant,
    usual: Instant,
}

impl State {
    fn set_back(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let wait = back_off(self.failures, fastrand::f64());
        let now = Instant::now();
        self.failed_at = Some(now);
        self.turn = Some(Turn { earliest: now + wait.min(MIN_GAP), usual: now + wait });
    }

    fn forgive(&mut self) {
        self.failures = 0;
        self.failed_at = None;
        self.turn = None;
    }
}

impl Peer {
    pub(crate) fn new(id: NodeId) -> Self {
        Self {
            id,
            state: Mutex::default(),
            outbox: Outbox::default(),
            hurry: Notify::new(),
            live: watch::Sender::new(None),
            telling: Mutex::default(),
            failed: watch::Sender::new((0, None)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("never poisoned: nothing panics under this lock")
    }

    pub(crate) fn current(&self) -> Option<Arc<Live>> {
        self.live.borrow().clone()
    }

    /// How long ago a dial last failed, if there is no connection now.
    pub(crate) fn failed_ago(&self) -> Option<Duration> {
        let state = self.state();
        let at = state.failed_at.filter(|_| self.live.borrow().is_none());
        at.map(|at| at.elapsed())
    }

    /// Replaces where it is to be found. True if that is news.
    pub(crate) fn learn(&self, mut addresses: Vec<SocketAddr>) -> bool {
        addresses.truncate(MAX_ADDRESSES);
        let mut state = self.state();
        let news = state.addresses != addresses;
        if news {
            state.addresses = addresses;
            state.forgive();
            drop(state);
            self.hurry.notify_one();
        }
        news
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.state().addresses.clone()
    }

    pub(crate) fn keep(&self, kept: bool) {
        self.state().kept = kept;
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.state().kept
    }

    /// Whether a dialler must be started; if so, the caller starts it.
    ///
    /// `wanted` says that somebody has something to say to it right now.
    pub(crate) fn should_dial(&self, wanted: bool) -> bool {
        let mut state = self.state();
        // Noted also while connected: the connection may be dead already.
        state.wanted |= wanted;
        if state.gone || self.live.borrow().is_some() {
            return false;
        }
        let start = !state.dialling && !state.addresses.is_empty() && (state.kept || state.wanted);
        state.dialling |= start;
        start
    }

    /// Dials until it is connected or nobody wants that any more. `reach` tries all addresses once.
    pub(crate) async fn dial<F, R>(&self, reach: R, up: impl Fn(Live))
    where
        R: Fn(Vec<SocketAddr>) -> F,
        F: Future<Output = Result<Live, Vec<(SocketAddr, Failure)>>>,
    {
        loop {
            self.wait_for_turn().await;
            let addresses = {
                let mut state = self.state();
                if state.gone || state.addresses.is_empty() || self.live.borrow().is_some() {
                    state.dialling = false;
                    return;
                }
                state.wanted = false;
                state.addresses.clone()
            };
            // Not given up if the peer dials us meanwhile: it may have taken up our dial already.
            match reach(addresses).await {
                Ok(live) => {
                    up(live);
                    self.state().dialling = false;
                    // It may be lost again already.
                    if !self.should_dial(false) {
                        return;
                    }
                }
                Err(tries) => {
                    let error = DialError { node: self.id, tries };
                    debug!(%error, "dialling failed");
                    self.failed.send_modify(|failed| *failed = (failed.0 + 1, Some(error)));
                    let mut state = self.state();
                    state.set_back();
                    if !state.kept && !state.wanted {
                        state.dialling = false;
                        return;
                    }
                }
            }
        }
    }

    /// Waits as long as former failures demand, or less if somebody is in a hurry.
    async fn wait_for_turn(&self) {
        let turn = self.state().turn;
        let Some(Turn { earliest, usual }) = turn else { return };
        let mut connected = self.live.subscribe();
        sleep_until(earliest).await;
        tokio::select! {
            () = sleep_until(usual) => {}
            () = self.hurry.notified() => {}
            _ = connected.wait_for(Option::is_some) => {}
        }
    }

    /// Takes a new connection into use, or finds that the one it has is the one to keep.
    pub(crate) fn take_up(&self, ours: NodeId, new: &Arc<Live>) -> TakenUp {
        let mut outcome = TakenUp::Refused;
        let state = self.state();
        if state.gone {
            return outcome;
        }
        new.credits.set_bulk(state.bulk > 0);
        self.live.send_if_modified(|current| {
            let old = current.take();
            let keep_old = old.as_ref().is_some_and(|old| {
                old.path.why_closed().is_none()
                    && !supersedes(ours, self.id, &Facts::of(old), &Facts::of(new))
            });
            if keep_old {
                *current = old;
                outcome = TakenUp::Spare;
                return false;
            }
            *current = Some(new.clone());
            outcome = TakenUp::InUse { instead_of: old };
            true
        });
        outcome
    }

    /// Notes that a connection is gone. True if it was the one in use.
    pub(crate) fn lost(&self, live: &Arc<Live>) -> bool {
        let was = self.live.send_if_modified(|current| {
            let was = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, live));
            if was {
                *current = None;
            }
            was
        });
        if was {
            let mut state = self.state();
            if live.path.ended_by_rule() {
                // What was said on it has arrived, or is not wanted.
                state.wanted = false;
            }
            // One that ends as soon as it stands is as good as a dial that fails.
            if live.since.elapsed() < RACE { state.set_back() } else { state.forgive() }
        }
        was
    }

    /// One more, or one less, says that a lot of data comes from it.
    pub(crate) fn count_bulk(&self, more: bool) {
        let mut state = self.state();
        let before = state.bulk > 0;
        state.bulk = if more { state.bulk + 1 } else { state.bulk.saturating_sub(1) };
        let now = state.bulk > 0;
        if now != before
            && let Some(live) = &*self.live.borrow()
        {
            // Under the lock, as in `take_up`: the last word counts.
            live.credits.set_bulk(now);
            state.beside.values().for_each(|live| live.credits.set_bulk(now));
        }
    }

    /// The connection of this number beside the one in use, if it stands.
    pub(crate) fn beside(&self, number: usize) -> Option<Arc<Live>> {
        let state = self.state();
        state.beside.get(&number).filter(|live| live.path.why_closed().is_none()).cloned()
    }

    /// All that we dialled beside the one in use.
    pub(crate) fn all_beside(&self) -> Vec<Arc<Live>> {
        self.state().beside.values().cloned().collect()
    }

    /// Takes a connection into use beside the first: one that we dialled, by its number, or one of the peer's, if there are
    /// not too many. Whether it did.
    pub(crate) fn put_beside(&self, number: Option<usize>, live: &Arc<Live>) -> bool {
        let mut state = self.state();
        let stands =
            |live: &Weak<Live>| live.upgrade().is_some_and(|live| live.path.why_closed().is_none());
        state.theirs_beside.retain(stands);
        match number {
            _ if state.gone => return false,
            Some(number) => {
                live.credits.set_bulk(state.bulk > 0);
                // One that another dialled meanwhile ends with its streams.
                state.beside.insert(number, live.clone());
            }
            None if state.theirs_beside.len() >= MAX_BESIDE => return false,
            None => state.theirs_beside.push(Arc::downgrade(live)),
        }
        true
    }

    /// A connection beside the one in use is gone.
    pub(crate) fn lost_beside(&self, live: &Arc<Live>) {
        self.state().beside.retain(|_, held| !Arc::ptr_eq(held, live));
    }

    /// Forgets what has waited for too long.
    pub(crate) fn forget_old(&self) {
        self.outbox.forget_old(Instant::now());
    }

    /// Puts a message into the outbox.
    pub(crate) fn put(&self, message: Vec<u8>) {
        self.outbox.put(message, self.live.borrow().is_some());
    }

    /// Sends what is put into the outbox, until `live` is gone or no longer the one in use.
    pub(crate) async fn pump(&self, live: &Live) {
        tokio::select! {
            () = self.outbox.pump(live) => {}
            () = live.retired.cancelled() => {}
            _ = live.path.closed() => {}
        }
    }

    /// Closes `live` in a while, because another connection took its place.
    pub(crate) fn retiring(&self, live: &Arc<Live>) -> impl Future<Output = ()> + 'static {
        /// What was asked on it may still be answered.
        const DRAIN: Duration = Duration::from_secs(2);
        live.retired.cancel();
        let mut state = self.state();
        state.spare.retain(|spare| spare.strong_count() > 0);
        state.spare.push(Arc::downgrade(live));
        let live = live.clone();
        async move {
            tokio::select! {
                () = sleep(DRAIN) => {}
                _ = live.path.closed() => {}
            }
            live.path.close(Close::Duplicate, "another connection is in use");
        }
    }

    /// Cuts every connection and forgets everything: the peer was removed.
    pub(crate) fn remove(&self, why: &str) {
        let state = {
            let mut state = self.state();
            // Whoever says that bulk data comes will take that back.
            let gone = State { gone: true, bulk: state.bulk, ..State::default() };
            std::mem::replace(&mut *state, gone)
        };
        self.outbox.clear();
        let others = state.spare.iter().chain(&state.theirs_beside).filter_map(Weak::upgrade);
        others
            .chain(state.beside.into_values())
            .chain(self.current())
            .for_each(|live| live.path.close(Close::Refused, why));
        self.hurry.notify_one();
    }
}

/// What became of a new connection.
pub(crate) enum TakenUp {
    /// It is in use from now on.
    InUse { instead_of: Option<Arc<Live>> },
    /// There is a better one. The peer comes to the same conclusion.
    Spare,
    /// The peer was removed.
    Refused,
}

/// What decides between two connections.
struct Facts {
    dialled: bool,
    incarnation: u64,
    age: Duration,
}

impl Facts {
    fn of(live: &Live) -> Self {
        let incarnation = live.greeting.incarnation;
        Self { dialled: live.dialled, incarnation, age: live.since.elapsed() }
    }
}

/// Whether a new connection takes the place of the one in use.
///
/// A peer dials only if it has no connection. So a new one means that the old one is dead, unless
/// both dialled at once: then the one that the lower id dialled stays.
fn supersedes(ours: NodeId, theirs: NodeId, old: &Facts, new: &Facts) -> bool {
    old.incarnation != new.incarnation
        || old.dialled == new.dialled
        || old.age > RACE
        || new.dialled == (ours < theirs)
}

/// Tries the addresses, each a little after the one before, and takes the first that works.
pub(crate) async fn eyeballs<T, F, A>(
    addresses: &[SocketAddr],
    attempt: A,
) -> Result<(SocketAddr, T), Vec<(SocketAddr, Failure)>>
where
    A: Fn(SocketAddr) -> F,
    F: Future<Output = Result<T, Failure>>,
{
    let mut waiting = addresses.iter();
    let mut running = FuturesUnordered::new();
    let mut failures = Vec::with_capacity(addresses.len());
    loop {
        if let Some(&address) = waiting.next() {
            let trying = attempt(address);
            running.push(async move { (address, trying.await) });
        } else if running.is_empty() {
            return Err(failures);
        }
        // Until one ends, or it is time for the next.
        tokio::select! {
            Some((address, result)) = running.next() => match result {
                Ok(reached) => return Ok((address, reached)),
                Err(failure) => failures.push((address, failure)),
            },
            () = sleep(STAGGER), if waiting.len() > 0 => {}
        }
    }
}

/// How long to wait after this many failures in a row; `jitter` is in 0…1.
fn back_off(failures: u32, jitter: f64) -> Duration {
    let doubled = BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(MAX_BACK_OFF).mul_f64(0.5 + jitter / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: NodeId = NodeId([1; 32]);
    const HIGH: NodeId = NodeId([2; 32]);

    fn facts(dialled: bool, incarnation: u64, age: u64) -> Facts {
        Facts { dialled, incarnation, age: Duration::from_secs(age) }
    }

    #[test]
    fn of_two_dials_at_once_both_sides_keep_the_lower_ones() {
        let (by_low, by_high) = (true, false);
        for first in [by_low, by_high] {
            let second = !first;
            // As the lower id sees it, its own dial is `dialled`; the higher sees the opposite.
            let low = supersedes(LOW, HIGH, &facts(first, 7, 0), &facts(second, 7, 0));
            let high = supersedes(HIGH, LOW, &facts(!first, 8, 0), &facts(!second, 8, 0));
            assert_eq!(low, second == by_low);
            assert_eq!(high, second == by_low);
        }
    }

    #[test]
    fn a_restarted_or_long_silent_peer_is_believed() {
        // The lower id dialled the old one, so in a race it would stay.
        assert!(!supersedes(LOW, HIGH, &facts(true, 7, 0), &facts(false, 7, 0)));
        assert!(supersedes(LOW, HIGH, &facts(true, 7, 0), &facts(false, 8, 0)));
        assert!(supersedes(LOW, HIGH, &facts(true, 7, 60), &facts(false, 7, 0)));
    }

    #[test]
    fn back_off_doubles_to_five_seconds_and_varies() {
        assert_eq!(back_off(1, 1.0), BACK_OFF);
        assert_eq!(back_off(2, 1.0), 2 * BACK_OFF);
        assert_eq!(back_off(u32::MAX, 1.0), MAX_BACK_OFF);
        assert_eq!(back_off(1, 0.0), BACK_OFF / 2);
    }
}
