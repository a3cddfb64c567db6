//! A job as it is shown.
//!
//! Everybody in the mesh sees which jobs there are, whose they are, where they are and what they need: who shares
//! machines has to. What a job runs, with which parameters and environment, on which data, and what it leaves behind, is
//! shown to its own party and to those that take part in it.

use mesh_consensus::id::{JobId, NodeId, PartyId};
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
use crate::work::Key;

/// Who looks at a job: the party of the node that is asked; `None` if that has none.
pub(super) type Viewer = Option<PartyId>;

/// Whether a party sees all of a job: it is its own, names it, or has or had a task of it on its nodes.
pub(super) fn takes_part(state: &State, viewer: Viewer, job: &Job) -> bool {
    let Some(viewer) = viewer else { return false };
    if job.party == viewer {
        return true;
    }
    let name = state.parties().get(&viewer).map(|party| &party.name);
    let is_it = |wanted: &Name| name == Some(wanted);
    let sums = matches!(
        &job.spec.training,
        Some(Training::Federated(asked)) if asked.aggregators.iter().any(is_it)
    );
    let is_named = job.spec.groups.iter().filter_map(|group| group.party.as_ref()).any(is_it);
    let nodes = job.tasks.iter().filter_map(place_of);
    sums || is_named || nodes.into_iter().any(|node| state.party_of(node) == Some(viewer))
}

/// Where a task is, or was at last.
fn place_of(task: &Task) -> Option<NodeId> {
    let given = task.given().map(|given| given.node);
    given.or_else(|| task.end().and_then(|end| end.node))
}

/// The tasks that run or ran in containers: where each is, and its last attempt.
pub(super) fn contained(id: JobId, job: &Job) -> Vec<(NodeId, Key)> {
    let tasks = job.tasks.iter().enumerate().map(|(number, task)| (number as u32, task));
    let contained = tasks.filter_map(|(number, task)| {
        let (group, _) = job.spec.group_of(number)?;
        group.image.as_ref()?;
        Some((place_of(task)?, Key { job: id, task: number, fence: task.fence }))
    });
    contained.collect()
}

/// A job in a list.
pub(super) fn row(state: &State, roster: &Roster, viewer: Viewer, id: JobId, job: &Job) -> Value {
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
        "user": takes_part(state, viewer, job).then_some(&job.spec.user),
        "submitted_at": date(job.submitted.time),
        "started_at": started.map(date),
        "ended_at": job.over.map(|over| date(over.time)),
        "round": course::round(job),
        "rounds": course::rounds(job),
        "gang": job.spec.gang,
        "tasks": tasks,
    })
}

/// A job by itself: all of it that is for this viewer.
pub(super) fn whole(state: &State, roster: &Roster, viewer: Viewer, id: JobId, job: &Job) -> Value {
    let mut item = row(state, roster, viewer, id, job);
    let spec = &*job.spec;
    let is_whole = takes_part(state, viewer, job);
    item["is_whole"] = json!(is_whole);
    item["groups"] = groups(spec, is_whole);
    if !is_whole {
        return item;
    }
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
    item["grace_ms"] = json!(spec.grace_ms);
    item["time_limit_ms"] = json!(spec.time_limit_ms);
    item["attempts"] = json!(spec.retry.attempts);
    item["checkpoint"] = json!(spec.checkpoint.as_ref().map(|checkpoint| &checkpoint.path));
    item
}

/// The kinds of tasks, and what each needs; and what they run, if that is for this viewer.
fn groups(spec: &JobSpec, is_whole: bool) -> Value {
    let groups = spec.groups.iter().map(|group| {
        let resources = &group.resources;
        let mut shown = json!({
            "name": group.name.as_str(),
            "count": group.count,
            "cpu_milli": resources.least_cpu_milli(),
            "memory_bytes": resources.least_memory_bytes(),
            "disk_bytes": resources.disk_bytes,
            "gpus": resources.least_gpus(),
            "party": group.party.as_ref().map(Name::as_str),
        });
        if is_whole {
            shown["command"] = json!(command(group));
            shown["image"] = json!(group.image.as_ref().map(Image::name));
            shown["ports"] = ports(group);
        }
        shown
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
    let node = place_of(task);
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

#[cfg(test)]
mod tests {
    use mesh_consensus::id::VersionId;

    use super::*;
    use crate::job::training::{Federated, Real, Select, Strategy, Wire};
    use crate::job::{Allotment, Checkpoint, Mount, Source};
    use crate::state::command::Label;
    use crate::state::jobs::{Assign, JobSubmit, Placed, TAKES, tests as jobs};
    use crate::state::testing::{Scene, id, name, node, party_id};

    const JOB: JobId = JobId([7; 16]);
    /// What only those who take part may see.
    const PRIVATE: [&str; 9] = [
        "hush-command",
        "HUSH_VARIABLE",
        "hush-value",
        "hush-parameter",
        "hush-data",
        "hush-dir",
        "hush-image",
        "hush-user",
        "0909",
    ];

    /// A job that has something in every place.
    fn spec() -> JobSpec {
        let mut spec = jobs::spec("theirs", 1);
        spec.groups[0].argv = vec!["hush-command".into()];
        spec.groups[0].image = Some(Image::Named("hush-image".into()));
        spec.env.insert("HUSH_VARIABLE".into(), "hush-value".into());
        spec.params.insert(name("hush-parameter"), "1".into());
        let (what, bytes) = (Source::Version(VersionId([9; 16])), 0);
        let mount = Mount { what, shown: Some("hush-data@1".into()), bytes };
        spec.data.insert(name("train"), mount);
        spec.checkpoint = Some(Checkpoint { path: "hush-dir".into(), every_ms: 1000 });
        spec.code = Some(VersionId([9; 16]));
        spec.user = "hush-user".into();
        spec
    }

    /// Two parties with a node each, and a job of the first.
    fn scene(spec: JobSpec) -> Scene {
        let mut scene = Scene::two_at_top();
        scene.seat_voters(&[1]);
        let new = JobSubmit { job: JOB, party: party_id(1), spec: Box::new(spec) };
        scene.act(&node(1), new).unwrap();
        scene
    }

    fn seen(scene: &Scene, viewer: Viewer) -> String {
        let job = scene.state.job(JOB).unwrap();
        whole(&scene.state, &Roster::default(), viewer, JOB, job).to_string()
    }

    #[test]
    fn another_party_sees_that_a_job_is_there_and_nothing_of_what_it_does() {
        let scene = scene(spec());
        let own = seen(&scene, Some(party_id(1)));
        for part in PRIVATE {
            assert!(own.contains(part), "{part} is not in {own}");
        }
        for viewer in [Some(party_id(2)), None] {
            let told = seen(&scene, viewer);
            for part in PRIVATE {
                assert!(!told.contains(part), "{part} is in {told}");
            }
            for part in ["theirs", "waiting", "trial", "cpu_milli", "submitted_at", "tasks"] {
                assert!(told.contains(part), "{part} is not in {told}");
            }
        }
    }

    #[test]
    fn who_takes_part_sees_what_runs_there() {
        let mut spec = spec();
        spec.groups[0].party = Some(name("p2"));
        let scene = scene(spec);
        assert!(seen(&scene, Some(party_id(2))).contains("hush-command"));
    }

    #[test]
    fn who_sums_or_has_a_task_sees_it_too() {
        let plain = || jobs::spec("plain", 1);
        let mut sums = plain();
        sums.groups[0].party = Some(name("p1"));
        sums.training = Some(Training::Federated(Federated {
            rounds: 1,
            strategy: Strategy::FedAvg { rate: Real::new(1.0).unwrap() },
            min_parties: 1,
            deadline_ms: None,
            aggregators: vec![name("p2")],
            wire: Wire::F32,
            select: Select::All,
            privacy: None,
            start: None,
            model: name("model"),
        }));
        let (summed, mut placed) = (scene(sums), scene(plain()));
        let sees = |scene: &Scene| {
            takes_part(&scene.state, Some(party_id(2)), scene.state.job(JOB).unwrap())
        };
        assert!(sees(&summed) && !sees(&placed));
        // Its owner lets others' work in.
        let value = Some("all".parse().unwrap());
        placed.act(&node(2), Label { node: id(2), key: name(TAKES), value }).unwrap();
        let plans = placed.state.plans();
        let places =
            vec![Placed { job: JOB, task: 0, node: id(2), allotment: Allotment::default() }];
        placed.act(&node(1), Assign { plans, ends: vec![], places }).unwrap();
        assert!(sees(&placed));
    }
}
