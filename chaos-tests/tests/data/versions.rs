//! What the commands say of versions.

use std::fs;

use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::until;
use serde_json::Value;

use crate::{
    MIB, PATIENCE, SHORT_WAITS, aside, calm, content, data, objects, random_tree, text, try_data,
    until_copies,
};

/// Every field is there, and not null.
fn has(item: &Value, fields: &[&str]) {
    for field in fields {
        assert!(!item[*field].is_null(), "there is no {field} in {item}");
    }
}

#[test]
fn versions_are_named_compared_shared_and_removed() {
    let (key, value) = SHORT_WAITS;
    let fleet = Plan::loopback(2).setting(key, value).found().unwrap();
    let [first, second] = &fleet.hosts[..] else { panic!("two hosts") };
    const ROW: &[&str] = &[
        "name",
        "version",
        "manifest",
        "party",
        "visibility",
        "bytes",
        "files",
        "copies",
        "copies_wanted",
        "created_at",
    ];
    let dir = aside(first, "tree");
    random_tree(&dir, 8, 2 * MIB);
    let pushed = data(first, &["push", text(&dir), "--copies", "2", "--tag", "clean"]);
    has(&pushed, ROW);
    has(&pushed, &["new_bytes", "read_bytes", "elapsed_ms", "acknowledged", "holders"]);
    let again = data(first, &["push", text(&dir), "--copies", "2"]);
    assert_eq!((&again["version"], &again["unchanged"]), (&Value::from(1), &Value::from(true)));
    assert_eq!(again["new_bytes"], 0, "{again}");
    let old = content(&dir);
    fs::write(dir.join("added"), "new").unwrap();
    fs::write(dir.join("below/small-3"), "changed").unwrap();
    fs::remove_file(dir.join("below/small-4")).unwrap();
    assert_eq!(data(first, &["push", text(&dir), "--copies", "2"])["version"], 2);

    // On the other node, which has to learn of it.
    until_copies(second, "tree@2", 2);
    let log = data(second, &["log", "tree"]);
    assert_eq!(log.as_array().unwrap().len(), 2, "{log}");
    assert_eq!((&log[0]["version"], &log[1]["version"]), (&Value::from(2), &Value::from(1)));
    has(&log[0], ROW);
    assert_eq!(log[1]["tags"], serde_json::json!(["clean"]));
    let listed = data(second, &["ls"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    has(&listed[0], ROW);
    assert_eq!(data(second, &["ls", "--all"]).as_array().unwrap().len(), 2);

    let diff = data(second, &["diff", "tree:clean", "tree"]);
    let count = |what: &str| diff[what].as_u64().unwrap();
    assert_eq!((count("added"), count("removed"), count("changed")), (1, 1, 1), "{diff}");
    let changes = diff["changes"].as_array().unwrap();
    let change = |path: &str| changes.iter().find(|change| change["path"] == path).unwrap();
    assert_eq!(change("added")["change"], "added");
    assert_eq!(change("below/small-3")["change"], "changed");
    assert_eq!(change("below/small-4")["change"], "removed");

    // A tag moves only from where it is believed to stand.
    data(second, &["tag", "tree@2", "good", "--expect", "none"]);
    let said = try_data(first, &["tag", "tree@1", "good", "--expect", "1"]);
    assert!(!said.ok(), "{said:?}");
    assert_eq!(data(first, &["tag", "tree@1", "good", "--expect", "2"])["version"], 1);
    let shown = until(SETTLE, || {
        let shown = data(second, &["show", "tree:good"]);
        (shown["version"] == 1).then_some(shown)
    });
    let shown = shown.expect("another node hears of it");
    has(&shown, ROW);
    has(&shown, &["holders", "chunks", "objects"]);
    data(second, &["tag", "tree", "good", "--rm"]);
    assert!(!try_data(second, &["show", "tree:good"]).ok());
    data(second, &["pull", "tree:clean", text(&aside(second, "old"))]);
    assert!(content(&aside(second, "old")) == old);

    assert_eq!(data(second, &["pin", "tree@2"])["pinned"], true);
    let du = data(second, &["du"]);
    has(&du, &["store_bytes", "quarantine_bytes", "free_bytes", "items"]);
    let items = du["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{du}");
    has(&items[0], &["name", "version", "bytes", "pinned", "durable"]);
    assert_eq!(data(second, &["pin", "tree@2", "--off"])["pinned"], false);

    assert_eq!(pushed["visibility"], "open", "a mesh of one party");
    assert_eq!(data(first, &["share", "tree@2", "--listed"])["visibility"], "listed");
    assert_eq!(data(first, &["share", "tree@2", "--open"])["visibility"], "open");
    assert_eq!(data(first, &["unshare", "tree@2"])["visibility"], "private");
    let private = until(SETTLE, || {
        let listed = data(second, &["ls"]);
        (listed[0]["visibility"] == "private").then_some(listed)
    });
    let private = private.expect("another node of the party hears of it");
    assert_eq!(private[0]["name"], "tree", "and reads it still: {private}");
    data(second, &["pull", "tree@2", text(&aside(second, "private"))]);
    assert!(content(&aside(second, "private")) == content(&dir));
    // What was taken back can be given again. Others get to see a number once: it takes the next one.
    let shared = data(first, &["share", "tree@2", "--open"]);
    assert_eq!((&shared["visibility"], &shared["version"]), (&"open".into(), &Value::from(3)));
    assert_eq!(shared["old_version"], 2, "{shared}");
    let open = until(SETTLE, || {
        let listed = data(second, &["ls"]);
        (listed[0]["visibility"] == "open").then_some(listed)
    });
    has(&open.expect("another node hears of it")[0], ROW);
    data(second, &["pull", "tree@3", text(&aside(second, "open"))]);
    assert!(content(&aside(second, "open")) == content(&dir));

    let removed = data(first, &["rm", "tree@1", "--yes"]);
    assert_eq!(removed["removed"][0]["version"], 1, "{removed}");
    let gone = until(SETTLE, || (!try_data(second, &["show", "tree@1"]).ok()).then_some(()));
    gone.expect("another node hears of it");
    data(second, &["pull", "tree@3", text(&aside(second, "newest"))]);
    data(first, &["rm", "tree", "--all", "--yes"]);
    assert_eq!(data(first, &["ls"]).as_array().unwrap().len(), 0);
    let freed =
        until(PATIENCE, || fleet.hosts.iter().all(|host| objects(host).is_empty()).then_some(()));
    freed.expect("what was removed takes no room on any node");
    calm(&fleet);
}
