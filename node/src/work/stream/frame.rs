//! What goes over a stream to an attempt, in either direction: small frames, each with a bound.
//!
//! ```text
//! [u32 length, little endian][kind][what it holds]
//! ```
//!
//! The same frames go from a client to the node that it asks, and from there to the node that has the attempt. Which of
//! them is expected when is for those who read; one that is longer or another than can be is refused.

use std::io;

use bytes::{Buf as _, BufMut as _, Bytes};
use mesh_transport::frame::{FrameError, read_frame};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::executor::session::Size;

/// The name under which HTTP clients ask for it.
pub const PROTOCOL: &str = "mesh-stream/1";
/// The most bytes that one frame carries.
pub const MAX_BYTES: usize = 64 << 10;
/// The longest path of an entry, in bytes.
pub const MAX_PATH: usize = 4096;
/// The longest word on what went wrong, in bytes.
const MAX_TEXT: usize = 4096;
/// The longest frame: its kind, and what it holds.
const MAX_FRAME: usize = 1 + MAX_BYTES;

/// What a frame is: its first byte.
mod kind {
    pub(super) const READY: u8 = 0;
    pub(super) const BEAT: u8 = 1;
    pub(super) const BYTES: u8 = 2;
    pub(super) const ERRORS: u8 = 3;
    pub(super) const END: u8 = 4;
    pub(super) const WINDOW: u8 = 5;
    pub(super) const EXIT: u8 = 6;
    pub(super) const ENTRY: u8 = 7;
    pub(super) const LEFT_OUT: u8 = 8;
    pub(super) const FAILED: u8 = 9;
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// What was asked for is there: the first answer, unless it is [`Frame::Failed`].
    Ready,
    /// Nothing: whoever sends it finds out whether somebody is still there.
    Beat,
    /// What a command reads, or writes to its standard output; what a connection carries; a part of a file.
    Bytes(Bytes),
    /// What a command writes to its standard error.
    Errors(Bytes),
    /// No more bytes come: of the input, of the connection, or of the files. From one who takes files: they are there.
    End,
    /// The window of the terminal has this size now.
    Window(Size),
    /// The command has ended with this code. Nothing follows.
    Exit(u8),
    /// A file or a directory begins.
    Entry(Entry),
    /// So many links and other things were left out that are neither files nor directories.
    LeftOut(u64),
    /// It went wrong, in words. Nothing follows.
    Failed(String),
}

/// A file or a directory. What lies in a directory follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is, from the first entry on; empty for that one.
    pub path: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Its permissions.
    pub mode: u32,
    /// The length of a file: so many bytes follow. Of a directory, what all files in it have together, as far as is
    /// known: for those who wait.
    pub bytes: u64,
}

/// Why a stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It broke, or a frame is too long.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// There is no such frame.
    #[error("a frame that means nothing")]
    Malformed,
}

impl Frame {
    /// What is sent: the length, and then the frame.
    ///
    /// Bytes beyond [`MAX_BYTES`] would be refused by whoever reads them: see [`pieces`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        match self {
            Frame::Ready => out.put_u8(kind::READY),
            Frame::Beat => out.put_u8(kind::BEAT),
            Frame::Bytes(bytes) => {
                out.put_u8(kind::BYTES);
                out.put_slice(bytes);
            }
            Frame::Errors(bytes) => {
                out.put_u8(kind::ERRORS);
                out.put_slice(bytes);
            }
            Frame::End => out.put_u8(kind::END),
            Frame::Window(size) => {
                out.put_u8(kind::WINDOW);
                out.put_u16_le(size.rows);
                out.put_u16_le(size.columns);
            }
            Frame::Exit(code) => {
                out.put_u8(kind::EXIT);
                out.put_u8(*code);
            }
            Frame::Entry(Entry { path, is_dir, mode, bytes }) => {
                out.put_u8(kind::ENTRY);
                out.put_u8(u8::from(*is_dir));
                out.put_u32_le(*mode);
                out.put_u64_le(*bytes);
                out.put_slice(path.as_bytes());
            }
            Frame::LeftOut(count) => {
                out.put_u8(kind::LEFT_OUT);
                out.put_u64_le(*count);
            }
            Frame::Failed(text) => {
                out.put_u8(kind::FAILED);
                out.put_slice(cut(text).as_bytes());
            }
        }
        let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
        out[..4].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// The frame of these bytes, without their length before them.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, StreamError> {
        let mut rest = Bytes::from(bytes);
        if rest.is_empty() || rest.len() > MAX_FRAME {
            return Err(StreamError::Malformed);
        }
        let frame = match (rest.get_u8(), rest.len()) {
            (kind::READY, 0) => Frame::Ready,
            (kind::BEAT, 0) => Frame::Beat,
            (kind::BYTES, _) => Frame::Bytes(rest),
            (kind::ERRORS, _) => Frame::Errors(rest),
            (kind::END, 0) => Frame::End,
            (kind::WINDOW, 4) => {
                Frame::Window(Size { rows: rest.get_u16_le(), columns: rest.get_u16_le() })
            }
            (kind::EXIT, 1) => Frame::Exit(rest.get_u8()),
            (kind::ENTRY, 13..) => {
                let is_dir = match rest.get_u8() {
                    0 => false,
                    1 => true,
                    _ => return Err(StreamError::Malformed),
                };
                let (mode, bytes) = (rest.get_u32_le(), rest.get_u64_le());
                if rest.len() > MAX_PATH {
                    return Err(StreamError::Malformed);
                }
                let path = text(&rest)?;
                Frame::Entry(Entry { path, is_dir, mode, bytes })
            }
            (kind::LEFT_OUT, 8) => Frame::LeftOut(rest.get_u64_le()),
            (kind::FAILED, ..=MAX_TEXT) => Frame::Failed(text(&rest)?),
            _ => return Err(StreamError::Malformed),
        };
        Ok(frame)
    }
}

fn text(bytes: &[u8]) -> Result<String, StreamError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| StreamError::Malformed)
}

/// As much of a text as goes into a frame.
fn cut(text: &str) -> &str {
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_TEXT).last().unwrap_or(0);
    &text[..end]
}

/// Bytes in pieces that fit a frame.
pub fn pieces(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        (!bytes.is_empty()).then(|| bytes.split_to(bytes.len().min(MAX_BYTES)))
    })
}

/// The next frame; `None` once the other side has finished. Whoever stops waiting for it loses what has come of it.
pub async fn read(
    from: &mut (impl AsyncRead + Unpin + ?Sized),
) -> Result<Option<Frame>, StreamError> {
    match read_frame(from, MAX_FRAME).await? {
        Some(bytes) => Frame::decode(bytes).map(Some),
        None => Ok(None),
    }
}

/// Writes a frame. Whoever stops waiting for it must not write another.
pub async fn write(to: &mut (impl AsyncWrite + Unpin + ?Sized), frame: &Frame) -> io::Result<()> {
    to.write_all(&frame.encode()).await
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use proptest::prelude::*;
    use tokio_util::io::StreamReader;

    use super::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..600).prop_map(Bytes::from);
        let entry = (".{0,40}", any::<bool>(), any::<u32>(), any::<u64>());
        prop_oneof![
            Just(Frame::Ready),
            Just(Frame::Beat),
            bytes().prop_map(Frame::Bytes),
            bytes().prop_map(Frame::Errors),
            Just(Frame::End),
            any::<(u16, u16)>().prop_map(|(rows, columns)| Frame::Window(Size { rows, columns })),
            any::<u8>().prop_map(Frame::Exit),
            entry.prop_map(|(path, is_dir, mode, bytes)| {
                Frame::Entry(Entry { path, is_dir, mode, bytes })
            }),
            any::<u64>().prop_map(Frame::LeftOut),
            ".{0,40}".prop_map(Frame::Failed),
        ]
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    /// Bytes that come in pieces of these lengths, over and over.
    fn in_pieces(bytes: Vec<u8>, lengths: Vec<usize>) -> impl AsyncRead + Unpin {
        let mut bytes = Bytes::from(bytes);
        let mut parts = Vec::new();
        let mut lengths = lengths.into_iter().cycle();
        while !bytes.is_empty() {
            let length = lengths.next().unwrap_or(1).clamp(1, bytes.len());
            parts.push(Ok::<_, io::Error>(bytes.split_to(length)));
        }
        StreamReader::new(futures::stream::iter(parts).boxed())
    }

    async fn read_all(mut from: impl AsyncRead + Unpin) -> Result<Vec<Frame>, StreamError> {
        let mut frames = Vec::new();
        while let Some(frame) = read(&mut from).await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn however_the_bytes_are_split_the_frames_are_read_back(
            frames in proptest::collection::vec(any_frame(), 0..12),
            lengths in proptest::collection::vec(1usize..40, 1..8),
        ) {
            let wire: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            let back = run(read_all(in_pieces(wire, lengths))).unwrap();
            prop_assert_eq!(back, frames);
        }

        #[test]
        fn any_bytes_are_frames_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Ok(frame) = Frame::decode(bytes.clone()) {
                prop_assert_eq!(frame.encode().split_off(4), bytes.clone());
            }
            // As they would come from the wire: an error or an end, and never more than there was.
            let _ = run(read_all(&bytes[..]));
        }
    }

    #[test]
    fn a_hostile_frame_is_refused_by_its_length_alone() {
        for length in [MAX_FRAME as u32 + 1, u32::MAX] {
            let wire = length.to_le_bytes();
            let refused = run(read(&mut &wire[..]));
            let is_too_long =
                matches!(refused, Err(StreamError::Frame(FrameError::TooLong { .. })));
            assert!(is_too_long, "{refused:?}");
        }
    }

    #[test]
    fn a_frame_that_holds_more_or_less_than_it_can_is_refused() {
        let long = vec![b'a'; MAX_PATH.max(MAX_TEXT) + 1];
        let path = [&[kind::ENTRY, 1][..], &[0; 12][..], &long[..]].concat();
        let text = [&[kind::FAILED][..], &long[..]].concat();
        let bad: [&[u8]; 12] = [
            &[],
            &[kind::READY, 0],
            &[kind::END, 1],
            &[kind::WINDOW, 1, 2, 3],
            &[kind::EXIT],
            &[kind::EXIT, 1, 2],
            &[kind::ENTRY, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[kind::ENTRY, 0, 0],
            &[kind::FAILED, 0xff],
            &[200],
            &path,
            &text,
        ];
        for bytes in bad {
            let short = &bytes[..bytes.len().min(20)];
            assert!(Frame::decode(bytes.to_vec()).is_err(), "{short:?}");
        }
    }

    #[test]
    fn much_is_cut_into_pieces_and_a_long_word_is_cut_off() {
        let much = Bytes::from(vec![7; 2 * MAX_BYTES + 1]);
        let lengths: Vec<usize> = pieces(much).map(|piece| piece.len()).collect();
        assert_eq!(lengths, [MAX_BYTES, MAX_BYTES, 1]);
        assert_eq!(pieces(Bytes::new()).count(), 0);
        let long = Frame::Failed("é".repeat(MAX_TEXT)).encode();
        let Ok(Frame::Failed(text)) = Frame::decode(long[4..].to_vec()) else { panic!() };
        assert_eq!(text.len(), MAX_TEXT);
    }
}
