//! Runs attempts: as plain processes or in containers, and finds them again after a restart.
//!
//! ```text
//!              ┌─ process.rs ──► shim.rs, a process of its own ──► the task
//! Executor ──► │                   cgroup.rs  limits, and who belongs to it
//!   start      │                   log.rs     what it writes
//!   attach     └─ docker.rs ───► the daemon ─────────────────────► the task
//! ```
//!
//! | read | for |
//! |---|---|
//! | [`launch`] | what is to be run, how it ended, the files in an attempt's directory |
//! | [`shim`] | the supervisor: it outlives the node, and ends an attempt as a whole |
//! | [`log`] | what an attempt writes: format, rotation, reading on |
//! | [`docker`] | containers and images |
//! | [`session`] | a further command in an attempt that runs |
//!
//! It decides nothing: what runs where, which data is fetched before and what is reported afterwards is for others.
//! Nor does it know of jobs: an attempt has a name, a directory, and an end.
//!
//! **Whose rights.** A node that runs as root gives every process a user of its own, one that no other attempt on the
//! machine has, and a root of its own in which it finds `/work` and its data and not the node's files. A node without
//! root runs processes as the user that it is: they can do what it can, and [`Capabilities`] says so.

pub mod cgroup;
pub mod docker;
mod ending;
pub mod launch;
pub mod log;
mod process;
pub mod session;
pub mod shim;
mod tree;

use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use tokio::sync::watch;

use self::cgroup::{Group, Version};
use self::docker::{Container, Docker, DockerError};
use self::launch::{Ids, Record};
use self::process::{Keeper, Process};
use self::session::{Session, Size};
use self::shim::Order;
use crate::clock::steady;
use crate::dir::DirError;

pub use self::launch::{Bind, Ended, Exit, Launch, Limits, Network, Port};

/// How soon a daemon that did not answer is tried again.
const TRY_DOCKER: Duration = Duration::from_secs(5);
/// The first of the users that attempts are given: a range that distributions leave alone.
const FIRST_USER: u32 = 1_900_000_000;
/// How many of them there are.
const USERS: u32 = 1 << 16;

/// How attempts are run on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// A word by which this node's groups and containers are known, such as the beginning of its key.
    pub node: String,
    /// What `mesh` is started by. The default is the program that runs, even if its file was replaced since.
    pub program: PathBuf,
    /// As whom processes run.
    pub process_user: ProcessUser,
}

impl Settings {
    /// The defaults, for the node of this name.
    pub fn new(node: impl Into<String>) -> Self {
        let program = "/proc/self/exe".into();
        Self { node: node.into(), program, process_user: ProcessUser::Apart }
    }
}

/// As whom processes run, on a node that is root. Others can only run them as themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProcessUser {
    /// Each as a user of its own that has no name: so no attempt can see into another.
    #[default]
    Apart,
    /// All as this one. They can see into one another.
    Fixed(Ids),
}

/// What this host can enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether processes run as other users than the node.
    pub users: bool,
    /// Whether processes have a root of their own: `/work`, and mounts where they were asked for. If not, they see the
    /// host's paths.
    pub mounts: bool,
    /// Which cgroups processes are counted in; `None` if their tree is followed instead.
    pub cgroup: Option<Version>,
    /// Whether the system limits memory. If not, the supervisor looks four times a second, and a quick one gets by.
    pub memory_limit: bool,
    /// Whether processor time is limited.
    pub cpu_limit: bool,
    /// Whether the number of processes is limited.
    pub pids_limit: bool,
    /// What is missing, and why; for people.
    pub lacks: Vec<String>,
}

/// Why an attempt was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot be run anywhere.
    #[error("it cannot be run: {0}")]
    Flaw(String),
    /// There is no daemon.
    #[error("no Docker answers on this node")]
    NoDocker,
    /// The daemon said no.
    #[error(transparent)]
    Docker(#[from] DockerError),
    /// It did not come to life.
    #[error("{0}")]
    Refused(String),
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
    /// Its directory said no.
    #[error(transparent)]
    Dir(#[from] DirError),
}

impl StartError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| StartError::Io { doing, path, source }
    }
}

/// Why an attempt was not found again.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its files cannot be read.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// Nobody can tell whether its supervisor lives.
    #[error("could not look after {}", path.display())]
    Io {
        /// The attempt's directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is in a container, and the daemon does not answer now.
    #[error("no Docker answers on this node")]
    NoDocker,
}

/// Why a command was not run in an attempt.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The attempt is over.
    #[error("it is over")]
    Over,
    /// The daemon said no.
    #[error(transparent)]
    Docker(#[from] DockerError),
    /// The system said no.
    #[error("the command could not be started")]
    Io(#[from] io::Error),
}

/// What an attempt uses now; 0 for what is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Without files that are only cached.
    pub memory_bytes: u64,
    /// Since its start.
    pub cpu_ms: u64,
}

/// Runs attempts on this node.
#[derive(Debug, Clone)]
pub struct Executor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    /// Where groups are made.
    place: Option<Group>,
    capabilities: Capabilities,
    users: Mutex<Users>,
    /// The daemon, once it has answered, and when it last did not.
    docker: tokio::sync::Mutex<(Option<Docker>, Option<Instant>)>,
}

impl Executor {
    /// Looks what this host can do. Touches the cgroups.
    pub fn open(settings: Settings) -> Self {
        let is_root = nix::unistd::geteuid().is_root();
        let mut lacks = Vec::new();
        let place = match cgroup::find(Path::new("/")) {
            Ok(place) => Some(place),
            Err(why) => {
                lacks.push(format!("limits are not enforced by the system: {why}"));
                None
            }
        };
        // In a thread that is thrown away, and its namespace with it.
        let tried = std::thread::spawn(|| unshare(CloneFlags::CLONE_NEWNS)).join();
        let mounts = is_root && matches!(tried, Ok(Ok(())));
        if !is_root {
            lacks.push(
                "the node is not root: its tasks have its own rights, and can read its files"
                    .into(),
            );
        } else if !mounts {
            lacks.push("the node may not make mounts: tasks see the host's paths".into());
        }
        let (memory_limit, cpu_limit, pids_limit) =
            place.as_ref().map(Group::limits).unwrap_or_default();
        if place.is_some() && !memory_limit {
            lacks.push("memory is not limited by the system: its cgroups do not offer it".into());
        }
        let capabilities = Capabilities {
            users: is_root,
            mounts,
            cgroup: place.as_ref().map(Group::version),
            memory_limit,
            cpu_limit,
            pids_limit,
            lacks,
        };
        let users = Mutex::new(Users { next: fastrand::u32(..USERS), taken: BTreeSet::new() });
        let docker = tokio::sync::Mutex::default();
        Self { inner: Arc::new(Inner { settings, place, capabilities, users, docker }) }
    }

    /// What this host can enforce.
    pub fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    /// The daemon, if one answers. One that starts later is found later.
    pub async fn docker(&self) -> Option<Docker> {
        let mut known = self.inner.docker.lock().await;
        let (docker, tried) = &mut *known;
        if docker.is_none() && tried.is_none_or(|tried| tried.elapsed() >= TRY_DOCKER) {
            *docker = Docker::connect().await;
            *tried = Some(steady());
        }
        docker.clone()
    }

    /// Starts an attempt. When this returns it runs, whatever becomes of this node.
    pub async fn start(&self, launch: Launch) -> Result<Attempt, StartError> {
        if let Some(flaw) = launch.flaw() {
            return Err(StartError::Flaw(flaw));
        }
        if launch.image.is_some() {
            return self.start_container(launch).await;
        }
        let lease = self.lease();
        let inner = self.inner.clone();
        let user = lease.as_ref().map(|lease| lease.ids);
        let prepared = tokio::task::spawn_blocking(move || inner.prepare(launch, user));
        let record = prepared.await.map_err(|error| StartError::Refused(error.to_string()))??;
        let process = Process { record, program: self.inner.settings.program.clone() };
        match process::start(&process).await {
            Ok((child, started_ms)) => {
                let ended = process::watch(process.record.clone(), Some(child), None);
                Ok(Attempt::running(Kind::Process(process), started_ms, ended, lease))
            }
            Err(error) => {
                let record = process.record;
                let left =
                    move || record.group.as_ref().map(|group| (group.kill(), group.remove()));
                // What is left over now is left over for good: the next sweep finds it.
                let _ = tokio::task::spawn_blocking(left).await;
                Err(error)
            }
        }
    }

    /// Finds an attempt again that was started in this directory, by whatever life of this node. `None` if none was.
    /// One that has ended is found, too, and says how.
    pub async fn attach(&self, dir: &Path) -> Result<Option<Attempt>, AttachError> {
        let Some(record) = Record::read(dir)? else { return Ok(None) };
        if record.launch.image.is_some() {
            return self.attach_container(record).await.map(Some);
        }
        let lease = record.user.map(|ids| self.hold(ids));
        let failed = |source| AttachError::Io { path: dir.to_path_buf(), source };
        let keeper = process::keeper(dir).map_err(failed)?;
        let program = self.inner.settings.program.clone();
        let kind = |record| Kind::Process(Process { record, program });
        Ok(Some(match keeper {
            Keeper::Lives { started_ms, handle } => {
                let ended = process::watch(record.clone(), None, handle);
                Attempt::running(kind(record), started_ms, ended, lease)
            }
            Keeper::Nobody(lock) => {
                drop(lock);
                let told = record.clone();
                let ended = tokio::task::spawn_blocking(move || process::close(&told)).await;
                let ended = ended.unwrap_or_else(|error| process::lost(&error.to_string()));
                Attempt::over(kind(record), ended)
            }
        }))
    }

    /// Ends and removes what this node has left behind and nobody knows of any more. `known` are names of attempts.
    pub async fn sweep(&self, known: &BTreeSet<String>) {
        if let Some(docker) = self.docker().await {
            docker.sweep(&self.inner.settings.node, known).await;
        }
        let Some(place) = self.inner.place.clone() else { return };
        let prefix = self.inner.prefix();
        let known = known.clone();
        let swept = tokio::task::spawn_blocking(move || {
            for name in place.below(&prefix) {
                if !known.contains(&name[prefix.len()..]) {
                    let group = place.child(&name);
                    group.kill();
                    group.remove();
                }
            }
        });
        // A group that stays is swept the next time.
        let _ = swept.await;
    }

    async fn start_container(&self, launch: Launch) -> Result<Attempt, StartError> {
        let docker = self.docker().await.ok_or(StartError::NoDocker)?;
        let record = Record { launch, user: None, group: None, has_own_root: true };
        let (container, started_ms, ended) =
            docker::start(docker, record, &self.inner.settings.node).await?;
        Ok(Attempt::running(Kind::Container(container), started_ms, ended, None))
    }

    async fn attach_container(&self, record: Record) -> Result<Attempt, AttachError> {
        let node = &self.inner.settings.node;
        if let Some(ended) = Ended::read(&record.launch.dir)? {
            // Its container may have been left behind.
            let docker = self.docker().await;
            if let Some(docker) = &docker {
                docker.discard(node, &record.launch).await;
            }
            return Ok(Attempt::over(Kind::Gone(record), ended));
        }
        let docker = self.docker().await.ok_or(AttachError::NoDocker)?;
        let (container, started_ms, ended) = docker::attach(docker, record, node);
        Ok(Attempt::running(Kind::Container(container), started_ms, ended, None))
    }

    fn lease(&self) -> Option<Lease> {
        if !self.inner.capabilities.users {
            return None;
        }
        match self.inner.settings.process_user {
            ProcessUser::Fixed(ids) => Some(Lease { ids, from: None }),
            ProcessUser::Apart => {
                let uid = self.inner.users().take();
                let ids = Ids { uid, gid: uid };
                Some(Lease { ids, from: Some(self.inner.clone()) })
            }
        }
    }

    /// Keeps others from a user that is in use.
    fn hold(&self, ids: Ids) -> Lease {
        let is_ours = ids.uid.checked_sub(FIRST_USER).is_some_and(|n| n < USERS);
        if is_ours {
            self.inner.users().taken.insert(ids.uid);
        }
        Lease { ids, from: is_ours.then(|| self.inner.clone()) }
    }
}

impl Inner {
    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prefix(&self) -> String {
        format!("{}.", self.settings.node)
    }

    /// Everything that must be there before a supervisor starts.
    fn prepare(&self, launch: Launch, user: Option<Ids>) -> Result<Record, StartError> {
        let dir = launch.dir.clone();
        let mut record =
            Record { launch, user, group: None, has_own_root: self.capabilities.mounts };
        process::prepare(&record).map_err(StartError::io("prepare", &dir))?;
        if let (Some(ids), false) = (user, record.has_own_root) {
            reachable(&record.launch.work, ids)?;
        }
        if let Some(place) = &self.place {
            let name = format!("{}{}", self.prefix(), record.launch.name);
            let made = place.create(&name, &record.launch.limits);
            record.group = Some(made.map_err(StartError::io("make the cgroup of", &dir))?);
        }
        if let Err(error) = record.write(&dir) {
            if let Some(group) = &record.group {
                group.remove();
            }
            return Err(error.into());
        }
        Ok(record)
    }
}

/// Whether a user can get to a directory by its path.
fn reachable(path: &Path, ids: Ids) -> Result<(), StartError> {
    use std::os::unix::fs::MetadataExt;
    let is_shut = |dir: &&Path| {
        std::fs::metadata(dir).is_ok_and(|about| {
            let bit = if about.uid() == ids.uid { 0o100 } else { 0o001 };
            about.mode() & bit == 0
        })
    };
    match path.ancestors().skip(1).find(is_shut) {
        Some(shut) => Err(StartError::Refused(format!(
            "a task without the node's rights cannot get through {}: this node may not make mounts",
            shut.display()
        ))),
        None => Ok(()),
    }
}

/// Which of the users are in use.
#[derive(Debug)]
struct Users {
    next: u32,
    taken: BTreeSet<u32>,
}

impl Users {
    /// The next one in turn, so that one who is gone is not followed soon.
    fn take(&mut self) -> u32 {
        // There are far more users than a machine can run attempts: some are always free.
        for _ in 0..USERS {
            let uid = FIRST_USER + self.next;
            self.next = (self.next + 1) % USERS;
            if self.taken.insert(uid) {
                return uid;
            }
        }
        FIRST_USER
    }
}

/// A user, for as long as an attempt runs.
#[derive(Debug)]
struct Lease {
    ids: Ids,
    /// Where it is given back.
    from: Option<Arc<Inner>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(from) = &self.from {
            from.users().taken.remove(&self.ids.uid);
        }
    }
}

/// An attempt that was started, or found again. Dropping it changes nothing for the attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kind: Kind,
    started_ms: u64,
    ended: watch::Receiver<Option<Ended>>,
}

#[derive(Debug)]
enum Kind {
    Process(Process),
    Container(Container),
    /// A container that ended in an earlier life of the node.
    Gone(Record),
}

impl Attempt {
    fn running(
        kind: Kind,
        started_ms: u64,
        ending: impl Future<Output = Ended> + Send + 'static,
        lease: Option<Lease>,
    ) -> Self {
        let (send, ended) = watch::channel(None);
        tokio::spawn(async move {
            let ended = ending.await;
            drop(lease);
            send.send_replace(Some(ended));
        });
        Self { shared: Arc::new(Shared { kind, started_ms, ended }) }
    }

    fn over(kind: Kind, ended: Ended) -> Self {
        let started_ms = ended.started_ms;
        let (_, ended) = watch::channel(Some(ended));
        Self { shared: Arc::new(Shared { kind, started_ms, ended }) }
    }

    fn record(&self) -> &Record {
        match &self.shared.kind {
            Kind::Process(process) => &process.record,
            Kind::Container(container) => &container.record,
            Kind::Gone(record) => record,
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.record().launch.name
    }

    /// Its own directory.
    pub fn dir(&self) -> &Path {
        &self.record().launch.dir
    }

    /// The ports on which it listens.
    pub fn ports(&self) -> &[Port] {
        &self.record().launch.ports
    }

    /// Where what it writes is kept: for [`log::Reader`] and [`log::Follower`].
    pub fn log_dir(&self) -> PathBuf {
        self.dir().join(launch::LOG)
    }

    /// When it was started, in milliseconds since 1970; 0 if that is not known yet.
    pub fn started_ms(&self) -> u64 {
        self.ended().map_or(self.shared.started_ms, |ended| ended.started_ms)
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.shared.ended.borrow().clone()
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Ended {
        let mut ended = self.shared.ended.clone();
        let told = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        // Only a runtime that is being shut down drops the one who would have told.
        told.unwrap_or_else(|| process::lost("the node stops"))
    }

    /// Asks all of it to end, and sees to it that after `grace` nothing of it is left. Returns at once.
    pub async fn stop(&self, grace: Duration) -> io::Result<()> {
        self.order(Order::Stop(grace)).await
    }

    /// Kills all of it. Returns at once.
    pub async fn kill(&self) -> io::Result<()> {
        self.order(Order::Kill).await
    }

    /// Runs a further command in it: with its rights, limits, directory and environment. On a terminal if `tty` says how
    /// large that is. Whoever asks drops the session when the attempt is over.
    pub async fn exec(&self, argv: &[String], tty: Option<Size>) -> Result<Session, ExecError> {
        if self.ended().is_some() {
            return Err(ExecError::Over);
        }
        match &self.shared.kind {
            Kind::Process(process) => process.exec(argv, tty),
            Kind::Container(container) => Ok(container.exec(argv, tty).await?),
            Kind::Gone(_) => Err(ExecError::Over),
        }
    }

    /// What it uses now; `None` if that cannot be told, or if it is over.
    pub async fn usage(&self) -> Option<Usage> {
        if self.ended().is_some() {
            return None;
        }
        match &self.shared.kind {
            Kind::Process(process) => process.usage(),
            Kind::Container(container) => container.usage().await,
            Kind::Gone(_) => None,
        }
    }

    async fn order(&self, order: Order) -> io::Result<()> {
        if self.ended().is_some() {
            return Ok(());
        }
        match &self.shared.kind {
            Kind::Process(process) => process.order(order),
            Kind::Container(container) => {
                container.order(order).await;
                Ok(())
            }
            Kind::Gone(_) => Ok(()),
        }
    }
}

/// Ends the attempt in this directory, whose node is gone: for whoever removes the node with all that it had. While what is
/// returned is held, it cannot begin again. A container is left alone. Blocks, for some seconds at the most.
pub fn end_left(dir: &Path) -> Option<File> {
    let mut record = Record::read(dir).ok().flatten()?;
    if record.launch.image.is_some() {
        return None;
    }
    // As it is called here.
    record.launch.dir = dir.to_path_buf();
    process::end(&record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_attempts_have_one_user() {
        let mut users = Users { next: USERS - 2, taken: BTreeSet::from([FIRST_USER]) };
        let taken: Vec<u32> = (0..4).map(|_| users.take() - FIRST_USER).collect();
        assert_eq!(taken, [USERS - 2, USERS - 1, 1, 2]);
        users.taken.remove(&(FIRST_USER + 1));
        assert_eq!(users.take() - FIRST_USER, 3, "one who is gone is not followed at once");
    }

    #[tokio::test]
    async fn what_cannot_be_launched_is_refused_at_once() {
        let temp = tempfile::tempdir().unwrap();
        let executor = Executor::open(Settings::new("test"));
        let mut launch = launch::tests::small(temp.path());
        launch.argv.clear();
        assert!(matches!(executor.start(launch).await, Err(StartError::Flaw(_))));
        assert!(executor.attach(temp.path()).await.unwrap().is_none());
        let lacks = &executor.capabilities().lacks;
        assert_eq!(
            lacks.is_empty(),
            executor.capabilities().memory_limit && executor.capabilities().mounts
        );
    }
}
