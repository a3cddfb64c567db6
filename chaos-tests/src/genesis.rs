//! A mesh that has already grown, made by the production code: its founder's snapshot, and on top of
//! it the entries that found parties, admit nodes and seat voters.

use ed25519_dalek::SigningKey;
use mesh_consensus::command::{Batch, Command};
use mesh_consensus::id::{MeshId, NodeId, PartyId, RaftId, TicketId};
use mesh_consensus::log::{ConfigChange, Entry, Payload, Seat, Snapshot};
use mesh_consensus::replica::{Fact, Replica, Verdict};
use mesh_consensus::time::Time;
use mesh_node::state::command::{Act, Admit, Report, RequestOpen, TicketNew};
use mesh_node::state::founding::{Founding, mesh_id};
use mesh_node::state::name::Name;
use mesh_node::state::party::Slot;
use mesh_node::state::request::JointAct;
use mesh_node::state::ticket::{sign_consent, sign_join};
use mesh_node::state::{FOUNDERS_SEAT, State};

/// When every simulated mesh begins.
pub const BEGINNING: Time = Time(1_700_000_000_000);

/// The key of host `n`.
pub fn node_key(n: usize) -> SigningKey {
    key(1, n)
}

/// The signing key of party `n`.
pub fn party_key(n: usize) -> SigningKey {
    key(2, n)
}

/// The seed of party `n`'s ticket.
pub fn ticket_seed(n: usize) -> SigningKey {
    key(3, n)
}

/// Who signs with `key`.
pub fn node_id(key: &SigningKey) -> NodeId {
    NodeId(key.verifying_key().to_bytes())
}

/// The party that signs with `key`.
pub fn party_id(key: &SigningKey) -> PartyId {
    PartyId(key.verifying_key().to_bytes())
}

/// A name, from text that is one.
pub fn name(text: &str) -> Name {
    text.parse().expect("the simulator only uses proper names")
}

fn key(role: u8, n: usize) -> SigningKey {
    let mut bytes = [role; 32];
    bytes[0] = u8::try_from(n).expect("a simulated mesh is small");
    SigningKey::from_bytes(&bytes)
}

/// A mesh that has grown.
pub struct Genesis {
    /// Its name.
    pub mesh: MeshId,
    /// Its parties.
    pub parties: Vec<PartyId>,
    /// The seat of each host.
    pub seats: Vec<RaftId>,
    /// Its state.
    pub snapshot: Snapshot,
    /// The last number that each host used.
    pub sequences: Vec<u64>,
}

/// Makes a mesh of `hosts` hosts, dealt out to `parties`, of which the first `voters` vote and the
/// next `learners` listen.
pub fn grown(hosts: usize, parties: usize, voters: usize, learners: usize, level: u16) -> Genesis {
    let founding = Founding {
        party: name("p0"),
        signing: party_id(&party_key(0)),
        sealing: [7; 32],
        founder: node_id(&node_key(0)),
        node: name("n0"),
        time: BEGINNING,
        level,
        salt: [9; 32],
    };
    let mesh = mesh_id(&founding);
    let state = State::genesis(founding, level).expect("the founding facts are in order");
    let replica = Replica::genesis(mesh, BEGINNING, FOUNDERS_SEAT, state);
    let mut growth = Growth { mesh, replica, sequence: 0 };
    let parties: Vec<PartyId> = (0..parties).map(|p| growth.found(p)).collect();
    let mut seats = vec![FOUNDERS_SEAT];
    for host in 1..hosts {
        seats.push(growth.admit(host, host % parties.len()));
        growth.report(host, level);
    }
    growth.report(0, level);
    for seat in &seats[1..(voters + learners).max(1)] {
        growth.config(ConfigChange::Seats(vec![Seat::Learner(*seat)]));
    }
    if voters > 1 {
        let new = seats[1..voters].iter().map(|seat| Seat::Voter(*seat)).collect();
        growth.config(ConfigChange::Seats(new));
        if voters > 2 {
            growth.config(ConfigChange::Leave);
        }
    }
    let sequences = (0..hosts).map(|host| growth.replica.top(node_id(&node_key(host)))).collect();
    Genesis { mesh, parties, seats, snapshot: growth.replica.snapshot(), sequences }
}

struct Growth {
    mesh: MeshId,
    replica: Replica<State>,
    sequence: u64,
}

impl Growth {
    /// The place of the next command of host 0, alone in its batch.
    fn slot(&self) -> Slot {
        let author = node_id(&node_key(0));
        Slot { mesh: self.mesh, epoch: 0, author, sequence: self.sequence + 1, position: 0 }
    }

    fn found(&mut self, party: usize) -> PartyId {
        let id = party_id(&party_key(party));
        let far = Time(BEGINNING.0 + 1_000_000_000);
        if party > 0 {
            let act = JointAct::FoundParty {
                name: name(&format!("p{party}")),
                signing: id,
                sealing: [8; 32],
            };
            // No other party has a node yet, so none has a say.
            let open = Act::RequestOpen(RequestOpen { act, expires: far });
            self.batch(vec![open.signed(&party_key(0), &self.slot())]);
        }
        let ticket = TicketId(ticket_seed(party).verifying_key().to_bytes());
        let ticket = TicketNew { ticket, party: id, expires: far, uses: 1000, worker: false };
        let command = Act::TicketNew(ticket).signed(&party_key(party), &self.slot());
        self.batch(vec![command]);
        id
    }

    fn admit(&mut self, host: usize, party: usize) -> RaftId {
        self.batch(vec![admit(self.mesh, host, party).command()]);
        RaftId(self.replica.index())
    }

    fn report(&mut self, host: usize, level: u16) {
        if host == 0 {
            self.batch(vec![report(level).command()]);
        } else {
            self.sign(host, 1, &[report(level).command()]);
        }
    }

    fn batch(&mut self, commands: Vec<Command>) {
        self.sequence += 1;
        self.sign(0, self.sequence, &commands);
    }

    fn sign(&mut self, host: usize, sequence: u64, commands: &[Command]) {
        let batch = Batch::sign(&node_key(host), self.mesh, 0, sequence, commands);
        let bytes = batch.expect("the batch is small").as_bytes().to_vec();
        let fact = self.apply(Payload::Batch { time: BEGINNING, bytes });
        let done = matches!(&fact, Fact::Batch { verdict: Verdict::Counted(receipt), .. }
            if receipt.refused.is_empty());
        assert!(done, "{fact:?}");
    }

    fn config(&mut self, change: ConfigChange) {
        let fact = self.apply(Payload::Config(change));
        assert!(matches!(fact, Fact::Config(Some(_))), "{fact:?}");
    }

    fn apply(&mut self, payload: Payload) -> Fact {
        let entry = Entry { term: 1, index: self.replica.index() + 1, payload };
        self.replica.apply(&entry).expect("this version knows what it makes").fact
    }
}

/// What a healthy node says about itself.
pub fn report(level: u16) -> Act {
    Act::Report(Report { fsync_p99_us: Some(1000), ..Report::assumed(level) })
}

/// What admits `host` with the ticket of `party`.
pub fn admit(mesh: MeshId, host: usize, party: usize) -> Act {
    let (seed, key) = (ticket_seed(party), node_key(host));
    let ticket = TicketId(seed.verifying_key().to_bytes());
    let node = node_id(&key);
    Act::Admit(Admit {
        ticket,
        node,
        name: name(&format!("n{host}")),
        proof: sign_join(&seed, mesh, node),
        consent: sign_consent(&key, mesh, ticket, party_id(&party_key(party))),
    })
}
