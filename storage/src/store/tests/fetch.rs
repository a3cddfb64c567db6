//! Pulls: from anywhere, in any order, again and again.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use super::*;

/// A store that has a tree, and all its chunks.
pub(super) struct Origin {
    _home: TempDir,
    pub(super) tree: TempDir,
    pub(super) hash: Hash,
    pub(super) bytes: Vec<u8>,
    pub(super) chunks: Vec<Vec<u8>>,
}

pub(super) fn origin(seed: u64) -> Origin {
    let (home, tree) = (TempDir::new().unwrap(), tree(seed));
    let store = Store::open(home.path()).unwrap();
    let hash = take(&store, tree.path()).hash;
    let loaded = store.load(hash).unwrap();
    let chunk = |number| store.read_chunk(&loaded, number, NOW).unwrap();
    let chunks = (0..loaded.chunk_count()).map(chunk).collect();
    let bytes = store.manifest_bytes(hash).unwrap();
    Origin { _home: home, tree, hash, bytes, chunks }
}

impl Origin {
    pub(super) fn fetch(&self, store: &Store) -> Fetch {
        store.fetch(self.bytes.clone(), self.hash, NOW).unwrap()
    }

    pub(super) fn complete(&self, fetch: &Fetch) {
        for number in fetch.missing().present() {
            fetch.write(number, &self.chunks[number]).unwrap();
        }
        fetch.finish(NOW).unwrap();
    }
}

#[test]
fn chunks_may_come_in_any_order_from_several_threads() {
    let (home, origin) = (TempDir::new().unwrap(), origin(1));
    let store = Store::open(home.path()).unwrap();
    let fetch = origin.fetch(&store);
    assert_eq!(fetch.missing().count(), origin.chunks.len());
    assert!(matches!(fetch.finish(NOW), Err(StoreError::Incomplete { .. })));
    let news = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (fetch, origin, news) = (&fetch, &origin, &news);
            scope.spawn(move || {
                let mut order: Vec<usize> = (0..origin.chunks.len()).collect();
                fastrand::Rng::with_seed(seed).shuffle(&mut order);
                for number in order {
                    let wrote = fetch.write(number, &origin.chunks[number]).unwrap();
                    news.fetch_add(usize::from(wrote != Wrote::Had), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(news.into_inner(), origin.chunks.len(), "one writer for each chunk");
    assert!(!store.has(origin.hash).unwrap());
    fetch.finish(NOW).unwrap();
    assert!(store.has(origin.hash).unwrap());
    assert_eq!(contents(&store, origin.hash), planted(origin.tree.path()));
    assert_eq!(store.usage().unwrap().partial, 0);
}

#[test]
fn wrong_bytes_are_refused_and_change_nothing() {
    let (home, origin) = (TempDir::new().unwrap(), origin(1));
    let store = Store::open(home.path()).unwrap();
    let fetch = origin.fetch(&store);
    let mut wrong = origin.chunks[0].clone();
    wrong[7] ^= 1;
    let refused = fetch.write(0, &wrong).unwrap_err();
    assert!(matches!(refused, StoreError::WrongChunk { number: 0, .. }));
    assert!(matches!(fetch.write(0, &[]), Err(StoreError::WrongChunk { .. })));
    assert!(matches!(fetch.write(0, &origin.chunks[1]), Err(StoreError::WrongChunk { .. })));
    assert!(matches!(fetch.write(9999, &wrong), Err(StoreError::NoSuchChunk { .. })));
    assert_eq!(fetch.have().count(), 0);
    let other = Hash([1; 32]);
    assert!(matches!(
        store.fetch(origin.bytes.clone(), other, NOW),
        Err(StoreError::WrongManifest { .. })
    ));
    let junk = b"mesh manifest 1\njunk".to_vec();
    assert!(matches!(
        store.fetch(junk.clone(), Hash::of(&junk), NOW),
        Err(StoreError::Manifest(_))
    ));
    origin.complete(&fetch);
}

#[test]
fn a_fetch_goes_on_from_what_was_synced_and_from_nothing_else() {
    let (home, origin) = (TempDir::new().unwrap(), origin(1));
    let store = Store::open(home.path()).unwrap();
    let fetch = origin.fetch(&store);
    assert!(!fetch.is_dirty());
    fetch.write(0, &origin.chunks[0]).unwrap();
    fetch.write(2, &origin.chunks[2]).unwrap();
    assert!(fetch.is_dirty());
    fetch.flush().unwrap();
    assert!(!fetch.is_dirty());
    fetch.write(1, &origin.chunks[1]).unwrap();
    assert!(fetch.is_dirty());
    assert_eq!(fetch.have().present().collect::<Vec<_>>(), [0, 1, 2]);
    // Chunk 1 was never synced: it may be on disk, but nobody promised.
    drop(fetch);
    drop(store);
    let store = Store::open(home.path()).unwrap();
    let fetch = origin.fetch(&store);
    assert_eq!(fetch.have().present().collect::<Vec<_>>(), [0, 2]);
    fetch.write(1, &origin.chunks[1]).unwrap();
    fetch.flush().unwrap();
    drop(fetch);
    drop(store);
    let store = Store::open(home.path()).unwrap();
    let fetch = origin.fetch(&store);
    assert_eq!(fetch.have().present().collect::<Vec<_>>(), [0, 1, 2]);
    origin.complete(&fetch);
    assert_eq!(contents(&store, origin.hash), planted(origin.tree.path()));
}

#[test]
fn chunks_of_an_unfinished_fetch_are_served() {
    let (home, origin) = (TempDir::new().unwrap(), origin(1));
    let store = Store::open(home.path()).unwrap();
    let fetch = origin.fetch(&store);
    let loaded = fetch.loaded().clone();
    fetch.write(1, &origin.chunks[1]).unwrap();
    assert_eq!(store.read_chunk(&loaded, 1, NOW).unwrap(), origin.chunks[1]);
    assert!(matches!(store.read_chunk(&loaded, 0, NOW), Err(StoreError::Missing(_))));
    // Not if they have rotted. Then they are missing again.
    let place = loaded.place(1).unwrap();
    damage::flip(&store.inner.files.partial(place.id, "data"), place.offset as usize + 9);
    assert!(matches!(store.read_chunk(&loaded, 1, NOW), Err(StoreError::Damaged { .. })));
    assert!(!fetch.have().get(1));
    origin.complete(&fetch);
    for number in 0..loaded.chunk_count() {
        assert_eq!(store.read_chunk(&loaded, number, NOW).unwrap(), origin.chunks[number]);
    }
}

#[test]
fn what_is_here_is_not_fetched() {
    let (home, origin) = (TempDir::new().unwrap(), origin(1));
    let store = Store::open(home.path()).unwrap();
    // The large file with a line in the middle shares most chunks; the packs are the same.
    let other = tree(1);
    let mut large = fs::read(other.path().join("a/large")).unwrap();
    large.splice(2_500_000..2_500_000, *b"a line");
    fs::write(other.path().join("a/large"), large).unwrap();
    fs::remove_file(other.path().join("b/copy")).unwrap();
    take(&store, other.path());
    // It takes room for all of the large file, though most of it is here; and nothing is written before that is known.
    let begun = store.begin_fetch(origin.bytes.clone(), origin.hash, NOW).unwrap();
    assert_eq!((begun.missing_bytes(), store.usage().unwrap().partial), (5 << 20, 0));
    drop(begun);
    let fetch = origin.fetch(&store);
    assert!((1..5 << 20).contains(&fetch.missing_bytes()), "{}", fetch.missing_bytes());
    let missing = fetch.missing().count();
    assert!((1..=2).contains(&missing), "{missing} of {}", origin.chunks.len());
    origin.complete(&fetch);
    assert_eq!(contents(&store, origin.hash), planted(origin.tree.path()));
}

#[test]
fn a_chunk_that_occurs_often_is_written_once_for_all() {
    let (home, away) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let tree = TempDir::new().unwrap();
    plant(tree.path(), &[("zeros", vec![0; 12 << 20]), ("more", vec![0; 9 << 20])]);
    let from = Store::open(away.path()).unwrap();
    let hash = take(&from, tree.path()).hash;
    let bytes = from.manifest_bytes(hash).unwrap();
    let store = Store::open(home.path()).unwrap();
    let fetch = store.fetch(bytes, hash, NOW).unwrap();
    // The heads of both, and what their last chunks have more than the one before.
    let head = 4 << 10;
    assert_eq!(fetch.missing().count(), 8);
    let chunk = vec![0; 4 << 20];
    assert_eq!(fetch.write(1, &chunk).unwrap(), Wrote::New(4));
    assert_eq!(fetch.write(2, &chunk).unwrap(), Wrote::Had);
    assert_eq!(fetch.write(0, &chunk[..head]).unwrap(), Wrote::New(2));
    let lasts: Vec<usize> = fetch.missing().present().collect();
    assert_eq!(lasts, [3, 7]);
    for (last, bytes) in lasts.into_iter().zip([1 << 20, 4 << 20]) {
        fetch.write(last, &chunk[..bytes - head]).unwrap();
    }
    fetch.finish(NOW).unwrap();
    assert_eq!(contents(&store, hash), planted(tree.path()));
}

#[test]
fn two_fetches_share_their_objects() {
    let (home, origin) = (TempDir::new().unwrap(), origin(1));
    let store = Store::open(home.path()).unwrap();
    let (one, two) = (origin.fetch(&store), origin.fetch(&store));
    one.write(0, &origin.chunks[0]).unwrap();
    assert!(two.have().get(0));
    origin.complete(&two);
    assert_eq!(one.missing().count(), 0);
    one.finish(NOW).unwrap();
    assert_eq!(contents(&store, origin.hash), planted(origin.tree.path()));
}

#[test]
fn a_full_disk_is_told_and_the_fetch_goes_on_when_there_is_room() {
    let (home, origin) = (TempDir::new().unwrap(), origin(1));
    let store = Store::open(home.path()).unwrap();
    let mut room = 0;
    let mut fetch = origin.fetch(&store);
    for round in 0.. {
        *store.inner.files.watch.room.lock().unwrap() = Some(room);
        let outcome = fetch
            .missing()
            .present()
            .try_for_each(|number| fetch.write(number, &origin.chunks[number]).map(|_| ()))
            .and_then(|()| fetch.finish(NOW));
        match outcome {
            Ok(()) => break,
            Err(StoreError::NoSpace { .. }) => room += 500_000,
            Err(error) => panic!("{error}"),
        }
        assert!(!store.has(origin.hash).unwrap());
        if round % 3 == 0 {
            // What has come is recorded all the same, and does not come again.
            let had = fetch.have();
            fetch.flush().unwrap();
            drop(fetch);
            fetch = origin.fetch(&store);
            assert_eq!(fetch.have(), had);
        }
    }
    assert_eq!(contents(&store, origin.hash), planted(origin.tree.path()));
}
