//! Pieces between nodes: who may have which, how they are fetched, how they are served.
//!
//! ```text
//!   whoever needs one ── Header::Piece { job, piece } ──► a holder ─► may it?  no ─► the stream ends without a word
//!                     ◄───────── the bytes, bare ────────                      yes
//! ```
//!
//! Those who take part see the model that stands. Those who sum see more: what the optimiser keeps, and a model that is not
//! committed yet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mesh_consensus::id::{Hash, JobId, NodeId, PartyId};
use mesh_transport::codec::encode;
use mesh_transport::net::{Lane, SendHalf, Stream};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::MAX_PIECE_BYTES;
use crate::data::chain;
use crate::handle::Handle;
use crate::job::training::Training as Spec;
use crate::state::State;
use crate::state::course::Piece;
use crate::state::jobs::Job;
use crate::state::name::Name;
use crate::training::Training;
use crate::wire::Header;

/// How long nothing may come of what is read.
pub(crate) const STALL: Duration = Duration::from_secs(10);
/// A reader that takes nothing for this long is left alone.
const UNREAD: Duration = Duration::from_secs(30);
/// Bytes that are written at a time.
const PART: usize = 256 << 10;
/// Bytes that are hashed at a time: many enough to be hashed fast, few enough that nobody else waits long for the thread.
const HASHED: usize = 256 << 10;

/// Why a piece is not here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// None of those who were asked gave it.
    #[error("no holder gave piece {}: {why}", .piece.short())]
    Nobody {
        /// Which piece.
        piece: Hash,
        /// What came of the last one who was asked.
        why: String,
    },
    /// It cannot be read whole.
    #[error("a piece of {bytes} bytes is larger than any model's")]
    TooLarge {
        /// How many bytes.
        bytes: u64,
    },
    /// It came, and could not be written.
    #[error("piece {} could not be written: {why}", .piece.short())]
    Unwritten {
        /// Which piece.
        piece: Hash,
        /// Why not.
        why: String,
    },
    /// The node stops.
    #[error("the node is stopping")]
    Stopping,
}

/// A piece, from here or from one of those nodes. It stays here.
pub async fn fetch(
    handle: &Handle,
    job: JobId,
    piece: Piece,
    from: &[NodeId],
) -> Result<Arc<Vec<u8>>, FetchError> {
    handle.training.fetch(job, piece, from).await
}

/// Whether nodes of a party may have pieces of a job: its own, whoever takes part, and whoever sums. A piece has no other
/// name than its hash, which only the state and the coordinator tell; single updates are no pieces.
pub(crate) fn may_have_pieces(job: &Job, party: PartyId, name: &Name) -> bool {
    let federated = match &job.spec.training {
        Some(Spec::Federated(federated)) => federated,
        Some(Spec::Server(_)) => return job.party == party,
        None => return false,
    };
    let takes_part = || job.spec.groups.iter().any(|group| group.party.as_ref() == Some(name));
    job.party == party || federated.aggregators.contains(name) || takes_part()
}

/// Whether `from` may have a piece; `None` if that may be so once this node has heard the rest.
fn may_have(state: &State, from: NodeId, job: JobId) -> Option<bool> {
    let party = state.party_of(from)?;
    let name = &state.parties().get(&party)?.name;
    Some(may_have_pieces(state.job(job)?, party, name))
}

impl Training {
    /// See [`fetch`]. What came is written behind the back of whoever waits for it.
    pub async fn fetch(
        &self,
        job: JobId,
        piece: Piece,
        from: &[NodeId],
    ) -> Result<Arc<Vec<u8>>, FetchError> {
        let (bytes, is_new) = self.obtain(job, piece, from).await?;
        if is_new {
            let (training, shared) = (self.clone(), bytes.clone());
            tokio::spawn(async move {
                if let Err(error) = training.write(job, piece, shared).await {
                    tracing::warn!(error = %chain(&error), "a piece of a model was not kept");
                }
            });
        }
        Ok(bytes)
    }

    /// Has a piece here, and returns when it is written.
    pub(crate) async fn hold(
        &self,
        job: JobId,
        piece: Piece,
        from: &[NodeId],
    ) -> Result<(), FetchError> {
        match self.obtain(job, piece, from).await? {
            (bytes, true) => self.write(job, piece, bytes).await,
            (_, false) => Ok(()),
        }
    }

    async fn write(&self, job: JobId, piece: Piece, bytes: Arc<Vec<u8>>) -> Result<(), FetchError> {
        let pieces = self.pieces.clone();
        let put = spawn_blocking(move || pieces.put_verified(job, piece.hash, bytes)).await;
        match put {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(FetchError::Unwritten { piece: piece.hash, why: error.to_string() })
            }
            Err(_) => Err(FetchError::Stopping),
        }
    }

    /// A piece, and whether it came from elsewhere.
    async fn obtain(
        &self,
        job: JobId,
        piece: Piece,
        from: &[NodeId],
    ) -> Result<(Arc<Vec<u8>>, bool), FetchError> {
        if piece.bytes > MAX_PIECE_BYTES {
            return Err(FetchError::TooLarge { bytes: piece.bytes });
        }
        let pieces = self.pieces.clone();
        match spawn_blocking(move || pieces.get(job, &piece)).await {
            Ok(Some(bytes)) => return Ok((bytes, false)),
            Ok(None) => {}
            Err(_) => return Err(FetchError::Stopping),
        }
        let mut why = "there is nobody to ask".to_owned();
        for node in self.in_turn(from) {
            match self.fetch_from(node, job, piece).await {
                Ok(bytes) => return Ok((Arc::new(bytes), true)),
                Err(error) => {
                    tracing::debug!(peer = %node.short(), piece = %piece.hash.short(), %error, "a piece was not given");
                    why = error;
                }
            }
        }
        Err(FetchError::Nobody { piece: piece.hash, why })
    }

    /// Whom to ask, in this order: any of them first, so that not all ask the same, and those who are silent last.
    fn in_turn(&self, from: &[NodeId]) -> Vec<NodeId> {
        let others = from.iter().copied().filter(|node| *node != self.whoami.node);
        let mut nodes: Vec<NodeId> = others.collect();
        fastrand::shuffle(&mut nodes);
        nodes.sort_by_key(|node| !self.hub.is_alive(*node));
        nodes
    }

    async fn fetch_from(&self, node: NodeId, job: JobId, piece: Piece) -> Result<Vec<u8>, String> {
        let net = self.net().ok_or("this node is not connected yet")?;
        let header = encode(&Header::Piece { job, piece }).map_err(|error| error.to_string())?;
        // From here on it may have much more under way.
        let _bulk = net.bulk(node);
        let stream = net.open(node, header, Lane::Bulk).await;
        let (mut send, mut receive) = stream.map_err(|error| error.to_string())?.split();
        send.finish();
        let (bytes, hash) = read_hashed(&mut receive, piece.bytes).await?;
        if hash != piece.hash {
            return Err("it sent other bytes".into());
        }
        Ok(bytes)
    }

    /// Sends a piece, if the peer may have it and it is here.
    pub(crate) async fn serve_piece(&self, from: NodeId, job: JobId, piece: Piece, stream: Stream) {
        let may = self.settle(move |state| may_have(state, from, job)).await;
        if may != Some(true) {
            return;
        }
        let pieces = self.pieces.clone();
        let Ok(Some(bytes)) = spawn_blocking(move || pieces.get(job, &piece)).await else { return };
        let (mut send, _receive) = stream.split();
        if pour(&mut send, Bytes::from_owner(Lent(bytes))).await.is_ok() {
            send.finish();
            // The end must reach the peer before the stream is dropped.
            let _ = timeout(UNREAD, send.stopped()).await;
        }
    }
}

/// Bytes of a piece, for as long as they are sent.
struct Lent(Arc<Vec<u8>>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The one who reads takes no more.
#[derive(Debug)]
pub(crate) struct Unread;

/// Sends all of these bytes. However slow the reader is, something must move.
pub(crate) async fn pour(send: &mut SendHalf, mut bytes: Bytes) -> Result<(), Unread> {
    while !bytes.is_empty() {
        match timeout(UNREAD, send.send_some(&mut bytes, PART)).await {
            Ok(Ok(_)) => {}
            _ => return Err(Unread),
        }
    }
    Ok(())
}

/// Reads exactly so many bytes, and hashes them on the way. Waits for as long as something comes.
///
/// The memory is set aside at once, and none of it is touched before its bytes come.
pub(crate) async fn read_hashed(
    from: &mut (impl AsyncRead + Unpin),
    length: u64,
) -> Result<(Vec<u8>, Hash), String> {
    let length = usize::try_from(length).map_err(|_| "it does not fit into memory")?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| "it does not fit into memory")?;
    let mut rest = from.take(length as u64);
    let mut hasher = blake3::Hasher::new();
    let mut hashed = 0;
    while bytes.len() < length {
        match timeout(STALL, rest.read_buf(&mut bytes)).await {
            Ok(Ok(0)) => return Err("it ended too early".into()),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("nothing came for {} s", STALL.as_secs())),
        }
        if bytes.len() - hashed >= HASHED {
            hasher.update(&bytes[hashed..]);
            hashed = bytes.len();
        }
    }
    hasher.update(&bytes[hashed..]);
    Ok((bytes, Hash(*hasher.finalize().as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::aggregate::testing::{job, name, party};

    #[test]
    fn the_pieces_of_a_training_are_for_those_who_take_part_and_those_who_sum() {
        // Of party 1; party 2 takes part; party 3 sums.
        let job = job();
        let of = |n: u8| may_have_pieces(&job, party(n), &name(n));
        assert_eq!([1, 2, 3, 4].map(of), [true, true, true, false]);
        let mut other = job.clone();
        Arc::make_mut(&mut other.spec).training = None;
        assert!(!may_have_pieces(&other, party(1), &name(1)));
    }

    #[tokio::test]
    async fn what_is_read_is_hashed_however_it_comes() {
        let bytes: Vec<u8> = (0..3 * HASHED as u32 + 17).map(|n| n as u8).collect();
        let more = [&bytes[..], b"not asked for"].concat();
        let (read, hash) = read_hashed(&mut &more[..], bytes.len() as u64).await.unwrap();
        assert_eq!((hash, read), (Hash::of(&bytes), bytes.clone()));
        let short = read_hashed(&mut &bytes[..], bytes.len() as u64 + 1).await;
        assert!(short.is_err());
        assert!(read_hashed(&mut &bytes[..], u64::MAX).await.is_err());
    }
}
