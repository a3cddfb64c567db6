//! What is known of an attempt beside what it printed: a small file in its directory, kept as long as that is.
//!
//! The state knows the last attempt at a task; of those before it only the nodes know that ran them.

use std::path::Path;

use mesh_consensus::id::JobId;
use serde::{Deserialize, Serialize};

use super::{Key, Work};

/// The file.
const FILE: &str = "about.json";

/// An attempt that is or was on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its fence.
    pub fence: u64,
    /// Which attempt at its task, from 1 on; 0 if nobody wrote it down.
    pub attempt: u32,
    /// The image in which it runs, as Docker identifies it: `sha256:…`. `None` for a plain process.
    pub image_id: Option<String>,
}

impl About {
    /// Writes it down. Nothing depends on it but what people are told.
    pub(super) fn write(&self, dir: &Path) -> std::io::Result<()> {
        std::fs::write(dir.join(FILE), serde_json::to_vec(self)?)
    }

    pub(super) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.join(FILE)).ok()?).ok()
    }
}

impl Work {
    /// The attempts at a task that left anything here, by fence. Touches the disk.
    pub fn past(&self, job: JobId, task: u32) -> Vec<About> {
        let keys = self.on_disk().into_iter().filter(|key| key.job == job && key.task == task);
        let mut keys: Vec<Key> = keys.collect();
        keys.sort_unstable();
        let about = |key: Key| {
            let fence = key.fence;
            About { fence, ..About::read(&self.dir(key)).unwrap_or_default() }
        };
        keys.into_iter().map(about).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_attempts_are_found_by_what_they_left() {
        let temp = tempfile::tempdir().unwrap();
        let work = Work::new(temp.path());
        let job = JobId([1; 16]);
        for (task, fence, attempt) in [(0, 9, 2), (0, 5, 1), (1, 6, 1), (0, 12, 0)] {
            let dir = work.dir(Key { job, task, fence });
            std::fs::create_dir_all(&dir).unwrap();
            let image_id = (attempt == 2).then(|| "sha256:ab".to_owned());
            if attempt > 0 {
                About { fence, attempt, image_id }.write(&dir).unwrap();
            }
        }
        let found = work.past(job, 0);
        let told: Vec<(u64, u32)> = found.iter().map(|one| (one.fence, one.attempt)).collect();
        assert_eq!(told, [(5, 1), (9, 2), (12, 0)]);
        assert_eq!(found[1].image_id.as_deref(), Some("sha256:ab"));
        assert_eq!(work.past(JobId([2; 16]), 0), []);
    }
}
