//! How each fault is done to a world.

use mesh_consensus::core::Role;
use mesh_consensus::driver::Event;
use mesh_consensus::id::{MeshId, NodeId, RaftId};
use mesh_consensus::log::{Entry, Payload};
use mesh_consensus::machine::StateMachine;
use mesh_consensus::message::{Body, Message};
use mesh_consensus::planted::Bug;

use super::{Fault, Story};
use crate::host::{Crash, Power, Weakness};
use crate::world::{Happening, World};

impl World {
    pub(crate) fn on_fault(&mut self) {
        if self.healed {
            return;
        }
        self.faults += 1;
        if self.plan.story == Story::Sleeper {
            self.sleeper_act();
        }
        let total: u32 = self.plan.weights.iter().map(|(_, weight)| weight).sum();
        let mut draw = self.rng.u32(0..total);
        for index in 0..self.plan.weights.len() {
            let (fault, weight) = self.plan.weights[index];
            if draw < weight {
                self.strike(fault);
                break;
            }
            draw -= weight;
        }
        let pause = self.rng.u64(self.plan.pause / 4..2 * self.plan.pause);
        self.later(pause, Happening::Fault);
    }

    fn strike(&mut self, fault: Fault) {
        let running: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].power == Power::On).collect();
        if running.is_empty() {
            return;
        }
        let host = running[self.rng.usize(0..running.len())];
        match fault {
            Fault::Crash => self.arm_crash(host),
            Fault::CrashAgain => {
                self.power_cut(host);
                let weakness = [Weakness::Election, Weakness::CatchUp][self.rng.usize(0..2)];
                self.hosts[host].crash_at = Some(weakness);
            }
            Fault::Blackout => running.iter().for_each(|host| self.power_cut(*host)),
            Fault::Pause => self.pause(host),
            Fault::Split => self.split(None),
            Fault::Bridge => self.split(Some(host)),
            Fault::OneWay => {
                let other = self.rng.usize(0..self.hosts.len());
                let fault = self.faults;
                self.cuts.insert((host, other), fault);
                self.uncut_later();
            }
            Fault::Storm => {
                self.loss = self.rng.u32(50..300);
                self.delay = self.rng.u64(20_000..300_000);
                let pause = self.rng.u64(200_000..1_500_000);
                self.later(pause, Happening::Calm);
            }
            Fault::Clock => {
                self.hosts[host].rate = self.rng.u64(500..=2000);
                self.hosts[host].skew = self.rng.i64(-3_600_000..3_600_000);
            }
            Fault::SyncError => {
                self.hosts[host].disk.fail_next_sync();
                self.hosts[host].disk_fault = true;
                // Believing a retried sync shows only once the power fails, too.
                if self.options.bug == Some(Bug::RetrySync) || self.rng.bool() {
                    self.arm_crash(host);
                }
            }
            Fault::Full => {
                self.hosts[host].disk.set_full(true);
                self.hosts[host].disk_fault = true;
            }
            Fault::Rot => self.rot(host),
            Fault::Wipe => {
                if self.can_lose(host) {
                    self.wipe(host);
                }
            }
            Fault::Join => {
                let spare = (0..self.hosts.len()).find(|host| {
                    self.hosts[*host].power == Power::Blank
                        && self.hosts[*host].starts == 0
                        && !self.is_coming(*host)
                });
                if let Some(spare) = spare {
                    self.begin_join(spare);
                }
            }
            Fault::Leave => self.leave(host),
            Fault::LeaderLeaves => {
                if let Some(leader) = self.leader() {
                    self.leave(leader);
                }
            }
            Fault::Transfer => self.transfer(),
            Fault::OldFrame => self.old_frame(),
            Fault::Forgery => self.forge(host),
            Fault::Report => self.begin_report(host),
            Fault::Raise => self.begin_raise(self.plan.supports),
            Fault::Version => {
                self.hosts[host].supports = self.rng.u16(self.plan.level..=self.plan.supports);
                self.power_cut(host);
            }
        }
    }

    fn arm_crash(&mut self, host: usize) {
        self.hosts[host].crash_after = Some(match self.rng.bool() {
            true => Crash::Sends(self.rng.u32(0..5)),
            false => Crash::DiskOps(self.rng.u64(1..24)),
        });
    }

    fn pause(&mut self, host: usize) {
        let pause = self.rng.u64(50_000..2_500_000);
        self.hosts[host].paused_until = self.now + pause;
        self.later(pause, Happening::Wake(host));
    }

    fn split(&mut self, bridge: Option<usize>) {
        let left: Vec<bool> = self.hosts.iter().map(|_| self.rng.bool()).collect();
        let fault = self.faults;
        for a in 0..left.len() {
            for b in 0..left.len() {
                if left[a] != left[b] && bridge != Some(a) && bridge != Some(b) {
                    self.cuts.insert((a, b), fault);
                }
            }
        }
        self.uncut_later();
    }

    fn uncut_later(&mut self) {
        let pause = self.rng.u64(100_000..2_500_000);
        let fault = self.faults;
        self.later(pause, Happening::Uncut(fault));
    }

    /// Whether the data of `host` may be destroyed: everyone else in the configuration must still
    /// have theirs, and no change may be under way.
    fn can_lose(&self, host: usize) -> bool {
        let running = self.hosts.iter().filter_map(|host| host.driver.as_ref());
        let Some(newest) = running.max_by_key(|driver| driver.replica().index()) else {
            return false;
        };
        let config = newest.replica().config();
        let holds = |seat: &RaftId| {
            self.hosts.iter().any(|other| {
                other.index != host
                    && !other.rotten
                    && matches!(other.power, Power::On | Power::Off)
                    && other.identity.is_some_and(|identity| identity.raft_id == *seat)
            })
        };
        let mine = self.hosts[host].identity.map(|identity| identity.raft_id);
        // Nobody may know of a change that is not settled, or have one in flight.
        let settled = self.hosts.iter().all(|host| match &host.driver {
            Some(driver) => {
                let status = driver.status();
                driver.replica().index() < newest.replica().index()
                    || (status.last_index == driver.replica().index() && !status.change_pending)
            }
            None => host.power != Power::Off,
        });
        let others = || config.voters.iter().filter(|seat| Some(**seat) != mine);
        settled
            && !config.is_joint()
            && config.voters.len() >= 3
            && others().all(holds)
            && newest.replica().machine().is_member(self.hosts[host].id)
    }

    fn rot(&mut self, host: usize) {
        if self.can_lose(host) {
            self.hosts[host].lose_power();
            let mut rng = self.rng.fork();
            self.hosts[host].disk.rot(&mut rng);
            self.hosts[host].rotten = true;
            self.trace.note(self.now, || format!("the disk of host {host} rots"));
            self.later(200_000, Happening::Start(host));
        }
    }

    fn leave(&mut self, host: usize) {
        let members = self
            .newest()
            .map_or(0, |state| state.members().values().filter(|member| !member.leaving).count());
        // The mesh should not end with the story.
        if members > 1 {
            self.begin_leave(host);
        }
    }

    fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| {
            host.driver.as_ref().is_some_and(|driver| driver.status().role == Role::Leader)
        })
    }

    fn transfer(&mut self) {
        let Some(leader) = self.leader() else { return };
        let Some(driver) = &self.hosts[leader].driver else { return };
        let voters: Vec<RaftId> = driver.replica().config().voters.iter().copied().collect();
        if !voters.is_empty() {
            let to = voters[self.rng.usize(0..voters.len())];
            self.hosts[leader].take(Event::Transfer(to));
            self.schedule(leader);
        }
    }

    fn old_frame(&mut self) {
        if self.old_frames.is_empty() {
            return;
        }
        let (to, from, mut message) =
            self.old_frames[self.rng.usize(0..self.old_frames.len())].clone();
        if self.rng.bool() {
            message.epoch = message.epoch.wrapping_sub(1);
            // Of an epoch in which terms went further, say.
            message.term += self.rng.u64(0..50);
        }
        let message = Box::new(message);
        self.later(10, Happening::Deliver { to, from, message });
    }

    /// A stranger, or a member in another's name, speaks to `host`.
    fn forge(&mut self, host: usize) {
        let Some(driver) = &self.hosts[host].driver else { return };
        let Some(identity) = self.hosts[host].identity else { return };
        let status = driver.status();
        let (term, index) = (status.term + self.rng.u64(0..3), status.last_index);
        let seats: Vec<RaftId> = driver.replica().config().voters.iter().copied().collect();
        if seats.is_empty() {
            return;
        }
        let body = match self.rng.u32(0..6) {
            0 => Body::Heartbeat { commit: index + 5, read: None },
            1 => Body::Append {
                prev_index: index,
                prev_term: driver.replica().term(),
                commit: index + 1,
                entries: vec![Entry { term, index: index + 1, payload: Payload::Empty }],
            },
            2 => Body::TimeoutNow,
            3 => Body::VoteReply { pre: false, granted: true, commit: 0, commit_term: 0 },
            4 => Body::AppendReply { index, commit: index, reject: None },
            _ => Body::HeartbeatReply { commit: 0, read: None },
        };
        let stranger = NodeId([0xee; 32]);
        let other = self.rng.usize(0..self.hosts.len());
        let from = if self.rng.bool() { stranger } else { self.hosts[other].id };
        let claimed = seats[self.rng.usize(0..seats.len())];
        let mesh = if self.rng.u32(0..4) == 0 { MeshId([3; 32]) } else { identity.mesh };
        let known = driver.replica().machine().seat_of(from) == Some(claimed);
        let is_honest = known || self.hosts[other].identity.is_some_and(|i| i.raft_id == claimed);
        if from != stranger && is_honest && mesh == identity.mesh {
            // That would be a member lying in its own name, which raft does not survive.
            return;
        }
        let message = Message {
            mesh,
            epoch: identity.epoch,
            from: claimed,
            to: identity.raft_id,
            term,
            body,
        };
        let message = Box::new(message);
        self.later(10, Happening::Deliver { to: host, from, message });
    }

    /// One of three voters is cut off; the group grows to five; two of the old ones die; it returns.
    fn sleeper_act(&mut self) {
        let voters = self.newest().map_or(0, |state| state.config().voters.len());
        let sleeper = 2;
        let everyone = 0..self.hosts.len();
        if self.faults == 1 {
            for other in everyone.clone() {
                self.cuts.insert((sleeper, other), u64::MAX);
                self.cuts.insert((other, sleeper), u64::MAX);
            }
        }
        let settled = self.newest().is_some_and(|state| !state.config().is_joint());
        let leader_settled = self.leader().and_then(|leader| self.hosts[leader].driver.as_ref());
        let calm = leader_settled.is_some_and(|driver| !driver.status().change_pending);
        if voters == 5 && settled && calm && self.cuts.values().any(|by| *by == u64::MAX) {
            self.cuts.retain(|_, by| *by != u64::MAX);
            self.weights_after_sleep();
            for old in [0, 1] {
                let now = self.now;
                self.trace.note(now, || format!("host {old} sleeps in turn"));
                for other in everyone.clone() {
                    self.cuts.insert((old, other), u64::MAX - 1);
                    self.cuts.insert((other, old), u64::MAX - 1);
                }
            }
        }
    }

    /// From here on only writes happen, and the sleeper must be good for a quorum.
    fn weights_after_sleep(&mut self) {
        self.plan.weights = vec![(Fault::OldFrame, 1)];
    }
}
