//! Records that only a party's own nodes can read: sealed, opened, and what they say together.
//!
//! ```text
//! sealed = nonce (24) ‖ XChaCha20-Poly1305 ( length (2, LE) ‖ record ‖ zeros )     512, 1024 or 4096 bytes
//!          key     derived from the party's sealing secret, which all of its nodes have, workers too
//!          bound   to mesh, party and id: a record that is moved elsewhere does not open
//! ```
//!
//! The nonce is random and long enough never to come twice, so two records that say the same look
//! unrelated. What the state cannot check about sealed records (that a number is given once, that a tag
//! stands for something) the party's nodes keep among themselves: who writes one has read all the
//! others, and the state's compare-and-set on the party's sealed revision tells whether that still
//! holds. See [`crate::state::data`].
//!
//! [`PrivateView`] is what the records of a party say together. A node of the party that lies can spoil
//! its party's private names, as it can drop its party's data; it can do nothing to other parties.

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use mesh_consensus::command::exact;
use mesh_consensus::id::{Hash, JobId, MeshId, PartyId, VersionId};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::job::SealedSecret;
use crate::party::SealingSecret;
use crate::state::data::content::SEALED_BYTES;
use crate::state::data::{Lineage, Note, SealedBytes};
use crate::state::name::Name;

pub mod view;

pub use view::{PrivateName, PrivateView};

const DOMAIN: &[u8] = b"mesh/sealed-record/1\0";
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const LENGTH_BYTES: usize = 2;

/// What a tag stands for once it was taken away: the first version is 1. Its record is free for the next tag. (That
/// a record goes is not compare-and-set; that it changes is.)
pub const NOTHING: u32 = 0;

/// What a sealed record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A private version. Its id is the record's.
    Version(PrivateVersion),
    /// A tag of a private name.
    Tag {
        /// The dataset's name.
        name: Name,
        /// The tag.
        tag: Name,
        /// The number that it stands for, or [`NOTHING`].
        number: u32,
    },
    /// Numbers below this were given once; kept when the version with the highest one is dropped.
    Next {
        /// The dataset's name.
        name: Name,
        /// The first that was never given.
        next: u32,
    },
}

/// A version that only its party knows of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateVersion {
    /// The dataset's name.
    pub name: Name,
    /// Which version of it. The first is 1.
    pub number: u32,
    /// The manifest: what it consists of.
    pub manifest: Hash,
    /// How much that is.
    pub bytes: u64,
    /// In how many files.
    pub files: u64,
    /// Where it came from.
    pub lineage: Lineage,
    /// Whatever else is worth knowing, such as a schema.
    pub note: Note,
}

/// Where a record stands. It opens there and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// The mesh.
    pub mesh: MeshId,
    /// The party that owns it.
    pub party: PartyId,
    /// Its id in the state.
    pub id: VersionId,
}

impl Spot {
    fn bound(&self) -> Vec<u8> {
        [DOMAIN, &self.mesh.0, &self.party.0, &self.id.0].concat()
    }
}

/// Why a record does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another key, another place, or damage: these look the same.
    #[error("the record was not sealed with this party's secret for this place")]
    NotOurs,
    /// Sealed by this party, by a later version of mesh or by one that is broken.
    #[error("the record cannot be decoded: a later version of mesh may have made it")]
    Unknown,
}

/// Seals a record for its place. The length of what comes out says next to nothing.
pub fn seal(record: &Record, secret: &SealingSecret, spot: &Spot) -> SealedBytes {
    let body = postcard::to_stdvec(record).expect("a record always encodes");
    let size = SEALED_BYTES.into_iter().find(|size| body.len() <= room(*size));
    let size = size.expect("every part of a record has a bound, and together they fit");
    let mut plain = Zeroizing::new(vec![0; LENGTH_BYTES + room(size)]);
    let length = u16::try_from(body.len()).expect("no size is above 4096");
    plain[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    plain[LENGTH_BYTES..][..body.len()].copy_from_slice(&body);

    let nonce: [u8; NONCE_BYTES] = crate::random();
    let payload = Payload { msg: &plain, aad: &spot.bound() };
    let sealed = cipher(secret).encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.expect("a few kilobytes are never too long to seal");
    let whole = [nonce.as_slice(), &sealed].concat();
    whole.try_into().expect("the padding has made it one of the sizes")
}

/// Opens a record at its place.
pub fn open(
    sealed: &SealedBytes,
    secret: &SealingSecret,
    spot: &Spot,
) -> Result<Record, OpenError> {
    open_with(&cipher(secret), sealed, spot)
}

/// The same for one who opens many.
fn open_with(
    cipher: &XChaCha20Poly1305,
    sealed: &SealedBytes,
    spot: &Spot,
) -> Result<Record, OpenError> {
    let (nonce, rest) =
        sealed.as_bytes().split_first_chunk::<NONCE_BYTES>().ok_or(OpenError::NotOurs)?;
    let payload = Payload { msg: rest, aad: &spot.bound() };
    let plain = cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| OpenError::NotOurs)?;
    let plain = Zeroizing::new(plain);
    let (length, rest) = plain.split_first_chunk::<LENGTH_BYTES>().ok_or(OpenError::Unknown)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let body = rest.get(..length).ok_or(OpenError::Unknown)?;
    exact(body).ok_or(OpenError::Unknown)
}

fn cipher(secret: &SealingSecret) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new((&*secret.record_key()).into())
}

/// How long a record can be in a seal of this size.
const fn room(size: usize) -> usize {
    size - NONCE_BYTES - TAG_BYTES - LENGTH_BYTES
}

const SECRET_DOMAIN: &[u8] = b"mesh/job-secret/1\0";

/// Secrets are sealed in steps of so many bytes: their length says little.
const SECRET_STEP: usize = 64;

/// Where a job's secret stands. It opens there and nowhere else: who copies it into a job of its own has nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretSpot<'a> {
    /// The mesh.
    pub mesh: MeshId,
    /// The party that owns it.
    pub party: PartyId,
    /// The job.
    pub job: JobId,
    /// The variable that will have it.
    pub variable: &'a str,
}

impl SecretSpot<'_> {
    fn bound(&self) -> Vec<u8> {
        let Self { mesh, party, job, variable } = self;
        [SECRET_DOMAIN, &mesh.0, &party.0, &job.0, variable.as_bytes()].concat()
    }
}

/// Seals a secret's value for the nodes of its party.
pub fn seal_secret(value: &[u8], secret: &SealingSecret, spot: &SecretSpot<'_>) -> SealedSecret {
    let length = u16::try_from(value.len())
        .expect("a secret's value is at most 4 KiB: checked where it is read");
    let size = (LENGTH_BYTES + value.len()).next_multiple_of(SECRET_STEP);
    let mut plain = Zeroizing::new(vec![0; size]);
    plain[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    plain[LENGTH_BYTES..LENGTH_BYTES + value.len()].copy_from_slice(value);
    let nonce: [u8; NONCE_BYTES] = crate::random();
    let bound = spot.bound();
    let payload = Payload { msg: &plain, aad: &bound };
    let sealed = cipher(secret).encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.expect("a short message can always be encrypted");
    SealedSecret([&nonce[..], &sealed].concat())
}

/// The value, if it was sealed for this party and this place.
pub fn open_secret(
    sealed: &SealedSecret,
    secret: &SealingSecret,
    spot: &SecretSpot<'_>,
) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, sealed) = sealed.0.split_first_chunk::<NONCE_BYTES>()?;
    let bound = spot.bound();
    let payload = Payload { msg: sealed, aad: &bound };
    let plain = Zeroizing::new(cipher(secret).decrypt(&XNonce::from(*nonce), payload).ok()?);
    let (length, rest) = plain.split_first_chunk::<LENGTH_BYTES>()?;
    let value = rest.get(..usize::from(u16::from_le_bytes(*length)))?;
    Some(Zeroizing::new(value.to_vec()))
}

#[cfg(test)]
mod tests;
