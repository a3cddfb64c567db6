//! What a shard does with a gradient: SGD, with momentum or without, Adagrad, Adam. A gradient points uphill, so values go the other way.
//!
//! Each value stands for itself. So a push of some of them steps these alone, and leaves what is kept of the others as it is.

use crate::job::training::Rule;

/// What one shard keeps between steps, and how it steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimiser {
    rule: Rule,
    /// As many as the shard has, or none: the velocity, or the running mean of gradients.
    first: Vec<f32>,
    /// As many as the shard has, or none: what stands for the size of gradients.
    second: Vec<f32>,
    /// Adam's betas, each to the power of the number of steps so far.
    powers: [f64; 2],
}

impl Optimiser {
    /// Before the first step.
    pub fn new(rule: Rule, values: usize) -> Self {
        let (first, second) = rows(rule);
        let row = |is_kept: bool| if is_kept { vec![0.0; values] } else { Vec::new() };
        Self { rule, first: row(first), second: row(second), powers: [1.0; 2] }
    }

    /// Goes on from what was kept; `None` if that is not of this rule and so many values.
    pub fn resume(
        rule: Rule,
        values: usize,
        powers: [f64; 2],
        first: Vec<f32>,
        second: Vec<f32>,
    ) -> Option<Self> {
        let (has_first, has_second) = rows(rule);
        let fits = |row: &[f32], is_kept: bool| row.len() == if is_kept { values } else { 0 };
        let are_powers = powers.iter().all(|power| (0.0..=1.0).contains(power));
        let sound = fits(&first, has_first) && fits(&second, has_second) && are_powers;
        sound.then_some(Self { rule, first, second, powers })
    }

    /// What is kept: see [`Optimiser::resume`].
    pub fn kept(&self) -> ([f64; 2], &[f32], &[f32]) {
        (self.powers, &self.first, &self.second)
    }

    /// How many rows of values are kept: velocity, and sizes.
    pub fn rows_of(rule: Rule) -> (bool, bool) {
        rows(rule)
    }

    /// A step begins: whatever is stepped until the next one belongs to it.
    pub fn begin(&mut self) {
        if let Rule::Adam { beta1, beta2, .. } = self.rule {
            self.powers[0] *= beta1.get();
            self.powers[1] *= beta2.get();
        }
    }

    /// Steps `values`, which are those of the shard from `at` on. All of them are there: checked by the caller.
    pub fn step(&mut self, values: &mut [f32], gradient: &[f32], at: usize) {
        let count = values.len().min(gradient.len());
        let row = |row: &mut Vec<f32>| -> Option<std::ops::Range<usize>> {
            (row.len() >= at.saturating_add(count)).then_some(at..at + count)
        };
        let (first, second) = (row(&mut self.first), row(&mut self.second));
        let first = first.map_or(&mut [][..], |range| &mut self.first[range]);
        let second = second.map_or(&mut [][..], |range| &mut self.second[range]);
        match self.rule {
            Rule::Sgd { rate, momentum } if momentum.get() == 0.0 => {
                let rate = rate.get() as f32;
                for (value, slope) in values.iter_mut().zip(gradient) {
                    *value -= rate * slope;
                }
            }
            Rule::Sgd { rate, momentum } => {
                let (rate, momentum) = (rate.get() as f32, momentum.get() as f32);
                for ((value, slope), speed) in values.iter_mut().zip(gradient).zip(first) {
                    *speed = momentum * *speed + slope;
                    *value -= rate * *speed;
                }
            }
            Rule::Adagrad { rate, epsilon } => {
                let (rate, epsilon) = (rate.get() as f32, epsilon.get() as f32);
                for ((value, slope), size) in values.iter_mut().zip(gradient).zip(second) {
                    *size += slope * slope;
                    *value -= rate * slope / (size.sqrt() + epsilon);
                }
            }
            Rule::Adam { rate, beta1, beta2, epsilon } => {
                let (beta1, beta2) = (beta1.get() as f32, beta2.get() as f32);
                let epsilon = epsilon.get() as f32;
                // Both means begin at zero, and are drawn to it at first.
                let rate = (rate.get() / (1.0 - self.powers[0])) as f32;
                let scale = (1.0 / (1.0 - self.powers[1])) as f32;
                let kept = first.iter_mut().zip(second);
                for ((value, slope), (mean, size)) in values.iter_mut().zip(gradient).zip(kept) {
                    *mean = beta1 * *mean + (1.0 - beta1) * slope;
                    *size = beta2 * *size + (1.0 - beta2) * slope * slope;
                    *value -= rate * *mean / ((*size * scale).sqrt() + epsilon);
                }
            }
        }
    }
}

/// Whether a velocity is kept, and whether sizes are.
fn rows(rule: Rule) -> (bool, bool) {
    match rule {
        Rule::Sgd { momentum, .. } => (momentum.get() != 0.0, false),
        Rule::Adagrad { .. } => (false, true),
        Rule::Adam { .. } => (true, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::training::Real;

    fn real(number: f64) -> Real {
        Real::new(number).unwrap()
    }

    /// What becomes of 1 after these gradients.
    fn after(rule: Rule, gradients: &[f32]) -> f32 {
        let mut optimiser = Optimiser::new(rule, 1);
        let mut values = [1.0];
        for slope in gradients {
            optimiser.begin();
            optimiser.step(&mut values, &[*slope], 0);
        }
        values[0]
    }

    #[test]
    fn each_rule_steps_as_it_is_written_down() {
        let close =
            |found: f32, wanted: f32| assert!((found - wanted).abs() < 1e-5, "{found} {wanted}");
        let sgd = |momentum| Rule::Sgd { rate: real(0.1), momentum: real(momentum) };
        close(after(sgd(0.0), &[1.0, 2.0]), 0.7);
        // The second step: 0.9 of the first, and 2.
        close(after(sgd(0.9), &[1.0, 2.0]), 1.0 - 0.1 - 0.1 * 2.9);
        let adagrad = Rule::Adagrad { rate: real(0.1), epsilon: real(1e-8) };
        close(after(adagrad, &[3.0, 4.0]), 1.0 - 0.1 - 0.1 * 4.0 / 5.0);
        let adam = Rule::Adam {
            rate: real(0.1),
            beta1: real(0.9),
            beta2: real(0.999),
            epsilon: real(1e-8),
        };
        // As PyTorch has it: the first step is as long as the rate, whatever the gradient.
        close(after(adam, &[0.5]), 0.9);
        close(after(adam, &[0.5, 0.5, 0.5]), 0.7);
    }

    #[test]
    fn what_is_not_pushed_stays_as_it_is() {
        let rule = Rule::Sgd { rate: real(1.0), momentum: real(0.5) };
        let mut optimiser = Optimiser::new(rule, 3);
        let mut values = [0.0; 3];
        optimiser.begin();
        optimiser.step(&mut values[1..2], &[-1.0], 1);
        assert_eq!(values, [0.0, 1.0, 0.0]);
        assert_eq!(optimiser.kept().1, [0.0, -1.0, 0.0]);
    }

    #[test]
    fn what_was_kept_is_gone_on_from_only_if_it_fits() {
        let rule = Rule::Adagrad { rate: real(0.1), epsilon: real(1e-8) };
        let resumed = |first: usize, second: usize, power: f64| {
            Optimiser::resume(rule, 2, [power; 2], vec![0.0; first], vec![0.0; second])
        };
        assert!(resumed(0, 2, 1.0).is_some());
        assert!(resumed(2, 2, 1.0).is_none() && resumed(0, 3, 1.0).is_none());
        assert!(resumed(0, 2, f64::NAN).is_none());
    }
}
