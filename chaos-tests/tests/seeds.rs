//! A few hundred seeds, seeds that once failed, and the proof that a seed is a whole story.

use std::sync::atomic::{AtomicU64, Ordering};

use mesh_chaos_tests::faults::Story;
use mesh_chaos_tests::world::{Options, run};

const SEEDS: u64 = 400;

/// Runs `seeds` on all cores and fails with the first violation.
fn all_hold(seeds: Vec<(u64, Option<Story>)>) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let work = || {
            while let Some((seed, story)) =
                seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize).copied()
            {
                if let Err(violation) = run(seed, Options { story, ..Options::default() }) {
                    panic!("{violation}");
                }
            }
        };
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

#[test]
fn no_promise_is_broken_in_the_first_few_hundred_seeds() {
    all_hold((0..SEEDS).map(|seed| (seed, None)).collect());
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    for seed in 0..20 {
        let options = Options { keep_trace: true, ..Options::default() };
        let (first, second) = (run(seed, options).unwrap(), run(seed, options).unwrap());
        assert!(first.lines.len() > 100, "seed {seed} has hardly a trace");
        assert_eq!(first.lines, second.lines, "seed {seed}");
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_ne!(first.trace, run(seed + 1, options).unwrap().trace);
    }
}

#[test]
fn every_story_is_told_and_has_writes_reads_and_faults() {
    for story in Story::ALL {
        let options = Options { story: Some(story), ..Options::default() };
        let told: Vec<_> = (0..6).map(|seed| run(seed, options).unwrap()).collect();
        let sum = |count: fn(&mesh_chaos_tests::world::Summary) -> u64| -> u64 {
            told.iter().map(count).sum()
        };
        let (acked, reads, faults) = (sum(|s| s.acked), sum(|s| s.reads), sum(|s| s.faults));
        assert!(acked > 30 && reads > 30 && faults > 30, "{story:?}: {acked} {reads} {faults}");
        assert!(told.iter().any(|s| s.term > 2), "{story:?} had no election");
    }
}
