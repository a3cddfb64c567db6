//! How a file asks for GPUs.
//!
//! ```text
//! gpus  = COUNT | WHICH | WHICH ":" COUNT | [ MODEL, … ] | table      one where no count is given
//! which = SIZE ".." [ SIZE ]            memory of each: "24GB..", "24GB..48GB"
//!       | "mig-" PROFILE                a MIG slice: "mig-1g.5gb"
//!       | MODEL                         a part of the model's name: "H100", "RTX 4090"
//! count = N | N ".." | N ".." N         up to 16
//! ```

use toml::de::DeValue;

use super::super::spec::{GpuAsk, MAX_ENTRIES, MAX_TASK_GPUS, Range};
use super::error::{Mistakes, Wrong, quoted};
use super::section::{Section, Value};
use super::value::{range, size};

/// The longest part of a model's name.
const MAX_MODEL: usize = 64;

/// What is asked for. `None` for no GPU, and where it is wrong.
pub(super) fn gpus(of: &Section<'_>, key: &str, mistakes: &mut Mistakes) -> Option<GpuAsk> {
    let value = of.get(key)?;
    match value.get_ref() {
        DeValue::Integer(_) => {
            let count = count_of(of, key, value, mistakes)?;
            (count.max > 0).then(|| ask(count))
        }
        DeValue::String(text) => {
            mistakes.take(value.span(), word(text)).map(|ask| ask.into_inner())
        }
        DeValue::Array(_) => {
            let models = models_of(of, key, value, mistakes);
            Some(GpuAsk { models, ..ask(Range::just(1)) })
        }
        DeValue::Table(_) => table(of, key, mistakes),
        DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
            of.wrong_kind(key, value, mistakes);
            None
        }
    }
}

fn ask(count: Range) -> GpuAsk {
    GpuAsk { count, min_memory_mib: 0, max_memory_mib: None, models: Vec::new(), mig: None }
}

/// The form with keys.
fn table(of: &Section<'_>, key: &str, mistakes: &mut Mistakes) -> Option<GpuAsk> {
    let section = of.section(key, "resources.gpus", mistakes)?;
    let count = match section.get("count") {
        Some(value) => count_of(&section, "count", value, mistakes)?,
        None => Range::just(1),
    };
    if count.max == 0 {
        mistakes.add(section.at("count"), "a count of 0 asks for no GPU", "leave the section out");
        return None;
    }
    let mut ask = ask(count);
    if let Some(bounds) = section.read("memory", mistakes, memory) {
        (ask.min_memory_mib, ask.max_memory_mib) = bounds.into_inner();
    }
    if let Some(value) = section.get("model") {
        ask.models = models_of(&section, "model", value, mistakes);
    }
    let profile = |word: &str| mig(word.strip_prefix("mig-").unwrap_or(word));
    ask.mig = section.read("mig", mistakes, profile).map(|mig| mig.into_inner());
    Some(ask)
}

/// A count: a number or a range.
fn count_of(
    of: &Section<'_>,
    key: &str,
    value: &Value<'_>,
    mistakes: &mut Mistakes,
) -> Option<Range> {
    match value.get_ref() {
        DeValue::Integer(number) => {
            // A sign or another base is told the same way as too many.
            let written = if number.radix() == 10 { number.as_str() } else { "x" };
            let range = if written == "0" { Ok(Range::just(0)) } else { count(written) };
            mistakes.take(value.span(), range).map(|range| range.into_inner())
        }
        DeValue::String(text) => mistakes.take(value.span(), count(text)).map(|r| r.into_inner()),
        _ => {
            of.wrong_kind(key, value, mistakes);
            None
        }
    }
}

/// Models: one, or a list.
fn models_of(
    of: &Section<'_>,
    key: &str,
    value: &Value<'_>,
    mistakes: &mut Mistakes,
) -> Vec<String> {
    let words = match value.get_ref().as_array() {
        Some(items) if items.is_empty() || items.len() > MAX_ENTRIES => {
            let message = format!("`{key}` has {} models", items.len());
            mistakes.add(value.span(), message, format!("1 to {MAX_ENTRIES} will do"));
            return Vec::new();
        }
        Some(items) => &items[..],
        None => std::slice::from_ref(value),
    };
    let mut models = Vec::new();
    for item in words {
        let Some(text) = item.get_ref().as_str() else {
            of.wrong_kind(key, item, mistakes);
            continue;
        };
        models.extend(mistakes.take(item.span(), model(text)).map(|model| model.into_inner()));
    }
    models.sort();
    models.dedup();
    models
}

/// The form that is one word.
fn word(text: &str) -> Result<GpuAsk, Wrong> {
    let (which, number) = match text.split_once(':') {
        Some((which, number)) => (which, count(number)?),
        None => (text, Range::just(1)),
    };
    let begins_with_digit = which.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    if let Some(profile) = which.strip_prefix("mig-") {
        return Ok(GpuAsk { mig: Some(mig(profile)?), ..ask(number) });
    }
    if !begins_with_digit {
        return Ok(GpuAsk { models: vec![model(which)?], ..ask(number) });
    }
    if which.bytes().all(|byte| byte.is_ascii_digit() || b".+".contains(&byte)) {
        if which.len() < text.len() {
            let message = format!("{} says twice how many GPUs", quoted(text));
            return Err(Wrong::new(message, "as in `2`, or `H100:2`"));
        }
        return count(which).map(ask);
    }
    if mig(which).is_ok() {
        let message = format!("{} says neither how many GPUs nor which", quoted(text));
        return Err(Wrong::new(message, format!("did you mean `mig-{text}`?")));
    }
    let (min_memory_mib, max_memory_mib) = memory(which)?;
    Ok(GpuAsk { min_memory_mib, max_memory_mib, ..ask(number) })
}

fn count(word: &str) -> Result<Range, Wrong> {
    let one = |word: &str| {
        let plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        let number = word.parse::<u64>().ok().filter(|number| *number <= MAX_TASK_GPUS);
        match number {
            Some(0) => Err(Wrong::new("a task that needs GPUs needs one at least", "as in `1..4`")),
            Some(number) if plain => Ok(number),
            _ if plain && word.len() == 4 => {
                let message = format!("a task has at most {MAX_TASK_GPUS} GPUs");
                Err(Wrong::new(
                    message,
                    format!("if {word} is a model, write `gpus = [\"{word}\"]`"),
                ))
            }
            _ => {
                let message = format!("{} is not a number of GPUs", quoted(word));
                Err(Wrong::new(message, format!("a number from 1 to {MAX_TASK_GPUS}, or a range")))
            }
        }
    };
    let range = range(word, one, "1..4")?;
    // As many as there are: no task is given more than this.
    Ok(Range { max: range.max.min(MAX_TASK_GPUS), ..range })
}

/// Bounds of the memory of each, in MiB.
fn memory(word: &str) -> Result<(u32, Option<u32>), Wrong> {
    if !word.contains("..") && size(word).is_ok() {
        let message = format!("no GPU has {} to the byte", quoted(word));
        return Err(Wrong::new(message, format!("did you mean `{word}..`?")));
    }
    let range = range(word, size, "24GB..48GB")?;
    // What has 24 GB has at least so many whole MiB, and what has at most 48 GB no more than so many.
    let (least, most) = (range.min >> 20, range.max.div_ceil(1 << 20));
    let too_much = || Wrong::new(format!("no GPU has {}", quoted(word)), "as in `24GB..`");
    let least = u32::try_from(least).map_err(|_| too_much())?;
    let most = match range.max {
        u64::MAX => None,
        0 => return Err(too_much()),
        _ => Some(u32::try_from(most).map_err(|_| too_much())?),
    };
    Ok((least, most))
}

/// A part of a model's name, in small letters.
fn model(word: &str) -> Result<String, Wrong> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b" -_.".contains(&byte);
    let is_model = word.bytes().all(fine) && word.bytes().any(|byte| byte.is_ascii_alphanumeric());
    if is_model && word.len() <= MAX_MODEL {
        return Ok(word.trim().to_ascii_lowercase());
    }
    let message = format!("{} is not a model of GPU", quoted(word));
    Err(Wrong::new(message, "a part of its name, as in `H100` or `RTX 4090`"))
}

/// A MIG profile: `1g.5gb`, `1c.3g.20gb`, `1g.10gb+me`.
fn mig(word: &str) -> Result<String, Wrong> {
    let lower = word.to_ascii_lowercase();
    let (slices, extra) =
        lower.split_once('+').map_or((lower.as_str(), None), |(s, e)| (s, Some(e)));
    let parts: Vec<&str> = slices.split('.').collect();
    let is = |part: &str, unit: &str| {
        let number = part.strip_suffix(unit).unwrap_or_default();
        (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let fits = match parts[..] {
        [slices, memory] => is(slices, "g") && is(memory, "gb"),
        [engines, slices, memory] => is(engines, "c") && is(slices, "g") && is(memory, "gb"),
        _ => false,
    };
    let plain = |extra: &str| {
        let fine = |byte: u8| byte.is_ascii_lowercase() || byte == b'.';
        (1..=16).contains(&extra.len()) && extra.bytes().all(fine)
    };
    if fits && extra.is_none_or(plain) {
        return Ok(lower);
    }
    Err(Wrong::new(format!("{} is not a MIG profile", quoted(word)), "as in `mig-1g.5gb`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> GpuAsk {
        ask(Range::just(1))
    }

    fn models(of: &[&str]) -> Vec<String> {
        of.iter().map(|model| (*model).to_owned()).collect()
    }

    #[test]
    fn one_word_says_how_many_or_which_or_both() {
        let mig = |profile: &str| Some(profile.to_owned());
        let cases = [
            ("1", one()),
            ("1..4", ask(Range { min: 1, max: 4 })),
            ("2..", ask(Range { min: 2, max: 16 })),
            ("H100", GpuAsk { models: models(&["h100"]), ..one() }),
            ("RTX 4090", GpuAsk { models: models(&["rtx 4090"]), ..one() }),
            ("H100:2", GpuAsk { models: models(&["h100"]), ..ask(Range::just(2)) }),
            ("A100:1..2", GpuAsk { models: models(&["a100"]), ..ask(Range { min: 1, max: 2 }) }),
            ("24GB..", GpuAsk { min_memory_mib: 22_888, ..one() }),
            ("24GiB..:2", GpuAsk { min_memory_mib: 24 << 10, ..ask(Range::just(2)) }),
            (
                "24GiB..48GiB",
                GpuAsk { min_memory_mib: 24 << 10, max_memory_mib: Some(48 << 10), ..one() },
            ),
            ("mig-1g.5gb", GpuAsk { mig: mig("1g.5gb"), ..one() }),
            ("mig-1g.10gb+me:2", GpuAsk { mig: mig("1g.10gb+me"), ..ask(Range::just(2)) }),
        ];
        for (text, ask) in cases {
            assert_eq!(word(text), Ok(ask), "{text}");
        }
    }

    #[test]
    fn a_word_that_is_none_of_these_says_which_would_be() {
        let cases = [
            ("24GB", "did you mean `24GB..`?"),
            ("24G..", "did you mean `24GiB`?"),
            ("1g.5gb", "did you mean `mig-1g.5gb`?"),
            ("mig-big", "as in `mig-1g.5gb`"),
            ("4..1", "did you mean `1..4`?"),
            ("4+", "did you mean `4..`?"),
            ("2:2", "as in `2`, or `H100:2`"),
            ("4090", "if 4090 is a model, write `gpus = [\"4090\"]`"),
            ("H100:", "a number from 1 to 16, or a range"),
            ("H100:17", "a number from 1 to 16, or a range"),
            ("H100:0", "as in `1..4`"),
            ("0..4", "as in `1..4`"),
            ("", "a part of its name, as in `H100` or `RTX 4090`"),
            ("a,b", "a part of its name, as in `H100` or `RTX 4090`"),
            ("9999999TiB..", "as in `24GB..`"),
        ];
        for (text, fix) in cases {
            assert_eq!(word(text).unwrap_err().fix, fix, "{text}");
        }
    }
}
