//! Commands, and the signed batches in which they travel.
//!
//! A **batch** holds commands of one author under one signature (checking one costs 45 µs; one per
//! command would eat the machine) and one sequence number (so it takes effect once, however often
//! it is sent). Its bytes are kept exactly as they arrived: what was signed, what is logged and
//! what is hashed are the same bytes, and nobody encodes them again.
//!
//! ```text
//! signed = DOMAIN ‖ mesh (32) ‖ epoch (4, LE) ‖ author (32) ‖ sequence (8, LE) ‖ body
//! ```

use std::fmt;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::id::{Epoch, MeshId, NodeId};

/// A batch larger than this is refused before it is decoded.
pub const MAX_BATCH_BYTES: usize = 1 << 20;
/// A batch of more commands than this is refused.
pub const MAX_COMMANDS: usize = 1024;

const DOMAIN: &[u8] = b"mesh/batch/1\0";

/// One thing to do to the replicated state. This crate does not look inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// What kind of command: the state machine knows the list, by level.
    pub kind: u16,
    /// The command's own bytes (`postcard`).
    pub body: Vec<u8>,
}

/// Why a batch was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Too large to look at.
    #[error("the batch has {bytes} bytes; at most {MAX_BATCH_BYTES} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Too many commands in it.
    #[error("the batch has more than {MAX_COMMANDS} commands")]
    TooMany,
    /// Not the encoding of a batch.
    #[error("the batch cannot be decoded")]
    Malformed,
    /// Made for another mesh.
    #[error("the batch was signed for mesh {}", mesh.short())]
    OtherMesh {
        /// Whose it is.
        mesh: MeshId,
    },
    /// Made before or after a recovery.
    #[error("the batch was signed in epoch {found}; this is epoch {want}")]
    OtherEpoch {
        /// The epoch it names.
        found: Epoch,
        /// Ours.
        want: Epoch,
    },
    /// The signature is not the author's.
    #[error("the batch is not signed by {}", author.short())]
    BadSignature {
        /// Who it says wrote it.
        author: NodeId,
    },
}

/// Commands of one author, signed and numbered.
#[derive(Clone)]
pub struct Batch {
    /// As received; never re-encoded.
    bytes: Vec<u8>,
    mesh: MeshId,
    epoch: Epoch,
    author: NodeId,
    sequence: u64,
    commands: Vec<Command>,
    /// Whether it was signed in this process. To check such a signature would cost more than making it did.
    own: bool,
}

/// Everything else follows from the bytes.
impl PartialEq for Batch {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Batch {}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    mesh: MeshId,
    epoch: Epoch,
    author: NodeId,
    sequence: u64,
    body: &'a [u8],
    signature: &'a [u8],
}

impl Batch {
    /// Signs `commands` as the author's `sequence`-th batch.
    ///
    /// Fails only where the batch would be too large.
    pub fn sign(
        key: &SigningKey,
        mesh: MeshId,
        epoch: Epoch,
        sequence: u64,
        commands: &[Command],
    ) -> Result<Self, BatchError> {
        if commands.len() > MAX_COMMANDS {
            return Err(BatchError::TooMany);
        }
        let author = NodeId(key.verifying_key().to_bytes());
        let body = postcard::to_stdvec(commands).map_err(|_| BatchError::Malformed)?;
        let signature = key.sign(&signed_bytes(mesh, epoch, author, sequence, &body)).to_bytes();
        let envelope =
            Envelope { mesh, epoch, author, sequence, body: &body, signature: &signature };
        let bytes = postcard::to_stdvec(&envelope).map_err(|_| BatchError::Malformed)?;
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(BatchError::TooLarge { bytes: bytes.len() });
        }
        let commands = commands.to_vec();
        Ok(Self { bytes, mesh, epoch, author, sequence, commands, own: true })
    }

    /// Decodes a batch without believing it: see [`Batch::verify`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let (envelope, commands) = open(bytes)?;
        let Envelope { mesh, epoch, author, sequence, .. } = envelope;
        let bytes = bytes.to_vec();
        Ok(Self { bytes, mesh, epoch, author, sequence, commands, own: false })
    }

    /// Checks that its author signed it, for this mesh and in this epoch.
    ///
    /// `verify_strict` and one at a time: batch verification may judge odd signatures differently
    /// on different nodes, and so fork the state.
    pub fn verify(&self, mesh: MeshId, epoch: Epoch) -> Result<(), BatchError> {
        if self.mesh != mesh {
            return Err(BatchError::OtherMesh { mesh: self.mesh });
        }
        if self.epoch != epoch {
            return Err(BatchError::OtherEpoch { found: self.epoch, want: epoch });
        }
        if self.own {
            return Ok(());
        }
        let (envelope, _) = open(&self.bytes)?;
        let bad = BatchError::BadSignature { author: self.author };
        let signed = signed_bytes(mesh, epoch, self.author, self.sequence, envelope.body);
        if verify(&self.author.0, &signed, envelope.signature) { Ok(()) } else { Err(bad) }
    }

    /// The bytes as they were signed and sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Who wrote it.
    pub fn author(&self) -> NodeId {
        self.author
    }

    /// Its number among the author's batches.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The epoch it was signed in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What it asks for.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Batch({}#{}, {} commands)",
            self.author.short(),
            self.sequence,
            self.commands.len()
        )
    }
}

/// Whether `signature` over `message` is by `key`. Anything malformed is simply not.
pub fn verify(key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    let Ok(key) = VerifyingKey::from_bytes(key) else {
        return false;
    };
    let Ok(signature) = Signature::from_slice(signature) else {
        return false;
    };
    key.verify_strict(message, &signature).is_ok()
}

fn open(bytes: &[u8]) -> Result<(Envelope<'_>, Vec<Command>), BatchError> {
    if bytes.len() > MAX_BATCH_BYTES {
        return Err(BatchError::TooLarge { bytes: bytes.len() });
    }
    let envelope: Envelope<'_> = exact(bytes).ok_or(BatchError::Malformed)?;
    // A command takes at least two bytes, so the count is bounded before anything is allocated.
    let commands: Vec<Command> = exact(envelope.body).ok_or(BatchError::Malformed)?;
    if commands.len() > MAX_COMMANDS {
        return Err(BatchError::TooMany);
    }
    Ok((envelope, commands))
}

/// Decodes `bytes`, all of them: what follows a value is not part of it.
pub fn exact<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}

fn signed_bytes(mesh: MeshId, epoch: Epoch, author: NodeId, sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DOMAIN.len() + 76 + body.len());
    bytes.extend_from_slice(DOMAIN);
    bytes.extend_from_slice(&mesh.0);
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(&author.0);
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESH: MeshId = MeshId([1; 32]);

    fn key(n: u8) -> SigningKey {
        SigningKey::from_bytes(&[n; 32])
    }

    fn batch() -> Batch {
        let commands = [Command { kind: 3, body: vec![1, 2, 3] }];
        Batch::sign(&key(1), MESH, 0, 7, &commands).unwrap()
    }

    #[test]
    fn a_signed_batch_is_read_back_and_believed() {
        let read = Batch::parse(batch().as_bytes()).unwrap();
        assert_eq!(read, batch());
        assert_eq!(read.verify(MESH, 0), Ok(()));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let bytes = batch().as_bytes().to_vec();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let believed = Batch::parse(&changed).is_ok_and(|b| b.verify(MESH, 0).is_ok());
            assert!(!believed, "byte {at}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(Batch::parse(&longer), Err(BatchError::Malformed));
    }

    #[test]
    fn a_batch_counts_in_its_own_mesh_and_epoch_only() {
        let other = MeshId([2; 32]);
        assert_eq!(batch().verify(other, 0), Err(BatchError::OtherMesh { mesh: MESH }));
        assert_eq!(batch().verify(MESH, 1), Err(BatchError::OtherEpoch { found: 0, want: 1 }));
    }

    #[test]
    fn a_key_without_a_secret_signs_nothing() {
        // The neutral point as key and as commitment satisfies the plain equation for any message;
        // only the strict check refuses it.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let signature = [neutral, [0; 32]].concat();
        assert!(!verify(&neutral, b"anything", &signature));
    }

    #[test]
    fn a_batch_that_is_too_large_is_refused_before_it_is_decoded() {
        let huge = vec![0; MAX_BATCH_BYTES + 1];
        assert_eq!(Batch::parse(&huge), Err(BatchError::TooLarge { bytes: huge.len() }));
        let many = vec![Command { kind: 0, body: Vec::new() }; MAX_COMMANDS + 1];
        assert_eq!(Batch::sign(&key(1), MESH, 0, 1, &many), Err(BatchError::TooMany));
    }
}
