//! What a party's sealed records say together: its private names.

use std::collections::BTreeMap;

use mesh_consensus::id::{PartyId, VersionId};

use super::{NOTHING, PrivateVersion, Record, Spot, cipher, open_with};
use crate::party::SealingSecret;
use crate::state::State;
use crate::state::data::Pick;
use crate::state::founding::mesh_id;
use crate::state::name::Name;

/// The private names of one party, as one of its nodes sees them. See the module above.
///
/// It is a picture: [`PrivateView::revision`] tells of which revision, and whoever writes because of what
/// it saw gives that number along.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrivateView {
    revision: u64,
    names: BTreeMap<Name, PrivateName>,
    versions: BTreeMap<VersionId, PrivateVersion>,
    free: Vec<VersionId>,
    unopened: usize,
    clashes: usize,
}

/// What is known of one private name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateName {
    /// The first number that was never given.
    pub next: u32,
    /// Those that are there.
    pub versions: BTreeMap<u32, VersionId>,
    /// Each tag's record, and the number that it stands for (which may have gone).
    pub tags: BTreeMap<Name, (VersionId, u32)>,
    /// The record that remembers numbers of versions that have gone, and the next after them.
    pub counter: Option<(VersionId, u32)>,
}

impl Default for PrivateName {
    fn default() -> Self {
        Self { next: 1, versions: BTreeMap::new(), tags: BTreeMap::new(), counter: None }
    }
}

impl PrivateView {
    /// Opens all sealed records of a party. Those that do not open are passed over and counted.
    pub fn of(state: &State, party: PartyId, secret: &SealingSecret) -> Self {
        let Some(mesh) = state.founding().map(mesh_id) else { return Self::default() };
        let cipher = cipher(secret);
        let mut sealed: Vec<_> = state.sealed_of(party).collect();
        // The earlier one counts where two claim the same.
        sealed.sort_by_key(|(id, version, _)| (version.created.index, *id));
        let records = sealed
            .into_iter()
            .map(|(id, _, bytes)| (id, open_with(&cipher, bytes, &Spot { mesh, party, id }).ok()));
        Self::of_records(state.sealed_revision(party), records)
    }

    /// The same of records that have been opened (`None`: could not be), earlier ones first.
    pub fn of_records(
        revision: u64,
        records: impl IntoIterator<Item = (VersionId, Option<Record>)>,
    ) -> Self {
        let mut view = Self { revision, ..Self::default() };
        for (id, record) in records {
            match record {
                Some(record) => view.add(id, record),
                None => view.unopened += 1,
            }
        }
        view
    }

    fn add(&mut self, id: VersionId, record: Record) {
        let taken = match record {
            Record::Version(version) => {
                let name = self.names.entry(version.name.clone()).or_default();
                name.next = name.next.max(version.number.saturating_add(1));
                let taken = name.versions.contains_key(&version.number);
                name.versions.entry(version.number).or_insert(id);
                // It can still be read by its id, and dropped.
                self.versions.insert(id, version);
                taken
            }
            Record::Tag { number: NOTHING, .. } => {
                self.free.push(id);
                false
            }
            Record::Tag { name, tag, number } => {
                let tags = &mut self.names.entry(name).or_default().tags;
                let taken = tags.contains_key(&tag);
                tags.entry(tag).or_insert((id, number));
                taken
            }
            Record::Next { name, next } => {
                let name = self.names.entry(name).or_default();
                name.next = name.next.max(next);
                let taken = name.counter.is_some();
                if name.counter.is_none_or(|(_, counted)| counted < next) {
                    name.counter = Some((id, next));
                }
                taken
            }
        };
        self.clashes += usize::from(taken);
    }

    /// The party's sealed revision that this shows.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The private names, in order. One may have no versions any more.
    pub fn names(&self) -> &BTreeMap<Name, PrivateName> {
        &self.names
    }

    /// The private versions, listed ones included.
    pub fn versions(&self) -> &BTreeMap<VersionId, PrivateVersion> {
        &self.versions
    }

    /// Records of tags that were taken away: the next tag takes one of them.
    pub fn free(&self) -> &[VersionId] {
        &self.free
    }

    /// How many records did not open. Any is a sign of damage, of a later version of mesh, or of a
    /// node of the party that writes nonsense.
    pub fn unopened(&self) -> usize {
        self.unopened
    }

    /// How many records claim what an earlier one has.
    pub fn clashes(&self) -> usize {
        self.clashes
    }

    /// The first number of a name that was never given, neither for all to see nor in private.
    pub fn next_number(&self, state: &State, party: PartyId, name: &Name) -> u32 {
        let private = self.names.get(name).map_or(1, |name| name.next);
        private.max(state.next_number(party, name))
    }

    /// What a name stands for among the private versions.
    pub fn resolve(&self, name: &Name, pick: &Pick) -> Option<VersionId> {
        let name = self.names.get(name)?;
        match pick {
            Pick::Latest => name.versions.values().next_back().copied(),
            Pick::Number(number) => name.versions.get(number).copied(),
            Pick::Tag(tag) => name.versions.get(&name.tags.get(tag)?.1).copied(),
        }
    }

    /// What a name of the party stands for, private or not. The later of two is the latest; a number or
    /// a tag is looked for among the private ones first.
    pub fn resolve_own(
        &self,
        state: &State,
        party: PartyId,
        name: &Name,
        pick: &Pick,
    ) -> Option<VersionId> {
        let seen = || state.resolve_data(party, name, pick);
        if *pick != Pick::Latest {
            return self.resolve(name, pick).or_else(seen);
        }
        let private = self.names.get(name).and_then(|name| name.versions.last_key_value());
        let plain = state.data_name(party, name).and_then(|name| name.versions.last_key_value());
        private.max(plain).map(|(_, id)| *id)
    }

    /// What must be remembered before `id` is dropped or published, lest its number be given again in
    /// private: a record, and the id of the one whose place it takes, if there is one.
    pub fn before_drop(&self, id: VersionId) -> Option<(Option<VersionId>, Record)> {
        let PrivateVersion { name, number, .. } = self.versions.get(&id)?;
        let known = self.names.get(name)?;
        let next = number.saturating_add(1);
        let remembered = known.counter.is_some_and(|(_, counted)| counted >= next);
        // A later version says as much, for as long as it is there.
        if remembered || known.versions.range(next..).next().is_some() {
            return None;
        }
        let replaces = known.counter.map(|(id, _)| id);
        Some((replaces, Record::Next { name: name.clone(), next }))
    }
}
