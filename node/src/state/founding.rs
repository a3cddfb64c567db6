//! How a mesh begins: the facts from which its first state and its name follow.

use mesh_consensus::id::{Hash, MeshId, NodeId, PartyId};
use mesh_consensus::time::Time;
use serde::{Deserialize, Serialize};

use super::name::Name;

const DOMAIN: &[u8] = b"mesh/founding/1\0";

/// What the founder decides. Every node keeps it, so anyone can check the mesh's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founding {
    /// The name of the first party.
    pub party: Name,
    /// Its signing key.
    pub signing: PartyId,
    /// Its sealing key.
    pub sealing: [u8; 32],
    /// The first node.
    pub founder: NodeId,
    /// What that node is called.
    pub node: Name,
    /// The founder's clock.
    pub time: Time,
    /// The level at which the mesh begins.
    pub level: u16,
    /// Random, so that two meshes founded alike have two names.
    pub salt: [u8; 32],
}

/// Why a mesh cannot begin so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoundingError {
    /// The level is not one of ours.
    #[error("a mesh cannot begin at level {level}: this version knows levels 1 to {supports}")]
    Level {
        /// The level asked for.
        level: u16,
        /// The highest that this binary supports.
        supports: u16,
    },
    /// The party cannot be.
    #[error("the first party cannot be founded")]
    Party(#[source] super::refusal::Refusal),
    /// The node cannot be.
    #[error("the first node cannot be admitted")]
    Node(#[source] super::refusal::Refusal),
}

/// The name of the mesh that begins so.
pub fn mesh_id(founding: &Founding) -> MeshId {
    let facts = postcard::to_stdvec(founding).expect("a Founding always encodes");
    let Hash(hash) = Hash::of(&[DOMAIN, &facts].concat());
    MeshId(hash)
}

#[cfg(test)]
mod tests {
    use mesh_consensus::id::RaftId;
    use mesh_consensus::machine::StateMachine;

    use super::super::State;
    use super::super::level::LEVEL;
    use super::super::refusal::Refusal;
    use super::super::testing::{founding, id, name, party_id};
    use super::*;

    #[test]
    fn a_mesh_begins_with_one_party_and_one_node_at_seat_one() {
        let state = State::genesis(founding(), LEVEL).unwrap();
        assert_eq!(state.members().len(), 1);
        assert_eq!(state.seat_of(id(1)), Some(RaftId(1)));
        assert_eq!(state.node_at(RaftId(1)), Some(id(1)));
        assert_eq!(state.party_of(id(1)), Some(party_id(1)));
        assert!(state.config().voters.contains(&RaftId(1)));
        assert_eq!(state.level().number, 1);
        assert_eq!(state.founding(), Some(&founding()));
    }

    #[test]
    fn every_fact_of_the_founding_is_in_the_meshs_name() {
        let first = mesh_id(&founding());
        let changes: [fn(&mut Founding); 8] = [
            |f| f.party = name("other"),
            |f| f.signing.0[0] ^= 1,
            |f| f.sealing[0] ^= 1,
            |f| f.founder.0[0] ^= 1,
            |f| f.node = name("other"),
            |f| f.time.0 += 1,
            |f| f.level += 1,
            |f| f.salt[0] ^= 1,
        ];
        for change in changes {
            let mut other = founding();
            change(&mut other);
            assert_ne!(mesh_id(&other), first);
        }
    }

    #[test]
    fn a_mesh_that_could_not_go_on_does_not_begin() {
        let begin = |change: fn(&mut Founding)| {
            let mut founding = founding();
            change(&mut founding);
            State::genesis(founding, 1).unwrap_err()
        };
        assert_eq!(begin(|f| f.level = 0), FoundingError::Level { level: 0, supports: 1 });
        assert_eq!(begin(|f| f.level = 2), FoundingError::Level { level: 2, supports: 1 });
        assert_eq!(begin(|f| f.party = name("each")), FoundingError::Party(Refusal::NameReserved));
        assert_eq!(begin(|f| f.signing = PartyId([2; 32])), FoundingError::Party(Refusal::BadKey));
        assert_eq!(begin(|f| f.founder = NodeId([2; 32])), FoundingError::Node(Refusal::BadKey));
    }
}
