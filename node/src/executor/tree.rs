//! Processes without a cgroup to count them: who descends from whom, and how much memory that is.
//!
//! A supervisor is the reaper of all that its task starts, so that a process which puts itself into the background
//! becomes the supervisor's own child, and the tree below it is everything there is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::launch::MARK;

/// More of an environment than this is not looked at.
const MAX_ENVIRON: u64 = 1 << 20;

/// Everything below a process, itself left out. Those that are dead and wait to be buried are left out, too.
pub(super) fn descendants(of: u32) -> Vec<u32> {
    let children = children();
    let mut found = BTreeSet::new();
    let mut next = vec![of];
    while let Some(parent) = next.pop() {
        let below = children.get(&parent).map(Vec::as_slice).unwrap_or_default();
        // A process is seen once even if the table was read while it changed.
        next.extend(below.iter().filter(|child| **child != of && found.insert(**child)));
    }
    found.into_iter().collect()
}

/// Processes that carry an attempt's mark.
pub(super) fn marked(name: &str) -> Vec<u32> {
    let mark = format!("{MARK}={name}");
    let has_mark = |pid: &u32| {
        let mut environ = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/environ"));
        let read = file.and_then(|file| file.take(MAX_ENVIRON).read_to_end(&mut environ));
        read.is_ok() && environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
    };
    processes().filter(has_mark).collect()
}

/// Sends a signal to each. One that is gone needs none.
pub(super) fn signal(pids: &[u32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| i32::try_from(*pid).ok()).filter(|pid| *pid > 1) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Memory of processes, each counted for itself: what they share counts several times.
pub(super) fn memory(pids: &[u32]) -> u64 {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    let page = page.and_then(|page| u64::try_from(page).ok()).unwrap_or(4096);
    let resident = |pid: &u32| {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        statm.split(' ').nth(1)?.parse::<u64>().ok()
    };
    pids.iter().filter_map(resident).sum::<u64>().saturating_mul(page)
}

/// Memory of processes, what they share divided among them. Takes milliseconds where there is much.
pub(super) fn shared_memory(pids: &[u32]) -> u64 {
    let proportional = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    pids.iter().filter_map(proportional).sum::<u64>().saturating_mul(1024)
}

/// Processor time that processes have used, in milliseconds, with those of their children that are buried.
pub(super) fn processor_ms(pids: &[u32]) -> u64 {
    let tick = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    let tick =
        tick.and_then(|tick| u64::try_from(tick).ok()).filter(|tick| *tick > 0).unwrap_or(100);
    let used = |pid: &u32| {
        let stat = Stat::read(&format!("/proc/{pid}/stat"))?;
        Some(stat.ticks)
    };
    pids.iter().filter_map(used).sum::<u64>().saturating_mul(1000) / tick
}

/// Whose children are which.
fn children() -> BTreeMap<u32, Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in processes() {
        if let Some(stat) = Stat::read(&format!("/proc/{pid}/stat")).filter(|stat| !stat.is_dead) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    children
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(Path::new("/proc")).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    is_dead: bool,
    ticks: u64,
}

impl Stat {
    fn read(path: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    /// "pid (name) state parent …", and a name may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
        Some(Self {
            is_dead: matches!(*fields.first()?, "Z" | "X"),
            parent: fields.get(1)?.parse().ok()?,
            // User and system time, its own and of the children that it has waited for.
            ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "12 (a) Z (b) c)) S 7 12 12 0 -1 4194560 1 0 0 0 3 4 1 2 20 0 1 0 99 8192 1";
        assert_eq!(Stat::parse(stat), Some(Stat { parent: 7, is_dead: false, ticks: 10 }));
        assert_eq!(Stat::parse("12 (a"), None);
    }

    #[test]
    fn what_a_process_starts_is_below_it() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & sleep 60"])
            .env(MARK, "tree-test-0-1")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let begun = crate::clock::steady();
        let mut below = Vec::new();
        while below.len() < 2 && begun.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            below = descendants(shell.id());
        }
        assert_eq!(below.len(), 2);
        assert!(descendants(std::process::id()).contains(&below[0]));
        let mut all = marked("tree-test-0-1");
        all.sort_unstable();
        assert_eq!(all.len(), 3);
        assert!(marked("tree-test-0-10").is_empty());
        assert!(memory(&all) > 0 && shared_memory(&all) <= memory(&all));
        signal(&all, Signal::SIGKILL);
        shell.wait().unwrap();
    }
}
