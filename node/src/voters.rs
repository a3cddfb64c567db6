//! The leader's eye on the voters: what it remembers from one look to the next, and what it asks
//! [`autopilot::decide`] to make of it.
//!
//! All times here are made of the driver's ticks, so a wall clock that jumps moves nobody, and a
//! leader that was paused has not seen anyone be silent in the meantime. A tick's length may change;
//! what was measured before keeps the length that it had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::autopilot::{self, Candidate, Change, Rule, View, Waits};
use mesh_consensus::core::Role;
use mesh_consensus::driver::{Driver, Event, Progress};
use mesh_consensus::id::{NodeId, RaftId};
use mesh_consensus::log::{Config, Log};
use mesh_consensus::machine::StateMachine;
use mesh_consensus::planted::Planted;
use mesh_consensus::time::Time;

use crate::state::State;

/// What a leader remembers about the others. Worth nothing in another term.
#[derive(Debug)]
pub struct Voters {
    waits: Waits,
    tick: Duration,
    planted: Planted,
    term: u64,
    /// The driver's ticks at the last look, and how long they took all together.
    ticks: u64,
    now: Time,
    config: Config,
    last_change: Option<Time>,
    quorum_since: Option<Time>,
    /// The last hand-over that was asked for.
    transfer: Option<(RaftId, Time)>,
    /// When each seat was last heard: the driver's tick, and the moment that it was.
    heard: BTreeMap<RaftId, (u64, Time)>,
    /// Since when each seat has been heard and caught up, without a break.
    healthy_since: BTreeMap<RaftId, Time>,
}

impl Voters {
    /// Knows nothing yet. `tick` is the length of the driver's tick.
    pub fn new(waits: Waits, tick: Duration, planted: Planted) -> Self {
        Self {
            waits,
            tick,
            planted,
            term: 0,
            ticks: 0,
            now: Time(0),
            config: Config::default(),
            last_change: None,
            quorum_since: None,
            transfer: None,
            heard: BTreeMap::new(),
            healthy_since: BTreeMap::new(),
        }
    }

    /// The driver's ticks are this long from the last look on.
    pub fn set_tick(&mut self, tick: Duration) {
        self.tick = tick;
    }

    /// Looks at the group, and says what the driver should be told. Nothing unless it leads.
    ///
    /// `is_alive` is gossip's opinion: advice about whom to try, never a reason to evict.
    pub fn look<L: Log>(
        &mut self,
        driver: &Driver<L, State>,
        is_alive: impl Fn(NodeId) -> bool,
    ) -> Vec<Event> {
        let status = driver.status();
        if status.role != Role::Leader {
            self.term = 0;
            return Vec::new();
        }
        let progress: BTreeMap<RaftId, Progress> =
            driver.progress().into_iter().map(|one| (one.seat, one)).collect();
        let config = driver.replica().config();
        self.begin(status.term, status.ticks, config);
        self.remember(status.last_index, config, &progress);
        let now = self.now;
        let state = driver.replica().machine();
        let candidate = |(node, member): (&NodeId, &crate::state::member::Member)| {
            let seat = member.seat?;
            let one = progress.get(&seat);
            let report = &member.report;
            let fsync = report.fsync_p99_us.map(|us| Duration::from_micros(u64::from(us)));
            Some(Candidate {
                seat,
                party: member.party,
                domain: report.domain.as_ref().map_or(String::new(), ToString::to_string),
                leaving: member.leaving,
                eligible: autopilot::eligible(report.votes, fsync, report.direct),
                contact: self.heard.get(&seat).map(|(_, at)| *at),
                matched: one.map_or(0, |one| one.matched),
                alive: is_alive(*node),
                healthy_since: self.healthy_since.get(&seat).copied(),
            })
        };
        let view = View {
            now,
            me: driver.log().identity().raft_id,
            config: self.config.clone(),
            change_pending: status.change_pending,
            last_change: self.last_change,
            quorum_since: self.quorum_since,
            last_index: status.last_index,
            members: state.members().iter().filter_map(candidate).collect(),
            rule: Rule(&|next| state.allows(next)),
            waits: self.waits,
            planted: self.planted,
        };
        let changes = autopilot::decide(&view);
        changes.into_iter().filter_map(|change| self.event(change)).collect()
    }

    /// What to tell the driver. raft takes no proposals while it hands over, so a successor that
    /// does not succeed is not asked again at every look.
    fn event(&mut self, change: Change) -> Option<Event> {
        match change {
            Change::Config(change) => Some(Event::Change(change)),
            Change::Transfer(to) => {
                let now = self.now;
                let asked = self
                    .transfer
                    .is_some_and(|(last, at)| last == to && now.since(at) < self.waits.quorum);
                self.transfer = if asked { self.transfer } else { Some((to, now)) };
                (!asked).then_some(Event::Transfer(to))
            }
        }
    }

    /// Begins a look at tick `ticks` of the driver. In another term nothing is remembered.
    fn begin(&mut self, term: u64, ticks: u64, config: &Config) {
        if self.term != term {
            *self = Self::new(self.waits, self.tick, self.planted);
            self.term = term;
            self.config = config.clone();
        }
        let passed = ticks.saturating_sub(self.ticks);
        self.now = self.now.after(self.length_of(passed));
        self.ticks = ticks;
    }

    fn remember(
        &mut self,
        last_index: u64,
        config: &Config,
        progress: &BTreeMap<RaftId, Progress>,
    ) {
        let now = self.now;
        if self.config != *config {
            self.config = config.clone();
            self.last_change = Some(now);
        }
        self.hear(progress);
        let is_healthy = |one: &&Progress| {
            let heard = self.heard.get(&one.seat);
            let recent = heard.is_some_and(|(_, at)| now.since(*at) <= self.waits.recent);
            // A new leader knows of nobody's log yet, and nothing is not almost everything.
            recent && one.matched > 0 && last_index.saturating_sub(one.matched) <= self.waits.lag
        };
        let healthy: BTreeSet<RaftId> =
            progress.values().filter(is_healthy).map(|one| one.seat).collect();
        self.healthy_since.retain(|seat, _| healthy.contains(seat));
        for seat in &healthy {
            self.healthy_since.entry(*seat).or_insert(now);
        }
        let voters = &config.voters;
        if 2 * voters.intersection(&healthy).count() > voters.len() {
            self.quorum_since.get_or_insert(now);
        } else {
            self.quorum_since = None;
        }
    }

    /// Notes the moment of each contact when it is first seen, while the tick has still the length
    /// that it had then.
    fn hear(&mut self, progress: &BTreeMap<RaftId, Progress>) {
        self.heard.retain(|seat, _| progress.get(seat).is_some_and(|one| one.contact.is_some()));
        for one in progress.values() {
            let Some(tick) = one.contact else { continue };
            if self.heard.get(&one.seat).is_none_or(|(known, _)| *known != tick) {
                let ago = self.length_of(self.ticks.saturating_sub(tick));
                let at = Time(0).after(self.now.since(Time(0)).saturating_sub(ago));
                self.heard.insert(one.seat, (tick, at));
            }
        }
    }

    fn length_of(&self, ticks: u64) -> Duration {
        self.tick.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(50);
    const SECOND: u64 = 20;

    fn seats(ids: &[u64]) -> BTreeSet<RaftId> {
        ids.iter().copied().map(RaftId).collect()
    }

    fn voters(ids: &[u64]) -> Config {
        Config { voters: seats(ids), ..Config::default() }
    }

    /// A leader at seat 1 of three voters, in term 5, with a log of 100 entries.
    struct Leader {
        memory: Voters,
        term: u64,
        ticks: u64,
        config: Config,
        progress: BTreeMap<RaftId, Progress>,
    }

    impl Leader {
        fn new() -> Self {
            let mut leader = Self {
                memory: Voters::new(Waits::default(), TICK, Planted::default()),
                term: 5,
                ticks: 1000,
                config: voters(&[1, 2, 3]),
                progress: BTreeMap::new(),
            };
            for id in 1..=3 {
                leader.match_at(id, 100);
            }
            leader
        }

        fn match_at(&mut self, id: u64, matched: u64) {
            let one = Progress { seat: RaftId(id), matched, contact: Some(self.ticks) };
            self.progress.insert(RaftId(id), one);
        }

        /// So many ticks pass one by one, in which these seats are heard.
        fn pass(&mut self, ticks: u64, heard: &[u64]) {
            for _ in 0..ticks {
                self.ticks += 1;
                for id in heard {
                    self.progress.get_mut(&RaftId(*id)).unwrap().contact = Some(self.ticks);
                }
                self.look();
            }
        }

        fn look(&mut self) {
            self.memory.begin(self.term, self.ticks, &self.config);
            self.memory.remember(100, &self.config, &self.progress);
        }

        fn healthy_for(&self, id: u64) -> Option<Duration> {
            let since = self.memory.healthy_since.get(&RaftId(id))?;
            Some(self.memory.now.since(*since))
        }

        fn silent_for(&self, id: u64) -> Duration {
            self.memory.now.since(self.memory.heard[&RaftId(id)].1)
        }

        fn quorum_for(&self) -> Option<Duration> {
            self.memory.quorum_since.map(|since| self.memory.now.since(since))
        }
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_leader_remembers_since_when_each_seat_has_been_healthy() {
        let mut leader = Leader::new();
        leader.look();
        leader.pass(10 * SECOND, &[1, 2, 3]);
        assert_eq!(leader.healthy_for(3), Some(secs(10)));
        // Two seconds of silence are not too many; a tick more is.
        leader.pass(2 * SECOND, &[1, 2]);
        assert_eq!(leader.healthy_for(3), Some(secs(12)));
        leader.pass(1, &[1, 2]);
        assert_eq!(leader.healthy_for(3), None);
        assert_eq!(leader.silent_for(3), secs(2) + TICK);
        // Once it is back, its time begins anew.
        leader.pass(SECOND, &[1, 2, 3]);
        assert_eq!(leader.healthy_for(3), Some(secs(1) - TICK));
        assert_eq!(leader.healthy_for(2), Some(secs(13) + TICK));
    }

    #[test]
    fn who_lags_or_has_shown_nothing_is_not_healthy() {
        let mut leader = Leader::new();
        leader.memory.waits.lag = 10;
        leader.match_at(2, 89);
        leader.match_at(3, 0);
        leader.look();
        assert_eq!((leader.healthy_for(2), leader.healthy_for(3)), (None, None));
        leader.match_at(2, 90);
        leader.look();
        assert_eq!(leader.healthy_for(2), Some(secs(0)));
    }

    #[test]
    fn a_leader_remembers_since_when_it_has_a_quorum() {
        let mut leader = Leader::new();
        leader.look();
        leader.pass(5 * SECOND, &[1, 2]);
        assert_eq!(leader.quorum_for(), Some(secs(5)));
        leader.pass(3 * SECOND, &[1]);
        assert_eq!(leader.quorum_for(), None);
    }

    #[test]
    fn a_leader_remembers_when_the_configuration_last_changed() {
        let mut leader = Leader::new();
        leader.look();
        assert_eq!(leader.memory.last_change, None);
        leader.pass(SECOND, &[1, 2, 3]);
        leader.config = voters(&[1, 2]);
        leader.pass(1, &[1, 2, 3]);
        let changed = leader.memory.now;
        leader.pass(SECOND, &[1, 2, 3]);
        assert_eq!(leader.memory.last_change, Some(changed));
        assert_eq!(leader.memory.now.since(changed), secs(1));
    }

    #[test]
    fn in_a_new_term_everything_is_forgotten_but_the_tick() {
        let mut leader = Leader::new();
        leader.look();
        leader.pass(10 * SECOND, &[1, 2, 3]);
        leader.config = voters(&[1, 2]);
        leader.pass(1, &[1, 2, 3]);
        assert!(leader.memory.event(Change::Transfer(RaftId(2))).is_some());
        leader.memory.set_tick(2 * TICK);
        leader.term += 1;
        leader.pass(1, &[1, 2, 3]);
        let memory = &leader.memory;
        assert_eq!((memory.last_change, memory.transfer), (None, None));
        assert_eq!((leader.healthy_for(2), leader.quorum_for()), (Some(secs(0)), Some(secs(0))));
        assert_eq!(memory.tick, 2 * TICK);
    }

    #[test]
    fn a_pause_is_no_silence() {
        let mut leader = Leader::new();
        leader.look();
        leader.pass(SECOND, &[1, 2, 3]);
        // However long the machine slept, the driver has seen one tick.
        leader.pass(1, &[1]);
        assert_eq!(leader.silent_for(2), TICK);
        assert!(leader.healthy_for(2).is_some());
    }

    #[test]
    fn a_successor_that_does_not_succeed_is_not_asked_at_every_look() {
        let mut leader = Leader::new();
        leader.look();
        let ask = |leader: &mut Leader, to| {
            leader.pass(1, &[1, 2, 3]);
            leader.memory.event(Change::Transfer(RaftId(to))).is_some()
        };
        assert!(ask(&mut leader, 2));
        assert!(!ask(&mut leader, 2));
        // Another may be asked at once, and so may the first, as it is not the last any more.
        assert!(ask(&mut leader, 3));
        assert!(ask(&mut leader, 2));
        leader.pass(5 * SECOND - 2, &[1, 2, 3]);
        assert!(!ask(&mut leader, 2));
        assert!(ask(&mut leader, 2));
    }

    #[test]
    fn what_was_measured_before_the_tick_changed_keeps_its_length() {
        let mut leader = Leader::new();
        leader.look();
        leader.pass(10 * SECOND, &[1, 2, 3]);
        leader.pass(SECOND, &[1, 2]);
        leader.memory.set_tick(4 * TICK);
        leader.look();
        // Nothing has happened: nobody has been silent, or healthy, for longer.
        assert_eq!(leader.silent_for(3), secs(1));
        assert_eq!(leader.healthy_for(3), Some(secs(11)));
        leader.pass(SECOND / 4, &[1, 2]);
        assert_eq!(leader.silent_for(3), secs(2));
        assert_eq!(leader.healthy_for(3), Some(secs(12)));
        leader.memory.set_tick(TICK);
        leader.pass(SECOND, &[1, 2]);
        assert_eq!(leader.silent_for(3), secs(3));
        assert_eq!(leader.healthy_for(2), Some(secs(13)));
    }
}
