//! Asks a node over HTTP: on the Unix socket of its directory, or over TCP with a token.
//!
//! Owns how an answer is fetched, bounded and timed, and how a refusal becomes a [`Report`]. What the
//! answers mean is in [`crate::answers`]; the rules are the node's.

use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::http::request::Builder;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mesh_node::work::stream::frame::PROTOCOL;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use crate::context::Place;
use crate::report::{Code, Report};

/// How long one question may take. A node gives up on a leader before this.
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest answer that is read: some thousands of nodes fit many times over.
const MAX_ANSWER: usize = 64 << 20;
/// The longest line of a stream: a job with its thousand tasks fits.
const MAX_LINE: usize = 4 << 20;
/// How long a node that has broken off may take to come back: it may be starting again.
const COMES_BACK: Duration = Duration::from_secs(30);
/// How soon it is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// The longest path that fits the address of a Unix socket.
const MAX_SOCKET_PATH: usize = 107;
/// Where the HTTP API listens if a URL names no port.
const API_PORT: u16 = 6376;

/// A node that can be asked. Each question is a connection of its own.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    target: Target,
}

#[derive(Clone)]
enum Target {
    Local(Place),
    Remote { authority: String, token: Option<String> },
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(place) => f.debug_tuple("Local").field(place).finish(),
            // Never the token.
            Self::Remote { authority, .. } => f.debug_tuple("Remote").field(authority).finish(),
        }
    }
}

impl Api {
    /// The node of a directory.
    pub(crate) fn local(place: Place) -> Self {
        Self { target: Target::Local(place) }
    }

    /// A node elsewhere: `http://HOST[:PORT]`, and the file that holds the token.
    pub(crate) fn remote(url: &str, token_file: Option<PathBuf>) -> Result<Self, Report> {
        let refuse = |cause: &str| {
            Err(Report::new(
                Code::Usage,
                format!("{url:?} is no address of a node"),
                cause,
                "--api http://HOST:6376",
            ))
        };
        let authority = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return refuse("a node speaks plain HTTP: put a tunnel (ssh -L) in front of it");
            }
            Some(_) => return refuse("it has to begin with http://"),
            None => url,
        };
        let authority = authority.trim_end_matches('/');
        if authority.is_empty() || authority.contains(['/', '@', '?', '#', ' ']) {
            return refuse("it is http://HOST or http://HOST:PORT and nothing more");
        }
        let has_port =
            authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let bare_v6 = authority.starts_with('[') && authority.ends_with(']');
        let authority = if has_port && !bare_v6 {
            authority.to_owned()
        } else {
            format!("{authority}:{API_PORT}")
        };
        let token = token_file.map(|path| token(&path)).transpose()?;
        Ok(Self { target: Target::Remote { authority, token } })
    }

    /// Reads.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer, Report> {
        self.ask(Method::GET, path, None).await
    }

    /// Does something.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Result<Answer, Report> {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// Takes something away.
    pub(crate) async fn delete(&self, path: &str) -> Result<Answer, Report> {
        self.ask(Method::DELETE, path, None).await
    }

    /// Does something that may be asked for twice. If no answer comes because the connection breaks, the same is
    /// asked again: the node may be starting anew.
    pub(crate) async fn post_surely(
        &self,
        path: &str,
        body: Value,
        patience: Duration,
    ) -> Result<Answer, Report> {
        let begun = Instant::now();
        // When no answer came for the first time, and why.
        let mut broke: Option<(Instant, Report)> = None;
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            let asked = timeout(left, self.once(Method::POST, path, Some(body.clone()))).await;
            let report = match asked {
                Ok(Ok(answer)) => return answer,
                Ok(Err(report)) => report,
                Err(_) => return Err(late(patience)),
            };
            match broke {
                // Where nobody was there from the beginning, nobody is on the way back.
                None if report.code == Code::NoNode => return Err(report),
                None => broke = Some((Instant::now(), report)),
                // That nobody is there now does not mean that nobody has heard it.
                Some((since, first)) if since.elapsed() >= COMES_BACK => return Err(first),
                Some(_) => {}
            }
            sleep(AGAIN).await;
        }
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answer, Report> {
        match timeout(PATIENCE, self.once(method, path, body)).await {
            Ok(answer) => answer?,
            Err(_) => Err(late(PATIENCE)),
        }
    }

    /// Asks once. The outer error is that no answer came, the inner one that the answer is no.
    async fn once(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Result<Answer, Report>, Report> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| broken(error.to_string()))?.to_bytes();
        Ok(understand(status, path, &body))
    }

    /// Reads what has no end: one line after another.
    pub(crate) async fn lines(&self, path: &str) -> Result<Lines, Report> {
        self.stream(Method::GET, path, None).await
    }

    /// Does something that takes its time, and reads how it goes. Dropping the lines closes the connection, and with
    /// it the node stops.
    pub(crate) async fn post_lines(&self, path: &str, body: Value) -> Result<Lines, Report> {
        self.stream(Method::POST, path, Some(body)).await
    }

    async fn stream(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Lines, Report> {
        let response = match timeout(PATIENCE, self.send(method, path, body)).await {
            Ok(response) => response?,
            Err(_) => {
                let cause = "the node took the question and said nothing";
                return Err(Report::new(
                    Code::Timeout,
                    "no answer came in time",
                    cause,
                    "mesh doctor",
                ));
            }
        };
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), MAX_LINE).collect().await;
            let body = body.map_err(|error| broken(error.to_string()))?.to_bytes();
            return Err(understand(status, path, &body)
                .err()
                .unwrap_or_else(|| broken("an empty refusal")));
        }
        Ok(Lines { body: response.into_body(), waiting: Vec::new(), next: 0, done: false })
    }

    /// Opens a stream of frames in both directions. Dropped, it ends on the other side, too.
    pub(crate) async fn upgrade(&self, path: &str) -> Result<TokioIo<Upgraded>, Report> {
        let request = Request::builder().method(Method::GET).uri(path);
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, PROTOCOL);
        let asked = async {
            let response = self.dispatch(request, None).await?;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                let upgraded = hyper::upgrade::on(response).await;
                return Ok(TokioIo::new(upgraded.map_err(|error| broken(error.to_string()))?));
            }
            let body = Limited::new(response.into_body(), MAX_LINE).collect().await;
            let body = body.map_err(|error| broken(error.to_string()))?.to_bytes();
            Err(understand(status, path, &body).err().unwrap_or_else(|| broken("it is no stream")))
        };
        timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(late(PATIENCE)))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Response<Incoming>, Report> {
        self.dispatch(Request::builder().method(method).uri(path), body).await
    }

    async fn dispatch(
        &self,
        mut request: Builder,
        body: Option<Value>,
    ) -> Result<Response<Incoming>, Report> {
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(body.map(|body| Bytes::from(body.to_string())).unwrap_or_default());
        let unfit = |error: hyper::http::Error| broken(error.to_string());
        match &self.target {
            Target::Local(place) => {
                let stream = connect(place).await.map_err(|error| no_node(place, &error))?;
                let request = request.header(HOST, "localhost").body(body).map_err(unfit)?;
                exchange(stream, request).await
            }
            Target::Remote { authority, token } => {
                let stream = TcpStream::connect(authority.as_str()).await;
                let found = stream.and_then(|stream| Ok((stream.peer_addr()?, stream)));
                let (at, stream) = found.map_err(|error| {
                    let message = format!("no node answers at {authority}");
                    Report::new(
                        Code::NoNode,
                        message,
                        error.to_string(),
                        "check --api or MESH_API; mesh status on that machine shows api_address",
                    )
                })?;
                // A node takes no name that a name server could have made up: it is asked by its address. Without
                // the scope of a link, which means something on this machine alone.
                let at = std::net::SocketAddr::new(at.ip(), at.port());
                // A key that somebody types does not wait for the next.
                let _ = stream.set_nodelay(true);
                request = request.header(HOST, at.to_string());
                if let Some(token) = token {
                    request = request.header(AUTHORIZATION, format!("Bearer {token}"));
                }
                exchange(stream, request.body(body).map_err(unfit)?).await
            }
        }
    }
}

fn token(path: &std::path::Path) -> Result<String, Report> {
    let read = std::fs::read_to_string(path).map_err(|error| {
        let message = format!("the token in {} cannot be read", path.display());
        Report::new(
            Code::Failed,
            message,
            error.to_string(),
            "point MESH_TOKEN_FILE at a readable file",
        )
    })?;
    let token = read.trim();
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        let message = format!("{} holds no token", path.display());
        let cause = "a token is one line of visible ASCII";
        return Err(Report::new(
            Code::Failed,
            message,
            cause,
            "point MESH_TOKEN_FILE at the token's file",
        ));
    }
    Ok(token.to_owned())
}

async fn connect(place: &Place) -> io::Result<UnixStream> {
    let socket = place.socket();
    if socket.as_os_str().len() <= MAX_SOCKET_PATH {
        return UnixStream::connect(&socket).await;
    }
    // Too long for a socket's address: go through an open directory instead, whose name is short.
    let run = std::fs::File::open(place.dir.join("run"))?;
    UnixStream::connect(format!("/proc/self/fd/{}/mesh.sock", run.as_raw_fd())).await
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Report>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
        .await
        .map_err(|error| broken(error.to_string()))?;
    // Its errors come out of the request, too.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await.map_err(|error| broken(error.to_string()))
}

/// Says why nobody answers on a directory's socket.
fn no_node(place: &Place, error: &io::Error) -> Report {
    let dir = place.dir.display();
    let make = || format!("{}, or {}", place.command("init"), place.command("join TICKET"));
    let (message, cause, hint) = match std::fs::metadata(&place.dir) {
        Err(found) if found.kind() == io::ErrorKind::NotFound => {
            (format!("there is no node in {dir}"), "the directory does not exist".into(), make())
        }
        Err(found) => (
            format!("{dir} cannot be looked into"),
            found.to_string(),
            "run as the user who owns it, or name another with --dir".into(),
        ),
        Ok(found) if !found.is_dir() => {
            (format!("there is no node in {dir}"), "it is a file".into(), "mesh --dir DIR …".into())
        }
        Ok(_) if error.kind() == io::ErrorKind::PermissionDenied => (
            format!("the node in {dir} is not yours to ask"),
            format!("{}: {error}", place.socket().display()),
            "run as the user who owns it, or ask over TCP with --api and MESH_TOKEN_FILE".into(),
        ),
        Ok(_) if place.is_joining() => (
            format!("the node in {dir} is not a member of a mesh yet"),
            "the join that was begun there waits for the other parties".into(),
            "mesh join with the same ticket goes on with it".into(),
        ),
        Ok(_) if !place.is_made() => {
            (format!("there is no node in {dir}"), "it is not a mesh directory".into(), make())
        }
        Ok(_) if place.has_left() => (
            "this node has left its mesh".into(),
            format!("a key that left may not come back, and {dir} can be deleted"),
            "join from a new directory: mesh join TICKET --dir DIR".into(),
        ),
        Ok(_) if place.was_removed() => (
            format!("no node is running in {dir}"),
            "the node in it was removed from its mesh, as it was told when it last ran".into(),
            "join from a new directory: mesh join TICKET --dir DIR".into(),
        ),
        Ok(_) => (
            format!("no node is running in {dir}"),
            format!("nothing answers on {}", place.socket().display()),
            place.command("up"),
        ),
    };
    Report::new(Code::NoNode, message, cause, hint)
}

/// The node took the question, and then nothing came.
fn late(patience: Duration) -> Report {
    let cause = format!("the node said nothing for {} s", patience.as_secs());
    Report::new(Code::Timeout, "no answer came in time", cause, "mesh doctor")
}

/// The connection broke, or what came is not HTTP.
pub(crate) fn broken(cause: impl Into<String>) -> Report {
    Report::new(
        Code::Unavailable,
        "the node's answer broke off",
        cause,
        "the same command again; then mesh doctor",
    )
}

/// Makes an answer or a report of what came back.
fn understand(status: StatusCode, path: &str, body: &[u8]) -> Result<Answer, Report> {
    let parsed = serde_json::from_slice::<Value>(body);
    if status.is_success() {
        return match parsed {
            Ok(body @ Value::Object(_)) => Ok(Answer { body }),
            _ if body.is_empty() => Ok(Answer { body: json!({ "schema": 1, "item": {} }) }),
            _ => Err(broken("it is not the JSON object that every answer is")),
        };
    }
    let by_status = match status {
        StatusCode::BAD_REQUEST => Code::Failed,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        StatusCode::GATEWAY_TIMEOUT => Code::Timeout,
        _ => Code::Refused,
    };
    let said = parsed.as_ref().ok().map(|body| &body["error"]).filter(|error| error.is_object());
    let Some(error) = said else {
        let message = format!("the node answered {status} without saying why");
        let cause =
            format!("asked for {path}: it may be another program, or mesh of another version");
        return Err(Report::new(by_status, message, cause, "mesh --version here and there"));
    };
    Err(refusal(error, by_status))
}

/// A node's error in its own words; `otherwise` is its code if it names none that is known here.
pub(crate) fn refusal(error: &Value, otherwise: Code) -> Report {
    let text = |field: &str, otherwise: &str| {
        let text = error[field].as_str().filter(|text| !text.trim().is_empty());
        text.unwrap_or(otherwise).to_owned()
    };
    Report {
        code: error["code"].as_str().and_then(Code::named).unwrap_or(otherwise),
        message: text("message", "the node refused"),
        cause: text("cause", "no further reason is known"),
        hint: text("try", "mesh doctor"),
    }
}

/// What a node answered: an object with an item or items.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    body: Value,
}

impl Answer {
    /// An answer that came as the last line of a stream.
    pub(crate) fn new(body: Value) -> Self {
        Self { body }
    }

    /// As it came, for `--json`.
    pub(crate) fn json(&self) -> &Value {
        &self.body
    }

    /// What a command made of this answer, as its own `item` or `items`: it is as fresh as the answer was.
    pub(crate) fn around(&self, name: &str, content: Value) -> Value {
        let mut made = json!({ "schema": 1, name: content });
        for field in ["index", "age_ms", "mesh_time"] {
            if let Some(said) = self.body.get(field) {
                made[field] = said.clone();
            }
        }
        made
    }

    /// Its one item.
    pub(crate) fn item<T: DeserializeOwned>(&self) -> Result<T, Report> {
        fits(&self.body["item"])
    }

    /// Its items.
    pub(crate) fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>, Report> {
        fits(&self.body["items"])
    }

    /// How long ago the node last knew that it was up to date; `None` if it never did since it started.
    pub(crate) fn age_ms(&self) -> Option<u64> {
        self.body["age_ms"].as_u64()
    }

    /// When the last of what the node knows was agreed on (RFC 3339).
    pub(crate) fn mesh_time(&self) -> Option<&str> {
        self.body["mesh_time"].as_str()
    }
}

fn fits<T: DeserializeOwned>(value: &Value) -> Result<T, Report> {
    T::deserialize(value).map_err(|error| {
        let message = "the node's answer is not what this version expects";
        Report::new(Code::Failed, message, error.to_string(), "mesh --version here and there")
    })
}

/// A stream of lines.
#[derive(Debug)]
pub(crate) struct Lines {
    body: Incoming,
    /// What came: lines that were handed out already, and from `next` on at most `MAX_LINE` and one frame.
    waiting: Vec<u8>,
    /// Where the next line begins.
    next: usize,
    done: bool,
}

impl Lines {
    /// The next line without its end; `None` when there are no more. Nothing is lost if it is not waited for to
    /// the end.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Report> {
        loop {
            let rest = &self.waiting[self.next..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                self.next += end + 1;
                return Ok(Some(line));
            }
            if self.done {
                let line = String::from_utf8_lossy(rest).into_owned();
                self.next = self.waiting.len();
                return Ok((!line.is_empty()).then_some(line));
            }
            if rest.len() > MAX_LINE {
                return Err(broken("a line has no end"));
            }
            // All at once: to drop line by line would move the rest of a large frame as often as it has lines.
            self.waiting.drain(..self.next);
            self.next = 0;
            match self.body.frame().await {
                Some(Ok(frame)) => self.waiting.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(broken(error.to_string())),
                None => self.done = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_and_maybe_a_port() {
        let authority = |url: &str| match Api::remote(url, None).unwrap().target {
            Target::Remote { authority, .. } => authority,
            Target::Local(_) => panic!("not remote"),
        };
        assert_eq!(authority("http://gpu-1:7000/"), "gpu-1:7000");
        assert_eq!(authority("http://gpu-1"), "gpu-1:6376");
        assert_eq!(authority("[::1]"), "[::1]:6376");
        for url in ["https://gpu-1", "ftp://x", "http://", "http://a/b", "http://user@host"] {
            assert_eq!(Api::remote(url, None).unwrap_err().code, Code::Usage, "{url}");
        }
    }

    #[test]
    fn a_refusal_keeps_its_words_and_its_code() {
        let body = br#"{"error":{"code":"no_leader","message":"m","cause":"c","try":"t"}}"#;
        let report = understand(StatusCode::SERVICE_UNAVAILABLE, "/v1/x", body).unwrap_err();
        assert_eq!(report, Report::new(Code::NoLeader, "m", "c", "t"));
        let body = br#"{"error":{"code":"of_a_later_version","message":"m"}}"#;
        let report = understand(StatusCode::GATEWAY_TIMEOUT, "/v1/x", body).unwrap_err();
        assert_eq!((report.code, report.message.as_str()), (Code::Timeout, "m"));
        assert!(!report.cause.is_empty() && !report.hint.is_empty());
    }

    #[test]
    fn what_is_made_of_an_answer_is_as_fresh_as_the_answer() {
        let body = json!({
            "schema": 1, "index": 7, "age_ms": null, "mesh_time": "T", "item": { "a": 1 },
        });
        let made = Answer::new(body).around("items", json!([2]));
        let want = json!({
            "schema": 1, "index": 7, "age_ms": null, "mesh_time": "T", "items": [2],
        });
        assert_eq!(made, want);
    }

    #[test]
    fn an_answer_that_is_not_ours_is_explained() {
        let report = understand(StatusCode::NOT_FOUND, "/v1/x", b"<html>").unwrap_err();
        assert_eq!(report.code, Code::NotFound);
        assert!(understand(StatusCode::OK, "/v1/x", b"hello").is_err());
        assert!(understand(StatusCode::NO_CONTENT, "/v1/x", b"").is_ok());
    }
}
