//! Plain processes, as the node sees them: each behind a supervisor of its own, which outlives the node.
//!
//! The node is the supervisor's parent only by chance. It hears of its end as a parent does, or after a restart by a
//! handle on its process; either way what counts is `exit` in the attempt's directory, and whether `lock` is free.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::cgroup::Group;
use super::launch::{CONTROL, ERRORS, Ended, Exit, Ids, LOCK, LOG, ROOT, Record, TMP};
use super::log::Stream;
use super::session::{Control, Session, Size};
use super::shim::{Order, STARTED, holder};
use super::{ExecError, StartError, Usage, tree};
use crate::clock::now;

/// A supervisor that has said nothing by then is ended: it takes a few milliseconds where nothing is wrong.
const STARTING: Duration = Duration::from_secs(20);
/// How often a supervisor is looked for where the system gives no handle on it.
const LOOK: Duration = Duration::from_millis(100);
/// How long one that has just ended may hold its lock.
const LETTING_GO: Duration = Duration::from_secs(2);
/// How long a supervisor may take to end what it looks after: longer than it gives the killed to be gone.
const ENDING: Duration = Duration::from_secs(7);
/// Pieces of output that wait for their reader; then the program waits.
const QUEUE_PIECES: usize = 16;
/// How much is read at a time.
const BLOCK: usize = 32 << 10;

/// A process that was started or found again.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) record: Record,
    /// What `mesh` is started by.
    pub(super) program: PathBuf,
}

/// Starts a supervisor, and waits until it has started its task.
pub(super) async fn start(process: &Process) -> Result<(Child, u64), StartError> {
    let dir = &process.record.launch.dir;
    let errors = File::options().append(true).create(true).mode(0o600).open(dir.join(ERRORS));
    let errors = errors.map_err(StartError::io("write", &dir.join(ERRORS)))?;
    let mut command = Command::new(&process.program);
    command.arg0("mesh").arg("shim").arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).kill_on_drop(false);
    let mut child = command.spawn().map_err(StartError::io("run", &process.program))?;
    let mut said = String::new();
    let heard = match child.stdout.take() {
        Some(pipe) => timeout(STARTING, BufReader::new(pipe).read_line(&mut said)).await,
        None => Ok(Ok(0)),
    };
    let line = said.trim_end();
    let started = line.strip_prefix(STARTED).and_then(|at| at.trim().parse().ok());
    if let Some(at) = started {
        return Ok((child, at));
    }
    if heard.is_err() {
        let _ = child.start_kill();
    }
    let _ = child.wait().await;
    // A word of its own, or else what it said as it fell.
    let fell = || fs::read_to_string(dir.join(ERRORS)).unwrap_or_default().trim().to_owned();
    let why = if line.is_empty() { fell() } else { line.to_owned() };
    let why = if why.is_empty() { "its supervisor ended without a word".into() } else { why };
    Err(StartError::Refused(why))
}

/// Makes the attempt's directory, and gives the task what it works in. Takes its time if there is much of it.
pub(super) fn prepare(record: &Record) -> io::Result<()> {
    let launch = &record.launch;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    for dir in [&launch.dir, &launch.dir.join(LOG), &launch.dir.join(ROOT), &launch.dir.join(TMP)] {
        builder.create(dir)?;
    }
    // What is in there is the node's own business, whoever made it.
    fs::set_permissions(&launch.dir, fs::Permissions::from_mode(0o700))?;
    builder.create(&launch.work)?;
    match mkfifo(&launch.dir.join(CONTROL), Mode::from_bits_truncate(0o600)) {
        Err(nix::errno::Errno::EEXIST) => {}
        made => made?,
    }
    Ended::reserve(&launch.dir)?;
    if let Some(ids) = record.user {
        give(&launch.work, ids)?;
        give(&launch.dir.join(TMP), ids)?;
        for bind in launch.mounts.iter().filter(|bind| !bind.read_only) {
            give(&bind.from, ids)?;
        }
    }
    Ok(())
}

/// Gives a tree to a user. A file with another name elsewhere stays whose it is: it may be an object of the store.
pub(super) fn give(path: &Path, ids: Ids) -> io::Result<()> {
    let about = fs::symlink_metadata(path)?;
    if about.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), ids)?;
        }
    }
    let is_theirs = (about.uid(), about.gid()) == (ids.uid, ids.gid);
    if is_theirs || (!about.is_dir() && about.nlink() > 1) {
        return Ok(());
    }
    lchown(path, Some(ids.uid), Some(ids.gid))
}

/// Who looks after an attempt.
pub(super) enum Keeper {
    /// A supervisor.
    Lives {
        /// When it started its task; 0 if it has not yet.
        started_ms: u64,
        /// Tells when it ends, if the system has such.
        handle: Option<OwnedFd>,
    },
    /// Nobody: and nobody begins while this is held.
    Nobody(File),
}

/// Looks whether an attempt has a supervisor.
pub(super) fn keeper(dir: &Path) -> io::Result<Keeper> {
    let mut options = File::options();
    let lock = options.create(true).truncate(false).write(true).mode(0o600).open(dir.join(LOCK))?;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(Keeper::Nobody(lock)),
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // Its number is written a moment after the lock is taken.
        let Some((pid, started_ms)) = holder(dir) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let handle = raw.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Still held now: then the handle is on the one that holds it, and not on a later process.
        match lock.try_lock() {
            Ok(()) => return Ok(Keeper::Nobody(lock)),
            Err(fs::TryLockError::WouldBlock) => return Ok(Keeper::Lives { started_ms, handle }),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Waits for the end of a supervisor, and tells what became of its task.
pub(super) async fn watch(record: Record, child: Option<Child>, handle: Option<OwnedFd>) -> Ended {
    // Not a pipe, but it can be waited for like one.
    let handle = handle.map(|handle| pipe::Receiver::from_file_unchecked(File::from(handle)));
    match (child, handle) {
        (Some(mut child), _) => drop(child.wait().await),
        (None, Some(Ok(handle))) => drop(handle.readable().await),
        (None, _) => {
            let dir = record.launch.dir.clone();
            while matches!(keeper(&dir), Ok(Keeper::Lives { .. })) {
                sleep(LOOK).await;
            }
        }
    }
    let told = tokio::task::spawn_blocking(move || close(&record));
    told.await.unwrap_or_else(|error| lost(&error.to_string()))
}

/// What became of an attempt whose supervisor is gone. What is left of it is ended.
pub(super) fn close(record: &Record) -> Ended {
    let dir = &record.launch.dir;
    let begun = crate::clock::steady();
    let held = loop {
        match keeper(dir) {
            Ok(Keeper::Nobody(lock)) => break Some(lock),
            Ok(Keeper::Lives { .. }) if begun.elapsed() < LETTING_GO => {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Somebody else has it, or nobody can tell: then its end is for others to write down.
            _ => break None,
        }
    };
    let known = Ended::read(dir);
    if let Some(group) = &record.group {
        if !matches!(known, Ok(Some(_))) {
            group.kill();
        }
        group.remove();
    } else if !matches!(known, Ok(Some(_))) {
        tree::signal(&tree::marked(&record.launch.name), Signal::SIGKILL);
    }
    match known {
        Ok(Some(ended)) => ended,
        Ok(None) => {
            let ended = lost("its supervisor is gone, and with it how it ended");
            if held.is_some() && ended.write(dir).is_ok() {
                record.forget_environment(dir);
            }
            ended
        }
        Err(error) => lost(&error.to_string()),
    }
}

/// Ends an attempt whose node is gone, with everything that it has started. While what is returned is held, a supervisor that was
/// only just started does not begin; `None` if one could not be ended. Blocks, for some seconds at the most.
pub(super) fn end(record: &Record) -> Option<File> {
    let dir = &record.launch.dir;
    let process = Process { record: record.clone(), program: PathBuf::new() };
    let begun = crate::clock::steady();
    let lock = loop {
        match keeper(dir) {
            Ok(Keeper::Nobody(lock)) => break Some(lock),
            Ok(Keeper::Lives { .. }) if begun.elapsed() < ENDING => {
                // One that does not listen is killed below.
                let _ = process.order(Order::Kill);
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => break None,
        }
    };
    if lock.is_some() && matches!(Ended::read(dir), Ok(Some(_))) {
        // Its supervisor has seen to the rest.
        record.group.iter().for_each(Group::remove);
        return lock;
    }
    if lock.is_none() {
        // The lock is held, so the number is that of who holds it.
        let pids: Vec<u32> = holder(dir).map(|(pid, _)| pid).into_iter().collect();
        tree::signal(&pids, Signal::SIGKILL);
    }
    match &record.group {
        Some(group) => {
            group.kill();
            group.remove();
        }
        None => tree::signal(&tree::marked(&record.launch.name), Signal::SIGKILL),
    }
    lock
}

/// The end of something of which nobody knows more.
pub(super) fn lost(why: &str) -> Ended {
    let exit = Exit::Lost(why.to_owned());
    Ended { exit, started_ms: 0, ended_ms: now().0, peak_memory_bytes: 0, cpu_ms: 0 }
}

impl Process {
    /// Tells the supervisor. One that is gone needs not be told.
    pub(super) fn order(&self, order: Order) -> io::Result<()> {
        let mut options = File::options();
        options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        match options.open(self.record.launch.dir.join(CONTROL)) {
            Ok(mut pipe) => pipe.write_all(order.line().as_bytes()),
            // Nobody reads there.
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENXIO as i32) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        if let Some(group) = &self.record.group {
            let used = group.used();
            return Some(Usage { memory_bytes: used.memory_bytes, cpu_ms: used.cpu_ms });
        }
        let (supervisor, _) = holder(&self.record.launch.dir)?;
        let members = tree::descendants(supervisor);
        Some(Usage { memory_bytes: tree::memory(&members), cpu_ms: tree::processor_ms(&members) })
    }

    /// Runs a further command in the attempt.
    pub(super) fn exec(&self, argv: &[String], tty: Option<Size>) -> Result<Session, ExecError> {
        let mut command = Command::new(&self.program);
        command.arg0("mesh").arg("shim").arg(&self.record.launch.dir).arg("--").args(argv);
        command.kill_on_drop(true);
        let (send, output) = mpsc::channel(QUEUE_PIECES);
        let Some(size) = tty else {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            let input = child.stdin.take().ok_or_else(no_pipe)?;
            let out = child.stdout.take().ok_or_else(no_pipe)?;
            let err = child.stderr.take().ok_or_else(no_pipe)?;
            tokio::spawn(pass_on(out, Stream::Out, send.clone()));
            tokio::spawn(pass_on(err, Stream::Err, send));
            return Ok(Session {
                input: Box::pin(input),
                output,
                control: Control::process(child, None),
            });
        };
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).map_err(io::Error::from)?;
        rustix::pty::grantpt(&master).map_err(io::Error::from)?;
        rustix::pty::unlockpt(&master).map_err(io::Error::from)?;
        resize(&master, size)?;
        let name = rustix::pty::ptsname(&master, Vec::new()).map_err(io::Error::from)?;
        let name = name.into_string().map_err(io::Error::other)?;
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
        let slave = options.open(name)?;
        if let Some(ids) = self.record.user {
            // So that the program can open its terminal by name.
            std::os::unix::fs::fchown(&slave, Some(ids.uid), Some(ids.gid))?;
        }
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        command.env("TERM", "xterm-256color");
        let child = command.spawn()?;
        // The parent's ends of the terminal's other side: kept, it would never come to an end.
        drop(command);
        rustix::io::ioctl_fionbio(&master, true).map_err(io::Error::from)?;
        let duplicate = || master.try_clone().map(File::from);
        let out = pipe::Receiver::from_file_unchecked(duplicate()?)?;
        let input = pipe::Sender::from_file_unchecked(duplicate()?)?;
        tokio::spawn(pass_on(out, Stream::Out, send));
        Ok(Session {
            input: Box::pin(input),
            output,
            control: Control::process(child, Some(master)),
        })
    }
}

/// Tells a terminal how large its window is.
pub(super) fn resize(terminal: impl AsFd, size: Size) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}

/// Hands on what is read, until it ends or nobody wants it. A terminal ends with an error.
async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    stream: Stream,
    to: mpsc::Sender<(Stream, Bytes)>,
) {
    let mut block = BytesMut::with_capacity(BLOCK);
    loop {
        block.reserve(BLOCK);
        match from.read_buf(&mut block).await {
            Ok(0) | Err(_) => return,
            Ok(_) if to.send((stream, block.split().freeze())).await.is_err() => return,
            Ok(_) => {}
        }
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("a pipe that was asked for is not there")
}

#[cfg(test)]
mod tests {
    use super::super::launch::tests::small;
    use super::*;

    fn record(launch: super::super::Launch) -> Record {
        Record { launch, user: None, group: None, has_own_root: false }
    }

    #[test]
    fn a_directory_is_the_nodes_alone_and_can_be_prepared_twice() {
        let temp = tempfile::tempdir().unwrap();
        let record = record(small(temp.path()));
        for _ in 0..2 {
            prepare(&record).unwrap();
        }
        let mode = fs::metadata(&record.launch.dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let order = Process { record, program: "mesh".into() }.order(Order::Kill);
        order.expect("nobody needs to be told");
    }

    #[test]
    fn an_attempt_without_a_supervisor_is_lost_once_and_for_all() {
        let temp = tempfile::tempdir().unwrap();
        let mut launch = small(temp.path());
        launch.name = "nobody-0-1".into();
        let record = record(launch);
        prepare(&record).unwrap();
        assert!(matches!(keeper(&record.launch.dir).unwrap(), Keeper::Nobody(_)));
        let ended = close(&record);
        assert!(matches!(&ended.exit, Exit::Lost(why) if why.contains("supervisor")));
        assert_eq!(close(&record), ended);
    }

    #[test]
    fn what_a_gone_node_has_left_is_ended_and_kept_from_beginning() {
        let temp = tempfile::tempdir().unwrap();
        let mut launch = small(temp.path());
        launch.name = format!("left-{}-1", std::process::id());
        let mut task = std::process::Command::new("sleep");
        let mut task =
            task.arg("600").env(super::super::launch::MARK, &launch.name).spawn().unwrap();
        let record = record(launch);
        prepare(&record).unwrap();
        // It may not have become `sleep` yet.
        while tree::marked(&record.launch.name).is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let held = end(&record).expect("nobody looks after it");
        assert!(!task.wait().unwrap().success());
        let lock = || File::options().write(true).open(record.launch.dir.join(LOCK)).unwrap();
        assert!(lock().try_lock().is_err());
        drop(held);
        assert!(lock().try_lock().is_ok());
    }

    #[test]
    fn a_supervisor_is_known_by_its_lock() {
        let temp = tempfile::tempdir().unwrap();
        let record = record(small(temp.path()));
        prepare(&record).unwrap();
        let dir = &record.launch.dir;
        let lock = File::create(dir.join(LOCK)).unwrap();
        lock.lock().unwrap();
        fs::write(dir.join(LOCK), format!("{} 17", std::process::id())).unwrap();
        let keeper = keeper(dir).unwrap();
        assert!(matches!(keeper, Keeper::Lives { started_ms: 17, .. }));
    }

    #[test]
    fn what_may_be_written_is_the_attempts_own_and_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED: only root can give files away");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let mut launch = small(temp.path());
        for (name, read_only) in [("own", false), ("data", true)] {
            let from = temp.path().join(name);
            fs::create_dir(&from).unwrap();
            fs::write(from.join("file"), "x").unwrap();
            let to = Path::new("/mesh").join(name);
            launch.mounts.push(super::super::Bind { from, to, read_only });
        }
        let user = Some(Ids { uid: 65534, gid: 65534 });
        prepare(&Record { user, ..record(launch) }).unwrap();
        let owner = |path: &str| fs::metadata(temp.path().join(path)).unwrap().uid();
        assert_eq!([owner("own"), owner("own/file")], [65534, 65534]);
        assert_eq!([owner("data"), owner("data/file")], [0, 0]);
    }

    #[test]
    fn what_has_another_name_elsewhere_is_not_given_away() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED: only root can give files away");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let work = temp.path().join("work");
        fs::create_dir_all(work.join("a/b")).unwrap();
        fs::write(temp.path().join("object"), "shared").unwrap();
        fs::hard_link(temp.path().join("object"), work.join("a/shared")).unwrap();
        fs::write(work.join("a/b/own"), "own").unwrap();
        std::os::unix::fs::symlink(temp.path().join("object"), work.join("link")).unwrap();
        give(&work, Ids { uid: 65534, gid: 65534 }).unwrap();
        let owner = |path: &str| fs::symlink_metadata(temp.path().join(path)).unwrap().uid();
        assert_eq!(owner("object"), 0);
        for theirs in ["work", "work/a/b", "work/a/b/own", "work/link"] {
            assert_eq!(owner(theirs), 65534, "{theirs}");
        }
    }
}
