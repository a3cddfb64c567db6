//! Changes of voters, and their signatures: what [`mesh_consensus::handover`] needs.
//!
//! Each change of voters is noted when it is applied, which is the same place on every node. Those who voted
//! before sign it, each with a command of its own, until a majority has. The latest changes are kept, so
//! that a node which slept through all of them can be shown who votes now.

use std::collections::BTreeSet;

use mesh_consensus::handover::Handover;
use mesh_consensus::id::{NodeId, RaftId};
use mesh_consensus::log::Config;
use mesh_consensus::machine::At;

use super::Facts;
use super::command::HandOver;
use super::extras::SINCE;
use super::refusal::Refusal;

/// Changes that are kept. Whoever slept through more has to take a new seat.
pub(super) const MAX_HANDOVERS: usize = 64;

const SIGNATURE_BYTES: usize = 64;

/// Whether what is kept is what could have been noted and signed.
pub(super) fn is_sound((index, handover): (&u64, &Handover)) -> bool {
    handover.index == *index
        && !handover.from.is_empty()
        && handover.from != handover.to
        && handover.signed.keys().all(|node| handover.from.contains(node))
        && handover.signed.values().all(|signature| signature.len() == SIGNATURE_BYTES)
}

impl Facts {
    /// Notes who votes from `index` on, if that changes.
    pub(super) fn note_handover(&mut self, index: u64, next: &Config) {
        if self.level.number < SINCE {
            return;
        }
        let nodes = |seats: &BTreeSet<RaftId>| -> BTreeSet<NodeId> {
            seats.iter().filter_map(|seat| self.node_at(*seat)).collect()
        };
        let (from, to) = (nodes(&self.config.voters), nodes(&next.voters));
        if from.is_empty() || from == to {
            return;
        }
        let handovers = &mut self.extras.handovers;
        handovers.insert(index, Handover::new(index, from, to));
        while handovers.len() > MAX_HANDOVERS {
            handovers.pop_first();
        }
    }

    /// One who voted before a change signs it.
    pub(super) fn hand_over(&mut self, at: &At, act: &HandOver) -> Result<(), Refusal> {
        let handover = self.extras.handovers.get_mut(&act.index);
        let handover = handover.filter(|handover| !handover.is_complete());
        let handover = handover.ok_or(Refusal::NoSuchHandover)?;
        if !handover.is_signed(at.author, &act.signature.0, at.mesh, at.epoch) {
            return Err(Refusal::BadHandover);
        }
        handover.signed.insert(at.author, act.signature.0.to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scene, id, node};
    use super::*;
    use mesh_consensus::machine::StateMachine as _;

    fn sign(scene: &mut Scene, by: u8) -> HandOver {
        let at = scene.at(&node(by));
        let handover = scene.state.handovers().last().unwrap();
        let signature = handover.sign(&node(by), at.mesh, at.epoch);
        HandOver {
            index: handover.index,
            signature: super::super::party::SignatureBytes(signature),
        }
    }

    /// Three vote; none of that is signed.
    fn three() -> Scene {
        let mut scene = Scene::at_top();
        for n in 2..=4 {
            scene.join(1, n).unwrap();
        }
        scene.seat_voters(&[1, 2, 3]);
        scene
    }

    #[test]
    fn each_change_of_voters_is_signed_by_a_majority_of_those_before() {
        let mut scene = three();
        let first = scene.state.handovers().last().unwrap().clone();
        assert_eq!((first.from, first.to), ([id(1)].into(), [id(1), id(2), id(3)].into()));
        scene.seat_voters(&[1, 2, 4]);
        assert_eq!(scene.state.handovers().count(), 2);
        // One of the new voters has no say, nor has one who did not vote.
        let by_new = sign(&mut scene, 4);
        assert_eq!(scene.act(&node(4), by_new), Err(Refusal::BadHandover));
        let by_first = sign(&mut scene, 1);
        assert_eq!(scene.act(&node(2), by_first.clone()), Err(Refusal::BadHandover));
        assert_eq!(scene.act(&node(1), by_first), Ok(()));
        assert!(!scene.state.handovers().last().unwrap().is_complete());
        let by_second = sign(&mut scene, 2);
        assert_eq!(scene.act(&node(2), by_second), Ok(()));
        let at = scene.at(&node(1));
        assert!(scene.state.handovers().last().unwrap().is_proven(at.mesh, at.epoch));
        let too_late = sign(&mut scene, 3);
        assert_eq!(scene.act(&node(3), too_late), Err(Refusal::NoSuchHandover));
    }

    #[test]
    fn a_joint_change_is_noted_once_and_learners_are_none() {
        let mut scene = three();
        let seat = |n: u8| scene.state.seat_of(id(n)).unwrap();
        let (old, new) = ([seat(1), seat(2), seat(3)], [seat(1), seat(2), seat(4)]);
        let learner =
            Config { voters: old.into(), learners: [seat(4)].into(), ..Config::default() };
        let joint = Config { voters: new.into(), outgoing: old.into(), ..Config::default() };
        let after = Config { voters: new.into(), ..Config::default() };
        for (index, config, count) in [(800, learner, 1), (801, joint, 2), (802, after, 2)] {
            scene.state.on_config(index, &config);
            assert_eq!(scene.state.handovers().count(), count, "at {index}");
        }
    }

    #[test]
    fn the_latest_changes_are_kept_and_a_recovery_ends_them_all() {
        let mut scene = three();
        for turn in 0..MAX_HANDOVERS {
            scene.seat_voters(if turn % 2 == 0 { &[1, 2] } else { &[1, 2, 3] });
        }
        assert_eq!(scene.state.handovers().count(), MAX_HANDOVERS);
        let bytes = scene.state.snapshot();
        let mut again = super::super::State::blank(scene.state.supports());
        again.restore(&bytes).unwrap();
        assert_eq!(again, scene.state);
        let survivor = scene.state.seat_of(id(1)).unwrap();
        scene.state.on_recovery(9_000, 1, survivor);
        assert_eq!(scene.state.handovers().count(), 0);
    }
}
