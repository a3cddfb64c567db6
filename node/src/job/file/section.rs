//! Reading one section of a file: its keys by the table of [`super::super::help`], its values with their places.
//!
//! Every reader takes a key, and gives its value if it is there and right. If it is wrong, that is remembered
//! and the reader gives nothing, so that one look at a file finds all that is wrong with it.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeString, DeTable, DeValue};

use super::super::help::{self, RESERVED, TOPICS, Topic};
use super::super::spec::MAX_ENTRIES;
use super::super::training::Real;
use super::error::{Mistakes, Wrong, quoted};
use crate::config::distance;
use crate::state::name::Name;

/// A value in the file.
pub(super) type Value<'t> = Spanned<DeValue<'t>>;

/// A table of the file whose keys are known, or its author's own.
pub(super) struct Section<'t> {
    topic: &'static Topic,
    /// Where it begins: at its name.
    here: Range<usize>,
    table: &'t DeTable<'t>,
}

impl<'t> Section<'t> {
    /// The top of the file.
    pub(super) fn top(table: &'t DeTable<'t>, mistakes: &mut Mistakes) -> Self {
        let first = table.keys().map(Spanned::span).min_by_key(|span| span.start);
        Self::new("", first.unwrap_or_default(), table, mistakes)
    }

    /// Takes a table as the part of the file that `path` names, and says which keys do not belong there.
    pub(super) fn new(
        path: &str,
        here: Range<usize>,
        table: &'t DeTable<'t>,
        mistakes: &mut Mistakes,
    ) -> Self {
        let topic = help::topic(path).expect("every part that is read is in the table of help.rs");
        if !topic.is_open {
            for key in table.keys().filter(|key| !topic.keys().any(|known| known == key.get_ref()))
            {
                if mistakes.is_full() {
                    break;
                }
                let (message, fix) = stranger(topic, key.get_ref());
                mistakes.add(key.span(), message, fix);
            }
        }
        Self { topic, here, table }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'t Value<'t>> {
        debug_assert!(self.topic.keys().any(|known| known == key), "{key} is not documented");
        self.table.get(key)
    }

    /// Where a key stands.
    pub(super) fn at(&self, key: &str) -> Range<usize> {
        self.table.get_key_value(key).map_or(self.here.clone(), |(key, _)| key.span())
    }

    /// Says so if a key is not there.
    pub(super) fn need(&self, key: &str, mistakes: &mut Mistakes) {
        if self.get(key).is_some() {
            return;
        }
        let example = self.topic.field(key).map_or("", |field| field.example);
        let here = if self.topic.path.is_empty() { "job.toml" } else { self.topic.heading };
        let message = format!("{here} has no `{key}`");
        mistakes.add(self.here.clone(), message, format!("add `{example}`"));
    }

    pub(super) fn text(&self, key: &str, mistakes: &mut Mistakes) -> Option<Spanned<&'t str>> {
        let value = self.get(key)?;
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.wrong_kind(key, value, mistakes);
        }
        text.map(|text| Spanned::new(value.span(), text))
    }

    /// Text that means something.
    pub(super) fn read<T>(
        &self,
        key: &str,
        mistakes: &mut Mistakes,
        read: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Option<Spanned<T>> {
        let text = self.text(key, mistakes)?;
        mistakes.take(text.span(), read(text.get_ref()))
    }

    pub(super) fn flag(&self, key: &str, mistakes: &mut Mistakes) -> Option<Spanned<bool>> {
        let value = self.get(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong_kind(key, value, mistakes);
        }
        flag.map(|flag| Spanned::new(value.span(), flag))
    }

    /// A whole number from `least` to `most`.
    pub(super) fn whole(
        &self,
        key: &str,
        least: u32,
        most: u32,
        mistakes: &mut Mistakes,
    ) -> Option<Spanned<u32>> {
        let value = self.get(key)?;
        let Some(number) = value.get_ref().as_integer() else {
            self.wrong_kind(key, value, mistakes);
            return None;
        };
        let number = within(number, least, most).ok_or_else(|| {
            let is_small = number.as_str().starts_with('-') || within(number, 0, least).is_some();
            let fix =
                if is_small { format!("at least {least}") } else { format!("at most {most}") };
            Wrong::new(format!("`{key}` takes a whole number from {least} to {most}"), fix)
        });
        mistakes.take(value.span(), number)
    }

    /// A number for which `fits` holds, as the key's description says.
    pub(super) fn real(
        &self,
        key: &str,
        fits: fn(f64) -> bool,
        mistakes: &mut Mistakes,
    ) -> Option<Real> {
        let value = self.get(key)?;
        let number: Option<f64> = match value.get_ref() {
            DeValue::Integer(number) => {
                let number = i64::from_str_radix(number.as_str(), number.radix()).ok();
                number.map(|number| number as f64)
            }
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => {
                self.wrong_kind(key, value, mistakes);
                return None;
            }
        };
        let real = number.and_then(Real::new).filter(|real| fits(real.get())).ok_or_else(|| {
            let field = self.topic.field(key);
            let (takes, example) = field.map_or(("", ""), |field| (field.takes, field.example));
            Wrong::new(format!("`{key}` takes {takes}"), format!("as in `{example}`"))
        });
        mistakes.take(value.span(), real).map(Spanned::into_inner)
    }

    /// A list of words.
    pub(super) fn list(&self, key: &str, mistakes: &mut Mistakes) -> Vec<Spanned<&'t str>> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(items) = value.get_ref().as_array() else {
            match value.get_ref().as_str() {
                Some(word) if word.len() <= 63 && !word.contains(['"', '\\']) => {
                    let message = format!("`{key}` takes a list");
                    mistakes.add(value.span(), message, format!("write `{key} = [\"{word}\"]`"));
                }
                _ => self.wrong_kind(key, value, mistakes),
            }
            return Vec::new();
        };
        if items.len() > MAX_ENTRIES {
            let message = format!("`{key}` has {} entries", items.len());
            mistakes.add(value.span(), message, format!("{MAX_ENTRIES} are the most"));
            return Vec::new();
        }
        let mut words = Vec::new();
        for item in items {
            match item.get_ref().as_str() {
                Some(word) => words.push(Spanned::new(item.span(), word)),
                None => self.wrong_kind(key, item, mistakes),
            }
        }
        words
    }

    /// A table within this one, as the part of the file that `path` names.
    pub(super) fn section(
        &self,
        key: &str,
        path: &str,
        mistakes: &mut Mistakes,
    ) -> Option<Section<'t>> {
        let value = self.get(key)?;
        if let Some(table) = value.get_ref().as_table() {
            return Some(Section::new(path, self.at(key), table, mistakes));
        }
        let heading = help::topic(path).map_or("", |topic| topic.heading);
        let message = format!("`{key}` is a section, and this is {}", kind(value));
        let fix = format!("write {heading} and what belongs there in lines of their own");
        mistakes.add(self.at(key), message, fix);
        None
    }

    /// All entries of a section whose keys are its author's own. There are not too many.
    pub(super) fn entries(
        &self,
        mistakes: &mut Mistakes,
    ) -> Vec<(&'t Spanned<DeString<'t>>, &'t Value<'t>)> {
        debug_assert!(self.topic.is_open);
        let Some(after) = self.table.keys().map(Spanned::span).nth(MAX_ENTRIES) else {
            return self.table.iter().collect();
        };
        let message = format!("{} has {} entries", self.topic.heading, self.table.len());
        mistakes.add(after, message, format!("{MAX_ENTRIES} are the most"));
        Vec::new()
    }

    /// Like [`Section::entries`], where every key is a name.
    pub(super) fn named(&self, mistakes: &mut Mistakes) -> Vec<(Name, &'t Value<'t>)> {
        let mut named = Vec::new();
        for (key, value) in self.entries(mistakes) {
            if let Some(name) = mistakes.take(key.span(), name(key.get_ref())) {
                named.push((name.into_inner(), value));
            }
        }
        named
    }

    /// Says what the key takes, and what it was given.
    pub(super) fn wrong_kind(&self, key: &str, value: &Value<'_>, mistakes: &mut Mistakes) {
        let Some(field) = self.topic.field(key) else { return };
        let message = format!("{} takes {}, not {}", quoted(key), field.takes, kind(value));
        mistakes.add(value.span(), message, format!("as in `{}`", field.example));
    }
}

/// A name by the conventions.
pub(super) fn name(word: &str) -> Result<Name, Wrong> {
    word.parse().map_err(|_| {
        let message = format!("{} is not a name", quoted(word));
        let plainer: String = word.trim().to_lowercase().replace([' ', '/'], "-");
        let fix = match plainer.parse::<Name>() {
            Ok(name) => format!("did you mean `{name}`?"),
            Err(_) => {
                "a name has 1 to 63 of a-z 0-9 . _ - and begins with a letter or digit".into()
            }
        };
        Wrong::new(message, fix)
    })
}

/// The number, if it is one from `least` to `most`.
pub(super) fn within(number: &DeInteger<'_>, least: u32, most: u32) -> Option<u32> {
    let number = u32::from_str_radix(number.as_str(), number.radix()).ok()?;
    (least..=most).contains(&number).then_some(number)
}

/// Text, or what can stand for text as it is written: a number, or true or false.
pub(super) fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => {
            let value = i128::from_str_radix(number.as_str(), number.radix()).ok()?;
            Some(value.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// What kind of value it is, as people say it.
pub(super) fn kind(value: &Value<'_>) -> &'static str {
    match value.get_ref() {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

/// The word among `known` that was most likely meant.
pub(super) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let letters = word.chars().take(64).count();
    let rank = |one: &&str| (letters < 2 || !one.starts_with(word), changes(one, word));
    let near = known.min_by_key(rank)?;
    let (is_other, changes) = rank(&near);
    (!is_other || changes <= (letters / 2).clamp(1, 3)).then_some(near)
}

/// How many changes make one word of the other. Letters in another order are one.
fn changes(known: &str, word: &str) -> usize {
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().take(64).collect();
        letters.sort_unstable();
        letters
    };
    if known.len() == word.len() && sorted(known) == sorted(word) {
        return usize::from(known != word);
    }
    distance(known, word)
}

/// A word that is none of those that are known.
pub(super) fn unknown(word: &str, what: &str, known: &[&str]) -> Wrong {
    let fix = match (nearest(word, known.iter().copied()), known) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, [only]) => format!("there is `{only}`"),
        (None, known) => format!("there are {}", known.join(", ")),
    };
    Wrong::new(format!("{} is not {what}", quoted(word)), fix)
}

/// What to say of a key that does not belong where it stands.
fn stranger(topic: &Topic, key: &str) -> (String, String) {
    let shown = quoted(key);
    let is_top = topic.path.is_empty();
    if let Some((_, says)) = RESERVED.iter().find(|(reserved, _)| is_top && *reserved == key) {
        return ((*says).to_owned(), "leave it out".to_owned());
    }
    let here = if is_top { "job.toml" } else { topic.heading };
    let message = format!("{here} has no key {shown}");
    let home = TOPICS.iter().find(|home| !home.is_open && home.keys().any(|known| known == key));
    let fix = match home {
        Some(home) if home.path.is_empty() && home.fields.iter().any(|field| field.key == key) => {
            format!("{shown} belongs above the first [section]")
        }
        Some(home) if home.path.is_empty() => format!("[{key}] is a section of its own"),
        Some(home) => format!("{shown} belongs in {}", home.heading),
        None => match nearest(key, topic.keys()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", topic.keys().collect::<Vec<_>>().join(", ")),
        },
    };
    (message, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_near() {
        let known = ["resources", "checkpoint", "memory", "cpus"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("resorces"), Some("resources"));
        assert_eq!(near("mem"), Some("memory"));
        assert_eq!(near("cpu"), Some("cpus"));
        assert_eq!(nearest("rl", ["x", "lr"].into_iter()), Some("lr"));
        assert_eq!(near("Memory"), Some("memory"));
        assert_eq!(near("volumes"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"x".repeat(1 << 20)), None);
    }

    #[test]
    fn a_name_that_is_none_may_be_near_one() {
        let fix = |word| name(word).unwrap_err().fix;
        assert_eq!(fix("My Job"), "did you mean `my-job`?");
        assert!(fix("").starts_with("a name has"));
        assert!(fix("ä").starts_with("a name has"));
    }
}
