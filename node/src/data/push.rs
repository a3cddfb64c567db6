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

use mesh_consensus::id::{NodeId, PartyId, VersionId};
use mesh_storage::import::{self, Apart, ImportError, Imported};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::catalogue::{Known, Visibility};
use super::room::Others;
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
/// Somebody may be about to join, or to wake up; for so long.
const ABOUT: Duration = Duration::from_secs(2);
/// Once bytes have left, a copy is being made; also where the disk that it fills has no room for another by now.
const UNDER_WAY: Duration = Duration::from_secs(30);
/// If for so long no copy is made and no byte leaves, those who should take one do not get on with it. A node whose disk
/// is found full is passed over within a minute: see `keep`.
const STALLED: Duration = Duration::from_secs(120);
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
    /// Whether there would be enough nodes, if these had room.
    pub no_room: bool,
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
        if let Some(Shortfall { why, .. }) = &shortfall {
            tracing::warn!(version = %known.id, %why, "too few copies of a new version stand");
        }
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

    /// Waits until a majority of the copies is durable. Says why not, if too few nodes could have one or nothing moves.
    pub(crate) async fn wait_for_copies(
        &self,
        known: &Known,
        progress: &watch::Sender<Progress>,
    ) -> Option<Shortfall> {
        let wanted = usize::from(known.copies);
        let enough = wanted / 2 + 1;
        let mut steps = Steps::new(Instant::now());
        loop {
            let id = known.id;
            let Some(now) = self.known(id).await else {
                // It was removed meanwhile, or this node is too busy to say.
                if self.look(move |state| state.version(id).is_none()).await == Some(true) {
                    let why = "it was removed meanwhile".to_owned();
                    return Some(Shortfall { why, timed_out: false, no_room: false });
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
            let Some(others) = self.others(id).await else {
                sleep(LOOK).await;
                continue;
            };
            let quiet = steps.quiet((copies, self.sent_of(id)), Instant::now());
            let is_hopeless =
                copies + others.able.len() < enough && quiet > steps.patience(&others);
            let is_stalled = quiet >= STALLED;
            if is_hopeless || is_stalled {
                let name = |node: NodeId| self.node_name(node);
                return Some(Shortfall::of(enough - copies, &others, is_stalled, name));
            }
            sleep(LOOK).await;
        }
    }

    /// Why fewer copies of a version stand than are wanted, in words. `None` if enough do, and of other parties' data
    /// that this node may not read.
    pub(crate) async fn shortfall(&self, known: &Known) -> Option<String> {
        let missing = usize::from(known.copies).saturating_sub(known.holders.len());
        if missing == 0 || known.manifest.is_none() {
            return None;
        }
        let words = |others: Others| others.words(missing, |node| self.node_name(node));
        let why = self.others(known.id).await.map(words);
        Some(why.unwrap_or_else(|| "this node cannot tell why at the moment".to_owned()))
    }

    /// How people call a node.
    fn node_name(&self, node: NodeId) -> String {
        let roster = self.shown.roster.borrow();
        roster.members.get(&node).map_or_else(|| node.short(), |place| place.name.to_string())
    }
}

/// The last step that a push made towards its copies, and when it was seen.
struct Steps {
    /// Copies, and the bytes that have left for others.
    last: (usize, Option<u64>),
    at: Instant,
    /// Whether bytes have left.
    is_under_way: bool,
}

impl Steps {
    fn new(now: Instant) -> Self {
        Self { last: (0, None), at: now, is_under_way: false }
    }

    /// For how long there was no step, however long it takes in all.
    fn quiet(&mut self, step: (usize, Option<u64>), now: Instant) -> Duration {
        if step != self.last {
            (self.last, self.at) = (step, now);
        }
        self.is_under_way |= step.1.is_some_and(|sent| sent > 0);
        now.duration_since(self.at)
    }

    /// How long the next step is waited for if too few nodes seem able to take a copy.
    fn patience(&self, others: &Others) -> Duration {
        if self.is_under_way && !others.full.is_empty() { UNDER_WAY } else { ABOUT }
    }
}

impl Shortfall {
    /// So many copies should stand beside those that do, and these have none. `is_stalled` if those that could have one
    /// did not get on with it.
    fn of(more: usize, others: &Others, is_stalled: bool, name: impl Fn(NodeId) -> String) -> Self {
        let if_awake = others.able.len() + others.silent.len();
        let timed_out = is_stalled || if_awake >= more;
        let no_room = !timed_out && if_awake + others.full.len() >= more;
        let mut why = format!("{more} more should stand before a node is lost, and ");
        if is_stalled {
            why += &format!("nothing has moved for {} s: ", STALLED.as_secs());
        }
        why += &others.words(more, name);
        Self { why, timed_out, no_room }
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

    fn told(more: usize, able: &[u8], full: &[u8], silent: &[u8], is_stalled: bool) -> Shortfall {
        let nodes = |numbers: &[u8]| numbers.iter().map(|n| NodeId([*n; 32])).collect();
        let others = Others { able: nodes(able), full: nodes(full), silent: nodes(silent) };
        Shortfall::of(more, &others, is_stalled, |node| format!("n{}", node.0[0]))
    }

    #[test]
    fn a_push_tells_whether_it_waits_for_nodes_that_do_not_answer_for_room_or_for_nobody() {
        let short = |more, able: &[u8], full: &[u8], silent: &[u8]| {
            let Shortfall { why, timed_out, no_room } = told(more, able, full, silent, false);
            let hope = why.split_once(", and ").map(|(_, hope)| hope.to_owned());
            (hope.unwrap_or(why), timed_out, no_room)
        };
        assert_eq!(short(1, &[], &[], &[2]), ("n2 is down".to_owned(), true, false));
        assert_eq!(short(1, &[], &[2], &[]), ("no room on n2".to_owned(), false, true));
        // One that wakes up would do, and so it is waited for.
        let both = short(1, &[], &[2], &[3]);
        assert_eq!(both, ("no room on n2; n3 is down".to_owned(), true, false));
        let two = short(2, &[], &[2], &[3]);
        assert_eq!(two, ("no room on n2; n3 is down".to_owned(), false, true));
        assert_eq!(short(1, &[], &[], &[]), ("no other node may hold it".to_owned(), false, false));
        let few = short(3, &[], &[2], &[]);
        assert_eq!(few, ("no room on n2; no further node may hold it".to_owned(), false, false));
    }

    #[test]
    fn a_push_is_given_up_when_nothing_moves_and_not_because_it_takes_long() {
        let begun = Instant::now();
        let mut steps = Steps::new(begun);
        let mut at = |seconds: u64, copies: usize, sent: Option<u64>| {
            steps.quiet((copies, sent), begun + Duration::from_secs(seconds)).as_secs()
        };
        assert_eq!(at(0, 1, None), 0);
        assert_eq!(at(2, 1, Some(0)), 0, "somebody has come for it");
        for minute in 1..60 {
            assert_eq!(at(60 * minute, 1, Some(minute)), 0, "bytes still leave");
        }
        assert_eq!(at(3600, 2, None), 0, "a copy stands");
        assert_eq!(at(3719, 2, None), 119);
        let full = Others { full: vec![NodeId([2; 32])], ..Others::default() };
        assert_eq!(steps.patience(&full), UNDER_WAY, "it may be the copy that fills the disk");
        assert_eq!(steps.patience(&Others::default()), ABOUT);
        assert_eq!(Steps::new(begun).patience(&full), ABOUT, "nobody has begun");
        let Shortfall { why, timed_out, no_room } = told(1, &[4], &[2], &[], true);
        assert!(why.contains("nothing has moved for 120 s") && why.contains("n4"), "{why}");
        assert!(timed_out && !no_room);
    }
}
