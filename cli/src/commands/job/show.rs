//! `mesh job show`: everything about a job.

use std::collections::BTreeSet;

use crate::answers::{Job, plain};
use crate::commands::jobs::tint;
use crate::commands::status::warn_of_age;
use crate::context::{Context, print, print_json};
use crate::course;
use crate::follow::words;
use crate::report::Outcome;
use crate::view::{
    Cell, Column, Paint, Table, bytes, cores, count, facts, millis, span, when, width,
};

pub(super) async fn run(job: &str, context: &Context) -> Outcome {
    let answer = context.api()?.get(&format!("/v1/jobs/{job}")).await?;
    if context.json {
        return print_json(answer.json());
    }
    let job: Job = answer.item()?;
    warn_of_age(&answer);
    print(&text(&job, width(), Paint::stdout(), mesh_node::clock::now().0))
}

fn text(job: &Job, width: Option<usize>, paint: Paint, now_ms: u64) -> String {
    let mut text = facts(&about(job, now_ms), paint);
    if !job.tasks.is_empty() {
        text += &format!("\n{}", tasks(job, now_ms).render(width, paint));
    }
    text
}

fn about(job: &Job, now_ms: u64) -> Vec<(&'static str, String)> {
    let past = |time: &Option<String>| {
        let time = time.as_deref();
        time.map(|time| when(time, now_ms)).unwrap_or_default()
    };
    let state = match &job.reason {
        Some(reason) => format!("{}: {reason}", job.state),
        None => job.state.clone(),
    };
    let by = match job.user.as_str() {
        "" => String::new(),
        user => format!(" by {user}"),
    };
    let waited = job.waited_ms().filter(|_| job.started_at.is_some());
    let waited = waited.map(|ms| format!(", after {}", span(ms))).unwrap_or_default();
    let ran = job.ran_ms().map(|ms| format!(", after {}", span(ms))).unwrap_or_default();
    let with = |time: String, more: String| if time.is_empty() { time } else { time + &more };
    let pairs = |map: &std::collections::BTreeMap<String, serde_json::Value>| {
        let pairs = map.iter().map(|(key, value)| format!("{key}={}", plain(value)));
        pairs.collect::<Vec<_>>().join(" ")
    };
    let data = job.data.iter().map(|mount| {
        let version = mount.version.get(..8).unwrap_or(&mount.version);
        let version = mount.called.clone().unwrap_or_else(|| format!("version {version}"));
        format!("{}={version}", mount.name)
    });
    let short = |id: &String| id.get(..8).unwrap_or(id).to_owned();
    let after: Vec<String> = job.after.iter().map(short).collect();
    let code = job.code.as_ref().map(|code| format!("version {}", short(code)));
    let attempts = job.attempts.filter(|n| *n > 1).map(|n| format!("up to {n}"));
    let mut lines = vec![
        ("job", job.name.clone()),
        ("id", job.id.clone()),
        ("state", state),
        ("class", [job.class.clone(), priority(job)].join(" ").trim().to_owned()),
        ("party", job.party.shown().to_owned()),
        ("submitted", with(past(&job.submitted_at), by)),
        ("started", with(past(&job.started_at), waited)),
        ("ended", with(past(&job.ended_at), ran)),
        ("after", after.join(" ")),
        ("code", code.unwrap_or_default()),
        ("data", data.collect::<Vec<_>>().join(" ")),
        ("parameters", pairs(&job.params)),
        ("environment", pairs(&job.env)),
        ("secrets", job.secrets.join(" ")),
        ("checkpoint", job.checkpoint.clone().unwrap_or_default()),
        ("attempts", attempts.unwrap_or_default()),
        ("time limit", job.time_limit_ms.map(span).unwrap_or_default()),
        ("grace", job.grace_ms.map(span).unwrap_or_default()),
    ];
    for group in &job.groups {
        let needs = [
            group.cpu_milli.filter(|n| *n > 0).map(|n| format!("{} CPU", cores(n))),
            group.memory_bytes.filter(|n| *n > 0).map(bytes),
            group.gpus.filter(|n| *n > 0).map(|n| count(n as usize, "GPU")),
            group.image.as_ref().map(|image| format!("in {image}")),
        ];
        let needs: Vec<String> = needs.into_iter().flatten().collect();
        let gang = if job.gang { ", together" } else { "" };
        let number = group.count.map(|n| format!("{n} × ")).unwrap_or_default();
        lines.push(("tasks", format!("{number}{}{gang}: {}", group.name, needs.join(", "))));
        lines.push(("command", command(&group.command)));
    }
    let images: BTreeSet<&str> =
        job.tasks.iter().filter_map(|task| task.image_id.as_deref()).collect();
    lines.extend(images.into_iter().map(|id| ("image id", id.to_owned())));
    if job.is_whole == Some(false) {
        lines.push(("the rest", "is for its own party, and those that take part in it".into()));
    }
    lines.extend(words::outputs(job).into_iter().map(|line| ("output", line)));
    lines.extend(job.course.iter().flat_map(course::facts));
    lines
}

fn priority(job: &Job) -> String {
    job.priority.map(|priority| format!("(priority {priority})")).unwrap_or_default()
}

/// As a shell would take it.
fn command(words: &[String]) -> String {
    // What goes through a shell was one text before.
    if let [shell, flag, text] = words
        && shell == "/bin/sh"
        && flag == "-c"
    {
        return text.clone();
    }
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%=,{}".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn tasks(job: &Job, now_ms: u64) -> Table {
    let mut table = Table::new(&[
        Column::new("TASK").right(),
        Column::new("KIND").least(6).worth(2),
        Column::new("STATE"),
        Column::new("NODE").least(8).worth(7),
        Column::new("ATTEMPT").right().worth(3),
        Column::new("SINCE").right().worth(4),
        Column::new("RAN").right().worth(5),
        Column::new("EXIT").right().worth(6),
        Column::new("REASON").least(8).worth(8),
    ]);
    for task in &job.tasks {
        let kind = match task.index {
            Some(index) if !task.group.is_empty() => format!("{} {index}", task.group),
            _ => task.group.clone(),
        };
        let since = task.ended_at.as_deref().or(task.started_at.as_deref());
        let since = since.or(task.placed_at.as_deref()).and_then(millis);
        let since = since.map(|ms| span(now_ms.saturating_sub(ms))).unwrap_or_default();
        let mut reason = task.reason.clone().unwrap_or_default();
        for (n, what) in [(task.failures, "failure"), (task.preemptions, "preemption")] {
            // What the reason does not tell: that it was not the first.
            if let Some(n @ 1..) = n.filter(|n| *n > 1 || task.reason.is_none()) {
                let gap = if reason.is_empty() { "" } else { ", " };
                reason += &format!("{gap}{}", count(n as usize, what));
            }
        }
        table.row([
            task.number.to_string().into(),
            kind.into(),
            Cell::new(&task.state, tint(&task.state)),
            task.node.as_deref().unwrap_or_default().into(),
            task.attempt.map(|n| n.to_string()).unwrap_or_default().into(),
            since.into(),
            task.ran_ms().map(span).unwrap_or_default().into(),
            task.exit_code.map(|code| code.to_string()).unwrap_or_default().into(),
            reason.into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_is_shown_fact_by_fact_and_task_by_task() {
        let tasks = json!([
            { "number": 0, "group": "worker", "index": 0, "node": "alpha", "attempt": 2, "state": "stopped",
              "exit_code": null, "reason": null, "failures": 0, "preemptions": 1,
              "started_at": "2026-11-16T11:50:30Z", "ended_at": "2026-11-16T11:55:00Z" },
            { "number": 1, "group": "worker", "index": 1, "node": "beta", "attempt": 3, "state": "failed",
              "exit_code": 137, "reason": "killed: memory", "failures": 3, "preemptions": 0,
              "started_at": "2026-11-16T11:51:00Z", "ended_at": "2026-11-16T11:55:00Z" },
        ]);
        let group = json!({
            "name": "worker", "count": 2, "command": ["python", "train.py", "--lr", "0 1"], "image": "python:3.12",
            "cpu_milli": 1500, "memory_bytes": 8_589_934_592u64, "gpus": 1,
        });
        let data = json!([{ "name": "train", "ref": "mnist@3", "version": "ab".repeat(16) }]);
        let outputs =
            json!([{ "task": 0, "name": "model", "ref": "model@2", "version": "cd".repeat(16) }]);
        let job: Job = serde_json::from_value(json!({
            "id": "1a2b3c4d".repeat(4), "name": "mnist-cnn", "class": "trial", "priority": 50, "state": "failed",
            "reason": "task 1: killed: memory", "party": "lab", "user": "ada", "gang": true,
            "submitted_at": "2026-11-16T11:50:00Z", "started_at": "2026-11-16T11:50:30Z",
            "ended_at": "2026-11-16T11:55:00Z", "after": ["77b0".repeat(8)], "data": data, "outputs": outputs,
            "code": "ef".repeat(16), "params": { "lr": "0.1" }, "env": { "A": "b" }, "secrets": ["TOKEN"],
            "groups": [group], "grace_ms": 30_000, "time_limit_ms": 3_600_000, "attempts": 3,
            "checkpoint": "ckpt", "tasks": tasks,
        }))
        .unwrap();
        let now = millis("2026-11-16T12:00:00Z").unwrap();
        let text = text(&job, None, Paint(false), now);
        for part in [
            "state        failed: task 1: killed: memory\n",
            "class        trial (priority 50)\n",
            "submitted    10m ago by ada\n",
            "started      10m ago, after 30s\n",
            "ended        5m ago, after 5m\n",
            "after        77b077b0\n",
            "code         version efefefef\n",
            "data         train=mnist@3\n",
            "parameters   lr=0.1\n",
            "secrets      TOKEN\n",
            "attempts     up to 3\n",
            "time limit   1h\n",
            "tasks        2 × worker, together: 1.5 CPU, 8.0 GiB, 1 GPU, in python:3.12\n",
            "command      python train.py --lr '0 1'\n",
            "output       model of task 0 is model@2\n",
            "   0  worker 0  stopped  alpha        2     5m   5m     -  1 preemption\n",
            "   1  worker 1  failed   beta         3     5m   4m   137  killed: memory, 3 failures\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_training_is_shown_with_its_round_its_metrics_and_its_participants() {
        let job: Job = serde_json::from_value(json!({
            "id": "1a2b3c4d".repeat(4), "name": "mnist", "state": "running", "round": 3, "rounds": 20,
            "course": course::tests::three(),
        }))
        .unwrap();
        let text = text(&job, None, Paint(false), 0);
        for part in [
            "rounds       3 of 20\n",
            "metrics      accuracy 0.931, loss 0.21, f1 0.5 (round 3)\n",
            "coordinator  alpha\n",
            "participant  clinic-b on beta: slow, 30 % of the examples, 12s a round\n",
            "participant  lab on gamma[2J: refused (its norm is 7e9)",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn of_another_partys_job_it_is_said_that_there_is_more() {
        let job: Job = serde_json::from_value(json!({
            "id": "1a2b3c4d".repeat(4), "name": "theirs", "state": "running", "is_whole": false, "user": null,
            "groups": [{ "name": "worker", "count": 1, "cpu_milli": 1000 }],
            "tasks": [{ "number": 0, "state": "running", "image_id": "sha256:ab" }],
        }))
        .unwrap();
        let text = text(&job, None, Paint(false), 0);
        assert!(text.contains("the rest     is for its own party"), "{text}");
        assert!(text.contains("image id     sha256:ab\n") && !text.contains("command"), "{text}");
    }

    #[test]
    fn a_command_is_shown_as_it_was_written() {
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(command(&words(&["/bin/sh", "-c", "echo hello | wc"])), "echo hello | wc");
        assert_eq!(command(&words(&["a", "", "it's"])), r"a '' 'it'\''s'");
    }
}
