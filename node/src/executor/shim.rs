//! `mesh shim DIR`: the supervisor of one process, in a process of its own.
//!
//! ```text
//! node ──► shim ──► task ──► …            the node may end, and come back, at any time
//!            │ reads what they write, and keeps it in DIR/log
//!            │ reads DIR/control: stop, kill
//!            │ looks after time, grace, and memory where the system does not
//!            └ writes DIR/exit, ends
//! ```
//!
//! It holds the lock on `DIR/lock` while it lives: whoever finds it free knows that there is no supervisor, whatever
//! process has its number. It has a session of its own, one thread, no runtime, and adopts whatever its task leaves
//! behind, so that a process which put itself into the background is found and ended with the rest.
//!
//! What a task inherits is set up here before it is started, on the supervisor itself: the cgroup, the root (see
//! [`root`]), no way to gain privileges, the umask. Then the standard library starts it, as another user if the node
//! is root, in a process group of its own.
//!
//! `mesh shim DIR -- COMMAND` becomes a further process of an attempt that runs: see [`join`].

mod root;

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{dup2_stdout, geteuid, setsid};
use rustix::process::WaitOptions;

use super::ending::{Deed, Ending, Natural};
use super::launch::{CONTROL, Ended, Exit, LOCK, LOG, Network, Record, WORK, environment};
use super::log::{Splitter, Stream, Writer};
use super::tree;
use crate::clock::{now, steady};

/// How often memory is looked at where the system does not limit it.
const LOOK: Duration = Duration::from_millis(250);
/// How long the killed may take to be gone, and what they wrote to be read.
const GONE: Duration = Duration::from_secs(5);
/// What a pipe holds.
const BLOCK: usize = 64 << 10;
/// Before anything else on the machine is killed for want of memory, tasks are.
const TASK_SCORE: &str = "500";
/// A supervisor is not chosen: it is small, and knows what happened.
const OWN_SCORE: &str = "-1000";

/// A shell's exit code for a command that it may not run, or cannot.
const NOT_RUN: u8 = 126;
/// And for one that is not there.
const NOT_FOUND: u8 = 127;

/// What a supervisor tells the node that waits for it, on a line of its standard output.
pub(super) const STARTED: &str = "started";

/// Does what `mesh shim` was asked to.
pub fn main(words: &[OsString]) -> ExitCode {
    let done = match words {
        [dir] => supervise(Path::new(dir)).map_err(Unrun::from),
        [dir, dashes, command @ ..] if dashes == "--" && !command.is_empty() => {
            Err(join(Path::new(dir), command))
        }
        _ => {
            let why = "mesh shim is for mesh itself: it looks after what a node runs";
            Err(Unrun::from(why.to_owned()))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Unrun { text, code }) => {
            let _ = writeln!(io::stderr(), "{text}");
            ExitCode::from(code)
        }
    }
}

/// Why nothing was run: what is said of it, and the exit code, which is a shell's for a command that it cannot run.
#[derive(Debug, PartialEq, Eq)]
struct Unrun {
    text: String,
    code: u8,
}

impl From<String> for Unrun {
    fn from(error: String) -> Self {
        Self { text: format!("error: {error}"), code: NOT_RUN }
    }
}

impl Unrun {
    /// A program that is not there, or cannot be run; in three lines, which `mesh exec` knows.
    fn program(program: &str, error: &io::Error) -> Self {
        let (what, code) = match error.kind() {
            io::ErrorKind::NotFound => {
                (format!("there is no program {program:?} there"), NOT_FOUND)
            }
            _ => (format!("{program:?} cannot be run there"), NOT_RUN),
        };
        let hint = "name a program that the task could run itself, such as /bin/sh";
        Self { text: format!("error: {what}\ncause: {error}\ntry:   {hint}"), code }
    }
}

/// Runs an attempt from its start to its end.
fn supervise(dir: &Path) -> Result<(), String> {
    // Everything from here on is found by where this process stands: the paths change under it.
    std::env::set_current_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let here = Path::new(".");
    close_fds::set_fds_cloexec(3, &[]);
    umask(Mode::from_bits_truncate(0o077));
    // Refused only to the leader of a process group, which has nothing to leave.
    let _ = setsid();
    let mut lock = lock(here)?;
    let record = Record::read(here).map_err(text)?.ok_or("there is nothing to run")?;
    match Shim::start(record.clone()) {
        Ok(mut shim) => {
            say(&format!("{STARTED} {}", shim.started_ms));
            // For a node that comes later; without it, it only does not know since when.
            let _ = write!(lock, " {}", shim.started_ms);
            let ended = shim.run();
            ended.write(here).map_err(text)?;
        }
        Err(why) => {
            let exit = Exit::CannotStart(why.clone());
            let at = now().0;
            let ended =
                Ended { exit, started_ms: 0, ended_ms: at, peak_memory_bytes: 0, cpu_ms: 0 };
            ended.write(here).map_err(text)?;
            say(&why);
        }
    }
    record.forget_environment(here);
    Ok(())
}

/// Takes the attempt for this process, or finds that somebody else has it.
fn lock(dir: &Path) -> Result<File, String> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(dir.join(LOCK));
    let mut file = file.map_err(text)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err("somebody else looks after it".into()),
        Err(TryLockError::Error(error)) => return Err(error.to_string()),
    }
    file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(text)?;
    Ok(file)
}

/// The number of the process that holds the lock, and when it started its task, in milliseconds since 1970; 0 if it has not.
pub(super) fn holder(dir: &Path) -> Option<(u32, u64)> {
    let text = fs::read_to_string(dir.join(LOCK)).ok()?;
    let mut words = text.split_whitespace();
    let pid = words.next()?.parse().ok()?;
    Some((pid, words.next().and_then(|at| at.parse().ok()).unwrap_or(0)))
}

/// Tells the node, if it still listens, and lets go of its pipe.
fn say(line: &str) {
    // It may have ended meanwhile.
    let _ = writeln!(io::stdout(), "{}", line.replace('\n', " "));
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stdout(null);
    }
}

/// One attempt, running.
struct Shim {
    record: Record,
    started_ms: u64,
    task: Child,
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
    control: File,
    signals: SignalFd,
    log: Splitter,
    ending: Ending,
    /// When memory is to be looked at; `None` where the system does that.
    look_at: Option<Instant>,
    peak_memory: u64,
    /// How the task itself ended.
    status: Option<Natural>,
}

impl Shim {
    fn start(record: Record) -> Result<Self, String> {
        let launch = &record.launch;
        let log = Writer::open(LOG, launch.log).map_err(text)?;
        // Read and write: so it never comes to an end while no node has it open.
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let control = options.open(CONTROL).map_err(text)?;
        let mask = SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM]);
        mask.thread_block().map_err(text)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&mask, flags).map_err(text)?;
        prctl::set_child_subreaper(true).map_err(text)?;
        if let Some(group) = &record.group {
            group.enter().map_err(|error| format!("its cgroup cannot be entered: {error}"))?;
        }
        // Raised first: who is not root may take back what it has raised, and not go below.
        score(TASK_SCORE);
        if record.has_own_root {
            root::enter(&record)?;
        }
        prctl::set_no_new_privs().map_err(text)?;
        let started_ms = now().0;
        let mut command = command(&record, launch.argv.iter().map(OsString::from));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A program inherits what is blocked, and one that never hears of its children's end waits for ever.
        mask.thread_unblock().map_err(text)?;
        let spawned = command.process_group(0).spawn();
        mask.thread_block().map_err(text)?;
        // It may have ended meanwhile: as if that had been heard.
        raise(Signal::SIGCHLD).map_err(text)?;
        let mut task = spawned.map_err(|error| unable(launch, &error))?;
        score(if geteuid().is_root() { OWN_SCORE } else { "0" });
        let begun = steady();
        let limited = record.group.as_ref().is_some_and(|group| group.limits().0);
        let look = launch.limits.memory_bytes.is_some() && !limited;
        let limit = launch.time_limit_ms.map(Duration::from_millis);
        Ok(Self {
            started_ms,
            out: task.stdout.take(),
            err: task.stderr.take(),
            task,
            control,
            signals,
            log: Splitter::new(log),
            ending: Ending::new(begun, Duration::from_millis(launch.grace_ms), limit),
            look_at: look.then_some(begun + LOOK),
            peak_memory: 0,
            status: None,
            record,
        })
    }

    fn run(&mut self) -> Ended {
        let natural = loop {
            self.wait();
            let at = steady();
            self.on_signals(at);
            self.on_control(at);
            self.on_time(at);
            if let Some(status) = self.status {
                break status;
            }
        };
        let ended_ms = now().0;
        // Whatever it has left behind ends with it.
        self.kill();
        self.drain();
        let group = self.record.group.clone();
        let starved = group.as_ref().is_some_and(|group| group.starved() > 0);
        let exit = self.ending.verdict(natural, starved);
        self.on_end(&exit);
        let (peak, cpu_ms) = match group {
            Some(group) => (group.peak_memory(), group.used().cpu_ms),
            None => (self.peak_memory, buried_cpu_ms()),
        };
        Ended { exit, started_ms: self.started_ms, ended_ms, peak_memory_bytes: peak, cpu_ms }
    }

    /// Waits for something to happen, and takes what was written.
    fn wait(&mut self) {
        let now = steady();
        let wakes = [self.ending.wake_at(), self.look_at, self.log.due()];
        let next = wakes.into_iter().flatten().min();
        // One more millisecond, because it is rounded down.
        let timeout = next.map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = match timeout {
            Some(time) => PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let fds = [
            Some(self.control.as_fd()),
            Some(self.signals.as_fd()),
            self.out.as_ref().map(AsFd::as_fd),
            self.err.as_ref().map(AsFd::as_fd),
        ];
        let ready = ready(&fds, timeout);
        self.take(ready[2], ready[3]);
    }

    /// Reads what there is on standard output and standard error. A pipe that came to its end is closed.
    fn take(&mut self, out: bool, err: bool) {
        let mut block = [0; BLOCK];
        let at = steady();
        if out && let Some(pipe) = &mut self.out {
            match pipe.read(&mut block) {
                Ok(0) => self.out = None,
                Ok(bytes) => self.log.push(at, Stream::Out, &block[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.out = None,
            }
        }
        if err && let Some(pipe) = &mut self.err {
            match pipe.read(&mut block) {
                Ok(0) => self.err = None,
                Ok(bytes) => self.log.push(at, Stream::Err, &block[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.err = None,
            }
        }
    }

    fn on_signals(&mut self, at: Instant) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            // The machine goes down, or somebody was looking for us.
            if signal.ssi_signo == Signal::SIGTERM as u32 {
                let grace = Duration::from_millis(self.record.launch.grace_ms);
                let deed = self.ending.stop(at, grace);
                self.act(deed);
            }
        }
        self.bury();
    }

    /// Buries the dead: the task, and whom it has left behind.
    fn bury(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if u32::try_from(pid.as_raw_pid()) != Ok(self.task.id()) {
                continue;
            }
            let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
            let natural = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Natural::Code(small(code)),
                (None, Some(signal)) => Natural::Signal(small(signal)),
                (None, None) => continue,
            };
            self.status = Some(natural);
        }
    }

    fn on_control(&mut self, at: Instant) {
        let mut words = [0; 4096];
        let Ok(bytes) = self.control.read(&mut words) else { return };
        for line in String::from_utf8_lossy(&words[..bytes]).lines() {
            let deed = match Order::parse(line) {
                Some(Order::Stop(grace)) => self.ending.stop(at, grace),
                Some(Order::Kill) => Some(self.ending.kill()),
                None => None,
            };
            self.act(deed);
        }
    }

    fn on_time(&mut self, at: Instant) {
        self.log.write_due(at);
        if self.look_at.is_some_and(|look| look <= at) {
            self.look_at = Some(at + LOOK);
            if self.is_over_memory() {
                let deed = self.ending.starve();
                self.act(Some(deed));
            }
        }
        let was_late = self.ending.is_late();
        let deed = self.ending.due(at);
        if self.ending.is_late() && !was_late {
            let limit = self.record.launch.time_limit_ms.unwrap_or_default();
            self.log.note(&format!("the time limit of {} s is over", limit as f64 / 1000.0));
        }
        self.act(deed);
    }

    fn is_over_memory(&mut self) -> bool {
        let Some(limit) = self.record.launch.limits.memory_bytes else { return false };
        let members = self.members();
        let rough = tree::memory(&members);
        if rough <= limit {
            self.peak_memory = self.peak_memory.max(rough);
            return false;
        }
        // What several share was counted several times: now it is counted with care.
        let exact = tree::shared_memory(&members);
        self.peak_memory = self.peak_memory.max(exact);
        exact > limit
    }

    fn act(&mut self, deed: Option<Deed>) {
        match deed {
            // One that was stopped could not hear it.
            Some(Deed::Ask) => {
                let members = self.members();
                tree::signal(&members, Signal::SIGTERM);
                tree::signal(&members, Signal::SIGCONT);
            }
            Some(Deed::Kill) => self.kill(),
            None => {}
        }
    }

    /// All of the attempt but this process.
    fn members(&self) -> Vec<u32> {
        let own = std::process::id();
        match &self.record.group {
            // Those too that were started from outside, by `join`, and descend from others.
            Some(group) => group.members().into_iter().filter(|pid| *pid != own).collect(),
            None => tree::descendants(own),
        }
    }

    /// Kills all of it, and returns when it is gone.
    fn kill(&mut self) {
        let begun = steady();
        let mut is_closed = false;
        loop {
            self.bury();
            let members = self.members();
            if members.is_empty() || begun.elapsed() > GONE {
                return;
            }
            if let Some(group) = self.record.group.as_ref().filter(|_| !is_closed) {
                group.close();
                is_closed = true;
            }
            // Stopped first, so that none starts another while the others are killed.
            tree::signal(&members, Signal::SIGSTOP);
            tree::signal(&members, Signal::SIGKILL);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads what was written before the end.
    fn drain(&mut self) {
        let begun = steady();
        while (self.out.is_some() || self.err.is_some()) && begun.elapsed() < GONE {
            let fds = [self.out.as_ref().map(AsFd::as_fd), self.err.as_ref().map(AsFd::as_fd)];
            let ready = ready(&fds, PollTimeout::from(100u8));
            self.take(ready[0], ready[1]);
        }
        self.log.finish();
    }

    fn on_end(&mut self, exit: &Exit) {
        let limit = self.record.launch.limits.memory_bytes;
        if let (Exit::Memory, Some(bytes)) = (exit, limit) {
            self.log.note(&format!("killed: it took more than its {} MiB of memory", bytes >> 20));
        }
    }
}

/// What a node asks of a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Stop(Duration),
    Kill,
}

impl Order {
    /// One line, which a pipe takes whole.
    pub(super) fn line(self) -> String {
        match self {
            Order::Stop(grace) => format!("stop {}\n", grace.as_millis()),
            Order::Kill => "kill\n".into(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("stop", grace)) => grace.parse().ok().map(Duration::from_millis).map(Order::Stop),
            None if line == "kill" => Some(Order::Kill),
            _ => None,
        }
    }
}

/// Becomes a further process of an attempt that runs: same group, same root, same user, same environment.
fn join(dir: &Path, words: &[OsString]) -> Unrun {
    let prepare = || -> Result<Record, String> {
        close_fds::set_fds_cloexec(3, &[]);
        let record = Record::read(dir).map_err(text)?.ok_or("it does not run")?;
        let lock = File::options().write(true).open(dir.join(LOCK)).map_err(text)?;
        let (pid, _) = holder(dir).ok_or("nobody looks after it")?;
        let spaces = record.has_own_root.then(|| -> io::Result<_> {
            let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}"));
            let is_alone = record.launch.network == Network::None;
            let net = is_alone.then(|| open("net")).transpose()?;
            Ok((open("mnt")?, net))
        });
        let spaces = spaces.transpose().map_err(text)?;
        // Held still: so what was opened belongs to the supervisor, not to a later process with its number.
        if lock.try_lock().is_ok() {
            return Err("it is over".into());
        }
        // On a terminal of its own it is the one who is interrupted by Ctrl-C.
        if rustix::termios::isatty(io::stdin()) {
            let _ = setsid();
            rustix::process::ioctl_tiocsctty(io::stdin()).map_err(text)?;
        }
        if let Some(group) = &record.group {
            group.enter().map_err(text)?;
        }
        score(TASK_SCORE);
        if let Some((mnt, net)) = spaces {
            if let Some(net) = net {
                setns(net, CloneFlags::CLONE_NEWNET).map_err(text)?;
            }
            setns(mnt, CloneFlags::CLONE_NEWNS).map_err(text)?;
        }
        umask(Mode::from_bits_truncate(0o077));
        prctl::set_no_new_privs().map_err(text)?;
        Ok(record)
    };
    match prepare() {
        Ok(record) => {
            let mut command = command(&record, words.iter().cloned());
            if let Some(term) = std::env::var_os("TERM") {
                command.env("TERM", term);
            }
            let error = command.exec();
            let program = words.first().cloned().unwrap_or_default();
            Unrun::program(&program.to_string_lossy(), &error)
        }
        Err(error) => error.into(),
    }
}

/// A command in the attempt's directory, with its environment and user, and nothing else.
fn command(record: &Record, words: impl IntoIterator<Item = OsString>) -> Command {
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).env_clear().envs(environment(record));
    let place = if record.has_own_root { Path::new(WORK) } else { &record.launch.work };
    command.current_dir(place);
    if let Some(ids) = record.user {
        // The standard library drops all other groups when it changes the user.
        command.uid(ids.uid).gid(ids.gid);
    }
    command
}

/// Why a program did not start, for whoever wrote its name.
fn unable(launch: &super::launch::Launch, error: &io::Error) -> String {
    let program = launch.argv.first().map(String::as_str).unwrap_or_default();
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no program {program:?} on this node"),
        io::ErrorKind::PermissionDenied => format!("{program:?} may not be run"),
        _ => format!("{program:?} could not be started: {error}"),
    }
}

/// Which of these can be read, or have come to an end.
fn ready<const N: usize>(fds: &[Option<BorrowedFd<'_>>; N], timeout: PollTimeout) -> [bool; N] {
    let mut asked: Vec<PollFd<'_>> =
        fds.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    if poll(&mut asked, timeout).is_err() {
        // A signal came between: whoever called looks again.
        return [false; N];
    }
    let mut answers = asked.iter().map(|fd| fd.any().unwrap_or(false));
    std::array::from_fn(|n| fds[n].is_some() && answers.next().unwrap_or(false))
}

/// How eager the system is to kill this process for its memory. Not everybody may say.
fn score(value: &str) {
    let _ = fs::write("/proc/self/oom_score_adj", value);
}

/// Processor time of all that was started and buried.
fn buried_cpu_ms() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return 0 };
    let times = [usage.user_time(), usage.system_time()];
    let ms =
        times.into_iter().map(|time| time.tv_sec() * 1000 + time.tv_usec() / 1000).sum::<i64>();
    u64::try_from(ms).unwrap_or(0)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_understood_and_nothing_else_is() {
        for order in
            [Order::Kill, Order::Stop(Duration::ZERO), Order::Stop(Duration::from_millis(1500))]
        {
            assert_eq!(Order::parse(order.line().trim_end()), Some(order));
        }
        for line in ["", "stop", "stop x", "stop -1", "killall", "kill 9"] {
            assert_eq!(Order::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told_in_three_lines() {
        let missing = Unrun::program("nowhere", &io::ErrorKind::NotFound.into());
        let lines: Vec<&str> = missing.text.lines().collect();
        assert_eq!((lines.len(), missing.code), (3, 127));
        assert_eq!(lines[0], r#"error: there is no program "nowhere" there"#);
        assert!(lines[1].starts_with("cause: ") && lines[2].starts_with("try:   "), "{lines:?}");
        let barred = Unrun::program("/etc/hosts", &io::ErrorKind::PermissionDenied.into());
        assert_eq!((barred.text.lines().count(), barred.code), (3, 126));
    }

    #[test]
    fn an_attempt_is_looked_after_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        assert_eq!(holder(dir.path()), Some((std::process::id(), 0)));
        write!(&held, " 17").unwrap();
        assert_eq!(holder(dir.path()), Some((std::process::id(), 17)));
        assert!(lock(dir.path()).is_err());
        drop(held);
        assert!(lock(dir.path()).is_ok());
    }
}
