//! `/v1/status`: this node in one answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use mesh_consensus::id::NodeId;
use serde_json::{Value, json};

use super::Api;
use super::answer::{Answer, date, item, millis};
use super::route::Route;
use crate::clock;
use crate::dir::LOG;
use crate::engine::Roster;
use crate::handle::Pulse;

/// Bookmarks come every five seconds.
const CLOCKS_HEARD: Duration = Duration::from_secs(6);

pub(super) fn routes() -> Vec<Route> {
    vec![Route::get("/v1/status", "What this node is, and how it takes part.", status)]
}

/// What the state says of this node and of the mesh.
struct Agreed {
    level: u16,
    tick_ms: u64,
    drained: bool,
    fsync_p99_us: Option<u32>,
}

async fn status(State(api): State<Api>) -> Answer {
    let me = api.whoami.node;
    let agreed = api.look(move |see| {
        let state = see.replica.machine();
        Agreed {
            level: state.level().number,
            tick_ms: millis(state.tick()),
            drained: state.is_drained(me),
            fsync_p99_us: state.members().get(&me).and_then(|member| member.report.fsync_p99_us),
        }
    });
    let Agreed { level, tick_ms, drained, fsync_p99_us } = agreed.await?;
    let (pulse, roster) = (api.pulse(), api.roster());
    let place = roster.members.get(&me);
    let overlay = api.hub.overlay().map(|overlay| overlay.addresses()).unwrap_or_default();
    // Until the state is here, the node knows of itself what it was told when it was admitted.
    let membership = match place {
        Some(_) => None,
        None => api.dir.membership().ok().flatten(),
    };
    let party = place.map(|place| place.party).or(membership.as_ref().map(|own| own.party));
    let name = place.map(|place| &place.name).or(api.config.name.as_ref());
    let siblings =
        roster.members.values().filter(|place| Some(place.party) == party && !place.leaving);
    let removed = api.is_removed();
    let learners = roster.seated.len() - roster.seated.intersection(&roster.voters).count();
    Ok(item(
        &api,
        json!({
            "id": me,
            "name": name.map(|name| name.as_str()),
            "party": party.and_then(|party| roster.parties.get(&party)).map(|name| name.as_str()),
            "party_id": party,
            "party_nodes": siblings.count(),
            "mesh": api.whoami.mesh,
            "epoch": api.whoami.epoch,
            "seat": place.and_then(|place| place.seat).unwrap_or(api.whoami.seat).0,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "level": level,
            "role": pulse.part.name(),
            "is_leader": pulse.is_leader() && !removed,
            // Whoever was removed knows of yesterday's.
            "leader": if removed { Value::Null } else { leader(me, &pulse, &roster) },
            "term": pulse.term,
            "index": pulse.index,
            "commit_index": pulse.commit,
            "history": pulse.history,
            "mesh_time": date(pulse.time),
            "clock_ahead_ms": clock_ahead(&api),
            "members": roster.members.values().filter(|place| !place.leaving).count(),
            "voters": roster.voters.len(),
            "learners": learners,
            "tick_ms": tick_ms,
            "data_addresses": texts(&api.net.addresses()),
            "overlay_addresses": texts(&overlay),
            "api_address": api.api.get().map(ToString::to_string),
            "uptime_ms": millis(api.started.elapsed()),
            "fsync_p99_us": fsync_p99_us.unwrap_or(0),
            "disk_bytes": log_bytes(&api),
            "worker": place.map_or(membership.is_some_and(|own| own.worker), |place| place.worker),
            "drained": drained,
            "leaving": api.departure.step().borrow().is_leaving()
                || place.is_some_and(|place| place.leaving),
            "removed": removed,
            "work_lacks": api.executor.capabilities().lacks,
            "later_epoch": Some(api.later_epoch.load(Ordering::Relaxed)).filter(|epoch| *epoch > 0),
        }),
    ))
}

/// How far this machine's clock is ahead of most voters'; less than zero if it is behind. `None` while they are
/// not heard: what they said long ago tells little of them now.
fn clock_ahead(api: &Api) -> Option<i64> {
    let voters = api.shown.clock_by_now().filter(|_| api.shown.is_fresh(CLOCKS_HEARD))?;
    i64::try_from(clock::now().0).ok()?.checked_sub(i64::try_from(voters.0).ok()?)
}

/// Who leads, as far as this node knows.
pub(super) fn leader_of(me: NodeId, pulse: &Pulse) -> Option<NodeId> {
    if pulse.is_leader() { Some(me) } else { pulse.leader }
}

fn leader(me: NodeId, pulse: &Pulse, roster: &Roster) -> Value {
    leader_of(me, pulse).map_or(Value::Null, |id| {
        let name = roster.members.get(&id).map(|place| place.name.as_str());
        json!({ "id": id, "name": name })
    })
}

fn texts(addresses: &[std::net::SocketAddr]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

/// What the node's log takes on its disk.
fn log_bytes(api: &Api) -> u64 {
    std::fs::metadata(api.dir.file(LOG)).map(|about| about.len()).unwrap_or(0)
}
