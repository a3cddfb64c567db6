//! Random meshes, stepped through time. Every plan of every step is checked by [`super::scene::check`].

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use proptest::prelude::*;

use super::scene::*;
use crate::job::{Class, GpuAsk, JobSpec, Range};
use crate::scheduler::*;

struct World {
    view: View,
    random: Rng,
    next: u16,
    index: u64,
    /// When attempts end by themselves.
    ends: BTreeMap<(JobId, u32), Time>,
    /// Every job as it was submitted.
    submitted: BTreeMap<JobId, Waiting>,
    preemptions: BTreeMap<(JobId, u32), u32>,
}

fn random_offer(random: &mut Rng, n: u8) -> Offer {
    let cpus = random.u64(2..=32);
    let gpus = [0, 0, 1, 2, 4, 8][random.usize(..6)];
    let mut offer = offer(n, cpus, gpus);
    offer.memory_bytes = random.u64(2..=64) * GIB;
    offer.party = party(random.u8(1..=3));
    offer.takes_others = random.u8(..5) > 0;
    offer.arch = if random.u8(..4) > 0 { "x86_64".into() } else { "aarch64".into() };
    offer.domain = (random.bool()).then(|| name(["a", "b"][random.usize(..2)]));
    offer.docker = random.u8(..4) > 0;
    if random.bool() {
        let value = ["north", "south"][random.usize(..2)];
        offer.labels.insert(name("site"), value.parse().unwrap());
    }
    for gpu in &mut offer.gpus {
        gpu.healthy = random.u8(..20) > 0;
        gpu.free = random.u8(..20) > 0;
        if random.u8(..3) == 0 {
            (gpu.model, gpu.memory_mib) = ("tesla p40".into(), 24 << 10);
        }
    }
    offer.versions.extend((0..random.u8(..3)).map(version));
    offer
}

fn random_spec(random: &mut Rng) -> JobSpec {
    let mut spec = spec(random.u64(1..=8), 0);
    let worker = &mut spec.groups[0];
    let range = |random: &mut Rng, most: u64| {
        let min = random.u64(1..=most);
        Range { min, max: min + random.u64(0..=most) * u64::from(random.u8(..4) == 0) }
    };
    if random.u8(..3) == 0 {
        let cpus = range(random, 8);
        worker.resources.cpu_milli = Some(Range { min: cpus.min * 500, max: cpus.max * 500 });
    }
    let memory = range(random, 8);
    worker.resources.memory_bytes = Some(Range { min: memory.min * GIB, max: memory.max * GIB });
    worker.resources.disk_bytes = random.u64(..200) * GIB;
    if random.bool() {
        let models = if random.u8(..4) == 0 { vec!["a100".into()] } else { Vec::new() };
        let min_memory_mib = if random.u8(..4) == 0 { 40 << 10 } else { 0 };
        let count = range(random, 4);
        worker.resources.gpus = Some(GpuAsk { count, models, min_memory_mib, ..ask(1) });
    }
    worker.count = [1, 1, 1, 2, 3, 6][random.usize(..6)];
    if random.u8(..8) == 0 {
        worker.ports.insert(name("http"), Some(8000 + random.u16(..2)));
    }
    if random.u8(..6) == 0 {
        worker.image = Some(crate::job::Image::Named("python".into()));
    }
    if random.u8(..6) == 0 {
        let mut second = worker.clone();
        (second.name, second.count) = (name("ps"), 1);
        second.resources.gpus = None;
        spec.groups.push(second);
    }
    spec.gang = random.u8(..3) == 0;
    spec.class = if random.u8(..3) == 0 { Class::Trial } else { Class::BestEffort };
    spec.priority = [50, 50, 50, 20, 90][random.usize(..5)];
    spec.grace_ms = random.u64(1..=120) * SECOND;
    let place = &mut spec.place;
    match random.u8(..12) {
        0 => drop(place.labels.insert(name("site"), "north".parse().unwrap())),
        1 => place.arch = Some("x86_64".into()),
        2 => place.party = Some(name("p2")),
        3 => place.spread = Some(name("domain")),
        4 => place.spread = Some(name("node")),
        5 => place.pack = true,
        6 => place.each = spec.groups.len() == 1,
        _ => {}
    }
    if random.u8(..4) == 0 {
        spec = reads(spec, random.u8(..3), random.u64(..100) * GIB);
    }
    spec
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let count = random.u8(1..=8);
        let mut view = mesh((1..=count).map(|n| random_offer(&mut random, n)));
        view.settings.max_preemptions = random.u32(..3);
        view.settings.backfill = random.u8(..4) > 0;
        view.settings.patience = seconds(random.u64(..400));
        view.settings.reservations = random.usize(..4);
        view.settings.max_changes = [8, 16, 1024][random.usize(..3)];
        for party in &mut view.parties {
            party.weight = random.u32(1..4);
            if random.u8(..6) == 0 {
                party.quota = Some(Quota { cpu_milli: Some(random.u64(1..40) * 1000), gpus: None });
            }
        }
        Self {
            view,
            random,
            next: 1,
            index: 1,
            ends: BTreeMap::new(),
            submitted: BTreeMap::new(),
            preemptions: BTreeMap::new(),
        }
    }

    fn submit(&mut self, spec: JobSpec) {
        let mut waiting = waits(self.next, spec);
        waiting.submitted = self.view.now;
        waiting.party = party(self.random.u8(1..=3));
        if self.random.u8(..10) == 0 {
            waiting.confined = Some(waiting.party);
        }
        if self.random.u8(..10) == 0 {
            waiting.not_before = self.view.now.after(seconds(self.random.u64(..100)));
        }
        if self.random.u8(..6) == 0 {
            let on = node(self.random.u8(1..=8));
            waiting.failures.insert(on, self.random.u32(1..4));
        }
        self.next += 1;
        self.submitted.insert(waiting.job, waiting.clone());
        self.view.waiting.push(waiting);
    }

    /// An attempt is over, and its task waits again if it was interrupted.
    fn end(&mut self, job: JobId, task: u32, again: bool) -> Option<Running> {
        let at =
            self.view.running.iter().position(|other| (other.job, other.task) == (job, task))?;
        let ended = self.view.running.remove(at);
        self.ends.remove(&(job, task));
        let used = shares::points(&ended.allotment, self.view.now.since(ended.since));
        let party = self.view.parties.iter_mut().find(|party| party.party == ended.party).unwrap();
        party.usage.add(self.view.now, used);
        let original = self.submitted.get(&job)?.clone();
        if again && !original.spec.place.each {
            let waiting = self.view.waiting.iter().position(|waiting| waiting.job == job);
            let mut waiting = match waiting {
                Some(at) => self.view.waiting.remove(at),
                None => Waiting { tasks: Vec::new(), interrupted: true, ..original },
            };
            waiting.tasks.push(task);
            waiting.tasks.sort();
            waiting.interrupted = true;
            let most = waiting.tasks.iter().filter_map(|task| self.preemptions.get(&(job, *task)));
            waiting.preemptions = most.copied().max().unwrap_or(0);
            self.view.waiting.push(waiting);
        }
        Some(ended)
    }

    /// Time passes; what is over ends. Tells what has ended.
    fn pass(&mut self, time: u64) -> Vec<(JobId, u32)> {
        self.view.now = Time(self.view.now.0 + time);
        let now = self.view.now;
        let over = self.view.running.iter().filter(|other| match other.stopping {
            Some(until) => until <= now,
            None => self.ends.get(&(other.job, other.task)).is_some_and(|end| *end <= now),
        });
        let over: Vec<(JobId, u32, bool)> =
            over.map(|other| (other.job, other.task, other.stopping.is_some())).collect();
        over.iter().for_each(|(job, task, again)| drop(self.end(*job, *task, *again)));
        over.into_iter().map(|(job, task, _)| (job, task)).collect()
    }

    fn carry_out(&mut self, plan: &Plan) {
        self.index += 1;
        for victim in &plan.victims {
            *self.preemptions.entry((victim.job, victim.task)).or_default() += 1;
        }
        for lost in &plan.lost {
            let gone = self.end(lost.job, lost.task, true).unwrap();
            if gone.gang {
                let mates = self.view.running.iter_mut().filter(|other| other.job == lost.job);
                mates.for_each(|mate| mate.stopping = Some(Time(self.view.now.0 + mate.grace_ms)));
            }
        }
        for place in &plan.places {
            let party = self.submitted[&place.job].party;
            let party = self.view.parties.iter_mut().find(|each| each.party == party).unwrap();
            party.usage.add(self.view.now, shares::entrance(&place.allotment));
            let end = self.view.now.after(seconds(self.random.u64(1..1000)));
            self.ends.insert((place.job, place.task), end);
        }
        let lost = Plan { lost: Vec::new(), ..plan.clone() };
        self.view.carry_out(&lost, self.index);
    }

    fn shake(&mut self) {
        let n = self.random.usize(..self.view.offers.len());
        let offer = &mut self.view.offers[n];
        match self.random.u8(..10) {
            0 => offer.drained = !offer.drained,
            1 => offer.away = None,
            2 => offer.away = Some(seconds(self.random.u64(..120))),
            _ => {}
        }
    }
}

fn shuffled(view: &View, seed: u64) -> View {
    let mut random = Rng::with_seed(seed);
    let mut view = view.clone();
    random.shuffle(&mut view.offers);
    random.shuffle(&mut view.waiting);
    random.shuffle(&mut view.running);
    random.shuffle(&mut view.parties);
    for offer in &mut view.offers {
        random.shuffle(&mut offer.gpus);
    }
    view
}

/// Where there are victims, somebody would have had no place without them.
fn check_that_victims_are_needed(view: &View, plan: &Plan) {
    if plan.victims.is_empty() {
        return;
    }
    let mut peaceful = view.clone();
    peaceful.settings.max_preemptions = 0;
    let without = super::super::plan(&peaceful);
    let count = |plan: &Plan, job| plan.places.iter().filter(|place| place.job == job).count();
    // The first that has others preempted finds everything as it is without preemption.
    let lacks = |place: &Placement| count(&without, place.job) < count(plan, place.job);
    assert!(plan.places.iter().any(lacks), "there was room without victims");
}

/// So many worlds, unless somebody asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn no_plan_of_any_world_breaks_a_rule_and_the_order_of_lists_does_not_matter(seed in any::<u64>()) {
        let mut world = World::new(seed);
        for step in 0..25 {
            let time = world.random.u64(..120) * SECOND;
            world.pass(time);
            for _ in 0..world.random.usize(..4) {
                let spec = random_spec(&mut world.random);
                world.submit(spec);
            }
            world.shake();
            let plan = world.view.planned();
            prop_assert_eq!(&plan, &super::super::plan(&shuffled(&world.view, seed ^ step)));
            check_that_victims_are_needed(&world.view, &plan);
            for waiting in world.view.waiting.iter().take(2) {
                let told = explain(&world.view, waiting.job).unwrap();
                let places: Vec<&Placement> =
                    plan.places.iter().filter(|place| place.job == waiting.job).collect();
                prop_assert_eq!(told.places.iter().collect::<Vec<_>>(), places);
                prop_assert!(!(told.impossible && told.why.is_none()));
            }
            world.carry_out(&plan);
        }
    }

    #[test]
    fn a_board_that_is_kept_plans_like_one_that_is_new(seed in any::<u64>()) {
        let mut world = World::new(seed);
        let mut board = Board::of(&world.view);
        for _ in 0..40 {
            let time = world.random.u64(..120) * SECOND;
            let ended = world.pass(time);
            let now = world.view.now;
            let again: BTreeSet<JobId> = ended.iter().map(|(job, _)| *job).collect();
            ended.iter().for_each(|(job, task)| board.end(*job, *task, now));
            for _ in 0..world.random.usize(..4) {
                let spec = random_spec(&mut world.random);
                world.submit(spec);
                board.wait(world.view.waiting.last().unwrap().clone());
            }
            for job in world.view.waiting.iter().filter(|waiting| again.contains(&waiting.job)) {
                board.wait(job.clone());
            }
            let (fresh, kept) = (plan(&world.view), board.plan(now));
            prop_assert_eq!(&fresh.places, &kept.places);
            let names = |plan: &Plan| {
                plan.victims.iter().map(|each| (each.job, each.task, each.for_job)).collect::<Vec<_>>()
            };
            prop_assert_eq!(names(&fresh), names(&kept));
            prop_assert_eq!((fresh.more, fresh.again_at), (kept.more, kept.again_at));
            world.carry_out(&fresh);
            let partly = fresh.places.iter().map(|place| place.job).collect::<BTreeSet<_>>();
            // Where its others are is news to the board.
            for job in world.view.waiting.iter().filter(|waiting| partly.contains(&waiting.job)) {
                board.wait(job.clone());
            }
        }
    }

    #[test]
    fn whoever_is_first_in_line_starts_within_the_bound(seed in any::<u64>()) {
        const LONGEST: u64 = 1000;
        let mut random = Rng::with_seed(seed);
        let mut world = World::new(seed);
        let nodes = random.u8(1..=5);
        world.view.offers = (1..=nodes).map(|n| offer(n, 8, 4)).collect();
        world.view.settings = Settings { patience: seconds(random.u64(..600)), ..Settings::default() };
        world.view.parties.iter_mut().for_each(|party| party.quota = None);
        let patience = world.view.settings.patience;
        // When each job came to be the first that waits.
        let mut first: BTreeMap<JobId, Time> = BTreeMap::new();
        let mut arrival = world.view.now;
        for _ in 0..400 {
            if arrival <= world.view.now {
                // More than fits, most of it small: without a bound large ones would never start.
                let large = random.u8(..8) == 0;
                let mut spec = match (large, random.u8(..3)) {
                    (false, _) => spec(random.u64(1..=3), random.u64(..2)),
                    (true, 0) => spec(8, 0),
                    (true, 1) => spec(1, 4),
                    (true, _) => gang(nodes.into(), spec(5, 1)),
                };
                spec.class = if seed % 2 == 0 { Class::Trial } else { Class::BestEffort };
                let mut waiting = waits(world.next, spec);
                waiting.submitted = world.view.now;
                world.next += 1;
                world.submitted.insert(waiting.job, waiting.clone());
                world.view.waiting.push(waiting);
                arrival = world.view.now.after(seconds(random.u64(1..60)));
            }
            let plan = world.view.planned();
            world.index += 1;
            world.view.carry_out(&plan, world.index);
            for place in &plan.places {
                let end = world.view.now.after(seconds(random.u64(1..=LONGEST)));
                world.ends.insert((place.job, place.task), end);
            }
            let head = world.view.waiting.iter().min_by_key(|waiting| waiting.index);
            if let Some(head) = head {
                let since = *first.entry(head.job).or_insert(world.view.now);
                let due = since.max(head.submitted.after(patience)).after(seconds(LONGEST));
                prop_assert!(world.view.now < due, "{:?} has waited for too long", head.job);
            }
            let ends = world.ends.values().copied();
            let next = ends.chain([arrival]).chain(plan.again_at).filter(|time| *time > world.view.now);
            let next = next.min().unwrap();
            world.pass(next.0 - world.view.now.0);
        }
        prop_assert!(first.len() > 5, "hardly anybody had to wait: {}", first.len());
    }
}
