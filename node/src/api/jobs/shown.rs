//! A job as it is shown.

use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::time::Time;
use serde_json::{Value, json};

use super::super::answer::date;
use super::course;
use crate::engine::Roster;
use crate::job::spec::OWN_BINARY;
use crate::job::training::Training;
use crate::job::{Class, Group, Image, JobSpec};
use crate::state::State;
use crate::state::jobs::{Exit, How, Job, Stage, Task};
use crate::state::name::Name;

/// A job in a list.
pub(super) fn row(state: &State, roster: &Roster, id: JobId, job: &Job) -> Value {
    let party = roster.parties.get(&job.party).map(ToString::to_string);
    let class = match job.spec.class {
        Class::Trial => "trial",
        Class::BestEffort => "best-effort",
    };
    let kind = match job.spec.training {
        Some(Training::Federated(_)) => "federated",
        Some(Training::Server(_)) => "parameter-server",
        None => "batch",
    };
    let tasks: Vec<Value> =
        job.tasks.iter().enumerate().map(|(n, one)| task(roster, id, job, n as u32, one)).collect();
    let ends = job.tasks.iter().filter_map(Task::end);
    let started = ends
        .filter_map(|end| end.running)
        .chain(job.tasks.iter().filter_map(|task| task.given()?.running))
        .min();
    let stage = job.stage();
    let reason = job.reason().or_else(|| held_up(state, job));
    json!({
        "id": id,
        "name": job.spec.name.as_str(),
        "kind": kind,
        "class": class,
        "priority": job.spec.priority,
        "state": stage.name(),
        "is_final": stage.is_final(),
        "reason": reason,
        "party": party,
        "user": job.spec.user,
        "submitted_at": date(job.submitted.time),
        "started_at": started.map(date),
        "ended_at": job.over.map(|over| date(over.time)),
        "round": course::round(job),
        "rounds": course::rounds(job),
        "gang": job.spec.gang,
        "tasks": tasks,
    })
}

/// A job by itself: all of it.
pub(super) fn whole(state: &State, roster: &Roster, id: JobId, job: &Job) -> Value {
    let mut item = row(state, roster, id, job);
    let spec = &*job.spec;
    let data = spec.data.iter().map(|(name, mount)| {
        json!({ "name": name.as_str(), "ref": mount.shown, "version": mount.version() })
    });
    item["data"] = data.collect();
    let outputs = job.outputs.iter().map(|((task, name), version)| {
        let place = state.version(*version).and_then(|version| version.body.place());
        let shown = place.map(|(name, number)| format!("{name}@{number}"));
        json!({ "task": task, "name": name.as_str(), "version": version, "ref": shown })
    });
    item["outputs"] = outputs.collect();
    item["code"] = json!(spec.code);
    item["params"] = json!(spec.params);
    item["env"] = json!(spec.env);
    // Their names only, ever.
    item["secrets"] = spec.secrets.keys().map(|key| json!(key)).collect();
    item["after"] = json!(spec.after);
    item["groups"] = groups(spec);
    item["grace_ms"] = json!(spec.grace_ms);
    item["time_limit_ms"] = json!(spec.time_limit_ms);
    item["attempts"] = json!(spec.retry.attempts);
    item["checkpoint"] = json!(spec.checkpoint.as_ref().map(|checkpoint| &checkpoint.path));
    item
}

fn groups(spec: &JobSpec) -> Value {
    let groups = spec.groups.iter().map(|group| {
        let resources = &group.resources;
        json!({
            "name": group.name.as_str(),
            "count": group.count,
            "command": command(group),
            "image": group.image.as_ref().map(Image::name),
            "cpu_milli": resources.least_cpu_milli(),
            "memory_bytes": resources.least_memory_bytes(),
            "gpus": resources.least_gpus(),
            "ports": ports(group),
            "party": group.party.as_ref().map(Name::as_str),
        })
    });
    groups.collect()
}

/// The command of a kind of task, with the node's own program as people call it.
fn command(group: &Group) -> Vec<&str> {
    let words = group.argv.iter().map(String::as_str);
    words.map(|word| if word == OWN_BINARY { "mesh" } else { word }).collect()
}

/// The ports of a kind of task, by name; null for one that its node picks.
fn ports(group: &Group) -> Value {
    group.ports.iter().map(|(name, port)| (name.to_string(), json!(port))).collect()
}

fn task(roster: &Roster, id: JobId, job: &Job, number: u32, task: &Task) -> Value {
    let name = |node: NodeId| {
        roster.members.get(&node).map_or_else(|| node.short(), |place| place.name.to_string())
    };
    let given = task.given();
    let end = task.end();
    let node = given.map(|given| given.node).or_else(|| end.and_then(|end| end.node));
    let (group, index) =
        job.spec.group_of(number).map_or(("worker", number), |(g, n)| (g.name.as_str(), n));
    let running = given.and_then(|given| given.running).or_else(|| end.and_then(|end| end.running));
    let time = |time: Option<Time>| time.map(date);
    json!({
        "id": format!("{}.{number}", id.short()),
        "number": number,
        "group": group,
        "index": index,
        "node": node.map(name),
        "node_id": node,
        "attempt": task.attempts,
        "fence": task.fence,
        "state": task.stage().name(),
        "exit_code": exit_code(task),
        "reason": reason(task),
        "failures": task.failures,
        "preemptions": task.preemptions,
        "checkpoint": task.checkpoint,
        "placed_at": given.map(|given| date(given.at.time)),
        "started_at": time(running),
        "ended_at": time(end.map(|end| end.at)),
    })
}

fn exit_code(task: &Task) -> Option<u8> {
    match task.end().map(|end| &end.how) {
        Some(How::Done) => Some(0),
        Some(How::Failed(Exit::Code(code))) => Some(*code),
        Some(How::Failed(Exit::Signal(signal))) => Some(128u8.saturating_add(*signal)),
        Some(How::Failed(Exit::Memory)) => Some(137),
        _ => None,
    }
}

fn reason(task: &Task) -> Option<String> {
    match (task.end().map(|end| &end.how), &task.last) {
        (Some(How::Failed(exit)), _) => Some(exit.text()),
        (Some(How::WithGang), _) => Some("another task of its gang failed".into()),
        (Some(How::Before(_)), _) => Some("a job before it was not done".into()),
        (Some(How::Lost), _) => Some("its node is gone".into()),
        (Some(How::Stopped), _) => Some("somebody stopped it".into()),
        (Some(How::LeftOut), _) => Some("the training ended without it".into()),
        (None, Some(exit)) if task.is_waiting() => Some(format!("after {}", exit.text())),
        _ => None,
    }
}

/// Why a job that has no place yet has none, as far as the state tells.
fn held_up(state: &State, job: &Job) -> Option<String> {
    if job.stage() != Stage::Waiting || state.may_start(job) {
        return None;
    }
    let before =
        job.spec.after.iter().filter(|id| state.job(**id).is_some_and(|j| j.over.is_none()));
    let names: Vec<String> = before.map(|id| id.short()).collect();
    Some(format!("after {}", names.join(", ")))
}
