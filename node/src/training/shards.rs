//! Which values of a model belong to which shard.
//!
//! A model is one vector, and each aggregator sums a range of it. Ranges begin at blocks: so the packed bytes of a shard
//! are the same whether the model was packed whole or shard by shard.

use std::ops::Range;

use crate::state::course::MAX_SHARDS;

/// So many values share a scale on the wire, and no shard begins within them.
pub const BLOCK: usize = 1024;

/// A shard holds at least so many values, which are 64 KiB: below that, a message costs more than the sum in it.
const MIN_SHARD_VALUES: u64 = (64 << 10) / 4;

/// The values of `shard`, of so many.
///
/// Shards follow one another and cover all values. Each begins at a multiple of [`BLOCK`], and they differ by a block at
/// most. Of few values some shards have none.
pub fn range(values: u64, shards: usize, shard: usize) -> Range<usize> {
    let shards = shards.max(1);
    let blocks = values.div_ceil(BLOCK as u64);
    // Wide enough for any product of the two.
    let boundary = |shard: usize| {
        let block = u128::from(blocks) * shard.min(shards) as u128 / shards as u128;
        (block * BLOCK as u128).min(u128::from(values)) as usize
    };
    boundary(shard)..boundary(shard.saturating_add(1))
}

/// Into how many shards a model is cut, if there are so many nodes to sum it.
pub fn count_for(values: u64, aggregators: usize) -> usize {
    let most = aggregators.clamp(1, MAX_SHARDS);
    // Few enough to be a usize wherever this runs.
    (values / MIN_SHARD_VALUES).clamp(1, most as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics unless the shards are what `range` promises.
    fn check(values: u64, shards: usize) {
        let ranges: Vec<_> = (0..shards).map(|shard| range(values, shards, shard)).collect();
        let mut at = 0;
        for range in &ranges {
            assert_eq!(range.start, at, "{values} values in {shards} shards: {ranges:?}");
            assert!(range.start <= range.end);
            assert!(range.end.is_multiple_of(BLOCK) || range.end as u64 == values);
            at = range.end;
        }
        assert_eq!(at as u64, values, "{values} values in {shards} shards: {ranges:?}");
        let blocks = ranges.iter().map(|range| range.len().div_ceil(BLOCK));
        let (least, most) = (blocks.clone().min().unwrap(), blocks.max().unwrap());
        assert!(most - least <= 1, "{values} values in {shards} shards: {ranges:?}");
    }

    #[test]
    fn shards_cover_all_values_in_order() {
        for values in [0, 1, 1023, 1024, 1025, 2048, 65_536, 1_000_003, 1 << 36] {
            for shards in [1, 2, 3, 7, 64] {
                check(values, shards);
            }
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            check(random.u64(0..10_000_000), random.usize(1..=MAX_SHARDS));
        }
    }

    #[test]
    fn a_shard_that_is_not_there_has_no_values() {
        assert_eq!(range(5000, 2, 2), 5000..5000);
        assert_eq!(range(5000, 2, usize::MAX), 5000..5000);
        assert_eq!(range(5000, 0, 0), 0..5000);
        assert_eq!(range(u64::MAX, usize::MAX, usize::MAX - 1).end as u64, u64::MAX);
    }

    #[test]
    fn a_small_model_has_one_shard_and_a_large_one_as_many_as_sum_it() {
        assert_eq!(count_for(0, 8), 1);
        assert_eq!(count_for(16_384, 8), 1);
        assert_eq!(count_for(32_767, 8), 1);
        assert_eq!(count_for(32_768, 8), 2);
        assert_eq!(count_for(25_000_000, 0), 1);
        assert_eq!(count_for(25_000_000, 8), 8);
        assert_eq!(count_for(25_000_000, 1000), MAX_SHARDS);
        assert_eq!(count_for(u64::MAX, usize::MAX), MAX_SHARDS);
        for values in [16_384, 40_000, 100_000, 1_000_003] {
            let shards = count_for(values, 64);
            let least = (0..shards).map(|shard| range(values, shards, shard).len()).min();
            assert!(least >= Some(MIN_SHARD_VALUES as usize), "{values}: {least:?}");
        }
    }
}
