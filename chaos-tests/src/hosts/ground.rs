//! A mesh on which jobs run, and what a test asks of them: as a person does, by commands and by what they print.
//!
//! A story that decides when a task ends lets it wait for a file ([`WAIT`]) instead of for a time.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mesh_node::state::level::LEVEL;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use super::binary::binary;
use super::client;
use super::fleet::{Fleet, Plan, SETTLE};
use super::leftovers::{self, TASK_MARK};
use super::process::{Host, Said};
use super::until;

/// How long a job may take on a busy machine. It tells one that is stuck from one that is slow, no more.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// What a task runs to wait until it is let go: see [`Ground::let_go`].
pub const WAIT: &str = "while [ ! -e go ]; do sleep 0.1; done";
/// The variable by which the tasks of one ground are known.
const GROUND: &str = "CHAOS_GROUND";
/// How deep below the top a node's cgroups may stand.
const MAX_GROUP_DEPTH: usize = 8;

/// Whether `MESH_LONG=1` asks for more trials.
pub fn long() -> bool {
    std::env::var_os("MESH_LONG").is_some_and(|value| value == "1")
}

/// A path on a host that is not in its data directory.
pub fn aside(host: &Host, name: &str) -> PathBuf {
    host.data().parent().unwrap().join(name)
}

/// A path as an argument of a command.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The exit code of a command.
pub fn code(said: &Said) -> Option<i32> {
    said.status.and_then(|status| status.code())
}

/// Brings a host up and demands that it stays so.
pub fn up(host: &mut Host) {
    // One that was killed in the middle of much writing holds its lock for a moment more.
    let ended = until(SETTLE, || match host.try_up(SETTLE).unwrap() {
        Some(said) if said.stderr.contains("is running") => None,
        ended => Some(ended),
    });
    assert!(matches!(ended, Some(None)), "{} does not come up: {ended:?}", host.name);
}

/// The processes of an attempt, wherever they are on this machine.
pub fn running(id: &str, fence: &Value) -> Vec<Pid> {
    let of_attempt = leftovers::processes(&format!("MESH_FENCE={fence}"));
    let mut of_job = leftovers::processes(&format!("MESH_JOB={id}"));
    of_job.retain(|pid| of_attempt.contains(pid));
    of_job
}

/// Waits until nothing of an attempt is left on this machine.
pub fn until_gone(id: &str, fence: &Value) {
    let gone = until(PATIENCE, || running(id, fence).is_empty().then_some(()));
    assert!(gone.is_some(), "{id}-{fence} still runs: {:?}", running(id, fence));
}

/// The id of a job, of what `mesh submit -d --json` said.
pub fn submitted(said: &Said) -> String {
    assert!(said.ok(), "{said:?}");
    let answer: Value = serde_json::from_str(&said.stdout).unwrap();
    answer["item"]["id"].as_str().unwrap().to_owned()
}

/// A mesh on which jobs run. Nothing of them outlives it.
pub struct Ground {
    fleet: Fleet,
    /// What [`GROUND`] is for every task of it.
    mark: String,
    /// The beginnings of the nodes' ids: their cgroups and containers are named after them.
    pub nodes: Vec<String>,
    /// Files so far: each has a name of its own.
    files: AtomicU32,
}

impl Deref for Ground {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        &self.fleet
    }
}

impl DerefMut for Ground {
    fn deref_mut(&mut self) -> &mut Fleet {
        &mut self.fleet
    }
}

impl Ground {
    /// So many nodes on the loopback interface.
    pub fn new(hosts: usize) -> Self {
        Self::of(Plan::loopback(hosts))
    }

    /// The same, where a node that vanished is soon given up.
    pub fn short(hosts: usize) -> Self {
        Self::of(Plan::loopback(hosts).short_waits())
    }

    /// The same as planned. Returns when jobs can be submitted on every node.
    pub fn of(plan: Plan) -> Self {
        Self::on(plan.found().unwrap())
    }

    /// A mesh that is there already. Returns when jobs can be submitted on every node.
    pub fn on(fleet: Fleet) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}.{}", leftovers::mark(), NEXT.fetch_add(1, Ordering::Relaxed));
        let id = |host: &Host| host.client().status().unwrap().id[..8].to_owned();
        let nodes = fleet.hosts.iter().map(id).collect();
        let ground = Self { fleet, mark, nodes, files: AtomicU32::new(0) };
        let ready = until(SETTLE, || ground.is_ready()?.then_some(()));
        ready.expect("every node knows the others, and what a job is");
        ground
    }

    /// Whether the mesh has the level of this binary, and every node has heard what the others have to give.
    fn is_ready(&self) -> Option<bool> {
        let mut is_ready = true;
        for host in &self.hosts {
            let ask = |path: &str| host.client().ask("GET", path, None, client::PATIENCE).ok();
            let level = ask("/v1/status")?.body["item"]["level"].as_u64()?;
            let nodes = ask("/v1/nodes")?.body["items"].clone();
            let heard = nodes.as_array()?.iter().filter(|node| node["cpus"].is_u64()).count();
            is_ready &= level == u64::from(LEVEL) && heard == self.hosts.len();
        }
        Some(is_ready)
    }

    /// Runs `mesh …` on a host to its end, however it ends.
    pub fn mesh(&self, host: usize, words: &[&str]) -> Said {
        self.hosts[host].run(binary().unwrap(), words, PATIENCE).unwrap()
    }

    /// Runs `mesh data …`, which must end well; the `item` of its answer, or its `items`.
    pub fn data(&self, host: usize, words: &[&str]) -> Value {
        let words: Vec<&str> = ["data"].iter().chain(words).chain(&["--json"]).copied().collect();
        let said = self.mesh(host, &words);
        assert!(said.ok(), "n{host}: mesh {words:?}: {said:?}");
        let answer: Value = serde_json::from_str(&said.stdout).unwrap();
        if answer["item"].is_null() { answer["items"].clone() } else { answer["item"].clone() }
    }

    /// A job.toml beside a host's data directory.
    pub fn file(&self, host: usize, job: &str) -> PathBuf {
        let path = self.fresh(host, "job.toml");
        fs::write(&path, self.marked(job)).unwrap();
        path
    }

    /// A path beside a host's data directory at which there is nothing yet.
    pub fn fresh(&self, host: usize, name: &str) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        aside(&self.hosts[host], &format!("{number}-{name}"))
    }

    /// A job whose tasks are found and killed with this ground. It has no `[env]` of its own.
    pub fn marked(&self, job: &str) -> String {
        let run = leftovers::mark();
        format!("{job}\n[env]\n{TASK_MARK} = \"{run}\"\n{GROUND} = \"{}\"\n", self.mark)
    }

    /// Submits a job on a host, and does not wait for it; its id.
    pub fn submit(&self, host: usize, job: &str) -> String {
        let file = self.file(host, job);
        submitted(&self.mesh(host, &["submit", text(&file), "-d", "--json"]))
    }

    /// Submits a job on a host as a person does, and follows it to its end.
    pub fn follow(&self, host: usize, job: &str) -> Said {
        let file = self.file(host, job);
        self.mesh(host, &["submit", text(&file)])
    }

    /// A job as a host sees it now, by its id or its name; `None` if it knows none or does not answer.
    pub fn job(&self, host: usize, id: &str) -> Option<Value> {
        let path = format!("/v1/jobs/{id}");
        let answer = self.hosts[host].client().ask("GET", &path, None, client::PATIENCE).ok()?;
        (answer.status == 200).then(|| answer.body["item"].clone())
    }

    /// All jobs that a host knows, the newest first.
    pub fn jobs(&self, host: usize) -> Vec<Value> {
        let said = self.mesh(host, &["jobs", "--all", "--json"]);
        assert!(said.ok(), "{said:?}");
        let answer: Value = serde_json::from_str(&said.stdout).unwrap();
        answer["items"].as_array().unwrap().clone()
    }

    /// Waits until this is true of a job, as a host sees it.
    pub fn until_job(
        &self,
        host: usize,
        id: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let found = until(PATIENCE, || {
            last = self.job(host, id).or(last.take());
            last.clone().filter(|job| is(job))
        });
        found.unwrap_or_else(|| panic!("{id} is never {what}: {last:?}"))
    }

    /// Waits until a job is in this state. One that ends otherwise is not waited for.
    pub fn until_state(&self, host: usize, id: &str, state: &str) -> Value {
        let is = |job: &Value| job["state"] == state || job["is_final"] == true;
        let job = self.until_job(host, id, state, is);
        assert_eq!(job["state"], state, "{job}");
        job
    }

    /// Waits until a job is done.
    pub fn done(&self, host: usize, id: &str) -> Value {
        self.until_state(host, id, "done")
    }

    /// What a job has printed to standard output so far, as a host shows it.
    pub fn printed(&self, host: usize, id: &str) -> String {
        let said = self.mesh(host, &["logs", id]);
        assert!(said.ok(), "{said:?}");
        said.stdout
    }

    /// The same of one of its tasks.
    pub fn printed_by(&self, host: usize, id: &str, task: usize) -> String {
        let said = self.mesh(host, &["logs", id, "--task", &task.to_string()]);
        assert!(said.ok(), "{said:?}");
        said.stdout
    }

    /// Waits until a task has printed a line that begins so; the rest of that line.
    pub fn until_line(&self, host: usize, id: &str, task: usize, begins: &str) -> String {
        let mut last = String::new();
        let found = until(PATIENCE, || {
            last = self.printed_by(host, id, task);
            last.lines().find_map(|line| line.strip_prefix(begins)).map(str::to_owned)
        });
        found.unwrap_or_else(|| panic!("task {task} of {id} never prints {begins:?}: {last:?}"))
    }

    /// The host that a task is on, or was on last.
    pub fn node_of(&self, job: &Value, task: usize) -> usize {
        let name = &job["tasks"][task]["node"];
        let found = self.hosts.iter().position(|host| *name == host.name.as_str());
        found.unwrap_or_else(|| panic!("task {task} is nowhere: {job}"))
    }

    /// The directory in which an attempt starts, as its host sees it.
    pub fn home(&self, job: &Value, task: usize) -> PathBuf {
        let (id, fence) = (job["id"].as_str().unwrap(), &job["tasks"][task]["fence"]);
        let work = self.hosts[self.node_of(job, task)].data().join("work");
        work.join(format!("{id}-{task}-{fence}")).join("task/home")
    }

    /// Lets an attempt go on that waits.
    pub fn let_go(&self, job: &Value, task: usize) {
        fs::write(self.home(job, task).join("go"), "").unwrap();
    }

    /// Lets all tasks of a job go on, whichever attempt they are at, until it is over.
    pub fn release(&self, host: usize, id: &str) -> Value {
        let mut last = None;
        let over = until(PATIENCE, || {
            last = self.job(host, id).or(last.take());
            let job = last.clone()?;
            if job["is_final"] == true {
                return Some(job);
            }
            for (task, about) in job["tasks"].as_array()?.iter().enumerate() {
                if about["state"] == "running" {
                    // It may have ended since.
                    let _ = fs::write(self.home(&job, task).join("go"), "");
                }
            }
            None
        });
        over.unwrap_or_else(|| panic!("{id} is never over: {last:?}"))
    }

    /// The one version that there is of a name, pulled on a host.
    pub fn only_version(&self, host: usize, name: &str) -> PathBuf {
        let log = self.data(host, &["log", name]);
        assert_eq!(log.as_array().map(Vec::len), Some(1), "{log}");
        let into = self.fresh(host, name);
        self.data(host, &["pull", name, text(&into)]);
        into
    }

    /// Nobody panicked, and nobody ended who was not asked to.
    pub fn calm(&self) {
        for host in &self.hosts {
            let fell = host.fell();
            assert!(fell.is_none(), "a node fell: {fell:?}");
        }
    }

    /// Prints all jobs, as the first host that answers sees them.
    fn show(&self) {
        let told = self.hosts.iter().find_map(|host| {
            let asked = host.client().ask("GET", "/v1/jobs?all=true", None, client::PATIENCE);
            Some(asked.ok()?.body["items"].clone())
        });
        for job in told.iter().filter_map(Value::as_array).flatten() {
            println!("{job}");
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
        }
        // First those who would start them again.
        for host in &mut self.fleet.hosts {
            let _ = host.kill();
        }
        let mark = format!("{GROUND}={}", self.mark);
        until(SETTLE, || {
            leftovers::signal(&mark, Signal::SIGKILL);
            let groups = groups(Path::new("/sys/fs/cgroup"), &self.nodes, MAX_GROUP_DEPTH);
            for group in &groups {
                let _ = fs::remove_dir(group);
            }
            (groups.is_empty() && leftovers::processes(&mark).is_empty()).then_some(())
        });
    }
}

/// The cgroups of these nodes' attempts.
fn groups(dir: &Path, nodes: &[String], depth: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if nodes.iter().any(|node| name.starts_with(&format!("{node}."))) {
            found.push(path);
        } else if depth > 0 {
            found.extend(groups(&path, nodes, depth - 1));
        }
    }
    found
}
