//! Files made by hand, and files made to harm.

use std::fs;

use tempfile::TempDir;

use super::*;

fn dir(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn all(files: &[(&str, &[u8])]) -> Result<Sets, DataError> {
    read(dir(files).path(), Reading { holdout: 0, scale: 1.0 })
}

fn flaw(files: &[(&str, &[u8])]) -> Flaw {
    match all(files) {
        Err(DataError::Flaw { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

fn images(count: u32, height: u32, width: u32, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = 0x0803u32.to_be_bytes().to_vec();
    for number in [count, height, width] {
        bytes.extend(number.to_be_bytes());
    }
    [&bytes, pixels].concat()
}

fn labels(count: u32, labels: &[u8]) -> Vec<u8> {
    [&0x0801u32.to_be_bytes()[..], &count.to_be_bytes(), labels].concat()
}

const IMAGES: &str = "train-images-idx3-ubyte";
const LABELS: &str = "train-labels-idx1-ubyte";

#[test]
fn mnist_is_read_and_bytes_become_numbers_from_0_to_1() {
    let (x, y) = (images(2, 1, 3, &[0, 51, 255, 255, 0, 102]), labels(2, &[3, 0]));
    let test = (images(1, 1, 3, &[255, 255, 255]), labels(1, &[9]));
    let files = [
        (IMAGES, &x[..]),
        (LABELS, &y),
        ("t10k-images-idx3-ubyte", &test.0),
        ("t10k-labels-idx1-ubyte", &test.1),
    ];
    let sets = all(&files).unwrap();
    assert_eq!(sets.train.inputs, [0.0, 0.2, 1.0, 1.0, 0.0, 0.4]);
    assert_eq!(sets.train.shape, Input { channels: 1, height: 1, width: 3 });
    // A party that has some of the digits trains the same model as the others.
    assert_eq!((sets.train.labels, sets.train.classes), (vec![3, 0], 10));
    assert_eq!((sets.held.labels, sets.held.inputs), (vec![9], vec![1.0; 3]));
}

#[test]
fn a_packed_file_is_read_like_one_that_is_not() {
    // labels(4, &[0, 1, 2, 3]), as gzip packs it.
    let packed = [
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x63, 0x60, 0xe0, 0x60, 0x64,
        0x60, 0x60, 0x60, 0x61, 0x60, 0x64, 0x62, 0x06, 0x00, 0x17, 0x6d, 0x04, 0x20, 0x0c, 0x00,
        0x00, 0x00,
    ];
    let (x, name) = (images(4, 1, 1, &[0; 4]), format!("{LABELS}.gz"));
    let sets = all(&[(IMAGES, &x), (&name, &packed)]).unwrap();
    assert_eq!(sets.train.labels, [0, 1, 2, 3]);
    let broken = flaw(&[(IMAGES, &x), (&name, &packed[..20])]);
    assert!(matches!(broken, Flaw::Packed(_)), "{broken}");
}

#[test]
fn an_idx_file_that_lies_is_refused_before_anything_is_made_of_it() {
    let y = labels(2, &[1, 2]);
    let x = images(2, 2, 1, &[0; 4]);
    let flawed = |x: &[u8], y: &[u8]| flaw(&[(IMAGES, x), (LABELS, y)]);
    assert!(all(&[(IMAGES, &x), (LABELS, &y)]).is_ok());
    let huge = images(u32::MAX, u32::MAX, u32::MAX, &[0; 4]);
    assert_eq!(flawed(&huge, &y), Flaw::Large);
    let long = images(2, 1 << 15, 1 << 16, &[0; 4]);
    assert_eq!(flawed(&long, &y), Flaw::Length { said: 1 << 32, found: 4 });
    assert_eq!(flawed(&x[..x.len() - 1], &y), Flaw::Length { said: 4, found: 3 });
    assert_eq!(flawed(&x[..15], &y), Flaw::Begin("an idx file of bytes"));
    assert_eq!(flawed(&y, &y), Flaw::Begin("an idx file of bytes"));
    assert_eq!(flawed(&x, &x), Flaw::Begin("an idx file of bytes"));
    assert_eq!(flawed(&x, &labels(3, &[1, 2, 3])), Flaw::Labels { labels: 3, examples: 2 });
    let many = labels(u32::MAX, &[1, 2]);
    assert_eq!(flawed(&x, &many), Flaw::Length { said: u64::from(u32::MAX), found: 2 });
    assert_eq!(flawed(&images(0, 28, 28, &[]), &labels(0, &[])), Flaw::Empty);
    assert_eq!(flawed(&images(2, 0, 5, &[]), &y), Flaw::Empty);
}

#[test]
fn the_label_of_a_line_is_where_its_name_stands_or_at_its_end() {
    let want = |text: &str, inputs: &[f32], labels: &[u8]| {
        let train = all(&[("any.csv", text.as_bytes())]).unwrap().train;
        assert_eq!((&train.inputs[..], &train.labels[..]), (inputs, labels), "{text}");
    };
    want("a,Label,b\n1.5,2,-3\n\n4,0,1e1\n", &[1.5, -3.0, 4.0, 10.0], &[2, 0]);
    want("\u{feff}\"x\", \"label\"\r\n 7 ,\"1\"\r\n", &[7.0], &[1]);
    want("a,b\n1,2\n", &[1.0], &[2]);
    want("1,2,0\n3,4,1", &[1.0, 2.0, 3.0, 4.0], &[0, 1]);
}

#[test]
fn numbers_in_text_are_divided_by_the_scale_and_labels_are_not() {
    let files = dir(&[("train.csv", b"10,5\n20,1"), ("other.csv", b"?")]);
    let reading = Reading { holdout: 0, scale: 10.0 };
    let train = read(files.path(), reading).unwrap().train;
    assert_eq!((train.inputs, train.labels, train.classes), (vec![1.0, 2.0], vec![5, 1], 6));
}

#[test]
fn a_line_that_does_not_fit_is_named() {
    let flawed = |text: &str| flaw(&[("a.csv", text.as_bytes())]);
    let line = |text: &str| match flawed(text) {
        Flaw::Line { line, .. } => line,
        other => panic!("{other}"),
    };
    assert_eq!(line("a,b\n1,2\n1\n"), 3);
    assert_eq!(line("1,2\n\n1,2,3\n"), 3);
    assert_eq!(line("1,2\nx,2\n"), 2);
    assert_eq!(line("1,2\nnan,2\n"), 2);
    assert_eq!(line("alone\n1\n"), 1);
    for text in ["1,-1", "1,256", "1,0.5"] {
        assert_eq!(flawed(text), Flaw::Label, "{text}");
    }
    assert_eq!(flawed("1e39,1"), Flaw::Value);
    for text in ["", "\n\n", "a,b\n"] {
        assert_eq!(flawed(text), Flaw::Empty, "{text}");
    }
    assert_eq!(flaw(&[("a.csv", b"\xff,1")]), Flaw::Begin("a text"));
}

fn npy(version: u8, header: &str, values: &[u8]) -> Vec<u8> {
    let mut bytes = [&b"\x93NUMPY"[..], &[version, 0]].concat();
    match version {
        1 => bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes()),
        _ => bytes.extend(u32::try_from(header.len()).unwrap().to_le_bytes()),
    }
    [&bytes, header.as_bytes(), values].concat()
}

fn header(sort: &str, shape: &str) -> String {
    format!("{{'descr': '{sort}', 'fortran_order': False, 'shape': {shape}, }}   \n")
}

fn bytes_of<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

#[test]
fn arrays_of_numpy_are_read_whatever_their_numbers_are() {
    let y = npy(1, &header("<i8", "(2,)"), &bytes_of([1i64, 0].map(i64::to_le_bytes)));
    let f4 =
        npy(1, &header("<f4", "(2, 2)"), &bytes_of([0.5f32, 1.0, -2.0, 3.0].map(f32::to_le_bytes)));
    let f8 =
        npy(2, &header("<f8", "(2, 2)"), &bytes_of([0.5f64, 1.0, -2.0, 3.0].map(f64::to_le_bytes)));
    for x in [f4, f8] {
        let train = all(&[("x.npy", &x), ("y.npy", &y)]).unwrap().train;
        assert_eq!(
            (&train.inputs[..], &train.labels[..]),
            (&[0.5, 1.0, -2.0, 3.0][..], &[1, 0][..])
        );
        assert_eq!(train.shape, Input { channels: 1, height: 1, width: 2 });
    }
    let u1 = npy(1, &header("|u1", "(2, 3, 1, 2)"), &[51; 12]);
    let train = all(&[("x.npy", &u1), ("y.npy", &y)]).unwrap().train;
    assert_eq!(train.shape, Input { channels: 3, height: 1, width: 2 });
    assert!(train.inputs.iter().all(|value| *value == 0.2));
}

#[test]
fn arrays_of_numpy_that_lie_are_refused() {
    let y = npy(1, &header("|u1", "(2,)"), &[0, 1]);
    let flawed = |x: &[u8]| flaw(&[("x.npy", x), ("y.npy", &y)]);
    let u1 = |shape: &str| npy(1, &header("|u1", shape), &[0; 4]);
    assert!(all(&[("x.npy", &u1("(2, 2)")), ("y.npy", &y)]).is_ok());
    assert_eq!(flawed(&u1("(2, 3)")), Flaw::Length { said: 6, found: 4 });
    assert_eq!(flawed(&u1("(4, 1)")), Flaw::Labels { labels: 2, examples: 4 });
    for shape in ["(99999999999, 99999999999)", "(2, 1073741824)"] {
        assert_eq!(flawed(&u1(shape)), Flaw::Large, "{shape}");
    }
    for shape in ["(4,)", "(1, 1, 1, 2, 2)", "(-2, -2)", "(2, 99999999999999999999999)", "2, 2"] {
        assert!(matches!(flawed(&u1(shape)), Flaw::Header(_)), "{shape}");
    }
    for sort in [">f4", "<c8", "|O", "<M8[ns]", ""] {
        let x = npy(1, &header(sort, "(2, 2)"), &[0; 4]);
        assert!(matches!(flawed(&x), Flaw::Header(_)), "{sort}");
    }
    let turned = header("|u1", "(2, 2)").replace("False", "True");
    assert!(matches!(flawed(&npy(1, &turned, &[0; 4])), Flaw::Header(_)));
    assert!(matches!(flawed(&npy(3, &header("|u1", "(2, 2)"), &[0; 4])), Flaw::Header(_)));
    let mut long = npy(2, &header("|u1", "(2, 2)"), &[0; 4]);
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(flawed(&long), Flaw::Header(_)));
    let whole = u1("(2, 2)");
    for length in 0..whole.len() {
        flawed(&whole[..length]);
    }
    let nan = npy(1, &header("<f4", "(2, 1)"), &bytes_of([f32::NAN; 2].map(f32::to_le_bytes)));
    assert_eq!(flawed(&nan), Flaw::Value);
    let y = npy(1, &header("<f4", "(2,)"), &bytes_of([0.5f32; 2].map(f32::to_le_bytes)));
    assert_eq!(flaw(&[("x.npy", &whole), ("y.npy", &y)]), Flaw::Label);
}

#[test]
fn where_nothing_is_held_back_every_tenth_is() {
    let text: String = (0..25).map(|n| format!("{n},{}\n", n % 3)).collect();
    let files = dir(&[("a.csv", text.as_bytes())]);
    let sets = read(files.path(), Reading::default()).unwrap();
    assert_eq!(sets.held.inputs, [0.0, 10.0, 20.0]);
    assert_eq!((sets.held.labels, sets.train.len()), (vec![0, 1, 2], 22));
    assert!(!sets.train.inputs.contains(&10.0));
    for holdout in [0, 1] {
        let sets = read(files.path(), Reading { holdout, scale: 1.0 }).unwrap();
        assert_eq!((sets.train.len(), sets.held.len()), (25, 0));
    }
    let files = dir(&[("train.csv", text.as_bytes()), ("test.csv", b"7,1")]);
    let sets = read(files.path(), Reading::default()).unwrap();
    assert_eq!((sets.train.len(), sets.held.inputs), (25, vec![7.0]));
}

#[test]
fn a_directory_without_data_or_with_too_much_of_it_says_so() {
    assert!(matches!(all(&[("README.md", b"")]), Err(DataError::Nothing { .. })));
    assert!(matches!(all(&[("a.csv", b"1,1"), ("b.csv", b"1,1")]), Err(DataError::Several { .. })));
    let nowhere = read(Path::new("/nowhere/at/all"), Reading::default());
    assert!(matches!(nowhere, Err(DataError::Read { .. })));
    let differ = all(&[("train.csv", b"1,1"), ("test.csv", b"1,2,1")]);
    assert!(matches!(differ, Err(DataError::Differ { .. })));
    // As long as it says, without taking any room on the disk.
    let files = dir(&[(LABELS, &labels(1, &[0]))]);
    let huge = fs::File::create(files.path().join(IMAGES)).unwrap();
    huge.set_len(MAX_FILE_BYTES + 1).unwrap();
    let error = read(files.path(), Reading::default()).unwrap_err();
    assert!(matches!(error, DataError::Flaw { source: Flaw::Large, .. }), "{error}");
}

#[test]
fn data_may_say_how_slow_its_party_is_and_what_is_no_number_is_refused() {
    assert_eq!(slowdown(dir(&[]).path()).unwrap(), 1.0);
    assert_eq!(slowdown(dir(&[("slowdown", b" 3.5\n")]).path()).unwrap(), 3.5);
    for text in ["", "0.5", "1001", "NaN", "slow"] {
        let found = slowdown(dir(&[("slowdown", text.as_bytes())]).path());
        assert!(matches!(found, Err(DataError::Flaw { .. })), "{text}: {found:?}");
    }
}
