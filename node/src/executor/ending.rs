//! When and why an attempt is ended. Pure: time is an argument, signals are sent by others.
//!
//! ```text
//!            asked, or out of time            out of grace
//!   runs ───────────────────────────► asked ───────────────► killed
//!     └──────────────── out of memory, or told to kill ─────────▲
//! ```

use std::time::{Duration, Instant};

use super::launch::Exit;

/// What should be done to an attempt now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// TERM.
    Ask,
    /// KILL.
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Asked,
    Time,
    Memory,
}

/// How the attempt itself ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Natural {
    Code(u8),
    Signal(u8),
}

/// The end of one attempt, from its start on.
#[derive(Debug)]
pub(super) struct Ending {
    /// For when the time limit asks.
    grace: Duration,
    limit_at: Option<Instant>,
    /// The first cause counts.
    why: Option<Why>,
    kill_at: Option<Instant>,
    forced: bool,
}

impl Ending {
    /// For an attempt that starts now, or has run for some of its time already.
    pub(super) fn new(now: Instant, grace: Duration, limit: Option<Duration>) -> Self {
        // A limit beyond the clock's end is none.
        let limit_at = limit.and_then(|limit| now.checked_add(limit));
        Self { grace, limit_at, why: None, kill_at: None, forced: false }
    }

    /// Somebody wants it to end.
    pub(super) fn stop(&mut self, now: Instant, grace: Duration) -> Option<Deed> {
        self.ask(now, grace, Why::Asked)
    }

    /// Somebody wants it gone.
    pub(super) fn kill(&mut self) -> Deed {
        self.why.get_or_insert(Why::Asked);
        self.force()
    }

    /// It has taken too much memory.
    pub(super) fn starve(&mut self) -> Deed {
        self.why.get_or_insert(Why::Memory);
        self.force()
    }

    /// What time has brought.
    pub(super) fn due(&mut self, now: Instant) -> Option<Deed> {
        if self.kill_at.is_some_and(|at| at <= now) {
            return Some(self.force());
        }
        if self.limit_at.is_some_and(|at| at <= now) {
            self.limit_at = None;
            return self.ask(now, self.grace, Why::Time);
        }
        None
    }

    /// When to look again, whatever else happens.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        [self.limit_at, self.kill_at].into_iter().flatten().min()
    }

    /// Whether it ends for lack of time.
    pub(super) fn is_late(&self) -> bool {
        self.why == Some(Why::Time)
    }

    /// What is to be said of it. `starved` if the system killed some of it for its memory.
    pub(super) fn verdict(&self, natural: Natural, starved: bool) -> Exit {
        match (self.why, natural) {
            (Some(Why::Asked), _) => Exit::Stopped { forced: self.forced },
            (Some(Why::Time), _) => Exit::Time,
            (Some(Why::Memory), _) => Exit::Memory,
            // It has coped with the loss of a part of itself.
            (None, Natural::Code(0)) => Exit::Code(0),
            (None, _) if starved => Exit::Memory,
            (None, Natural::Code(code)) => Exit::Code(code),
            (None, Natural::Signal(signal)) => Exit::Signal(signal),
        }
    }

    fn ask(&mut self, now: Instant, grace: Duration, why: Why) -> Option<Deed> {
        let is_first = self.why.is_none();
        self.why.get_or_insert(why);
        if self.forced {
            return None;
        }
        // Who asks again can shorten the grace, and never lengthen it.
        let at = now.checked_add(grace);
        self.kill_at = match (self.kill_at, at) {
            (Some(before), Some(at)) => Some(before.min(at)),
            (before, at) => before.or(at),
        };
        is_first.then_some(Deed::Ask)
    }

    fn force(&mut self) -> Deed {
        self.forced = true;
        (self.kill_at, self.limit_at) = (None, None);
        Deed::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::steady;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_is_asked_has_its_grace_and_no_more() {
        let now = steady();
        let mut ending = Ending::new(now, SECOND, None);
        assert_eq!(ending.wake_at(), None);
        assert_eq!(ending.stop(now, 10 * SECOND), Some(Deed::Ask));
        assert_eq!(ending.stop(now, 20 * SECOND), None, "it knows");
        assert_eq!(ending.wake_at(), Some(now + 10 * SECOND), "grace is never lengthened");
        ending.stop(now + SECOND, 2 * SECOND);
        assert_eq!(ending.due(now + 2 * SECOND), None);
        assert_eq!(ending.verdict(Natural::Code(1), true), Exit::Stopped { forced: false });
        assert_eq!(ending.due(now + 3 * SECOND), Some(Deed::Kill));
        assert_eq!(ending.due(now + 30 * SECOND), None);
        assert_eq!(ending.verdict(Natural::Signal(9), false), Exit::Stopped { forced: true });
    }

    #[test]
    fn time_asks_first_and_then_kills() {
        let now = steady();
        let mut ending = Ending::new(now, SECOND, Some(5 * SECOND));
        assert_eq!(ending.due(now + 4 * SECOND), None);
        assert_eq!(ending.due(now + 5 * SECOND), Some(Deed::Ask));
        assert_eq!(ending.wake_at(), Some(now + 6 * SECOND));
        assert_eq!(ending.verdict(Natural::Code(0), false), Exit::Time);
        assert_eq!(ending.due(now + 6 * SECOND), Some(Deed::Kill));
        assert_eq!(ending.verdict(Natural::Signal(9), false), Exit::Time);
        assert_eq!(Ending::new(now, SECOND, Some(Duration::MAX)).wake_at(), None);
    }

    #[test]
    fn the_first_cause_counts() {
        let now = steady();
        let mut ending = Ending::new(now, SECOND, Some(SECOND));
        assert_eq!(ending.starve(), Deed::Kill);
        assert_eq!(ending.due(now + 2 * SECOND), None);
        ending.kill();
        assert_eq!(ending.verdict(Natural::Signal(9), false), Exit::Memory);
    }

    #[test]
    fn memory_is_named_unless_it_ended_well() {
        let ending = Ending::new(steady(), SECOND, None);
        assert_eq!(ending.verdict(Natural::Signal(9), true), Exit::Memory);
        assert_eq!(ending.verdict(Natural::Code(1), true), Exit::Memory);
        assert_eq!(ending.verdict(Natural::Code(0), true), Exit::Code(0));
        assert_eq!(ending.verdict(Natural::Signal(9), false), Exit::Signal(9));
    }
}
