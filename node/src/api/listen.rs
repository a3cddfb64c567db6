//! The sockets of the HTTP API, and the bounds on who hangs on them.
//!
//! The Unix socket and TCP have bounds of their own, so that whoever fills TCP does not lock out the owner. A
//! connection that sends no whole header in time is closed, which also ends idle ones, and so is one that does
//! not take its answer. When every place is taken, the first of those who have not shown that they may ask makes
//! room (`guest.rs`): half headers keep nobody out.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::{Listener, ListenerExt as _};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::guard::{Door, check};
use super::guest::{Guest, Strangers};
use super::patient::{Leisure, Patient};
use super::token::{OWNER, Tokens};
use super::{Api, router};
use crate::handle::Handle;
use crate::run::RunError;

/// Connections over the Unix socket at a time; for more, strangers make room, or they wait.
const MAX_LOCAL: usize = 1024;
/// Connections over TCP at a time; for more, strangers make room, or they wait.
const MAX_TCP: usize = 128;
/// A header must be here within this time, and an idle connection may wait as long for the next.
const HEADER_PATIENCE: Duration = Duration::from_secs(10);
/// Whoever takes nothing of an answer for this long gets no more of it.
const WRITE_PATIENCE: Duration = Duration::from_secs(20);
/// The most that is kept of a header, and of what is read ahead.
const MAX_HEADER: usize = 32 << 10;
/// Headers of a request.
const MAX_HEADERS: usize = 64;
/// What is under way when the node stops may take this long.
const GRACE: Duration = Duration::from_secs(3);
/// The longest path that fits the address of a Unix socket.
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// The running API.
pub struct Server {
    tasks: TaskTracker,
    stop: CancellationToken,
    socket: PathBuf,
}

impl Server {
    /// Takes no more connections, lets what is under way come to its end, and removes the socket.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        // Each connection ends by itself within the grace.
        let _ = tokio::time::timeout(GRACE + Duration::from_secs(1), self.tasks.wait()).await;
        let _ = fs::remove_file(&self.socket);
    }
}

/// Opens the API of a node: the Unix socket of its directory, and TCP if its settings say so.
pub async fn serve(handle: Handle) -> Result<Server, RunError> {
    let socket = handle.dir.socket();
    let failed = |address: String| move |source| RunError::Api { address, source };
    let local = bind_socket(&socket).map_err(failed(socket.display().to_string()))?;
    let tcp = match handle.config.api_listen {
        None => None,
        Some(address) => {
            let bound = bind_tcp(&handle, address).await.map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => RunError::ApiInUse(address),
                _ => RunError::Api { address: address.to_string(), source },
            });
            Some(bound?)
        }
    };
    let server = Server { tasks: TaskTracker::new(), stop: handle.stop.child_token(), socket };
    let routes = router(Api::new(handle.clone()));
    let open = |door: Door| {
        let check = axum::middleware::from_fn_with_state(Arc::new(door), check);
        routes.clone().layer(check)
    };
    let Server { tasks, stop, .. } = &server;
    let run = accept(local, open(Door::Socket), MAX_LOCAL, tasks.clone(), stop.clone());
    tasks.spawn(run.instrument(tracing::info_span!("api", door = "socket")));
    if let Some((listener, at, tokens)) = tcp {
        // Nobody else sets it.
        let _ = handle.api.set(at);
        let hosts = handle.config.api_hosts.clone();
        let door = open(Door::Tcp { at, hosts, tokens });
        // A key that somebody types does not wait for the next.
        let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
        let run = accept(listener, door, MAX_TCP, tasks.clone(), stop.clone());
        tasks.spawn(run.instrument(tracing::info_span!("api", door = %at)));
        let token = handle.dir.file(OWNER);
        tracing::info!(%at, token = %token.display(), "the HTTP API listens on TCP");
        if !at.ip().is_loopback() {
            tracing::warn!(%at, "tokens and answers cross the network unsealed: use a network that you trust");
        }
    }
    Ok(server)
}

async fn bind_tcp(
    handle: &Handle,
    address: SocketAddr,
) -> io::Result<(TcpListener, SocketAddr, Tokens)> {
    let tokens = Tokens::open(&handle.dir)?;
    let listener = TcpListener::bind(address).await?;
    let at = listener.local_addr()?;
    Ok((listener, at, tokens))
}

/// Binds the socket beside its name, protects it, and gives it its name: nobody ever finds it open. A stale one
/// is replaced; the directory's lock says that nobody uses it.
fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    fs::set_permissions(parent, fs::Permissions::from_mode(0o700))?;
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = bind_at(&beside)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
    fs::rename(&beside, path)?;
    Ok(listener)
}

/// Binds a socket where there is none, however long its path is.
pub(crate) fn bind_at(path: &Path) -> io::Result<UnixListener> {
    if path.as_os_str().as_bytes().len() <= MAX_SOCKET_PATH {
        return UnixListener::bind(path);
    }
    // Too long for a socket's address: go through the open directory, whose name is short.
    let open = fs::File::open(path.parent().unwrap_or(Path::new(".")))?;
    let name = path.file_name().unwrap_or_default();
    UnixListener::bind(Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd())).join(name))
}

/// Takes connections until it is stopped.
async fn accept<L: Listener>(
    mut listener: L,
    router: Router,
    most: usize,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(most));
    let strangers = Strangers::default();
    loop {
        let io = tokio::select! {
            () = stop.cancelled() => return,
            (io, _) = listener.accept() => io,
        };
        if room.available_permits() == 0 {
            strangers.dismiss_first();
        }
        // If nobody can go it waits, and those after it in the kernel's queue, which has a bound, too.
        let permit = tokio::select! {
            () = stop.cancelled() => return,
            permit = room.clone().acquire_owned() => permit,
        };
        let Ok(permit) = permit else { return };
        let (router, guest, stop) = (router.clone(), strangers.enter(), stop.clone());
        tasks.spawn(async move {
            converse(io, router, guest, stop).await;
            drop(permit);
        });
    }
}

/// One connection, to its end.
async fn converse<I>(io: I, router: Router, guest: Guest, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut settings = http1::Builder::new();
    settings.timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE);
    settings.max_buf_size(MAX_HEADER).max_headers(MAX_HEADERS);
    let (routes, asks) = (TowerToHyperService::new(router), guest.clone());
    let leisure = Leisure::default();
    let io = Patient::new(io, WRITE_PATIENCE, leisure.clone());
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(asks.clone());
        request.extensions_mut().insert(leisure.clone());
        routes.call(request)
    });
    // One that becomes a stream ends here, and goes on where its route has it.
    let connection = settings.serve_connection(TokioIo::new(io), service).with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = guest.dismissed() => {
            tracing::debug!("a connection that asked nothing made room for another");
            return;
        }
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_the_owners_alone_and_replaces_a_stale_one() {
        let temp = tempfile::tempdir().unwrap();
        // Longer than a socket's address can be.
        let path = temp.path().join("d".repeat(120)).join("run/mesh.sock");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for _ in 0..2 {
            let listener = bind_socket(&path).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
            // Its file stays, as after a crash.
            drop(listener);
        }
    }
}
