//! `.meshignore`: which files of a directory stay behind. It is written as `.gitignore` is:
//!
//! ```text
//! # a comment
//! *.ckpt          by name, wherever it is
//! /data           only here; so is anything else with a slash before its end
//! runs/           directories only
//! logs/**/*.txt   ** is any number of directories
//! !keep.ckpt      takes it back: the last line that fits decides
//! \#odd           a backslash takes the meaning from the next character
//! ```
//!
//! What is in a directory that stays behind stays behind, too. Only the file at the top of the directory counts.

/// What a `.meshignore` says.
#[derive(Debug, Default)]
pub(super) struct Ignore {
    rules: Vec<Rule>,
}

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    takes_back: bool,
    only_directories: bool,
    /// Whether it is meant from the top of the directory; else it is about the last part of a path.
    from_top: bool,
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// `**`: any number of parts, none included.
    Any,
    /// A name with wildcards in it.
    Name(Vec<Token>),
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// This character.
    Plain(char),
    /// `?`: one character.
    One,
    /// `*`: any number of characters.
    Many,
    /// `[a-z]`, `[!a-z]`: one of these, or none of these.
    Set { ranges: Vec<(char, char)>, inverted: bool },
}

impl Ignore {
    /// Reads one, line by line. There is nothing that it could not mean.
    pub(super) fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { rules: text.lines().filter_map(Rule::parse).collect() }
    }

    /// Whether something stays behind: `path` is its way from the top, part by part.
    pub(super) fn leaves(&self, path: &[&str], is_directory: bool) -> bool {
        let fitting = self.rules.iter().rev().find(|rule| rule.fits(path, is_directory));
        fitting.is_some_and(|rule| !rule.takes_back)
    }
}

impl Rule {
    fn parse(line: &str) -> Option<Self> {
        let line = without_end(line);
        if line.starts_with('#') {
            return None;
        }
        let (takes_back, line) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (only_directories, line) = match line.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let from_top = line.contains('/');
        let line = line.strip_prefix('/').unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        let mut parts: Vec<Part> = Vec::new();
        for word in line.split('/') {
            match word {
                "**" if parts.last() == Some(&Part::Any) => {}
                "**" => parts.push(Part::Any),
                name => parts.push(Part::Name(tokens(name))),
            }
        }
        // What is in it, and not it itself.
        if parts.last() == Some(&Part::Any) {
            parts.push(Part::Name(vec![Token::Many]));
        }
        Some(Self { takes_back, only_directories, from_top, parts })
    }

    fn fits(&self, path: &[&str], is_directory: bool) -> bool {
        if self.only_directories && !is_directory {
            return false;
        }
        let path = match path.split_last() {
            Some((last, _)) if !self.from_top => std::slice::from_ref(last),
            _ => path,
        };
        fits(
            &self.parts,
            path,
            |part| *part == Part::Any,
            |part, name| match part {
                Part::Any => true,
                Part::Name(tokens) => is_named(tokens, name),
            },
        )
    }
}

/// Whether a name fits a pattern.
fn is_named(tokens: &[Token], name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    fits(
        tokens,
        &letters,
        |token| *token == Token::Many,
        |token, letter| match token {
            Token::Plain(plain) => plain == letter,
            Token::One | Token::Many => true,
            Token::Set { ranges, inverted } => {
                ranges.iter().any(|(from, to)| (from..=to).contains(&letter)) != *inverted
            }
        },
    )
}

/// Whether all of `text` fits all of `pattern`, of which some stand for any number of what is there and the others for
/// one each. It takes steps in the product of the lengths at most, whatever somebody writes.
fn fits<P, T>(
    pattern: &[P],
    text: &[T],
    is_many: impl Fn(&P) -> bool,
    fits_one: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut next) = (0, 0);
    // The last that stands for any number, and how far it has reached.
    let mut back: Option<(usize, usize)> = None;
    while next < text.len() {
        match pattern.get(at) {
            Some(many) if is_many(many) => {
                back = Some((at, next));
                at += 1;
            }
            Some(one) if fits_one(one, &text[next]) => {
                at += 1;
                next += 1;
            }
            _ => match &mut back {
                Some((many, reached)) => {
                    *reached += 1;
                    (at, next) = (*many + 1, *reached);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(is_many)
}

/// A line without the blanks at its end, unless the last of them is escaped.
fn without_end(line: &str) -> &str {
    let line = line.trim_end_matches(['\r', '\n']);
    let bare = line.trim_end_matches([' ', '\t']);
    let escapes = bare.chars().rev().take_while(|c| *c == '\\').count();
    match line[bare.len()..].chars().next() {
        Some(blank) if escapes % 2 == 1 => &line[..bare.len() + blank.len_utf8()],
        _ => bare,
    }
}

fn tokens(word: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = word.chars();
    while let Some(c) = rest.next() {
        tokens.push(match c {
            '?' => Token::One,
            '*' if tokens.last() == Some(&Token::Many) => continue,
            '*' => Token::Many,
            '\\' => Token::Plain(rest.next().unwrap_or('\\')),
            '[' => match set(rest.as_str()) {
                Some((set, after)) => {
                    rest = after.chars();
                    set
                }
                // It has no end, so it is no set.
                None => Token::Plain('['),
            },
            plain => Token::Plain(plain),
        });
    }
    tokens
}

/// A set of characters, from after its bracket, and what comes after it.
fn set(text: &str) -> Option<(Token, &str)> {
    let (inverted, text) = match text.strip_prefix(['!', '^']) {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut rest = text.chars();
    loop {
        let from = match rest.next()? {
            // The first may be a bracket itself.
            ']' if !ranges.is_empty() => {
                return Some((Token::Set { ranges, inverted }, rest.as_str()));
            }
            '\\' => rest.next()?,
            from => from,
        };
        let mut ahead = rest.clone();
        let to = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(to)) if to != ']' => {
                rest = ahead;
                if to == '\\' { rest.next()? } else { to }
            }
            _ => from,
        };
        ranges.push((from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `path` stays behind, or a directory that it is in. One that ends in a slash is a directory.
    fn leaves(rules: &str, path: &str) -> bool {
        let ignore = Ignore::parse(rules);
        let (path, is_directory) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        let parts: Vec<&str> = path.split('/').collect();
        (1..=parts.len()).any(|n| ignore.leaves(&parts[..n], n < parts.len() || is_directory))
    }

    #[test]
    fn lines_mean_what_they_mean_to_git() {
        for (rules, stay, go) in [
            ("", &[][..], &["a", ".git2"][..]),
            ("# a\n\n  \n", &[], &["a", "# a"]),
            ("*.ckpt", &["a.ckpt", "x/y/b.ckpt", ".ckpt"], &["ckpt", "a.ckpt2"]),
            ("/data", &["data", "data/x"], &["x/data", "data2"]),
            ("runs/", &["runs/", "runs/1", "x/runs/2"], &["runs", "x/runs"]),
            ("a/b", &["a/b", "a/b/c"], &["x/a/b", "b"]),
            ("**/b", &["b", "a/b", "a/x/b"], &["bb"]),
            ("a/**", &["a/x", "a/x/y"], &["a/", "b/a/x"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["a/bb", "b"]),
            ("logs/**/*.txt", &["logs/a.txt", "logs/1/2/a.txt"], &["logs/a", "a.txt"]),
            ("*.ckpt\n!keep.ckpt", &["a.ckpt"], &["keep.ckpt", "x/keep.ckpt"]),
            // What is in a directory that stays behind cannot be taken back.
            ("a/\n!a/b", &["a/b"], &["b"]),
            ("a?c", &["abc", "a-c"], &["ac", "abbc"]),
            ("[a-c]x[!0-9]", &["axy", "cx_"], &["dxy", "ax1", "ax"]),
            ("[]x]", &["]", "x"], &["[", "a"]),
            ("a[b", &["a[b"], &["ab"]),
            ("[\\]a-]", &["]", "a", "-"], &["b"]),
            ("\\#x\n\\!y\nz\\ \nw  ", &["#x", "!y", "z ", "w"], &["x", "y", "z"]),
            ("ä*ü", &["äü", "ä..ü"], &["ä"]),
            ("a*b*c", &["abc", "a..b..c", "abcbc"], &["ab", "acb"]),
            ("\u{feff}a\r\nb\r\n", &["a", "b"], &["c"]),
        ] {
            for path in stay {
                assert!(leaves(rules, path), "{rules:?} takes {path:?} along");
            }
            for path in go {
                assert!(!leaves(rules, path), "{rules:?} leaves {path:?} behind");
            }
        }
    }

    #[test]
    fn a_pattern_made_to_be_slow_is_not() {
        let rules = format!("{}b", "*a".repeat(2000));
        let name = "a".repeat(4000);
        assert!(!leaves(&rules, &name));
        let ignore = Ignore::parse(&format!("{}b", "**/a/".repeat(200)));
        assert!(!ignore.leaves(&["a"; 1000], false));
    }
}
