//! How deep a file could be nested, told before it is parsed.
//!
//! The parser bounds how many brackets stand within one another, and how many dots a key has, but not the
//! one times the other: 80 tables within one another, each with a key of 80 parts, make 6,400 levels. Parsing
//! goes well; taking that apart again goes one level down the stack for each, and a stack of 1 MiB overflows. So
//! the characters that can open a level are counted first, wherever they stand outside of strings and comments:
//! there is no more depth than there are of them.

/// The most characters that can open a level. A file at all its bounds has a few hundred.
pub(super) const MAX_OPENINGS: usize = 1000;

/// How many characters of a file can open a level.
///
/// This cuts the text as the parser's lexer does, also where it is no TOML: what that sees as a bracket is
/// counted here.
pub(super) fn openings(text: &str) -> usize {
    let bytes = text.strip_prefix('\u{feff}').unwrap_or(text).as_bytes();
    let mut count = 0;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'[' | b'{' | b'.' => {
                count += 1;
                at + 1
            }
            b']' | b'}' | b'=' | b',' | b' ' | b'\t' | b'\r' | b'\n' => at + 1,
            b'#' => find(bytes, at, b"\r\n"),
            b'"' | b'\'' => end_of_string(bytes, at, *byte),
            // A word. A quote in the middle of one opens no string.
            _ => find(bytes, at, b"[]{}.=, \t#\r\n"),
        };
    }
    count
}

/// Where the next of `stops` is, or the end.
fn find(bytes: &[u8], from: usize, stops: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.iter().position(|byte| stops.contains(byte)).map_or(bytes.len(), |offset| from + offset)
}

/// Where a string ends that begins at `at`.
fn end_of_string(bytes: &[u8], at: usize, quote: u8) -> usize {
    let has_three =
        |at: usize| bytes.get(at..at + 3).is_some_and(|b| b.iter().all(|b| *b == quote));
    let is_long = has_three(at);
    let mut at = at + if is_long { 3 } else { 1 };
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if quote == b'"' => {
                let is_escaped = matches!(bytes.get(at + 1), Some(b'\\' | b'"'));
                at += if is_escaped { 2 } else { 1 };
            }
            b'\n' if !is_long => return at,
            _ if *byte == quote && !is_long => return at + 1,
            _ if is_long && has_three(at) => {
                // Up to two quotes more belong to what it says.
                let more = bytes[at + 3..].iter().take(2).take_while(|b| **b == quote).count();
                return at + 3 + more;
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_a_level_is_counted_outside_of_strings_and_comments() {
        let cases = [
            ("", 0),
            ("a = [[1], {b.c = 2.5}]", 5),
            ("# [[[\n[a]", 1),
            ("# [[[\r[a]", 1),
            ("a = \"[[[\" # [", 0),
            ("a = \"\\\"[[[\" ", 0),
            ("a = '[[[\\' [", 1),
            ("a = \"\"\"[[[\n\"[[\" \\\"\"\"\"[\"\"\"\"\" [", 1),
            ("a = '''[[[\n'[' [''''' [", 1),
            // It ends with its line, also where it should not.
            ("a = \"[[[\n[", 1),
            ("a = '[[[\n[", 1),
            // No string opens here.
            ("a\"[[\"", 2),
            ("\u{feff}\"[[\" [", 1),
            ("a = \"\"\"[[", 0),
        ];
        for (text, count) in cases {
            assert_eq!(openings(text), count, "{text:?}");
        }
    }
}
