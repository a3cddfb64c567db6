//! Versions on the wire: everywhere, and no more of a new one than is new.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::ns::Lab;
use mesh_chaos_tests::hosts::wire::Link;
use mesh_chaos_tests::hosts::{need, until};
use serde_json::Value;

use crate::{
    MIB, PATIENCE, aside, begin, calm, content, data, long, pull_everywhere, random_tree, text,
    until_copies,
};

#[test]
fn mnist_is_everywhere_and_a_new_version_moves_only_what_is_new() {
    let fleet = Plan::loopback(5).found().unwrap();
    let (first, others) = fleet.hosts.split_first().unwrap();
    let mnist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/mnist");
    let pushed = data(first, &["push", text(&mnist), "--copies", "1"]);
    let bytes = pushed["bytes"].as_u64().unwrap();
    assert_eq!((pushed["version"].as_u64(), pushed["files"].as_u64()), (Some(1), Some(4)));
    let fetched = pull_everywhere(others, "mnist", &mnist, "mnist");
    println!("mnist, {bytes} bytes: fetched {fetched:?}");
    for host in &fleet.hosts {
        let listed = data(host, &["ls"]);
        let row = &listed[0];
        assert_eq!(row["name"], "mnist", "{listed}");
        for field in [
            "version",
            "manifest",
            "party",
            "visibility",
            "bytes",
            "files",
            "copies",
            "copies_wanted",
        ] {
            assert_eq!(row[field], pushed[field], "{field} on {}", host.name);
        }
        assert!(row["created_at"].is_string(), "{row}");
    }

    // As a training script has it: unpacked. Then with a hundred images more in the middle.
    let dir = aside(first, "unpacked");
    fs::create_dir(&dir).unwrap();
    let images = dir.join("train-images-idx3-ubyte");
    let packed = mnist.join("train-images-idx3-ubyte.gz");
    let mut body = Command::new("gzip").arg("-dc").arg(packed).output().unwrap().stdout;
    let (head, image) = (16, 28 * 28);
    assert_eq!(body.len(), head + 60_000 * image);
    fs::write(&images, &body).unwrap();
    data(first, &["push", text(&dir), "--copies", "1"]);
    pull_everywhere(others, "unpacked", &dir, "unpacked-1");
    let middle = head + 30_000 * image;
    let more: Vec<u8> = body[head..head + 100 * image].iter().map(|byte| 255 - byte).collect();
    body.splice(middle..middle, more);
    body[4..8].copy_from_slice(&60_100_u32.to_be_bytes());
    fs::write(&images, &body).unwrap();
    let pushed = data(first, &["push", text(&dir), "--copies", "1"]);
    assert_eq!(pushed["version"], 2);
    let new = data(first, &["diff", "unpacked@1", "unpacked@2"])["new_bytes"].as_u64();
    println!("100 images inserted: {new:?} of {} bytes are in new chunks", body.len());
    let most = body.len() as u64 / 20;
    // One after the other: what two peers send twice is another matter.
    for host in others {
        let fetched =
            pull_everywhere(std::slice::from_ref(host), "unpacked@2", &dir, "unpacked-2")[0];
        assert!(fetched > 0 && fetched < most, "{fetched} of {} bytes", body.len());
    }
    calm(&fleet);
}

#[test]
fn a_line_inserted_into_a_long_table_moves_little() {
    let fleet = Plan::loopback(2).found().unwrap();
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let dir = aside(first, "table");
    fs::create_dir(&dir).unwrap();
    let size = if long() { 1024 * MIB } else { 64 * MIB };
    let mut random = fastrand::Rng::with_seed(1);
    let mut body = String::with_capacity(usize::try_from(size).unwrap() + 100);
    while (body.len() as u64) < size {
        use std::fmt::Write;
        writeln!(body, "{},{},{}", body.len(), random.u64(..), random.u64(..)).unwrap();
    }
    fs::write(dir.join("table.csv"), &body).unwrap();
    data(first, &["push", text(&dir), "--copies", "1"]);
    let all = pull_everywhere(std::slice::from_ref(second), "table", &dir, "table-1");
    assert!(all[0] >= size, "the first version comes whole: {all:?}");
    let middle = body.len() / 2;
    let middle = middle + body[middle..].find('\n').unwrap() + 1;
    body.insert_str(middle, "a line,that was,not there\n");
    fs::write(dir.join("table.csv"), &body).unwrap();
    data(first, &["push", text(&dir), "--copies", "1"]);
    let fetched = pull_everywhere(std::slice::from_ref(second), "table@2", &dir, "table-2");
    println!("a line inserted: fetched {fetched:?} of {}", body.len());
    assert!(fetched[0] > 0 && fetched[0] < 8 * MIB, "{fetched:?}");
    calm(&fleet);
}

#[test]
fn on_a_long_wire_a_pull_takes_several_connections() {
    if !need(&["namespaces", "ip", "/dev/net/tun"]) {
        return;
    }
    let fleet = Plan::lab(Lab::wired(2, 9).unwrap(), 2).found().unwrap();
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    let dir = aside(first, "far");
    random_tree(&dir, 9, 24 * MIB);
    data(first, &["push", text(&dir), "--copies", "1"]);
    until_copies(second, "far@1", 1);
    let link = || -> Value {
        let answer = second.client().ask("GET", "/v1/links", None, PATIENCE).unwrap();
        answer.body["items"][0].clone()
    };
    let far = Link { delay: Duration::from_millis(40), loss: 0.002, ..Link::default() };
    fleet.lab().shape(far).unwrap();
    let felt = until(SETTLE, || (link()["rtt_ms"].as_f64()? > 60.0).then_some(()));
    felt.expect("the wire is known to be long");
    let began = mesh_node::clock::steady();
    let mut pull = begin(second, &["pull", "far", text(&aside(second, "far"))], "far");
    let coming = until(SETTLE, || {
        let shown = data(second, &["show", "far"]);
        let is_mine = |holder: &Value| holder["name"] == second.name.as_str();
        let mine = shown["holders"].as_array()?.iter().find(|holder| is_mine(holder))?;
        (mine["holds"] == "pulling" && mine["bytes"].is_u64()).then_some(())
    });
    coming.expect("whoever asks the node sees how far it is");
    let several = until(PATIENCE, || (link()["connections"].as_u64()? > 2).then_some(()));
    several.expect("one connection is not all that there is");
    assert!(pull.wait().unwrap().success());
    println!("24 MiB over a wire of 80 ms that loses 0.2 %: {:?}", began.elapsed());
    assert!(content(&aside(second, "far")) == content(&dir));
    calm(&fleet);
}
