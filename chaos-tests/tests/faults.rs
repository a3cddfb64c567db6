//! Real nodes under faults. Each story founds a mesh, lets clients write and read through every node,
//! breaks something, heals it, and checks the promises: A acknowledged writes survive, B one leader a
//! term, C one history, D linearizable reads and writes, E who is late is refused, and no panic.
//!
//! Times that a person would want to know are printed. The deadlines are generous: they tell a mesh
//! that is stuck from one on a busy machine, no more. `MESH_LONG=1` makes some stories longer.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use mesh_chaos_tests::hosts::client::{Got, Member, Put};
use mesh_chaos_tests::hosts::fleet::{Fleet, Plan, SETTLE};
use mesh_chaos_tests::hosts::load::Load;
use mesh_chaos_tests::hosts::ns::Lab;
use mesh_chaos_tests::hosts::process::{Host, Said};
use mesh_chaos_tests::hosts::wire::Link;
use mesh_chaos_tests::hosts::{need, until};
use mesh_node::clock::steady;
use serde_json::Value;

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

/// Waits until all nodes have had the same tick for a while, in milliseconds, and not the usual one any more.
fn steady_tick(fleet: &Fleet) -> u64 {
    const USUAL: u64 = 50;
    let tick_of = |host: &Host| {
        let answer = host.client().ask("GET", "/v1/status", None, secs(5)).ok()?;
        answer.body["item"]["tick_ms"].as_u64()
    };
    let mut tick: Option<u64> = None;
    let mut since = steady();
    until(SETTLE, || {
        let ticks: Vec<Option<u64>> = fleet.hosts.iter().map(tick_of).collect();
        let agreed = ticks[0].filter(|&one| ticks.iter().all(|other| *other == Some(one)));
        let agreed = agreed.filter(|&one| one > USUAL);
        if agreed != tick {
            (tick, since) = (agreed, steady());
        }
        tick.filter(|_| since.elapsed() > secs(8))
    })
    .unwrap_or_else(|| panic!("no longer tick was agreed on; last seen: {tick:?}"))
}

#[test]
fn a_slow_lossy_wire_slows_and_does_not_stop() {
    if !need(WIRE) {
        return;
    }
    let fleet = Plan::lab(Lab::wired(3, 7).unwrap(), 3).found().unwrap();
    let load = fleet.load(7);
    warm_up(&load);
    let far = Link { delay: Duration::from_millis(200), ..Link::default() };
    fleet.lab().shape(far).unwrap();
    // It may take an election or two to learn how slow the wire is. Then all agree on a longer tick.
    let tick = steady_tick(&fleet);
    let (term, before) = (fleet.term(), load.acked());
    std::thread::sleep(secs(20));
    let (elections, writes) = (fleet.elections_since(term), load.acked() - before);
    println!("200 ms, ticks of {tick} ms: {writes} writes and {elections} elections in 20 s");
    assert!(writes > 0, "nothing was acknowledged");
    assert_eq!(elections, 0, "a wire that is only long needs none");

    fleet.lab().shape(Link { jitter: Duration::from_millis(100), loss: 0.1, ..far }).unwrap();
    std::thread::sleep(secs(10));
    let (term, before, time) = (fleet.term(), load.acked(), secs(if long() { 60 } else { 15 }));
    std::thread::sleep(time);
    let (elections, writes) = (fleet.elections_since(term), load.acked() - before);
    println!("200±100 ms, 10 % lost: {writes} writes and {elections} elections in {time:?}");
    assert!(writes > 0, "nothing was acknowledged");
    // The tick fits the wire. A busy machine, or many losses in a row, may still cost one.
    assert!(elections <= 1, "{elections} elections");
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
fn an_old_copy_of_the_first_nodes_directory_does_not_lead() {
    let mut fleet = Plan::loopback(1).found().unwrap();
    let data = fleet.hosts[0].data();
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let status = std::process::Command::new("cp").arg("-a").args([from, to]).status();
        assert!(status.unwrap().success());
    };
    // As it was when it voted alone.
    fleet.hosts[0].down().unwrap();
    let old = data.with_extension("old");
    copy(&data, &old);
    up(&mut fleet.hosts[0]);
    fleet.settle().unwrap();
    fleet.grow().unwrap();
    fleet.grow().unwrap();
    fleet.settle().unwrap();
    fleet.hosts[0].kill().unwrap();
    std::fs::rename(&data, data.with_extension("new")).unwrap();
    copy(&old, &data);
    fleet.hosts[0].up().unwrap();
    fleet.hosts[0].may_end();
    // It says why, then it is gone: what it decides from here on would count for nobody else.
    let said = || fleet.hosts[0].logs().iter().any(|(_, log)| log.contains("has lost entries"));
    let stopped = until(SETTLE, || (said() && !fleet.hosts[0].runs()).then_some(()));
    assert!(stopped.is_some(), "it leads on: {:?}", fleet.hosts[0].logs());
    // With what it really had, it goes on.
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(data.with_extension("new"), &data).unwrap();
    up(&mut fleet.hosts[0]);
    fleet.settle().unwrap();
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
    // Until it has told that it does not vote, it may be taken for one that could.
    let seen = until(SETTLE, || follows(&watcher, 2).filter(|status| status.role == "watcher"));
    let seen = seen.expect("the watcher follows");
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
fn eight_join_take_their_parts_and_list_each_other_with_and_without_a_leader() {
    let parts = ["voter", "voter", "voter", "voter", "voter", "learner", "learner", "watcher"];
    let mut fleet = Plan::loopback(5).found().unwrap();
    // One after the other, so that each takes the part that is left when it comes.
    for number in 5..8 {
        assert_eq!(fleet.grow().unwrap(), number);
        let parts = &parts[..=number];
        let taken = fleet.until_members(&format!("their parts are {parts:?}"), |members| {
            let has = |(n, part): (usize, &&str)| {
                members.iter().any(|m| m.name == format!("n{n}") && m.role == **part)
            };
            members.len() == parts.len() && parts.iter().enumerate().all(has)
        });
        taken.unwrap();
    }
    // Everyone lists all, says how old its word is, and how long ago it heard of each.
    let lists = |host: &Host, older: u64| {
        // One that has just joined may have nothing to list yet.
        let said = host.mesh(&["nodes", "--json"]).ok()?;
        let said: Value = serde_json::from_str(&said).unwrap();
        let items = said["items"].as_array().unwrap();
        let aged = items.iter().all(|item| item["seen_age_ms"].is_u64());
        let age = said["age_ms"].as_u64();
        (items.len() == 8 && aged && age.is_some_and(|age| age >= older)).then_some(())
    };
    for host in &fleet.hosts {
        until(SETTLE, || lists(host, 0))
            .unwrap_or_else(|| panic!("{} does not list everyone with their ages", host.name));
    }
    assert_eq!(fleet.hosts[7].client().status().unwrap().role, "watcher", "it did not stay one");

    let leader = fleet.leader().unwrap();
    for dead in [leader, (leader + 1) % 5, (leader + 2) % 5] {
        fleet.hosts[dead].kill().unwrap();
    }
    // Two of five votes elect nobody, and nobody forgets anybody for that.
    for host in fleet.hosts.iter().filter(|host| host.should_run()) {
        until(SETTLE, || lists(host, 2000))
            .unwrap_or_else(|| panic!("{} without a leader: not everyone, or no age", host.name));
        assert_eq!(host.fell(), None);
    }
    assert_eq!(fleet.leader(), None, "somebody leads without a majority");
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

/// Makes a host lead: whoever leads in its place is killed and comes back, until it does.
fn let_lead(fleet: &mut Fleet, host: usize) {
    // Of two that are left each is as likely: that it is never this one is a chance of one in a thousand.
    for _ in 0..10 {
        let leader = until(SETTLE, || fleet.leader()).expect("somebody leads");
        if leader == host {
            return;
        }
        fleet.hosts[leader].kill().unwrap();
        fleet.leader_but(leader).unwrap();
        up(&mut fleet.hosts[leader]);
        fleet.settle().unwrap();
    }
    panic!("n{host} never led");
}

#[test]
fn a_full_disk_stops_one_node_and_heals() {
    if !need(&["namespaces"]) {
        return;
    }
    let mut fleet = Plan::loopback(3).first_disk(64 << 20).found().unwrap();
    let load = fleet.load(11);
    warm_up(&load);
    let_lead(&mut fleet, 0);
    fleet.hosts[0].fill_disk().unwrap();
    // It leads, and its log cannot grow any more: it has to give way before long, and the others go on.
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

/// Who a node is, and what its party trusts it with: a flipped bit in one of these must not pass for the truth.
const PRECIOUS: [&str; 4] = ["node.key", "party.key", "sealing.key", "member"];

/// What a node's directory has for certain, so that none of it is left out by a mistake in the search.
const KNOWN: [&str; 13] = [
    "VERSION",
    "config.toml",
    "incarnation",
    "member",
    "node.key",
    "numbers",
    "party.key",
    "peers",
    "state.redb",
    "store/VERSION",
    "store/meta.redb",
    "token",
    "token.auditor",
];

/// Every file of a host that does not run, by its name below the data directory, but for those in which no bit
/// can mislead a node: `run` has a lock and a socket, which are empty, and what is in `logs` is for people.
fn files(host: &Host) -> BTreeSet<String> {
    let root = host.data();
    let (mut found, mut dirs) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let (path, about) = (entry.path(), entry.metadata().unwrap());
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            if about.is_dir() && name != "run" && name != "logs" {
                dirs.push(path);
            } else if about.is_file() && about.len() > 0 {
                found.insert(name);
            }
        }
    }
    found
}

/// Flips one bit of a file where it stands.
fn flip(path: &Path, at: u64) {
    // An object of the store is not to be written, not even by its owner.
    let mode = fs::metadata(path).unwrap().permissions();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.sync_all().unwrap();
    fs::set_permissions(path, mode).unwrap();
}

/// Flips a bit at each of these quarters of a file (0 is its first byte, 4 its last) and starts the node, which did
/// not run. What it said, if it refused the file; then the bits are as they were, and it does not run.
fn start_with_flipped(host: &mut Host, name: &str, quarters: &[u64]) -> Option<Said> {
    let path = host.data().join(name);
    let size = fs::metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}")).len();
    let places: BTreeSet<u64> = quarters.iter().map(|part| (size - 1) * part / 4).collect();
    places.iter().for_each(|&at| flip(&path, at));
    let before = fs::read(&path).unwrap();
    let ended = host.try_up(SETTLE).unwrap();
    let outcome = match &ended {
        Some(said) => said.error().unwrap_or("it said nothing"),
        None => "harmless",
    };
    println!("{name}: bits flipped at {places:?} of {size}: {outcome}");
    if let Some(said) = &ended {
        assert!(!said.ok() && said.is_report(), "{name} at {places:?}: {said:?}");
        // Whoever refuses a file leaves it as it was; so the bits can be put back.
        let after = fs::read(&path).unwrap();
        assert!(after == before, "{name} at {places:?}: refused, and changed");
        places.iter().for_each(|&at| flip(&path, at));
    }
    assert_eq!(host.panicked(), None, "{name} at {places:?}");
    ended
}

/// A bit flipped there is found, and the file named.
fn finds_flipped(host: &mut Host, name: &str, quarters: &[u64]) {
    let said = start_with_flipped(host, name, quarters);
    let said = said.unwrap_or_else(|| panic!("{name} at {quarters:?} passed for the truth"));
    assert!(said.stderr.contains(name), "{name} is not named: {said:?}");
}

#[test]
fn a_flipped_bit_is_found_or_harmless() {
    // Whoever serves the HTTP API on TCP has tokens, too.
    let plan = Plan::loopback(3).setting("MESH_API_LISTEN", "127.0.0.1:0");
    let mut fleet = plan.found().unwrap();
    let load = fleet.load(12);
    warm_up(&load);
    let victim = (fleet.leader().unwrap() + 1) % 3;

    // A worker has of its party's secret only what seals.
    let mut worker = fleet.host(3).unwrap();
    let ticket = fleet.hosts[victim].mesh(&["ticket", "new", "--worker"]).unwrap();
    worker.join(ticket.lines().last().unwrap().trim()).unwrap();
    let sealing = worker.data().join("sealing.key");
    until(SETTLE, || sealing.exists().then_some(())).expect("a worker is told how to seal");
    worker.term().unwrap();
    for part in [0, 4] {
        finds_flipped(&mut worker, "sealing.key", &[part]);
    }
    up(&mut worker);

    let host = &mut fleet.hosts[victim];
    let tree = host.data().with_file_name("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("table"), [7; 5000]).unwrap();
    host.mesh(&["data", "push", tree.to_str().unwrap(), "--copies", "1"]).unwrap();
    host.term().unwrap();
    let all = files(host);
    for name in KNOWN {
        assert!(all.contains(name), "there is no {name} among {all:?}");
    }
    for below in ["store/manifests/", "store/objects/"] {
        assert!(all.iter().any(|name| name.starts_with(below)), "nothing of {below} in {all:?}");
    }
    for name in &all {
        if PRECIOUS.contains(&name.as_str()) {
            for part in [0, 4] {
                finds_flipped(host, name, &[part]);
            }
            continue;
        }
        // The head and the tail, and in the large file three places between, each by itself.
        let places: Vec<Vec<u64>> = match name.as_str() {
            "state.redb" => (0..=4).map(|part| vec![part]).collect(),
            _ => vec![vec![0, 4]],
        };
        for quarters in places {
            // What is only a cache may have gone since.
            if !fs::metadata(host.data().join(name)).is_ok_and(|about| about.len() > 0) {
                println!("{name}: is no more");
            } else if start_with_flipped(host, name, &quarters).is_none() {
                host.term().unwrap();
            }
        }
    }
    up(host);
    assert_eq!(worker.fell(), None);
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
