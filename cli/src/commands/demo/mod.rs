//! `mesh demo`: three parties on this machine train one model, in under a minute, and lose their leader half way.
//!
//! ```text
//! story ──► stage (three real nodes in a temporary directory) ◄── observe (asks each, many times a second)
//!                └──► scene (what was seen) ──► picture, or lines
//! ```
//!
//! | read | for |
//! |---|---|
//! | [`story`] | what happens, act by act |
//! | [`digits`] | MNIST, which is in this binary, cut into what each party has |
//! | [`course`] | how the training goes, as a node tells it |
//! | [`scene`], [`picture`] | what was seen, and how it looks |
//!
//! The nodes are processes of their own, started as `mesh up` is, and killed as a power cut would. They die with the
//! demo, however it ends, and what runs on them is ended after them. Only if the demo itself is killed with SIGKILL do trainers
//! outlive it: for the minute that they look for their node.

use std::cell::RefCell;
use std::fs::{DirBuilder, File};
use std::io::IsTerminal;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::init::next;
use crate::answers::Status;
use crate::background::{Background, Tie};
use crate::client::Api;
use crate::context::{Context, Place, print, print_item};
use crate::report::{Code, Outcome, Report};
use crate::view::{Cell, Column, Paint, Table, Tint, width};
use course::{Course, Participant};
use scene::{Mode, Scene, percent};
use story::{Figures, STARTING, story};

mod course;
mod digits;
mod picture;
mod scene;
mod story;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh demo                      watch it
  mesh demo --json               one object per event, and the figures last
  mesh demo | cat                as plain lines

Three nodes of three parties start on the loopback interface. Each party has some of the digits of
MNIST, and none has all; together they train a network that knows every digit, and no image leaves
its party. One of them is slow. Half way the leader is killed with SIGKILL: the others elect
another and train on, and the dead one comes back. Nothing is left behind.

Exits with 0 if all of that happened and at least 95 % of the test images are recognised.";

/// The three nodes, and whose they are.
const NODES: [(&str, &str); 3] = [("alpha", "clinic-a"), ("beta", "clinic-b"), ("gamma", "lab")];
/// How many rounds there are: many, since a round takes a tenth of a second, and the node that is killed misses a dozen or two of
/// them before it is back.
const ROUNDS: u32 = 100;
/// Another number of rounds, for tests. Then accuracy is told, and nothing is asked of it.
const ROUNDS_VARIABLE: &str = "MESH_DEMO_ROUNDS";
/// What share of the test images has to be recognised.
const GOAL: f64 = 0.95;
/// Everything together. It takes about 25 s on two cores.
const ALL: Duration = Duration::from_secs(150);
/// How often each node is asked; the election is measured no finer than this.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A node that takes longer to answer is not looked at this time.
const LOOK_PATIENCE: Duration = Duration::from_millis(300);
/// How often somebody is asked how the training goes.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

pub(crate) async fn run(context: &Context) -> Outcome {
    context.only_here("demo")?;
    let mode = match (context.json, std::io::stdout().is_terminal()) {
        (true, _) => Mode::Json,
        (false, true) => Mode::Picture,
        (false, false) => Mode::Lines,
    };
    let asked = rounds(std::env::var(ROUNDS_VARIABLE).ok().as_deref())?;
    let stage = Stage::new(mode, asked.unwrap_or(ROUNDS))?;
    // The first to end decides; the others are dropped, and the stage is cleared after them.
    let outcome = tokio::select! {
        outcome = timeout(ALL, story(&stage)) => outcome.unwrap_or_else(|_| Err(stage.too_late())),
        () = observe(&stage) => unreachable!("it looks for as long as there is a story"),
        report = picture::show(&stage, mode) => Err(report),
    };
    let timeline =
        if mode == Mode::Picture { timeline(&stage.scene.borrow()) } else { String::new() };
    drop(stage);
    let figures = outcome?;
    if context.json {
        print_item(&figures.json())?;
    } else {
        print(&text(&figures, &timeline, width(), Paint::stdout()))?;
    }
    // A shortened run proves nothing about accuracy.
    if asked.is_some() || figures.accuracy >= GOAL {
        return Ok(ExitCode::SUCCESS);
    }
    let (got, want) = (percent(figures.accuracy), percent(GOAL));
    let message = format!("the model recognises {got} of the test images");
    let cause = format!("it should be {want} at least");
    // The figures stay what was said last on standard output.
    Ok(Report::new(Code::Failed, message, cause, "mesh demo again").show(false))
}

/// What a test asks for.
fn rounds(said: Option<&str>) -> Result<Option<u32>, Report> {
    let Some(said) = said.filter(|said| !said.is_empty()) else { return Ok(None) };
    match said.parse::<u32>().ok().filter(|rounds| (2..=1000).contains(rounds)) {
        Some(rounds) => Ok(Some(rounds)),
        None => Err(Report::new(
            Code::Usage,
            format!("{ROUNDS_VARIABLE} is {said:?}"),
            "it takes a whole number from 2 to 1000",
            format!("unset {ROUNDS_VARIABLE}"),
        )),
    }
}

impl Figures {
    fn json(&self) -> Value {
        let parties = self.participants.iter().map(|one| {
            json!({
                "party": one.party, "standing": one.standing, "taken": one.taken, "late": one.late,
                "missed": one.missed, "examples": one.examples, "share": one.share,
                "round_ms": one.whole_ms(),
            })
        });
        let parties: Vec<Value> = parties.collect();
        json!({
            "nodes": NODES.len(), "accuracy": self.accuracy, "rounds": self.rounds,
            "leader_kills": self.leader_kills, "seconds": self.took_ms as f64 / 1000.0,
            "election_ms": self.election_ms, "failover_ms": self.failover_ms,
            "resume_ms": self.resume_ms, "return_ms": self.return_ms, "took_ms": self.took_ms,
            "parties": parties,
        })
    }
}

/// What there is to say in the end.
fn text(figures: &Figures, timeline: &str, wide: Option<usize>, paint: Paint) -> String {
    let Figures { election_ms, failover_ms, resume_ms, return_ms, .. } = figures;
    let mut text = format!(
        "{} of 10,000 test images are recognised, after {} rounds and {:.0} s. No image left its party.\n\n",
        percent(figures.accuracy),
        figures.rounds,
        figures.took_ms as f64 / 1000.0
    );
    text += &contributions(&figures.participants).render(wide, paint);
    text += &format!(
        "\nHalf way the leader was killed with SIGKILL.\n  {election_ms:>6} ms  until another node led\n  \
         {failover_ms:>6} ms  until a write was acknowledged again\n  {resume_ms:>6} ms  until the next round \
         was committed\n  {return_ms:>6} ms  for the dead node to come back and catch up\n"
    );
    if !timeline.is_empty() {
        text += &format!("\n{timeline}");
    }
    let steps = [
        ("mesh init --party NAME", "the first machine; prints a ticket for the others"),
        ("mesh join TICKET", "every other; of another party: mesh ticket new --new-party"),
        ("mesh data push DIR --name mnist", "at every party, which keeps it to itself"),
        ("mesh job new federated > job.toml", "this training, to be changed"),
        ("mesh submit job.toml", "and watch it"),
    ];
    text + &next(&steps.map(|(command, what)| (command.to_owned(), what)))
}

/// Who gave how much, and who was slow.
fn contributions(participants: &[Participant]) -> Table {
    let mut table = Table::new(&[
        Column::new("PARTY"),
        Column::new("DIGITS"),
        Column::new("UPDATES").right(),
        Column::new("LATE").right(),
        Column::new("MISSED").right(),
        Column::new("SHARE").right(),
        Column::new("A ROUND").right(),
        Column::new("STANDING"),
    ]);
    for one in participants {
        let at = NODES.iter().position(|(_, party)| *party == one.party);
        let tint = if one.standing == "good" { Tint::Good } else { Tint::Odd };
        table.row([
            one.party.as_str().into(),
            at.map(|at| digits::WHICH[at]).unwrap_or_default().into(),
            one.taken.to_string().into(),
            one.late.to_string().into(),
            one.missed.to_string().into(),
            format!("{:.0} %", one.share * 100.0).into(),
            format!("{} ms", one.whole_ms()).into(),
            Cell::new(&one.standing, tint),
        ]);
    }
    table
}

/// What happened when, round by round left out: the picture is gone by the time somebody reads it.
fn timeline(scene: &Scene) -> String {
    let told = scene.events.iter().filter(|event| event.kind != "round");
    let lines = told.map(|event| {
        format!("{:>7.2} s  {}\n", event.at_ms as f64 / 1000.0, crate::view::clean(&event.text))
    });
    lines.collect()
}

/// Three nodes, and what is seen of them. Dropped, it leaves no process and no file.
struct Stage {
    // Before `home`: the nodes are gone before their files are.
    nodes: RefCell<[Option<Background>; 3]>,
    scene: RefCell<Scene>,
    /// The job, once it is submitted.
    job: RefCell<Option<String>>,
    /// Whoever writes there on another thread holds it, too.
    home: Arc<Home>,
    /// Filled at the end, and after `home`: so long no task can begin again that was only just being started.
    _held: Vec<File>,
}

/// A directory that is removed when it is no longer needed.
struct Home(PathBuf);

impl Home {
    /// What a party has, before it is pushed.
    fn data(&self, at: usize) -> PathBuf {
        self.0.join(format!("{}-data", NODES[at].1))
    }

    /// What the last model is measured with.
    fn judge(&self) -> PathBuf {
        self.0.join("judge")
    }

    /// Where the last model is laid out.
    fn model(&self) -> PathBuf {
        self.0.join("model")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Nothing of theirs is kept, so nothing is gained by asking them politely.
        for node in self.nodes.get_mut().iter_mut().flatten() {
            node.kill();
        }
        if self.job.get_mut().is_some() {
            let dirs = [0, 1, 2].map(|at| self.place(at).dir);
            // On a thread of its own, because this one may be in the middle of a runtime.
            let ended = std::thread::spawn(move || end_tasks(&dirs)).join();
            self._held = ended.unwrap_or_default();
        }
    }
}

/// Ends what the nodes of these directories have left running.
fn end_tasks(dirs: &[PathBuf]) -> Vec<File> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    runtime.block_on(async {
        let mut held = Vec::new();
        for dir in dirs {
            held.extend(mesh_node::work::end_left(dir).await);
        }
        held
    })
}

impl Stage {
    fn new(mode: Mode, rounds: u32) -> Result<Self, Report> {
        let name = format!("mesh-demo-{:08x}", fastrand::u32(..));
        let home = std::env::temp_dir().join(name);
        let unmade = |path: &Path, cause: String| {
            let message = format!("{} could not be made", path.display());
            Report::new(Code::Failed, message, cause, "set TMPDIR to a directory of yours")
        };
        let home = std::path::absolute(&home).map_err(|error| unmade(&home, error.to_string()))?;
        if home.to_str().is_none() {
            return Err(unmade(&home, "its name is not UTF-8".into()));
        }
        let make = |path: &Path| {
            let made = DirBuilder::new().mode(0o700).create(path);
            made.map_err(|error| unmade(path, error.to_string()))
        };
        make(&home)?;
        // From here on it is removed whatever happens.
        let home = Arc::new(Home(home));
        for dir in [home.data(0), home.data(1), home.data(2), home.judge()] {
            make(&dir)?;
        }
        let scene = RefCell::new(Scene::new(mode, NODES, rounds.into(), Instant::now()));
        let (nodes, job, held) = (RefCell::default(), RefCell::default(), Vec::new());
        Ok(Self { nodes, scene, job, home, _held: held })
    }

    fn place(&self, at: usize) -> Place {
        Place::named(self.home.0.join(NODES[at].0))
    }

    fn api(&self, at: usize) -> Api {
        Api::local(self.place(at))
    }

    fn says(
        &self,
        kind: &'static str,
        node: Option<usize>,
        text: impl Into<String>,
    ) -> Result<(), Report> {
        self.scene.borrow_mut().says(kind, node, text.into())
    }

    async fn start(&self, at: usize) -> Result<Status, Report> {
        let mut node = Background::start(&self.place(at), Tie::Leashed)?;
        let status = node.until_member(STARTING).await?.item()?;
        self.nodes.borrow_mut()[at] = Some(node);
        Ok(status)
    }

    /// Waits until the scene is as wanted.
    async fn until<T>(
        &self,
        patience: Duration,
        wanted: &str,
        look: impl Fn(&Scene) -> Option<T>,
    ) -> Result<T, Report> {
        let began = Instant::now();
        loop {
            if let Some(found) = look(&self.scene.borrow()) {
                return Ok(found);
            }
            if began.elapsed() > patience {
                let message = format!("{wanted}: not after {} s", patience.as_secs());
                return Err(self.failed(Code::Timeout, message));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The same for what the training comes to: it may also never be so.
    async fn until_trained<T>(
        &self,
        patience: Duration,
        wanted: &str,
        look: impl Fn(&Scene) -> Option<Result<T, String>>,
    ) -> Result<T, Report> {
        self.until(patience, wanted, look).await?.map_err(|why| {
            let report = self.failed(Code::Failed, format!("the training failed: {why}"));
            Report { message: crate::view::clean(&report.message), ..report }
        })
    }

    fn too_late(&self) -> Report {
        let message = format!("the demo did not come to its end within {} s", ALL.as_secs());
        self.failed(Code::Failed, message)
    }

    /// A failure, with what is seen as its cause.
    fn failed(&self, code: Code, message: String) -> Report {
        let cause = self.scene.borrow().in_words();
        Report::new(code, message, cause, "mesh doctor; then mesh demo again")
    }

    /// How the training goes, as the first of these nodes says that answers.
    async fn course(&self, from: &[usize]) -> Option<Course> {
        let path = format!("/v1/jobs/{}/course", self.job.borrow().as_deref()?);
        for at in from {
            let asked = timeout(LOOK_PATIENCE, self.api(*at).get(&path)).await;
            let course = asked.ok().and_then(Result::ok).and_then(|answer| answer.item().ok());
            if course.is_some() {
                return course;
            }
        }
        None
    }
}

/// Asks every node how it is, again and again, and somebody how the training goes.
async fn observe(stage: &Stage) {
    let apis = [0, 1, 2].map(|at| stage.api(at));
    let mut followed = Instant::now();
    loop {
        for (at, api) in apis.iter().enumerate() {
            let asked = timeout(LOOK_PATIENCE, api.get("/v1/status")).await;
            let status =
                asked.ok().and_then(Result::ok).and_then(|answer| answer.item::<Status>().ok());
            // Nobody reads any more: the story finds out by itself.
            let _ = stage.scene.borrow_mut().looked(at, status);
        }
        if followed.elapsed() >= FOLLOW_EVERY {
            followed = Instant::now();
            let is_up = |at: &usize| stage.scene.borrow().nodes[*at].status.is_some();
            let up: Vec<usize> = [2, 0, 1].into_iter().filter(is_up).collect();
            if let Some(course) = stage.course(&up).await {
                let _ = stage.scene.borrow_mut().followed(course);
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What an event looks like with `--json`.
fn event(kind: &str, node: Option<&str>, at_ms: u64, text: &str) -> Value {
    json!({ "schema": 1, "event": kind, "node": node, "at_ms": at_ms, "text": text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let one = |party: &str, standing: &str, compute_ms| Participant {
            party: party.into(),
            standing: standing.into(),
            taken: 40,
            share: 0.5,
            compute_ms: Some(compute_ms),
            ..Participant::default()
        };
        Figures {
            accuracy: 0.9653,
            rounds: 40,
            leader_kills: 1,
            election_ms: 300,
            failover_ms: 320,
            resume_ms: 900,
            return_ms: 1500,
            took_ms: 41_300,
            participants: vec![one("clinic-a", "good", 110), one("lab", "slow", 430)],
        }
    }

    #[test]
    fn the_end_tells_what_it_is_worth_who_gave_what_and_what_to_try() {
        let text = text(&figures(), "   1.00 s  it begins\n", None, Paint(false));
        for part in [
            "96.5 % of 10,000 test images",
            "after 40 rounds and 41 s",
            "lab       odd",
            "430 ms  slow",
            "   300 ms  until another node led",
            "   900 ms  until the next round",
            "1.00 s  it begins",
            "mesh submit job.toml",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn scripts_find_the_figures() {
        let item = figures().json();
        assert_eq!((&item["accuracy"], &item["rounds"]), (&json!(0.9653), &json!(40)));
        assert_eq!((&item["leader_kills"], &item["seconds"]), (&json!(1), &json!(41.3)));
        assert_eq!((&item["election_ms"], &item["took_ms"]), (&json!(300), &json!(41_300)));
        assert_eq!(item["parties"][1]["standing"], "slow");
    }

    #[test]
    fn a_shorter_run_is_asked_for_by_a_number() {
        assert_eq!(rounds(None).unwrap(), None);
        assert_eq!(rounds(Some("")).unwrap(), None);
        assert_eq!(rounds(Some("6")).unwrap(), Some(6));
        for wrong in ["1", "-2", "many", "100000"] {
            assert_eq!(rounds(Some(wrong)).unwrap_err().code, Code::Usage, "{wrong}");
        }
    }

    #[test]
    fn a_stage_leaves_no_file() {
        let stage = Stage::new(Mode::Lines, 6).unwrap();
        let home = stage.home.0.clone();
        assert!(home.join("lab-data").is_dir() && home.join("judge").is_dir());
        drop(stage);
        assert!(!home.exists());
    }
}
