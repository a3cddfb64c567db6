//! Files of a task: out of its directory, and into it. What is read and written how is for [`super::tree`].

use std::path::PathBuf;

use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::QUEUE_FRAMES;
use super::frame::{self, Frame};
use super::tree::{Root, Sink, Source, TreeError};
use crate::data::chain;

/// Sends a file or directory of the task.
pub(super) async fn get(
    home: PathBuf,
    path: String,
    frames: &mpsc::Sender<Frame>,
) -> Result<(), String> {
    let frames = frames.clone();
    let read = spawn_blocking(move || {
        let source = Source::beneath(&Root::of_task(&home)?, &path)?;
        frames.blocking_send(Frame::Ready).map_err(|_| TreeError::Gone)?;
        source.send(&frames)
    });
    match read.await {
        Ok(read) => read.map_err(|error| chain(&error)),
        Err(_) => Err(stopping()),
    }
}

/// Takes a file or directory for the task, and says when it is there.
pub(super) async fn put<R: AsyncRead + Unpin>(
    home: PathBuf,
    path: String,
    name: String,
    from: &mut R,
    frames: &mpsc::Sender<Frame>,
) -> Result<(), String> {
    let (incoming, queue) = mpsc::channel(QUEUE_FRAMES);
    let (ready, is_ready) = oneshot::channel();
    let written = spawn_blocking(move || {
        let sink = Sink::beneath(&Root::of_task(&home)?, &path, &name)?;
        // Whoever waits for it may have gone: then nothing comes.
        let _ = ready.send(());
        sink.receive(queue, |_| {})
    });
    if is_ready.await.is_ok() {
        let _ = frames.send(Frame::Ready).await;
        // Until the last, or until one side does not want to go on.
        while let Ok(Some(frame)) = frame::read(from).await {
            let is_last = frame == Frame::End;
            if incoming.send(frame).await.is_err() || is_last {
                break;
            }
        }
    }
    drop(incoming);
    match written.await {
        Ok(Ok(_)) => frames.send(Frame::End).await.map_err(|_| stopping()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(stopping()),
    }
}

fn stopping() -> String {
    "the node is stopping".into()
}
