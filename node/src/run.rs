//! A node from its start to its end.
//!
//! ```text
//!  directory ─► keys, membership, settings ─► engine (log opened) ─► data plane ─► overlay
//!            ─► author, follower, keeper, API ─► … ─► stop: API, network, engine, in that order
//! ```

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use mesh_consensus::autopilot::Waits;
use mesh_storage::store::{Store, StoreError};
use mesh_transport::net::{BindError, Net, Tuning};
use mesh_transport::overlay::{Overlay, OverlayError};
use tokio::sync::{Notify, RwLock, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::author::numbers::Sequence;
use crate::author::{Author, MAX_WRITES};
use crate::awareness::hub::{Hub, Peer};
use crate::config::{Config, ConfigError};
use crate::data::{self, Data};
use crate::departure::{self, Departure};
use crate::dir::{Dir, DirError};
use crate::engine::{Engine, EngineError, Order, Parts, Told};
use crate::executor::{self, Executor};
use crate::favourite::Favourite;
use crate::follow::Follower;
use crate::handle::{Handle, Inner, Whoami, Writer};
use crate::join::Sponsor;
use crate::service::{Peers, mind_connections};
use crate::training::{self, Training};
use crate::work::{self, Work};
use crate::{api, clock, handover, join, keeper, planner, removal};

/// Why a node ended, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The directory.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It has left.
    #[error("this node has left its mesh")]
    Left,
    /// It was removed, and its own state says so.
    #[error("this node was removed from its mesh")]
    Removed,
    /// The agreement.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The data plane.
    #[error("the data plane cannot listen")]
    Bind(#[from] BindError),
    /// The overlay.
    #[error("the overlay cannot listen")]
    Overlay(#[from] OverlayError),
    /// The HTTP API.
    #[error("the HTTP API cannot listen on {address}")]
    Api {
        /// Where.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Another program has the HTTP API's port.
    #[error("the HTTP API cannot listen on {0}: it is in use")]
    ApiInUse(SocketAddr),
    /// The store of datasets.
    #[error("the store of datasets cannot be opened")]
    Store(#[from] StoreError),
    /// A thread could not be started.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
}

/// Runs the node in `dir` until `stop` is cancelled or it must end. `ready` hears when it answers.
pub async fn run(
    dir: Dir,
    flags: &toml::Table,
    stop: CancellationToken,
    ready: impl FnOnce(&Handle),
) -> Result<(), RunError> {
    dir.check()?;
    let _lock = dir.lock()?;
    let config = Config::load(&dir.file("config.toml"), flags, |key| std::env::var(key).ok())?;
    let key = dir.node_key()?;
    let membership = dir.membership()?.ok_or_else(|| DirError::Absent(dir.path().to_path_buf()))?;
    if membership.left {
        return Err(RunError::Left);
    }
    join::begin::finish(&dir, &membership)?;
    let numbers = Sequence::open(dir.clone())?;
    let secret = Arc::new(RwLock::new(dir.party_secret()?));
    let sealing = Arc::new(RwLock::new(dir.sealing_secret()?));
    let identity = membership.identity;
    let whoami = Whoami {
        mesh: identity.mesh,
        epoch: identity.epoch,
        node: identity.node,
        seat: identity.raft_id,
    };
    let hub_slot: Arc<std::sync::OnceLock<Arc<Hub>>> = Arc::default();
    let alive = hub_slot.clone();
    let parts = Parts {
        dir: dir.clone(),
        key: key.clone(),
        identity,
        told: Told {
            introduced: membership.introduced.clone(),
            voters: membership.voters.iter().copied().collect(),
        },
        waits: waits(),
        is_alive: Box::new(move |node| alive.get().is_none_or(|hub| hub.is_alive(node))),
    };
    let (engine, orders, shown) = Engine::open(parts)?;
    // One that goes of its own will goes on with that: it may have to see the others off. One that never saw its removal
    // cannot know of it here, and is told by those who turn it away.
    if shown.roster.borrow().removed.contains(&whoami.node) && !departure::is_wished(&dir) {
        // A hint, without which nothing is worse.
        let _ = dir.note_removed(true);
        return Err(RunError::Removed);
    }
    let hub = Arc::new(Hub::new(identity.mesh, identity.node, shown.clone()));
    let _ = hub_slot.set(hub.clone());
    for peer in dir.cached::<Vec<Peer>>("peers").unwrap_or_default() {
        hub.place(peer);
    }
    let (sender, writes) = mpsc::channel(MAX_WRITES);
    let removed = watch::Sender::new(false);
    let writer = Writer { sender, removed: removed.subscribe() };
    let root = dir.path().to_path_buf();
    let store = tokio::task::spawn_blocking(move || Store::open(root)).await;
    let store = store.map_err(|error| RunError::Thread(std::io::Error::other(error)))??;
    let _closing = Closing(store.clone());
    let data = Data::new(data::Parts {
        whoami,
        store,
        shown: shown.clone(),
        orders: orders.clone(),
        writer: writer.clone(),
        hub: hub.clone(),
        sealing: sealing.clone(),
    });
    let work = Work::new(dir.path());
    let training = Training::new(training::service::Parts {
        whoami,
        shown: shown.clone(),
        orders: orders.clone(),
        hub: hub.clone(),
        root: dir.file("training"),
    });
    let settings = executor::Settings::new(whoami.node.short());
    let executor = tokio::task::spawn_blocking(move || Executor::open(settings)).await;
    let executor = executor.map_err(|error| RunError::Thread(std::io::Error::other(error)))?;
    let sponsor = Arc::new(Sponsor {
        whoami,
        key: key.clone(),
        chain: membership.chain.clone(),
        writer: writer.clone(),
        orders: orders.clone(),
        hub: hub.clone(),
        secret: secret.clone(),
    });
    let peers = Arc::new(Peers {
        whoami,
        chain: membership.chain.clone(),
        shown: shown.clone(),
        orders: orders.clone(),
        hub: hub.clone(),
        secret: secret.clone(),
        sealing: sealing.clone(),
        sponsor,
        dir: dir.clone(),
        data: data.clone(),
        work: work.clone(),
        training: training.clone(),
    });
    let net = bind(&config, |listen| Net::bind(&key, listen, Tuning::default(), peers.clone()))?;
    let judge = hub.clone();
    let overlay_at: Vec<SocketAddr> =
        net.addresses().iter().map(|at| SocketAddr::new(at.ip(), config.overlay_port)).collect();
    let judge = Arc::new(move |bytes: &[u8]| judge.judge(bytes));
    let (overlay, heard) =
        Overlay::start(key.seed(), identity.mesh, &overlay_at, config.mdns, judge).await?;
    hub.connect(net.clone(), overlay.clone());
    data.connect(net.clone());
    training.connect(net.clone());
    hub.set_here(keeper::advertised(&config, &net.addresses()));

    let tasks = TaskTracker::new();
    let favourite = Arc::new(Favourite::default());
    let handle = Handle::new(Inner {
        whoami,
        dir: dir.clone(),
        config,
        shown: shown.clone(),
        orders: orders.clone(),
        writer,
        net: net.clone(),
        favourite: favourite.clone(),
        hub: hub.clone(),
        data: data.clone(),
        work,
        training,
        executor,
        secret: secret.clone(),
        sealing,
        removed,
        later_epoch: std::sync::atomic::AtomicU32::new(0),
        departure: Departure::default(),
        started: clock::steady(),
        stop: stop.clone(),
        api: std::sync::OnceLock::new(),
    });
    let author = Author {
        whoami,
        key: key.clone(),
        secret,
        orders: orders.clone(),
        shown: shown.clone(),
        net: net.clone(),
        favourite,
    };
    let engine_net = net.clone();
    let (ended, mut end) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
        // The receiver waits for as long as this process runs.
        let _ = ended.send(engine.run(engine_net));
    });
    let thread = thread.map_err(RunError::Thread)?;
    // Ends the tasks, after the last answers have been given.
    let over = CancellationToken::new();
    spawn(&tasks, &over, "author", author.run(numbers, writes));
    let turned_away = Arc::new(Notify::new());
    let follower = Follower {
        whoami,
        shown: shown.clone(),
        orders: orders.clone(),
        net: net.clone(),
        turned_away: turned_away.clone(),
    };
    spawn(&tasks, &over, "follower", follower.run());
    spawn(&tasks, &over, "removal", removal::run(handle.clone(), turned_away));
    spawn(&tasks, &over, "connections", mind_connections(whoami, shown.clone(), net.clone()));
    let measured = keeper::measure_sync(&dir, keeper::FIRST).await;
    spawn(&tasks, &over, "keeper", keeper::run(handle.clone(), measured));
    spawn(&tasks, &over, "handover", handover::run(handle.clone(), key.clone()));
    spawn(&tasks, &over, "gossip", keeper::gossip(handle.clone(), key, heard, measured));
    spawn(&tasks, &over, "departure", departure::run(handle.clone()));
    spawn(&tasks, &over, "data", data::keep::run(data));
    spawn(&tasks, &over, "store", data::tidy::run(handle.clone()));
    spawn(&tasks, &over, "planner", planner::run(handle.clone()));
    spawn(&tasks, &over, "work", work::agent::run(handle.clone()));
    spawn(&tasks, &over, "training", crate::training::federated::run(handle.clone()));
    spawn(&tasks, &over, "shards", crate::training::server::follow::run(handle.clone()));
    spawn(&tasks, &over, "servers", crate::training::server::coordinate::run(handle.clone()));
    let server = api::serve(handle.clone()).await?;
    ready(&handle);

    let result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = &mut end => match ended {
            Ok(result) => result.map_err(RunError::Engine),
            // The engine's thread is gone without a word: it panicked, and going on would be a guess.
            Err(_) => std::process::abort(),
        },
    };
    stop.cancel();
    server.shutdown().await;
    over.cancel();
    let _ = dir.keep_cached("peers", &hub.peers());
    overlay.stop();
    net.shutdown().await;
    // A full queue empties within a turn.
    for _ in 0..50 {
        match orders.give(Order::Stop) {
            Err(crate::engine::Refused::Busy) => {
                tokio::time::sleep(Duration::from_millis(20)).await
            }
            _ => break,
        }
    }
    let joined = tokio::task::spawn_blocking(move || thread.join());
    let _ = tokio::time::timeout(Duration::from_secs(10), joined).await;
    tasks.close();
    let _ = tokio::time::timeout(Duration::from_secs(2), tasks.wait()).await;
    result
}

/// Closes the store however the node ends: whoever has a handle still may keep it, and the directory is free.
struct Closing(Store);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Runs `work` beside the others until it is done or `over`.
fn spawn(
    tasks: &TaskTracker,
    over: &CancellationToken,
    name: &'static str,
    work: impl Future + Send + 'static,
) {
    let over = over.clone();
    tasks.spawn(vital(name, async move {
        over.run_until_cancelled_owned(work).await;
    }));
}

/// Does `work`, without which a node is half dead: if it panics, so does the whole process end, and whoever watches
/// over it starts it anew.
pub(crate) async fn vital<T>(name: &'static str, work: impl Future<Output = T>) -> T {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done,
        Err(_) => {
            tracing::error!(name, "a part of the node has panicked: the process ends");
            std::process::abort()
        }
    }
}

/// Listens on every address; where the machine has no IPv6, on the others.
fn bind(
    config: &Config,
    bind: impl Fn(&[SocketAddr]) -> Result<Net, BindError>,
) -> Result<Net, BindError> {
    let all: Vec<SocketAddr> =
        config.listen.iter().map(|ip| SocketAddr::new(*ip, config.data_port)).collect();
    match bind(&all) {
        Err(error) => {
            let four: Vec<SocketAddr> = all.iter().copied().filter(SocketAddr::is_ipv4).collect();
            if four.is_empty()
                || four.len() == all.len()
                || matches!(error, BindError::InUse { .. })
            {
                return Err(error);
            }
            bind(&four)
        }
        net => net,
    }
}

/// How patient the autopilot is. Tests of real processes cannot wait for minutes.
fn waits() -> Waits {
    if std::env::var("MESH_TEST_WAITS").as_deref() == Ok("short") {
        return Waits {
            lost: Duration::from_secs(3),
            stable: Duration::from_secs(2),
            apart: Duration::from_secs(1),
            quorum: Duration::from_secs(1),
            patience: Duration::from_secs(5),
            ..Waits::default()
        };
    }
    Waits::default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    /// Set in the child of the test below, which is to panic.
    const CHILD: &str = "MESH_TEST_PANICS";

    #[tokio::test]
    async fn a_part_that_panics_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let (tasks, over) = (TaskTracker::new(), CancellationToken::new());
            spawn(&tasks, &over, "test", async { panic!("as planned") });
            tasks.close();
            return tasks.wait().await;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "run::tests::a_part_that_panics_ends_the_process"]).env(CHILD, "1");
        let output = child.output().unwrap();
        assert_eq!(output.status.signal(), Some(6), "{output:?}");
    }
}
