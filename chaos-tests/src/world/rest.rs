//! Whether a healed world is well, and what anyone knows of it.

use std::collections::BTreeMap;

use mesh_consensus::core::Role;
use mesh_consensus::id::{PartyId, RaftId};
use mesh_consensus::machine::StateMachine;
use mesh_node::state::State;

use super::World;
use crate::host::{Host, Power};

impl World {
    /// Whether a healed world is as it should be; if not, what is wrong.
    pub(super) fn is_well(&self) -> Result<(), String> {
        let running: Vec<&Host> =
            self.hosts.iter().filter(|host| host.power != Power::Gone).collect();
        let leads = |host: &&&Host| {
            let driver = host.driver.as_ref().filter(|_| host.power == Power::On);
            driver.is_some_and(|driver| driver.status().role == Role::Leader)
        };
        let term = |host: &&&Host| host.driver.as_ref().map(|driver| driver.status().term);
        let leader = running.iter().filter(leads).max_by_key(term).ok_or("there is no leader")?;
        for host in &running {
            let waits = host.power == Power::Blank && !self.is_coming(host.index);
            if host.power != Power::On && !waits {
                return Err(format!("host {} is {:?}", host.index, host.power));
            }
        }
        let driver = leader.driver.as_ref().ok_or("there is no leader")?;
        let (status, replica) = (driver.status(), driver.replica());
        let config = replica.config();
        if status.change_pending || config.is_joint() {
            return Err(format!("a change is in flight: {config:?}"));
        }
        let wanted = wanted_voters(replica.machine());
        if config.voters.len() != wanted {
            let members = replica.machine().members().values();
            let members: Vec<_> = members.map(|m| (m.seat, m.party.short(), m.leaving)).collect();
            return Err(format!("{wanted} of {members:?} should vote, but {config:?}"));
        }
        for host in &running {
            let Some(driver) = &host.driver else { continue };
            if !replica.machine().is_member(host.id) {
                continue;
            }
            let seat = host.identity.map_or(RaftId(0), |identity| identity.raft_id);
            // Those outside of the configuration will follow as watchers; raft does not feed them.
            if !config.contains(seat) {
                continue;
            }
            if driver.replica().history() != replica.history() {
                return Err(format!(
                    "host {} is at {}, the leader at {}",
                    host.index,
                    driver.replica().index(),
                    replica.index()
                ));
            }
        }
        for seat in config.voters.iter().chain(&config.learners) {
            if replica.machine().node_at(*seat).is_none() {
                return Err(format!("seat {seat} is nobody's"));
            }
        }
        self.clients.is_quiet()
    }

    /// Whether `index` is a member that raft feeds: only then can it answer clients.
    pub(crate) fn is_fed(&self, index: usize) -> bool {
        let id = self.hosts[index].id;
        self.has_seat(index) && self.newest().is_some_and(|state| state.is_member(id))
    }

    /// Whether `index` has a seat in the configuration, as far as anyone running knows.
    pub(crate) fn has_seat(&self, index: usize) -> bool {
        let (Some(identity), Some(state)) = (self.hosts[index].identity, self.newest()) else {
            return false;
        };
        state.config().contains(identity.raft_id)
    }

    /// The state of the most advanced running host.
    pub(crate) fn newest(&self) -> Option<&State> {
        let drivers = self.hosts.iter().filter_map(|host| host.driver.as_ref());
        let newest = drivers.max_by_key(|driver| driver.replica().index())?;
        Some(newest.replica().machine())
    }
}

/// How many should vote: by the number of members, and no more than three or more parties can fill
/// without one of them having a majority.
fn wanted_voters(state: &State) -> usize {
    let mut parties: BTreeMap<PartyId, usize> = BTreeMap::new();
    for member in state.members().values().filter(|member| !member.leaving) {
        *parties.entry(member.party).or_default() += 1;
    }
    let members: usize = parties.values().sum();
    let mut size = mesh_consensus::autopilot::target(members);
    if parties.len() >= 3 {
        while size > 3 && parties.values().map(|n| (*n).min((size - 1) / 2)).sum::<usize>() < size {
            size -= 2;
        }
    }
    size
}
