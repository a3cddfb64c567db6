//! One host: a data directory, and the real binary in it.
//!
//! A signal goes to everything that runs on the host, found by the directory in its environment: the
//! node puts itself into the background, and may start processes of its own.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use super::binary::binary;
use super::client::Client;
use super::clock::WallClock;
use super::leftovers::{self, MARK, Room};
use super::ns::Lab;
use super::until;

/// How long a command of ours may take: starting a node on a machine with much to do.
const COMMAND: Duration = Duration::from_secs(60);
/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(10);
/// Lines of each log that are shown when a test fails.
const TAIL: usize = 40;

/// Where a host is.
#[derive(Clone)]
pub enum Place {
    /// On the loopback interface of this machine.
    Loopback,
    /// In a namespace of a lab.
    Lab(Arc<Lab>, usize),
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    /// How it ended; `None` if it took too long and was killed.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Said {
    /// Whether it ended well.
    pub fn ok(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The cause that it reports, or else its error.
    pub fn error(&self) -> Option<&str> {
        let line = |word: &str| self.stderr.lines().find(|line| line.starts_with(word));
        line("cause:").or_else(|| line("error:"))
    }

    /// Whether its standard error is an error as mesh reports them: error, cause, try.
    pub fn is_report(&self) -> bool {
        ["error:", "cause:", "try:"]
            .iter()
            .all(|word| self.stderr.lines().any(|line| line.starts_with(word)))
    }
}

/// A host.
pub struct Host {
    /// Its name, also in the mesh.
    pub name: String,
    /// The host's own part of the room: logs of commands, and below it the data directory.
    dir: PathBuf,
    place: Place,
    clock: Option<WallClock>,
    settings: Vec<(String, String)>,
    /// The node, where it runs in the foreground.
    up: Option<(Child, String)>,
    /// We started a node here and did not end it.
    should_run: AtomicBool,
    /// Commands so far: each has logs of its own.
    commands: AtomicU32,
    /// Goes last: it removes the directory.
    _room: Arc<Room>,
}

impl Host {
    /// A host without a node yet.
    pub fn new(room: &Arc<Room>, name: &str, place: Place) -> anyhow::Result<Self> {
        let dir = room.path().join(name);
        fs::create_dir_all(dir.join("mesh"))?;
        Ok(Self {
            name: name.to_owned(),
            dir,
            place,
            clock: None,
            settings: Vec::new(),
            up: None,
            should_run: AtomicBool::new(false),
            commands: AtomicU32::new(0),
            _room: room.clone(),
        })
    }

    /// Gives it a wall clock that can be set.
    pub fn with_clock(mut self) -> anyhow::Result<Self> {
        self.clock = Some(WallClock::new(&self.dir)?);
        Ok(self)
    }

    /// Gives it a data directory with room for so many bytes only.
    pub fn with_disk(self, bytes: u64) -> anyhow::Result<Self> {
        let options = format!("size={bytes}");
        mount(Some("tmpfs"), &self.data(), Some("tmpfs"), MsFlags::empty(), Some(&*options))
            .context("a tmpfs could not be mounted")?;
        Ok(self)
    }

    /// Gives its processes a variable.
    pub fn with_setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The data directory: `MESH_DIR`.
    pub fn data(&self) -> PathBuf {
        self.dir.join("mesh")
    }

    /// The address to listen on.
    pub fn address(&self) -> Ipv4Addr {
        match &self.place {
            Place::Loopback => Ipv4Addr::LOCALHOST,
            Place::Lab(lab, host) => lab.address(*host),
        }
    }

    /// What its node answers.
    pub fn client(&self) -> Client {
        Client::new(self.data().join("run/mesh.sock"))
    }

    /// Founds a mesh, and answers with a ticket.
    pub fn init(&self) -> anyhow::Result<String> {
        let listen = format!("{}:0", self.address());
        let said = self.mesh(&["init", "--listen", &listen, "--name", &self.name])?;
        self.must_run();
        last_line(&said)
    }

    /// A new ticket for one newcomer.
    pub fn ticket(&self) -> anyhow::Result<String> {
        last_line(&self.mesh(&["ticket", "new"])?)
    }

    /// Joins a mesh, and returns when it is a member.
    pub fn join(&self, ticket: &str) -> anyhow::Result<()> {
        let listen = format!("{}:0", self.address());
        self.mesh(&["join", ticket, "--listen", &listen, "--name", &self.name])?;
        self.must_run();
        Ok(())
    }

    /// A new ticket for one newcomer that founds a party.
    pub fn new_party(&self) -> anyhow::Result<String> {
        last_line(&self.mesh(&["ticket", "new", "--new-party"])?)
    }

    /// Joins a mesh with a party of its own, called as this host is, and returns when it is a member.
    pub fn join_as_party(&self, ticket: &str) -> anyhow::Result<()> {
        let (listen, name) = (format!("{}:0", self.address()), &self.name);
        self.mesh(&["join", ticket, "--listen", &listen, "--name", name, "--party", name])?;
        self.must_run();
        Ok(())
    }

    /// Says yes to all that others ask of its party.
    pub fn grant_all(&self) {
        let Ok(said) = self.mesh(&["request", "ls", "--json"]) else { return };
        let answer: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
        for request in answer["items"].as_array().into_iter().flatten() {
            let id = request["id"].to_string();
            let _ = self.mesh(&["grant", id.trim_matches('"')]);
        }
    }

    /// Leaves for good.
    pub fn leave(&self) -> anyhow::Result<()> {
        self.may_end();
        self.mesh(&["leave", "--yes"]).map(drop)
    }

    /// Stops the node as a person does.
    pub fn down(&mut self) -> anyhow::Result<()> {
        self.may_end();
        self.mesh(&["down"])?;
        self.gone()
    }

    /// Starts the node again, and returns while it starts.
    pub fn up(&mut self) -> anyhow::Result<()> {
        let log = self.next_log("up");
        self.up = Some((self.spawn(binary()?, &["up"], &log)?, log));
        self.must_run();
        Ok(())
    }

    /// Starts the node again and waits until it answers or ends. What it said, if it ended.
    pub fn try_up(&mut self, patience: Duration) -> anyhow::Result<Option<Said>> {
        self.up()?;
        let client = self.client();
        let Some((child, log)) = &mut self.up else { bail!("it was just started") };
        let ended = until(patience, || match child.try_wait() {
            Ok(Some(status)) => Some(Some(status)),
            _ => client.status().is_ok().then_some(None),
        });
        let log = log.clone();
        match ended {
            Some(None) => Ok(None),
            Some(status) => {
                // Whoever asked is told, and judges it.
                self.may_end();
                Ok(Some(self.said(status, &log)?))
            }
            None => bail!("{}: neither up nor ended within {patience:?}", self.name),
        }
    }

    /// Kills everything on the host with SIGKILL, and returns when it is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.may_end();
        self.signal(Signal::SIGKILL);
        self.gone()
    }

    /// Kills the node with SIGKILL and nothing else: what it runs goes on. Returns when it is gone.
    pub fn kill_node(&mut self) -> anyhow::Result<()> {
        self.may_end();
        let status = until(GONE, || self.client().status().ok());
        let status = status.with_context(|| format!("{}: its node does not answer", self.name))?;
        let pid = Pid::from_raw(status.pid);
        signal::kill(pid, Signal::SIGKILL)?;
        let gone = until(GONE, || {
            if let Some((up, _)) = &mut self.up {
                let _ = up.try_wait();
            }
            (!leftovers::processes(&self.mark()).contains(&pid)).then_some(())
        });
        gone.with_context(|| format!("{}: its node still runs after {GONE:?}", self.name))?;
        self.up = None;
        Ok(())
    }

    /// Asks everything on the host to end, and returns when it is gone.
    pub fn term(&mut self) -> anyhow::Result<()> {
        self.may_end();
        self.signal(Signal::SIGTERM);
        self.gone()
    }

    /// Stops everything on the host in its tracks (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Whether anything runs.
    pub fn runs(&self) -> bool {
        !leftovers::processes(&self.mark()).is_empty()
    }

    /// Whether its node was started and not ended since. If it does not run now, it ended by itself.
    pub fn should_run(&self) -> bool {
        self.should_run.load(Ordering::Relaxed)
    }

    /// From now on its node may end by itself, as one does that was removed, until it is started again.
    pub fn may_end(&self) {
        self.should_run.store(false, Ordering::Relaxed);
    }

    fn must_run(&self) {
        self.should_run.store(true, Ordering::Relaxed);
    }

    /// Sets the wall clock wrong by so many seconds. Needs [`with_clock`](Self::with_clock).
    pub fn set_clock(&self, wrong_by: i64) -> anyhow::Result<()> {
        self.clock.as_ref().context("this host has the machine's clock")?.set(wrong_by)
    }

    /// Fills the disk to the last byte. Needs [`with_disk`](Self::with_disk).
    pub fn fill_disk(&self) -> anyhow::Result<()> {
        let mut filler = File::options().append(true).create(true).open(self.filler())?;
        for size in [1 << 16, 1 << 12, 1] {
            let bytes = vec![0; size];
            while io::Write::write_all(&mut filler, &bytes).is_ok() {}
        }
        Ok(())
    }

    /// Makes room again.
    pub fn free_disk(&self) -> anyhow::Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    fn filler(&self) -> PathBuf {
        self.data().join("filler")
    }

    /// Runs a mesh command that must end well, and answers with its standard output.
    pub fn mesh(&self, words: &[&str]) -> anyhow::Result<String> {
        let said = self.run(binary()?, words, COMMAND)?;
        // Not the words themselves: a ticket is a secret, and logs are kept.
        let what = words.first().copied().unwrap_or_default();
        ensure!(
            said.ok(),
            "{}: mesh {what}: {:?}\n{}{}",
            self.name,
            said.status,
            said.stdout,
            said.stderr
        );
        Ok(said.stdout)
    }

    /// Runs a program on this host to its end, for `patience` at most.
    pub fn run(&self, program: &Path, words: &[&str], patience: Duration) -> anyhow::Result<Said> {
        // Files, not pipes: a node that goes into the background must not keep us waiting.
        let log = self.next_log(words.first().copied().unwrap_or("command"));
        let mut child = self.spawn(program, words, &log)?;
        let status = until(patience, || child.try_wait().ok().flatten());
        if status.is_none() {
            child.kill()?;
            child.wait()?;
        }
        self.said(status, &log)
    }

    /// Starts a program on this host; its output goes to `LOG.out` and `LOG.err`.
    pub fn spawn(&self, program: &Path, words: &[&str], log: &str) -> anyhow::Result<Child> {
        let file = |end: &str| File::create(self.dir.join(format!("{log}.{end}")));
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(&self.dir)
            .env("MESH_DIR", self.data())
            .env(MARK, leftovers::mark())
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "1")
            .envs(self.settings.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("err")?);
        if let Some(clock) = &self.clock {
            clock.give(&mut command);
        }
        let child = match &self.place {
            Place::Loopback => command.spawn(),
            Place::Lab(lab, host) => lab.namespace(*host).run(|| command.spawn())?,
        };
        child.with_context(|| format!("{} could not be started", program.display()))
    }

    fn next_log(&self, what: &str) -> String {
        format!("{:03}-{what}", self.commands.fetch_add(1, Ordering::Relaxed))
    }

    fn said(&self, status: Option<ExitStatus>, log: &str) -> anyhow::Result<Said> {
        let read = |end: &str| -> io::Result<String> {
            Ok(String::from_utf8_lossy(&fs::read(self.dir.join(format!("{log}.{end}")))?).into())
        };
        Ok(Said { status, stdout: read("out")?, stderr: read("err")? })
    }

    /// The variable by which this host's processes are known.
    fn mark(&self) -> String {
        format!("MESH_DIR={}", self.data().display())
    }

    fn signal(&self, signal: Signal) {
        leftovers::signal(&self.mark(), signal);
    }

    fn gone(&mut self) -> anyhow::Result<()> {
        let gone = until(GONE, || {
            if let Some((up, _)) = &mut self.up {
                let _ = up.try_wait();
            }
            (!self.runs()).then_some(())
        });
        gone.with_context(|| format!("{}: it still runs after {GONE:?}", self.name))?;
        self.up = None;
        Ok(())
    }

    /// Every log of this host with its text: of commands, and of the node itself.
    pub fn logs(&self) -> Vec<(PathBuf, String)> {
        let dirs = [self.dir.clone(), self.data().join("logs")];
        let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| {
            let end = path.extension().and_then(|end| end.to_str());
            matches!(end, Some("out" | "err")) || path.starts_with(self.data())
        });
        let mut logs: Vec<(PathBuf, String)> = paths
            .filter_map(|path| {
                let text = String::from_utf8_lossy(&fs::read(&path).ok()?).into_owned();
                Some((path, text))
            })
            .collect();
        logs.sort();
        logs
    }

    /// The first panic in the logs, if any.
    pub fn panicked(&self) -> Option<String> {
        self.logs().iter().find_map(|(_, log)| {
            let line = log.lines().find(|line| line.contains("panicked at"))?;
            Some(format!("{}: {line}", self.name))
        })
    }

    /// What went wrong here and nobody asked for: a panic, or a node that ended by itself.
    pub fn fell(&self) -> Option<String> {
        let ended = || {
            let ended = self.should_run() && !self.runs();
            ended.then(|| format!("{}: its node ended by itself", self.name))
        };
        self.panicked().or_else(ended)
    }

    /// Prints the last lines of every log.
    pub fn show(&self) {
        for (path, text) in self.logs() {
            let lines: Vec<&str> = text.lines().collect();
            println!("--- {}", path.strip_prefix(&self.dir).unwrap_or(&path).display());
            for line in &lines[lines.len().saturating_sub(TAIL)..] {
                println!("{}: {line}", self.name);
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
        }
        let _ = self.kill();
        leftovers::unmount_below(&self.dir);
    }
}

fn last_line(stdout: &str) -> anyhow::Result<String> {
    let line = stdout.lines().last().context("nothing was printed")?;
    Ok(line.trim().to_owned())
}
