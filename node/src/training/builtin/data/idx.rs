//! The files of MNIST: a few big-endian numbers, then bytes.

use super::{Examples, Flaw, Input, MAX_VALUES, examples};

/// What stands before images: their number, rows, columns.
const IMAGES: u32 = 0x0803;
/// What stands before labels: their number.
const LABELS: u32 = 0x0801;
const NAME: &str = "an idx file of bytes";

/// Images with these labels.
pub(super) fn images(bytes: &[u8], labels: Vec<u8>, classes: usize) -> Result<Examples, Flaw> {
    let ([magic, count, height, width], pixels) = numbers(bytes)?;
    if magic != IMAGES {
        return Err(Flaw::Begin(NAME));
    }
    let size = u64::from(height) * u64::from(width);
    let said = u64::from(count).checked_mul(size).ok_or(Flaw::Large)?;
    if said != pixels.len() as u64 {
        return Err(Flaw::Length { said, found: pixels.len() as u64 });
    }
    if pixels.len() > MAX_VALUES {
        return Err(Flaw::Large);
    }
    if labels.len() as u64 != u64::from(count) {
        return Err(Flaw::Labels { labels: labels.len(), examples: count as usize });
    }
    let inputs = pixels.iter().map(|pixel| f32::from(*pixel) / 255.0).collect();
    let shape = Input { channels: 1, height: height as usize, width: width as usize };
    examples(inputs, shape, labels, classes)
}

/// Labels alone.
pub(super) fn labels(bytes: &[u8]) -> Result<Vec<u8>, Flaw> {
    let ([magic, count], labels) = numbers(bytes)?;
    if magic != LABELS {
        return Err(Flaw::Begin(NAME));
    }
    if u64::from(count) != labels.len() as u64 {
        return Err(Flaw::Length { said: u64::from(count), found: labels.len() as u64 });
    }
    Ok(labels.to_vec())
}

/// The numbers at the beginning, and what follows.
fn numbers<const N: usize>(mut bytes: &[u8]) -> Result<([u32; N], &[u8]), Flaw> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let (first, rest) = bytes.split_first_chunk().ok_or(Flaw::Begin(NAME))?;
        *number = u32::from_be_bytes(*first);
        bytes = rest;
    }
    Ok((numbers, bytes))
}
