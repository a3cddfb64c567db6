//! What a log says about itself, and how its records are spelled.
//!
//! Every value that mesh stores in redb begins with eight bytes of BLAKE3 over its key and the
//! rest of it, so that a value which rotted, or turned up under another key, is not believed. The
//! rest is postcard.

use mesh_consensus::log::{HardState, Snapshot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const CHECKSUM: usize = 8;

/// An index and the term of what stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) index: u64,
    pub(super) term: u64,
}

impl Place {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        Self { index: snapshot.index, term: snapshot.term }
    }
}

/// Everything but the entries and the snapshot's data. Rewritten with every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Head {
    /// Counts the writes.
    pub(super) seq: u64,
    pub(super) hard_state: HardState,
    /// What stood before the first entry that is held.
    pub(super) floor: Place,
    /// The last entry, or `floor` if none is held.
    pub(super) last: Place,
    pub(super) snapshot: Option<Place>,
}

impl Head {
    /// Says what is wrong, if anything is. Such a head is neither written nor believed.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { seq: _, hard_state, floor, last, snapshot } = *self;
        let ensure = |holds: bool, wrong: &dyn Fn() -> String| match holds {
            true => Ok(()),
            false => Err(wrong()),
        };
        ensure(floor.index < last.index || floor == last, &|| {
            format!("its entries are said to go from above {} to {}", floor.index, last.index)
        })?;
        ensure(floor.term <= last.term && last.term <= hard_state.term, &|| {
            format!(
                "its terms go back: {} before the first entry, {} at the last, {} now",
                floor.term, last.term, hard_state.term
            )
        })?;
        let since = match snapshot {
            None => {
                ensure(floor == Place::default(), &|| {
                    format!("there is no snapshot, but entries up to {} are gone", floor.index)
                })?;
                0
            }
            Some(at) => {
                ensure((floor.index..=last.index).contains(&at.index) && at.index > 0, &|| {
                    format!(
                        "the snapshot is at {}, but the entries go from {} to {}",
                        at.index,
                        floor.index + 1,
                        last.index
                    )
                })?;
                for held in [floor, last] {
                    ensure(at.index != held.index || at == held, &|| {
                        format!("index {} has the terms {} and {}", at.index, at.term, held.term)
                    })?;
                }
                at.index
            }
        };
        ensure((since..=last.index).contains(&hard_state.commit), &|| {
            format!(
                "{} is said to be committed, outside of {since} to {}",
                hard_state.commit, last.index
            )
        })
    }
}

/// Spells a record that will stand under `key`.
pub(super) fn encode(key: &[u8], record: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = postcard::to_extend(record, vec![0; CHECKSUM])?;
    let sum = checksum(key, &bytes[CHECKSUM..]);
    bytes[..CHECKSUM].copy_from_slice(&sum);
    Ok(bytes)
}

/// Reads the record that stands under `key`; `None` if it is not what was once written there.
pub(super) fn decode<T: DeserializeOwned>(key: &[u8], bytes: &[u8]) -> Option<T> {
    let (sum, rest) = bytes.split_at_checked(CHECKSUM)?;
    if sum != checksum(key, rest) {
        return None;
    }
    match postcard::take_from_bytes(rest) {
        Ok((record, [])) => Some(record),
        _ => None,
    }
}

fn checksum(key: &[u8], rest: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(rest);
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_believed_only_whole_and_under_its_own_key() {
        let bytes = encode(b"key", &Head::default()).unwrap();
        assert_eq!(decode(b"key", &bytes), Some(Head::default()));
        assert_eq!(decode::<Head>(b"kez", &bytes), None);
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode::<Head>(b"key", &bytes), None);
        }
        for len in 0..bytes.len() {
            assert_eq!(decode::<Head>(b"key", &bytes[..len]), None);
        }
    }

    #[test]
    fn a_head_that_contradicts_itself_says_how() {
        let place = |index, term| Place { index, term };
        let good = Head {
            seq: 1,
            hard_state: HardState { term: 5, vote: None, commit: 10 },
            floor: place(7, 2),
            last: place(12, 4),
            snapshot: Some(place(9, 3)),
        };
        assert_eq!(good.check(), Ok(()));
        let with_commit = |commit| HardState { commit, ..good.hard_state };
        let wrong = [
            (Head { hard_state: with_commit(8), ..good }, "8 is said to be committed"),
            (Head { hard_state: with_commit(13), ..good }, "outside of 9 to 12"),
            (Head { snapshot: None, ..good }, "entries up to 7 are gone"),
            (Head { snapshot: Some(place(6, 1)), ..good }, "the snapshot is at 6"),
            (Head { snapshot: Some(place(13, 4)), ..good }, "the snapshot is at 13"),
            (Head { snapshot: Some(place(7, 1)), ..good }, "index 7 has the terms 1 and 2"),
            (Head { last: place(12, 1), ..good }, "its terms go back"),
            (Head { last: place(12, 6), ..good }, "its terms go back"),
            (Head { last: place(6, 4), ..good }, "from above 7 to 6"),
        ];
        for (head, want) in wrong {
            let found = head.check().unwrap_err();
            assert!(found.contains(want), "{found}");
        }
    }
}
