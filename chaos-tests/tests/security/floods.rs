//! Noise, half-open connections and those who never finish, on every port, while honest clients write.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan, SETTLE};
use mesh_chaos_tests::hosts::load::Load;
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;
use mesh_node::clock::steady;
use mesh_transport::identity::NodeKey;
use mesh_transport::net::{Lane, Net, Tuning};
use tokio::runtime::Runtime;

use crate::attacker::{Attacker, addresses, id, runtime};
use crate::http::open_tcp;
use crate::{resident_kib, secs, status, warm_up};

/// How much a node under attack may grow.
const MORE_KIB: u64 = 256 << 10;

fn long() -> bool {
    std::env::var_os("MESH_LONG").is_some_and(|value| value == "1")
}

fn noise(rng: &mut Rng, most: usize) -> Vec<u8> {
    (0..rng.usize(1..most)).map(|_| rng.u8(..)).collect()
}

/// Runs an attack on the first host; writes must go on meanwhile, its memory stays bounded, and afterwards it is as
/// good as before.
fn under(fleet: &Fleet, load: &Load, what: &str, attack: impl FnOnce() + Send) {
    let pid = status(&fleet.hosts[0])["pid"].clone();
    let before = resident_kib(&pid);
    let begun = steady();
    let most = std::thread::scope(|scope| {
        let attack = scope.spawn(attack);
        let mut most = before;
        while !attack.is_finished() {
            most = most.max(resident_kib(&pid));
            std::thread::sleep(Duration::from_millis(100));
        }
        attack.join().unwrap();
        most
    });
    let took = load.progress(5, secs(15));
    let took = took.unwrap_or_else(|| panic!("{what}: no writes any more"));
    println!(
        "{what}: {:.1} s, {} KiB more at most, then a write in {:.2} s",
        begun.elapsed().as_secs_f64(),
        most - before,
        took.as_secs_f64()
    );
    assert!(most < before + MORE_KIB, "{what}: {before} KiB became {most} KiB");
    // Asked directly, it answers.
    assert_eq!(status(&fleet.hosts[0])["pid"], pid, "{what}: it was restarted");
}

/// The first packets of so many handshakes that never go on.
fn first_packets(runtime: &Runtime, many: usize) -> Vec<Vec<u8>> {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    sink.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let address = sink.local_addr().unwrap();
    let mut packets = Vec::with_capacity(many);
    let mut buffer = [0; 2000];
    while packets.len() < many {
        let key = NodeKey::generate();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let _inside = runtime.enter();
        let net =
            Net::bind(&key, &[any], Tuning::default(), Arc::new(crate::attacker::Deaf)).unwrap();
        let dials: Vec<_> = (0..250)
            .map(|_| {
                let net = net.clone();
                let expected = NodeKey::generate().id();
                runtime.spawn(async move { net.join(expected, address, Vec::new()).await })
            })
            .collect();
        while let Ok(length) = sink.recv(&mut buffer) {
            // The rest are probes and repetitions.
            if length >= 1200 && packets.len() < many {
                packets.push(buffer[..length].to_vec());
            }
            if packets.len() % 250 == 0 {
                break;
            }
        }
        dials.iter().for_each(tokio::task::JoinHandle::abort);
    }
    packets
}

/// Opens connections until the other side or this machine has enough, and keeps them.
fn hang<S>(many: usize, open: impl Fn() -> std::io::Result<S>) -> Vec<S> {
    let mut held = Vec::new();
    for n in 0..many {
        match open() {
            Ok(one) => held.push(one),
            Err(_) if n % 16 == 0 => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => {}
        }
    }
    held
}

fn tcp(at: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, Duration::from_millis(200))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn unix(host: &Host) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(host.data().join("run/mesh.sock"))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    Ok(stream)
}

#[test]
fn neither_noise_nor_those_who_hang_stop_a_node() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let api = open_tcp(&mut fleet.hosts[0]);
    fleet.settle().unwrap();
    let data = addresses(&fleet.hosts[0], "data_addresses")[0];
    let overlay = addresses(&fleet.hosts[0], "overlay_addresses")[0];
    let runtime = runtime();
    let many = if long() { 10_000 } else { 2_000 };
    let packets = first_packets(&runtime, many);
    // Through the others: those who hang on the first one's socket may make its own clients wait.
    let doors = fleet.hosts[1..].iter().map(Host::client).collect();
    let load = Load::start(doors, &fleet.party, 61);
    warm_up(&load);
    let begun = load.now();

    under(&fleet, &load, &format!("{many} handshakes that never go on"), || {
        let sockets: Vec<UdpSocket> =
            (2..10).map(|n| UdpSocket::bind((format!("127.0.0.{n}"), 0)).unwrap()).collect();
        for (n, packet) in packets.iter().enumerate() {
            let _ = sockets[n % sockets.len()].send_to(packet, data);
            if n % 50 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        std::thread::sleep(secs(1));
    });
    under(&fleet, &load, "noise on UDP", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut rng = Rng::with_seed(1);
        for n in 0..20_000 {
            let mut bytes = noise(&mut rng, 1500);
            if n % 3 == 0 {
                // As a handshake begins.
                bytes[0] |= 0xc0;
                bytes.resize(1200, 0);
            }
            let _ = socket.send_to(&bytes, if n % 2 == 0 { data } else { overlay });
        }
    });
    under(&fleet, &load, "noise on TCP and on the socket", || {
        let mut rng = Rng::with_seed(2);
        for n in 0..600 {
            let bytes = noise(&mut rng, 20_000);
            let _ = match n % 3 {
                0 => tcp(overlay).and_then(|mut stream| stream.write_all(&bytes)),
                1 => tcp(api).and_then(|mut stream| stream.write_all(&bytes)),
                _ => unix(&fleet.hosts[0]).and_then(|mut stream| stream.write_all(&bytes)),
            };
        }
    });
    under(&fleet, &load, "half-open connections and slow headers", || {
        let each = if long() { 3_000 } else { 700 };
        let idle = hang(each, || tcp(overlay));
        // More than it takes at a time: those who came first make room for the rest.
        let mut slow = hang(each.min(300), || tcp(api));
        // Only its owner can be so many; beyond a thousand it would wait for itself.
        let mut local = hang((each / 2).min(700), || unix(&fleet.hosts[0]));
        println!("held: {} overlay, {} api, {} socket", idle.len(), slow.len(), local.len());
        for byte in b"GET /v1/status HTTP/1.1\r\nX" {
            for stream in &mut slow {
                let _ = stream.write_all(&[*byte]);
            }
            for stream in &mut local {
                let _ = stream.write_all(&[*byte]);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // Meanwhile its owner is answered: the socket has room for more than those.
        let begun = steady();
        assert!(fleet.hosts[0].client().status().is_ok(), "its owner is locked out");
        println!("its owner was answered in {:.2} s", begun.elapsed().as_secs_f64());
    });
    under(&fleet, &load, "bodies and headers without an end", || {
        let mut streams = hang(40, || unix(&fleet.hosts[0]));
        for (n, stream) in streams.iter_mut().enumerate() {
            let head = if n % 2 == 0 {
                "POST /v1/tickets HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Transfer-Encoding: chunked\r\n\r\n"
            } else {
                "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n"
            };
            let _ = stream.write_all(head.as_bytes());
        }
        let chunk = format!("ffff\r\n{}\r\n", "a".repeat(0xffff));
        let header = format!("X-{}: {}\r\n", "b".repeat(50), "c".repeat(4000));
        for _ in 0..40 {
            for (n, stream) in streams.iter_mut().enumerate() {
                let more = if n % 2 == 0 { &chunk } else { &header };
                let _ = stream.write_all(more.as_bytes());
            }
        }
        let mut said = [0; 64];
        for stream in &mut streams {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = stream.read(&mut said);
        }
    });
    let until_here = load.now();

    // A newcomer finds its way in, and all promises hold.
    let newcomer = fleet.host(3).unwrap();
    newcomer.join(&fleet.hosts[0].ticket().unwrap()).unwrap();
    let history = fleet.finish(load).unwrap();
    let gap = history.longest_gap(begun, until_here);
    println!("the longest wait for a write meanwhile: {:.2} s", gap.as_secs_f64());
    assert!(gap < secs(5), "writes stood still for {gap:?}");
}

#[test]
fn a_member_that_asks_without_end_is_held_to_its_share() {
    let fleet = Plan::loopback(1).found().unwrap();
    let load = fleet.load(62);
    warm_up(&load);
    let runtime = runtime();
    let insider = Attacker::insider(&runtime, &fleet.hosts[0].ticket().unwrap(), "insider");
    let node = insider.meets(&fleet.hosts[0]);
    assert_eq!(node, id(&fleet.hosts[0]));
    until(SETTLE, || insider.is_heard(node).then_some(())).unwrap();
    under(&fleet, &load, "calls, streams and messages without end", || {
        let net = insider.net();
        let calls = (0..400).map(|n: usize| {
            let net = net.clone();
            // Some are questions, some are as long as a question may be and mean nothing.
            let request = match n % 4 {
                0 => vec![0xff; 2 << 20],
                1 => vec![1; 100],
                _ => mesh_transport::codec::encode(&mesh_node::wire::Request::ReadIndex).unwrap(),
            };
            runtime.spawn(async move {
                for _ in 0..10 {
                    let _ = net.call(node, request.clone(), secs(3)).await;
                }
            })
        });
        let calls: Vec<_> = calls.collect();
        let streams = (0..300).map(|_| {
            let net = net.clone();
            runtime.spawn(async move {
                let header = vec![7; 60_000];
                let Ok(mut stream) = net.open(node, header, Lane::Bulk).await else { return };
                for _ in 0..50 {
                    if stream.send_frame(&[9; 20_000]).await.is_err() {
                        return;
                    }
                }
                tokio::time::sleep(secs(5)).await;
            })
        });
        let streams: Vec<_> = streams.collect();
        for _ in 0..2_000 {
            insider.say(node, vec![3; 60_000]);
        }
        runtime.block_on(async {
            let all = async {
                for one in calls.into_iter().chain(streams) {
                    let _ = one.await;
                }
            };
            let _ = tokio::time::timeout(secs(12), all).await;
        });
    });
    fleet.finish(load).unwrap();
}
