//! How fast the planner is.
//!
//! ```text
//! cargo run --release -q -p mesh-node --example bench_planner -- [--quick] [--json]
//! ```
//!
//! A mesh of many kinds of nodes, and ten jobs that wait for each of them. The planner is asked as the leader asks it:
//! with a view, for one entry of the log at a time, until there is nothing left to place. Only its own time counts, not
//! that of carrying out what it says. About a tenth of the jobs do not find room, so that it also sees what waits.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use mesh_consensus::id::{JobId, NodeId, PartyId, VersionId};
use mesh_consensus::time::Time;
use mesh_node::job::{
    Class, GpuAsk, Group, JobSpec, Mount, Place, Range, Resources, Retry, Source,
};
use mesh_node::scheduler::{
    Gpu, Offer, Plan, Running, Settings, Standing, Usage, View, Waiting, plan,
};
use mesh_node::state::name::Name;

const GIB: u64 = 1 << 30;
const NOW: Time = Time(1_800_000_000_000);
const JOBS_PER_NODE: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut quick, mut json) = (false, false);
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--quick" => quick = true,
            "--json" => json = true,
            other => return Err(format!("unknown argument {other:?}").into()),
        }
    }
    let rounds = if quick { 3 } else { 15 };
    let sizes = [100, 178, 316, 562, 1000];
    let mut measured: Vec<Vec<Filled>> = sizes.iter().map(|_| Vec::new()).collect();
    // All sizes take turns, so that a slow minute is slow for all of them.
    for round in 0..rounds {
        for (size, filled) in sizes.iter().zip(&mut measured) {
            filled.push(fill(*size, round, Kinds::Some)?);
        }
    }
    let all_different: Vec<Filled> =
        (0..rounds).map(|round| fill(1000, round, Kinds::All)).collect::<Result<_, _>>()?;
    report(&measured, &all_different, json);
    Ok(())
}

/// What it took to fill a mesh.
struct Filled {
    nodes: usize,
    jobs: usize,
    placements: usize,
    plans: usize,
    time: Duration,
    /// Of one more plan, when nothing fits any more.
    full: Duration,
    left: usize,
}

fn fill(nodes: usize, seed: u64, kinds: Kinds) -> Result<Filled, Box<dyn Error>> {
    let mut view = mesh(nodes, seed, kinds)?;
    let jobs = view.waiting.len();
    let mut filled = Filled {
        nodes,
        jobs,
        placements: 0,
        plans: 0,
        time: Duration::ZERO,
        full: Duration::ZERO,
        left: 0,
    };
    loop {
        let (plan, took) = timed(|| plan(&view));
        filled.plans += 1;
        filled.time += took;
        filled.placements += plan.places.len();
        carry_out(&mut view, &plan);
        if !plan.more {
            break;
        }
    }
    let (plan, took) = timed(|| plan(&view));
    (filled.full, filled.left) = (took, plan.left.len());
    Ok(filled)
}

#[expect(clippy::disallowed_methods, reason = "this is a measuring tool")]
fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start = std::time::Instant::now();
    let made = act();
    (made, start.elapsed())
}

fn carry_out(view: &mut View, plan: &Plan) {
    let mut placed: BTreeMap<JobId, BTreeSet<u32>> = BTreeMap::new();
    for place in &plan.places {
        placed.entry(place.job).or_default().insert(place.task);
    }
    let jobs: BTreeMap<JobId, (PartyId, Arc<JobSpec>)> =
        view.waiting.iter().map(|job| (job.job, (job.party, job.spec.clone()))).collect();
    for place in &plan.places {
        let (party, spec) = &jobs[&place.job];
        view.running.push(Running {
            job: place.job,
            task: place.task,
            fence: 1,
            node: place.node,
            allotment: place.allotment.clone(),
            ports: Vec::new(),
            party: *party,
            class: spec.class,
            grace_ms: spec.grace_ms,
            preemptions: 0,
            gang: spec.gang,
            stopping: None,
            since: view.now,
        });
    }
    for waiting in &mut view.waiting {
        if let Some(tasks) = placed.get(&waiting.job) {
            waiting.tasks.retain(|task| !tasks.contains(task));
        }
    }
    view.waiting.retain(|job| !job.tasks.is_empty());
}

/// How many kinds of jobs there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kinds {
    /// Many are alike, as people's jobs are.
    Some,
    /// No two ask for the same.
    All,
}

fn mesh(nodes: usize, seed: u64, kinds: Kinds) -> Result<View, Box<dyn Error>> {
    let mut random = Rng::with_seed(seed);
    let parties = (1..=3u8).map(|n| -> Result<Standing, Box<dyn Error>> {
        Ok(Standing {
            party: PartyId([n; 32]),
            name: format!("party-{n}").parse()?,
            weight: 1,
            quota: None,
            usage: Usage::default(),
        })
    });
    let offers = (0..nodes).map(|n| offer(&mut random, n)).collect::<Result<Vec<_>, _>>()?;
    let waiting = (0..nodes * JOBS_PER_NODE)
        .map(|n| job(&mut random, n, kinds))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(View {
        now: NOW,
        settings: Settings::default(),
        offers,
        waiting,
        running: Vec::new(),
        parties: parties.collect::<Result<_, _>>()?,
    })
}

fn version(n: u8) -> VersionId {
    VersionId([n; 16])
}

fn name(text: &str) -> Result<Name, Box<dyn Error>> {
    Ok(text.parse()?)
}

fn offer(random: &mut Rng, n: usize) -> Result<Offer, Box<dyn Error>> {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(n as u64).to_be_bytes());
    // Three of ten have no GPU; the others have eight of one of three models.
    let gpus: u8 = if random.u8(..10) < 3 { 0 } else { 8 };
    let (model, memory_mib) =
        [("nvidia a100", 80 << 10), ("nvidia h100", 80 << 10), ("tesla p40", 24 << 10)]
            [random.usize(..3)];
    let gpu = |gpu: u8| {
        let mut uuid = [gpu; 16];
        uuid[..8].copy_from_slice(&(n as u64).to_be_bytes());
        Gpu { uuid, model: model.into(), memory_mib, mig: None, healthy: true, free: true }
    };
    let site = ["north", "south", "east", "west"][random.usize(..4)];
    Ok(Offer {
        node: NodeId(id),
        name: name(&format!("n{n}"))?,
        party: PartyId([random.u8(1..=3); 32]),
        domain: Some(name(&format!("rack-{}", n / 16))?),
        arch: "x86_64".into(),
        labels: BTreeMap::from([(name("site")?, site.parse()?)]),
        cpu_milli: if gpus > 0 { 128_000 } else { 64_000 },
        memory_bytes: if gpus > 0 { 1024 * GIB } else { 256 * GIB },
        disk_bytes: 4096 * GIB,
        gpus: (0..gpus).map(gpu).collect(),
        drained: false,
        away: None,
        docker: true,
        versions: (0..4).map(|_| version(random.u8(..40))).collect(),
        images: BTreeSet::new(),
        takes_others: true,
        trains_for: BTreeSet::new(),
    })
}

fn job(random: &mut Rng, n: usize, kinds: Kinds) -> Result<Waiting, Box<dyn Error>> {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&(n as u64).to_be_bytes());
    let gpus = match random.u8(..100) {
        0..60 => 0,
        60..88 => 1,
        88..94 => 2,
        94..98 => 4,
        _ => 8,
    };
    let cpus = random.u64(1..=4) * gpus.max(2);
    let mut resources = Resources {
        cpu_milli: Some(Range::just(cpus * 1000)),
        memory_bytes: Some(Range::just(cpus * 4 * GIB)),
        ..Resources::default()
    };
    if kinds == Kinds::All {
        resources.memory_bytes = Some(Range::just(cpus * 4 * GIB + n as u64));
    }
    if gpus > 0 {
        resources.gpus = Some(GpuAsk {
            count: Range::just(gpus),
            min_memory_mib: if random.u8(..4) == 0 { 40 << 10 } else { 0 },
            max_memory_mib: None,
            models: Vec::new(),
            mig: None,
        });
    }
    let mut place = Place::default();
    if random.u8(..5) == 0 {
        place.labels.insert(name("site")?, ["north", "south"][random.usize(..2)].parse()?);
    }
    let mut data = BTreeMap::new();
    if random.bool() {
        let mount =
            Mount { what: Source::Version(version(random.u8(..40))), shown: None, bytes: 20 * GIB };
        data.insert(name("train")?, mount);
    }
    let gang = random.u8(..20) == 0;
    let count = if gang { random.u32(2..=4) } else { 1 };
    let group = Group {
        name: name("worker")?,
        count,
        argv: vec!["true".into()],
        image: None,
        resources,
        ports: BTreeMap::new(),
        party: None,
    };
    let spec = JobSpec {
        name: name("job")?,
        class: if random.u8(..3) == 0 { Class::Trial } else { Class::BestEffort },
        priority: [50, 50, 50, 20, 80][random.usize(..5)],
        after: Vec::new(),
        groups: vec![group],
        gang,
        data,
        outputs: BTreeMap::new(),
        code: None,
        checkpoint: None,
        grace_ms: 30_000,
        retry: Retry::default(),
        time_limit_ms: None,
        place,
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        params: BTreeMap::new(),
        user: String::new(),
        training: None,
    };
    Ok(Waiting {
        job: JobId(id),
        spec: Arc::new(spec),
        party: PartyId([random.u8(1..=3); 32]),
        confined: None,
        index: n as u64,
        submitted: Time(NOW.0 - random.u64(..3_600_000)),
        tasks: (0..count).collect(),
        not_before: Time(0),
        failures: BTreeMap::new(),
        preemptions: 0,
        interrupted: false,
        others: Vec::new(),
    })
}

fn report(measured: &[Vec<Filled>], all_different: &[Filled], json: bool) {
    let rate = |filled: &Filled| filled.placements as f64 / filled.time.as_secs_f64();
    let rates = |filled: &[Filled]| median(filled.iter().map(rate));
    let largest = &measured[measured.len() - 1][..];
    let points: Vec<(f64, f64)> = measured
        .iter()
        .map(|filled| {
            let work = (filled[0].nodes * filled[0].jobs) as f64;
            (work.ln(), median(filled.iter().map(|each| each.time.as_secs_f64())).ln())
        })
        .collect();
    let (per_s, exponent, n) = (rates(largest), slope(&points), largest.len());
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let full = median(largest.iter().map(|each| millis(each.full)));
    let different = rates(all_different);
    if json {
        println!(
            "{{\"bench\":\"planner\",\"goal\":\"placements_per_s\",\"got\":{per_s:.0},\"want\":5000,\
             \"unit\":\"per_s\",\"n\":{n},\"peer\":{{\"no_two_jobs_alike_per_s\":{different:.0}}},\"limit\":null}}"
        );
        println!(
            "{{\"bench\":\"planner\",\"goal\":\"growth_exponent\",\"got\":{exponent:.3},\"want\":1.1,\
             \"unit\":\"exponent\",\"n\":{n},\"peer\":{{}},\"limit\":null}}"
        );
        println!(
            "{{\"bench\":\"planner\",\"goal\":\"plan_when_nothing_fits_ms\",\"got\":{full:.2},\"want\":null,\
             \"unit\":\"ms\",\"n\":{n},\"peer\":{{}},\"limit\":null}}"
        );
        return;
    }
    println!(
        "nodes   jobs   plans  placements   left   seconds   placements/s   a plan when nothing fits, ms"
    );
    let rows = measured.iter().map(Vec::as_slice).chain([all_different]);
    for filled in rows {
        let one = &filled[filled.len() / 2];
        println!(
            "{:>5} {:>6} {:>7} {:>11} {:>6} {:>9.4} {:>14.0} {:>10.2}",
            one.nodes,
            one.jobs,
            one.plans,
            one.placements,
            one.left,
            median(filled.iter().map(|each| each.time.as_secs_f64())),
            rates(filled),
            median(filled.iter().map(|each| millis(each.full))),
        );
    }
    println!("the last line: no two jobs ask for the same");
    println!("placements_per_s {per_s:.0} (goal: at least 5,000)");
    println!("growth_exponent {exponent:.3} (goal: at most 1.1)");
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Of the line that fits best.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    above / below
}
