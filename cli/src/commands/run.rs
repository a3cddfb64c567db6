//! `mesh run`: a shell or a command somewhere in the mesh, for as long as somebody looks.
//!
//! It is a job of one task that waits to be stopped, and a command in it: see [`super::exec`].

use std::pin::pin;
use std::time::Duration;

use mesh_consensus::id::JobId;
use serde_json::{Value, json};

use super::exec::{How, session};
use super::image::image_name;
use super::stopped;
use crate::client::{Api, broken};
use crate::context::{Context, note};
use crate::report::{Code, Outcome, Report};
use crate::task::Task;
use crate::value;
use crate::view::clean;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh run -it                                     a shell, as a plain process on any node with room
  mesh run -it python:3.12                         in a container
  mesh run -it python:3.12 --gpus 1 --memory 16GiB -- python
  mesh run --cpus 4 --data train=mnist -- sh -c 'ls /data/train | wc -l'

The command runs in a job of its own (mesh jobs shows it), with input and terminal as in mesh exec:
-i passes on what is typed, -t gives it a terminal. The job ends with the command, and what was
written there goes with it: mesh cp takes it out before that. Exits with the command's own code.";

/// What the task does: it waits, and hears when it is to end.
const WAITS: &str = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done";
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// What runs in it if nothing is said.
const SHELL: &str = "/bin/sh";

/// What `run` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The container image [default: a plain process]
    #[arg(value_name = "IMAGE", value_parser = image_name)]
    image: Option<String>,
    /// How it is connected.
    #[command(flatten)]
    how: How,
    /// What the job is called
    #[arg(long, value_name = "NAME", default_value = "run", value_parser = value::name)]
    name: String,
    /// CPU cores: 2, 0.5, 2..8
    #[arg(long, value_name = "N", value_parser = amount)]
    cpus: Option<String>,
    /// Memory: 8GiB
    #[arg(long, value_name = "SIZE", value_parser = amount)]
    memory: Option<String>,
    /// GPUs: 1, 1..4, 24GB.., H100:2
    #[arg(long, value_name = "GPUS", value_parser = amount)]
    gpus: Option<String>,
    /// A dataset that it sees at /data/NAME; may be repeated
    #[arg(long, value_name = "NAME=REF", value_parser = mount)]
    data: Vec<(String, String)>,
    /// What to run [default: /bin/sh]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What stands in a job.toml for an amount. Whether it is one is for the node to say, with a better word than ours.
fn amount(word: &str) -> Result<String, String> {
    let fits =
        !word.is_empty() && word.chars().all(|c| c.is_ascii_graphic() && !"\"\\'".contains(c));
    match fits {
        true => Ok(word.to_owned()),
        false => Err("it takes an amount, as it stands in a job.toml: 2, 8GiB, 1..4".into()),
    }
}

/// `train=mnist@3`.
fn mount(word: &str) -> Result<(String, String), String> {
    let rule = "it takes NAME=REF: a name for it in the task, and a dataset, as in train=mnist@3";
    let (name, data) = word.split_once('=').ok_or(rule)?;
    let name = value::name(name).map_err(|_| rule)?;
    let data: value::DataRef = data.parse().map_err(|_| rule)?;
    Ok((name, data.to_string()))
}

pub(crate) async fn run(run: &Run, context: &Context) -> Outcome {
    let shell = [SHELL.to_owned()];
    let command = match run.command.as_slice() {
        [] if !run.how.interactive => {
            return Err(Report::new(
                Code::Usage,
                "there is nothing to run",
                "without -i a shell would have nothing to read",
                "mesh run -it, or mesh run -- COMMAND",
            ));
        }
        [] => &shell[..],
        command => command,
    };
    let api = context.api()?;
    let id = JobId(mesh_node::random());
    let task =
        Task { job: id.to_string(), name: run.name.clone(), number: Some(0), groups: vec![] };
    let body = json!({ "file": file(run), "id": id, "user": user() });
    let mut stop = pin!(stopped());
    let begun = tokio::select! {
        begun = begin(&api, body, &task, context) => begun,
        () = &mut stop => Err(Begun::Perhaps(Report::new(
            Code::Interrupted,
            "interrupted",
            "the job did not run yet",
            "the same again",
        ))),
    };
    let outcome = match begun {
        Ok(()) => session(&api, &task, command, run.how, context).await,
        Err(Begun::Not(report)) => return Err(report),
        Err(Begun::Perhaps(report)) => Err(report),
    };
    // Whatever came of it.
    if let Err(report) = api.post(&format!("/v1/jobs/{id}/stop"), json!({})).await
        && report.code != Code::NotFound
    {
        let cause = clean(&report.message);
        note(&format!("the job could not be stopped ({cause}): mesh stop {}", id.short()));
    }
    outcome
}

/// Who runs it, for people.
fn user() -> String {
    clean(&std::env::var("USER").unwrap_or_default()).chars().take(32).collect()
}

/// Why a job does not run, and whether it may be there.
enum Begun {
    Not(Report),
    Perhaps(Report),
}

/// Submits the job, and waits until it runs.
async fn begin(api: &Api, body: Value, task: &Task, context: &Context) -> Result<(), Begun> {
    api.post_surely("/v1/jobs", body, PATIENCE).await.map_err(|report| match report.code {
        Code::Timeout | Code::Unavailable | Code::NoLeader => Begun::Perhaps(report),
        _ => Begun::Not(report),
    })?;
    until_running(api, task, context).await.map_err(Begun::Perhaps)
}

async fn until_running(api: &Api, task: &Task, context: &Context) -> Result<(), Report> {
    let mut lines = api.lines(&format!("/v1/jobs/{}/watch", task.job)).await?;
    let mut said = String::new();
    while let Some(line) = lines.next().await? {
        let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
        let item = &line["item"];
        let state = item["state"].as_str().unwrap_or_default();
        if state == "running" {
            return Ok(());
        }
        let reason = item["reason"].as_str().unwrap_or_default();
        if item["is_final"].as_bool() == Some(true) {
            let cause = if reason.is_empty() { "no reason is known" } else { reason };
            let hint = format!("mesh job show {}", task.job.get(..8).unwrap_or_default());
            return Err(Report::new(Code::Failed, format!("the job is {state}"), cause, hint));
        }
        let node = item["tasks"][0]["node"].as_str().unwrap_or_default();
        let now = progress(state, reason, node);
        if now != said && !context.json {
            note(&now);
            said = now;
        }
    }
    Err(broken("it ended before the job ran"))
}

/// `fetching on alpha`, `waiting: …`.
fn progress(state: &str, reason: &str, node: &str) -> String {
    let place = if node.is_empty() { String::new() } else { format!(" on {node}") };
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    clean(&format!("{state}{place}{reason}"))
}

/// The job.toml of it.
fn file(run: &Run) -> String {
    let mut text = format!("name = {}\n\n[run]\n", quoted(&run.name));
    text += &format!("command = [{}, \"-c\", {}]\n", quoted(SHELL), quoted(WAITS));
    if let Some(image) = &run.image {
        text += &format!("image = {}\n", quoted(image));
    }
    let resources = [("cpus", &run.cpus), ("memory", &run.memory), ("gpus", &run.gpus)];
    let resources = resources.into_iter().filter_map(|(key, amount)| {
        Some(format!("{key} = {}\n", number_or_text(amount.as_ref()?)))
    });
    let resources: String = resources.collect();
    if !resources.is_empty() {
        text += &format!("\n[resources]\n{resources}");
    }
    if !run.data.is_empty() {
        text += "\n[data]\n";
        for (name, data) in &run.data {
            text += &format!("{} = {}\n", quoted(name), quoted(data));
        }
    }
    // Nobody waits for it once it was asked to end.
    text + "\n[preempt]\ngrace = \"5s\"\n"
}

/// A number as a number, and anything else as text.
fn number_or_text(amount: &str) -> String {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let is_number = amount.chars().all(is_digit) && amount.parse::<f64>().is_ok();
    let is_whole = amount.starts_with(|c: char| c.is_ascii_digit()) && !amount.ends_with('.');
    if is_number && is_whole { amount.to_owned() } else { quoted(amount) }
}

/// Text as it stands in TOML: what JSON writes is read there as well.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use mesh_node::job::JobFile;

    use super::*;
    use crate::args::{Args, Command};

    fn parsed(line: &str) -> Run {
        match Args::try_parse_from(line.split(' ')).unwrap().command {
            Some(Command::Run(run)) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_typed_becomes_a_job() {
        for line in [
            "mesh run -it",
            "mesh run -it python:3.12 --name try --gpus H100:2 --memory 8GiB..16GiB -- python -i",
            "mesh run --cpus 0.5 --gpus 1 --data train=mnist@3 --data lab=clinic-a/xray -- true",
            "mesh run --cpus 2..8 -- true",
        ] {
            let text = file(&parsed(line));
            let read = JobFile::parse(&text);
            assert!(read.is_ok(), "{line}:\n{text}\n{:?}", read.err().map(|e| e.told("job.toml")));
        }
        let run = parsed("mesh run -it python:3.12 -- python -i");
        assert!(run.how.interactive && run.how.tty);
        assert_eq!(run.image.as_deref(), Some("python:3.12"));
        assert_eq!(run.command, ["python", "-i"]);
    }

    #[test]
    fn numbers_are_numbers_and_the_rest_is_text() {
        for (word, written) in [
            ("2", "2"),
            ("0.5", "0.5"),
            ("1..4", "\"1..4\""),
            ("24GB..", "\"24GB..\""),
            ("1.", "\"1.\""),
        ] {
            assert_eq!(number_or_text(word), written);
        }
        for word in ["", "a b", "\"", "a\\", "1\n2"] {
            assert!(amount(word).is_err(), "{word:?}");
        }
        assert!(mount("train=mnist@3").is_ok());
        for word in ["train", "=x", "Train=x", "train=", "train=../x"] {
            assert!(mount(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn how_it_goes_is_one_line() {
        assert_eq!(progress("fetching", "", "alpha"), "fetching on alpha");
        assert_eq!(progress("waiting", "no\nroom", ""), "waiting: no room");
    }
}
