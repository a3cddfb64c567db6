//! The answers about trainings.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::jobs::called;
use super::or_default;

/// How a training goes: `/v1/jobs/{job}/course`, and a part of `/v1/jobs/{job}`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Course {
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    /// The job's.
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: String,
    /// The node that coordinates.
    pub(crate) coordinator: Option<String>,
    /// How many rounds are in the model that stands; null before there is one.
    pub(crate) round: Option<u64>,
    /// How many there will be.
    pub(crate) rounds: Option<u64>,
    /// What they are: `round`, or `step` with a parameter server.
    #[serde(deserialize_with = "or_default")]
    pub(crate) unit: String,
    pub(crate) model: Option<Standing>,
    pub(crate) open: Option<Open>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) participants: Vec<Participant>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) curve: Vec<Point>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) budget: Option<Budget>,
}

impl Course {
    /// `mnist-cnn (1a2b3c4d)`.
    pub(crate) fn called(&self) -> String {
        called(&self.id, &self.name)
    }

    /// What is counted: `round` or `step`.
    pub(crate) fn unit(&self) -> &str {
        if self.unit == "step" { "step" } else { "round" }
    }

    /// `round 3/20`.
    pub(crate) fn at(&self, round: u64) -> String {
        let unit = self.unit();
        match self.rounds {
            Some(rounds) => format!("{unit} {round}/{rounds}"),
            None => format!("{unit} {round}"),
        }
    }

    /// The beginning of the job's id.
    pub(crate) fn short(&self) -> &str {
        self.id.get(..8).unwrap_or(&self.id)
    }
}

/// The model that stands.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Standing {
    pub(crate) round: Option<u64>,
    pub(crate) bytes: Option<u64>,
    /// The nodes that have it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) holders: Vec<String>,
}

/// The round that is open.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Open {
    pub(crate) round: Option<u64>,
    /// The parties that are waited for.
    #[serde(deserialize_with = "or_default")]
    pub(crate) selected: Vec<String>,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) since: Option<String>,
}

/// What came of a participant so far.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Participant {
    #[serde(deserialize_with = "or_default")]
    pub(crate) party: String,
    pub(crate) node: Option<String>,
    /// `good`, `slow`, `late`, `dropped`, `refused`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) standing: String,
    /// Why so, in the node's words.
    pub(crate) why: Option<String>,
    /// Updates that are in a model, and of these those that came late.
    #[serde(deserialize_with = "or_default")]
    pub(crate) taken: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) late: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) refused: u64,
    /// Rounds that did not wait for it any longer, and how many of these were the last ones.
    #[serde(deserialize_with = "or_default")]
    pub(crate) missed: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) missed_in_a_row: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) examples: u64,
    /// Its part of all examples: 0..1.
    #[serde(deserialize_with = "or_default")]
    pub(crate) share: f64,
    /// Its last times; null before it has sent anything.
    pub(crate) fetch_ms: Option<u64>,
    pub(crate) compute_ms: Option<u64>,
    pub(crate) upload_ms: Option<u64>,
}

impl Participant {
    /// Its last times: fetch, compute, upload. `None` if it has sent nothing yet.
    pub(crate) fn times(&self) -> Option<[u64; 3]> {
        let times = [self.fetch_ms, self.compute_ms, self.upload_ms];
        let known = times.iter().any(Option::is_some);
        known.then(|| times.map(Option::unwrap_or_default))
    }

    /// All of them together.
    pub(crate) fn whole_ms(&self) -> Option<u64> {
        self.times().map(|times| times.into_iter().fold(0, u64::saturating_add))
    }
}

/// A point of the curves.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Point {
    #[serde(deserialize_with = "or_default")]
    pub(crate) round: u64,
    pub(crate) at: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) metrics: BTreeMap<String, f64>,
}

/// How it ended.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Verdict {
    /// `done`, `spent`, `failed`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: String,
    /// `model@3`; null if it is private, or there is none.
    pub(crate) model: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) why: Option<String>,
}

/// What may be spent of the participants' privacy.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Budget {
    pub(crate) epsilon: Option<f64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) charged_rounds: u64,
}

/// What `/v1/models` adds to a version.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Trained {
    /// The id of the job that made it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) job: String,
    /// What that is called; null if it was dropped.
    pub(crate) job_name: Option<String>,
    pub(crate) round: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) metrics: BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_training_that_has_not_begun_is_no_mistake() {
        let course: Course = serde_json::from_value(json!({
            "id": "1a2b3c4d5e6f", "name": "mnist", "round": null, "rounds": 20, "model": null, "open": null,
            "coordinator": null, "verdict": null, "budget": null, "curve": null, "of_later": 1,
            "participants": [{ "party": "lab", "node": null, "fetch_ms": null, "why": null, "share": null }],
        }))
        .unwrap();
        assert_eq!((course.called().as_str(), course.short()), ("mnist (1a2b3c4d)", "1a2b3c4d"));
        assert_eq!(course.participants[0].whole_ms(), None);
        let one = Participant { compute_ms: Some(4), upload_ms: Some(3), ..Participant::default() };
        assert_eq!((one.times(), one.whole_ms()), (Some([0, 4, 3]), Some(7)));
    }
}
