//! Names: what they may look like, and what a party's names stand for.
//!
//! A party's names (`clinic-a/xray`) each stand for one hash. They change by compare-and-set: who
//! changes one says what it stood for, so of two writers at once one is told that it came late.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use mesh_consensus::id::{Hash, NodeId, PartyId};
use mesh_consensus::machine::At;
use serde::{Deserialize, Deserializer, Serialize};

use super::Facts;
use super::command::{NameDrop, NameSet};
use super::refusal::Refusal;

/// A party has at most this many names: about 10 MB of state.
pub const MAX_NAMES: usize = 100_000;

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 63;

/// A name of a node, a party or content: `[a-z0-9][a-z0-9._-]{0,62}`.
///
/// No other value exists: reading one from bytes checks it as well.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Name(String);

/// The text cannot be a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a name: 1 to {MAX_NAME_BYTES} of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
)]
pub struct ParseNameError {
    found: String,
}

impl Name {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = ParseNameError;

    fn try_from(text: String) -> Result<Self, ParseNameError> {
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = match text.as_bytes() {
            [first, rest @ ..] => {
                plain(first)
                    && rest.len() < MAX_NAME_BYTES
                    && rest.iter().all(|byte| plain(byte) || b"._-".contains(byte))
            }
            [] => false,
        };
        if fits {
            Ok(Self(text))
        } else {
            Err(ParseNameError { found: text.chars().take(MAX_NAME_BYTES + 1).collect() })
        }
    }
}

impl FromStr for Name {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        text.to_owned().try_into()
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Facts {
    pub(super) fn name_set(&mut self, at: &At, act: NameSet) -> Result<(), Refusal> {
        self.check_own_party(at.author, act.party)?;
        let names = self.names.get(&act.party);
        let stands = names.and_then(|names| names.get(&act.name));
        if stands != act.expect.as_ref() {
            return Err(Refusal::NameChanged);
        }
        if stands.is_none() && names.map_or(0, BTreeMap::len) >= MAX_NAMES {
            return Err(Refusal::TooManyNames);
        }
        self.names.entry(act.party).or_default().insert(act.name, act.to);
        Ok(())
    }

    pub(super) fn name_drop(&mut self, at: &At, act: &NameDrop) -> Result<(), Refusal> {
        self.check_own_party(at.author, act.party)?;
        let Some(names) = self.names.get_mut(&act.party) else { return Err(Refusal::NameChanged) };
        if names.get(&act.name) != Some(&act.expect) {
            return Err(Refusal::NameChanged);
        }
        names.remove(&act.name);
        // One encoding for one state: a party without names is not listed.
        if names.is_empty() {
            self.names.remove(&act.party);
        }
        Ok(())
    }

    pub(super) fn name(&self, party: PartyId, name: &Name) -> Option<Hash> {
        self.names.get(&party)?.get(name).copied()
    }

    pub(super) fn check_own_party(&self, author: NodeId, party: PartyId) -> Result<(), Refusal> {
        let member = self.staying(author).ok_or(Refusal::NotMember)?;
        if member.party == party { Ok(()) } else { Err(Refusal::WrongParty) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scene, id, name, node, party, party_id};
    use super::*;

    fn set(
        party: PartyId,
        label: &str,
        expect: Option<Hash>,
        to: Hash,
    ) -> super::super::command::Act {
        NameSet { party, name: name(label), expect, to }.into()
    }

    #[test]
    fn names_are_lower_case_short_and_start_with_a_letter_or_digit() {
        let longest = "a".repeat(MAX_NAME_BYTES);
        for good in ["a", "0", "xray", "clinic-a", "a.b_c-d", "9-", longest.as_str()] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for bad in ["", "A", "-a", ".a", "_a", "a/b", "a b", "é", "a\n", "a@3", long.as_str()] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_read_from_bytes_is_checked_too() {
        let good = postcard::to_stdvec("xray").unwrap();
        assert_eq!(postcard::from_bytes::<Name>(&good).unwrap(), name("xray"));
        let bad = postcard::to_stdvec("X-Ray").unwrap();
        assert!(postcard::from_bytes::<Name>(&bad).is_err());
    }

    #[test]
    fn of_two_who_set_a_new_name_the_second_is_told() {
        let mut scene = Scene::new();
        let alpha = party_id(1);
        let (first, second) = (Hash([1; 32]), Hash([2; 32]));
        assert_eq!(scene.act(&node(1), set(alpha, "xray", None, first)), Ok(()));
        let late = set(alpha, "xray", None, second);
        assert_eq!(scene.act(&node(1), late), Err(Refusal::NameChanged));
        assert_eq!(scene.state.name(alpha, &name("xray")), Some(first));
    }

    #[test]
    fn a_name_changes_only_from_what_it_stands_for() {
        let mut scene = Scene::new();
        let alpha = party_id(1);
        let (first, second) = (Hash([1; 32]), Hash([2; 32]));
        let absent = set(alpha, "xray", Some(first), second);
        assert_eq!(scene.act(&node(1), absent), Err(Refusal::NameChanged));
        scene.act(&node(1), set(alpha, "xray", None, first)).unwrap();
        let wrong = set(alpha, "xray", Some(second), second);
        assert_eq!(scene.act(&node(1), wrong), Err(Refusal::NameChanged));
        let right = set(alpha, "xray", Some(first), second);
        assert_eq!(scene.act(&node(1), right), Ok(()));
        assert_eq!(scene.state.name(alpha, &name("xray")), Some(second));
    }

    #[test]
    fn a_partys_names_are_set_by_its_own_nodes_only() {
        let mut scene = Scene::two_parties();
        let to = Hash([1; 32]);
        let theirs = set(party_id(1), "xray", None, to);
        assert_eq!(scene.act(&node(2), theirs.clone()), Err(Refusal::WrongParty));
        // Not even with the signature of the party that would have to vouch for the node.
        assert_eq!(scene.signed(&node(2), &party(1), theirs), Err(Refusal::WrongParty));
        let own = set(party_id(2), "xray", None, to);
        assert_eq!(scene.act(&node(2), own), Ok(()));
        let unknown = set(party_id(9), "xray", None, to);
        assert_eq!(scene.act(&node(2), unknown), Err(Refusal::WrongParty));
    }

    #[test]
    fn a_stranger_or_a_leaving_node_sets_no_name() {
        let mut scene = Scene::two_parties();
        let to = Hash([1; 32]);
        let stranger = set(party_id(1), "xray", None, to);
        assert_eq!(scene.act(&node(9), stranger), Err(Refusal::NotMember));
        scene.seat_voters(&[1, 2]);
        scene.act(&node(2), super::super::command::Leave { node: id(2) }).unwrap();
        let leaving = set(party_id(2), "xray", None, to);
        assert_eq!(scene.act(&node(2), leaving), Err(Refusal::NotMember));
    }

    #[test]
    fn a_name_is_dropped_by_its_party_if_it_stands_for_what_was_expected() {
        let mut scene = Scene::two_parties();
        scene.raise_to(2);
        let alpha = party_id(1);
        let (first, second) = (Hash([1; 32]), Hash([2; 32]));
        let drop = |expect| NameDrop { party: alpha, name: name("xray"), expect };
        assert_eq!(scene.act(&node(1), drop(first)), Err(Refusal::NameChanged));
        scene.act(&node(1), set(alpha, "xray", None, first)).unwrap();
        assert_eq!(scene.act(&node(1), drop(second)), Err(Refusal::NameChanged));
        assert_eq!(scene.act(&node(2), drop(first)), Err(Refusal::WrongParty));
        assert_eq!(scene.act(&node(1), drop(first)), Ok(()));
        assert_eq!(scene.state.name(alpha, &name("xray")), None);
        assert_eq!(scene.state.names(alpha).count(), 0);
    }

    #[test]
    fn a_party_has_a_bounded_number_of_names() {
        let mut scene = Scene::new();
        let alpha = party_id(1);
        let to = Hash([1; 32]);
        let full = (0..MAX_NAMES).map(|n| (name(&format!("n{n}")), to)).collect();
        scene.state.facts.names.insert(alpha, full);
        let more = set(alpha, "one-more", None, to);
        assert_eq!(scene.act(&node(1), more), Err(Refusal::TooManyNames));
        let change = set(alpha, "n7", Some(to), Hash([2; 32]));
        assert_eq!(scene.act(&node(1), change), Ok(()));
    }
}
