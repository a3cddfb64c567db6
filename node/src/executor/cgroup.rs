//! Where the processes of an attempt are counted and limited: cgroups of both versions behind one type.
//!
//! ```text
//! version 1   /sys/fs/cgroup/{memory,cpu,cpuacct,pids}/mesh/NODE.NAME     one directory for each controller
//! version 2   /sys/fs/cgroup/mesh/NODE.NAME
//! ```
//!
//! Attempts stand at the top, not below the node, so that stopping the node's service does not concern them, unless
//! the node itself is limited: then its attempts are limited with it, and stand below.
//!
//! A process enters by itself, before it starts others, and stays: see `enter`. So an attempt's supervisor is a
//! member, too. It is passed over when the others are killed, and the system does not choose it when memory is short.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};

use super::launch::Limits;
use super::tree;
use crate::clock::steady;

/// Version 1 writes "no limit" as a number near the largest there is.
const NO_LIMIT: u64 = 1 << 60;
/// What processor time is measured against, in microseconds.
const PERIOD_US: u64 = 100_000;
/// How long the killed may take to be gone.
const GONE: Duration = Duration::from_secs(5);
/// The directory beneath which attempts stand.
const OURS: &str = "mesh";
/// Where a node goes that must leave its own directory to what stands below: version 2 wants processes in leaves only.
const LEAF: &str = "mesh-node";

/// Which cgroups a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// One tree for each controller.
    One,
    /// One tree.
    Two,
}

/// A group, or the place beneath which groups are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Group {
    /// The directories of those controllers that can be used. Some may be the same.
    One {
        memory: Option<PathBuf>,
        cpu: Option<PathBuf>,
        account: Option<PathBuf>,
        pids: Option<PathBuf>,
    },
    /// One directory, and the controllers that are on in it.
    Two { dir: PathBuf, memory: bool, cpu: bool, pids: bool },
}

/// What a group uses now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Use {
    pub(super) memory_bytes: u64,
    pub(super) cpu_ms: u64,
    pub(super) pids: u64,
}

/// Finds the place beneath which groups can be made, and makes it. `root` is `/` except in tests. An error is for people.
pub(super) fn find(root: &Path) -> Result<Group, String> {
    let lines = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    let one = |controller: &str| {
        let tree = mount.join(controller);
        if !tree.join("cgroup.procs").exists() {
            return None;
        }
        let own = path_of(&lines, controller)?;
        let top = if is_limited(&tree, &own) { tree.join(own) } else { tree };
        make(&top.join(OURS)).ok()
    };
    let found = Group::One {
        memory: one("memory"),
        cpu: one("cpu"),
        account: one("cpuacct"),
        pids: one("pids"),
    };
    if !found.dirs().is_empty() {
        if let Group::One { memory: Some(dir), .. } = &found {
            // Without it an old kernel counts a group for itself, not with those below.
            let _ = fs::write(dir.join("memory.use_hierarchy"), "1");
        }
        return Ok(found);
    }
    if !mount.join("cgroup.controllers").exists() {
        return Err("no cgroups are mounted here, or they are not ours to write".into());
    }
    let own = path_of(&lines, "").unwrap_or_default();
    let is_limited = is_limited(&mount, &own);
    let own = mount.join(own);
    let places = if is_limited { vec![own] } else { vec![mount, own] };
    let mut why = String::new();
    for place in places {
        match two(&place) {
            Ok(group) => return Ok(group),
            Err(error) => why = format!("{}: {error}", place.display()),
        }
    }
    Err(format!("the cgroups here are not ours to write ({why})"))
}

impl Group {
    /// Which cgroups these are.
    pub(super) fn version(&self) -> Version {
        match self {
            Group::One { .. } => Version::One,
            Group::Two { .. } => Version::Two,
        }
    }

    /// Whether memory, processors and numbers of processes can be limited.
    pub(super) fn limits(&self) -> (bool, bool, bool) {
        match self {
            Group::One { memory, cpu, pids, .. } => {
                (memory.is_some(), cpu.is_some(), pids.is_some())
            }
            Group::Two { memory, cpu, pids, .. } => (*memory, *cpu, *pids),
        }
    }

    /// Makes the group of an attempt, with its limits. An old one of that name is used again.
    pub(super) fn create(&self, name: &str, limits: &Limits) -> io::Result<Group> {
        let group = self.child(name);
        for dir in group.dirs() {
            make(dir)?;
        }
        if let Err(error) = group.limit(limits) {
            group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// The groups below whose names begin so.
    pub(super) fn below(&self, prefix: &str) -> BTreeSet<String> {
        let names = self.dirs().into_iter().flat_map(|dir| {
            let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
            let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            dirs.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
        });
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    /// The group of that name below this one.
    pub(super) fn child(&self, name: &str) -> Group {
        let below = |dir: &Option<PathBuf>| dir.as_ref().map(|dir| dir.join(name));
        match self {
            Group::One { memory, cpu, account, pids } => Group::One {
                memory: below(memory),
                cpu: below(cpu),
                account: below(account),
                pids: below(pids),
            },
            Group::Two { dir, memory, cpu, pids } => {
                Group::Two { dir: dir.join(name), memory: *memory, cpu: *cpu, pids: *pids }
            }
        }
    }

    /// Moves the calling process, which must have one thread, and all that it starts from now on.
    ///
    /// In version 1 a thread that moves itself is quick. To move a whole process, as version 2 wants it, the system
    /// waits until every processor has taken notice: 7 ms where that was measured.
    pub(super) fn enter(&self) -> io::Result<()> {
        match self {
            Group::One { .. } => {
                self.dirs().into_iter().try_for_each(|dir| fs::write(dir.join("tasks"), "0"))
            }
            Group::Two { dir, .. } => fs::write(dir.join("cgroup.procs"), "0"),
        }
    }

    /// The processes in it.
    pub(super) fn members(&self) -> Vec<u32> {
        let Some(dir) = self.dirs().into_iter().next() else { return Vec::new() };
        let text = read(&dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// From now on nobody in it starts another process or thread. Where that cannot be said, killing takes longer.
    pub(super) fn close(&self) {
        let dir = match self {
            Group::One { pids, .. } => pids.as_ref(),
            Group::Two { dir, pids, .. } => pids.then_some(dir),
        };
        if let Some(dir) = dir {
            let _ = fs::write(dir.join("pids.max"), "0");
        }
    }

    /// Kills all in it, from outside, and says whether they are gone.
    pub(super) fn kill(&self) -> bool {
        self.close();
        if let Group::Two { dir, .. } = self {
            // Since Linux 5.14; without it they are killed one by one.
            let _ = fs::write(dir.join("cgroup.kill"), "1");
        }
        let begun = steady();
        loop {
            let members = self.members();
            if members.is_empty() {
                return true;
            }
            if begun.elapsed() > GONE {
                return false;
            }
            tree::signal(&members, Signal::SIGKILL);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Removes it, if nobody is in it any more.
    pub(super) fn remove(&self) {
        for dir in self.dirs() {
            // Those that have just ended may take a moment to be counted out.
            for _ in 0..20 {
                match fs::remove_dir(dir) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    _ => break,
                }
            }
        }
    }

    /// How many processes the system has killed for the group's memory.
    pub(super) fn starved(&self) -> u64 {
        let count = match self {
            Group::One { memory: Some(dir), .. } => {
                field(&dir.join("memory.oom_control"), "oom_kill")
            }
            Group::Two { dir, .. } => field(&dir.join("memory.events"), "oom_kill"),
            Group::One { .. } => None,
        };
        count.unwrap_or(0)
    }

    /// The most memory that it had at a time; 0 if that is not known.
    pub(super) fn peak_memory(&self) -> u64 {
        let peak = match self {
            Group::One { memory: Some(dir), .. } => number(&dir.join("memory.max_usage_in_bytes")),
            // Since Linux 5.19.
            Group::Two { dir, .. } => number(&dir.join("memory.peak")),
            Group::One { .. } => None,
        };
        peak.unwrap_or(0)
    }

    /// What it uses now; 0 for what is not known. Files that are only cached do not count.
    pub(super) fn used(&self) -> Use {
        let used = match self {
            Group::One { memory, account, pids, .. } => {
                let memory = memory.as_ref().and_then(|dir| {
                    let cached = field(&dir.join("memory.stat"), "total_inactive_file");
                    let all = number(&dir.join("memory.usage_in_bytes"))?;
                    Some(all.saturating_sub(cached.unwrap_or(0)))
                });
                let nanos = account.as_ref().and_then(|dir| number(&dir.join("cpuacct.usage")));
                let pids = pids.as_ref().and_then(|dir| number(&dir.join("pids.current")));
                (memory, nanos.map(|nanos| nanos / 1_000_000), pids)
            }
            Group::Two { dir, .. } => {
                let cached = field(&dir.join("memory.stat"), "inactive_file").unwrap_or(0);
                let memory = number(&dir.join("memory.current"));
                let micros = field(&dir.join("cpu.stat"), "usage_usec");
                let pids = number(&dir.join("pids.current"));
                (
                    memory.map(|all| all.saturating_sub(cached)),
                    micros.map(|micros| micros / 1000),
                    pids,
                )
            }
        };
        let (memory_bytes, cpu_ms, pids) = used;
        Use {
            memory_bytes: memory_bytes.unwrap_or(0),
            cpu_ms: cpu_ms.unwrap_or(0),
            pids: pids.unwrap_or(0),
        }
    }

    fn limit(&self, limits: &Limits) -> io::Result<()> {
        // A limit that the host may not know is tried; one that was asked for and cannot be set is an error.
        let attempt =
            |dir: &Path, file: &str, value: String| drop(fs::write(dir.join(file), value));
        let set = |dir: &Path, file: &str, value: String| fs::write(dir.join(file), value);
        // The supervisor is one of them.
        let processes = u64::from(limits.pids) + 1;
        let quota =
            limits.cpu_milli.map(|milli| (milli.saturating_mul(PERIOD_US) / 1000).max(1000));
        match self {
            Group::One { memory, cpu, pids, .. } => {
                if let (Some(dir), Some(bytes)) = (memory, limits.memory_bytes) {
                    set(dir, "memory.limit_in_bytes", bytes.to_string())?;
                    // Swap included: there only if the kernel counts it.
                    attempt(dir, "memory.memsw.limit_in_bytes", bytes.to_string());
                }
                if let Some(dir) = cpu {
                    let shares = limits.cpu_weight_milli.saturating_mul(1024) / 1000;
                    attempt(dir, "cpu.shares", shares.clamp(2, 262_144).to_string());
                    if let Some(quota) = quota {
                        set(dir, "cpu.cfs_period_us", PERIOD_US.to_string())?;
                        set(dir, "cpu.cfs_quota_us", quota.to_string())?;
                    }
                }
                if let Some(dir) = pids {
                    set(dir, "pids.max", processes.to_string())?;
                }
            }
            Group::Two { dir, memory, cpu, pids } => {
                if let (true, Some(bytes)) = (memory, limits.memory_bytes) {
                    set(dir, "memory.max", bytes.to_string())?;
                    attempt(dir, "memory.swap.max", "0".into());
                    // All of an attempt or none of it, but for a supervisor that the system may not choose.
                    if nix::unistd::geteuid().is_root() {
                        attempt(dir, "memory.oom.group", "1".into());
                    }
                }
                if *cpu {
                    let weight = limits.cpu_weight_milli / 10;
                    attempt(dir, "cpu.weight", weight.clamp(1, 10_000).to_string());
                    if let Some(quota) = quota {
                        set(dir, "cpu.max", format!("{quota} {PERIOD_US}"))?;
                    }
                }
                if *pids {
                    set(dir, "pids.max", processes.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Its directories, each once.
    fn dirs(&self) -> Vec<&Path> {
        let dirs: Vec<&PathBuf> = match self {
            Group::One { memory, cpu, account, pids } => {
                [pids, memory, cpu, account].into_iter().flatten().collect()
            }
            Group::Two { dir, .. } => vec![dir],
        };
        let mut seen = BTreeSet::new();
        dirs.into_iter().map(PathBuf::as_path).filter(|dir| seen.insert(*dir)).collect()
    }
}

/// The place for groups below a directory of version 2, with the controllers switched on.
fn two(place: &Path) -> io::Result<Group> {
    let dir = make(&place.join(OURS))?;
    if switch_on(place).is_err() {
        // Somebody is in the directory itself. If it is this process alone, it makes way.
        let alone = read(&place.join("cgroup.procs")).unwrap_or_default();
        if alone.trim() != std::process::id().to_string() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let leaf = make(&place.join(LEAF))?;
        fs::write(leaf.join("cgroup.procs"), "0")?;
        switch_on(place)?;
    }
    switch_on(&dir)?;
    let on = read(&dir.join("cgroup.subtree_control")).unwrap_or_default();
    let has = |name: &str| on.split_whitespace().any(|word| word.trim_start_matches('+') == name);
    Ok(Group::Two { memory: has("memory"), cpu: has("cpu"), pids: has("pids"), dir })
}

/// Lets the groups below a directory be limited, by whatever of ours is there.
fn switch_on(dir: &Path) -> io::Result<()> {
    let there = read(&dir.join("cgroup.controllers")).unwrap_or_default();
    let wanted = ["cpu", "memory", "pids"];
    let words: Vec<String> = wanted
        .into_iter()
        .filter(|name| there.split_whitespace().any(|word| word == *name))
        .map(|name| format!("+{name}"))
        .collect();
    if words.is_empty() {
        return Ok(());
    }
    fs::write(dir.join("cgroup.subtree_control"), words.join(" "))
}

/// Makes a directory that is ours to write, or finds it.
fn make(dir: &Path) -> io::Result<PathBuf> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    access(dir, AccessFlags::W_OK)?;
    Ok(dir.to_path_buf())
}

/// Whether a group or one above it is held to something.
fn is_limited(tree: &Path, own: &Path) -> bool {
    own.ancestors().map(|path| tree.join(path)).any(|dir| {
        let below =
            |file: &str, most: u64| number(&dir.join(file)).is_some_and(|value| value < most);
        let quota = read(&dir.join("cpu.max")).is_some_and(|text| !text.trim().starts_with("max"));
        below("memory.limit_in_bytes", NO_LIMIT)
            || below("cpu.cfs_quota_us", NO_LIMIT)
            || below("memory.max", NO_LIMIT)
            || quota
    })
}

/// Where this process stands. Lines are `number:controllers:path`; version 2 is the line without controllers.
fn path_of(lines: &str, controller: &str) -> Option<PathBuf> {
    let path = lines.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        names.split(',').any(|name| name == controller).then_some(path)
    })?;
    // Without the root and without `..`, which a namespace may show.
    let plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    Some(Path::new(path).components().filter(plain).collect())
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &Path) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// The number after `name` in a file of lines `name number`.
fn field(path: &Path, name: &str) -> Option<u64> {
    let text = read(path)?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose directories are made to look like cgroups.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new(files: &[(&str, &str)]) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            for (name, text) in files {
                host.write(name, text);
            }
            host
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self, name: &str) -> String {
            read(&self.0.path().join("sys/fs/cgroup").join(name)).unwrap_or_default()
        }
    }

    const ONE: [(&str, &str); 6] = [
        (
            "proc/self/cgroup",
            "4:memory:/user/7\n3:cpu,cpuacct:/\n2:pids:/\n1:name=systemd:/x\n0::/\n",
        ),
        ("sys/fs/cgroup/memory/cgroup.procs", ""),
        ("sys/fs/cgroup/memory/user/7/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/cpu/cgroup.procs", ""),
        ("sys/fs/cgroup/cpuacct/cgroup.procs", ""),
        ("sys/fs/cgroup/pids/cgroup.procs", ""),
    ];

    const TWO: [(&str, &str); 3] = [
        ("proc/self/cgroup", "0::/system.slice/mesh.service\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
        ("sys/fs/cgroup/mesh/cgroup.controllers", "cpu memory pids\n"),
    ];

    fn limits() -> Limits {
        Limits {
            cpu_milli: Some(1500),
            cpu_weight_milli: 2000,
            memory_bytes: Some(512 << 20),
            pids: 100,
            shm_bytes: 0,
        }
    }

    #[test]
    fn version_one_has_a_directory_for_each_controller() {
        let host = Host::new(&ONE);
        let place = find(host.0.path()).unwrap();
        assert_eq!((place.version(), place.limits()), (Version::One, (true, true, true)));
        let group = place.create("a.job-0-1", &limits()).unwrap();
        let own = "mesh/a.job-0-1";
        assert_eq!(host.read(&format!("memory/{own}/memory.limit_in_bytes")), "536870912");
        assert_eq!(host.read(&format!("memory/{own}/memory.memsw.limit_in_bytes")), "536870912");
        assert_eq!(host.read(&format!("cpu/{own}/cpu.shares")), "2048");
        assert_eq!(host.read(&format!("cpu/{own}/cpu.cfs_quota_us")), "150000");
        assert_eq!(host.read(&format!("pids/{own}/pids.max")), "101");
        group.enter().unwrap();
        assert_eq!(host.read(&format!("cpuacct/{own}/tasks")), "0");
        group.close();
        assert_eq!(host.read(&format!("pids/{own}/pids.max")), "0");
        host.write(&format!("sys/fs/cgroup/pids/{own}/cgroup.procs"), "12\n345\n");
        assert_eq!(group.members(), [12, 345]);
        let memory = format!("sys/fs/cgroup/memory/{own}");
        host.write(
            &format!("{memory}/memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        );
        host.write(&format!("{memory}/memory.max_usage_in_bytes"), "1000\n");
        host.write(&format!("{memory}/memory.usage_in_bytes"), "900\n");
        host.write(&format!("{memory}/memory.stat"), "cache 1\ntotal_inactive_file 400\n");
        host.write(&format!("sys/fs/cgroup/cpuacct/{own}/cpuacct.usage"), "7000000\n");
        assert_eq!((group.starved(), group.peak_memory()), (2, 1000));
        assert_eq!(group.used(), Use { memory_bytes: 500, cpu_ms: 7, pids: 0 });
        assert_eq!(place.below("a."), BTreeSet::from(["a.job-0-1".to_owned()]));
        assert!(place.below("b.").is_empty());
    }

    #[test]
    fn who_is_limited_limits_its_attempts_with_it() {
        let host = Host::new(&ONE);
        host.write("sys/fs/cgroup/memory/user/7/memory.limit_in_bytes", "1073741824\n");
        let place = find(host.0.path()).unwrap();
        place.create("a.job-0-1", &limits()).unwrap();
        let inside = "memory/user/7/mesh/a.job-0-1/memory.limit_in_bytes";
        assert_eq!(host.read(inside), "536870912");
        assert_eq!(host.read("pids/mesh/a.job-0-1/pids.max"), "101");
    }

    #[test]
    fn version_two_has_one_directory() {
        let host = Host::new(&TWO);
        let place = find(host.0.path()).unwrap();
        assert_eq!((place.version(), place.limits()), (Version::Two, (true, true, true)));
        assert_eq!(host.read("cgroup.subtree_control"), "+cpu +memory +pids");
        let group = place.create("a.job-0-1", &limits()).unwrap();
        let own = "mesh/a.job-0-1";
        assert_eq!(host.read(&format!("{own}/memory.max")), "536870912");
        assert_eq!(host.read(&format!("{own}/memory.swap.max")), "0");
        assert_eq!(host.read(&format!("{own}/cpu.max")), "150000 100000");
        assert_eq!(host.read(&format!("{own}/cpu.weight")), "200");
        assert_eq!(host.read(&format!("{own}/pids.max")), "101");
        group.enter().unwrap();
        assert_eq!(host.read(&format!("{own}/cgroup.procs")), "0");
        host.write(&format!("sys/fs/cgroup/{own}/cgroup.procs"), "");
        host.write(&format!("sys/fs/cgroup/{own}/memory.events"), "low 0\noom 3\noom_kill 1\n");
        host.write(&format!("sys/fs/cgroup/{own}/memory.peak"), "77\n");
        host.write(&format!("sys/fs/cgroup/{own}/memory.current"), "50\n");
        host.write(&format!("sys/fs/cgroup/{own}/cpu.stat"), "usage_usec 9000\nuser_usec 1\n");
        assert_eq!((group.starved(), group.peak_memory()), (1, 77));
        assert_eq!(group.used(), Use { memory_bytes: 50, cpu_ms: 9, pids: 0 });
        assert!(group.kill());
        assert_eq!(host.read(&format!("{own}/cgroup.kill")), "1");
        assert_eq!(host.read(&format!("{own}/pids.max")), "0");
    }

    #[test]
    fn a_limited_node_alone_in_its_group_makes_way() {
        let host = Host::new(&TWO);
        let own = "sys/fs/cgroup/system.slice/mesh.service";
        host.write(&format!("{own}/memory.max"), "1073741824\n");
        host.write(&format!("{own}/cgroup.procs"), &format!("{}\n", std::process::id()));
        host.write(&format!("{own}/cgroup.controllers"), "memory\n");
        host.write(&format!("{own}/mesh/cgroup.controllers"), "memory\n");
        // A directory in the way: what the system answers with while a process is in the group.
        fs::create_dir(host.0.path().join(own).join("cgroup.subtree_control")).unwrap();
        assert!(find(host.0.path()).is_err(), "the second try is refused, too");
        assert_eq!(host.read("system.slice/mesh.service/mesh-node/cgroup.procs"), "0");
        host.write(&format!("{own}/cgroup.procs"), "1\n2\n");
        assert!(find(host.0.path()).unwrap_err().contains("not ours"));
    }

    #[test]
    fn a_host_without_cgroups_says_so() {
        let host = Host::new(&[("proc/self/cgroup", "")]);
        assert!(find(host.0.path()).unwrap_err().contains("no cgroups"));
    }
}
