//! `/v1/jobs/{job}/logs`: what the tasks of a job printed, one JSON object a line.
//!
//! Each attempt is read from the node that has it. If a task gets another attempt while it is followed, that one is
//! followed, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::StreamExt as _;
use mesh_consensus::id::{JobId, NodeId};
use mesh_consensus::time::Time;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::Api;
use super::super::answer::{Answer, Param, Problem, SCHEMA, date, has_state, query};
use super::super::events::stream_permit;
use super::super::route::{Form, Route, field};
use super::find_job;
use crate::work::Key;
use crate::work::stream::{self, From, Kind, Line};

/// Lines that a slow reader is behind; then it is waited for.
const MAX_BEHIND: usize = 16;
/// A node that does not answer is asked again after so long.
const AGAIN: Duration = Duration::from_millis(500);
/// So many nodes are asked at a time what they know of earlier attempts.
const MAX_ASKED: usize = 32;
/// So often, if the job is over.
const TRIES: usize = 3;

pub(super) fn routes() -> Vec<Route> {
    let logs = Route::get("/v1/jobs/{job}/logs", "What a job's tasks printed.", logs);
    let query = [
        field("task", "integer", "Only this task."),
        field("attempt", "integer", "This attempt at each, from 1; the last if left out."),
        field("follow", "boolean", "Whether to go on until the job is over."),
        field("since_ms", "integer", "Nothing older: milliseconds since 1970."),
        field("lines", "integer", "So many lines from the end of each task's."),
    ];
    vec![logs.query(query).form(Form::Lines)]
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wants {
    task: Option<u32>,
    attempt: Option<u32>,
    follow: bool,
    since_ms: Option<u64>,
    lines: Option<u64>,
}

/// Attempts of a job, and whether it is over.
struct Seen {
    attempts: BTreeMap<u32, (NodeId, u64)>,
    over: bool,
}

async fn logs(State(api): State<Api>, Param(wanted): Param<String>, uri: Uri) -> Answer {
    let wants: Wants = query(&uri)?;
    has_state(&api)?;
    let own = api.roster().party_of(api.whoami.node);
    let found = api.look(move |see| {
        let (id, job) = find_job(see.replica.machine(), &wanted)?;
        if Some(job.party) != own {
            return Err(Problem::forbidden(
                axum::http::StatusCode::FORBIDDEN,
                "the job's log cannot be read here",
                "what a job prints is for its own party",
                "ask a node of that party",
            ));
        }
        let attempts = job.tasks.iter().map(|task| task.attempts).max().unwrap_or(0);
        Ok((id, job.tasks.len(), attempts))
    });
    let (job, tasks, attempts) = found.await??;
    if let Some(attempt) = wants.attempt.filter(|attempt| !(1..=attempts).contains(attempt)) {
        return Err(Problem::not_found(
            format!("the job has no attempt {attempt}"),
            format!("its tasks have had {attempts} at most, counted from 1"),
            format!("mesh job show {}", job.short()),
        ));
    }
    if let Some(task) = wants.task.filter(|task| *task as usize >= tasks && tasks > 0) {
        return Err(Problem::not_found(
            format!("the job has no task {task}"),
            format!("it has {tasks}, numbered from 0"),
            format!("mesh job show {}", job.short()),
        ));
    }
    let permit = stream_permit(&api)?;
    let (sender, receiver) = mpsc::channel::<Bytes>(MAX_BEHIND);
    tokio::spawn(async move {
        let _permit = permit;
        let reads = async {
            match wants.attempt {
                Some(attempt) => earlier(&api, job, attempt, &wants, &sender).await,
                None => follow(&api, job, &wants, &sender).await,
            }
        };
        tokio::select! {
            () = reads => {}
            () = api.stop.cancelled() => {}
            () = sender.closed() => {}
        }
    });
    let stream = futures::stream::unfold(receiver, |mut receiver| async {
        let line = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(line), receiver))
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response())
}

/// Reads all attempts, those that come later too, until nothing more can come.
async fn follow(api: &Api, job: JobId, wants: &Wants, sender: &mpsc::Sender<Bytes>) {
    let mut changed = api.shown.jobs.clone();
    let mut known: BTreeSet<Key> = BTreeSet::new();
    let mut readers: JoinSet<()> = JoinSet::new();
    let only = wants.task;
    loop {
        changed.borrow_and_update();
        let seen = api.look(move |see| {
            let job = see.replica.machine().job(job)?;
            let tasks = job.tasks.iter().enumerate().map(|(n, task)| (n as u32, task));
            let attempts = tasks.filter(|(n, _)| only.is_none_or(|only| only == *n)).filter_map(
                |(n, task)| {
                    let node = task.given().map(|given| given.node);
                    let node = node.or_else(|| task.end().and_then(|end| end.node))?;
                    Some((n, (node, task.fence)))
                },
            );
            Some(Seen { attempts: attempts.collect(), over: job.over.is_some() })
        });
        let Ok(Some(seen)) = seen.await else { return };
        for (task, (node, fence)) in seen.attempts {
            let key = Key { job, task, fence };
            if known.insert(key) {
                // Only the first attempt that is met is cut: what comes later is new.
                let from = match (wants.since_ms, wants.lines) {
                    (Some(ms), _) => From::Since(ms),
                    (None, Some(lines)) if known.len() <= 1 || !wants.follow => From::Last(lines),
                    _ => From::Start,
                };
                let (api, sender, follow) = (api.clone(), sender.clone(), wants.follow);
                readers.spawn(async move { read(&api, node, key, from, follow, &sender).await });
            }
        }
        if seen.over || !wants.follow {
            while readers.join_next().await.is_some() {}
            return;
        }
        tokio::select! {
            _ = changed.changed() => {}
            Some(_) = readers.join_next() => {}
        }
    }
}

/// Reads one attempt at each task, wherever it was. The state knows where the last one is; of those before it the nodes
/// are asked.
async fn earlier(api: &Api, job: JobId, attempt: u32, wants: &Wants, sender: &mpsc::Sender<Bytes>) {
    let only = wants.task;
    let tasks = api.look(move |see| {
        let tasks = see.replica.machine().job(job)?.tasks.iter().enumerate();
        let tasks = tasks.map(|(n, task)| (n as u32, task.attempts));
        let tasks = tasks
            .filter(|(n, attempts)| only.is_none_or(|only| only == *n) && *attempts >= attempt);
        Some(tasks.map(|(n, _)| n).collect::<Vec<u32>>())
    });
    let Ok(Some(tasks)) = tasks.await else { return };
    let from = match (wants.since_ms, wants.lines) {
        (Some(ms), _) => From::Since(ms),
        (None, Some(lines)) => From::Last(lines),
        (None, None) => From::Start,
    };
    for task in tasks {
        match locate(api, job, task, attempt).await {
            Some((node, key)) => read(api, node, key, from, wants.follow, sender).await,
            None => {
                let text =
                    format!("attempt {attempt} at task {task} is kept on no node that answers");
                let lost = json!({
                    "schema": SCHEMA, "kind": "error", "task": task, "node": null, "text": text,
                });
                // Whoever asked may have gone.
                let _ = sender.send(Bytes::from(format!("{lost}\n"))).await;
            }
        }
    }
}

/// The node that has an attempt, and the attempt.
async fn locate(api: &Api, job: JobId, task: u32, attempt: u32) -> Option<(NodeId, Key)> {
    let members: Vec<NodeId> = api.roster().members.keys().copied().collect();
    let asked = members.into_iter().map(|node| async move {
        let found = stream::past(api, node, Key { job, task, fence: 0 }).await;
        let found = found.into_iter().find(|about| about.attempt == attempt)?;
        Some((node, Key { job, task, fence: found.fence }))
    });
    let mut answers = futures::stream::iter(asked).buffer_unordered(MAX_ASKED);
    while let Some(answer) = answers.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}

async fn read(
    api: &Api,
    node: NodeId,
    key: Key,
    from: From,
    follow: bool,
    sender: &mpsc::Sender<Bytes>,
) {
    let name = api.roster().members.get(&node).map(|place| place.name.to_string());
    let name = name.unwrap_or_else(|| node.short());
    let mut why = String::new();
    for _ in 0..TRIES {
        let (lines, mut read) = mpsc::channel::<Vec<Line>>(MAX_BEHIND);
        let reads = stream::logs(api, node, key, from, follow, lines);
        let sends = async {
            let mut any = false;
            while let Some(batch) = read.recv().await {
                any = true;
                let text: String = batch.iter().map(|line| shown(&name, key, line)).collect();
                if sender.send(Bytes::from(text)).await.is_err() {
                    break;
                }
            }
            any
        };
        let (read, any) = tokio::join!(reads, sends);
        match read {
            Ok(()) => return,
            // What was shown is not shown twice.
            Err(error) if any => {
                why = error;
                break;
            }
            Err(error) => why = error,
        }
        tokio::time::sleep(AGAIN).await;
    }
    let lost = json!({
        "schema": SCHEMA, "kind": "error", "task": key.task, "node": name,
        "text": format!("{name} does not answer: {why}"),
    });
    let _ = sender.send(Bytes::from(format!("{lost}\n"))).await;
}

fn shown(node: &str, key: Key, line: &Line) -> String {
    let stream = match line.kind {
        Kind::Out => "out",
        Kind::Err => "err",
        Kind::Mesh => "mesh",
    };
    let line = json!({
        "schema": SCHEMA, "kind": "line", "task": key.task, "fence": key.fence, "node": node,
        "time": date(Time(line.at / 1_000_000)), "stream": stream,
        "text": String::from_utf8_lossy(&line.text), "whole": line.is_whole,
    });
    format!("{line}\n")
}
