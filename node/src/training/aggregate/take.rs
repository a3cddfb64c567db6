//! Updates as they come: let in by their head, read, measured, kept.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::encode;
use mesh_transport::net::Stream;
use tokio::time::timeout;

use super::check::{Now, may_come};
use super::spool::Update;
use super::{blocking, sum};
use crate::clock;
use crate::data::chain;
use crate::job::training::Real;
use crate::state::jobs::note;
use crate::training::pieces::travel::{STALL, read_hashed};
use crate::training::service::lock;
use crate::training::tensors::{Layout, MAX_HEADER_BYTES};
use crate::training::wire::{Taken, UpdateHead};
use crate::training::{Training, pack};

/// How long an update waits for a place among those that are coming: less than its sender waits for something to move.
const PLACE_PATIENCE: Duration = Duration::from_secs(5);

impl Training {
    /// Takes a shard of an update from another node, and tells it what became of that.
    pub(crate) async fn take_update(&self, from: NodeId, head: UpdateHead, mut stream: Stream) {
        // From here on it may have much more under way.
        let _bulk = self.net().map(|net| net.bulk(from));
        let taken = match self.receive(from, head, &mut stream).await {
            Ok(()) => Taken::Here,
            Err(Some(taken)) => taken,
            // It broke off: there is nobody to tell.
            Err(None) => return,
        };
        let Ok(bytes) = encode(&taken) else { return };
        if let Ok(Ok(())) = timeout(STALL, stream.send_frame(&bytes)).await {
            stream.finish();
            // The end must reach the peer before the stream is dropped.
            let _ = timeout(STALL, stream.stopped()).await;
        }
    }

    async fn receive(
        &self,
        from: NodeId,
        head: UpdateHead,
        stream: &mut Stream,
    ) -> Result<(), Option<Taken>> {
        let job = head.job;
        let (mut head, now) = self.admit(from, head).await.map_err(Some)?;
        // Those who find no place wait with their bytes.
        let place = timeout(PLACE_PATIENCE, self.shards.places(job).acquire_owned()).await;
        let Ok(Ok(_place)) = place else { return Err(Some(Taken::Full)) };
        let begun = clock::steady();
        if head.base.is_none() && head.layout.is_none() && head.shard == 0 {
            // It is too long for a head.
            match timeout(STALL, stream.recv_frame(MAX_HEADER_BYTES)).await {
                Ok(Ok(Some(layout))) => head.layout = Some(layout),
                _ => return Err(None),
            }
            check_layout(&head).map_err(Some)?;
        }
        let (bytes, hash) = match read_hashed(stream, head.piece.bytes).await {
            Ok(read) => read,
            Err(why) => {
                tracing::debug!(peer = %from.short(), %why, "an update did not come whole");
                return Err(None);
            }
        };
        if hash != head.piece.hash {
            return Err(Some(refused("its bytes are not those that it names")));
        }
        let spent = clock::steady().saturating_duration_since(begun).as_millis();
        head.times.upload_ms = u32::try_from(spent).unwrap_or(u32::MAX);
        self.spool(head, &now, Bytes::from(bytes)).await.map_err(Some)
    }

    /// Takes a shard of an update that was made on this node.
    pub(crate) async fn take_own(&self, head: UpdateHead, bytes: Bytes) -> Taken {
        let take = async {
            let (head, now) = self.admit(self.whoami.node, head).await?;
            if head.base.is_none() && head.shard == 0 {
                check_layout(&head)?;
            }
            if bytes.len() as u64 != head.piece.bytes {
                return Err(refused("its bytes are not those that it names"));
            }
            self.spool(head, &now, bytes).await
        };
        match take.await {
            Ok(()) => Taken::Here,
            Err(taken) => taken,
        }
    }

    /// Whether an update may come, and what the state says of its shard. Nothing of it was read yet.
    async fn admit(&self, from: NodeId, mut head: UpdateHead) -> Result<(UpdateHead, Now), Taken> {
        if head.base.is_some() {
            // It has its place with the first model alone.
            head.layout = None;
        }
        if head.layout.is_some() {
            check_layout(&head)?;
        }
        let me = self.whoami.node;
        let shared = Arc::new(head);
        let about = shared.clone();
        let decided = self.settle(move |state| {
            let (job, course) = (state.job(about.job)?, state.course(about.job)?);
            may_come(job, course, &about, from, me)
        });
        let now = decided.await.unwrap_or(Err(Taken::Elsewhere))?;
        let shard = self.shards.shard(shared.job, shared.shard);
        {
            let mut spool = lock(&shard.spool);
            if !spool.catch_up(&now) {
                return Err(Taken::Elsewhere);
            }
            spool.offer(&shared)?;
        }
        Ok((Arc::unwrap_or_clone(shared), now))
    }

    /// Measures an update and keeps it.
    async fn spool(&self, head: UpdateHead, now: &Now, bytes: Bytes) -> Result<(), Taken> {
        let count = sum::range(now, head.values).len();
        let (packed, wire) = (bytes.clone(), now.wire);
        let measured = blocking(move || pack::measure(&packed, count, wire)).await;
        // Its length was right: what can go wrong is that the node stops.
        let norm2 = measured.map_err(|_| Taken::Full)?.and_then(Real::new);
        let shard = self.shards.shard(head.job, head.shard);
        lock(&shard.spool).keep(Update { head, bytes, norm2 })?;
        shard.arrived.notify_waiters();
        Ok(())
    }
}

/// Whether the layout is one, and of as many values as the update says.
fn check_layout(head: &UpdateHead) -> Result<(), Taken> {
    let Some(layout) = &head.layout else {
        return Err(refused("a first model says what its tensors are called"));
    };
    let layout = Layout::parse(layout).map_err(|error| refused(&chain(&error)))?;
    match layout.values() == head.values {
        true => Ok(()),
        false => Err(refused("its tensors have another number of values")),
    }
}

fn refused(why: &str) -> Taken {
    Taken::Refused(note(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::aggregate::testing;

    #[test]
    fn a_layout_is_of_as_many_values_as_the_update() {
        let layout = r#"{"w":{"dtype":"F32","shape":[3,1000],"data_offsets":[0,12000]}}"#;
        let head = UpdateHead { layout: Some(layout.into()), ..testing::head(0, 1) };
        assert_eq!(check_layout(&head), Ok(()));
        let bad = [
            UpdateHead { values: 2999, ..head.clone() },
            UpdateHead { layout: None, ..head.clone() },
            UpdateHead { layout: Some(b"{".to_vec()), ..head },
        ];
        for head in bad {
            assert!(matches!(check_layout(&head), Err(Taken::Refused(_))));
        }
    }
}
