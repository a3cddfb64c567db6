//! Many messages, one after another.

use std::panic::catch_unwind;

use mesh_consensus::message::Message;

use crate::any::mutated_bytes;
use crate::{Grown, Happening, MEMBERS, RUNNING};

/// What liars throw at one mesh before they get a fresh one.
const LIES_PER_TRIAL: u64 = 80;
/// How often somebody's power fails, in messages thrown.
const RESTART_EVERY: u64 = 20;

#[test]
fn strangers_and_impostors_change_nothing_and_the_mesh_goes_on() {
    let grown = Grown::new(1);
    for (trial, cases) in trials(cases() / 2, 1000) {
        let mut mesh = grown.mesh(trial);
        for case in 1..=cases {
            match mesh.rng.u8(..10) {
                0 => mesh.throw_forged_batch(),
                1 => mesh.throw_worthless_chain(),
                _ => mesh.throw_as_nobody(),
            }
            if case % 5 == 0 {
                mesh.submit();
                mesh.beat();
            }
            if case % (5 * RESTART_EVERY) == 0 {
                let victim = mesh.rng.usize(..RUNNING);
                mesh.restart(victim);
            }
        }
        mesh.settle();
        for victim in 0..RUNNING {
            mesh.restart(victim);
        }
        mesh.settle();
    }
}

#[test]
fn a_lying_member_neither_stops_a_node_nor_keeps_it_from_starting() {
    let meshes = [Grown::new(2), Grown::new(3)];
    for (trial, cases) in trials(cases() / 2, LIES_PER_TRIAL) {
        lie(&meshes[(trial % 2) as usize], trial, cases);
    }
}

#[test]
fn bytes_of_any_kind_are_a_message_or_are_not() {
    let grown = Grown::new(4);
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..cases() {
        let bytes = match rng.bool() {
            true => (0..rng.usize(..200)).map(|_| rng.u8(..)).collect(),
            false => {
                let (_, _, message) = rng.choice(&grown.recorded).unwrap();
                mutated_bytes(&mut rng, &postcard::to_stdvec(message).unwrap())
            }
        };
        let read = catch_unwind(|| postcard::from_bytes::<Message>(&bytes).is_ok());
        assert!(read.is_ok(), "{bytes:?}");
    }
}

/// Trials of `each` cases that make `cases` together: their seeds, and how many cases they have.
fn trials(cases: u64, each: u64) -> impl Iterator<Item = (u64, u64)> {
    let only = std::env::var("HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..cases.div_ceil(each), |seed: u64| seed..seed + 1);
    seeds.map(move |seed| (seed, cases.min(each)))
}

fn cases() -> u64 {
    std::env::var("HOSTILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000)
}

/// One member lies to all others, in its own name, until the mesh is replaced.
fn lie(grown: &Grown, seed: u64, cases: u64) {
    let mut mesh = grown.mesh(seed);
    let liar = mesh.rng.usize(..MEMBERS);
    let mut thrown = 0;
    while thrown < cases {
        let at = mesh.rng.usize(..RUNNING);
        if at == liar {
            continue;
        }
        // What arrives together is handled before anything of it is on disk.
        let together: Vec<Happening> = match mesh.rng.u8(..8) {
            0..4 => vec![mesh.lie(liar, at)],
            4..6 => (0..mesh.rng.u64(2..=4)).map(|_| mesh.lie(liar, at)).collect(),
            _ => mesh.ruse(liar, at),
        };
        thrown += together.len() as u64;
        if mesh.rng.u8(..4) > 0 {
            mesh.turn(at, together);
        } else {
            together.into_iter().for_each(|one| mesh.turn(at, vec![one]));
        }
        if mesh.rng.u8(..4) == 0 {
            mesh.submit();
            mesh.beat();
        }
        if mesh.rng.u64(..RESTART_EVERY) == 0 {
            mesh.restart(at);
        }
    }
    for victim in 0..RUNNING {
        mesh.restart(victim);
    }
    mesh.beat();
}
