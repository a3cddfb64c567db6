//! A node in a directory of its own, and a client that says exactly what it is told to.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use mesh_node::dir::Dir;
use mesh_node::handle::Handle;
use mesh_node::join::{Choices, found, join};
use mesh_node::run::{RunError, run};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Generous: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What gossip loses is pulled within a minute.
const LONG: Duration = Duration::from_secs(90);

/// A running node.
pub(crate) struct Node {
    pub(crate) dir: Dir,
    pub(crate) handle: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<Result<(), RunError>>>,
    /// There until it is stopped.
    _temp: Option<tempfile::TempDir>,
}

/// The directory of a node that was stopped.
pub(crate) struct Stopped {
    pub(crate) dir: Dir,
    temp: Option<tempfile::TempDir>,
}

impl Stopped {
    /// Starts it again.
    pub(crate) fn start(self) -> Node {
        Node::run(self.dir, self.temp.unwrap())
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// In small letters.
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn item(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["item"].clone()
    }

    pub(crate) fn items(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["items"].as_array().unwrap().clone()
    }

    /// Asserts that it is an error of the usual form, and gives its code.
    pub(crate) fn code(&self) -> String {
        let answer = self.json();
        assert_eq!(answer["schema"], 1, "{self:?}");
        let error = &answer["error"];
        for part in ["code", "message", "cause", "try"] {
            assert!(error[part].as_str().is_some_and(|text| !text.is_empty()), "{part}: {self:?}");
        }
        error["code"].as_str().unwrap().to_owned()
    }
}

impl Node {
    /// Founds a mesh in a new directory and waits until its node leads.
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// The same, with more settings.
    pub(crate) fn start_with(more: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        let choices = Choices {
            party: Some("lab".parse().unwrap()),
            name: Some("first".parse().unwrap()),
            listen: vec![(IpAddr::V4(Ipv4Addr::LOCALHOST), Some(0))],
            settings: format!("api_listen = \"127.0.0.1:0\"\nadvertise = [\"127.0.0.1\"]\n{more}")
                .parse()
                .unwrap(),
        };
        found(&dir, &choices).unwrap();
        let node = Self::run(dir, temp);
        node.until("it leads", |node| node.get("/v1/status").item()["is_leader"] == true);
        node
    }

    /// Joins the mesh of another node, and waits until it has the state.
    pub(crate) fn join(name: &str, other: &Self) -> Self {
        Self::join_with(name, other, "")
    }

    /// The same with more settings.
    pub(crate) fn join_with(name: &str, other: &Self, more: &str) -> Self {
        Self::come(name, None, other, more)
    }

    /// Joins as the first node of a further party, which is agreed on at once while there is one party.
    pub(crate) fn join_as(name: &str, party: &str, other: &Self) -> Self {
        Self::come(name, Some(party), other, "")
    }

    fn come(name: &str, party: Option<&str>, other: &Self, more: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        let body = match party {
            None => r#"{"advertise":["127.0.0.1"]}"#,
            Some(_) => r#"{"advertise":["127.0.0.1"],"new_party":true}"#,
        };
        let ticket = other.ask("POST", "/v1/tickets", body).item()["ticket"].clone();
        let ticket = ticket.as_str().unwrap().parse().unwrap();
        let choices = Choices {
            party: party.map(|party| party.parse().unwrap()),
            name: Some(name.parse().unwrap()),
            listen: vec![(IpAddr::V4(Ipv4Addr::LOCALHOST), Some(0))],
            settings: format!("api_listen = \"127.0.0.1:0\"\nadvertise = [\"127.0.0.1\"]\n{more}")
                .parse()
                .unwrap(),
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(join(&dir, &ticket, &choices, |_| {})).unwrap();
        let node = Self::run(dir, temp);
        node.until("it has the state", |node| node.get("/readyz").status == 200);
        node
    }

    fn run(dir: Dir, temp: tempfile::TempDir) -> Self {
        let stop = CancellationToken::new();
        let (ready, is_ready) = sync_channel(1);
        let (at, ends) = (dir.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let told = |handle: &Handle| ready.send(handle.clone()).unwrap();
            let ended = runtime.block_on(run(at, &toml::Table::new(), ends, told));
            runtime.shutdown_timeout(Duration::from_secs(1));
            ended
        });
        let handle = is_ready.recv_timeout(PATIENCE).unwrap();
        Self { dir, handle, stop, thread: Some(thread), _temp: Some(temp) }
    }

    /// Waits until something is so.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..LONG.as_millis() / 50 {
            if is_so(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let seen = ["/v1/status", "/v1/nodes", "/v1/links"].map(|path| self.get(path).text);
        panic!("never: {what}: {seen:#?}");
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.socket()
    }

    pub(crate) fn tcp(&self) -> SocketAddr {
        *self.handle.api.get().unwrap()
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.dir.file("token")).unwrap().trim().to_owned()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "")
    }

    /// Over the socket, as the CLI does.
    pub(crate) fn ask(&self, verb: &str, path: &str, body: &str) -> Reply {
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        self.say(verb, path, &format!("Host: localhost\r\n{kind}"), body)
    }

    /// Over the socket, with these headers.
    pub(crate) fn say(&self, verb: &str, path: &str, headers: &str, body: &str) -> Reply {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        exchange(stream, &request(verb, path, headers, body)).unwrap()
    }

    /// Over TCP, with these headers and no others.
    pub(crate) fn say_tcp(&self, verb: &str, path: &str, headers: &str, body: &str) -> Reply {
        let stream = TcpStream::connect(self.tcp()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        exchange(stream, &request(verb, path, headers, body)).unwrap()
    }

    /// The headers that a good request over TCP has.
    pub(crate) fn good(&self) -> String {
        format!("Host: {}\r\nAuthorization: Bearer {}\r\n", self.tcp(), self.token())
    }

    /// Stops it as `mesh down` does.
    pub(crate) fn stop(mut self) -> Stopped {
        self.stop.cancel();
        self.ended().unwrap();
        Stopped { dir: self.dir.clone(), temp: self._temp.take() }
    }

    /// Waits for the node to end of itself.
    pub(crate) fn ended(&mut self) -> Result<(), RunError> {
        self.thread.take().unwrap().join().unwrap()
    }

    /// Asserts that it still answers.
    pub(crate) fn is_up(&self) {
        assert_eq!(self.get("/healthz").status, 200);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn request(verb: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    format!("{verb} {path} HTTP/1.1\r\nConnection: close\r\n{headers}{length}\r\n{body}")
        .into_bytes()
}

/// Sends, and reads to the end. `None` if nothing came back.
pub(crate) fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Option<Reply> {
    // A node that refuses early may close while we still write.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, text) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Reply { status, head: head.to_lowercase(), text: text.to_owned() })
}
