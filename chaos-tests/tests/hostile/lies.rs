//! What a member says that lies in its own name.

use mesh_chaos_tests::genesis::node_id;
use mesh_consensus::admission::Admission;
use mesh_consensus::driver::Status;
use mesh_consensus::message::{Body, Message, Reject};

use crate::any::{mutated_bytes, stranger};
use crate::{Happening, MEMBERS, Mesh};

impl Mesh {
    /// Something that `liar` might say to `at` in its own name.
    pub(crate) fn lie(&mut self, liar: usize, at: usize) -> Happening {
        let id = node_id(&self.keys[liar]);
        match self.rng.u8(..20) {
            0 => Happening::Tick,
            1 => Happening::Shown(self.any_chain(liar)),
            2 => {
                let bytes = postcard::to_stdvec(&self.any_message(liar, at))
                    .expect("a message always encodes");
                let bytes = mutated_bytes(&mut self.rng, &bytes);
                match postcard::from_bytes::<Message>(&bytes) {
                    Ok(message) => Happening::Heard(id, message),
                    Err(_) => Happening::Tick,
                }
            }
            _ => Happening::Heard(id, self.any_message(liar, at)),
        }
    }

    /// Lies that build on one another: it takes the lead, and misuses it in some order.
    pub(crate) fn ruse(&mut self, liar: usize, at: usize) -> Vec<Happening> {
        let id = node_id(&self.keys[liar]);
        let Status { term, last_index, commit, .. } = self.driver(at).status();
        let last_term = self.term_at(at, last_index).unwrap_or(0);
        let mut term = term + self.rng.u64(..2);
        let (mut last_index, mut last_term) = (last_index, last_term);
        let mut lies = Vec::new();
        for _ in 0..self.rng.u64(2..6) {
            let body = match self.rng.u8(..10) {
                0..3 => {
                    let entries = self.any_entries(last_index, last_term, term);
                    let (prev_index, prev_term) = (last_index, last_term);
                    if let Some(last) = entries.last() {
                        (last_index, last_term) = (last.index, last.term);
                    }
                    let commit = if self.rng.bool() { last_index } else { commit };
                    Body::Append { prev_index, prev_term, commit, entries }
                }
                3 | 4 => {
                    let mut snapshot = self.any_snapshot(at, term);
                    if self.rng.bool() {
                        snapshot.config.voters = [self.nodes[at].seat].into();
                    }
                    (last_index, last_term) = (snapshot.index, snapshot.term);
                    Body::Snapshot(snapshot)
                }
                5 | 6 => Body::TimeoutNow,
                7 | 8 => {
                    // The listener may just have stood for election, and be a term further.
                    term += self.rng.u64(..2);
                    let pre = self.rng.u8(..4) == 0;
                    Body::VoteReply { pre, granted: true, commit: 0, commit_term: 0 }
                }
                _ => Body::AppendReply { index: last_index, commit: last_index, reject: None },
            };
            let term = if self.rng.u8(..8) == 0 { term.saturating_sub(1) } else { term };
            lies.push(Happening::Heard(id, self.message(liar, at, term, body)));
        }
        lies
    }

    fn any_chain(&mut self, liar: usize) -> Vec<Admission> {
        let key = self.keys[liar].clone();
        let stranger = stranger(&mut self.rng);
        let links = self.rng.usize(..20);
        (0..links)
            .map(|_| {
                let of = match self.rng.u8(..4) {
                    0 => node_id(&stranger),
                    _ => node_id(&self.keys[self.rng.usize(..MEMBERS)]),
                };
                let by = if self.rng.u8(..4) == 0 { &stranger } else { &key };
                Admission::sign(by, self.genesis.mesh, 0, of, self.any_seat())
            })
            .collect()
    }

    /// A message to `at` in the name of `from`: made up, or a mutated one that was really sent.
    pub(crate) fn any_message(&mut self, from: usize, at: usize) -> Message {
        let status = self.driver(at).status();
        let term = match self.rng.u8(..10) {
            0..5 => status.term,
            5..8 => status.term + 1,
            8 => status.term.saturating_sub(1),
            _ => self.any_number(at),
        };
        if self.rng.u8(..3) > 0 {
            let body = self.any_body(at, term);
            return self.message(from, at, term, body);
        }
        let (_, _, real) = self.rng.choice(&self.recorded).cloned().expect("much was said");
        let mut message = self.message(from, at, real.term, real.body);
        if self.rng.bool() {
            message.term = term;
        }
        if self.rng.u8(..8) > 0 {
            self.mutate(&mut message.body, at, term);
        }
        message
    }

    /// Changes one thing about a message that was really sent.
    fn mutate(&mut self, body: &mut Body, at: usize, term: u64) {
        let number = self.any_number(at);
        let pick = self.rng.u8(..4);
        match body {
            Body::Append { prev_index, prev_term, commit, entries } => match self.rng.u8(..9) {
                0 => *prev_index = number,
                1 => *prev_term = number,
                2 => *commit = number,
                3 if !entries.is_empty() => drop(entries.remove(self.rng.usize(..entries.len()))),
                4 if !entries.is_empty() => {
                    let again = entries[self.rng.usize(..entries.len())].clone();
                    entries.insert(self.rng.usize(..=entries.len()), again);
                }
                5 => self.rng.shuffle(entries),
                6 => entries.iter_mut().for_each(|entry| entry.term = term),
                7 if !entries.is_empty() => {
                    let place = self.rng.usize(..entries.len());
                    entries[place].payload = self.any_payload();
                }
                _ => {
                    // The same, moved to the end of the listener's log.
                    let (index, index_term) = self.any_place(at);
                    for (step, entry) in (1..).zip(entries.iter_mut()) {
                        (entry.index, entry.term) = (index.wrapping_add(step), term);
                    }
                    *commit = index.saturating_add(entries.len() as u64);
                    (*prev_index, *prev_term) = (index, index_term);
                }
            },
            Body::AppendReply { index, commit, reject } => match pick {
                0 => *index = number,
                1 => *commit = number,
                2 => *reject = Some(Reject { hint_index: number, hint_term: term }),
                _ => *reject = Some(Reject { hint_index: *index, hint_term: number }),
            },
            Body::Vote { pre, last_index, last_term, commit, commit_term, transfer } => {
                match self.rng.u8(..6) {
                    0 => *pre = !*pre,
                    1 => *last_index = number,
                    2 => *last_term = number,
                    3 => *commit = number,
                    4 => *commit_term = number,
                    _ => *transfer = true,
                }
            }
            Body::VoteReply { pre, granted, commit, commit_term } => match pick {
                0 => *pre = !*pre,
                1 => *granted = true,
                2 => *commit = number,
                _ => *commit_term = number,
            },
            Body::Heartbeat { commit, read } | Body::HeartbeatReply { commit, read } => {
                match pick {
                    0 => *read = Some(number),
                    _ => *commit = number,
                }
            }
            Body::Snapshot(snapshot) => match self.rng.u8(..5) {
                0 => snapshot.index = number,
                1 => snapshot.term = number,
                2 => snapshot.config = self.any_config(),
                3 => snapshot.index = self.any_place(at).0.saturating_add(1),
                _ => snapshot.data = mutated_bytes(&mut self.rng, &snapshot.data),
            },
            Body::Forward { batch } => *batch = mutated_bytes(&mut self.rng, batch),
            Body::Read { context } => *context = number,
            Body::ReadReply { context, index } => match pick {
                0 => *context = number,
                _ => *index = number,
            },
            Body::TimeoutNow => {}
        }
    }
}
