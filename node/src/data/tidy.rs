//! Keeps the store sound and small: reads it again bit by bit, mends what is damaged, drops what nobody needs.
//!
//! - **Scrub.** A little is read every minute; what does not hash to its name goes into quarantine. A version that
//!   this node is counted on for is fetched anew, and if that fails the state is told that the copy is lost.
//! - **Forget.** The bytes of a version that is no longer in the state, or that this node's party may no longer read,
//!   are deleted unless somebody uses them, pinned or not: nobody could name it any more to take the pin off. A version
//!   that the state no longer counts on here may be evicted. What a pull has left of such a version that did not come to
//!   its end goes as well.
//! - **Evict.** When the disk is fuller than [`HIGH`], what was not used for the longest time goes until it is
//!   at [`LOW`]. What is counted on, pinned or in use stays.
//! - **Quarantine.** What was found damaged is deleted after [`QUARANTINE`]; where room is needed, as soon as it was
//!   mended.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_consensus::id::{Hash, VersionId};
use mesh_storage::store::{Store, StoreError};
use tokio::time::sleep;

use super::keep::{self, HELD, PINNED};
use super::pull::How;
use super::{Data, blocking};
use crate::clock;
use crate::handle::{Ask, Handle};
use crate::state::command::Act;
use crate::state::data::{Claim, Hold};

/// How often it looks after the store.
const EVERY: Duration = Duration::from_secs(60);
/// Bytes that are read again each time: a terabyte in eleven days.
const SCRUB_BYTES: u64 = 64 << 20;
/// Above this share of the disk, in percent, something has to go …
const HIGH: u64 = 80;
/// … until this is reached.
const LOW: u64 = 60;
/// For so long what is damaged can be looked at, and what is good of it be used to mend it.
const QUARANTINE: Duration = Duration::from_secs(7 * 24 * 3600);
/// What was fetched in part goes if nobody touched it for so long and it is unknown what it was for.
const LEFT_OVER: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long somebody is waited for who has what was lost here: others wait for the same hands.
const HOPE: Duration = Duration::from_secs(5);
/// However long nothing seems wrong, what is counted on is looked for again after so many rounds.
const LOOK_AGAIN: u32 = 10;

/// Runs for as long as the node does.
pub(crate) async fn run(handle: Handle) {
    let data = handle.data.clone();
    let mut loose = Loose::default();
    let mut losses = None;
    for round in 0u32.. {
        let now = data.store.losses();
        if losses != Some(now) || round.is_multiple_of(LOOK_AGAIN) {
            losses = Some(now);
            data.mend().await;
        }
        sleep(every()).await;
        let store = data.store.clone();
        match blocking(move || store.scrub(SCRUB_BYTES, clock::now())).await {
            Ok(scrubbed) => {
                for object in scrubbed.damaged {
                    tracing::warn!(%object, "an object was damaged on disk, and is in quarantine");
                }
            }
            Err(error) => tracing::warn!(%error, "the store could not be read again"),
        }
        data.empty_quarantine().await;
        // What the mesh has agreed on must be known here before anything is deleted for not being in it.
        if handle.barrier().await.is_ok() {
            if round.is_multiple_of(LOOK_AGAIN) {
                loose.spoken_of = None;
            }
            loose = data.forget(&loose).await;
        }
        data.make_room().await;
    }
}

/// What the state did not speak of when it was last asked. It may be about to: only what is loose twice is let go.
#[derive(Clone, Default)]
struct Loose {
    /// Pinned for a copy that this node is not counted on for.
    pinned: BTreeSet<Hash>,
    /// Of no version at all.
    unspoken: BTreeSet<Hash>,
    /// What it did speak of. If something of that has gone, a pull may have left something of it.
    spoken_of: Option<BTreeSet<Hash>>,
}

/// Tests of real processes cannot wait for minutes.
fn every() -> Duration {
    match std::env::var("MESH_TEST_WAITS").as_deref() {
        Ok("short") => Duration::from_secs(2),
        _ => EVERY,
    }
}

impl Data {
    /// Fetches anew what this node is counted on for and does not have, or says that it is lost.
    async fn mend(&self) {
        let me = self.whoami.node;
        let held = self.look(move |state| state.held_by(me).map(|(id, _)| id).collect());
        let held: Vec<VersionId> = held.await.unwrap_or_default();
        for version in held {
            let Some(found) = self.find(version).await else { continue };
            if self.is_here(&found).await {
                // It may have been killed in between, or have lost its index.
                keep::pin(self, &found).await;
                continue;
            }
            tracing::warn!(%version, "a copy that is counted on is not whole");
            let how = How { wait: HOPE, ..How::default() };
            if self.bring(&found, how, |_| {}).await.is_err() {
                self.say_lost(version).await;
            }
        }
    }

    /// Says that the copy that this node is counted on for is lost, if it is.
    pub(crate) async fn say_lost(&self, version: VersionId) {
        let me = self.whoami.node;
        let held = self.look(move |state| state.held_by(me).any(|(id, _)| id == version)).await;
        if held != Some(true) {
            return;
        }
        let act = Act::Hold(Hold { id: version, claim: Claim::Lost });
        if let Err(error) = self.writer.write(vec![Ask { act, signed: false }]).await {
            tracing::debug!(%version, %error, "it could not be said that a copy is lost");
        }
    }

    /// Lets go of what the state does not speak of any more, and did not when this was last asked. Gives what it does
    /// not speak of now.
    async fn forget(&self, before: &Loose) -> Loose {
        // Some of what is here may belong to records that cannot be read.
        let (Some(counted_on), Some(known)) = (self.counted_on().await, self.catalogue().await)
        else {
            return Loose::default();
        };
        let spoken_of: BTreeSet<Hash> = known.iter().filter_map(|one| one.manifest).collect();
        let (store, before) = (self.store.clone(), before.clone());
        let done = blocking(move || let_go(&store, &counted_on, &spoken_of, &before));
        done.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the store could not be tidied");
            Loose::default()
        })
    }

    /// The manifests of which this node is counted on for a copy; `None` if it cannot tell.
    async fn counted_on(&self) -> Option<BTreeSet<Hash>> {
        let (known, private) = (self.catalogue().await?, self.private().await?);
        if self.sealing_secret().await.is_none() || private.unopened() > 0 {
            return None;
        }
        let held = known.iter().filter(|one| one.holders.contains(&self.whoami.node));
        Some(held.filter_map(|one| one.manifest).collect())
    }

    /// Deletes what has been in quarantine for long.
    async fn empty_quarantine(&self) {
        let store = self.store.clone();
        match blocking(move || store.empty_quarantine(QUARANTINE, clock::now())).await {
            Ok(0) => {}
            Ok(bytes) => tracing::info!(bytes, "what was found damaged long ago was deleted"),
            Err(error) => tracing::warn!(%error, "the quarantine could not be emptied"),
        }
    }

    /// Evicts, if the disk is too full.
    async fn make_room(&self) {
        let Some((total, free)) = self.disk() else { return };
        let used = total.saturating_sub(free);
        if used.saturating_mul(100) <= total.saturating_mul(HIGH) {
            return;
        }
        let mut wanted = used.saturating_sub(total / 100 * LOW);
        let store = self.store.clone();
        match blocking(move || store.drop_mended()).await {
            Ok(bytes) => wanted = wanted.saturating_sub(bytes),
            Err(error) => tracing::warn!(%error, "the quarantine could not be emptied"),
        }
        if wanted == 0 {
            return;
        }
        // What is counted on is pinned, but pins can be lost.
        let Some(counted_on) = self.counted_on().await else { return };
        let store = self.store.clone();
        match blocking(move || store.evict(wanted, |hash| !counted_on.contains(&hash))).await {
            Ok(evicted) if evicted.bytes > 0 => {
                let (bytes, versions) = (evicted.bytes, evicted.manifests.len());
                tracing::info!(
                    bytes,
                    versions,
                    "evicted from the store, since the disk is nearly full"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "nothing could be evicted from the store"),
        }
    }
}

/// Lets go of what was loose `before` and is so still. Gives what is loose now.
fn let_go(
    store: &Store,
    counted_on: &BTreeSet<Hash>,
    spoken_of: &BTreeSet<Hash>,
    before: &Loose,
) -> Result<Loose, StoreError> {
    let mut loose = Loose::default();
    for held in store.list()? {
        let hash = held.hash;
        let is_pinned = |reason: &str| held.pins.iter().any(|pin| pin == reason);
        if is_pinned(HELD) && !counted_on.contains(&hash) {
            loose.pinned.insert(hash);
            if before.pinned.contains(&hash) {
                store.unpin(hash, HELD)?;
            }
        }
        let others = held.pins.iter().any(|pin| pin != HELD && pin != PINNED);
        if spoken_of.contains(&hash) || others || held.leases > 0 {
            continue;
        }
        loose.unspoken.insert(hash);
        if !before.unspoken.contains(&hash) {
            continue;
        }
        // The right to keep it has ended, and with it the wish.
        if is_pinned(PINNED) && store.unpin(hash, PINNED)? {
            tracing::info!(manifest = %hash, "a pin ended with the right to keep what it was for");
        }
        match store.remove(hash) {
            Ok(bytes) => {
                tracing::info!(manifest = %hash, bytes, "what is no longer in the mesh, or no longer for this node, was deleted");
            }
            // Somebody has begun to use it.
            Err(error) => tracing::debug!(manifest = %hash, %error, "it stays for now"),
        }
    }
    let has_gone = |known: &BTreeSet<Hash>| !known.is_subset(spoken_of);
    if before.spoken_of.as_ref().is_none_or(has_gone) {
        let bytes =
            store.drop_leftovers(|hash| spoken_of.contains(&hash), LEFT_OVER, clock::now())?;
        if bytes > 0 {
            tracing::info!(
                bytes,
                "what pulls have left that did not come to their end was deleted"
            );
        }
    }
    loose.spoken_of = Some(spoken_of.clone());
    Ok(loose)
}

#[cfg(test)]
mod tests {
    use mesh_storage::import::{Options, import};
    use tempfile::TempDir;

    use super::*;

    /// A store with one version in it.
    fn store() -> (TempDir, Store, Hash) {
        let (home, tree) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        std::fs::write(tree.path().join("file"), vec![7u8; 300_000]).unwrap();
        let store = Store::open(home.path()).unwrap();
        let hash = import(&store, tree.path(), Options::default(), clock::now()).unwrap().hash;
        (home, store, hash)
    }

    /// In which round the version goes, if it is one of those that are spoken of or not.
    fn goes_in(store: &Store, hash: Hash, is_spoken_of: bool) -> Option<usize> {
        let counted_on = BTreeSet::new();
        let spoken_of: BTreeSet<Hash> = is_spoken_of.then_some(hash).into_iter().collect();
        let mut loose = Loose::default();
        (1..=4).find(|_| {
            loose = let_go(store, &counted_on, &spoken_of, &loose).unwrap();
            !store.has(hash).unwrap()
        })
    }

    #[test]
    fn what_nobody_speaks_of_goes_the_second_time_pinned_by_a_person_or_not() {
        let cases: [&[&str]; 4] = [&[], &[HELD], &[PINNED], &[HELD, PINNED]];
        for pins in cases {
            let (_home, store, hash) = store();
            for pin in pins {
                store.pin(hash, pin).unwrap();
            }
            assert_eq!(goes_in(&store, hash, false), Some(2), "{pins:?}");
        }
    }

    #[test]
    fn what_a_pull_has_left_goes_with_its_version() {
        let (_home, origin, hash) = store();
        let home = TempDir::new().unwrap();
        let store = Store::open(home.path()).unwrap();
        let loaded = origin.load(hash).unwrap();
        let chunk = origin.read_chunk(&loaded, 0, clock::now()).unwrap();
        let bytes = origin.manifest_bytes(hash).unwrap();
        let fetch = store.fetch(bytes, hash, clock::now()).unwrap();
        fetch.write(0, &chunk).unwrap();
        fetch.flush().unwrap();
        drop(fetch);
        assert!(loaded.chunk_count() > 1, "it would be whole");
        let (none, spoken_of) = (BTreeSet::new(), BTreeSet::from([hash]));
        let mut loose = Loose::default();
        for _ in 0..2 {
            loose = let_go(&store, &none, &spoken_of, &loose).unwrap();
            assert!(store.usage().unwrap().partial > 0, "somebody may go on with it");
        }
        let_go(&store, &none, &none, &loose).unwrap();
        assert_eq!(store.usage().unwrap().partial, 0);
    }

    #[test]
    fn what_may_be_kept_keeps_its_pin() {
        let (_home, store, hash) = store();
        store.pin(hash, PINNED).unwrap();
        store.pin(hash, HELD).unwrap();
        assert_eq!(goes_in(&store, hash, true), None);
        assert_eq!(store.list().unwrap()[0].pins, [PINNED], "nobody counts on it");
    }

    #[test]
    fn what_is_in_use_or_pinned_for_another_reason_stays() {
        let (_home, store, hash) = store();
        let lease = store.lease(hash, clock::now()).unwrap();
        assert_eq!(goes_in(&store, hash, false), None);
        drop(lease);
        store.pin(hash, "job").unwrap();
        store.pin(hash, PINNED).unwrap();
        assert_eq!(goes_in(&store, hash, false), None);
        assert_eq!(store.list().unwrap()[0].pins.len(), 2);
    }
}
