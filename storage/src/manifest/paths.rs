//! Which paths can stand in a manifest, alone and beside one another.
//!
//! A tree must come out the same wherever it is laid out. So two names in one directory are refused if some file
//! system takes them for one: because they differ by case only, or because the same letters are written as other code
//! points (`é` as one, or as `e` and an accent: NFC and NFD). Names that only Windows reserves are fine.

use icu_normalizer::DecomposingNormalizerBorrowed;

use super::{Entry, MAX_PATH, ManifestError};

/// Bytes of one part of a path.
const MAX_NAME: usize = 255;

/// Whether a path can stand in a manifest.
pub fn check_path(path: &str) -> Result<(), ManifestError> {
    if path.is_empty() || path.len() > MAX_PATH {
        return refuse(path, "it is empty or too long");
    }
    let mut name = 0;
    let mut plain = true;
    for (at, byte) in path.bytes().enumerate() {
        match byte {
            b'/' => {
                check_name(path, &path[name..at])?;
                name = at + 1;
            }
            b'\\' => {
                return refuse(
                    path,
                    "it holds a backslash, which other systems take for a separator",
                );
            }
            0..0x20 | 0x7f => return refuse(path, "it holds a control character"),
            _ => plain &= byte.is_ascii(),
        }
    }
    check_name(path, &path[name..])?;
    if !plain && path.chars().any(char::is_control) {
        return refuse(path, "it holds a control character");
    }
    Ok(())
}

fn check_name(path: &str, name: &str) -> Result<(), ManifestError> {
    match name {
        "" => refuse(path, "it is absolute or has an empty part"),
        "." | ".." => refuse(path, "it leads out of its directory"),
        _ if name.len() > MAX_NAME => refuse(path, "a part of it is too long"),
        _ => Ok(()),
    }
}

/// In order, none twice, none that some file system takes for another, and no file where another entry needs
/// a directory.
pub(super) fn check_paths(entries: &[Entry]) -> Result<(), ManifestError> {
    for entry in entries {
        check_path(&entry.path)?;
    }
    for pair in entries.windows(2) {
        if pair[0].path >= pair[1].path {
            return refuse(&pair[1].path, "it is out of order, or there twice");
        }
    }
    // Folded paths that share a directory are neighbours in this order, and a file comes just before whatever
    // would lie in it. So it is enough to look at neighbours.
    let folded = Folded::new(entries);
    let mut order: Vec<u32> = (0..).take(entries.len()).collect();
    // The entries are sorted nearly this way, and this sort makes use of it.
    order.sort_by(|a, b| folded.get(*a).cmp(folded.get(*b)));
    for pair in order.windows(2) {
        let (a, b) = (&entries[pair[0] as usize].path, &entries[pair[1] as usize].path);
        check_neighbours((a, folded.get(pair[0])), (b, folded.get(pair[1])))?;
    }
    Ok(())
}

/// Two paths and what is left of them when case and writing are taken away.
fn check_neighbours(a: (&str, &[u8]), b: (&str, &[u8])) -> Result<(), ManifestError> {
    let mut names_a = a.0.split('/');
    let mut names_b = b.0.split('/');
    let mut folded_a = a.1.split(|byte| *byte == SEPARATOR);
    let mut folded_b = b.1.split(|byte| *byte == SEPARATOR);
    loop {
        match (folded_a.next(), folded_b.next()) {
            (Some(part_a), Some(part_b)) if part_a == part_b => {
                if names_a.next() != names_b.next() {
                    return refuse(b.0, "it differs from another by case or by accents only");
                }
            }
            (None, Some(_)) => {
                return refuse(a.0, "it is a directory for one entry and none for another");
            }
            _ => return Ok(()),
        }
    }
}

/// Sorts before everything that a name may hold.
const SEPARATOR: u8 = 0;

/// All paths, as a file system that cares for little would compare them; in one piece of memory.
struct Folded {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Folded {
    fn new(entries: &[Entry]) -> Self {
        let mut bytes = Vec::with_capacity(entries.iter().map(|entry| entry.path.len()).sum());
        let mut ends = Vec::with_capacity(entries.len());
        for Entry { path, .. } in entries {
            let begin = bytes.len();
            if path.is_ascii() {
                bytes.extend_from_slice(path.as_bytes());
                bytes[begin..].make_ascii_lowercase();
            } else {
                fold(path, &mut bytes);
            }
            for byte in &mut bytes[begin..] {
                if *byte == b'/' {
                    *byte = SEPARATOR;
                }
            }
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    fn get(&self, entry: u32) -> &[u8] {
        let entry = entry as usize;
        let begin = if entry == 0 { 0 } else { self.ends[entry - 1] };
        &self.bytes[begin..self.ends[entry]]
    }
}

/// Decomposed, and without case. By way of upper case, for letters that have two lower ones, like the two
/// sigmas; and by lower case before that, since the capital sharp s has no other way to its two s. A test shows
/// that what comes out is still decomposed.
fn fold(path: &str, to: &mut Vec<u8>) {
    for c in DecomposingNormalizerBorrowed::new_nfd().normalize(path).chars() {
        if c.is_ascii() {
            to.push(c.to_ascii_lowercase() as u8);
            continue;
        }
        let caseless = c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
        for c in caseless {
            to.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

fn refuse<T>(path: &str, why: &'static str) -> Result<T, ManifestError> {
    Err(ManifestError::Path { path: path.chars().take(80).collect(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(text: &str) -> String {
        let mut bytes = Vec::new();
        fold(text, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn every_character_folds_to_what_folds_to_itself() {
        let decompose = DecomposingNormalizerBorrowed::new_nfd();
        for c in char::MIN..=char::MAX {
            let once = folded(&c.to_string());
            assert!(decompose.is_normalized(&once), "{c:?}: {once:?}");
            assert_eq!(folded(&once), once, "{c:?}");
            for same in c.to_lowercase().chain(c.to_uppercase()) {
                let one = c.to_lowercase().count() == 1 && c.to_uppercase().count() == 1;
                assert!(!one || folded(&same.to_string()) == once, "{c:?} and {same:?}");
            }
        }
    }
}
