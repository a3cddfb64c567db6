//! Datasets: what holds while others change the same.

use std::path::Path;

use serde_json::{Value, json};

use super::host::{Node, Reply};

/// A node with two private versions of `scans`, and where they came from.
fn with_scans() -> (Node, tempfile::TempDir) {
    let (node, dir) = (Node::start(), tempfile::tempdir().unwrap());
    for number in 1..=2 {
        std::fs::write(dir.path().join("scan"), format!("of version {number}")).unwrap();
        let body = json!({ "path": dir.path(), "name": "scans", "no_wait": true });
        let pushed = node.ask("POST", "/v1/data/push", &body.to_string());
        assert!(pushed.status == 200 && !pushed.text.contains("\"error\""), "{pushed:?}");
    }
    for number in 1..=2 {
        let body = json!({ "ref": format!("scans@{number}") });
        let kept = node.ask("POST", "/v1/data/unshare", &body.to_string()).item();
        assert_eq!((&kept["visibility"], &kept["version"]), (&json!("private"), &json!(number)));
    }
    (node, dir)
}

/// Changes what `clean` stands for.
fn tag(node: &Node, number: u32, more: &Value) -> Reply {
    let mut body = json!({ "ref": format!("scans@{number}"), "tag": "clean" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    node.ask("POST", "/v1/data/tag", &body.to_string())
}

/// What `clean` stands for.
fn stands(node: &Node) -> Option<u64> {
    let reply = node.get("/v1/data/show?ref=scans:clean");
    if reply.status == 404 { None } else { reply.item()["version"].as_u64() }
}

#[test]
fn each_partys_own_is_this_partys_to_one_who_reads_and_too_many_to_one_who_changes() {
    let (node, _dir) = with_scans();
    assert_eq!(node.get("/v1/data/show?ref=each/scans").item()["version"], 2);
    assert_eq!(node.get("/v1/data/show?ref=each/scans@1").item()["version"], 1);
    assert_eq!(node.get("/v1/data/log?ref=each/scans").status, 200);
    assert_eq!(node.get("/v1/data/show?ref=each/scents").status, 404);
    let body = json!({ "ref": "each/scans@1" }).to_string();
    for verb in ["unshare", "rm"] {
        assert_eq!(node.ask("POST", &format!("/v1/data/{verb}"), &body).status, 400, "{verb}");
    }
}

#[test]
fn what_a_reference_would_take_for_something_else_is_no_name_and_no_tag() {
    let (node, dir) = with_scans();
    let named = |name: Option<&str>, path: &Path| {
        let body = json!({ "path": path, "name": name, "no_wait": true });
        node.ask("POST", "/v1/data/push", &body.to_string())
    };
    for name in ["latest", "each"] {
        let refused = named(Some(name), dir.path());
        assert_eq!((refused.status, refused.code().as_str()), (400, "failed"), "{name}");
        assert!(refused.text.contains("--name NAME"), "{refused:?}");
        // Nor if nobody said so.
        let below = dir.path().join(name);
        std::fs::create_dir(&below).unwrap();
        assert_eq!(named(None, &below).status, 400, "{name}");
        assert_eq!(node.get(&format!("/v1/data/show?ref={name}")).status, 404);
    }
    for name in ["3", "007", "latest"] {
        let set = |remove: bool| {
            let body = json!({ "ref": "scans@1", "tag": name, "remove": remove });
            node.ask("POST", "/v1/data/tag", &body.to_string())
        };
        assert_eq!((set(false).status, set(false).code().as_str()), (400, "failed"), "{name}");
        // One that somebody set before can go.
        assert_eq!(set(true).status, if name == "latest" { 400 } else { 404 }, "{name}");
    }
    let body = json!({ "path": dir.path(), "name": "more", "tag": "3", "no_wait": true });
    assert_eq!(node.ask("POST", "/v1/data/push", &body.to_string()).status, 400);
    assert_eq!(node.get("/v1/data").items().len(), 1, "nothing was pushed");
}

#[test]
fn the_nodes_own_directory_is_neither_pushed_nor_pulled_into() {
    let (node, dir) = with_scans();
    let home = node.dir.path().to_path_buf();
    let alias = dir.path().join("alias");
    std::os::unix::fs::symlink(&home, &alias).unwrap();
    let push = |path: &Path| {
        let body = json!({ "path": path, "name": "own", "no_wait": true });
        node.ask("POST", "/v1/data/push", &body.to_string())
    };
    let pull = |path: &Path| {
        let body = json!({ "ref": "scans", "dir": path });
        node.ask("POST", "/v1/data/pull", &body.to_string())
    };
    let refused = |reply: Reply| {
        assert_eq!((reply.status, reply.code().as_str()), (409, "refused"), "{reply:?}");
        assert!(reply.text.contains("node's own directory"), "{reply:?}");
    };
    let around = home.parent().unwrap().to_path_buf();
    for path in [home.clone(), home.join("store"), alias.join("run"), around] {
        refused(push(&path));
    }
    let back = dir.path().join("none/../alias/x");
    for path in [home.clone(), home.join("store/x/y"), alias.join("x"), back] {
        refused(pull(&path));
        assert!(!home.join("x").exists());
    }
    assert_eq!(node.get("/v1/data/show?ref=own").status, 404);
    let beside = dir.path().join("beside");
    let laid = pull(&beside);
    assert!(laid.status == 200 && !laid.text.contains("\"error\""), "{laid:?}");
    assert!(beside.join("scan").exists());
}

#[test]
fn a_private_tag_goes_only_if_it_stands_for_what_is_expected() {
    let (node, _dir) = with_scans();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let records = || {
        let count = node.handle.look(|see| see.replica.machine().versions().len());
        runtime.block_on(count).unwrap()
    };
    assert_eq!(tag(&node, 1, &json!({ "expect": null })).status, 200);
    assert_eq!(tag(&node, 2, &json!({ "expect": 1 })).item()["version"], 2);
    let before = records();
    for wrong in [json!(1), Value::Null] {
        let refused = tag(&node, 2, &json!({ "expect": wrong, "remove": true }));
        assert_eq!((refused.status, refused.code().as_str()), (409, "refused"), "{wrong}");
        assert_eq!(stands(&node), Some(2));
    }
    let gone = tag(&node, 2, &json!({ "expect": 2, "remove": true })).item();
    assert!(gone["version"].is_null() && stands(&node).is_none(), "{gone}");
    assert_eq!(node.get("/v1/data/show?ref=scans@2").item()["tags"], json!([]));
    assert_eq!(tag(&node, 2, &json!({ "remove": true })).status, 404);
    // The next one takes its record.
    assert_eq!(tag(&node, 1, &json!({ "expect": null })).status, 200);
    assert_eq!((stands(&node), records()), (Some(1), before));
}

#[test]
fn of_one_who_moves_a_private_tag_and_one_who_removes_it_one_is_too_late() {
    let (node, _dir) = with_scans();
    for round in 0..25 {
        assert_eq!(tag(&node, 1, &json!({})).status, 200, "round {round}");
        let (moved, gone) = std::thread::scope(|scope| {
            let moves = scope.spawn(|| tag(&node, 2, &json!({ "expect": 1 })).status);
            let gone = tag(&node, 1, &json!({ "expect": 1, "remove": true })).status;
            (moves.join().unwrap(), gone)
        });
        assert!(matches!((moved, gone), (200, 409) | (409, 200)), "round {round}: {moved} {gone}");
        assert_eq!(stands(&node), (moved == 200).then_some(2), "round {round}");
    }
}
