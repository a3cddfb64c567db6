//! `mesh node …`: one node.

use std::io::IsTerminal;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::nodes::{cpu, memory};
use super::status::warn_of_age;
use crate::answers::{Node, plain};
use crate::context::{Context, print, print_json};
use crate::report::{Code, Outcome};
use crate::value::{self, Label};
use crate::view::{Paint, Tint, ago, bytes, clean, facts, when};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh node show gpu-7                      everything that is known about it
  mesh node drain gpu-7                     give it no new work; --off ends that
  mesh node label gpu-7 zone=ber spot-      set one label, take another away
  mesh node logs gpu-7 -f                   its log, and what is added to it
  mesh node rm gpu-7                        remove a node that will not come back

A node is named by its name, its id, or the first four or more characters of its id.";

const SHOW: &str = "\
Examples:
  mesh node show gpu-7
  mesh node show 3fa9 --json | jq .item.gpus";
const RM: &str = "\
Examples:
  mesh node rm gpu-7           asks first; a node that is still there should run mesh leave itself
  mesh node rm gpu-7 --yes     does not ask

Another party's node is removed once a majority of the parties agrees: this opens a request,
and exits with 5 while that waits.";
const DRAIN: &str = "\
Examples:
  mesh node drain gpu-7        before maintenance
  mesh node drain gpu-7 --off  after it

A drained node keeps its vote, its data and the work it has. It is for the nodes of its own party to
say, those without the party's signing key (--worker) included.";
const LABEL: &str = "\
Examples:
  mesh node label gpu-7 zone=ber disk=nvme
  mesh node label gpu-7 zone-
  mesh node label gpu-7 takes=all         let it take every party's jobs
  mesh node label gpu-7 trains=clinic-a   let it train for that party, on this party's data

Labels are for the nodes of its own party to set, those without the party's signing key included.";
const LOGS: &str = "\
Examples:
  mesh node logs               this node's
  mesh node logs gpu-7 -n 200  another node's, of the same party
  mesh node logs -f            go on reading";

/// What can be done with a node.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Everything that is known about a node
    #[command(after_help = SHOW)]
    Show {
        /// Which one
        #[arg(value_parser = value::reference)]
        node: String,
    },
    /// Remove a node that will not come back
    #[command(after_help = RM)]
    Rm {
        /// Which one
        #[arg(value_parser = value::reference)]
        node: String,
    },
    /// Give a node no new work
    #[command(after_help = DRAIN)]
    Drain {
        /// Which one
        #[arg(value_parser = value::reference)]
        node: String,
        /// Give it work again
        #[arg(long)]
        off: bool,
    },
    /// Set labels (k=v) and take them away (k-)
    #[command(after_help = LABEL)]
    Label {
        /// Which one
        #[arg(value_parser = value::reference)]
        node: String,
        /// key=value sets, key- takes away
        #[arg(required = true, value_name = "LABEL", allow_hyphen_values = false)]
        labels: Vec<Label>,
    },
    /// A node's log
    #[command(after_help = LOGS)]
    Logs(Logs),
}

/// What `logs` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// Which one [default: this node]
    #[arg(value_parser = value::reference)]
    node: Option<String>,
    /// Go on reading
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// How many lines from the end
    #[arg(long, short = 'n', default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    lines: u32,
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Show { node } => show(node, context).await,
        Verb::Rm { node } => rm(node, context).await,
        Verb::Drain { node, off } => {
            let answer = context
                .api()?
                .post(&format!("/v1/nodes/{node}/drain"), json!({ "on": !off }))
                .await?;
            if context.json {
                return print_json(answer.json());
            }
            print(&format!(
                "{node} {}.\n",
                if *off { "takes work again" } else { "takes no new work" }
            ))
        }
        Verb::Label { node, labels } => label(node, labels, context).await,
        Verb::Logs(wanted) => logs(wanted, context).await,
    }
}

async fn show(node: &str, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/nodes/{node}")).await?;
    if context.json {
        return print_json(answer.json());
    }
    let node: Node = answer.item()?;
    warn_of_age(&answer);
    print(&text(&node, Paint::stdout()))
}

fn text(node: &Node, paint: Paint) -> String {
    let role = if node.is_leader { "leader" } else { &node.role };
    let worker = if node.worker { ", worker" } else { "" };
    let heard = node.seen_age_ms.map_or("never".into(), |ms| match ago(ms).as_str() {
        "now" => "now".to_owned(),
        age => format!("{age} ago"),
    });
    let now = mesh_node::clock::now().0;
    let labels: Vec<String> =
        node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let machine = [&node.os, &node.arch].map(|part| part.clone().unwrap_or_default()).join(" ");
    let seat = node.seat.map(|seat| format!(", seat {seat}")).unwrap_or_default();
    let mut lines = vec![
        ("name", node.name.clone()),
        ("id", node.id.clone()),
        ("party", node.party.shown().to_owned()),
        ("state", format!("{}, heard {heard}", node.state)),
        ("role", format!("{role}{worker}{seat}")),
        ("addresses", node.addresses.join(" ")),
        ("machine", machine),
        ("mesh", node.version.clone().unwrap_or_default()),
        ("level", node.level.map(|level| level.to_string()).unwrap_or_default()),
        ("cpu", cpu(node)),
        ("memory", memory(node)),
        ("disk free", node.disk_free_bytes.map(bytes).unwrap_or_default()),
        ("labels", labels.join(" ")),
        ("admitted", node.admitted_at.as_deref().map(|time| when(time, now)).unwrap_or_default()),
    ];
    for (at, gpu) in node.gpus.iter().enumerate() {
        let mut parts = vec![gpu.name.clone(), bytes(gpu.memory_bytes)];
        parts.extend(gpu.memory_used_bytes.map(|used| format!("{} used", bytes(used))));
        parts.extend(gpu.utilisation_ratio.map(|ratio| format!("{:.0} % busy", ratio * 100.0)));
        parts.extend(gpu.temperature_c.map(|c| format!("{c:.0} °C")));
        parts.extend(gpu.power_w.map(|w| format!("{w:.0} W")));
        parts.extend(gpu.health.clone().filter(|health| !health.is_empty()));
        lines.push((if at == 0 { "gpus" } else { "" }, parts.join(", ")));
    }
    facts(&lines, paint)
}

async fn rm(node: &str, context: &Context) -> Outcome {
    let api = context.api()?;
    let found: Node = api.get(&format!("/v1/nodes/{node}")).await?.item()?;
    let alive =
        if found.state == "up" { " It is up: mesh leave on it would be gentler." } else { "" };
    let question =
        format!("Remove {} of party {} for good?{alive}", found.name, found.party.shown());
    context.confirm(&clean(&question))?;
    // By its id, so that what is removed is what was shown.
    let answer = api
        .delete(&format!("/v1/nodes/{}", if found.id.is_empty() { node } else { &found.id }))
        .await?;
    let request = &answer.json()["item"]["request"];
    if context.json {
        print_json(answer.json())?;
    } else if request.is_null() {
        print(&format!("{} is removed.\n", found.name))?;
    } else {
        print(&format!(
            "{} is another party's: request {} waits for a majority of the parties (mesh request ls).\n",
            found.name,
            plain(request)
        ))?;
    }
    // Nothing is removed yet: a script must not go on as if it were.
    Ok(if request.is_null() { ExitCode::SUCCESS } else { Code::Consent.exit() })
}

async fn label(node: &str, labels: &[Label], context: &Context) -> Outcome {
    let (mut set, mut unset) = (serde_json::Map::new(), Vec::new());
    for label in labels {
        match label {
            Label::Set(key, value) => drop(set.insert(key.clone(), Value::from(value.as_str()))),
            Label::Unset(key) => unset.push(key),
        }
    }
    let body = json!({ "set": set, "unset": unset });
    let answer = context.api()?.post(&format!("/v1/nodes/{node}/labels"), body).await?;
    if context.json {
        return print_json(answer.json());
    }
    print(&format!("{node} is labelled.\n"))
}

async fn logs(wanted: &Logs, context: &Context) -> Outcome {
    let api = context.api()?;
    let node = match &wanted.node {
        Some(node) => node.clone(),
        None => api.get("/v1/status").await?.item::<crate::answers::Status>()?.id,
    };
    let path = format!("/v1/nodes/{node}/logs?lines={}&follow={}", wanted.lines, wanted.follow);
    let mut lines = api.lines(&path).await?;
    let terminal = std::io::stdout().is_terminal();
    let paint = Paint::stdout();
    while let Some(line) = lines.next().await? {
        if context.json {
            print_json(&json!({ "schema": 1, "node": node, "line": line }))?;
        } else if terminal {
            // A log repeats what peers said: none of it may move the cursor.
            let line = clean(&line);
            let tint = match () {
                () if line.contains(" ERROR ") => Tint::Bad,
                () if line.contains(" WARN ") => Tint::Odd,
                () => Tint::Plain,
            };
            print(&format!("{}\n", paint.dye(&line, tint)))?;
        } else {
            print(&format!("{line}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
