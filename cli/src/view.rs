//! What people look at: tables that fit the terminal, bars, times, sizes, colour.
//!
//! Pure but for three questions to the terminal: is it one, how wide is it, is colour wanted. Whatever
//! a node says is cleaned of control characters on its way here, because names of machines and GPUs
//! come from others.

use std::fmt::Write as _;
use std::io::IsTerminal;

/// What stands between two columns.
const GAP: &str = "  ";

/// A colour, by what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Tint {
    /// As everything else.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Look at it.
    Odd,
    /// Wrong.
    Bad,
    /// What matters most.
    Strong,
    /// What matters least.
    Faint,
}

/// Whether to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint(pub(crate) bool);

impl Paint {
    /// On a terminal, unless NO_COLOR is set.
    pub(crate) fn stdout() -> Self {
        Self(std::io::stdout().is_terminal() && Self::is_wanted())
    }

    /// The same for what goes beside the answer.
    pub(crate) fn stderr() -> Self {
        Self(std::io::stderr().is_terminal() && Self::is_wanted())
    }

    fn is_wanted() -> bool {
        std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// The text in one of several colours that mean nothing but who is who.
    pub(crate) fn mark(self, text: &str, number: u64) -> String {
        const NUMBERS: [u8; 6] = [36, 35, 34, 33, 32, 96];
        if !self.0 {
            return text.to_owned();
        }
        let colour = NUMBERS[(number % NUMBERS.len() as u64) as usize];
        format!("\x1b[{colour}m{text}\x1b[0m")
    }

    /// The text in its colour.
    pub(crate) fn dye(self, text: &str, tint: Tint) -> String {
        let number = match tint {
            _ if !self.0 => return text.to_owned(),
            Tint::Plain => return text.to_owned(),
            Tint::Good => "32",
            Tint::Odd => "33",
            Tint::Bad => "31",
            Tint::Strong => "1",
            Tint::Faint => "2",
        };
        format!("\x1b[{number}m{text}\x1b[0m")
    }
}

/// How wide standard output is; `None` if it is no terminal and any width will do.
pub(crate) fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns)).filter(|w| *w > 0)
}

/// Whether the terminal shows more than ASCII, by the locale: the first of these that is set decides.
pub(crate) fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// How much of a whole there is, as a bar. It is full only for all of it, and empty only for nothing.
pub(crate) fn bar(part: u64, whole: u64, cells: usize, utf8: bool) -> String {
    let (full, rest) = if utf8 { ("█", "░") } else { ("#", ".") };
    let filled = match (part, whole) {
        (part, whole) if part >= whole => cells,
        (0, _) => 0,
        (part, whole) => {
            let share = (part as f64 / whole as f64 * cells as f64).round() as usize;
            share.clamp(1, cells.saturating_sub(1).max(1))
        }
    };
    full.repeat(filled) + &rest.repeat(cells - filled)
}

/// `40 %`: never a hundred before it is all.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if part >= whole {
        return "100 %".into();
    }
    format!("{:.0} %", (part as f64 / whole as f64 * 100.0).floor())
}

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    head: &'static str,
    right: bool,
    /// How narrow it may become before another column has to go.
    least: usize,
    /// Columns with lower numbers go first.
    worth: u8,
}

impl Column {
    /// A column that keeps its width and stays.
    pub(crate) const fn new(head: &'static str) -> Self {
        Self { head, right: false, least: usize::MAX, worth: u8::MAX }
    }

    /// Numbers line up on the right.
    pub(crate) const fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// It may be cut to this width.
    pub(crate) const fn least(self, least: usize) -> Self {
        Self { least, ..self }
    }

    /// It may be left out; the lowest worth goes first.
    pub(crate) const fn worth(self, worth: u8) -> Self {
        Self { worth, ..self }
    }
}

/// One cell: clean text and its colour.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    tint: Tint,
}

impl Cell {
    /// A cell in a colour. Nothing is shown as a dash, so that a column is never ragged.
    pub(crate) fn new(text: impl AsRef<str>, tint: Tint) -> Self {
        let text = clean(text.as_ref());
        if text.is_empty() {
            return Self { text: "-".into(), tint: Tint::Faint };
        }
        Self { text, tint }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tint::Plain)
    }
}

/// Rows under heads.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    columns: Vec<Column>,
    /// Each has as many cells as there are columns.
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, one cell a column.
    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len(), "one cell a column");
        self.rows.push(cells.into());
    }

    /// The table as text, no wider than `width` as long as its columns allow.
    pub(crate) fn render(&self, width: Option<usize>, paint: Paint) -> String {
        let widths = self.widths(width);
        let mut text = String::new();
        let heads: Vec<Cell> =
            self.columns.iter().map(|column| Cell::new(column.head, Tint::Faint)).collect();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            let shown = widths.iter().enumerate().filter_map(|(at, w)| Some((at, (*w)?)));
            for (at, width) in shown {
                let cell = cut(&row[at].text, width);
                let pad = " ".repeat(width - letters(&cell));
                let cell = paint.dye(&cell, row[at].tint);
                let gap = if line.is_empty() { "" } else { GAP };
                let _ = if self.columns[at].right {
                    write!(line, "{gap}{pad}{cell}")
                } else {
                    write!(line, "{gap}{cell}{pad}")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// How wide each column is; `None` for one that does not fit.
    fn widths(&self, limit: Option<usize>) -> Vec<Option<usize>> {
        let natural = |at: usize| {
            let cells = self.rows.iter().map(|row| letters(&row[at].text));
            cells.chain([letters(self.columns[at].head)]).max().unwrap_or(0)
        };
        let mut widths: Vec<Option<usize>> =
            (0..self.columns.len()).map(|at| Some(natural(at))).collect();
        let Some(limit) = limit else { return widths };
        loop {
            let shown = widths.iter().flatten();
            let total = shown.clone().sum::<usize>() + GAP.len() * shown.count().saturating_sub(1);
            let Some(over) = total.checked_sub(limit).filter(|over| *over > 0) else {
                return widths;
            };
            // The widest column that may still give way loses one letter; then columns go.
            let spare = |at: usize, w: usize| w.saturating_sub(self.columns[at].least.max(1));
            let shrinks =
                (0..widths.len()).filter(|at| widths[*at].is_some_and(|w| spare(*at, w) > 0));
            let slack: usize =
                widths.iter().enumerate().filter_map(|(at, w)| Some(spare(at, (*w)?))).sum();
            let widest = shrinks.max_by_key(|at| widths[*at]);
            let leaves = (0..widths.len())
                .filter(|at| widths[*at].is_some() && self.columns[*at].worth < u8::MAX)
                .min_by_key(|at| self.columns[*at].worth);
            match (widest, leaves) {
                (Some(at), leaves) if slack >= over || leaves.is_none() => {
                    widths[at] = widths[at].map(|w| w - 1);
                }
                (_, Some(at)) => widths[at] = None,
                (_, None) => return widths,
            }
        }
    }
}

/// Lines of `what: value`, lined up.
pub(crate) fn facts(lines: &[(&str, String)], paint: Paint) -> String {
    let wide = lines.iter().map(|(what, _)| letters(what)).max().unwrap_or(0);
    let mut text = String::new();
    for (what, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        let what = paint.dye(&format!("{what:wide$}"), Tint::Faint);
        let _ = writeln!(text, "{what}  {}", clean(value));
    }
    text
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

fn cut(text: &str, width: usize) -> String {
    if letters(text) <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect()
}

/// The text in one line, without anything that a terminal would obey.
pub(crate) fn clean(text: &str) -> String {
    let spaced = text.trim().chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { c });
    spaced.filter(|c| !c.is_control() && !is_direction(*c)).collect()
}

/// The lines as they stand, blanks before them included, without anything that a terminal would obey.
pub(crate) fn clean_lines(text: &str) -> String {
    let clean = |line: &str| {
        let spaced = line.chars().map(|c| if c == '\t' { ' ' } else { c });
        spaced.filter(|c| !c.is_control() && !is_direction(*c)).collect::<String>()
    };
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// Characters that make a line read otherwise than it is written.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `12.3 GiB`: three figures at most.
pub(crate) fn bytes(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" || value >= 99.95 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// `1.5`: thousandths of a core as cores.
pub(crate) fn cores(milli: u64) -> String {
    let text = format!("{:.3}", milli as f64 / 1000.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `250ms`, `12s`, `5m`, `3h`, `2d`: one unit alone, to the nearest.
pub(crate) fn span(ms: u64) -> String {
    const SECOND: u64 = 1000;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let nearest = |unit: u64| ms / unit + u64::from(ms % unit >= unit / 2);
    // A unit is left for the next by what it would show, so that nobody reads 60s or 60m.
    if ms < SECOND {
        format!("{ms}ms")
    } else if nearest(SECOND) < 60 {
        format!("{}s", nearest(SECOND))
    } else if nearest(MINUTE) < 60 {
        format!("{}m", nearest(MINUTE))
    } else if nearest(HOUR) < 48 {
        format!("{}h", nearest(HOUR))
    } else {
        format!("{}d", nearest(DAY))
    }
}

/// How long ago: `now` within two seconds, because gossip is no faster.
pub(crate) fn ago(ms: u64) -> String {
    if ms < 2000 { "now".into() } else { span(ms) }
}

/// A time of the mesh (RFC 3339) against the clock: `in 24h`, `5m ago`. As it is if it is no time.
pub(crate) fn when(time: &str, now_ms: u64) -> String {
    let Some(ms) = millis(time) else { return time.to_owned() };
    match (ms.saturating_sub(now_ms), now_ms.saturating_sub(ms)) {
        (0, past) if past < 2000 => "now".into(),
        (0, past) => format!("{} ago", span(past)),
        (future, _) => format!("in {}", span(future)),
    }
}

/// Milliseconds since 1970 of an RFC 3339 time.
pub(crate) fn millis(time: &str) -> Option<u64> {
    let format = &time::format_description::well_known::Rfc3339;
    let time = time::OffsetDateTime::parse(time, format).ok()?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok()
}

/// The shortest beginnings, of eight letters or more, that tell these ids apart.
pub(crate) fn short_ids<'a>(ids: &[&'a str]) -> Vec<&'a str> {
    let whole = ids.iter().map(|id| id.len()).max().unwrap_or(0);
    let beginning = |id: &'a str, length: usize| id.get(..length).unwrap_or(id);
    let told_apart = |length: &usize| {
        let cut: std::collections::BTreeSet<_> =
            ids.iter().map(|id| beginning(id, *length)).collect();
        let all: std::collections::BTreeSet<_> = ids.iter().collect();
        cut.len() == all.len()
    };
    let length = (8..whole).find(told_apart).unwrap_or(whole);
    ids.iter().map(|id| beginning(id, length)).collect()
}

/// `1 node`, `3 nodes`.
pub(crate) fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

#[cfg(test)]
mod tests;
