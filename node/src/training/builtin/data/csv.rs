//! Comma-separated numbers, an example a line. The first line may name the columns.

use super::{Examples, Flaw, Input, MAX_VALUES, examples, label};

/// The most columns.
const MAX_COLUMNS: usize = 1 << 20;

pub(super) fn parse(bytes: &[u8], scale: f32) -> Result<Examples, Flaw> {
    let text = std::str::from_utf8(bytes).map_err(|_| Flaw::Begin("a text"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut lines = lines.peekable();
    let Some((_, first)) = lines.peek() else { return Err(Flaw::Empty) };
    let columns = first.split(',').count();
    if !(2..=MAX_COLUMNS).contains(&columns) {
        return Err(Flaw::Line { line: 1, why: "it has no two columns, or too many" });
    }
    let is_header = first.split(',').any(|field| number(field).is_none());
    let named = first.split(',').position(|name| plain(name).eq_ignore_ascii_case("label"));
    let label_at = named.filter(|_| is_header).unwrap_or(columns - 1);
    if is_header {
        lines.next();
    }
    let (mut inputs, mut labels) = (Vec::new(), Vec::new());
    for (n, line) in lines {
        let flaw = |why| Flaw::Line { line: n + 1, why };
        let mut found = 0;
        for (column, field) in line.split(',').enumerate() {
            let number = number(field).ok_or(flaw("a field is no number"))?;
            found += 1;
            if column == label_at {
                labels.push(label(number)?);
            } else {
                inputs.push(number as f32 / scale);
            }
        }
        if found != columns {
            return Err(flaw("it has another number of fields than the first line"));
        }
        if inputs.len() > MAX_VALUES {
            return Err(Flaw::Large);
        }
    }
    examples(inputs, Input { channels: 1, height: 1, width: columns - 1 }, labels, 2)
}

/// A field without blanks and quotes.
fn plain(field: &str) -> &str {
    field.trim().trim_matches('"').trim()
}

fn number(field: &str) -> Option<f64> {
    plain(field).parse().ok().filter(|number: &f64| number.is_finite())
}
