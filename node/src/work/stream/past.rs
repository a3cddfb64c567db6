//! Which attempts at a task a node knows.

use std::time::Duration;

use mesh_consensus::id::NodeId;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{Lane, Stream};
use tokio::time::timeout;

use super::super::about::About;
use super::super::{Key, Work};
use super::Ask;
use crate::handle::Handle;
use crate::wire::Header;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The largest answer.
const MAX_FRAME: usize = 256 << 10;
/// The most attempts that are told, the last ones.
const MAX_TOLD: usize = 512;

impl Work {
    /// Answers another node.
    pub(super) async fn serve_past(&self, key: Key, mut stream: Stream) {
        if let Ok(bytes) = encode(&self.past_of(key).await)
            && stream.send_frame(&bytes).await.is_err()
        {
            return;
        }
        stream.finish();
        let _ = timeout(PATIENCE, stream.stopped()).await;
    }

    async fn past_of(&self, key: Key) -> Vec<About> {
        let work = self.clone();
        let found = tokio::task::spawn_blocking(move || work.past(key.job, key.task)).await;
        let mut found = found.unwrap_or_default();
        found.drain(..found.len().saturating_sub(MAX_TOLD));
        found
    }
}

/// Asks a node which attempts at a task left anything there. Empty if it does not answer.
pub(crate) async fn past(handle: &Handle, node: NodeId, key: Key) -> Vec<About> {
    if node == handle.whoami.node {
        return handle.work.past_of(key).await;
    }
    let asked = async {
        let Key { job, task, fence } = key;
        let header = encode(&Header::Task { job, task, fence, ask: Ask::Past }).ok()?;
        let mut stream = handle.net.open(node, header, Lane::Control).await.ok()?;
        let bytes = stream.recv_frame(MAX_FRAME).await.ok()??;
        decode::<Vec<About>>(&bytes).ok()
    };
    timeout(PATIENCE, asked).await.ok().flatten().unwrap_or_default()
}
