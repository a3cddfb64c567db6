//! Who may ask what about data, and what comes of it.
//!
//! A version is changed by nodes of its party alone, workers included. About a copy each node speaks
//! for itself. Everything is checked before anything changes: what is refused leaves no trace.

use mesh_consensus::id::{NodeId, PartyId, VersionId};
use mesh_consensus::machine::At;

use super::super::name::Name;
use super::super::refusal::Refusal;
use super::super::{Facts, Moment};
use super::content::MAX_READERS;
use super::{
    Body, Claim, Data, Hold, MAX_COPIES, MAX_DATA_BYTES, MAX_HOLDERS, MAX_PARTY_BYTES,
    MAX_VERSIONS, Numbers, Plain, ROOM_FOR_HOLDERS, Readers, TagSet, Version, VersionBody,
    VersionDrop, VersionNew, weight_of_name, weight_of_tag,
};

impl Facts {
    pub(in crate::state) fn version_new(
        &mut self,
        at: &At,
        act: VersionNew,
    ) -> Result<(), Refusal> {
        let VersionNew { party, id, revision, copies, holders, body } = act;
        self.check_own_party(at.author, party)?;
        if self.data.versions.contains_key(&id) {
            return Err(Refusal::VersionTaken);
        }
        check_copies(copies, &body)?;
        let at_first = if copies == 0 { 0..=0 } else { 1..=usize::from(MAX_COPIES) };
        if !at_first.contains(&holders.len()) {
            return Err(Refusal::BadCopies);
        }
        self.check_readers(party, &body)?;
        let created = Moment::of(at);
        let version = Version { party, created, author: at.author, copies, holders, body };
        for holder in &version.holders {
            let member = self.staying(*holder).ok_or(Refusal::NoSuchMember)?;
            if !version.is_for(member.party) {
                return Err(Refusal::MayNotHold);
            }
        }
        self.data.check_revision(party, version.body.is_sealed(), revision)?;
        let place = version.body.place().map(|(name, number)| (name.clone(), number));
        let new_name = self.data.check_free(party, place.as_ref())?;
        if self.data.load(party).versions >= MAX_VERSIONS {
            return Err(Refusal::TooManyVersions);
        }
        self.check_room(party, version.weight() as u64 + new_name)?;

        if version.body.is_sealed() {
            self.data.raise_revision(party);
        }
        self.data.take_place(party, id, place);
        self.data.load_mut(party).versions += 1;
        self.data.load_mut(party).bytes += version.weight() as u64;
        self.data.versions.insert(id, version);
        Ok(())
    }

    pub(in crate::state) fn version_drop(
        &mut self,
        at: &At,
        act: &VersionDrop,
    ) -> Result<(), Refusal> {
        self.own_version(at.author, act.id)?;
        self.drop_version(act.id);
        Ok(())
    }

    /// Drops a version, if it is there.
    pub(in crate::state) fn drop_version(&mut self, id: VersionId) {
        let Some(version) = self.data.versions.remove(&id) else { return };
        if version.body.is_sealed() {
            self.data.raise_revision(version.party);
        }
        self.data.leave_place(version.party, version.body.place());
        let load = self.data.load_mut(version.party);
        load.versions -= 1;
        load.bytes -= version.weight() as u64;
        self.data.drop_empty_load(version.party);
    }

    pub(in crate::state) fn version_body(
        &mut self,
        at: &At,
        act: VersionBody,
    ) -> Result<(), Refusal> {
        let VersionBody { id, expect, revision, body } = act;
        let old = self.own_version(at.author, id)?;
        if old.body.hash() != expect {
            return Err(Refusal::BodyChanged);
        }
        let party = old.party;
        check_copies(old.copies, &body)?;
        self.check_readers(party, &body)?;
        let is_sealed = old.body.is_sealed() || body.is_sealed();
        self.data.check_revision(party, is_sealed, revision)?;
        let place = match (old.body.place(), body.place()) {
            (Some(old), Some(new)) if old != new => return Err(Refusal::PlaceChanged),
            (None, Some((name, number))) => Some((name.clone(), number)),
            _ => None,
        };
        let new_name = self.data.check_free(party, place.as_ref())?;
        let mut new = Version { body, ..old.clone() };
        let may = |node: &&NodeId| self.members.get(node).is_some_and(|m| new.is_for(m.party));
        new.holders = old.holders.iter().filter(may).copied().collect();
        if new.holders.is_empty() && !old.holders.is_empty() {
            return Err(Refusal::LastCopy);
        }
        let (before, after) = (old.weight() as u64, new.weight() as u64);
        let leaves = if new.body.place().is_none() { old.body.place() } else { None };
        let leaves = leaves.map(|(name, number)| (name.clone(), number));
        // What makes it no larger always has room: a full party can still seal its data again.
        if after + new_name > before {
            self.check_room(party, after + new_name - before)?;
        }

        if is_sealed {
            self.data.raise_revision(party);
        }
        self.data.leave_place(party, leaves.as_ref().map(|(name, number)| (name, *number)));
        self.data.take_place(party, id, place);
        let load = self.data.load_mut(party);
        load.bytes = load.bytes - before + after;
        self.data.versions.insert(id, new);
        Ok(())
    }

    pub(in crate::state) fn tag_set(&mut self, at: &At, act: TagSet) -> Result<(), Refusal> {
        let TagSet { party, name, tag, expect, to } = act;
        self.check_own_party(at.author, party)?;
        let names = self.data.names.get(&party);
        let numbers = names.and_then(|names| names.get(&name)).ok_or(Refusal::NoSuchVersion)?;
        let stands = numbers.tags.get(&tag).copied();
        if stands != expect {
            return Err(Refusal::TagChanged);
        }
        if to.is_some_and(|number| !numbers.versions.contains_key(&number)) {
            return Err(Refusal::NoSuchVersion);
        }
        let weight = weight_of_tag(&tag);
        if stands.is_none() && to.is_some() {
            self.check_room(party, weight)?;
        }

        let bytes = &mut self.data.load_mut(party).bytes;
        match (stands, to) {
            (None, Some(_)) => *bytes += weight,
            (Some(_), None) => *bytes -= weight,
            _ => {}
        }
        if let Some(numbers) = self.data.numbers_mut(party, &name) {
            match to {
                Some(number) => drop(numbers.tags.insert(tag, number)),
                None => drop(numbers.tags.remove(&tag)),
            }
        }
        Ok(())
    }

    /// A node speaks of its own copy. That it has none, or has one already, is not refused.
    pub(in crate::state) fn hold(&mut self, at: &At, act: &Hold) -> Result<(), Refusal> {
        let member = self.staying(at.author).ok_or(Refusal::NotMember)?;
        let version = self.data.versions.get(&act.id).ok_or(Refusal::NoSuchVersion)?;
        let (party, holds) = (version.party, version.holders.contains(&at.author));
        match act.claim {
            Claim::Kept if !holds => {
                if version.copies == 0 || !version.is_for(member.party) {
                    return Err(Refusal::MayNotHold);
                }
                if version.holders.len() >= MAX_HOLDERS {
                    return Err(Refusal::TooManyHolders);
                }
                if self.data.weight() + 32 > MAX_DATA_BYTES + ROOM_FOR_HOLDERS {
                    return Err(Refusal::TooMuchData);
                }
            }
            Claim::Released if holds => {
                let others = version.holders.iter().filter(|node| **node != at.author);
                let live = others.filter(|node| self.counts_as_holder(**node)).count();
                if live < usize::from(version.copies) {
                    return Err(Refusal::StillNeeded);
                }
            }
            Claim::Lost if holds => {}
            _ => return Ok(()),
        }

        let Some(version) = self.data.versions.get_mut(&act.id) else {
            return Err(Refusal::NoSuchVersion);
        };
        if act.claim == Claim::Kept {
            version.holders.insert(at.author);
            self.data.load_mut(party).bytes += 32;
        } else {
            version.holders.remove(&at.author);
            self.data.load_mut(party).bytes -= 32;
        }
        Ok(())
    }

    /// The version, if it is of the author's party.
    fn own_version(&self, author: NodeId, id: VersionId) -> Result<&Version, Refusal> {
        let version = self.data.versions.get(&id).ok_or(Refusal::NoSuchVersion)?;
        self.check_own_party(author, version.party)?;
        Ok(version)
    }

    /// Readers are parties of the mesh, and not the owner itself.
    pub(super) fn check_readers(&self, owner: PartyId, body: &Body) -> Result<(), Refusal> {
        let Body::Plain(Plain { readers: Readers::Parties(readers), .. }) = body else {
            return Ok(());
        };
        let known = |party: &PartyId| *party != owner && self.parties.contains_key(party);
        if (1..=MAX_READERS).contains(&readers.len()) && readers.iter().all(known) {
            Ok(())
        } else {
            Err(Refusal::BadReaders)
        }
    }

    /// Whether a party may put `more` bytes into the state. Each has its share of the whole, so that
    /// none can fill it alone once there are others.
    fn check_room(&self, party: PartyId, more: u64) -> Result<(), Refusal> {
        let share = (MAX_DATA_BYTES / self.parties.len().max(1) as u64).min(MAX_PARTY_BYTES);
        let fits = self.data.load(party).bytes + more <= share
            && self.data.weight() + more <= MAX_DATA_BYTES;
        if fits { Ok(()) } else { Err(Refusal::TooMuchData) }
    }
}

/// Content has copies; a record that stands for none has no copies, and nothing of it can be seen.
pub(super) fn check_copies(copies: u8, body: &Body) -> Result<(), Refusal> {
    let fits = match copies {
        0 => body.is_sealed() && body.place().is_none(),
        _ => copies <= MAX_COPIES,
    };
    if fits { Ok(()) } else { Err(Refusal::BadCopies) }
}

impl Data {
    fn load(&self, party: PartyId) -> super::Load {
        self.loads.get(&party).copied().unwrap_or_default()
    }

    fn load_mut(&mut self, party: PartyId) -> &mut super::Load {
        self.loads.entry(party).or_default()
    }

    fn drop_empty_load(&mut self, party: PartyId) {
        if self.load(party) == super::Load::default() {
            self.loads.remove(&party);
        }
    }

    fn numbers_mut(&mut self, party: PartyId, name: &Name) -> Option<&mut Numbers> {
        self.names.get_mut(&party)?.get_mut(name)
    }

    /// Who changes sealed records says which revision it has seen, and who does not says none.
    fn check_revision(
        &self,
        party: PartyId,
        is_sealed: bool,
        seen: Option<u64>,
    ) -> Result<(), Refusal> {
        let stands = self.revisions.get(&party).copied().unwrap_or(0);
        if seen == is_sealed.then_some(stands) { Ok(()) } else { Err(Refusal::SealedChanged) }
    }

    fn raise_revision(&mut self, party: PartyId) {
        *self.revisions.entry(party).or_default() += 1;
    }

    /// Whether a new place can be taken, and what its name would add to the state.
    fn check_free(&self, party: PartyId, place: Option<&(Name, u32)>) -> Result<u64, Refusal> {
        let Some((name, number)) = place else { return Ok(0) };
        let numbers = self.names.get(&party).and_then(|names| names.get(name));
        // The last number of all is not given, so that there is always a next one.
        if *number < numbers.map_or(1, |numbers| numbers.next) || *number == u32::MAX {
            return Err(Refusal::NumberTaken);
        }
        Ok(if numbers.is_none() { weight_of_name(name) } else { 0 })
    }

    /// Gives a place that [`Data::check_free`] has found to be free.
    fn take_place(&mut self, party: PartyId, id: VersionId, place: Option<(Name, u32)>) {
        let Some((name, number)) = place else { return };
        let names = self.names.entry(party).or_default();
        if !names.contains_key(&name) {
            self.loads.entry(party).or_default().bytes += weight_of_name(&name);
        }
        let numbers = names.entry(name).or_default();
        numbers.versions.insert(number, id);
        numbers.next = number + 1;
    }

    /// The number goes, and the tags that stand for it. The name remembers that it was given.
    fn leave_place(&mut self, party: PartyId, place: Option<(&Name, u32)>) {
        let Some((name, number)) = place else { return };
        let Some(numbers) = self.numbers_mut(party, name) else { return };
        numbers.versions.remove(&number);
        let before: u64 = numbers.tags.keys().map(weight_of_tag).sum();
        numbers.tags.retain(|_, stands| *stands != number);
        let after: u64 = numbers.tags.keys().map(weight_of_tag).sum();
        self.load_mut(party).bytes -= before - after;
    }
}
