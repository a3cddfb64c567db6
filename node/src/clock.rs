//! The only reader of the real clock.

use mesh_consensus::time::Time;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// 9999-12-31T23:59:59.999Z: RFC 3339 goes no further.
const LAST_MS: u64 = 253_402_300_799_999;

/// The wall clock. It may jump; nothing but the dating of entries and records relies on it.
pub fn now() -> Time {
    Time(u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX))
}

/// The wall clock in nanoseconds since 1970: what a task wrote is dated by it.
pub fn nanos() -> u64 {
    u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX)
}

fn since_epoch() -> std::time::Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the wall clock"
    )]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The steady clock: never jumps, and counts from nowhere in particular.
pub fn steady() -> std::time::Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the steady clock"
    )]
    std::time::Instant::now()
}

/// A moment as RFC 3339 in UTC.
pub fn date(at: Time) -> String {
    let nanos = i128::from(at.0.min(LAST_MS)) * 1_000_000;
    let date = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    date.and_then(|date| date.format(&Rfc3339).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_has_a_date_the_end_of_time_too() {
        assert_eq!(date(Time(0)), "1970-01-01T00:00:00Z");
        assert_eq!(date(Time(1_500)), "1970-01-01T00:00:01.5Z");
        assert_eq!(date(Time(u64::MAX)), "9999-12-31T23:59:59.999Z");
    }
}
