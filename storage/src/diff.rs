//! What changed from one version to another.
//!
//! Decided from the manifests alone, no byte of content is read. A file says what it holds: by the hash of its content if
//! it lies in a pack or has one chunk (the same hash, then), by its list of chunks otherwise. Content is cut the same
//! way wherever it lies, so files with the same bytes have the same chunks; see [`MAX_PACKED`] for why a packed file is never
//! compared with a list. (That holds while there is one [`Scheme`]; between two, the same long file would count
//! as changed.)
//!
//! [`MAX_PACKED`]: crate::manifest::MAX_PACKED
//! [`Scheme`]: crate::chunk::Scheme

use std::cmp::Ordering;

use mesh_consensus::id::Hash;

use crate::chunk::Chunk;
use crate::manifest::{Entry, Kind, Manifest};

/// A path that is not in both versions, or not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where.
    pub path: String,
    /// What became of it.
    pub kind: ChangeKind,
    /// How many bytes there were: zero if it was not there.
    pub old_bytes: u64,
    /// How many bytes there are: zero if it is gone.
    pub new_bytes: u64,
}

/// What became of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Its content is another, or whether it may be run, or whether it is a file.
    Changed,
}

/// What changed from `old` to `new`, in the order of the paths. Takes time linear in both.
pub fn diff(old: &Manifest, new: &Manifest) -> Vec<Change> {
    let mut changes = Vec::new();
    let (mut olds, mut news) = (old.entries.iter().peekable(), new.entries.iter().peekable());
    loop {
        let order = match (olds.peek(), news.peek()) {
            (None, None) => return changes,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.path.cmp(&b.path),
        };
        let was = if order.is_le() { olds.next() } else { None };
        let is = if order.is_ge() { news.next() } else { None };
        let kind = match (was, is) {
            (Some(_), None) => ChangeKind::Removed,
            (None, _) => ChangeKind::Added,
            (Some(a), Some(b)) if same((old, a), (new, b)) => continue,
            (Some(_), Some(_)) => ChangeKind::Changed,
        };
        let path = is.or(was).map(|entry| entry.path.clone()).unwrap_or_default();
        let bytes = |entry: Option<&Entry>| entry.map_or(0, Entry::bytes);
        changes.push(Change { path, kind, old_bytes: bytes(was), new_bytes: bytes(is) });
    }
}

/// Bytes of the chunks in `new` that `old` lacks, each counted once: what has to be fetched by whoever has `old`.
pub fn missing_bytes(old: &Manifest, new: &Manifest) -> u64 {
    let mut have: Vec<Hash> = old.chunks().map(|chunk| chunk.id).collect();
    have.sort_unstable();
    let lacks = |chunk: &Chunk| have.binary_search(&chunk.id).is_err();
    let mut missing: Vec<(Hash, u32)> =
        new.chunks().filter(lacks).map(|chunk| (chunk.id, chunk.bytes)).collect();
    missing.sort_unstable();
    missing.dedup_by_key(|(id, _)| *id);
    missing.iter().map(|(_, bytes)| u64::from(*bytes)).sum()
}

/// What a file holds, as far as it can be compared.
#[derive(PartialEq)]
enum Content<'a> {
    Nothing,
    One(Hash),
    Chunks(&'a [Chunk]),
}

fn same(old: (&Manifest, &Entry), new: (&Manifest, &Entry)) -> bool {
    match (old.1.kind, new.1.kind) {
        (Kind::File { executable: was, .. }, Kind::File { executable: is, .. }) => {
            // The length first: it is at hand, and most that changed have another.
            was == is && old.1.bytes() == new.1.bytes() && content(old) == content(new)
        }
        (was, is) => was == is,
    }
}

fn content<'a>((manifest, entry): (&'a Manifest, &Entry)) -> Content<'a> {
    let Kind::File { object, content, .. } = entry.kind else { return Content::Nothing };
    let object = manifest.objects.get(object as usize);
    match (content, object.map_or(&[][..], |object| &object.chunks)) {
        (Some(hash), _) => Content::One(hash),
        (None, [only]) => Content::One(only.id),
        (None, chunks) => Content::Chunks(chunks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Object;

    fn file(
        executable: bool,
        object: u32,
        offset: u64,
        bytes: u64,
        content: Option<&[u8]>,
    ) -> Kind {
        let content = content.map(Hash::of);
        Kind::File { executable, object, offset, bytes, content }
    }

    fn chunk(content: &[u8], bytes: u32) -> Chunk {
        Chunk { id: Hash::of(content), bytes }
    }

    fn manifest(objects: &[&[Chunk]], entries: &[(&str, Kind)]) -> Manifest {
        let objects = objects.iter().map(|chunks| Object { chunks: chunks.to_vec() }).collect();
        let entries = entries
            .iter()
            .map(|(path, kind)| Entry { path: (*path).into(), kind: *kind })
            .collect();
        let manifest = Manifest { objects, entries, ..Manifest::default() };
        assert_eq!(manifest.check(), Ok(()));
        manifest
    }

    fn found(old: &Manifest, new: &Manifest) -> Vec<(String, ChangeKind, u64, u64)> {
        let all = diff(old, new).into_iter();
        all.map(|change| (change.path, change.kind, change.old_bytes, change.new_bytes)).collect()
    }

    /// "one", "two!" in one pack.
    fn pair() -> Manifest {
        let entries =
            [("a", file(false, 0, 0, 3, Some(b"one"))), ("b", file(false, 0, 3, 4, Some(b"two!")))];
        manifest(&[&[chunk(b"onetwo!", 7)]], &entries)
    }

    #[test]
    fn nothing_changed_between_a_version_and_itself() {
        assert_eq!(diff(&pair(), &pair()), []);
        assert_eq!(missing_bytes(&pair(), &pair()), 0);
    }

    #[test]
    fn what_came_went_and_changed_is_told_in_order() {
        use ChangeKind::*;
        let new = manifest(
            &[&[chunk(b"onetwo?", 7)]],
            &[
                ("A", Kind::EmptyDirectory),
                ("b", file(false, 0, 3, 4, Some(b"two?"))),
                ("c", file(false, 0, 0, 3, Some(b"one"))),
            ],
        );
        let want =
            [("A", Added, 0, 0), ("a", Removed, 3, 0), ("b", Changed, 4, 4), ("c", Added, 0, 3)];
        assert_eq!(found(&pair(), &new), want.map(|(path, kind, a, b)| (path.into(), kind, a, b)));
        let back =
            [("A", Removed, 0, 0), ("a", Added, 0, 3), ("b", Changed, 4, 4), ("c", Removed, 3, 0)];
        assert_eq!(found(&new, &pair()), back.map(|(path, kind, a, b)| (path.into(), kind, a, b)));
        let nothing = Manifest::default();
        assert_eq!(diff(&nothing, &new).len(), 3);
        assert_eq!(diff(&new, &nothing).len(), 3);
    }

    #[test]
    fn a_file_in_another_pack_is_the_same_file() {
        let moved = manifest(
            &[&[chunk(b"zerotwo!", 8)], &[chunk(b"one", 3)]],
            &[
                // All of an object now: the name of its one chunk is the hash of its content.
                ("a", file(false, 1, 0, 3, None)),
                ("b", file(false, 0, 4, 4, Some(b"two!"))),
                ("z", file(false, 0, 0, 4, Some(b"zero"))),
            ],
        );
        assert_eq!(found(&pair(), &moved), [("z".into(), ChangeKind::Added, 0, 4)]);
        assert_eq!(missing_bytes(&pair(), &moved), 11);
    }

    #[test]
    fn a_long_file_is_compared_by_its_chunks() {
        let (a, b, c) = (chunk(b"a", 1 << 20), chunk(b"b", 1 << 20), chunk(b"c", 1 << 20));
        let long =
            |chunks: &[Chunk]| manifest(&[chunks], &[("x", file(false, 0, 0, 2 << 20, None))]);
        assert_eq!(diff(&long(&[a, b]), &long(&[a, b])), []);
        assert_eq!(diff(&long(&[a, b]), &long(&[b, a])).len(), 1);
        assert_eq!(diff(&long(&[a, b]), &long(&[a, c])).len(), 1);
        assert_eq!(missing_bytes(&long(&[a, b]), &long(&[b, a])), 0);
        assert_eq!(missing_bytes(&long(&[a, b]), &long(&[c, c])), 1 << 20);
    }

    #[test]
    fn what_a_path_is_matters_too() {
        let one = |kind| manifest(&[], &[("x", kind)]);
        assert_eq!(diff(&one(Kind::EmptyFile), &one(Kind::EmptyDirectory)).len(), 1);
        let mut run = pair();
        run.entries[0].kind = file(true, 0, 0, 3, Some(b"one"));
        assert_eq!(found(&pair(), &run), [("a".into(), ChangeKind::Changed, 3, 3)]);
    }
}
