//! What a program says to a node: HTTP over its Unix socket, one connection a request.
//!
//! The socket is a file, so it can be reached from outside the node's network namespace.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use mesh_node::clock::steady;
use serde_json::{Value, json};

/// How long a request may take: longer than an election, shorter than a story.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// An answer may be no longer than this.
const MAX_ANSWER: u64 = 16 << 20;

/// Asks one node.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens. The request had no effect.
    #[error("nobody listens at the node's socket")]
    NotSent(#[source] io::Error),
    /// It was sent, and nobody knows what became of it.
    #[error("no answer")]
    NoAnswer(#[source] io::Error),
    /// What came back is not HTTP and JSON.
    #[error("not an answer: {0}")]
    Garbled(String),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Value,
}

impl Answer {
    /// The code of an error.
    pub fn code(&self) -> Option<&str> {
        self.body["error"]["code"].as_str()
    }
}

/// What became of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It worked.
    Done,
    /// The value was another one.
    Refused,
    /// It never left.
    NotSent,
    /// Nobody knows.
    Unknown,
}

/// What a read saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// The value; `None` if there is none.
    Value(Option<u64>),
    /// There was no answer, or an excuse.
    Nothing,
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Status {
    /// Its id.
    pub id: String,
    /// Its process.
    pub pid: i32,
    /// Whether it leads.
    pub is_leader: bool,
    /// How it takes part: voter, learner, watcher, joining.
    pub role: String,
    /// The term it is in.
    pub term: u64,
    /// The last index applied.
    pub index: u64,
    /// The hash of everything applied up to there.
    pub history: Option<String>,
}

/// A node, as another one sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Member {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// up, silent, down, leaving, draining.
    pub state: String,
    /// How it takes part: voter, learner, watcher, joining.
    pub role: String,
}

impl Client {
    /// Asks the node with this socket. Connects when asked.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// One request, for `patience` at most in each direction.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Answer, AskError> {
        let mut stream = UnixStream::connect(&self.socket).map_err(AskError::NotSent)?;
        stream.set_read_timeout(Some(patience)).map_err(AskError::NotSent)?;
        stream.set_write_timeout(Some(patience)).map_err(AskError::NotSent)?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).map_err(AskError::NoAnswer)?;
        let answer = read_all(&mut stream, patience).map_err(AskError::NoAnswer)?;
        parse(&answer).ok_or_else(|| {
            AskError::Garbled(String::from_utf8_lossy(&answer).chars().take(200).collect())
        })
    }

    /// Writes `to` under a name if it finds `expect` there.
    pub fn put(&self, party: &str, name: &str, expect: Option<u64>, to: u64) -> Put {
        let body = json!({ "expect": expect.map(hash), "to": hash(to) });
        match self.ask("PUT", &format!("/v1/names/{party}/{name}"), Some(&body), PATIENCE) {
            Ok(Answer { status: 200..300, .. }) => Put::Done,
            Ok(Answer { status: 409, .. }) => Put::Refused,
            Err(AskError::NotSent(_)) => Put::NotSent,
            Ok(_) | Err(_) => Put::Unknown,
        }
    }

    /// Reads a name: as of now, or what this node happens to have.
    pub fn get(&self, party: &str, name: &str, stale: bool) -> Got {
        let query = if stale { "?stale=true" } else { "" };
        match self.ask("GET", &format!("/v1/names/{party}/{name}{query}"), None, PATIENCE) {
            Ok(answer) if answer.status == 404 => Got::Value(None),
            Ok(answer) if answer.status == 200 => found(&answer.body["item"]),
            Ok(_) | Err(_) => Got::Nothing,
        }
    }

    /// What the node says of itself.
    pub fn status(&self) -> anyhow::Result<Status> {
        let item = self.item("GET", "/v1/status", None)?;
        serde_json::from_value(item).context("the status lacks a field")
    }

    /// The name of the node's party.
    pub fn party(&self) -> anyhow::Result<String> {
        let item = self.item("GET", "/v1/status", None)?;
        Ok(item["party"].as_str().context("the status names no party")?.to_owned())
    }

    /// The members, as this node sees them.
    pub fn nodes(&self) -> anyhow::Result<Vec<Member>> {
        let answer = self.ask("GET", "/v1/nodes", None, PATIENCE)?;
        ensure!(answer.status == 200, "GET /v1/nodes: {} {}", answer.status, answer.body);
        serde_json::from_value(answer.body["items"].clone()).context("a node lacks a field")
    }

    /// A ticket for so many newcomers.
    pub fn ticket(&self, uses: usize) -> anyhow::Result<String> {
        let body = json!({ "ttl_ms": 3_600_000, "uses": uses });
        let item = self.item("POST", "/v1/tickets", Some(&body))?;
        Ok(item["ticket"].as_str().context("the answer has no ticket")?.to_owned())
    }

    fn item(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let answer = self.ask(method, path, body, PATIENCE)?;
        if !(200..300).contains(&answer.status) {
            bail!("{method} {path}: {} {}", answer.status, answer.body);
        }
        Ok(answer.body["item"].clone())
    }
}

/// A small number as the hash that the API wants.
fn hash(value: u64) -> String {
    format!("{value:064x}")
}

/// The number in a name's answer.
fn found(item: &Value) -> Got {
    let text = item["to"].as_str().or(item["hash"].as_str()).or(item.as_str());
    match text {
        Some(text) => match text.get(48..).map(|low| u64::from_str_radix(low, 16)) {
            Some(Ok(value)) if text.starts_with(&"0".repeat(48)) => Got::Value(Some(value)),
            _ => Got::Nothing,
        },
        None => Got::Value(None),
    }
}

/// Reads to the end, in `patience` altogether: a node that trickles must not hold us.
fn read_all(stream: &mut UnixStream, patience: Duration) -> io::Result<Vec<u8>> {
    let begun = steady();
    let mut answer = Vec::new();
    let mut piece = [0; 8192];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(size) => answer.extend_from_slice(&piece[..size]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if begun.elapsed() > patience || answer.len() as u64 > MAX_ANSWER {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let split = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..split]).ok()?.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let rest = &answer[split + 4..];
    let field = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(key, value)| (key == name).then(|| value.trim()))
    };
    let body = match field("content-length").and_then(|length| length.parse::<usize>().ok()) {
        // Cut off in the middle: no answer.
        Some(length) => rest.get(..length)?.to_vec(),
        None if field("transfer-encoding") == Some("chunked") => unchunk(rest)?,
        None => rest.to_vec(),
    };
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).ok()? };
    Some(Answer { status, body })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n")?;
        let size =
            usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let start = line + 2;
        body.extend_from_slice(rest.get(start..start.checked_add(size)?)?);
        rest = rest.get(start + size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_none() {
        let whole = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"item\": 1}").unwrap();
        assert_eq!((whole.status, &whole.body["item"]), (200, &json!(1)));
        assert!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"item\": 1}").is_none());
        let pieces = b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n\
            4\r\n{\"a\"\r\n4\r\n: 1}\r\n0\r\n\r\n";
        assert_eq!(parse(pieces).unwrap().body, json!({ "a": 1 }));
        assert!(parse(b"").is_none() && parse(b"\r\n\r\n").is_none());
    }

    #[test]
    fn a_number_survives_as_a_hash() {
        assert_eq!(found(&json!({ "to": hash(77) })), Got::Value(Some(77)));
        assert_eq!(found(&json!({ "hash": hash(u64::MAX) })), Got::Value(Some(u64::MAX)));
        assert_eq!(found(&json!(null)), Got::Value(None));
        assert_eq!(found(&json!({ "to": "f".repeat(64) })), Got::Nothing, "not one of ours");
    }
}
