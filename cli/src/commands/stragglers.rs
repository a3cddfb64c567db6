//! `mesh stragglers`: who of a training is slow, and where its time goes.

use super::status::warn_of_age;
use crate::answers::{Course, Participant};
use crate::context::{Context, print, print_json};
use crate::course::{remarks, share};
use crate::report::Outcome;
use crate::value;
use crate::view::{Cell, Column, Paint, Table, Tint, clean, is_utf8, span, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh stragglers mnist                  who is slow, late, dropped or refused; and the timeline
  mesh stragglers 1a2b --json | jq -r '.item.participants[] | .party + \" \" + .standing'
  mesh plot mnist                        how the training goes
  mesh logs mnist --task 2               what a participant printed

slow: more than twice the median. late: a quarter of its updates or more came after their round;
they count, but less. dropped: not waited for any more, until it sends something. refused: the last
it sent was not taken. The times are those of its last update; SHARE is its part of all examples.";

/// The timeline is at most so wide, and so wide where there is no terminal.
const MOST_CELLS: usize = 60;
/// It is no narrower.
const LEAST_CELLS: usize = 10;

/// What `stragglers` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Stragglers {
    /// Which job
    #[arg(value_parser = value::job)]
    job: String,
}

pub(crate) async fn run(stragglers: &Stragglers, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/jobs/{}/course", stragglers.job)).await?;
    if context.json {
        return print_json(answer.json());
    }
    let course: Course = answer.item()?;
    warn_of_age(&answer);
    let utf8 = is_utf8(|name| std::env::var(name).ok());
    print(&text(&course, width(), Paint::stdout(), utf8))
}

fn text(course: &Course, width: Option<usize>, paint: Paint, utf8: bool) -> String {
    let mut text = clean(&head(course)) + "\n";
    if course.participants.is_empty() {
        return text + "\nIt has no participants yet.\n";
    }
    text += &format!("\n{}", table(course).render(width, paint));
    let drawn = timeline(course, width, paint, utf8);
    if !drawn.is_empty() {
        text += &format!("\n{drawn}");
    }
    let said = remarks(course);
    text += "\n";
    match said.is_empty() {
        true => text += "Nobody is slow, late, dropped or refused.\n",
        false => {
            for line in said {
                text += &format!("{line}\n");
            }
        }
    }
    text
}

/// `mnist (1a2b3c4d) is running: round 3/20, coordinated by alpha`.
fn head(course: &Course) -> String {
    let state = match course.state.as_str() {
        "" => String::new(),
        state => format!(" is {state}"),
    };
    let done = match course.round {
        Some(at) => course.at(at),
        None => "no model stands yet".to_owned(),
    };
    let by = course.coordinator.as_ref().filter(|_| course.verdict.is_none());
    let by = by.map(|node| format!(", coordinated by {node}")).unwrap_or_default();
    format!("{}{state}: {done}{by}", course.called())
}

fn table(course: &Course) -> Table {
    let mut table = Table::new(&[
        Column::new("PARTY").least(8),
        Column::new("NODE").least(8).worth(6),
        Column::new("STANDING"),
        Column::new("TAKEN").right().worth(5),
        Column::new("LATE").right().worth(3),
        Column::new("MISSED").right().worth(4),
        Column::new("REFUSED").right().worth(2),
        Column::new("FETCH").right().worth(7),
        Column::new("COMPUTE").right().worth(8),
        Column::new("UPLOAD").right().worth(7),
        Column::new("SHARE").right().worth(9),
    ]);
    for one in &course.participants {
        let [fetch, compute, upload] = match one.times() {
            Some(times) => times.map(|ms| Cell::from(span(ms))),
            None => [(); 3].map(|()| Cell::from("")),
        };
        table.row([
            one.party.as_str().into(),
            one.node.as_deref().unwrap_or_default().into(),
            Cell::new(&one.standing, tint(one)),
            one.taken.to_string().into(),
            one.late.to_string().into(),
            one.missed.to_string().into(),
            one.refused.to_string().into(),
            fetch,
            compute,
            upload,
            share(one.share).into(),
        ]);
    }
    table
}

fn tint(one: &Participant) -> Tint {
    match one.standing.as_str() {
        "good" => Tint::Good,
        "slow" | "late" => Tint::Odd,
        "dropped" | "refused" => Tint::Bad,
        _ => Tint::Plain,
    }
}

/// One line a participant, as long as its last update took against the slowest; empty if nobody has sent anything.
fn timeline(course: &Course, width: Option<usize>, paint: Paint, utf8: bool) -> String {
    let times: Vec<(&Participant, [u64; 3])> =
        course.participants.iter().filter_map(|one| Some((one, one.times()?))).collect();
    let whole = |times: &[u64; 3]| times.iter().copied().fold(0, u64::saturating_add);
    let Some(slowest) = times.iter().map(|(_, times)| whole(times)).max().filter(|ms| *ms > 0)
    else {
        return String::new();
    };
    let names: Vec<String> = times.iter().map(|(one, _)| clean(&one.party)).collect();
    let beside = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    // A name, two blanks, the line, two blanks, the time: at most `59m`, or `999ms`.
    let room = width.map_or(MOST_CELLS, |width| width.saturating_sub(beside + 9));
    let cells = room.clamp(LEAST_CELLS, MOST_CELLS);
    let signs = if utf8 { ['▒', '█', '░'] } else { ['<', '#', '>'] };
    let mut text = String::new();
    for ((one, times), name) in times.iter().zip(&names) {
        let drawn = strip(*times, slowest, cells, signs);
        let took = span(whole(times));
        let line = format!("{name:beside$}  {}  {took}", paint.dye(&drawn, tint(one)));
        text += &format!("{}\n", line.trim_end());
    }
    let [fetch, compute, upload] = signs;
    let key = format!("{fetch} fetch  {compute} compute  {upload} upload");
    text + &format!("{:beside$}  {}\n", "", paint.dye(&key, Tint::Faint))
}

/// Three times as one strip of letters. What took any time at all has a letter, as long as there are enough.
fn strip(times: [u64; 3], slowest: u64, cells: usize, signs: [char; 3]) -> String {
    let whole = times.iter().copied().fold(0, u64::saturating_add);
    let length = (whole as f64 / slowest as f64 * cells as f64).round() as usize;
    let parts = times.iter().filter(|ms| **ms > 0).count();
    let length = length.clamp(parts.min(cells), cells);
    let mut drawn = String::new();
    let (mut before, mut used, mut left) = (0u64, 0usize, parts);
    for (ms, sign) in times.into_iter().zip(signs) {
        if ms == 0 {
            continue;
        }
        left -= 1;
        before = before.saturating_add(ms);
        let end = (before as f64 / whole as f64 * length as f64).round() as usize;
        // One at least, and as many as those that follow need.
        let end = end.max(used + 1).min(length.saturating_sub(left)).max(used);
        drawn.extend(std::iter::repeat_n(sign, end - used));
        used = end;
    }
    drawn
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::course::tests::three;

    fn shown(course: Value, width: Option<usize>, utf8: bool) -> String {
        text(&serde_json::from_value(course).unwrap(), width, Paint(false), utf8)
    }

    #[test]
    fn participants_are_a_table_a_timeline_and_words() {
        let text = shown(three(), None, true);
        assert!(
            text.starts_with(
                "mnist (1a2b3c4d) is running: round 3/20, coordinated by alpha\n\nPARTY"
            ),
            "{text}"
        );
        let row = "clinic-b  beta      slow          3     0       0        0  500ms      11s   500ms   30 %\n";
        assert!(text.contains(row), "{text}");
        let slow = format!("clinic-b  {}{}{}  12s\n", "▒".repeat(3), "█".repeat(55), "░".repeat(2));
        assert!(text.contains(&slow), "{text}");
        let good = format!("clinic-a  {}{}{}  4s\n", "▒".repeat(3), "█".repeat(15), "░".repeat(2));
        assert!(text.contains(&good), "{text}");
        assert!(text.contains("          ▒ fetch  █ compute  ░ upload\n"), "{text}");
        let last = "2 updates of lab were refused: its norm is 7e9\n";
        assert!(text.ends_with(last) && text.contains("clinic-b is slow: 12s a round"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        assert!(shown(three(), None, false).contains("  <<<###############>>  4s\n"));
    }

    #[test]
    fn it_fits_a_narrow_terminal() {
        for width in 50..140 {
            let text = shown(three(), Some(width), true);
            // But for words.
            let lines =
                text.lines().filter(|line| !line.contains(" is ") && !line.contains(" of "));
            for line in lines {
                assert!(line.chars().count() <= width, "{width}: {line}\n{text}");
            }
            assert!(text.contains("STANDING") && text.contains("SHARE"), "{width}\n{text}");
        }
    }

    #[test]
    fn what_took_any_time_has_a_letter() {
        let signs = ['f', 'c', 'u'];
        for (times, want) in [
            ([0, 100, 0], "cccccccccc"),
            ([1, 98, 1], "fccccccccu"),
            ([0, 1, 0], "c"),
            ([1, 1, 1], "fcu"),
            ([50, 0, 50], "fffffuuuuu"),
            ([100, 0, 0], "ffffffffff"),
            ([99, 1, 0], "fffffffffc"),
            ([0, 0, 0], ""),
        ] {
            assert_eq!(strip(times, 100, 10, signs), want, "{times:?}");
        }
        assert_eq!(strip([u64::MAX, 1, 1], u64::MAX, 2, signs).len(), 2);
    }

    #[test]
    fn before_anything_was_sent_there_is_no_timeline() {
        let mut course = three();
        for one in 0..3 {
            let of = &mut course["participants"][one];
            (of["fetch_ms"], of["compute_ms"], of["upload_ms"]) =
                (Value::Null, Value::Null, Value::Null);
            (of["standing"], of["refused"], of["why"]) = (json!("good"), json!(0), Value::Null);
        }
        (course["round"], course["coordinator"]) = (Value::Null, Value::Null);
        let text = shown(course, None, true);
        assert!(text.starts_with("mnist (1a2b3c4d) is running: no model stands yet\n"), "{text}");
        assert!(!text.contains("fetch  ") && text.ends_with("dropped or refused.\n"), "{text}");
        let none = shown(json!({ "id": "1a2b3c4d", "participants": [] }), None, true);
        assert!(none.ends_with("\nIt has no participants yet.\n"), "{none}");
    }
}
