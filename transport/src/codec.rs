//! Values as bytes on the wire: `[version][bincode]`. The only file that names bincode.
//!
//! bincode is no longer maintained and believes what its input says of lengths, so it is kept behind
//! this one door and on a leash (`bounded.rs`): a decoded value takes at most four times its input in
//! memory, and a few kibibytes. Nothing that is signed, hashed or stored goes through here: those
//! bytes are postcard's.

use serde::Serialize;
use serde::de::DeserializeOwned;

mod bounded;

use bounded::{Bounded, Budget};

/// The form of the bytes that follow. Another form gets another number.
pub const VERSION: u8 = 1;

/// More than any message may hold; a value that needs more is not sent.
pub const MAX_ENCODED: usize = 300 << 20;

/// Why bytes are not the value they should be, or a value cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Nothing there.
    #[error("no bytes to decode")]
    Empty,
    /// Written in a form that this build does not know.
    #[error("encoded in form {found}; this build reads form {VERSION}")]
    Version {
        /// As it says.
        found: u8,
    },
    /// Too much.
    #[error("{length} bytes where at most {MAX_ENCODED} are taken")]
    TooLong {
        /// As it is.
        length: usize,
    },
    /// Not such a value.
    #[error("malformed: {0}")]
    Malformed(String),
    /// A value, and then something else, or less than a value.
    #[error("the value takes {used} of {length} bytes")]
    Trailing {
        /// What the value takes.
        used: usize,
        /// What there is.
        length: usize,
    },
}

/// The bytes of a value.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut bytes = vec![VERSION];
    bincode::serde::encode_into_std_write(value, &mut bytes, config())
        .map_err(|error| CodecError::Malformed(error.to_string()))?;
    if bytes.len() > MAX_ENCODED {
        return Err(CodecError::TooLong { length: bytes.len() });
    }
    Ok(bytes)
}

/// The value of these bytes, all of them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > MAX_ENCODED {
        return Err(CodecError::TooLong { length: bytes.len() });
    }
    let (version, body) = bytes.split_first().ok_or(CodecError::Empty)?;
    if *version != VERSION {
        return Err(CodecError::Version { found: *version });
    }
    let budget = Budget::of(body);
    let seed = Bounded::new(std::marker::PhantomData::<T>, &budget);
    let (value, used) = bincode::serde::seed_decode_from_slice(seed, body, config())
        .map_err(|error| CodecError::Malformed(error.to_string()))?;
    if used != body.len() {
        return Err(CodecError::Trailing { used, length: body.len() });
    }
    Ok(value)
}

/// Integers at their full width: then no element of a list takes much more room in memory than on
/// the wire, and a short frame cannot stand for a long list.
fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_fixed_int_encoding()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_value_reads_back_what_was_written() {
        let value = (7u8, "text".to_string(), vec![Some(1u64), None], vec![vec![1u8], vec![]]);
        assert_eq!(decode(&encode(&value).unwrap()), Ok(value));
        let map: BTreeMap<String, u64> = (0..100).map(|n| (n.to_string(), n)).collect();
        assert_eq!(decode(&encode(&map).unwrap()), Ok(map));
    }

    #[test]
    fn a_long_list_of_small_elements_passes() {
        let value: Vec<(u64, u64, Option<u64>)> = (0..100_000).map(|n| (n, n, None)).collect();
        assert_eq!(decode(&encode(&value).unwrap()), Ok(value));
        let bytes = vec![3u8; 3 << 20];
        assert_eq!(decode(&encode(&bytes).unwrap()), Ok(bytes));
    }

    #[test]
    fn lengths_that_the_input_cannot_hold_are_refused() {
        for length in [1_000, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = vec![VERSION];
            bytes.extend(length.to_le_bytes());
            assert!(decode::<Vec<u8>>(&bytes).is_err());
            assert!(decode::<Vec<Vec<u64>>>(&bytes).is_err());
            assert!(decode::<Vec<()>>(&bytes).is_err());
            assert!(decode::<String>(&bytes).is_err());
            assert!(decode::<BTreeMap<u8, u8>>(&bytes).is_err());
        }
    }

    #[test]
    fn elements_much_larger_than_their_bytes_are_refused() {
        let value: Vec<Option<[u64; 32]>> = vec![None; 10_000];
        let error = decode::<Vec<Option<[u64; 32]>>>(&encode(&value).unwrap()).unwrap_err();
        assert!(error.to_string().contains("more in memory"), "{error}");
    }

    #[test]
    fn other_forms_and_leftovers_are_refused() {
        let mut bytes = encode(&7u8).unwrap();
        bytes.push(0);
        assert_eq!(decode::<u8>(&bytes), Err(CodecError::Trailing { used: 1, length: 2 }));
        assert_eq!(decode::<u8>(&[9, 0]), Err(CodecError::Version { found: 9 }));
        assert_eq!(decode::<u8>(&[]), Err(CodecError::Empty));
    }
}
