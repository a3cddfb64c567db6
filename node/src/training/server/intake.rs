//! What a primary, a backup and a coordinator are asked, and what they say.
//!
//! A primary answers only under the epoch that it has, and only while it hears the agreement: one that was cut off may have been
//! replaced, and its values are old. Who asks must be the node of an attempt that counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::encode;
use mesh_transport::net::Stream;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use super::backup::read;
use super::batches::Given;
use super::held::{First, Held, Order};
use super::shard::{MAX_PARTS, Op, Outcome, Part, Shard};
use super::wire::{
    PullHead, Pulled, PushHead, Pushed, ServerAnswer, ServerAsk, Status, Where, Who,
};
use crate::job::training::{Mode, Real, Training as Asked, Wire};
use crate::state::course::{MAX_METRICS, MAX_SHARDS};
use crate::state::jobs::note;
use crate::state::name::Name;
use crate::state::server::Far;
use crate::training::Training;
use crate::training::pack;
use crate::training::pieces::travel::{STALL, pour};
use crate::training::service::lock;

/// One that has not heard the agreement for this long answers nothing: see [`super`].
const FRESH: Duration = Duration::from_secs(5);
/// How long a question waits for its answer, at most.
const LONG_POLL: Duration = Duration::from_secs(2);
/// How long an operation may take until it is acknowledged. Then whoever asked asks again.
const ACK_PATIENCE: Duration = Duration::from_secs(20);

/// How values travel that are pulled: gradients in bytes are fine, weights in bytes are not.
pub(super) fn pull_wire(wire: Wire) -> Wire {
    match wire {
        Wire::Int8 => Wire::F16,
        other => other,
    }
}

impl Training {
    /// What this node says about a parameter server.
    pub(crate) async fn answer_server(&self, from: NodeId, ask: ServerAsk) -> ServerAnswer {
        match ask {
            ServerAsk::Stand { at, who, enter } => match self.hears(from, &at, &who) {
                Some(held) => self.on_stand(&held, who, enter).await,
                None => ServerAnswer::Elsewhere,
            },
            ServerAsk::Begin { at, who, step } => match self.hears(from, &at, &who) {
                Some(held) => on_begin(&held, &at, self.whoami.node, who, step).await,
                None => ServerAnswer::Elsewhere,
            },
            ServerAsk::Batch { at, who } => match self.hears(from, &at, &who) {
                Some(held) => on_batch(&held, &at, self.whoami.node, who).await,
                None => ServerAnswer::Elsewhere,
            },
            ServerAsk::Status { at } => self.on_status(from, at).await,
            ServerAsk::First { job, who, layout, weights } => {
                self.on_first(from, job, who, First { from, layout, weights }).await
            }
        }
    }

    /// The shard, if this node answers for it and that worker may ask.
    fn hears(&self, from: NodeId, at: &Where, who: &Who) -> Option<Arc<Held>> {
        let held = self.servers.find(at.job, at.shard)?;
        let may = self.shown.is_fresh(FRESH)
            && held.answers(at, self.whoami.node)
            && held.counts(who, from);
        if !may {
            return None;
        }
        held.hear(who.worker);
        Some(held)
    }

    async fn on_stand(&self, held: &Arc<Held>, who: Who, enter: Option<u32>) -> ServerAnswer {
        if let Some(start) = enter {
            let op = Op::Enter { worker: who.worker, fence: who.fence, start };
            match order(held, op, Bytes::new()).await {
                Some(Outcome::Done) => {}
                Some(Outcome::Superseded) => return no("another attempt has this task"),
                _ => return ServerAnswer::Elsewhere,
            }
        }
        match &lock(&held.core).shard {
            Some(shard) => ServerAnswer::Standing(shard.standing(who.worker)),
            None => ServerAnswer::Elsewhere,
        }
    }

    /// How far a shard is that this node has, for whoever coordinates.
    async fn on_status(&self, from: NodeId, at: Where) -> ServerAnswer {
        let coordinates = self.settle(move |state| {
            let lease = state.course(at.job)?.lease?;
            (lease.node == from).then_some(())
        });
        if coordinates.await.is_none() {
            return no("another node coordinates");
        }
        let Some(held) = self.servers.find(at.job, at.shard) else {
            return ServerAnswer::Status(Box::default());
        };
        self.finish(&held).await;
        let record = held.record();
        let core = lock(&held.core);
        let talk = lock(&held.talk);
        let Some(shard) = core.shard.as_ref().filter(|_| record.epoch == at.epoch) else {
            let has_values = core.shard.is_some();
            return ServerAnswer::Status(Box::new(Status { has_values, ..Status::default() }));
        };
        let ended = held.seen.borrow().ended.clone();
        let far = |(worker, step): (&u32, &u32)| {
            let times = talk.told.get(worker).map(|(_, times)| *times).unwrap_or_default();
            (*worker, Far { steps: *step, times })
        };
        ServerAnswer::Status(Box::new(Status {
            has_values: true,
            in_sync: talk.synced == Some(record.epoch),
            lost_backup: talk.lost.is_some(),
            progress: shard.progress(),
            is_done: shard.is_done(&ended),
            checkpoints: talk.checkpoints.clone(),
            workers: shard.ledger().clocks.iter().map(far).collect(),
            metrics: means(talk.told.values().map(|(metrics, _)| metrics)),
        }))
    }

    /// The last checkpoint, where some workers ended before their last step or this primary was a backup when it was due.
    async fn finish(&self, held: &Arc<Held>) {
        let me = self.whoami.node;
        let (held, pieces) = (held.clone(), self.pieces.clone());
        let work = move || {
            let steps = held.settings.steps;
            let ended = held.seen.borrow().ended.clone();
            let is_due =
                held.record().primary == me && !lock(&held.talk).checkpoints.contains_key(&steps);
            let frozen = match &lock(&held.core).shard {
                Some(shard) if is_due && shard.is_done(&ended) => shard.to_bytes(),
                _ => return,
            };
            let (values, rest) = frozen;
            let put = pieces
                .put(held.job, values)
                .and_then(|values| Ok((values, pieces.put(held.job, rest)?)));
            match put {
                Ok((weights, rest)) => held.keep(steps, weights, rest),
                Err(error) => tracing::warn!(%error, "a checkpoint was not kept"),
            }
        };
        let _ = spawn_blocking(work).await;
    }

    async fn on_first(
        &self,
        from: NodeId,
        job: mesh_consensus::id::JobId,
        who: Who,
        first: First,
    ) -> ServerAnswer {
        if first.weights.is_empty() || first.weights.len() > MAX_SHARDS {
            return no("it has no or too many shards");
        }
        let me = self.whoami.node;
        let may = self.settle(move |state| {
            let found = state.job(job)?;
            let course = found.course.as_ref()?;
            let Some(Asked::Server(asked)) = &found.spec.training else { return Some(false) };
            let given = found.tasks.get(who.worker as usize)?.given()?;
            let is_here = course.lease.is_some_and(|lease| lease.node == me);
            let counts = given.node == from && given.at.index == who.fence;
            (is_here && counts).then_some(course.model.is_none() && asked.start.is_none())
        });
        match may.await {
            Some(true) => {
                lock(&self.servers.firsts).entry(job).or_insert(first);
                ServerAnswer::Heard
            }
            Some(false) => ServerAnswer::Heard,
            None => ServerAnswer::Elsewhere,
        }
    }

    /// Takes gradients from another node, and tells it what became of them.
    pub(crate) async fn take_push(&self, from: NodeId, head: PushHead, mut stream: Stream) {
        let _bulk = self.net().map(|net| net.bulk(from));
        let pushed = match self.hears(from, &head.at, &head.who) {
            Some(held) if fits(&head, held.settings.wire) => {
                match read(&mut stream, head.bytes).await {
                    Ok(bytes) => push(&held, head, bytes.into()).await,
                    Err(_) => return,
                }
            }
            Some(_) => Pushed::Is(Outcome::Bad),
            None => Pushed::Elsewhere,
        };
        let Ok(bytes) = encode(&pushed) else { return };
        if let Ok(Ok(())) = timeout(STALL, stream.send_frame(&bytes)).await {
            stream.finish();
            let _ = timeout(STALL, stream.stopped()).await;
        }
    }

    /// The same of this node's own worker.
    pub(crate) async fn take_own_push(&self, head: PushHead, bytes: Bytes) -> Pushed {
        match self.hears(self.whoami.node, &head.at, &head.who) {
            Some(held) if fits(&head, held.settings.wire) => push(&held, head, bytes).await,
            Some(_) => Pushed::Is(Outcome::Bad),
            None => Pushed::Elsewhere,
        }
    }

    /// Gives another node values.
    pub(crate) async fn serve_pull(&self, from: NodeId, head: PullHead, stream: Stream) {
        let pulled = self.pull(from, head).await;
        let told = match &pulled {
            Some((clock, bytes)) => Pulled::Here { clock: *clock, bytes: bytes.len() as u64 },
            None => Pulled::Elsewhere,
        };
        let _bulk = self.net().map(|net| net.bulk(from));
        let (mut send, _receive) = stream.split();
        let Ok(told) = encode(&told) else { return };
        let Ok(Ok(())) = timeout(STALL, send.send_frame(&told)).await else { return };
        let bytes = pulled.map(|(_, bytes)| bytes).unwrap_or_default();
        if pour(&mut send, bytes).await.is_ok() {
            send.finish();
            let _ = timeout(STALL, send.stopped()).await;
        }
    }

    /// Values as they travel, and how far the shard is; `None` if this node does not answer for them.
    pub(crate) async fn pull(&self, from: NodeId, head: PullHead) -> Option<(u32, Bytes)> {
        let PullHead { at, who, parts } = head;
        let held = self.hears(from, &at, &who)?;
        let work = move || {
            let core = lock(&held.core);
            let shard = core.shard.as_ref().filter(|_| core.epoch == at.epoch)?;
            let wire = pull_wire(held.settings.wire);
            Some((shard.progress(), packed(shard, &parts, wire)?))
        };
        spawn_blocking(work).await.ok().flatten()
    }
}

/// Packs some values of a shard; `None` if it has no such.
fn packed(shard: &Shard, parts: &[Part], wire: Wire) -> Option<Bytes> {
    if parts.len() > MAX_PARTS {
        return None;
    }
    let mut all = Vec::new();
    for part in parts {
        let begin = usize::try_from(part.at).ok()?;
        let end = begin.checked_add(usize::try_from(part.count).ok()?)?;
        let values = shard.values().get(begin..end)?;
        let mut packed = pack::pack(values, None, wire);
        if all.is_empty() {
            all = packed;
        } else {
            all.append(&mut packed);
        }
    }
    Some(all.into())
}

/// Whether a push is no longer than it says, and says little enough.
fn fits(head: &PushHead, wire: Wire) -> bool {
    let length = head.parts.iter().fold(0u64, |sum, part| {
        let count = usize::try_from(part.count).unwrap_or(usize::MAX);
        sum.saturating_add(pack::packed_bytes(count, wire))
    });
    head.parts.len() <= MAX_PARTS && head.bytes == length && head.metrics.len() <= MAX_METRICS
}

/// Has a primary take gradients.
async fn push(held: &Arc<Held>, head: PushHead, bytes: Bytes) -> Pushed {
    let PushHead { at, who, step, parts, metrics, times, .. } = head;
    let (wire, checked, of) = (held.settings.wire, bytes.clone(), parts.clone());
    let is_finite = spawn_blocking(move || {
        let mut rest = &checked[..];
        of.iter().all(|part| {
            let count = part.count as usize;
            let length = pack::packed_bytes(count, wire) as usize;
            let Some((own, others)) = rest.split_at_checked(length) else { return false };
            rest = others;
            matches!(pack::measure(own, count, wire), Ok(Some(_)))
        })
    });
    if !is_finite.await.unwrap_or(false) {
        return Pushed::Is(Outcome::Bad);
    }
    let op = Op::Push { worker: who.worker, fence: who.fence, step, parts };
    let Some(outcome) = order(held, op, bytes).await else { return Pushed::Elsewhere };
    if outcome == Outcome::Done && at.shard == 0 {
        lock(&held.talk).told.insert(who.worker, (metrics, times));
    }
    Pushed::Is(outcome)
}

/// Has a primary do something; `None` if it does not come to it.
async fn order(held: &Arc<Held>, op: Op, bytes: Bytes) -> Option<Outcome> {
    let deadline = Instant::now() + ACK_PATIENCE;
    let (reply, answer) = oneshot::channel();
    let order = Order { op, bytes, reply: Some(reply) };
    match timeout_at(deadline, held.orders.send(order)).await {
        Ok(Ok(())) => timeout_at(deadline, answer).await.ok()?.ok(),
        _ => None,
    }
}

/// Waits until a look at the shard gives something, or a moment has passed.
async fn poll<T>(
    held: &Arc<Held>,
    at: &Where,
    me: NodeId,
    mut look: impl FnMut(&Shard) -> Option<T>,
) -> Result<Option<T>, ServerAnswer> {
    let deadline = Instant::now() + LONG_POLL;
    let mut changes = held.changes.subscribe();
    loop {
        changes.borrow_and_update();
        if !held.answers(at, me) {
            return Err(ServerAnswer::Elsewhere);
        }
        let found = match &lock(&held.core).shard {
            Some(shard) => look(shard),
            None => return Err(ServerAnswer::Elsewhere),
        };
        if found.is_some() || timeout_at(deadline, changes.changed()).await.is_err() {
            return Ok(found);
        }
    }
}

async fn on_begin(held: &Arc<Held>, at: &Where, me: NodeId, who: Who, step: u32) -> ServerAnswer {
    let may = |shard: &Shard| shard.may_begin(who.worker, step).then_some(());
    match poll(held, at, me, may).await {
        Ok(may) => ServerAnswer::May(may.is_some()),
        Err(answer) => answer,
    }
}

async fn on_batch(held: &Arc<Held>, at: &Where, me: NodeId, who: Who) -> ServerAnswer {
    let settings = &held.settings;
    let ahead = match settings.mode {
        Mode::Bounded { delay } => Some(delay.saturating_add(1).saturating_mul(settings.workers)),
        Mode::Bulk | Mode::Async => None,
    };
    let give = |shard: &Shard| {
        let mut talk = lock(&held.talk);
        match talk.batches.give(who.worker, shard.ledger(), settings.steps, ahead) {
            Given::Batch(batch) => Some(batch),
            Given::Wait => None,
        }
    };
    match poll(held, at, me, give).await {
        Ok(batch) => ServerAnswer::Batch(batch),
        Err(answer) => answer,
    }
}

/// The mean of each metric, over those who have it.
fn means<'a>(all: impl Iterator<Item = &'a BTreeMap<Name, Real>>) -> BTreeMap<Name, Real> {
    let mut sums: BTreeMap<Name, (f64, f64)> = BTreeMap::new();
    for (name, value) in all.flatten() {
        let sum = sums.entry(name.clone()).or_default();
        *sum = (sum.0 + value.get(), sum.1 + 1.0);
    }
    let means =
        sums.into_iter().filter_map(|(name, (sum, count))| Some((name, Real::new(sum / count)?)));
    means.take(MAX_METRICS).collect()
}

fn no(why: &str) -> ServerAnswer {
    ServerAnswer::No(note(why))
}
