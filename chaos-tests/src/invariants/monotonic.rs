//! Mesh time and fences never go back, an applied index never goes back while a node runs, and no
//! node ever forgets a term it has spoken in or a vote it has given.

use std::collections::BTreeMap;

use mesh_consensus::id::RaftId;
use mesh_consensus::log::{HardState, Log};
use mesh_consensus::message::{Body, Message};
use mesh_consensus::time::Time;
use mesh_storage::log::RedbLog;

use super::Seen;

#[derive(Default)]
pub(super) struct Monotonic {
    times: BTreeMap<u64, Time>,
    /// What each data directory has promised, by its seat.
    promised: BTreeMap<(usize, RaftId), HardState>,
    /// The latest term in which each data directory has spoken.
    spoken: BTreeMap<(usize, RaftId), u64>,
    /// The seat of each node, and when it was given.
    seats: BTreeMap<[u8; 32], RaftId>,
}

impl Monotonic {
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let mut last = 0;
        for applied in &seen.turn.applied {
            if applied.index <= last {
                return Err(format!("host {} applied {} after {last}", seen.host, applied.index));
            }
            last = applied.index;
            self.times.insert(applied.index, applied.time);
            let before = self.times.range(..applied.index).next_back();
            if let Some((index, time)) = before
                && *time > applied.time
            {
                return Err(format!(
                    "mesh time went back from {time} at {index} to {} at {}",
                    applied.time, applied.index
                ));
            }
        }
        let hard_state = seen.log.hard_state();
        self.promised.insert((seen.host, seen.seat), hard_state);
        let known = self.seats.entry(seen.node.0).or_insert(seen.seat);
        if seen.seat < *known {
            return Err(format!("host {} went back from seat {known} to {}", seen.host, seen.seat));
        }
        *known = seen.seat;
        Ok(())
    }

    /// A message got out, whatever became of its sender then.
    pub(super) fn spoke(&mut self, host: usize, message: &Message) {
        let is_hypothetical = matches!(
            message.body,
            Body::Vote { pre: true, .. } | Body::VoteReply { pre: true, .. }
        );
        if !is_hypothetical {
            let last = self.spoken.entry((host, message.from)).or_default();
            *last = message.term.max(*last);
        }
    }

    pub(super) fn opened(
        &mut self,
        host: usize,
        seat: RaftId,
        log: &RedbLog,
    ) -> Result<(), String> {
        let spoken = self.spoken.get(&(host, seat)).copied().unwrap_or(0);
        if log.hard_state().term < spoken {
            return Err(format!(
                "host {host} has spoken in term {spoken} and came back in term {}",
                log.hard_state().term
            ));
        }
        let Some(before) = self.promised.get(&(host, seat)) else { return Ok(()) };
        let now = log.hard_state();
        let forgot_vote =
            now.term == before.term && before.vote.is_some() && now.vote != before.vote;
        if now.term < before.term || forgot_vote {
            return Err(format!("host {host} had promised {before:?} and came back with {now:?}"));
        }
        Ok(())
    }
}
