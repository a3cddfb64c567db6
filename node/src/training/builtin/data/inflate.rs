//! Unpacks gzip (RFC 1952, RFC 1951): MNIST is handed around like that. What comes out is checked against its CRC, and never
//! more than the caller allows.

use super::Flaw;

/// The longest code of a table, in bits.
const LONGEST: usize = 15;
/// What the lengths of codes are sent in.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// For each symbol from 257 on: the shortest repetition, and how many further bits say how much longer it is.
const LENGTHS: [(u16, u8); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];
/// The most distances that there are codes for.
const DISTANCES: usize = 30;

/// What is in one file of gzip: `most` bytes at the most.
pub fn gunzip(bytes: &[u8], most: usize) -> Result<Vec<u8>, Flaw> {
    let body = header(bytes).ok_or(Flaw::Begin("a file of gzip"))?;
    let mut bits = Bits { bytes: body, at: 0, held: 0, count: 0 };
    let mut out = Out { bytes: Vec::new(), most };
    let mut tables = Tables { symbols: Table::new(), distances: Table::new() };
    loop {
        let last = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => stored(&mut bits, &mut out)?,
            1 => {
                let mut lengths = [8; 288];
                lengths[144..256].fill(9);
                lengths[256..280].fill(7);
                tables.symbols.build(&lengths)?;
                tables.distances.build(&[5; DISTANCES])?;
                coded(&mut bits, &tables, &mut out)?;
            }
            2 => {
                dynamic(&mut bits, &mut tables)?;
                coded(&mut bits, &tables, &mut out)?;
            }
            _ => return Err(Flaw::Packed("a block is of no known kind")),
        }
        if last {
            break;
        }
    }
    bits.align();
    let crc = bits.take(32)?;
    let length = bits.take(32)?;
    if !bits.is_done() {
        return Err(Flaw::Packed("something follows its end"));
    }
    if length != out.bytes.len() as u32 || crc != crc32(&out.bytes) {
        return Err(Flaw::Packed("its check sum is wrong"));
    }
    Ok(out.bytes)
}

/// What follows the header.
fn header(bytes: &[u8]) -> Option<&[u8]> {
    let ([0x1f, 0x8b, 8, flags, ..], mut rest) = bytes.split_first_chunk::<10>()? else {
        return None;
    };
    let text = |rest: &'_ [u8]| rest.iter().position(|byte| *byte == 0).map(|end| end + 1);
    if flags & 0b100 != 0 {
        let (length, after) = rest.split_first_chunk()?;
        rest = after.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    // A name, and a remark.
    for flag in [0b1000, 0b1_0000] {
        if flags & flag != 0 {
            rest = &rest[text(rest)?..];
        }
    }
    if flags & 0b10 != 0 { rest.get(2..) } else { Some(rest) }
}

/// Bits, the lowest of a byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    count: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.count <= 56 && self.at < self.bytes.len() {
            self.held |= u64::from(self.bytes[self.at]) << self.count;
            self.at += 1;
            self.count += 8;
        }
    }

    /// The next `count` bits: 32 at the most.
    fn take(&mut self, count: u32) -> Result<u32, Flaw> {
        if self.count < count {
            self.fill();
        }
        if self.count < count {
            return Err(Flaw::Packed("it ends too early"));
        }
        let value = self.held & ((1 << count) - 1);
        self.held >>= count;
        self.count -= count;
        Ok(value as u32)
    }

    /// Goes on with the next whole byte.
    fn align(&mut self) {
        let odd = self.count % 8;
        self.held >>= odd;
        self.count -= odd;
    }

    fn is_done(&self) -> bool {
        self.count == 0 && self.at == self.bytes.len()
    }
}

/// What comes out.
struct Out {
    bytes: Vec<u8>,
    most: usize,
}

impl Out {
    fn room(&self, more: usize) -> Result<(), Flaw> {
        if self.most - self.bytes.len() < more { Err(Flaw::Large) } else { Ok(()) }
    }

    fn repeat(&mut self, distance: usize, length: usize) -> Result<(), Flaw> {
        self.room(length)?;
        let from = self.bytes.len().checked_sub(distance);
        let from = from.ok_or(Flaw::Packed("it repeats what was not there"))?;
        if distance >= length {
            self.bytes.extend_from_within(from..from + length);
        } else {
            for n in from..from + length {
                self.bytes.push(self.bytes[n]);
            }
        }
        Ok(())
    }
}

/// The codes of a block.
struct Tables {
    symbols: Table,
    distances: Table,
}

/// A code for every symbol, found by the bits that come next.
struct Table {
    /// For all `width` bits that may come next: the symbol, and in the lowest four bits how long its code is; 0 for no code.
    entries: Vec<u16>,
    width: u32,
}

impl Table {
    fn new() -> Self {
        Self { entries: Vec::new(), width: 0 }
    }

    /// Shorter codes come first, and of the same length those of lower symbols.
    fn build(&mut self, lengths: &[u8]) -> Result<(), Flaw> {
        let mut counts = [0u32; LONGEST + 1];
        for length in lengths.iter().filter(|length| **length > 0) {
            counts[usize::from(*length)] += 1;
        }
        let longest = counts.iter().rposition(|count| *count > 0).unwrap_or(1);
        let (mut next, mut code) = ([0u32; LONGEST + 2], 0u32);
        for length in 1..=longest {
            next[length] = code;
            code += counts[length];
            if code > 1 << length {
                return Err(Flaw::Packed("there are more codes than their lengths allow"));
            }
            code <<= 1;
        }
        self.width = longest as u32;
        self.entries.clear();
        self.entries.resize(1 << longest, 0);
        for (symbol, length) in lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
            let length = u32::from(*length);
            let code = next[length as usize];
            next[length as usize] += 1;
            // The first bit of a code comes first, and the first bit that comes is the lowest.
            let first = code.reverse_bits() >> (32 - length);
            let entry = (symbol as u16) << 4 | length as u16;
            for at in (first as usize..1 << longest).step_by(1 << length) {
                self.entries[at] = entry;
            }
        }
        Ok(())
    }

    fn take(&self, bits: &mut Bits<'_>) -> Result<usize, Flaw> {
        if bits.count < self.width {
            bits.fill();
        }
        let entry = self.entries[(bits.held & ((1 << self.width) - 1)) as usize];
        let length = u32::from(entry & 15);
        if length == 0 || length > bits.count {
            return Err(Flaw::Packed("there is no such code"));
        }
        bits.held >>= length;
        bits.count -= length;
        Ok(usize::from(entry >> 4))
    }
}

fn stored(bits: &mut Bits<'_>, out: &mut Out) -> Result<(), Flaw> {
    bits.align();
    let (length, check) = (bits.take(16)?, bits.take(16)?);
    if length != !check & 0xffff {
        return Err(Flaw::Packed("a block does not know its length"));
    }
    out.room(length as usize)?;
    for _ in 0..length {
        out.bytes.push(bits.take(8)? as u8);
    }
    Ok(())
}

fn dynamic(bits: &mut Bits<'_>, tables: &mut Tables) -> Result<(), Flaw> {
    let symbols = bits.take(5)? as usize + 257;
    let distances = bits.take(5)? as usize + 1;
    let sent = bits.take(4)? as usize + 4;
    if symbols > 286 || distances > DISTANCES {
        return Err(Flaw::Packed("there are too many codes"));
    }
    let mut lengths = [0; 19];
    for at in &ORDER[..sent] {
        lengths[*at] = bits.take(3)? as u8;
    }
    tables.symbols.build(&lengths)?;
    let mut lengths = [0; 286 + DISTANCES];
    let mut at = 0;
    while at < symbols + distances {
        let (length, times) = match tables.symbols.take(bits)? {
            length @ 0..16 => (length as u8, 1),
            16 => {
                let before = at.checked_sub(1).map(|at| lengths[at]);
                let before = before.ok_or(Flaw::Packed("it repeats what was not there"))?;
                (before, 3 + bits.take(2)? as usize)
            }
            17 => (0, 3 + bits.take(3)? as usize),
            _ => (0, 11 + bits.take(7)? as usize),
        };
        if at + times > symbols + distances {
            return Err(Flaw::Packed("there are too many codes"));
        }
        lengths[at..at + times].fill(length);
        at += times;
    }
    tables.symbols.build(&lengths[..symbols])?;
    tables.distances.build(&lengths[symbols..symbols + distances])
}

fn coded(bits: &mut Bits<'_>, tables: &Tables, out: &mut Out) -> Result<(), Flaw> {
    loop {
        let symbol = tables.symbols.take(bits)?;
        if let Ok(byte) = u8::try_from(symbol) {
            out.room(1)?;
            out.bytes.push(byte);
            continue;
        }
        // 256 is the end.
        let Some(which) = symbol.checked_sub(257) else { return Ok(()) };
        let (least, more) = LENGTHS.get(which).ok_or(Flaw::Packed("there is no such code"))?;
        let length = usize::from(*least) + bits.take(u32::from(*more))? as usize;
        let distance = tables.distances.take(bits)?;
        if distance >= DISTANCES {
            return Err(Flaw::Packed("there is no such code"));
        }
        // Two for every further bit: 1, 2, 3, 4, 5–6, 7–8, 9–12, 13–16 …
        let more = (distance / 2).saturating_sub(1);
        let least = if distance < 2 { distance } else { (2 + distance % 2) << more };
        out.repeat(1 + least + bits.take(more as u32)? as usize, length)?;
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let (mut table, mut n) = ([0; 256], 0);
        while n < 256 {
            let (mut value, mut bit) = (n as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 { 0xedb8_8320 ^ (value >> 1) } else { value >> 1 };
                bit += 1;
            }
            table[n] = value;
            n += 1;
        }
        table
    };
    !bytes
        .iter()
        .fold(!0, |crc, byte| TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        "it is not the slowest who waits, it is everybody else. ".repeat(3)
    }

    fn varied() -> Vec<u8> {
        (0..900u32).map(|n| ((n * n) >> 3) as u8 & 0x1f).collect()
    }

    // What zlib makes of them: with a name in the header; as they are; with codes of their own.
    const FIXED: &[u8] = &[
        0x1f, 0x8b, 0x08, 0x08, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff, 0x61, 0x2e, 0x74, 0x78, 0x74,
        0x00, 0xcb, 0x2c, 0x51, 0xc8, 0x2c, 0x56, 0xc8, 0xcb, 0x2f, 0x51, 0x28, 0xc9, 0x48, 0x55,
        0x28, 0xce, 0xc9, 0x2f, 0x4f, 0x2d, 0x2e, 0x51, 0x28, 0xcf, 0xc8, 0x57, 0x28, 0x4f, 0xcc,
        0x2c, 0x29, 0xd6, 0x51, 0xc8, 0x04, 0x2b, 0x48, 0x2d, 0x4b, 0x2d, 0xaa, 0x4c, 0xca, 0x4f,
        0xa9, 0x54, 0x48, 0xcd, 0x29, 0x4e, 0xd5, 0x83, 0x8a, 0xd2, 0x4b, 0x1b, 0x00, 0x66, 0xe4,
        0xbb, 0x00, 0xa5, 0x00, 0x00, 0x00,
    ];
    const STORED: &[u8] = &[
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x03, 0x01, 0x08, 0x00, 0xf7, 0xff,
        0x61, 0x73, 0x20, 0x69, 0x74, 0x20, 0x69, 0x73, 0xb3, 0x24, 0x4e, 0x96, 0x08, 0x00, 0x00,
        0x00,
    ];
    const DYNAMIC: &[u8] = &[
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xed, 0xcd, 0x81, 0x01, 0x44,
        0x40, 0x0c, 0x05, 0xd1, 0x88, 0xe0, 0x23, 0x58, 0x11, 0x2c, 0x16, 0xfd, 0x77, 0x79, 0xa7,
        0x0e, 0x66, 0x0a, 0x78, 0x44, 0x94, 0x71, 0x2e, 0x25, 0x1a, 0x1d, 0x6c, 0x8e, 0x89, 0x04,
        0x9d, 0xad, 0x89, 0xd1, 0xfb, 0xc1, 0x75, 0x88, 0x84, 0xb0, 0x71, 0xeb, 0x17, 0x2c, 0x55,
        0x76, 0xc2, 0x49, 0x63, 0x61, 0xb7, 0xee, 0x58, 0x64, 0xe2, 0x91, 0xc2, 0xff, 0x91, 0x27,
        0x59, 0xb0, 0xeb, 0x6d, 0x45, 0x54, 0x72, 0x9c, 0x56, 0x25, 0xc3, 0xe5, 0x2d, 0x6f, 0x01,
        0x14, 0x43, 0xcd, 0x87, 0xf7, 0xe0, 0xb4, 0x5a, 0x07, 0xa1, 0x14, 0x67, 0x1b, 0xb4, 0x41,
        0x29, 0x39, 0x67, 0xf4, 0xf4, 0xf9, 0x9f, 0xff, 0x6a, 0xff, 0x07, 0xff, 0x5e, 0x03, 0xf3,
        0x84, 0x03, 0x00, 0x00,
    ];

    #[test]
    fn a_file_of_gzip_is_what_it_was() {
        assert_eq!(gunzip(DYNAMIC, 1 << 20).unwrap(), varied());
        assert_eq!(gunzip(FIXED, 1 << 20).unwrap(), text().as_bytes());
        assert_eq!(gunzip(STORED, 1 << 20).unwrap(), b"as it is");
    }

    #[test]
    fn no_more_comes_out_than_is_allowed() {
        assert!(gunzip(FIXED, text().len()).is_ok());
        assert_eq!(gunzip(FIXED, text().len() - 1), Err(Flaw::Large));
        assert_eq!(gunzip(STORED, 7), Err(Flaw::Large));
        assert_eq!(gunzip(DYNAMIC, 10), Err(Flaw::Large));
    }

    #[test]
    fn a_file_with_a_bit_turned_or_an_end_cut_off_is_refused_and_nothing_worse() {
        for whole in [DYNAMIC, FIXED, STORED] {
            let right = gunzip(whole, 1 << 20).unwrap();
            for length in 0..whole.len() {
                assert!(gunzip(&whole[..length], 1 << 20).is_err(), "cut at {length}");
            }
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                // In the header there are a date and a name, which nobody asks for.
                let found = gunzip(&bytes, 1 << 20);
                assert!(found.is_err() || found.as_ref() == Ok(&right), "bit {bit}");
            }
            let longer = [whole, &[0]].concat();
            assert!(gunzip(&longer, 1 << 20).is_err());
        }
    }

    #[test]
    fn noise_is_refused_and_nothing_worse() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend((0..random.usize(..80)).map(|_| random.u8(..)));
            assert!(gunzip(&bytes, 1 << 16).is_err());
        }
    }
}
