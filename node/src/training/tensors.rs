//! Tensors in files: safetensors, read without trusting a byte of them.
//!
//! ```text
//!   8 bytes    the length of the header, little-endian
//!   header     JSON: {"layer.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},…}, padded with spaces
//!   values     of all tensors, one after the other
//! ```
//!
//! A task writes these files, and may go on writing while they are read. So each byte is read once, nothing is allocated
//! before the header is checked, and what is read is what counts. Values are f32 in memory, whatever they are in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub use kind::Kind;

mod kind;

/// The longest header.
pub const MAX_HEADER_BYTES: usize = 1 << 20;
/// The most tensors of a model.
pub const MAX_TENSORS: usize = 16384;
/// The most values of a model: 256 GiB of them as f32. That is more than a node can hold, and so little that no count of
/// bytes below can overflow.
pub const MAX_VALUES: u64 = 1 << 36;

/// The longest name of a tensor, in bytes. Those of large models have about 80.
const MAX_NAME_BYTES: usize = 256;
/// The most sides of a tensor: as many as PyTorch and numpy allow.
const MAX_SIDES: usize = 64;
/// Files are read and written so many bytes at a time.
const STRETCH_BYTES: usize = 1 << 20;
/// The length of the header's length.
const LENGTH_BYTES: u64 = 8;
/// What a header may say beside its tensors; it is not kept.
const METADATA: &str = "__metadata__";

/// Why tensors cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// A link, a directory, a pipe …
    #[error("it is no regular file")]
    NotAFile,
    /// It could not be opened or read.
    #[error("it could not be read")]
    Read(#[source] io::Error),
    /// It ended before its header said so: its author still writes it, or cut it off.
    #[error("it is cut off")]
    CutOff,
    /// The header is too long.
    #[error("its header has {bytes} bytes, and {MAX_HEADER_BYTES} are allowed")]
    HeaderLength {
        /// So long it claims to be.
        bytes: u64,
    },
    /// The header is not one of safetensors.
    #[error("its header is not one of safetensors")]
    Header(#[source] serde_json::Error),
    /// The file and its header do not agree on the length.
    #[error("it has {found} bytes, and its header speaks of {wanted}")]
    FileLength {
        /// So long it is.
        found: u64,
        /// So long it should be.
        wanted: u64,
    },
    /// A name that is too long, empty or hard to show.
    #[error(
        "tensor {name:?} has a name that is empty, longer than {MAX_NAME_BYTES} bytes, or not plain text"
    )]
    Name {
        /// How it begins.
        name: String,
    },
    /// Two tensors of one name.
    #[error("tensor {name:?} is there twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// Numbers of a kind that cannot be summed.
    #[error("tensor {name:?} holds {kind}, and a model may hold F32, F16 and BF16")]
    Kind {
        /// Its name.
        name: String,
        /// What it holds.
        kind: String,
    },
    /// A shape that no tensor can have.
    #[error("tensor {name:?} has too many sides or values")]
    TooLarge {
        /// Its name.
        name: String,
    },
    /// The values of a tensor are not where they should be.
    #[error("tensor {name:?} is at bytes {found:?}, and by the shapes it should be at {wanted:?}")]
    Offsets {
        /// Its name.
        name: String,
        /// Where it claims to be: first byte, and the one after the last.
        found: (u64, u64),
        /// Where it should be.
        wanted: (u64, u64),
    },
    /// More values than the reader takes.
    #[error("it has {values} values, and {most} are allowed")]
    TooMany {
        /// So many it has.
        values: u64,
        /// So many are allowed.
        most: u64,
    },
    /// There is not enough memory for them.
    #[error("there is no memory for its {values} values")]
    NoMemory {
        /// How many values there are.
        values: u64,
    },
    /// A tensor that is wanted and not there.
    #[error("tensor {name:?} is missing")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor that is there and not wanted.
    #[error("tensor {name:?} is not part of the model")]
    Unexpected {
        /// Its name.
        name: String,
    },
    /// A tensor of another shape.
    #[error("tensor {name:?} has shape {found:?}, and {wanted:?} in the model")]
    Shape {
        /// Its name.
        name: String,
        /// The shape that it has.
        found: Vec<u64>,
        /// The shape that is wanted.
        wanted: Vec<u64>,
    },
}

/// What is known of a tensor without its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// What it is called.
    pub name: String,
    /// How its values are written.
    pub kind: Kind,
    /// Its sides. None: it is a single value.
    pub shape: Vec<u64>,
}

/// What is known of a model without its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// In the order of their values.
    pub tensors: Vec<Tensor>,
}

impl Tensor {
    /// How many values it has.
    pub fn values(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, side| product.saturating_mul(*side))
    }

    fn bytes(&self) -> u64 {
        self.values().saturating_mul(self.kind.bytes() as u64)
    }
}

impl Layout {
    /// Reads a header, without the length that stands before it in a file.
    pub fn parse(header: &[u8]) -> Result<Layout, TensorError> {
        if header.len() > MAX_HEADER_BYTES {
            return Err(TensorError::HeaderLength { bytes: header.len() as u64 });
        }
        let Entries(mut entries) =
            serde_json::from_slice::<Entries>(header).map_err(TensorError::Header)?;
        // Only tensors without values can begin and end where another does: they stay as the header has them.
        entries.sort_by_key(|(_, entry)| entry.data_offsets);

        let mut layout = Layout { tensors: Vec::with_capacity(entries.len()) };
        let mut names = BTreeSet::new();
        let (mut at, mut values) = (0u64, 0u64);
        for (name, entry) in entries {
            if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control)
            {
                return Err(TensorError::Name { name: short(&name) });
            }
            if !names.insert(name.clone()) {
                return Err(TensorError::Twice { name });
            }
            let Some(kind) = Kind::named(&entry.dtype) else {
                return Err(TensorError::Kind { name, kind: short(&entry.dtype) });
            };
            let count = entry.shape.iter().try_fold(1u64, |count, side| count.checked_mul(*side));
            let count = count.filter(|count| {
                *count <= MAX_VALUES
                    && values + *count <= MAX_VALUES
                    && entry.shape.len() <= MAX_SIDES
            });
            let Some(count) = count else { return Err(TensorError::TooLarge { name }) };
            let wanted = (at, at + count * kind.bytes() as u64);
            if entry.data_offsets != wanted {
                return Err(TensorError::Offsets { name, found: entry.data_offsets, wanted });
            }
            (at, values) = (wanted.1, values + count);
            layout.tensors.push(Tensor { name, kind, shape: entry.shape });
        }
        Ok(layout)
    }

    /// The header as safetensors writes it, with the tensors in this order.
    pub fn header(&self) -> Vec<u8> {
        let mut text = String::from("{");
        let mut at = 0u64;
        for tensor in &self.tensors {
            let end = at.saturating_add(tensor.bytes());
            let comma = if text.len() > 1 { "," } else { "" };
            let name = serde_json::Value::from(tensor.name.as_str());
            let kind = tensor.kind.name();
            let sides: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let shape = sides.join(",");
            text.push_str(&format!(
                r#"{comma}{name}:{{"dtype":"{kind}","shape":[{shape}],"data_offsets":[{at},{end}]}}"#
            ));
            at = end;
        }
        text.push('}');
        let mut header = text.into_bytes();
        header.resize(header.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
        header
    }

    /// How many values all tensors have.
    pub fn values(&self) -> u64 {
        self.tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.values()))
    }

    /// Whether this has the names and shapes of `other`, in whatever order and of whatever kinds. The error says what to
    /// change in this one.
    pub fn is_like(&self, other: &Layout) -> Result<(), TensorError> {
        let ours: BTreeMap<&str, &Tensor> =
            self.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut wanted = BTreeSet::new();
        for tensor in &other.tensors {
            let Some(our) = ours.get(tensor.name.as_str()) else {
                return Err(TensorError::Missing { name: tensor.name.clone() });
            };
            if our.shape != tensor.shape {
                return Err(TensorError::Shape {
                    name: tensor.name.clone(),
                    found: our.shape.clone(),
                    wanted: tensor.shape.clone(),
                });
            }
            wanted.insert(tensor.name.as_str());
        }
        match self.tensors.iter().find(|tensor| !wanted.contains(tensor.name.as_str())) {
            Some(tensor) => Err(TensorError::Unexpected { name: tensor.name.clone() }),
            None => Ok(()),
        }
    }

    /// Where the values of each tensor are, counted from the first value's byte.
    fn places(&self) -> Vec<Place> {
        let mut at = 0u64;
        let mut places = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            places.push(Place { kind: tensor.kind, at, values: tensor.values() });
            at = at.saturating_add(tensor.bytes());
        }
        places
    }
}

/// Where the values of a tensor are.
#[derive(Debug, Clone, Copy)]
struct Place {
    kind: Kind,
    at: u64,
    values: u64,
}

/// What stands in a header: in its order, each as it claims to be, names perhaps twice.
struct Entries(Vec<(String, Entry)>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("tensors by their names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                    } else if entries.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// How a hostile name begins, fit to be shown.
fn short(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(32).collect()
}

/// Reads a file of at most so many values: what it holds, and its values in the order of the file.
///
/// Nothing is followed: the last part of the path is the file itself. Whoever names the path sees to the rest of it.
pub fn read(path: &Path, most_values: u64) -> Result<(Layout, Vec<f32>), TensorError> {
    let opened = Opened::open(path)?;
    let values = opened.layout.values();
    if values > most_values {
        return Err(TensorError::TooMany { values, most: most_values });
    }
    let values = opened.values(&opened.layout.places())?;
    Ok((opened.layout, values))
}

/// Reads a file that has the names and shapes of `wanted`: its values in the order of `wanted`.
pub fn read_as(path: &Path, wanted: &Layout) -> Result<Vec<f32>, TensorError> {
    let opened = Opened::open(path)?;
    opened.layout.is_like(wanted)?;
    let names = opened.layout.tensors.iter().map(|tensor| tensor.name.as_str());
    let places: BTreeMap<&str, Place> = names.zip(opened.layout.places()).collect();
    let mut in_order = Vec::with_capacity(wanted.tensors.len());
    for tensor in &wanted.tensors {
        let Some(place) = places.get(tensor.name.as_str()) else {
            return Err(TensorError::Missing { name: tensor.name.clone() });
        };
        in_order.push(*place);
    }
    opened.values(&in_order)
}

/// A file of which the header is read, and fits its length.
struct Opened {
    file: File,
    layout: Layout,
    /// The byte at which values begin.
    begin: u64,
}

impl Opened {
    fn open(path: &Path) -> Result<Opened, TensorError> {
        // Of a pipe that nobody writes to, an open that waits would never come back.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = opened.map_err(|error| match error.raw_os_error() {
            Some(nix::libc::ELOOP) => TensorError::NotAFile,
            _ => TensorError::Read(error),
        })?;
        let metadata = file.metadata().map_err(TensorError::Read)?;
        if !metadata.is_file() {
            return Err(TensorError::NotAFile);
        }

        let mut length = [0; LENGTH_BYTES as usize];
        read_at(&file, &mut length, 0)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES as u64 {
            return Err(TensorError::HeaderLength { bytes: length });
        }
        let begin = LENGTH_BYTES + length;
        if begin > metadata.len() {
            return Err(TensorError::CutOff);
        }
        let mut header = vec![0; length as usize];
        read_at(&file, &mut header, LENGTH_BYTES)?;
        let layout = Layout::parse(&header)?;

        let bytes: u64 = layout.tensors.iter().map(Tensor::bytes).sum();
        let wanted = begin + bytes;
        if metadata.len() != wanted {
            return Err(TensorError::FileLength { found: metadata.len(), wanted });
        }
        Ok(Opened { file, layout, begin })
    }

    /// The values at these places, one after the other.
    fn values(&self, places: &[Place]) -> Result<Vec<f32>, TensorError> {
        let count: u64 = places.iter().map(|place| place.values).sum();
        let mut values: Vec<f32> = Vec::new();
        let room = usize::try_from(count).ok().map(|count| values.try_reserve_exact(count));
        if !matches!(room, Some(Ok(()))) {
            return Err(TensorError::NoMemory { values: count });
        }
        let mut stretch = vec![0; STRETCH_BYTES];
        for place in places {
            let width = place.kind.bytes();
            let mut at = self.begin + place.at;
            let mut left = place.values;
            while left > 0 {
                let now = left.min((STRETCH_BYTES / width) as u64) as usize;
                let bytes = &mut stretch[..now * width];
                read_at(&self.file, bytes, at)?;
                let filled = values.len();
                values.resize(filled + now, 0.0);
                place.kind.decode(bytes, &mut values[filled..]);
                at += bytes.len() as u64;
                left -= now as u64;
            }
        }
        Ok(values)
    }
}

fn read_at(file: &File, bytes: &mut [u8], at: u64) -> Result<(), TensorError> {
    file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => TensorError::CutOff,
        _ => TensorError::Read(error),
    })
}

/// Writes a file: beside its path, then renamed. So a reader finds the old one or the new one, and nothing that a task put
/// in the way is written through. One at a time for a path. Not synced: what must last is kept elsewhere.
pub fn write(path: &Path, layout: &Layout, values: &[f32]) -> io::Result<()> {
    if layout.values() != values.len() as u64 {
        let why = format!("{} values for a layout of {}", values.len(), layout.values());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let beside = beside(path)?;
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_new(&beside, layout, values).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // It may not be there at all.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn beside(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".partial");
    Ok(path.with_file_name(hidden))
}

fn write_new(path: &Path, layout: &Layout, values: &[f32]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // Small tensors are gathered; a full stretch goes straight to the file.
    let mut out = BufWriter::with_capacity(STRETCH_BYTES, file);
    let header = layout.header();
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut stretch = vec![0; STRETCH_BYTES];
    let mut left = values;
    for tensor in &layout.tensors {
        // No tensor has more than all of them, and all of them are here.
        let (now, later) = left.split_at(tensor.values() as usize);
        left = later;
        let width = tensor.kind.bytes();
        for part in now.chunks(STRETCH_BYTES / width) {
            let bytes = &mut stretch[..part.len() * width];
            tensor.kind.encode(part, bytes);
            out.write_all(bytes)?;
        }
    }
    out.flush()
}

/// Values as they stand in a piece of a model: f32, little-endian.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * 4];
    Kind::F32.encode(values, &mut bytes);
    bytes
}

/// The values of a piece of a model; `None` if the last of them is not whole.
pub fn values_of(bytes: &[u8]) -> Option<Vec<f32>> {
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let mut values = vec![0.0; bytes.len() / 4];
    Kind::F32.decode(bytes, &mut values);
    Some(values)
}

#[cfg(test)]
mod tests;
