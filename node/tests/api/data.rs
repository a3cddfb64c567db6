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

/// Makes the next version of `scans`, for all to see while there is one party.
fn push(node: &Node, dir: &Path, content: &str) -> u64 {
    std::fs::write(dir.join("scan"), content).unwrap();
    let body = json!({ "path": dir, "name": "scans", "no_wait": true });
    let pushed = node.ask("POST", "/v1/data/push", &body.to_string());
    assert!(pushed.status == 200 && !pushed.text.contains("\"error\""), "{pushed:?}");
    node.get("/v1/data/show?ref=scans").item()["version"].as_u64().unwrap()
}

/// Changes who may read a version of `scans`.
fn share(node: &Node, verb: &str, number: u64, more: &Value) -> Value {
    let mut body = json!({ "ref": format!("scans@{number}") });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    node.ask("POST", &format!("/v1/data/{verb}"), &body.to_string()).item()
}

#[test]
fn tags_go_along_when_a_version_is_made_private_and_when_it_is_shared_again() {
    let (node, dir) = (Node::start(), tempfile::tempdir().unwrap());
    assert_eq!(push(&node, dir.path(), "one"), 1);
    assert_eq!(tag(&node, 1, &json!({})).status, 200);
    let kept = share(&node, "unshare", 1, &json!({}));
    assert_eq!((&kept["visibility"], &kept["tags"]), (&json!("private"), &json!(["clean"])));
    assert_eq!((&kept["dropped_tags"], stands(&node)), (&json!([]), Some(1)));
    let seen = node.handle.look(|see| {
        let state = see.replica.machine();
        state
            .parties()
            .keys()
            .flat_map(|party| state.data_names(*party))
            .any(|(_, n)| !n.tags.is_empty())
    });
    let seen = tokio::runtime::Runtime::new().unwrap().block_on(seen).unwrap();
    assert!(!seen, "others see a tag of what is private");

    // It moves to what all can see, and back.
    assert_eq!(push(&node, dir.path(), "two"), 2);
    assert_eq!(tag(&node, 2, &json!({ "expect": 1 })).status, 200);
    assert_eq!(
        (stands(&node), &node.get("/v1/data/show?ref=scans@1").item()["tags"]),
        (Some(2), &json!([]))
    );
    assert_eq!(tag(&node, 2, &json!({ "expect": 2, "remove": true })).status, 200);
    assert_eq!(tag(&node, 1, &json!({ "expect": null })).status, 200);

    // What others see gets a number that none has had.
    let listed = share(&node, "share", 1, &json!({ "listed": true }));
    assert_eq!((&listed["version"], &listed["tags"]), (&json!(3), &json!(["clean"])));
    assert_eq!(listed["old_version"], 1, "{listed}");
    assert_eq!(stands(&node), Some(3));
    let open = share(&node, "share", 3, &json!({ "open": true }));
    assert_eq!((&open["version"], &open["tags"]), (&json!(3), &json!(["clean"])));
    assert!(open["old_version"].is_null(), "{open}");
    assert_eq!((&open["dropped_tags"], stands(&node)), (&json!([]), Some(3)));
    let kept = share(&node, "unshare", 3, &json!({}));
    assert_eq!((&kept["tags"], stands(&node)), (&json!(["clean"]), Some(3)));
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
fn data_is_not_shared_with_the_party_that_owns_it() {
    let (node, dir) = with_scans();
    for (verb, body) in [
        ("push", json!({ "path": dir.path(), "name": "scans", "share": ["lab"] })),
        ("share", json!({ "ref": "scans@1", "with": ["lab"] })),
        ("unshare", json!({ "ref": "scans@1", "from": ["lab", "lab"] })),
    ] {
        let refused = node.ask("POST", &format!("/v1/data/{verb}"), &body.to_string());
        assert_eq!((refused.status, refused.code().as_str()), (409, "refused"), "{verb}");
        assert!(refused.text.contains("can always read its own data"), "{refused:?}");
    }
}

#[test]
fn two_names_of_the_same_content_are_both_shown_among_what_takes_room() {
    let (node, dir) = (Node::start(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("scan"), "the same").unwrap();
    for name in ["first", "second"] {
        let body = json!({ "path": dir.path(), "name": name, "no_wait": true });
        let pushed = node.ask("POST", "/v1/data/push", &body.to_string());
        assert!(pushed.status == 200 && !pushed.text.contains("\"error\""), "{pushed:?}");
    }
    let used = node.get("/v1/data/du").item();
    let rows = used["items"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "second"], "{used}");
    assert_eq!(rows[0]["manifest"], rows[1]["manifest"]);
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
    // Nor what is in it by another name, of which the path tells nothing.
    let tree = tempfile::tempdir_in(dir.path()).unwrap();
    let by_link = |follow: bool| {
        let body = json!({ "path": tree.path(), "name": "own", "no_wait": true, "follow": follow });
        let reply = node.ask("POST", "/v1/data/push", &body.to_string());
        assert!(reply.text.contains("\"refused\""), "{reply:?}");
        assert!(reply.text.contains("node's own directory"), "{reply:?}");
        std::fs::remove_file(tree.path().join("link")).unwrap();
    };
    for name in ["node.key", "party.key", "token"] {
        std::fs::hard_link(home.join(name), tree.path().join("link")).unwrap();
        by_link(false);
        std::os::unix::fs::symlink(home.join(name), tree.path().join("link")).unwrap();
        by_link(true);
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
fn a_directory_that_another_run_has_is_waited_for_while_that_one_may_have_been_given_up() {
    let (node, dir) = with_scans();
    let into = dir.path().join("into");
    std::fs::create_dir(&into).unwrap();
    let pull = || {
        let body = json!({ "ref": "scans", "dir": &into });
        node.ask("POST", "/v1/data/pull", &body.to_string()).text
    };
    let held = std::fs::File::open(&into).unwrap();
    held.lock().unwrap();
    let said = pull();
    assert!(said.contains("\"error\"") && said.contains("being written by another run"), "{said}");
    let said = std::thread::scope(|scope| {
        let pulling = scope.spawn(pull);
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(held);
        pulling.join().unwrap()
    });
    assert!(!said.contains("\"error\"") && into.join("scan").exists(), "{said}");
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
