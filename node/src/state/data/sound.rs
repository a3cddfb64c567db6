//! What must hold in a snapshot's data, whoever wrote it.

use std::collections::BTreeMap;

use mesh_consensus::id::{PartyId, VersionId};

use super::super::Facts;
use super::rules::check_copies;
use super::{Data, MAX_DATA_BYTES, MAX_HOLDERS, MAX_VERSIONS, ROOM_FOR_HOLDERS, Version};

impl Facts {
    /// What does not hold in the data although it always should.
    pub(in crate::state) fn flaw_in_data(&self) -> Option<&'static str> {
        let data = &self.data;
        let known = |party: &PartyId| self.parties.contains_key(party);
        let holds = |version: &Version| {
            version.holders.len() <= if version.copies == 0 { 0 } else { MAX_HOLDERS }
                && version
                    .holders
                    .iter()
                    .all(|node| self.members.get(node).is_some_and(|m| version.is_for(m.party)))
        };
        let mut versions = data.versions.values();
        let mut names = data.names.iter();
        let rules = [
            (
                versions.clone().all(|v| known(&v.party))
                    && names.clone().all(|(party, names)| known(party) && !names.is_empty())
                    && data.revisions.iter().all(|(party, count)| known(party) && *count > 0),
                "data has an unknown party, or a party with data has none",
            ),
            (
                versions.clone().all(|v| check_copies(v.copies, &v.body).is_ok()),
                "a version has an odd number of copies",
            ),
            (
                versions.clone().all(|v| self.check_readers(v.party, &v.body).is_ok()),
                "a version is shared with nobody, or with a stranger",
            ),
            (versions.clone().all(holds), "somebody holds what it may not"),
            (
                versions.all(|v| !v.body.is_sealed() || data.revisions.contains_key(&v.party)),
                "sealed records came without a change",
            ),
            (data.names_are_those_of_versions(), "names are not those of the versions"),
            (
                names.all(|(_, names)| {
                    names.values().all(|numbers| {
                        numbers.next > 1
                            && numbers.versions.keys().all(|n| (1..numbers.next).contains(n))
                            && numbers.tags.values().all(|n| numbers.versions.contains_key(n))
                    })
                }),
                "a number was given that was not, or a tag stands for nothing",
            ),
            (
                data.loads.values().all(|load| load.versions <= MAX_VERSIONS)
                    && data.weight() <= MAX_DATA_BYTES + ROOM_FOR_HOLDERS,
                "there is more data than there may be",
            ),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, flaw)| flaw)
    }
}

impl Data {
    /// Whether each version that can be seen stands under its name, and nothing else does.
    fn names_are_those_of_versions(&self) -> bool {
        let mut listed: BTreeMap<VersionId, (PartyId, &str, u32)> = BTreeMap::new();
        for (party, names) in &self.names {
            for (name, numbers) in names {
                for (number, id) in &numbers.versions {
                    if listed.insert(*id, (*party, name.as_str(), *number)).is_some() {
                        return false;
                    }
                }
            }
        }
        let placed = self.versions.iter().filter_map(|(id, version)| {
            let (name, number) = version.body.place()?;
            Some((*id, (version.party, name.as_str(), number)))
        });
        placed.eq(listed)
    }
}
