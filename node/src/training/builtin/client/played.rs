//! A node that is played: it answers as a test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use serde_json::Value;

/// What a played node does about a request.
pub(in super::super) enum Reply {
    /// Answers with a status and JSON.
    Json(u16, Value),
    /// Sends just these bytes, and closes.
    Raw(Vec<u8>),
    /// Says nothing, and closes.
    Close,
}

/// Answers on a socket until the test is over, one connection after the other.
pub(in super::super) fn play(
    socket: &Path,
    mut reply: impl FnMut(&str, &Value) -> Reply + Send + 'static,
) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.unwrap(), &mut reply);
        }
    });
}

fn serve(stream: UnixStream, reply: &mut impl FnMut(&str, &Value) -> Reply) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split(' ').nth(1).unwrap().to_owned();
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match reply(&path, &body) {
            Reply::Json(status, body) => {
                let body = body.to_string();
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.get_mut().write_all((head + &body).as_bytes());
            }
            Reply::Raw(bytes) => {
                let _ = stream.get_mut().write_all(&bytes);
                return;
            }
            Reply::Close => return,
        }
    }
}
