//! Clients at work while things go wrong, and what they were told.
//!
//! Some of them read and swap the values of a few names that they fight over, which is what
//! [`crate::linear`] judges best. The others write each name once and do not rest until it is
//! acknowledged, asking one node after the other: what they were told is done must be there at the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use mesh_node::clock::steady;

use super::client::{Client, Got, Put};
use super::fleet::SETTLE;
use super::until;
use crate::linear::{self, Event, Op};

/// Names that are fought over. Their keys are below this.
pub const HOT: u32 = 4;
/// Clients that fight.
const FIGHTERS: u32 = 3;
/// Clients that write once. Enough that some still write while others wait for a node that hangs.
const WRITERS: u32 = 4;
/// Between two operations of one client: a story has some thousand operations, not some hundred
/// thousand.
const REST: Duration = Duration::from_millis(20);
/// After an excuse.
const BACK_OFF: Duration = Duration::from_millis(100);

/// A write that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// The name's key.
    pub key: u32,
    /// The value, which nobody else writes.
    pub value: u64,
    /// When the attempt began that was acknowledged, since the load began.
    pub asked: Duration,
    /// When it was acknowledged.
    pub at: Duration,
}

/// What the clients did and were told.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Every operation, for the check that they are linearizable.
    pub events: Vec<Event>,
    /// Writes of the clients that write once, in the order of their answers.
    pub acked: Vec<Acked>,
    /// What no client should ever see.
    pub wrong: Vec<String>,
}

/// The name that stands for a key.
pub fn name(key: u32) -> String {
    format!("chaos-{key}")
}

impl History {
    /// D: the operations look as if each had happened at one moment.
    pub fn linearizable(&self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.first() {
            return Err(wrong.clone());
        }
        linear::check(&self.events, None).map_err(|error| error.to_string())
    }

    /// A: what was acknowledged is there, on this node too.
    pub fn acked_survive(&self, party: &str, client: &Client) -> Result<(), String> {
        // A read as of now brings the node up to date; then its own copy must have everything. A
        // node that has just lost its leader may say so, and is asked again.
        let read = until(SETTLE, || {
            let got = client.get(party, &name(0), false);
            (got != Got::Nothing).then_some(())
        });
        read.ok_or_else(|| format!("it answers no read within {SETTLE:?}"))?;
        for acked in &self.acked {
            let got = client.get(party, &name(acked.key), true);
            if got != Got::Value(Some(acked.value)) {
                return Err(format!("{acked:?} was acknowledged; now there is {got:?}"));
            }
        }
        Ok(())
    }

    /// E: whoever expects a value that is gone is refused.
    pub fn stale_refused(&self, party: &str, client: &Client) -> Result<(), String> {
        for key in 0..HOT {
            let mut written = self.events.iter().rev().filter_map(|event| match event.op {
                Op::Cas { expect: Some(old), ok: Some(true), .. } if event.key == key => Some(old),
                _ => None,
            });
            let Some(old) = written.next() else { continue };
            let mut put = Put::Unknown;
            let answered = until(SETTLE, || {
                put = client.put(party, &name(key), Some(old), u64::MAX);
                (put != Put::Unknown && put != Put::NotSent).then_some(())
            });
            if answered.is_none() || put != Put::Refused {
                return Err(format!("{} expecting {old}, which is gone: {put:?}", name(key)));
            }
        }
        Ok(())
    }

    /// The longest time between `from` and `to` in which nothing was acknowledged.
    pub fn longest_gap(&self, from: Duration, to: Duration) -> Duration {
        let mut last = from;
        let mut longest = Duration::ZERO;
        let within = self.acked.iter().map(|acked| acked.at).filter(|&at| at > from && at < to);
        let mut within: Vec<Duration> = within.chain([to]).collect();
        // Several clients note what they were told, each when it gets to it.
        within.sort_unstable();
        for at in within {
            longest = longest.max(at.saturating_sub(last));
            last = at;
        }
        longest
    }
}

/// Clients at work. They stop when told to, or dropped.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    begun: Instant,
    party: String,
    doors: Vec<Client>,
    history: Mutex<History>,
    /// Each value is written by one operation only.
    values: AtomicU64,
}

impl Load {
    /// Begins to ask these nodes, for names of `party`.
    pub fn start(doors: Vec<Client>, party: &str, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            begun: steady(),
            party: party.to_owned(),
            doors,
            history: Mutex::default(),
            values: AtomicU64::new(1),
        });
        let threads = (0..FIGHTERS + WRITERS)
            .map(|client| {
                let shared = shared.clone();
                let rng = Rng::with_seed(seed ^ u64::from(client) << 32);
                std::thread::spawn(move || match client {
                    0..FIGHTERS => shared.fight(client, rng),
                    _ => shared.write_once(client, rng),
                })
            })
            .collect();
        Self { shared, threads }
    }

    /// How many writes were acknowledged so far.
    pub fn acked(&self) -> usize {
        self.shared.history().acked.len()
    }

    /// Since it began.
    pub fn now(&self) -> Duration {
        self.shared.begun.elapsed()
    }

    /// Waits until so many writes that were asked for from now on are acknowledged; how long the
    /// first of them took to come. Answers to what was asked before a fault say nothing about it.
    pub fn progress(&self, writes: usize, patience: Duration) -> Option<Duration> {
        let begun = self.now();
        until(patience, || {
            let history = self.shared.history();
            let mut new = history.acked.iter().filter(|acked| acked.asked >= begun);
            let first = new.next()?.at;
            (new.count() + 1 >= writes).then(|| first - begun)
        })
    }

    /// Stops, and answers with what happened.
    pub fn stop(mut self) -> History {
        self.end();
        std::mem::take(&mut *self.shared.history())
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.history().wrong.push("a client panicked".into());
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn fight(&self, client: u32, mut rng: Rng) {
        let mut seen = [None; HOT as usize];
        while !self.stopped() {
            let door = &self.doors[rng.usize(..self.doors.len())];
            let key = rng.u32(..HOT);
            let expect = seen[key as usize];
            let answered = if rng.u8(..5) < 2 {
                match self.read(client, door, key) {
                    Got::Value(value) => {
                        seen[key as usize] = value;
                        true
                    }
                    Got::Nothing => false,
                }
            } else {
                let to = self.values.fetch_add(1, Ordering::Relaxed);
                match self.swap(client, door, key, expect, to) {
                    Put::Done => {
                        seen[key as usize] = Some(to);
                        true
                    }
                    // Somebody else won: look again.
                    Put::Refused => {
                        if let Got::Value(value) = self.read(client, door, key) {
                            seen[key as usize] = value;
                        }
                        true
                    }
                    Put::NotSent | Put::Unknown => false,
                }
            };
            std::thread::sleep(if answered { REST } else { BACK_OFF });
        }
    }

    fn write_once(&self, client: u32, mut rng: Rng) {
        // Whoever gave no answer is left in peace until somebody else gives none. So one node that
        // hangs costs each client its patience once.
        let mut shunned = None;
        for key in (HOT + client..).step_by(WRITERS as usize + FIGHTERS as usize) {
            let value = self.values.fetch_add(1, Ordering::Relaxed);
            loop {
                if self.stopped() {
                    return;
                }
                let others: Vec<usize> =
                    (0..self.doors.len()).filter(|&door| Some(door) != shunned).collect();
                let number = rng.choice(&others).copied().unwrap_or_default();
                let door = &self.doors[number];
                let asked = self.begun.elapsed();
                match self.swap(client, door, key, None, value) {
                    Put::Done => break self.ack(key, value, asked),
                    // An earlier attempt may have worked without our learning of it.
                    Put::Refused => match self.read(client, door, key) {
                        Got::Value(Some(found)) if found == value => {
                            break self.ack(key, value, asked);
                        }
                        Got::Value(found) => {
                            let wrong = format!("{} was refused and holds {found:?}", name(key));
                            return self.history().wrong.push(wrong);
                        }
                        Got::Nothing => shunned = Some(number),
                    },
                    Put::NotSent | Put::Unknown => shunned = Some(number),
                }
                std::thread::sleep(BACK_OFF);
            }
            std::thread::sleep(REST);
        }
    }

    fn ack(&self, key: u32, value: u64, asked: Duration) {
        let at = self.begun.elapsed();
        self.history().acked.push(Acked { key, value, asked, at });
    }

    fn read(&self, client: u32, door: &Client, key: u32) -> Got {
        let call = self.now();
        let got = door.get(&self.party, &name(key), false);
        if let Got::Value(saw) = got {
            let ret = Some(self.now());
            self.history().events.push(Event { key, client, call, ret, op: Op::Read { saw } });
        }
        got
    }

    fn swap(&self, client: u32, door: &Client, key: u32, expect: Option<u64>, to: u64) -> Put {
        let call = self.now();
        let put = door.put(&self.party, &name(key), expect, to);
        let ok = match put {
            Put::Done => Some(true),
            Put::Refused => Some(false),
            Put::Unknown => None,
            Put::NotSent => return put,
        };
        let ret = ok.map(|_| self.now());
        let op = Op::Cas { expect, to: Some(to), ok };
        self.history().events.push(Event { key, client, call, ret, op });
        put
    }
}
