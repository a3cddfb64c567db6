//! A network with its weights: trained, measured, read and written.
//!
//! ```text
//!   begin ─► train, train …          what a round began with is remembered, and the velocity is at rest
//!      ▲                             (load begins, too)
//! ```
//!
//! The same seed, data, order and settings give the same weights, however many threads compute them.

use std::collections::BTreeMap;

use super::data::Examples;
use super::layers;
use super::shape::{Layer, Shape};

/// The most values that a batch may become on its way through a network: larger batches are cut.
pub const MAX_BATCH_VALUES: usize = 1 << 28;
/// So many values at a time are good for measuring: they stay in the cache.
const MEASURED_VALUES: usize = 1 << 20;

/// How a step is made of a gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// How far a step goes.
    pub lr: f32,
    /// How much of the last step goes on; 0 for none.
    pub momentum: f32,
    /// How strongly weights are drawn to 0.
    pub decay: f32,
    /// How strongly they are drawn to what the round began with (FedProx).
    pub mu: f32,
}

/// Why tensors were not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// One is not there.
    #[error("there is no tensor {name:?}")]
    Missing {
        /// Which.
        name: String,
    },
    /// One has another shape, or not as many values as its shape says.
    #[error("tensor {name:?} has the shape {found:?} instead of {wanted:?}")]
    Shape {
        /// Which.
        name: String,
        /// What it has.
        found: Vec<u64>,
        /// What the network has.
        wanted: Vec<u64>,
    },
    /// One is there twice, or has nothing to do with the network.
    #[error("tensor {name:?} is not one of the network's, or is there twice")]
    Unknown {
        /// Which.
        name: String,
    },
}

/// Why examples cannot go through a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// They have another number of values.
    #[error("an example has {found} values, and the model takes {wanted}")]
    Width {
        /// Of an example.
        found: usize,
        /// Of the network.
        wanted: usize,
    },
    /// They have labels that it does not know.
    #[error("there are labels up to {largest}, and the model knows 0 to {last}")]
    Label {
        /// The largest label.
        largest: u8,
        /// The largest that the network knows.
        last: usize,
    },
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Net {
    shape: Shape,
    /// All tensors, as `shape` lays them out.
    weights: Vec<f32>,
    /// As long as `weights`.
    gradient: Vec<f32>,
    /// As long as `weights`.
    velocity: Vec<f32>,
    /// What the round began with; empty until it is asked for.
    anchor: Vec<f32>,
    room: Room,
}

impl Net {
    /// A network as it begins: weights drawn at random (He et al. 2015), biases 0.
    pub fn new(shape: &Shape, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut weights = vec![0.0; shape.values()];
        for stage in shape.stages() {
            // ReLU takes half of it away.
            let gain: f64 = if stage.relu { 2.0 } else { 1.0 };
            let spread = (gain / stage.fan_in() as f64).sqrt();
            for weight in &mut weights[stage.weight.clone()] {
                *weight = (normal(&mut random) * spread) as f32;
            }
        }
        let rest = vec![0.0; shape.values()];
        Self {
            shape: shape.clone(),
            weights,
            gradient: rest.clone(),
            velocity: rest,
            anchor: Vec::new(),
            room: Room::default(),
        }
    }

    /// What it looks like.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// All values, in the order of [`Net::tensors`].
    pub fn values(&self) -> &[f32] {
        &self.weights
    }

    /// Its tensors: names, shapes, values.
    pub fn tensors(&self) -> Vec<(String, Vec<u64>, &[f32])> {
        let places = self.shape.places();
        places.map(|place| (place.name, place.shape, &self.weights[place.range])).collect()
    }

    /// Takes the weights of a model, all of them or, if one does not fit, none; and begins a round.
    pub fn load<'a>(
        &mut self,
        tensors: impl IntoIterator<Item = (&'a str, &'a [u64], &'a [f32])>,
    ) -> Result<(), LoadError> {
        let mut found = BTreeMap::new();
        for (name, shape, values) in tensors {
            if found.insert(name, (shape, values)).is_some() {
                return Err(LoadError::Unknown { name: name.to_owned() });
            }
        }
        let mut taken = Vec::new();
        for place in self.shape.places() {
            let Some((shape, values)) = found.remove(place.name.as_str()) else {
                return Err(LoadError::Missing { name: place.name });
            };
            if shape != place.shape || values.len() != place.range.len() {
                let (name, found) = (place.name, shape.to_vec());
                return Err(LoadError::Shape { name, found, wanted: place.shape });
            }
            taken.push((place.range, values));
        }
        if let Some(name) = found.into_keys().next() {
            return Err(LoadError::Unknown { name: name.to_owned() });
        }
        for (range, values) in taken {
            self.weights[range].copy_from_slice(values);
        }
        self.begin();
        Ok(())
    }

    /// Begins a round: the velocity is at rest, and `mu` draws to the weights of this moment.
    pub fn begin(&mut self) {
        self.velocity.fill(0.0);
        self.anchor.clear();
    }

    /// Whether these examples can go through it.
    pub fn fits(&self, data: &Examples) -> Result<(), FitError> {
        let (found, wanted) = (data.width(), self.inputs());
        if found != wanted {
            return Err(FitError::Width { found, wanted });
        }
        match data.labels.iter().max() {
            Some(largest) if usize::from(*largest) >= self.shape.classes() => {
                let last = self.shape.classes() - 1;
                Err(FitError::Label { largest: *largest, last })
            }
            _ => Ok(()),
        }
    }

    /// Trains on the examples that `order` names, `batch` at a time; the mean loss on the way.
    pub fn train(
        &mut self,
        data: &Examples,
        order: &[u32],
        batch: usize,
        lr: f32,
        momentum: f32,
        mu: f32,
    ) -> f64 {
        self.train_by(data, order, batch, Sgd { lr, momentum, decay: 0.0, mu })
    }

    /// As [`Net::train`], with all that can be set.
    pub fn train_by(&mut self, data: &Examples, order: &[u32], batch: usize, sgd: Sgd) -> f64 {
        assert_eq!(data.width(), self.inputs(), "checked by fits");
        if order.is_empty() {
            return 0.0;
        }
        if sgd.mu != 0.0 && self.anchor.is_empty() {
            self.anchor.extend_from_slice(&self.weights);
        }
        let batch = batch.clamp(1, (MAX_BATCH_VALUES / self.shape.way()).max(1)).min(order.len());
        self.room.make(&self.shape, batch, true);
        let mut loss = 0.0;
        for part in order.chunks(batch) {
            self.room.take(data, part.iter().map(|index| *index as usize));
            self.room.forward(&self.shape, &self.weights);
            loss += self.room.blame(&self.shape);
            self.room.backward(&self.shape, &self.weights, &mut self.gradient);
            self.step(sgd);
        }
        loss / order.len() as f64
    }

    /// The mean loss on the examples that `order` names, and its gradient, without a step.
    pub fn gradient(&mut self, data: &Examples, order: &[u32]) -> (f64, &[f32]) {
        assert_eq!(data.width(), self.inputs(), "checked by fits");
        let most = (MAX_BATCH_VALUES / self.shape.way()).max(1);
        let order = &order[..order.len().min(most)];
        self.gradient.fill(0.0);
        if order.is_empty() {
            return (0.0, &self.gradient);
        }
        self.room.make(&self.shape, order.len(), true);
        self.room.take(data, order.iter().map(|index| *index as usize));
        self.room.forward(&self.shape, &self.weights);
        let loss = self.room.blame(&self.shape) / order.len() as f64;
        self.room.backward(&self.shape, &self.weights, &mut self.gradient);
        (loss, &self.gradient)
    }

    /// Accuracy (0 to 1) and mean loss on all of `data`; zeros where there are no examples.
    pub fn evaluate(&self, data: &Examples) -> (f64, f64) {
        assert_eq!(data.width(), self.inputs(), "checked by fits");
        let examples = data.len();
        if examples == 0 {
            return (0.0, 0.0);
        }
        let batch = (MEASURED_VALUES / self.shape.way()).clamp(1, examples);
        let mut room = Room::default();
        room.make(&self.shape, batch, false);
        let (mut right, mut loss) = (0, 0.0);
        for first in (0..examples).step_by(batch) {
            room.take(data, first..(first + batch).min(examples));
            room.forward(&self.shape, &self.weights);
            right += room.right(&self.shape);
            loss += room.blame(&self.shape);
        }
        (right as f64 / examples as f64, loss / examples as f64)
    }

    fn inputs(&self) -> usize {
        self.shape.stages()[0].inputs
    }

    /// Whether every weight is a number with an end.
    pub fn is_finite(&self) -> bool {
        self.weights.iter().all(|weight| weight.is_finite())
    }

    /// One step along the gradient: one pass over all weights.
    fn step(&mut self, Sgd { lr, momentum, decay, mu }: Sgd) {
        let steps = self.gradient.iter().zip(&mut self.velocity);
        if mu == 0.0 {
            for (weight, (gradient, velocity)) in self.weights.iter_mut().zip(steps) {
                *velocity = settled(momentum * *velocity + (gradient + decay * *weight));
                *weight -= lr * *velocity;
            }
        } else {
            let weights = self.weights.iter_mut().zip(&self.anchor);
            for ((weight, anchor), (gradient, velocity)) in weights.zip(steps) {
                let drawn = decay * *weight + mu * (*weight - anchor);
                *velocity = settled(momentum * *velocity + (gradient + drawn));
                *weight -= lr * *velocity;
            }
        }
    }
}

/// What a batch is on its way forth and back. Made once for a size of batch; nothing is allocated from one to the next.
#[derive(Debug, Clone, Default)]
struct Room {
    /// How many examples there is room for.
    most: usize,
    /// How many are in it.
    batch: usize,
    input: Vec<f32>,
    labels: Vec<u8>,
    stages: Vec<Bay>,
    /// A convolution's copy of one image.
    columns: Vec<f32>,
    /// A convolution's weights, turned.
    turned: Vec<f32>,
}

/// What belongs to one layer. Each is as long as the most examples need; the first `batch` of them count.
#[derive(Debug, Clone, Default)]
struct Bay {
    /// What goes out, after ReLU.
    out: Vec<f32>,
    /// The gradient of it; empty for whoever only measures.
    delta: Vec<f32>,
    /// Which of four was the largest; empty but for pooling.
    picks: Vec<u8>,
}

impl Room {
    /// Makes room for batches of up to `most`.
    fn make(&mut self, shape: &Shape, most: usize, back: bool) {
        if self.most >= most && self.stages.len() == shape.stages().len() {
            return;
        }
        self.most = most;
        self.input.resize(most * shape.stages()[0].inputs, 0.0);
        self.labels.resize(most, 0);
        self.stages = Vec::new();
        for stage in shape.stages() {
            let values = most * stage.outputs;
            let mut bay = Bay { out: vec![0.0; values], ..Bay::default() };
            if back {
                bay.delta = vec![0.0; values];
            }
            match stage.layer {
                Layer::Pool { .. } => bay.picks = vec![0; values],
                Layer::Conv { input, .. } => {
                    let columns = self.columns.len().max(layers::columns_of(input));
                    self.columns.resize(columns, 0.0);
                    self.turned.resize(self.turned.len().max(stage.weight.len()), 0.0);
                }
                Layer::Dense => {}
            }
            self.stages.push(bay);
        }
    }

    /// Puts a batch in. Not more than there is room for.
    fn take(&mut self, data: &Examples, which: impl ExactSizeIterator<Item = usize>) {
        let width = data.width();
        self.batch = which.len();
        for (n, index) in which.enumerate() {
            let from = &data.inputs[index * width..(index + 1) * width];
            self.input[n * width..(n + 1) * width].copy_from_slice(from);
            self.labels[n] = data.labels[index];
        }
    }

    /// From the inputs to the scores of all classes.
    fn forward(&mut self, shape: &Shape, weights: &[f32]) {
        let batch = self.batch;
        for (n, stage) in shape.stages().iter().enumerate() {
            let (before, rest) = self.stages.split_at_mut(n);
            let input = before.last().map_or(&self.input, |bay| &bay.out);
            let input = &input[..batch * stage.inputs];
            let bay = &mut rest[0];
            let out = &mut bay.out[..batch * stage.outputs];
            let (weight, bias) = (&weights[stage.weight.clone()], &weights[stage.bias.clone()]);
            match stage.layer {
                Layer::Conv { input: image, .. } => {
                    let turned = &mut self.turned[..weight.len()];
                    layers::conv(image, input, weight, bias, out, &mut self.columns, turned);
                }
                Layer::Pool { input: image } => {
                    layers::pool(image, input, out, &mut bay.picks[..batch * stage.outputs]);
                }
                Layer::Dense => layers::dense(input, weight, bias, out),
            }
            if stage.relu {
                for value in out {
                    *value = value.max(0.0);
                }
            }
        }
    }

    /// How many of the batch have their highest score where their label is.
    fn right(&self, shape: &Shape) -> usize {
        let (scores, labels) = self.scores(shape);
        let right = |(scores, label): &(&[f32], &u8)| {
            let own = scores[usize::from(**label)];
            // What is no number is not right.
            let before = scores.iter().take(usize::from(**label)).all(|score| *score < own);
            before && scores.iter().skip(usize::from(**label) + 1).all(|score| *score <= own)
        };
        scores.chunks_exact(shape.classes()).zip(labels).filter(right).count()
    }

    fn scores(&self, shape: &Shape) -> (&[f32], &[u8]) {
        let last = self.stages.last().expect("a network has a layer: Shape::new makes one");
        (&last.out[..self.batch * shape.classes()], &self.labels[..self.batch])
    }

    /// The sum of the losses (softmax, cross-entropy); and, where there is a way back, its gradient: of the mean.
    fn blame(&mut self, shape: &Shape) -> f64 {
        let (classes, batch) = (shape.classes(), self.batch);
        let last = self.stages.last_mut().expect("a network has a layer: Shape::new makes one");
        let scores = last.out[..batch * classes].chunks_exact(classes);
        let mut deltas = last.delta.chunks_exact_mut(classes);
        let mut loss = 0.0;
        for (scores, label) in scores.zip(&self.labels[..batch]) {
            let label = usize::from(*label);
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
            loss += f64::from(sum.ln() - (scores[label] - largest));
            let Some(delta) = deltas.next() else { continue };
            for (n, (delta, score)) in delta.iter_mut().zip(scores).enumerate() {
                let wanted = if n == label { 1.0 } else { 0.0 };
                *delta = settled(((score - largest).exp() / sum - wanted) / batch as f32);
            }
        }
        loss
    }

    /// From the gradient of the scores to that of all weights.
    fn backward(&mut self, shape: &Shape, weights: &[f32], gradient: &mut [f32]) {
        let batch = self.batch;
        let stages = shape.stages();
        for (n, stage) in stages.iter().enumerate().rev() {
            let (before, rest) = self.stages.split_at_mut(n);
            let delta = &rest[0].delta[..batch * stage.outputs];
            // Nobody wants to know how examples should have been.
            let (input, mut input_delta) = match before.last_mut() {
                Some(bay) => (&bay.out, Some(&mut bay.delta[..batch * stage.inputs])),
                None => (&self.input, None),
            };
            let input = &input[..batch * stage.inputs];
            let weight = &weights[stage.weight.clone()];
            let (weight_gradient, bias_gradient) =
                gradient[stage.weight.start..stage.bias.end].split_at_mut(stage.weight.len());
            match stage.layer {
                Layer::Conv { input: image, .. } => layers::conv_back(
                    image,
                    input,
                    weight,
                    delta,
                    weight_gradient,
                    bias_gradient,
                    input_delta.as_deref_mut(),
                    &mut self.columns,
                ),
                Layer::Pool { input: image } => {
                    if let Some(input_delta) = input_delta.as_deref_mut() {
                        let picks = &rest[0].picks[..batch * stage.outputs];
                        layers::pool_back(image, picks, delta, input_delta);
                    }
                }
                Layer::Dense => layers::dense_back(
                    input,
                    weight,
                    delta,
                    weight_gradient,
                    bias_gradient,
                    input_delta.as_deref_mut(),
                ),
            }
            // Back through the ReLU that stands before this layer.
            let relu = n.checked_sub(1).is_some_and(|n| stages[n].relu);
            if let Some(input_delta) = input_delta.filter(|_| relu) {
                for (delta, value) in input_delta.iter_mut().zip(input) {
                    *delta = if *value > 0.0 { *delta } else { 0.0 };
                }
            }
        }
    }
}

/// Nothing for what is next to nothing: processors are very slow with the smallest numbers that there are, and a velocity
/// that fades becomes one of them. What is no number stays none.
fn settled(value: f32) -> f32 {
    if value.abs() < 1e-20 { 0.0 } else { value }
}

/// A number from the normal distribution (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    // Above 0, so that it has a logarithm.
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

#[cfg(test)]
mod tests;
