//! What a node does of its own accord: it reports, pulls, publishes, suspects, and sets the pace.
//!
//! Each is a small loop that looks, decides and writes through the same door as everyone else. All of it may
//! fail and is tried again at the next look.

mod gossip;
mod measure;
mod suspect;

use std::time::Duration;

use mesh_consensus::id::NodeId;
use mesh_transport::codec::{decode, encode};

use crate::clock;
use crate::handle::{Ask, Handle, Part};
use crate::pace::{MAX_TICK_MS, tick_for};
use crate::party::{PartySecret, SealingSecret};
use crate::state::command::{Act, Pace, RaiseLevel, Report};
use crate::state::level::{LEVEL, Version};
use crate::wire::{Reply, Request};

pub use gossip::{advertised, gossip};
use measure::Again;
pub use measure::{FIRST, measure_sync};
use suspect::suspect;

/// How often a node looks whether there is something to do.
const LOOK: Duration = Duration::from_secs(1);

/// Runs until the node stops.
pub async fn run(handle: Handle, mut fsync_p99_us: Option<u32>) {
    let mut pace = Pacer::default();
    let mut again = Again::new(clock::steady());
    loop {
        tokio::select! {
            () = handle.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        if handle.pulse().part == Part::Joining {
            continue;
        }
        if again.is_due(clock::steady(), handle.config.votes, fsync_p99_us) {
            fsync_p99_us = measure_sync(&handle.dir, measure::AGAIN).await.or(fsync_p99_us);
        }
        report(&handle, fsync_p99_us).await;
        fetch_secret(&handle).await;
        fetch_sealing(&handle).await;
        suspect(&handle).await;
        if handle.pulse().is_leader() {
            raise_level(&handle).await;
            pace.look(&handle).await;
        }
    }
}

async fn write(handle: &Handle, act: impl Into<Act>) {
    let act = act.into();
    if let Err(error) = handle.write(vec![Ask { act, signed: false }]).await {
        tracing::debug!(%error, "a report or the like was not taken");
    }
}

/// Tells what this node is, whenever the state says otherwise.
async fn report(handle: &Handle, fsync_p99_us: Option<u32>) {
    let me = handle.whoami.node;
    let (votes, domain) = (handle.config.votes, handle.config.domain.clone());
    let version: Version = env!("CARGO_PKG_VERSION").parse().unwrap_or_default();
    let wanted = handle.look(move |see| {
        let old = see.replica.machine().members().get(&me)?.report.clone();
        // A measured figure that moves a little is no news.
        let near = |a: u32, b: u32| a.max(b) <= 2 * a.min(b).max(500);
        let fsync = match (old.fsync_p99_us, fsync_p99_us) {
            (Some(a), Some(b)) if near(a, b) => Some(a),
            (_, new) => new,
        };
        let new =
            Report { level: LEVEL, version, votes, fsync_p99_us: fsync, direct: true, domain };
        (new != old).then_some(new)
    });
    if let Ok(Some(new)) = wanted.await {
        write(handle, new).await;
    }
}

/// A node without its party's sealing secret takes it from the party's secret, or asks the others of its
/// party. The state tells whether an answer is the right one.
async fn fetch_sealing(handle: &Handle) {
    if handle.sealing.read().await.is_some() {
        return;
    }
    if let Some(secret) = &*handle.secret.read().await {
        *handle.sealing.write().await = Some(secret.sealing_secret());
        return;
    }
    let me = handle.whoami.node;
    let roster = handle.roster();
    let Some(party) = roster.party_of(me) else { return };
    let public = handle
        .look(move |see| see.replica.machine().parties().get(&party).map(|party| party.sealing));
    let Ok(Some(public)) = public.await else { return };
    let siblings = roster
        .members
        .iter()
        .filter(|(node, place)| **node != me && place.party == party && !place.leaving);
    let Ok(request) = encode(&Request::SealingSecret) else { return };
    for (node, _) in siblings.take(8) {
        let Ok(bytes) = handle.net.call(*node, request.clone(), LOOK).await else { continue };
        if let Ok(Reply::SealingSecret(bytes)) = decode(&bytes) {
            let secret = SealingSecret::new(bytes);
            if secret.public() == public && handle.dir.keep_sealing_secret(&secret).is_ok() {
                *handle.sealing.write().await = Some(secret);
                return;
            }
        }
    }
}

/// A node that should have its party's secret and does not asks the others of its party.
async fn fetch_secret(handle: &Handle) {
    let me = handle.whoami.node;
    let roster = handle.roster();
    let Some(own) = roster.members.get(&me) else { return };
    if own.worker || handle.secret.read().await.is_some() || handle.dir.file("offline").exists() {
        return;
    }
    let siblings = roster.members.iter().filter(|(node, place)| {
        **node != me && place.party == own.party && !place.worker && !place.leaving
    });
    let Ok(request) = encode(&Request::PartySecret) else { return };
    for (node, _) in siblings.take(8) {
        let Ok(bytes) = handle.net.call(*node, request.clone(), LOOK).await else { continue };
        if let Ok(Reply::Secret(bytes)) = decode(&bytes) {
            let secret = PartySecret::new(bytes);
            if secret.id() == own.party && handle.dir.keep_party_secret(&secret).is_ok() {
                *handle.secret.write().await = Some(secret);
                return;
            }
        }
    }
}

/// Raises the level once everyone supports the next.
async fn raise_level(handle: &Handle) {
    let next = handle.look(|see| {
        let state = see.replica.machine();
        let next = state.level().number + 1;
        let all = state.members().values().all(|member| member.report.level >= next);
        (next <= LEVEL && all).then_some(next)
    });
    if let Ok(Some(next)) = next.await
        && let Some(raise) = RaiseLevel::to(next)
    {
        write(handle, raise).await;
    }
}

/// Sets raft's tick from what the leader measures: its round trips to the voters and everyone's syncs.
#[derive(Default)]
struct Pacer {
    /// The tick that was wanted at the last looks, and at how many.
    wanted: Option<(u32, u32)>,
}

impl Pacer {
    async fn look(&mut self, handle: &Handle) {
        let roster = handle.roster();
        let links = handle.net.links();
        let voters = links.iter().filter(|link| roster.voters.contains(&link.node));
        let mut trips: Vec<Duration> = voters.map(|link| link.rtt).collect();
        trips.sort();
        let nodes: Vec<NodeId> = roster.voters.iter().copied().collect();
        let seen = handle.look(move |see| {
            let state = see.replica.machine();
            let syncs = nodes.iter().filter_map(|node| state.members().get(node));
            let sync = syncs.filter_map(|member| member.report.fsync_p99_us).max();
            (sync.unwrap_or(0), state.tick())
        });
        let Ok((sync, tick)) = seen.await else { return };
        let wanted = tick_for(trips.last().copied().unwrap_or_default(), sync);
        let now = u32::try_from(tick.as_millis()).unwrap_or(MAX_TICK_MS);
        // It must be worth it, and not be a passing thing: faster is tried only after a long while.
        let (worth, looks) = match wanted > now {
            true => (4 * wanted > 5 * now, 3),
            false => (2 * wanted <= now, 60),
        };
        let count = match self.wanted {
            Some((one, count)) if worth && near(one, wanted) => count + 1,
            _ => u32::from(worth),
        };
        self.wanted = worth.then_some((wanted, count));
        if worth && count >= looks {
            self.wanted = None;
            tracing::info!(tick_ms = wanted, "raft's tick is being set");
            write(handle, Pace { tick_ms: wanted }).await;
        }
    }
}

fn near(a: u32, b: u32) -> bool {
    a.max(b) <= 2 * a.min(b)
}
