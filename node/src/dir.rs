//! The data directory: one directory is one node.
//!
//! ```text
//! VERSION       the format of this directory
//! node.key      the node's secret: a node is its key
//! party.key     the party's secret, unless the node is a worker or the key was taken offline
//! sealing.key   the part of it that seals the party's records: workers have it, too
//! config.toml   settings, and the ports that were chosen
//! member        which mesh, which seat, and the proof of admission
//! numbers       how far batch numbers have been handed out
//! incarnation   which life of the node this is: a cache
//! peers         where the others were last heard: a cache; peers.late is younger, and not synced
//! leaving       this node wants to leave, and goes on doing so after a restart
//! removed       the others took this node for removed when it last asked them: a hint for people
//! pending       a party that this machine asked to found, until it is a member of it
//! state.redb    the log; locked by the node that runs. `.before-recovery` and the like are older ones
//! token         opens the HTTP API on TCP; `token.auditor` what only reads there
//! store/ audit/ logs/ run/mesh.sock
//! ```
//!
//! Small files carry a checksum and are replaced whole: written beside, synced, renamed. So a flipped
//! byte is found when the file is read, and a crash leaves the old one or the new one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mesh_consensus::admission::Admission;
use mesh_consensus::command::exact;
use mesh_consensus::id::{Hash, NodeId, PartyId, RaftId};
use mesh_consensus::log::Identity;
use mesh_transport::identity::NodeKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::party::{PartySecret, SealingSecret};

/// The format of the directory that this version writes.
const FORMAT: &str = "mesh 1";
/// A party that this machine asked to found, until it is a member of it.
pub(crate) const PENDING: &str = "pending";
/// The others took this node for removed when it last asked them.
const REMOVED: &str = "removed";
/// The log's file.
pub const LOG: &str = "state.redb";
/// A sealed file larger than this is not read: no node writes one.
const MAX_SEALED: u64 = 16 << 20;
const MAGIC: &[u8] = b"mesh/sealed/1\0";

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// Nothing there.
    #[error("there is no node in {}", .0.display())]
    Absent(PathBuf),
    /// A node is there already.
    #[error("{} already holds a node", .0.display())]
    Taken(PathBuf),
    /// Something else is there.
    #[error("{} is not empty, and is no directory of mesh", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// Another process runs it.
    #[error("the node in {} is running", .0.display())]
    Running(PathBuf),
    /// Written by another version.
    #[error("{} has format {found:?}, and this version knows {FORMAT:?}", path.display())]
    Format {
        /// The directory.
        path: PathBuf,
        /// What its VERSION says.
        found: String,
    },
    /// A file is not what this node wrote.
    #[error("{} is damaged", .0.display())]
    Damaged(PathBuf),
    /// A node is there, and its key is not.
    #[error("the key of the node in {} is gone", .0.display())]
    KeyGone(PathBuf),
    /// A party is being founded from here, and its keys are in no other place.
    #[error("a join that was begun in {} waits for the other parties", .0.display())]
    Joining(PathBuf),
    /// The system said no.
    #[error("could not {doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl DirError {
    /// What a person can do about it.
    pub fn hint(&self) -> String {
        match self {
            DirError::Absent(_) => "mesh init, or mesh join TICKET".into(),
            DirError::Taken(path) => {
                format!("mesh status --dir {0}; mesh up --dir {0} starts it", path.display())
            }
            DirError::Foreign { path, .. } => {
                format!("name one that is empty or yet to be made: --dir {}/mesh", path.display())
            }
            DirError::Running(path) => format!("mesh status --dir {}", path.display()),
            DirError::Format { .. } => {
                "install the version of mesh that last ran here, or a later one".into()
            }
            DirError::Damaged(path) => match path.file_name().and_then(|name| name.to_str()) {
                Some("peers" | "peers.late") => "remove it: it is only a cache".into(),
                Some("config.toml") => "correct it, or remove it to use the defaults".into(),
                _ => "restore it from a copy, or move the directory aside and join again".into(),
            },
            DirError::KeyGone(_) => {
                let again = "remove the directory, and mesh join TICKET as a new node";
                let old = "have the old one removed: mesh node rm NAME";
                format!("restore node.key from a backup; or {again}, and {old}")
            }
            DirError::Joining(path) => format!(
                "mesh join with the same ticket goes on with it; or delete {}",
                path.display()
            ),
            DirError::Io { .. } => "check that the directory exists and is yours to write".into(),
        }
    }
}

/// Which mesh this directory belongs to, and how it can prove it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Mesh, epoch, node and seat.
    pub identity: Identity,
    /// The node's party.
    pub party: PartyId,
    /// Whether it goes without the party's signing key.
    pub worker: bool,
    /// The proof of admission; empty for the founder.
    pub chain: Vec<Admission>,
    /// Members and their seats, as told at admission.
    pub introduced: Vec<(NodeId, RaftId)>,
    /// Who voted then.
    pub voters: Vec<NodeId>,
    /// Whether it asked to leave, or was removed.
    pub left: bool,
}

/// A node's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    path: PathBuf,
}

/// Holds the directory for this process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// What was not there before a directory was made: files and directories, those above it among them. If no node comes
/// of it, [`Dir::unmake`] takes it away again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made(Vec<PathBuf>);

/// Holds a directory while a node is made in it.
#[derive(Debug)]
pub struct Claim {
    /// What was made for it.
    pub made: Made,
    _lock: Lock,
}

impl Dir {
    /// The directory at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where the directory is by convention: the flag, `MESH_DIR`, `/var/lib/mesh` for root, or the
    /// user's state directory.
    pub fn find(flag: Option<PathBuf>) -> Self {
        let set = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty());
        let own = || {
            if nix::unistd::geteuid().is_root() {
                return PathBuf::from("/var/lib/mesh");
            }
            let state = set("XDG_STATE_HOME").map(PathBuf::from);
            let home = || set("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
            state.unwrap_or_else(|| home().join(".local/state")).join("mesh")
        };
        Self::at(flag.or_else(|| set("MESH_DIR").map(PathBuf::from)).unwrap_or_else(own))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The socket of its HTTP API.
    pub fn socket(&self) -> PathBuf {
        self.path.join("run/mesh.sock")
    }

    /// The log of the running process, for people.
    pub fn log_file(&self) -> PathBuf {
        self.path.join("logs/node.log")
    }

    /// Whether a node lives here.
    pub fn is_taken(&self) -> bool {
        self.file("member").exists() || self.file(LOG).exists()
    }

    /// Whether a party is being founded from here, and this machine is not a member of it yet.
    pub fn is_joining(&self) -> bool {
        self.file(PENDING).exists() && !self.is_taken()
    }

    /// Makes the directory, for its owner alone.
    pub fn create(&self) -> Result<Made, DirError> {
        if self.is_taken() {
            return Err(DirError::Taken(self.path.clone()));
        }
        if let Some(found) = self.stranger() {
            return Err(DirError::Foreign { path: self.path.clone(), found });
        }
        let mut made = Made::default();
        match self.furnish(&mut made) {
            Ok(()) => Ok(made),
            Err(error) => {
                self.unmake(&made);
                Err(error)
            }
        }
    }

    /// Makes what is not there yet, and notes it.
    fn furnish(&self, made: &mut Made) -> Result<(), DirError> {
        make(&self.path, made)?;
        for sub in ["store", "audit", "logs", "run"] {
            make(&self.path.join(sub), made)?;
        }
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o700))
            .map_err(io_error("protect", &self.path))?;
        let version = self.file("VERSION");
        made.note(&version);
        replace(&version, format!("{FORMAT}\n").as_bytes(), Synced::Yes)
    }

    /// Takes away what was made for a node of which nothing came, as far as nothing else is in it. Whoever calls this
    /// holds the directory; its lock is the last file to go.
    pub fn unmake(&self, made: &Made) {
        // What cannot be removed stays: the next try finds it.
        let drop_file = |name: &str| {
            let path = self.file(name);
            if made.0.contains(&path) {
                let _ = fs::remove_file(path);
            }
        };
        let drop_empty = |name: &str| {
            let path = self.file(name);
            if made.0.contains(&path) {
                let _ = fs::remove_dir(path);
            }
        };
        drop_file("config.toml");
        for sub in ["store", "audit", "logs"] {
            drop_empty(sub);
        }
        // Without VERSION, what is left would be taken for somebody else's.
        if self.foreign().is_some() {
            return;
        }
        drop_file("VERSION");
        drop_file("run/lock");
        drop_empty("run");
        for path in self.path.ancestors().take_while(|path| made.0.iter().any(|one| one == path)) {
            if fs::remove_dir(path).is_err() {
                break;
            }
        }
    }

    /// Something in the directory that no node puts there, if it was not made by mesh: it is then somebody else's,
    /// and is neither closed to others nor filled.
    fn stranger(&self) -> Option<String> {
        if self.file("VERSION").exists() {
            return None;
        }
        self.foreign()
    }

    /// Something in the directory that is not certain to be a node's.
    fn foreign(&self) -> Option<String> {
        const OURS: &[&str] =
            &["VERSION", "store", "audit", "logs", "run", "config.toml", "lost+found"];
        let names = fs::read_dir(&self.path).ok()?.filter_map(Result::ok);
        let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // One that was killed while it replaced a file has left the new one beside it.
        names.find(|name| !OURS.contains(&name.strip_suffix(".new").unwrap_or(name)))
    }

    /// Makes the directory and takes it for this process, so that no two make a node in it at a time.
    pub fn claim(&self) -> Result<Claim, DirError> {
        let mut made = self.create()?;
        made.note(&self.file("run/lock"));
        made.note(&self.file("config.toml"));
        let lock = self.lock()?;
        // Somebody else may have been quicker …
        if self.is_taken() {
            return Err(DirError::Taken(self.path.clone()));
        }
        // … or may have failed just now, and taken away what it had made.
        self.furnish(&mut made)?;
        Ok(Claim { made, _lock: lock })
    }

    /// Checks that a node of a known format lives here.
    pub fn check(&self) -> Result<(), DirError> {
        let path = self.file("VERSION");
        if !self.is_taken() && !path.exists() {
            return Err(DirError::Absent(self.path.clone()));
        }
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).trim().to_owned(),
            Err(source) => return Err(DirError::Io { doing: "read", path, source }),
        };
        if text != FORMAT {
            return Err(DirError::Format { path: self.path.clone(), found: text });
        }
        Ok(())
    }

    /// Takes the directory for this process.
    pub fn lock(&self) -> Result<Lock, DirError> {
        let path = self.file("run/lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        loop {
            let file = options.open(&path).map_err(io_error("open", &path))?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Lock { _file: file }),
                // Whoever had it took it away between the two: it keeps nobody out any more.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(DirError::Running(self.path.clone())),
                Err(TryLockError::Error(source)) => {
                    return Err(DirError::Io { doing: "lock", path, source });
                }
            }
        }
    }

    /// The node's key.
    pub fn node_key(&self) -> Result<NodeKey, DirError> {
        let path = self.file("node.key");
        let seed: [u8; 32] = read(&path)?.ok_or_else(|| {
            let dir = self.path.clone();
            // A node that was made and has no key is not one that was never made.
            if self.is_taken() { DirError::KeyGone(dir) } else { DirError::Absent(dir) }
        })?;
        Ok(NodeKey::from_seed(&seed))
    }

    /// Keeps the node's key.
    pub fn keep_node_key(&self, key: &NodeKey) -> Result<(), DirError> {
        write(&self.file("node.key"), key.seed())
    }

    /// The party's secret, if this node holds it.
    pub fn party_secret(&self) -> Result<Option<PartySecret>, DirError> {
        Ok(read(&self.file("party.key"))?.map(PartySecret::new))
    }

    /// Keeps the party's secret.
    pub fn keep_party_secret(&self, secret: &PartySecret) -> Result<(), DirError> {
        write(&self.file("party.key"), secret.bytes())
    }

    /// The party's sealing secret, if this node holds it or the whole secret.
    pub fn sealing_secret(&self) -> Result<Option<SealingSecret>, DirError> {
        if let Some(secret) = self.party_secret()? {
            return Ok(Some(secret.sealing_secret()));
        }
        Ok(read(&self.file("sealing.key"))?.map(SealingSecret::new))
    }

    /// Keeps the party's sealing secret, for when the whole secret is not here.
    pub fn keep_sealing_secret(&self, secret: &SealingSecret) -> Result<(), DirError> {
        write(&self.file("sealing.key"), secret.bytes())
    }

    /// Forgets the party's secret. What seals its records is kept by itself.
    pub fn forget_party_secret(&self) -> Result<(), DirError> {
        remove(&self.file("party.key"))
    }

    /// Which mesh it belongs to; `None` before it has joined one.
    pub fn membership(&self) -> Result<Option<Membership>, DirError> {
        read(&self.file("member"))
    }

    /// Keeps the membership.
    pub fn keep_membership(&self, membership: &Membership) -> Result<(), DirError> {
        write(&self.file("member"), membership)
    }

    /// No batch above this number was ever signed here.
    pub fn reserved(&self) -> Result<u64, DirError> {
        Ok(read(&self.file("numbers"))?.unwrap_or_default())
    }

    /// Reserves numbers, durably: none above may be used before this returns.
    pub fn reserve(&self, up_to: u64) -> Result<(), DirError> {
        write(&self.file("numbers"), &up_to)
    }

    /// A cache, or nothing: whatever is wrong with it, the node can do without.
    pub fn cached<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let jotted = read(&self.late(name)).ok().flatten();
        jotted.or_else(|| read(&self.file(name)).ok().flatten())
    }

    /// Keeps a cache.
    pub fn keep_cached<T: Serialize>(&self, name: &str, value: &T) -> Result<(), DirError> {
        write(&self.file(name), value)?;
        remove(&self.late(name))
    }

    /// Keeps a later form of a cache beside the first one, without a sync. If the power fails it may be lost, and
    /// the first one counts again.
    pub fn jot<T: Serialize>(&self, name: &str, value: &T) -> Result<(), DirError> {
        let path = self.late(name);
        let bytes = sealed(&path, value)?;
        replace(&path, &bytes, Synced::No)
    }

    /// Forgets a cache.
    pub fn forget_cached(&self, name: &str) -> Result<(), DirError> {
        remove(&self.late(name))?;
        remove(&self.file(name))
    }

    /// Whether the node of this directory was removed, as far as it knew when it ran. Others may have erred, so this is for
    /// people to know, and the node asks again.
    pub fn was_removed(&self) -> bool {
        self.cached(REMOVED).unwrap_or(false)
    }

    /// Notes what [`was_removed`](Self::was_removed) says.
    pub fn note_removed(&self, removed: bool) -> Result<(), DirError> {
        match removed {
            true => self.keep_cached(REMOVED, &true),
            false => self.forget_cached(REMOVED),
        }
    }

    fn late(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.late"))
    }

    /// Replaces the settings.
    pub fn keep_config(&self, text: &str) -> Result<(), DirError> {
        replace(&self.file("config.toml"), text.as_bytes(), Synced::Yes)
    }

    /// Removes everything that makes this directory a node; logs and settings stay, and so does the lock.
    pub fn clear(&self) -> Result<(), DirError> {
        for name in [
            "member",
            "peers",
            "peers.late",
            PENDING,
            "numbers",
            "incarnation",
            "party.key",
            "sealing.key",
            "node.key",
            "leaving",
            REMOVED,
            LOG,
            "state.redb.joining",
        ] {
            remove(&self.file(name))?;
        }
        remove(&self.socket())
    }
}

/// Reads a sealed file, here or elsewhere; `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DirError> {
    let damaged = || DirError::Damaged(path.to_path_buf());
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error("read", path)(source)),
        Ok(about) if about.len() > MAX_SEALED => return Err(damaged()),
        Ok(_) => {}
    }
    let bytes = fs::read(path).map_err(io_error("read", path))?;
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(damaged)?;
    let (sum, body) = rest.split_at_checked(32).ok_or_else(damaged)?;
    if Hash::of(body).0 != *sum {
        return Err(damaged());
    }
    exact(body).ok_or_else(damaged).map(Some)
}

/// Writes a sealed file, here or elsewhere.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), DirError> {
    replace(path, &sealed(path, value)?, Synced::Yes)
}

/// Writes a sealed file without waiting for the disk: a crash of the machine may lose it, one of the node does not.
pub(crate) fn write_unsynced<T: Serialize>(path: &Path, value: &T) -> Result<(), DirError> {
    replace(path, &sealed(path, value)?, Synced::No)
}

/// A value with its checksum, for the file at `path`.
fn sealed<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, DirError> {
    let body = postcard::to_stdvec(value)
        .map_err(|error| io_error("encode", path)(io::Error::other(error)))?;
    Ok([MAGIC, &Hash::of(&body).0, &body].concat())
}

/// Whether a write waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Synced {
    Yes,
    No,
}

/// Replaces a file whole, and durably if it is to be synced.
fn replace(path: &Path, bytes: &[u8], synced: Synced) -> Result<(), DirError> {
    let sync = |file: &File| match synced {
        Synced::Yes => sync(file),
        Synced::No => Ok(()),
    };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(&beside).map_err(io_error("write", &beside))?;
    if let Err(source) = file.write_all(bytes).and_then(|()| sync(&file)) {
        // Half a file is of no use to anybody, least of all on a full disk.
        let _ = fs::remove_file(&beside);
        return Err(io_error("write", &beside)(source));
    }
    fs::rename(&beside, path).map_err(io_error("replace", path))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    File::open(parent).and_then(|dir| sync(&dir)).map_err(io_error("sync", parent))
}

fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    tests::SYNCS.set(tests::SYNCS.get() + 1);
    file.sync_all()
}

impl Made {
    /// Notes a file that is about to be made, unless it is there.
    fn note(&mut self, path: &Path) {
        if !path.exists() && !self.0.iter().any(|one| one == path) {
            self.0.push(path.to_path_buf());
        }
    }
}

/// Makes a directory and those above it, and notes which were not there.
fn make(path: &Path, made: &mut Made) -> Result<(), DirError> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.is_dir();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    for path in missing.into_iter().rev() {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => made.0.push(path.to_path_buf()),
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(error) => return Err(io_error("make", path)(error)),
        }
    }
    Ok(())
}

/// Whether an open file is the one that has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let which = |about: fs::Metadata| (about.dev(), about.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => which(open) == which(named),
        _ => false,
    }
}

fn remove(path: &Path) -> Result<(), DirError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirError + use<> {
    let path = path.to_path_buf();
    move |source| DirError::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How often this thread has waited for the disk.
        pub(super) static SYNCS: Cell<u32> = const { Cell::new(0) };
    }

    fn fresh() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        dir.create().unwrap();
        (temp, dir)
    }

    #[test]
    fn a_directory_of_somebody_else_is_left_as_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("home");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(path.join("thesis.txt"), "mine").unwrap();
        let refused = Dir::at(&path).create();
        assert!(matches!(refused, Err(DirError::Foreign { found, .. }) if found == "thesis.txt"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o777);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        // Settings that were written beforehand are none of that.
        fs::rename(path.join("thesis.txt"), path.join("config.toml")).unwrap();
        assert!(Dir::at(&path).create().is_ok());
    }

    #[test]
    fn what_seals_is_there_with_the_partys_secret_and_without_it() {
        let (_temp, dir) = fresh();
        assert_eq!(dir.sealing_secret().unwrap(), None);
        let secret = PartySecret::new([3; 32]);
        dir.keep_party_secret(&secret).unwrap();
        assert_eq!(dir.sealing_secret().unwrap(), Some(secret.sealing_secret()));
        dir.forget_party_secret().unwrap();
        assert_eq!(dir.sealing_secret().unwrap(), None);
        dir.keep_sealing_secret(&secret.sealing_secret()).unwrap();
        assert_eq!(dir.sealing_secret().unwrap(), Some(secret.sealing_secret()));
        assert_eq!(dir.party_secret().unwrap(), None);
        let mode = fs::metadata(dir.file("sealing.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        dir.clear().unwrap();
        assert_eq!(dir.sealing_secret().unwrap(), None);
    }

    #[test]
    fn what_was_kept_is_read_back_and_is_the_owners_alone() {
        let (_temp, dir) = fresh();
        let key = NodeKey::generate();
        dir.keep_node_key(&key).unwrap();
        assert_eq!(dir.node_key().unwrap().id(), key.id());
        let mode = fs::metadata(dir.file("node.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(dir.reserved().unwrap(), 0);
        dir.reserve(7).unwrap();
        assert_eq!(dir.reserved().unwrap(), 7);
    }

    #[test]
    fn a_node_without_its_key_is_not_one_that_was_never_made() {
        let (_temp, dir) = fresh();
        assert!(matches!(dir.node_key(), Err(DirError::Absent(_))));
        dir.keep_cached("member", &1u8).unwrap();
        let gone = dir.node_key().unwrap_err();
        assert!(matches!(gone, DirError::KeyGone(_)), "{gone}");
        let hint = gone.hint();
        for part in ["backup", "mesh join TICKET", "mesh node rm NAME"] {
            assert!(hint.contains(part), "{part}: {hint}");
        }
        assert!(!hint.contains("mesh init") && !hint.contains("  "), "{hint}");
    }

    #[test]
    fn every_flipped_byte_of_a_key_is_noticed() {
        let (_temp, dir) = fresh();
        dir.keep_node_key(&NodeKey::generate()).unwrap();
        let path = dir.file("node.key");
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(matches!(dir.node_key(), Err(DirError::Damaged(_))), "byte {at}");
        }
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(dir.node_key(), Err(DirError::Damaged(_))));
    }

    #[test]
    fn one_directory_is_one_node_and_one_process() {
        let (_temp, dir) = fresh();
        let lock = dir.lock().unwrap();
        assert!(matches!(dir.lock(), Err(DirError::Running(_))));
        drop(lock);
        dir.lock().unwrap();
        dir.keep_cached("member", &1u8).unwrap();
        assert!(matches!(dir.create(), Err(DirError::Taken(_))));
    }

    #[test]
    fn a_directory_is_claimed_by_one_at_a_time_and_only_while_it_is_empty() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        let lock = dir.claim().unwrap();
        assert!(matches!(dir.claim(), Err(DirError::Running(_))));
        dir.clear().unwrap();
        assert!(matches!(dir.claim(), Err(DirError::Running(_))), "clearing frees nothing");
        dir.keep_cached("member", &1u8).unwrap();
        drop(lock);
        assert!(matches!(dir.claim(), Err(DirError::Taken(_))));
    }

    #[test]
    fn what_was_made_goes_again_and_nothing_that_was_there_before() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("a/b/node"));
        let claim = dir.claim().unwrap();
        dir.keep_config("mdns = true\n").unwrap();
        dir.unmake(&claim.made);
        assert!(!temp.path().join("a").exists(), "the directories above it were made for it");
        drop(claim);

        // A directory that was there, with settings that were written beforehand.
        fs::create_dir(temp.path().join("a")).unwrap();
        let dir = Dir::at(temp.path().join("a"));
        fs::write(dir.file("config.toml"), "mdns = true\n").unwrap();
        let claim = dir.claim().unwrap();
        dir.keep_config("mdns = false\n").unwrap();
        dir.unmake(&claim.made);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].file_name(), "config.toml");
        drop(claim);

        // One that was killed early left half a file: it is nobody else's.
        fs::write(dir.file("VERSION.new"), "").unwrap();
        let claim = dir.claim().unwrap();
        dir.unmake(&claim.made);
        drop(claim);

        // What is not empty stays, and as long as it would be taken for somebody else's, so does VERSION.
        for (kept, is_foreign) in [("logs/node.log", false), ("token", true)] {
            let claim = dir.claim().unwrap();
            fs::write(dir.file(kept), "kept").unwrap();
            dir.unmake(&claim.made);
            drop(claim);
            assert_eq!(fs::read_to_string(dir.file(kept)).unwrap(), "kept");
            assert_eq!(dir.file("VERSION").exists(), is_foreign, "{kept}");
        }

        // The next one that comes of nothing takes away nothing of what was there.
        let claim = dir.claim().unwrap();
        dir.unmake(&claim.made);
        assert!(dir.file("VERSION").exists() && dir.file("run/lock").exists());
    }

    #[test]
    fn a_lock_that_was_taken_away_holds_nobody() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        let first = dir.claim().unwrap();
        dir.unmake(&first.made);
        // It is made anew, and taken by one alone: whoever still has the old file is not asked.
        let second = dir.claim().unwrap();
        assert!(matches!(dir.claim(), Err(DirError::Running(_))));
        drop(first);
        assert!(matches!(dir.claim(), Err(DirError::Running(_))));
        drop(second);
        dir.claim().unwrap();
    }

    #[test]
    fn that_a_node_was_removed_is_noted_and_taken_back() {
        let (_temp, dir) = fresh();
        assert!(!dir.was_removed());
        for removed in [true, true, false, false, true] {
            dir.note_removed(removed).unwrap();
            assert_eq!(dir.was_removed(), removed);
        }
        dir.clear().unwrap();
        assert!(!dir.was_removed());
    }

    #[test]
    fn a_directory_of_another_version_is_refused() {
        let (temp, dir) = fresh();
        dir.check().unwrap();
        fs::write(dir.file("VERSION"), "mesh 2\n").unwrap();
        assert!(matches!(dir.check(), Err(DirError::Format { .. })));
        let nothing = Dir::at(temp.path().join("nothing"));
        assert!(matches!(nothing.check(), Err(DirError::Absent(_))));
    }

    #[test]
    fn what_is_jotted_down_costs_no_sync_and_the_first_form_stays() {
        let (_temp, dir) = fresh();
        dir.keep_cached("peers", &1u8).unwrap();
        let before = SYNCS.get();
        dir.jot("peers", &2u8).unwrap();
        dir.jot("peers", &3u8).unwrap();
        assert_eq!(SYNCS.get(), before);
        assert_eq!(dir.cached::<u8>("peers"), Some(3));
        // The power failed: it is there by name, and empty.
        fs::write(dir.file("peers.late"), "").unwrap();
        assert_eq!(dir.cached::<u8>("peers"), Some(1));
        dir.jot("peers", &4u8).unwrap();
        dir.keep_cached("peers", &5u8).unwrap();
        assert_eq!(dir.cached::<u8>("peers"), Some(5));
        assert!(SYNCS.get() > before);
    }
}
