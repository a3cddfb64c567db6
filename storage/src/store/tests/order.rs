//! Synced before claimed: the steps as they were taken.

use std::collections::BTreeSet;

use super::files::Step;
use super::*;

/// Walks through the steps and checks that nothing is claimed that a power cut could take.
fn check(root: &Path, steps: &[Step]) -> (usize, usize) {
    let mut dirty: BTreeSet<&Path> = BTreeSet::new();
    // Names that were given and not yet synced, and names that the index does not tell of yet.
    let (mut unsynced, mut untold) = (BTreeSet::new(), BTreeSet::new());
    let (mut objects, mut manifests) = (0, 0);
    for step in steps {
        match step {
            Step::Write(path) => {
                assert!(!path.starts_with(root.join("objects")), "an object is never rewritten");
                assert!(!path.starts_with(root.join("manifests")));
                dirty.insert(path);
                if path.extension().is_some_and(|end| end == "bits") {
                    let data = path.with_extension("data");
                    assert!(!dirty.contains(&*data), "bits before the sync of their data");
                }
            }
            Step::Sync(path) => _ = dirty.remove(&**path),
            Step::SyncAll => dirty.clear(),
            Step::Rename(from, to) => {
                assert!(!dirty.contains(&**from), "{} was renamed before its sync", from.display());
                unsynced.insert(to);
                if to.starts_with(root.join("manifests")) {
                    assert!(untold.is_empty(), "a manifest before its objects");
                    manifests += 1;
                } else {
                    objects += 1;
                }
                untold.insert(to);
            }
            Step::SyncDirectory(path) => unsynced.retain(|name| name.parent() != Some(path)),
            Step::Commit(names) => {
                for name in names {
                    assert!(!unsynced.contains(name), "claimed before the directory was synced");
                    untold.remove(name);
                }
            }
        }
    }
    assert!(unsynced.is_empty() && untold.is_empty());
    (objects, manifests)
}

fn watched(store: &Store, act: impl FnOnce()) -> Vec<Step> {
    *store.inner.files.watch.steps.lock().unwrap() = Some(Vec::new());
    act();
    store.inner.files.watch.steps.lock().unwrap().take().unwrap()
}

#[test]
fn nothing_is_claimed_before_it_is_on_stable_storage() {
    let (home, tree) = (TempDir::new().unwrap(), tree(1));
    let store = Store::open(home.path()).unwrap();
    let root = home.path().join("store");
    let steps = watched(&store, || drop(take(&store, tree.path())));
    assert_eq!(check(&root, &steps), (2, 1));

    let (home, origin) = (TempDir::new().unwrap(), super::fetch::origin(2));
    let store = Store::open(home.path()).unwrap();
    let root = home.path().join("store");
    let steps = watched(&store, || {
        let fetch = origin.fetch(&store);
        for number in fetch.missing().present() {
            fetch.write(number, &origin.chunks[number]).unwrap();
            fetch.flush().unwrap();
        }
        fetch.finish(NOW).unwrap();
    });
    assert!(steps.iter().any(
        |step| matches!(step, Step::Write(path) if path.to_string_lossy().ends_with(".bits"))
    ));
    assert_eq!(check(&root, &steps), (2, 1));
}

#[test]
fn many_objects_share_their_syncs() {
    let (home, tree) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for at in 0..150 {
        plant(tree.path(), &[(&format!("{at:03}"), noise(262_144, at))]);
    }
    for at in 0..500 {
        plant(tree.path(), &[(&format!("small/{at:03}"), noise(100, at))]);
    }
    let store = Store::open(home.path()).unwrap();
    let steps = watched(&store, || drop(take(&store, tree.path())));
    assert_eq!(check(&home.path().join("store"), &steps), (151, 1));
    let syncs = |step: &&Step| matches!(step, Step::Sync(_) | Step::SyncAll);
    let commits = steps.iter().filter(|step| matches!(step, Step::Commit(_))).count();
    let syncs = steps.iter().filter(syncs).count();
    assert!(commits <= 5 && syncs <= 40, "{commits} commits, {syncs} syncs");
}
