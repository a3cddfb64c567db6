//! Who knocks: bounds on handshakes, and what a stranger may say.
//!
//! A handshake costs us a signature, so there are only so many at a time, in all and from one
//! source; above a small number, a source must first show that it really is at its address. Sources where
//! a member is known have places that strangers cannot take. Whoever has proved a key is then either a peer
//! (`live.rs` judges it) or a newcomer with a ticket, who has one request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

/// Handshakes under way before strangers must show that they are at their address (which costs an
/// honest one a round trip).
const UNPROVEN: usize = 32;
/// Handshakes under way in all. More are refused.
const HALF_OPEN: usize = 512;
/// Of these, places for sources where a member is known.
const HALF_OPEN_KEPT: usize = 128;
/// Handshakes under way from one source. More are refused.
const HALF_OPEN_PER_SOURCE: usize = 32;
/// The same where a member is known: a whole fleet may be behind one address, with somebody who floods it.
const HALF_OPEN_PER_KNOWN: usize = 128;
/// Newcomers that are heard at a time. More are told to come again.
const JOINS: usize = 64;
/// And from one source.
const JOINS_PER_SOURCE: usize = 8;
/// Newcomers' requests from one source that may come at once …
const JOINS_AT_ONCE: f64 = 64.0;
/// … and how many more each second.
const JOINS_PER_SECOND: f64 = 4.0;
/// Sources that are remembered for that.
const SOURCES: usize = 4096;

/// What to do with somebody who knocks.
pub(crate) enum Verdict {
    /// Let it go on. The handshake counts until this is dropped.
    Enter(Entry),
    /// Let it show that it is at its address.
    Prove,
    /// No.
    Refuse,
}

/// Counts handshakes and newcomers.
#[derive(Clone, Default)]
pub(crate) struct Door(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    half_open: usize,
    per_source: BTreeMap<IpAddr, usize>,
    /// Where members are.
    known: BTreeSet<IpAddr>,
    /// Newcomers that are being heard.
    joining: usize,
    joining_per_source: BTreeMap<IpAddr, usize>,
    /// How many more may ask, as of when.
    joins: BTreeMap<IpAddr, (f64, Instant)>,
}

/// One handshake under way.
pub(crate) struct Entry {
    door: Door,
    source: IpAddr,
}

/// One newcomer that is being heard.
pub(crate) struct Hearing {
    door: Door,
    source: IpAddr,
}

impl Door {
    /// Judges somebody at `address`, who has `proven` to be there or not.
    pub(crate) fn knock(&self, address: IpAddr, proven: bool) -> Verdict {
        let source = source(address);
        let mut counts = self.0.lock().expect("never poisoned");
        if !proven && counts.half_open >= UNPROVEN {
            return Verdict::Prove;
        }
        let here = counts.per_source.get(&source).copied().unwrap_or(0);
        let (most, most_here) = match counts.known.contains(&source) {
            true => (HALF_OPEN, HALF_OPEN_PER_KNOWN),
            false => (HALF_OPEN - HALF_OPEN_KEPT, HALF_OPEN_PER_SOURCE),
        };
        if counts.half_open >= most || here >= most_here {
            return Verdict::Refuse;
        }
        counts.half_open += 1;
        counts.per_source.insert(source, here + 1);
        Verdict::Enter(Entry { door: self.clone(), source })
    }

    /// Members are at these addresses.
    pub(crate) fn know(&self, members: impl Iterator<Item = IpAddr>) {
        let known = members.map(source).collect();
        self.0.lock().expect("never poisoned").known = known;
    }

    /// Lets one more newcomer ask from `address` now, unless there are too many.
    pub(crate) fn hear(&self, address: IpAddr, now: Instant) -> Option<Hearing> {
        let source = source(address);
        let mut counts = self.0.lock().expect("never poisoned");
        let here = counts.joining_per_source.get(&source).copied().unwrap_or(0);
        if counts.joining >= JOINS || here >= JOINS_PER_SOURCE || !counts.may_join(source, now) {
            return None;
        }
        counts.joining += 1;
        counts.joining_per_source.insert(source, here + 1);
        Some(Hearing { door: self.clone(), source })
    }
}

impl Counts {
    /// Whether one more newcomer's request may come from `source` now.
    fn may_join(&mut self, source: IpAddr, now: Instant) -> bool {
        let counts = self;
        if counts.joins.len() >= SOURCES && !counts.joins.contains_key(&source) {
            // Whoever has been quiet for long enough is as good as new.
            let full = Duration::from_secs_f64(JOINS_AT_ONCE / JOINS_PER_SECOND);
            counts.joins.retain(|_, (_, last)| now.duration_since(*last) < full);
            if counts.joins.len() >= SOURCES {
                return false;
            }
        }
        let (left, last) = counts.joins.entry(source).or_insert((JOINS_AT_ONCE, now));
        let gained = now.duration_since(*last).as_secs_f64() * JOINS_PER_SECOND;
        *left = (*left + gained).min(JOINS_AT_ONCE);
        *last = now;
        let may = *left >= 1.0;
        if may {
            *left -= 1.0;
        }
        may
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut counts = self.door.0.lock().expect("never poisoned");
        counts.half_open -= 1;
        one_less(&mut counts.per_source, self.source);
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        let mut counts = self.door.0.lock().expect("never poisoned");
        counts.joining -= 1;
        one_less(&mut counts.joining_per_source, self.source);
    }
}

fn one_less(counts: &mut BTreeMap<IpAddr, usize>, source: IpAddr) {
    if let Some(here) = counts.get_mut(&source) {
        *here -= 1;
        if *here == 0 {
            counts.remove(&source);
        }
    }
}

/// What one owner has under its control: an IPv4 address, or an IPv6 site (/48), of which anybody gets one for the
/// asking.
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 80)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(door: &Door, address: &str) -> Option<Entry> {
        match door.knock(address.parse().unwrap(), true) {
            Verdict::Enter(entry) => Some(entry),
            Verdict::Prove | Verdict::Refuse => None,
        }
    }

    #[test]
    fn one_source_cannot_take_every_place() {
        let door = Door::default();
        let taken: Vec<Entry> = (0..1000).filter_map(|_| enter(&door, "10.0.0.1")).collect();
        assert_eq!(taken.len(), HALF_OPEN_PER_SOURCE);
        assert!(enter(&door, "10.0.0.2").is_some());
        drop(taken);
        assert!(enter(&door, "10.0.0.1").is_some());
        assert!(door.0.lock().unwrap().per_source.is_empty(), "nothing is remembered");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let door = Door::default();
        let taken: Vec<Entry> =
            (0..1000).filter_map(|n| enter(&door, &format!("2001:db8::{n:x}"))).collect();
        assert_eq!(taken.len(), HALF_OPEN_PER_SOURCE);
        assert!(enter(&door, "2001:db8:0:1::1").is_none(), "the same site");
        assert!(enter(&door, "2001:db8:1::1").is_some());
    }

    #[test]
    fn many_handshakes_must_first_prove_their_address() {
        let door = Door::default();
        let address = "10.0.0.9".parse().unwrap();
        let taken: Vec<Entry> = (0..UNPROVEN).filter_map(|_| enter(&door, "10.0.0.1")).collect();
        assert_eq!(HALF_OPEN_PER_SOURCE, UNPROVEN);
        assert_eq!(taken.len(), UNPROVEN);
        assert!(matches!(door.knock(address, false), Verdict::Prove));
        assert!(matches!(door.knock(address, true), Verdict::Enter(_)));
    }

    #[tokio::test]
    async fn newcomers_of_one_source_are_held_to_a_rate() {
        let door = Door::default();
        let (one, two) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let now = Instant::now();
        assert_eq!((0..1000).filter(|_| door.hear(one, now).is_some()).count(), 64);
        assert!(door.hear(two, now).is_some());
        assert!(door.hear(one, now + Duration::from_secs(1)).is_some());
    }

    #[tokio::test]
    async fn newcomers_of_one_source_leave_places_to_others() {
        let door = Door::default();
        let now = Instant::now();
        let hear = |address: &str| door.hear(address.parse().unwrap(), now);
        let first: Vec<Hearing> = (0..50).filter_map(|_| hear("10.0.0.1")).collect();
        assert_eq!(first.len(), JOINS_PER_SOURCE);
        let others = (2..100).flat_map(|n| std::iter::repeat_n(format!("10.0.0.{n}"), 8));
        let others: Vec<Hearing> = others.filter_map(|address| hear(&address)).collect();
        assert_eq!(first.len() + others.len(), JOINS);
        drop(first);
        assert!(hear("10.0.1.1").is_some());
        drop(others);
        let counts = door.0.lock().unwrap();
        assert!(counts.joining == 0 && counts.joining_per_source.is_empty());
    }

    #[test]
    fn strangers_cannot_take_the_places_of_members() {
        let door = Door::default();
        door.know(["10.9.9.9".parse().unwrap()].into_iter());
        let everywhere = (0..100).flat_map(|n| std::iter::repeat_n(format!("10.0.0.{n}"), 40));
        let taken: Vec<Entry> = everywhere.filter_map(|at| enter(&door, &at)).collect();
        assert_eq!(taken.len(), HALF_OPEN - HALF_OPEN_KEPT);
        assert!(enter(&door, "10.1.1.1").is_none());
        let members: Vec<Entry> = (0..200).filter_map(|_| enter(&door, "10.9.9.9")).collect();
        assert_eq!(members.len(), HALF_OPEN_KEPT);
    }
}
