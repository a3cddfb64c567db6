//! What a pull knows of one peer: what it has, what it was asked for, how fast it is.

use std::collections::VecDeque;
use std::time::Duration;

use mesh_consensus::time::Time;

use crate::bitmap::Bitmap;

/// What a round trip is taken for until the caller tells.
const GUESSED_RTT: Duration = Duration::from_millis(20);
/// A chunk that has come is verified and written, and then the next is asked for: on a busy machine that takes so long.
const TURNS: Duration = Duration::from_millis(10);
/// Asks that were given up but may still be answered.
const MAX_LATE: usize = 16;
/// Refusals that are remembered.
const MAX_REFUSED: usize = 64;
/// So many time-outs are given to a chunk whose bytes come.
const MAX_PATIENCE: u32 = 8;
/// Shorter chunks tell of the way there and back, and not of the rate.
const TELLING: u32 = 64 << 10;
/// A rest is doubled so often at most.
const MAX_DOUBLINGS: u32 = 6;

/// A chunk that a peer was asked for by number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) chunk: u32,
    pub(super) bytes: u32,
    pub(super) at: Time,
}

/// One linked peer.
#[derive(Debug)]
pub(super) struct Peer {
    /// As long as the list of chunks.
    pub(super) has: Bitmap,
    pub(super) rtt: Duration,
    /// In the order of asking, which is that of the answers.
    pub(super) asked: VecDeque<Asked>,
    /// Chunks of its choice that it was asked for and that did not come yet.
    pub(super) any: u32,
    /// Those that were given up, but may still come.
    late_any: u32,
    /// When the last of them was asked for.
    pub(super) any_at: Time,
    /// It has nothing to choose any more.
    pub(super) is_spent: bool,
    /// It had everything when it was linked: it is asked to choose, and spared otherwise.
    pub(super) is_source: bool,
    /// The chunk whose bytes are coming.
    pub(super) began: Option<u32>,
    /// When something last came: time-outs run from there.
    pub(super) moved: Time,
    /// Bytes a millisecond, if known.
    rate: Option<f64>,
    /// When a chunk last came, or the link began.
    pub(super) heard: Time,
    /// Nothing is asked of it before.
    pub(super) rests_until: Time,
    /// How often in a row it refused or stalled.
    pub(super) strikes: u32,
    /// Given up, but may still come.
    late: VecDeque<Asked>,
    /// What it refused: taken for what it does not have, for now.
    pub(super) refused: VecDeque<u32>,
}

impl Peer {
    pub(super) fn new(now: Time, has: Bitmap) -> Self {
        Self {
            is_source: has.is_full(),
            has,
            rtt: GUESSED_RTT,
            asked: VecDeque::new(),
            any: 0,
            late_any: 0,
            any_at: now,
            is_spent: false,
            began: None,
            moved: now,
            rate: None,
            heard: now,
            rests_until: now,
            strikes: 0,
            late: VecDeque::new(),
            refused: VecDeque::new(),
        }
    }

    /// Chunks that it owes us.
    pub(super) fn owes(&self) -> usize {
        self.asked.len() + self.any as usize
    }

    /// How many more it may be asked for: what fills the way there and back, what comes while tasks take turns, and two.
    pub(super) fn credits(&self, now: Time, mean_chunk: f64, least: usize, most: usize) -> usize {
        if now < self.rests_until {
            return 0;
        }
        let chunks_in =
            |time: Duration| self.rate.unwrap_or(0.0) * time.as_secs_f64() * 1000.0 / mean_chunk;
        let on_the_way = chunks_in(self.rtt).ceil() + chunks_in(TURNS).floor();
        // After a strike it has to prove itself with one chunk.
        let most = if self.strikes > 0 { 1 } else { most };
        (on_the_way as usize + 2).clamp(least.min(most), most).saturating_sub(self.owes())
    }

    /// Bytes a millisecond, if known.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// When a chunk of `bytes` would be here if it were asked for now, in milliseconds from now.
    pub(super) fn eta(&self, bytes: u32, mean_chunk: f64, usual_rate: f64) -> f64 {
        let owed: f64 = self.asked.iter().map(|ask| f64::from(ask.bytes)).sum();
        let owed = owed + f64::from(self.any) * mean_chunk;
        let rate = self.rate.unwrap_or(usual_rate).max(0.001);
        self.rtt.as_secs_f64() * 1000.0 + (owed + f64::from(bytes)) / rate
    }

    /// When the chunk at `place` of what was asked should be here, in milliseconds from now.
    pub(super) fn due(&self, now: Time, place: usize, usual_rate: f64) -> f64 {
        let ahead: f64 = self.asked.iter().take(place + 1).map(|ask| f64::from(ask.bytes)).sum();
        let rate = self.rate.unwrap_or(usual_rate).max(0.001);
        let waited = self.asked.front().map_or(0, |ask| now.0.saturating_sub(self.since(ask.at).0));
        (ahead / rate - waited as f64).max(0.0)
    }

    /// Since when we have been waiting for something asked at `at`: answers come one by one.
    pub(super) fn since(&self, at: Time) -> Time {
        at.max(self.heard)
    }

    /// When something asked at `at` is overdue. Bytes that come are a sign of life, but not for ever.
    pub(super) fn deadline(&self, at: Time, timeout: Duration) -> Time {
        at.max(self.moved).after(timeout).min(self.since(at).after(MAX_PATIENCE * timeout))
    }

    /// A chunk came. Answers how long it took, if it was asked for by number.
    pub(super) fn on_chunk(&mut self, now: Time, chunk: u32, bytes: u32) -> Option<Duration> {
        let place = self.asked.iter().position(|ask| ask.chunk == chunk);
        let ask = match place {
            Some(place) => self.asked.remove(place),
            None => {
                let late = self.late.iter().position(|ask| ask.chunk == chunk);
                late.and_then(|late| self.late.remove(late))
            }
        };
        let asked_at = match ask {
            Some(ask) => ask.at,
            None => {
                self.any = self.any.saturating_sub(1);
                self.any_at
            }
        };
        let took = now.since(self.since(asked_at)).as_secs_f64() * 1000.0;
        let rate = f64::from(bytes) / took.max(1.0);
        self.rate = match self.rate {
            None if bytes < TELLING => None,
            None => Some(rate),
            Some(old) if bytes < TELLING => Some(old.max(rate)),
            Some(old) => Some(0.7 * old + 0.3 * rate),
        };
        self.heard = now;
        self.moved = now;
        // The next may have begun while this one was being written.
        self.began = self.began.filter(|began| *began != chunk);
        self.strikes = 0;
        self.rests_until = self.rests_until.min(now);
        ask.map(|ask| now.since(ask.at))
    }

    /// Bytes of a chunk come. Answers whether it is one of its own choice, which is then as good as asked for by number.
    pub(super) fn on_began(&mut self, now: Time, chunk: u32, bytes: u32) -> bool {
        self.began = Some(chunk);
        self.moved = now;
        let is_expected = |asks: &VecDeque<Asked>| asks.iter().any(|ask| ask.chunk == chunk);
        if is_expected(&self.asked) || is_expected(&self.late) {
            return false;
        }
        match (self.any, self.late_any) {
            (0, 0) => return false,
            (0, _) => self.late_any -= 1,
            _ => self.any -= 1,
        }
        self.asked.push_front(Asked { chunk, bytes, at: self.any_at });
        true
    }

    /// Chunks of its choice are not expected any more, though it may be sending some.
    pub(super) fn give_up_any(&mut self) {
        self.late_any = self.late_any.saturating_add(std::mem::take(&mut self.any));
    }

    /// It has nothing to choose any more.
    pub(super) fn on_nothing(&mut self) {
        (self.any, self.late_any, self.is_spent) = (0, 0, true);
    }

    /// It is not expected to send this any more. Answers whether it was.
    pub(super) fn forget(&mut self, chunk: u32) -> bool {
        let place = self.asked.iter().position(|ask| ask.chunk == chunk);
        let Some(ask) = place.and_then(|place| self.asked.remove(place)) else { return false };
        self.late.push_back(ask);
        if self.late.len() > MAX_LATE {
            self.late.pop_front();
        }
        true
    }

    /// It will not send this chunk now.
    pub(super) fn refuse(&mut self, chunk: u32) {
        self.has.clear(chunk as usize);
        self.refused.push_back(chunk);
        if self.refused.len() > MAX_REFUSED
            && let Some(oldest) = self.refused.pop_front()
        {
            self.has.set(oldest as usize);
        }
    }

    /// Leaves it alone for a while, longer each time.
    pub(super) fn rest(&mut self, now: Time, rest: Duration) {
        let doubled = rest * (1 << self.strikes.min(MAX_DOUBLINGS));
        self.rests_until = self.rests_until.max(now.after(doubled));
        self.strikes = self.strikes.saturating_add(1);
    }
}

/// The last few durations, for their median.
#[derive(Debug, Default)]
pub(super) struct Durations {
    last: VecDeque<Duration>,
}

impl Durations {
    const KEPT: usize = 31;

    pub(super) fn add(&mut self, took: Duration) {
        self.last.push_back(took);
        if self.last.len() > Self::KEPT {
            self.last.pop_front();
        }
    }

    pub(super) fn median(&self) -> Duration {
        let mut sorted: Vec<Duration> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}
