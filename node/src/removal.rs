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
use crate::engine::Roster;
use crate::handle::{Handle, Part};
use crate::wire::{JoinReply, JoinRequest, Request};

/// How long to wait for one of the voters.
pub const ASK: Duration = Duration::from_secs(1);

/// A node that has not been up to date for this long asks whether it was removed, and again after as long.
const CUT_OFF: Duration = Duration::from_secs(8);

/// Addresses that are asked at once for the epoch there.
const MAX_DOORS: usize = 16;

/// What is to be thought of this node's membership.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// It was removed, and what speaks for it.
    Removed {
        /// In words.
        cause: String,
    },
    /// It is a member, or of an epoch that has ended.
    Member,
    /// Too few say anything: what was known stands.
    Unknown,
}

/// What a voter makes of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// It turns it away.
    Away,
    /// It takes it for a member.
    Member,
    /// Nothing was heard.
    Nothing,
}

/// Learns whether this node was removed, or the mesh recovered without it; runs until the node stops. Whoever is turned
/// away by a member says so with `away`.
pub async fn run(handle: Handle, away: Arc<Notify>) {
    let me = handle.whoami.node;
    let mut roster = handle.shown.roster.clone();
    let mut noted = handle.dir.was_removed();
    if noted {
        tracing::warn!(
            "the others took this node for removed when it last ran: mesh status tells whether they still do"
        );
    }
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
        if handle.pulse().part != Part::Joining
            && let Some(removed) = look(&handle, suspects).await
            && removed != noted
        {
            // For people who look at the directory. The node itself does without.
            match handle.dir.note_removed(removed) {
                Ok(()) => noted = removed,
                Err(error) => tracing::debug!(%error, "it could not be noted"),
            }
        }
        // However often it is turned away.
        sleep(ASK).await;
    }
}

/// Asks, if there is a reason to suspect it or nothing was heard for long, and keeps the answer. Whether this node was
/// removed, unless nobody says.
async fn look(handle: &Handle, suspects: bool) -> Option<bool> {
    let step = handle.departure.step().borrow().clone();
    if step.is_leaving() || step == Step::Left {
        // It goes of its own will.
        return None;
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
    let verdict = match epoch {
        None if cut_off => verdict(handle).await,
        // Those of a later epoch turn away everyone of an earlier one.
        _ => Verdict::Member,
    };
    match verdict {
        Verdict::Removed { cause } => {
            if !handle.removed.send_replace(true) {
                tracing::error!(
                    %cause,
                    "this node was removed from its mesh; try: mesh down, then mesh join TICKET --dir DIR"
                );
            }
            Some(true)
        }
        Verdict::Unknown if !handle.shown.is_fresh(CUT_OFF) => None,
        // Nobody speaks against one that is up to date: it may vote alone by now.
        Verdict::Member | Verdict::Unknown => {
            handle.removed.send_replace(false);
            Some(false)
        }
    }
}

/// Whether the state says so, or a majority of the other voters that this node knows.
pub async fn is_removed(handle: &Handle) -> bool {
    matches!(verdict(handle).await, Verdict::Removed { .. })
}

async fn verdict(handle: &Handle) -> Verdict {
    let me = handle.whoami.node;
    let roster = handle.roster();
    if roster.removed.contains(&me) {
        return Verdict::Removed { cause: "its own state says so".into() };
    }
    let others = roster.voters.iter().filter(|node| **node != me);
    let asked = others.map(|node| word(handle, *node));
    judge(&futures::future::join_all(asked).await)
}

/// What the words of the other voters come to.
fn judge(words: &[Word]) -> Verdict {
    let away = words.iter().filter(|word| **word == Word::Away).count();
    if is_majority(away, words.len()) {
        let cause = format!("{away} of {} other voters turn it away as no member", words.len());
        return Verdict::Removed { cause };
    }
    if words.contains(&Word::Member) { Verdict::Member } else { Verdict::Unknown }
}

/// A later epoch than this node's, if a member that sits, as far as this node knows, and that it does not hear is in one:
/// somebody recovered the mesh without this node, and perhaps without need. Good for a hint to people, and for nothing
/// else: it is the word of one.
pub async fn later_epoch(handle: &Handle) -> Option<Epoch> {
    let roster = handle.roster();
    let me = handle.whoami.node;
    let request = encode(&JoinRequest::Where).ok()?;
    let links: Vec<NodeId> = handle.net.links().iter().map(|link| link.node).collect();
    // Whoever talks to us is in our epoch.
    let asked = |node: NodeId| may_know(&roster, me, node) && !links.contains(&node);
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

/// Whether `node` is one to ask: from the log of any that sits the mesh may have been recovered. Who votes alone asks
/// everybody: it may lead on by itself for ever, and hear of nothing.
fn may_know(roster: &Roster, me: NodeId, node: NodeId) -> bool {
    let alone = roster.voters.iter().all(|voter| *voter == me);
    roster.seated.contains(&node) || (alone && roster.members.contains_key(&node))
}

/// Whether `count` are more than half of `all`.
pub fn is_majority(count: usize, all: usize) -> bool {
    2 * count > all
}

/// Whether a voter says that this node is no member: it has then applied its removal.
pub async fn turns_away(handle: &Handle, node: NodeId) -> bool {
    word(handle, node).await == Word::Away
}

async fn word(handle: &Handle, node: NodeId) -> Word {
    let Ok(request) = encode(&Request::ReadIndex) else { return Word::Nothing };
    match handle.net.call(node, request, ASK).await {
        // One that is merely leaving is refused an answer, but keeps its connection.
        Ok(_) | Err(CallError::Refused(_)) => Word::Member,
        Err(error) if is_turned_away(&error) => Word::Away,
        Err(_) => Word::Nothing,
    }
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
    use mesh_consensus::id::PartyId;

    use super::*;
    use crate::engine::Place;

    #[test]
    fn half_of_the_others_is_not_enough() {
        assert!(is_majority(1, 1) && is_majority(2, 3) && is_majority(3, 4));
        assert!(!is_majority(0, 0) && !is_majority(1, 2) && !is_majority(2, 4));
    }

    #[test]
    fn while_nobody_says_anything_what_was_known_stands() {
        use Word::{Away, Member, Nothing};
        for words in [&[Away][..], &[Away, Away, Nothing], &[Away, Away, Member]] {
            assert!(matches!(judge(words), Verdict::Removed { .. }), "{words:?}");
        }
        for words in [&[Member][..], &[Away, Member], &[Away, Member, Nothing]] {
            assert_eq!(judge(words), Verdict::Member, "{words:?}");
        }
        // Nobody else votes, or they are down.
        let nobody: &[Word] = &[];
        for words in [nobody, &[Nothing, Nothing], &[Away, Nothing, Nothing]] {
            assert_eq!(judge(words), Verdict::Unknown, "{words:?}");
        }
    }

    #[test]
    fn a_sole_voter_asks_everybody_for_a_later_epoch_and_others_those_who_sit() {
        let [me, sits, watches] = [1, 2, 3].map(|n| NodeId([n; 32]));
        let place = |n: u8| Place {
            name: format!("n{n}").parse().unwrap(),
            party: PartyId([7; 32]),
            seat: None,
            leaving: false,
            worker: false,
        };
        let members = [(me, place(1)), (sits, place(2)), (watches, place(3))].into();
        let alone = Roster { members, voters: [me].into(), ..Roster::default() };
        assert!(may_know(&alone, me, sits) && may_know(&alone, me, watches));
        assert!(!may_know(&alone, me, NodeId([4; 32])), "it is no member");
        let seated = [me, sits].into();
        let several = Roster { voters: [me, sits].into(), seated, ..alone };
        assert!(may_know(&several, me, sits) && !may_know(&several, me, watches));
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
