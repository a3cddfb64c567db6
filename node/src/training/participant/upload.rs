//! Sending what is kept: each shard to whoever sums it, until a commit lists the update or it is too old.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};

use super::decide::{self, Deed, PAUSE, Shard, Target, View};
use super::update::{Cut, Update};
use super::{Participant, Seen};
use crate::handle::Handle;
use crate::training::aggregate::send_update;
use crate::training::wire::Taken;

/// A shard on its way.
struct Flight {
    update: Arc<Update>,
    cut: Arc<Cut>,
    shard: usize,
    target: Target,
}

/// What came of it. `None` if nobody said anything.
struct Landed {
    round: u32,
    shard: usize,
    target: Target,
    taken: Option<Taken>,
}

impl Participant {
    /// Sends what is kept, until nothing is.
    pub(super) async fn send(&self, handle: &Handle) {
        let mut seen = self.seen.subscribe();
        let mut flying: FuturesUnordered<BoxFuture<'_, Landed>> = FuturesUnordered::new();
        loop {
            let view = seen.borrow_and_update().view.clone();
            let (flights, cuts) = self.plan(&view);
            for (update, count) in cuts {
                self.cut(update, count).await;
            }
            for flight in flights {
                flying.push(Box::pin(self.fly(handle, flight)));
            }
            let is_idle = self.done().kept.is_empty();
            tokio::select! {
                Some(landed) = flying.next(), if !flying.is_empty() => self.land(landed),
                changed = seen.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = self.more.notified() => {}
                () = sleep(PAUSE), if !is_idle => {}
            }
        }
    }

    /// What is to be sent now, and what must be cut into other shards first. What is not needed any more goes.
    fn plan(&self, view: &View) -> (Vec<Flight>, Vec<(Arc<Update>, usize)>) {
        let (own, now, key) = (self.own(), Instant::now(), self.key);
        let (mut flights, mut cuts) = (Vec::new(), Vec::new());
        self.done().kept.retain_mut(|kept| {
            let round = kept.update.round;
            match decide::deed(view, &own, round, &kept.shards, now) {
                Deed::Drop(why) => {
                    tracing::debug!(%key, round, why, "an update is kept no longer");
                    return false;
                }
                Deed::Wait => {}
                Deed::Send(send) => {
                    let count = send.first().map_or(0, |(_, target)| target.shards);
                    if count != kept.cut.shards.len() {
                        cuts.push((kept.update.clone(), count));
                        return true;
                    }
                    for (shard, target) in send {
                        if let Some(held) = kept.shards.get_mut(shard) {
                            held.flies = true;
                            let (update, cut) = (kept.update.clone(), kept.cut.clone());
                            flights.push(Flight { update, cut, shard, target });
                        }
                    }
                }
            }
            true
        });
        (flights, cuts)
    }

    /// Cuts an update anew, because others sum now.
    async fn cut(&self, update: Arc<Update>, count: usize) {
        let round = update.round;
        let Ok(cut) = tokio::task::spawn_blocking(move || update.cut(count)).await else { return };
        let mut done = self.done();
        if let Some(kept) = done.kept.iter_mut().find(|kept| kept.update.round == round) {
            kept.shards = vec![Shard::default(); cut.shards.len()];
            kept.cut = Arc::new(cut);
        }
        // It is due at once.
        self.more.notify_one();
    }

    /// Sends one shard, as long as it is wanted where it goes.
    async fn fly(&self, handle: &Handle, flight: Flight) -> Landed {
        let Flight { update, cut, shard, target } = flight;
        let (own, round) = (self.own(), update.round);
        let head = update.head(self.key, &cut, shard, target.round);
        let bytes = cut.shards.get(shard).map(|(_, bytes)| bytes.clone()).unwrap_or_default();
        let is_unwanted = |seen: &Seen| !decide::is_wanted(&seen.view, &own, round, shard, target);
        let taken = tokio::select! {
            taken = send_update(handle, target.to, head, bytes) => taken,
            () = self.until(is_unwanted) => return Landed { round, shard, target, taken: None },
        };
        let said = taken.inspect_err(|error| {
            let (key, error) = (self.key, crate::data::chain(error));
            tracing::debug!(%key, round, shard, error, "an update could not be sent");
        });
        Landed { round, shard, target, taken: said.ok() }
    }

    /// Notes what came of a shard.
    fn land(&self, landed: Landed) {
        let Landed { round, shard, target, taken } = landed;
        let now = Instant::now();
        let mut done = self.done();
        let Some(at) = done.kept.iter().position(|kept| kept.update.round == round) else { return };
        let kept = &mut done.kept[at];
        // It may have been cut anew since.
        let is_same = kept.shards.len() == target.shards;
        let Some(held) = kept.shards.get_mut(shard).filter(|_| is_same) else { return };
        held.flies = false;
        match taken {
            Some(Taken::Here | Taken::Again) => {
                (held.there, held.not_there) = (Some((target, now)), None);
            }
            Some(Taken::Elsewhere | Taken::Full) | None => {
                (held.there, held.not_there) = (None, Some((target, now)));
            }
            Some(Taken::Refused(why)) => {
                let key = self.key;
                tracing::warn!(%key, round, why = why.as_str(), "an update was refused");
                done.kept.remove(at);
            }
        }
    }
}
