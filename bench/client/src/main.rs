//! The load that `bench/` puts on mesh and on etcd: the same loop for both, each through its own API.
//!
//! Starts no servers and knows no goals: the scripts beside it do. Prints one JSON object.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod disk;
mod failover;
mod mesh;
mod put;
mod store;
mod verify;

use store::Target;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes as fast as answers come, each client one write after the other
    Put {
        /// `unix:SOCKET#PARTY` is mesh, `http://…` is etcd
        target: Target,
        #[arg(long)]
        clients: usize,
        #[arg(long)]
        seconds: f64,
        /// Bytes of an etcd value; a name of mesh always stands for 32
        #[arg(long, default_value_t = 256)]
        bytes: usize,
        /// Keys start with it: a new one for each call
        #[arg(long)]
        prefix: String,
    },
    /// Writes to all targets every 5 ms, takes the leader away, and waits for an answer to a later write
    Failover {
        #[arg(required = true)]
        targets: Vec<Target>,
        /// The leader's process, to be killed
        #[arg(long, required_unless_present = "cut")]
        kill: Option<i32>,
        /// Or a command that takes the leader away, in words
        #[arg(long, conflicts_with = "kill")]
        cut: Option<String>,
        /// How long to write before that
        #[arg(long)]
        lead_in_ms: u64,
        #[arg(long)]
        prefix: String,
        /// Every acknowledged write is added to this file
        #[arg(long)]
        acks: PathBuf,
    },
    /// Reads every acknowledged write back
    Verify {
        #[arg(required = true)]
        targets: Vec<Target>,
        #[arg(long)]
        acks: PathBuf,
    },
    /// Writes 256 bytes and syncs, over and over: the least a durable write costs
    Sync { dir: PathBuf, count: usize },
}

#[tokio::main]
async fn main() -> Result<()> {
    let answer = match Args::parse().command {
        Command::Put { target, clients, seconds, bytes, prefix } => {
            put::run(&target, clients, Duration::from_secs_f64(seconds), bytes, &prefix).await?
        }
        Command::Failover { targets, kill, cut, lead_in_ms, prefix, acks } => {
            let cut = failover::Cut::new(kill, cut);
            let lead_in = Duration::from_millis(lead_in_ms);
            failover::run(&targets, cut, lead_in, &prefix, &acks).await?
        }
        Command::Verify { targets, acks } => verify::run(&targets, &acks).await?,
        Command::Sync { dir, count } => disk::run(&dir, count)?,
    };
    println!("{answer}");
    Ok(())
}

/// The value at quantile `q` of sorted times, in milliseconds.
fn quantile_ms(sorted: &[Duration], q: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1)) as f64 * q;
    sorted.get(at.round() as usize).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}
