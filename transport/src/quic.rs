//! QUIC endpoints: sockets, their settings, and one dial of one address.
//!
//! Owns everything about quinn that is a number. Leaves to others whom to dial and when (`peer.rs`),
//! whom to let in (`door.rs`) and what is said (`live.rs`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mesh_consensus::id::NodeId;
use quinn::{
    AckFrequencyConfig, ClientConfig, ConnectionError, ConnectionId, ConnectionIdGenerator,
    Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TokioRuntime,
    TransportConfig, TransportErrorCode, ValidationTokenConfig, VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};
use tracing::warn;

use crate::identity::NodeKey;
use crate::tls::{Tls, TlsError};

/// How the data plane behaves on the wire.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// How often an idle connection says that it lives.
    pub keep_alive: Duration,
    /// After how much silence a connection counts as dead.
    pub idle: Duration,
    /// How long a handshake, a hello or a dial may take.
    pub patience: Duration,
    /// What a peer may have under way on one stream, unread, if there is room. (How these four work together is told in
    /// `credit.rs`.)
    pub stream_window: u32,
    /// The same over all streams of a connection. Small, because every idle peer may pin it.
    pub window: u32,
    /// What a bulk stream may have under way while bulk data moves: see `Net::bulk`.
    pub bulk_stream_window: u32,
    /// The same over all streams of such a connection.
    pub bulk_window: u32,
    /// What we may have under way on one connection.
    pub send_window: u64,
    /// The kernel's buffer in either direction, if it gives that much.
    pub socket_buffer: usize,
    /// The largest packet that is tried on a network.
    pub mtu: u16,
    /// The same on loopback, and on a link that carries jumbo frames.
    pub large_mtu: u16,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(5),
            // Two keep-alives may be lost.
            idle: Duration::from_secs(15),
            patience: Duration::from_secs(5),
            stream_window: 1 << 20,
            // The shares of all streams, four full windows of them, and room for messages.
            window: 16 << 20,
            // A gigabit at 130 ms.
            bulk_stream_window: 16 << 20,
            bulk_window: 64 << 20,
            // As much as a peer may allow us: this bound knows no priorities either, and must not be met first.
            send_window: 64 << 20,
            socket_buffer: 4 << 20,
            // What fits Ethernet under IPv6.
            mtu: 1452,
            large_mtu: 6500,
        }
    }
}

/// What quinn hands to the kernel at once, in packets.
const SEGMENTS: u16 = 10;
/// What one UDP datagram can hold under IPv4, and so what the kernel takes at once.
const MAX_DATAGRAM: u16 = 65_507;

/// A packet size that quinn can be trusted with.
///
/// quinn never checks that a full batch fits what the kernel takes, and quinn-udp turns the kernel's
/// refusal into success: with a larger packet every full batch would be lost without a word.
fn safe_mtu(wanted: u16) -> u16 {
    wanted.clamp(1200, MAX_DATAGRAM / SEGMENTS)
}

/// The data plane could not take its addresses.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has the port.
    #[error("{address} is taken by another program")]
    InUse {
        /// As asked for.
        address: SocketAddr,
    },
    /// The socket could not be had.
    #[error("could not listen on {address}")]
    Socket {
        /// As asked for.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// There was nothing to listen on.
    #[error("no address to listen on")]
    NoAddress,
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How one attempt to reach one address failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Silence.
    #[error("no answer in {} s (is UDP blocked on the way?)", .0.as_secs())]
    TimedOut(Duration),
    /// The host says that nothing listens there.
    #[error("refused: nothing listens there")]
    Refused,
    /// The network says that there is no way there.
    #[error("no route to it")]
    NoRoute,
    /// Somebody answered who is not the one we wanted.
    #[error("another node answered: {}", .found.short())]
    AnotherKey {
        /// Who.
        found: NodeId,
    },
    /// It closed the connection, and said why.
    #[error("closed by the other side: {why}")]
    Closed {
        /// As it said.
        why: String,
    },
    /// Something that speaks QUIC, but not our protocol.
    #[error("not a mesh node's data address")]
    NotMesh,
    /// We have no socket that could reach it.
    #[error("no socket of ours can reach such an address")]
    NoSocket,
    /// It is a node, and speaks versions that we do not.
    #[error("no version of the protocol in common: its newest is {theirs}")]
    Version {
        /// Its newest.
        theirs: u16,
    },
    /// It answered as it should, but is no member that we know.
    #[error("it is no member that we know")]
    Unwelcome,
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// The sockets of one node.
pub(crate) struct Quic {
    tls: Tls,
    tuning: Tuning,
    addresses: Vec<SocketAddr>,
    /// One for each address; none after the end.
    endpoints: Mutex<Vec<(SocketAddr, Endpoint)>>,
    /// For where large packets may get through.
    large: Arc<TransportConfig>,
    usual: Arc<TransportConfig>,
    large_server: Arc<ServerConfig>,
    usual_server: Arc<ServerConfig>,
}

impl Quic {
    pub(crate) fn bind(
        key: &NodeKey,
        listen: &[SocketAddr],
        tuning: Tuning,
    ) -> Result<Self, BindError> {
        if listen.is_empty() {
            return Err(BindError::NoAddress);
        }
        let tls = Tls::new(key)?;
        let large = Arc::new(transport(&tuning, safe_mtu(tuning.large_mtu)));
        let usual = Arc::new(transport(&tuning, safe_mtu(tuning.mtu)));
        let large_server = Arc::new(server(&tls, large.clone())?);
        let usual_server = Arc::new(server(&tls, usual.clone())?);
        let mut endpoints = Vec::with_capacity(listen.len());
        for &address in listen {
            let failed = |source: io::Error| match source.kind() {
                io::ErrorKind::AddrInUse => BindError::InUse { address },
                _ => BindError::Socket { address, source },
            };
            let socket = socket(address, tuning.socket_buffer).map_err(failed)?;
            let bound = socket.local_addr().map_err(failed)?;
            let config = endpoint_config(key, safe_mtu(tuning.large_mtu.max(tuning.mtu)));
            let server = (*usual_server).clone();
            let endpoint = Endpoint::new(config, Some(server), socket, Arc::new(TokioRuntime))
                .map_err(failed)?;
            endpoints.push((bound, endpoint));
        }
        let addresses = endpoints.iter().map(|(bound, _)| *bound).collect();
        let endpoints = Mutex::new(endpoints);
        Ok(Self { tls, tuning, addresses, endpoints, large, usual, large_server, usual_server })
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.held().iter().map(|(_, endpoint)| endpoint.clone()).collect()
    }

    /// Lets go of the sockets: they are closed when whoever still holds one drops it.
    pub(crate) fn let_go(&self) {
        self.held().clear();
    }

    fn held(&self) -> MutexGuard<'_, Vec<(SocketAddr, Endpoint)>> {
        self.endpoints.lock().expect("never poisoned: nothing panics under this lock")
    }

    /// The settings for somebody who dials us from `address`.
    pub(crate) fn server_for(&self, address: SocketAddr) -> Arc<ServerConfig> {
        match self.takes_large(address) {
            true => self.large_server.clone(),
            false => self.usual_server.clone(),
        }
    }

    /// Dials one address. Whoever answers there is `expected`, or it is a failure.
    pub(crate) async fn connect(
        &self,
        expected: NodeId,
        address: SocketAddr,
        alpn: &[u8],
    ) -> Result<quinn::Connection, Failure> {
        let endpoint = self.endpoint_for(address).ok_or(Failure::NoSocket)?;
        let (crypto, answered) =
            self.tls.client(expected, alpn).map_err(|error| Failure::Other(error.to_string()))?;
        let mut config = ClientConfig::new(crypto);
        let large = self.takes_large(address);
        config.transport_config(if large { self.large.clone() } else { self.usual.clone() });
        let connecting = endpoint
            .connect_with(config, address, SERVER_NAME)
            .map_err(|error| Failure::Other(error.to_string()))?;
        let patience = self.tuning.patience;
        let result = tokio::select! {
            result = tokio::time::timeout(patience, connecting) => result,
            failure = bad_news(address) => return Err(failure),
        };
        match result {
            Err(_) => Err(Failure::TimedOut(patience)),
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => match answered.get() {
                Some(found) if *found != expected => Err(Failure::AnotherKey { found: *found }),
                _ => Err(failure(&error, patience)),
            },
        }
    }

    /// Whether large packets may get through to `address`: loopback, and links with jumbo frames. Whether they do is found
    /// out by trying; on other links trying would only take time.
    fn takes_large(&self, address: SocketAddr) -> bool {
        /// IPv6's and UDP's, the largest there are.
        const HEADERS: usize = 48;
        let needed = usize::from(safe_mtu(self.tuning.large_mtu)) + HEADERS;
        is_loopback(address) || link_mtu(address).is_some_and(|mtu| mtu >= needed)
    }

    /// A socket that can send there: of the same family, and not tied to another kind of address.
    fn endpoint_for(&self, address: SocketAddr) -> Option<Endpoint> {
        let fits = |bound: &SocketAddr| {
            bound.is_ipv4() == address.is_ipv4()
                && (bound.ip().is_unspecified() || is_loopback(*bound) == is_loopback(address))
        };
        let held = self.held();
        held.iter().find(|(bound, _)| fits(bound)).map(|(_, endpoint)| endpoint.clone())
    }
}

/// The verifier looks at keys, not at names, and none is sent.
const SERVER_NAME: &str = "mesh";

/// Why a connection ended, in words for a person.
pub(crate) fn failure(error: &ConnectionError, patience: Duration) -> Failure {
    /// TLS's alert "no application protocol".
    const NO_ALPN: u8 = 120;
    match error {
        ConnectionError::TimedOut => Failure::TimedOut(patience),
        ConnectionError::VersionMismatch => Failure::NotMesh,
        ConnectionError::ConnectionClosed(close) => {
            if close.error_code == TransportErrorCode::crypto(NO_ALPN) {
                Failure::NotMesh
            } else if close.error_code == TransportErrorCode::CONNECTION_REFUSED {
                Failure::Closed { why: "it takes no more connections now".into() }
            } else {
                Failure::Closed { why: legible(&close.to_string()) }
            }
        }
        ConnectionError::ApplicationClosed(close) => {
            Failure::Closed { why: legible(&String::from_utf8_lossy(&close.reason)) }
        }
        ConnectionError::Reset => Failure::Closed { why: "it has restarted".into() },
        ConnectionError::TransportError(_)
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => Failure::Other(error.to_string()),
    }
}

/// Why a connection ended, in one line for a log.
pub(crate) fn reason(error: &ConnectionError) -> String {
    legible(&error.to_string())
}

/// Words of a peer, for a person's eyes: short, on one line, and in no way instructions to a terminal.
fn legible(words: &str) -> String {
    /// More than any node says.
    const MAX_CHARS: usize = 200;
    let mut shown = String::new();
    for c in words.chars().take(MAX_CHARS) {
        // Besides control characters, those that are not seen or turn the others around.
        let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if c.is_control() || hidden {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    if words.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns if a host or the kernel says that `address` cannot be reached, and never otherwise.
///
/// quinn's socket speaks with many and is not told of ICMP errors; one that is connected is. A
/// single byte is no QUIC packet and is dropped by whoever does listen.
async fn bad_news(address: SocketAddr) -> Failure {
    let probe = async {
        let socket = tokio::net::UdpSocket::bind(any_like(address)).await?;
        socket.connect(address).await?;
        socket.send(&[0]).await?;
        socket.recv(&mut [0]).await
    };
    match probe.await.map_err(|error| error.kind()) {
        Err(io::ErrorKind::ConnectionRefused) => Failure::Refused,
        Err(io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable) => Failure::NoRoute,
        _ => std::future::pending().await,
    }
}

/// The largest packet that the link towards `address` carries, if the kernel tells.
#[cfg(target_os = "linux")]
fn link_mtu(address: SocketAddr) -> Option<usize> {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    // Nothing is sent: the kernel only looks up the way.
    let socket = UdpSocket::bind(any_like(address)).ok()?;
    socket.connect(address).ok()?;
    let mtu = match address {
        SocketAddr::V4(_) => ip_mtu(&socket),
        SocketAddr::V6(_) => ipv6_mtu(&socket),
    };
    usize::try_from(mtu.ok()?).ok()
}

#[cfg(not(target_os = "linux"))]
fn link_mtu(_: SocketAddr) -> Option<usize> {
    None
}

/// Any address of ours of the same family.
fn any_like(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn socket(address: SocketAddr, buffer: usize) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // The same port may be asked for under IPv4.
        socket.set_only_v6(true)?;
    }
    // Too small a buffer costs speed, not correctness.
    let _ = socket.set_recv_buffer_size(buffer);
    let _ = socket.set_send_buffer_size(buffer);
    // Linux doubles what it grants, for its own bookkeeping, and reports that.
    let doubled = if cfg!(any(target_os = "linux", target_os = "android")) { 2 } else { 1 };
    let receive = socket.recv_buffer_size()? / doubled;
    let send = socket.send_buffer_size()? / doubled;
    if receive.min(send) < buffer {
        warn!(
            wanted_bytes = buffer,
            receive_bytes = receive,
            send_bytes = send,
            "the kernel gives smaller socket buffers than asked; see net.core.rmem_max and wmem_max"
        );
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// So many packets are acknowledged at once, or what came in 25 ms: each acknowledgement costs both sides a packet.
const ACK_EVERY: u32 = 8;
/// What anybody may send before it is welcome: a hello.
const STRANGERS_WINDOW: u32 = 32 << 10;

/// What both sides of every connection are set to. Nobody may open a stream, or send more than a hello, until it
/// is welcome.
fn transport(tuning: &Tuning, mtu: u16) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(mtu);
    let idle = IdleTimeout::try_from(tuning.idle).unwrap_or(IdleTimeout::from(VarInt::MAX));
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY));
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(tuning.keep_alive))
        // `credit.rs` says how much a stream may have; quinn could not change it later.
        .stream_receive_window(VarInt::from_u32(tuning.bulk_window.max(tuning.window)))
        .receive_window(VarInt::from_u32(STRANGERS_WINDOW))
        .send_window(tuning.send_window)
        .initial_mtu(1200)
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acks))
        .datagram_receive_buffer_size(None);
    config
}

fn server(tls: &Tls, transport: Arc<TransportConfig>) -> Result<ServerConfig, TlsError> {
    /// Handshakes that quinn holds for us until the door looks at them.
    const MAX_INCOMING: usize = 256;
    /// What those may send meanwhile: nobody is allowed early data.
    const INCOMING_BYTES: u64 = 16 << 10;
    let mut config = ServerConfig::with_crypto(tls.server()?);
    let mut tokens = ValidationTokenConfig::default();
    // Nothing that outlives a connection.
    tokens.sent(0);
    config
        .transport_config(transport)
        .validation_token_config(tokens)
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(MAX_INCOMING as u64 * INCOMING_BYTES);
    Ok(config)
}

fn endpoint_config(key: &NodeKey, mtu: u16) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(ResetKey::of(key)));
    config.cid_generator(|| Box::new(RandomIds));
    config.max_udp_payload_size(mtu.max(1472)).expect("1200 and more is allowed");
    config
}

/// Signs stateless resets with a key that a restart does not change: whoever still speaks to the
/// process before us is told at once that it is gone, instead of waiting for silence.
struct ResetKey([u8; 32]);

impl ResetKey {
    fn of(key: &NodeKey) -> Self {
        Self(blake3::derive_key("mesh 2026 quic stateless reset", key.seed()))
    }
}

impl quinn::crypto::HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        blake3::Hasher::new_keyed(&self.0).update(data).finalize_xof().fill(signature);
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), quinn::crypto::CryptoError> {
        let signature = <[u8; 32]>::try_from(signature).map_err(|_| quinn::crypto::CryptoError)?;
        // Comparing blake3's hashes takes the same time wherever they differ.
        if blake3::keyed_hash(&self.0, data) == blake3::Hash::from(signature) {
            Ok(())
        } else {
            Err(quinn::crypto::CryptoError)
        }
    }
}

/// Connection ids without structure. (quinn's own can tell ids of a former process from ours, and
/// then would not answer those with a reset.)
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; 8];
        getrandom::fill(&mut id).expect("the system gives randomness");
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        8
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_batch_of_packets_never_exceeds_what_the_kernel_takes() {
        for wanted in [0, 1200, 1452, 6500, 6550, 6551, 9000, u16::MAX] {
            let mtu = safe_mtu(wanted);
            assert!(u32::from(mtu) * u32::from(SEGMENTS) <= u32::from(MAX_DATAGRAM), "{wanted}");
            assert!(mtu >= 1200, "{wanted}");
        }
        let tuning = Tuning::default();
        assert_eq!(safe_mtu(tuning.large_mtu), tuning.large_mtu);
        assert_eq!(safe_mtu(tuning.mtu), tuning.mtu);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_tells_what_a_link_carries() {
        assert!(link_mtu(([127, 0, 0, 1], 9).into()).is_some_and(|mtu| mtu > 60_000));
    }

    #[test]
    fn words_of_a_peer_are_short_and_harmless() {
        let close = |reason: &[u8]| {
            let reason = reason.to_vec().into();
            let close = quinn::ApplicationClose { error_code: VarInt::from_u32(1), reason };
            match failure(&ConnectionError::ApplicationClosed(close), Duration::ZERO) {
                Failure::Closed { why } => why,
                other => other.to_string(),
            }
        };
        assert_eq!(close("not a member, señor".as_bytes()), "not a member, señor");
        assert_eq!(close(b"a\nb\x1b[2J"), "a\\u{a}b\\u{1b}[2J");
        assert_eq!(close("\u{202e}evil".as_bytes()), "\\u{202e}evil");
        assert!(close(&[b'x'; 5000]).chars().count() <= 201);
        let silent = close(&[0xff; 5000]);
        assert!(silent.chars().count() <= 201, "{silent}");
    }
}
