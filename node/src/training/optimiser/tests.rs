use super::super::pack::pack;
use super::*;
use crate::job::training::Real;

const WIRES: [Wire; 4] = [Wire::F32, Wire::F16, Wire::Bf16, Wire::Int8];

fn real(number: f64) -> Real {
    Real::new(number).unwrap()
}

fn adaptive() -> Adaptive {
    Adaptive { rate: real(0.1), beta1: real(0.9), beta2: real(0.99), tau: real(0.001) }
}

fn every_strategy() -> Vec<Strategy> {
    vec![
        Strategy::FedAvg { rate: real(0.5) },
        Strategy::FedProx { mu: real(0.1) },
        Strategy::FedAdam(adaptive()),
        Strategy::FedYogi(adaptive()),
        Strategy::FedAdagrad(adaptive()),
        Strategy::FedBuff { buffer: 3, rate: real(0.5), max_staleness: 5 },
        Strategy::DiLoCo { rate: real(0.7), momentum: real(0.9) },
        Strategy::Median,
        Strategy::TrimmedMean { trim: real(0.2) },
    ]
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| (random.f32() - 0.5) * 2.0).collect()
}

fn assert_near(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let most = 4e-6 * wanted.abs().max(1.0);
        assert!((found - wanted).abs() <= most, "{what}, value {index}: {found}, not {wanted}");
    }
}

/// From 1, -2 and 0.5, by the two means.
fn check_steps(strategy: Strategy, means: [[f32; 3]; 2], wanted: [[f32; 3]; 2]) {
    let mut model = [1.0, -2.0, 0.5];
    let mut optimiser = Optimiser::new(&strategy, 3);
    for (mean, wanted) in means.iter().zip(&wanted) {
        optimiser.apply(&mut model, mean);
        assert_near(&model, wanted, &format!("{strategy:?}"));
    }
    // And the same when it was kept between the rounds.
    let mut model = [1.0, -2.0, 0.5];
    let mut optimiser = Optimiser::new(&strategy, 3);
    for (mean, wanted) in means.iter().zip(&wanted) {
        optimiser = Optimiser::from_bytes(&strategy, 3, &optimiser.to_bytes()).unwrap();
        optimiser.apply(&mut model, mean);
        assert_near(&model, wanted, &format!("{strategy:?}, kept"));
    }
}

/// The vectors come from the formulas of the papers, and of torch.optim.SGD, in a few lines of Python.
#[test]
fn each_strategy_steps_as_its_formula_says() {
    let means = [[0.5, -0.25, 0.0], [-1.0, 0.75, 0.125]];
    let whole = [[1.5, -2.25, 0.5], [0.5, -1.5, 0.625]];
    let half = [[1.25, -2.125, 0.5], [0.75, -1.75, 0.5625]];
    check_steps(Strategy::FedAvg { rate: real(1.0) }, means, whole);
    check_steps(Strategy::FedAvg { rate: real(0.5) }, means, half);
    check_steps(Strategy::FedProx { mu: real(0.1) }, means, whole);
    check_steps(Strategy::Median, means, whole);
    check_steps(Strategy::TrimmedMean { trim: real(0.2) }, means, whole);
    let buffered = Strategy::FedBuff { buffer: 3, rate: real(0.5), max_staleness: 5 };
    check_steps(buffered, means, half);
    check_steps(
        Strategy::DiLoCo { rate: real(0.7), momentum: real(0.9) },
        means,
        [[1.665, -2.3325, 0.5], [0.6185, -1.47675, 0.66625]],
    );
    check_steps(
        Strategy::FedAdam(adaptive()),
        means,
        [[1.098_020_2, -2.096_080_7, 0.5], [1.049_216_3, -2.030_475, 0.592_324_9]],
    );
    check_steps(
        Strategy::FedAdagrad(adaptive()),
        means,
        [[1.009_98, -2.009_96, 0.5], [1.005_065, -2.003_327_7, 0.509_920_3]],
    );
    check_steps(
        Strategy::FedYogi(adaptive()),
        means,
        [[1.098_02, -2.096_08, 0.5], [1.049_264_5, -2.030_506_8, 0.592_319_5]],
    );
    // A second mean that is smaller than the first: what Yogi keeps goes down by little.
    check_steps(
        Strategy::FedYogi(adaptive()),
        [[2.0, -2.0, 0.0], [0.1, 0.2, 0.125]],
        [[1.099_501_2, -2.099_501_2, 0.5], [1.194_145_2, -2.179_501_2, 0.592_319_5]],
    );
}

#[test]
fn only_strategies_that_remember_keep_anything() {
    for strategy in every_strategy() {
        let rows = match strategy {
            Strategy::FedAdam(_) | Strategy::FedYogi(_) | Strategy::FedAdagrad(_) => 2,
            Strategy::DiLoCo { .. } => 1,
            _ => 0,
        };
        let mut optimiser = Optimiser::new(&strategy, 5);
        optimiser.apply(&mut [0.0; 5], &random(5, 1));
        let bytes = optimiser.to_bytes();
        assert_eq!(bytes.len(), rows * 20, "{strategy:?}");
        assert_eq!(Optimiser::from_bytes(&strategy, 5, &bytes), Some(optimiser), "{strategy:?}");
        assert_eq!(Optimiser::from_bytes(&strategy, 5, &[&bytes[..], &[0; 4]].concat()), None);
        assert_eq!(Optimiser::from_bytes(&strategy, 6, &bytes).is_some(), rows == 0);
        assert_eq!(Optimiser::from_bytes(&strategy, usize::MAX, &bytes), None);
        assert!(Optimiser::from_bytes(&strategy, 0, &[]).is_some());
    }
}

#[test]
fn a_large_shard_steps_as_many_small_ones_do() {
    let count = MANY + 70_001;
    let means = [random(count, 2), random(count, 3)];
    for strategy in every_strategy() {
        let mut whole = random(count, 1);
        let mut parts = whole.clone();
        let mut optimiser = Optimiser::new(&strategy, count);
        let size = 300_000;
        let lengths: Vec<usize> = parts.chunks(size).map(<[f32]>::len).collect();
        let mut optimisers: Vec<Optimiser> =
            lengths.iter().map(|length| Optimiser::new(&strategy, *length)).collect();
        for mean in &means {
            optimiser.apply(&mut whole, mean);
            let pairs = parts.chunks_mut(size).zip(mean.chunks(size));
            for (optimiser, (part, mean)) in optimisers.iter_mut().zip(pairs) {
                optimiser.apply(part, mean);
            }
        }
        assert!(whole == parts, "{strategy:?}");
    }
}

/// As [`combine`] should: without blocks, threads or tricks.
fn naive(strategy: &Strategy, updates: &[Vec<f32>], weights: &[f32], divisor: f64) -> Vec<f32> {
    let mut out = Vec::new();
    for at in 0..updates[0].len() {
        let scaled = updates.iter().zip(weights).map(|(update, weight)| update[at] * weight);
        let mut column: Vec<f32> = scaled.collect();
        column.sort_by(f32::total_cmp);
        let sum_of = |values: &[f32]| values.iter().map(|value| f64::from(*value)).sum::<f64>();
        let count = column.len();
        out.push(match strategy {
            Strategy::Median if count % 2 == 1 => column[count / 2],
            Strategy::Median => (column[count / 2 - 1] + column[count / 2]) / 2.0,
            Strategy::TrimmedMean { trim } => {
                let cut = (trim.get() * count as f64).floor() as usize;
                let kept = &column[cut..count - cut];
                (sum_of(kept) / kept.len() as f64) as f32
            }
            _ => (sum_of(&column) / divisor) as f32,
        });
    }
    out
}

fn check_combine(strategy: &Strategy, wire: Wire, count: usize, parties: usize) {
    let raw: Vec<Vec<f32>> = (0..parties).map(|party| random(count, party as u64)).collect();
    let packed: Vec<Vec<u8>> = raw.iter().map(|values| pack(values, None, wire)).collect();
    let unpacked: Vec<Vec<f32>> =
        packed.iter().map(|bytes| pack::unpack(bytes, wire, count).unwrap()).collect();
    let weights: Vec<f32> = (0..parties)
        .map(|party| {
            if is_robust(strategy) {
                1.0 - party as f32 / 100.0
            } else {
                600.0 * (party + 1) as f32
            }
        })
        .collect();
    let divisor: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let updates: Vec<(&[u8], f32)> =
        packed.iter().map(Vec::as_slice).zip(weights.iter().copied()).collect();
    let found = combine(strategy, &updates, wire, count, divisor).unwrap();
    let wanted = naive(strategy, &unpacked, &weights, divisor);
    assert_near(&found, &wanted, &format!("{strategy:?} {wire:?} {count} {parties}"));
}

#[test]
fn combined_is_what_the_plain_way_gives() {
    for strategy in every_strategy() {
        for wire in WIRES {
            for (count, parties) in [(1, 1), (1023, 2), (1024, 3), (1025, 4), (3000, 10)] {
                check_combine(&strategy, wire, count, parties);
            }
        }
    }
    for parties in 5..=64 {
        check_combine(&Strategy::Median, Wire::F32, 50, parties);
        check_combine(&Strategy::TrimmedMean { trim: real(0.25) }, Wire::F32, 50, parties);
    }
}

#[test]
fn combined_by_threads_is_what_the_plain_way_gives() {
    for strategy in [Strategy::FedProx { mu: real(0.1) }, Strategy::Median] {
        check_combine(&strategy, Wire::F32, MANY + 5000, 3);
        check_combine(&strategy, Wire::Int8, MANY + 5000, 2);
    }
}

#[test]
fn a_few_liars_do_not_move_the_median_far() {
    let honest = random(2000, 1);
    let lie: Vec<f32> = honest.iter().map(|value| -1e30 * value).collect();
    let packed: Vec<Vec<u8>> =
        [&honest, &lie, &honest, &lie, &honest].map(|values| pack(values, None, Wire::F32)).into();
    let updates: Vec<(&[u8], f32)> = packed.iter().map(|bytes| (&bytes[..], 1.0)).collect();
    let median = combine(&Strategy::Median, &updates, Wire::F32, 2000, 5.0).unwrap();
    assert_eq!(median, honest);
    let trimmed = Strategy::TrimmedMean { trim: real(0.4) };
    assert_eq!(combine(&trimmed, &updates, Wire::F32, 2000, 5.0).unwrap(), honest);
}

#[test]
fn means_of_small_whole_numbers_are_exact() {
    let packed = [[1.0, 6.0], [2.0, -3.0], [6.0, 6.0]].map(|v: [f32; 2]| pack(&v, None, Wire::F32));
    let updates: Vec<(&[u8], f32)> = packed.iter().map(|bytes| (&bytes[..], 1.0)).collect();
    let strategy = Strategy::FedAvg { rate: real(1.0) };
    assert_eq!(combine(&strategy, &updates, Wire::F32, 2, 3.0).unwrap(), [3.0, 3.0]);
    // Weights as large as examples can be many.
    let heavy: Vec<(&[u8], f32)> = updates.iter().map(|(bytes, _)| (*bytes, 1e38)).collect();
    let found = combine(&strategy, &heavy, Wire::F32, 2, 3e38).unwrap();
    assert_near(&found, &[3.0, 3.0], "heavy");
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let bytes = pack(&[1.0, 2.0], None, Wire::F32);
    for strategy in every_strategy() {
        assert_eq!(combine(&strategy, &[], Wire::F32, 3, 1.0), Ok(vec![0.0; 3]));
        let found = combine(&strategy, &[(&bytes[..], 1.0)], Wire::F32, 3, 1.0);
        assert_eq!(found, Err(PackError::Length { found: 8, wanted: 12, values: 3 }));
        for divisor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let found = combine(&strategy, &[(&bytes[..], 1.0)], Wire::F32, 2, divisor);
            // Who picks does not divide.
            let wanted =
                if is_robust(&strategy) { Ok(vec![1.0, 2.0]) } else { Err(PackError::Divisor) };
            assert_eq!(found, wanted, "{strategy:?} {divisor}");
        }
    }
}

#[test]
fn robust_are_those_that_pick() {
    let robust = every_strategy().iter().filter(|strategy| is_robust(strategy)).count();
    assert_eq!(robust, 2);
    // A share in floats may be a little less than what was written.
    let trimmed =
        |trim: f64, updates| left_out(&Strategy::TrimmedMean { trim: real(trim) }, updates);
    assert_eq!(trimmed(0.29, 100), Some(29));
    assert_eq!(trimmed(0.3, 10), Some(3));
    assert_eq!(trimmed(0.0, 10), Some(0));
    assert_eq!(trimmed(0.499, 2), Some(0));
    assert_eq!(left_out(&Strategy::Median, 5), Some(2));
    assert_eq!(left_out(&Strategy::Median, 4), Some(1));
    assert_eq!(left_out(&Strategy::FedAvg { rate: real(1.0) }, 5), None);
}

#[test]
fn the_network_sorts() {
    // What sorts all rows of zeros and ones sorts all rows.
    for rows in 0..=12 {
        let network = network(rows);
        for bits in 0..1u32 << rows {
            let mut row: Vec<u32> = (0..rows).map(|at| (bits >> at) & 1).collect();
            for (low, high) in &network {
                if row[*high] < row[*low] {
                    row.swap(*low, *high);
                }
            }
            assert!(row.is_sorted(), "{rows} rows: {row:?}");
        }
    }
}
