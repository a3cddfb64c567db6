//! `/v1/images`: container images that were pushed into the mesh. Each is a dataset called `image.…`.

use axum::extract::State;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Api;
use super::answer::{Answer, Problem, body, chain, item, items, millis, quoted};
use super::data::{catalogue, check_own, drop_versions, lines, row, unpushed, whole};
use super::events::stream_permit;
use super::route::{Form, Route, field};
use crate::clock;
use crate::data::catalogue::Known;
use crate::data::push::{Progress, Pushed};
use crate::work::image::{self, ImageError, PREFIX};

pub(super) fn routes() -> Vec<Route> {
    let name = field("name", "string", "As Docker knows it: python:3.12");
    vec![
        Route::get("/v1/images", "Images in the mesh: every version of each.", list)
            .form(Form::Items),
        Route::post("/v1/images/push", "Puts an image of this node's Docker into the mesh.", push)
            .body([name])
            .form(Form::Lines),
        Route::post("/v1/images/rm", "Takes an image out of the mesh, all versions of it.", remove)
            .body([name]),
    ]
}

async fn list(State(api): State<Api>) -> Answer {
    let mut known = catalogue(&api).await?;
    known.retain(|one| one.name.as_str().starts_with(PREFIX));
    let mut rows = Vec::with_capacity(known.len());
    for one in &known {
        let mut shown = row(&api, one).await;
        shown["image"] = json!(called(one));
        rows.push(shown);
    }
    Ok(items(&api, rows))
}

/// What its author calls it.
fn called(known: &Known) -> String {
    let name = known.name.as_str();
    image::image_name(name).unwrap_or_else(|| name.to_owned())
}

/// What `push` and `rm` take.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wants {
    name: String,
}

async fn push(State(api): State<Api>, bytes: Bytes) -> Answer {
    let Wants { name } = body(&bytes)?;
    if api.is_removed() {
        return Err(Problem::removed());
    }
    if !crate::job::spec::is_image_name(&name) {
        return Err(no_name(&name));
    }
    // Who may read it depends on how many parties there are: a node that lags must not guess.
    api.barrier().await?;
    let permit = stream_permit(&api)?;
    let (sender, progress) = watch::channel(Progress::default());
    let work = {
        let api = api.clone();
        async move {
            let begun = clock::steady();
            let pushed = image::push(&api, &name, &sender).await;
            let Pushed { known, unchanged, new_bytes, shortfall, .. } =
                pushed.map_err(|error| unstored(&api, error))?;
            let known = api.data.known(known.id).await.unwrap_or(known);
            let mut item = whole(&api, &known).await;
            item["image"] = json!(name);
            item["unchanged"] = json!(unchanged);
            item["new_bytes"] = json!(new_bytes);
            item["timed_out"] = json!(shortfall.as_ref().is_some_and(|short| short.timed_out));
            item["shortfall"] = json!(shortfall.map(|short| short.why));
            item["elapsed_ms"] = json!(millis(begun.elapsed()));
            Ok::<Value, Problem>(item)
        }
    };
    let line = |now: &Progress| {
        let phase = if now.waits { "copies" } else { "reading" };
        json!({
            "phase": phase, "bytes": now.bytes, "total_bytes": now.total_bytes, "files": null,
            "total_files": null, "peers": 0, "copies": now.copies, "copies_wanted": now.copies_wanted,
        })
    };
    Ok(lines(api, permit, progress, line, work))
}

async fn remove(State(api): State<Api>, bytes: Bytes) -> Answer {
    let Wants { name } = body(&bytes)?;
    let wanted = image::data_name(&name).ok_or_else(|| no_name(&name))?;
    let own = api.roster().party_of(api.whoami.node);
    let mut going = catalogue(&api).await?;
    going.retain(|one| one.name == wanted && Some(one.party) == own);
    let Some(first) = going.first() else {
        return Err(Problem::not_found(
            format!("there is no image {} in the mesh", quoted(&name)),
            "this node's party has pushed none of this name",
            "mesh image ls shows what there is",
        ));
    };
    check_own(&api, first)?;
    let gone = drop_versions(&api, &going).await?;
    Ok(item(&api, json!({ "image": name, "removed": gone })))
}

fn no_name(name: &str) -> Problem {
    Problem::bad(
        "this cannot be the name of an image",
        format!("it is {}", quoted(name)),
        "docker image ls shows what Docker has here",
    )
}

fn unstored(api: &Api, error: ImageError) -> Problem {
    let hint = match &error {
        ImageError::Push(_) => "mesh doctor",
        ImageError::NoDocker => "start Docker, or ask a node that has it; mesh doctor",
        ImageError::Absent(_) => "docker image ls shows what there is; docker pull or docker build",
        ImageError::Name(_) => "docker tag gives it another name",
        ImageError::Docker(_) => "docker info",
        ImageError::Io(_) => "make room in the node's directory, then the same again",
    };
    match error {
        ImageError::Push(error) => unpushed(api, error),
        error => Problem::refused("the image was not pushed", chain(&error), hint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_called_as_its_author_calls_it() {
        for (image, fits) in [("python:3.12", true), ("", false), ("../x", false), ("-v", false)] {
            assert_eq!(crate::job::spec::is_image_name(image), fits, "{image}");
        }
        assert!(no_name("\u{1b}[2J").cause.chars().all(|c| !c.is_control()));
    }
}
