//! Moves frames and streams between nodes.
//!
//! Empty today: mesh has no network yet, and the simulator in `chaos-tests` carries messages between
//! nodes itself. What comes here next is identity and TLS, the codec for
//! [`Message`](mesh_consensus::message::Message), the QUIC data plane, the libp2p overlay and
//! tickets. It will know nothing of jobs or datasets.
