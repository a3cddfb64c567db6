//! What a party is to have of what all share: its weight beside the others, and the most that it may have at once.
//!
//! It concerns every party, as what one has the others lack. So a majority of them says it, by a request
//! ([`super::request::JointAct::Allow`]); a party that is alone says it by itself. A party of which nothing was said has weight 1
//! and no limit.
//!
//! In a snapshot it follows everything else, from level 7 on.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use mesh_consensus::id::PartyId;
use serde::{Deserialize, Serialize};

use super::Facts;
use super::refusal::Refusal;
use crate::scheduler::Quota;

/// The level from which on a snapshot holds them.
pub const SINCE: u16 = 7;

/// What a weight can be.
pub const WEIGHTS: RangeInclusive<u32> = 1..=1000;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// A party of weight 2 gets twice as much as one of weight 1, where both want more than there is.
    pub weight: u32,
    /// The most that its jobs may have at once.
    pub quota: Quota,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, quota: Quota::default() }
    }
}

/// Of parties that have another share than the usual one.
pub(super) type Shares = BTreeMap<PartyId, Share>;

impl Facts {
    pub(super) fn check_share(&self, party: PartyId, share: &Share) -> Result<(), Refusal> {
        match () {
            () if !self.parties.contains_key(&party) => Err(Refusal::NoSuchParty),
            () if !WEIGHTS.contains(&share.weight) => Err(Refusal::BadShare),
            () => Ok(()),
        }
    }

    pub(super) fn set_share(&mut self, party: PartyId, share: Share) {
        match share == Share::default() {
            true => self.shares.remove(&party),
            false => self.shares.insert(party, share),
        };
    }

    /// Whether what is kept can be what was kept.
    pub(super) fn are_shares_sound(&self) -> bool {
        self.shares.iter().all(|(party, share)| {
            self.check_share(*party, share).is_ok() && *share != Share::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_consensus::machine::StateMachine as _;

    use super::super::State;
    use super::super::command::{RequestOpen, RequestSign};
    use super::super::request::{JointAct, RequestId};
    use super::super::testing::{Scene, node, party, party_id};
    use super::*;

    fn share(weight: u32) -> Share {
        Share { weight, quota: Quota { cpu_milli: Some(64_000), gpus: Some(8) } }
    }

    fn allow(scene: &Scene, n: u8, share: Share) -> RequestOpen {
        let act = JointAct::Allow { party: party_id(n), share };
        RequestOpen { act, expires: scene.time.after(Duration::from_secs(60)) }
    }

    fn scene(parties: u8) -> Scene {
        let mut scene = Scene::of_parties(parties);
        scene.raise_to(SINCE);
        scene
    }

    #[test]
    fn a_party_that_is_alone_says_so_itself() {
        let mut scene = scene(1);
        assert_eq!(scene.state.share(party_id(1)), Share::default());
        let act = allow(&scene, 1, share(3));
        assert_eq!(scene.act(&node(1), act.clone()), Err(Refusal::Unsigned));
        assert_eq!(scene.signed(&node(1), &party(1), act), Ok(()));
        assert_eq!(scene.state.share(party_id(1)), share(3));
        let mut other = State::blank(SINCE);
        other.restore(&scene.state.snapshot()).unwrap();
        assert_eq!(other.share(party_id(1)), share(3));
        let act = allow(&scene, 1, Share::default());
        assert_eq!(scene.signed(&node(1), &party(1), act), Ok(()));
        assert!(scene.state.facts.shares.is_empty());
    }

    #[test]
    fn among_several_a_majority_says_it_of_oneself_too() {
        let mut scene = scene(3);
        let act = allow(&scene, 1, share(3));
        scene.signed(&node(1), &party(1), act).unwrap();
        assert_eq!(scene.state.share(party_id(1)), Share::default());
        let request = RequestId::at(scene.index, 0);
        let sign = RequestSign { request, yes: true };
        scene.signed(&node(2), &party(2), sign).unwrap();
        assert_eq!(scene.state.share(party_id(1)), share(3));
        assert_eq!(scene.state.share(party_id(2)), Share::default());
    }

    #[test]
    fn odd_weights_and_unknown_parties_are_refused() {
        let mut scene = scene(1);
        for weight in [0, 1001, u32::MAX] {
            let act = allow(&scene, 1, share(weight));
            assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::BadShare));
        }
        let act = allow(&scene, 9, share(2));
        assert_eq!(scene.signed(&node(1), &party(1), act), Err(Refusal::NoSuchParty));
    }

    #[test]
    fn below_its_level_it_is_what_an_older_binary_takes_it_for() {
        let mut scene = Scene::of_parties(1);
        scene.raise_to(SINCE - 1);
        let act = allow(&scene, 1, share(2));
        assert_eq!(scene.signed(&node(1), &party(1), act.clone()), Err(Refusal::Malformed));
        // Also from whom would be refused for another reason otherwise.
        assert_eq!(scene.act(&node(99), act), Err(Refusal::Malformed));
    }
}
