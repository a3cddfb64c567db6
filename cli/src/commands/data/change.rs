//! What changes a version's record: tag, share, unshare, pin, rm.

use serde_json::{Value, json};

use super::show::{many, visibility};
use super::{Share, Tag};
use crate::answers::{Dataset, Removed, Reshared, Tagged};
use crate::client::Api;
use crate::context::{Context, note, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::value::{DataRef, Pick};
use crate::view::{bytes, clean};

/// What becomes of what others have of a version that is no longer shared with them.
pub(super) const TAKEN_BACK: &str = "The others' nodes are given nothing more of it, and delete what \
    is in their stores, pinned or not. What was pulled into a directory, or copied elsewhere, stays there.";

pub(super) async fn tag(wanted: &Tag, context: &Context) -> Outcome {
    let Tag { data, tag, expect, rm } = wanted;
    let mut body = json!({ "ref": data.to_string(), "tag": tag, "remove": rm });
    if let Some(expected) = expect {
        body["expect"] = expected.0.map(Value::from).unwrap_or_default();
    }
    let answer = context.api()?.post("/v1/data/tag", body).await?;
    if context.json {
        return print_json(answer.json());
    }
    let name = DataRef { pick: None, ..data.clone() };
    let at: Tagged = answer.item()?;
    print(&match (rm, at.version) {
        (true, _) => format!("There is no {name}:{tag} any more.\n"),
        (false, Some(version)) => format!("{name}:{tag} is {name}@{version} now.\n"),
        (false, None) => format!("{name}:{tag} is {data} now.\n"),
    })
}

pub(super) async fn share(wanted: &Share, context: &Context) -> Outcome {
    let Share { data, with, open, listed } = wanted;
    let body = json!({ "ref": data.to_string(), "with": with, "open": open, "listed": listed });
    let answer = context.api()?.post("/v1/data/share", body).await?;
    if context.json {
        return print_json(answer.json());
    }
    print(&readers(&answer.item()?, &answer.item()?))
}

pub(super) async fn unshare(data: &DataRef, from: &[String], context: &Context) -> Outcome {
    let body = json!({ "ref": data.to_string(), "from": from });
    let answer = context.api()?.post("/v1/data/unshare", body).await?;
    if context.json {
        return print_json(answer.json());
    }
    note(TAKEN_BACK);
    print(&readers(&answer.item()?, &answer.item()?))
}

/// Who may read a version now, and what has changed with that.
pub(super) fn readers(data: &Dataset, work: &Reshared) -> String {
    let name = data.reference();
    let mut lines = vec![format!("{name} is {}", visibility(data))];
    lines.extend(work.old_version.map(|old| {
        let (old, called) = (format!("{}@{old}", data.called()), data.called());
        format!("It was {old}, and is {name} now: others get to see a number of {called} once")
    }));
    if !work.dropped_tags.is_empty() {
        let tags = work.dropped_tags.join(" ");
        lines.push(format!("These tags do not stand for {name} any more: {tags}"));
    }
    lines.iter().map(|line| format!("{}.\n", clean(line))).collect()
}

pub(super) async fn pin(data: &DataRef, on: bool, context: &Context) -> Outcome {
    let body = json!({ "ref": data.to_string(), "on": on });
    let answer = context.api()?.post("/v1/data/pin", body).await?;
    if context.json {
        return print_json(answer.json());
    }
    let pinned: Dataset = answer.item()?;
    let name = if pinned.name.is_empty() { data.to_string() } else { pinned.reference() };
    let what = if on { "stays on this node until mesh data pin --off" } else { "may go again" };
    print(&format!("{}.\n", clean(&format!("{name} {what}"))))
}

pub(super) async fn rm(data: &DataRef, all: bool, context: &Context) -> Outcome {
    match (all, &data.pick) {
        (false, None) => {
            return Err(Report::new(
                Code::Usage,
                format!("{data} does not say which version"),
                "a name alone means every version, and that has to be said",
                format!("mesh data rm {data}@N, or mesh data rm {data} --all"),
            ));
        }
        (true, Some(_)) => {
            let name = DataRef { pick: None, ..data.clone() };
            return Err(Report::new(
                Code::Usage,
                format!("--all does not go with {data}"),
                "it names one version, and --all means every one",
                format!("mesh data rm {data}, or mesh data rm {name} --all"),
            ));
        }
        _ => {}
    }
    let api = context.api()?;
    let (question, what) = asked(&api, data, all).await?;
    context.confirm(&clean(&question))?;
    let body = json!({ "ref": what.to_string(), "all": all });
    let answer = api.post("/v1/data/rm", body).await?;
    if context.json {
        return print_json(answer.json());
    }
    let gone: Removed = answer.item()?;
    let name = &data.name;
    let versions: Vec<String> =
        gone.removed.iter().filter_map(|gone| Some(format!("{name}@{}", gone.version?))).collect();
    print(&match versions.is_empty() {
        true => format!("{what} is removed.\n"),
        false => format!("Removed: {}.\n", versions.join(", ")),
    })
}

/// What to ask before it goes, and what exactly goes: a tag may be moved while somebody thinks.
async fn asked(api: &Api, data: &DataRef, all: bool) -> Result<(String, DataRef), Report> {
    if all {
        let versions: Vec<Dataset> = api.get(&format!("/v1/data/log?ref={data}")).await?.items()?;
        let size = versions.iter().filter_map(|found| found.bytes).fold(0, u64::saturating_add);
        let many = many(versions.len() as u64, "version");
        let question = format!("Remove {data} for good: {many}, {}?", bytes(size));
        return Ok((question, data.clone()));
    }
    let found: Dataset = api.get(&format!("/v1/data/show?ref={data}")).await?.item()?;
    let exact = match (&data.pick, found.version) {
        (Some(Pick::Tag(_)), Some(version)) => data.at(version),
        _ => data.clone(),
    };
    let size = found.bytes.map(|size| format!(": {}", bytes(size))).unwrap_or_default();
    let tags = match found.tags.as_slice() {
        [] => String::new(),
        tags => format!(", tagged {}", tags.join(" ")),
    };
    Ok((format!("Remove {exact} for good{size}{tags}?"), exact))
}
