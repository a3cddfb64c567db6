//! How the training goes, as `/v1/jobs/{job}/course` tells. Whatever is missing is empty.

use std::collections::BTreeMap;

use serde::Deserialize;

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Course {
    /// Whether the job is over.
    pub(super) is_final: bool,
    /// Why it is over, or does not go on.
    pub(super) reason: Option<String>,
    /// The node that coordinates.
    pub(super) coordinator: Option<String>,
    /// How many rounds are in the model that stands.
    pub(super) round: Option<u64>,
    pub(super) participants: Vec<Participant>,
    pub(super) curve: Vec<Point>,
    pub(super) verdict: Option<Verdict>,
}

/// What came of a party.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Participant {
    pub(super) party: String,
    /// `good`, `slow`, `late`, `dropped`, `refused`.
    pub(super) standing: String,
    /// Updates that are in a model, and of these those that came late.
    pub(super) taken: u64,
    pub(super) late: u64,
    /// Rounds that did not wait for it.
    pub(super) missed: u64,
    /// Examples that went into what was taken, and which share of all that is: 0..1.
    pub(super) examples: u64,
    pub(super) share: f64,
    /// Its last times.
    pub(super) fetch_ms: Option<u64>,
    pub(super) compute_ms: Option<u64>,
    pub(super) upload_ms: Option<u64>,
}

impl Participant {
    /// How long it took to get the model, to train, and to send its update.
    pub(super) fn times(&self) -> [u64; 3] {
        [self.fetch_ms, self.compute_ms, self.upload_ms].map(Option::unwrap_or_default)
    }

    /// All of that together.
    pub(super) fn whole_ms(&self) -> u64 {
        self.times().into_iter().fold(0, u64::saturating_add)
    }
}

/// What a round came to.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Point {
    pub(super) round: u64,
    pub(super) metrics: BTreeMap<String, f64>,
}

impl Point {
    /// Which share of the held-out images is recognised: 0..1.
    pub(super) fn accuracy(&self) -> Option<f64> {
        self.metrics.get("accuracy").copied()
    }
}

/// How it ended.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Verdict {
    /// `done`, `spent`, `failed`.
    pub(super) state: String,
    pub(super) why: Option<String>,
}

impl Course {
    /// How it ended, if it has: well, or why not.
    pub(super) fn ending(&self) -> Option<Result<(), String>> {
        let unknown = || "nobody says why".to_owned();
        match &self.verdict {
            Some(verdict) if verdict.state == "failed" => {
                Some(Err(verdict.why.clone().unwrap_or_else(unknown)))
            }
            Some(_) => Some(Ok(())),
            None if self.is_final => Some(Err(self.reason.clone().unwrap_or_else(unknown))),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_training_that_has_not_begun_and_one_of_a_later_version_are_understood() {
        let course: Course = serde_json::from_value(json!({
            "round": null, "coordinator": null, "verdict": null, "of_later": 1,
            "participants": [{ "party": "lab", "fetch_ms": null, "compute_ms": 7, "why": null }],
        }))
        .unwrap();
        assert_eq!((course.ending(), course.participants[0].whole_ms()), (None, 7));
    }

    #[test]
    fn a_job_that_is_over_without_a_verdict_has_failed() {
        let verdict = |state: &str| Some(Verdict { state: state.into(), why: Some("w".into()) });
        let with = |verdict| Course { verdict, ..Course::default() };
        assert_eq!(with(verdict("done")).ending(), Some(Ok(())));
        assert_eq!(with(verdict("failed")).ending(), Some(Err("w".into())));
        let lost = Course { is_final: true, reason: Some("r".into()), ..Course::default() };
        assert_eq!(lost.ending(), Some(Err("r".into())));
    }
}
