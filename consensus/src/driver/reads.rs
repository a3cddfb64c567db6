//! Linearizable reads: whoever wants one asks a majority, through the leader, how far to apply first.

use super::{Driver, MAX_READS, Outbox, Turn};
use crate::admit::{CEILING, Refused};
use crate::core::Role;
use crate::id::RaftId;
use crate::log::Log;
use crate::machine::StateMachine;
use crate::message::Body;
use crate::planted::Bug;

/// Who waits for a read that the leader has been asked about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asker {
    Here { token: u64 },
    Peer { seat: RaftId, context: u64 },
}

#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) asker: Asker,
    /// The leader that was asked; `None` if this node led, and asked raft.
    pub(super) asked: Option<RaftId>,
    pub(super) expires: u64,
    /// Set once the leader has answered.
    pub(super) index: Option<u64>,
}

impl<L: Log, S: StateMachine + Clone> Driver<L, S> {
    pub(super) fn on_read(&mut self, token: u64, out: &mut impl Outbox, turn: &mut Turn) {
        if self.settings.planted.has(Bug::LocalRead) {
            turn.reads.push(token);
        } else if self.ask(Asker::Here { token }, out).is_err() {
            turn.lost_reads.push(token);
        }
    }

    /// Asks a majority, through raft if this node leads, through the leader otherwise.
    pub(super) fn ask(&mut self, asker: Asker, out: &mut impl Outbox) -> Result<(), Refused> {
        if self.reads.len() >= MAX_READS {
            return Err(Refused::Busy);
        }
        let leads = self.core.role() == Role::Leader;
        if !leads && matches!(asker, Asker::Peer { .. }) {
            return Err(Refused::NotLeader);
        }
        let leader = self.core.leader().ok_or(Refused::NotLeader)?;
        // A number is never used twice: an answer to an earlier question must not pass for one to
        // this.
        if !self.settings.planted.has(Bug::ReuseReadContext) {
            self.next_read += 1;
        }
        let context = self.next_read;
        // Long enough for a slow round trip, short enough to try the next leader soon.
        let expires = self.ticks + 2 * self.settings.pace.election as u64;
        let asked = (!leads).then_some(leader);
        self.reads.insert(context, PendingRead { asker, asked, expires, index: None });
        if leads {
            self.core.read(context);
        } else {
            self.say(leader, Body::Read { context }, out);
        }
        Ok(())
    }

    /// An answer, which only the leader that was asked can give.
    pub(super) fn on_read_reply(
        &mut self,
        from: RaftId,
        context: u64,
        index: u64,
    ) -> Result<(), Refused> {
        match self.reads.get_mut(&context) {
            Some(read) if read.asked == Some(from) => read.index = Some(index),
            Some(_) => return Err(Refused::NotLeader),
            // It took too long; the asker has been told.
            None => {}
        }
        Ok(())
    }

    pub(super) fn answer_reads(&mut self, turn: &mut Turn, out: &mut impl Outbox) {
        let applied = self.replica.index();
        let ready: Vec<u64> = (self.reads.iter())
            .filter(|(_, read)| match (read.index, read.asker) {
                (None, _) => false,
                (Some(_), Asker::Peer { .. }) => true,
                (Some(index), Asker::Here { .. }) => index <= applied,
            })
            .map(|(context, _)| *context)
            .collect();
        for context in ready {
            match self.reads.remove(&context) {
                Some(PendingRead { asker: Asker::Here { token }, .. }) => turn.reads.push(token),
                Some(PendingRead { asker: Asker::Peer { seat, context }, index, .. }) => {
                    let index = index.unwrap_or(CEILING);
                    self.awaited = self.awaited.max(index.min(self.core.last_index()));
                    self.say(seat, Body::ReadReply { context, index }, out);
                }
                None => {}
            }
        }
    }

    /// Gives up on reads that nobody answered: the leader may be gone, and raft says nothing then.
    pub(super) fn drop_late_reads(&mut self, turn: &mut Turn) {
        let lost: Vec<u64> = (self.reads.iter())
            .filter(|(_, read)| read.expires <= self.ticks)
            .map(|(context, _)| *context)
            .collect();
        for context in lost {
            if let Some(PendingRead { asker: Asker::Here { token }, .. }) =
                self.reads.remove(&context)
            {
                turn.lost_reads.push(token);
            }
        }
    }
}
