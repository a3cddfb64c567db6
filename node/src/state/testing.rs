//! A small mesh for tests: keys by number, and commands put to the state one at a time.

use std::time::Duration;

use ed25519_dalek::SigningKey;
use mesh_consensus::id::{Hash, JobId, MeshId, NodeId, PartyId, TicketId, VersionId};
use mesh_consensus::log::Config;
use mesh_consensus::machine::{At, Outcome, StateMachine};
use mesh_consensus::time::Time;

use super::State;
use super::command::*;
use super::data::content::{MAX_INPUTS, MAX_NOTE_BYTES, SEALED_BYTES};
use super::data::{Body, Claim, Lineage, Listing, Plain, Readers, Sealed};
use super::founding::{Founding, mesh_id};
use super::invite::{sign_found, sign_found_consent};
use super::level::{LEVEL, Version};
use super::member::Member;
use super::name::Name;
use super::party::{SignatureBytes, Slot};
use super::refusal::Refusal;
use super::request::{JointAct, RequestId};
use super::share::Share;
use super::ticket::{sign_consent, sign_join};
use crate::scheduler::Quota;

fn key(role: u8, n: u8) -> SigningKey {
    let mut bytes = [role; 32];
    bytes[0] = n;
    SigningKey::from_bytes(&bytes)
}

/// The key of node `n`.
pub(crate) fn node(n: u8) -> SigningKey {
    key(1, n)
}

/// The signing key of party `n`.
pub(super) fn party(n: u8) -> SigningKey {
    key(2, n)
}

/// The seed of ticket `n`.
pub(super) fn seed(n: u8) -> SigningKey {
    key(3, n)
}

pub(crate) fn id(n: u8) -> NodeId {
    NodeId(node(n).verifying_key().to_bytes())
}

pub(crate) fn party_id(n: u8) -> PartyId {
    PartyId(party(n).verifying_key().to_bytes())
}

pub(super) fn ticket(n: u8) -> TicketId {
    TicketId(seed(n).verifying_key().to_bytes())
}

/// The number of the first ticket of party `n`.
pub(super) const FIRST: u8 = 200;

/// The first ticket of party `n`.
pub(super) fn first(n: u8) -> TicketId {
    ticket(FIRST + n)
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(super) fn founding() -> Founding {
    Founding {
        party: name("p1"),
        signing: party_id(1),
        sealing: [1; 32],
        founder: id(1),
        node: name("n1"),
        time: Time(1_000_000),
        level: 1,
        salt: [5; 32],
    }
}

/// A mesh at level 1 that begins with party 1 and its node 1, and whose binary supports all levels.
pub(crate) struct Scene {
    pub(crate) state: State,
    pub(super) mesh: MeshId,
    /// Of the last entry.
    pub(super) index: u64,
    pub(super) time: Time,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let state = State::genesis(founding(), LEVEL).unwrap();
        Self { state, mesh: mesh_id(&founding()), index: 1, time: founding().time }
    }

    /// Parties 1 to `n`, each with a node of its own number.
    pub(super) fn of_parties(n: u8) -> Self {
        let mut scene = Self::new();
        for n in 2..=n {
            scene.found(n);
            scene.join(n, n).unwrap();
        }
        scene
    }

    pub(super) fn two_parties() -> Self {
        Self::of_parties(2)
    }

    /// One party, at the highest level.
    pub(super) fn at_top() -> Self {
        let mut scene = Self::new();
        scene.raise_to(LEVEL);
        scene
    }

    /// Two parties, at the highest level.
    pub(crate) fn two_at_top() -> Self {
        let mut scene = Self::two_parties();
        scene.raise_to(LEVEL);
        scene
    }

    /// The place of the next command of `author`, alone in its batch.
    pub(super) fn at(&mut self, author: &SigningKey) -> At {
        self.index += 1;
        At {
            mesh: self.mesh,
            epoch: 0,
            index: self.index,
            time: self.time,
            author: NodeId(author.verifying_key().to_bytes()),
            sequence: self.index,
            position: 0,
        }
    }

    pub(crate) fn act(&mut self, author: &SigningKey, act: impl Into<Act>) -> Result<(), Refusal> {
        let at = self.at(author);
        self.apply(&at, &act.into().command())
    }

    /// The same with the signature of a party.
    pub(super) fn signed(
        &mut self,
        author: &SigningKey,
        party: &SigningKey,
        act: impl Into<Act>,
    ) -> Result<(), Refusal> {
        let at = self.at(author);
        self.apply(&at, &act.into().signed(party, &Slot::of(&at)))
    }

    fn apply(
        &mut self,
        at: &At,
        command: &mesh_consensus::command::Command,
    ) -> Result<(), Refusal> {
        let before = self.state.clone();
        match self.state.apply(at, command).unwrap() {
            Outcome::Done => Ok(()),
            Outcome::Refused(code) => {
                assert_eq!(self.state, before, "what is refused changes nothing");
                Err(Refusal::from_code(code).unwrap())
            }
        }
    }

    pub(super) fn member(&self, n: u8) -> &Member {
        &self.state.members()[&id(n)]
    }

    /// Ticket `n` of party `of`, good for an hour.
    pub(super) fn ticket_new(&self, n: u8, of: u8, uses: u32) -> TicketNew {
        let expires = self.time.after(Duration::from_secs(3600));
        TicketNew { ticket: ticket(n), party: party_id(of), expires, uses, worker: false }
    }

    pub(super) fn make_ticket(&mut self, n: u8, of: u8, uses: u32) {
        let act = self.ticket_new(n, of, uses);
        self.signed(&node(1), &party(of), act).unwrap();
    }

    /// Invite `n` of party `of`, good for an hour.
    pub(super) fn invite(&self, n: u8, of: u8, uses: u32) -> Invite {
        let expires = self.time.after(Duration::from_secs(3600));
        Invite { ticket: ticket(n), party: party_id(of), expires, uses }
    }

    pub(super) fn make_invite(&mut self, n: u8, of: u8, uses: u32) {
        let act = self.invite(n, of, uses);
        self.signed(&node(1), &party(of), act).unwrap();
    }

    /// Party `n` coming with invite `with`.
    pub(super) fn found_with(&self, with: u8, n: u8) -> Found {
        self.found_as(with, n, &format!("p{n}"))
    }

    pub(super) fn found_as(&self, with: u8, n: u8, label: &str) -> Found {
        any_found(with, n, name(label))
    }

    /// Node `n` coming with ticket `with`, to the party that has it; to party 1 if none has.
    pub(super) fn admit(&self, with: u8, n: u8) -> Admit {
        let ticket = ticket(with);
        let party = self.state.tickets().get(&ticket).map_or(party_id(1), |found| found.party);
        Admit {
            ticket,
            node: id(n),
            name: name(&format!("n{n}")),
            proof: sign_join(&seed(with), self.mesh, id(n)),
            consent: sign_consent(&node(n), self.mesh, ticket, party),
        }
    }

    /// Lets node `n` into party `of`, with a ticket of its own.
    pub(crate) fn join(&mut self, of: u8, n: u8) -> Result<(), Refusal> {
        self.join_with(of, n, false)
    }

    pub(super) fn join_as_worker(&mut self, of: u8, n: u8) -> Result<(), Refusal> {
        self.join_with(of, n, true)
    }

    fn join_with(&mut self, of: u8, n: u8, worker: bool) -> Result<(), Refusal> {
        // Anyone who is still there may carry the words.
        let there = (1..=255).find(|n| self.state.is_member(id(*n))).unwrap();
        let ticket = 100 + n;
        if !self.state.tickets().contains_key(&super::testing::ticket(ticket)) {
            let act = TicketNew { worker, ..self.ticket_new(ticket, of, 9) };
            self.signed(&node(there), &party(of), act).unwrap();
        }
        let act = self.admit(ticket, n);
        self.act(&node(there), act)
    }

    /// Founds party `n` with the consent of all that there are.
    fn found(&mut self, n: u8) {
        let act = JointAct::FoundParty {
            name: name(&format!("p{n}")),
            signing: party_id(n),
            sealing: [n; 32],
        };
        let open = RequestOpen { act, expires: Time(u64::MAX) };
        self.signed(&node(1), &party(1), open).unwrap();
        let request = RequestId::at(self.index, 0);
        for other in 2..n {
            if self.state.requests().contains_key(&request) {
                let sign = RequestSign { request, yes: true };
                self.signed(&node(1), &party(other), sign).unwrap();
            }
        }
        assert!(self.state.parties().contains_key(&party_id(n)));
    }

    /// Party `by` asks for the removal of node `n`.
    pub(super) fn open_removal(&mut self, by: u8, n: u8) {
        let expires = self.time.after(Duration::from_secs(60));
        let open = RequestOpen { act: JointAct::RemoveNode { node: id(n) }, expires };
        self.signed(&node(1), &party(by), open).unwrap();
    }

    pub(super) fn leave(&mut self, n: u8) -> Result<(), Refusal> {
        self.act(&node(n), Leave { node: id(n) })
    }

    pub(crate) fn report(&mut self, n: u8, change: impl FnOnce(&mut Report)) {
        let mut report = self.member(n).report.clone();
        change(&mut report);
        self.act(&node(n), report).unwrap();
    }

    /// Makes these nodes the voters.
    pub(crate) fn seat_voters(&mut self, nodes: &[u8]) {
        let voters = nodes.iter().map(|n| self.state.seat_of(id(*n)).unwrap()).collect();
        self.index += 1;
        self.state.on_config(self.index, &Config { voters, ..Config::default() });
    }

    /// Has every member report `level`, and raises the mesh to it, one by one.
    pub(crate) fn raise_to(&mut self, level: u16) {
        for n in 1..=9 {
            if self.state.is_member(id(n)) {
                self.report(n, |report| report.level = level);
            }
        }
        for next in self.state.level().number + 1..=level {
            self.act(&node(1), RaiseLevel::to(next).unwrap()).unwrap();
        }
    }
}

/// Party `n` asks to be founded with invite `with`, properly signed.
pub(super) fn any_found(with: u8, n: u8, name: Name) -> Found {
    let (mesh, sealing) = (mesh_id(&founding()), [n; 32]);
    let first = first(n);
    let proof = sign_found(&seed(with), mesh, &name, party_id(n), &sealing, first);
    let consent = sign_found_consent(&party(n), mesh, &name, &sealing, first);
    let (invite, signing) = (ticket(with), party_id(n));
    Found { invite, name, signing, sealing, ticket: first, proof, consent }
}

/// One of few, so that they often meet.
fn any_version(random: &mut fastrand::Rng) -> VersionId {
    VersionId([random.u8(0..6); 16])
}

fn any_body(random: &mut fastrand::Rng, name: Name) -> Body {
    let (number, bytes, files) = (random.u32(0..4), random.u64(..), random.u64(..));
    if random.bool() {
        let inputs = (0..random.usize(0..=MAX_INPUTS)).map(|_| any_version(random)).collect();
        let job = random.bool().then_some(JobId([7; 16]));
        let readers = (0..random.u8(0..3)).map(|_| party_id(random.u8(1..5))).collect();
        let readers = if random.bool() { Readers::Everyone } else { Readers::Parties(readers) };
        let (manifest, lineage) = (Hash([1; 32]), Lineage::new(inputs, job).unwrap());
        return Body::Plain(Plain { name, number, manifest, bytes, files, readers, lineage });
    }
    let size = SEALED_BYTES[if random.u8(0..8) == 0 { 2 } else { random.usize(0..2) }];
    let record = vec![random.u8(..); size].try_into().unwrap();
    let note = "n".repeat(random.usize(0..=MAX_NOTE_BYTES)).parse().unwrap();
    let listing = random.bool().then_some(Listing { name, number, bytes, files, note });
    Body::Sealed(Sealed { record, listing })
}

/// Any act of any kind, drawn so that acts often have to do with one another.
pub(super) fn any_act(random: &mut fastrand::Rng, now: Time) -> Act {
    let n = random.u8(1..6);
    let time = Time(now.0 + random.u64(0..400));
    let label = name(&format!("n{}", random.u8(0..8)));
    let hash = |random: &mut fastrand::Rng| Hash([random.u8(0..3); 32]);
    let party = party_id(random.u8(1..5));
    match random.u8(0..42) {
        0 => TicketNew {
            ticket: ticket(n),
            party,
            expires: time,
            uses: random.u32(0..4),
            worker: random.bool(),
        }
        .into(),
        1 => TicketRevoke { ticket: ticket(n) }.into(),
        2 => {
            let newcomer = random.u8(1..9);
            let mesh = mesh_id(&founding());
            let proof = if random.u8(0..8) == 0 {
                SignatureBytes([n; 64])
            } else {
                sign_join(&seed(n), mesh, id(newcomer))
            };
            let consent = sign_consent(&node(newcomer), mesh, ticket(n), party);
            Admit { ticket: ticket(n), node: id(newcomer), name: label, proof, consent }.into()
        }
        3 => Rejoin {}.into(),
        4 => Leave { node: id(random.u8(1..9)) }.into(),
        5 => {
            let act = match random.u8(0..3) {
                0 => JointAct::FoundParty { name: label, signing: party, sealing: [n; 32] },
                1 => JointAct::RemoveNode { node: id(random.u8(1..9)) },
                _ => {
                    let quota = Quota { cpu_milli: Some(random.u64(..)), gpus: None };
                    JointAct::Allow { party, share: Share { weight: random.u32(0..4), quota } }
                }
            };
            RequestOpen { act, expires: time }.into()
        }
        6 => {
            let request = RequestId::at(random.u64(0..300), random.u32(0..3));
            RequestSign { request, yes: random.u8(0..4) != 0 }.into()
        }
        7 => Report {
            level: random.u16(1..=LEVEL),
            version: Version::new(0, u32::from(n), 0),
            votes: random.u8(0..4) != 0,
            fsync_p99_us: Some(random.u32(0..100_000)),
            direct: random.bool(),
            domain: random.bool().then_some(label),
        }
        .into(),
        8 => Suspect { node: id(random.u8(1..9)), down: random.bool() }.into(),
        9 => RaiseLevel::to(random.u16(2..=LEVEL)).unwrap().into(),
        10 => NameSet {
            party,
            name: label,
            expect: random.bool().then(|| hash(random)),
            to: hash(random),
        }
        .into(),
        11 => NameDrop { party, name: label, expect: hash(random) }.into(),
        12 => Pace { tick_ms: random.u32(10..2100) }.into(),
        13 => {
            let value = random.bool().then(|| format!("V{n}").parse().unwrap());
            Label { node: id(random.u8(1..9)), key: label, value }.into()
        }
        14 => Drain { node: id(random.u8(1..9)), on: random.bool() }.into(),
        16 => {
            let author = id(random.u8(1..9));
            let index = random.u64(0..300);
            let signature = SignatureBytes([author.0[0]; 64]);
            HandOver { index, signature }.into()
        }
        15 => Invite { ticket: ticket(n), party, expires: time, uses: random.u32(0..4) }.into(),
        18 => VersionNew {
            party,
            id: any_version(random),
            revision: random.bool().then(|| random.u64(0..3)),
            copies: random.u8(0..4),
            holders: (0..random.u8(0..3)).map(|_| id(random.u8(1..9))).collect(),
            body: any_body(random, label),
        }
        .into(),
        19 => VersionDrop { id: any_version(random) }.into(),
        20 => VersionBody {
            id: any_version(random),
            expect: hash(random),
            revision: random.bool().then(|| random.u64(0..3)),
            body: any_body(random, label),
        }
        .into(),
        21 => TagSet {
            party,
            name: label,
            tag: name("tag"),
            expect: random.bool().then(|| random.u32(0..4)),
            to: random.bool().then(|| random.u32(0..4)),
        }
        .into(),
        22 => {
            let claims = [Claim::Kept, Claim::Released, Claim::Lost];
            let claim = claims[random.usize(0..claims.len())];
            Hold { id: any_version(random), claim }.into()
        }
        // Few of them find a request that is open.
        23 | 39..=41 => {
            let request = RequestId::at(random.u64(0..300), random.u32(0..3));
            RequestWithdraw { request }.into()
        }
        24..=38 => super::jobs::tests::any_job_act(random, party),
        _ => {
            let mut act = any_found(n, random.u8(1..5), label);
            if random.u8(0..8) == 0 {
                act.proof = act.consent;
            }
            act.into()
        }
    }
}
