//! `mesh demo`: a whole mesh on this machine, in under half a minute.
//!
//! ```text
//! story ──► stage (three real nodes in a temporary directory) ◄── observe (asks each, many times a second)
//!                └──► scene (what was seen) ──► picture, or lines
//! ```
//!
//! The nodes are processes of their own, started as `mesh up` is, and killed as a power cut would.
//! They die with the demo, however it ends.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::init::{Init, Setup, found};
use super::join::{Join, admitted};
use crate::answers::{Status, Ticket};
use crate::background::{Background, Tie};
use crate::client::Api;
use crate::context::{Context, Place, print, print_item};
use crate::report::{Code, Outcome, Report};
use crate::value::Address;
use scene::{Mode, Scene};

mod picture;
mod scene;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh demo                      watch it
  mesh demo --json               one object per event, and the figures last
  mesh demo | cat                as plain lines

Three nodes start on the loopback interface and agree on a leader. The leader is killed with
SIGKILL; the other two elect another, and the dead one comes back. Nothing is left behind.";

/// What the three are called.
const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
/// Each act has its own time, and all of them together stay under half a minute.
const STARTING: Duration = Duration::from_secs(6);
const AGREEING: Duration = Duration::from_secs(8);
const FAILING_OVER: Duration = Duration::from_secs(8);
const RETURNING: Duration = Duration::from_secs(6);
/// How long the last picture stays.
const BOW: Duration = Duration::from_secs(2);
/// How often each node is asked; the election is measured no finer than this.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A node that takes longer to answer is not looked at this time.
const LOOK_PATIENCE: Duration = Duration::from_millis(300);

/// What was measured.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// From the kill until another node says that it leads.
    election_ms: u64,
    /// From the kill until a write is acknowledged.
    failover_ms: u64,
    /// Until the dead node is back and knows all that was agreed.
    return_ms: u64,
    took_ms: u64,
}

pub(crate) async fn run(context: &Context) -> Outcome {
    context.only_here("demo")?;
    let mode = match (context.json, std::io::stdout().is_terminal()) {
        (true, _) => Mode::Json,
        (false, true) => Mode::Picture,
        (false, false) => Mode::Lines,
    };
    let stage = Stage::new(mode)?;
    // The first to end decides; the others are dropped, and the stage is cleared after them.
    let outcome = tokio::select! {
        outcome = story(&stage) => outcome,
        () = observe(&stage) => unreachable!("it looks for as long as there is a story"),
        report = picture::show(&stage, mode) => Err(report),
    };
    drop(stage);
    let Figures { election_ms, failover_ms, return_ms, took_ms } = outcome?;
    if context.json {
        return print_item(&json!({
            "nodes": NAMES.len(), "election_ms": election_ms, "failover_ms": failover_ms,
            "return_ms": return_ms, "took_ms": took_ms,
        }));
    }
    print(&format!(
        "Three nodes agreed; the leader was killed with SIGKILL.\n  {election_ms:>6} ms  until another node led\n  \
         {failover_ms:>6} ms  until a write was acknowledged again\n  {return_ms:>6} ms  for the dead node to come \
         back and catch up\nNext: mesh init on a machine, mesh join on the others.\n"
    ))
}

/// Three nodes, and what is seen of them. Dropped, it leaves no process and no file.
struct Stage {
    // Before `home`: the nodes are gone before their files are.
    nodes: RefCell<[Option<Background>; 3]>,
    scene: RefCell<Scene>,
    home: Home,
}

/// A directory that is removed when it is no longer needed.
struct Home(PathBuf);

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
    }
}

impl Stage {
    fn new(mode: Mode) -> Result<Self, Report> {
        let home = std::env::temp_dir().join(format!("mesh-demo-{:08x}", fastrand::u32(..)));
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .create(&home)
            .map_err(|error| {
                let message = format!("{} could not be made", home.display());
                Report::new(
                    Code::Failed,
                    message,
                    error.to_string(),
                    "set TMPDIR to a directory of yours",
                )
            })?;
        let scene = RefCell::new(Scene::new(mode, NAMES, Instant::now()));
        Ok(Self { nodes: RefCell::default(), scene, home: Home(home) })
    }

    fn place(&self, at: usize) -> Place {
        Place::named(self.home.0.join(NAMES[at]))
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
                let cause = self.scene.borrow().in_words();
                return Err(Report::new(
                    Code::Timeout,
                    message,
                    cause,
                    "mesh doctor; then mesh demo again",
                ));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn story(stage: &Stage) -> Result<Figures, Report> {
    let began = Instant::now();
    stage.says("founding", Some(0), "alpha founds a mesh")?;
    let setup = |at: usize| Setup {
        name: Some(NAMES[at].into()),
        listen: vec![Address { ip: std::net::Ipv4Addr::LOCALHOST.into(), port: Some(0) }],
        ..Setup::default()
    };
    found(&stage.place(0), &Init { party: Some("demo".into()), setup: setup(0) }).await?;
    stage.start(0).await?;
    for at in [1, 2] {
        let ticket = ticket(stage, &[0], STARTING).await?;
        stage.says("joining", Some(at), format!("{} joins with a ticket", NAMES[at]))?;
        let join = Join { ticket: ticket.clone(), party: None, setup: setup(at) };
        admitted(&stage.place(at), &ticket, &join, |_| {}).await?;
        stage.start(at).await?;
    }
    let (leader, term) =
        stage.until(AGREEING, "three voters that agree on a leader", Scene::agreed).await?;
    stage.says("agreed", Some(leader), format!("all three vote and follow {}", NAMES[leader]))?;
    // Long enough to be seen.
    sleep(Duration::from_millis(800)).await;

    let others: Vec<usize> = (0..NAMES.len()).filter(|at| *at != leader).collect();
    let killed = Instant::now();
    if let Some(node) = &mut stage.nodes.borrow_mut()[leader] {
        node.kill();
    }
    stage.scene.borrow_mut().killed(leader);
    stage.says("killed", Some(leader), format!("{} is killed with SIGKILL", NAMES[leader]))?;
    // Both at once: who leads is seen by the observer while a write is tried.
    let (elected, written) = tokio::join!(
        async {
            let led = |scene: &Scene| scene.leader_after(term);
            let next = stage.until(FAILING_OVER, "another leader", led).await?;
            Ok::<_, Report>((next, millis(killed)))
        },
        async {
            ticket(stage, &others, FAILING_OVER).await?;
            Ok::<_, Report>(millis(killed))
        }
    );
    let ((next, seen_ms), failover_ms) = (elected?, written?);
    // Where a write is acknowledged there is a leader, seen or not.
    let election_ms = seen_ms.min(failover_ms);
    stage.scene.borrow_mut().failover(failover_ms);
    stage.says(
        "failover",
        Some(next),
        format!("a write is acknowledged {failover_ms} ms after the kill; {} leads", NAMES[next]),
    )?;

    let back = Instant::now();
    stage.says("restarting", Some(leader), format!("{} is started again", NAMES[leader]))?;
    stage.start(leader).await?;
    stage.until(RETURNING, "the dead node caught up", |scene| scene.caught_up(leader)).await?;
    let return_ms = millis(back);
    stage.says(
        "returned",
        Some(leader),
        format!("{} knows all that was agreed without it", NAMES[leader]),
    )?;
    let took_ms = millis(began);
    stage.scene.borrow_mut().over();
    if stage.scene.borrow().is_watched() {
        sleep(BOW).await;
    }
    Ok(Figures { election_ms, failover_ms, return_ms, took_ms })
}

/// A ticket from the first of these nodes that can make one: a write that all have to agree on.
async fn ticket(stage: &Stage, from: &[usize], patience: Duration) -> Result<String, Report> {
    let began = Instant::now();
    let mut last = None;
    while began.elapsed() < patience {
        for at in from {
            let body = json!({ "ttl_ms": 600_000, "uses": 1 });
            let asked = stage.api(*at);
            match timeout(patience.saturating_sub(began.elapsed()), asked.post("/v1/tickets", body))
                .await
            {
                Ok(Ok(answer)) => return Ok(answer.item::<Ticket>()?.ticket.unwrap_or_default()),
                Ok(Err(report)) => last = Some(report),
                Err(_) => {}
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    let cause = last.map_or("nobody answered".into(), |report: Report| report.message);
    let message = format!("no write was acknowledged within {} s", patience.as_secs());
    Err(Report::new(Code::Timeout, message, cause, "mesh doctor; then mesh demo again"))
}

/// Asks every node how it is, again and again.
async fn observe(stage: &Stage) {
    let apis = [0, 1, 2].map(|at| stage.api(at));
    loop {
        for (at, api) in apis.iter().enumerate() {
            let asked = timeout(LOOK_PATIENCE, api.get("/v1/status")).await;
            let status =
                asked.ok().and_then(Result::ok).and_then(|answer| answer.item::<Status>().ok());
            // Nobody reads any more: the story finds out by itself.
            let _ = stage.scene.borrow_mut().looked(at, status);
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
