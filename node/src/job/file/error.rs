//! What is wrong with a job.toml: where, and what would be right.
//!
//! ```text
//! error: job.toml has no key `resorces`
//!  --> job.toml:3:2
//!   |
//! 3 | [resorces]
//!   |  ^^^^^^^^ did you mean `resources`?
//! ```
//!
//! A file can hold secrets. A line that may be one of them is shown up to its `=` and no further, and no message
//! quotes a value from there.

use std::fmt::{self, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::super::help::TOPICS;

/// The most mistakes that are told at once.
pub const MAX_MISTAKES: usize = 10;
/// The most that are remembered while a file is read: a wrong file can have a great many.
const MAX_FOUND: usize = 100;
/// How much of a line is shown, in characters.
const MAX_SHOWN: usize = 100;
/// How much of a word a message quotes, in characters.
const MAX_QUOTED: usize = 40;
/// The longest message, in characters. Words from the file are in it.
const MAX_MESSAGE: usize = 300;

/// Everything that is wrong with a file, as far as one look tells.
///
/// Printed after `error: ` it is what the module shows, once for each mistake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileError {
    /// In the order of the file: at least one, and at most [`MAX_MISTAKES`].
    pub mistakes: Vec<Mistake>,
    /// How many more there are.
    pub more: usize,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistake {
    /// What, in one line.
    pub message: String,
    /// In which line, from 1.
    pub line: usize,
    /// At which of its characters, from 1.
    pub column: usize,
    /// That line, or the part of it that matters, without control characters and without secrets.
    pub shown: String,
    /// How many characters of `shown` come before the caret.
    pub caret: usize,
    /// How many carets there are.
    pub width: usize,
    /// What would be right, in one line.
    pub fix: Option<String>,
}

impl Mistake {
    /// Where it is, with the line and carets beneath. `file` is what the file is called.
    pub fn excerpt(&self, file: &str) -> String {
        let Self { line, column, shown, caret, width, .. } = self;
        let number = line.to_string();
        let pad = " ".repeat(number.len());
        let carets = format!("{}{}", " ".repeat(*caret), "^".repeat(*width));
        let mut text = format!("{pad}--> {file}:{line}:{column}\n{pad} |\n");
        let _ = writeln!(text, "{number} | {shown}");
        let _ = write!(text, "{pad} | {carets}");
        if let Some(fix) = &self.fix {
            let _ = write!(text, " {fix}");
        }
        text
    }

    fn new(text: &str, found: Found) -> Self {
        let Found { span, message, fix } = found;
        let start = boundary(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |length| start + length);
        let end = boundary(text, span.end).clamp(start, line_end);
        let line = text[line_start..line_end].trim_end_matches('\r');
        let before = text[line_start..start].chars().count();
        let width = text[start..end].trim_end().chars().count().max(1);
        let view = if may_hold_a_secret(text, line_start, line) {
            veiled(line, before, width)
        } else {
            window(line, before, width)
        };
        Self {
            message,
            line: text[..line_start].matches('\n').count() + 1,
            column: before + 1,
            shown: view.shown,
            caret: view.caret,
            width: view.width,
            fix: (!fix.is_empty()).then_some(fix),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.message, self.excerpt("job.toml"))
    }
}

impl FileError {
    /// As it is printed after `error: `, where the file is called `file`.
    pub fn told(&self, file: &str) -> String {
        let one = |mistake: &Mistake| format!("{}\n{}", mistake.message, mistake.excerpt(file));
        let all: Vec<String> = self.mistakes.iter().map(one).collect();
        let mut text = all.join("\n\nerror: ");
        if self.more > 0 {
            let _ = write!(text, "\n\nand {} more", self.more);
        }
        text
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told("job.toml"))
    }
}

impl std::error::Error for FileError {}

/// What a value should have been: a message, and what would be right (or nothing).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) message: String,
    pub(super) fix: String,
}

impl Wrong {
    pub(super) fn new(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { message: message.into(), fix: fix.into() }
    }
}

/// What was found while reading a file.
#[derive(Debug, Default)]
pub(super) struct Mistakes {
    /// At most [`MAX_FOUND`].
    found: Vec<Found>,
    total: usize,
}

#[derive(Debug)]
struct Found {
    span: Range<usize>,
    message: String,
    fix: String,
}

impl Mistakes {
    pub(super) fn add(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.total += 1;
        if !self.is_full() {
            let (message, fix) = (clean(&message.into()), clean(&fix.into()));
            self.found.push(Found { span, message, fix });
        }
    }

    /// Keeps what is right, and where it stood; remembers what is wrong.
    pub(super) fn take<T>(
        &mut self,
        span: Range<usize>,
        result: Result<T, Wrong>,
    ) -> Option<Spanned<T>> {
        match result {
            Ok(value) => Some(Spanned::new(span, value)),
            Err(wrong) => {
                self.add(span, wrong.message, wrong.fix);
                None
            }
        }
    }

    /// Whether nothing more is remembered: then there is no point in looking for the best fix.
    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MAX_FOUND
    }

    pub(super) fn count(&self) -> usize {
        self.total
    }

    /// Nothing, or all of it.
    pub(super) fn check(self, text: &str) -> Result<(), FileError> {
        if self.total == 0 { Ok(()) } else { Err(self.told(text)) }
    }

    /// All of it. There is at least one.
    pub(super) fn told(mut self, text: &str) -> FileError {
        self.found.sort_by_key(|found| (found.span.start, found.span.end));
        self.found.truncate(MAX_MISTAKES);
        let more = self.total - self.found.len();
        let mistakes = self.found.into_iter().map(|found| Mistake::new(text, found)).collect();
        FileError { mistakes, more }
    }
}

/// A word of the file in a message: in backquotes, and not too long.
pub(super) fn quoted(word: &str) -> String {
    let mut shown: String = word.chars().take(MAX_QUOTED).collect();
    if word.chars().nth(MAX_QUOTED).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// A message in one line, whatever words it quotes.
fn clean(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).map(visible).collect()
}

/// One character for one: a tab, or worse, would move the caret.
fn visible(c: char) -> char {
    if c == '\t' {
        ' '
    } else if c.is_control() || is_deceptive(c) {
        char::REPLACEMENT_CHARACTER
    } else {
        c
    }
}

/// Characters that turn the direction of what follows, or are not seen at all.
fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The next place at or before `at` where a character begins.
fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

struct View {
    shown: String,
    caret: usize,
    width: usize,
}

/// The part of a line around the carets.
fn window(line: &str, before: usize, width: usize) -> View {
    // A short line is shown whole; of a long one, some of what comes before and the rest after.
    let is_long = line.chars().nth(MAX_SHOWN).is_some();
    let skip = if is_long { before.saturating_sub(MAX_SHOWN / 3) } else { 0 };
    let mut shown = String::new();
    if skip > 0 {
        shown.push('…');
    }
    let lead = usize::from(skip > 0);
    shown.extend(line.chars().skip(skip).take(MAX_SHOWN).map(visible));
    if line.chars().nth(skip + MAX_SHOWN).is_some() {
        shown.push('…');
    }
    let caret = before - skip + lead;
    let room = shown.chars().count().saturating_sub(caret).max(1);
    View { shown, caret, width: width.min(room) }
}

/// A line without what comes after its `=`.
fn veiled(line: &str, before: usize, width: usize) -> View {
    let shown = match line.split_once('=') {
        Some((key, _)) => format!("{key}= …"),
        None => "…".to_owned(),
    };
    let View { shown, .. } = window(&shown, 0, 1);
    let last = shown.chars().count().saturating_sub(1);
    let caret = before.min(last);
    View { shown, caret, width: width.min(last + 1 - caret) }
}

/// Whether a line may be part of `[secrets]`, as far as that can be told of text that need not even be TOML.
fn may_hold_a_secret(text: &str, line_start: usize, line: &str) -> bool {
    if header(line).is_some() {
        return false;
    }
    let above = text[..line_start].lines().rev();
    for line in std::iter::once(line).chain(above) {
        if let Some(path) = header(line) {
            // A misspelt header may have been meant to say "secrets".
            return path == "secrets" || !is_known(path);
        }
        let key = line.split_once('=').map_or(line, |(key, _)| key);
        if key.contains("secrets") && !key.trim_start().starts_with('#') {
            return true;
        }
    }
    false
}

/// What stands in a line's brackets, if the line is nothing but a header.
fn header(line: &str) -> Option<&str> {
    let inner = line.trim().strip_prefix('[')?;
    let (path, rest) = inner.trim_start_matches('[').split_once(']')?;
    let rest = rest.trim_start_matches(']').trim_start();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-. ".contains(c);
    let is_header = path.chars().all(plain) && (rest.is_empty() || rest.starts_with('#'));
    is_header.then(|| path.trim())
}

fn is_known(path: &str) -> bool {
    let path = path.strip_prefix("task.").unwrap_or(path);
    TOPICS.iter().any(|topic| !topic.path.is_empty() && topic.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str, span: Range<usize>) -> Mistake {
        let mut mistakes = Mistakes::default();
        mistakes.add(span, "it is wrong", "do it right");
        mistakes.told(text).mistakes.remove(0)
    }

    /// The line and what is beneath it.
    fn lines(text: &str, span: Range<usize>) -> (String, String) {
        let shown = mistake(text, span).excerpt("job.toml");
        let mut lines = shown.lines().skip(2).map(str::to_owned);
        (lines.next().unwrap(), lines.next().unwrap())
    }

    #[test]
    fn a_mistake_shows_its_line_and_points_at_it() {
        let text = "a = 1\n[resorces]\nb = 2\n";
        let shown = mistake(text, 7..15).to_string();
        let want = [
            "it is wrong",
            " --> job.toml:2:2",
            "  |",
            "2 | [resorces]",
            "  |  ^^^^^^^^ do it right",
        ];
        assert_eq!(shown, want.join("\n"));
    }

    #[test]
    fn numbers_of_two_digits_move_the_margin() {
        let text = "\n".repeat(11) + "x = 1";
        let shown = mistake(&text, 11..12).excerpt("a.toml");
        assert_eq!(shown, "  --> a.toml:12:1\n   |\n12 | x = 1\n   | ^ do it right");
    }

    #[test]
    fn carets_stay_within_the_line() {
        // From the middle of one line to the next.
        assert_eq!(lines("ab = 1\ncd = 2", 3..9).1, "  |    ^^^ do it right");
        assert_eq!(lines("ab = 1\r\ncd = 2", 3..9).1, "  |    ^^^ do it right");
        // At the end of the line, of the text, and far beyond.
        assert_eq!(lines("ab", 2..2), ("1 | ab".into(), "  |   ^ do it right".into()));
        assert_eq!(lines("", 0..0), ("1 | ".into(), "  | ^ do it right".into()));
        assert_eq!(lines("ab\n", 90..95), ("2 | ".into(), "  | ^ do it right".into()));
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        assert_eq!(lines("é = ü", 5..7), ("1 | é = ü".into(), "  |     ^ do it right".into()));
        // In the middle of a character.
        assert_eq!(lines("é = ü", 6..7).1, "  |     ^ do it right");
        assert_eq!(mistake("é = ü", 5..7).column, 5);
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_shown() {
        let (line, carets) = lines("a\t\u{1b}[31m\u{202e} = 1", 0..1);
        assert_eq!(line, "1 | a \u{fffd}[31m\u{fffd} = 1");
        assert_eq!(carets, "  | ^ do it right");
        assert_eq!(quoted(&"x".repeat(99)).chars().count(), MAX_QUOTED + 3);
        let mut mistakes = Mistakes::default();
        mistakes.add(0..0, "a\nb", "x".repeat(1 << 20));
        let Mistake { message, fix, .. } = mistakes.told("").mistakes.remove(0);
        assert_eq!((message.as_str(), fix.unwrap().len()), ("a\u{fffd}b", MAX_MESSAGE));
    }

    #[test]
    fn of_a_long_line_a_part_is_shown() {
        let text = format!("{}bad{}", "x".repeat(500), "y".repeat(500));
        let Mistake { shown, caret, width, column, .. } = mistake(&text, 500..503);
        let pointed: String = shown.chars().skip(caret).take(width).collect();
        assert_eq!((pointed.as_str(), column), ("bad", 501));
        assert!(shown.starts_with('…') && shown.ends_with('…'));
        assert!(shown.chars().count() <= MAX_SHOWN + 2);
        // All of it is wrong.
        let Mistake { width, .. } = mistake(&text, 0..1003);
        assert!(width <= MAX_SHOWN + 2);
    }

    #[test]
    fn a_secret_is_not_shown() {
        let hidden = |text: &str| {
            let at = text.find("hunter2").unwrap();
            let (line, carets) = lines(text, at..at + 7);
            assert!(!line.contains("hunter"), "{line}");
            assert!(carets.contains('^'));
            line
        };
        assert_eq!(hidden("[secrets]\nA = \"hunter2\" x"), "2 | A = …");
        assert_eq!(hidden("[secrets] # mine\n\nA = 'hunter2"), "3 | A = …");
        assert_eq!(hidden("secrets = { A = \"hunter2\" }"), "1 | secrets = …");
        assert_eq!(hidden("secrets.A = \"hunter2\""), "1 | secrets.A = …");
        assert_eq!(hidden("secrets = {\n A = 1,\n B = \"hunter2\" }"), "3 |  B = …");
        assert_eq!(hidden("[secrets]\nA = \"\"\"\nhunter2\n\"\"\""), "3 | …");
        // Perhaps this was meant to be [secrets].
        assert_eq!(hidden("[secret]\nA = \"hunter2\""), "2 | A = …");
        // What comes after it is shown again, and so is its header.
        let text = "[secrets]\nA = \"x\"\n[env]\nB = \"y\"";
        assert_eq!(lines(text, 28..29).0, "4 | B = \"y\"");
        assert_eq!(lines(text, 1..8), ("1 | [secrets]".into(), "  |  ^^^^^^^ do it right".into()));
        // The key of a secret is none.
        let text = "[secrets]\n1A = \"hunter2\"";
        assert_eq!(lines(text, 10..12), ("2 | 1A = …".into(), "  | ^^ do it right".into()));
    }

    #[test]
    fn mistakes_come_in_the_order_of_the_file_and_not_too_many() {
        let mut mistakes = Mistakes::default();
        for n in (0..500).rev() {
            mistakes.add(n..n + 1, format!("m{n}"), "");
        }
        let error = mistakes.told(&"\n".repeat(500));
        assert_eq!(error.mistakes.len(), MAX_MISTAKES);
        assert_eq!(error.more, 500 - MAX_MISTAKES);
        assert!(error.mistakes.is_sorted_by_key(|mistake| mistake.line));
        assert!(error.to_string().ends_with("and 490 more"), "{error}");
        assert_eq!(error.to_string().matches("\n\nerror: ").count(), MAX_MISTAKES - 1);
        assert_eq!(Mistakes::default().check(""), Ok(()));
    }
}
