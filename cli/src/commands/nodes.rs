//! `mesh nodes`: everyone, as this node knows them.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::time::{Instant, interval, sleep};

use super::status::warn_of_age;
use super::{Ending, interrupted};
use crate::answers::{Gpu, Node};
use crate::client::{Answer, Api};
use crate::context::{Context, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::screen::{Key, Screen};
use crate::view::{Cell, Column, Paint, Table, Tint, ago, bytes, count, span, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh nodes                                   everyone, as this node knows them
  mesh nodes -w                                live; q leaves
  mesh nodes --json | jq -r '.items[].name'    for scripts
  mesh nodes -w --json                         one object a line, once a second";

const EVERY: Duration = Duration::from_secs(1);

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
        return watch(&api, context).await;
    }
    let answer = api.get("/v1/nodes").await?;
    if context.json {
        return print_json(answer.json());
    }
    let nodes: Vec<Node> = answer.items()?;
    warn_of_age(&answer);
    let paint = Paint::stdout();
    let mut text = table(&nodes).render(width(), paint);
    if std::io::stdout().is_terminal() {
        text += &format!("\n{}\n", paint.dye(&summary(&nodes), Tint::Faint));
    }
    print(&text)
}

async fn watch(api: &Api, context: &Context) -> Outcome {
    // A node that is not there at all is an error; one that goes away later is shown as such.
    let mut last = api.get("/v1/nodes").await?;
    if context.json || !std::io::stdout().is_terminal() {
        return lines(api, context, last).await;
    }
    let mut heard = Instant::now();
    let mut trouble: Option<Report> = None;
    let mut screen = Screen::open().map_err(|error| Report::failed(&error.into(), "mesh nodes"))?;
    let mut ticks = interval(EVERY);
    loop {
        let picture = picture(&last, heard, trouble.as_ref())?;
        screen.draw(&picture).map_err(|error| Report::failed(&error.into(), "mesh nodes"))?;
        tokio::select! {
            key = screen.key() => match key {
                Key::Quit => return Ok(std::process::ExitCode::SUCCESS),
                Key::Interrupt => return interrupted(Ending::Followed),
                Key::Resized => continue,
            },
            _ = ticks.tick() => {}
        }
        match api.get("/v1/nodes").await {
            Ok(answer) => (last, heard, trouble) = (answer, Instant::now(), None),
            Err(report) => trouble = Some(report),
        }
    }
}

async fn lines(api: &Api, context: &Context, mut last: Answer) -> Outcome {
    loop {
        if context.json {
            print_json(last.json())?;
        } else {
            print(&format!(
                "{}\n",
                table(&last.items::<Node>()?).render(width(), Paint::stdout())
            ))?;
        }
        loop {
            sleep(EVERY).await;
            match api.get("/v1/nodes").await {
                Ok(answer) => break last = answer,
                // It may be starting again; the next line comes when it has.
                Err(report)
                    if matches!(report.code, Code::NoNode | Code::Unavailable | Code::Timeout) => {}
                Err(report) => return Err(report),
            }
        }
    }
}

fn picture(last: &Answer, heard: Instant, trouble: Option<&Report>) -> Result<String, Report> {
    let nodes: Vec<Node> = last.items()?;
    let paint = Paint::stdout();
    let silence = u64::try_from(heard.elapsed().as_millis()).unwrap_or(u64::MAX);
    let age = last.age_ms().map(|age| silence.saturating_add(age));
    let state = match (trouble, age) {
        (Some(report), age) => {
            let age = age.unwrap_or(silence);
            paint.dye(&format!("{} ({} ago)", report.message, span(age)), Tint::Bad)
        }
        (None, None) => paint.dye("has heard no leader since it started", Tint::Odd),
        (None, Some(age)) if age >= 3000 => {
            paint.dye(&format!("no leader heard for {}", span(age)), Tint::Odd)
        }
        (None, Some(_)) => paint.dye("live, q leaves", Tint::Faint),
    };
    let head = format!("{}\n{state}\n\n", paint.dye(&summary(&nodes), Tint::Strong));
    Ok(head + &table(&nodes).render(width(), paint))
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
