//! The node's side of one worker: which step is next, values to it, gradients from it.
//!
//! ```text
//!   next    where do I stand with each shard? ─► the first step after all of them ─► may it begin? ─► its number
//!           batches that are handed out: asked of the first shard
//!   pull    the values, from the primaries, into a file
//!   push    a file, cut by shards, to the primaries; sent again until each of them has it
//! ```
//!
//! A worker has no state of its own: what it has pushed stands with the shards. After a restart of the worker or of its node the next step
//! is the first one that no shard has heard of. Whatever is sent is sent to whoever the state names; if that has changed, to the next one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::try_join_all;
use mesh_consensus::id::NodeId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::client;
use super::intake::pull_wire;
use super::keys::{self, Wanted};
use super::shard::{Outcome, Part, Standing};
use super::wire::{PullHead, PushHead, Pushed, ServerAnswer, ServerAsk, Where, Who};
use crate::data::chain;
use crate::handle::Handle;
use crate::job::training::{Mode, Real, Server};
use crate::state::State;
use crate::state::course::{MAX_METRICS, Model, Times};
use crate::state::jobs::Phase;
use crate::state::name::Name;
use crate::state::server::Laid;
use crate::training::participant::{Over, UpdateError};
use crate::training::service::lock;
use crate::training::tensors::{self, Layout};
use crate::training::{pieces, shards};
use crate::work::Key;

/// How long a worker that asks what to do waits for an answer.
const POLL: Duration = Duration::from_secs(20);
/// How often the state is looked at, when nothing changes.
const LOOK: Duration = Duration::from_secs(10);
/// How soon what could not be done is tried again.
const AGAIN: Duration = Duration::from_millis(50);
/// For so long a push or a pull is tried. Then the worker asks again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often shards hear that the worker is there, while it computes.
const BEAT: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct ServerWorker {
    handle: Handle,
    key: Key,
    asked: Server,
    /// Where the worker finds values, and leaves gradients. It may do there what it likes.
    tensors: PathBuf,
    /// Where only this node writes, on the same file system.
    stage: PathBuf,
    seen: watch::Sender<Seen>,
    done: Mutex<Done>,
    /// Held while gradients are sent: one push at a time.
    pushing: tokio::sync::Mutex<()>,
    /// Numbers the files that are pulled.
    files: AtomicU64,
}

/// What the state says.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    over: Option<Over>,
    model: Option<Arc<Model>>,
    laid: Option<Arc<Laid>>,
    coordinator: Option<NodeId>,
    /// Whether this worker is the one that makes the first model.
    is_first: bool,
}

/// What was done so far.
#[derive(Default)]
struct Done {
    /// Under which layout it takes part, and the step that is next.
    at: Option<(u64, u32)>,
    layout: Option<Arc<Layout>>,
    /// What was measured, and goes with the next push.
    evaluated: BTreeMap<Name, Real>,
    /// When the last step was handed out, and how long its values took.
    begun: Option<(Instant, Duration)>,
    /// The last file that was pulled: it goes with the next.
    pulled: Option<PathBuf>,
}

/// What the worker is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Make the first model.
    First,
    /// Make this step.
    Step(u32),
    /// Ask again.
    Wait,
    /// All is over.
    Done,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The worker's file, or what it asked for.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// It asks for something that is not there.
    #[error("{0}")]
    Wrong(String),
    /// No shard answers right now.
    #[error("not all shards answer: {0}")]
    Later(String),
}

/// What is pushed.
#[derive(Debug)]
pub(crate) struct Push {
    /// Which step.
    pub(crate) step: u32,
    /// The name of a file in the directory for tensors: checked, and bare.
    pub(crate) file: String,
    /// Of some tensors the file has some values only.
    pub(crate) wanted: Wanted,
    /// What was measured.
    pub(crate) metrics: BTreeMap<Name, Real>,
}

/// Why a shard did not take something.
enum Missed {
    /// Its step was done without it, or the shards went back.
    Late(String),
    /// It cannot be taken.
    Wrong(String),
    Later(String),
}

impl ServerWorker {
    /// A worker that has seen nothing yet.
    pub(crate) fn new(
        handle: Handle,
        key: Key,
        asked: Server,
        tensors: PathBuf,
        stage: PathBuf,
    ) -> Self {
        Self {
            handle,
            key,
            asked,
            tensors,
            stage,
            seen: watch::Sender::new(Seen::default()),
            done: Mutex::default(),
            pushing: tokio::sync::Mutex::default(),
            files: AtomicU64::new(0),
        }
    }

    /// Runs for as long as the attempt does.
    pub(crate) async fn run(&self) {
        tokio::join!(self.follow(), self.beat());
    }

    /// Returns once there is nothing more to train.
    pub(crate) async fn over(&self) -> Over {
        let mut seen = self.seen.subscribe();
        // The sender lives as long as this does.
        let _ = seen.wait_for(|seen| seen.over.is_some()).await;
        self.seen().over.unwrap_or(Over::Stopping)
    }

    /// What was measured of the model; it goes with the next push.
    pub(crate) fn evaluated(&self, metrics: BTreeMap<Name, Real>) {
        lock(&self.done).evaluated.extend(metrics);
    }

    /// What the worker should do: at once if there is something, or after a while.
    pub(crate) async fn next(&self) -> Next {
        let deadline = Instant::now() + POLL;
        let mut changed = self.seen.subscribe();
        loop {
            let seen = changed.borrow_and_update().clone();
            if seen.over.is_some() {
                return Next::Done;
            }
            let found = match (&seen.model, &seen.laid) {
                (None, _) if seen.is_first => return Next::First,
                (Some(_), Some(laid)) => self.step(laid).await,
                _ => Ok(None),
            };
            match found {
                Ok(Some(step)) => {
                    lock(&self.done).begun = Some((Instant::now(), Duration::ZERO));
                    return Next::Step(step);
                }
                Ok(None) => {}
                Err(why) => {
                    tracing::debug!(key = %self.key, why, "a step waits for its shards");
                    let _ = timeout(AGAIN, changed.changed()).await;
                }
            }
            if Instant::now() >= deadline {
                return Next::Wait;
            }
            if !matches!((&seen.model, &seen.laid), (Some(_), Some(_))) || self.is_through() {
                match timeout_at(deadline, changed.changed()).await {
                    Ok(Ok(())) => {}
                    _ => return Next::Wait,
                }
            }
        }
    }

    /// Whether this worker has made all of its steps.
    fn is_through(&self) -> bool {
        let at = lock(&self.done).at;
        !self.asked.dynamic && at.is_some_and(|(_, step)| step > self.asked.steps)
    }

    /// The next step, if it may begin.
    async fn step(&self, laid: &Laid) -> Result<Option<u32>, String> {
        if self.asked.dynamic {
            return self.batch(laid).await;
        }
        let known = lock(&self.done).at.filter(|(of, _)| *of == laid.at);
        let step = match known {
            Some((_, step)) => step,
            None => self.enter(laid).await?,
        };
        if step > self.asked.steps {
            return Ok(None);
        }
        if self.asked.mode != Mode::Async {
            let who = self.who();
            let asks = self.each(laid, |at| ServerAsk::Begin { at, who, step });
            for answer in try_join_all(asks).await? {
                match answer {
                    ServerAnswer::May(true) => {}
                    ServerAnswer::May(false) => return Ok(None),
                    other => return Err(format!("{other:?}")),
                }
            }
        }
        Ok(Some(step))
    }

    /// The next batch.
    async fn batch(&self, laid: &Laid) -> Result<Option<u32>, String> {
        let first = laid.shards.first().ok_or("there are no shards")?;
        let (who, at) = (self.who(), self.at(0, first.epoch));
        let is_new = lock(&self.done).at.is_none_or(|(of, _)| of != laid.at);
        if is_new {
            let enter = ServerAsk::Stand { at, who, enter: Some(1) };
            match client::ask(&self.handle, first.primary, enter).await? {
                ServerAnswer::Standing(_) => lock(&self.done).at = Some((laid.at, 1)),
                other => return Err(format!("{other:?}")),
            }
        }
        match client::ask(&self.handle, first.primary, ServerAsk::Batch { at, who }).await? {
            ServerAnswer::Batch(batch) => Ok(batch),
            other => Err(format!("{other:?}")),
        }
    }

    /// Takes part from the first step on that no shard has heard of, and all agree to wait for.
    async fn enter(&self, laid: &Laid) -> Result<u32, String> {
        let who = self.who();
        let mut start = None;
        loop {
            let asks = self.each(laid, |at| ServerAsk::Stand { at, who, enter: start });
            let mut least = 1;
            for answer in try_join_all(asks).await? {
                let ServerAnswer::Standing(Standing { clock, floor, .. }) = answer else {
                    return Err(format!("{answer:?}"));
                };
                least = least.max(clock.max(floor).saturating_add(1));
            }
            match start {
                Some(start) if start >= least => {
                    lock(&self.done).at = Some((laid.at, start));
                    return Ok(start);
                }
                _ => start = Some(least),
            }
        }
    }

    /// Keeps a first model here, and tells the coordinator.
    pub(crate) async fn first(&self, file: String) -> Result<(), ServerError> {
        let dir = self.tensors.clone();
        let read = blocking(move || keys::read_whole(&dir, &file)).await?;
        let (layout, values) = read;
        let count = keys::shards_for(values.len() as u64, self.asked.shards);
        let (pieces, job) = (self.handle.training.pieces.clone(), self.key.job);
        let put = tokio::task::spawn_blocking(move || {
            let layout = pieces.put(job, layout.header())?;
            let cut = (0..count).map(|shard| {
                let range = shards::range(values.len() as u64, count, shard);
                pieces.put(job, tensors::bytes_of(values.get(range).unwrap_or_default()))
            });
            Ok::<_, std::io::Error>((layout, cut.collect::<Result<Vec<_>, _>>()?))
        });
        let put = put.await.map_err(|_| UpdateError::Stopping)?;
        let (layout, weights) = put.map_err(|error| ServerError::Later(error.to_string()))?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let seen = self.seen();
            if seen.model.is_some() || seen.over.is_some() {
                return Ok(());
            }
            if let Some(coordinator) = seen.coordinator {
                let (who, weights) = (self.who(), weights.clone());
                let ask = ServerAsk::First { job, who, layout, weights };
                match client::ask(&self.handle, coordinator, ask).await {
                    Ok(ServerAnswer::Heard) => {}
                    Ok(ServerAnswer::No(why)) => return Err(ServerError::Wrong(why.to_string())),
                    _ => {}
                }
            }
            let mut changed = self.seen.subscribe();
            let stands = changed.wait_for(|seen| seen.model.is_some() || seen.over.is_some());
            let _ = timeout(10 * AGAIN, stands).await.map(drop);
        }
        Err(ServerError::Later("the first model is not kept yet".into()))
    }

    /// Values into a file: its name, and the step that they are of.
    pub(crate) async fn pull(&self, wanted: Wanted) -> Result<(String, u32), ServerError> {
        let begun = Instant::now();
        let layout = self.layout().await?;
        let spans = wanted.spans(&layout).map_err(ServerError::Wrong)?;
        let total = layout.values();
        let deadline = begun + PATIENCE;
        let (clock, values) = loop {
            let seen = self.seen();
            let laid = seen.laid.clone().ok_or_else(|| later("there are no shards yet"))?;
            match self.pull_once(&laid, total, &spans).await {
                Ok(pulled) => break pulled,
                Err(why) if Instant::now() > deadline || seen.over.is_some() => {
                    return Err(ServerError::Later(why));
                }
                Err(_) => self.breathe().await,
            }
        };
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let name = format!("pull-{number}.safetensors");
        let (beside, path) = (self.stage.join(&name), self.tensors.join(&name));
        let shape = wanted.layout(&layout);
        let old = lock(&self.done).pulled.replace(path.clone());
        let placed = tokio::task::spawn_blocking(move || {
            if let Some(old) = old {
                // It is removed, so that whoever still has it mapped keeps what is there.
                let _ = std::fs::remove_file(old);
            }
            keys::place(&beside, &path, &shape, &values)
        });
        let placed = placed.await.map_err(|_| UpdateError::Stopping)?;
        placed.map_err(|error| ServerError::Later(error.to_string()))?;
        if let Some((_, fetch)) = &mut lock(&self.done).begun {
            *fetch += begun.elapsed();
        }
        Ok((name, clock))
    }

    /// Asks each shard for its part of some stretches of values.
    async fn pull_once(
        &self,
        laid: &Laid,
        total: u64,
        spans: &[Part],
    ) -> Result<(u32, Vec<f32>), String> {
        let wire = pull_wire(self.asked.wire);
        let cuts = keys::cut(total, laid.shards.len(), spans);
        let asks = (0..).zip(&laid.shards).zip(&cuts).map(|((number, shard), parts)| {
            let head = PullHead {
                at: self.at(number, shard.epoch),
                who: self.who(),
                parts: parts.iter().map(|cut| cut.part).collect(),
            };
            let length = keys::packed_length(&head.parts, wire);
            async move {
                if head.parts.is_empty() {
                    return Ok::<_, String>(None);
                }
                let pulled = client::pull(&self.handle, shard.primary, head, length).await?;
                pulled.ok_or_else(|| "a shard is elsewhere by now".to_owned()).map(Some)
            }
        });
        let pulled = try_join_all(asks).await?;
        let count = spans.iter().map(|span| span.count as usize).sum();
        let work = move || {
            let mut values = vec![0.0f32; count];
            let mut clock = u32::MAX;
            for (pulled, parts) in pulled.iter().zip(&cuts) {
                let Some((at, bytes)) = pulled else { continue };
                clock = clock.min(*at);
                keys::unpack(parts, bytes, wire, &mut values)?;
            }
            Some((if clock == u32::MAX { 0 } else { clock }, values))
        };
        let work = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?;
        work.ok_or_else(|| "a shard gave other values".into())
    }

    /// Gradients to all shards. `Err(why)` inside says that they were not taken.
    pub(crate) async fn push(&self, push: Push) -> Result<Result<(), String>, ServerError> {
        let _alone = self.pushing.lock().await;
        let Push { step, file, wanted, mut metrics } = push;
        let layout = self.layout().await?;
        let dir = self.tensors.clone();
        let of = layout.clone();
        let (spans, values) = blocking(move || keys::read_some(&dir, &file, &of, &wanted)).await?;
        let (times, evaluated) = {
            let mut done = lock(&self.done);
            let (begun, fetch) = done.begun.unwrap_or((Instant::now(), Duration::ZERO));
            let times = Times {
                fetch_ms: millis(fetch),
                compute_ms: millis(begun.elapsed().saturating_sub(fetch)),
                upload_ms: 0,
            };
            (times, std::mem::take(&mut done.evaluated))
        };
        metrics.extend(evaluated);
        while metrics.len() > MAX_METRICS {
            metrics.pop_last();
        }
        let total = layout.values();
        let seen = self.seen();
        let laid = seen.laid.clone().ok_or_else(|| later("there are no shards yet"))?;
        if self.is_of_before(&laid, step).await.map_err(ServerError::Later)? {
            lock(&self.done).at = None;
            return Ok(Err(format!("the shards went back to step {}", laid.step)));
        }
        let (count, wire) = (laid.shards.len(), self.asked.wire);
        let packed = tokio::task::spawn_blocking(move || {
            let cuts = keys::cut(total, count, &spans);
            cuts.into_iter().map(|parts| keys::packed(&parts, &values, wire)).collect::<Vec<_>>()
        });
        let packed = packed.await.map_err(|_| UpdateError::Stopping)?;
        let began = Instant::now();
        let sends = (0..).zip(packed).map(|(shard, (parts, bytes))| {
            let head = PushHead {
                at: self.at(shard, 0),
                who: self.who(),
                step,
                parts,
                bytes: bytes.len() as u64,
                metrics: if shard == 0 { metrics.clone() } else { BTreeMap::new() },
                times: Times { upload_ms: millis(began.elapsed()), ..times },
            };
            self.deliver(laid.at, head, bytes.into())
        });
        let sent = try_join_all(sends).await;
        let mut done = lock(&self.done);
        match sent {
            Ok(_) => {
                if let Some((of, next)) = &mut done.at
                    && *of == laid.at
                    && !self.asked.dynamic
                {
                    *next = (*next).max(step.saturating_add(1));
                }
                Ok(Ok(()))
            }
            Err(Missed::Late(why)) => {
                done.at = None;
                Ok(Err(why))
            }
            Err(Missed::Wrong(why)) => Err(ServerError::Wrong(why)),
            Err(Missed::Later(why)) => Err(ServerError::Later(why)),
        }
    }

    /// Whether a step was begun before the shards went back to a checkpoint: they would wait for ever for what comes before it. A node
    /// that was started again since does not know under which layout its worker began, and asks how far the shards have come.
    async fn is_of_before(&self, laid: &Laid, step: u32) -> Result<bool, String> {
        let begun = lock(&self.done).at.map(|(of, _)| of);
        if let Some(of) = begun {
            return Ok(of != laid.at);
        }
        if self.asked.dynamic {
            // Batches have no order.
            return Ok(false);
        }
        let who = self.who();
        let asks = self.each(laid, |at| ServerAsk::Stand { at, who, enter: None });
        let mut next = 1;
        for answer in try_join_all(asks).await? {
            let ServerAnswer::Standing(Standing { clock, floor, .. }) = answer else {
                return Err(format!("{answer:?}"));
            };
            next = next.max(clock.max(floor).saturating_add(1));
        }
        Ok(step > next)
    }

    /// Sends gradients to one shard, again and again, until it has them.
    async fn deliver(
        &self,
        generation: u64,
        mut head: PushHead,
        bytes: bytes::Bytes,
    ) -> Result<(), Missed> {
        let deadline = Instant::now() + PATIENCE;
        let number = head.at.shard;
        loop {
            let seen = self.seen();
            if seen.over.is_some() {
                return Err(Missed::Late("training is over".into()));
            }
            let laid = seen.laid.as_ref().filter(|laid| laid.at == generation);
            let Some(laid) = laid else {
                let step = seen.laid.map_or(0, |laid| laid.step);
                return Err(Missed::Late(format!("the shards went back to step {step}")));
            };
            let Some(shard) = laid.shards.get(number as usize) else {
                return Err(Missed::Wrong("there is no such shard".into()));
            };
            head.at.epoch = shard.epoch;
            let pushed =
                client::push(&self.handle, shard.primary, head.clone(), bytes.clone()).await;
            let why = match pushed {
                Ok(Pushed::Is(Outcome::Done | Outcome::Again)) => return Ok(()),
                Ok(Pushed::Is(Outcome::Late)) => {
                    let why = format!("step {} was done without it", head.step);
                    return Err(Missed::Late(why));
                }
                Ok(Pushed::Is(Outcome::Superseded)) => {
                    return Err(Missed::Wrong("another attempt has this task".into()));
                }
                Ok(Pushed::Is(Outcome::Bad)) => {
                    let why = "a value is no finite number, or there is no such step or value";
                    return Err(Missed::Wrong(why.into()));
                }
                Ok(Pushed::Is(Outcome::Wait)) => "others have not come so far".to_owned(),
                Ok(Pushed::Elsewhere) => "a shard is elsewhere by now".to_owned(),
                Err(why) => why,
            };
            if Instant::now() > deadline {
                return Err(Missed::Later(why));
            }
            self.breathe().await;
        }
    }

    /// Names and shapes of the model.
    async fn layout(&self) -> Result<Arc<Layout>, ServerError> {
        if let Some(layout) = lock(&self.done).layout.clone() {
            return Ok(layout);
        }
        let model = self.seen().model.ok_or_else(|| later("there is no model yet"))?;
        let holders: Vec<NodeId> = model.holders.iter().copied().collect();
        let fetched = pieces::fetch(&self.handle, self.key.job, model.layout, &holders).await;
        let bytes = fetched.map_err(|error| ServerError::Later(chain(&error)))?;
        let layout = Layout::parse(&bytes).map_err(|error| ServerError::Later(chain(&error)))?;
        let layout = Arc::new(layout);
        lock(&self.done).layout = Some(layout.clone());
        Ok(layout)
    }

    fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    fn who(&self) -> Who {
        Who { worker: self.key.task, fence: self.key.fence }
    }

    fn at(&self, shard: u32, epoch: u64) -> Where {
        Where { job: self.key.job, shard, epoch }
    }

    /// A question to each shard.
    fn each<'a>(
        &'a self,
        laid: &'a Laid,
        ask: impl Fn(Where) -> ServerAsk + 'a,
    ) -> impl Iterator<Item = impl Future<Output = Result<ServerAnswer, String>> + 'a> + 'a {
        (0..).zip(&laid.shards).map(move |(number, shard)| {
            client::ask(&self.handle, shard.primary, ask(self.at(number, shard.epoch)))
        })
    }

    /// A moment, or less if the state changes.
    async fn breathe(&self) {
        let mut changed = self.seen.subscribe();
        let _ = timeout(AGAIN, changed.changed()).await;
    }

    /// Lets the shards know that the worker is there, however long it computes.
    async fn beat(&self) {
        loop {
            sleep(BEAT).await;
            let (seen, at) = (self.seen(), lock(&self.done).at);
            let Some(laid) = seen.laid.filter(|laid| at.is_some_and(|(of, _)| of == laid.at))
            else {
                continue;
            };
            let who = self.who();
            let asks = self.each(&laid, |at| ServerAsk::Stand { at, who, enter: None });
            let _ = timeout(BEAT, futures::future::join_all(asks)).await;
        }
    }

    /// Follows the state.
    async fn follow(&self) {
        let mut changed = self.handle.shown.jobs.clone();
        loop {
            changed.borrow_and_update();
            let Key { job, task, .. } = self.key;
            let look = self.handle.look(move |see| Seen::of(see.replica.machine(), job, task));
            if let Ok(now) = look.await {
                self.seen.send_if_modified(|seen| {
                    let is_news = *seen != now;
                    if is_news {
                        *seen = now;
                    }
                    is_news
                });
            }
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
}

impl Seen {
    /// As the state has it.
    fn of(state: &State, job: mesh_consensus::id::JobId, task: u32) -> Self {
        let found = state.job(job).filter(|job| job.over.is_none());
        let Some((found, course)) = found.zip(state.course(job)) else {
            return Self { over: Some(Over::Stopping), ..Self::default() };
        };
        let over = match (&course.verdict, &found.stopping) {
            (Some(_), _) => Some(Over::Trained),
            (None, Some(_)) => Some(Over::Stopping),
            (None, None) => None,
        };
        let runs = |task: &crate::state::jobs::Task| {
            task.given().is_some_and(|given| given.phase == Phase::Running)
        };
        let first = found.tasks.iter().position(runs);
        let has_start = matches!(
            &found.spec.training,
            Some(crate::job::training::Training::Server(asked)) if asked.start.is_some()
        );
        Self {
            over,
            model: course.model.clone().map(Arc::new),
            laid: state.laid(job).cloned().map(Arc::new),
            coordinator: course.lease.map(|lease| lease.node),
            is_first: !has_start && first == Some(task as usize),
        }
    }
}

fn later(why: &str) -> ServerError {
    ServerError::Later(why.to_owned())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(UpdateError::Stopping.into()))
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
