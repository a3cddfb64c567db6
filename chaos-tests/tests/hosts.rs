//! The harness itself: hosts, cuts, the wire, processes, and that nothing is left behind.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::leftovers::{self, MARK, Room};
use mesh_chaos_tests::hosts::ns::Lab;
use mesh_chaos_tests::hosts::ping::ping;
use mesh_chaos_tests::hosts::process::{Host, Place};
use mesh_chaos_tests::hosts::wire::Link;
use mesh_chaos_tests::hosts::{need, until};
use mesh_node::clock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const BRIDGE: &[&str] = &["namespaces", "ip", "iptables-restore"];
const WIRE: &[&str] = &["namespaces", "ip", "/dev/net/tun"];

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Whether anything gets there and back.
fn reaches(lab: &Lab, from: usize, to: usize) -> bool {
    ping(lab, from, to, 5, ms(10), ms(300)).unwrap().iter().any(Option::is_some)
}

/// Every pair, cut and healed in every way. The same story for both kinds of lab.
fn cut_and_heal(lab: &Lab) {
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
        assert!(reaches(lab, from, to), "{from} to {to}");
    }

    lab.cut(0, 1).unwrap();
    assert!(!reaches(lab, 0, 1) && !reaches(lab, 1, 0));
    assert!(reaches(lab, 0, 2) && reaches(lab, 1, 2), "the third is not concerned");
    lab.heal().unwrap();
    assert!(reaches(lab, 0, 1));

    lab.isolate(2).unwrap();
    assert!(!reaches(lab, 2, 0) && !reaches(lab, 1, 2) && reaches(lab, 0, 1));
    lab.heal().unwrap();

    lab.split(&[0], &[1, 2]).unwrap();
    assert!(!reaches(lab, 0, 1) && !reaches(lab, 2, 0) && reaches(lab, 1, 2));
    lab.heal().unwrap();

    lab.link_down(1).unwrap();
    assert!(!reaches(lab, 0, 1) && !reaches(lab, 1, 0) && reaches(lab, 0, 2));
    lab.heal().unwrap();
    assert!(reaches(lab, 0, 1) && reaches(lab, 1, 2));
}

/// What a cut in one direction lets through is seen by who receives it, not by who asks.
fn one_way(lab: &Lab) {
    use std::net::UdpSocket;
    let bind = |host: usize| {
        let address = lab.address(host);
        let socket = lab.namespace(host).run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(ms(300))).unwrap();
        socket
    };
    let (a, b) = (bind(0), bind(1));
    let arrives = |from: &UdpSocket, to: &UdpSocket| {
        from.send_to(b"hello", to.local_addr().unwrap()).unwrap();
        to.recv_from(&mut [0; 16]).is_ok()
    };
    lab.cut_from(0, 1).unwrap();
    assert!(!arrives(&a, &b), "what 0 sends 1 is lost");
    assert!(arrives(&b, &a), "what 1 sends 0 is not");
    lab.heal().unwrap();
    assert!(arrives(&a, &b));
}

#[test]
fn hosts_on_a_bridge_reach_each_other_until_they_are_cut() {
    if !need(BRIDGE) {
        return;
    }
    let lab = Lab::bridged(3).unwrap();
    cut_and_heal(&lab);
    one_way(&lab);
}

#[test]
fn hosts_on_a_wire_reach_each_other_until_they_are_cut() {
    if !need(WIRE) {
        return;
    }
    let lab = Lab::wired(3, 1).unwrap();
    cut_and_heal(&lab);
    one_way(&lab);
}

#[test]
fn a_bridge_loses_the_part_that_it_is_told_to() {
    if !need(BRIDGE) {
        return;
    }
    let lab = Lab::bridged(2).unwrap();
    lab.loss(0, 1, 0.3).unwrap();
    let times = ping(&lab, 0, 1, 500, ms(2), ms(500)).unwrap();
    let lost = times.iter().filter(|time| time.is_none()).count();
    assert!((75..225).contains(&lost), "{lost} of 500, at 30 %");
    lab.heal().unwrap();
    let times = ping(&lab, 0, 1, 100, ms(2), ms(500)).unwrap();
    assert!(times.iter().all(Option::is_some));
}

#[test]
fn a_bridge_keeps_udp_back_and_lets_tcp_through() {
    use std::net::{TcpListener, TcpStream};
    if !need(BRIDGE) {
        return;
    }
    let lab = Lab::bridged(3).unwrap();
    lab.block_udp(0, 1).unwrap();
    // Pings are UDP.
    assert!(!reaches(&lab, 0, 1) && !reaches(&lab, 1, 0));
    assert!(reaches(&lab, 0, 2) && reaches(&lab, 2, 1), "the third is not concerned");
    let there = lab.address(1);
    let listener = lab.namespace(1).run(|| TcpListener::bind((there, 0))).unwrap().unwrap();
    let at = listener.local_addr().unwrap();
    let connected = lab.namespace(0).run(|| TcpStream::connect_timeout(&at, ms(5000))).unwrap();
    assert!(connected.is_ok(), "{connected:?}");
    lab.heal().unwrap();
    assert!(reaches(&lab, 0, 1) && reaches(&lab, 1, 0));
}

#[test]
fn a_wire_delays_reorders_and_loses_as_it_is_told_to() {
    if !need(WIRE) {
        return;
    }
    let lab = Lab::wired(2, 7).unwrap();
    lab.shape(Link { delay: ms(200), jitter: ms(100), loss: 0.1 }).unwrap();
    let times = ping(&lab, 0, 1, 500, ms(10), ms(2000)).unwrap();
    let came: Vec<Duration> = times.iter().flatten().copied().collect();
    let lost = times.len() - came.len();
    // One in ten each way: 95 are expected.
    assert!((50..150).contains(&lost), "{lost} of 500 were lost");
    let mean = came.iter().sum::<Duration>() / u32::try_from(came.len()).unwrap();
    assert!((ms(370)..ms(500)).contains(&mean), "{mean:?} there and back");
    assert!(came.iter().all(|&time| time >= ms(200)), "none is faster than the wire");
    let fast = came.iter().filter(|&&time| time < ms(350)).count();
    let slow = came.iter().filter(|&&time| time > ms(450)).count();
    assert!(fast > 30 && slow > 30, "{fast} fast and {slow} slow: the jitter is missing");
    // Packet `n` left 10 ms after the one before it.
    let arrivals: Vec<Duration> =
        times.iter().zip(0..).filter_map(|(time, n)| Some((*time)? + ms(10) * n)).collect();
    assert!(arrivals.windows(2).filter(|two| two[0] > two[1]).count() > 30, "all stayed in order");

    // It changes while it runs, and each direction by itself.
    lab.shape(Link::default()).unwrap();
    lab.shape_from(0, 1, Link { delay: ms(100), ..Link::default() }).unwrap();
    let times = ping(&lab, 0, 1, 20, ms(10), ms(1000)).unwrap();
    assert!(times.iter().all(|time| time.is_some_and(|time| (ms(100)..ms(300)).contains(&time))));
}

fn room() -> Arc<Room> {
    Arc::new(Room::new().unwrap())
}

fn sleeper(host: &Host) -> std::process::Child {
    let child = host.spawn(Path::new("sleep"), &["600"], "sleeper").unwrap();
    // Between fork and exec it still has our environment.
    until(ms(5000), || host.runs().then_some(())).expect("the sleeper runs");
    child
}

/// The letter that the kernel has for what a process does.
fn doing(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().unwrap().split_whitespace().next().unwrap_or_default().to_owned()
}

#[test]
fn a_host_is_paused_resumed_and_killed() {
    let mut host = Host::new(&room(), "n0", Place::Loopback).unwrap();
    let mut child = sleeper(&host);
    host.pause();
    until(ms(5000), || (doing(child.id()) == "T").then_some(())).expect("it is stopped");
    host.resume();
    until(ms(5000), || (doing(child.id()) != "T").then_some(())).expect("it goes on");
    host.kill().unwrap();
    assert!(!host.runs());
    child.wait().unwrap();

    let mut child = sleeper(&host);
    host.term().unwrap();
    child.wait().unwrap();

    let mut child = sleeper(&host);
    drop(host);
    assert!(!child.wait().unwrap().success(), "who drops the host ends what runs on it");
}

#[test]
fn a_node_that_ends_by_itself_does_not_go_unseen() {
    let mut host = Host::new(&room(), "n0", Place::Loopback).unwrap();
    host.init().unwrap();
    assert_eq!(host.fell(), None);
    // Not by way of the host, which would know that it was on purpose.
    let pid = host.client().status().unwrap().pid;
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    until(ms(10_000), || (!host.runs()).then_some(())).expect("it is gone");
    assert!(host.fell().unwrap().contains("ended by itself"));
    host.kill().unwrap();
    assert_eq!(host.fell(), None, "it may be dead now");
}

#[test]
fn the_binary_under_test_is_the_one_of_this_checkout() {
    let host = Host::new(&room(), "n0", Place::Loopback).unwrap();
    let said = host.run(binary().unwrap(), &["--version"], ms(60_000)).unwrap();
    assert!(said.ok() && said.stdout.starts_with("mesh "), "{said:?}");
    let said = host.run(binary().unwrap(), &["nonsense"], ms(60_000)).unwrap();
    assert!(!said.ok() && said.is_report(), "{said:?}");
}

#[test]
fn a_process_on_a_host_sees_only_its_own_network() {
    if !need(BRIDGE) {
        return;
    }
    let lab = Arc::new(Lab::bridged(2).unwrap());
    let host = Host::new(&room(), "n1", Place::Lab(lab.clone(), 1)).unwrap();
    let said = host.run(Path::new("ip"), &["-o", "-4", "address"], ms(10_000)).unwrap();
    assert!(said.ok(), "{said:?}");
    assert!(said.stdout.contains("198.18.0.2/16") && !said.stdout.contains("198.18.0.1/"));
    assert_eq!(said.stdout.lines().count(), 2, "loopback and one more: {}", said.stdout);
}

#[test]
fn a_wall_clock_jumps_while_a_process_runs() {
    let host = Host::new(&room(), "n0", Place::Loopback).unwrap().with_clock().unwrap();
    let script = "for n in 1 2 3 4 5 6 7 8 9 10; do date +%s; sleep 0.2; done";
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| host.run(Path::new("sh"), &["-c", script], ms(20_000)).unwrap());
        std::thread::sleep(ms(900));
        host.set_clock(-3600).unwrap();
        let said = ran.join().unwrap();
        let now = i64::try_from(clock::now().0 / 1000).unwrap();
        let errors: Vec<i64> =
            said.stdout.lines().map(|line| line.parse::<i64>().unwrap() - now).collect();
        assert!(errors.first().is_some_and(|error| error.abs() < 60), "{errors:?}");
        assert!(errors.last().is_some_and(|error| (error + 3600).abs() < 60), "{errors:?}");
    });
}

#[test]
fn a_small_disk_fills_and_empties() {
    if !need(&["namespaces"]) {
        return;
    }
    let host = Host::new(&room(), "n0", Place::Loopback).unwrap().with_disk(4 << 20).unwrap();
    let file = host.data().join("file");
    std::fs::write(&file, [7; 100]).unwrap();
    host.fill_disk().unwrap();
    let error = std::fs::write(host.data().join("more"), [7; 8192]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    host.free_disk().unwrap();
    std::fs::write(host.data().join("more"), [7; 8192]).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), [7; 100]);
}

/// Runs in a process of its own: starts things, says where, and waits to be killed.
#[test]
fn a_test_that_is_killed() {
    if std::env::var_os("MESH_CHAOS_VICTIM").is_none() {
        return;
    }
    let host = Host::new(&room(), "n0", Place::Loopback).unwrap().with_disk(1 << 20).unwrap();
    let mut sleeper = sleeper(&host);
    println!("RUN {} {}", leftovers::mark(), host.data().display());
    sleeper.wait().unwrap();
}

#[test]
fn a_killed_test_leaves_nothing_behind() {
    if !need(&["namespaces"]) {
        return;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["a_test_that_is_killed", "--exact", "--nocapture"])
        .env("MESH_CHAOS_VICTIM", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = std::io::BufReader::new(victim.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(said).map(Result::unwrap);
    let line = lines.find(|line| line.contains("RUN ")).unwrap();
    let words: Vec<&str> = line[line.find("RUN ").unwrap()..].split(' ').collect();
    let (mark, data) = (format!("{MARK}={}", words[1]), Path::new(words[2]));
    let mounted = || std::fs::read_to_string("/proc/self/mounts").unwrap().contains(words[2]);
    assert!(!leftovers::processes(&mark).is_empty() && data.exists() && mounted());

    victim.kill().unwrap();
    victim.wait().unwrap();
    let clean = || leftovers::processes(&mark).is_empty() && !data.exists() && !mounted();
    until(ms(20_000), || clean().then_some(())).expect("its guard cleans up");
}

#[test]
fn what_a_dead_test_and_a_dead_guard_left_is_swept_up() {
    let temp = Room::new().unwrap();
    // No process has this number and began then.
    let dead = temp.path().join("mesh-chaos-1.1");
    let alive = temp.path().join(format!("mesh-chaos-{}", leftovers::mark()));
    let other = temp.path().join("somebody-elses");
    for dir in [&dead, &alive, &other] {
        std::fs::create_dir_all(dir.join("0")).unwrap();
    }
    let mut orphan = Command::new("sleep").arg("600").env(MARK, "1.1").spawn().unwrap();
    let mark = format!("{MARK}=1.1");
    until(ms(5000), || (!leftovers::processes(&mark).is_empty()).then_some(())).unwrap();
    leftovers::sweep(temp.path());
    assert!(!dead.exists() && alive.exists() && other.exists());
    assert!(!orphan.wait().unwrap().success(), "it was killed");
}
