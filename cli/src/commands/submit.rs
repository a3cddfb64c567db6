//! `mesh submit` and `mesh plan`: a job.toml, and what comes of it.
//!
//! | read | for |
//! |---|---|
//! | [`file`] | the job.toml: read here, so that a mistake in it is told before any node is asked |
//! | [`code`], [`ignore`] | the directory with the code: what goes along, what `.meshignore` leaves behind |
//! | [`outlook`] | what `mesh plan` shows |
//!
//! The job gets its id here. If no answer comes, the same is sent again, and it is the same job.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use mesh_consensus::id::JobId;
use serde_json::json;

use super::stopped;
use crate::answers::{Job, Outlook};
use crate::client::Answer;
use crate::context::{Context, note, print, print_json};
use crate::follow;
use crate::report::{Code, Outcome, Report};
use crate::value::{self, Param};
use crate::view::{Paint, bytes, clean, count, width};
use code::Packed;
use file::Draft;

mod code;
mod file;
mod ignore;
mod outlook;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh job new > job.toml                     a file to start from
  mesh submit job.toml                        see it placed, started, and what it prints
  mesh submit job.toml --set lr=0.1 --set epochs=3
  mesh submit job.toml -d                     only submit it; prints its id
  mesh submit job.toml --json                 one object a line: the job as it changes, its output
  mesh plan job.toml                          what would happen, without submitting it
  mesh help job.toml                          everything that can stand in the file

Exits with 0 if the job is done, 1 if it is not or the file is wrong, 4 if no node can run it.
Ctrl-C leaves the job to itself (130): mesh logs -f follows it again, mesh stop ends it.

What tasks print goes where they print it, to standard output or standard error; how the job goes,
to standard error. If there are several tasks, each line begins with task N |.

[run] code = \".\" packs a directory: without .git, without what .meshignore in it names (written
as .gitignore is), without this file and the files of its [secrets], and at most 512 MiB or 100,000
files. What is larger is data: mesh data push DIR, and name it in [data].";
pub(crate) const PLAN_EXAMPLES: &str = "\
Examples:
  mesh plan job.toml                          where it would go, what moves, who makes room
  mesh plan job.toml --set lr=0.1
  mesh plan job.toml --json | jq -r '.item.places[].node'

Nothing is submitted, and no code is pushed. Exits with 4 if no node can ever run the job.";

/// How long a node may take to answer where nothing but the job is sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same where the code has to be read, stored and copied first.
const CODE_PATIENCE: Duration = Duration::from_secs(30 * 60);

/// What `submit` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Submit {
    /// The job.toml; - reads it from standard input
    file: PathBuf,
    /// Another value of a parameter; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Param>,
    /// Return as soon as it is submitted, and print its id
    #[arg(long, short)]
    detach: bool,
    /// Follow it for so long; then exit with 124, and the job goes on
    #[arg(long, value_name = "TIME", value_parser = value::duration, conflicts_with = "detach")]
    // So that -1h is a time that does not fit, not an option that nobody knows.
    #[arg(allow_hyphen_values = true)]
    timeout: Option<Duration>,
}

/// What `plan` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// The job.toml; - reads it from standard input
    file: PathBuf,
    /// Another value of a parameter; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Param>,
}

pub(crate) async fn run(submit: &Submit, context: &Context) -> Outcome {
    let mut stop = pin!(stopped());
    let id = JobId(mesh_node::random());
    let api = context.api()?;
    let draft = Draft::read(&submit.file, &submit.set)?;
    let packed = tokio::select! {
        packed = pack(&draft, context) => packed?,
        () = &mut stop => return Err(interrupted(None)),
    };
    if let Some(packed) = packed.as_ref().filter(|_| !context.json) {
        note(&told(packed));
    }
    let patience = if packed.is_some() { CODE_PATIENCE } else { PATIENCE };
    let mut body = draft.body();
    body["id"] = json!(id);
    body["user"] = json!(user());
    if let Some(packed) = &packed {
        body["code_dir"] = json!(packed.path()?);
    }
    let answer = tokio::select! {
        answer = api.post_surely("/v1/jobs", body, patience) => {
            answer.map_err(|report| draft.shown(unsure(report, id)))?
        }
        () = &mut stop => return Err(interrupted(Some(id))),
    };
    // The node has its own copy by now.
    drop(packed);
    if submit.detach {
        return detached(&answer, context);
    }
    follow::attached(&api, context, &answer, submit.timeout, stop).await
}

/// Says that a job is submitted, with its id alone on standard output.
pub(crate) fn detached(answer: &Answer, context: &Context) -> Outcome {
    if context.json {
        return print_json(answer.json());
    }
    let job: Job = answer.item()?;
    note(&clean(&format!("{} is submitted: {}", job.called(), follow::goes_on(context, &job))));
    print(&format!("{}\n", clean(&job.id)))
}

/// The code, packed in a directory that goes when it is dropped.
async fn pack(draft: &Draft, context: &Context) -> Result<Option<Packed>, Report> {
    let Some(root) = draft.code_dir()? else { return Ok(None) };
    if context.is_remote() {
        return Err(Report::new(
            Code::Usage,
            "a job with code is submitted to a node on this machine only",
            "--api or MESH_API names a node elsewhere, which cannot read the code here",
            "mesh submit there, or here with --dir and a node of this machine",
        ));
    }
    code::pack(root, draft.private_files()).await.map(Some)
}

/// `code: 12 files, 3.2 KiB`.
fn told(packed: &Packed) -> String {
    let mut text = format!("code: {}, {}", count(packed.files, "file"), bytes(packed.bytes));
    for dir in &packed.nodes {
        text += &format!("\ncode: {} stays behind, it is a node's directory", clean(dir));
    }
    text
}

/// Who submits a job, for people.
fn user() -> String {
    let found = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
    let name = found.map(|user| user.name).or_else(|| std::env::var("USER").ok());
    clean(&name.unwrap_or_default()).chars().take(32).collect()
}

/// What may still take effect is never told as if it had not.
fn unsure(report: Report, id: JobId) -> Report {
    match report.code {
        Code::Timeout | Code::Unavailable | Code::NoLeader => {
            let hint = format!("mesh job show {} tells whether it was submitted", id.short());
            Report { hint, ..report }
        }
        _ => report,
    }
}

/// Somebody pressed Ctrl-C before there was an answer.
fn interrupted(sent: Option<JobId>) -> Report {
    let (cause, hint) = match sent {
        None => ("nothing was submitted".to_owned(), "the same command again".to_owned()),
        Some(id) => (
            "the job was sent, and no answer had come".to_owned(),
            format!("mesh job show {} tells whether it was submitted", id.short()),
        ),
    };
    Report::new(Code::Interrupted, "interrupted", cause, hint)
}

pub(crate) async fn plan(plan: &Plan, context: &Context) -> Outcome {
    let draft = Draft::read(&plan.file, &plan.set)?;
    let code = match draft.code_dir()? {
        Some(root) => Some(code::look(root, draft.private_files()).await?),
        None => None,
    };
    let mut body = draft.body();
    body["user"] = json!(user());
    body["plan"] = json!(true);
    let answer = context.api()?.post("/v1/jobs", body).await;
    let answer = answer.map_err(|report| draft.shown(report))?;
    let outlook: Outlook = answer.item()?;
    if context.json {
        print_json(answer.json())?;
        return Ok(match outlook.impossible {
            Some(_) => Code::Unplaceable.exit(),
            None => ExitCode::SUCCESS,
        });
    }
    if let Some(impossible) = &outlook.impossible {
        let message = format!("the job {} can be placed on no node", outlook.name);
        let (cause, hint) = (&impossible.cause, &impossible.hint);
        return Err(Report::new(Code::Unplaceable, message, cause, hint));
    }
    if let Some((files, size)) = code {
        note(&format!("code: {}, {}", count(files, "file"), bytes(size)));
    }
    print(&outlook::text(&outlook, width(), Paint::stdout()))
}
