//! Follows a job to its end: what becomes of it, and what it prints.
//!
//! ```text
//!   /watch ──► tap ──┐                  ┌─► printer ─► standard output: what tasks print there
//!                    ├──► Screen, lines ┤
//!   /logs  ──► tap ──┘                  └─► standard error: the rest, what tasks print there, how it goes
//! ```
//!
//! A job does not end because nobody looks: a stream that breaks is opened again ([`tap`]), and nothing is shown twice
//! ([`seen`]). With `--json` every line is an object: the job whenever it changes, what it prints, and last the job as it
//! ended. Of a training each round is told as it is committed, and at the end who did what ([`course`]).

use std::future::pending;
use std::io::IsTerminal;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::answers::{Course, Explained, Job, LogLine};
use crate::client::{Answer, Api, broken};
use crate::context::{Context, note, print_json};
use crate::course;
use crate::report::{Code, Outcome, Report};
use crate::view::{Paint, Tint, clean, span};
use printer::Printer;
use seen::Seen;
use tap::{Heard, Tap};

pub(crate) mod printer;
pub(crate) mod seen;
pub(crate) mod tap;
pub(crate) mod words;

/// How long a job may wait before the mesh is asked why.
const WHY_AFTER: Duration = Duration::from_secs(2);
/// How often it is asked again.
const WHY_AGAIN: Duration = Duration::from_secs(15);
/// Once a job is over, the rest of what it printed comes within this, or it does not come.
const REST: Duration = Duration::from_secs(20);

/// Follows a job that somebody waits for. Whoever presses Ctrl-C leaves it to itself, and is told how to come back.
pub(crate) async fn attached(
    api: &Api,
    context: &Context,
    begun: &Answer,
    limit: Option<Duration>,
    stop: Pin<&mut (impl Future<Output = ()> + ?Sized)>,
) -> Outcome {
    let job: Job = begun.item()?;
    let mut screen = Screen::new(context.json, &job);
    if !context.json {
        screen.note(&words::begun(&job));
    }
    screen.job(begun, &job)?;
    let limit_at = limit.map(|limit| Instant::now() + limit);
    let last = tokio::select! {
        last = run(api, &job, &mut screen) => last.map_err(|report| left(context, &job, report))?,
        () = until(limit_at) => return Err(screen.late(context, limit.unwrap_or_default())),
        () = stop => {
            screen.note(&goes_on(context, &job));
            return Ok(Code::Interrupted.exit());
        }
    };
    let ended: Job = last.item()?;
    screen.end_lines();
    if context.json {
        print_json(last.json())?;
        return Ok(exit(&ended));
    }
    let course = trained(api, &ended).await;
    if let Some(course) = &course {
        // Those that were committed since the last look.
        screen.rounds(course);
    }
    told(context, &ended, course.as_ref())
}

/// Waits for a job's end and says nothing meanwhile.
pub(crate) async fn wait(api: &Api, begun: Answer) -> Result<Answer, Report> {
    let job: Job = begun.item()?;
    if job.is_over() {
        return Ok(begun);
    }
    let path = format!("/v1/jobs/{}/watch", job.id);
    let mut watch = Tap::new(api, &path);
    loop {
        match watch.next().await? {
            Heard::Line(line) => {
                let answer = Answer::new(parsed(&line)?);
                if answer.item::<Job>()?.is_over() {
                    return Ok(answer);
                }
            }
            Heard::End | Heard::Broke => watch.again(&path),
        }
    }
}

/// How a job's training went, if it trains and a node can still tell.
async fn trained(api: &Api, job: &Job) -> Option<Course> {
    job.rounds?;
    api.get(&format!("/v1/jobs/{}/course", job.id)).await.ok()?.item().ok()
}

/// Says how a job ended, and exits as the conventions want it.
fn told(context: &Context, ended: &Job, course: Option<&Course>) -> Outcome {
    if ended.is_done() {
        note(&words::done(ended));
    }
    for line in words::outputs(ended) {
        note(&line);
    }
    let summary = course.map(|course| course::summary(course, |words| context.command(words)));
    for line in summary.unwrap_or_default() {
        note(&line);
    }
    Ok(words::failure(context, ended).map_or(ExitCode::SUCCESS, |report| report.show(false)))
}

/// 0 only if the job is done.
pub(crate) fn exit(ended: &Job) -> ExitCode {
    if ended.is_done() { ExitCode::SUCCESS } else { Code::Failed.exit() }
}

/// How a job is found again that somebody has left to itself.
pub(crate) fn goes_on(context: &Context, job: &Job) -> String {
    let short = job.short();
    let follow = context.command(&format!("logs -f {short}"));
    let stop = context.command(&format!("stop {short}"));
    format!("job {short} goes on; {follow} follows it, {stop} ends it")
}

/// A node that is gone takes no job with it.
fn left(context: &Context, job: &Job, report: Report) -> Report {
    match report.code {
        Code::NoNode | Code::NoLeader | Code::Unavailable | Code::Timeout => {
            Report { hint: goes_on(context, job), ..report }
        }
        _ => report,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Follows a job; answers with it as it ended.
async fn run(api: &Api, job: &Job, screen: &mut Screen) -> Result<Answer, Report> {
    let base = format!("/v1/jobs/{}", job.id);
    let (watched, logged) = (format!("{base}/watch"), format!("{base}/logs?follow=true"));
    let mut watch = Tap::new(api, &watched);
    let mut logs = Tap::new(api, &logged);
    let mut seen = Seen::default();
    let mut why = Why { api, path: format!("{base}/explain"), asking: None };
    let mut rounds = Rounds { api, path: format!("{base}/course"), asking: None, asked: None };
    // The job as it ended, and until when the rest of what it printed is waited for.
    let mut last: Option<Answer> = None;
    let mut rest_until: Option<Instant> = None;
    // Whether the log came to its end while the node was there: then it has no more.
    let mut is_all = false;
    why.mind(screen, job);
    loop {
        if logs.is_closed()
            && let Some(last) = last.take()
        {
            return Ok(last);
        }
        tokio::select! {
            // What becomes of the job comes first: it changes seldom, and what a task prints may never cease.
            biased;
            heard = watch.next() => match heard? {
                Heard::Line(line) => {
                    let answer = Answer::new(parsed(&line)?);
                    let now: Job = answer.item()?;
                    if now.is_over() {
                        watch.close();
                        rest_until = Some(Instant::now() + REST);
                        last = Some(answer);
                        why.asking = None;
                        rounds.asking = None;
                        // It ended a moment before the job did.
                        if is_all && logs.is_resting() {
                            logs.close();
                        }
                    } else {
                        screen.job(&answer, &now)?;
                        why.mind(screen, &now);
                        rounds.mind(screen, &now);
                    }
                }
                heard => {
                    if heard == Heard::Broke {
                        screen.broke();
                    }
                    is_all = false;
                    watch.again(&watched);
                }
            },
            answer = rounds.next() => {
                rounds.asking = None;
                if let Ok(course) = answer.and_then(|answer| answer.item::<Course>()) {
                    screen.rounds(&course);
                }
                // There may have been another meanwhile.
                let now = screen.job.clone();
                rounds.mind(screen, &now);
            }
            heard = logs.next() => match heard {
                Ok(Heard::Line(line)) => {
                    let value = parsed(&line)?;
                    if let Ok(line) = LogLine::deserialize(&value)
                        && seen.is_new(&line)
                    {
                        screen.line(&value, &line)?;
                    }
                    rest_until = last.as_ref().map(|_| Instant::now() + REST);
                }
                Ok(Heard::End) if last.is_some() => logs.close(),
                Ok(heard) => {
                    is_all = heard == Heard::End && watch.is_open();
                    seen.again();
                    logs.again(&logged);
                }
                // The job can be followed without it.
                Err(report) => {
                    screen.note(&format!("{}: {}", report.message, report.cause));
                    logs.close();
                }
            },
            answer = why.next() => {
                if let Ok(explained) = answer.and_then(|answer| answer.item::<Explained>()) {
                    screen.waits(explained.reason.as_deref());
                }
                why.ask(WHY_AGAIN);
            }
            () = until(rest_until) => {
                // What never ran has printed nothing.
                if last.as_ref().is_none_or(has_run) {
                    screen.note("what it printed last cannot be read now");
                }
                logs.close();
            }
        }
    }
}

/// Whether any task of a job ever ran; so too if that cannot be told.
fn has_run(answer: &Answer) -> bool {
    let job = answer.item::<Job>();
    job.map_or(true, |job| job.tasks.iter().any(|task| task.started_at.is_some()))
}

/// A line of a stream.
pub(crate) fn parsed(line: &str) -> Result<Value, Report> {
    serde_json::from_str(line).map_err(|_| broken("a line of it is not JSON"))
}

/// A question that is under way.
type Asking<'a> = Pin<Box<dyn Future<Output = Result<Answer, Report>> + 'a>>;

/// Asks the mesh why a job waits, if it waits for long.
struct Why<'a> {
    api: &'a Api,
    path: String,
    asking: Option<Asking<'a>>,
}

impl Why<'_> {
    /// Asks, or stops asking.
    fn mind(&mut self, screen: &Screen, job: &Job) {
        let is_wanted = job.state == "waiting" && job.reason.is_none() && !screen.json;
        match (is_wanted, self.asking.is_some()) {
            (true, false) => self.ask(WHY_AFTER),
            (false, true) => self.asking = None,
            _ => {}
        }
    }

    fn ask(&mut self, after: Duration) {
        let (api, path) = (self.api, self.path.clone());
        self.asking = Some(Box::pin(async move {
            sleep(after).await;
            api.get(&path).await
        }));
    }

    /// The answer, if it is asked.
    async fn next(&mut self) -> Result<Answer, Report> {
        match &mut self.asking {
            Some(asking) => asking.await,
            None => pending().await,
        }
    }
}

/// Asks how a training goes whenever its model has a round more.
struct Rounds<'a> {
    api: &'a Api,
    path: String,
    asking: Option<Asking<'a>>,
    /// The round at which it was asked last.
    asked: Option<u64>,
}

impl Rounds<'_> {
    /// Asks, if there is something new and no question is under way: it is answered before the next one.
    fn mind(&mut self, screen: &Screen, job: &Job) {
        let is_new = job.round.is_some() && job.round != self.asked;
        if screen.json || !is_new || self.asking.is_some() {
            return;
        }
        self.asked = job.round;
        let (api, path) = (self.api, self.path.clone());
        self.asking = Some(Box::pin(async move { api.get(&path).await }));
    }

    /// The answer, if it is asked.
    async fn next(&mut self) -> Result<Answer, Report> {
        match &mut self.asking {
            Some(asking) => asking.await,
            None => pending().await,
        }
    }
}

/// Prints where whoever started this command looks.
fn stdio() -> Printer<std::io::Stdout, std::io::Stderr> {
    let (out, err) = (std::io::stdout(), std::io::stderr());
    let one_screen = out.is_terminal() && err.is_terminal();
    Printer::new(out, err).on_one_screen(one_screen).painted(Paint::stdout(), Paint::stderr())
}

/// What is shown while a job goes on.
struct Screen {
    json: bool,
    printer: Printer<std::io::Stdout, std::io::Stderr>,
    paint: Paint,
    /// The last that was said of the job.
    said: String,
    /// The job as it was last seen.
    job: Job,
    has_broken: bool,
    /// The rounds of its training that were told.
    told: course::Told,
}

impl Screen {
    fn new(json: bool, job: &Job) -> Self {
        Self {
            json,
            printer: stdio(),
            paint: Paint::stderr(),
            said: String::new(),
            job: job.clone(),
            has_broken: false,
            told: course::Told::default(),
        }
    }

    /// The job is so now.
    fn job(&mut self, answer: &Answer, job: &Job) -> Result<(), Report> {
        self.printer.of_tasks(job.tasks.len());
        self.job = job.clone();
        if self.json {
            return self.printer.json(answer.json());
        }
        let said = words::progress(job);
        if said != self.said && !said.is_empty() {
            self.note(&said);
            self.said = said;
        }
        Ok(())
    }

    /// Its training has come so far.
    fn rounds(&mut self, course: &Course) {
        for line in self.told.lines(course) {
            self.note(&line);
        }
    }

    /// A job waits, and this is why.
    fn waits(&mut self, reason: Option<&str>) {
        let Some(reason) = reason else { return };
        let said = format!("waiting: {}", clean(reason));
        if said != self.said {
            self.note(&said);
            self.said = said;
        }
    }

    /// It has printed something.
    fn line(&mut self, value: &Value, line: &LogLine) -> Result<(), Report> {
        if self.json { self.printer.json(value) } else { self.printer.line(line) }
    }

    /// A remark beside all that, which scripts do not meet.
    fn note(&mut self, text: &str) {
        self.printer.note(&self.paint.dye(&clean(text), Tint::Faint));
    }

    /// The connection broke. It is said once.
    fn broke(&mut self) {
        if !std::mem::replace(&mut self.has_broken, true) && !self.json {
            self.note("the connection to the node broke, and is tried again; the job goes on");
        }
    }

    /// What comes now begins a line of its own.
    fn end_lines(&mut self) {
        self.printer.end_lines();
    }

    /// It was followed for long enough.
    fn late(&mut self, context: &Context, limit: Duration) -> Report {
        self.end_lines();
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        words::late(context, &self.job, &span(limit_ms))
    }
}

/// What a job printed, as it stands or as it comes.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogWish {
    /// Only this task.
    pub(crate) task: Option<u64>,
    /// This attempt at each; the last if left out.
    pub(crate) attempt: Option<u64>,
    /// Whether to go on until the job is over.
    pub(crate) follow: bool,
    /// Nothing older: milliseconds since 1970.
    pub(crate) since_ms: Option<u64>,
    /// So many lines from the end of each task's.
    pub(crate) lines: Option<u64>,
    /// Whether each line says when it was printed.
    pub(crate) times: bool,
}

impl LogWish {
    /// The question. When it is asked again, `first_ms` is the time of the first line that was shown: counted from the
    /// end, another line would be the first by now.
    pub(crate) fn path(&self, job: &str, first_ms: Option<u64>) -> String {
        let (since_ms, lines) = match (self.lines, first_ms) {
            (Some(_), Some(first_ms)) => (self.since_ms.max(Some(first_ms)), None),
            (lines, _) => (self.since_ms, lines),
        };
        let asked = [
            self.task.map(|task| format!("task={task}")),
            self.attempt.map(|attempt| format!("attempt={attempt}")),
            self.follow.then(|| "follow=true".to_owned()),
            since_ms.map(|since_ms| format!("since_ms={since_ms}")),
            lines.map(|lines| format!("lines={lines}")),
        ];
        let asked: Vec<String> = asked.into_iter().flatten().collect();
        let query = if asked.is_empty() { String::new() } else { format!("?{}", asked.join("&")) };
        format!("/v1/jobs/{job}/logs{query}")
    }
}

/// What came of reading a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Logged {
    /// How many lines there were.
    pub(crate) lines: u64,
    /// Why some could not be read, in the nodes' words; each once.
    pub(crate) missed: Vec<String>,
}

impl Logged {
    fn add(&mut self, line: &LogLine) {
        if line.kind != "error" {
            self.lines += 1;
        } else if !self.missed.contains(&line.text) {
            self.missed.push(line.text.clone());
        }
    }
}

/// Shows what a job printed.
pub(crate) async fn logs(
    api: &Api,
    context: &Context,
    job: &Job,
    wish: &LogWish,
) -> Result<Logged, Report> {
    let mut printer = stdio().with_times(wish.times);
    // Whoever asked for one task knows which one it is.
    printer.of_tasks(if wish.task.is_some() { 1 } else { job.tasks.len() });
    let mut seen = Seen::default();
    let mut logged = Logged::default();
    let mut logs = Tap::new(api, &wish.path(&job.id, None));
    loop {
        let is_over = match logs.next().await.map_err(|report| left(context, job, report))? {
            Heard::Line(line) => {
                let value = parsed(&line)?;
                let Ok(line) = LogLine::deserialize(&value) else { continue };
                if !seen.is_new(&line) {
                    continue;
                }
                logged.add(&line);
                match context.json {
                    true => printer.json(&value)?,
                    // It is told at the end, unless that is far.
                    false if line.kind == "error" && !wish.follow => {}
                    false => printer.line(&line)?,
                }
                // Whoever closed the pipe has read enough.
                printer.is_closed()
            }
            Heard::End if !wish.follow => true,
            // The node may have been stopped: then the job is not over, and is asked about again.
            Heard::End => match api.get(&format!("/v1/jobs/{}", job.id)).await {
                Ok(answer) => answer.item::<Job>()?.is_over(),
                Err(report) if report.code == Code::NotFound => true,
                Err(_) => false,
            },
            Heard::Broke => false,
        };
        if is_over {
            printer.end_lines();
            return Ok(logged);
        }
        if logs.is_closed() {
            seen.again();
            logs.again(&wish.path(&job.id, seen.first_ms()));
        }
    }
}

#[cfg(test)]
mod tests;
