//! What a network looks like: its layers, and the names and shapes of its tensors.
//!
//! ```text
//!   logistic   dense
//!   mlp        dense, ReLU …, dense
//!   cnn        convolution 3×3, ReLU …, largest of 2×2, dense, ReLU, dense
//! ```
//!
//! Tensors are called and laid out as PyTorch does it (`conv1.weight` is `[out, in, 3, 3]`, `fc1.weight` is `[out, in]`), so
//! that a model can be loaded there. Sizes come from a job or from a file: nothing is larger than the limits below.

use std::fmt;
use std::ops::Range;

/// The most values of a network.
pub const MAX_VALUES: usize = 1 << 28;
/// The most values that one example becomes on its way through a network, all layers together.
pub const MAX_WAY: usize = 1 << 22;
/// The most layers of one sort.
pub const MAX_LAYERS: usize = 16;
/// The most classes: a label is a byte.
pub const MAX_CLASSES: usize = 256;
/// The height and the width of a filter.
pub(super) const KERNEL: usize = 3;

/// Which network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// One dense layer.
    Logistic,
    /// Dense layers with ReLU between them.
    Mlp {
        /// How wide each hidden layer is.
        hidden: Vec<usize>,
    },
    /// Convolutions, then a hidden dense layer.
    Cnn {
        /// How many filters each convolution has.
        filters: Vec<usize>,
        /// How wide the hidden layer is.
        width: usize,
    },
}

/// What one example is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input {
    /// 1 for grey, 3 for colours.
    pub channels: usize,
    /// Rows; 1 for what is no image.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Input {
    /// How many values, if they can be counted.
    pub fn values(self) -> Option<usize> {
        self.channels.checked_mul(self.height)?.checked_mul(self.width)
    }

    /// A row of values as the square image that it may be.
    fn as_image(self) -> Self {
        let side = self.width.isqrt();
        if self.channels == 1 && self.height == 1 && side * side == self.width {
            return Self { channels: 1, height: side, width: side };
        }
        self
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}×{}", self.channels, self.height, self.width)
    }
}

/// Why there is no such network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A size is 0, or too large for what can be counted.
    #[error("it would have no values, or more than {MAX_VALUES}")]
    Size,
    /// One example needs too much room.
    #[error("one example would become more than {MAX_WAY} values on its way through it")]
    Way,
    /// Too many layers, or none where one is needed.
    #[error("it has {layers} layers of one sort; 1 to {MAX_LAYERS} can be had")]
    Layers {
        /// How many.
        layers: usize,
    },
    /// No or too many classes.
    #[error("it tells {classes} classes apart; 2 to {MAX_CLASSES} can be had")]
    Classes {
        /// How many.
        classes: usize,
    },
    /// A convolution or the pooling has nothing left to work on.
    #[error("examples of {input} values are too small for its convolutions")]
    Small {
        /// What an example is.
        input: Input,
    },
    /// The tensors of a file are not those of a network that this trainer knows.
    #[error("a tensor is called {name:?} and has the shape {shape:?}, which fits no layer here")]
    Unknown {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A file has no tensors of a dense layer.
    #[error("it has no tensor fc1.weight")]
    NoDense,
}

/// What a layer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// Filters of 3×3, without a margin.
    Conv {
        /// What comes in.
        input: Input,
        /// How many filters.
        filters: usize,
    },
    /// The largest of each 2×2.
    Pool {
        /// What comes in.
        input: Input,
    },
    /// Every output hangs on every input.
    Dense,
}

/// A layer at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    /// What it does.
    pub(super) layer: Layer,
    /// `conv1`, `fc2`; empty for a layer without weights.
    pub(super) name: String,
    /// How many values come in, of one example.
    pub(super) inputs: usize,
    /// How many go out.
    pub(super) outputs: usize,
    /// Where its weights stand among those of the network.
    pub(super) weight: Range<usize>,
    /// Where its biases stand: right after.
    pub(super) bias: Range<usize>,
    /// Whether ReLU follows.
    pub(super) relu: bool,
}

impl Stage {
    /// The shape of `weight`, as PyTorch says it.
    fn weight_shape(&self) -> Vec<u64> {
        let sizes = match self.layer {
            Layer::Conv { input, filters } => vec![filters, input.channels, KERNEL, KERNEL],
            Layer::Pool { .. } => Vec::new(),
            Layer::Dense => vec![self.outputs, self.inputs],
        };
        sizes.into_iter().map(|size| size as u64).collect()
    }

    /// How many values flow into one output.
    pub(super) fn fan_in(&self) -> usize {
        match self.layer {
            Layer::Conv { input, .. } => input.channels * KERNEL * KERNEL,
            Layer::Pool { .. } | Layer::Dense => self.inputs,
        }
    }
}

/// A tensor of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Its name.
    pub(super) name: String,
    /// Its shape.
    pub(super) shape: Vec<u64>,
    /// Where it stands.
    pub(super) range: Range<usize>,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    kind: Kind,
    input: Input,
    classes: usize,
    /// At least one; the last is dense, without ReLU, and has `classes` outputs.
    stages: Vec<Stage>,
    /// All tensors one after the other: no more than `MAX_VALUES`.
    values: usize,
}

impl Shape {
    /// A network for examples such as `input`, which belong to one of `classes`.
    pub fn new(kind: Kind, input: Input, classes: usize) -> Result<Self, ShapeError> {
        if !(2..=MAX_CLASSES).contains(&classes) {
            return Err(ShapeError::Classes { classes });
        }
        let input = if matches!(kind, Kind::Cnn { .. }) { input.as_image() } else { input };
        let (filters, widths) = match &kind {
            Kind::Logistic => (&[][..], Vec::new()),
            Kind::Mlp { hidden } => (&[][..], hidden.clone()),
            Kind::Cnn { filters, width } => (&filters[..], vec![*width]),
        };
        let sound = |layers: usize, least: usize| match layers {
            layers if (least..=MAX_LAYERS).contains(&layers) => Ok(()),
            layers => Err(ShapeError::Layers { layers }),
        };
        sound(filters.len(), usize::from(matches!(kind, Kind::Cnn { .. })))?;
        sound(widths.len(), usize::from(matches!(kind, Kind::Mlp { .. })))?;

        let mut plan = Plan { stages: Vec::new(), at: input, values: 0, way: 0 };
        plan.pass(input)?;
        for (n, filters) in filters.iter().enumerate() {
            plan.conv(n + 1, *filters)?;
        }
        if !filters.is_empty() {
            plan.pool()?;
        }
        for (n, width) in widths.iter().enumerate() {
            plan.dense(n + 1, *width, true)?;
        }
        plan.dense(widths.len() + 1, classes, false)?;
        let Plan { stages, values, .. } = plan;
        Ok(Self { kind, input, classes, stages, values })
    }

    /// The network whose tensors these are, for examples such as `input`: what their names and shapes tell.
    pub fn of<'a>(
        tensors: impl IntoIterator<Item = (&'a str, &'a [u64])>,
        input: Input,
    ) -> Result<Self, ShapeError> {
        // By their number: how many filters or outputs there are.
        let (mut convs, mut denses) = (Vec::new(), Vec::new());
        for (name, shape) in tensors {
            let unknown = || ShapeError::Unknown { name: name.into(), shape: shape.to_vec() };
            let (layer, part) = name.split_once('.').ok_or_else(unknown)?;
            if part == "bias" {
                continue;
            }
            let is_conv = layer.starts_with("conv") && shape.len() == 4;
            let (sort, prefix) = if is_conv { (&mut convs, "conv") } else { (&mut denses, "fc") };
            let number = layer.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok());
            let number = number.filter(|n| (1..=MAX_LAYERS).contains(n)).ok_or_else(unknown)?;
            let outputs = shape.first().and_then(|size| usize::try_from(*size).ok());
            if part != "weight" || !(is_conv || shape.len() == 2) || sort.len() >= MAX_LAYERS {
                return Err(unknown());
            }
            sort.push((number, outputs.ok_or_else(unknown)?));
        }
        convs.sort_unstable();
        denses.sort_unstable();
        let outputs = |sort: Vec<(usize, usize)>| sort.into_iter().map(|(_, outputs)| outputs);
        let (filters, mut widths): (Vec<_>, Vec<_>) =
            (outputs(convs).collect(), outputs(denses).collect());
        let classes = widths.pop().ok_or(ShapeError::NoDense)?;
        let kind = match (filters.is_empty(), &widths[..]) {
            (true, []) => Kind::Logistic,
            (true, _) => Kind::Mlp { hidden: widths },
            (false, [width]) => Kind::Cnn { filters, width: *width },
            (false, _) => return Err(ShapeError::Layers { layers: widths.len() }),
        };
        Self::new(kind, input, classes)
    }

    /// Which network.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// What one example is.
    pub fn input(&self) -> Input {
        self.input
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How many values all its tensors have.
    pub fn values(&self) -> usize {
        self.values
    }

    /// What one example becomes on its way through it: so many values. Never 0.
    pub fn way(&self) -> usize {
        self.stages.iter().map(|stage| stage.outputs).sum::<usize>() + self.stages[0].inputs
    }

    /// Its layers, the first one first.
    pub(super) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Its tensors, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let weighty = self.stages.iter().filter(|stage| !stage.weight.is_empty());
        weighty.flat_map(|stage| {
            let weight = Place {
                name: format!("{}.weight", stage.name),
                shape: stage.weight_shape(),
                range: stage.weight.clone(),
            };
            let bias = Place {
                name: format!("{}.bias", stage.name),
                shape: vec![stage.bias.len() as u64],
                range: stage.bias.clone(),
            };
            [weight, bias]
        })
    }
}

/// A network in the making.
struct Plan {
    stages: Vec<Stage>,
    /// What comes out so far.
    at: Input,
    values: usize,
    way: usize,
}

impl Plan {
    fn conv(&mut self, number: usize, filters: usize) -> Result<(), ShapeError> {
        let input = self.at;
        let (height, width) = match (input.height.checked_sub(2), input.width.checked_sub(2)) {
            (Some(height @ 1..), Some(width @ 1..)) => (height, width),
            _ => return Err(ShapeError::Small { input }),
        };
        let output = Input { channels: filters, height, width };
        let weights = filters.checked_mul(input.channels * KERNEL * KERNEL);
        let layer = Layer::Conv { input, filters };
        self.push(layer, format!("conv{number}"), output, weights, filters, true)
    }

    fn pool(&mut self) -> Result<(), ShapeError> {
        let input = self.at;
        let output = Input { height: input.height / 2, width: input.width / 2, ..input };
        if output.height == 0 || output.width == 0 {
            return Err(ShapeError::Small { input });
        }
        self.push(Layer::Pool { input }, String::new(), output, Some(0), 0, false)
    }

    fn dense(&mut self, number: usize, outputs: usize, relu: bool) -> Result<(), ShapeError> {
        let inputs = self.at.values().ok_or(ShapeError::Size)?;
        let output = Input { channels: 1, height: 1, width: outputs };
        let weights = inputs.checked_mul(outputs);
        self.push(Layer::Dense, format!("fc{number}"), output, weights, outputs, relu)
    }

    fn push(
        &mut self,
        layer: Layer,
        name: String,
        output: Input,
        weights: Option<usize>,
        biases: usize,
        relu: bool,
    ) -> Result<(), ShapeError> {
        let inputs = self.at.values().ok_or(ShapeError::Size)?;
        let outputs = self.pass(output)?;
        let weights = weights.filter(|weights| *weights <= MAX_VALUES).ok_or(ShapeError::Size)?;
        let weight = self.values..self.values + weights;
        let bias = weight.end..weight.end + biases;
        if bias.end > MAX_VALUES {
            return Err(ShapeError::Size);
        }
        self.values = bias.end;
        self.at = output;
        self.stages.push(Stage { layer, name, inputs, outputs, weight, bias, relu });
        Ok(())
    }

    /// Counts what an example becomes.
    fn pass(&mut self, output: Input) -> Result<usize, ShapeError> {
        let values = output.values().ok_or(ShapeError::Way)?;
        if values == 0 {
            return Err(ShapeError::Size);
        }
        self.way = self.way.saturating_add(values);
        if self.way > MAX_WAY { Err(ShapeError::Way) } else { Ok(values) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MNIST: Input = Input { channels: 1, height: 28, width: 28 };

    fn cnn() -> Kind {
        Kind::Cnn { filters: vec![32, 64], width: 128 }
    }

    #[test]
    fn tensors_are_called_and_shaped_as_in_pytorch() {
        let shape = Shape::new(cnn(), MNIST, 10).unwrap();
        let told: Vec<_> = shape.places().map(|place| (place.name, place.shape)).collect();
        let want: [(&str, &[u64]); 8] = [
            ("conv1.weight", &[32, 1, 3, 3]),
            ("conv1.bias", &[32]),
            ("conv2.weight", &[64, 32, 3, 3]),
            ("conv2.bias", &[64]),
            ("fc1.weight", &[128, 64 * 12 * 12]),
            ("fc1.bias", &[128]),
            ("fc2.weight", &[10, 128]),
            ("fc2.bias", &[10]),
        ];
        let want: Vec<_> = want.map(|(name, shape)| (name.to_owned(), shape.to_vec())).into();
        assert_eq!(told, want);
        assert_eq!(shape.values(), 1_199_882);
    }

    #[test]
    fn a_network_is_known_by_its_tensors_in_any_order() {
        let mlp = Kind::Mlp { hidden: vec![256, 128] };
        for (kind, classes) in [(cnn(), 10), (mlp, 7), (Kind::Logistic, 2)] {
            let shape = Shape::new(kind, MNIST, classes).unwrap();
            let mut tensors: Vec<_> =
                shape.places().map(|place| (place.name, place.shape)).collect();
            tensors.reverse();
            let told = tensors.iter().map(|(name, shape)| (name.as_str(), &shape[..]));
            assert_eq!(Shape::of(told, MNIST), Ok(shape));
        }
    }

    #[test]
    fn tensors_of_other_networks_are_named() {
        for (name, shape) in [
            ("encoder.0.weight", &[3, 3][..]),
            ("fc1", &[3]),
            ("fc0.weight", &[3, 3]),
            ("fc99999999999999999999.weight", &[3, 3]),
            ("conv1.weight", &[3, 3]),
            ("fc1.scale", &[3, 3]),
        ] {
            let error = Shape::of([(name, shape)], MNIST).unwrap_err();
            assert!(matches!(error, ShapeError::Unknown { .. }), "{name}: {error}");
        }
        assert_eq!(Shape::of([], MNIST), Err(ShapeError::NoDense));
        let conv = [("conv1.weight", &[3, 1, 3, 3][..]), ("fc1.weight", &[10, 3])];
        assert_eq!(Shape::of(conv, MNIST), Err(ShapeError::Layers { layers: 0 }));
    }

    #[test]
    fn a_row_of_values_is_an_image_to_a_convolution_if_it_is_a_square() {
        let row = |width| Input { channels: 1, height: 1, width };
        assert_eq!(Shape::new(cnn(), row(784), 10).unwrap().input(), MNIST);
        let small = Err(ShapeError::Small { input: row(783) });
        assert_eq!(Shape::new(cnn(), row(783), 10), small);
    }

    #[test]
    fn what_is_too_large_or_nothing_is_refused_before_anything_is_made() {
        let wide = |hidden: &[usize]| Kind::Mlp { hidden: hidden.to_vec() };
        let huge = Input { channels: usize::MAX, height: 2, width: 2 };
        for (kind, input, classes) in [
            (wide(&[usize::MAX]), MNIST, 10),
            (wide(&[MAX_WAY]), MNIST, 10),
            (wide(&[100_000, 100_000]), MNIST, 10),
            (wide(&[0]), MNIST, 10),
            (wide(&[]), MNIST, 10),
            (wide(&[8; MAX_LAYERS + 1]), MNIST, 10),
            (Kind::Logistic, MNIST, 1),
            (Kind::Logistic, MNIST, 257),
            (Kind::Logistic, huge, 10),
            (cnn(), huge, 10),
            (Kind::Cnn { filters: vec![usize::MAX], width: 1 }, MNIST, 10),
            (Kind::Cnn { filters: vec![1; 14], width: 1 }, MNIST, 10),
        ] {
            let what = format!("{kind:?} {input} {classes}");
            assert!(Shape::new(kind, input, classes).is_err(), "{what}");
        }
    }
}
