//! The numbers of this node's batches: none is used twice, and none too far ahead of one that is unanswered.

use std::collections::VecDeque;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::dir::{Dir, DirError};

/// Numbers that are reserved at a time.
pub const BLOCK: u64 = 4096;
/// No node comes this far, though it signed a batch each microsecond for thirty thousand years. A higher number is
/// a lie or damage; the state refuses only what is higher still, so there is always room above.
pub const MAX_NUMBER: u64 = 1 << 60;
/// Numbers between the oldest batch that is unanswered and the newest: half of the window within which the state
/// tells one that came late from one that came twice.
pub const SPAN: u64 = mesh_consensus::replica::WINDOW / 2;

/// The highest number that must not be used again, if this directory has `reserved` so many and the mesh has seen
/// `top`. A mesh that has seen more than was reserved knows a later state of this directory, and more batches may be
/// on their way from then.
pub fn used(reserved: u64, top: u64) -> u64 {
    if reserved >= top { reserved } else { top.saturating_add(BLOCK) }
}

/// Hands out numbers, and keeps the disk ahead of them.
#[derive(Debug)]
pub struct Sequence {
    dir: Dir,
    reserved: u64,
    /// `None` until it is known what the mesh has seen of this node.
    next: Option<u64>,
}

impl Sequence {
    /// Reads how far numbers were reserved. Where that is damaged, what the mesh has seen has to do.
    pub fn open(dir: Dir) -> Result<Self, DirError> {
        let reserved = match dir.reserved() {
            Ok(reserved) if reserved <= MAX_NUMBER => reserved,
            Ok(_) | Err(DirError::Damaged(_)) => {
                tracing::warn!("the file numbers is damaged: going on from what the mesh has seen");
                0
            }
            Err(error) => return Err(error),
        };
        Ok(Self { dir, reserved, next: None })
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.next.is_some()
    }

    /// Begins after everything that was reserved here, and after `top`, the last that the mesh has seen.
    pub fn begin(&mut self, top: u64) {
        let used = used(self.reserved, top);
        if used > self.reserved {
            tracing::warn!(reserved = self.reserved, top, "the mesh has seen later numbers");
        }
        self.next.get_or_insert(used.saturating_add(1));
    }

    /// The number that is next.
    pub fn next(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    /// Takes the next number. It is reserved, durably.
    pub fn take(&mut self) -> Result<u64, DirError> {
        let number = self.next();
        if number > self.reserved {
            let reserved = number.saturating_add(BLOCK);
            self.dir.reserve(reserved)?;
            self.reserved = reserved;
        }
        self.next = Some(number.saturating_add(1));
        Ok(number)
    }
}

/// A batch that is on its way.
#[derive(Debug)]
pub struct Flight {
    /// Its number.
    pub number: u64,
    /// When it left.
    pub left: Instant,
    /// Ends with its answer.
    pub task: JoinHandle<()>,
}

/// The batches that are on their way, the oldest first.
#[derive(Debug, Default)]
pub struct Flights(VecDeque<Flight>);

impl Flights {
    /// Adds the newest.
    pub fn add(&mut self, flight: Flight) {
        self.0.push_back(flight);
    }

    /// Waits until the newest is answered, or has been away for `limit`.
    pub async fn gather(&mut self, limit: std::time::Duration) {
        if let Some(last) = self.0.back_mut()
            && timeout_at(last.left + limit, &mut last.task).await.is_ok()
        {
            self.0.pop_back();
        }
    }

    /// Waits until `next` is less than [`SPAN`] ahead of the oldest that is unanswered.
    pub async fn make_room(&mut self, next: u64) {
        while let Some(first) = self.0.front_mut() {
            if !first.task.is_finished() {
                if next.saturating_sub(first.number) < SPAN {
                    return;
                }
                let _ = (&mut first.task).await;
            }
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    fn fresh() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        dir.create().unwrap();
        (temp, dir)
    }

    fn begun(dir: &Dir, top: u64) -> Sequence {
        let mut sequence = Sequence::open(dir.clone()).unwrap();
        sequence.begin(top);
        sequence
    }

    #[test]
    fn no_number_is_used_twice_not_even_after_a_crash() {
        let (_temp, dir) = fresh();
        let mut sequence = begun(&dir, 0);
        let used: Vec<u64> = (0..3).map(|_| sequence.take().unwrap()).collect();
        assert_eq!(used, [1, 2, 3]);
        // The process dies; nothing is said to the disk.
        assert!(begun(&dir, 3).take().unwrap() > 3);
    }

    #[test]
    fn a_directory_that_was_set_back_goes_on_after_what_the_mesh_has_seen() {
        let (_temp, dir) = fresh();
        dir.reserve(100).unwrap();
        // More may be on their way than have counted.
        assert!(begun(&dir, 5000).take().unwrap() > 5000 + 2 * SPAN);
        assert!(dir.reserved().unwrap() > 5000);
    }

    #[test]
    fn damaged_numbers_and_absurd_ones_go_on_from_what_the_mesh_has_seen() {
        for absurd in [false, true] {
            let (_temp, dir) = fresh();
            match absurd {
                true => dir.reserve(u64::MAX).unwrap(),
                false => std::fs::write(dir.file("numbers"), "rubbish").unwrap(),
            }
            let number = begun(&dir, 77).take().unwrap();
            assert!(number > 77 && number < MAX_NUMBER, "{number}");
            assert!(dir.reserved().unwrap() >= number);
        }
    }

    #[tokio::test]
    async fn numbers_do_not_run_away_from_a_batch_that_is_unanswered() {
        let mut flights = Flights::default();
        let (answer, answered) = oneshot::channel::<()>();
        let waits = tokio::spawn(async move { answered.await.unwrap_or_default() });
        flights.add(Flight { number: 1, left: Instant::now(), task: waits });
        for number in 2..=SPAN {
            flights.make_room(number).await;
            let task = tokio::spawn(async {});
            flights.add(Flight { number, left: Instant::now(), task });
        }
        let soon = Duration::from_millis(50);
        let early = tokio::time::timeout(soon, flights.make_room(SPAN + 1)).await;
        assert!(early.is_err(), "number 1 is still on its way");
        answer.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(30), flights.make_room(SPAN + 1)).await.unwrap();
    }

    #[tokio::test]
    async fn what_was_gathered_is_not_waited_for_again() {
        let mut flights = Flights::default();
        let task = tokio::spawn(async {});
        flights.add(Flight { number: 1, left: Instant::now(), task });
        for _ in 0..2 {
            flights.gather(Duration::from_secs(30)).await;
            flights.make_room(1000).await;
        }
    }
}
