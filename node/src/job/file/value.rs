//! Words that stand for something: durations, sizes, ranges, CPUs, and what to retry after.
//!
//! Each reader takes one word and says, where it is wrong, which word would be right, or by what rule.

use super::super::spec::{Range, RetryOn};
use super::error::{Wrong, quoted};

/// The longest duration. What is added to the time of day must not overflow it.
const MAX_DURATION_MS: u64 = 365 * 24 * 3600 * 1000;
/// Docker starts nothing with less.
const MIN_MEMORY_BYTES: u64 = 6 << 20;
/// No machine has more cores.
const MAX_CPUS: u32 = 65_536;
/// No word is longer that is worth a guess.
const MAX_GUESS: usize = 24;

/// `250ms 30s 5m 6h 7d`, in milliseconds.
pub(super) fn duration(word: &str) -> Result<u64, Wrong> {
    let (number, unit) = split(word);
    let each: Option<u64> = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60 * 1000),
        "h" => Some(3600 * 1000),
        "d" => Some(24 * 3600 * 1000),
        _ => None,
    };
    let (Some(each), false) = (each, number.is_empty()) else {
        let fix = guess(likely_duration(word), "a whole number and a unit: 250ms, 30s, 5m, 6h, 7d");
        return Err(Wrong::new(format!("{} is not a duration", quoted(word)), fix));
    };
    let ms = number.parse().ok().and_then(|number: u64| number.checked_mul(each));
    ms.filter(|ms| *ms <= MAX_DURATION_MS).ok_or_else(|| {
        Wrong::new(format!("{} is longer than a year", quoted(word)), "at most 365d")
    })
}

/// A duration from `least` to `most`, both in milliseconds, with how these are said.
pub(super) fn duration_within(
    word: &str,
    least: (u64, &str),
    most: (u64, &str),
) -> Result<u64, Wrong> {
    let ms = duration(word)?;
    if ms < least.0 {
        let message = format!("{} is too short", quoted(word));
        return Err(Wrong::new(message, format!("at least {}", least.1)));
    }
    if ms > most.0 {
        let message = format!("{} is too long", quoted(word));
        return Err(Wrong::new(message, format!("at most {}", most.1)));
    }
    Ok(ms)
}

/// `512MiB 8GiB` (powers of 1024) or `500MB 24GB` (powers of 1000), in bytes.
pub(super) fn size(word: &str) -> Result<u64, Wrong> {
    let (number, unit) = split(word);
    let each: Option<u64> = match unit {
        "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        "TiB" => Some(1 << 40),
        "KB" | "kB" => Some(1000),
        "MB" => Some(1000 * 1000),
        "GB" => Some(1000 * 1000 * 1000),
        "TB" => Some(1000 * 1000 * 1000 * 1000),
        _ => None,
    };
    let (Some(each), false) = (each, number.is_empty()) else {
        let rule = "a whole number and a unit: 512MiB, 8GiB (binary) or 500MB, 24GB (decimal)";
        let fix = guess(likely_size(word), rule);
        return Err(Wrong::new(format!("{} is not a size", quoted(word)), fix));
    };
    let bytes = number.parse().ok().and_then(|number: u64| number.checked_mul(each));
    bytes.ok_or_else(|| Wrong::new(format!("{} is more than there is", quoted(word)), ""))
}

/// A size that is not zero.
pub(super) fn some_size(word: &str) -> Result<u64, Wrong> {
    match size(word)? {
        0 => Err(Wrong::new("a size of 0 leaves nothing", "leave it out where it does not matter")),
        bytes => Ok(bytes),
    }
}

/// Memory: a size, or a range of sizes.
pub(super) fn memory(word: &str) -> Result<Range, Wrong> {
    let range = range(word, size, "4GiB..16GiB")?;
    if range.min < MIN_MEMORY_BYTES {
        let message = format!("nothing runs in {}", quoted(word));
        return Err(Wrong::new(message, "6MiB is the least, and most programs want more"));
    }
    Ok(range)
}

/// CPUs: a number, or a range of numbers, in thousandths of a core.
pub(super) fn cpus(word: &str) -> Result<Range, Wrong> {
    let one = |word: &str| match word.parse::<f64>() {
        Ok(number) if word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            cores(number)
        }
        _ => {
            let message = format!("{} is not a number of CPUs", quoted(word));
            Err(Wrong::new(message, "as in 2, 0.5, \"2..8\" or \"2..\""))
        }
    };
    range(word, one, "1..8")
}

/// A number of CPUs, in thousandths of a core.
pub(super) fn cores(number: f64) -> Result<u64, Wrong> {
    if number.is_nan() || number <= 0.0 {
        return Err(Wrong::new("a task needs some CPU", "as in 2 or 0.5"));
    }
    if number > f64::from(MAX_CPUS) {
        let message = "no machine has so many CPUs";
        return Err(Wrong::new(message, format!("at most {MAX_CPUS}")));
    }
    let milli = (number * 1000.0).round();
    if milli < 1.0 || (milli - number * 1000.0).abs() > 1e-6 {
        let message = "CPUs are counted in thousandths, and no finer";
        return Err(Wrong::new(message, "as in 0.5 or 0.125"));
    }
    // From 1 to 65,536,000: both types hold it exactly.
    Ok(milli as u64)
}

/// `a`, `a..b` or `a..`, where `one` reads each end. `example` shows one that has both.
pub(super) fn range(
    word: &str,
    one: impl Fn(&str) -> Result<u64, Wrong>,
    example: &str,
) -> Result<Range, Wrong> {
    let Some((min, max)) = word.split_once("..") else {
        return match word.strip_suffix('+') {
            Some(min) if one(min).is_ok() => {
                let message = format!("{} is not a range", quoted(word));
                Err(Wrong::new(message, format!("did you mean `{min}..`?")))
            }
            _ => one(word).map(Range::just),
        };
    };
    if min.is_empty() {
        let message = format!("the range {} does not say the least", quoted(word));
        return Err(Wrong::new(message, format!("as in `{example}`")));
    }
    let least = one(min)?;
    let most = if max.is_empty() { u64::MAX } else { one(max)? };
    if least > most {
        let message = format!("the range {} runs backwards", quoted(word));
        return Err(Wrong::new(message, format!("did you mean `{max}..{min}`?")));
    }
    Ok(Range { min: least, max: most })
}

/// `exit:75`, `signal:9`, `memory`, `time`.
pub(super) fn retry_on(word: &str) -> Result<RetryOn, Wrong> {
    let wrong = |fix: &str| {
        let message = format!("{} is not a failure to retry after", quoted(word));
        Err(Wrong::new(message, fix))
    };
    match (word, word.split_once(':')) {
        ("memory", _) => Ok(RetryOn::Memory),
        ("time", _) => Ok(RetryOn::Time),
        ("oom", _) => wrong("did you mean `memory`?"),
        ("timeout", _) => wrong("did you mean `time`?"),
        (_, Some(("exit", code))) => match code.parse::<u8>() {
            Ok(0) => wrong("0 is success: exit codes from 1 to 255 are failures"),
            Ok(code) => Ok(RetryOn::Exit(code)),
            Err(_) => wrong("an exit code is from 1 to 255, as in `exit:75`"),
        },
        (_, Some(("signal", number))) => match number.parse::<u8>() {
            Ok(number @ 1..=64) => Ok(RetryOn::Signal(number)),
            _ => wrong("a signal is a number from 1 to 64, as in `signal:9`"),
        },
        _ if word.parse::<u8>().is_ok_and(|code| code > 0) => {
            wrong(&format!("did you mean `exit:{word}`?"))
        }
        _ => wrong("there are `exit:CODE`, `signal:NUMBER`, `memory` and `time`"),
    }
}

/// Parts a word where its digits end.
fn split(word: &str) -> (&str, &str) {
    word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()))
}

fn guess(likely: Option<String>, rule: &str) -> String {
    likely.map_or_else(|| rule.to_owned(), |word| format!("did you mean `{word}`?"))
}

/// A duration as others write it.
fn likely_duration(word: &str) -> Option<String> {
    let plain = plain(word)?;
    let (number, unit) = split(&plain);
    let unit = match unit {
        "ms" | "msec" | "millis" | "milliseconds" => "ms",
        "" | "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        _ => return None,
    };
    (!number.is_empty()).then(|| format!("{number}{unit}"))
}

/// A size as others write it.
fn likely_size(word: &str) -> Option<String> {
    let plain = plain(word)?;
    let (number, unit) = split(&plain);
    let unit = match unit {
        "k" | "ki" | "kib" => "KiB",
        "m" | "mi" | "mib" => "MiB",
        "g" | "gi" | "gib" => "GiB",
        "t" | "ti" | "tib" => "TiB",
        "kb" => "KB",
        "mb" => "MB",
        "gb" => "GB",
        "tb" => "TB",
        _ => return None,
    };
    (!number.is_empty()).then(|| format!("{number}{unit}"))
}

fn plain(word: &str) -> Option<String> {
    (word.len() <= MAX_GUESS).then(|| word.to_ascii_lowercase().replace([' ', '_'], ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fix<T: std::fmt::Debug>(result: Result<T, Wrong>) -> String {
        result.unwrap_err().fix
    }

    #[test]
    fn durations_are_a_whole_number_and_one_unit() {
        let cases = [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("6h", 21_600_000)];
        for (word, ms) in cases {
            assert_eq!(duration(word), Ok(ms), "{word}");
        }
        assert_eq!(duration("365d"), Ok(MAX_DURATION_MS));
        for word in
            ["", "5", "s", "1.5h", "-3s", "1h30m", "5 m", "6H", "366d", "9999999999999999999s"]
        {
            assert!(duration(word).is_err(), "{word:?}");
        }
        assert_eq!(fix(duration("30")), "did you mean `30s`?");
        assert_eq!(fix(duration("5 min")), "did you mean `5m`?");
        assert_eq!(fix(duration("6H")), "did you mean `6h`?");
        assert!(fix(duration("soon")).starts_with("a whole number"));
        assert_eq!(fix(duration("400d")), "at most 365d");
        assert_eq!(fix(duration_within("10ms", (1000, "1s"), (9000, "9s"))), "at least 1s");
        assert_eq!(fix(duration_within("10s", (1000, "1s"), (9000, "9s"))), "at most 9s");
    }

    #[test]
    fn sizes_tell_binary_from_decimal_units() {
        let cases = [("512MiB", 512 << 20), ("8GiB", 8 << 30), ("24GB", 24_000_000_000), ("0B", 0)];
        for (word, bytes) in cases {
            assert_eq!(size(word), Ok(bytes), "{word}");
        }
        for word in ["", "10", "8G", "1.5GiB", "GiB", "99999999999TiB", "8 GiB"] {
            assert!(size(word).is_err(), "{word:?}");
        }
        assert_eq!(fix(size("8G")), "did you mean `8GiB`?");
        assert_eq!(fix(size("8 gb")), "did you mean `8GB`?");
        assert!(fix(size("8")).starts_with("a whole number and a unit"));
        assert!(some_size("0MiB").is_err());
    }

    #[test]
    fn ranges_have_a_least_and_maybe_a_most() {
        assert_eq!(memory("8GiB"), Ok(Range::just(8 << 30)));
        assert_eq!(memory("4GiB..16GiB"), Ok(Range { min: 4 << 30, max: 16 << 30 }));
        assert_eq!(memory("8GiB.."), Ok(Range { min: 8 << 30, max: u64::MAX }));
        assert_eq!(fix(memory("16GiB..4GiB")), "did you mean `4GiB..16GiB`?");
        assert_eq!(fix(memory("..4GiB")), "as in `4GiB..16GiB`");
        assert_eq!(fix(memory("8GiB+")), "did you mean `8GiB..`?");
        assert_eq!(fix(memory("8G..16G")), "did you mean `8GiB`?");
        assert_eq!(fix(memory("0B")), "6MiB is the least, and most programs want more");
        for word in ["..", "1..2", "1GiB...2GiB", "1GiB..2GiB..3GiB"] {
            assert!(memory(word).is_err(), "{word}");
        }
    }

    #[test]
    fn cpus_are_counted_in_thousandths() {
        assert_eq!(cpus("2"), Ok(Range::just(2000)));
        assert_eq!(cpus("0.5"), Ok(Range::just(500)));
        assert_eq!(cpus("2..8"), Ok(Range { min: 2000, max: 8000 }));
        assert_eq!(cpus("1.5.."), Ok(Range { min: 1500, max: u64::MAX }));
        assert_eq!(cores(0.001), Ok(1));
        assert_eq!(cores(0.1), Ok(100));
        for word in ["", "0", "-1", "1e3", "inf", "nan", "two", "0.0001", "70000", "2..1", "1..0"] {
            assert!(cpus(word).is_err(), "{word}");
        }
        assert!([f64::NAN, f64::INFINITY, -1.0, 0.0].into_iter().all(|n| cores(n).is_err()));
        assert_eq!(fix(cpus("4+")), "did you mean `4..`?");
    }

    #[test]
    fn failures_have_names() {
        assert_eq!(retry_on("exit:75"), Ok(RetryOn::Exit(75)));
        assert_eq!(retry_on("signal:9"), Ok(RetryOn::Signal(9)));
        assert_eq!(
            (retry_on("memory"), retry_on("time")),
            (Ok(RetryOn::Memory), Ok(RetryOn::Time))
        );
        assert_eq!(fix(retry_on("75")), "did you mean `exit:75`?");
        assert_eq!(fix(retry_on("oom")), "did you mean `memory`?");
        for word in
            ["", "exit", "exit:0", "exit:256", "exit:", "signal:65", "signal:KILL", "Exit:1"]
        {
            assert!(retry_on(word).is_err(), "{word}");
        }
    }
}
