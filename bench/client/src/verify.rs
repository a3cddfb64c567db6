//! Whether what was acknowledged is still there.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::store::{Store, Target};

const READERS: usize = 8;
const SHOWN: usize = 5;

pub async fn run(targets: &[Target], acks: &Path) -> Result<Value> {
    let text: Arc<str> = std::fs::read_to_string(acks)?.into();
    let mut readers = JoinSet::new();
    for reader in 0..READERS {
        let mut store = Store::connect(&targets[reader % targets.len()]).await?;
        let text = text.clone();
        readers.spawn(async move {
            let mut lost = Vec::new();
            let mut read = 0_u64;
            for line in text.lines().skip(reader).step_by(READERS) {
                let Some((key, value)) = line.split_once(' ') else { continue };
                read += 1;
                if !store.holds(key, value).await? {
                    lost.push(key.to_owned());
                }
            }
            anyhow::Ok((read, lost))
        });
    }
    let (mut read, mut lost) = (0, Vec::new());
    while let Some(done) = readers.join_next().await {
        let (some, gone) = done??;
        read += some;
        lost.extend(gone);
    }
    lost.sort();
    let shown: Vec<_> = lost.iter().take(SHOWN).collect();
    Ok(json!({"acks": read, "lost": lost.len(), "for_example": shown}))
}
