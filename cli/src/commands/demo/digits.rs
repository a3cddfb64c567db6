//! MNIST, which is in this binary, cut into what each party has: nobody has all digits.
//!
//! | party | trains on | of the test images |
//! |---|---|---|
//! | 0 | 0 to 4 | the 1st, 4th, 7th … |
//! | 1 | 5 to 9 | the 2nd, 5th, 8th … |
//! | 2 | 1, 3, 5, 7, 9 | the 3rd, 6th, 9th … |
//!
//! So the parties' own measurements together are one of the whole test set.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context as _;
use mesh_node::training::builtin::data::{Flaw, gunzip};

static TRAIN_IMAGES: &[u8] =
    include_bytes!("../../../../examples/mnist/train-images-idx3-ubyte.gz");
static TRAIN_LABELS: &[u8] =
    include_bytes!("../../../../examples/mnist/train-labels-idx1-ubyte.gz");
static TEST_IMAGES: &[u8] = include_bytes!("../../../../examples/mnist/t10k-images-idx3-ubyte.gz");
static TEST_LABELS: &[u8] = include_bytes!("../../../../examples/mnist/t10k-labels-idx1-ubyte.gz");

/// The most bytes of a file once it is unpacked: the images to train on have 47 MB.
const MOST: usize = 64 << 20;
/// How long a side of an image is.
const SIDE: usize = 28;
const PIXELS: usize = SIDE * SIDE;
/// What a file of images begins with, and how long that is.
const IMAGES: (u32, usize) = (0x0803, 16);
/// The same for labels.
const LABELS: (u32, usize) = (0x0801, 8);

/// What each party trains on, for people.
pub(super) const WHICH: [&str; 3] = ["0-4", "5-9", "odd"];

/// Images of digits, and which they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Digits {
    /// [`PIXELS`] bytes for each label.
    images: Vec<u8>,
    labels: Vec<u8>,
}

/// Writes what each party has into its directory, and the whole test set into `judge`, as what there is to be measured with. `slow`
/// is a party that is to be slow, and how slow. All directories are there. Takes a second.
pub(super) fn lay_out(
    parties: &[PathBuf; 3],
    judge: &Path,
    slow: (usize, f64),
) -> anyhow::Result<()> {
    let train = unpacked(TRAIN_IMAGES, TRAIN_LABELS).context("MNIST could not be unpacked")?;
    let test = unpacked(TEST_IMAGES, TEST_LABELS).context("MNIST could not be unpacked")?;
    let written = || -> io::Result<()> {
        for (party, dir) in parties.iter().enumerate() {
            train.only(|_, digit| has(party, digit)).write(dir, "train")?;
            test.only(|n, _| n % parties.len() == party).write(dir, "t10k")?;
        }
        fs::write(parties[slow.0].join("slowdown"), format!("{}\n", slow.1))?;
        test.write(judge, "train")
    };
    written().context("MNIST could not be written")
}

/// Whether a party has a digit to train on.
fn has(party: usize, digit: u8) -> bool {
    match party {
        0 => digit < 5,
        1 => digit >= 5,
        _ => digit % 2 == 1,
    }
}

fn unpacked(images: &[u8], labels: &[u8]) -> Result<Digits, Flaw> {
    let body = |packed: &[u8], (kind, head): (u32, usize)| {
        let mut bytes = gunzip(packed, MOST)?;
        if bytes.len() < head || !bytes.starts_with(&kind.to_be_bytes()) {
            return Err(Flaw::Begin("a file of idx"));
        }
        bytes.drain(..head);
        Ok(bytes)
    };
    let (images, labels) = (body(images, IMAGES)?, body(labels, LABELS)?);
    if images.len() != labels.len() * PIXELS {
        return Err(Flaw::Header("there is not one label for each image"));
    }
    Ok(Digits { images, labels })
}

impl Digits {
    /// Those for which `wanted` says so, by their number and by what they are.
    fn only(&self, wanted: impl Fn(usize, u8) -> bool) -> Self {
        let mut some = Self::default();
        let all = self.images.chunks_exact(PIXELS).zip(&self.labels).enumerate();
        for (_, (image, label)) in all.filter(|(n, (_, label))| wanted(*n, **label)) {
            some.images.extend_from_slice(image);
            some.labels.push(*label);
        }
        some
    }

    /// Writes them as MNIST is written, not packed.
    fn write(&self, dir: &Path, called: &str) -> io::Result<()> {
        let count = u32::try_from(self.labels.len()).map_err(io::Error::other)?;
        let file = |kind: u32, sides: &[u32], body: &[u8]| {
            let numbers = [&[kind, count][..], sides].concat();
            let head: Vec<u8> = numbers.into_iter().flat_map(u32::to_be_bytes).collect();
            [&head[..], body].concat()
        };
        let side = SIDE as u32;
        let images = file(IMAGES.0, &[side, side], &self.images);
        fs::write(dir.join(format!("{called}-images-idx3-ubyte")), images)?;
        let labels = file(LABELS.0, &[], &self.labels);
        fs::write(dir.join(format!("{called}-labels-idx1-ubyte")), labels)
    }
}

#[cfg(test)]
mod tests {
    use mesh_node::training::builtin::data::{Reading, read, slowdown};

    use super::*;

    #[test]
    fn every_digit_is_somebodys_and_nobody_has_all() {
        for digit in 0..10 {
            assert!((0..3).any(|party| has(party, digit)), "{digit}");
        }
        for party in 0..3 {
            assert_eq!((0..10).filter(|digit| has(party, *digit)).count(), 5, "{party}");
        }
    }

    #[test]
    fn what_is_written_is_what_the_trainer_reads() {
        let home = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let dir = home.path().join(name);
            fs::create_dir(&dir).unwrap();
            dir
        };
        let (parties, judge) = (["a", "b", "c"].map(dir), dir("judge"));
        lay_out(&parties, &judge, (2, 4.0)).unwrap();
        let all = parties.each_ref().map(|dir| read(dir, Reading::default()).unwrap());
        let held: usize = all.iter().map(|sets| sets.held.len()).sum();
        assert_eq!(held, 10_000);
        assert_eq!(all[0].train.len() + all[1].train.len(), 60_000);
        for (party, sets) in all.iter().enumerate() {
            assert!(sets.train.labels.iter().all(|digit| has(party, *digit)), "{party}");
        }
        let whole = read(&judge, Reading { holdout: 0, ..Reading::default() }).unwrap();
        assert_eq!((whole.train.len(), whole.held.len()), (10_000, 0));
        // The first three test images are a 7, a 2 and a 1.
        assert_eq!(whole.train.labels[..3], [7, 2, 1]);
        assert_eq!((all[0].held.labels[0], all[2].held.labels[0]), (7, 1));
        assert_eq!(all[1].held.inputs[..784], whole.train.inputs[784..2 * 784]);
        assert_eq!((slowdown(&parties[2]).unwrap(), slowdown(&parties[0]).unwrap()), (4.0, 1.0));
    }
}
