//! Who belongs, in a form that every request can look at without asking the engine.

use std::collections::{BTreeMap, BTreeSet};

use mesh_consensus::handover::Handover;
use mesh_consensus::id::{NodeId, PartyId, RaftId};
use mesh_consensus::log::Config;
use mesh_consensus::machine::StateMachine as _;
use mesh_consensus::replica::Replica;

use crate::state::State;
use crate::state::name::Name;

/// One member's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What it is called.
    pub name: Name,
    /// Whose it is.
    pub party: PartyId,
    /// Its seat.
    pub seat: Option<RaftId>,
    /// Whether it is on its way out.
    pub leaving: bool,
    /// Whether it goes without the party's signing key.
    pub worker: bool,
}

/// What a node was told when it was admitted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// Members and their seats.
    pub introduced: Vec<(NodeId, RaftId)>,
    /// Who voted.
    pub voters: BTreeSet<NodeId>,
}

/// Who belongs, as of one index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roster {
    /// The index.
    pub index: u64,
    /// The state's revision.
    pub revision: u64,
    /// All members.
    pub members: BTreeMap<NodeId, Place>,
    /// Who may never come back.
    pub removed: BTreeSet<NodeId>,
    /// Names of parties.
    pub parties: BTreeMap<PartyId, Name>,
    /// Open requests.
    pub requests: BTreeSet<u64>,
    /// The configuration.
    pub config: Config,
    /// Who votes.
    pub voters: BTreeSet<NodeId>,
    /// Who voted before and still has a say; empty unless the configuration is joint.
    pub outgoing: BTreeSet<NodeId>,
    /// Voters and learners.
    pub seated: BTreeSet<NodeId>,
    /// The latest changes of voters, in order.
    pub handovers: Vec<Handover>,
    /// Whom this node was told of when it was admitted; all it knows until it has the state.
    pub introduced: BTreeSet<NodeId>,
}

impl Roster {
    /// What the replica says; until it has a state, what the node was told at admission.
    pub fn of(replica: &Replica<State>, told: &Told) -> Self {
        let introduced: BTreeSet<NodeId> = told.introduced.iter().map(|(node, _)| *node).collect();
        if replica.index() == 0 {
            return Self { voters: told.voters.clone(), introduced, ..Self::default() };
        }
        let state = replica.machine();
        let config = replica.config().clone();
        let nodes = |seats: &BTreeSet<RaftId>| -> BTreeSet<NodeId> {
            seats.iter().filter_map(|seat| state.node_at(*seat)).collect()
        };
        let members = state.members().iter().map(|(node, member)| {
            let place = Place {
                name: member.name.clone(),
                party: member.party,
                seat: member.seat,
                leaving: member.leaving,
                worker: member.worker,
            };
            (*node, place)
        });
        let mut seated = nodes(&config.voters);
        for more in [&config.outgoing, &config.learners, &config.learners_next] {
            seated.extend(nodes(more));
        }
        Self {
            index: replica.index(),
            revision: state.revision(),
            members: members.collect(),
            removed: state.removed().clone(),
            parties: state.parties().iter().map(|(id, one)| (*id, one.name.clone())).collect(),
            requests: state.requests().keys().map(|id| id.0).collect(),
            voters: nodes(&config.voters),
            outgoing: nodes(&config.outgoing),
            seated,
            handovers: state.handovers().cloned().collect(),
            introduced,
            config,
        }
    }

    /// Everyone whose bookmarks count.
    pub fn signers(&self) -> BTreeSet<NodeId> {
        &self.voters | &self.outgoing
    }

    /// Everyone who may speak in the overlay.
    pub fn everyone(&self) -> BTreeSet<NodeId> {
        match self.index {
            0 => self.introduced.clone(),
            _ => self.members.keys().copied().collect(),
        }
    }

    /// Whether `node` is a member and not leaving.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|place| !place.leaving)
    }

    /// The parties that have a say: those with a node that is a member and not leaving.
    pub fn present_parties(&self) -> BTreeSet<PartyId> {
        self.members.values().filter(|place| !place.leaving).map(|place| place.party).collect()
    }

    /// The party of a member.
    pub fn party_of(&self, node: NodeId) -> Option<PartyId> {
        self.members.get(&node).map(|place| place.party)
    }
}
