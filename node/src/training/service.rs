//! [`Training`]: a node's part in trainings, as the rest of it sees that.
//!
//! It owns the pieces of models that are here, the shards that this node sums, and those of parameter servers that it has. Whoever is asked something looks at the state
//! first. The one who asks may have seen more of the log than this node has: then a moment is waited for the rest.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mesh_transport::net::Net;
use tokio::time::{Instant, timeout_at};

use super::aggregate::Shards;
use super::pieces::Pieces;
use super::server::Servers;
use crate::awareness::hub::Hub;
use crate::engine::{Orders, Shown};
use crate::handle::{Whoami, look_at};
use crate::state::State;

/// How long a node that is behind waits for what it has not heard yet.
const BEHIND: Duration = Duration::from_secs(1);

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Training(Arc<Inner>);

/// What a [`Training`] is made of.
pub struct Parts {
    /// Whose node it is.
    pub whoami: Whoami,
    /// What the engine shows.
    pub shown: Shown,
    /// Where orders go.
    pub orders: Orders,
    /// Who is alive.
    pub hub: Arc<Hub>,
    /// Where pieces are kept.
    pub root: PathBuf,
}

/// What a [`Training`] reaches.
pub struct Inner {
    /// Pieces of models that are here.
    pub pieces: Pieces,
    pub(super) whoami: Whoami,
    pub(super) shown: Shown,
    pub(super) orders: Orders,
    pub(super) hub: Arc<Hub>,
    pub(super) shards: Shards,
    pub(super) servers: Servers,
    /// Set as soon as it listens.
    net: OnceLock<Net>,
}

impl std::ops::Deref for Training {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Training {
    /// Nothing is read from the disk yet.
    pub fn new(parts: Parts) -> Self {
        let Parts { whoami, shown, orders, hub, root } = parts;
        Self(Arc::new(Inner {
            pieces: Pieces::new(root),
            whoami,
            shown,
            orders,
            hub,
            shards: Shards::default(),
            servers: Servers::default(),
            net: OnceLock::new(),
        }))
    }

    /// Tells it how to reach others.
    pub fn connect(&self, net: Net) {
        // A node has one.
        let _ = self.net.set(net);
    }

    pub(super) fn net(&self) -> Option<&Net> {
        self.net.get()
    }

    /// Looks at the state, on the engine's thread, until `decide` can tell: it says `None` while this node is behind. `None` if it
    /// still is after a moment, or the node stops.
    pub(super) async fn settle<T, F>(&self, decide: F) -> Option<T>
    where
        T: Send + 'static,
        F: Fn(&State) -> Option<T> + Clone + Send + 'static,
    {
        let deadline = Instant::now() + BEHIND;
        let mut pulse = self.shown.pulse.clone();
        loop {
            let once = decide.clone();
            let look = look_at(&self.orders, move |see| {
                (see.replica.index(), once(see.replica.machine()))
            });
            let (index, decided) = look.await.ok()?;
            if decided.is_some() {
                return decided;
            }
            let goes_on = async { pulse.wait_for(|pulse| pulse.index > index).await.is_ok() };
            if timeout_at(deadline, goes_on).await != Ok(true) {
                return None;
            }
        }
    }
}

/// A lock that another thread's panic does not spoil: what it guards is whole between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
