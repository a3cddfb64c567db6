//! What this machine is made of, and how busy it is: processors, memory, disk.
//!
//! Read straight from `/proc` and the cgroup files: a sample is half a dozen small reads and keeps
//! nothing but two counters. What cannot be read is 0 or left empty, which means "not known".
//! Limits of a container count: what this process may not use is not offered to others.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::bounded::{Ratio, Text};
use super::cgroup::Cgroup;
use super::network;
use super::record::{Facts, Load};
use crate::clock;

/// More of a file in `/proc` than this is not read.
const MAX_FILE: u64 = 64 << 10;

/// This machine, as far as this process may use it.
#[derive(Debug)]
pub struct Machine {
    /// `/`, except in tests.
    root: PathBuf,
    /// The data directory: its file system is the disk that is measured.
    dir: PathBuf,
    cgroup: Cgroup,
    cpus: u32,
    /// Fewer processors than the machine has: then the machine's own counters mislead.
    is_limited: bool,
    /// Own use is counted against the time since then.
    opened: Instant,
    last: Option<Ticks>,
}

/// Processor time at some moment, in any unit: only ratios of differences are used.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    busy: f64,
    all: f64,
}

impl Machine {
    /// The machine whose disk is the one under `dir`.
    pub fn open(dir: &Path) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::under(Path::new("/"), dir, u32::try_from(cpus).unwrap_or(u32::MAX))
    }

    fn under(root: &Path, dir: &Path, cpus: u32) -> Self {
        let stat = read(&root.join("proc/stat")).unwrap_or_default();
        let is_processor = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        let present = stat.lines().filter(is_processor).count();
        Self {
            root: root.to_owned(),
            dir: dir.to_owned(),
            cgroup: Cgroup::open(root),
            cpus,
            is_limited: (cpus as usize) < present,
            opened: clock::steady(),
            last: None,
        }
    }

    /// What the machine is made of. GPUs, Docker and [`fsync_p99`] are looked at elsewhere.
    ///
    /// Once a minute is often enough: a changed fact costs every node a whole record.
    pub fn facts(&self) -> Facts {
        let line = |path: &str| Text::new(&read(&self.root.join(path)).unwrap_or_default());
        Facts {
            arch: Text::new(std::env::consts::ARCH),
            os: Text::new(std::env::consts::OS),
            kernel: line("proc/sys/kernel/osrelease"),
            hostname: line("proc/sys/kernel/hostname"),
            cpus: self.cpus,
            memory_bytes: self.memory().0,
            disk_bytes: self.disk().0,
            fsync_p99_us: 0,
            interfaces: network::interfaces(),
            gpus: Vec::new(),
            docker: Text::default(),
        }
    }

    /// How busy it is. The processors' share is that since the last call; 0 in the first.
    pub fn load(&mut self, now: Instant) -> Load {
        Load {
            time_ms: clock::now().0,
            cpu: self.processor_share(now),
            load1_milli: self.load1_milli(),
            memory_free_bytes: self.memory().1,
            disk_free_bytes: self.disk().1,
            gpus: Vec::new(),
        }
    }

    fn load1_milli(&self) -> u32 {
        let line = read(&self.root.join("proc/loadavg")).unwrap_or_default();
        let first = line.split(' ').next().and_then(|load| load.parse::<f64>().ok());
        (first.unwrap_or(0.0) * 1000.0) as u32
    }

    /// All and free memory, in bytes.
    fn memory(&self) -> (u64, u64) {
        let text = read(&self.root.join("proc/meminfo")).unwrap_or_default();
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        };
        let all = kib("MemTotal:").unwrap_or(0).saturating_mul(1024);
        let free = kib("MemAvailable:").unwrap_or(0).saturating_mul(1024);
        match self.cgroup.memory() {
            Some(limits) => (all.min(limits.limit), free.min(limits.free)),
            None => (all, free),
        }
    }

    /// The size of the data directory's file system, and what of it may be used.
    fn disk(&self) -> (u64, u64) {
        let Ok(stat) = nix::sys::statvfs::statvfs(&self.dir) else { return (0, 0) };
        let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        (bytes(stat.blocks()), bytes(stat.blocks_available()))
    }

    fn processor_share(&mut self, now: Instant) -> Ratio {
        let ticks = if self.is_limited { self.own_ticks(now) } else { self.machine_ticks() };
        let (Some(now), last) = (ticks, std::mem::replace(&mut self.last, ticks)) else {
            return Ratio::default();
        };
        match last {
            Some(last) if now.all > last.all => {
                Ratio::new((now.busy - last.busy) / (now.all - last.all))
            }
            _ => Ratio::default(),
        }
    }

    /// Of the whole machine, since it started.
    fn machine_ticks(&self) -> Option<Ticks> {
        let text = read(&self.root.join("proc/stat"))?;
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guests are part of user.
        let fields: Vec<f64> =
            line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
        let all = fields.iter().sum();
        let idle = fields.get(3)? + fields.get(4)?;
        Some(Ticks { busy: all - idle, all })
    }

    /// Of this process's cgroup, against the processors that it may use.
    fn own_ticks(&self, now: Instant) -> Option<Ticks> {
        let since = now.saturating_duration_since(self.opened);
        let busy = self.cgroup.processor_time()?.as_secs_f64();
        Some(Ticks { busy, all: since.as_secs_f64() * f64::from(self.cpus) })
    }
}

/// How long a synced write of 4 KiB in `dir` takes, at worst but for one in a hundred.
///
/// Blocks for as long as the disk takes, usually some 10 ms for 64 `writes`: fewer on a disk that needs
/// more than 2 s for them.
pub fn fsync_p99(dir: &Path, writes: u64) -> io::Result<Duration> {
    const BLOCK: [u8; 4096] = [0xa5; 4096];
    const PATIENCE: Duration = Duration::from_secs(2);

    let path = dir.join(format!(".fsync-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    // Without a name it is gone when this function is, however that happens.
    std::fs::remove_file(&path)?;
    let start = clock::steady();
    let mut took = Vec::new();
    for write in 0..writes.max(1) {
        let before = clock::steady();
        file.write_all_at(&BLOCK, write * BLOCK.len() as u64)?;
        file.sync_data()?;
        let after = clock::steady();
        took.push(after - before);
        if after - start > PATIENCE {
            break;
        }
    }
    took.sort_unstable();
    Ok(took[(took.len() * 99).div_ceil(100) - 1])
}

/// A small file of the kernel's, or nothing.
pub(super) fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;
