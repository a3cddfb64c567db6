//! The contenders of bench/transfer and bench/import.
//!
//! ```text
//!  mesh-bench-peers iroh-serve FILE DIR             {"address": …} ─ serves until its input ends
//!  mesh-bench-peers iroh-get ADDRESS DIR            "ready" ─ a line comes ─ {"seconds": …, "bytes": …}
//!  mesh-bench-peers quinn-serve FILE                as iroh-serve
//!  mesh-bench-peers quinn-get ADDRESS DIR [sync]    as iroh-get
//!  mesh-bench-peers b3sum FILE                      {"seconds": …, "bytes": …}
//! ```
//!
//! A getter stays until its input ends, so that whoever measures can read what the kernel counted for it.

mod copy;
mod iroh_blobs_peer;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match words[..] {
            ["iroh-serve", file, dir] => iroh_blobs_peer::serve(file.into(), dir.into()).await,
            ["iroh-get", address, dir] => iroh_blobs_peer::get(address, dir.into()).await,
            ["quinn-serve", file] => copy::serve(file.into()).await,
            ["quinn-get", address, dir] => copy::get(address, dir.into(), false).await,
            ["quinn-get", address, dir, "sync"] => copy::get(address, dir.into(), true).await,
            ["b3sum", file] => b3sum(file.into()),
            _ => bail!("see the head of bench/peers/src/main.rs"),
        }
    })
}

/// As b3sum does it: a mapped file, all cores.
fn b3sum(file: PathBuf) -> Result<()> {
    let begun = Instant::now();
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(&file)?;
    let hash = hasher.finalize();
    let seconds = begun.elapsed().as_secs_f64();
    say(&json!({ "seconds": seconds, "bytes": hasher.count(), "hash": hash.to_hex().as_str() }))
}

/// One line to whoever started us.
fn say(line: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Returns when a line comes.
async fn signal() -> Result<()> {
    let mut line = String::new();
    tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut line)).await??;
    Ok(())
}

/// Returns when our input ends.
async fn released() -> Result<()> {
    let mut rest = Vec::new();
    tokio::task::spawn_blocking(move || std::io::stdin().read_to_end(&mut rest)).await??;
    Ok(())
}
