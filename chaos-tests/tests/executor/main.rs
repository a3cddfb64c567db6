//! Attempts on this machine, for real: processes behind their supervisors, and containers.
//!
//! [`process`] and [`container`] tell the stories; what they share is here.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

mod container;
mod process;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::until;
use mesh_node::executor::log::{Line, Position, Reader, Rotation, Stream};
use mesh_node::executor::{Attempt, Ended, Executor, Launch, Limits, Network, Settings};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A place for attempts, and an executor for them. Whatever is left running ends with it.
struct Bench {
    executor: Executor,
    node: String,
    room: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let node = format!("t{}x{number}", std::process::id());
        Self { executor: executor(&node), node, room: tempfile::tempdir().unwrap() }
    }

    /// Another executor of the same node, as after a restart.
    fn restarted(&self) -> Executor {
        executor(&self.node)
    }

    fn dir(&self) -> &Path {
        self.room.path()
    }

    /// Something to run.
    fn launch(&self, argv: &[&str]) -> Launch {
        launch(self.dir(), &format!("{}-0-1", self.node), argv)
    }

    fn shell(&self, script: &str) -> Launch {
        self.launch(&["sh", "-c", script])
    }

    async fn start(&self, launch: Launch) -> Attempt {
        self.executor.start(launch).await.unwrap_or_else(|error| panic!("{error:?}: {error}"))
    }

    /// Runs a script to its end.
    async fn run(&self, launch: Launch) -> (Ended, Attempt) {
        let attempt = self.start(launch).await;
        (end(&attempt).await, attempt)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let executor = self.executor.clone();
        // In a thread of its own: the test has a runtime, which must not be blocked.
        let swept = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(executor.sweep(&Default::default()));
        });
        let _ = swept.join();
    }
}

fn executor(node: &str) -> Executor {
    let mut settings = Settings::new(node);
    settings.program = binary().unwrap().to_path_buf();
    Executor::open(settings)
}

fn launch(room: &Path, name: &str, argv: &[&str]) -> Launch {
    Launch {
        dir: room.join("attempt"),
        name: name.to_owned(),
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::new(),
        work: room.join("work"),
        mounts: Vec::new(),
        image: None,
        limits: Limits::default(),
        gpus: Vec::new(),
        ports: Vec::new(),
        network: Network::Apart,
        grace_ms: 300,
        time_limit_ms: None,
        log: Rotation::default(),
    }
}

async fn end(attempt: &Attempt) -> Ended {
    tokio::time::timeout(PATIENCE, attempt.wait()).await.expect("it should have ended")
}

fn lines(attempt: &Attempt) -> Vec<Line> {
    let mut reader = Reader::new(attempt.log_dir(), Position::default());
    let mut lines = Vec::new();
    loop {
        let more = reader.read().unwrap();
        if more.is_empty() {
            return lines;
        }
        lines.extend(more);
    }
}

/// What it wrote to one stream, line by line.
fn said(attempt: &Attempt, stream: Stream) -> Vec<String> {
    let lines = lines(attempt).into_iter().filter(|line| line.stream == stream);
    lines.map(|line| String::from_utf8_lossy(&line.text).into_owned()).collect()
}

/// Waits until it has written a line.
fn until_said(attempt: &Attempt, text: &str) {
    let found = || said(attempt, Stream::Out).iter().any(|line| line == text).then_some(());
    let heard = until(PATIENCE, found);
    assert!(heard.is_some(), "{text:?} not in {:?}", lines(attempt));
}

/// Processes of an attempt: those that carry its mark.
fn alive(name: &str) -> Vec<String> {
    let mark = format!("MESH_RUN={name}");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_ours = |pid: &String| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
    };
    pids.filter(is_ours).collect()
}

/// A program that others can run, if all directories above it let them.
fn is_open_to_all(path: &Path) -> bool {
    let bits =
        |path: &Path| fs::metadata(path).map(|about| about.permissions().mode()).unwrap_or(0);
    bits(path) & 0o005 == 0o005 && path.ancestors().skip(1).all(|dir| bits(dir) & 0o001 != 0)
}

/// A directory that another user owns.
fn given_to(room: &Path, uid: u32) -> PathBuf {
    let dir = room.join("theirs");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(room, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}
