//! Keys: which values of a model are meant by names of tensors, and with which shard they lie.
//!
//! A model is one vector, tensor after tensor. What is pulled or pushed is some stretches of it, in its order; each is cut where a shard ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::shard::{MAX_PARTS, Part};
use super::worker::ServerError;
use crate::job::training::Wire;
use crate::training::participant::UpdateError;
use crate::training::shards::BLOCK;
use crate::training::tensors::{self, Kind, Layout, MAX_HEADER_BYTES, MAX_VALUES, Tensor};
use crate::training::{pack, shards};

/// Which tensors, or which of their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// By name; `None` for all.
    pub(crate) tensors: Option<Vec<String>>,
    /// Of these tensors, the values from the first number up to the second, counted through all of their sides.
    pub(crate) ranges: BTreeMap<String, (u64, u64)>,
}

/// Some values of a shard, and where they are among those that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) part: Part,
    pub(super) from: usize,
}

impl Wanted {
    /// The tensors that are meant, in the order of the model, and where each begins in it: as a file has them.
    fn chosen(&self, model: &Layout) -> Result<Vec<(u64, Tensor)>, String> {
        for name in self.tensors.iter().flatten().chain(self.ranges.keys()) {
            if !model.tensors.iter().any(|tensor| tensor.name == *name) {
                return Err(format!("the model has no tensor {name:?}"));
            }
        }
        let mut at = 0u64;
        let mut chosen = Vec::new();
        for tensor in &model.tensors {
            let begin = at;
            at = at.saturating_add(tensor.values());
            let range = self.ranges.get(&tensor.name);
            let is_named = match &self.tensors {
                Some(names) => names.contains(&tensor.name),
                None => self.ranges.is_empty(),
            };
            match range {
                Some((from, to)) if from < to && *to <= tensor.values() => {
                    let part = Tensor { shape: vec![to - from], ..tensor.clone() };
                    chosen.push((begin + from, part));
                }
                Some((from, to)) => {
                    let (name, values) = (&tensor.name, tensor.values());
                    return Err(format!(
                        "tensor {name:?} has {values} values, and none from {from} to {to}"
                    ));
                }
                None if is_named => chosen.push((begin, tensor.clone())),
                None => {}
            }
        }
        Ok(chosen)
    }

    /// The stretches of values that are meant.
    pub(super) fn spans(&self, model: &Layout) -> Result<Vec<Part>, String> {
        let mut spans = Vec::new();
        for (at, tensor) in self.chosen(model)? {
            extend(&mut spans, Part { at, count: tensor.values() });
        }
        check(spans)
    }

    /// How a file looks that holds them. Values are f32.
    pub(super) fn layout(&self, model: &Layout) -> Layout {
        let chosen = self.chosen(model).unwrap_or_default();
        let tensors = chosen.into_iter().map(|(_, tensor)| Tensor { kind: Kind::F32, ..tensor });
        Layout { tensors: tensors.collect() }
    }
}

/// One more stretch. Those that touch are one.
fn extend(spans: &mut Vec<Part>, next: Part) {
    match spans.last_mut() {
        Some(last) if last.at + last.count == next.at => last.count += next.count,
        _ if next.count == 0 => {}
        _ => spans.push(next),
    }
}

fn check(spans: Vec<Part>) -> Result<Vec<Part>, String> {
    match spans.len() {
        0 => Err("there are no values in it".into()),
        count if count > MAX_PARTS => {
            Err(format!("it has {count} stretches of values, and {MAX_PARTS} are taken at a time"))
        }
        _ => Ok(spans),
    }
}

/// Into how many shards a model is cut.
pub(super) fn shards_for(values: u64, asked: u32) -> usize {
    let blocks = values.div_ceil(BLOCK as u64).max(1);
    u64::from(asked).clamp(1, blocks) as usize
}

/// Cuts stretches of a model where shards end: for each shard, what lies with it.
pub(super) fn cut(total: u64, count: usize, spans: &[Part]) -> Vec<Vec<Cut>> {
    let one = |shard: usize| {
        let range = shards::range(total, count, shard);
        let (begin, end) = (range.start as u64, range.end as u64);
        let mut from = 0u64;
        let mut cuts = Vec::new();
        for span in spans {
            let (first, last) = (span.at.max(begin), span.at.saturating_add(span.count).min(end));
            if first < last {
                let part = Part { at: first - begin, count: last - first };
                cuts.push(Cut { part, from: (from + (first - span.at)) as usize });
            }
            from += span.count;
        }
        cuts
    };
    (0..count).map(one).collect()
}

/// How many bytes some parts take.
pub(super) fn packed_length(parts: &[Part], wire: Wire) -> u64 {
    let lengths = parts.iter().map(|part| pack::packed_bytes(part.count as usize, wire));
    lengths.fold(0, u64::saturating_add)
}

/// Packs what goes to one shard.
pub(super) fn packed(cuts: &[Cut], values: &[f32], wire: Wire) -> (Vec<Part>, Vec<u8>) {
    let mut bytes = Vec::new();
    for cut in cuts {
        let own = values.get(cut.from..cut.from + cut.part.count as usize).unwrap_or_default();
        bytes.append(&mut pack::pack(own, None, wire));
    }
    (cuts.iter().map(|cut| cut.part).collect(), bytes)
}

/// Unpacks what came of one shard. `None` if it is not that.
pub(super) fn unpack(cuts: &[Cut], bytes: &[u8], wire: Wire, values: &mut [f32]) -> Option<()> {
    let mut rest = bytes;
    for cut in cuts {
        let count = cut.part.count as usize;
        let length = usize::try_from(pack::packed_bytes(count, wire)).ok()?;
        let (own, others) = rest.split_at_checked(length)?;
        rest = others;
        let out = values.get_mut(cut.from..cut.from.checked_add(count)?)?;
        pack::unpack_range(own, wire, 0..count, out).ok()?;
    }
    rest.is_empty().then_some(())
}

/// Reads a first model.
pub(super) fn read_whole(dir: &Path, name: &str) -> Result<(Layout, Vec<f32>), ServerError> {
    let wrong = |source| UpdateError::Tensors { name: name.to_owned(), source };
    let (layout, values) = tensors::read(&dir.join(name), MAX_VALUES).map_err(wrong)?;
    let bytes = layout.header().len();
    if bytes > MAX_HEADER_BYTES {
        return Err(UpdateError::Layout { bytes }.into());
    }
    if values.is_empty() {
        return Err(UpdateError::Empty { name: name.to_owned() }.into());
    }
    match values.iter().all(|value| value.is_finite()) {
        true => Ok((layout, values)),
        false => Err(ServerError::Wrong("a value of it is no finite number".into())),
    }
}

/// Reads gradients: all tensors of the model, or some, or parts of some. Gives the stretches that they are, and their values in the model's order.
pub(super) fn read_some(
    dir: &Path,
    name: &str,
    model: &Layout,
    wanted: &Wanted,
) -> Result<(Vec<Part>, Vec<f32>), ServerError> {
    let wrong = |source| UpdateError::Tensors { name: name.to_owned(), source };
    let (found, values) = tensors::read(&dir.join(name), model.values()).map_err(wrong)?;
    let meant = Wanted {
        tensors: Some(found.tensors.iter().map(|tensor| tensor.name.clone()).collect()),
        ranges: wanted.ranges.clone(),
    };
    let chosen = meant.chosen(model).map_err(ServerError::Wrong)?;
    let mut places = BTreeMap::new();
    let mut at = 0usize;
    for tensor in &found.tensors {
        let count = tensor.values() as usize;
        places.insert(tensor.name.as_str(), (&tensor.shape, at..at + count));
        at += count;
    }
    let mut spans = Vec::new();
    let mut sorted = Vec::with_capacity(values.len());
    for (at, tensor) in chosen {
        let Some((shape, range)) = places.get(tensor.name.as_str()) else {
            let text = format!("{name} has no tensor {:?}, of which a range is named", tensor.name);
            return Err(ServerError::Wrong(text));
        };
        if **shape != tensor.shape {
            let text = format!(
                "tensor {:?} has shape {shape:?}, and {:?} in the model",
                tensor.name, tensor.shape
            );
            return Err(ServerError::Wrong(text));
        }
        let own = values.get(range.clone()).unwrap_or_default();
        if !own.iter().all(|value| value.is_finite()) {
            return Err(UpdateError::NotFinite { tensor: tensor.name }.into());
        }
        extend(&mut spans, Part { at, count: own.len() as u64 });
        sorted.extend_from_slice(own);
    }
    Ok((check(spans).map_err(ServerError::Wrong)?, sorted))
}

/// Writes values beside, where only this node can write, and moves them to where the worker looks for them.
pub(super) fn place(
    beside: &Path,
    to: &Path,
    layout: &Layout,
    values: &[f32],
) -> std::io::Result<()> {
    tensors::write(beside, layout, values)?;
    // For all to read: the directory is the task's alone.
    let placed = fs::set_permissions(beside, fs::Permissions::from_mode(0o644))
        .and_then(|()| fs::rename(beside, to));
    if placed.is_err() {
        let _ = fs::remove_file(beside);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Layout {
        let tensor = |name: &str, shape: &[u64]| Tensor {
            name: name.to_owned(),
            kind: Kind::F32,
            shape: shape.to_vec(),
        };
        Layout { tensors: vec![tensor("a", &[2, 3]), tensor("b", &[4]), tensor("c", &[2])] }
    }

    fn part(at: u64, count: u64) -> Part {
        Part { at, count }
    }

    #[test]
    fn names_and_ranges_mean_stretches_of_the_model() {
        let wanted = |names: &[&str], ranges: &[(&str, (u64, u64))]| Wanted {
            tensors: (!names.is_empty()).then(|| names.iter().map(|n| (*n).to_owned()).collect()),
            ranges: ranges.iter().map(|(name, range)| ((*name).to_owned(), *range)).collect(),
        };
        let model = model();
        let spans = |wanted: &Wanted| wanted.spans(&model);
        assert_eq!(spans(&Wanted::default()), Ok(vec![part(0, 12)]), "those that touch are one");
        assert_eq!(spans(&wanted(&["c", "a"], &[])), Ok(vec![part(0, 6), part(10, 2)]));
        assert_eq!(spans(&wanted(&[], &[("b", (1, 3))])), Ok(vec![part(7, 2)]));
        assert_eq!(spans(&wanted(&["c"], &[("b", (1, 3))])), Ok(vec![part(7, 2), part(10, 2)]));
        assert_eq!(wanted(&[], &[("b", (1, 3))]).layout(&model).tensors[0].shape, [2]);
        for bad in [
            wanted(&["d"], &[]),
            wanted(&[], &[("b", (3, 3))]),
            wanted(&[], &[("b", (0, 5))]),
            wanted(&[], &[("b", (u64::MAX, 1))]),
        ] {
            assert!(spans(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_cut_and_packed_comes_back_whole() {
        let total = 5 * BLOCK as u64 + 7;
        let spans = [part(3, 10), part(1000, 3000), part(total - 4, 4)];
        let count: u64 = spans.iter().map(|span| span.count).sum();
        let values: Vec<f32> = (0..count).map(|n| n as f32).collect();
        for shards in [1, 2, 4, 6] {
            let cuts = cut(total, shards, &spans);
            let mut back = vec![-1.0; values.len()];
            for cuts in &cuts {
                let (parts, bytes) = packed(cuts, &values, Wire::F32);
                assert_eq!(packed_length(&parts, Wire::F32), bytes.len() as u64);
                assert_eq!(unpack(cuts, &bytes, Wire::F32, &mut back), Some(()));
                if !bytes.is_empty() {
                    let mut other = back.clone();
                    assert_eq!(unpack(cuts, &bytes[1..], Wire::F32, &mut other), None);
                }
            }
            assert_eq!(back, values);
        }
        assert_eq!((shards_for(5, 4), shards_for(5 * BLOCK as u64, 4)), (1, 4));
    }

    #[test]
    fn gradients_of_some_tensors_are_read_in_the_order_of_the_model() {
        let temp = tempfile::tempdir().unwrap();
        let model = model();
        let write = |tensors: Vec<Tensor>, values: &[f32]| {
            tensors::write(&temp.path().join("out"), &Layout { tensors }, values).unwrap();
        };
        let (a, c) = (model.tensors[0].clone(), model.tensors[2].clone());
        write(vec![c, a], &[7.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let read = |wanted: &Wanted| read_some(temp.path(), "out", &model, wanted);
        let (spans, values) = read(&Wanted::default()).unwrap();
        assert_eq!(spans, [part(0, 6), part(10, 2)]);
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let mut b = model.tensors[1].clone();
        b.shape = vec![2];
        write(vec![b.clone()], &[1.0, 2.0]);
        assert!(read(&Wanted::default()).is_err(), "it is not whole");
        let some = Wanted { tensors: None, ranges: BTreeMap::from([("b".into(), (2, 4))]) };
        assert_eq!(read(&some).unwrap(), (vec![part(8, 2)], vec![1.0, 2.0]));
        write(vec![b], &[1.0, f32::NAN]);
        assert!(read(&some).is_err());
    }
}
