//! A job in words: how it goes, and how it ended.

use crate::answers::{Job, Task};
use crate::context::Context;
use crate::report::{Code, Report};
use crate::view::{clean, count, span};

/// As many nodes are named; of more, how many there are.
const MAX_NAMED: usize = 3;

/// A job that was taken.
pub(crate) fn begun(job: &Job) -> String {
    let tasks = match job.tasks.len() {
        // One on each node that will do, whoever that is by then.
        0 => String::new(),
        tasks => format!(": {}", count(tasks, "task")),
    };
    format!("{} is submitted{tasks}", job.called())
}

/// How a job goes; empty where there is nothing to say.
pub(crate) fn progress(job: &Job) -> String {
    let place = match (job.tasks.len(), places(job)) {
        (0 | 1, place) => place,
        (tasks, place) if place.is_empty() => format!(": {}", count(tasks, "task")),
        (tasks, place) => format!(": {}{place}", count(tasks, "task")),
    };
    let said = match (job.state.as_str(), &job.reason) {
        // Nobody knows yet whether it has to wait.
        ("waiting", None) => String::new(),
        ("waiting", Some(reason)) => format!("waiting: {reason}"),
        ("asking", reason) => match reason {
            Some(reason) => format!("asking for consent: {reason}"),
            None => "asking for consent".to_owned(),
        },
        ("stopping", Some(reason)) => format!("stopping: {reason}"),
        (state, _) => {
            let again = job.tasks.iter().filter_map(|task| task.attempt).max().filter(|n| *n > 1);
            let again = again.map(|n| format!(" (attempt {n})")).unwrap_or_default();
            format!("{state}{place}{again}")
        }
    };
    clean(&said)
}

/// ` on alpha, beta`; empty while it is nowhere.
fn places(job: &Job) -> String {
    match job.nodes().as_slice() {
        [] => String::new(),
        nodes if nodes.len() <= MAX_NAMED => format!(" on {}", nodes.join(", ")),
        nodes => format!(" on {}", count(nodes.len(), "node")),
    }
}

/// What a job that is done comes to.
pub(crate) fn done(job: &Job) -> String {
    let what = match job.tasks.as_slice() {
        [] => String::new(),
        [_] => "exit code 0".to_owned(),
        tasks => count(tasks.len(), "task"),
    };
    let ran = job.ran_ms().map(|ms| format!(" in {}", span(ms))).unwrap_or_default();
    // A moment is not worth a word.
    let waited = job.waited_ms().filter(|ms| *ms >= 1000);
    let waited = waited.map(|ms| format!(", after {}", span(ms))).unwrap_or_default();
    clean(&format!("{} is done: {what}{}{ran}{waited}", job.called(), places(job)))
}

/// The versions that a job has made, one a line.
pub(crate) fn outputs(job: &Job) -> Vec<String> {
    let lines = job.outputs.iter().map(|output| {
        let whose = match job.tasks.len() {
            0 | 1 => String::new(),
            _ => format!(" of task {}", output.task),
        };
        let version = output.version.get(..8).unwrap_or(&output.version);
        let version = output.called.clone().unwrap_or_else(|| format!("version {version}"));
        clean(&format!("{}{whose} is {version}", output.name))
    });
    lines.collect()
}

/// Why a job that is over is not done; `None` if it is.
pub(crate) fn failure(context: &Context, job: &Job) -> Option<Report> {
    let message = match job.state.as_str() {
        "done" => return None,
        "stopped" => format!("{} was stopped", job.called()),
        "lost" => format!("{} is lost", job.called()),
        _ => format!("{} failed", job.called()),
    };
    let task = culprit(job).or(match job.tasks.as_slice() {
        [only] => Some(only),
        _ => None,
    });
    let cause = [
        job.reason.clone().or_else(|| task.and_then(reason)),
        task.and_then(|task| task.node.clone()).map(|node| format!("on {node}")),
        task.and_then(Task::ran_ms).map(|ms| format!("after {}", span(ms))),
    ];
    let cause: Vec<String> = cause.into_iter().flatten().collect();
    let cause = if cause.is_empty() { "no reason is known".into() } else { cause.join(", ") };
    let short = job.short();
    let retry = context.command(&format!("job retry {short}"));
    let hint = match (job.state.as_str(), task.filter(|_| job.tasks.len() > 1)) {
        ("failed", Some(task)) => {
            let logs = context.command(&format!("logs {short} --task {}", task.number));
            format!("{logs} shows what it printed; {retry} runs it again")
        }
        ("failed", None) => {
            let logs = context.command(&format!("logs {short}"));
            format!("{logs} shows what it printed; {retry} runs it again")
        }
        _ => format!("{retry} runs it again"),
    };
    Some(Report::new(Code::Failed, message, cause, hint))
}

/// The task that failed: the one that the job's reason names. The others of its gang failed because of it.
fn culprit(job: &Job) -> Option<&Task> {
    let named = job.reason.as_deref().and_then(|reason| {
        let (number, _) = reason.strip_prefix("task ")?.split_once(':')?;
        number.parse::<u64>().ok()
    });
    let failed = || job.tasks.iter().filter(|task| task.state == "failed");
    let named = failed().find(|task| Some(task.number) == named);
    named.or_else(|| failed().find(|task| task.exit_code.is_some())).or_else(|| failed().next())
}

fn reason(task: &Task) -> Option<String> {
    task.reason.clone().or_else(|| task.exit_code.map(|code| format!("exit code {code}")))
}

/// A job that was waited for in vain.
pub(crate) fn late(context: &Context, job: &Job, limit: &str) -> Report {
    let how = match progress(job) {
        said if said.is_empty() => job.state.clone(),
        said => said,
    };
    let message = format!("{} is not over after {limit}", job.called());
    Report::new(Code::Timeout, message, how, super::goes_on(context, job))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_gang_the_task_is_named_that_failed_and_not_those_that_ended_with_it() {
        let task = |n: u64, code: Option<u64>| json!({ "number": n, "state": "failed", "exit_code": code });
        let job = |reason: Option<&str>| -> Job {
            serde_json::from_value(json!({
                "id": "1a2b3c4d", "state": "failed", "reason": reason,
                "tasks": [task(0, None), task(2, None), task(3, Some(1))],
            }))
            .unwrap()
        };
        let number = |reason| culprit(&job(reason)).map(|task| task.number);
        assert_eq!(number(Some("task 3: exit code 1")), Some(3));
        assert_eq!(number(Some("task 2: no image x")), Some(2));
        assert_eq!(number(None), Some(3));
        assert_eq!(culprit(&Job::default()).map(|task| task.number), None);
    }
}
