//! Real nodes under faults. Each story founds a mesh, lets clients write and read through every node,
//! breaks something, heals it, and checks the promises: A acknowledged writes survive, B one leader a
//! term, C one history, D linearizable reads and writes, E who is late is refused, and no panic.
//!
//! Times that a person would want to know are printed. The deadlines are generous: they tell a mesh
//! that is stuck from one on a busy machine, no more. `MESH_LONG=1` makes some stories longer.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use mesh_chaos_tests::hosts::client::{Got, Member, Put};
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan, SETTLE};
use mesh_chaos_tests::hosts::load::Load;
use mesh_chaos_tests::hosts::ns::Lab;
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::wire::Link;
use mesh_chaos_tests::hosts::{need, until};
use mesh_node::clock::steady;

const BRIDGE: &[&str] = &["namespaces", "ip", "iptables-restore"];
const WIRE: &[&str] = &["namespaces", "ip", "/dev/net/tun"];
/// Lets a dead voter be replaced after seconds instead of minutes.
const SHORT_WAITS: (&str, &str) = ("MESH_TEST_WAITS", "short");

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn long() -> bool {
    std::env::var_os("MESH_LONG").is_some_and(|value| value == "1")
}

/// Some work on a healthy mesh, so that there is something to lose.
fn warm_up(load: &Load) {
    load.progress(20, SETTLE).expect("a healthy mesh acknowledges writes");
}

/// Waits until writes are acknowledged again, and prints how long that took.
fn writes_again(load: &Load, after: &str) -> Duration {
    let took = load.progress(5, SETTLE);
    let took = took.unwrap_or_else(|| panic!("no writes within {SETTLE:?} after: {after}"));
    println!("{after}: writes again after {:.2} s", took.as_secs_f64());
    took
}

/// Brings a host up and demands that it stays so.
fn up(host: &mut Host) {
    let ended = host.try_up(SETTLE).unwrap();
    assert!(ended.is_none(), "{} does not come up: {ended:?}", host.name);
}

#[test]
fn a_killed_leader_is_replaced_and_comes_back() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(1);
    warm_up(&load);
    for _ in 0..if long() { 20 } else { 2 } {
        let leader = fleet.leader().unwrap();
        fleet.hosts[leader].kill().unwrap();
        writes_again(&load, "kill -9 of the leader");
        up(&mut fleet.hosts[leader]);
        fleet.settle().unwrap();
    }
    fleet.finish(load).unwrap();
}

#[test]
fn all_voters_are_killed_and_come_back_by_themselves() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(2);
    warm_up(&load);
    for _ in 0..2 {
        for host in &mut fleet.hosts {
            host.kill().unwrap();
        }
        for host in &mut fleet.hosts {
            host.up().unwrap();
        }
        writes_again(&load, "kill -9 of all voters");
    }
    fleet.finish(load).unwrap();
}

fn a_leader_sleeps(time: Duration) {
    let fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(3);
    warm_up(&load);
    let leader = fleet.leader().unwrap();
    fleet.hosts[leader].pause();
    let asleep = load.now();
    writes_again(&load, "SIGSTOP of the leader");
    std::thread::sleep((asleep + time).saturating_sub(load.now()));
    // It wakes in the belief that it leads. Whatever it tells anybody now is in the history.
    fleet.hosts[leader].resume();
    fleet.leader_but(leader).unwrap();
    std::thread::sleep(secs(2));
    fleet.finish(load).unwrap();
}

#[test]
fn a_leader_that_slept_five_seconds_answers_nothing_stale() {
    a_leader_sleeps(secs(5));
}

#[test]
fn a_leader_that_slept_half_a_minute_answers_nothing_stale() {
    a_leader_sleeps(secs(30));
}

#[test]
fn the_smaller_side_of_a_split_neither_writes_nor_reads() {
    if !need(BRIDGE) {
        return;
    }
    let fleet = Plan::lab(Lab::bridged(5).unwrap(), 5).found().unwrap();
    let load = fleet.load(4);
    warm_up(&load);
    let leader = fleet.leader().unwrap();
    let friend = (leader + 1) % 5;
    let minority = [leader, friend];
    let majority: Vec<usize> = (0..5).filter(|host| !minority.contains(host)).collect();
    fleet.lab().split(&minority, &majority).unwrap();
    until(SETTLE, || {
        let leads = |&host: &usize| fleet.hosts[host].client().status().ok().map(|s| s.is_leader);
        majority.iter().filter_map(leads).any(|leads| leads).then_some(())
    })
    .expect("the larger side elects a leader");
    writes_again(&load, "a split with the leader on the smaller side");
    // By now the old leader knows that it has no majority.
    std::thread::sleep(secs(2));
    for host in minority {
        let client = fleet.hosts[host].client();
        let put = client.put(&fleet.party, "of-the-minority", None, 1);
        assert!(put != Put::Done, "n{host} wrote without a majority");
        let got = client.get(&fleet.party, "chaos-0", false);
        assert_eq!(got, Got::Nothing, "n{host} read as of now without a majority");
        let got = client.get(&fleet.party, "chaos-0", true);
        assert!(got != Got::Nothing, "n{host} does not even answer from what it has");
        assert!(client.nodes().is_ok(), "n{host} does not list the nodes it knows");
    }
    fleet.lab().heal().unwrap();
    fleet.finish(load).unwrap();
}

#[test]
fn a_leader_that_hears_nobody_steps_down() {
    if !need(BRIDGE) {
        return;
    }
    let fleet = Plan::lab(Lab::bridged(3).unwrap(), 3).found().unwrap();
    let load = fleet.load(5);
    warm_up(&load);
    let leader = fleet.leader().unwrap();
    for other in (0..3).filter(|&other| other != leader) {
        fleet.lab().cut_from(other, leader).unwrap();
    }
    let next = fleet.leader_but(leader).unwrap();
    writes_again(&load, "a leader that can speak and not hear");
    fleet.lab().heal().unwrap();
    fleet.settle().unwrap();

    // And the other way round: it hears everybody, and nobody hears it.
    for other in (0..3).filter(|&other| other != next) {
        fleet.lab().cut_from(next, other).unwrap();
    }
    fleet.leader_but(next).unwrap();
    writes_again(&load, "a leader that can hear and not speak");
    fleet.lab().heal().unwrap();
    fleet.finish(load).unwrap();
}

#[test]
fn two_voters_that_see_only_the_third_do_not_fight() {
    if !need(BRIDGE) {
        return;
    }
    let mut fleet = Plan::lab(Lab::bridged(3).unwrap(), 3).found().unwrap();
    let load = fleet.load(6);
    warm_up(&load);
    let leader = fleet.leader().unwrap();
    let term = fleet.term();
    fleet.lab().cut(leader, (leader + 1) % 3).unwrap();
    std::thread::sleep(secs(12));
    let elections = fleet.elections_since(term);
    println!("a cut between the leader and one follower: {elections} elections in 12 s");
    // One is fair: the follower may win the third over. More would be a fight without end.
    assert!(elections <= 2, "{elections} elections");
    writes_again(&load, "a cut between two of three");
    // Whoever was cut off may have given up its seat and follow the third. Its vote is needed now.
    fleet.hosts[leader].kill().unwrap();
    writes_again(&load, "a cut between two of three, then the loss of the one beyond it");
    fleet.lab().heal().unwrap();
    up(&mut fleet.hosts[leader]);
    fleet.finish(load).unwrap();
}

#[test]
fn a_slow_lossy_wire_slows_and_does_not_stop() {
    if !need(WIRE) {
        return;
    }
    let fleet = Plan::lab(Lab::wired(3, 7).unwrap(), 3).found().unwrap();
    let load = fleet.load(7);
    warm_up(&load);
    let bad =
        Link { delay: Duration::from_millis(200), jitter: Duration::from_millis(100), loss: 0.1 };
    fleet.lab().shape(bad).unwrap();
    // It may take an election or two to learn how slow the wire is.
    std::thread::sleep(secs(10));
    let (term, before, time) = (fleet.term(), load.acked(), secs(if long() { 60 } else { 15 }));
    std::thread::sleep(time);
    let (elections, writes) = (fleet.elections_since(term), load.acked() - before);
    println!("200±100 ms, 10 % lost: {writes} writes and {elections} elections in {time:?}");
    assert!(writes > 0, "nothing was acknowledged");
    // By now the tick fits the wire. A busy machine, or many losses in a row, may still cost one.
    assert!(elections <= 2, "{elections} elections");
    fleet.lab().shape(Link::default()).unwrap();
    fleet.finish(load).unwrap();
}

#[test]
fn a_voter_gone_for_good_is_replaced() {
    let mut fleet = Plan::loopback(4).setting(SHORT_WAITS.0, SHORT_WAITS.1).found().unwrap();
    let load = fleet.load(8);
    warm_up(&load);
    let voters = |fleet: &Fleet| -> Vec<String> {
        let members = fleet.until_members("three vote", |members| {
            members.iter().filter(|member| member.role == "voter").count() == 3
        });
        let members = members.unwrap().into_iter();
        members.filter(|member| member.role == "voter").map(|member| member.name).collect()
    };
    let before = voters(&fleet);
    let leader = fleet.leader().unwrap();
    let dead = before.iter().find(|name| **name != fleet.hosts[leader].name).unwrap();
    let host = fleet.hosts.iter_mut().find(|host| host.name == *dead).unwrap();
    host.kill().unwrap();
    let members = fleet.until_members("the dead voter is replaced", |members| {
        let votes = |name: &str| members.iter().any(|m| m.name == name && m.role == "voter");
        !votes(dead) && members.iter().filter(|member| member.role == "voter").count() == 3
    });
    members.unwrap();
    // The group as it is now survives one more loss.
    fleet.settle().unwrap();
    let leader = fleet.leader().unwrap();
    fleet.hosts[leader].kill().unwrap();
    writes_again(&load, "one of three gone for good, then the leader");
    up(&mut fleet.hosts[leader]);
    fleet.finish(load).unwrap();
}

#[test]
fn a_voter_that_slept_while_the_group_changed_finds_back() {
    let mut fleet = Plan::loopback(4).setting(SHORT_WAITS.0, SHORT_WAITS.1).found().unwrap();
    let load = fleet.load(9);
    warm_up(&load);
    let leader = fleet.leader().unwrap();
    let members = fleet.members().unwrap();
    let votes = |host: &Host| members.iter().any(|m| m.name == host.name && m.role == "voter");
    let sleeper = (0..4).find(|&n| n != leader && votes(&fleet.hosts[n])).unwrap();
    fleet.hosts[sleeper].kill().unwrap();
    let name = fleet.hosts[sleeper].name.clone();
    let replaced = fleet.until_members("the sleeper is replaced", |members| {
        members.iter().any(|member| member.name == name && member.role != "voter")
    });
    replaced.unwrap();
    // Two that it has never heard of, and one that it knew is gone.
    fleet.grow().unwrap();
    fleet.grow().unwrap();
    fleet.settle().unwrap();
    let known = (0..4).find(|&n| n != sleeper && Some(n) != fleet.leader()).unwrap();
    fleet.hosts[known].down().unwrap();
    writes_again(&load, "a group that changed while a voter slept");
    up(&mut fleet.hosts[sleeper]);
    fleet.settle().unwrap();
    up(&mut fleet.hosts[known]);
    fleet.finish(load).unwrap();
}

#[test]
fn a_watcher_that_slept_while_the_voters_were_replaced_finds_back() {
    let mut fleet = Plan::loopback(3).setting(SHORT_WAITS.0, SHORT_WAITS.1).found().unwrap();
    let load = fleet.load(16);
    warm_up(&load);
    let mut watcher = fleet.host(9).unwrap().with_setting("MESH_VOTES", "false");
    watcher.join(&fleet.hosts[2].ticket().unwrap()).unwrap();
    let follows = |watcher: &Host, index: u64| {
        until(SETTLE, || watcher.client().status().ok().filter(|status| status.index >= index))
    };
    let seen = follows(&watcher, 2).expect("the watcher follows");
    assert_eq!(seen.role, "watcher");
    watcher.down().unwrap();
    // It knows three voters. Two of them die and are taken out, and two that it never heard of take their place.
    fleet.grow().unwrap();
    fleet.grow().unwrap();
    let voters = |members: &[Member]| members.iter().filter(|m| m.role == "voter").count();
    fleet.until_members("five vote", |members| voters(members) == 5).unwrap();
    fleet.settle().unwrap();
    for dead in [0, 1] {
        fleet.hosts[dead].kill().unwrap();
    }
    writes_again(&load, "two of five voters gone");
    for dead in ["n0", "n1"] {
        fleet.hosts[2].mesh(&["node", "rm", dead, "--yes"]).unwrap();
    }
    fleet
        .until_members("three vote", |members| members.len() == 4 && voters(members) == 3)
        .unwrap();
    fleet.settle().unwrap();
    let index = fleet.hosts[2].client().status().unwrap().index;
    up(&mut watcher);
    assert!(follows(&watcher, index).is_some(), "the watcher is stuck at {}", seen.index);
    assert!(watcher.panicked().is_none(), "{:?}", watcher.panicked());
    fleet.finish(load).unwrap();
}

#[test]
fn without_a_majority_every_node_says_how_old_its_word_is() {
    // Three vote and one learns. Without two of the voters, the others can only repeat old words to each other.
    let mut fleet = Plan::loopback(4).found().unwrap();
    let load = fleet.load(15);
    warm_up(&load);
    let leader = fleet.leader().unwrap();
    let votes = |host: &Host| host.client().status().is_ok_and(|status| status.role == "voter");
    let voter = (0..4).find(|&n| n != leader && votes(&fleet.hosts[n])).unwrap();
    for dead in [leader, voter] {
        fleet.hosts[dead].kill().unwrap();
    }
    let alive: Vec<usize> = (0..4).filter(|n| ![leader, voter].contains(n)).collect();
    let ask = |host: usize| {
        let path = "/v1/nodes";
        fleet.hosts[host].client().ask("GET", path, None, secs(5)).unwrap().body
    };
    let mut oldest = BTreeMap::new();
    let begun = steady();
    while begun.elapsed() < secs(16) {
        for &host in &alive {
            let age = ask(host)["age_ms"].as_u64().unwrap();
            let before = oldest.insert(host, age).unwrap_or(0);
            assert!(age >= before, "n{host} said {before} ms, and now {age} ms");
        }
        std::thread::sleep(Duration::from_millis(400));
    }
    for (host, age) in oldest {
        assert!(age > 10_000, "n{host} says that it is {age} ms old");
        let items = ask(host)["items"].as_array().unwrap().clone();
        assert!(items.iter().all(|item| item["is_leader"] == false), "n{host} names a dead leader");
    }
    for dead in [leader, voter] {
        up(&mut fleet.hosts[dead]);
    }
    fleet.finish(load).unwrap();
}

#[test]
fn a_wall_clock_that_jumps_moves_nobody() {
    const HOUR: i64 = 3600;
    let fleet = Plan::loopback(3).clocks().found().unwrap();
    let load = fleet.load(10);
    warm_up(&load);
    let term = fleet.term();
    let leader = fleet.leader().unwrap();
    let follower = (leader + 1) % 3;
    let year = 365 * 24 * HOUR;
    let jumps = [(follower, HOUR), (leader, -HOUR), (leader, HOUR), (follower, -year)];
    for (host, wrong_by) in jumps {
        fleet.hosts[host].set_clock(wrong_by).unwrap();
        writes_again(&load, &format!("the clock of n{host} wrong by {wrong_by} s"));
        std::thread::sleep(secs(1));
    }
    let elections = fleet.elections_since(term);
    // A busy machine may cause one. A clock that matters would cause one at every jump.
    assert!(elections <= 1, "{elections} elections");
    let members = fleet.members().unwrap();
    assert!(members.len() == 3 && members.iter().all(|member| member.state == "up"), "{members:?}");
    for host in &fleet.hosts {
        host.set_clock(0).unwrap();
    }
    fleet.finish(load).unwrap();
}

#[test]
fn a_full_disk_stops_one_node_and_heals() {
    if !need(&["namespaces"]) {
        return;
    }
    let mut fleet = Plan::loopback(3).first_disk(64 << 20).found().unwrap();
    let load = fleet.load(11);
    warm_up(&load);
    fleet.hosts[0].fill_disk().unwrap();
    // Its log cannot grow any more: it has to give way before long, and the others go on.
    fleet.leader_but(0).unwrap();
    writes_again(&load, "a full disk under the founder");
    std::thread::sleep(secs(3));
    fleet.hosts[0].free_disk().unwrap();
    // It may have stopped, or wait for room. In both cases it is started as a supervisor would.
    let healed = until(secs(5), || fleet.hosts[0].client().status().ok());
    if healed.is_none() || !fleet.hosts[0].runs() {
        fleet.hosts[0].kill().unwrap();
        up(&mut fleet.hosts[0]);
    }
    fleet.finish(load).unwrap();
}

/// Flips one bit of a file where it stands.
fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_flipped_bit_is_found_or_harmless() {
    let mut fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(12);
    warm_up(&load);
    let victim = (fleet.leader().unwrap() + 1) % 3;
    for name in ["VERSION", "node.key", "party.key", "config.toml", "member", "state.redb"] {
        let path = fleet.hosts[victim].data().join(name);
        // The head, the tail, and in the large file three places between.
        for part in if name == "state.redb" { vec![0, 1, 2, 3, 4] } else { vec![0, 4] } {
            let host = &mut fleet.hosts[victim];
            host.term().unwrap();
            let size = fs::metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}")).len();
            let at = (size.saturating_sub(1)) * part / 4;
            flip(&path, at);
            let before = fs::read(&path).unwrap();
            let ended = host.try_up(SETTLE).unwrap();
            println!(
                "{name}: bit flipped at {at} of {size}: {}",
                match &ended {
                    Some(said) => said.error().unwrap_or("it said nothing"),
                    None => "harmless",
                }
            );
            if let Some(said) = ended {
                assert!(!said.ok() && said.is_report(), "{name} at {at}: {said:?}");
                // Whoever refuses a file leaves it as it was; so the bit can be put back.
                assert!(fs::read(&path).unwrap() == before, "{name} at {at}: refused, and changed");
                flip(&path, at);
                up(host);
            }
            let panic = fleet.hosts[victim].panicked();
            assert!(panic.is_none(), "{name} at {at}: {panic:?}");
        }
    }
    fleet.finish(load).unwrap();
}

#[test]
fn many_nodes_join_and_leave_at_once() {
    let many = if long() { 50 } else { 12 };
    let fleet = Plan::loopback(3).found().unwrap();
    let load = fleet.load(13);
    warm_up(&load);
    let ticket = fleet.hosts[0].client().ticket(many).unwrap();
    let begun = load.now();
    let newcomers: Vec<Host> = (3..3 + many).map(|number| fleet.host(number).unwrap()).collect();
    let all_at_once = |what: &(dyn Fn(&Host) -> anyhow::Result<()> + Sync)| {
        std::thread::scope(|scope| {
            let all: Vec<_> =
                newcomers.iter().map(|host| scope.spawn(move || what(host))).collect();
            for one in all {
                one.join().unwrap().unwrap();
            }
        });
    };
    all_at_once(&|host| host.join(&ticket));
    let joined = load.now();
    fleet.until_members("all are members", |members| members.len() == 3 + many).unwrap();
    all_at_once(&Host::leave);
    fleet.until_members("only the founders are members", |members| members.len() == 3).unwrap();
    println!(
        "{many} nodes joined in {:.1} s and left in {:.1} s",
        (joined - begun).as_secs_f64(),
        (load.now() - joined).as_secs_f64()
    );
    for host in &newcomers {
        assert!(host.panicked().is_none(), "{:?}", host.panicked());
    }
    fleet.until_members("three vote", |members| members.iter().all(|m| m.role == "voter")).unwrap();
    fleet.finish(load).unwrap();
}
