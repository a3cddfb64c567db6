//! `mesh image …`: container images in the mesh, which any node loads from its peers without a registry.

use std::process::ExitCode;

use serde::Deserialize;
use serde_json::json;

use super::data::flow::follow;
use super::status::warn_of_age;
use crate::answers::{Dataset, Pushed};
use crate::context::{Context, note, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::view::{Cell, Column, Paint, Table, bytes, clean, span, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh image push my-trainer:v3           from this node's Docker into the mesh
  mesh image ls                           what there is
  mesh image rm my-trainer:v3             take it out again

A job names it as Docker does: [run] image = \"my-trainer:v3\". Whichever node gets the task loads it
from the others. Layers that two images share are stored and sent once.";

const PUSH: &str = "\
Examples:
  docker build -t my-trainer:v3 . && mesh image push my-trainer:v3
  mesh image push my-trainer:v3 --json | jq .item.new_bytes

The image is read from the Docker of the node that is asked, and becomes a version of the dataset
image.NAME. It returns when most copies stand. Stopped with Ctrl-C, the same command resumes.";
const LS: &str = "\
Examples:
  mesh image ls
  mesh image ls --json | jq -r '.items[].image'";
const RM: &str = "\
Examples:
  mesh image rm my-trainer:v3             asks first; all versions of it go
  mesh image rm my-trainer:v3 --yes       does not ask

Docker keeps what it has loaded. Jobs that were submitted with it and wait can not start any more.";

/// What can be done with images.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Put an image of this node's Docker into the mesh
    #[command(after_help = PUSH)]
    Push {
        /// As Docker knows it
        #[arg(value_name = "NAME", value_parser = image_name)]
        name: String,
    },
    /// What there is
    #[command(after_help = LS)]
    Ls,
    /// Take an image out of the mesh
    #[command(after_help = RM)]
    Rm {
        /// As it was pushed
        #[arg(value_name = "NAME", value_parser = image_name)]
        name: String,
    },
}

impl Verb {
    /// Whether it may be stopped on the way, and goes on when typed again.
    pub(crate) fn moves_data(&self) -> bool {
        matches!(self, Self::Push { .. })
    }
}

/// The name of an image, as Docker takes it.
pub(crate) fn image_name(word: &str) -> Result<String, String> {
    match mesh_node::job::spec::is_image_name(word) {
        true => Ok(word.to_owned()),
        false => Err("it takes the name of an image, as in python:3.12".into()),
    }
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Push { name } => push(name, context).await,
        Verb::Ls => ls(context).await,
        Verb::Rm { name } => rm(name, context).await,
    }
}

async fn push(name: &str, context: &Context) -> Outcome {
    let body = json!({ "name": name });
    let answer = follow(&context.api()?, "/v1/images/push", body, context).await?;
    let (made, work): (Dataset, Pushed) = (answer.item()?, answer.item()?);
    let told = match context.json {
        true => print_json(answer.json())?,
        false => print(&pushed(name, &made, &work))?,
    };
    if !work.timed_out {
        return Ok(told);
    }
    // The answer stands as it is: the image is there. What is not there yet is told beside it.
    let cause = made.shortfall.clone().unwrap_or_else(|| "too few copies stand".into());
    let message = format!("{name} is in the mesh, but not acknowledged yet");
    let hint = format!("mesh data show {} shows when it is", made.reference());
    Ok(Report::new(Code::Timeout, message, cause, hint).show(false))
}

fn pushed(name: &str, made: &Dataset, work: &Pushed) -> String {
    let mut text = format!("{name} is in the mesh");
    text += &made.bytes.map(|size| format!(": {}", bytes(size))).unwrap_or_default();
    text += &match (work.new_bytes, made.bytes) {
        (Some(0), _) => "; nothing of it is new".to_owned(),
        (Some(new), Some(all)) if new < all => format!("; {} of it new", bytes(new)),
        _ => String::new(),
    };
    text += &work.elapsed_ms.map(|ms| format!(" (in {})", span(ms))).unwrap_or_default();
    format!("{}.\n", clean(&text))
}

/// What an image is called.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Named {
    image: String,
}

async fn ls(context: &Context) -> Outcome {
    let answer = context.api()?.get("/v1/images").await?;
    if context.json {
        return print_json(answer.json());
    }
    let (found, names): (Vec<Dataset>, Vec<Named>) = (answer.items()?, answer.items()?);
    warn_of_age(&answer);
    if found.is_empty() {
        note("There is no image in the mesh. mesh image push NAME puts one there.");
        return Ok(ExitCode::SUCCESS);
    }
    print(&table(&found, &names).render(width(), Paint::stdout()))
}

fn table(found: &[Dataset], names: &[Named]) -> Table {
    let mut table = Table::new(&[
        Column::new("IMAGE").least(12),
        Column::new("VERSION").right(),
        Column::new("PARTY").least(6).worth(4),
        Column::new("SIZE").right().worth(8),
        Column::new("COPIES").right(),
        Column::new("DATASET").least(8).worth(2),
    ]);
    let number = |n: Option<u64>| Cell::from(n.map(|n| n.to_string()).unwrap_or_default());
    for (data, named) in found.iter().zip(names) {
        let copies = match (data.copies, data.copies_wanted) {
            (Some(stand), Some(wanted)) => Cell::from(format!("{stand}/{wanted}")),
            (stand, _) => number(stand),
        };
        table.row([
            named.image.as_str().into(),
            number(data.version),
            data.party.shown().into(),
            data.bytes.map(bytes).unwrap_or_default().into(),
            copies,
            data.called().into(),
        ]);
    }
    table
}

async fn rm(name: &str, context: &Context) -> Outcome {
    let api = context.api()?;
    let names: Vec<Named> = api.get("/v1/images").await?.items()?;
    check_there(&names, name)?;
    context.confirm(&format!("Take {name} out of the mesh, all versions of it?"))?;
    let answer = api.post("/v1/images/rm", json!({ "name": name })).await?;
    if context.json {
        return print_json(answer.json());
    }
    print(&format!("{name} is not in the mesh any more.\n"))
}

/// Nobody is asked about what is not there.
fn check_there(names: &[Named], name: &str) -> Result<(), Report> {
    if names.iter().any(|known| known.image == name) {
        return Ok(());
    }
    Err(Report::new(
        Code::NotFound,
        format!("there is no image {name} in the mesh"),
        "none of this name was pushed",
        "mesh image ls shows what there is",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_asked_about() {
        let names = ["team/base:v3", "python"].map(|image| Named { image: image.into() });
        assert!(check_there(&names, "team/base:v3").is_ok());
        let report = check_there(&names, "nosuch:1").unwrap_err();
        assert_eq!(report.code, Code::NotFound);
        assert!(check_there(&names, "team/base").is_err());
    }

    #[test]
    fn an_image_is_named_as_docker_names_it() {
        for word in ["python:3.12", "team/base", "a@sha256:00"] {
            assert_eq!(image_name(word).as_deref(), Ok(word));
        }
        for word in ["", "-v", "a b", "../x", "a?b"] {
            assert!(image_name(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn a_push_says_what_is_new() {
        let made = Dataset { bytes: Some(3 << 20), ..Dataset::default() };
        let work = |new| Pushed { new_bytes: Some(new), ..Pushed::default() };
        assert_eq!(
            pushed("a:b", &made, &work(0)),
            "a:b is in the mesh: 3.0 MiB; nothing of it is new.\n"
        );
        assert_eq!(
            pushed("a:b", &made, &work(1 << 20)),
            "a:b is in the mesh: 3.0 MiB; 1.0 MiB of it new.\n"
        );
        assert_eq!(pushed("a:b", &made, &work(3 << 20)), "a:b is in the mesh: 3.0 MiB.\n");
    }

    #[test]
    fn the_list_shows_what_is_to_be_typed() {
        let data = Dataset {
            name: "image.python-3.12".into(),
            version: Some(2),
            copies: Some(2),
            copies_wanted: Some(3),
            ..Dataset::default()
        };
        let named = Named { image: "python:3.12".into() };
        let text = table(&[data], &[named]).render(None, Paint(false));
        assert!(text.contains("python:3.12") && text.contains("2/3"), "{text}");
    }
}
