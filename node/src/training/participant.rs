//! The node's side of one participant: gets the model, hands it to the worker, sends the update shard by shard, and keeps it
//! until it is in a commit.
//!
//! ```text
//!   state ──► follow ──► Seen ─┬─► fetch    the model of the round, into the directory for tensors
//!                              ├─► next     what the worker is told
//!   worker ──► submit ──► kept └─► send     to those who sum, again and again, until it is counted
//! ```
//!
//! All that is decided here is decided in `decide.rs`; what an update is made of is in `update.rs`, and how it is sent in
//! `upload.rs`. A participant lives as long as its attempt is this node's. What it keeps is in memory: after a restart of the
//! node the model is fetched again, and a worker whose update was lost is asked for that round once more.

mod decide;
mod update;
mod upload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use mesh_consensus::id::NodeId;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(crate) use self::decide::{Next, Over};
pub(crate) use self::update::{UpdateError, model_name};

use self::decide::{Judged, Own, Shard, View};
use self::update::{Base, Cut, Update};
use super::tensors::{Layout, TensorError};
use super::{pack, pieces};
use crate::handle::{Handle, ReadError};
use crate::job::training::{Federated, NoiseAt, Privacy, Real};
use crate::state::course::{MAX_MODEL_BYTES, Model, Piece, Times};
use crate::state::name::Name;
use crate::work::Key;

/// How long a worker that asks what to do waits for an answer.
const POLL: Duration = Duration::from_secs(20);
/// How often the state is looked at, when nothing changes.
const LOOK: Duration = Duration::from_secs(10);
/// How soon what could not be done is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// Pieces of a model that are fetched at a time.
const AT_ONCE: usize = 4;
/// Updates that are kept at a time. One more, and the oldest goes: it would be the latest of the late.
const MAX_KEPT: usize = 2;
/// How long an update waits until its round is charged. The coordinator charges it when it opens the round, so this is for a
/// coordinator that died in between.
const CHARGE: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Participant {
    key: Key,
    federated: Federated,
    /// Where the worker finds models, and leaves updates. It may do there what it likes.
    tensors: PathBuf,
    /// Where only this node writes, on the same file system.
    stage: PathBuf,
    seen: watch::Sender<Seen>,
    /// Never held together with `seen`.
    done: Mutex<Done>,
    /// Held while an update is read: one at a time.
    submitting: tokio::sync::Mutex<()>,
    /// There is one more update to be sent.
    more: Notify,
    /// Numbers the files in `stage`: one that was given up may still be written.
    files: AtomicU64,
}

/// What there is to go by.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// What the state says; nothing much until it was looked at.
    view: Arc<View>,
    is_known: bool,
    /// Models that are at hand, by their rounds: the one that the worker trains from, and the newest.
    bases: BTreeMap<u32, Arc<Base>>,
}

/// What was done so far.
#[derive(Debug, Default)]
struct Done {
    /// The last round for which there is an update, or was.
    submitted: Option<u32>,
    /// The round that the worker was told last, and when.
    handed: Option<(u32, Instant)>,
    /// What the worker measured of the model of a round: the round, examples, and what.
    evaluated: Option<(u32, u64, BTreeMap<Name, Real>)>,
    /// The oldest first.
    kept: Vec<Kept>,
    /// For so many updates noise was drawn.
    released: u32,
}

/// An update that is kept.
#[derive(Debug)]
struct Kept {
    update: Arc<Update>,
    cut: Arc<Cut>,
    /// One for each shard of `cut`.
    shards: Vec<Shard>,
}

/// What a worker hands in.
#[derive(Debug)]
pub(crate) struct Submit {
    /// For which round.
    pub(crate) round: u32,
    /// The name of a file in the directory for tensors: checked, and bare.
    pub(crate) file: String,
    /// Examples that it was trained on.
    pub(crate) examples: u64,
    /// What was measured.
    pub(crate) metrics: BTreeMap<Name, Real>,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// It is kept, and sent.
    Taken,
    /// It is not wanted any more, or not yet, and why.
    NotTaken(String),
}

/// Why a model is not at hand.
#[derive(Debug, thiserror::Error)]
enum BringError {
    #[error("a piece of it is not to be had")]
    Fetch(#[from] pieces::FetchError),
    #[error("its header cannot be read")]
    Layout(#[from] TensorError),
    #[error("its pieces do not make up what its header speaks of")]
    Odd,
    #[error("there is no memory for its {0} values")]
    NoMemory(u64),
    #[error("it cannot be written for the worker")]
    Write(#[source] std::io::Error),
    #[error("the node is stopping")]
    Stopping,
}

impl Participant {
    /// A participant that has seen nothing yet.
    pub(crate) fn new(key: Key, federated: Federated, tensors: PathBuf, stage: PathBuf) -> Self {
        Self {
            key,
            federated,
            tensors,
            stage,
            seen: watch::Sender::new(Seen::default()),
            done: Mutex::default(),
            submitting: tokio::sync::Mutex::default(),
            more: Notify::new(),
            files: AtomicU64::new(0),
        }
    }

    /// Runs for as long as the attempt does.
    pub(crate) async fn run(&self, handle: &Handle) {
        tokio::join!(self.follow(handle), self.fetch(handle), self.send(handle));
    }

    /// Returns once there is nothing more to train.
    pub(crate) async fn over(&self) -> Over {
        self.until(|seen| seen.view.over.is_some()).await;
        self.seen.borrow().view.over.unwrap_or(Over::Stopping)
    }

    /// What the worker should do: at once if there is something, or after a while. `after` is the last round that it says to have
    /// submitted.
    pub(crate) async fn next(&self, after: Option<u32>) -> Next {
        let deadline = Instant::now() + POLL;
        let mut seen = self.seen.subscribe();
        loop {
            let own = self.own();
            let told = {
                let seen = seen.borrow_and_update();
                decide::next(&seen.view, &own, after, |base| seen.bases.contains_key(&base))
            };
            match told {
                Next::Wait => match timeout_at(deadline, seen.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return Next::Wait,
                },
                Next::Round { round, base } => {
                    self.done().handed = Some((round, Instant::now()));
                    let (dir, base) = (self.tensors.clone(), base.unwrap_or(0));
                    let tidied =
                        tokio::task::spawn_blocking(move || update::remove_before(&dir, base));
                    // What stays is removed the next time.
                    let _ = tidied.await;
                    return told;
                }
                Next::Done => return told,
            }
        }
    }

    /// What the worker measured of the model that came with a round.
    pub(crate) fn evaluated(&self, round: u32, examples: u64, metrics: BTreeMap<Name, Real>) {
        self.done().evaluated = Some((round, examples, metrics));
    }

    /// Takes an update into keeping. It is not to be dropped half-way: noise that was drawn is charged.
    ///
    /// Where this party adds noise, the round must be charged to its budget before: if it is not yet, that is waited for, up to ten
    /// seconds. An update that is not charged by then is given up. A first model goes out as it is.
    pub(crate) async fn submit(&self, told: Submit) -> Result<Submitted, UpdateError> {
        let arrived = Instant::now();
        let _alone = self.submitting.lock().await;
        // A worker that goes on after a restart of the node may be faster than the first look at the state.
        let _ = timeout(POLL, self.until(|seen| seen.is_known)).await;
        let Submit { round, file, examples, metrics } = told;
        let view = self.view();
        match decide::judge(&view, &self.own(), round) {
            Judged::Fresh => {}
            Judged::Again => return Ok(Submitted::Taken),
            Judged::Late(why) => return Ok(Submitted::NotTaken(why)),
            Judged::Early => {
                return Ok(Submitted::NotTaken(format!("round {round} has not begun")));
            }
        }
        let base = match round.checked_sub(1) {
            None => None,
            Some(before) => match self.base(before).await {
                Some(base) => Some(base),
                None => {
                    let why = format!("the model of round {before} is not at hand any more");
                    return Ok(Submitted::NotTaken(why));
                }
            },
        };
        let dir = self.tensors.clone();
        let like = base.clone();
        let read =
            blocking(move || update::read(&dir, &file, like.as_ref().map(|base| &*base.layout)));
        let (layout, mut values) = read.await?;
        let layout = layout.as_ref().map(update::header).transpose()?;
        let privacy = self.hides().filter(|_| base.is_some()).cloned();
        if privacy.is_some() && !self.release().await {
            // Once more would be as late.
            self.done().submitted = Some(round);
            let why = "the round was not charged to the budget of this party";
            return Ok(Submitted::NotTaken(why.into()));
        }
        let (handed, evaluated) = {
            let mut done = self.done();
            let evaluated = done.evaluated.take_if(|(of, _, _)| *of == round);
            (done.handed.filter(|(of, _)| *of == round), evaluated)
        };
        let times = Times {
            fetch_ms: base.as_ref().map_or(0, |base| base.fetch_ms),
            compute_ms: handed.map_or(0, |(_, at)| millis(arrived.saturating_duration_since(at))),
            upload_ms: 0,
        };
        let (wire, shards) =
            (self.federated.wire, view.open.map_or(1, |open| open.aggregators.len()));
        let packed = blocking(move || {
            let bytes = match (&base, &privacy) {
                (Some(base), Some(privacy)) => {
                    let (clip, noise) = (privacy.clip.get(), privacy.noise.get());
                    update::hide(&mut values, &base.values, clip, noise)?;
                    pack::pack(&values, None, wire)
                }
                (Some(base), None) => pack::pack(&values, Some(base.values.as_slice()), wire),
                (None, _) => pack::pack(&values, None, wire),
            };
            let update = Update {
                round,
                values: values.len() as u64,
                layout,
                bytes: bytes.into(),
                wire,
                examples,
                metrics,
                evaluated: evaluated.map(|(_, examples, metrics)| (examples, metrics)),
                times,
            };
            let cut = update.cut(shards.max(1));
            Ok((Arc::new(update), Arc::new(cut)))
        });
        let (update, cut) = packed.await?;
        self.keep(update, cut);
        Ok(Submitted::Taken)
    }

    fn keep(&self, update: Arc<Update>, cut: Arc<Cut>) {
        let round = update.round;
        {
            let mut done = self.done();
            done.submitted = done.submitted.max(Some(round));
            if done.kept.len() >= MAX_KEPT {
                done.kept.remove(0);
            }
            let shards = vec![Shard::default(); cut.shards.len()];
            done.kept.push(Kept { update, cut, shards });
        }
        // What it is a difference from is needed no more.
        self.seen.send_if_modified(|seen| {
            seen.bases.retain(|base, _| base.checked_add(1) != Some(round));
            false
        });
        self.more.notify_one();
    }

    /// Allows noise to be drawn for one more update, once that is charged.
    async fn release(&self) -> bool {
        let released = self.done().released;
        let charged = self.until(|seen| decide::may_release(&seen.view, released));
        if timeout(CHARGE, charged).await.is_err() {
            return false;
        }
        let counted = self.view().counted;
        self.done().released = released.max(counted).saturating_add(1);
        true
    }

    /// A model, waited for while it is on its way.
    async fn base(&self, round: u32) -> Option<Arc<Base>> {
        let own = self.own();
        let comes = |seen: &Seen| {
            decide::wanted(&seen.view, &own).and_then(|wanted| wanted.checked_sub(1)) == Some(round)
        };
        let settled = self.until(|seen| seen.bases.contains_key(&round) || !comes(seen));
        let _ = timeout(POLL, settled).await;
        self.seen.borrow().bases.get(&round).cloned()
    }

    /// What this party's noise is, if it adds any.
    fn hides(&self) -> Option<&Privacy> {
        self.federated.privacy.as_ref().filter(|privacy| privacy.at == NoiseAt::Party)
    }

    fn own(&self) -> Own {
        let submitted = self.done().submitted;
        Own {
            fence: self.key.fence,
            submitted,
            may_repeat: self.hides().is_none(),
            most_late: decide::most_late(&self.federated),
        }
    }

    fn view(&self) -> View {
        View::clone(&self.seen.borrow().view)
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, is_so: impl FnMut(&Seen) -> bool) {
        let mut seen = self.seen.subscribe();
        // The sender lives as long as this does.
        let _ = seen.wait_for(is_so).await;
    }

    /// Follows the state.
    async fn follow(&self, handle: &Handle) {
        let mut changed = handle.shown.jobs.clone();
        loop {
            changed.borrow_and_update();
            self.look(handle).await;
            tokio::select! {
                changed = changed.changed() => {
                    if changed.is_err() {
                        // The node stops.
                        return;
                    }
                }
                () = sleep(LOOK) => {}
            }
        }
    }

    async fn look(&self, handle: &Handle) {
        let Key { job, task, .. } = self.key;
        let look = handle.look(move |see| View::of(see.replica.machine(), job, task));
        let Ok(view) = look.await else { return };
        self.seen.send_if_modified(|seen| {
            let is_news = !seen.is_known || *seen.view != view;
            if is_news {
                (seen.view, seen.is_known) = (Arc::new(view), true);
            }
            is_news
        });
    }

    /// Sees to it that the model of the round is at hand.
    async fn fetch(&self, handle: &Handle) {
        let mut seen = self.seen.subscribe();
        let mut warned = None;
        loop {
            let own = self.own();
            let missing = missing(&seen.borrow_and_update(), &own);
            let Some((model, from)) = missing else {
                if seen.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let round = model.round;
            let is_other = |seen: &Seen| decide::wanted(&seen.view, &own) != round.checked_add(1);
            let brought = tokio::select! {
                brought = self.bring(handle, &model, &from) => brought,
                () = self.until(is_other) => continue,
            };
            match brought {
                Ok(base) => {
                    let trains = self.done().handed.and_then(|(round, _)| round.checked_sub(1));
                    self.seen.send_modify(|seen| {
                        seen.bases.retain(|held, _| Some(*held) == trains);
                        seen.bases.insert(round, Arc::new(base));
                    });
                }
                Err(error) => {
                    if warned.replace(round) != Some(round) {
                        let (key, error) = (self.key, crate::data::chain(&error));
                        tracing::warn!(%key, round, error, "a model could not be brought yet");
                    }
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Fetches a model, and places it where the worker finds it.
    async fn bring(
        &self,
        handle: &Handle,
        model: &Model,
        from: &[NodeId],
    ) -> Result<Base, BringError> {
        let begun = Instant::now();
        let layout = pieces::fetch(handle, self.key.job, model.layout, from).await?;
        let layout = Arc::new(Layout::parse(&layout)?);
        let bytes = model.weights.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.bytes));
        if bytes > MAX_MODEL_BYTES || layout.values().checked_mul(4) != Some(bytes) {
            return Err(BringError::Odd);
        }
        let no_memory = || BringError::NoMemory(layout.values());
        let count = usize::try_from(layout.values()).map_err(|_| no_memory())?;
        let mut values: Vec<f32> = Vec::new();
        values.try_reserve_exact(count).map_err(|_| no_memory())?;
        let fetches: Vec<_> = model
            .weights
            .iter()
            .enumerate()
            .map(|(number, piece)| {
                let mut from = from.to_vec();
                // Each asks another one first.
                let turn = (self.key.task as usize).wrapping_add(number) % from.len().max(1);
                from.rotate_left(turn);
                self.piece(handle, *piece, from)
            })
            .collect();
        let mut fetches = stream::iter(fetches).buffered(AT_ONCE);
        while let Some(piece) = fetches.next().await {
            let piece = piece?;
            let (words, _) = piece.as_chunks::<4>();
            values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        }
        if values.len() != count {
            return Err(BringError::Odd);
        }
        let values = Arc::new(values);
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let beside = self.stage.join(format!("model-{number}"));
        let (dir, round) = (self.tensors.clone(), model.round);
        let (shape, written) = (layout.clone(), values.clone());
        let placed = tokio::task::spawn_blocking(move || {
            update::place(&beside, &dir, round, &shape, &written)
        });
        placed.await.map_err(|_| BringError::Stopping)?.map_err(BringError::Write)?;
        Ok(Base { layout, values, fetch_ms: millis(begun.elapsed()) })
    }

    async fn piece(
        &self,
        handle: &Handle,
        piece: Piece,
        from: Vec<NodeId>,
    ) -> Result<Arc<Vec<u8>>, pieces::FetchError> {
        pieces::fetch(handle, self.key.job, piece, &from).await
    }
}

/// Whether there is nothing more to train for an attempt, as the state has it by now.
pub(crate) async fn is_over(handle: &Handle, key: Key) -> Option<Over> {
    let Key { job, task, .. } = key;
    loop {
        let look = handle.look(move |see| View::of(see.replica.machine(), job, task).over);
        match look.await {
            Ok(over) => return over,
            Err(ReadError::Busy) => sleep(AGAIN).await,
            Err(_) => return None,
        }
    }
}

/// The model that the worker needs and that is not here, and who may have it.
fn missing(seen: &Seen, own: &Own) -> Option<(Model, Vec<NodeId>)> {
    decide::wanted(&seen.view, own)?;
    let model = seen.view.model.as_ref();
    let model = model.filter(|model| !seen.bases.contains_key(&model.round))?;
    Some((model.clone(), seen.view.holders()))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UpdateError> + Send + 'static,
) -> Result<T, UpdateError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(UpdateError::Stopping))
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
