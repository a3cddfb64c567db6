//! A training in words: how it goes, how it ended, who was slow.

use std::collections::BTreeMap;

use crate::answers::{Course, Participant, Point};
use crate::view::{bytes, clean, count, span};

/// Metrics that come before all others.
const FIRST: [&str; 2] = ["accuracy", "loss"];

/// The names of metrics, those that matter most first.
pub(crate) fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    let place = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    names.sort_unstable_by_key(|name| (place(name), *name));
    names.dedup();
    names
}

/// `accuracy 0.93`, `loss 0.21`.
pub(crate) fn metrics(metrics: &BTreeMap<String, f64>) -> Vec<String> {
    let names = in_order(metrics.keys().map(String::as_str));
    names.into_iter().map(|name| format!("{name} {}", figure(metrics[name]))).collect()
}

/// A number with three figures: `0.953`, `12.5`, `1.20e-7`.
pub(crate) fn figure(number: f64) -> String {
    let size = number.abs();
    if !number.is_finite() || size == 0.0 {
        return format!("{number}");
    }
    if !(1e-4..1e6).contains(&size) {
        return format!("{number:.2e}");
    }
    let decimals = (2.0 - size.log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{number:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// `45 %`.
pub(crate) fn share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The rounds that were told, while somebody follows a training.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The last one.
    round: Option<u64>,
    /// How many updates were in models by then.
    taken: u64,
}

impl Told {
    /// A line for each round that is new: `round 3/20  accuracy 0.93  loss 0.21  3 of 3 parties`.
    pub(crate) fn lines(&mut self, course: &Course) -> Vec<String> {
        let taken = course.participants.iter().map(|one| one.taken).fold(0, u64::saturating_add);
        let new = course.curve.iter().filter(|point| self.round.is_none_or(|at| point.round > at));
        let new: Vec<&Point> = new.collect();
        // How many took part in a round is known only if nothing else has come since the last look.
        let took_part = match (new.as_slice(), self.round) {
            ([only], Some(last)) if last + 1 == only.round => {
                let (some, all) = (taken.saturating_sub(self.taken), course.participants.len());
                Some(format!("{some} of {}", parties(all)))
            }
            _ => None,
        };
        let mut lines = Vec::with_capacity(new.len());
        for point in &new {
            let mut parts = vec![course.at(point.round)];
            parts.extend(metrics(&point.metrics));
            if point.round == 0 {
                parts.push("the first model stands".to_owned());
            }
            parts.extend(took_part.clone());
            lines.push(clean(&parts.join("  ")));
        }
        if let Some(last) = new.last() {
            (self.round, self.taken) = (Some(last.round), taken);
        }
        lines
    }
}

/// `1 party`, `3 parties`.
fn parties(number: usize) -> String {
    if number == 1 { "1 party".to_owned() } else { format!("{number} parties") }
}

/// Who was slow, late, dropped or refused, one a line.
pub(crate) fn remarks(course: &Course) -> Vec<String> {
    let middle = median_ms(course);
    course.participants.iter().filter_map(|one| remark(one, middle)).collect()
}

fn remark(one: &Participant, middle_ms: Option<u64>) -> Option<String> {
    let party = &one.party;
    let why = one.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let said = match one.standing.as_str() {
        "slow" => {
            let own = one.whole_ms().map(|ms| format!(": {} a round", span(ms)));
            let others = middle_ms.map(|ms| format!(", where {} is usual", span(ms)));
            let times = own.map(|own| own + &others.unwrap_or_default());
            format!("{party} is slow{}", times.unwrap_or_default())
        }
        "late" => format!("{party} is late: {} of its {} came late", one.late, updates(one.taken)),
        "dropped" => format!("{party} was dropped{why}"),
        "good" | "" if one.refused == 0 => return None,
        // It was refused once, and has sent better ones since.
        "good" | "" | "refused" if one.refused == 1 => {
            format!("an update of {party} was refused{why}")
        }
        "good" | "" | "refused" => {
            format!("{} of {party} were refused{why}", updates(one.refused))
        }
        other => format!("{party} is {other}{why}"),
    };
    Some(clean(&said))
}

fn updates(number: u64) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), "update")
}

fn median_ms(course: &Course) -> Option<u64> {
    let mut times: Vec<u64> =
        course.participants.iter().filter_map(Participant::whole_ms).collect();
    times.sort_unstable();
    let above = *times.get(times.len() / 2)?;
    let below = times[(times.len() - 1) / 2];
    Some(below + (above - below) / 2)
}

/// `clinic-a 45 %, lab 55 %`: empty while nothing was contributed.
pub(crate) fn contributions(course: &Course) -> String {
    if course.participants.iter().all(|one| one.taken == 0) {
        return String::new();
    }
    let each = course.participants.iter().map(|one| format!("{} {}", one.party, share(one.share)));
    clean(&each.collect::<Vec<_>>().join(", "))
}

/// What `mesh job show` says of a training.
pub(crate) fn facts(course: &Course) -> Vec<(&'static str, String)> {
    let rounds = course.rounds.map(|rounds| match course.round {
        Some(round) => format!("{round} of {rounds}"),
        None => format!("none of {rounds} yet: no model stands"),
    });
    let last = course.curve.iter().rev().find(|point| !point.metrics.is_empty());
    let last = last.map(|point| {
        let of = format!(" ({} {})", course.unit(), point.round);
        metrics(&point.metrics).join(", ") + &of
    });
    let label = if course.unit() == "step" { "steps" } else { "rounds" };
    let mut lines = vec![
        (label, rounds.unwrap_or_default()),
        ("metrics", last.unwrap_or_default()),
        ("open", open(course)),
        ("model", model(course)),
    ];
    if course.verdict.is_none() {
        lines.push(("coordinator", course.coordinator.clone().unwrap_or_default()));
    }
    if let Some(budget) = &course.budget {
        let epsilon = budget.epsilon.map(|epsilon| format!("epsilon {}, ", figure(epsilon)));
        let charged = usize::try_from(budget.charged_rounds).unwrap_or(usize::MAX);
        let charged = count(charged, "round");
        lines.push(("budget", format!("{}{charged} charged", epsilon.unwrap_or_default())));
    }
    lines.extend(course.participants.iter().map(|one| ("participant", participant(one))));
    lines
}

/// The round that is open, and for whom it waits.
fn open(course: &Course) -> String {
    let Some(open) = &course.open else { return String::new() };
    let number = open.round.map(|round| format!("round {round}, ")).unwrap_or_default();
    let limit = open.deadline_ms.map(|ms| format!(", for up to {} once it has enough", span(ms)));
    format!("{number}waits for {}{}", open.selected.join(", "), limit.unwrap_or_default())
}

/// The model that came of it, or that stands by now.
fn model(course: &Course) -> String {
    let ended = course.verdict.as_ref().and_then(|verdict| {
        let version = verdict.version.as_deref();
        let version = version.map(|id| format!("version {}", id.get(..8).unwrap_or(id)));
        verdict.model.clone().or(version)
    });
    match (&course.model, ended) {
        (_, Some(ended)) => ended,
        (None, None) => String::new(),
        (Some(stands), None) => {
            let round = stands.round.map(|round| format!("of round {round}")).unwrap_or_default();
            let size = stands.bytes.map(|size| format!(", {}", bytes(size))).unwrap_or_default();
            let place = match stands.holders.as_slice() {
                [] => String::new(),
                holders => format!(", on {}", holders.join(", ")),
            };
            format!("{round}{size}{place}")
        }
    }
}

/// `clinic-a on alpha: good, 45 % of the examples, 4s a round`.
fn participant(one: &Participant) -> String {
    let place = one.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let standing = match (one.standing.as_str(), &one.why) {
        ("", _) => "unknown".to_owned(),
        ("good", _) | (_, None) => one.standing.clone(),
        (standing, Some(why)) => format!("{standing} ({why})"),
    };
    let part = match one.taken {
        0 => "nothing taken yet".to_owned(),
        _ => format!("{} of the examples", share(one.share)),
    };
    let time = one.whole_ms().map(|ms| format!(", {} a round", span(ms))).unwrap_or_default();
    format!("{}{place}: {standing}, {part}{time}", one.party)
}

/// What a training came to, one a line: the model, who contributed how much, who was slow, what to look at next.
/// `command` is a command as it has to be typed here.
pub(crate) fn summary(course: &Course, command: impl Fn(&str) -> String) -> Vec<String> {
    let mut lines = Vec::new();
    let verdict = course.verdict.as_ref().filter(|verdict| verdict.version.is_some());
    if let Some(verdict) = verdict {
        let rounds = course.at(course.round.unwrap_or(0));
        let spent = match verdict.state.as_str() {
            "spent" => format!("the budget is spent after {rounds}; "),
            _ => String::new(),
        };
        let mut parts = vec![rounds];
        parts.extend(course.curve.last().map(|last| metrics(&last.metrics)).unwrap_or_default());
        lines.push(format!("{spent}the model is {}: {}", model(course), parts.join(", ")));
    }
    let parts = contributions(course);
    if !parts.is_empty() {
        lines.push(format!("contributed: {parts}"));
    }
    match remarks(course) {
        none if none.is_empty() => lines.push("nobody was slow, late, dropped or refused".into()),
        some => lines.extend(some),
    }
    let short = course.short();
    let mut next = vec![command(&format!("stragglers {short}"))];
    if !course.curve.is_empty() {
        next.push(command(&format!("plot {short}")));
    }
    if let Some(name) = verdict.and_then(|verdict| verdict.model.as_ref()) {
        next.push(command(&format!("model pull {name}")));
    }
    lines.push(format!("next: {}", next.join("; ")));
    lines.iter().map(|line| clean(line)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Three parties after round 3 of 20: one good, one slow, one that was refused.
    pub(crate) fn three() -> Value {
        let of = |party: &str, node: &str, standing: &str, share: f64, compute: u64| {
            json!({
                "party": party, "task": 0, "node": node, "standing": standing, "why": null, "taken": 3,
                "late": 0, "refused": 0, "missed": 0, "missed_in_a_row": 0, "examples": 600, "share": share,
                "fetch_ms": 500, "compute_ms": compute, "upload_ms": 500,
            })
        };
        let mut bad = of("lab", "gamma\u{1b}[2J", "refused", 0.2, 3000);
        (bad["refused"], bad["why"], bad["taken"]) = (json!(2), json!("its norm is 7e9"), json!(1));
        let point = |round: u64, accuracy: f64, loss: f64| {
            json!({ "round": round, "at": "2026-11-16T12:00:00Z",
                    "metrics": { "loss": loss, "accuracy": accuracy, "f1": 0.5 } })
        };
        json!({
            "id": "1a2b3c4d".repeat(4), "name": "mnist", "state": "running", "coordinator": "alpha",
            "round": 3, "rounds": 20,
            "model": { "round": 3, "bytes": 407_080, "holders": ["alpha", "beta"] },
            "open": { "round": 4, "selected": ["clinic-a", "lab"], "deadline_ms": 9000, "since": "2026-11-16T12:00:00Z" },
            "participants": [
                of("clinic-a", "alpha", "good", 0.5, 3000), of("clinic-b", "beta", "slow", 0.3, 11_000), bad,
            ],
            "curve": [
                { "round": 0, "at": "2026-11-16T11:59:00Z", "metrics": {} },
                point(1, 0.61, 1.5), point(2, 0.802, 0.9), point(3, 0.9312, 0.21),
            ],
            "verdict": null, "budget": null,
        })
    }

    fn course(value: Value) -> Course {
        serde_json::from_value(value).unwrap()
    }

    /// The same once it is over.
    pub(crate) fn ended() -> Value {
        let mut it = three();
        (it["state"], it["open"]) = (json!("done"), Value::Null);
        it["verdict"] = json!({
            "state": "done", "model": "mnist@1", "version": "ab".repeat(16), "why": null,
        });
        it
    }

    #[test]
    fn numbers_have_three_figures() {
        for (number, text) in [
            (0.0, "0"),
            (0.93, "0.93"),
            (0.95312, "0.953"),
            (-0.5, "-0.5"),
            (1.0, "1"),
            (12.34, "12.3"),
            (456.7, "457"),
            (60_000.0, "60000"),
            (0.000_012, "1.20e-5"),
            (1.2e9, "1.20e9"),
        ] {
            assert_eq!(figure(number), text);
        }
    }

    #[test]
    fn each_round_is_told_once_with_how_many_took_part() {
        let mut told = Told::default();
        let mut now = three();
        let curve = now["curve"].as_array().unwrap().clone();
        now["curve"] = json!(curve[..3]);
        let lines = told.lines(&course(now.clone()));
        assert_eq!(lines[0], "round 0/20  the first model stands");
        assert_eq!(lines[1], "round 1/20  accuracy 0.61  loss 1.5  f1 0.5");
        assert_eq!(lines.len(), 3);
        assert!(told.lines(&course(now.clone())).is_empty());
        now["curve"] = json!(curve);
        now["participants"][0]["taken"] = json!(4);
        now["participants"][1]["taken"] = json!(4);
        let lines = told.lines(&course(now));
        assert_eq!(lines, ["round 3/20  accuracy 0.931  loss 0.21  f1 0.5  2 of 3 parties"]);
    }

    #[test]
    fn who_is_slow_late_dropped_or_refused_is_named_with_the_reason() {
        assert_eq!(
            remarks(&course(three())),
            [
                "clinic-b is slow: 12s a round, where 4s is usual",
                "2 updates of lab were refused: its norm is 7e9",
            ]
        );
        let mut it = three();
        it["participants"][0]["refused"] = json!(1);
        it["participants"][1]["standing"] = json!("late");
        it["participants"][1]["late"] = json!(2);
        it["participants"][2]["standing"] = json!("dropped");
        it["participants"][2]["why"] = json!("exit code 3");
        assert_eq!(
            remarks(&course(it)),
            [
                "an update of clinic-a was refused",
                "clinic-b is late: 2 of its 3 updates came late",
                "lab was dropped: exit code 3",
            ]
        );
    }

    #[test]
    fn a_training_is_told_fact_by_fact() {
        let lines = facts(&course(three()));
        let said = |what: &str| {
            let found: Vec<&str> = lines
                .iter()
                .filter(|(key, _)| *key == what)
                .map(|(_, text)| text.as_str())
                .collect();
            found.join("|")
        };
        assert_eq!(said("rounds"), "3 of 20");
        assert_eq!(said("metrics"), "accuracy 0.931, loss 0.21, f1 0.5 (round 3)");
        assert_eq!(
            said("open"),
            "round 4, waits for clinic-a, lab, for up to 9s once it has enough"
        );
        assert_eq!(said("model"), "of round 3, 398 KiB, on alpha, beta");
        assert_eq!(said("coordinator"), "alpha");
        assert!(said("participant").starts_with(
            "clinic-a on alpha: good, 50 % of the examples, 4s a round|\
             clinic-b on beta: slow, 30 % of the examples, 12s a round|lab on "
        ));
        assert!(said("participant").contains("refused (its norm is 7e9), 20 % of"));
        let ended = facts(&course(ended()));
        assert!(ended.contains(&("model", "mnist@1".to_owned())), "{ended:?}");
        assert!(!ended.iter().any(|(what, _)| *what == "coordinator"), "{ended:?}");
    }

    #[test]
    fn the_end_names_the_model_the_parts_and_who_was_slow() {
        let command = |words: &str| format!("mesh {words}");
        assert_eq!(
            summary(&course(ended()), command),
            [
                "the model is mnist@1: round 3/20, accuracy 0.931, loss 0.21, f1 0.5",
                "contributed: clinic-a 50 %, clinic-b 30 %, lab 20 %",
                "clinic-b is slow: 12s a round, where 4s is usual",
                "2 updates of lab were refused: its norm is 7e9",
                "next: mesh stragglers 1a2b3c4d; mesh plot 1a2b3c4d; mesh model pull mnist@1",
            ]
        );
        let mut spent = ended();
        spent["verdict"]["state"] = json!("spent");
        let said = summary(&course(spent), command);
        assert!(said[0].starts_with("the budget is spent after round 3/20; the model is mnist@1:"));
        let mut failed = ended();
        failed["verdict"] = json!({ "state": "failed", "why": "too few parties" });
        failed["participants"] = json!([]);
        let said = summary(&course(failed), command);
        assert_eq!(said[0], "nobody was slow, late, dropped or refused");
        assert!(!said.iter().any(|line| line.contains("pull")), "{said:?}");
    }
}
