//! Moves frames and streams between nodes.
//!
//! Two planes, one key. The **data plane** is a raw QUIC endpoint (`quinn`): one connection per pair of
//! nodes, and on it raft's messages, requests and streams, in that order of urgency. The **overlay** is
//! libp2p: who is where, and gossip. Both prove who speaks with the node's own Ed25519 key.
//!
//! | read | for |
//! |---|---|
//! | [`identity`], [`tls`] | keys, and the proof of who is speaking |
//! | [`codec`], [`frame`] | bytes on the wire, with a version and a limit |
//! | [`net`], [`peer`], [`quic`] | the data plane: what a node offers to its peers and asks of them |
//! | [`overlay`] | gossip, and whom it may come from |
//! | [`ticket`] | what a newcomer is handed |
//!
//! What may happen to what is sent: a *message* ([`net::Net::send`]) may be lost, and arrives unchanged, at most
//! once and usually in order; a *call* is answered or fails; a *stream* is as reliable as its connection.
//! Gossip may be lost, late and repeated. Nothing here knows what a job or a dataset is.

pub mod codec;
mod credit;
mod door;
pub mod frame;
mod hello;
mod hub;
pub mod identity;
mod live;
pub mod net;
mod outbox;
pub mod overlay;
pub mod path;
pub mod peer;
pub mod quic;
pub mod ticket;
pub mod tls;
