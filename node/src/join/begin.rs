//! The last step of a join: a log and the file `member`, both or neither.
//!
//! ```text
//!  the new log, under another name ─► member ─► an old log is moved aside ─► the new log takes its name
//! ```
//!
//! A crash before `member` is written leaves a directory in which no node lives, and the same command goes on. After
//! it, [`finish`] does the rest when the node is started. A log without `member` is none of ours: it may have
//! promised something, so nobody touches it.

use mesh_consensus::log::{Log as _, Snapshot};
use mesh_storage::disk::{Disk as _, RealDisk};
use mesh_storage::log::{CreateError, LogSettings, RedbLog};

use crate::clock;
use crate::dir::{Dir, DirError, LOG, Membership};

/// The new log, until it takes its name.
const NEXT: &str = "state.redb.joining";

/// Why a node could not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The directory.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The log could not be made.
    #[error("could not make the node's log")]
    Log(#[from] CreateError),
}

/// Makes the log of a new seat, with the state that it begins with, if any.
pub(super) fn begin(
    dir: &Dir,
    membership: &Membership,
    genesis: Option<&Snapshot>,
) -> Result<(), BeginError> {
    let disk = open(dir)?;
    forget(dir, &disk)?;
    let identity = membership.identity;
    drop(RedbLog::create(&disk, NEXT, identity, genesis, LogSettings::default())?);
    dir.keep_membership(membership)?;
    Ok(finish(dir, membership)?)
}

/// Finishes what an earlier start has left half done, if anything.
pub fn finish(dir: &Dir, membership: &Membership) -> Result<(), DirError> {
    if !dir.file(NEXT).exists() {
        return Ok(());
    }
    let disk = open(dir)?;
    let next = RedbLog::open(&disk, NEXT, LogSettings::default());
    if !next.is_ok_and(|log| log.identity() == membership.identity) {
        // It was given up before the membership was written.
        return forget(dir, &disk);
    }
    let old = dir.file(LOG);
    if old.exists() {
        let aside = dir.file(&format!("{LOG}.{}", clock::now().0));
        std::fs::rename(&old, &aside).map_err(failed(dir, "move aside"))?;
    }
    disk.rename(NEXT, LOG).map_err(failed(dir, "name"))
}

fn forget(dir: &Dir, disk: &RealDisk) -> Result<(), DirError> {
    match dir.file(NEXT).exists() {
        true => disk.remove(NEXT).map_err(failed(dir, "remove")),
        false => Ok(()),
    }
}

fn open(dir: &Dir) -> Result<RealDisk, DirError> {
    RealDisk::open(dir.path()).map_err(failed(dir, "open"))
}

fn failed(dir: &Dir, doing: &'static str) -> impl FnOnce(std::io::Error) -> DirError + use<> {
    let path = dir.file(LOG);
    move |source| DirError::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::RaftId;

    use super::*;
    use crate::join::{Choices, found};

    fn choices() -> Choices {
        let listen = vec![("127.0.0.1".parse().unwrap(), Some(0))];
        Choices { listen, ..Choices::default() }
    }

    fn seat(dir: &Dir) -> RaftId {
        let disk = open(dir).unwrap();
        RedbLog::open(&disk, LOG, LogSettings::default()).unwrap().identity().raft_id
    }

    #[test]
    fn a_crash_before_the_membership_is_written_leaves_room_for_another_try() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        found(&dir, &choices()).unwrap();
        // As if the power had failed after the log was made.
        std::fs::rename(dir.file(LOG), dir.file(NEXT)).unwrap();
        std::fs::remove_file(dir.file("member")).unwrap();
        assert!(!dir.is_taken());
        found(&dir, &choices()).unwrap();
        assert!(dir.is_taken() && dir.file(LOG).exists() && !dir.file(NEXT).exists());
    }

    #[test]
    fn a_crash_after_it_is_finished_at_the_next_start_and_an_old_log_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::at(temp.path().join("node"));
        found(&dir, &choices()).unwrap();
        let before = dir.membership().unwrap().unwrap();
        let mut after = before.clone();
        after.identity.raft_id = RaftId(before.identity.raft_id.0 + 7);
        let disk = open(&dir).unwrap();
        let settings = LogSettings::default();
        drop(RedbLog::create(&disk, NEXT, after.identity, None, settings).unwrap());
        // Given up before the membership was written: the old one goes on.
        finish(&dir, &before).unwrap();
        assert_eq!(seat(&dir), before.identity.raft_id);
        assert!(!dir.file(NEXT).exists());
        drop(RedbLog::create(&disk, NEXT, after.identity, None, settings).unwrap());
        finish(&dir, &after).unwrap();
        assert_eq!(seat(&dir), after.identity.raft_id);
        let logs = std::fs::read_dir(dir.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with(LOG));
        assert_eq!(logs.count(), 2, "the old one is kept");
    }
}
