//! A node's HTTP API as far as the CLI sees it: a real server on a real socket that plays given answers.

#![expect(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// A question as it came: `POST /v1/tickets`, the body, the token, the host.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) what: String,
    pub(crate) body: Value,
    pub(crate) token: Option<String>,
    pub(crate) host: String,
}

/// Everything that was asked so far.
pub(crate) type Heard = Arc<Mutex<Vec<Asked>>>;

/// Plays `answers` (question, status, body) on the socket of a node's directory.
pub(crate) fn node(dir: &Path, answers: &[(&str, u16, Value)]) -> Heard {
    std::fs::create_dir_all(dir.join("run")).unwrap();
    std::fs::write(dir.join("member"), "1\n").unwrap();
    let listener = UnixListener::bind(dir.join("run/mesh.sock")).unwrap();
    let (answers, heard) = (owned(answers), Heard::default());
    let record = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let reader = BufReader::new(stream.try_clone().unwrap());
            serve(reader, stream, &answers, &record);
        }
    });
    heard
}

/// The same over TCP; returns where it listens.
pub(crate) fn remote(answers: &[(&str, u16, Value)]) -> (String, Heard) {
    remote_for(usize::MAX, answers)
}

/// The same for so many questions; then nobody listens any more.
pub(crate) fn remote_for(times: usize, answers: &[(&str, u16, Value)]) -> (String, Heard) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (answers, heard) = (owned(answers), Heard::default());
    let record = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten().take(times) {
            let reader = BufReader::new(stream.try_clone().unwrap());
            serve(reader, stream, &answers, &record);
        }
    });
    (address, heard)
}

/// What comes of a question.
pub(crate) enum Reply {
    /// This answer: a status and a body.
    Answer(u16, Value),
    /// These lines, and then nothing more however long one waits.
    Hold(String),
    /// The connection is closed without a word.
    Drop,
}

/// A node that answers by the question and by how often it was asked before.
pub(crate) fn play(dir: &Path, reply: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Heard {
    std::fs::create_dir_all(dir.join("run")).unwrap();
    std::fs::write(dir.join("member"), "1\n").unwrap();
    let listener = UnixListener::bind(dir.join("run/mesh.sock")).unwrap();
    let heard = Heard::default();
    let record = heard.clone();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let asked = read(BufReader::new(stream.try_clone().unwrap()));
            let mut all = record.lock().unwrap();
            let times = all.iter().filter(|before| before.what == asked.what).count();
            let reply = reply(&asked, times);
            all.push(asked);
            drop(all);
            match reply {
                Reply::Answer(status, body) => write(&mut stream, status, &body),
                Reply::Hold(lines) => {
                    let head = "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n";
                    let first = format!("{head}{:x}\r\n{lines}\r\n", lines.len());
                    // Without lines, their number would be the end.
                    let first = if lines.is_empty() { head } else { first.as_str() };
                    let _ = stream.write_all(first.as_bytes());
                    held.push(stream);
                }
                Reply::Drop => {}
            }
        }
    });
    heard
}

/// A node that says what it is, and nothing more however long one waits.
pub(crate) fn mute(dir: &Path, status: Value) {
    std::fs::create_dir_all(dir.join("run")).unwrap();
    std::fs::write(dir.join("member"), "1\n").unwrap();
    let listener = UnixListener::bind(dir.join("run/mesh.sock")).unwrap();
    let answers = owned(&[("GET /v1/status", 200, status)]);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            // Its first line stays in the reader, to be read by whoever answers.
            if reader.fill_buf().is_ok_and(|asked| asked.starts_with(b"GET ")) {
                serve(reader, stream, &answers, &Heard::default());
            } else {
                held.push(stream);
            }
        }
    });
}

type Answers = Vec<(String, u16, Value)>;

fn owned(answers: &[(&str, u16, Value)]) -> Answers {
    answers.iter().map(|(what, status, body)| ((*what).to_owned(), *status, body.clone())).collect()
}

/// One question, one answer. The last of several answers to a question is repeated.
fn serve(from: impl BufRead, mut to: impl Write, answers: &Answers, heard: &Heard) {
    let asked = read(from);
    let what = asked.what.clone();
    let mut all = heard.lock().unwrap();
    let times = all.iter().filter(|asked| asked.what == what).count();
    all.push(asked);
    drop(all);
    let fitting: Vec<_> = answers.iter().filter(|(known, _, _)| *known == what).collect();
    match fitting.get(times).or(fitting.last()) {
        Some((_, status, body)) => write(&mut to, *status, body),
        None => write(&mut to, 404, &Value::String(String::new())),
    }
}

/// Reads a question.
fn read(mut from: impl BufRead) -> Asked {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    let what = line.rsplit_once(" HTTP").map_or("", |(what, _)| what).to_owned();
    let (mut length, mut token, mut host) = (0, None, String::new());
    loop {
        let mut header = String::new();
        from.read_line(&mut header).unwrap();
        let header = header.trim();
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ").unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => token = Some(value.to_owned()),
            "host" => value.clone_into(&mut host),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).unwrap();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Asked { what, body, token, host }
}

/// Writes an answer: JSON, or text as it is.
fn write(to: &mut impl Write, status: u16, body: &Value) {
    let body = match body {
        Value::String(text) => text.clone(),
        body => body.to_string(),
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // A reader that has seen enough is none of our business.
    let _ = to.write_all(format!("{head}{body}").as_bytes());
}

/// `mesh WORDS` on a directory.
pub(crate) fn mesh(dir: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh"));
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "MESH_API", "MESH_TOKEN_FILE", "DOCKER_HOST"] {
        command.env_remove(name);
    }
    command.env("MESH_DIR", dir).stdin(Stdio::null());
    command.args(line.split_whitespace()).output().unwrap()
}
