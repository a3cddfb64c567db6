//! How a single value is written, and whole rows of them at once.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// So many values are turned into halves at a time.
const HALVES: usize = 1024;
/// The largest value of an IEEE half.
const LARGEST_F16: f32 = 65504.0;
/// The largest value of which the lower half is zero.
const LARGEST_BF16: f32 = f32::from_bits(0x7F7F_0000);

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Four bytes.
    F32,
    /// Two bytes, IEEE half.
    F16,
    /// Two bytes, the upper half of an f32.
    Bf16,
}

impl Kind {
    /// The bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::F16 | Kind::Bf16 => 2,
        }
    }

    /// As safetensors calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::F32 => "F32",
            Kind::F16 => "F16",
            Kind::Bf16 => "BF16",
        }
    }

    /// What safetensors calls so, if it is one of these.
    pub(super) fn named(name: &str) -> Option<Kind> {
        [Kind::F32, Kind::F16, Kind::Bf16].into_iter().find(|kind| kind.name() == name)
    }

    /// Reads as many values as there is room for. There are exactly as many bytes as that takes.
    pub(in crate::training) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        debug_assert_eq!(bytes.len(), out.len() * self.bytes());
        match self {
            Kind::F32 => {
                for (value, four) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*four);
                }
            }
            Kind::F16 => {
                let mut halves = [f16::ZERO; HALVES];
                let pieces = bytes.as_chunks::<2>().0.chunks(HALVES);
                for (values, twos) in out.chunks_mut(HALVES).zip(pieces) {
                    for (half, two) in halves.iter_mut().zip(twos) {
                        *half = f16::from_le_bytes(*two);
                    }
                    halves[..values.len()].convert_to_f32_slice(values);
                }
            }
            Kind::Bf16 => {
                for (value, two) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16);
                }
            }
        }
    }

    /// Writes all values. There is room for exactly so many. A finite value stays finite: what is too large for the kind
    /// becomes its largest.
    pub(in crate::training) fn encode(self, values: &[f32], out: &mut [u8]) {
        debug_assert_eq!(out.len(), values.len() * self.bytes());
        match self {
            Kind::F32 => {
                for (four, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *four = value.to_le_bytes();
                }
            }
            Kind::F16 => {
                let mut near = [0.0f32; HALVES];
                let mut halves = [f16::ZERO; HALVES];
                let pieces = out.as_chunks_mut::<2>().0.chunks_mut(HALVES);
                for (twos, values) in pieces.zip(values.chunks(HALVES)) {
                    let near = &mut near[..values.len()];
                    for (near, value) in near.iter_mut().zip(values) {
                        *near = within(*value, LARGEST_F16);
                    }
                    let halves = &mut halves[..values.len()];
                    halves.convert_from_f32_slice(near);
                    for (two, half) in twos.iter_mut().zip(halves.iter()) {
                        *two = half.to_le_bytes();
                    }
                }
            }
            Kind::Bf16 => {
                for (two, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *two = to_bf16(*value).to_le_bytes();
                }
            }
        }
    }
}

/// The nearest value that is not larger than `most`; what is not finite stays.
fn within(value: f32, most: f32) -> f32 {
    if value.is_infinite() { value } else { value.clamp(-most, most) }
}

/// The nearest, ties to even.
fn to_bf16(value: f32) -> u16 {
    let bits = within(value, LARGEST_BF16).to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    // To round what is no number could make one of it.
    if value.is_nan() { 0x7FC0 } else { rounded as u16 }
}
