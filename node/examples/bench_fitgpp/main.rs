//! The planner in virtual time, on the cluster and the load of the FitGpp paper.
//!
//! ```text
//! cargo run --release -q -p mesh-node --example bench_fitgpp -- --settings FILE [--quick] [--json]
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `settings.rs` | what the paper says, and what it leaves open |
//! | `load.rs` | the jobs of a seed |
//! | `simulation.rs` | time, nodes and the planner |
//! | `report.rs`, `figure.rs` | what came of it |

mod figure;
mod load;
mod report;
mod settings;
mod simulation;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use report::{Model, Run};
use settings::Settings;
use simulation::{Arrivals, POLICIES, Policy, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut quick, mut json, mut file) = (false, false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--json" => json = true,
            "--settings" => {
                file = Some(PathBuf::from(args.next().ok_or("--settings wants a file")?))
            }
            other => return Err(format!("unknown argument {other:?}").into()),
        }
    }
    let file = file.ok_or("where are the --settings?")?;
    let mut settings = Settings::read(&file)?;
    if quick {
        settings.paper.jobs >>= 5;
        settings.open.seeds.truncate(3);
    }
    let runs = run_all(&settings)?;
    report::print(&settings, &runs, json);
    if !quick {
        std::fs::write(file.with_file_name("figure.svg"), figure::draw(&settings, &runs))?;
    }
    Ok(())
}

/// Every seed, on all cores.
fn run_all(settings: &Settings) -> Result<Vec<Run>, Box<dyn Error>> {
    let seeds = &settings.open.seeds;
    let (next, runs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism()?.get().min(seeds.len());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let made = run_seed(settings, *seed);
                    eprintln!("fitgpp: seed {seed} is done");
                    runs.lock().expect("nobody panics while it holds this").extend(made);
                }
            });
        }
    });
    let mut runs = runs.into_inner()?;
    runs.sort_by_key(|run| (run.model, run.seed, run.policy));
    Ok(runs)
}

fn run_seed(settings: &Settings, seed: u64) -> Vec<Run> {
    let jobs = load::jobs(settings, seed);
    let mut runs = Vec::new();
    let held = simulate(settings, &jobs, Arrivals::Held, Policy::Fifo, seed);
    let (replayed, rate) = (held.arrivals.clone(), held.rate);
    runs.push(Run::new(Model::Held, seed, Policy::Fifo, &jobs, held));
    for policy in POLICIES.into_iter().filter(|policy| *policy != Policy::Fifo) {
        let outcome = simulate(settings, &jobs, Arrivals::At(&replayed), policy, seed);
        runs.push(Run::new(Model::Held, seed, policy, &jobs, outcome));
    }
    let steady = load::poisson(rate * settings.open.steady_rate, jobs.len(), seed);
    for policy in POLICIES {
        let outcome = simulate(settings, &jobs, Arrivals::At(&steady), policy, seed);
        runs.push(Run::new(Model::Steady, seed, policy, &jobs, outcome));
    }
    runs
}
