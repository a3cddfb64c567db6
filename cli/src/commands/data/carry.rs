//! What moves or reads bytes: push, pull, verify.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::flow::follow;
use super::show::{copies, many};
use super::{Pull, Push};
use crate::answers::{Dataset, Pulled, Pushed, Verified};
use crate::context::{Context, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::value::DataRef;
use crate::view::{bytes, clean, count, span};

pub(super) async fn push(push: &Push, context: &Context) -> Outcome {
    on_this_machine("push", "read", context)?;
    let path = existing(&push.path)?;
    let Push { name, share, open, listed, copies: wanted, in_place, follow: links, tag, .. } = push;
    let mut body = json!({
        "path": path, "share": share, "open": open, "listed": listed, "in_place": in_place,
        "follow": links, "no_wait": push.no_wait,
    });
    let said = [
        ("name", name.as_deref().map(Value::from)),
        ("tag", tag.as_deref().map(Value::from)),
        ("copies", wanted.map(Value::from)),
    ];
    // What is not said is the node's to choose.
    for (key, value) in said {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    let answer = follow(&context.api()?, "/v1/data/push", body, context).await?;
    let (made, work): (Dataset, Pushed) = (answer.item()?, answer.item()?);
    let told =
        if context.json { print_json(answer.json())? } else { print(&pushed(&made, &work))? };
    // The answer stands as it is: the version is there. What is not there yet is told beside it.
    Ok(match (work.timed_out, work.no_room) {
        (true, _) => unacknowledged(&made).show(false),
        (false, true) => no_room(&made).show(false),
        (false, false) => told,
    })
}

/// The version is made, and nodes that should hold copies of it have no room for one.
pub(super) fn no_room(made: &Dataset) -> Report {
    let name = made.reference();
    let cause = copies(made).unwrap_or_else(|| "too few nodes have room for a copy".into());
    let hint = "make room there (mesh data du), or let another node join: it is copied then";
    Report::new(Code::Failed, format!("{name} is made, but not acknowledged yet"), cause, hint)
}

/// The version is made, and nodes that should hold copies of it do not answer.
pub(super) fn unacknowledged(made: &Dataset) -> Report {
    let name = made.reference();
    let cause = copies(made).unwrap_or_else(|| "too few copies stand".into());
    let hint = format!("mesh data show {name}: it is copied as soon as they do");
    Report::new(Code::Timeout, format!("{name} is made, but not acknowledged yet"), cause, hint)
}

pub(super) fn pushed(made: &Dataset, work: &Pushed) -> String {
    let mut text = format!("{}: {}", made.reference(), amount(made));
    if let Some(new) = work.new_bytes {
        text += &match (new, made.bytes) {
            (0, _) => "; nothing of it is new".to_owned(),
            (new, Some(all)) if new >= all => "; all of it is new".to_owned(),
            (new, _) => format!("; {} of it new", bytes(new)),
        };
    }
    text += &mended(work.mended_objects).map(|mended| format!("; {mended}")).unwrap_or_default();
    if let (Some(read), Some(ms)) = (work.read_bytes, work.elapsed_ms) {
        text += &format!(" (read {} in {})", bytes(read), span(ms));
    }
    text += ".\n";
    if let Some(copies) = copies(made) {
        text += &format!("{copies}.\n");
    }
    clean_lines(&text)
}

pub(super) async fn pull(pull: &Pull, context: &Context) -> Outcome {
    let dir = match (&pull.into, pull.store_only) {
        (_, true) => None,
        (Some(dir), false) => Some(dir.clone()),
        (None, false) => Some(PathBuf::from(&pull.data.name)),
    };
    if dir.is_some() {
        on_this_machine("pull", "write", context)?;
    }
    let wait_ms = u64::try_from(pull.wait.as_millis()).unwrap_or(u64::MAX);
    let mut body = json!({
        "ref": pull.data.to_string(), "writable": pull.writable, "wait_ms": wait_ms,
    });
    if let Some(dir) = &dir {
        body["dir"] = absolute(dir)?.into();
    }
    let answer = follow(&context.api()?, "/v1/data/pull", body, context).await?;
    if context.json {
        return print_json(answer.json());
    }
    let (found, work): (Dataset, Pulled) = (answer.item()?, answer.item()?);
    print(&pulled(&found, &work, dir.as_deref()))
}

pub(super) fn pulled(found: &Dataset, work: &Pulled, dir: Option<&Path>) -> String {
    let place = match (dir, &work.dir) {
        // As it was typed, because that is what the next command will say.
        (Some(typed), _) => typed.display().to_string(),
        (None, Some(said)) => said.clone(),
        (None, None) => "this node's store".into(),
    };
    let mut text = format!("{} is in {place}: {}", found.reference(), amount(found));
    let mut parts = Vec::new();
    parts.extend(work.fetched_bytes.map(|fetched| match fetched {
        0 => "nothing had to be fetched".to_owned(),
        fetched => format!("{} fetched", bytes(fetched)),
    }));
    let here = work.local_bytes.filter(|here| *here > 0);
    parts.extend(here.map(|here| format!("{} here already", bytes(here))));
    parts.extend(mended(work.mended_objects));
    if !parts.is_empty() {
        text += &format!("; {}", parts.join(", "));
    }
    text += &work.elapsed_ms.map(|ms| format!(" (in {})", span(ms))).unwrap_or_default();
    clean_lines(&(text + ".\n"))
}

/// What of the store was found damaged, and is whole again.
fn mended(objects: Option<u64>) -> Option<String> {
    let mended = objects.filter(|mended| *mended > 0)?;
    Some(format!("{} mended", many(mended, "damaged object")))
}

pub(super) async fn verify(data: &DataRef, context: &Context) -> Outcome {
    let body = json!({ "ref": data.to_string() });
    let answer = follow(&context.api()?, "/v1/data/verify", body, context).await?;
    let found: Verified = answer.item()?;
    let lost = found.damaged.len().saturating_sub(found.repaired());
    if context.json {
        print_json(answer.json())?;
    } else {
        let version: Dataset = answer.item()?;
        let name = Dataset { mine: true, ..version }.reference();
        print(&verified(if name.is_empty() { data.to_string() } else { name }, &found, lost))?;
    }
    Ok(if lost > 0 { Code::Failed.exit() } else { ExitCode::SUCCESS })
}

pub(super) fn verified(name: String, found: &Verified, lost: usize) -> String {
    let checked =
        found.checked_bytes.map(|read| format!("; {} checked", bytes(read))).unwrap_or_default();
    if found.damaged.is_empty() {
        return format!("{name} is whole{checked}.\n");
    }
    let files = count(found.damaged.len(), "damaged file");
    let mut text = format!("{name} had {files}{checked}:\n");
    for damaged in &found.damaged {
        text += &format!("  {}\n", clean(&damaged.path));
    }
    text += &match lost {
        0 => "All of it was repaired from other nodes.\n".to_owned(),
        lost => format!("{lost} could not be repaired: no node that answers has the bytes.\n"),
    };
    text
}

/// `70 files, 11.1 MiB`.
fn amount(data: &Dataset) -> String {
    let mut parts = Vec::new();
    parts.extend(data.files.map(|n| count(usize::try_from(n).unwrap_or(usize::MAX), "file")));
    parts.extend(data.bytes.map(bytes));
    if parts.is_empty() { "done".into() } else { parts.join(", ") }
}

/// Each line without anything that a terminal would obey.
fn clean_lines(text: &str) -> String {
    text.lines().map(|line| clean(line) + "\n").collect()
}

/// Refuses what names files of this machine to a node of another.
fn on_this_machine(verb: &str, does: &str, context: &Context) -> Result<(), Report> {
    if !context.is_remote() {
        return Ok(());
    }
    Err(Report::new(
        Code::Usage,
        format!("mesh data {verb} works with a node on this machine only"),
        format!(
            "--api or MESH_API names a node elsewhere, which would {does} files of its own machine"
        ),
        match verb {
            "pull" => "run it there; or --store-only fetches it onto that node".to_owned(),
            _ => {
                format!("run mesh data {verb} there, or here with --dir and a node of this machine")
            }
        },
    ))
}

/// A path that is there, as the node will read it.
fn existing(path: &Path) -> Result<String, Report> {
    let whole = absolute(path)?;
    match std::fs::metadata(&whole) {
        Ok(_) => Ok(whole),
        Err(error) => {
            let message = format!("{} cannot be pushed", path.display());
            let hint = "name a file or directory that is there: mesh data push PATH";
            let code = match error.kind() {
                std::io::ErrorKind::NotFound => Code::NotFound,
                _ => Code::Failed,
            };
            Err(Report::new(code, message, error.to_string(), hint))
        }
    }
}

/// A path from the root, because the node has another working directory. Links in it stay as they are: what was
/// typed last is what a dataset is named after.
pub(super) fn absolute(path: &Path) -> Result<String, Report> {
    let unfit = |cause: String| {
        let message = format!("{} is no path that can be handed on", path.display());
        Report::new(Code::Failed, message, cause, "name it otherwise")
    };
    let mut whole = std::path::absolute(path).map_err(|error| unfit(error.to_string()))?;
    // What ends in `..` has no name of its own.
    if whole.file_name().is_none() {
        whole = whole.canonicalize().map_err(|error| unfit(error.to_string()))?;
    }
    let text = whole.to_str().ok_or_else(|| unfit("it is not UTF-8".into()))?;
    Ok(text.to_owned())
}
