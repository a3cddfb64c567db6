mod crash;
mod damage;
mod fetch;
mod keep;
mod order;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use redb::ReadableTable as _;
use tempfile::TempDir;

use super::*;
use crate::import::{Imported, Options, import};
use crate::manifest::Kind;
use mesh_consensus::time::Time;

pub(crate) const NOW: Time = Time(1_000);

pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut noise);
    noise
}

/// Writes files below `root`.
pub(crate) fn plant(root: &Path, files: &[(&str, Vec<u8>)]) {
    for (path, bytes) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// A tree with packs, a file of several chunks, the same file again, and nothing.
pub(crate) fn tree(seed: u64) -> TempDir {
    let root = TempDir::new().unwrap();
    let large = noise(5 << 20, seed);
    plant(root.path(), &[("a/large", large.clone()), ("b/copy", large), ("c/empty", vec![])]);
    for at in 0..40 {
        plant(root.path(), &[(&format!("small/{at:03}"), noise(9_000, seed * 1000 + at))]);
    }
    root
}

pub(crate) fn take(store: &Store, path: &Path) -> Imported {
    import(store, path, Options::default(), NOW).unwrap()
}

/// All files of a manifest, read through the store.
pub(crate) fn contents(store: &Store, hash: Hash) -> BTreeMap<String, Vec<u8>> {
    let loaded = store.load(hash).unwrap();
    let mut objects = Vec::new();
    for object in 0..loaded.objects().len() {
        let chunks = loaded.numbers(object).map(|at| store.read_chunk(&loaded, at, NOW).unwrap());
        objects.push(chunks.collect::<Vec<_>>().concat());
    }
    let file = |entry: &crate::manifest::Entry| match entry.kind {
        Kind::EmptyDirectory => None,
        Kind::EmptyFile => Some((entry.path.clone(), vec![])),
        Kind::File { object, offset, bytes, .. } => {
            let range = offset as usize..(offset + bytes) as usize;
            Some((entry.path.clone(), objects[object as usize][range].to_vec()))
        }
    };
    loaded.manifest().entries.iter().filter_map(file).collect()
}

/// All files below a directory.
pub(crate) fn planted(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// Everything in the index that follows from the files.
fn dump(store: &Store) -> Vec<String> {
    let tx = store.inner.index.read().unwrap();
    let mut rows = Vec::new();
    macro_rules! table {
        ($name:ident) => {
            for row in tx.open_table(index::$name).unwrap().iter().unwrap() {
                let (key, value) = row.unwrap();
                rows.push(format!("{}: {:?} {:?}", stringify!($name), key.value(), value.value()));
            }
        };
    }
    table!(OBJECTS);
    table!(CHUNKS);
    table!(SEGMENTS);
    table!(MANIFESTS);
    table!(HOLDERS);
    rows
}

#[test]
fn what_was_imported_can_be_read() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let imported = take(&store, tree.path());
    assert_eq!(imported.files, 43);
    assert_eq!(contents(&store, imported.hash), planted(tree.path()));
    let verified = store.verify(imported.hash, NOW, |_| ()).unwrap();
    // The copy is stored once.
    assert_eq!(verified.bytes, (5 << 20) + 40 * 9_000);
    assert!(verified.damaged.is_empty());
    drop(imported);
    drop(store);
    let store = Store::open(home.path()).unwrap();
    let [held] = &store.list().unwrap()[..] else { panic!() };
    assert_eq!((held.files, held.bytes, held.leases), (43, (10 << 20) + 40 * 9_000, 0));
    assert_eq!(contents(&store, held.hash), planted(tree.path()));
}

#[test]
fn whoever_does_not_want_an_object_any_more_need_not_wait_until_it_is_verified() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let loaded = store.load(take(&store, tree.path()).hash).unwrap();
    let cancel = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let objects = store.objects(&loaded, NOW).until(cancel.clone());
    let ask = || crate::tree::Source::object(&objects, loaded.objects()[0]);
    assert_eq!(ask().unwrap_err().kind(), io::ErrorKind::Interrupted);
    cancel.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(ask().is_ok());
}

#[test]
fn a_store_is_for_one_process_and_for_no_older_mesh() {
    let home = TempDir::new().unwrap();
    let store = Store::open(home.path()).unwrap();
    assert!(matches!(Store::open(home.path()), Err(StoreError::Busy { .. })));
    drop(store);
    let version = home.path().join("store/VERSION");
    fs::remove_file(&version).unwrap();
    fs::write(&version, "2\n").unwrap();
    let refused = Store::open(home.path()).unwrap_err();
    assert!(refused.to_string().contains("format 2; this version of mesh knows 1"), "{refused}");
    fs::write(&version, "1\n").unwrap();
    Store::open(home.path()).unwrap();
}

#[test]
fn the_index_is_rebuilt_from_the_files_as_it_was() {
    let (home, first, second, third) = (TempDir::new().unwrap(), tree(1), tree(2), tree(3));
    let store = Store::open(home.path()).unwrap();
    let a = take(&store, first.path()).hash;
    let b = take(&store, second.path()).hash;
    let options = Options { in_place: true, ..Options::default() };
    let c = import(&store, third.path(), options, NOW).unwrap().hash;
    store.remove(b).unwrap();
    let (before, used) = (dump(&store), store.usage().unwrap());
    drop(store);
    let meta = home.path().join("store/meta.redb");
    let whole = fs::read(&meta).unwrap();
    let store = Store::open(home.path()).unwrap();
    assert!(dump(&store) == before, "opening changes nothing");
    drop(store);
    let mut rng = fastrand::Rng::with_seed(1);
    for trial in 0..8 {
        match trial {
            0 => fs::remove_file(&meta).unwrap(),
            1 => fs::write(&meta, b"").unwrap(),
            2 => fs::write(&meta, &whole[..whole.len() / 2]).unwrap(),
            _ => {
                let mut damaged = whole.clone();
                let at = rng.usize(..damaged.len());
                let end = (at + 5000).min(damaged.len());
                rng.fill(&mut damaged[at..end]);
                fs::write(&meta, damaged).unwrap();
            }
        }
        let store = Store::open(home.path()).unwrap();
        let after = dump(&store);
        let differs = |row: &&String| !before.contains(row) || !after.contains(row);
        let differing = before.iter().chain(&after).find(differs);
        assert!(after == before, "trial {trial}: {differing:?}");
        assert_eq!(store.usage().unwrap(), used);
        assert_eq!(contents(&store, a), planted(first.path()));
        assert_eq!(contents(&store, c), planted(third.path()));
    }
}

#[test]
fn a_file_that_changed_after_it_was_imported_in_place_can_be_named() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let options = Options { in_place: true, ..Options::default() };
    let hash = import(&store, tree.path(), options, NOW).unwrap().hash;
    let large = tree.path().join("a/large");
    fs::write(&large, noise(6 << 20, 9)).unwrap();
    fs::write(tree.path().join("b/copy"), noise(5 << 20, 9)).unwrap();
    let small = tree.path().join("small/007");
    fs::remove_file(&small).unwrap();
    assert!(store.changed_files(hash).unwrap().is_empty(), "nobody has looked");
    store.verify(hash, NOW, |_| ()).unwrap();
    let changed = store.changed_files(hash).unwrap();
    let is_large = |path: &PathBuf| *path == large || *path == tree.path().join("b/copy");
    assert!(changed.contains(&small) && changed.iter().any(is_large), "{changed:?}");
    assert!(changed.len() <= 3, "others were not touched: {changed:?}");
    // What is copied into the store is nobody else's to change.
    let copied = take(&store, tree.path()).hash;
    assert!(store.changed_files(copied).unwrap().is_empty());
}

#[test]
fn what_does_not_fit_its_name_is_put_aside_when_the_index_is_rebuilt() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let hash = take(&store, tree.path()).hash;
    let id = store.load(hash).unwrap().objects()[0];
    let path = store.inner.files.object(id);
    drop(store);
    damage::flip(&path, 3_000_000);
    fs::remove_file(home.path().join("store/meta.redb")).unwrap();
    fs::write(home.path().join("store/objects/00/stranger"), b"?").unwrap();
    let store = Store::open(home.path()).unwrap();
    assert!(!path.exists());
    assert!(home.path().join("store/quarantine").join(id.to_string()).exists());
    assert!(home.path().join("store/quarantine/stranger").exists());
    let verified = store.verify(hash, NOW, |_| ()).unwrap();
    assert_eq!(verified.damaged, [Damage { object: id, is_quarantined: false }]);
}
