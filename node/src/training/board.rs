//! TensorBoard's event files, of scalars: bytes out, no files.
//!
//! ```text
//!   file    = record of the version ‖ record of an event ‖ …
//!   record  = u64 length ‖ u32 mask(crc32c(length)) ‖ event ‖ u32 mask(crc32c(event))        little-endian
//!   event   = 1: seconds, 2: step, 3: version or 5: { 1: { 1: tag, 2: value } … }            protobuf
//! ```
//!
//! A record stands alone, so a file grows by appending to it.

use crate::state::name::Name;

/// What the first record of a file says.
const VERSION: &[u8] = b"brain.Event:2";

/// CRC-32C, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;
static TABLE: [u32; 256] = table();

/// A whole event file, for curves that are known already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// Starts with the record of the version, and ends with a whole record.
    bytes: Vec<u8>,
}

impl Board {
    /// One without events.
    pub fn new(at_seconds: f64) -> Self {
        Self { bytes: header_record(at_seconds) }
    }

    /// Adds what was measured at a step.
    pub fn push(&mut self, at_seconds: f64, step: i64, values: &[(String, f32)]) {
        self.bytes.extend(scalar_record(at_seconds, step, values));
    }

    /// What belongs into the file.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// What a file is called: TensorBoard looks for the middle, and reads what sorts first as the older. `of` tells files of the
/// same second apart.
pub fn file_name(at_seconds: u64, of: &Name) -> String {
    format!("events.out.tfevents.{at_seconds:010}.{of}")
}

/// The record that a file starts with. Seconds are since 1970.
pub fn header_record(at_seconds: f64) -> Vec<u8> {
    let mut event = at(at_seconds);
    put_bytes(&mut event, 3, VERSION);
    record(&event)
}

/// What was measured at a step.
pub fn scalar_record(at_seconds: f64, step: i64, values: &[(String, f32)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values {
        let mut scalar = Vec::with_capacity(tag.len() + 16);
        put_bytes(&mut scalar, 1, tag.as_bytes());
        scalar.push((2 << 3) | 5);
        scalar.extend(value.to_le_bytes());
        put_bytes(&mut summary, 1, &scalar);
    }
    let mut event = at(at_seconds);
    event.push(2 << 3);
    put_varint(&mut event, step.cast_unsigned());
    put_bytes(&mut event, 5, &summary);
    record(&event)
}

/// The beginning of an event.
fn at(seconds: f64) -> Vec<u8> {
    let mut event = vec![(1 << 3) | 1];
    event.extend(seconds.to_le_bytes());
    event
}

fn put_bytes(into: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    into.push((field << 3) | 2);
    put_varint(into, bytes.len() as u64);
    into.extend(bytes);
}

/// Seven bits a byte, the lowest first; all but the last have the top bit.
fn put_varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + 16);
    record.extend(length);
    record.extend(masked(crc32c(&length)).to_le_bytes());
    record.extend(event);
    record.extend(masked(crc32c(event)).to_le_bytes());
    record
}

/// So that a record which holds records does not fit its own sum by accident.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ *byte)];
    !bytes.iter().fold(u32::MAX, step)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut crc = at as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        data_encoding::HEXLOWER.encode(bytes)
    }

    #[test]
    fn the_check_value_of_the_sum() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn the_first_record_is_the_one_that_tensorboard_reads() {
        let want =
            "1800000000000000a37f4b220900000000000000001a0d627261696e2e4576656e743a32eedf28a3";
        assert_eq!(hex(&header_record(0.0)), want);
    }

    #[test]
    fn a_scalar_is_the_one_that_tensorboard_reads() {
        let want =
            "1a00000000000000129bd82d09000000000000000010012a0d0a0b0a046c6f7373150000003fba9ed7aa";
        assert_eq!(hex(&scalar_record(0.0, 1, &[("loss".into(), 0.5)])), want);
    }

    #[test]
    fn two_scalars_share_an_event_and_a_large_step_takes_more_bytes() {
        let values = [("loss".to_owned(), 0.5), ("accuracy".to_owned(), 1.0)];
        let record = scalar_record(1.0, 300, &values);
        let event = &record[12..record.len() - 4];
        let want = "09000000000000f03f10ac022a1e0a0b0a046c6f7373150000003f0a0f0a086163637572616379150000803f";
        assert_eq!(hex(event), want);
    }

    #[test]
    fn a_step_below_zero_is_kept() {
        let record = scalar_record(0.0, -1, &[]);
        assert_eq!(hex(&record[21..32]), "10ffffffffffffffffff01");
    }

    #[test]
    fn a_board_is_its_records_one_after_the_other() {
        let mut board = Board::new(1.0);
        board.push(2.0, 1, &[("loss".into(), 0.5)]);
        board.push(3.0, 2, &[("loss".into(), 0.25)]);
        let bytes = board.into_bytes();
        let (mut rest, mut records) = (bytes.as_slice(), 0);
        while !rest.is_empty() {
            let (length, after) = rest.split_at(8);
            let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            let event = &after[4..4 + length];
            assert_eq!(after[..4], masked(crc32c(&rest[..8])).to_le_bytes());
            assert_eq!(after[4 + length..8 + length], masked(crc32c(event)).to_le_bytes());
            rest = &after[8 + length..];
            records += 1;
        }
        assert_eq!(records, 3);
        assert!(bytes.starts_with(&header_record(1.0)));
    }

    #[test]
    fn a_file_is_found_by_its_name() {
        let name: Name = "mnist".parse().unwrap();
        assert_eq!(file_name(1_700_000_000, &name), "events.out.tfevents.1700000000.mnist");
    }
}
