//! A flipped bit is never handed out.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// Flips a bit in a file, as a disk would: without a trace in its times.
pub(super) fn flip(path: &Path, at: usize) {
    let meta = fs::metadata(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << (at % 8);
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, meta.permissions()).unwrap();
    let file = fs::File::open(path).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
}

#[test]
fn a_flipped_bit_anywhere_is_never_handed_out() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let imported = take(&store, tree.path());
    let loaded = store.load(imported.hash).unwrap();
    let bytes = store.manifest_bytes(imported.hash).unwrap();
    let good: Vec<Vec<u8>> = (0..loaded.chunk_count())
        .map(|number| store.read_chunk(&loaded, number, NOW).unwrap())
        .collect();
    let mut rng = fastrand::Rng::with_seed(3);
    for trial in 0..16 {
        let object = rng.usize(..loaded.objects().len());
        let id = loaded.objects()[object];
        let path = store.inner.files.object(id);
        let len = fs::metadata(&path).unwrap().len() as usize;
        let at = match trial {
            0 => 0,
            1 => len - 1,
            _ => rng.usize(..len),
        };
        flip(&path, at);
        let mut refused = 0;
        for (number, good) in good.iter().enumerate() {
            match store.read_chunk(&loaded, number, NOW) {
                Ok(bytes) => assert!(bytes == *good, "chunk {number} of trial {trial}"),
                Err(StoreError::Damaged { .. } | StoreError::Missing(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0, "bit {at} of {len} went unnoticed");
        assert!(!path.exists() && store.inner.index.holds(id).unwrap().is_none());
        assert!(store.inner.files.quarantine(&id.to_string()).exists());
        assert_eq!(store.lost_objects(imported.hash).unwrap(), 1);
        let (count, quarantined) = store.quarantined().unwrap();
        assert!(count > 0 && quarantined >= len as u64, "{count} files, {quarantined} bytes");
        // The rest of it is used when it is fetched again: only the damaged chunk is missing.
        let fetch = store.fetch(bytes.clone(), imported.hash, NOW).unwrap();
        let missing: Vec<usize> = fetch.missing().present().collect();
        let [number] = missing[..] else { panic!("{missing:?}") };
        fetch.write(number, &good[number]).unwrap();
        fetch.finish(NOW).unwrap();
        assert!(store.verify(imported.hash, NOW, |_| ()).unwrap().damaged.is_empty());
        assert_eq!(store.lost_objects(imported.hash).unwrap(), 0);
    }
}

#[test]
fn a_hash_is_believed_for_a_day_and_while_nobody_touches_the_file() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let imported = take(&store, tree.path());
    let loaded = store.load(imported.hash).unwrap();
    let place = loaded.place(0).unwrap();
    let path = store.inner.files.object(place.id);
    let stamp = || files::Stamp::of(&fs::metadata(&path).unwrap());
    let late = Time(stamp().ctime.0 as u64 * 1000).after(std::time::Duration::from_secs(60));
    let day = std::time::Duration::from_secs(24 * 3600);

    assert!(!store.trusts(&place, stamp(), late));
    store.read_chunk(&loaded, 0, late).unwrap();
    assert!(store.trusts(&place, stamp(), late));
    assert!(!store.trusts(&loaded.place(1).unwrap(), stamp(), late), "another chunk");
    assert!(store.trusts(&place, stamp(), late.after(day / 2)));
    assert!(!store.trusts(&place, stamp(), late.after(day)));
    assert!(!store.trusts(&place, stamp(), Time(0)), "a clock that went back");
    flip(&path, 5);
    assert!(!store.trusts(&place, stamp(), late), "its change time tells");
    assert!(matches!(store.read_chunk(&loaded, 0, late), Err(StoreError::Damaged { .. })));

    // A file that was touched a moment ago is hashed every time.
    let place = loaded.place(loaded.chunk_count() - 1).unwrap();
    let soon = Time(stamp_of(&store, place.id).ctime.0 as u64 * 1000 + 1);
    store.read_chunk(&loaded, loaded.chunk_count() - 1, soon).unwrap();
    assert!(!store.trusts(&place, stamp_of(&store, place.id), soon));
}

fn stamp_of(store: &Store, id: ObjectId) -> files::Stamp {
    files::Stamp::of(&fs::metadata(store.inner.files.object(id)).unwrap())
}

#[test]
fn a_scrub_reaches_every_object_bit_by_bit() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let imported = take(&store, tree.path());
    let all: u64 = store.usage().unwrap().objects;
    let round = || {
        let (mut steps, mut bytes, mut damaged) = (0, 0, Vec::new());
        loop {
            let scrubbed = store.scrub(1 << 20, NOW).unwrap();
            assert!(scrubbed.bytes <= 5 << 20, "a step is about as long as asked");
            (steps, bytes) = (steps + 1, bytes + scrubbed.bytes);
            damaged.extend(scrubbed.damaged);
            if scrubbed.is_round_done {
                return (steps, bytes, damaged);
            }
        }
    };
    let (steps, bytes, damaged) = round();
    assert!(steps > 2 && bytes == all && damaged.is_empty(), "{steps} steps, {bytes} of {all}");
    let id = store.load(imported.hash).unwrap().objects()[0];
    flip(&store.inner.files.object(id), 4_900_000);
    assert_eq!(round().2, [id]);
    assert_eq!(round().2, []);
}

#[test]
fn a_damaged_manifest_is_not_used() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let imported = take(&store, tree.path());
    let hash = imported.hash;
    flip(&store.inner.files.manifest(hash), 40);
    assert!(matches!(store.load(hash), Err(StoreError::Damaged { .. })));
    assert!(matches!(store.load(hash), Err(StoreError::NoManifest(_))));
    // Its objects are here still: to fetch it again takes nothing but the manifest.
    let fetch = store.fetch(imported.manifest.encode(), hash, NOW).unwrap();
    assert_eq!(fetch.missing().count(), 0);
    fetch.finish(NOW).unwrap();
    assert_eq!(contents(&store, hash), planted(tree.path()));
}
