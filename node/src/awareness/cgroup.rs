//! The limits that a container or a service manager sets to this process, in both kinds of cgroups.
//!
//! Only memory and the use of processors: how many processors there are, the standard library knows.
//! Limits hold along the whole path, so each directory up to the root is asked. A container may see
//! a path that is not there inside it; then only the directories that exist count.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::resources::read;

/// Version 1 writes "no limit" as a number near the largest there is.
const NO_LIMIT: u64 = 1 << 60;

/// Where this process stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cgroup {
    memory: Option<Place>,
    processor: Option<Place>,
}

/// A directory of one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Where the controller is mounted.
    mount: PathBuf,
    /// From there; only plain names.
    path: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// What the limits leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    /// The tightest limit.
    pub(super) limit: u64,
    /// What may still be used before one of the limits is met.
    pub(super) free: u64,
}

impl Cgroup {
    /// Finds it below `root`, which is `/` except in tests.
    pub(super) fn open(root: &Path) -> Self {
        let lines = read(&root.join("proc/self/cgroup")).unwrap_or_default();
        let base = root.join("sys/fs/cgroup");
        Self { memory: place(&lines, &base, "memory"), processor: place(&lines, &base, "cpuacct") }
    }

    /// What the limits leave, if there are any.
    pub(super) fn memory(&self) -> Option<Memory> {
        let place = self.memory.as_ref()?;
        let limits = place.ancestors().filter_map(|dir| match place.version {
            Version::One => memory(
                &dir,
                ["memory.limit_in_bytes", "memory.usage_in_bytes"],
                "total_inactive_file",
            ),
            Version::Two => memory(&dir, ["memory.max", "memory.current"], "inactive_file"),
        });
        limits.reduce(|a, b| Memory { limit: a.limit.min(b.limit), free: a.free.min(b.free) })
    }

    /// How much processor time this group has used.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        let place = self.processor.as_ref()?;
        place.ancestors().find_map(|dir| match place.version {
            Version::One => number(&dir.join("cpuacct.usage")).map(Duration::from_nanos),
            Version::Two => field(&dir.join("cpu.stat"), "usage_usec").map(Duration::from_micros),
        })
    }
}

impl Place {
    /// From this process's own directory up to the mount.
    fn ancestors(&self) -> impl Iterator<Item = PathBuf> {
        self.path.ancestors().map(|path| self.mount.join(path))
    }
}

/// Lines are `number:controllers:path`; version 2 is the line without controllers.
fn place(lines: &str, base: &Path, controller: &str) -> Option<Place> {
    let fields = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1).map(str::to_owned);
        Some((fields.next()?, fields.next()?))
    };
    let all: Vec<(String, String)> = lines.lines().filter_map(fields).collect();
    let one = all.iter().find(|(names, _)| names.split(',').any(|name| name == controller));
    if let Some((_, path)) = one {
        let mount = base.join(controller);
        return Some(Place { mount, path: plain(path), version: Version::One });
    }
    let (_, path) = all.iter().find(|(names, _)| names.is_empty())?;
    Some(Place { mount: base.to_owned(), path: plain(path), version: Version::Two })
}

/// Without the root and without `..`, which a cgroup namespace may show.
fn plain(path: &str) -> PathBuf {
    Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn memory(dir: &Path, [limit, usage]: [&str; 2], reclaimable: &str) -> Option<Memory> {
    let limit = number(&dir.join(limit)).filter(|limit| *limit < NO_LIMIT)?;
    let used = number(&dir.join(usage)).unwrap_or(0);
    // Files that nobody has touched lately are given back before anyone is killed.
    let cached = field(&dir.join("memory.stat"), reclaimable).unwrap_or(0);
    Some(Memory { limit, free: limit.saturating_sub(used.saturating_sub(cached)) })
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
