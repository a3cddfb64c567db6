//! Jobs on real nodes: submitted on one, run on another, kept when nodes are killed, and held to what they may do.
//!
//! What counts is what a person sees: what the commands print, their `--json`, their exit codes, and the bytes in
//! the directories. Nothing is measured here. `MESH_LONG=1` makes the trials more, and adds a story for which torch
//! has to be there.
//!
//! - `simple.rs`: small jobs, and what is said of those that cannot be. `data.rs`: data, code, outputs and secrets.
//! - `loss.rs`: nodes that die, sleep and come back. `leader.rs`: leaders that die while jobs are submitted.
//! - `limits.rs`: memory, and what one job can see of another. `containers.rs`: the same in Docker.
//! - `gang.rs`: tasks that find one another.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

mod containers;
mod data;
mod gang;
mod leader;
mod limits;
mod loss;
mod simple;

use mesh_chaos_tests::hosts::ground::{
    Ground, PATIENCE, WAIT, aside, code, long, running, submitted, text, until_gone, up,
};
