//! The bytes of a file, in pages that images share.

use std::io;
use std::ops::Range;
use std::sync::Arc;

const PAGE: usize = 4096;
/// What real disks write whole or not at all.
const SECTOR: u64 = 512;

/// The bytes of a file at one moment. A clone shares them until one of the two is written to.
#[derive(Clone, Default)]
pub(super) struct Image {
    pub(super) len: u64,
    /// As many as `len` needs. `None` is a page of zeros; bytes beyond `len` are zeros.
    pub(super) pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

/// What a sync has yet to cover.
#[derive(Clone)]
pub(super) enum Op {
    Write { offset: u64, data: Vec<u8> },
    SetLen(u64),
}

impl Image {
    pub(super) fn read(&self, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !out.is_empty() {
            let start = offset as usize % PAGE;
            let (now, later) = out.split_at_mut(out.len().min(PAGE - start));
            match &self.pages[page(offset)] {
                Some(bytes) => now.copy_from_slice(&bytes[start..start + now.len()]),
                None => now.fill(0),
            }
            offset += now.len() as u64;
            out = later;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        self.set_len(self.len.max(offset + data.len() as u64));
        while !data.is_empty() {
            let start = offset as usize % PAGE;
            let (now, later) = data.split_at(data.len().min(PAGE - start));
            let slot = &mut self.pages[page(offset)];
            if let Ok(whole) = <&[u8; PAGE]>::try_from(now) {
                *slot = Some(Arc::new(*whole));
            } else {
                let bytes = slot.get_or_insert_with(|| Arc::new([0; PAGE]));
                Arc::make_mut(bytes)[start..start + now.len()].copy_from_slice(now);
            }
            offset += now.len() as u64;
            data = later;
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.pages.resize((len as usize).div_ceil(PAGE), None);
        let tail = len as usize % PAGE;
        if len < self.len
            && tail > 0
            && let Some(Some(last)) = self.pages.last_mut()
        {
            Arc::make_mut(last)[tail..].fill(0);
        }
        self.len = len;
    }

    /// Carries out an operation that a crash cut short, or did not.
    pub(super) fn apply_torn(&mut self, op: Op, rng: &mut fastrand::Rng) {
        match op {
            Op::SetLen(len) => self.set_len(len),
            Op::Write { offset, data } => {
                let end = offset + data.len() as u64;
                // The boundaries inside the write: a write within one sector cannot tear.
                let (first, last) = (offset / SECTOR + 1, end.saturating_sub(1) / SECTOR);
                if first > last || rng.u8(..4) > 0 {
                    return self.write(offset, &data);
                }
                let cut = (rng.u64(first..=last) * SECTOR - offset) as usize;
                if rng.bool() {
                    self.write(offset, &data[..cut]);
                } else {
                    self.write(offset + cut as u64, &data[cut..]);
                }
            }
        }
    }

    /// `false` if there is no such byte.
    pub(super) fn flip(&mut self, byte: u64, bit: u8) -> bool {
        if byte >= self.len {
            return false;
        }
        let bytes = self.pages[page(byte)].get_or_insert_with(|| Arc::new([0; PAGE]));
        Arc::make_mut(bytes)[byte as usize % PAGE] ^= 1 << (bit % 8);
        true
    }
}

/// The page that holds this byte.
pub(super) fn page(offset: u64) -> usize {
    offset as usize / PAGE
}

pub(super) fn pages_of(offset: u64, len: usize) -> Range<usize> {
    page(offset)..(offset as usize + len).div_ceil(PAGE)
}
