//! What both systems offer: an acknowledged write, and a linearizable read.

use std::str::FromStr;

use anyhow::{Result, bail};

use crate::mesh;

/// One node to talk to.
#[derive(Debug, Clone)]
pub enum Target {
    Mesh { socket: String, party: String },
    Etcd { url: String },
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some((socket, party)) =
            text.strip_prefix("unix:").and_then(|rest| rest.rsplit_once('#'))
        {
            return Ok(Target::Mesh { socket: socket.into(), party: party.into() });
        }
        if text.starts_with("http://") {
            return Ok(Target::Etcd { url: text.into() });
        }
        bail!("a target is unix:SOCKET#PARTY or http://HOST:PORT")
    }
}

/// A connection to one node. Clones share it where the protocol lets requests overtake each other (etcd);
/// mesh's HTTP/1.1 takes an idle connection or opens one.
#[derive(Clone)]
pub enum Store {
    Mesh(mesh::Pool),
    Etcd(Box<etcd_client::KvClient>),
}

impl Store {
    pub async fn connect(target: &Target) -> Result<Self> {
        Ok(match target {
            Target::Mesh { socket, party } => Store::Mesh(mesh::Pool::new(socket, party)),
            Target::Etcd { url } => {
                Store::Etcd(Box::new(etcd_client::Client::connect([url], None).await?.kv_client()))
            }
        })
    }

    /// Writes `to`, 64 hexadecimal digits; returns once that is durable on a majority. `from` is what
    /// the key stands for now: mesh compares, etcd does not look. `bytes` is the size of etcd's value.
    pub async fn write(
        &mut self,
        key: &str,
        from: Option<&str>,
        to: &str,
        bytes: usize,
    ) -> Result<()> {
        match self {
            Store::Mesh(pool) => pool.put(key, from, to).await,
            Store::Etcd(client) => {
                let mut value = to.as_bytes().to_vec();
                value.resize(bytes, b'.');
                client.put(key, value, None).await?;
                Ok(())
            }
        }
    }

    /// Whether `key` stands for `to`, as of now.
    pub async fn holds(&mut self, key: &str, to: &str) -> Result<bool> {
        match self {
            Store::Mesh(pool) => pool.holds(key, to).await,
            Store::Etcd(client) => {
                let answer = client.get(key, None).await?;
                Ok(answer.kvs().first().is_some_and(|kv| kv.value().starts_with(to.as_bytes())))
            }
        }
    }
}

/// A value that nobody else writes: `prefix` is unique, and so is `number` within it.
pub fn value(prefix: &str, number: u64) -> String {
    // FNV-1a: it needs to differ, not to resist anyone.
    let hash = prefix.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}{number:016x}{:032x}", 0)
}
