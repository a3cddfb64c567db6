//! `mesh config`: every setting, and where its value came from.

use mesh_node::config::Config;
use serde_json::{Value, json};

use crate::answers::{Setting, plain};
use crate::context::{Context, note, print, print_json};
use crate::making::chain;
use crate::report::{Code, Outcome, Report};
use crate::view::{Cell, Column, Paint, Table, Tint, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh config                              of the running node, or of one that would start here
  mesh config --json | jq '.items[] | select(.from != \"default\")'

A setting is its flag, or MESH_<KEY>, or its line in config.toml, or the default.";

pub(crate) async fn run(context: &Context) -> Outcome {
    let answer = match context.api()?.get("/v1/config").await {
        Ok(answer) => answer,
        // What is written down can be read without anybody to ask.
        Err(report) if report.code == Code::NoNode && !context.is_remote() => {
            return stored(context);
        }
        Err(report) => return Err(report),
    };
    if context.json {
        return print_json(answer.json());
    }
    show(&answer.items()?)
}

/// What a node of this directory would run with, were it started from here. As JSON it has no `index` and no `age_ms`:
/// those are a node's, and none was asked.
fn stored(context: &Context) -> Outcome {
    let file = context.place.dir.join("config.toml");
    let config = Config::load(&file, &toml::Table::new(), |key| std::env::var(key).ok());
    let config = config.map_err(|error| {
        let hint = format!("correct {}", file.display());
        Report::new(Code::Usage, "the settings cannot be used", chain(&error), hint)
    })?;
    let settings = config.origins.into_iter().map(|(key, (value, origin))| Setting {
        key,
        value: serde_json::to_value(value).unwrap_or_default(),
        from: origin.text(),
    });
    let settings: Vec<Setting> = settings.collect();
    if context.json {
        let row = |one: &Setting| json!({ "key": one.key, "value": one.value, "from": one.from });
        let items: Vec<Value> = settings.iter().map(row).collect();
        return print_json(&json!({ "schema": 1, "items": items }));
    }
    note(&format!(
        "No node runs in {}: this is what one would start with.",
        context.place.dir.display()
    ));
    show(&settings)
}

fn show(settings: &[Setting]) -> Outcome {
    let mut table = Table::new(&[
        Column::new("KEY"),
        Column::new("VALUE").least(12),
        Column::new("FROM").least(7),
    ]);
    for setting in settings {
        let tint = if setting.from == "default" { Tint::Faint } else { Tint::Plain };
        table.row([
            setting.key.as_str().into(),
            plain(&setting.value).into(),
            Cell::new(&setting.from, tint),
        ]);
    }
    print(&table.render(width(), Paint::stdout()))
}
