//! Manifests under hostile bytes: they are refused, or understood whole, and cost no more than 32 times what came
//! (and a little).
//!
//! `corpus/manifest/` holds inputs that were once interesting. `good-…` is a manifest, `bad-…` is none. `cargo test -p
//! mesh-storage --test manifest -- --ignored write` writes it anew. The fuzzing loop runs for a second or so;
//! with `MESH_FUZZ_SECONDS=N` it goes on for N seconds, from a seed of its own that is printed.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mesh_consensus::id::Hash;
use mesh_storage::chunk::{Chunk, MAX_CHUNK, MIN_CHUNK, Scheme};
use mesh_storage::manifest::{Entry, Kind, MAX_ENTRIES, Manifest, ManifestError, Object};
use proptest::prelude::*;

const MAGIC: &[u8] = b"mesh manifest 1\n";

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, which also counts what this thread holds.
struct Counting;

fn count(bytes: isize) {
    // A thread that is ending has nothing left to count in.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: everything is left to the system's allocator; counting changes no pointer.
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: std::alloc::Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { std::alloc::System.dealloc(pointer, layout) }
    }
}

/// The most that decoding held at once, and what came of it.
fn measured(bytes: &[u8]) -> (usize, Result<Manifest, ManifestError>) {
    let before = HELD.get();
    MOST.set(before);
    let result = Manifest::decode(bytes);
    (usize::try_from(MOST.get() - before).unwrap_or(0), result)
}

/// Besides 32 times the input: the text of an error.
const A_LITTLE: usize = 4 << 10;

/// Decodes, checks what it cost, and that what was understood passes its own check and says the same bytes.
fn judge(bytes: &[u8]) -> bool {
    let (held, result) = measured(bytes);
    assert!(held <= 32 * bytes.len() + A_LITTLE, "{held} bytes for {}", bytes.len());
    if let Ok(manifest) = &result {
        assert_eq!(manifest.check(), Ok(()));
        assert!(manifest.encode() == bytes, "one manifest, one encoding: {manifest:?}");
    }
    result.is_ok()
}

fn chunk(seed: u64, bytes: u32) -> Chunk {
    Chunk { id: Hash::of(&(seed, bytes).0.to_le_bytes()), bytes }
}

/// A manifest as import writes it: long files are objects, short ones lie in packs, and equal ones are stored once.
fn imported(files: &BTreeMap<String, (u64, u64, bool)>, pack: u64) -> Manifest {
    let mut manifest = Manifest { scheme: Scheme::FastCdc2020, ..Manifest::default() };
    let mut places: BTreeMap<(u64, u64), Kind> = BTreeMap::new();
    let mut filled = 0;
    let mut packs: Vec<Vec<(u64, u64)>> = vec![Vec::new()];
    for &(bytes, seed, _) in files.values() {
        let short = bytes < u64::from(MIN_CHUNK);
        if bytes == 0 || places.contains_key(&(bytes, seed)) {
            continue;
        }
        places.insert((bytes, seed), Kind::EmptyFile);
        if short {
            if filled + bytes > pack {
                packs.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            packs.last_mut().unwrap().push((bytes, seed));
        } else {
            packs.insert(packs.len() - 1, vec![(bytes, seed)]);
        }
    }
    for members in packs.iter().filter(|members| !members.is_empty()) {
        let object = u32::try_from(manifest.objects.len()).unwrap();
        let whole: u64 = members.iter().map(|(bytes, _)| bytes).sum();
        let mut offset = 0;
        for &(bytes, seed) in members {
            let content = (members.len() > 1).then(|| Hash::of(&[seed as u8, bytes as u8]));
            let kind = Kind::File { executable: false, object, offset, bytes, content };
            places.insert((bytes, seed), kind);
            offset += bytes;
        }
        let mut chunks = Vec::new();
        let mut rest = whole;
        while rest > 0 {
            let bytes = rest.min(u64::from(MAX_CHUNK));
            rest -= bytes;
            let seed = u64::from(object) << 20 | chunks.len() as u64;
            chunks.push(chunk(seed, u32::try_from(bytes).unwrap()));
        }
        manifest.objects.push(Object { chunks });
    }
    for (path, &(bytes, seed, run)) in files {
        let mut kind = if bytes > 0 { places[&(bytes, seed)] } else { Kind::EmptyFile };
        if bytes == 0 && run {
            kind = Kind::EmptyDirectory;
        }
        if let Kind::File { executable, .. } = &mut kind {
            *executable = run;
        }
        manifest.entries.push(Entry { path: path.clone(), kind });
    }
    manifest
}

/// Files by path: their length, which content of that length, and whether they may be run.
fn tree() -> impl Strategy<Value = BTreeMap<String, (u64, u64, bool)>> {
    let name = prop_oneof![4 => "[a-z0-9._-]{1,8}x", 1 => "[日本語のåß]{1,4}"];
    let path = prop::collection::vec(name, 1..4).prop_map(|parts| parts.join("/"));
    let bytes = prop_oneof![
        1 => Just(0),
        6 => 1..40_000_u64,
        1 => u64::from(MIN_CHUNK) - 1..u64::from(MIN_CHUNK) + 1,
        1 => 1_u64..30_000_000,
    ];
    let files = prop::collection::btree_map(path, (bytes, 0..4_u64, any::<bool>()), 0..40);
    files.prop_map(|files| {
        // What no directory has: a file that others lie in, and names that are taken for one.
        let manifest = |paths: &[&String]| Manifest {
            entries: paths
                .iter()
                .map(|path| Entry { path: (*path).clone(), kind: Kind::EmptyFile })
                .collect(),
            ..Manifest::default()
        };
        let mut kept: Vec<&String> = Vec::new();
        for path in files.keys() {
            kept.push(path);
            if manifest(&kept).check().is_err() {
                kept.pop();
            }
        }
        kept.into_iter().map(|path| (path.clone(), files[path])).collect()
    })
}

proptest! {
    #[test]
    fn whatever_import_could_write_decodes_to_itself(files in tree(), pack in 1..200_000_u64) {
        let manifest = imported(&files, pack);
        prop_assert_eq!(manifest.check(), Ok(()));
        let bytes = manifest.encode();
        prop_assert!(judge(&bytes));
        prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest));
    }

    #[test]
    fn a_mangled_manifest_is_understood_whole_or_refused(
        files in tree(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = imported(&files, 100_000).encode();
        for (at, with) in changes {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        judge(&bytes);
        prop_assert!(!judge(&bytes[..cut.index(bytes.len())]), "a part is no whole");
    }

    #[test]
    fn rubbish_is_refused_cheaply(rest in prop::collection::vec(any::<u8>(), 0..400)) {
        judge(&rest);
        judge(&[MAGIC, &rest].concat());
        judge(&[MAGIC, &[0, 0], &rest].concat());
    }
}

/// A number as postcard writes it.
fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// So many empty directories, with paths as short as can be.
fn many(entries: usize) -> Vec<u8> {
    let mut bytes = [MAGIC, &[0, 0], &number(entries as u64)].concat();
    for at in 0..entries {
        bytes.extend_from_slice(&[8]);
        bytes.extend(format!("{at:08}").bytes());
        bytes.push(0);
    }
    bytes
}

#[test]
fn ten_million_entries_are_refused_for_nothing() {
    let bytes = many(10_000_000);
    let (held, result) = measured(&bytes);
    let (found, limit) = (10_000_000, MAX_ENTRIES);
    assert_eq!(result, Err(ManifestError::TooMany { what: "entries", found, limit }));
    assert!(held <= A_LITTLE, "{held}");
}

#[test]
fn as_many_entries_as_are_taken_cost_what_is_promised() {
    let bytes = many(200_000);
    assert!(judge(&bytes));
    println!("{} times the input", measured(&bytes).0 / bytes.len());
    // The shortest there can be: nothing that is refused may have cost more, either.
    let mut shortest = [MAGIC, &[0, 0], &number(100_000)].concat();
    for _ in 0..100_000 {
        shortest.extend_from_slice(&[1, b'a', 0]);
    }
    assert!(!judge(&shortest));
    println!("{} times the shortest", measured(&shortest).0 / shortest.len());
}

#[test]
fn a_count_that_lies_costs_nothing() {
    for (_, bytes) in kept() {
        for at in MAGIC.len()..bytes.len() {
            let rest = (bytes.len() - at) as u64;
            for lie in [u64::MAX, u64::from(u32::MAX), 4_000_000, rest, rest / 3, rest / 33] {
                judge(&[&bytes[..at], &number(lie), &bytes[at + 1..]].concat());
            }
        }
    }
}

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/manifest")
}

fn kept() -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(dir()).unwrap().map(|entry| entry.unwrap());
    let mut kept: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    kept.sort();
    kept
}

#[test]
fn the_kept_corpus_is_judged_as_its_names_say() {
    let kept = kept();
    for (name, bytes) in &kept {
        assert_eq!(judge(bytes), name.starts_with("good-"), "{name}");
    }
    let good = kept.iter().filter(|(name, _)| name.starts_with("good-")).count();
    assert!(good > 2 && kept.len() > good + 10, "{good} of {}", kept.len());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a long run is given in seconds")]
fn changed_manifests_are_understood_whole_or_refused() {
    let kept: Vec<Vec<u8>> = kept().into_iter().map(|(_, bytes)| bytes).collect();
    let seconds = std::env::var("MESH_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed = if seconds.is_some() { fastrand::u64(..) } else { 5 };
    println!("fuzzing from the seed {seed}");
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut round, mut understood) = (0, 0);
    while round < 30_000 || Instant::now() < end {
        round += 1;
        let bytes = change(&mut rng, &kept);
        let broken = Broken(&bytes);
        understood += usize::from(judge(&bytes));
        std::mem::forget(broken);
    }
    println!("{understood} of {round} understood");
    assert!(understood > 300, "{understood}: changes that nothing survives test little");
}

/// Tells which bytes broke something, if a panic passes by.
struct Broken<'a>(&'a [u8]);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        eprintln!("broken by {:02x?}", self.0);
    }
}

fn change(rng: &mut fastrand::Rng, kept: &[Vec<u8>]) -> Vec<u8> {
    const NUMBERS: [u64; 8] =
        [0, 1, 2, 127, 128, MIN_CHUNK as u64, MAX_CHUNK as u64, u32::MAX as u64];
    let mut bytes = kept[rng.usize(..kept.len())].clone();
    for _ in 0..rng.usize(1..=3) {
        let at = rng.usize(MAGIC.len().min(bytes.len())..=bytes.len());
        match rng.u8(..8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            2 if at < bytes.len() => bytes[at] = rng.u8(..),
            3 => bytes.truncate(at),
            4 => bytes.insert(at, rng.u8(..)),
            5 if at < bytes.len() => drop(bytes.remove(at)),
            6 => {
                let to = (at + rng.usize(..4)).min(bytes.len());
                bytes.splice(at..to, number(NUMBERS[rng.usize(..NUMBERS.len())]));
            }
            // The end of another.
            _ => {
                let other = &kept[rng.usize(..kept.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[rng.usize(..=other.len())..]);
            }
        }
    }
    bytes
}

/// Writes the corpus anew, for when the format changes.
#[test]
#[ignore = "writes into the source tree"]
fn write_the_corpus() {
    std::fs::create_dir_all(dir()).unwrap();
    let keep = |name: &str, bytes: &[u8]| std::fs::write(dir().join(name), bytes).unwrap();
    let good = |name: &str, manifest: &Manifest| {
        assert_eq!(manifest.check(), Ok(()), "{name}");
        let bytes = manifest.encode();
        keep(&format!("good-{name}"), &bytes);
        keep(&format!("bad-{name}-and-more"), &[&bytes[..], &[0]].concat());
        keep(&format!("bad-{name}-cut"), &bytes[..bytes.len() - 1]);
    };
    let files = |list: &[(&str, u64, u64, bool)]| {
        let file = |&(path, bytes, seed, run): &(&str, u64, u64, bool)| {
            (path.to_owned(), (bytes, seed, run))
        };
        list.iter().map(file).collect::<BTreeMap<_, _>>()
    };
    good("nothing", &Manifest::default());
    good("one-file", &imported(&files(&[("a", 3, 0, true)]), 10));
    let mixed = files(&[
        ("a", 3, 0, true),
        ("b/again", 3, 0, false),
        ("b/c", 700, 0, false),
        ("b/é", 800, 1, false),
        ("empty", 0, 0, false),
        ("hollow", 0, 0, true),
        ("long", 20_000_000, 0, false),
    ]);
    good("mixed", &imported(&mixed, 1000));
    let mut names = BTreeMap::new();
    for at in 0..30 {
        names.insert(format!("train/{:02}/{at:04}.png", at % 3), (900 + at, 0, false));
    }
    good("pictures", &imported(&names, 5000));
    let bad = |name: &str, manifest: Manifest| {
        assert!(manifest.check().is_err(), "{name}");
        keep(&format!("bad-{name}"), &manifest.encode());
    };
    for (name, paths) in [
        ("path-out", &["../a"][..]),
        ("path-absolute", &["/etc/passwd"]),
        ("path-nul", &["a\0b"]),
        ("path-backslash", &["a\\b"]),
        ("path-case", &["A/x", "a/y"]),
        ("path-accents", &["e\u{301}", "é"]),
        ("path-file-and-directory", &["a", "a-", "a/b"]),
        ("path-order", &["b", "a"]),
        ("path-twice", &["a", "a"]),
    ] {
        let list = paths
            .iter()
            .map(|path| Entry { path: (*path).to_owned(), kind: Kind::EmptyFile })
            .collect();
        bad(name, Manifest { entries: list, ..Manifest::default() });
    }
    let changed = |change: fn(&mut Manifest)| {
        let mut manifest = imported(&mixed, 1000);
        change(&mut manifest);
        manifest
    };
    fn place(manifest: &mut Manifest, move_it: fn(&mut u32, &mut u64, &mut u64)) {
        let Kind::File { object, offset, bytes, .. } = &mut manifest.entries[2].kind else {
            panic!()
        };
        move_it(object, offset, bytes);
    }
    bad("overlap", changed(|m| place(m, |_, offset, _| *offset -= 1)));
    bad("hole", changed(|m| place(m, |_, offset, _| *offset += 1)));
    bad("long-file", changed(|m| place(m, |_, _, bytes| *bytes += 1)));
    bad("endless-file", changed(|m| place(m, |_, _, bytes| *bytes = u64::MAX)));
    bad("no-object", changed(|m| place(m, |object, _, _| *object = u32::MAX)));
    bad("object-twice", changed(|m| m.objects.push(m.objects[0].clone())));
    bad("object-empty", changed(|m| m.objects[0].chunks.clear()));
    bad("chunk-long", changed(|m| m.objects[0].chunks[0].bytes = MAX_CHUNK + 1));
    bad("chunk-short", changed(|m| m.objects[0].chunks[0].bytes = 0));
    keep("bad-empty", b"");
    keep("bad-version", b"mesh manifest 2\n\0\0\0");
    keep("bad-scheme", &[MAGIC, &[1, 0, 0]].concat());
    keep("bad-long-number", &[MAGIC, &[0, 0x80, 0, 0]].concat());
    for (name, count) in [("million", 10_000_000), ("lie", 4_000_000), ("endless", u64::MAX)] {
        keep(&format!("bad-entries-{name}"), &[MAGIC, &[0, 0], &number(count)].concat());
        keep(&format!("bad-objects-{name}"), &[MAGIC, &[0], &number(count)].concat());
        keep(&format!("bad-chunks-{name}"), &[MAGIC, &[0, 1], &number(count), &[0; 40]].concat());
    }
}
