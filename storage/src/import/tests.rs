use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use mesh_consensus::id::ObjectId;
use tempfile::TempDir;

use super::*;
use crate::manifest::Kind;
use crate::store::tests::{NOW, contents, noise, plant, planted, take, tree};

fn store() -> (TempDir, Store) {
    let home = TempDir::new().unwrap();
    let store = Store::open(home.path()).unwrap();
    (home, store)
}

fn refused(path: &Path, options: Options<'_>) -> String {
    let (_home, store) = store();
    let error = import(&store, path, options, NOW).unwrap_err();
    assert!(store.list().unwrap().is_empty());
    assert_eq!(store.usage().unwrap().objects, 0);
    error.to_string()
}

const FOLLOW: Options<'_> =
    Options { follow: true, in_place: false, apart: None, progress: None, cancel: None };
const IN_PLACE: Options<'_> = Options { in_place: true, ..FOLLOW };

#[test]
fn a_line_in_the_middle_of_a_table_makes_little_new() {
    let (_home, store) = store();
    let root = TempDir::new().unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut table = String::with_capacity(64 << 20);
    while table.len() < 64 << 20 {
        let row = format!("{},{},{}\n", table.len(), rng.u64(..), rng.u32(..));
        table.push_str(&row);
    }
    fs::write(root.path().join("table.csv"), &table).unwrap();
    let before = take(&store, root.path());
    assert_eq!(before.new_bytes, table.len() as u64);
    table.insert_str(32 << 20, "a line that was not there\n");
    fs::write(root.path().join("table.csv"), &table).unwrap();
    let after = take(&store, root.path());
    assert!(after.new_bytes > 0 && after.new_bytes < 8 << 20, "{}", after.new_bytes);
    assert_ne!(before.hash, after.hash);
    // And the same once more makes nothing new.
    let again = take(&store, root.path());
    assert_eq!((again.hash, again.new_bytes), (after.hash, 0));
}

#[test]
fn a_file_more_changes_one_pack() {
    let (_home, store) = store();
    let root = TempDir::new().unwrap();
    for at in 0..600 {
        plant(root.path(), &[(&format!("{at:04}"), noise(120_000, at))]);
    }
    let ids = |imported: &Imported| -> BTreeSet<ObjectId> {
        imported.manifest.objects.iter().map(|object| object.id()).collect()
    };
    let before = ids(&take(&store, root.path()));
    assert!(before.len() >= 2, "{} packs", before.len());
    let lengths = store.usage().unwrap().objects;
    assert_eq!(lengths, 72_000_000);
    plant(root.path(), &[("0100a", noise(1000, 7777))]);
    let after = take(&store, root.path());
    assert_eq!(ids(&after).difference(&before).count(), 1);
    for object in &after.manifest.objects[..after.manifest.objects.len() - 1] {
        assert!((pack::MIN_PACK..=pack::MAX_PACK).contains(&object.bytes()));
    }
}

#[test]
fn what_is_stored_is_not_written_again() {
    let (home, store) = store();
    let tree = tree(1);
    let first = take(&store, tree.path());
    let times = |home: &Path| -> Vec<_> {
        let objects = home.join("store/objects");
        let inode = |path: &String| {
            std::os::unix::fs::MetadataExt::ino(&fs::metadata(objects.join(path)).unwrap())
        };
        planted(&objects).keys().map(inode).collect()
    };
    let before = times(home.path());
    *store.inner().files.watch.steps.lock().unwrap() = Some(Vec::new());
    let second = take(&store, tree.path());
    let steps = store.inner().files.watch.steps.lock().unwrap().take().unwrap();
    assert_eq!((second.hash, second.new_bytes), (first.hash, 0));
    assert_eq!(times(home.path()), before);
    let writes = |step: &&_| matches!(step, crate::store::files::Step::Write(_));
    assert_eq!(steps.iter().filter(writes).count(), 1, "the manifest alone");
}

#[test]
fn what_was_damaged_in_the_store_is_written_again_from_what_is_imported() {
    let (home, store) = store();
    let root = TempDir::new().unwrap();
    plant(root.path(), &[("large", noise(3 << 20, 1)), ("small", noise(5000, 2))]);
    let objects = home.path().join("store/objects");
    let files = || -> Vec<_> { planted(&objects).into_keys().map(|p| objects.join(p)).collect() };
    let first = take(&store, root.path());
    assert_eq!((files().len(), first.mended), (2, 0), "a file and a pack");
    for harm in ["flip", "cut", "remove"] {
        for file in files() {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            let mut bytes = fs::read(&file).unwrap();
            match harm {
                "flip" => bytes[1000] ^= 1,
                "cut" => bytes.truncate(1000),
                _ => fs::remove_file(&file).unwrap(),
            }
            if harm != "remove" {
                fs::write(&file, &bytes).unwrap();
            }
        }
        for (options, mended) in [(IN_PLACE, 2), (FOLLOW, 0)] {
            let again = import(&store, root.path(), options, NOW).unwrap();
            assert_eq!((again.hash, again.mended), (first.hash, mended), "{harm}");
            let verified = store.verify(first.hash, NOW, |_| {}).unwrap();
            assert!(verified.damaged.is_empty(), "{harm}: {verified:?}");
        }
        assert_eq!(files().len(), 2, "{harm}");
    }
    // A file that somebody removes is found to be gone, and not only once.
    fs::remove_file(&files()[0]).unwrap();
    assert_eq!(store.verify(first.hash, NOW, |_| {}).unwrap().damaged.len(), 1);
    assert!(!store.is_whole(first.hash).unwrap());
}

#[test]
fn trees_come_out_as_they_were() {
    let (_home, store) = store();
    let root = TempDir::new().unwrap();
    let at = root.path();
    fs::create_dir_all(at.join("empty/below")).unwrap();
    plant(at, &[("run", b"#!/bin/sh\n".to_vec()), ("ä/ö", b"1".to_vec()), ("a.b", b"2".to_vec())]);
    plant(at, &[("a/b", b"3".to_vec()), ("none", vec![]), ("big", noise(SMALL as usize, 1))]);
    fs::set_permissions(at.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    let imported = take(&store, at);
    let paths: Vec<&str> = imported.manifest.entries.iter().map(|entry| &*entry.path).collect();
    assert_eq!(paths, ["a.b", "a/b", "big", "empty/below", "none", "run", "ä/ö"]);
    let kinds: Vec<Kind> = imported.manifest.entries.iter().map(|entry| entry.kind).collect();
    assert!(matches!(kinds[3], Kind::EmptyDirectory));
    assert!(matches!(kinds[4], Kind::EmptyFile));
    assert!(matches!(kinds[5], Kind::File { executable: true, .. }));
    assert!(matches!(kinds[0], Kind::File { executable: false, .. }));
    assert_eq!(contents(&store, imported.hash), planted(at));
    assert_eq!((imported.files, imported.bytes), (6, 13 + SMALL));
    // A file by itself, and nothing at all.
    let one = take(&store, &at.join("big"));
    assert_eq!((&*one.manifest.entries[0].path, one.new_bytes), ("big", 0));
    let none = take(&store, &at.join("empty/below"));
    assert_eq!((none.files, none.manifest.entries.len()), (0, 0));
}

#[test]
fn links_are_followed_inside_the_tree_only_unless_asked() {
    let root = TempDir::new().unwrap();
    let outside = TempDir::new().unwrap();
    let at = root.path();
    plant(at, &[("file", b"inside".to_vec()), ("directory/x", b"x".to_vec())]);
    plant(outside.path(), &[("file", b"outside".to_vec())]);
    symlink("../file", at.join("directory/link")).unwrap();
    let (_home, store) = store();
    let imported = take(&store, at);
    assert_eq!(contents(&store, imported.hash)["directory/link"], b"inside");

    let link = at.join("link");
    let refuse = |target: &Path, why: &str| {
        symlink(target, &link).unwrap();
        let said = refused(at, Options::default());
        assert!(said.contains(&format!("{}", link.display())) && said.contains(why), "{said}");
        fs::remove_file(&link).unwrap();
    };
    refuse(&outside.path().join("file"), "out of the tree");
    refuse(Path::new("directory"), "no regular file");
    refuse(Path::new("nowhere"), "nowhere");
    symlink(outside.path(), &link).unwrap();
    let imported = import(&store, at, FOLLOW, NOW).unwrap();
    assert_eq!(contents(&store, imported.hash)["link/file"], b"outside");
    symlink(at, outside.path().join("back")).unwrap();
    assert!(refused(at, FOLLOW).contains("that it is in"));
}

#[test]
fn what_stays_apart_is_found_by_any_link() {
    let outside = TempDir::new().unwrap();
    let home = outside.path().join("node");
    plant(&home, &[("node.key", b"secret".to_vec()), ("store/deep/object", noise(9_000, 1))]);
    plant(outside.path(), &[("beside", b"fine".to_vec())]);
    let apart = Apart::of(&home).unwrap();
    let options = Options { apart: Some(&apart), ..FOLLOW };
    let root = TempDir::new_in(outside.path()).unwrap();
    let at = root.path();
    plant(at, &[("file", b"fine".to_vec())]);
    let link = at.join("link");
    let refuse = || {
        let said = refused(at, options);
        assert!(said.contains(&*link.display().to_string()), "{said}");
        assert!(said.contains("node's own directory"), "{said}");
        fs::remove_file(&link).unwrap();
    };
    fs::hard_link(home.join("node.key"), &link).unwrap();
    assert!(refused(&link, options).contains("node's own directory"));
    refuse();
    for target in ["node.key", "", "store", "store/deep", "store/deep/object"] {
        symlink(home.join(target), &link).unwrap();
        refuse();
    }
    // Also if it is met on the way.
    symlink(outside.path().join("above"), &link).unwrap();
    fs::create_dir(outside.path().join("above")).unwrap();
    symlink(&home, outside.path().join("above/down")).unwrap();
    assert!(refused(at, options).contains("above/down"));
    fs::remove_file(outside.path().join("above/down")).unwrap();
    // What was laid out of the store is one's own.
    fs::hard_link(home.join("store/deep/object"), at.join("object")).unwrap();
    symlink(outside.path().join("beside"), at.join("beside")).unwrap();
    let (_home, store) = store();
    assert_eq!(import(&store, at, options, NOW).unwrap().files, 3);
}

#[test]
fn what_cannot_be_imported_is_named() {
    let root = TempDir::new().unwrap();
    let at = root.path();
    plant(at, &[("fine", b"fine".to_vec())]);
    let refuse = |make: &dyn Fn(&Path), name: &[u8], why: &str| {
        let path = at.join(std::ffi::OsStr::from_bytes(name));
        make(&path);
        let said = refused(at, Options::default());
        assert!(said.contains(why), "{said}");
        assert!(said.contains(&*path.display().to_string()), "{said}");
        fs::remove_file(path).unwrap();
    };
    let write = |path: &Path| fs::write(path, b"?").unwrap();
    refuse(&write, b"not \xff utf-8", "not UTF-8");
    refuse(&write, b"back\\slash", "backslash");
    refuse(&write, b"line\nbreak", "control character");
    refuse(
        &|path| drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        b"sock",
        "a socket",
    );
    let fifo = |path: &Path| {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    refuse(&fifo, b"fifo", "a fifo");
    assert!(refused(Path::new("/dev/null"), Options::default()).contains("/dev/null is a device"));
    assert!(refused(&at.join("missing"), Options::default()).contains("could not read"));
    plant(at, &[("Fine", b"too".to_vec())]);
    assert!(refused(at, Options::default()).contains("by case or by accents only"));
    fs::remove_file(at.join("Fine")).unwrap();
    // Whoever may read everything cannot see this fail.
    fs::set_permissions(at.join("fine"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(at.join("fine")).is_err() {
        assert!(refused(at, Options::default()).contains("fine"));
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_noticed() {
    for (name, bytes) in [("large", 9 << 20), ("small", 9_000)] {
        for change in ["longer", "shorter", "other"] {
            let root = TempDir::new().unwrap();
            plant(root.path(), &[("a", noise(SMALL as usize, 1)), (name, noise(bytes, 2))]);
            let path = root.path().join(name);
            let (_home, store) = store();
            let once = std::sync::Once::new();
            let progress = |_: Progress| {
                once.call_once(|| {
                    let mut content = fs::read(&path).unwrap();
                    match change {
                        "longer" => content.push(1),
                        "shorter" => _ = content.pop(),
                        _ => content[bytes - 1] ^= 1,
                    }
                    fs::write(&path, content).unwrap();
                });
            };
            let options = Options { progress: Some(&progress), ..Options::default() };
            match import(&store, root.path(), options, NOW) {
                Err(ImportError::Changed { path: named }) => assert_eq!(named, path),
                // It was done with the file before that.
                Ok(imported) => assert_ne!(contents(&store, imported.hash), planted(root.path())),
                Err(error) => panic!("{error}"),
            }
            if name == "large" {
                assert!(store.list().unwrap().is_empty(), "{change}");
            }
        }
    }
}

#[test]
fn files_in_place_are_read_where_they_are_and_never_when_they_have_changed() {
    let (home, store) = store();
    let tree = tree(1);
    let imported = import(&store, tree.path(), IN_PLACE, NOW).unwrap();
    let hash = imported.hash;
    assert_eq!(planted(&home.path().join("store/objects")).len(), 0);
    assert_eq!(store.usage().unwrap().objects, 0);
    assert_eq!(contents(&store, hash), planted(tree.path()));
    // The same manifest as of a copy.
    let (_other, copied) = self::store();
    assert_eq!(take(&copied, tree.path()).hash, hash);
    assert!(store.evict(u64::MAX, |_| true).unwrap().manifests.is_empty());
    drop(imported);
    drop(store);
    let store = Store::open(home.path()).unwrap();
    assert_eq!(contents(&store, hash), planted(tree.path()));

    // Touched, but the same.
    let loaded = store.load(hash).unwrap();
    let small = tree.path().join("small/007");
    let content = fs::read(&small).unwrap();
    fs::write(&small, &content).unwrap();
    let last = loaded.chunk_count() - 1;
    store.read_chunk(&loaded, last, NOW).unwrap();
    // Another content of the same length: gone from here, and the file is left alone.
    fs::write(&small, noise(content.len(), 99)).unwrap();
    assert!(matches!(store.read_chunk(&loaded, last, NOW), Err(StoreError::Damaged { .. })));
    assert!(matches!(store.read_chunk(&loaded, last, NOW), Err(StoreError::Missing(_))));
    assert!(small.exists());
    assert_eq!(planted(&home.path().join("store/quarantine")).len(), 0);
    store.read_chunk(&loaded, 0, NOW).unwrap();
    let verified = store.verify(hash, NOW, |_| ()).unwrap();
    assert_eq!(verified.damaged.len(), 1);
    // A file that is removed, or shorter.
    for path in ["a/large", "b/copy"] {
        fs::write(tree.path().join(path), b"short").unwrap();
    }
    assert!(matches!(store.read_chunk(&loaded, 0, NOW), Err(StoreError::Damaged { .. })));
    assert!(store.remove(hash).is_ok());
    assert!(small.exists());
}

#[test]
fn a_cancelled_import_claims_nothing_and_the_next_goes_on() {
    let (home, store) = store();
    let root = TempDir::new().unwrap();
    for at in 0..200 {
        plant(root.path(), &[(&format!("{at:03}"), noise(300_000, at))]);
    }
    let cancel = AtomicBool::new(false);
    let progress = |progress: Progress| {
        if progress.files > 150 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let options =
        Options { progress: Some(&progress), cancel: Some(&cancel), ..Options::default() };
    assert!(matches!(import(&store, root.path(), options, NOW), Err(ImportError::Cancelled)));
    assert!(store.list().unwrap().is_empty());
    assert_eq!(planted(&home.path().join("store/tmp")).len(), 0);
    let stored = store.usage().unwrap().objects;
    assert!(stored >= 64 * 300_000, "{stored}");
    let dropped = store.drop_leftovers(|_| false, std::time::Duration::ZERO, NOW).unwrap();
    assert_eq!(dropped, 0, "it is for the next one");
    let imported = take(&store, root.path());
    assert_eq!(imported.new_bytes, 200 * 300_000 - stored);
    assert!(store.verify(imported.hash, NOW, |_| ()).unwrap().damaged.is_empty());
}

#[test]
fn a_cancelled_import_keeps_the_files_that_were_whole_however_few() {
    let (home, store) = store();
    let root = TempDir::new().unwrap();
    // Fewer than are claimed together.
    for at in 0..60 {
        plant(root.path(), &[(&format!("{at:03}"), noise(300_000, at))]);
    }
    let cancel = AtomicBool::new(false);
    let progress = |progress: Progress| {
        if progress.files > 10 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let options =
        Options { progress: Some(&progress), cancel: Some(&cancel), ..Options::default() };
    assert!(matches!(import(&store, root.path(), options, NOW), Err(ImportError::Cancelled)));
    assert!(store.list().unwrap().is_empty());
    assert_eq!(planted(&home.path().join("store/tmp")).len(), 0);
    let stored = store.usage().unwrap().objects;
    assert!(stored >= 11 * 300_000, "{stored}");
    assert_eq!(take(&store, root.path()).new_bytes, 60 * 300_000 - stored);
}

#[test]
fn small_files_and_a_file_of_all_of_them_get_along() {
    let (_home, store) = store();
    let root = TempDir::new().unwrap();
    let parts: Vec<Vec<u8>> = (0..4).map(|at| noise(100_000, at)).collect();
    for (at, part) in parts.iter().enumerate() {
        plant(root.path(), &[(&format!("part{at}"), part.clone())]);
    }
    plant(root.path(), &[("all", parts.concat())]);
    let imported = take(&store, root.path());
    assert_eq!(contents(&store, imported.hash), planted(root.path()));
}

#[test]
fn progress_ends_where_everything_is_done() {
    let (_home, store) = store();
    let tree = tree(1);
    let most = Mutex::new((0, 0));
    let progress = |progress: Progress| {
        assert!(progress.bytes <= progress.bytes_total && progress.files <= progress.files_total);
        let mut most = most.lock().unwrap();
        *most = (most.0.max(progress.bytes), most.1.max(progress.files));
    };
    let options = Options { progress: Some(&progress), ..Options::default() };
    for _ in 0..2 {
        *most.lock().unwrap() = (0, 0);
        let imported = import(&store, tree.path(), options, NOW).unwrap();
        assert_eq!(*most.lock().unwrap(), (imported.bytes, 43));
    }
}
