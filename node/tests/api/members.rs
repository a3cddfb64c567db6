//! What the API says and does where there are several members.

use std::time::Duration;

use mesh_node::clock;
use serde_json::json;

use super::host::{Node, Stopped};

#[test]
fn members_see_one_another_and_a_voter_that_leaves_is_seen_off() {
    let first = Node::start();
    let second = Node::join("second", &first);
    let mut third = Node::join("third", &first);
    for node in [&first, &second, &third] {
        node.until("everyone is up", |node| {
            let all = node.get("/v1/nodes").items();
            all.len() == 3 && all.iter().all(|one| one["state"] == "up")
        });
    }
    first.until("all vote", |node| node.get("/v1/status").item()["voters"] == 3);
    // On a busy machine an answer may take its time.
    first.until("the others answer", |node| {
        let reached = node.get("/v1/reach").items();
        reached.len() == 2 && reached.iter().all(|one| one["answers"] == true)
    });

    // Any of them takes a write and reads it back at once.
    let to = "3".repeat(64);
    second.ask("PUT", "/v1/names/lab/xray", &json!({ "to": to }).to_string()).item();
    assert_eq!(third.get("/v1/names/lab/xray").item()["to"], to);
    assert!(!first.get("/v1/links").items().is_empty());

    std::fs::write(second.dir.log_file(), "hello\n").unwrap();
    assert_eq!(first.get("/v1/nodes/second/logs?lines=1").text, "hello\n");
    assert_eq!(first.get("/v1/nodes/second/logs?follow=true").status, 400);

    let left = third.ask("POST", "/v1/leave", "{}").item();
    assert_eq!((&left["left"], &left["seen_off"]), (&json!(true), &json!(true)));
    third.ended().unwrap();
    first.until("it is gone", |node| node.get("/v1/nodes").items().len() == 2);

    let removed = first.ask("DELETE", "/v1/nodes/second", "").item();
    assert_eq!(removed["removed"], true);
    first.until("it is gone", |node| node.get("/v1/status").item()["members"] == 1);
    let alone = json!({ "expect": to, "to": "4".repeat(64) }).to_string();
    assert_eq!(first.ask("PUT", "/v1/names/lab/xray", &alone).status, 200);
}

#[test]
fn a_voter_that_lost_its_majority_is_not_ready_and_sees_the_others_missing() {
    let first = Node::start();
    let others = ["second", "third"].map(|name| Node::join(name, &first));
    first.until("all vote", |node| node.get("/v1/status").item()["voters"] == 3);
    for node in others.iter().chain([&first]) {
        node.until("it is ready", |node| node.get("/readyz").status == 200);
    }
    let others = others.map(Node::stop);
    let begun = clock::steady();
    first.until("it is not ready", |node| node.get("/readyz").status == 503);
    // Long before it stops to serve other parties, which is after half a minute.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let said = first.get("/readyz");
    assert_eq!(said.code(), "unavailable");
    assert!(said.json()["error"]["cause"].as_str().unwrap().contains("up to date"), "{said:?}");
    assert_eq!(first.get("/healthz").status, 200);
    first.until("the others are missed", |node| {
        let all = node.get("/v1/nodes").items();
        all.iter().filter(|one| one["state"] == "silent").count() == 2
    });
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());

    // After a restart it cannot tell for how long it was away, but of when its last word is.
    let first = first.stop().start();
    let said = first.get("/v1/nodes").json();
    assert!(said["age_ms"].is_null() && said["mesh_time"].is_string(), "{said}");
    let said = first.get("/readyz");
    assert!(said.status == 503 && said.text.contains("since it was started"), "{said:?}");

    let _others = others.map(Stopped::start);
    first.until("it is ready again", |node| node.get("/readyz").status == 200);
}

#[test]
fn the_only_voter_stays_until_another_has_taken_its_place_also_across_restarts() {
    let first = Node::start();
    let second = Node::join("second", &first);
    first.until("the other follows", |node| node.get("/v1/status").item()["learners"] == 1);
    let second = second.stop();

    // It agrees with itself that it leaves, and there is nobody to take its vote.
    let waits = first.ask("POST", "/v1/leave", "{}").item();
    assert_eq!(waits["left"], false, "{waits}");
    assert_eq!(waits["step"], "unseating", "{waits}");
    // Whoever has less time is told sooner.
    let begun = clock::steady();
    let waits = first.ask("POST", "/v1/leave", r#"{"wait_ms":100}"#).item();
    assert_eq!(waits["step"], "unseating", "{waits}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert_eq!(first.ask("POST", "/v1/leave", r#"{"wait":1}"#).status, 400);
    assert_eq!(first.get("/v1/status").item()["leaving"], true);
    let first = first.stop();
    assert!(!first.dir.membership().unwrap().unwrap().left);

    // Nobody has to ask again.
    let mut first = first.start();
    let second = second.start();
    first.ended().unwrap();
    assert!(first.dir.membership().unwrap().unwrap().left);
    second.until("it leads alone", |node| {
        let status = node.get("/v1/status").item();
        status["is_leader"] == true && status["members"] == 1 && status["voters"] == 1
    });
    let to = json!({ "to": "5".repeat(64) }).to_string();
    assert_eq!(second.ask("PUT", "/v1/names/lab/after", &to).status, 200);
}

#[test]
fn a_leave_that_is_refused_changes_nothing() {
    let first = Node::start();
    let second = Node::join_with("second", &first, "votes = false");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    first.until("everyone knows that it does not vote", |node| {
        let seen = node.handle.look(|see| {
            see.replica.machine().members().values().any(|member| !member.report.votes)
        });
        runtime.block_on(seen).unwrap()
    });
    let reply = first.ask("POST", "/v1/leave", "{}");
    assert_eq!((reply.status, reply.code().as_str()), (409, "refused"));
    let status = first.get("/v1/status").item();
    assert_eq!((&status["leaving"], &status["is_leader"]), (&json!(false), &json!(true)));
    drop(second);
    let first = first.stop().start();
    first.until("it leads", |node| node.get("/v1/status").item()["is_leader"] == true);
}

#[test]
fn what_became_of_a_request_can_be_looked_up_and_who_asked_may_take_it_back() {
    let first = Node::start();
    let second = Node::join_as("second", "clinic-b", &first);
    let ask = || {
        let asked = first.ask("DELETE", "/v1/nodes/second", "").item();
        assert_eq!(asked["removed"], false, "{asked}");
        let path = format!("/v1/requests/{}", asked["request"]);
        second.until("it knows of the request", |node| node.get(&path).status == 200);
        assert_eq!(second.get(&path).item()["state"], "open");
        path
    };

    let path = ask();
    let refused = second.ask("POST", &format!("{path}/withdraw"), "");
    assert_eq!((refused.status, refused.code().as_str()), (409, "refused"));
    assert!(refused.json()["error"]["cause"].as_str().unwrap().contains("lab"), "{refused:?}");
    let done = first.ask("POST", &format!("{path}/withdraw"), "").item();
    assert_eq!(done["state"], "withdrawn");
    assert!(first.get("/v1/requests").items().is_empty());
    second.until("it knows of that", |node| node.get(&path).item()["state"] == "withdrawn");
    let again = first.ask("POST", &format!("{path}/withdraw"), "");
    assert_eq!(again.code(), "refused");
    let late = second.ask("POST", &format!("{path}/grant"), "");
    for said in [again, late] {
        let cause = said.json()["error"]["cause"].as_str().unwrap_or_default().to_owned();
        assert!(cause.contains("withdrawn"), "{said:?}");
    }

    let path = ask();
    let said = second.ask("POST", &format!("{path}/deny"), "").item();
    assert_eq!((&said["state"], &said["decision"]), (&json!("decided"), &json!("denied")));
    let one = second.get(&path).item();
    assert_eq!(
        (&one["state"], &one["text"]),
        (&json!("denied"), &json!("remove node second of party clinic-b"))
    );
    assert_eq!((&one["granted"], &one["denied"]), (&json!(["lab"]), &json!(["clinic-b"])));
    assert!(one["decided_at"].is_string() && one["decided_index"].is_u64(), "{one}");
    assert!(second.get("/v1/requests").items().is_empty());
    let all = second.get("/v1/requests?all=true").items();
    let states: Vec<_> = all.iter().map(|one| one["state"].clone()).collect();
    // The newest comes first; the oldest is that the second party was taken in.
    assert_eq!(states, ["denied", "withdrawn", "granted"]);
}
