//! What may be under way at a time: nobody who does not read, and no link that is slow, holds up raft.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure here fails the test")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{DEADLINE, Node, PATIENCE, pair, until};
use mesh_transport::net::{Lane, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

const MIB: usize = 1 << 20;
/// Nothing that was held back for so long still moves.
const STILL: Duration = Duration::from_millis(500);

/// How much can be written on a stream until it stands still.
async fn fill(stream: &mut Stream) -> usize {
    let chunk = vec![0; 64 << 10];
    let mut written = 0;
    while let Ok(more) = timeout(STILL, stream.write(&chunk)).await {
        written += more.unwrap();
    }
    written
}

async fn open(from: &Node, to: &Node, header: &str, lane: Lane) -> Stream {
    from.net.open(to.id(), header.into(), lane).await.unwrap()
}

/// Reads so many bytes.
async fn read(stream: &mut Stream, bytes: usize) {
    let mut buffer = vec![0; 256 << 10];
    let mut left = bytes;
    while left > 0 {
        let most = left.min(buffer.len());
        let n = timeout(DEADLINE, stream.read(&mut buffer[..most])).await.unwrap().unwrap();
        assert!(n > 0);
        left -= n;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_nobody_reads_hold_up_neither_messages_nor_calls() {
    let (a, b) = pair();
    let mut held = Vec::new();
    // In both directions: on "hold" the other side reads nothing, on "flood" it writes and we read nothing.
    for n in 0..24 {
        let lane = if n % 2 == 0 { Lane::Bulk } else { Lane::Control };
        let mut stream = open(&a, &b, if n < 12 { "hold" } else { "flood" }, lane).await;
        if n < 12 {
            assert!(fill(&mut stream).await <= MIB);
        }
        held.push(stream);
    }
    sleep(STILL).await;
    for n in 0..100u8 {
        a.net.send(b.id(), vec![n; 50_000]);
        b.net.send(a.id(), vec![n; 50_000]);
    }
    a.net.send(b.id(), vec![1; 3 * MIB]);
    let arrived = || a.messages().len() == 100 && b.messages().len() == 101;
    until("all messages arrive", arrived).await;
    let request = vec![7; 2 * MIB];
    assert_eq!(a.ask(&b, &request).await.unwrap().len(), request.len());
    assert_eq!(b.ask(&a, &request).await.unwrap().len(), request.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_grow_for_bulk_data_and_shrink_after_it() {
    let (a, b) = pair();
    let mut stream = open(&a, &b, "flood", Lane::Bulk).await;
    // Stops reading, and finds out how much was under way: no more can come than was granted before.
    let mut under_way = async |bytes: usize| {
        read(&mut stream, bytes).await;
        sleep(STILL).await;
        let before = a.net.links()[0].received_bytes;
        sleep(STILL).await;
        assert_eq!(a.net.links()[0].received_bytes / 4096, before / 4096, "it stands still");
        let mut arrived = 0;
        let mut buffer = vec![0; 64 << 10];
        // What has arrived is there at once; what is granted meanwhile takes a moment.
        while let Some(Ok(n)) = futures::FutureExt::now_or_never(stream.read(&mut buffer)) {
            arrived += n;
        }
        arrived
    };
    let quiet = under_way(8 * MIB).await;
    assert!(quiet < 3 * MIB, "{quiet}");
    let bulk = (a.net.bulk(b.id()), a.net.bulk(b.id()));
    let busy = under_way(128 * MIB).await;
    assert!(busy >= 4 * MIB, "{busy}");
    drop(bulk.0);
    let busy = under_way(64 * MIB).await;
    assert!(busy >= 4 * MIB, "one guard still stands: {busy}");
    drop(bulk.1);
    let quiet = under_way(128 * MIB).await;
    assert!(quiet < 3 * MIB, "{quiet}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_holds_for_the_next_connection_too() {
    let (a, b) = pair();
    let _bulk = a.net.bulk(b.id());
    assert!(a.ask(&b, b"x").await.is_ok());
    let (key, address) = (b.key.clone(), b.address());
    b.net.shutdown().await;
    drop(b);
    let free = || a.net.links().is_empty() && std::net::UdpSocket::bind(address).is_ok();
    until("it is gone", free).await;
    let b = Node::with(key, address);
    b.know(&a, mesh_transport::net::Welcome::Full);
    let mut stream = None;
    while stream.is_none() {
        stream = a.net.open(b.id(), b"flood".to_vec(), Lane::Bulk).await.ok();
    }
    let mut stream = stream.unwrap();
    read(&mut stream, 128 * MIB).await;
    // Nothing is read, and so nothing more can come than what is under way.
    let arrived = || a.net.links()[0].received_bytes > 128 * MIB as u64 + 4 * MIB as u64;
    until("a large window is filled", arrived).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_to_a_slow_service_all_arrive() {
    let (a, b) = pair();
    assert!(a.ask(&b, b"x").await.is_ok());
    b.heard.slow.store(true, Ordering::Relaxed);
    for n in 0..6 {
        a.net.send(b.id(), vec![n; 100_000]);
    }
    until("all arrive", || b.messages().len() == 6).await;
    let mut which: Vec<u8> = b.messages().iter().map(|message| message[0]).collect();
    which.sort_unstable();
    assert_eq!(which, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_sender_that_gives_up_is_told_from_one_that_is_done() {
    let (a, b) = pair();
    for (header, whole) in [("whole", true), ("cancelled", false)] {
        let mut stream = open(&a, &b, header, Lane::Control).await;
        let mut bytes = Vec::new();
        let read = timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.unwrap();
        assert_eq!(read.is_ok(), whole, "{header}: {read:?}");
    }
    // The other way round, and for one half alone.
    let (mut send, mut receive) = open(&a, &b, "mirror", Lane::Control).await.split();
    assert_eq!(receive.recv_frame(10).await.unwrap().unwrap(), b"ready");
    send.write_all(b"half a word").await.unwrap();
    drop(send);
    let mut bytes = Vec::new();
    timeout(DEADLINE, receive.read_to_end(&mut bytes)).await.unwrap().unwrap();
    assert_eq!(bytes, b"broken off");
}

#[tokio::test]
async fn a_sender_that_waits_hears_that_nobody_will_ever_read() {
    let (a, b) = pair();
    let mut stream = open(&a, &b, "deaf after a while", Lane::Bulk).await;
    let all = async { while stream.write(&[0; 10_000]).await.is_ok() {} };
    timeout(DEADLINE, all).await.unwrap();
}

/// A link of so many bytes a second, with a short queue, in front of `to`.
async fn slow_link(to: SocketAddr, rate: usize) -> (SocketAddr, Arc<AtomicBool>) {
    const QUEUE: usize = 64;
    let outside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let inside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    inside.connect(to).await.unwrap();
    let address = outside.local_addr().unwrap();
    let open = Arc::new(AtomicBool::new(true));
    let (there, mut queue) = tokio::sync::mpsc::channel::<Vec<u8>>(QUEUE);
    let back = Arc::new(std::sync::Mutex::new(None));
    let (out, seen) = (outside.clone(), back.clone());
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok((n, from)) = out.recv_from(&mut buffer).await {
            *seen.lock().unwrap() = Some(from);
            // What finds the queue full is lost, as on any router.
            let _ = there.try_send(buffer[..n].to_vec());
        }
    });
    let (into, wide) = (inside.clone(), open.clone());
    tokio::spawn(async move {
        let mut owed = 0.0;
        while let Some(packet) = queue.recv().await {
            if !wide.load(Ordering::Relaxed) {
                owed += packet.len() as f64 / rate as f64;
                if owed > 0.005 {
                    let before = tokio::time::Instant::now();
                    sleep(Duration::from_secs_f64(owed)).await;
                    owed -= before.elapsed().as_secs_f64();
                }
            }
            let _ = into.send(&packet).await;
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(n) = inside.recv(&mut buffer).await {
            let from = *back.lock().unwrap();
            if let Some(from) = from {
                let _ = outside.send_to(&buffer[..n], from).await;
            }
        }
    });
    (address, open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_slow_link_raft_goes_first_then_calls_then_bulk_data() {
    let (a, b) = (Node::start(), Node::start());
    a.know(&b, mesh_transport::net::Welcome::Full);
    b.know(&a, mesh_transport::net::Welcome::Full);
    let (address, wide) = slow_link(b.address(), 2 * MIB).await;
    a.net.learn(b.id(), vec![address]);
    let _bulk = b.net.bulk(a.id());
    // While the link is fast, the streams' windows grow to all that they may have.
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = open(&a, &b, "swallow", Lane::Bulk).await;
        stream.write_all(&vec![0; 16 * MIB]).await.unwrap();
        streams.push(stream);
    }
    until("all is read", || b.heard.swallowed.load(Ordering::Relaxed) == 64 * MIB).await;
    wide.store(false, Ordering::Relaxed);

    let sent = Arc::new(AtomicUsize::new(0));
    let bulk: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let sent = sent.clone();
            tokio::spawn(async move {
                while let Ok(n) = stream.write(&[0; 65_536]).await {
                    sent.fetch_add(n, Ordering::Relaxed);
                }
            })
        })
        .collect();
    until("more is under way than the link can carry", || sent.load(Ordering::Relaxed) > 8 * MIB)
        .await;
    let swallowed = || b.heard.swallowed.load(Ordering::Relaxed) - 64 * MIB;
    // A call of a mebibyte, and messages beside it: in turn, as the last one has arrived.
    let net = a.net.clone();
    let to = b.id();
    let call = tokio::spawn(async move { net.call(to, vec![5; MIB], 6 * PATIENCE).await });
    sleep(Duration::from_millis(50)).await;
    let mut before_the_call = 0;
    for n in 0..10 {
        a.net.send(b.id(), vec![n; 100]);
        until("a message arrives", || b.messages().len() == usize::from(n) + 1).await;
        before_the_call += usize::from(!call.is_finished());
    }
    assert!(before_the_call >= 3, "{before_the_call} messages overtook the call");
    assert!(call.await.unwrap().is_ok());
    // All of it overtook what was written before: the link has not carried that yet.
    let (sent, swallowed) = (sent.load(Ordering::Relaxed), swallowed());
    assert!(swallowed + 4 * MIB < sent, "{swallowed} of {sent} bytes were swallowed");
    bulk.iter().for_each(tokio::task::JoinHandle::abort);
}
