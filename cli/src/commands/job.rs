//! `mesh job …`: one job; and `mesh help job.toml`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;

use clap::builder::{PossibleValue, PossibleValuesParser};
use mesh_node::job::help::{self, TEMPLATES};
use serde_json::json;

use super::{stopped, submit};
use crate::answers::Job;
use crate::context::{Context, print, print_item, print_json};
use crate::follow;
use crate::report::{Code, Outcome, Report};
use crate::value;
use crate::view::{clean, when};

mod show;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh job show 1a2b                        everything about one: its tasks, data and outputs
  mesh job retry mnist-cnn                  run it once more, as it was submitted
  mesh job rm 1a2b                          drop one that is over, and what it printed
  mesh job new gang > job.toml              a file to start from

A job is named by its id, the first four or more characters of it, or its name: of several with one
name the latest that is not over, or the latest. mesh jobs lists them; mesh submit makes one.";

const SHOW: &str = "\
Examples:
  mesh job show mnist-cnn
  mesh job show 1a2b --json | jq -r '.item.outputs[].ref'
  mesh job show 1a2b --json | jq '.item.course.participants[] | {party, standing, share}'";
const RM: &str = "\
Examples:
  mesh job rm 1a2b                          asks first
  mesh job rm 1a2b 7f3a --yes               does not ask

Only what is over can be dropped. The versions that it made stay.";
const RETRY: &str = "\
Examples:
  mesh job retry mnist-cnn                  follows the new job as mesh submit does
  mesh job retry 1a2b -d                    only submits it; prints its id

It is a new job with the same code, data, parameters and secrets. Exits as mesh submit does.";
const NEW: &str = "\
Examples:
  mesh job new                              print the simplest one
  mesh job new gang                         several workers that start together
  mesh job new federated                    several parties train one model, each on its own data
  mesh job new parameter-server             a model in shards on several nodes, and its workers
  mesh job new container -o job.toml        write it to a file

Every key is explained by mesh help job.toml.";

/// What can be done with a job.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Everything about a job
    #[command(after_help = SHOW)]
    Show {
        /// Which one
        #[arg(value_parser = value::job)]
        job: String,
    },
    /// Drop jobs that are over, and what they printed
    #[command(after_help = RM)]
    Rm {
        /// Which ones
        #[arg(required = true, value_name = "JOB", value_parser = value::job)]
        jobs: Vec<String>,
    },
    /// Submit a job that is over once more
    #[command(after_help = RETRY)]
    Retry {
        /// Which one
        #[arg(value_parser = value::job)]
        job: String,
        /// Return as soon as it is submitted, and print its id
        #[arg(long, short)]
        detach: bool,
    },
    /// A job.toml to start from
    #[command(after_help = NEW)]
    New {
        /// What for
        #[arg(default_value = TEMPLATES[0].kind, value_parser = kinds())]
        kind: String,
        /// Write it to this file, which must not be there yet
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

fn kinds() -> PossibleValuesParser {
    let kinds = TEMPLATES.iter();
    PossibleValuesParser::new(kinds.map(|one| PossibleValue::new(one.kind).help(one.says)))
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Show { job } => show::run(job, context).await,
        Verb::Rm { jobs } => rm(jobs, context).await,
        Verb::Retry { job, detach } => retry(job, *detach, context).await,
        Verb::New { kind, out } => new(kind, out.as_deref(), context),
    }
}

async fn rm(jobs: &[String], context: &Context) -> Outcome {
    let api = context.api()?;
    let now_ms = mesh_node::clock::now().0;
    let mut found: Vec<Job> = Vec::new();
    for wanted in jobs {
        let job: Job = api.get(&format!("/v1/jobs/{wanted}")).await?.item()?;
        if !found.iter().any(|known| known.id == job.id) {
            found.push(job);
        }
    }
    let named = found.iter().map(|job| match &job.ended_at {
        Some(time) => format!("{}, {} {}", job.called(), job.state, when(time, now_ms)),
        None => format!("{}, {}", job.called(), job.state),
    });
    let named: Vec<String> = named.collect();
    context.confirm(&clean(&format!("Drop {} and what was printed?", named.join("; "))))?;
    for job in &found {
        let answer = api.delete(&format!("/v1/jobs/{}", job.id)).await?;
        match context.json {
            true => print_json(answer.json())?,
            false => print(&format!("{} is dropped.\n", clean(&job.called())))?,
        };
    }
    Ok(std::process::ExitCode::SUCCESS)
}

async fn retry(job: &str, detach: bool, context: &Context) -> Outcome {
    let mut stop = pin!(stopped());
    let api = context.api()?;
    let path = format!("/v1/jobs/{job}/retry");
    let answer = tokio::select! {
        answer = api.post(&path, json!({})) => answer?,
        () = &mut stop => {
            let cause = "the node was asked, and no answer had come";
            let hint = "mesh jobs shows whether there is a new job";
            return Err(Report::new(Code::Interrupted, "interrupted", cause, hint));
        }
    };
    if detach {
        return submit::detached(&answer, context);
    }
    follow::attached(&api, context, &answer, None, stop).await
}

fn new(kind: &str, out: Option<&Path>, context: &Context) -> Outcome {
    let template = help::template(kind).expect("kinds() names those that have a template");
    let Some(out) = out else {
        if context.json {
            return print_item(&json!({ "kind": template.kind, "text": template.text }));
        }
        return print(template.text);
    };
    write(out, template.text)?;
    let shown = clean(&out.display().to_string());
    if context.json {
        return print_item(&json!({ "kind": template.kind, "path": shown }));
    }
    print(&format!("{shown} is {}. mesh submit {shown} runs it.\n", template.says))
}

fn write(path: &Path, text: &str) -> Result<(), Report> {
    let made = std::fs::File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    made.map_err(|error| {
        let message = format!("{} was not written", path.display());
        let (cause, hint) = match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                ("there is such a file, and it is left as it is".into(), "name another with --out")
            }
            _ => (error.to_string(), "name a file in a directory that is there"),
        };
        Report::new(Code::Failed, message, cause, hint)
    })
}

/// `mesh help job.toml`.
pub(crate) fn help(json: bool) -> Outcome {
    let text = help::text();
    if json { print_item(&json!({ "topic": "job.toml", "text": text })) } else { print(&text) }
}
