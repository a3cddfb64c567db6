use mesh_consensus::id::Hash;

use super::*;

fn chunk(seed: u8, bytes: u32) -> Chunk {
    Chunk { id: Hash([seed; 32]), bytes }
}

fn entry(path: &str, kind: Kind) -> Entry {
    Entry { path: path.into(), kind }
}

fn whole(object: u32, bytes: u64) -> Kind {
    Kind::File { executable: false, object, offset: 0, bytes, content: None }
}

fn packed(object: u32, offset: u64, bytes: u64) -> Kind {
    let content = Some(Hash([bytes as u8; 32]));
    Kind::File { executable: false, object, offset, bytes, content }
}

/// A long file, and a pack of two small ones, one of which is there twice.
fn sample() -> Manifest {
    Manifest {
        scheme: Scheme::FastCdc2020,
        objects: vec![
            Object { chunks: vec![chunk(1, 1 << 20), chunk(2, 77)] },
            Object { chunks: vec![chunk(3, 30)] },
        ],
        entries: vec![
            entry("a", packed(1, 0, 10)),
            entry("b", whole(0, (1 << 20) + 77)),
            entry("d/again", packed(1, 0, 10)),
            entry("d/e", packed(1, 10, 20)),
            entry("empty", Kind::EmptyFile),
            entry("hollow", Kind::EmptyDirectory),
        ],
    }
}

fn changed(change: impl FnOnce(&mut Manifest)) -> Result<(), ManifestError> {
    let mut manifest = sample();
    change(&mut manifest);
    let result = manifest.check();
    let decoded = Manifest::decode(&manifest.encode());
    assert_eq!(decoded.is_ok(), result.is_ok(), "decode takes what check takes: {decoded:?}");
    result
}

fn contradiction(change: impl FnOnce(&mut Manifest)) -> &'static str {
    match changed(change) {
        Err(ManifestError::Contradiction(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// What is said of a manifest of empty files at these paths, given in order.
fn paths(paths: &[&str]) -> Result<(), ManifestError> {
    let entries = paths.iter().map(|path| entry(path, Kind::EmptyFile)).collect();
    Manifest { entries, ..Manifest::default() }.check()
}

fn refused(list: &[&str]) -> &'static str {
    match paths(list) {
        Err(ManifestError::Path { why, .. }) => why,
        other => panic!("{list:?}: {other:?}"),
    }
}

#[test]
fn a_manifest_reads_back_what_it_says() {
    let bytes = sample().encode();
    assert_eq!(Manifest::decode(&bytes), Ok(sample()));
    assert_eq!(sample().hash(), Hash::of(&bytes));
    assert_eq!(sample().files(), 5);
    assert_eq!(sample().bytes(), (1 << 20) + 77 + 10 + 10 + 20);
    assert_eq!(sample().chunks().map(|chunk| chunk.id.0[0]).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(Manifest::decode(&Manifest::default().encode()), Ok(Manifest::default()));
}

#[test]
fn the_bytes_of_a_manifest_are_what_they_always_were() {
    // If this fails, the format has changed: versions that exist can no longer be read under their names.
    let name = "37359397a76774f74a0051f3d1457c8e22413b324cccf5479472ff962c53e8fc";
    assert_eq!(sample().hash().to_string(), name);
}

#[test]
fn what_is_no_manifest_is_refused() {
    let bytes = sample().encode();
    let unreadable =
        |bytes: &[u8]| assert_eq!(Manifest::decode(bytes), Err(ManifestError::Unreadable));
    unreadable(b"");
    unreadable(&[&b"mesh manifest 2\n"[..], &bytes[MAGIC.len()..]].concat());
    unreadable(&[&bytes[..], &[0]].concat());
    // A scheme that is not known yet.
    unreadable(&[MAGIC, &[1, 0, 0]].concat());
    // "No objects" the long way.
    unreadable(&[MAGIC, &[0, 0x80, 0, 0]].concat());
    // A number of more than 64 bits, and one that never ends.
    unreadable(&[MAGIC, &[0], &[0xff; 9], &[2, 0]].concat());
    unreadable(&[MAGIC, &[0], &[0xff; 30]].concat());
    // A path that is no text.
    unreadable(&[MAGIC, &[0, 0, 1, 1, 0xff, 0]].concat());
    assert!(Manifest::decode(&[MAGIC, &[0, 0, 1, 1, b'x', 0]].concat()).is_ok());
}

#[test]
fn too_many_are_refused_by_their_count_alone() {
    // Ten million, and of none of them a byte.
    let ten_million = [0x80, 0xad, 0xe2, 4];
    let too_many = |bytes: &[&[u8]]| match Manifest::decode(&bytes.concat()) {
        Err(ManifestError::TooMany { what, found: 10_000_000, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(too_many(&[MAGIC, &[0, 0], &ten_million]), "entries");
    assert_eq!(too_many(&[MAGIC, &[0], &ten_million]), "objects");
    let room = [7; 40];
    assert_eq!(too_many(&[MAGIC, &[0, 1], &ten_million, &room]), "chunks");
    assert_eq!(too_many(&[MAGIC, &[0, 0, 1], &ten_million, &room]), "bytes in a path");
    // Four million would be taken, were they there.
    let lie = [MAGIC, &[0, 0], &[0x80, 0x92, 0xf4, 1]].concat();
    assert_eq!(Manifest::decode(&lie), Err(ManifestError::Unreadable));
    let long = vec![0; MAX_MANIFEST_BYTES + 1];
    let bytes = Manifest::decode(&long);
    assert!(matches!(bytes, Err(ManifestError::TooMany { what: "bytes", .. })));
}

#[test]
fn a_path_that_leads_out_is_refused() {
    for path in ["..", "../a", "a/../b", "a/..", ".", "./a", "a/./b"] {
        assert_eq!(refused(&[path]), "it leads out of its directory", "{path}");
    }
    for path in ["/", "/etc/passwd", "a//b", "a/"] {
        assert_eq!(refused(&[path]), "it is absolute or has an empty part", "{path}");
    }
    for path in ["", &format!("{}aa", "a/".repeat(2047))] {
        assert_eq!(refused(&[path]), "it is empty or too long");
    }
    assert_eq!(paths(&["...", "..a", ".a", "a..b/c.."]), Ok(()));
    assert_eq!(paths(&[&format!("{}a", "a/".repeat(2047))]), Ok(()));
}

#[test]
fn a_path_that_no_file_can_have_is_refused() {
    for path in ["a\0", "\n", "a/\u{7f}b", "a\u{85}"] {
        assert_eq!(refused(&[path]), "it holds a control character", "{path:?}");
    }
    assert!(refused(&["a\\b"]).starts_with("it holds a backslash"));
    assert_eq!(refused(&[&"x".repeat(256)]), "a part of it is too long");
    assert_eq!(refused(&[&format!("a/{}/b", "é".repeat(128))]), "a part of it is too long");
    assert_eq!(paths(&[&"x".repeat(255), &"é".repeat(127)]), Ok(()));
    // What only Windows minds is fine.
    assert_eq!(paths(&["aux", "con.txt", "end.", "q?"]), Ok(()));
}

#[test]
fn paths_are_in_order_and_there_once() {
    assert_eq!(refused(&["b", "a"]), "it is out of order, or there twice");
    assert_eq!(refused(&["a", "a"]), "it is out of order, or there twice");
}

#[test]
fn paths_that_some_file_system_takes_for_one_are_refused() {
    let why = "it differs from another by case or by accents only";
    for list in [
        &["A", "a"][..],
        &["README", "b", "readme"],
        &["x/A", "x/a"],
        // Two directories that would become one.
        &["A/x", "a/y"],
        &["x/A/1", "x/B/1", "x/a/2"],
        // As one code point, and as a letter and an accent.
        &["e\u{301}", "é"],
        &["e\u{301}/a", "é/b"],
        // Both at once: E and an accent, and é.
        &["E\u{301}", "é"],
        // Two lower cases of one letter.
        &["ς", "σ"],
        &["ß", "ẞ"],
        // The sign of the kelvin, and of the ångström.
        &["k", "\u{212a}"],
        &["å", "\u{212b}"],
        // A syllable, and its parts.
        &["\u{1112}\u{1161}\u{11ab}", "한"],
        // Accents in another order.
        &["a\u{301}\u{323}", "a\u{323}\u{301}"],
    ] {
        assert_eq!(refused(list), why, "{list:?}");
    }
    assert_eq!(paths(&["E", "e\u{300}", "é", "ö"]), Ok(()));
    // Alike in different directories.
    assert_eq!(paths(&["A/x", "b/A", "c/a"]), Ok(()));
}

#[test]
fn a_file_is_no_directory() {
    let why = "it is a directory for one entry and none for another";
    assert_eq!(refused(&["a", "a/b"]), why);
    // Others sort between the two.
    assert_eq!(refused(&["a", "a!", "a-b", "a.b/c", "a/b"]), why);
    assert_eq!(refused(&["A", "a/b"]), "it differs from another by case or by accents only");
    let hollow = |list: &mut Manifest| list.entries[5].path = "d".into();
    let sort = |list: &mut Manifest| list.entries.sort_by(|a, b| a.path.cmp(&b.path));
    let both = changed(|manifest| {
        hollow(manifest);
        sort(manifest);
    });
    assert!(matches!(both, Err(ManifestError::Path { why: found, .. }) if found == why));
}

#[test]
fn chunks_are_of_lengths_that_a_cut_gives() {
    let why = "a chunk of a length that no cut gives";
    assert_eq!(contradiction(|m| m.objects[0].chunks[0].bytes = MIN_CHUNK - 1), why);
    assert_eq!(contradiction(|m| m.objects[0].chunks[0].bytes = HEAD_CHUNK + 1), why);
    assert_eq!(contradiction(|m| m.objects[0].chunks[0].bytes = MAX_CHUNK + 1), why);
    assert_eq!(contradiction(|m| m.objects[0].chunks[1].bytes = MAX_CHUNK + 1), why);
    assert_eq!(contradiction(|m| m.objects[0].chunks[1].bytes = 0), why);
    assert_eq!(contradiction(|m| m.objects[0].chunks.clear()), "an object without chunks");
}

#[test]
fn one_chunk_has_one_length() {
    assert_eq!(
        contradiction(|m| m.objects[0].chunks[1].id = m.objects[1].chunks[0].id),
        "a chunk of two lengths"
    );
}

#[test]
fn no_object_is_there_twice_or_for_nothing() {
    let twice = |m: &mut Manifest| {
        m.objects.push(m.objects[1].clone());
        m.entries.push(entry("z", whole(2, 30)));
    };
    assert_eq!(contradiction(twice), "an object twice");
    let unused = |m: &mut Manifest| m.objects.push(Object { chunks: vec![chunk(9, 5)] });
    assert_eq!(contradiction(unused), "an object of another length than its files");
}

#[test]
fn files_fill_their_objects_without_holes_or_overlap() {
    let overlap = "files that overlap, or bytes of none";
    let length = "an object of another length than its files";
    let place = |at: usize, kind: Kind| move |m: &mut Manifest| m.entries[at].kind = kind;
    assert_eq!(contradiction(place(3, packed(1, 9, 21))), overlap);
    assert_eq!(contradiction(place(3, packed(1, 11, 19))), overlap);
    assert_eq!(contradiction(place(3, packed(1, 10, 0))), overlap);
    assert_eq!(contradiction(place(2, packed(1, 0, 11))), overlap);
    assert_eq!(contradiction(place(3, packed(1, 10, 19))), length);
    assert_eq!(contradiction(place(3, packed(1, 10, 21))), length);
    assert_eq!(
        contradiction(place(1, whole(0, 1 << 20))),
        "a hash of content for all of an object, or none for a part"
    );
    assert_eq!(contradiction(place(4, packed(2, 0, 1))), "a file of no object");
    assert_eq!(contradiction(place(4, packed(u32::MAX, 0, 1))), "a file of no object");
    assert_eq!(contradiction(place(3, packed(1, 10, u64::MAX))), "lengths");
}

#[test]
fn a_part_of_a_pack_is_short_and_says_what_it_holds() {
    let why = "a hash of content for all of an object, or none for a part";
    let bare = Kind::File { executable: false, object: 1, offset: 10, bytes: 20, content: None };
    assert_eq!(contradiction(|m| m.entries[3].kind = bare), why);
    let named = packed(0, 0, (1 << 20) + 77);
    assert_eq!(contradiction(|m| m.entries[1].kind = named), why);
    // The same place, and two opinions.
    let other = Some(Hash([99; 32]));
    let other = Kind::File { executable: false, object: 1, offset: 0, bytes: 10, content: other };
    assert_eq!(
        contradiction(|m| m.entries[2].kind = other),
        "files that overlap, or bytes of none"
    );
    let long = |m: &mut Manifest| {
        m.objects[1].chunks[0].bytes = MIN_CHUNK + 11;
        m.entries[3].kind = packed(1, 10, u64::from(MIN_CHUNK) + 1);
    };
    assert_eq!(contradiction(long), "a file in a pack that is too long");
    let fits = |m: &mut Manifest| {
        m.objects[1].chunks[0].bytes = MIN_CHUNK + 10;
        m.entries[3].kind = packed(1, 10, u64::from(MIN_CHUNK));
    };
    assert_eq!(changed(fits), Ok(()));
}

#[test]
fn what_would_be_too_long_to_read_is_refused_when_it_is_made() {
    let path = |at: usize| format!("{}{at:06}", "long-name/".repeat(400));
    let entries = (0..68_000).map(|at| Entry { path: path(at), kind: Kind::EmptyFile }).collect();
    let manifest = Manifest { entries, ..Manifest::default() };
    let found = manifest.encode().len();
    let limit = MAX_MANIFEST_BYTES;
    assert_eq!(manifest.check(), Err(ManifestError::TooMany { what: "bytes", found, limit }));
}
