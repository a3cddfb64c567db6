//! Nothing that a test starts outlives it, even if it is killed.
//!
//! Every process that a test starts carries the test's mark in its environment, and everything that it
//! writes lies in one directory named after the mark. So do the tasks of its jobs, under a name that a job may
//! use ([`TASK_MARK`]): a node passes nothing of its own environment on to them. A guard, a shell that waits for the end of the
//! test, then kills what carries the mark, unmounts what is mounted in the directory, and removes it.
//! Should even the guard be killed, the next test cleans up after the dead one. Network namespaces need
//! no cleaning: see [`super::ns`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use std::os::unix::process::CommandExt;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that holds the mark.
pub const MARK: &str = "MESH_CHAOS_RUN";
/// The variable that holds it for tasks: of those that begin with `MESH_`, a job can set none.
pub const TASK_MARK: &str = "CHAOS_RUN";
/// How the directories' names begin.
const PREFIX: &str = "mesh-chaos-";

/// Waits for the end of its input, then cleans up. `$1` and `$3` are the marked variables, `$2` the directory.
const GUARD: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
for environ in $(grep -lzxF -e "$1" -e "$3" /proc/[0-9]*/environ 2>/dev/null); do
    pid=${environ#/proc/}
    kill -9 "${pid%/environ}"
done
while read -r _ place _; do
    case $place in "$2"/*) umount -l "$place" ;; esac
done </proc/self/mounts
rm -rf -- "$2"
"#;

/// The mark of this process and its directory.
struct Run {
    mark: String,
    dir: PathBuf,
    /// The guard wakes when this closes, which it does however this process ends.
    _guard: Option<ChildStdin>,
}

fn this_run() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let pid = std::process::id();
        let mark = format!("{pid}.{}", started(pid).unwrap_or_default());
        sweep(&std::env::temp_dir());
        let dir = std::env::temp_dir().join(format!("{PREFIX}{mark}"));
        Run { _guard: guard(&mark, &dir, Stdio::piped()), mark, dir }
    })
}

/// The mark that processes of this test carry in [`MARK`].
pub fn mark() -> &'static str {
    &this_run().mark
}

/// A new empty directory, removed when dropped.
pub struct Room {
    path: PathBuf,
}

impl Room {
    /// Makes one.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Short, because paths of sockets must be.
        let path = this_run().dir.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        unmount_below(&self.path);
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Unmounts what is mounted at `dir` or below.
pub fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(dir)) {
        let _ = umount2(place, MntFlags::MNT_DETACH);
    }
}

/// Cleans up after tests that are dead and whose guard is, too.
pub fn sweep(temp: &Path) {
    let entries = fs::read_dir(temp).into_iter().flatten().flatten();
    for dir in entries.map(|entry| entry.path()) {
        let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(mark) = name.strip_prefix(PREFIX) else { continue };
        let Some((pid, start)) = mark.split_once('.') else { continue };
        let Ok(pid) = pid.parse() else { continue };
        // A process that has the number of a dead one began at another time.
        if started(pid).as_deref() != Some(start) {
            guard(mark, &dir, Stdio::null());
        }
    }
}

/// Starts a guard. One without an input begins at once, and is waited for.
fn guard(mark: &str, dir: &Path, input: Stdio) -> Option<ChildStdin> {
    let mut guard = Command::new("sh");
    guard.args(["-c", GUARD, "guard"]).arg(format!("{MARK}={mark}")).arg(dir);
    guard.arg(format!("{TASK_MARK}={mark}"));
    // A group of its own, so that what ends the test from the keyboard does not end the guard.
    guard.stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut guard = guard.spawn().ok()?;
    let input = guard.stdin.take();
    if input.is_none() {
        let _ = guard.wait();
    }
    input
}

/// When a process began, as the kernel counts; `None` if there is no such process.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything. The time is the 20th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}

/// The processes that have this variable in the environment they were started with. One that is dead
/// and only waits to be collected is not among them.
pub fn processes(variable: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
    })
    .map(Pid::from_raw)
    .collect()
}

/// Sends a signal to all processes that have this variable.
pub fn signal(variable: &str, signal: Signal) {
    for pid in processes(variable) {
        let _ = kill(pid, signal);
    }
}
