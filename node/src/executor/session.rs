//! A further command in an attempt that runs: its input, its output, its terminal, its end.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWrite;
use tokio::process::Child;
use tokio::sync::mpsc;

use super::docker::Exec;
use super::log::Stream;
use super::process;

/// The size of a terminal's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// A command that runs. Dropping the control ends it where it is a process; in a container it is left to itself.
pub struct Session {
    /// What it reads. Dropped, it comes to an end; a terminal is told by Ctrl-D instead.
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
    /// What it writes, until its end. On a terminal all of it is [`Stream::Out`]. Whoever does not read it makes it wait.
    pub output: mpsc::Receiver<(Stream, Bytes)>,
    /// Its window and its end.
    pub control: Control,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("control", &self.control).finish_non_exhaustive()
    }
}

/// The window and the end of a command.
#[derive(Debug)]
pub struct Control(Kind);

#[derive(Debug)]
enum Kind {
    Process { child: Child, terminal: Option<OwnedFd> },
    Container(Exec),
}

impl Control {
    pub(super) fn process(child: Child, terminal: Option<OwnedFd>) -> Self {
        Self(Kind::Process { child, terminal })
    }

    pub(super) fn container(exec: Exec) -> Self {
        Self(Kind::Container(exec))
    }

    /// Tells it that its window has changed. Means nothing without a terminal.
    pub async fn resize(&self, size: Size) -> io::Result<()> {
        match &self.0 {
            Kind::Process { terminal: Some(terminal), .. } => process::resize(terminal, size),
            Kind::Process { terminal: None, .. } => Ok(()),
            Kind::Container(exec) => exec.resize(size).await.map_err(io::Error::other),
        }
    }

    /// Returns once it has ended, where the system tells that; never, where it would have to be asked again and again. May
    /// be given up and waited for anew.
    pub async fn ended(&mut self) {
        match &mut self.0 {
            Kind::Process { child, .. } => drop(child.wait().await),
            Kind::Container(_) => std::future::pending().await,
        }
    }

    /// Waits for its end: its exit code, or 128 and the signal that ended it, as shells count.
    pub async fn wait(&mut self) -> io::Result<u8> {
        match &mut self.0 {
            Kind::Process { child, .. } => {
                use std::os::unix::process::ExitStatusExt;
                let status = child.wait().await?;
                let code = status.code().or(status.signal().map(|signal| 128 + signal));
                Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
            }
            Kind::Container(exec) => loop {
                if let Some(code) = exec.code().await.map_err(io::Error::other)? {
                    return Ok(code);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            },
        }
    }
}
