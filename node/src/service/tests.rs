//! Whom a node serves, and when.

use mesh_consensus::autopilot::Waits;
use mesh_consensus::id::PartyId;
use mesh_transport::identity::NodeKey;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::clock;
use crate::engine::{Engine, Parts, Place, Roster, Told};
use crate::handle::{Pulse, Writer};
use crate::join::{Choices, found};

const MATE: NodeId = NodeId([1; 32]);
const OTHER: NodeId = NodeId([2; 32]);
const LEAVER: NodeId = NodeId([3; 32]);
const WORKER: NodeId = NodeId([4; 32]);

/// What a node answers that has one mate of its own party, and one member of another; and its pulse.
fn peers() -> (tempfile::TempDir, Peers, watch::Sender<Pulse>) {
    let temp = tempfile::tempdir().unwrap();
    let dir = Dir::at(temp.path().join("node"));
    let listen = vec![("127.0.0.1".parse().unwrap(), Some(0))];
    found(&dir, &Choices { listen, ..Choices::default() }).unwrap();
    let identity = dir.membership().unwrap().unwrap().identity;
    let whoami = Whoami {
        mesh: identity.mesh,
        epoch: identity.epoch,
        node: identity.node,
        seat: identity.raft_id,
    };
    let parts = Parts {
        dir: dir.clone(),
        key: dir.node_key().unwrap(),
        identity,
        told: Told::default(),
        waits: Waits::default(),
        is_alive: Box::new(|_| true),
    };
    let (_engine, orders, shown) = Engine::open(parts).unwrap();
    let place = |name: &str, party: u8, leaving| Place {
        name: name.parse().unwrap(),
        party: PartyId([party; 32]),
        seat: None,
        leaving,
        worker: false,
    };
    let members = [
        (whoami.node, place("me", 1, false)),
        (MATE, place("mate", 1, false)),
        (OTHER, place("other", 2, false)),
        (LEAVER, place("leaver", 1, true)),
        (WORKER, Place { worker: true, ..place("worker", 1, false) }),
    ];
    let roster = Roster { index: 1, members: members.into(), ..Roster::default() };
    let pulse = watch::Sender::new(shown.pulse.borrow().clone());
    let shown = Shown {
        pulse: pulse.subscribe(),
        roster: watch::Sender::new(Arc::new(roster)).subscribe(),
        ..shown
    };
    let hub = Arc::new(Hub::new(identity.mesh, identity.node, shown.clone()));
    let secret = Arc::new(RwLock::new(None));
    let writer = Writer { sender: mpsc::channel(1).0, removed: watch::channel(false).1 };
    let sponsor = Arc::new(Sponsor {
        whoami,
        key: NodeKey::generate(),
        chain: Vec::new(),
        writer: writer.clone(),
        orders: orders.clone(),
        hub: hub.clone(),
        secret: secret.clone(),
    });
    let chain = Vec::new();
    let sealing = Arc::new(RwLock::new(None));
    let data = Data::new(crate::data::Parts {
        whoami,
        store: mesh_storage::store::Store::open(dir.path()).unwrap(),
        shown: shown.clone(),
        orders: orders.clone(),
        writer,
        hub: hub.clone(),
        sealing: sealing.clone(),
    });
    let work = crate::work::Work::new(dir.path());
    let training = Training::new(crate::training::service::Parts {
        whoami,
        shown: shown.clone(),
        orders: orders.clone(),
        hub: hub.clone(),
        root: dir.file("training"),
    });
    let peers = Peers {
        whoami,
        chain,
        shown,
        orders,
        hub,
        secret,
        sealing,
        sponsor,
        dir,
        data,
        work,
        training,
    };
    (temp, peers, pulse)
}

#[test]
fn a_node_that_has_heard_no_voter_for_half_a_minute_serves_no_other_party() {
    let (_temp, peers, pulse) = peers();
    let now = clock::steady();
    for (fresh, serves) in [
        (Some(now), true),
        (now.checked_sub(STALE - Duration::from_secs(10)), true),
        (now.checked_sub(STALE + Duration::from_secs(1)), false),
        (None, false),
    ] {
        pulse.send_modify(|pulse| pulse.fresh = fresh);
        let other = if serves { Welcome::Full } else { Welcome::RaftOnly };
        assert_eq!(peers.still(OTHER), other, "{fresh:?}");
        // Its own party is served, and whoever leaves or is a stranger never is.
        assert_eq!(peers.still(MATE), Welcome::Full);
        assert_eq!(peers.still(LEAVER), Welcome::RaftOnly);
        assert_eq!(peers.still(NodeId([9; 32])), Welcome::No);
    }
}

#[tokio::test]
async fn a_partys_sealing_secret_goes_to_its_own_nodes_workers_too_and_to_nobody_else() {
    let (_temp, peers, _pulse) = peers();
    assert_eq!(peers.answer(MATE, Request::SealingSecret).await, Reply::Refused);
    let secret = PartySecret::new([5; 32]).sealing_secret();
    let bytes = *secret.bytes();
    *peers.sealing.write().await = Some(secret);
    for node in [MATE, WORKER] {
        let answer = peers.answer(node, Request::SealingSecret).await;
        assert_eq!(answer, Reply::SealingSecret(bytes));
    }
    for node in [OTHER, LEAVER, NodeId([9; 32])] {
        assert_eq!(peers.answer(node, Request::SealingSecret).await, Reply::Refused);
    }
}
