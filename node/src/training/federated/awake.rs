//! Who answers: asked now and then of those on whom a training depends. Gossip would tell as well, but minutes later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use mesh_consensus::id::{JobId, NodeId};
use mesh_transport::codec::encode;
use tokio::sync::watch;
use tokio::time::sleep;

use super::view::Seen;
use crate::handle::Handle;
use crate::wire::Request;

/// How often they are asked.
const PING: Duration = Duration::from_secs(1);
/// How long one may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Whoever has not answered so often in a row is away.
const MISSES: u32 = 2;
/// Of those who only might sum, so many are asked.
const MAX_SPARE: usize = 16;
/// Pings under way at a time.
const MAX_PINGS: usize = 32;

/// Tells who is away, for ever.
pub(super) async fn mind(handle: &Handle, job: JobId, away: &watch::Sender<BTreeSet<NodeId>>) {
    let mut misses: BTreeMap<NodeId, u32> = BTreeMap::new();
    let ping = encode(&Request::Ping).unwrap_or_default();
    loop {
        let me = handle.whoami.node;
        let seen = handle.look(move |see| Seen::of(see.replica.machine(), job)).await;
        let nodes = seen.ok().flatten().map(|seen| depended_on(&seen, me)).unwrap_or_default();
        misses.retain(|node, _| nodes.contains(node));
        let calls = nodes.into_iter().map(|node| {
            let ping = ping.clone();
            async move { (node, handle.net.call(node, ping, PATIENCE).await.is_ok()) }
        });
        let mut calls = futures::stream::iter(calls).buffer_unordered(MAX_PINGS);
        while let Some((node, is_there)) = calls.next().await {
            let missed = misses.entry(node).or_default();
            *missed = if is_there { 0 } else { missed.saturating_add(1) };
        }
        let silent = misses.iter().filter(|(_, missed)| **missed >= MISSES);
        let silent: BTreeSet<NodeId> = silent.map(|(node, _)| *node).collect();
        away.send_if_modified(|away| {
            let news = *away != silent;
            *away = silent;
            news
        });
        sleep(PING).await;
    }
}

/// The nodes on which a training depends.
fn depended_on(seen: &Seen, me: NodeId) -> BTreeSet<NodeId> {
    let mut nodes: BTreeSet<NodeId> = seen.summers.iter().copied().take(MAX_SPARE).collect();
    nodes.extend(seen.seats.iter().filter_map(|seat| seat.node));
    nodes.extend(seen.course.open.iter().flat_map(|open| &open.aggregators));
    nodes.extend(seen.course.model.iter().flat_map(|model| &model.holders));
    nodes.remove(&me);
    nodes
}
