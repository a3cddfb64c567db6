//! One update: from the file that a worker wrote to the bytes that are sent.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use mesh_consensus::id::Hash;

use crate::job::training::{Real, Wire};
use crate::state::course::{Piece, Times};
use crate::state::name::Name;
use crate::training::tensors::{self, Layout, MAX_HEADER_BYTES, TensorError};
use crate::training::wire::UpdateHead;
use crate::training::{pack, privacy, shards};
use crate::work::Key;

/// What a model's files are called.
const MODEL: (&str, &str) = ("model-", ".safetensors");
/// Up to this size a file is read whatever its file system says of it: some count late what was written.
const SMALL_BYTES: u64 = 1 << 30;
/// So many files of a task are looked through for models that are not needed any more.
const MAX_FILES: usize = 10_000;

/// Why the file of a worker is not an update.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdateError {
    /// It is not what it should be.
    #[error("{name} cannot be used")]
    Tensors {
        /// The file.
        name: String,
        /// Why not.
        source: TensorError,
    },
    /// It is far larger than what was ever written to it.
    #[error("{name} consists of holes")]
    Sparse {
        /// The file.
        name: String,
    },
    /// It could not be looked at.
    #[error("{name} could not be looked at")]
    Read {
        /// The file.
        name: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A value cannot be summed.
    #[error("tensor {tensor:?} holds a value that is no finite number")]
    NotFinite {
        /// Its name.
        tensor: String,
    },
    /// It has nothing in it.
    #[error("{name} holds no values")]
    Empty {
        /// The file.
        name: String,
    },
    /// Too many names and shapes.
    #[error(
        "the names and shapes of the first model take {bytes} bytes, and {MAX_HEADER_BYTES} are taken"
    )]
    Layout {
        /// How many they take.
        bytes: usize,
    },
    /// The system has no randomness to give.
    #[error("there is no randomness for the noise")]
    NoRandomness,
    /// The node is about to stop.
    #[error("the node is stopping")]
    Stopping,
}

/// A model that is at hand: what updates are differences from.
#[derive(Debug)]
pub(super) struct Base {
    /// Names and shapes.
    pub(super) layout: Arc<Layout>,
    /// All values, in the layout's order.
    pub(super) values: Arc<Vec<f32>>,
    /// How long it took to get it.
    pub(super) fetch_ms: u32,
}

/// An update as it is kept and sent.
#[derive(Debug)]
pub(super) struct Update {
    /// For which round it was made.
    pub(super) round: u32,
    /// How many values the model has.
    pub(super) values: u64,
    /// The header, with the first model.
    pub(super) layout: Option<Vec<u8>>,
    /// All shards, one after the other. They begin at whole blocks, so any cut is a cut of the same bytes.
    pub(super) bytes: Bytes,
    /// How they are packed.
    pub(super) wire: Wire,
    /// Examples that it was trained on.
    pub(super) examples: u64,
    /// What the worker measured.
    pub(super) metrics: BTreeMap<Name, Real>,
    /// What the worker measured of the model that it began with.
    pub(super) evaluated: Option<(u64, BTreeMap<Name, Real>)>,
    /// How long it took.
    pub(super) times: Times,
}

/// An update, cut.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    /// The bytes of each shard, and their name.
    pub(super) shards: Vec<(Piece, Bytes)>,
    /// The name of all together.
    pub(super) update: Hash,
}

/// Reads what a worker wrote. With a base it must have the same names and shapes.
pub(super) fn read(
    dir: &Path,
    name: &str,
    base: Option<&Layout>,
) -> Result<(Option<Layout>, Vec<f32>), UpdateError> {
    let path = dir.join(name);
    let wrong = |source| UpdateError::Tensors { name: name.to_owned(), source };
    let (layout, values) = match base {
        Some(base) => (None, tensors::read_as(&path, base).map_err(wrong)?),
        None => {
            let about = fs::symlink_metadata(&path)
                .map_err(|source| UpdateError::Read { name: name.to_owned(), source })?;
            let there = about.blocks().saturating_mul(512).max(SMALL_BYTES);
            // Some of it may be holes: nobody writes zeros to memory that is zero.
            if about.len() / 2 > there {
                return Err(UpdateError::Sparse { name: name.to_owned() });
            }
            // No value takes less than two bytes.
            let (layout, values) = tensors::read(&path, there).map_err(wrong)?;
            (Some(layout), values)
        }
    };
    if values.is_empty() {
        return Err(UpdateError::Empty { name: name.to_owned() });
    }
    if let Some(tensor) = layout.as_ref().or(base).and_then(|layout| not_finite(layout, &values)) {
        return Err(UpdateError::NotFinite { tensor });
    }
    Ok((layout, values))
}

/// The first tensor with a value that is no finite number.
fn not_finite(layout: &Layout, values: &[f32]) -> Option<String> {
    let at = values.iter().position(|value| !value.is_finite())? as u64;
    let mut end = 0u64;
    let tensor = layout.tensors.iter().find(|tensor| {
        end = end.saturating_add(tensor.values());
        at < end
    });
    Some(tensor.map_or_else(String::new, |tensor| tensor.name.clone()))
}

/// The header that goes with a first model.
pub(super) fn header(layout: &Layout) -> Result<Vec<u8>, UpdateError> {
    let header = layout.header();
    match header.len() {
        bytes if bytes > MAX_HEADER_BYTES => Err(UpdateError::Layout { bytes }),
        _ => Ok(header),
    }
}

/// Makes a difference of values, no longer than `clip`, and hides it in noise of so many times that.
pub(super) fn hide(
    values: &mut [f32],
    base: &[f32],
    clip: f64,
    noise: f64,
) -> Result<(), UpdateError> {
    for (value, base) in values.iter_mut().zip(base) {
        *value -= base;
    }
    let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let factor = privacy::clip_factor(norm, clip) as f32;
    if factor != 1.0 {
        // A difference without an end would stay one, whatever it is multiplied with.
        values.iter_mut().for_each(|value| {
            let scaled = *value * factor;
            *value = if scaled.is_finite() { scaled } else { 0.0 };
        });
    }
    privacy::add_noise(values, noise * clip).map_err(|_| UpdateError::NoRandomness)
}

impl Update {
    /// Cuts it into so many shards.
    pub(super) fn cut(&self, count: usize) -> Cut {
        let at = |value: usize| {
            let byte = pack::packed_bytes(value, self.wire).min(self.bytes.len() as u64);
            byte as usize
        };
        let shards: Vec<(Piece, Bytes)> = (0..count)
            .map(|shard| {
                let range = shards::range(self.values, count, shard);
                let bytes = self.bytes.slice(at(range.start)..at(range.end));
                (Piece { hash: Hash::of(&bytes), bytes: bytes.len() as u64 }, bytes)
            })
            .collect();
        let names: Vec<u8> = shards.iter().flat_map(|(piece, _)| piece.hash.0).collect();
        Cut { shards, update: Hash::of(&names) }
    }

    /// What is sent before a shard.
    pub(super) fn head(&self, key: Key, cut: &Cut, shard: usize, round: u32) -> UpdateHead {
        let nothing = Piece { hash: Hash::of(&[]), bytes: 0 };
        UpdateHead {
            job: key.job,
            task: key.task,
            fence: key.fence,
            serial: super::decide::serial(self.round),
            round,
            base: self.round.checked_sub(1),
            shard: shard as u32,
            shards: cut.shards.len() as u32,
            values: self.values,
            layout: self.layout.clone(),
            piece: cut.shards.get(shard).map_or(nothing, |(piece, _)| *piece),
            update: cut.update,
            examples: self.examples,
            metrics: self.metrics.clone(),
            evaluated: self.evaluated.clone(),
            times: self.times,
        }
    }
}

/// What the file of a model is called.
pub(crate) fn model_name(round: u32) -> String {
    format!("{}{round}{}", MODEL.0, MODEL.1)
}

/// Writes a model beside, where only this node can write, and moves it to where the worker looks for it. Whatever the worker
/// has under that name is replaced, and no link is followed.
pub(super) fn place(
    beside: &Path,
    dir: &Path,
    round: u32,
    layout: &Layout,
    values: &[f32],
) -> std::io::Result<()> {
    tensors::write(beside, layout, values)?;
    // For all to read: the directory is the task's alone.
    let placed = fs::set_permissions(beside, fs::Permissions::from_mode(0o644))
        .and_then(|()| fs::rename(beside, dir.join(model_name(round))));
    if placed.is_err() {
        let _ = fs::remove_file(beside);
    }
    placed
}

/// Removes the models of rounds before `round`.
pub(super) fn remove_before(dir: &Path, round: u32) {
    for entry in fs::read_dir(dir).into_iter().flatten().take(MAX_FILES).flatten() {
        let name = entry.file_name();
        let middle =
            name.to_str().and_then(|name| name.strip_prefix(MODEL.0)?.strip_suffix(MODEL.1));
        if middle.and_then(|middle| middle.parse::<u32>().ok()).is_some_and(|old| old < round) {
            // One that stays is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::tensors::{Kind, Tensor};

    fn layout(names: &[(&str, u64)]) -> Layout {
        let tensor = |(name, side): &(&str, u64)| Tensor {
            name: (*name).to_owned(),
            kind: Kind::F32,
            shape: vec![*side],
        };
        Layout { tensors: names.iter().map(tensor).collect() }
    }

    fn update(values: &[f32], wire: Wire) -> Update {
        Update {
            round: 3,
            values: values.len() as u64,
            layout: None,
            bytes: pack::pack(values, None, wire).into(),
            wire,
            examples: 1,
            metrics: BTreeMap::new(),
            evaluated: None,
            times: Times::default(),
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let both = layout(&[("first", 2), ("second", 3)]);
        let write = |values: &[f32]| {
            tensors::write(&temp.path().join("out"), &both, values).unwrap();
        };
        write(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(read(temp.path(), "out", Some(&both)).unwrap().1.len(), 5);
        assert_eq!(read(temp.path(), "out", None).unwrap().0.as_ref(), Some(&both));
        for bad in [f32::NAN, f32::INFINITY] {
            write(&[1.0, 2.0, 3.0, bad, 5.0]);
            for base in [Some(&both), None] {
                let error = read(temp.path(), "out", base).unwrap_err();
                assert!(error.to_string().contains("second"), "{error}");
            }
        }
        let other = layout(&[("first", 2), ("third", 3)]);
        let error = crate::data::chain(&read(temp.path(), "out", Some(&other)).unwrap_err());
        assert!(error.contains("third"), "{error}");
        assert!(read(temp.path(), "nothing", None).is_err());
    }

    #[test]
    fn a_file_of_holes_is_refused_before_it_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let file = fs::File::create(temp.path().join("out")).unwrap();
        file.set_len(1 << 40).unwrap();
        let error = read(temp.path(), "out", None).unwrap_err();
        assert!(matches!(error, UpdateError::Sparse { .. }), "{error}");
    }

    #[test]
    fn shards_are_cuts_of_the_same_bytes() {
        let values: Vec<f32> = (0..5000).map(|n| n as f32 / 7.0).collect();
        for wire in [Wire::F32, Wire::F16, Wire::Bf16, Wire::Int8] {
            let update = update(&values, wire);
            for count in [1, 2, 3, 7] {
                let cut = update.cut(count);
                let mut all = Vec::new();
                for (shard, (piece, bytes)) in cut.shards.iter().enumerate() {
                    let range = shards::range(5000, count, shard);
                    assert_eq!(&bytes[..], &pack::pack(&values[range], None, wire)[..]);
                    assert_eq!((piece.hash, piece.bytes), (Hash::of(bytes), bytes.len() as u64));
                    all.extend_from_slice(bytes);
                }
                assert_eq!(all, update.bytes);
            }
        }
        assert_ne!(
            update(&values, Wire::F32).cut(2).update,
            update(&values, Wire::F32).cut(3).update
        );
    }

    #[test]
    fn a_difference_is_clipped_before_it_is_hidden() {
        let base = vec![1.0; 4];
        let mut far = vec![31.0, 1.0, 41.0, 1.0];
        hide(&mut far, &base, 5.0, 0.0).unwrap();
        for (found, wanted) in far.iter().zip([3.0, 0.0, 4.0, 0.0]) {
            assert!((found - wanted).abs() < 1e-4, "{far:?}");
        }
        let mut near = vec![1.5, 1.0, 1.0, 1.0];
        hide(&mut near, &base, 5.0, 0.0).unwrap();
        assert_eq!(near, [0.5, 0.0, 0.0, 0.0]);
        let mut noisy = vec![1.0; 4];
        hide(&mut noisy, &base, 5.0, 1.0).unwrap();
        assert!(noisy.iter().all(|value| *value != 0.0 && value.is_finite()), "{noisy:?}");
    }

    #[test]
    fn models_that_are_not_needed_go_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let both = layout(&[("first", 1)]);
        let dir = temp.path().join("tensors");
        fs::create_dir(&dir).unwrap();
        // A link that the worker put in the way leads nowhere.
        fs::write(temp.path().join("precious"), "gold").unwrap();
        std::os::unix::fs::symlink(temp.path().join("precious"), dir.join(model_name(2))).unwrap();
        for round in 0..3 {
            place(&temp.path().join("beside"), &dir, round, &both, &[round as f32]).unwrap();
        }
        assert_eq!(fs::read(temp.path().join("precious")).unwrap(), b"gold");
        assert_eq!(tensors::read_as(&dir.join("model-2.safetensors"), &both).unwrap(), [2.0]);
        fs::write(dir.join("model-x.safetensors"), "").unwrap();
        remove_before(&dir, 2);
        let mut left: Vec<String> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["model-2.safetensors", "model-x.safetensors"]);
    }
}
