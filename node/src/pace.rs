//! How long raft's tick is: long enough for the round trips that an election needs.
//!
//! The members agree on a tick ([`Pace`](crate::state::command::Pace)), which the leader sets from what it
//! measures. But where a wire has become so slow that nobody can be elected, there is no leader to set it. So
//! each seated node also has a floor of its own, from its own round trips.

use std::time::Duration;

/// The usual tick: on a LAN a dead leader is replaced within 300 ms.
const LAN_TICK_MS: u32 = 50;
/// The longest tick that is set.
pub const MAX_TICK_MS: u32 = 1000;
/// Looks in a row that must want a longer tick, and a shorter one: a wire that recovers may get worse again.
const LOOKS: (u32, u32) = (2, 20);

/// The tick for a round trip and a sync: a heartbeat is two ticks, an election four to seven. A beat and its
/// answer, with a retransmission between, must fit well into an election.
pub fn tick_for(trip: Duration, sync_us: u32) -> u32 {
    let sync = Duration::from_micros(u64::from(sync_us));
    let ms = u32::try_from((trip + sync).as_millis()).unwrap_or(MAX_TICK_MS);
    // Whatever a LAN can do is left at the usual tick; steps, so that noise changes nothing.
    [LAN_TICK_MS, 100, 200, 400, 700]
        .into_iter()
        .find(|tick| ms <= *tick * 7 / 10)
        .unwrap_or(MAX_TICK_MS)
}

/// The round trip within which a majority of `voters` answers one of them, if it has so many at all.
///
/// One voter far away does not count: it can follow, and must not make the others wait for a leader.
pub fn quorum_trip(mut trips: Vec<Duration>, voters: usize) -> Option<Duration> {
    trips.sort();
    (voters / 2).checked_sub(1).and_then(|others| trips.get(others)).copied()
}

/// The shortest tick with which this node can take part in an election.
#[derive(Debug)]
pub struct Floor {
    ms: u32,
    /// In how many looks in a row another one was wanted.
    looks: u32,
}

impl Default for Floor {
    fn default() -> Self {
        Self { ms: LAN_TICK_MS, looks: 0 }
    }
}

impl Floor {
    /// Takes note of a round trip. Nobody measured says nothing.
    pub fn look(&mut self, trip: Option<Duration>) {
        let wanted = trip.map_or(self.ms, |trip| tick_for(trip, 0));
        if wanted == self.ms {
            self.looks = 0;
            return;
        }
        self.looks += 1;
        if self.looks >= if wanted > self.ms { LOOKS.0 } else { LOOKS.1 } {
            *self = Self { ms: wanted, looks: 0 };
        }
    }

    /// The floor.
    pub fn tick(&self) -> Duration {
        Duration::from_millis(u64::from(self.ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_tick_grows_with_the_slowest_round_trip_and_stays_usual_on_a_lan() {
        let tick = |trip: u64, sync: u32| tick_for(ms(trip), sync);
        assert_eq!(tick(0, 300), 50);
        assert_eq!(tick(20, 10_000), 50);
        assert_eq!(tick(60, 1_000), 100);
        assert_eq!(tick(200, 1_000), 400);
        assert_eq!(tick(5_000, 0), MAX_TICK_MS);
    }

    #[test]
    fn a_majority_has_answered_when_enough_of_the_others_have() {
        assert_eq!(quorum_trip(vec![ms(400), ms(1)], 3), Some(ms(1)));
        assert_eq!(quorum_trip(vec![ms(9), ms(400), ms(1), ms(2)], 5), Some(ms(2)));
        assert_eq!(quorum_trip(vec![ms(9)], 5), None, "too few are connected");
        assert_eq!(quorum_trip(vec![], 1), None, "one voter waits for nobody");
    }

    #[test]
    fn the_floor_rises_soon_falls_late_and_ignores_one_slow_answer() {
        let mut floor = Floor::default();
        floor.look(Some(ms(400)));
        floor.look(Some(ms(1)));
        assert_eq!(floor.tick(), ms(50));
        floor.look(Some(ms(400)));
        floor.look(Some(ms(400)));
        assert_eq!(floor.tick(), ms(700));
        for _ in 0..19 {
            floor.look(Some(ms(1)));
        }
        floor.look(None);
        assert_eq!(floor.tick(), ms(700), "while nobody is connected, nothing is known");
        for _ in 0..20 {
            floor.look(Some(ms(1)));
        }
        assert_eq!(floor.tick(), ms(50));
    }
}
