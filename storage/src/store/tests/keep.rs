//! What stays and what goes.

use super::*;

fn at(seconds: u64) -> Time {
    Time(seconds * 1000)
}

/// Three manifests that share an object, used at 1, 2 and 3.
fn three(store: &Store) -> ([Hash; 3], [TempDir; 3]) {
    let trees = [1, 2, 3].map(|seed| {
        let tree = TempDir::new().unwrap();
        plant(tree.path(), &[("own", noise(600_000, seed)), ("shared", noise(700_000, 9))]);
        tree
    });
    let times = [1, 2, 3];
    let hashes = [0, 1, 2].map(|n: usize| {
        import(store, trees[n].path(), Options::default(), at(times[n])).unwrap().hash
    });
    (hashes, trees)
}

#[test]
fn the_longest_unused_goes_first_and_what_others_share_stays() {
    let home = TempDir::new().unwrap();
    let store = Store::open(home.path()).unwrap();
    let ([a, b, c], trees) = three(&store);
    assert_eq!(store.usage().unwrap().objects, 3 * 600_000 + 700_000);
    assert_eq!(store.usage().unwrap().manifests[&a], 1_300_000);
    drop(store.lease(a, at(4)).unwrap());
    let evicted = store.evict(1, |_| true).unwrap();
    assert_eq!(evicted, Evicted { bytes: 600_000, manifests: vec![b] });
    assert!(!store.has(b).unwrap());
    assert_eq!(contents(&store, a), planted(trees[0].path()));
    assert_eq!(contents(&store, c), planted(trees[2].path()));
    let evicted = store.evict(600_001, |_| true).unwrap();
    assert_eq!(evicted, Evicted { bytes: 1_900_000, manifests: vec![c, a] });
    assert_eq!(store.usage().unwrap(), Usage::default());
    assert_eq!(planted(&home.path().join("store/objects")).len(), 0);
    assert_eq!(planted(&home.path().join("store/manifests")).len(), 0);
}

#[test]
fn what_is_pinned_leased_or_the_last_copy_stays() {
    let home = TempDir::new().unwrap();
    let store = Store::open(home.path()).unwrap();
    let ([a, b, c], _trees) = three(&store);
    store.pin(a, "job 7").unwrap();
    store.pin(a, "job 8").unwrap();
    let lease = store.lease(b, at(5)).unwrap();
    assert_eq!(store.evict(u64::MAX, |hash| hash != c).unwrap(), Evicted::default());
    assert!(matches!(store.remove(a), Err(StoreError::InUse(_))));
    assert!(matches!(store.remove(b), Err(StoreError::InUse(_))));
    assert!(store.unpin(a, "job 7").unwrap());
    assert!(!store.unpin(a, "job 7").unwrap());
    assert_eq!(store.list().unwrap().iter().find(|held| held.hash == a).unwrap().pins, ["job 8"]);
    assert_eq!(store.evict(u64::MAX, |hash| hash != c).unwrap(), Evicted::default());
    assert!(store.unpin(a, "job 8").unwrap());
    drop(lease);
    assert_eq!(store.evict(u64::MAX, |hash| hash != c).unwrap().manifests, [a, b]);
    assert!(matches!(store.pin(a, "x"), Err(StoreError::NoManifest(_))));
    assert!(matches!(store.lease(a, at(9)), Err(StoreError::NoManifest(_))));
    assert_eq!(store.remove(c).unwrap(), 1_300_000);
}

#[test]
fn pins_outlive_the_process_and_leases_do_not() {
    let home = TempDir::new().unwrap();
    let store = Store::open(home.path()).unwrap();
    let ([a, b, _], _trees) = three(&store);
    store.pin(a, "job").unwrap();
    std::mem::forget(store.lease(b, at(5)).unwrap());
    // A forgotten lease holds the store, so take the lock away as a crash would: copy what is on disk.
    let copy = TempDir::new().unwrap();
    store.pin(b, "to make it durable").unwrap();
    store.unpin(b, "to make it durable").unwrap();
    let mut copying = std::process::Command::new("cp");
    copying.arg("-a").arg(home.path().join("store")).arg(copy.path());
    assert!(copying.status().unwrap().success());
    let store = Store::open(copy.path()).unwrap();
    let list = store.list().unwrap();
    assert!(list.iter().all(|held| held.leases == 0));
    assert_eq!(list.iter().find(|held| held.hash == a).unwrap().pins, ["job"]);
}

#[test]
fn an_unfinished_fetch_keeps_what_it_needs_and_nothing_keeps_what_nobody_needs() {
    let (home, origin) = (TempDir::new().unwrap(), super::fetch::origin(1));
    let store = Store::open(home.path()).unwrap();
    let here = take(&store, origin.tree.path()).hash;
    assert_eq!(here, origin.hash);
    let fetch = origin.fetch(&store);
    assert_eq!(fetch.missing().count(), 0);
    // The manifest is leased by the fetch.
    assert_eq!(store.evict(u64::MAX, |_| true).unwrap(), Evicted::default());
    assert!(matches!(store.remove(here), Err(StoreError::InUse(_))));
    drop(fetch);
    store.remove(here).unwrap();

    let fetch = origin.fetch(&store);
    for number in fetch.missing().present() {
        fetch.write(number, &origin.chunks[number]).unwrap();
    }
    fetch.flush().unwrap();
    assert!(store.usage().unwrap().objects > 0);
    assert_eq!(store.evict(u64::MAX, |_| true).unwrap(), Evicted::default());
    fetch.finish(NOW).unwrap();
    drop(fetch);
    store.remove(here).unwrap();

    let fetch = origin.fetch(&store);
    fetch.write(0, &origin.chunks[0]).unwrap();
    let last = origin.chunks.len() - 1;
    fetch.write(last, &origin.chunks[last]).unwrap();
    fetch.flush().unwrap();
    drop(fetch);
    assert!(store.evict(u64::MAX, |_| true).unwrap().bytes > 0);
    assert_eq!(store.usage().unwrap(), Usage::default());
    let fetch = origin.fetch(&store);
    assert_eq!(fetch.have().count(), 0);
    origin.complete(&fetch);
    assert_eq!(contents(&store, here), planted(origin.tree.path()));
}

#[test]
fn whoever_has_a_lease_can_read_however_others_evict() {
    let home = TempDir::new().unwrap();
    let store = Store::open(home.path()).unwrap();
    let tree = TempDir::new().unwrap();
    plant(tree.path(), &[("file", noise(300_000, 1)), ("other", noise(300_000, 2))]);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let evictor = scope.spawn(|| {
            let mut evicted = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                evicted += store.evict(u64::MAX, |_| true).unwrap().manifests.len();
            }
            evicted
        });
        for round in 0..20 {
            let imported = take(&store, tree.path());
            let lease = store.lease(imported.hash, NOW).unwrap();
            drop(imported);
            assert_eq!(contents(&store, lease.manifest()).len(), 2, "round {round}");
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(evictor.join().unwrap() > 1, "the evictor was at work");
    });
}

/// Damages an object of a manifest that is here, and lets that be found. Where it lies in quarantine.
fn damage(store: &Store, hash: Hash) -> std::path::PathBuf {
    let id = store.load(hash).unwrap().objects()[0];
    super::damage::flip(&store.inner.files.object(id), 5);
    assert_eq!(store.verify(hash, NOW, |_| ()).unwrap().damaged.len(), 1);
    let aside = store.inner.files.quarantine(&id.to_string());
    assert!(aside.exists());
    aside
}

#[test]
fn what_is_in_quarantine_goes_after_a_while() {
    const WEEK: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let hash = take(&store, tree.path()).hash;
    let aside = damage(&store, hash);
    let strange = home.path().join("store/quarantine/strange");
    fs::create_dir(&strange).unwrap();
    let since = at(files::Stamp::of(&fs::metadata(&aside).unwrap()).ctime.0 as u64);
    for early in [Time(0), since, since.after(WEEK)] {
        assert_eq!(store.empty_quarantine(WEEK, early).unwrap(), 0);
        assert!(aside.exists());
    }
    let late = since.after(WEEK + std::time::Duration::from_secs(1));
    assert!(store.empty_quarantine(WEEK, late).unwrap() > 0);
    assert!(!aside.exists());
    assert!(strange.exists(), "a directory is nobody's object");
    assert_eq!(store.empty_quarantine(WEEK, late).unwrap(), 0);
}

#[test]
fn what_was_mended_needs_no_quarantine() {
    let (home, origin) = (TempDir::new().unwrap(), super::fetch::origin(1));
    let store = Store::open(home.path()).unwrap();
    take(&store, origin.tree.path());
    let aside = damage(&store, origin.hash);
    // It is mostly whole, and the next fetch goes on from it.
    assert_eq!(store.drop_mended().unwrap(), 0);
    assert!(aside.exists());
    let fetch = origin.fetch(&store);
    assert_eq!(fetch.missing().count(), 1);
    origin.complete(&fetch);
    assert!(store.drop_mended().unwrap() > 0);
    assert!(!aside.exists());
    assert_eq!(contents(&store, origin.hash), planted(origin.tree.path()));
}

#[test]
fn what_is_left_of_a_fetch_goes_with_the_need_for_it() {
    const WEEK: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);
    let (home, origin) = (TempDir::new().unwrap(), super::fetch::origin(1));
    let store = Store::open(home.path()).unwrap();
    let drop_leftovers = |is_needed: bool, now| {
        store.drop_leftovers(|hash| is_needed && hash == origin.hash, WEEK, now).unwrap()
    };
    // One object is here, another in part.
    let fetch = origin.fetch(&store);
    let whole = fetch.loaded().numbers(fetch.loaded().objects().len() - 1);
    for number in [0].into_iter().chain(whole) {
        fetch.write(number, &origin.chunks[number]).unwrap();
    }
    fetch.flush().unwrap();
    assert_eq!(drop_leftovers(false, NOW), 0, "somebody fetches it");
    drop(fetch);
    assert_eq!(drop_leftovers(true, NOW), 0, "somebody may go on with it");
    let used = store.usage().unwrap();
    assert!(used.partial > 0 && used.objects > 0, "{used:?}");
    assert!(drop_leftovers(false, NOW) > used.objects);
    assert_eq!(store.usage().unwrap(), Usage::default());
    assert_eq!(planted(&home.path().join("store/partial")).len(), 0);
    origin.complete(&origin.fetch(&store));
    assert_eq!(drop_leftovers(false, NOW), 0, "it is here");
    assert_eq!(contents(&store, origin.hash), planted(origin.tree.path()));

    // What it was for is unknown.
    let stray = store.inner.files.partial(ObjectId([7; 32]), "data");
    fs::write(&stray, b"?").unwrap();
    let since = at(files::Stamp::of(&fs::metadata(&stray).unwrap()).mtime.0 as u64);
    for early in [Time(0), since, since.after(WEEK)] {
        drop_leftovers(false, early);
        assert!(stray.exists());
    }
    drop_leftovers(true, since.after(WEEK + std::time::Duration::from_secs(1)));
    assert!(!stray.exists());
}
