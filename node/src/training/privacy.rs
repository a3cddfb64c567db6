//! What a training tells about single parties, and how that is kept small: clipping, noise, and the account of what was spent.
//!
//! The account is kept in Rényi divergence at the integer orders 2 to 256: what rounds cost adds up there, and is turned into
//! an epsilon only when somebody asks. One round adds Gaussian noise of deviation `noise × clip` to a sum in which each party
//! has at most the norm `clip`. Where each party takes part with the chance `q`, *drawn on its own* (Poisson), a round costs
//! less. A quorum, a tier or the fastest few are not such a draw: then `q` is 1.
//!
//! Pure, but for [`add_noise`], which asks the system for randomness.

use std::f64::consts::TAU;

use zeroize::Zeroizing;

/// The lowest order.
const FIRST: u32 = 2;
/// The highest.
const LAST: u32 = 256;
const ORDERS: usize = (LAST - FIRST + 1) as usize;

/// [`rounds_within`] looks no further.
const MOST_ROUNDS: u32 = 1_000_000;

/// So much randomness is asked for at a time.
const BLOCK_BYTES: usize = 64 * 1024;
/// Two uniform numbers make two Gaussian ones.
const PAIR_BYTES: usize = 16;
const BLOCK_VALUES: usize = BLOCK_BYTES / PAIR_BYTES * 2;

/// What was spent: the Rényi divergence at each order.
#[derive(Debug, Clone, PartialEq)]
pub struct Spend([f64; ORDERS]);

impl Spend {
    /// Nothing.
    pub fn none() -> Self {
        Self([0.0; ORDERS])
    }

    /// What so many rounds cost, with noise of so many times the clip, when each party takes part with the chance `q`. Without
    /// noise the cost has no end.
    pub fn rounds(noise: f64, q: f64, rounds: u32) -> Self {
        Self(std::array::from_fn(|at| one_round(noise, q, FIRST + at as u32))).times(rounds)
    }

    /// Both.
    pub fn plus(&self, other: &Spend) -> Spend {
        Self(std::array::from_fn(|at| self.0[at] + other.0[at]))
    }

    /// The epsilon that holds but for the chance `delta`, and the order that shows it.
    pub fn epsilon(&self, delta: f64) -> (f64, u32) {
        if self.0.iter().all(|spent| *spent == 0.0) {
            return (0.0, LAST);
        }
        let mut best = (f64::INFINITY, FIRST);
        for (order, spent) in (FIRST..=LAST).zip(&self.0) {
            let alpha = f64::from(order);
            let rest = (delta.ln() + alpha.ln()) / (alpha - 1.0);
            let epsilon = spent + ((alpha - 1.0) / alpha).ln() - rest;
            // False for a delta that is no chance: the cost has no end then.
            if epsilon < best.0 {
                best = (epsilon, order);
            }
        }
        (best.0.max(0.0), best.1)
    }

    fn times(&self, rounds: u32) -> Self {
        // Not a product: no rounds cost nothing, however dear one is.
        if rounds == 0 {
            return Self::none();
        }
        Self(self.0.map(|spent| spent * f64::from(rounds)))
    }
}

/// How many more rounds fit into a budget of which `before` is gone; a million at most.
pub fn rounds_within(epsilon: f64, delta: f64, noise: f64, q: f64, before: &Spend) -> u32 {
    let one = Spend::rounds(noise, q, 1);
    let fits = |rounds: u32| before.plus(&one.times(rounds)).epsilon(delta).0 <= epsilon;
    let (mut fit, mut over) = (0, MOST_ROUNDS + 1);
    while over - fit > 1 {
        let middle = fit + (over - fit) / 2;
        if fits(middle) {
            fit = middle;
        } else {
            over = middle;
        }
    }
    fit
}

/// What an update is multiplied with so that its norm is `clip` at most. Nothing is left of one that has no norm.
pub fn clip_factor(norm: f64, clip: f64) -> f64 {
    if norm.is_nan() {
        0.0
    } else if norm <= clip {
        1.0
    } else {
        clip / norm
    }
}

/// Adds Gaussian noise to each value. It comes from the system's own randomness and nowhere else: noise that can be made
/// again, from a seed that somebody knows, can be taken away again.
///
/// After an error some values have their noise and others do not: they are to be thrown away. As everywhere where this is done in floating
/// point, the lowest bits of a value can tell a little more than the account says.
pub fn add_noise(values: &mut [f32], deviation: f64) -> Result<(), getrandom::Error> {
    if deviation == 0.0 {
        return Ok(());
    }
    let mut block = Zeroizing::new(vec![0_u8; BLOCK_BYTES]);
    for part in values.chunks_mut(BLOCK_VALUES) {
        let random = &mut block[..part.len().div_ceil(2) * PAIR_BYTES];
        getrandom::fill(random)?;
        let (pairs, _) = random.as_chunks::<PAIR_BYTES>();
        for (two, pair) in part.chunks_mut(2).zip(pairs) {
            for (value, noise) in two.iter_mut().zip(gaussian(u128::from_le_bytes(*pair))) {
                *value = (f64::from(*value) + deviation * noise) as f32;
            }
        }
    }
    Ok(())
}

/// The divergence of one round at an order: of the sampled Gaussian, `ln Σ C(α,k) (1−q)^(α−k) q^k e^((k²−k)/2z²) / (α−1)`.
fn one_round(noise: f64, q: f64, order: u32) -> f64 {
    if q <= 0.0 {
        return 0.0;
    }
    if noise.is_nan() || noise <= 0.0 {
        return f64::INFINITY;
    }
    let twice = 2.0 * noise * noise;
    if q.is_nan() || q >= 1.0 {
        return f64::from(order) / twice;
    }
    let (with, without) = (q.ln(), (-q).ln_1p());
    // The logarithm of C(order, k).
    let mut ways = 0.0_f64;
    // The sum so far is `sum × e^top`: its terms are too large for an f64.
    let (mut top, mut sum) = (f64::NEG_INFINITY, 0.0_f64);
    for k in 0..=order {
        let gain = if k < 2 { 0.0 } else { f64::from(k) * f64::from(k - 1) / twice };
        let term = ways + f64::from(k) * with + f64::from(order - k) * without + gain;
        if term == f64::INFINITY {
            return term;
        }
        if term > top {
            sum = sum * (top - term).exp() + 1.0;
            top = term;
        } else {
            sum += (term - top).exp();
        }
        ways += (f64::from(order - k) / f64::from(k + 1)).ln();
    }
    // Below zero by rounding only.
    ((top + sum.ln()) / f64::from(order - 1)).max(0.0)
}

/// Two Gaussian numbers (Box and Muller) of two uniform ones with 53 bits each.
fn gaussian(bits: u128) -> [f64; 2] {
    const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
    let (low, high) = (bits as u64, (bits >> 64) as u64);
    // In (0, 1]: zero has no logarithm.
    let first = ((low >> 11) + 1) as f64 * UNIT;
    let second = (high >> 11) as f64 * UNIT;
    let radius = (-2.0 * first.ln()).sqrt();
    let (sin, cos) = (TAU * second).sin_cos();
    [radius * cos, radius * sin]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 5e-5, "{got} is not {want}");
    }

    #[test]
    fn the_vectors_of_the_accountant_reproduce() {
        let (epsilon, order) = Spend::rounds(1.0, 0.01, 1000).epsilon(1e-5);
        near(epsilon, 2.1078);
        assert_eq!(order, 8);
        let (epsilon, order) = Spend::rounds(1.0, 0.1, 100).epsilon(1e-3);
        near(epsilon, 5.6703);
        assert_eq!(order, 3);
        let (epsilon, order) = Spend::rounds(4.0, 1.0, 50).epsilon(1e-3);
        near(epsilon, 7.1866);
        assert_eq!(order, 3);
    }

    #[test]
    fn the_figure_that_is_widely_quoted_comes_out_with_the_older_conversion() {
        let spend = Spend::rounds(1.3, 250.0 / 60_000.0, 3600);
        let older = (FIRST..=LAST).zip(&spend.0);
        let older = older.map(|(order, spent)| spent - 1e-5_f64.ln() / f64::from(order - 1));
        let least = older.fold(f64::INFINITY, f64::min);
        assert!((least - 1.18).abs() < 0.005, "{least}");
    }

    #[test]
    fn the_second_order_is_the_one_that_can_be_done_by_hand() {
        // ln(1 + q²(e^(1/z²) − 1))
        let by_hand = (0.25_f64.exp_m1() / 4.0).ln_1p();
        near(Spend::rounds(2.0, 0.5, 1).0[0], by_hand);
        near(Spend::rounds(1.0, 1.0, 1).0[0], 1.0);
        near(Spend::rounds(1.0, 1.0, 1).0[1], 1.5);
    }

    #[test]
    fn a_budget_lasts_longer_when_parties_are_drawn() {
        assert_eq!(rounds_within(8.0, 1e-3, 1.0, 0.2, &Spend::none()), 39);
        assert_eq!(rounds_within(8.0, 1e-3, 1.0, 1.0, &Spend::none()), 3);
    }

    #[test]
    fn the_last_round_that_fits_is_the_last() {
        let last = rounds_within(8.0, 1e-3, 4.0, 1.0, &Spend::none());
        assert!(Spend::rounds(4.0, 1.0, last).epsilon(1e-3).0 <= 8.0);
        assert!(Spend::rounds(4.0, 1.0, last + 1).epsilon(1e-3).0 > 8.0);
    }

    #[test]
    fn what_was_spent_before_is_missing_afterwards() {
        let two = Spend::rounds(1.0, 1.0, 2);
        assert_eq!(rounds_within(8.0, 1e-3, 1.0, 1.0, &two), 1);
        let three = two.plus(&Spend::rounds(1.0, 1.0, 1));
        near(three.epsilon(1e-3).0, Spend::rounds(1.0, 1.0, 3).epsilon(1e-3).0);
        assert_eq!(rounds_within(8.0, 1e-3, 1.0, 1.0, &three), 0);
        let too_much = three.plus(&three);
        assert_eq!(rounds_within(8.0, 1e-3, 1.0, 1.0, &too_much), 0);
    }

    #[test]
    fn jobs_of_different_kinds_add_up() {
        let both = Spend::rounds(1.0, 0.1, 50).plus(&Spend::rounds(4.0, 1.0, 10));
        let (epsilon, _) = both.epsilon(1e-3);
        assert!(epsilon > Spend::rounds(1.0, 0.1, 50).epsilon(1e-3).0);
        assert!(epsilon > Spend::rounds(4.0, 1.0, 10).epsilon(1e-3).0);
    }

    #[test]
    fn nothing_costs_nothing_and_no_noise_costs_everything() {
        assert_eq!(Spend::none().epsilon(1e-5).0, 0.0);
        assert_eq!(Spend::rounds(0.0, 1.0, 0).epsilon(1e-5).0, 0.0);
        assert_eq!(Spend::rounds(1.0, 0.0, 5).epsilon(1e-5).0, 0.0);
        assert_eq!(rounds_within(1.0, 1e-5, 1.0, 0.0, &Spend::none()), MOST_ROUNDS);
        for noise in [0.0, -1.0, f64::NAN, 1e-200] {
            for q in [0.5, 1.0] {
                assert_eq!(Spend::rounds(noise, q, 1).epsilon(1e-5).0, f64::INFINITY);
                assert_eq!(rounds_within(8.0, 1e-5, noise, q, &Spend::none()), 0);
            }
        }
    }

    #[test]
    fn what_is_no_chance_is_never_taken_for_a_small_cost() {
        for delta in [0.0, -1.0, f64::NAN] {
            assert_eq!(Spend::rounds(4.0, 1.0, 1).epsilon(delta).0, f64::INFINITY);
        }
        for q in [1.5, f64::NAN] {
            assert_eq!(Spend::rounds(1.0, q, 3), Spend::rounds(1.0, 1.0, 3));
        }
    }

    #[test]
    fn only_what_is_longer_than_the_clip_is_clipped() {
        assert_eq!(clip_factor(0.0, 2.0), 1.0);
        assert_eq!(clip_factor(1.0, 2.0), 1.0);
        assert_eq!(clip_factor(2.0, 2.0), 1.0);
        assert_eq!(clip_factor(8.0, 2.0), 0.25);
        assert_eq!(clip_factor(f64::INFINITY, 2.0), 0.0);
        assert_eq!(clip_factor(f64::NAN, 2.0), 0.0);
    }

    #[test]
    fn noise_has_the_deviation_that_was_asked_for() {
        const COUNT: usize = 100_001;
        let mut values = vec![5.0_f32; COUNT];
        add_noise(&mut values, 3.0).unwrap();
        let count = COUNT as f64;
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
        let squares = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>();
        let deviation = (squares / count).sqrt();
        // Six deviations of each: one run in two hundred million fails by chance.
        assert!((mean - 5.0).abs() < 6.0 * 3.0 / count.sqrt(), "{mean}");
        assert!((deviation - 3.0).abs() < 6.0 * 3.0 / (2.0 * count).sqrt(), "{deviation}");
        // As many in the tails as a Gaussian has: 5 % beyond 1.96 deviations.
        let far = values.iter().filter(|value| (f64::from(**value) - 5.0).abs() > 1.96 * 3.0);
        let far = far.count() as f64 / count;
        assert!((far - 0.05).abs() < 0.005, "{far}");
        // The last one too, though it has no other to make a pair with.
        assert_ne!(values[COUNT - 1], 5.0);
    }

    #[test]
    fn the_two_of_a_pair_and_two_draws_differ() {
        let (mut one, mut other) = ([0.0_f32; 64], [0.0_f32; 64]);
        add_noise(&mut one, 1.0).unwrap();
        add_noise(&mut other, 1.0).unwrap();
        assert_ne!(one, other);
        // Now and then two are the same by chance, but not often.
        assert!(one.windows(2).filter(|two| two[0] == two[1]).count() < 4);
    }

    #[test]
    fn no_deviation_changes_nothing() {
        let mut values = [1.0_f32, -2.5, f32::MIN_POSITIVE, 0.0];
        add_noise(&mut values, 0.0).unwrap();
        assert_eq!(values, [1.0, -2.5, f32::MIN_POSITIVE, 0.0]);
        add_noise(&mut [], 1.0).unwrap();
    }

    #[test]
    fn the_ends_of_the_uniform_numbers_are_numbers() {
        for bits in [0, u128::MAX, u128::from(u64::MAX), u128::MAX << 64] {
            assert!(gaussian(bits).iter().all(|number| number.is_finite() && number.abs() < 9.0));
        }
    }
}
