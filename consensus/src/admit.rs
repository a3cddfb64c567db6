//! What a voter refuses to hear.
//!
//! raft-rs believes every message: a stranger's append makes it follow, a heartbeat ahead of the log
//! panics it, one absurd term is persisted and panics it at every restart. So whatever a peer sends
//! passes [`admit`] first. Two rules are looser than they might be, for good reason:
//!
//! - The sender is a *member*, or has shown its admission; it need not be in the configuration we
//!   know. See [`crate::admission`].
//! - A leader's append may start far beyond our log: a newcomer is probed like that, and answers
//!   "no", which is how it comes by its first snapshot.

use crate::command::MAX_BATCH_BYTES;
use crate::id::RaftId;
use crate::log::{Config, Entry, Identity, Payload, Snapshot};
use crate::message::{Body, Message};
use crate::planted::{Bug, Planted};

/// A term may leap this far: more than a year of elections, and far too little to reach the end of
/// the number's range by leaping.
pub const MAX_LEAP: u64 = 100_000;
/// No term or index is ever this large, so adding to one cannot overflow.
pub const CEILING: u64 = 1 << 60;
/// An append carries at most this many entries.
pub const MAX_ENTRIES: usize = 16 * 1024;
/// And this many bytes: raft's own limit for a message and the largest entry.
pub const MAX_APPEND_BYTES: usize = 2 * MAX_BATCH_BYTES + (1 << 16);
/// A snapshot has at most this many bytes.
pub const MAX_SNAPSHOT_BYTES: usize = 256 << 20;

/// Why a message was not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refused {
    /// Of another mesh.
    #[error("it belongs to another mesh")]
    OtherMesh,
    /// Of another epoch: somebody slept through a recovery.
    #[error("it belongs to another epoch")]
    OtherEpoch,
    /// For somebody else.
    #[error("it is for another seat")]
    NotForUs,
    /// The sender is no member and has shown no admission.
    #[error("its sender is not a member")]
    Stranger,
    /// The sender speaks in another's name.
    #[error("its sender does not hold the seat it speaks for")]
    WrongSeat,
    /// A term that no honest member can have.
    #[error("its term is absurd")]
    Term,
    /// An index that no honest member can have.
    #[error("its index is absurd")]
    Index,
    /// Entries that do not follow one another.
    #[error("its entries do not follow one another")]
    Entries,
    /// An entry that cannot be what an honest leader made.
    #[error("one of its entries is malformed")]
    Payload,
    /// Too large.
    #[error("it is too large")]
    TooLarge,
    /// A second leader in the same term.
    #[error("another leader is known in its term")]
    SecondLeader,
    /// It says that we have acknowledged what we do not have.
    #[error("it counts on entries that this node does not have")]
    LostData,
    /// Not from the leader, or not in this term.
    #[error("only the leader may say this")]
    NotLeader,
    /// A snapshot that raft or this node could not work with.
    #[error("its snapshot cannot be used")]
    Snapshot,
    /// More reads or batches than are kept.
    #[error("too many requests are waiting")]
    Busy,
    /// A batch that would not count.
    #[error("its batch would not count")]
    Batch,
}

/// What a message is held against.
pub struct Ground<'a> {
    /// Who we are.
    pub identity: Identity,
    /// Our term.
    pub term: u64,
    /// Our last index.
    pub last_index: u64,
    /// What we have committed.
    pub commit: u64,
    /// The term of the entry there.
    pub commit_term: u64,
    /// The leader of our term, if known.
    pub leader: Option<RaftId>,
    /// The configuration that we know.
    pub config: &'a Config,
    /// The seat of the sender, if it is a member or was introduced.
    pub seat: Option<RaftId>,
    /// A planted bug.
    pub planted: Planted,
}

/// Whether `message`, which arrived over a connection that proved to be the sender's, may be heard.
pub fn admit(ground: &Ground<'_>, message: &Message) -> Result<(), Refused> {
    let Message { mesh, epoch, from, to, term, body } = message;
    if ground.planted.has(Bug::NoAdmit) {
        return Ok(());
    }
    if *mesh != ground.identity.mesh {
        return Err(Refused::OtherMesh);
    }
    if *epoch != ground.identity.epoch {
        return Err(Refused::OtherEpoch);
    }
    if *to != ground.identity.raft_id {
        return Err(Refused::NotForUs);
    }
    match ground.seat {
        None => return Err(Refused::Stranger),
        // Seat zero is raft-rs's word for nobody, and a vote for nobody is none.
        Some(seat) if seat != *from || seat == *to || seat == RaftId(0) => {
            return Err(Refused::WrongSeat);
        }
        Some(_) => {}
    }
    if ground.planted.has(Bug::StrictAdmit) && !ground.config.contains(*from) {
        return Err(Refused::Stranger);
    }
    match body {
        Body::Forward { batch } if batch.len() > MAX_BATCH_BYTES => return Err(Refused::TooLarge),
        Body::Forward { .. } | Body::Read { .. } => return Ok(()),
        Body::ReadReply { index, .. } if *index > CEILING => return Err(Refused::Index),
        Body::ReadReply { .. } => return Ok(()),
        _ => {}
    }
    // A newcomer has seen no term at all.
    let leap = if ground.last_index == 0 { CEILING } else { ground.term + MAX_LEAP };
    if !(1..=leap.min(CEILING)).contains(term) {
        return Err(Refused::Term);
    }
    match body {
        Body::Append { prev_index, prev_term, commit, entries } => {
            one_leader(ground, message)?;
            position(*prev_index, *prev_term, *term)?;
            index(*commit)?;
            entries_follow(*prev_index, *prev_term, *term, entries)
        }
        Body::Heartbeat { commit, .. } => {
            one_leader(ground, message)?;
            if *commit > ground.last_index { Err(Refused::LostData) } else { Ok(()) }
        }
        Body::Snapshot(snapshot) => {
            one_leader(ground, message)?;
            usable(ground, *term, snapshot)
        }
        Body::TimeoutNow => {
            let leads = ground.leader == Some(*from) && *term == ground.term;
            if leads { Ok(()) } else { Err(Refused::NotLeader) }
        }
        Body::AppendReply { index: at, commit, reject } => {
            index(*at)?;
            index(*commit)?;
            let hint = reject.map_or(0, |reject| reject.hint_index);
            index(hint)?;
            if *term == ground.term && (*at > ground.last_index || hint > ground.last_index) {
                return Err(Refused::Index);
            }
            match reject {
                Some(reject) if reject.hint_term > *term => Err(Refused::Term),
                _ => Ok(()),
            }
        }
        Body::Vote { last_index, last_term, commit, commit_term, .. } => {
            position(*last_index, *last_term, *term)?;
            position(*commit, *commit_term, *last_term)?;
            if commit > last_index { Err(Refused::Index) } else { Ok(()) }
        }
        Body::VoteReply { commit, commit_term, .. } => position(*commit, *commit_term, *term),
        Body::HeartbeatReply { commit, .. } => index(*commit),
        Body::Forward { .. } | Body::Read { .. } | Body::ReadReply { .. } => Ok(()),
    }
}

fn index(index: u64) -> Result<(), Refused> {
    if index < CEILING { Ok(()) } else { Err(Refused::Index) }
}

/// An index and the term of the entry there: both zero or neither, and no later than `newest`.
fn position(at: u64, term: u64, newest: u64) -> Result<(), Refused> {
    index(at)?;
    if (at == 0) != (term == 0) {
        return Err(Refused::Index);
    }
    if term > newest { Err(Refused::Term) } else { Ok(()) }
}

fn one_leader(ground: &Ground<'_>, message: &Message) -> Result<(), Refused> {
    match ground.leader {
        Some(leader) if message.term == ground.term && leader != message.from => {
            Err(Refused::SecondLeader)
        }
        _ => Ok(()),
    }
}

fn entries_follow(
    prev: u64,
    prev_term: u64,
    newest: u64,
    entries: &[Entry],
) -> Result<(), Refused> {
    if entries.len() > MAX_ENTRIES {
        return Err(Refused::TooLarge);
    }
    // A log begins with a snapshot, so nothing honest starts at zero.
    if prev == 0 && !entries.is_empty() {
        return Err(Refused::Index);
    }
    let mut bytes = 0;
    let mut last_term = prev_term;
    for (expected, entry) in (prev + 1..).zip(entries) {
        if entry.index != expected {
            return Err(Refused::Entries);
        }
        if entry.term < last_term.max(1) || entry.term > newest {
            return Err(Refused::Term);
        }
        last_term = entry.term;
        match &entry.payload {
            Payload::Empty => {}
            Payload::Batch { bytes: batch, .. } if batch.len() > MAX_BATCH_BYTES => {
                return Err(Refused::TooLarge);
            }
            Payload::Batch { bytes: batch, .. } => bytes += batch.len(),
            Payload::Config(change) if change.is_sound() => {}
            Payload::Config(_) => return Err(Refused::Payload),
        }
        if bytes > MAX_APPEND_BYTES {
            return Err(Refused::TooLarge);
        }
    }
    Ok(())
}

/// Whether raft can take the snapshot. Whether we can is tried by `driver.rs` before raft sees it.
fn usable(ground: &Ground<'_>, term: u64, snapshot: &Snapshot) -> Result<(), Refused> {
    if snapshot.data.len() > MAX_SNAPSHOT_BYTES {
        return Err(Refused::TooLarge);
    }
    position(snapshot.index, snapshot.term, term)?;
    if snapshot.index == 0 || !snapshot.config.is_sound() {
        return Err(Refused::Snapshot);
    }
    if !snapshot.config.contains(ground.identity.raft_id) {
        return Err(Refused::Snapshot);
    }
    // One below what we have committed is old news, which raft answers. At it and above, it must
    // agree with what we know to be decided.
    if snapshot.index >= ground.commit && snapshot.term < ground.commit_term {
        return Err(Refused::Snapshot);
    }
    if snapshot.index == ground.commit && snapshot.term != ground.commit_term {
        return Err(Refused::Snapshot);
    }
    Ok(())
}
