//! What is to be run, how it ended, and the files in which both are kept.
//!
//! ```text
//! DIR/            0700, the node's: what an attempt may not touch
//!   launch        [`Record`]: what was asked, and what the executor added; rewritten without the environment at the end
//!   lock          held by whoever looks after the attempt; its text is that process's number
//!   control       a named pipe: `stop MS` or `kill`
//!   exit          [`Ended`]: there once it is over, and not before
//!   exit.room     keeps room for it on the disk, which the attempt itself may fill; gone once it is over
//!   log/          what it wrote: see [`super::log`]
//!   shim.log      what the supervisor itself had to say: empty if all went well
//!   root/ tmp/    a mount point, and the attempt's /tmp
//! ```
//!
//! The directory in which an attempt works ([`Launch::work`]) is another one, or lies beneath under a name of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cgroup::Group;
use super::log::Rotation;
use crate::dir::{self, DirError};

/// Where an attempt works, as it sees it itself.
pub const WORK: &str = "/work";

pub(super) const LAUNCH: &str = "launch";
pub(super) const LOCK: &str = "lock";
pub(super) const CONTROL: &str = "control";
pub(super) const EXIT: &str = "exit";
const EXIT_ROOM: &str = "exit.room";
pub(super) const LOG: &str = "log";
pub(super) const ERRORS: &str = "shim.log";
pub(super) const ROOT: &str = "root";
pub(super) const TMP: &str = "tmp";

/// How much room is kept for the word about an end: a few blocks of any file system, and of its directories.
const EXIT_BYTES: usize = 64 << 10;
/// How often an end is tried to be written down: a file system may take a while to give back what was kept.
const EXIT_TRIES: u32 = 20;
/// Between two of them.
const EXIT_AGAIN: Duration = Duration::from_millis(250);

/// Where programs are looked for if nobody says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// By this variable the processes of an attempt are known.
pub(super) const MARK: &str = "MESH_RUN";
/// What can be mounted on only where it is there already: nothing is made in the host's own directories.
const HOSTS_OWN: [&str; 21] = [
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "media",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "srv",
    "sys",
    "usr",
    "var",
    "lost+found",
];

/// What is to be run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The attempt's own directory. Made if it is not there.
    pub dir: PathBuf,
    /// Unique on this node: job, task and attempt. Letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The program and its arguments. In a container it takes the place of the image's own entry point.
    pub argv: Vec<String>,
    /// The environment, all of it but a few defaults: see [`environment`].
    pub env: BTreeMap<String, String>,
    /// The directory in which it works, and which it may write: [`WORK`] as it sees it, unless
    /// [`super::Capabilities::mounts`] says that processes see the host's paths here.
    pub work: PathBuf,
    /// What else it sees. Where processes cannot be given mounts, only what they find in its own place.
    pub mounts: Vec<Bind>,
    /// In which image; `None` for a plain process.
    pub image: Option<String>,
    /// What it is held to.
    pub limits: Limits,
    /// GPUs that it has for itself: `GPU-…`.
    pub gpus: Vec<String>,
    /// Ports on which it listens.
    pub ports: Vec<Port>,
    /// Whom it can reach.
    pub network: Network,
    /// How long it may take to end once it was asked to, if the time limit asks it.
    pub grace_ms: u64,
    /// How long it may run.
    pub time_limit_ms: Option<u64>,
    /// How much of what it writes is kept.
    pub log: Rotation,
}

/// A directory or a file of the host that an attempt sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// On the host.
    pub from: PathBuf,
    /// As the attempt sees it: `/data/train`. For a process the directory at the top must be one that hosts do not have.
    pub to: PathBuf,
    /// Whether it may only be read. What may be written is given to the attempt's user, with all that is in it.
    pub read_only: bool,
}

/// What an attempt is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most processor time it gets, in thousandths of a core; `None` for whatever is idle.
    pub cpu_milli: Option<u64>,
    /// Its share where processors are short, in thousandths of a core.
    pub cpu_weight_milli: u64,
    /// Whoever takes more is killed.
    pub memory_bytes: Option<u64>,
    /// The most processes and threads.
    pub pids: u32,
    /// The size of `/dev/shm`; 0 for what is usual.
    pub shm_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_milli: None,
            cpu_weight_milli: 1000,
            memory_bytes: None,
            // Data loaders with a thread for each core, on a large machine, a few times over; a fork bomb is stopped early.
            pids: 32_768,
            shm_bytes: 0,
        }
    }
}

/// A port on which an attempt listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// What the job calls it.
    pub name: String,
    /// As the attempt sees it.
    pub inside: u16,
    /// On the host. For a process both are one.
    pub outside: u16,
}

/// Whom an attempt can reach.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Network {
    /// A process: as the host. A container: out, but no other container; others reach it by its ports.
    #[default]
    Apart,
    /// As `Apart`, and containers that name the same network reach one another.
    Shared(String),
    /// Nobody.
    None,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Why.
    pub exit: Exit,
    /// When it was started, by the node's clock; 0 if it never was.
    pub started_ms: u64,
    /// When it was over.
    pub ended_ms: u64,
    /// The most memory that it had at a time; 0 if that is not known.
    pub peak_memory_bytes: u64,
    /// The processor time that it used; 0 if that is not known.
    pub cpu_ms: u64,
}

/// Why an attempt is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It ended by itself.
    Code(u8),
    /// A signal ended it that was not ours.
    Signal(u8),
    /// It took more memory than it may.
    Memory,
    /// It ran longer than it may.
    Time,
    /// It was asked to end.
    Stopped {
        /// Whether it had to be killed.
        forced: bool,
    },
    /// Nobody knows how it ended.
    Lost(String),
    /// It never ran.
    CannotStart(String),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "killed: signal {signal}"),
            Exit::Memory => f.write_str("killed: memory"),
            Exit::Time => f.write_str("killed: time limit"),
            Exit::Stopped { forced: false } => f.write_str("stopped"),
            Exit::Stopped { forced: true } => f.write_str("stopped: it had to be killed"),
            Exit::Lost(why) => write!(f, "lost: {why}"),
            Exit::CannotStart(why) => write!(f, "could not start: {why}"),
        }
    }
}

impl Launch {
    /// What is wrong with it.
    pub fn flaw(&self) -> Option<String> {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let begins = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins(&self.name) || self.name.len() > 128 || !self.name.chars().all(fine) {
            return Some(format!("{:?} cannot be the name of an attempt", self.name));
        }
        if self.argv.first().is_none_or(String::is_empty) {
            return Some("there is nothing to run".into());
        }
        let is_odd = |key: &String, value: &String| {
            key.is_empty() || key.contains(['=', '\0']) || value.contains('\0')
        };
        if self.argv.iter().any(|word| word.contains('\0'))
            || self.env.iter().any(|(key, value)| is_odd(key, value))
        {
            return Some("its command or environment cannot be passed on".into());
        }
        if !self.dir.is_absolute() || !self.work.is_absolute() {
            return Some("its directories are not absolute".into());
        }
        let network = match &self.network {
            Network::Shared(name) => name.as_str(),
            Network::Apart | Network::None => "none",
        };
        if !begins(network) || !network.chars().all(fine) {
            return Some(format!("{network:?} cannot be the name of a network"));
        }
        let mut taken = BTreeSet::from([Path::new(WORK)]);
        let mounts = self.mounts.iter();
        mounts.into_iter().find_map(|bind| {
            if !taken.insert(&bind.to) {
                return Some(format!("{} is mounted twice", bind.to.display()));
            }
            bind.flaw()
        })
    }
}

impl fmt::Debug for Launch {
    /// Without the environment, in which there may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("name", &self.name)
            .field("argv", &self.argv)
            .field("image", &self.image)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Bind {
    fn flaw(&self) -> Option<String> {
        let to = self.to.display();
        let mut parts = self.to.components();
        let is_plain = parts.next() == Some(Component::RootDir)
            && parts.clone().next().is_some()
            && parts.all(|part| matches!(part, Component::Normal(_)));
        // A colon or a comma would mean something else to those who write mounts as text.
        if !is_plain || self.to.to_str().is_none_or(|to| to.contains([':', ',', '\0'])) {
            return Some(format!("nothing can be mounted at {to}"));
        }
        let kind = match std::fs::metadata(&self.from) {
            Ok(about) => about.file_type(),
            Err(error) => {
                return Some(format!("what should be mounted at {to} is not there: {error}"));
            }
        };
        if kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device() {
            return Some(format!(
                "what should be mounted at {to} is neither a directory nor a file"
            ));
        }
        None
    }

    /// The directory at the top of `to`, if hosts do not have it and it is the attempt's alone.
    pub(super) fn own_top(&self) -> Option<&str> {
        own_top(&self.to)
    }
}

pub(super) fn own_top(path: &Path) -> Option<&str> {
    let top = path.components().nth(1)?.as_os_str().to_str()?;
    (!HOSTS_OWN.contains(&top)).then_some(top)
}

/// Whose rights a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ids {
    /// The user.
    pub uid: u32,
    /// The group, and no other.
    pub gid: u32,
}

/// A launch, and what the executor has added: what a supervisor and a restarted node go by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) launch: Launch,
    /// The user of a process; `None` for the node's own.
    pub(super) user: Option<Ids>,
    /// Where its processes are counted and limited; `None` where that cannot be done.
    pub(super) group: Option<Group>,
    /// Whether a process has a root of its own, with [`WORK`] and its mounts, or sees what the node sees.
    pub(super) has_own_root: bool,
}

/// What is in the file, so that a later version knows what it reads.
#[derive(Serialize, Deserialize)]
enum Kept<T> {
    One(T),
}

impl Record {
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, DirError> {
        Ok(dir::read(&dir.join(LAUNCH))?.map(|Kept::One(record)| record))
    }

    /// Not synced: after a power cut nothing runs to which a node could attach.
    pub(super) fn write(&self, dir: &Path) -> Result<(), DirError> {
        dir::write_unsynced(&dir.join(LAUNCH), &Kept::One(self))
    }

    /// Takes the environment, in which there may be secrets, out of the file. Nobody needs it any more.
    pub(super) fn forget_environment(&self, dir: &Path) {
        let mut record = self.clone();
        record.launch.env.clear();
        // Whoever removes the directory removes the file.
        let _ = record.write(dir);
    }
}

impl Ended {
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, DirError> {
        Ok(dir::read(&dir.join(EXIT))?.map(|Kept::One(ended)| ended))
    }

    /// Keeps room for the word about the end, before anything runs that may fill the disk.
    pub(super) fn reserve(dir: &Path) -> io::Result<()> {
        let mut options = File::options();
        options.create(true).truncate(true).write(true).mode(0o600);
        // Not zeros: for those a file system may keep no room.
        options.open(dir.join(EXIT_ROOM))?.write_all(&[0xa5; EXIT_BYTES])
    }

    /// Durable when it returns. What was kept for it is given back first.
    pub(super) fn write(&self, dir: &Path) -> Result<(), DirError> {
        // It may never have been there: a supervisor of an earlier version kept none.
        let _ = fs::remove_file(dir.join(EXIT_ROOM));
        let mut tries = 1;
        loop {
            match dir::write(&dir.join(EXIT), &Kept::One(self)) {
                Err(error) if tries < EXIT_TRIES && is_full(&error) => tries += 1,
                written => return written,
            }
            std::thread::sleep(EXIT_AGAIN);
        }
    }
}

/// Whether it was for want of room on the disk.
pub(crate) fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The environment of a process: defaults, what was asked for, and what is so whatever was asked for.
pub(super) fn environment(record: &Record) -> BTreeMap<String, String> {
    let Record { launch, has_own_root, .. } = record;
    let set = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    env.extend(set(&[("PATH", PATH), ("LANG", "C.UTF-8"), ("USER", "mesh"), ("LOGNAME", "mesh")]));
    if *has_own_root {
        env.extend(set(&[("HOME", WORK), ("TMPDIR", "/tmp")]));
    } else {
        // It is the node's own user: its programs are found where the node's are.
        env.extend(std::env::var("PATH").ok().map(|path| ("PATH".to_owned(), path)));
        let places = [("HOME", launch.work.clone()), ("TMPDIR", launch.dir.join(TMP))];
        env.extend(places.map(|(key, path)| (key.to_owned(), path.to_string_lossy().into_owned())));
    }
    env.extend(launch.env.clone());
    let gpus = launch.gpus.join(",");
    let visible = if gpus.is_empty() { "void" } else { &gpus };
    env.extend(set(&[
        (MARK, &launch.name),
        // Empty: none. Left out it would mean all, those of other attempts among them.
        ("CUDA_VISIBLE_DEVICES", &gpus),
        ("NVIDIA_VISIBLE_DEVICES", visible),
    ]));
    env
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Something small to run, in a directory that is there.
    pub(crate) fn small(dir: &Path) -> Launch {
        Launch {
            dir: dir.join("attempt"),
            name: "job-0-1".into(),
            argv: vec!["true".into()],
            env: BTreeMap::new(),
            work: dir.join("work"),
            mounts: Vec::new(),
            image: None,
            limits: Limits::default(),
            gpus: Vec::new(),
            ports: Vec::new(),
            network: Network::Apart,
            grace_ms: 1000,
            time_limit_ms: None,
            log: Rotation::default(),
        }
    }

    fn record(launch: Launch) -> Record {
        Record { launch, user: None, group: None, has_own_root: true }
    }

    #[test]
    fn what_is_kept_is_found_again_and_secrets_go_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Record::read(dir.path()).unwrap().is_none());
        let mut launch = small(dir.path());
        launch.env.insert("TOKEN".into(), "hush-hush".into());
        assert!(!format!("{launch:?}").contains("hush"));
        let record = record(launch);
        record.write(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path()).unwrap().as_ref(), Some(&record));
        record.forget_environment(dir.path());
        let bytes = std::fs::read(dir.path().join(LAUNCH)).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("hush"));
        let ended = Ended {
            exit: Exit::Signal(9),
            started_ms: 1,
            ended_ms: 2,
            peak_memory_bytes: 3,
            cpu_ms: 4,
        };
        ended.write(dir.path()).unwrap();
        assert_eq!(Ended::read(dir.path()).unwrap(), Some(ended));
    }

    #[test]
    fn how_it_ended_is_written_down_on_a_disk_that_is_full() {
        use nix::mount::{MsFlags, mount};
        use nix::sched::{CloneFlags, unshare};

        const NOTHING: Option<&str> = None;
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED: only root can make a small disk");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().to_path_buf();
        // In a thread that is thrown away, and its mounts with it.
        let tried = std::thread::spawn(move || -> nix::Result<()> {
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING)?;
            mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), Some("size=512k"))?;
            Ended::reserve(&dir).unwrap();
            let mut file = File::create(dir.join("greedy")).unwrap();
            while file.write_all(&[1u8; 4096]).is_ok() {}
            let full = fs::write(dir.join("one-more"), [1u8; 4096]).unwrap_err();
            assert!(is_full(&full), "{full}");
            let (exit, at) = (Exit::Code(1), 2);
            let ended =
                Ended { exit, started_ms: 1, ended_ms: at, peak_memory_bytes: 0, cpu_ms: 0 };
            ended.write(&dir).unwrap();
            assert_eq!(Ended::read(&dir).unwrap(), Some(ended));
            assert!(!dir.join(EXIT_ROOM).exists());
            Ok(())
        });
        if let Err(error) = tried.join().unwrap() {
            println!("SKIPPED: no small disk can be mounted here: {error}");
        }
    }

    #[test]
    fn what_cannot_be_launched_has_a_flaw() {
        let dir = tempfile::tempdir().unwrap();
        let fine = small(dir.path());
        assert_eq!(fine.flaw(), None);
        let bind = |to: &str| Bind { from: dir.path().into(), to: to.into(), read_only: true };
        let socket = dir.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let broken: [&dyn Fn(&mut Launch); 9] = [
            &|launch| launch.name = "../up".into(),
            &|launch| launch.name.clear(),
            &|launch| launch.argv.clear(),
            &|launch| drop(launch.env.insert("A=B".into(), "x".into())),
            &|launch| launch.work = "work".into(),
            &|launch| launch.mounts = vec![bind("/data/../etc")],
            &|launch| launch.mounts = vec![bind("/data/a"), bind("/data/a")],
            &|launch| launch.mounts = vec![bind(WORK)],
            &|launch| {
                let (from, to) = (socket.clone(), "/run/docker.sock".into());
                launch.mounts = vec![Bind { from, to, read_only: true }];
            },
        ];
        for (n, breaks) in broken.into_iter().enumerate() {
            let mut launch = fine.clone();
            breaks(&mut launch);
            assert!(launch.flaw().is_some(), "{n}");
        }
    }

    #[test]
    fn the_environment_is_what_was_asked_for_and_little_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut launch = small(dir.path());
        launch.env.insert("HOME".into(), "/elsewhere".into());
        launch.env.insert("CUDA_VISIBLE_DEVICES".into(), "0,1,2,3".into());
        let env = environment(&record(launch.clone()));
        assert_eq!(env["HOME"], "/elsewhere");
        assert_eq!((&*env["CUDA_VISIBLE_DEVICES"], &*env["NVIDIA_VISIBLE_DEVICES"]), ("", "void"));
        assert_eq!(env[MARK], "job-0-1");
        assert_eq!(env.len(), 9, "{env:?}");
        launch.gpus = vec!["GPU-1".into(), "GPU-2".into()];
        assert_eq!(environment(&record(launch))["CUDA_VISIBLE_DEVICES"], "GPU-1,GPU-2");
    }
}
