//! A shard alone: who is waited for, what counts once, and a backup that is sent the same.

use super::*;
use crate::job::training::Real;

const VALUES: usize = 6;

fn real(number: f64) -> Real {
    Real::new(number).unwrap()
}

/// Plain steps as long as the gradient, so that values count pushes.
fn settings(mode: Mode, workers: u32) -> Settings {
    Settings {
        steps: 20,
        mode,
        dynamic: false,
        rule: Rule::Sgd { rate: real(1.0), momentum: real(0.0) },
        wire: Wire::F32,
        checkpoint: 5,
        workers,
    }
}

fn shard(mode: Mode, workers: u32) -> Shard {
    Shard::new(settings(mode, workers), vec![0.0; VALUES])
}

fn push(worker: u32, step: u32) -> (Op, Vec<u8>) {
    let parts = vec![Part { at: 0, count: VALUES as u64 }];
    (Op::Push { worker, fence: 1, step, parts }, bytes_of(&[-1.0; VALUES]))
}

fn pushed(shard: &mut Shard, worker: u32, step: u32) -> Outcome {
    let (op, bytes) = push(worker, step);
    shard.apply(&op, &bytes).0
}

fn enter(shard: &mut Shard, worker: u32, start: u32) {
    let (done, _) = shard.apply(&Op::Enter { worker, fence: 1, start }, &[]);
    assert_eq!(done, Outcome::Done);
}

#[test]
fn a_push_counts_once_however_often_it_is_sent() {
    let mut shard = shard(Mode::Async, 2);
    assert_eq!(pushed(&mut shard, 0, 1), Outcome::Done);
    assert_eq!(pushed(&mut shard, 0, 1), Outcome::Again);
    assert_eq!(pushed(&mut shard, 0, 2), Outcome::Done);
    assert_eq!(pushed(&mut shard, 1, 1), Outcome::Done, "another worker's");
    assert_eq!(pushed(&mut shard, 0, 1), Outcome::Again);
    assert_eq!(shard.values(), [3.0; VALUES]);
    assert_eq!(pushed(&mut shard, 2, 1), Outcome::Bad, "there is no such worker");
    assert_eq!(pushed(&mut shard, 0, 0), Outcome::Bad);
    assert_eq!(pushed(&mut shard, 0, 21), Outcome::Bad);
}

#[test]
fn a_step_is_the_mean_of_those_who_are_there() {
    let mut shard = shard(Mode::Bulk, 3);
    for worker in 0..3 {
        enter(&mut shard, worker, 1);
    }
    assert_eq!(pushed(&mut shard, 0, 1), Outcome::Done);
    assert_eq!(pushed(&mut shard, 0, 2), Outcome::Wait, "the others are not so far");
    assert_eq!(pushed(&mut shard, 1, 1), Outcome::Done);
    assert_eq!(shard.values(), [0.0; VALUES]);
    assert_eq!(pushed(&mut shard, 2, 1), Outcome::Done);
    assert_eq!((shard.values(), shard.progress()), (&[1.0; VALUES][..], 1));
    assert_eq!(pushed(&mut shard, 2, 1), Outcome::Again);
    // One goes, and is not waited for.
    pushed(&mut shard, 0, 2);
    pushed(&mut shard, 1, 2);
    shard.apply(&Op::Leave { worker: 2, fence: 1 }, &[]);
    assert_eq!((shard.values(), shard.progress()), (&[2.0; VALUES][..], 2));
    assert_eq!(pushed(&mut shard, 2, 2), Outcome::Late, "it was done without it");
    // It comes back where the others are.
    assert_eq!(shard.standing(2), Standing { clock: 1, floor: 2, is_live: false });
    enter(&mut shard, 2, 3);
    pushed(&mut shard, 0, 3);
    pushed(&mut shard, 1, 3);
    assert_eq!(shard.progress(), 2, "it is waited for again");
    pushed(&mut shard, 2, 3);
    assert_eq!((shard.values(), shard.progress()), (&[3.0; VALUES][..], 3));
}

#[test]
fn one_that_enters_in_the_middle_is_waited_for_from_its_start_on() {
    let mut shard = shard(Mode::Bulk, 2);
    enter(&mut shard, 0, 1);
    enter(&mut shard, 1, 2);
    assert_eq!(pushed(&mut shard, 0, 1), Outcome::Done);
    assert_eq!(shard.progress(), 1);
    assert_eq!(pushed(&mut shard, 0, 2), Outcome::Done);
    assert_eq!(shard.progress(), 1);
    enter(&mut shard, 1, 3);
    assert_eq!(shard.progress(), 2, "it begins later than was thought");
}

#[test]
fn of_two_attempts_the_later_counts() {
    let mut shard = shard(Mode::Async, 1);
    shard.apply(&Op::Enter { worker: 0, fence: 7, start: 1 }, &[]);
    assert_eq!(pushed(&mut shard, 0, 1), Outcome::Superseded);
    assert_eq!(shard.values(), [0.0; VALUES]);
}

#[test]
fn some_values_are_pushed_by_themselves() {
    let mut shard = shard(Mode::Async, 1);
    let parts = vec![Part { at: 1, count: 2 }, Part { at: 5, count: 1 }];
    let op = |parts: &[Part]| Op::Push { worker: 0, fence: 1, step: 1, parts: parts.to_vec() };
    let bytes = bytes_of(&[-1.0, -2.0, -3.0]);
    for bad in [
        vec![Part { at: 5, count: 1 }, Part { at: 1, count: 2 }],
        vec![Part { at: 4, count: 3 }],
        vec![Part { at: u64::MAX, count: 3 }],
        vec![Part { at: 0, count: u64::MAX }],
        vec![Part { at: 0, count: 0 }],
        vec![Part { at: 0, count: 2 }],
    ] {
        assert_eq!(shard.judge(&op(&bad), &bytes), Outcome::Bad, "{bad:?}");
    }
    assert_eq!(shard.apply(&op(&parts), &bytes).0, Outcome::Done);
    assert_eq!(shard.values(), [0.0, 1.0, 2.0, 0.0, 0.0, 3.0]);
    // A shard of which nothing is pushed hears of the step all the same.
    let nothing = Op::Push { worker: 0, fence: 1, step: 2, parts: Vec::new() };
    assert_eq!(shard.apply(&nothing, &[]).0, Outcome::Done);
    assert_eq!(shard.standing(0).clock, 2);
}

#[test]
fn batches_count_once_whoever_brings_them() {
    let mut set = settings(Mode::Async, 2);
    set.dynamic = true;
    let mut shard = Shard::new(set, vec![0.0; VALUES]);
    assert_eq!(pushed(&mut shard, 0, 7), Outcome::Done);
    assert_eq!(pushed(&mut shard, 1, 7), Outcome::Again);
    assert_eq!(pushed(&mut shard, 1, 3), Outcome::Done);
    assert_eq!((shard.values(), shard.progress()), (&[2.0; VALUES][..], 2));
    for batch in 1..=20 {
        pushed(&mut shard, batch % 2, batch);
    }
    assert!(shard.is_done(&BTreeSet::new()));
    assert_eq!(shard.values(), [20.0; VALUES]);
}

#[test]
fn checkpoints_are_due_once_at_their_steps_and_at_the_end() {
    let mut shard = shard(Mode::Bulk, 1);
    enter(&mut shard, 0, 1);
    let mut due = Vec::new();
    for step in 1..=20 {
        let (op, bytes) = push(0, step);
        due.extend(shard.apply(&op, &bytes).1);
    }
    assert_eq!(due, [5, 10, 15, 20]);
    assert!(shard.is_done(&BTreeSet::new()));
}

#[test]
fn those_who_ended_are_not_waited_for_at_the_end() {
    let mut shard = shard(Mode::Async, 2);
    for step in 1..=20 {
        pushed(&mut shard, 0, step);
    }
    assert!(!shard.is_done(&BTreeSet::new()));
    assert!(shard.is_done(&BTreeSet::from([1])));
}

/// Any operation, most of them sensible.
fn any_op(random: &mut fastrand::Rng, shard: &Shard) -> (Op, Vec<u8>) {
    let worker = random.u32(0..4);
    let fence = random.u64(1..3);
    match random.u8(0..8) {
        0 => (Op::Enter { worker, fence, start: shard.standing(worker).floor + 1 }, Vec::new()),
        1 => (Op::Leave { worker, fence }, Vec::new()),
        _ => {
            let standing = shard.standing(worker);
            let near = standing.clock.max(standing.floor) + random.u32(0..3);
            let at = random.u64(0..4);
            let parts = vec![Part { at, count: random.u64(1..3) }];
            let count = parts[0].count as usize;
            let values: Vec<f32> = (0..count).map(|_| random.f32() - 0.5).collect();
            (Op::Push { worker, fence, step: near, parts }, pack::pack(&values, None, Wire::F32))
        }
    }
}

#[test]
fn a_backup_that_gets_the_same_holds_the_same_and_can_be_copied_at_any_time() {
    let rules = [
        Rule::Sgd { rate: real(0.1), momentum: real(0.9) },
        Rule::Adagrad { rate: real(0.1), epsilon: real(1e-8) },
        Rule::Adam { rate: real(0.1), beta1: real(0.9), beta2: real(0.999), epsilon: real(1e-8) },
    ];
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mode = [Mode::Bulk, Mode::Bounded { delay: 2 }, Mode::Async][random.usize(..3)];
        let rule = rules[random.usize(..3)];
        let dynamic = mode != Mode::Bulk && random.bool();
        let set = Settings { rule, dynamic, workers: 3, ..settings(mode, 3) };
        let mut primary = Shard::new(set.clone(), vec![0.5; VALUES]);
        let mut backup = primary.clone();
        let mut clocks = [0; 3];
        for _ in 0..200 {
            let (op, bytes) = any_op(&mut random, &primary);
            assert_eq!(primary.apply(&op, &bytes), backup.apply(&op, &bytes), "seed {seed}");
            if random.u8(0..10) == 0 {
                let (values, rest) = primary.to_bytes();
                backup = Shard::from_bytes(set.clone(), &values, &rest).unwrap();
            }
            assert_eq!(primary, backup, "seed {seed}");
            for (worker, clock) in (0..).zip(&mut clocks) {
                let now = primary.standing(worker).clock;
                assert!(now >= *clock, "a clock went back, seed {seed}");
                *clock = now;
            }
        }
    }
}

#[test]
fn bytes_that_are_no_shard_are_not_taken() {
    let mut shard = shard(Mode::Bulk, 2);
    enter(&mut shard, 0, 1);
    enter(&mut shard, 1, 1);
    pushed(&mut shard, 0, 1);
    let (values, rest) = shard.to_bytes();
    let set = settings(Mode::Bulk, 2);
    assert_eq!(Shard::from_bytes(set.clone(), &values, &rest), Some(shard));
    for cut in 0..rest.len() {
        assert_eq!(Shard::from_bytes(set.clone(), &values, &rest[..cut]), None);
    }
    assert_eq!(Shard::from_bytes(set.clone(), &values[1..], &rest), None);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..2000 {
        let mut bad = rest.clone();
        let at = random.usize(..bad.len());
        bad[at] ^= random.u8(1..);
        // Whatever comes of it, nothing panics.
        let _ = Shard::from_bytes(set.clone(), &values, &bad);
    }
}
