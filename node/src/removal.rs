//! Whether this node was removed. Nobody tells it but those who turn it away: it is cut off with the entry that
//! removes it, and may never see that entry.

use std::time::Duration;

use mesh_consensus::id::{Epoch, NodeId};
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::CallError;
use mesh_transport::quic::Failure;
use tokio::time::timeout;

use crate::handle::Handle;
use crate::wire::{JoinReply, JoinRequest, Request};

/// How long to wait for one of the voters.
pub const ASK: Duration = Duration::from_secs(1);

/// Addresses of voters that are asked at once for their epoch.
const MAX_DOORS: usize = 16;

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
    match handle.net.call(node, request, ASK).await {
        Err(CallError::Unreachable(error)) => error
            .tries
            .iter()
            .any(|(_, how)| matches!(how, Failure::Closed { why } if says_no_member(why))),
        Err(CallError::Broken { why, .. }) => says_no_member(&why),
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
    }
}
