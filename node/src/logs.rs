//! The node's own log file, for people.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

/// The most that is read from the end of a log.
const MAX_BYTES: u64 = 1 << 20;

/// The last lines of a log; empty if there is none.
pub async fn tail(path: &Path, lines: u32) -> String {
    let text = read_end(path).await.unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines as usize);
    all[from..].iter().map(|line| format!("{line}\n")).collect()
}

async fn read_end(path: &Path) -> std::io::Result<String> {
    let mut file = tokio::fs::File::open(path).await?;
    let length = file.metadata().await?.len();
    file.seek(std::io::SeekFrom::Start(length.saturating_sub(MAX_BYTES))).await?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
