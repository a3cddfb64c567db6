//! Publishing this node's record, and pulling what was missed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use mesh_consensus::id::NodeId;
use mesh_transport::codec::{decode, encode};
use mesh_transport::identity::NodeKey;
use mesh_transport::overlay::Heard;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::awareness::bounded::Text;
use crate::awareness::gpu;
use crate::awareness::hub::Peer;
use crate::awareness::network;
use crate::awareness::publish::{Publisher, REFRESH};
use crate::awareness::record::{Facts, Load, Record};
use crate::awareness::resources::Machine;
use crate::awareness::signed::incarnation;
use crate::awareness::view::Judged;
use crate::clock;
use crate::config::Config;
use crate::handle::Handle;
use crate::wire::{Reply, Request};

/// How often this machine is measured.
const MEASURE: Duration = Duration::from_secs(5);
/// How often a node asks another what it has missed.
const PULL: Duration = Duration::from_secs(40);
/// How soon it asks while it has never heard of a member; then ever less often, as that one may be down for
/// good. Short: two voters that know each other through the leader alone could not replace it.
const HURRY: Duration = Duration::from_millis(200);
/// How many of those with a connection are asked while somebody is missing.
const MAX_ASKED: usize = 8;
/// How often the addresses of others are kept for the next start.
const KEEP: Duration = Duration::from_secs(60);
/// How often so that they outlive a loss of power: that costs a sync.
const KEEP_SAFE: Duration = Duration::from_secs(3600);

/// Publishes, pulls and keeps until the node stops.
pub async fn gossip(
    handle: Handle,
    key: NodeKey,
    mut heard: mpsc::Receiver<Heard>,
    fsync_p99_us: Option<u32>,
) {
    let last: Option<u64> = handle.dir.cached("incarnation");
    let incarnation = incarnation(clock::now().0, last);
    if let Err(error) = handle.dir.keep_cached("incarnation", &incarnation) {
        tracing::warn!(error = &error as &dyn std::error::Error, "the incarnation was not kept");
    }
    let seed = u64::from_le_bytes(crate::random());
    let mut publisher = Publisher::new(incarnation, seed).every(refresh());
    let mut meter = Meter {
        machine: Machine::open(handle.dir.path()),
        gpus: gpu::Watch::start(None, MEASURE),
        fsync_p99_us: fsync_p99_us.unwrap_or(0),
        docker: Text::default(),
    };
    let mut roster = handle.shown.roster.clone();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut measured: Option<(Instant, Record)> = None;
    let (mut pull_at, mut keep_at) = (Instant::now(), Instant::now() + KEEP);
    let (mut kept, mut safe_at) = (Vec::new(), Instant::now());
    let mut hurry = HURRY;
    let mut everyone = BTreeSet::new();
    allow(&handle);
    loop {
        tokio::select! {
            () = handle.stop.cancelled() => return,
            // Judged and taken already.
            more = heard.recv() => if more.is_none() { return },
            changed = roster.changed() => {
                if changed.is_err() { return }
                allow(&handle);
                // Of a newcomer nothing is known yet.
                if handle.roster().everyone() != everyone {
                    everyone = handle.roster().everyone();
                    hurry = HURRY;
                    pull_at = pull_at.min(Instant::now() + HURRY);
                }
            }
            () = tokio::time::sleep_until(pull_at) => {
                let wait = if misses(&handle) { hurry } else { PULL };
                hurry = if misses(&handle) { (2 * hurry).min(PULL) } else { HURRY };
                pull_at = Instant::now() + wait.mul_f64(1.0 + fastrand::f64() / 4.0);
                tokio::spawn(pull(handle.clone()));
            }
            _ = tick.tick() => {
                handle.hub.on_tick();
                let due = measured.as_ref().is_none_or(|(at, _)| at.elapsed() >= MEASURE);
                if due {
                    let docker = handle.executor.docker().await;
                    let version = docker.map(|docker| docker.facts().version.clone());
                    meter.docker = Text::new(&version.unwrap_or_default());
                    let record = record(&handle, &mut meter);
                    measured = Some((Instant::now(), record));
                }
                if let Some((_, record)) = &measured {
                    publish(&handle, &key, &mut publisher, record);
                }
                if Instant::now() >= keep_at {
                    keep_at = Instant::now() + KEEP;
                    let peers = handle.hub.peers();
                    if peers != kept && keep(&handle, &peers, &mut safe_at) {
                        kept = peers;
                    }
                }
            }
        }
    }
}

/// How often the whole record is repeated. Tests of real processes take a member for lost that is silent for seconds: one
/// that is there must be heard more often than that.
fn refresh() -> Duration {
    match std::env::var("MESH_TEST_WAITS").as_deref() {
        Ok("short") => Duration::from_secs(2),
        _ => REFRESH,
    }
}

/// Keeps where the others are. Whether it could.
fn keep(handle: &Handle, peers: &Vec<Peer>, safe_at: &mut Instant) -> bool {
    if Instant::now() < *safe_at {
        return handle.dir.jot("peers", peers).is_ok();
    }
    let kept = handle.dir.keep_cached("peers", peers).is_ok();
    if kept {
        *safe_at = Instant::now() + KEEP_SAFE;
    }
    kept
}

/// Whether there is a member that this node has never heard of.
fn misses(handle: &Handle) -> bool {
    let roster = handle.roster();
    handle.hub.look(|view, now| roster.members.keys().any(|node| view.get(*node, now).is_none()))
}

fn allow(handle: &Handle) {
    handle.hub.retain();
    if let Some(overlay) = handle.hub.overlay() {
        overlay.allow(handle.roster().everyone());
    }
}

/// Measures this machine.
struct Meter {
    machine: Machine,
    gpus: gpu::Watch,
    fsync_p99_us: u32,
    docker: Text,
}

fn record(handle: &Handle, meter: &mut Meter) -> Record {
    let now = clock::steady();
    let sample = meter.gpus.latest(now);
    let facts = Facts {
        fsync_p99_us: meter.fsync_p99_us,
        gpus: sample.facts,
        docker: meter.docker.clone(),
        ..meter.machine.facts()
    };
    let load = Load { gpus: sample.load, ..meter.machine.load(now) };
    let roster = handle.roster();
    let own = roster.members.get(&handle.whoami.node).map(|place| place.name.to_string());
    let overlay = handle.hub.overlay().map(|overlay| overlay.addresses()).unwrap_or_default();
    let mut record = Record {
        data: handle.hub.here(),
        overlay: advertised(&handle.config, &overlay),
        name: Text::new(own.as_deref().unwrap_or_default()),
        version: Text::new(env!("CARGO_PKG_VERSION")),
        facts,
        load,
    };
    record.fit();
    record
}

fn publish(handle: &Handle, key: &NodeKey, publisher: &mut Publisher, record: &Record) {
    let own = handle.hub.look(|view, _| view.stamp(handle.whoami.node));
    if let Some(stamp) = own {
        publisher.on_own(stamp);
    }
    match publisher.next(clock::steady(), key.signing(), handle.whoami.mesh, record) {
        Ok(Some(signed)) => {
            handle.hub.take(signed.as_bytes());
            if let Some(overlay) = handle.hub.overlay()
                && overlay.publish(signed.as_bytes().to_vec()).is_err()
            {
                tracing::warn!(
                    bytes = signed.as_bytes().len(),
                    "the record is too long to publish"
                );
            }
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "the record cannot be published"),
    }
}

/// Asks others for what this node has missed: one, or several while somebody is missing.
async fn pull(handle: Handle) {
    let me = handle.whoami.node;
    let others: Vec<_> =
        handle.roster().everyone().into_iter().filter(|node| *node != me).collect();
    if others.is_empty() {
        return;
    }
    // Whoever has a connection with us answers at once, and may be the only one whose address is known.
    let mut linked: Vec<NodeId> = handle.net.links().iter().map(|link| link.node).collect();
    linked.retain(|node| others.contains(node));
    fastrand::shuffle(&mut linked);
    linked.truncate(MAX_ASKED);
    linked.extend((0..2).map(|_| others[fastrand::usize(0..others.len())]));
    if !misses(&handle) {
        linked.truncate(1);
    }
    futures::future::join_all(linked.iter().map(|node| pull_from(&handle, *node))).await;
}

async fn pull_from(handle: &Handle, node: NodeId) {
    let request = Request::Records { known: handle.hub.digest(), mine: handle.hub.own() };
    let Ok(request) = encode(&request) else { return };
    let answer = handle.net.call(node, request, Duration::from_secs(3)).await;
    // Whoever does not answer is asked again, or somebody else is.
    if let Some(Reply::Records(records)) = answer.ok().and_then(|bytes| decode(&bytes).ok()) {
        for one in &records {
            // Whoever passes on what nobody can have signed is not worth another check of a signature.
            if handle.hub.take_relayed(one) == Judged::Bad {
                tracing::debug!(from = %node.short(), "a bad record in an answer");
                break;
            }
        }
    }
}

/// Where others can dial this node: what the settings say, else its own addresses.
pub fn advertised(config: &Config, bound: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(port) = bound.first().map(SocketAddr::port) else { return Vec::new() };
    if !config.advertise.is_empty() {
        let own = |at: &SocketAddr| match at.port() {
            0 => SocketAddr::new(at.ip(), port),
            _ => *at,
        };
        return config.advertise.iter().map(own).collect();
    }
    network::addresses(bound)
}
