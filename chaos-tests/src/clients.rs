//! Those who use the mesh: clients that write and read names, and the operator who admits, removes
//! and upgrades nodes.
//!
//! A write is signed once and submitted until its node answers; the same bytes each time. A client
//! that loses patience counts its write as unknown: it may take effect at any time, or never.

use std::collections::BTreeMap;

use mesh_consensus::command::{Batch, Command};
use mesh_consensus::driver::{Answer, Event};
use mesh_consensus::id::{Hash, NodeId, RaftId};
use mesh_consensus::machine::Outcome;
use mesh_node::state::command::{Act, Leave, NameDrop, NameSet, RaiseLevel, Rejoin};
use mesh_node::state::name::Name;
use mesh_node::state::party::Slot;

use crate::genesis::{self, name, party_key};
use crate::host::Power;
use crate::invariants::History;
use crate::linear;
use crate::world::{Happening, World};

/// A client gives up after this long.
const PATIENCE: u64 = 1_500_000;

/// What an operation is for.
#[derive(Debug, Clone)]
enum Aim {
    Cas {
        client: usize,
        key: usize,
        expect: Option<u64>,
        to: Option<u64>,
    },
    Read {
        client: usize,
        key: usize,
    },
    Seat {
        host: usize,
    },
    Chore,
    /// A healed node must get this through.
    LastWord,
}

#[derive(Debug)]
struct Op {
    aim: Aim,
    /// Who submits it. Another may, if that one cannot.
    host: usize,
    batch: Option<Batch>,
    called: u64,
    is_open: bool,
}

/// All clients, and what they have under way.
pub struct Clients {
    keys: usize,
    ops: Vec<Op>,
    by_batch: BTreeMap<(NodeId, u64), usize>,
    by_token: BTreeMap<u64, usize>,
    /// What each client is waiting for.
    busy: Vec<Option<usize>>,
    /// What each client last saw of each key.
    known: BTreeMap<(usize, usize), Option<u64>>,
    next_value: u64,
    next_token: u64,
    finished: Vec<linear::Event>,
    /// Writes that were acknowledged.
    pub acked: u64,
    /// Reads that were answered.
    pub reads: u64,
}

impl Clients {
    /// So many clients, over so many keys.
    pub fn new(clients: usize, keys: usize) -> Self {
        Self {
            keys,
            ops: Vec::new(),
            by_batch: BTreeMap::new(),
            by_token: BTreeMap::new(),
            busy: vec![None; clients],
            known: BTreeMap::new(),
            next_value: 0,
            next_token: 0,
            finished: Vec::new(),
            acked: 0,
            reads: 0,
        }
    }

    /// Whether nobody waits for anything that must come.
    pub fn is_quiet(&self) -> Result<(), String> {
        let waits = self.ops.iter().find(|op| {
            op.is_open && matches!(op.aim, Aim::LastWord | Aim::Seat { .. } | Aim::Chore)
        });
        waits.map_or(Ok(()), |op| Err(format!("host {} waits for {:?}", op.host, op.aim)))
    }

    /// Hands over the history: what is still open is unknown.
    pub fn close(&mut self, history: &mut History) {
        for op in 0..self.ops.len() {
            self.give_up(op);
        }
        history.events.append(&mut self.finished);
    }

    fn give_up(&mut self, index: usize) {
        let op = &mut self.ops[index];
        if !std::mem::replace(&mut op.is_open, false) {
            return;
        }
        if let Aim::Cas { client, key, expect, to } = op.aim {
            let event = linear::Event {
                key: key as u32,
                client: client as u32,
                call: op.called,
                ret: None,
                op: linear::Op::Cas { expect, to, ok: None },
            };
            self.finished.push(event);
        }
    }

    fn finish(&mut self, index: usize, now: u64, done: linear::Op) {
        let op = &self.ops[index];
        let (Aim::Cas { client, key, .. } | Aim::Read { client, key }) = op.aim else { return };
        let event = linear::Event {
            key: key as u32,
            client: client as u32,
            call: op.called,
            ret: Some(now),
            op: done,
        };
        self.finished.push(event);
        self.busy[client] = None;
    }
}

impl World {
    pub(crate) fn on_client(&mut self, client: usize) {
        let busy = self.clients.busy[client];
        let waits = busy.is_some_and(|op| {
            let op = &self.clients.ops[op];
            op.is_open && self.now - op.called < PATIENCE
        });
        if let Some(op) = busy.filter(|_| !waits) {
            self.clients.give_up(op);
            self.clients.busy[client] = None;
        }
        if !waits && !self.healed {
            self.call(client);
        }
        let think = self.rng.u64(self.plan.think / 2..2 * self.plan.think);
        self.later(think, Happening::Client(client));
    }

    /// A client begins something.
    fn call(&mut self, client: usize) {
        let Some(host) = self.awake_member() else { return };
        let key = self.rng.usize(0..self.clients.keys);
        let writes = self.rng.u32(0..100) < self.plan.writes;
        // Names belong to a party: only its own nodes write them.
        let party = key % self.parties.len();
        if !writes || self.hosts[host].party != party {
            let op = self.open(Aim::Read { client, key }, host, None);
            self.clients.busy[client] = Some(op);
            self.ask(op);
            return;
        }
        let expect = self.clients.known.get(&(client, key)).copied().flatten();
        let drops = self.plan.level >= 2 && expect.is_some() && self.rng.u32(0..100) < 15;
        let to = (!drops).then(|| {
            self.clients.next_value += 1;
            self.clients.next_value
        });
        let act = self.write(key, expect, to);
        let batch = self.sign(host, vec![act.command()]);
        let op = self.open(Aim::Cas { client, key, expect, to }, host, Some(batch));
        self.clients.busy[client] = Some(op);
        self.submit(op);
    }

    fn write(&self, key: usize, expect: Option<u64>, to: Option<u64>) -> Act {
        let party = self.parties[key % self.parties.len()];
        let name = key_name(key);
        match (expect, to) {
            (Some(expect), None) => {
                Act::NameDrop(NameDrop { party, name, expect: value_hash(expect) })
            }
            (expect, to) => Act::NameSet(NameSet {
                party,
                name,
                expect: expect.map(value_hash),
                to: value_hash(to.unwrap_or(0)),
            }),
        }
    }

    fn open(&mut self, aim: Aim, host: usize, batch: Option<Batch>) -> usize {
        let index = self.clients.ops.len();
        if let Some(batch) = &batch {
            self.clients.by_batch.insert((batch.author(), batch.sequence()), index);
        }
        let called = self.now;
        self.clients.ops.push(Op { aim, host, batch, called, is_open: true });
        index
    }

    /// The next batch of a host.
    fn sign(&mut self, host: usize, commands: Vec<Command>) -> Batch {
        let host = &mut self.hosts[host];
        host.sequence += 1;
        Batch::sign(&host.key, self.mesh, 0, host.sequence, &commands)
            .expect("the simulator's batches are small")
    }

    fn submit(&mut self, index: usize) {
        let op = &self.clients.ops[index];
        if let (Some(batch), true) = (&op.batch, op.is_open) {
            let (host, batch) = (op.host, batch.clone());
            if self.hosts[host].is_awake(self.now) {
                self.hosts[host].take(Event::Submit(batch));
                self.schedule(host);
            }
            let pause = self.rng.u64(200_000..400_000);
            self.later(pause, Happening::Retry(index));
        }
    }

    pub(crate) fn on_retry(&mut self, index: usize) {
        let op = &self.clients.ops[index];
        if !op.is_open {
            return;
        }
        if matches!(op.aim, Aim::Read { .. }) {
            self.ask(index);
            return;
        }
        // One that raft does not feed needs somebody who passes it on.
        let author = op.batch.as_ref().map(Batch::author);
        let is_own =
            author == Some(self.hosts[op.host].id) && self.hosts[op.host].identity.is_some();
        if !is_own && let Some(host) = self.awake_seat() {
            self.clients.ops[index].host = host;
        }
        let host = self.clients.ops[index].host;
        if self.hosts[host].power == Power::Gone || self.is_out(index) {
            self.clients.give_up(index);
            if let Aim::Seat { host: newcomer } = self.clients.ops[index].aim {
                self.try_again(newcomer);
            }
            return;
        }
        self.submit(index);
    }

    /// Whoever spoke for `newcomer` is gone. It may have been admitted without hearing of it.
    fn try_again(&mut self, newcomer: usize) {
        let node = self.hosts[newcomer].id;
        if self.newest().is_some_and(|state| state.is_member(node)) {
            self.begin_rejoin(newcomer);
        } else if self.hosts[newcomer].starts > 0 {
            // It was wiped, and then removed.
            self.hosts[newcomer].power = Power::Gone;
        } else {
            self.begin_join(newcomer);
        }
    }

    /// Whether the author of an operation is no longer a member: nothing will come of it.
    fn is_out(&self, index: usize) -> bool {
        let op = &self.clients.ops[index];
        let (Some(batch), Some(state)) = (&op.batch, self.newest()) else { return false };
        let author = batch.author();
        state.removed().contains(&author) || state.members().get(&author).is_some_and(|m| m.leaving)
    }

    fn ask(&mut self, index: usize) {
        self.clients.next_token += 1;
        let token = self.clients.next_token;
        self.clients.by_token.insert(token, index);
        let host = self.clients.ops[index].host;
        if self.hosts[host].is_awake(self.now) {
            self.hosts[host].take(Event::Read { token });
            self.schedule(host);
        }
    }

    pub(crate) fn on_read(&mut self, host: usize, token: u64) {
        let Some(index) = self.clients.by_token.remove(&token) else { return };
        let op = &self.clients.ops[index];
        let (Aim::Read { client, key }, true) = (op.aim.clone(), op.is_open) else { return };
        let Some(driver) = &self.hosts[host].driver else { return };
        let party = self.parties[key % self.parties.len()];
        let saw = driver.replica().machine().name(party, &key_name(key)).map(hash_value);
        self.clients.ops[index].is_open = false;
        self.clients.known.insert((client, key), saw);
        self.clients.reads += 1;
        self.clients.finish(index, self.now, linear::Op::Read { saw });
    }

    pub(crate) fn on_lost_read(&mut self, token: u64) {
        if let Some(index) = self.clients.by_token.remove(&token) {
            let pause = self.rng.u64(20_000..80_000);
            self.later(pause, Happening::Retry(index));
        }
    }

    pub(crate) fn on_answer(&mut self, host: usize, answer: &Answer) {
        let key = (answer.author, answer.sequence);
        let Some(index) = self.clients.by_batch.get(&key).copied() else { return };
        let op = &mut self.clients.ops[index];
        if !std::mem::replace(&mut op.is_open, false) {
            return;
        }
        let done =
            (answer.result.as_ref()).is_ok_and(|receipt| receipt.outcome(0) == Outcome::Done);
        match op.aim.clone() {
            Aim::Cas { client, key, expect, to } => {
                if answer.result.is_err() {
                    // It did not count, and never will: as if it had not been called.
                    self.clients.busy[client] = None;
                    return;
                }
                self.clients.acked += 1;
                if done {
                    self.clients.known.insert((client, key), to);
                } else {
                    self.clients.known.remove(&(client, key));
                }
                let ok = Some(done);
                self.clients.finish(index, self.now, linear::Op::Cas { expect, to, ok });
            }
            Aim::Seat { host: newcomer } => match &answer.result {
                Ok(receipt) if done => self.admitted(newcomer, RaftId(receipt.index), host),
                _ => self.hosts[newcomer].power = Power::Gone,
            },
            Aim::Read { .. } | Aim::Chore | Aim::LastWord => {}
        }
    }

    /// A host that runs, is a member and is fed by raft.
    pub(crate) fn awake_member(&mut self) -> Option<usize> {
        self.awake(World::is_fed)
    }

    /// A host that runs and is fed by raft. One that is leaving can still pass on what others sign.
    fn awake_seat(&mut self) -> Option<usize> {
        self.awake(World::has_seat)
    }

    fn awake(&mut self, suits: impl Fn(&World, usize) -> bool) -> Option<usize> {
        let able: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.hosts[*host].is_awake(self.now) && suits(self, *host))
            .collect();
        (!able.is_empty()).then(|| able[self.rng.usize(0..able.len())])
    }

    /// The operator hands `newcomer` a ticket.
    pub(crate) fn begin_join(&mut self, newcomer: usize) {
        let Some(host) = self.awake_member() else { return };
        if self.is_coming(newcomer) || self.hosts[newcomer].power != Power::Blank {
            return;
        }
        self.trace.note(self.now, || format!("host {newcomer} asks to join through host {host}"));
        let act = genesis::admit(self.mesh, newcomer, self.hosts[newcomer].party);
        let batch = self.sign(host, vec![act.command()]);
        let op = self.open(Aim::Seat { host: newcomer }, host, Some(batch));
        self.submit(op);
    }

    /// A wiped host asks for a new seat, with its own signature.
    pub(crate) fn begin_rejoin(&mut self, index: usize) {
        let batch = self.sign(index, vec![Act::Rejoin(Rejoin {}).command()]);
        let host = self.awake_seat().unwrap_or(index);
        let op = self.open(Aim::Seat { host: index }, host, Some(batch));
        self.submit(op);
    }

    /// Whether a seat is being asked for on behalf of `host`.
    pub(crate) fn is_coming(&self, host: usize) -> bool {
        self.clients.ops.iter().any(|op| {
            op.is_open && matches!(op.aim, Aim::Seat { host: newcomer } if newcomer == host)
        })
    }

    /// `leaver` goes: by its own word, or by its party's if it cannot speak.
    pub(crate) fn begin_leave(&mut self, leaver: usize) {
        let node = self.hosts[leaver].id;
        let act = Act::Leave(Leave { node });
        let (host, batch) = if self.hosts[leaver].is_awake(self.now) {
            (leaver, self.sign(leaver, vec![act.command()]))
        } else {
            let Some(host) = self.awake_member() else { return };
            let slot = Slot {
                mesh: self.mesh,
                epoch: 0,
                author: self.hosts[host].id,
                sequence: self.hosts[host].sequence + 1,
                position: 0,
            };
            let command = act.signed(&party_key(self.hosts[leaver].party), &slot);
            (host, self.sign(host, vec![command]))
        };
        self.trace.note(self.now, || format!("host {leaver} leaves"));
        let op = self.open(Aim::Chore, host, Some(batch));
        self.submit(op);
    }

    /// A host tells what it supports and how its disk is. A newcomer is not fed by raft yet, and
    /// somebody passes it on.
    pub(crate) fn begin_report(&mut self, host: usize) {
        let report = genesis::report(self.hosts[host].supports);
        let batch = self.sign(host, vec![report.command()]);
        let through = if self.is_fed(host) { Some(host) } else { self.awake_seat() };
        let op = self.open(Aim::Chore, through.unwrap_or(host), Some(batch));
        self.submit(op);
    }

    /// Somebody asks for the next level.
    pub(crate) fn begin_raise(&mut self, level: u16) {
        let (Some(host), Some(raise)) = (self.awake_member(), RaiseLevel::to(level)) else {
            return;
        };
        let batch = self.sign(host, vec![Act::RaiseLevel(raise).command()]);
        let op = self.open(Aim::Chore, host, Some(batch));
        self.submit(op);
    }

    /// After healing, every member must get one write through.
    pub(crate) fn last_words(&mut self) {
        for host in 0..self.hosts.len() {
            if !matches!(self.hosts[host].power, Power::On | Power::Off) {
                continue;
            }
            let act = Act::NameSet(NameSet {
                party: self.parties[self.hosts[host].party],
                name: name(&format!("last-word-of-{host}")),
                expect: None,
                to: value_hash(1),
            });
            let batch = self.sign(host, vec![act.command()]);
            let op = self.open(Aim::LastWord, host, Some(batch));
            self.submit(op);
        }
    }
}

fn key_name(key: usize) -> Name {
    name(&format!("key-{key}"))
}

fn value_hash(value: u64) -> Hash {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    Hash(bytes)
}

fn hash_value(hash: Hash) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.0[..8]);
    u64::from_le_bytes(bytes)
}
