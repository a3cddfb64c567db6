//! What happens in the demo, act by act.
//!
//! ```text
//! three nodes, three parties ─► each pushes what it has ─► the lab submits a training ─► half of the rounds
//!                                                                                          │ the leader is killed
//!   measured by the demo itself ◄─ the last model ◄─ all rounds ◄─ it comes back ◄─ another leads, rounds go on
//! ```

use std::sync::Arc;
use std::time::Duration;

use mesh_consensus::id::JobId;
use mesh_node::training::builtin::run::evaluate;
use mesh_node::training::builtin::settings::Settings;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::course::Participant;
use super::scene::{Scene, percent};
use super::{NODES, Stage, digits, millis};
use crate::answers::{Request, Ticket, plain};
use crate::client::{Answer, Api};
use crate::commands::data::flow::{self, Line};
use crate::commands::init::{Init, Setup, found};
use crate::commands::join::{Join, admitted};
use crate::report::{Code, Report};
use crate::value::Address;

/// Each act has its own time.
pub(super) const STARTING: Duration = Duration::from_secs(10);
const JOINING: Duration = Duration::from_secs(20);
const AGREEING: Duration = Duration::from_secs(20);
const PUSHING: Duration = Duration::from_secs(30);
const SUBMITTING: Duration = Duration::from_secs(20);
const TRAINING: Duration = Duration::from_secs(120);
const FAILING_OVER: Duration = Duration::from_secs(10);
/// A coordinator that died has a lease, which has to run out.
const RESUMING: Duration = Duration::from_secs(40);
const RETURNING: Duration = Duration::from_secs(15);
const PULLING: Duration = Duration::from_secs(20);
/// How long the last tasks may take to end by themselves.
const ENDING: Duration = Duration::from_secs(3);
/// How long the last picture stays.
const BOW: Duration = Duration::from_secs(2);

/// The party that submits, and is slow: the last one.
const LAB: usize = 2;
/// How many times as long its training takes as it could.
const SLOWDOWN: f64 = 4.0;
/// What the job and its model are called.
const JOB: &str = "mnist-mlp";

/// What was measured.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    /// Which share of the whole test set the last model recognises.
    pub(super) accuracy: f64,
    /// How many rounds are in it.
    pub(super) rounds: u64,
    pub(super) leader_kills: u32,
    /// From the kill until another node says that it leads.
    pub(super) election_ms: u64,
    /// From the kill until a write is acknowledged.
    pub(super) failover_ms: u64,
    /// From the kill until the next round is committed.
    pub(super) resume_ms: u64,
    /// Until the dead node is back and knows all that was agreed.
    pub(super) return_ms: u64,
    pub(super) took_ms: u64,
    /// What came of each party.
    pub(super) participants: Vec<Participant>,
}

/// The training. Nobody has all digits, so what one party learns pulls the model away from what the others know: a rate that fades
/// and momentum on the server settle that. Any of the three may sum, so that whoever lives goes on.
fn job(rounds: u64) -> String {
    let aggregators = NODES.map(|(_, party)| format!("{party:?}")).join(", ");
    format!(
        r#"
name = "{JOB}"
kind = "federated"

[run]
trainer = "mlp"

[params]
lr = 0.05
momentum = 0.9
fade = 0.975
batch = 32
images = 3000

[data]
train = "each/mnist"

[federated]
parties = "each"
rounds = {rounds}
min_parties = 2
aggregators = [{aggregators}]
strategy = "diloco"

[federated.diloco]
rate = 0.7
momentum = 0.8

[resources]
cpus = 1
memory = "512MiB"
"#
    )
}

pub(super) async fn story(stage: &Stage) -> Result<Figures, Report> {
    let began = Instant::now();
    let home = Arc::clone(&stage.home);
    // While the nodes start.
    let laid_out = spawn_blocking(move || {
        let parties = [0, 1, 2].map(|at| home.data(at));
        digits::lay_out(&parties, &home.judge(), (LAB, SLOWDOWN))
    });
    found_parties(stage).await?;
    let (leader, _) =
        stage.until(AGREEING, "three voters that agree on a leader", Scene::agreed).await?;
    let name = NODES[leader].0;
    stage.says("agreed", Some(leader), format!("all three vote and follow {name}"))?;

    let laid_out = laid_out.await.map_err(|error| ended_badly("MNIST", &error.to_string()))?;
    laid_out.map_err(|error| Report::failed(&error, "set TMPDIR to a directory with room"))?;
    let pushed = tokio::join!(push(stage, 0), push(stage, 1), push(stage, 2));
    pushed.0.and(pushed.1).and(pushed.2)?;
    submit(stage).await?;

    let rounds = stage.scene.borrow().rounds;
    let half = |scene: &Scene| scene.reached(rounds / 2);
    stage.until_trained(TRAINING, "half of the rounds", half).await?;
    let lost = lose_leader(stage).await?;
    let return_ms = bring_back(stage, lost.leader).await?;

    stage.until_trained(TRAINING, "all rounds", Scene::ended).await?;
    let accuracy = measure(stage).await?;
    stage.scene.borrow_mut().accuracy = Some(accuracy);
    let done = format!("{} of the 10,000 test images are recognised", percent(accuracy));
    stage.says("trained", Some(LAB), done)?;
    let took_ms = millis(began);
    // Whoever does not end by itself is ended with its node.
    let over =
        |scene: &Scene| scene.course.as_ref().is_some_and(|course| course.is_final).then_some(());
    let _ = stage.until(ENDING, "the end of all tasks", over).await;
    stage.scene.borrow_mut().over();
    if stage.scene.borrow().is_watched() {
        sleep(BOW).await;
    }
    let scene = stage.scene.borrow();
    let participants = scene.course.as_ref().map(|course| course.participants.clone());
    Ok(Figures {
        accuracy,
        rounds: scene.committed().unwrap_or_default(),
        leader_kills: 1,
        election_ms: lost.election_ms,
        failover_ms: lost.failover_ms,
        resume_ms: lost.resume_ms,
        return_ms,
        took_ms,
        participants: participants.unwrap_or_default(),
    })
}

/// The first node founds the mesh with its party; each further one comes with a party of its own, once those that are there agree.
async fn found_parties(stage: &Stage) -> Result<(), Report> {
    let setup = |at: usize| Setup {
        name: Some(NODES[at].0.into()),
        listen: vec![Address { ip: std::net::Ipv4Addr::LOCALHOST.into(), port: Some(0) }],
        ..Setup::default()
    };
    let (name, party) = NODES[0];
    stage.says("founding", Some(0), format!("{name} founds a mesh, for the party {party}"))?;
    let init = Init { party: Some(party.into()), setup: setup(0) };
    found(&stage.place(0), &init).await?;
    stage.start(0).await?;
    for at in [1, 2] {
        let ticket = ticket(stage, &[0], STARTING, true).await?;
        let (name, party) = NODES[at];
        stage.says("joining", Some(at), format!("{name} joins, with the party {party}"))?;
        let join = Join { ticket: ticket.clone(), party: Some(party.into()), setup: setup(at) };
        let place = stage.place(at);
        let joining = timeout(JOINING, admitted(&place, &ticket, &join, |_| {}));
        tokio::select! {
            joined = joining => joined.unwrap_or_else(|_| {
                let message = format!("{name} has not joined after {} s", JOINING.as_secs());
                Err(stage.failed(Code::Timeout, message))
            })?,
            report = agree(stage, at) => return Err(report),
        }
        stage.start(at).await?;
    }
    for (at, (name, _)) in NODES.into_iter().enumerate() {
        // A party's own word that its node may train for others.
        let path = format!("/v1/nodes/{name}/labels");
        let body = json!({ "set": { "trains": "all" } });
        surely(&stage.api(at), &path, body, AGREEING).await?;
    }
    Ok(())
}

/// Lets those who are there already agree to a new party, for as long as it is asked. The one that made the ticket has agreed.
async fn agree(stage: &Stage, newcomer: usize) -> Report {
    loop {
        for (at, (_, party)) in NODES.into_iter().enumerate().take(newcomer).skip(1) {
            let api = stage.api(at);
            let open: Vec<Request> = match api.get("/v1/requests").await {
                Ok(answer) => answer.items().unwrap_or_default(),
                // It is asked again.
                Err(_) => continue,
            };
            let waits = |request: &&Request| !request.granted.iter().any(|yes| plain(yes) == party);
            for request in open.iter().filter(waits) {
                let path = format!("/v1/requests/{}/grant", plain(&request.id));
                if api.post(&path, json!({})).await.is_err() {
                    continue;
                }
                let text = format!("{party} agrees that {} comes", NODES[newcomer].1);
                if let Err(report) = stage.says("consent", Some(at), text) {
                    return report;
                }
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Makes a party's digits a dataset that only that party can read.
async fn push(stage: &Stage, at: usize) -> Result<(), Report> {
    let path = stage.home.data(at);
    // There is one node in the party, and no other may hold it.
    let body = json!({ "path": path.to_str(), "name": "mnist", "copies": 1 });
    carry(&stage.api(at), "/v1/data/push", body, PUSHING).await?;
    // It is in the node's store now.
    let _ = std::fs::remove_dir_all(&path);
    let (name, party) = NODES[at];
    let which = digits::WHICH[at];
    stage.says("pushed", Some(at), format!("{party} puts its digits ({which}) on {name}: private"))
}

/// Does something with data on a node, to its end.
async fn carry(api: &Api, path: &str, body: Value, patience: Duration) -> Result<Answer, Report> {
    let moved = async {
        let mut lines = api.post_lines(path, body).await?;
        while let Some(line) = lines.next().await? {
            if let Line::Done(answer) = flow::read(&line)? {
                return Ok(answer);
            }
        }
        Err(ended_badly(path, "the node did not say how it went"))
    };
    let late = |_| Err(ended_badly(path, &format!("it took more than {} s", patience.as_secs())));
    timeout(patience, moved).await.unwrap_or_else(late)
}

/// Asks a node for something that may be asked for twice. What it does not know yet, it may know a moment later.
async fn surely(api: &Api, path: &str, body: Value, patience: Duration) -> Result<(), Report> {
    let began = Instant::now();
    loop {
        match api.post(path, body.clone()).await {
            Ok(_) => return Ok(()),
            Err(report) if began.elapsed() > patience => return Err(report),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Submits the training at the lab.
async fn submit(stage: &Stage) -> Result<(), Report> {
    let id = JobId(mesh_node::random());
    let rounds = stage.scene.borrow().rounds;
    // Known before it is there: so no task of it is left over.
    *stage.job.borrow_mut() = Some(id.to_string());
    let body = json!({ "file": job(rounds), "user": "demo", "id": id });
    surely(&stage.api(LAB), "/v1/jobs", body, SUBMITTING).await?;
    let text = format!("{} submits {JOB}: {rounds} rounds, with all three parties", NODES[LAB].1);
    stage.says("submitted", Some(LAB), text)
}

/// What it cost to lose the leader.
struct Lost {
    leader: usize,
    election_ms: u64,
    failover_ms: u64,
    resume_ms: u64,
}

/// Kills the leader, and waits until all goes on without it.
async fn lose_leader(stage: &Stage) -> Result<Lost, Report> {
    let (leader, term) = stage.until(AGREEING, "a leader to kill", Scene::agreed).await?;
    let others: Vec<usize> = (0..NODES.len()).filter(|at| *at != leader).collect();
    let name = NODES[leader].0;
    let killed = Instant::now();
    if let Some(node) = &mut stage.nodes.borrow_mut()[leader] {
        node.kill();
    }
    stage.scene.borrow_mut().killed(leader);
    stage.says("killed", Some(leader), format!("{name}, which leads, is killed with SIGKILL"))?;
    // What was committed before is not counted as done without it.
    let stood = stage.course(&others).await.and_then(|course| course.round);
    let stood = stood.or_else(|| stage.scene.borrow().committed()).unwrap_or_default();
    // All at once: who leads is seen by the observer while a write is tried.
    let (elected, written, resumed) = tokio::join!(
        async {
            let led = |scene: &Scene| scene.leader_after(term);
            let next = stage.until(FAILING_OVER, "another leader", led).await?;
            Ok::<_, Report>((next, millis(killed)))
        },
        async {
            ticket(stage, &others, FAILING_OVER, false).await?;
            let ms = millis(killed);
            stage.scene.borrow_mut().failover(ms);
            let text = format!("a write is acknowledged {ms} ms after the kill");
            stage.says("failover", None, text)?;
            Ok::<_, Report>(ms)
        },
        async {
            let goes_on = |scene: &Scene| scene.reached((stood + 1).min(scene.rounds));
            let round = stage.until_trained(RESUMING, "another round", goes_on).await?;
            let ms = millis(killed);
            let text = format!("round {round} is committed without {name}, {ms} ms after the kill");
            stage.says("resumed", None, text)?;
            Ok::<_, Report>(ms)
        }
    );
    let ((next, seen_ms), failover_ms, resume_ms) = (elected?, written?, resumed?);
    // Where a write is acknowledged there is a leader, seen or not.
    let election_ms = seen_ms.min(failover_ms);
    let text = format!("{} was elected in {election_ms} ms", NODES[next].0);
    stage.says("elected", Some(next), text)?;
    Ok(Lost { leader, election_ms, failover_ms, resume_ms })
}

/// Starts a dead node again; how long it takes to know what was agreed without it.
async fn bring_back(stage: &Stage, at: usize) -> Result<u64, Report> {
    let back = Instant::now();
    let name = NODES[at].0;
    stage.says("restarting", Some(at), format!("{name} is started again"))?;
    stage.start(at).await?;
    stage.until(RETURNING, "the dead node caught up", |scene| scene.caught_up(at)).await?;
    let return_ms = millis(back);
    stage.says("returned", Some(at), format!("{name} knows all that was agreed without it"))?;
    Ok(return_ms)
}

/// Fetches the last model, and measures it with the whole test set.
async fn measure(stage: &Stage) -> Result<f64, Report> {
    let (dir, wait_ms) = (stage.home.model(), PULLING.as_millis() as u64);
    let body = json!({ "ref": JOB, "dir": dir.to_str(), "writable": true, "wait_ms": wait_ms });
    carry(&stage.api(LAB), "/v1/data/pull", body, PULLING).await?;
    let home = Arc::clone(&stage.home);
    let measured = spawn_blocking(move || {
        // All images that are there are for measuring.
        let all = |name: &str| (name == "MESH_PARAM_HOLDOUT").then(|| "0".to_owned());
        let settings = Settings::read("mlp", all)?;
        evaluate(&settings, &home.model().join("model.safetensors"), &home.judge())
    });
    let measured = measured.await.map_err(|error| ended_badly("the model", &error.to_string()))?;
    let hint = "mesh demo again; then please report it";
    let score = measured.map_err(|error| Report::failed(&error.into(), hint))?;
    if score.examples != 10_000 {
        let cause = format!("there are {} test images instead of 10,000", score.examples);
        return Err(ended_badly("the model", &cause));
    }
    Ok(score.accuracy)
}

/// A ticket from the first of these nodes that can make one: a write that all have to agree on.
async fn ticket(
    stage: &Stage,
    from: &[usize],
    patience: Duration,
    new_party: bool,
) -> Result<String, Report> {
    let began = Instant::now();
    let mut last = None;
    while began.elapsed() < patience {
        for at in from {
            let body = json!({ "ttl_ms": 600_000, "uses": 1, "new_party": new_party });
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

fn ended_badly(what: &str, cause: &str) -> Report {
    Report::new(Code::Failed, format!("{what} came to nothing"), cause, "mesh demo again")
}

#[cfg(test)]
mod tests {
    use mesh_node::job::file::JobFile;
    use mesh_node::state::name::Name;

    use super::*;

    #[test]
    fn the_job_is_one_that_can_be_submitted() {
        let file = JobFile::parse(&job(40)).unwrap();
        assert!(file.is_federated());
        let known: Vec<Name> = NODES.iter().map(|(_, party)| party.parse().unwrap()).collect();
        assert_eq!(file.participants(&known).unwrap().len(), 3);
    }
}
