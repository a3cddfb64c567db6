//! What a task printed: frames with lines, for as long as the attempt goes on if that is wanted.

use std::path::PathBuf;
use std::time::Duration;

use mesh_consensus::id::NodeId;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{Lane, Stream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::super::{Key, Work};
use super::Ask;
use crate::executor::log::{self, Follower, Reader};
use crate::handle::Handle;
use crate::wire::Header;

/// How long it is waited for an attempt that was just given to a node.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it is there.
const LOOK: Duration = Duration::from_millis(5);
/// How often it is looked whether an attempt that says nothing is over.
const OVER: Duration = Duration::from_millis(50);
/// The largest frame of lines.
const MAX_FRAME: usize = 1 << 20;

/// From where on a log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum From {
    /// All of it.
    #[default]
    Start,
    /// What is not older than this, in milliseconds since 1970.
    Since(u64),
    /// So many lines from the end.
    Last(u64),
}

/// A line that a task printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When, in nanoseconds since 1970, by its node's clock.
    pub at: u64,
    /// `out`, `err`, or `mesh` for mesh's own word.
    pub kind: Kind,
    /// Without the newline.
    pub text: Vec<u8>,
    /// Whether there was a newline; if not, it goes on.
    pub is_whole: bool,
}

/// Where a line was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    /// By mesh.
    Mesh,
}

impl std::convert::From<log::Line> for Line {
    fn from(line: log::Line) -> Self {
        let kind = match line.stream {
            log::Stream::Out => Kind::Out,
            log::Stream::Err => Kind::Err,
            log::Stream::Note => Kind::Mesh,
        };
        Self { at: line.at, kind, text: line.text, is_whole: line.is_whole }
    }
}

impl Work {
    /// Gives what an attempt printed, batch by batch, until `sender` is closed or there is no more.
    async fn read(&self, key: Key, from: From, follow: bool, sender: &mpsc::Sender<Vec<Line>>) {
        let dir = self.dir(key).join("log");
        if follow {
            let begun = Instant::now();
            while !dir.is_dir() && !sender.is_closed() && begun.elapsed() < PATIENCE {
                if self.has_left(key) {
                    return;
                }
                sleep(LOOK).await;
            }
        }
        let Ok(reader) = open(dir, from).await else { return };
        let mut follower = Follower::new(reader);
        loop {
            // Looked at first: what was written before it ended is read after this.
            let is_over = self.get(key).is_none();
            let mut lines = follower.rest().unwrap_or_default();
            if lines.is_empty() {
                if is_over || !follow {
                    return;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    read = follower.read() => match read {
                        Ok(read) => lines = read,
                        Err(_) => return,
                    },
                    () = sleep(OVER) => continue,
                }
            }
            let lines = lines.into_iter().map(Line::from).collect();
            if sender.send(lines).await.is_err() {
                return;
            }
        }
    }

    /// Whether an attempt was here and is over: one without a log never ran, and prints nothing more.
    fn has_left(&self, key: Key) -> bool {
        // Looked at in this order: it has a directory after it has come, and before it goes.
        self.dir(key).is_dir() && self.get(key).is_none() && !self.dir(key).join("log").is_dir()
    }

    /// Answers another node.
    pub(super) async fn serve_logs(&self, key: Key, from: From, follow: bool, mut stream: Stream) {
        let (sender, mut lines) = mpsc::channel(4);
        let reads = async move { self.read(key, from, follow, &sender).await };
        let sends = async {
            while let Some(batch) = lines.recv().await {
                let Ok(bytes) = encode(&batch) else { break };
                if stream.send_frame(&bytes).await.is_err() {
                    break;
                }
            }
            // Whoever reads the log hears that nobody listens any more.
            drop(lines);
        };
        tokio::join!(reads, sends);
        stream.finish();
        let _ = tokio::time::timeout(PATIENCE, stream.stopped()).await;
    }
}

async fn open(dir: PathBuf, from: From) -> std::io::Result<Reader> {
    let open = move || match from {
        From::Start => Ok(Reader::new(dir, log::Position::default())),
        From::Since(ms) => Reader::since(dir, ms),
        From::Last(lines) => Reader::last(dir, lines),
    };
    tokio::task::spawn_blocking(open)
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}

/// Reads what an attempt printed, wherever it is. Fails if its node does not answer or has nothing for us.
pub(crate) async fn logs(
    handle: &Handle,
    node: NodeId,
    key: Key,
    from: From,
    follow: bool,
    sender: mpsc::Sender<Vec<Line>>,
) -> Result<(), String> {
    if node == handle.whoami.node {
        handle.work.read(key, from, follow, &sender).await;
        return Ok(());
    }
    let ask = Ask::Logs { from, follow };
    let Key { job, task, fence } = key;
    let header = encode(&Header::Task { job, task, fence, ask }).map_err(|e| e.to_string())?;
    let mut stream =
        handle.net.open(node, header, Lane::Control).await.map_err(|error| error.to_string())?;
    loop {
        tokio::select! {
            frame = stream.recv_frame(MAX_FRAME) => match frame {
                Ok(Some(bytes)) => {
                    let Ok(lines) = decode::<Vec<Line>>(&bytes) else {
                        return Err("it answered another question".into());
                    };
                    if sender.send(lines).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            },
            () = sender.closed() => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::JobId;

    use super::*;

    #[tokio::test]
    async fn an_attempt_that_never_ran_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let work = Work::new(temp.path());
        let key = Key { job: JobId([1; 16]), task: 0, fence: 7 };
        assert!(!work.has_left(key), "it may still come");
        std::fs::create_dir_all(work.dir(key).join("task")).unwrap();
        assert!(work.has_left(key));
        let (sender, mut lines) = mpsc::channel(1);
        let reads = work.read(key, From::Start, true, &sender);
        tokio::time::timeout(PATIENCE / 2, reads).await.expect("nothing more can come");
        drop(sender);
        assert_eq!(lines.recv().await, None);
        std::fs::create_dir_all(work.dir(key).join("log")).unwrap();
        assert!(!work.has_left(key), "what it printed is there");
    }
}
