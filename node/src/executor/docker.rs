//! Containers, through the daemon's socket.
//!
//! ```text
//!  create ─► attach ─► start ─┬─► its first words, then its log, followed into DIR/log
//!                             └─► wait ─► inspect ─► DIR/exit ─► remove
//! ```
//!
//! A container is named after this node and its attempt and carries both as labels. So a restarted node finds it, reads
//! its log on from the last record that it has, and learns how it ended, even if that was meanwhile. While the node is
//! down nobody looks after time and grace; both are made up for when it is back.
//!
//! What a container gets: its limits, [`WORK`] and the mounts that were asked for, a network on which it meets no other
//! container, a small `init` that passes signals on. What it never gets: root, capabilities, the daemon's socket, any
//! other path of the host.

pub mod image;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::future::{Future, pending};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::{
    ContainerCreateBody, ContainerState, ContainerStateStatusEnum, DeviceRequest, HealthConfig,
    HostConfig, HostConfigLogConfig, Mount, MountType, NetworkCreateRequest, PortBinding,
};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder,
    DownloadFromContainerOptionsBuilder, KillContainerOptionsBuilder, ListContainersOptionsBuilder,
    ListNetworksOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
    ResizeExecOptionsBuilder, StatsOptionsBuilder, WaitContainerOptionsBuilder,
};
use bytes::Bytes;
use futures::StreamExt;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tracing::{debug, warn};

use super::ending::{Deed, Ending, Natural};
use super::launch::{Ended, Ids, LOG, Launch, MARK, Network, Record, WORK};
use super::log::{Rotation, Stream, Writer, last_times};
use super::process::{give, lost};
use super::session::{Control, Session, Size};
use super::shim::Order;
use super::{StartError, Usage};
use crate::clock::{now, steady};

pub use self::image::{Image, Pulled};

/// How long the daemon may take to answer a question. To create a container on a busy disk takes seconds.
const ANSWERING_S: u64 = 120;
/// How long it may take to say hello.
const GREETING: Duration = Duration::from_secs(3);
/// The oldest version of the API that has what is asked for here.
const OLDEST: (usize, usize) = (1, 41);
/// How long a daemon may be away before its containers are given up: a restart takes seconds, an upgrade a minute.
const AWAY: Duration = Duration::from_secs(120);
/// How soon a daemon that did not answer is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often memory and processor time are asked for, to know them at the end.
const LOOK: Duration = Duration::from_secs(10);
/// How long the rest of a log may take to arrive after the end.
const DRAINING: Duration = Duration::from_secs(5);
/// Lines that are written at one go.
const LINES: usize = 256;
/// First words of a stream are fewer: they are numbered within a millisecond.
const MAX_SAID: u64 = 1_000_000;
/// A container takes longer to start, and no line of its log is older than its start by so much.
const STARTING_NANOS: u64 = 10_000_000;
/// Where the daemon cuts a line.
const MAX_LINE: usize = 16 << 10;
/// Pieces of output that wait for their reader; then the command waits.
const QUEUE_PIECES: usize = 16;
/// Orders that wait: more than one stop and one kill mean nothing.
const QUEUE_ORDERS: usize = 8;
/// The most of a file in an image that is looked at.
const MAX_PASSWD: usize = 1 << 20;
/// Who has no rights anywhere, on any distribution.
const NOBODY: Ids = Ids { uid: 65_534, gid: 65_534 };
/// The network on which containers do not meet.
const NETWORK: &str = "mesh";
/// Which node a container belongs to.
const LABEL_NODE: &str = "mesh.node";
/// Which attempt it is.
const LABEL_ATTEMPT: &str = "mesh.attempt";

/// What the daemon answered, or that it did not.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// There is no such image.
    #[error("no such image: {0}")]
    NoSuchImage(String),
    /// There is no such container.
    #[error("no such container")]
    NoSuchContainer,
    /// GPUs were asked for where containers cannot have them.
    #[error(
        "Docker on this node cannot give a container GPUs: the NVIDIA container toolkit is not set up"
    )]
    NoGpus,
    /// It did not want to.
    #[error("Docker refused: {0}")]
    Refused(String),
    /// It does not answer, or not in words that we know.
    #[error("Docker does not answer")]
    Away(#[source] Box<Error>),
}

impl From<Error> for DockerError {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code: 404, message }
                if message.contains("No such container") =>
            {
                DockerError::NoSuchContainer
            }
            Error::DockerResponseServerError { message, .. } if message.contains("[[gpu]]") => {
                DockerError::NoGpus
            }
            Error::DockerResponseServerError { message, .. } => DockerError::Refused(message),
            Error::DockerStreamError { error } => DockerError::Refused(error),
            other => DockerError::Away(Box::new(other)),
        }
    }
}

/// What the daemon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its version.
    pub version: String,
    /// The version of the API that is spoken with it.
    pub api: String,
    /// Whether it can give containers GPUs.
    pub gpus: bool,
    /// Whether users in containers are others on the host.
    pub remaps_users: bool,
}

/// A daemon that answered.
#[derive(Clone)]
pub struct Docker {
    api: bollard::Docker,
    facts: Arc<Facts>,
    /// Held while a network is made, so that there are not two of one name.
    networks: Arc<tokio::sync::Mutex<()>>,
}

impl fmt::Debug for Docker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Docker").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Docker {
    /// The daemon of this host: where `DOCKER_HOST` says if that is a socket, or in the usual place. `None` if none answers.
    pub async fn connect() -> Option<Self> {
        let set = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
        let named =
            set("DOCKER_HOST").and_then(|host| Some(host.strip_prefix("unix://")?.to_owned()));
        let own = set("XDG_RUNTIME_DIR").map(|dir| format!("{dir}/docker.sock"));
        let usual = Some("/var/run/docker.sock".to_owned());
        for socket in [named, usual, own].into_iter().flatten() {
            if !Path::new(&socket).exists() {
                continue;
            }
            match timeout(GREETING, Self::greet(&socket)).await {
                Ok(Ok(docker)) => return Some(docker),
                Ok(Err(error)) => debug!(%error, socket, "no use of this Docker"),
                Err(_) => debug!(socket, "this Docker does not answer"),
            }
        }
        None
    }

    async fn greet(socket: &str) -> Result<Self, DockerError> {
        let api =
            bollard::Docker::connect_with_unix(socket, ANSWERING_S, bollard::API_DEFAULT_VERSION)?;
        let api = api.negotiate_version().await?;
        let spoken = api.client_version();
        let version = format!("{}.{}", spoken.major_version, spoken.minor_version);
        if (spoken.major_version, spoken.minor_version) < OLDEST {
            return Err(DockerError::Refused(format!("its API {version} is too old")));
        }
        let info = api.info().await?;
        let has_runtime = info.runtimes.iter().flatten().any(|(name, _)| name.contains("nvidia"));
        let has_devices = info
            .discovered_devices
            .iter()
            .flatten()
            .any(|device| device.id.as_deref().is_some_and(|id| id.starts_with("nvidia.com/")));
        let says =
            |word: &str| info.security_options.iter().flatten().any(|option| option.contains(word));
        let facts = Facts {
            version: info.server_version.clone().unwrap_or_default(),
            api: version,
            gpus: has_runtime || has_devices,
            remaps_users: says("name=userns") || says("name=rootless"),
        };
        Ok(Self { api, facts: Arc::new(facts), networks: Arc::default() })
    }

    /// What it is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Removes containers of a node that belong to no known attempt.
    pub(super) async fn sweep(&self, node: &str, known: &BTreeSet<String>) {
        let filters = [("label".to_owned(), vec![format!("{LABEL_NODE}={node}")])];
        let options = ListContainersOptionsBuilder::new().all(true);
        let options = options.filters(&filters.into_iter().collect()).build();
        let found = match self.api.list_containers(Some(options)).await {
            Ok(found) => found,
            Err(error) => return warn!(%error, "containers could not be looked through"),
        };
        for container in found {
            let attempt = container.labels.and_then(|mut labels| labels.remove(LABEL_ATTEMPT));
            let is_known = attempt.as_ref().is_some_and(|attempt| known.contains(attempt));
            if let Some(id) = container.id.filter(|_| !is_known) {
                self.remove(&id).await;
            }
        }
    }

    /// Removes what is left of an attempt.
    pub(super) async fn discard(&self, node: &str, launch: &Launch) {
        self.remove(&container_name(node, &launch.name)).await;
        if let Network::Shared(network) = &launch.network {
            // Refused while others are on it.
            for id in self.networks_called(&shared_network(network)).await.unwrap_or_default() {
                let _ = self.api.remove_network(&id).await;
            }
        }
    }

    async fn remove(&self, name: &str) {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        if let Err(error) = self.api.remove_container(name, Some(options)).await
            && !matches!(DockerError::from(error), DockerError::NoSuchContainer)
        {
            debug!(name, "a container could not be removed yet");
        }
    }

    async fn state(&self, name: &str) -> Result<ContainerState, DockerError> {
        let found = self.api.inspect_container(name, None).await?;
        Ok(found.state.unwrap_or_default())
    }

    async fn signal(&self, name: &str, deed: Deed) -> Result<(), DockerError> {
        let signal = match deed {
            Deed::Ask => "SIGTERM",
            Deed::Kill => "SIGKILL",
        };
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        Ok(self.api.kill_container(name, Some(options)).await?)
    }

    async fn used(&self, name: &str) -> Option<(Usage, u64)> {
        let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
        let mut stats = pin!(self.api.stats(name, Some(options)));
        let stats = stats.next().await?.ok()?;
        let memory = stats.memory_stats.unwrap_or_default();
        let cached = memory.stats.as_ref().and_then(|stats| {
            // Version 1 of cgroups, and version 2.
            stats.get("total_inactive_file").or_else(|| stats.get("inactive_file")).copied()
        });
        let memory_bytes = memory.usage.unwrap_or(0).saturating_sub(cached.unwrap_or(0));
        let nanos = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|cpu| cpu.total_usage);
        let usage = Usage { memory_bytes, cpu_ms: nanos.unwrap_or(0) / 1_000_000 };
        Some((usage, memory.max_usage.unwrap_or(memory_bytes).max(memory_bytes)))
    }

    /// Makes a network, unless it is there.
    async fn network(&self, network: &Network) -> Result<String, DockerError> {
        let (name, meet) = match network {
            Network::None => return Ok("none".into()),
            Network::Apart => (NETWORK.to_owned(), "false"),
            Network::Shared(name) => (shared_network(name), "true"),
        };
        let _alone = self.networks.lock().await;
        // Docker lets two networks have one name, and then takes neither: nodes on one machine make them in turn.
        let _in_turn = tokio::task::spawn_blocking(machine_lock).await.ok().flatten();
        if let Some(id) = self.networks_called(&name).await?.into_iter().next() {
            return Ok(id);
        }
        let options = [("com.docker.network.bridge.enable_icc".to_owned(), meet.to_owned())];
        let request = NetworkCreateRequest {
            name: name.clone(),
            driver: Some("bridge".into()),
            options: Some(options.into_iter().collect()),
            ..Default::default()
        };
        match self.api.create_network(request).await {
            Ok(_) | Err(Error::DockerResponseServerError { status_code: 409, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let made = self.networks_called(&name).await?.into_iter().next();
        made.ok_or_else(|| DockerError::Refused(format!("it made no network {name}")))
    }

    /// The ids of the networks of this name, in order.
    async fn networks_called(&self, name: &str) -> Result<Vec<String>, DockerError> {
        let filters = [("name".to_owned(), vec![name.to_owned()])];
        let options = ListNetworksOptionsBuilder::new().filters(&filters.into_iter().collect());
        let found = self.api.list_networks(Some(options.build())).await?;
        // The filter takes parts of names, too.
        let exact = found.into_iter().filter(|network| network.name.as_deref() == Some(name));
        let mut ids: Vec<String> = exact.filter_map(|network| network.id).collect();
        ids.sort();
        Ok(ids)
    }

    /// Creates the container of an attempt. One of that name is from a start that was interrupted, and goes.
    async fn create(&self, name: &str, body: &ContainerCreateBody) -> Result<(), DockerError> {
        let options = || Some(CreateContainerOptionsBuilder::new().name(name).build());
        match self.api.create_container(options(), body.clone()).await {
            Err(Error::DockerResponseServerError { status_code: 409, .. }) => {
                self.remove(name).await;
                self.api.create_container(options(), body.clone()).await?;
            }
            created => drop(created?),
        }
        Ok(())
    }

    /// The number of a user that the image knows by name; `None` if it does not.
    async fn number_of(&self, container: &str, user: &str) -> Result<Option<u32>, DockerError> {
        let options = DownloadFromContainerOptionsBuilder::new().path("/etc/passwd").build();
        let mut tar = pin!(self.api.download_from_container(container, Some(options)));
        let mut bytes = Vec::new();
        while let Some(part) = tar.next().await {
            match part {
                Ok(part) => bytes.extend_from_slice(&part),
                // There is no such file.
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            if bytes.len() > MAX_PASSWD {
                return Ok(None);
            }
        }
        Ok(number_in(&bytes, user))
    }

    /// Listens to a container that is about to start. Without it, its log is heard a little later.
    async fn first_words(&self, name: &str) -> Option<FirstWords> {
        let options = AttachContainerOptionsBuilder::new().stream(true).stdout(true).stderr(true);
        let at = now().0.saturating_mul(1_000_000);
        let attached = self.api.attach_container(name, Some(options.build())).await.ok()?;
        Some(FirstWords { output: attached.output, at, said: [0; 2], begun: Default::default() })
    }

    /// Waits until a container does not run any more. An error is why it is lost.
    async fn gone(&self, name: &str) -> Result<ContainerState, String> {
        let mut away_since: Option<Instant> = None;
        loop {
            let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
            let mut wait = pin!(self.api.wait_container(name, Some(options)));
            // Whatever it says, and if it falls silent because the daemon went: the state tells.
            let _ = wait.next().await;
            match self.state(name).await {
                Ok(state) if !state.running.unwrap_or(false) => return Ok(state),
                Ok(_) => away_since = None,
                Err(DockerError::NoSuchContainer) => return Err("its container was removed".into()),
                Err(error) => {
                    let since = *away_since.get_or_insert_with(steady);
                    if since.elapsed() > AWAY {
                        return Err(format!("{error}, for {} s", AWAY.as_secs()));
                    }
                }
            }
            sleep(AGAIN).await;
        }
    }

    /// Writes what a container says into an attempt's log, from where the log ends to the end of the container.
    /// The daemon is slow to begin with that, so that its first words are heard otherwise.
    async fn follow(
        &self,
        name: &str,
        dir: &Path,
        rotation: Rotation,
        mut first: Option<FirstWords>,
    ) -> io::Result<()> {
        let mut last = last_times(dir)?;
        let mut writer = Writer::open(dir, rotation)?;
        // So many lines of each stream were written before the log came to them.
        let mut known = [0u64; 2];
        if first.is_none()
            && let Ok(state) = self.state(name).await
        {
            let started = nanos(state.started_at.as_deref());
            known = last.map(|last| words_before(last, started));
        }
        loop {
            // Whole seconds only; and the two streams may have come a little out of order.
            let seconds = (last[0].max(last[1]) / 1_000_000_000).saturating_sub(2);
            let options = LogsOptionsBuilder::new().follow(true).stdout(true).stderr(true);
            let options =
                options.timestamps(true).since(i32::try_from(seconds).unwrap_or(0)).build();
            let lines = self.api.logs(name, Some(options));
            let mut lines = pin!(lines.ready_chunks(LINES));
            loop {
                let lines = tokio::select! {
                    biased;
                    lines = lines.next() => lines,
                    words = next_words(&mut first) => {
                        for (stream, at, text) in words {
                            writer.add(at, stream, &text, true);
                            known[usize::from(stream == Stream::Err)] += 1;
                        }
                        writer.flush();
                        continue;
                    }
                };
                first = None;
                let Some(lines) = lines else { break };
                for line in lines.into_iter().filter_map(Result::ok) {
                    let Some((stream, at, text, is_whole)) = dated(&line) else { continue };
                    let which = usize::from(stream == Stream::Err);
                    let last = &mut last[which];
                    if known[which] > 0 {
                        known[which] -= 1;
                        *last = (*last).max(at);
                        continue;
                    }
                    // It was written in an earlier life.
                    if at > *last {
                        *last = at;
                        writer.add(at, stream, text, is_whole);
                    }
                }
                writer.flush();
            }
            match self.state(name).await {
                Ok(state) if !state.running.unwrap_or(false) => return Ok(()),
                Err(DockerError::NoSuchContainer) => return Ok(()),
                // The daemon went, or turned its file over: go on.
                _ => sleep(AGAIN).await,
            }
        }
    }
}

/// What a container says before its log can be followed.
struct FirstWords {
    output: Pin<Box<dyn futures::Stream<Item = Result<LogOutput, Error>> + Send>>,
    /// The moment before the start, in nanoseconds, and whole milliseconds: a line is given this and its number, so that
    /// whoever comes after a crash knows how many there were. See [`words_before`].
    at: u64,
    /// How many there were, of each stream.
    said: [u64; 2],
    /// The line that has begun, of each stream.
    begun: [Vec<u8>; 2],
}

/// The next whole lines; waits for ever once there are none.
async fn next_words(first: &mut Option<FirstWords>) -> Vec<(Stream, u64, Vec<u8>)> {
    let Some(words) = first else { return pending().await };
    let piece = words.output.next().await;
    let (stream, bytes) = match piece {
        Some(Ok(LogOutput::StdOut { message })) => (Stream::Out, message),
        Some(Ok(LogOutput::StdErr { message })) => (Stream::Err, message),
        _ => {
            *first = None;
            return Vec::new();
        }
    };
    let begun = &mut words.begun[usize::from(stream == Stream::Err)];
    begun.extend_from_slice(&bytes);
    let mut whole = Vec::new();
    while let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
        let rest = begun.split_off(end + 1);
        let mut line = std::mem::replace(begun, rest);
        line.pop();
        // The daemon cuts long lines, and then there are more of them in the log.
        if line.len() >= MAX_LINE {
            *first = None;
            return whole;
        }
        let said = &mut words.said[usize::from(stream == Stream::Err)];
        *said += 1;
        whole.push((stream, words.at + *said, line));
        if *said + 1 == MAX_SAID {
            *first = None;
            return whole;
        }
    }
    if begun.len() >= MAX_LINE {
        *first = None;
    }
    whole
}

/// How many first words of a stream are in a log, by the time of its last line: from before the start of its container, or not.
fn words_before(last: u64, started: u64) -> u64 {
    if last.saturating_add(STARTING_NANOS) < started { last % MAX_SAID } else { 0 }
}

/// A container that was started or found again.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) record: Record,
    docker: Docker,
    name: String,
    orders: mpsc::Sender<Order>,
}

impl Container {
    /// Tells whoever looks after it. One that waits already is enough.
    pub(super) async fn order(&self, order: Order) {
        // Closed: it is over.
        let _ = self.orders.send(order).await;
    }

    pub(super) async fn usage(&self) -> Option<Usage> {
        self.docker.used(&self.name).await.map(|(usage, _)| usage)
    }

    /// Runs a further command in it.
    pub(super) async fn exec(
        &self,
        argv: &[String],
        tty: Option<Size>,
    ) -> Result<Session, DockerError> {
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(tty.is_some()),
            env: tty.map(|_| vec!["TERM=xterm-256color".to_owned()]),
            cmd: Some(argv.to_vec()),
            working_dir: Some(WORK.to_owned()),
            ..Default::default()
        };
        let api = &self.docker.api;
        let id = api.create_exec(&self.name, options).await?.id;
        let options = StartExecOptions { tty: tty.is_some(), ..Default::default() };
        let StartExecResults::Attached { mut output, input } =
            api.start_exec(&id, Some(options)).await?
        else {
            return Err(DockerError::Refused("it runs the command without its output".into()));
        };
        let exec = Exec { api: api.clone(), id };
        if let Some(size) = tty {
            exec.resize(size).await?;
        }
        let (send, receive) = mpsc::channel(QUEUE_PIECES);
        tokio::spawn(async move {
            while let Some(Ok(piece)) = output.next().await {
                let stream = match piece {
                    LogOutput::StdErr { .. } => Stream::Err,
                    _ => Stream::Out,
                };
                let bytes: Bytes = piece.into_bytes();
                if send.send((stream, bytes)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Session { input, output: receive, control: Control::container(exec) })
    }
}

/// A further command in a container.
pub(super) struct Exec {
    api: bollard::Docker,
    id: String,
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exec").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Exec {
    pub(super) async fn resize(&self, size: Size) -> Result<(), DockerError> {
        let options = ResizeExecOptionsBuilder::new();
        let options = options.h(i32::from(size.rows)).w(i32::from(size.columns)).build();
        Ok(self.api.resize_exec(&self.id, options).await?)
    }

    /// Its exit code, once it has one.
    pub(super) async fn code(&self) -> Result<Option<u8>, DockerError> {
        let found = self.api.inspect_exec(&self.id).await?;
        if found.running.unwrap_or(false) {
            return Ok(None);
        }
        let code = found.exit_code.and_then(|code| u8::try_from(code).ok());
        Ok(Some(code.unwrap_or(u8::MAX)))
    }
}

/// Starts an attempt in a container: what was started, when, and the future that looks after it to its end.
pub(super) async fn start(
    docker: Docker,
    record: Record,
    node: &str,
) -> Result<(Container, u64, impl Future<Output = Ended> + use<>), StartError> {
    let launch = &record.launch;
    let wanted = launch.image.as_deref().unwrap_or_default();
    let (image, network) = tokio::join!(docker.image(wanted), docker.network(&launch.network));
    let image = image?.ok_or_else(|| DockerError::NoSuchImage(wanted.to_owned()))?;
    let network = network?;
    let name = container_name(node, &launch.name);
    let who = User::of(&image.user);
    let remapped = docker.facts.remaps_users;
    let asked = |who: &User| request(launch, node, &image.id, &network, who);
    prepare(&record, &who, remapped).await?;
    docker.create(&name, &asked(&who)).await?;
    if let User::Named(user) = &who {
        // Known only now: nobody can look into an image without a container.
        let number = docker.number_of(&name, user).await.unwrap_or(None);
        let who = match number.filter(|uid| *uid != 0) {
            Some(uid) => User::number(Ids { uid, gid: uid }),
            None => {
                let nobody = User::number(NOBODY);
                docker.remove(&name).await;
                docker.create(&name, &asked(&nobody)).await?;
                nobody
            }
        };
        prepare(&record, &who, remapped).await?;
    }
    let first = docker.first_words(&name).await;
    let started_ms = now().0;
    if let Err(error) = docker.api.start_container(&name, None).await {
        docker.discard(node, launch).await;
        return Err(unable(launch, error));
    }
    let (container, orders) = container(docker, record, name);
    let ended = look_after(&container, Some(started_ms), first, node.to_owned(), orders);
    Ok((container, started_ms, ended))
}

/// Finds a container again.
pub(super) fn attach(
    docker: Docker,
    record: Record,
    node: &str,
) -> (Container, u64, impl Future<Output = Ended> + use<>) {
    let name = container_name(node, &record.launch.name);
    let (container, orders) = container(docker, record, name);
    let ended = look_after(&container, None, None, node.to_owned(), orders);
    (container, 0, ended)
}

fn container(docker: Docker, record: Record, name: String) -> (Container, mpsc::Receiver<Order>) {
    let (orders, receive) = mpsc::channel(QUEUE_ORDERS);
    (Container { record, docker, name, orders }, receive)
}

/// Looks after a container to its end, and writes that down. `started_ms` is `None` for one that was found again.
fn look_after(
    container: &Container,
    started_ms: Option<u64>,
    first: Option<FirstWords>,
    node: String,
    orders: mpsc::Receiver<Order>,
) -> impl Future<Output = Ended> + use<> {
    let Container { docker, record, name, .. } = container;
    let (docker, record, name) = (docker.clone(), record.clone(), name.clone());
    async move {
        let ended = match watch(&docker, &name, &record.launch, started_ms, first, orders).await {
            Ok(ended) => ended,
            Err(why) => lost(&why),
        };
        let dir = record.launch.dir.clone();
        let told = ended.clone();
        let written = tokio::task::spawn_blocking(move || {
            told.write(&dir)?;
            record.forget_environment(&dir);
            Ok::<_, crate::dir::DirError>(record)
        });
        // Only what is written down may be forgotten by the daemon.
        match written.await {
            Ok(Ok(record)) => docker.discard(&node, &record.launch).await,
            Ok(Err(error)) => {
                warn!(%error, name, "how a container ended could not be written down")
            }
            Err(error) => warn!(%error, name, "how a container ended could not be written down"),
        }
        ended
    }
}

/// Watches a container to its end.
async fn watch(
    docker: &Docker,
    name: &str,
    launch: &Launch,
    started_ms: Option<u64>,
    first: Option<FirstWords>,
    mut orders: mpsc::Receiver<Order>,
) -> Result<Ended, String> {
    let mut ran_for = 0;
    if started_ms.is_none() {
        match docker.state(name).await {
            Ok(state) if state.status == Some(ContainerStateStatusEnum::CREATED) => {
                return Err("the node stopped before it was started".into());
            }
            Ok(state) => ran_for = now().0.saturating_sub(millis(state.started_at.as_deref())),
            Err(DockerError::NoSuchContainer) => return Err("its container was removed".into()),
            // Whether the daemon comes back is for `gone` to find out.
            Err(_) => {}
        }
    }
    let limit =
        launch.time_limit_ms.map(|limit| Duration::from_millis(limit.saturating_sub(ran_for)));
    let mut ending = Ending::new(steady(), Duration::from_millis(launch.grace_ms), limit);
    let (logs, dir, rotation) = (docker.clone(), launch.dir.join(LOG), launch.log);
    let named = name.to_owned();
    let mut logs = tokio::spawn(async move { logs.follow(&named, &dir, rotation, first).await });
    let mut gone = pin!(docker.gone(name));
    let (mut peak, mut used) = (0, Usage::default());
    // Asked soon, for those that do not live long, and then now and then.
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut undone: Option<(Deed, Instant)> = None;
    let mut is_heard = true;
    let state = loop {
        let wake = [ending.wake_at(), undone.map(|(_, at)| at)].into_iter().flatten().min();
        let time = async {
            match wake {
                Some(at) => sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        let deed = tokio::select! {
            state = &mut gone => break state?,
            order = orders.recv(), if is_heard => match order {
                Some(Order::Stop(grace)) => ending.stop(steady(), grace),
                Some(Order::Kill) => Some(ending.kill()),
                // Nobody holds it any more; it is looked after all the same.
                None => {
                    is_heard = false;
                    None
                }
            },
            () = time => {
                let again = undone.take_if(|(_, at)| *at <= steady()).map(|(deed, _)| deed);
                ending.due(steady()).or(again)
            }
            _ = look.tick() => {
                if let Some((now, most)) = docker.used(name).await {
                    (peak, used) = (peak.max(most), now);
                }
                None
            }
        };
        let Some(deed) = deed else { continue };
        undone = match docker.signal(name, deed).await {
            // Refused because it does not run: that is what was wanted.
            Ok(()) | Err(DockerError::Refused(_) | DockerError::NoSuchContainer) => None,
            Err(_) => Some((deed, steady() + AGAIN)),
        };
    };
    if timeout(DRAINING, &mut logs).await.is_err() {
        logs.abort();
    }
    let code = u8::try_from(state.exit_code.unwrap_or(0)).unwrap_or(u8::MAX);
    let natural = match code {
        // As the daemon and shells write it. A program that ends with such a code means the same.
        129..=159 => Natural::Signal(code - 128),
        code => Natural::Code(code),
    };
    let exit = ending.verdict(natural, state.oom_killed.unwrap_or(false));
    Ok(Ended {
        exit,
        started_ms: started_ms.unwrap_or_else(|| millis(state.started_at.as_deref())),
        ended_ms: millis(state.finished_at.as_deref()),
        peak_memory_bytes: peak,
        cpu_ms: used.cpu_ms,
    })
}

/// Makes what a container works in, and gives it to the user that it has there.
async fn prepare(record: &Record, who: &User, remapped: bool) -> Result<(), StartError> {
    let (record, who) = (record.clone(), who.clone());
    let dir = record.launch.dir.clone();
    let prepared = tokio::task::spawn_blocking(move || {
        super::process::prepare(&record)?;
        let launch = &record.launch;
        let mounts = launch.mounts.iter().filter(|bind| !bind.read_only).map(|bind| &bind.from);
        for own in std::iter::once(&launch.work).chain(mounts) {
            match &who {
                // Which user of the host that is cannot be told; only the container sees the directory.
                _ if remapped => open(own)?,
                User::Number(ids, _) if nix::unistd::geteuid().is_root() => give(own, *ids)?,
                User::Number(..) | User::Named(_) => {}
            }
        }
        record.write(&record.launch.dir).map_err(io::Error::other)
    });
    let prepared = prepared.await.map_err(|error| StartError::Refused(error.to_string()))?;
    prepared.map_err(StartError::io("prepare", &dir))
}

/// Lets anybody write in a tree. It lies in a directory that nobody else can enter.
fn open(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let about = std::fs::symlink_metadata(path)?;
    if about.is_dir() {
        for entry in std::fs::read_dir(path)? {
            open(&entry?.path())?;
        }
    }
    if about.is_symlink() || (about.is_file() && about.nlink() > 1) {
        return Ok(());
    }
    let run = if about.is_dir() || about.mode() & 0o100 != 0 { 0o111 } else { 0 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666 | run))
}

/// Whom a container runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
enum User {
    /// By number, and as the daemon is told.
    Number(Ids, String),
    /// By a name that only the image knows.
    Named(String),
}

impl User {
    /// As the image says, unless that is root.
    fn of(image: &str) -> Self {
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        Self::chosen(image, Ids { uid: uid.as_raw(), gid: gid.as_raw() })
    }

    fn number(ids: Ids) -> Self {
        User::Number(ids, format!("{}:{}", ids.uid, ids.gid))
    }

    fn chosen(image: &str, node: Ids) -> Self {
        if node.uid != 0 {
            // Whoever is not root can give nothing away: then the container is the node's own user.
            return Self::number(node);
        }
        let (user, group) = image.split_once(':').unwrap_or((image, ""));
        match user.parse::<u32>() {
            Ok(0) => Self::number(NOBODY),
            Ok(uid) => {
                let gid = group.parse().unwrap_or(uid);
                User::Number(Ids { uid, gid }, image.to_owned())
            }
            Err(_) if user.is_empty() || user == "root" => Self::number(NOBODY),
            Err(_) => User::Named(user.to_owned()),
        }
    }
}

/// What the daemon is asked for.
fn request(
    launch: &Launch,
    node: &str,
    image: &str,
    network: &str,
    who: &User,
) -> ContainerCreateBody {
    let limits = &launch.limits;
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mount = |from: &Path, to: &Path, read_only: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(from.to_string_lossy().into_owned()),
        target: Some(to.to_string_lossy().into_owned()),
        read_only: Some(read_only),
        ..Default::default()
    };
    let work = mount(&launch.work, Path::new(WORK), false);
    let given = launch.mounts.iter().map(|bind| mount(&bind.from, &bind.to, bind.read_only));
    let gpus = DeviceRequest {
        driver: Some("nvidia".into()),
        device_ids: Some(launch.gpus.clone()),
        capabilities: Some(vec![vec!["gpu".into()]]),
        ..Default::default()
    };
    let ports = launch.ports.iter().filter(|_| launch.network != Network::None);
    let inside = |port: u16| format!("{port}/tcp");
    let bindings = ports.clone().map(|port| {
        let outside = PortBinding { host_ip: None, host_port: Some(port.outside.to_string()) };
        (inside(port.inside), Some(vec![outside]))
    });
    let log = [("max-size", "16m"), ("max-file", "2")];
    let log = log.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let host = HostConfig {
        cpu_shares: Some(
            signed(limits.cpu_weight_milli.saturating_mul(1024) / 1000).clamp(2, 262_144),
        ),
        cpu_period: limits.cpu_milli.map(|_| 100_000),
        cpu_quota: limits.cpu_milli.map(|milli| signed(milli.saturating_mul(100)).max(1000)),
        memory: limits.memory_bytes.map(signed),
        // The same: so swap is no way around it.
        memory_swap: limits.memory_bytes.map(signed),
        pids_limit: Some(i64::from(limits.pids)),
        shm_size: (limits.shm_bytes > 0).then(|| signed(limits.shm_bytes)),
        // Passes TERM on to a program that would not hear it as the first process, and buries the dead.
        init: Some(true),
        mounts: Some(std::iter::once(work).chain(given).collect()),
        network_mode: Some(network.to_owned()),
        port_bindings: Some(bindings.collect()),
        device_requests: (!launch.gpus.is_empty()).then(|| vec![gpus]),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(vec!["no-new-privileges".into()]),
        privileged: Some(false),
        ipc_mode: Some("private".into()),
        oom_score_adj: Some(500),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".into()),
            config: Some(log.into_iter().collect()),
        }),
        ..Default::default()
    };
    let mut env = launch.env.clone();
    env.insert(MARK.into(), launch.name.clone());
    if matches!(who, User::Number(..)) {
        // A user without a home of its own has one where it works.
        env.entry("HOME".into()).or_insert_with(|| WORK.into());
    }
    let labels = [(LABEL_NODE, node), (LABEL_ATTEMPT, &launch.name)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    ContainerCreateBody {
        image: Some(image.to_owned()),
        user: match who {
            User::Number(_, told) => Some(told.clone()),
            User::Named(_) => None,
        },
        entrypoint: Some(launch.argv.clone()),
        env: Some(env.iter().map(|(key, value)| format!("{key}={value}")).collect()),
        working_dir: Some(WORK.into()),
        labels: Some(labels.into_iter().collect()),
        exposed_ports: Some(ports.map(|port| inside(port.inside)).collect()),
        // What the image would have looked at does not concern us: the program's own end does.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..Default::default() }),
        host_config: Some(host),
        ..Default::default()
    }
}

/// Why a container did not start, for whoever wrote its command.
fn unable(launch: &Launch, error: Error) -> StartError {
    let program = launch.argv.first().map(String::as_str).unwrap_or_default();
    match DockerError::from(error) {
        DockerError::Refused(message) if message.contains("executable file not found") => {
            StartError::Refused(format!("there is no program {program:?} in the image"))
        }
        DockerError::Refused(message) if message.contains("no such file or directory") => {
            StartError::Refused(format!("{program:?} is not there in the image: {message}"))
        }
        DockerError::Refused(message) if message.contains("permission denied") => {
            StartError::Refused(format!("{program:?} may not be run in the image"))
        }
        other => other.into(),
    }
}

fn container_name(node: &str, attempt: &str) -> String {
    format!("mesh-{node}-{attempt}")
}

/// Held by one process of this user on this machine at a time. `None` where there can be none: then nobody waits.
fn machine_lock() -> Option<File> {
    let path = std::env::temp_dir().join("mesh-docker.lock");
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits()).open(path).ok()?;
    file.lock().ok()?;
    Some(file)
}

fn shared_network(name: &str) -> String {
    format!("{NETWORK}-{name}")
}

/// A line of a container's log: where and when it was written, and whether it is whole.
fn dated(line: &LogOutput) -> Option<(Stream, u64, &[u8], bool)> {
    let (stream, message) = match line {
        LogOutput::StdOut { message } | LogOutput::Console { message } => (Stream::Out, message),
        LogOutput::StdErr { message } => (Stream::Err, message),
        LogOutput::StdIn { .. } => return None,
    };
    let space = message.iter().position(|byte| *byte == b' ')?;
    let date = std::str::from_utf8(&message[..space]).ok()?;
    let at = OffsetDateTime::parse(date, &Rfc3339).ok()?.unix_timestamp_nanos();
    let at = u64::try_from(at).ok()?;
    let text = &message[space + 1..];
    match text.strip_suffix(b"\n") {
        Some(text) => Some((stream, at, text, true)),
        None => Some((stream, at, text, false)),
    }
}

/// A date of the daemon in milliseconds since 1970; 0 for none.
fn millis(date: Option<&str>) -> u64 {
    nanos(date) / 1_000_000
}

fn nanos(date: Option<&str>) -> u64 {
    let date = date.and_then(|date| OffsetDateTime::parse(date, &Rfc3339).ok());
    u64::try_from(date.map_or(0, OffsetDateTime::unix_timestamp_nanos)).unwrap_or(0)
}

/// The number of a user in a tar file that holds `/etc/passwd`.
fn number_in(tar: &[u8], user: &str) -> Option<u32> {
    let (head, rest) = tar.split_at_checked(512)?;
    // A plain file, its size in octal digits.
    if !matches!(head[156], b'0' | 0) {
        return None;
    }
    let size = std::str::from_utf8(&head[124..135]).ok()?;
    let size = usize::from_str_radix(size.trim_matches(['\0', ' ']), 8).ok()?;
    let text = String::from_utf8_lossy(rest.get(..size)?);
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != user {
            return None;
        }
        fields.nth(1)?.parse().ok()
    })
}

#[cfg(test)]
mod tests;
