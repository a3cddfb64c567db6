//! What a task was given on the node where it runs.

use serde::{Deserialize, Serialize};

use super::spec::MAX_TASK_GPUS;

/// A part of a node that one attempt has for itself. No two attempts share a GPU, and all on a node together never
/// have more than the node has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Allotment {
    /// In thousandths of a core.
    pub cpu_milli: u64,
    /// In bytes.
    pub memory_bytes: u64,
    /// In bytes.
    pub disk_bytes: u64,
    /// By UUID, in order.
    pub gpus: Vec<[u8; 16]>,
}

impl Allotment {
    /// Whether it can be one at all.
    pub fn is_sound(&self) -> bool {
        let few = u64::try_from(self.gpus.len()).is_ok_and(|count| count <= MAX_TASK_GPUS);
        few && self.gpus.is_sorted_by(|a, b| a < b)
    }
}
