//! The leader's hand: looks at the state and at what nodes tell, plans, and writes the plan down.
//!
//! ```text
//!  state ──┐
//!          ├─► view() ─► scheduler::plan ─► Assign ─► the log
//!  gossip ─┘               pure
//!  pings of nodes that have work ─┘
//! ```
//!
//! Every node can make the view, and so explain a decision or say what would come of a job ([`outlook`], [`explain`]);
//! only the leader's plans are written. A plan says how many have counted before it, so that one made by a leader
//! that was deposed meanwhile, or from an old look, counts for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::time::Time;
use mesh_transport::codec::encode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::awareness::record::{Health, Record};
use crate::clock;
use crate::handle::{Ask, Handle, ReadError, WriteError};
use crate::job::{JobSpec, Mount};
use crate::scheduler::{
    self, Explanation, Gpu, Offer, Plan, Quota, Running, Settings, Standing, View, Waiting,
};
use crate::state::State;
use crate::state::jobs::{Assign, Job, MAX_PLACES, Phase, Placed, Stage, Task, Undone, Why};
use crate::state::share::Share;
use crate::wire::Request;

/// How often the leader looks when nothing changes, but something waits or runs.
const LOOK: Duration = Duration::from_secs(1);
/// How often a node looks whether it leads.
const LEADS: Duration = Duration::from_millis(250);
/// How often nodes that have work are asked whether they are there.
const PING: Duration = Duration::from_secs(2);
/// How long one may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pings under way at a time.
const MAX_PINGS: usize = 64;
/// A node at rest repeats itself about every 45 s; who is silent for longer than this is not given anything.
const SILENT: Duration = Duration::from_secs(100);
/// A node that is away for so long and never took up a task has lost it: nothing ran there that could go on.
const UNHEARD: Duration = Duration::from_secs(5);
/// A plan that took long is not made again before so many times as long: the leader has other things to do.
const REST: u32 = 4;

/// How patient the planner is with nodes that vanished. Tests of real processes cannot wait for a minute.
fn settings() -> Settings {
    match std::env::var("MESH_TEST_WAITS").as_deref() {
        Ok("short") => Settings { lost_after: Duration::from_secs(4), ..Settings::default() },
        _ => Settings::default(),
    }
}

/// Runs for as long as the node does, and plans while it leads.
pub async fn run(handle: Handle) {
    let absent = Absent::default();
    tokio::select! {
        () = absent.run(&handle) => {}
        () = plan(&handle, &absent) => {}
    }
}

async fn plan(handle: &Handle, absent: &Absent) {
    let mut changed = handle.shown.jobs.clone();
    loop {
        tokio::select! {
            () = handle.stop.cancelled() => return,
            () = until_leader(handle) => {}
        }
        changed.borrow_and_update();
        let begun = Instant::now();
        let again = turn(handle, absent).await;
        let rest = begun + REST * begun.elapsed();
        let next = match again {
            Again::Now => rest,
            Again::At(at) => {
                tokio::select! {
                    () = handle.stop.cancelled() => return,
                    _ = changed.changed() => {}
                    () = sleep_until(at) => {}
                }
                rest
            }
            Again::OnChange => {
                tokio::select! {
                    () = handle.stop.cancelled() => return,
                    _ = changed.changed() => {}
                }
                rest
            }
        };
        sleep_until(next).await;
    }
}

/// Returns when this node leads. Looked at now and then: a pulse comes twenty times a second, and most nodes never lead.
async fn until_leader(handle: &Handle) {
    while !handle.pulse().is_leader() {
        tokio::time::sleep(LEADS).await;
    }
}

/// When to plan again.
enum Again {
    Now,
    At(Instant),
    /// There is nothing to do until something changes.
    OnChange,
}

/// Plans once.
async fn turn(handle: &Handle, absent: &Absent) -> Again {
    let records = records(handle);
    let away = absent.away();
    let seen = handle.look(move |see| {
        let state = see.replica.machine();
        let idle = state.live_jobs().next().is_none();
        (!idle).then(|| {
            let view = view(state, see.replica.time(), &records, &away);
            (state.plans(), unheard(state, &away), view)
        })
    });
    let soon = Again::At(Instant::now() + LOOK);
    let Ok(seen) = seen.await else { return soon };
    let Some((plans, unheard, mut view)) = seen else { return Again::OnChange };
    // Mesh time stands still while nothing is written; the leader's own clock is what it would become.
    view.now = view.now.max(clock::now());
    let Ok(plan) = tokio::task::spawn_blocking(move || scheduler::plan(&view)).await else {
        return soon;
    };
    let Plan { places, victims, lost, more, .. } = plan;
    if places.is_empty() && victims.is_empty() && lost.is_empty() && unheard.is_empty() {
        return soon;
    }
    let asked = victims.iter().map(|one| (one.job, one.task, one.fence, Why::Preempted));
    let gone = lost.iter().map(|one| (one.job, one.task, one.fence, Why::Lost));
    let ends = gone.chain(asked).map(|(job, task, fence, why)| Undone { job, task, fence, why });
    let mut ends: Vec<Undone> = ends.collect();
    let count = places.len();
    add_unheard(&mut ends, unheard, MAX_PLACES.saturating_sub(count));
    let places = places.into_iter().map(|place| Placed {
        job: place.job,
        task: place.task,
        node: place.node,
        allotment: place.allotment,
    });
    let ended = ends.len();
    let act = Assign { plans, ends, places: places.collect() }.into();
    match handle.write(vec![Ask { act, signed: false }]).await {
        Ok(_) => {
            tracing::debug!(places = count, ends = ended, "a plan counts");
            if more { Again::Now } else { soon }
        }
        Err(WriteError::Refused { refusal, .. }) => {
            tracing::debug!(%refusal, "a plan was made from an older state");
            Again::Now
        }
        Err(error) => {
            tracing::debug!(%error, "a plan was not written");
            soon
        }
    }
}

/// Tasks that a node has been given and never took up, which has been away for a few seconds since. The fence sees to it that
/// one which was about to does not count.
fn unheard(state: &State, away: &BTreeMap<NodeId, Duration>) -> Vec<Undone> {
    let after = UNHEARD.min(settings().lost_after);
    let is_away = |node: &NodeId| away.get(node).is_some_and(|time| *time >= after);
    // A task of an `each` job can run on no other node: it has as long as one that runs.
    let jobs = state.live_jobs().filter(|(_, job)| !job.spec.place.each);
    jobs.flat_map(|(id, job)| job.tasks.iter().enumerate().map(move |(n, task)| (id, n, task)))
        .filter_map(|(job, number, task)| {
            let given = task.given()?;
            let is_unheard = given.phase == Phase::Placed && is_away(&given.node);
            let (task, fence) = (number as u32, given.at.index);
            is_unheard.then_some(Undone { job, task, fence, why: Why::Lost })
        })
        .collect()
}

/// Adds those that are not among the ends already, as long as there is room.
fn add_unheard(ends: &mut Vec<Undone>, unheard: Vec<Undone>, room: usize) {
    let known: BTreeSet<(JobId, u32)> = ends.iter().map(|end| (end.job, end.task)).collect();
    let new = unheard.into_iter().filter(|end| !known.contains(&(end.job, end.task)));
    ends.extend(new.take(room.saturating_sub(known.len())));
}

/// Nodes that have work and do not answer, and since when. Asked beside the planning, which must not wait for them.
#[derive(Clone, Default)]
struct Absent(Arc<Mutex<BTreeMap<NodeId, Instant>>>);

impl Absent {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn away(&self) -> BTreeMap<NodeId, Duration> {
        self.lock().iter().map(|(node, since)| (*node, since.elapsed())).collect()
    }

    /// Asks for as long as this node leads.
    async fn run(&self, handle: &Handle) {
        loop {
            self.lock().clear();
            until_leader(handle).await;
            while handle.pulse().is_leader() {
                self.ask(handle).await;
                tokio::time::sleep(PING).await;
            }
        }
    }

    /// Asks those who have work whether they are there; and those again that were not, so that nothing is given to them
    /// once they have none.
    async fn ask(&self, handle: &Handle) {
        let me = handle.whoami.node;
        let known: Vec<NodeId> = self.lock().keys().copied().collect();
        let busy = handle.look(move |see| {
            let state = see.replica.machine();
            let tasks = state.live_jobs().flat_map(|(_, job)| &job.tasks);
            let busy = tasks.filter_map(|task| Some(task.given()?.node));
            let known = known.into_iter().filter(|node| state.members().contains_key(node));
            busy.chain(known).collect::<BTreeSet<NodeId>>()
        });
        let Ok(busy) = busy.await else { return };
        self.lock().retain(|node, _| busy.contains(node));
        let Ok(ping) = encode(&Request::Ping) else { return };
        let begun = Instant::now();
        let calls = busy.into_iter().filter(|node| *node != me).map(|node| {
            let ping = ping.clone();
            async move { (node, handle.net.call(node, ping, PATIENCE).await.is_ok()) }
        });
        let mut calls = futures::stream::iter(calls).buffer_unordered(MAX_PINGS);
        while let Some((node, is_there)) = calls.next().await {
            let mut absent = self.lock();
            if is_there {
                absent.remove(&node);
            } else {
                absent.entry(node).or_insert(begun);
            }
        }
    }
}

/// What a node has told, and how long ago it was heard.
struct Seen {
    record: Record,
    silence: Duration,
}

fn records(handle: &Handle) -> BTreeMap<NodeId, Seen> {
    handle.hub.look(|view, now| {
        let all = view.nodes(now);
        all.map(|sight| {
            let record = Record { load: sight.load.clone(), ..sight.record.clone() };
            (sight.node, Seen { record, silence: sight.silence })
        })
        .collect()
    })
}

/// What the planner looks at.
fn view(
    state: &State,
    now: Time,
    records: &BTreeMap<NodeId, Seen>,
    away: &BTreeMap<NodeId, Duration>,
) -> View {
    let waiting: Vec<Waiting> =
        state.live_jobs().filter_map(|(id, job)| waiting(state, id, job)).collect();
    let wanted: BTreeSet<VersionId> = waiting.iter().flat_map(|job| wanted(&job.spec)).collect();
    let mut held = BTreeMap::<NodeId, BTreeSet<VersionId>>::new();
    for version in wanted {
        for holder in state.version(version).iter().flat_map(|version| &version.holders) {
            held.entry(*holder).or_default().insert(version);
        }
    }
    let running = running(state);
    let mut disks = BTreeMap::<NodeId, u64>::new();
    for one in &running {
        let disk = disks.entry(one.node).or_default();
        *disk = disk.saturating_add(one.allotment.disk_bytes);
    }
    // All members: what is not offered is not known to be there, and nobody decides about its tasks.
    let offers = state.members().keys().filter_map(|node| {
        let versions = held.remove(node).unwrap_or_default();
        let mut offer = offer(state, *node, records.get(node), away.get(node).copied(), versions)?;
        // What is free has been counted without what tasks were given.
        // A node may say anything about itself: a sum of such figures has to bear it.
        let given = disks.get(node).copied().unwrap_or(0);
        offer.disk_bytes = offer.disk_bytes.saturating_add(given);
        Some(offer)
    });
    View {
        now,
        settings: settings(),
        offers: offers.collect(),
        running,
        parties: standings(state),
        waiting,
    }
}

/// Versions that a task of this job fetches.
fn wanted(spec: &JobSpec) -> impl Iterator<Item = VersionId> {
    let data = spec.data.values().filter_map(Mount::version);
    let images = spec.groups.iter().filter_map(|group| match group.image.as_ref()? {
        crate::job::Image::Pushed { version, .. } => Some(*version),
        crate::job::Image::Named(_) => None,
    });
    data.chain(spec.code).chain(images)
}

fn offer(
    state: &State,
    node: NodeId,
    seen: Option<&Seen>,
    away: Option<Duration>,
    versions: BTreeSet<VersionId>,
) -> Option<Offer> {
    let member = state.members().get(&node).filter(|member| !member.leaving)?;
    let (facts, load) = seen.map(|seen| (&seen.record.facts, &seen.record.load)).unzip();
    let (facts, load) = (facts.cloned().unwrap_or_default(), load.cloned().unwrap_or_default());
    let gpus = facts.gpus.iter().enumerate().filter(|(_, gpu)| gpu.uuid != [0; 16]);
    let gpus = gpus.map(|(n, gpu)| Gpu {
        uuid: gpu.uuid,
        model: gpu.name.as_str().to_lowercase(),
        memory_mib: gpu.memory_mib,
        mig: None,
        healthy: load.gpus.get(n).is_none_or(|load| load.health == Health::default()),
        free: true,
    });
    // Of one that was never heard nobody knows what it has; it may be about to speak.
    let silence = seen.map_or(Duration::ZERO, |seen| seen.silence);
    let silent = (seen.is_none() || silence > SILENT).then_some(silence);
    Some(Offer {
        node,
        name: member.name.clone(),
        party: member.party,
        domain: member.report.domain.clone(),
        arch: facts.arch.as_str().to_owned(),
        labels: state.labels(node).map(|(key, value)| (key.clone(), value.clone())).collect(),
        cpu_milli: u64::from(facts.cpus) * 1000,
        memory_bytes: facts.memory_bytes,
        disk_bytes: load.disk_free_bytes,
        gpus: gpus.collect(),
        drained: state.is_drained(node),
        away: away.or(silent),
        docker: !facts.docker.as_str().is_empty(),
        versions,
        images: BTreeSet::new(),
        takes_others: state.takes_all(node),
        trains_for: state.trains_for(node),
    })
}

/// A job that has tasks without a place, and may start.
fn waiting(state: &State, id: JobId, job: &Job) -> Option<Waiting> {
    if job.stopping.is_some() || !state.may_start(job) {
        return None;
    }
    let waits = || job.tasks.iter().enumerate().filter(|(_, task)| task.is_waiting());
    let each = job.spec.place.each && job.tasks.is_empty();
    if !each && waits().next().is_none() {
        return None;
    }
    let mut failures = BTreeMap::<NodeId, u32>::new();
    for (node, count) in waits().flat_map(|(_, task)| &task.failed_on) {
        *failures.entry(*node).or_default() += count;
    }
    let interrupted = |task: &Task| task.attempts > task.failures && task.not_before.is_none();
    Some(Waiting {
        job: id,
        spec: job.spec.clone(),
        party: job.party,
        confined: confined(state, job.party, &job.spec),
        index: job.submitted.index,
        submitted: job.submitted.time,
        tasks: waits().map(|(number, _)| number as u32).collect(),
        not_before: waits().filter_map(|(_, task)| task.not_before).max().unwrap_or_default(),
        failures,
        preemptions: waits().map(|(_, task)| task.preemptions).max().unwrap_or(0),
        interrupted: waits().any(|(_, task)| interrupted(task)),
        others: job.tasks.iter().filter_map(|task| Some(task.given()?.node)).collect(),
    })
}

/// The party on whose nodes alone a job can run: what it needs or leaves behind is for no other.
fn confined(state: &State, party: PartyId, spec: &JobSpec) -> Option<PartyId> {
    let is_private =
        |version: VersionId| state.version(version).is_none_or(|version| version.body.is_sealed());
    let own = !spec.secrets.is_empty()
        || !spec.outputs.is_empty()
        || spec.checkpoint.is_some()
        || wanted(spec).any(is_private);
    own.then_some(party)
}

fn running(state: &State) -> Vec<Running> {
    let mut running = Vec::new();
    for (id, job) in state.live_jobs() {
        for (number, task) in job.tasks.iter().enumerate() {
            let Some(given) = task.given() else { continue };
            let number = number as u32;
            let ports = job.spec.group_of(number).map(|(group, _)| {
                let process = group.image.is_none();
                group.ports.values().filter(|_| process).flatten().copied().collect()
            });
            let grace = Duration::from_millis(job.spec.grace_ms);
            running.push(Running {
                job: id,
                task: number,
                fence: given.at.index,
                node: given.node,
                allotment: given.allotment.clone(),
                ports: ports.unwrap_or_default(),
                party: job.party,
                class: job.spec.class,
                grace_ms: job.spec.grace_ms,
                preemptions: task.preemptions,
                gang: job.spec.gang,
                stopping: given.ending.map(|ending| ending.since.after(grace)),
                since: given.at.time,
            });
        }
    }
    running
}

fn standings(state: &State) -> Vec<Standing> {
    let parties = state.parties().iter();
    parties
        .map(|(party, about)| {
            let Share { weight, quota } = state.share(*party);
            let quota = (quota != Quota::default()).then_some(quota);
            let (party, name, usage) = (*party, about.name.clone(), state.usage(*party));
            Standing { party, name, weight, quota, usage }
        })
        .collect()
}

/// What would come of a job if it were submitted now.
#[derive(Debug)]
pub struct Outlook {
    /// Why it can never be placed, if so.
    pub impossible: Option<Impossible>,
    shown: Value,
}

/// Why a job can never be placed.
#[derive(Debug)]
pub struct Impossible {
    /// In words.
    pub cause: String,
    /// What can be done about it.
    pub hint: String,
}

impl Outlook {
    /// As it is shown.
    pub fn json(self) -> Value {
        self.shown
    }
}

/// What would come of a job. Nothing is written.
pub async fn outlook(
    handle: &Handle,
    id: JobId,
    party: PartyId,
    spec: &JobSpec,
) -> Result<Outlook, ReadError> {
    let records = records(handle);
    let spec = Arc::new(spec.clone());
    let (asked, names) = (spec.clone(), handle.roster());
    let seen = handle.look(move |see| {
        let state = see.replica.machine();
        let mut view = view(state, see.replica.time(), &records, &BTreeMap::new());
        let confined = confined(state, party, &asked);
        let tasks = if asked.place.each { 0 } else { asked.tasks() };
        let now = view.now;
        view.waiting.push(Waiting {
            job: id,
            spec: asked,
            party,
            confined,
            index: u64::MAX,
            submitted: now,
            tasks: (0..tasks).collect(),
            not_before: Time(0),
            failures: BTreeMap::new(),
            preemptions: 0,
            interrupted: false,
            others: Vec::new(),
        });
        let jobs: BTreeMap<JobId, String> =
            state.live_jobs().map(|(id, job)| (id, job.spec.name.to_string())).collect();
        // Of a member that has not been heard yet nobody knows what it could run.
        let unheard = state.members().keys().any(|node| !records.contains_key(node));
        (view, jobs, unheard)
    });
    let (view, jobs, unheard) = seen.await?;
    let planned = tokio::task::spawn_blocking(move || {
        let plan = scheduler::plan(&view);
        let explained = scheduler::explain(&view, id);
        (plan, explained, view)
    });
    let (plan, explained, view) = planned.await.map_err(|_| ReadError::Stopping)?;
    let never = explained.as_ref().filter(|explained| explained.impossible && !unheard);
    let impossible = never.map(impossible);
    let name = |node: NodeId| {
        names.members.get(&node).map_or_else(|| node.short(), |place| place.name.to_string())
    };
    let places: Vec<Value> = plan
        .places
        .iter()
        .filter(|place| place.job == id)
        .map(|place| {
            let offer = view.offers.iter().find(|offer| offer.node == place.node);
            let fetch = offer.map(|offer| scheduler::bytes_to_fetch(&spec, offer));
            json!({
                "task": place.task,
                "node": name(place.node),
                "cpu_milli": place.allotment.cpu_milli,
                "memory_bytes": place.allotment.memory_bytes,
                "gpus": place.allotment.gpus.iter().map(crate::work::environment::uuid).collect::<Vec<_>>(),
                "fetch_bytes": fetch,
            })
        })
        .collect();
    let victims: Vec<Value> = plan
        .victims
        .iter()
        .filter(|victim| victim.for_job == id)
        .map(|victim| {
            let node = view.running.iter().find(|r| r.job == victim.job && r.task == victim.task);
            json!({
                "job": victim.job,
                "name": jobs.get(&victim.job),
                "task": victim.task,
                "node": node.map(|running| name(running.node)),
            })
        })
        .collect();
    let shown = json!({
        "name": spec.name.as_str(),
        "placed": !places.is_empty(),
        "places": places,
        "victims": victims,
        "impossible": impossible.as_ref().map(|why| json!({ "cause": why.cause, "hint": why.hint })),
        "ahead": explained.as_ref().map_or(0, |explained| explained.ahead.len()),
        "why": explained.as_ref().and_then(|explained| explained.why).map(why_text),
    });
    Ok(Outlook { impossible, shown })
}

/// Why no member can ever run it: what the one that comes closest lacks.
fn impossible(explained: &Explanation) -> Impossible {
    let cause = match &explained.closest {
        Some(closest) => {
            let lacks: Vec<String> = closest.lacks.iter().map(ToString::to_string).collect();
            format!("{} comes closest: {}", closest.name, lacks.join("; "))
        }
        None => "no member could ever run it".to_owned(),
    };
    let help = explained.help.first().map(|help| format!("what would help: {help}"));
    Impossible { cause, hint: help.unwrap_or_else(|| "mesh nodes shows what there is".into()) }
}

fn why_text(why: scheduler::Why) -> String {
    match why {
        scheduler::Why::NotBefore(time) => {
            format!("it failed, and is tried again at {}", clock::date(time))
        }
        scheduler::Why::Ending => "tasks of its gang have yet to end".into(),
        scheduler::Why::Quota => "its party has what it may have".into(),
        scheduler::Why::NoRoom => "there is no room for it now".into(),
        scheduler::Why::Reserved => {
            "there is no room for it now, and a place is kept for it".into()
        }
        scheduler::Why::NoNode => "no node at hand could run it".into(),
        scheduler::Why::Behind => "it waits behind others that have waited longer".into(),
        scheduler::Why::NextPlan => "it is about to be looked at".into(),
    }
}

/// Why a job is where it is, or nowhere. `None` if there is no such job.
pub async fn explain(handle: &Handle, id: JobId) -> Result<Option<Value>, ReadError> {
    let records = records(handle);
    let roster = handle.roster();
    let seen = handle.look(move |see| {
        let state = see.replica.machine();
        let job = state.job(id)?.clone();
        let view = view(state, see.replica.time(), &records, &BTreeMap::new());
        let jobs: BTreeMap<JobId, String> =
            state.live_jobs().map(|(id, job)| (id, job.spec.name.to_string())).collect();
        let held = state.may_start(&job);
        Some((job, view, jobs, held))
    });
    let Some((job, view, jobs, may_start)) = seen.await? else { return Ok(None) };
    let explained =
        tokio::task::spawn_blocking(move || scheduler::explain(&view, id)).await.ok().flatten();
    let name = |node: NodeId| {
        roster.members.get(&node).map_or_else(|| node.short(), |place| place.name.to_string())
    };
    let placed: Vec<Value> = job
        .tasks
        .iter()
        .enumerate()
        .filter_map(|(number, task)| {
            let given = task.given()?;
            Some(json!({
                "task": number,
                "node": name(given.node),
                "state": task.stage().name(),
                "since": clock::date(given.at.time),
            }))
        })
        .collect();
    let (nodes, ahead, help, why): (Vec<Value>, Vec<Value>, Vec<String>, Option<String>) =
        match &explained {
            Some(explained) => (
                explained
                    .nodes
                    .iter()
                    .map(|note| {
                        let why = note.why.as_ref().map(ToString::to_string);
                        json!({ "node": note.name.as_str(), "why": why })
                    })
                    .collect(),
                explained
                    .ahead
                    .iter()
                    .map(|id| json!({ "id": id, "name": jobs.get(id) }))
                    .collect(),
                explained.help.iter().map(ToString::to_string).collect(),
                match explained.impossible {
                    true => Some(impossible(explained).cause),
                    false => explained.why.map(why_text),
                },
            ),
            None => Default::default(),
        };
    let reason = match job.stage() {
        Stage::Waiting if !may_start => {
            let before = job.spec.after.iter().map(|id| {
                jobs.get(id).map_or_else(|| id.short(), |name| format!("{name} ({})", id.short()))
            });
            Some(format!("it starts after {}", before.collect::<Vec<_>>().join(", ")))
        }
        Stage::Waiting => why.or_else(|| job.reason()),
        _ => job.reason(),
    };
    Ok(Some(json!({
        "id": id,
        "name": job.spec.name.as_str(),
        "state": job.stage().name(),
        "reason": reason,
        "placed": placed,
        "nodes": nodes,
        "ahead": ahead,
        "help": help,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Allotment;
    use crate::state::command::{JobSubmit, TaskNews};
    use crate::state::jobs::News;
    use crate::state::jobs::tests::spec;
    use crate::state::level::LEVEL;
    use crate::state::testing::{Scene, id, node, party_id};

    fn job(n: u8) -> JobId {
        JobId([n; 16])
    }

    /// A job of one task on node 2, which may be told to be one for each node.
    fn placed(scene: &mut Scene, n: u8, each: bool) {
        let mut spec = spec("one", 1);
        spec.place.each = each;
        let submit = JobSubmit { job: job(n), party: party_id(1), spec: Box::new(spec) };
        scene.act(&node(1), submit).unwrap();
        let allotment = Allotment::default();
        let places = vec![Placed { job: job(n), task: 0, node: id(2), allotment }];
        let plans = scene.state.plans();
        scene.act(&node(1), Assign { plans, ends: Vec::new(), places }).unwrap();
    }

    #[test]
    fn what_a_vanished_node_never_took_up_goes_elsewhere_soon() {
        let mut scene = Scene::new();
        scene.raise_to(LEVEL);
        scene.join(1, 2).unwrap();
        scene.report(2, |report| report.level = LEVEL);
        scene.seat_voters(&[1]);
        for (n, each) in [(1, false), (2, false), (3, true)] {
            placed(&mut scene, n, each);
        }
        let fence = |scene: &Scene, n: u8| scene.state.job(job(n)).unwrap().tasks[0].fence;
        // The second runs there.
        let fence_of_two = fence(&scene, 2);
        let news = TaskNews { job: job(2), task: 0, fence: fence_of_two, news: News::Running };
        scene.act(&node(2), news).unwrap();

        let after = UNHEARD.min(settings().lost_after);
        let away = |time: Duration| BTreeMap::from([(id(2), time)]);
        assert_eq!(unheard(&scene.state, &BTreeMap::new()), []);
        assert_eq!(unheard(&scene.state, &away(after - Duration::from_millis(1))), []);
        let fence = fence(&scene, 1);
        let one = Undone { job: job(1), task: 0, fence, why: Why::Lost };
        assert_eq!(unheard(&scene.state, &away(after)), [one]);

        // Said once, and not more than fits.
        let mut ends = vec![one];
        add_unheard(&mut ends, vec![one], 8);
        assert_eq!(ends, [one]);
        let mut ends = Vec::new();
        add_unheard(&mut ends, vec![one], 0);
        assert_eq!(ends, []);
        let plans = scene.state.plans();
        let act = Assign { plans, ends: vec![one], places: Vec::new() };
        scene.act(&node(1), act).unwrap();
        assert!(scene.state.job(job(1)).unwrap().tasks[0].is_waiting());
    }
}
