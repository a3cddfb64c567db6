//! What is asked of an attempt, from any node to any other of its job's party: what it printed, a further command in it,
//! files in and out, a connection to one of its ports.
//!
//! ```text
//!  mesh exec ──► HTTP, upgraded ──► the node that is asked ──► Header::Task ──► the node that has the attempt
//!               ◄──────────────── the same frames all the way ───────────────►
//! ```
//!
//! | read | for |
//! |---|---|
//! | [`frame`] | what goes over such a stream |
//! | `logs` | what a task printed: a stream with frames of its own |
//! | `past` | which attempts at a task a node knows |
//! | `shell` | a further command |
//! | `files`, [`tree`] | files: the conversation, and how they are read and written beneath one directory |
//! | `ports` | a connection |
//!
//! Whether the one who asks may is for the service to say, before any of this. Each side holds a few frames at most, and
//! a stream ends with whichever side ends first: a command whose reader is gone is ended, too.

mod files;
pub mod frame;
mod logs;
mod past;
mod ports;
mod shell;
pub mod tree;

use std::io;
use std::pin::pin;
use std::time::Duration;

use mesh_consensus::id::NodeId;
use mesh_transport::codec::encode;
use mesh_transport::net::{Lane, Stream};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, duplex, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use self::frame::{Frame, MAX_BYTES};
use super::fetch::Rooms;
use super::{Key, Work};
use crate::executor::Attempt;
use crate::executor::session::Size;
use crate::handle::Handle;
use crate::wire::Header;

pub(crate) use logs::logs;
pub use logs::{From, Kind, Line};
pub(crate) use past::past;
pub use ports::PortRef;

/// How long it is waited for an attempt that is about to run.
const STARTING: Duration = Duration::from_secs(5);
/// How often it is looked whether it does.
const LOOK: Duration = Duration::from_millis(20);
/// How long the node that has the attempt may take to begin. Less than a client waits for its answer.
const READY: Duration = Duration::from_secs(25);
/// Whoever listens hears something at least this often: so one that is gone is found out.
const BEAT: Duration = Duration::from_secs(15);
/// Frames that wait for their reader; then whoever makes them waits.
const QUEUE_FRAMES: usize = 8;

/// What is asked of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// What it printed.
    Logs {
        /// From where on.
        from: From,
        /// Whether to go on until it is over.
        follow: bool,
    },
    /// A further command in it.
    Exec {
        /// The program and its arguments.
        argv: Vec<String>,
        /// On a terminal with a window of this size.
        tty: Option<Size>,
    },
    /// A file or directory of its own.
    Get {
        /// Where, beneath the directory in which the task works.
        path: String,
    },
    /// A file or directory, to it.
    Put {
        /// Where to. Into it, if it is a directory.
        path: String,
        /// What it is called if it goes into a directory.
        name: String,
    },
    /// A connection to one of its ports.
    Port {
        /// Which one.
        port: PortRef,
    },
    /// Which attempts at the task left anything there; the fence does not count. A `Vec` of [`super::about::About`] comes back. Nodes of
    /// an earlier version do not answer.
    Past,
}

impl Ask {
    /// How urgent its bytes are.
    fn lane(&self) -> Lane {
        match self {
            Ask::Get { .. } | Ask::Put { .. } => Lane::Bulk,
            Ask::Logs { .. } | Ask::Exec { .. } | Ask::Port { .. } | Ask::Past => Lane::Control,
        }
    }

    /// What is wrong with it, whatever the attempt may be.
    fn flaw(&self) -> Option<&'static str> {
        let Ask::Exec { argv, .. } = self else { return None };
        if argv.first().is_none_or(String::is_empty) {
            return Some("there is nothing to run");
        }
        argv.iter().any(|word| word.contains('\0')).then_some("its command has a NUL in it")
    }
}

impl Work {
    /// Answers another node.
    pub(crate) async fn serve(&self, key: Key, ask: Ask, stream: Stream) {
        match ask {
            Ask::Logs { from, follow } => return self.serve_logs(key, from, follow, stream).await,
            Ask::Past => return self.serve_past(key, stream).await,
            _ => {}
        }
        let (mut to, mut from) = stream.split();
        self.converse(key, ask, &mut from, &mut to).await;
        // It may still be on its way.
        to.stopped().await;
    }

    /// Does what is asked for as long as both sides are there. Dropped, it ends.
    async fn converse<R, W>(&self, key: Key, ask: Ask, from: &mut R, to: &mut W)
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        let (frames, queue) = mpsc::channel(QUEUE_FRAMES);
        let works = async move {
            if let Err(why) = self.act(key, ask, from, &frames).await {
                // Whoever asked may have gone.
                let _ = frames.send(Frame::Failed(why)).await;
            }
        };
        let mut sends = pin!(send_all(queue, to, BEAT));
        tokio::select! {
            // Nobody takes it.
            _ = &mut sends => return,
            () = works => {}
        }
        let _ = sends.await;
    }

    /// An error is for the one who asks, in words.
    async fn act<R: AsyncRead + Unpin + Send>(
        &self,
        key: Key,
        ask: Ask,
        from: &mut R,
        frames: &mpsc::Sender<Frame>,
    ) -> Result<(), String> {
        if let Some(flaw) = ask.flaw() {
            return Err(flaw.into());
        }
        let attempt = self.running(key).await?;
        let home = Rooms::of(&self.dir(key)).home;
        match ask {
            Ask::Logs { .. } | Ask::Past => Err("this is told in another way".into()),
            Ask::Exec { argv, tty } => shell::run(&attempt, &argv, tty, from, frames).await,
            Ask::Get { path } => files::get(home, path, frames).await,
            Ask::Put { path, name } => files::put(home, path, name, from, frames).await,
            Ask::Port { port } => ports::run(&attempt, &port, from, frames).await,
        }
    }

    /// The attempt, if it runs, or does in a moment.
    async fn running(&self, key: Key) -> Result<Attempt, String> {
        let begun = Instant::now();
        loop {
            let here = self.get(key);
            match here.as_ref().and_then(|here| here.attempt.clone()) {
                Some(attempt) if attempt.ended().is_none() => return Ok(attempt),
                Some(_) => return Err("the task has ended".into()),
                None if begun.elapsed() < STARTING => sleep(LOOK).await,
                None => {
                    return Err(match here {
                        Some(here) if here.note.is_empty() => "the task does not run yet".into(),
                        Some(here) => format!("the task does not run yet: {}", here.note),
                        None => "the task is not on this node".into(),
                    });
                }
            }
        }
    }
}

/// Sends what is put into the queue, and a beat after so long without anything, until nobody puts in more.
async fn send_all<W: AsyncWrite + Unpin>(
    mut queue: mpsc::Receiver<Frame>,
    to: &mut W,
    beat: Duration,
) -> io::Result<()> {
    loop {
        let next = match timeout(beat, queue.recv()).await {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(_) => Frame::Beat,
        };
        frame::write(to, &next).await?;
        if queue.is_empty() {
            to.flush().await?;
        }
    }
    to.shutdown().await
}

/// A stream to an attempt, ready for its first frame.
pub(crate) struct Opened {
    /// What comes from there.
    pub(crate) from: Box<dyn AsyncRead + Send + Unpin>,
    /// What goes there.
    pub(crate) to: Box<dyn AsyncWrite + Send + Unpin>,
}

/// Why there is no stream to an attempt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    /// Its node cannot be asked, or does not answer us.
    #[error("{0}")]
    Unanswered(String),
    /// Its node says no.
    #[error("{0}")]
    Refused(String),
}

/// Opens a stream to an attempt, wherever it is, and waits until it is ready.
pub(crate) async fn open(
    handle: &Handle,
    node: NodeId,
    key: Key,
    ask: Ask,
) -> Result<Opened, OpenError> {
    let unanswered = |why: &dyn std::fmt::Display| OpenError::Unanswered(why.to_string());
    let mut opened = if node == handle.whoami.node {
        let (ours, theirs) = duplex(MAX_BYTES);
        let work = handle.work.clone();
        tokio::spawn(async move {
            let (mut from, mut to) = split(theirs);
            work.converse(key, ask, &mut from, &mut to).await;
        });
        let (from, to) = split(ours);
        Opened { from: Box::new(from), to: Box::new(to) }
    } else {
        let lane = ask.lane();
        let Key { job, task, fence } = key;
        let header = Header::Task { job, task, fence, ask };
        let header = encode(&header).map_err(|error| unanswered(&error))?;
        let stream = handle.net.open(node, header, lane).await;
        let (to, from) = stream.map_err(|error| unanswered(&error))?.split();
        Opened { from: Box::new(from), to: Box::new(to) }
    };
    let first = async {
        loop {
            match frame::read(&mut opened.from).await {
                Ok(Some(Frame::Beat)) => {}
                other => break other,
            }
        }
    };
    match timeout(READY, first).await {
        Ok(Ok(Some(Frame::Ready))) => Ok(opened),
        Ok(Ok(Some(Frame::Failed(why)))) => Err(OpenError::Refused(why)),
        Ok(Ok(Some(_))) => Err(unanswered(&"it answered another question")),
        // For all but the job's own party there is nothing.
        Ok(Ok(None) | Err(_)) => Err(unanswered(&"it has no such task for us")),
        Err(_) => Err(unanswered(&format!("it said nothing for {} s", READY.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mesh_consensus::id::JobId;

    use super::*;

    #[tokio::test]
    async fn what_cannot_be_done_is_refused_in_words() {
        let work = Work::new(Path::new("unused"));
        let key = Key { job: JobId([1; 16]), task: 0, fence: 7 };
        for (argv, flaw) in [(vec![], "nothing to run"), (vec!["a\0".to_owned()], "NUL")] {
            let (ours, theirs) = duplex(MAX_BYTES);
            let serve = async {
                let (mut from, mut to) = split(theirs);
                work.converse(key, Ask::Exec { argv, tty: None }, &mut from, &mut to).await;
            };
            let (mut from, _to) = split(ours);
            let (told, ()) = tokio::join!(frame::read(&mut from), serve);
            let Ok(Some(Frame::Failed(why))) = told else { panic!("{told:?}") };
            assert!(why.contains(flaw), "{why}");
            assert!(matches!(frame::read(&mut from).await, Ok(None)));
        }
    }

    #[tokio::test]
    async fn a_silent_stream_has_a_beat() {
        let (frames, queue) = mpsc::channel(1);
        let (mut to, mut from) = duplex(MAX_BYTES);
        let beat = Duration::from_millis(20);
        let sends = tokio::spawn(async move { send_all(queue, &mut to, beat).await });
        assert!(matches!(frame::read(&mut from).await, Ok(Some(Frame::Beat))));
        frames.send(Frame::End).await.unwrap();
        while !matches!(frame::read(&mut from).await, Ok(Some(Frame::End))) {}
        drop(frames);
        while !matches!(frame::read(&mut from).await, Ok(None)) {}
        sends.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_ends_what_is_done_for_it() {
        let (frames, queue) = mpsc::channel(1);
        let (mut to, from) = duplex(16);
        drop(from);
        frames.send(Frame::Bytes(vec![0; 64].into())).await.unwrap();
        assert!(send_all(queue, &mut to, BEAT).await.is_err());
    }
}
