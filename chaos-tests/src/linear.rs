//! Is there an order of these operations that one register, doing one thing at a time, could have
//! produced?
//!
//! [`check`] answers for histories of reads and compare-and-sets on many keys, each key on its own
//! (a history is linearizable if each of its keys is). The search is Wing and Gong's, with Lowe's
//! cache: take operations one after the other, each from among those that no other one that is
//! still missing had to precede, go back when stuck, and never look twice at the same (operations
//! taken, value). Three things keep it short:
//!
//! - An operation that changes nothing and fits the present value is taken at once: whoever takes
//!   it later has no more choices than we have. So only writes branch.
//! - Of writes that do the same and can both be taken, the one that must be done first is enough.
//! - Who has come to the same place with fewer of the writes whose outcome is unknown can do all
//!   that the others can, so those need not be followed.
//!
//! A compare-and-set whose outcome nobody knows may have worked at any time after its call, even
//! after its client gave up, or never. Two operations that touch at one moment overlap: a clock
//! that is too coarse must not accuse anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The value of a register; `None` when there is none.
pub type Value = Option<u64>;

/// What a client asked for, and what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A read.
    Read {
        /// What it was told. Means nothing if the read never returned.
        saw: Value,
    },
    /// Writes `to` if the value is `expect`.
    Cas {
        /// The value that it must find.
        expect: Value,
        /// The value that it leaves.
        to: Value,
        /// Whether it worked. `Some(false)`: the value was another one. `None`: nobody knows.
        ok: Option<bool>,
    },
}

/// One operation of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The register.
    pub key: u32,
    /// Who asked.
    pub client: u32,
    /// When it asked.
    pub call: u64,
    /// When it was answered; `None` if it never was. Not looked at if the outcome is unknown: that
    /// a client stopped waiting does not end what it began.
    pub ret: Option<u64>,
    /// What it asked for.
    pub op: Op,
}

/// The history was not found to be linearizable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotLinear {
    /// No order explains it.
    #[error("{0}")]
    Impossible(Box<Impossible>),
    /// The search was given up. Says nothing about the history, but much about the workload: too
    /// many writes of equal values overlap.
    #[error("key {key}: undecided after {steps} steps")]
    Undecided {
        /// The register.
        key: u32,
        /// How many different situations were looked at.
        steps: usize,
    },
}

/// Where the search got stuck. Prints as a story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    /// The register.
    pub key: u32,
    /// Up to the return of this operation, and no further, no order can be found. Without it there
    /// would be one.
    pub culprit: Event,
    /// What the register may have held when the culprit had to happen.
    pub possible: Vec<Value>,
    /// The latest events that cannot be explained even if the register held anything at all before
    /// them, by call. Where there are none such, all events up to the culprit's return.
    pub window: Vec<Event>,
    /// How many events of this key came before the window.
    pub before: usize,
}

/// Situations to look at per key before giving up: a second or so. An ordinary history needs one
/// or two per write.
pub const STEPS: usize = 200_000;

/// A search for the window may take this part of the steps. There are many such searches, and what
/// they find only makes the story shorter.
const SHARE: usize = 64;

/// Checks every key of `history`, all of which hold `initial` at first.
///
/// A key that is impossible is reported before one that is undecided, and the lower key first.
pub fn check(history: &[Event], initial: Value) -> Result<(), NotLinear> {
    check_within(history, initial, STEPS)
}

/// As [`check`], with another limit than [`STEPS`].
pub fn check_within(history: &[Event], initial: Value, steps: usize) -> Result<(), NotLinear> {
    let mut keys: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
    for event in history {
        keys.entry(event.key).or_default().push(*event);
    }
    let mut undecided = None;
    for (key, events) in keys {
        match search(&calls(&events), initial, steps) {
            Verdict::Linear => {}
            Verdict::Undecided => {
                undecided = undecided.or(Some(NotLinear::Undecided { key, steps }));
            }
            Verdict::Stuck { at, possible } => {
                let impossible = explain(key, &events, at, possible, steps);
                return Err(NotLinear::Impossible(Box::new(impossible)));
            }
        }
    }
    undecided.map_or(Ok(()), Err)
}

/// An operation as the search sees it.
#[derive(Debug, Clone, Copy)]
struct Call {
    call: u64,
    /// `u64::MAX` if it has no end.
    ret: u64,
    /// Whether it must have happened.
    must: bool,
    what: What,
    /// Which event it is.
    event: usize,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// The value was this.
    Is(Value),
    /// The value was another one.
    IsNot(Value),
    /// The value was the first and became the second.
    Write(Value, Value),
}

/// The events that say something, by call.
fn calls(events: &[Event]) -> Vec<Call> {
    let mut calls: Vec<Call> = events
        .iter()
        .enumerate()
        .filter_map(|(event, e)| {
            let (what, must, ret) = match e.op {
                // A question without an answer says nothing, and changes nothing.
                Op::Read { saw } => (What::Is(saw), true, e.ret?),
                Op::Cas { expect, ok: Some(false), .. } => (What::IsNot(expect), true, e.ret?),
                Op::Cas { expect, to, ok: Some(true) } if expect == to => {
                    (What::Is(expect), true, e.ret.unwrap_or(u64::MAX))
                }
                Op::Cas { expect, to, ok: Some(true) } => {
                    (What::Write(expect, to), true, e.ret.unwrap_or(u64::MAX))
                }
                Op::Cas { expect, to, ok: None } if expect == to => return None,
                Op::Cas { expect, to, ok: None } => (What::Write(expect, to), false, u64::MAX),
            };
            Some(Call { call: e.call, ret, must, what, event })
        })
        .collect();
    calls.sort_by_key(|c| (c.call, c.ret, c.event));
    calls
}

enum Verdict {
    Linear,
    Undecided,
    /// `at` is the event beyond whose return no order leads.
    Stuck {
        at: usize,
        possible: Vec<Value>,
    },
}

/// A set of calls, as bits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Taken(Box<[u64]>);

impl Taken {
    fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    fn add(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn is_within(&self, other: &Taken) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine & !theirs == 0)
    }
}

/// What has been taken, and the value after it.
#[derive(Debug, Clone)]
struct Situation {
    /// Of what must happen.
    taken: Taken,
    /// Of what may.
    used: Taken,
    value: Value,
    /// All that must happen below this index has been taken.
    low: usize,
}

/// What a situation allows.
struct Choices {
    /// The missing call that must return first; `None` if none is missing.
    first: Option<usize>,
    /// The writes worth trying next, the most urgent first.
    writes: Vec<usize>,
}

fn search(calls: &[Call], initial: Value, steps: usize) -> Verdict {
    let maybes: Vec<usize> = (0..calls.len()).filter(|&i| !calls[i].must).collect();
    let nothing = Taken(vec![0; calls.len().div_ceil(64)].into());
    let used = nothing.clone();
    let mut stack = vec![Situation { taken: nothing, used, value: initial, low: 0 }];
    // For each (taken, value), with which uses we have been there.
    let mut seen: BTreeMap<(Taken, Value), Vec<Taken>> = BTreeMap::new();
    let mut looked = 0;
    // The latest first return at which we got stuck, and with which values.
    let mut stuck: Option<(u64, usize)> = None;
    let mut possible: BTreeSet<Value> = BTreeSet::new();
    while let Some(mut here) = stack.pop() {
        let Choices { first, writes } = settle(calls, &maybes, &mut here);
        let Some(first) = first else { return Verdict::Linear };
        let before = seen.entry((here.taken.clone(), here.value)).or_default();
        if before.iter().any(|used| used.is_within(&here.used)) {
            continue;
        }
        before.retain(|used| !here.used.is_within(used));
        before.push(here.used.clone());
        looked += 1;
        if looked > steps {
            return Verdict::Undecided;
        }
        let at = (calls[first].ret, first);
        if stuck.is_none_or(|stuck| at > stuck) {
            stuck = Some(at);
            possible.clear();
        }
        if stuck == Some(at) {
            possible.insert(here.value);
        }
        // The stack is last in, first out: the most urgent goes on top.
        for &write in writes.iter().rev() {
            let mut next = here.clone();
            let set = if calls[write].must { &mut next.taken } else { &mut next.used };
            set.add(write);
            if let What::Write(_, to) = calls[write].what {
                next.value = to;
            }
            stack.push(next);
        }
    }
    match stuck {
        None => Verdict::Linear,
        Some((_, first)) => {
            Verdict::Stuck { at: calls[first].event, possible: possible.into_iter().collect() }
        }
    }
}

/// Takes everything that changes nothing and can be taken, then says what is left to choose.
fn settle(calls: &[Call], maybes: &[usize], here: &mut Situation) -> Choices {
    while here.low < calls.len() && (here.taken.has(here.low) || !calls[here.low].must) {
        here.low += 1;
    }
    // Whoever was called after the first missing return has to wait for it. In order of calls,
    // the first return that we have met is already the first of all that can come before us.
    let mut first: Option<usize> = None;
    let mut writes: Vec<usize> = Vec::new();
    let too_late = |first: Option<usize>, call: u64| first.is_some_and(|f| calls[f].ret < call);
    for i in here.low..calls.len() {
        let call = calls[i];
        if too_late(first, call.call) {
            break;
        }
        if here.taken.has(i) || !call.must {
            continue;
        }
        let fits = match call.what {
            What::Is(value) => here.value == value,
            What::IsNot(value) => here.value != value,
            What::Write(expect, _) => {
                if here.value == expect {
                    writes.push(i);
                }
                false
            }
        };
        if fits {
            here.taken.add(i);
        } else if first.is_none_or(|f| call.ret < calls[f].ret) {
            first = Some(i);
        }
    }
    let maybes = maybes.iter().copied().take_while(|&i| !too_late(first, calls[i].call));
    writes.extend(maybes.filter(|&i| {
        let fits = matches!(calls[i].what, What::Write(expect, _) if here.value == expect);
        fits && !here.used.has(i)
    }));
    // What must happen goes before what may, and the sooner before the later.
    writes.sort_by_key(|&i| (!calls[i].must, calls[i].ret, i));
    let mut values = BTreeSet::new();
    writes.retain(|&i| match calls[i].what {
        What::Write(_, to) => values.insert(to),
        _ => false,
    });
    Choices { first, writes }
}

/// Tells the story of a history that gets stuck at event `at`.
fn explain(
    key: u32,
    events: &[Event],
    at: usize,
    possible: Vec<Value>,
    steps: usize,
) -> Impossible {
    let culprit = events[at];
    let end = culprit.ret.unwrap_or(u64::MAX);
    let mut prefix: Vec<Event> = events.iter().copied().filter(|e| e.call <= end).collect();
    prefix.sort_by_key(|e| (e.call, e.ret, e.client));
    // A later cut leaves more to be explained away, so the latest one that still leaves something
    // inexplicable can be found by halving.
    let mut cuts: Vec<u64> = prefix.iter().map(|e| e.call).collect();
    cuts.dedup();
    cuts.retain(|&cut| cut <= culprit.call);
    let late = cuts.partition_point(|&cut| {
        let certain: Vec<Event> = prefix.iter().filter_map(|e| certain(e, cut, end)).collect();
        !explainable(&certain, steps / SHARE)
    });
    let total = prefix.len();
    if let Some(latest) = late.checked_sub(1) {
        prefix.retain(|e| certain(e, cuts[latest], end).is_some());
    }
    Impossible { key, culprit, possible, before: total - prefix.len(), window: prefix }
}

/// What is certain of an event, seen from `cut` to `end` only. An operation that had begun before
/// may have happened before, and one that was not over may happen later: they only may.
fn certain(event: &Event, cut: u64, end: u64) -> Option<Event> {
    match event.op {
        Op::Cas { ok: None, .. } => Some(*event),
        _ if event.ret.is_some_and(|ret| ret < cut) => None,
        _ if event.call >= cut && event.ret.is_some_and(|ret| ret <= end) => Some(*event),
        Op::Cas { expect, to, ok: Some(true) } => {
            Some(Event { ret: None, op: Op::Cas { expect, to, ok: None }, ..*event })
        }
        _ => None,
    }
}

/// Whether some value before them explains these events. In doubt, yes.
fn explainable(events: &[Event], steps: usize) -> bool {
    let calls = calls(events);
    let mut values: BTreeSet<Value> = BTreeSet::from([None]);
    for call in &calls {
        match call.what {
            What::Is(value) | What::IsNot(value) => drop(values.insert(value)),
            What::Write(expect, to) => values.extend([expect, to]),
        }
    }
    // And one that nobody speaks of.
    let strange = (0..).find(|&value| !values.contains(&Some(value)));
    values.insert(strange);
    values.iter().any(|&value| !matches!(search(&calls, value, steps), Verdict::Stuck { .. }))
}

/// A window that is longer is cut in the middle when it is printed.
const SHOWN: usize = 24;

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let possible: Vec<String> = self.possible.iter().map(|&value| text(value)).collect();
        writeln!(f, "key {}: no order explains this operation:", self.key)?;
        writeln!(f, "  {}", self.culprit)?;
        writeln!(f, "when it had to happen, the register held {}", possible.join(" or "))?;
        write!(f, "{} earlier events, then:", self.before)?;
        let hidden = self.window.len().saturating_sub(SHOWN);
        for (i, event) in self.window.iter().enumerate() {
            match i {
                _ if i < SHOWN / 2 || i >= SHOWN / 2 + hidden => write!(f, "\n  {event}")?,
                _ if i == SHOWN / 2 => write!(f, "\n  ({hidden} more)")?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ret = self.ret.map_or("…".to_string(), |ret| ret.to_string());
        write!(f, "{:>6} – {ret:<6} client {}: ", self.call, self.client)?;
        match self.op {
            Op::Read { saw } => write!(f, "read {}", text(saw)),
            Op::Cas { expect, to, ok } => {
                let outcome = match ok {
                    Some(true) => "done",
                    Some(false) => "refused",
                    None => "unknown",
                };
                write!(f, "{} to {}, {outcome}", text(expect), text(to))
            }
        }
    }
}

fn text(value: Value) -> String {
    value.map_or("nothing".to_string(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(client: u32, call: u64, ret: u64, saw: u64) -> Event {
        let saw = (saw > 0).then_some(saw);
        Event { key: 1, client, call, ret: Some(ret), op: Op::Read { saw } }
    }

    /// Here 0 stands for no value.
    fn cas(client: u32, call: u64, ret: u64, expect: u64, to: u64, ok: bool) -> Event {
        let value = |v: u64| (v > 0).then_some(v);
        let op = Op::Cas { expect: value(expect), to: value(to), ok: Some(ok) };
        Event { key: 1, client, call, ret: Some(ret), op }
    }

    fn lost(client: u32, call: u64, expect: u64, to: u64) -> Event {
        let value = |v: u64| (v > 0).then_some(v);
        let op = Op::Cas { expect: value(expect), to: value(to), ok: None };
        Event { key: 1, client, call, ret: None, op }
    }

    fn impossible(history: &[Event]) -> Impossible {
        match check(history, None) {
            Err(NotLinear::Impossible(story)) => *story,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_empty_history_and_a_sequence_are_linear() {
        assert_eq!(check(&[], None), Ok(()));
        let history = [
            read(1, 0, 1, 0),
            cas(1, 2, 3, 0, 7, true),
            read(2, 4, 5, 7),
            cas(2, 6, 7, 0, 8, false),
        ];
        assert_eq!(check(&history, None), Ok(()));
        assert_eq!(check(&[read(1, 0, 1, 4)], Some(4)), Ok(()));
    }

    #[test]
    fn a_stale_read_is_found_and_told() {
        let history = [
            cas(1, 0, 1, 0, 1, true),
            read(2, 2, 3, 1),
            cas(1, 4, 5, 1, 2, true),
            read(2, 6, 7, 1),
        ];
        let story = impossible(&history);
        assert_eq!(story.culprit, history[3]);
        assert_eq!(story.possible, [Some(2)]);
        assert_eq!(story.window, [history[2], history[3]]);
        assert_eq!(
            story.to_string(),
            "key 1: no order explains this operation:\n\
             \x20      6 – 7      client 2: read 1\n\
             when it had to happen, the register held 2\n\
             2 earlier events, then:\n\
             \x20      4 – 5      client 1: 1 to 2, done\n\
             \x20      6 – 7      client 2: read 1"
        );
    }

    #[test]
    fn a_read_that_overlaps_a_write_may_see_either() {
        let write = [cas(1, 0, 1, 0, 1, true), cas(1, 10, 20, 1, 2, true)];
        for saw in [1, 2] {
            assert_eq!(check(&[write[0], write[1], read(2, 12, 14, saw)], None), Ok(()));
        }
        // But once one has seen the new value, no later one sees the old.
        let back = [write[0], write[1], read(2, 12, 13, 2), read(3, 14, 15, 1)];
        assert_eq!(impossible(&back).culprit, back[3]);
        let together = [write[0], write[1], read(2, 12, 14, 2), read(3, 14, 15, 1)];
        assert_eq!(check(&together, None), Ok(()), "touching is overlapping");
    }

    #[test]
    fn a_lost_write_is_found() {
        let history = [cas(1, 0, 1, 0, 1, true), cas(2, 2, 3, 0, 2, true)];
        let story = impossible(&history);
        assert_eq!((story.culprit, story.possible), (history[1], vec![Some(1)]));
        let history = [cas(1, 0, 1, 0, 1, true), read(2, 2, 3, 0)];
        assert_eq!(impossible(&history).culprit, history[1]);
    }

    #[test]
    fn one_value_is_swapped_out_once() {
        let start = cas(1, 0, 1, 0, 1, true);
        let twice = [start, cas(2, 5, 9, 1, 2, true), cas(3, 5, 9, 1, 3, true)];
        assert!(check(&twice, None).is_err());
        let once = [start, cas(2, 5, 9, 1, 2, true), cas(3, 5, 9, 1, 3, false)];
        assert_eq!(check(&once, None), Ok(()));
        // Unless somebody puts it back.
        let back = [twice[0], twice[1], twice[2], lost(4, 0, 2, 1)];
        assert_eq!(check(&back, None), Ok(()));
    }

    #[test]
    fn a_refusal_needs_another_value() {
        let history = [cas(1, 0, 1, 0, 1, true), cas(2, 2, 3, 1, 2, false)];
        assert_eq!(impossible(&history).culprit, history[1]);
        let overlap =
            [cas(1, 0, 1, 0, 1, true), cas(2, 2, 3, 1, 2, false), cas(3, 2, 9, 1, 4, true)];
        assert_eq!(check(&overlap, None), Ok(()));
    }

    #[test]
    fn a_value_that_was_never_written_is_found() {
        let history = [cas(1, 0, 1, 0, 1, true), read(2, 2, 3, 9), read(2, 4, 5, 1)];
        let story = impossible(&history);
        assert_eq!((story.culprit, story.before), (history[1], 0));
        assert_eq!(story.window, history[..2], "what came later does not matter");
    }

    #[test]
    fn an_unknown_write_may_show_up_late_or_never() {
        let start = [cas(1, 0, 1, 0, 1, true), lost(2, 2, 1, 5)];
        let with = |rest: &[Event]| [&start, rest].concat();
        assert_eq!(check(&with(&[read(3, 10, 11, 1), read(3, 90, 91, 5)]), None), Ok(()));
        assert_eq!(check(&with(&[read(3, 10, 11, 1), read(3, 90, 91, 1)]), None), Ok(()));
        assert!(check(&with(&[read(3, 10, 11, 5), read(3, 90, 91, 1)]), None).is_err());
        // It does not happen before it is asked for, nor twice.
        assert!(check(&[lost(2, 20, 0, 5), read(3, 10, 11, 5)], None).is_err());
        let twice = with(&[read(3, 4, 5, 5), cas(3, 6, 7, 5, 1, true), read(3, 8, 9, 5)]);
        assert!(check(&twice, None).is_err());
        // That its client stopped waiting is no end.
        let mut gave_up = with(&[read(3, 10, 11, 1), read(3, 90, 91, 5)]);
        gave_up[1].ret = Some(5);
        assert_eq!(check(&gave_up, None), Ok(()));
    }

    #[test]
    fn a_read_without_an_answer_says_nothing() {
        let mut asked = read(1, 0, 1, 9);
        asked.ret = None;
        assert_eq!(check(&[asked], None), Ok(()));
    }

    #[test]
    fn keys_do_not_mix_and_the_broken_one_is_named() {
        let other = |event: Event| Event { key: 2, ..event };
        let history = [cas(1, 0, 1, 0, 1, true), other(read(2, 2, 3, 0)), read(1, 4, 5, 1)];
        assert_eq!(check(&history, None), Ok(()));
        let broken = [history[0], other(read(2, 2, 3, 1)), history[2]];
        assert_eq!(impossible(&broken).key, 2);
    }

    /// A history that did happen: each operation takes effect at a moment of its own, and its call
    /// and return lie around that moment as far as its client's other operations allow.
    fn real_history(rng: &mut fastrand::Rng, ops: u64, clients: u32, values: u64) -> Vec<Event> {
        let mut value: Value = None;
        let mut free = vec![0; clients as usize];
        let mut history = Vec::new();
        for at in 1..=ops {
            let now = 100 * at;
            let client = rng.u32(..clients);
            // Busy: its last answer came after this moment.
            let idle_since = free[client as usize];
            if idle_since > now {
                continue;
            }
            let call = rng.u64(idle_since.max(now.saturating_sub(600))..=now);
            let ret = now + rng.u64(..600);
            let pick = |rng: &mut fastrand::Rng| Some(rng.u64(1..=values)).filter(|&v| v > 1);
            let op = match rng.u8(..10) {
                0..4 => Op::Read { saw: value },
                4..9 => {
                    let expect = if rng.u8(..4) > 0 { value } else { pick(rng) };
                    let to = if values > ops { Some(1000 + at) } else { pick(rng) };
                    let ok = expect == value;
                    value = if ok { to } else { value };
                    Op::Cas { expect, to, ok: (rng.u8(..8) > 0).then_some(ok) }
                }
                // Never arrives, and its client never learns.
                _ => Op::Cas { expect: value, to: pick(rng), ok: None },
            };
            free[client as usize] = ret + 1;
            let unknown = matches!(op, Op::Cas { ok: None, .. });
            let ret = (!unknown).then_some(ret);
            history.push(Event { key: 1, client, call, ret, op });
        }
        history
    }

    #[test]
    fn what_did_happen_is_linear_and_takes_few_steps() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let clients = rng.u32(1..=30);
            let values = *rng.choice(&[3, 10, 1_000_000]).unwrap();
            let history = real_history(&mut rng, 300, clients, values);
            assert_eq!(check(&history, None), Ok(()), "seed {seed}");
            if values > 300 {
                let few = 2 * history.len();
                assert_eq!(check_within(&history, None, few), Ok(()), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_read_that_lies_is_mostly_found() {
        let (mut tried, mut found) = (0, 0);
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut history = real_history(&mut rng, 200, 5, 1_000_000);
            let reads: Vec<usize> =
                (0..history.len()).filter(|&i| matches!(history[i].op, Op::Read { .. })).collect();
            let Some(&lie) = rng.choice(&reads) else { continue };
            let donor = history[*rng.choice(&reads).unwrap()].op;
            if history[lie].op == donor {
                continue;
            }
            history[lie].op = donor;
            tried += 1;
            if let Err(NotLinear::Impossible(story)) = check(&history, None) {
                found += 1;
                assert!(story.window.contains(&story.culprit), "seed {seed}: {story}");
            }
        }
        assert!(tried > 300 && found * 10 >= tried * 9, "{found} of {tried}");
    }

    /// Tries all orders.
    fn by_force(events: &[Event], value: Value) -> bool {
        let must = |e: &Event| !matches!(e.op, Op::Cas { ok: None, .. });
        if !events.iter().any(must) {
            return true;
        }
        (0..events.len()).any(|i| {
            let mut rest = events.to_vec();
            let e = rest.remove(i);
            let free = !rest.iter().any(|r| must(r) && r.ret.is_some_and(|ret| ret < e.call));
            let next = match e.op {
                Op::Read { saw } => (saw == value).then_some(value),
                Op::Cas { expect, ok: Some(false), .. } => (expect != value).then_some(value),
                Op::Cas { expect, to, .. } => (expect == value).then_some(to),
            };
            free && next.is_some_and(|next| by_force(&rest, next))
        })
    }

    #[test]
    fn it_agrees_with_trying_all_orders() {
        let mut linear = 0;
        for seed in 0..20_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let value = |rng: &mut fastrand::Rng| rng.u64(0..3);
            let history: Vec<Event> = (0..rng.u32(1..=6))
                .map(|client| {
                    let call = rng.u64(0..12);
                    let ret = call + rng.u64(0..6);
                    let (expect, to) = (value(&mut rng), value(&mut rng));
                    match rng.u8(0..6) {
                        0 | 1 => read(client, call, ret, to),
                        2 | 3 => cas(client, call, ret, expect, to, true),
                        4 => cas(client, call, ret, expect, to, false),
                        _ => lost(client, call, expect, to),
                    }
                })
                .collect();
            let truth = by_force(&history, None);
            let verdict = check(&history, None);
            assert_eq!(verdict.is_ok(), truth, "seed {seed}: {history:#?}");
            linear += u32::from(truth);
            let Err(NotLinear::Impossible(story)) = verdict else { continue };
            // The story is true: up to the culprit there is no order, just before it there is one.
            let end = story.culprit.ret.unwrap();
            let until = |end: u64| -> Vec<Event> {
                let begun = history.iter().filter(|e| e.call <= end);
                begun.filter_map(|e| certain(e, 0, end)).collect()
            };
            assert!(!by_force(&until(end), None), "seed {seed}: {story}");
            assert!(end == 0 || by_force(&until(end - 1), None), "seed {seed}: {story}");
            assert!(story.window.contains(&story.culprit), "seed {seed}: {story}");
        }
        assert!((4000..16_000).contains(&linear), "too one-sided: {linear}");
    }

    #[test]
    fn a_hopeless_search_gives_up_and_says_so() {
        // Everything overlaps, few values: thousands of subsets, and a read that nothing explains.
        let mut history: Vec<Event> = (0..24)
            .map(|i| cas(i, 0, 1000, u64::from(i % 4) + 1, u64::from(i / 4) + 1, true))
            .collect();
        history.push(read(99, 0, 1000, 99));
        let verdict = check_within(&history, Some(1), 100);
        assert_eq!(verdict, Err(NotLinear::Undecided { key: 1, steps: 100 }));
        // A key that is surely broken is worth more than one that may be.
        history.extend([Event { key: 2, ..read(1, 0, 1, 5) }]);
        let verdict = check_within(&history, Some(1), 100);
        assert!(matches!(verdict, Err(NotLinear::Impossible(story)) if story.key == 2));
    }
}
