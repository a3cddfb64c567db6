//! How quickly this node's disk syncs: measured when it starts, and again if that was slow.

use std::time::{Duration, Instant};

use crate::awareness::resources::fsync_p99;
use crate::dir::Dir;
use crate::state::member::MAX_FSYNC_US;

/// Writes of the first measurement.
pub const FIRST: u64 = 64;
/// Writes of a later one: the disk may be a cheap card, and others use it.
pub(super) const AGAIN: u64 = 8;
/// A disk slower than this is measured again.
const SLOW_US: u32 = MAX_FSYNC_US / 2;
/// How soon at first; each time after twice as long …
const SOON: Duration = Duration::from_secs(10);
/// … up to this.
const SELDOM: Duration = Duration::from_secs(3600);

/// How long a sync of the node's disk takes at worst; `None` if that cannot be measured.
pub async fn measure_sync(dir: &Dir, writes: u64) -> Option<u32> {
    let path = dir.path().to_path_buf();
    let measure = move || fsync_p99(&path, writes).ok();
    let p99 = tokio::task::spawn_blocking(measure).await.ok().flatten()?;
    Some(u32::try_from(p99.as_micros()).unwrap_or(u32::MAX).max(1))
}

/// When to measure again. A disk that was busy when the node started would keep it from voting for good; one that is
/// slow stays slow.
#[derive(Debug)]
pub(super) struct Again {
    at: Instant,
    gap: Duration,
}

impl Again {
    pub(super) fn new(now: Instant) -> Self {
        Self { at: now + SOON, gap: SOON }
    }

    /// Whether to measure now, given whether the node may vote and what was measured last.
    pub(super) fn is_due(&mut self, now: Instant, votes: bool, last_us: Option<u32>) -> bool {
        let due = votes && last_us.is_none_or(|us| us > SLOW_US) && now >= self.at;
        if due {
            self.gap = (2 * self.gap).min(SELDOM);
            self.at = now + self.gap;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    /// Writes to the disk in so many hours.
    fn writes(hours: u64, votes: bool, measured: Option<u32>) -> u64 {
        let start = clock::steady();
        let mut again = Again::new(start);
        let due =
            |second: &u64| again.is_due(start + Duration::from_secs(*second), votes, measured);
        AGAIN * (0..hours * 3600).filter(due).count() as u64
    }

    #[test]
    fn a_slow_disk_is_measured_ever_less_often_and_a_fast_one_never() {
        assert_eq!(writes(24, true, Some(SLOW_US)), 0);
        assert_eq!(writes(24, false, Some(10 * SLOW_US)), 0, "it never votes");
        assert_eq!(writes(24, false, None), 0, "it never votes");
        for slow in [None, Some(2 * SLOW_US)] {
            let (hour, day) = (writes(1, true, slow), writes(24, true, slow));
            assert!(hour > AGAIN && hour <= 80, "{hour}");
            // Fewer than one in five minutes.
            assert!(day > hour && day <= 288, "{day}");
        }
    }
}
