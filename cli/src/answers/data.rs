//! The answers about datasets.
//!
//! Where a node may not know something (another party's data that is only listed), it says null.

use serde::Deserialize;
use serde_json::Value;

use super::{Who, or_default, plain, who};

/// A version of a dataset: one of `/v1/data`, or with more of it `/v1/data/show`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Dataset {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) version: Option<u64>,
    pub(crate) manifest: Option<String>,
    #[serde(deserialize_with = "who")]
    pub(crate) party: Who,
    /// `private`, `listed`, `shared`, `open`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) visibility: String,
    pub(crate) bytes: Option<u64>,
    pub(crate) files: Option<u64>,
    pub(crate) copies: Option<u64>,
    pub(crate) copies_wanted: Option<u64>,
    pub(crate) created_at: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) tags: Vec<String>,
    /// With whom it is shared.
    #[serde(deserialize_with = "or_default")]
    pub(crate) readers: Vec<String>,
    /// Whether it belongs to this node's party.
    #[serde(deserialize_with = "or_default")]
    pub(crate) mine: bool,
    /// How much of it is on this node: `whole`, `partial`, `none`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) here: String,
    pub(crate) chunks: Option<u64>,
    pub(crate) objects: Option<u64>,
    #[serde(deserialize_with = "who")]
    pub(crate) author: Who,
    pub(crate) note: Option<String>,
    pub(crate) lineage: Option<Lineage>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) holders: Vec<Holder>,
    pub(crate) acknowledged: Option<bool>,
    pub(crate) pinned: Option<bool>,
    /// Why there are fewer copies than were wanted, in the node's words.
    pub(crate) shortfall: Option<String>,
    /// Files of the node's machine that it was made of in place, and that have changed since.
    #[serde(deserialize_with = "or_default")]
    pub(crate) changed_files: Vec<String>,
}

impl Dataset {
    /// How to call it here: `mnist@3`, `clinic-a/xray@3`; the beginning of its id while its name is not told.
    pub(crate) fn reference(&self) -> String {
        let version = self.version.filter(|_| !self.name.is_empty());
        let version = version.map(|version| format!("@{version}")).unwrap_or_default();
        format!("{}{version}", self.called())
    }

    /// The same without the version: `mnist`, `clinic-a/xray`.
    pub(crate) fn called(&self) -> String {
        if self.name.is_empty() {
            return self.id.get(..8).unwrap_or(&self.id).to_owned();
        }
        match self.party.shown() {
            party if self.mine || party.is_empty() => self.name.clone(),
            party => format!("{party}/{}", self.name),
        }
    }

    /// Whether fewer copies stand than were wanted.
    pub(crate) fn is_short(&self) -> bool {
        matches!((self.copies, self.copies_wanted), (Some(copies), Some(wanted)) if copies < wanted)
    }
}

/// What a version was made of.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Lineage {
    pub(crate) job: Value,
    #[serde(deserialize_with = "or_default")]
    pub(crate) inputs: Vec<Value>,
}

impl Lineage {
    /// In words; empty if nothing is known.
    pub(crate) fn words(&self) -> String {
        let inputs: Vec<String> = self.inputs.iter().map(plain).collect();
        let job = match plain(&self.job) {
            job if job.is_empty() => String::new(),
            job => format!("by job {job}"),
        };
        let from =
            if inputs.is_empty() { String::new() } else { format!("from {}", inputs.join(", ")) };
        [job, from].join(" ").trim().to_owned()
    }
}

/// A node that has some of a version, or all of it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Holder {
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(deserialize_with = "who")]
    pub(crate) party: Who,
    /// `up`, `down`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: String,
    /// `durable`, `pulling`, `cached`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) holds: String,
    pub(crate) bytes: Option<u64>,
}

impl Holder {
    /// The name, or the beginning of the id where there is none.
    pub(crate) fn shown(&self) -> &str {
        if self.name.is_empty() { self.id.get(..8).unwrap_or(&self.id) } else { &self.name }
    }
}

/// What a push adds to the version it made.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Pushed {
    pub(crate) new_bytes: Option<u64>,
    pub(crate) read_bytes: Option<u64>,
    /// Objects that were damaged or gone on this node, and are whole again.
    pub(crate) mended_objects: Option<u64>,
    pub(crate) elapsed_ms: Option<u64>,
    /// Whether nodes that could hold a copy were waited for in vain.
    #[serde(deserialize_with = "or_default")]
    pub(crate) timed_out: bool,
    /// Whether too few nodes have room for one.
    #[serde(deserialize_with = "or_default")]
    pub(crate) no_room: bool,
}

/// What a pull adds to the version it fetched.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Pulled {
    pub(crate) fetched_bytes: Option<u64>,
    /// What was on this machine already.
    pub(crate) local_bytes: Option<u64>,
    /// Objects that were damaged or gone on this node, and were fetched anew.
    pub(crate) mended_objects: Option<u64>,
    pub(crate) elapsed_ms: Option<u64>,
    pub(crate) dir: Option<String>,
}

/// What a look at every byte found.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Verified {
    pub(crate) checked_bytes: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) damaged: Vec<Damaged>,
    /// How many of these are whole again; some say only that all are.
    repaired: Value,
}

impl Verified {
    /// How many damaged files are whole again.
    pub(crate) fn repaired(&self) -> usize {
        match &self.repaired {
            Value::Bool(true) => self.damaged.len(),
            Value::Array(paths) => paths.len(),
            other => other.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
        }
    }
}

/// A file that is not what the manifest says.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Damaged {
    #[serde(deserialize_with = "or_default")]
    pub(crate) path: String,
}

/// How one version differs from another.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Diff {
    pub(crate) from: Value,
    pub(crate) to: Value,
    pub(crate) added: u64,
    pub(crate) removed: u64,
    pub(crate) changed: u64,
    pub(crate) unchanged: u64,
    /// What a node that has the one fetches for the other.
    pub(crate) new_bytes: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) changes: Vec<Change>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) truncated: bool,
}

/// One file that differs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Change {
    #[serde(deserialize_with = "or_default")]
    pub(crate) path: String,
    /// `added`, `removed`, `changed`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) change: String,
    pub(crate) old_bytes: Option<u64>,
    pub(crate) new_bytes: Option<u64>,
}

/// Where a tag stands now.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Tagged {
    pub(crate) version: Option<u64>,
}

/// What has changed with those who may read a version.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Reshared {
    /// The number that it had before, if it has another now.
    pub(crate) old_version: Option<u64>,
    /// Tags that could not go along.
    #[serde(deserialize_with = "or_default")]
    pub(crate) dropped_tags: Vec<String>,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Removed {
    #[serde(deserialize_with = "or_default")]
    pub(crate) removed: Vec<Dataset>,
}

/// What a node's store holds, and how much room there is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) store_bytes: Option<u64>,
    pub(crate) free_bytes: Option<u64>,
    /// At this size, what nobody keeps begins to go.
    pub(crate) high_bytes: Option<u64>,
    /// At this size, it stops.
    pub(crate) low_bytes: Option<u64>,
    /// What was fetched of versions that are not whole here.
    pub(crate) partial_bytes: Option<u64>,
    /// Files of the store that were found damaged and set aside.
    pub(crate) quarantined: Option<u64>,
    pub(crate) quarantine_bytes: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) items: Vec<Used>,
}

/// What one version takes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Used {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) version: Option<u64>,
    pub(crate) bytes: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) pinned: bool,
    /// Whether it is one of the copies that were promised.
    #[serde(deserialize_with = "or_default")]
    pub(crate) durable: bool,
    pub(crate) last_used_at: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_node_may_not_know_is_null_and_no_mistake() {
        let listed: Dataset = serde_json::from_value(json!({
            "name": "xray", "version": 3, "manifest": null, "party": "clinic-a", "visibility": "listed",
            "bytes": null, "files": null, "copies": null, "copies_wanted": null, "created_at": null, "id": null,
            "tags": null, "readers": null, "mine": false, "here": null, "author": null, "lineage": null,
            "holders": null, "note": null, "acknowledged": null,
        }))
        .unwrap();
        assert_eq!(listed.reference(), "clinic-a/xray@3");
        assert!(!listed.is_short(), "nothing is known of its copies");
        assert_eq!(Dataset { mine: true, ..listed }.reference(), "xray@3");
        let sealed = Dataset { id: "0123456789".into(), ..Dataset::default() };
        assert_eq!(sealed.reference(), "01234567");
    }

    #[test]
    fn a_repair_is_a_number_a_list_or_a_word() {
        let of = |repaired: Value| {
            let found =
                json!({ "damaged": [{ "path": "a" }, { "path": "b" }], "repaired": repaired });
            serde_json::from_value::<Verified>(found).unwrap().repaired()
        };
        assert_eq!([json!(1), json!(true), json!(["a"]), json!(null)].map(of), [1, 2, 1, 0]);
    }
}
