//! The next values of one shard: updates brought together, noise, one step of the optimiser. All of it takes a thread that may block.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use mesh_consensus::id::{Hash, JobId};

use super::check::{Now, values_of};
use crate::job::training::{Strategy, Wire};
use crate::state::course::{Model, Piece};
use crate::training::optimiser::{Optimiser, combine};
use crate::training::pack::{self, PackError};
use crate::training::pieces::Pieces;
use crate::training::{privacy, shards, tensors};

/// Why there is no sum.
#[derive(Debug, thiserror::Error)]
pub(super) enum SumError {
    /// An update cannot be read.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The system gives no randomness.
    #[error("there is no randomness for the noise: {0}")]
    Noise(String),
    /// Some value is infinite, or none at all.
    #[error("the sum holds what is no number")]
    NotFinite,
    /// What stands does not fit together.
    #[error("the pieces of the model do not fit together")]
    Misfit,
    /// It could not be written.
    #[error("the new model could not be written")]
    Write(#[from] io::Error),
}

/// What values are, by the pieces that they came from or became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag {
    range: Range<usize>,
    weights: Vec<Hash>,
    optimiser: Vec<Hash>,
}

/// A shard of a model in memory, with what its optimiser keeps.
pub(super) struct Base {
    pub(super) tag: Tag,
    values: Vec<f32>,
    optimiser: Optimiser,
}

/// Pieces, and which of a model's values each holds.
type Cut<T> = Vec<(Range<usize>, T)>;

/// The values that a shard has.
pub(super) fn range(now: &Now, values: u64) -> Range<usize> {
    shards::range(values, now.shards as usize, now.shard as usize)
}

/// What has to be read to have a shard of a model in memory. The model may be cut otherwise than the round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) tag: Tag,
    pub(super) weights: Cut<Piece>,
    pub(super) optimiser: Cut<Piece>,
}

impl Needs {
    /// For the shard that this is about, of the model that stands.
    pub(super) fn of(now: &Now, model: &Model) -> Self {
        let values = values_of(model);
        let range = range(now, values);
        let cut = |pieces: &[Piece]| -> Cut<Piece> {
            let at = |shard| shards::range(values, pieces.len(), shard);
            let all = pieces.iter().enumerate().map(|(shard, piece)| (at(shard), *piece));
            all.filter(|(held, _)| !overlap(held, &range).is_empty()).collect()
        };
        let (weights, optimiser) = (cut(&model.weights), cut(&model.optimiser));
        let hashes = |cut: &Cut<Piece>| cut.iter().map(|(_, piece)| piece.hash).collect();
        let tag = Tag { weights: hashes(&weights), optimiser: hashes(&optimiser), range };
        Self { tag, weights, optimiser }
    }

    /// The shard in memory, from the bytes of these pieces in their order.
    pub(super) fn load(
        &self,
        strategy: &Strategy,
        weights: Vec<Arc<Vec<u8>>>,
        optimiser: Vec<Arc<Vec<u8>>>,
    ) -> Result<Base, SumError> {
        let range = &self.tag.range;
        let with = |cut: &Cut<Piece>, bytes: Vec<Arc<Vec<u8>>>| -> Cut<Arc<Vec<u8>>> {
            cut.iter().map(|(range, _)| range.clone()).zip(bytes).collect()
        };
        let weights = gather(&with(&self.weights, weights), range).ok_or(SumError::Misfit)?;
        let values = tensors::values_of(&weights).ok_or(SumError::Misfit)?;
        drop(weights);
        if values.len() != range.len() {
            return Err(SumError::Misfit);
        }
        let optimiser = if self.optimiser.is_empty() {
            Optimiser::new(strategy, range.len())
        } else {
            let kept = gather(&with(&self.optimiser, optimiser), range).ok_or(SumError::Misfit)?;
            Optimiser::from_bytes(strategy, range.len(), &kept).ok_or(SumError::Misfit)?
        };
        Ok(Base { tag: self.tag.clone(), values, optimiser })
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// The bytes of a range, out of pieces that are cut otherwise. A piece is some rows, one after the other, of four bytes for each of
/// its values: one row of weights, and as many as the optimiser keeps. `None` if the pieces do not fit together.
fn gather(pieces: &[(Range<usize>, Arc<Vec<u8>>)], range: &Range<usize>) -> Option<Arc<Vec<u8>>> {
    if let [(held, bytes)] = pieces
        && held == range
    {
        return Some(bytes.clone());
    }
    let rows = |(held, bytes): &(Range<usize>, Arc<Vec<u8>>)| {
        let row = held.len().checked_mul(4).filter(|row| *row > 0)?;
        bytes.len().is_multiple_of(row).then_some(bytes.len() / row)
    };
    let count = pieces.first().map_or(Some(0), rows)?;
    let mut gathered = Vec::new();
    for number in 0..count {
        for piece in pieces {
            if rows(piece)? != count {
                return None;
            }
            let (held, bytes) = piece;
            let wanted = overlap(held, range);
            let at = |value: usize| 4 * (number * held.len() + value - held.start);
            gathered.extend_from_slice(bytes.get(at(wanted.start)..at(wanted.end))?);
        }
    }
    Some(Arc::new(gathered))
}

/// What is to be summed.
pub(super) struct Sum {
    pub(super) strategy: Strategy,
    pub(super) wire: Wire,
    /// Packed, each with its weight.
    pub(super) parts: Vec<(Bytes, f32)>,
    pub(super) divisor: f64,
    /// The deviation of the noise, of the sum before it is divided.
    pub(super) noise: Option<f64>,
}

impl Sum {
    /// Steps a shard. What was there before is gone: should it be needed, it is read again.
    pub(super) fn onto(&self, base: &mut Base) -> Result<(), SumError> {
        let parts: Vec<(&[u8], f32)> =
            self.parts.iter().map(|(bytes, weight)| (&bytes[..], *weight)).collect();
        let count = base.values.len();
        let mut mean = combine(&self.strategy, &parts, self.wire, count, self.divisor)?;
        if let Some(noise) = self.noise {
            privacy::add_noise(&mut mean, noise / self.divisor)
                .map_err(|error| SumError::Noise(error.to_string()))?;
        }
        base.optimiser.apply(&mut base.values, &mean);
        if all_finite(&base.values) { Ok(()) } else { Err(SumError::NotFinite) }
    }

    /// The first model: its values are those of the one update.
    pub(super) fn first(&self, range: Range<usize>) -> Result<Base, SumError> {
        let [(bytes, _)] = &self.parts[..] else { return Err(SumError::Misfit) };
        let values = pack::unpack(bytes, self.wire, range.len())?;
        if !all_finite(&values) {
            return Err(SumError::NotFinite);
        }
        let optimiser = Optimiser::new(&self.strategy, range.len());
        Ok(Base {
            tag: Tag { range, weights: Vec::new(), optimiser: Vec::new() },
            values,
            optimiser,
        })
    }
}

/// Keeps a shard: the piece that its values are, and the one that its optimiser keeps if it does, and has stepped.
pub(super) fn keep(
    base: &mut Base,
    pieces: &Pieces,
    job: JobId,
    has_stepped: bool,
) -> Result<(Piece, Option<Piece>), SumError> {
    let weights = pieces.put(job, tensors::bytes_of(&base.values))?;
    // A fresh one is made again from nothing.
    let kept = if has_stepped { base.optimiser.to_bytes() } else { Vec::new() };
    let optimiser = match kept.is_empty() {
        true => None,
        false => Some(pieces.put(job, kept)?),
    };
    base.tag.weights = vec![weights.hash];
    base.tag.optimiser = optimiser.iter().map(|piece| piece.hash).collect();
    Ok((weights, optimiser))
}

/// In blocks, each of which is looked at whole: so it goes as fast as memory is read.
fn all_finite(values: &[f32]) -> bool {
    let block = |block: &[f32]| block.iter().fold(true, |all, value| all & value.is_finite());
    values.chunks(4096).all(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::training::{Adaptive, Real};
    use crate::training::aggregate::check::{Asker, may_ask};
    use crate::training::aggregate::testing::{course, job, node};

    const JOB: JobId = JobId([7; 16]);

    fn real(number: f64) -> Real {
        Real::new(number).unwrap()
    }

    fn adam() -> Strategy {
        let (rate, beta1, beta2, tau) = (real(0.1), real(0.9), real(0.99), real(0.001));
        Strategy::FedAdam(Adaptive { rate, beta1, beta2, tau })
    }

    fn sum(strategy: Strategy, parts: &[(&[f32], f32)], divisor: f64) -> Sum {
        let pack = |(values, weight): &(&[f32], f32)| {
            (Bytes::from(pack::pack(values, None, Wire::F32)), *weight)
        };
        let parts = parts.iter().map(pack).collect();
        Sum { strategy, wire: Wire::F32, parts, divisor, noise: None }
    }

    fn base(strategy: &Strategy, values: &[f32]) -> Base {
        let tag = Tag { range: 0..values.len(), weights: Vec::new(), optimiser: Vec::new() };
        let optimiser = Optimiser::new(strategy, values.len());
        Base { tag, values: values.to_vec(), optimiser }
    }

    #[test]
    fn a_shard_steps_by_the_weighted_mean() {
        let plain = Strategy::FedAvg { rate: real(1.0) };
        let mut shard = base(&plain, &[10.0, 20.0]);
        let task = sum(plain, &[(&[1.0, 2.0], 1.0), (&[5.0, -2.0], 3.0)], 4.0);
        task.onto(&mut shard).unwrap();
        assert_eq!(shard.values, [14.0, 19.0]);
    }

    #[test]
    fn noise_is_of_the_sum_before_it_is_divided() {
        let plain = Strategy::FedAvg { rate: real(1.0) };
        let zeros = vec![0.0; 20_000];
        let mut shard = base(&plain, &zeros);
        let task = Sum { noise: Some(8.0), ..sum(plain, &[(&zeros, 1.0)], 4.0) };
        task.onto(&mut shard).unwrap();
        let squares: f64 = shard.values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let deviation = (squares / zeros.len() as f64).sqrt();
        assert!((1.9..2.1).contains(&deviation), "{deviation}");
    }

    #[test]
    fn what_is_no_number_is_no_model() {
        let plain = Strategy::FedAvg { rate: real(1.0) };
        let mut shard = base(&plain, &[0.0; 5000]);
        let mut bad = vec![0.0; 5000];
        bad[4999] = f32::MAX;
        let task = sum(plain, &[(&bad, 4.0), (&bad, 4.0)], 1.0);
        assert!(matches!(task.onto(&mut shard), Err(SumError::NotFinite)));
    }

    #[test]
    fn the_first_model_is_one_update_and_no_step() {
        let first = sum(adam(), &[(&[1.5, -2.5], 7.0)], 3.0).first(0..2).unwrap();
        assert_eq!(first.values, [1.5, -2.5]);
        assert!(sum(adam(), &[(&[1.0], 1.0), (&[1.0], 1.0)], 1.0).first(0..1).is_err());
        assert!(sum(adam(), &[(&[f32::NAN], 1.0)], 1.0).first(0..1).is_err());
    }

    #[test]
    fn a_shard_that_was_kept_is_read_back_however_it_was_cut() {
        let temp = tempfile::tempdir().unwrap();
        let pieces = Pieces::new(temp.path().join("training"));
        let strategy = adam();
        // The whole model of 3000 values, stepped once as one shard, and then read as two.
        let values: Vec<f32> = (0..3000).map(|n| n as f32).collect();
        let mut whole = base(&strategy, &values);
        sum(strategy.clone(), &[(&values, 1.0)], 1.0).onto(&mut whole).unwrap();
        let (weights, optimiser) = keep(&mut whole, &pieces, JOB, true).unwrap();
        let optimiser = optimiser.unwrap();
        let mut course = course(5);
        let model = course.model.as_mut().unwrap();
        (model.weights, model.optimiser) = (vec![weights], vec![optimiser]);
        let asker = Asker { node: node(4), epoch: 50, round: 6, shard: 1 };
        let now = may_ask(&job(), &course, asker, node(3)).unwrap().unwrap();
        let needs = Needs::of(&now, course.model.as_ref().unwrap());
        let get = |cut: &Cut<Piece>| -> Vec<Arc<Vec<u8>>> {
            cut.iter().map(|(_, piece)| pieces.get(JOB, piece).unwrap()).collect()
        };
        let (w, o) = (get(&needs.weights), get(&needs.optimiser));
        let half = needs.load(&strategy, w, o).unwrap();
        let range = shards::range(3000, 2, 1);
        assert_eq!(half.values, whole.values[range.clone()]);
        // Both halves go on as the whole does.
        let mut half = half;
        sum(strategy.clone(), &[(&values[range.clone()], 1.0)], 1.0).onto(&mut half).unwrap();
        sum(strategy.clone(), &[(&values, 1.0)], 1.0).onto(&mut whole).unwrap();
        assert_eq!(half.values, whole.values[range]);
    }

    #[test]
    fn pieces_of_another_length_do_not_fit() {
        let bytes = |n: usize| Arc::new(vec![0; n]);
        assert!(gather(&[(0..2, bytes(8)), (2..4, bytes(8))], &(1..3)).is_some());
        assert!(gather(&[(0..2, bytes(8)), (2..4, bytes(12))], &(1..3)).is_none());
        assert!(gather(&[(0..2, bytes(16)), (2..4, bytes(8))], &(1..3)).is_none());
        assert!(gather(&[(0..2, bytes(7))], &(0..1)).is_none());
    }
}
