//! Pieces of models on this node's disk, by their hash.
//!
//! ```text
//!   put ─► written beside, hashed ─► renamed ─────────────► get, and `travel.rs`: fetched, served
//!                                       └─► synced a moment later, and not waited for
//! ```
//!
//! What is promised: bytes hash to their name, which is looked at on the way in, and again when they are first read after a start.
//! When `put` returns, they outlive this process, as the system has them; they outlive the machine from about a second on, when they
//! are on its disk. A round that commits has its pieces on two nodes in that way: to lose one, both machines must fail within that second.
//! No round waits for a disk.
//!
//! All methods block, if shortly: a piece of 100 MB is read, or hashed and written, in some 50 ms.

pub mod travel;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mesh_consensus::id::{Hash, JobId};

use super::service::lock;
use crate::state::course::Piece;

pub use travel::{FetchError, fetch};

/// The largest piece: it is read whole.
pub const MAX_PIECE_BYTES: u64 = 16 << 30;
/// The latest pieces stay in memory, up to so many bytes together; of larger ones, what somebody has in use is shared.
const CACHE_BYTES: usize = 64 << 20;
/// From here on it pays to hash and to write beside each other.
const WORTH_A_THREAD: usize = 1 << 20;
/// How long a piece waits for the disk: most are gone before, as rounds go on.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// A piece that is in no model which stood goes after so many models. Until then it may be of one that is about to stand.
const LOOSE_MODELS: u64 = 3;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Pieces(Arc<Inner>);

struct Inner {
    /// `JOB/HASH`, whole, and `JOB/new-…`, which are being written.
    root: PathBuf,
    /// Tells files of this process from what an earlier one left half written.
    tag: u64,
    /// Numbers those.
    drafts: AtomicU64,
    held: Mutex<Held>,
    unsynced: Mutex<Unsynced>,
}

#[derive(Default)]
struct Held {
    jobs: BTreeMap<JobId, Known>,
    /// The oldest first.
    latest: VecDeque<(Spot, Arc<Vec<u8>>)>,
    latest_bytes: usize,
    /// What somebody may still have in use.
    lent: BTreeMap<Spot, Weak<Vec<u8>>>,
}

/// A piece of a job.
type Spot = (JobId, Hash);

/// What is known of a job's pieces.
#[derive(Default)]
struct Known {
    /// Those that hash to their name, as was seen since this node was started.
    verified: BTreeSet<Hash>,
    /// How many models stood when it came, or was first seen.
    born: BTreeMap<Hash, u64>,
    /// What is in the model that stands, as was told last.
    standing: BTreeSet<Hash>,
    /// How many models stood so far.
    models: u64,
}

#[derive(Default)]
struct Unsynced {
    waiting: BTreeSet<PathBuf>,
    /// Whether somebody sees to it.
    is_minded: bool,
}

impl Pieces {
    /// The pieces beneath `root`. It is made when the first one comes.
    pub fn new(root: PathBuf) -> Self {
        Self(Arc::new(Inner {
            root,
            tag: fastrand::u64(..),
            drafts: AtomicU64::new(0),
            held: Mutex::default(),
            unsynced: Mutex::default(),
        }))
    }

    /// Whether it is here, by its name and length. Whether its bytes are whole is seen when they are read.
    pub fn has(&self, job: JobId, piece: &Piece) -> bool {
        fs::metadata(self.path(job, piece.hash)).is_ok_and(|about| about.len() == piece.bytes)
    }

    /// Keeps bytes, and says what they are called.
    pub fn put(&self, job: JobId, bytes: Vec<u8>) -> io::Result<Piece> {
        let (beside, mut file) = self.draft(job)?;
        match write_and_hash(&mut file, &bytes) {
            Ok(hash) => {
                let piece = Piece { hash, bytes: bytes.len() as u64 };
                self.finish(job, hash, &beside, Arc::new(bytes))?;
                Ok(piece)
            }
            Err(error) => Err(given_up(&beside, error)),
        }
    }

    /// Keeps bytes that are known to hash to this name.
    pub(super) fn put_verified(
        &self,
        job: JobId,
        hash: Hash,
        bytes: Arc<Vec<u8>>,
    ) -> io::Result<()> {
        let (beside, mut file) = self.draft(job)?;
        match file.write_all(&bytes) {
            Ok(()) => self.finish(job, hash, &beside, bytes),
            Err(error) => Err(given_up(&beside, error)),
        }
    }

    /// The bytes of a piece, if it is here. One that is damaged is dropped, and is not here any more.
    pub fn get(&self, job: JobId, piece: &Piece) -> Option<Arc<Vec<u8>>> {
        if piece.bytes > MAX_PIECE_BYTES {
            return None;
        }
        if let Some(bytes) = lock(&self.0.held).in_memory((job, piece.hash)) {
            return (bytes.len() as u64 == piece.bytes).then_some(bytes);
        }
        let path = self.path(job, piece.hash);
        let file = File::open(&path).ok()?;
        if file.metadata().ok()?.len() != piece.bytes {
            return None;
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(piece.bytes).ok()?).ok()?;
        file.take(piece.bytes).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 != piece.bytes {
            return None;
        }
        let is_verified = lock(&self.0.held).known(job).verified.contains(&piece.hash);
        if !is_verified && Hash::of(&bytes) != piece.hash {
            tracing::warn!(job = %job.short(), piece = %piece.hash.short(), "a piece of a model is damaged");
            // Others have it: it is fetched anew.
            let _ = fs::remove_file(&path);
            return None;
        }
        let bytes = Arc::new(bytes);
        lock(&self.0.held).remember(job, piece.hash, &bytes);
        Some(bytes)
    }

    /// Tells what is in the model that stands: hashes of its pieces. Drops what is neither in it nor in the one before, unless it
    /// came lately: then it may be in the next one.
    pub fn retain(&self, job: JobId, standing: &BTreeSet<Hash>) {
        let Ok(entries) = fs::read_dir(self.0.root.join(job.to_string())) else { return };
        let mut held = lock(&self.0.held);
        let known = held.known(job);
        if known.standing == *standing {
            return;
        }
        let before = std::mem::replace(&mut known.standing, standing.clone());
        known.models += 1;
        let drafts = self.drafts();
        let mut gone = BTreeSet::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            match name.parse::<Hash>() {
                Ok(hash) => {
                    let born = *known.born.entry(hash).or_insert(known.models);
                    let is_needed = standing.contains(&hash) || before.contains(&hash);
                    if !is_needed && born + LOOSE_MODELS <= known.models {
                        gone.insert(hash);
                        let _ = fs::remove_file(entry.path());
                    }
                }
                // Left half written by an earlier process.
                Err(_) if name.starts_with(DRAFT) && !name.starts_with(&drafts) => {
                    let _ = fs::remove_file(entry.path());
                }
                Err(_) => {}
            }
        }
        known.verified.retain(|hash| !gone.contains(hash));
        known.born.retain(|hash, _| !gone.contains(hash));
        held.forget(|(of, hash)| *of == job && gone.contains(hash));
    }

    /// Drops all pieces of a job.
    pub fn drop_job(&self, job: JobId) {
        let mut held = lock(&self.0.held);
        held.jobs.remove(&job);
        held.forget(|(of, _)| *of == job);
        match fs::remove_dir_all(self.0.root.join(job.to_string())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(job = %job.short(), %error, "pieces of a model could not be dropped");
            }
            _ => {}
        }
    }

    /// The jobs of which anything is here.
    pub fn jobs(&self) -> Vec<JobId> {
        let Ok(entries) = fs::read_dir(&self.0.root) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut jobs: Vec<JobId> = names.filter_map(|name| name.parse().ok()).collect();
        jobs.sort();
        jobs
    }

    fn path(&self, job: JobId, hash: Hash) -> PathBuf {
        self.0.root.join(job.to_string()).join(hash.to_string())
    }

    /// How the files begin that this process is writing.
    fn drafts(&self) -> String {
        format!("{DRAFT}{:016x}-", self.0.tag)
    }

    /// A new file beside the pieces of a job.
    fn draft(&self, job: JobId) -> io::Result<(PathBuf, File)> {
        let dir = self.0.root.join(job.to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let number = self.0.drafts.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{}{number}", self.drafts()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }

    /// Gives a file that is whole its name.
    fn finish(&self, job: JobId, hash: Hash, beside: &Path, bytes: Arc<Vec<u8>>) -> io::Result<()> {
        let path = self.path(job, hash);
        {
            // Under the lock, so that it is not taken for an old one by whoever tidies up.
            let mut held = lock(&self.0.held);
            if let Err(error) = fs::rename(beside, &path) {
                return Err(given_up(beside, error));
            }
            held.remember(job, hash, &bytes);
            let known = held.known(job);
            known.born.insert(hash, known.models);
        }
        self.sync_later(path);
        Ok(())
    }

    /// Has a file brought to the disk, a moment later.
    fn sync_later(&self, path: PathBuf) {
        // Outside of a runtime there is nobody to wait for.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return sync(&path) };
        let mut unsynced = lock(&self.0.unsynced);
        unsynced.waiting.insert(path);
        if std::mem::replace(&mut unsynced.is_minded, true) {
            return;
        }
        let pieces = self.clone();
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(SYNC_AFTER).await;
                let Some(waiting) = pieces.next_to_sync() else { return };
                // One after the other: what agreement depends on wants the disk, too.
                let all = move || waiting.iter().for_each(|path| sync(path));
                let _ = tokio::task::spawn_blocking(all).await;
            }
        });
    }

    /// Those that wait; `None` if none does, and then nobody minds them any more.
    fn next_to_sync(&self) -> Option<BTreeSet<PathBuf>> {
        let mut unsynced = lock(&self.0.unsynced);
        unsynced.is_minded = !unsynced.waiting.is_empty();
        unsynced.is_minded.then(|| std::mem::take(&mut unsynced.waiting))
    }
}

/// How the names of files begin that are being written.
const DRAFT: &str = "new-";

impl Held {
    fn known(&mut self, job: JobId) -> &mut Known {
        self.jobs.entry(job).or_default()
    }

    fn in_memory(&self, key: (JobId, Hash)) -> Option<Arc<Vec<u8>>> {
        self.lent.get(&key)?.upgrade()
    }

    /// These bytes hash to this name.
    fn remember(&mut self, job: JobId, hash: Hash, bytes: &Arc<Vec<u8>>) {
        self.known(job).verified.insert(hash);
        let key = (job, hash);
        self.lent.retain(|_, bytes| bytes.strong_count() > 0);
        self.lent.insert(key, Arc::downgrade(bytes));
        if bytes.len() > CACHE_BYTES {
            return;
        }
        self.forget_latest(|held| *held == key);
        self.latest_bytes += bytes.len();
        self.latest.push_back((key, bytes.clone()));
        while self.latest_bytes > CACHE_BYTES {
            let Some((_, oldest)) = self.latest.pop_front() else { break };
            self.latest_bytes -= oldest.len();
        }
    }

    fn forget(&mut self, which: impl Fn(&(JobId, Hash)) -> bool) {
        self.lent.retain(|key, _| !which(key));
        self.forget_latest(which);
    }

    fn forget_latest(&mut self, which: impl Fn(&(JobId, Hash)) -> bool) {
        self.latest.retain(|(key, _)| !which(key));
        self.latest_bytes = self.latest.iter().map(|(_, bytes)| bytes.len()).sum();
    }
}

/// Writes bytes and hashes them, beside each other if there are many.
fn write_and_hash(file: &mut File, bytes: &[u8]) -> io::Result<Hash> {
    if bytes.len() < WORTH_A_THREAD {
        file.write_all(bytes)?;
        return Ok(Hash::of(bytes));
    }
    std::thread::scope(|scope| {
        let hashing = std::thread::Builder::new().spawn_scoped(scope, || Hash::of(bytes))?;
        let written = file.write_all(bytes);
        let hash = hashing.join().map_err(|_| io::Error::other("hashing failed"))?;
        written.map(|()| hash)
    })
}

/// Half a file is of no use to anybody, least of all on a full disk.
fn given_up(beside: &Path, error: io::Error) -> io::Error {
    let _ = fs::remove_file(beside);
    error
}

/// Brings a file, and its name, to the disk. One that was dropped meanwhile does not matter.
fn sync(path: &Path) {
    let synced = File::open(path).and_then(|file| file.sync_data()).and_then(|()| {
        path.parent().map_or(Ok(()), |dir| File::open(dir).and_then(|dir| dir.sync_all()))
    });
    match synced {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "a piece of a model could not be synced");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId([1; 16]);

    fn pieces() -> (tempfile::TempDir, Pieces) {
        let temp = tempfile::tempdir().unwrap();
        let pieces = Pieces::new(temp.path().join("training"));
        (temp, pieces)
    }

    /// As after a restart.
    fn again(pieces: &Pieces) -> Pieces {
        Pieces::new(pieces.0.root.clone())
    }

    fn set(pieces: &[Piece]) -> BTreeSet<Hash> {
        pieces.iter().map(|piece| piece.hash).collect()
    }

    #[test]
    fn what_was_put_is_there_after_a_restart_too() {
        let (_temp, pieces) = pieces();
        // One on each side of the bound between the two ways to write.
        for bytes in [b"weights".to_vec(), vec![7; WORTH_A_THREAD + 1], Vec::new()] {
            let piece = pieces.put(JOB, bytes.clone()).unwrap();
            assert_eq!(piece, Piece { hash: Hash::of(&bytes), bytes: bytes.len() as u64 });
            for pieces in [pieces.clone(), again(&pieces)] {
                assert!(pieces.has(JOB, &piece));
                assert_eq!(*pieces.get(JOB, &piece).unwrap(), bytes);
                let longer = Piece { bytes: piece.bytes + 1, ..piece };
                assert!(!pieces.has(JOB, &longer) && pieces.get(JOB, &longer).is_none());
                assert!(pieces.get(JobId([2; 16]), &piece).is_none());
            }
        }
        assert_eq!(pieces.jobs(), [JOB]);
        pieces.drop_job(JOB);
        assert!(pieces.jobs().is_empty());
    }

    #[test]
    fn damage_on_disk_is_seen_when_it_is_first_read() {
        let (_temp, pieces) = pieces();
        let piece = pieces.put(JOB, b"weights".to_vec()).unwrap();
        fs::write(pieces.path(JOB, piece.hash), b"weighty").unwrap();
        let pieces = again(&pieces);
        assert!(pieces.has(JOB, &piece), "its length is right");
        assert!(pieces.get(JOB, &piece).is_none());
        assert!(!pieces.has(JOB, &piece), "it was dropped, so that it is fetched anew");
    }

    #[test]
    fn two_models_stay_and_what_came_lately() {
        let (_temp, pieces) = pieces();
        let put = |n: u8| pieces.put(JOB, vec![n; 3]).unwrap();
        let loose = put(100);
        let mut models = Vec::new();
        for round in 0..5u8 {
            // The model comes before it stands: nobody who tidies up may drop it.
            let model = put(round);
            pieces.retain(JOB, &set(&models[models.len().saturating_sub(1)..]));
            models.push(model);
            pieces.retain(JOB, &set(&[model]));
            assert!(pieces.get(JOB, &model).is_some(), "round {round}");
        }
        let here = |piece: &Piece| pieces.has(JOB, piece) && pieces.get(JOB, piece).is_some();
        let here: Vec<bool> = models.iter().map(here).collect();
        assert_eq!(here, [false, false, false, true, true]);
        assert!(!pieces.has(JOB, &loose), "it was in no model");
    }

    #[test]
    fn after_a_restart_nothing_is_taken_for_old() {
        let (_temp, pieces) = pieces();
        let (standing, next) =
            (pieces.put(JOB, vec![1]).unwrap(), pieces.put(JOB, vec![2]).unwrap());
        let half = pieces.path(JOB, standing.hash).with_file_name("new-0-1");
        fs::write(&half, b"half").unwrap();
        let pieces = again(&pieces);
        pieces.retain(JOB, &set(&[standing]));
        assert!(pieces.has(JOB, &standing) && pieces.has(JOB, &next));
        assert!(!half.exists(), "left half written");
    }

    #[test]
    fn memory_holds_the_latest_only() {
        let mut held = Held::default();
        let hash = |n: u8| Hash([n; 32]);
        for n in 0..3 {
            held.remember(JOB, hash(n), &Arc::new(vec![n; CACHE_BYTES / 2]));
        }
        assert!(held.latest_bytes <= CACHE_BYTES);
        let in_memory = |n: u8| held.in_memory((JOB, hash(n))).is_some();
        assert_eq!([0, 1, 2].map(in_memory), [false, true, true]);
        // One that is too large for it is shared while somebody has it.
        let large = Arc::new(vec![0; CACHE_BYTES + 1]);
        held.remember(JOB, hash(3), &large);
        assert!(held.in_memory((JOB, hash(3))).is_some());
        drop(large);
        assert!(held.in_memory((JOB, hash(3))).is_none());
    }
}
