//! The data plane among peers that keep no rule: the endpoint stays up, nothing of theirs is
//! processed, and honest calls are answered all the while.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure here fails the test")]

mod common;
#[path = "common/raw.rs"]
mod raw;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{DEADLINE, Node, PATIENCE, pair, until};
use mesh_transport::codec::encode;
use mesh_transport::frame::{read_frame, write_frame};
use mesh_transport::net::{CallError, Failure, JoinError, Welcome};
use quinn::{Connection, ConnectionError};
use raw::Raw;
use rustls::pki_types::ServerName;
use tokio::time::{sleep, timeout};

const CLOSED_FOR_BREAKING_RULES: u32 = 4;

/// An honest pair, of which the second is attacked by somebody who is a member by its key.
async fn attacked() -> (Node, Node, Raw, Connection) {
    let (friend, node) = pair();
    let raw = Raw::new();
    node.heard.known.lock().unwrap().insert(raw.id(), Welcome::Full);
    let connection = raw.befriend(node.address()).await.unwrap();
    (friend, node, raw, connection)
}

async fn still_answers(friend: &Node, node: &Node) {
    assert_eq!(friend.ask(node, b"abc").await, Ok(b"cba".to_vec()));
}

fn code(error: &ConnectionError) -> Option<u32> {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            u32::try_from(close.error_code.into_inner()).ok()
        }
        _ => None,
    }
}

#[tokio::test]
async fn a_frame_that_is_too_long_costs_its_sender_the_connection() {
    let (friend, node, raw, connection) = attacked().await;
    // A call, a message, a large message and a stream's header, each longer than allowed.
    let huge = u32::MAX.to_le_bytes();
    for opening in [&[3][..], &[1], &[2], &[4, 0]] {
        let connection = match connection.close_reason() {
            None => connection.clone(),
            Some(_) => raw.befriend(node.address()).await.unwrap(),
        };
        let mut send = match opening[0] {
            1 | 2 => connection.open_uni().await.unwrap(),
            _ => connection.open_bi().await.unwrap().0,
        };
        send.write_all(&[opening, &huge].concat()).await.unwrap();
        let why = timeout(DEADLINE, connection.closed()).await.unwrap();
        assert_eq!(code(&why), Some(CLOSED_FOR_BREAKING_RULES), "{why}");
        still_answers(&friend, &node).await;
    }
    assert!(node.messages().is_empty());
}

#[tokio::test]
async fn a_long_message_is_read_only_from_those_who_may_send_one() {
    let (friend, node) = pair();
    still_answers(&friend, &node).await;
    friend.net.send(node.id(), vec![1; 200_000]);
    common::until("a long message is heard", || node.messages().len() == 1).await;
    *node.heard.brief.lock().unwrap() = Some(64 << 10);
    friend.net.send(node.id(), vec![2; 200_000]);
    // It is lost, and nothing else is: neither the connection nor what comes after it.
    friend.net.send(node.id(), vec![3; 100]);
    friend.net.send(node.id(), vec![4; 60_000]);
    common::until("short messages are heard", || node.messages().len() == 3).await;
    *node.heard.brief.lock().unwrap() = None;
    friend.net.send(node.id(), vec![5; 200_000]);
    common::until("long ones are heard again", || node.messages().len() == 4).await;
    let first: Vec<u8> = node.messages().iter().map(|message| message[0]).collect();
    assert_eq!(first, [1, 3, 4, 5]);
    assert_eq!(node.heard.hellos.lock().unwrap().len(), 1, "on the same connection");
}

#[tokio::test]
async fn endless_and_senseless_bytes_are_not_processed() {
    let (friend, node, raw, _) = attacked().await;
    let mut noise = fastrand::Rng::with_seed(7);
    for _ in 0..50 {
        let Ok(connection) = raw.befriend(node.address()).await else { continue };
        let bytes: Vec<u8> = (0..20_000).map(|_| noise.u8(..)).collect();
        if let Ok(mut send) = connection.open_uni().await {
            send.write_all(&bytes).await.ok();
        }
        if let Ok(Ok((mut send, _))) = timeout(Duration::from_secs(1), connection.open_bi()).await {
            send.write_all(&bytes).await.ok();
        }
    }
    still_answers(&friend, &node).await;
    assert!(node.messages().iter().all(|message| message.len() <= 64 << 10));
}

#[tokio::test]
async fn slow_requests_hold_up_nobody_else() {
    let (friend, node, _raw, connection) = attacked().await;
    let mut held = Vec::new();
    for n in 0..120u32 {
        let (mut send, receive) = connection.open_bi().await.unwrap();
        // A call of a mebibyte, of which a byte is sent.
        send.write_all(&[3]).await.unwrap();
        send.write_all(&(1u32 << 20).to_le_bytes()).await.unwrap();
        send.write_all(&[u8::try_from(n % 256).unwrap()]).await.unwrap();
        held.push((send, receive));
    }
    sleep(Duration::from_millis(300)).await;
    for _ in 0..20 {
        still_answers(&friend, &node).await;
    }
    assert_eq!(node.heard.calls.lock().unwrap().len(), 20);
}

#[tokio::test]
async fn a_peer_may_have_only_so_many_streams() {
    let (friend, node, _raw, connection) = attacked().await;
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(500), connection.open_bi()).await {
        held.push(stream);
        assert!(held.len() <= 1000);
    }
    assert!(held.len() <= 128, "{}", held.len());
    still_answers(&friend, &node).await;
}

#[tokio::test]
async fn a_stranger_has_no_stream_beyond_its_hello() {
    let (friend, node) = pair();
    let raw = Raw::new();
    let refused = raw.befriend(node.address()).await.unwrap_err();
    assert_eq!(code(&refused), Some(1), "{refused}");

    // One that skips the hello and asks at once.
    let connection = raw.dial(node.address(), "mesh/1").await.unwrap();
    let uni = timeout(Duration::from_millis(300), connection.open_uni()).await;
    assert!(!matches!(uni, Ok(Ok(_))), "no one-way stream");
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    send.write_all(&[3, 4, 0, 0, 0, 1, 2, 3, 4]).await.unwrap();
    let second = timeout(Duration::from_millis(300), connection.open_bi()).await;
    assert!(!matches!(second, Ok(Ok(_))), "no second stream");
    let why = timeout(DEADLINE, connection.closed()).await.unwrap();
    assert_eq!(code(&why), Some(CLOSED_FOR_BREAKING_RULES), "{why}");
    assert!(node.heard.calls.lock().unwrap().is_empty());
    still_answers(&friend, &node).await;
}

#[tokio::test]
async fn a_silent_stranger_is_shown_out() {
    let (_friend, node) = pair();
    let raw = Raw::new();
    for alpn in ["mesh/1", "mesh-join/1"] {
        let connection = raw.dial(node.address(), alpn).await.unwrap();
        let why = timeout(DEADLINE, connection.closed()).await.unwrap();
        assert_eq!(code(&why), Some(CLOSED_FOR_BREAKING_RULES), "{why}");
    }
}

#[tokio::test]
async fn newcomers_that_never_ask_do_not_keep_members_out() {
    let (friend, node) = pair();
    let raw = Raw::new();
    let mut held = Vec::new();
    for _ in 0..100 {
        if let Ok(connection) = raw.dial(node.address(), "mesh-join/1").await {
            held.push(connection);
        }
    }
    still_answers(&friend, &node).await;
    until("the first are shown out", || held.iter().any(|c| c.close_reason().is_some())).await;
    assert!(node.heard.joins.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_newcomers_long_request_is_not_read() {
    let (_friend, node) = pair();
    let raw = Raw::new();
    let connection = raw.dial(node.address(), "mesh-join/1").await.unwrap();
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    send.write_all(&(9u32 << 10).to_le_bytes()).await.unwrap();
    send.write_all(&[0; 9 << 10]).await.ok();
    let why = timeout(DEADLINE, connection.closed()).await.unwrap();
    assert_eq!(code(&why), Some(CLOSED_FOR_BREAKING_RULES), "{why}");
    assert!(node.heard.joins.lock().unwrap().is_empty());
}

#[tokio::test]
async fn something_else_that_speaks_quic_is_told_from_a_node() {
    let (key, endpoint) = Raw::listen("libp2p");
    let address = endpoint.local_addr().unwrap();
    let serve = tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            drop(incoming.await);
        }
    });
    let node = Node::start();
    let error = node.net.join(key.id(), address, vec![]).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { how: Failure::NotMesh, .. }), "{error}");
    serve.abort();
}

/// The first packets of this many handshakes that will never go on.
async fn first_packets(many: usize) -> Vec<Vec<u8>> {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    sink.set_nonblocking(true).unwrap();
    let sink = tokio::net::UdpSocket::from_std(sink).unwrap();
    let address = sink.local_addr().unwrap();
    let mut packets = Vec::with_capacity(many);
    let mut buffer = [0; 2000];
    while packets.len() < many {
        let raw = Raw::new();
        let dials: Vec<_> = (0..100).map(|_| raw.dial(address, "mesh/1")).collect();
        while let Ok(Ok(length)) = timeout(Duration::from_millis(50), sink.recv(&mut buffer)).await
        {
            packets.push(buffer[..length].to_vec());
        }
        drop(dials);
    }
    packets.truncate(many);
    packets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_half_open_connections_do_not_keep_anybody_out() {
    let packets = first_packets(10_000).await;
    let (friend, node) = pair();
    still_answers(&friend, &node).await;
    let address = node.address();
    let flood = std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (n, packet) in packets.iter().enumerate() {
            socket.send_to(packet, address).unwrap();
            if n % 50 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut during = 0;
    while !flood.is_finished() {
        still_answers(&friend, &node).await;
        during += 1;
    }
    assert!(during > 0);
    let newcomer = Node::start();
    common::introduce(&newcomer, &node);
    still_answers(&newcomer, &node).await;
}

#[tokio::test]
async fn packets_of_noise_are_ignored() {
    let (friend, node) = pair();
    still_answers(&friend, &node).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut noise = fastrand::Rng::with_seed(1);
    for _ in 0..5_000 {
        let bytes: Vec<u8> = (0..noise.usize(0..1500)).map(|_| noise.u8(..)).collect();
        socket.send_to(&bytes, node.address()).unwrap();
    }
    still_answers(&friend, &node).await;
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let (friend, node) = pair();
    let raw = Raw::new();
    // A client may believe that its handshake is done before the server has seen what is missing.
    let why = match raw.dial_without_a_key(node.address()).await {
        Ok(connection) => timeout(DEADLINE, connection.closed()).await.unwrap(),
        Err(why) => why,
    };
    /// TLS's alert "certificate required", as QUIC carries it.
    const CERTIFICATE_REQUIRED: u64 = 0x100 + 116;
    match &why {
        ConnectionError::ConnectionClosed(close) => {
            assert_eq!(u64::from(close.error_code), CERTIFICATE_REQUIRED, "{why}");
        }
        _ => panic!("{why}"),
    }
    still_answers(&friend, &node).await;
    assert_eq!(node.heard.hellos.lock().unwrap().len(), 1, "its friend's");
}

/// Keeps count of what a server gives a client to come back with.
#[derive(Debug)]
struct Tickets(rustls::client::ClientSessionMemoryCache, AtomicUsize);

impl rustls::client::ClientSessionStore for Tickets {
    fn set_kx_hint(&self, name: ServerName<'static>, group: rustls::NamedGroup) {
        self.0.set_kx_hint(name, group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<rustls::NamedGroup> {
        self.0.kx_hint(name)
    }

    fn set_tls12_session(
        &self,
        name: ServerName<'static>,
        value: rustls::client::Tls12ClientSessionValue,
    ) {
        self.0.set_tls12_session(name, value);
    }

    fn tls12_session(
        &self,
        name: &ServerName<'_>,
    ) -> Option<rustls::client::Tls12ClientSessionValue> {
        self.0.tls12_session(name)
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.0.remove_tls12_session(name);
    }

    fn insert_tls13_ticket(
        &self,
        name: ServerName<'static>,
        value: rustls::client::Tls13ClientSessionValue,
    ) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.insert_tls13_ticket(name, value);
    }

    fn take_tls13_ticket(
        &self,
        name: &ServerName<'static>,
    ) -> Option<rustls::client::Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(name)
    }
}

#[tokio::test]
async fn every_connection_begins_with_a_whole_handshake() {
    let (_friend, node) = pair();
    let raw = Raw::new();
    node.heard.known.lock().unwrap().insert(raw.id(), Welcome::Full);
    let tickets =
        Arc::new(Tickets(rustls::client::ClientSessionMemoryCache::new(8), AtomicUsize::new(0)));
    for _ in 0..2 {
        // Without a ticket there is no early data, and nothing to resume.
        let connecting = raw.dial_to_resume(node.address(), tickets.clone());
        let Err(connecting) = connecting.into_0rtt() else { panic!("it may send early data") };
        let connection = connecting.await.unwrap();
        // A ticket would come at the end of the handshake: after a round trip it would be here.
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(b"any").await.unwrap();
        sleep(Duration::from_millis(300)).await;
        connection.close(0u32.into(), b"");
    }
    assert_eq!(tickets.1.load(Ordering::Relaxed), 0, "it gave tickets");
}

#[tokio::test]
async fn who_speaks_other_versions_is_told_so() {
    const NO_VERSION_IN_COMMON: u32 = 3;
    let (friend, node) = pair();
    let raw = Raw::new();
    node.heard.known.lock().unwrap().insert(raw.id(), Welcome::Full);
    for versions in [vec![], vec![2], vec![0, 7, u16::MAX]] {
        let why = raw.befriend_in(node.address(), versions).await.unwrap_err();
        assert_eq!(code(&why), Some(NO_VERSION_IN_COMMON), "{why}");
    }
    assert!(node.heard.hellos.lock().unwrap().is_empty());
    // One in common is enough.
    raw.befriend_in(node.address(), vec![2, 1]).await.unwrap();
    still_answers(&friend, &node).await;
}

#[tokio::test]
async fn a_node_that_answers_in_another_version_is_named_as_such() {
    let (key, endpoint) = Raw::listen("mesh/1");
    let address = endpoint.local_addr().unwrap();
    let serve = tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let connection = incoming.await.unwrap();
            let (mut send, mut receive) = connection.accept_bi().await.unwrap();
            read_frame(&mut receive, 1 << 20).await.unwrap();
            let hello = encode(&(vec![9u16, 8], 7u64, Vec::<u8>::new())).unwrap();
            write_frame(&mut send, &hello).await.unwrap();
            connection.closed().await;
        }
    });
    let node = Node::start();
    node.net.learn(key.id(), vec![address]);
    let error = node.net.call(key.id(), vec![], PATIENCE).await.unwrap_err();
    let CallError::Unreachable(error) = error else { panic!("{error}") };
    assert_eq!(error.tries, [(address, Failure::Version { theirs: 9 })]);
    serve.abort();
}
