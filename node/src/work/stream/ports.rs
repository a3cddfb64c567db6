//! A connection to a port of an attempt: what one side sends is what the other receives, until both have ended.

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use super::frame::{self, Frame};
use crate::executor::{Attempt, Port};

/// How much is read at a time.
const BLOCK: usize = 32 << 10;

/// A port that a job has named in its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortRef {
    /// By its name.
    Name(String),
    /// By its number, as the task sees it.
    Number(u16),
}

impl PortRef {
    /// `8888` is a number, `http` a name.
    pub fn parse(text: &str) -> Self {
        text.parse::<u16>().map_or_else(|_| Self::Name(text.to_owned()), Self::Number)
    }

    fn is(&self, port: &Port) -> bool {
        match self {
            Self::Name(name) => port.name == *name,
            Self::Number(number) => port.inside == *number,
        }
    }
}

impl std::fmt::Display for PortRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// Connects, and passes bytes on for as long as both sides are there.
pub(super) async fn run<R: AsyncRead + Unpin>(
    attempt: &Attempt,
    wanted: &PortRef,
    from: &mut R,
    frames: &mpsc::Sender<Frame>,
) -> Result<(), String> {
    let port = find(attempt.ports(), wanted)?;
    let connection = connect(port.outside).await.map_err(|error| {
        format!("nothing answers on port {} of the task ({}): {error}", port.inside, port.name)
    })?;
    let _ = connection.set_nodelay(true);
    let (incoming, outgoing) = connection.into_split();
    frames.send(Frame::Ready).await.map_err(|_| gone())?;
    let (ended, has_ended) = oneshot::channel();
    let both = async {
        down(incoming, frames).await?;
        // Closed if the task takes no more: then it has ended, too.
        let _ = has_ended.await;
        Ok::<(), String>(())
    };
    tokio::select! {
        done = both => done,
        () = up(from, outgoing, ended) => Err(gone()),
    }
}

/// Only what the job has named: a task must not become a way to everything else on its host.
fn find<'a>(ports: &'a [Port], wanted: &PortRef) -> Result<&'a Port, String> {
    let found = ports.iter().find(|port| wanted.is(port));
    found.ok_or_else(|| {
        let named: Vec<String> =
            ports.iter().map(|port| format!("{} ({})", port.name, port.inside)).collect();
        match named.is_empty() {
            true => "the job has no [ports] in its file".to_owned(),
            false => format!("the job has no port {wanted}; it has {}", named.join(", ")),
        }
    })
}

/// A task may listen on one of the two alone.
async fn connect(port: u16) -> std::io::Result<TcpStream> {
    match TcpStream::connect(("127.0.0.1", port)).await {
        Ok(connection) => Ok(connection),
        Err(error) => TcpStream::connect(("::1", port)).await.map_err(|_| error),
    }
}

/// From the task. Its end is told.
async fn down(mut from: OwnedReadHalf, frames: &mpsc::Sender<Frame>) -> Result<(), String> {
    let mut block = vec![0; BLOCK];
    loop {
        // A connection that breaks has ended, as far as anybody can tell.
        let read = from.read(&mut block).await.unwrap_or(0);
        let frame = match read {
            0 => Frame::End,
            read => Frame::Bytes(block[..read].to_vec().into()),
        };
        frames.send(frame).await.map_err(|_| gone())?;
        if read == 0 {
            return Ok(());
        }
    }
}

/// To the task. Returns when nobody is there any more.
async fn up<R: AsyncRead + Unpin>(from: &mut R, to: OwnedWriteHalf, ended: oneshot::Sender<()>) {
    // Whoever waits for the end hears that this is dropped.
    let mut open = Some((to, ended));
    while let Ok(Some(frame)) = frame::read(from).await {
        match frame {
            Frame::Bytes(bytes) => {
                let Some((to, _)) = &mut open else { continue };
                if to.write_all(&bytes).await.is_err() {
                    open = None;
                }
            }
            Frame::End => {
                if let Some((mut to, _)) = open.take() {
                    let _ = to.shutdown().await;
                }
            }
            Frame::Beat => {}
            _ => return,
        }
    }
}

fn gone() -> String {
    "nobody is there any more".into()
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::net::TcpListener;

    use super::*;

    fn port(name: &str, inside: u16, outside: u16) -> Port {
        Port { name: name.into(), inside, outside }
    }

    #[test]
    fn only_what_the_job_has_named_is_found() {
        let ports = [port("http", 80, 40_001), port("tensorboard", 6006, 40_002)];
        let at = |wanted: &str| find(&ports, &PortRef::parse(wanted)).map(|port| port.outside);
        assert_eq!(at("http"), Ok(40_001));
        assert_eq!(at("6006"), Ok(40_002));
        for wanted in ["22", "40001", "ssh", "", "65536", "-1"] {
            assert!(at(wanted).is_err_and(|why| why.contains("http (80)")), "{wanted}");
        }
        assert!(find(&[], &PortRef::Number(80)).is_err_and(|why| why.contains("[ports]")));
    }

    #[tokio::test]
    async fn both_directions_end_on_their_own() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().port();
        // Answers when it has everything.
        let task = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            connection.read_to_end(&mut asked).await.unwrap();
            asked.reverse();
            connection.write_all(&asked).await.unwrap();
        });
        let (incoming, outgoing) = connect(at).await.unwrap().into_split();
        let (mut ours, mut theirs) = duplex(1 << 10);
        for frame in [Frame::Bytes(b"abc".to_vec().into()), Frame::End] {
            frame::write(&mut ours, &frame).await.unwrap();
        }
        let (frames, mut told) = mpsc::channel(4);
        let (ended, has_ended) = oneshot::channel();
        tokio::select! {
            () = up(&mut theirs, outgoing, ended) => panic!("somebody is there"),
            done = down(incoming, &frames) => done.unwrap(),
        }
        assert!(has_ended.await.is_err());
        assert_eq!(told.recv().await, Some(Frame::Bytes(b"cba".to_vec().into())));
        assert_eq!(told.recv().await, Some(Frame::End));
        task.await.unwrap();
    }
}
