//! Answers that come, that do not, and that are none.

use std::sync::{Arc, Mutex};

use super::played::{Reply, play};
use super::*;

fn joined() -> Value {
    json!({
        "protocol": 1, "name": "mnist", "kind": "federated", "party": "lab", "task": 2, "rounds": 20,
        "params": { "lr": "0.1" }, "strategy": { "name": "fedprox", "mu": 0.01 }, "new": true,
    })
}

/// A client of a node that answers a question beside `join` like this, and what it was asked.
fn client(
    mut reply: impl FnMut(&str, &Value) -> Reply + Send + 'static,
) -> (Client, Arc<Mutex<Vec<String>>>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    play(&socket, move |path, body| {
        seen.lock().unwrap().push(path.to_owned());
        if path == "/v1/join" { Reply::Json(200, joined()) } else { reply(path, body) }
    });
    (Client::connect(&socket).unwrap(), asked, dir)
}

#[test]
fn a_worker_joins_and_hears_what_it_is_part_of() {
    let (client, asked, _dir) = client(|_, _| Reply::Close);
    let told = client.joined();
    assert_eq!((told.kind.as_str(), told.task, told.rounds), ("federated", 2, 20));
    assert_eq!(told.strategy, Strategy { name: "fedprox".into(), mu: Some(0.01) });
    assert_eq!(*asked.lock().unwrap(), ["/v1/join"]);
}

#[test]
fn what_to_do_is_asked_with_the_last_round() {
    let (mut client, asked, _dir) = client(|path, _| {
        let answer = match path {
            "/v1/next" => json!({ "state": "round", "round": 0, "model": null, "base": null }),
            "/v1/next?after=0" => json!({ "state": "round", "round": 1, "model": "m", "base": 0 }),
            _ => json!({ "state": "done" }),
        };
        Reply::Json(200, answer)
    });
    assert_eq!(client.next(None).unwrap(), Next::Round { round: 0, model: None });
    let model = Some("m".to_owned());
    assert_eq!(client.next(Some(0)).unwrap(), Next::Round { round: 1, model });
    assert_eq!(client.next(Some(1)).unwrap(), Next::Done);
    // One connection, and one join.
    assert_eq!(asked.lock().unwrap().len(), 4);
}

#[test]
fn an_update_is_submitted_as_the_protocol_says() {
    let (mut client, _, _dir) = client(|_, body| {
        let wanted = json!({
            "round": 3, "update": "out", "examples": 20, "metrics": { "train-loss": 0.5 },
        });
        assert_eq!(*body, wanted);
        Reply::Json(200, json!({ "taken": false, "why": "round 3 is over" }))
    });
    let metrics = BTreeMap::from([("train-loss", 0.5)]);
    let submitted = client.submit(3, "out", 20, &metrics).unwrap();
    assert_eq!(submitted, Submitted { taken: false, why: Some("round 3 is over".into()) });
}

#[test]
fn a_refusal_is_passed_on_and_not_asked_again() {
    let (mut client, asked, _dir) = client(|_, _| {
        let error = json!({ "message": "no", "cause": "because", "try": "less" });
        Reply::Json(400, json!({ "error": error }))
    });
    let ClientError::Refused { message, cause, hint } = client.progress(1, 0.5).unwrap_err() else {
        panic!("it was refused");
    };
    assert_eq!((&*message, &*cause, &*hint), ("no", "because", "less"));
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[test]
fn a_connection_that_breaks_is_made_again_and_begins_with_join() {
    let mut broken = 0;
    let (mut client, asked, _dir) = client(move |_, _| {
        broken += 1;
        match broken {
            1 => Reply::Close,
            2 => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-le".to_vec()),
            3 => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{".to_vec()),
            4 => Reply::Json(503, json!({ "error": { "message": "not yet" } })),
            _ => Reply::Json(200, json!({})),
        }
    });
    client.done().unwrap();
    let asked = asked.lock().unwrap();
    assert_eq!(asked[..3], ["/v1/join", "/v1/done", "/v1/join"]);
    assert_eq!(asked.iter().filter(|path| *path == "/v1/done").count(), 5);
}

#[test]
fn a_node_that_comes_late_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let late = socket.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(250));
        play(&late, |_, _| Reply::Json(200, joined()));
    });
    assert_eq!(Client::connect(&socket).unwrap().joined().name, "mnist");
}

#[test]
fn what_is_no_answer_is_refused_and_takes_no_room() {
    let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'x'; 64 << 10]].concat();
    for bytes in [
        &b"SSH-2.0\r\n\r\n"[..],
        b"HTTP/1.1 many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{x",
        b"HTTP/1.1 200 OK\r\n\xff: 1\r\n\r\n",
        &endless,
    ] {
        let bytes = bytes.to_vec();
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let (mut client, _, _dir) = client(move |_, _| Reply::Raw(bytes.clone()));
        let error = client.done().unwrap_err();
        assert!(matches!(error, ClientError::Answer { .. }), "{shown:?}: {error}");
    }
}

#[test]
fn json_of_another_shape_is_not_understood() {
    let (mut client, _, _dir) = client(|_, _| Reply::Json(200, json!({ "state": "sleep" })));
    assert!(matches!(client.next(None), Err(ClientError::Answer { .. })));
    assert!(matches!(client.submit(1, "x", 1, &BTreeMap::new()), Err(ClientError::Answer { .. })));
}
