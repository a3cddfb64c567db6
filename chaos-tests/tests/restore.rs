//! Restore equals replay: a snapshot and the entries behind it give what all entries give.
//!
//! Histories are made up from a seed, by looking at a replica that takes each entry as it comes, so
//! that much of them takes effect, much almost does, and some is nonsense.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail it where they stand")]

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::SigningKey;
use mesh_chaos_tests::genesis::{
    self, BEGINNING, Genesis, grown, name, node_id, node_key, party_id, party_key,
};
use mesh_consensus::command::{Batch, BatchError, Command};
use mesh_consensus::id::{Hash, MeshId, NodeId, RaftId, TicketId};
use mesh_consensus::log::{ConfigChange, Entry, MAX_SEATS, Payload, Seat, Snapshot};
use mesh_consensus::replica::{Applied, Fact, Rejected, Replica, Verdict, WINDOW};
use mesh_consensus::time::Time;
use mesh_node::state::State;
use mesh_node::state::command::{
    Act, Drain, Found, Invite, Label, Leave, NameDrop, NameSet, Pace, RaiseLevel, Rejoin, Report,
    RequestOpen, RequestSign, Suspect, TicketNew, TicketRevoke,
};
use mesh_node::state::invite::{sign_found, sign_found_consent};
use mesh_node::state::level::LEVEL;
use mesh_node::state::name::Name;
use mesh_node::state::party::Slot;
use mesh_node::state::request::JointAct;

const CASES: u64 = 200;
/// Hosts that there are keys for; not all are members at the start.
const HOSTS: usize = 8;
const PARTIES: usize = 3;

/// A made-up history and the replica that took it all.
struct History {
    genesis: Genesis,
    random: fastrand::Rng,
    replica: Replica<State>,
    /// What each author has signed last, by host.
    sequences: BTreeMap<usize, u64>,
    /// Batches so far, to be sent again.
    sent: Vec<Vec<u8>>,
    term: u64,
    entries: Vec<Entry>,
    applied: Vec<Applied>,
}

fn restore(mesh: MeshId, snapshot: &Snapshot) -> Replica<State> {
    Replica::restore(mesh, 0, snapshot, State::blank(LEVEL)).unwrap()
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let level = random.u16(1..=LEVEL);
        let genesis = grown(5, PARTIES, random.usize(1..=4), 1, level);
        let replica = restore(genesis.mesh, &genesis.snapshot);
        let top = |host: usize| (host, replica.top(node_id(&node_key(host))));
        let sequences = (0..HOSTS).map(top).collect();
        let (sent, entries, applied) = (Vec::new(), Vec::new(), Vec::new());
        Self { genesis, random, replica, sequences, sent, term: 1, entries, applied }
    }

    /// One entry more.
    fn grow(&mut self) {
        if self.random.u8(..10) == 0 {
            self.term += self.random.u64(1..4);
        }
        let payload = match self.random.u8(..100) {
            0..6 => Payload::Empty,
            6..24 => Payload::Config(self.change()),
            _ => {
                let bytes = self.bytes();
                self.sent.push(bytes.clone());
                Payload::Batch { time: self.time(), bytes }
            }
        };
        let entry = Entry { term: self.term, index: self.replica.index() + 1, payload };
        self.applied.push(self.replica.apply(&entry).unwrap());
        self.entries.push(entry);
    }

    /// Mostly a little later than before; now and then long before or after.
    fn time(&mut self) -> Time {
        let now = self.replica.time().0;
        Time(match self.random.u16(..400) {
            // From here on everything has expired.
            0 => u64::MAX >> 8,
            1..10 => 0,
            10..40 => BEGINNING.0 + self.random.u64(..50_000_000),
            40..120 => now.saturating_sub(self.random.u64(..100_000)),
            _ => now.saturating_add(self.random.u64(..5_000)),
        })
    }

    fn change(&mut self) -> ConfigChange {
        let seats: Vec<RaftId> =
            (self.replica.machine().members().values()).filter_map(|member| member.seat).collect();
        let random = &mut self.random;
        if self.replica.config().is_joint() && random.u8(..3) > 0 || random.u8(..12) == 0 {
            return ConfigChange::Leave;
        }
        let seat = |random: &mut fastrand::Rng| {
            let id = match random.u8(..12) {
                0 => RaftId(random.u64(..60)),
                _ => random.choice(&seats).copied().unwrap_or_default(),
            };
            match random.u8(..5) {
                0 | 1 => Seat::Voter(id),
                2 | 3 => Seat::Learner(id),
                _ => Seat::Gone(id),
            }
        };
        let count = match random.u8(..20) {
            0 => 0,
            1 => MAX_SEATS + 1,
            _ => random.usize(1..4),
        };
        ConfigChange::Seats((0..count).map(|_| seat(random)).collect())
    }

    /// The bytes of a batch, or something like it.
    fn bytes(&mut self) -> Vec<u8> {
        let (random, sent) = (&mut self.random, &self.sent);
        match random.u8(..20) {
            0 => return (0..random.usize(..80)).map(|_| random.u8(..)).collect(),
            1..4 if !sent.is_empty() => return sent[random.usize(..sent.len())].clone(),
            4 if !sent.is_empty() => {
                let mut bytes = sent[random.usize(..sent.len())].clone();
                if let Some(byte) = random.choice(&mut bytes) {
                    *byte ^= 1 << random.u8(..8);
                }
                return bytes;
            }
            _ => {}
        }
        // The first five are members at the start.
        let known = if self.random.u8(..5) > 0 { 5 } else { HOSTS };
        let author = self.random.usize(..known);
        let sequence = self.number(author);
        let (mesh, epoch) = match self.random.u8(..30) {
            0 => (MeshId([7; 32]), 0),
            1 => (self.genesis.mesh, 1),
            _ => (self.genesis.mesh, 0),
        };
        let count = self.random.u32(0..4);
        let commands: Vec<Command> =
            (0..count).map(|position| self.command(author, sequence, position)).collect();
        let batch = Batch::sign(&node_key(author), mesh, epoch, sequence, &commands).unwrap();
        batch.as_bytes().to_vec()
    }

    /// Mostly the next number. Some overtake, some come late, and some much too late.
    fn number(&mut self, author: usize) -> u64 {
        let last = self.sequences.entry(author).or_default();
        let next = match self.random.u8(..20) {
            0 => *last + self.random.u64(1..2 * WINDOW),
            1..4 => *last + self.random.u64(1..6),
            4..7 => return last.saturating_sub(self.random.u64(..6)),
            7 => return last.saturating_sub(self.random.u64(..2 * WINDOW)),
            _ => *last + 1,
        };
        *last = next;
        next
    }

    fn command(&mut self, author: usize, sequence: u64, position: u32) -> Command {
        let act = self.act(author);
        let random = &mut self.random;
        match random.u8(..20) {
            0 => return Command { kind: random.u16(..20), body: vec![random.u8(..); 5] },
            1 => return Command { kind: random.u16(..20), ..act.command() },
            _ => {}
        }
        let needs = match &act {
            Act::TicketNew(_) | Act::TicketRevoke(_) | Act::Invite(_) => true,
            Act::RequestOpen(_) | Act::RequestSign(_) => true,
            Act::Leave(_) => random.bool(),
            _ => random.u8(..20) == 0,
        };
        if !needs {
            return act.command();
        }
        let signer = match &act {
            Act::TicketNew(TicketNew { party, .. }) | Act::Invite(Invite { party, .. }) => {
                (0..PARTIES).find(|p| party_id(&party_key(*p)) == *party).unwrap_or(0)
            }
            _ => random.usize(..=PARTIES),
        };
        let (mesh, author) = (self.genesis.mesh, node_id(&node_key(author)));
        act.signed(&party_key(signer), &Slot { mesh, epoch: 0, author, sequence, position })
    }

    fn act(&mut self, author: usize) -> Act {
        let state = self.replica.machine();
        let random = &mut self.random;
        let node = node_id(&node_key(random.usize(..HOSTS)));
        let party = match state.party_of(node_id(&node_key(author))) {
            Some(party) if random.u8(..10) > 0 => party,
            _ => party_id(&party_key(random.usize(..PARTIES))),
        };
        let label = name(&format!("x{}", random.u8(..6)));
        let expires = Time(self.replica.time().0.saturating_add(random.u64(..100_000)));
        let hash = Hash::of(&[random.u8(..4)]);
        match random.u8(..48) {
            0..4 => {
                let ticket = ticket(random.usize(..20)).verifying_key().to_bytes();
                let uses = random.u32(..3);
                let worker = random.bool();
                TicketNew { ticket: TicketId(ticket), party, expires, uses, worker }.into()
            }
            4 => {
                let ticket = random.choice(state.tickets().keys()).copied();
                TicketRevoke { ticket: ticket.unwrap_or(TicketId([1; 32])) }.into()
            }
            5..10 => {
                let host = random.usize(..HOSTS);
                genesis::admit(self.genesis.mesh, host, random.usize(..PARTIES))
            }
            10 | 11 => Rejoin {}.into(),
            12 => Leave { node }.into(),
            13 => {
                let signing = party_id(&party_key(PARTIES));
                let name = name("fourth");
                let act = match random.bool() {
                    true => JointAct::RemoveNode { node },
                    false => JointAct::FoundParty { name, signing, sealing: [3; 32] },
                };
                RequestOpen { act, expires }.into()
            }
            14..18 => match random.choice(state.requests().keys()).copied() {
                Some(request) => RequestSign { request, yes: random.u8(..4) > 0 }.into(),
                None => Rejoin {}.into(),
            },
            18..22 => {
                let fsync_p99_us = (random.u8(..8) > 0).then(|| random.u32(..60_000));
                let (votes, direct) = (random.u8(..6) > 0, random.u8(..6) > 0);
                let told = Report::assumed(random.u16(1..=LEVEL));
                Report { votes, direct, fsync_p99_us, ..told }.into()
            }
            22..25 => Suspect { node, down: random.u8(..3) > 0 }.into(),
            25 => {
                let next = (state.level().number + 1).min(LEVEL);
                RaiseLevel::to(next).expect("this version knows it").into()
            }
            40 => Pace { tick_ms: random.u32(15..2100) }.into(),
            41..43 => {
                let value = (random.u8(..3) > 0).then(|| format!("v{}", random.u8(..4)));
                Label { node, key: label, value: value.map(|v| v.parse().unwrap()) }.into()
            }
            43 => Drain { node, on: random.u8(..3) > 0 }.into(),
            44 | 45 => {
                let ticket = TicketId(ticket(random.usize(..20)).verifying_key().to_bytes());
                Invite { ticket, party, expires, uses: random.u32(..3) }.into()
            }
            46 | 47 => {
                let seed = (0..20).map(ticket).find(|seed| {
                    let id = TicketId(seed.verifying_key().to_bytes());
                    state.invites().contains_key(&id)
                });
                found(self.genesis.mesh, &seed.unwrap_or_else(|| ticket(0)), label)
            }
            26..30 => {
                let expect = state.name(party, &label).unwrap_or(hash);
                NameDrop { party, name: label, expect }.into()
            }
            _ => {
                let expect = match random.u8(..5) {
                    0 => Some(hash),
                    _ => state.name(party, &label),
                };
                NameSet { party, name: label, expect, to: hash }.into()
            }
        }
    }
}

/// What founds the party that is not there yet.
fn found(mesh: MeshId, seed: &SigningKey, name: Name) -> Act {
    let (key, sealing) = (party_key(PARTIES), [3; 32]);
    let signing = party_id(&key);
    let first = TicketId(ticket(20).verifying_key().to_bytes());
    let proof = sign_found(seed, mesh, &name, signing, &sealing, first);
    let consent = sign_found_consent(&key, mesh, &name, &sealing, first);
    let invite = TicketId(seed.verifying_key().to_bytes());
    Found { invite, name, signing, sealing, ticket: first, proof, consent }.into()
}

fn ticket(n: usize) -> SigningKey {
    SigningKey::from_bytes(&[100 + u8::try_from(n).unwrap(); 32])
}

fn authors() -> Vec<NodeId> {
    (0..HOSTS).map(|n| node_id(&node_key(n))).collect()
}

/// Two replicas are one, in all that can be asked of them.
fn assert_same(one: &Replica<State>, other: &Replica<State>, history: &History, what: &str) {
    assert_eq!(one.index(), other.index(), "{what}");
    assert_eq!(one.term(), other.term(), "{what}");
    assert_eq!(one.time(), other.time(), "{what}");
    assert_eq!(one.history(), other.history(), "{what}");
    assert_eq!(one.config(), other.config(), "{what}");
    assert_eq!((one.mesh(), one.epoch()), (other.mesh(), other.epoch()), "{what}");
    assert_eq!(one.machine(), other.machine(), "{what}");
    assert_eq!(one.snapshot(), other.snapshot(), "{what}");
    assert_eq!(one.snapshot().digest(), other.snapshot().digest(), "{what}");
    for author in authors() {
        assert_eq!(one.top(author), other.top(author), "{what}");
    }
    for bytes in &history.sent {
        let Ok(batch) = Batch::parse(bytes) else { continue };
        let (author, sequence) = (batch.author(), batch.sequence());
        let receipt = one.receipt(author, sequence);
        assert_eq!(receipt, other.receipt(author, sequence), "{what}");
    }
}

/// What happened, so that a test can tell that it tested something.
#[derive(Debug, Default)]
struct Seen {
    kinds: BTreeMap<&'static str, u32>,
    refused: BTreeSet<u16>,
    time_held: u32,
}

impl Seen {
    fn note(&mut self, fact: &Fact) {
        let kind = match fact {
            Fact::Empty => "empty",
            Fact::Garbage(_) => "garbage",
            Fact::Config(Some(config)) if config.is_joint() => "joint",
            Fact::Config(Some(_)) => "simple",
            Fact::Config(None) => "void",
            Fact::Batch { verdict, .. } => match verdict {
                Verdict::Counted(receipt) => {
                    self.refused.extend(receipt.refused.iter().map(|(_, code)| *code));
                    "counted"
                }
                Verdict::Repeated(_) => "repeated",
                Verdict::Rejected(Rejected::NotMember(_)) => "not a member",
                Verdict::Rejected(Rejected::TooOld { .. }) => "too old",
                Verdict::Rejected(Rejected::Batch(error)) => match error {
                    BatchError::OtherMesh { .. } => "other mesh",
                    BatchError::OtherEpoch { .. } => "other epoch",
                    BatchError::BadSignature { .. } => "bad signature",
                    _ => "malformed",
                },
            },
        };
        *self.kinds.entry(kind).or_default() += 1;
    }
}

#[test]
fn a_snapshot_and_the_tail_give_what_all_entries_give() {
    let mut seen = Seen::default();
    for seed in 0..CASES {
        let mut history = History::new(seed);
        let length = history.random.usize(20..70);
        let cut = history.random.usize(..=length);
        for _ in 0..length {
            history.grow();
        }
        let mesh = history.genesis.mesh;

        // A second replica takes the same, and is the same at every index.
        let mut second = restore(mesh, &history.genesis.snapshot);
        let mut time = second.time();
        let mut at_cut = second.snapshot();
        for (place, entry) in history.entries.iter().enumerate() {
            let applied = second.apply(entry).unwrap();
            assert_eq!(applied, history.applied[place], "seed {seed}, entry {}", entry.index);
            assert!(applied.time >= time, "seed {seed}: mesh time went back at {}", entry.index);
            if let Payload::Batch { time: dated, .. } = &entry.payload {
                seen.time_held += u32::from(*dated < time);
            }
            time = applied.time;
            seen.note(&applied.fact);
            if place + 1 == cut {
                at_cut = second.snapshot();
            }
        }
        assert_same(&second, &history.replica, &history, &format!("seed {seed}, twice"));

        // A third begins at the cut.
        let what = format!("seed {seed}, cut at {cut} of {length}");
        let mut third = restore(mesh, &at_cut);
        assert_eq!(third.snapshot(), at_cut, "{what}");
        assert_eq!(restore(mesh, &at_cut).snapshot(), at_cut, "{what}");
        for (place, entry) in history.entries.iter().enumerate().skip(cut) {
            let applied = third.apply(entry).unwrap();
            assert_eq!(applied, history.applied[place], "{what}, entry {}", entry.index);
        }
        assert_same(&third, &history.replica, &history, &what);
    }
    let all = [
        "empty",
        "garbage",
        "joint",
        "simple",
        "void",
        "counted",
        "repeated",
        "not a member",
        "too old",
        "other mesh",
        "other epoch",
        "bad signature",
    ];
    for kind in all {
        assert!(seen.kinds.get(kind).is_some_and(|count| *count >= 20), "{kind}: {seen:?}");
    }
    assert!(seen.refused.len() >= 20, "{seen:?}");
    assert!(seen.time_held > 100, "{seen:?}");
}

#[test]
fn replicas_are_equal_at_every_index_also_if_one_of_them_restarts_at_each() {
    for seed in 10_000..10_000 + CASES / 8 {
        let mut history = History::new(seed);
        let mesh = history.genesis.mesh;
        let mut restless = restore(mesh, &history.genesis.snapshot);
        for _ in 0..40 {
            history.grow();
            restless = restore(mesh, &restless.snapshot());
            restless.apply(history.entries.last().unwrap()).unwrap();
            let what = format!("seed {seed}, entry {}", restless.index());
            assert_same(&restless, &history.replica, &history, &what);
        }
    }
}
