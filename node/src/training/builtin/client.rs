//! The worker's side of the protocol (docs/worker-protocol.md): HTTP/1.1 on a Unix socket, one request at a time.
//!
//! The node beside it may be restarted, and the worker goes on: a connection that breaks or is refused is made again, for up
//! to a minute. Every new connection begins with `join`, so that a node which has forgotten this worker knows it again.
//! All requests may be repeated.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::clock::steady;

/// The version of the protocol that is spoken here.
pub const PROTOCOL: u32 = 1;
/// For so long a node that does not answer is tried again.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The first pause between two tries; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A node that says nothing for so long is taken for dead. It answers `next` after 20 s at the latest; to read a large
/// update may take it longer.
const SILENCE: Duration = Duration::from_secs(120);
/// A node that has nothing to do says so after a while; one that says so at once is not asked again at once.
const BREATH: Duration = Duration::from_millis(200);
/// The most bytes of an answer's head.
const MAX_HEAD: u64 = 16 << 10;
/// The most bytes of an answer's body.
const MAX_BODY: u64 = 1 << 20;

/// What this worker is part of. What is missing in the answer is empty.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Joined {
    /// The version of the protocol.
    pub protocol: u32,
    /// The job's name.
    pub name: String,
    /// How it trains.
    pub kind: String,
    /// Whose data this is.
    pub party: String,
    /// Which task this is.
    pub task: u32,
    /// How many rounds there will be.
    pub rounds: u32,
    /// How updates become a model.
    #[serde(deserialize_with = "or_default")]
    pub strategy: Strategy,
    /// With a parameter server: what there is to know of it.
    #[serde(deserialize_with = "or_default")]
    pub server: ServerAbout,
}

/// What a worker of a parameter server has to know.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct ServerAbout {
    /// Whether batches are handed out.
    pub dynamic: bool,
    /// How many workers there are.
    pub workers: u32,
    /// Steps between two checkpoints.
    pub checkpoint: u32,
}

/// How updates become a model, as far as a worker has to know.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Strategy {
    /// Its name.
    pub name: String,
    /// How near a worker should stay to the model that it began with.
    pub mu: Option<f64>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Next {
    /// Train.
    Round {
        /// Which round.
        round: u32,
        /// The file with the model to begin with; `None` to make the first one.
        model: Option<String>,
    },
    /// Make the first model of a parameter server.
    First,
    /// Make a step, or a batch, with a parameter server.
    Step {
        /// Which.
        step: u32,
    },
    /// Ask again.
    Wait,
    /// All is over.
    Done,
}

/// What became of an update.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Submitted {
    /// Whether it was taken.
    pub taken: bool,
    /// If not: why.
    #[serde(default)]
    pub why: Option<String>,
}

/// Values that came.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Pulled {
    model: String,
}

/// Why a node could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It did not answer.
    #[error("the node at {} did not answer for {} s", socket.display(), PATIENCE.as_secs())]
    Gone {
        /// Where.
        socket: PathBuf,
        /// Why, the last time.
        source: io::Error,
    },
    /// It refused the request.
    #[error("{message}")]
    Refused {
        /// What it said.
        message: String,
        /// Why.
        cause: String,
        /// What to try.
        hint: String,
    },
    /// It said something else than the protocol has.
    #[error("the node's answer to {path} was not understood")]
    Answer {
        /// What was asked.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    /// Broken connections are taken out.
    stream: Option<BufReader<UnixStream>>,
    joined: Joined,
}

impl Client {
    /// Connects and joins.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        let joined = Joined::default();
        let mut client = Self { socket: socket.to_owned(), stream: None, joined };
        client.ask("POST", "/v1/join", &joining())?;
        Ok(client)
    }

    /// What this worker is part of.
    pub fn joined(&self) -> &Joined {
        &self.joined
    }

    /// What to do after this round was submitted; `None` at first. Waits for it.
    pub fn next(&mut self, after: Option<u32>) -> Result<Next, ClientError> {
        let path = match after {
            Some(round) => format!("/v1/next?after={round}"),
            None => "/v1/next".to_owned(),
        };
        let asked = steady();
        let next = understood(&path, self.ask("GET", &path, &Value::Null)?)?;
        if next == Next::Wait && steady().duration_since(asked) < BREATH {
            thread::sleep(BREATH);
        }
        Ok(next)
    }

    /// Says how far training has come: 0 to 1.
    pub fn progress(&mut self, round: u32, part: f64) -> Result<(), ClientError> {
        self.tell("/v1/progress", &json!({ "round": round, "part": part }))
    }

    /// Says what the model that came with a round is worth.
    pub fn evaluated(
        &mut self,
        round: u32,
        examples: u64,
        metrics: &BTreeMap<&str, f64>,
    ) -> Result<(), ClientError> {
        let body = json!({ "round": round, "examples": examples, "metrics": metrics });
        self.tell("/v1/evaluated", &body)
    }

    /// Hands an update over: a file beside the model.
    pub fn submit(
        &mut self,
        round: u32,
        update: &str,
        examples: u64,
        metrics: &BTreeMap<&str, f64>,
    ) -> Result<Submitted, ClientError> {
        let body = json!({
            "round": round, "update": update, "examples": examples, "metrics": metrics,
        });
        understood("/v1/submit", self.ask("POST", "/v1/submit", &body)?)
    }

    /// Hands over the first model of a parameter server: a file.
    pub fn first(&mut self, model: &str) -> Result<(), ClientError> {
        self.tell("/v1/first", &json!({ "model": model }))
    }

    /// Has all values written into a file: its name.
    pub fn pull(&mut self) -> Result<String, ClientError> {
        let told: Pulled = understood("/v1/pull", self.ask("POST", "/v1/pull", &json!({}))?)?;
        Ok(told.model)
    }

    /// Hands over gradients: a file.
    pub fn push(
        &mut self,
        step: u32,
        update: &str,
        metrics: &BTreeMap<&str, f64>,
    ) -> Result<Submitted, ClientError> {
        let body = json!({ "step": step, "update": update, "metrics": metrics });
        understood("/v1/push", self.ask("POST", "/v1/push", &body)?)
    }

    /// Says that nothing more will come.
    pub fn done(&mut self) -> Result<(), ClientError> {
        self.tell("/v1/done", &json!({}))
    }

    fn tell(&mut self, path: &str, body: &Value) -> Result<(), ClientError> {
        self.ask("POST", path, body).map(drop)
    }

    /// Asks, again if it must.
    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Result<Value, ClientError> {
        let (mut pause, mut since) = (FIRST_PAUSE, None);
        loop {
            let was_open = self.stream.is_some();
            let source = match self.attempt(method, path, body) {
                Ok(Answer { status: 200..=299, body }) => return Ok(body),
                Ok(Answer { status: 500.., body }) => io::Error::other(refusal(&body).0),
                Ok(answer) => {
                    let (message, cause, hint) = refusal(&answer.body);
                    return Err(ClientError::Refused { message, cause, hint });
                }
                Err(source) if source.kind() == io::ErrorKind::InvalidData => {
                    self.stream = None;
                    return Err(ClientError::Answer { path: path.to_owned(), source });
                }
                Err(source) => source,
            };
            self.stream = None;
            // Whoever has nothing to say for long may find the connection closed: no reason to wait.
            if was_open && since.is_none() {
                since = Some(steady());
                continue;
            }
            let waited = steady().duration_since(*since.get_or_insert_with(steady));
            if waited + pause > PATIENCE {
                return Err(ClientError::Gone { socket: self.socket.clone(), source });
            }
            thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Asks once, and joins before that if there is no connection.
    fn attempt(&mut self, method: &str, path: &str, body: &Value) -> io::Result<Answer> {
        if let Some(stream) = &mut self.stream {
            return exchange(stream, method, path, body);
        }
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut stream = BufReader::new(stream);
        let joined = exchange(&mut stream, "POST", "/v1/join", &joining())?;
        if !(200..=299).contains(&joined.status) {
            return Ok(joined);
        }
        self.joined = Joined::deserialize(&joined.body).map_err(bad)?;
        let stream = self.stream.insert(stream);
        if path == "/v1/join" { Ok(joined) } else { exchange(stream, method, path, body) }
    }
}

/// What is missing, or null, is empty.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn joining() -> Value {
    json!({ "protocol": PROTOCOL })
}

fn understood<T: serde::de::DeserializeOwned>(path: &str, body: Value) -> Result<T, ClientError> {
    serde_json::from_value(body)
        .map_err(|error| ClientError::Answer { path: path.to_owned(), source: bad(error) })
}

fn bad(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// What a node says that refuses: message, cause, and what to try.
fn refusal(body: &Value) -> (String, String, String) {
    let text =
        |key: &str, otherwise: &str| body["error"][key].as_str().unwrap_or(otherwise).to_owned();
    (
        text("message", "the node refused it"),
        text("cause", "it does not say why"),
        text("try", "mesh logs JOB shows what the task wrote"),
    )
}

/// What a node answered.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
}

/// One request and its answer.
fn exchange<S: Read + Write>(
    stream: &mut BufReader<S>,
    method: &str,
    path: &str,
    body: &Value,
) -> io::Result<Answer> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: mesh\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.get_mut().write_all(request.as_bytes())?;
    stream.get_mut().flush()?;
    loop {
        let answer = answer(stream)?;
        // 1xx stands before the answer itself.
        if answer.status >= 200 {
            return Ok(answer);
        }
    }
}

fn answer(stream: &mut impl BufRead) -> io::Result<Answer> {
    let mut head = stream.take(MAX_HEAD);
    let first = line(&mut head)?;
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let status = status.and_then(|status| status.parse().ok());
    let status: u16 = status.ok_or_else(|| bad("it is no answer in HTTP/1.1"))?;
    let mut length = None;
    loop {
        let line = line(&mut head)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| bad("a line has no colon"))?;
        if name.eq_ignore_ascii_case("content-length") {
            let said = value.trim().parse::<u64>().ok().filter(|length| *length <= MAX_BODY);
            length = Some(said.ok_or_else(|| bad("its body is too long"))?);
        }
    }
    let has_none = status < 200 || status == 204;
    let length = match length {
        Some(length) => length,
        None if has_none => 0,
        None => return Err(bad("it does not say how long it is")),
    };
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body)?;
    if body.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let body = if body.is_empty() {
        Value::Null
    } else {
        // Who refuses in another language than JSON is still understood.
        match serde_json::from_slice(&body) {
            Ok(body) => body,
            Err(error) if status < 300 => return Err(bad(error)),
            Err(_) => Value::Null,
        }
    };
    Ok(Answer { status, body })
}

/// A line of the head, without its end.
fn line(head: &mut io::Take<&mut impl BufRead>) -> io::Result<String> {
    let mut line = Vec::new();
    head.read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(match head.limit() {
            0 => bad("its head is too long"),
            _ => io::ErrorKind::UnexpectedEof.into(),
        });
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(bad)
}

#[cfg(test)]
pub(super) mod played;
#[cfg(test)]
mod tests;
