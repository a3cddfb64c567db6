//! An update on the wire: packing it, measuring it, adding it.
//!
//! ```text
//!   F32         4 bytes a value, little-endian
//!   F16, Bf16   2 bytes a value, little-endian
//!   Int8        blocks of 1024 values (the last may have fewer): the scale, an f32, then a signed byte for each value
//! ```
//!
//! All go block by block through a buffer that stays in the first cache. A value that is no number stays none on the wire,
//! so that whoever measures an update finds it; and what is finite stays finite.

use std::ops::Range;

use super::shards::BLOCK;
use super::tensors::Kind;
use crate::job::training::Wire;

/// The bytes of a scale.
const SCALE_BYTES: usize = 4;
/// An f32 near this one has no room for a fraction: what is added to it is rounded, and stands in its lowest bits.
const ROUNDS: f32 = 12_582_912.0;
/// The bit of an f32 that is its sign.
const SIGN: u32 = 1 << 31;

/// Why packed bytes cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The length is not that of so many values.
    #[error("it has {found} bytes, and {values} values have {wanted}")]
    Length {
        /// So many bytes there are.
        found: u64,
        /// So many there should be.
        wanted: u64,
        /// For so many values.
        values: usize,
    },
    /// The range does not begin at a block, or does not fit what it is to be read into.
    #[error("values {start} to {end} cannot be unpacked by themselves")]
    Range {
        /// The first.
        start: usize,
        /// The one after the last.
        end: usize,
    },
    /// Nothing can be divided by it.
    #[error("a sum cannot be divided by that")]
    Divisor,
}

/// The exact length of so many values.
pub fn packed_bytes(values: usize, wire: Wire) -> u64 {
    let count = values as u64;
    match kind_of(wire) {
        Some(kind) => count.saturating_mul(kind.bytes() as u64),
        None => {
            let scales = count.div_ceil(BLOCK as u64);
            count.saturating_add(scales.saturating_mul(SCALE_BYTES as u64))
        }
    }
}

/// Packs `values`, or their difference from `base`, which has as many.
pub fn pack(values: &[f32], base: Option<&[f32]>, wire: Wire) -> Vec<u8> {
    if let Some(base) = base {
        assert_eq!(values.len(), base.len(), "an update and its base are of one model");
    }
    let mut packed = vec![0; packed_bytes(values.len(), wire) as usize];
    let mut difference = [0.0f32; BLOCK];
    let blocks = values.chunks(BLOCK).zip(packed.chunks_mut(block_bytes(wire)));
    for (index, (values, packed)) in blocks.enumerate() {
        let Some(base) = base else {
            encode_block(values, wire, packed);
            continue;
        };
        let difference = &mut difference[..values.len()];
        let base = &base[index * BLOCK..][..values.len()];
        for ((difference, value), base) in difference.iter_mut().zip(values).zip(base) {
            *difference = value - base;
        }
        encode_block(difference, wire, packed);
    }
    packed
}

/// The sum of the squares of all values; `None` if one of them is no number or has no end.
pub fn measure(bytes: &[u8], values: usize, wire: Wire) -> Result<Option<f64>, PackError> {
    check(bytes, values, wire)?;
    let mut buffer = [0.0f32; BLOCK];
    let mut sum = 0.0f64;
    for block in bytes.chunks(block_bytes(wire)) {
        let count = match kind_of(wire) {
            Some(kind) => block.len() / kind.bytes(),
            None => block.len().saturating_sub(SCALE_BYTES),
        };
        let values = &mut buffer[..count];
        decode_block(block, wire, values);
        sum += squares(values);
    }
    // The square of an f32 is below 1e78, and an f64 holds 1e230 of these: so the sum is finite only if all values are.
    Ok(sum.is_finite().then_some(sum))
}

/// Adds every value, times `weight`, to `sum`.
pub fn add(bytes: &[u8], wire: Wire, weight: f32, sum: &mut [f32]) -> Result<(), PackError> {
    check(bytes, sum.len(), wire)?;
    add_checked(bytes, wire, weight, sum);
    Ok(())
}

/// All values.
pub fn unpack(bytes: &[u8], wire: Wire, values: usize) -> Result<Vec<f32>, PackError> {
    check(bytes, values, wire)?;
    let mut out = vec![0.0; values];
    unpack_checked(bytes, wire, &mut out);
    Ok(out)
}

/// The values of a range that begins at a multiple of [`BLOCK`], into `out`, which has room for exactly so many.
pub fn unpack_range(
    bytes: &[u8],
    wire: Wire,
    range: Range<usize>,
    out: &mut [f32],
) -> Result<(), PackError> {
    let wrong = PackError::Range { start: range.start, end: range.end };
    if !range.start.is_multiple_of(BLOCK) || range.start > range.end || range.len() != out.len() {
        return Err(wrong);
    }
    let part = part(bytes, wire, range).ok_or(wrong)?;
    unpack_checked(part, wire, out);
    Ok(())
}

/// The bytes of a range that begins at a multiple of [`BLOCK`]; `None` if there are too few.
pub(super) fn part(bytes: &[u8], wire: Wire, range: Range<usize>) -> Option<&[u8]> {
    let start = usize::try_from(packed_bytes(range.start, wire)).ok()?;
    let end = usize::try_from(packed_bytes(range.end, wire)).ok()?;
    bytes.get(start..end)
}

/// Whether these are the bytes of so many values.
pub(super) fn check(bytes: &[u8], values: usize, wire: Wire) -> Result<(), PackError> {
    let (found, wanted) = (bytes.len() as u64, packed_bytes(values, wire));
    if found == wanted { Ok(()) } else { Err(PackError::Length { found, wanted, values }) }
}

/// As [`add`], of bytes whose length is known to be right.
pub(super) fn add_checked(bytes: &[u8], wire: Wire, weight: f32, sum: &mut [f32]) {
    if wire == Wire::F32 {
        for (sum, four) in sum.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *sum += weight * f32::from_le_bytes(*four);
        }
        return;
    }
    let mut buffer = [0.0f32; BLOCK];
    for (block, sums) in bytes.chunks(block_bytes(wire)).zip(sum.chunks_mut(BLOCK)) {
        let values = &mut buffer[..sums.len()];
        decode_block(block, wire, values);
        for (sum, value) in sums.iter_mut().zip(values.iter()) {
            *sum += weight * value;
        }
    }
}

/// As [`unpack`], of bytes whose length is known to be right.
pub(super) fn unpack_checked(bytes: &[u8], wire: Wire, out: &mut [f32]) {
    for (block, values) in bytes.chunks(block_bytes(wire)).zip(out.chunks_mut(BLOCK)) {
        decode_block(block, wire, values);
    }
}

/// Without the one that has scales.
fn kind_of(wire: Wire) -> Option<Kind> {
    match wire {
        Wire::F32 => Some(Kind::F32),
        Wire::F16 => Some(Kind::F16),
        Wire::Bf16 => Some(Kind::Bf16),
        Wire::Int8 => None,
    }
}

/// The bytes of a full block.
fn block_bytes(wire: Wire) -> usize {
    packed_bytes(BLOCK, wire) as usize
}

fn decode_block(block: &[u8], wire: Wire, out: &mut [f32]) {
    if let Some(kind) = kind_of(wire) {
        return kind.decode(block, out);
    }
    let Some((scale, bytes)) = block.split_first_chunk::<SCALE_BYTES>() else { return };
    let scale = f32::from_le_bytes(*scale);
    for (value, byte) in out.iter_mut().zip(bytes) {
        *value = scale * f32::from(byte.cast_signed());
    }
}

fn encode_block(values: &[f32], wire: Wire, out: &mut [u8]) {
    if let Some(kind) = kind_of(wire) {
        return kind.encode(values, out);
    }
    let Some((scale_bytes, bytes)) = out.split_first_chunk_mut::<SCALE_BYTES>() else { return };
    // Without their sign, the bits of floats are in the order of the floats, and what is not finite comes last.
    let largest = values.iter().map(|value| value.to_bits() & !SIGN).fold(0, u32::max);
    if largest >= f32::INFINITY.to_bits() {
        *scale_bytes = f32::NAN.to_le_bytes();
        return;
    }
    let mut scale = f32::from_bits(largest) / 127.0;
    if (scale * 127.0).is_infinite() {
        // It was rounded up, at the very end of what an f32 can hold.
        scale = scale.next_down();
    }
    *scale_bytes = scale.to_le_bytes();
    // All zeros, or so small that their scale is none: the bytes are zero already.
    if scale == 0.0 {
        return;
    }
    for (byte, value) in bytes.iter_mut().zip(values) {
        // The scale may be rounded down: then the largest would be more than 127.
        let steps = (value / scale).clamp(-127.0, 127.0);
        *byte = (steps + ROUNDS).to_bits() as u8;
    }
}

/// In eight sums, so that the processor can go on with the next before it is done with the last.
fn squares(values: &[f32]) -> f64 {
    let (eights, rest) = values.as_chunks::<8>();
    let mut sums = [0.0f64; 8];
    for eight in eights {
        for (sum, value) in sums.iter_mut().zip(eight) {
            let value = f64::from(*value);
            *sum += value * value;
        }
    }
    let rest: f64 = rest.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests;
