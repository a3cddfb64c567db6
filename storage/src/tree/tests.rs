use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use mesh_consensus::id::Hash;
use tempfile::TempDir;

use super::*;
use crate::chunk::{Chunk, cut};
use crate::manifest::Object;

/// Objects as files of a directory, as the store keeps them.
struct Store {
    dir: TempDir,
    files: BTreeMap<ObjectId, PathBuf>,
    may_link: bool,
    /// Done when the first object is asked for.
    meanwhile: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Source for Store {
    fn object(&self, id: ObjectId) -> io::Result<ObjectFile> {
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
        let path = self.files.get(&id).ok_or(io::ErrorKind::NotFound)?.clone();
        Ok(ObjectFile { file: File::open(&path)?, path, may_link: self.may_link })
    }
}

impl Store {
    fn new() -> Self {
        Self::within(TempDir::new().unwrap())
    }

    fn within(dir: TempDir) -> Self {
        Self { dir, files: BTreeMap::new(), may_link: true, meanwhile: RefCell::new(None) }
    }

    /// Keeps an object, and gives it a place in the manifest.
    fn keep(&mut self, manifest: &mut Manifest, content: &[u8]) -> u32 {
        let mut rest = content;
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let (chunk, tail) = rest.split_at(cut((content.len() - rest.len()) as u64, rest));
            chunks.push(Chunk { id: Hash::of(chunk), bytes: chunk.len() as u32 });
            rest = tail;
        }
        let object = Object { chunks };
        let path = self.dir.path().join(object.id().to_string());
        fs::write(&path, content).unwrap();
        chmod(&path, 0o444);
        self.files.insert(object.id(), path);
        manifest.objects.push(object);
        manifest.objects.len() as u32 - 1
    }

    fn path(&self, manifest: &Manifest, object: usize) -> &Path {
        &self.files[&manifest.objects[object].id()]
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut noise);
    noise
}

const LONG: usize = 3 << 20;

/// What the sample holds: a path, and its content, or none for a directory.
fn content() -> Vec<(&'static str, Option<Vec<u8>>)> {
    vec![
        ("a", Some(b"first".to_vec())),
        ("d/again", Some(b"first".to_vec())),
        ("d/e/f", Some(noise(1000, 7))),
        ("d/hollow", None),
        ("d/long", Some(noise(LONG, 8))),
        ("empty", Some(Vec::new())),
        ("run", Some(noise(LONG, 9))),
    ]
}

fn sample() -> (Store, Manifest) {
    let mut store = Store::new();
    let manifest = fill(&mut store);
    (store, manifest)
}

/// Two long files, and a pack.
fn fill(store: &mut Store) -> Manifest {
    let mut manifest = Manifest::default();
    let small = noise(1000, 7);
    let pack = store.keep(&mut manifest, &[b"first", &small[..]].concat());
    let long = store.keep(&mut manifest, &noise(LONG, 8));
    let run = store.keep(&mut manifest, &noise(LONG, 9));
    let file = |executable, object, offset, bytes, content| Kind::File {
        executable,
        object,
        offset,
        bytes,
        content,
    };
    let first = file(false, pack, 0, 5, Some(Hash::of(b"first")));
    for (path, kind) in [
        ("a", first),
        ("d/again", first),
        ("d/e/f", file(false, pack, 5, 1000, Some(Hash::of(&small)))),
        ("d/hollow", Kind::EmptyDirectory),
        ("d/long", file(false, long, 0, LONG as u64, None)),
        ("empty", Kind::EmptyFile),
        ("run", file(true, run, 0, LONG as u64, None)),
    ] {
        manifest.entries.push(Entry { path: path.into(), kind });
    }
    manifest.check().unwrap();
    manifest
}

fn lay(manifest: &Manifest, dest: &Path, store: &Store) -> Result<Materialised, TreeError> {
    materialise(manifest, dest, store, Options::default())
}

fn assert_whole(dest: &Path) {
    let mut names = Vec::new();
    list(dest, "", &mut names);
    let want: Vec<String> = content().iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(names, want);
    for (path, want) in content() {
        match want {
            Some(want) => assert!(fs::read(dest.join(path)).unwrap() == want, "{path}"),
            None => assert!(dest.join(path).is_dir(), "{path}"),
        }
    }
}

/// All files and empty directories, in order.
fn list(at: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().into_string().unwrap());
        let before = names.len();
        if entry.file_type().unwrap().is_dir() {
            list(&entry.path(), &format!("{path}/"), names);
        }
        if names.len() == before {
            names.push(path);
        }
    }
    names.sort();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// What is in the way, and where.
fn in_the_way(result: Result<Materialised, TreeError>) -> (String, &'static str) {
    match result {
        Err(TreeError::InTheWay { path, what }) => (path, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tree_is_what_its_manifest_says_byte_for_byte() {
    let (store, manifest) = sample();
    let dir = TempDir::new().unwrap();
    let dest = dir.path().join("new");
    let done = lay(&manifest, &dest, &store).unwrap();
    assert_whole(&dest);
    assert_eq!((done.linked + done.reflinked + done.copied, done.kept), (6, 0));
    // An empty directory will do, too.
    let dest = dir.path().join("empty");
    fs::create_dir(&dest).unwrap();
    lay(&manifest, &dest, &store).unwrap();
    assert_whole(&dest);
}

#[test]
fn a_long_file_shares_the_inode_of_its_object() {
    let (store, manifest) = sample();
    let dir = TempDir::new_in(store.dir.path()).unwrap();
    let done = lay(&manifest, dir.path(), &store).unwrap();
    assert_eq!(inode(&dir.path().join("d/long")), inode(store.path(&manifest, 1)));
    assert_eq!(fs::metadata(dir.path().join("d/long")).unwrap().nlink(), 2);
    assert_eq!(done.linked, 1, "the one that may be run has another mode than its object");
    // With that mode, no long file has bytes of its own.
    chmod(store.path(&manifest, 2), 0o555);
    let dir = TempDir::new_in(store.dir.path()).unwrap();
    let done = lay(&manifest, dir.path(), &store).unwrap();
    let want = Materialised { linked: 2, copied: 4, bytes_copied: 1010, ..Materialised::default() };
    assert_eq!(done, want);
    assert_whole(dir.path());
}

#[test]
fn an_object_in_place_is_never_linked() {
    let (mut store, manifest) = sample();
    store.may_link = false;
    let dir = TempDir::new_in(store.dir.path()).unwrap();
    let done = lay(&manifest, dir.path(), &store).unwrap();
    assert_eq!(done.linked, 0);
    assert_ne!(inode(&dir.path().join("d/long")), inode(store.path(&manifest, 1)));
    assert_whole(dir.path());
}

#[test]
fn between_file_systems_files_are_copied() {
    let shm = Path::new("/dev/shm");
    let (Ok(memory), Ok(disk)) = (TempDir::new_in(shm), TempDir::new()) else { return };
    let device = |dir: &TempDir| fs::metadata(dir.path()).unwrap().dev();
    if device(&memory) == device(&disk) {
        return;
    }
    let mut store = Store::within(memory);
    let manifest = fill(&mut store);
    chmod(store.path(&manifest, 2), 0o555);
    let done = lay(&manifest, disk.path(), &store).unwrap();
    let bytes_copied = 2 * LONG as u64 + 1010;
    assert_eq!(done, Materialised { copied: 6, bytes_copied, ..Materialised::default() });
    assert_whole(disk.path());
    // What was copied is kept by its content.
    let done = lay(&manifest, disk.path(), &store).unwrap();
    assert_eq!(done, Materialised { kept: 6, ..Materialised::default() });
}

#[test]
fn modes_are_as_asked() {
    let (store, manifest) = sample();
    let dir = TempDir::new().unwrap();
    for (name, writable, sealed, modes) in [
        ("usual", false, false, [0o444, 0o444, 0o444, 0o555, 0o755]),
        ("sealed", false, true, [0o444, 0o444, 0o444, 0o555, 0o555]),
        ("writable", true, false, [0o644, 0o644, 0o644, 0o755, 0o755]),
    ] {
        let dest = dir.path().join(name);
        let options = Options { writable, sealed, ..Options::default() };
        let done = materialise(&manifest, &dest, &store, options).unwrap();
        let files = ["a", "d/long", "empty", "run"].map(|path| mode(&dest.join(path)));
        assert_eq!(files, modes[..4], "{name}");
        for path in ["", "d", "d/e", "d/hollow"] {
            assert_eq!(mode(&dest.join(path)), modes[4], "{name} {path}");
        }
        assert_whole(&dest);
        // A second run finds everything done, and changes nothing.
        let again = materialise(&manifest, &dest, &store, options).unwrap();
        assert_eq!(again, Materialised { kept: 6, ..Materialised::default() }, "{done:?}");
        assert_eq!(mode(&dest.join("d/e")), modes[4], "{name}");
        if sealed {
            lay(&manifest, &dest, &store).unwrap();
        }
    }
}

#[test]
fn a_sealed_tree_is_mended_and_sealed_again() {
    // As root nothing is sealed, and this shows little: run it as somebody else, too.
    let (store, manifest) = sample();
    let dir = TempDir::new().unwrap();
    let options = Options { sealed: true, ..Options::default() };
    let dest = dir.path().join("dest");
    materialise(&manifest, &dest, &store, options).unwrap();
    chmod(&dest.join("d/e"), 0o755);
    fs::remove_file(dest.join("d/e/f")).unwrap();
    chmod(&dest.join("d/e"), 0o555);
    let done = materialise(&manifest, &dest, &store, options).unwrap();
    assert_eq!((done.copied, done.kept), (1, 5));
    assert_whole(&dest);
    assert_eq!(["", "d", "d/e"].map(|path| mode(&dest.join(path))), [0o555; 3]);
    // So that the test can clean up after itself.
    lay(&manifest, &dest, &store).unwrap();
    assert_eq!(["", "d", "d/e"].map(|path| mode(&dest.join(path))), [0o755; 3]);
}

#[test]
fn past_the_limit_of_links_files_are_copied() {
    // 65,000 on ext4; others have more, and pass anyway.
    const FILES: u64 = 65_010;
    let mut store = Store::new();
    let mut manifest = Manifest::default();
    let object = store.keep(&mut manifest, b"again");
    let kind = Kind::File { executable: false, object, offset: 0, bytes: 5, content: None };
    let entries = (0..FILES).map(|at| Entry { path: format!("{}/{at:06}", at / 10_000), kind });
    manifest.entries.extend(entries);
    manifest.check().unwrap();
    let dir = TempDir::new_in(store.dir.path()).unwrap();
    let done = lay(&manifest, dir.path(), &store).unwrap();
    assert_eq!(done.linked + done.copied + done.reflinked, FILES);
    assert!(done.linked >= 1000, "{done:?}");
    println!("{done:?}");
    assert_eq!(fs::read(dir.path().join("6/065009")).unwrap(), b"again");
}

#[test]
fn what_may_be_written_is_not_the_stores() {
    let (store, manifest) = sample();
    let dir = TempDir::new_in(store.dir.path()).unwrap();
    let options = Options { writable: true, ..Options::default() };
    let done = materialise(&manifest, dir.path(), &store, options).unwrap();
    assert_eq!(done.linked, 0);
    fs::write(dir.path().join("d/long"), b"mine").unwrap();
    assert_eq!(fs::read(store.path(&manifest, 1)).unwrap(), noise(LONG, 8));
    // Not even if their modes are alike.
    chmod(store.path(&manifest, 1), 0o644);
    let dir = TempDir::new_in(store.dir.path()).unwrap();
    assert_eq!(materialise(&manifest, dir.path(), &store, options).unwrap().linked, 0);
    chmod(store.path(&manifest, 1), 0o444);
    // A tree of links is not taken for a writable one.
    let dir = TempDir::new_in(store.dir.path()).unwrap();
    lay(&manifest, dir.path(), &store).unwrap();
    let (path, what) = in_the_way(materialise(&manifest, dir.path(), &store, options));
    assert_eq!((path.as_str(), what), ("a", "it is a file of another mode"));
}

#[test]
fn a_planted_link_is_not_followed_at_any_level() {
    let (store, manifest) = sample();
    for path in ["", "a", "d", "d/e", "d/e/f", "d/hollow", "d/long", "empty", ".mesh-partial-0"] {
        let dir = TempDir::new().unwrap();
        let (dest, outside) = (dir.path().join("dest"), dir.path().join("outside"));
        fs::create_dir_all(&outside).unwrap();
        let link = dest.join(path);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let link = if path.is_empty() { dest.clone() } else { link };
        symlink(&outside, &link).unwrap();
        let error = lay(&manifest, &dest, &store).unwrap_err();
        if path.is_empty() {
            assert!(matches!(error, TreeError::Destination { .. }), "{error:?}");
        } else {
            assert_eq!(in_the_way(Err(error)), (path.to_owned(), "it is a symbolic link"));
        }
        assert_eq!(fs::read_link(&link).unwrap(), outside, "{path}: it stays");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{path}");
    }
}

#[test]
fn a_link_that_is_planted_meanwhile_is_not_followed() {
    // The survey has found nothing; then, while the first object is opened, links come.
    for path in ["d", "d/e", "d/e/f", "d/hollow", "d/long", "empty", "run", ".mesh-partial-0"] {
        let (store, manifest) = sample();
        let dir = TempDir::new().unwrap();
        let (dest, outside) = (dir.path().join("dest"), dir.path().join("outside"));
        fs::create_dir_all(&outside).unwrap();
        let (link, to) = (dest.join(path), outside.clone());
        *store.meanwhile.borrow_mut() = Some(Box::new(move || {
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(&to, &link).unwrap();
        }));
        let error = lay(&manifest, &dest, &store).unwrap_err();
        let named = match &error {
            TreeError::InTheWay { path, .. } | TreeError::Write { path, .. } => path.as_str(),
            other => panic!("{other:?}"),
        };
        // The first file on the stage is the first to find the stage taken.
        let want = if path == ".mesh-partial-0" { "a" } else { path };
        assert!(named.starts_with(want), "{path}: {error:?}");
        assert_eq!(fs::read_link(dest.join(path)).unwrap(), outside, "{path}: it stays");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{path}");
    }
}

#[test]
fn what_belongs_to_somebody_else_is_not_overwritten() {
    let (store, manifest) = sample();
    for (path, what) in [
        ("a", "it is a file of another length"),
        ("d/e/f", "it is a file of another length"),
        ("empty", "it is a file of another length"),
        ("mine", "it is a file that the manifest has not"),
        ("d/mine", "it is a file that the manifest has not"),
        ("d/hollow/mine", "it is a file that the manifest has not"),
        ("m/mine", "it is a directory that the manifest has not"),
        ("d/e", "it is a file that the manifest has not"),
        ("a/mine", "it is a directory that the manifest has not"),
    ] {
        let dir = TempDir::new().unwrap();
        let mine = dir.path().join(path);
        fs::create_dir_all(mine.parent().unwrap()).unwrap();
        fs::write(&mine, b"my own words").unwrap();
        let found = in_the_way(lay(&manifest, dir.path(), &store));
        assert_eq!(found.1, what);
        assert!(path.starts_with(&found.0), "{path}: {found:?}");
        assert_eq!(fs::read(&mine).unwrap(), b"my own words");
    }
}

#[test]
fn a_file_of_an_earlier_run_that_was_changed_is_named() {
    let (mut store, manifest) = sample();
    store.may_link = false;
    for (path, bytes) in [("a", 5), ("d/e/f", 1000), ("d/long", LONG)] {
        let dir = TempDir::new().unwrap();
        lay(&manifest, dir.path(), &store).unwrap();
        let file = dir.path().join(path);
        fs::remove_file(&file).unwrap();
        fs::write(&file, noise(bytes, 99)).unwrap();
        chmod(&file, 0o444);
        let found = in_the_way(lay(&manifest, dir.path(), &store));
        assert_eq!(found, (path.to_owned(), "it is a file of other content"));
        assert_eq!(fs::read(&file).unwrap(), noise(bytes, 99));
    }
}

#[test]
fn a_copy_of_what_has_changed_since_it_was_verified_gets_no_name() {
    let (mut store, manifest) = sample();
    store.may_link = false;
    let long = manifest.entries.iter().find(|entry| entry.path == "d/long").unwrap();
    let Kind::File { object, .. } = long.kind else { panic!("{long:?}") };
    let path = store.path(&manifest, object as usize).to_owned();
    chmod(&path, 0o644);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let dir = TempDir::new().unwrap();
    let refused = lay(&manifest, dir.path(), &store).unwrap_err();
    assert!(matches!(&refused, TreeError::Damaged { path, .. } if path == "d/long"), "{refused}");
    assert!(!dir.path().join("d/long").exists());
}

#[test]
fn a_file_that_comes_meanwhile_is_not_overwritten() {
    for path in ["a", "d/long", "run"] {
        let (store, manifest) = sample();
        let dir = TempDir::new().unwrap();
        let mine = dir.path().join(path);
        let file = mine.clone();
        *store.meanwhile.borrow_mut() = Some(Box::new(move || {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, b"mine").unwrap();
        }));
        let found = in_the_way(lay(&manifest, dir.path(), &store));
        assert_eq!(found, (path.to_owned(), "something has come there meanwhile"));
        assert_eq!(fs::read(mine).unwrap(), b"mine");
    }
}

#[test]
fn a_run_that_was_cancelled_goes_on() {
    let (mut store, manifest) = sample();
    for may_link in [true, false] {
        store.may_link = may_link;
        for stop in 0..9 {
            let dir = TempDir::new_in(store.dir.path()).unwrap();
            let (told, cancel) = (Cell::new(0), AtomicBool::new(stop == 0));
            let progress = |_| {
                told.set(told.get() + 1);
                cancel.store(told.get() >= stop, Ordering::Relaxed);
            };
            let options =
                Options { progress: Some(&progress), cancel: Some(&cancel), ..Options::default() };
            let cut = materialise_in_batches(&manifest, dir.path(), &store, options, 2);
            assert!(matches!(cut, Err(TreeError::Cancelled)), "{stop}: {cut:?}");
            // Whatever has a name is whole.
            let mut names = Vec::new();
            list(dir.path(), "", &mut names);
            for (path, want) in content() {
                if let (Ok(found), Some(want)) = (fs::read(dir.path().join(path)), want) {
                    assert!(found == want, "{path}");
                }
            }
            let done = lay(&manifest, dir.path(), &store).unwrap();
            assert_eq!(done.linked + done.reflinked + done.copied + done.kept, 6);
            assert!(stop < 8 || done.kept > 0, "{stop}: {done:?}");
            assert_whole(dir.path());
        }
    }
}

#[test]
fn an_object_that_was_not_read_to_its_end_is_not_blamed() {
    let (mut store, manifest) = sample();
    store.files.clear();
    let cancel = Rc::new(AtomicBool::new(false));
    let flag = Rc::clone(&cancel);
    *store.meanwhile.borrow_mut() = Some(Box::new(move || flag.store(true, Ordering::Relaxed)));
    let dir = TempDir::new().unwrap();
    let options = Options { cancel: Some(&*cancel), ..Options::default() };
    let cut = materialise(&manifest, dir.path(), &store, options);
    assert!(matches!(cut, Err(TreeError::Cancelled)), "{cut:?}");
}

#[test]
fn what_a_killed_run_left_is_cleared() {
    let (store, manifest) = sample();
    let dir = TempDir::new().unwrap();
    let partial = dir.path().join(".mesh-partial-0");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("0"), b"fir").unwrap();
    lay(&manifest, dir.path(), &store).unwrap();
    assert_whole(dir.path());
    // It is somebody's, if the manifest has it.
    let mut manifest = manifest;
    let path = ".mesh-partial-0/a".to_owned();
    manifest.entries.insert(0, Entry { path, kind: Kind::EmptyFile });
    manifest.check().unwrap();
    let dir = TempDir::new().unwrap();
    lay(&manifest, dir.path(), &store).unwrap();
    assert!(lay(&manifest, dir.path(), &store).is_ok());
    assert_eq!(fs::read(dir.path().join(".mesh-partial-0/a")).unwrap(), b"");
}

#[test]
fn two_runs_do_not_share_a_destination() {
    let (store, manifest) = sample();
    let dir = TempDir::new().unwrap();
    let first = Root::open(dir.path()).unwrap();
    assert!(matches!(lay(&manifest, dir.path(), &store), Err(TreeError::Busy { .. })));
    drop(first);
    lay(&manifest, dir.path(), &store).unwrap();
}

#[test]
fn a_hostile_manifest_writes_nothing_outside() {
    let (store, honest) = sample();
    for path in ["../out", "/tmp/mesh-out", "d/../../out", "..", ".", "", "a\0b", "d//x", "d/"] {
        for at in [1, 3, 5] {
            let mut manifest = honest.clone();
            manifest.entries[at].path = path.into();
            let dir = TempDir::new().unwrap();
            let dest = dir.path().join("dest");
            let error = lay(&manifest, &dest, &store).unwrap_err();
            assert!(matches!(error, TreeError::Manifest(_)), "{path:?}: {error:?}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{path:?}");
        }
    }
    assert!(!Path::new("/tmp/mesh-out").exists());
    // Nor do the handles let anything out, were a path to come so far.
    let dir = TempDir::new().unwrap();
    let root = Root::open(&dir.path().join("dest")).unwrap();
    fs::create_dir(dir.path().join("there")).unwrap();
    symlink("../there", dir.path().join("dest/link")).unwrap();
    for path in ["../out", "../there", "..", "/tmp", "link", "link/x", "x/../../out"] {
        assert!(root.enter(path).is_err(), "{path}");
    }
    assert_eq!(fs::read_dir(dir.path().join("there")).unwrap().count(), 0);
    assert!(!dir.path().join("out").exists());
}

#[test]
fn a_manifest_that_lies_about_its_objects_is_refused() {
    let (store, honest) = sample();
    fn place(entry: &mut Entry, change: fn(&mut u32, &mut u64, &mut u64, &mut Option<Hash>)) {
        let Kind::File { object, offset, bytes, content, .. } = &mut entry.kind else { panic!() };
        change(object, offset, bytes, content);
    }
    type Change = fn(&mut u32, &mut u64, &mut u64, &mut Option<Hash>);
    let lies: [(usize, Change); 6] = [
        (0, |object, _, _, _| *object = 77),
        (0, |_, offset, _, _| *offset = u64::MAX),
        (0, |_, _, bytes, _| *bytes = u64::MAX),
        (0, |_, _, _, content| *content = None),
        (0, |_, _, _, content| *content = Some(Hash([0; 32]))),
        (4, |_, _, bytes, _| *bytes -= 1),
    ];
    for (at, lie) in lies {
        let mut manifest = honest.clone();
        place(&mut manifest.entries[at], lie);
        let dir = TempDir::new().unwrap();
        let error = lay(&manifest, dir.path(), &store).unwrap_err();
        let path = manifest.entries[at].path.as_str();
        match &error {
            TreeError::Damaged { path: found, .. } | TreeError::Object { path: found, .. } => {
                assert_eq!(found, path);
            }
            TreeError::Manifest(_) => {}
            other => panic!("{other:?}"),
        }
        assert!(!dir.path().join(path).exists());
    }
}

#[test]
fn an_object_that_is_gone_or_short_is_named() {
    let (store, manifest) = sample();
    let path = store.path(&manifest, 1).to_owned();
    fs::remove_file(&path).unwrap();
    let dir = TempDir::new().unwrap();
    let gone = lay(&manifest, dir.path(), &store);
    assert!(matches!(gone, Err(TreeError::Object { path, .. }) if path == "d/long"));
    fs::write(&path, b"short").unwrap();
    let short = lay(&manifest, dir.path(), &store);
    assert!(matches!(short, Err(TreeError::Damaged { path, .. }) if path == "d/long"));
}

#[test]
fn progress_ends_with_everything() {
    let (store, manifest) = sample();
    let dir = TempDir::new().unwrap();
    let told = RefCell::new(Vec::new());
    let progress = |now| told.borrow_mut().push(now);
    let options = Options { progress: Some(&progress), ..Options::default() };
    materialise(&manifest, dir.path(), &store, options).unwrap();
    let told = told.into_inner();
    let end = Progress { files: manifest.files(), bytes: manifest.bytes() };
    assert_eq!(told.last(), Some(&end));
    assert!(told.is_sorted_by_key(|now| (now.files, now.bytes)));
}
