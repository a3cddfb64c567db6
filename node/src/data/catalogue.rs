//! What this node knows of datasets: those that all can see, and its own party's private ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use mesh_consensus::id::{Hash, MeshId, NodeId, PartyId, VersionId};

use super::{Data, lock};
use crate::party::SealingSecret;
use crate::seal::{PrivateView, Record, Spot, open};
use crate::state::data::{Body, DataRef, Lineage, Listing, Pick, Plain, Readers, Version};
use crate::state::name::Name;
use crate::state::{Moment, State};

/// In a reference, every party's own.
pub const EACH: &str = "each";
/// The tag that every name has: its last version.
pub const LATEST: &str = "latest";

/// A version, as far as this node may know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its id.
    pub id: VersionId,
    /// Whose it is.
    pub party: PartyId,
    /// Its name.
    pub name: Name,
    /// Which version of it.
    pub number: u32,
    /// What it consists of. `None` for another party's listed data.
    pub manifest: Option<Hash>,
    /// How much there is.
    pub bytes: u64,
    /// In how many files.
    pub files: u64,
    /// Who may read it.
    pub visibility: Visibility,
    /// How many copies there should be.
    pub copies: u8,
    /// Who says to have one.
    pub holders: Vec<NodeId>,
    /// When it was made.
    pub created: Moment,
    /// By which node.
    pub author: NodeId,
    /// Its tags.
    pub tags: Vec<Name>,
    /// Where it came from.
    pub lineage: Lineage,
    /// What else is said of it.
    pub note: String,
    /// What is said of it in the state, in a word: see `VersionBody`.
    pub body: Hash,
}

/// Who may read a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visibility {
    /// Its party, and nobody else knows what it is.
    Private,
    /// Its party; all know its name and size.
    Listed,
    /// Its party and these.
    Shared(Vec<PartyId>),
    /// Every member.
    Open,
}

impl Visibility {
    /// As `--json` shows it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Listed => "listed",
            Self::Shared(_) => "shared",
            Self::Open => "open",
        }
    }
}

/// Why a reference leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No such party.
    #[error("there is no party {0}")]
    NoParty(Name),
    /// No such data, or none that this node may know of.
    #[error("there is no {0}")]
    NoData(DataRef),
    /// `each/…` where one is wanted.
    #[error("{0} means the data of every party, and one is wanted here")]
    Each(DataRef),
    /// The node does not know the state.
    #[error("this node does not know the mesh yet, or is stopping")]
    NotNow,
}

/// What a version consists of, if this node can tell.
pub(super) fn manifest_of(
    mesh: MeshId,
    id: VersionId,
    version: &Version,
    secret: Option<&SealingSecret>,
) -> Option<Hash> {
    match &version.body {
        Body::Plain(plain) => Some(plain.manifest),
        Body::Sealed(sealed) => {
            let spot = Spot { mesh, party: version.party, id };
            match open(&sealed.record, secret?, &spot).ok()? {
                Record::Version(found) => Some(found.manifest),
                Record::Tag { .. } | Record::Next { .. } => None,
            }
        }
    }
}

impl Data {
    /// This node's party.
    pub(crate) fn own_party(&self) -> Option<PartyId> {
        self.shown.roster.borrow().party_of(self.whoami.node)
    }

    /// The party's private names. Opened once for each revision of them.
    pub(crate) async fn private(&self) -> Option<Arc<PrivateView>> {
        let party = self.own_party()?;
        let Some(secret) = self.sealing_secret().await else {
            return Some(Arc::default());
        };
        let seen = lock(&self.private).as_ref().map(|view| view.revision());
        let sealed = self.look(move |state| {
            let revision = state.sealed_revision(party);
            if seen == Some(revision) {
                return None;
            }
            let all = state.sealed_of(party);
            let mut all: Vec<_> = all
                .map(|(id, version, bytes)| (version.created.index, id, bytes.clone()))
                .collect();
            all.sort_unstable_by_key(|(index, id, _)| (*index, *id));
            Some((revision, all))
        });
        let Some((revision, sealed)) = sealed.await? else {
            return lock(&self.private).clone();
        };
        let mesh = self.whoami.mesh;
        let opened = tokio::task::spawn_blocking(move || {
            let records = sealed
                .into_iter()
                .map(|(_, id, bytes)| (id, open(&bytes, &secret, &Spot { mesh, party, id }).ok()));
            Arc::new(PrivateView::of_records(revision, records))
        });
        let opened = opened.await.ok()?;
        *lock(&self.private) = Some(opened.clone());
        Some(opened)
    }

    /// All versions that this node may know of, by party, name and number.
    pub async fn catalogue(&self) -> Option<Vec<Known>> {
        let own = self.own_party()?;
        let private = self.private().await?;
        let known = self.look(move |state| {
            let all = state.versions().iter();
            all.filter_map(|(id, version)| known(state, own, &private, *id, version)).collect()
        });
        let mut known: Vec<Known> = known.await?;
        let parties: BTreeMap<PartyId, Name> = self.shown.roster.borrow().parties.clone();
        known.sort_by(|a, b| {
            let of = |known: &Known| {
                (parties.get(&known.party).cloned(), known.name.clone(), known.number)
            };
            of(a).cmp(&of(b))
        });
        Some(known)
    }

    /// One version by its id, if this node may know of it.
    pub async fn known(&self, id: VersionId) -> Option<Known> {
        let own = self.own_party()?;
        let private = self.private().await?;
        let look = self.look(move |state| known(state, own, &private, id, state.version(id)?));
        look.await.flatten()
    }

    /// The one version that a reference means.
    pub async fn resolve(&self, wanted: &DataRef) -> Result<Known, ResolveError> {
        match &wanted.party {
            Some(party) if party.as_str() == EACH => Err(ResolveError::Each(wanted.clone())),
            _ => {
                let mut all = self.resolve_all(wanted).await?;
                all.pop().ok_or_else(|| ResolveError::NoData(wanted.clone()))
            }
        }
    }

    /// All that a reference means: one, or with `each/` one of every party that has it.
    pub async fn resolve_all(&self, wanted: &DataRef) -> Result<Vec<Known>, ResolveError> {
        let own = self.own_party().ok_or(ResolveError::NotNow)?;
        let private = self.private().await.ok_or(ResolveError::NotNow)?;
        let asked = wanted.clone();
        let look = self.look(move |state| {
            let parties: Vec<PartyId> = match &asked.party {
                None => vec![own],
                Some(each) if each.as_str() == EACH => state.parties().keys().copied().collect(),
                Some(name) => match state.party_named(name) {
                    Some(party) => vec![party],
                    None => return Err(ResolveError::NoParty(name.clone())),
                },
            };
            let found = parties.into_iter().filter_map(|party| {
                let id = pick(state, own, &private, party, &asked)?;
                known(state, own, &private, id, state.version(id)?)
            });
            Ok(found.collect())
        });
        look.await.ok_or(ResolveError::NotNow)?
    }
}

fn pick(
    state: &State,
    own: PartyId,
    private: &PrivateView,
    party: PartyId,
    wanted: &DataRef,
) -> Option<VersionId> {
    let find = |pick: &Pick| match party == own {
        true => private.resolve_own(state, party, &wanted.name, pick),
        false => state.resolve_data(party, &wanted.name, pick),
    };
    // Every name has this one, unless somebody gave it another meaning.
    let is_latest = matches!(&wanted.pick, Pick::Tag(tag) if tag.as_str() == LATEST);
    find(&wanted.pick).or_else(|| if is_latest { find(&Pick::Latest) } else { None })
}

/// A version as the nodes of `own` may know it.
fn known(
    state: &State,
    own: PartyId,
    private: &PrivateView,
    id: VersionId,
    version: &Version,
) -> Option<Known> {
    if version.copies == 0 {
        // A tag, or whatever else a party keeps for itself.
        return None;
    }
    let place = version.body.place().map(|(name, number)| (name.clone(), number));
    let open_tags = |name: &Name, number: u32| -> Vec<Name> {
        let numbers = state.data_name(version.party, name);
        let tags = numbers.into_iter().flat_map(|numbers| &numbers.tags);
        tags.filter(|(_, stands)| **stands == number).map(|(tag, _)| tag.clone()).collect()
    };
    let base = |name: &Name, number: u32, bytes: u64, files: u64, visibility: Visibility| Known {
        id,
        party: version.party,
        name: name.clone(),
        number,
        manifest: None,
        bytes,
        files,
        visibility,
        copies: version.copies,
        holders: version.holders.iter().copied().collect(),
        created: version.created,
        author: version.author,
        tags: open_tags(name, number),
        lineage: Lineage::default(),
        note: String::new(),
        body: version.body.hash(),
    };
    match &version.body {
        Body::Plain(plain) => {
            let Plain { name, number, manifest, bytes, files, readers, lineage } = plain;
            let visibility = match readers {
                Readers::Everyone => Visibility::Open,
                Readers::Parties(some) => {
                    if version.party != own && !some.contains(&own) {
                        return None;
                    }
                    Visibility::Shared(some.iter().copied().collect())
                }
            };
            let known = base(name, *number, *bytes, *files, visibility);
            Some(Known { manifest: Some(*manifest), lineage: lineage.clone(), ..known })
        }
        Body::Sealed(_) if version.party == own => {
            let found = private.versions().get(&id)?;
            let visibility = if place.is_some() { Visibility::Listed } else { Visibility::Private };
            let known = base(&found.name, found.number, found.bytes, found.files, visibility);
            let mut tags = known.tags.clone();
            let names = private.names().get(&found.name).into_iter().flat_map(|name| &name.tags);
            tags.extend(
                names
                    .filter(|(_, (_, stands))| *stands == found.number)
                    .map(|(tag, _)| tag.clone()),
            );
            let (manifest, lineage) = (Some(found.manifest), found.lineage.clone());
            Some(Known { manifest, lineage, tags, note: found.note.to_string(), ..known })
        }
        Body::Sealed(sealed) => {
            let Listing { name, number, bytes, files, note } = sealed.listing.as_ref()?;
            let known = base(name, *number, *bytes, *files, Visibility::Listed);
            Some(Known { note: note.to_string(), ..known })
        }
    }
}
