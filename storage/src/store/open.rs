//! Opening a store: the lock, the version, and an index that fits the files.
//!
//! While the index is whole it decides: a manifest it does not know was never claimed, or is being removed. An object it
//! does not know is read and entered, as it may be part of a fetch that goes on. Without an index, all files are read;
//! and if that is cut short, they are read again.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use mesh_consensus::id::{Hash, ObjectId};
use redb::{ReadableTable as _, WriteTransaction};

use super::files::{Files, Stamp};
use super::index::{self, Index, MANIFESTS, ManifestRow, OBJECTS, Segment, failure, outline};
use super::{Inner, Loaded, Store, StoreError};
use crate::chunk::{Chunk, MAX_CHUNK, cut, object_id};
use crate::manifest::Manifest;

/// Goes up when an older mesh would misread what a newer one writes.
const KNOWN_VERSION: u32 = 1;

/// How often a store is tried that somebody has …
const BUSY_TRIES: usize = 40;
/// … and how long apart.
const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// Where the objects of a manifest are that was imported in place.
pub(crate) type Places = Vec<(ObjectId, Vec<(u64, Segment)>)>;

impl Store {
    /// Opens the store under `root`, in the directory `store`, and makes it if there is none.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, StoreError> {
        // A process that was killed may leave its lock, for a moment, to a child of somebody that has not become
        // another program yet.
        for _ in 0..BUSY_TRIES {
            match Self::open_once(root.as_ref()) {
                Err(StoreError::Busy { .. }) => std::thread::sleep(BUSY_PAUSE),
                opened => return opened,
            }
        }
        Self::open_once(root.as_ref())
    }

    fn open_once(root: &Path) -> Result<Self, StoreError> {
        let root = root.join("store");
        make_directory(&root)?;
        let held = lock_store(&root)?;
        let files = Files::new(root.clone());
        check_version(&files)?;
        for name in ["objects", "manifests", "partial", "quarantine", "tmp"] {
            make_directory(&root.join(name))?;
        }
        for byte in 0..=255u8 {
            let path = root.join("objects").join(format!("{byte:02x}"));
            fs::create_dir_all(&path).map_err(StoreError::io(&path))?;
        }
        files.sync_directory(&root.join("objects"))?;
        for name in files.names(&root.join("tmp"))? {
            files.remove(&root.join("tmp").join(name))?;
        }
        let index = open_index(&files)?;
        let is_new = !index.is_settled()?;
        let inner = Inner {
            files,
            index,
            names: RwLock::default(),
            flush: Mutex::default(),
            partials: Mutex::default(),
            trust: Mutex::default(),
            marks: Mutex::default(),
            loaded: Mutex::default(),
            next_lease: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            lock: Mutex::new(Some(held)),
        };
        let store = Self { inner: Arc::new(inner) };
        store.settle_objects()?;
        store.settle_manifests(is_new)?;
        store.settle_partials()?;
        if is_new {
            store.inner.index.settle()?;
        }
        Ok(store)
    }

    /// Makes the index know the objects that are there, and no others.
    fn settle_objects(&self) -> Result<(), StoreError> {
        let files = &self.inner.files;
        let mut found = std::collections::BTreeSet::new();
        for byte in 0..=255u8 {
            let directory = files.root().join("objects").join(format!("{byte:02x}"));
            for name in files.names(&directory)? {
                match name.parse::<ObjectId>() {
                    Ok(id) if id.0[0] == byte => _ = found.insert(id),
                    _ => files.set_aside(&directory.join(&name), &name)?,
                }
            }
        }
        let mut gone = Vec::new();
        {
            let table = self.inner.index.read()?.open_table(OBJECTS).map_err(failure)?;
            for row in table.iter().map_err(failure)? {
                let (key, row) = row.map_err(failure)?;
                let (id, (_, in_place)) = (ObjectId(*key.value()), outline(row.value())?);
                if !found.remove(&id) && !in_place {
                    gone.push(id);
                }
            }
        }
        let mut news = Vec::new();
        for id in found {
            let path = files.object(id);
            let chunks = cut_file(&path)?;
            if object_id(&chunks) == id {
                news.push((id, chunks));
            } else {
                files.set_aside(&path, &id.to_string())?;
            }
        }
        if gone.is_empty() && news.is_empty() {
            return Ok(());
        }
        self.inner.index.write(|tx| {
            for id in gone {
                index::drop_object(tx, id)?;
            }
            for (id, chunks) in &news {
                index::add_object(tx, *id, chunks, None)?;
            }
            Ok(())
        })
    }

    /// Makes the index know the manifests that are there.
    fn settle_manifests(&self, is_new: bool) -> Result<(), StoreError> {
        let files = &self.inner.files;
        let directory = files.root().join("manifests");
        let mut found = std::collections::BTreeSet::new();
        for name in files.names(&directory)? {
            match name.strip_suffix(".places").unwrap_or(&name).parse::<Hash>() {
                Ok(hash) => _ = found.insert(hash),
                Err(_) => files.set_aside(&directory.join(&name), &name)?,
            }
        }
        for hash in found {
            let path = files.manifest(hash);
            if self.inner.index.manifest(hash)?.is_some() {
                continue;
            }
            if !is_new {
                files.remove(&path)?;
                files.remove(&files.places(hash))?;
                continue;
            }
            let bytes = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    files.remove(&files.places(hash))?;
                    continue;
                }
                bytes => bytes.map_err(StoreError::io(&path))?,
            };
            match Manifest::decode(&bytes) {
                Ok(manifest) if Hash::of(&bytes) == hash => {
                    self.enter_manifest(&Loaded::new(hash, manifest))?;
                }
                _ => files.set_aside(&path, &hash.to_string())?,
            }
        }
        // Those that have lost their file.
        let mut gone = Vec::new();
        {
            let table = self.inner.index.read()?.open_table(MANIFESTS).map_err(failure)?;
            for row in table.iter().map_err(failure)? {
                let hash = Hash(*row.map_err(failure)?.0.value());
                if !files.manifest(hash).exists() {
                    gone.push(hash);
                }
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        self.inner.index.write(|tx| {
            let mut table = tx.open_table(MANIFESTS).map_err(failure)?;
            for hash in gone {
                table.remove(&hash.0).map_err(failure)?;
            }
            Ok(())
        })
    }

    fn enter_manifest(&self, loaded: &Loaded) -> Result<(), StoreError> {
        let hash = loaded.hash();
        let places = fs::read(self.inner.files.places(hash)).ok();
        let places: Option<Places> = places.and_then(|bytes| decode_places(&bytes));
        self.inner.index.write(|tx| {
            for (id, segments) in places.into_iter().flatten() {
                enter_in_place(tx, loaded, id, &segments)?;
            }
            let mut in_place = false;
            for id in loaded.objects() {
                let table = tx.open_table(OBJECTS).map_err(failure)?;
                let row = table.get(&id.0).map_err(failure)?;
                in_place |=
                    row.map(|row| outline(row.value())).transpose()?.is_some_and(|row| row.1);
            }
            let manifest = loaded.manifest();
            let row = ManifestRow { bytes: manifest.bytes(), files: manifest.files(), in_place };
            let mut table = tx.open_table(MANIFESTS).map_err(failure)?;
            table.insert(&hash.0, &*index::encode(&row)).map_err(failure)?;
            index::hold(tx, hash, loaded.objects())?;
            Ok(())
        })
    }

    /// The user's files that a manifest was made of in place, and that were found to be others than they were, or gone.
    /// What nobody has read since it changed is not known yet, and is not among them; nor is what came from elsewhere.
    pub fn changed_files(&self, hash: Hash) -> Result<Vec<PathBuf>, StoreError> {
        let places = fs::read(self.inner.files.places(hash)).ok();
        let places: Option<Places> = places.and_then(|bytes| decode_places(&bytes));
        let mut changed = Vec::new();
        for (id, segments) in places.into_iter().flatten() {
            if self.inner.index.holds(id)?.is_none() {
                changed.extend(changed_of(&segments));
            }
        }
        changed.sort_unstable();
        changed.dedup();
        Ok(changed)
    }

    /// Removes the halves of partials of which the other half is gone.
    fn settle_partials(&self) -> Result<(), StoreError> {
        let files = &self.inner.files;
        let directory = files.root().join("partial");
        for name in files.names(&directory)? {
            let (stem, end) = name.split_once('.').unwrap_or((&name, ""));
            let other = if end == "data" { "bits" } else { "data" };
            let is_whole = match stem.parse::<ObjectId>() {
                Ok(id) => self.inner.index.holds(id)? == Some(false),
                Err(_) => true,
            };
            if is_whole || !directory.join(format!("{stem}.{other}")).exists() {
                files.remove(&directory.join(&name))?;
            }
        }
        files.sync_directory(&directory)
    }
}

/// Which of the files that an object was made of are to blame that it cannot be read any more: those that were touched.
/// A single one is, whatever it looks like.
fn changed_of(segments: &[(u64, Segment)]) -> Vec<PathBuf> {
    let path = |segment: &Segment| PathBuf::from(std::ffi::OsStr::from_bytes(&segment.path));
    let is_touched = |segment: &Segment| {
        let was = segment.stamp;
        let now = fs::metadata(path(segment)).ok().map(|meta| Stamp::of(&meta));
        now.is_none_or(|now| (now.bytes, now.mtime, now.inode) != (was.bytes, was.mtime, was.inode))
    };
    match segments {
        [(_, only)] => vec![path(only)],
        several => {
            let touched = several.iter().map(|(_, segment)| segment).filter(|one| is_touched(one));
            touched.map(path).collect()
        }
    }
}

/// Enters an object of the user's files, if they are still as long as they were. Whoever reads it hashes it.
fn enter_in_place(
    tx: &WriteTransaction,
    loaded: &Loaded,
    id: ObjectId,
    segments: &[(u64, Segment)],
) -> Result<(), StoreError> {
    let Some(at) = loaded.objects().iter().position(|object| *object == id) else { return Ok(()) };
    let is_known = tx.open_table(OBJECTS).map_err(failure)?.get(&id.0).map_err(failure)?.is_some();
    let fits = |segment: &Segment| {
        let path = Path::new(std::ffi::OsStr::from_bytes(&segment.path));
        fs::metadata(path).is_ok_and(|meta| Stamp::of(&meta).bytes == segment.stamp.bytes)
    };
    if !is_known && segments.iter().all(|(_, segment)| fits(segment)) {
        index::add_object(tx, id, &loaded.manifest().objects[at].chunks, Some(segments))?;
    }
    Ok(())
}

/// A checksum, then the places.
pub(crate) fn encode_places(places: &Places) -> Vec<u8> {
    let body = index::encode(places);
    [&Hash::of(&body).0[..], &body].concat()
}

fn decode_places(bytes: &[u8]) -> Option<Places> {
    let (check, body) = bytes.split_at_checked(32)?;
    (Hash::of(body).0 == check).then(|| postcard::from_bytes(body).ok()).flatten()
}

/// The chunks of a file.
fn cut_file(path: &Path) -> Result<Vec<Chunk>, StoreError> {
    const WINDOW: usize = 4 * MAX_CHUNK as usize;
    let file = File::open(path).map_err(StoreError::io(path))?;
    let mut window = vec![0; WINDOW];
    // Where the next chunk begins, and how much was read.
    let (mut offset, mut at) = (0u64, 0u64);
    let (mut chunks, mut held) = (Vec::new(), 0);
    loop {
        let mut is_end = false;
        while held < WINDOW && !is_end {
            let read = file.read_at(&mut window[held..], at).map_err(StoreError::io(path))?;
            is_end = read == 0;
            held += read;
            at += read as u64;
        }
        let mut start = 0;
        while held - start >= MAX_CHUNK as usize || (is_end && start < held) {
            let bytes = cut(offset, &window[start..held]);
            let id = Hash::of(&window[start..start + bytes]);
            chunks.push(Chunk { id, bytes: bytes as u32 });
            start += bytes;
            offset += bytes as u64;
        }
        if is_end {
            return Ok(chunks);
        }
        window.copy_within(start..held, 0);
        held -= start;
    }
}

fn make_directory(path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path).map_err(StoreError::io(path))?;
    let parent = path.parent().unwrap_or(path);
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(StoreError::io(parent))
}

fn lock_store(root: &Path) -> Result<File, StoreError> {
    let path = root.join("lock");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(StoreError::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Busy { path: root.into() }),
        Err(TryLockError::Error(error)) => Err(StoreError::io(&path)(error)),
    }
}

fn check_version(files: &Files) -> Result<(), StoreError> {
    let path = files.root().join("VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(1..=KNOWN_VERSION) => Ok(()),
            _ => {
                let found = text.trim().chars().take(40).collect();
                Err(StoreError::Newer { found, known: KNOWN_VERSION })
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_directory(&files.root().join("tmp"))?;
            files.put(&path, format!("{KNOWN_VERSION}\n").as_bytes())
        }
        Err(error) => Err(StoreError::io(&path)(error)),
    }
}

/// The index: an empty one if there was none, or none that could be used.
fn open_index(files: &Files) -> Result<Index, StoreError> {
    let path = files.root().join("meta.redb");
    // redb answers some damage with a panic. Nothing of ours is shared with what it left behind.
    let opened = panic::catch_unwind(AssertUnwindSafe(|| Index::open(&path)));
    match opened {
        Ok(Ok(index)) => return Ok(index),
        Ok(Err(error)) => match StoreError::from(error) {
            error @ StoreError::NoSpace { .. } => return Err(error),
            StoreError::Index(error) if is_of_the_system(&error) => {
                return Err(StoreError::Index(error));
            }
            _ => {}
        },
        Err(_) => {}
    }
    files.set_aside(&path, "meta.redb")?;
    Ok(Index::open(&path)?)
}

/// Whether the file could not be read at all, which says nothing of what is in it.
fn is_of_the_system(error: &redb::Error) -> bool {
    // Somebody has it: our own lock should have said so, but it is no damage.
    if matches!(error, redb::Error::DatabaseAlreadyOpen) {
        return true;
    }
    let redb::Error::Io(error) = error else { return false };
    matches!(error.kind(), io::ErrorKind::PermissionDenied) || error.raw_os_error().is_some()
}
