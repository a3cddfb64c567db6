//! Finds what a person means: by its name, its id, or the beginning of its id.
//!
//! A beginning has four characters or more. In a small mesh one letter would do to tell the ids apart, and then a slip
//! of the finger names a node that nobody meant: `mesh node rm a`.

use std::fmt::Display;

use super::answer::{Problem, quoted};

/// A shorter beginning of an id finds nothing.
const LEAST_OF_ID: usize = 4;
/// As many are named where several could be meant.
const MAX_NAMED: usize = 8;

/// The one of `all` that `wanted` means. `what` is said in errors, `list` shows them all.
pub(super) fn one<'a, K: Copy + Display>(
    what: &str,
    list: &str,
    wanted: &str,
    all: impl Iterator<Item = (K, Option<&'a str>)>,
) -> Result<K, Problem> {
    let is_hex = !wanted.is_empty() && wanted.len() <= 64 && wanted.bytes().all(is_hex_digit);
    let is_enough = wanted.len() >= LEAST_OF_ID;
    let mut begin = Vec::new();
    for (id, name) in all {
        // A name goes before an id: it was chosen, and no two share one.
        if name == Some(wanted) {
            return Ok(id);
        }
        if is_hex && is_enough {
            let text = id.to_string();
            if text == wanted {
                return Ok(id);
            }
            if text.starts_with(wanted) {
                begin.push((id, text, name));
            }
        }
    }
    match begin.as_slice() {
        [(id, ..)] => Ok(*id),
        [] => {
            let cause = if is_hex && !is_enough {
                format!(
                    "no {what} has this name, and the beginning of an id has {LEAST_OF_ID} characters or more"
                )
            } else {
                format!("no {what} has this name, and no id of one begins so")
            };
            let message = format!("there is no {what} {}", quoted(wanted));
            Err(Problem::not_found(message, cause, format!("{list} shows them all")))
        }
        several => {
            let named: Vec<String> = several.iter().take(MAX_NAMED).map(shown).collect();
            let more = several.len().saturating_sub(MAX_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            Err(Problem::bad(
                format!("{} could be any of {} {what}s", quoted(wanted), several.len()),
                format!("their ids begin so: {}{more}", named.join(", ")),
                "write more of the id, or the name",
            ))
        }
    }
}

fn shown<K>((_, text, name): &(K, String, Option<&str>)) -> String {
    let short = text.get(..12).unwrap_or(text);
    name.map_or_else(|| short.to_owned(), |name| format!("{name} ({short})"))
}

fn is_hex_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use mesh_consensus::id::NodeId;

    use super::*;

    fn find(wanted: &str) -> Result<NodeId, Problem> {
        let mut close = [0xab; 32];
        close[31] = 0;
        let all = [
            (NodeId([0xab; 32]), Some("gpu-1")),
            (NodeId(close), Some("gpu-2")),
            (NodeId([0xcd; 32]), Some("abab")),
        ];
        one("node", "mesh nodes", wanted, all.into_iter())
    }

    #[test]
    fn a_name_an_id_and_a_unique_beginning_find_one() {
        assert_eq!(find("gpu-2").unwrap().0[31], 0);
        assert_eq!(find(&"ab".repeat(32)).unwrap(), NodeId([0xab; 32]));
        assert_eq!(find("cdcd").unwrap(), NodeId([0xcd; 32]));
    }

    #[test]
    fn a_beginning_of_less_than_four_characters_finds_nothing_and_is_told_so() {
        for wanted in ["c", "cd", "cdc"] {
            let problem = find(wanted).unwrap_err();
            assert_eq!(problem.status, StatusCode::NOT_FOUND, "{wanted}");
            assert!(problem.cause.contains("4 characters"), "{problem:?}");
        }
        // A name may be as short as it likes.
        let all = [(NodeId([0xab; 32]), Some("gpu-1")), (NodeId([0xcd; 32]), Some("a"))];
        let found = one("node", "mesh nodes", "a", all.into_iter());
        assert_eq!(found.unwrap(), NodeId([0xcd; 32]));
    }

    #[test]
    fn a_name_goes_before_the_beginning_of_an_id() {
        assert_eq!(find("abab").unwrap(), NodeId([0xcd; 32]));
    }

    #[test]
    fn a_beginning_of_two_names_both() {
        let problem = find("ababa").unwrap_err();
        assert_eq!(problem.status, StatusCode::BAD_REQUEST);
        assert!(problem.cause.contains("gpu-1") && problem.cause.contains("gpu-2"), "{problem:?}");
    }

    #[test]
    fn nothing_at_all_finds_nothing() {
        for wanted in ["", "AB", "gpu", "é", "ff", &"ab".repeat(33)] {
            assert_eq!(find(wanted).unwrap_err().status, StatusCode::NOT_FOUND, "{wanted}");
        }
    }
}
