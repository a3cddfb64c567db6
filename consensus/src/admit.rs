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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{MeshId, NodeId};
    use crate::log::{ConfigChange, MAX_SEATS, Seat};
    use crate::message::Reject;
    use crate::time::Time;

    const MESH: MeshId = MeshId([1; 32]);

    /// Seat 1 of a group of three: term 5, log up to 20, 15 committed in term 4, led by seat 2.
    fn hear(from: u64, term: u64, body: Body) -> Result<(), Refused> {
        let config =
            Config { voters: [1, 2, 3].map(RaftId).into_iter().collect(), ..Config::default() };
        let ground = Ground {
            identity: Identity { mesh: MESH, epoch: 0, node: NodeId([7; 32]), raft_id: RaftId(1) },
            term: 5,
            last_index: 20,
            commit: 15,
            commit_term: 4,
            leader: Some(RaftId(2)),
            config: &config,
            seat: Some(RaftId(from)),
            planted: Planted::default(),
        };
        let (from, to) = (RaftId(from), RaftId(1));
        admit(&ground, &Message { mesh: MESH, epoch: 0, from, to, term, body })
    }

    fn append(prev_index: u64, prev_term: u64, entries: Vec<Entry>) -> Body {
        Body::Append { prev_index, prev_term, commit: 15, entries }
    }

    fn entry(index: u64, term: u64, payload: Payload) -> Entry {
        Entry { term, index, payload }
    }

    fn empty(index: u64, term: u64) -> Entry {
        entry(index, term, Payload::Empty)
    }

    fn batch(index: u64, bytes: usize) -> Entry {
        entry(index, 5, Payload::Batch { time: Time(0), bytes: vec![0; bytes] })
    }

    fn change(seats: Vec<Seat>) -> Body {
        let payload = Payload::Config(ConfigChange::Seats(seats));
        append(20, 5, vec![entry(21, 5, payload)])
    }

    fn reply(index: u64, commit: u64, reject: Option<(u64, u64)>) -> Body {
        let reject = reject.map(|(hint_index, hint_term)| Reject { hint_index, hint_term });
        Body::AppendReply { index, commit, reject }
    }

    fn vote(last: (u64, u64), commit: (u64, u64)) -> Body {
        Body::Vote {
            pre: false,
            last_index: last.0,
            last_term: last.1,
            commit: commit.0,
            commit_term: commit.1,
            transfer: false,
        }
    }

    fn snapshot(index: u64, term: u64, voters: &[u64], bytes: usize) -> Body {
        let voters = voters.iter().map(|id| RaftId(*id)).collect();
        let config = Config { voters, ..Config::default() };
        Body::Snapshot(Snapshot { index, term, config, data: vec![0; bytes] })
    }

    #[test]
    fn what_honest_members_say_is_heard() {
        let heard = [
            (2, 5, append(20, 5, vec![empty(21, 5), batch(22, 100)])),
            (2, 5, append(1 << 40, 5, Vec::new())),
            (2, 5, change(vec![Seat::Voter(RaftId(9)), Seat::Gone(RaftId(3))])),
            (2, 5, Body::Heartbeat { commit: 20, read: Some(1) }),
            (2, 5, Body::TimeoutNow),
            (2, 5, snapshot(30, 5, &[1, 2], 10)),
            (2, 5, snapshot(10, 3, &[1, 2], 10)),
            (3, 5, reply(20, 15, Some((12, 4)))),
            (3, 6, reply(500, 0, None)),
            (3, 6, vote((20, 5), (15, 4))),
            (3, 5, Body::VoteReply { pre: true, granted: false, commit: 9, commit_term: 2 }),
            (3, 5, Body::HeartbeatReply { commit: 15, read: None }),
            (3, 6, append(20, 5, Vec::new())),
            (3, 0, Body::Forward { batch: vec![0; 10] }),
            (3, 0, Body::Read { context: 1 }),
            (3, 0, Body::ReadReply { context: 1, index: 20 }),
        ];
        for (from, term, body) in heard {
            assert_eq!(hear(from, term, body.clone()), Ok(()), "{body:?}");
        }
    }

    #[test]
    fn each_rule_refuses_what_it_is_for() {
        use Refused::{
            Entries, Index, LostData, NotLeader, Payload as Malformed, SecondLeader, Term, TooLarge,
        };
        let seats = |n: usize| (1..=n as u64).map(|id| Seat::Voter(RaftId(id))).collect();
        let refused = [
            (3, 5, append(20, 5, Vec::new()), SecondLeader),
            (3, 5, Body::Heartbeat { commit: 1, read: None }, SecondLeader),
            (3, 5, snapshot(30, 5, &[1, 2], 10), SecondLeader),
            (3, 5, Body::TimeoutNow, NotLeader),
            (2, 6, Body::TimeoutNow, NotLeader),
            (2, 5, Body::Heartbeat { commit: 21, read: None }, LostData),
            (2, 0, append(20, 5, Vec::new()), Term),
            (2, 6 + MAX_LEAP, append(20, 5, Vec::new()), Term),
            (2, 5, append(20, 6, Vec::new()), Term),
            (2, 5, append(0, 1, Vec::new()), Index),
            (2, 5, append(7, 0, Vec::new()), Index),
            (2, 5, append(CEILING, 5, Vec::new()), Index),
            (2, 5, append(0, 0, vec![empty(1, 1)]), Index),
            (2, 5, append(20, 5, vec![empty(22, 5)]), Entries),
            (2, 5, append(20, 5, vec![empty(21, 6)]), Term),
            (2, 5, append(20, 5, vec![empty(21, 4)]), Term),
            (2, 5, append(20, 0, vec![empty(21, 5)]), Index),
            (2, 5, append(20, 5, vec![batch(21, MAX_BATCH_BYTES + 1)]), TooLarge),
            (2, 5, append(20, 5, (21..25).map(|i| batch(i, MAX_BATCH_BYTES)).collect()), TooLarge),
            (
                2,
                5,
                append(20, 5, (0..=MAX_ENTRIES as u64).map(|i| empty(21 + i, 5)).collect()),
                TooLarge,
            ),
            (2, 5, change(Vec::new()), Malformed),
            (2, 5, change(vec![Seat::Gone(RaftId(0))]), Malformed),
            (2, 5, change(vec![Seat::Voter(RaftId(4)), Seat::Gone(RaftId(4))]), Malformed),
            (2, 5, change(seats(MAX_SEATS + 1)), Malformed),
            (
                2,
                5,
                Body::Append { prev_index: 1, prev_term: 1, commit: CEILING, entries: Vec::new() },
                Index,
            ),
            (3, 5, reply(21, 15, None), Index),
            (3, 5, reply(20, 15, Some((21, 4))), Index),
            (3, 5, reply(20, CEILING, None), Index),
            (3, 6, reply(CEILING, 0, None), Index),
            (3, 6, reply(0, 0, Some((CEILING, 1))), Index),
            (3, 5, reply(20, 15, Some((12, 6))), Term),
            (3, 6, vote((20, 7), (0, 0)), Term),
            (3, 6, vote((0, 3), (0, 0)), Index),
            (3, 6, vote((20, 5), (21, 5)), Index),
            (3, 6, vote((20, 5), (15, 6)), Term),
            (3, 6, vote((CEILING, 5), (0, 0)), Index),
            (3, 5, Body::VoteReply { pre: false, granted: true, commit: 9, commit_term: 0 }, Index),
            (3, 5, Body::HeartbeatReply { commit: CEILING, read: None }, Index),
            (3, 0, Body::Forward { batch: vec![0; MAX_BATCH_BYTES + 1] }, TooLarge),
            (3, 0, Body::ReadReply { context: 1, index: CEILING + 1 }, Index),
            (2, 5, snapshot(30, 5, &[], 10), Refused::Snapshot),
            (2, 5, snapshot(30, 5, &[2, 3], 10), Refused::Snapshot),
            (2, 5, snapshot(30, 3, &[1, 2], 10), Refused::Snapshot),
            (2, 5, snapshot(15, 5, &[1, 2], 10), Refused::Snapshot),
            (2, 5, snapshot(0, 0, &[1, 2], 10), Refused::Snapshot),
            (2, 5, snapshot(30, 6, &[1, 2], 10), Term),
            (2, 5, snapshot(30, 5, &[1, 2], MAX_SNAPSHOT_BYTES + 1), TooLarge),
        ];
        for (from, term, body, why) in refused {
            let name = body.name();
            assert_eq!(hear(from, term, body), Err(why), "{name} of {from} in term {term}");
        }
    }
}
