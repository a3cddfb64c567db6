//! Acts for a backup: takes a copy of a shard from its primary, then every operation, and says so.
//!
//! A copy takes the place of what was here only once it is whole. An operation is taken only under the epoch of the copy: whoever
//! became the primary in between has a later one, and the old primary is not heard any more.

use mesh_consensus::id::NodeId;
use mesh_transport::codec::decode;
use mesh_transport::net::Stream;
use tokio::io::AsyncReadExt as _;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::follow::Mine;
use super::shard::Shard;
use super::wire::{OpHead, ReplicaHead};
use crate::training::Training;
use crate::training::pieces::travel::STALL;
use crate::training::service::lock;

/// The head of an operation is no longer: it names up to [`super::shard::MAX_PARTS`] parts.
const MAX_OP_BYTES: usize = 64 << 10;
/// So much more than its values may take what a shard keeps beside them: three rows, and what it has taken.
const ROWS: u64 = 3;
const LEDGER_BYTES: u64 = 1 << 20;

impl Training {
    /// Is the backup of a peer's shard, for as long as the stream lasts.
    pub(crate) async fn take_replica(&self, from: NodeId, head: ReplicaHead, mut stream: Stream) {
        let _bulk = self.net().map(|net| net.bulk(from));
        if let Err(why) = self.follow_primary(from, head, &mut stream).await {
            tracing::debug!(peer = %from.short(), why, "a shard is not followed any more");
        }
    }

    async fn follow_primary(
        &self,
        from: NodeId,
        head: ReplicaHead,
        stream: &mut Stream,
    ) -> Result<(), &'static str> {
        let (me, at) = (self.whoami.node, head.at);
        let mine = self.settle(move |state| {
            let mine = Mine::of(state, at.job, at.shard)?;
            // One who is behind waits a moment.
            (mine.seen.record.epoch >= at.epoch).then_some(mine)
        });
        let mine = mine.await.ok_or("there is no such shard")?;
        let record = mine.seen.record;
        if record.epoch != at.epoch || record.primary != from || record.backup != Some(me) {
            return Err("this node is not its backup");
        }
        let most = head.values.saturating_mul(ROWS).saturating_add(LEDGER_BYTES);
        if head.values != mine.bytes || head.rest > most {
            return Err("it is not as long as it should be");
        }
        let values = read(stream, head.values).await?;
        let rest = read(stream, head.rest).await?;
        let settings = mine.settings.clone();
        let copied = spawn_blocking(move || Shard::from_bytes(settings, &values, &rest)).await;
        let copied = copied.ok().flatten().ok_or("the copy is not one")?;
        let held = self.servers.obtain(at.job, at.shard, mine.laid, mine.settings, mine.seen);
        if held.laid != mine.laid {
            return Err("the shards were laid out anew");
        }
        {
            let mut core = lock(&held.core);
            if core.epoch > at.epoch {
                return Err("it has another primary by now");
            }
            core.epoch = at.epoch;
            core.shard = Some(copied);
        }
        acknowledge(stream).await?;
        loop {
            // A primary that has nothing to do says nothing, for as long as it likes.
            let Ok(Some(frame)) = stream.recv_frame(MAX_OP_BYTES).await else { return Ok(()) };
            let OpHead { op, bytes } = decode(&frame).map_err(|_| "it is not understood")?;
            // Nothing that is pushed takes more than the values do in f32.
            if bytes > head.values {
                return Err("it is longer than the shard");
            }
            let bytes = read(stream, bytes).await?;
            let (shard, epoch) = (held.clone(), at.epoch);
            let work = move || {
                let mut core = lock(&shard.core);
                if core.epoch != epoch {
                    return false;
                }
                let Some(shard) = &mut core.shard else { return false };
                // Whatever comes of it, it is the same as with the primary.
                shard.apply(&op, &bytes);
                true
            };
            if !spawn_blocking(work).await.unwrap_or(false) {
                return Err("it has another primary by now");
            }
            acknowledge(stream).await?;
        }
    }
}

async fn acknowledge(stream: &mut Stream) -> Result<(), &'static str> {
    match timeout(STALL, stream.send_frame(b"in")).await {
        Ok(Ok(())) => Ok(()),
        _ => Err("it does not listen"),
    }
}

/// Reads exactly so many bytes. Waits for as long as something comes.
pub(super) async fn read(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    length: u64,
) -> Result<Vec<u8>, &'static str> {
    let length = usize::try_from(length).map_err(|_| "it does not fit into memory")?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| "it does not fit into memory")?;
    let mut rest = from.take(length as u64);
    while bytes.len() < length {
        match timeout(STALL, rest.read_buf(&mut bytes)).await {
            Ok(Ok(count)) if count > 0 => {}
            Ok(_) => return Err("it ended too early"),
            Err(_) => return Err("nothing came any more"),
        }
    }
    Ok(bytes)
}
