//! `/v1/nodes`: the members, as the state knows them and as they describe themselves.
//!
//! Who belongs, names, seats and labels are agreed; the rest is each member's own word, heard by gossip, and
//! may be old. Both are here on every node, so this works without a leader, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::extract::State;
use mesh_consensus::id::{NodeId, PartyId};
use mesh_consensus::log::Config;
use mesh_consensus::time::Time;
use serde_json::{Value, json};

use super::Api;
use super::answer::{Answer, Param, Problem, date, has_state, item, items, millis};
use super::find;
use super::route::{Form, Route};
use super::status::leader_of;
use crate::awareness::record::{GpuFacts, GpuLoad};
use crate::awareness::view::Sight;
use crate::handle::See;
use crate::state::State as Agreement;
use crate::state::member::Member;

/// A member tells about itself at least this often; after more, it is silent.
const SILENT: Duration = Duration::from_secs(60);
/// After this it is held to be down.
const DOWN: Duration = Duration::from_secs(120);
/// A node that has just started has no connections yet, and makes nothing of that.
const SETTLED: Duration = Duration::from_secs(10);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/nodes", "All members.", list).form(Form::Items),
        Route::get(
            "/v1/nodes/{node}",
            "One member, by name, id or unique beginning of it, of four characters or more.",
            show,
        ),
    ]
}

/// What is agreed about a member.
struct Agreed {
    id: NodeId,
    name: String,
    party: PartyId,
    party_name: Option<String>,
    role: &'static str,
    seat: Option<u64>,
    leaving: bool,
    drained: bool,
    /// Whether most parties hold it to be down.
    down: bool,
    worker: bool,
    labels: BTreeMap<String, String>,
    admitted: Time,
    level: u16,
    version: String,
    domain: Option<String>,
}

async fn list(State(api): State<Api>) -> Answer {
    has_state(&api)?;
    let all = api.look(|see| {
        let state = see.replica.machine();
        let parties = state.present_parties().len();
        let members = state.members().iter();
        members.map(|(id, member)| Agreed::of(see, *id, member, parties)).collect::<Vec<_>>()
    });
    let mut all = all.await?;
    all.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    Ok(items(&api, describe(&api, &all)))
}

async fn show(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let found = api.look(move |see| {
        let state = see.replica.machine();
        let id = find_node(state, &wanted)?;
        let parties = state.present_parties().len();
        let found = state.members().get(&id);
        Ok::<_, Problem>(found.map(|member| Agreed::of(see, id, member, parties)))
    });
    let found: Vec<Agreed> = found.await??.into_iter().collect();
    Ok(item(&api, describe(&api, &found).pop().unwrap_or_default()))
}

/// The member that somebody means.
pub(super) fn find_node(state: &Agreement, wanted: &str) -> Result<NodeId, Problem> {
    let all = state.members().iter().map(|(id, member)| (*id, Some(member.name.as_str())));
    find::one("node", "mesh nodes", wanted, all)
}

impl Agreed {
    /// `parties` are present.
    fn of(see: &See<'_>, id: NodeId, member: &Member, parties: usize) -> Self {
        let state = see.replica.machine();
        let labels = state.labels(id).map(|(key, value)| (key.to_string(), value.to_string()));
        Self {
            id,
            name: member.name.to_string(),
            party: member.party,
            party_name: state.parties().get(&member.party).map(|party| party.name.to_string()),
            role: role(see.replica.config(), member),
            seat: member.seat.map(|seat| seat.0),
            leaving: member.leaving,
            drained: state.is_drained(id),
            down: member.is_down(parties),
            worker: member.worker,
            labels: labels.collect(),
            admitted: member.admitted.time,
            level: member.report.level,
            version: member.report.version.to_string(),
            domain: member.report.domain.as_ref().map(ToString::to_string),
        }
    }
}

fn role(config: &Config, member: &Member) -> &'static str {
    let Some(seat) = member.seat else { return "watcher" };
    if config.voters.contains(&seat) || config.outgoing.contains(&seat) {
        "voter"
    } else if config.contains(seat) {
        "learner"
    } else {
        "watcher"
    }
}

/// Joins what is agreed with what was heard.
fn describe(api: &Api, all: &[Agreed]) -> Vec<Value> {
    let me = api.whoami.node;
    let (pulse, roster) = (api.pulse(), api.roster());
    let leader = leader_of(me, &pulse);
    let linked: BTreeSet<NodeId> = api.net.links().iter().map(|link| link.node).collect();
    let uptime = api.started.elapsed();
    let here: Vec<String> = api.hub.here().iter().map(ToString::to_string).collect();
    let expected = roster.seated.contains(&me) && uptime > SETTLED;
    // While somebody leads, one whom this node alone cannot reach is there all the same.
    let unreached = if leader.is_none() { api.net.unreached() } else { BTreeMap::new() };
    api.hub.look(|view, now| {
        let one = |agreed: &Agreed| {
            let sight = view.get(agreed.id, now);
            // Whoever was never heard has been silent for as long as this node listens.
            let silence = sight.as_ref().map_or(uptime, |sight| sight.silence);
            let signs = Signs {
                is_self: agreed.id == me,
                leaving: agreed.leaving,
                drained: agreed.drained,
                down: agreed.down,
                linked: linked.contains(&agreed.id),
                should_be_linked: expected && roster.seated.contains(&agreed.id),
                unreached: unreached.get(&agreed.id).is_some_and(|failed| *failed < silence),
                silence,
                heard: sight.is_some(),
            };
            node(agreed, sight.as_ref(), &signs, leader, &here)
        };
        all.iter().map(one).collect()
    })
}

/// What speaks for and against a member's being there.
struct Signs {
    is_self: bool,
    leaving: bool,
    drained: bool,
    down: bool,
    linked: bool,
    should_be_linked: bool,
    /// There is no leader, and it was tried in vain since it last said anything.
    unreached: bool,
    silence: Duration,
    heard: bool,
}

impl Signs {
    /// In one word.
    fn state(&self) -> &'static str {
        let there = self.is_self || self.linked;
        let missed = !self.heard || self.should_be_linked || self.unreached;
        if self.leaving {
            "leaving"
        } else if !there && (self.down || self.silence > DOWN) {
            "down"
        } else if !there && (missed || self.silence > SILENT) {
            "silent"
        } else if self.drained {
            "draining"
        } else {
            "up"
        }
    }
}

fn node(
    agreed: &Agreed,
    sight: Option<&Sight<'_>>,
    signs: &Signs,
    leader: Option<NodeId>,
    here: &[String],
) -> Value {
    let facts = sight.map(|sight| &sight.record.facts);
    let load = sight.map(|sight| sight.load);
    let dialled = sight.map(|sight| sight.record.data.iter().map(ToString::to_string).collect());
    let addresses: Vec<String> =
        if signs.is_self { here.to_vec() } else { dialled.unwrap_or_default() };
    let overlay: Vec<String> = sight
        .map(|sight| sight.record.overlay.iter().map(ToString::to_string).collect())
        .unwrap_or_default();
    let seen = if signs.is_self { Some(0) } else { sight.map(|sight| millis(sight.age)) };
    let version = sight.map_or(agreed.version.as_str(), |sight| sight.record.version.as_str());
    json!({
        "id": agreed.id,
        "name": agreed.name,
        "party": agreed.party_name,
        "party_id": agreed.party,
        "state": signs.state(),
        "role": agreed.role,
        "is_leader": leader == Some(agreed.id),
        "seat": agreed.seat,
        "addresses": addresses,
        "overlay_addresses": overlay,
        "arch": facts.map(|facts| facts.arch.as_str()),
        "os": facts.map(|facts| facts.os.as_str()),
        "hostname": facts.map(|facts| facts.hostname.as_str()),
        "version": version,
        "cpus": facts.map(|facts| facts.cpus),
        "cpu_ratio": load.map(|load| load.cpu.get()),
        "memory_bytes": facts.map(|facts| facts.memory_bytes),
        "memory_free_bytes": load.map(|load| load.memory_free_bytes),
        "disk_bytes": facts.map(|facts| facts.disk_bytes),
        "disk_free_bytes": load.map(|load| load.disk_free_bytes),
        "load1": load.map(|load| load.load1()),
        "gpus": sight.map(gpus).unwrap_or_default(),
        "labels": agreed.labels,
        "domain": agreed.domain,
        "seen_age_ms": seen,
        "admitted_at": date(agreed.admitted),
        "worker": agreed.worker,
        "drained": agreed.drained,
        "level": agreed.level,
    })
}

fn gpus(sight: &Sight<'_>) -> Vec<Value> {
    let nothing = GpuLoad::default();
    let gpus = sight.record.facts.gpus.iter().enumerate();
    gpus.map(|(at, facts)| gpu(facts, sight.load.gpus.get(at).unwrap_or(&nothing))).collect()
}

fn gpu(facts: &GpuFacts, load: &GpuLoad) -> Value {
    json!({
        "name": facts.name.as_str(),
        "uuid": facts.uuid_text(),
        "memory_bytes": facts.memory_bytes(),
        "memory_used_bytes": load.memory_used_bytes(),
        "utilisation_ratio": load.utilisation.map(|ratio| ratio.get()),
        "temperature_c": load.temperature_c,
        "power_w": load.power_w,
        "processes": load.processes,
        "mig": facts.mig,
        "health": load.health.words(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(silence: u64) -> Signs {
        Signs {
            is_self: false,
            leaving: false,
            drained: false,
            down: false,
            linked: false,
            should_be_linked: false,
            unreached: false,
            silence: Duration::from_secs(silence),
            heard: true,
        }
    }

    #[test]
    fn a_member_is_what_the_best_sign_says() {
        assert_eq!(signs(1).state(), "up");
        assert_eq!(signs(61).state(), "silent");
        assert_eq!(signs(121).state(), "down");
        assert_eq!(Signs { linked: true, down: true, ..signs(500) }.state(), "up");
        assert_eq!(Signs { down: true, ..signs(1) }.state(), "down");
        assert_eq!(Signs { should_be_linked: true, ..signs(1) }.state(), "silent");
        assert_eq!(Signs { unreached: true, ..signs(1) }.state(), "silent");
        assert_eq!(Signs { heard: false, ..signs(1) }.state(), "silent");
        assert_eq!(Signs { is_self: true, heard: false, ..signs(500) }.state(), "up");
        assert_eq!(Signs { leaving: true, is_self: true, ..signs(1) }.state(), "leaving");
    }

    #[test]
    fn a_drained_member_that_is_gone_is_shown_as_gone() {
        assert_eq!(Signs { drained: true, ..signs(1) }.state(), "draining");
        assert_eq!(Signs { drained: true, ..signs(500) }.state(), "down");
    }
}
