//! Proof of who is speaking: TLS 1.3, both sides, by the node's own key.
//!
//! The certificates are libp2p's: a throw-away P-256 key, signed by the Ed25519 identity. The one
//! who dials says whose key must answer, and the verifier insists on it. The one who accepts learns
//! *who* speaks and nothing more: whether it belongs is judged after the handshake (a newcomer must
//! be able to show its ticket), and again for every request.
//!
//! There is no early data and no resumption, because a session ticket would outlive a removal, and
//! no key log, whatever the environment says.

use std::sync::{Arc, OnceLock};

use libp2p_tls::certificate;
use mesh_consensus::id::NodeId;
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, CipherSuite, DigitallySignedStruct, DistinguishedName, SignatureScheme,
};

use crate::identity::{NodeKey, node_id};

/// What two members speak.
pub const ALPN_MESH: &[u8] = b"mesh/1";
/// What two members speak on connections beside their first one: see `Net::open_beside`.
pub const ALPN_BESIDE: &[u8] = b"mesh-beside/1";
/// What a newcomer speaks: one request, one answer.
pub const ALPN_JOIN: &[u8] = b"mesh-join/1";

/// The TLS configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate could not be made.
    #[error("could not make a certificate for this node's key")]
    Certificate(#[from] certificate::GenError),
    /// rustls would not have it.
    #[error("could not set up TLS")]
    Rustls(#[from] rustls::Error),
}

/// This node's certificate, and the configurations made from it.
#[derive(Clone)]
pub(crate) struct Tls {
    provider: Arc<CryptoProvider>,
    certificate: Arc<SingleCertAndKey>,
}

impl Tls {
    pub(crate) fn new(key: &NodeKey) -> Result<Self, TlsError> {
        let (certificate, private) = certificate::generate(&key.keypair())?;
        let provider = Arc::new(provider());
        let signer = provider.key_provider.load_private_key(private)?;
        // `with_single_cert` would refuse the critical extension that carries our identity.
        let certified = CertifiedKey::new(vec![certificate], signer);
        Ok(Self { provider, certificate: Arc::new(SingleCertAndKey::from(certified)) })
    }

    /// Accepts anyone who proves a key. Who that is, [`speaker`] tells.
    pub(crate) fn server(&self) -> Result<Arc<QuicServerConfig>, TlsError> {
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(Verifier::anyone()))
            .with_cert_resolver(self.certificate.clone());
        config.alpn_protocols = [ALPN_MESH, ALPN_BESIDE, ALPN_JOIN].map(<[u8]>::to_vec).to_vec();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Arc::new(QuicServerConfig::try_from(config).expect(HAS_AES)))
    }

    /// Dials `expected` and nobody else. The slot then holds the key that answered.
    pub(crate) fn client(
        &self,
        expected: NodeId,
        alpn: &[u8],
    ) -> Result<(Arc<QuicClientConfig>, Arc<OnceLock<NodeId>>), TlsError> {
        let verifier = Verifier::of(expected);
        let answered = verifier.answered.clone();
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(self.certificate.clone());
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.enable_sni = false;
        Ok((Arc::new(QuicClientConfig::try_from(config).expect(HAS_AES)), answered))
    }
}

const HAS_AES: &str = "the provider has TLS13_AES_128_GCM_SHA256, which QUIC's first packets need";

/// AES first: quicker than ChaCha20 wherever the processor helps, and that is where bulk data goes.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    let order = |suite: CipherSuite| match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(0),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(1),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(2),
        _ => None,
    };
    provider.cipher_suites.retain(|suite| order(suite.suite()).is_some());
    if has_aes() {
        provider.cipher_suites.sort_by_key(|suite| order(suite.suite()));
    } else {
        provider.cipher_suites.sort_by_key(|suite| std::cmp::Reverse(order(suite.suite())));
    }
    provider
}

/// Whether the processor has instructions for AES.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has = false;
    has
}

/// Who is at the other end, and in which protocol it spoke. `None` unless the handshake is done.
pub(crate) fn speaker(connection: &quinn::Connection) -> Option<(NodeId, Vec<u8>)> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    let certificate = certificate::parse(chain.first()?).ok()?;
    let data = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
    Some((node_id(&certificate.peer_id())?, data.protocol?))
}

/// Checks a libp2p certificate; when dialling, also whose it is.
#[derive(Debug)]
struct Verifier {
    expected: Option<NodeId>,
    answered: Arc<OnceLock<NodeId>>,
}

impl Verifier {
    fn anyone() -> Self {
        Self { expected: None, answered: Arc::default() }
    }

    fn of(expected: NodeId) -> Self {
        Self { expected: Some(expected), answered: Arc::default() }
    }

    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        if !chain.is_empty() {
            return Err(CertificateError::BadEncoding.into());
        }
        let found = node_id(&certificate::parse(certificate)?.peer_id())
            .ok_or(CertificateError::ApplicationVerificationFailure)?;
        let Some(expected) = self.expected else {
            return Ok(());
        };
        let found = *self.answered.get_or_init(|| found);
        if found == expected {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn signature(
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        certificate::parse(certificate)?.verify_signature(
            signed.scheme,
            message,
            signed.signature(),
        )?;
        Ok(HandshakeSignatureValid::assertion())
    }

    fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".into()))
    }

    /// The schemes of keys that `certificate::generate` makes or that libp2p would accept.
    fn schemes() -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ED25519,
        ]
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(certificate, chain).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(certificate, chain).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aes_128_comes_first_where_the_processor_has_it() {
        let suites: Vec<_> = provider().cipher_suites.iter().map(|s| s.suite()).collect();
        assert_eq!(suites.len(), 3);
        if has_aes() {
            assert_eq!(suites[0], CipherSuite::TLS13_AES_128_GCM_SHA256);
        } else {
            assert_eq!(suites[0], CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        }
    }

    #[test]
    fn a_certificate_proves_the_key_it_was_made_for_and_no_other() {
        let key = NodeKey::generate();
        let (certificate, _) = certificate::generate(&key.keypair()).unwrap();
        assert_eq!(Verifier::of(key.id()).check(&certificate, &[]), Ok(()));
        assert_eq!(Verifier::anyone().check(&certificate, &[]), Ok(()));
        let other = Verifier::of(NodeKey::generate().id());
        assert!(other.check(&certificate, &[]).is_err());
        assert_eq!(other.answered.get(), Some(&key.id()));
    }

    #[test]
    fn a_damaged_certificate_or_a_chain_is_refused() {
        let key = NodeKey::generate();
        let (certificate, _) = certificate::generate(&key.keypair()).unwrap();
        let chain = std::slice::from_ref(&certificate);
        assert!(Verifier::anyone().check(&certificate, chain).is_err());
        let mut bytes = certificate.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        assert!(Verifier::anyone().check(&CertificateDer::from(bytes), &[]).is_err());
    }
}
