//! What is never imported, whatever name or link leads there.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A directory that stays apart, with everything in it: that of a node, where its keys are.
///
/// What lies right in it is known by its inode, too, so that a further hard link is found out. What is deeper is known by its
/// path alone: what the store lays out are hard links to its objects, and may well be imported.
#[derive(Debug, Clone)]
pub struct Apart {
    /// Without links in it.
    dir: PathBuf,
    /// Devices and inodes.
    inodes: BTreeSet<(u64, u64)>,
}

impl Apart {
    /// Looks at what lies in `dir` now.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let dir = fs::canonicalize(dir)?;
        let mut inodes = BTreeSet::from([inode(&fs::metadata(&dir)?)]);
        for item in fs::read_dir(&dir)? {
            // What is a link here leads to what is meant. It may have gone meanwhile.
            if let Ok(meta) = fs::metadata(item?.path()) {
                inodes.insert(inode(&meta));
            }
        }
        Ok(Self { dir, inodes })
    }

    /// Whether it is the directory, or in it. `path` has no links in it.
    pub(super) fn holds(&self, path: &Path, meta: &Metadata) -> bool {
        path.starts_with(&self.dir) || self.inodes.contains(&inode(meta))
    }
}

fn inode(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}
