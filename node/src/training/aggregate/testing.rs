//! A training for tests: of party 1, with two tasks at nodes 1 and 2; parties 2 and 5 take part, party 3 sums, node 4 coordinates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mesh_consensus::id::{Hash, NodeId, PartyId};
use mesh_consensus::time::Time;

use crate::job::Allotment;
use crate::job::training::{Federated, Real, Select, Strategy, Training, Wire};
use crate::state::Moment;
use crate::state::course::{Course, Lease, Model, Open, Piece, Times};
use crate::state::jobs::{Given, Job, Phase, Task, TaskState};
use crate::state::name::Name;
use crate::training::wire::UpdateHead;
use crate::training::{pack, shards};

pub(crate) fn node(n: u8) -> NodeId {
    NodeId([n; 32])
}

pub(crate) fn party(n: u8) -> PartyId {
    PartyId([n; 32])
}

pub(crate) fn name(n: u8) -> Name {
    format!("party-{n}").parse().unwrap()
}

/// How many values the model has.
pub(crate) fn values() -> u64 {
    3000
}

/// The fence of a task.
fn fence(task: u32) -> u64 {
    10 + u64::from(task)
}

fn real(number: f64) -> Real {
    Real::new(number).unwrap()
}

fn task(number: u32) -> Task {
    let given = Given {
        node: node(number as u8 + 1),
        at: Moment { index: fence(number), time: Time(1) },
        allotment: Allotment::default(),
        phase: Phase::Running,
        endpoint: None,
        running: Some(Time(2)),
        ending: None,
    };
    Task {
        state: TaskState::Given(given),
        attempts: 1,
        fence: fence(number),
        failures: 0,
        preemptions: 0,
        failed_on: BTreeMap::new(),
        not_before: None,
        checkpoint: None,
        staged: None,
        drafts: BTreeMap::new(),
        last: None,
    }
}

pub(crate) fn job() -> Job {
    let mut spec = crate::state::jobs::tests::spec("train", 1);
    spec.groups[0].party = Some(name(2));
    let mut other = spec.groups[0].clone();
    (other.name, other.party) = (name(5), Some(name(5)));
    spec.groups.push(other);
    spec.training = Some(Training::Federated(Federated {
        rounds: 100,
        strategy: Strategy::FedAvg { rate: real(1.0) },
        min_parties: 1,
        deadline_ms: None,
        aggregators: vec![name(3)],
        wire: Wire::F32,
        select: Select::All,
        privacy: None,
        start: None,
        model: name(1),
    }));
    Job {
        party: party(1),
        author: node(1),
        submitted: Moment { index: 2, time: Time(1) },
        spec: Arc::new(spec),
        tasks: vec![task(0), task(1)],
        stopping: None,
        over: None,
        outputs: BTreeMap::new(),
        course: None,
    }
}

/// The model of this round stands, and the next one is open. Node 3 sums the second of two shards.
pub(crate) fn course(round: u32) -> Course {
    let weights = [0, 1].map(|shard| Piece {
        hash: Hash([20 + shard as u8; 32]),
        bytes: 4 * shards::range(values(), 2, shard).len() as u64,
    });
    let model = Model {
        round,
        layout: Piece { hash: Hash([1; 32]), bytes: 100 },
        weights: weights.to_vec(),
        optimiser: Vec::new(),
        holders: BTreeSet::from([node(3)]),
    };
    let open = Open {
        round: round + 1,
        selected: BTreeSet::from([0, 1]),
        aggregators: vec![node(4), node(3)],
        since: Time(5),
        deadline_ms: None,
    };
    let lease = Lease { node: node(4), epoch: 50, ms: 3000, until: Time(9000) };
    Course { lease: Some(lease), model: Some(model), open: Some(open), ..Course::default() }
}

/// Shard 1 of an update that begins from model 5.
pub(crate) fn head(task: u32, serial: u64) -> UpdateHead {
    let range = shards::range(values(), 2, 1);
    let bytes = pack::packed_bytes(range.len(), Wire::F32);
    UpdateHead {
        job: mesh_consensus::id::JobId([7; 16]),
        task,
        fence: fence(task),
        serial,
        round: 6,
        base: Some(5),
        shard: 1,
        shards: 2,
        values: values(),
        layout: None,
        piece: Piece { hash: Hash([30; 32]), bytes },
        update: Hash([31; 32]),
        examples: 100,
        metrics: BTreeMap::new(),
        evaluated: None,
        times: Times::default(),
    }
}
