//! Pages of other sites, names that lead here, and guessed tokens, on a real node's doors.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use mesh_chaos_tests::hosts::fleet::{Plan, SETTLE};
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;

use crate::{again, nobody_fell, secs, status};

/// Restarts a node with its API on TCP too; where that is.
pub(crate) fn open_tcp(host: &mut Host) -> SocketAddr {
    host.term().unwrap();
    let path = host.data().join("config.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}\napi_listen = \"127.0.0.1:0\"\n")).unwrap();
    again(host);
    status(host)["api_address"].as_str().unwrap().parse().unwrap()
}

/// One request with these headers; the status of the answer, or zero if there was none.
fn asked(mut stream: impl Read + Write, verb: &str, path: &str, headers: &str) -> u16 {
    let body = if verb == "GET" || verb == "HEAD" { "" } else { "{}" };
    let request = format!(
        "{verb} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_string(&mut answer);
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

const VERBS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"];
const PATHS: [&str; 6] =
    ["/v1/status", "/v1/tickets", "/v1/leave", "/v1/stop", "/v1/party/key", "/v1/nodes/n0"];

#[test]
fn no_page_no_name_and_no_guess_opens_the_api() {
    let mut fleet = Plan::loopback(1).found().unwrap();
    let at = open_tcp(&mut fleet.hosts[0]);
    let host = &fleet.hosts[0];
    let token = fs::read_to_string(host.data().join("token")).unwrap();
    let token = token.trim();
    let tcp = || {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(secs(5))).unwrap();
        stream
    };
    let socket = || {
        let stream = UnixStream::connect(host.data().join("run/mesh.sock")).unwrap();
        stream.set_read_timeout(Some(secs(5))).unwrap();
        stream
    };
    let json = "Content-Type: application/json\r\n";
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let (pid, index) = (status(host)["pid"].clone(), status(host)["index"].clone());
    let good = format!("Host: {at}\r\n{bearer}{json}");
    assert_eq!(asked(tcp(), "GET", "/v1/status", &good), 200);
    // Whether it is well may be asked without a token; not by a page, and not by another name.
    let bare = format!("Host: {at}\r\n");
    let page = format!("{bare}Origin: http://evil.example\r\n");
    for path in ["/healthz", "/readyz"] {
        let well = until(SETTLE, || (asked(tcp(), "GET", path, &bare) == 200).then_some(()));
        well.unwrap_or_else(|| panic!("{path}"));
        assert_eq!(asked(tcp(), "POST", path, &bare), 401, "{path}");
        assert_eq!(asked(tcp(), "GET", path, &page), 403, "{path}");
        assert_eq!(asked(tcp(), "GET", path, "Host: evil.example\r\n"), 421, "{path}");
    }

    for verb in VERBS {
        for path in PATHS {
            // A page of another site, with everything right but its origin.
            for origin in ["http://evil.example", "null", "https://127.0.0.1", "http://localhost"] {
                let page = format!("Host: {at}\r\n{bearer}{json}Origin: {origin}\r\n");
                assert_eq!(asked(tcp(), verb, path, &page), 403, "{verb} {path} {origin}");
                let page = format!("Host: localhost\r\n{json}Origin: {origin}\r\n");
                assert_eq!(asked(socket(), verb, path, &page), 403, "{verb} {path} {origin}");
            }
            // A name that was made to lead here.
            let name = format!("Host: evil.example:{}\r\n{bearer}{json}", at.port());
            assert_eq!(asked(tcp(), verb, path, &name), 421, "{verb} {path}");
            let name = format!("Host: evil.example\r\n{json}");
            assert_eq!(asked(socket(), verb, path, &name), 421, "{verb} {path}");
            // No token, and wrong ones.
            let almost = format!("{}0", &token[..token.len() - 1]);
            let almost = if almost == token { format!("{}1", &token[..63]) } else { almost };
            for wrong in ["", "Bearer", "Bearer 0", &format!("Bearer {almost}"), "Basic YTpi"] {
                let guess = format!("Host: {at}\r\nAuthorization: {wrong}\r\n{json}");
                assert_eq!(asked(tcp(), verb, path, &guess), 401, "{verb} {path} {wrong}");
            }
        }
    }
    // What a form can send without asking.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let form = format!("Host: localhost\r\nContent-Type: {kind}\r\n");
        assert_eq!(asked(socket(), "POST", "/v1/leave", &form), 415, "{kind}");
    }
    // Nothing of all this was done: it runs, has not left, and made no ticket.
    let now = status(host);
    assert_eq!(now["pid"], pid);
    let written = now["index"].as_u64().unwrap() - index.as_u64().unwrap();
    assert!(written <= 2, "{written} entries were written: more than a node reports by itself");
    assert!(host.runs());
    nobody_fell(&fleet.hosts);
}
