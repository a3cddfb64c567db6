//! Our types as raft-rs's, and back.
//!
//! A batch is an ordinary entry: eight bytes of time, then the batch. A configuration change is a
//! `ConfChangeV2` entry with our encoding in its `context`; its `data`, which raft-rs parses when the
//! change is proposed, is made here.

use std::collections::BTreeSet;

use raft::eraftpb::{self, ConfChangeSingle, ConfChangeType, ConfChangeV2, EntryType, MessageType};

use crate::id::RaftId;
use crate::log::{Config, ConfigChange, Entry, Identity, Payload, Seat, Snapshot};
use crate::message::{Body, Message, Reject};
use crate::time::Time;

pub(super) fn batch_data(time: Time, batch: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(8 + batch.len());
    data.extend_from_slice(&time.0.to_le_bytes());
    data.extend_from_slice(batch);
    data
}

pub(super) fn conf_change(change: &ConfigChange) -> ConfChangeV2 {
    let mut all = ConfChangeV2::default();
    if let ConfigChange::Seats(seats) = change {
        let singles: Vec<ConfChangeSingle> = (seats.iter())
            .map(|seat| {
                let mut single =
                    ConfChangeSingle { node_id: seat.id().0, ..ConfChangeSingle::default() };
                single.set_change_type(match seat {
                    Seat::Voter(_) => ConfChangeType::AddNode,
                    Seat::Learner(_) => ConfChangeType::AddLearnerNode,
                    Seat::Gone(_) => ConfChangeType::RemoveNode,
                });
                single
            })
            .collect();
        all.set_changes(singles.into());
    }
    all
}

pub(super) fn conf_state(config: &Config) -> eraftpb::ConfState {
    let ids = |set: &BTreeSet<RaftId>| set.iter().map(|id| id.0).collect();
    eraftpb::ConfState {
        voters: ids(&config.voters),
        voters_outgoing: ids(&config.outgoing),
        learners: ids(&config.learners),
        learners_next: ids(&config.learners_next),
        auto_leave: config.is_joint(),
        ..eraftpb::ConfState::default()
    }
}

pub(super) fn from_conf_state(state: &eraftpb::ConfState) -> Config {
    let seats = |ids: &[u64]| ids.iter().map(|id| RaftId(*id)).collect();
    Config {
        voters: seats(&state.voters),
        outgoing: seats(&state.voters_outgoing),
        learners: seats(&state.learners),
        learners_next: seats(&state.learners_next),
    }
}

pub(super) fn to_entry(entry: &Entry) -> eraftpb::Entry {
    let mut raft = eraftpb::Entry { term: entry.term, index: entry.index, ..Default::default() };
    match &entry.payload {
        Payload::Empty => {}
        Payload::Batch { time, bytes } => raft.data = batch_data(*time, bytes).into(),
        Payload::Config(change) => {
            raft.set_entry_type(EntryType::EntryConfChangeV2);
            raft.context = postcard::to_stdvec(change).expect("a change always encodes").into();
        }
    }
    raft
}

pub(super) fn from_entry(entry: &eraftpb::Entry, skip_empty: bool) -> Entry {
    let payload = match entry.get_entry_type() {
        EntryType::EntryConfChangeV2 | EntryType::EntryConfChange => {
            // raft-rs itself makes the entry that leaves a joint configuration, without a context.
            let change = if entry.context.is_empty() {
                ConfigChange::Leave
            } else {
                postcard::from_bytes(&entry.context)
                    .expect("made here, or decoded and checked before it was appended")
            };
            match change {
                ConfigChange::Leave if skip_empty => Payload::Empty,
                change => Payload::Config(change),
            }
        }
        EntryType::EntryNormal => match entry.data.split_first_chunk::<8>() {
            Some((time, bytes)) => {
                Payload::Batch { time: Time(u64::from_le_bytes(*time)), bytes: bytes.to_vec() }
            }
            None => Payload::Empty,
        },
    };
    Entry { term: entry.term, index: entry.index, payload }
}

pub(super) fn from_entries(entries: Vec<eraftpb::Entry>, skip_empty: bool) -> Vec<Entry> {
    entries.iter().map(|entry| from_entry(entry, skip_empty)).collect()
}

pub(super) fn to_snapshot(snapshot: &Snapshot) -> eraftpb::Snapshot {
    let mut raft =
        eraftpb::Snapshot { data: snapshot.data.clone().into(), ..eraftpb::Snapshot::default() };
    let meta = raft.mut_metadata();
    meta.index = snapshot.index;
    meta.term = snapshot.term;
    meta.set_conf_state(conf_state(&snapshot.config));
    raft
}

pub(super) fn from_snapshot(snapshot: &eraftpb::Snapshot) -> Snapshot {
    let meta = snapshot.get_metadata();
    Snapshot {
        index: meta.index,
        term: meta.term,
        config: from_conf_state(meta.get_conf_state()),
        data: snapshot.data.to_vec(),
    }
}

const TRANSFER: &[u8] = b"CampaignTransfer";

pub(super) fn to_raft(message: &Message) -> Option<eraftpb::Message> {
    let mut raft = eraftpb::Message {
        from: message.from.0,
        to: message.to.0,
        term: message.term,
        ..eraftpb::Message::default()
    };
    let context = |read: &Option<u64>| read.map_or(Vec::new(), |read| read.to_le_bytes().to_vec());
    match &message.body {
        Body::Append { prev_index, prev_term, commit, entries } => {
            raft.set_msg_type(MessageType::MsgAppend);
            raft.index = *prev_index;
            raft.log_term = *prev_term;
            raft.commit = *commit;
            raft.set_entries(entries.iter().map(to_entry).collect::<Vec<_>>().into());
        }
        Body::AppendReply { index, commit, reject } => {
            raft.set_msg_type(MessageType::MsgAppendResponse);
            raft.index = *index;
            raft.commit = *commit;
            if let Some(reject) = reject {
                raft.reject = true;
                raft.reject_hint = reject.hint_index;
                raft.log_term = reject.hint_term;
            }
        }
        Body::Vote { pre, last_index, last_term, commit, commit_term, transfer } => {
            raft.set_msg_type(match pre {
                true => MessageType::MsgRequestPreVote,
                false => MessageType::MsgRequestVote,
            });
            raft.index = *last_index;
            raft.log_term = *last_term;
            raft.commit = *commit;
            raft.commit_term = *commit_term;
            if *transfer {
                raft.context = TRANSFER.into();
            }
        }
        Body::VoteReply { pre, granted, commit, commit_term } => {
            raft.set_msg_type(match pre {
                true => MessageType::MsgRequestPreVoteResponse,
                false => MessageType::MsgRequestVoteResponse,
            });
            raft.reject = !granted;
            raft.commit = *commit;
            raft.commit_term = *commit_term;
        }
        Body::Heartbeat { commit, read } => {
            raft.set_msg_type(MessageType::MsgHeartbeat);
            raft.commit = *commit;
            raft.context = context(read).into();
        }
        Body::HeartbeatReply { commit, read } => {
            raft.set_msg_type(MessageType::MsgHeartbeatResponse);
            raft.commit = *commit;
            raft.context = context(read).into();
        }
        Body::Snapshot(snapshot) => {
            raft.set_msg_type(MessageType::MsgSnapshot);
            raft.set_snapshot(to_snapshot(snapshot));
        }
        Body::TimeoutNow => raft.set_msg_type(MessageType::MsgTimeoutNow),
        Body::Forward { .. } | Body::Read { .. } | Body::ReadReply { .. } => return None,
    }
    Some(raft)
}

/// Our form of what raft-rs wants sent. `None` for what never travels.
pub(super) fn from_raft(
    identity: Identity,
    raft: eraftpb::Message,
    skip_empty: bool,
) -> Option<Message> {
    let read = || <[u8; 8]>::try_from(&raft.context[..]).ok().map(u64::from_le_bytes);
    let body = match raft.get_msg_type() {
        MessageType::MsgAppend => Body::Append {
            prev_index: raft.index,
            prev_term: raft.log_term,
            commit: raft.commit,
            entries: raft.entries.iter().map(|entry| from_entry(entry, skip_empty)).collect(),
        },
        MessageType::MsgAppendResponse => Body::AppendReply {
            index: raft.index,
            commit: raft.commit,
            reject: raft
                .reject
                .then_some(Reject { hint_index: raft.reject_hint, hint_term: raft.log_term }),
        },
        kind @ (MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) => Body::Vote {
            pre: kind == MessageType::MsgRequestPreVote,
            last_index: raft.index,
            last_term: raft.log_term,
            commit: raft.commit,
            commit_term: raft.commit_term,
            transfer: raft.context == TRANSFER,
        },
        kind @ (MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse) => {
            Body::VoteReply {
                pre: kind == MessageType::MsgRequestPreVoteResponse,
                granted: !raft.reject,
                commit: raft.commit,
                commit_term: raft.commit_term,
            }
        }
        MessageType::MsgHeartbeat => Body::Heartbeat { commit: raft.commit, read: read() },
        MessageType::MsgHeartbeatResponse => {
            Body::HeartbeatReply { commit: raft.commit, read: read() }
        }
        MessageType::MsgSnapshot => Body::Snapshot(from_snapshot(raft.get_snapshot())),
        MessageType::MsgTimeoutNow => Body::TimeoutNow,
        _ => return None,
    };
    let (mesh, epoch) = (identity.mesh, identity.epoch);
    Some(Message {
        mesh,
        epoch,
        from: RaftId(raft.from),
        to: RaftId(raft.to),
        term: raft.term,
        body,
    })
}
