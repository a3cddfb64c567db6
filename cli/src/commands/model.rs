//! `mesh model …`: what trainings have made. A model is data like any other, and is pulled as such.

use std::process::ExitCode;

use serde_json::Value;

use super::data;
use super::status::warn_of_age;
use crate::answers::{Course, Dataset, Trained, plain};
use crate::context::{Context, note, print, print_json};
use crate::course::{facts as about, metrics};
use crate::report::{Code, Outcome, Report};
use crate::value::DataRef;
use crate::view::{Cell, Column, Paint, Table, Tint, bytes, facts, when, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh model ls                          what trainings have made
  mesh model show mnist                  the newest version: who holds it, and how it was trained
  mesh model pull mnist@3                into ./mnist
  mesh plot mnist                        the curve of the job called so

A model is a version of a dataset that remembers its job: mesh data tag, share and rm take its name,
too. A job begins with it if its job.toml says so: mesh help job.toml.";

const LS: &str = "\
Examples:
  mesh model ls                          the newest version of each
  mesh model ls --all                    every version
  mesh model ls --json | jq -r '.items[] | .name + \" \" + (.metrics.accuracy | tostring)'";
const SHOW: &str = "\
Examples:
  mesh model show mnist
  mesh model show mnist@3 --json | jq .item.course.participants";
const PULL: &str = "\
Examples:
  mesh model pull mnist                  the newest version, into ./mnist
  mesh model pull mnist@3 /srv/model
  mesh model pull clinic-a/mnist:best ./m --writable

It is mesh data pull: see mesh data pull --help.";

/// What can be done with models.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// What trainings have made
    #[command(after_help = LS)]
    Ls {
        /// Every version, not the newest alone
        #[arg(long)]
        all: bool,
    },
    /// One model: who holds it, and how it was trained
    #[command(after_help = SHOW)]
    Show {
        /// Which one
        #[arg(value_name = "REF")]
        model: DataRef,
    },
    /// Fetch a model, into a directory
    #[command(after_help = PULL)]
    Pull(data::Pull),
}

impl Verb {
    /// Whether it moves so much that it may be stopped on the way, and goes on when typed again.
    pub(crate) fn moves_data(&self) -> bool {
        matches!(self, Self::Pull(_))
    }
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Ls { all } => ls(*all, context).await,
        Verb::Show { model } => show(model, context).await,
        Verb::Pull(pull) => data::pull(pull, context).await,
    }
}

async fn ls(all: bool, context: &Context) -> Outcome {
    let path = if all { "/v1/models?all=true" } else { "/v1/models" };
    let answer = context.api()?.get(path).await?;
    if context.json {
        return print_json(answer.json());
    }
    let (found, trained): (Vec<Dataset>, Vec<Trained>) = (answer.items()?, answer.items()?);
    warn_of_age(&answer);
    if found.is_empty() {
        note("No training has made a model yet. mesh job new federated writes a job that does.");
        return Ok(ExitCode::SUCCESS);
    }
    let table = table(&found, &trained, mesh_node::clock::now().0);
    print(&table.render(width(), Paint::stdout()))
}

fn table(found: &[Dataset], trained: &[Trained], now_ms: u64) -> Table {
    let mut table = Table::new(&[
        Column::new("NAME").least(10),
        Column::new("VERSION").right(),
        Column::new("ROUND").right().worth(6),
        Column::new("METRICS").least(14).worth(7),
        Column::new("SIZE").right().worth(4),
        Column::new("COPIES").right().worth(3),
        Column::new("CREATED").worth(5),
        Column::new("JOB").least(8).worth(2),
    ]);
    let number = |n: Option<u64>| Cell::from(n.map(|n| n.to_string()).unwrap_or_default());
    for (data, made) in found.iter().zip(trained) {
        let copies = match (data.copies, data.copies_wanted) {
            (Some(stand), Some(wanted)) => {
                let tint = if stand < wanted { Tint::Odd } else { Tint::Plain };
                Cell::new(format!("{stand}/{wanted}"), tint)
            }
            (stand, _) => number(stand),
        };
        let created = data.created_at.as_deref().map(|time| when(time, now_ms));
        let short = made.job.get(..8).unwrap_or(&made.job);
        let job = match &made.job_name {
            Some(name) => format!("{name} ({short})"),
            None => short.to_owned(),
        };
        let tint = if data.mine { Tint::Strong } else { Tint::Plain };
        table.row([
            Cell::new(data.called(), tint),
            number(data.version),
            number(made.round),
            metrics(&made.metrics).join(", ").into(),
            data.bytes.map(bytes).unwrap_or_default().into(),
            copies,
            created.unwrap_or_default().into(),
            job.into(),
        ]);
    }
    table
}

async fn show(model: &DataRef, context: &Context) -> Outcome {
    let api = context.api()?;
    let answer = api.get(&format!("/v1/data/show?ref={model}")).await?;
    let found: Dataset = answer.item()?;
    let job = found.lineage.as_ref().map(|lineage| plain(&lineage.job)).unwrap_or_default();
    let course = match job.as_str() {
        "" => None,
        // It may have been dropped, or have trained nothing: then there is no more to tell.
        job => match api.get(&format!("/v1/jobs/{job}/course")).await {
            Ok(course) => Some(course),
            Err(Report { code: Code::NotFound | Code::Refused, .. }) => None,
            Err(report) => return Err(report),
        },
    };
    if context.json {
        let mut item = answer.json()["item"].clone();
        item["course"] = course.map_or(Value::Null, |course| course.json()["item"].clone());
        return print_json(&answer.around("item", item));
    }
    let course: Option<Course> = course.map(|course| course.item()).transpose()?;
    warn_of_age(&answer);
    print(&(data::shown(&found) + &training(course.as_ref(), Paint::stdout())))
}

/// How it was trained; empty if nobody knows.
fn training(course: Option<&Course>, paint: Paint) -> String {
    let Some(course) = course else { return String::new() };
    let mut lines = vec![("trained by", course.called())];
    // Which model that is, was said already.
    lines.extend(about(course).into_iter().filter(|(what, _)| *what != "model"));
    format!("\n{}", facts(&lines, paint))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::course::tests::ended;
    use crate::view::millis;

    #[test]
    fn a_model_is_a_row_with_what_it_can_do_and_which_job_made_it() {
        let items = json!([
            { "name": "mnist", "version": 3, "party": "lab", "mine": true, "bytes": 407_080, "copies": 2,
              "copies_wanted": 3, "created_at": "2026-11-16T11:55:00Z", "job": "1a2b3c4d".repeat(4),
              "job_name": "mnist-cnn", "round": 20, "metrics": { "loss": 0.16, "accuracy": 0.9531 } },
            { "name": "xray", "version": 1, "party": "clinic-a", "mine": false, "bytes": null, "copies": null,
              "copies_wanted": null, "created_at": null, "job": "77b0".repeat(8), "job_name": null },
        ]);
        let found: Vec<Dataset> = serde_json::from_value(items.clone()).unwrap();
        let trained: Vec<Trained> = serde_json::from_value(items).unwrap();
        let now = millis("2026-11-16T12:00:00Z").unwrap();
        assert_eq!(
            table(&found, &trained, now).render(None, Paint(false)),
            "NAME           VERSION  ROUND  METRICS                       SIZE  COPIES  CREATED  JOB\n\
             mnist                3     20  accuracy 0.953, loss 0.16  398 KiB     2/3  5m ago   mnist-cnn (1a2b3c4d)\n\
             clinic-a/xray        1      -  -                                -       -  -        77b077b0\n"
        );
        for width in 60..120 {
            let text = table(&found, &trained, now).render(Some(width), Paint(false));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
    }

    #[test]
    fn how_a_model_was_trained_is_told_beneath_it() {
        let course: Course = serde_json::from_value(ended()).unwrap();
        let text = training(Some(&course), Paint(false));
        for part in [
            "\ntrained by   mnist (1a2b3c4d)\n",
            "rounds       3 of 20\n",
            "metrics      accuracy 0.931, loss 0.21",
            "participant  clinic-b on beta: slow, 30 % of the examples, 12s a round\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("mnist@1"), "{text}");
        assert_eq!(training(None, Paint(false)), "");
    }
}
