//! What strangers throw, and members in another's name: each must be in vain.

use ed25519_dalek::SigningKey;
use mesh_chaos_tests::genesis::{node_id, node_key};
use mesh_consensus::admission::Admission;
use mesh_consensus::admit::Refused;
use mesh_consensus::command::Batch;
use mesh_consensus::core::Role;
use mesh_consensus::id::{MeshId, RaftId};
use mesh_consensus::message::{Body, Message};

use crate::any::stranger;
use crate::{Happening, MEMBERS, Mesh, RUNNING};

impl Mesh {
    /// A message from a stranger, in another's seat, or of another mesh, epoch or place.
    pub(crate) fn throw_as_nobody(&mut self) {
        let at = self.rng.usize(..RUNNING);
        let member = self.rng.usize(..MEMBERS);
        let mut message = self.any_message(member, at);
        let (mesh, me) = (self.genesis.mesh, self.nodes[at].seat);
        (message.mesh, message.epoch, message.to) = (mesh, 0, me);
        let mut sender = node_id(&self.keys[member]);
        let seat = self.genesis.seats[member];
        message.from = seat;
        let wrongs = self.rng.u8(1..32);
        if wrongs & 1 != 0 {
            sender = node_id(&stranger(&mut self.rng));
        }
        if wrongs & 2 != 0 || sender == self.nodes[at].id {
            let other = self.any_seat();
            message.from = if other == seat { me } else { other };
        }
        if wrongs & 4 != 0 && self.rng.bool() {
            message.to = match self.any_seat() {
                to if to == me => RaftId(me.0 + 1),
                to => to,
            };
        }
        if wrongs & 8 != 0 && self.rng.bool() {
            message.epoch = self.rng.u32(1..);
        }
        if wrongs & 16 != 0 && self.rng.bool() {
            message.mesh = MeshId([self.rng.u8(..); 32]);
        }
        let is_member = wrongs & 1 == 0;
        let expected = if message.mesh != mesh {
            Refused::OtherMesh
        } else if message.epoch != 0 {
            Refused::OtherEpoch
        } else if message.to != me {
            Refused::NotForUs
        } else if !is_member {
            Refused::Stranger
        } else if message.from != seat || seat == me {
            Refused::WrongSeat
        } else {
            // Nothing is wrong with it.
            return;
        };
        let turn = self.in_vain(at, Happening::Heard(sender, message));
        assert_eq!(turn.refused, [(sender, expected)], "seed {}", self.seed);
    }

    /// A batch that must not count, forwarded by a member in its own name.
    pub(crate) fn throw_forged_batch(&mut self) {
        let at = self.leader().filter(|_| self.rng.u8(..4) > 0);
        let at = at.unwrap_or_else(|| self.rng.usize(..RUNNING));
        let from = (at + self.rng.usize(1..RUNNING)) % RUNNING;
        if self.rng.u8(..8) == 0 {
            self.replay_batch(from, at);
            return;
        }
        let batch = self.forged_batch();
        if let Ok(read) = Batch::parse(&batch)
            && !self.batches.iter().any(|batch| batch.sequence() == read.sequence())
        {
            self.forged.push((read.author(), read.sequence()));
        }
        let is_leader = self.driver(at).status().role == Role::Leader;
        let expected = if is_leader { Refused::Batch } else { Refused::NotLeader };
        let message = self.message(from, at, 0, Body::Forward { batch });
        let sender = self.nodes[from].id;
        let turn = self.in_vain(at, Happening::Heard(sender, message));
        assert_eq!(turn.refused, [(sender, expected)], "seed {}", self.seed);
    }

    /// A member's own batch, once more: it keeps the receipt that it has.
    fn replay_batch(&mut self, from: usize, at: usize) {
        let Some(batch) = self.rng.choice(&self.batches).cloned() else { return };
        let (author, sequence) = (batch.author(), batch.sequence());
        let receipt = |mesh: &Self| mesh.driver(at).replica().receipt(author, sequence).cloned();
        let before = receipt(self);
        let body = Body::Forward { batch: batch.as_bytes().to_vec() };
        let message = self.message(from, at, 0, body);
        self.turn(at, vec![Happening::Heard(self.nodes[from].id, message)]);
        self.deliver();
        // Those that fell out of the window may not come back either.
        let after = receipt(self);
        let is_open = self.open.iter().any(|(_, open)| *open == batch);
        assert!(is_open || before == after, "seed {}: {batch:?} counted twice", self.seed);
    }

    /// A chain of admissions that no member vouches for.
    pub(crate) fn throw_worthless_chain(&mut self) {
        let at = self.rng.usize(..RUNNING);
        let strangers = [100, 130, 160].map(|first| node_key(first + self.rng.usize(..30)));
        let mesh = self.genesis.mesh;
        let member = self.rng.usize(..MEMBERS);
        let seat = self.any_seat();
        let node = node_id(&strangers[0]);
        let real = || Admission::sign(&self.keys[member], mesh, 0, node, seat);
        let by = |key: &SigningKey, of| Admission::sign(key, mesh, 0, of, seat);
        let chain = match self.rng.u8(..8) {
            0 => Vec::new(),
            1 => vec![by(&strangers[0], node)],
            2 => vec![by(&strangers[1], node), by(&strangers[2], node_id(&strangers[1]))],
            3 => vec![Admission::sign(&self.keys[member], MeshId([7; 32]), 0, node, seat)],
            4 => vec![Admission::sign(&self.keys[member], mesh, 1, node, seat)],
            5 => {
                let mut stolen = real();
                stolen.node = node_id(&strangers[1]);
                vec![stolen]
            }
            6 => {
                let mut moved = real();
                moved.seat = RaftId(seat.0 ^ 1);
                vec![moved]
            }
            // The member's own word about another, behind a stranger's about this one.
            _ => vec![by(&strangers[1], node), real()],
        };
        let turn = self.in_vain(at, Happening::Shown(chain));
        assert_eq!(turn.not_admitted.len(), 1, "seed {}", self.seed);
        let body = Body::Heartbeat { commit: 0, read: None };
        let term = self.driver(at).status().term;
        let message = Message { from: seat, ..self.message(member, at, term, body) };
        let turn = self.in_vain(at, Happening::Heard(node, message));
        assert_eq!(turn.refused, [(node, Refused::Stranger)], "seed {}", self.seed);
    }
}
