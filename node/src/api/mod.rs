//! What the CLI, programs and browsers ask of this node over HTTP.
//!
//! ```text
//!  DIR/run/mesh.sock (0600) ─┐
//!                            ├─► bounded connections ─► guard.rs ─► a route ─► Handle
//!  TCP with a token, if asked┘                                         │
//!                                              answer.rs: envelope or error ◄┘
//! ```
//!
//! | read | for |
//! |---|---|
//! | `listen`, `guest`, `patient`, `guard`, `token` | sockets and their bounds; who may ask |
//! | `route`, `openapi` | the table of routes, and its description |
//! | `answer`, `find` | what answers and errors look like; finding things by name or id |
//! | the other files | one group of routes each |
//!
//! The API decides nothing: rules are the state's, and a question about it is answered from this node's own
//! copy, also while there is no leader. It speaks HTTP/1.1 alone.

mod answer;
mod config;
mod data;
mod events;
mod find;
mod guard;
mod guest;
mod images;
mod jobs;
mod life;
mod links;
mod listen;
mod logs;
mod metrics;
mod models;
mod names;
mod nodes;
mod openapi;
mod parties;
mod patient;
mod requests;
mod route;
mod status;
mod tickets;
mod token;
mod upkeep;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use tokio::sync::{Mutex, Semaphore};

pub(crate) use listen::{MAX_SOCKET_PATH, bind_at};
pub use listen::{Server, serve};

use crate::handle::Handle;
use answer::{Problem, quoted};
use route::Route;

/// Streams (events, logs that are followed) at a time: they must not take every connection.
const MAX_STREAMS: usize = 64;

/// What every route is given. Cheap to clone.
#[derive(Clone)]
struct Api {
    handle: Handle,
    /// One permit for each stream.
    streams: Arc<Semaphore>,
    /// Held by whoever asks all members whether they are there.
    reaching: Arc<Mutex<()>>,
}

impl Api {
    fn new(handle: Handle) -> Self {
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        Self { handle, streams, reaching: Arc::default() }
    }
}

impl std::ops::Deref for Api {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

/// Every route there is.
fn routes() -> Vec<Route> {
    let groups = [
        status::routes(),
        nodes::routes(),
        upkeep::routes(),
        logs::routes(),
        tickets::routes(),
        parties::routes(),
        requests::routes(),
        names::routes(),
        data::routes(),
        jobs::routes(),
        models::routes(),
        images::routes(),
        life::routes(),
        links::routes(),
        events::routes(),
        config::routes(),
        metrics::routes(),
        openapi::routes(),
    ];
    groups.into_iter().flatten().collect()
}

fn router(api: Api) -> Router {
    let mut router = Router::new();
    for Route { path, run, .. } in routes() {
        router = router.route(path, run);
    }
    router.fallback(unknown).method_not_allowed_fallback(wrong_verb).with_state(api)
}

async fn unknown(uri: Uri) -> Problem {
    Problem::not_found(
        format!("there is nothing at {}", quoted(uri.path())),
        "no route of this version has this path",
        "GET /openapi.json lists them all",
    )
}

async fn wrong_verb(method: Method, uri: Uri) -> Problem {
    Problem::forbidden(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} cannot be asked with {method}", quoted(uri.path())),
        "the path is known, with other verbs",
        "GET /openapi.json lists them all",
    )
}
