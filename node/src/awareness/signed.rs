//! Records on the wire: signed by the node they are about, and by nobody else.
//!
//! ```text
//! bytes  = content ‖ signature (64)
//! signed = DOMAIN ‖ content
//! content = postcard { format, mesh, node, incarnation, sequence, whole record | load }
//! ```
//!
//! The bytes are kept as they came: what was signed is what is passed on. A content has one
//! encoding only, so nobody can make two messages of one. Who may speak is not decided here: the
//! view asks whether the signer is a member.

use std::fmt;

use ed25519_dalek::{Signer, SigningKey};
use mesh_consensus::command::{exact, verify};
use mesh_consensus::id::{MeshId, NodeId};
use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

use super::bounded::{Text, can_be_dialled};
use super::record::{Load, MAX_ADDRESSES, MAX_GPUS, MAX_INTERFACES, Record};

/// A record larger than this is refused before it is decoded.
pub const MAX_RECORD_BYTES: usize = 2048;

const DOMAIN: &[u8] = b"mesh/record/1\0";
const FORMAT: u8 = 1;
const SIGNATURE_BYTES: usize = 64;

/// Which of its author's words these are. The later start wins, then the later word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// When the author started, about (ms): grows with every start. See [`incarnation`].
    pub incarnation: u64,
    /// Counts its messages since then, from 1.
    pub sequence: u64,
}

/// The incarnation of a node that starts when its clock says `clock_ms` and whose last start was
/// `last`: it grows even if the clock went back.
///
/// An author that leaps far ahead locks out nobody but its own later self: others cannot sign for it.
pub fn incarnation(clock_ms: u64, last: Option<u64>) -> u64 {
    clock_ms.max(last.map_or(1, |last| last.saturating_add(1)))
}

/// What an author says at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a box would cost more than a short message brings")]
pub enum Said {
    /// Everything.
    Whole(Record),
    /// Nothing changed but the load.
    Update {
        /// The sequence of the whole record that still holds, so that whoever missed it notices.
        of: u64,
        /// The load.
        load: Load,
    },
}

#[derive(Serialize, Deserialize)]
struct Content<S> {
    format: u8,
    mesh: MeshId,
    node: NodeId,
    stamp: Stamp,
    said: S,
}

/// Why a message was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Too large to look at.
    #[error("the record has {bytes} bytes; at most {MAX_RECORD_BYTES} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Written by a later version.
    #[error("the record has format {format}; this version knows {FORMAT}")]
    OtherFormat {
        /// Its format.
        format: u8,
    },
    /// Not a record, or not in the one encoding that it may have.
    #[error("the record cannot be decoded")]
    Malformed,
    /// Made for another mesh.
    #[error("the record was signed for mesh {}", mesh.short())]
    OtherMesh {
        /// Whose it is.
        mesh: MeshId,
    },
    /// Not signed by the node it is about.
    #[error("the record is not signed by {}", node.short())]
    BadSignature {
        /// Who it says wrote it.
        node: NodeId,
    },
}

/// A message about a node, in the bytes that it signed.
#[derive(Clone, PartialEq, Eq)]
pub struct Signed {
    /// As received; never encoded again.
    bytes: Vec<u8>,
    mesh: MeshId,
    node: NodeId,
    stamp: Stamp,
    said: Said,
}

impl Record {
    /// Signs the whole record.
    ///
    /// Fails where others would refuse it: too large, or a list too long.
    pub fn sign(
        &self,
        key: &SigningKey,
        mesh: MeshId,
        stamp: Stamp,
    ) -> Result<Signed, RecordError> {
        sign(key, mesh, stamp, Said::Whole(self.clone()))
    }

    /// Leaves out what others would refuse: addresses that nobody can dial, and, until the record fits
    /// into [`MAX_RECORD_BYTES`], what is needed least.
    ///
    /// For machines with dozens of interfaces; a usual one is left as it is.
    pub fn fit(&mut self) {
        const SPARED: usize = 4;
        const SHORT: usize = 20;
        self.facts.interfaces.truncate(MAX_INTERFACES);
        self.facts.gpus.truncate(MAX_GPUS);
        self.load.gpus.truncate(MAX_GPUS);
        for addresses in [&mut self.data, &mut self.overlay] {
            addresses.retain(|address| can_be_dialled(*address));
            addresses.truncate(MAX_ADDRESSES);
        }
        while self.wire_bytes() > MAX_RECORD_BYTES {
            if self.facts.interfaces.pop().is_some() {
                continue;
            }
            let longer = if self.data.len() > self.overlay.len() {
                &mut self.data
            } else {
                &mut self.overlay
            };
            if longer.len() > SPARED {
                longer.pop();
                continue;
            }
            // All that is left are sixteen GPUs with names like novels. Cut, everything fits.
            for gpu in &mut self.facts.gpus {
                gpu.name = Text::new(gpu.name.as_str().get(..SHORT).unwrap_or(gpu.name.as_str()));
            }
            return;
        }
    }

    fn wire_bytes(&self) -> usize {
        const STAMPED: usize = 1 + 32 + 32 + 10 + 10 + 1;
        let record = postcard::experimental::serialized_size(self).unwrap_or(usize::MAX / 2);
        STAMPED + record + SIGNATURE_BYTES
    }
}

impl Load {
    /// Signs the load alone, as a follow-up to the whole record that was message `of`.
    pub fn sign(
        &self,
        key: &SigningKey,
        mesh: MeshId,
        stamp: Stamp,
        of: u64,
    ) -> Result<Signed, RecordError> {
        sign(key, mesh, stamp, Said::Update { of, load: self.clone() })
    }
}

fn sign(key: &SigningKey, mesh: MeshId, stamp: Stamp, said: Said) -> Result<Signed, RecordError> {
    let node = NodeId(key.verifying_key().to_bytes());
    let content = Content { format: FORMAT, mesh, node, stamp, said };
    let mut bytes = postcard::to_stdvec(&content).map_err(|_| RecordError::Malformed)?;
    let signature = key.sign(&signed_bytes(&bytes));
    bytes.extend_from_slice(&signature.to_bytes());
    // Through the same door as everyone else's: what we send is what others accept.
    Signed::parse(&bytes)
}

impl Signed {
    /// Decodes a message without believing it: see [`Signed::verify`].
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(RecordError::TooLarge { bytes: bytes.len() });
        }
        match bytes.first() {
            Some(&FORMAT) => {}
            Some(&format) => return Err(RecordError::OtherFormat { format }),
            None => return Err(RecordError::Malformed),
        }
        let (encoded, _) =
            bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or(RecordError::Malformed)?;
        let content: Content<Said> = exact(encoded).ok_or(RecordError::Malformed)?;
        if !is_sound(&content) || !is_canonical(&content, encoded) {
            return Err(RecordError::Malformed);
        }
        let Content { format: _, mesh, node, stamp, said } = content;
        Ok(Self { bytes: bytes.to_vec(), mesh, node, stamp, said })
    }

    /// Checks that the node it is about signed it, for this mesh.
    pub fn verify(&self, mesh: MeshId) -> Result<(), RecordError> {
        if self.mesh != mesh {
            return Err(RecordError::OtherMesh { mesh: self.mesh });
        }
        let bad = RecordError::BadSignature { node: self.node };
        let Some((encoded, signature)) = self.bytes.split_last_chunk::<SIGNATURE_BYTES>() else {
            return Err(bad);
        };
        if verify(&self.node.0, &signed_bytes(encoded), signature) { Ok(()) } else { Err(bad) }
    }

    /// The bytes as they were signed and sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The mesh it was signed for.
    pub fn mesh(&self) -> MeshId {
        self.mesh
    }

    /// The node that it is about, and that must have signed it.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Which of its author's words these are.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// What it says.
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// Takes it apart: its bytes and what it says.
    pub(super) fn into_parts(self) -> (Vec<u8>, Said) {
        (self.bytes, self.said)
    }
}

impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { incarnation, sequence } = self.stamp;
        write!(f, "Signed({} {incarnation}#{sequence})", self.node.short())
    }
}

/// What the types do not say by themselves.
fn is_sound(content: &Content<Said>) -> bool {
    match &content.said {
        Said::Whole(record) => record.facts.gpus.len() == record.load.gpus.len(),
        // A follow-up follows.
        Said::Update { of, .. } => *of < content.stamp.sequence,
    }
}

/// Whether `encoded` is how we would encode it: a varint, for one, could also be written too long.
fn is_canonical(content: &Content<Said>, encoded: &[u8]) -> bool {
    matches!(postcard::serialize_with_flavor(content, Expect(encoded)), Ok(true))
}

/// Compares what would be written with what should be, and so needs no memory for it.
struct Expect<'a>(&'a [u8]);

impl Flavor for Expect<'_> {
    type Output = bool;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        match self.0.split_first() {
            Some((expected, rest)) if *expected == byte => {
                self.0 = rest;
                Ok(())
            }
            _ => Err(postcard::Error::SerializeBufferFull),
        }
    }

    fn finalize(self) -> postcard::Result<bool> {
        Ok(self.0.is_empty())
    }
}

fn signed_bytes(content: &[u8]) -> Vec<u8> {
    [DOMAIN, content].concat()
}

#[cfg(test)]
mod tests;
