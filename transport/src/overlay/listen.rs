//! Addresses: listening on one port number by UDP and TCP, and libp2p's way of writing them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, Swarm};
use socket2::{Domain, Socket, Type};

use super::OverlayError;
use super::swarm::Behaviour;

/// How many numbers to try for one that is free for UDP and TCP alike.
const PORT_TRIES: u32 = 32;

/// Listens on each address by UDP, then by TCP under the same number. Returns them with port 0 resolved.
pub(super) fn listen(
    swarm: &mut Swarm<Behaviour>,
    addresses: &[SocketAddr],
) -> Result<Vec<SocketAddr>, OverlayError> {
    addresses.iter().map(|address| listen_on(swarm, *address)).collect()
}

fn listen_on(swarm: &mut Swarm<Behaviour>, asked: SocketAddr) -> Result<SocketAddr, OverlayError> {
    let mut tries = if asked.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        match listen_once(swarm, asked) {
            Err(OverlayError::InUse { .. } | OverlayError::Listen { .. }) if tries > 0 => {}
            result => return result,
        }
    }
}

fn listen_once(
    swarm: &mut Swarm<Behaviour>,
    asked: SocketAddr,
) -> Result<SocketAddr, OverlayError> {
    // libp2p hides the kind of an error, and its TCP listener would share the port with another node
    // (SO_REUSEPORT). So we look first, with sockets of our own that share nothing.
    let number = probe(asked, Type::DGRAM).map_err(|error| refused(asked, "udp", error))?;
    let address = SocketAddr::new(asked.ip(), number);
    probe(address, Type::STREAM).map_err(|error| refused(asked, "tcp", error))?;
    let udp = open(swarm, quic_address(address), asked, "udp")?;
    if let Err(error) = open(swarm, tcp_address(address), asked, "tcp") {
        swarm.remove_listener(udp);
        return Err(error);
    }
    Ok(address)
}

fn open(
    swarm: &mut Swarm<Behaviour>,
    address: Multiaddr,
    asked: SocketAddr,
    protocol: &'static str,
) -> Result<ListenerId, OverlayError> {
    swarm.listen_on(address).map_err(|error| refused(asked, protocol, io::Error::other(error)))
}

fn probe(address: SocketAddr, kind: Type) -> io::Result<u16> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        // Past connections of the node that ran here before do not count; a listener still does.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.local_addr()?.as_socket().map_or(0, |bound| bound.port()))
}

fn refused(address: SocketAddr, protocol: &'static str, source: io::Error) -> OverlayError {
    if source.kind() == io::ErrorKind::AddrInUse {
        return OverlayError::InUse { address, protocol };
    }
    OverlayError::Listen { address, protocol, source }
}

/// `address` by QUIC.
pub(super) fn quic_address(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Protocol::Udp(address.port())).with(Protocol::QuicV1)
}

/// `address` by TCP.
pub(super) fn tcp_address(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Protocol::Tcp(address.port()))
}

/// The address behind `multiaddr`, whichever of our transports it names.
pub(super) fn socket_address(multiaddr: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = multiaddr.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => IpAddr::V4(ip),
        Protocol::Ip6(ip) => IpAddr::V6(ip),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Udp(port) | Protocol::Tcp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}
