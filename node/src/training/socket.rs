//! The socket of a worker: HTTP/1.1 with JSON, as `docs/worker-protocol.md` has it.
//!
//! Whoever speaks here is the task, and nobody else can: the socket lies in a directory of the task's own (`work/desk.rs`). It
//! is somebody's code all the same, so every field is checked, bodies are small, and there are a few connections at a time;
//! for more it waits. The socket is served while its attempt is this node's; after a restart of the node there is a new one
//! at the same path, and the worker asks again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::metrics::{self, Metrics, Progress, Sample};
use super::participant::{Next, Over, Participant, Submit, Submitted, UpdateError, model_name};
use super::server::Wanted;
use super::server::worker::{self as server, ServerError, ServerWorker};
use crate::handle::Handle;
use crate::job::JobSpec;
use crate::job::training::{Adaptive, Mode, Real, Server, Strategy, Training};
use crate::state::name::Name;
use crate::work::Key;

/// The version of the protocol that is spoken here.
const PROTOCOL: u64 = 1;
/// The largest body.
const MAX_BODY: usize = 1 << 20;
/// The most that is kept of a header.
const MAX_HEADER: usize = 16 << 10;
/// Connections at a time; for more, they wait.
const MAX_CONNECTIONS: usize = 8;
/// A connection on which nothing is asked for this long is closed.
const IDLE: Duration = Duration::from_secs(300);
/// How soon connections are taken again after that failed.
const AGAIN: Duration = Duration::from_millis(100);
/// The longest name of a file, in bytes.
const MAX_FILE_NAME: usize = 255;
/// The most examples of an update: more than anybody has, and few enough to be added up.
const MAX_EXAMPLES: u64 = 1 << 40;
/// What to do about a request that is not understood.
const SEE: &str = "see docs/worker-protocol.md";

/// What the worker of an attempt reaches.
pub(crate) struct Worker {
    /// What it is part of: the answer to `join`.
    about: Value,
    metrics: Arc<Metrics>,
    /// Where the job trains.
    part: Option<Part>,
}

/// The node's side of a worker's training.
#[derive(Clone)]
pub(crate) enum Part {
    /// In rounds.
    Rounds(Arc<Participant>),
    /// With a parameter server.
    Steps(Arc<ServerWorker>),
}

impl Part {
    /// Returns once there is nothing more to train.
    pub(crate) async fn over(&self) -> Over {
        match self {
            Part::Rounds(participant) => participant.over().await,
            Part::Steps(worker) => worker.over().await,
        }
    }
}

/// What a worker is told of its job.
pub(crate) struct About<'a> {
    /// Which attempt.
    pub(crate) key: Key,
    /// Its job.
    pub(crate) spec: &'a JobSpec,
    /// Which attempt, from 1 on.
    pub(crate) attempt: u32,
    /// For which party it trains; for other jobs, whose node it is on.
    pub(crate) party: &'a str,
}

/// A request that is refused.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    message: String,
    cause: String,
    hint: &'static str,
}

type Answer = Result<Json<Value>, Refused>;
type Body = Result<Bytes, BytesRejection>;

impl Worker {
    /// What a worker reaches.
    pub(crate) fn new(about: &About<'_>, metrics: Arc<Metrics>, part: Option<Part>) -> Self {
        Self { about: about.json(), metrics, part }
    }

    /// The node's side of its training, if its job trains.
    pub(crate) fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    /// Serves the socket, and takes part in the training, for as long as the attempt is here.
    pub(crate) async fn run(self: Arc<Self>, handle: &Handle, listener: UnixListener) {
        let part = self.part.clone();
        let trains = async {
            match &part {
                Some(Part::Rounds(participant)) => participant.run(handle).await,
                Some(Part::Steps(worker)) => worker.run().await,
                None => {}
            }
        };
        tokio::join!(serve(listener, router(self)), trains);
    }

    fn trains(&self) -> Result<&Part, Refused> {
        self.part.as_ref().ok_or_else(|| Refused {
            status: StatusCode::CONFLICT,
            message: "this job does not train".into(),
            cause: "its job.toml has neither [federated] nor [server]".into(),
            hint: "tell what it measures with POST /v1/metrics",
        })
    }

    fn rounds(&self) -> Result<&Arc<Participant>, Refused> {
        match self.trains()? {
            Part::Rounds(participant) => Ok(participant),
            Part::Steps(_) => Err(Refused {
                status: StatusCode::CONFLICT,
                message: "this job has no rounds".into(),
                cause: "it has a parameter server: its workers pull and push".into(),
                hint: "POST /v1/pull, POST /v1/push",
            }),
        }
    }

    fn steps(&self) -> Result<&Arc<ServerWorker>, Refused> {
        match self.trains()? {
            Part::Steps(worker) => Ok(worker),
            Part::Rounds(_) => Err(Refused {
                status: StatusCode::CONFLICT,
                message: "this job has no parameter server".into(),
                cause: "it trains in rounds".into(),
                hint: "POST /v1/submit",
            }),
        }
    }

    async fn note(&self, step: u64, numbers: BTreeMap<Name, Real>) {
        if numbers.is_empty() {
            return;
        }
        let metrics = self.metrics.clone();
        let sample = Sample { step, at_ms: crate::clock::now().0, metrics: numbers };
        // Only a node that stops has no thread for it.
        let _ = tokio::task::spawn_blocking(move || metrics.add(sample)).await;
    }
}

/// Takes connections, and answers on them. Ends with whoever waits for it.
async fn serve(listener: UnixListener, router: Router) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // Those that are over are let go of.
        while connections.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let io = match listener.accept().await {
            Ok((io, _)) => io,
            Err(error) => {
                tracing::debug!(%error, "a worker's connection could not be taken");
                sleep(AGAIN).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let mut settings = http1::Builder::new();
            settings.timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(MAX_HEADER);
            if let Err(error) = settings.serve_connection(TokioIo::new(io), service).await {
                tracing::debug!(%error, "a worker's connection broke");
            }
            drop(permit);
        });
    }
}

fn router(worker: Arc<Worker>) -> Router {
    Router::new()
        .route("/v1/join", post(join))
        .route("/v1/next", get(next))
        .route("/v1/progress", post(progress))
        .route("/v1/evaluated", post(evaluated))
        .route("/v1/submit", post(submit))
        .route("/v1/first", post(first))
        .route("/v1/pull", post(pull))
        .route("/v1/push", post(push))
        .route("/v1/metrics", post(told))
        .route("/v1/done", post(done))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_verb)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(worker)
}

#[derive(Deserialize)]
struct Join {
    protocol: u64,
}

async fn join(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let Join { protocol } = parse(body)?;
    if protocol != PROTOCOL {
        return Err(Refused {
            status: StatusCode::BAD_REQUEST,
            message: format!("protocol {protocol} is not spoken here"),
            cause: format!("this node speaks protocol {PROTOCOL}"),
            hint: "use the package mesh that is mounted into the task",
        });
    }
    Ok(Json(worker.about.clone()))
}

#[derive(Deserialize)]
struct After {
    after: Option<u32>,
}

async fn next(
    State(worker): State<Arc<Worker>>,
    query: Result<Query<After>, QueryRejection>,
) -> Answer {
    let Query(After { after }) = query.map_err(|error| {
        Refused::bad("the question is not understood", error.body_text(), "GET /v1/next?after=3")
    })?;
    Ok(Json(match worker.trains()? {
        Part::Rounds(participant) => told_next(participant.next(after).await),
        Part::Steps(steps) => told_step(steps.next().await),
    }))
}

fn told_step(next: server::Next) -> Value {
    match next {
        server::Next::First => json!({ "state": "first" }),
        server::Next::Step(step) => json!({ "state": "step", "step": step }),
        server::Next::Wait => json!({ "state": "wait" }),
        server::Next::Done => json!({ "state": "done" }),
    }
}

/// Which values are meant.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    tensors: Option<Vec<String>>,
    #[serde(default)]
    ranges: BTreeMap<String, (u64, u64)>,
}

async fn pull(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let Named { tensors, ranges } = parse(body)?;
    let steps = worker.steps()?.clone();
    let (model, clock) = steps.pull(Wanted { tensors, ranges }).await?;
    Ok(Json(json!({ "model": model, "clock": clock })))
}

#[derive(Deserialize)]
struct Gradients {
    step: u32,
    update: String,
    #[serde(default)]
    ranges: BTreeMap<String, (u64, u64)>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

async fn push(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let Gradients { step, update, ranges, metrics } = parse(body)?;
    let steps = worker.steps()?.clone();
    let file = check_file(update)?;
    let metrics = check_metrics(metrics)?;
    let wanted = Wanted { tensors: None, ranges };
    let told = server::Push { step, file, wanted, metrics: metrics.clone() };
    // On its own: a worker that hangs up in the middle, and asks again, finds it done.
    let pushed = tokio::spawn(async move { steps.push(told).await });
    let pushed = pushed.await.unwrap_or(Err(ServerError::Update(UpdateError::Stopping)))?;
    Ok(Json(match pushed {
        Ok(()) => {
            worker.note(step.into(), metrics).await;
            json!({ "taken": true })
        }
        Err(why) => json!({ "taken": false, "why": why }),
    }))
}

#[derive(Deserialize)]
struct FirstModel {
    model: String,
}

async fn first(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let FirstModel { model } = parse(body)?;
    worker.steps()?.first(check_file(model)?).await?;
    Ok(nothing())
}

fn told_next(next: Next) -> Value {
    match next {
        Next::Round { round, base } => {
            let model = base.map(model_name);
            json!({ "state": "round", "round": round, "model": model, "base": base })
        }
        Next::Wait => json!({ "state": "wait" }),
        Next::Done => json!({ "state": "done" }),
    }
}

#[derive(Deserialize)]
struct HowFar {
    #[serde(alias = "step")]
    round: u32,
    part: f64,
}

async fn progress(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let HowFar { round, part } = parse(body)?;
    worker.trains()?;
    let part = Real::new(part).filter(|part| (0.0..=1.0).contains(&part.get()));
    let part = part.ok_or_else(|| {
        Refused::bad("the part of a round is not one", "it is a number from 0 to 1".into(), SEE)
    })?;
    let at_ms = crate::clock::now().0;
    worker.metrics.set_progress(Progress { round, part, at_ms });
    Ok(nothing())
}

#[derive(Deserialize)]
struct Evaluated {
    #[serde(alias = "step")]
    round: u32,
    examples: u64,
    metrics: BTreeMap<String, f64>,
}

async fn evaluated(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let Evaluated { round, examples, metrics } = parse(body)?;
    let part = worker.trains()?;
    let (examples, metrics) = (check_examples(examples)?, check_metrics(metrics)?);
    match part {
        Part::Rounds(participant) => participant.evaluated(round, examples, metrics.clone()),
        Part::Steps(steps) => steps.evaluated(metrics.clone()),
    }
    worker.note(round.into(), metrics).await;
    Ok(nothing())
}

#[derive(Deserialize)]
struct Handed {
    round: u32,
    update: String,
    examples: u64,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

async fn submit(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let Handed { round, update, examples, metrics } = parse(body)?;
    let participant = worker.rounds()?.clone();
    let update = check_file(update)?;
    let (examples, metrics) = (check_examples(examples)?, check_metrics(metrics)?);
    let told = Submit { round, file: update, examples, metrics: metrics.clone() };
    // On its own: a worker that hangs up in the middle, and asks again, finds it done.
    let submitted = tokio::spawn(async move { participant.submit(told).await });
    let submitted = submitted.await.unwrap_or(Err(UpdateError::Stopping))?;
    Ok(Json(match submitted {
        Submitted::Taken => {
            worker.note(round.into(), metrics).await;
            json!({ "taken": true })
        }
        Submitted::NotTaken(why) => json!({ "taken": false, "why": why }),
    }))
}

#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    step: u64,
    metrics: BTreeMap<String, f64>,
}

async fn told(State(worker): State<Arc<Worker>>, body: Body) -> Answer {
    let Told { step, metrics } = parse(body)?;
    worker.note(step, check_metrics(metrics)?).await;
    Ok(nothing())
}

async fn done() -> Answer {
    // How the task ends is what counts.
    Ok(nothing())
}

async fn unknown(uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(80).collect();
    Refused {
        status: StatusCode::NOT_FOUND,
        message: format!("there is nothing at {path}"),
        cause: "no request of the worker protocol has this path".into(),
        hint: SEE,
    }
}

async fn wrong_verb(method: Method) -> Refused {
    Refused {
        status: StatusCode::METHOD_NOT_ALLOWED,
        message: format!("this cannot be asked with {method}"),
        cause: "next is asked with GET, everything else with POST".into(),
        hint: SEE,
    }
}

fn nothing() -> Json<Value> {
    Json(json!({}))
}

fn parse<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    let body = body.map_err(|error| Refused {
        status: error.status(),
        message: "the body could not be taken".into(),
        cause: error.body_text(),
        hint: "a body has at most 1 MiB; tensors go into files",
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        Refused::bad("the body is not what this request takes", error.to_string(), SEE)
    })
}

fn check_file(name: String) -> Result<String, Refused> {
    if is_file_name(&name) {
        return Ok(name);
    }
    let cause = "it is a bare name in MESH_TENSORS: no `/`, no dot at its beginning".into();
    Err(Refused::bad("the request does not name a file", cause, SEE))
}

fn check_examples(examples: u64) -> Result<u64, Refused> {
    if (1..=MAX_EXAMPLES).contains(&examples) {
        return Ok(examples);
    }
    let cause = format!("it is a number from 1 to {MAX_EXAMPLES}");
    Err(Refused::bad("the number of examples is not one", cause, SEE))
}

fn check_metrics(numbers: BTreeMap<String, f64>) -> Result<BTreeMap<Name, Real>, Refused> {
    metrics::check(numbers).map_err(|why| Refused::bad("the metrics cannot be taken", why, SEE))
}

/// Whether this names a file in a directory, and nothing else.
fn is_file_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_FILE_NAME
        && !name.starts_with('.')
        && !name.contains(['/', '\0'])
}

impl Refused {
    fn bad(message: &str, cause: String, hint: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_owned(), cause, hint }
    }
}

impl From<UpdateError> for Refused {
    fn from(error: UpdateError) -> Self {
        let (status, hint) = match &error {
            UpdateError::NoRandomness | UpdateError::Stopping => {
                (StatusCode::SERVICE_UNAVAILABLE, "try again in a moment")
            }
            _ => (StatusCode::BAD_REQUEST, "write the update anew, and submit it again"),
        };
        let cause = match std::error::Error::source(&error) {
            Some(source) => crate::data::chain(source),
            None => String::new(),
        };
        Self { status, message: error.to_string(), cause, hint }
    }
}

impl From<ServerError> for Refused {
    fn from(error: ServerError) -> Self {
        let message = error.to_string();
        match error {
            ServerError::Update(error) => error.into(),
            ServerError::Wrong(_) => Self::bad(&message, String::new(), SEE),
            ServerError::Later(_) => Self {
                status: StatusCode::SERVICE_UNAVAILABLE,
                message,
                cause: "a shard is moving to another node, or its node does not answer".into(),
                hint: "try again in a moment",
            },
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self { status, message, cause, hint } = self;
        let error = json!({ "message": message, "cause": cause, "try": hint });
        (status, Json(json!({ "error": error }))).into_response()
    }
}

impl About<'_> {
    fn json(&self) -> Value {
        let Self { key, spec, attempt, party } = self;
        let (mut kind, mut rounds, mut strategy) = ("plain", None, Value::Null);
        let mut is_private = false;
        if let Some(Training::Federated(federated)) = &spec.training {
            (kind, rounds) = ("federated", Some(federated.rounds));
            strategy = strategy_json(&federated.strategy);
            is_private = federated.privacy.is_some();
        }
        let mut server = Value::Null;
        if let Some(Training::Server(asked)) = &spec.training {
            (kind, rounds) = ("parameter-server", Some(asked.steps));
            server = server_json(asked, spec.groups.first().map_or(0, |group| group.count));
        }
        json!({
            "protocol": PROTOCOL,
            "job": key.job.to_string(),
            "name": spec.name.as_str(),
            "kind": kind,
            "party": party,
            "task": key.task,
            "attempt": attempt,
            "rounds": rounds,
            "params": spec.params,
            "strategy": strategy,
            "private": is_private,
            "server": server,
        })
    }
}

fn server_json(asked: &Server, workers: u32) -> Value {
    let (mode, delay) = match asked.mode {
        Mode::Bulk => ("bulk", None),
        Mode::Bounded { delay } => ("bounded", Some(delay)),
        Mode::Async => ("async", None),
    };
    json!({
        "mode": mode,
        "delay": delay,
        "dynamic": asked.dynamic,
        "workers": workers,
        "steps": asked.steps,
        "checkpoint": asked.checkpoint,
    })
}

fn strategy_json(strategy: &Strategy) -> Value {
    let adaptive = |name: &str, set: &Adaptive| {
        let Adaptive { rate, beta1, beta2, tau } = set;
        json!({ "name": name, "rate": rate, "beta1": beta1, "beta2": beta2, "tau": tau })
    };
    match strategy {
        Strategy::FedAvg { rate } => json!({ "name": "fedavg", "rate": rate }),
        Strategy::FedProx { mu } => json!({ "name": "fedprox", "mu": mu }),
        Strategy::FedAdam(set) => adaptive("fedadam", set),
        Strategy::FedYogi(set) => adaptive("fedyogi", set),
        Strategy::FedAdagrad(set) => adaptive("fedadagrad", set),
        Strategy::FedBuff { buffer, rate, max_staleness } => {
            json!({ "name": "fedbuff", "buffer": buffer, "rate": rate, "max_staleness": max_staleness })
        }
        Strategy::DiLoCo { rate, momentum } => {
            json!({ "name": "diloco", "rate": rate, "momentum": momentum })
        }
        Strategy::Median => json!({ "name": "median" }),
        Strategy::TrimmedMean { trim } => json!({ "name": "trimmed-mean", "trim": trim }),
    }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::JobId;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;
    use crate::state::jobs::tests::spec;

    /// Asks the socket of a job that does not train: status and answer.
    async fn ask(path: &std::path::Path, request: &str, body: &str) -> (u16, Value) {
        let mut io = UnixStream::connect(path).await.unwrap();
        let length = body.len();
        let head = "HTTP/1.1\r\nHost: mesh\r\nConnection: close";
        let text = format!("{request} {head}\r\nContent-Length: {length}\r\n\r\n{body}");
        // Whoever sends too much is answered before all of it was read, and cut off.
        let _ = io.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = io.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    fn plain(dir: &std::path::Path) -> Arc<Worker> {
        let (key, spec) = (Key { job: JobId([7; 16]), task: 1, fence: 40 }, spec("count", 2));
        let about = About { key, spec: &spec, attempt: 3, party: "lab" };
        Arc::new(Worker::new(&about, Arc::new(Metrics::open(dir)), None))
    }

    #[tokio::test]
    async fn any_job_may_tell_what_it_measures_and_no_more() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("sock");
        let worker = plain(temp.path());
        let listener = UnixListener::bind(&path).unwrap();
        let serving = tokio::spawn(serve(listener, router(worker.clone())));
        let (status, joined) = ask(&path, "POST /v1/join", r#"{"protocol": 1}"#).await;
        assert_eq!((status, joined["kind"].as_str()), (200, Some("plain")));
        assert_eq!((joined["task"].as_u64(), joined["attempt"].as_u64()), (Some(1), Some(3)));
        assert_eq!(ask(&path, "POST /v1/join", r#"{"protocol": 2}"#).await.0, 400);

        let good = r#"{"step": 100, "metrics": {"loss": 0.5}}"#;
        assert_eq!(ask(&path, "POST /v1/metrics", good).await, (200, json!({})));
        let loss: Name = "loss".parse().unwrap();
        assert_eq!(worker.metrics.latest()[&loss], Real::new(0.5).unwrap());
        for bad in [
            "",
            "{}",
            r#"{"metrics": {"loss": NaN}}"#,
            r#"{"metrics": {"loss": 1e999}}"#,
            r#"{"metrics": {"Loss": 1}}"#,
            r#"{"step": -1, "metrics": {"loss": 1}}"#,
        ] {
            let (status, answer) = ask(&path, "POST /v1/metrics", bad).await;
            assert_eq!(status, 400, "{bad}");
            assert!(answer["error"]["message"].is_string(), "{bad}: {answer}");
        }
        let large = format!(r#"{{"metrics": {{"{}": 1}}}}"#, "x".repeat(MAX_BODY));
        assert_eq!(ask(&path, "POST /v1/metrics", &large).await.0, 413);

        let submit = r#"{"round": 0, "update": "out", "examples": 1}"#;
        assert_eq!(ask(&path, "POST /v1/submit", submit).await.0, 409);
        assert_eq!(ask(&path, "GET /v1/next", "").await.0, 409);
        assert_eq!(ask(&path, "GET /v1/next?after=x", "").await.0, 400);
        assert_eq!(ask(&path, "GET /v1/join", "").await.0, 405);
        let (status, answer) = ask(&path, "GET /v2", "").await;
        assert_eq!((status, answer["error"]["try"].as_str()), (404, Some(SEE)));
        assert_eq!(ask(&path, "POST /v1/done", "{}").await, (200, json!({})));
        serving.abort();
    }

    #[test]
    fn a_file_is_named_by_a_bare_name() {
        for fine in ["out-3.safetensors", "a..b", &"x".repeat(255)] {
            assert!(is_file_name(fine), "{fine}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a\0", &"x".repeat(256)] {
            assert!(!is_file_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_worker_is_told_what_to_do() {
        let first = told_next(Next::Round { round: 0, base: None });
        assert_eq!(first, json!({ "state": "round", "round": 0, "model": null, "base": null }));
        let third = told_next(Next::Round { round: 3, base: Some(2) });
        assert_eq!(third["model"], "model-2.safetensors");
        assert_eq!(told_next(Next::Wait), json!({ "state": "wait" }));
    }

    #[test]
    fn examples_are_counted_from_one() {
        assert!(check_examples(0).is_err() && check_examples(MAX_EXAMPLES + 1).is_err());
        assert_eq!(check_examples(1).unwrap(), 1);
    }
}
