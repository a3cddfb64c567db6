//! Small meshes for tests: nodes, jobs and parties by number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::time::Time;

use super::super::*;
use crate::job::training::{Federated, Select, Strategy, Training, Wire};
use crate::job::{Class, GpuAsk, Group, JobSpec, Mount, Place, Range, Resources, Retry, Source};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const SECOND: u64 = 1000;
pub(super) const NOW: Time = Time(1_000_000 * SECOND);

pub(super) fn node(n: u8) -> NodeId {
    NodeId([n; 32])
}

pub(super) fn party(n: u8) -> PartyId {
    PartyId([n; 32])
}

pub(super) fn job(n: u16) -> JobId {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&n.to_be_bytes());
    JobId(id)
}

pub(super) fn version(n: u8) -> VersionId {
    VersionId([n; 16])
}

pub(super) fn name(text: &str) -> crate::state::name::Name {
    text.parse().unwrap()
}

pub(super) fn uuid(n: u8, gpu: u8) -> [u8; 16] {
    let mut uuid = [n; 16];
    uuid[15] = gpu;
    uuid
}

/// A node of party 1 with so many CPUs and GPUs, and 8 GiB of memory for each CPU.
pub(super) fn offer(n: u8, cpus: u64, gpus: u8) -> Offer {
    let gpu = |gpu| Gpu {
        uuid: uuid(n, gpu),
        model: "nvidia a100-sxm4-80gb".into(),
        memory_mib: 80 << 10,
        mig: None,
        healthy: true,
        free: true,
    };
    Offer {
        node: node(n),
        name: name(&format!("n{n}")),
        party: party(1),
        domain: None,
        arch: "x86_64".into(),
        labels: BTreeMap::new(),
        cpu_milli: cpus * 1000,
        memory_bytes: cpus * 8 * GIB,
        disk_bytes: 1000 * GIB,
        gpus: (0..gpus).map(gpu).collect(),
        drained: false,
        away: None,
        docker: true,
        versions: BTreeSet::new(),
        images: BTreeSet::new(),
        takes_others: true,
        trains_for: BTreeSet::new(),
    }
}

/// A best-effort job with one task that wants so many CPUs and GPUs, and 1 GiB.
pub(super) fn spec(cpus: u64, gpus: u64) -> JobSpec {
    let resources = Resources {
        cpu_milli: Some(Range::just(cpus * 1000)),
        memory_bytes: Some(Range::just(GIB)),
        gpus: (gpus > 0).then(|| ask(gpus)),
        ..Resources::default()
    };
    let worker = Group {
        name: name("worker"),
        count: 1,
        argv: vec!["true".into()],
        image: None,
        resources,
        ports: BTreeMap::new(),
        party: None,
    };
    JobSpec {
        name: name("job"),
        class: Class::BestEffort,
        priority: 50,
        after: Vec::new(),
        groups: vec![worker],
        gang: false,
        data: BTreeMap::new(),
        outputs: BTreeMap::new(),
        code: None,
        checkpoint: None,
        grace_ms: 30 * SECOND,
        retry: Retry::default(),
        time_limit_ms: None,
        place: Place::default(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        params: BTreeMap::new(),
        user: String::new(),
        training: None,
    }
}

pub(super) fn ask(gpus: u64) -> GpuAsk {
    GpuAsk {
        count: Range::just(gpus),
        min_memory_mib: 0,
        max_memory_mib: None,
        models: Vec::new(),
        mig: None,
    }
}

pub(super) fn trial(cpus: u64, gpus: u64) -> JobSpec {
    JobSpec { class: Class::Trial, ..spec(cpus, gpus) }
}

/// So many tasks, all or none.
pub(super) fn gang(tasks: u32, mut spec: JobSpec) -> JobSpec {
    spec.groups[0].count = tasks;
    spec.gang = true;
    spec
}

pub(super) fn tasks(tasks: u32, mut spec: JobSpec) -> JobSpec {
    spec.groups[0].count = tasks;
    spec
}

/// A job that trains, with one task for each of these parties.
pub(super) fn trains(parties: &[u8], mut spec: JobSpec) -> JobSpec {
    let group = |party: &u8| {
        let name = name(&format!("p{party}"));
        Group { name: name.clone(), party: Some(name), ..spec.groups[0].clone() }
    };
    spec.groups = parties.iter().map(group).collect();
    spec.training = Some(Training::Federated(Federated {
        rounds: 1,
        strategy: Strategy::Median,
        min_parties: 1,
        deadline_ms: None,
        aggregators: vec![name("p1")],
        wire: Wire::F32,
        select: Select::All,
        privacy: None,
        start: None,
        model: name("model"),
    }));
    spec
}

pub(super) fn reads(mut spec: JobSpec, n: u8, bytes: u64) -> JobSpec {
    let mount = Mount { what: Source::Version(version(n)), shown: None, bytes };
    spec.data.insert(name(&format!("d{n}")), mount);
    spec
}

/// A job of party 1 that was submitted just now, as the `n`-th.
pub(super) fn waits(n: u16, spec: JobSpec) -> Waiting {
    let each = spec.place.each;
    Waiting {
        job: job(n),
        party: party(1),
        confined: None,
        index: u64::from(n),
        submitted: NOW,
        tasks: if each { Vec::new() } else { (0..spec.tasks()).collect() },
        not_before: Time(0),
        failures: BTreeMap::new(),
        preemptions: 0,
        interrupted: false,
        others: Vec::new(),
        spec: Arc::new(spec),
    }
}

pub(super) fn standing(n: u8) -> Standing {
    Standing {
        party: party(n),
        name: name(&format!("p{n}")),
        weight: 1,
        quota: None,
        usage: Usage::default(),
    }
}

/// A mesh of these nodes where nothing runs and nothing waits.
pub(super) fn mesh(offers: impl IntoIterator<Item = Offer>) -> View {
    View {
        now: NOW,
        settings: Settings::default(),
        offers: offers.into_iter().collect(),
        waiting: Vec::new(),
        running: Vec::new(),
        parties: vec![standing(1), standing(2), standing(3)],
    }
}

impl View {
    pub(super) fn with(mut self, n: u16, spec: JobSpec) -> Self {
        self.waiting.push(waits(n, spec));
        self
    }

    pub(super) fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting.push(waiting);
        self
    }

    /// Has a job run there, wherever it would have gone by itself: on `cpus` CPUs and these GPUs.
    pub(super) fn runs(mut self, n: u16, on: u8, spec: JobSpec, gpus: &[u8]) -> Self {
        let task = self.running.iter().filter(|other| other.job == job(n)).count();
        let least = &spec.groups[0].resources;
        self.running.push(Running {
            job: job(n),
            task: u32::try_from(task).unwrap(),
            fence: 1000 + u64::from(n),
            node: node(on),
            allotment: Allotment {
                cpu_milli: least.least_cpu_milli(),
                memory_bytes: least.least_memory_bytes(),
                disk_bytes: 0,
                gpus: gpus.iter().map(|gpu| uuid(on, *gpu)).collect(),
            },
            ports: Vec::new(),
            party: party(1),
            class: spec.class,
            grace_ms: spec.grace_ms,
            preemptions: 0,
            gang: spec.gang,
            stopping: None,
            since: Time(NOW.0 - 3600 * SECOND + u64::from(n)),
        });
        self
    }

    /// Changes what was added last to what runs.
    pub(super) fn but(mut self, change: impl FnOnce(&mut Running)) -> Self {
        change(self.running.last_mut().unwrap());
        self
    }

    pub(super) fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// The plan, after a look at whether it is one.
    pub(super) fn planned(&self) -> Plan {
        let plan = plan(self);
        check(self, &plan);
        plan
    }

    /// Where the tasks of a job go, by number.
    pub(super) fn places(&self, n: u16) -> Vec<u8> {
        places(&self.planned(), n)
    }

    /// Carries out a plan, as the entry with this index.
    pub(super) fn carry_out(&mut self, plan: &Plan, index: u64) {
        for lost in &plan.lost {
            self.running.retain(|other| (other.job, other.task) != (lost.job, lost.task));
        }
        for victim in &plan.victims {
            let is_meant =
                |other: &&mut Running| (other.job, other.task) == (victim.job, victim.task);
            let victim = self.running.iter_mut().find(is_meant).unwrap();
            victim.stopping = Some(Time(self.now.0 + victim.grace_ms));
        }
        for place in &plan.places {
            let waiting = self.waiting.iter_mut().find(|job| job.job == place.job).unwrap();
            waiting.tasks.retain(|task| *task != place.task);
            let spec = &waiting.spec;
            let group = spec.group_of(place.task).map_or(&spec.groups[0], |(group, _)| group);
            self.running.push(Running {
                job: place.job,
                task: place.task,
                fence: index,
                node: place.node,
                allotment: place.allotment.clone(),
                ports: match group.image {
                    None => group.ports.values().copied().flatten().collect(),
                    Some(_) => Vec::new(),
                },
                party: waiting.party,
                class: spec.class,
                grace_ms: spec.grace_ms,
                preemptions: waiting.preemptions,
                gang: spec.gang,
                stopping: None,
                since: self.now,
            });
            waiting.others.push(place.node);
        }
        let placed = |job: &Waiting| plan.places.iter().any(|place| place.job == job.job);
        self.waiting.retain(|job| !(job.tasks.is_empty() && placed(job)));
    }
}

pub(super) fn places(plan: &Plan, n: u16) -> Vec<u8> {
    let mut places: Vec<&Placement> =
        plan.places.iter().filter(|each| each.job == job(n)).collect();
    places.sort_by_key(|place| place.task);
    places.into_iter().map(|place| place.node.0[0]).collect()
}

/// The jobs that make room, each once.
pub(super) fn victims(plan: &Plan) -> Vec<JobId> {
    let jobs: BTreeSet<JobId> = plan.victims.iter().map(|victim| victim.job).collect();
    jobs.into_iter().collect()
}

pub(super) fn why(plan: &Plan, n: u16) -> Option<Why> {
    plan.left.iter().find(|left| left.job == job(n)).map(|left| left.why)
}

pub(super) fn usage(points: u64) -> Usage {
    let mut usage = Usage::default();
    usage.add(NOW, points);
    usage
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Everything that must hold of a plan, written down once more and in another way than the planner has it.
pub(super) fn check(view: &View, plan: &Plan) {
    assert_eq!(*plan, super::super::plan(view), "the same view, another plan");
    assert!(
        plan.places.len() + plan.victims.len() + plan.lost.len() <= view.settings.max_changes,
        "the plan is too long"
    );
    for place in &plan.places {
        check_place(view, place);
    }
    for waiting in &view.waiting {
        check_job(view, waiting, plan);
    }
    check_victims(view, plan);
    for offer in &view.offers {
        check_node(view, plan, offer);
    }
}

fn check_place(view: &View, place: &Placement) {
    let waiting = view.waiting.iter().find(|job| job.job == place.job).unwrap();
    let offer = view.offers.iter().find(|offer| offer.node == place.node).unwrap();
    let (spec, wants) = (&waiting.spec, &waiting.spec.place);
    let group = spec.group_of(place.task).map_or(&spec.groups[0], |(group, _)| group);
    assert!(!offer.drained && offer.away.is_none(), "{place:?} on a node that takes nothing");
    assert!(waiting.not_before <= view.now, "{place:?} before its time");
    let is_welcome = match spec.training {
        Some(_) => offer.trains_for.contains(&waiting.party),
        None => offer.takes_others,
    };
    assert!(is_welcome || offer.party == waiting.party, "{place:?} is not welcome");
    let owner = view.parties.iter().find(|party| party.party == offer.party);
    let owner = owner.map(|party| &party.name);
    assert!(group.party.is_none() || group.party.as_ref() == owner, "{place:?} is not there");
    assert!(waiting.confined.is_none_or(|party| party == offer.party), "{place:?} is confined");
    assert!(wants.labels.iter().all(|(key, value)| offer.labels.get(key) == Some(value)));
    assert!(wants.nodes.is_empty() || wants.nodes.contains(&offer.name));
    assert!(wants.arch.as_ref().is_none_or(|arch| *arch == offer.arch));
    assert!(group.image.is_none() || offer.docker);
    assert!(place.allotment.is_sound(), "{place:?}");
    let Resources { cpu_milli, memory_bytes, disk_bytes, gpus, .. } = &group.resources;
    let within = |range: Option<Range>, default: u64, got: u64| {
        range.map_or(got == default, |range| (range.min..=range.max).contains(&got))
    };
    assert!(within(*cpu_milli, 1000, place.allotment.cpu_milli), "{place:?}");
    assert!(within(*memory_bytes, GIB, place.allotment.memory_bytes), "{place:?}");
    assert_eq!(*disk_bytes, place.allotment.disk_bytes);
    let count = gpus.as_ref().map(|ask| ask.count);
    assert!(within(count, 0, place.allotment.gpus.len() as u64), "{place:?}");
    for uuid in &place.allotment.gpus {
        let (gpu, ask) =
            (offer.gpus.iter().find(|gpu| gpu.uuid == *uuid).unwrap(), gpus.as_ref().unwrap());
        assert!(gpu.healthy && gpu.free && gpu.mig == ask.mig, "{place:?}");
        assert!(gpu.memory_mib >= ask.min_memory_mib, "{place:?}");
        assert!(ask.models.is_empty() || ask.models.iter().any(|model| gpu.model.contains(model)));
    }
}

fn check_job(view: &View, waiting: &Waiting, plan: &Plan) {
    let placed: Vec<u32> = plan
        .places
        .iter()
        .filter(|place| place.job == waiting.job)
        .map(|place| place.task)
        .collect();
    let once: BTreeSet<u32> = placed.iter().copied().collect();
    assert_eq!(once.len(), placed.len(), "a task was placed twice");
    if waiting.spec.place.each {
        assert!(once.iter().copied().eq(0..placed.len() as u32), "they count from 0");
        return;
    }
    assert!(
        once.iter().all(|task| waiting.tasks.contains(task)),
        "a task was placed that did not wait"
    );
    if waiting.spec.gang {
        let whole = placed.len() == waiting.spec.tasks() as usize;
        assert!(placed.is_empty() || whole, "a gang was torn apart");
    }
    let left = plan.left.iter().any(|left| left.job == waiting.job);
    let whole = placed.len() == waiting.tasks.len();
    assert!(!(left && whole), "a job was left although it was placed");
    // With strict order, those behind the first that waits are not listed.
    assert!(left || whole || plan.more || !view.settings.backfill, "a job was forgotten");
}

fn check_victims(view: &View, plan: &Plan) {
    let of = |victim: &Victim| {
        view.running
            .iter()
            .find(|other| (other.job, other.task) == (victim.job, victim.task))
            .unwrap()
    };
    let mut seen = BTreeSet::new();
    for victim in &plan.victims {
        let running = of(victim);
        assert!(seen.insert((victim.job, victim.task)), "asked twice");
        assert_eq!(running.fence, victim.fence);
        assert_eq!(running.class, Class::BestEffort, "{victim:?}");
        assert!(running.preemptions < view.settings.max_preemptions, "{victim:?}");
        assert!(running.stopping.is_none(), "{victim:?}");
        let for_job = view.waiting.iter().find(|job| job.job == victim.for_job).unwrap();
        assert_eq!(for_job.spec.class, Class::Trial);
        assert!(
            plan.places.iter().any(|place| place.job == victim.for_job),
            "for nothing: {victim:?}"
        );
        if running.gang {
            let mates = view.running.iter().filter(|other| other.job == victim.job);
            let all = mates.into_iter().all(|mate| {
                plan.victims.iter().any(|other| (other.job, other.task) == (mate.job, mate.task))
            });
            assert!(all, "a gang was torn apart: {victim:?}");
        }
        let owner = view.offers.iter().find(|offer| offer.node == running.node).unwrap().party;
        assert!(running.party != owner || for_job.party == owner, "a guest chased out its host");
    }
}

/// What attempts have on a node that were not asked to end, and that were.
fn check_node(view: &View, plan: &Plan, offer: &Offer) {
    let asked = |other: &Running| {
        other.stopping.is_some()
            || plan
                .victims
                .iter()
                .any(|victim| (victim.job, victim.task) == (other.job, other.task))
    };
    let there = || view.running.iter().filter(|other| other.node == offer.node);
    let stays: Vec<&Running> = there().filter(|other| !asked(other)).collect();
    let new: Vec<&Placement> =
        plan.places.iter().filter(|place| place.node == offer.node).collect();
    if new.is_empty() {
        return;
    }
    let have = || {
        stays.iter().map(|other| &other.allotment).chain(new.iter().map(|place| &place.allotment))
    };
    let sum = |of: fn(&Allotment) -> u64| have().map(of).sum::<u64>();
    assert!(sum(|a| a.cpu_milli) <= offer.cpu_milli, "{} has too few CPUs", offer.name);
    assert!(sum(|a| a.memory_bytes) <= offer.memory_bytes, "{} has too little memory", offer.name);
    assert!(sum(|a| a.disk_bytes) <= offer.disk_bytes, "{} has too little disk", offer.name);
    let gpus: Vec<[u8; 16]> = have().flat_map(|a| a.gpus.iter().copied()).collect();
    let once: BTreeSet<[u8; 16]> = gpus.iter().copied().collect();
    assert_eq!(once.len(), gpus.len(), "a GPU of {} was given away twice", offer.name);

    // Every victim is needed: none could have stayed.
    let leaving: Vec<&Running> = there().filter(|other| asked(other)).collect();
    for victim in leaving.iter().filter(|other| other.stopping.is_none() && !other.gang) {
        let Allotment { cpu_milli, memory_bytes, disk_bytes, gpus } = &victim.allotment;
        let needed = gpus.iter().any(|gpu| once.contains(gpu))
            || sum(|a| a.cpu_milli) + cpu_milli > offer.cpu_milli
            || sum(|a| a.memory_bytes) + memory_bytes > offer.memory_bytes
            || sum(|a| a.disk_bytes) + disk_bytes > offer.disk_bytes;
        assert!(needed, "{:?} could have stayed", victim.job);
    }

    // Best-effort tasks wait for nobody's end.
    let is_trial = |place: &&Placement| {
        view.waiting.iter().any(|job| job.job == place.job && job.spec.class == Class::Trial)
    };
    if new.iter().any(is_trial) {
        return;
    }
    let before = there().map(|other| other.allotment.cpu_milli).sum::<u64>();
    let all =
        sum(|a| a.cpu_milli) + leaving.iter().map(|other| other.allotment.cpu_milli).sum::<u64>();
    assert!(all <= offer.cpu_milli || before > offer.cpu_milli, "{} is not free yet", offer.name);
    let taken: BTreeSet<&[u8; 16]> = new.iter().flat_map(|place| &place.allotment.gpus).collect();
    let mut busy = leaving.iter().flat_map(|other| &other.allotment.gpus);
    assert!(busy.all(|gpu| !taken.contains(gpu)), "a GPU of {} is not free yet", offer.name);
}
