use std::io::{Seek, SeekFrom};
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use super::*;

fn tensor(name: &str, kind: Kind, shape: &[u64]) -> Tensor {
    Tensor { name: name.to_owned(), kind, shape: shape.to_vec() }
}

fn small() -> Layout {
    let tensors = vec![
        tensor("b", Kind::F32, &[2, 3]),
        tensor("a", Kind::F16, &[3]),
        tensor("empty", Kind::F32, &[0, 5]),
        tensor("one", Kind::Bf16, &[]),
    ];
    Layout { tensors }
}

const SMALL: [f32; 10] = [1.0, -2.0, 3.5, 0.0, 1e-20, 6.0, 0.5, -0.25, 1024.0, -3.0];

/// A file of these bytes, and the directory that it is in.
fn file(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("update.safetensors");
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// A file's bytes: the length of its header, its header, and what follows.
fn with_header(header: &str, rest: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

fn refused(header: &str) -> TensorError {
    Layout::parse(header.as_bytes()).expect_err(header)
}

#[test]
fn what_is_written_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write(&path, &small(), &SMALL).unwrap();
    let (layout, values) = read(&path, 10).unwrap();
    assert_eq!((layout, values), (small(), SMALL.to_vec()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_header_is_written_as_safetensors_does() {
    let header = String::from_utf8(small().header()).unwrap();
    let wanted = concat!(
        r#"{"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
        r#""a":{"dtype":"F16","shape":[3],"data_offsets":[24,30]},"#,
        r#""empty":{"dtype":"F32","shape":[0,5],"data_offsets":[30,30]},"#,
        r#""one":{"dtype":"BF16","shape":[],"data_offsets":[30,32]}}"#,
    );
    assert_eq!(header.trim_end_matches(' '), wanted);
    assert_eq!(header.len() % 8, 0);
    assert!(header.len() < wanted.len() + 8);
    assert_eq!(Layout::parse(header.as_bytes()).unwrap(), small());
    let none = Layout { tensors: Vec::new() };
    assert_eq!(none.header(), b"{}      ");
    assert_eq!(Layout::parse(b"{}").unwrap(), none);
    assert_eq!((small().values(), none.values()), (10, 0));
}

#[test]
fn the_library_of_others_reads_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write(&path, &small(), &SMALL).unwrap();
    let bytes = fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.names().len(), 4);
    let b = theirs.tensor("b").unwrap();
    assert_eq!((b.dtype(), b.shape()), (Dtype::F32, &[2, 3][..]));
    assert_eq!(values_of(b.data()).unwrap(), SMALL[..6]);
    // 0.5, -0.25 and 1024 in IEEE half.
    assert_eq!(theirs.tensor("a").unwrap().data(), [0x00, 0x38, 0x00, 0xB4, 0x00, 0x64]);
    // -3 as the upper half of an f32.
    assert_eq!(theirs.tensor("one").unwrap().data(), [0x40, 0xC0]);
}

#[test]
fn what_the_library_of_others_writes_is_read() {
    let (one, two) = (bytes_of(&[1.0, 2.0, 3.0]), [0x00, 0x38, 0x00, 0xB4]);
    let tensors = [
        ("x/ü \"quoted\"", TensorView::new(Dtype::F32, vec![3, 1], &one).unwrap()),
        ("y", TensorView::new(Dtype::F16, vec![2], &two).unwrap()),
    ];
    let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    let bytes = safetensors::serialize(tensors, Some(metadata)).unwrap();
    let (_dir, path) = file(&bytes);
    let wanted = Layout {
        tensors: vec![tensor("y", Kind::F32, &[2]), tensor("x/ü \"quoted\"", Kind::Bf16, &[3, 1])],
    };
    assert_eq!(read_as(&path, &wanted).unwrap(), [0.5, -0.25, 1.0, 2.0, 3.0]);
    let (layout, _) = read(&path, 5).unwrap();
    assert_eq!(layout.is_like(&wanted).map_err(|error| error.to_string()), Ok(()));
    assert_eq!(Layout::parse(&layout.header()).unwrap(), layout);
}

#[test]
fn hostile_headers_are_refused() {
    use TensorError as E;
    let one = |dtype: &str, shape: &str, offsets: &str| {
        refused(&format!(
            r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#
        ))
    };
    // Not JSON, or not of this form.
    for header in ["", "{", "[]", "null", "{}{}", "\0", r#"{"a":1}"#, r#"{"a":{"dtype":"F32"}}"#] {
        assert!(matches!(refused(header), E::Header(_)), "{header}");
    }
    assert!(matches!(Layout::parse(b"{\"\xFF\":1}"), Err(E::Header(_))));
    assert!(matches!(refused(&"[".repeat(100_000)), E::Header(_)));
    // Numbers that are none of ours.
    for shape in ["[-1]", "[1.5]", "[18446744073709551616]", "[1e3]", "7"] {
        assert!(matches!(one("F32", shape, "[0,4]"), E::Header(_)), "{shape}");
    }
    for offsets in ["[0]", "[0,4,8]", "[-4,0]", "[0,18446744073709551616]"] {
        assert!(matches!(one("F32", "[1]", offsets), E::Header(_)), "{offsets}");
    }
    // Products that are too large, or no u64.
    for shape in [
        "[18446744073709551615]",
        "[4294967296,4294967296]",
        "[4294967296,4294967296,0]",
        "[68719476737]",
        "[9223372036854775808,2]",
    ] {
        assert!(matches!(one("F32", shape, "[0,0]"), E::TooLarge { .. }), "{shape}");
    }
    assert!(matches!(one("F32", &format!("[{}1]", "1,".repeat(64)), "[0,4]"), E::TooLarge { .. }));
    // Offsets that do not fit the shape, or begin elsewhere, or end before they begin.
    for offsets in
        ["[0,3]", "[0,8]", "[4,8]", "[4,0]", "[18446744073709551612,18446744073709551615]"]
    {
        assert!(matches!(one("F32", "[1]", offsets), E::Offsets { .. }), "{offsets}");
    }
    for dtype in ["I64", "f32", "F64", "", "F8_E4M3"] {
        assert!(matches!(one(dtype, "[1]", "[0,4]"), E::Kind { .. }), "{dtype}");
    }
    assert!(matches!(
        Layout::parse(&vec![b' '; MAX_HEADER_BYTES + 1]),
        Err(E::HeaderLength { .. })
    ));
}

#[test]
fn tensors_that_overlap_leave_gaps_or_share_a_name_are_refused() {
    use TensorError as E;
    let two = |first: &str, begin: u64, second: &str, at: u64| {
        let entry = |name: &str, at: u64| {
            format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{at},{}]}}"#, at + 8)
        };
        Layout::parse(format!("{{{},{}}}", entry(first, begin), entry(second, at)).as_bytes())
    };
    assert!(matches!(two("a", 0, "b", 4), Err(E::Offsets { name, .. }) if name == "b"));
    assert!(matches!(two("a", 0, "b", 0), Err(E::Offsets { .. })));
    assert!(matches!(two("a", 0, "b", 12), Err(E::Offsets { .. })));
    assert!(matches!(two("a", 0, "a", 8), Err(E::Twice { name }) if name == "a"));
    let names = two("a", 8, "b", 0).unwrap();
    assert_eq!(names.tensors[0].name, "b", "file order is that of the values");
    for name in ["", "line\\nbreak", "\\u001b[31m", "\\u0085", &"n".repeat(257)] {
        assert!(matches!(two(name, 0, "b", 8), Err(E::Name { .. })), "{name}");
    }
    assert!(two(&"n".repeat(256), 0, "b", 8).is_ok());
}

#[test]
fn a_sum_of_sizes_that_is_too_large_is_refused() {
    let entry = |name: &str, at: u64| {
        let end = at + (MAX_VALUES << 2);
        let shape = MAX_VALUES;
        format!(r#""{name}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{at},{end}]}}"#)
    };
    assert_eq!(
        Layout::parse(format!("{{{}}}", entry("a", 0)).as_bytes()).unwrap().values(),
        MAX_VALUES
    );
    let both = format!("{{{},{}}}", entry("a", 0), entry("b", MAX_VALUES << 2));
    assert!(matches!(refused(&both), TensorError::TooLarge { name } if name == "b"));
}

#[test]
fn too_many_tensors_are_refused() {
    let header = |count: usize| {
        let entry =
            |name: usize| format!(r#""{name}":{{"dtype":"F16","shape":[0],"data_offsets":[0,0]}}"#);
        let entries: Vec<String> = (0..count).map(entry).collect();
        format!("{{{}}}", entries.join(","))
    };
    assert_eq!(Layout::parse(header(MAX_TENSORS).as_bytes()).unwrap().tensors.len(), MAX_TENSORS);
    assert!(matches!(refused(&header(MAX_TENSORS + 1)), TensorError::Header(_)));
}

#[test]
fn a_header_that_claims_to_be_huge_is_refused_before_it_is_read() {
    for length in [MAX_HEADER_BYTES as u64 + 1, 1 << 40, i64::MAX as u64, u64::MAX] {
        let (_dir, path) = file(&length.to_le_bytes());
        let found = read(&path, u64::MAX);
        assert!(matches!(found, Err(TensorError::HeaderLength { bytes }) if bytes == length));
    }
    let (_dir, path) = file(&[0; 7]);
    assert!(matches!(read(&path, 1), Err(TensorError::CutOff)));
    let (_dir, path) = file(&with_header("{}", b"")[..9]);
    assert!(matches!(read(&path, 1), Err(TensorError::CutOff)));
}

#[test]
fn a_file_of_more_values_than_are_allowed_is_refused_before_they_are_read() {
    let layout = Layout { tensors: vec![tensor("a", Kind::F32, &[MAX_VALUES])] };
    let header = String::from_utf8(layout.header()).unwrap();
    let bytes = with_header(&header, b"");
    let (_dir, path) = file(&bytes);
    // A hole: as long as its header says, and nothing on the disk.
    let length = bytes.len() as u64 + MAX_VALUES * 4;
    OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
    let found = read(&path, 1000);
    assert!(matches!(found, Err(TensorError::TooMany { values: MAX_VALUES, most: 1000 })));
}

#[test]
fn a_file_that_is_too_long_or_too_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("update.safetensors");
    write(&path, &small(), &SMALL).unwrap();
    let whole = fs::read(&path).unwrap();
    for bytes in [[&whole[..], b"x"].concat(), whole[..whole.len() - 1].to_vec()] {
        fs::write(&path, &bytes).unwrap();
        let found = read(&path, 100);
        assert!(matches!(
            found,
            Err(TensorError::FileLength { found, wanted })
                if found == bytes.len() as u64 && wanted == whole.len() as u64
        ));
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("update.safetensors");
    write(&path, &small(), &SMALL).unwrap();
    let opened = Opened::open(&path).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(opened.begin + 8).unwrap();
    let found = opened.values(&opened.layout.places());
    assert!(matches!(found, Err(TensorError::CutOff)));
}

#[test]
fn a_header_that_changes_after_it_was_read_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("update.safetensors");
    write(&path, &small(), &SMALL).unwrap();
    let opened = Opened::open(&path).unwrap();
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&u64::MAX.to_le_bytes()).unwrap();
    assert_eq!(opened.values(&opened.layout.places()).unwrap(), SMALL);
}

#[test]
fn only_regular_files_are_read_and_no_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("real");
    write(&path, &small(), &SMALL).unwrap();
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(matches!(read(&link, 100), Err(TensorError::NotAFile)));
    assert!(matches!(read_as(&link, &small()), Err(TensorError::NotAFile)));
    assert!(matches!(read(dir.path(), 100), Err(TensorError::NotAFile)));
    // Nobody writes to it: an open that waited would never end.
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(read(&pipe, 100), Err(TensorError::NotAFile)));
    assert!(matches!(read(&dir.path().join("nothing"), 100), Err(TensorError::Read(_))));
}

#[test]
fn a_link_in_the_way_is_replaced_and_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    let path = dir.path().join("model");
    symlink(&victim, &path).unwrap();
    symlink(&victim, beside(&path).unwrap()).unwrap();
    write(&path, &small(), &SMALL).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(read(&path, 10).unwrap().1, SMALL);
}

#[test]
fn a_write_of_the_wrong_number_of_values_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    write(&path, &small(), &SMALL).unwrap();
    assert!(write(&path, &small(), &SMALL[1..]).is_err());
    assert!(write(Path::new("/"), &small(), &SMALL).is_err());
    assert_eq!(read(&path, 10).unwrap().1, SMALL);
}

#[test]
fn a_difference_of_layouts_is_named() {
    let other = |tensors: &[Tensor]| Layout { tensors: tensors.to_vec() };
    let (a, b) = (tensor("a", Kind::F32, &[2, 3]), tensor("b", Kind::F32, &[4]));
    let model = other(&[a.clone(), b.clone()]);
    let said = |layout: Layout| layout.is_like(&model).map_err(|error| error.to_string());
    assert_eq!(said(other(&[b.clone(), tensor("a", Kind::F16, &[2, 3])])), Ok(()));
    assert_eq!(said(other(std::slice::from_ref(&a))), Err("tensor \"b\" is missing".to_owned()));
    assert_eq!(
        said(other(&[a.clone(), tensor("b", Kind::F32, &[2, 2])])),
        Err("tensor \"b\" has shape [2, 2], and [4] in the model".to_owned())
    );
    assert_eq!(
        said(other(&[a, b, tensor("c", Kind::F32, &[1])])),
        Err("tensor \"c\" is not part of the model".to_owned())
    );
}

#[test]
fn files_longer_than_a_stretch_are_read_in_any_order() {
    let count = STRETCH_BYTES as u64 / 2 + 3;
    let tensors = [("f32", Kind::F32), ("f16", Kind::F16), ("bf16", Kind::Bf16)];
    let tensors = tensors.map(|(name, kind)| tensor(name, kind, &[count]));
    let layout = Layout { tensors: tensors.to_vec() };
    // Whole numbers below 256 are exact in every kind.
    let values: Vec<f32> = (0..3 * count).map(|index| (index % 251) as f32).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    write(&path, &layout, &values).unwrap();
    assert!(read(&path, 3 * count).unwrap().1 == values);
    let turned = Layout { tensors: layout.tensors.iter().rev().cloned().collect() };
    let (first, rest) = values.split_at(count as usize);
    let (second, third) = rest.split_at(count as usize);
    assert!(read_as(&path, &turned).unwrap() == [third, second, first].concat());
}

#[test]
fn halves_are_near_and_finite_values_stay_finite() {
    let roundtrip = |kind: Kind, values: &[f32]| {
        let mut bytes = vec![0; values.len() * kind.bytes()];
        kind.encode(values, &mut bytes);
        let mut out = vec![0.0; values.len()];
        kind.decode(&bytes, &mut out);
        out
    };
    let large = [65504.0, 65519.0, 65520.0, 1e30, f32::MAX, -f32::MAX, -70000.0];
    let most = 65504.0f32;
    assert_eq!(roundtrip(Kind::F16, &large), [most, most, most, most, most, -most, -most]);
    let most = f32::from_bits(0x7F7F_0000);
    assert_eq!(roundtrip(Kind::Bf16, &[f32::MAX, -f32::MAX, most]), [most, -most, most]);
    // Ties go to the even one: 1 + 2^-8 and 1 + 3·2^-8 lie between neighbours.
    let ties = roundtrip(Kind::Bf16, &[257.0 / 256.0, 259.0 / 256.0]);
    assert_eq!(ties, [1.0, 260.0 / 256.0]);
    for kind in [Kind::F32, Kind::F16, Kind::Bf16] {
        let odd =
            [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7F80_0001)];
        let odd = roundtrip(kind, &odd);
        assert!(odd[0].is_nan() && odd[1].is_nan() && odd[4].is_nan(), "{kind:?}: {odd:?}");
        assert_eq!(odd[2..4], [f32::INFINITY, f32::NEG_INFINITY]);
        let mut random = fastrand::Rng::with_seed(3);
        let values: Vec<f32> = (0..5000).map(|_| random.f32() * 200.0 - 100.0).collect();
        let relative = match kind {
            Kind::F32 => 0.0,
            Kind::F16 => 1.0 / 2048.0,
            Kind::Bf16 => 1.0 / 256.0,
        };
        for (value, near) in values.iter().zip(roundtrip(kind, &values)) {
            // Below 2^-14 a half has fewer digits.
            let most = value.abs() * relative + if relative > 0.0 { 1e-7 } else { 0.0 };
            assert!((value - near).abs() <= most, "{kind:?}: {value} became {near}");
        }
    }
}

#[test]
fn bytes_of_a_piece_are_its_values() {
    assert_eq!(bytes_of(&[1.0, -2.0]), [0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0]);
    assert_eq!(values_of(&bytes_of(&SMALL)).unwrap(), SMALL);
    assert_eq!(values_of(&[]), Some(Vec::new()));
    assert_eq!(values_of(&[0; 7]), None);
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let kind = proptest::sample::select(vec![Kind::F32, Kind::F16, Kind::Bf16]);
    let shape = proptest::collection::vec(0u64..5, 0..4);
    let tensors = proptest::collection::btree_map("[a-z.\"\\\\ü/ ]{1,12}", (kind, shape), 0..12);
    (tensors, any::<u64>()).prop_map(|(tensors, seed)| {
        let mut tensors: Vec<Tensor> =
            tensors.into_iter().map(|(name, (kind, shape))| Tensor { name, kind, shape }).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut tensors);
        Layout { tensors }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_layout_is_what_its_header_says(layout in any_layout()) {
        let header = layout.header();
        prop_assert_eq!(header.len() % 8, 0);
        prop_assert_eq!(Layout::parse(&header).unwrap(), layout);
    }

    #[test]
    fn a_broken_header_is_read_without_harm(
        layout in any_layout(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut header = layout.header();
        for (index, byte) in edits {
            let at = index.index(header.len());
            header[at] = byte;
        }
        if let Ok(parsed) = Layout::parse(&header) {
            prop_assert_eq!(Layout::parse(&parsed.header()).unwrap(), parsed);
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (_dir, path) = file(&bytes);
        if let Ok((layout, values)) = read(&path, 1000) {
            prop_assert_eq!(layout.values(), values.len() as u64);
        }
    }
}
