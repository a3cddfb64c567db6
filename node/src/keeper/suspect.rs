//! Saying, in the name of this node's party, who seems down.

use std::time::{Duration, Instant};

use mesh_consensus::id::NodeId;

use super::write;
use crate::awareness::view::View;
use crate::engine::Roster;
use crate::handle::Handle;
use crate::state::command::Suspect;

/// A member that is silent for this long is suspected.
const SUSPECT: Duration = Duration::from_secs(60);
/// Only who knows itself to be up to date suspects others.
const FRESH: Duration = Duration::from_secs(5);

/// Says for this node's party who seems down. One node of each party speaks: the first that is up.
pub(super) async fn suspect(handle: &Handle) {
    let me = handle.whoami.node;
    let roster = handle.roster();
    let Some(own) = roster.party_of(me) else { return };
    if speaker(&roster, me, |node| handle.hub.is_alive(node)) != Some(me)
        || !handle.shown.is_fresh(FRESH)
    {
        return;
    }
    let links: Vec<NodeId> = handle.net.links().iter().map(|link| link.node).collect();
    let seen = handle.hub.look(|view, now| opinions(&roster, me, view, &links, now));
    let wrong = handle.look(move |see| {
        let state = see.replica.machine();
        let says = |node: &NodeId| {
            state.members().get(node).is_some_and(|member| member.down_by.contains(&own))
        };
        seen.into_iter().filter(|one| says(&one.node) != one.down).collect::<Vec<Suspect>>()
    });
    for one in wrong.await.unwrap_or_default() {
        write(handle, one).await;
    }
}

/// Who speaks for the party of `me`.
fn speaker(roster: &Roster, me: NodeId, is_alive: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let own = roster.party_of(me)?;
    let siblings = roster.members.iter().filter(|(_, place)| place.party == own && !place.leaving);
    siblings.map(|(node, _)| *node).find(|node| is_alive(*node))
}

/// Of each other node with a seat, whether it seems down: it was silent for long, and no connection stands. One that
/// has not been heard since this node began to listen was silent all the while.
fn opinions(
    roster: &Roster,
    me: NodeId,
    view: &View,
    links: &[NodeId],
    now: Instant,
) -> Vec<Suspect> {
    let seated = roster.seated.iter().copied().filter(|node| *node != me);
    seated
        .map(|node| {
            let silent = view.silence(node, now) > SUSPECT;
            Suspect { node, down: silent && !links.contains(&node) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::{MeshId, PartyId};

    use super::*;
    use crate::awareness::hub::SILENT;
    use crate::clock;
    use crate::engine::Place;

    /// Two nodes of one party, 1 and 2, and one of another, 3; all have seats.
    fn roster() -> Roster {
        let place = |n: u8| Place {
            name: format!("n{n}").parse().unwrap(),
            party: PartyId([if n == 3 { 9 } else { 8 }; 32]),
            seat: None,
            leaving: false,
            worker: false,
        };
        let members = [1, 2, 3].map(|n| (node(n), place(n)));
        Roster {
            index: 1,
            members: members.into(),
            seated: [1, 2, 3].map(node).into(),
            ..Roster::default()
        }
    }

    fn node(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    /// What a node that was started together with all others has heard since: nobody.
    fn deaf(began: Instant) -> View {
        let mut view = View::new(MeshId([1; 32]), began);
        view.expect(began, roster().everyone());
        for second in 0..=200 {
            view.on_tick(began + Duration::from_secs(second));
        }
        view
    }

    #[test]
    fn a_dead_voter_of_another_party_that_was_never_heard_is_suspected_after_a_minute() {
        let began = clock::steady();
        let view = deaf(began);
        let at = |seconds| {
            let now = began + Duration::from_secs(seconds);
            opinions(&roster(), node(1), &view, &[node(2)], now)
        };
        let down = |node, down| Suspect { node, down };
        assert_eq!(at(50), [down(node(2), false), down(node(3), false)]);
        // The one with a connection is there, though it says nothing.
        assert_eq!(at(70), [down(node(2), false), down(node(3), true)]);
    }

    #[test]
    fn a_newcomer_has_a_minute_to_say_something() {
        let began = clock::steady();
        let mut view = deaf(began);
        let (roster, newcomer) = (roster(), node(4));
        let at =
            |view: &View, seconds| view.silence(newcomer, began + Duration::from_secs(seconds));
        assert_eq!(at(&view, 100), Duration::ZERO);
        view.expect(
            began + Duration::from_secs(100),
            roster.everyone().into_iter().chain([newcomer]),
        );
        assert_eq!(at(&view, 130), Duration::from_secs(30));
        assert_eq!(view.silence(node(3), began + Duration::from_secs(130)).as_secs(), 130);
    }

    #[test]
    fn a_dead_sibling_that_was_never_heard_does_not_speak_for_the_party_for_ever() {
        let began = clock::steady();
        let view = deaf(began);
        let at = |seconds| {
            let now = began + Duration::from_secs(seconds);
            // As the hub judges.
            let heard = |one| one == node(2) || view.silence(one, now) < SILENT;
            speaker(&roster(), node(2), heard)
        };
        assert_eq!(at(10), Some(node(1)), "it may yet speak");
        assert_eq!(at(130), Some(node(2)));
        assert_eq!(speaker(&roster(), node(7), |_| true), None, "no member");
    }
}
