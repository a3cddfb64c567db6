//! Acts for a primary: has the values, copies them to the backup, and lets no operation count that is not there as well.
//!
//! ```text
//!   Fresh: the checkpoint is read ─┐
//!                                  ▼
//!   each epoch: the backup gets a copy ─► the coordinator says Ready ─► orders
//!                                                                        │ sent to the backup, in order
//!                                                                        ▼
//!                                             it has them ─► applied here ─► acknowledged
//! ```
//!
//! What a pull can see is therefore with the backup already. If the backup is gone, orders wait: the coordinator names another one, and
//! what was on its way goes there. A worker that is not heard any more, or whose attempt is over, is not waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::encode;
use mesh_transport::net::{Lane, SendHalf};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval, sleep, timeout};

use super::held::{Held, Order, QUEUE, Seen};
use super::shard::{Op, Outcome, Shard};
use super::wire::{OpHead, ReplicaHead, Where};
use crate::data::chain;
use crate::state::server::Stage;
use crate::training::Training;
use crate::training::pieces::travel::{STALL, pour};
use crate::training::service::lock;
use crate::wire::Header;

/// Operations on their way to the backup.
const WINDOW: usize = 8;
/// A worker that is not heard for this long is not waited for until it comes back.
const SILENT: Duration = Duration::from_secs(10);
/// How often that is looked at.
const TICK: Duration = Duration::from_secs(1);
/// How soon what could not be done is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// With more bytes than this, an operation is not done between two messages.
const LARGE: usize = 64 << 10;
/// How long a backup may take to load its copy, beside the time for its bytes.
const COPY_PATIENCE: Duration = Duration::from_secs(60);
/// An acknowledgement of the backup is no longer.
const MAX_ACK_BYTES: usize = 64;

/// Why an epoch ends for its primary.
enum Over {
    /// The state names another epoch.
    Epoch,
    /// The backup is not there.
    Backup(String),
}

/// The way to a backup that has a copy.
struct Link {
    send: SendHalf,
    /// One for each operation that is in.
    acks: mpsc::Receiver<()>,
}

/// Acts for as long as this node has the shard.
pub(super) async fn act(training: Training, held: Arc<Held>) {
    let Some(mut inbox) = lock(&held.inbox).take() else { return };
    let me = training.whoami.node;
    let mut flying: VecDeque<Order> = VecDeque::new();
    let mut seen = held.seen.subscribe();
    loop {
        if held.record().primary != me {
            // Whoever waits for it hears at once that it must ask elsewhere.
            flying.clear();
            while inbox.try_recv().is_ok() {}
        }
        // As a backup there is nothing to do: what comes is taken in `backup.rs`.
        let record = match seen.wait_for(|seen| seen.record.primary == me).await {
            Ok(seen) => seen.record,
            Err(_) => return,
        };
        if lock(&held.core).shard.is_none() {
            if record.stage != Stage::Fresh {
                // What was here is lost. The coordinator sees it, and gives the shard to the backup.
                sleep(AGAIN).await;
                continue;
            }
            if let Err(why) = load(&training, &held).await {
                tracing::warn!(job = %held.job.short(), shard = held.shard, why, "a checkpoint could not be read yet");
                sleep(AGAIN).await;
                continue;
            }
        }
        {
            let mut core = lock(&held.core);
            core.epoch = core.epoch.max(record.epoch);
        }
        lock(&held.talk).heard.clear();
        let primary = Primary { training: &training, held: &held, epoch: record.epoch };
        match primary.epoch(record.backup, &mut inbox, &mut flying).await {
            Over::Epoch => {}
            Over::Backup(why) => {
                tracing::debug!(job = %held.job.short(), shard = held.shard, why, "a backup is not there");
                lock(&held.talk).lost.get_or_insert_with(Instant::now);
                sleep(AGAIN).await;
            }
        }
    }
}

/// Reads the shard of the checkpoint that stands.
async fn load(training: &Training, held: &Arc<Held>) -> Result<(), String> {
    let model = held.seen.borrow().model.clone();
    let number = held.shard as usize;
    let holders: Vec<NodeId> = model.holders.iter().copied().collect();
    let weights = model.weights.get(number).copied().ok_or("the model has no such shard")?;
    let fetch = |piece| training.fetch(held.job, piece, &holders);
    let values = fetch(weights).await.map_err(|error| chain(&error))?;
    let rest = match model.optimiser.get(number) {
        Some(piece) => Some(fetch(*piece).await.map_err(|error| chain(&error))?),
        None => None,
    };
    let settings = held.settings.clone();
    let made = spawn_blocking(move || match rest {
        Some(rest) => Shard::from_bytes(settings, &values, &rest),
        None => Some(Shard::new(settings, crate::training::tensors::values_of(&values)?)),
    });
    let made = made.await.map_err(|_| "the node is stopping")?;
    let mut shard = made.ok_or("the checkpoint is not one")?;
    shard.forget_workers();
    lock(&held.core).shard = Some(shard);
    Ok(())
}

/// A primary under one epoch.
struct Primary<'a> {
    training: &'a Training,
    held: &'a Arc<Held>,
    epoch: u64,
}

impl Primary<'_> {
    /// Serves until the epoch is over. What is on its way to the backup stays in `flying`.
    async fn epoch(
        &self,
        backup: Option<NodeId>,
        inbox: &mut mpsc::Receiver<Order>,
        flying: &mut VecDeque<Order>,
    ) -> Over {
        let mut seen = self.held.seen.subscribe();
        let is_other = |epoch: u64| epoch != self.epoch;
        let mut link = None;
        if let Some(node) = backup {
            let copied = tokio::select! {
                copied = self.copy(node) => copied,
                () = self.until(|seen| is_other(seen.record.epoch)) => return Over::Epoch,
            };
            match copied {
                Ok(made) => link = Some(made),
                Err(why) => return Over::Backup(why),
            }
        }
        {
            let mut talk = lock(&self.held.talk);
            (talk.synced, talk.lost) = (Some(self.epoch), None);
        }
        // Until the state says that the copy counts, nothing is acknowledged.
        let settled =
            |seen: &Seen| is_other(seen.record.epoch) || seen.record.stage == Stage::Ready;
        self.until(settled).await;
        if is_other(seen.borrow_and_update().record.epoch) {
            return Over::Epoch;
        }
        // What an earlier backup may have had, and may not, comes first.
        for order in flying.iter() {
            if let Some(link) = &mut link
                && let Err(why) = link.send(order).await
            {
                return Over::Backup(why);
            }
        }
        if link.is_none() {
            while let Some(order) = flying.pop_front() {
                self.apply(order).await;
            }
        }
        let mut tick = interval(TICK);
        loop {
            let has_room = flying.len() < WINDOW;
            tokio::select! {
                biased;
                changed = seen.changed() => {
                    if changed.is_err() || is_other(seen.borrow_and_update().record.epoch) {
                        return Over::Epoch;
                    }
                }
                ack = next_ack(&mut link) => match (ack, flying.pop_front()) {
                    (Some(()), Some(order)) => self.apply(order).await,
                    _ => return Over::Backup("it hung up".into()),
                },
                order = inbox.recv(), if has_room => {
                    let Some(order) = order else { return Over::Epoch };
                    if let Some(over) = self.take(order, &mut link, flying).await {
                        return over;
                    }
                }
                _ = tick.tick(), if has_room => {
                    for op in self.gone() {
                        let order = Order { op, bytes: Bytes::new(), reply: None };
                        if let Some(over) = self.take(order, &mut link, flying).await {
                            return over;
                        }
                    }
                }
            }
        }
    }

    async fn until(&self, is_so: impl FnMut(&Seen) -> bool) {
        let mut seen = self.held.seen.subscribe();
        // The sender lives as long as what is held.
        let _ = seen.wait_for(is_so).await;
    }

    /// Takes up an order.
    async fn take(
        &self,
        order: Order,
        link: &mut Option<Link>,
        flying: &mut VecDeque<Order>,
    ) -> Option<Over> {
        let Some(link) = link else {
            self.apply(order).await;
            return None;
        };
        if flying.is_empty() {
            // What does not count now changes nothing: nobody else has to hear of it.
            let outcome = match &lock(&self.held.core).shard {
                Some(shard) => shard.judge(&order.op, &order.bytes),
                None => Outcome::Wait,
            };
            if outcome != Outcome::Done {
                if let Some(reply) = order.reply {
                    let _ = reply.send(outcome);
                }
                return None;
            }
        }
        let sent = link.send(&order).await;
        flying.push_back(order);
        sent.err().map(Over::Backup)
    }

    /// An operation is with the backup: it counts.
    async fn apply(&self, order: Order) {
        let Order { op, bytes, reply } = order;
        let (held, epoch, pieces) = (self.held.clone(), self.epoch, self.training.pieces.clone());
        let is_large = bytes.len() > LARGE;
        let gone = match &op {
            Op::Leave { worker, .. } => Some(*worker),
            _ => None,
        };
        let work = move || {
            let mut core = lock(&held.core);
            if core.epoch != epoch {
                return Outcome::Wait;
            }
            let Some(shard) = &mut core.shard else { return Outcome::Wait };
            let (outcome, due) = shard.apply(&op, &bytes);
            let frozen = due.map(|step| (step, shard.to_bytes()));
            drop(core);
            if let Some((step, (values, rest))) = frozen {
                let (held, job) = (held.clone(), held.job);
                // Nobody waits for a checkpoint.
                tokio::task::spawn_blocking(move || {
                    let put = pieces
                        .put(job, values)
                        .and_then(|values| Ok((values, pieces.put(job, rest)?)));
                    match put {
                        Ok((weights, rest)) => held.keep(step, weights, rest),
                        Err(error) => tracing::warn!(%error, "a checkpoint was not kept"),
                    }
                });
            }
            outcome
        };
        let outcome = match is_large {
            true => spawn_blocking(work).await.unwrap_or(Outcome::Wait),
            false => work(),
        };
        if let Some(worker) = gone {
            lock(&self.held.talk).batches.forget(worker);
        }
        self.held.touch();
        if let Some(reply) = reply {
            let _ = reply.send(outcome);
        }
    }

    /// Workers that are not waited for any more.
    fn gone(&self) -> Vec<Op> {
        let attempts = self.held.seen.borrow().attempts.clone();
        let core = lock(&self.held.core);
        let Some(shard) = &core.shard else { return Vec::new() };
        let mut talk = lock(&self.held.talk);
        let mut gone = Vec::new();
        for (worker, live) in &shard.ledger().live {
            let counts = attempts.get(worker).is_some_and(|(fence, _)| *fence == live.fence);
            // Whoever takes over gives everybody time.
            let heard = *talk.heard.entry(*worker).or_insert_with(Instant::now);
            if !counts || heard.elapsed() > SILENT {
                gone.push(Op::Leave { worker: *worker, fence: live.fence });
            }
        }
        gone
    }

    /// Gives the backup a copy.
    async fn copy(&self, node: NodeId) -> Result<Link, String> {
        let net = self.training.net().ok_or("this node is not connected yet")?;
        let Held { job, shard, .. } = **self.held;
        let copied = {
            let held = self.held.clone();
            spawn_blocking(move || lock(&held.core).shard.as_ref().map(Shard::to_bytes))
        };
        let (values, rest) =
            copied.await.map_err(|_| "the node is stopping")?.ok_or("there is nothing here")?;
        let (of_values, of_rest) = (values.len() as u64, rest.len() as u64);
        let at = Where { job, shard, epoch: self.epoch };
        let head = ReplicaHead { at, values: of_values, rest: of_rest };
        let header = encode(&Header::Replica(head)).map_err(|error| error.to_string())?;
        let _bulk = net.bulk(node);
        let stream = net.open(node, header, Lane::Bulk).await.map_err(|error| chain(&error))?;
        let (mut send, mut receive) = stream.split();
        for bytes in [values, rest] {
            pour(&mut send, bytes.into()).await.map_err(|_| "it takes nothing")?;
        }
        match timeout(COPY_PATIENCE, receive.recv_frame(MAX_ACK_BYTES)).await {
            Ok(Ok(Some(_))) => {}
            _ => return Err("it has no copy".into()),
        }
        let (told, acks) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            while let Ok(Some(_)) = receive.recv_frame(MAX_ACK_BYTES).await {
                if told.send(()).await.is_err() {
                    return;
                }
            }
        });
        Ok(Link { send, acks })
    }
}

impl Link {
    async fn send(&mut self, order: &Order) -> Result<(), String> {
        let head = OpHead { op: order.op.clone(), bytes: order.bytes.len() as u64 };
        let head = encode(&head).map_err(|error| error.to_string())?;
        match timeout(STALL, self.send.send_frame(&head)).await {
            Ok(Ok(())) => {}
            _ => return Err("it takes nothing".into()),
        }
        pour(&mut self.send, order.bytes.clone()).await.map_err(|_| "it takes nothing".to_owned())
    }
}

/// The next acknowledgement; never where there is no backup.
async fn next_ack(link: &mut Option<Link>) -> Option<()> {
    match link {
        Some(link) => link.acks.recv().await,
        None => std::future::pending().await,
    }
}
