//! A bare copy over quinn: no store, no manifest, no swarm, one stream. Each piece is compared with its BLAKE3 and
//! written at its place by a thread beside the one that receives: what any program must do that moves verified
//! bytes to disk over QUIC.
//!
//! Its settings are the ones that are fast on loopback: packets of 6,500 bytes, wide windows, AES-128.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TransportConfig};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{released, say, signal};

const PIECE: usize = 1 << 20;
/// Ten packets go out in one call, and must fit into 64 KiB.
const MTU: u16 = 6500;
/// Pieces that are received and not yet written.
const MAX_PIECES: usize = 16;

pub(crate) async fn serve(file: PathBuf) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = made.cert.der().clone();
    let key =
        PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    let tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport()?);
    let endpoint = Endpoint::new(endpoint_config()?, Some(config), socket()?, runtime()?)?;
    let names = Arc::new(
        tokio::task::spawn_blocking({
            let file = file.clone();
            move || names(&file)
        })
        .await??,
    );
    let certificate: String = certificate.iter().map(|byte| format!("{byte:02x}")).collect();
    say(&json!({ "address": format!("{}/{certificate}", endpoint.local_addr()?) }))?;
    let file = Arc::new(File::open(file)?);
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let (file, names) = (file.clone(), names.clone());
            tokio::spawn(async move {
                if let Err(error) = send(incoming.await?, file, &names).await {
                    eprintln!("{error:#}");
                }
                anyhow::Ok(())
            });
        }
    });
    released().await
}

/// The BLAKE3 of every piece.
fn names(file: &PathBuf) -> Result<Vec<[u8; 32]>> {
    let (file, mut piece) = (File::open(file)?, vec![0; PIECE]);
    let bytes = file.metadata()?.len();
    let mut names = Vec::new();
    for at in (0..bytes).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min((bytes - at) as usize)];
        file.read_exact_at(piece, at)?;
        names.push(*blake3::hash(piece).as_bytes());
    }
    Ok(names)
}

async fn send(connection: Connection, file: Arc<File>, names: &[[u8; 32]]) -> Result<()> {
    let mut stream = connection.open_uni().await?;
    let bytes = file.metadata()?.len();
    stream.write_all(&bytes.to_le_bytes()).await?;
    stream.write_all(names.as_flattened()).await?;
    let (pieces, mut ready) = mpsc::channel(MAX_PIECES);
    let read = tokio::task::spawn_blocking(move || {
        for at in (0..bytes).step_by(PIECE) {
            let mut piece = vec![0; PIECE.min((bytes - at) as usize)];
            file.read_exact_at(&mut piece, at)?;
            pieces.blocking_send(Bytes::from(piece))?;
        }
        anyhow::Ok(())
    });
    while let Some(piece) = ready.recv().await {
        stream.write_chunk(piece).await?;
    }
    read.await??;
    stream.finish()?;
    connection.closed().await;
    Ok(())
}

pub(crate) async fn get(address: &str, dir: PathBuf, sync: bool) -> Result<()> {
    let (address, certificate) = address.split_once('/').context("an address has two parts")?;
    let address: SocketAddr = address.parse()?;
    let certificate: Result<Vec<u8>, _> = (0..certificate.len() / 2)
        .map(|at| u8::from_str_radix(&certificate[2 * at..2 * at + 2], 16))
        .collect();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(certificate?))?;
    let tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport()?);
    let mut endpoint = Endpoint::new(endpoint_config()?, None, socket()?, runtime()?)?;
    endpoint.set_default_client_config(config);
    say(&json!("ready"))?;
    signal().await?;

    let begun = Instant::now();
    let connection = endpoint.connect(address, "localhost")?.await?;
    let mut stream = connection.accept_uni().await?;
    let mut word = [0; 8];
    stream.read_exact(&mut word).await?;
    let bytes = u64::from_le_bytes(word);
    let mut names = vec![[0; 32]; bytes.div_ceil(PIECE as u64) as usize];
    stream.read_exact(names.as_flattened_mut()).await?;
    let (pieces, mut came) = mpsc::channel::<Vec<u8>>(MAX_PIECES);
    let write = tokio::task::spawn_blocking(move || {
        let file = File::create(dir.join("copy"))?;
        let mut at = 0;
        for name in names {
            let piece = came.blocking_recv().context("it ended too early")?;
            ensure!(*blake3::hash(&piece).as_bytes() == name, "a piece is not what it should be");
            file.write_all_at(&piece, at)?;
            at += piece.len() as u64;
        }
        if sync {
            file.sync_data()?;
        }
        Ok(at)
    });
    for at in (0..bytes).step_by(PIECE) {
        let mut piece = vec![0; PIECE.min((bytes - at) as usize)];
        stream.read_exact(&mut piece).await?;
        pieces.send(piece).await?;
    }
    let written = write.await??;
    let seconds = begun.elapsed().as_secs_f64();
    connection.close(0u32.into(), b"");
    say(&json!({ "seconds": seconds, "bytes": written }))?;
    released().await
}

fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider
        .cipher_suites
        .retain(|suite| suite.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

fn transport() -> Result<Arc<TransportConfig>> {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(Some(Duration::from_secs(30).try_into()?))
        .stream_receive_window((16u32 << 20).into())
        .receive_window((64u32 << 20).into())
        .send_window(16 << 20)
        .initial_mtu(MTU)
        .min_mtu(MTU)
        .mtu_discovery_config(None);
    Ok(Arc::new(config))
}

fn endpoint_config() -> Result<EndpointConfig> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(MTU)?;
    Ok(config)
}

fn runtime() -> Result<Arc<dyn quinn::Runtime>> {
    quinn::default_runtime().context("no runtime")
}

fn socket() -> Result<UdpSocket> {
    const BUFFER: usize = 4 << 20;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let options = socket2::SockRef::from(&socket);
    options.set_recv_buffer_size(BUFFER)?;
    options.set_send_buffer_size(BUFFER)?;
    Ok(socket)
}
