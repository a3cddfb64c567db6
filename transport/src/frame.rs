//! Frames: `[u32 length, little endian][bytes]`.
//!
//! The length is checked before anything is allocated, and the buffer grows as bytes come: a peer
//! that announces a gigabyte and sends none costs a few kibibytes. Leaves to others what the bytes
//! mean (`codec.rs`) and how long to wait for them (callers put a time limit around a read).

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// What a usual frame may hold: a batch of commands, and a little around it.
pub const MAX_FRAME: usize = (1 << 20) + (4 << 10);

/// How much a buffer grows at a time, and so what an announced length costs at most.
const STEP: usize = 4 << 10;

/// A frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than the reader takes or the writer may send.
    #[error("a frame of {length} bytes where at most {max} are taken")]
    TooLong {
        /// As announced.
        length: usize,
        /// As agreed.
        max: usize,
    },
    /// It ended in the middle.
    #[error("the stream ended inside a frame")]
    CutShort,
    /// Nothing came for too long.
    #[error("the stream stalled inside a frame")]
    Stalled,
    /// The stream failed.
    #[error("the stream failed")]
    Io(#[from] io::Error),
}

/// Reads one frame of at most `max` bytes. `None` if the stream ended before it.
pub async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin + ?Sized),
    max: usize,
) -> Result<Option<Vec<u8>>, FrameError> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match reader.read(&mut length[have..]).await? {
            0 if have == 0 => return Ok(None),
            0 => return Err(FrameError::CutShort),
            n => have += n,
        }
    }
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > max {
        return Err(FrameError::TooLong { length, max });
    }
    read_body(reader, length, None).await.map(Some)
}

/// Reads exactly `length` bytes into a buffer that grows as they come. If given, `stall` is how long
/// nothing may come.
pub(crate) async fn read_body(
    reader: &mut (impl AsyncRead + Unpin + ?Sized),
    length: usize,
    stall: Option<Duration>,
) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::with_capacity(length.min(STEP));
    let mut rest = reader.take(length as u64);
    while bytes.len() < length {
        if bytes.len() == bytes.capacity() {
            // Twice what has really come, and never more than was announced.
            bytes.reserve_exact(bytes.len().min(length - bytes.len()));
        }
        let read = rest.read_buf(&mut bytes);
        let n = match stall {
            None => read.await?,
            Some(stall) => timeout(stall, read).await.map_err(|_| FrameError::Stalled)??,
        };
        if n == 0 {
            return Err(FrameError::CutShort);
        }
    }
    Ok(bytes)
}

/// Writes one frame. The caller flushes, if its stream needs that.
pub async fn write_frame(
    writer: &mut (impl AsyncWrite + Unpin + ?Sized),
    bytes: &[u8],
) -> Result<(), FrameError> {
    let header = header(bytes.len())?;
    writer.write_all(&header).await?;
    writer.write_all(bytes).await?;
    Ok(())
}

/// The four bytes before a body of this length.
pub(crate) fn header(length: usize) -> Result<[u8; 4], FrameError> {
    match u32::try_from(length) {
        Ok(length) => Ok(length.to_le_bytes()),
        Err(_) => Err(FrameError::TooLong { length, max: u32::MAX as usize }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_frame_reads_back_what_was_written() {
        let mut wire = Vec::new();
        write_frame(&mut wire, b"one").await.unwrap();
        write_frame(&mut wire, b"").await.unwrap();
        let mut reader = &wire[..];
        assert_eq!(read_frame(&mut reader, 3).await.unwrap(), Some(b"one".to_vec()));
        assert_eq!(read_frame(&mut reader, 3).await.unwrap(), Some(Vec::new()));
        assert_eq!(read_frame(&mut reader, 3).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_frame_longer_than_agreed_is_refused_by_its_length_alone() {
        let mut reader = &u32::MAX.to_le_bytes()[..];
        let error = read_frame(&mut reader, MAX_FRAME).await.unwrap_err();
        assert!(matches!(error, FrameError::TooLong { max: MAX_FRAME, .. }), "{error}");
    }

    #[tokio::test]
    async fn a_frame_that_ends_early_is_told_from_the_end_of_the_stream() {
        for cut in [&[1][..], &[4, 0, 0, 0, b'a']] {
            let mut reader = cut;
            let error = read_frame(&mut reader, 10).await.unwrap_err();
            assert!(matches!(error, FrameError::CutShort), "{error}");
        }
    }
}
