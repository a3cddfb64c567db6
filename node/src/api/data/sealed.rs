//! Changes of what a party keeps sealed, and of what goes with it, in one batch.
//!
//! Whoever changes a sealed record says which revision of the party's records it has seen, and makes the next one: of two
//! who change something at the same time one is told that it was slower, and the changes of one batch follow one another.

use std::collections::BTreeSet;
use std::sync::Arc;

use mesh_consensus::id::{PartyId, VersionId};

use super::super::answer::Problem;
use super::{Api, not_now};
use crate::data::catalogue::Known;
use crate::handle::{Ask, WriteError};
use crate::seal::{PrivateView, Record, Spot, seal};
use crate::state::command::Act;
use crate::state::data::{Body, Listing, Sealed, VersionBody, VersionNew};

/// A batch of changes. See the module.
pub(super) struct Changes<'a> {
    api: &'a Api,
    party: PartyId,
    /// The party's private names before the first of the changes.
    pub(super) private: Arc<PrivateView>,
    /// What the next change of a sealed record has seen.
    revision: u64,
    /// Records that stand for nothing, and that none of the changes has taken.
    free: Vec<VersionId>,
    acts: Vec<Act>,
}

impl<'a> Changes<'a> {
    /// To be called before anything else is looked at: whatever is sealed after it is noticed by its revision.
    pub(super) async fn begin(api: &'a Api, party: PartyId) -> Result<Self, Problem> {
        let private = api.data.private().await.ok_or_else(not_now)?;
        let (revision, free) = (private.revision(), private.free().to_vec());
        Ok(Self { api, party, private, revision, free, acts: Vec::new() })
    }

    /// How many there are so far: where the next one stands in the batch.
    pub(super) fn count(&self) -> usize {
        self.acts.len()
    }

    /// A change for which no revision is asked.
    pub(super) fn push(&mut self, act: impl Into<Act>) {
        self.acts.push(act.into());
    }

    /// Changes what is said of a version, which `is_sealed` before or after it.
    pub(super) fn change(&mut self, known: &Known, body: Body, is_sealed: bool) {
        let revision = is_sealed.then(|| self.next_revision());
        self.push(VersionBody { id: known.id, expect: known.body, revision, body });
    }

    /// Makes a sealed record say something else.
    pub(super) async fn reseal(&mut self, id: VersionId, record: &Record) -> Result<(), Problem> {
        let look =
            self.api.data.look(move |state| state.version(id).map(|found| found.body.hash()));
        let expect = look.await.flatten().ok_or_else(not_now)?;
        let body = self.seal(id, record, None).await?;
        let revision = Some(self.next_revision());
        self.push(VersionBody { id, expect, revision, body });
        Ok(())
    }

    /// Keeps a further record: in the place of one that stands for nothing, if there is one.
    pub(super) async fn add(&mut self, record: &Record) -> Result<(), Problem> {
        if let Some(id) = self.free.pop() {
            return self.reseal(id, record).await;
        }
        let id = VersionId(crate::random());
        let body = self.seal(id, record, None).await?;
        let (party, revision) = (self.party, Some(self.next_revision()));
        self.push(VersionNew { party, id, revision, copies: 0, holders: BTreeSet::new(), body });
        Ok(())
    }

    /// What must stand before a private version goes from among the private ones: that its number was given.
    pub(super) async fn remember_number(&mut self, id: VersionId) -> Result<(), Problem> {
        match self.private.before_drop(id) {
            Some((Some(replaces), record)) => self.reseal(replaces, &record).await,
            Some((None, record)) => self.add(&record).await,
            None => Ok(()),
        }
    }

    /// Seals a record of this node's party.
    pub(super) async fn seal(
        &self,
        id: VersionId,
        record: &Record,
        listing: Option<Listing>,
    ) -> Result<Body, Problem> {
        let secret = self.api.data.sealing_secret().await.ok_or_else(|| {
            Problem::unavailable(
                "nothing can be kept private here yet",
                "this node does not have its party's sealing secret",
                "wait until another node of the party is there to hand it over",
            )
        })?;
        let spot = Spot { mesh: self.api.whoami.mesh, party: self.party, id };
        Ok(Body::Sealed(Sealed { record: seal(record, &secret, &spot), listing }))
    }

    /// Writes them all. Each is refused or not by itself: the error tells of the first that was.
    pub(super) async fn write(self) -> Result<(), WriteError> {
        let asks = self.acts.into_iter().map(|act| Ask { act, signed: false }).collect();
        self.api.write(asks).await.map(drop)
    }

    fn next_revision(&mut self) -> u64 {
        let seen = self.revision;
        self.revision += 1;
        seen
    }
}
