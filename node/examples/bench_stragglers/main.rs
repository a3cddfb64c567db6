//! Rounds in virtual time among fast and slow parties: how soon a model is good, and what becomes of the data of the slow.
//!
//! ```text
//! cargo run --release -q -p mesh-node --example bench_stragglers -- --settings FILE --data DIR [--quick] [--json]
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `settings.rs` | what the paper says, and what it leaves open |
//! | `field.rs` | the parties of a seed |
//! | `simulation.rs` | time, parties, and mesh's own rounds |
//! | `report.rs` | what came of it |

mod field;
mod report;
mod settings;
mod simulation;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use field::{Field, Split};
use mesh_node::training::builtin::data::{self, Reading, Sets};
use report::Run;
use settings::Settings;
use simulation::{POLICIES, Policy, Tests, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut quick, mut json, mut file, mut dir) = (false, false, None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--json" => json = true,
            "--settings" => {
                file = Some(PathBuf::from(args.next().ok_or("--settings wants a file")?));
            }
            "--data" => dir = Some(PathBuf::from(args.next().ok_or("--data wants a directory")?)),
            other => return Err(format!("unknown argument {other:?}").into()),
        }
    }
    let mut settings = Settings::read(&file.ok_or("where are the --settings?")?)?;
    if quick {
        settings.open.seeds.truncate(1);
    }
    let sets = data::read(&dir.ok_or("where is the --data?")?, Reading::default())?;
    let runs = run_all(&settings, &sets)?;
    report::print(&settings, &runs, json);
    Ok(())
}

/// Every seed with both splits, on all cores.
fn run_all(settings: &Settings, sets: &Sets) -> Result<Vec<Run>, Box<dyn Error>> {
    let seeds = settings.open.seeds.iter();
    let all: Vec<(u64, Split)> =
        seeds.flat_map(|seed| [(*seed, Split::Paper), (*seed, Split::Slow)]).collect();
    let (next, runs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism()?.get().min(all.len());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some((seed, split)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let made = run_field(settings, sets, *split, *seed);
                    runs.lock().expect("nobody panics while it holds this").extend(made);
                }
            });
        }
    });
    let mut runs = runs.into_inner()?;
    runs.sort_by_key(|run| (run.split, run.seed, run.policy));
    Ok(runs)
}

/// All policies with the same parties and the same first model; nobody gets longer than waiting for all takes.
fn run_field(settings: &Settings, sets: &Sets, split: Split, seed: u64) -> Vec<Run> {
    let field = Field::new(settings, split, &sets.train, seed);
    let rare = sets.held.only(|n| field.rare.contains(&sets.held.labels[n]));
    let tests = Tests { all: &sets.held, rare: &rare };
    let all = simulate(settings, &field, &tests, Policy::All, seed, settings.open.most_ms);
    let most_ms = all.points.last().map_or(0, |point| point.at_ms);
    let mut runs = vec![Run::new(settings, split, seed, Policy::All, &all, &all)];
    for policy in POLICIES.into_iter().filter(|policy| *policy != Policy::All) {
        let outcome = simulate(settings, &field, &tests, policy, seed, most_ms);
        let run = Run::new(settings, split, seed, policy, &outcome, &all);
        eprintln!("stragglers: seed {seed}, {}, {}", split.name(), run.told());
        runs.push(run);
    }
    runs
}
