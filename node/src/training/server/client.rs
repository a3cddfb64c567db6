//! One question, push or pull to one node, which may be this one.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::Lane;
use tokio::time::timeout;

use super::backup::read;
use super::wire::{PullHead, Pulled, PushHead, Pushed, ServerAnswer, ServerAsk};
use crate::data::chain;
use crate::handle::Handle;
use crate::training::pieces::travel::{STALL, pour};
use crate::training::wire::{Answer, Ask};
use crate::wire::{Header, Reply, Request};

/// How long one may take to answer a question that waits for something.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long the coordinator waits to hear how far a shard is.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);
/// What stands before values, and what is said of gradients, is no longer.
const MAX_FRAME_BYTES: usize = 4 << 10;

/// Asks a node.
pub(super) async fn ask(
    handle: &Handle,
    to: NodeId,
    ask: ServerAsk,
) -> Result<ServerAnswer, String> {
    if to == handle.whoami.node {
        return Ok(handle.training.answer_server(to, ask).await);
    }
    let patience = match &ask {
        ServerAsk::Status { .. } => STATUS_PATIENCE,
        _ => PATIENCE,
    };
    let request = Request::Training(Ask::Server(Box::new(ask)));
    let request = encode(&request).map_err(|error| error.to_string())?;
    let reply = handle.net.call(to, request, patience).await.map_err(|error| chain(&error))?;
    match decode(&reply) {
        Ok(Reply::Training(Answer::Server(answer))) => Ok(*answer),
        _ => Err(format!("{} gave no answer to that", to.short())),
    }
}

/// Sends gradients.
pub(super) async fn push(
    handle: &Handle,
    to: NodeId,
    head: PushHead,
    bytes: Bytes,
) -> Result<Pushed, String> {
    if to == handle.whoami.node {
        return Ok(handle.training.take_own_push(head, bytes).await);
    }
    let header = encode(&Header::Push(Box::new(head))).map_err(|error| error.to_string())?;
    let stream = handle.net.open(to, header, Lane::Bulk).await.map_err(|error| chain(&error))?;
    let _bulk = handle.net.bulk(to);
    let (mut send, mut receive) = stream.split();
    let write = async {
        let is_sent = pour(&mut send, bytes).await.is_ok();
        if is_sent {
            send.finish();
        }
        is_sent
    };
    let mut verdict = pin!(receive.recv_frame(MAX_FRAME_BYTES));
    let verdict = tokio::select! {
        biased;
        // It may come before all is sent: then nobody reads the rest.
        verdict = &mut verdict => Ok(verdict),
        is_sent = write => timeout(if is_sent { PATIENCE } else { STALL }, verdict).await,
    };
    match verdict {
        Ok(Ok(Some(frame))) => decode(&frame).map_err(|error| error.to_string()),
        Ok(Ok(None)) => Err("it ended without a word".into()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err("it says nothing".into()),
    }
}

/// Gets values: how far the shard is, and their packed bytes. `None` if that node does not answer for them.
pub(super) async fn pull(
    handle: &Handle,
    to: NodeId,
    head: PullHead,
    length: u64,
) -> Result<Option<(u32, Bytes)>, String> {
    if to == handle.whoami.node {
        return Ok(handle.training.pull(to, head).await);
    }
    let header = encode(&Header::Pull(Box::new(head))).map_err(|error| error.to_string())?;
    let _bulk = handle.net.bulk(to);
    let stream = handle.net.open(to, header, Lane::Bulk).await.map_err(|error| chain(&error))?;
    let (mut send, mut receive) = stream.split();
    send.finish();
    let told = match timeout(STALL, receive.recv_frame(MAX_FRAME_BYTES)).await {
        Ok(Ok(Some(told))) => told,
        Ok(Err(error)) => return Err(chain(&error)),
        _ => return Err("it says nothing".into()),
    };
    match decode::<Pulled>(&told) {
        Ok(Pulled::Here { clock, bytes }) if bytes == length => {
            Ok(Some((clock, read(&mut receive, bytes).await?.into())))
        }
        Ok(Pulled::Here { .. }) => Err("it gives another number of values".into()),
        Ok(Pulled::Elsewhere) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
