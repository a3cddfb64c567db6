//! `/v1/jobs/{job}/exec`, `cp` and `port`: streams to a task, wherever it is.
//!
//! The request asks for an upgrade (`Upgrade: mesh-stream/1`). If the task is there and ready for it, the connection
//! carries frames from then on ([`crate::work::stream::frame`]), and this node passes them on without looking at them:
//!
//! ```text
//!   client ◄── upgraded HTTP ──► this node ◄── Header::Task ──► the node that has the task
//! ```
//!
//! What can be refused is refused before that, as an error like any other.

use std::future::pending;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{StatusCode, Version};
use axum::response::IntoResponse;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use mesh_consensus::id::NodeId;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, sink, split};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::super::Api;
use super::super::answer::{Answer, Param, Problem, has_state, query};
use super::super::events::stream_permit;
use super::super::patient::Leisure;
use super::super::route::{Form, Route, field};
use super::find_job;
use crate::executor::session::Size;
use crate::state::jobs::Stage;
use crate::work::Key;
use crate::work::stream::frame::PROTOCOL;
use crate::work::stream::{self, Ask, OpenError, Opened, PortRef};

/// How much is passed on at a time.
const BLOCK: usize = 32 << 10;
/// How long a client may take to see that it was told everything.
const LINGER: Duration = Duration::from_secs(5);

pub(super) fn routes() -> Vec<Route> {
    let task = field("task", "integer", "Which task; the first that has a place if left out.");
    vec![
        Route::get("/v1/jobs/{job}/exec", "Runs a further command in a task.", exec)
            .query([
                task,
                field("command", "string", "The program and its arguments: a list, as JSON."),
                field("rows", "integer", "Lines of the terminal; no terminal if left out."),
                field("columns", "integer", "Characters in a line of it."),
            ])
            .form(Form::Stream),
        Route::get(
            "/v1/jobs/{job}/cp",
            "Copies a file or directory out of a task's directory, or into it.",
            cp,
        )
        .query([
            task,
            field("path", "string", "Where, from the task's directory on, or as /work/…"),
            field("put", "string", "Into it: what it is called if the path is a directory."),
        ])
        .form(Form::Stream),
        Route::get("/v1/jobs/{job}/port", "Connects with a port of a task.", port)
            .query([task, field("port", "string", "Its name in [ports], or its number.")])
            .form(Form::Stream),
    ]
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsExec {
    task: Option<u32>,
    command: String,
    rows: Option<u16>,
    columns: Option<u16>,
}

async fn exec(State(api): State<Api>, Param(job): Param<String>, request: Request) -> Answer {
    check_upgrade(&request)?;
    let WantsExec { task, command, rows, columns } = query(request.uri())?;
    let argv: Vec<String> = serde_json::from_str(&command).map_err(|error| {
        let hint = r#"command=["ls","-l"], percent-encoded"#;
        Problem::bad("the command is not a list of words", error.to_string(), hint)
    })?;
    let tty = rows.zip(columns).map(|(rows, columns)| Size { rows, columns });
    begin(api, job, task, Ask::Exec { argv, tty }, request).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsCopy {
    task: Option<u32>,
    path: String,
    put: Option<String>,
}

async fn cp(State(api): State<Api>, Param(job): Param<String>, request: Request) -> Answer {
    check_upgrade(&request)?;
    let WantsCopy { task, path, put } = query(request.uri())?;
    let ask = match put {
        Some(name) => Ask::Put { path, name },
        None => Ask::Get { path },
    };
    begin(api, job, task, ask, request).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WantsPort {
    task: Option<u32>,
    port: String,
}

async fn port(State(api): State<Api>, Param(job): Param<String>, request: Request) -> Answer {
    check_upgrade(&request)?;
    let WantsPort { task, port } = query(request.uri())?;
    let ask = Ask::Port { port: PortRef::parse(&port) };
    begin(api, job, task, ask, request).await
}

/// Opens the stream, and answers that the connection is one from now on.
async fn begin(api: Api, job: String, task: Option<u32>, ask: Ask, mut request: Request) -> Answer {
    has_state(&api)?;
    let (node, key) = find_task(&api, job, task).await?;
    let permit = stream_permit(&api)?;
    let opened = stream::open(&api, node, key, ask).await;
    let opened = opened.map_err(|error| unopened(&api, node, key, error))?;
    if let Some(leisure) = request.extensions().get::<Leisure>() {
        leisure.grant();
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(pass_on(api, permit, upgrade, opened));
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// What cannot become a stream is told so, and not left to wait.
fn check_upgrade(request: &Request) -> Result<(), Problem> {
    let asked = request.headers().get(UPGRADE).map(|value| value.as_bytes());
    if asked == Some(PROTOCOL.as_bytes()) && request.version() == Version::HTTP_11 {
        return Ok(());
    }
    Err(Problem::forbidden(
        StatusCode::UPGRADE_REQUIRED,
        "this is a stream, not an answer",
        format!("the request does not say Upgrade: {PROTOCOL}"),
        "use the mesh command: mesh exec, mesh cp, mesh port",
    ))
}

/// The attempt that is meant, and where it is.
async fn find_task(api: &Api, wanted: String, task: Option<u32>) -> Result<(NodeId, Key), Problem> {
    let own = api.roster().party_of(api.whoami.node);
    let found = api.look(move |see| {
        let (id, job) = find_job(see.replica.machine(), &wanted)?;
        if Some(job.party) != own {
            return Err(Problem::forbidden(
                StatusCode::FORBIDDEN,
                "the job cannot be reached into from here",
                "its commands, files and ports are for its own party",
                "ask a node of that party",
            ));
        }
        let first = || job.tasks.iter().position(|task| task.given().is_some()).unwrap_or(0);
        let number = task.map_or_else(first, |task| task as usize);
        let short = id.short();
        let Some(found) = job.tasks.get(number) else {
            let cause = match job.tasks.len() {
                0 => "it has none yet".to_owned(),
                tasks => format!("it has {tasks}, numbered from 0"),
            };
            let message = format!("the job has no task {number}");
            return Err(Problem::not_found(message, cause, format!("mesh job show {short}")));
        };
        let Some(given) = found.given() else {
            let (cause, hint) = match found.stage() {
                Stage::Waiting => {
                    ("it waits for a place".to_owned(), format!("mesh explain {short}"))
                }
                stage => (format!("it is {}", stage.name()), format!("mesh logs {short}")),
            };
            let message = format!("task {number} of {} does not run", job.spec.name);
            return Err(Problem::refused(message, cause, hint));
        };
        let key =
            Key { job: id, task: u32::try_from(number).unwrap_or(u32::MAX), fence: found.fence };
        Ok((given.node, key))
    });
    found.await?
}

fn unopened(api: &Api, node: NodeId, key: Key, error: OpenError) -> Problem {
    let name = api.roster().members.get(&node).map(|place| place.name.to_string());
    let name = name.unwrap_or_else(|| node.short());
    match error {
        OpenError::Unanswered(why) => Problem::unavailable(
            format!("{name}, which has the task, does not answer"),
            why,
            "mesh nodes shows whether it is there; then the same again",
        ),
        OpenError::Refused(why) => Problem::refused(
            format!("{name}, which has the task, refused"),
            why,
            format!("mesh job show {}", key.job.short()),
        ),
    }
}

/// Carries frames between the two, until one of them ends.
async fn pass_on(api: Api, permit: OwnedSemaphorePermit, upgrade: OnUpgrade, opened: Opened) {
    let _permit = permit;
    let client = match upgrade.await {
        Ok(client) => client,
        Err(error) => {
            tracing::debug!(%error, "a connection did not become a stream");
            return;
        }
    };
    let (mut from_client, mut to_client) = split(TokioIo::new(client));
    let Opened { mut from, mut to } = opened;
    let up = async {
        if carry(&mut from_client, &mut to).await == Ended::Writer {
            // The task takes no more. What it has to say of that is on its way.
            pending::<()>().await;
        }
    };
    tokio::select! {
        () = up => return,
        _ = carry(&mut from, &mut to_client) => {}
        () = api.stop.cancelled() => return,
    }
    // Closed with something unread, a connection would throw away what the client has not read yet.
    let _ = to_client.shutdown().await;
    let _ = timeout(LINGER, copy(&mut from_client, &mut sink())).await;
}

/// Which side has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Reader,
    Writer,
}

/// Passes bytes on until one side ends.
async fn carry<R, W>(from: &mut R, to: &mut W) -> Ended
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut block = vec![0; BLOCK];
    loop {
        // What breaks has ended, as far as the other side is concerned.
        let read = match from.read(&mut block).await {
            Ok(0) | Err(_) => return Ended::Reader,
            Ok(read) => read,
        };
        let written = async {
            to.write_all(&block[..read]).await?;
            to.flush().await
        };
        if written.await.is_err() {
            return Ended::Writer;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn who_has_ended_is_told() {
        let (mut ours, mut from) = duplex(64);
        let (mut to, mut theirs) = duplex(64);
        ours.write_all(b"some").await.unwrap();
        drop(ours);
        assert_eq!(carry(&mut from, &mut to).await, Ended::Reader);
        let mut read = [0; 4];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"some");
        let (mut ours, mut from) = duplex(64);
        drop(theirs);
        ours.write_all(b"more").await.unwrap();
        assert_eq!(carry(&mut from, &mut to).await, Ended::Writer);
    }
}
