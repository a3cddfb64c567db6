//! The answers about jobs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::{Course, Who, or_default, who};
use crate::view::millis;

/// A job: one of `/v1/jobs`, or with more of it `/v1/jobs/{job}`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Job {
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    /// How many rounds are in its model, and how many there will be; null if it trains nothing.
    pub(crate) round: Option<u64>,
    pub(crate) rounds: Option<u64>,
    /// `trial`, `best-effort`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) class: String,
    pub(crate) priority: Option<u64>,
    /// `waiting`, `asking`, `placed`, `fetching`, `running`, `stopping`; `done`, `failed`, `stopped`, `lost`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) is_final: bool,
    /// Why it is so, in the node's words.
    pub(crate) reason: Option<String>,
    #[serde(deserialize_with = "who")]
    pub(crate) party: Who,
    #[serde(deserialize_with = "or_default")]
    pub(crate) user: String,
    pub(crate) submitted_at: Option<String>,
    pub(crate) started_at: Option<String>,
    pub(crate) ended_at: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) gang: bool,
    #[serde(deserialize_with = "or_default")]
    pub(crate) tasks: Vec<Task>,
    /// Whether it was over before it was asked to stop.
    #[serde(deserialize_with = "or_default")]
    pub(crate) was_over: bool,
    #[serde(deserialize_with = "or_default")]
    pub(crate) data: Vec<Mount>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) outputs: Vec<Output>,
    /// The version that holds its code.
    pub(crate) code: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) params: BTreeMap<String, Value>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) env: BTreeMap<String, Value>,
    /// Their names.
    #[serde(deserialize_with = "or_default")]
    pub(crate) secrets: Vec<String>,
    /// The ids of the jobs that have to be done first.
    #[serde(deserialize_with = "or_default")]
    pub(crate) after: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) groups: Vec<Group>,
    pub(crate) grace_ms: Option<u64>,
    pub(crate) time_limit_ms: Option<u64>,
    /// How many attempts at a task may fail.
    pub(crate) attempts: Option<u64>,
    pub(crate) checkpoint: Option<String>,
    /// Whether this is all of it: it is another party's otherwise. Null where jobs are listed.
    pub(crate) is_whole: Option<bool>,
    /// How its training goes; null if it trains nothing, and where jobs are listed.
    pub(crate) course: Option<Course>,
}

impl Job {
    /// The beginning of its id.
    pub(crate) fn short(&self) -> &str {
        self.id.get(..8).unwrap_or(&self.id)
    }

    /// `mnist-cnn (1a2b3c4d)`.
    pub(crate) fn called(&self) -> String {
        called(&self.id, &self.name)
    }

    /// Whether nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        self.is_final || matches!(self.state.as_str(), "done" | "failed" | "stopped" | "lost")
    }

    /// Whether it went well.
    pub(crate) fn is_done(&self) -> bool {
        self.state == "done"
    }

    /// How many of its tasks went well.
    pub(crate) fn tasks_done(&self) -> usize {
        self.tasks.iter().filter(|task| task.state == "done").count()
    }

    /// `round 3/20`; `None` if it trains nothing.
    pub(crate) fn rounds_done(&self) -> Option<String> {
        self.rounds.map(|rounds| format!("round {}/{rounds}", self.round.unwrap_or(0)))
    }

    /// The nodes that its tasks are on or were on at last, each once.
    pub(crate) fn nodes(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        let names = self.tasks.iter().filter_map(|task| task.node.as_deref());
        names.filter(|name| seen.insert(*name)).collect()
    }

    /// From its first task's start to its end.
    pub(crate) fn ran_ms(&self) -> Option<u64> {
        between(self.started_at.as_deref(), self.ended_at.as_deref())
    }

    /// From its submission to its first task's start, or to its end if none ever started.
    pub(crate) fn waited_ms(&self) -> Option<u64> {
        let until = self.started_at.as_deref().or(self.ended_at.as_deref());
        between(self.submitted_at.as_deref(), until)
    }
}

/// A job by its id and its name: `mnist-cnn (1a2b3c4d)`.
pub(crate) fn called(id: &str, name: &str) -> String {
    let short = id.get(..8).unwrap_or(id);
    if name.is_empty() { format!("job {short}") } else { format!("{name} ({short})") }
}

/// Milliseconds from one time to another.
fn between(from: Option<&str>, to: Option<&str>) -> Option<u64> {
    Some(millis(to?)?.saturating_sub(millis(from?)?))
}

/// One piece of a job on one node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Task {
    /// From 0.
    pub(crate) number: u64,
    /// Its kind, and its number among those.
    #[serde(deserialize_with = "or_default")]
    pub(crate) group: String,
    pub(crate) index: Option<u64>,
    pub(crate) node: Option<String>,
    pub(crate) attempt: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: String,
    pub(crate) exit_code: Option<i64>,
    pub(crate) reason: Option<String>,
    pub(crate) failures: Option<u64>,
    pub(crate) preemptions: Option<u64>,
    pub(crate) placed_at: Option<String>,
    pub(crate) started_at: Option<String>,
    pub(crate) ended_at: Option<String>,
    /// The image in which it runs, as Docker identifies it; null if its node does not say.
    pub(crate) image_id: Option<String>,
}

impl Task {
    /// How long its last attempt ran.
    pub(crate) fn ran_ms(&self) -> Option<u64> {
        between(self.started_at.as_deref(), self.ended_at.as_deref())
    }
}

/// A dataset that a job reads.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Mount {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    /// `mnist@3`; null if it is private.
    #[serde(rename = "ref")]
    pub(crate) called: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) version: String,
}

/// A version that a job has made.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Output {
    pub(crate) task: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    /// `model@3`; null if it is private.
    #[serde(rename = "ref")]
    pub(crate) called: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) version: String,
}

/// Tasks that are alike.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Group {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) count: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) command: Vec<String>,
    pub(crate) image: Option<String>,
    pub(crate) cpu_milli: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) gpus: Option<u64>,
}

/// One line of `/v1/jobs/{job}/logs`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct LogLine {
    /// `line`, or `error` if the node that has it does not answer.
    #[serde(deserialize_with = "or_default")]
    pub(crate) kind: String,
    pub(crate) task: u64,
    /// Which attempt.
    #[serde(deserialize_with = "or_default")]
    pub(crate) fence: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) time: String,
    /// `out`, `err`, or `mesh` for mesh's own word.
    #[serde(deserialize_with = "or_default")]
    pub(crate) stream: String,
    /// Without the newline.
    #[serde(deserialize_with = "or_default")]
    pub(crate) text: String,
    /// Whether there was a newline; if not, the line goes on.
    pub(crate) whole: Option<bool>,
}

/// What would come of a job: the answer to `/v1/jobs` with `plan`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Outlook {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    /// Whether all of it would be placed now.
    #[serde(deserialize_with = "or_default")]
    pub(crate) placed: bool,
    #[serde(deserialize_with = "or_default")]
    pub(crate) places: Vec<Place>,
    /// Tasks that would have to make room.
    #[serde(deserialize_with = "or_default")]
    pub(crate) victims: Vec<Victim>,
    /// Why no node can ever run it.
    pub(crate) impossible: Option<Impossible>,
    /// How many jobs come before it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) ahead: u64,
    /// Why it would wait.
    pub(crate) why: Option<String>,
}

/// Where a task would go.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Place {
    pub(crate) task: u64,
    #[serde(deserialize_with = "who")]
    pub(crate) node: Who,
    pub(crate) cpu_milli: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    /// How many, or which.
    pub(crate) gpus: Value,
    /// What the node would have to fetch first.
    pub(crate) fetch_bytes: Option<u64>,
}

/// A task that would have to make room.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Victim {
    #[serde(deserialize_with = "or_default")]
    pub(crate) job: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) task: u64,
    #[serde(deserialize_with = "who")]
    pub(crate) node: Who,
}

/// Why no node can ever run a job, and what to do about it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Impossible {
    #[serde(deserialize_with = "or_default")]
    pub(crate) cause: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) hint: String,
}

/// What `/v1/jobs/{job}/explain` says.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Explained {
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    /// What each node says to it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) nodes: Vec<NodeSays>,
    /// Jobs that come before it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) ahead: Vec<Who>,
    /// What would help, in words.
    #[serde(deserialize_with = "or_default")]
    pub(crate) help: Vec<String>,
    /// Where its tasks are.
    #[serde(deserialize_with = "or_default")]
    pub(crate) placed: Vec<PlacedAt>,
}

/// What a node says to a job that waits.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSays {
    #[serde(deserialize_with = "who")]
    pub(crate) node: Who,
    /// Why not; null if it has room.
    pub(crate) why: Option<String>,
}

/// Where a task is, and since when.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct PlacedAt {
    pub(crate) task: u64,
    #[serde(deserialize_with = "who")]
    pub(crate) node: Who,
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: String,
    pub(crate) since: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(value: Value) -> Job {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_job_of_an_older_or_newer_node_is_still_a_job() {
        let bare =
            job(json!({ "id": "1a2b3c4d5e6f", "party": null, "tasks": null, "of_later": 1 }));
        assert_eq!((bare.called().as_str(), bare.is_over()), ("job 1a2b3c4d", false));
        // It does not say whether it is over: its state does.
        assert!(job(json!({ "state": "lost" })).is_over());
        assert!(!job(json!({ "state": "stopping" })).is_over());
    }

    #[test]
    fn a_job_knows_where_it_was_and_for_how_long() {
        let it = job(json!({
            "id": "1a2b3c4d5e6f", "name": "hello", "state": "done",
            "submitted_at": "2026-11-16T12:00:00Z", "started_at": "2026-11-16T12:00:01.5Z",
            "ended_at": "2026-11-16T12:00:05Z",
            "tasks": [
                { "number": 0, "node": "beta", "state": "done" },
                { "number": 1, "node": "alpha", "state": "failed" },
                { "number": 2, "node": "beta", "state": "done" },
                { "number": 3, "node": null, "state": "waiting" },
            ],
        }));
        assert_eq!(it.called(), "hello (1a2b3c4d)");
        assert_eq!((it.nodes(), it.tasks_done()), (vec!["beta", "alpha"], 2));
        assert_eq!((it.waited_ms(), it.ran_ms()), (Some(1500), Some(3500)));
    }
}
