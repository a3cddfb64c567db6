//! Real nodes inside the test's own process: real logs, real sockets on loopback.
#![expect(clippy::unwrap_used, reason = "a helper of tests: what fails here fails the test")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::time::Duration;

use ed25519_dalek::SigningKey;
use mesh_consensus::id::{Hash, PartyId, TicketId};
use mesh_node::dir::Dir;
use mesh_node::handle::{Ask, Handle, WriteError};
use mesh_node::join::{Choices, found, join};
use mesh_node::run::{RunError, run};
use mesh_node::state::command::{Act, Invite, NameSet, TicketNew};
use mesh_transport::ticket::{Kind, Meet, Ticket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A node that runs.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    pub(crate) dir: Dir,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), RunError>>,
}

/// A place for the directories of a test's nodes.
pub(crate) struct Lab {
    temp: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        if std::env::var_os("MESH_LOG").is_some() {
            let _ = tracing_subscriber::fmt().with_test_writer().try_init();
        }
        Self { temp: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn dir(&self, name: &str) -> Dir {
        Dir::at(self.temp.path().join(name))
    }

    /// Founds a mesh and starts its first node.
    pub(crate) async fn found(&self, name: &str) -> Running {
        let dir = self.dir(name);
        found(&dir, &choices(name)).unwrap();
        start(dir).await
    }

    /// Joins through `sponsor` and starts the node.
    pub(crate) async fn join(&self, name: &str, sponsor: &Running) -> Running {
        let ticket = sponsor.ticket(Kind::Member, 1).await;
        self.join_with(name, &ticket).await
    }

    pub(crate) async fn join_with(&self, name: &str, ticket: &Ticket) -> Running {
        let dir = self.dir(name);
        join(&dir, ticket, &choices(name), |_| {}).await.unwrap();
        start(dir).await
    }
}

pub(crate) fn choices(name: &str) -> Choices {
    Choices {
        name: Some(name.parse().unwrap()),
        listen: vec![("127.0.0.1".parse().unwrap(), Some(0))],
        ..Choices::default()
    }
}

/// Starts the node of a directory.
pub(crate) async fn start(dir: Dir) -> Running {
    for _ in 0..5 {
        let stop = CancellationToken::new();
        let (tell, ready) = tokio::sync::oneshot::channel();
        let task = {
            let (dir, stop) = (dir.clone(), stop.clone());
            tokio::spawn(async move {
                run(dir, &toml::Table::new(), stop, |handle| {
                    let _ = tell.send(handle.clone());
                })
                .await
            })
        };
        if let Ok(handle) = ready.await {
            return Running { handle, dir, stop, task };
        }
        match task.await.unwrap() {
            Err(RunError::Bind(_) | RunError::Overlay(_)) => take_other_ports(&dir),
            other => panic!("the node did not start: {other:?}"),
        }
    }
    panic!("the node's ports stay taken");
}

/// A node that was stopped in this very process may hold its ports for a while.
fn take_other_ports(dir: &Dir) {
    let path = dir.file("config.toml");
    let mut table: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    for key in ["data_port", "overlay_port"] {
        table.insert(key.into(), toml::Value::Integer(0));
    }
    std::fs::write(path, table.to_string()).unwrap();
}

impl Running {
    /// Stops it, cleanly.
    pub(crate) async fn stop(self) -> Dir {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
        self.dir
    }

    /// Makes a ticket.
    pub(crate) async fn ticket(&self, kind: Kind, uses: u32) -> Ticket {
        let seed: [u8; 32] = mesh_node::random();
        let ticket = TicketId(SigningKey::from_bytes(&seed).verifying_key().to_bytes());
        let party = self.handle.secret.read().await.clone().unwrap().id();
        let expires = mesh_node::clock::now().after(Duration::from_secs(3600));
        let act = match kind {
            Kind::NewParty => Act::Invite(Invite { ticket, party, expires, uses }),
            Kind::Member | Kind::Worker => {
                let worker = kind == Kind::Worker;
                Act::TicketNew(TicketNew { ticket, party, expires, uses, worker })
            }
        };
        self.handle.write(vec![Ask { act, signed: true }]).await.unwrap();
        let meet = vec![Meet { node: self.handle.whoami.node, addresses: self.handle.hub.here() }];
        Ticket { mesh: self.handle.whoami.mesh, party, kind, expires, uses, seed, meet }
    }

    /// Its party.
    pub(crate) fn party(&self) -> PartyId {
        self.handle.roster().party_of(self.handle.whoami.node).unwrap()
    }

    /// Sets a name of a party, which only its own nodes may.
    pub(crate) async fn set_name(
        &self,
        party: PartyId,
        name: &str,
        to: Hash,
    ) -> Result<(), WriteError> {
        let name = name.parse().unwrap();
        let act = Act::NameSet(NameSet { party, name, expect: None, to });
        self.handle.write(vec![Ask { act, signed: false }]).await.map(drop)
    }

    /// What a party's name stands for, up to date.
    pub(crate) async fn name(&self, party: PartyId, name: &str) -> Option<Hash> {
        self.handle.barrier().await.unwrap();
        let name = name.parse().unwrap();
        self.handle.look(move |see| see.replica.machine().name(party, &name)).await.unwrap()
    }
}

/// Waits until `what` holds, or fails with its name.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("after a minute it is still not so that {what}");
}
