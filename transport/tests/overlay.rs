//! The overlay on real sockets: who hears whom, and who does not.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ed25519_dalek::SigningKey;
use futures::StreamExt;
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, Swarm, SwarmBuilder, gossipsub};
use mesh_consensus::id::{MeshId, NodeId};
use mesh_transport::overlay::{Heard, Judged, MAX_GOSSIP, Overlay, OverlayError, TooLong};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

const MESH: MeshId = MeshId([9; 32]);
/// Long enough for a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long we listen for what should never come, once the way is known to be open.
const SILENCE: Duration = Duration::from_secs(2);

fn any() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn id(seed: u8) -> NodeId {
    NodeId(SigningKey::from_bytes(&[seed; 32]).verifying_key().to_bytes())
}

/// A member whose judge goes by how a message begins.
struct Node {
    id: NodeId,
    overlay: Overlay,
    heard: mpsc::Receiver<Heard>,
    /// Every message that the judge was asked about.
    judged: Arc<Mutex<Vec<Vec<u8>>>>,
    published: AtomicUsize,
}

impl Node {
    async fn start(seed: u8) -> Self {
        Self::start_at(seed, any()).await
    }

    async fn start_at(seed: u8, listen: SocketAddr) -> Self {
        Self::start_with(seed, listen, false).await
    }

    async fn start_with(seed: u8, listen: SocketAddr, mdns: bool) -> Self {
        let judged = Arc::new(Mutex::new(Vec::new()));
        let seen = judged.clone();
        let judge = Arc::new(move |bytes: &[u8]| {
            seen.lock().unwrap().push(bytes.to_vec());
            match bytes {
                [b'b', b'a', b'd', ..] => Judged::Bad,
                [b'o', b'l', b'd', ..] => Judged::Stale,
                _ => Judged::Good,
            }
        });
        let (overlay, heard) =
            Overlay::start(&[seed; 32], MESH, &[listen], mdns, judge).await.unwrap();
        Self { id: id(seed), overlay, heard, judged, published: AtomicUsize::new(0) }
    }

    fn address(&self) -> SocketAddr {
        self.overlay.addresses()[0]
    }

    fn allow<'a>(&self, members: impl IntoIterator<Item = &'a Node>) {
        self.overlay.allow(members.into_iter().map(|node| node.id).collect());
    }

    fn learn(&self, other: &Node) {
        self.overlay.learn(other.id, other.overlay.addresses());
    }

    /// Publishes something new until `to` has heard one of it. Early messages may find no peers.
    async fn reaches(&self, to: &mut Node) {
        let what = format!("from {} ", self.id.short());
        timeout(DEADLINE, async {
            loop {
                let number = self.published.fetch_add(1, Ordering::Relaxed);
                self.overlay.publish(format!("{what}{number}").into_bytes()).unwrap();
                while let Ok(Some(heard)) =
                    timeout(Duration::from_millis(300), to.heard.recv()).await
                {
                    if heard.bytes.starts_with(what.as_bytes()) {
                        return;
                    }
                }
            }
        })
        .await
        .expect("the message never came through");
    }

    /// All that was heard until it has been quiet for [`SILENCE`].
    async fn rest(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Ok(Some(heard)) = timeout(SILENCE, self.heard.recv()).await {
            all.push(heard.bytes);
        }
        all
    }

    fn asked_about(&self, start: &[u8]) -> usize {
        self.judged.lock().unwrap().iter().filter(|bytes| bytes.starts_with(start)).count()
    }

    async fn peers_become(&self, wanted: usize) {
        let reached = timeout(DEADLINE, async {
            while self.overlay.peers() != wanted {
                sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(reached.await.is_ok(), "{} peers, not {wanted}", self.overlay.peers());
    }
}

/// Three nodes in a row: the first and the last know the middle one only.
async fn row() -> (Node, Node, Node) {
    let (a, b, c) = (Node::start(1).await, Node::start(2).await, Node::start(3).await);
    for node in [&a, &b, &c] {
        node.allow([&a, &b, &c]);
    }
    a.learn(&b);
    c.learn(&b);
    (a, b, c)
}

#[tokio::test]
async fn nodes_that_are_not_connected_hear_each_other_through_a_third() {
    let (mut a, b, mut c) = row().await;
    a.reaches(&mut c).await;
    c.reaches(&mut a).await;
    assert_eq!([a.overlay.peers(), b.overlay.peers(), c.overlay.peers()], [1, 2, 1]);
}

#[tokio::test]
async fn a_stranger_is_refused_and_its_gossip_reaches_nobody() {
    let (mut a, mut b, c) = row().await;
    let stranger = Node::start(66).await;
    stranger.allow([&a, &b, &c]);
    stranger.learn(&a);
    stranger.learn(&b);
    // The members know where it is, and still do not want it.
    a.learn(&stranger);
    a.reaches(&mut b).await;
    for number in 0..20 {
        stranger.overlay.publish(format!("stranger {number}").into_bytes()).unwrap();
        sleep(Duration::from_millis(200)).await;
    }
    a.reaches(&mut b).await;
    b.reaches(&mut a).await;
    for node in [&a, &b, &c] {
        assert_eq!(node.asked_about(b"stranger"), 0);
    }
    assert_eq!([a.overlay.peers(), b.overlay.peers(), c.overlay.peers()], [1, 2, 1]);
}

#[tokio::test]
async fn who_leaves_the_list_is_disconnected_and_comes_back_with_it() {
    let (a, b, mut c) = row().await;
    a.reaches(&mut c).await;
    b.allow([&b, &c]);
    b.peers_become(1).await;
    c.rest().await;
    for number in 0..10 {
        a.overlay.publish(format!("removed {number}").into_bytes()).unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(c.rest().await, Vec::<Vec<u8>>::new());
    assert_eq!([b.asked_about(b"removed"), c.asked_about(b"removed")], [0, 0]);

    b.allow([&a, &b, &c]);
    a.reaches(&mut c).await;
}

#[tokio::test]
async fn only_a_good_message_is_delivered_and_passed_on() {
    let (a, mut b, mut c) = row().await;
    a.reaches(&mut c).await;
    for message in ["bad one", "old one", "good one"] {
        a.overlay.publish(message.into()).unwrap();
    }
    // The last proves that the way was open for the others.
    for node in [&mut b, &mut c] {
        let rest = node.rest().await;
        assert!(rest.contains(&b"good one".to_vec()));
        assert!(!rest.contains(&b"bad one".to_vec()) && !rest.contains(&b"old one".to_vec()));
    }
    assert_eq!([b.asked_about(b"bad"), b.asked_about(b"old")], [1, 1]);
    assert_eq!([c.asked_about(b"bad"), c.asked_about(b"old")], [0, 0]);
}

#[tokio::test]
async fn a_message_that_comes_by_many_ways_is_judged_and_heard_once() {
    const MESSAGES: usize = 20;
    let mut nodes = Vec::new();
    for seed in 1..=6 {
        nodes.push(Node::start(seed).await);
    }
    for node in &nodes {
        node.allow(&nodes);
        nodes.iter().for_each(|other| node.learn(other));
    }
    for node in &nodes {
        node.peers_become(nodes.len() - 1).await;
    }
    let (first, others) = nodes.split_at_mut(1);
    for other in others.iter_mut() {
        first[0].reaches(other).await;
    }
    for number in 0..MESSAGES {
        first[0].overlay.publish(format!("many {number:03}").into_bytes()).unwrap();
        sleep(Duration::from_millis(20)).await;
    }
    for other in others {
        let heard = other.rest().await;
        assert_eq!(heard.iter().filter(|bytes| bytes.starts_with(b"many")).count(), MESSAGES);
        assert_eq!(other.asked_about(b"many"), MESSAGES);
    }
    assert_eq!(first[0].asked_about(b"many"), 0, "its own messages do not come back");
}

#[tokio::test]
async fn a_node_alone_may_publish_as_much_as_it_likes_but_no_long_messages() {
    let node = Node::start(1).await;
    for number in 0..1000 {
        node.overlay.publish(format!("{number}").into_bytes()).unwrap();
    }
    node.overlay.publish(vec![0; MAX_GOSSIP]).unwrap();
    let length = MAX_GOSSIP + 1;
    assert_eq!(node.overlay.publish(vec![0; length]), Err(TooLong { length }));
    assert_eq!(node.overlay.peers(), 0);
}

#[tokio::test]
async fn a_burst_of_the_longest_messages_comes_through() {
    const BURST: u8 = 40;
    let (a, mut b, mut c) = row().await;
    a.reaches(&mut c).await;
    b.rest().await;
    for number in 0..BURST {
        a.overlay.publish(vec![number; MAX_GOSSIP]).unwrap();
    }
    for node in [&mut b, &mut c] {
        let heard = node.rest().await;
        assert_eq!(heard.iter().filter(|m| m.len() == MAX_GOSSIP).count(), usize::from(BURST));
    }
}

#[tokio::test]
async fn an_overlong_message_of_a_member_is_not_passed_on() {
    let (a, mut b, mut c) = row().await;
    a.reaches(&mut c).await;
    for node in [&a, &b, &c] {
        node.overlay.allow(BTreeSet::from([a.id, b.id, c.id, id(4)]));
    }
    let sending = tokio::spawn(lie(liar(4), b.address()));
    timeout(DEADLINE, async {
        let mut short = 0;
        while short < 5 {
            let heard = c.heard.recv().await.unwrap();
            assert!(heard.bytes.len() <= MAX_GOSSIP);
            short += usize::from(heard.bytes.starts_with(b"short"));
        }
    })
    .await
    .unwrap();
    sending.abort();
    b.rest().await;
    assert_eq!([b.asked_about(b"L"), c.asked_about(b"L")], [0, 0]);
}

#[tokio::test]
async fn a_member_that_lies_again_and_again_is_no_longer_listened_to() {
    let (a, b, mut c) = row().await;
    a.reaches(&mut c).await;
    timeout(DEADLINE, async {
        let mut number = 0;
        loop {
            let before = b.asked_about(b"bad");
            for _ in 0..10 {
                number += 1;
                a.overlay.publish(format!("bad {number}").into_bytes()).unwrap();
                sleep(Duration::from_millis(50)).await;
            }
            if before > 0 && b.asked_about(b"bad") == before {
                return;
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(c.asked_about(b"bad"), 0);
    b.reaches(&mut c).await;
}

#[tokio::test]
async fn a_node_that_starts_later_is_found_though_it_was_learned_before_it_was_allowed() {
    let reserved = UdpSocket::bind(any()).unwrap();
    let later = reserved.local_addr().unwrap();
    let a = Node::start(1).await;
    a.overlay.learn(id(2), vec![later]);
    sleep(Duration::from_millis(500)).await;
    a.overlay.allow(BTreeSet::from([id(1), id(2)]));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(a.overlay.peers(), 0);
    drop(reserved);
    let mut b = Node::start_at(2, later).await;
    b.allow([&a]);
    a.reaches(&mut b).await;
}

#[tokio::test]
async fn a_node_that_restarts_is_found_again() {
    let a = Node::start(1).await;
    let mut b = Node::start(2).await;
    a.allow([&b]);
    b.allow([&a]);
    a.learn(&b);
    a.reaches(&mut b).await;
    let address = b.address();
    b.overlay.stop();
    timeout(DEADLINE, async { while b.heard.recv().await.is_some() {} }).await.unwrap();
    a.peers_become(0).await;
    let mut b = restart(2, address).await;
    b.allow([&a]);
    a.reaches(&mut b).await;
}

/// Gossipsub says what it subscribes to once, and two connections may carry it: see `overlay/swarm.rs`.
#[tokio::test]
async fn nodes_that_dial_each_other_at_once_hear_each_other() {
    for round in 0..20 {
        let mut a = Node::start(2 * round + 1).await;
        let mut b = Node::start(2 * round + 2).await;
        a.learn(&b);
        b.learn(&a);
        a.allow([&b]);
        b.allow([&a]);
        a.reaches(&mut b).await;
        b.reaches(&mut a).await;
    }
}

#[test]
fn a_node_that_was_killed_and_dials_again_is_heard_and_hears() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (here, there) = (runtime(), runtime());
    let mut a = here.block_on(Node::start(1));
    let b = there.block_on(Node::start(2));
    a.allow([&b]);
    b.allow([&a]);
    b.learn(&a);
    here.block_on(async {
        b.reaches(&mut a).await;
        sleep(Duration::from_secs(2)).await;
    });
    // It says good-bye to nobody, and is back before anybody has noticed.
    let address = b.address();
    there.shutdown_background();
    here.block_on(async {
        let mut b = restart(2, address).await;
        b.allow([&a]);
        b.learn(&a);
        b.reaches(&mut a).await;
        a.reaches(&mut b).await;
    });
}

/// The port is free soon after the task has ended, not at once.
async fn restart(seed: u8, address: SocketAddr) -> Node {
    timeout(DEADLINE, async {
        while UdpSocket::bind(address).is_err() {
            sleep(Duration::from_millis(50)).await;
        }
        Node::start_at(seed, address).await
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn where_udp_goes_nowhere_tcp_is_used() {
    let a = Node::start(1).await;
    let mut b = Node::start(2).await;
    a.allow([&b]);
    b.allow([&a]);
    // A door that swallows UDP and lets TCP through to `b`.
    let door = tokio::net::TcpListener::bind(any()).await.unwrap();
    let address = door.local_addr().unwrap();
    let _swallows = UdpSocket::bind(address).unwrap();
    let inside = b.address();
    tokio::spawn(async move {
        while let Ok((mut outer, _)) = door.accept().await {
            let mut inner = tokio::net::TcpStream::connect(inside).await.unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut outer, &mut inner).await },
            );
        }
    });
    a.overlay.learn(b.id, vec![address]);
    a.reaches(&mut b).await;
}

/// Goes into a network of its own, with nobody else in it. Whether that may be.
fn alone() -> bool {
    let ip = |words: &str| {
        let status = std::process::Command::new("ip").args(words.split(' ')).status();
        status.is_ok_and(|status| status.success())
    };
    // Only this thread's network changes.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok()
        && ip("link set lo up")
        && ip("link add d0 type veth peer name d1")
        && ip("addr add 198.18.7.1/24 dev d0")
        && ip("link set d1 up")
        && ip("link set d0 up multicast on")
        && ip("route add 224.0.0.0/4 dev d0")
}

#[test]
fn nodes_of_one_network_find_each_other_by_multicast() {
    let find = || {
        if !alone() {
            println!("SKIPPED: a network of one's own takes root and the command ip");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(find_each_other(Ipv4Addr::new(198, 18, 7, 1)));
    };
    std::thread::spawn(find).join().unwrap();
}

async fn find_each_other(own: Ipv4Addr) {
    let mut a = Node::start_with(1, (own, 0).into(), true).await;
    let mut b = Node::start_with(2, (own, 0).into(), true).await;
    let stranger = Node::start_with(66, (own, 0).into(), true).await;
    // They may be found before they are known to be members. Nobody is told where anybody is.
    sleep(SILENCE).await;
    for node in [&a, &b] {
        node.allow([&a, &b]);
    }
    stranger.allow([&a, &b, &stranger]);
    a.reaches(&mut b).await;
    b.reaches(&mut a).await;
    assert_eq!([a.overlay.peers(), b.overlay.peers()], [1, 1]);
    assert_eq!(stranger.asked_about(b""), 0);
}

#[tokio::test]
async fn udp_and_tcp_share_a_number_that_no_other_node_can_take() {
    let node = Node::start(1).await;
    let address = node.address();
    assert_ne!(address.port(), 0);
    assert!(tokio::net::TcpStream::connect(address).await.is_ok());
    assert!(UdpSocket::bind(address).is_err());
    let judge = Arc::new(|_: &[u8]| Judged::Good);
    let second = Overlay::start(&[2; 32], MESH, &[address], false, judge.clone()).await;
    assert!(matches!(second, Err(OverlayError::InUse { protocol: "udp", .. })));

    let tcp = std::net::TcpListener::bind(any()).unwrap();
    let taken = tcp.local_addr().unwrap();
    let third = Overlay::start(&[3; 32], MESH, &[taken], false, judge).await;
    assert!(matches!(third, Err(OverlayError::InUse { protocol: "tcp", .. })));
}

/// A member that speaks the protocol but keeps no limits.
fn liar(seed: u8) -> Swarm<gossipsub::Behaviour> {
    let key = Keypair::ed25519_from_bytes([seed; 32]).unwrap();
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .message_id_fn(|message: &gossipsub::Message| {
            gossipsub::MessageId::from(blake3::hash(&message.data).as_bytes().to_vec())
        })
        .build()
        .unwrap();
    let anonymous = gossipsub::MessageAuthenticity::Anonymous;
    let mut gossip: gossipsub::Behaviour = gossipsub::Behaviour::new(anonymous, config).unwrap();
    gossip.subscribe(&topic()).unwrap();
    SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_quic()
        .with_behaviour(|_| gossip)
        .unwrap()
        .build()
}

/// Dials `to` and publishes for ever: at first messages just over our limit, and over gossipsub's limit
/// for the topic, together with short ones. Few enough of the former that it is still listened to.
async fn lie(mut swarm: Swarm<gossipsub::Behaviour>, to: SocketAddr) {
    let address: Multiaddr = format!("/ip4/{}/udp/{}/quic-v1", to.ip(), to.port()).parse().unwrap();
    swarm.dial(address).unwrap();
    let mut number = 0;
    loop {
        let _ = timeout(Duration::from_millis(500), async {
            loop {
                swarm.select_next_some().await;
            }
        })
        .await;
        let gossip = swarm.behaviour_mut();
        if number < 2 {
            let _ = gossip.publish(topic(), vec![b'L'; MAX_GOSSIP + 1 + number]);
            let _ = gossip.publish(topic(), vec![b'L'; 10 * MAX_GOSSIP + number]);
        }
        if gossip.publish(topic(), format!("short {number}").into_bytes()).is_ok() {
            number += 1;
        }
    }
}

fn topic() -> gossipsub::IdentTopic {
    gossipsub::IdentTopic::new(format!("mesh/1/{MESH}"))
}
