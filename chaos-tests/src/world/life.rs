//! A host's life: it starts, takes turns, stops, is wiped, is admitted again and leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mesh_consensus::admission::Admission;
use mesh_consensus::admit::Refused;
use mesh_consensus::core::Role;
use mesh_consensus::driver::{Driver, Event, Status, Stop, Turn};
use mesh_consensus::id::{NodeId, RaftId};
use mesh_consensus::log::{Identity, Log};
use mesh_consensus::machine::{Halt, StateMachine};
use mesh_consensus::message::{Body, Message};
use mesh_consensus::planted::Bug;
use mesh_node::state::State;
use mesh_storage::log::OpenError;

use super::{Happening, OLD_FRAMES, World, panic_text};
use crate::host::{Crash, Host, Power, Sent, Weakness};
use crate::invariants::{Broken, Seen, is_quorum};

impl World {
    pub(super) fn on_run(&mut self, index: usize) -> Result<(), Broken> {
        self.hosts[index].is_scheduled = false;
        if !self.hosts[index].is_awake(self.now) || self.hosts[index].driver.is_none() {
            return Ok(());
        }
        self.turn(index)
    }

    pub(super) fn turn(&mut self, index: usize) -> Result<(), Broken> {
        let wall = self.wall(index);
        let host = &mut self.hosts[index];
        let Some(mut driver) = host.driver.take() else { return Ok(()) };
        let events = std::mem::take(&mut host.inbox);
        let was_asked = events.iter().any(|event| {
            matches!(event, Event::Received { message: Message { body: Body::TimeoutNow, .. }, .. })
        });
        let before = driver.status();
        if host.crash_at.is_some_and(|weakness| is_weak(weakness, &before, &events)) {
            host.crash_at = None;
            host.crash_after = Some(Crash::DiskOps(self.rng.u64(1..16)));
        }
        let crash = host.crash_after.take();
        let mut left = None;
        match crash {
            Some(Crash::Sends(sends)) => left = Some(sends),
            Some(Crash::DiskOps(ops)) => host.disk.crash_after(ops),
            None => {}
        }
        let disk = host.disk.clone();
        let mut sent = Sent { messages: Vec::new(), left, disk: &disk, is_dead: false };
        let result = catch_unwind(AssertUnwindSafe(|| driver.turn(wall, events, &mut sent)));
        let Sent { messages, is_dead, .. } = sent;
        self.turns += 1;
        let result = match result {
            Ok(result) => result,
            // A panic with the power already gone is a dying process, whatever it says.
            Err(_) if is_dead || disk.has_crashed() => {
                disk.crash();
                drop(driver);
                self.route(index, messages);
                self.power_cut(index);
                return Ok(());
            }
            Err(panic) => {
                return Err(Broken { promise: "no panic", how: panic_text(&*panic) });
            }
        };
        match result {
            Ok(turn) => {
                let after = driver.status();
                let host = &self.hosts[index];
                let seat = host.identity.map_or(RaftId(0), |identity| identity.raft_id);
                let starts_before = (before.ticks > 0).then_some(&before);
                let seen = Seen {
                    host: index,
                    node: host.id,
                    seat,
                    before: starts_before,
                    after: &after,
                    was_asked,
                    turn: &turn,
                    log: driver.log(),
                    replica: driver.replica(),
                };
                if before.role != after.role || before.term != after.term {
                    self.trace.note(self.now, || {
                        format!("host {index} is {:?} in term {}", after.role, after.term)
                    });
                }
                let observed = self.invariants.observe(&seen);
                self.trace.turn(self.now, index, &turn, &messages);
                let has_news = driver.has_news();
                self.hosts[index].driver = Some(driver);
                observed?;
                self.route(index, messages);
                self.after_turn(index, turn)?;
                if has_news {
                    self.hosts[index].take(Event::Tell);
                    self.schedule(index);
                }
                if crash.is_some() || is_dead {
                    self.power_cut(index);
                }
                Ok(())
            }
            Err(stop) => {
                let was_cut = is_dead || disk.has_crashed();
                disk.crash();
                drop(driver);
                self.route(index, messages);
                self.on_stop(index, &stop, was_cut)
            }
        }
    }

    /// A node stopped by itself. Was it right to?
    pub(super) fn on_stop(
        &mut self,
        index: usize,
        stop: &Stop,
        was_cut: bool,
    ) -> Result<(), Broken> {
        let host = &self.hosts[index];
        let expected = match stop {
            _ if was_cut => true,
            Stop::Log(_) => host.disk_fault || host.rotten,
            Stop::Halt(Halt::TooOld { .. }) => host.supports < self.plan.top_level(),
            Stop::Halt(Halt::Damaged(_) | Halt::Newer { .. }) => host.rotten,
        };
        if !expected {
            return Err(Broken { promise: "no node stops without cause", how: chain_text(stop) });
        }
        self.trace.note(self.now, || format!("host {index} stopped: {stop}"));
        self.power_cut(index);
        Ok(())
    }

    pub(crate) fn power_cut(&mut self, index: usize) {
        let now = self.now;
        self.trace.note(now, || format!("host {index} loses power"));
        self.hosts[index].lose_power();
        if self.hosts[index].power == Power::Off {
            let pause = if self.healed { 100_000 } else { self.rng.u64(20_000..2_000_000) };
            self.later(pause, Happening::Start(index));
        }
    }

    pub(super) fn start(&mut self, index: usize) -> Result<(), Broken> {
        if self.hosts[index].power != Power::Off {
            return Ok(());
        }
        if self.hosts[index].supports < self.plan.top_level() && self.healed {
            // The operator reads the message and installs the version that it names.
            self.hosts[index].supports = self.plan.top_level();
        }
        let host = &self.hosts[index];
        let opened = catch_unwind(AssertUnwindSafe(|| host.open(&self.common)));
        let log = match opened {
            Ok(Ok(log)) => log,
            Ok(Err(error)) => return self.on_refusal(index, &error),
            Err(panic) => {
                return Err(Broken { promise: "no panic", how: panic_text(&*panic) });
            }
        };
        let seat = log.identity().raft_id;
        if !self.hosts[index].rotten {
            self.invariants.opened(index, seat, &log)?;
        }
        let host = &self.hosts[index];
        let (blank, settings) = (State::blank(host.supports), host.settings(&self.common));
        let driver = catch_unwind(AssertUnwindSafe(|| Driver::open(log, blank, settings)));
        match driver {
            Ok(Ok(driver)) => {
                let now = self.now;
                self.trace.note(now, || format!("host {index} starts at seat {seat}"));
                self.hosts[index].started(driver, &self.common);
                self.schedule(index);
                Ok(())
            }
            Ok(Err(stop)) => self.on_stop(index, &stop, false),
            Err(panic) => Err(Broken { promise: "no panic", how: panic_text(&*panic) }),
        }
    }

    /// A log was refused at open: right only if its disk was made to rot.
    pub(super) fn on_refusal(&mut self, index: usize, error: &OpenError) -> Result<(), Broken> {
        if !self.hosts[index].rotten {
            let how = format!("host {index}: {}", chain_text(error));
            return Err(Broken { promise: "what was written can be opened", how });
        }
        self.trace.note(self.now, || format!("host {index} refuses its log: {error}"));
        self.wipe(index);
        Ok(())
    }

    /// The data directory is gone. The node keeps its key and asks for a new seat.
    pub(crate) fn wipe(&mut self, index: usize) {
        self.trace.note(self.now, || format!("host {index} is wiped"));
        self.hosts[index].lose_power();
        if self.options.bug == Some(Bug::ReuseRaftId) {
            if let Some(identity) = self.hosts[index].identity {
                let introduced = self.roster();
                self.hosts[index].create(identity, None, &self.common);
                self.hosts[index].introduced = introduced;
                self.later(100_000, Happening::Start(index));
            }
            return;
        }
        self.hosts[index].disk.wipe();
        self.hosts[index].power = Power::Blank;
        self.hosts[index].identity = None;
        self.begin_rejoin(index);
    }

    /// Everybody's seat, as the most advanced running host knows them.
    pub(super) fn roster(&self) -> Vec<(NodeId, RaftId)> {
        let Some(state) = self.newest() else { return Vec::new() };
        let members = state.members().iter();
        members.filter_map(|(node, member)| Some((*node, member.seat?))).collect()
    }

    /// A newcomer, or one that was wiped, has a seat: it makes its directory and starts.
    pub(crate) fn admitted(&mut self, index: usize, seat: RaftId, by: usize) {
        if self.hosts[index].power != Power::Blank {
            return;
        }
        let sponsor = &self.hosts[by];
        let Some(driver) = &sponsor.driver else { return };
        let members = driver.replica().machine().members().iter();
        let introduced: Vec<_> =
            members.filter_map(|(node, member)| Some((*node, member.seat?))).collect();
        let admission = Admission::sign(&sponsor.key, self.mesh, 0, self.hosts[index].id, seat);
        let mut chain = vec![admission];
        chain.extend(sponsor.chain.iter().cloned());
        let identity =
            Identity { mesh: self.mesh, epoch: 0, node: self.hosts[index].id, raft_id: seat };
        let now = self.now;
        self.trace.note(now, || format!("host {index} is admitted to seat {seat}"));
        let host = &mut self.hosts[index];
        host.create(identity, None, &self.common);
        host.introduced = introduced;
        host.chain = chain;
        self.later(1000, Happening::Start(index));
        self.begin_report(index);
    }

    /// Puts messages on the wire.
    pub(super) fn route(&mut self, from: usize, messages: Vec<(NodeId, Message)>) {
        let id = self.hosts[from].id;
        for (node, message) in messages {
            self.invariants.spoke(from, &message);
            let Some(to) = self.hosts.iter().position(|host| host.id == node) else { continue };
            if self.rng.u32(0..1000) < 10 && self.plan.old_frames {
                if self.old_frames.len() >= OLD_FRAMES {
                    self.old_frames.swap_remove(0);
                }
                self.old_frames.push((to, id, message.clone()));
            }
            if self.cuts.contains_key(&(from, to)) || self.rng.u32(0..1000) < self.loss {
                continue;
            }
            if self.rng.u32(0..1000) < self.duplicates {
                let delay = self.rng.u64(200..200_000);
                let message = Box::new(message.clone());
                self.later(delay, Happening::Deliver { to, from: id, message });
            }
            let delay = self.rng.u64(200..self.delay);
            let message = Box::new(message);
            self.later(delay, Happening::Deliver { to, from: id, message });
        }
    }

    pub(super) fn after_turn(&mut self, index: usize, turn: Turn) -> Result<(), Broken> {
        if let Some(halt) = turn.too_old {
            return self.on_stop(index, &Stop::Halt(halt), false);
        }
        let lost_data = turn.refused.iter().any(|(_, refused)| *refused == Refused::LostData);
        if lost_data && !self.hosts[index].rotten {
            let how = format!("host {index} lacks entries that it has acknowledged");
            return Err(Broken { promise: "acknowledged means it survives", how });
        }
        if lost_data {
            // Rot took its last write and left the rest in order. It has noticed now.
            self.wipe(index);
            return Ok(());
        }
        for answer in turn.answers {
            self.on_answer(index, &answer);
        }
        for token in turn.reads {
            self.on_read(index, token);
        }
        for token in turn.lost_reads {
            self.on_lost_read(token);
        }
        self.see_off();
        Ok(())
    }

    /// A removed node may go once a majority of the voters that remain knows that it was removed.
    /// Until then they may need its vote: raft acts on a change when it is applied, not before.
    pub(super) fn see_off(&mut self) {
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index];
            let Some(driver) = host.driver.as_ref().filter(|_| host.power == Power::On) else {
                continue;
            };
            if !driver.replica().machine().is_removed(host.id) {
                continue;
            }
            let config = driver.replica().config();
            let knows = |other: &&Host| {
                other.driver.as_ref().is_some_and(|d| d.replica().machine().is_removed(host.id))
            };
            let seats = (self.hosts.iter().filter(knows))
                .filter_map(|other| other.identity.map(|identity| identity.raft_id))
                .collect();
            if !config.is_joint() && is_quorum(config, &seats) {
                let now = self.now;
                self.trace.note(now, || format!("host {index} has left"));
                self.hosts[index].lose_power();
                self.hosts[index].power = Power::Gone;
            }
        }
    }
}

/// Whether the coming turn is such a moment.
fn is_weak(weakness: Weakness, before: &Status, events: &[Event]) -> bool {
    let (elapsed, patience) = before.patience;
    match weakness {
        Weakness::Election => before.role != Role::Leader && elapsed + 1 >= patience,
        Weakness::CatchUp => events.iter().any(|event| match event {
            Event::Received {
                message: Message { body: Body::Append { commit, entries, .. }, .. },
                ..
            } => entries.first().is_some_and(|entry| entry.index <= *commit),
            _ => false,
        }),
    }
}

fn chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
