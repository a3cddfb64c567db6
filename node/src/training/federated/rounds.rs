//! One training, as its coordinator runs it: look, do the next thing, look again.
//!
//! Each step begins with a look at the state and ends with something written there, so that it does not matter who took the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::time::Time;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::AGAIN;
use super::collect::Collected;
use super::plan::{self, There};
use super::view::Seen;
use crate::handle::{Ask, Handle, WriteError};
use crate::job::training::Real;
use crate::state::command::Act;
use crate::state::course::{Counted, CourseCharge, CourseEnd, CourseRound, Model, Open, Verdict};
use crate::state::jobs::note;
use crate::state::name::Name;
use crate::training::round;

/// Between two looks while something is missing, unless the state changes before.
const PAUSE: Duration = Duration::from_secs(1);
/// However often that changes.
const BREATH: Duration = Duration::from_millis(20);
/// A node that did not answer when it was needed is not counted on for so long.
const SHUN: Duration = Duration::from_secs(20);
/// A round that cannot be summed for so long never will be: what is a passing trouble has passed by then.
const FAILING: Duration = Duration::from_secs(60);
/// The longest pause between two tries of it. With noise, each of them is charged.
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Why a step did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// This node does not coordinate any more, or there is nothing more to do.
    Lost,
    /// Somebody else should.
    LetGo,
    /// Not now, and why.
    Later(String),
}

/// What a round has come to.
#[derive(Debug, Clone, Default)]
pub(super) struct Done {
    pub(super) model: Option<Model>,
    pub(super) counted: Vec<Counted>,
    pub(super) metrics: BTreeMap<Name, Real>,
}

/// Whoever coordinates a training, under one lease.
pub(super) struct Coordinator<'a> {
    pub(super) handle: &'a Handle,
    pub(super) job: JobId,
    pub(super) epoch: u64,
    /// Those who do not answer, as [`super::awake`] tells.
    pub(super) away: watch::Receiver<BTreeSet<NodeId>>,
    /// Those who did not answer when they were needed, and when.
    shunned: BTreeMap<NodeId, Instant>,
    /// How many a round waits for, if this coordinator has opened it.
    wanted: Option<(u32, usize)>,
    /// A round that cannot be summed.
    failing: Option<Failing>,
}

/// A round that cannot be summed.
#[derive(Debug, Clone, Copy)]
struct Failing {
    round: u32,
    since: Instant,
    /// After the next failure.
    pause: Duration,
}

impl<'a> Coordinator<'a> {
    pub(super) fn new(
        handle: &'a Handle,
        job: JobId,
        epoch: u64,
        away: watch::Receiver<BTreeSet<NodeId>>,
    ) -> Self {
        let shunned = BTreeMap::new();
        Self { handle, job, epoch, away, shunned, wanted: None, failing: None }
    }

    /// Runs until it must stop.
    pub(super) async fn run(&mut self) -> Stop {
        let mut changed = self.handle.shown.jobs.clone();
        loop {
            changed.borrow_and_update();
            match self.step().await {
                Ok(()) => {}
                Err(Stop::Later(why)) => {
                    tracing::debug!(why, "the training waits");
                    tokio::select! {
                        _ = changed.changed() => sleep(BREATH).await,
                        () = sleep(PAUSE) => {}
                    }
                }
                Err(stop) => return stop,
            }
        }
    }

    async fn step(&mut self) -> Result<(), Stop> {
        let seen = self.look().await?;
        if seen.is_at_end() {
            return self.finish(&seen).await;
        }
        let (left, needed) = (seen.present().len(), seen.asked.min_parties as usize);
        if left < needed {
            let text = format!("{left} of its participants are left, and a round needs {needed}");
            return self.end(Verdict::Failed(note(&text))).await;
        }
        if let (None, Some(start)) = (&seen.course.model, seen.asked.start) {
            return self.begin(&seen, start).await;
        }
        let Some(open) = seen.course.open.clone() else { return self.open(&seen).await };
        if !self.can_sum(&seen, &open) {
            return self.reopen(&seen, &open, open.selected.clone()).await;
        }
        match self.collect(&seen, &open).await? {
            Collected::Sum(sum) => self.close(&seen, &open, sum).await,
            Collected::GiveUp(why) => self.end(Verdict::Failed(why)).await,
            Collected::Wider(selected) => self.reopen(&seen, &open, selected).await,
            Collected::Silent(node) => {
                tracing::info!(node = %node.short(), "an aggregator does not answer");
                self.shun(node);
                Ok(())
            }
            Collected::Changed => Ok(()),
        }
    }

    /// What the state says now, if this node still coordinates.
    pub(super) async fn look(&self) -> Result<Seen, Stop> {
        let job = self.job;
        let look = self.handle.look(move |see| Seen::of(see.replica.machine(), job)).await;
        let seen = look.map_err(|error| Stop::Later(error.to_string()))?.ok_or(Stop::Lost)?;
        let lease = seen.course.lease;
        let is_ours = lease.is_some_and(|lease| {
            lease.node == self.handle.whoami.node && lease.epoch == self.epoch
        });
        if is_ours { Ok(seen) } else { Err(Stop::Lost) }
    }

    /// Nodes that do not answer, and those that may sum and do.
    pub(super) fn there(&self, seen: &Seen) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let away = self.away.borrow().clone();
        let is_shunned =
            |node: &NodeId| self.shunned.get(node).is_some_and(|since| since.elapsed() < SHUN);
        let is_awake = |node: &NodeId| {
            *node == self.handle.whoami.node
                || (self.handle.hub.is_alive(*node) && !away.contains(node) && !is_shunned(node))
        };
        let awake = seen.summers.iter().copied().filter(is_awake).collect();
        (away, awake)
    }

    /// A node did not answer when it was needed.
    pub(super) fn shun(&mut self, node: NodeId) {
        self.shunned.insert(node, Instant::now());
    }

    /// How many the open round waits for.
    pub(super) fn wanted(&self, seen: &Seen, open: &Open) -> usize {
        match self.wanted {
            Some((round, wanted)) if round == open.round => wanted,
            _ => round::wanted(&seen.asked, &seen.course, open),
        }
    }

    /// The round that follows a model, if there can be one by now.
    pub(super) fn next(
        &self,
        seen: &Seen,
        model: Option<&Model>,
        counted: &[Counted],
    ) -> Option<(Open, usize)> {
        let (away, awake) = self.there(seen);
        let there = There { me: self.handle.whoami.node, away: &away, awake: &awake };
        let round = model.map_or(0, |model| model.round);
        let records = round::after(&seen.course.records, counted, round);
        plan::next(seen, there, model, &records, &mut |below: usize| {
            fastrand::usize(..below.max(1))
        })
    }

    /// Opens the next round by itself.
    async fn open(&mut self, seen: &Seen) -> Result<(), Stop> {
        match self.next(seen, seen.course.model.as_ref(), &[]) {
            Some(next) => {
                let acts = self.go_on(seen, Done::default(), Some(next));
                self.write(acts).await
            }
            None => Err(Stop::Later("nobody can take part, or sum, yet".into())),
        }
    }

    /// Whether those who sum a round are there, and as many as the model has shards.
    fn can_sum(&self, seen: &Seen, open: &Open) -> bool {
        let (_, awake) = self.there(seen);
        open.aggregators.len() == shards(seen)
            && open.aggregators.iter().all(|node| awake.contains(node))
    }

    /// Opens a round once more, with others.
    async fn reopen(
        &mut self,
        seen: &Seen,
        open: &Open,
        selected: BTreeSet<u32>,
    ) -> Result<(), Stop> {
        let (away, awake) = self.there(seen);
        let there = There { me: self.handle.whoami.node, away: &away, awake: &awake };
        let Some(aggregators) = plan::assign(shards(seen), &open.aggregators, there) else {
            return Err(Stop::Later("nobody can sum".into()));
        };
        let wider = selected.len().saturating_sub(open.selected.len());
        let wanted = self.wanted(seen, open) + wider;
        tracing::info!(round = open.round, "a round is opened once more, with others");
        let again = Open { selected, aggregators, since: Time(0), ..open.clone() };
        let acts = self.go_on(seen, Done::default(), Some((again, wanted)));
        self.write(acts).await
    }

    /// What has to be written to commit a model, to open a round, or both.
    pub(super) fn go_on(
        &mut self,
        seen: &Seen,
        done: Done,
        next: Option<(Open, usize)>,
    ) -> Vec<Act> {
        let Done { model, counted, metrics } = done;
        let (job, epoch) = (self.job, self.epoch);
        let mut charge = None;
        if let Some((open, wanted)) = &next {
            self.wanted = Some((open.round, *wanted));
            // A round that is opened once more was paid for, but for those who are new in it.
            let before = seen.course.open.as_ref().filter(|before| before.round == open.round);
            let is_new = |task: &u32| !before.is_some_and(|open| open.selected.contains(task));
            let tasks: BTreeSet<u32> = open.selected.iter().copied().filter(is_new).collect();
            if seen.is_charged_first() && open.round > 0 && !tasks.is_empty() {
                charge = Some(CourseCharge { job, epoch, round: open.round, tasks });
            }
        }
        let open = next.map(|(open, _)| open);
        let mut acts: Vec<Act> =
            vec![CourseRound { job, epoch, model, counted, metrics, open }.into()];
        acts.extend(charge.map(Act::from));
        acts
    }

    /// A round could not be summed. If that goes on, the training ends.
    pub(super) async fn failed(&mut self, round: u32, why: String) -> Result<(), Stop> {
        let first = Failing { round, since: Instant::now(), pause: PAUSE };
        let failing = self.failing.filter(|failing| failing.round == round).unwrap_or(first);
        if failing.since.elapsed() >= FAILING {
            tracing::warn!(round, why, "a round cannot be summed");
            let text = format!("round {round} cannot be summed: {why}");
            return self.end(Verdict::Failed(note(&text))).await;
        }
        let pause = (2 * failing.pause).min(MAX_PAUSE);
        self.failing = Some(Failing { pause, ..failing });
        sleep(failing.pause).await;
        Err(Stop::Later(why))
    }

    /// Says how it ended.
    pub(super) async fn end(&mut self, verdict: Verdict) -> Result<(), Stop> {
        tracing::info!(?verdict, "the training ends");
        let act = CourseEnd { job: self.job, epoch: self.epoch, verdict };
        self.write(vec![act.into()]).await
    }

    /// Writes, however long that takes. What is refused was made from an older state: the next look shows.
    pub(super) async fn write(&self, acts: Vec<Act>) -> Result<(), Stop> {
        let asks: Vec<Ask> = acts.into_iter().map(|act| Ask { act, signed: false }).collect();
        loop {
            match self.handle.write(asks.clone()).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Refused { refusal, .. }) => {
                    return Err(Stop::Later(refusal.to_string()));
                }
                Err(WriteError::Removed { .. } | WriteError::Stopping) => return Err(Stop::Lost),
                Err(WriteError::Unknown(code)) => {
                    return Err(Stop::Later(format!("refused, code {code}")));
                }
                // There is no leader, or it is busy: what is here is worth the wait.
                Err(error) => {
                    tracing::debug!(%error, "a round waits to be written");
                    sleep(AGAIN).await;
                }
            }
        }
    }
}

/// How many shards a round has: as many as its model, and one before there is any.
fn shards(seen: &Seen) -> usize {
    seen.course.model.as_ref().map_or(1, |model| model.weights.len())
}
