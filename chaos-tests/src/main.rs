//! `sim` runs seeds, `replay` shows one of them, `gate` runs the mutation gate.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use mesh_chaos_tests::faults::Story;
use mesh_chaos_tests::gate::{MUTANTS, find};
use mesh_chaos_tests::world::{Options, Summary, Violation, run};
use mesh_consensus::planted::Bug;

#[derive(Parser)]
#[command(name = "mesh-chaos-tests", about = "The mesh in simulation, under faults")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs seeds and checks every promise; exits 1 if one is broken.
    Sim {
        /// How many seeds.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        /// The first one.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Stop after so many minutes.
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
        minutes: Option<u64>,
        /// How many at once; all cores by default.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
        jobs: Option<u16>,
        /// Only this kind of story (mixed, crashes, network, disks …); by default each seed has its own.
        #[arg(long, value_parser = story)]
        story: Option<Story>,
        /// Go on after a violation, up to so many.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        violations: u16,
    },
    /// Runs one seed and prints everything that happened.
    Replay {
        /// Which one.
        seed: u64,
        /// The story that was asked for, if one was.
        #[arg(long, value_parser = story)]
        story: Option<Story>,
        /// The mistake that was planted, if one was.
        #[arg(long, value_parser = bug)]
        bug: Option<Bug>,
    },
    /// Plants each known mistake and shows which seed finds it; exits 1 if one is not found.
    Gate {
        /// Only mistakes whose name contains this.
        #[arg(default_value = "")]
        filter: String,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A panic inside a simulated node is caught and judged; its words come with the violation. Only
    // a replay shows where it came from.
    if !matches!(args.command, Command::Replay { .. }) {
        std::panic::set_hook(Box::new(|_| {}));
    }
    match args.command {
        Command::Sim { seeds, from, minutes, jobs, story, violations } => {
            let options = Options { story, ..Options::default() };
            sim(
                from,
                seeds,
                options,
                minutes,
                jobs.map_or_else(cores, usize::from),
                violations.into(),
            )
        }
        Command::Replay { seed, story, bug } => {
            replay(seed, Options { story, bug, keep_trace: true })
        }
        Command::Gate { filter } => gate(&filter),
    }
}

fn story(text: &str) -> Result<Story, String> {
    named(text, &Story::ALL)
}

fn bug(text: &str) -> Result<Bug, String> {
    named(text, &Bug::ALL)
}

/// The one of `all` that is called `text`, in any case.
fn named<T: Copy + std::fmt::Debug>(text: &str, all: &[T]) -> Result<T, String> {
    let names: Vec<String> = all.iter().map(|one| format!("{one:?}").to_lowercase()).collect();
    let found = names.iter().position(|name| *name == text.to_lowercase());
    found.map(|place| all[place]).ok_or_else(|| format!("one of {}", names.join(", ")))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    turns: u64,
    faults: u64,
    acked: u64,
    reads: u64,
    time: u64,
}

impl Totals {
    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.turns += summary.turns;
        self.faults += summary.faults;
        self.acked += summary.acked;
        self.reads += summary.reads;
        self.time += summary.time;
    }
}

#[expect(clippy::disallowed_methods, reason = "measures how fast the simulator is")]
fn sim(
    from: u64,
    seeds: u64,
    options: Options,
    minutes: Option<u64>,
    jobs: usize,
    most: usize,
) -> ExitCode {
    let began = Instant::now();
    let deadline = minutes.map(|minutes| began + Duration::from_secs(60 * minutes));
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (sender, results) = mpsc::sync_channel::<Result<Summary, Box<Violation>>>(64);
    let mut totals = Totals::default();
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(seed) = from.checked_add(place).filter(|_| place < seeds) else {
                        break;
                    };
                    if sender.send(run(seed, options)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut shown = began;
        for result in &results {
            match result {
                Ok(summary) => totals.add(&summary),
                Err(violation) => {
                    eprintln!("\r{violation}\n");
                    found.push(violation.seed);
                    totals.seeds += 1;
                }
            }
            let now = Instant::now();
            let late = deadline.is_some_and(|deadline| now > deadline);
            if found.len() >= most || late {
                stop.store(true, Ordering::Relaxed);
            }
            if now.duration_since(shown) > Duration::from_millis(500) {
                shown = now;
                progress(&totals, seeds, began.elapsed(), jobs);
            }
        }
    });
    summary(&totals, &found, began.elapsed(), jobs);
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn progress(totals: &Totals, seeds: u64, elapsed: Duration, jobs: usize) {
    if std::io::stderr().is_terminal() {
        let rate = totals.seeds as f64 / elapsed.as_secs_f64();
        let left = Duration::from_secs_f64((seeds - totals.seeds) as f64 / rate.max(0.001));
        eprint!(
            "\r{} of {seeds} seeds, {rate:.1}/s on {jobs} cores, {} s left   ",
            totals.seeds,
            left.as_secs()
        );
        let _ = std::io::stderr().flush();
    }
}

fn summary(totals: &Totals, found: &[u64], elapsed: Duration, jobs: usize) {
    let rate = totals.seeds as f64 / elapsed.as_secs_f64();
    if std::io::stderr().is_terminal() {
        eprint!("\r{:60}\r", "");
    }
    println!(
        "{} seeds in {:.1} s: {rate:.1} seeds/s, {:.1} per core",
        totals.seeds,
        elapsed.as_secs_f64(),
        rate / jobs as f64
    );
    println!(
        "{} simulated minutes, {} faults, {} turns, {} writes acknowledged, {} reads",
        totals.time / 60_000_000,
        totals.faults,
        totals.turns,
        totals.acked,
        totals.reads
    );
    match found {
        [] => println!("no promise was broken"),
        seeds => println!("BROKEN by seeds {seeds:?}"),
    }
}

fn replay(seed: u64, options: Options) -> ExitCode {
    match run(seed, options) {
        Ok(summary) => {
            for line in &summary.lines {
                println!("{line}");
            }
            println!("seed {seed} broke no promise: trace {:016x}", summary.trace);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            for line in &violation.lines {
                println!("{line}");
            }
            eprintln!("{violation}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "measures how fast the simulator is")]
fn gate(filter: &str) -> ExitCode {
    let (mut tried, mut missed) = (0, 0);
    for mutant in MUTANTS {
        let name = format!("{:?}", mutant.bug);
        if !name.to_lowercase().contains(&filter.to_lowercase()) {
            continue;
        }
        tried += 1;
        let began = Instant::now();
        let found = find(mutant);
        let seconds = began.elapsed().as_secs_f64();
        match found {
            Some((seed, violation)) => {
                let promise = violation.broken.promise;
                println!("{name:20} found by seed {seed} in {seconds:.1} s: {promise}");
                println!("{:20} {}", "", violation.broken.how);
            }
            None => {
                missed += 1;
                println!("{name:20} NOT FOUND in {} seeds, {seconds:.1} s", mutant.budget);
            }
        }
    }
    if tried == 0 {
        eprintln!("no planted mistake has {filter:?} in its name");
        return ExitCode::from(2);
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
