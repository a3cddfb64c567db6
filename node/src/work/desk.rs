//! Where the worker of an attempt and this node meet: a socket, and a directory for tensors.
//!
//! ```text
//! BASE/          the node's; in memory (/dev/shm/mesh-…) for an attempt that trains, if there is room, else DIR/w/…
//!   run/         the task's: /mesh/run as it sees it
//!     sock       see [`crate::training::socket`]
//!     preempt-at comes when the task is asked to end: the moment at which it is killed
//!   tensors/     the task's: /mesh/tensors as it sees it, if its job trains
//!   stage/       the node's: what is not whole yet
//! DIR/work/KEY/desk    where BASE is, for a later life of the node
//! ```
//!
//! A task may do what it likes in what is its own, and the node may be root: so the node makes nothing there by name. What it puts
//! there it makes in `stage`, and renames. The directories themselves lie in one that the task cannot change.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use mesh_consensus::id::Hash;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use super::Key;
use super::attempt::remove;
use super::environment::Places;
use crate::api::{MAX_SOCKET_PATH, bind_at};
use crate::dir;
use crate::executor::Bind;

/// Memory that is a directory, on every Linux.
const MEMORY: &str = "/dev/shm";
/// With less room than this, memory is not used: Docker gives its containers 64 MiB by default.
const LEAST_ROOM: u64 = 256 << 20;
/// A model that came, the next one, an update, and one more while it is written.
const ROOM_FOR_MODELS: u64 = 4;
/// In the attempt's directory.
const FILE: &str = "desk";
/// In what is the task's: when it will be killed, once that is known.
const PREEMPT_AT: &str = "preempt-at";
/// What a task sees, where it has a root of its own.
const TOP: &str = "/mesh";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Desk {
    base: PathBuf,
    trains: bool,
}

/// What is in the file, so that a later version knows what it reads.
#[derive(Serialize, Deserialize)]
enum Kept {
    One { base: PathBuf, trains: bool },
}

/// What a desk is made for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// Which attempt.
    pub(super) key: Key,
    /// The attempt's own directory.
    pub(super) dir: PathBuf,
    /// The node's directory.
    pub(super) root: PathBuf,
    /// Whether its job trains.
    pub(super) trains: bool,
    /// How large its model is, as far as that is known.
    pub(super) model_bytes: u64,
    /// Whether the task sees the host's paths. Then they must not be too long, and others must let it through.
    pub(super) in_place: bool,
}

impl Desk {
    /// Makes one, in place of one that was made for the same attempt before. Touches the disk.
    pub(super) fn make(wanted: &Wanted) -> io::Result<Self> {
        if let Some(old) = Self::find(&wanted.dir) {
            old.remove(&wanted.dir);
        }
        let name = Hash::of(wanted.key.to_string().as_bytes()).to_string();
        let name = &name[..16];
        let in_memory = Path::new(MEMORY).join(format!("mesh-{name}"));
        let on_disk = wanted.root.join("w").join(name);
        let room = LEAST_ROOM.max(wanted.model_bytes.saturating_mul(ROOM_FOR_MODELS));
        // The other one is for a path that is too long, or a directory that is not to be had.
        let places = match wanted.trains && has_room(Path::new(MEMORY), room) {
            true => [in_memory, on_disk],
            false => [on_disk, in_memory],
        };
        let mut failed = io::Error::other("the path of its socket is too long");
        for base in places {
            let desk = Self { base, trains: wanted.trains };
            if wanted.in_place && desk.socket().as_os_str().len() > MAX_SOCKET_PATH {
                continue;
            }
            match desk.furnish(wanted) {
                Ok(()) => return Ok(desk),
                Err(error) => failed = error,
            }
        }
        let _ = fs::remove_file(wanted.dir.join(FILE));
        Err(failed)
    }

    /// The one that was made for the attempt in this directory.
    pub(super) fn find(dir: &Path) -> Option<Self> {
        let kept: Option<Kept> = dir::read(&dir.join(FILE)).ok().flatten();
        kept.map(|Kept::One { base, trains }| Self { base, trains })
    }

    fn furnish(&self, wanted: &Wanted) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        let open = Permissions::from_mode(if wanted.in_place { 0o711 } else { 0o700 });
        if let Some(above) = self.base.parent().filter(|above| !above.exists()) {
            builder.create(above)?;
            fs::set_permissions(above, open.clone())?;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&wanted.dir)?;
        // Known before it is there: so nothing is left over.
        let kept = Kept::One { base: self.base.clone(), trains: self.trains };
        dir::write_unsynced(&wanted.dir.join(FILE), &kept).map_err(io::Error::other)?;
        // What an earlier try left goes. If somebody else has put something there, it stays, and is not used.
        let _ = fs::remove_dir_all(&self.base);
        builder.create(&self.base)?;
        fs::set_permissions(&self.base, open)?;
        for own in [Some(self.run()), Some(self.stage()), self.tensors()].into_iter().flatten() {
            builder.create(&own)?;
            fs::set_permissions(&own, Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    /// Takes it away, from the attempt in this directory.
    pub(super) fn remove(&self, dir: &Path) {
        remove(&self.base);
        let _ = fs::remove_file(dir.join(FILE));
    }

    /// Opens the socket, for whoever the directory belongs to. One that is there is replaced. Wants a tokio runtime.
    pub(super) fn bind(&self) -> io::Result<UnixListener> {
        let beside = self.stage().join("sock");
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = bind_at(&beside)?;
        // The directory says who may: which user a container has is not always known here.
        fs::set_permissions(&beside, Permissions::from_mode(0o666))?;
        if nix::unistd::geteuid().is_root() {
            let whose = fs::symlink_metadata(self.run())?;
            lchown(&beside, Some(whose.uid()), Some(whose.gid()))?;
        }
        fs::rename(&beside, self.socket())?;
        Ok(listener)
    }

    /// Tells the task until when it may take to end. The first word stands. Touches the disk.
    pub(super) fn tell_end(&self, at: &str) -> io::Result<()> {
        if fs::symlink_metadata(self.preempt_at()).is_ok() {
            return Ok(());
        }
        let beside = self.stage().join(PREEMPT_AT);
        fs::write(&beside, format!("{at}\n"))?;
        fs::set_permissions(&beside, Permissions::from_mode(0o644))?;
        fs::rename(&beside, self.preempt_at())
    }

    fn run(&self) -> PathBuf {
        self.base.join("run")
    }

    fn preempt_at(&self) -> PathBuf {
        self.run().join(PREEMPT_AT)
    }

    fn socket(&self) -> PathBuf {
        self.run().join("sock")
    }

    /// Where models come and updates go, if the job trains.
    pub(super) fn tensors(&self) -> Option<PathBuf> {
        self.trains.then(|| self.base.join("tensors"))
    }

    /// Where only the node writes, on the same file system.
    pub(super) fn stage(&self) -> PathBuf {
        self.base.join("stage")
    }

    /// What the task is to see, and where: beneath `/mesh`, or in place. `python` is the package of that language.
    pub(super) fn mounts(&self, python: &Path, in_place: bool) -> Vec<Bind> {
        let own = [("run", Some(self.run())), ("tensors", self.tensors())];
        let own = own.into_iter().filter_map(|(name, from)| Some((name, from?, false)));
        let given = own.chain([("python", python.to_path_buf(), true)]);
        let bind = |(name, from, read_only): (&str, PathBuf, bool)| {
            let to = if in_place { from.clone() } else { Path::new(TOP).join(name) };
            Bind { from, to, read_only }
        };
        given.map(bind).collect()
    }

    /// Tells where the task finds all of it.
    pub(super) fn tell(&self, places: &mut Places, python: &Path, in_place: bool) {
        let seen = |path: PathBuf, name: &str| match in_place {
            true => path.display().to_string(),
            false => format!("{TOP}/{name}"),
        };
        places.socket = Some(seen(self.socket(), "run/sock"));
        places.preempt_at = Some(seen(self.preempt_at(), "run/preempt-at"));
        places.tensors = self.tensors().map(|tensors| seen(tensors, "tensors"));
        places.python = Some(seen(python.to_path_buf(), "python"));
    }
}

/// Whether a directory is in memory, and has so much room.
fn has_room(path: &Path, bytes: u64) -> bool {
    let is_memory = statfs(path).is_ok_and(|about| about.filesystem_type() == TMPFS_MAGIC);
    let free = statvfs(path)
        .map_or(0, |about| about.blocks_available().saturating_mul(about.fragment_size()));
    is_memory && free >= bytes
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::JobId;

    use super::*;

    fn wanted(root: &Path, job: [u8; 16]) -> Wanted {
        let key = Key { job: JobId(job), task: 1, fence: 40 };
        Wanted {
            key,
            dir: root.join("work").join(key.to_string()),
            root: root.to_path_buf(),
            trains: false,
            model_bytes: 0,
            in_place: true,
        }
    }

    fn modes(desk: &Desk) -> [u32; 2] {
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        [mode(desk.base.clone()), mode(desk.run())]
    }

    #[tokio::test]
    async fn a_desk_is_found_again_and_its_socket_opened_again() {
        let temp = tempfile::tempdir().unwrap();
        let wanted = wanted(temp.path(), [7; 16]);
        let desk = Desk::make(&wanted).unwrap();
        assert!(desk.base.starts_with(temp.path()), "{desk:?}");
        assert_eq!(modes(&desk), [0o711, 0o700]);
        for _ in 0..2 {
            let found = Desk::find(&wanted.dir).unwrap();
            assert_eq!(found, desk);
            let listener = found.bind().unwrap();
            let connect = tokio::net::UnixStream::connect(found.socket());
            let (there, here) = tokio::join!(connect, listener.accept());
            assert!(there.is_ok() && here.is_ok());
            // The first word stands.
            found.tell_end(["soon", "later"][usize::from(found.preempt_at().exists())]).unwrap();
            assert_eq!(fs::read_to_string(found.preempt_at()).unwrap(), "soon\n");
        }
        desk.remove(&wanted.dir);
        assert!(!desk.base.exists() && Desk::find(&wanted.dir).is_none());
    }

    #[test]
    fn what_trains_meets_in_memory_and_leaves_nothing_there() {
        let temp = tempfile::tempdir().unwrap();
        let mut job = [9; 16];
        job[..8].copy_from_slice(&crate::random::<8>());
        let wanted = Wanted { trains: true, in_place: false, ..wanted(temp.path(), job) };
        let desk = Desk::make(&wanted).unwrap();
        assert_eq!(desk.base.starts_with(MEMORY), has_room(Path::new(MEMORY), LEAST_ROOM));
        assert_eq!(modes(&desk), [0o700, 0o700]);
        fs::write(desk.tensors().unwrap().join("out"), "x").unwrap();
        let again = Desk::make(&wanted).unwrap();
        assert!(!again.tensors().unwrap().join("out").exists(), "it begins anew");
        again.remove(&wanted.dir);
        assert!(!desk.base.exists());
        let huge = Wanted { model_bytes: u64::MAX, ..wanted };
        let desk = Desk::make(&huge).unwrap();
        assert!(desk.base.starts_with(temp.path()), "{desk:?}");
    }

    #[test]
    fn a_task_sees_short_paths_or_its_own_ones() {
        let desk = Desk { base: "/x".into(), trains: true };
        let python = Path::new("/sdk/1");
        let to = |in_place| -> Vec<(String, bool)> {
            let mounts = desk.mounts(python, in_place).into_iter();
            mounts.map(|bind| (bind.to.display().to_string(), bind.read_only)).collect()
        };
        let expect = |paths: [&str; 3]| -> Vec<(String, bool)> {
            paths.into_iter().map(str::to_owned).zip([false, false, true]).collect()
        };
        assert_eq!(to(false), expect(["/mesh/run", "/mesh/tensors", "/mesh/python"]));
        assert_eq!(to(true), expect(["/x/run", "/x/tensors", "/sdk/1"]));
        let plain = Desk { trains: false, ..desk.clone() };
        assert_eq!(plain.mounts(python, false).len(), 2);
    }
}
