//! How a connection begins: both sides say who they are, and judge.
//!
//! ```text
//!  who dials                          who accepts
//!     │  bi stream: hello ───────────────►│  welcome? if not: close
//!     │◄──────────────── hello            │
//!  welcome? if not: close                 │
//!     │       from here on both may open streams      │
//! ```
//!
//! Nothing of a peer is processed before it is welcome: until then it has this one stream.

use std::time::Duration;

use mesh_consensus::id::NodeId;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tracing::error;

use crate::codec;
use crate::frame::FrameError;
use crate::live::{Greeting, Limits, Live};
use crate::net::{Service, Welcome};
use crate::path::{Close, Lane, Path};
use crate::quic::{Failure, failure};

/// The versions of this protocol that we speak, the best first: N, and N−1 once there is one.
const VERSIONS: &[u16] = &[1];

/// What a service may say in its hello.
pub(crate) const MAX_HELLO: usize = 16 << 10;

#[derive(Serialize, Deserialize)]
struct Hello {
    versions: Vec<u16>,
    /// Drawn when the process started: tells a restarted peer from one that dials twice.
    incarnation: u64,
    service: Vec<u8>,
}

/// What one side of a hello needs to know.
pub(crate) struct Greeter<'a> {
    pub(crate) service: &'a dyn Service,
    pub(crate) incarnation: u64,
    pub(crate) patience: Duration,
    pub(crate) limits: &'a Limits,
}

impl Greeter<'_> {
    /// Says hello first.
    pub(crate) async fn dialled(&self, peer: NodeId, path: Path) -> Result<Live, Failure> {
        let talk = async {
            let (mut send, mut receive) = path.open_bi(Lane::Control).await?;
            send.send_frame(&self.hello()).await?;
            send.finish();
            receive.recv_frame(MAX_HELLO + 1024).await?.ok_or(FrameError::CutShort)
        };
        let theirs = self.heard(&path, timeout(self.patience, talk).await)?;
        let live = self.judge(peer, path, &theirs, true)?;
        live.allow_streams();
        Ok(live)
    }

    /// Waits for a hello, and answers it if its speaker is welcome.
    pub(crate) async fn accepted(&self, peer: NodeId, path: Path) -> Result<Live, Failure> {
        path.allow(0, 1);
        let listen = async {
            let (send, mut receive) = path.accept_bi().await?;
            let hello = receive.recv_frame(MAX_HELLO + 1024).await?.ok_or(FrameError::CutShort)?;
            Ok((send, hello))
        };
        let (mut send, theirs) = self.heard(&path, timeout(self.patience, listen).await)?;
        let live = self.judge(peer, path, &theirs, false)?;
        let answer = async { send.send_frame(&self.hello()).await };
        self.heard(&live.path, timeout(self.patience, answer).await)?;
        send.finish();
        live.allow_streams();
        Ok(live)
    }

    fn hello(&self) -> Vec<u8> {
        let mut service = self.service.hello();
        if service.len() > MAX_HELLO {
            error!(bytes = service.len(), "our hello is too long and is left empty");
            service.clear();
        }
        let hello = Hello { versions: VERSIONS.to_vec(), incarnation: self.incarnation, service };
        codec::encode(&hello).expect("a hello always encodes")
    }

    fn heard<T>(
        &self,
        path: &Path,
        result: Result<Result<T, FrameError>, tokio::time::error::Elapsed>,
    ) -> Result<T, Failure> {
        match result {
            Ok(Ok(heard)) => Ok(heard),
            Ok(Err(error)) => {
                let failure = match path.why_closed() {
                    Some(why) => failure(&why, self.patience),
                    None => Failure::Other(error.to_string()),
                };
                path.close(Close::Protocol, "no proper hello");
                Err(failure)
            }
            Err(_) => {
                path.close(Close::Protocol, "no hello in time");
                Err(Failure::TimedOut(self.patience))
            }
        }
    }

    fn judge(
        &self,
        peer: NodeId,
        path: Path,
        theirs: &[u8],
        dialled: bool,
    ) -> Result<Live, Failure> {
        let Ok(Hello { versions, incarnation, service }) = codec::decode::<Hello>(theirs) else {
            path.close(Close::Protocol, "no proper hello");
            return Err(Failure::Other("it sent no proper hello".into()));
        };
        let Some(version) = common(VERSIONS, &versions) else {
            path.close(Close::Version, "no version of the protocol in common");
            return Err(Failure::Version { theirs: versions.into_iter().max().unwrap_or(0) });
        };
        if self.service.welcome(peer, &service) == Welcome::No {
            path.close(Close::Refused, NOT_A_MEMBER);
            return Err(Failure::Unwelcome);
        }
        let greeting = Greeting { version, incarnation };
        Ok(Live::new(peer, path, dialled, greeting, self.limits))
    }
}

/// The best version that both speak. Both sides come to the same one, whoever asks.
fn common(ours: &[u16], theirs: &[u16]) -> Option<u16> {
    ours.iter().filter(|version| theirs.contains(version)).max().copied()
}

pub(crate) const NOT_A_MEMBER: &str = "you are not a member here";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_choose_the_best_version_in_common() {
        for (ours, theirs, best) in [
            (&[2, 1][..], &[2, 1][..], Some(2)),
            (&[2, 1], &[1], Some(1)),
            (&[3, 2], &[2, 1], Some(2)),
            (&[3, 2], &[1], None),
            (&[1], &[], None),
        ] {
            assert_eq!(common(ours, theirs), best);
            assert_eq!(common(theirs, ours), best);
        }
    }
}
