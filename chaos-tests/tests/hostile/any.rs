//! Anything that a node could be told: numbers, places, entries, snapshots and batches, true and false.

use ed25519_dalek::SigningKey;
use mesh_chaos_tests::genesis::{BEGINNING, name, node_id, node_key};
use mesh_consensus::admit::{CEILING, MAX_LEAP};
use mesh_consensus::command::{Batch, Command};
use mesh_consensus::driver::Status;
use mesh_consensus::id::{Hash, MeshId, RaftId};
use mesh_consensus::log::{Config, ConfigChange, Entry, Payload, Seat, Snapshot};
use mesh_consensus::message::{Body, Reject};
use mesh_consensus::time::Time;
use mesh_node::state::command::{Act, NameSet};

use crate::{MEMBERS, Mesh, RUNNING, VOTERS};

impl Mesh {
    pub(crate) fn any_number(&mut self, at: usize) -> u64 {
        let Status { term, commit, last_index, .. } = self.driver(at).status();
        let base = *self
            .rng
            .choice(&[0, 1, term, commit, last_index, CEILING, term + MAX_LEAP, u64::MAX])
            .expect("not empty");
        match self.rng.u8(..8) {
            0 => self.rng.u64(..),
            1 => self.rng.u64(..200),
            2 => base.wrapping_add(1),
            3 => base.wrapping_sub(1),
            4 => base.saturating_add(self.rng.u64(..40)),
            _ => base,
        }
    }

    pub(crate) fn any_seat(&mut self) -> RaftId {
        match self.rng.u8(..8) {
            0 => RaftId(self.rng.u64(..)),
            1 => RaftId(0),
            2 => RaftId(self.rng.u64(..60)),
            _ => *self.rng.choice(&self.genesis.seats).expect("there are seats"),
        }
    }

    /// A place in the log of `at`, mostly a true one.
    pub(crate) fn any_place(&mut self, at: usize) -> (u64, u64) {
        let Status { commit, last_index, .. } = self.driver(at).status();
        let index = match self.rng.u8(..8) {
            0 => self.any_number(at),
            1 => self.rng.u64(..=last_index),
            2 => commit,
            3 => self.rng.u64(commit..=last_index),
            _ => last_index,
        };
        let term = match self.rng.u8(..8) {
            0 => self.any_number(at),
            _ => self.term_at(at, index).unwrap_or(1),
        };
        (index, term)
    }

    pub(crate) fn any_body(&mut self, at: usize, term: u64) -> Body {
        let (index, index_term) = self.any_place(at);
        let (other, other_term) = self.any_place(at);
        let number = self.any_number(at);
        let any = |rng: &mut fastrand::Rng| if rng.bool() { other } else { number };
        match self.rng.u8(..16) {
            0..5 => {
                let entries = self.any_entries(index, index_term, term);
                let commit = match self.rng.u8(..3) {
                    0 => any(&mut self.rng),
                    _ => index.saturating_add(entries.len() as u64),
                };
                Body::Append { prev_index: index, prev_term: index_term, commit, entries }
            }
            5 => {
                let hint = Reject { hint_index: other, hint_term: other_term };
                let reject = self.rng.bool().then_some(hint);
                Body::AppendReply { index, commit: any(&mut self.rng), reject }
            }
            6 => Body::Vote {
                pre: self.rng.bool(),
                last_index: index,
                last_term: index_term,
                commit: other,
                commit_term: other_term,
                transfer: self.rng.bool(),
            },
            7 | 8 => {
                let (pre, granted) = (self.rng.bool(), self.rng.bool());
                Body::VoteReply { pre, granted, commit: other, commit_term: other_term }
            }
            9 => {
                let commit = if self.rng.bool() { index } else { number };
                Body::Heartbeat { commit, read: self.rng.bool().then_some(number) }
            }
            10 => Body::HeartbeatReply { commit: index, read: self.rng.bool().then_some(number) },
            11 | 12 => Body::Snapshot(self.any_snapshot(at, term)),
            13 => Body::TimeoutNow,
            14 => Body::Forward { batch: self.any_batch() },
            _ if self.rng.bool() => Body::Read { context: number },
            _ => Body::ReadReply { context: number, index },
        }
    }

    pub(crate) fn any_entries(&mut self, prev: u64, prev_term: u64, term: u64) -> Vec<Entry> {
        let count = if self.rng.u8(..8) == 0 { self.rng.u64(..40) } else { self.rng.u64(..4) };
        let mut last_term = prev_term;
        (1..=count)
            .map(|step| {
                let index = prev.wrapping_add(step);
                if self.rng.bool() {
                    last_term = last_term.max(term);
                }
                let mut entry = Entry { term: last_term, index, payload: self.any_payload() };
                match self.rng.u8(..40) {
                    0 => entry.term = self.any_number(0),
                    1 => entry.index = self.any_number(0),
                    _ => {}
                }
                entry
            })
            .collect()
    }

    pub(crate) fn any_payload(&mut self) -> Payload {
        match self.rng.u8(..8) {
            0 => Payload::Empty,
            1..4 => {
                let time = match self.rng.u8(..4) {
                    0 => Time(u64::MAX),
                    1 => Time(0),
                    _ => Time(BEGINNING.0 + self.time),
                };
                Payload::Batch { time, bytes: self.any_batch() }
            }
            _ => Payload::Config(self.any_change()),
        }
    }

    fn any_change(&mut self) -> ConfigChange {
        let seats = self.genesis.seats.clone();
        let running = &seats[..RUNNING];
        match self.rng.u8(..8) {
            0 => ConfigChange::Leave,
            1 => ConfigChange::Seats(running.iter().map(|seat| Seat::Gone(*seat)).collect()),
            2 => {
                let count = self.rng.usize(..20);
                let seats = (0..count).map(|_| {
                    let seat = self.any_seat();
                    any_role(&mut self.rng, seat)
                });
                ConfigChange::Seats(seats.collect())
            }
            3 => {
                let many = (1..=self.rng.u64(15..19)).map(|id| Seat::Learner(RaftId(id)));
                ConfigChange::Seats(many.collect())
            }
            _ => {
                // What a leader might really propose: some of those that are there.
                let count = self.rng.usize(1..=RUNNING);
                let mut chosen = self.rng.choose_multiple(running, count);
                self.rng.shuffle(&mut chosen);
                let seats = chosen.into_iter().map(|seat| any_role(&mut self.rng, *seat));
                ConfigChange::Seats(seats.collect())
            }
        }
    }

    pub(crate) fn any_config(&mut self) -> Config {
        let mut set = |percent: u8| {
            let seats = self.genesis.seats.clone();
            seats.into_iter().filter(|_| self.rng.u8(..100) < percent).collect()
        };
        let mut config = Config { voters: set(60), ..Config::default() };
        match self.rng.u8(..4) {
            0 => config.learners = [self.any_seat()].into(),
            1 => {
                config.outgoing = self.genesis.seats.iter().copied().take(VOTERS).collect();
                config.learners_next =
                    config.outgoing.difference(&config.voters).copied().collect();
            }
            2 => {
                config.outgoing.insert(self.any_seat());
                config.learners.insert(self.any_seat());
                config.learners_next.insert(self.any_seat());
            }
            _ => {}
        }
        config
    }

    pub(crate) fn any_snapshot(&mut self, at: usize, term: u64) -> Snapshot {
        let source = self.rng.usize(..RUNNING);
        let mut snapshot = match self.rng.u8(..8) {
            0 => self.elsewhere.clone(),
            1 => self.genesis.snapshot.clone(),
            _ => self.driver(source).replica().snapshot(),
        };
        let Status { commit, last_index, .. } = self.driver(at).status();
        snapshot.index = match self.rng.u8(..4) {
            0 => snapshot.index,
            1 => self.any_number(at),
            _ => self.rng.u64(commit..=last_index.saturating_add(20)),
        };
        snapshot.term = match self.rng.u8(..4) {
            0 => snapshot.term,
            1 => self.any_place(at).1,
            _ => term,
        };
        if self.rng.bool() {
            snapshot.config = self.any_config();
        }
        if self.rng.bool() {
            snapshot.data = mutated_bytes(&mut self.rng, &snapshot.data);
        }
        snapshot
    }

    /// Bytes of a batch that somebody might send: a real one, a liar's own or a forged one.
    fn any_batch(&mut self) -> Vec<u8> {
        match self.rng.u8(..4) {
            0 => self.rng.choice(&self.batches).expect("some counted").as_bytes().to_vec(),
            1 => {
                // A member's own word, with nonsense in it.
                let who = self.rng.usize(..MEMBERS);
                let sequence = self.any_number(0);
                let commands: Vec<Command> = (0..self.rng.usize(..4))
                    .map(|_| Command {
                        kind: self.rng.u16(..14),
                        body: (0..self.rng.usize(..80)).map(|_| self.rng.u8(..)).collect(),
                    })
                    .collect();
                self.sign(who, sequence, &commands).as_bytes().to_vec()
            }
            _ => self.forged_batch(),
        }
    }

    /// A batch that never counts.
    pub(crate) fn forged_batch(&mut self) -> Vec<u8> {
        let mesh = self.genesis.mesh;
        let act = NameSet {
            party: self.genesis.parties[0],
            name: name("forged"),
            expect: None,
            to: Hash([6; 32]),
        };
        let commands = [Act::NameSet(act).command()];
        let sequence = self.rng.u64(1 << 20..1 << 21);
        let member = self.keys[self.rng.usize(..MEMBERS)].clone();
        let stranger = stranger(&mut self.rng);
        let sign = |key, mesh, epoch| {
            let batch = Batch::sign(key, mesh, epoch, sequence, &commands);
            batch.expect("the batch is small").as_bytes().to_vec()
        };
        match self.rng.u8(..6) {
            0 => sign(&stranger, mesh, 0),
            1 => {
                // Signed by a stranger in a member's name: the author follows mesh and epoch.
                let mut bytes = sign(&stranger, mesh, 0);
                bytes[33..65].copy_from_slice(&node_id(&member).0);
                bytes
            }
            2 => sign(&member, mesh, self.rng.u32(1..100)),
            3 => sign(&member, MeshId([3; 32]), 0),
            4 => {
                let mut bytes = sign(&member, mesh, 0);
                let at = self.rng.usize(..bytes.len());
                bytes[at] ^= 1 << self.rng.u8(..8);
                bytes
            }
            _ => (0..self.rng.usize(..200)).map(|_| self.rng.u8(..)).collect(),
        }
    }
}

fn any_role(rng: &mut fastrand::Rng, seat: RaftId) -> Seat {
    match rng.u8(..3) {
        0 => Seat::Voter(seat),
        1 => Seat::Learner(seat),
        _ => Seat::Gone(seat),
    }
}

/// A key that was never a member's.
pub(crate) fn stranger(rng: &mut fastrand::Rng) -> SigningKey {
    node_key(rng.usize(100..200))
}

/// `bytes` with some bits flipped, cut short, or continued.
pub(crate) fn mutated_bytes(rng: &mut fastrand::Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match rng.u8(..8) {
        0 => bytes.truncate(rng.usize(..=bytes.len())),
        1 => bytes.push(rng.u8(..)),
        _ => {
            for _ in 0..rng.usize(1..4) {
                if !bytes.is_empty() {
                    let at = rng.usize(..bytes.len());
                    bytes[at] ^= 1 << rng.u8(..8);
                }
            }
        }
    }
    bytes
}
