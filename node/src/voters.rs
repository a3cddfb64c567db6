//! The leader's eye on the voters: what it remembers from one look to the next, and what it asks
//! [`autopilot::decide`] to make of it.
//!
//! All times here are ticks of the driver, so a wall clock that jumps moves nobody, and a leader
//! that was paused has not seen anyone be silent in the meantime.

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
    config: Config,
    last_change: Option<Time>,
    quorum_since: Option<Time>,
    /// The last hand-over that was asked for.
    transfer: Option<(RaftId, Time)>,
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
            config: Config::default(),
            last_change: None,
            quorum_since: None,
            transfer: None,
            healthy_since: BTreeMap::new(),
        }
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
        if self.term != status.term {
            *self = Self::new(self.waits, self.tick, self.planted);
            self.term = status.term;
            self.config = driver.replica().config().clone();
        }
        let now = self.time(status.ticks);
        let progress: BTreeMap<RaftId, Progress> =
            driver.progress().into_iter().map(|one| (one.seat, one)).collect();
        self.remember(now, status.last_index, driver.replica().config(), &progress);
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
                contact: one.and_then(|one| one.contact).map(|ticks| self.time(ticks)),
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
        changes.into_iter().filter_map(|change| self.event(now, change)).collect()
    }

    /// What to tell the driver. raft takes no proposals while it hands over, so a successor that
    /// does not succeed is not asked again at every look.
    fn event(&mut self, now: Time, change: Change) -> Option<Event> {
        match change {
            Change::Config(change) => Some(Event::Change(change)),
            Change::Transfer(to) => {
                let asked = self
                    .transfer
                    .is_some_and(|(last, at)| last == to && now.since(at) < self.waits.quorum);
                self.transfer = if asked { self.transfer } else { Some((to, now)) };
                (!asked).then_some(Event::Transfer(to))
            }
        }
    }

    fn remember(
        &mut self,
        now: Time,
        last_index: u64,
        config: &Config,
        progress: &BTreeMap<RaftId, Progress>,
    ) {
        if self.config != *config {
            self.config = config.clone();
            self.last_change = Some(now);
        }
        let is_healthy = |one: &Progress| {
            let heard = one.contact.is_some_and(|at| now.since(self.time(at)) <= self.waits.recent);
            // A new leader knows of nobody's log yet, and nothing is not almost everything.
            heard && one.matched > 0 && last_index.saturating_sub(one.matched) <= self.waits.lag
        };
        let healthy: BTreeSet<RaftId> =
            progress.values().filter(|one| is_healthy(one)).map(|one| one.seat).collect();
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

    fn time(&self, ticks: u64) -> Time {
        Time(0).after(self.tick * u32::try_from(ticks).unwrap_or(u32::MAX))
    }
}
