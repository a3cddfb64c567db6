//! Arrays of numpy: a line that describes them, then their values.

use super::{Examples, Flaw, Input, MAX_VALUES, label};

const NAME: &str = "a file of numpy";
/// The longest description; numpy writes some hundred bytes.
const MAX_HEADER: usize = 64 << 10;
/// The most dimensions: examples, channels, rows, columns.
const MAX_DIMENSIONS: usize = 4;

/// What the values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    F4,
    F8,
    U1,
    I8,
}

impl Sort {
    /// As numpy calls it. A byte has no order, so it may stand with any.
    fn named(name: &str) -> Option<Self> {
        match name {
            "<f4" => Some(Self::F4),
            "<f8" => Some(Self::F8),
            "|u1" | "<u1" | "u1" => Some(Self::U1),
            "<i8" => Some(Self::I8),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::U1 => 1,
            Self::F4 => 4,
            Self::F8 | Self::I8 => 8,
        }
    }
}

/// Examples with these labels.
pub(super) fn examples(bytes: &[u8], labels: Vec<u8>, scale: f32) -> Result<Examples, Flaw> {
    let array = Array::parse(bytes)?;
    let (count, shape) = match array.shape[..] {
        [count, width] => (count, Input { channels: 1, height: 1, width }),
        [count, height, width] => (count, Input { channels: 1, height, width }),
        [count, channels, height, width] => (count, Input { channels, height, width }),
        _ => return Err(Flaw::Header("examples have 2 to 4 dimensions; the first counts them")),
    };
    if count != labels.len() {
        return Err(Flaw::Labels { labels: labels.len(), examples: count });
    }
    let scale = if array.sort == Sort::U1 { 255.0 } else { f64::from(scale) };
    let inputs = array.numbers().map(|number| (number / scale) as f32).collect();
    super::examples(inputs, shape, labels, 2)
}

/// Labels alone: one dimension, or a second of 1.
pub(super) fn labels(bytes: &[u8]) -> Result<Vec<u8>, Flaw> {
    let array = Array::parse(bytes)?;
    match array.shape[..] {
        [_] | [_, 1] => array.numbers().map(label).collect(),
        _ => Err(Flaw::Header("labels have one dimension")),
    }
}

struct Array<'a> {
    sort: Sort,
    shape: Vec<usize>,
    /// As many as `sort` and `shape` say.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Flaw> {
        let begin = || Flaw::Begin(NAME);
        let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or_else(begin)?;
        let ([major, _minor], rest) = rest.split_first_chunk().ok_or_else(begin)?;
        let (length, rest) = match major {
            1 => {
                let (length, rest) = rest.split_first_chunk().ok_or_else(begin)?;
                (usize::from(u16::from_le_bytes(*length)), rest)
            }
            2 => {
                let (length, rest) = rest.split_first_chunk().ok_or_else(begin)?;
                (u32::from_le_bytes(*length) as usize, rest)
            }
            _ => return Err(Flaw::Header("it is of another version than 1 and 2")),
        };
        if length > MAX_HEADER || length > rest.len() {
            return Err(Flaw::Header("its description is too long"));
        }
        let (header, values) = rest.split_at(length);
        let header = std::str::from_utf8(header).map_err(|_| begin())?;
        let (sort, shape) = describe(header)?;
        let count = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        let count = count.filter(|count| *count <= MAX_VALUES).ok_or(Flaw::Large)?;
        let said = count * sort.bytes();
        if said != values.len() {
            return Err(Flaw::Length { said: said as u64, found: values.len() as u64 });
        }
        Ok(Self { sort, shape, bytes: values })
    }

    /// All values, in order.
    fn numbers(&self) -> impl Iterator<Item = f64> + '_ {
        let sort = self.sort;
        self.bytes.chunks_exact(sort.bytes()).map(move |bytes| match (sort, bytes) {
            (Sort::U1, [byte]) => f64::from(*byte),
            (Sort::F4, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
            (sort, &[a, b, c, d, e, f, g, h]) => {
                let bytes = [a, b, c, d, e, f, g, h];
                let whole = i64::from_le_bytes(bytes) as f64;
                if sort == Sort::I8 { whole } else { f64::from_le_bytes(bytes) }
            }
            _ => f64::NAN,
        })
    }
}

/// What `{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }` says.
fn describe(header: &str) -> Result<(Sort, Vec<usize>), Flaw> {
    let after = |key: &str| {
        let (_, rest) = header.split_once(&format!("'{key}':"))?;
        Some(rest.trim_start())
    };
    let sort = after("descr").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next());
    let sort = sort.and_then(Sort::named);
    let sort = sort.ok_or(Flaw::Header("its values are not f4, f8, u1 or i8, low bytes first"))?;
    if !after("fortran_order").is_some_and(|rest| rest.starts_with("False")) {
        return Err(Flaw::Header("its values stand column after column (Fortran's order)"));
    }
    let inner = after("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')'));
    let (inner, _) = inner.ok_or(Flaw::Header("it does not say its shape"))?;
    let mut shape = Vec::new();
    for size in inner.split(',').map(str::trim).filter(|size| !size.is_empty()) {
        if shape.len() == MAX_DIMENSIONS {
            return Err(Flaw::Header("it has more than four dimensions"));
        }
        shape.push(size.parse().map_err(|_| Flaw::Header("a part of its shape is no number"))?);
    }
    Ok((sort, shape))
}
