//! Names of things that more than one crate speaks of.
//!
//! A 32-byte id prints as hex, and reads from hex. In files and frames it is its bare bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text was not the id it should have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {want} hexadecimal digits, found {found:?}")]
pub struct ParseIdError {
    want: usize,
    found: String,
}

macro_rules! bytes_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Enough of it to tell two apart in a log.
            pub fn short(&self) -> String {
                hex(&self.0[..4])
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.short())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                unhex(text).map($name).ok_or_else(|| ParseIdError {
                    want: 2 * $len,
                    found: text.chars().take(2 * $len + 1).collect(),
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                    text.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; $len]>::deserialize(deserializer).map($name)
                }
            }
        }
    };
}

bytes_id! {
    /// A node: its Ed25519 public key.
    NodeId, 32
}
bytes_id! {
    /// A party: the Ed25519 public key that signs for it.
    PartyId, 32
}
bytes_id! {
    /// A ticket: the public key of its one-off seed.
    TicketId, 32
}
bytes_id! {
    /// A mesh: the hash of its first snapshot's founding facts.
    MeshId, 32
}
bytes_id! {
    /// BLAKE3 of some content.
    Hash, 32
}
bytes_id! {
    /// An object: the hash of the list of its chunks.
    ObjectId, 32
}
bytes_id! {
    /// A version of a dataset: random, so that it says nothing about what it stands for.
    VersionId, 16
}
bytes_id! {
    /// A job.
    JobId, 16
}

impl Hash {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// A seat at the raft table: the index of the entry that admitted this data directory.
///
/// A wiped disk comes back under a new one, so no seat ever forgets what it promised.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct RaftId(pub u64);

impl fmt::Display for RaftId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts recoveries from the loss of a majority. Nothing signed in one epoch counts in another.
pub type Epoch = u32;

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(16 * high + low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_what_it_prints() {
        let id = NodeId([0xa7; 32]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.short(), "a7a7a7a7");
    }

    #[test]
    fn a_wrong_id_says_what_was_expected() {
        let error = "xyz".parse::<JobId>().unwrap_err();
        assert_eq!(error.to_string(), "expected 32 hexadecimal digits, found \"xyz\"");
        assert!("é".repeat(16).parse::<JobId>().is_err());
    }
}
