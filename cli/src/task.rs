//! Which task is meant, and where in it: `JOB`, `JOB.N`, `JOB.N:PATH`.
//!
//! The name of a job may end in a dot and a number itself. So the whole is looked for first, and then what stands before
//! the dot.

use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;

use crate::client::Api;
use crate::report::{Code, Report};
use crate::view::clean;

/// The longest word that is taken: an id and a number.
const MAX_WORD: usize = 80;

/// Why a word names no task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoTask(&'static str);

impl std::fmt::Display for NoTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NoTask {}

/// A task as it is typed: `JOB`, or `JOB.N`. Plain enough to stand in a path as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskRef(String);

impl FromStr for TaskRef {
    type Err = NoTask;

    fn from_str(word: &str) -> Result<Self, NoTask> {
        let lower = word.to_ascii_lowercase();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let fits = lower.starts_with(plain)
            && lower.len() <= MAX_WORD
            && lower.chars().all(|c| plain(c) || "._-".contains(c));
        match fits {
            true => Ok(Self(lower)),
            false => Err(NoTask(
                "it takes a job by its name, its id or the first four or more characters of its id, \
                 and may name a task of it: JOB.0 (see mesh jobs)",
            )),
        }
    }
}

impl TaskRef {
    /// The job and the number of a task, if the word may mean that.
    fn parts(&self) -> Option<(&str, u32)> {
        let (job, number) = self.0.rsplit_once('.')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        Some((job, number.parse().ok().filter(|_| is_number && !job.is_empty())?))
    }

    /// The task that is meant, if there is such a job. `number` was typed beside it.
    pub(crate) async fn find(&self, api: &Api, number: Option<u32>) -> Result<Task, Report> {
        let whole = api.get(&format!("/v1/jobs/{}", self.0)).await;
        let (answer, own) = match (whole, self.parts()) {
            (Ok(answer), _) => (answer, None),
            (Err(report), Some((job, own))) if report.code == Code::NotFound => {
                // Whoever asks for a job that is not there is told of what was typed.
                let before = api.get(&format!("/v1/jobs/{job}")).await;
                (before.map_err(|_| report)?, Some(own))
            }
            (Err(report), _) => return Err(report),
        };
        if let (Some(own), Some(number)) = (own, number)
            && own != number
        {
            return Err(Report::new(
                Code::Usage,
                format!("{} is not task {number}", self.0),
                "two tasks are named",
                "leave one of them out",
            ));
        }
        let job: Job = answer.item()?;
        Ok(Task { job: job.id, name: job.name, number: own.or(number), groups: job.groups })
    }
}

impl std::fmt::Display for TaskRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is asked of `/v1/jobs/{job}` here.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Job {
    id: String,
    name: String,
    groups: Vec<Value>,
}

/// A task of a job that is there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Task {
    /// The job's id.
    pub(crate) job: String,
    /// What it is called.
    pub(crate) name: String,
    /// Which task; `None`: the first that has a place.
    pub(crate) number: Option<u32>,
    /// The kinds of its tasks, as the node tells.
    pub(crate) groups: Vec<Value>,
}

impl Task {
    /// How to call it.
    pub(crate) fn called(&self) -> String {
        let name = clean(&self.name);
        match self.number {
            Some(number) => format!("task {number} of {name}"),
            None => name,
        }
    }

    /// The path of one of its streams, and what is asked there.
    pub(crate) fn path(&self, stream: &str, asked: &[(&str, &str)]) -> String {
        let number = self.number.map(|number| ("task", number.to_string()));
        let number = number.iter().map(|(key, value)| (*key, value.as_str()));
        let pairs = number.chain(asked.iter().copied());
        let query: Vec<String> =
            pairs.map(|(key, value)| format!("{key}={}", escaped(value))).collect();
        match query.is_empty() {
            true => format!("/v1/jobs/{}/{stream}", self.job),
            false => format!("/v1/jobs/{}/{stream}?{}", self.job, query.join("&")),
        }
    }
}

/// A value as it can stand in a query.
fn escaped(value: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    value.bytes().map(escape).collect()
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this machine.
    Here(String),
    /// In a task's directory.
    There(TaskRef, String),
}

impl FromStr for Place {
    type Err = NoTask;

    /// What has a colon before any slash is in a task: as those who know `scp` expect.
    fn from_str(word: &str) -> Result<Self, NoTask> {
        match word.split_once(':') {
            Some((task, path)) if !task.contains('/') => match task.parse() {
                Ok(task) => Ok(Self::There(task, path.to_owned())),
                Err(_) => Err(NoTask(
                    "a path of a task is JOB:PATH or JOB.N:PATH; a file of this machine with a colon in its \
                     name is ./NAME",
                )),
            },
            _ if word.is_empty() => Err(NoTask("it takes a path, or JOB:PATH for one of a task")),
            _ => Ok(Self::Here(word.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_a_job_and_maybe_a_number() {
        let parts = |word: &str| {
            let task: TaskRef = word.parse().unwrap();
            task.parts().map(|(job, number)| (job.to_owned(), number))
        };
        assert_eq!(parts("mnist-cnn"), None);
        assert_eq!(parts("mnist-cnn.3"), Some(("mnist-cnn".into(), 3)));
        assert_eq!(parts("resnet.v1.12"), Some(("resnet.v1".into(), 12)));
        assert_eq!(parts("1A2B.0"), Some(("1a2b".into(), 0)));
        assert_eq!(parts("resnet.v1"), None);
        assert_eq!(parts("a."), None);
        assert_eq!(parts("a.99999999999"), None);
        for word in ["", ".1", "-x", "a/b", "a b", "a:b", "a?b", "a%2f", "é", &"a".repeat(90)] {
            assert!(word.parse::<TaskRef>().is_err(), "{word:?}");
        }
    }

    #[test]
    fn a_colon_before_any_slash_means_a_task() {
        let there = |task: &str, path: &str| Place::There(task.parse().unwrap(), path.into());
        for (word, place) in [
            ("job:out", there("job", "out")),
            ("job.2:/work/a:b", there("job.2", "/work/a:b")),
            ("job:", there("job", "")),
            ("./a:b", Place::Here("./a:b".into())),
            ("/tmp/job:x", Place::Here("/tmp/job:x".into())),
            ("out", Place::Here("out".into())),
            ("..", Place::Here("..".into())),
        ] {
            assert_eq!(word.parse::<Place>().unwrap(), place, "{word}");
        }
        for word in ["", ":x", "a b:x", "-:x"] {
            assert!(word.parse::<Place>().is_err(), "{word:?}");
        }
    }

    #[test]
    fn what_is_asked_can_stand_in_a_query() {
        let mut task =
            Task { job: "ab".into(), name: "x".into(), number: None, groups: Vec::new() };
        assert_eq!(task.path("cp", &[]), "/v1/jobs/ab/cp");
        let asked = [("path", "a b&c=ü"), ("put", "x+y")];
        let path = "/v1/jobs/ab/cp?path=a%20b%26c%3D%C3%BC&put=x%2By";
        assert_eq!(task.path("cp", &asked), path);
        task.number = Some(3);
        assert_eq!(task.path("exec", &[]), "/v1/jobs/ab/exec?task=3");
        assert_eq!(task.called(), "task 3 of x");
    }
}
