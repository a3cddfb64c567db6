//! What is asked of those who sum, and sent to them, from any node.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{CallError, Lane};
use tokio::time::timeout;

use crate::data::chain;
use crate::handle::Handle;
use crate::training::pieces::travel::{STALL, pour};
use crate::training::wire::{Answer, Ask, Taken, UpdateHead};
use crate::wire::{Header, Reply, Request};

/// How long one who asks for news waits for an answer.
const NEWS_PATIENCE: Duration = Duration::from_secs(10);
/// How long a sum may take. If its node goes, that is noticed long before.
const SUM_PATIENCE: Duration = Duration::from_secs(300);
/// How long it may take to fetch pieces, beside the time for their bytes.
const KEEP_PATIENCE: Duration = Duration::from_secs(60);
/// They come at this rate at least, in bytes a second.
const SLOWEST: u64 = 256 << 10;
/// How long a sender waits, once all is sent, to hear what became of it.
const VERDICT_PATIENCE: Duration = Duration::from_secs(60);
/// A [`Taken`] is no longer.
const MAX_TAKEN_BYTES: usize = 4 << 10;
/// A layout up to this length travels in the head of an update. A longer one goes before the bytes, as a frame of its own.
const SMALL_LAYOUT: usize = 32 << 10;

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It cannot be asked.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It took no more, or said nothing, for too long; or the stream broke.
    #[error("{} did not take all of it: {why}", .node.short())]
    Broken {
        /// Who.
        node: NodeId,
        /// How.
        why: String,
    },
    /// It answered another question.
    #[error("{} gave no answer to that", .0.short())]
    Nonsense(NodeId),
    /// What is asked cannot be sent.
    #[error("this cannot be sent: {0}")]
    Unsent(String),
}

/// Asks a node that sums or holds, also this one.
pub async fn ask(handle: &Handle, to: NodeId, ask: Ask) -> Result<Answer, AskError> {
    if to == handle.whoami.node {
        return Ok(handle.training.answer(to, ask).await);
    }
    let patience = match &ask {
        Ask::Arrived { .. } | Ask::Server(_) => NEWS_PATIENCE,
        Ask::Sum { .. } => SUM_PATIENCE,
        Ask::Keep { pieces, .. } => {
            let bytes = pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.bytes));
            KEEP_PATIENCE + Duration::from_secs(bytes / SLOWEST)
        }
    };
    let request =
        encode(&Request::Training(ask)).map_err(|error| AskError::Unsent(error.to_string()))?;
    let reply = handle.net.call(to, request, patience).await?;
    match decode(&reply) {
        Ok(Reply::Training(answer)) => Ok(answer),
        _ => Err(AskError::Nonsense(to)),
    }
}

/// Sends a shard of an update to whoever sums it, also to this node. `bytes` are those that `head.piece` names.
///
/// Sent again, it costs little: who has it says so before its bytes are on their way.
pub async fn send_update(
    handle: &Handle,
    to: NodeId,
    mut head: UpdateHead,
    bytes: Bytes,
) -> Result<Taken, AskError> {
    if to == handle.whoami.node {
        return Ok(handle.training.take_own(head, bytes).await);
    }
    if head.base.is_some() {
        head.layout = None;
    }
    // One that is long goes to whoever sums the first shard, and to nobody else.
    let long = head.layout.take_if(|layout| layout.len() > SMALL_LAYOUT);
    let layout = long.filter(|_| head.shard == 0);
    let header = encode(&Header::Update(Box::new(head)));
    let header = header.map_err(|error| AskError::Unsent(error.to_string()))?;
    let (mut send, mut receive) = handle.net.open(to, header, Lane::Bulk).await?.split();
    let write = async {
        if let Some(layout) = layout {
            match timeout(STALL, send.send_frame(&layout)).await {
                Ok(Ok(())) => {}
                _ => return false,
            }
        }
        let is_sent = pour(&mut send, bytes).await.is_ok();
        if is_sent {
            send.finish();
        }
        is_sent
    };
    let mut verdict = pin!(receive.recv_frame(MAX_TAKEN_BYTES));
    let verdict = tokio::select! {
        biased;
        // It may come before all is sent: then nobody reads the rest.
        verdict = &mut verdict => Ok(verdict),
        is_sent = write => {
            // One who reads no more has said why, or is gone.
            let patience = if is_sent { VERDICT_PATIENCE } else { STALL };
            timeout(patience, verdict).await
        }
    };
    let broken = |why: String| AskError::Broken { node: to, why };
    match verdict {
        Ok(Ok(Some(taken))) => decode(&taken).map_err(|_| AskError::Nonsense(to)),
        Ok(Ok(None)) => Err(broken("it ended without a word".into())),
        Ok(Err(error)) => Err(broken(chain(&error))),
        Err(_) => Err(broken("it says nothing".into())),
    }
}
