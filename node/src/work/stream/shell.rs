//! A further command in an attempt that runs.
//!
//! ```text
//!   frames ──► feed ──► its input, the size of its window
//!   frames ◄── follow ◄── what it writes, and last how it ended
//! ```

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::frame::{self, Frame, pieces};
use crate::data::chain;
use crate::executor::Attempt;
use crate::executor::log::Stream;
use crate::executor::session::{Control, Session, Size};

/// Once a command has ended, what it wrote comes within this time of one another. What others write who have its output
/// from it is not waited for.
const LINGER: Duration = Duration::from_millis(500);
/// What ends the input of a terminal: Ctrl-D.
const END_OF_INPUT: &[u8] = &[4];

/// Runs a command for as long as somebody listens and the attempt goes on.
pub(super) async fn run<R: AsyncRead + Unpin>(
    attempt: &Attempt,
    argv: &[String],
    tty: Option<Size>,
    from: &mut R,
    frames: &mpsc::Sender<Frame>,
) -> Result<(), String> {
    let session = attempt.exec(argv, tty).await.map_err(|error| chain(&error))?;
    let Session { input, output, control } = session;
    let (sizes, resized) = watch::channel(tty);
    frames.send(Frame::Ready).await.map_err(|_| gone())?;
    let over = async {
        attempt.wait().await;
        // With it ends the command, and that is a better word.
        sleep(2 * LINGER).await;
    };
    let code = tokio::select! {
        code = follow(output, control, resized, frames) => code?,
        () = feed(from, input, tty.is_some(), &sizes) => return Err(gone()),
        () = over => return Err("the task has ended".into()),
    };
    frames.send(Frame::Exit(code)).await.map_err(|_| gone())
}

/// Passes on what the command writes, and answers with how it ended.
async fn follow(
    mut output: mpsc::Receiver<(Stream, Bytes)>,
    mut control: Control,
    mut resized: watch::Receiver<Option<Size>>,
    frames: &mpsc::Sender<Frame>,
) -> Result<u8, String> {
    let mut has_ended = false;
    let mut quiet_at = Instant::now();
    loop {
        tokio::select! {
            piece = output.recv() => {
                let Some((stream, bytes)) = piece else { break };
                for piece in pieces(bytes) {
                    let frame = match stream {
                        Stream::Err => Frame::Errors(piece),
                        Stream::Out | Stream::Note => Frame::Bytes(piece),
                    };
                    frames.send(frame).await.map_err(|_| gone())?;
                }
                // Counted from when it was taken: a slow reader loses nothing.
                quiet_at = Instant::now() + LINGER;
            }
            Ok(()) = resized.changed() => {
                let size = *resized.borrow_and_update();
                if let Some(size) = size {
                    // A window of the wrong size is no reason to end a command.
                    let _ = control.resize(size).await;
                }
            }
            () = control.ended(), if !has_ended => {
                has_ended = true;
                quiet_at = Instant::now() + LINGER;
            }
            () = sleep_until(quiet_at), if has_ended => break,
        }
    }
    control.wait().await.map_err(|error| format!("how it ended is not known: {error}"))
}

/// Passes on what comes for the command. Returns when nobody is there any more.
async fn feed<R: AsyncRead + Unpin>(
    from: &mut R,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    is_terminal: bool,
    sizes: &watch::Sender<Option<Size>>,
) {
    let mut input = Some(input);
    // One that breaks off, and one that sends what does not belong here, is gone.
    while let Ok(Some(frame)) = frame::read(from).await {
        match frame {
            Frame::Bytes(bytes) => {
                let Some(to) = &mut input else { continue };
                if pass(to, &bytes).await.is_err() {
                    // It reads no more, and goes on.
                    input = None;
                }
            }
            Frame::End => {
                let Some(to) = &mut input else { continue };
                if is_terminal {
                    let _ = pass(to, END_OF_INPUT).await;
                } else {
                    let _ = to.shutdown().await;
                    input = None;
                }
            }
            Frame::Window(size) => {
                sizes.send_replace(Some(size));
            }
            Frame::Beat => {}
            _ => return,
        }
    }
}

async fn pass(to: &mut Pin<Box<dyn AsyncWrite + Send>>, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

fn gone() -> String {
    "nobody listens any more".into()
}
