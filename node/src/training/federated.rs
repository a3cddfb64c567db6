//! The coordinator of a federated job: claims the lease, runs rounds, commits, ends.
//!
//! ```text
//!  state ─► view.rs ─► claim.rs   whose turn is it to coordinate?     pure
//!                        │ CourseClaim, kept while it goes on
//!                        ▼
//!                     rounds.rs   one training: open, collect, close, one step after the other
//!                        │ plan.rs    who takes part, who sums         pure
//!                        │ collect.rs asks the aggregators what has come, until `round::decide` knows what to do
//!                        │ model.rs   a sum becomes a model: held by two, then committed together with the next round
//!                        │ begin.rs   the first model, where the job brings one along
//!                        │ finish.rs  the last model becomes a version, and the training ends
//!                        └ awake.rs   who answers
//! ```
//!
//! A coordinator keeps nothing that it could not do without: whoever takes over finds in the state where it stood, and at most the
//! round in flight is summed again. One that cannot write, because there is no leader, keeps what it has and tries on; one that has
//! lost its lease is cut off wherever it is.

mod awake;
pub(super) mod begin;
mod claim;
mod collect;
pub(super) mod finish;
mod model;
mod plan;
mod rounds;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::JobId;
use mesh_consensus::time::Time;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;

use crate::clock;
use crate::handle::{Ask, Handle, WriteError};
use crate::state::course::CourseClaim;
use claim::Turn;
use rounds::{Coordinator, Stop};
use view::Seen;

/// How long a lease lasts: what a coordinator that dies costs its job, and a little more.
const LEASE: Duration = Duration::from_secs(6);
/// How often a node looks, when nothing changes.
const LOOK: Duration = Duration::from_secs(10);
/// Between two tries of what was refused.
const AGAIN: Duration = Duration::from_millis(300);
/// Who is not up to date at the start looks again after this.
const BEHIND: Duration = Duration::from_secs(2);
/// How often what no training needs any more is let go of, at most.
const TIDY: Duration = Duration::from_millis(250);
/// And how often what jobs left that are over.
const SWEEP: Duration = Duration::from_secs(60);

/// A training that this node coordinates.
struct Running {
    epoch: u64,
    task: AbortHandle,
}

/// What a task of this loop came to.
enum Ended {
    /// Somebody else should coordinate: this lease is not kept.
    LetGo { job: JobId, epoch: u64 },
    /// The next look shows what to do.
    Otherwise,
}

/// Runs for as long as the node does.
pub async fn run(handle: Handle) {
    while handle.barrier().await.is_err() {
        tokio::select! {
            () = handle.stop.cancelled() => return,
            () = sleep(BEHIND) => {}
        }
    }
    let me = handle.whoami.node;
    let mut changed = handle.shown.jobs.clone();
    let mut running: BTreeMap<JobId, Running> = BTreeMap::new();
    let mut claims: BTreeMap<JobId, AbortHandle> = BTreeMap::new();
    let mut let_go: BTreeMap<JobId, u64> = BTreeMap::new();
    // What is dropped is aborted.
    let mut tasks: JoinSet<Ended> = JoinSet::new();
    let mut tidy = Tidy::default();
    loop {
        changed.borrow_and_update();
        let mut next = LOOK;
        let look = handle.look(|see| {
            let state = see.replica.machine();
            let training = state.live_jobs().filter(|(_, job)| job.course.is_some());
            (Seen::all(state), training.map(|(id, _)| id).collect::<BTreeSet<JobId>>())
        });
        if let Ok((seen, live)) = look.await {
            next = next.min(tidy.look(&handle, live));
            let turns: BTreeMap<JobId, Turn> = seen
                .iter()
                .map(|seen| (seen.job, claim::turn(seen, me, |node| handle.hub.is_alive(node))))
                .collect();
            let_go.retain(|job, epoch| turns.get(job) == Some(&Turn::Coordinate { epoch: *epoch }));
            running.retain(|job, one| {
                let is_ours = turns.get(job) == Some(&Turn::Coordinate { epoch: one.epoch });
                if !is_ours {
                    one.task.abort();
                }
                is_ours && !one.task.is_finished()
            });
            claims.retain(|_, task| !task.is_finished());
            let now = now(&handle);
            for (job, turn) in turns {
                match turn {
                    Turn::Coordinate { epoch } => {
                        if !running.contains_key(&job) && !let_go.contains_key(&job) {
                            let span = tracing::info_span!("training", job = %job.short());
                            let work = coordinate(handle.clone(), job, epoch).instrument(span);
                            running.insert(job, Running { epoch, task: tasks.spawn(work) });
                        }
                    }
                    Turn::Claim { at } if at > now => next = next.min(at.since(now)),
                    Turn::Claim { .. } => {
                        claims.entry(job).or_insert_with(|| tasks.spawn(take(handle.clone(), job)));
                    }
                    Turn::Rest => {}
                }
            }
        }
        tokio::select! {
            () = handle.stop.cancelled() => return,
            Some(ended) = tasks.join_next() => match ended {
                Ok(Ended::LetGo { job, epoch }) => {
                    let_go.insert(job, epoch);
                }
                Ok(Ended::Otherwise) => {}
                Err(error) if error.is_panic() => {
                    tracing::error!("the coordination of a training has panicked, and starts again");
                    sleep(AGAIN).await;
                }
                Err(_) => {}
            },
            _ = changed.changed() => {}
            () = sleep(next) => {}
        }
    }
}

/// Sees to it that nothing stays on this node which no training needs any more, whatever its part in it was.
#[derive(Default)]
struct Tidy {
    /// When it last looked for what trainings that go on do not need any more.
    tidied: Option<Instant>,
    /// And for what is left of others.
    swept: Option<Instant>,
}

impl Tidy {
    /// `live` are the jobs that train and are not over. Says when to look again.
    fn look(&mut self, handle: &Handle, live: BTreeSet<JobId>) -> Duration {
        let is_due = |last: Option<Instant>, every: Duration| {
            last.is_none_or(|last| last.elapsed() >= every)
        };
        if is_due(self.swept, SWEEP) {
            self.swept = Some(Instant::now());
            tokio::spawn(sweep(handle.clone()));
        }
        if live.is_empty() {
            return LOOK;
        }
        if !is_due(self.tidied, TIDY) {
            return TIDY;
        }
        self.tidied = Some(Instant::now());
        handle.training.tidy(&live);
        LOOK
    }
}

/// Drops the pieces of jobs that are over. What was listed before the look cannot be of a job that came after it.
async fn sweep(handle: Handle) {
    let pieces = handle.training.pieces.clone();
    let listed = tokio::task::spawn_blocking(move || pieces.jobs()).await.unwrap_or_default();
    let over = handle.look(move |see| {
        let state = see.replica.machine();
        let is_over = |job: &JobId| state.job(*job).is_none_or(|job| job.over.is_some());
        listed.into_iter().filter(is_over).collect::<Vec<JobId>>()
    });
    let Ok(over) = over.await else { return };
    let pieces = handle.training.pieces.clone();
    let drop_all = move || over.into_iter().for_each(|job| pieces.drop_job(job));
    let _ = tokio::task::spawn_blocking(drop_all).await;
}

/// What time it is in the mesh by now, as far as this node can tell: mesh time stands still while nothing is written.
pub(super) fn now(handle: &Handle) -> Time {
    let clocks = handle.shown.clock_by_now().unwrap_or_else(clock::now);
    clocks.max(handle.pulse().time)
}

/// Claims a lease once.
async fn take(handle: Handle, job: JobId) -> Ended {
    if let Err(error) = claim_or_keep(&handle, job).await {
        // Another one was quicker, or clocks differ a little.
        tracing::debug!(job = %job.short(), %error, "a training was not claimed");
        sleep(AGAIN).await;
    }
    Ended::Otherwise
}

pub(super) async fn claim_or_keep(handle: &Handle, job: JobId) -> Result<(), WriteError> {
    let act = CourseClaim { job, ms: LEASE.as_millis() as u32 }.into();
    handle.write(vec![Ask { act, signed: false }]).await.map(drop)
}

/// Coordinates until the lease is lost, or let go.
async fn coordinate(handle: Handle, job: JobId, epoch: u64) -> Ended {
    tracing::info!(epoch, "this node coordinates");
    let (sender, away) = tokio::sync::watch::channel(Default::default());
    let mut coordinator = Coordinator::new(&handle, job, epoch, away);
    let stop = tokio::select! {
        stop = coordinator.run() => stop,
        () = keep(&handle, job, epoch) => Stop::Lost,
        () = awake::mind(&handle, job, &sender) => Stop::Lost,
    };
    match stop {
        Stop::LetGo => {
            tracing::info!("only the end is missing, and is for a node of the job's party");
            Ended::LetGo { job, epoch }
        }
        Stop::Lost | Stop::Later(_) => {
            tracing::info!("this node does not coordinate any more");
            // The look that shows it may be a moment behind.
            sleep(AGAIN).await;
            Ended::Otherwise
        }
    }
}

/// Keeps a lease, for as long as it is this one. Rounds keep it, too: while they are quick there is nothing to do.
pub(super) async fn keep(handle: &Handle, job: JobId, epoch: u64) {
    // The end of the lease, and when this node first saw that: whatever clocks say, it has not passed for longer.
    let mut known: Option<(Time, Instant)> = None;
    loop {
        let look =
            handle.look(move |see| see.replica.machine().course(job).and_then(|one| one.lease));
        let wait = match look.await {
            Ok(Some(lease)) if lease.epoch == epoch && lease.node == handle.whoami.node => {
                let since = match known {
                    Some((until, since)) if until == lease.until => since,
                    _ => Instant::now(),
                };
                known = Some((lease.until, since));
                // When a third of it has passed.
                let whole = Duration::from_millis(u64::from(lease.ms));
                let left =
                    lease.until.since(now(handle)).min(whole.saturating_sub(since.elapsed()));
                left.saturating_sub(whole * 2 / 3)
            }
            Ok(_) => return,
            Err(_) => AGAIN,
        };
        if !wait.is_zero() {
            sleep(wait).await;
            continue;
        }
        if let Err(error) = claim_or_keep(handle, job).await {
            tracing::debug!(%error, "the lease was not kept");
            sleep(AGAIN).await;
        }
    }
}
