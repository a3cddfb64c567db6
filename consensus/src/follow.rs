//! Out of the watchers and into a seat.
//!
//! A watcher follows committed entries without raft: it applies them to a
//! [`Replica`](crate::replica::Replica) and acknowledges nothing. When the configuration gives it a
//! seat, raft must go on from a log of its own, and the entries that it watched are not in it.
//! [`seat`] puts what it knows to be committed there; [`crate::driver::Driver::open`] does the rest.
//! The way back is [`crate::driver::Driver::into_parts`].

use crate::log::{HardState, Log, LogError, Snapshot, Write};

/// Why a log does not take a snapshot. It has not been changed.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// The log knows more to be committed than the snapshot holds.
    #[error("the snapshot ends at entry {snapshot}, and {commit} is known to be committed")]
    Behind {
        /// Where the snapshot ends.
        snapshot: u64,
        /// What the log knows.
        commit: u64,
    },
    /// Both say that it is committed, and they say different things: one of them was lied to.
    #[error("the log has entry {index} of term {ours} as committed, the snapshot of term {theirs}")]
    Forked {
        /// Which entry.
        index: u64,
        /// Its term in the log.
        ours: u64,
        /// Its term in the snapshot.
        theirs: u64,
    },
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Makes a *committed* snapshot the durable ground of a node's own log, so that a driver can be
/// opened on it. Doing it again changes nothing.
///
/// The caller answers for two things: that the snapshot is committed (it is the caller's own
/// replica, or a majority of the voters has signed it), and that this version can read it (see
/// [`Replica::check`](crate::replica::Replica::check)).
///
/// It is safe because it is what raft itself does with a leader's snapshot, whatever the node was
/// before:
///
/// - A log that has the snapshot's last entry keeps everything: what follows that entry may have
///   been acknowledged by a voter, and counted. It only learns that so much is committed.
/// - A log that ends before it, or has another entry in its place, is replaced. What another entry
///   is followed by can never be committed, so nobody needs it, although this node may have
///   acknowledged it as a voter once.
/// - The vote stays for as long as the term does, so a former voter does not vote twice in one. In a
///   later term it cannot have voted: it would have written that down.
///
/// The leader begins anew with a seat that it adds, and asks it where its log ends. So nothing else
/// that was said from this seat has to be remembered.
pub fn seat(log: &mut impl Log, snapshot: &Snapshot) -> Result<(), SeatError> {
    let before = log.hard_state();
    if snapshot.index < before.commit {
        return Err(SeatError::Behind { snapshot: snapshot.index, commit: before.commit });
    }
    let held = log.term(snapshot.index)?;
    match held {
        Some(ours) if ours != snapshot.term && snapshot.index == before.commit => {
            let (index, theirs) = (snapshot.index, snapshot.term);
            return Err(SeatError::Forked { index, ours, theirs });
        }
        _ => {}
    }
    let has_it = held == Some(snapshot.term);
    let term = before.term.max(snapshot.term);
    let hard_state = HardState {
        term,
        vote: before.vote.filter(|_| term == before.term),
        commit: snapshot.index,
    };
    if has_it && hard_state == before {
        return Ok(());
    }
    let install = (!has_it).then_some(snapshot);
    log.write(&Write { install, hard_state, ..Write::default() })?;
    Ok(())
}
