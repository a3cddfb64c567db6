//! Puts a directory into the mesh as a new version of a name.
//!
//! ```text
//!  read, cut, hash, store ─► the same as the last version? ─► done, nothing is new
//!                         ─► VersionNew (compare-and-set on the number) ─► wait for a majority of the copies
//! ```
//!
//! Interrupted before the version is in the state, a push leaves chunks that the next try finds; after
//! that, the copies are made without it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mesh_consensus::id::{PartyId, VersionId};
use mesh_storage::import::{self, Apart, ImportError, Imported};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::catalogue::{Known, Visibility};
use super::{Data, keep};
use crate::clock;
use crate::handle::{Ask, WriteError};
use crate::seal::{PrivateVersion, Record, Spot, seal};
use crate::state::data::{
    Body, DataRef, Lineage, Listing, Note, Pick, Plain, Readers, Sealed, VersionNew,
};
use crate::state::name::Name;
use crate::state::refusal::Refusal;

/// How often a number is tried that somebody else takes first.
const TRIES: usize = 16;
/// How often it is looked whether there are enough copies.
const LOOK: Duration = Duration::from_millis(100);
/// Copies of a version, where nobody says otherwise.
pub const COPIES: u8 = 3;

/// What to push, and for whom.
#[derive(Debug, Clone)]
pub struct Wish {
    /// A directory or a file on this machine.
    pub path: PathBuf,
    /// What to call it.
    pub name: Name,
    /// Who may read it; `None`: everybody in a mesh of one party, else one's own party.
    pub visibility: Option<Visibility>,
    /// How many copies there should be.
    pub copies: u8,
    /// Whether the files stay where they are, and are served from there.
    pub in_place: bool,
    /// Whether links that lead elsewhere are followed.
    pub follow: bool,
    /// What is not to be pushed, wherever it is found: the node's own directory.
    pub apart: Option<Apart>,
    /// Whether to return before there are copies elsewhere.
    pub no_wait: bool,
    /// What it was made from.
    pub lineage: Lineage,
    /// What else is to be said of it.
    pub note: Note,
}

/// How far a push is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Whether it waits for copies, and has read everything.
    pub waits: bool,
    /// Bytes that were read.
    pub bytes: u64,
    /// Of so many, as far as is known.
    pub total_bytes: Option<u64>,
    /// Files that were read.
    pub files: u64,
    /// Copies that are durable.
    pub copies: usize,
    /// Of so many that are wanted.
    pub copies_wanted: usize,
}

/// What a push came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The version.
    pub known: Known,
    /// Whether it was there already.
    pub unchanged: bool,
    /// Bytes that were new to this node's store.
    pub new_bytes: u64,
    /// Objects that were damaged or gone on this node, and are whole again.
    pub mended: usize,
    /// Why there are fewer copies than a majority, if so.
    pub shortfall: Option<Shortfall>,
}

/// Why fewer copies stand than a majority of those that are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// In words.
    pub why: String,
    /// Whether nodes that could hold one were waited for in vain; otherwise there is nobody to wait for.
    pub timed_out: bool,
}

/// Why nothing was pushed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// Reading or storing.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The mesh did not take it.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Others keep taking the number.
    #[error("others push {0} at the same time, again and again")]
    Race(Name),
    /// Private, and this node cannot seal.
    #[error("this node does not have its party's sealing secret yet")]
    NoSecret,
    /// The node stops, or knows nothing yet.
    #[error("this node does not know the mesh yet, or is stopping")]
    NotNow,
    /// The one who pushes has gone.
    #[error("interrupted")]
    Interrupted,
}

impl Data {
    /// Pushes. Once `cancel` is set it ends soon.
    pub async fn push(
        &self,
        wish: Wish,
        progress: &watch::Sender<Progress>,
        cancel: Arc<AtomicBool>,
    ) -> Result<Pushed, PushError> {
        let imported = self.import(&wish, progress, cancel).await?;
        let (known, unchanged) = self.publish(&wish, &imported).await?;
        if let Some(found) = self.find(known.id).await {
            // In place of what `tidy` would do a moment later.
            keep::pin(self, &found).await;
        }
        let shortfall =
            if wish.no_wait { None } else { self.wait_for_copies(&known, progress).await };
        let known = self.known(known.id).await.unwrap_or(known);
        let Imported { new_bytes, mended, .. } = imported;
        Ok(Pushed { known, unchanged, new_bytes, mended, shortfall })
    }

    pub(crate) async fn import(
        &self,
        wish: &Wish,
        progress: &watch::Sender<Progress>,
        cancel: Arc<AtomicBool>,
    ) -> Result<Imported, PushError> {
        let (store, path, sender) = (self.store.clone(), wish.path.clone(), progress.clone());
        let (in_place, follow, apart) = (wish.in_place, wish.follow, wish.apart.clone());
        let work = move || {
            let show = |now: import::Progress| {
                sender.send_modify(|progress| {
                    progress.bytes = now.bytes;
                    progress.files = now.files;
                    progress.total_bytes = Some(now.bytes_total);
                });
            };
            let options = import::Options {
                in_place,
                follow,
                apart: apart.as_ref(),
                progress: Some(&show),
                cancel: Some(&cancel),
            };
            import::import(&store, &path, options, clock::now())
        };
        let imported = tokio::task::spawn_blocking(work).await.map_err(|_| PushError::NotNow)?;
        imported.map_err(|error| match error {
            ImportError::Cancelled => PushError::Interrupted,
            error => PushError::Import(error),
        })
    }

    /// Makes it a version, unless the last one is the same.
    async fn publish(&self, wish: &Wish, imported: &Imported) -> Result<(Known, bool), PushError> {
        let party = self.own_party().ok_or(PushError::NotNow)?;
        let visibility = self.visibility(wish);
        for _ in 0..TRIES {
            let latest = DataRef { party: None, name: wish.name.clone(), pick: Pick::Latest };
            if let Ok(last) = self.resolve(&latest).await
                && last.manifest == Some(imported.hash)
                && last.visibility == visibility
            {
                return Ok((last, true));
            }
            let id = VersionId(crate::random());
            let act = self.version(wish, imported, party, &visibility, id).await?.into();
            match self.writer.write(vec![Ask { act, signed: false }]).await {
                Ok(_) => {
                    let known = self.known(id).await.ok_or(PushError::NotNow)?;
                    return Ok((known, false));
                }
                Err(WriteError::Refused {
                    refusal: Refusal::NumberTaken | Refusal::SealedChanged,
                    ..
                }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(PushError::Race(wish.name.clone()))
    }

    /// Who may read it.
    fn visibility(&self, wish: &Wish) -> Visibility {
        // Also those without a node: they may come, or come back, and would find it open.
        let parties = self.shown.roster.borrow().parties.len();
        wish.visibility.clone().unwrap_or(match parties {
            1 => Visibility::Open,
            _ => Visibility::Private,
        })
    }

    /// The version that would be made of what was imported, if `before` others are made in the same command.
    pub(crate) async fn draft(
        &self,
        wish: &Wish,
        imported: &Imported,
        before: u64,
    ) -> Result<VersionNew, PushError> {
        let party = self.own_party().ok_or(PushError::NotNow)?;
        let (visibility, id) = (self.visibility(wish), VersionId(crate::random()));
        let mut new = self.version(wish, imported, party, &visibility, id).await?;
        if let Some(revision) = &mut new.revision {
            *revision += before;
        }
        Ok(new)
    }

    async fn version(
        &self,
        wish: &Wish,
        imported: &Imported,
        party: PartyId,
        visibility: &Visibility,
        id: VersionId,
    ) -> Result<VersionNew, PushError> {
        let private = self.private().await.ok_or(PushError::NotNow)?;
        let (name, view) = (wish.name.clone(), private.clone());
        let number = self.look(move |state| view.next_number(state, party, &name)).await;
        let number = number.ok_or(PushError::NotNow)?;
        let (bytes, files) = (imported.bytes, imported.files);
        let (name, lineage, manifest) = (wish.name.clone(), wish.lineage.clone(), imported.hash);
        let plain = |readers: Readers| {
            let (name, lineage) = (name.clone(), lineage.clone());
            Body::Plain(Plain { name, number, manifest, bytes, files, readers, lineage })
        };
        let body = match visibility {
            Visibility::Open => plain(Readers::Everyone),
            Visibility::Shared(some) => plain(Readers::Parties(some.iter().copied().collect())),
            Visibility::Private | Visibility::Listed => {
                let secret = self.sealing_secret().await.ok_or(PushError::NoSecret)?;
                let note = wish.note.clone();
                let listing = matches!(visibility, Visibility::Listed).then(|| Listing {
                    name: name.clone(),
                    number,
                    bytes,
                    files,
                    note: note.clone(),
                });
                let version =
                    PrivateVersion { name, number, manifest, bytes, files, lineage, note };
                let spot = Spot { mesh: self.whoami.mesh, party, id };
                let record = seal(&Record::Version(version), &secret, &spot);
                Body::Sealed(Sealed { record, listing })
            }
        };
        let revision = body.is_sealed().then(|| private.revision());
        let holders = BTreeSet::from([self.whoami.node]);
        Ok(VersionNew { party, id, revision, copies: wish.copies, holders, body })
    }

    /// Waits until a majority of the copies is durable. Says why not, if too few nodes could have one.
    pub(crate) async fn wait_for_copies(
        &self,
        known: &Known,
        progress: &watch::Sender<Progress>,
    ) -> Option<Shortfall> {
        let wanted = usize::from(known.copies);
        let enough = wanted / 2 + 1;
        let begun = Instant::now();
        loop {
            let id = known.id;
            let Some(now) = self.known(id).await else {
                // It was removed meanwhile, or this node is too busy to say.
                if self.look(move |state| state.version(id).is_none()).await == Some(true) {
                    let why = "it was removed meanwhile".to_owned();
                    return Some(Shortfall { why, timed_out: false });
                }
                sleep(LOOK).await;
                continue;
            };
            let copies = now.holders.len();
            progress.send_modify(|progress| {
                progress.waits = true;
                (progress.copies, progress.copies_wanted) = (copies, wanted);
            });
            if copies >= enough {
                return None;
            }
            let (able, if_awake) = self.able_to_hold(known.id).await;
            // Somebody may be about to join, or to wake up; not for long.
            if copies + able < enough && begun.elapsed() > Duration::from_secs(2) {
                return Some(Shortfall::of(enough - copies, able, if_awake));
            }
            sleep(LOOK).await;
        }
    }
}

impl Shortfall {
    /// So many copies should stand beside those that do. So many other nodes could have one now, and if all were awake.
    fn of(more: usize, able: usize, if_awake: usize) -> Self {
        let nodes = |count: usize, other: &str| match count {
            0 => format!("no {other}node"),
            1 => format!("1 {other}node"),
            n => format!("{n} {other}nodes"),
        };
        let timed_out = if_awake >= more;
        let hope = match (timed_out, if_awake.saturating_sub(able)) {
            (true, 1) => "1 node that could have one does not answer".to_owned(),
            (true, silent) => format!("{} that could have one do not answer", nodes(silent, "")),
            (false, _) => format!("{} can have one now", nodes(able, "other ")),
        };
        let why = format!("{more} more should stand before a node is lost, and {hope}");
        Self { why, timed_out }
    }
}

/// Sets a flag when it is dropped: whoever waits for a push has gone.
pub struct Cancel(pub Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_tells_whether_it_waits_for_nodes_that_do_not_answer_or_for_nobody() {
        let told = |more, able, if_awake| {
            let Shortfall { why, timed_out } = Shortfall::of(more, able, if_awake);
            (why.split_once(", and ").map(|(_, hope)| hope.to_owned()).unwrap_or(why), timed_out)
        };
        let silent = |text: &str| (text.to_owned(), true);
        assert_eq!(told(1, 0, 1), silent("1 node that could have one does not answer"));
        assert_eq!(told(2, 1, 3), silent("2 nodes that could have one do not answer"));
        assert_eq!(told(1, 0, 0), ("no other node can have one now".to_owned(), false));
        assert_eq!(told(3, 1, 2), ("1 other node can have one now".to_owned(), false));
    }
}
