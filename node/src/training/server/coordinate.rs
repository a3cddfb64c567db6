//! The coordinator of parameter servers: claims the lease of a job, lays out its shards, minds them, keeps checkpoints, ends.
//!
//! ```text
//!   no model ─► the first one, from a version or a worker ─► on two nodes ─► ServerKeep, step 0
//!   no shards ─► ServerLay
//!   then, again and again: ask everybody how far they are ─► plan.rs ─► ServerShard, ServerReady, ServerLay
//!                                                        └─► a checkpoint that all shards have ─► on two nodes ─► ServerKeep
//!   all steps are in the checkpoint ─► a version ─► CourseEnd
//! ```
//!
//! It keeps nothing that it could not do without: workers and shards go on while there is none, and the next one finds all it needs in
//! the state and by asking.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::time::Time;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;

use super::client;
use super::held::First;
use super::keys;
use super::plan::{self, Deed, Known};
use super::wire::{ServerAnswer, ServerAsk, Status, Where};
use crate::data::chain;
use crate::handle::{Ask, Handle, WriteError};
use crate::job::training::{Server, Training as Asked};
use crate::state::State;
use crate::state::command::Act;
use crate::state::course::{CourseEnd, Lease, Model, Piece, Verdict};
use crate::state::jobs::{Job, note};
use crate::state::server::{Laid, ServerKeep, ServerLay, ServerReady, ServerShard};
use crate::training::federated::begin::read_start;
use crate::training::federated::finish::Making;
use crate::training::federated::{claim_or_keep, keep, now};
use crate::training::service::lock;
use crate::training::wire as asks;
use crate::training::{aggregate, shards, tensors};

/// How often a node looks, when nothing changes.
const LOOK: Duration = Duration::from_secs(5);
/// Between two questions to the shards.
const MIND: Duration = Duration::from_millis(300);
/// Between two tries of what was refused.
const AGAIN: Duration = Duration::from_millis(300);
/// After a failure that takes longer to pass.
const LATER: Duration = Duration::from_secs(3);
/// How much longer the next one in the order waits to claim a lease.
const STEP: Duration = Duration::from_millis(700);
/// Whoever has not answered so often in a row is away.
const MISSES: u32 = 2;
/// For so long a primary that is away, and has no heir, may come back.
const GIVE_UP: Duration = Duration::from_secs(8);

/// A job with a parameter server, as the state has it.
#[derive(Debug, Clone)]
struct Seen {
    job: JobId,
    party: PartyId,
    submitted: Time,
    asked: Server,
    code: Option<VersionId>,
    lease: Option<Lease>,
    model: Option<Model>,
    laid: Option<Laid>,
    /// Nodes that may have shards: of the job's party, and not drained.
    fit: BTreeSet<NodeId>,
    /// Nodes of the job's party.
    own: BTreeSet<NodeId>,
    /// Whether there is anything to do.
    is_due: bool,
}

impl Seen {
    fn of(state: &State, id: JobId, job: &Job) -> Option<Self> {
        let Some(Asked::Server(asked)) = &job.spec.training else { return None };
        let course = job.course.as_ref()?;
        if course.verdict.is_some() || job.over.is_some() || job.stopping.is_some() {
            return None;
        }
        let members = || state.members().iter().filter(|(_, member)| !member.leaving);
        let own = members().filter(|(_, member)| member.party == job.party);
        let own: BTreeSet<NodeId> = own.map(|(node, _)| *node).collect();
        let fit = own.iter().copied().filter(|node| !state.is_drained(*node)).collect();
        Some(Self {
            job: id,
            party: job.party,
            submitted: job.submitted.time,
            asked: asked.clone(),
            code: job.spec.code,
            lease: course.lease,
            model: course.model.clone(),
            laid: state.laid(id).cloned(),
            fit,
            own,
            is_due: course.model.is_some() || job.tasks.iter().any(|task| task.given().is_some()),
        })
    }
}

/// Why a step did not come to its end.
enum Stop {
    /// This node does not coordinate any more.
    Lost,
    /// Not now, and why.
    Later(String),
}

/// Runs for as long as the node does.
pub async fn run(handle: Handle) {
    let me = handle.whoami.node;
    let mut changed = handle.shown.jobs.clone();
    let mut running: BTreeMap<JobId, (u64, AbortHandle)> = BTreeMap::new();
    // What is dropped is aborted.
    let mut tasks: JoinSet<()> = JoinSet::new();
    loop {
        changed.borrow_and_update();
        let mut next = LOOK;
        let look = handle.look(|see| {
            let state = see.replica.machine();
            let live = state.live_jobs();
            live.filter_map(|(id, job)| Seen::of(state, id, job)).collect::<Vec<Seen>>()
        });
        if let Ok(seen) = look.await {
            let mine = |job: &JobId, epoch: u64| {
                let lease = seen.iter().find(|seen| seen.job == *job).and_then(|seen| seen.lease);
                lease.is_some_and(|lease| lease.node == me && lease.epoch == epoch)
            };
            running.retain(|job, (epoch, task)| {
                let stays = mine(job, *epoch);
                if !stays {
                    task.abort();
                }
                stays && !task.is_finished()
            });
            lock(&handle.training.servers.firsts)
                .retain(|job, _| seen.iter().any(|seen| seen.job == *job && seen.model.is_none()));
            for seen in seen.iter().filter(|seen| seen.is_due && seen.own.contains(&me)) {
                match seen.lease {
                    Some(lease) if lease.node == me => {
                        running.entry(seen.job).or_insert_with(|| {
                            let span = tracing::info_span!("server", job = %seen.job.short());
                            let work = coordinate(handle.clone(), seen.job, lease.epoch);
                            (lease.epoch, tasks.spawn(work.instrument(span)))
                        });
                    }
                    lease => {
                        let at = claims_at(&handle, seen, lease);
                        let now = now(&handle);
                        if at > now {
                            next = next.min(at.since(now));
                        } else if claim_or_keep(&handle, seen.job).await.is_err() {
                            next = next.min(AGAIN);
                        }
                    }
                }
            }
        }
        tokio::select! {
            () = handle.stop.cancelled() => return,
            Some(_) = tasks.join_next() => {}
            _ = changed.changed() => {}
            () = sleep(next) => {}
        }
    }
}

/// When this node claims a lease: in its turn among those who may.
fn claims_at(handle: &Handle, seen: &Seen, lease: Option<Lease>) -> Time {
    let me = handle.whoami.node;
    let before = plan::in_order(seen.job, seen.own.iter().copied());
    let before = before.into_iter().take_while(|node| *node != me);
    let rank = before
        .filter(|node| handle.hub.is_alive(*node))
        .filter(|node| lease.is_none_or(|lease| lease.node != *node))
        .count();
    let from = lease.map_or(seen.submitted, |lease| lease.until);
    from.after(STEP * u32::try_from(rank).unwrap_or(u32::MAX))
}

/// Coordinates until the lease is lost.
async fn coordinate(handle: Handle, job: JobId, epoch: u64) {
    tracing::info!(epoch, "this node coordinates");
    let mut one = Coordinator {
        handle: &handle,
        job,
        epoch,
        misses: BTreeMap::new(),
        missing: BTreeMap::new(),
    };
    tokio::select! {
        () = one.run() => {}
        () = keep(&handle, job, epoch) => {}
    }
    tracing::info!("this node does not coordinate any more");
}

/// Whoever coordinates a job, under one lease.
struct Coordinator<'a> {
    handle: &'a Handle,
    job: JobId,
    epoch: u64,
    /// How often in a row each node has not answered.
    misses: BTreeMap<NodeId, u32>,
    /// Since when a shard has neither a primary nor an heir.
    missing: BTreeMap<u32, Instant>,
}

impl Coordinator<'_> {
    async fn run(&mut self) {
        loop {
            match self.step().await {
                Ok(()) => sleep(MIND).await,
                Err(Stop::Later(why)) => {
                    tracing::debug!(why, "the parameter server waits");
                    sleep(AGAIN).await;
                }
                Err(Stop::Lost) => return,
            }
        }
    }

    async fn look(&self) -> Result<Seen, Stop> {
        let job = self.job;
        let look = self.handle.look(move |see| {
            let state = see.replica.machine();
            Seen::of(state, job, state.job(job)?)
        });
        let seen = look.await.map_err(|error| Stop::Later(error.to_string()))?;
        let seen = seen.ok_or(Stop::Lost)?;
        let me = self.handle.whoami.node;
        match seen.lease {
            Some(lease) if lease.node == me && lease.epoch == self.epoch => Ok(seen),
            _ => Err(Stop::Lost),
        }
    }

    async fn step(&mut self) -> Result<(), Stop> {
        let seen = self.look().await?;
        let Some(model) = &seen.model else { return self.begin(&seen).await };
        if model.round >= seen.asked.steps {
            return self.end(&seen, model).await;
        }
        let Some(laid) = &seen.laid else { return self.lay(&seen, model).await };
        let (primaries, backups) = self.ask_all(laid).await;
        let away = self.away();
        let awake = self.awake(&seen);
        self.note_missing(laid, &away);
        let given_up = self.missing.iter().filter(|(_, since)| since.elapsed() > GIVE_UP);
        let given_up: BTreeSet<u32> = given_up.map(|(shard, _)| *shard).collect();
        let known = Known {
            primaries: &primaries,
            backups: &backups,
            away: &away,
            awake: &awake,
            given_up: &given_up,
        };
        let deeds = plan::decide(&laid.shards, &known);
        if !deeds.is_empty() {
            for deed in deeds {
                self.act(&seen, model, deed).await?;
            }
            return Ok(());
        }
        self.checkpoint(&seen, model, laid, &primaries).await
    }

    /// Asks all primaries and backups how far they are.
    async fn ask_all(&mut self, laid: &Laid) -> (BTreeMap<u32, Status>, BTreeMap<u32, Status>) {
        let (handle, job) = (self.handle, self.job);
        let of = |number: u32, epoch: u64, node: NodeId, is_primary: bool| async move {
            let ask = ServerAsk::Status { at: Where { job, shard: number, epoch } };
            (number, node, is_primary, client::ask(handle, node, ask).await)
        };
        let mut asks = Vec::new();
        for (number, shard) in (0..).zip(&laid.shards) {
            asks.push(of(number, shard.epoch, shard.primary, true));
            asks.extend(shard.backup.map(|node| of(number, shard.epoch, node, false)));
        }
        let (mut primaries, mut backups) = (BTreeMap::new(), BTreeMap::new());
        let mut heard: BTreeMap<NodeId, bool> = BTreeMap::new();
        for (number, node, is_primary, answer) in join_all(asks).await {
            let is_there = heard.entry(node).or_default();
            match answer {
                Ok(ServerAnswer::Status(status)) => {
                    *is_there = true;
                    let of = if is_primary { &mut primaries } else { &mut backups };
                    of.insert(number, *status);
                }
                Ok(_) => *is_there = true,
                Err(why) => tracing::debug!(node = %node.short(), why, "a shard does not answer"),
            }
        }
        self.misses.retain(|node, _| heard.contains_key(node));
        for (node, is_there) in heard {
            let missed = self.misses.entry(node).or_default();
            *missed = if is_there { 0 } else { missed.saturating_add(1) };
        }
        (primaries, backups)
    }

    fn away(&self) -> BTreeSet<NodeId> {
        let away = self.misses.iter().filter(|(_, missed)| **missed >= MISSES);
        away.map(|(node, _)| *node).collect()
    }

    /// Nodes that may have shards, and answer as far as anybody knows.
    fn awake(&self, seen: &Seen) -> Vec<NodeId> {
        let me = self.handle.whoami.node;
        let is_awake = |node: &NodeId| match self.misses.get(node) {
            _ if *node == me => true,
            Some(missed) => *missed == 0,
            None => self.handle.hub.is_alive(*node),
        };
        plan::in_order(self.job, seen.fit.iter().copied().filter(is_awake))
    }

    fn note_missing(&mut self, laid: &Laid, away: &BTreeSet<NodeId>) {
        for (number, shard) in (0..).zip(&laid.shards) {
            if away.contains(&shard.primary) {
                self.missing.entry(number).or_insert_with(Instant::now);
            } else {
                self.missing.remove(&number);
            }
        }
    }

    async fn act(&mut self, seen: &Seen, model: &Model, deed: Deed) -> Result<(), Stop> {
        let (job, epoch) = (self.job, self.epoch);
        match deed {
            Deed::Lay => {
                tracing::warn!(
                    step = model.round,
                    "a shard is lost with its backup: all go back to the checkpoint"
                );
                self.missing.clear();
                self.lay(seen, model).await
            }
            Deed::Shard { shard, expect, primary, backup } => {
                tracing::info!(shard, primary = %primary.short(), backup = ?backup.map(|node| node.short()), "a shard changes hands");
                let act = ServerShard { job, epoch, shard, expect, primary, backup };
                self.write(act.into()).await
            }
            Deed::Ready { shard, expect } => {
                self.write(ServerReady { job, epoch, shard, expect }.into()).await
            }
        }
    }

    async fn lay(&self, seen: &Seen, model: &Model) -> Result<(), Stop> {
        let awake = self.awake(seen);
        let shards = plan::lay(model.weights.len(), &awake);
        if shards.len() != model.weights.len() {
            return Err(Stop::Later("no node can have its shards".into()));
        }
        if awake.len() < 2 {
            tracing::warn!("there is one node for all shards: they have no backup");
        }
        self.write(ServerLay { job: self.job, epoch: self.epoch, shards }.into()).await
    }

    /// Keeps the latest checkpoint that all shards have.
    async fn checkpoint(
        &self,
        seen: &Seen,
        model: &Model,
        laid: &Laid,
        primaries: &BTreeMap<u32, Status>,
    ) -> Result<(), Stop> {
        let count = laid.shards.len();
        let Some(step) = plan::common(primaries, count, model.round) else { return Ok(()) };
        let taken: Vec<(Piece, Piece)> = primaries
            .values()
            .filter_map(|status| status.checkpoints.get(&step))
            .copied()
            .collect();
        let mut lying: BTreeMap<Piece, Vec<NodeId>> =
            BTreeMap::from([(model.layout, model.holders.iter().copied().collect())]);
        for ((weights, rest), shard) in taken.iter().zip(&laid.shards) {
            lying.entry(*weights).or_default().push(shard.primary);
            lying.entry(*rest).or_default().push(shard.primary);
        }
        let holders = self.hold(seen, &lying).await?;
        let first = primaries.get(&0);
        let next = Model {
            round: step,
            layout: model.layout,
            weights: taken.iter().map(|(weights, _)| *weights).collect(),
            optimiser: taken.iter().map(|(_, rest)| *rest).collect(),
            holders,
        };
        let act = ServerKeep {
            job: self.job,
            epoch: self.epoch,
            model: next,
            metrics: first.map(|status| status.metrics.clone()).unwrap_or_default(),
            workers: first.map(|status| status.workers.clone()).unwrap_or_default(),
        };
        self.write(act.into()).await
    }

    /// Sees to it that this node and another one hold these pieces: who does.
    async fn hold(
        &self,
        seen: &Seen,
        lying: &BTreeMap<Piece, Vec<NodeId>>,
    ) -> Result<BTreeSet<NodeId>, Stop> {
        let me = self.handle.whoami.node;
        for (piece, from) in lying {
            let held = self.handle.training.hold(self.job, *piece, from).await;
            held.map_err(|error| Stop::Later(chain(&error)))?;
        }
        if seen.own.len() <= 1 {
            return Ok(BTreeSet::from([me]));
        }
        let others = self.awake(seen).into_iter().filter(|node| *node != me);
        for node in others {
            let ask = asks::Ask::Keep {
                job: self.job,
                pieces: lying.keys().copied().collect(),
                from: vec![me; lying.len()],
            };
            match aggregate::ask(self.handle, node, ask).await {
                Ok(asks::Answer::Kept) => return Ok(BTreeSet::from([me, node])),
                answer => tracing::debug!(node = %node.short(), ?answer, "a node holds no copy"),
            }
        }
        Err(Stop::Later("no other node of the party holds a copy".into()))
    }

    /// The first model.
    async fn begin(&self, seen: &Seen) -> Result<(), Stop> {
        let first = match seen.asked.start {
            Some(start) => self.read(seen, start).await?,
            None => {
                let told = lock(&self.handle.training.servers.firsts).get(&self.job).cloned();
                told.ok_or_else(|| Stop::Later("no worker has made a first model yet".into()))?
            }
        };
        let pieces = first.weights.iter().chain([&first.layout]);
        let lying = pieces.map(|piece| (*piece, vec![first.from])).collect();
        let held = self.hold(seen, &lying).await;
        if held.is_err() && seen.asked.start.is_none() {
            // Its node may be gone; another worker makes another one.
            lock(&self.handle.training.servers.firsts).remove(&self.job);
        }
        let model = Model {
            round: 0,
            layout: first.layout,
            weights: first.weights,
            optimiser: Vec::new(),
            holders: held?,
        };
        let (job, epoch) = (self.job, self.epoch);
        let (metrics, workers) = (BTreeMap::new(), BTreeMap::new());
        self.write(ServerKeep { job, epoch, model, metrics, workers }.into()).await
    }

    /// The first model, where the job brings one along.
    async fn read(&self, seen: &Seen, start: VersionId) -> Result<First, Stop> {
        let Some(found) = self.handle.data.find(start).await else {
            sleep(LATER).await;
            return Err(Stop::Later("the model to start from cannot be read here yet".into()));
        };
        let dir = self.handle.dir.path().join("models").join(format!("{}-start", self.job));
        let read = read_start(self.handle, &found, &dir).await;
        let _ = tokio::fs::remove_dir_all(&dir).await;
        let (layout, values) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                let text = format!("the model that it starts from: {}", chain(&error));
                self.write(self.verdict(Verdict::Failed(note(&text)))).await?;
                return Err(Stop::Lost);
            }
            Err(why) => {
                sleep(LATER).await;
                return Err(Stop::Later(why));
            }
        };
        let count = keys::shards_for(values.len() as u64, seen.asked.shards);
        let (pieces, job) = (self.handle.training.pieces.clone(), self.job);
        let put = tokio::task::spawn_blocking(move || {
            let layout = pieces.put(job, layout.header())?;
            let cut = (0..count).map(|shard| {
                let range = shards::range(values.len() as u64, count, shard);
                pieces.put(job, tensors::bytes_of(values.get(range).unwrap_or_default()))
            });
            Ok::<_, std::io::Error>((layout, cut.collect::<Result<Vec<_>, _>>()?))
        });
        let put = put.await.map_err(|error| Stop::Later(error.to_string()))?;
        let (layout, weights) = put.map_err(|error| Stop::Later(error.to_string()))?;
        Ok(First { from: self.handle.whoami.node, layout, weights })
    }

    /// The last model becomes a version, and the training ends.
    async fn end(&self, seen: &Seen, model: &Model) -> Result<(), Stop> {
        let making = Making {
            handle: self.handle,
            job: self.job,
            party: seen.party,
            name: &seen.asked.model,
            inputs: seen.asked.start.into_iter().chain(seen.code).collect(),
        };
        match making.version(model).await {
            Ok(made) => self.write(self.verdict(Verdict::Done { model: made })).await,
            Err(why) => {
                tracing::warn!(why, "the model could not be made a version, and is tried again");
                sleep(LATER).await;
                Err(Stop::Later(why))
            }
        }
    }

    fn verdict(&self, verdict: Verdict) -> Act {
        CourseEnd { job: self.job, epoch: self.epoch, verdict }.into()
    }

    /// Writes, however long that takes. What is refused was made from an older state: the next look shows.
    async fn write(&self, act: Act) -> Result<(), Stop> {
        loop {
            match self.handle.write(vec![Ask { act: act.clone(), signed: false }]).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Refused { refusal, .. }) => {
                    return Err(Stop::Later(refusal.to_string()));
                }
                Err(WriteError::Removed { .. } | WriteError::Stopping) => return Err(Stop::Lost),
                Err(WriteError::Unknown(code)) => {
                    return Err(Stop::Later(format!("refused, code {code}")));
                }
                Err(error) => {
                    tracing::debug!(%error, "a change of shards waits to be written");
                    sleep(AGAIN).await;
                }
            }
        }
    }
}
