//! One who sums: shards of updates come, are measured and kept, and become the next model's shard when the coordinator says so.
//!
//! ```text
//!  Header::Update ─► check.rs: may it come?  ─► read, hashed, measured ─► spool.rs ─► Ask::Arrived
//!                                                                            │
//!                                              Ask::Sum ─► sum.rs ◄──────────┘   onto the values of the model that stands
//!                                                            └─► pieces.rs, and Answer::Summed
//! ```
//!
//! Nothing here changes what stands: a sum is two new pieces, and the coordinator's commit says whether they count. Asked twice, the
//! same sum is made once. The values in memory know which pieces they are; when the state names others, these are read.
//!
//! Memory, for each shard: `MAX_PARTICIPANTS` updates at most that are spooled, as they travel; the shard's values and what its optimiser
//! keeps; while a sum is made, its mean and the new pieces. For each job: `IN_FLIGHT` shards of updates that are coming. An update is
//! read into memory of its own, which is set aside once its length was found right, and is not copied from then on.

mod check;
mod send;
mod spool;
mod sum;
mod take;

#[cfg(test)]
pub(crate) mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::try_join_all;
use mesh_consensus::id::{Hash, JobId, NodeId};
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

pub use self::send::{AskError, ask, send_update};

use self::check::{Asker, Now, may_ask, may_have_kept};
use self::spool::{Spool, Wish};
use self::sum::{Base, Needs, Sum, SumError};
use super::Training;
use super::pieces::Pieces;
use super::service::lock;
use super::wire::{Answer, Ask};
use crate::data::chain;
use crate::handle::look_at;
use crate::job::training::Real;
use crate::state::course::{MAX_SHARDS, Model, Piece};
use crate::state::jobs::note;

/// Shards of updates that may be coming at a time, of one job.
const IN_FLIGHT: usize = 8;
/// How long the coordinator waits for news, at most.
const LONG_POLL: Duration = Duration::from_secs(1);
/// Pieces that are fetched at a time for one who has them kept.
const KEPT_AT_A_TIME: usize = 4;
/// The most pieces that one may have kept: a model's weights, what the optimiser keeps for them, and the layout.
const MAX_KEPT: usize = 2 * MAX_SHARDS + 1;

/// The shards that this node sums.
#[derive(Default)]
pub(super) struct Shards {
    all: Mutex<BTreeMap<(JobId, u32), Arc<Shard>>>,
    /// Places of updates that are coming, by job.
    coming: Mutex<BTreeMap<JobId, Arc<Semaphore>>>,
}

/// One of them.
#[derive(Default)]
struct Shard {
    spool: Mutex<Spool>,
    /// Something was spooled.
    arrived: Notify,
    /// The values on which the next sum is made, if they are in memory. Whoever makes a sum, or reads them, holds it.
    base: tokio::sync::Mutex<Option<Base>>,
    /// For which values somebody has begun to read them.
    wanted: Mutex<Vec<Hash>>,
}

impl Shards {
    fn shard(&self, job: JobId, number: u32) -> Arc<Shard> {
        lock(&self.all).entry((job, number)).or_default().clone()
    }

    /// The places of updates that come.
    fn places(&self, job: JobId) -> Arc<Semaphore> {
        let new = || Arc::new(Semaphore::new(IN_FLIGHT));
        lock(&self.coming).entry(job).or_insert_with(new).clone()
    }
}

impl Training {
    /// Lets go of what belongs to jobs that are over, of shards that others sum by now, and of pieces that are in no model any more.
    pub fn tidy(&self, live: &BTreeSet<JobId>) {
        lock(&self.shards.all).retain(|(job, _), _| live.contains(job));
        lock(&self.shards.coming).retain(|job, _| live.contains(job));
        let (training, me, live) = (self.clone(), self.whoami.node, live.clone());
        tokio::spawn(async move {
            let look = look_at(&training.orders, move |see| {
                let courses = live.iter().filter_map(|job| {
                    let course = see.replica.machine().course(*job)?;
                    let open = course.open.as_ref().map(|open| {
                        let all = (0..).zip(&open.aggregators);
                        all.filter(|(_, node)| **node == me).map(|(n, _)| n).collect()
                    });
                    Some((*job, (open, course.model.as_ref().map(hashes))))
                });
                courses.collect::<BTreeMap<JobId, (Option<BTreeSet<u32>>, Option<_>)>>()
            });
            let Ok(courses) = look.await else { return };
            lock(&training.shards.all).retain(|(job, shard), _| {
                let open = courses.get(job).and_then(|(open, _)| open.as_ref());
                open.is_none_or(|mine| mine.contains(shard))
            });
            let pieces = training.pieces.clone();
            let drop_old = move || {
                for (job, (_, standing)) in courses {
                    if let Some(standing) = standing {
                        pieces.retain(job, &standing);
                    }
                }
            };
            let _ = spawn_blocking(drop_old).await;
        });
    }

    /// What this node says to one who coordinates.
    pub(crate) async fn answer(&self, from: NodeId, ask: Ask) -> Answer {
        match ask {
            Ask::Arrived { job, epoch, round, shard, seen } => {
                let asker = Asker { node: from, epoch, round, shard };
                self.on_arrived(job, asker, seen).await
            }
            Ask::Sum { job, epoch, round, shard, parts, divisor, noise } => {
                let asker = Asker { node: from, epoch, round, shard };
                self.on_sum(job, asker, Wish { parts, divisor, noise }).await
            }
            Ask::Keep { job, pieces, from: holders } => {
                self.on_keep(job, from, &pieces, &holders).await
            }
            Ask::Server(ask) => {
                let answer = self.answer_server(from, *ask).await;
                Answer::Server(Box::new(answer))
            }
        }
    }

    /// What the state says of a shard, if the asker may ask about it.
    async fn asked(&self, job: JobId, asker: Asker) -> Result<Now, Answer> {
        let me = self.whoami.node;
        let look = self.settle(move |state| {
            let (job, course) = (state.job(job)?, state.course(job)?);
            may_ask(job, course, asker, me)
        });
        match look.await {
            Some(Ok(now)) => Ok(now),
            Some(Err(why)) => Err(Answer::No(why)),
            None => Err(no("this node does not know of that, or not yet")),
        }
    }

    async fn on_arrived(&self, job: JobId, asker: Asker, seen: u32) -> Answer {
        let now = match self.asked(job, asker).await {
            Ok(now) => now,
            Err(answer) => return answer,
        };
        let shard = self.shards.shard(job, now.shard);
        lock(&shard.spool).catch_up(&now);
        self.begin_to_read(job, &shard, now);
        let deadline = Instant::now() + LONG_POLL;
        loop {
            let mut more = pin!(shard.arrived.notified());
            // From here on nothing is missed.
            more.as_mut().enable();
            let arrivals = lock(&shard.spool).arrivals();
            if arrivals.len() > seen as usize || timeout_at(deadline, more).await.is_err() {
                return Answer::Arrived(arrivals);
            }
        }
    }

    /// Reads the values that the next sum will need while updates are still coming.
    fn begin_to_read(&self, job: JobId, shard: &Arc<Shard>, now: Now) {
        let Some(needs) = now.model.as_ref().map(|model| Needs::of(&now, model)) else { return };
        let hashes: Vec<Hash> = needs.weights.iter().map(|(_, piece)| piece.hash).collect();
        {
            let mut wanted = lock(&shard.wanted);
            if *wanted == hashes {
                return;
            }
            *wanted = hashes;
        }
        let (training, shard) = (self.clone(), shard.clone());
        tokio::spawn(async move {
            let mut base = shard.base.lock().await;
            if base.as_ref().is_some_and(|base| base.tag == needs.tag) {
                return;
            }
            *base = None;
            match training.read(job, &now, needs).await {
                Ok(read) => *base = Some(read),
                // Tried again when the sum is made, and then it is said.
                Err(why) => tracing::debug!(job = %job.short(), %why, "a shard could not be read"),
            }
        });
    }

    /// Reads a shard of the model that stands, from here or from those who hold it.
    async fn read(&self, job: JobId, now: &Now, needs: Needs) -> Result<Base, String> {
        let holders = now.model.iter().flat_map(|model| &model.holders);
        let holders: Vec<NodeId> = holders.copied().collect();
        let weights = self.fetch_all(job, &needs.weights, &holders).await?;
        let optimiser = self.fetch_all(job, &needs.optimiser, &holders).await?;
        let strategy = now.strategy.clone();
        blocking(move || needs.load(&strategy, weights, optimiser)).await
    }

    async fn fetch_all(
        &self,
        job: JobId,
        pieces: &[(Range<usize>, Piece)],
        holders: &[NodeId],
    ) -> Result<Vec<Arc<Vec<u8>>>, String> {
        let mut all = Vec::with_capacity(pieces.len());
        for (_, piece) in pieces {
            let bytes = self.fetch(job, *piece, holders).await;
            all.push(bytes.map_err(|error| chain(&error))?);
        }
        Ok(all)
    }

    async fn on_sum(&self, job: JobId, asker: Asker, wish: Wish) -> Answer {
        let now = match self.asked(job, asker).await {
            Ok(now) => now,
            Err(answer) => return answer,
        };
        let shard = self.shards.shard(job, now.shard);
        let training = self.clone();
        // Finished also if the one who asked is gone: it, or the next one, asks again.
        let made = tokio::spawn(async move { training.make(job, &shard, now, wish).await });
        match made.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => {
                tracing::warn!(job = %job.short(), round = asker.round, shard = asker.shard, %why, "no sum was made");
                no(&why)
            }
            Err(_) => no("the sum was not finished"),
        }
    }

    /// Makes a sum, unless it was made already.
    async fn make(
        &self,
        job: JobId,
        shard: &Shard,
        now: Now,
        wish: Wish,
    ) -> Result<Answer, String> {
        let mut held = shard.base.lock().await;
        let parts = {
            let mut spool = lock(&shard.spool);
            if !spool.catch_up(&now) {
                return Err("that round is over".into());
            }
            if let Some(answer) = spool.made(&wish) {
                return Ok(answer);
            }
            spool.parts(&wish)?
        };
        let first = parts.first().map(|(update, _)| update.head.clone());
        let sum = Sum {
            strategy: now.strategy.clone(),
            wire: now.wire,
            parts: parts.into_iter().map(|(update, weight)| (update.bytes, weight)).collect(),
            divisor: wish.divisor.get(),
            noise: wish.noise.map(Real::get),
        };
        if now.model.is_none() && sum.parts.len() != 1 {
            return Err("the first model is one update".into());
        }
        if sum.divisor <= 0.0 || sum.noise.is_some_and(|noise| noise < 0.0) {
            return Err("such a sum cannot be made".into());
        }
        let pieces = self.pieces.clone();
        let (base, answer) = match &now.model {
            Some(model) => {
                let needs = Needs::of(&now, model);
                let base = match held.take() {
                    Some(base) if base.tag == needs.tag => base,
                    _ => self.read(job, &now, needs).await?,
                };
                blocking(move || step(&sum, base, &pieces, job)).await?
            }
            None => {
                let head = first.ok_or("there is nothing to sum")?;
                let range = sum::range(&now, head.values);
                blocking(move || begin(&sum, range, head.layout, &pieces, job)).await?
            }
        };
        *held = Some(base);
        lock(&shard.spool).on_made(now.round, wish, answer.clone());
        Ok(answer)
    }

    async fn on_keep(
        &self,
        job: JobId,
        from: NodeId,
        pieces: &[Piece],
        holders: &[NodeId],
    ) -> Answer {
        if pieces.len() > MAX_KEPT || holders.len() > MAX_KEPT {
            return no("these are more pieces than a model has");
        }
        let look = self.settle(move |state| may_have_kept(state.course(job)?, from));
        if look.await.is_none() {
            return no("another node coordinates");
        }
        let numbered: Vec<(usize, Piece)> = pieces.iter().copied().enumerate().collect();
        for some in numbered.chunks(KEPT_AT_A_TIME) {
            let fetching: Vec<_> = some
                .iter()
                .map(|(number, piece)| {
                    self.hold_one(job, *piece, holders.get(*number).copied(), holders)
                })
                .collect();
            if let Err(why) = try_join_all(fetching).await {
                return no(&why);
            }
        }
        Answer::Kept
    }

    /// Has one piece here: from the node that is named for it, or else from any of them.
    async fn hold_one(
        &self,
        job: JobId,
        piece: Piece,
        named: Option<NodeId>,
        all: &[NodeId],
    ) -> Result<(), String> {
        if let Some(named) = named
            && self.hold(job, piece, &[named]).await.is_ok()
        {
            return Ok(());
        }
        self.hold(job, piece, all).await.map_err(|error| chain(&error))
    }
}

/// One shard, a step further.
fn step(
    sum: &Sum,
    mut base: Base,
    pieces: &Pieces,
    job: JobId,
) -> Result<(Base, Answer), SumError> {
    sum.onto(&mut base)?;
    let (weights, optimiser) = sum::keep(&mut base, pieces, job, true)?;
    Ok((base, Answer::Summed { weights, optimiser, layout: None }))
}

/// One shard of the first model.
fn begin(
    sum: &Sum,
    range: Range<usize>,
    layout: Option<Vec<u8>>,
    pieces: &Pieces,
    job: JobId,
) -> Result<(Base, Answer), SumError> {
    let mut base = sum.first(range)?;
    let (weights, optimiser) = sum::keep(&mut base, pieces, job, false)?;
    let layout = layout.map(|layout| pieces.put(job, layout)).transpose()?;
    Ok((base, Answer::Summed { weights, optimiser, layout }))
}

fn no(why: &str) -> Answer {
    Answer::No(note(why))
}

/// All pieces of a model.
fn hashes(model: &Model) -> BTreeSet<Hash> {
    let pieces = model.weights.iter().chain(&model.optimiser).chain([&model.layout]);
    pieces.map(|piece| piece.hash).collect()
}

/// Runs what blocks on a thread that may. An error is put in words.
async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    E: std::error::Error + Send + 'static,
{
    match spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| chain(&error)),
        Err(_) => Err("the node is stopping".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_updates_come_at_a_time_and_no_more() {
        let shards = Shards::default();
        let (one, other) = (JobId([1; 16]), JobId([2; 16]));
        let enter = |job| shards.places(job).try_acquire_owned().ok();
        let mut coming: Vec<_> = (0..IN_FLIGHT).filter_map(|_| enter(one)).collect();
        assert_eq!(coming.len(), IN_FLIGHT);
        assert!(enter(one).is_none());
        assert!(enter(other).is_some(), "another job has places of its own");
        coming.pop();
        assert!(enter(one).is_some());
    }
}
