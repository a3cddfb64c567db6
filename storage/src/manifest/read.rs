//! Reads the bytes of a manifest, as postcard writes them.
//!
//! By hand, since whoever sends a manifest may lie about how much follows. Here a count is compared with its limit,
//! and with what the rest of the input could hold at most, before anything is made for it. There is one
//! encoding of a manifest: a number that was written the long way is refused.

use mesh_consensus::id::Hash;

use super::{
    Entry, Kind, MAX_CHUNKS, MAX_ENTRIES, MAX_PATH, Manifest, ManifestError, Object, check_path,
};
use crate::chunk::{Chunk, Scheme};

/// A hash and one byte of a length.
const LEAST_CHUNK: usize = 33;
/// A count and one chunk.
const LEAST_OBJECT: usize = 1 + LEAST_CHUNK;
/// A path of one character with its length, and a tag.
const LEAST_ENTRY: usize = 3;

/// Reads all of `body`. What it says is for [`Manifest::check`] to judge.
pub(super) fn manifest(body: &[u8]) -> Result<Manifest, ManifestError> {
    let mut reader = Reader { rest: body };
    let scheme = match reader.number()? {
        0 => Scheme::FastCdc2020,
        _ => return Err(ManifestError::Unreadable),
    };
    let objects = reader.objects()?;
    let entries = reader.entries()?;
    if !reader.rest.is_empty() {
        return Err(ManifestError::Unreadable);
    }
    Ok(Manifest { scheme, objects, entries })
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn objects(&mut self) -> Result<Vec<Object>, ManifestError> {
        let count = self.count("objects", MAX_CHUNKS, LEAST_OBJECT)?;
        let mut objects = Vec::with_capacity(count);
        let mut room = MAX_CHUNKS;
        for _ in 0..count {
            let count = self.count("chunks", room, LEAST_CHUNK)?;
            room -= count;
            let mut chunks = Vec::with_capacity(count);
            for _ in 0..count {
                chunks.push(Chunk { id: self.hash()?, bytes: self.number32()? });
            }
            objects.push(Object { chunks });
        }
        Ok(objects)
    }

    fn entries(&mut self) -> Result<Vec<Entry>, ManifestError> {
        let count = self.count("entries", MAX_ENTRIES, LEAST_ENTRY)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(Entry { path: self.path()?.to_owned(), kind: self.kind()? });
        }
        Ok(entries)
    }

    fn path(&mut self) -> Result<&'a str, ManifestError> {
        let bytes = self.count("bytes in a path", MAX_PATH, 1)?;
        let path = str::from_utf8(self.take(bytes)?).map_err(|_| ManifestError::Unreadable)?;
        check_path(path)?;
        Ok(path)
    }

    fn kind(&mut self) -> Result<Kind, ManifestError> {
        match self.number()? {
            0 => Ok(Kind::EmptyDirectory),
            1 => Ok(Kind::EmptyFile),
            2 => Ok(Kind::File {
                executable: self.flag()?,
                object: self.number32()?,
                offset: self.number()?,
                bytes: self.number()?,
                content: if self.flag()? { Some(self.hash()?) } else { None },
            }),
            _ => Err(ManifestError::Unreadable),
        }
    }

    /// How many of something follow, each of which takes `least` bytes or more.
    fn count(
        &mut self,
        what: &'static str,
        limit: usize,
        least: usize,
    ) -> Result<usize, ManifestError> {
        let found = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        super::check_count(what, found, limit)?;
        if found > self.rest.len() / least { Err(ManifestError::Unreadable) } else { Ok(found) }
    }

    /// A number, seven bits a byte, the lowest first, and no byte more than it needs.
    fn number(&mut self) -> Result<u64, ManifestError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = *self.take(1)? else { break };
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                if bits == 0 && shift > 0 {
                    break;
                }
                return Ok(number);
            }
        }
        Err(ManifestError::Unreadable)
    }

    fn number32(&mut self) -> Result<u32, ManifestError> {
        u32::try_from(self.number()?).map_err(|_| ManifestError::Unreadable)
    }

    fn flag(&mut self) -> Result<bool, ManifestError> {
        match self.take(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(ManifestError::Unreadable),
        }
    }

    fn hash(&mut self) -> Result<Hash, ManifestError> {
        let (hash, rest) = self.rest.split_first_chunk().ok_or(ManifestError::Unreadable)?;
        self.rest = rest;
        Ok(Hash(*hash))
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], ManifestError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(ManifestError::Unreadable)?;
        self.rest = rest;
        Ok(taken)
    }
}
