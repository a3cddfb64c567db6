//! False bytes and nonsense among those who pull.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures::FutureExt;
use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::until;
use mesh_consensus::id::{NodeId, VersionId};
use mesh_node::data::wire::{Ask, Give};
use mesh_node::wire::Header;
use mesh_storage::bitmap::Bitmap;
use mesh_storage::manifest::Manifest;
use mesh_transport::codec::{decode, encode};
use mesh_transport::net::{Lane, Net, Stream};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use super::{MOVED, Secret, found_below, show, try_mesh, version};
use crate::attacker::{Attacker, Share, addresses, id, runtime};
use crate::{nobody_fell, resident_kib, secs, status};

/// How much a node may grow: as in `floods.rs`.
const MORE_KIB: u64 = 256 << 10;
/// What the liar gives in place of every byte.
const FALSE: &[u8; 16] = b"a false chunk...";

/// Has everything, and gives something else.
fn false_bytes(lengths: Arc<[u32]>, given: Arc<AtomicUsize>) -> Share {
    Arc::new(move |_, header, mut stream: Stream| {
        let (lengths, given) = (lengths.clone(), given.clone());
        async move {
            if let Header::Manifest { .. } = header {
                let _ = stream.send_frame(&FALSE.repeat(50)).await;
                stream.finish();
                stream.stopped().await;
                return;
            }
            let (mut send, mut receive) = stream.split();
            let map = Give::Map(Bitmap::full(lengths.len()).to_bytes());
            let _ = send.send_frame(&encode(&map).unwrap()).await;
            let mut next = 0;
            while let Ok(Some(frame)) = receive.recv_frame(1 << 20).await {
                let wanted: Vec<u32> = match decode(&frame) {
                    Ok(Ask::Chunk(number)) => vec![number],
                    Ok(Ask::Any(count)) => {
                        next += 1;
                        (next..next + count).map(|n| n % lengths.len() as u32).collect()
                    }
                    _ => Vec::new(),
                };
                for number in wanted {
                    let bytes = lengths[number as usize];
                    let mut body = FALSE.repeat(bytes as usize / FALSE.len() + 1);
                    body.truncate(bytes as usize);
                    let frame = encode(&Give::Chunk { number, bytes, parts: 1 }).unwrap();
                    let sent = send.send_frame(&frame).await.is_ok();
                    if !sent || send.write_all(&body).await.is_err() {
                        return;
                    }
                    given.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        .boxed()
    })
}

/// The nodes that hold a version, by their ids.
fn holders(of: &Value) -> Vec<NodeId> {
    let all = of["holders"].as_array().unwrap().iter();
    all.map(|one| one["id"].as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_holder_that_gives_false_bytes_is_left_and_nothing_of_it_is_kept() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let grain = Secret::new("grain", ["grain.bin", "grain.txt"], 12_000_000, 8);
    // Without a word about it, it is open where there is one party.
    let known = grain.push(&fleet.hosts[0], &["--copies", "2"]);
    assert_eq!(known["visibility"], "open");
    let held = until(SETTLE, || {
        let held = holders(&show(&fleet.hosts[0], grain.name));
        (held.len() == 2).then_some(held)
    })
    .expect("there are two copies");
    // The other holder is taken over: it has said that it has a copy, and from now on lies.
    let liar = (1..3).find(|n| held.contains(&id(&fleet.hosts[*n]))).unwrap();
    let puller = 3 - liar;
    let listen = addresses(&fleet.hosts[liar], "data_addresses")[0];
    let file =
        fleet.hosts[0].data().join("store/manifests").join(known["manifest"].as_str().unwrap());
    let manifest = Manifest::decode(&std::fs::read(file).unwrap()).unwrap();
    let lengths: Arc<[u32]> = manifest.chunks().map(|chunk| chunk.bytes).collect();
    fleet.hosts[liar].kill().unwrap();
    let runtime = runtime();
    let attacker = Attacker::takes_over(&runtime, &fleet.hosts[liar], listen);
    let given = Arc::new(AtomicUsize::new(0));
    attacker.shares(false_bytes(lengths, given.clone()));
    for n in [0, puller] {
        let node = attacker.meets(&fleet.hosts[n]);
        until(SETTLE, || attacker.is_heard(node).then_some(())).expect("it passes for the node");
    }

    grain.pull(&fleet.hosts[puller], grain.name);
    let given = given.load(Ordering::Relaxed);
    println!("the liar was asked for {given} chunks before it was left");
    assert!(given > 0, "the liar was never asked");
    let told = fleet.hosts[puller].logs();
    let told = told.iter().filter(|(_, log)| log.contains("a peer sent wrong bytes")).count();
    assert!(told > 0, "the log does not say who lied");
    let lies = [FALSE.repeat(2)];
    assert_eq!(found_below(&fleet.hosts[puller].data(), &lies), None, "false bytes were kept");
    let verified = try_mesh(&fleet.hosts[puller], &["data", "verify", grain.name]);
    assert!(verified.ok(), "{verified:?}");
    nobody_fell(&fleet.hosts);
}

/// One stream of nonsense, until the other side has enough.
async fn nonsense(net: Net, node: NodeId, version: VersionId, kind: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let header = encode(&Header::Swarm { version, link: 1 }).unwrap();
    let Ok(mut stream) = net.open(node, header, Lane::Bulk).await else { return };
    for n in 0..2000_u32 {
        let frame = match kind {
            // Noise.
            0 => (0..rng.usize(0..300)).map(|_| rng.u8(..)).collect(),
            // Chunks that are not there, and more of them than anybody has.
            1 => encode(&Ask::Chunk(u32::MAX - n)).unwrap(),
            2 => encode(&Ask::Any(u32::MAX)).unwrap(),
            // The same few, for ever, and cancelled.
            3 => encode(&if n % 2 == 0 { Ask::Chunk(n % 3) } else { Ask::Cancel(n % 3) }).unwrap(),
            // It has everything, again and again, and then more than there is.
            4 => encode(&Ask::Have(vec![n % 2; 4000])).unwrap(),
            5 => encode(&Ask::Have((0..10_000).collect())).unwrap(),
            // A map is for the one who serves to send; a list that lies about its length.
            6 => encode(&Give::Map(vec![0xff; 50_000])).unwrap(),
            _ => [&[1, 3, 0, 0, 0][..], &u64::MAX.to_le_bytes()].concat(),
        };
        // What is given is never read.
        let sent = tokio::time::timeout(secs(2), stream.send_frame(&frame)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
}

#[test]
fn nonsense_among_pullers_harms_neither_the_server_nor_an_honest_pull() {
    let fleet = Plan::loopback(2).found().unwrap();
    let straw = Secret::new("straw", ["straw.bin", "straw.txt"], 12_000_000, 9);
    let known = straw.push(&fleet.hosts[0], &["--copies", "1"]);
    let runtime = runtime();
    // Each has one place among the pullers: two of them never leave it empty.
    let ticket = fleet.hosts[0].client().ticket(2).unwrap();
    let attackers = ["one", "two"].map(|name| Attacker::insider(&runtime, &ticket, name));
    let node = attackers.each_ref().map(|attacker| attacker.meets(&fleet.hosts[0]))[0];
    for attacker in &attackers {
        until(SETTLE, || attacker.is_heard(node).then_some(())).expect("a member is heard");
    }
    let pid = status(&fleet.hosts[0])["pid"].clone();
    let before = resident_kib(&pid);
    let begun = mesh_node::clock::steady();
    let tasks: Vec<_> = attackers
        .iter()
        .flat_map(|attacker| (0..8).map(move |kind| (attacker.net(), kind)))
        .map(|(net, kind)| {
            let version = version(&known);
            runtime.spawn(async move {
                for seed in 0.. {
                    nonsense(net.clone(), node, version, kind, seed).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    let most = std::thread::scope(|scope| {
        let pull = scope.spawn(|| straw.pull(&fleet.hosts[1], straw.name));
        let mut most = before;
        while !pull.is_finished() || begun.elapsed() < secs(4) {
            most = most.max(resident_kib(&pid));
            std::thread::sleep(Duration::from_millis(50));
        }
        pull.join().unwrap();
        most
    });
    println!("pulled beside nonsense in {:?}, {} KiB more at most", begun.elapsed(), most - before);
    assert!(begun.elapsed() < MOVED);
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(most < before + MORE_KIB, "{before} KiB became {most} KiB");
    assert_eq!(status(&fleet.hosts[0])["pid"], pid, "it was restarted");
    nobody_fell(&fleet.hosts);
}
