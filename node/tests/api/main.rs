//! The HTTP API of a real node: its routes, who may ask, and what it endures.
#![expect(clippy::unwrap_used, reason = "a test that cannot begin has failed")]

mod abuse;
mod data;
mod doors;
mod host;
mod members;
mod routes;
