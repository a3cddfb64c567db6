//! Bookmarks: what voters sign for those who only watch.
//!
//! A watcher takes entries from whoever serves it, and that one may lie. So each voter signs, now
//! and then, how far it has come: the index, the hash of its whole history up to there, and the
//! digest of its latest snapshot. A watcher acts on membership and permissions only up to what a
//! majority of the voters it knows has signed, and goes on from a snapshot only if a majority has
//! signed its digest.
//!
//! [`Tally`] keeps the newest bookmark of each voter and answers from them. It compares them with
//! the watcher's own history, which the watcher remembers for the last entries; so a bookmark should
//! be handed over after the entries it speaks of. While a configuration is joint, ask for both sets
//! of voters: what holds is what both confirm.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ed25519_dalek::{Signer, SigningKey};
use serde::{Deserialize, Serialize};

use crate::command::verify;
use crate::id::{Epoch, Hash, MeshId, NodeId};

const DOMAIN: &[u8] = b"mesh/bookmark/1\0";
/// Checkpoints of one voter that are remembered.
const MAX_CHECKPOINTS: usize = 16;

/// A voter's word on how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bookmark {
    /// Its mesh.
    pub mesh: MeshId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The last entry that it has applied.
    pub index: u64,
    /// The hash chain up to and including that entry.
    pub history: Hash,
    /// Its latest snapshot, if it has taken one: index and digest.
    pub checkpoint: Option<(u64, Hash)>,
    /// Grows with every bookmark of its node, also where nothing else has changed: an old one that is
    /// shown again is no sign of life.
    pub beat: u64,
    /// Who says so.
    pub by: NodeId,
    signature: Vec<u8>,
}

/// Why a bookmark counts for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BookmarkError {
    /// Of another mesh.
    #[error("the bookmark of {} belongs to another mesh", .0.short())]
    OtherMesh(NodeId),
    /// Of another epoch.
    #[error("the bookmark of {} belongs to another epoch", .0.short())]
    OtherEpoch(NodeId),
    /// Not signed by its node.
    #[error("the bookmark of {} is not signed by it", .0.short())]
    BadSignature(NodeId),
    /// Its node does not vote.
    #[error("{} does not vote", .0.short())]
    NotVoter(NodeId),
}

impl Bookmark {
    /// Signs, with a node's key, where it stands.
    pub fn sign(
        key: &SigningKey,
        mesh: MeshId,
        epoch: Epoch,
        index: u64,
        history: Hash,
        checkpoint: Option<(u64, Hash)>,
        beat: u64,
    ) -> Self {
        let by = NodeId(key.verifying_key().to_bytes());
        let signature = Vec::new();
        let unsigned = Self { mesh, epoch, index, history, checkpoint, beat, by, signature };
        Self { signature: key.sign(&unsigned.signed_bytes()).to_bytes().to_vec(), ..unsigned }
    }

    /// Whether it was signed by its node, for this mesh and epoch.
    pub fn verify(&self, mesh: MeshId, epoch: Epoch) -> Result<(), BookmarkError> {
        if self.mesh != mesh {
            return Err(BookmarkError::OtherMesh(self.by));
        }
        if self.epoch != epoch {
            return Err(BookmarkError::OtherEpoch(self.by));
        }
        match verify(&self.by.0, &self.signed_bytes(), &self.signature) {
            true => Ok(()),
            false => Err(BookmarkError::BadSignature(self.by)),
        }
    }

    /// Every field has a fixed place, so no two bookmarks are signed by the same bytes.
    fn signed_bytes(&self) -> Vec<u8> {
        let Self { mesh, epoch, index, history, checkpoint, beat, by, signature: _ } = self;
        let (is_there, at, digest) = match checkpoint {
            Some((at, digest)) => (1, *at, digest.0),
            None => (0, 0, [0; 32]),
        };
        let mut bytes = Vec::with_capacity(DOMAIN.len() + 157);
        bytes.extend_from_slice(DOMAIN);
        bytes.extend_from_slice(&mesh.0);
        bytes.extend_from_slice(&epoch.to_le_bytes());
        bytes.extend_from_slice(&by.0);
        bytes.extend_from_slice(&index.to_le_bytes());
        bytes.extend_from_slice(&history.0);
        bytes.push(is_there);
        bytes.extend_from_slice(&at.to_le_bytes());
        bytes.extend_from_slice(&digest);
        bytes.extend_from_slice(&beat.to_le_bytes());
        bytes
    }

    /// Whether it says more than an `earlier` one of the same node.
    pub fn is_newer_than(&self, earlier: &Self) -> bool {
        (self.index, self.beat) > (earlier.index, earlier.beat)
    }
}

/// That a majority of the voters has another history than this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} voters have signed another history than this node's, at entry {index} or before", by.len())]
pub struct Forked {
    /// The lowest entry at which one of them differs.
    pub index: u64,
    /// Who they are.
    pub by: BTreeSet<NodeId>,
}

/// The newest bookmark of each voter, all of one mesh and epoch.
#[derive(Debug, Clone)]
pub struct Tally {
    mesh: MeshId,
    epoch: Epoch,
    /// Signed by their keys, and at most one for each voter of when it came.
    newest: BTreeMap<NodeId, Bookmark>,
    /// The checkpoints that each of them has signed of late, oldest first. A voter goes on to its next one while
    /// others still come to this one.
    checkpoints: BTreeMap<NodeId, VecDeque<(u64, Hash)>>,
}

impl Tally {
    /// Nothing has been heard yet.
    pub fn new(mesh: MeshId, epoch: Epoch) -> Self {
        Self { mesh, epoch, newest: BTreeMap::new(), checkpoints: BTreeMap::new() }
    }

    /// Takes a bookmark in. `Ok(false)` for one that is not newer than what its voter signed before.
    ///
    /// `voters` are those whose word counts now; what others said is forgotten, so there are never
    /// more than so many.
    pub fn take(
        &mut self,
        bookmark: Bookmark,
        voters: &BTreeSet<NodeId>,
    ) -> Result<bool, BookmarkError> {
        self.newest.retain(|by, _| voters.contains(by));
        self.checkpoints.retain(|by, _| voters.contains(by));
        if !voters.contains(&bookmark.by) {
            return Err(BookmarkError::NotVoter(bookmark.by));
        }
        if self.newest.get(&bookmark.by).is_some_and(|held| !bookmark.is_newer_than(held)) {
            return Ok(false);
        }
        bookmark.verify(self.mesh, self.epoch)?;
        if let Some(checkpoint) = bookmark.checkpoint {
            let signed = self.checkpoints.entry(bookmark.by).or_default();
            if signed.back() != Some(&checkpoint) {
                signed.push_back(checkpoint);
            }
            if signed.len() > MAX_CHECKPOINTS {
                signed.pop_front();
            }
        }
        self.newest.insert(bookmark.by, bookmark);
        Ok(true)
    }

    /// The highest index up to which a majority of `voters` has signed what this node has; zero if
    /// there is none. `history_at` is this node's history where it remembers it.
    ///
    /// What was confirmed once stays so, but the answer may be lower than before: a new bookmark can
    /// be ahead of this node, and the voters may have changed. So callers keep the largest.
    pub fn confirmed(
        &self,
        voters: &BTreeSet<NodeId>,
        history_at: impl Fn(u64) -> Option<Hash>,
    ) -> u64 {
        let mut agreed: Vec<u64> = self
            .of(voters)
            .filter(|bookmark| history_at(bookmark.index) == Some(bookmark.history))
            .map(|bookmark| bookmark.index)
            .collect();
        // Whoever has signed a history has signed every part of it.
        agreed.sort_unstable_by(|a, b| b.cmp(a));
        agreed.get(majority(voters) - 1).copied().unwrap_or(0)
    }

    /// Whether a majority of `voters` has signed what contradicts this node. It must then stop: it,
    /// or whoever served it, was lied to.
    pub fn forked(
        &self,
        voters: &BTreeSet<NodeId>,
        history_at: impl Fn(u64) -> Option<Hash>,
    ) -> Option<Forked> {
        let against = || {
            self.of(voters).filter(|bookmark| {
                history_at(bookmark.index).is_some_and(|ours| ours != bookmark.history)
            })
        };
        let by: BTreeSet<NodeId> = against().map(|bookmark| bookmark.by).collect();
        let index = against().map(|bookmark| bookmark.index).min()?;
        (by.len() >= majority(voters)).then_some(Forked { index, by })
    }

    /// Whether a majority of `voters` has signed this snapshot, by index and digest.
    pub fn have_signed(&self, checkpoint: (u64, Hash), voters: &BTreeSet<NodeId>) -> bool {
        let signed = self.checkpoints.iter().filter(|(by, _)| voters.contains(by));
        signed.filter(|(_, all)| all.contains(&checkpoint)).count() >= majority(voters)
    }

    /// The bookmarks of `voters`.
    fn of(&self, voters: &BTreeSet<NodeId>) -> impl Iterator<Item = &Bookmark> {
        self.newest.values().filter(|bookmark| voters.contains(&bookmark.by))
    }
}

/// More than half; one where nobody votes, so that nothing is then confirmed.
pub(crate) fn majority(voters: &BTreeSet<NodeId>) -> usize {
    voters.len() / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESH: MeshId = MeshId([1; 32]);

    /// An index and a hash, from a voter that said something.
    type Said = Option<(u64, Hash)>;

    fn key(n: u8) -> SigningKey {
        SigningKey::from_bytes(&[n; 32])
    }

    fn id(n: u8) -> NodeId {
        NodeId(key(n).verifying_key().to_bytes())
    }

    fn voters(n: u8) -> BTreeSet<NodeId> {
        (1..=n).map(id).collect()
    }

    /// Our history: the last 50 of 100 entries are remembered.
    fn ours(index: u64) -> Option<Hash> {
        (51..=100).contains(&index).then(|| truth(index))
    }

    fn truth(index: u64) -> Hash {
        Hash::of(&index.to_le_bytes())
    }

    fn lie(index: u64) -> Hash {
        Hash::of(&(index + 1_000_000).to_le_bytes())
    }

    fn mark(n: u8, index: u64, history: Hash) -> Bookmark {
        Bookmark::sign(&key(n), MESH, 0, index, history, None, 1)
    }

    /// Voter 1 says the first, voter 2 the second, and so on; `None` says nothing.
    fn tally(of: u8, said: &[Said]) -> Tally {
        let mut tally = Tally::new(MESH, 0);
        for (n, said) in (1..).zip(said) {
            if let Some((index, history)) = said {
                tally.take(mark(n, *index, *history), &voters(of)).unwrap();
            }
        }
        tally
    }

    #[test]
    fn every_changed_field_is_noticed() {
        let right = Bookmark::sign(&key(1), MESH, 3, 7, truth(7), Some((4, Hash([4; 32]))), 1);
        assert_eq!(right.verify(MESH, 3), Ok(()));
        let changes: [fn(&mut Bookmark); 9] = [
            |b| b.mesh.0[0] ^= 1,
            |b| b.epoch += 1,
            |b| b.index += 1,
            |b| b.history.0[0] ^= 1,
            |b| b.checkpoint = None,
            |b| b.checkpoint = Some((5, Hash([4; 32]))),
            |b| b.checkpoint = Some((4, Hash([5; 32]))),
            |b| b.by = id(2),
            |b| b.signature.clear(),
        ];
        for (place, change) in changes.iter().enumerate() {
            let mut changed = right.clone();
            change(&mut changed);
            let verdict = changed.verify(changed.mesh, changed.epoch);
            assert_eq!(verdict, Err(BookmarkError::BadSignature(changed.by)), "change {place}");
        }
        // Nor is no snapshot the same as one at zero.
        let none = mark(1, 7, truth(7));
        let zero = Bookmark { checkpoint: Some((0, Hash([0; 32]))), ..none.clone() };
        assert!(none.verify(MESH, 0).is_ok() && zero.verify(MESH, 0).is_err());
    }

    #[test]
    fn a_bookmark_counts_in_its_own_mesh_and_epoch_only() {
        let elsewhere = MeshId([2; 32]);
        let bookmark = mark(1, 7, truth(7));
        assert_eq!(bookmark.verify(elsewhere, 0), Err(BookmarkError::OtherMesh(id(1))));
        assert_eq!(bookmark.verify(MESH, 1), Err(BookmarkError::OtherEpoch(id(1))));
        let mut tally = Tally::new(MESH, 1);
        assert_eq!(tally.take(bookmark, &voters(1)), Err(BookmarkError::OtherEpoch(id(1))));
        assert_eq!(tally.confirmed(&voters(1), |i| Some(truth(i))), 0);
    }

    #[test]
    fn what_a_majority_has_signed_is_confirmed_up_to_the_least_of_them() {
        let t = |index| Some((index, truth(index)));
        let l = |index| Some((index, lie(index)));
        let table: [(u8, &[Said], u64); 15] = [
            (1, &[t(90)], 90),
            (1, &[None], 0),
            (2, &[t(90)], 0),
            (2, &[t(90), t(80)], 80),
            (3, &[t(90), t(80), t(70)], 80),
            (3, &[t(90), t(80)], 80),
            (3, &[t(90)], 0),
            (4, &[t(90), t(80)], 0),
            (4, &[t(90), t(80), t(70)], 70),
            (5, &[t(100), t(90), t(80), t(70), t(60)], 80),
            // One liar of three, two of five: nothing changes, wherever they lie.
            (3, &[l(100), t(80), t(70)], 70),
            (5, &[l(60), l(100), t(80), t(70), t(60)], 60),
            // Where we do not know our own history, nothing can be said.
            (3, &[t(101), t(102), t(80)], 0),
            (3, &[t(50), t(80), t(70)], 70),
            (3, &[t(101), t(50), t(70)], 0),
        ];
        for (place, (of, said, want)) in table.into_iter().enumerate() {
            assert_eq!(tally(of, said).confirmed(&voters(of), ours), want, "row {place}");
        }
    }

    #[test]
    fn a_majority_that_contradicts_us_is_a_fork_and_a_minority_is_not() {
        let t = |index| Some((index, truth(index)));
        let l = |index| Some((index, lie(index)));
        let table: [(u8, &[Said], _); 9] = [
            (1, &[l(90)], Some((90, 1))),
            (3, &[l(90), t(90), t(80)], None),
            (3, &[l(90), t(90)], None),
            (3, &[l(90), l(80), t(80)], Some((80, 2))),
            (4, &[l(90), l(80), t(80), t(80)], None),
            (5, &[l(90), l(80), l(70), t(80), t(80)], Some((70, 3))),
            // Silence is no contradiction, nor is what we have not reached or have forgotten.
            (3, &[None, None, None], None),
            (3, &[l(101), l(102), l(103)], None),
            (3, &[l(50), l(50), t(60)], None),
        ];
        for (place, (of, said, want)) in table.into_iter().enumerate() {
            let forked = tally(of, said).forked(&voters(of), ours);
            let want = want.map(|(index, n)| Forked { index, by: voters(n) });
            assert_eq!(forked, want, "row {place}");
        }
    }

    #[test]
    fn a_snapshot_counts_once_a_majority_has_signed_the_same_digest() {
        let good = |at: u64| Some((at, truth(at)));
        let bad = |at: u64| Some((at, lie(at)));
        let table: [(u8, &[Said], bool); 8] = [
            (1, &[good(64)], true),
            (1, &[None], false),
            (3, &[good(64), None, None], false),
            (3, &[good(64), good(64), None], true),
            (3, &[good(128), good(64), good(64)], true),
            (3, &[bad(64), good(64), good(64)], true),
            (3, &[bad(64), good(64), good(128)], false),
            (5, &[bad(64), bad(64), bad(64), good(64), good(64)], false),
        ];
        let sign = |tally: &mut Tally, of: u8, n: u8, checkpoint: Said, beat: u64| {
            let bookmark = Bookmark::sign(&key(n), MESH, 0, 200, truth(200), checkpoint, beat);
            tally.take(bookmark, &voters(of)).unwrap();
        };
        for (place, (of, signed, want)) in table.into_iter().enumerate() {
            let mut tally = Tally::new(MESH, 0);
            for (n, checkpoint) in (1..).zip(signed) {
                sign(&mut tally, of, n, *checkpoint, 1);
            }
            assert_eq!(tally.have_signed((64, truth(64)), &voters(of)), want, "row {place}");
        }
        // One has gone on before another comes to it; what is long past is forgotten.
        let mut tally = Tally::new(MESH, 0);
        sign(&mut tally, 3, 1, good(64), 1);
        sign(&mut tally, 3, 1, good(128), 2);
        sign(&mut tally, 3, 2, good(64), 1);
        assert!(tally.have_signed((64, truth(64)), &voters(3)));
        for beat in 3..40 {
            sign(&mut tally, 3, 1, good(64 * beat), beat);
        }
        assert!(!tally.have_signed((64, truth(64)), &voters(3)));
        assert_eq!(tally.checkpoints[&id(1)].len(), MAX_CHECKPOINTS);
    }

    #[test]
    fn a_voter_has_one_bookmark_and_it_is_the_newest() {
        let mut tally = Tally::new(MESH, 0);
        let all = voters(1);
        assert_eq!(tally.take(mark(1, 80, truth(80)), &all), Ok(true));
        assert_eq!(tally.take(mark(1, 70, truth(70)), &all), Ok(false));
        // Whoever signs two histories for one index is held to the first.
        assert_eq!(tally.take(mark(1, 80, lie(80)), &all), Ok(false));
        assert_eq!(tally.confirmed(&all, ours), 80);
        assert_eq!(tally.take(mark(1, 90, truth(90)), &all), Ok(true));
        assert_eq!(tally.confirmed(&all, ours), 90);
        assert_eq!(tally.newest.len(), 1);
    }

    #[test]
    fn who_does_not_vote_is_not_heard_and_who_no_longer_votes_is_forgotten() {
        let mut tally = tally(3, &[Some((90, truth(90))), Some((80, truth(80)))]);
        let stranger = mark(9, 100, truth(100));
        assert_eq!(tally.take(stranger, &voters(3)), Err(BookmarkError::NotVoter(id(9))));
        let now = BTreeSet::from([id(2), id(3), id(4)]);
        // The word of one who voted when it spoke does not count among those who vote now.
        assert_eq!(tally.confirmed(&now, ours), 0);
        tally.take(mark(3, 85, truth(85)), &now).unwrap();
        assert_eq!(tally.confirmed(&now, ours), 80);
        assert_eq!(tally.newest.len(), 2);
        let nobody = BTreeSet::new();
        assert_eq!(tally.confirmed(&nobody, ours), 0);
        assert!(!tally.have_signed((64, truth(64)), &nobody));
    }

    #[test]
    fn a_forged_bookmark_takes_nobodys_place() {
        let mut tally = tally(3, &[Some((80, truth(80))), Some((80, truth(80)))]);
        let forged = Bookmark { by: id(1), ..mark(2, 95, lie(95)) };
        assert_eq!(tally.take(forged, &voters(3)), Err(BookmarkError::BadSignature(id(1))));
        assert_eq!(tally.confirmed(&voters(3), ours), 80);
    }
}
