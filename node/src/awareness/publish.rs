//! When a node says what about itself.
//!
//! The whole record at the start, whenever anything but the load has changed, and about every
//! [`REFRESH`] so that newcomers hear of it; the load alone when it has changed noticeably, at most
//! every [`UPDATE_GAP`]. A mesh at rest is then nearly silent (the overlay of fifty nodes costs
//! 0.15 % of a core at one message per 30 s and node, 0.6 % at one per 5 s).
//!
//! Pure: the moment is an argument, the jitter comes from a seed.

use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use mesh_consensus::id::MeshId;

use super::record::{GpuLoad, Load, Record};
use super::signed::{RecordError, Signed, Stamp};

/// How often the whole record is repeated, give or take [`JITTER`].
pub const REFRESH: Duration = Duration::from_secs(45);
/// Nodes that started together must not speak together for ever.
pub const JITTER: Duration = Duration::from_secs(9);
/// At most one update of the load in this time.
pub const UPDATE_GAP: Duration = Duration::from_secs(5);
/// At most one whole record in this time: an interface that flaps is not worth more.
pub const WHOLE_GAP: Duration = Duration::from_secs(1);

/// How much of a change is worth a message.
mod noticeable {
    pub(super) const CPU: f64 = 0.15;
    pub(super) const GPU: f64 = 0.2;
    /// Of what there is in all: memory, disk, a GPU's memory.
    pub(super) const SHARE: f64 = 0.05;
    pub(super) const DEGREES: u16 = 10;
    pub(super) const WATTS: u16 = 50;
}

/// Decides when to speak, and numbers what is said.
#[derive(Debug)]
pub struct Publisher {
    incarnation: u64,
    /// The sequence of the last message.
    sequence: u64,
    random: fastrand::Rng,
    refresh: Duration,
    last: Option<Last>,
}

/// What was said last.
#[derive(Debug)]
struct Last {
    /// As others know it by now: with the load of the last update.
    record: Record,
    /// The first message that said all of it but the load.
    of: u64,
    /// When the last message went out.
    at: Instant,
    whole_at: Instant,
    refresh_at: Instant,
}

impl Publisher {
    /// Has said nothing yet. For the incarnation see [`incarnation`](super::signed::incarnation).
    pub fn new(incarnation: u64, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { incarnation, sequence: 0, random, refresh: REFRESH, last: None }
    }

    /// Repeats the whole record more often than every [`REFRESH`].
    pub fn every(self, refresh: Duration) -> Self {
        Self { refresh, ..self }
    }

    /// What to say at `now`, if anything, given how things stand.
    ///
    /// To be called after every measurement, and about once a second in between.
    pub fn next(
        &mut self,
        now: Instant,
        key: &SigningKey,
        mesh: MeshId,
        record: &Record,
    ) -> Result<Option<Signed>, RecordError> {
        let stamp = Stamp { incarnation: self.incarnation, sequence: self.sequence + 1 };
        let speak = self.decide(now, record);
        if matches!(speak, Speak::Nothing) {
            return Ok(None);
        }
        let mut fitting = record.clone();
        fitting.fit();
        let signed = match speak {
            Speak::Update { of } => fitting.load.sign(key, mesh, stamp, of)?,
            Speak::Whole | Speak::Nothing => fitting.sign(key, mesh, stamp)?,
        };
        self.sequence += 1;
        self.said(now, record, matches!(signed.said(), super::signed::Said::Whole(_)));
        Ok(Some(signed))
    }

    /// Somebody holds words under this node's name. If they are later than its own, the node has
    /// forgotten an earlier life (its disk was restored from a copy, say) and starts above it.
    pub fn on_own(&mut self, stamp: Stamp) {
        if stamp > (Stamp { incarnation: self.incarnation, sequence: self.sequence }) {
            self.incarnation = stamp.incarnation.saturating_add(1);
            self.last = None;
        }
    }

    /// Which life of the node speaks. The caller keeps it for the next start.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn decide(&self, now: Instant, record: &Record) -> Speak {
        let Some(last) = &self.last else { return Speak::Whole };
        let since = |then: Instant| now.saturating_duration_since(then);
        if now >= last.refresh_at {
            return Speak::Whole;
        }
        if !same_but_for_load(record, &last.record) {
            return if since(last.whole_at) >= WHOLE_GAP { Speak::Whole } else { Speak::Nothing };
        }
        if since(last.at) >= UPDATE_GAP && differs(&record.load, &last.record) {
            return Speak::Update { of: last.of };
        }
        Speak::Nothing
    }

    fn said(&mut self, now: Instant, record: &Record, whole: bool) {
        let sequence = self.sequence;
        match &mut self.last {
            Some(last) if !whole => {
                last.at = now;
                last.record.load = record.load.clone();
            }
            last => {
                let same = last.as_ref().filter(|last| same_but_for_load(record, &last.record));
                let of = same.map_or(sequence, |last| last.of);
                let most = JITTER.min(self.refresh / 5);
                let jitter = most.mul_f64(2.0 * self.random.f64());
                let refresh_at = now + self.refresh - most + jitter;
                *last =
                    Some(Last { record: record.clone(), of, at: now, whole_at: now, refresh_at });
            }
        }
    }
}

enum Speak {
    Nothing,
    Whole,
    Update { of: u64 },
}

fn same_but_for_load(a: &Record, b: &Record) -> bool {
    // Taken apart by name, so that a new field does not compile until it is compared here.
    let Record { data, overlay, name, version, facts, load: _ } = a;
    *data == b.data
        && *overlay == b.overlay
        && *name == b.name
        && *version == b.version
        && *facts == b.facts
}

/// Whether `load` differs noticeably from what others know.
fn differs(load: &Load, known: &Record) -> bool {
    let (then, facts) = (&known.load, &known.facts);
    let gpus = load.gpus.iter().zip(&then.gpus).zip(&facts.gpus);
    (load.cpu.get() - then.cpu.get()).abs() >= noticeable::CPU
        || moved(load.memory_free_bytes, then.memory_free_bytes, facts.memory_bytes)
        || moved(load.disk_free_bytes, then.disk_free_bytes, facts.disk_bytes)
        || load.gpus.len() != then.gpus.len()
        || gpus.into_iter().any(|((now, then), facts)| gpu_differs(now, then, facts.memory_mib))
}

fn gpu_differs(now: &GpuLoad, then: &GpuLoad, memory_mib: u32) -> bool {
    let far = |now: Option<u16>, then: Option<u16>, by: u16| match (now, then) {
        (Some(now), Some(then)) => now.abs_diff(then) >= by,
        (now, then) => now.is_some() != then.is_some(),
    };
    let used = |load: &GpuLoad| load.memory_used_mib.map_or(0, u64::from);
    let busy = |load: &GpuLoad| load.utilisation.map_or(0.0, super::bounded::Ratio::get);
    now.health != then.health
        || now.xid != then.xid
        || now.processes != then.processes
        || (busy(now) - busy(then)).abs() >= noticeable::GPU
        || moved(used(now), used(then), u64::from(memory_mib))
        || far(now.temperature_c, then.temperature_c, noticeable::DEGREES)
        || far(now.power_w, then.power_w, noticeable::WATTS)
}

fn moved(now: u64, then: u64, whole: u64) -> bool {
    now.abs_diff(then) as f64 > noticeable::SHARE * whole as f64
}

#[cfg(test)]
mod tests;
