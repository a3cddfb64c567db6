//! Handshakes under way from one source: it cannot use up all that may be under way.
//!
//! libp2p's own limits count them all together. This counts them by where they come from, as the door of the data
//! plane does.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};

use super::listen::socket_address;
use crate::door::source;

/// Handshakes under way from one source: a rack of nodes that start at once. More are refused.
const MAX_PER_SOURCE: usize = 32;

/// Why a connection was refused.
#[derive(Debug, thiserror::Error)]
#[error("{MAX_PER_SOURCE} connections of {0} have not said yet who they are")]
struct TooMany(IpAddr);

/// Counts handshakes under way by their source.
#[derive(Default)]
pub(super) struct Sources {
    /// As many as may be under way in all; each ends by itself in a few seconds.
    pending: BTreeMap<ConnectionId, IpAddr>,
}

impl Sources {
    fn begin(&mut self, connection: ConnectionId, from: &Multiaddr) -> Result<(), TooMany> {
        // What comes by way of a relay has no source that could be counted.
        let Some(address) = socket_address(from) else { return Ok(()) };
        let from = source(address.ip());
        if self.pending.values().filter(|other| **other == from).count() >= MAX_PER_SOURCE {
            return Err(TooMany(from));
        }
        self.pending.insert(connection, from);
        Ok(())
    }
}

impl NetworkBehaviour for Sources {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.begin(connection, from).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.pending.remove(&connection);
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ListenFailure(failure) = event {
            self.pending.remove(&failure.connection_id);
        }
    }

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        _: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::super::listen::tcp_address;
    use super::*;

    #[test]
    fn one_source_leaves_room_for_others() {
        let mut sources = Sources::default();
        let mut number = 0;
        let mut knock = |sources: &mut Sources, from: &str| {
            number += 1;
            let address = tcp_address(from.parse().unwrap());
            sources.begin(ConnectionId::new_unchecked(number), &address).is_ok()
        };
        let taken = (0..100).filter(|n| knock(&mut sources, &format!("10.0.0.1:{}", 1000 + n)));
        assert_eq!(taken.count(), MAX_PER_SOURCE);
        assert!(knock(&mut sources, "10.0.0.2:1"));
        sources.pending.pop_first();
        assert!(knock(&mut sources, "10.0.0.1:1"));
    }
}
