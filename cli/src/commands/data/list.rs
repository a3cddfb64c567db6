//! What there is: `ls`, `log`, `du`.

use std::io::IsTerminal;
use std::process::ExitCode;

use super::show::{Look, many};
use crate::answers::{Dataset, Usage};
use crate::commands::status::warn_of_age;
use crate::context::{Context, note, print, print_json};
use crate::report::Outcome;
use crate::value::DataRef;
use crate::view::{Cell, Column, Table, Tint, bar, bytes, facts, percent, when};

pub(super) async fn ls(all: bool, party: Option<&str>, context: &Context) -> Outcome {
    let mut asked = Vec::new();
    asked.extend(all.then(|| "all=true".to_owned()));
    asked.extend(party.map(|party| format!("party={party}")));
    let query = if asked.is_empty() { String::new() } else { format!("?{}", asked.join("&")) };
    let answer = context.api()?.get(&format!("/v1/data{query}")).await?;
    if context.json {
        return print_json(answer.json());
    }
    let found: Vec<Dataset> = answer.items()?;
    warn_of_age(&answer);
    if found.is_empty() {
        note(&nothing(party));
        return Ok(ExitCode::SUCCESS);
    }
    let look = Look::stdout();
    let mut text = table(&found, look.now_ms).render(look.width, look.paint);
    if std::io::stdout().is_terminal() {
        text += &format!("\n{}\n", look.paint.dye(&summary(&found), Tint::Faint));
    }
    print(&text)
}

/// That there is nothing to list, and what could be done about it.
pub(super) fn nothing(party: Option<&str>) -> String {
    match party {
        None => "There is no dataset. mesh data push DIR makes one.".to_owned(),
        Some(party) => format!(
            "{party} has no dataset that this node's party may see. There, mesh data share NAME PARTY lets it."
        ),
    }
}

pub(super) fn table(found: &[Dataset], now_ms: u64) -> Table {
    let mut table = Table::new(&[
        Column::new("NAME").least(12),
        Column::new("VERSION").right(),
        Column::new("PARTY").least(6).worth(6),
        Column::new("VISIBILITY").worth(4),
        Column::new("SIZE").right().worth(8),
        Column::new("FILES").right().worth(3),
        Column::new("COPIES").right(),
        Column::new("CREATED").worth(5),
        Column::new("TAGS").least(6).worth(2),
    ]);
    for data in found {
        let tint = match (data.name.as_str(), data.mine) {
            ("", _) => Tint::Faint,
            (_, true) => Tint::Strong,
            (_, false) => Tint::Plain,
        };
        table.row([
            // As the other commands take it.
            Cell::new(data.called(), tint),
            number(data.version),
            data.party.shown().into(),
            data.visibility.as_str().into(),
            data.bytes.map(bytes).unwrap_or_default().into(),
            number(data.files),
            copies(data),
            created(data, now_ms),
            data.tags.join(" ").into(),
        ]);
    }
    table
}

fn summary(found: &[Dataset]) -> String {
    let size = found.iter().filter_map(|data| data.bytes).fold(0, u64::saturating_add);
    let short = found.iter().filter(|data| data.is_short()).count();
    let mut parts = vec![many(found.len() as u64, "version"), bytes(size)];
    parts.extend((short > 0).then(|| format!("{short} with fewer copies than wanted")));
    parts.join(" · ")
}

pub(super) async fn log(data: &DataRef, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/data/log?ref={data}")).await?;
    if context.json {
        return print_json(answer.json());
    }
    let versions: Vec<Dataset> = answer.items()?;
    warn_of_age(&answer);
    let look = Look::stdout();
    print(&history(&versions, look.now_ms).render(look.width, look.paint))
}

/// Versions as they came: the newest is the first.
pub(super) fn history(versions: &[Dataset], now_ms: u64) -> Table {
    let mut table = Table::new(&[
        Column::new("VERSION").right(),
        Column::new("CREATED").worth(8),
        Column::new("BY").least(8).worth(5),
        Column::new("SIZE").right().worth(7),
        Column::new("FILES").right().worth(2),
        Column::new("COPIES").right(),
        Column::new("VISIBILITY").worth(3),
        Column::new("TAGS").least(6).worth(6),
        Column::new("NOTE").least(8).worth(1),
    ]);
    for data in versions {
        table.row([
            number(data.version),
            created(data, now_ms),
            data.author.shown().into(),
            data.bytes.map(bytes).unwrap_or_default().into(),
            number(data.files),
            copies(data),
            data.visibility.as_str().into(),
            data.tags.join(" ").into(),
            data.note.as_deref().unwrap_or_default().into(),
        ]);
    }
    table
}

fn number(n: Option<u64>) -> Cell {
    n.map(|n| n.to_string()).unwrap_or_default().into()
}

fn created(data: &Dataset, now_ms: u64) -> Cell {
    data.created_at.as_deref().map(|time| when(time, now_ms)).unwrap_or_default().into()
}

/// `2/3`, in colour when it is short.
fn copies(data: &Dataset) -> Cell {
    match (data.copies, data.copies_wanted) {
        (Some(0), Some(wanted @ 1..)) => Cell::new(format!("0/{wanted}"), Tint::Bad),
        (Some(stand), Some(wanted)) if stand < wanted => {
            Cell::new(format!("{stand}/{wanted}"), Tint::Odd)
        }
        (Some(stand), Some(wanted)) => format!("{stand}/{wanted}").into(),
        (stand, _) => number(stand),
    }
}

pub(super) async fn du(context: &Context) -> Outcome {
    let answer = context.api()?.get("/v1/data/du").await?;
    if context.json {
        return print_json(answer.json());
    }
    print(&usage(&answer.item()?, Look::stdout()))
}

pub(super) fn usage(usage: &Usage, look: Look) -> String {
    let store = usage.store_bytes.map(|used| match usage.high_bytes.filter(|high| *high > 0) {
        Some(high) => {
            let (drawn, share) = (bar(used, high, 20, look.utf8), percent(used, high));
            format!("{}  {drawn} {share} of {}", bytes(used), bytes(high))
        }
        None => bytes(used),
    });
    let evicts = match (usage.high_bytes, usage.low_bytes) {
        (Some(high), Some(low)) => {
            format!(
                "from {} down to {}, what nobody keeps, least used first",
                bytes(high),
                bytes(low)
            )
        }
        _ => String::new(),
    };
    let aside = usage.quarantined.filter(|n| *n > 0).map(|n| {
        let size = usage.quarantine_bytes.map(|size| format!("{} in ", bytes(size)));
        size.unwrap_or_default() + &many(n, "damaged file")
    });
    let part = usage.partial_bytes.filter(|part| *part > 0);
    let part = part.map(|part| format!("{} of pulls that are not at their end", bytes(part)));
    let mut text = facts(
        &[
            ("store", store.unwrap_or_default()),
            ("partial", part.unwrap_or_default()),
            ("disk free", usage.free_bytes.map(bytes).unwrap_or_default()),
            ("goes", evicts),
            ("quarantine", aside.unwrap_or_default()),
        ],
        look.paint,
    );
    if usage.items.is_empty() {
        return text;
    }
    let mut table = Table::new(&[
        Column::new("NAME").least(12),
        Column::new("VERSION").right(),
        Column::new("SIZE").right(),
        Column::new("KEPT"),
        Column::new("USED").worth(2),
    ]);
    for item in &usage.items {
        let kept = match (item.pinned, item.durable) {
            (true, true) => "pinned, copy",
            (true, false) => "pinned",
            (false, true) => "copy",
            (false, false) => "may go",
        };
        let tint = if item.pinned || item.durable { Tint::Plain } else { Tint::Faint };
        let used = item.last_used_at.as_deref().map(|time| when(time, look.now_ms));
        table.row([
            item.name.as_str().into(),
            number(item.version),
            item.bytes.map(bytes).unwrap_or_default().into(),
            Cell::new(kept, tint),
            used.unwrap_or_default().into(),
        ]);
    }
    text += "\n";
    text + &table.render(look.width, look.paint)
}
