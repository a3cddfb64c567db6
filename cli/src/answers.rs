//! The answers of a node, as far as people are shown them.
//!
//! `--json` passes an answer on as it came. Every field here may be missing: an older node does not know
//! it, and a newer one adds others.

use std::collections::BTreeMap;

use serde::Deserialize;

mod course;
mod data;
mod jobs;
pub(crate) use course::{Course, Participant, Point, Trained};
pub(crate) use data::{
    Change, Dataset, Diff, Holder, Pulled, Pushed, Removed, Reshared, Tagged, Usage, Verified,
};
pub(crate) use jobs::{Explained, Job, LogLine, Outlook, Task, called};

/// A node or party by id and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Who {
    /// Its id.
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    /// Its name; empty while nobody has told it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
}

/// Null is the same as missing.
fn or_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Who {
    /// The name, or the beginning of the id where there is none.
    pub(crate) fn shown(&self) -> &str {
        if self.name.is_empty() { self.id.get(..8).unwrap_or(&self.id) } else { &self.name }
    }
}

/// Some answers hold the name alone where others hold id and name: both are read.
fn who<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Who, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Name(String),
        Both(Who),
        None(()),
    }
    Ok(match Either::deserialize(from)? {
        Either::Name(name) => Who { name, ..Who::default() },
        Either::Both(both) => both,
        Either::None(()) => Who::default(),
    })
}

/// What `/v1/status` says.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(deserialize_with = "who")]
    pub(crate) party: Who,
    /// How many nodes of its party stay, itself included.
    pub(crate) party_nodes: u64,
    pub(crate) mesh: String,
    pub(crate) epoch: u64,
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) level: u64,
    /// `voter`, `learner`, `watcher`, `joining`.
    pub(crate) role: String,
    pub(crate) is_leader: bool,
    #[serde(deserialize_with = "who")]
    pub(crate) leader: Who,
    pub(crate) term: u64,
    pub(crate) index: u64,
    pub(crate) mesh_time: String,
    pub(crate) members: u64,
    pub(crate) voters: u64,
    pub(crate) learners: u64,
    pub(crate) tick_ms: u64,
    pub(crate) data_addresses: Vec<String>,
    pub(crate) overlay_addresses: Vec<String>,
    pub(crate) api_address: Option<String>,
    pub(crate) uptime_ms: u64,
    pub(crate) fsync_p99_us: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) worker: bool,
    pub(crate) drained: bool,
    /// It is on its way out.
    pub(crate) leaving: bool,
    /// It is no member any more, and knows it.
    pub(crate) removed: bool,
    /// The epoch of a mesh that was recovered without it.
    pub(crate) later_epoch: Option<u64>,
    /// What this host cannot do for the tasks that run there.
    pub(crate) work_lacks: Vec<String>,
    /// How far the node's clock is ahead of most voters'.
    pub(crate) clock_ahead_ms: Option<i64>,
}

impl Status {
    /// Whether it takes part: it was admitted and has the state.
    pub(crate) fn is_member(&self) -> bool {
        !self.role.is_empty() && self.role != "joining"
    }
}

/// One of `/v1/nodes`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(deserialize_with = "who")]
    pub(crate) party: Who,
    /// `up`, `silent`, `down`, `leaving`, `draining`.
    pub(crate) state: String,
    pub(crate) role: String,
    pub(crate) is_leader: bool,
    pub(crate) seat: Option<u64>,
    pub(crate) addresses: Vec<String>,
    /// Where it gossips, by UDP and by TCP.
    pub(crate) overlay_addresses: Vec<String>,
    pub(crate) arch: Option<String>,
    pub(crate) os: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) cpus: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) memory_free_bytes: Option<u64>,
    pub(crate) disk_free_bytes: Option<u64>,
    pub(crate) load1: Option<f64>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) seen_age_ms: Option<u64>,
    pub(crate) admitted_at: Option<String>,
    pub(crate) worker: bool,
    pub(crate) level: Option<u64>,
}

/// A GPU of a node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_used_bytes: Option<u64>,
    pub(crate) utilisation_ratio: Option<f64>,
    pub(crate) temperature_c: Option<f64>,
    pub(crate) power_w: Option<f64>,
    pub(crate) health: Option<String>,
}

/// One of `/v1/tickets`; `ticket` itself only when it is new.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Ticket {
    pub(crate) id: String,
    pub(crate) ticket: Option<String>,
    #[serde(deserialize_with = "who")]
    pub(crate) party: Who,
    /// `member`, `worker`, `new_party`.
    pub(crate) kind: Option<String>,
    /// How many machines it admits in all; said only when it is new.
    pub(crate) uses: u64,
    /// How many more.
    pub(crate) uses_left: u64,
    /// `good`, `spent`, `expired`.
    pub(crate) state: Option<String>,
    pub(crate) expires_at: String,
}

/// One of `/v1/parties`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Party {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) nodes: Option<u64>,
    pub(crate) voters: Option<u64>,
    /// Whether this node belongs to it.
    pub(crate) own: bool,
    pub(crate) founded_at: Option<String>,
    pub(crate) weight: Option<u64>,
    pub(crate) quota_cpus: Option<f64>,
    pub(crate) quota_gpus: Option<u64>,
}

/// One of `/v1/requests`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    pub(crate) id: serde_json::Value,
    pub(crate) kind: String,
    /// `open`, `granted`, `denied`, `expired`, `withdrawn`, `void`.
    pub(crate) state: Option<String>,
    /// In words.
    pub(crate) text: Option<String>,
    #[serde(deserialize_with = "who")]
    pub(crate) by: Who,
    pub(crate) granted: Vec<serde_json::Value>,
    pub(crate) denied: Vec<serde_json::Value>,
    pub(crate) needed: Option<u64>,
    pub(crate) opened_at: Option<String>,
    pub(crate) expires_at: Option<String>,
    /// When it ended, if it has.
    pub(crate) decided_at: Option<String>,
}

/// One of `/v1/links`: a connection of the data plane.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Link {
    #[serde(deserialize_with = "who")]
    pub(crate) node: Who,
    pub(crate) address: String,
    pub(crate) rtt_ms: Option<f64>,
    pub(crate) path: Option<String>,
}

/// One of `/v1/reach`: whether a member answered a moment ago.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Reach {
    #[serde(deserialize_with = "who")]
    pub(crate) node: Who,
    pub(crate) answers: bool,
}

/// One of `/v1/config`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: serde_json::Value,
    #[serde(alias = "source", alias = "origin")]
    pub(crate) from: String,
}

/// A value in words: a string as it is, else its JSON.
pub(crate) fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => String::new(),
        serde_json::Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_party_may_be_a_name_or_an_id_and_a_name() {
        let one: Node = serde_json::from_value(json!({ "party": "lab" })).unwrap();
        let two: Node =
            serde_json::from_value(json!({ "party": { "id": "7", "name": "lab" } })).unwrap();
        let none: Status = serde_json::from_value(json!({ "leader": null })).unwrap();
        assert_eq!((one.party.shown(), two.party.shown()), ("lab", "lab"));
        assert_eq!(none.leader, Who::default());
    }

    #[test]
    fn a_field_of_a_later_version_is_no_mistake() {
        let node: Node = serde_json::from_value(json!({ "id": "a", "shoe_size": 43 })).unwrap();
        assert_eq!(node.id, "a");
    }
}
