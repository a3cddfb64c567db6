//! `mesh data diff`: how one version differs from another.

use crate::answers::{Change, Diff, plain};
use crate::context::{Context, print, print_json};
use crate::report::Outcome;
use crate::value::DataRef;
use crate::view::{Paint, Tint, bytes, clean};

pub(super) async fn run(from: &DataRef, to: &DataRef, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/data/diff?from={from}&to={to}")).await?;
    if context.json {
        return print_json(answer.json());
    }
    let said: Diff = answer.item()?;
    print(&text(&said, [from, to].map(ToString::to_string), Paint::stdout()))
}

/// Sizes first, because they line up; paths may be long.
pub(super) fn text(diff: &Diff, typed: [String; 2], paint: Paint) -> String {
    let sizes: Vec<String> = diff.changes.iter().map(size).collect();
    let wide = sizes.iter().map(|size| size.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (change, size) in diff.changes.iter().zip(&sizes) {
        let (sign, tint) = match change.change.as_str() {
            "added" => ('+', Tint::Good),
            "removed" => ('-', Tint::Bad),
            _ => ('~', Tint::Odd),
        };
        // A path is somebody else's text.
        let line = format!("{sign} {size:>wide$}  {}", clean(&change.path));
        text += &format!("{}\n", paint.dye(&line, tint));
    }
    if diff.truncated {
        let shown = diff.changes.len();
        let all = diff.added.saturating_add(diff.removed).saturating_add(diff.changed);
        text += &format!("… the first {shown} of {all}\n");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    let [from, to] = [(&diff.from, &typed[0]), (&diff.to, &typed[1])]
        .map(|(said, typed)| if said.is_string() { clean(&plain(said)) } else { typed.clone() });
    let Diff { added, removed, changed, unchanged, .. } = diff;
    text += &if added + removed + changed == 0 {
        format!("{from} and {to} hold the same")
    } else {
        format!(
            "{from} → {to}: {added} added, {removed} removed, {changed} changed, {unchanged} as they were"
        )
    };
    text += &match diff.new_bytes {
        Some(0) | None => ".\n".to_owned(),
        Some(new) => format!("; {} new.\n", bytes(new)),
    };
    text
}

fn size(change: &Change) -> String {
    match (change.old_bytes, change.new_bytes) {
        (Some(old), Some(new)) if change.change == "changed" && old != new => {
            format!("{} → {}", bytes(old), bytes(new))
        }
        (_, Some(new)) if change.change != "removed" => bytes(new),
        (Some(old), _) => bytes(old),
        (None, new) => new.map(bytes).unwrap_or_default(),
    }
}
