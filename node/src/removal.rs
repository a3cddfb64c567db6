//! Whether this node was removed. Nobody tells it but those who turn it away: it is cut off with the entry that
//! removes it, and may never see that entry. So it asks the voters: as soon as one member has turned it away, and
//! when it has heard nothing for a while. One member's word is not enough.
//!
//! Who knows that it was removed says so to whoever asks it for something, and does not try.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mesh_consensus::id::{Epoch, NodeId};
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::CallError;
use mesh_transport::quic::Failure;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::departure::Step;
use crate::handle::{Handle, Part};
use crate::wire::{JoinReply, JoinRequest, Request};

/// How long to wait for one of the voters.
pub const ASK: Duration = Duration::from_secs(1);

/// A node that has not been up to date for this long asks whether it was removed, and again after as long.
const CUT_OFF: Duration = Duration::from_secs(8);

/// Addresses of voters that are asked at once for their epoch.
const MAX_DOORS: usize = 16;

/// Learns whether this node was removed, or the mesh recovered without it; runs until the node stops. Whoever is turned
/// away by a member says so with `away`.
pub async fn run(handle: Handle, away: Arc<Notify>) {
    let me = handle.whoami.node;
    let mut roster = handle.shown.roster.clone();
    loop {
        let known = handle.is_removed();
        let agreed = async { roster.wait_for(|roster| roster.removed.contains(&me)).await.is_ok() };
        let suspects = tokio::select! {
            () = handle.stop.cancelled() => return,
            // Once it is known there is no hurry.
            _ = agreed, if !known => true,
            () = away.notified(), if !known => true,
            () = sleep(CUT_OFF) => known,
        };
        if handle.pulse().part != Part::Joining {
            look(&handle, suspects).await;
        }
        // However often it is turned away.
        sleep(ASK).await;
    }
}

/// Asks, if there is a reason to suspect it or nothing was heard for long, and keeps the answer.
async fn look(handle: &Handle, suspects: bool) {
    let step = handle.departure.step().borrow().clone();
    if step.is_leaving() || step == Step::Left {
        // It goes of its own will.
        return;
    }
    let cut_off = suspects || !handle.shown.is_fresh(CUT_OFF);
    // Also while all seems well: if a mesh was recovered although its majority lived on, both go on.
    let epoch = later_epoch(handle).await;
    if handle.later_epoch.swap(epoch.unwrap_or(0), Ordering::Relaxed) == 0
        && let Some(epoch) = epoch
    {
        tracing::error!(
            epoch,
            "the mesh was recovered and is in a later epoch: mesh down, and mesh up --rejoin"
        );
    }
    // Those of a later epoch turn away everyone of an earlier one.
    let removed = cut_off && epoch.is_none() && is_removed(handle).await;
    if removed != handle.removed.send_replace(removed) && removed {
        tracing::error!(
            "this node was removed from its mesh: mesh down, and join again from a new directory"
        );
    }
}

/// Whether the state says so, or a majority of the other voters that this node knows.
pub async fn is_removed(handle: &Handle) -> bool {
    let me = handle.whoami.node;
    let roster = handle.roster();
    if roster.removed.contains(&me) {
        return true;
    }
    let others: Vec<NodeId> = roster.voters.iter().copied().filter(|node| *node != me).collect();
    let asked = futures::future::join_all(others.iter().map(|node| turns_away(handle, *node)));
    let away = asked.await.into_iter().filter(|turned| *turned).count();
    is_majority(away, others.len())
}

/// A later epoch than this node's, if a voter that it knows and does not hear is in one: somebody recovered the mesh
/// without this node, and perhaps without need. Good for a hint to people, and for nothing else.
pub async fn later_epoch(handle: &Handle) -> Option<Epoch> {
    let roster = handle.roster();
    let request = encode(&JoinRequest::Where).ok()?;
    let links: Vec<NodeId> = handle.net.links().iter().map(|link| link.node).collect();
    // Whoever talks to us is in our epoch.
    let asked = |node: NodeId| roster.voters.contains(&node) && !links.contains(&node);
    let peers = handle.hub.peers().into_iter().filter(|peer| asked(peer.node));
    let doors = peers.flat_map(|peer| peer.data.into_iter().map(move |at| (peer.node, at)));
    let asked = doors.take(MAX_DOORS).map(|(node, address)| {
        let request = request.clone();
        async move {
            let answer = timeout(ASK, handle.net.join(node, address, request)).await.ok()?.ok()?;
            match decode(&answer).ok()? {
                JoinReply::Here { epoch, .. } => Some(epoch),
                _ => None,
            }
        }
    });
    let epochs = futures::future::join_all(asked).await;
    epochs.into_iter().flatten().filter(|epoch| *epoch > handle.whoami.epoch).max()
}

/// Whether `count` are more than half of `all`.
pub fn is_majority(count: usize, all: usize) -> bool {
    2 * count > all
}

/// Whether a voter says that this node is no member: it has then applied its removal. One that is merely
/// leaving is refused an answer, but keeps its connection.
pub async fn turns_away(handle: &Handle, node: NodeId) -> bool {
    let Ok(request) = encode(&Request::ReadIndex) else { return false };
    let answer = handle.net.call(node, request, ASK).await;
    answer.is_err_and(|error| is_turned_away(&error))
}

/// Whether a call failed because the other side says that this node is no member.
pub fn is_turned_away(error: &CallError) -> bool {
    match error {
        CallError::Unreachable(error) => error
            .tries
            .iter()
            .any(|(_, how)| matches!(how, Failure::Closed { why } if says_no_member(why))),
        CallError::Broken { why, .. } => says_no_member(why),
        _ => false,
    }
}

/// As `transport` and `service.rs` put it when they close a connection.
fn says_no_member(why: &str) -> bool {
    why.contains("not a member") || why.contains("removed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_others_is_not_enough() {
        assert!(is_majority(1, 1) && is_majority(2, 3) && is_majority(3, 4));
        assert!(!is_majority(0, 0) && !is_majority(1, 2) && !is_majority(2, 4));
    }

    #[test]
    fn only_those_who_say_so_turn_a_node_away() {
        assert!(
            says_no_member("you are not a member here") && says_no_member("removed from the mesh")
        );
        assert!(!says_no_member("the node stops") && !says_no_member("timed out"));
        let node = NodeId([1; 32]);
        let broken = |why: &str| CallError::Broken { node, why: why.into() };
        assert!(is_turned_away(&broken("removed from the mesh")));
        assert!(!is_turned_away(&broken("timed out")));
        assert!(!is_turned_away(&CallError::Refused(node)), "one that leaves is refused, too");
    }
}
