//! The mutation gate: a simulator that does not find a planted mistake proves nothing.

use std::sync::Mutex;

use mesh_chaos_tests::gate::{MUTANTS, find};
use mesh_consensus::planted::Bug;

#[test]
fn every_planted_mistake_is_found_within_its_budget() {
    let queue = Mutex::new(MUTANTS.to_vec());
    let missed = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let Some(mutant) = queue.lock().unwrap().pop() else { break };
                    if find(mutant).is_none() {
                        missed.lock().unwrap().push(mutant.bug);
                    }
                }
            });
        }
    });
    assert_eq!(missed.into_inner().unwrap(), []);
}

#[test]
fn every_planted_mistake_is_in_the_gate() {
    let mut gated: Vec<Bug> = MUTANTS.iter().map(|mutant| mutant.bug).collect();
    gated.sort();
    let mut all = Bug::ALL.to_vec();
    all.sort();
    assert_eq!(gated, all);
}
