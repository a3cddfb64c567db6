//! Closed loop: each client writes again as soon as it has its answer.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::quantile_ms;
use crate::store::{Store, Target, value};

/// Clients start together after they have all written this often, which also opens their connections.
const WARM_UP: u64 = 20;

pub async fn run(
    target: &Target,
    clients: usize,
    lasts: Duration,
    bytes: usize,
    prefix: &str,
) -> Result<Value> {
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(clients));
    let mut running = JoinSet::new();
    for client in 0..clients {
        // A connection of its own for each, as 32 programs would have.
        let mut store = Store::connect(target).await?;
        let (start, key) = (start.clone(), format!("{prefix}-{client}"));
        running.spawn(async move {
            let mut from = None;
            let mut number = 0;
            while number < WARM_UP {
                write(&mut store, &key, &mut from, &mut number, bytes).await?;
            }
            start.wait().await;
            let begin = Instant::now();
            let mut times = Vec::new();
            while begin.elapsed() < lasts {
                let sent = Instant::now();
                write(&mut store, &key, &mut from, &mut number, bytes).await?;
                times.push(sent.elapsed());
            }
            anyhow::Ok((times, begin.elapsed()))
        });
    }
    let mut times = Vec::new();
    let mut rate = 0.0;
    while let Some(done) = running.join_next().await {
        let (own, took) = done??;
        rate += own.len() as f64 / took.as_secs_f64();
        times.extend(own);
    }
    times.sort();
    Ok(json!({
        "p50_ms": quantile_ms(&times, 0.5),
        "p99_ms": quantile_ms(&times, 0.99),
        "max_ms": quantile_ms(&times, 1.0),
        "per_s": rate,
        "n": times.len(),
    }))
}

async fn write(
    store: &mut Store,
    key: &str,
    from: &mut Option<String>,
    number: &mut u64,
    bytes: usize,
) -> Result<()> {
    let to = value(key, *number);
    store.write(key, from.as_deref(), &to, bytes).await?;
    *number += 1;
    *from = Some(to);
    Ok(())
}
