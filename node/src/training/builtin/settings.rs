//! What a job's parameters say to the built-in trainer: `MESH_PARAM_LR` and its like.

use super::data::Reading;
use super::net::{MAX_BATCH_VALUES, Sgd};
use super::shape::{Input, Kind, MAX_CLASSES, MAX_LAYERS, Shape, ShapeError};

/// The networks that can be had.
pub const MODELS: [&str; 3] = ["logistic", "mlp", "cnn"];
/// What stands before the name of a parameter.
const PREFIX: &str = "MESH_PARAM_";
/// The largest number of examples, epochs, filters … that makes sense.
const MOST: u64 = 1 << 24;

/// Everything that can be set. A parameter that is not there has a default.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Which network.
    pub kind: Kind,
    /// How a step is made. `mu` is the strategy's, and not a parameter.
    pub sgd: Sgd,
    /// The rate of a round is this share of that of the one before; 1 for the same. Towards the end smaller steps count: those
    /// of parties whose data differ pull the model to and fro.
    pub fade: f32,
    /// Examples in a step.
    pub batch: usize,
    /// How often a round goes through its examples.
    pub epochs: usize,
    /// Examples in a round; 0 for all.
    pub images: usize,
    /// What chance hangs on: the first weights, and the order of examples.
    pub seed: u64,
    /// So many times as long does training take as it could: to try out what becomes of the slow.
    pub slowdown: f64,
    /// How many classes there are; `None` for what the data has.
    pub classes: Option<usize>,
    /// How many of the examples that are held back are measured with; 0 for all.
    pub evaluate: usize,
    /// How data is read.
    pub reading: Reading,
    /// The name of the data, as it stands in `MESH_DATA_NAME`.
    pub data: String,
}

/// Why a parameter was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no such network.
    #[error("there is no model {name:?}; there are {}", MODELS.join(", "))]
    Model {
        /// What was asked for.
        name: String,
    },
    /// A parameter has a value that it cannot have.
    #[error("parameter {name} is {value:?}; it should be {wanted}")]
    Value {
        /// Which, as a job calls it.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
}

impl Settings {
    /// Reads them, from the environment as a rule.
    pub fn read(
        model: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        let from = From { variable };
        let list = "up to 16 whole numbers, such as 256,128";
        let kind = match model {
            "logistic" => Kind::Logistic,
            "mlp" => Kind::Mlp { hidden: from.get("hidden", vec![128], list, sizes)? },
            "cnn" => Kind::Cnn {
                filters: from.get("filters", vec![32, 64], list, sizes)?,
                width: from.count("width", 128, 1)?,
            },
            name => return Err(SettingError::Model { name: name.to_owned() }),
        };
        // With momentum a step goes ten times as far in the end; convolutions do not stand as much as dense layers.
        let lr = if matches!(kind, Kind::Cnn { .. }) { 0.03 } else { 0.1 };
        let below_one = "a number from 0 to below 1";
        let sgd = Sgd {
            lr: from.get("lr", lr, "a number above 0", |text| real(text).filter(|lr| *lr > 0.0))?,
            momentum: from.get("momentum", 0.9, below_one, |text| {
                real(text).filter(|momentum| (0.0..1.0).contains(momentum))
            })?,
            decay: from.get("decay", 0.0, below_one, |text| {
                real(text).filter(|decay| (0.0..1.0).contains(decay))
            })?,
            mu: 0.0,
        };
        let classes = |text: &str| whole(text, 2, MAX_CLASSES as u64).map(Some);
        Ok(Self {
            kind,
            sgd,
            fade: from.get("fade", 1.0, "a number above 0, 1 at the most", |text| {
                real(text).filter(|fade| *fade > 0.0 && *fade <= 1.0)
            })?,
            batch: from.count("batch", 32, 1)?,
            epochs: from.count("epochs", 1, 1)?,
            images: from.count("images", 0, 0)?,
            seed: from.get("seed", 0, "a whole number", |text| text.parse().ok())?,
            slowdown: from.get("slowdown", 1.0, "a number from 1 to 1000", |text| {
                text.parse().ok().filter(|factor| (1.0..=1000.0).contains(factor))
            })?,
            classes: from.get("classes", None, "a whole number from 2 to 256", classes)?,
            evaluate: from.count("evaluate", 0, 0)?,
            reading: Reading {
                holdout: from.count("holdout", 10, 0)?,
                scale: from.get("scale", 1.0, "a number above 0", |text| {
                    real(text).filter(|scale| *scale > 0.0)
                })?,
            },
            data: from.get("data", "train".to_owned(), "the name of the job's data", |text| {
                Some(text.to_owned()).filter(|name| !name.is_empty())
            })?,
        })
    }

    /// The network for such data, if there is no model yet.
    pub fn shape(&self, input: Input, classes: usize) -> Result<Shape, ShapeError> {
        Shape::new(self.kind.clone(), input, self.classes.unwrap_or(classes))
    }

    /// Where the data lies: the variable that says so.
    pub fn data_variable(&self) -> String {
        let letter = |letter: char| {
            if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }
        };
        format!("MESH_DATA_{}", self.data.chars().map(letter).collect::<String>())
    }

    /// Whether a batch has room in memory on its way through this network.
    pub fn batch_fits(&self, shape: &Shape) -> Result<(), SettingError> {
        if self.batch.checked_mul(shape.way()).is_some_and(|values| values <= MAX_BATCH_VALUES) {
            return Ok(());
        }
        let (value, wanted) = (self.batch.to_string(), "smaller: it has no room in memory");
        Err(SettingError::Value { name: "batch", value, wanted })
    }
}

/// Where parameters come from.
struct From<F> {
    variable: F,
}

impl<F: Fn(&str) -> Option<String>> From<F> {
    fn get<T>(
        &self,
        name: &'static str,
        default: T,
        wanted: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, SettingError> {
        match (self.variable)(&format!("{PREFIX}{}", name.to_ascii_uppercase())) {
            None => Ok(default),
            Some(value) => {
                let found = parse(value.trim());
                found.ok_or(SettingError::Value { name, value, wanted })
            }
        }
    }

    fn count(&self, name: &'static str, default: usize, least: u64) -> Result<usize, SettingError> {
        let wanted = if least == 0 {
            "a whole number up to 16777216; 0 for all or none"
        } else {
            "a whole number from 1 to 16777216"
        };
        self.get(name, default, wanted, |text| whole(text, least, MOST))
    }
}

fn real(text: &str) -> Option<f32> {
    text.parse().ok().filter(|number: &f32| number.is_finite())
}

fn whole(text: &str, least: u64, most: u64) -> Option<usize> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number))?;
    usize::try_from(number).ok()
}

fn sizes(text: &str) -> Option<Vec<usize>> {
    let sizes: Option<Vec<usize>> =
        text.split(',').take(MAX_LAYERS + 1).map(|size| whole(size.trim(), 1, MOST)).collect();
    sizes.filter(|sizes| sizes.len() <= MAX_LAYERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(model: &str, set: &[(&str, &str)]) -> Result<Settings, SettingError> {
        Settings::read(model, |name| {
            let found = set.iter().find(|(key, _)| name == format!("MESH_PARAM_{key}"));
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let settings = read("mlp", &[]).unwrap();
        assert_eq!(settings.kind, Kind::Mlp { hidden: vec![128] });
        assert_eq!((settings.batch, settings.epochs, settings.images), (32, 1, 0));
        let want = Sgd { lr: 0.1, momentum: 0.9, decay: 0.0, mu: 0.0 };
        assert_eq!(settings.sgd, want);
        assert_eq!(settings.data_variable(), "MESH_DATA_TRAIN");
        let cnn = read("cnn", &[]).unwrap().kind;
        assert_eq!(cnn, Kind::Cnn { filters: vec![32, 64], width: 128 });
    }

    #[test]
    fn what_is_said_goes_first() {
        let set = [("HIDDEN", "256, 128"), ("LR", " 0.05 "), ("IMAGES", "2000"), ("SEED", "7")];
        let settings = read("mlp", &set).unwrap();
        assert_eq!(settings.kind, Kind::Mlp { hidden: vec![256, 128] });
        assert_eq!((settings.sgd.lr, settings.images, settings.seed), (0.05, 2000, 7));
        assert_eq!(read("mlp", &[("FADE", "0.95")]).unwrap().fade, 0.95);
        let settings = read("logistic", &[("DATA", "x-ray.2"), ("CLASSES", "3")]).unwrap();
        assert_eq!(settings.data_variable(), "MESH_DATA_X_RAY_2");
        assert_eq!(settings.classes, Some(3));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        assert!(matches!(read("tree", &[]), Err(SettingError::Model { .. })));
        let long = ["8"; MAX_LAYERS + 1].join(",");
        for (name, value) in [
            ("LR", "0"),
            ("LR", "nan"),
            ("LR", "fast"),
            ("MOMENTUM", "1"),
            ("DECAY", "-1"),
            ("FADE", "0"),
            ("FADE", "1.01"),
            ("BATCH", "0"),
            ("BATCH", "16777217"),
            ("EPOCHS", "1.5"),
            ("HIDDEN", ""),
            ("HIDDEN", "128,0"),
            ("HIDDEN", &long),
            ("SLOWDOWN", "0.5"),
            ("SLOWDOWN", "inf"),
            ("CLASSES", "1"),
            ("SCALE", "0"),
            ("SEED", "-1"),
            ("DATA", ""),
        ] {
            let error = read("mlp", &[(name, value)]).unwrap_err();
            assert!(error.to_string().starts_with("parameter "), "{name}={value}: {error}");
        }
    }

    #[test]
    fn a_batch_that_has_no_room_is_refused() {
        let settings = read("mlp", &[("BATCH", "16777216")]).unwrap();
        let input = Input { channels: 1, height: 28, width: 28 };
        let shape = settings.shape(input, 10).unwrap();
        assert!(settings.batch_fits(&shape).is_err());
        assert_eq!(read("mlp", &[]).unwrap().batch_fits(&shape), Ok(()));
    }
}
