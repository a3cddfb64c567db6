//! Which chunks are there: one bit each.
//!
//! A bitmap has a length that its reader knows beforehand (the chunk count of a manifest), so its bytes
//! are taken only if they are of exactly that length, and no bit past the end is set.

/// A list of bits of a fixed length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bitmap {
    /// Bits past `len` are zero.
    words: Vec<u64>,
    len: usize,
    /// How many bits are set.
    count: usize,
}

/// Why bytes are not the bitmap that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BitmapError {
    /// Too short or too long.
    #[error("a bitmap of {want} bits has {} bytes, not {found}", want.div_ceil(8))]
    Length {
        /// Bits expected.
        want: usize,
        /// Bytes that came.
        found: usize,
    },
    /// A bit is set that stands for nothing.
    #[error("a bit past the end of the bitmap is set")]
    Tail,
}

impl Bitmap {
    /// `len` bits, none of them set.
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len, count: 0 }
    }

    /// `len` bits, all of them set.
    pub fn full(len: usize) -> Self {
        let mut bits = Self { words: vec![u64::MAX; len.div_ceil(64)], len, count: len };
        if let (Some(last), used @ 1..) = (bits.words.last_mut(), len % 64) {
            *last = (1 << used) - 1;
        }
        bits
    }

    /// How many bits there are, set or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bits at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bits are set.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether every bit is set.
    pub fn is_full(&self) -> bool {
        self.count == self.len
    }

    /// Whether bit `at` is set. Past the end none is.
    pub fn get(&self, at: usize) -> bool {
        at < self.len && self.words[at / 64] >> (at % 64) & 1 == 1
    }

    /// Sets bit `at`, and says whether that was news. Past the end nothing happens.
    pub fn set(&mut self, at: usize) -> bool {
        let is_news = at < self.len && !self.get(at);
        if is_news {
            self.words[at / 64] |= 1 << (at % 64);
            self.count += 1;
        }
        is_news
    }

    /// Clears bit `at`, and says whether it was set.
    pub fn clear(&mut self, at: usize) -> bool {
        let was_set = self.get(at);
        if was_set {
            self.words[at / 64] &= !(1 << (at % 64));
            self.count -= 1;
        }
        was_set
    }

    /// Makes it at least `len` bits long. The new ones are not set.
    pub fn grow(&mut self, len: usize) {
        self.len = self.len.max(len);
        self.words.resize(self.len.div_ceil(64), 0);
    }

    /// The set bits, upwards.
    pub fn present(&self) -> impl Iterator<Item = usize> + '_ {
        ones(self.words.iter().copied())
    }

    /// The bits that are not set, upwards.
    pub fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        let len = self.len;
        ones(self.words.iter().map(|word| !word)).take_while(move |at| *at < len)
    }

    /// Eight bits a byte, the first in the lowest place.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.len.div_ceil(8));
        bytes
    }

    /// Reads what [`Bitmap::to_bytes`] of a bitmap of `len` bits wrote, and nothing else.
    pub fn from_bytes(len: usize, bytes: &[u8]) -> Result<Self, BitmapError> {
        if bytes.len() != len.div_ceil(8) {
            return Err(BitmapError::Length { want: len, found: bytes.len() });
        }
        let word = |part: &[u8]| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        };
        let words: Vec<u64> = bytes.chunks(8).map(word).collect();
        if !len.is_multiple_of(64) && words.last().is_some_and(|last| last >> (len % 64) != 0) {
            return Err(BitmapError::Tail);
        }
        let count = words.iter().map(|word| word.count_ones() as usize).sum();
        Ok(Self { words, len, count })
    }
}

fn ones(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(at, mut word)| {
        std::iter::from_fn(move || {
            let bit = word.trailing_zeros();
            word &= word.wrapping_sub(1);
            (bit < 64).then_some(at * 64 + bit as usize)
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_list_of_bits(bits in prop::collection::vec(any::<bool>(), 0..300)) {
            let mut bitmap = Bitmap::new(bits.len());
            for (at, _) in bits.iter().enumerate().filter(|(_, bit)| **bit) {
                prop_assert!(bitmap.set(at));
                prop_assert!(!bitmap.set(at));
            }
            let places = |want| bits.iter().enumerate().filter(move |(_, bit)| **bit == want).map(|(at, _)| at);
            prop_assert!(bitmap.present().eq(places(true)));
            prop_assert!(bitmap.missing().eq(places(false)));
            prop_assert_eq!(bitmap.count(), places(true).count());
            prop_assert_eq!(bitmap.is_full(), bits.iter().all(|bit| *bit));
            let bytes = bitmap.to_bytes();
            prop_assert_eq!(bytes.len(), bits.len().div_ceil(8));
            prop_assert_eq!(Bitmap::from_bytes(bits.len(), &bytes), Ok(bitmap.clone()));
            for at in bitmap.clone().present() {
                prop_assert!(bitmap.clear(at));
            }
            prop_assert_eq!(bitmap, Bitmap::new(bits.len()));
        }
    }

    #[test]
    fn bytes_of_another_length_are_refused() {
        for len in [0, 1, 8, 9, 63, 64, 65, 200] {
            let bytes = Bitmap::full(len).to_bytes();
            let longer = [&bytes[..], &[0]].concat();
            let found = longer.len();
            assert_eq!(
                Bitmap::from_bytes(len, &longer),
                Err(BitmapError::Length { want: len, found })
            );
            if let Some((_, shorter)) = bytes.split_last() {
                assert!(Bitmap::from_bytes(len, shorter).is_err());
            }
        }
    }

    #[test]
    fn bits_past_the_end_are_refused_or_ignored() {
        assert_eq!(Bitmap::from_bytes(3, &[0b1000]), Err(BitmapError::Tail));
        assert!(Bitmap::from_bytes(64, &[255; 8]).is_ok_and(|bits| bits == Bitmap::full(64)));
        let mut bits = Bitmap::full(3);
        assert!(bits.is_full() && bits.count() == 3 && !bits.get(3) && !bits.set(3));
        assert_eq!(bits.missing().count(), 0);
    }
}
