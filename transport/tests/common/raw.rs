//! A peer that speaks QUIC and keeps no rule of ours.
#![expect(clippy::unwrap_used, reason = "a test helper: a failure here fails the test")]

use std::net::SocketAddr;
use std::sync::Arc;

use libp2p_tls::certificate;
use mesh_consensus::id::NodeId;
use mesh_transport::codec::encode;
use mesh_transport::frame::{read_frame, write_frame};
use mesh_transport::identity::NodeKey;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, ServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{DigitallySignedStruct, SignatureScheme};

pub(crate) struct Raw {
    key: NodeKey,
    certificate: Arc<SingleCertAndKey>,
    endpoint: Endpoint,
}

impl Raw {
    pub(crate) fn new() -> Self {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let key = NodeKey::generate();
        Self { certificate: certificate_of(&key), key, endpoint }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.key.id()
    }

    /// Dials without a word about what follows.
    pub(crate) fn dial(&self, address: SocketAddr, alpn: &str) -> quinn::Connecting {
        self.dial_with(address, anybody().with_client_cert_resolver(self.certificate.clone()), alpn)
    }

    /// Dials as somebody who has no key.
    pub(crate) fn dial_without_a_key(&self, address: SocketAddr) -> quinn::Connecting {
        self.dial_with(address, anybody().with_no_client_auth(), "mesh/1")
    }

    /// Dials, and would go on with an earlier session, and at once, if it were given a ticket for that.
    pub(crate) fn dial_to_resume(
        &self,
        address: SocketAddr,
        tickets: Arc<dyn rustls::client::ClientSessionStore>,
    ) -> quinn::Connecting {
        let mut config = anybody().with_client_cert_resolver(self.certificate.clone());
        config.resumption = rustls::client::Resumption::store(tickets);
        config.enable_early_data = true;
        self.dial_with(address, config, "mesh/1")
    }

    fn dial_with(
        &self,
        address: SocketAddr,
        mut config: rustls::ClientConfig,
        alpn: &str,
    ) -> quinn::Connecting {
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()));
        self.endpoint.connect_with(config, address, "x").unwrap()
    }

    /// Dials and says a proper hello.
    pub(crate) async fn befriend(
        &self,
        address: SocketAddr,
    ) -> Result<Connection, ConnectionError> {
        self.befriend_in(address, vec![1]).await
    }

    /// The same, speaking these versions.
    pub(crate) async fn befriend_in(
        &self,
        address: SocketAddr,
        versions: Vec<u16>,
    ) -> Result<Connection, ConnectionError> {
        let connection = self.dial(address, "mesh/1").await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        // Versions, incarnation, and what the service says.
        let hello = encode(&(versions, 7u64, Vec::<u8>::new())).unwrap();
        write_frame(&mut send, &hello).await.ok();
        match read_frame(&mut receive, 1 << 20).await {
            Ok(Some(_)) => Ok(connection),
            _ => Err(connection.closed().await),
        }
    }

    /// Listens as something that is no mesh node of ours.
    pub(crate) fn listen(alpn: &str) -> (NodeKey, Endpoint) {
        let key = NodeKey::generate();
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(certificate_of(&key));
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let crypto = Arc::new(QuicServerConfig::try_from(config).unwrap());
        let config = ServerConfig::with_crypto(crypto);
        (key, Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap())
    }
}

fn anybody() -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
    rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificate_of(key: &NodeKey) -> Arc<SingleCertAndKey> {
    let (certificate, private) = certificate::generate(&key.keypair()).unwrap();
    let signer = provider().key_provider.load_private_key(private).unwrap();
    Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate], signer)))
}

#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
    }
}
