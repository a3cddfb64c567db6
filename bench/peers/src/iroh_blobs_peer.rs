//! iroh-blobs as it comes, with its store on disk: no relay, no discovery, the getter is told where the server is.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use iroh::endpoint::presets;
use iroh::protocol::Router;
use iroh::{Endpoint, EndpointAddr, RelayMode, TransportAddr};
use iroh_blobs::api::Store;
use iroh_blobs::store::fs::FsStore;
use iroh_blobs::{BlobsProtocol, Hash};
use serde_json::json;

use crate::{released, say, signal};

async fn endpoint() -> Result<Endpoint> {
    let here: SocketAddr = ([127, 0, 0, 1], 0).into();
    let builder = Endpoint::builder(presets::Minimal).relay_mode(RelayMode::Disabled);
    Ok(builder.clear_ip_transports().bind_addr(here)?.bind().await?)
}

async fn open(dir: PathBuf) -> Result<Store> {
    let store = FsStore::load(dir).await.map_err(|error| anyhow!("{error:?}"))?;
    Ok(store.into())
}

pub(crate) async fn serve(file: PathBuf, dir: PathBuf) -> Result<()> {
    let (endpoint, store) = (endpoint().await?, open(dir).await?);
    let added = store.blobs().add_path(file).await?;
    let address = endpoint.bound_sockets().into_iter().find(SocketAddr::is_ipv4);
    let address = address.context("no socket")?;
    let protocol = BlobsProtocol::new(&store, None);
    let router = Router::builder(endpoint.clone()).accept(iroh_blobs::ALPN, protocol).spawn();
    say(&json!({ "address": format!("{}/{address}/{}", endpoint.id(), added.hash) }))?;
    released().await?;
    router.shutdown().await?;
    Ok(())
}

pub(crate) async fn get(address: &str, dir: PathBuf) -> Result<()> {
    let mut parts = address.split('/');
    let mut next = || parts.next().context("an address has three parts");
    let (id, address, hash) = (next()?.parse()?, next()?.parse()?, next()?);
    let hash: Hash = hash.parse()?;
    let (endpoint, store) = (endpoint().await?, open(dir).await?);
    say(&json!("ready"))?;
    signal().await?;
    let begun = Instant::now();
    let server = EndpointAddr::from_parts(id, [TransportAddr::Ip(address)]);
    let connection = endpoint.connect(server, iroh_blobs::ALPN).await?;
    let got = store.remote().fetch(connection, hash).complete().await;
    let got = got.map_err(|error| anyhow!("{error:?}"))?;
    let seconds = begun.elapsed().as_secs_f64();
    say(&json!({ "seconds": seconds, "bytes": got.payload_bytes_read }))?;
    released().await?;
    endpoint.close().await;
    Ok(())
}
