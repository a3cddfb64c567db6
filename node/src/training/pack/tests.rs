use super::*;

const WIRES: [Wire; 4] = [Wire::F32, Wire::F16, Wire::Bf16, Wire::Int8];
/// Around the ends of blocks.
const COUNTS: [usize; 8] = [0, 1, 7, 1023, 1024, 1025, 2048, 5000];

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| (random.f32() - 0.5) * 2.0).collect()
}

/// How far a value of a block, whose largest is `largest`, may be from what is unpacked.
fn error_of(wire: Wire, value: f32, largest: f32) -> f32 {
    match wire {
        Wire::F32 => 0.0,
        // Half of the last digit; below 2^-14 a half has fewer.
        Wire::F16 => value.abs() / 2048.0 + 3e-8,
        Wire::Bf16 => value.abs() / 256.0,
        // Half of a step, and what the scale itself is rounded by.
        Wire::Int8 => largest / 254.0 * 1.0001,
    }
}

#[test]
fn what_is_packed_is_unpacked_nearly_the_same() {
    for wire in WIRES {
        for count in COUNTS {
            let values = random(count, 1);
            let packed = pack(&values, None, wire);
            assert_eq!(packed.len() as u64, packed_bytes(count, wire), "{wire:?} {count}");
            let unpacked = unpack(&packed, wire, count).unwrap();
            for (before, after) in values.chunks(BLOCK).zip(unpacked.chunks(BLOCK)) {
                let largest = before.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                for (before, after) in before.iter().zip(after) {
                    let most = error_of(wire, *before, largest);
                    assert!((before - after).abs() <= most, "{wire:?}: {before} became {after}");
                }
            }
        }
    }
}

#[test]
fn lengths_are_exact() {
    assert_eq!(packed_bytes(1025, Wire::F32), 4100);
    assert_eq!(packed_bytes(1025, Wire::F16), 2050);
    assert_eq!(packed_bytes(1025, Wire::Bf16), 2050);
    assert_eq!(packed_bytes(1025, Wire::Int8), 1033);
    assert_eq!(packed_bytes(1024, Wire::Int8), 1028);
    assert_eq!(packed_bytes(usize::MAX, Wire::F32), u64::MAX);
    assert_eq!(packed_bytes(usize::MAX, Wire::Int8), u64::MAX);
}

#[test]
fn int8_is_a_scale_and_signed_bytes() {
    let packed = pack(&[127.0, -127.0, 1.0, -2.4, 0.5, 1.5, 0.0], None, Wire::Int8);
    let mut wanted = 1.0f32.to_le_bytes().to_vec();
    // Ties go to the even one.
    wanted.extend([127, -127, 1, -2, 0, 2, 0].map(|step: i8| step.cast_unsigned()));
    assert_eq!(packed, wanted);
    // A block of zeros has no scale, and one of the smallest values loses them.
    assert_eq!(pack(&[0.0, -0.0], None, Wire::Int8), [0; 6]);
    let tiny = f32::from_bits(1);
    assert_eq!(pack(&[tiny, -tiny], None, Wire::Int8), [0; 6]);
    // A scale of few digits: the largest must not wrap around.
    for bits in [127, 150, 190, 191, 1000, 0x0080_0000] {
        let value = f32::from_bits(bits);
        let packed = pack(&[value, -value], None, Wire::Int8);
        let unpacked = unpack(&packed, Wire::Int8, 2).unwrap();
        assert!(unpacked[0] > 0.0 && unpacked[0] == -unpacked[1], "{bits}: {unpacked:?}");
    }
}

#[test]
fn the_difference_from_a_base_is_what_travels() {
    for wire in WIRES {
        let (values, base) = (random(3000, 2), random(3000, 3));
        let differences: Vec<f32> = values.iter().zip(&base).map(|(a, b)| a - b).collect();
        assert_eq!(pack(&values, Some(&base), wire), pack(&differences, None, wire), "{wire:?}");
    }
}

#[test]
fn what_is_finite_stays_finite() {
    for wire in WIRES {
        let mut values = random(2000, 4);
        for (at, large) in [(3, 1e6), (1030, f32::MAX), (1500, -f32::MAX), (1999, -65520.0)] {
            values[at] = large;
        }
        let packed = pack(&values, None, wire);
        assert!(matches!(measure(&packed, 2000, wire), Ok(Some(_))), "{wire:?}");
        let unpacked = unpack(&packed, wire, 2000).unwrap();
        assert!(unpacked.iter().all(|value| value.is_finite()), "{wire:?}");
    }
    let unpacked = unpack(&pack(&[1e6, -1e6], None, Wire::F16), Wire::F16, 2).unwrap();
    assert_eq!(unpacked, [65504.0, -65504.0]);
}

#[test]
fn what_is_no_number_is_found_in_every_form() {
    let odd = [f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001), f32::INFINITY, f32::NEG_INFINITY];
    for wire in WIRES {
        for odd in odd {
            for at in [0, 5, 1023, 1024, 2999] {
                let mut values = random(3000, 5);
                assert!(matches!(measure(&pack(&values, None, wire), 3000, wire), Ok(Some(_))));
                values[at] = odd;
                let packed = pack(&values, None, wire);
                assert_eq!(measure(&packed, 3000, wire), Ok(None), "{wire:?} {odd} at {at}");
                let base = vec![1.0; 3000];
                let packed = pack(&values, Some(&base), wire);
                assert_eq!(measure(&packed, 3000, wire), Ok(None), "{wire:?} {odd} at {at}");
            }
        }
        // A difference that is too large for an f32 is none, either.
        let packed = pack(&[f32::MAX], Some(&[-f32::MAX]), wire);
        assert_eq!(measure(&packed, 1, wire), Ok(None), "{wire:?}");
    }
}

#[test]
fn a_hostile_scale_is_found() {
    for (scale, byte) in [(f32::MAX, 2), (f32::INFINITY, 0), (f32::NAN, 0), (-f32::MAX, 0x80)] {
        let mut bytes = scale.to_le_bytes().to_vec();
        bytes.push(byte);
        assert_eq!(measure(&bytes, 1, Wire::Int8), Ok(None), "{scale} {byte}");
    }
}

#[test]
fn the_measure_is_the_sum_of_squares_of_what_is_unpacked() {
    for wire in WIRES {
        for count in COUNTS {
            let packed = pack(&random(count, 6), None, wire);
            let unpacked = unpack(&packed, wire, count).unwrap();
            let wanted: f64 = unpacked.iter().map(|value| f64::from(*value).powi(2)).sum();
            let found = measure(&packed, count, wire).unwrap().unwrap();
            assert!((found - wanted).abs() <= wanted * 1e-12, "{wire:?}: {found} {wanted}");
        }
    }
    // Squares that no f32 could hold.
    let packed = pack(&[1e30, 1e30], None, Wire::F32);
    let found = measure(&packed, 2, Wire::F32).unwrap().unwrap();
    assert!((found / 2e60 - 1.0).abs() < 1e-6);
}

#[test]
fn added_is_the_sum_of_what_is_unpacked() {
    for wire in WIRES {
        for count in COUNTS {
            let packed = pack(&random(count, 7), None, wire);
            let mut sum = random(count, 8);
            let unpacked = unpack(&packed, wire, count).unwrap();
            let wanted: Vec<f32> = sum.iter().zip(&unpacked).map(|(s, v)| s + 0.3 * v).collect();
            add(&packed, wire, 0.3, &mut sum).unwrap();
            assert_eq!(sum, wanted, "{wire:?} {count}");
        }
    }
}

#[test]
fn a_range_is_a_part_of_the_whole() {
    for wire in WIRES {
        let packed = pack(&random(5000, 9), None, wire);
        let whole = unpack(&packed, wire, 5000).unwrap();
        for range in [0..5000, 0..0, 1024..1025, 1024..2048, 2048..4999, 4096..5000, 0..1] {
            let mut out = vec![0.0; range.len()];
            unpack_range(&packed, wire, range.clone(), &mut out).unwrap();
            assert_eq!(out, whole[range]);
        }
        let refused = |range: Range<usize>, room: usize| {
            let wanted = PackError::Range { start: range.start, end: range.end };
            let mut out = vec![0.0; room];
            assert_eq!(unpack_range(&packed, wire, range, &mut out), Err(wanted));
        };
        refused(1..2, 1);
        refused(0..10, 9);
        refused(0..10, 11);
        refused(4096..5001, 905);
        refused(6144..6145, 1);
        refused(Range { start: 1024, end: 1023 }, 0);
    }
}

#[test]
fn a_wrong_length_is_refused() {
    for wire in WIRES {
        let packed = pack(&random(1500, 10), None, wire);
        for bytes in [&packed[1..], &packed[..0], &[&packed[..], &[0]].concat()] {
            let wanted = PackError::Length {
                found: bytes.len() as u64,
                wanted: packed.len() as u64,
                values: 1500,
            };
            assert_eq!(measure(bytes, 1500, wire), Err(wanted));
            assert_eq!(unpack(bytes, wire, 1500), Err(wanted));
            assert_eq!(add(bytes, wire, 1.0, &mut [0.0; 1500]), Err(wanted));
        }
        assert!(unpack(&packed, wire, usize::MAX).is_err());
        assert!(measure(&packed, usize::MAX, wire).is_err());
    }
}

#[test]
fn any_bytes_are_measured_and_added_without_harm() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..500 {
        let count = random.usize(0..2500);
        for wire in WIRES {
            let mut bytes = vec![0; packed_bytes(count, wire) as usize];
            random.fill(&mut bytes);
            let unpacked = unpack(&bytes, wire, count).unwrap();
            let is_finite = unpacked.iter().all(|value| value.is_finite());
            assert_eq!(measure(&bytes, count, wire).unwrap().is_some(), is_finite);
            add(&bytes, wire, 1.0, &mut vec![0.0; count]).unwrap();
        }
    }
}
