//! What came of the runs, in figures.

use crate::load::Job;
use crate::settings::Settings;
use crate::simulation::{Outcome, POLICIES, Policy};

/// How jobs came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Model {
    /// As they came under FIFO when its load was held.
    Held,
    /// At a steady rate.
    Steady,
}

/// The figures of one policy, for one seed.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) model: Model,
    pub(crate) seed: u64,
    pub(crate) policy: Policy,
    pub(crate) te_median: f64,
    pub(crate) te_p95: f64,
    pub(crate) be_median: f64,
    pub(crate) be_p95: f64,
    /// Jobs that were preempted at least once, in percent of all.
    pub(crate) preempted: f64,
    /// Minutes from the end of a grace until the job ran again.
    pub(crate) again_median: f64,
    pub(crate) again_p95: f64,
}

impl Run {
    pub(crate) fn new(
        model: Model,
        seed: u64,
        policy: Policy,
        jobs: &[Job],
        outcome: Outcome,
    ) -> Self {
        let slowdowns = |trial: bool| -> Vec<f64> {
            let times = outcome.ends.iter().zip(&outcome.arrivals);
            let of_kind = jobs.iter().zip(times).filter(|(job, _)| job.trial == trial);
            let mut all: Vec<f64> =
                of_kind.map(|(job, (end, came))| (end - came) as f64 / job.run_ms as f64).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let (te, be) = (slowdowns(true), slowdowns(false));
        let mut again: Vec<f64> = outcome.again.iter().map(|ms| *ms as f64 / 60_000.0).collect();
        again.sort_by(f64::total_cmp);
        let preempted = outcome.preempted.iter().filter(|times| **times > 0).count();
        Self {
            model,
            seed,
            policy,
            te_median: quantile(&te, 0.5),
            te_p95: quantile(&te, 0.95),
            be_median: quantile(&be, 0.5),
            be_p95: quantile(&be, 0.95),
            preempted: 100.0 * preempted as f64 / jobs.len() as f64,
            again_median: quantile(&again, 0.5),
            again_p95: quantile(&again, 0.95),
        }
    }
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n => sorted[((n - 1) as f64 * q).round() as usize],
    }
}

/// One figure of a policy against the same of FIFO, in percent, seed by seed.
pub(crate) fn against_fifo(
    runs: &[Run],
    model: Model,
    policy: Policy,
    of: fn(&Run) -> f64,
) -> Vec<f64> {
    let seeds = runs.iter().filter(|run| run.model == model && run.policy == policy);
    let fifo = |seed| find(runs, model, seed, Policy::Fifo);
    seeds.map(|run| 100.0 * (of(run) / of(fifo(run.seed)) - 1.0)).collect()
}

fn find(runs: &[Run], model: Model, seed: u64, policy: Policy) -> &Run {
    let is_it = |run: &&Run| run.model == model && run.seed == seed && run.policy == policy;
    runs.iter().find(is_it).expect("every policy has a run for every seed")
}

/// FitGpp's figure over the smaller one of the two rivals', seed by seed.
fn vs_best_rival(runs: &[Run], model: Model, of: fn(&Run) -> f64) -> Vec<f64> {
    let own = runs.iter().filter(|run| run.model == model && run.policy == Policy::FitGpp);
    let ratio = |run: &Run| {
        let rival = |policy| of(find(runs, model, run.seed, policy));
        of(run) / rival(Policy::Longest).min(rival(Policy::Random))
    };
    own.map(ratio).collect()
}

/// Smallest, middle and largest.
pub(crate) fn spread(values: &[f64]) -> [f64; 3] {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    [quantile(&values, 0.0), quantile(&values, 0.5), quantile(&values, 1.0)]
}

pub(crate) fn print(settings: &Settings, runs: &[Run], json: bool) {
    let reduction: Vec<f64> = against_fifo(runs, Model::Held, Policy::FitGpp, |run| run.te_p95)
        .iter()
        .map(|change| -change)
        .collect();
    let ratios = |of: fn(&Run) -> f64| vs_best_rival(runs, Model::Held, of);
    let goals = [
        ("te_p95_reduction_percent", ">=", 89.0, "percent", reduction, -settings.paper.te_p95),
        ("be_median_vs_best_rival", "<", 1.0, "ratio", ratios(|run| run.be_median), f64::NAN),
        ("be_p95_vs_best_rival", "<", 1.0, "ratio", ratios(|run| run.be_p95), f64::NAN),
        (
            "preempted_vs_best_rival",
            "<",
            1.0,
            "ratio",
            ratios(|run| run.preempted),
            settings.paper.preempted_vs_rivals,
        ),
    ];
    if !json {
        tables(settings, runs);
    }
    for (name, sign, want, unit, values, paper) in goals {
        let [low, middle, high] = spread(&values);
        // The worst seed counts.
        let got = if sign == "<" { high } else { low };
        let met = if sign == "<" { got < want } else { got >= want };
        let n = values.len();
        if json {
            let paper = if paper.is_nan() { "null".into() } else { format!("{paper}") };
            println!(
                "{{\"bench\":\"fitgpp\",\"goal\":\"{name}\",\"got\":{got:.4},\"want\":{want},\"unit\":\"{unit}\",\
                 \"n\":{n},\"peer\":{{\"median\":{middle:.4},\"least\":{low:.4},\"most\":{high:.4},\
                 \"paper\":{paper}}},\"limit\":null}}"
            );
        } else {
            let verdict = if met { "met" } else { "MISSED" };
            println!(
                "{name:<28} {got:>9.3} {unit:<8} {sign} {want:<4} {verdict:<7} (median {middle:.3}, {low:.3} – {high:.3}, {n} seeds)"
            );
        }
    }
}

fn tables(settings: &Settings, runs: &[Run]) {
    for (model, title) in [
        (Model::Held, "load 2.0 held under FIFO, its arrivals replayed"),
        (Model::Steady, "Poisson arrivals at 0.95 of the rate that FIFO had then"),
    ] {
        println!("\n{title}; median of the seeds (least – most)");
        println!(
            "{:<8} {:>26} {:>26} {:>26} {:>26} {:>24} {:>26}",
            "",
            "trial median",
            "trial p95",
            "best-effort median",
            "best-effort p95",
            "preempted, %",
            "again p95, min"
        );
        for policy in POLICIES {
            let of = |of: fn(&Run) -> f64| {
                let all = runs.iter().filter(|run| run.model == model && run.policy == policy);
                let [low, middle, high] = spread(&all.map(of).collect::<Vec<_>>());
                format!("{middle:.2} ({low:.2} – {high:.2})")
            };
            println!(
                "{:<8} {:>26} {:>26} {:>26} {:>26} {:>24} {:>26}",
                policy.name(),
                of(|run| run.te_median),
                of(|run| run.te_p95),
                of(|run| run.be_median),
                of(|run| run.be_p95),
                of(|run| run.preempted),
                of(|run| run.again_p95),
            );
        }
        let paper = &settings.paper;
        println!("against FIFO, percent:       the paper         FitGpp here            mesh here");
        type Figure = (&'static str, f64, fn(&Run) -> f64);
        let figures: [Figure; 3] = [
            ("trial p95", paper.te_p95, |run| run.te_p95),
            ("best-effort median", paper.be_median, |run| run.be_median),
            ("best-effort p95", paper.be_p95, |run| run.be_p95),
        ];
        for (name, published, of) in figures {
            let here = |policy| {
                let [low, middle, high] = spread(&against_fifo(runs, model, policy, of));
                format!("{middle:+.1} ({low:+.1} – {high:+.1})")
            };
            println!(
                "{name:<28} {published:>+9.1} {:>28} {:>28}",
                here(Policy::FitGpp),
                here(Policy::Mesh)
            );
        }
        let over = |policy: Policy, of: fn(&Run) -> f64| {
            let own = runs.iter().filter(|run| run.model == model && run.policy == Policy::FitGpp);
            let all: Vec<f64> =
                own.map(|run| of(run) / of(find(runs, model, run.seed, policy))).collect();
            spread(&all)[1]
        };
        println!(
            "FitGpp over LRTP / RAND: preempted {:.3} / {:.3} (the paper: below {}), again p95 {:.2} / {:.2} (the paper: {} / {}), again median {:.2} / {:.2}",
            over(Policy::Longest, |run| run.preempted),
            over(Policy::Random, |run| run.preempted),
            paper.preempted_vs_rivals,
            over(Policy::Longest, |run| run.again_p95),
            over(Policy::Random, |run| run.again_p95),
            paper.rescheduling_p95_vs_lrtp,
            paper.rescheduling_p95_vs_rand,
            over(Policy::Longest, |run| run.again_median),
            over(Policy::Random, |run| run.again_median),
        );
    }
    println!();
}
