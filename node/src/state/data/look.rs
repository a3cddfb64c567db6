//! Reading what the state says of data.

use std::collections::BTreeMap;

use mesh_consensus::id::{NodeId, PartyId, VersionId};

use super::super::member::Member;
use super::super::name::Name;
use super::super::{Facts, State};
use super::{DataRef, Numbers, Pick, SealedBytes, Version};

impl State {
    /// Every version and every other sealed record.
    pub fn versions(&self) -> &BTreeMap<VersionId, Version> {
        &self.facts.data.versions
    }

    /// One of them.
    pub fn version(&self, id: VersionId) -> Option<&Version> {
        self.facts.data.versions.get(&id)
    }

    /// Whether nodes of `party` may be sent what the version holds. It is not so for a version that is
    /// not there: who asks cannot tell the two apart.
    pub fn may_read(&self, version: VersionId, party: PartyId) -> bool {
        self.version(version).is_some_and(|found| found.copies > 0 && found.is_for(party))
    }

    /// The versions and other sealed records of a party, by id.
    pub fn versions_of(&self, party: PartyId) -> impl Iterator<Item = (VersionId, &Version)> {
        let all = self.facts.data.versions.iter();
        all.filter(move |(_, version)| version.party == party).map(|(id, version)| (*id, version))
    }

    /// What nodes of `party` may read, by id: their own and what is open to them.
    pub fn readable_by(&self, party: PartyId) -> impl Iterator<Item = (VersionId, &Version)> {
        let all = self.facts.data.versions.iter();
        let may = move |version: &Version| version.copies > 0 && version.is_for(party);
        all.filter(move |(_, version)| may(version)).map(|(id, version)| (*id, version))
    }

    /// The names of a party that can be seen, in order.
    pub fn data_names(&self, party: PartyId) -> impl Iterator<Item = (&Name, &Numbers)> {
        self.facts.data.names.get(&party).into_iter().flatten()
    }

    /// The numbers of one of them.
    pub fn data_name(&self, party: PartyId, name: &Name) -> Option<&Numbers> {
        self.facts.data.names.get(&party)?.get(name)
    }

    /// The first number that a name can still give. The party's own nodes should also look at what is
    /// private: [`crate::seal::PrivateView::next_number`].
    pub fn next_number(&self, party: PartyId, name: &Name) -> u32 {
        self.data_name(party, name).map_or(1, |numbers| numbers.next)
    }

    /// What a name stands for, among what can be seen. For private names, too:
    /// [`crate::seal::PrivateView::resolve`].
    pub fn resolve_data(&self, party: PartyId, name: &Name, pick: &Pick) -> Option<VersionId> {
        self.data_name(party, name)?.pick(pick)
    }

    /// The same as a person writes it; `own` is the party of the one who asks.
    pub fn resolve_ref(&self, own: PartyId, reference: &DataRef) -> Option<VersionId> {
        let party = match &reference.party {
            None => own,
            Some(name) => self.party_named(name)?,
        };
        self.resolve_data(party, &reference.name, &reference.pick)
    }

    /// The party that is called so.
    pub fn party_named(&self, name: &Name) -> Option<PartyId> {
        self.facts.parties.iter().find(|(_, party)| party.name == *name).map(|(id, _)| *id)
    }

    /// How often a party's sealed records have changed: what who changes one must have seen.
    pub fn sealed_revision(&self, party: PartyId) -> u64 {
        self.facts.data.revisions.get(&party).copied().unwrap_or(0)
    }

    /// The sealed records of a party, for those who can open them.
    pub fn sealed_of(
        &self,
        party: PartyId,
    ) -> impl Iterator<Item = (VersionId, &Version, &SealedBytes)> {
        self.versions_of(party).filter_map(|(id, version)| match &version.body {
            super::Body::Sealed(sealed) => Some((id, version, &sealed.record)),
            super::Body::Plain(_) => None,
        })
    }

    /// What a node is counted on for: the versions of which it said that it has a durable copy.
    pub fn held_by(&self, node: NodeId) -> impl Iterator<Item = (VersionId, &Version)> {
        let all = self.facts.data.versions.iter();
        all.filter(move |(_, version)| version.holders.contains(&node)).map(|(id, v)| (*id, v))
    }

    /// How many copies of a version can be counted on: those of members that stay and are not held to
    /// be down.
    pub fn live_copies(&self, version: &Version) -> usize {
        version.holders.iter().filter(|node| self.facts.counts_as_holder(**node)).count()
    }

    /// What has fewer live copies than wanted, and how many it has: what repair should look at.
    pub fn short_of_copies(&self) -> impl Iterator<Item = (VersionId, &Version, usize)> {
        self.facts.data.versions.iter().filter_map(|(id, version)| {
            let live = self.live_copies(version);
            (live < usize::from(version.copies)).then_some((*id, version, live))
        })
    }

    /// Grows whenever anything about data may have changed, holders included. Like
    /// [`State::revision`], it is this process's own.
    pub fn data_revision(&self) -> u64 {
        self.data_revision
    }
}

impl Numbers {
    /// The version that is meant, if it is there.
    pub fn pick(&self, pick: &Pick) -> Option<VersionId> {
        match pick {
            Pick::Latest => self.versions.values().next_back().copied(),
            Pick::Number(number) => self.versions.get(number).copied(),
            Pick::Tag(tag) => self.versions.get(self.tags.get(tag)?).copied(),
        }
    }
}

impl Facts {
    /// Whether a copy on this node can be counted on.
    pub(super) fn counts_as_holder(&self, node: NodeId) -> bool {
        let is_down = |member: &Member| {
            // Most are suspected by nobody, and this is asked of every holder.
            !member.down_by.is_empty() && member.is_down(self.present_parties().len())
        };
        self.staying(node).is_some_and(|member| !is_down(member))
    }
}
