//! Curves on a terminal.
//!
//! ```text
//!  0.95 ┤            ⢀⡠⠤⠒⠊⠉⠉
//!       │      ⡠⠔⠊⠉
//!   0.6 ┤⡠⠔⠊
//!       └────────────────────
//!        1        10       20
//! ```
//!
//! A letter has eight dots where the terminal shows them and each curve has a colour or is alone. Otherwise a curve is drawn
//! with a mark of its own.

use crate::course::figure;
use crate::view::{Paint, Tint, clean};

/// Marks of curves where dots will not do.
const MARKS: [char; 8] = ['*', 'o', '+', 'x', '#', '@', '%', '='];
/// A plot is no narrower, whatever the terminal is.
const LEAST_WIDTH: usize = 24;
/// Without a terminal, and at most: a line that is longer is hard to follow with the eye.
const USUAL_WIDTH: usize = 80;
const MOST_WIDTH: usize = 120;
/// Lines of a plot, without its axis.
const HEIGHT: usize = 14;
/// Every so many lines a value is written beside the plot.
const EVERY: usize = 4;

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    /// Whose it is.
    pub(crate) label: String,
    /// Rounds and values, in the order of the rounds.
    pub(crate) points: Vec<(u64, f64)>,
}

/// How it is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// How wide the terminal is; `None` if there is none.
    pub(crate) width: Option<usize>,
    /// Whether there is colour.
    pub(crate) paint: Paint,
    /// Whether more than ASCII is shown.
    pub(crate) utf8: bool,
}

/// Curves under the name of what they show, with axes and a legend. Points that are no numbers are left out.
pub(crate) fn draw(title: &str, series: &[Series], look: Look) -> String {
    let series: Vec<Series> = series.iter().map(finite).collect();
    let Some(frame) = Frame::around(&series) else {
        return format!("{}: nothing to draw yet\n", clean(title));
    };
    let labels = frame.labels();
    let beside = labels.iter().flatten().map(|label| label.chars().count()).max().unwrap_or(0);
    let width = look.width.unwrap_or(USUAL_WIDTH).clamp(LEAST_WIDTH, MOST_WIDTH);
    let cells = width.saturating_sub(beside + 2).max(1);
    let dotted = look.utf8 && (look.paint.0 || series.len() == 1);
    let mut canvas = Canvas::new(cells, dotted);
    for (number, one) in series.iter().enumerate() {
        canvas.curve(number, &frame, &one.points);
    }

    let (tick, bar, corner, line) =
        if look.utf8 { ("┤", "│", "└", "─") } else { ("+", "|", "+", "-") };
    let mut text = format!("{}\n", look.paint.dye(&clean(title), Tint::Strong));
    for (row, label) in labels.iter().enumerate() {
        let edge = if label.is_some() { tick } else { bar };
        let label = label.as_deref().unwrap_or_default();
        let label = look.paint.dye(&format!("{label:>beside$}"), Tint::Faint);
        text += &format!("{label} {edge}{}\n", canvas.row(row, look.paint));
    }
    text += &format!("{:beside$} {corner}{}\n", "", line.repeat(cells));
    let rounds = look.paint.dye(&frame.rounds(cells), Tint::Faint);
    text += &format!("{:beside$}  {rounds}\n", "");
    for (number, one) in series.iter().enumerate() {
        text += &legend(number, one, canvas.mark(number), look.paint, width);
    }
    text
}

/// The same without what is no number.
fn finite(series: &Series) -> Series {
    let points = series.points.iter().copied().filter(|(_, value)| value.is_finite());
    Series { label: clean(&series.label), points: points.collect() }
}

/// `* mnist (1a2b3c4d)  0.95 at round 20`.
fn legend(number: usize, one: &Series, mark: char, paint: Paint, width: usize) -> String {
    let last = match one.points.last() {
        Some((round, value)) => format!("{} at round {round}", figure(*value)),
        None => "nothing yet".to_owned(),
    };
    let line = format!("{}  {last}", one.label);
    let line: String = line.chars().take(width.saturating_sub(2)).collect();
    format!("{} {line}\n", paint.mark(&mark.to_string(), number as u64))
}

/// What a plot shows: from where to where.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Frame {
    first: u64,
    last: u64,
    low: f64,
    high: f64,
}

impl Frame {
    /// `None` if there is no point.
    fn around(series: &[Series]) -> Option<Self> {
        let mut points = series.iter().flat_map(|one| one.points.iter().copied());
        let (round, value) = points.next()?;
        let mut frame = Self { first: round, last: round, low: value, high: value };
        for (round, value) in points {
            frame.first = frame.first.min(round);
            frame.last = frame.last.max(round);
            frame.low = frame.low.min(value);
            frame.high = frame.high.max(value);
        }
        // A line that is level has room above and below it.
        if frame.high <= frame.low {
            let room = if frame.low == 0.0 { 1.0 } else { frame.low.abs() / 10.0 };
            (frame.low, frame.high) = (frame.low - room, frame.high + room);
        }
        Some(frame)
    }

    /// What stands beside each line, from the top; on most lines nothing does.
    fn labels(&self) -> Vec<Option<String>> {
        let label = |row: usize| {
            let is_told = row.is_multiple_of(EVERY) || row + 1 == HEIGHT;
            // The last of the regular ones would touch the lowest.
            let is_near = row + 1 != HEIGHT && HEIGHT - 1 - row < EVERY / 2;
            let part = row as f64 / (HEIGHT - 1) as f64;
            (is_told && !is_near).then(|| figure(self.high * (1.0 - part) + self.low * part))
        };
        (0..HEIGHT).map(label).collect()
    }

    /// The first round, the one in the middle and the last, where they stand under so many letters.
    fn rounds(&self, cells: usize) -> String {
        let (first, last) = (self.first.to_string(), self.last.to_string());
        if self.first == self.last {
            return format!("round {first}").chars().take(cells).collect();
        }
        let middle = (self.first + (self.last - self.first) / 2).to_string();
        let gap = cells.saturating_sub(first.len() + middle.len() + last.len());
        if gap < 4 || self.last - self.first < 2 {
            let gap = cells.saturating_sub(first.len() + last.len()).max(1);
            return format!("{first}{}{last}", " ".repeat(gap));
        }
        // In the middle as far as its own width allows.
        let left = (cells / 2).saturating_sub(first.len() + middle.len() / 2).clamp(1, gap - 1);
        format!("{first}{}{middle}{}{last}", " ".repeat(left), " ".repeat(gap - left))
    }

    /// Where a point lies: from the left and from the top, each 0..=1.
    fn place(&self, round: u64, value: f64) -> (f64, f64) {
        let wide = self.last - self.first;
        let across = if wide == 0 { 0.5 } else { (round - self.first) as f64 / wide as f64 };
        // By parts, as the difference of two huge numbers may have no end.
        let down = (self.high / 2.0 - value / 2.0) / (self.high / 2.0 - self.low / 2.0);
        (across, down.clamp(0.0, 1.0))
    }
}

/// A letter of a plot.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Its eight dots.
    dots: u8,
    /// The curve that was here last, from 1; 0 for none.
    curve: usize,
}

/// Letters, each of them with dots.
#[derive(Debug)]
struct Canvas {
    cells: Vec<Cell>,
    wide: usize,
    /// Whether a letter has eight dots, or one.
    dotted: bool,
}

impl Canvas {
    fn new(wide: usize, dotted: bool) -> Self {
        Self { cells: vec![Cell::default(); wide * HEIGHT], wide, dotted }
    }

    /// How many dots there are, across and down.
    fn size(&self) -> (usize, usize) {
        if self.dotted { (2 * self.wide, 4 * HEIGHT) } else { (self.wide, HEIGHT) }
    }

    /// The sign of a curve.
    fn mark(&self, number: usize) -> char {
        if self.dotted { '⠶' } else { MARKS[number % MARKS.len()] }
    }

    /// Draws a curve from point to point.
    fn curve(&mut self, number: usize, frame: &Frame, points: &[(u64, f64)]) {
        let (wide, high) = self.size();
        let spots = points.iter().map(|(round, value)| {
            let (across, down) = frame.place(*round, *value);
            let x = (across * (wide - 1) as f64).round() as i64;
            let y = (down * (high - 1) as f64).round() as i64;
            (x, y)
        });
        let spots: Vec<(i64, i64)> = spots.collect();
        if let [(x, y)] = spots[..] {
            self.dot(number, x, y);
        }
        for pair in spots.windows(2) {
            self.line(number, pair[0], pair[1]);
        }
    }

    /// As many dots as it is wide or high, whichever is more.
    fn line(&mut self, number: usize, from: (i64, i64), to: (i64, i64)) {
        let (across, down) = (to.0 - from.0, to.1 - from.1);
        let steps = across.abs().max(down.abs()).max(1);
        for step in 0..=steps {
            let part = step as f64 / steps as f64;
            let x = from.0 + (across as f64 * part).round() as i64;
            let y = from.1 + (down as f64 * part).round() as i64;
            self.dot(number, x, y);
        }
    }

    fn dot(&mut self, number: usize, x: i64, y: i64) {
        let (wide, high) = self.size();
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        if x >= wide || y >= high {
            return;
        }
        let (column, row, bit) = match self.dotted {
            true => (x / 2, y / 4, bit(x % 2, y % 4)),
            false => (x, y, 1),
        };
        let cell = &mut self.cells[row * self.wide + column];
        cell.dots |= bit;
        cell.curve = number + 1;
    }

    /// A line of it, from the top, without the blanks at its end.
    fn row(&self, row: usize, paint: Paint) -> String {
        let cells = &self.cells[row * self.wide..(row + 1) * self.wide];
        let used = cells.iter().rposition(|cell| cell.curve > 0).map_or(0, |last| last + 1);
        let mut text = String::new();
        for cell in &cells[..used] {
            let Some(number) = cell.curve.checked_sub(1) else {
                text.push(' ');
                continue;
            };
            let letter = match self.dotted {
                true => char::from_u32(0x2800 + u32::from(cell.dots)).unwrap_or(' '),
                false => self.mark(number),
            };
            text += &paint.mark(&letter.to_string(), number as u64);
        }
        text
    }
}

/// The bit of a dot of a braille letter, of two across and four down.
fn bit(x: usize, y: usize) -> u8 {
    const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
    BITS[x][y]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(width: usize, utf8: bool, paint: bool) -> Look {
        Look { width: Some(width), paint: Paint(paint), utf8 }
    }

    fn rising(label: &str, rounds: u64) -> Series {
        let points = (1..=rounds).map(|round| (round, round as f64 / rounds as f64));
        Series { label: label.into(), points: points.collect() }
    }

    #[test]
    fn a_curve_rises_from_the_lower_left_to_the_upper_right() {
        let text = draw("accuracy", &[rising("mnist", 20)], look(60, false, false));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "accuracy");
        assert!(lines[1].starts_with("    1 +") && lines[1].ends_with('*'), "{text}");
        assert!(lines[HEIGHT].starts_with(" 0.05 +*"), "{text}");
        assert!(lines[HEIGHT + 1].starts_with("      +-----"), "{text}");
        let rounds: Vec<&str> = lines[HEIGHT + 2].split_whitespace().collect();
        assert_eq!(rounds, ["1", "10", "20"]);
        assert_eq!(lines[HEIGHT + 3], "* mnist  1 at round 20");
        // It is one line without a gap.
        let columns = |line: &str| line.char_indices().filter(|(_, c)| *c == '*').count();
        assert!(lines[1..=HEIGHT].iter().all(|line| columns(line) > 0), "{text}");
    }

    #[test]
    fn every_plot_fits_its_terminal() {
        for width in 24..130 {
            for utf8 in [false, true] {
                let two = [rising("a-job-with-a-long-name (1a2b3c4d)", 300), rising("b", 7)];
                let text = draw("loss", &two, look(width, utf8, false));
                let fits = |line: &str| line.chars().count() <= width;
                assert!(text.lines().all(fits), "{width}\n{text}");
            }
        }
    }

    #[test]
    fn several_curves_can_be_told_apart_without_colour() {
        let falling = Series { label: "b".into(), points: vec![(1, 1.0), (20, 0.0)] };
        let two = [rising("a", 20), falling];
        let text = draw("loss", &two, look(60, true, false));
        assert!(text.contains("\n* a  1 at") && text.contains("\no b  0 at"), "{text}");
        assert!(!text.contains('\x1b') && text.matches('o').count() > 10, "{text}");
        let painted = draw("loss", &two, look(60, true, true));
        assert!(painted.contains('\x1b') && painted.contains('⠶'), "{painted}");
        // Alone, it needs no colour to be drawn finely.
        let alone = draw("loss", &two[..1], look(60, true, false));
        assert!(alone.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{alone}");
        assert!(!alone.contains('\x1b'));
    }

    #[test]
    fn odd_values_are_no_trouble() {
        let of = |points: Vec<(u64, f64)>| [Series { label: "x\u{1b}[2J".into(), points }];
        for points in [
            vec![(0, 0.0)],
            vec![(5, 0.3), (6, 0.3)],
            vec![(0, f64::MIN), (u64::MAX, f64::MAX)],
            vec![(1, 1e-300), (2, f64::NAN), (3, f64::INFINITY), (4, 2e-300)],
            vec![(7, -4.0), (7, 5.0)],
        ] {
            let text = draw("m", &of(points.clone()), look(50, true, false));
            assert!(text.lines().count() > HEIGHT, "{points:?}\n{text}");
            assert!(!text.contains("NaN") && !text.contains('\x1b'), "{points:?}\n{text}");
        }
        let none = draw("loss", &of(vec![(1, f64::NAN)]), look(50, true, false));
        assert_eq!(none, "loss: nothing to draw yet\n");
        assert_eq!(draw("loss", &[], look(50, true, false)), "loss: nothing to draw yet\n");
    }
}
