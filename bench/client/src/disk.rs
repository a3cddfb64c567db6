//! The physical limit: one small write and one sync, to a file that grows and to one that has its blocks already.
//! A growing file also costs the file system's journal, which is slow while others write.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::quantile_ms;

const BYTES: usize = 256;

pub fn run(dir: &Path, count: usize) -> Result<Value> {
    let paths = [dir.join("growing"), dir.join("preallocated")];
    let open = |path| OpenOptions::new().create_new(true).write(true).open(path);
    let (growing, preallocated) = (open(&paths[0])?, open(&paths[1])?);
    preallocated.write_all_at(&vec![0; count * BYTES], 0)?;
    preallocated.sync_all()?;
    let (mut slow, mut fast) = (Vec::new(), Vec::new());
    for at in 0..count {
        slow.push(write(&growing, at)?);
        fast.push(write(&preallocated, at)?);
    }
    for path in paths {
        std::fs::remove_file(path)?;
    }
    slow.sort();
    fast.sort();
    Ok(json!({
        "growing_p50_ms": quantile_ms(&slow, 0.5),
        "preallocated_p50_ms": quantile_ms(&fast, 0.5),
        "n": count,
    }))
}

fn write(file: &File, at: usize) -> Result<Duration> {
    let begun = Instant::now();
    file.write_all_at(&[7; BYTES], (at * BYTES) as u64)?;
    file.sync_data()?;
    Ok(begun.elapsed())
}
