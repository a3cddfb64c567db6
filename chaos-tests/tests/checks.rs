//! The checks themselves, on a register that keeps its promises and on ones that do not.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mesh_chaos_tests::hosts::client::{Client, Got, Put};
use mesh_chaos_tests::hosts::leftovers::Room;
use mesh_chaos_tests::hosts::load::{History, Load};
use serde_json::{Value, json};

/// How the register deals with its promises.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Honest,
    /// Every fifth answer does not come, though the deed is done.
    Mute,
    /// About every third read as of now gives the value before.
    Stale,
    /// About every third write is acknowledged and forgotten.
    Forgetful,
    /// Writes whatever the value was.
    Careless,
}

#[derive(Default)]
struct Register {
    now: BTreeMap<String, String>,
    before: BTreeMap<String, Option<String>>,
    asked: usize,
}

/// Speaks the few words of the API that the clients use.
fn serve(manner: Manner) -> (Room, Client) {
    let room = Room::new().unwrap();
    let path: PathBuf = room.path().join("mesh.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let register = Arc::new(Mutex::new(Register::default()));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, register) = (stream.unwrap(), register.clone());
            std::thread::spawn(move || answer(stream, manner, &register));
        }
    });
    (room, Client::new(path))
}

fn answer(mut stream: UnixStream, manner: Manner, register: &Mutex<Register>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) <= 2 {
            break;
        }
        lines.push(line.to_ascii_lowercase());
    }
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    let words: Vec<&str> = lines[0].split(' ').collect();
    let (name, stale) = match words[1].split_once('?') {
        Some((name, _)) => (name.to_owned(), true),
        None => (words[1].to_owned(), false),
    };
    let mut register = register.lock().unwrap();
    register.asked += 1;
    let asked = register.asked;
    let now = register.now.get(&name).cloned();
    let (status, item) = if words[0] == "put" {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let fits = body["expect"].as_str() == now.as_deref() || manner == Manner::Careless;
        if fits && !(manner == Manner::Forgetful && asked.is_multiple_of(3)) {
            register.before.insert(name.clone(), now);
            register.now.insert(name, body["to"].as_str().unwrap().to_owned());
        }
        if fits { (200, json!({})) } else { (409, Value::Null) }
    } else {
        let before = register.before.get(&name).cloned();
        let told = match before {
            Some(before) if manner == Manner::Stale && !stale && asked.is_multiple_of(3) => before,
            _ => now,
        };
        told.map_or((404, Value::Null), |to| (200, json!({ "to": to })))
    };
    drop(register);
    if manner == Manner::Mute && asked.is_multiple_of(5) {
        return;
    }
    let body = json!({ "schema": 1, "item": item }).to_string();
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}");
}

/// Lets the clients work for a while.
fn history(manner: Manner) -> (Room, Client, History) {
    let (room, client) = serve(manner);
    let load = Load::start(vec![client.clone()], "acme", 5);
    load.progress(60, Duration::from_secs(60));
    let history = load.stop();
    assert!(history.events.len() > 60, "{} operations", history.events.len());
    (room, client, history)
}

#[test]
fn an_honest_register_passes_also_if_it_does_not_always_answer() {
    for manner in [Manner::Honest, Manner::Mute] {
        let (_room, client, history) = history(manner);
        assert_eq!(history.linearizable(), Ok(()));
        if manner == Manner::Honest {
            assert_eq!(history.acked_survive("acme", &client), Ok(()));
            assert_eq!(history.stale_refused("acme", &client), Ok(()));
        }
    }
}

#[test]
fn a_stale_read_is_found() {
    let (_room, _, history) = history(Manner::Stale);
    history.linearizable().unwrap_err();
}

#[test]
fn a_write_that_was_acknowledged_and_forgotten_is_found() {
    let (_room, client, history) = history(Manner::Forgetful);
    assert!(history.acked_survive("acme", &client).unwrap_err().contains("was acknowledged"));
}

#[test]
fn a_register_that_lets_the_late_write_is_found() {
    let (_room, client, history) = history(Manner::Careless);
    assert!(history.stale_refused("acme", &client).unwrap_err().contains("which is gone"));
}

#[test]
fn the_longest_gap_is_measured() {
    let (_room, _, history) = history(Manner::Honest);
    let mut at: Vec<Duration> = history.acked.iter().map(|acked| acked.at).collect();
    // Of two clients, the one that was answered first may come second.
    at.sort_unstable();
    let (first, last) = (at[0], *at.last().unwrap());
    let longest = at.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert_eq!(history.longest_gap(first, last), longest);
    assert_eq!(history.longest_gap(last, last + Duration::from_secs(9)), Duration::from_secs(9));
}

#[test]
fn nobody_listens_at_a_socket_that_is_not_there() {
    let room = Room::new().unwrap();
    let client = Client::new(room.path().join("mesh.sock"));
    assert_eq!(client.put("acme", "x", None, 1), Put::NotSent);
    assert_eq!(client.get("acme", "x", false), Got::Nothing);
    assert!(client.status().is_err());
}
