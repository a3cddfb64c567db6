//! Labels and drains: what a party says about its nodes.
//!
//! A label is a word with a value (`site=north`, `gpu=H100`) by which jobs can choose nodes. A
//! drained node is given no new work; what it has, its data and its vote stay with it: draining is
//! about work, and taking a vote away is the autopilot's business.
//!
//! Both are for any node of the same party to say, and go when the member goes. A worker may, too: what
//! it lacks is the key that binds the party towards others, and this binds nobody else. It can as well
//! drop its party's data. About another party's nodes nobody has a say here, whatever key it has.

use std::fmt;
use std::str::FromStr;

use mesh_consensus::id::NodeId;
use mesh_consensus::machine::At;
use serde::{Deserialize, Deserializer, Serialize};

use super::Facts;
use super::command::{Drain, Label};
use super::refusal::Refusal;

/// A node has at most this many labels.
pub const MAX_LABELS: usize = 32;

/// The longest value, in bytes.
pub const MAX_LABEL_BYTES: usize = 63;

/// A label's value: `[A-Za-z0-9][A-Za-z0-9._:/+-]{0,62}`.
///
/// No other value exists: reading one from bytes checks it as well.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LabelValue(String);

/// The text cannot be a label's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a label's value: 1 to {MAX_LABEL_BYTES} letters, digits and '.', '_', ':', '/', '+', '-', the first a letter or digit"
)]
pub struct ParseLabelError {
    found: String,
}

impl LabelValue {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for LabelValue {
    type Error = ParseLabelError;

    fn try_from(text: String) -> Result<Self, ParseLabelError> {
        let fits = match text.as_bytes() {
            [first, rest @ ..] => {
                let fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:/+-".contains(byte);
                first.is_ascii_alphanumeric()
                    && rest.len() < MAX_LABEL_BYTES
                    && rest.iter().all(fine)
            }
            [] => false,
        };
        if fits {
            Ok(Self(text))
        } else {
            Err(ParseLabelError { found: text.chars().take(MAX_LABEL_BYTES + 1).collect() })
        }
    }
}

impl FromStr for LabelValue {
    type Err = ParseLabelError;

    fn from_str(text: &str) -> Result<Self, ParseLabelError> {
        text.to_owned().try_into()
    }
}

impl<'de> Deserialize<'de> for LabelValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for LabelValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Facts {
    pub(super) fn label(&mut self, at: &At, act: Label) -> Result<(), Refusal> {
        self.check_own_node(at.author, act.node)?;
        let has = self.extras.labels.get(&act.node);
        let Some(value) = act.value else {
            return self.unlabel(act);
        };
        let is_new = has.is_none_or(|labels| !labels.contains_key(&act.key));
        if is_new && has.is_some_and(|labels| labels.len() >= MAX_LABELS) {
            return Err(Refusal::TooManyLabels);
        }
        self.extras.labels.entry(act.node).or_default().insert(act.key, value);
        Ok(())
    }

    /// That there is no such label is what was asked for, so it is not refused.
    fn unlabel(&mut self, act: Label) -> Result<(), Refusal> {
        if let Some(labels) = self.extras.labels.get_mut(&act.node) {
            labels.remove(&act.key);
            // One encoding for one state: a node without labels is not listed.
            if labels.is_empty() {
                self.extras.labels.remove(&act.node);
            }
        }
        Ok(())
    }

    pub(super) fn drain(&mut self, at: &At, act: &Drain) -> Result<(), Refusal> {
        self.check_own_node(at.author, act.node)?;
        if act.on {
            self.extras.drained.insert(act.node);
        } else {
            self.extras.drained.remove(&act.node);
        }
        Ok(())
    }

    /// Whether `node` is a member of the author's own party.
    fn check_own_node(&self, author: NodeId, node: NodeId) -> Result<(), Refusal> {
        let party = self.staying(node).ok_or(Refusal::NoSuchMember)?.party;
        self.check_own_party(author, party)
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::RaftId;
    use mesh_consensus::machine::StateMachine;

    use super::super::command::Rejoin;
    use super::super::testing::{Scene, id, name, node, party};
    use super::*;

    fn label(n: u8, key: &str, value: Option<&str>) -> Label {
        Label { node: id(n), key: name(key), value: value.map(|text| text.parse().unwrap()) }
    }

    fn drain(n: u8, on: bool) -> Drain {
        Drain { node: id(n), on }
    }

    /// Three parties with a node each, and a second node, 4, of the first.
    fn scene() -> Scene {
        let mut scene = Scene::of_parties(3);
        scene.join(1, 4).unwrap();
        scene.raise_to(3);
        scene
    }

    fn labels(scene: &Scene, n: u8) -> Vec<String> {
        scene.state.labels(id(n)).map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn a_value_is_short_and_plain() {
        let long = "x".repeat(MAX_LABEL_BYTES);
        for fine in ["H100", "0", "eu/north:rack-3", "10.2+cu12", "a_b", &long] {
            assert_eq!(fine.parse::<LabelValue>().unwrap().as_str(), fine);
        }
        let longer = "x".repeat(MAX_LABEL_BYTES + 1);
        for bad in ["", " ", "a b", "-a", "é", "a\n", "a\"", "<b>", "a,b", "a=b", &longer] {
            assert!(bad.parse::<LabelValue>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_party_labels_its_own_nodes() {
        let mut scene = scene();
        assert_eq!(scene.act(&node(1), label(4, "site", Some("north"))), Ok(()));
        assert_eq!(scene.act(&node(4), label(4, "gpu", Some("H100"))), Ok(()));
        assert_eq!(labels(&scene, 4), ["gpu=H100", "site=north"]);
        assert_eq!(scene.act(&node(1), label(4, "site", Some("south"))), Ok(()));
        assert_eq!(scene.act(&node(1), label(4, "gpu", None)), Ok(()));
        assert_eq!(labels(&scene, 4), ["site=south"]);
        assert_eq!(scene.act(&node(1), label(4, "site", None)), Ok(()));
        assert_eq!(scene.act(&node(1), label(4, "site", None)), Ok(()));
        assert_eq!(labels(&scene, 4), [""; 0]);
        assert!(scene.state.facts.extras.labels.is_empty());
    }

    #[test]
    fn nobody_labels_or_drains_another_partys_node() {
        let mut scene = scene();
        let site = label(1, "site", Some("north"));
        assert_eq!(scene.act(&node(2), site.clone()), Err(Refusal::WrongParty));
        assert_eq!(scene.act(&node(2), drain(1, true)), Err(Refusal::WrongParty));
        // Another party's signature is no right either, nor is a stranger's word.
        assert_eq!(scene.signed(&node(2), &party(1), site.clone()), Err(Refusal::WrongParty));
        assert_eq!(scene.act(&node(9), site), Err(Refusal::NotMember));
        assert_eq!(scene.act(&node(9), drain(1, true)), Err(Refusal::NotMember));
        let absent = label(9, "site", Some("north"));
        assert_eq!(scene.act(&node(1), absent), Err(Refusal::NoSuchMember));
        assert_eq!(scene.act(&node(1), drain(9, true)), Err(Refusal::NoSuchMember));
        assert!(!scene.state.is_drained(id(1)));
    }

    #[test]
    fn a_worker_labels_and_drains_its_partys_nodes_and_no_others() {
        let mut scene = scene();
        scene.join_as_worker(1, 5).unwrap();
        scene.seat_voters(&[1, 2, 3]);
        assert_eq!(scene.act(&node(5), drain(1, true)), Ok(()));
        assert_eq!(scene.act(&node(5), label(4, "site", Some("north"))), Ok(()));
        assert!(scene.state.is_drained(id(1)));
        for theirs in [2, 3] {
            assert_eq!(scene.act(&node(5), drain(theirs, true)), Err(Refusal::WrongParty));
            let site = label(theirs, "site", Some("north"));
            assert_eq!(scene.act(&node(5), site.clone()), Err(Refusal::WrongParty));
            assert_eq!(scene.signed(&node(5), &party(1), site), Err(Refusal::WrongParty));
        }
    }

    #[test]
    fn a_node_has_a_bounded_number_of_labels() {
        let mut scene = scene();
        for n in 0..MAX_LABELS {
            scene.act(&node(1), label(1, &format!("l{n}"), Some("x"))).unwrap();
        }
        let more = label(1, "more", Some("x"));
        assert_eq!(scene.act(&node(1), more.clone()), Err(Refusal::TooManyLabels));
        // One that is there can change, and another node has its own room.
        assert_eq!(scene.act(&node(1), label(1, "l0", Some("y"))), Ok(()));
        assert_eq!(scene.act(&node(1), label(4, "more", Some("x"))), Ok(()));
        scene.act(&node(1), label(1, "l0", None)).unwrap();
        assert_eq!(scene.act(&node(1), more), Ok(()));
    }

    #[test]
    fn a_drained_node_keeps_its_vote() {
        let mut scene = scene();
        scene.seat_voters(&[1, 2, 3]);
        scene.report(1, |report| report.fsync_p99_us = Some(1000));
        let before = scene.state.config().clone();
        assert_eq!(scene.act(&node(4), drain(1, true)), Ok(()));
        assert!(scene.state.is_drained(id(1)) && scene.state.is_fit_to_vote(id(1)));
        assert_eq!(*scene.state.config(), before);
        assert!(scene.state.allows(&before));
        assert_eq!(scene.act(&node(1), drain(1, false)), Ok(()));
        assert!(!scene.state.is_drained(id(1)));
    }

    #[test]
    fn labels_and_drains_go_with_the_member_and_no_earlier() {
        let mut scene = scene();
        scene.seat_voters(&[1, 4]);
        scene.act(&node(1), label(4, "site", Some("north"))).unwrap();
        scene.act(&node(1), drain(4, true)).unwrap();
        // A new data directory is still the same machine.
        scene.act(&node(4), Rejoin {}).unwrap();
        assert_eq!((labels(&scene, 4).len(), scene.state.is_drained(id(4))), (1, true));
        scene.seat_voters(&[1, 4]);
        scene.leave(4).unwrap();
        assert_eq!((labels(&scene, 4).len(), scene.state.is_drained(id(4))), (1, true));
        assert_eq!(scene.act(&node(1), drain(4, false)), Err(Refusal::NoSuchMember));
        scene.seat_voters(&[1]);
        assert_eq!((labels(&scene, 4).len(), scene.state.is_drained(id(4))), (0, false));
    }

    #[test]
    fn who_was_leaving_when_the_mesh_was_recovered_leaves_nothing_behind() {
        let mut scene = scene();
        scene.seat_voters(&[1, 4]);
        scene.act(&node(1), label(4, "site", Some("north"))).unwrap();
        scene.leave(4).unwrap();
        scene.state.on_recovery(scene.index + 1, 1, RaftId(1));
        assert_eq!(labels(&scene, 4), [""; 0]);
        assert_eq!(scene.state.facts.flaw(), None);
    }
}
