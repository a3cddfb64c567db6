//! How a training goes, as it is shown.

use std::collections::BTreeMap;

use axum::extract::State;
use mesh_consensus::id::{JobId, NodeId, VersionId};
use serde_json::{Value, json};

use super::super::Api;
use super::super::answer::{Answer, Param, Problem, date, has_state, item};
use super::super::route::Route;
use super::find_job;
use crate::engine::Roster;
use crate::job::training::{Federated, Select, Training};
use crate::state;
use crate::state::course::{Course, Model, Open, Point, Record, Verdict};
use crate::state::jobs::{How, Job, Task};
use crate::state::server::{Shard, Stage};
use crate::training::straggler::{Standing, shares, standing, tier_of, whole_ms};

pub(super) fn routes() -> Vec<Route> {
    vec![Route::get(
        "/v1/jobs/{job}/course",
        "How the training of a job goes: its rounds, its participants, its metrics.",
        show,
    )]
}

async fn show(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let roster = api.roster();
    let found = api.look(move |see| {
        let state = see.replica.machine();
        let (id, job) = find_job(state, &wanted)?;
        whole(state, &roster, id, job).ok_or_else(|| {
            Problem::refused(
                format!("{} trains nothing", job.spec.name),
                "only a job with [federated] or [server] in its job.toml trains",
                format!("mesh job show {}", id.short()),
            )
        })
    });
    Ok(item(&api, found.await??))
}

/// How many rounds are in the model that stands; `None` before there is one.
pub(super) fn round(job: &Job) -> Option<u32> {
    job.course.as_ref()?.model.as_ref().map(|model| model.round)
}

/// How many rounds there will be, if it trains.
pub(super) fn rounds(job: &Job) -> Option<u32> {
    job.spec.training.as_ref().map(Training::rounds)
}

/// All of it; `None` if the job trains nothing.
pub(super) fn whole(state: &state::State, roster: &Roster, id: JobId, job: &Job) -> Option<Value> {
    let (Some(training), Some(course)) = (&job.spec.training, &job.course) else {
        return None;
    };
    let asked = match training {
        Training::Federated(asked) => Some(asked),
        Training::Server(_) => None,
    };
    let look = Look { state, roster, job, asked, course, shares: shares(&course.records) };
    let tasks = job.tasks.iter().enumerate();
    let participants: Vec<Value> =
        tasks.map(|(number, task)| look.participant(number as u32, task)).collect();
    let stage = job.stage();
    Some(json!({
        "id": id,
        "name": job.spec.name.as_str(),
        "state": stage.name(),
        "is_final": stage.is_final(),
        "reason": job.reason(),
        "coordinator": course.lease.map(|lease| look.node(lease.node)),
        "round": round(job),
        "rounds": training.rounds(),
        "unit": if asked.is_some() { "round" } else { "step" },
        "min_parties": asked.map(|asked| asked.min_parties),
        "model": course.model.as_ref().map(|model| look.model(model)),
        "open": course.open.as_ref().map(|open| look.open(open)),
        "participants": participants,
        "curve": course.curve.iter().map(point).collect::<Vec<Value>>(),
        "verdict": course.verdict.as_ref().map(|verdict| look.verdict(verdict)),
        "budget": look.budget(),
        "shards": look.shards(id),
    }))
}

/// A point of a curve.
fn point(point: &Point) -> Value {
    json!({ "round": point.round, "at": date(point.at), "metrics": metrics(point) })
}

/// The metrics of a round, by name.
pub(in crate::api) fn metrics(point: &Point) -> Value {
    let metrics = point.metrics.iter().map(|(name, value)| (name.to_string(), value.get()));
    json!(metrics.collect::<BTreeMap<String, f64>>())
}

/// What a training is looked at with.
struct Look<'a> {
    state: &'a state::State,
    roster: &'a Roster,
    job: &'a Job,
    /// Of a federated job.
    asked: Option<&'a Federated>,
    course: &'a Course,
    /// How much each participant contributed.
    shares: BTreeMap<u32, f64>,
}

impl Look<'_> {
    fn node(&self, node: NodeId) -> String {
        let place = self.roster.members.get(&node);
        place.map_or_else(|| node.short(), |place| place.name.to_string())
    }

    /// A participant by its party.
    fn party(&self, task: u32) -> String {
        match self.job.spec.group_of(task) {
            Some((group, _)) if self.asked.is_some() => group.name.to_string(),
            Some((group, number)) => format!("{}-{number}", group.name),
            None => format!("task {task}"),
        }
    }

    /// Where the shards of a parameter server are; null where there is none.
    fn shards(&self, id: JobId) -> Value {
        let Some(laid) = self.state.laid(id) else { return Value::Null };
        let shard = |shard: &Shard| {
            let stage = match shard.stage {
                Stage::Fresh => "fresh",
                Stage::Copying => "copying",
                Stage::Ready => "ready",
            };
            json!({
                "primary": self.node(shard.primary),
                "backup": shard.backup.map(|node| self.node(node)),
                "stage": stage,
                "epoch": shard.epoch,
            })
        };
        let shards: Vec<Value> = laid.shards.iter().map(shard).collect();
        json!(shards)
    }

    /// A version by its name, as its party calls it; `None` if that is private.
    fn version(&self, version: VersionId) -> Option<String> {
        let (name, number) = self.state.version(version)?.body.place()?;
        Some(format!("{name}@{number}"))
    }

    fn model(&self, model: &Model) -> Value {
        let pieces = model.weights.iter().map(|piece| piece.bytes);
        let holders: Vec<String> = model.holders.iter().map(|node| self.node(*node)).collect();
        json!({
            "round": model.round,
            "bytes": pieces.fold(0, u64::saturating_add),
            "holders": holders,
        })
    }

    fn open(&self, open: &Open) -> Value {
        let selected: Vec<String> = open.selected.iter().map(|task| self.party(*task)).collect();
        let aggregators: Vec<String> =
            open.aggregators.iter().map(|node| self.node(*node)).collect();
        json!({
            "round": open.round,
            "selected": selected,
            "aggregators": aggregators,
            "deadline_ms": open.deadline_ms,
            "since": date(open.since),
        })
    }

    fn verdict(&self, verdict: &Verdict) -> Value {
        let (how, version, why) = match verdict {
            Verdict::Done { model } => ("done", Some(*model), None),
            Verdict::Spent { model } => ("spent", Some(*model), None),
            Verdict::Failed(why) => ("failed", None, Some(why.to_string())),
        };
        let model = version.and_then(|version| self.version(version));
        json!({ "state": how, "model": model, "version": version, "why": why })
    }

    /// What may be spent, and for how many rounds somebody was charged; null where nothing is kept private.
    fn budget(&self) -> Value {
        let privacy = self.asked.and_then(|asked| asked.privacy.as_ref());
        let Some(privacy) = privacy else { return Value::Null };
        let charged = self.course.charged.values().max().copied().unwrap_or(0);
        json!({
            "epsilon": privacy.epsilon.get(),
            "delta": privacy.delta.get(),
            "noise": privacy.noise.get(),
            "charged_rounds": charged,
        })
    }

    fn participant(&self, number: u32, task: &Task) -> Value {
        let nothing = Record::default();
        let record = self.course.records.get(&number).unwrap_or(&nothing);
        let times = Some(record.times).filter(|times| whole_ms(times) > 0);
        let (standing, why) = self.standing(number, task, record);
        let given = task.given().map(|given| given.node);
        let node = given.or_else(|| task.end().and_then(|end| end.node));
        let tier = match self.asked.map(|asked| &asked.select) {
            Some(Select::Tiers { tiers, .. }) => tier_of(number, &self.course.records, *tiers),
            _ => None,
        };
        json!({
            "party": self.party(number),
            "task": number,
            "node": node.map(|node| self.node(node)),
            "state": task.stage().name(),
            "standing": standing.as_str(),
            "why": why,
            "taken": record.taken,
            "late": record.late,
            "refused": record.refused,
            "missed": record.missed,
            "missed_in_a_row": record.missed_in_a_row,
            "examples": record.examples,
            "share": self.shares.get(&number).copied().unwrap_or(0.0),
            "tier": tier,
            "fetch_ms": times.map(|times| times.fetch_ms),
            "compute_ms": times.map(|times| times.compute_ms),
            "upload_ms": times.map(|times| times.upload_ms),
            "charged_rounds": self.course.charged.get(&number).copied().unwrap_or(0),
        })
    }

    /// How it stands, and what there is to say about that. Who ended before the training did is dropped, whatever it sent.
    fn standing(&self, number: u32, task: &Task, record: &Record) -> (Standing, Option<String>) {
        match task.end().map(|end| &end.how) {
            Some(How::Failed(exit)) => (Standing::Dropped, Some(exit.text())),
            Some(How::Lost) => (Standing::Dropped, Some("its node is gone".into())),
            Some(How::LeftOut) => (Standing::Dropped, Some("the training ended without it".into())),
            _ => {
                let standing = standing(number, &self.course.records);
                let why = match standing {
                    Standing::Dropped => {
                        Some(format!("it missed the last {} rounds", record.missed_in_a_row))
                    }
                    _ => record.why.as_ref().map(ToString::to_string),
                };
                (standing, why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mesh_consensus::id::Hash;
    use mesh_consensus::time::Time;

    use super::*;
    use crate::job::training::{Real, Strategy, Wire};
    use crate::job::{Allotment, Group};
    use crate::state::course::{
        Counted, CountedAs, CourseClaim, CourseEnd, CourseRound, Piece, Times,
    };
    use crate::state::jobs::{Assign, Exit, JobSubmit, News, Placed, TaskNews, tests as jobs};
    use crate::state::level::LEVEL;
    use crate::state::testing::{Scene, id, name, node, party_id};

    const JOB: JobId = JobId([7; 16]);

    fn real(number: f64) -> Real {
        Real::new(number).unwrap()
    }

    /// A training of two participants, both on the one node there is.
    fn begun() -> Scene {
        let mut scene = Scene::new();
        scene.raise_to(LEVEL);
        scene.seat_voters(&[1]);
        let mut spec = jobs::spec("train", 1);
        let group = spec.groups[0].clone();
        spec.groups = ["p1", "p2"]
            .map(|label| Group { name: name(label), party: Some(name("p1")), ..group.clone() })
            .to_vec();
        spec.training = Some(Training::Federated(Federated {
            rounds: 5,
            strategy: Strategy::FedAvg { rate: real(1.0) },
            min_parties: 1,
            deadline_ms: None,
            aggregators: vec![name("p1")],
            wire: Wire::F32,
            select: Select::All,
            privacy: None,
            start: None,
            model: name("model"),
        }));
        let new = JobSubmit { job: JOB, party: party_id(1), spec: Box::new(spec) };
        scene.act(&node(1), new).unwrap();
        let place = |task| Placed { job: JOB, task, node: id(1), allotment: Allotment::default() };
        let (plans, places) = (scene.state.plans(), vec![place(0), place(1)]);
        scene.act(&node(1), Assign { plans, ends: vec![], places }).unwrap();
        scene.act(&node(1), CourseClaim { job: JOB, ms: 5000 }).unwrap();
        scene
    }

    fn open(round: u32) -> Open {
        Open {
            round,
            selected: BTreeSet::from([0, 1]),
            aggregators: vec![id(1)],
            since: Time(0),
            deadline_ms: Some(900),
        }
    }

    fn taken(scene: &Scene, task: u32, round: u32, examples: u64) -> Counted {
        let fence = scene.state.job(JOB).unwrap().tasks[task as usize].fence;
        let times = Some(Times { fetch_ms: 10, compute_ms: 20, upload_ms: 30 });
        let (serial, base, update) = (u64::from(round) + 1, round.saturating_sub(1), Hash([3; 32]));
        Counted { task, how: CountedAs::Taken { fence, serial, base, examples, update }, times }
    }

    /// Says what came of the open round, and opens the next.
    fn go_on(scene: &mut Scene, model: Option<u32>, counted: Vec<Counted>, next: u32) {
        let epoch = scene.state.course(JOB).unwrap().lease.unwrap().epoch;
        let piece = |n: u8| Piece { hash: Hash([n; 32]), bytes: 8 };
        let metrics = match model {
            Some(_) => BTreeMap::from([(name("loss"), real(0.5))]),
            None => BTreeMap::new(),
        };
        let model = model.map(|round| Model {
            round,
            layout: piece(1),
            weights: vec![piece(2), piece(3)],
            optimiser: vec![],
            holders: BTreeSet::from([id(1)]),
        });
        let act = CourseRound { job: JOB, epoch, model, counted, metrics, open: Some(open(next)) };
        scene.act(&node(1), act).unwrap();
    }

    fn shown(scene: &Scene) -> Value {
        let job = scene.state.job(JOB).unwrap();
        whole(&scene.state, &Roster::default(), JOB, job).unwrap()
    }

    #[test]
    fn a_training_is_shown_round_by_round_and_participant_by_participant() {
        let mut scene = begun();
        let first = shown(&scene);
        assert_eq!((&first["round"], &first["rounds"]), (&Value::Null, &json!(5)));
        assert_eq!((&first["model"], &first["verdict"]), (&Value::Null, &Value::Null));
        assert_eq!(first["participants"][1]["standing"], "good");
        assert_eq!(first["participants"][1]["compute_ms"], Value::Null);
        go_on(&mut scene, None, vec![], 0);
        let one = vec![taken(&scene, 0, 0, 30)];
        go_on(&mut scene, Some(0), one, 1);
        let two =
            vec![taken(&scene, 0, 1, 30), Counted { task: 1, how: CountedAs::Missed, times: None }];
        go_on(&mut scene, Some(1), two, 2);
        let three = vec![taken(&scene, 0, 2, 30), taken(&scene, 1, 2, 20)];
        go_on(&mut scene, Some(2), three, 3);

        let now = shown(&scene);
        // Nobody has told the roster, so a node goes by its id.
        assert_eq!((&now["coordinator"], &now["round"]), (&json!(id(1).short()), &json!(2)));
        assert_eq!((&now["model"]["bytes"], &now["model"]["round"]), (&json!(16), &json!(2)));
        assert_eq!(now["model"]["holders"], json!([id(1).short()]));
        assert_eq!(now["open"]["selected"], json!(["p1", "p2"]));
        assert_eq!((&now["open"]["round"], &now["open"]["deadline_ms"]), (&json!(3), &json!(900)));
        assert_eq!(now["curve"].as_array().unwrap().len(), 3);
        assert_eq!(now["curve"][2]["metrics"], json!({ "loss": 0.5 }));
        let (one, two) = (&now["participants"][0], &now["participants"][1]);
        assert_eq!(
            (&one["party"], &one["task"], &one["taken"]),
            (&json!("p1"), &json!(0), &json!(2))
        );
        assert_eq!((&one["examples"], &one["share"]), (&json!(60), &json!(0.75)));
        assert_eq!((&two["missed"], &two["share"]), (&json!(1), &json!(0.25)));
        assert_eq!((&two["fetch_ms"], &two["upload_ms"]), (&json!(10), &json!(30)));
        assert_eq!(now["budget"], Value::Null);
    }

    #[test]
    fn who_ended_early_is_dropped_and_a_verdict_says_why() {
        let mut scene = begun();
        let fence = scene.state.job(JOB).unwrap().tasks[1].fence;
        let news = News::Ended(Exit::Code(3));
        scene.act(&node(1), TaskNews { job: JOB, task: 1, fence, news }).unwrap();
        let epoch = scene.state.course(JOB).unwrap().lease.unwrap().epoch;
        let verdict = Verdict::Failed("too few parties".parse().unwrap());
        scene.act(&node(1), CourseEnd { job: JOB, epoch, verdict }).unwrap();
        let now = shown(&scene);
        let two = &now["participants"][1];
        assert_eq!((&two["standing"], &two["why"]), (&json!("dropped"), &json!("exit code 3")));
        let verdict = &now["verdict"];
        assert_eq!(
            (&verdict["state"], &verdict["why"]),
            (&json!("failed"), &json!("too few parties"))
        );
    }

    #[test]
    fn a_job_that_trains_nothing_has_no_course_to_show() {
        let mut scene = Scene::new();
        scene.raise_to(LEVEL);
        let spec = Box::new(jobs::spec("plain", 1));
        scene.act(&node(1), JobSubmit { job: JOB, party: party_id(1), spec }).unwrap();
        let job = scene.state.job(JOB).unwrap();
        assert_eq!(whole(&scene.state, &Roster::default(), JOB, job), None);
        assert_eq!((round(job), rounds(job)), (None, None));
    }
}
