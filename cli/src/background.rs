//! A node in the background: started by `init`, `join` and `demo`, as `mesh up` in a process of its own.
//!
//! Whoever starts one holds it: dropped before it is let go, it is stopped, so that a command which
//! fails or is interrupted leaves nothing running behind.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::answers::Status;
use crate::client::{Answer, Api};
use crate::context::Place;
use crate::report::{Code, Report};
use crate::view::clean;

/// How long a node may take to become a member.
pub(crate) const JOINING: Duration = Duration::from_secs(60);
/// How long a node may take to stop by itself before it is killed.
const STOPPING: Duration = Duration::from_secs(3);
/// How often a starting node is asked.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How much of a log's end is read, and how many of its lines are shown.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 3;
/// A log that is longer is set aside, and the one before it is dropped.
const LOG_BYTES: u64 = 16 << 20;
/// How often a running node looks at the length of its log.
const LOOK_AT_LOG: Duration = Duration::from_secs(60);

/// What ends the node, if not a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tie {
    /// Nothing: it has a session of its own and outlives whoever started it.
    Detached,
    /// It dies with the process that started it.
    Leashed,
}

/// A node's process.
#[derive(Debug)]
pub(crate) struct Background {
    place: Place,
    /// `None` once it is let go.
    child: Option<Child>,
}

impl Background {
    /// Starts `mesh up` on a directory that holds a node.
    pub(crate) fn start(place: &Place, tie: Tie) -> Result<Self, Report> {
        let child = spawn(place, tie).map_err(|error| {
            let message = format!("the node in {} could not be started", place.dir.display());
            Report::new(Code::Failed, message, error.to_string(), place.command("up"))
        })?;
        Ok(Self { place: place.clone(), child: Some(child) })
    }

    /// Waits until the node says that it is a member, and gives the answer in which it does: its [`Status`].
    pub(crate) async fn until_member(&mut self, patience: Duration) -> Result<Answer, Report> {
        let api = Api::local(self.place.clone());
        let began = Instant::now();
        loop {
            let asked = api.get("/v1/status").await;
            match asked.and_then(|answer| Ok((answer.item::<Status>()?, answer))) {
                Ok((status, answer)) if status.is_member() => return Ok(answer),
                Ok(_) => {}
                // Not listening yet, or still reading its disk.
                Err(report) if report.code != Code::Failed => {}
                Err(report) => return Err(report),
            }
            if let Some(ended) =
                self.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
            {
                return Err(
                    self.failed(Code::Failed, &format!("the node stopped at once ({ended})"))
                );
            }
            if began.elapsed() > patience {
                let message = format!("the node is not a member after {} s", patience.as_secs());
                return Err(self.failed(Code::Timeout, &message));
            }
            sleep(ASK_EVERY).await;
        }
    }

    /// Lets it run on.
    pub(crate) fn release(mut self) {
        self.child = None;
    }

    /// Kills it without a word, as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself: that is the same to us.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn failed(&self, code: Code, message: &str) -> Report {
        let log = self.place.log();
        let said = tail(&log).join(" | ");
        let cause = if said.is_empty() { "it said nothing in its log".into() } else { said };
        let hint = format!("look into {}, then {}", log.display(), self.place.command("up"));
        Report::new(code, message, cause, hint)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // Asked first, so that it can say goodbye to its peers.
        let pid = i32::try_from(child.id()).map(Pid::from_raw);
        let asked = pid.is_ok_and(|pid| kill(pid, Signal::SIGTERM).is_ok());
        let began = Instant::now();
        while asked && began.elapsed() < STOPPING {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(ASK_EVERY);
        }
        self.kill();
    }
}

/// The node's log, to be added to. A long one is set aside first.
pub(crate) fn open_log(place: &Place) -> io::Result<File> {
    let log = place.log();
    if let Some(logs) = log.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(logs)?;
    }
    if fs::metadata(&log).is_ok_and(|found| found.len() > LOG_BYTES) {
        fs::rename(&log, log.with_extension("log.1"))?;
    }
    File::options().append(true).create(true).mode(0o600).open(log)
}

/// Sets the log of a running node aside whenever it is long.
pub(crate) async fn mind_log(place: Place) {
    loop {
        sleep(LOOK_AT_LOG).await;
        if let Err(error) = cut(&place.log(), LOG_BYTES) {
            tracing::warn!(%error, "the log could not be set aside");
        }
    }
}

/// Copies a long log aside and empties it, rather than rename it: whoever has it open (a node in the background
/// has it as standard error) goes on writing to the same file. A line that comes in between is lost.
fn cut(log: &Path, most: u64) -> io::Result<()> {
    if !fs::metadata(log).is_ok_and(|found| found.len() > most) {
        return Ok(());
    }
    fs::copy(log, log.with_extension("log.1"))?;
    File::options().write(true).open(log)?.set_len(0)
}

fn spawn(place: &Place, tie: Tie) -> io::Result<Child> {
    let log = open_log(place)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("up").arg("--dir").arg(&place.dir);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // So that it keeps no other file system busy.
    command.current_dir(&place.dir);
    match tie {
        // It leaves our session by itself: `up --detached` calls setsid.
        Tie::Detached => command.arg("--detached"),
        // Out of our process group, so that Ctrl-C reaches us alone and we end it in order.
        Tie::Leashed => command.arg("--leashed").process_group(0),
    };
    command.spawn()
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = text.lines().map(clean).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].to_vec()
}

/// Whether a process has ended. One that waits to be buried by its parent has.
pub(crate) fn has_ended(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        // "pid (name) state …", and a name may hold anything.
        Ok(stat) => {
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
        }
        Err(_) => i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None).is_err()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_shown_by_its_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("node.log");
        assert!(tail(&log).is_empty());
        fs::write(&log, format!("{}\none\n\ntwo\n\x1b[31mthree\n", "x".repeat(10_000))).unwrap();
        assert_eq!(tail(&log), ["one", "two", "[31mthree"]);
    }

    #[test]
    fn a_long_log_is_set_aside_while_it_is_written_to() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let place = Place::named(dir.path().into());
        let mut file = open_log(&place).unwrap();
        file.write_all(b"one\n").unwrap();
        cut(&place.log(), 4).unwrap();
        assert_eq!(fs::read_to_string(place.log()).unwrap(), "one\n", "it is not long");
        cut(&place.log(), 3).unwrap();
        file.write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(place.log()).unwrap(), "two\n");
        assert_eq!(fs::read_to_string(dir.path().join("logs/node.log.1")).unwrap(), "one\n");
    }

    /// The test's own binary knows no `up` and ends at once, as a node does that cannot start.
    #[tokio::test]
    async fn a_node_that_cannot_start_is_explained_by_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::named(dir.path().into());
        let mut node = Background::start(&place, Tie::Detached).unwrap();
        let report = node.until_member(Duration::from_secs(30)).await.unwrap_err();
        assert_eq!(report.code, Code::Failed);
        assert!(report.message.starts_with("the node stopped at once"), "{report:?}");
        assert!(report.cause.contains("dir") && report.hint.contains("node.log"), "{report:?}");
    }

    #[test]
    fn a_process_has_ended_when_it_is_gone_or_a_zombie() {
        assert!(!has_ended(std::process::id()));
        let mut child = Command::new("true").spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !has_ended(child.id()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(has_ended(child.id()));
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }
}
