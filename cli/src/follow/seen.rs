//! What was shown of a log, so that nothing is shown twice when it is read again.
//!
//! A log that is read again comes from its beginning. Within an attempt times never go back, and records stay as they
//! were written. So what is older than the last that was shown was shown; of the lines of that very millisecond, as many
//! as there were.

use std::collections::BTreeMap;

use crate::answers::LogLine;
use crate::view::millis;

/// A task and its fence.
type Attempt = (u64, u64);

/// What was shown, attempt by attempt.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    last: BTreeMap<Attempt, Last>,
    /// The earliest time of all.
    first_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    /// When the last line was printed.
    at_ms: u64,
    /// How many lines of this millisecond were shown.
    shown: u64,
    /// While the log is read again: how many of those are still to come.
    to_skip: Option<u64>,
}

impl Seen {
    /// Whether a line was not shown yet; from now on it was.
    pub(crate) fn is_new(&mut self, line: &LogLine) -> bool {
        // What is no line of a task has no place in its log.
        let Some(at_ms) = millis(&line.time).filter(|_| line.kind != "error") else { return true };
        self.first_ms = Some(self.first_ms.map_or(at_ms, |first| first.min(at_ms)));
        let fresh = Last { at_ms, shown: 0, to_skip: None };
        let last = self.last.entry((line.task, line.fence)).or_insert(fresh);
        match last.to_skip {
            Some(_) if at_ms < last.at_ms => return false,
            Some(left @ 1..) if at_ms == last.at_ms => {
                last.to_skip = Some(left - 1);
                return false;
            }
            _ => {}
        }
        if at_ms != last.at_ms {
            *last = fresh;
        }
        last.to_skip = None;
        last.shown += 1;
        true
    }

    /// From here on the log is read again.
    pub(crate) fn again(&mut self) {
        for last in self.last.values_mut() {
            last.to_skip = Some(last.shown);
        }
    }

    /// When the first line was printed that was shown.
    pub(crate) fn first_ms(&self) -> Option<u64> {
        self.first_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(task: u64, time: &str) -> LogLine {
        let time = format!("2026-11-16T12:00:{time}Z");
        LogLine { kind: "line".into(), task, fence: 7, time, ..LogLine::default() }
    }

    #[test]
    fn a_log_that_is_read_again_goes_on_where_it_broke() {
        let mut seen = Seen::default();
        let first = ["00", "00", "00.5", "01", "01"];
        assert!(first.iter().all(|time| seen.is_new(&line(0, time))));
        assert!(seen.is_new(&line(1, "00.7")));
        for _ in 0..2 {
            seen.again();
            assert!(first.iter().all(|time| !seen.is_new(&line(0, time))));
            assert!(!seen.is_new(&line(1, "00.7")));
        }
        // More of the same millisecond, and what comes after it; of a task that was silent, all.
        assert!(seen.is_new(&line(0, "01")) && seen.is_new(&line(0, "01")));
        assert!(seen.is_new(&line(0, "02")) && seen.is_new(&line(2, "00.1")));
        seen.again();
        assert!(!seen.is_new(&line(0, "01")) && !seen.is_new(&line(0, "02")));
        assert_eq!(seen.first_ms(), millis("2026-11-16T12:00:00Z"));
    }

    #[test]
    fn without_a_break_everything_is_new() {
        let mut seen = Seen::default();
        // Even if a clock was set back between two attempts to write.
        assert!(["05", "05", "03", "03", "05"].iter().all(|time| seen.is_new(&line(0, time))));
        let lost = LogLine { kind: "error".into(), ..line(0, "01") };
        seen.again();
        assert!(seen.is_new(&lost) && seen.is_new(&lost));
    }

    #[test]
    fn another_attempt_is_another_log() {
        let mut seen = Seen::default();
        assert!(seen.is_new(&line(0, "05")));
        seen.again();
        assert!(seen.is_new(&LogLine { fence: 9, ..line(0, "01") }));
    }
}
