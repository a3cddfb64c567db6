//! `mesh data show`: one version, and which node holds how much of it.

use crate::answers::{Dataset, Holder};
use crate::commands::nodes::tint;
use crate::commands::status::warn_of_age;
use crate::context::{Context, print, print_json};
use crate::report::Outcome;
use crate::value::DataRef;
use crate::view::{
    Cell, Column, Paint, Table, Tint, bar, bytes, count, facts, is_utf8, percent, when, width,
};

/// How people look at it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) width: Option<usize>,
    pub(super) paint: Paint,
    pub(super) utf8: bool,
    pub(super) now_ms: u64,
}

impl Look {
    /// On standard output, now.
    pub(super) fn stdout() -> Self {
        Self {
            width: width(),
            paint: Paint::stdout(),
            utf8: is_utf8(|name| std::env::var(name).ok()),
            now_ms: mesh_node::clock::now().0,
        }
    }
}

pub(super) async fn run(data: &DataRef, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/data/show?ref={data}")).await?;
    if context.json {
        return print_json(answer.json());
    }
    let found: Dataset = answer.item()?;
    warn_of_age(&answer);
    print(&text(&found, Look::stdout()))
}

pub(super) fn text(data: &Dataset, look: Look) -> String {
    let mut text = about(data, look);
    if !data.holders.is_empty() {
        text += "\n";
        text += &holders(data, look).render(look.width, look.paint);
    }
    if let Some(copies) = copies(data) {
        let tint = if data.is_short() { Tint::Odd } else { Tint::Faint };
        text += &format!("\n{}\n", look.paint.dye(&crate::view::clean(&copies), tint));
    }
    text
}

fn about(data: &Dataset, look: Look) -> String {
    let size = data.bytes.map(|size| {
        let parts = [(data.files, "file"), (data.chunks, "chunk"), (data.objects, "object")];
        let parts: Vec<String> =
            parts.into_iter().filter_map(|(n, noun)| Some(many(n?, noun))).collect();
        match parts.is_empty() {
            true => bytes(size),
            false => format!("{} in {}", bytes(size), parts.join(", ")),
        }
    });
    let here = match data.here.as_str() {
        "whole" => "all of it",
        "partial" => "a part of it",
        "none" => "nothing of it",
        other => other,
    };
    let created = data.created_at.as_deref().map(|time| {
        let by = match data.author.shown() {
            "" => String::new(),
            author => format!(" by {author}"),
        };
        format!("{}{by}", when(time, look.now_ms))
    });
    let pinned = if data.pinned == Some(true) { "pinned" } else { "" };
    let unsafe_yet = match data.acknowledged {
        Some(false) => "not acknowledged yet: too few copies stand to promise that it stays",
        _ => "",
    };
    facts(
        &[
            ("dataset", data.reference()),
            ("tags", data.tags.join(" ")),
            ("party", data.party.shown().to_owned()),
            ("visibility", visibility(data)),
            ("size", size.unwrap_or_default()),
            (
                "this node",
                [here, pinned].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", "),
            ),
            ("created", created.unwrap_or_default()),
            ("made", data.lineage.as_ref().map(|lineage| lineage.words()).unwrap_or_default()),
            ("note", data.note.clone().unwrap_or_default()),
            ("state", unsafe_yet.into()),
            ("changed", changed(&data.changed_files)),
            ("manifest", data.manifest.clone().unwrap_or_default()),
            ("id", data.id.clone()),
        ],
        look.paint,
    )
}

/// Which files it was made of in place and are others now; empty if there are none.
fn changed(files: &[String]) -> String {
    match files {
        [] => String::new(),
        [one] => format!("{one} is not what it was when it was pushed in place"),
        [first, more @ ..] => {
            let others = many(more.len() as u64, "other file");
            format!("{first} and {others} are not what they were when they were pushed in place")
        }
    }
}

/// Who may read it, in words.
pub(super) fn visibility(data: &Dataset) -> String {
    match data.visibility.as_str() {
        "private" => "private to its party".into(),
        "listed" => "listed: other parties see its name and size, and nothing else".into(),
        "shared" if data.readers.is_empty() => "shared".into(),
        "shared" => format!("shared with {}", data.readers.join(", ")),
        "open" => "open to every party".into(),
        other => other.to_owned(),
    }
}

fn holders(data: &Dataset, look: Look) -> Table {
    let cells = if look.width.is_some_and(|width| width < 80) { 10 } else { 20 };
    let mut table = Table::new(&[
        Column::new("NODE").least(10),
        Column::new("PARTY").least(6).worth(2),
        Column::new("STATE"),
        Column::new("COPY").worth(3),
        Column::new("HOLDS"),
        Column::new("SIZE").right().worth(1),
    ]);
    for holder in &data.holders {
        let drawn = match (holder.bytes, data.bytes) {
            (Some(part), Some(whole)) => {
                format!("{} {:>5}", bar(part, whole, cells, look.utf8), percent(part, whole))
            }
            _ => String::new(),
        };
        let drawn_tint = match holder.holds.as_str() {
            _ if holder.state == "down" => Tint::Bad,
            "durable" => Tint::Good,
            "pulling" => Tint::Odd,
            _ => Tint::Faint,
        };
        table.row([
            holder.shown().into(),
            holder.party.shown().into(),
            Cell::new(&holder.state, tint(&holder.state)),
            Cell::new(kind(holder), Tint::Plain),
            Cell::new(drawn, drawn_tint),
            holder.bytes.map(bytes).unwrap_or_default().into(),
        ]);
    }
    table
}

/// What a holder's copy is worth.
fn kind(holder: &Holder) -> &str {
    match holder.holds.as_str() {
        "durable" => "kept",
        "pulling" => "coming",
        other => other,
    }
}

/// `2 of 3 copies: …` with what is missing, in words, or `4 copies; 3 are wanted`; `None` where nothing is known of
/// copies.
pub(super) fn copies(data: &Dataset) -> Option<String> {
    let (stand, wanted) = (data.copies?, data.copies_wanted?);
    let short = match (&data.shortfall, data.is_short()) {
        (_, false) if stand > wanted => {
            let are = if wanted == 1 { "is" } else { "are" };
            return Some(format!("{}; {wanted} {are} wanted", many(stand, "copy")));
        }
        (_, false) => return Some(format!("{stand} of {}", many(wanted, "copy"))),
        (Some(words), true) if !words.trim().is_empty() => words.trim_end_matches('.').to_owned(),
        (_, true) => missing(&data.holders, stand),
    };
    Some(format!("{stand} of {}: {short}", many(wanted, "copy")))
}

/// Why copies are missing, as far as the holders show it.
fn missing(holders: &[Holder], stand: u64) -> String {
    let names = |fits: &dyn Fn(&Holder) -> bool| {
        let names: Vec<&str> = holders.iter().filter(|h| fits(h)).map(Holder::shown).collect();
        (names.len(), names.join(", "))
    };
    let is = |n: usize| if n == 1 { "is" } else { "are" };
    let (coming, fetchers) = names(&|h: &Holder| h.holds == "pulling" && h.state != "down");
    let (gone, silent) = names(&|h: &Holder| h.holds != "cached" && h.state == "down");
    let mut parts = Vec::new();
    if coming > 0 {
        parts.push(format!("{fetchers} {} fetching it", is(coming)));
    }
    if gone > 0 {
        parts.push(format!("{silent} {} down", is(gone)));
    }
    if parts.is_empty() {
        let other = if stand > 1 { "further" } else { "other" };
        parts.push(format!("no {other} node keeps it yet"));
    }
    parts.join("; ")
}

/// `1 copy`, `3 copies`.
pub(super) fn many(n: u64, noun: &str) -> String {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    match noun.strip_suffix('y') {
        Some(stem) if n != 1 => format!("{n} {stem}ies"),
        _ => count(n, noun),
    }
}
