//! What versions are made of: small values, each with a bound that reading it from bytes checks.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use mesh_consensus::id::{Hash, JobId, PartyId, VersionId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::super::name::Name;

/// What sealed bytes may measure. There are few sizes, so that a length says next to nothing; a
/// further one needs a further level.
pub const SEALED_BYTES: [usize; 3] = [512, 1024, 4096];

/// The longest note, in bytes.
pub const MAX_NOTE_BYTES: usize = 240;

/// A version names at most this many inputs.
pub const MAX_INPUTS: usize = 32;

/// A version is shared with at most this many parties by name.
pub const MAX_READERS: usize = 64;

/// A record that only its party can read: see [`crate::seal`]. It has one of the sizes of
/// [`SEALED_BYTES`]; no other value exists.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedBytes(Vec<u8>);

/// These bytes cannot be a sealed record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a sealed record has one of the sizes {SEALED_BYTES:?}, not {found}")]
pub struct SealedSizeError {
    found: usize,
}

impl SealedBytes {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for SealedBytes {
    type Error = SealedSizeError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, SealedSizeError> {
        let found = bytes.len();
        if SEALED_BYTES.contains(&found) { Ok(Self(bytes)) } else { Err(SealedSizeError { found }) }
    }
}

impl fmt::Debug for SealedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedBytes({})", self.0.len())
    }
}

impl Serialize for SealedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for SealedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Takes a slice as it is: a state has many of these, and byte by byte would be slow.
        struct Whole;

        impl de::Visitor<'_> for Whole {
            type Value = SealedBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sealed record")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<SealedBytes, E> {
                bytes.to_vec().try_into().map_err(E::custom)
            }
        }

        deserializer.deserialize_bytes(Whole)
    }
}

/// A line of text about a version, such as its schema: up to 240 bytes, nothing unprintable.
///
/// No other value exists: reading one from bytes checks it as well.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Note(String);

/// The text cannot be a note.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a note is one line of at most {MAX_NOTE_BYTES} bytes")]
pub struct ParseNoteError;

impl Note {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Note {
    type Error = ParseNoteError;

    fn try_from(text: String) -> Result<Self, ParseNoteError> {
        let fits = text.len() <= MAX_NOTE_BYTES && !text.chars().any(char::is_control);
        if fits { Ok(Self(text)) } else { Err(ParseNoteError) }
    }
}

impl FromStr for Note {
    type Err = ParseNoteError;

    fn from_str(text: &str) -> Result<Self, ParseNoteError> {
        text.to_owned().try_into()
    }
}

impl<'de> Deserialize<'de> for Note {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a version was made from, and by which job. The inputs need not be there any more.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Lineage {
    inputs: Vec<VersionId>,
    job: Option<JobId>,
}

/// Too many inputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a version names at most {MAX_INPUTS} inputs, not {found}")]
pub struct LineageError {
    found: usize,
}

impl Lineage {
    /// Fails with more than [`MAX_INPUTS`] inputs.
    pub fn new(inputs: Vec<VersionId>, job: Option<JobId>) -> Result<Self, LineageError> {
        let found = inputs.len();
        if found <= MAX_INPUTS { Ok(Self { inputs, job }) } else { Err(LineageError { found }) }
    }

    /// The versions that went in.
    pub fn inputs(&self) -> &[VersionId] {
        &self.inputs
    }

    /// The job that made it, if one did.
    pub fn job(&self) -> Option<JobId> {
        self.job
    }
}

impl<'de> Deserialize<'de> for Lineage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Unchecked {
            inputs: Vec<VersionId>,
            job: Option<JobId>,
        }

        let Unchecked { inputs, job } = Deserialize::deserialize(deserializer)?;
        Self::new(inputs, job).map_err(de::Error::custom)
    }
}

/// Who, beside its own party, may read a version that is not sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readers {
    /// Every member of the mesh.
    Everyone,
    /// These parties. The owner is not among them: it reads in any case.
    Parties(BTreeSet<PartyId>),
}

/// Facts of a version that stand open in the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plain {
    /// The dataset's name, under its party.
    pub name: Name,
    /// Which version of it. The first is 1.
    pub number: u32,
    /// The manifest: what it consists of.
    pub manifest: Hash,
    /// How much that is.
    pub bytes: u64,
    /// In how many files.
    pub files: u64,
    /// Who may read it.
    pub readers: Readers,
    /// Where it came from.
    pub lineage: Lineage,
}

/// What a party tells about a version that stays sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The dataset's name, under its party.
    pub name: Name,
    /// Which version of it. The first is 1.
    pub number: u32,
    /// How much there is.
    pub bytes: u64,
    /// In how many files.
    pub files: u64,
    /// Whatever else others should know, such as a schema.
    pub note: Note,
}

/// A record that only its party can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// See [`crate::seal::Record`] for what is inside.
    pub record: SealedBytes,
    /// What the others are told. `None` for a version that is private altogether, and for whatever
    /// else a party keeps for itself.
    pub listing: Option<Listing>,
}

/// What a version is, as far as the state says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Shared with some parties or with all.
    Plain(Plain),
    /// Private.
    Sealed(Sealed),
}

impl Body {
    /// Its name and number, where those are for all to see.
    pub fn place(&self) -> Option<(&Name, u32)> {
        match self {
            Body::Plain(plain) => Some((&plain.name, plain.number)),
            Body::Sealed(sealed) => sealed.listing.as_ref().map(|l| (&l.name, l.number)),
        }
    }

    /// Whether only its party can read it.
    pub fn is_sealed(&self) -> bool {
        matches!(self, Body::Sealed(_))
    }

    /// What [`super::VersionBody`] expects of the body that it replaces.
    pub fn hash(&self) -> Hash {
        Hash::of(&postcard::to_stdvec(self).expect("a body always encodes"))
    }

    /// Whether a party other than the owner may read and hold it.
    pub(super) fn is_open_to(&self, party: PartyId) -> bool {
        match self {
            Body::Plain(Plain { readers: Readers::Everyone, .. }) => true,
            Body::Plain(Plain { readers: Readers::Parties(some), .. }) => some.contains(&party),
            Body::Sealed(_) => false,
        }
    }

    /// No fewer bytes than it takes in a snapshot, its line among the names included.
    pub(super) fn weight(&self) -> usize {
        match self {
            Body::Plain(Plain { name, readers, lineage, .. }) => {
                let readers = match readers {
                    Readers::Everyone => 0,
                    Readers::Parties(some) => 32 * some.len(),
                };
                128 + name.as_str().len() + readers + 16 * lineage.inputs.len()
            }
            Body::Sealed(Sealed { record, listing }) => {
                let listed = |l: &Listing| 64 + l.name.as_str().len() + l.note.0.len();
                8 + record.0.len() + listing.as_ref().map_or(0, listed)
            }
        }
    }
}
