//! `mesh nodes`: everyone, as this node knows them.

use super::status::warn_of_age;
use crate::answers::{Gpu, Node};
use crate::client::Answer;
use crate::context::{Context, print, print_json};
use crate::live::{self, Drawn};
use crate::report::{Outcome, Report};
use crate::view::{Cell, Column, Table, Tint, ago, bytes, count};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh nodes                                   everyone, as this node knows them
  mesh nodes -w                                live; q leaves
  mesh nodes --json | jq -r '.items[].name'    for scripts
  mesh nodes -w --json                         one object a line, once a second";

const COLUMNS: [Column; 9] = [
    Column::new("NAME").least(20),
    Column::new("PARTY").least(6).worth(6),
    Column::new("STATE"),
    Column::new("ROLE").worth(8),
    Column::new("CPU").right().worth(4),
    Column::new("MEM").right().worth(3),
    Column::new("GPU").least(12).worth(7),
    Column::new("ADDRESS").least(15).worth(2),
    Column::new("SEEN").right().worth(5),
];

/// What `nodes` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Nodes {
    /// Go on showing it
    #[arg(long, short)]
    pub(crate) watch: bool,
}

pub(crate) async fn run(nodes: &Nodes, context: &Context) -> Outcome {
    let api = context.api()?;
    if nodes.watch {
        return live::watch(&api, context, "/v1/nodes", "mesh nodes", drawn).await;
    }
    let answer = api.get("/v1/nodes").await?;
    if context.json {
        return print_json(answer.json());
    }
    let drawn = drawn(&answer)?;
    warn_of_age(&answer);
    print(&drawn.once())
}

fn drawn(answer: &Answer) -> Result<Drawn, Report> {
    let nodes: Vec<Node> = answer.items()?;
    Ok(Drawn { summary: summary(&nodes), table: table(&nodes) })
}

fn summary(nodes: &[Node]) -> String {
    let up = nodes.iter().filter(|node| node.state == "up").count();
    let voters = nodes.iter().filter(|node| node.role == "voter").count();
    let gpus: usize = nodes.iter().map(|node| node.gpus.len()).sum();
    let leader = nodes.iter().find(|node| node.is_leader).map_or("no leader", |node| &node.name);
    let mut parts = vec![count(nodes.len(), "node"), format!("{up} up"), count(voters, "voter")];
    parts.extend((gpus > 0).then(|| count(gpus, "GPU")));
    parts.push(if leader == "no leader" { leader.into() } else { format!("led by {leader}") });
    parts.join(" · ")
}

fn table(nodes: &[Node]) -> Table {
    let mut table = Table::new(&COLUMNS);
    for node in nodes {
        let role = if node.is_leader {
            Cell::new("leader", Tint::Strong)
        } else {
            Cell::new(&node.role, if node.role == "voter" { Tint::Plain } else { Tint::Faint })
        };
        table.row([
            node.name.as_str().into(),
            node.party.shown().into(),
            Cell::new(&node.state, tint(&node.state)),
            role,
            cpu(node).into(),
            memory(node).into(),
            gpus(&node.gpus).into(),
            node.addresses.first().map_or("", String::as_str).into(),
            node.seen_age_ms.map(ago).unwrap_or_default().into(),
        ]);
    }
    table
}

/// The colour of a node's state.
pub(crate) fn tint(state: &str) -> Tint {
    match state {
        "up" => Tint::Good,
        "down" => Tint::Bad,
        _ => Tint::Odd,
    }
}

/// `1.5/16`: load over cores.
pub(crate) fn cpu(node: &Node) -> String {
    match (node.load1, node.cpus) {
        (Some(load), Some(cpus)) => format!("{load:.1}/{cpus}"),
        (None, Some(cpus)) => cpus.to_string(),
        _ => String::new(),
    }
}

/// `12/64 GiB`: used over whole, in the unit of the whole.
pub(crate) fn memory(node: &Node) -> String {
    let Some(whole) = node.memory_bytes else { return String::new() };
    let shown = bytes(whole);
    let Some(free) = node.memory_free_bytes else { return shown };
    let (figure, unit) = shown.split_once(' ').unwrap_or((&shown, ""));
    let one = whole as f64 / figure.parse::<f64>().unwrap_or(1.0).max(f64::MIN_POSITIVE);
    let used = whole.saturating_sub(free) as f64 / one.max(1.0);
    let figure = figure.trim_end_matches(".0");
    if used < 9.95 {
        format!("{used:.1}/{figure} {unit}")
    } else {
        format!("{used:.0}/{figure} {unit}")
    }
}

/// `2× A100 80 GiB`: kinds with their numbers; one that is not well is marked.
pub(crate) fn gpus(gpus: &[Gpu]) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for gpu in gpus {
        let name = gpu.name.trim_start_matches("NVIDIA ").trim_start_matches("GeForce ");
        let sick = gpu
            .health
            .as_deref()
            .is_some_and(|health| !matches!(health, "ok" | "good" | "healthy" | ""));
        // Some names end in the memory themselves: "A100-SXM4-80GB".
        let memory = match name.ends_with("GB") {
            true => String::new(),
            false => format!(" {}", bytes(gpu.memory_bytes).replace(".0 ", " ")),
        };
        let kind = format!("{name}{memory}{}", if sick { " !" } else { "" });
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, n)) => *n += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let shown =
        kinds.into_iter().map(|(kind, n)| if n == 1 { kind } else { format!("{n}× {kind}") });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_by_what_it_has_and_uses() {
        let gpu = Gpu { name: "NVIDIA A100".into(), memory_bytes: 80 << 30, ..Gpu::default() };
        let sick = Gpu { health: Some("ecc errors".into()), ..gpu.clone() };
        assert_eq!(gpus(&[gpu.clone(), gpu.clone()]), "2× A100 80 GiB");
        assert_eq!(gpus(&[gpu, sick]), "A100 80 GiB, A100 80 GiB !");
        let node = Node {
            cpus: Some(16),
            load1: Some(1.52),
            memory_bytes: Some(64 << 30),
            memory_free_bytes: Some(52 << 30),
            ..Node::default()
        };
        assert_eq!((cpu(&node), memory(&node)), ("1.5/16".into(), "12/64 GiB".into()));
        let unheard = Node::default();
        assert_eq!((cpu(&unheard), memory(&unheard), gpus(&unheard.gpus)), Default::default());
    }
}
