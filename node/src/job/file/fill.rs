//! Parameters: `{lr}` in a text stands for what was given for `lr`.
//!
//! `{{lr}}` stands for `{lr}`. Braces around anything else are left as they are, and so is `${lr}`: commands are
//! full of awk, JSON and shell variables, and nobody should have to double their braces.

use std::collections::BTreeMap;

use crate::state::name::{MAX_NAME_BYTES, Name};

/// The longest name of a parameter.
const MAX_PARAMETER: usize = MAX_NAME_BYTES;

/// Fills in parameters, and keeps count of how much that makes.
pub(super) struct Filler<'p> {
    params: &'p BTreeMap<Name, String>,
    /// How many bytes may still be made. A parameter of a few letters can be a long text, and stand in many places.
    left: usize,
}

/// Why a text could not be filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unfilled {
    /// There is no such parameter.
    Unknown(String),
    /// It would be too much.
    TooLong,
}

impl<'p> Filler<'p> {
    pub(super) fn new(params: &'p BTreeMap<Name, String>, most: usize) -> Self {
        Self { params, left: most }
    }

    pub(super) fn fill(&mut self, text: &str) -> Result<String, Unfilled> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, brace) = rest.split_at(at);
            self.push(&mut out, before)?;
            rest = match opened(brace) {
                Opened::Escaped { shown, rest } => {
                    self.push(&mut out, shown)?;
                    self.push(&mut out, "}")?;
                    rest
                }
                Opened::Parameter { name, rest } if !before.ends_with('$') => {
                    let unknown = || Unfilled::Unknown(name.to_owned());
                    let found = name.parse().ok().and_then(|name: Name| self.params.get(&name));
                    let value = found.ok_or_else(unknown)?;
                    self.push(&mut out, value)?;
                    rest
                }
                Opened::Parameter { .. } | Opened::Nothing => {
                    self.push(&mut out, "{")?;
                    &brace[1..]
                }
            };
        }
        self.push(&mut out, rest)?;
        Ok(out)
    }

    fn push(&mut self, out: &mut String, text: &str) -> Result<(), Unfilled> {
        self.left = self.left.checked_sub(text.len()).ok_or(Unfilled::TooLong)?;
        out.push_str(text);
        Ok(())
    }
}

/// What a brace opens, and what comes after that.
enum Opened<'t> {
    Parameter {
        name: &'t str,
        rest: &'t str,
    },
    Escaped {
        /// `{lr`
        shown: &'t str,
        rest: &'t str,
    },
    Nothing,
}

fn opened(brace: &str) -> Opened<'_> {
    let is_doubled = brace.starts_with("{{");
    let skipped = if is_doubled { 2 } else { 1 };
    let inner = &brace[skipped..];
    // No further than the longest name: a text can be full of braces that are never closed.
    let length = inner.bytes().take(MAX_PARAMETER + 1).take_while(|byte| *byte != b'}').count();
    let parts =
        inner.get(..length).zip(inner.get(length..).and_then(|rest| rest.strip_prefix('}')));
    let Some((name, rest)) = parts.filter(|(name, _)| is_parameter(name)) else {
        return Opened::Nothing;
    };
    if is_doubled {
        let shown = &brace[1..skipped + length];
        return Opened::Escaped { shown, rest: rest.strip_prefix('}').unwrap_or(rest) };
    }
    Opened::Parameter { name, rest }
}

/// Whether a parameter can be called so: a name that begins with a letter and has no dot (`{1..9}` is none).
pub(super) fn is_parameter(word: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    word.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && word.len() <= MAX_PARAMETER
        && word.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, Unfilled> {
        let params = [("lr", "0.1"), ("batch_size", "32"), ("long", &"x".repeat(500))];
        let params = params.map(|(name, value)| (name.parse().unwrap(), value.to_owned()));
        Filler::new(&BTreeMap::from(params), 1000).fill(text)
    }

    #[test]
    fn parameters_are_filled_in_and_all_else_is_left() {
        let cases = [
            ("", ""),
            ("--lr {lr} -b {batch_size}", "--lr 0.1 -b 32"),
            ("{lr}{lr}", "0.10.1"),
            ("{{lr}}", "{lr}"),
            ("{{lr}", "{lr}"),
            ("${lr} $lr ${{lr}}", "${lr} $lr ${lr}"),
            (
                "awk '{print $1}' {} {1..9} {a..b} {a,b} {LR}",
                "awk '{print $1}' {} {1..9} {a..b} {a,b} {LR}",
            ),
            ("{\"lr\": {lr}, \"a\": {\"b\": 1}}", "{\"lr\": 0.1, \"a\": {\"b\": 1}}"),
            ("{{.Name}} {{ lr }}", "{{.Name}} {{ lr }}"),
            ("{ {lr} }", "{ 0.1 }"),
            ("{", "{"),
            ("{lr", "{lr"),
            ("é{lr}é", "é0.1é"),
            ("{é} {{é}}", "{é} {{é}}"),
        ];
        for (text, want) in cases {
            assert_eq!(filled(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_unknown_or_too_much_is_said() {
        assert_eq!(filled("{rl}"), Err(Unfilled::Unknown("rl".into())));
        assert_eq!(filled("{long}{long}").map(|text| text.len()), Ok(1000));
        assert_eq!(filled("{long}{long}x"), Err(Unfilled::TooLong));
        assert_eq!(filled(&"x".repeat(1001)), Err(Unfilled::TooLong));
    }
}
