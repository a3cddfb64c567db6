//! How long nobody can write after the leader is gone.
//!
//! A probe goes to every target each 5 ms, before the cut and after it, and each waits for its own answer.
//! Only probes sent *after* the cut count: an answer to an earlier one may have been on its way already.
//! The clock starts just before the cut, so that the cut's own time is not given away.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use crate::store::{Store, Target, value};

const PROBE_EVERY: Duration = Duration::from_millis(5);
/// A probe that has no answer by then is given up; younger ones go on.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
/// After so long without a write the trial has failed.
const GIVE_UP: Duration = Duration::from_secs(30);
/// More acknowledged writes to read back, after the one that was waited for.
const GO_ON: Duration = Duration::from_millis(100);
/// Enough for every probe to all targets within its patience; beyond it a probe is left out.
const IN_FLIGHT: usize = 4096;
const VALUE_BYTES: usize = 256;

/// What takes the leader away.
pub enum Cut {
    Kill(Pid),
    Run(Vec<String>),
}

impl Cut {
    pub fn new(pid: Option<i32>, command: Option<String>) -> Self {
        match pid {
            Some(pid) => Cut::Kill(Pid::from_raw(pid)),
            None => {
                Cut::Run(command.unwrap_or_default().split_whitespace().map(String::from).collect())
            }
        }
    }

    async fn make(&self) -> Result<()> {
        match self {
            // 0 and below name whole groups of processes.
            Cut::Kill(pid) if pid.as_raw() <= 1 => bail!("{pid} is not a process to kill"),
            Cut::Kill(pid) => Ok(kill(*pid, Signal::SIGKILL)?),
            Cut::Run(words) => {
                let [program, arguments @ ..] = words.as_slice() else { bail!("no command") };
                let status = tokio::process::Command::new(program).args(arguments).status().await?;
                if status.success() { Ok(()) } else { bail!("{program} ended with {status}") }
            }
        }
    }
}

struct Ack {
    key: String,
    value: String,
    sent: Instant,
    came: Instant,
}

pub async fn run(
    targets: &[Target],
    cut: Cut,
    lead_in: Duration,
    prefix: &str,
    acks: &Path,
) -> Result<Value> {
    let mut stores = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let mut store = Store::connect(target).await?;
        let key = format!("{prefix}-warm-{at}");
        store.write(&key, None, &value(&key, 0), VALUE_BYTES).await.context("before the cut")?;
        stores.push(store);
    }
    let (tell, mut told) = mpsc::channel(IN_FLIGHT);
    let probes = tokio::spawn(probe(stores, prefix.to_owned(), tell));

    sleep(lead_in).await;
    let begun = Instant::now();
    cut.make().await?;
    let done = Instant::now();

    let mut acked = Vec::new();
    let mut first: Option<Duration> = None;
    let mut end = begun + GIVE_UP;
    loop {
        tokio::select! {
            () = sleep_until(end) => break,
            ack = told.recv() => {
                let Some(ack) = ack else { bail!("the probes ended") };
                if ack.sent >= done && first.is_none() {
                    first = Some(ack.came - begun);
                    end = Instant::now() + GO_ON;
                }
                acked.push(ack);
            }
        }
    }
    probes.abort();
    let mut lines = String::new();
    for ack in &acked {
        lines.push_str(&format!("{} {}\n", ack.key, ack.value));
    }
    let mut file = tokio::fs::OpenOptions::new().create(true).append(true).open(acks).await?;
    file.write_all(lines.as_bytes()).await?;
    file.flush().await?;
    Ok(json!({
        "first_ack_ms": first.map(|time| time.as_secs_f64() * 1e3),
        "acks": acked.len(),
        "cut_ms": (done - begun).as_secs_f64() * 1e3,
    }))
}

/// Until it is aborted, and the probes in flight with it.
async fn probe(stores: Vec<Store>, prefix: String, tell: mpsc::Sender<Ack>) {
    let mut flying = JoinSet::new();
    let mut beat = interval(PROBE_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_u64.. {
        beat.tick().await;
        while flying.try_join_next().is_some() {}
        for (at, store) in stores.iter().enumerate() {
            if flying.len() >= IN_FLIGHT {
                continue;
            }
            let (mut store, tell) = (store.clone(), tell.clone());
            let key = format!("{prefix}-{number}-{at}");
            flying.spawn(async move {
                let value = value(&key, number);
                let sent = Instant::now();
                let write = store.write(&key, None, &value, VALUE_BYTES);
                if let Ok(Ok(())) = timeout(PROBE_PATIENCE, write).await {
                    let came = Instant::now();
                    // The receiver is gone once the trial has ended.
                    let _ = tell.send(Ack { key, value, sent, came }).await;
                }
            });
        }
    }
}
