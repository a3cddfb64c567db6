//! A fuzzer for stable Rust: changes kept inputs at random, from a fixed seed.
//!
//! Used by the decoders' tests of this crate and of `node`. The loop runs for a number of rounds that takes a second or so;
//! with `MESH_FUZZ_SECONDS=N` it goes on for N seconds, from a seed of its own that is printed.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::time::Duration;

use tokio::time::Instant;

/// Lengths, tags and counts that decoders meet, or do not expect.
const NUMBERS: [u64; 14] =
    [0, 1, 2, 3, 4, 5, 16, 63, 255, 256, 4096, 65_536, u32::MAX as u64, u64::MAX];

/// Calls `judge` with inputs made of the kept ones: each as it is, then changed ever anew.
///
/// An input that breaks something is printed by its bytes.
pub(crate) fn run(seed: u64, rounds: usize, kept: &[Vec<u8>], mut judge: impl FnMut(usize, &[u8])) {
    let seconds: Option<u64> =
        std::env::var("MESH_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed = if seconds.is_some() { fastrand::u64(..) } else { seed };
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    if seconds.is_some() {
        println!("fuzzing from the seed {seed}");
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    for (which, bytes) in kept.iter().enumerate() {
        judge(which, bytes);
    }
    let mut round = 0;
    while round < rounds || Instant::now() < end {
        round += 1;
        let which = rng.usize(..kept.len());
        let bytes = change(&mut rng, kept, which);
        let broken = Broken(&bytes);
        judge(which, &bytes);
        std::mem::forget(broken);
    }
}

/// Tells which bytes broke something, if a panic passes by.
struct Broken<'a>(&'a [u8]);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        eprintln!("broken by {:02x?}", self.0);
    }
}

fn change(rng: &mut fastrand::Rng, kept: &[Vec<u8>], which: usize) -> Vec<u8> {
    let mut bytes = kept[which].clone();
    for _ in 0..rng.usize(1..=6) {
        let at = rng.usize(..=bytes.len());
        match rng.u8(..10) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            1 if at < bytes.len() => bytes[at] = rng.u8(..),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.u8(..)),
            4 if at < bytes.len() => drop(bytes.remove(at)),
            // A number where one may stand, in the widths that there are.
            5 => put(&mut bytes, at, &number(rng).to_le_bytes()[..4]),
            6 => put(&mut bytes, at, &number(rng).to_le_bytes()),
            // The tag and the first length, where the codec has them.
            7 => put(&mut bytes, 1, &rng.u32(..16).to_le_bytes()),
            8 => put(&mut bytes, 5, &number(rng).to_le_bytes()),
            // The end of another.
            _ => {
                let other = &kept[rng.usize(..kept.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[rng.usize(..=other.len())..]);
            }
        }
    }
    bytes
}

fn number(rng: &mut fastrand::Rng) -> u64 {
    match rng.u8(..3) {
        0 => rng.u64(..64),
        _ => NUMBERS[rng.usize(..NUMBERS.len())],
    }
}

fn put(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(with) {
        *place = *byte;
    }
}
