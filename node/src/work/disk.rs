//! Room on disk: what a task has written is measured now and then, and held against what it asked for.
//!
//! Counted is what lies in the two places that a task may write, [`Rooms::home`] and [`Rooms::tmp`]: its code, its
//! checkpoint, and whatever it made there, by the blocks that the files have on the disk. Data that it only reads is
//! not counted, nor memory (`/dev/shm`), nor what a container writes elsewhere in its image.
//!
//! It is a look now and then, not a wall: one that writes quickly gets past it for a moment.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::fetch::Rooms;
use crate::state::jobs::{Exit, note};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(2);
/// A look that took long is not taken again before so many times as long.
const REST: u32 = 20;
/// What the system counts blocks in, whatever their size is.
const BLOCK: u64 = 512;

/// Returns once a task has more on the disk than it asked for: how it ends. Never, if it asked for nothing.
pub(super) async fn until_over(rooms: &Rooms, limit: u64) -> Exit {
    until_more(rooms, limit, LOOK).await
}

async fn until_more(rooms: &Rooms, limit: u64, every: Duration) -> Exit {
    if limit == 0 {
        return std::future::pending().await;
    }
    let mut pause = every;
    loop {
        sleep(pause).await;
        let begun = Instant::now();
        let places = vec![rooms.home.clone(), rooms.tmp.clone()];
        let measured = tokio::task::spawn_blocking(move || used(places, limit)).await;
        if measured.is_ok_and(|bytes| bytes > limit) {
            return ended(limit);
        }
        pause = every.max(REST * begun.elapsed());
    }
}

/// How a task ends that wrote too much. Another attempt would do the same.
fn ended(limit: u64) -> Exit {
    Exit::Cannot(note(&format!("killed: disk: it wrote more than its {} MiB", limit >> 20)))
}

/// The bytes that everything beneath these directories has on the disk; no more is counted than tells that it is over
/// `limit`. Links are not followed, and a file with several names counts once.
fn used(mut places: Vec<PathBuf>, limit: u64) -> u64 {
    let mut seen = BTreeSet::new();
    let mut sum = 0u64;
    while let Some(dir) = places.pop() {
        // What is gone meanwhile has nothing on the disk.
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(about) = entry.metadata() else { continue };
            if about.is_dir() {
                places.push(entry.path());
            } else if about.nlink() > 1 && !seen.insert((about.dev(), about.ino())) {
                continue;
            }
            sum = sum.saturating_add(about.blocks().saturating_mul(BLOCK));
            if sum > limit {
                return sum;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_disk_counts_once_and_what_is_elsewhere_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let (home, out) = (temp.path().join("home"), temp.path().join("out"));
        fs::create_dir_all(home.join("a/b")).unwrap();
        fs::create_dir_all(&out).unwrap();
        let before = used(vec![home.clone()], u64::MAX);
        fs::write(out.join("large"), vec![1u8; 8 << 20]).unwrap();
        std::os::unix::fs::symlink(&out, home.join("link")).unwrap();
        fs::write(home.join("a/b/file"), vec![1u8; 1 << 20]).unwrap();
        fs::hard_link(home.join("a/b/file"), home.join("again")).unwrap();
        // Nothing but its size.
        fs::File::create(home.join("hole")).unwrap().set_len(1 << 40).unwrap();
        let grown = used(vec![home.clone()], u64::MAX) - before;
        assert!((1 << 20..2 << 20).contains(&grown), "{grown}");
        assert!(used(vec![home.join("a"), home.join("nowhere")], 1 << 19) > 1 << 19);
    }

    #[tokio::test]
    async fn a_task_that_writes_too_much_is_ended_for_good() {
        let temp = tempfile::tempdir().unwrap();
        let rooms = Rooms::of(temp.path());
        fs::create_dir_all(&rooms.tmp).unwrap();
        fs::write(rooms.tmp.join("file"), vec![1u8; 3 << 20]).unwrap();
        let every = Duration::from_millis(1);
        let exit = until_more(&rooms, 2 << 20, every).await;
        assert!(matches!(exit, Exit::Cannot(_)) && exit.text().starts_with("killed: disk"));
        for limit in [0, 8 << 20] {
            let more = until_more(&rooms, limit, every);
            assert!(tokio::time::timeout(50 * every, more).await.is_err(), "{limit}");
        }
    }
}
