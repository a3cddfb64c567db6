//! The data plane between honest nodes, on real sockets.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::{DEADLINE, Heard, Node, PATIENCE, introduce, pair, until};
use mesh_transport::identity::NodeKey;
use mesh_transport::net::{
    BindError, CallError, Failure, JoinError, Lane, MAX_BESIDE, Net, Tuning, Welcome, Whereabouts,
};
use tokio::time::timeout;

#[tokio::test]
async fn two_nodes_talk() {
    let (a, b) = pair();
    assert_eq!(a.ask(&b, b"abc").await, Ok(b"cba".to_vec()));
    assert_eq!(b.ask(&a, b"").await, Ok(Vec::new()), "the other way on the same connection");
    assert_eq!((a.net.links().len(), b.net.links().len()), (1, 1));

    for n in 0..100u8 {
        a.net.send(b.id(), vec![n]);
    }
    until("all messages arrive", || b.messages().len() == 100).await;
    assert!(b.messages().iter().enumerate().all(|(n, m)| m == &[u8::try_from(n).unwrap()]));

    let mut stream = a.net.open(b.id(), b"head".to_vec(), Lane::Control).await.unwrap();
    assert_eq!(stream.recv_frame(10).await.unwrap(), Some(b"head".to_vec()));
    stream.send_frame(b"echo").await.unwrap();
    assert_eq!(stream.recv_frame(10).await.unwrap(), Some(b"echo".to_vec()));
    stream.finish();
    assert_eq!(stream.recv_frame(10).await.unwrap(), None);

    let hello = b.heard.hellos.lock().unwrap()[0].clone();
    assert_eq!(hello, (a.id(), b"hello of the service".to_vec()));
    let link = &a.net.links()[0];
    let there = Whereabouts::Direct(b.address());
    assert_eq!((link.node, link.address, link.dialled), (b.id(), there, true));
    assert!(link.sent_bytes > 0 && link.received_bytes > 0);
    a.net.shutdown().await;
    until("b sees that a is gone", || !b.is_up(&a)).await;
}

#[tokio::test]
async fn a_few_connections_beside_the_first_carry_streams_and_end_with_it() {
    let (a, b) = pair();
    a.ask(&b, b"abc").await.unwrap();
    let beside = async |number: usize| {
        let mut stream = a.net.open_beside(b.id(), number, b"head".to_vec()).await?;
        assert_eq!(stream.recv_frame(10).await.unwrap(), Some(b"head".to_vec()));
        stream.send_frame(b"echo").await.unwrap();
        assert_eq!(stream.recv_frame(10).await.unwrap(), Some(b"echo".to_vec()));
        Ok::<_, CallError>(stream)
    };
    let mut open = Vec::new();
    for number in [0, 1, 1, MAX_BESIDE - 1] {
        open.push(beside(number).await.unwrap());
    }
    assert_eq!(a.net.links()[0].connections, 4, "a number is dialled once");
    assert_eq!(b.net.links().len(), 1, "and what is beside is no link of its own");
    assert!(matches!(beside(MAX_BESIDE).await, Err(CallError::NoAddress(_))));
    assert_eq!(b.ask(&a, b"abc").await, Ok(b"cba".to_vec()));

    b.forget(&a);
    b.net.close(a.id(), "removed");
    for stream in &mut open {
        let ended = timeout(DEADLINE, stream.recv_frame(10)).await.expect("it ends");
        assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    }
    until("none is left", || a.net.links().is_empty()).await;
    assert!(beside(0).await.is_err(), "a removed node gets none");
}

#[tokio::test]
async fn a_message_to_a_peer_that_is_not_connected_dials_it() {
    let (a, b) = pair();
    a.net.send(b.id(), b"first".to_vec());
    until("it arrives", || b.messages() == [b"first"]).await;
}

#[tokio::test]
async fn a_message_may_be_sent_from_a_thread_outside_of_the_runtime() {
    let (a, b) = pair();
    let (net, to) = (a.net.clone(), b.id());
    let thread = std::thread::spawn(move || net.send(to, b"from afar".to_vec()));
    thread.join().unwrap();
    until("it arrives", || b.messages() == [b"from afar"]).await;
}

#[tokio::test]
async fn requests_of_full_size_pass_and_larger_ones_do_not() {
    let (a, b) = pair();
    let request = vec![7; 2 << 20];
    assert_eq!(a.ask(&b, &request).await.unwrap().len(), request.len());
    let error = a.net.call(b.id(), vec![0; (2 << 20) + 1], PATIENCE).await.unwrap_err();
    assert!(matches!(error, CallError::TooLong { .. }), "{error}");
}

#[tokio::test]
async fn a_call_gives_up_when_its_patience_ends() {
    let (a, b) = pair();
    let result = a.net.call(b.id(), b"sleep".to_vec(), Duration::from_millis(300)).await;
    assert!(matches!(result, Err(CallError::TimedOut { .. })), "{result:?}");
    assert_eq!(a.ask(&b, b"ab").await, Ok(b"ba".to_vec()));
}

#[tokio::test]
async fn hung_calls_of_callers_that_left_do_not_block_later_ones() {
    let (a, b) = pair();
    for _ in 0..5 {
        let hang =
            (0..40).map(|_| a.net.call(b.id(), b"sleep".to_vec(), Duration::from_millis(100)));
        futures::future::join_all(hang).await;
    }
    assert_eq!(a.ask(&b, b"ab").await, Ok(b"ba".to_vec()));
}

#[tokio::test]
async fn an_unknown_key_is_refused_and_nothing_of_it_is_processed() {
    let (a, b) = (Node::start(), Node::start());
    a.know(&b, Welcome::Full);
    a.learn(&b);
    let error = a.ask(&b, b"let me in").await.unwrap_err();
    assert!(error.contains("you are not a member here"), "{error}");
    a.net.send(b.id(), b"message".to_vec());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(b.heard.calls.lock().unwrap().is_empty());
    assert!(b.heard.hellos.lock().unwrap().is_empty());
    assert!(b.messages().is_empty());
    assert!(b.net.links().is_empty());
}

#[tokio::test]
async fn who_dials_judges_too() {
    let (a, b) = (Node::start(), Node::start());
    b.know(&a, Welcome::Full);
    a.learn(&b);
    let error = a.ask(&b, b"x").await.unwrap_err();
    assert!(error.contains("no member that we know"), "{error}");
}

#[tokio::test]
async fn the_dialled_key_must_answer() {
    let (a, b) = pair();
    let wanted = NodeKey::generate().id();
    a.net.learn(wanted, vec![b.address()]);
    let error = a.net.call(wanted, b"x".to_vec(), PATIENCE).await.unwrap_err();
    let CallError::Unreachable(error) = error else { panic!("{error}") };
    assert_eq!(error.tries, [(b.address(), Failure::AnotherKey { found: b.id() })]);
    assert!(b.heard.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_address_that_works_is_found_among_those_that_do_not() {
    let (a, b) = pair();
    // Nothing listens at the first, and nothing answers at the second (TEST-NET-1).
    let addresses = ["127.0.0.1:9".parse().unwrap(), "192.0.2.1:9".parse().unwrap(), b.address()];
    a.net.learn(b.id(), addresses.to_vec());
    assert_eq!(a.ask(&b, b"ab").await, Ok(b"ba".to_vec()));
}

#[tokio::test]
async fn nobody_listening_is_told_from_silence() {
    let a = Node::start();
    let gone = Node::start();
    gone.net.shutdown().await;
    let address = gone.address();
    drop(gone);
    let error = a.net.join(NodeKey::generate().id(), address, vec![]).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { how: Failure::Refused, .. }), "{error}");
    // A socket that never answers.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let error = a.net.join(NodeKey::generate().id(), address, vec![]).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { how: Failure::TimedOut(_), .. }), "{error}");
}

#[tokio::test]
async fn a_removed_peer_is_cut_off_at_once() {
    let (a, b) = pair();
    let mut stream = a.net.open(b.id(), b"watch".to_vec(), Lane::Control).await.unwrap();
    assert!(stream.recv_frame(10).await.unwrap().is_some());
    assert!(a.ask(&b, b"x").await.is_ok());

    b.forget(&a);
    b.net.close(a.id(), "removed");
    let end = timeout(DEADLINE, stream.recv_frame(10)).await.unwrap();
    assert!(end.is_err(), "{end:?}");
    let error = a.ask(&b, b"again").await.unwrap_err();
    assert!(error.contains("not a member") || error.contains("removed"), "{error}");
    assert_eq!(b.heard.calls.lock().unwrap().len(), 1);
    until("b is alone", || b.net.links().is_empty()).await;
}

#[tokio::test]
async fn a_removed_peer_is_refused_even_on_a_connection_that_stands() {
    let (a, b) = pair();
    assert!(a.ask(&b, b"x").await.is_ok());
    // As if the state said so before anybody closed the connection.
    b.forget(&a);
    assert!(a.ask(&b, b"y").await.is_err());
    a.net.send(b.id(), b"z".to_vec());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(b.heard.calls.lock().unwrap().len(), 1);
    assert!(b.messages().is_empty());
}

#[tokio::test]
async fn a_peer_that_is_only_vouched_for_has_its_messages_heard_and_nothing_else() {
    let (a, b) = pair();
    b.know(&a, Welcome::RaftOnly);
    a.net.send(b.id(), b"vote".to_vec());
    until("the message arrives", || b.messages() == [b"vote"]).await;
    let error = a.net.call(b.id(), b"x".to_vec(), PATIENCE).await.unwrap_err();
    assert!(matches!(error, CallError::Refused(_)), "{error}");
    let mut stream = a.net.open(b.id(), b"x".to_vec(), Lane::Bulk).await.unwrap();
    assert!(!matches!(stream.recv_frame(10).await, Ok(Some(_))));
    assert!(b.heard.calls.lock().unwrap().is_empty());
    assert_eq!(*b.heard.streams.lock().unwrap(), 0);
    a.net.send(b.id(), b"vote again".to_vec());
    until("the connection still stands", || b.messages().len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simultaneous_dial_ends_with_one_connection() {
    for _ in 0..10 {
        let (a, b) = pair();
        let (one, two) = tokio::join!(a.ask(&b, b"ab"), b.ask(&a, b"cd"));
        assert_eq!((one, two), (Ok(b"ba".to_vec()), Ok(b"dc".to_vec())));
        let settled = || {
            let (left, right) = (a.net.links(), b.net.links());
            left.len() == 1
                && right.len() == 1
                && left[0].address.address() == Some(b.address())
                && left[0].dialled != right[0].dialled
        };
        until("both use the same connection", settled).await;
        assert!(a.ask(&b, b"ab").await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_message_does_not_hold_up_small_ones() {
    let (a, b) = pair();
    assert!(a.ask(&b, b"x").await.is_ok());
    let large = vec![9; 64 << 20];
    a.net.send(b.id(), large.clone());
    for n in 0..50u8 {
        a.net.send(b.id(), vec![n]);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until("everything arrives", || b.messages().len() == 51).await;
    let messages = b.messages();
    let at = messages.iter().position(|m| m.len() == large.len()).unwrap();
    assert!(messages[at] == large, "unchanged");
    assert!(at > 5, "{at} small messages were ahead of the large one");
}

#[tokio::test]
async fn many_messages_of_middling_size_all_arrive() {
    let (a, b) = pair();
    assert!(a.ask(&b, b"x").await.is_ok());
    for _ in 0..10 {
        a.net.send(b.id(), vec![1; 1 << 20]);
    }
    until("all arrive", || b.messages().len() == 10).await;
}

#[tokio::test]
async fn after_a_restart_both_sides_find_each_other_again() {
    let (a, b) = pair();
    a.net.keep(BTreeSet::from([b.id()]));
    until("they are connected", || a.is_up(&b) && b.is_up(&a)).await;
    assert!(a.net.unreached().is_empty());
    let (b_id, key, address) = (b.id(), b.key.clone(), b.address());
    b.net.shutdown().await;
    drop(b);
    until("a has noticed", || a.net.links().is_empty()).await;
    until("a has tried in vain", || a.net.unreached().contains_key(&b_id)).await;
    until("its address is free", || std::net::UdpSocket::bind(address).is_ok()).await;

    let b = Node::with(key, address);
    b.know(&a, Welcome::Full);
    until("a has dialled again", || a.is_up(&b) && b.is_up(&a)).await;
    assert!(a.net.unreached().is_empty());
    assert_eq!(a.ask(&b, b"ab").await, Ok(b"ba".to_vec()));
    assert_eq!(b.ask(&a, b"ab").await, Ok(b"ba".to_vec()));
}

#[tokio::test]
async fn a_stranger_with_a_ticket_is_heard_where_a_peer_would_be_refused() {
    let (a, b) = (Node::start(), Node::start());
    a.know(&b, Welcome::Full);
    a.learn(&b);
    assert!(a.ask(&b, b"x").await.is_err());
    let reply = a.net.join(b.id(), b.address(), b"ticket".to_vec()).await.unwrap();
    assert_eq!(reply, b"joined: ticket");
    assert_eq!(b.heard.joins.lock().unwrap()[..], [(a.id(), b"ticket".to_vec())]);
    assert!(b.heard.calls.lock().unwrap().is_empty());

    let error = a.net.join(b.id(), b.address(), vec![0; 9 << 10]).await.unwrap_err();
    assert!(matches!(error, JoinError::TooLong { .. }), "{error}");
    let other = NodeKey::generate().id();
    let error = a.net.join(other, b.address(), vec![]).await.unwrap_err();
    assert!(
        matches!(error, JoinError::Unreachable { how: Failure::AnotherKey { .. }, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let a = Node::start();
    let key = NodeKey::generate();
    let service = Arc::new(Heard::default());
    let result = Net::bind(&key, &[a.address()], Tuning::default(), service);
    let Err(BindError::InUse { address }) = result else { panic!("it was taken") };
    assert_eq!(address, a.address());
}

#[tokio::test]
async fn a_node_listens_under_ipv4_and_ipv6_on_one_port() {
    let key = NodeKey::generate();
    let service = Arc::new(Heard::default());
    let first = Node::start();
    let port = first.address().port();
    first.net.shutdown().await;
    drop(first);
    let listen = [format!("127.0.0.1:{port}"), format!("[::1]:{port}")].map(|a| a.parse().unwrap());
    let Ok(net) = Net::bind(&key, &listen, Tuning::default(), service.clone()) else {
        // A machine without IPv6.
        return;
    };
    assert_eq!(net.addresses(), listen);
    let a = Node::with(NodeKey::generate(), "[::1]:0".parse().unwrap());
    assert!(a.net.join(key.id(), listen[1], b"six".to_vec()).await.is_ok());
    let error = a.net.join(key.id(), listen[0], b"four".to_vec()).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { how: Failure::NoSocket, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_packets_on_loopback_get_through() {
    let (a, b) = pair();
    let mut stream = a.net.open(b.id(), b"bulk".to_vec(), Lane::Bulk).await.unwrap();
    let _bulk = (a.net.bulk(b.id()), b.net.bulk(a.id()));
    assert!(stream.recv_frame(10).await.unwrap().is_some());
    let (mut send, mut receive) = stream.split();
    let chunk = vec![5; 1 << 20];
    let write = async {
        for _ in 0..32 {
            send.send_frame(&chunk).await.unwrap();
        }
        send.finish();
    };
    let read = async {
        let mut frames = 0;
        while let Some(frame) = receive.recv_frame(1 << 20).await.unwrap() {
            assert_eq!(frame.len(), 1 << 20);
            frames += 1;
        }
        frames
    };
    let ((), frames) = timeout(DEADLINE, async { tokio::join!(write, read) }).await.unwrap();
    assert_eq!(frames, 32);
    let link = &a.net.links()[0];
    assert!(link.mtu > 1452, "packets grew to {} bytes only", link.mtu);
}

#[tokio::test]
async fn peers_that_nobody_introduced_have_no_address() {
    let (a, b) = (Node::start(), Node::start());
    let error = a.net.call(b.id(), vec![], PATIENCE).await.unwrap_err();
    assert!(matches!(error, CallError::NoAddress(_)), "{error}");
    introduce(&a, &b);
    assert!(a.ask(&b, b"x").await.is_ok());
}

#[tokio::test]
async fn a_peer_that_hangs_up_at_once_is_not_dialled_without_pause() {
    let (a, b) = pair();
    *b.heard.fickle.lock().unwrap() = true;
    a.net.keep(BTreeSet::from([b.id()]));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let hellos = b.heard.hellos.lock().unwrap().len();
    assert!((1..=12).contains(&hellos), "{hellos} hellos in two seconds");
    *b.heard.fickle.lock().unwrap() = false;
    until("it is tried again", || a.is_up(&b)).await;
}

#[test]
fn a_peer_that_died_without_a_word_is_found_again_before_its_silence_is_noticed() {
    let ours = tokio::runtime::Runtime::new().unwrap();
    // Twice: once we speak first after the crash, once the peer does.
    for we_ask in [true, false] {
        let a = ours.block_on(async { Node::start() });
        let theirs = tokio::runtime::Runtime::new().unwrap();
        let b = theirs.block_on(async { Node::start() });
        introduce(&a, &b);
        assert!(ours.block_on(a.ask(&b, b"x")).is_ok());
        let (key, address) = (b.key.clone(), b.address());
        // Its tasks end here, and nothing more is sent.
        theirs.shutdown_timeout(DEADLINE);
        drop(b);

        let theirs = tokio::runtime::Runtime::new().unwrap();
        let b = theirs.block_on(async { Node::with(key, address) });
        b.know(&a, Welcome::Full);
        b.learn(&a);
        let began = tokio::time::Instant::now();
        let mut answered = false;
        while !answered && began.elapsed() < DEADLINE {
            answered = if we_ask {
                ours.block_on(a.ask(&b, b"y")).is_ok()
            } else {
                theirs.block_on(b.ask(&a, b"y")).is_ok()
            };
        }
        assert!(answered);
        assert!(began.elapsed() < Duration::from_secs(10), "an idle connection dies after 15 s");
        let one = || a.net.links().len() == 1 && b.net.links().len() == 1;
        ours.block_on(until("one connection stands", one));
    }
}

#[tokio::test]
async fn after_its_end_a_node_leaves_its_address_to_another() {
    let a = Node::start();
    let address = a.address();
    a.net.shutdown().await;
    let rebind = || {
        let service = Arc::new(Heard::default());
        Net::bind(&NodeKey::generate(), &[address], Tuning::default(), service).is_ok()
    };
    until("the address is free although somebody still holds the old node", rebind).await;
    let error = a.net.call(NodeKey::generate().id(), vec![], PATIENCE).await;
    assert!(error.is_err());
}
